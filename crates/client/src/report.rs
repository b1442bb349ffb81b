//! Reports to `orcheck run`, which supervises a program, the jobs that the program opened and
//! where, why it could not open one, and its warnings, because not every program reads them.
//!
//! How: rank 0 adds a note to the file named by [`VARIABLE`]. Without that variable, nothing
//! happens.
//!
//! Invariants:
//! 1. A note that cannot be written changes nothing for the program; `orcheck run` then knows only
//!    its own command line.
//! 2. One process reports at most [`MOST_WARNINGS`] warnings, each of at most [`LONGEST_BYTES`],
//!    and says when it reports no more: the supervisor reads them all.
//! 3. No number of warnings hides a loss. Of many losses some are reported, each with the number of
//!    steps lost so far: the first [`FIRST_LOSSES`], then whenever that number has doubled, and the
//!    last one when a session closes.
//!
//! Not here: the file (`orcheck-io`), what a supervisor concludes from notes (crate `cli`).

mod warnings;

pub(crate) use warnings::{Warnings, says};

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Epoch, Error, ErrorKind, JobName};
use orcheck_io::user::{drop_note, env_var, working_dir};
use orcheck_staging::client::is_served;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::options::{Options, Without};

/// The variable that holds the path of the file.
pub const VARIABLE: &str = "ORCHECK_RUN_REPORT";

/// Maximum number of warnings that one process reports; of what it did, and of failed restarts,
/// as many again.
const MOST_WARNINGS: u32 = 64;
/// Number of lost steps that are reported one by one.
const FIRST_LOSSES: u64 = 32;
/// Length of the longest of them; the rest of a text is left out.
const LONGEST_BYTES: usize = 2048;

/// Separates notes.
const BEGIN: &str = "\n[[note]]\n";
/// Follows a note; older versions read it as a comment.
const END: &str = "\n# end of note\n";

/// The losses of this process.
struct Losses {
    /// Number of steps.
    steps: u64,
    /// The newest one, if it was not reported.
    untold: Option<Note>,
}

impl Losses {
    /// Adds a loss; returned if it is to be reported now.
    fn add(&mut self, mut note: Note, is_first: bool) -> Option<Note> {
        self.steps += u64::from(is_first);
        note.lost_steps = self.steps;
        // Breaks if: all are reported; the supervisor would read without end.
        let is_due = self.steps <= FIRST_LOSSES || is_first && self.steps.is_power_of_two();
        match is_due {
            true => self.untold = None,
            false => self.untold = Some(note.clone()),
        }
        is_due.then_some(note)
    }
}

static WARNINGS_LEFT: AtomicU32 = AtomicU32::new(MOST_WARNINGS);
static TOLD_LEFT: AtomicU32 = AtomicU32::new(MOST_WARNINGS);
static FAILURES_LEFT: AtomicU32 = AtomicU32::new(MOST_WARNINGS);
static LOSSES: Mutex<Losses> = Mutex::new(Losses {
    steps: 0,
    untold: None,
});

/// One note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// The job that was opened; empty if none was.
    pub job: String,
    /// Why it has no checkpoints, if it has none.
    pub without: Option<String>,
    /// Counter of the epoch that it claimed.
    pub epoch: u64,
    /// Its directories of level `global`.
    pub global: Vec<PathBuf>,
    /// Its directory of level `node`, on the machine of rank 0.
    pub node_dir: Option<PathBuf>,
    /// Whether a trigger makes checkpoints due; older versions do not say.
    pub is_triggered: Option<bool>,
    /// Why a job could not be opened.
    pub refused: Option<String>,
    /// Whether the same command would fail again to open or restart, because its options or
    /// arguments are wrong, or a permission or key is missing.
    pub for_good: bool,
    /// A warning of an open job.
    pub warning: Option<String>,
    /// What an open job did, which is no reason to warn.
    pub told: Option<String>,
    /// Whether this process passes no more of such messages on.
    pub is_last: bool,
    /// Why a checkpoint of an open job is lost.
    pub lost: Option<String>,
    /// Number of steps that this process has lost so far; 0 from older versions.
    pub lost_steps: u64,
    /// That process.
    pub process: u32,
    /// Why an open job could not be restarted.
    pub failed: Option<String>,
    /// Whether the job was closed after the program was told to stop: it is not finished.
    pub stopped: bool,
}

