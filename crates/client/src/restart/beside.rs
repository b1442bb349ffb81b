//! Starts a job from nothing, after looking beside its directories for data that seems to be the
//! job's, under another name or in another place.
//!
//! How: before a job without a checkpoint begins, it is examined once more. A mistyped job name,
//! another node name, files copied one level too high, a directory that was emptied, a server that
//! returned with another disk: each looks like a new job. Findings are reported with names, and are
//! an error with `strict`; with `start = 'resume'`, a start from nothing is always an error. If
//! nothing else remembers the job, the only possible hint is a disk that is new.
//!
//! Invariants:
//! 1. Nothing is changed on any disk, and nothing that is found here is ever used.
//! 2. A look costs one listing of each root, of at most [`MOST_LOOKED_AT`] directories beside the
//!    job's own, and of each directory of a node that is not in this run, until [`NODES_TOLD`] are
//!    found that hold checkpoints. Only runs that begin from nothing make it. What each node
//!    remembers costs one more listing of its own directory, and travels with a message that is
//!    sent anyway.
//! 3. A job does not begin from nothing beside its own checkpoints: directories of nodes of other
//!    names below `node_dir`, or of nodes below a directory of level `global` where there is no
//!    `node_dir`, refuse the start, unless `start = 'fresh'` asks for it.
//! 4. Any other directory that is unreadable is ignored.
//! 5. What is told is the same on all ranks.
//!
//! Not here: what the job's own directories hold (`engine::restart`), a disk that is replaced
//! during a run (`Dir::check_path`).

