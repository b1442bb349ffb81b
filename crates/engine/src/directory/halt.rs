//! Implements halt requests, which ask a run from outside to take a checkpoint and end.
//!
//! How: a request is a small file beside the run's claim, named after its epoch. The processes that
//! claimed a directory look there: the lead in the placed directories, each node in its own. A
//! request therefore needs only what a job has anyway, with or without agents, on one machine or
//! many. The control thread finds the file and tells the ranks of its node, which agree on it as on
//! every other trigger.
//!
//! A request for later (at a time, or after some checkpoints) is a different file. Version 0.1.0
//! does not know its name; there, the mere existence of the first file ends the run at once.
//!
//! ```text
//! orcheck halt ─file─▶ directory ◀─looks─ control thread ─index─▶ ranks ─agree─▶ checkpoint, end
//! ```
//!
//! Invariants:
//! 1. A request is for one epoch and does not stop the next run of the job. The exception is a time
//!    that is still to come when the next run begins: it applies to that run too, which writes the
//!    request again under its own epoch.
//! 2. A request to halt at once counts by its existence; its text is for people. Of a request for
//!    later, the first line counts. An unknown first line requests nothing, and callers are told.
//! 3. A look reads two names in one directory, and looks are at least [`EVERY`] apart. Only when
//!    the run begins does it look into, and list, all its directories.
//! 4. A directory that cannot be read neither requests anything nor withdraws anything.
//!
//! Survives: a request that is withdrawn before the ranks agree on it; a run that dies after a
//! request; a directory that accepts no file, or is unreadable for a while, when a run begins
//! before the requested time.
//!
//! Not here: the agreement (`client::trigger`), whether another run follows (`cli`, `run`).

use crate::directory::epoch::{describe_if, highest_claim, is_locked, look_at_claim};
use crate::encoding::Trust;
use crate::node::HaltRequest;
use orcheck_format::disk::{Claim, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Dir, read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks, long enough that ten thousand nodes do not burden a file system.
pub const EVERY: Duration = Duration::from_secs(2);
/// Largest text of a request that is shown.
const TEXT_LIMIT_BYTES: u64 = 4096;

fn name_of(epoch: u64) -> String {
    FileName::Halt { epoch }.to_string()
}

fn later_name_of(epoch: u64) -> String {
    FileName::HaltAt { epoch }.to_string()
}

/// When a run is to halt, if not at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this time, milliseconds since 1970.
    At(u64),
    /// After this many further checkpoints, at least one; the run counts from when it sees the
    /// request.
    After(u64),
}

