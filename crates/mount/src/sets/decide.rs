//! Decides which set is taken next: from what the nodes report, without reading anything.
//!
//! Invariants:
//! 1. A set is taken only when it is complete over all nodes: no program may write a file of it,
//!    and its list, the number of its files or its last file says that nothing is missing.
//! 2. Steps grow.
//!
//! Not here: how the nodes exchange reports (`sets.rs`).

use orcheck_format::sabotage::{Switch, off};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which set a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Of the step that its name, or a list, says.
    Step(u64),
    /// The next one: its files always have the same names.
    Next,
}

/// Files of a set on one node, or on all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Files that nobody writes.
    pub closed: u64,
    /// Those of them that were written since the set was last taken.
    pub fresh: u64,
    /// Whole files that a list of the step names.
    pub listed: u64,
    /// Files that a program may write, or that are not whole.
    pub open: u64,
    /// Whether the last file was closed.
    pub ended: bool,
}

/// A list of the files of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The step.
    pub step: u64,
    /// Paths below the mount point, of all nodes.
    pub files: Vec<String>,
}

/// What a node says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its files, by set.
    pub sets: Vec<(Key, Counted)>,
    /// Lists that were written there.
    pub lists: Vec<List>,
    /// Steps whose sets were taken, or refused, and whose files are not all durable.
    pub undurable: Vec<u64>,
    /// Its mount is over.
    pub ending: bool,
}

/// What all nodes do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing is complete.
    Wait,
    /// Take this set as this step.
    Take(Key, u64),
    /// All mounts are over.
    End,
}

/// How a set without a list is known to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complete {
    /// It has this many files.
    Count(u64),
    /// Its last file was closed.
    Ended,
    /// Only a list says so.
    Listed,
}

/// Decides; `lists` has the number of files of each list so far, `last` the last step.
#[must_use]
pub fn decide(
    reports: &[Report],
    complete: Complete,
    lists: &BTreeMap<u64, u64>,
    last: Option<u64>,
) -> Next {
    let mut all: BTreeMap<Key, Counted> = BTreeMap::new();
    for (key, one) in reports.iter().flat_map(|report| &report.sets) {
        let sum = all.entry(*key).or_default();
        sum.closed += one.closed;
        sum.fresh += one.fresh;
        sum.listed += one.listed;
        sum.open += one.open;
        sum.ended |= one.ended;
    }
    let is_complete = |key: &Key, one: &Counted| {
        let listed = match key {
            Key::Step(step) => lists.get(step),
            Key::Next => None,
        };
        // Breaks if: this is not asked; half of a file would be of the set.
        (one.open == 0 || off(Switch::SetComplete))
            && match (listed, complete) {
                (Some(files), _) => one.listed >= *files,
                (None, Complete::Count(files)) => one.fresh >= files,
                (None, Complete::Ended) => one.ended,
                (None, Complete::Listed) => false,
            }
    };
    let is_newer =
        |key: &Key| !matches!((key, last), (Key::Step(step), Some(last)) if *step <= last);
    // In their order: steps grow, and the one without a number comes last.
    let mut found = all
        .iter()
        .filter(|(key, one)| is_newer(key) && is_complete(key, one));
    match (found.next(), last) {
        (Some((key @ Key::Step(step), _)), _) => Next::Take(*key, *step),
        (Some((Key::Next, _)), last) => Next::Take(Key::Next, last.map_or(1, |last| last + 1)),
        (None, _) if reports.iter().all(|report| report.ending) => Next::End,
        (None, _) => Next::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sets: &[(Key, [u64; 3])], ending: bool) -> Report {
        let counted = |[closed, fresh, open]: [u64; 3]| Counted {
            closed,
            fresh,
            listed: 0,
            open,
            ended: false,
        };
        Report {
            sets: sets
                .iter()
                .map(|(key, one)| (*key, counted(*one)))
                .collect(),
            lists: Vec::new(),
            undurable: Vec::new(),
            ending,
        }
    }

    fn by_count(files: u64, reports: &[Report], last: Option<u64>) -> Next {
        decide(reports, Complete::Count(files), &BTreeMap::new(), last)
    }

    #[test]
    fn files_of_all_nodes_make_a_set() {
        let one = report(&[(Key::Step(7), [1, 1, 0])], false);
        let other = report(&[(Key::Step(7), [2, 2, 0])], false);
        assert_eq!(by_count(3, std::slice::from_ref(&other), None), Next::Wait);
        let take = Next::Take(Key::Step(7), 7);
        assert_eq!(by_count(3, &[one.clone(), other.clone()], None), take);
        let reports = [one.clone(), other.clone()];
        assert_eq!(by_count(3, &reports, Some(7)), Next::Wait, "it is over");
        assert_eq!(by_count(4, &[one, other], None), Next::Wait);
    }

    #[test]
    fn a_file_that_is_written_keeps_its_set_from_being_taken() {
        let busy = report(&[(Key::Step(7), [3, 3, 1])], false);
        assert_eq!(by_count(3, &[busy], None), Next::Wait);
    }

    #[test]
    fn the_oldest_complete_set_is_first() {
        let sets = [
            (Key::Step(5), [1, 1, 0]),
            (Key::Step(6), [2, 2, 0]),
            (Key::Step(9), [2, 2, 0]),
            (Key::Next, [2, 2, 0]),
        ];
        let reports = [report(&sets, true)];
        assert_eq!(by_count(2, &reports, Some(4)), Next::Take(Key::Step(6), 6));
        let reports = [report(&sets[3..], true)];
        assert_eq!(by_count(2, &reports, Some(9)), Next::Take(Key::Next, 10));
    }

    #[test]
    fn an_unnumbered_set_needs_files_that_are_new() {
        let reports = [report(&[(Key::Next, [2, 1, 0])], false)];
        assert_eq!(by_count(2, &reports, Some(1)), Next::Wait);
    }

    #[test]
    fn a_list_is_stronger_than_a_count() {
        let lists = BTreeMap::from([(7, 4)]);
        let reports = [report(&[(Key::Step(7), [3, 3, 0])], false)];
        let next = decide(&reports, Complete::Count(3), &lists, None);
        assert_eq!(next, Next::Wait);
        let mut reports = reports;
        reports[0].sets[0].1.listed = 4;
        let next = decide(&reports, Complete::Count(9), &lists, None);
        assert_eq!(next, Next::Take(Key::Step(7), 7));
    }

    #[test]
    fn the_last_file_makes_a_set() {
        let mut one = report(&[(Key::Step(7), [3, 3, 0])], false);
        let next = |one: &Report| {
            let reports = std::slice::from_ref(one);
            decide(reports, Complete::Ended, &BTreeMap::new(), None)
        };
        assert_eq!(next(&one), Next::Wait);
        one.sets[0].1.ended = true;
        assert_eq!(next(&one), Next::Take(Key::Step(7), 7));
    }

    #[test]
    fn it_ends_when_all_mounts_are_over() {
        let (over, there) = (report(&[], true), report(&[], false));
        assert_eq!(by_count(1, &[over.clone(), there], None), Next::Wait);
        assert_eq!(by_count(1, &[over.clone(), over], None), Next::End);
    }
}
