//! Implements the kernels for x86-64; see [`super`].
#![allow(unsafe_code)]

use super::{Folded, factors};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Bytes per step of [`avx512`].
pub(crate) const AVX512_STRIDE: usize = 256;
/// Bytes per step of [`avx2_wide`].
pub(crate) const AVX2_WIDE_STRIDE: usize = 256;
/// Bytes per step of [`avx2`].
pub(crate) const AVX2_STRIDE: usize = 128;
/// Bytes per step of [`sse`].
pub(crate) const SSE_STRIDE: usize = 128;

/// Whether this processor runs [`avx512`].
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Whether this processor runs [`avx2_wide`].
pub(crate) fn has_avx2_wide() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")
}

/// Whether this processor runs [`avx2`].
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("pclmulqdq")
}

/// Whether this processor runs [`sse`].
pub(crate) fn has_sse() -> bool {
    is_x86_feature_detected!("pclmulqdq")
}

/// Copies and folds with 512-bit registers.
///
/// # Safety
/// See [`super::CopyFold`]; the processor has AVX-512F and VPCLMULQDQ.
#[target_feature(enable = "avx512f,vpclmulqdq")]
pub(crate) unsafe fn avx512(dst: *mut u8, src: *const u8, strides: usize, register: u64) -> Folded {
    const FACTORS: (u64, u64) = factors(8 * AVX512_STRIDE as u32);
    // SAFETY: every load and store below lies within `strides` × 256 bytes of `src` and `dst`;
    // streaming stores are aligned because `dst` is and strides are multiples of 64.
    unsafe {
        let k = _mm512_broadcast_i32x4(_mm_set_epi64x(FACTORS.1 as i64, FACTORS.0 as i64));
        let mut state = [_mm512_setzero_si512(); 4];
        for (lane, value) in state.iter_mut().enumerate() {
            *value = _mm512_loadu_si512(src.add(64 * lane).cast());
            _mm512_stream_si512(dst.add(64 * lane).cast(), *value);
        }
        state[0] = _mm512_xor_si512(state[0], first_512(register));
        for stride in 1..strides {
            let from = src.add(stride * AVX512_STRIDE);
            let to = dst.add(stride * AVX512_STRIDE);
            for (lane, value) in state.iter_mut().enumerate() {
                let next = _mm512_loadu_si512(from.add(64 * lane).cast());
                _mm512_stream_si512(to.add(64 * lane).cast(), next);
                let early = _mm512_clmulepi64_epi128::<0x00>(*value, k);
                let late = _mm512_clmulepi64_epi128::<0x11>(*value, k);
                *value = _mm512_ternarylogic_epi64::<0x96>(early, late, next);
            }
        }
        narrow(&transmute::<[__m512i; 4], [__m128i; 16]>(state))
    }
}

/// A value in the first eight bytes, zero in the others.
#[target_feature(enable = "avx512f")]
fn first_512(value: u64) -> __m512i {
    _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, value as i64)
}

/// Copies and folds with 256-bit registers.
///
/// # Safety
/// See [`super::CopyFold`]; the processor has AVX2 and VPCLMULQDQ.
#[target_feature(enable = "avx2,vpclmulqdq")]
pub(crate) unsafe fn avx2_wide(
    dst: *mut u8,
    src: *const u8,
    strides: usize,
    register: u64,
) -> Folded {
    const FACTORS: (u64, u64) = factors(8 * AVX2_WIDE_STRIDE as u32);
    // SAFETY: every load and store below lies within `strides` × 256 bytes of `src` and `dst`;
    // streaming stores are aligned because `dst` is and strides are multiples of 32.
    unsafe {
        let k = _mm256_broadcastsi128_si256(_mm_set_epi64x(FACTORS.1 as i64, FACTORS.0 as i64));
        let mut state = [_mm256_setzero_si256(); 8];
        for (lane, value) in state.iter_mut().enumerate() {
            *value = _mm256_loadu_si256(src.add(32 * lane).cast());
            _mm256_stream_si256(dst.add(32 * lane).cast(), *value);
        }
        state[0] = _mm256_xor_si256(state[0], first_256(register));
        for stride in 1..strides {
            let from = src.add(stride * AVX2_WIDE_STRIDE);
            let to = dst.add(stride * AVX2_WIDE_STRIDE);
            for (lane, value) in state.iter_mut().enumerate() {
                let next = _mm256_loadu_si256(from.add(32 * lane).cast());
                _mm256_stream_si256(to.add(32 * lane).cast(), next);
                let early = _mm256_clmulepi64_epi128::<0x00>(*value, k);
                let late = _mm256_clmulepi64_epi128::<0x11>(*value, k);
                *value = _mm256_xor_si256(_mm256_xor_si256(early, late), next);
            }
        }
        narrow(&transmute::<[__m256i; 8], [__m128i; 16]>(state))
    }
}

/// A value in the first eight bytes, zero in the others.
#[target_feature(enable = "avx2")]
fn first_256(value: u64) -> __m256i {
    _mm256_set_epi64x(0, 0, 0, value as i64)
}

