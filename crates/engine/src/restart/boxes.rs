//! Computes with boxes of a global array: which elements of a stored part lie in a wanted box, and
//! where they are in both.
//!
//! A box is packed in C order. What two boxes have in common is visited as runs: stretches of
//! elements that are consecutive in both. What is left of a window is kept by where it lies in the
//! first dimension, so that each of thousands of parts meets few boxes. Nothing here reads
//! anything.
//!
//! Invariants:
//! 1. The runs of a part and a wanted box cover each common element once, ascending in the part.
//! 2. A cover takes each element of the window that some part has once, from the first such part.
//! 3. The windows of a box are boxes that cover it once, in packed order: written one after the
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
use std::collections::{BTreeMap, BTreeSet};

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

    /// Where it begins in the first dimension, and its length there.
    #[must_use]
    pub fn first_dimension(&self) -> (u64, u64) {
        self.dims.first().copied().unwrap_or((0, 1))
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

    /// Boxes that cover what is in this box but not in `other`, each element once. The first
    /// dimensions are cut first, so rows stay whole where they can.
    fn without(&self, other: &Self) -> Vec<Self> {
        let Some(common) = self.intersection(other) else {
            return vec![self.clone()];
        };
        let mut left = Vec::new();
        let mut rest = self.clone();
        for dim in 0..rest.dims.len() {
            let (Some(&(at, len)), Some(&(from, count))) =
                (rest.dims.get(dim), common.dims.get(dim))
            else {
                continue;
            };
            let end = from + count;
            for slab in [(at, from - at), (end, at + len - end)] {
                if slab.1 > 0 {
                    left.push(rest.with(dim, slab));
                }
            }
            rest = rest.with(dim, (from, count));
        }
        left
    }

    fn with(&self, dim: usize, range: (u64, u64)) -> Self {
        let mut other = self.clone();
        if let Some(old) = other.dims.get_mut(dim) {
            *old = range;
        }
        other
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

impl std::fmt::Display for ArrayBox {
    /// As a slice, such as `[0:4, 7:9]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.dims.iter();
        let ranges: Vec<String> = ranges
            .map(|(at, len)| format!("{at}:{}", at + len))
            .collect();
        write!(f, "[{}]", ranges.join(", "))
    }
}

/// The runs that a stored part and a wanted box have in common, ascending in the part; of no more
/// size than the number of dimensions.
#[derive(Debug, Clone)]
pub struct Runs {
    /// The first run.
    first: Run,
    /// Outside a run, the outermost dimension first: number of runs, and how far apart they are in
    /// the packed part and in the packed box.
    outer: Vec<(u64, u64, u64)>,
    count: u64,
}

impl Runs {
    /// Those of `common`, which lies in both boxes.
    #[must_use]
    pub fn of(common: &ArrayBox, part: &ArrayBox, wanted: &ArrayBox) -> Self {
        let mut outer = Vec::new();
        let (mut part_step, mut wanted_step, mut run_len) = (1, 1, 1);
        let mut whole = true;
        let all = (common.dims.iter()).zip(&part.dims).zip(&wanted.dims);
        for ((&both, &in_part), &in_wanted) in all.rev() {
            // Innermost dimensions that both have whole are one long run with the next one.
            if whole {
                run_len *= both.1;
                whole = both == in_part && both == in_wanted;
            } else if both.1 != 1 {
                outer.push((both.1, part_step, wanted_step));
            }
            part_step *= in_part.1;
            wanted_step *= in_wanted.1;
        }
        outer.reverse();
        let at = common.offset();
        Self {
            first: Run {
                from: part.element_at(&at),
                to: wanted.element_at(&at),
                len: run_len,
            },
            count: outer.iter().map(|(count, ..)| count).product(),
            outer,
        }
    }

    /// Run `number`, and its position in each outer dimension.
    fn at(&self, mut number: u64) -> (Run, Vec<u64>) {
        let mut run = self.first;
        let mut places = vec![0; self.outer.len()];
        for (place, &(count, in_part, in_wanted)) in places.iter_mut().zip(&self.outer).rev() {
            *place = number % count;
            number /= count;
            run.from += *place * in_part;
            run.to += *place * in_wanted;
        }
        (run, places)
    }

    /// The runs that reach beyond this element of the part.
    pub fn after(&self, element: u64) -> impl Iterator<Item = Run> + '_ {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let (run, _) = self.at(middle);
            match run.from + run.len <= element {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let mut next = (low < self.count).then(|| self.at(low));
        std::iter::from_fn(move || {
            let (run, mut places) = next.take()?;
            let (mut after, mut carried) = (run, true);
            for (place, &(count, in_part, in_wanted)) in places.iter_mut().zip(&self.outer).rev() {
                *place += 1;
                after.from += in_part;
                after.to += in_wanted;
                if *place < count {
                    carried = false;
                    break;
                }
                after.from -= count * in_part;
                after.to -= count * in_wanted;
                *place = 0;
            }
            next = (!carried).then_some((after, places));
            Some(run)
        })
    }
}

/// From which parts the elements of a window come.
#[derive(Debug, Default)]
pub struct Cover {
    /// Boxes that cover what is there once, with the position of the part, in the order of parts.
    pub taken: Vec<(usize, ArrayBox)>,
    /// The first box that no part has.
    pub missing: Option<ArrayBox>,
    /// Two parts that overlap in the window, the first one first.
    pub overlap: Option<(usize, usize)>,
}

/// Where boxes lie in the first dimension, by their numbers: of thousands, few are near one.
#[derive(Debug, Default)]
pub struct Spans {
    /// Logarithm of the length, first element, and number: the lengths of one class are so similar
    /// that only boxes that begin near a range can reach it.
    spans: BTreeSet<(u32, u64, usize)>,
}

impl Spans {
    fn key(number: usize, of: &ArrayBox) -> Option<(u32, u64, usize)> {
        let (at, len) = of.first_dimension();
        Some((len.checked_ilog2()?, at, number))
    }

    /// Adds a box; an empty one is near nothing.
    pub fn add(&mut self, number: usize, of: &ArrayBox) {
        self.spans.extend(Self::key(number, of));
    }

    fn remove(&mut self, number: usize, of: &ArrayBox) {
        if let Some(key) = Self::key(number, of) {
            self.spans.remove(&key);
        }
    }

    /// The boxes that may have elements of this one.
    #[must_use]
    pub fn near(&self, of: &ArrayBox) -> Vec<usize> {
        let (at, len) = of.first_dimension();
        let (mut found, mut class) = (Vec::new(), 0);
        while let Some(&(next, ..)) = self.spans.range((class, 0, 0)..).next() {
            let longest = u64::MAX >> (u64::BITS - 1 - next);
            let from = at.saturating_sub(longest);
            let near = self.spans.range((next, from, 0)..(next, at + len, 0));
            found.extend(near.map(|&(_, _, number)| number));
            class = next + 1;
        }
        found
    }
}

/// What no part has had yet: boxes without a common element.
#[derive(Debug, Default)]
struct Left {
    boxes: BTreeMap<usize, ArrayBox>,
    spans: Spans,
    next: usize,
}

impl Left {
    fn add(&mut self, rest: ArrayBox) {
        self.spans.add(self.next, &rest);
        self.boxes.insert(self.next, rest);
        self.next += 1;
    }

    /// Takes away what is in `part`; returns it as boxes, ascending.
    fn take(&mut self, part: &ArrayBox) -> Vec<ArrayBox> {
        let mut taken = Vec::new();
        for number in self.spans.near(part) {
            let rest = self.boxes.get(&number);
            let found = rest.and_then(|rest| Some((rest.intersection(part)?, rest.clone())));
            let Some((found, rest)) = found else {
                continue;
            };
            self.spans.remove(number, &rest);
            self.boxes.remove(&number);
            rest.without(&found)
                .into_iter()
                .for_each(|rest| self.add(rest));
            taken.push(found);
        }
        taken.sort_unstable_by(|a, b| a.dims.cmp(&b.dims));
        taken
    }
}

/// Covers a window with parts; where several have an element, it is taken from the first of them.
#[must_use]
pub fn cover<'p>(parts: impl Iterator<Item = &'p ArrayBox> + Clone, window: &ArrayBox) -> Cover {
    let mut cover = Cover::default();
    let mut left = Left::default();
    if window.elements() > 0 {
        left.add(window.clone());
    }
    for (number, part) in parts.clone().enumerate() {
        let Some(common) = part.intersection(window) else {
            continue;
        };
        let found = left.take(&common);
        let taken: u64 = found.iter().map(ArrayBox::elements).sum();
        cover
            .taken
            .extend(found.into_iter().map(|found| (number, found)));
        if taken < common.elements() && cover.overlap.is_none() {
            let mut before = parts.clone().take(number);
            let first = before.position(|other| other.intersection(&common).is_some());
            cover.overlap = first.map(|first| (first, number));
        }
    }
    let missing = left.boxes.into_values();
    cover.missing = missing.min_by(|a, b| a.dims.cmp(&b.dims));
    cover
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
        fn runs_are_the_common_elements((part, wanted) in two_boxes(), after in 0u64..40) {
            let mut found = Vec::new();
            if let Some(common) = part.intersection(&wanted) {
                for run in Runs::of(&common, &part, &wanted).after(after) {
                    found.extend((0..run.len).map(|n| (run.from + n, run.to + n)));
                }
            }
            found.retain(|(from, _)| *from >= after);
            let inside = |at: &[u64]| {
                let mut each = wanted.dims.iter().zip(at);
                each.all(|(&(first, len), at)| (first..first + len).contains(at))
            };
            let expected: Vec<(u64, u64)> = (0..part.elements())
                .map(|from| (from, part.coordinates(from)))
                .filter(|(from, at)| *from >= after && inside(at))
                .map(|(from, at)| (from, wanted.element_at(&at)))
                .collect();
            prop_assert_eq!(found, expected);
        }

        // Breaks if: an element is taken twice, from a later part, or forgotten.
        #[test]
        fn a_cover_takes_each_element_from_the_first_part_that_has_it(
            (window, parts) in (1usize..=4).prop_flat_map(|dims| {
                (a_box(dims), proptest::collection::vec(a_box(dims), 0..6))
            }),
        ) {
            let has = |part: &ArrayBox, at: &[u64]| {
                let mut each = part.dims.iter().zip(at);
                each.all(|(&(first, len), at)| (first..first + len).contains(at))
            };
            let found = cover(parts.iter(), &window);
            let (mut missing, mut twice) = (false, false);
            for element in 0..window.elements() {
                let at = window.coordinates(element);
                let taken: Vec<usize> = (found.taken.iter())
                    .filter(|(_, taken)| has(taken, &at))
                    .map(|(part, _)| *part)
                    .collect();
                let mut there = (0..parts.len()).filter(|&part| has(&parts[part], &at));
                prop_assert_eq!(taken, Vec::from_iter(there.next()));
                missing |= !parts.iter().any(|part| has(part, &at));
                twice |= there.next().is_some();
            }
            let taken: u64 = found.taken.iter().map(|(_, taken)| taken.elements()).sum();
            prop_assert!(taken <= window.elements());
            prop_assert_eq!(missing, found.missing.is_some());
            prop_assert_eq!(twice, found.overlap.is_some());
            if let Some((first, second)) = found.overlap {
                let common = parts[first].intersection(&parts[second]);
                prop_assert!(common.is_some_and(|both| both.intersection(&window).is_some()));
            }
        }

        // Breaks if: a window is too large, or the windows are not in packed order.
        #[test]
        fn windows_are_the_box_in_order((whole, _) in two_boxes(), most in 1u64..40) {
            let mut at = 0;
            for window in whole.windows(most) {
                prop_assert!(window.elements() <= most && window.elements() > 0);
                let mut next = 0;
                for run in Runs::of(&window, &window, &whole).after(0) {
                    prop_assert_eq!((run.from, run.to), (next, at + next));
                    next += run.len;
                }
                prop_assert_eq!(next, window.elements());
                at += next;
            }
            prop_assert_eq!(at, whole.elements());
        }
    }

    // Breaks if: each part is compared with all that is left: a restart from very many boxes takes
    // the square of their number.
    #[test]
    fn few_boxes_that_are_left_are_near_a_part() {
        const BOXES: u64 = 10_000;
        // The boxes of one rank, then those of the other, in one dimension and in rows of two.
        for (shape, local) in [(vec![2 * BOXES], vec![1]), (vec![BOXES, 6], vec![1, 3])] {
            let per_row = shape.get(1).map_or(1, |all| all / 3);
            let step = 2 / per_row;
            let boxes = (0..2).flat_map(|rank| (0..BOXES).map(move |nth| (rank, nth)));
            let parts: Vec<ArrayBox> = boxes
                .map(|(rank, nth)| {
                    let first = nth * step + rank * (step - 1);
                    let offset = [first, rank * 3];
                    ArrayBox::new(&offset[..shape.len()], &local).unwrap()
                })
                .collect();
            let window = ArrayBox::whole(&shape).unwrap();
            let (mut left, mut looked_at) = (Left::default(), 0);
            left.add(window.clone());
            for part in &parts {
                looked_at += left.spans.near(part).len();
                assert_eq!(left.take(part), std::slice::from_ref(part));
            }
            assert!(left.boxes.is_empty());
            assert!(looked_at < 4 * parts.len(), "{looked_at}");
            let found = cover(parts.iter(), &window);
            assert_eq!(found.taken.len(), parts.len());
            assert!(found.missing.is_none() && found.overlap.is_none());
        }
    }

    #[test]
    fn rows_that_both_have_whole_are_one_run() {
        let part = ArrayBox::new(&[4, 0, 0], &[4, 8, 8]).unwrap();
        let wanted = ArrayBox::new(&[0, 0, 0], &[6, 8, 8]).unwrap();
        let common = part.intersection(&wanted).unwrap();
        let runs: Vec<Run> = Runs::of(&common, &part, &wanted).after(0).collect();
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
