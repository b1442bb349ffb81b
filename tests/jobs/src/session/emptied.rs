//! A server that comes back before another disk, or not at all, as sessions see it.

use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, old_disk};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_format::{ErrorKind, Level, Result};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Key};
use orcheck_staging::server::{Config, Order, Server, Stopper, Tenant};
use orcheck_testing::Scratch;
use orcheck_testing::ports::bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_job_that_begins_on_a_server_with_an_empty_disk_is_told_so,
    a_job_whose_address_says_which_disk_it_means_does_not_begin_on_another_one,
    a_new_job_whose_server_is_down_is_told_what_to_do,
    a_step_on_a_server_that_was_started_again_is_restored,
    a_step_on_a_server_that_does_not_come_back_is_no_reason_for_an_older_one,
    a_job_whose_node_level_is_whole_starts_although_its_only_server_is_down,
];

/// A server before a directory that can be taken away, and the address that it keeps.
struct Serving {
    root: PathBuf,
    at: Address,
    running: Option<(Stopper, JoinHandle<()>)>,
}

#[allow(clippy::disallowed_methods)] // the operator of the server
impl Serving {
    fn new(root: &Path) -> Self {
        old_disk(&root.join("disk/default"));
        let key = root.join("server-key");
        std::fs::write(&key, [3; 32]).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).unwrap();
        let mut serving = Self {
            root: root.to_owned(),
            at: Address::Tcp(([127, 0, 0, 1], 0).into()),
            running: None,
        };
        serving.start();
        serving
    }

    fn start(&mut self) {
        let config = Config {
            address: self.at.clone(),
            dir: self.root.join("disk"),
            tenants: vec![Tenant {
                name: "default".to_owned(),
                key: Key::new([3; 32]),
                quota_bytes: None,
            }],
            pieces: 4,
            at_once: 2,
            order: Order::Pulled,
            ordinary_share: 0.0,
        };
        let server = bound(|| Server::bind(&config, Arc::new(SystemClock), Failpoints::none()));
        self.at = server.address();
        let stopper = server.stopper();
        self.running = Some((stopper, std::thread::spawn(|| server.run())));
    }

    fn stop(&mut self) {
        if let Some((stopper, thread)) = self.running.take() {
            stopper.stop();
            thread.join().unwrap();
        }
    }

    /// The same server comes back before an empty directory.
    fn replace_disk(&mut self) {
        self.stop();
        std::fs::rename(self.root.join("disk"), self.root.join("away")).unwrap();
        std::fs::create_dir(self.root.join("disk")).unwrap();
        self.start();
    }

    fn url(&self) -> String {
        let at = self.at.to_string().replace("tcp:", "orcheck://");
        format!("{at}?key=file:{}", self.root.join("server-key").display())
    }

    /// A job of two ranks whose only directory is on the server.
    fn job(&self, with_node_level: bool, more: &str) -> Job {
        let job = Job::new(&self.root, 2, 0, with_node_level);
        job.with(&format!("global = ['{}{more}']", self.url()))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

fn take(session: &mut Session, rank: u32, step: u64) {
    let mut state = State::new(rank, step, 10);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
}

fn saves(job: &Job, step: u64) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, step);
        session.wait(step, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

fn warnings(session: &mut Session) -> String {
    let all = crate::support::warnings(session);
    all.join("; ")
}

/// Two checkpoints; a restart whose server ends in between, and comes back or not.
fn restarts(serving: Serving, job: &Job, returns: bool) -> Vec<Result<u64>> {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in [1, 2] {
            take(&mut session, rank, step);
            session.wait(step, Level::Global, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    let serving = Mutex::new(serving);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::empty(rank, 10);
        assert_eq!(session.find().unwrap(), 2);
        state.protect(&mut session).unwrap();
        if rank == 0 {
            let mut serving = serving.lock().unwrap();
            serving.stop();
            if returns {
                serving.start();
            }
        }
        let restarted = session.restart();
        if let Ok(step) = restarted {
            assert!(state.is(rank, step, 10));
            assert_eq!(warnings(&mut session), "");
            session.close(LONG).unwrap();
        }
        restarted
    })
}

// Breaks if: a connection that was lost counts as damage; the job would continue from an older
// step, and supersede one that is whole.
fn a_step_on_a_server_that_was_started_again_is_restored() {
    let scratch = Scratch::new("again");
    let serving = Serving::new(scratch.path());
    let job = serving.job(false, "").with("keep = 3");
    for restarted in restarts(serving, &job, true) {
        assert_eq!(restarted.unwrap(), 2);
    }
}

// Breaks if: the advice is to begin from nothing; checkpoints that are whole would be superseded.
fn a_step_on_a_server_that_does_not_come_back_is_no_reason_for_an_older_one() {
    let scratch = Scratch::new("stays-away");
    let serving = Serving::new(scratch.path());
    let job = serving.job(false, "").with("keep = 3");
    for restarted in restarts(serving, &job, false) {
        let error = restarted.unwrap_err();
        says(
            &error,
            ErrorKind::Unavailable,
            &["step 2 cannot be read now", "then start the job again"],
        );
        assert!(!error.message().contains("fresh"), "{error}");
    }
}

// Breaks if: an empty disk is taken for a job that never ran; it would begin again without anybody
// having said so.
fn a_job_that_begins_on_a_server_with_an_empty_disk_is_told_so() {
    let scratch = Scratch::new("empty-disk");
    let mut serving = Serving::new(scratch.path());
    let job = serving.job(false, "");
    saves(&job, 1);
    let begins = |job: &Job| {
        job.run(|session, _| {
            let mut session = session.unwrap();
            let error = refused(session.find());
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            format!("{error}; {}", warnings(&mut session))
        })
    };
    serving.replace_disk();
    let place = serving.at.to_string().replace("tcp:", "orcheck://");
    let parts = [
        format!("the disk of {place}/job is new, in use since 2"),
        " s ago".to_owned(),
        "its checkpoints there are gone".to_owned(),
    ];
    let said = begins(&job);
    for part in &parts {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
    for (line, next) in [
        ("strict = true", "start = 'fresh'"),
        ("start = 'resume'", "start = 'auto'"),
    ] {
        job.clone().with(line).run(|session, rank| {
            let error = refused(session.unwrap().find());
            let told = rank == 0 || line.starts_with("strict");
            let parts = parts.iter().filter(|_| told).map(String::as_str);
            says(
                &error,
                ErrorKind::Invalid,
                &parts.chain([next]).collect::<Vec<_>>(),
            );
        });
    }
    let silent = |job: &Job| {
        let said = begins(job);
        assert!(
            said.iter().all(|said| !said.contains("the disk of")),
            "{said:?}"
        );
    };
    silent(&job.clone().with("start = 'fresh'"));
    // Once it has something there, it is a job like any other.
    saves(&job.clone().with("start = 'fresh'"), 1);
    job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        assert_eq!(warnings(&mut session), "");
    });
    // And a new job on a disk that has been there for long is nothing to talk about.
    serving.stop();
    old_disk(&scratch.path().join("old/default"));
    move_away(scratch.path(), "disk", "second");
    move_away(scratch.path(), "old", "disk");
    serving.start();
    silent(&job.with("strict = true"));
}

