//! Accesses the program's memory; the rest of the project reaches it only through this module.
//!
//! How: a [`Span`] is an address and a length from the program, with the promise, stated in the C
//! interface, that the memory stays valid and is not written while it is being read. Spans are
//! plain values that may cross threads; only functions of this crate make accesses.
//!
//! Invariants
//! 1. A part of a span never reaches beyond it ([`Span::sub`] checks with overflow).
//! 2. An empty span is never dereferenced, whatever its address.
//!
//! Faults survived: none of the program's own: if it frees memory while a span is in use, that is
//! its error, as with any C library.
//!
//! Not here: shared memory (see `orcheck-pool`), copies with checksums (see `orcheck-pool`).
#![allow(unsafe_code)]

use orcheck_format::{Error, Result, crc64};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, copy_nonoverlapping};

/// A piece of memory of the program or of the pool: address and length in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start: *mut u8,
    len: usize,
}

// SAFETY: a span is an address with a promise (see `Span::new`) that holds for every thread of the
// process; the type itself has no interior state.
unsafe impl Send for Span {}
// SAFETY: as above; all its methods take it by value or read two plain fields.
unsafe impl Sync for Span {}

impl Span {
    /// The span of `len` bytes from `ptr`.
    ///
    /// # Safety
    /// For as long as any copy of the span is used, the memory stays valid for reads and, if the
    /// span is filled, for writes, and nobody writes it while it is read through the span.
    #[must_use]
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Span {
        Span { start: ptr, len }
    }

    /// The span of a slice. The borrow ends when this returns, so it is for callers that own the
    /// slice and keep it alive and untouched for as long as they use the span, exactly as
    /// [`Span::new`] demands; library code that holds spans beyond one call uses [`Span::new`] and
    /// says why that is right.
    pub fn from_mut(bytes: &mut [u8]) -> Span {
        Span {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }

    /// Its length.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        self.len
    }

    /// The part of `len` bytes that starts `at` bytes into it.
    ///
    /// # Panics
    /// If that part reaches beyond the span: the caller's arithmetic is wrong, and continuing would
    /// touch memory that the program did not hand over.
    #[must_use]
    pub fn sub(self, at: usize, len: usize) -> Span {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "part {at}+{len} of a span of {} bytes",
            self.len
        );
        Span {
            start: self.start.wrapping_add(at),
            len,
        }
    }

    /// Its address, for alignment and overlap checks.
    #[must_use]
    pub fn address(self) -> usize {
        self.start as usize
    }

    /// Its address, to read and write through.
    pub fn pointer(self) -> *mut u8 {
        self.start
    }

    /// # Safety
    /// As for [`Span::new`], and the result is not kept beyond the present call.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: valid and not written meanwhile, by the promise of `Span::new`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:#x}, {} bytes)", self.address(), self.len)
    }
}

