//! Implements `orcheck mount`, which shows a directory elsewhere and makes what programs write
//! there durable in the background.
//!
//! Invariants:
//! 1. The mount ends only when no program uses it, or after a second signal.
//! 2. What was staged is flushed before this process ends; what cannot be is named.
//!
//! Not here: the file system (`orcheck-mount`); what is told (`mount/messages.rs`).

mod messages;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orcheck_format::{Error, ErrorKind, Result, count};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Inode;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{is_dead_mount, mount_of, raise_limits, unmount};
use orcheck_io::user::{env_var, write_file};
use orcheck_mount::{Mounted, Options, Pattern, SETS, SOURCE, SetOptions, Watch, mount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::args::MountArgs;
use crate::commands::profile::classes::Classes;
use crate::commands::profile::writes::Writes;
use crate::commands::run::not_started;
use crate::output::{Failure, Outcome};
use crate::{exit, stop};
use messages::{found_document, say, sets_document, tell_back, tell_found, tell_kept, warnings};

/// Between two looks at the command, the mount and the signals.
const POLL: Duration = Duration::from_millis(20);
/// Between two attempts to unmount what is in use.
const BUSY: Duration = Duration::from_millis(200);
static HUNG_UP: AtomicBool = AtomicBool::new(false);
/// Whether the directory is mounted; until then, the first signal ends all waiting.
static MOUNTED: AtomicBool = AtomicBool::new(false);
/// Nobody waits for the mounts of other nodes any more.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Variables in which launchers give the rank.
const RANKS: [&str; 5] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "RANK",
];

/// Mounts a directory until it is unmounted, a signal arrives, or a command ends.
pub fn run(args: &MountArgs, json: bool) -> std::result::Result<Outcome, Failure> {
    let places = places(args)?;
    stop::install()?;
    orcheck_io::machine::install_signal(stop::SIGHUP, &HUNG_UP)?;
    let writes = args
        .profile
        .as_ref()
        .map(|_| Arc::new(Mutex::new(Writes::default())));
    // Sets may have many files.
    if args.job.is_some() {
        raise_limits();
    }
    let mounted = mount(
        &options(args, &places)?,
        Arc::new(say),
        watch(&writes),
        Failpoints::none(),
    )?;
    MOUNTED.store(true, Ordering::Relaxed);
    tell_found(&mounted.found);
    let back = mounted.back.clone();
    back.iter().for_each(tell_back);
    if args.command.is_empty() && !json {
        tell_mounted(args);
    }
    let found = found_document(&mounted.found);
    let unflushed = mounted.found.left.len() as u64;
    let code = match args.command.is_empty() {
        true => Ok(stay(&mounted)),
        false => run_command(args),
    };
    // Breaks if: only the mount is asked; it learns of it a little later than the command's end.
    let there = mount_of(&places.point).is_some_and(|(source, _)| source.starts_with(SOURCE));
    let gone = !args.command.is_empty() && (mounted.is_over() || !there);
    // Whatever happened: what is staged is flushed.
    let left = match &code {
        Ok(_) => leave(&places.point, &mounted),
        Err(_) => unmount(&places.point, true),
    };
    let ended = mounted.end(!matches!(left, Ok(false)), &gives_up)?;
    left?;
    tell_kept(ended.sets.as_ref());
    let mut warnings = warnings(&ended);
    if gone {
        warnings.push(format!(
            "{} was unmounted while the command ran: what it wrote there since is not in {}",
            args.mount_point.display(),
            args.backing.display()
        ));
    }
    if unflushed > 0 {
        let files = count(unflushed, "file");
        warnings.push(format!(
            "{files} of an earlier mount stay in the stage, as reported above"
        ));
    }
    let document = json!({
        "durable_files": ended.counts.durable_files,
        "lost_files": ended.counts.lost_files,
        "passed_through_files": ended.passed_through,
        "left_files": ended.counts.left_files,
        "found": found,
        "sets": sets_document(ended.sets.as_ref(), back.as_ref()),
    });
    finish(args, json, code?, document, (warnings, writes))
}

