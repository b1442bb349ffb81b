//! The disk answers with an error at one call while a run opens, finds, restarts and closes, or
//! while a checkpoint is verified: right bytes, an older step and a report of it, or a clear error;
//! never a fresh start, never a clean verdict.

use crate::errors::is_internal;
use crate::hooks::{Key, Named};
use crate::kill_steps::{after_a_good_run, record};
use orcheck_engine::directory::Catalog;
use orcheck_engine::upkeep::verify_commit;
use orcheck_format::{Error, JobName, Result};
use orcheck_io::failpoints::{Failpoints, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PAIR, SOLO, STRIPED, Workload, copy_tree};
use orcheck_jobs::trial::{
    Failure, Outcome, Table, Verdict, apart_with, check_records, heal, seed, share, told, trials,
};
use orcheck_staging::open_dir;
use orcheck_testing::{Ended, Scratch};
use std::path::Path;

/// The newest step of the run before.
const NEWEST: u64 = 3;

/// Error numbers as the kernel's headers have them, with what the message calls them.
const ERRORS: [(i32, &str); 5] = [
    (5, "EIO"),
    (116, "ESTALE"),
    (28, "ENOSPC"),
    (30, "EROFS"),
    (122, "EDQUOT"),
];

/// What is done to a call; an empty text: it must not be noticed.
type Fault = (Do, &'static str);

/// What can happen at a step: every error in a campaign, else one of them in turn.
fn faults(key: &Key, turn: usize) -> Vec<Fault> {
    let mut list: Vec<Fault> = if trials(0) > 0 {
        ERRORS.map(|(errno, name)| (Do::Fail(errno), name)).to_vec()
    } else {
        let (errno, name) = ERRORS[turn % ERRORS.len()];
        vec![(Do::Fail(errno), name)]
    };
    if key.site == "file.read" {
        // A source that is shorter than it was, the shortest transfer, and an interrupted one.
        list.extend([
            (Do::Short(0), "found 0"),
            (Do::Short(1), ""),
            (Do::Fail(4), ""),
        ]);
    }
    list
}

/// Every key with each of its faults.
fn all_faults(keys: &[Key]) -> Vec<(&Key, Fault)> {
    let seed = seed() as usize;
    let pairs = keys.iter().enumerate().map(|(turn, key)| {
        faults(key, turn + seed)
            .into_iter()
            .map(move |fault| (key, fault))
    });
    pairs.flatten().collect()
}

fn trial(workload: &Workload, base: &Path, key: &Key, fault: Fault) -> Outcome {
    let scratch = Scratch::in_memory("reads");
    let root = scratch.path();
    copy_tree(base, root);
    let hook = Named::at(root, key.clone(), fault.0);
    hook.arm();
    let life = Life::new(*workload, root, 2, 1).failpoints(hook.failpoints());
    let ended = apart_with(&life, &|_| {});
    let story = Story::read(root);
    let struck = ended != Ended::Exited(0) || hook_was_passed(&story);
    let result = judge(workload, root, fault, ended, &story)
        .and_then(|verdict| heal(workload, root, 3).map(|_| verdict));
    Outcome::of(struck, result)
}

/// The hook lives in the child; a run that told nothing at all would mean that it never began.
fn hook_was_passed(story: &Story) -> bool {
    story.runs.contains_key(&2)
}

fn judge(
    workload: &Workload,
    root: &Path,
    (_, name): Fault,
    ended: Ended,
    story: &Story,
) -> std::result::Result<Verdict, Failure> {
    let fail = |verdict, text: &str| Err((verdict, format!("{text}; {}", told(story))));
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return fail(Verdict::Hang, ""),
        ended => return fail(Verdict::HardFail, &format!("ended with {ended:?}")),
    }
    let mine = story.run(2);
    if let Some(text) = mine.wrong.first() {
        return fail(Verdict::SilentWrong, text);
    }
    if let Some(late) = mine.errors.iter().find(|e| e.contains("is not yet safe")) {
        return fail(Verdict::Hang, late);
    }
    let said = |lines: &[String]| lines.iter().any(|line| line.contains(name));
    let noticed = !mine.errors.is_empty();
    if name.is_empty() && (noticed || mine.resumed.flatten().map(|from| from.step) != Some(NEWEST))
    {
        return fail(
            Verdict::HardFail,
            "an interrupted or short transfer was not finished",
        );
    }
    if noticed && !said(&mine.errors) {
        return fail(Verdict::HardFail, &format!("no error says '{name}'"));
    }
    // A directory that was given up keeps records whose containers elsewhere are pruned.
    let given_up = [
        "takes no more containers",
        "read, but not written",
        "skipped: level global",
    ];
    let whole = !mine
        .warnings
        .iter()
        .any(|warning| given_up.iter().any(|part| warning.contains(part)));
    if whole {
        check_records(workload, root)?;
    }
    match mine.resumed {
        // It must say so: a program that hears "no checkpoint" begins again.
        Some(None) => fail(Verdict::LostWork, "an error was taken for an empty job"),
        Some(Some(from)) if from.step == NEWEST && !noticed => Ok(Verdict::Pass),
        Some(Some(from)) if from.step == NEWEST => Ok(Verdict::ClearFail),
        Some(Some(_)) if said(&mine.warnings) => Ok(Verdict::FellBack),
        Some(Some(_)) => fail(
            Verdict::HardFail,
            "an older step without a warning that says why",
        ),
        None if noticed => Ok(Verdict::ClearFail),
        None => fail(Verdict::HardFail, "neither restarted nor refused"),
    }
}

