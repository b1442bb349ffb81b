//! Level global on a staging server, which is killed at each of its steps, or whose disk answers
//! with an error at each of its calls: nothing acknowledged is lost, nobody hangs, and the run
//! continues when there is a server again.
//!
//! What is on the disks is looked at without a server: it serves the directories that the other
//! tests use.

use crate::hooks::{Key, Named};
use orcheck_format::Level;
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict as Do};
use orcheck_jobs::ledger::{Ledger, Story};
use orcheck_jobs::life::{Life, PAIR, STRIPED, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, apart_with, heal, seed, share_among, told, trials,
};
use orcheck_net::{Address, Key as Secret};
use orcheck_staging::server::{Config, Server, Tenant};
use orcheck_testing::ports::bound;
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const CHECKPOINTS: u64 = 4;
/// Where a server writes the names of its steps.
const KEYS: &str = "keys";
/// Longest time from being told to end to the end.
const PROMPTLY: Duration = Duration::from_secs(20);

/// Each rank's container goes to a server of its own, and to its node.
pub const SERVED_PAIR: Workload = Workload {
    name: "2 ranks, 2 nodes, node + global on a server",
    ..PAIR
};

/// Only what the server has is there.
pub const SERVED_STRIPED: Workload = Workload {
    name: "2 ranks, traditional on a server, keep 1",
    ..STRIPED
};

/// A server in a process of its own, before all directories of level global.
pub struct Serving {
    pub child: Child,
    /// What is written here ends it in order.
    line: UnixStream,
    /// Where it listens; nowhere if it was hit before that.
    pub at: Option<Address>,
}

impl Serving {
    fn start(
        workload: Workload,
        root: &Path,
        at: Option<&Address>,
        hook: Option<&Arc<Named>>,
    ) -> Self {
        Self::with(workload, root, at, hook.map(|hook| hook.failpoints()), hook)
    }

    pub fn with(
        workload: Workload,
        root: &Path,
        at: Option<&Address>,
        failpoints: Option<Failpoints>,
        hook: Option<&Arc<Named>>,
    ) -> Self {
        // It makes the directories.
        let _ = workload.job(root, Failpoints::none());
        let tenant = |number: u32| {
            let key = root.join(format!("server-key{number}"));
            std::fs::write(&key, [number as u8; 32]).unwrap();
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
            Tenant {
                name: format!("ost{number}"),
                key: Secret::new([number as u8; 32]),
                quota_bytes: None,
            }
        };
        let config = Config {
            address: at
                .cloned()
                .unwrap_or(Address::Tcp(([127, 0, 0, 1], 0).into())),
            dir: root.to_path_buf(),
            tenants: (0..workload.dirs).map(tenant).collect(),
            pieces: 2,
            at_once: 1,
            order: orcheck_staging::server::Order::Pulled,
            ordinary_share: 0.0,
        };
        let (mut line, mut there) = UnixStream::pair().unwrap();
        let child = Child::run(|| {
            if let Some(hook) = hook {
                hook.arm();
            }
            let failpoints = failpoints.unwrap_or_else(Failpoints::none);
            let bind = || Server::bind(&config, Arc::new(SystemClock), failpoints.clone());
            let server = bound(bind);
            let stopper = server.stopper();
            writeln!(there, "{}", server.address()).unwrap();
            std::thread::spawn(move || {
                let _ = there.read(&mut [0]);
                stopper.stop();
            });
            server.run();
            if let Some(hook) = hook {
                hook.write(&root.join(KEYS));
            }
            0
        });
        // It can be reached, or has ended at a step before that.
        let mut said = Vec::new();
        while let Ok(1..) = (&mut line).take(1).read_to_end(&mut said) {
            if said.ends_with(b"\n") {
                break;
            }
        }
        let said = String::from_utf8(said).unwrap();
        let at = said.trim().parse().ok().or_else(|| at.cloned());
        Self { child, line, at }
    }

