//! Profiles of published checkpoints: X. Ouyang et al., SNAPI 2010, "Checkpointing Profiling".
//!
//! A rank's image is written by a fixed number of calls to one file, in order. Of LU.C.64's the
//! shares of three classes are published (60 % of the writes are small and carry 1.5 % of the
//! bytes, 0.8 % are large and carry 79 %); those of BT.C.64 are taken to be the same. Within a
//! class sizes vary evenly from half to one and a half times the mean.
//!
//! Invariants:
//! 1. The same profile is drawn each time.

use std::path::PathBuf;

use orcheck_io::machine::Effect;

use crate::commands::profile::writes::{Call, Writes};

/// Name, writes and bytes of a rank.
const KNOWN: [(&str, u64, u64); 2] = [("lu.c.64", 975, 23_000_000), ("bt.c.64", 1057, 40_000_000)];
/// Classes: share of the writes, share of the bytes.
const CLASSES: [(f64, f64); 3] = [(0.6, 0.015), (0.392, 0.195), (0.008, 0.79)];

/// The names, for messages.
pub fn names() -> String {
    KNOWN.map(|(name, ..)| name).join(" and ")
}

/// The profile of this name, for this many ranks.
pub fn profile(name: &str, ranks: u32) -> Option<Writes> {
    let (_, count, bytes) = KNOWN
        .into_iter()
        .find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    let lengths = lengths(count, bytes);
    let mut writes = Writes::default();
    for rank in 0..ranks {
        writes.files.push(PathBuf::from(format!("rank{rank}")));
        writes.ranks.push(Some(rank));
        let mut offset = 0;
        for len_bytes in &lengths {
            let len_bytes = *len_bytes;
            writes.calls.push(Call {
                at_us: 0,
                took_us: 0,
                process: rank,
                file: rank,
                what: Effect::Wrote { offset, len_bytes },
            });
            offset += len_bytes;
        }
    }
    Some(writes)
}

fn lengths(count: u64, bytes: u64) -> Vec<u64> {
    let mut lengths = Vec::new();
    for (class, (of_writes, of_bytes)) in CLASSES.into_iter().enumerate() {
        // The last class has what rounding leaves.
        let writes = match class + 1 == CLASSES.len() {
            true => count as f64 - lengths.len() as f64,
            false => (of_writes * count as f64).round(),
        };
        let mean = of_bytes * bytes as f64 / writes;
        for number in 0..writes as u64 {
            let share = 0.5 + (number as f64 + 0.5) / writes;
            lengths.push(((share * mean) as u64).max(1));
        }
    }
    // An order in which classes alternate, always the same: a step that has no divisor in common
    // with the number.
    let number = lengths.len();
    let step = (number * 5 / 8..)
        .find(|step| divisor(*step, number) == 1)
        .unwrap_or(1);
    (0..number).map(|at| lengths[at * step % number]).collect()
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by a panic
mod tests {
    use super::*;
    use crate::commands::profile::classes::Classes;

    // Breaks if: a published profile is not what was published.
    #[test]
    fn published_profiles_have_the_published_shares() {
        for (name, count, bytes) in KNOWN {
            let found = Classes::of(&profile(name, 3).unwrap()).document();
            let number = |key: &str| found[key].as_u64().unwrap();
            assert_eq!(number("writes"), 3 * count);
            assert!(number("bytes").abs_diff(3 * bytes) < bytes / 100);
            assert_eq!((number("in_order"), number("streams")), (3 * count, 3));
        }
        assert!(profile("LU.C.64", 1).is_some() && profile("sp.c.64", 1).is_none());
    }
}
