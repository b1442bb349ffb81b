//! Agreement: an error on one rank becomes the same error on all.
//!
//! One small allreduce when all is well; only when some rank failed does its text travel too.
//! Bytes through the collective are O(1) per rank.

use crate::collective::Collective;
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::sabotage::{Switch, off};

/// Longest error text that reaches the other ranks.
const TEXT_BYTES: usize = 2048;

/// All ranks succeed, or all return the error of the lowest rank that failed.
///
/// # Errors
/// That error; on other ranks prefixed with the rank it comes from.
pub fn agree<T>(collective: &mut dyn Collective, local: Result<T>) -> Result<T> {
    agree_min(collective, local, &mut [])
}

/// As [`agree`], carrying `values` (element-wise minimum) in the same message.
///
/// # Errors
/// As [`agree`].
pub fn agree_min<T>(
    collective: &mut dyn Collective,
    local: Result<T>,
    values: &mut [i64],
) -> Result<T> {
    let rank = collective.rank();
    let mut vector = vec![if local.is_ok() {
        i64::MAX
    } else {
        i64::from(rank)
    }];
    vector.extend_from_slice(values);
    collective.allreduce_min(&mut vector)?;
    values.copy_from_slice(&vector[1..]);
    if vector[0] == i64::MAX || off(Switch::Agreement) {
        return local;
    }
    let failed = vector[0] as u32;
    let mut text = vec![0u8; TEXT_BYTES + 8];
    if failed == rank
        && let Err(error) = &local
    {
        let message = error.message().as_bytes();
        let len = message.len().min(TEXT_BYTES);
        text[..4].copy_from_slice(&error.kind().code().to_le_bytes());
        text[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        text[8..8 + len].copy_from_slice(&message[..len]);
    }
    collective.bcast(&mut text, failed)?;
    if let Err(error) = local
        && failed == rank
    {
        return Err(error);
    }
    let code = i32::from_le_bytes([text[0], text[1], text[2], text[3]]);
    let len = u32::from_le_bytes([text[4], text[5], text[6], text[7]]) as usize;
    let message = String::from_utf8_lossy(&text[8..8 + len.min(TEXT_BYTES)]).into_owned();
    let kind = ErrorKind::from_code(code).unwrap_or(ErrorKind::Internal);
    Err(Error::new(kind, message).at(format!("rank {failed}")))
}

/// A byte string of any length from `root` to all ranks.
///
/// # Errors
/// What the collective says.
pub fn bcast_bytes(collective: &mut dyn Collective, bytes: Vec<u8>, root: u32) -> Result<Vec<u8>> {
    let mut len = (bytes.len() as u64).to_le_bytes();
    collective.bcast(&mut len, root)?;
    let mut bytes = bytes;
    bytes.resize(u64::from_le_bytes(len) as usize, 0);
    collective.bcast(&mut bytes, root)?;
    Ok(bytes)
}