use crate::collective::{agree, agree_min, bcast_bytes};
use crate::open::forget;
use crate::session::Session;
use orcheck_format::disk::{BLOCK_BYTES, CommitRecord, ContainerHeader, FileName, MAX_NODES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, JobName, Level, NodeId, Rank, Result, Step};
use orcheck_io::clock::moment;
use orcheck_io::disk::{Dir, Entry, read_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::client::shown;
use orcheck_staging::open_dir;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of directories beside the job's own that are examined.
const MOST_LOOKED_AT: usize = 64;
/// Maximum number of nodes that a message names.
const NODES_TOLD: usize = 8;
/// A disk that has been in use for less is new: the job may have run before it was installed. The
/// time is long enough for a job that waits in a queue, or is resumed after a maintenance.
const NEW_DISK_MS: u64 = 30 * 24 * 3600 * 1000;
/// Size of the largest commit record that is read here.
const RECORD_LIMIT_BYTES: u64 = 64 << 20;

impl Session {
    /// Begins the job from nothing, unless that is refused; returns what lies beside it.
    /// Collective.
    ///
    /// # Errors
    /// Invalid with `start = 'resume'`. Unavailable while a configured directory cannot be read.
    /// Invalid if nodes of other names hold checkpoints of the
    /// job, unless with `start = 'fresh'`. With `strict`, Invalid if there is any data of the job,
    /// or beside it.
    pub(crate) fn begin_afresh(&mut self) -> Result<Vec<String>> {
        let mut told = Vec::new();
        if self.options.start_resumes && !off(Switch::StartResumes) {
            let refused = Err(self.must_resume());
            self.agree_to_begin(refused)?;
        }
        if !self.options.fresh && !off(Switch::AwayUnread) {
            // Breaks if: it begins; what lies in a directory that cannot be read would be
            // superseded.
            let unread = match self.link.places.away.is_empty() {
                true => Ok(()),
                false => Err(self.link.places.blame_away(Error::not_found(format!(
                    "job '{}' has no checkpoint in those that can be read",
                    self.job.as_str()
                )))),
            };
            self.agree_to_begin(unread)?;
        }
        if !self.options.fresh && !off(Switch::BesideSaid) {
            let Beside { hints, of_job } = self.beside();
            // Breaks if: it begins; two runs would write under one epoch, and nobody could say
            // later which one counts.
            let left = match of_job.first() {
                Some(_) if !off(Switch::OtherNames) => Err(self.other_names(&of_job)),
                _ => Ok(()),
            };
            self.agree_to_begin(left)?;
            if self.options.strict {
                let refused = self.strictly(&hints);
                self.agree_to_begin(refused)?;
            }
            told = self.told_by_one(&hints)?;
        }
        self.decide(None);
        Ok(told)
    }

    /// What the lowest rank that has anything to tell tells, on all ranks. Collective.
    fn told_by_one(&mut self, mine: &[String]) -> Result<Vec<String>> {
        let rank = i64::from(self.rank);
        let mut lowest = [if mine.is_empty() { i64::MAX } else { rank }];
        agree_min(self.collective.as_mut(), Ok(()), &mut lowest)?;
        let [teller] = lowest;
        if teller == i64::MAX {
            return Ok(Vec::new());
        }
        let bytes = match teller == rank {
            true => mine.join("\n").into_bytes(),
            false => Vec::new(),
        };
        let bytes = bcast_bytes(self.collective.as_mut(), bytes, teller as u32)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Where the job was looked for, on all its nodes.
    pub(crate) fn looked_in(&self) -> String {
        let mut roots: Vec<String> = self.options.global.iter().map(|root| place(root)).collect();
        roots.extend(self.options.node_dir.iter().map(|root| {
            let mut nodes = self.link.layout.node_names();
            let more = nodes.len().saturating_sub(NODES_TOLD);
            nodes.truncate(NODES_TOLD);
            let s = if nodes.len() == 1 { "" } else { "s" };
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{} (node{s} {}{more})", place(root), nodes.join(", "))
        }));
        roots.join(", ")
    }

    fn other_names(&self, of_job: &[String]) -> Error {
        Error::invalid(format!(
            "job '{}' would begin from nothing in {}, but {}",
            self.job.as_str(),
            self.looked_in(),
            of_job.join("; ")
        ))
        .next(match self.options.node_dir {
            Some(_) => "give the nodes of this run those names (ORCHECK_NODE) or run on those nodes; or set start = 'fresh' to begin from nothing",
            None => "set node_dir (ORCHECK_NODE_DIR) instead of global, and peers as before; or set start = 'fresh' to begin from nothing",
        })
    }

    fn must_resume(&self) -> Error {
        let mut why = self.of_the_job();
        // Breaks if: it is left out; a mistyped name, the likeliest cause, would not be named.
        let Beside { hints, of_job } = self.beside();
        why.extend(hints);
        why.extend(of_job);
        let error = Error::invalid(format!(
            "start = 'resume', but job '{}' has no checkpoint to restart from in {}{}",
            self.job.as_str(),
            self.looked_in(),
            why.iter().map(|why| format!("; {why}")).collect::<String>()
        ));
        error.next(match self.resume.uncommitted {
            Some(_) => "bring the commit record back if it was removed, or set start = 'fresh' to begin from nothing",
            None if self.options.node_dir.is_some() => "correct the job's name, the directories or the names of nodes (ORCHECK_NODE), or set start = 'auto' for a new job",
            None => "correct the job's name or the directories, or set start = 'auto' for a new job",
        })
    }

    fn strictly(&self, beside: &[String]) -> Result<()> {
        let found = [&self.of_the_job()[..], beside].concat();
        if found.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "job '{}' would begin from nothing, which strict refuses here: {}",
            self.job.as_str(),
            found.join("; ")
        ))
        .next("correct what is named, or set start = 'fresh' to begin from nothing"))
    }

    /// Containers of the job itself that have no commit record. Nothing tells whether a record was
    /// removed or the run ended before its first commit: a container is whole before its record is
    /// written. On rank 0.
    fn of_the_job(&self) -> Vec<String> {
        // Breaks if: it is left out; a job whose commit records were lost would begin from nothing
        // and supersede them.
        self.resume.uncommitted.iter().cloned().collect()
    }

    /// If the start is refused, the claim is withdrawn, and with it the right to write anything.
    fn agree_to_begin(&mut self, refused: Result<()>) -> Result<()> {
        let agreed = agree(self.collective.as_mut(), refused);
        if let Err(error) = &agreed {
            self.resume.refused = Some(error.clone());
            // Before the claim: the next run with this counter writes such a list too.
            if let (Some(_), Some(dir)) = (&self.link.peers, &self.link.places.node)
                && self.link.layout.leads_node(self.rank)
            {
                forget(dir.as_ref(), self.link.epoch);
            }
            // Breaks if: it stays; `orcheck ls` would list a mistyped name as a job.
            if let Some(held) = self.link.claim.take() {
                held.withdraw();
            }
        }
        agreed
    }

    /// # Errors
    /// Fails with the reason why the start was refused. The next run may have the same epoch by
    /// now.
    pub(crate) fn require_no_failed_restart(&self) -> Result<()> {
        self.resume.refused.clone().map_or(Ok(()), Err)
    }

    /// Directories that should remember earlier runs of the job as others do, but do not. On rank
    /// 0.
    pub(crate) fn emptied(&self) -> Vec<String> {
        if self.rank != Rank(0) || self.options.fresh {
            return Vec::new();
        }
        let servers = self.link.places.of_level(Level::Global);
        let remembered = |dir: &Arc<dyn Dir>| newest_epoch(dir.as_ref(), self.link.epoch.counter);
        let of_servers = servers
            .iter()
            .filter_map(|dir| Some((remembered(dir)?, place(dir.path()))));
        // Breaks if: only the node of rank 0 is asked; that node may be new itself.
        let of_nodes = self.resume.remembered.map(|(epoch, node)| {
            let node = self.link.layout.nodes.get(node as usize);
            let name = node.map_or("", |node| node.name.as_str());
            (epoch, format!("node '{name}'"))
        });
        let newest = of_servers.chain(of_nodes).max_by_key(|(epoch, _)| *epoch);
        let Some((epoch, knows)) = newest else {
            return Vec::new();
        };
        let empty = servers.iter().filter(|dir| remembered(dir).is_none());
        empty
            .map(|dir| {
                format!(
                    "{} holds nothing of earlier runs of job '{}', but {knows} remembers epoch {epoch}: it is new, or was emptied or replaced",
                    place(dir.path()),
                    self.job.as_str(),
                )
            })
            .collect()
    }

    /// The newest epoch before this one that this node's own directory remembers, as a number for
    /// all ranks; 0 if there is none, or if another rank of the node reports it.
    pub(crate) fn remembered_here(&self) -> i64 {
        if self.options.fresh || !self.link.layout.leads_node(self.rank) {
            return 0;
        }
        let newest = (self.link.places.node.as_ref())
            .and_then(|dir| newest_epoch(dir.as_ref(), self.link.epoch.counter));
        newest.map_or(0, |epoch| {
            word_of(epoch, self.link.layout.node_of(self.rank))
        })
    }

    /// Servers with new disks. On rank 0.
    fn new_disks(&self) -> Vec<String> {
        if self.rank != Rank(0) || self.options.fresh || off(Switch::NewDisk) {
            return Vec::new();
        }
        let now_ms = self.environment.clock.unix_ms();
        let servers = self.link.places.of_level(Level::Global);
        let new = servers.iter().filter_map(|dir| {
            let since_ms = dir.since_unix_s()?.saturating_mul(1000);
            let is_new = now_ms.saturating_sub(since_ms) < NEW_DISK_MS;
            is_new.then(|| {
                format!(
                    "the disk of {} is new, in use since {}: if the job ran before that, its checkpoints there are gone",
                    place(dir.path()),
                    moment(since_ms, now_ms)
                )
            })
        });
        new.collect()
    }

    fn beside(&self) -> Beside {
        let around = Around {
            job: &self.job,
            nodes: self.link.layout.node_names(),
            has_node_dir: self.options.node_dir.is_some(),
            failpoints: &self.environment.failpoints,
        };
        let mut found = Beside {
            hints: self.emptied(),
            of_job: Vec::new(),
        };
        found.hints.extend(self.new_disks());
        if self.rank == Rank(0) {
            for root in &self.options.global {
                around.look(root, false, &mut found);
            }
        }
        if let Some(root) = &self.options.node_dir
            && self.link.layout.leads_node(self.rank)
        {
            around.look(root, true, &mut found);
        }
        found
    }
}

