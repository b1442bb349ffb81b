//! What happens to a job and its directories between the run that takes steps 1 and 2 and the
//! restart.

use super::NODES;
use crate::agents::agent_at;
use crate::servers::Serving;
use orcheck_client::Session;
use orcheck_format::{ErrorKind, Level, Result};
use orcheck_io::failpoints::{Failpoints, Verdict as Do};
use orcheck_jobs::life::{PAIR, Workload};
use orcheck_jobs::support::{Job, State, make_dir};
use orcheck_jobs::trial::PATIENCE;
use orcheck_testing::{Child, Ended, FaultPlan};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
/// Size of the payload of a rank, in KiB and a bit.
const SCALE: usize = 20;
/// Where the ranks of a run that lives through it write what they are told.
const HEARD: &str = "heard";

/// Where checkpoints go: directories of level `global`, and what a node's directory survives.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    dirs: u32,
    node: bool,
    losses: u8,
}

pub(super) const NODE: Levels = Levels {
    dirs: 0,
    node: true,
    losses: 0,
};
pub(super) const GLOBAL: Levels = Levels {
    dirs: 2,
    node: false,
    losses: 0,
};
pub(super) const BOTH: Levels = Levels { dirs: 1, ..NODE };
pub(super) const PEERS1: Levels = Levels { losses: 1, ..NODE };
pub(super) const PEERS2: Levels = Levels { losses: 2, ..NODE };
pub(super) const PEERS1_GLOBAL: Levels = Levels { losses: 1, ..BOTH };

/// The directories of one scenario.
pub(super) struct Scene<'a> {
    pub(super) root: &'a Path,
    pub(super) levels: Levels,
}

/// What becomes of a job after one of its agents was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Ends,
    /// Another agent takes the place of the one that was killed.
    Continues,
}

