//! All ranks are killed at any step of a job that takes one checkpoint after the other, and a node
//! is lost with its disk: what comes back is at most as many steps older than the last that
//! `checkpoint` returned from as may be uncommitted.
//!
//! How: the step at which it is killed is chosen by the seed. The ledger has what `checkpoint`
//! returned from; the restart must resume from no older step than that less `uncommitted_steps`.

use crate::hooks::{Key, Named};
use orcheck_io::failpoints::{Failpoint, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PEERS, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, apart, apart_with, seed, share, told, trials,
};
use orcheck_testing::{Ended, Scratch};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const CHECKPOINTS: u64 = 8;
/// About as many steps as three checkpoints take.
const STEPS: u64 = 400;

/// What other nodes hold is all there is.
const HURRIED: Workload = Workload {
    name: "2 ranks, 2 nodes, peers(1), in a hurry",
    dirs: 0,
    ..PEERS
};

const ROWS: [(&str, u64); 3] = [
    ("", 1),
    ("held_steps = 2", 2),
    ("held_steps = 2\nuncommitted_steps = 1", 1),
];

fn one(more: &str, most: u64, random: &mut Random) -> Outcome {
    let scratch = Scratch::in_memory("bound");
    let root = scratch.path();
    let (begin, step) = (2 + random.below(3), random.below(STEPS));
    let counted = AtomicU64::new(0);
    let decide = move |_: &Key, _: &Failpoint| match counted.fetch_add(1, Ordering::SeqCst) == step
    {
        true => Do::Kill,
        false => Do::Go,
    };
    let hook = Named::new(root, Box::new(decide));
    let life = Life::new(HURRIED, root, 1, CHECKPOINTS)
        .hurried()
        .with(more);
    let ended = apart_with(&life.failpoints(hook.failpoints()), &|number| {
        if number == begin {
            hook.arm();
        }
    });
    std::fs::remove_dir_all(root.join(format!("local/job/n{}", random.below(2)))).unwrap();
    Outcome::of(ended == Ended::Signaled(9), judge(root, ended, most))
}

fn judge(root: &Path, ended: Ended, most: u64) -> Result<Verdict, Failure> {
    let before = Story::read(root).run(1);
    let after = apart(&Life::new(HURRIED, root, 2, 0));
    let story = Story::read(root);
    let fail = |verdict, text: String| Err((verdict, format!("{text}; {}", told(&story))));
    match (ended, after) {
        (Ended::Exited(0) | Ended::Signaled(9), Ended::Exited(0)) => {}
        (Ended::Hung, _) | (_, Ended::Hung) => return fail(Verdict::Hang, String::new()),
        ended => return fail(Verdict::HardFail, format!("{ended:?}")),
    }
    let run = story.run(2);
    if let Some(text) = run.wrong.first() {
        return fail(Verdict::SilentWrong, text.clone());
    }
    if let Some(error) = before.errors.first().or(run.errors.first()) {
        return fail(Verdict::HardFail, error.clone());
    }
    let resumed = run.resumed.flatten().map_or(0, |origin| origin.step);
    let staged = before.staged.last().copied().unwrap_or(0);
    if resumed + most < staged {
        let text = format!("{staged} was staged, and {resumed} is what comes back");
        return fail(Verdict::LostWork, text);
    }
    Ok(Verdict::Pass)
}

// Breaks if: a checkpoint returns when its snapshot has left the pool, whatever became of the one
// before.
pub fn no_more_than_the_last_two_intervals_are_lost() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let count = trials(30);
    for (more, most) in ROWS {
        let outcomes = share(count, &|n| {
            one(more, most, &mut Random::new(seed ^ (n as u64) << 8 ^ most))
        });
        let names: Vec<String> = (0..count).map(|n| format!("trial {n}")).collect();
        let row = format!("{most} uncommitted, {}", more.replace('\n', ", "));
        table.add(&row, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("killed in a hurry, and a node lost with its disk");
}
