//! Packs and unpacks arrays in memory: slices of global arrays, contiguous or with strides.
//!
//! Invariants:
//! 1. Packed order is C order of the local shape.
//! 2. `runs` yields the contiguous runs of that order, in order; their lengths add up to the
//!    packed length.

use orcheck_format::{Dtype, Error, Result};
use orcheck_io::memory::{Span, copy_into, fill_span};

/// Maximum number of dimensions of an array.
pub const MAX_DIMS: usize = 8;

/// Shape of a region that is an array. All lengths are in elements, in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayLayout {
    /// Element type.
    pub dtype: Dtype,
    /// Shape of the global array; empty if the array belongs to this rank alone.
    pub global: Vec<u64>,
    /// Where the local part begins in the global array; empty if `global` is.
    pub offset: Vec<u64>,
    /// Shape of the local part.
    pub local: Vec<u64>,
    /// Distance between neighbours in each dimension; empty means contiguous.
    pub stride: Vec<u64>,
}

impl ArrayLayout {
    /// Checks the shapes against each other.
    ///
    /// # Errors
    /// Invalid, naming the dimension.
    pub fn validate(&self) -> Result<()> {
        let dims = self.local.len();
        if dims == 0 || dims > MAX_DIMS {
            return Err(Error::invalid(format!(
                "an array has 1 to {MAX_DIMS} dimensions, not {dims}"
            )));
        }
        if self.global.len() != self.offset.len()
            || (!self.global.is_empty() && self.global.len() != dims)
            || (!self.stride.is_empty() && self.stride.len() != dims)
        {
            return Err(Error::invalid(
                "global, offset, local and stride differ in their number of dimensions",
            ));
        }
        for (dim, (&global, &offset)) in self.global.iter().zip(&self.offset).enumerate() {
            if offset
                .checked_add(self.local[dim])
                .is_none_or(|end| end > global)
            {
                return Err(Error::invalid(format!(
                    "dimension {dim}: offset {offset} + local {} exceeds global {global}",
                    self.local[dim]
                )));
            }
        }
        self.packed_bytes().and(self.extent_bytes()).map(|_| ())
    }

    /// Length of the packed local part.
    ///
    /// # Errors
    /// Invalid on overflow.
    pub fn packed_bytes(&self) -> Result<u64> {
        self.local
            .iter()
            .try_fold(self.dtype.size_bytes(), |bytes, &n| bytes.checked_mul(n))
            .ok_or_else(|| Error::invalid("the array is larger than the address space"))
    }

    /// Bytes of memory from the first to the last element.
    ///
    /// # Errors
    /// Invalid on overflow.
    pub fn extent_bytes(&self) -> Result<u64> {
        if self.stride.is_empty() || self.local.contains(&0) {
            return self.packed_bytes();
        }
        self.local
            .iter()
            .zip(&self.stride)
            .try_fold(1u64, |elements, (&n, &stride)| {
                (n - 1).checked_mul(stride)?.checked_add(elements)
            })
            .and_then(|elements| elements.checked_mul(self.dtype.size_bytes()))
            .ok_or_else(|| Error::invalid("the array is larger than the address space"))
    }

    /// Whether packed order is memory order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&n, &stride) in self.local.iter().zip(&self.stride).rev() {
            if n > 1 && stride != expected {
                return false;
            }
            expected *= n;
        }
        true
    }

    /// Length of the contiguous runs and the memory offset of run `number`, in bytes.
    fn run(&self, number: u64) -> (u64, u64) {
        let size = self.dtype.size_bytes();
        let mut length = 1;
        let mut inner = self.local.len();
        while inner > 0 && (self.stride[inner - 1] == length || self.local[inner - 1] == 1) {
            inner -= 1;
            length *= self.local[inner];
        }
        let mut rest = number;
        let mut at = 0;
        for dim in (0..inner).rev() {
            at += rest % self.local[dim] * self.stride[dim];
            rest /= self.local[dim];
        }
        (length * size, at * size)
    }

    fn for_runs(&self, at: u64, len: usize, mut each: impl FnMut(u64, std::ops::Range<usize>)) {
        if self.is_contiguous() {
            return each(at, 0..len);
        }
        let mut done = 0;
        while done < len {
            let (length, _) = self.run(0);
            let position = at + done as u64;
            let (_, memory) = self.run(position / length);
            let inside = position % length;
            let take = (length - inside).min((len - done) as u64) as usize;
            each(memory + inside, done..done + take);
            done += take;
        }
    }

    /// Packs bytes `at ..` of the array at `span` into `dst`.
    pub fn gather(&self, span: Span, at: u64, dst: &mut [u8]) {
        let len = dst.len();
        self.for_runs(at, len, |memory, range| {
            copy_into(span.sub(memory as usize, range.len()), &mut dst[range]);
        });
    }

    /// Unpacks `src` into bytes `at ..` of the array at `span`.
    pub fn scatter(&self, span: Span, at: u64, src: &[u8]) {
        self.for_runs(at, src.len(), |memory, range| {
            fill_span(span.sub(memory as usize, range.len()), &src[range]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_arrays_pack_in_c_order_and_unpack_to_the_same_places() {
        // A 3 × 4 block of bytes inside rows of 10, every element.
        let layout = ArrayLayout {
            dtype: Dtype::U8,
            global: vec![],
            offset: vec![],
            local: vec![3, 4],
            stride: vec![10, 1],
        };
        layout.validate().unwrap();
        assert!(!layout.is_contiguous());
        let mut memory: Vec<u8> = (0..30).collect();
        let span = Span::from_mut(&mut memory[..24]);
        let mut packed = vec![0; 12];
        layout.gather(span, 0, &mut packed);
        assert_eq!(packed, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]);
        let mut middle = vec![0; 5];
        layout.gather(span, 3, &mut middle);
        assert_eq!(middle, packed[3..8]);
        layout.scatter(span, 2, &[102, 103, 110, 111]);
        assert_eq!(
            &memory[..14],
            [0, 1, 102, 103, 4, 5, 6, 7, 8, 9, 110, 111, 12, 13]
        );
    }

    #[test]
    fn shapes_are_checked() {
        let good = ArrayLayout {
            dtype: Dtype::F64,
            global: vec![8, 8],
            offset: vec![4, 0],
            local: vec![4, 8],
            stride: vec![],
        };
        good.validate().unwrap();
        assert_eq!(good.packed_bytes().unwrap(), 256);
        let mut bad = good.clone();
        bad.offset[0] = 5;
        assert!(
            bad.validate()
                .unwrap_err()
                .message()
                .contains("dimension 0")
        );
        bad = good.clone();
        bad.local = vec![u64::MAX, 8];
        assert!(bad.validate().is_err());
        bad = good;
        bad.stride = vec![1];
        assert!(bad.validate().is_err());
    }
}
