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
//! | `placed.rs` | when the marks of a step can go |
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
mod placed;
mod taking;

pub use back::Back;
pub use gathered::Shared;
pub use marks::{HOME, parent_of};
pub use pattern::Pattern;
pub use taking::{Entry, RECORD, Record};

use crate::lane::{Lane, Tell};
use crate::stage::BOOT_ID;
use crate::tree::Tree;
use decide::{Complete, Key, List, Next, decide};
use gathered::{Gathered, Inode};
use marks::Marks;
use orcheck_client::{Collective, EventKind, Meeting, Membership};
use orcheck_format::{Error, JobName, Result};
use orcheck_io::clock::{Clock, Deadline, SystemClock};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::read_text;
use placed::Placed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taking::Bytes;

/// Between two looks at what was written.
const POLL: Duration = Duration::from_millis(50);
/// For the other mounts to start.
const MEET: Duration = Duration::from_secs(300);
/// The longest silence of another mount: it may wait for room for a set.
const PATIENCE: Duration = Duration::from_secs(3600);
/// For the last sets to become safe at the end.
const CLOSE: Duration = Duration::from_secs(600);
/// The same, if whoever runs the mount does not want to wait.
const CUT: Duration = Duration::from_secs(5);
/// The longest list.
const LIST_BYTES: u64 = 16 << 20;

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
    /// Ends the waiting for the other mounts.
    pub stop: fn() -> bool,
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
    /// The mount stopped taking sets before it ended.
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
    /// Files that are protected now.
    regions: Vec<String>,
    /// Steps that were taken, and are neither safe nor lost yet.
    awaited: BTreeSet<u64>,
    /// Steps with marks whose sets were taken, or refused.
    placed: Placed,
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
        // It becomes the name of a directory.
        JobName::new(&options.job)?;
        let (node, nodes) = match &options.meeting {
            Some((_, node, nodes)) => (*node, *nodes),
            None => (0, 1),
        };
        let boot_id = read_text(Path::new(BOOT_ID), 64)?;
        let marks = Marks::open(backing, &options.job, (node, nodes), &boot_id, points);
        let marks = marks.map_err(|errno| rustix_error(errno, backing.display()))?;
        let marks = Arc::new(marks.ok_or_else(|| {
            let job = &options.job;
            Error::unavailable(format!(
                "another mount of {} has job '{job}' and is node {node}",
                backing.display()
            ))
            .next("end that mount, or give each mount a number of its own (--node)")
        })?);
        let opened = open_job(options, &marks, &tell).and_then(|opened| {
            let settled = marks.settled(&boot_id);
            settled.map_err(|errno| rustix_error(errno, backing.display()))?;
            Ok(opened)
        });
        let (meeting, mut session, back) = opened.inspect_err(|_| marks.undo())?;
        let events = Arc::new(Events::default());
        let (noted, known) = (Arc::clone(&events), Arc::clone(&marks));
        session.watch(Some(Box::new(move |event| {
            // Its files are whole, even if it is lost. If this fails, they may be moved aside.
            let _ = known.decided(event.step.0);
            let why = event.error.as_ref().map_or("", |error| error.message());
            let lost = (event.kind == EventKind::Lost).then(|| why.to_owned());
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.push((event.step.0, lost));
        })));
        let patterns = (options.patterns.clone(), options.end.clone());
        let gathered = Gathered::new(patterns, back.step, marks, tell);
        let sets = Sets {
            gathered: Arc::new(gathered),
            session,
            meeting,
            complete,
            last: back.step,
            regions: Vec::new(),
            awaited: BTreeSet::new(),
            placed: Placed::default(),
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
    pub fn run(mut self, tree: &Tree, lane: &Lane) -> SetCounts {
        let ended = self.take_all(tree, lane);
        self.session.poll_outcomes();
        self.note_outcomes();
        if let Err(error) = &ended {
            self.counts.gave_up = true;
            self.gathered.give_up();
            let text = format!("no further sets will be kept: {}", error.message());
            self.gathered.tell(&text);
        }
        let most = self.wait_until_safe();
        self.tell_warnings();
        let Sets { session, .. } = self;
        let told = match ended {
            Ok(()) => {
                let (closed, mut told) = session.close_telling(most);
                told.extend(closed.err().map(|error| error.message().to_owned()));
                told
            }
            Err(_) => {
                session.abandon();
                Vec::new()
            }
        };
        let lost = note(&self.events, &mut self.awaited, &mut self.counts);
        told.iter()
            .chain(&lost)
            .for_each(|text| self.gathered.tell(text));
        for step in &self.awaited {
            let text = format!("the set of step {step} is not known to be safe");
            self.gathered.tell(&text);
        }
        self.counts.lost += self.awaited.len() as u64;
        self.counts.incomplete += self.gathered.tell_incomplete();
        self.counts
    }

    /// Waits until what was taken is safe or lost, unless a signal ends that; returns how long the
    /// other levels may take.
    fn wait_until_safe(&mut self) -> Duration {
        let deadline = Deadline::after(CLOSE);
        let over = |sets: &Sets| sets.awaited.is_empty() || sets.gathered.is_cut();
        while !self.counts.gave_up && !over(self) && !deadline.passed() {
            SystemClock.sleep(POLL);
            self.session.poll_outcomes();
            self.note_outcomes();
            self.tell_warnings();
        }
        match self.gathered.is_cut() {
            true => CUT,
            false => deadline.left().max(CUT),
        }
    }

    fn take_all(&mut self, tree: &Tree, lane: &Lane) -> Result<()> {
        loop {
            self.session.poll_outcomes();
            self.note_outcomes();
            self.tell_warnings();
            if self.gathered.is_cut() {
                return Err(Error::unavailable(
                    "a signal interrupted the wait for other mounts",
                ));
            }
            let lists = self.read_lists(tree);
            let marks = self.gathered.marks();
            let undurable = self.placed.undurable(tree, marks, &self.awaited);
            let mine = self.gathered.report(lists, undurable);
            let reports = exchange(&self.meeting, &mine)?;
            self.placed.forget(&reports, marks, lane);
            let mut found = false;
            for (rank, report) in reports.iter().enumerate() {
                for list in &report.lists {
                    let own = rank as u32 == self.meeting.rank().0;
                    self.gathered.adopt(list, own);
                    found = true;
                }
            }
            if found {
                // What they name counts from the next report on.
                continue;
            }
            let listed = self.gathered.listed();
            match decide(&reports, self.complete, &listed, self.last) {
                Next::Wait => self.gathered.wait(POLL),
                Next::Take(set, step) => self.take((set, step), &listed, tree)?,
                Next::End => return Ok(()),
            }
        }
    }

    /// Takes a set as the checkpoint of a step.
    fn take(
        &mut self,
        (set, step): (Key, u64),
        listed: &BTreeMap<u64, u64>,
        tree: &Tree,
    ) -> Result<()> {
        let files = self.gathered.begin_to_take(set);
        let ready = match &files {
            None => Ready::Again,
            Some(files) => self.protect(files, tree),
        };
        let all = exchange(&self.meeting, &ready)?;
        let taken = match agreed(&all, set, (self.complete, listed)) {
            Ready::Again => {
                self.unprotect()?;
                self.gathered.stop_taking(set);
                self.gathered.wait(POLL);
                return Ok(());
            }
            Ready::Refused(why) => Err(Error::invalid(why)),
            Ready::Yes(_) => self.checkpoint(step),
        };
        self.unprotect()?;
        // Files with fixed names have no marks.
        if let Key::Step(step) = set {
            self.placed.add(step, self.gathered.files_of(set));
        }
        if let Err(error) = &taken {
            self.counts.lost += 1;
            let text = error.message();
            self.gathered
                .tell(&format!("the set of step {step} is lost: {text}"));
            let spoiled = |(_, inode): &(_, Inode)| self.gathered.is_spoiled(*inode);
            // Breaks if: this is not asked; half of a file would count as whole.
            if files.is_some_and(|files| !files.iter().any(spoiled)) {
                let _ = self.gathered.marks().decided(step);
            }
        } else {
            self.last = Some(step);
            self.awaited.insert(step);
        }
        let taken = taken.ok().map(|()| step);
        self.counts.incomplete += self.gathered.end_taking(set, taken);
        Ok(())
    }

    fn checkpoint(&mut self, step: u64) -> Result<()> {
        let taken = self.session.checkpoint(step);
        match taken {
            // It may be the loss of an earlier set, which is returned once.
            Err(_) => self.session.checkpoint(step),
            Ok(()) => Ok(()),
        }
    }

    /// Protects the files of a set.
    fn protect(&mut self, files: &[(PathBuf, (u64, u64))], tree: &Tree) -> Ready {
        match self.protect_files(files, tree) {
            Ok(true) => Ready::Yes(self.regions.clone()),
            Ok(false) => Ready::Again,
            Err(error) => Ready::Refused(error.message().to_owned()),
        }
    }

    fn protect_files(&mut self, files: &[(PathBuf, (u64, u64))], tree: &Tree) -> Result<bool> {
        let mut record = Record::default();
        for (path, inode) in files {
            let opened = taking::open((path, *inode), tree, &self.gathered)?;
            let Some((entry, file)) = opened else {
                return Ok(false);
            };
            self.session.protect_codec(&entry.path, Box::new(file), 0)?;
            self.regions.push(entry.path.clone());
            record.files.push(entry);
        }
        let bytes = Box::new(Bytes::of(&record)?);
        self.session.protect_codec(RECORD, bytes, 0)?;
        Ok(true)
    }

    /// Lets the files go that were protected.
    fn unprotect(&mut self) -> Result<()> {
        for name in self.regions.drain(..) {
            self.session.unprotect(&name)?;
        }
        Ok(())
    }

    fn tell_warnings(&mut self) {
        while let Some(warning) = self.session.take_warning() {
            self.gathered.tell(&warning);
        }
    }

    fn note_outcomes(&mut self) {
        let lost = note(&self.events, &mut self.awaited, &mut self.counts);
        lost.iter().for_each(|text| self.gathered.tell(text));
    }

    /// The lists that programs have closed.
    fn read_lists(&mut self, tree: &Tree) -> Vec<List> {
        let mut lists = Vec::new();
        for path in self.gathered.take_lists() {
            match read_list(&path, tree, &self.gathered) {
                Ok(list) => lists.push(list),
                Err(error) => {
                    self.counts.lost += 1;
                    let (path, text) = (path.display(), error.message());
                    self.gathered
                        .tell(&format!("{path}: {text}; its step is not kept"));
                }
            }
        }
        lists
    }
}

