//! Computes with boxes of a global array: which elements of a stored part lie in a wanted box, and
//! where they are in both.
//!
//! A box is packed in C order. What two boxes have in common is visited as runs: stretches of
//! elements that are consecutive in both. Nothing here reads anything.
//!
//! Invariants:
//! 1. The runs of a part and a wanted box cover each common element once, ascending in the part.
//! 2. The windows of a box are boxes that cover it once, in packed order: written one after the
//!    other, they are the packed box.
//!
//! Not here: where the bytes of a part are (`reader.rs`), whole arrays (`array.rs`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

use orcheck_format::{Error, Result};

/// A box of elements in a global array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayBox {
    /// For each dimension: the first element, and the number of elements.
    dims: Vec<(u64, u64)>,
}

/// Elements that are consecutive in a stored part and in a wanted box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first one in the packed part.
    pub from: u64,
    /// The first one in the packed wanted box.
    pub to: u64,
    /// Their number.
    pub len: u64,
}

impl ArrayBox {
    /// The box that begins at `offset` and has this shape.
    ///
    /// # Errors
    /// Invalid if they have different numbers of dimensions, or the box is larger than 2^64
    /// elements or reaches beyond 2^64.
    pub fn new(offset: &[u64], shape: &[u64]) -> Result<Self> {
        let dims: Vec<(u64, u64)> = offset.iter().copied().zip(shape.iter().copied()).collect();
        let ends = dims.iter().all(|(at, len)| at.checked_add(*len).is_some());
        let count = dims
            .iter()
            .try_fold(1u64, |all, (_, len)| all.checked_mul(*len));
        if offset.len() != shape.len() || !ends || count.is_none() {
            return Err(Error::invalid(format!(
                "a box of shape {shape:?} at {offset:?} cannot exist"
            )));
        }
        Ok(Self { dims })
    }

    /// The whole array of this shape.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn whole(shape: &[u64]) -> Result<Self> {
        Self::new(&vec![0; shape.len()], shape)
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(|(_, len)| len).product()
    }

    /// The first element, per dimension.
    #[must_use]
    pub fn offset(&self) -> Vec<u64> {
        self.dims.iter().map(|(at, _)| *at).collect()
    }

    /// Number of elements per dimension.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(|(_, len)| *len).collect()
    }

    /// The coordinates of an element of the packed box.
    #[must_use]
    pub fn coordinates(&self, mut element: u64) -> Vec<u64> {
        let mut found: Vec<u64> = (self.dims.iter().rev())
            .map(|&(at, len)| {
                let len = len.max(1);
                let here = at + element % len;
                element /= len;
                here
            })
            .collect();
        found.reverse();
        found
    }

    /// What both have in common; `None` if that is nothing.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.dims.len() != other.dims.len() {
            return None;
        }
        let both = self.dims.iter().zip(&other.dims);
        let dims = both.map(|(&(at, len), &(other_at, other_len))| {
            let first = at.max(other_at);
            let end = (at + len).min(other_at + other_len);
            (first < end).then(|| (first, end - first))
        });
        Some(Self {
            dims: dims.collect::<Option<_>>()?,
        })
    }

    /// Calls `each` with the runs that this stored part and a wanted box have in common.
    pub fn for_runs(&self, wanted: &Self, each: &mut dyn FnMut(Run)) {
        let Some(common) = self.intersection(wanted) else {
            return;
        };
        // The innermost dimensions that both have whole are one long run with the next one.
        let mut run_len = 1;
        let mut whole = true;
        let all = (common.dims.iter()).zip(&self.dims).zip(&wanted.dims);
        for ((&both, &part), &want) in all.rev() {
            if !whole {
                break;
            }
            run_len *= both.1;
            whole = both == part && both == want;
        }
        let runs = common.elements() / run_len;
        for number in 0..runs {
            let at = common.coordinates(number * run_len);
            each(Run {
                from: self.element_at(&at),
                to: wanted.element_at(&at),
                len: run_len,
            });
        }
    }

    /// The element at these coordinates, in packed order.
    fn element_at(&self, coordinates: &[u64]) -> u64 {
        let each = self.dims.iter().zip(coordinates);
        each.fold(0, |element, (&(at, len), &here)| {
            element * len + (here - at)
        })
    }

    /// Cuts the box into windows of at most `most` elements (at least one element each).
    #[must_use]
    pub fn windows(&self, most: u64) -> Windows<'_> {
        // Dimension `cut` is cut into slabs; those inside it stay whole, of those outside it each
        // window has one element.
        let mut inner = 1;
        let mut cut = self.dims.len();
        let mut slab = 1;
        for &(_, len) in self.dims.iter().rev() {
            cut -= 1;
            slab = (most / inner).clamp(1, len.max(1));
            if slab < len {
                break;
            }
            inner *= len.max(1);
        }
        Windows {
            whole: self,
            cut,
            slab,
            next: (self.elements() > 0).then(|| self.offset()),
        }
    }
}

