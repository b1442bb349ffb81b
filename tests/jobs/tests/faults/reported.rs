//! Every loss is told by the first call that begins after the node knows it, and nothing else is:
//! jobs under faults of each kind, most of them in a hurry, so that later calls meet the losses.
//!
//! How: the seed chooses job, moment and fault. The oracle (`oracle.rs`) reads what each rank was
//! told, what each node published, and what a restart finds. It looks at all other trials too; here
//! it also says how much it looked at.

use crate::agents::{self, AGENT_HOSTS, AGENT_PEERS, AGENT_ROOM, Victim};
use crate::hooks::{Key, Named};
use crate::namespace::Change;
use crate::processes::{self, CORES, HOSTS};
use crate::servers::{self, SERVED_PAIR, SERVED_STRIPED};
use crate::zombie::{RELEASES, stopped_at};
use orcheck_io::failpoints::{Failpoint, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{
    ENCODED, INCREMENTAL, Life, NODES, PAIR, PARITY, PEERS, SOLO, SPREAD, STRIPED, Workload,
};
use orcheck_jobs::oracle::Counts;
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, apart_with, check_records, heal, judged, seed,
    share_among, told, trials,
};
use orcheck_testing::{Ended, Scratch};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHECKPOINTS: u64 = 5;

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// One call of the disk fails.
    Error,
    /// One sync fails.
    Sync,
    /// One message, or one thread of the engine, fails.
    Engine,
    /// There is no room for some time.
    Full,
    /// From some step on a directory answers with errors.
    Dead,
    /// A directory is somewhere else, until the run is over.
    Moved,
    /// A replica cannot be kept.
    Replica,
    /// All ranks are killed.
    Killed,
    /// One rank is killed; the others continue.
    Rank,
    /// The server of level global is killed, and comes back.
    Server,
    /// Its disk fails at one call.
    ServersDisk,
    /// An agent is killed, and another one takes its place.
    Agent,
    /// A newer run takes over.
    Superseded,
}

const ROWS: [(Fault, &str); 13] = [
    (Fault::Error, "one error of the disk"),
    (Fault::Sync, "one failed fsync"),
    (Fault::Engine, "one error in the engine"),
    (Fault::Full, "no room for some time"),
    (Fault::Dead, "a directory dies"),
    (Fault::Moved, "a directory is moved away"),
    (Fault::Replica, "a replica is lost"),
    (Fault::Killed, "all ranks are killed"),
    (Fault::Rank, "one rank is killed"),
    (Fault::Server, "a server is killed"),
    (Fault::ServersDisk, "the disk of a server fails"),
    (Fault::Agent, "an agent is killed"),
    (Fault::Superseded, "a newer run takes over"),
];

/// Error numbers of a disk: no room, input/output error, read-only, quota, stale.
const ERRORS: [i32; 5] = [28, 5, 30, 122, 116];

impl Fault {
    /// Whether it can hit this step, and how.
    fn hits(self, key: &Key, errno: i32) -> Option<Do> {
        let disk = key.site.starts_with("file.") || key.site.starts_with("dir.");
        let of_a_peer = || {
            let held = key.target.strip_prefix("/local/job/n")?;
            let (holder, file) = held.split_once('/')?;
            let (_, owner) = file.split_once("-n000")?;
            Some(!owner.starts_with(holder))
        };
        let what = match self {
            Self::Error | Self::Dead | Self::ServersDisk => disk.then_some(Do::Fail(errno)),
            Self::Sync => key.site.ends_with(".sync").then_some(Do::Fail(5)),
            Self::Engine => (!disk && key.site != "control.published").then_some(Do::Fail(errno)),
            Self::Full => {
                let takes_room = ["file.write", "file.allocate", "dir.create"];
                let takes_room = takes_room.contains(&key.site.as_str());
                takes_room.then_some(Do::Fail(28))
            }
            Self::Replica => (disk && of_a_peer().unwrap_or(false)).then_some(Do::Fail(errno)),
            Self::Moved | Self::Superseded => Some(Do::Go),
            Self::Killed | Self::Rank | Self::Server | Self::Agent => Some(Do::Kill),
        };
        // The name before all directories of a server.
        let job = self != Self::ServersDisk || key.target.contains("/job");
        what.filter(|_| job)
    }

