//! Implements `orc_protect` and related calls, which define what a checkpoint consists of.
//!
//! What it does: it checks addresses, types, shapes and codecs, and passes regions to the session.
//!
//! Invariants:
//! 1. The memory of a region is not touched here; only checkpoint and restart touch it.
//! 2. A refused call leaves the regions as they were.
//!
//! Not here: copying, and the rules for names.

use crate::codec::ProgramCodec;
use crate::convert::{NAME_LIMIT_BYTES, dtype, flags, layout, not_null, shape, span, text};
use crate::fault::boundary;
use crate::registry::{self, orc_session};
use crate::types::{orc_array, orc_box, orc_codec, orc_status};
use orcheck_format::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Maximum number of boxes of one region.
const BOXES_LIMIT: usize = 1 << 20;

/// Names count elements at address as a region of every following checkpoint. Calling it again for
/// the same name sets a new address, type or size; ::ORC_UNAVAILABLE while the region is lent.
/// Local; does not block and does not copy.
///
/// The memory must stay valid until the region is protected again or unprotected, or the session
/// ends. At a restart the stored type and size must be the same (otherwise ::ORC_INVALID names
/// both), and so must the number of ranks; ask orc_stored() for them first. An array stored by
/// orc_protect_array() also fits flat memory of the same length, and vice versa, unless it is part
/// of a global array.
///
/// @param name   1 to 255 bytes of UTF-8 without control characters, unique on this rank
/// @param dtype  an ::orc_dtype
/// @param flags  0, or ::orc_flag values or-ed together
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect(
    session: *mut orc_session,
    name: *const c_char,
    address: *mut c_void,
    dtype: c_int,
    count: usize,
    flags: c_int,
) -> orc_status {
    boundary("orc_protect", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let place = |error: Error| error.at(format_args!("region \"{name}\""));
        let dtype = self::dtype(dtype).map_err(place)?;
        let flags = self::flags(flags).map_err(place)?;
        let len_bytes = (count as u64)
            .checked_mul(dtype.size_bytes())
            .ok_or_else(|| Error::invalid(format!("{count} elements are larger than memory")))
            .map_err(place)?;
        let span = span(address, len_bytes).map_err(place)?;
        registry::with(session, |session| session.protect(name, span, dtype, flags))
            .map(|()| String::new())
    })
}

/// Names this rank's part of a global array as a region. address is that of the part's first
/// element. Otherwise like orc_protect(). Local; does not block and does not copy.
///
/// A restart may have other parts and another number of ranks: each rank gets the elements of the
/// part that it protects, whoever stored them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect_array(
    session: *mut orc_session,
    name: *const c_char,
    address: *mut c_void,
    array: *const orc_array,
    flags: c_int,
) -> orc_status {
    boundary("orc_protect_array", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let place = |error: Error| error.at(format_args!("region \"{name}\""));
        let flags = self::flags(flags).map_err(place)?;
        not_null(array, "array").map_err(place)?;
        // SAFETY: not NULL, and the caller promises a readable structure.
        let (layout, len_bytes) = layout(unsafe { &*array }).map_err(place)?;
        let span = span(address, len_bytes).map_err(place)?;
        registry::with(session, |session| {
            session.protect_array(name, span, layout, flags)
        })
        .map(|()| String::new())
    })
}

/// Names several boxes of one global array as one region: block-cyclic and irregular parts.
/// Otherwise like orc_protect_array(). Local; does not block and does not copy.
///
/// All boxes have the same dtype, ndim and global. A rank without elements gives one box whose
/// local is zero. orc_stored() tells the smallest box around the boxes of a rank.
///
/// @param n  number of boxes, at least 1
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect_boxes(
    session: *mut orc_session,
    name: *const c_char,
    boxes: *const orc_box,
    n: usize,
    flags: c_int,
) -> orc_status {
    boundary("orc_protect_boxes", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let place = |error: Error| error.at(format_args!("region \"{name}\""));
        let flags = self::flags(flags).map_err(place)?;
        if n > BOXES_LIMIT {
            let refused = Error::invalid(format!("{n} boxes, {BOXES_LIMIT} at most"));
            return Err(place(refused));
        }
        let mut given: &[orc_box] = &[];
        if n > 0 {
            not_null(boxes, "boxes").map_err(place)?;
            // SAFETY: not NULL, and the caller promises `n` boxes.
            given = unsafe { std::slice::from_raw_parts(boxes, n) };
        }
        let each = given.iter().enumerate().map(|(number, one)| {
            let in_box = |error: Error| place(error.at(format_args!("box {number}")));
            let (layout, len_bytes) = layout(&one.array).map_err(in_box)?;
            let span = span(one.address, len_bytes).map_err(in_box)?;
            Ok((span, layout))
        });
        let boxes = each.collect::<Result<Vec<_>>>()?;
        registry::with(session, |session| session.protect_boxes(name, boxes, flags))
            .map(|()| String::new())
    })
}