impl Scene<'_> {
    pub(super) fn job(&self) -> Job {
        let job = Job::new(self.root, 4, self.levels.dirs, self.levels.node).placed(&NODES);
        match self.levels.losses {
            0 => job,
            losses => job.with(&format!("peers = {losses}")),
        }
    }

    pub(super) fn node_dir(&self, node: &str) -> PathBuf {
        self.root.join("local/job").join(node)
    }

    /// The node's directory is gone.
    pub(super) fn erase(&self, node: &str) {
        std::fs::remove_dir_all(self.node_dir(node)).unwrap();
    }

    /// All files below the root whose path has all of these parts.
    pub(super) fn files(&self, parts: &[&str]) -> Vec<PathBuf> {
        let found = self.files_if_there(parts);
        assert!(!found.is_empty(), "no file is called {parts:?}");
        found
    }

    fn files_if_there(&self, parts: &[&str]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let text = path.strip_prefix(self.root).unwrap().display().to_string();
                if path.is_dir() {
                    dirs.push(path);
                } else if parts.iter().all(|part| text.contains(part)) {
                    found.push(path);
                }
            }
        }
        found
    }

    /// One bit of their data is flipped.
    pub(super) fn corrupt(&self, parts: &[&str]) {
        for path in self.files(parts) {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[9000] ^= 4;
            std::fs::write(&path, bytes).unwrap();
        }
    }

    /// Half of each is left.
    pub(super) fn truncate(&self, parts: &[&str]) {
        for path in self.files(parts) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    }

    /// The directories of the job are elsewhere from now on.
    pub(super) fn move_to(&self, place: &str) {
        let place = self.root.join(place);
        make_dir(&place);
        for name in ["ost0", "ost1", "local"] {
            let from = self.root.join(name);
            if from.exists() {
                std::fs::rename(from, place.join(name)).unwrap();
            }
        }
    }

    /// All files of a directory are in the one above it, which is what a careless copy makes of
    /// them.
    pub(super) fn flatten(&self, dir: &str) {
        let dir = self.root.join(dir);
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let above = dir.parent().unwrap().join(entry.file_name());
            std::fs::rename(entry.path(), above).unwrap();
        }
        std::fs::remove_dir(dir).unwrap();
    }

    pub(super) fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.root.join(from), self.root.join(to)).unwrap();
    }

    /// A node's directory is gone, and those of all nodes that hold copies of its part of step 2.
    pub(super) fn erase_with_partners(&self, node: &str, part: &str) {
        for copy in self.files(&["s000000000002-", part, ".orc"]) {
            let dir = copy.parent().unwrap();
            if dir.starts_with(self.root.join("local")) && dir.exists() {
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
        assert!(
            !self.node_dir(node).exists(),
            "{part} is not of node {node}"
        );
    }

    pub(super) fn remove(&self, parts: &[&str]) {
        assert!(
            self.remove_if_there(parts) > 0,
            "no file is called {parts:?}"
        );
    }

    pub(super) fn remove_if_there(&self, parts: &[&str]) -> usize {
        let files = self.files_if_there(parts);
        for path in &files {
            std::fs::remove_file(path).unwrap();
        }
        files.len()
    }

    /// The run that takes steps 1 and 2.
    pub(super) fn takes_two(&self) {
        let job = self.job();
        let ended = Child::run(|| {
            job.run(|session, rank| takes(session.unwrap(), rank, &[1, 2]));
            0
        });
        assert_eq!(ended.wait(PATIENCE), Ended::Exited(0), "the first run");
    }

    /// Three runs in turn are killed while they read.
    pub(super) fn restart_is_killed(&self) {
        for nth in [1, 3, 4] {
            self.killed("restart.region", "", nth);
        }
    }

    /// A run that resumes and takes step 3 is killed before the nth effect of a site on such a
    /// target.
    pub(super) fn killed(&self, site: &str, target: &str, nth: u64) {
        let plan = FaultPlan::new()
            .at_site(site, nth, Do::Kill)
            .only_where(target);
        let (_, failpoints) = plan.failpoints();
        let job = self.job().failpoints(failpoints);
        let ended = Child::run(|| {
            job.run(|session, rank| {
                takes(resumes(session, rank), rank, &[3]);
            });
            0
        });
        let ended = ended.wait(PATIENCE);
        assert_eq!(ended, Ended::Signaled(9), "{site} of {target}, {nth}");
    }

    /// A run with agents resumes and takes step 3; the agent of a node is killed while it writes
    /// that.
    pub(super) fn agent_is_killed(&self, node: &str, then: Then) {
        let job = self.job();
        let place = if self.levels.dirs > 0 {
            "ost0"
        } else {
            "local"
        };
        let place = self.root.join(place);
        let agent = |node: &str, failpoints| agent_at(&place, node, PATIENCE, || failpoints, || {});
        let others = NODES.iter().filter(|other| **other != node);
        let mut others: Vec<Child> = others
            .map(|other| agent(other, Failpoints::none()))
            .collect();
        let hit = agent(node, killed_in_the_flush());
        let ranks = self.lives(&job, Some("join"), |mut session, rank, heard| {
            stages(&mut session, rank, 3);
            heard(session.wait(3, Level::Node, LONG).unwrap_err().to_string());
            if then == Then::Ends {
                return session.abandon();
            }
            let (closed, told) = session.close_telling(LONG);
            told.into_iter().for_each(heard);
            closed.unwrap();
        });
        assert_eq!(hit.wait(PATIENCE), Ended::Signaled(9), "agent {node}");
        if then == Then::Continues {
            others.push(agent(node, Failpoints::none()));
        }
        assert_eq!(ranks.wait(PATIENCE), Ended::Exited(0), "the ranks");
        for agent in others {
            agent.kill();
            agent.wait(PATIENCE);
        }
    }

    /// A run with a staging server before the directories resumes and takes step 3; the server is
    /// killed while it writes that, and started again before step 4.
    pub(super) fn server_is_killed(&self) {
        let Levels { dirs, node, .. } = self.levels;
        let workload = Workload {
            dirs,
            node_level: node,
            ..PAIR
        };
        let serving =
            |at, failpoints| Serving::with(workload, self.root, at, Some(failpoints), None);
        let hit = serving(None, killed_in_the_flush());
        let job = Job::new(self.root, 4, 0, node)
            .placed(&NODES)
            .with(&hit.global(dirs, self.root));
        let (mut started, again) = UnixStream::pair().unwrap();
        again.set_read_timeout(Some(PATIENCE)).unwrap();
        let ranks = self.lives(&job, None, |mut session, rank, heard| {
            stages(&mut session, rank, 3);
            heard(
                session
                    .wait(3, Level::Global, LONG)
                    .unwrap_err()
                    .to_string(),
            );
            (&again).read_exact(&mut [0]).unwrap();
            // What the killed server was told of names and had not made durable may be gone, which
            // can cost another step.
            stages(&mut session, rank, 4);
            if let Err(error) = session.wait(4, Level::Global, LONG) {
                heard(error.to_string());
                stages(&mut session, rank, 5);
                session.wait(5, Level::Global, LONG).unwrap();
            }
            let (closed, told) = session.close_telling(LONG);
            told.into_iter().for_each(heard);
            closed.unwrap();
        });
        let at = hit.at.clone();
        assert_eq!(hit.child.wait(PATIENCE), Ended::Signaled(9), "the server");
        let hit = serving(at.as_ref(), Failpoints::none());
        started.write_all(&[0; NODES.len()]).unwrap();
        assert_eq!(ranks.wait(PATIENCE), Ended::Exited(0), "the ranks");
        assert_eq!(hit.end(), Ended::Exited(0), "the server");
    }

    /// A run that resumes, and what its ranks hear then.
    fn lives(
        &self,
        job: &Job,
        agent: Option<&str>,
        life: impl Fn(Session, u32, &dyn Fn(String)) + Sync,
    ) -> Child {
        Child::run(|| {
            let heard = std::fs::File::create(self.root.join(HEARD)).unwrap();
            // One call a line: the ranks share the file.
            let hear = |text: String| (&heard).write_all(format!("{text}\n").as_bytes()).unwrap();
            job.run_ranks_with(agent, |session, rank| {
                life(resumes(session, rank), rank, &hear);
            });
            0
        })
    }

    /// What the ranks heard that lived through it.
    pub(super) fn heard(&self) -> String {
        std::fs::read_to_string(self.root.join(HEARD)).unwrap_or_default()
    }
}

/// The process dies before it writes the first bytes of step 3.
fn killed_in_the_flush() -> Failpoints {
    let plan = FaultPlan::new().at_site("file.write", 1, Do::Kill);
    plan.only_where("s000000000003-").failpoints().1
}

/// Resumes from the newest.
fn resumes(session: Result<Session>, rank: u32) -> Session {
    let mut session = session.unwrap();
    let mut state = State::empty(rank, SCALE);
    session.find().unwrap();
    state.protect(&mut session).unwrap();
    session.restart().unwrap();
    session
}

/// Takes a checkpoint of this step.
fn stages(session: &mut Session, rank: u32, step: u64) {
    let mut state = State::new(rank, step, SCALE);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
}

/// Takes checkpoints and ends; what is not safe is a failed test.
fn takes(mut session: Session, rank: u32, steps: &[u64]) {
    for &step in steps {
        stages(&mut session, rank, step);
        session.wait(step, Level::Node, LONG).unwrap();
    }
    session.close(LONG).unwrap();
}

/// What one rank gets at a restart, and what it is told, a line each.
pub(super) fn comes_back(
    session: Result<Session>,
    rank: u32,
) -> (Result<Option<u64>>, Vec<String>) {
    let mut session = match session {
        Ok(session) => session,
        Err(error) => return (Err(error), Vec::new()),
    };
    let mut state = State::empty(rank, SCALE);
    let mut begins = Vec::new();
    let found = match session.find() {
        Ok(_) => (state.protect(&mut session))
            .and_then(|()| session.restart())
            .map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // All ranks are told; one is enough here.
            begins.extend((rank == 0).then(|| error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error),
    };
    if let Ok(Some(step)) = found {
        assert!(state.is(rank, step, SCALE), "rank {rank}: wrong bytes");
    }
    let told = std::iter::from_fn(|| session.take_warning());
    let told = begins.into_iter().chain(told).collect();
    // All ranks are here and have listened: who leaves first is no news to the others.
    if found.is_ok() {
        session.close(LONG).unwrap();
    }
    (found, told)
}
