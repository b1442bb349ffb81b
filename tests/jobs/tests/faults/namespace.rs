//! The names beneath open directories change while a job runs: a directory is moved away, replaced,
//! copied, unmounted, mounted over, or may only be read from some step on.
//!
//! How: the change happens at a step that the seed chooses, in the process of the run. Whatever was
//! begun later and is called safe must be found by who opens the configured paths, as a restart
//! does; where there is another directory, the last step must be safe. What was safe before went
//! with the directory.

use crate::hooks::{Key, Named};
use orcheck_format::Level;
use orcheck_io::failpoints::{Failpoint, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PAIR, SPREAD, View, Workload, copy_tree};
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, apart, apart_with, seed, share, told, trials,
};
use orcheck_testing::mount::{Mount, detach, mount_over, own_mounts};
use orcheck_testing::{Ended, Scratch};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const CHECKPOINTS: u64 = 6;
/// About as many steps as two checkpoints take.
const STEPS: u64 = 150;
/// The file that says in which checkpoint it happened.
const STRUCK: &str = "struck";

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    Moved,
    Replaced,
    /// By a copy with all that it held.
    Copied,
    Unmounted,
    MountedOver,
    /// For who opens the path now; what is open stays as it is.
    ReadOnly,
}

const ALL: [Change; 6] = [
    Change::Moved,
    Change::Replaced,
    Change::Copied,
    Change::Unmounted,
    Change::MountedOver,
    Change::ReadOnly,
];

impl Change {
    fn takes_mounts(self) -> bool {
        matches!(self, Self::Unmounted | Self::MountedOver | Self::ReadOnly)
    }

    /// Does it; whether that was possible now.
    pub fn happens(self, dir: &Path, away: &Path) -> bool {
        match self {
            Self::Moved => std::fs::rename(dir, away).is_ok(),
            Self::Replaced => {
                std::fs::rename(dir, away).unwrap();
                std::fs::create_dir(dir).is_ok()
            }
            Self::Copied => {
                std::fs::rename(dir, away).unwrap();
                copy_tree(away, dir);
                true
            }
            Self::Unmounted => detach(dir).is_ok(),
            Self::MountedOver => mount_over(dir, Mount::Small(16 << 20)).is_ok(),
            Self::ReadOnly => mount_over(dir, Mount::ReadOnly).is_ok(),
        }
    }
}

/// Whether this process may mount.
fn may_mount() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| own_mounts().is_ok())
}

fn one(change: Change, number: u64) -> Outcome {
    let mut random = Random::new(seed().wrapping_add(number.wrapping_mul(0x9e37)));
    let (workload, name) =
        [(SPREAD, "ost1"), (SPREAD, "ost0"), (PAIR, "local")][random.below(3) as usize];
    let scratch = Scratch::in_memory("namespace");
    let root = scratch.path();
    let dir = root.join(name);
    if change.takes_mounts() {
        if !may_mount() {
            return Outcome::of(true, Ok(Verdict::ClearFail));
        }
        std::fs::create_dir(&dir).unwrap();
        mount_over(&dir, Mount::Small(16 << 20)).unwrap();
    }
    let (begin, step) = (2 + random.below(2), random.below(STEPS));
    let outcome = lives(&workload, change, root, &dir, (begin, step));
    if change.takes_mounts() {
        while detach(&dir).is_ok() {}
    }
    outcome
}

fn lives(
    workload: &Workload,
    change: Change,
    root: &Path,
    dir: &Path,
    (begin, step): (u64, u64),
) -> Outcome {
    let (counted, now) = (AtomicU64::new(0), std::sync::Arc::new(AtomicU64::new(0)));
    let (target, away, mark) = (dir.to_owned(), root.join("away"), root.join(STRUCK));
    let during = std::sync::Arc::clone(&now);
    let decide = move |_: &Key, _: &Failpoint| {
        if counted.fetch_add(1, Ordering::SeqCst) == step && change.happens(&target, &away) {
            let during = during.load(Ordering::SeqCst).to_string();
            std::fs::write(&mark, during).unwrap();
        }
        Do::Go
    };
    let hook = Named::new(root, Box::new(decide));
    let life = Life::new(*workload, root, 1, CHECKPOINTS).failpoints(hook.failpoints());
    let ended = apart_with(&life, &|checkpoint| {
        now.store(checkpoint, Ordering::SeqCst);
        if checkpoint == begin {
            hook.arm();
        }
    });
    let struck = std::fs::read_to_string(root.join(STRUCK)).ok();
    if change == Change::ReadOnly && struck.is_some() {
        // A run wants to write.
        detach(dir).unwrap();
    }
    let during = struck.as_ref().and_then(|text| text.parse().ok());
    Outcome::of(struck.is_some(), judge(workload, root, dir, ended, during))
}

fn judge(
    workload: &Workload,
    root: &Path,
    dir: &Path,
    ended: Ended,
    during: Option<u64>,
) -> Result<Verdict, Failure> {
    let story = Story::read(root);
    let fail = |verdict, text: String| Err((verdict, format!("{text}; {}", told(&story))));
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return fail(Verdict::Hang, String::new()),
        ended => return fail(Verdict::HardFail, format!("{ended:?}")),
    }
    let mine = story.run(1);
    if !mine.acked.contains(&(CHECKPOINTS, Level::Global)) {
        return fail(Verdict::LostWork, "the last step is not safe".to_owned());
    }
    // A run needs the root to exist.
    let _ = std::fs::create_dir(dir);
    let since = during.unwrap_or(0);
    let mut strongest = None;
    for level in workload.levels().into_iter().rev() {
        let found = workload.readable(root, View::Only(level));
        let found = found.map_err(|text| (Verdict::SilentWrong, text))?;
        strongest = strongest.max(found.map(|origin| origin.step));
        let acked = mine
            .acked
            .iter()
            .filter(|(step, at)| *at == level && *step > since);
        let newest = acked.map(|(step, _)| *step).max();
        if strongest < newest {
            let text = format!(
                "changed during {during:?}: level {level} acknowledged {newest:?}, readable is {strongest:?}"
            );
            return fail(Verdict::LostWork, text);
        }
    }
    let ended = apart(&Life::new(*workload, root, 2, 0));
    let story = Story::read(root);
    let resumed = story.run(2).resumed.flatten().map(|origin| origin.step);
    match story.run(2).wrong.first() {
        Some(text) => Err((Verdict::SilentWrong, text.clone())),
        None if ended == Ended::Exited(0) && resumed >= Some(CHECKPOINTS) => Ok(Verdict::Pass),
        None => Err((
            Verdict::LostWork,
            format!("{ended:?}, resumed from {resumed:?}; {}", told(&story)),
        )),
    }
}

// Breaks if: what an open handle reaches counts although the path leads elsewhere
// (`Dir::check_path` says Ok).
pub fn names_change_beneath_open_directories() {
    let mut table = Table::default();
    for change in ALL {
        let count = trials(12);
        let outcomes = share(count, &|n| one(change, n as u64));
        if outcomes
            .iter()
            .any(|outcome| outcome.verdict == Verdict::ClearFail)
        {
            println!("  SKIPPED {change:?}: mounts of its own need root");
            continue;
        }
        let names: Vec<String> = (0..count).map(|n| format!("trial {n}")).collect();
        table.add(&format!("{change:?}"), &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("names change beneath open directories");
}