/// Meets the other mounts, opens the job, and puts files back.
fn open_job(
    options: &SetOptions,
    marks: &Arc<Marks>,
    tell: &Tell,
) -> Result<(Meeting, Membership, Back)> {
    let meeting = match &options.meeting {
        Some((file, node, nodes)) => {
            let waits = || {
                let file = file.display();
                tell(&format!(
                    "waiting for the mounts of all {nodes} nodes to come to {file}"
                ));
            };
            Meeting::join(
                file,
                (*node, *nodes),
                (MEET, PATIENCE),
                &waits,
                options.stop,
            )?
        }
        None => Meeting::alone(),
    };
    let collective = Box::new(meeting.clone());
    let mut session = Membership::open(&options.job, collective, options.options.as_deref())?;
    if matches!(session, Membership::Disabled(_)) {
        return Err(Error::invalid("the options turn checkpoints off")
            .next("give a directory: --options \"node_dir = '/local/ssd'\""));
    }
    // Files that are in their place are not restored.
    session.want_part();
    let patterns: Vec<&Pattern> = options.patterns.iter().chain(&options.end).collect();
    let moved = |steps: &Vec<u64>| exchange(&meeting, steps);
    let back = back::bring_back(&mut session, marks, &patterns, &moved)
        .map_err(|error| error.at(format!("files of job '{}'", options.job)))?;
    // Breaks if: one is mounted earlier; if they share a directory, another node could move aside
    // what its programs write.
    exchange(&meeting, &())?;
    while let Some(warning) = session.take_warning() {
        tell(&warning);
    }
    Ok((meeting, session, back))
}

