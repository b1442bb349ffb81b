//! The disk answers with an error at one call, once: that step fails at that level and is reported,
//! or succeeds; everything before stays, everything after works.

use crate::hooks::{Key, Named};
use crate::kill_steps::record;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{
    INCREMENTAL, Life, PAIR, PARITY, PEERS, SOLO, SPREAD, STRIPED, Workload, names,
};
use orcheck_jobs::trial::{
    Failure, Outcome, Table, Verdict, apart_with, check_records, heal, seed, share, spread, told,
    trials,
};
use orcheck_testing::{Ended, Scratch};
use std::path::Path;

/// Steps 1 and 2 are taken in peace, the fault comes in 3 or 4.
const CHECKPOINTS: u64 = 4;
const FIRST: u64 = 3;

/// Error numbers as the kernel's headers have them.
const ERRORS: [(i32, &str); 5] = [
    (28, "ENOSPC"),
    (5, "EIO"),
    (30, "EROFS"),
    (122, "EDQUOT"),
    (116, "ESTALE"),
];

/// What can happen at a step of this site.
fn faults(key: &Key, turn: usize, all: bool) -> Vec<(Do, &'static str)> {
    let mut list: Vec<(Do, &str)> = if all {
        ERRORS
            .iter()
            .map(|&(errno, name)| (Do::Fail(errno), name))
            .collect()
    } else {
        let (errno, name) = ERRORS[turn % ERRORS.len()];
        vec![(Do::Fail(errno), name)]
    };
    if key.site == "file.write" || key.site == "file.read" {
        // Nothing moved, one block or byte moved, interrupted.
        let nothing = if key.site == "file.write" {
            "accepted 0"
        } else {
            "found 0"
        };
        list.extend([
            (Do::Short(0), nothing),
            (Do::Short(1), ""),
            (Do::Fail(4), ""),
        ]);
    }
    list
}

/// Sites of the engine's own threads: an error there ends the thread, as a defect would.
pub fn is_internal(site: &str) -> bool {
    !site.starts_with("file.") && !site.starts_with("dir.")
}

/// Whether a visible commit record refers to the file at `target`.
fn is_referred_to(workload: &Workload, root: &Path, target: &str) -> bool {
    let Some(file) = target.rsplit('/').next() else {
        return false;
    };
    let marks: Vec<&str> = file.split("-R-").collect();
    let stem = |name: &str| {
        name.rsplit_once('.')
            .map_or(name.to_owned(), |(stem, _)| stem.to_owned())
    };
    for dir in workload.job_dirs(root) {
        let here = dir.display().to_string();
        for name in names(&dir) {
            let level_of_target = target.contains("/local/") == here.contains("/local/");
            if !matches!(FileName::parse(&name), Some(FileName::Commit { .. })) || !level_of_target
            {
                continue;
            }
            let Ok(record) = CommitRecord::decode(&std::fs::read(dir.join(name)).unwrap()) else {
                continue;
            };
            let is = |found: &str| {
                marks.len() == 2
                    && found.starts_with(marks[0])
                    && stem(found).ends_with(&stem(marks[1]))
            };
            if record
                .containers
                .iter()
                .any(|container| is(&container.file))
            {
                return true;
            }
        }
    }
    false
}

fn trial(workload: &Workload, key: &Key, fault: (Do, &str)) -> Outcome {
    let scratch = Scratch::in_memory("errors");
    let root = scratch.path();
    let hook = Named::at(root, key.clone(), fault.0);
    let life = Life::new(*workload, root, 1, CHECKPOINTS).failpoints(hook.failpoints());
    let ended = apart_with(&life, &|number| {
        if number == FIRST {
            hook.arm();
        }
    });
    let story = Story::read(root);
    let result = judge(workload, root, key, fault, ended, &story);
    Outcome::of(
        true,
        result
            .map(|()| Verdict::Pass)
            .and_then(|verdict| heal(workload, root, 2).map(|_| verdict)),
    )
}

