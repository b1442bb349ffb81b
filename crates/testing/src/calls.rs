//! Calls of the C library as unmodified programs make them.

use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Closes a file, and says whether that succeeded.
///
/// # Errors
/// What the kernel says; the file is closed all the same.
pub fn close(file: File) -> Result<()> {
    // SAFETY: the descriptor was this function's.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Sets the length of the file at a path.
///
/// # Errors
/// What the kernel says.
pub fn truncate(path: &Path, len: u64) -> std::result::Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: a path that ends with zero, which lives during the call.
    match unsafe { libc::truncate(path.as_ptr(), len) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The contents of a file that nobody changes meanwhile, by way of memory.
///
/// # Errors
/// What the kernel says.
pub fn mapped(file: impl AsFd) -> std::result::Result<Vec<u8>, Errno> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
    let (none, read) = (std::ptr::null_mut(), ProtFlags::READ);
    // SAFETY: a new mapping of a file that stays as long as it is, read while it exists.
    unsafe {
        let at = mmap(none, len, read, MapFlags::SHARED, &file, 0)?;
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
        munmap(at, len)?;
        Ok(bytes)
    }
}

/// A file in memory, to be written there.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    /// All of a file, shared with it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(file: impl AsFd) -> std::result::Result<Mapping, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let (none, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, which this value alone knows.
        let at = unsafe { mmap(none, len, both, MapFlags::SHARED, &file, 0)? };
        Ok(Mapping { at: at.cast(), len })
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as this value, and is borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}
