//! Halt: a run of a job is asked from outside to take a checkpoint and end.
//!
//! How: the request is a small file beside the run's claim, named by its epoch. Whoever claimed a directory looks there:
//! the lead in the placed ones, each node in its own. So it needs nothing that a job does not have anyway, with agents or
//! without, on one machine or many. The control thread finds the file and tells the ranks of its node, which agree on it
//! as they do on every wish.
//!
//! ```text
//! orcheck halt ─file─▶ directory ◀─looks─ control thread ─word of the index─▶ ranks ─agree─▶ checkpoint, end
//! ```
//!
//! Invariants:
//! 1. A request is for one epoch. The next run of the job is not stopped by it.
//! 2. That the file is there is all that counts; its text is for people.
//! 3. A look is for one name in one directory, and there are at least [`EVERY`] between two.
//! 4. A directory that cannot be looked at asks for nothing, and takes nothing back.
//!
//! Survives: a request that is withdrawn before the ranks agreed on it; a run that dies after it was asked.
//!
//! Not here: the agreement (`client::trigger`), whether there is a further run (`cli`, `run`).

use crate::epoch::{highest_claim, is_locked, read_claim};
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::names::FileName;
use orcheck_format::record::Claim;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::dir::Dir;
use orcheck_io::file::{read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks: a file system with ten thousand nodes notices nothing of them.
pub const EVERY: Duration = Duration::from_secs(2);
/// Largest text of a request that is shown.
const TEXT_LIMIT_BYTES: u64 = 4096;

fn name_of(epoch: u64) -> String {
    FileName::Halt { epoch }.to_string()
}

/// Looks for requests, in one directory after the other.
pub struct Watch {
    name: String,
    dirs: Vec<(Arc<dyn Dir>, bool)>,
    next: usize,
    looked: Duration,
}

impl Watch {
    /// For the run of this epoch, which claimed `dirs`.
    #[must_use]
    pub fn new(dirs: Vec<Arc<dyn Dir>>, epoch: u64, now: Duration) -> Self {
        Self {
            name: name_of(epoch),
            dirs: dirs.into_iter().map(|dir| (dir, false)).collect(),
            next: 0,
            looked: now,
        }
    }

    /// Whether the run is asked to halt, when a look changed that.
    pub fn look(&mut self, now: Duration) -> Option<bool> {
        if now.saturating_sub(self.looked) < EVERY || self.dirs.is_empty() {
            return None;
        }
        self.looked = now;
        let before = self.is_asked();
        let at = self.next % self.dirs.len();
        self.next = at + 1;
        let (dir, asked) = &mut self.dirs[at];
        let found = match off(Switch::HaltOfEpoch) {
            false => dir.holds(&self.name),
            true => requests(std::slice::from_ref(dir)).map(|found| !found.is_empty()),
        };
        *asked = found.unwrap_or(*asked);
        let after = self.is_asked();
        (before != after).then_some(after)
    }

    fn is_asked(&self) -> bool {
        self.dirs.iter().any(|(_, asked)| *asked)
    }
}

/// The newest run of a job, as its directories tell.
pub struct Run {
    /// Its claim.
    pub claim: Claim,
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
    pub fn newest(dirs: &[Arc<dyn Dir>]) -> Result<Option<Self>> {
        let counter = highest_claim(dirs)?;
        let mut newest: Option<Self> = None;
        let mut failed = None;
        for dir in dirs {
            let claim = match read_claim(dir.as_ref(), counter) {
                Ok(claim) => claim,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let lives = is_locked(dir.as_ref(), counter)?;
            let run = newest.get_or_insert(Self {
                claim,
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

    /// Asks it to take a checkpoint and end; what could not be written where.
    ///
    /// # Errors
    /// What the first directory says, when none takes the request.
    pub fn ask(&self, text: &str) -> Result<Vec<String>> {
        let name = name_of(self.claim.epoch.counter);
        let mut failed: Vec<Error> = Vec::new();
        for dir in &self.dirs {
            failed.extend(write_small(dir.as_ref(), &name, text.as_bytes()).err());
        }
        if failed.len() == self.dirs.len() && !failed.is_empty() {
            return Err(failed.swap_remove(0).at("asking the run to halt"));
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

/// Takes all requests back; the epochs that they were for.
///
/// # Errors
/// What a directory says.
pub fn withdraw(dirs: &[Arc<dyn Dir>]) -> Result<Vec<u64>> {
    let mut gone = Vec::new();
    for dir in dirs {
        for (epoch, _) in requests(std::slice::from_ref(dir))? {
            dir.remove(&name_of(epoch))?;
            dir.sync()?;
            gone.push(epoch);
        }
    }
    gone.sort_unstable();
    gone.dedup();
    Ok(gone)
}
