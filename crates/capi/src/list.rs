//! Implements `orc_protect_all`, which protects several regions in one call.
//!
//! What it does: it checks the whole list, and passes its regions to the session one after the
//! other.
//!
//! Invariants:
//! 1. A list with a wrong entry, or with a name twice, protects no region at all. What only the
//!    session can refuse (a lent region, for example) ends the list there, and the text names the
//!    entry.
//!
//! Not here: single regions (`regions`).

use crate::convert::{NAME_LIMIT_BYTES, dtype, flags, not_null, span, text};
use crate::fault::boundary;
use crate::registry::{self, orc_session};
use crate::types::orc_status;
use orcheck_format::{Error, Result};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

/// Maximum number of regions in one list.
const LIST_LIMIT: usize = 1 << 20;

/// One entry of orc_protect_all(); its fields are the arguments of orc_protect(), in their order.
#[repr(C)]
pub struct orc_region {
    /// 1 to 255 bytes of UTF-8, ending in a zero byte.
    pub name: *const c_char,
    /// The address of its first element.
    pub address: *mut c_void,
    /// An ::orc_dtype.
    pub dtype: c_int,
    /// The number of elements.
    pub count: usize,
    /// 0, or ::orc_flag values or-ed together.
    pub flags: c_int,
}

/// Names n regions in one call, each like orc_protect(); ORC_PROTECT() is the shorter form.
/// orc_message() names a wrong entry, or two entries of the same name; no region of the list is
/// then protected. Naming a region again in a later call replaces it. Local; does not block and
/// does not copy.
///
/// @return as orc_protect(); ::ORC_UNAVAILABLE for a region that is lent: those before it in the
///         list are protected nevertheless
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_protect_all(
    session: *mut orc_session,
    regions: *const orc_region,
    n: usize,
) -> orc_status {
    boundary("orc_protect_all", || {
        if n > LIST_LIMIT {
            return Err(Error::invalid(format!(
                "{n} regions in one list, {LIST_LIMIT} at most"
            )));
        }
        let listed: &[orc_region] = if n == 0 {
            &[]
        } else {
            not_null(regions, "regions")?;
            // SAFETY: not NULL, and the caller promises n entries that stay during the call.
            unsafe { std::slice::from_raw_parts(regions, n) }
        };
        let mut checked = Vec::with_capacity(n);
        let mut indices = HashMap::with_capacity(n);
        for (index, region) in listed.iter().enumerate() {
            let entry = |error: Error| error.at(format_args!("regions[{index}]"));
            // SAFETY: the caller promises a zero-terminated text that stays during the call.
            let name = unsafe { text(region.name, "name", NAME_LIMIT_BYTES) }.map_err(entry)?;
            // Breaks if: the later entry replaces the earlier one, as in a later call; that array
            // would never be stored.
            if let Some(first) = indices.insert(name, index) {
                return Err(Error::invalid(format!(
                    "regions[{first}] and regions[{index}] have the same name, \"{name}\": only the second would be stored"
                ))
                .next("give each region of the list a name of its own"));
            }
            let checks = || -> Result<_> {
                let dtype = dtype(region.dtype)?;
                let flags = flags(region.flags)?;
                let len_bytes = (region.count as u64)
                    .checked_mul(dtype.size_bytes())
                    .ok_or_else(|| {
                        Error::invalid(format!("{} elements are larger than memory", region.count))
                    })?;
                Ok((span(region.address, len_bytes)?, dtype, flags))
            };
            let (span, dtype, flags) = checks()
                .map_err(|error| error.at(format_args!("region \"{name}\"")))
                .map_err(entry)?;
            checked.push((name, span, dtype, flags));
        }
        registry::with(session, |session| {
            for (name, span, dtype, flags) in checked {
                session.protect(name, span, dtype, flags)?;
            }
            Ok(String::new())
        })
    })
}
