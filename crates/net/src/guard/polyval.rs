//! Implements POLYVAL, the polynomial hash of AES-GCM-SIV (RFC 8452, section 3), for bytes that
//! come piece by piece.
//!
//! How: blocks of 16 bytes are the coefficients of a polynomial over the field of 2^128 elements,
//! which is evaluated at a secret point. Its powers are computed once, so that up to 32 blocks are
//! multiplied independently of each other and reduced together.
//!
//! Invariants
//! 1. Time depends on the number of bytes alone, not on their values or the point.
//! 2. Every kernel computes the same; which one runs depends on the processor only.
//! 3. The last block is filled with zeros, so equal hashes mean something only for equal lengths.
//!
//! Not here: what is made of the hash, which alone authenticates nothing (`guard.rs`).
#![allow(unsafe_code)]

use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Number of powers, which is the number of blocks that are reduced together.
const POWERS: usize = 32;
pub(super) const BLOCK_BYTES: usize = 16;
/// The field's polynomial without its highest bit, in the order that the reduction needs.
const REDUCER: u64 = 0xc200_0000_0000_0000;

/// The powers of the secret point, the highest first.
type Powers = [u128; POWERS];

/// Folds whole blocks, at least one, into a state.
type Kernel = fn(&Powers, u128, &[u8]) -> u128;

/// A secret point.
#[derive(Clone)]
pub(super) struct Point {
    powers: Arc<Zeroizing<Powers>>,
    kernel: Kernel,
}

impl Point {
    pub(super) fn new(point: [u8; BLOCK_BYTES]) -> Point {
        Point::with(point, best())
    }

    fn with(point: [u8; BLOCK_BYTES], kernel: Kernel) -> Point {
        let point = u128::from_le_bytes(point);
        let first = Zeroizing::new([point; POWERS]);
        let mut powers = Arc::new(Zeroizing::new([point; POWERS]));
        let mut power = point;
        for place in Arc::make_mut(&mut powers).iter_mut().rev().skip(1) {
            power = kernel(&first, 0, &power.to_le_bytes());
            *place = power;
        }
        Point { powers, kernel }
    }

    /// A hash of nothing yet.
    pub(super) fn begin(&self) -> Running {
        Running {
            point: self.clone(),
            state: 0,
            rest: [0; BLOCK_BYTES],
            rest_bytes: 0,
        }
    }
}

/// The hash of what came so far.
pub(super) struct Running {
    point: Point,
    state: u128,
    rest: [u8; BLOCK_BYTES],
    rest_bytes: usize,
}

impl Running {
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        if self.rest_bytes > 0 {
            let room = self.rest.get_mut(self.rest_bytes..).unwrap_or_default();
            let now = bytes.len().min(room.len());
            let (first, after) = bytes.split_at(now);
            room.iter_mut()
                .zip(first)
                .for_each(|(to, from)| *to = *from);
            (self.rest_bytes, bytes) = (self.rest_bytes + now, after);
            if self.rest_bytes < BLOCK_BYTES {
                return;
            }
            let block = self.rest;
            self.blocks(&block);
            self.rest_bytes = 0;
        }
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % BLOCK_BYTES);
        self.blocks(whole);
        self.rest = [0; BLOCK_BYTES];
        self.rest
            .iter_mut()
            .zip(rest)
            .for_each(|(to, from)| *to = *from);
        self.rest_bytes = rest.len();
    }

    /// The hash of everything that was added.
    pub(super) fn hash(&self) -> [u8; BLOCK_BYTES] {
        let mut state = self.state;
        if self.rest_bytes > 0 {
            let mut last = self.rest;
            last.iter_mut()
                .skip(self.rest_bytes)
                .for_each(|byte| *byte = 0);
            state = (self.point.kernel)(&self.point.powers, state, &last);
        }
        state.to_le_bytes()
    }

    fn blocks(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.state = (self.point.kernel)(&self.point.powers, self.state, bytes);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A value of a known polynomial at the secret point.
        self.state.zeroize();
        self.rest.zeroize();
    }
}