    /// The option that puts directories of level global on this server.
    pub fn global(&self, dirs: u32, root: &Path) -> String {
        let at = self.at.as_ref().unwrap().to_string();
        let at = at.replace("tcp:", "orcheck://");
        let place = |number: u32| {
            let key = root.join(format!("server-key{number}"));
            format!("'{at}?key=file:{}'", key.display())
        };
        let places: Vec<String> = (0..dirs).map(place).collect();
        format!("global = [{}]", places.join(", "))
    }

    /// The same job, with its directories on this server.
    fn places(&self, workload: Workload, root: &Path) -> Workload {
        let global = self.global(workload.dirs, root);
        let options = format!("{global}\n{}", workload.options);
        Workload {
            options: options.leak(),
            ..workload
        }
    }

    pub fn end(mut self) -> Ended {
        // Its end would not do: the server has a copy of this side.
        let _ = self.line.write_all(b"!");
        self.child.wait(PROMPTLY)
    }
}

/// Lives a run beside a server that is started again, `again` ms later, whenever it was killed; how
/// both ended, and whether the server was killed.
fn run(
    workload: Workload,
    root: &Path,
    hook: &Arc<Named>,
    checkpoints: u64,
    between: &(dyn Fn(&Serving) + Sync),
    restart: &(dyn Fn() + Sync),
) -> (Ended, Ended, bool) {
    let mut serving = Serving::start(workload, root, None, Some(hook));
    // Its end may not have been noted yet.
    let early = serving.at.is_none();
    if early {
        serving.child.wait(PROMPTLY);
        serving = Serving::start(workload, root, None, None);
    }
    let life = Life::new(serving.places(workload, root), root, 1, checkpoints);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut struck = false;
            while !over.load(Ordering::Acquire) {
                between(&serving);
                if serving.child.has_ended() {
                    struck = true;
                    let at = serving.at.clone();
                    restart();
                    serving = Serving::start(workload, root, at.as_ref(), None);
                }
                std::thread::park_timeout(Duration::from_millis(2));
            }
            (serving.end(), struck)
        });
        let ended = apart_with(&life, &|_| {});
        over.store(true, Ordering::Release);
        let (server, struck) = watcher.join().unwrap();
        (
            ended,
            server,
            early || struck || server == Ended::Signaled(9),
        )
    })
}

fn keys_of(workload: Workload) -> Vec<Key> {
    let mut known = BTreeSet::new();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let scratch = Scratch::in_memory("server");
        let hook = Named::recorder(scratch.path());
        let (ended, server, _) = run(
            workload,
            scratch.path(),
            &hook,
            CHECKPOINTS,
            &|_| {},
            &|| {},
        );
        let story = Story::read(scratch.path());
        let both = [&ended, &server].map(|end| *end == Ended::Exited(0));
        assert!(both == [true; 2] && story.run(1).closed, "{}", told(&story));
        let text = std::fs::read_to_string(scratch.path().join(KEYS)).unwrap();
        let fresh = text
            .lines()
            .map(Key::parse)
            .filter(|key| known.insert(key.clone()));
        keys.extend(fresh);
    }
    keys
}

fn judge(
    workload: Workload,
    root: &Path,
    (ended, server): (Ended, Ended),
    killed: bool,
) -> Result<Verdict, Failure> {
    let story = Story::read(root);
    let fail = |verdict, text: String| Err((verdict, format!("{text}; {}", told(&story))));
    match (ended, server) {
        (Ended::Exited(0), Ended::Exited(0)) => {}
        (Ended::Exited(0), Ended::Signaled(9)) if killed => {}
        (Ended::Hung, _) | (_, Ended::Hung) => return fail(Verdict::Hang, String::new()),
        ended => return fail(Verdict::HardFail, format!("{ended:?}")),
    }
    // An error costs the step that met it, and the one that was being staged. While there is no
    // server, steps go by.
    let refused = |error: &String| error.starts_with("open ") || error.starts_with("find ");
    let opened = !story.run(1).errors.iter().any(refused);
    let lost = (1..=CHECKPOINTS)
        .filter(|&step| !story.run(1).acked.contains(&(step, Level::Global)))
        .count();
    if opened && !killed && lost > 3 {
        return fail(
            Verdict::LostWork,
            format!("{lost} of {CHECKPOINTS} steps were lost"),
        );
    }
    heal(&workload, root, 2).map(|_| Verdict::Pass)
}

