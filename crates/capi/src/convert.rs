//! Checks and converts what crosses the boundary: texts, durations, element types, arrays.
//!
//! What it does: turns C values into checked Rust values, with an error that names the argument.
//!
//! Invariants:
//! 1. Texts are read up to a bound; a text that does not end before it is refused.
//! 2. All arithmetic on lengths is checked; nothing larger than `isize::MAX` bytes passes.
//! 3. A structure is read only if its `struct_size` covers every field this version knows.
//!
//! Not here: whether a region or step exists; the client knows that.

use crate::types::orc_array;
use orcheck_client::{ArrayLayout, OVERLAP};
use orcheck_format::{Dtype, Error, Level, Result};
use orcheck_io::memory::Span;
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

/// Length of the longest name of a job or region that is read, in bytes. The client's own limits
/// are lower.
pub(crate) const NAME_LIMIT_BYTES: usize = 4096;
/// Longest text of options, in bytes.
pub(crate) const OPTIONS_LIMIT_BYTES: usize = 1 << 20;
/// Longest wait that differs from "forever": 30 years, so that adding it to a clock cannot
/// overflow.
const TIMEOUT_LIMIT_S: f64 = 1e9;

/// Refuses NULL.
pub(crate) fn not_null<T>(pointer: *const T, argument: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("argument {argument} is NULL")));
    }
    Ok(())
}

/// Reads a zero-terminated UTF-8 text of at most `limit_bytes`.
///
/// # Safety
/// `text` is NULL or readable up to its zero byte or `limit_bytes`, whichever comes first.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    argument: &str,
    limit_bytes: usize,
) -> Result<&'a str> {
    not_null(text, argument)?;
    let mut len_bytes = 0;
    // SAFETY: bytes up to the first zero byte are readable, and we stop there.
    while len_bytes < limit_bytes && unsafe { *text.add(len_bytes) } != 0 {
        len_bytes += 1;
    }
    if len_bytes == limit_bytes {
        return Err(Error::invalid(format!(
            "argument {argument} does not end within {limit_bytes} bytes"
        )));
    }
    // SAFETY: the bytes were just read one by one; the caller keeps them during the call.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len_bytes) };
    std::str::from_utf8(bytes).map_err(|error| {
        Error::invalid(format!(
            "argument {argument} is not UTF-8 at byte {}",
            error.valid_up_to()
        ))
    })
}

/// Turns seconds into a duration; infinity becomes thirty years.
pub(crate) fn timeout(timeout_s: f64) -> Result<Duration> {
    if timeout_s.is_nan() || timeout_s < 0.0 {
        return Err(Error::invalid(format!(
            "argument timeout_s is {timeout_s}, expected 0 or more seconds"
        )));
    }
    Ok(Duration::from_secs_f64(timeout_s.min(TIMEOUT_LIMIT_S)))
}

/// Checks an element type.
pub(crate) fn dtype(code: c_int) -> Result<Dtype> {
    u8::try_from(code)
        .ok()
        .and_then(Dtype::from_code)
        .ok_or_else(|| {
            Error::invalid(format!(
                "dtype is {code}, expected an orc_dtype from 0 (ORC_BYTES) to 14 (ORC_C128)"
            ))
        })
}

/// Checks a level.
pub(crate) fn level(code: c_int) -> Result<Level> {
    match code {
        1 => Ok(Level::Process),
        2 => Ok(Level::Node),
        3 => Ok(Level::Peers(1)),
        4 => Ok(Level::Global),
        _ => Err(Error::invalid(format!(
            "level is {code}, expected an orc_level from 1 (ORC_PROCESS) to 4 (ORC_GLOBAL)"
        ))),
    }
}

/// The orc_level of a level.
pub(crate) fn level_code(level: Level) -> c_int {
    match level {
        Level::Process => 1,
        Level::Node => 2,
        Level::Peers(_) => 3,
        Level::Global => 4,
    }
}

