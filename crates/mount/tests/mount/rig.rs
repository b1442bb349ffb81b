//! A mount in a process of its own, which can be killed.
//!
//! Not here: what is tried on it.

use orcheck_io::clock::Deadline;
use orcheck_io::errno::backoff;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{close_inherited, is_dead_mount, unmount};
use orcheck_mount::{Options, SetOptions, mount};
use orcheck_testing::mount::{Mount, mount_over, own_mounts};
use orcheck_testing::{Child, Ended, Scratch};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// How a rig mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    pub by_kernel: bool,
    pub write_back: bool,
    pub stage: Where,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Nowhere,
    InMemory,
    OnDisk,
}

/// Every combination that differs in what it does.
pub const MODES: [Mode; 6] = [
    mode(true, false, Where::Nowhere),
    mode(false, false, Where::Nowhere),
    mode(false, true, Where::Nowhere),
    mode(true, false, Where::OnDisk),
    mode(false, false, Where::InMemory),
    mode(false, true, Where::InMemory),
];

pub const IN_MEMORY: Mode = mode(false, false, Where::InMemory);
pub const ON_DISK: Mode = mode(true, false, Where::OnDisk);
pub const MIB: usize = 1 << 20;

/// How a file is created that is staged.
pub fn fresh() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    options
}

/// Bytes that differ from those of other seeds.
pub fn data(seed: u8, len: usize) -> Vec<u8> {
    let line: Vec<u8> = (0..251u8).map(|byte| byte ^ seed).collect();
    let mut all = line.repeat(len / line.len() + 1);
    all.truncate(len);
    all
}

/// A rig whose backing directory is a file system of this size.
pub fn small(mode: Mode, len: u64) -> Rig {
    let mut rig = Rig::new(mode);
    mount_over(rig.backing(), Mount::Small(len)).unwrap();
    rig.start(Failpoints::none());
    rig
}

pub const fn mode(by_kernel: bool, write_back: bool, stage: Where) -> Mode {
    Mode {
        by_kernel,
        write_back,
        stage,
    }
}

pub struct Rig {
    pub scratch: Scratch,
    memory: Scratch,
    pub mode: Mode,
    pub limit: Option<u64>,
    pub sets: Option<SetOptions>,
    backing: PathBuf,
    child: Option<Child>,
}

/// What the process of a mount said at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub durable: u64,
    pub lost: u64,
    pub left: u64,
    pub passed_through: u64,
    /// Safe, lost, incomplete.
    pub sets: [u64; 3],
}

/// What the process of a mount found at its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundThere {
    pub closed: Vec<String>,
    pub open: Vec<String>,
    pub left: Vec<String>,
    pub restored: Vec<String>,
    pub aside: Vec<String>,
}

impl Rig {
    pub fn new(mode: Mode) -> Rig {
        // Nobody else sees the mounts, and they end with the test.
        own_mounts().unwrap();
        let scratch = Scratch::new("mount");
        let memory = Scratch::in_memory("mount");
        for name in ["backing", "point", "stage"] {
            std::fs::create_dir(scratch.path().join(name)).unwrap();
        }
        Rig {
            backing: scratch.path().join("backing"),
            scratch,
            memory,
            mode,
            limit: None,
            sets: None,
            child: None,
        }
    }

    pub fn started(mode: Mode) -> Rig {
        let mut rig = Rig::new(mode);
        rig.start(Failpoints::none());
        rig
    }

    pub fn backing(&self) -> &Path {
        &self.backing
    }

    pub fn point(&self) -> PathBuf {
        self.scratch.path().join("point")
    }

    pub fn stage(&self) -> Option<PathBuf> {
        match self.mode.stage {
            Where::Nowhere => None,
            Where::InMemory => Some(self.memory.path().to_owned()),
            Where::OnDisk => Some(self.scratch.path().join("stage")),
        }
    }

    /// Files in the stage.
    pub fn staged(&self) -> usize {
        let Some(stage) = self.stage() else { return 0 };
        let Some(dir) = std::fs::read_dir(stage).unwrap().next() else {
            return 0;
        };
        let entries = std::fs::read_dir(dir.unwrap().path()).unwrap();
        let of_bytes = |name: &str| name.ends_with(".open") || name.ends_with(".closed");
        entries
            .filter(|entry| of_bytes(entry.as_ref().unwrap().file_name().to_str().unwrap()))
            .count()
    }

    fn options(&self) -> Options {
        Options {
            backing: self.backing.clone(),
            mount_point: self.point(),
            stage: self.stage(),
            stage_limit_bytes: self.limit,
            passthrough: self.mode.by_kernel,
            write_back: self.mode.write_back,
            read_only: false,
            sets: self.sets.clone(),
        }
    }

