//! Nodes that are lost with their disks at any step of a job, every rank a process of its own; then
//! the restart on the nodes that are left, fewer than before, with empty ones in place of the lost,
//! or with others.
//!
//! How: one rank of a node that is to be lost is killed at a step that the seed chooses, and with
//! it at once all ranks of the nodes that are lost. What must come back is worked out from the
//! commit records that are left and from nothing else.

use crate::hooks::Named;
use crate::processes::{each_rank, ends};
use crate::survival::restorable;
use orcheck_format::Level;
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PEERS, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, seed, share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Checkpoints of the run that is hit.
const CHECKPOINTS: u64 = 4;
/// About as many steps as a rank takes for two of them.
const STEPS: u64 = 260;

/// Where the job continues.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Home {
    /// Empty nodes have the names of those that were lost.
    Replaced,
    /// On those that are left, with more ranks each.
    Left,
    /// On those that are left and one that was not there before.
    Spare,
}

const ROWS: [(Home, &str); 3] = [
    (Home::Replaced, "lost nodes replaced by empty ones"),
    (Home::Left, "on fewer nodes"),
    (Home::Spare, "on those left and a spare one"),
];

fn one(home: Home, random: &mut Random) -> Outcome {
    let nodes = 3 + random.below(4) as u32;
    let per_node = if nodes <= 4 {
        1 + random.below(2) as u32
    } else {
        1
    };
    let replicas = 1 + random.below(2) as u8;
    // Half of them are protected by parity.
    let options = match (random.below(2), replicas, nodes) {
        (0, ..) => "pool = '512 KiB'",
        (_, 1, _) => "pool = '512 KiB'\nprotect = 'xor=3'",
        (_, _, 3) => "pool = '512 KiB'\nprotect = 'rs=1+2'",
        _ => "pool = '512 KiB'\nprotect = 'rs=2+2'",
    };
    let workload = Workload {
        name: "lost nodes",
        ranks: nodes * per_node,
        nodes,
        dirs: 0,
        losses: replicas,
        scale: 4,
        options,
        ..PEERS
    };
    // Half of the jobs have nodes between others and the lead.
    let fan_out = [2, 64][random.below(2) as usize];
    let scratch = Scratch::in_memory("losses");
    let root = scratch.path();
    let mut gone = BTreeSet::new();
    let first = random.below(u64::from(nodes)) as u32;
    gone.insert(first);
    for _ in 0..random.below(3) {
        gone.insert(random.below(u64::from(nodes)) as u32);
    }
    // Some node is left that has the records.
    if gone.len() as u32 == nodes {
        gone.remove(&((first + 1) % nodes));
    }
    // Checkpoint 1 is taken in peace; the step counts from the beginning of one of the next.
    let (begin, step) = (2 + random.below(2), random.below(STEPS));
    let counted = AtomicU64::new(0);
    let hook = Named::new(
        root,
        Box::new(move |_, _| {
            if counted.fetch_add(1, Ordering::SeqCst) == step {
                Do::Kill
            } else {
                Do::Go
            }
        }),
    );
    let victim = first * per_node;
    let children = each_rank(workload.ranks, |rank, mine| {
        let life = Life::new(workload, root, 1, CHECKPOINTS).with(&format!("fan_out = {fan_out}"));
        let life = if rank == victim {
            life.failpoints(hook.failpoints())
        } else {
            life
        };
        let arm = |number| {
            if rank == victim && number == begin {
                hook.arm();
            }
        };
        life.live_one(mine, &arm);
    });
    let mut children: Vec<(u32, Child)> = (0..).zip(children).collect();
    let (_, hit) = children.remove(victim as usize);
    let struck = hit.wait(PATIENCE) != Ended::Exited(0);
    for (rank, child) in &children {
        if gone.contains(&workload.node_of(*rank)) {
            child.kill();
        }
    }
    let ended = ends(children.into_iter().map(|(_, child)| child).collect());
    if ended.contains(&Ended::Hung) {
        let text = format!(
            "a rank waits for nodes {gone:?}; {}",
            told(&Story::read(root))
        );
        return Outcome::of(struck, Err((Verdict::Hang, text)));
    }
    Outcome::of(struck, go_on(&workload, home, &gone, root))
}

