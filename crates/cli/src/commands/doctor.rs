//! Implements `orcheck doctor`, which examines this machine and says what to do about problems.
//!
//! Each item has a verdict: `ok`, `note` (Orcheck works, but something is slower or smaller than it
//! could be) or `problem` (something that Orcheck needs fails). The exit code is 0 without
//! problems, and 1 with problems.
//!
//! Invariants:
//! 1. Features are tried, not guessed from version numbers.
//! 2. A directory is examined with one small file whose name ends in `.tmp`; it is removed again.
//! 3. Every item that is not `ok` says what to do.
//!
//! Not here: measurements of speed.

mod directory;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::user::read_text;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::exit;
use crate::job::roots;
use crate::output::{
    Failure, Outcome, Tone, cell, count, draw_together, plain, size, table, table_text,
};

/// How long a program may take to tell its version.
const VERSION_WAIT: Duration = Duration::from_secs(5);
/// Number of open files below which a note is due: containers, locks and sockets of a few dozen
/// ranks fit twice.
const FEW_FILES: u64 = 1024;
/// Locked memory below which a note is due: one staging pool of the smallest useful size.
const LITTLE_LOCKED_BYTES: u64 = 64 << 20;
/// Memory below which a note is due.
const LITTLE_MEMORY_BYTES: u64 = 1 << 30;

/// The verdict on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Ok,
    Note,
    Problem,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Problem => "problem",
        }
    }
}

struct Item {
    group: String,
    name: String,
    mark: Mark,
    found: String,
    advice: String,
}

/// The items of a run, in the order in which they are examined.
#[derive(Default)]
struct Report {
    items: Vec<Item>,
}

impl Report {
    fn add(&mut self, group: &str, name: &str, mark: Mark, found: impl ToString, advice: &str) {
        // Only items that are not ok have advice.
        let advice = if mark == Mark::Ok { "" } else { advice };
        self.items.push(Item {
            group: group.into(),
            name: name.into(),
            mark,
            found: found.to_string(),
            advice: advice.into(),
        });
    }

    fn ok(&mut self, group: &str, name: &str, found: impl ToString) {
        self.add(group, name, Mark::Ok, found, "");
    }
}

/// Examines the machine.
pub fn run(args: &DoctorArgs) -> Result<Outcome, Failure> {
    let mut report = Report::default();
    kernel(&mut report);
    processors(&mut report);
    memory(&mut report);
    limits(&mut report);
    let (placed, per_node) = roots(&args.dirs, &args.node_dirs)?;
    let placed = placed.into_iter().map(|dir| (dir, "placed directory"));
    let per_node = per_node.into_iter().map(|dir| (dir, "node directory"));
    let dirs: Vec<(PathBuf, &str)> = placed.chain(per_node).collect();
    if dirs.is_empty() {
        report.add(
            "directories",
            "given",
            Mark::Note,
            "none",
            "give --dir and --node-dir to have them examined",
        );
    }
    for (dir, role) in &dirs {
        directory::examine(&mut report, dir, role);
    }
    mpi(&mut report);

    Ok(report.outcome())
}

impl Report {
    fn outcome(&self) -> Outcome {
        let of = |mark: Mark| self.items.iter().filter(|item| item.mark == mark).count() as u64;
        let (notes, problems) = (of(Mark::Note), of(Mark::Problem));
        let (table, advice) = self.table_and_advice();
        let text = format!(
            "{table}{advice}\n{}, {}, {} ok\n",
            count(problems, "problem"),
            count(notes, "note"),
            of(Mark::Ok)
        );
        let document = json!({
            "host": orcheck_io::machine::host_name(),
            "problems": problems,
            "notes": notes,
            "items": self.items.iter().map(|item| json!({
                "group": item.group,
                "item": item.name,
                "verdict": item.mark.name(),
                "found": item.found,
                "advice": if item.advice.is_empty() { Value::Null } else { json!(item.advice) },
            })).collect::<Vec<Value>>(),
        });
        Outcome {
            code: match problems {
                0 => exit::OK,
                _ => exit::FAILURE,
            },
            text,
            document,
            warnings: Vec::new(),
        }
    }

    fn table_and_advice(&self) -> (String, String) {
        let mut table = table(&["", "what", "item", "found"]);
        let mut advice = String::new();
        for item in &self.items {
            let tone = match item.mark {
                Mark::Ok => Tone::Good,
                Mark::Note => Tone::Note,
                Mark::Problem => Tone::Bad,
            };
            table.add_row([
                cell(item.mark.name(), tone),
                plain(&item.group),
                plain(&item.name),
                plain(&item.found),
            ]);
            if !item.advice.is_empty() {
                // Not in the table: a command that is broken into the lines of a cell cannot be
                // copied.
                advice += &format!("{}: {}: {}\n", item.group, item.name, item.advice);
            }
        }
        if !advice.is_empty() {
            advice = format!("\nWhat to do:\n{advice}");
        }
        draw_together(&mut table);
        (table_text(&table), advice)
    }
}

