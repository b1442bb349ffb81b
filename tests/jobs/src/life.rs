//! One run of a job from open to close, and what must be true of the directories afterwards.

use crate::ledger::{Ledger, Story, published};
use crate::payload::{Origin, Payload};
use crate::records::sockets_of;
use crate::support::{Job, make_dir};
pub use crate::workloads::*;
use orcheck_client::{Collective, Environment, Options, Session};
use orcheck_engine::directory::Places;
use orcheck_engine::encoding::{Accept, Trust};
use orcheck_engine::restart::{Candidate, RankView, candidates};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::wire::identity_of;
use orcheck_format::{ErrorKind, JobName, Level, Rank, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_io::user::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait inside a run; a run that needs it hangs.
pub const LONG: Duration = Duration::from_secs(30);

/// What `between` is called with after find and restart.
pub const RESTARTED: u64 = u64::MAX;

/// A job as the trials run it.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub ranks: u32,
    pub nodes: u32,
    pub dirs: u32,
    pub node_level: bool,
    /// With the node level: losses of nodes that it survives by replicas.
    pub losses: u8,
    pub keep: usize,
    /// About the KiB of one rank.
    pub scale: usize,
    pub options: &'static str,
    /// With a routed file.
    pub routed: bool,
    /// With a lent region, streamed in the background.
    pub lent: bool,
    /// The next checkpoint is staged while the last is being flushed.
    pub overlapped: bool,
}

/// The key of the encrypted workload.
const KEY: [u8; 32] = [0x5a; 32];

/// Which levels a look at the directories may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    All,
    Only(Level),
}

/// Why a checkpoint was not read.
#[derive(Debug)]
pub enum Trouble {
    /// Somebody said that it cannot be read. (`power` looks at what was said.)
    Refused(orcheck_format::Error),
    /// It was read, and is not what was written.
    Wrong(String),
}

impl Workload {
    /// The job below `root`, with this workload's options.
    pub fn job(&self, root: &Path, failpoints: Failpoints) -> Job {
        let job = Job::new(root, self.ranks, self.dirs, self.node_level)
            .nodes(self.nodes)
            .failpoints(failpoints);
        let mut options = format!(
            "{}keep = {}\npeers = {}\n",
            job.options, self.keep, self.losses
        );
        // In the node's directory where there is one.
        if let Some(place) = self.route_place(root) {
            make_dir(&place);
            options += &format!("route_dir = '{}'\n", place.display());
        }
        for line in self.options.lines() {
            let name = line.split(" = ").next().unwrap_or_default();
            options = options
                .lines()
                .filter(|old| old.split(" = ").next() != Some(name))
                .fold(String::new(), |all, old| all + old + "\n");
            options += line;
            options.push('\n');
        }
        if let Some(key) = self.key(root) {
            options += &format!("encrypt_key = 'file:{}'\n", key.display());
        }
        Job { options, ..job }
    }

    /// Whether what it stores is encrypted.
    fn is_encrypted(&self) -> bool {
        self.options
            .lines()
            .any(|line| line.starts_with("encrypt "))
    }

    /// The file with the key of an encrypted workload.
    fn key(&self, root: &Path) -> Option<PathBuf> {
        if !self.is_encrypted() {
            return None;
        }
        let path = root.join("key");
        if !path.exists() {
            // Whole at once: ranks in other processes may look for it already.
            let unique = root.join(format!("key-{}", std::process::id()));
            std::fs::write(&unique, KEY).unwrap();
            std::fs::set_permissions(&unique, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&unique, &path).unwrap();
        }
        Some(path)
    }

    pub fn trust(&self) -> Arc<Trust> {
        let secret = self.is_encrypted().then(|| Arc::new(Secret::new(KEY)));
        Trust::new(secret.as_slice(), true, Accept::default()).unwrap()
    }

    /// The level of what lies in the directories of the nodes.
    pub fn node_level(&self) -> Level {
        match self.losses {
            0 => Level::Node,
            losses => Level::Peers(losses),
        }
    }