/// What lies beside the directories of a run, in words.
struct Beside {
    /// What may be data of the job.
    hints: Vec<String>,
    /// Checkpoints of the job that nodes with other names took.
    of_job: Vec<String>,
}

/// What to look for.
struct Around<'a> {
    job: &'a JobName,
    /// Nodes of this run.
    nodes: Vec<String>,
    /// Whether the nodes have directories of their own.
    has_node_dir: bool,
    failpoints: &'a Failpoints,
}

impl Around<'_> {
    /// Looks below one root; `of_nodes`: whether each node has a directory of its own there.
    fn look(&self, root: &Path, of_nodes: bool, found: &mut Beside) {
        let job = self.job.as_str();
        let Ok(dir) = open_dir(root, self.failpoints.clone()) else {
            return;
        };
        if let Some(file) = self.own_file_in(dir.as_ref()) {
            found.hints.push(format!(
                "{root} itself holds checkpoint files of job '{job}' (such as {file}), which \
                 belong in {root}/{job}",
                root = place(root)
            ));
        }
        for name in subdirectories(dir.as_ref(), |name| is_near(job, name)) {
            if let Some(step) = newest_step(dir.as_ref(), &name) {
                found.hints.push(format!(
                    "{}/{name} holds checkpoints of job '{name}' up to step {step}: the name '{job}' may be mistyped",
                    place(root)
                ));
            }
        }
        let Ok(own) = dir.child(job, false) else {
            return;
        };
        if of_nodes {
            self.look_at_nodes(root, own.as_ref(), found);
        } else {
            for name in subdirectories(own.as_ref(), |_| true) {
                let Some(step) = newest_step(own.as_ref(), &name) else {
                    continue;
                };
                let root = place(root);
                let text =
                    format!("{root}/{job}/{name} holds checkpoints of this job up to step {step}");
                // Breaks if: it is a hint; where only the option is wrong, a second run would be
                // written beside the first.
                match is_of_node(own.as_ref(), &name) && !self.has_node_dir {
                    true => found.of_job.push(format!(
                        "{text}, written by a node: {root} seems to belong in node_dir"
                    )),
                    false => found.hints.push(text),
                }
            }
        }
        if of_nodes && let Some(file) = self.own_file_in(own.as_ref()) {
            found.hints.push(format!(
                "{root}/{job} itself holds checkpoint files of this job (such as {file}), which \
                 belong in the directory of their node below it",
                root = place(root)
            ));
        }
    }

    /// Looks at the directories of nodes that are not in this run, until there are enough of them
    /// to name.
    fn look_at_nodes(&self, root: &Path, of_job: &dyn Dir, found: &mut Beside) {
        let entries = match of_job.list() {
            Ok(entries) => entries.into_iter(),
            Err(error) => {
                let (path, why) = (place(of_job.path()), error.what());
                return found.of_job.push(format!("{path} cannot be listed: {why}"));
            }
        };
        let others = entries.filter(|entry| entry.is_dir && !self.nodes.contains(&entry.name));
        let mut others: Vec<String> = others.map(|entry| entry.name).collect();
        others.sort();
        for name in others {
            let listed = of_job.child(&name, false).and_then(|dir| dir.list());
            let text = match &listed {
                // Containers without a record may be of a run that committed nothing.
                Ok(entries) => newest(entries, |name| match name {
                    FileName::Commit { step, .. } => Some(step),
                    _ => None,
                })
                .map(|step| {
                    format!("holds checkpoints of this job up to step {step}, taken on node '{name}', which no rank of this run is on")
                }),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                // Breaks if: it counts as empty; a mode would make the job begin from nothing.
                Err(error) => Some(format!("cannot be read: {}", error.what())),
            };
            let of_name = |text| format!("{}/{}/{name} {text}", place(root), self.job.as_str());
            found.of_job.extend(text.map(of_name));
            if found.of_job.len() >= NODES_TOLD {
                return;
            }
        }
    }

    /// A container or commit record of this job directly in a directory.
    fn own_file_in(&self, dir: &dyn Dir) -> Option<String> {
        let entries = dir.list().ok()?;
        let files = entries.iter().filter(|entry| !entry.is_dir);
        let looked = files.filter_map(|entry| {
            let name = FileName::parse(&entry.name)?;
            let job = match name {
                FileName::Commit { .. } => read_small(dir, &entry.name, RECORD_LIMIT_BYTES)
                    .and_then(|bytes| CommitRecord::decode(&bytes))
                    .map(|record| record.job),
                FileName::Container { .. } => job_of_container(dir, &entry.name),
                _ => return None,
            };
            Some((&entry.name, job))
        });
        let mut own = looked
            .take(MOST_LOOKED_AT)
            .filter(|(_, job)| job.as_ref().is_ok_and(|job| job == self.job));
        own.next().map(|(name, _)| name.clone())
    }
}