/// Copies with 256-bit and folds with 128-bit registers: for processors without VPCLMULQDQ.
///
/// # Safety
/// See [`super::CopyFold`]; the processor has AVX2 and PCLMULQDQ.
#[target_feature(enable = "avx2,pclmulqdq")]
pub(crate) unsafe fn avx2(dst: *mut u8, src: *const u8, strides: usize, register: u64) -> Folded {
    const FACTORS: (u64, u64) = factors(8 * AVX2_STRIDE as u32);
    // SAFETY: every load and store below lies within `strides` × 128 bytes of `src` and `dst`;
    // streaming stores are aligned because `dst` is and strides are multiples of 32.
    unsafe {
        let k = _mm_set_epi64x(FACTORS.1 as i64, FACTORS.0 as i64);
        let mut state = [[_mm_setzero_si128(); 2]; 4];
        for (lane, value) in state.iter_mut().enumerate() {
            let next = _mm256_loadu_si256(src.add(32 * lane).cast());
            _mm256_stream_si256(dst.add(32 * lane).cast(), next);
            *value = halves(next);
        }
        state[0][0] = _mm_xor_si128(state[0][0], _mm_set_epi64x(0, register as i64));
        for stride in 1..strides {
            let from = src.add(stride * AVX2_STRIDE);
            let to = dst.add(stride * AVX2_STRIDE);
            for (lane, value) in state.iter_mut().enumerate() {
                let next = _mm256_loadu_si256(from.add(32 * lane).cast());
                _mm256_stream_si256(to.add(32 * lane).cast(), next);
                let next = halves(next);
                *value = [fold(value[0], k, next[0]), fold(value[1], k, next[1])];
            }
        }
        narrow(state.as_flattened())
    }
}

/// The earlier and the later half.
#[target_feature(enable = "avx2")]
fn halves(value: __m256i) -> [__m128i; 2] {
    [
        _mm256_castsi256_si128(value),
        _mm256_extracti128_si256::<1>(value),
    ]
}

/// The equivalent of `value` one stride further on, added to what is there.
#[target_feature(enable = "sse2,pclmulqdq")]
fn fold(value: __m128i, k: __m128i, next: __m128i) -> __m128i {
    let early = _mm_clmulepi64_si128::<0x00>(value, k);
    let late = _mm_clmulepi64_si128::<0x11>(value, k);
    _mm_xor_si128(_mm_xor_si128(early, late), next)
}

/// Folds the pieces of a message, at least four, into its last one, in four chains while there are
/// four.
#[target_feature(enable = "sse2,pclmulqdq")]
fn narrow(pieces: &[__m128i]) -> Folded {
    const FAR: (u64, u64) = factors(8 * 64);
    const NEAR: (u64, u64) = factors(8 * 16);
    let far = _mm_set_epi64x(FAR.1 as i64, FAR.0 as i64);
    let near = _mm_set_epi64x(NEAR.1 as i64, NEAR.0 as i64);
    let mut chains = [pieces[0], pieces[1], pieces[2], pieces[3]];
    for next in pieces[4..].chunks_exact(4) {
        for (chain, next) in chains.iter_mut().zip(next) {
            *chain = fold(*chain, far, *next);
        }
    }
    let [mut last, others @ ..] = chains;
    for next in others {
        last = fold(last, near, next);
    }
    // The output is read as a message with the usual initial value, which is removed here.
    let last = _mm_xor_si128(last, _mm_set_epi64x(0, u64::MAX as i64));
    // SAFETY: both are 16 bytes, and any bytes are valid.
    unsafe { transmute::<__m128i, Folded>(last) }
}

/// Copies and folds with 128-bit registers.
///
/// # Safety
/// See [`super::CopyFold`]; the processor has PCLMULQDQ.
#[target_feature(enable = "sse2,pclmulqdq")]
pub(crate) unsafe fn sse(dst: *mut u8, src: *const u8, strides: usize, register: u64) -> Folded {
    const FACTORS: (u64, u64) = factors(8 * SSE_STRIDE as u32);
    // SAFETY: every load and store below lies within `strides` × 128 bytes of `src` and `dst`;
    // streaming stores are aligned because `dst` is and strides are multiples of 16.
    unsafe {
        let k = _mm_set_epi64x(FACTORS.1 as i64, FACTORS.0 as i64);
        let mut state = [_mm_setzero_si128(); 8];
        for (lane, value) in state.iter_mut().enumerate() {
            *value = _mm_loadu_si128(src.add(16 * lane).cast());
            _mm_stream_si128(dst.add(16 * lane).cast(), *value);
        }
        state[0] = _mm_xor_si128(state[0], _mm_set_epi64x(0, register as i64));
        for stride in 1..strides {
            let from = src.add(stride * SSE_STRIDE);
            let to = dst.add(stride * SSE_STRIDE);
            for (lane, value) in state.iter_mut().enumerate() {
                let next = _mm_loadu_si128(from.add(16 * lane).cast());
                _mm_stream_si128(to.add(16 * lane).cast(), next);
                *value = fold(*value, k, next);
            }
        }
        narrow(&state)
    }
}