/// Names this rank's items of a list as a region: particles, rows of a sparse matrix, work items.
/// All ranks protect the list, with 0 items where there are none. Otherwise like orc_protect().
/// Local; does not block and does not copy.
///
/// The items of all ranks, one rank after the other, are one list. A restart redistributes it, to
/// any number of ranks: each gets as many items as it protects, in order. Together the ranks must
/// protect exactly the items that are stored; orc_stored() tells their number (global[0]), and how
/// many items this rank stored, or an even share on another number of ranks (local[0]). A program
/// has at most 1024 lists.
///
/// @param address     that of the first item; NULL for none
/// @param dtype       an ::orc_dtype
/// @param item_shape  shape of one item, or NULL if it is one element
/// @param item_ndim   0 to 7
/// @param items       how many this rank has
/// @param flags       0, ::ORC_OPTIONAL or ::ORC_CPU_WRITES_ONLY
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect_list(
    session: *mut orc_session,
    name: *const c_char,
    address: *mut c_void,
    dtype: c_int,
    item_shape: *const i64,
    item_ndim: c_int,
    items: usize,
    flags: c_int,
) -> orc_status {
    boundary("orc_protect_list", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let place = |error: Error| error.at(format_args!("region \"{name}\""));
        let flags = self::flags(flags).map_err(place)?;
        let dtype = self::dtype(dtype).map_err(place)?;
        let ndim = usize::try_from(item_ndim).ok().filter(|ndim| *ndim <= 7);
        let ndim = ndim
            .ok_or_else(|| Error::invalid(format!("item_ndim is {item_ndim}, expected 0 to 7")))
            .map_err(place)?;
        let mut shape = vec![items as u64];
        if ndim > 0 {
            not_null(item_shape, "item_shape").map_err(place)?;
            // SAFETY: not NULL, and the caller promises `item_ndim` lengths.
            let item = unsafe { std::slice::from_raw_parts(item_shape, ndim) };
            shape.extend(self::shape(item, "item_shape").map_err(place)?);
        }
        let elements = shape
            .iter()
            .try_fold(1u64, |all, len| all.checked_mul(*len));
        let len_bytes = elements.and_then(|elements| elements.checked_mul(dtype.size_bytes()));
        let len_bytes = len_bytes
            .ok_or_else(|| Error::invalid("the items are larger than the address space"))
            .map_err(place)?;
        let span = span(address, len_bytes).map_err(place)?;
        registry::with(session, |session| {
            session.protect_list(name, span, (dtype, &shape), flags)
        })
        .map(|()| String::new())
    })
}

/// Names a region whose bytes the program itself produces and takes back. The structure is copied;
/// its ctx must stay valid like a region's memory. Local; does not block and calls nothing yet.
///
/// The functions are called inside orc_checkpoint() and orc_restart().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect_codec(
    session: *mut orc_session,
    name: *const c_char,
    codec: *const orc_codec,
    flags: c_int,
) -> orc_status {
    boundary("orc_protect_codec", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let place = |error: Error| error.at(format_args!("region \"{name}\""));
        let flags = self::flags(flags).map_err(place)?;
        not_null(codec, "codec").map_err(place)?;
        // SAFETY: not NULL, and the caller promises a readable structure.
        let codec = ProgramCodec::new(name, unsafe { &*codec }).map_err(place)?;
        registry::with(session, |session| {
            session.protect_codec(name, Box::new(codec), flags)
        })
        .map(|()| String::new())
    })
}

/// Takes a region out of all following checkpoints. Local.
///
/// @return ::ORC_NOT_FOUND for an unknown name; ::ORC_UNAVAILABLE while the region is lent, or
///         while a checkpoint is still reading a memory file
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_unprotect(
    session: *mut orc_session,
    name: *const c_char,
) -> orc_status {
    boundary("orc_unprotect", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        registry::with(session, |session| session.unprotect(name)).map(|()| String::new())
    })
}

/// Allocates memory inside the staging pool, aligned to pages; its contents are undefined. A region
/// in it can be lent (orc_lend()) without any copy. Local.
///
/// @return ::ORC_NO_SPACE if the pool has no run of that length left
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_alloc(
    session: *mut orc_session,
    len_bytes: usize,
    address: *mut *mut c_void,
) -> orc_status {
    boundary("orc_alloc", || {
        not_null(address, "address")?;
        // SAFETY: not NULL, and the caller promises room for a pointer.
        unsafe { address.write(null_mut()) };
        let span = registry::with(session, |session| session.alloc(len_bytes as u64))?;
        // SAFETY: as above.
        unsafe { address.write(std::ptr::with_exposed_provenance_mut(span.address())) };
        Ok(String::new())
    })
}

/// Frees memory from orc_alloc(). NULL is ignored. Unprotect the regions in it first. Local.
///
/// @return ::ORC_INVALID for an address that is not from orc_alloc() of this session, or while a
///         region lies there; ::ORC_UNAVAILABLE while that region is lent
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_free(session: *mut orc_session, address: *mut c_void) -> orc_status {
    boundary("orc_free", || {
        if address.is_null() {
            return Ok(String::new());
        }
        registry::with(session, |session| session.free(address.addr())).map(|()| String::new())
    })
}
