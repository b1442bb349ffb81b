//! Makes the files of one step one checkpoint: they are kept, copied to other nodes and restored
//! together, or not at all.
//!
//! | file | what |
//! | --- | --- |
//! | `pattern.rs` | the step in a path |
//! | `gathered.rs` | which files were written, and their steps |
//! | `decide.rs` | which set is complete |
//! | `taking.rs` | files as regions of a checkpoint |
//! | `back.rs` | puts the files of the newest set back |
//! | `marks.rs` | what is remembered in the backing directory |
//!
//! How: each mount is a rank of a job. One thread tells the other mounts what was written here, and
//! all decide from the same reports. When a set is complete, they take a checkpoint of its files,
//! read through the mount. Everything else (levels, copies on other nodes, pruning, restart) is the
//! job's, with its options.
//!
//! Invariants:
//! 1. A set becomes a checkpoint only if it is complete over all nodes.
//! 2. What became of a set is reported: to whoever runs the mount, and by the exit code.
//! 3. Programs never wait for a set.
//!
//! Faults survived: the death of programs, mounts and nodes; files that change while they are taken
//! (the set is lost, and reported).
//!
//! Not here: when files become durable in the backing directory (`lane.rs`).

mod back;
mod decide;
mod gathered;
mod marks;
mod pattern;
mod taking;

pub use back::Back;
pub use gathered::Shared;
pub use pattern::Pattern;

use crate::lane::Tell;
use crate::tree::Tree;
use decide::{Complete, Key, List, Next, decide};
use gathered::Gathered;
use marks::Marks;
use orcheck_client::{EventKind, Meeting, Membership};
use orcheck_format::{Error, Result};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taking::{Bytes, RECORD, Record};

/// Between two looks at what was written.
const POLL: Duration = Duration::from_millis(50);
/// For the other mounts to start.
const MEET: Duration = Duration::from_secs(300);
/// The longest silence of another mount: it may wait for room for a set.
const PATIENCE: Duration = Duration::from_secs(3600);
/// For the last sets to become safe at the end.
const CLOSE: Duration = Duration::from_secs(3600);
/// The longest list.
const LIST_BYTES: u64 = 16 << 20;
/// Attempts to take a set: the first ones may report what became of earlier ones.
const ATTEMPTS: u32 = 4;

/// How files are grouped.
#[derive(Debug, Clone)]
pub struct SetOptions {
    /// The job whose checkpoints the sets are.
    pub job: String,
    /// Options of the job, as the library takes them.
    pub options: Option<String>,
    /// The files of a set.
    pub patterns: Vec<Pattern>,
    /// The file whose closing completes a set.
    pub end: Option<Pattern>,
    /// The number of files of a set, of all nodes.
    pub count: Option<u64>,
    /// The file by which the mounts of several nodes meet, the number of this one, and how many
    /// there are.
    pub meeting: Option<(PathBuf, u32, u32)>,
}

/// Steps that are safe, or lost and why.
type Events = Mutex<Vec<(u64, Option<String>)>>;

/// What became of the sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetCounts {
    /// Sets that became checkpoints.
    pub safe: u64,
    /// Sets that did not.
    pub lost: u64,
    /// Sets that lack files at the end.
    pub incomplete: u64,
    /// Sets were not taken until the end.
    pub gave_up: bool,
}

/// The sets of a mount, before they are taken.
pub struct Sets {
    gathered: Shared,
    session: Membership,
    meeting: Meeting,
    complete: Complete,
    /// The last step, of this mount or an earlier one.
    last: Option<u64>,
    /// The number of files of each list.
    lists: BTreeMap<u64, u64>,
    /// Regions of the last set.
    regions: Vec<String>,
    /// Steps that were taken, and are neither safe nor lost yet.
    awaited: BTreeSet<u64>,
    events: Arc<Events>,
    counts: SetCounts,
}

impl Sets {
    /// Meets the other mounts, opens the job, and puts the files of the newest set back.
    ///
    /// # Errors
    /// Those of the job and its options, of the meeting, and of the backing directory.
    pub fn open(
        options: &SetOptions,
        backing: &Path,
        tell: Tell,
        points: &Failpoints,
    ) -> Result<(Sets, Back)> {
        let complete = check(options)?;
        let (node, nodes) = match &options.meeting {
            Some((_, node, nodes)) => (*node, *nodes),
            None => (0, 1),
        };
        let marks = Marks::open(backing, (node, nodes), points);
        let marks = marks.map_err(|errno| rustix_error(errno, backing.display()))?;
        let meeting = match &options.meeting {
            Some((file, node, nodes)) => Meeting::join(file, (*node, *nodes), MEET, PATIENCE)?,
            None => Meeting::alone(),
        };
        let collective = Box::new(meeting.clone());
        let mut session = Membership::open(&options.job, collective, options.options.as_deref())?;
        if matches!(session, Membership::Disabled(_)) {
            return Err(Error::invalid("the options turn checkpoints off")
                .next("set enabled = true, or mount without --job"));
        }
        let marks = Arc::new(marks);
        let back = back::bring_back(&mut session, &marks)
            .map_err(|error| error.at(format!("files of job '{}'", options.job)))?;
        let events = Arc::new(Events::default());
        let noted = Arc::clone(&events);
        session.watch(Some(Box::new(move |event| {
            let lost = match event.kind {
                EventKind::Safe => None,
                EventKind::Lost => {
                    let why = event.error.as_ref().map_or("", |error| error.message());
                    Some(format!("level {}: {why}", event.level))
                }
            };
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.push((event.step.0, lost));
        })));
        let regions = back.regions.clone();
        let gathered = Gathered::new(options.patterns.clone(), options.end.clone(), marks, tell);
        let sets = Sets {
            gathered: Arc::new(gathered),
            session,
            meeting,
            complete,
            last: back.step,
            lists: BTreeMap::new(),
            regions,
            awaited: BTreeSet::new(),
            events,
            counts: SetCounts::default(),
        };
        Ok((sets, back))
    }

