//! Epochs: who may write, and from where a run resumed.
//!
//! Every run of a job **claims** the next epoch in every directory before it looks for
//! checkpoints, and records afterwards which step it resumed from. A writer of an older epoch (a
//! zombie: a rank that was thought dead) finds the newer claim after making its record visible and
//! reports `Fenced`; readers ignore steps of older epochs beyond the resumed one.
//!
//! Invariants:
//! 1. A claim file is created with O_EXCL and made durable, with its directory, before anything
//!    is listed: either the zombie sees the claim or the new run sees the zombie's record.
//! 2. One run per counter: the directories are claimed in order, the loser of the first withdraws
//!    and names the winner.
//! 3. A run that still holds the lock of its claim is alive: a second one is refused, not fenced,
//!    unless it asks to take over.
//!
//! Survives: crashes between any two steps (a claim without `resumed` restricts nothing), clock
//! jumps (order is by counter). Not here: the records themselves (`format::record`).

use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::ids::{Epoch, JobName, RunId};
use orcheck_format::names::FileName;
use orcheck_format::record::{Claim, Resumed};
use orcheck_io::clock::Clock;
use orcheck_io::dir::{Create, Dir};
use orcheck_io::file::{File, read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Largest claim or resume record that is read.
const LIMIT_BYTES: u64 = 64 << 20;

/// What a new run says of itself.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// The job.
    pub job: JobName,
    /// Fresh random id.
    pub run: RunId,
    /// Host, process and user of the lead.
    pub host: String,
    /// Process id of the lead.
    pub pid: u32,
    /// User id of the lead.
    pub uid: u32,
    /// Ranks.
    pub world_size: u32,
    /// Node names.
    pub nodes: Vec<String>,
}

/// A held epoch; dropping it lets the next run in at once.
pub struct Held {
    /// The epoch.
    pub epoch: Epoch,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Claims by directory, locked for as long as this lives.
    _locks: Vec<Box<dyn File>>,
}

/// Highest claimed counter in `dirs`, 0 if none.
///
/// # Errors
/// When a directory cannot be listed.
pub fn highest_counter(dirs: &[Arc<dyn Dir>]) -> Result<u64> {
    let mut highest = 0;
    for dir in dirs {
        for entry in dir.list()? {
            if let Some(FileName::Claim { epoch } | FileName::Resumed { epoch }) =
                FileName::parse(&entry.name)
            {
                highest = highest.max(epoch);
            }
        }
    }
    Ok(highest)
}

/// Claims epoch `counter` in all `dirs`, in order.
///
/// # Errors
/// Fenced when another run claimed the same epoch first; what the directories say.
pub fn claim(
    dirs: &[Arc<dyn Dir>],
    claimant: &Claimant,
    counter: u64,
    clock: &dyn Clock,
) -> Result<Held> {
    let epoch = Epoch {
        counter,
        run: claimant.run,
    };
    let claim = Claim {
        job: claimant.job.clone(),
        epoch,
        host: claimant.host.clone(),
        pid: claimant.pid,
        uid: claimant.uid,
        since_unix_ms: clock.unix_ms(),
        world_size: claimant.world_size,
        nodes: claimant.nodes.clone(),
    };
    let name = FileName::Claim { epoch: counter }.to_string();
    let mut held = Held {
        epoch,
        notes: Vec::new(),
        _locks: Vec::new(),
    };
    for (number, dir) in dirs.iter().enumerate() {
        let Err(error) = claim_one(dir.as_ref(), &name, &claim.encode(), &mut held) else {
            continue;
        };
        let present = read_claim(dir.as_ref(), counter).ok();
        let again = error.kind() == ErrorKind::Invalid
            && present
                .as_ref()
                .is_some_and(|present| present.epoch.run == claimant.run);
        let other = present.filter(|other| other.epoch.run != claimant.run);
        // What was claimed before this directory is ours alone: give it back, best effort, since
        // a claim without `resumed` restricts nobody.
        let mine = if other.is_some() { number } else { number + 1 };
        for dir in &dirs[..mine] {
            let _ = dir.remove(&name);
        }
        return Err(match other {
            Some(other) => Error::fenced(format!(
                "epoch {counter} of job '{}' was claimed at the same moment by run {} ({})",
                claimant.job.as_str(),
                other.epoch.run,
                describe(&other)
            ))
            .next("start the job once; if that run is gone, start again"),
            None if again => Error::invalid(format!(
                "{} is the same directory as one configured before it",
                dir.path().display()
            ))
            .next("give every level and every I/O server its own directory"),
            None => {
                let error = error.at(format!(
                    "claiming epoch {counter} in {}",
                    dir.path().display()
                ));
                match error.kind() {
                    ErrorKind::NoSpace => {
                        error.next("free space there, or configure another directory")
                    }
                    _ => error,
                }
            }
        });
    }
    Ok(held)
}

