//! The process is killed before each of its numbered steps, and the next run must continue.

use crate::hooks::{Key, Named};
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{
    ENCODED, HOME, INCREMENTAL, Life, NODES, PARITY, PEERS, SOLO, STRIPED, Workload, copy_tree,
};
use orcheck_jobs::trial::{
    Outcome, Random, Table, Verdict, apart_with, check_records, heal, seed, share, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::path::Path;

/// Checkpoints of a run that is killed: enough that the keep rule makes the last ones prune.
const CHECKPOINTS: u64 = 3;

/// The names of all steps of a life, from two recordings; with `arm_at` only those from that
/// checkpoint on.
pub fn record(
    workload: Workload,
    checkpoints: u64,
    run: u64,
    prepare: &dyn Fn(&Path),
    arm_at: Option<u64>,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut known = BTreeSet::new();
    for _ in 0..2 {
        let scratch = Scratch::in_memory("record");
        prepare(scratch.path());
        let hook = Named::recorder(scratch.path());
        if arm_at.is_none() {
            hook.arm();
        }
        let life =
            Life::new(workload, scratch.path(), run, checkpoints).failpoints(hook.failpoints());
        let list = scratch.path().join("keys");
        let ended = Child::run(|| {
            life.live(&|number| {
                if Some(number) == arm_at {
                    hook.arm();
                }
            });
            let lines: Vec<String> = hook.seen().iter().map(ToString::to_string).collect();
            std::fs::write(&list, lines.join("\n")).unwrap();
            0
        })
        .wait(orcheck_jobs::trial::PATIENCE);
        let story = Story::read(scratch.path());
        assert!(
            ended == Ended::Exited(0) && story.run(run).closed,
            "recording: {ended:?}; {}",
            told(&story)
        );
        for line in std::fs::read_to_string(&list).unwrap().lines() {
            let key = Key::parse(line);
            if known.insert(key.clone()) {
                keys.push(key);
            }
        }
    }
    keys
}

/// One trial: `prepare` the directories, run `run` until the step `key`, then let the next run
/// heal.
fn kill_at(workload: &Workload, run: u64, prepare: &dyn Fn(&Path), key: &Key) -> Outcome {
    let scratch = Scratch::in_memory("kill");
    let root = scratch.path();
    prepare(root);
    let hook = Named::at(root, key.clone(), Do::Kill);
    hook.arm();
    let checkpoints = if run == 1 { CHECKPOINTS } else { 2 };
    let life = Life::new(*workload, root, run, checkpoints).failpoints(hook.failpoints());
    let ended = apart_with(&life, &|_| {});
    let story = Story::read(root);
    let result = match ended {
        Ended::Hung => Err((Verdict::Hang, told(&story))),
        Ended::Exited(code) if code != 0 => {
            Err((Verdict::HardFail, format!("exit {code}; {}", told(&story))))
        }
        _ if !story.run(run).errors.is_empty() => Err((Verdict::HardFail, told(&story))),
        _ => check_records(workload, root)
            .and_then(|()| heal(workload, root, run + 1))
            .map(|_| Verdict::Pass),
    };
    Outcome::of(ended == Ended::Signaled(9), result)
}

/// Most steps of one phase of a workload that a quick run stops at: evenly spread, from another
/// first one with each seed. `ORCHECK_TRIALS` raises it.
const QUICK: usize = 28;

fn chosen(keys: Vec<Key>) -> Vec<Key> {
    let every = keys.len().div_ceil(trials(QUICK)).max(1);
    let first = Random::new(seed()).below(every as u64) as usize;
    keys.into_iter().skip(first).step_by(every).collect()
}

/// Directories in which a first run ended well.
pub fn after_a_good_run(workload: Workload, root: &Path) {
    let ended = apart_with(&Life::new(workload, root, 1, 3), &|_| {});
    let story = Story::read(root);
    assert!(
        ended == Ended::Exited(0) && story.run(1).closed,
        "the first run: {ended:?}; {}",
        told(&story)
    );
}

/// The steps of the first run of each workload (save, flush, commit, prune, close), and those of a
/// second run that finds, restarts, saves and prunes: all of them, or a spread in a quick run (see
/// [`QUICK`]).
// Breaks if: `prune` removes containers before their records, or what is still being written, or
// leaves the `.tmp` files or `route-` directories of the dead; an epoch counter is given twice; or
// a step that was never completely committed counts as damage. (That syncs come before renames
// shows only when power is lost.)
pub fn killed_before_every_step() {
    let mut table = Table::default();
    for workload in [
        SOLO,
        HOME,
        NODES,
        STRIPED,
        INCREMENTAL,
        ENCODED,
        PEERS,
        PARITY,
    ] {
        let nothing = |_: &Path| {};
        let keys = chosen(record(workload, CHECKPOINTS, 1, &nothing, None));
        let outcomes = share(keys.len(), &|n| kill_at(&workload, 1, &nothing, &keys[n]));
        let names: Vec<String> = keys
            .iter()
            .map(|key| key.to_string().replace('\t', " "))
            .collect();
        table.add(
            &format!("{}: first run", workload.name),
            &names,
            &outcomes,
            &[Verdict::Pass],
        );

        let base = Scratch::in_memory("base");
        after_a_good_run(workload, base.path());
        let copied = |root: &Path| copy_tree(base.path(), root);
        let keys = chosen(record(workload, 2, 2, &copied, None));
        let outcomes = share(keys.len(), &|n| kill_at(&workload, 2, &copied, &keys[n]));
        let names: Vec<String> = keys
            .iter()
            .map(|key| key.to_string().replace('\t', " "))
            .collect();
        table.add(
            &format!("{}: restart", workload.name),
            &names,
            &outcomes,
            &[Verdict::Pass],
        );
    }
    table.finish("killed before every step");
}