fn judge(
    workload: &Workload,
    root: &Path,
    key: &Key,
    fault: (Do, &str),
    ended: Ended,
    story: &Story,
) -> Result<(), Failure> {
    let hard = |text: String| Err((Verdict::HardFail, format!("{text}; {}", told(story))));
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return Err((Verdict::Hang, told(story))),
        ended => return hard(format!("ended with {ended:?}")),
    }
    let mine = story.run(1);
    // A wait that only ended by its deadline is a hang in disguise.
    if let Some(late) = mine
        .errors
        .iter()
        .find(|error| error.contains("is not yet safe"))
    {
        return Err((Verdict::Hang, format!("{late}; {}", told(story))));
    }
    let whole = |step: u64| {
        workload
            .levels()
            .into_iter()
            .all(|level| mine.acked.contains(&(step, level)))
    };
    for step in 1..FIRST {
        if !whole(step) {
            return hard(format!(
                "step {step}, before the fault, is not acknowledged"
            ));
        }
    }
    let lost: Vec<u64> = (FIRST..=CHECKPOINTS).filter(|&step| !whole(step)).collect();
    if lost.len() > 1 && !is_internal(&key.site) {
        return hard(format!("one error, but steps {lost:?} are lost"));
    }
    for step in &lost {
        for level in workload.levels() {
            let acked = mine.acked.contains(&(*step, level));
            let said = mine
                .errors
                .iter()
                .find(|error| error.starts_with(&format!("wait {step} {level} ")));
            if !acked && said.is_none() {
                return hard(format!(
                    "step {step} is neither safe nor lost at level {level}"
                ));
            }
        }
    }
    if !lost.is_empty()
        && !is_internal(&key.site)
        && !mine.errors.iter().any(|error| error.contains(fault.1))
    {
        return hard(format!("no error says {}", fault.1));
    }
    // Short and interrupted transfers are finished, not lost.
    if !lost.is_empty() && fault.1.is_empty() {
        return hard("a short or interrupted transfer lost the step".to_owned());
    }
    // A directory that was given up keeps records whose containers elsewhere are pruned.
    let whole = !mine
        .warnings
        .iter()
        .any(|warning| warning.contains("takes no more containers"));
    if whole {
        check_records(workload, root)?;
    }
    let of_container = FileName::parse(
        &key.target
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .replace("-R-", "-00000000-"),
    );
    let container = matches!(
        of_container,
        Some(FileName::Container { .. } | FileName::Stripe { .. })
    );
    if container
        && ["file.sync", "file.close", "file.truncate"].contains(&key.site.as_str())
        && is_referred_to(workload, root, &key.target)
    {
        return hard(format!(
            "{} failed, and a commit record refers to that container",
            key.site
        ));
    }
    Ok(())
}

/// One error at every call of two checkpoints with their flush, commit and prune; in a quick run at
/// a part of the calls of each kind.
// Breaks if: `File::sync` passes a failed sync over, `Store::make_durable` drops the result of sync
// or close, `make_visible` continues after a directory that failed, `write_all` takes a short write
// for a whole one, or the last directory that is left counts as lost after one error.
pub fn one_error_at_every_call() {
    let mut table = Table::default();
    let all = trials(0) > 0;
    // Another error number at the same call with each seed.
    let (part, turns) = if all {
        (1, 0)
    } else {
        (14, seed() as usize % ERRORS.len())
    };
    for workload in [SOLO, PAIR, PEERS, PARITY, SPREAD, STRIPED, INCREMENTAL] {
        let workload = Workload {
            overlapped: false,
            ..workload
        };
        let keys = record(workload, CHECKPOINTS, 1, &|_| {}, Some(FIRST));
        let list: Vec<(&Key, (Do, &str))> = keys
            .iter()
            .enumerate()
            .flat_map(|(turn, key)| {
                faults(key, turn + turns, all)
                    .into_iter()
                    .map(move |fault| (key, fault))
            })
            .collect();
        let list = spread(list, part, |(key, (_, name))| {
            let short = if name.starts_with('E') { "" } else { name };
            format!("{} {short}", key.site)
        });
        let outcomes = share(list.len(), &|n| trial(&workload, list[n].0, list[n].1));
        for internal in [false, true] {
            let chosen: Vec<usize> = (0..list.len())
                .filter(|&n| is_internal(&list[n].0.site) == internal)
                .collect();
            let outcomes: Vec<Outcome> = chosen.iter().map(|&n| outcomes[n].clone()).collect();
            let names: Vec<String> = chosen
                .iter()
                .map(|&n| format!("{} {:?}", list[n].0, list[n].1).replace('\t', " "))
                .collect();
            let row = format!(
                "{}: {}",
                workload.name,
                if internal { "engine" } else { "disk" }
            );
            table.add(&row, &names, &outcomes, &[Verdict::Pass]);
        }
    }
    table.finish("one error at every call");
}