fn kernel(report: &mut Report) {
    let group = "kernel";
    let mark = if orcheck_io::machine::kernel_at_least(4, 18) {
        Mark::Ok
    } else {
        Mark::Problem
    };
    report.add(
        group,
        "version",
        mark,
        format!("Linux {}", orcheck_io::machine::kernel_version()),
        "Linux 4.18 or later is needed",
    );
    for probe in orcheck_io::machine::kernel_features() {
        let (lack, advice) = match probe.name {
            "sealed memfd" => (
                Mark::Problem,
                "the staging pool needs memfd_create with seals; check the container's filter",
            ),
            "userfaultfd" => (
                Mark::Note,
                "page tracking for incremental checkpoints needs it: Linux 6.7, or the system call allowed; checksums are compared instead",
            ),
            "PAGEMAP_SCAN" => (
                Mark::Note,
                "page tracking for incremental checkpoints needs Linux 6.7; checksums are compared instead",
            ),
            "MADV_POPULATE_WRITE" => (
                Mark::Note,
                "Linux 5.14 fills the pool's page tables faster; the first checkpoint is slower without",
            ),
            "io_uring" => (
                Mark::Note,
                "Linux 5.19 writes checkpoints with less processor time; plain writes are used",
            ),
            _ => (Mark::Note, "not needed; a fallback is used"),
        };
        if probe.available {
            report.ok(group, probe.name, "available");
        } else {
            report.add(
                group,
                probe.name,
                lack,
                format!("refused: {}", probe.refusal),
                advice,
            );
        }
    }
}

fn processors(report: &mut Report) {
    let group = "processors";
    let cpus = orcheck_io::machine::cpuset();
    let sockets: std::collections::BTreeSet<u32> = cpus
        .iter()
        .map(|&cpu| orcheck_io::machine::cpu_socket(cpu))
        .collect();
    report.ok(
        group,
        "usable",
        format!(
            "{} on {}",
            count(cpus.len() as u64, "processor"),
            count(sockets.len() as u64, "socket")
        ),
    );
    let siblings = cpus
        .iter()
        .filter(|&&cpu| orcheck_io::machine::sibling_of(cpu).is_some())
        .count();
    if siblings > 0 {
        report.ok(
            group,
            "SMT siblings",
            format!("{siblings} of {} have one here", cpus.len()),
        );
    } else {
        report.add(
            group,
            "SMT siblings",
            Mark::Note,
            "none among the usable processors",
            "the thread that flushes shares processors with the program; give the job one more per node if you can",
        );
    }
    if cpus.len() < 2 {
        report.add(
            group,
            "spare",
            Mark::Note,
            "one processor",
            "flushing takes time from the program; give the job two",
        );
    }
    #[cfg(target_arch = "x86_64")]
    {
        let fast = std::arch::is_x86_feature_detected!("avx512f");
        let medium = std::arch::is_x86_feature_detected!("avx2");
        let found = match (fast, medium) {
            (true, _) => "AVX-512",
            (false, true) => "AVX2",
            _ => "neither AVX-512 nor AVX2",
        };
        let mark = if medium || fast { Mark::Ok } else { Mark::Note };
        report.add(
            group,
            "vector copy",
            mark,
            found,
            "staging uses the portable copy, which takes longer",
        );
    }
}

fn memory(report: &mut Report) {
    let group = "memory";
    match orcheck_io::machine::memory() {
        Err(error) => report.add(
            group,
            "facts",
            Mark::Problem,
            error,
            "check that /proc is mounted",
        ),
        Ok(facts) => {
            let usable = facts.usable_bytes();
            let mark = if usable < LITTLE_MEMORY_BYTES {
                Mark::Note
            } else {
                Mark::Ok
            };
            report.add(
                group,
                "usable",
                mark,
                format!(
                    "{} of {} (a quarter of it is the default limit of the staging pool)",
                    size(usable),
                    size(facts.total_bytes)
                ),
                "a small pool works: staging then waits for the flush",
            );
            for (path, limit, used) in &facts.cgroup_limits {
                report.ok(
                    group,
                    "cgroup limit",
                    format!("{} of {} used ({path})", size(*used), size(*limit)),
                );
            }
            let free = facts.shm_free_bytes;
            let mark = if free < 64 << 20 {
                Mark::Note
            } else {
                Mark::Ok
            };
            report.add(
                group,
                "/dev/shm",
                mark,
                format!("{} free", size(free)),
                "MPI libraries use it, and files of programs lie there (orc_route without node_dir); the container's --shm-size or a remount makes it larger",
            );
        }
    }
    huge_pages(report, group);
}

