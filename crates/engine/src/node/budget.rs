//! Computes the memory budget of the staging pool, and explains a pool size that does not fit.
//!
//! Invariants:
//! 1. The pool never exceeds what the machine and every ancestor cgroup leave free. The size of
//!    `/dev/shm` does not count: the pool is a memfd, which lives in a mount of the kernel's own.
//! 2. A size that the user sets is granted exactly or refused with the numbers; it is never
//!    reduced.
//!
//! Not here: measuring (`io::machine`), allocating (`pool::pool`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::machine::MemoryFacts;

/// With fewer chunks, a pipelined pool could not overlap copying and writing.
pub const MIN_CHUNKS: u32 = 4;

/// The number of chunks of a node's pool. `asked_bytes` is the size that the user set. Without it,
/// the pool may grow to a quarter of the usable memory, shared by the nodes on this host. Pages are
/// taken only as snapshots need them.
///
/// # Errors
/// NoSpace naming the limit; Invalid for a pool of fewer than [`MIN_CHUNKS`] chunks.
pub fn pool_chunks(
    asked_bytes: Option<u64>,
    chunk_bytes: u32,
    facts: &MemoryFacts,
    nodes_on_host: u32,
) -> Result<u32> {
    let usable = facts.usable_bytes();
    let bytes =
        match asked_bytes {
            Some(asked) if asked > usable && !off(Switch::PoolBudget) => {
                return Err(Error::no_space(format!(
                "a pool of {asked} bytes does not fit: {}",
                explain(facts)
            ))
            .next("lower `pool`, or raise the limit named here; a pool smaller than the snapshots \
                   works: it is flushed while it fills"));
            }
            Some(asked) => asked,
            None => usable / 4 / u64::from(nodes_on_host.max(1)),
        };
    let chunks = u32::try_from(bytes / u64::from(chunk_bytes)).unwrap_or(u32::MAX);
    if chunks < MIN_CHUNKS {
        return Err(Error::invalid(format!(
            "a pool of {bytes} bytes holds {chunks} chunks of {chunk_bytes} bytes; it needs at least {MIN_CHUNKS}"
        ))
        .next(format!("set `pool` to {} bytes or more, or lower `chunk` ({})", u64::from(MIN_CHUNKS) * u64::from(chunk_bytes), explain(facts))));
    }
    Ok(chunks)
}

/// Describes the tightest limit.
fn explain(facts: &MemoryFacts) -> String {
    let usable = facts.usable_bytes();
    for (path, limit, used) in &facts.cgroup_limits {
        if limit.saturating_sub(*used) <= usable {
            return format!("cgroup {path} leaves {usable} bytes (limit {limit}, used {used})");
        }
    }
    format!("{usable} bytes of memory are available")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(available: u64, cgroup: u64) -> MemoryFacts {
        MemoryFacts {
            total_bytes: available,
            available_bytes: available,
            cgroup_limits: vec![("/job".into(), cgroup, 0)],
            shm_free_bytes: available,
        }
    }

    #[test]
    fn a_pool_beyond_the_cgroup_limit_is_refused_by_name() {
        let error = pool_chunks(Some(2 << 30), 4 << 20, &facts(8 << 30, 1 << 30), 1).unwrap_err();
        assert_eq!(error.kind(), orcheck_format::ErrorKind::NoSpace);
        assert!(
            error
                .message()
                .contains("cgroup /job leaves 1073741824 bytes"),
            "{error}"
        );
    }

    #[test]
    fn the_default_is_a_quarter_shared_by_the_nodes_of_a_host() {
        assert_eq!(
            pool_chunks(None, 4 << 20, &facts(8 << 30, u64::MAX), 2).unwrap(),
            256
        );
        assert!(pool_chunks(Some(8 << 20), 4 << 20, &facts(8 << 30, u64::MAX), 1).is_err());
    }
}