fn best() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has what it needs.
            return |powers, state, bytes| unsafe { x86::avx512(powers, state, bytes) };
        }
        if x86::has_clmul() {
            // SAFETY: as above.
            return |powers, state, bytes| unsafe { x86::clmul(powers, state, bytes) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
    {
        // SAFETY: as above.
        return |powers, state, bytes| unsafe { arm::pmull(powers, state, bytes) };
    }
    portable
}

/// For any processor.
fn portable(powers: &Powers, state: u128, bytes: &[u8]) -> u128 {
    fold(powers, state, bytes, multiplied)
}

/// The powers for this many blocks.
fn of(powers: &Powers, blocks: usize) -> &[u128] {
    powers
        .get(POWERS - blocks.min(POWERS)..)
        .unwrap_or_default()
}

/// Folds blocks with a carry-less multiplication of 64 bits.
#[inline(always)]
fn fold(powers: &Powers, mut state: u128, bytes: &[u8], times: impl Fn(u64, u64) -> u128) -> u128 {
    for part in bytes.chunks(POWERS * BLOCK_BYTES) {
        let (blocks, _) = part.as_chunks::<BLOCK_BYTES>();
        let (mut low, mut middle, mut high) = (0, 0, 0);
        for (block, power) in blocks.iter().zip(of(powers, blocks.len())) {
            let value = u128::from_le_bytes(*block) ^ state;
            state = 0;
            let (a, b) = (halves(value), halves(*power));
            low ^= times(a.0, b.0);
            high ^= times(a.1, b.1);
            middle ^= times(a.0, b.1) ^ times(a.1, b.0);
        }
        state = reduced(low ^ (middle << 64), high ^ (middle >> 64), &times);
    }
    state
}

fn halves(value: u128) -> (u64, u64) {
    (value as u64, (value >> 64) as u64)
}

/// A product of 256 bits, divided by x^128 modulo the field's polynomial.
#[inline(always)]
fn reduced(low: u128, high: u128, times: &impl Fn(u64, u64) -> u128) -> u128 {
    let once = low.rotate_left(64) ^ times(low as u64, REDUCER);
    let twice = once.rotate_left(64) ^ times(once as u64, REDUCER);
    high ^ twice
}

/// Carry-less multiplication in constant time: bits that are four apart cannot carry into each
/// other.
fn multiplied(one: u64, other: u64) -> u128 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    const WIDE: u128 = 0x1111_1111_1111_1111_1111_1111_1111_1111;
    let part = |value: u64, at: u32| u128::from(value & EVERY_FOURTH << at);
    let mut sum = 0;
    for at in 0..4u32 {
        let mut digit = 0;
        for i in 0..4u32 {
            digit ^= part_times(part(one, i), part(other, (at + 4 - i) % 4));
        }
        sum |= digit & WIDE << at;
    }
    sum
}