#[allow(clippy::disallowed_methods)] // the operator of the server
fn move_away(root: &Path, from: &str, to: &str) {
    std::fs::rename(root.join(from), root.join(to)).unwrap();
}

// Breaks if: the address says which disk it is to be, and nobody compares.
fn a_job_whose_address_says_which_disk_it_means_does_not_begin_on_another_one() {
    let scratch = Scratch::new("which-disk");
    let mut serving = Serving::new(scratch.path());
    let job = serving.job(false, "&id=0123456789abcdef");
    saves(&job, 1);
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 1));
    serving.replace_disk();
    for line in ["start = 'auto'", "start = 'fresh'", "strict = true"] {
        job.clone().with(line).run(|session, _| {
            let error = refused(session);
            says(
                &error,
                ErrorKind::Unavailable,
                &[
                    "has another disk than the address says",
                    "expected identity 0123456789abcdef",
                    "mount the disk that the server had",
                ],
            );
        });
    }
    // With the disk back in its place it continues.
    serving.stop();
    move_away(scratch.path(), "disk", "second");
    move_away(scratch.path(), "away", "disk");
    serving.start();
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 1));
}

// Breaks if: the error has no next step; a new user would not know whether to wait for the server.
fn a_new_job_whose_server_is_down_is_told_what_to_do() {
    let scratch = Scratch::new("new-down");
    let mut serving = Serving::new(scratch.path());
    let job = serving.job(false, "");
    serving.stop();
    let place = serving.at.to_string().replace("tcp:", "orcheck://");
    let next = format!("make {place} reachable and writable, or leave it out of `global`");
    job.run(|session, _| {
        let error = refused(session);
        let parts = [place.as_str(), "a new job needs all its directories"];
        says(&error, ErrorKind::Unavailable, &parts);
        assert_eq!(error.next_step(), Some(next.as_str()), "{error}");
    });
}

// Breaks if: a server that does not answer keeps a job from what its nodes hold.
fn a_job_whose_node_level_is_whole_starts_although_its_only_server_is_down() {
    let scratch = Scratch::new("server-down");
    let mut serving = Serving::new(scratch.path());
    let job = serving.job(true, "");
    saves(&job, 1);
    serving.stop();
    let said = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        take(&mut session, rank, 2);
        session.wait(2, Level::Node, LONG).unwrap();
        let said = warnings(&mut session);
        session.close(LONG).unwrap();
        said
    });
    let place = serving.at.to_string().replace("tcp:", "orcheck://");
    for said in &said {
        assert!(
            said.contains(&place) && said.contains("node's level only"),
            "{said}"
        );
    }
    // Back with an empty disk: the nodes remember what it should.
    serving.start();
    serving.replace_disk();
    let said = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 2);
        warnings(&mut session)
    });
    for part in [
        &format!("{place}/job holds nothing of earlier runs of job 'job'"),
        "node 'n0' remembers epoch 2",
        "it is new, or was emptied or replaced",
    ] {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
}
