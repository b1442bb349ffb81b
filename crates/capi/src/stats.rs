//! Implements `orc_stats_read`, which returns figures of the last checkpoint.
//!
//! What it does: it copies the session's figures into the program's structure.
//!
//! Invariants:
//! 1. No more than the structure that this version knows is written.
//!
//! Not here: measuring.

use crate::convert::not_null;
use crate::fault::boundary;
use crate::registry::{self, orc_session};
use crate::types::{orc_stats, orc_status};
use orcheck_format::Error;
use std::mem::offset_of;

/// Size of the structure in the first released version.
const FIRST_BYTES: usize = offset_of!(orc_stats, captured_step);

/// Reads the figures of the last checkpoint on this rank. Set stats->struct_size first. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_stats_read(
    session: *const orc_session,
    stats: *mut orc_stats,
) -> orc_status {
    boundary("orc_stats_read", || {
        not_null(stats, "stats")?;
        // SAFETY: not NULL, and the caller promises a structure that begins with its size.
        let struct_size = unsafe { (*stats).struct_size };
        if struct_size < FIRST_BYTES {
            return Err(Error::invalid(format!(
                "struct_size of orc_stats is {struct_size}, expected at least {FIRST_BYTES} bytes"
            ))
            .next("set struct_size = sizeof(orc_stats) before the call"));
        }
        let read = registry::with(session, |session| Ok(session.stats()))?;
        let filled = orc_stats {
            struct_size,
            step: read.step.0,
            blocked_s: read.blocked_s,
            stage_s: read.stage_s,
            wait_s: read.wait_s,
            staged_bytes: read.staged_bytes,
            pool_bytes: read.pool_bytes,
            pool_used_bytes: read.pool_used_bytes,
            committed_node_step: read.committed_node_step.0,
            committed_global_step: read.committed_global_step.0,
            flush_cpu_s: read.flush_cpu_s,
            skipped: read.skipped,
            captured_step: read.captured.step.0,
            stored_bytes: read.captured.stored_bytes,
            referred_bytes: read.captured.referred_bytes,
            tracked_bytes: read.captured.tracked_bytes,
            full_because: read.captured.full.map_or(0, |full| full as u64),
            flushed_bytes: read.flushed_bytes,
            file_bytes: read.file_bytes,
            interval_s: read.interval_s,
            lost_steps: read.lost.table(),
            disabled: u64::from(read.disabled),
            routed_bytes: read.routed_bytes,
            memory_bytes: read.memory_bytes,
            agree_s: read.agree_s,
            checkpoints: read.sum.checkpoints,
            blocked_sum_s: read.sum.blocked_s,
            agree_sum_s: read.sum.agree_s,
            stage_sum_s: read.sum.stage_s,
            wait_sum_s: read.sum.wait_s,
            pool_memory_bytes: read.pool_memory_bytes,
        };
        // A program of an older version has room only for the first fields.
        let len_bytes = struct_size.min(size_of::<orc_stats>());
        // SAFETY: the program's structure has `struct_size` bytes, ours at least as many as are
        // copied.
        unsafe {
            (&raw const filled)
                .cast::<u8>()
                .copy_to(stats.cast(), len_bytes)
        };
        Ok(String::new())
    })
}