fn claim_one(dir: &dyn Dir, name: &str, bytes: &[u8], held: &mut Held) -> Result<()> {
    let file = dir.create(name, Create::Buffered)?;
    // Locked before it has content: whoever can read it finds it held.
    match file.try_lock() {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => held.notes.push(format!(
            "{} has no locks: a second run of this job would fence this one instead of being refused",
            dir.path().display()
        )),
        Err(error) => return Err(error),
    }
    file.write_at(bytes, 0)?;
    file.sync()?;
    dir.sync()?;
    held._locks.push(file);
    Ok(())
}

/// Waits up to `patience` until no older claim is locked: a run that died a moment ago may still be
/// ending, and its locks go with it.
///
/// # Errors
/// Unavailable "held by …" while another run is alive.
pub fn wait_for_holder(dirs: &[Arc<dyn Dir>], patience: Duration, clock: &dyn Clock) -> Result<()> {
    let until = clock.now() + patience;
    loop {
        let Some(holder) = living_holder(dirs)? else {
            return Ok(());
        };
        if clock.now() >= until {
            return Err(Error::unavailable(format!(
                "job '{}' is held by another run: {}",
                holder.job.as_str(),
                describe(&holder)
            ))
            .next("wait for it or end it; set take_over = true to fence it off"));
        }
        clock.sleep(Duration::from_millis(50));
    }
}

fn living_holder(dirs: &[Arc<dyn Dir>]) -> Result<Option<Claim>> {
    let counter = highest_counter(dirs)?;
    let name = FileName::Claim { epoch: counter }.to_string();
    for dir in dirs {
        let file = match dir.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let free = match file.try_lock() {
            Err(error) if error.kind() == ErrorKind::Unsupported => true,
            free => free?,
        };
        if !free && let Ok(claim) = read_claim(dir.as_ref(), counter) {
            return Ok(Some(claim));
        }
    }
    Ok(None)
}

fn describe(claim: &Claim) -> String {
    format!(
        "process {} of user {} on host {}, since unix time {}.{:03}",
        claim.pid,
        claim.uid,
        claim.host,
        claim.since_unix_ms / 1000,
        claim.since_unix_ms % 1000
    )
}

/// Reads the claim of one epoch.
///
/// # Errors
/// NotFound; Corrupt.
pub fn read_claim(dir: &dyn Dir, counter: u64) -> Result<Claim> {
    let name = FileName::Claim { epoch: counter }.to_string();
    Claim::decode(&read_small(dir, &name, LIMIT_BYTES)?)
        .map_err(|error| error.at(format!("{}/{name}", dir.path().display())))
}

/// Records in every directory what this run resumed from (`None`: a fresh start).
///
/// # Errors
/// What the directories say: without this record the run must not write checkpoints.
pub fn record_resumed(
    dirs: &[Arc<dyn Dir>],
    job: &JobName,
    epoch: Epoch,
    from: Option<(u64, Epoch)>,
) -> Result<()> {
    let resumed = Resumed {
        job: job.clone(),
        epoch,
        step: from.map(|(step, _)| step),
        from: from.map(|(_, epoch)| epoch),
    };
    let name = FileName::Resumed {
        epoch: epoch.counter,
    }
    .to_string();
    for dir in dirs {
        write_small(dir.as_ref(), &name, &resumed.encode())?;
    }
    Ok(())
}

/// Fenced if any directory holds a newer claim, or one of another run at this counter.
///
/// # Errors
/// Fenced, naming the newer run; what the directories say.
pub fn check_not_fenced(dirs: &[Arc<dyn Dir>], epoch: Epoch) -> Result<()> {
    let highest = highest_counter(dirs)?;
    let mut seen = None;
    if highest > epoch.counter {
        seen = Some(highest);
    } else if dirs.iter().any(|dir| {
        read_claim(dir.as_ref(), epoch.counter).is_ok_and(|claim| claim.epoch.run != epoch.run)
    }) {
        seen = Some(epoch.counter);
    }
    let Some(counter) = seen else { return Ok(()) };
    let who = dirs
        .iter()
        .find_map(|dir| read_claim(dir.as_ref(), counter).ok())
        .map_or_else(String::new, |claim| format!(" by {}", describe(&claim)));
    Err(Error::fenced(format!(
        "epoch {epoch} is superseded: epoch {counter} was claimed{who}"
    ))
    .next("this run must end; its later checkpoints are ignored"))
}
