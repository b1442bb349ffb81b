//! Halt: a run of a job is asked from outside to take a checkpoint and end.
//!
//! How: the request is a small file beside the run's claim, named by its epoch. Whoever claimed a directory looks there:
//! the lead in the placed ones, each node in its own. So it needs nothing that a job does not have anyway, with agents or
//! without, on one machine or many. The control thread finds the file and tells the ranks of its node, which agree on it
//! as they do on every wish.
//!
//! A request for later (at a time, or after some checkpoints) is another file, under a name that 0.1.0 does not know: there
//! the mere existence of the first one ends the run at once.
//!
//! ```text
//! orcheck halt ─file─▶ directory ◀─looks─ control thread ─word of the index─▶ ranks ─agree─▶ checkpoint, end
//! ```
//!
//! Invariants:
//! 1. A request is for one epoch. The next run of the job is not stopped by it; but a time that is still to come when that run
//!    begins applies to it too: it then writes the request again under its own epoch.
//! 2. Of a request to halt at once, that the file is there is all that counts; its text is for people. Of one for later the
//!    first line counts; a file whose first line says nothing known asks for nothing, and callers are told.
//! 3. A look is for two names in one directory, and there are at least [`EVERY`] between two looks. Only when the run begins
//!    all its directories are looked at, and listed.
//! 4. A directory that cannot be looked at asks for nothing, and takes nothing back.
//!
//! Survives: a request that is withdrawn before the ranks agreed on it; a run that dies after it was asked; a directory that
//! takes no file, or cannot be read for a while, when a run begins before the time to halt at.
//!
//! Not here: the agreement (`client::trigger`), whether there is a further run (`cli`, `run`).

use crate::directory::epoch::{describe_if, highest_claim, is_locked, look_at_claim};
use crate::encoding::Trust;
use crate::node::HaltRequest;
use orcheck_format::disk::{Claim, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Dir, read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks: a file system with ten thousand nodes notices nothing of them.
pub const EVERY: Duration = Duration::from_secs(2);
/// Largest text of a request that is shown.
const TEXT_LIMIT_BYTES: u64 = 4096;

fn name_of(epoch: u64) -> String {
    FileName::Halt { epoch }.to_string()
}

fn later_name_of(epoch: u64) -> String {
    FileName::HaltAt { epoch }.to_string()
}

/// When a run is to halt that is not to halt at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this time, milliseconds since 1970.
    At(u64),
    /// After this many further checkpoints, at least one; counted by the run from when it sees the request.
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

/// What one directory asks for.
#[derive(Debug, Default, Clone, Copy)]
struct Wish {
    now: bool,
    later: Option<When>,
    /// Whether what an earlier run was asked for has been seen to.
    carried: bool,
}

/// Looks for requests, in one directory after the other.
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
    /// For the run of this epoch, which claimed `dirs` and begins now, at the time `unix_ms`.
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

    /// What the run is asked for, when a look or the time, `unix_ms`, changed that.
    pub fn look(&mut self, now: Duration, unix_ms: u64) -> Option<HaltRequest> {
        if !self.begun {
            self.begun = true;
            // Breaks if: it waits for its turn; the first commit of the run removes what is of earlier ones.
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

    /// The earliest of what the directories ask for.
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

/// What [`carry_over`] found.
enum Carried {
    /// Nothing more is to be done: this asks, under the name of the run's own epoch.
    Settled(Option<When>),
    /// This asks, but could not be written under that name yet.
    Pending(Option<When>),
    /// The directory does not say now.
    Unknown,
}

/// Writes a time to halt at that an earlier run was asked for again under this epoch, where it is later than `began`, and removes what
/// asked that run.
fn carry_over(dir: &dyn Dir, epoch: u64, began_unix_ms: u64) -> Carried {
    // Breaks if: this is left to a supervisor; a program restarted by other means would ignore the time.
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
    // A time that is over was heard or missed; a count was for that run.
    let when = when.filter(|when| matches!(when, When::At(at) if *at > began_unix_ms));
    if when.is_none() {
        return Carried::Settled(None);
    }
    if write_small(dir, &later_name_of(epoch), &text).is_err() {
        return Carried::Pending(when);
    }
    // Where it stays nobody minds: the next run finds this one's.
    let _ = dir.remove(&name);
    Carried::Settled(when)
}

/// The newest run of a job, as its directories tell.
pub struct Run {
    /// Its claim.
    pub claim: Claim,
    /// Whether that is believed.
    believed: bool,
    /// Whether it is there: it holds the lock of its claim.
    pub lives: bool,
    /// Directories that it claimed.
    dirs: Vec<Arc<dyn Dir>>,
}

impl Run {
    /// The run that claimed the highest epoch in `dirs`; `None` where nobody ever claimed one.
    ///
    /// # Errors
    /// What the directories say; Corrupt for a claim that no directory has whole.
    pub fn newest(dirs: &[Arc<dyn Dir>], trust: &Trust) -> Result<Option<Self>> {
        let counter = highest_claim(dirs)?;
        let mut newest: Option<Self> = None;
        let mut failed = None;
        for dir in dirs {
            let (claim, believed) = match look_at_claim(dir.as_ref(), counter, trust) {
                Ok((claim, true)) => (claim, true),
                // Its number is that of the file; the rest may be invented.
                Ok((mut claim, false)) => {
                    // Breaks if: its own number is taken; whoever can write there turns a request on another run.
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

    /// Who it is, in the user's words.
    #[must_use]
    pub fn describe(&self) -> String {
        describe_if(&self.claim, self.believed)
    }

    /// Asks it to take a checkpoint and end; what could not be written where.
    ///
    /// # Errors
    /// What the first directory says, when none takes the request.
    pub fn ask(&self, text: &str) -> Result<Vec<String>> {
        self.put(&name_of(self.claim.epoch.counter), text)
    }

    /// Asks it to take a checkpoint and end later on; what could not be written where. It takes the place of an earlier
    /// request for later. `text` is for people.
    ///
    /// # Errors
    /// What the first directory says, when none takes the request.
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
            // Breaks if: nothing is reported; a job that filled its disk could not be ended well.
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

/// What is asked for in these directories: epochs, each with the first text that can be read.
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

/// The requests for later in these directories: epochs, each with what it asks for (`None`: its first line says nothing
/// known).
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

/// Takes all requests back, those for later too; the epochs that they were for.
///
/// # Errors
/// What a directory says.
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