/// Checks region flags.
pub(crate) fn flags(flags: c_int) -> Result<u32> {
    match u32::try_from(flags) {
        Ok(known) if known & !(7 | OVERLAP) == 0 => Ok(known),
        _ => Err(Error::invalid(format!(
            "flags are {flags:#x}, expected a combination of ORC_OPTIONAL (1), ORC_SAME (2), \
             ORC_CPU_WRITES_ONLY (4) and ORC_OVERLAP (16)"
        ))),
    }
}

/// Refuses a structure that is shorter than the one this version knows.
pub(crate) fn covers<T>(struct_size: usize, name: &str) -> Result<()> {
    let expected = size_of::<T>();
    if struct_size < expected {
        return Err(Error::invalid(format!(
            "struct_size of {name} is {struct_size}, expected at least {expected} bytes"
        ))
        .next(format!("set struct_size = sizeof({name}) before the call")));
    }
    Ok(())
}

/// Makes a span of the program's memory; NULL is fine for no bytes at all.
pub(crate) fn span(address: *mut c_void, len_bytes: u64) -> Result<Span> {
    let len = usize::try_from(len_bytes)
        .ok()
        .filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| {
            Error::invalid(format!("region of {len_bytes} bytes is larger than memory"))
        })?;
    if len > 0 {
        not_null(address, "address")?;
    }
    if (address as usize).checked_add(len).is_none() {
        return Err(Error::invalid(format!(
            "region of {len_bytes} bytes at {address:p} leaves the address space"
        )));
    }
    let address = if address.is_null() {
        std::ptr::NonNull::dangling().as_ptr()
    } else {
        address.cast::<u8>()
    };
    // SAFETY: the program promises that these bytes are its memory and stay so until the region is
    // protected again or unprotected; the header says so.
    Ok(unsafe { Span::new(address, len) })
}

/// Turns an array description into a layout and the length in bytes of the memory it addresses.
pub(crate) fn layout(array: &orc_array) -> Result<(ArrayLayout, u64)> {
    covers::<orc_array>(array.struct_size, "orc_array")?;
    let dtype = dtype(array.dtype)?;
    let ndim = usize::try_from(array.ndim)
        .ok()
        .filter(|ndim| (1..=8).contains(ndim))
        .ok_or_else(|| Error::invalid(format!("ndim is {}, expected 1 to 8", array.ndim)))?;
    let mut global = shape(&array.global[..ndim], "global")?;
    let mut offset = shape(&array.offset[..ndim], "offset")?;
    let local = shape(&array.local[..ndim], "local")?;
    if global.iter().chain(&offset).all(|n| *n == 0) {
        // Belongs to this rank alone, not to a global array.
        global = Vec::new();
        offset = Vec::new();
    }
    for dim in 0..global.len() {
        let end = offset[dim].checked_add(local[dim]);
        if end.is_none_or(|end| end > global[dim]) {
            return Err(Error::invalid(format!(
                "dimension {dim}: local {} at offset {} does not fit into global {}",
                local[dim], offset[dim], global[dim]
            )));
        }
    }
    let empty = local.contains(&0);
    let stride = strides(array, ndim, &local)?;
    let too_large = || Error::invalid("array is larger than the address space");
    let elements = if empty {
        0
    } else if stride.is_empty() {
        local
            .iter()
            .try_fold(1_u64, |product, n| product.checked_mul(*n))
            .ok_or_else(too_large)?
    } else {
        local
            .iter()
            .zip(&stride)
            .try_fold(1_u64, |last, (n, step)| {
                (n - 1).checked_mul(*step)?.checked_add(last)
            })
            .ok_or_else(too_large)?
    };
    let len_bytes = elements
        .checked_mul(dtype.size_bytes())
        .ok_or_else(too_large)?;
    let layout = ArrayLayout {
        dtype,
        global,
        offset,
        local,
        stride,
    };
    Ok((layout, len_bytes))
}

