//! Implements `orc_fopen`, which gives the program a `FILE` whose bytes become a region.
//!
//! How: `fopencookie()` of the C library makes the `FILE`, and calls the functions below for what
//! its buffer does not hold. They keep the position; the session keeps the bytes.
//!
//! Invariants:
//! 1. What is behind a `FILE` lives until `fclose()`, even if the session ends before.
//! 2. A call that fails sets `errno` and leaves a text for `orc_message()`.
//!
//! Not here: where the bytes lie, and what a checkpoint stores of them.

use crate::convert::{NAME_LIMIT_BYTES, not_null, text};
use crate::cookie::{Functions, fopencookie};
use crate::fault::boundary;
use crate::registry::{self, orc_session};
use crate::types::orc_status;
use libc::FILE;
use orcheck_client::FileMode;
use orcheck_format::{Error, Result};
use orcheck_io::memory::zeroed;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Longest text of a mode that is read, in bytes.
const MODE_LIMIT_BYTES: usize = 16;

/// Length of the buffer of a `FILE`: with less, many small writes cost more calls than copies; with
/// more, it would not stay in the cache of a processor.
const BUFFER_BYTES: usize = 64 << 10;

/// What is behind a `FILE`.
struct Behind {
    session: *mut orc_session,
    name: String,
    position: u64,
    /// The C library's; it is used no more once `close` was called.
    buffer: Vec<u8>,
    /// Why a write failed, which `close` returns again: the C library may forget it.
    failed: Option<Error>,
}

const FUNCTIONS: Functions = Functions {
    read,
    write,
    seek,
    close,
};

/// Opens a memory file: a FILE that never touches a file system, for fprintf(), fwrite(), fread(),
/// fseek() and the like. After fclose() its bytes are region name of every following checkpoint,
/// without a copy: they lie in the staging pool. orc_restart() brings back the memory files of its
/// step, and forgets all others; then open them with "r". Local.
///
/// A memory file that is open, or that could not be written completely, refuses orc_checkpoint() on
/// all ranks. orc_unprotect() forgets a memory file that is closed. See docs/files.md.
///
/// @param name  as for orc_route()
/// @param mode  as for fopen(): "w", "a" or "r", with "+" to do both
/// @return NULL after an error, with errno set: ENOENT if there is none to read, EBUSY if it is
///         open already, ENOSPC if the pool has no room; orc_message() says more. The functions of
///         the C library fail in the same way, and count as calls for orc_message()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_fopen(
    session: *mut orc_session,
    name: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    answer("orc_fopen", null_mut(), || {
        // SAFETY: the caller promises zero-terminated texts that stay during the call.
        let (name, mode) = unsafe {
            (
                text(name, "name", NAME_LIMIT_BYTES)?,
                text(mode, "mode", MODE_LIMIT_BYTES)?,
            )
        };
        let mode = FileMode::parse(mode)?;
        let buffer = zeroed(BUFFER_BYTES)?;
        let position = registry::with(session, |session| {
            session.open_file(name, mode)?;
            match mode.appends {
                true => session.file_len(name),
                false => Ok(0),
            }
        })?;
        let behind = Box::into_raw(Box::new(Behind {
            session,
            name: name.to_owned(),
            position,
            buffer,
            failed: None,
        }));
        // SAFETY: the functions fit the cookie, which `close` frees.
        let file = unsafe { fopencookie(behind.cast(), spelled(mode).as_ptr(), FUNCTIONS) };
        if file.is_null() {
            // SAFETY: nobody else has it.
            drop(unsafe { Box::from_raw(behind) });
            registry::with(session, |session| session.close_file(name))?;
            let text = format!("memory file '{name}': the C library has no memory for a FILE");
            return Err(Error::no_space(text).next("free memory"));
        }
        // SAFETY: a new FILE, and memory that lives until it is closed. An error leaves it with a
        // buffer of its own.
        unsafe {
            let buffer = (*behind).buffer.as_mut_ptr().cast();
            libc::setvbuf(file, buffer, libc::_IOFBF, BUFFER_BYTES);
        }
        Ok(file)
    })
}

/// The mode in the C library's spelling.
fn spelled(mode: FileMode) -> &'static CStr {
    match (mode.appends, mode.truncates, mode.reads && mode.writes) {
        (true, _, false) => c"a",
        (true, _, true) => c"a+",
        (_, true, false) => c"w",
        (_, true, true) => c"w+",
        (_, _, false) => c"r",
        (_, _, true) => c"r+",
    }
}