#[derive(Serialize, Deserialize, Default)]
struct Notes {
    #[serde(default)]
    note: Vec<Note>,
}

/// Length of the part of a text whose notes are complete, in bytes: a note that is being added may
/// be read in part.
#[must_use]
pub fn whole_bytes(text: &[u8]) -> usize {
    let begins = |part: &[u8]| part == BEGIN.as_bytes();
    match text.ends_with(END.as_bytes()) {
        true => text.len(),
        false => (text.windows(BEGIN.len()).rposition(begins)).map_or(0, |at| at + 1),
    }
}

/// The notes in a text, in order, without incomplete ones.
#[must_use]
pub fn read(text: &str) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let next = rest.find(BEGIN).map_or(rest.len(), |at| at + 1);
        let (one, after) = rest.split_at(next);
        // Breaks if: all are read as one; a note cut off on a full disk would lose those of all
        // other processes.
        let whole = toml::from_str(one).map_or_else(|_| Vec::new(), |notes: Notes| notes.note);
        notes.extend(whole);
        rest = after;
    }
    notes
}

/// Reports that a job was opened, and whether a trigger makes its checkpoints due.
pub(crate) fn opened(job: &JobName, epoch: Epoch, options: &Options, is_triggered: bool) {
    tell(|| Note {
        job: job.as_str().to_owned(),
        epoch: epoch.counter,
        global: options.global.iter().map(|path| whole(path)).collect(),
        node_dir: options.node_dir.as_deref().map(whole),
        is_triggered: Some(is_triggered),
        ..Note::default()
    });
}

/// Reports that a job was opened without checkpoints.
pub(crate) fn disabled(job: &JobName, why: Without) {
    tell(|| Note {
        job: job.as_str().to_owned(),
        without: Some(why.to_string()),
        ..Note::default()
    });
}

/// Reports that a job could not be opened.
pub(crate) fn refused(error: &Error) {
    tell(|| Note {
        refused: Some(error.to_string()),
        for_good: matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
            || is_lacking(error),
        ..Note::default()
    });
}

/// Whether a permission or key is missing, which the same command will lack next time too.
fn is_lacking(error: &Error) -> bool {
    // Breaks if: one of them is left out; the command would be started again, only to be refused
    // again.
    let lacks = [
        Detail::Denied,
        Detail::OtherKey,
        Detail::Unauthenticated,
        Detail::UnknownKey,
    ];
    lacks.iter().any(|&lack| error.is(lack))
}

/// Reports a warning of an open job.
pub(crate) fn warned(job: &JobName, text: &str) {
    of_open_job((job, text), &WARNINGS_LEFT, |text| Note {
        warning: Some(text),
        ..Note::default()
    });
}

/// Reports what an open job did.
pub(crate) fn told(job: &JobName, text: &str) {
    of_open_job((job, text), &TOLD_LEFT, |text| Note {
        told: Some(text),
        ..Note::default()
    });
}

/// Reports that a checkpoint of an open job is lost; `is_first`: at no other level before.
pub(crate) fn lost(job: &JobName, text: &str, is_first: bool) {
    let note = Note {
        job: job.as_str().to_owned(),
        // As in `of_open_job`.
        refused: Some(String::new()),
        lost: Some(shortened(text)),
        process: std::process::id(),
        ..Note::default()
    };
    let mut losses = LOSSES.lock().unwrap_or_else(PoisonError::into_inner);
    let now = losses.add(note, is_first);
    drop(losses);
    if let Some(note) = now {
        tell(|| note);
    }
}

/// Reports how many checkpoints were lost in all, if that was not reported.
pub(crate) fn all_lost() {
    let mut losses = LOSSES.lock().unwrap_or_else(PoisonError::into_inner);
    let untold = losses.untold.take();
    drop(losses);
    if let Some(note) = untold {
        tell(|| note);
    }
}