/// Has the processor fetch the line at this address, and its translation; the caller does not wait.
/// Any address is allowed: where no memory is, nothing happens.
#[inline]
pub fn fetch_ahead(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses no memory that the program could notice, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// The same for `pages` pages of code, from `before` pages in front of a function on. Functions of
/// a module lie together as a rule; where they do not, this is of no use and does no harm.
pub fn fetch_code_ahead(function: *const (), before: usize, pages: usize) {
    let first = function.addr().wrapping_sub(before * CODE_PAGE_BYTES);
    for page in 0..pages {
        fetch_ahead(first.wrapping_add(page * CODE_PAGE_BYTES));
    }
}

/// The smallest page that code is mapped by.
const CODE_PAGE_BYTES: usize = 4096;

/// A copy of the span's bytes.
#[must_use]
pub fn copy_out(span: Span) -> Vec<u8> {
    // SAFETY: the slice lives for this call only.
    unsafe { span.bytes() }.to_vec()
}

/// Copies the span's bytes into `bytes`.
///
/// # Panics
/// If the lengths differ.
pub fn copy_into(span: Span, bytes: &mut [u8]) {
    // SAFETY: the slice lives for this call only.
    bytes.copy_from_slice(unsafe { span.bytes() });
}

/// Copies the bytes of one span into another one.
///
/// # Panics
/// If the lengths differ, or the spans have bytes in common.
pub fn copy_span(from: Span, into: Span) {
    let (len, ends) = (from.len, |span: Span| span.address() + span.len);
    assert_eq!(len, into.len, "copying a span into one of another length");
    let apart = ends(from) <= into.address() || ends(into) <= from.address();
    assert!(len == 0 || apart, "copying a span into itself");
    if len > 0 {
        // SAFETY: both are valid for their equal length, by the promise of `Span::new`, and do not
        // overlap.
        unsafe { copy_nonoverlapping(from.start, into.start, len) };
    }
}

/// Copies `bytes` into the span.
///
/// # Panics
/// If the lengths differ.
pub fn fill_span(span: Span, bytes: &[u8]) {
    assert_eq!(
        span.len,
        bytes.len(),
        "filling a span with bytes of another length"
    );
    if !bytes.is_empty() {
        // SAFETY: both are valid for their equal length; a live `&[u8]` cannot be memory that the
        // span's owner lets us write, so they do not overlap.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), span.start, bytes.len()) };
    }
}

/// The CRC-64/NVME of the span's bytes.
#[must_use]
pub fn crc_span(span: Span) -> u64 {
    // SAFETY: the slice lives for this call only.
    crc64(unsafe { span.bytes() })
}

/// `len` zero bytes, for lengths that come from outside: a length that is too large for this
/// process is an error, and does not end it.
///
/// # Errors
/// NoSpace if there is not enough memory.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        Error::no_space(format!("no memory for {len} bytes"))
            .next("give the process more memory (ulimit -v, the limit of its control group)")
    })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Owned, zeroed memory with a chosen alignment.
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its memory exclusively.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes whose address is a multiple of `alignment`.
    ///
    /// # Panics
    /// If the alignment is not a power of two, or the length does not fit into the address space.
    /// Aborts if there is not enough memory, as every allocation does.
    #[must_use]
    pub fn zeroed(len: usize, alignment: usize) -> Buffer {
        let layout = match Layout::from_size_align(len.max(1), alignment) {
            Ok(layout) => layout,
            Err(_) => panic!("no memory layout of {len} bytes aligned to {alignment}"),
        };
        // SAFETY: the layout's size is not zero.
        match NonNull::new(unsafe { alloc_zeroed(layout) }) {
            Some(start) => Buffer {
                start,
                layout: layout_of(len, layout),
            },
            None => handle_alloc_error(layout),
        }
    }

    /// As [`Self::zeroed`], for lengths that come from outside: a length that is too large for this
    /// process is an error, and does not end it.
    ///
    /// # Errors
    /// NoSpace if there is not enough memory.
    pub fn try_zeroed(len: usize, alignment: usize) -> Result<Buffer> {
        let layout = Layout::from_size_align(len.max(1), alignment).ok();
        // SAFETY: the layout's size is not zero.
        let start = layout.and_then(|layout| NonNull::new(unsafe { alloc_zeroed(layout) }));
        match start.zip(layout) {
            Some((start, layout)) => Ok(Buffer {
                start,
                layout: layout_of(len, layout),
            }),
            None => Err(Error::no_space(format!("no memory for {len} bytes"))
                .next("ask for less, or give the process more memory (ulimit -v, the limit of its control group)")),
        }
    }

    /// The whole buffer as a span.
    pub fn span(&mut self) -> Span {
        Span {
            start: self.start.as_ptr(),
            len: self.len(),
        }
    }

    /// Fails with `Invalid` unless `len` bytes from `at` lie inside.
    pub fn part(&self, at: usize, len: usize) -> Result<&[u8]> {
        at.checked_add(len)
            .and_then(|end| self.get(at..end))
            .ok_or_else(|| {
                Error::invalid(format!(
                    "part {at}+{len} of a buffer of {} bytes",
                    self.len()
                ))
            })
    }
}

/// The caller's length with the allocation's alignment; an empty buffer owns one byte.
fn layout_of(len: usize, allocated: Layout) -> Layout {
    Layout::from_size_align(len, allocated.align()).unwrap_or(allocated)
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: owned, initialised, and of that size.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised, of that size, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let size = self.layout.size().max(1);
        if let Ok(layout) = Layout::from_size_align(size, self.layout.align()) {
            // SAFETY: allocated in `zeroed` with exactly this layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_checked() {
        let mut bytes = *b"0123456789";
        let span = Span::from_mut(&mut bytes);
        assert_eq!(copy_out(span.sub(2, 3)), b"234");
        assert_eq!(copy_out(span.sub(10, 0)), b"");
        assert_eq!(span.sub(4, 2).address(), span.address() + 4);
        fill_span(span.sub(0, 2), b"ab");
        assert_eq!(crc_span(span), crc64(b"ab23456789"));
        for (at, len) in [(0, 11), (11, 0), (usize::MAX, 2)] {
            // Breaks if: `sub` adds without checking.
            assert!(std::panic::catch_unwind(|| span.sub(at, len)).is_err());
        }
    }

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        for (len, alignment) in [(0, 4096), (1, 64), (4097, 4096), (1 << 20, 1 << 16)] {
            let mut buffer = Buffer::zeroed(len, alignment);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % alignment, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert_eq!(buffer.span().len_bytes(), len);
            assert!(buffer.part(len, 1).is_err());
            assert_eq!(Buffer::try_zeroed(len, alignment).unwrap().len(), len);
        }
        for len in [usize::MAX, isize::MAX as usize - 4096] {
            let error = Buffer::try_zeroed(len, 4096).err().unwrap();
            assert_eq!(error.kind(), orcheck_format::ErrorKind::NoSpace);
        }
    }
}