fn job_of_container(dir: &dyn Dir, name: &str) -> Result<JobName> {
    let mut head = [0; BLOCK_BYTES];
    dir.open(name)?.read_at(&mut head, 0)?;
    ContainerHeader::decode(&head).map(|header| header.job)
}

/// The name of a directory in messages.
fn place(path: &Path) -> String {
    shown(&path.to_string_lossy()).to_owned()
}

fn subdirectories(dir: &dyn Dir, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = dir.list().unwrap_or_default().into_iter();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.is_dir && wanted(&entry.name))
        .map(|entry| entry.name)
        .collect();
    names.sort();
    names.truncate(MOST_LOOKED_AT);
    names
}

/// Whether a directory has commit records of a level of nodes.
fn is_of_node(parent: &dyn Dir, name: &str) -> bool {
    let listed = parent.child(name, false).and_then(|dir| dir.list());
    let names = listed.unwrap_or_default().into_iter();
    let mut parsed = names.filter_map(|entry| FileName::parse(&entry.name));
    parsed.any(|name| matches!(name, FileName::Commit { level, .. } if level != Level::Global))
}

/// The newest step with a container or commit record in a directory, or in one directly below it.
fn newest_step(parent: &dyn Dir, name: &str) -> Option<Step> {
    let dir = parent.child(name, false).ok()?;
    let own = newest_file(dir.as_ref());
    let below = subdirectories(dir.as_ref(), |_| true);
    let below = below
        .iter()
        .filter_map(|name| newest_file(dir.child(name, false).ok()?.as_ref()));
    below.chain(own).max()
}

