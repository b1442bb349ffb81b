//! The copy kernels against the obvious: copy, then checksum.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::crc64;
use orcheck_io::copy::{Kernel, copy_crc, copy_crc_by, kernel};
use orcheck_io::memory::Buffer;
use proptest::prelude::*;

/// Bytes that differ everywhere, from a seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Copies between two misalignments by every kernel and compares bytes, CRC and surroundings.
fn check(len: usize, src_shift: usize, dst_shift: usize, seed: u64) {
    let noise = noise(len, seed);
    let mut src = Buffer::zeroed(src_shift + len, 64);
    src[src_shift..].copy_from_slice(&noise);
    for kernel in Kernel::available() {
        let mut dst = Buffer::zeroed(dst_shift + len + 64, 64);
        dst.fill(0xa5);
        let to = dst[dst_shift..].as_mut_ptr();
        // SAFETY: both are valid for `len` bytes and distinct.
        #[allow(unsafe_code)]
        let crc = unsafe { copy_crc_by(kernel, to, src[src_shift..].as_ptr(), len) };
        let case = format!("{kernel:?} len {len} src +{src_shift} dst +{dst_shift}");
        assert_eq!(crc, crc64(&noise), "{case}");
        assert!(
            dst[dst_shift..dst_shift + len] == noise[..],
            "bytes differ: {case}"
        );
        assert!(
            dst[..dst_shift].iter().all(|&b| b == 0xa5),
            "wrote before: {case}"
        );
        assert!(
            dst[dst_shift + len..].iter().all(|&b| b == 0xa5),
            "wrote behind: {case}"
        );
    }
}

#[test]
fn lengths_around_every_boundary() {
    for len in (0..=70).chain([127, 128, 255, 256, 257, 511, 512, 513]) {
        check(len, 0, 0, 1);
        check(len, 3, 5, 2);
    }
    for base in [4096usize, 4096 + 64, 16 * 1024, 65_536, 70_000] {
        for len in base - 2..=base + 2 {
            for (src, dst) in [(0, 0), (1, 0), (0, 1), (63, 63), (17, 40)] {
                check(len, src, dst, len as u64);
            }
        }
    }
}

#[test]
fn every_misalignment_of_the_destination() {
    for dst in 0..64 {
        check(4096 + 3 * 256 + dst, 64 - dst, dst, dst as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    // Breaks if: a factor, the start register or the fold order of a kernel is changed.
    #[test]
    fn any_length_and_alignment(
        len in prop_oneof![0usize..5000, 4000usize..200_000],
        src in 0usize..64,
        dst in 0usize..64,
        seed: u64,
    ) {
        check(len, src, dst, seed);
    }
}

#[test]
fn the_fastest_available_kernel_is_used() {
    assert_eq!(kernel(), Kernel::available()[0]);
    let src = noise(10_000, 9);
    let mut dst = vec![0; 10_000];
    // SAFETY: both are valid for their length and distinct.
    #[allow(unsafe_code)]
    let crc = unsafe { copy_crc(dst.as_mut_ptr(), src.as_ptr(), src.len()) };
    assert_eq!((crc, &dst), (crc64(&src), &src));
}
