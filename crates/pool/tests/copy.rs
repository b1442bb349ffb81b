//! Tests the copy kernels against the obvious implementation: copy, then checksum.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::{ErrorKind, crc64};
use orcheck_io::memory::Buffer;
use orcheck_pool::{Kernel, check_choice, copy_crc_by, kernel};
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

/// Memory of `pages` pages between two that nobody may touch.
struct Guarded {
    start: *mut u8,
    len: usize,
}

#[allow(unsafe_code)]
impl Guarded {
    const PAGE: usize = 4096;

    fn new(pages: usize) -> Guarded {
        let len = pages * Self::PAGE;
        // SAFETY: a fresh private mapping; its first and last page are then closed.
        unsafe {
            let all = len + 2 * Self::PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let start = at.cast::<u8>().add(Self::PAGE);
            let open = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(start.cast(), len, open), 0);
            Guarded { start, len }
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping of that length.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Guarded {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped.
        unsafe { libc::munmap(self.start.sub(Self::PAGE).cast(), self.len + 2 * Self::PAGE) };
    }
}

/// Copies between two places of prepared memory by one kernel and compares bytes, CRC and
/// surroundings.
fn check_in(kernel: Kernel, src: &[u8], dst: &mut [u8], (from, to, len): (usize, usize, usize)) {
    const AROUND: usize = 80;
    let left = to.saturating_sub(AROUND);
    let right = (to + len + AROUND).min(dst.len());
    dst[left..right].fill(0xa5);
    // SAFETY: both lie inside their slices, which are distinct.
    #[allow(unsafe_code)]
    let crc = unsafe { copy_crc_by(kernel, dst[to..].as_mut_ptr(), src[from..].as_ptr(), len) };
    let want = &src[from..from + len];
    let case = || format!("{kernel} len {len} src +{from} dst +{to}");
    assert_eq!(crc, crc64(want), "{}", case());
    assert!(dst[to..to + len] == *want, "bytes differ: {}", case());
    let untouched = |part: &[u8]| part.iter().all(|&byte| byte == 0xa5);
    assert!(untouched(&dst[left..to]), "wrote before: {}", case());
    assert!(untouched(&dst[to + len..right]), "wrote behind: {}", case());
}

// Breaks if: a kernel is used from one byte less than its head and one stride, or counts one stride
// too many.
#[test]
fn every_length_to_1024_at_every_alignment_of_the_destination() {
    let mut src = Buffer::zeroed(1024 + 64, 64);
    src.copy_from_slice(&noise(1024 + 64, 1));
    let mut dst = Buffer::zeroed(1024 + 256, 64);
    for kernel in Kernel::available() {
        for len in 0..=1024 {
            for to in 0..64 {
                // Every source alignment meets every destination alignment, at a sixteenth of the
                // lengths each.
                let from = (to * 5 + len * 4 + len / 16) % 64;
                check_in(kernel, &src, &mut dst, (from, 64 + to, len));
            }
        }
    }
}

#[test]
fn every_pair_of_alignments() {
    const LEN: usize = 64 + 3 * 256 + 17;
    let mut src = Buffer::zeroed(LEN + 64, 64);
    src.copy_from_slice(&noise(LEN + 64, 2));
    let mut dst = Buffer::zeroed(LEN + 256, 64);
    for kernel in Kernel::available() {
        for from in 0..64 {
            for to in 0..64 {
                check_in(kernel, &src, &mut dst, (from, 64 + to, LEN));
            }
        }
    }
}

// Breaks if: a kernel loads or stores a byte beyond either end, even one that it does not use.
#[test]
fn no_byte_outside_is_touched() {
    let (mut src, mut dst) = (Guarded::new(3), Guarded::new(3));
    let whole = src.len;
    let bytes = noise(whole, 3);
    src.bytes().copy_from_slice(&bytes);
    for kernel in Kernel::available() {
        for len in (0..=96).chain([
            255,
            256,
            257,
            511,
            1023,
            4095,
            4096,
            4097,
            8191,
            whole - 1,
            whole,
        ]) {
            for slack in [0, 1, 7, 8, 15, 31, 33, 63] {
                if len + slack > whole {
                    continue;
                }
                // At the front with the other at the end, and the other way round.
                let end = whole - len;
                for place in [
                    (0, end - slack.min(end)),
                    (slack, end),
                    (end, slack),
                    (end - slack.min(end), 0),
                ] {
                    check_in(kernel, src.bytes(), dst.bytes(), (place.0, place.1, len));
                }
            }
        }
    }
}

#[test]
fn lengths_around_the_block_of_the_library_copy() {
    for base in [4096usize, 4096 + 64, 16 * 1024, 65_536, 70_000] {
        for len in base - 2..=base + 2 {
            for (src, dst) in [(0, 0), (1, 0), (0, 1), (63, 63), (17, 40)] {
                check(len, src, dst, len as u64);
            }
        }
    }
}

// Breaks if: the state of a kernel is lost after this many strides, or a length is cut to 32 bits
// of bits.
#[test]
fn pieces_of_megabytes() {
    for (len, src, dst) in [
        (1 << 20, 0, 0),
        ((4 << 20) - 1, 13, 50),
        ((6 << 20) + 77, 63, 1),
    ] {
        check(len, src, dst, len as u64);
    }
}

#[test]
fn a_kernel_is_chosen_by_name_or_refused() {
    for kernel in Kernel::available() {
        assert_eq!(Kernel::named(&kernel.to_string()).unwrap(), kernel);
    }
    let error = Kernel::named("fastest").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error
            .message()
            .contains("avx512, avx2_wide, avx2, sse, neon, portable"),
        "{error}"
    );
    let foreign = if cfg!(target_arch = "aarch64") {
        "sse"
    } else {
        "neon"
    };
    let error = Kernel::named(foreign).unwrap_err();
    // Breaks if: a kernel that is not there is replaced without a word.
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.message().contains("this processor has only"),
        "{error}"
    );
}

/// Run by the test below in a process of its own, whose environment names a kernel.
#[test]
fn this_process_uses_the_kernel_of_its_environment() {
    match std::env::var("ORCHECK_COPY_KERNEL") {
        Ok(name) if name == "fastest" => {
            assert!(check_choice().is_err());
            assert_eq!(kernel(), Kernel::available()[0]);
        }
        Ok(name) => {
            check_choice().unwrap();
            assert_eq!(kernel().to_string(), name);
        }
        Err(_) => {
            check_choice().unwrap();
            assert_eq!(kernel(), Kernel::available()[0]);
        }
    }
}

#[test]
fn the_environment_chooses_the_kernel() {
    let names = Kernel::available()
        .into_iter()
        .map(|kernel| kernel.to_string())
        .chain(["fastest".to_owned()]);
    for name in names {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "this_process_uses_the_kernel_of_its_environment"])
            .env("ORCHECK_COPY_KERNEL", &name)
            .output()
            .unwrap();
        assert!(
            status.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&status.stdout)
        );
        assert!(String::from_utf8_lossy(&status.stdout).contains("1 passed"));
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
fn the_kernel_in_use_copies() {
    let src = noise(10_000, 9);
    let mut dst = vec![0; 10_000];
    // SAFETY: both are valid for their length and distinct.
    #[allow(unsafe_code)]
    let crc = unsafe { copy_crc_by(kernel(), dst.as_mut_ptr(), src.as_ptr(), src.len()) };
    assert_eq!((crc, &dst), (crc64(&src), &src));
}
