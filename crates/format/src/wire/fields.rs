//! Encodes fields that several kinds of messages share.

use crate::coding::Reader;
use crate::error::{ErrorKind, Result};

/// Longest text of an error in a message, in bytes.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// An error's kind.
pub(crate) fn read_kind(r: &mut Reader<'_>) -> Result<ErrorKind> {
    let code: u16 = r.uint()?;
    ErrorKind::from_code(i32::from(code))
        .ok_or_else(|| r.unsupported(format_args!("error kind {code} is unknown")))
}

/// The longest prefix of at most `max_bytes` that ends between two characters.
pub(crate) fn cut(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes))
        .unwrap_or_default()
}
