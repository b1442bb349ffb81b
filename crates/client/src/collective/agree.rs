//! Turns an error on one rank into the same error on all.
//!
//! An agreement takes one small allreduce if all is well; the text of an error travels only if some
//! rank failed. Each rank sends O(1) bytes through the collective, except for tables with a row per
//! node.

use crate::collective::operations::Collective;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};

/// Length of the longest error text that reaches the other ranks.
const TEXT_BYTES: usize = 2048;

/// Succeeds if all ranks do; otherwise all ranks return the error of the lowest rank that failed.
///
/// # Errors
/// That error; on other ranks, prefixed with the rank that it comes from.
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
    if failed == rank.0
        && let Err(error) = &local
    {
        let message = error.message().as_bytes();
        let len = message.len().min(TEXT_BYTES);
        text[..4].copy_from_slice(&error.code().to_le_bytes());
        text[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        text[8..8 + len].copy_from_slice(&message[..len]);
    }
    collective.bcast(&mut text, failed)?;
    if let Err(error) = local
        && failed == rank.0
    {
        return Err(error);
    }
    let code = u32::from_le_bytes([text[0], text[1], text[2], text[3]]);
    let len = u32::from_le_bytes([text[4], text[5], text[6], text[7]]) as usize;
    let message = String::from_utf8_lossy(&text[8..8 + len.min(TEXT_BYTES)]).into_owned();
    Err(Error::from_code(code, message).at(format!("rank {failed}")))
}

/// Bytes that travel in one value of [`rows`]: such a value is smaller than that of a rank without
/// a row.
const ROW_UNIT: usize = 7;

/// Builds a table of `count` rows of `row_bytes` bytes, the same on all ranks. Row `i` comes from
/// the one rank with `mine = (i, …)`: at most this many bytes, followed by zeros. A row that no
/// rank supplies is all zeros.
///
/// It takes one reduction of about 8/7 of the table: no rank receives more than the others, as the
/// root of a gather would.
///
/// # Errors
/// The error of the collective.
pub fn rows(
    collective: &mut dyn Collective,
    (count, row_bytes): (usize, usize),
    mine: Option<(usize, &[u8])>,
) -> Result<Vec<u8>> {
    let units = row_bytes.div_ceil(ROW_UNIT);
    let mut values = vec![i64::MAX; count * units];
    if let Some((at, bytes)) = mine
        && let Some(row) = values.get_mut(at * units..(at + 1) * units)
    {
        row.fill(0);
        for (value, part) in row.iter_mut().zip(bytes.chunks(ROW_UNIT)) {
            *value = number(part) as i64;
        }
    }
    collective.allreduce_min(&mut values)?;
    let mut table = Vec::with_capacity(count * row_bytes);
    for row in values.chunks_exact(units.max(1)) {
        let end = table.len() + row_bytes;
        for &value in row {
            let value = if value == i64::MAX { 0 } else { value };
            table.extend_from_slice(&value.to_le_bytes()[..ROW_UNIT]);
        }
        table.truncate(end);
    }
    Ok(table)
}

/// A number of at most eight bytes, the lowest first.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// A byte string of any length from `root` to all ranks.
///
/// # Errors
/// The error of the collective.
pub fn bcast_bytes(collective: &mut dyn Collective, bytes: Vec<u8>, root: u32) -> Result<Vec<u8>> {
    let mut len = (bytes.len() as u64).to_le_bytes();
    collective.bcast(&mut len, root)?;
    let mut bytes = bytes;
    bytes.resize(u64::from_le_bytes(len) as usize, 0);
    if bytes.is_empty() {
        return Ok(bytes);
    }
    collective.bcast(&mut bytes, root)?;
    Ok(bytes)
}