/// Whether a node can take a set.
#[derive(Clone, Serialize, Deserialize)]
enum Ready {
    /// With these files.
    Yes(Vec<String>),
    /// A program has begun to write one of its files: not yet.
    Again,
    /// It cannot be taken.
    Refused(String),
}

/// What the most hesitant node says; all of them see the files of all.
fn agreed(all: &[Ready], set: Key, (complete, listed): (Complete, &BTreeMap<u64, u64>)) -> Ready {
    let mut files = BTreeSet::new();
    let mut agreed = Ready::Yes(Vec::new());
    for one in all {
        match (&agreed, one) {
            (Ready::Refused(_), _) => {}
            (_, Ready::Yes(more)) => {
                // Two nodes that write one file would both restore it.
                if let Some(twice) = more.iter().find(|path| !files.insert(path.as_str())) {
                    let text = format!("{twice}: it was written on two nodes");
                    return Ready::Refused(text);
                }
            }
            _ => agreed = one.clone(),
        }
    }
    let least = match (set, complete) {
        (Key::Step(step), _) if listed.contains_key(&step) => listed.get(&step).copied(),
        (_, Complete::Count(files)) => Some(files),
        _ => Some(1),
    };
    // Breaks if: this is not asked; one may have been removed since the decision.
    let lacks = least.is_some_and(|least| (files.len() as u64) < least);
    match agreed {
        Ready::Yes(_) if lacks => Ready::Again,
        other => other,
    }
}

