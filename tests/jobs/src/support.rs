//! Whole jobs inside one process: ranks are threads, nodes are names, payloads say who they are.

use crate::{Deployment, deployment};
use orcheck_client::{Collective, Environment, Options, Session};
use orcheck_engine::host::agent::{Agent, Stop};
use orcheck_format::{Dtype, Error, JobName, Level, Rank, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_net::{Address, Key};
use orcheck_staging::server::{Config, Server, Tenant};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Whether the engine of each node runs in an agent.
fn agents() -> bool {
    deployment() == Deployment::Agent
}

/// Whether the directories of level `global` are reached through servers.
pub fn served() -> bool {
    deployment() == Deployment::Served
}

/// For tests that make disks fail or wait, or look for effects on them: whether the disks are
/// others' here, at servers.
pub fn needs_own_disks() -> bool {
    served()
}

/// The steps of the servers before the directories of a test, where it chose them.
static SERVER_STEPS: Mutex<BTreeMap<PathBuf, Failpoints>> = Mutex::new(BTreeMap::new());

/// The server that will be before the directories below this root takes these steps.
pub fn serve_with(root: &Path, failpoints: &Failpoints) {
    let mut chosen = SERVER_STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    chosen.insert(root.to_path_buf(), failpoints.clone());
}

/// Servers before the directories of a test, each with a key of its own; they live as long as the
/// test program.
static SERVERS: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
/// Directories below one root that can be served.
const SERVED_DIRS: u32 = 8;

/// What stands for the directory `ost{number}` below a root in the options of a job.
fn global_dir(root: &Path, number: u32) -> String {
    let dir = root.join(format!("ost{number}"));
    make_dir(&dir);
    if !served() {
        return dir.display().to_string();
    }
    let key = |number: u32| root.join(format!("key{number}"));
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = servers.entry(root.to_path_buf()).or_insert_with(|| {
        let tenant = |number: u32| {
            write_key(&key(number), &[number as u8; 32]);
            old_disk(&root.join(format!("ost{number}")));
            Tenant {
                name: format!("ost{number}"),
                key: Key::new([number as u8; 32]),
                quota_bytes: None,
            }
        };
        let config = Config {
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            dir: root.to_path_buf(),
            tenants: (0..SERVED_DIRS).map(tenant).collect(),
            pieces: 4,
            at_once: 2,
            order: orcheck_staging::server::Order::Pulled,
            ordinary_share: 0.0,
        };
        let chosen = SERVER_STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = chosen.get(root).cloned().unwrap_or_default();
        let server = Server::bind(&config, Arc::new(SystemClock), steps).unwrap();
        let at = server.address().to_string().replace("tcp:", "orcheck://");
        std::thread::spawn(|| server.run());
        at
    });
    format!("{at}?key=file:{}", key(number).display())
}

/// What messages call `ost{number}` below a root.
pub fn shown(root: &Path, number: u32) -> String {
    let dir = global_dir(root, number);
    dir.split('?').next().unwrap().to_owned()
}

/// Longest wait for the other ranks: a test that would hang fails instead.
const MEETING: Duration = Duration::from_secs(60);

/// A collective over threads: everybody puts something on the table, everybody sees the table.
pub struct Threads {
    rank: u32,
    size: u32,
    table: Arc<Table>,
    pub calls: u64,
}

struct Table {
    state: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    round: u64,
    arrived: Vec<Option<Vec<u8>>>,
    seen: usize,
    shown: Vec<Vec<u8>>,
}

impl Threads {
    /// One per rank.
    pub fn world(size: u32) -> Vec<Threads> {
        let state = Meeting {
            arrived: vec![None; size as usize],
            ..Meeting::default()
        };
        let table = Arc::new(Table {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        (0..size)
            .map(|rank| Threads {
                rank,
                size,
                table: Arc::clone(&table),
                calls: 0,
            })
            .collect()
    }

    fn exchange(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.calls += 1;
        let late = || Error::unavailable("the other ranks did not come to the collective");
        let mut state = self.table.state.lock().unwrap();
        // The last round must have been seen by all before the next one fills the table.
        while state.arrived[self.rank as usize].is_some() {
            let (next, timeout) = self.table.changed.wait_timeout(state, MEETING).unwrap();
            state = next;
            if timeout.timed_out() {
                return Err(late());
            }
        }
        state.arrived[self.rank as usize] = Some(mine);
        let round = state.round;
        if state.arrived.iter().all(Option::is_some) {
            state.shown = state.arrived.iter().flatten().cloned().collect();
            state.seen = 0;
            state.round += 1;
            self.table.changed.notify_all();
        }
        while state.round == round {
            let (next, timeout) = self.table.changed.wait_timeout(state, MEETING).unwrap();
            state = next;
            if timeout.timed_out() {
                return Err(late());
            }
        }
        let shown = state.shown.clone();
        state.seen += 1;
        if state.seen == self.size as usize {
            state.arrived = vec![None; self.size as usize];
            state.seen = 0;
            self.table.changed.notify_all();
        }
        Ok(shown)
    }
}

impl Collective for Threads {
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
        let shown = self.exchange(mine)?;
        assert_eq!(
            shown[root as usize].len(),
            buf.len(),
            "bcast lengths differ"
        );
        buf.copy_from_slice(&shown[root as usize]);
        Ok(())
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let shown = self.exchange(mine.to_vec())?;
        Ok((self.rank == root).then(|| shown.concat()))
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        let mine = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shown = self.exchange(mine)?;
        for other in shown {
            for (value, bytes) in values.iter_mut().zip(other.chunks_exact(8)) {
                *value = (*value).min(i64::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
        Ok(())
    }
}

/// How a test job looks.
#[derive(Clone)]
pub struct Job {
    pub ranks: u32,
    pub ranks_per_node: u32,
    /// The node of each rank, where they are not dealt evenly.
    pub placed: Option<Vec<&'static str>>,
    pub options: String,
    pub failpoints: Failpoints,
    pub clock: Arc<dyn Clock>,
}

impl Job {
    /// `ranks` on one node, level `global` in `dirs` below `root`, and level `node` if asked for.
    pub fn new(root: &Path, ranks: u32, dirs: u32, with_node_level: bool) -> Self {
        let global: Vec<String> = (0..dirs)
            .map(|i| format!("'{}'", global_dir(root, i)))
            .collect();
        let mut options = String::from(
            "chunk = '64 KiB'\npool = '8 MiB'\ntimeout_s = 20.0\ntake_over_wait_s = 0.0\n",
        );
        if dirs > 0 {
            options += &format!("global = [{}]\n", global.join(", "));
        }
        if with_node_level {
            let dir = root.join("local");
            make_dir(&dir);
            options += &format!("node_dir = '{}'\n", dir.display());
        }
        Self {
            ranks,
            ranks_per_node: ranks,
            placed: None,
            options,
            failpoints: Failpoints::none(),
            clock: Arc::new(SystemClock),
        }
    }

    pub fn with(mut self, line: &str) -> Self {
        self.options += line;
        self.options.push('\n');
        self
    }

    /// A run waits this long for another one to end, instead of not at all.
    pub fn waits_for_others(mut self) -> Self {
        let wait = "take_over_wait_s = ";
        self.options = (self.options).replace(&format!("{wait}0.0"), &format!("{wait}20.0"));
        self
    }

    /// Another size of the pool than 8 MiB.
    pub fn pool(mut self, size: &str) -> Self {
        self.options = self.options.replace("'8 MiB'", &format!("'{size}'"));
        self
    }

    pub fn nodes(mut self, nodes: u32) -> Self {
        self.ranks_per_node = self.ranks.div_ceil(nodes);
        self
    }

    /// Ranks on these nodes.
    pub fn placed(mut self, nodes: &[&'static str]) -> Self {
        self.placed = Some(nodes.to_vec());
        self
    }

    pub fn failpoints(mut self, failpoints: Failpoints) -> Self {
        self.failpoints = failpoints;
        self
    }

    fn node_of(&self, rank: u32) -> String {
        match &self.placed {
            Some(nodes) => nodes[rank as usize].to_owned(),
            None => format!("n{}", rank / self.ranks_per_node),
        }
    }

    /// An agent for each node, where the tests want them.
    pub fn agents(&self) -> Vec<(Stop, JoinHandle<Result<()>>)> {
        let nodes: BTreeSet<String> = (0..self.ranks).map(|rank| self.node_of(rank)).collect();
        let options = Options::from_text(&format!("{}agent = 'join'\n", self.options));
        let (Ok(options), true) = (options, agents()) else {
            return Vec::new();
        };
        let root = options
            .global
            .first()
            .or(options.node_dir.as_ref())
            .unwrap();
        let job = JobName::new("job").unwrap();
        let start = |node: &String| {
            let (clock, failpoints) = (Arc::clone(&self.clock), self.failpoints.clone());
            // Another run of the job may have one there.
            let agent = Agent::bind(&job, node, root, clock, failpoints).ok()?;
            let stop = agent.stopper();
            let thread = std::thread::spawn(|| agent.run(Duration::from_secs(60)));
            Some((stop, thread))
        };
        nodes.iter().filter_map(start).collect()
    }

    /// Runs `work` on every rank; results in rank order. A panic in a rank is a panic here.
    pub fn run<T: Send>(&self, work: impl Fn(Result<Session>, u32) -> T + Sync) -> Vec<T> {
        let agents = self.agents();
        let results = self.run_ranks(work);
        for (stop, agent) in agents {
            stop.stop();
            agent.join().unwrap().unwrap();
        }
        results
    }

    /// As [`Self::run`], with the agents that there are.
    pub fn run_ranks<T: Send>(&self, work: impl Fn(Result<Session>, u32) -> T + Sync) -> Vec<T> {
        self.run_ranks_with(agents().then_some("join"), work)
    }

    /// The same in another way of finding agents.
    pub fn run_ranks_with<T: Send>(
        &self,
        agent: Option<&str>,
        work: impl Fn(Result<Session>, u32) -> T + Sync,
    ) -> Vec<T> {
        let worlds = Threads::world(self.ranks);
        std::thread::scope(|scope| {
            let handles: Vec<_> = worlds
                .into_iter()
                .map(|collective| {
                    let work = &work;
                    scope.spawn(move || {
                        let rank = collective.rank;
                        let node = self.node_of(rank);
                        let agent =
                            agent.map_or(String::new(), |agent| format!("agent = '{agent}'\n"));
                        let options = Options::from_text(&format!(
                            "{}{agent}node_name = '{node}'\n",
                            self.options
                        ));
                        let environment = Environment {
                            failpoints: self.failpoints.clone(),
                            clock: Arc::clone(&self.clock),
                        };
                        work(
                            Session::open_with("job", Box::new(collective), options, environment),
                            rank,
                        )
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        })
    }
}

/// Waits until a checkpoint is safe at each of the levels `node` and `global`: a wait for one of
/// them is over once a level that survives more has it.
pub fn wait_for_both_levels(session: &mut Session, step: u64) {
    session.wait(step, Level::Global, MEETING).unwrap();
    let until = Instant::now() + MEETING;
    while session.stats().committed_node_step < Step(step) {
        assert!(Instant::now() < until, "{step} is not safe at level node");
        std::thread::yield_now();
    }
}

/// The warnings that nobody has taken yet.
pub fn warnings(session: &mut Session) -> Vec<String> {
    std::iter::from_fn(|| session.take_warning()).collect()
}

/// Test directories are made by the test, not by the library.
#[allow(clippy::disallowed_methods)]
pub fn make_dir(path: &Path) {
    match std::fs::create_dir_all(path) {
        // What is there is not looked at: the system call for it may be missing in this test.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.unwrap(),
    }
}

/// A directory that servers have stood before since long ago.
#[allow(clippy::disallowed_methods)]
pub fn old_disk(dir: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    make_dir(dir);
    std::fs::set_permissions(dir, mode).unwrap();
    std::fs::write(dir.join("server-0123456789abcdef.id"), "since 1000000000\n").unwrap();
}

/// A key that nobody else can read.
#[allow(clippy::disallowed_methods)]
fn write_key(path: &Path, key: &[u8]) {
    std::fs::write(path, key).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).unwrap();
}

/// A rank's state: every 64 bytes say region, rank, step and offset.
pub struct State {
    pub u: Vec<u8>,
    pub v: Vec<u8>,
    pub small: Vec<u8>,
}

impl State {
    pub fn new(rank: u32, step: u64, scale: usize) -> Self {
        let part = |region: u64, len: usize| {
            let mut bytes = vec![0u8; len];
            for (i, block) in bytes.chunks_mut(64).enumerate() {
                let words = [
                    region,
                    u64::from(rank),
                    step,
                    i as u64 * 64,
                    !step,
                    region ^ 0x5a5a,
                    step * 31,
                    7,
                ];
                for (word, to) in words.iter().zip(block.chunks_mut(8)) {
                    to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
                }
            }
            bytes
        };
        Self {
            u: part(1, scale * 1000 + 17 * rank as usize),
            v: part(2, scale * 317 + 5),
            small: part(3, 24),
        }
    }

    /// Same sizes, no content.
    pub fn empty(rank: u32, scale: usize) -> Self {
        let mut state = Self::new(rank, 0, scale);
        for bytes in [&mut state.u, &mut state.v, &mut state.small] {
            bytes.fill(0xee);
        }
        state
    }

    pub fn protect(&mut self, session: &mut Session) -> Result<()> {
        session.protect("u", Span::from_mut(&mut self.u), Dtype::U8, 0)?;
        session.protect("v", Span::from_mut(&mut self.v), Dtype::U8, 0)?;
        session.protect("small", Span::from_mut(&mut self.small), Dtype::F64, 0)
    }

    /// Restarts, and has the state of this step.
    pub fn restores(session: &mut Session, rank: u32, step: u64, scale: usize) {
        let mut state = State::empty(rank, scale);
        state.protect(session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(state.is(rank, step, scale));
    }

    pub fn is(&self, rank: u32, step: u64, scale: usize) -> bool {
        let expected = Self::new(rank, step, scale);
        self.u == expected.u && self.v == expected.v && self.small == expected.small
    }
}

/// Whether this kernel tracks pages, said aloud if not: regions are then compared.
#[allow(clippy::print_stderr)]
pub fn tracks_pages() -> bool {
    let mut bytes = vec![0u8; 1 << 20];
    let span = Span::from_mut(&mut bytes);
    match orcheck_pool::Tracker::arm(span, &Failpoints::none()) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED: this system cannot track pages: {error}");
            false
        }
    }
}
