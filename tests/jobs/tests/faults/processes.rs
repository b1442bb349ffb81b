//! Every rank a process of its own: one of them is killed at each of its steps, the others must not
//! wait for it.

use crate::hooks::{Key, Named};
use orcheck_client::Collective;
use orcheck_format::{Error, Rank, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Table, Verdict, heal, seed, share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the others in a collective; the death of one is seen at once.
const MEETING: Duration = Duration::from_secs(40);
/// Longest time a survivor may take to its end: far below the timeouts of waits and collectives.
const PROMPTLY: Duration = Duration::from_secs(6);

/// A collective between processes: rank 0 gathers what all put in and shows it to all.
pub struct Hub {
    rank: u32,
    size: u32,
    /// On rank 0 one per other rank, elsewhere the one to rank 0.
    peers: Vec<UnixStream>,
}

impl Hub {
    /// One per rank, to be made before the processes.
    pub fn world(size: u32) -> Vec<Hub> {
        let (mut ends, mut others) = (Vec::new(), Vec::new());
        for rank in 1..size {
            let (one, other) = UnixStream::pair().unwrap();
            for stream in [&one, &other] {
                stream.set_read_timeout(Some(MEETING)).unwrap();
            }
            ends.push(one);
            others.push(Hub {
                rank,
                size,
                peers: vec![other],
            });
        }
        let mut world = vec![Hub {
            rank: 0,
            size,
            peers: ends,
        }];
        world.append(&mut others);
        world
    }

    fn exchange(&mut self, mine: &[u8]) -> std::io::Result<Vec<Vec<u8>>> {
        let read = |stream: &mut UnixStream| -> std::io::Result<Vec<u8>> {
            let mut len = [0; 8];
            stream.read_exact(&mut len)?;
            let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let write = |stream: &mut UnixStream, bytes: &[u8]| -> std::io::Result<()> {
            stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
            stream.write_all(bytes)
        };
        if self.rank > 0 {
            write(&mut self.peers[0], mine)?;
            return (0..self.size).map(|_| read(&mut self.peers[0])).collect();
        }
        let mut all = vec![mine.to_vec()];
        for peer in &mut self.peers {
            all.push(read(peer)?);
        }
        for peer in &mut self.peers {
            for part in &all {
                write(peer, part)?;
            }
        }
        Ok(all)
    }

    fn meet(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange(mine).map_err(|error| {
            // As a parallel environment does: after a failure there is no more meeting.
            self.peers
                .iter()
                .for_each(|peer| drop(peer.shutdown(std::net::Shutdown::Both)));
            Error::unavailable(format!(
                "the other ranks are not in the collective: {error}"
            ))
        })
    }
}

impl Collective for Hub {
    fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        let mine = if self.rank == root {
            buf.to_vec()
        } else {
            Vec::new()
        };
        let all = self.meet(&mine)?;
        buf.copy_from_slice(&all[root as usize]);
        Ok(())
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let all = self.meet(mine)?;
        Ok((self.rank == root).then(|| all.concat()))
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        let mine: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        for other in self.meet(&mine)? {
            for (value, bytes) in values.iter_mut().zip(other.chunks_exact(8)) {
                *value = (*value).min(i64::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
        Ok(())
    }
}

/// Each rank its own CP-thread, one gate for all, a pool that holds one snapshot at a time: every
/// lock is in use.
pub const CORES: Workload = Workload {
    name: "3 processes, a CP-thread each",
    ranks: 3,
    nodes: 1,
    dirs: 1,
    node_level: false,
    losses: 0,
    keep: 2,
    scale: 150,
    options: "scheme = 'core'\npool = '256 KiB'",
    routed: false,
    lent: false,
    overlapped: true,
};

/// Two nodes with a CP-thread each on their lowest rank, both levels.
pub const HOSTS: Workload = Workload {
    name: "4 processes on 2 nodes, node + global",
    ranks: 4,
    nodes: 2,
    dirs: 2,
    node_level: true,
    losses: 0,
    options: "",
    lent: true,
    ..CORES
};

/// A node that passes on what two others say, and is itself below the lead.
pub const TREE: Workload = Workload {
    name: "6 processes on 6 nodes, fan-out 2, node + global",
    ranks: 6,
    nodes: 6,
    options: "fan_out = 2\npool = '512 KiB'",
    scale: 20,
    lent: false,
    ..HOSTS
};

const CHECKPOINTS: u64 = 3;
/// Step 1 is taken in peace.
const FIRST: u64 = 2;

/// A process for each rank that does `work` with its end of the collective.
pub fn each_rank(ranks: u32, work: impl Fn(u32, Box<Hub>)) -> Vec<Child> {
    let mut world: Vec<Option<Hub>> = Hub::world(ranks).into_iter().map(Some).collect();
    let start = |rank: u32| {
        let child = Child::run(|| {
            // Only this rank's ends stay open here: the others must see when somebody dies.
            let mine = world[rank as usize].take();
            world.iter_mut().for_each(|hub| drop(hub.take()));
            work(rank, Box::new(mine.unwrap()));
            0
        });
        // This process keeps no end either, once the rank has its own.
        world[rank as usize] = None;
        child
    };
    (0..ranks).map(start).collect()
}

/// How they ended, in order.
pub fn ends(children: Vec<Child>) -> Vec<Ended> {
    let ends = children.into_iter().map(|child| child.wait(PATIENCE));
    ends.collect()
}

/// Runs the ranks as processes; `hook` is the victim's. How each ended, and how long that took
/// after the victim.
fn run(
    workload: Workload,
    root: &Path,
    victim: u32,
    hook: &Arc<Named>,
    keys: Option<&Path>,
) -> (Vec<Ended>, Duration) {
    let clock = SystemClock;
    let children = each_rank(workload.ranks, |rank, mine| {
        let life = Life::new(workload, root, 1, CHECKPOINTS);
        let life = if rank == victim {
            life.failpoints(hook.failpoints())
        } else {
            life
        };
        let arm = |number| {
            if rank == victim && number == FIRST {
                hook.arm();
            }
        };
        life.live_one(mine, &arm);
        if let Some(path) = keys.filter(|_| rank == victim) {
            hook.write(path);
        }
    });
    let mut children: Vec<(u32, Child)> = (0..).zip(children).collect();
    children.sort_by_key(|(rank, _)| *rank != victim);
    let mut ended = vec![Ended::Hung; workload.ranks as usize];
    let mut begun = clock.now();
    for (rank, child) in children {
        ended[rank as usize] = child.wait(PATIENCE);
        if rank == victim {
            begun = clock.now();
        }
    }
    (ended, clock.now() - begun)
}

fn keys_of(workload: Workload, victim: u32) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut known = BTreeSet::new();
    for _ in 0..2 {
        let scratch = Scratch::in_memory("processes");
        let path = scratch.path().join("keys");
        let hook = Named::recorder(scratch.path());
        let (ended, _) = run(workload, scratch.path(), victim, &hook, Some(&path));
        let story = Story::read(scratch.path());
        assert!(
            ended.iter().all(|end| *end == Ended::Exited(0)) && story.run(1).closed,
            "{ended:?} {}",
            told(&story)
        );
        let text = std::fs::read_to_string(&path).unwrap();
        keys.extend(
            text.lines()
                .map(Key::parse)
                .filter(|key| known.insert(key.clone())),
        );
    }
    keys
}

fn trial(workload: Workload, victim: u32, key: &Key) -> Outcome {
    let scratch = Scratch::in_memory("processes");
    let root = scratch.path();
    let hook = Named::at(root, key.clone(), Do::Kill);
    hit(workload, root, victim, &hook)
}

/// One trial in these directories, with a hook that kills the victim.
pub fn hit(workload: Workload, root: &Path, victim: u32, hook: &Arc<Named>) -> Outcome {
    let (ended, late) = run(workload, root, victim, hook, None);
    let result = judge(&workload, root, victim, &ended, late);
    Outcome::of(
        ended[victim as usize] == Ended::Signaled(9),
        result.map(|()| Verdict::Pass),
    )
}

fn judge(
    workload: &Workload,
    root: &Path,
    victim: u32,
    ended: &[Ended],
    late: Duration,
) -> std::result::Result<(), Failure> {
    let story = Story::read(root);
    let failed = |verdict, text: String| Err((verdict, format!("{text}; {}", told(&story))));
    for (rank, ended) in ended.iter().enumerate() {
        match ended {
            Ended::Exited(0) => {}
            Ended::Signaled(9) if rank == victim as usize => {}
            Ended::Hung => return failed(Verdict::Hang, format!("rank {rank}")),
            ended => {
                return failed(
                    Verdict::HardFail,
                    format!("rank {rank} ended with {ended:?}"),
                );
            }
        }
    }
    if late > PROMPTLY {
        return failed(
            Verdict::Hang,
            format!("the survivors took {:.1} s", late.as_secs_f64()),
        );
    }
    heal(workload, root, 2).map(|_| ())
}

// Breaks if: the control thread forgets a writer that is gone (`NodeEvent::WriterGone` refuses only
// what was collected), or a rank waits for a killed engine until its deadline (`Patience::check`
// does not look at the engine's lock).
pub fn one_rank_is_killed_at_each_of_its_steps() {
    let mut table = Table::default();
    // The runs of several nodes wait more than they work: a part of their steps in the quick check.
    let part = if trials(0) > 0 { 1 } else { 8 };
    for (workload, victim, every) in [
        (CORES, 1, 1),
        (CORES, 0, part.min(2)),
        (HOSTS, 3, 1),
        (HOSTS, 2, part),
        (HOSTS, 0, part),
        (TREE, 1, 3 * part),
        (TREE, 3, 6 * part),
    ] {
        let keys = keys_of(workload, victim);
        let from = seed() as usize % every;
        let keys: Vec<&Key> = keys.iter().skip(from).step_by(every).collect();
        let outcomes = share_among(4, keys.len(), &|n| trial(workload, victim, keys[n]));
        let names: Vec<String> = keys
            .iter()
            .map(|key| key.to_string().replace('\t', " "))
            .collect();
        table.add(
            &format!("{}: rank {victim}", workload.name),
            &names,
            &outcomes,
            &[Verdict::Pass],
        );
    }
    table.finish("one rank of several processes is killed at each of its steps");
}