    /// What the calls of programs report to.
    #[must_use]
    pub fn gathered(&self) -> Shared {
        Arc::clone(&self.gathered)
    }

    /// Takes sets until all mounts are over.
    #[must_use]
    pub fn run(mut self, tree: &Arc<Tree>) -> SetCounts {
        let ended = self.take_all(tree);
        if let Err(error) = &ended {
            self.counts.gave_up = true;
            let text = format!("sets are not kept any more: {}", error.message());
            self.gathered.tell(&text);
        }
        let Sets { session, .. } = self;
        let told = match ended {
            Ok(()) => {
                let (closed, mut told) = session.close_telling(CLOSE);
                told.extend(closed.err().map(|error| error.message().to_owned()));
                told
            }
            Err(_) => {
                session.abandon();
                Vec::new()
            }
        };
        told.iter().for_each(|text| self.gathered.tell(text));
        let mut rest = Outcomes {
            gathered: &self.gathered,
            awaited: &mut self.awaited,
            counts: &mut self.counts,
        };
        rest.note(&self.events);
        self.counts.lost += self.awaited.len() as u64;
        self.counts.incomplete = self.gathered.tell_incomplete();
        self.counts
    }

    fn take_all(&mut self, tree: &Arc<Tree>) -> Result<()> {
        loop {
            self.session.poll_outcomes();
            self.note_outcomes();
            if self.gathered.is_cut() {
                return Err(Error::unavailable(
                    "a signal ended the waiting for other mounts",
                ));
            }
            let lists = self.read_lists(tree);
            let reports = exchange(&self.meeting, &self.gathered.report(lists))?;
            let lists: Vec<&List> = reports.iter().flat_map(|one| &one.lists).collect();
            for list in &lists {
                self.lists.insert(list.step, list.files.len() as u64);
                self.gathered.adopt(list);
            }
            if !lists.is_empty() {
                // What they name counts from the next report on.
                continue;
            }
            match decide(&reports, self.complete, &self.lists, self.last) {
                Next::Wait => self.gathered.wait(POLL),
                Next::Take(set, step) => self.take(set, step, tree)?,
                Next::Leave(step, last) => {
                    self.counts.lost += 1;
                    self.gathered.end_taking(Key::Step(step));
                    self.gathered.tell(&format!(
                        "the set of step {step} is not kept: the last one was of step {last}, and \
                         steps have to grow"
                    ));
                }
                Next::End => return Ok(()),
            }
        }
    }

    /// Takes a set as the checkpoint of a step.
    fn take(&mut self, set: Key, step: u64, tree: &Arc<Tree>) -> Result<()> {
        let ready = match self.gathered.begin_to_take(set) {
            None => Ready::Again,
            Some(paths) => self.protect(&paths, tree),
        };
        let ready = self.agree(&ready)?;
        let taken = match ready {
            Ready::Again => {
                self.gathered.stop_taking();
                return Ok(());
            }
            Ready::Refused(why) => Err(Error::invalid(why)),
            Ready::Yes => self.checkpoint(step),
        };
        match taken {
            Ok(()) => {
                self.last = Some(step);
                self.awaited.insert(step);
            }
            Err(error) => {
                self.counts.lost += 1;
                let text = error.message();
                self.gathered
                    .tell(&format!("the set of step {step} is lost: {text}"));
            }
        }
        self.gathered.end_taking(set);
        if let Key::Step(step) = set {
            self.lists.remove(&step);
        }
        Ok(())
    }

    /// What the most hesitant node says.
    fn agree(&mut self, mine: &Ready) -> Result<Ready> {
        let mut agreed = Ready::Yes;
        for one in exchange(&self.meeting, mine)? {
            match (&agreed, &one) {
                (Ready::Refused(_), _) | (_, Ready::Yes) => {}
                _ => agreed = one,
            }
        }
        Ok(agreed)
    }

    fn checkpoint(&mut self, step: u64) -> Result<()> {
        let mut taken = self.session.checkpoint(step);
        for _ in 1..ATTEMPTS {
            // A checkpoint that returns the loss of an earlier one was not staged.
            if taken.is_ok() {
                break;
            }
            taken = self.session.checkpoint(step);
        }
        taken
    }