/// Restarts the job without these nodes, and holds what comes against the records that are left.
fn go_on(
    workload: &Workload,
    home: Home,
    gone: &BTreeSet<u32>,
    root: &std::path::Path,
) -> Result<Verdict, Failure> {
    let before = Story::read(root);
    let acked = before.newest_acked(2, Some(Level::Peers(workload.losses)));
    if acked.is_none() {
        return Err((
            Verdict::HardFail,
            format!("no checkpoint; {}", told(&before)),
        ));
    }
    let expected = restorable(workload.nodes, root, gone);
    for node in gone {
        std::fs::remove_dir_all(root.join(format!("local/job/n{node}"))).unwrap();
    }
    let promised = gone.len() <= usize::from(workload.losses);
    if promised && expected < acked {
        let text = format!(
            "without {gone:?}: acknowledged {acked:?}, the records promise {expected:?}; {}",
            told(&before)
        );
        return Err((Verdict::LostWork, text));
    }
    let all = 0..workload.nodes;
    let mut names: Vec<String> = all
        .filter(|node| home == Home::Replaced || !gone.contains(node))
        .map(|node| format!("n{node}"))
        .collect();
    // As many as the replicas of the next checkpoint need.
    let least = match workload.options.contains("protect") {
        true => usize::from(workload.losses) + 2,
        false => usize::from(workload.losses) + 1,
    };
    let spares = usize::from(home == Home::Spare).max(least.saturating_sub(names.len()));
    names.extend((0..spares).map(|spare| format!("spare{spare}")));
    names.truncate(workload.ranks as usize);
    let names = names.join(",");
    let ended = ends(each_rank(workload.ranks, |_, mine| {
        let life = Life::new(*workload, root, 2, 1).on(&names);
        life.live_one(mine, &|_| {});
    }));
    let story = Story::read(root);
    let run = story.run(2);
    let says = |text: &str| format!("without {gone:?}, on {names}: {text}; {}", told(&story));
    if let Some(text) = run.wrong.first() {
        return Err((Verdict::SilentWrong, says(text)));
    }
    if ended.contains(&Ended::Hung) {
        return Err((Verdict::Hang, says("the next run")));
    }
    if let Some(ended) = ended.iter().find(|ended| **ended != Ended::Exited(0)) {
        return Err((
            Verdict::HardFail,
            says(&format!("a rank ended with {ended:?}")),
        ));
    }
    let found = run.resumed.flatten().map(|origin| origin.step);
    if found != expected {
        let text = format!("resumed from {found:?}, the records promise {expected:?}");
        return Err((Verdict::LostWork, says(&text)));
    }
    if found.is_none() {
        // Breaks if: a job whose checkpoints cannot be restored begins from nothing, or is not told
        // which container is nowhere.
        if run.errors.iter().any(|text| text.contains(".orc")) {
            return Ok(Verdict::ClearFail);
        }
        return Err((Verdict::LostWork, says("nobody said what is missing")));
    }
    if !run.closed || !run.errors.is_empty() {
        return Err((Verdict::HardFail, says(&format!("{:?}", run.errors))));
    }
    Ok(if found < acked {
        Verdict::FellBack
    } else {
        Verdict::Pass
    })
}

// Breaks if: a replica counts before it is durable; a record is believed whose containers are
// nowhere; or a restart looks only at the nodes that it runs on.
pub fn nodes_are_lost_at_any_step() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let count = trials(72).div_ceil(ROWS.len());
    for (home, row) in ROWS {
        let outcomes = share_among(2, count, &|n| {
            one(home, &mut Random::new(seed ^ (n as u64) << 8 ^ home as u64))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {seed}, trial {n}"))
            .collect();
        let allowed = [Verdict::Pass, Verdict::ClearFail, Verdict::FellBack];
        table.add(row, &names, &outcomes, &allowed);
    }
    table.finish("nodes are lost with their disks at any step of a job");
}