fn huge_pages(report: &mut Report, group: &str) {
    let text = |path: &str| read_text(Path::new(path), 1 << 16).unwrap_or_default();
    let chosen = |list: &str| -> String {
        list.split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or("unknown", |(word, _)| word)
            .to_string()
    };
    let shared = chosen(&text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
    let private = chosen(&text("/sys/kernel/mm/transparent_hugepage/enabled"));
    let mark = if matches!(shared.as_str(), "advise" | "always" | "within_size") {
        Mark::Ok
    } else {
        Mark::Note
    };
    report.add(
        group,
        "huge pages",
        mark,
        format!("transparent: {private}, for shared memory: {shared}"),
        "an administrator can allow them: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    );
    let reserved = text("/proc/meminfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("HugePages_Total:")
                .and_then(|rest| rest.trim().parse::<u64>().ok())
        })
        .unwrap_or(0);
    report.ok(group, "reserved huge pages", reserved);
}

fn limits(report: &mut Report) {
    let group = "limits";
    let shown = |limit: Option<u64>, number: fn(u64) -> String| {
        limit.map_or_else(|| "unlimited".to_string(), number)
    };
    let files = getrlimit(Resource::Nofile).current;
    let mark = if files.is_some_and(|files| files < FEW_FILES) {
        Mark::Note
    } else {
        Mark::Ok
    };
    report.add(
        group,
        "open files",
        mark,
        shown(files, |files| files.to_string()),
        "raise it with ulimit -n",
    );
    let locked = getrlimit(Resource::Memlock).current;
    let mark = if locked.is_some_and(|bytes| bytes < LITTLE_LOCKED_BYTES) {
        Mark::Note
    } else {
        Mark::Ok
    };
    report.add(
        group,
        "locked memory",
        mark,
        shown(locked, size),
        "checkpoints are written with less processor time where it is unlimited (ulimit -l), and RDMA wants it too",
    );
    let file_size = getrlimit(Resource::Fsize).current;
    let mark = if file_size.is_some() {
        Mark::Problem
    } else {
        Mark::Ok
    };
    report.add(
        group,
        "file size",
        mark,
        shown(file_size, size),
        "containers beyond it cannot be written: ulimit -f unlimited",
    );
    let address = getrlimit(Resource::As).current;
    let mark = if address.is_some() {
        Mark::Note
    } else {
        Mark::Ok
    };
    report.add(
        group,
        "address space",
        mark,
        shown(address, size),
        "the staging pool is mapped into every rank: ulimit -v unlimited",
    );
}

/// The MPI implementations that can be started here, and Slurm.
fn mpi(report: &mut Report) {
    let group = "MPI";
    let mut seen: Vec<String> = Vec::new();
    for program in ["mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"] {
        if let Some(version) = version_of(program)
            && !seen.contains(&version)
        {
            report.ok(group, program, &version);
            seen.push(version);
        }
    }
    if seen.is_empty() {
        report.add(
            group,
            "launcher",
            Mark::Note,
            "none found in PATH",
            "needed for MPI programs only: install Open MPI or MPICH, or load its module",
        );
    }
    for (program, purpose) in [("mpicc", "C compiler"), ("mpifort", "Fortran compiler")] {
        match version_of(program) {
            Some(version) => report.ok(group, program, version),
            None => report.add(
                group,
                program,
                Mark::Note,
                "not found in PATH",
                &format!("needed only to build programs: the {purpose} of your MPI"),
            ),
        }
    }
    if let Some(version) = version_of("srun") {
        report.ok("batch system", "srun", version);
    }
}

/// The first line with the version of a program, or `None` if it cannot be started.
fn version_of(program: &str) -> Option<String> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let clock = SystemClock::new();
    let begin = clock.now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if clock.now().saturating_sub(begin) < VERSION_WAIT => {
                clock.sleep(Duration::from_millis(5))
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Some("does not answer".into());
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines
        .next()
        .unwrap_or("version unknown")
        .trim_end_matches(':')
        .to_string();
    // MPICH prints a heading first, and the version below it.
    match lines.find(|line| line.starts_with("Version:")) {
        Some(version) => Some(format!(
            "{first}, {}",
            version.split_whitespace().collect::<Vec<_>>().join(" ")
        )),
        None => Some(first),
    }
}