    pub fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        if self.node_level {
            levels.push(self.node_level());
        }
        if self.dirs > 0 {
            levels.push(Level::Global);
        }
        levels
    }

    /// How many directories a level has.
    pub fn dirs_of(&self, level: Level) -> usize {
        match level {
            Level::Global => self.dirs as usize,
            _ => self.nodes as usize,
        }
    }

    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.ranks.div_ceil(self.nodes)
    }

    /// Every directory that holds files of the job.
    pub fn job_dirs(&self, root: &Path) -> Vec<PathBuf> {
        let global = (0..self.dirs).map(|i| root.join(format!("ost{i}/job")));
        let nodes = if self.node_level { self.nodes } else { 0 };
        global
            .chain((0..nodes).map(|n| root.join(format!("local/job/n{n}"))))
            .collect()
    }

    /// The directories as one node sees them, or why it cannot.
    pub fn places(&self, root: &Path, node: u32, view: View) -> orcheck_format::Result<Places> {
        self.places_with(root, node, view, &Failpoints::none())
    }

    /// The same with numbered steps.
    pub fn places_with(
        &self,
        root: &Path,
        node: u32,
        view: View,
        failpoints: &Failpoints,
    ) -> orcheck_format::Result<Places> {
        let wanted = |level| view == View::All || view == View::Only(level);
        let node_root = (self.node_level && wanted(self.node_level())).then(|| root.join("local"));
        let servers: Vec<PathBuf> = if wanted(Level::Global) {
            (0..self.dirs)
                .map(|i| root.join(format!("ost{i}")))
                .collect()
        } else {
            Vec::new()
        };
        let places = Places::open(
            &JobName::new("job")?,
            &format!("n{node}"),
            node_root.as_ref(),
            &servers,
            failpoints,
            false,
        )?;
        Ok(Places {
            losses: self.losses,
            trust: self.trust(),
            ..places
        })
    }

    /// The newest state that all ranks can read, through the engine alone and without claiming
    /// anything.
    pub fn readable(&self, root: &Path, view: View) -> Result<Option<Origin>, String> {
        Ok(self.states(root, view, 1)?.first().copied())
    }

    /// The newest states that all ranks can read, at most this many.
    pub fn states(&self, root: &Path, view: View, most: usize) -> Result<Vec<Origin>, String> {
        let name = JobName::new("job").unwrap();
        let places: Vec<Places> = match (0..self.nodes)
            .map(|node| self.places(root, node, view))
            .collect()
        {
            Ok(places) => places,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("{view:?}: {error}")),
        };
        let offer = candidates(&name, &places[0]).map_err(|error| format!("{view:?}: {error}"))?;
        let mut states = Vec::new();
        for candidate in offer.candidates {
            match self.read(&places, candidate, &mut Vec::new()) {
                Ok(origin) => states.push(origin),
                Err(Trouble::Refused(_)) => {}
                Err(Trouble::Wrong(text)) => return Err(format!("{view:?}: {text}")),
            }
            if states.len() >= most {
                break;
            }
        }
        Ok(states)
    }

    /// One checkpoint, read by all ranks from the places of their nodes, with what is to be said
    /// about it.
    pub fn read(
        &self,
        places: &[Places],
        candidate: Candidate,
        notes: &mut Vec<String>,
    ) -> Result<Origin, Trouble> {
        let mut origins = BTreeSet::new();
        // As in a restart: first all ranks open their part, then they read.
        let views: Vec<RankView> = (0..self.ranks)
            .map(|rank| {
                let place = &places[self.node_of(rank) as usize];
                RankView::open(place, candidate, Rank(rank), self.ranks)
            })
            .collect::<orcheck_format::Result<_>>()
            .map_err(Trouble::Refused)?;
        for (rank, mut view) in (0..).zip(views) {
            let mut state = Payload::blank(rank, self.scale);
            for (region, bytes) in state.memory() {
                if view.region(region).map(|r| r.len_bytes) != Some(bytes.len() as u64) {
                    return Err(Trouble::Wrong(format!(
                        "step {}: region {region} has another length",
                        candidate.step
                    )));
                }
                view.read(region, Span::from_mut(bytes))
                    .map_err(Trouble::Refused)?;
            }
            let mut tail = Vec::new();
            let mut take = |at: u64, bytes: &[u8]| {
                tail.truncate(at as usize);
                tail.extend_from_slice(bytes);
                Ok(())
            };
            view.stream("tail", &mut take).map_err(Trouble::Refused)?;
            notes.append(&mut view.take_notes());
            *state.tail.lock().unwrap() = tail;
            origins.insert(state.origin(rank, self.scale).map_err(Trouble::Wrong)?);
        }
        match origins.into_iter().collect::<Vec<_>>()[..] {
            [origin] if origin.step == candidate.step.0 => Ok(origin),
            ref several => Err(Trouble::Wrong(format!(
                "step {} holds {several:?}",
                candidate.step
            ))),
        }
    }

    /// What is in the directories beyond what run `last` had to leave there.
    pub fn remains(&self, root: &Path, story: &Story, last: u64) -> Vec<String> {
        let told = story.run(last);
        let epoch_of = |run: u64| story.run(run).epoch.unwrap_or(0);
        let resumed = told
            .resumed
            .flatten()
            .map(|from| (from.step, epoch_of(from.run)));
        let mut found = Vec::new();
        if let Some(place) = self.route_place(root) {
            found.extend(
                names(&place)
                    .into_iter()
                    .map(|name| format!("routed/{name}")),
            );
        }
        let dirs = self.job_dirs(root);
        let level_of = |dir: &Path| {
            if dir.starts_with(root.join("local")) {
                self.node_level()
            } else {
                Level::Global
            }
        };
        for dir in &dirs {
            let level = level_of(dir);
            // Each level is pruned by itself; what it has no record of counts for nothing there.
            let recorded = |step: u64, epoch: u64| {
                dirs.iter().filter(|other| level_of(other) == level).flat_map(|other| names(other)).any(|name| {
                    matches!(FileName::parse(&name), Some(FileName::Commit { step: s, epoch: e, .. })
                        if (s, e) == (Step(step), epoch))
                })
            };
            let own = told
                .begun
                .iter()
                .rev()
                .filter(|step| told.acked.contains(&(**step, level)));
            let own = own.map(|&step| (step, epoch_of(last)));
            let kept: Vec<(u64, u64)> = own
                .chain(resumed.filter(|&(s, e)| recorded(s, e)))
                .take(self.keep)
                .collect();
            let few = kept.len() < self.keep;
            let oldest = if few {
                0
            } else {
                kept.iter().map(|&(_, epoch)| epoch).min().unwrap_or(0)
            };
            // What those refer to, and what that refers to, stays as well.
            let records: BTreeMap<(u64, u64), Vec<u64>> = dirs
                .iter()
                .filter(|other| level_of(other) == level)
                .flat_map(|other| refers_in(other))
                .collect();
            // Too few to let go of any: older ones that a restart could use stay as well.
            let spared = |step: u64, epoch: u64| {
                few && recorded(step, epoch) && resumed.is_some_and(|(resumed, _)| step <= resumed)
            };
            let mut open: Vec<(u64, u64)> = records.keys().copied().collect();
            open.retain(|&(step, epoch)| kept.contains(&(step, epoch)) || spared(step, epoch));
            let mut pinned = BTreeSet::new();
            while let Some((step, epoch)) = open.pop() {
                for &older in records.get(&(step, epoch)).into_iter().flatten() {
                    if pinned.insert((older, epoch)) {
                        open.push((older, epoch));
                    }
                }
            }
            for name in names(dir) {
                let expected = match FileName::parse(&name) {
                    Some(
                        FileName::Container { step, epoch, .. }
                        | FileName::Stripe { step, epoch, .. }
                        | FileName::Parity { step, epoch, .. }
                        | FileName::Commit { step, epoch, .. },
                    ) => {
                        kept.contains(&(step.0, epoch))
                            || spared(step.0, epoch)
                            || pinned.contains(&(step.0, epoch))
                    }
                    Some(
                        FileName::Claim { epoch }
                        | FileName::Resumed { epoch }
                        | FileName::Members { epoch },
                    ) => epoch >= oldest,
                    Some(
                        FileName::Temporary(_)
                        | FileName::Halt { .. }
                        | FileName::HaltAt { .. }
                        | FileName::Choice { .. },
                    )
                    | None => false,
                };
                if !expected {
                    found.push(format!("{}/{name} (kept are {kept:?})", dir.display()));
                }
            }
        }
        for parent in (0..self.dirs)
            .map(|i| root.join(format!("ost{i}")))
            .chain(self.node_level.then(|| root.join("local")))
        {
            found.extend(
                names(&parent)
                    .into_iter()
                    .filter(|name| name != "job" && identity_of(name).is_none())
                    .map(|name| format!("{}/{name}", parent.display())),
            );
        }
        found.extend(sockets_of(self, root));
        found
    }
}

