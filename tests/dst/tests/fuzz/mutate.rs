//! Mutations that know what hostile metadata looks like: counts and lengths that promise too much,
//! nested items, repeated and swapped parts, numbers at their limits; beside the plain ones.

/// Longest input made.
const LEN_MAX: usize = 32 << 10;

/// A seeded source of hostile inputs.
pub struct Mutator(u64);

impl Mutator {
    pub fn new(seed: u64, name: &str) -> Self {
        let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A part of the bytes: where it begins, where it ends.
    fn part(&mut self, bytes: &[u8]) -> (usize, usize) {
        let at = self.below(bytes.len() + 1);
        let len = self.below((bytes.len() - at).min(64) + 1);
        (at, at + len)
    }

    /// An input made from one of `inputs` by a few changes.
    pub fn mutate(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, inputs);
            bytes.truncate(LEN_MAX);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        match self.below(12) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
            2 => bytes.truncate(self.below(bytes.len() + 1)),
            3 => {
                let (from, to) = self.part(bytes);
                bytes.drain(from..to);
            }
            // The same part twice: duplicate keys, names, ranks, overlapping extents.
            4 => {
                let (from, to) = self.part(bytes);
                let again = bytes[from..to].to_vec();
                let into = self.below(bytes.len() + 1);
                bytes.splice(into..into, again);
            }
            // A part of another input, or of this one, over what was here: stale and swapped parts.
            5 | 6 => {
                let other = inputs[self.below(inputs.len())].clone();
                let (from, to) = self.part(&other);
                let (into, until) = self.part(bytes);
                bytes.splice(into..until, other[from..to].iter().copied());
            }
            // A CBOR head of any type that promises more than can follow.
            7 => {
                let major = (self.below(8) as u8) << 5;
                let head: Vec<u8> = match self.below(4) {
                    0 => vec![major | 24, 0xff],
                    1 => [&[major | 25][..], &u16::MAX.to_be_bytes()].concat(),
                    2 => [&[major | 26][..], &(1u32 << self.below(32)).to_be_bytes()].concat(),
                    _ => [
                        &[major | 27][..],
                        &(u64::MAX >> self.below(64)).to_be_bytes(),
                    ]
                    .concat(),
                };
                bytes.splice(at..(at + 1).min(bytes.len()), head);
            }
            // Items within items, maps within maps, tags of tags, open-ended ones.
            8 => {
                let head = [0x81, 0xa1, 0xc1, 0x9f, 0xbf, 0x5f, 0x7f][self.below(7)];
                let depth = 1 << self.below(14);
                bytes.splice(at..at, std::iter::repeat_n(head, depth));
            }
            // A number of the fixed part at its limits.
            9 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let value = match self.below(5) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => 1 << self.below(64),
                    3 => (1u64 << self.below(64)).wrapping_sub(1),
                    _ => bytes.len() as u64,
                };
                for (to, from) in bytes.iter_mut().skip(at).zip(&value.to_le_bytes()[..width]) {
                    *to = *from;
                }
            }
            // Text: signs, separators, numbers that overflow, other scripts.
            10 => {
                let words: [&str; 12] = [
                    "..",
                    "/",
                    "\0",
                    "-1",
                    "18446744073709551616",
                    "1e999",
                    "nan",
                    "\u{202e}",
                    "[[",
                    "]]",
                    "\"",
                    "=",
                ];
                let word = words[self.below(words.len())];
                bytes.splice(at..at, word.bytes());
            }
            _ => {
                let (from, to) = self.part(bytes);
                bytes[from..to].reverse();
            }
        }
    }
}