    /// Protects the files of a set in place of those of the last one.
    fn protect(&mut self, paths: &[PathBuf], tree: &Tree) -> Ready {
        let protected = self.protect_files(paths, tree);
        protected.map_or_else(
            |error| Ready::Refused(error.message().to_owned()),
            |()| Ready::Yes,
        )
    }

    fn protect_files(&mut self, paths: &[PathBuf], tree: &Tree) -> Result<()> {
        for name in self.regions.drain(..) {
            self.session.unprotect(&name)?;
        }
        let mut record = Record::default();
        for path in paths {
            let (entry, file) = taking::open(path, tree, &self.gathered)?;
            let name = entry.path.clone();
            self.session.protect_codec(&name, Box::new(file), 0)?;
            self.regions.push(name);
            record.files.push(entry);
        }
        let bytes = Box::new(Bytes::of(&record)?);
        self.session.protect_codec(RECORD, bytes, 0)
    }

    fn note_outcomes(&mut self) {
        let mut outcomes = Outcomes {
            gathered: &self.gathered,
            awaited: &mut self.awaited,
            counts: &mut self.counts,
        };
        outcomes.note(&self.events);
    }

    /// The lists that programs have closed.
    fn read_lists(&self, tree: &Tree) -> Vec<List> {
        let mut lists = Vec::new();
        for path in self.gathered.take_lists() {
            match read_list(&path, tree, &self.gathered) {
                Ok(list) => lists.push(list),
                Err(error) => self.gathered.tell(&format!(
                    "{}: {}; its step is not kept",
                    path.display(),
                    error.message()
                )),
            }
        }
        lists
    }
}

/// Whether a node can take a set.
#[derive(Clone, Serialize, Deserialize)]
enum Ready {
    Yes,
    /// A program has begun to write one of its files: not yet.
    Again,
    /// It cannot be taken.
    Refused(String),
}

/// Gives what each node says to all of them.
fn exchange<T: Serialize + DeserializeOwned>(meeting: &Meeting, mine: &T) -> Result<Vec<T>> {
    let mine = serde_json::to_vec(mine).map_err(|error| Error::internal(error.to_string()))?;
    let all = meeting.exchange(&mine)?;
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
    let all: std::result::Result<_, _> = all.iter().map(read).collect();
    all.map_err(|error| Error::corrupt(format!("what another mount says: {error}")))
}

struct Outcomes<'a> {
    gathered: &'a Gathered,
    awaited: &'a mut BTreeSet<u64>,
    counts: &'a mut SetCounts,
}

impl Outcomes<'_> {
    /// Counts and reports what became of sets.
    fn note(&mut self, events: &Events) {
        let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
        for (step, lost) in events {
            match lost {
                None => {
                    // The first level at which it is safe counts.
                    self.counts.safe += u64::from(self.awaited.remove(&step));
                    if let Err(errno) = self.gathered.marks().done(step) {
                        let text = format!("the mark of step {step} stays: {errno}");
                        self.gathered.tell(&text);
                    }
                }
                Some(why) => {
                    let text = format!("the set of step {step} is lost: {why}");
                    self.gathered.tell(&text);
                }
            }
        }
    }
}

/// How a set is complete, after a look at the options.
fn check(options: &SetOptions) -> Result<Complete> {
    if let Some(end) = &options.end
        && options
            .patterns
            .iter()
            .any(|one| one.has_step() != end.has_step())
    {
        return Err(Error::invalid(
            "--set and --set-end: both have a {step}, or none has",
        ));
    }
    Ok(match (options.count, &options.end) {
        (Some(files), _) => Complete::Count(files),
        (None, Some(_)) => Complete::Ended,
        (None, None) => Complete::Listed,
    })
}

/// Reads a list: `step N`, then a path a line, from the directory of the list.
fn read_list(path: &Path, tree: &Tree, gathered: &Shared) -> Result<List> {
    let bytes = taking::read_whole(path, tree, gathered, LIST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid("expected text"))?;
    let above = path.parent().unwrap_or(Path::new(""));
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let step = lines.next().and_then(|line| line.strip_prefix("step "));
    let step = step.and_then(|number| number.trim().parse().ok());
    let step = step.ok_or_else(|| Error::invalid("expected 'step N' in its first line"))?;
    let mut files = Vec::new();
    for line in lines {
        let below = Path::new(line);
        let plain = |part: Component| matches!(part, Component::Normal(_));
        if !below.components().all(plain) {
            let text = format!("'{line}': expected a path below the directory of the list");
            return Err(Error::invalid(text));
        }
        let whole = above.join(below);
        let whole = whole
            .to_str()
            .ok_or_else(|| Error::invalid("a path is not UTF-8"))?;
        files.push(whole.to_owned());
    }
    files.sort();
    files.dedup();
    match files.is_empty() {
        true => Err(Error::invalid("it names no file")),
        false => Ok(List { step, files }),
    }
}
