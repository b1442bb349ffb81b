//! Declares `fopencookie`, by which the C library makes a `FILE` of functions.
//!
//! Not here: the functions (`memory_files.rs`). This module is not part of `orcheck.h`.

use libc::FILE;
use std::ffi::{c_char, c_int, c_void};

/// The functions that the C library calls: `cookie_io_functions_t`.
#[repr(C)]
pub(crate) struct Functions {
    pub(crate) read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    pub(crate) write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    pub(crate) seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    pub(crate) close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    /// Makes a `FILE` of these functions.
    pub(crate) fn fopencookie(
        behind: *mut c_void,
        mode: *const c_char,
        functions: Functions,
    ) -> *mut FILE;
}
