//! Copies memory and computes its CRC-64/NVME in the same pass.
//!
//! How: a kernel of [`crate::copy::fold`] stores past the cache. (A disk or another processor reads
//! the destination later; caching it would evict the program's own data and cost a read of every
//! line written.) The kernel is chosen once, by what the processor supports: AVX-512 with
//! VPCLMULQDQ, AVX2 with VPCLMULQDQ, AVX2 with PCLMULQDQ, SSE2 with PCLMULQDQ; on Arm, NEON with
//! PMULL. Without any of these, and for short pieces, the C library copies blocks of 16 KiB, which
//! are checksummed while still cached. `ORCHECK_COPY_KERNEL` selects another kernel for
//! comparisons; one that the processor lacks is refused ([`check_choice`]).
//!
//! Invariants
//! 1. The result is `crc64` of the bytes as they arrived. The kernels load each byte once, so even
//!    if the source changes meanwhile, the checksum is that of the copy.
//! 2. All kernels give the same bytes and the same CRC for every length and alignment, and touch no
//!    byte outside.
//!
//! Faults survived: none to survive. Not here: who owns the memory (see [`mod@orcheck_io::memory`],
//! [`crate::pool`]).
#![allow(unsafe_code)]

mod fold;

use crate::copy::fold::CopyFold;
pub(crate) use crate::copy::fold::order_stores;
use orcheck_format::{Crc64, Error, Result, crc64};
use orcheck_io::user::env_var;
use std::fmt;
use std::ptr::copy_nonoverlapping;
use std::sync::OnceLock;

/// A method of copying; [`kernel`] returns the one in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// AVX-512 with VPCLMULQDQ.
    Avx512,
    /// AVX2 with VPCLMULQDQ.
    Avx2Wide,
    /// AVX2 with PCLMULQDQ.
    Avx2,
    /// SSE2 with PCLMULQDQ.
    Sse,
    /// NEON with PMULL.
    Neon,
    /// Library copy and library CRC, in blocks.
    Portable,
}

/// The variable that selects a kernel.
const CHOICE: &str = "ORCHECK_COPY_KERNEL";

impl Kernel {
    /// All kernels, the fastest of each processor first.
    const ALL: [Kernel; 6] = [
        Kernel::Avx512,
        Kernel::Avx2Wide,
        Kernel::Avx2,
        Kernel::Sse,
        Kernel::Neon,
        Kernel::Portable,
    ];

    /// The kernels that this processor can run, fastest first.
    #[must_use]
    pub fn available() -> Vec<Kernel> {
        let mut kernels = Kernel::ALL.to_vec();
        kernels.retain(|kernel| *kernel == Kernel::Portable || kernel.fold().is_some());
        kernels
    }

    /// The kernel of this name, if this processor can run it.
    ///
    /// # Errors
    /// Invalid for an unknown name; Unsupported for a kernel that the processor lacks.
    pub fn named(name: &str) -> Result<Kernel> {
        let list = |kernels: &[Kernel]| {
            let names: Vec<String> = kernels.iter().map(ToString::to_string).collect();
            names.join(", ")
        };
        let available = Kernel::available();
        let Some(kernel) = Kernel::ALL.into_iter().find(|one| one.to_string() == name) else {
            return Err(Error::invalid(format!(
                "{CHOICE} = '{name}': expected one of {}",
                list(&Kernel::ALL)
            )));
        };
        if available.contains(&kernel) {
            Ok(kernel)
        } else {
            Err(Error::unsupported(format!(
                "{CHOICE} = '{name}': this processor has only {}",
                list(&available)
            ))
            .next("unset it; the fastest is then chosen"))
        }
    }

