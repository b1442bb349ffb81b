//! What goes through the program's collective: counted in real sessions of several sizes, and
//! carried on.

use orcheck_client::{Collective, Environment, Options, Session};
use orcheck_engine::commit::Tree;
use orcheck_format::{Level, Rank, Result};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::support::{Job, State, Threads};
use orcheck_testing::Scratch;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const SCALE: usize = 2;

/// What one rank gave to the collective, or took from it, in one phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    calls: u64,
    /// Of this rank: given to a reduction or a gather, taken from a broadcast.
    bytes: u64,
    /// Also taken in, by the root of gathers.
    gathered: u64,
}

type Log = Arc<Mutex<(&'static str, BTreeMap<&'static str, Cost>)>>;

/// Counts what goes through a collective.
struct Counting {
    inner: Threads,
    log: Log,
}

impl Counting {
    fn count(&self, bytes: usize, gathered: usize) {
        let mut log = self.log.lock().unwrap();
        let phase = log.0;
        let cost = log.1.entry(phase).or_default();
        cost.calls += 1;
        cost.bytes += bytes as u64;
        cost.gathered += gathered as u64;
    }
}

impl Collective for Counting {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        self.count(buf.len(), 0);
        self.inner.bcast(buf, root)
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let all = self.inner.gather(mine, root)?;
        self.count(mine.len(), all.as_ref().map_or(0, Vec::len));
        Ok(all)
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        self.count(size_of_val(values), 0);
        self.inner.allreduce_min(values)
    }
}

/// What rank 0 and the last rank had to do, by phase.
struct Counted {
    nodes: u32,
    ranks: u32,
    /// Containers at the node that was drawn as a holder most often: what every node says of what
    /// it has is as long as what this one says.
    most: usize,
    first: BTreeMap<&'static str, Cost>,
    last: BTreeMap<&'static str, Cost>,
}

/// Small, so that some nodes are between others and the lead at every size.
const FAN_OUT: u32 = 2;

/// What a node says of one container that it has.
const LISTED_BYTES: f64 = 56.0;

fn count(nodes: u32, per_node: u32) -> Counted {
    let scratch = Scratch::in_memory("scale");
    let ranks = nodes * per_node;
    let job = Job::new(scratch.path(), ranks, 0, true)
        .nodes(nodes)
        .pool("256 KiB")
        .with(&format!("peers = 1\nfan_out = {FAN_OUT}"));
    let logs: Vec<Log> = (0..ranks).map(|_| Log::default()).collect();
    let enter = |rank: u32, phase| logs[rank as usize].lock().unwrap().0 = phase;
    let open = |rank: u32, inner| {
        let text = format!("{}node_name = 'n{:03}'\n", job.options, rank / per_node);
        let log = Arc::clone(&logs[rank as usize]);
        let environment = Environment {
            failpoints: Failpoints::none(),
            clock: Arc::new(SystemClock),
        };
        let options = Options::from_text(&text);
        Session::open_with(
            "job",
            Box::new(Counting { inner, log }),
            options,
            environment,
        )
    };
    each(ranks, &|rank, inner| {
        enter(rank, "open");
        let mut session = open(rank, inner).unwrap();
        let mut take = |step, phase| {
            enter(rank, phase);
            let mut state = State::new(rank, step, SCALE);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Peers(1), LONG).unwrap();
        };
        take(1, "first checkpoint");
        take(2, "checkpoint");
        take(3, "another checkpoint");
        enter(rank, "close");
        session.close(LONG).unwrap();
    });
    let most = (0..nodes)
        .map(|node| containers(&scratch.path().join(format!("local/job/n{node:03}"))))
        .max();
    each(ranks, &|rank, inner| {
        enter(rank, "open again");
        let mut session = open(rank, inner).unwrap();
        enter(rank, "find");
        assert_eq!(session.find().unwrap(), 3);
        let mut state = State::empty(rank, SCALE);
        state.protect(&mut session).unwrap();
        enter(rank, "restart");
        assert_eq!(session.restart().unwrap(), 3);
        assert!(state.is(rank, 3, SCALE));
        enter(rank, "close again");
        session.close(LONG).unwrap();
    });
    let of = |rank: u32| logs[rank as usize].lock().unwrap().1.clone();
    Counted {
        nodes,
        ranks,
        most: most.unwrap(),
        first: of(0),
        last: of(ranks - 1),
    }
}

