//! One directory is gone from some moment on: at each of its steps by an error, and really, renamed
//! or removed between two checkpoints.

use crate::hooks::{Key, Named};
use crate::kill_steps::record;
use orcheck_format::Level;
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, NODES, PAIR, SPREAD, STRIPED, View, Workload, copy_tree};
use orcheck_jobs::payload::Origin;
use orcheck_jobs::trial::{Failure, Outcome, Table, Verdict, apart, apart_with, heal, share, told};
use orcheck_testing::{Ended, Scratch};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps 1 and 2 in peace; the directory goes in 3; the last must be safe without it.
const CHECKPOINTS: u64 = 6;
const FIRST: u64 = 3;
/// The file that says that a directory died.
const STRUCK: &str = "struck";

/// From the step `key` on everything beneath `gone` fails.
fn dead_from(root: &Path, key: Key, gone: &'static str, errno: i32) -> Arc<Named> {
    let dead = AtomicBool::new(false);
    let struck = root.join(STRUCK);
    let decide = move |found: &Key, _: &orcheck_io::failpoints::Failpoint| {
        if *found == key {
            dead.store(true, Ordering::SeqCst);
            // In the process of the run.
            std::fs::write(&struck, "").unwrap();
        }
        let beneath = found.target.starts_with(gone);
        if beneath && dead.load(Ordering::SeqCst) {
            Do::Fail(errno)
        } else {
            Do::Go
        }
    };
    Named::new(root, Box::new(decide))
}

fn fail(verdict: Verdict, text: &str, story: &Story) -> Failure {
    (verdict, format!("{text}; {}", told(story)))
}

/// What the run itself must have said: one or two steps lost and reported, the last one safe at
/// level global.
fn judge(ended: Ended, story: &Story, lost_at_most: usize) -> Result<(), Failure> {
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return Err(fail(Verdict::Hang, "", story)),
        ended => return Err(fail(Verdict::HardFail, &format!("{ended:?}"), story)),
    }
    let mine = story.run(1);
    if let Some(late) = mine
        .errors
        .iter()
        .find(|error| error.contains("is not yet safe"))
    {
        return Err(fail(Verdict::Hang, late, story));
    }
    let safe = |step: u64| mine.acked.contains(&(step, Level::Global));
    let lost: Vec<u64> = (1..=CHECKPOINTS).filter(|&step| !safe(step)).collect();
    if lost.len() > lost_at_most || lost.contains(&CHECKPOINTS) {
        return Err(fail(
            Verdict::LostWork,
            &format!("steps {lost:?} were lost with the directory"),
            story,
        ));
    }
    Ok(())
}

/// A restart must give exactly this step of run 1.
fn resumes(workload: &Workload, root: &Path, step: u64) -> Result<(), Failure> {
    let ended = apart(&Life::new(*workload, root, 2, 0));
    let story = Story::read(root);
    let mine = story.run(2);
    if let Some(text) = mine.wrong.first() {
        return Err((Verdict::SilentWrong, text.clone()));
    }
    if ended != Ended::Exited(0) || mine.resumed != Some(Some(Origin { run: 1, step })) {
        return Err(fail(
            Verdict::LostWork,
            &format!("expected step {step}, {ended:?}"),
            &story,
        ));
    }
    Ok(())
}

/// The directory dies at `key` and stays dead; then it is away for the restart; then it is back.
fn dies(workload: &Workload, key: &Key, gone: &'static str, errno: i32) -> Outcome {
    let scratch = Scratch::in_memory("dead");
    let root = scratch.path();
    let hook = dead_from(root, key.clone(), gone, errno);
    let life = Life::new(*workload, root, 1, CHECKPOINTS).failpoints(hook.failpoints());
    let ended = apart_with(&life, &|number| {
        if number == FIRST {
            hook.arm();
        }
    });
    // Pieces that lie side by side are written as one when they come fast enough: not every run has
    // every write.
    if !root.join(STRUCK).exists() {
        return Outcome::of(
            false,
            judge(ended, &Story::read(root), 0).map(|()| Verdict::Pass),
        );
    }
    Outcome::of(true, after(workload, root, gone, ended))
}

/// What must be true after a directory died.
fn after(
    workload: &Workload,
    root: &Path,
    gone: &'static str,
    ended: Ended,
) -> Result<Verdict, Failure> {
    judge(ended, &Story::read(root), 1)?;
    if gone.starts_with("/ost") {
        let away = Scratch::in_memory("away");
        copy_tree(root, away.path());
        std::fs::remove_dir_all(away.path().join(&gone[1..])).unwrap();
        resumes(workload, away.path(), CHECKPOINTS)?;
    }
    heal(workload, root, 2).map(|_| Verdict::Pass)
}