    /// About as many steps as it can hit in two checkpoints.
    fn steps(self) -> u64 {
        match self {
            Self::Sync | Self::Replica => 12,
            Self::Rank => 20,
            Self::Full => 30,
            Self::Engine | Self::Superseded => 40,
            Self::Server | Self::ServersDisk => 70,
            _ => 100,
        }
    }

    /// How many of them, one after the other, are hit.
    fn lasts(self, random: &mut Random) -> u64 {
        match self {
            Self::Full => 1 + random.below(40),
            Self::Dead => u64::MAX,
            _ => 1,
        }
    }

    fn workload(self, random: &mut Random) -> Workload {
        let mut of = |list: &[Workload]| list[random.below(list.len() as u64) as usize];
        match self {
            Self::Dead | Self::Moved => of(&[SPREAD, PAIR, PEERS]),
            Self::Replica => of(&[PEERS, PARITY]),
            Self::Rank => of(&[CORES, HOSTS]),
            Self::Server | Self::ServersDisk => of(&[SERVED_PAIR, SERVED_STRIPED]),
            Self::Agent => of(&[AGENT_ROOM, AGENT_HOSTS, AGENT_PEERS]),
            Self::Superseded => of(&[SOLO, PAIR, STRIPED]),
            _ => of(&[
                SOLO,
                NODES,
                PAIR,
                PEERS,
                PARITY,
                SPREAD,
                STRIPED,
                INCREMENTAL,
                ENCODED,
            ]),
        }
    }
}

/// A hook with which the fault happens from the `first` step on that it can hit; the file says that
/// it did.
fn hook(root: &Path, fault: Fault, random: &mut Random) -> Arc<Named> {
    let errno = ERRORS[random.below(5) as usize];
    let (first, lasts) = (random.below(fault.steps()), fault.lasts(random));
    let beneath = match (fault, random.below(2)) {
        (Fault::Dead, 0) => "/ost1",
        (Fault::Dead, _) => "/ost0",
        _ => "",
    };
    let (count, mark) = (AtomicU64::new(0), root.join(STRUCK));
    let decide = move |key: &Key, _: &Failpoint| {
        let what = fault
            .hits(key, errno)
            .filter(|_| key.target.starts_with(beneath));
        let Some(what) = what else {
            return Do::Go;
        };
        let number = count.fetch_add(1, Ordering::SeqCst);
        if number < first || number - first >= lasts {
            return Do::Go;
        }
        if number == first {
            let _ = std::fs::write(&mark, "");
        }
        what
    };
    Named::new(root, Box::new(decide))
}

/// The file that says that it happened.
const STRUCK: &str = "struck";

/// A job whose ranks are threads of one process, then another run that heals it.
fn lives(fault: Fault, workload: &Workload, root: &Path, random: &mut Random) -> Outcome {
    let hook = match fault {
        Fault::Moved => moves(workload, root, random),
        _ => hook(root, fault, random),
    };
    let begin = 1 + random.below(3);
    let life = Life::new(*workload, root, 1, CHECKPOINTS).failpoints(hook.failpoints());
    let life = match random.below(4) {
        0 => life,
        1 => life.hurried(),
        2 => life.hurried().informed(),
        // Whoever reads a status instead of warnings.
        _ => life.hurried().informed().with("on_loss = 'error'"),
    };
    let ended = apart_with(&life, &|number| {
        if number == begin {
            hook.arm();
        }
    });
    let struck = root.join(STRUCK).exists();
    Outcome::of(struck, after(fault, workload, root, ended))
}

fn after(fault: Fault, workload: &Workload, root: &Path, ended: Ended) -> Result<Verdict, Failure> {
    let story = Story::read(root);
    match ended {
        Ended::Exited(0) => {}
        Ended::Signaled(9) if fault == Fault::Killed => {}
        Ended::Hung => return Err((Verdict::Hang, told(&story))),
        ended => return Err((Verdict::HardFail, format!("{ended:?}; {}", told(&story)))),
    }
    judged(workload, root, &story)?;
    if fault == Fault::Moved {
        for name in ["ost0", "ost1", "local"] {
            let away = root.join("away").join(name);
            if away.exists() {
                std::fs::rename(away, root.join(name)).unwrap();
            }
        }
    }
    // What is not known from its warnings to be given up.
    let given_up = |text: &String| text.contains("takes no more containers");
    if !story.run(1).warnings.iter().any(given_up) && fault != Fault::Moved {
        check_records(workload, root)?;
    }
    heal(workload, root, 2).map(|_| Verdict::Pass)
}