/// Reports that an open job could not be restarted.
pub(crate) fn failed(job: &JobName, error: &Error) {
    of_open_job((job, error.message()), &FAILURES_LEFT, |text| Note {
        failed: Some(text),
        // A checkpoint that does not fit the program is not such a case: the program may take an
        // older one.
        for_good: is_lacking(error),
        ..Note::default()
    });
}

/// Reports that a job is closed whose program was told to stop.
pub(crate) fn stopped(job: &JobName) {
    tell(|| Note {
        job: job.as_str().to_owned(),
        // As in the notes of an open job.
        refused: Some(String::new()),
        stopped: true,
        ..Note::default()
    });
}

fn of_open_job((job, text): (&JobName, &str), left: &AtomicU32, note: impl FnOnce(String) -> Note) {
    let one_less = |left: u32| left.checked_sub(1);
    let was = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    // Breaks if: there is no bound; a supervisor that cannot read all notes would know of no job.
    let Ok(was) = was else {
        return;
    };
    tell(|| Note {
        job: job.as_str().to_owned(),
        // An older supervisor, which does not know these notes, takes this for a refusal, which
        // changes nothing for it.
        refused: Some(String::new()),
        // Breaks if: it is not reported; silence would mean that all is well.
        is_last: was == 1,
        ..note(shortened(text))
    });
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_BYTES)].to_owned()
}

fn tell(note: impl FnOnce() -> Note) {
    let path = env_var(VARIABLE).filter(|path| !path.is_empty());
    let Some(path) = path.filter(|_| !off(Switch::ToldToRun)) else {
        return;
    };
    if let Some(text) = written(note()) {
        // The file is on another machine, or its supervisor has ended: nobody waits for this note.
        let _ = drop_note(Path::new(&path), &text);
    }
}

fn written(note: Note) -> Option<String> {
    let text = toml::to_string(&Notes { note: vec![note] }).ok()?;
    // Breaks if: it does not begin a line; behind an incomplete one it would be lost too.
    Some(format!("\n{}{END}", text.trim_end()))
}

/// The absolute path, which a supervisor in another directory can use.
fn whole(path: &Path) -> PathBuf {
    match is_served(path) {
        true => path.to_owned(),
        false => working_dir().join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_losses_few_are_reported_and_the_last_one_always() {
        let mut losses = Losses {
            steps: 0,
            untold: None,
        };
        let note = |step: u64| Note {
            lost: Some(format!("step {step}")),
            ..Note::default()
        };
        let reported: Vec<u64> = (1..=1000)
            .filter_map(|step| losses.add(note(step), true))
            .map(|note| note.lost_steps)
            .collect();
        assert_eq!(reported[31..], [32, 64, 128, 256, 512]);
        // The same step, at another level.
        assert_eq!(losses.add(note(1000), false), None);
        let last = losses.untold.unwrap();
        assert_eq!(
            (last.lost_steps, last.lost.as_deref()),
            (1000, Some("step 1000"))
        );
    }

    #[test]
    fn notes_one_after_the_other_are_read_in_order() {
        let first = Note {
            job: "a".into(),
            epoch: 3,
            global: vec!["/pfs/with ' and \" and, comma".into()],
            node_dir: Some("/tmp".into()),
            ..Note::default()
        };
        let second = Note {
            refused: Some("two\nlines".into()),
            for_good: true,
            ..Note::default()
        };
        let mut text = String::new();
        for note in [&first, &second] {
            text.push_str(&written(note.clone()).unwrap());
        }
        assert_eq!(whole_bytes(text.as_bytes()), text.len());
        assert_eq!(read(&text), [first.clone(), second.clone()]);
        let cut = format!("{text}\n[[note]]\njob = \"half");
        assert_eq!(read(&cut), [first.clone(), second.clone()]);
        let between = format!("[[note]]\njob = \"half{text}");
        assert_eq!(read(&between), [first.clone(), second.clone()]);
        let strange = format!("\u{fffd}\n{text}");
        assert_eq!(read(&strange), [first, second]);
        assert_eq!(whole_bytes(cut.as_bytes()), text.len() + 1);
        assert_eq!(whole_bytes(b"[[note]]\njob = \"a\"\n"), 0);
        assert_eq!(read("what is this"), []);
        assert_eq!(read(""), []);
    }
}
