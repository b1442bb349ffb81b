//! Implements the kernel for Arm (AArch64 with PMULL); see [`super`].
//!
//! STNP asks the processor not to keep the lines. Many processors treat it as an ordinary pair of
//! stores, and recognise by themselves that whole lines are written in order.
#![allow(unsafe_code)]

use super::{Folded, factors};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// Bytes per step of [`neon`].
pub(crate) const NEON_STRIDE: usize = 128;

/// Whether this processor runs [`neon`].
pub(crate) fn has_neon() -> bool {
    is_aarch64_feature_detected!("aes") && is_aarch64_feature_detected!("pmull")
}

/// Copies and folds with 128-bit registers.
///
/// # Safety
/// See [`super::CopyFold`]; the processor has PMULL.
#[target_feature(enable = "neon,aes")]
pub(crate) unsafe fn neon(dst: *mut u8, src: *const u8, strides: usize, register: u64) -> Folded {
    const FACTORS: (u64, u64) = factors(8 * NEON_STRIDE as u32);
    // SAFETY: every load and store below lies within `strides` × 128 bytes of `src` and `dst`.
    unsafe {
        let k = vcombine_u64(vcreate_u64(FACTORS.0), vcreate_u64(FACTORS.1));
        let mut state = [vdupq_n_u8(0); 8];
        for (pair, values) in state.chunks_exact_mut(2).enumerate() {
            values[0] = vld1q_u8(src.add(32 * pair));
            values[1] = vld1q_u8(src.add(32 * pair + 16));
            store_pair(dst.add(32 * pair), values[0], values[1]);
        }
        state[0] = veorq_u8(state[0], first(register));
        for stride in 1..strides {
            let from = src.add(stride * NEON_STRIDE);
            let to = dst.add(stride * NEON_STRIDE);
            for (pair, values) in state.chunks_exact_mut(2).enumerate() {
                let next = [
                    vld1q_u8(from.add(32 * pair)),
                    vld1q_u8(from.add(32 * pair + 16)),
                ];
                store_pair(to.add(32 * pair), next[0], next[1]);
                for (value, next) in values.iter_mut().zip(next) {
                    *value = fold(*value, k, next);
                }
            }
        }
        narrow(state)
    }
}

/// Folds the pieces of a message into its last one.
#[target_feature(enable = "neon,aes")]
fn narrow(pieces: [uint8x16_t; 8]) -> Folded {
    const NEAR: (u64, u64) = factors(8 * 16);
    let near = vcombine_u64(vcreate_u64(NEAR.0), vcreate_u64(NEAR.1));
    let [mut last, others @ ..] = pieces;
    for next in others {
        last = fold(last, near, next);
    }
    // The output is read as a message with the usual initial value, which is removed here.
    let last = veorq_u8(last, first(u64::MAX));
    let mut out = [0; 16];
    // SAFETY: `out` has the 16 bytes that are written.
    unsafe { vst1q_u8(out.as_mut_ptr(), last) };
    out
}

/// The equivalent of `value` one stride further on, added to what is there.
#[target_feature(enable = "neon,aes")]
fn fold(value: uint8x16_t, k: uint64x2_t, next: uint8x16_t) -> uint8x16_t {
    let (value, k) = (vreinterpretq_p64_u8(value), vreinterpretq_p64_u64(k));
    let early = vmull_p64(vgetq_lane_p64::<0>(value), vgetq_lane_p64::<0>(k));
    let late = vmull_high_p64(value, k);
    let sum = veorq_u8(vreinterpretq_u8_p128(early), vreinterpretq_u8_p128(late));
    veorq_u8(sum, next)
}

/// A value in the first eight bytes, zero in the others.
#[target_feature(enable = "neon")]
fn first(value: u64) -> uint8x16_t {
    vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(value), vcreate_u64(0)))
}

/// Stores 32 bytes that are not read again soon.
///
/// # Safety
/// `to` is valid for writes of 32 bytes.
#[target_feature(enable = "neon")]
unsafe fn store_pair(to: *mut u8, first: uint8x16_t, second: uint8x16_t) {
    // SAFETY: writes 32 bytes at `to`, by the caller's promise, and changes nothing else.
    unsafe {
        asm!(
            "stnp {first:q}, {second:q}, [{to}]",
            to = in(reg) to,
            first = in(vreg) first,
            second = in(vreg) second,
            options(nostack, preserves_flags)
        );
    }
}
