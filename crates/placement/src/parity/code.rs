//! Computes parity blocks from data blocks, and lost blocks from those that are left.
//!
//! How: with one parity, it is the XOR of the data. With more, the code is systematic Reed–Solomon
//! over GF(2^8) with the polynomial 0x11d, and the coefficient of data i in parity j is
//! 1 / ((k + j) XOR i), a Cauchy matrix: any k of the k + m blocks give all others (Bloemer et al.,
//! "An XOR-Based Erasure-Resilient Coding Scheme", ICSI TR-95-048, 1995). Both are what ISA-L's
//! `gf_gen_rs_matrix` and `gf_gen_cauchy1_matrix` give, so that blocks are the same bytes.
//!
//! Invariants:
//! 1. Blocks count as if zeros followed them.
//! 2. Fewer than k blocks are an error, never a guess.
//!
//! Not here: the arithmetic in GF(2^8) itself (`rusty_erasure`); whether a block is what it was
//! (checksums, in the engine).

use orcheck_format::{Error, Result};
use rusty_erasure::{Coder, Matrix, best_kernels};

/// A code with k data blocks and m parity blocks.
pub struct Code {
    coder: Coder,
    /// For each parity, the expanded coefficient of each data block.
    tables: Vec<Vec<Vec<u8>>>,
}

impl Code {
    /// The code of this many data and parity blocks, together at most 255.
    ///
    /// # Errors
    /// Invalid for other numbers.
    pub fn new(data: u32, parity: u32) -> Result<Self> {
        let (k, m) = (data as usize, parity as usize);
        let matrix = match m {
            1 => Matrix::reed_solomon(k, m),
            _ => Matrix::cauchy(k, m),
        };
        let wrong = |error: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "no code of {data} data and {parity} parity: {error}"
            ))
        };
        let matrix = matrix.map_err(|error| wrong(&error))?;
        let kernels = best_kernels();
        let rows = matrix.parity_bytes().chunks(k);
        let table = |&coefficient: &u8| (kernels.init)(&[coefficient]);
        let tables = rows.map(|row| row.iter().map(table).collect()).collect();
        let coder = Coder::with_kernels(matrix, kernels).map_err(|error| wrong(&error))?;
        Ok(Self { coder, tables })
    }

    /// Adds the share of data block `data`, from byte `at` of the block on, to parity block
    /// `parity`; what lies beyond the parity block is an error of the caller and is left out.
    pub fn fold(&self, (data, parity): (u32, u32), bytes: &[u8], at: usize, into: &mut [u8]) {
        let row = self.tables.get(parity as usize);
        let table = row.and_then(|row| row.get(data as usize));
        let end = at.saturating_add(bytes.len());
        if let (Some(table), Some(part)) = (table, into.get_mut(at..end)) {
            (self.coder.kernels().mad)(table, bytes, part);
        }
    }

    /// The block at `wanted` (data first, then parity), from any k of the others, all of the same
    /// length.
    ///
    /// # Errors
    /// Corrupt if there are fewer than k.
    pub fn recover(&self, blocks: &[Option<&[u8]>], wanted: usize) -> Result<Vec<u8>> {
        let present: Vec<bool> = blocks.iter().map(Option::is_some).collect();
        let broken = |error: &dyn std::fmt::Display| Error::corrupt(format!("a codeword: {error}"));
        let plan = (self.coder.decode_plan(&present, &[wanted])).map_err(|error| broken(&error))?;
        let len = blocks.iter().flatten().map(|block| block.len()).next();
        let mut found = vec![0; len.unwrap_or(0)];
        (self.coder)
            .recover_with(&plan, blocks, &mut [&mut found])
            .map_err(|error| broken(&error))?;
        Ok(found)
    }
}