    /// The function and the length of its stride; `None` for the portable kernel, and for one that
    /// this processor lacks.
    fn fold(self) -> Option<(CopyFold, usize)> {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::copy::fold::x86;
            match self {
                Kernel::Avx512 if x86::has_avx512() => Some((x86::avx512, x86::AVX512_STRIDE)),
                Kernel::Avx2Wide if x86::has_avx2_wide() => {
                    Some((x86::avx2_wide, x86::AVX2_WIDE_STRIDE))
                }
                Kernel::Avx2 if x86::has_avx2() => Some((x86::avx2, x86::AVX2_STRIDE)),
                Kernel::Sse if x86::has_sse() => Some((x86::sse, x86::SSE_STRIDE)),
                _ => None,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use crate::copy::fold::arm;
            match self {
                Kernel::Neon if arm::has_neon() => Some((arm::neon, arm::NEON_STRIDE)),
                _ => None,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        None
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kernel::Avx512 => "avx512",
            Kernel::Avx2Wide => "avx2_wide",
            Kernel::Avx2 => "avx2",
            Kernel::Sse => "sse",
            Kernel::Neon => "neon",
            Kernel::Portable => "portable",
        })
    }
}

/// The kernel that the pool uses in this process: the fastest available, unless the environment
/// selects another. Decided once.
#[must_use]
pub fn kernel() -> Kernel {
    static CHOSEN: OnceLock<Kernel> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let named = env_var(CHOICE).and_then(|name| Kernel::named(&name).ok());
        named.unwrap_or_else(|| Kernel::available()[0])
    })
}

/// Fails if the environment selects an unavailable kernel, so that nobody measures another one
/// unknowingly.
///
/// # Errors
/// As [`Kernel::named`].
pub fn check_choice() -> Result<()> {
    match env_var(CHOICE) {
        Some(name) if !name.is_empty() => Kernel::named(&name).map(|_| ()),
        _ => Ok(()),
    }
}

/// Below this length, storing past the cache does not pay.
const STREAM_FROM_BYTES: usize = 4096;
const CACHED_BLOCK_BYTES: usize = 16 * 1024;
/// Alignment of what the kernels write: a cache line.
const LINE_BYTES: usize = 64;

/// Copies `len` bytes and returns their CRC-64/NVME; nobody else may be told about the copy before
/// [`order_stores`].
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
pub(crate) unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize) -> u64 {
    let kernel = if len < STREAM_FROM_BYTES {
        Kernel::Portable
    } else {
        kernel()
    };
    // SAFETY: the caller's promise; the kernel is one that this processor has.
    unsafe { copy_by(kernel, dst, src, len) }
}

/// Copies `len` bytes with a given kernel, beginning with its first whole stride, and returns their
/// CRC-64/NVME. An unavailable kernel is replaced by [`Kernel::Portable`].
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[must_use]
pub unsafe fn copy_crc_by(kernel: Kernel, dst: *mut u8, src: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise.
    let crc = unsafe { copy_by(kernel, dst, src, len) };
    order_stores();
    crc
}

/// # Safety
/// As [`copy_crc_by`].
unsafe fn copy_by(kernel: Kernel, dst: *mut u8, src: *const u8, len: usize) -> u64 {
    let mut crc = Crc64::new();
    let mut done = 0;
    let head = dst.align_offset(LINE_BYTES);
    if let Some((fold, stride)) = kernel.fold()
        && len.saturating_sub(head) >= stride
    {
        let strides = (len - head) / stride;
        done = head + strides * stride;
        // SAFETY: head + strides × stride ≤ len, so both pointers stay inside what the caller
        // vouches for; `dst + head` is a multiple of 64; the processor was just asked for what the
        // kernel needs; strides ≥ 1.
        let folded = unsafe {
            plain(&mut crc, dst, src, head);
            fold(dst.add(head), src.add(head), strides, !crc.value())
        };
        // Whole pages end here: they need no running sum.
        if done == len {
            return crc64(&folded);
        }
        crc = Crc64::new();
        crc.update(&folded);
    }
    while done < len {
        let piece = (len - done).min(CACHED_BLOCK_BYTES);
        // SAFETY: done + piece ≤ len.
        unsafe { plain(&mut crc, dst.add(done), src.add(done), piece) };
        done += piece;
    }
    crc.value()
}

/// Copies a short piece and adds what arrived to the CRC.
///
/// # Safety
/// As [`copy_crc_by`]; also, nobody else writes the destination meanwhile.
unsafe fn plain(crc: &mut Crc64, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise. The checksum is taken from the copy, so that it is one of the
    // bytes that arrived even if the source changes.
    unsafe {
        copy_nonoverlapping(src, dst, len);
        crc.update(std::slice::from_raw_parts(dst, len));
    }
}