fn newest_file(dir: &dyn Dir) -> Option<Step> {
    newest(&dir.list().ok()?, |name| match name {
        FileName::Container { step, .. } | FileName::Commit { step, .. } => Some(step),
        _ => None,
    })
}

/// The newest step in the names of files.
fn newest(entries: &[Entry], step_of: impl Fn(FileName) -> Option<Step>) -> Option<Step> {
    let names = (entries.iter()).filter_map(|entry| FileName::parse(&entry.name));
    names.filter_map(step_of).max()
}

/// The newest epoch before this one that a directory remembers.
fn newest_epoch(dir: &dyn Dir, before: u64) -> Option<u64> {
    let entries = dir.list().ok()?;
    let epochs = entries
        .iter()
        .filter_map(|entry| match FileName::parse(&entry.name) {
            Some(
                FileName::Claim { epoch }
                | FileName::Resumed { epoch }
                | FileName::Commit { epoch, .. }
                | FileName::Container { epoch, .. },
            ) => Some(epoch),
            _ => None,
        });
    epochs.filter(|epoch| *epoch < before).max()
}

/// An epoch and a node in one number, which is larger for a newer epoch and, within one epoch, for
/// the first node.
fn word_of(epoch: u64, node: NodeId) -> i64 {
    let (epoch, nodes) = (epoch.min(1 << 42), MAX_NODES as u64);
    (epoch * nodes + (nodes - 1).saturating_sub(u64::from(node))) as i64
}

/// Decodes a result of [`word_of`]; `None` for 0.
pub(crate) fn of_word(word: i64) -> Option<(u64, u32)> {
    let (word, nodes) = (u64::try_from(word).ok()?, MAX_NODES as u64);
    (word > 0).then(|| (word / nodes, (nodes - 1 - word % nodes) as u32))
}

/// Whether one name may be a mistyped form of the other. Names that differ only in their numbers
/// are a series.
fn is_near(name: &str, other: &str) -> bool {
    if name == other || JobName::new(other).is_err() {
        return false;
    }
    let letters = |text: &str| -> String {
        let kept = text.chars().filter(|c| !c.is_ascii_digit());
        kept.collect()
    };
    if letters(name) == letters(other) {
        return false;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', '_', '.'], "");
    let (a, b) = (plain(name), plain(other));
    let apart = strsim::levenshtein(&a, &b);
    let swapped = apart == 2 && a.len() == b.len() && {
        let sorted = |text: &str| {
            let mut chars: Vec<char> = text.chars().collect();
            chars.sort_unstable();
            chars
        };
        sorted(&a) == sorted(&b)
    };
    apart == 0 || swapped || apart <= (a.len().min(b.len()) / 4).max(1) && a.len().min(b.len()) > 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_epoch_that_any_node_remembers_is_the_largest_number() {
        let words = [(1, 7), (3, 0), (3, 2), (2, 1 << 19)]
            .map(|(epoch, node)| word_of(epoch, NodeId(node)));
        assert_eq!(of_word(words.into_iter().max().unwrap()), Some((3, 0)));
        assert_eq!(of_word(0), None);
        assert!(word_of(u64::MAX, NodeId(u32::MAX)) > 0);
    }

    #[test]
    fn a_mistyped_name_is_near_and_a_series_is_not() {
        for (name, other) in [
            ("cavity", "cavitiy"),
            ("cavity", "cavtiy"),
            ("cavity", "Cavity"),
            ("lid-driven", "lid_driven"),
            ("cavity", "cavit"),
            ("heat2d", "heta2d"),
            ("particles-large", "particle-large"),
        ] {
            assert!(
                is_near(name, other) && is_near(other, name),
                "{name} {other}"
            );
        }
        for (name, other) in [
            ("run1", "run2"),
            ("case-017", "case-018"),
            ("re1000", "re400"),
            ("cavity", "cavity"),
            ("cavity", "pipe"),
            ("a", "b"),
            ("heat", "head-wind"),
            ("cavity", "not a job"),
        ] {
            assert!(!is_near(name, other), "{name} {other}");
        }
    }
}