/// One error at every call from open to close of a run that restarts.
// Breaks if: `Catalog::scan` drops the error of a record that cannot be read, `candidates` takes
// records that cannot be read for an empty job, or `read_some` takes a short read for the end of
// the file.
pub fn one_error_at_every_call_of_a_restart() {
    let mut table = Table::default();
    for workload in [SOLO, PAIR, STRIPED] {
        let base = Scratch::in_memory("base");
        after_a_good_run(workload, base.path());
        let copied = |root: &Path| copy_tree(base.path(), root);
        // Errors between ranks are `processes` and `zombie`; here the disk fails.
        let mut keys = record(workload, 0, 2, &copied, None);
        keys.retain(|key| !is_internal(&key.site));
        let every = if workload.ranks == 1 || trials(0) > 0 {
            1
        } else {
            4
        };
        let keys: Vec<Key> = keys
            .into_iter()
            .skip(seed() as usize % every)
            .step_by(every)
            .collect();
        let list = all_faults(&keys);
        let outcomes = share(list.len(), &|n| {
            trial(&workload, base.path(), list[n].0, list[n].1)
        });
        let names: Vec<String> = list
            .iter()
            .map(|(key, fault)| format!("{key} {fault:?}").replace('\t', " "))
            .collect();
        table.add(
            workload.name,
            &names,
            &outcomes,
            &[Verdict::Pass, Verdict::ClearFail, Verdict::FellBack],
        );
    }
    table.finish("one error at every call of a restart");
}

/// Verifies all checkpoints in the directory of [`SOLO`]; their number, or an error that says all
/// that is wrong.
pub fn verified(root: &Path, failpoints: &Failpoints) -> Result<usize> {
    let dirs = [open_dir(&root.join("ost0/job"), failpoints.clone())?];
    let catalog = Catalog::scan(&JobName::new("job")?, &dirs)?;
    let mut wrong = catalog.notes().to_vec();
    for commit in catalog.commits() {
        let verdict = verify_commit(&dirs, &commit.record, &mut |_, _| {})?;
        wrong.extend(verdict.findings().map(|finding| finding.message.clone()));
    }
    if wrong.is_empty() {
        Ok(catalog.commits().len())
    } else {
        Err(Error::corrupt(wrong.join("; ")))
    }
}

/// One error at every call of a verification.
// Breaks if: an extent that cannot be read is no finding.
pub fn one_error_at_every_call_of_verify() {
    let mut table = Table::default();
    let base = Scratch::in_memory("verify");
    after_a_good_run(SOLO, base.path());
    let recorder = Named::recorder(base.path());
    recorder.arm();
    let whole = verified(base.path(), &recorder.failpoints()).unwrap();
    assert_eq!(whole, SOLO.keep);
    let keys = recorder.seen();
    let list = all_faults(&keys);
    let outcomes = share(list.len(), &|n| {
        let (key, (what, name)) = &list[n];
        let hook = Named::at(base.path(), (*key).clone(), *what);
        hook.arm();
        let found = verified(base.path(), &hook.failpoints());
        let struck = hook.seen().contains(key);
        let verdict = match found {
            Ok(count) if name.is_empty() && count == whole => Ok(Verdict::Pass),
            Ok(_) => Err((Verdict::SilentWrong, "called good".to_owned())),
            Err(error) if !name.is_empty() && error.message().contains(name) => {
                Ok(Verdict::ClearFail)
            }
            Err(error) => Err((Verdict::HardFail, error.to_string())),
        };
        Outcome::of(struck, verdict)
    });
    let names: Vec<String> = list
        .iter()
        .map(|(key, fault)| format!("{key} {fault:?}").replace('\t', " "))
        .collect();
    let allowed = [Verdict::Pass, Verdict::ClearFail];
    table.add(SOLO.name, &names, &outcomes, &allowed);
    table.finish("one error at every call of a verification");
}