impl When {
    /// The first line of the file.
    fn line(self) -> String {
        match self {
            Self::At(unix_ms) => format!("at {unix_ms}"),
            Self::After(count) => format!("after {count}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (word, number) = text.lines().next()?.split_once(' ')?;
        let number = number.trim().parse().ok()?;
        match word {
            "at" => Some(Self::At(number)),
            "after" if number > 0 => Some(Self::After(number)),
            _ => None,
        }
    }
}

/// The requests in one directory.
#[derive(Debug, Default, Clone, Copy)]
struct Wish {
    now: bool,
    later: Option<When>,
    /// Whether an earlier run's request has been dealt with.
    carried: bool,
}

/// Looks for requests in one directory after the other.
pub struct Watch {
    epoch: u64,
    began_unix_ms: u64,
    begun: bool,
    name: String,
    later: String,
    dirs: Vec<(Arc<dyn Dir>, Wish)>,
    next: usize,
    looked: Duration,
    told: HaltRequest,
}

impl Watch {
    /// For the run of this epoch, which has claimed `dirs` and begins now, at time `unix_ms`.
    #[must_use]
    pub fn new(dirs: Vec<Arc<dyn Dir>>, epoch: u64, now: Duration, unix_ms: u64) -> Self {
        Self {
            epoch,
            began_unix_ms: unix_ms,
            begun: false,
            name: name_of(epoch),
            later: later_name_of(epoch),
            dirs: dirs.into_iter().map(|dir| (dir, Wish::default())).collect(),
            next: 0,
            looked: now,
            told: HaltRequest::None,
        }
    }

    /// The run's halt request, if a look or the time `unix_ms` changed it.
    pub fn look(&mut self, now: Duration, unix_ms: u64) -> Option<HaltRequest> {
        if !self.begun {
            self.begun = true;
            // Breaks if: a directory waits for its turn; the first commit of the run removes the
            // requests of earlier runs.
            for at in 0..self.dirs.len() {
                self.look_at(at);
            }
        } else if now.saturating_sub(self.looked) < EVERY || self.dirs.is_empty() {
            return None;
        } else {
            self.looked = now;
            let at = self.next % self.dirs.len();
            self.next = at + 1;
            self.look_at(at);
        }
        let asked = self.asked(unix_ms);
        let changed = asked != self.told;
        self.told = asked;
        changed.then_some(asked)
    }

    fn look_at(&mut self, at: usize) {
        let (dir, wish) = &mut self.dirs[at];
        let found = match off(Switch::HaltOfEpoch) {
            false => dir.holds(&self.name),
            true => requests(std::slice::from_ref(dir)).map(|found| !found.is_empty()),
        };
        wish.now = found.unwrap_or(wish.now);
        wish.later = match read_small(dir.as_ref(), &self.later, TEXT_LIMIT_BYTES) {
            Ok(bytes) => When::parse(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound && wish.carried => None,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match carry_over(dir.as_ref(), self.epoch, self.began_unix_ms) {
                    Carried::Pending(when) => when,
                    Carried::Unknown => wish.later,
                    Carried::Settled(when) => {
                        wish.carried = true;
                        when
                    }
                }
            }
            Err(_) => wish.later,
        };
    }

    /// The earliest of the directories' requests.
    fn asked(&self, unix_ms: u64) -> HaltRequest {
        let mut asked = HaltRequest::None;
        for (_, wish) in &self.dirs {
            asked = match (wish.now, wish.later, asked) {
                (true, ..) | (_, _, HaltRequest::Now) => HaltRequest::Now,
                (_, Some(When::At(at)), _) if at <= unix_ms => HaltRequest::Now,
                (_, Some(When::After(count)), HaltRequest::After(other)) => {
                    HaltRequest::After(count.min(other))
                }
                (_, Some(When::After(count)), HaltRequest::None) => HaltRequest::After(count),
                (_, _, asked) => asked,
            };
        }
        asked
    }
}

/// The result of [`carry_over`].
enum Carried {
    /// Nothing remains to be done; the request, if any, is under the run's own epoch.
    Settled(Option<When>),
    /// This is the request, but it could not be written under the run's own epoch yet.
    Pending(Option<When>),
    /// The directory cannot be read now.
    Unknown,
}

/// Writes an earlier run's request for a time later than `began` again under this epoch, and
/// removes the earlier run's file.
fn carry_over(dir: &dyn Dir, epoch: u64, began_unix_ms: u64) -> Carried {
    // Breaks if: this is left to a supervisor; a program restarted by other means would ignore the
    // time.
    let Ok(entries) = dir.list() else {
        return Carried::Unknown;
    };
    let requests = entries
        .iter()
        .filter_map(|entry| match FileName::parse(&entry.name) {
            Some(FileName::HaltAt { epoch }) if !entry.is_dir => Some(epoch),
            _ => None,
        });
    let Some(name) = requests.filter(|&of| of < epoch).max().map(later_name_of) else {
        return Carried::Settled(None);
    };
    let text = match read_small(dir, &name, TEXT_LIMIT_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Carried::Settled(None),
        Err(_) => return Carried::Unknown,
    };
    let when = When::parse(&String::from_utf8_lossy(&text));
    // A time in the past was seen or missed; a count was for the earlier run.
    let when = when.filter(|when| matches!(when, When::At(at) if *at > began_unix_ms));
    if when.is_none() {
        return Carried::Settled(None);
    }
    if write_small(dir, &later_name_of(epoch), &text).is_err() {
        return Carried::Pending(when);
    }
    // If this fails, no harm is done: the next run finds this run's request.
    let _ = dir.remove(&name);
    Carried::Settled(when)
}

/// The newest run of a job, according to its directories.
pub struct NewestRun {
    /// Its claim.
    pub claim: Claim,
    /// Whether the claim is believed.
    believed: bool,
    /// Whether the run is alive: it holds the lock of its claim.
    pub lives: bool,
    /// Directories that it claimed.
    dirs: Vec<Arc<dyn Dir>>,
}

impl NewestRun {
    /// Finds the run that claimed the highest epoch in `dirs`; `None` if nobody ever claimed one.
    ///
    /// # Errors
    /// The error of a directory; Corrupt if no directory holds the claim whole.
    pub fn newest(dirs: &[Arc<dyn Dir>], trust: &Trust) -> Result<Option<Self>> {
        let counter = highest_claim(dirs)?;
        let mut newest: Option<Self> = None;
        let mut failed = None;
        for dir in dirs {
            let (claim, believed) = match look_at_claim(dir.as_ref(), counter, trust) {
                Ok((claim, true)) => (claim, true),
                // The counter comes from the file name; the rest may be invented.
                Ok((mut claim, false)) => {
                    // Breaks if: the counter in the file is used; anybody who can write there could
                    // turn a request on another run.
                    claim.epoch.counter = counter;
                    claim.host = "(not authenticated)".into();
                    (claim, false)
                }
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let lives = is_locked(dir.as_ref(), counter)?;
            let run = newest.get_or_insert(Self {
                claim,
                believed,
                lives: false,
                dirs: Vec::new(),
            });
            run.lives |= lives;
            run.dirs.push(Arc::clone(dir));
        }
        match (newest, failed) {
            (None, Some(error)) => Err(error),
            (newest, _) => Ok(newest),
        }
    }

    /// Describes the run for the user.
    #[must_use]
    pub fn describe(&self) -> String {
        describe_if(&self.claim, self.believed)
    }

    /// Asks the run to take a checkpoint and end; returns the directories where this could not be
    /// written.
    ///
    /// # Errors
    /// The first directory's error if none accepts the request.
    pub fn ask(&self, text: &str) -> Result<Vec<String>> {
        self.put(&name_of(self.claim.epoch.counter), text)
    }

    /// Asks the run to take a checkpoint and end later; returns the directories where this could
    /// not be written. The request replaces an earlier request for later. `text` is for people.
    ///
    /// # Errors
    /// The first directory's error if none accepts the request.
    pub fn ask_later(&self, when: When, text: &str) -> Result<Vec<String>> {
        let text = format!("{}\n{text}", when.line());
        self.put(&later_name_of(self.claim.epoch.counter), &text)
    }

    fn put(&self, name: &str, text: &str) -> Result<Vec<String>> {
        let mut failed: Vec<Error> = Vec::new();
        for dir in &self.dirs {
            failed.extend(write_small(dir.as_ref(), name, text.as_bytes()).err());
        }
        if failed.len() == self.dirs.len() && !failed.is_empty() {
            let error = failed.swap_remove(0).at("asking the run to halt");
            // Breaks if: no next step is given; a user could not end a job well once it has filled
            // its disk.
            return Err(match error.kind() {
                ErrorKind::NoSpace => error.next(
                    "free some kB there, or send the job the signal that its option `signal` names",
                ),
                _ => error,
            });
        }
        Ok(failed.iter().map(ToString::to_string).collect())
    }
}

/// The requests in these directories: their epochs, each with the first readable text.
///
/// # Errors
/// When a directory cannot be listed.
pub fn requests(dirs: &[Arc<dyn Dir>]) -> Result<Vec<(u64, String)>> {
    let mut found: Vec<(u64, String)> = Vec::new();
    for dir in dirs {
        for entry in dir.list()? {
            let Some(FileName::Halt { epoch }) = FileName::parse(&entry.name) else {
                continue;
            };
            let text = read_small(dir.as_ref(), &entry.name, TEXT_LIMIT_BYTES);
            let text = text.map_or_else(
                |error| error.message().to_owned(),
                |bytes| String::from_utf8_lossy(&bytes).trim().to_owned(),
            );
            if found.iter().all(|(known, _)| *known != epoch) {
                found.push((epoch, text));
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The requests for later in these directories: their epochs, each with its time or count (`None`
/// if the first line is unknown).
///
/// # Errors
/// When a directory cannot be listed.
pub fn later_requests(dirs: &[Arc<dyn Dir>]) -> Result<Vec<(u64, Option<When>)>> {
    let mut found: Vec<(u64, Option<When>)> = Vec::new();
    for dir in dirs {
        for entry in dir.list()? {
            let Some(FileName::HaltAt { epoch }) = FileName::parse(&entry.name) else {
                continue;
            };
            let text = read_small(dir.as_ref(), &entry.name, TEXT_LIMIT_BYTES);
            let when = text
                .ok()
                .and_then(|bytes| When::parse(&String::from_utf8_lossy(&bytes)));
            if found.iter().all(|(known, _)| *known != epoch) {
                found.push((epoch, when));
            }
        }
    }
    found.sort_unstable_by_key(|(epoch, _)| *epoch);
    Ok(found)
}

/// Withdraws all requests, also those for later; returns their epochs.
///
/// # Errors
/// The error of a directory.
pub fn withdraw(dirs: &[Arc<dyn Dir>]) -> Result<Vec<u64>> {
    let mut gone = Vec::new();
    for dir in dirs {
        for entry in dir.list()? {
            let (FileName::Halt { epoch } | FileName::HaltAt { epoch }) =
                (match FileName::parse(&entry.name) {
                    Some(name) => name,
                    None => continue,
                })
            else {
                continue;
            };
            dir.remove(&entry.name)?;
            dir.sync()?;
            gone.push(epoch);
        }
    }
    gone.sort_unstable();
    gone.dedup();
    Ok(gone)
}
