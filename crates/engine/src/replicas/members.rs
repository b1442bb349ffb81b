//! Knows the nodes of earlier runs, and asks them what they hold.
//!
//! How: every node of a run at level `peers` keeps the list of its members, with the addresses of
//! their keepers and the key of the run. An agent that outlives its ranks answers at the same
//! address. Whoever finds the list in a directory that it can read can ask all the others.
//!
//! Invariants:
//! 1. A node that does not answer costs a stated time, once for all that are asked at once.
//! 2. For each node, the entry of the latest run counts.
//!
//! Survives: damaged lists (noted and left out); nodes that are gone, stall or answer nonsense.
//! Not here: which nodes are asked and what follows (client, `upkeep`), what is read from them
//! (`remote.rs`).

use crate::directory::epoch::read_members;
use crate::encoding::Trust;
use crate::replicas::remote::{Files, NodeAt};
use orcheck_format::disk::{FileName, Member};
use orcheck_format::{Error, ErrorKind, JobName, NodeId, Rank, Result};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_net::Key;
use std::collections::BTreeMap;
use std::time::Duration;

/// A node is forgotten if it took part in none of this many runs.
const RUNS_KNOWN: u64 = 8;
/// Maximum number of nodes that are asked at once.
const ASKED_AT_ONCE: usize = 32;

/// What a directory remembers of the nodes of the last few runs before `epoch`: for each node, its
/// latest entry. Unreadable lists are reported and left out.
///
/// # Errors
/// The error of the directory.
pub fn remembered(
    dir: &dyn Dir,
    (job, epoch): (&JobName, u64),
    trust: &Trust,
    notes: &mut Vec<String>,
) -> Result<Vec<Member>> {
    let mut known: BTreeMap<String, Member> = BTreeMap::new();
    for entry in dir.list()? {
        let of = match FileName::parse(&entry.name) {
            // Breaks if: older ones are read too; each damaged one would be a warning, although all
            // that it lists is forgotten.
            Some(FileName::Members { epoch: of }) if of < epoch && epoch - of <= RUNS_KNOWN => of,
            _ => continue,
        };
        match read_members(dir, job, of, trust) {
            Ok(list) => merge(&mut known, list.nodes),
            Err(error) => notes.push(format!(
                "the nodes of epoch {of} are not known here: {error}"
            )),
        }
    }
    let recent = |member: &Member| member.epoch.saturating_add(RUNS_KNOWN) >= epoch;
    Ok(known.into_values().filter(recent).collect())
}

/// The same of the runs up to the newest that left a list, however long ago that was: for whoever
/// comes after the last run.
///
/// # Errors
/// As [`remembered`].
pub(crate) fn last_remembered(
    dir: &dyn Dir,
    job: &JobName,
    trust: &Trust,
    notes: &mut Vec<String>,
) -> Result<Vec<Member>> {
    let entries = dir.list()?.into_iter();
    let lists = entries.filter_map(|entry| match FileName::parse(&entry.name) {
        Some(FileName::Members { epoch }) => Some(epoch),
        _ => None,
    });
    match lists.max() {
        Some(newest) => remembered(dir, (job, newest.saturating_add(1)), trust, notes),
        None => Ok(Vec::new()),
    }
}

/// How the nodes of an ended run are asked what they hold.
pub struct Asking<'a> {
    /// The job.
    pub job: &'a JobName,
    /// Opens the lists of members.
    pub trust: &'a Trust,
    /// How long to wait until a node says what it holds.
    pub within: Duration,
    /// Failpoints of the connections, for tests.
    pub failpoints: &'a Failpoints,
}

/// What nodes answered: each with its files, and the errors of the others by node.
pub type Answers = (Vec<(NodeAt, Files)>, BTreeMap<String, Error>);

impl Asking<'_> {
    /// Asks all nodes that the lists in these directories name.
    ///
    /// # Errors
    /// Lack of threads.
    pub fn ask(&self, dirs: &[&dyn Dir], notes: &mut Vec<String>) -> Result<Answers> {
        let mut known = BTreeMap::new();
        for dir in dirs {
            match last_remembered(*dir, self.job, self.trust, notes) {
                Ok(listed) => merge(&mut known, listed),
                // Breaks if: it ends the call; one directory that is gone would hide what all
                // others know.
                Err(error) => notes.push(format!("the nodes of earlier runs: {}", error.what())),
            }
        }
        let (mut at, mut found, mut silent) = (Vec::new(), Vec::new(), BTreeMap::new());
        for member in known.into_values() {
            match keeper_of(&member) {
                Ok(node) => at.push(node),
                Err(error) => drop(silent.insert(member.name, error)),
            }
        }
        let own = (Rank(0), NodeId(0));
        let nodes: Vec<&NodeAt> = at.iter().collect();
        let answers = list_all(&nodes, own, self.failpoints, self.within)?;
        for (node, answer) in at.into_iter().zip(answers) {
            match answer {
                Ok(files) => found.push((node, files)),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    let error = error
                        .at("nothing answers there")
                        .next("give its directory, or run `orcheck scavenge --serve` on that node");
                    silent.insert(node.name, error);
                }
                Err(error) => drop(silent.insert(node.name, error)),
            }
        }
        Ok((found, silent))
    }
}

