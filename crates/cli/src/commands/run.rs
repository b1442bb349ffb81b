//! `orcheck run`: starts a command and restarts it after a failure.
//!
//! How: the command gets its own process group, so that a signal reaches all of it. Orcheck is the subreaper of
//! what the command leaves behind: before a restart the group and every orphan of it are asked to end, and
//! killed when the grace time is over, so that two runs never overlap. A new epoch needs nothing from here: a
//! restarted program claims one when it opens its job.
//!
//! Invariants:
//! 1. No process of a run is alive when the next run starts.
//! 2. After SIGTERM, SIGINT or SIGHUP there is no further restart.
//! 3. At most `--restarts` restarts, each with a printed reason; every wait for processes ends at the grace time.
//! 4. A job that was asked to halt since this began is not started again, where its directories can be seen from here.
//! 5. The exit code is that of the last run: its own, or 128 + n when signal n killed it; 13 when a job that was asked to
//!    halt, or to stop by a signal or by `orc_should_stop`, ended well: it is not finished.
//!
//! Faults survived: the command killed anywhere; processes that ignore SIGTERM; a command that fails at the same place
//! again and again, or cannot work at all (no such program, wrong options): it is not restarted for ever, nor at once.
//!
//! | file | what |
//! | --- | --- |
//! | `series.rs` | runs of the command, one after the other, and whether there is another |
//! | `supervisor.rs` | one run: started, watched, signalled, cleared away |
//! | `observer.rs` | what the program tells, and what lies in its directories |
//! | `nodes.rs` | nodes of the allocation, lost and replaced |
//!
//! Not here: placing processes on nodes; that belongs to mpirun, srun or torchrun in the command; what the
//! program tells of its job, and what lies in its directories (`observer.rs`).

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
    // Standard output belongs to the command, so the document for it is empty and never printed.
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

/// Refuses the directory of the job itself in place of the one above it, in which the program makes it.
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