fn tell_mounted(args: &MountArgs) {
    let how = match orcheck_io::machine::effective_uid() {
        0 => "umount",
        _ => "fusermount3 -u",
    };
    let at = args.mount_point.display();
    println!(
        "{} is mounted at {at}; `{how} {at}` ends it: then wait for the end of this program",
        args.backing.display()
    );
}

type Shared = Option<Arc<Mutex<Writes>>>;

fn finish(
    args: &MountArgs,
    json: bool,
    code: u8,
    mut document: serde_json::Value,
    (warnings, writes): (Vec<String>, Shared),
) -> std::result::Result<Outcome, Failure> {
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
    let code = match code {
        exit::OK if !warnings.is_empty() => exit::PARTIAL,
        code => code,
    };
    Ok(Outcome {
        code,
        text: String::new(),
        document,
        warnings,
    })
}

/// The directories, by their real paths.
struct Places {
    backing: PathBuf,
    point: PathBuf,
    stage: Option<PathBuf>,
}

fn places(args: &MountArgs) -> Result<Places> {
    if is_dead_mount(&args.mount_point) {
        // The process of the last mount was killed; nothing answers there.
        unmount(&args.mount_point, true)?;
    }
    let backing = directory("BACKING", &args.backing)?;
    let point = directory("MOUNTPOINT", &args.mount_point)?;
    let stage = args.stage.as_deref();
    let stage = stage.map(|stage| directory("--stage", stage)).transpose()?;
    if backing != point {
        apart("MOUNTPOINT", &point, &backing)?;
        apart("BACKING", &backing, &point)?;
        check_point(&point)?;
    }
    for outer in [&point, &backing] {
        stage
            .iter()
            .try_for_each(|stage| apart("--stage", stage, outer))?;
    }
    if let Some(profile) = &args.profile {
        let above = match profile.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        };
        apart("--profile", &directory("--profile", above)?, &point)?;
        // Tried now, and not after hours.
        write_file(profile, b"").map_err(|error| error.at("--profile"))?;
    }
    Ok(Places {
        backing,
        point,
        stage,
    })
}

fn real(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        orcheck_io::errno::os_error(errno, path.display())
    })
}

fn directory(what: &str, path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let found = real(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("{what}: {shown} does not exist"))
            .next("make the directory, or check the path"),
        _ => error.at(what),
    })?;
    if found.is_dir() {
        return Ok(found);
    }
    Err(Error::invalid(format!(
        "{what}: {shown} is not a directory"
    )))
}

/// Refuses what is the other directory or below it.
fn apart(what: &str, inner: &Path, outer: &Path) -> Result<()> {
    if !inner.starts_with(outer) {
        return Ok(());
    }
    let how = if inner == outer { "is" } else { "is below" };
    let text = format!("{what}: {} {how} {}", inner.display(), outer.display());
    Err(Error::invalid(text).next("choose one that is neither above nor below it"))
}

/// A mount point has to be empty, and nobody else's.
fn check_point(point: &Path) -> Result<()> {
    let mounted = mount_of(point).filter(|(source, _)| source.starts_with(SOURCE));
    if let Some((source, _)) = mounted {
        let text = format!(
            "MOUNTPOINT: {source} is mounted at {} already",
            point.display()
        );
        return Err(Error::invalid(text).next("end that mount first, or choose another directory"));
    }
    let entries = Inode::root(point, Failpoints::none()).and_then(|dir| dir.list());
    let is_name = |name: &[u8]| !matches!(name, b"." | b"..");
    // What cannot be listed can be mounted over.
    if !entries.is_ok_and(|entries| {
        let mut names = entries.flatten();
        names.any(|entry| is_name(entry.file_name().to_bytes()))
    }) {
        return Ok(());
    }
    let text = format!(
        "MOUNTPOINT: {} is not empty; the mount would hide what is there",
        point.display()
    );
    Err(Error::invalid(text).next("choose an empty directory, or BACKING itself"))
}

