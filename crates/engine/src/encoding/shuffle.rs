//! Shuffles the bytes of an array: sorts them by their position in the element.
//!
//! The sign, exponent and leading digits of neighbouring numbers are alike. Side by side they
//! compress well; between noisy trailing digits they do not. Of the first ⌊n/s⌋·s bytes, all bytes
//! 0 of the elements come first, then all bytes 1, and so on; the rest stays where it is.
//!
//! Invariant: `unshuffle` undoes `shuffle` for every length and every element size.
//!
//! How: sizes are constants and blocks are small, so that the compiler vectorises plain loops.
//! Not here: which element size fits a region (`stage.rs`).

/// Number of elements that are rearranged while they are in the first-level cache.
const BLOCK: usize = 512;

/// Writes `from`, shuffled by elements of `1 << log2` bytes, into `to`.
///
/// # Panics
/// If the lengths differ or `log2` is above 4.
pub fn shuffle(from: &[u8], to: &mut [u8], log2: u8) {
    assert_eq!(from.len(), to.len(), "shuffling into another length");
    match log2 {
        0 => to.copy_from_slice(from),
        1 => shuffle_by::<2>(from, to),
        2 => shuffle_by::<4>(from, to),
        3 => shuffle_by::<8>(from, to),
        4 => shuffle_by::<16>(from, to),
        _ => panic!("elements of 2^{log2} bytes"),
    }
}

/// Undoes [`shuffle`].
///
/// # Panics
/// As [`shuffle`].
pub fn unshuffle(from: &[u8], to: &mut [u8], log2: u8) {
    assert_eq!(from.len(), to.len(), "unshuffling into another length");
    match log2 {
        0 => to.copy_from_slice(from),
        1 => unshuffle_by::<2>(from, to),
        2 => unshuffle_by::<4>(from, to),
        3 => unshuffle_by::<8>(from, to),
        4 => unshuffle_by::<16>(from, to),
        _ => panic!("elements of 2^{log2} bytes"),
    }
}

fn shuffle_by<const S: usize>(from: &[u8], to: &mut [u8]) {
    let count = from.len() / S;
    let (elements, rest) = from.as_chunks::<S>();
    to[count * S..].copy_from_slice(rest);
    for (number, block) in elements.chunks(BLOCK).enumerate() {
        for place in 0..S {
            let at = place * count + number * BLOCK;
            for (byte, element) in to[at..at + block.len()].iter_mut().zip(block) {
                *byte = element[place];
            }
        }
    }
}

fn unshuffle_by<const S: usize>(from: &[u8], to: &mut [u8]) {
    let count = from.len() / S;
    let (elements, rest) = to.as_chunks_mut::<S>();
    rest.copy_from_slice(&from[count * S..]);
    for (number, block) in elements.chunks_mut(BLOCK).enumerate() {
        for place in 0..S {
            let at = place * count + number * BLOCK;
            for (byte, element) in from[at..at + block.len()].iter().zip(block.iter_mut()) {
                element[place] = *byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_go_where_the_format_says() {
        let from: Vec<u8> = (0..11).collect();
        let mut to = vec![0; 11];
        shuffle(&from, &mut to, 2);
        assert_eq!(to, [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10]);
    }

    proptest! {
        // Breaks if: blocks overlap, or the remainder behind the last element is left out.
        #[test]
        fn unshuffling_undoes_it(from in proptest::collection::vec(any::<u8>(), 0..20_000), log2 in 0u8..=4) {
            let (mut there, mut back) = (vec![0xaa; from.len()], vec![0x55; from.len()]);
            shuffle(&from, &mut there, log2);
            unshuffle(&there, &mut back, log2);
            prop_assert_eq!(&back, &from);
            let size = 1usize << log2;
            let count = from.len() / size;
            for (at, byte) in there.iter().enumerate().take(count * size) {
                prop_assert_eq!(*byte, from[at % count * size + at / count]);
            }
        }
    }
}