/// Gives what each node says to all of them.
fn exchange<T: Serialize + DeserializeOwned>(meeting: &Meeting, mine: &T) -> Result<Vec<T>> {
    let mine = serde_json::to_vec(mine).map_err(|error| Error::internal(error.to_string()))?;
    let all = meeting.exchange(&mine)?;
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
    let all: std::result::Result<_, _> = all.iter().map(read).collect();
    all.map_err(|error| Error::corrupt(format!("a message from another mount: {error}")))
}

/// Counts what became of sets; returns why some are lost.
fn note(events: &Events, awaited: &mut BTreeSet<u64>, counts: &mut SetCounts) -> Vec<String> {
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    let mut texts = Vec::new();
    for (step, lost) in events {
        let first = awaited.remove(&step);
        match lost {
            // The first level at which it is safe counts.
            None => counts.safe += u64::from(first),
            // It may be safe at another level: a loss is a loss.
            Some(why) => {
                counts.lost += 1;
                texts.push(format!("the set of step {step}: {why}"));
            }
        }
    }
    texts
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
            "--set and --set-end: either both contain {step}, or neither does",
        ));
    }
    if !options.patterns.is_empty() && options.count.is_none() && options.end.is_none() {
        return Err(Error::invalid("--set does not say when a set is complete")
            .next("give --set-count or --set-end; lists (.orcheck-set) need no --set"));
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
    if !gathered.is_whole(path) {
        return Err(Error::invalid("it was written again while it was read"));
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid("expected text"))?;
    let above = path.parent().unwrap_or(Path::new(""));
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let step = lines.next().and_then(|line| line.strip_prefix("step "));
    let step = step.and_then(|number| number.trim().parse().ok());
    let step = step.ok_or_else(|| Error::invalid("expected 'step N' in its first line"))?;
    let mut files = Vec::new();
    for line in lines {
        let below = Path::new(line);
        let plain = |part: &Component| matches!(part, Component::Normal(_));
        let parts = below.components().filter(|part| *part != Component::CurDir);
        let below: PathBuf = parts.clone().collect();
        if !parts.clone().all(|part| plain(&part)) || above.join(&below).starts_with(HOME) {
            let text = format!("'{line}': expected a path below the directory of the list");
            return Err(Error::invalid(text));
        }
        let whole = above.join(&below);
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