/// Adds members to those known; for each node, the entry of the latest run stays.
pub(crate) fn merge(known: &mut BTreeMap<String, Member>, more: Vec<Member>) {
    for member in more {
        let newer = |known: &Member| known.epoch >= member.epoch;
        if !known.get(&member.name).is_some_and(newer) {
            known.insert(member.name.clone(), member);
        }
    }
}

/// Where the keeper of a member was reachable.
///
/// # Errors
/// Invalid for an address that no version writes.
pub fn keeper_of(member: &Member) -> Result<NodeAt> {
    let addresses = member.addresses.iter().map(|text| text.parse());
    Ok(NodeAt {
        addresses: addresses.collect::<Result<_>>()?,
        name: member.name.clone(),
        key: Key {
            bytes: member.key,
            encrypt: member.encrypt,
        },
    })
}

/// Asks these nodes what they hold, many at once; answers in the same order.
///
/// # Errors
/// Lack of threads. The error of a node is its answer.
pub fn list_all(
    nodes: &[&NodeAt],
    own: (Rank, NodeId),
    failpoints: &Failpoints,
    within: Duration,
) -> Result<Vec<Result<Files>>> {
    let mut answers = Vec::new();
    for some in nodes.chunks(ASKED_AT_ONCE) {
        answers.extend(std::thread::scope(|scope| {
            let threads = some.iter().map(|&node| {
                let list = move || node.list(own, failpoints, within);
                spawn_scoped(scope, "orcheck-ask", list)
            });
            // All are started before the first is joined.
            let threads: Vec<_> = threads.collect::<Result<_>>()?;
            let joined = threads.into_iter().map(|thread| {
                let answer = thread.join();
                answer.unwrap_or_else(|_| Err(Error::internal("asking a node panicked")))
            });
            Ok::<_, Error>(joined.collect::<Vec<_>>())
        })?);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::disk::Members;
    use orcheck_format::{Epoch, RunId};
    use orcheck_io::disk::write_small;
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;

    fn list(epoch: u64, name: &str) -> Vec<u8> {
        let member = Member {
            name: name.to_owned(),
            addresses: Vec::new(),
            key: [7; 32],
            encrypt: false,
            epoch,
        };
        let epoch = Epoch {
            counter: epoch,
            run: RunId([1; 16]),
        };
        let job = JobName::new("job").unwrap();
        let nodes = vec![member];
        Members { job, epoch, nodes }.encode()
    }

    // Breaks if: a list counts as too old after the last run; the nodes would be called unknown.
    #[test]
    fn after_the_last_run_the_newest_list_counts_whatever_its_age() {
        let scratch = Scratch::new("members-last");
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        let write = |name: FileName, bytes: &[u8]| {
            write_small(dir.as_ref(), &name.to_string(), bytes).unwrap();
        };
        let epoch = RUNS_KNOWN + 5;
        write(FileName::Members { epoch: 4 }, &list(4, "forgotten"));
        write(FileName::Members { epoch }, &list(epoch, "known"));
        write(FileName::Resumed { epoch: 100 }, b"a much later run");
        let (job, trust, mut notes) = (JobName::new("job").unwrap(), Trust::nobody(), Vec::new());
        let known = last_remembered(dir.as_ref(), &job, &trust, &mut notes).unwrap();
        let names: Vec<&str> = known.iter().map(|member| member.name.as_str()).collect();
        assert_eq!((names, notes.len()), (vec!["known"], 0));
    }

    #[test]
    fn thousands_of_damaged_lists_are_a_few_warnings_and_cost_nothing_else() {
        const NOW: u64 = 3_000;
        let scratch = Scratch::new("members");
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        let write = |epoch, bytes: &[u8]| {
            let name = FileName::Members { epoch }.to_string();
            write_small(dir.as_ref(), &name, bytes).unwrap();
        };
        (1..NOW).for_each(|epoch| write(epoch, b"no list"));
        write(NOW - RUNS_KNOWN, &list(NOW - RUNS_KNOWN, "known"));
        write(
            NOW - RUNS_KNOWN - 1,
            &list(NOW - RUNS_KNOWN - 1, "forgotten"),
        );
        let mut notes = Vec::new();
        let (job, trust) = (JobName::new("job").unwrap(), Trust::nobody());
        let known = remembered(dir.as_ref(), (&job, NOW), &trust, &mut notes).unwrap();
        let names: Vec<&str> = known.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["known"]);
        assert_eq!(notes.len() as u64, RUNS_KNOWN - 1, "{notes:?}");
    }
}