// Breaks if: the lead keeps a directory that failed in its map (`LeadState::replace` returns
// `None`), or if a directory that cannot be listed before a commit is not known by its number.
pub fn gone_at_every_step() {
    let mut table = Table::default();
    let one_rank_each = Workload {
        keep: 2,
        overlapped: false,
        ..STRIPED
    };
    for (workload, gone, errno) in [
        (SPREAD, "/ost1", 5),
        (SPREAD, "/ost0", 116),
        (one_rank_each, "/ost1", 5),
        (PAIR, "/local/job/n1", 2),
        (
            Workload {
                overlapped: false,
                lent: false,
                ..NODES
            },
            "/ost0",
            5,
        ),
    ] {
        let keys = record(workload, CHECKPOINTS, 1, &|_| {}, Some(FIRST));
        let first_half = format!("s{:012}", FIRST + 1);
        let later = keys
            .iter()
            .position(|key| key.target.contains(&first_half))
            .unwrap_or(keys.len());
        // Steps 4 to 6 do the same as step 3 again.
        let keys: Vec<&Key> = keys[..later]
            .iter()
            .filter(|key| key.target.starts_with(gone))
            .collect();
        let outcomes = share(keys.len(), &|n| dies(&workload, keys[n], gone, errno));
        let names: Vec<String> = keys
            .iter()
            .map(|key| key.to_string().replace('\t', " "))
            .collect();
        table.add(
            &format!("{}: {gone} dies", workload.name),
            &names,
            &outcomes,
            &[Verdict::Pass],
        );
    }
    table.finish("a directory dies at each of its steps");
}

/// Renamed away: what open handles still reach is not where a restart looks, so one step is lost
/// and the run continues in the other one; with it back, nothing that it holds is taken for newer.
fn renamed_away(workload: &Workload, at: u64) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("renamed");
    let root = scratch.path();
    let (here, there) = (root.join("ost1"), root.join("elsewhere"));
    let ended = apart_with(&Life::new(*workload, root, 1, CHECKPOINTS), &|number| {
        if number == at {
            std::fs::rename(&here, &there).unwrap();
        }
    });
    judge(ended, &Story::read(root), 2)?;
    // A run needs the root to exist; this one finds neither the job nor its files in it.
    std::fs::create_dir(&here).unwrap();
    resumes(workload, root, CHECKPOINTS)?;
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::rename(&there, &here).unwrap();
    heal(workload, root, 3)?;
    Ok(Verdict::Pass)
}

/// Removed with all that was in it: the run continues in the other one.
fn removed(workload: &Workload, at: u64) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("removed");
    let root = scratch.path();
    let ended = apart_with(&Life::new(*workload, root, 1, CHECKPOINTS), &|number| {
        if number == at {
            std::fs::remove_dir_all(root.join("ost1")).unwrap();
        }
    });
    judge(ended, &Story::read(root), 2)?;
    if workload
        .readable(root, View::Only(Level::Global))
        .ok()
        .flatten()
        .is_none()
    {
        // The harness's own look opens the directories as a run would: ost1 is not there to be
        // opened.
        std::fs::create_dir(root.join("ost1")).unwrap();
    }
    resumes(workload, root, CHECKPOINTS)?;
    heal(workload, root, 3).map(|_| Verdict::Pass)
}

// Breaks if: a container that is not there makes a step count as never committed (`RankView::open`
// says `NotFound`).
pub fn really_gone() {
    let mut table = Table::default();
    let one_rank_each = Workload {
        keep: 2,
        overlapped: false,
        ..STRIPED
    };
    for workload in [SPREAD, one_rank_each] {
        let list: Vec<(bool, u64)> = (2..=5).flat_map(|at| [(true, at), (false, at)]).collect();
        let outcomes = share(list.len(), &|n| {
            let (rename, at) = list[n];
            let result = if rename {
                renamed_away(&workload, at)
            } else {
                removed(&workload, at)
            };
            Outcome::of(true, result)
        });
        let names: Vec<String> = list
            .iter()
            .map(|(rename, at)| {
                format!(
                    "{} before checkpoint {at}",
                    if *rename { "renamed" } else { "removed" }
                )
            })
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("a directory is renamed or removed between checkpoints");
}
