//! Implements `orcheck mount`, which shows a directory elsewhere and makes what programs write
//! there durable in the background.
//!
//! Invariants:
//! 1. The mount ends only when no program uses it, or after a second signal.
//! 2. What was staged is flushed before this process ends; what cannot be is named.
//!
//! Not here: the file system (`orcheck-mount`).

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orcheck_format::{Error, Result, count};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{raise_limits, unmount};
use orcheck_io::user::write_file;
use orcheck_mount::{Ended, Found, Mounted, Options, Watch, mount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::args::MountArgs;
use crate::commands::profile::classes::Classes;
use crate::commands::profile::writes::Writes;
use crate::commands::run::not_started;
use crate::output::{Failure, Outcome};
use crate::{exit, stop};

/// Between two looks at the command, the mount and the signals.
const POLL: Duration = Duration::from_millis(20);
/// Between two attempts to unmount what is in use.
const BUSY: Duration = Duration::from_millis(200);
/// Names that are shown of each kind.
const SHOWN: usize = 5;

/// Mounts a directory until it is unmounted, a signal arrives, or a command ends.
pub fn run(args: &MountArgs, json: bool) -> std::result::Result<Outcome, Failure> {
    check(args)?;
    stop::install()?;
    let writes = args
        .profile
        .as_ref()
        .map(|_| Arc::new(Mutex::new(Writes::default())));
    let mounted = mount(
        &options(args),
        Box::new(say),
        watch(&writes),
        Failpoints::none(),
    )?;
    let at = args.mount_point.display();
    tell_found(&mounted.found);
    if args.command.is_empty() && !json {
        let how = match orcheck_io::machine::effective_uid() {
            0 => "umount",
            _ => "fusermount3 -u",
        };
        println!(
            "{} is mounted at {at}; `{how} {at}` ends it",
            args.backing.display()
        );
    }
    let found = found_document(&mounted.found);
    let code = match args.command.split_first() {
        Some(_) => run_command(args).inspect_err(|_| {
            let _ = unmount(&args.mount_point, true);
        })?,
        None => stay(&mounted),
    };
    let cut = leave(args, &mounted)?;
    let ended = mounted.end(cut)?;
    let mut document = json!({
        "durable_files": ended.counts.durable_files,
        "failures": ended.counts.failures,
        "left_files": ended.counts.left_files,
        "found": found,
    });
    if let (Some(path), Some(writes)) = (&args.profile, writes) {
        let writes = writes.lock().unwrap_or_else(PoisonError::into_inner);
        write_file(path, writes.text().as_bytes()).map_err(|error| error.at("--profile"))?;
        let classes = Classes::of(&writes);
        document["profile"] = classes.document();
        if !json {
            // Standard output belongs to the command.
            let _ = write!(std::io::stderr(), "{}", classes.table());
        }
    }
    let warnings = warnings(&ended);
    let worst = if code == exit::OK && !warnings.is_empty() {
        exit::PARTIAL
    } else {
        code
    };
    Ok(Outcome {
        code: worst,
        text: String::new(),
        document,
        warnings,
    })
}

fn check(args: &MountArgs) -> Result<()> {
    let real = |path: &Path| {
        path.canonicalize().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            orcheck_io::errno::os_error(errno, path.display())
        })
    };
    let backing = real(&args.backing)?;
    // A mount whose process was killed answers nothing; mounting takes it away.
    let dead = orcheck_io::machine::is_dead_mount(&args.mount_point);
    let point = if dead {
        args.mount_point.clone()
    } else {
        real(&args.mount_point)?
    };
    let refused = |text: String| {
        Err(Error::invalid(text).next("choose a mount point outside it, or the directory itself"))
    };
    if backing != point && backing.starts_with(&point) {
        return refused(format!(
            "{} is below {}",
            backing.display(),
            point.display()
        ));
    }
    if let Some(stage) = &args.stage {
        let stage = real(stage)?;
        if stage.starts_with(&point) {
            return refused(format!(
                "--stage: {} is below {}",
                stage.display(),
                point.display()
            ));
        }
    }
    Ok(())
}

fn options(args: &MountArgs) -> Options {
    Options {
        backing: args.backing.clone(),
        mount_point: args.mount_point.clone(),
        stage: args.stage.clone(),
        stage_limit_bytes: args.stage_mib.map(|mib| mib << 20),
        by_kernel: !args.no_passthrough,
        write_back: args.write_back,
        many_users: args.allow_other,
        read_only: args.read_only,
    }
}