fn options(args: &MountArgs, places: &Places) -> Result<Options> {
    Ok(Options {
        backing: places.backing.clone(),
        mount_point: places.point.clone(),
        stage: places.stage.clone(),
        stage_limit_bytes: args.stage_mib.map(|mib| mib << 20),
        passthrough: !args.no_passthrough,
        write_back: args.write_back,
        read_only: args.read_only,
        sets: args
            .job
            .as_ref()
            .map(|job| sets(args, job, places))
            .transpose()?,
    })
}

fn sets(args: &MountArgs, job: &str, places: &Places) -> Result<SetOptions> {
    let pattern = |text: &String| Pattern::new(text);
    let meeting = match args.nodes {
        1 if args.node.is_some_and(|node| node > 0) => {
            let text = "--node: the only node is number 0; nodes are counted from 0";
            return Err(Error::invalid(text).next("give --nodes, the number of nodes, too"));
        }
        1 => None,
        nodes => {
            let node = args.node.or_else(rank_of_launcher).ok_or_else(|| {
                Error::invalid("--nodes needs the number of this node")
                    .next("give --node, or start the mounts with srun or mpirun")
            })?;
            let meet = args.meet.clone();
            // Beside what the mounts of the job remember.
            let beside = || places.backing.join(SETS).join(job).join("meeting");
            let file = meet.unwrap_or_else(beside);
            Some((file, node, nodes))
        }
    };
    Ok(SetOptions {
        job: job.to_owned(),
        options: args.options.clone(),
        patterns: args.set.iter().map(pattern).collect::<Result<_>>()?,
        end: args.set_end.as_ref().map(pattern).transpose()?,
        count: args.set_count,
        meeting,
        stop: || GIVEN_UP.load(Ordering::Relaxed) || !MOUNTED.load(Ordering::Relaxed) && is_asked(),
    })
}

/// The rank of this process, if a launcher started it.
fn rank_of_launcher() -> Option<u32> {
    RANKS.iter().find_map(|name| env_var(name)?.parse().ok())
}

fn watch(writes: &Shared) -> Option<Watch> {
    let writes = Arc::clone(writes.as_ref()?);
    Some(Box::new(move |one| {
        writes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(&one);
    }))
}

/// Waits until the mount is over or a signal arrives.
fn stay(mounted: &Mounted) -> u8 {
    raise_limits();
    while !mounted.is_over() {
        if let Some(code) = asked_to_end() {
            return code;
        }
        SystemClock.sleep(POLL);
    }
    exit::OK
}

/// Whether a signal has arrived, which stays.
fn is_asked() -> bool {
    stop::requested().is_some() || HUNG_UP.load(Ordering::Relaxed)
}

/// Whether a signal ends the waiting for the mounts of other nodes.
fn gives_up() -> bool {
    let asked = asked_to_end().is_some();
    GIVEN_UP.fetch_or(asked, Ordering::Relaxed);
    asked
}

/// The exit code for the signal that arrived, if one did; SIGHUP counts as SIGTERM.
fn asked_to_end() -> Option<u8> {
    let hung_up = HUNG_UP.swap(false, Ordering::Relaxed);
    stop::take().or(hung_up.then_some(exit::TERMINATED))
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
        if let Some(code) = asked_to_end()
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
fn leave(point: &Path, mounted: &Mounted) -> Result<bool> {
    let mut told = false;
    loop {
        if mounted.is_over() || unmount(point, false)? {
            return Ok(false);
        }
        if !std::mem::replace(&mut told, true) {
            say(&format!(
                "{} is still used by programs; waiting for them (Ctrl-C or SIGTERM ends the waiting, and their next call fails)",
                point.display()
            ));
        }
        if asked_to_end().is_some() {
            unmount(point, true)?;
            return Ok(true);
        }
        SystemClock.sleep(BUSY);
    }
}
