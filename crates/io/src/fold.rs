//! Copy kernels that checksum what they carry: each 64 (or 16) bytes are loaded once, streamed past the cache
//! to the destination, and folded into the CRC by carry-less multiplication.
//!
//! How: a CRC is a remainder modulo a polynomial P. A piece of the message that lies D bits before another may
//! be replaced by what it is worth there, namely itself times x^D modulo P, which two carry-less multiplications
//! compute for 128 bits at a time. Each kernel keeps one stride of the message as its state and folds it into
//! the next stride, so that at the end the state, read as a message of its own, has the remainder of the whole.
//! The ordinary CRC of those few bytes then finishes the work, and no reduction constants are needed here.
//! The method is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ".
//!
//! Invariants
//! 1. The kernels copy exactly `strides` × their stride; the destination is aligned to 64 bytes.
//! 2. The register that goes in is the inverted CRC of everything before; the state that comes out stands for
//!    everything up to there: its plain CRC is the CRC of the whole.
//! 3. Stores are ordered before the kernel returns (a store fence), so that whoever is told about the data by a
//!    later ordinary store sees it.
//!
//! Not here: heads, tails and the choice of the kernel (see [`crate::copy`]).
#![allow(unsafe_code)]

/// The polynomial of CRC-64/NVME, bits reversed.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x^n modulo the polynomial, bits reversed.
const fn power(n: u32) -> u64 {
    let mut value = 1u64 << 63;
    let mut i = 0;
    while i < n {
        value = (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    value
}

/// The factors that carry 128 bits forward over `bits`: (for the earlier half, for the later half). Products of
/// reversed values come out one bit low, hence the −1.
const fn factors(bits: u32) -> (u64, u64) {
    (power(bits + 63), power(bits - 1))
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::factors;
    use std::arch::x86_64::*;

    /// Bytes per step of [`copy_wide`].
    pub(crate) const WIDE_STRIDE: usize = 256;
    /// Bytes per step of [`copy_narrow`].
    pub(crate) const NARROW_STRIDE: usize = 128;

    /// Whether this processor runs [`copy_wide`].
    pub(crate) fn has_wide() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Whether this processor runs [`copy_narrow`].
    pub(crate) fn has_narrow() -> bool {
        is_x86_feature_detected!("pclmulqdq")
    }

    /// Copies and folds with 512-bit registers.
    ///
    /// # Safety
    /// The processor has AVX-512F and VPCLMULQDQ; `src` and `dst` are valid for `strides` × 256 bytes and do not
    /// overlap; `dst` is a multiple of 64; `strides` ≥ 1.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(crate) unsafe fn copy_wide(
        dst: *mut u8,
        src: *const u8,
        strides: usize,
        register: u64,
    ) -> [u8; WIDE_STRIDE] {
        const FACTORS: (u64, u64) = factors(8 * WIDE_STRIDE as u32);
        let mut out = [0u8; WIDE_STRIDE];
        // SAFETY: every load and store below lies within `strides` × 256 bytes of `src`, `dst` or within `out`;
        // streaming stores are aligned because `dst` is and strides are multiples of 64.
        unsafe {
            let k = _mm512_set_epi64(
                FACTORS.1 as i64,
                FACTORS.0 as i64,
                FACTORS.1 as i64,
                FACTORS.0 as i64,
                FACTORS.1 as i64,
                FACTORS.0 as i64,
                FACTORS.1 as i64,
                FACTORS.0 as i64,
            );
            let mut state = [_mm512_setzero_si512(); 4];
            for (lane, value) in state.iter_mut().enumerate() {
                *value = _mm512_loadu_si512(src.add(64 * lane).cast());
                _mm512_stream_si512(dst.add(64 * lane).cast(), *value);
            }
            state[0] = _mm512_xor_si512(
                state[0],
                _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, register as i64),
            );
            for stride in 1..strides {
                let from = src.add(stride * WIDE_STRIDE);
                let to = dst.add(stride * WIDE_STRIDE);
                for (lane, value) in state.iter_mut().enumerate() {
                    let next = _mm512_loadu_si512(from.add(64 * lane).cast());
                    _mm512_stream_si512(to.add(64 * lane).cast(), next);
                    let early = _mm512_clmulepi64_epi128::<0x00>(*value, k);
                    let late = _mm512_clmulepi64_epi128::<0x11>(*value, k);
                    *value = _mm512_ternarylogic_epi64::<0x96>(early, late, next);
                }
            }
            // What goes out is read as a message with the usual start value, which is taken off here.
            state[0] = _mm512_xor_si512(
                state[0],
                _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, u64::MAX as i64),
            );
            for (lane, value) in state.iter().enumerate() {
                _mm512_storeu_si512(out.as_mut_ptr().add(64 * lane).cast(), *value);
            }
            _mm_sfence();
        }
        out
    }

    /// Copies and folds with 128-bit registers.
    ///
    /// # Safety
    /// The processor has PCLMULQDQ; `src` and `dst` are valid for `strides` × 128 bytes and do not overlap;
    /// `dst` is a multiple of 16; `strides` ≥ 1.
    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(crate) unsafe fn copy_narrow(
        dst: *mut u8,
        src: *const u8,
        strides: usize,
        register: u64,
    ) -> [u8; NARROW_STRIDE] {
        const FACTORS: (u64, u64) = factors(8 * NARROW_STRIDE as u32);
        let mut out = [0u8; NARROW_STRIDE];
        // SAFETY: every load and store below lies within `strides` × 128 bytes of `src`, `dst` or within `out`;
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
                let from = src.add(stride * NARROW_STRIDE);
                let to = dst.add(stride * NARROW_STRIDE);
                for (lane, value) in state.iter_mut().enumerate() {
                    let next = _mm_loadu_si128(from.add(16 * lane).cast());
                    _mm_stream_si128(to.add(16 * lane).cast(), next);
                    let early = _mm_clmulepi64_si128::<0x00>(*value, k);
                    let late = _mm_clmulepi64_si128::<0x11>(*value, k);
                    *value = _mm_xor_si128(_mm_xor_si128(early, late), next);
                }
            }
            state[0] = _mm_xor_si128(state[0], _mm_set_epi64x(0, u64::MAX as i64));
            for (lane, value) in state.iter().enumerate() {
                _mm_storeu_si128(out.as_mut_ptr().add(16 * lane).cast(), *value);
            }
            _mm_sfence();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_reduce_like_the_crc() {
        // x^64 modulo P is P without its leading term.
        assert_eq!(power(64), POLYNOMIAL);
        assert_eq!(power(63), 1);
        assert_eq!(factors(128), (power(191), power(127)));
    }
}
