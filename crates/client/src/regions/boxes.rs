//! Packs and unpacks several boxes of a global array in memory: block-cyclic and irregular parts.
//!
//! Invariants:
//! 1. The boxes are of one global array: element type and global shape are the same.
//! 2. Packed, they lie one after the other in the order given, each as `array.rs` packs it.

use crate::regions::array::ArrayLayout;
use orcheck_format::disk::BoxRecord;
use orcheck_format::{Dtype, Error, Result};
use orcheck_io::memory::Span;
use std::ops::Range;
use std::sync::Arc;

/// Boxes of a global array, and where they are in memory.
#[derive(Clone)]
pub struct Boxes(Arc<[PlacedBox]>);

struct PlacedBox {
    span: Span,
    layout: ArrayLayout,
    /// Where it begins in the packed bytes.
    first_byte: u64,
    len_bytes: u64,
}

impl Boxes {
    /// Each box with the memory from its first to its last element.
    ///
    /// # Errors
    /// Invalid if there is none, if they are not of one global array, or if memory and shape do not
    /// agree.
    pub fn new(boxes: Vec<(Span, ArrayLayout)>) -> Result<Self> {
        let mut placed: Vec<PlacedBox> = Vec::with_capacity(boxes.len());
        let mut first_byte = 0u64;
        for (number, (span, layout)) in boxes.into_iter().enumerate() {
            let place = |error: Error| error.at(format!("box {number}"));
            layout.validate().map_err(place)?;
            let extent_bytes = layout.extent_bytes()?;
            if span.len_bytes() as u64 != extent_bytes {
                return Err(place(Error::invalid(format!(
                    "it spans {extent_bytes} bytes, the memory {}",
                    span.len_bytes()
                ))));
            }
            let of = |layout: &ArrayLayout| (layout.dtype, layout.global.clone());
            let first = placed
                .first()
                .map_or_else(|| of(&layout), |first| of(&first.layout));
            if layout.global.is_empty() {
                return Err(place(Error::invalid("global is zero"))
                    .next("set global: boxes are parts of a global array"));
            }
            if of(&layout) != first {
                return Err(place(Error::invalid(
                    "all boxes need the same element type and the same global shape",
                )));
            }
            let len_bytes = layout.packed_bytes()?;
            placed.push(PlacedBox {
                span,
                layout,
                first_byte,
                len_bytes,
            });
            first_byte = first_byte
                .checked_add(len_bytes)
                .ok_or_else(|| Error::invalid("the boxes are larger than the address space"))?;
        }
        if placed.is_empty() {
            return Err(Error::invalid("no box is given")
                .next("give one without elements, which tells the element type and global shape"));
        }
        Ok(Self(placed.into()))
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.0.first().map_or(Dtype::Bytes, |one| one.layout.dtype)
    }

    /// The shape of the global array.
    pub fn global(&self) -> &[u64] {
        self.0.first().map_or(&[], |one| &one.layout.global)
    }

    /// Length of the packed bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.iter().map(|one| one.len_bytes).sum()
    }

    /// Memory of each box, from its first to its last element.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().map(|one| one.span)
    }

    /// What is stored of the boxes.
    pub fn records(&self) -> Vec<BoxRecord> {
        let record = |one: &PlacedBox| BoxRecord {
            offset: one.layout.offset.clone(),
            local: one.layout.local.clone(),
        };
        self.0.iter().map(record).collect()
    }

    /// Memory in which these packed bytes lie one after the other, if they do.
    pub fn memory(&self, bytes: Range<u64>) -> Option<Span> {
        let one = self.0.get(self.at(bytes.start))?;
        let within = bytes.end <= one.first_byte + one.len_bytes && one.layout.is_contiguous();
        let first = bytes.start.checked_sub(one.first_byte)?;
        let len = (bytes.end - bytes.start) as usize;
        within.then(|| one.span.sub(first as usize, len))
    }

    /// Packs bytes `at ..` into `dst`.
    pub fn gather(&self, at: u64, dst: &mut [u8]) {
        self.each(at, dst.len(), |one, first, range| {
            one.layout.gather(one.span, first, &mut dst[range]);
        });
    }

    /// Unpacks `src` into bytes `at ..`.
    pub fn scatter(&self, at: u64, src: &[u8]) {
        self.each(at, src.len(), |one, first, range| {
            one.layout.scatter(one.span, first, &src[range]);
        });
    }

    /// The box that holds this packed byte.
    fn at(&self, byte: u64) -> usize {
        self.0
            .partition_point(|one| one.first_byte + one.len_bytes <= byte)
    }

    fn each(&self, at: u64, len: usize, mut each: impl FnMut(&PlacedBox, u64, Range<usize>)) {
        let mut done = 0;
        for one in self.0.iter().skip(self.at(at)) {
            if done == len {
                return;
            }
            let first = (at + done as u64) - one.first_byte;
            let take = (one.len_bytes - first).min((len - done) as u64) as usize;
            each(one, first, done..done + take);
            done += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, local: u64, stride: u64) -> ArrayLayout {
        ArrayLayout {
            dtype: Dtype::U8,
            global: vec![100],
            offset: vec![offset],
            local: vec![local],
            stride: vec![stride],
        }
    }

    #[test]
    fn boxes_pack_one_after_the_other() {
        let mut memory: Vec<u8> = (0..30).collect();
        let whole = Span::from_mut(&mut memory);
        let boxes = Boxes::new(vec![
            (
                whole.sub(20, 3),
                ArrayLayout {
                    stride: vec![],
                    ..part(50, 3, 1)
                },
            ),
            (whole.sub(0, 0), part(0, 0, 1)),
            (whole.sub(0, 7), part(10, 4, 2)),
        ])
        .unwrap();
        assert_eq!((boxes.len_bytes(), boxes.dtype()), (7, Dtype::U8));
        let mut packed = [0; 7];
        boxes.gather(0, &mut packed);
        assert_eq!(packed, [20, 21, 22, 0, 2, 4, 6]);
        let mut middle = [0; 3];
        boxes.gather(2, &mut middle);
        assert_eq!(middle, packed[2..5]);
        assert_eq!(boxes.memory(1..3).unwrap().len_bytes(), 2);
        assert!(boxes.memory(1..4).is_none() && boxes.memory(3..4).is_none());
        boxes.scatter(1, &[91, 92, 90]);
        assert_eq!((memory[21], memory[22], memory[0]), (91, 92, 90));
    }

    #[test]
    fn boxes_of_two_arrays_are_refused() {
        let mut memory = [0; 8];
        let span = Span::from_mut(&mut memory[..4]);
        let other = ArrayLayout {
            global: vec![99],
            ..part(0, 4, 1)
        };
        let alone = ArrayLayout {
            global: vec![],
            offset: vec![],
            ..part(0, 4, 1)
        };
        for boxes in [
            vec![(span, part(0, 4, 1)), (span, other)],
            vec![(span, alone)],
            vec![(span, part(0, 3, 1))],
            vec![],
        ] {
            assert!(Boxes::new(boxes).is_err());
        }
    }
}
