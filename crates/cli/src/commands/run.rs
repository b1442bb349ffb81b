//! Implements `orcheck run`, which starts a command and restarts it after a failure.
//!
//! How: the command gets its own process group, so that a signal reaches all of it. Orcheck is the
//! subreaper of what the command leaves behind. Before a restart, the group and all its orphans are
//! asked to end, and killed after the grace time, so that two runs never overlap. A new epoch needs
//! nothing from here: a restarted program claims one when it opens its job.
//!
//! Invariants:
//! 1. No process of a run is alive when the next run starts.
//! 2. After SIGTERM, SIGINT or SIGHUP there is no further restart.
//! 3. There are at most `--restarts` restarts, each with a printed reason; every wait for processes
//!    ends at the grace time.
//! 4. A job that was asked to halt since this supervisor began is not started again, if its
//!    directories are visible from here.
//! 5. The exit code is that of the last run: its own, or 128 + n if signal n killed it. It is 13 if
//!    a job ended well after it was asked to halt, or to stop by a signal or by `orc_should_stop`:
//!    the job is not finished.
//!
//! Faults survived: the command is killed anywhere; processes that ignore SIGTERM; a command that
//! fails at the same place again and again, or cannot work at all (no such program, wrong options),
//! which is restarted neither forever nor at once.
//!
//! | file | what |
//! | --- | --- |
//! | `series.rs` | runs the command again and again, and decides whether to continue |
//! | `supervisor.rs` | one run: starts, watches, signals and clears it |
//! | `observer.rs` | what the program reports, and what its directories hold |
//! | `nodes.rs` | nodes of the allocation, lost and replaced |
//!
//! Not here: placing processes on nodes, which mpirun, srun or torchrun does in the command.

mod nodes;
mod observer;
mod series;
mod supervisor;

use crate::args::RunArgs;
use crate::job::{cannot_open, own_directory_of};
use crate::output::{Failure, Outcome};
use orcheck_format::{Error, Result};
use orcheck_io::machine::install_signal;
use rustix::process::set_child_subreaper;
use serde_json::{Value, json};
use series::Series;
use std::path::{Path, PathBuf};
use std::time::Duration;
use supervisor::{FORWARDED, Supervisor};
pub(super) use supervisor::{left_behind, not_started, reap, signal_all};

/// Runs the command to its end.
pub fn run(args: &RunArgs, json_wanted: bool) -> std::result::Result<Outcome, Failure> {
    let grace = seconds("--grace", args.grace)?;
    // A mistyped directory would look like a job that makes no progress.
    for root in args.place.dirs.iter().chain(&args.place.node_dirs) {
        orcheck_staging::open_dir(root, orcheck_io::failpoints::Failpoints::none())
            .map_err(|error| cannot_open(root, error))?;
    }
    for root in &args.place.dirs {
        not_below_a_job(root, args.place.job.as_deref())?;
    }
    for (flag, signal, _) in &FORWARDED {
        install_signal(*signal, flag)?;
    }
    // Without it, orphans of the command escape to the init process; the group is still signalled.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));

    let look = seconds("--look", args.nodes.look)?;
    let first_pause = seconds("--pause", args.pause)?;
    let supervisor = Supervisor::new(args, (look, grace), json_wanted)?;
    let (code, runs) = Series::new(supervisor, first_pause).run()?;
    if json_wanted {
        let mut document = json!({ "event": "summary", "runs": runs });
        crate::output::stamp(&mut document, "run", code);
        eprintln!("{document}");
    }
    // Standard output belongs to the command, so the text for it is empty and the document is never
    // printed.
    Ok(Outcome {
        code,
        text: String::new(),
        document: Value::Null,
        warnings: Vec::new(),
    })
}

fn seconds(option: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Error::invalid(format!("{option} {value}: expected seconds from 0")))
}

/// Refuses the directory of the job itself instead of its parent, in which the program creates it.
fn not_below_a_job(root: &Path, wanted: Option<&str>) -> Result<()> {
    let own = own_directory_of(root);
    // Breaks if: the command is started; the job would begin from nothing below its checkpoints.
    match own.filter(|job| wanted.is_none_or(|wanted| wanted == job.as_str())) {
        None => Ok(()),
        Some(job) => {
            let above = match root.parent() {
                Some(above) if above.as_os_str().is_empty() => PathBuf::from("."),
                Some(above) if root.file_name().is_some() => above.to_owned(),
                _ => root.join(".."),
            };
            Err(Error::invalid(format!(
                "--dir {} is the directory of job {job} itself: the job would begin from nothing, in {}",
                root.display(),
                root.join(job.as_str()).display(),
                job = job.as_str()
            ))
            .next(format!("give --dir {}", above.display())))
        }
    }
}