/// Names in a directory; none if it is not there.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// What each commit record of a directory refers to, by step and epoch.
fn refers_in(dir: &Path) -> Vec<((u64, u64), Vec<u64>)> {
    let commits = names(dir)
        .into_iter()
        .filter(|name| matches!(FileName::parse(name), Some(FileName::Commit { .. })));
    commits
        .filter_map(|name| {
            let bytes = std::fs::read(dir.join(name)).ok()?;
            let record = CommitRecord::decode(&bytes).ok()?;
            let refers_to = record.refers_to().into_iter().map(u64::from);
            Some(((record.step.0, record.epoch.counter), refers_to.collect()))
        })
        .collect()
}

/// Copies a directory tree. It may be in use: a file that its owner removes meanwhile, such as one
/// that is pruned, is not in the copy.
pub fn copy_tree(from: &Path, to: &Path) {
    make_dir(to);
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
            continue;
        }
        match std::fs::copy(entry.path(), target) {
            Err(error) if !entry.path().exists() => assert_eq!(error.kind(), NotFound),
            copied => drop(copied.unwrap()),
        }
    }
}

/// What one run is to do.
#[derive(Clone)]
pub struct Life {
    pub workload: Workload,
    pub root: PathBuf,
    /// Number of the run in the trial, from 1.
    pub run: u64,
    /// Checkpoints to take after opening.
    pub checkpoints: u64,
    /// More lines of options.
    pub more: String,
    pub failpoints: Failpoints,
    pub clock: Arc<dyn Clock>,
    /// The nodes, where they are not n0, n1, …: the ranks are dealt over them in blocks.
    names: Option<String>,
    /// Every snapshot is waited for until it survives the ranks.
    sealed: bool,
    /// No checkpoint is waited for.
    hurried: bool,
    /// Before it asks for the next one it computes until the node knows what became of the last.
    informed: bool,
    /// Where it tells what happens, if that must be open before it begins.
    ledger: Option<Ledger>,
}