fn trial(workload: Workload, key: &Key, what: Do) -> Outcome {
    let scratch = Scratch::in_memory("server");
    let root = scratch.path();
    let hook = Named::at(root, key.clone(), what);
    hit(workload, root, &hook, what == Do::Kill)
}

/// One trial in these directories, with a hook that kills the server, or lets its disk fail.
pub fn hit(workload: Workload, root: &Path, hook: &Arc<Named>, killed: bool) -> Outcome {
    let (ended, server, struck) = run(workload, root, hook, CHECKPOINTS, &|_| {}, &|| {});
    Outcome::of(
        struck || !killed,
        judge(workload, root, (ended, server), killed),
    )
}

// Breaks if: a server acknowledges before it has synced, or a caller takes another connection for
// the one that was lost.
pub fn a_server_is_killed_at_each_of_its_steps() {
    let mut table = Table::default();
    let part = if trials(0) > 0 { 1 } else { 18 };
    let mut words = BTreeSet::new();
    for workload in [SERVED_PAIR, SERVED_STRIPED] {
        let keys = keys_of(workload);
        words.extend(keys.iter().map(|key| {
            let word = key.target.strip_prefix("tcp ").unwrap_or_default();
            format!("{} {word}", key.site)
        }));
        let from = seed() as usize % part;
        let keys: Vec<&Key> = keys.iter().skip(from).step_by(part).collect();
        let outcomes = share_among(4, keys.len(), &|n| trial(workload, keys[n], Do::Kill));
        let names = keys.iter().map(|key| key.to_string().replace('\t', " "));
        let names: Vec<String> = names.collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    // Breaks if: a server does something without a step of its own.
    for step in [
        "net.receive bytes",
        "net.receive create",
        "net.receive sync",
        "net.receive rename",
        "net.receive sync names",
        "net.receive close",
        "net.send told",
        "net.send names",
        "file.write ",
        "file.sync ",
        "dir.create ",
        "dir.rename ",
        "dir.sync ",
        "dir.remove ",
    ] {
        assert!(words.contains(step), "no server is killed at: {step}");
    }
    table.finish("a server is killed at each of its steps, and started again");
}

// Breaks if: a session answers that it is done although its disk said otherwise.
pub fn the_disk_of_a_server_fails_at_each_call() {
    let mut table = Table::default();
    let part = if trials(0) > 0 { 1 } else { 12 };
    for workload in [SERVED_PAIR, SERVED_STRIPED] {
        // A server that does not get its directory for itself does not begin; that is not what is
        // tried here.
        let on_disk = |key: &Key| {
            (key.site.starts_with("file.") || key.site.starts_with("dir."))
                && key.target.contains("/job")
        };
        let keys: Vec<Key> = keys_of(workload).into_iter().filter(on_disk).collect();
        let from = seed() as usize % part;
        let keys: Vec<&Key> = keys.iter().skip(from).step_by(part).collect();
        let outcomes = share_among(4, keys.len(), &|n| {
            let errno = [28, 5, 122][n % 3];
            trial(workload, keys[n], Do::Fail(errno))
        });
        let names = keys.iter().map(|key| key.to_string().replace('\t', " "));
        let names: Vec<String> = names.collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("the disk of a server answers with an error at each of its calls");
}

pub fn a_server_is_killed_at_random_moments() {
    let mut table = Table::default();
    let seed = seed();
    let count = trials(6);
    let outcomes = share_among(3, count, &|n| {
        let scratch = Scratch::in_memory("server");
        let root = scratch.path();
        let random = std::sync::Mutex::new(Random::new(seed ^ n as u64));
        let hook = Named::recorder(root);
        let kill = |serving: &Serving| {
            // About every tenth of a second.
            if random.lock().unwrap().below(50) == 0 {
                serving.child.kill();
            }
        };
        let (ended, _, struck) = run(SERVED_PAIR, root, &hook, 50, &kill, &|| {});
        let result = match ended {
            Ended::Exited(0) => heal(&SERVED_PAIR, root, 2).map(|_| Verdict::Pass),
            Ended::Hung => Err((Verdict::Hang, told(&Story::read(root)))),
            other => Err((
                Verdict::HardFail,
                format!("{other:?}; {}", told(&Story::read(root))),
            )),
        };
        Outcome::of(struck, result)
    });
    let names: Vec<String> = (0..count)
        .map(|n| format!("seed {seed}, trial {n}"))
        .collect();
    table.add(SERVED_PAIR.name, &names, &outcomes, &[Verdict::Pass]);
    table.finish("a server is killed at random moments, again and again");
}

/// What lies on the disk of one of the servers is gone, as if another disk were in its place.
fn empty(root: &Path) {
    let at = root.join("ost1");
    for entry in std::fs::read_dir(&at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
}

// Breaks if: what a server had is taken to be there still because the server answers.
pub fn a_server_comes_back_with_an_empty_disk() {
    let mut table = Table::default();
    let part = if trials(0) > 0 { 1 } else { 30 };
    let keys = keys_of(SERVED_PAIR);
    let from = seed() as usize % part;
    let keys: Vec<&Key> = keys.iter().skip(from).step_by(part).collect();
    let outcomes = share_among(4, keys.len(), &|n| {
        let scratch = Scratch::in_memory("server");
        let root = scratch.path();
        let hook = Named::at(root, keys[n].clone(), Do::Kill);
        let last = AtomicU64::new(0);
        let ends = run(SERVED_PAIR, root, &hook, CHECKPOINTS, &|_| {}, &|| {
            empty(root);
            let begun = Story::read(root).run(1).begun;
            last.store(begun.last().copied().unwrap_or(0), Ordering::Relaxed);
        });
        let (ended, server, struck) = ends;
        // Half of each checkpoint of that level is gone; the nodes' own disks have all of it. Those
        // that began later have to be there.
        Ledger::give_up(root, Level::Global, last.into_inner());
        Outcome::of(struck, judge(SERVED_PAIR, root, (ended, server), true))
    });
    let names: Vec<String> = keys
        .iter()
        .map(|key| key.to_string().replace('\t', " "))
        .collect();
    table.add(SERVED_PAIR.name, &names, &outcomes, &[Verdict::Pass]);
    table.finish("a server is killed, and comes back with an empty disk");
}

/// A disk on which everything takes long.
struct Slow(Duration);

impl FailpointHook for Slow {
    fn at(&self, step: &Failpoint) -> Do {
        if step.site == "file.write" || step.site == "file.sync" || step.site == "dir.sync" {
            std::thread::park_timeout(self.0);
        }
        Do::Go
    }
}

// Breaks if: who waits for a disk is not told that the server lives, or a wait is counted from its
// begin.
pub fn a_server_with_a_slow_disk_loses_nothing() {
    let scratch = Scratch::in_memory("server");
    let root = scratch.path();
    // A checkpoint here takes a few ms elsewhere; each call to this disk takes a hundred times as
    // long.
    let failpoints = Failpoints::with(Arc::new(Slow(Duration::from_millis(100))));
    let serving = Serving::with(SERVED_PAIR, root, None, Some(failpoints), None);
    let life = Life::new(serving.places(SERVED_PAIR, root), root, 1, CHECKPOINTS);
    let ended = apart_with(&life, &|_| {});
    assert_eq!(ended, Ended::Exited(0));
    let story = Story::read(root);
    for step in 1..=CHECKPOINTS {
        let safe = story.run(1).acked.contains(&(step, Level::Global));
        assert!(safe, "step {step}; {}", told(&story));
    }
    assert_eq!(serving.end(), Ended::Exited(0));
    heal(&SERVED_PAIR, root, 2).unwrap();
}
