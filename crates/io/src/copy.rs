//! One pass over memory: copy and CRC-64/NVME together.
//!
//! How: on x86-64 a kernel of `fold` streams past the cache (the destination is read later, by a disk
//! or another processor, and caching it would evict the program's own data and cost a read of every line
//! written). Elsewhere, and for short pieces, blocks of 16 KiB are copied and checksummed while still cached.
//! The kernel is chosen once, by what the processor can do.
//!
//! Invariants
//! 1. The result is `crc64` of the source bytes as they were copied: each byte is loaded once by the kernels, so
//!    that a source changed meanwhile gives a checksum of what arrived, not of something else.
//! 2. All kernels give the same bytes and the same CRC for every length and alignment.
//!
//! Faults survived: none to survive. Not here: who owns the memory (see [`mod@crate::memory`], [`crate::pool`]).
#![allow(unsafe_code)]

use orcheck_format::Crc64;
use std::ptr::copy_nonoverlapping;
use std::sync::OnceLock;

/// A way to copy; [`kernel`] says which one is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// AVX-512 with VPCLMULQDQ.
    Wide,
    /// SSE2 with PCLMULQDQ.
    Narrow,
    /// Library copy and library CRC in blocks.
    Portable,
}

impl Kernel {
    /// Every kernel that this processor can run, fastest first.
    #[must_use]
    pub fn available() -> Vec<Kernel> {
        let mut kernels = Vec::with_capacity(3);
        #[cfg(target_arch = "x86_64")]
        {
            if crate::fold::x86::has_wide() {
                kernels.push(Kernel::Wide);
            }
            if crate::fold::x86::has_narrow() {
                kernels.push(Kernel::Narrow);
            }
        }
        kernels.push(Kernel::Portable);
        kernels
    }
}

/// The kernel that [`copy_crc`] uses on this machine.
#[must_use]
pub fn kernel() -> Kernel {
    static CHOSEN: OnceLock<Kernel> = OnceLock::new();
    *CHOSEN.get_or_init(|| Kernel::available()[0])
}

/// Below this many bytes, streaming past the cache does not pay.
const STREAM_FROM_BYTES: usize = 4096;
const CACHED_BLOCK_BYTES: usize = 16 * 1024;

/// Copies `len` bytes and returns their CRC-64/NVME.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[must_use]
pub unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise; the kernel is one that this processor has.
    unsafe { copy_crc_by(kernel(), dst, src, len) }
}

/// The same by a given kernel; one that is not available falls back to [`Kernel::Portable`].
///
/// # Safety
/// As [`copy_crc`].
#[must_use]
pub unsafe fn copy_crc_by(kernel: Kernel, dst: *mut u8, src: *const u8, len: usize) -> u64 {
    let mut crc = Crc64::new();
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    {
        use crate::fold::x86;
        let wide = kernel == Kernel::Wide && x86::has_wide();
        let narrow = kernel == Kernel::Narrow && x86::has_narrow();
        if (wide || narrow) && len >= STREAM_FROM_BYTES {
            let head = dst.align_offset(64).min(64);
            let stride = if wide {
                x86::WIDE_STRIDE
            } else {
                x86::NARROW_STRIDE
            };
            let strides = (len - head) / stride;
            // SAFETY: head + strides × stride ≤ len, so both pointers stay inside what the caller vouches for;
            // `dst + head` is a multiple of 64; the feature was just asked for; strides ≥ 1 as len ≥ 4096.
            unsafe {
                plain(&mut crc, dst, src, head);
                let (to, from, register) = (dst.add(head), src.add(head), !crc.value());
                crc = Crc64::new();
                if wide {
                    crc.update(&x86::copy_wide(to, from, strides, register));
                } else {
                    crc.update(&x86::copy_narrow(to, from, strides, register));
                }
            }
            done = head + strides * stride;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (kernel, STREAM_FROM_BYTES);
    while done < len {
        let piece = (len - done).min(CACHED_BLOCK_BYTES);
        // SAFETY: done + piece ≤ len.
        unsafe { plain(&mut crc, dst.add(done), src.add(done), piece) };
        done += piece;
    }
    crc.value()
}

/// Copies a short piece and adds what arrived to the CRC.
///
/// # Safety
/// As [`copy_crc`], and nobody else writes the destination meanwhile.
unsafe fn plain(crc: &mut Crc64, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise. The checksum is taken from the copy, so that it is one of the bytes that
    // arrived even if the source changes.
    unsafe {
        copy_nonoverlapping(src, dst, len);
        crc.update(std::slice::from_raw_parts(dst, len));
    }
}