impl Life {
    pub fn new(workload: Workload, root: &Path, run: u64, checkpoints: u64) -> Self {
        Self {
            workload,
            root: root.to_owned(),
            run,
            checkpoints,
            // Whoever asks when checkpoints are due is told of losses too.
            more: "every_steps = 1\n".to_owned(),
            failpoints: published(root),
            clock: Arc::new(SystemClock),
            names: None,
            sealed: false,
            hurried: false,
            informed: false,
            ledger: None,
        }
    }

    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// On nodes of these names, separated by commas.
    pub fn on(mut self, names: &str) -> Self {
        self.names = Some(names.to_owned());
        self
    }

    /// Waits for each snapshot until it survives the ranks.
    pub fn sealed(mut self) -> Self {
        self.sealed = true;
        self
    }

    /// Takes one checkpoint after the other without waiting for any.
    pub fn hurried(mut self) -> Self {
        self.hurried = true;
        self
    }

    /// Computes until the node knows what became of each checkpoint, before the next one.
    pub fn informed(mut self) -> Self {
        self.informed = true;
        self
    }

    /// Opens the ledger now and not when it is first needed.
    pub fn open_ledger(mut self) -> Self {
        self.ledger = Some(Ledger::new(&self.root, self.run));
        self
    }

    pub fn failpoints(mut self, failpoints: Failpoints) -> Self {
        self.failpoints = failpoints;
        self
    }