/// A hook that moves a directory of the job away, at a step that the seed chooses.
fn moves(workload: &Workload, root: &Path, random: &mut Random) -> Arc<Named> {
    let mut names = vec!["ost0", "ost1"];
    names.extend(workload.node_level.then_some("local"));
    let name = names[random.below(names.len() as u64) as usize];
    let (dir, away) = (root.join(name), root.join("away").join(name));
    std::fs::create_dir(root.join("away")).unwrap();
    let (count, mark) = (AtomicU64::new(0), root.join(STRUCK));
    let at = random.below(Fault::Moved.steps());
    let decide = move |_: &Key, _: &Failpoint| {
        if count.fetch_add(1, Ordering::SeqCst) == at && Change::Moved.happens(&dir, &away) {
            let _ = std::fs::write(&mark, "");
        }
        Do::Go
    };
    Named::new(root, Box::new(decide))
}

fn one(fault: Fault, random: &mut Random) -> Outcome {
    let scratch = Scratch::in_memory("reported");
    let root = scratch.path();
    let workload = fault.workload(random);
    let mut outcome = match fault {
        Fault::Rank => {
            let victim = random.below(u64::from(workload.ranks)) as u32;
            processes::hit(workload, root, victim, &hook(root, fault, random))
        }
        Fault::Server | Fault::ServersDisk => {
            let killed = fault == Fault::Server;
            servers::hit(workload, root, &hook(root, fault, random), killed)
        }
        Fault::Agent => {
            let victim = Victim::Agent(random.below(u64::from(workload.nodes)) as u32);
            agents::hit(workload, root, victim, &hook(root, fault, random))
        }
        Fault::Superseded => {
            let release = RELEASES[random.below(RELEASES.len() as u64) as usize];
            let (count, at) = (AtomicU64::new(0), random.below(fault.steps()));
            let at = move |_: &Key| count.fetch_add(1, Ordering::SeqCst) == at;
            stopped_at(workload, root, Box::new(at), release)
        }
        _ => lives(fault, &workload, root, random),
    };
    if outcome.verdict == Verdict::Pass {
        match judged(&workload, root, &Story::read(root)) {
            Ok(counts) => outcome.text = counts.to_string(),
            Err(failure) => outcome = Outcome::of(outcome.struck, Err(failure)),
        }
    }
    outcome
}

// Breaks if: a look at the board is left out of a call (`poll_outcomes`), a loss is reported to be
// final while a commit record of it is being written (`undecided`), or a step counts as safe before
// its record is durable in every directory.
pub fn every_loss_is_told_and_nothing_else() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let count = trials(8 * ROWS.len()).div_ceil(ROWS.len());
    let (mut all, mut faulted) = (Counts::default(), 0);
    for (fault, row) in ROWS {
        // They wait more than they compute.
        let outcomes = share_among(6, count, &|n| {
            let random = &mut Random::new(seed ^ (n as u64) << 8 ^ fault as u64);
            let mut outcome = one(fault, random);
            // The seed may have chosen a moment that does not come.
            for _ in 0..3 {
                if !outcome.struck && outcome.verdict == Verdict::Pass {
                    outcome = one(fault, random);
                }
            }
            outcome
        });
        for outcome in &outcomes {
            all += Counts::parse(&outcome.text);
            faulted += usize::from(outcome.struck);
        }
        let names: Vec<String> = (0..count).map(|n| format!("trial {n}")).collect();
        table.add(row, &names, &outcomes, &[Verdict::Pass]);
    }
    let Counts {
        told,
        open,
        in_time,
        safe,
    } = all;
    println!(
        "  {faulted} runs with a fault: {told} times a rank was told of a loss, {open} of them not known to be safe, {in_time} by the \
first call after its node knew; {safe} times that a step is safe"
    );
    table.finish("what is told of checkpoints");
    assert!(told > open && in_time > 0 && safe > 0, "{all:?}");
}