unsafe extern "C" fn read(behind: *mut c_void, into: *mut c_char, len: usize) -> isize {
    answer("reading a memory file", -1, || {
        // SAFETY: the C library passes what `fopencookie` got, to one call at a time, and room for
        // `len` bytes.
        let (behind, into) = unsafe { (&mut *behind.cast::<Behind>(), bytes_mut(into, len)?) };
        let (name, at) = (&behind.name, behind.position);
        let count = registry::with(behind.session, |session| session.read_file(name, at, into))?;
        behind.position += count as u64;
        Ok(count as isize)
    })
}

/// # Safety
/// `start` is valid for writes of `len` bytes.
unsafe fn bytes_mut<'a>(start: *mut c_char, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    not_null(start, "buffer")?;
    // SAFETY: as the caller promises.
    Ok(unsafe { from_raw_parts_mut(start.cast(), len) })
}

/// The C library takes 0 for an error, and nothing below.
unsafe extern "C" fn write(behind: *mut c_void, from: *const c_char, len: usize) -> isize {
    // SAFETY: as in `read`.
    let behind = unsafe { &mut *behind.cast::<Behind>() };
    let (session, name, at) = (behind.session, &behind.name, behind.position);
    let next = answer("writing a memory file", None, || {
        let from = match len {
            0 => &[],
            _ => {
                not_null(from, "buffer")?;
                // SAFETY: `len` bytes can be read.
                unsafe { from_raw_parts(from.cast::<u8>(), len) }
            }
        };
        let next = registry::with(session, |session| session.write_file(name, at, from));
        next.map(Some).inspect_err(|error| {
            behind.failed.get_or_insert_with(|| error.clone());
        })
    });
    let Some(next) = next else {
        // Breaks if: a call that was refused before it reached the session is forgotten; the file
        // would be stored without what the C library has dropped.
        let refused = || {
            let name = &behind.name;
            Error::invalid(format!("memory file '{name}': a write into it was refused"))
                .next("read orc_message() right after the write that fails")
        };
        behind.failed.get_or_insert_with(refused);
        return 0;
    };
    behind.position = next;
    len as isize
}

unsafe extern "C" fn seek(behind: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    answer("seeking in a memory file", -1, || {
        not_null(offset, "offset")?;
        // SAFETY: as in `read`; the offset is the C library's.
        let (behind, offset) = unsafe { (&mut *behind.cast::<Behind>(), &mut *offset) };
        let name = &behind.name;
        let start = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => behind.position,
            _ => registry::with(behind.session, |session| session.file_len(name))?,
        };
        let at = start.checked_add_signed(*offset);
        let at = at.filter(|at| i64::try_from(*at).is_ok()).ok_or_else(|| {
            Error::invalid(format!(
                "memory file '{name}' has no position {offset} from {start}"
            ))
        })?;
        behind.position = at;
        *offset = at as i64;
        Ok(0)
    })
}

unsafe extern "C" fn close(behind: *mut c_void) -> c_int {
    answer("closing a memory file", -1, || {
        // SAFETY: `orc_fopen` made it, and the C library closes a FILE once.
        let behind = unsafe { Box::from_raw(behind.cast::<Behind>()) };
        registry::with(behind.session, |session| {
            if let Some(error) = &behind.failed {
                session.fail_file(&behind.name, error.clone())?;
            }
            session.close_file(&behind.name)
        })?;
        behind.failed.map_or(Ok(0), Err)
    })
}

/// The value of a call, or `failed` with `errno` set.
fn answer<T>(call: &'static str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    let mut value = failed;
    let status = boundary(call, || {
        value = body()?;
        Ok(String::new())
    });
    let code = match status {
        orc_status::ORC_OK => return value,
        orc_status::ORC_INVALID => libc::EINVAL,
        orc_status::ORC_NOT_FOUND => libc::ENOENT,
        orc_status::ORC_UNAVAILABLE => libc::EBUSY,
        orc_status::ORC_NO_SPACE => libc::ENOSPC,
        orc_status::ORC_UNSUPPORTED => libc::EOPNOTSUPP,
        _ => libc::EIO,
    };
    // SAFETY: the address of this thread's variable.
    unsafe { *libc::__errno_location() = code };
    value
}