    pub fn with(mut self, line: &str) -> Self {
        self.more += line;
        self.more.push('\n');
        self
    }

    pub fn ledger(&self) -> Ledger {
        self.ledger
            .clone()
            .unwrap_or_else(|| Ledger::new(&self.root, self.run))
    }

    /// Lives it: open, find and restart, checkpoints, close. What happened is in the ledger.
    /// `between` is called on rank 0 before each checkpoint with its number from 1 (0: opened,
    /// before `find`; [`RESTARTED`]).
    pub fn live(&self, between: &(dyn Fn(u64) + Sync)) {
        let job = Job {
            clock: Arc::clone(&self.clock),
            ..self.workload.job(&self.root, self.failpoints.clone())
        };
        let job = job.with(&self.more);
        job.run(|session, rank| {
            let here = |number| {
                if rank == 0 {
                    between(number);
                }
            };
            let node = self.workload.node_of(rank);
            self.live_rank(session, rank, &format!("n{node}"), &here);
        });
    }

    /// One rank of it in this process, over a collective between processes.
    pub fn live_one(&self, collective: Box<dyn Collective>, between: &(dyn Fn(u64) + Sync)) {
        let own = || format!("n{}", self.workload.node_of(collective.rank().0));
        let node = self.names.clone().unwrap_or_else(own);
        self.live_on(&node, collective, between);
    }

    /// The same on any node.
    pub fn live_on(
        &self,
        node: &str,
        collective: Box<dyn Collective>,
        between: &(dyn Fn(u64) + Sync),
    ) {
        let rank = collective.rank().0;
        let job = self.workload.job(&self.root, self.failpoints.clone());
        let text = format!("{}{}node_name = '{node}'\n", job.options, self.more);
        let environment = Environment {
            failpoints: self.failpoints.clone(),
            clock: Arc::clone(&self.clock),
        };
        let session = Session::open_with("job", collective, Options::from_text(&text), environment);
        self.live_rank(session, rank, node, between);
    }