/// The windows of a box, see [`ArrayBox::windows`].
pub struct Windows<'b> {
    whole: &'b ArrayBox,
    cut: usize,
    slab: u64,
    /// Where the next one begins.
    next: Option<Vec<u64>>,
}

impl Iterator for Windows<'_> {
    type Item = ArrayBox;

    fn next(&mut self) -> Option<ArrayBox> {
        let first = self.next.take()?;
        let dims = self.whole.dims.iter().zip(&first).enumerate();
        let dims: Vec<(u64, u64)> = dims
            .map(|(dim, (&(at, len), &first))| match dim.cmp(&self.cut) {
                std::cmp::Ordering::Less => (first, 1),
                std::cmp::Ordering::Equal => (first, self.slab.min(at + len - first)),
                std::cmp::Ordering::Greater => (at, len),
            })
            .collect();
        let mut after = first;
        let mut carry = true;
        for (dim, next) in after.iter_mut().enumerate().rev() {
            let (Some(&(at, len)), Some(&(_, taken))) = (self.whole.dims.get(dim), dims.get(dim))
            else {
                continue;
            };
            if dim > self.cut || !carry {
                continue;
            }
            *next += taken;
            carry = *next == at + len;
            if carry {
                *next = at;
            }
        }
        self.next = (!carry).then_some(after);
        Some(ArrayBox { dims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a_box(dims: usize) -> impl Strategy<Value = ArrayBox> {
        proptest::collection::vec((0u64..5, 0u64..5), dims).prop_map(|dims| ArrayBox { dims })
    }

    fn two_boxes() -> impl Strategy<Value = (ArrayBox, ArrayBox)> {
        (1usize..=5).prop_flat_map(|dims| (a_box(dims), a_box(dims)))
    }

    proptest! {
        // Breaks if: a run is longer than what is consecutive in both, or one is left out.
        #[test]
        fn runs_are_the_common_elements((part, wanted) in two_boxes()) {
            let mut found = Vec::new();
            part.for_runs(&wanted, &mut |run| {
                found.extend((0..run.len).map(|n| (run.from + n, run.to + n)));
            });
            let inside = |at: &[u64]| {
                let mut each = wanted.dims.iter().zip(at);
                each.all(|(&(first, len), at)| (first..first + len).contains(at))
            };
            let expected: Vec<(u64, u64)> = (0..part.elements())
                .map(|from| (from, part.coordinates(from)))
                .filter(|(_, at)| inside(at))
                .map(|(from, at)| (from, wanted.element_at(&at)))
                .collect();
            prop_assert_eq!(found, expected);
        }

        // Breaks if: a window is too large, or the windows are not in packed order.
        #[test]
        fn windows_are_the_box_in_order((whole, _) in two_boxes(), most in 1u64..40) {
            let mut at = 0;
            for window in whole.windows(most) {
                prop_assert!(window.elements() <= most && window.elements() > 0);
                let mut next = 0;
                window.for_runs(&whole, &mut |run| {
                    assert_eq!((run.from, run.to), (next, at + next));
                    next += run.len;
                });
                prop_assert_eq!(next, window.elements());
                at += next;
            }
            prop_assert_eq!(at, whole.elements());
        }
    }

    #[test]
    fn rows_that_both_have_whole_are_one_run() {
        let part = ArrayBox::new(&[4, 0, 0], &[4, 8, 8]).unwrap();
        let wanted = ArrayBox::new(&[0, 0, 0], &[6, 8, 8]).unwrap();
        let mut runs = Vec::new();
        part.for_runs(&wanted, &mut |run| runs.push(run));
        let expected = Run {
            from: 0,
            to: 256,
            len: 128,
        };
        assert_eq!(runs, [expected]);
    }

    #[test]
    fn a_box_that_cannot_exist_is_refused() {
        for (offset, shape) in [
            (&[0, 0][..], &[1][..]),
            (&[u64::MAX], &[1]),
            (&[0, 0], &[u64::MAX, 2]),
        ] {
            assert!(
                ArrayBox::new(offset, shape).is_err(),
                "{offset:?} {shape:?}"
            );
        }
    }
}