/// The strides, or an empty list for a contiguous array.
fn strides(array: &orc_array, ndim: usize, local: &[u64]) -> Result<Vec<u64>> {
    let given = &array.stride[..ndim];
    if given.iter().all(|stride| *stride == 0) {
        return Ok(Vec::new());
    }
    let stride = shape(given, "stride")?;
    let mut inner_extent = 1_u64;
    for dim in (0..ndim).rev() {
        if local[dim] > 1 && stride[dim] < inner_extent {
            return Err(Error::invalid(format!(
                "dimension {dim}: stride {} is smaller than the {inner_extent} elements that the \
                 dimensions after it span, so that elements would overlap",
                stride[dim]
            ))
            .next("give strides in C order, or all zero for a contiguous array"));
        }
        inner_extent = local[dim]
            .saturating_sub(1)
            .checked_mul(stride[dim])
            .and_then(|span| span.checked_add(inner_extent))
            .ok_or_else(|| Error::invalid("array is larger than the address space"))?;
    }
    Ok(stride)
}

pub(crate) fn shape(values: &[i64], name: &str) -> Result<Vec<u64>> {
    values
        .iter()
        .enumerate()
        .map(|(dim, value)| {
            u64::try_from(*value).map_err(|_| {
                Error::invalid(format!("dimension {dim}: {name} is {value}, below zero"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(ndim: usize, global: &[i64], local: &[i64], stride: &[i64]) -> orc_array {
        let mut array = orc_array {
            struct_size: size_of::<orc_array>(),
            dtype: 11,
            ndim: ndim as c_int,
            global: [0; 8],
            offset: [0; 8],
            local: [0; 8],
            stride: [0; 8],
        };
        array.global[..global.len()].copy_from_slice(global);
        array.local[..local.len()].copy_from_slice(local);
        array.stride[..stride.len()].copy_from_slice(stride);
        array
    }

    #[test]
    fn a_strided_array_spans_up_to_its_last_element() {
        let (_, len) = layout(&array(2, &[4, 4], &[4, 4], &[])).unwrap();
        assert_eq!(len, 128);
        let (alone, len) = layout(&array(2, &[], &[4, 4], &[])).unwrap();
        assert_eq!((len, alone.global.len()), (128, 0));
        // 4 x 4 inside 6 x 6: the last element is number 3 * 6 + 3.
        let (_, len) = layout(&array(2, &[4, 4], &[4, 4], &[6, 1])).unwrap();
        assert_eq!(len, 22 * 8);
        let (_, len) = layout(&array(2, &[4, 4], &[0, 4], &[6, 1])).unwrap();
        assert_eq!(len, 0);
    }

    // Breaks if: the products in `layout` wrap, or the overlap check in `strides` is removed.
    #[test]
    fn nonsense_is_refused() {
        for bad in [
            array(0, &[], &[], &[]),
            array(9, &[], &[], &[]),
            array(1, &[4], &[5], &[]),
            array(1, &[4], &[-1], &[]),
            array(2, &[i64::MAX, i64::MAX], &[i64::MAX, i64::MAX], &[]),
            array(2, &[4, 4], &[4, 4], &[3, 1]),
            array(2, &[4, 4], &[4, 4], &[4, 0]),
            array(2, &[4, 4], &[4, 4], &[1, 4]),
            array(2, &[4, 4], &[4, 4], &[i64::MAX, 1]),
        ] {
            assert!(layout(&bad).is_err(), "{bad:?}");
        }
        assert!(span(std::ptr::null_mut(), 1).is_err());
        assert!(span(std::ptr::null_mut(), 0).is_ok());
        assert!(span(std::ptr::without_provenance_mut(usize::MAX), 2).is_err());
        assert!(timeout(f64::NAN).is_err() && timeout(-1.0).is_err());
        assert!(timeout(f64::INFINITY).is_ok());
        assert!(dtype(15).is_err() && dtype(-1).is_err() && dtype(256).is_err());
        assert!(level(0).is_err() && level(5).is_err());
        assert!(flags(8).is_err() && flags(-1).is_err() && flags(7).is_ok());
    }

    #[test]
    fn a_text_without_an_end_is_refused() {
        let endless = [b'a' as c_char; 64];
        // SAFETY: readable up to the limit of 64 bytes.
        let result = unsafe { text(endless.as_ptr(), "name", 64) };
        assert!(result.unwrap_err().message().contains("64 bytes"));
        // SAFETY: zero-terminated.
        let result = unsafe { text(c"\xff".as_ptr(), "name", 64) };
        assert!(result.unwrap_err().message().contains("not UTF-8"));
    }
}