    fn live_rank(
        &self,
        session: orcheck_format::Result<Session>,
        rank: u32,
        node: &str,
        between: &(dyn Fn(u64) + Sync),
    ) {
        let ledger = self.ledger();
        let lead = rank == 0;
        let complain = |call: &str, error: &orcheck_format::Error| {
            if lead {
                ledger.error(call, error);
            }
        };
        let mut session = match session {
            Ok(session) => session,
            Err(error) => return complain("open", &error),
        };
        if lead {
            ledger.epoch(session.epoch().counter);
        }
        let watching = ledger.clone();
        session.watch(Some(Box::new(move |event| watching.told(rank, event))));
        let levels = self.levels_of(&session);
        between(0);
        let scale = self.workload.scale;
        let mut state = Payload::blank(rank, scale);
        let mut last = 0;
        let found = session.find();
        // Of every rank: what one node sees of a directory, the others may not see.
        while let Some(warning) = session.take_warning() {
            ledger.warning(&warning);
        }
        match found {
            Ok(_) => {
                let protected = state.protect(&mut session, self.workload.routed);
                if let Err(error) = &protected {
                    ledger.error("protect", error);
                }
                let step = match session.restart() {
                    Ok(step) => step,
                    Err(error) => return complain("restart", &error),
                };
                match state.origin(rank, scale) {
                    Ok(origin) if origin.step == step => {
                        last = step;
                        if lead {
                            ledger.resumed(Some(origin));
                        }
                    }
                    Ok(origin) => ledger.wrong(&format!(
                        "restart said step {step}, the bytes are of {origin:?}"
                    )),
                    Err(text) => ledger.wrong(&text),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if lead {
                    ledger.resumed(None);
                }
            }
            Err(error) => return complain("find", &error),
        }
        between(RESTARTED);
        for number in 1..=self.checkpoints {
            let step = last + number;
            let previous = (number > 1).then(|| step - 1);
            between(number);
            if self.workload.lent
                && number > 1
                && let Err(error) = session.lent_done("v", LONG)
            {
                complain("lent_done", &error);
            }
            state = Payload::new(
                rank,
                Origin {
                    run: self.run,
                    step,
                },
                scale,
            );
            if let Err(error) = state.protect(&mut session, self.workload.routed) {
                ledger.error("protect", &error);
            }
            state.write_route(
                rank,
                Origin {
                    run: self.run,
                    step,
                },
            );
            if self.workload.lent {
                let _ = session.lend("v");
            }
            if lead {
                ledger.begun(step);
            }
            if self.informed && number > 1 {
                self.compute_until_decided(node, step - 1, levels.len());
            }
            let due = asked(&ledger, (rank, node), &mut session, |session| {
                session.due(step)
            });
            if let Err(error) = due {
                complain("due", &error);
            }
            let taken = asked(&ledger, (rank, node), &mut session, |session| {
                session.checkpoint(step)
            });
            match taken {
                Ok(()) if lead => ledger.staged(step),
                Ok(()) => {}
                Err(error) => {
                    ledger.refused(rank, step);
                    ledger.error("checkpoint", &error);
                }
            }
            state.scribble(self.workload.lent);
            if self.sealed {
                self.wait_for(&mut session, &ledger, (rank, node), step, Level::Process);
            }
            if self.hurried {
            } else if self.workload.overlapped {
                previous
                    .into_iter()
                    .for_each(|step| self.wait(&mut session, &ledger, (rank, node), step));
            } else {
                self.wait(&mut session, &ledger, (rank, node), step);
            }
        }
        if self.workload.overlapped && self.checkpoints > 0 && !self.hurried {
            self.wait(&mut session, &ledger, (rank, node), last + self.checkpoints);
        }
        ledger.call(rank, node, session.epoch().counter);
        let (closed, warnings) = session.close_telling(LONG);
        warnings.iter().for_each(|warning| ledger.warning(warning));
        ledger.done(rank);
        ledger.left(rank, &levels);
        match closed {
            Ok(()) if lead => ledger.closed(),
            Ok(()) => {}
            Err(error) => complain("close", &error),
        }
    }

    /// Until the node has published as many outcomes of a step, or its engine ended.
    fn compute_until_decided(&self, node: &str, step: u64, outcomes: usize) {
        let clock = SystemClock;
        let until = clock.now() + Duration::from_millis(500);
        while clock.now() < until && Ledger::outcomes(&self.root, node, step) < outcomes {
            std::thread::park_timeout(Duration::from_micros(500));
        }
    }

    /// The levels at which this session has checkpoints: one may be left out when it opens.
    fn levels_of(&self, session: &Session) -> Vec<Level> {
        let is_there = |level: &Level| match session.safe_step(*level) {
            Err(error) => error.kind() != ErrorKind::Unsupported,
            Ok(_) => true,
        };
        self.workload
            .levels()
            .into_iter()
            .filter(is_there)
            .collect()
    }

    fn wait(&self, session: &mut Session, ledger: &Ledger, who: (u32, &str), step: u64) {
        for level in self.workload.levels() {
            self.wait_for(session, ledger, who, step, level);
        }
    }

    fn wait_for(
        &self,
        session: &mut Session,
        ledger: &Ledger,
        who: (u32, &str),
        step: u64,
        level: Level,
    ) {
        // As the C call: it tells.
        let waited = asked(ledger, who, session, |session| {
            let waited = session.wait(step, level, LONG);
            session.poll_outcomes();
            waited
        });
        match waited {
            Ok(()) => ledger.acked(step, level),
            Err(error) if who.0 == 0 => ledger.error(&format!("wait {step} {level}"), &error),
            _ => {}
        }
    }
}

/// A call in which a rank is told of losses, and reads its warnings.
fn asked<T>(
    ledger: &Ledger,
    (rank, node): (u32, &str),
    session: &mut Session,
    call: impl FnOnce(&mut Session) -> T,
) -> T {
    ledger.call(rank, node, session.epoch().counter);
    let result = call(session);
    // Before the warnings are read, which would look again.
    ledger.done(rank);
    // Of every rank: what one node sees of a directory, the others may not see.
    while let Some(warning) = session.take_warning() {
        ledger.warning(&warning);
    }
    result
}