fn watch(writes: &Option<Arc<Mutex<Writes>>>) -> Option<Watch> {
    let writes = Arc::clone(writes.as_ref()?);
    Some(Box::new(move |one| {
        writes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(&one);
    }))
}

fn say(line: &str) {
    // Nobody may be reading it any more.
    let _ = writeln!(std::io::stderr(), "orcheck: mount: {line}");
}

fn tell_found(found: &Found) {
    let names = |paths: &[std::path::PathBuf]| {
        let shown: Vec<String> = paths
            .iter()
            .take(SHOWN)
            .map(|path| path.display().to_string())
            .collect();
        let more = paths.len().saturating_sub(SHOWN);
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("{}{rest}", shown.join(", "))
    };
    if !found.closed.is_empty() {
        let files = count(found.closed.len() as u64, "file");
        say(&format!(
            "the last mount was killed; {files} that it had staged are flushed now"
        ));
    }
    if !found.open.is_empty() {
        say(&format!(
            "the last mount was killed while programs wrote; these have what had been written until then: {}",
            names(&found.open)
        ));
    }
    for (path, why) in &found.left {
        say(&format!(
            "{} stays in the stage: {why}; look at it, then remove it",
            path.display()
        ));
    }
}

fn found_document(found: &Found) -> serde_json::Value {
    let left: Vec<_> = found
        .left
        .iter()
        .map(|(path, why)| json!({"path": path, "why": why}))
        .collect();
    json!({ "closed": found.closed, "open": found.open, "left": left })
}

fn warnings(ended: &Ended) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(stage) = &ended.left_in {
        let files = count(ended.counts.left_files, "file");
        warnings.push(format!(
            "{files} could not be flushed and stay in {}; mount again with the same --stage when there is room",
            stage.display()
        ));
    } else if ended.counts.failures > 0 {
        let files = count(ended.counts.failures, "attempt");
        warnings.push(format!(
            "{files} to make a file durable failed, as said above"
        ));
    }
    warnings
}

/// Waits until the mount is over or a signal arrives.
fn stay(mounted: &Mounted) -> u8 {
    raise_limits();
    while !mounted.is_over() {
        if let Some(code) = stop::take() {
            return code;
        }
        SystemClock.sleep(POLL);
    }
    exit::OK
}

/// Runs the command, and passes on what asks it to end.
fn run_command(args: &MountArgs) -> std::result::Result<u8, Failure> {
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Error::invalid("no command given"))?;
    let started = Command::new(program).args(rest).spawn();
    let mut child = started.map_err(|error| not_started(program, &error))?;
    // The command keeps the limits that it would have had.
    raise_limits();
    loop {
        if let Some(status) = poll(&mut child)? {
            return Ok(status);
        }
        if let Some(code) = stop::take()
            && code == exit::TERMINATED
            && let Some(pid) = Pid::from_raw(child.id() as i32)
        {
            // From the keyboard it gets the signal itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        SystemClock.sleep(POLL);
    }
}

fn poll(child: &mut Child) -> Result<Option<u8>> {
    use std::os::unix::process::ExitStatusExt;
    let ended = child.try_wait();
    let ended =
        ended.map_err(|error| Error::internal(format!("waiting for the command: {error}")))?;
    Ok(ended.map(|status| {
        let by_signal = status.signal().map(|signal| 128 + signal);
        status
            .code()
            .or(by_signal)
            .map_or(exit::FAILURE, |code| code as u8)
    }))
}

/// Unmounts; `true`: although programs use it, because a signal asked for that.
fn leave(args: &MountArgs, mounted: &Mounted) -> Result<bool> {
    let mut told = false;
    loop {
        if mounted.is_over() || unmount(&args.mount_point, false)? {
            return Ok(false);
        }
        if !std::mem::replace(&mut told, true) {
            say(&format!(
                "{} is in use; waiting for the programs that use it (another signal cuts them off)",
                args.mount_point.display()
            ));
        }
        if stop::take().is_some() {
            unmount(&args.mount_point, true)?;
            return Ok(true);
        }
        SystemClock.sleep(BUSY);
    }
}