#[allow(clippy::disallowed_methods)] // Tests may look at files.
fn containers(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".orc")).count()
}

fn each(ranks: u32, work: &(dyn Fn(u32, Threads) + Sync)) {
    std::thread::scope(|scope| {
        for (rank, inner) in (0..).zip(Threads::world(ranks)) {
            scope.spawn(move || work(rank, inner));
        }
    });
}

// Breaks if: a rank table goes through the collective at every checkpoint; or the root of a call
// takes in more than a few bytes of each rank.
#[test]
fn what_goes_through_the_collective() {
    let sizes = [(4, 1), (4, 4), (8, 1), (8, 4), (16, 1), (16, 2)];
    let counted: Vec<Counted> = sizes
        .iter()
        .map(|&(nodes, per_node)| count(nodes, per_node))
        .collect();
    println!("phase                nodes ranks | calls, bytes of a rank | also taken in by rank 0");
    let phases: Vec<&str> = counted[0].first.keys().copied().collect();
    for phase in &phases {
        for one in &counted {
            let (first, last) = (one.first[phase], one.last[phase]);
            println!(
                "{phase:<20} {:>5} {:>5} | {:>5} {:>8} | {:>6}",
                one.nodes, one.ranks, first.calls, first.bytes, first.gathered
            );
            // Rank 0 is as busy as the others, but for gathers.
            assert_eq!(
                (first.calls, first.bytes),
                (last.calls, last.bytes),
                "{phase}"
            );
        }
    }
    for one in &counted {
        // A checkpoint costs the same whatever the size.
        for phase in ["checkpoint", "another checkpoint"] {
            assert_eq!(one.first[phase], counted[0].first["checkpoint"]);
        }
        for (phase, cost) in &one.first {
            assert_eq!(cost.calls, counted[0].first[phase].calls, "{phase}");
            // Rank 0 takes in eight bytes of each rank when a session opens, and nothing else of
            // all ranks.
            let opens = phase.starts_with("open");
            let of_each = if opens { 8 * u64::from(one.ranks) } else { 0 };
            assert_eq!(cost.gathered, of_each, "{phase}");
        }
    }
    // The rest grows with the nodes alone.
    let at = |nodes: u32, ranks: u32| {
        let found = counted
            .iter()
            .find(|one| (one.nodes, one.ranks) == (nodes, ranks));
        found.unwrap()
    };
    println!("bytes of each rank at 10,000 nodes of 64 ranks, fan-out 64:");
    for phase in phases {
        // As if no node had more containers than two steps' own and one of another: the draw
        // differs at each run.
        let cost = |nodes, ranks| {
            let one = at(nodes, ranks);
            let drawn = if phase == "find" {
                one.most as f64 - 3.0
            } else {
                0.0
            };
            one.first[phase].bytes as f64 - drawn * f64::from(nodes) * LISTED_BYTES
        };
        let (small, middle, large) = (cost(4, 4), cost(8, 8), cost(16, 16));
        let (low, high) = ((middle - small) / 4.0, (large - middle) / 8.0);
        let by_ranks = (cost(8, 32) - middle).abs();
        assert!(by_ranks <= 0.1 * middle + 64.0, "{phase}: {by_ranks} more");
        assert!(
            high <= 1.6 * low + 64.0,
            "{phase}: {low}, then {high} bytes a node"
        );
        let relays = Tree::new(16, FAN_OUT).relays().len();
        let bound = large + low.max(high) * (10_000.0 - 16.0);
        println!("  {phase:<20} {bound:>10.0}  ({relays} of 16 nodes were in between)");
    }
}