/// Each digit of a product is a sum of up to 16 ones, which would carry; the product is made in two
/// halves, whose digits are at most 8.
fn part_times(one: u128, other: u128) -> u128 {
    const HALF: u128 = 0xffff_ffff;
    // Breaks if: sixteen ones are added up; the sum would carry into the next digit.
    ((one & HALF) * other) ^ ((one & !HALF) * other)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK_BYTES, POWERS, Powers, REDUCER, of};
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    const STRIDE: usize = POWERS * BLOCK_BYTES;

    pub(super) fn has_avx512() -> bool {
        has_clmul() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    pub(super) fn has_clmul() -> bool {
        is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse2")
    }

    fn value_of(vector: __m128i) -> u128 {
        // SAFETY: both are 16 bytes of plain data.
        unsafe { std::mem::transmute(vector) }
    }

    fn vector_of(value: u128) -> __m128i {
        // SAFETY: as above.
        unsafe { std::mem::transmute(value) }
    }

    /// Products that are not reduced yet.
    struct Sums {
        low: __m128i,
        middle: __m128i,
        high: __m128i,
    }

    impl Sums {
        #[inline]
        #[target_feature(enable = "pclmulqdq,sse2")]
        fn reduced(self) -> __m128i {
            let low = _mm_xor_si128(self.low, _mm_slli_si128(self.middle, 8));
            let high = _mm_xor_si128(self.high, _mm_srli_si128(self.middle, 8));
            let reducer = _mm_set_epi64x(REDUCER as i64, 1);
            let swapped = _mm_shuffle_epi32(low, 0x4e);
            let once = _mm_xor_si128(swapped, _mm_clmulepi64_si128(low, reducer, 0x10));
            let swapped = _mm_shuffle_epi32(once, 0x4e);
            let twice = _mm_xor_si128(swapped, _mm_clmulepi64_si128(once, reducer, 0x10));
            _mm_xor_si128(high, twice)
        }
    }

    /// # Safety
    /// The processor has PCLMULQDQ.
    #[target_feature(enable = "pclmulqdq,sse2")]
    pub(super) unsafe fn clmul(powers: &Powers, state: u128, bytes: &[u8]) -> u128 {
        let mut state = vector_of(state);
        for part in bytes.chunks(STRIDE) {
            let (blocks, _) = part.as_chunks::<BLOCK_BYTES>();
            let zero = _mm_setzero_si128();
            let (mut low, mut middle, mut high) = (zero, zero, zero);
            for (block, power) in blocks.iter().zip(of(powers, blocks.len())) {
                let value = _mm_xor_si128(vector_of(u128::from_le_bytes(*block)), state);
                state = zero;
                let power = vector_of(*power);
                low = _mm_xor_si128(low, _mm_clmulepi64_si128(value, power, 0x00));
                high = _mm_xor_si128(high, _mm_clmulepi64_si128(value, power, 0x11));
                let one = _mm_clmulepi64_si128(value, power, 0x01);
                let other = _mm_clmulepi64_si128(value, power, 0x10);
                middle = _mm_xor_si128(middle, _mm_xor_si128(one, other));
            }
            state = Sums { low, middle, high }.reduced();
        }
        value_of(state)
    }

    /// # Safety
    /// The processor has AVX-512F and VPCLMULQDQ.
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse2")]
    pub(super) unsafe fn avx512(powers: &Powers, mut state: u128, bytes: &[u8]) -> u128 {
        let (strides, rest) = bytes.as_chunks::<STRIDE>();
        for stride in strides {
            let first = _mm512_zextsi128_si512(vector_of(state));
            let mut sums = [_mm512_setzero_si512(); 3];
            for at in 0..STRIDE / 64 {
                // SAFETY: 64 bytes from there lie within the stride, and 4 powers within all.
                let (mut value, power) = unsafe {
                    (
                        _mm512_loadu_si512(stride.as_ptr().add(64 * at).cast()),
                        _mm512_loadu_si512(powers.as_ptr().add(4 * at).cast()),
                    )
                };
                if at == 0 {
                    value = _mm512_xor_si512(value, first);
                }
                let [low, middle, high] = sums;
                let one = _mm512_clmulepi64_epi128(value, power, 0x01);
                let other = _mm512_clmulepi64_epi128(value, power, 0x10);
                sums = [
                    _mm512_xor_si512(low, _mm512_clmulepi64_epi128(value, power, 0x00)),
                    _mm512_ternarylogic_epi64(middle, one, other, 0x96),
                    _mm512_xor_si512(high, _mm512_clmulepi64_epi128(value, power, 0x11)),
                ];
            }
            let [low, middle, high] = sums.map(|sum| narrow(sum));
            state = value_of(Sums { low, middle, high }.reduced());
        }
        if rest.is_empty() {
            return state;
        }
        // SAFETY: the processor has PCLMULQDQ too.
        unsafe { clmul(powers, state, rest) }
    }

    /// The sum of the four parts.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn narrow(wide: __m512i) -> __m128i {
        let one = _mm_xor_si128(
            _mm512_extracti32x4_epi32(wide, 0),
            _mm512_extracti32x4_epi32(wide, 1),
        );
        let other = _mm_xor_si128(
            _mm512_extracti32x4_epi32(wide, 2),
            _mm512_extracti32x4_epi32(wide, 3),
        );
        _mm_xor_si128(one, other)
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Powers, fold};
    use std::arch::aarch64::vmull_p64;

    /// # Safety
    /// The processor has PMULL.
    #[target_feature(enable = "neon,aes")]
    pub(super) unsafe fn pmull(powers: &Powers, state: u128, bytes: &[u8]) -> u128 {
        fold(powers, state, bytes, |one, other| vmull_p64(one, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(digits: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
    }

    fn kernels() -> Vec<(&'static str, Kernel)> {
        let mut all: Vec<(&'static str, Kernel)> = vec![("portable", portable), ("best", best())];
        #[cfg(target_arch = "x86_64")]
        if x86::has_clmul() {
            // SAFETY: the processor has what it needs.
            let clmul: Kernel = |powers, state, bytes| unsafe { x86::clmul(powers, state, bytes) };
            all.push(("clmul", clmul));
        }
        all
    }

    // RFC 8452, appendix A.
    #[test]
    fn the_example_of_the_specification() {
        for (name, kernel) in kernels() {
            let point = Point::with(bytes("25629347589242761d31f826ba4b757b"), kernel);
            let mut hash = point.begin();
            hash.add(&bytes::<16>("4f4f95668c83dfb6401762bb2d01a262"));
            hash.add(&bytes::<16>("d1a24ddd2721d006bbe45f20d3c9f362"));
            let expected: [u8; 16] = bytes("f7a3b47b846119fae5b7866cf5e5b77e");
            assert_eq!(hash.hash(), expected, "{name}");
        }
    }

    /// Bit by bit, from the definition: a·b·x^−128.
    fn slowly(point: u128, text: &[u8]) -> [u8; 16] {
        const POLYNOMIAL: u128 = 1 << 127 | 1 << 126 | 1 << 121 | 1;
        let mut state = 0u128;
        for block in text.chunks(16) {
            let mut last = [0; 16];
            last[..block.len()].copy_from_slice(block);
            let value = state ^ u128::from_le_bytes(last);
            state = 0;
            for bit in 0..128 {
                // Adds value·x^bit, then divides everything by x.
                state ^= if point >> bit & 1 == 1 { value } else { 0 };
                let odd = state & 1 == 1;
                state = (state ^ if odd { POLYNOMIAL } else { 0 }) >> 1;
                state |= if odd { 1 << 127 } else { 0 };
            }
        }
        state.to_le_bytes()
    }

    // Breaks if: a kernel multiplies by the wrong power, or a cut between two calls matters.
    #[test]
    fn every_kernel_length_and_cut_gives_the_same() {
        let text: Vec<u8> = (0..2000u32).map(|i| (i * i + i / 7) as u8).collect();
        let points = [
            bytes("ffffffffffffffffffffffffffffffff"),
            bytes("0100000000000000000000000000ff80"),
            bytes("25629347589242761d31f826ba4b757b"),
        ];
        for (name, kernel) in kernels() {
            for point in points {
                let at = Point::with(point, kernel);
                for len in (0..80).chain([511, 512, 513, 527, 528, 1024, 1500, 2000]) {
                    let text = &text[..len];
                    let expected = slowly(u128::from_le_bytes(point), text);
                    for cut in [0, 1, len / 3, len / 2 / 16 * 16, len] {
                        let (one, two) = text.split_at(cut.min(len));
                        let mut hash = at.begin();
                        hash.add(one);
                        hash.add(two);
                        assert_eq!(hash.hash(), expected, "{name}, {len} bytes cut at {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn multiplication_without_carries() {
        for (one, other) in [
            (u64::MAX, u64::MAX),
            (3, 5),
            (1 << 63, 1 << 63),
            (0x1234_5678_9abc_def1, u64::MAX),
        ] {
            let slow = (0..64).filter(|bit| other >> bit & 1 == 1);
            let slow = slow.fold(0u128, |sum, bit| sum ^ u128::from(one) << bit);
            assert_eq!(multiplied(one, other), slow, "{one:x} {other:x}");
        }
    }
}
