//! Wraps the program's own codec as a `Codec`.
//!
//! What it does: calls the three C functions of an `orc_codec`.
//!
//! Invariants:
//! 1. An error names the function that failed, with the position and what it returned.
//! 2. Positions and lengths fit into the machine's words.
//!
//! Faults survived: functions that fail. One that writes beyond its buffer cannot be survived.
//!
//! Not here: how the stream is cut, staged and checksummed.

use crate::convert::covers;
use crate::fault::callback;
use crate::types::orc_codec;
use orcheck_client::Codec;
use orcheck_format::{Error, Result};
use std::ffi::{c_int, c_void};

type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Pack = unsafe extern "C" fn(*mut c_void, usize, *mut c_void, usize) -> c_int;
type Unpack = unsafe extern "C" fn(*mut c_void, usize, *const c_void, usize) -> c_int;

pub(crate) struct ProgramCodec {
    name: String,
    ctx: *mut c_void,
    size: Size,
    pack: Pack,
    unpack: Unpack,
}

// SAFETY: the context is used by one thread at a time, inside calls on the session; which thread
// that may be is the program's choice, as the header says.
unsafe impl Send for ProgramCodec {}

impl ProgramCodec {
    /// Checks and copies the structure; `name` is the region's.
    pub(crate) fn new(name: &str, c: &orc_codec) -> Result<ProgramCodec> {
        covers::<orc_codec>(c.struct_size, "orc_codec")?;
        let (Some(size), Some(pack), Some(unpack)) = (c.size, c.pack, c.unpack) else {
            return Err(Error::invalid("size, pack or unpack of orc_codec is NULL"));
        };
        Ok(ProgramCodec {
            name: name.to_owned(),
            ctx: c.ctx,
            size,
            pack,
            unpack,
        })
    }

    fn check(&self, what: std::fmt::Arguments<'_>, returned: c_int) -> Result<()> {
        if returned == 0 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "region \"{}\": {what} of the program's orc_codec returned {returned}",
            self.name
        )))
    }
}

fn word(at: u64) -> Result<usize> {
    usize::try_from(at).map_err(|_| Error::internal(format!("position {at} beyond memory")))
}

impl Codec for ProgramCodec {
    fn size(&mut self) -> Result<u64> {
        let mut len_bytes = 0_usize;
        // SAFETY: the length can be written during the call.
        let returned = callback(|| unsafe { (self.size)(self.ctx, &raw mut len_bytes) });
        self.check(format_args!("size"), returned)?;
        Ok(len_bytes as u64)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        let position = word(at)?;
        // SAFETY: the buffer can be written for its length during the call.
        let returned = callback(|| unsafe {
            (self.pack)(self.ctx, position, dst.as_mut_ptr().cast(), dst.len())
        });
        self.check(format_args!("pack at byte {at}"), returned)
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        let position = word(at)?;
        // SAFETY: the buffer can be read for its length during the call.
        let returned = callback(|| unsafe {
            (self.unpack)(self.ctx, position, src.as_ptr().cast(), src.len())
        });
        self.check(format_args!("unpack at byte {at}"), returned)
    }
}