    /// Mounts, and returns what was found.
    pub fn start(&mut self, points: Failpoints) -> FoundThere {
        self.begin(points);
        self.started_now()
    }

    /// The same without waiting.
    pub fn begin(&mut self, points: Failpoints) {
        // What a killed one has left.
        let _ = is_dead_mount(&self.point()) && unmount(&self.point(), true).unwrap();
        let (options, scratch) = (self.options(), self.scratch.path().to_owned());
        let _ = std::fs::remove_file(scratch.join("found"));
        let _ = std::fs::remove_file(scratch.join("said"));
        let told = scratch.join("told");
        let child = Child::run(move || {
            // Files of other tests, which would keep their mounts in use.
            close_inherited();
            let tell = Arc::new(move |line: &str| {
                use std::io::Write;
                let file = std::fs::File::options()
                    .append(true)
                    .create(true)
                    .open(&told);
                writeln!(file.unwrap(), "{line}").unwrap();
            });
            let mounted = mount(&options, tell.clone(), None, points).unwrap();
            let found = &mounted.found;
            let text = |paths: &[PathBuf]| -> String {
                paths
                    .iter()
                    .map(|path| format!("\t{}", path.display()))
                    .collect()
            };
            let back = mounted.back.clone().unwrap_or_default();
            let aside = back.aside.iter().map(|(path, _)| path.clone());
            let aside: Vec<PathBuf> = aside.collect();
            let left: String = found
                .left
                .iter()
                .map(|(_, why)| format!("\t{why}"))
                .collect();
            let lines = format!(
                "closed{}\nopen{}\nleft{left}\nrestored{}\naside{}\n",
                text(&found.closed),
                text(&found.open),
                text(&back.restored),
                text(&aside),
            );
            std::fs::write(scratch.join("found.new"), lines).unwrap();
            std::fs::rename(scratch.join("found.new"), scratch.join("found")).unwrap();
            let ended = mounted.end(false, &|| false);
            // The test shows what was told.
            let ended = ended.inspect_err(|error| tell(&error.to_string())).unwrap();
            let counts = ended.counts;
            let said = format!(
                "{} {} {} {}",
                counts.durable_files, counts.lost_files, counts.left_files, ended.passed_through
            );
            let sets = ended.sets.unwrap_or_default();
            let said = format!("{said} {} {} {}", sets.safe, sets.lost, sets.incomplete);
            std::fs::write(scratch.join("said"), said).unwrap();
            0
        });
        self.child = Some(child);
    }

    /// Waits until it is mounted.
    pub fn started_now(&self) -> FoundThere {
        let path = self.scratch.path().join("found");
        wait_until("the mount is there", || path.exists() || self.has_ended());
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines().map(|line| {
            line.split('\t')
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<String>>()
        });
        let mut next = || lines.next().unwrap_or_default();
        FoundThere {
            closed: next(),
            open: next(),
            left: next(),
            restored: next(),
            aside: next(),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.child.as_ref().is_none_or(Child::has_ended)
    }

    /// Lines that the mount told whoever runs it.
    pub fn told(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("told")).unwrap_or_default()
    }

    /// Unmounts, and waits until all is flushed.
    pub fn stop(&mut self) -> Said {
        self.stop_unless_killed().unwrap()
    }

    /// The same; `None` if the process of the mount is killed meanwhile.
    pub fn stop_unless_killed(&mut self) -> Option<Said> {
        self.unmount();
        self.ended()
    }

    /// Unmounts only.
    pub fn unmount(&self) {
        wait_until("nobody uses the mount", || {
            unmount(&self.point(), false).unwrap()
        });
    }

    /// Waits for the process of the mount, which is over.
    pub fn ended(&mut self) -> Option<Said> {
        match self.child.take().unwrap().wait(LONG) {
            Ended::Exited(0) => {}
            Ended::Signaled(libc::SIGKILL) => return None,
            other => panic!("{other:?}: {}", self.told()),
        }
        let text = std::fs::read_to_string(self.scratch.path().join("said")).unwrap();
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Some(Said {
            durable: next(),
            lost: next(),
            left: next(),
            passed_through: next(),
            sets: [next(), next(), next()],
        })
    }

    /// Kills the process of the mount.
    pub fn kill(&mut self) {
        self.kill_only();
        let _ = unmount(&self.point(), true);
    }

    /// The same, and leaves the mount point, which answers nothing: programs that still write do
    /// not get into the directory beneath.
    pub fn kill_only(&mut self) {
        let child = self.child.take().unwrap();
        child.kill();
        child.wait(LONG);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            child.kill();
            child.wait(LONG);
        }
        let _ = unmount(&self.point(), true);
    }
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(LONG);
    let mut attempt = 0;
    while !done() {
        assert!(!deadline.passed(), "waited in vain until {what}");
        backoff(attempt, deadline);
        attempt += 1;
    }
}
