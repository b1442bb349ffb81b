//! Manages epochs: who may write, and from where a run resumed.
//!
//! Every run of a job **claims** the next epoch in every directory before it looks for checkpoints,
//! and afterwards records the step that it resumed from. A writer of an older epoch (a zombie: a
//! rank that was believed dead) finds the newer claim after it has made its record visible, and
//! reports `Fenced`. Readers ignore steps of older epochs beyond the step that was resumed from.
//!
//! Invariants:
//! 1. A claim appears whole and locked, and never replaces another one. It is durable, with its
//!    directory, before anything is listed: either the zombie sees the claim or the new run sees
//!    the zombie's record.
//! 2. A counter belongs to one run: runs claim the directories in order, and a loser withdraws its
//!    own claims and names the winner. A counter that appears in any file name is not given out
//!    again.
//! 3. A run that still holds the lock of its claim is alive: a second run is refused, not fenced,
//!    unless it asks to take over.
//!
//! Survives: a crash at any point (a claim without `resumed` restricts nothing); clock jumps
//! (counters define the order). Not here: the records themselves (`format::disk`).

use crate::encoding::Trust;
use orcheck_format::disk::{Claim, FileName, Members, Resumed};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Epoch, Error, ErrorKind, JobName, Result, RunId, Step};
use orcheck_io::clock::{Clock, SystemClock, moment};
use orcheck_io::disk::{Create, Dir, File, Lock, read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Size of the largest claim or resumed record that is read.
const LIMIT_BYTES: u64 = 64 << 20;

/// What a new run puts into its claim.
#[derive(Clone)]
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
    /// Seals the claim.
    pub trust: Arc<Trust>,
}

/// A held epoch. Dropping it admits the next run at once, and withdraws a claim that was not
/// [`ClaimLock::confirm`]ed.
pub struct ClaimLock {
    /// The epoch.
    pub epoch: Epoch,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The claims, by directory; locked as long as this lives.
    locks: Vec<(Arc<dyn Dir>, Box<dyn File>)>,
    confirmed: bool,
}

impl ClaimLock {
    /// Marks the session as open: the claim then stays when the session ends.
    pub fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// Withdraws the claim: its holder writes nothing from here on, and its counter may be given
    /// out again.
    pub fn withdraw(mut self) {
        self.confirmed = false;
    }

    /// Gives the locks away: the new owner holds the epoch until it releases them.
    pub fn give_locks(&mut self) -> Vec<Lock> {
        let locks = self.locks.iter();
        locks.filter_map(|(_, file)| file.give_lock()).collect()
    }
}

impl Drop for ClaimLock {
    fn drop(&mut self) {
        if !self.confirmed && !off(Switch::Withdrawn) {
            let name = FileName::Claim {
                epoch: self.epoch.counter,
            }
            .to_string();
            for (dir, _) in &self.locks {
                // Best effort: a claim without `resumed` restricts nobody.
                let _ = dir.remove(&name);
            }
        }
    }
}

/// No counter follows this one: counters travel as signed numbers.
const LAST_COUNTER: u64 = i64::MAX as u64 - 1;

/// The highest epoch counter in any file name in `dirs`, or 0. Names of checkpoints count too, so
/// that a counter is never given out twice, even if claims were lost.
///
/// # Errors
/// When a directory cannot be listed; Corrupt if a file's counter is beyond [`LAST_COUNTER`].
pub fn highest_counter(dirs: &[Arc<dyn Dir>]) -> Result<u64> {
    if off(Switch::CounterOfNames) {
        return highest_claim(dirs);
    }
    let mut highest = 0;
    for dir in dirs {
        for entry in dir.list()? {
            if let Some(
                FileName::Claim { epoch }
                | FileName::Resumed { epoch }
                | FileName::Members { epoch }
                | FileName::Halt { epoch }
                | FileName::HaltAt { epoch }
                | FileName::Choice { epoch, .. }
                | FileName::Commit { epoch, .. }
                | FileName::Container { epoch, .. }
                | FileName::Stripe { epoch, .. }
                | FileName::Parity { epoch, .. },
            ) = FileName::parse(&entry.name)
            {
                // Breaks if: it counts; the next counter would wrap, and the run would be older
                // than those before it.
                if epoch > LAST_COUNTER {
                    return Err(Error::corrupt(format!(
                        "file {} in {}: its epoch is beyond {LAST_COUNTER}, the last that another run can follow; no run made it",
                        entry.name,
                        dir.path().display()
                    ))
                    .next("find out where the file comes from, and remove it"));
                }
                highest = highest.max(epoch);
            }
        }
    }
    Ok(highest)
}

/// Claims epoch `counter` in all `dirs`, in order.
///
/// # Errors
/// Fenced if another run claimed the same epoch first; otherwise the error of a directory.
pub fn claim(
    dirs: &[Arc<dyn Dir>],
    claimant: &Claimant,
    counter: u64,
    clock: &dyn Clock,
) -> Result<ClaimLock> {
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
    // On an error, dropping this withdraws the claims made so far.
    let mut held = ClaimLock {
        epoch,
        notes: Vec::new(),
        locks: Vec::new(),
        confirmed: false,
    };
    for dir in dirs {
        if let Err(error) = claim_one(dir, &claim, &mut held, &claimant.trust) {
            return Err(explain(error, dir.as_ref(), claimant, counter));
        }
    }
    Ok(held)
}

/// Makes a claim that appears under its name whole and locked, or not at all, and never replaces
/// another one.
fn claim_one(dir: &Arc<dyn Dir>, claim: &Claim, held: &mut ClaimLock, trust: &Trust) -> Result<()> {
    let name = FileName::Claim {
        epoch: claim.epoch.counter,
    }
    .to_string();
    let temporary = format!("{name}-{}.tmp", claim.epoch.run.short());
    let file = dir.create(&temporary, Create::Buffered)?;
    let appeared = lock(file.as_ref(), dir.as_ref(), held)
        .and_then(|()| file.write_at(&trust.seal(claim.encode())?, 0))
        .and_then(|()| {
            if off(Switch::FsyncClaim) {
                Ok(())
            } else {
                file.sync()
            }
        })
        .and_then(|()| dir.rename_new(&temporary, &name));
    if let Err(error) = appeared {
        let _ = dir.remove(&temporary);
        return Err(error);
    }
    held.locks.push((Arc::clone(dir), file));
    if off(Switch::FsyncClaimDirectory) {
        return Ok(());
    }
    dir.sync()
}

/// Removes unfinished claims: temporary files whose process was killed before it could rename them.
/// A claim in the making is locked. An empty one may be about to be locked, so it stays, and so do
/// all where locks do not exist.
///
/// # Errors
/// The error of the directory.
pub(crate) fn remove_unfinished_claims(dir: &dyn Dir) -> Result<()> {
    for entry in dir.list()? {
        let Some(FileName::Temporary(target)) = FileName::parse(&entry.name) else {
            continue;
        };
        // Breaks if: any similar name counts; a program's own `notes.claim-1.tmp` would be removed.
        if claim_of_temporary(&target).is_none() || entry.len_bytes == 0 {
            continue;
        }
        let unlocked = dir.open(&entry.name).and_then(|file| {
            // Breaks if: the lock is not tried; a run that is starting would lose its claim and
            // fail.
            let is_free = file.try_lock()? || off(Switch::UnfinishedClaim);
            Ok(is_free.then_some(file))
        });
        match unlocked {
            Ok(Some(_locked)) => match dir.remove(&entry.name) {
                // Another process removed it first.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            },
            _ => continue,
        }
    }
    Ok(())
}

/// The epoch counter of the claim for which a temporary file of this target was made; `None` for
/// any other file.
#[must_use]
pub(crate) fn claim_of_temporary(target: &str) -> Option<u64> {
    let (claim, run) = target.rsplit_once('-')?;
    let is_run = run.len() == 8
        && run
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match FileName::parse(claim) {
        Some(FileName::Claim { epoch }) if is_run => Some(epoch),
        _ => None,
    }
}

fn lock(file: &dyn File, dir: &dyn Dir, held: &mut ClaimLock) -> Result<()> {
    match file.try_lock() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::internal(format!(
            "{}, which only this run knows, is locked by another run",
            file.name()
        ))),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            held.notes.push(format!(
                "{} has no locks: a second run of this job would fence off this one instead of \
                 being refused",
                dir.path().display()
            ));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Explains why a directory could not be claimed.
fn explain(error: Error, dir: &dyn Dir, claimant: &Claimant, counter: u64) -> Error {
    let present = read_claim(dir, counter, &claimant.trust).ok();
    match present {
        Some(other) if other.epoch.run != claimant.run => Error::fenced(format!(
            "epoch {counter} of job '{}' was claimed at the same moment by run {} ({})",
            claimant.job.as_str(),
            other.epoch.run,
            describe(&other)
        ))
        .next("start the job once; if that run is gone, start again"),
        Some(_) if error.kind() == ErrorKind::Invalid => Error::invalid(format!(
            "{} is the same directory as one configured before it",
            dir.path().display()
        ))
        .next("give every level and every target its own directory"),
        _ => {
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
    }
}

/// Waits up to `patience` until no older claim is locked. A run that has just died may still be
/// exiting, and its locks disappear only then.
///
/// # Errors
/// Unavailable "held by …" while another run is alive.
pub fn wait_for_holder(
    dirs: &[Arc<dyn Dir>],
    patience: Duration,
    (job, trust): (&JobName, &Trust),
    clock: &dyn Clock,
) -> Result<()> {
    let until = clock.now() + patience;
    loop {
        let Some(holder) = living_holder(dirs, trust)? else {
            return Ok(());
        };
        if clock.now() >= until {
            return Err(Error::unavailable(format!(
                "job '{}' is held by another run: {holder}",
                job.as_str()
            ))
            .with(Detail::Held)
            .next("wait for it or end it; set take_over = true to fence it off"));
        }
        clock.sleep(Duration::from_millis(50));
    }
}

/// Describes the holder of the newest claim's lock. A claim that is not believed is held all the
/// same: its run may have begun before the job was encrypted.
fn living_holder(dirs: &[Arc<dyn Dir>], trust: &Trust) -> Result<Option<String>> {
    let counter = highest_claim(dirs)?;
    for dir in dirs {
        if is_locked(dir.as_ref(), counter)?
            && !off(Switch::ClaimLock)
            && let Ok((claim, believed)) = look_at_claim(dir.as_ref(), counter, trust)
        {
            return Ok(Some(describe_if(&claim, believed)));
        }
    }
    Ok(None)
}

/// Whether the run that claimed this epoch here holds the lock of its claim. Without locks, none
/// does.
///
/// # Errors
/// The error of the directory.
pub fn is_locked(dir: &dyn Dir, counter: u64) -> Result<bool> {
    let file = match dir.open(&FileName::Claim { epoch: counter }.to_string()) {
        Ok(file) => file,
        // Breaks if: an entry that is not a file, in place of a claim, is an error; the job could
        // no longer start.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        free => Ok(!free?),
    }
}

/// Whether the claim of this epoch is here and its lock is known to be free, which means that the
/// run is over.
#[must_use]
pub fn is_free(dir: &dyn Dir, counter: u64) -> bool {
    let file = dir.open(&FileName::Claim { epoch: counter }.to_string());
    file.and_then(|file| file.try_lock()).unwrap_or(false)
}

/// The highest counter that a run has claimed, or 0.
///
/// # Errors
/// When a directory cannot be listed.
pub(crate) fn highest_claim(dirs: &[Arc<dyn Dir>]) -> Result<u64> {
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

/// Describes a claim for the user.
#[must_use]
pub fn describe(claim: &Claim) -> String {
    format!(
        "process {} of user {} on host {}, since {}",
        claim.pid,
        claim.uid,
        claim.host,
        moment(claim.since_unix_ms, SystemClock::new().unix_ms())
    )
}

/// The same for a claim that may not be believed.
#[must_use]
pub(crate) fn describe_if(claim: &Claim, believed: bool) -> String {
    // Breaks if: it is shown; anybody who can write to the directory would choose whom the user
    // suspects.
    match believed || off(Switch::ClaimSeal) {
        true => describe(claim),
        false => "a run whose claim is not authenticated".into(),
    }
}

/// Reads a directory's list of the nodes of an epoch.
///
/// # Errors
/// NotFound; Corrupt if the list is damaged, not believed, or of another job or epoch; Invalid if
/// it is sealed with another key.
pub fn read_members(dir: &dyn Dir, job: &JobName, epoch: u64, trust: &Trust) -> Result<Members> {
    let name = FileName::Members { epoch }.to_string();
    let read = || {
        let bytes = read_small(dir, &name, LIMIT_BYTES)?;
        // Breaks if: the seal is not checked; a forged list would name other hosts, and the key for
        // connections to them.
        trust.check(&bytes)?;
        let members = Members::decode(&bytes)?;
        // Breaks if: this is not compared; a list that another job sealed with the same key would
        // count.
        if (&members.job, members.epoch.counter) != (job, epoch) && !off(Switch::MembersOwn) {
            return Err(Error::corrupt(format!(
                "expected the nodes of epoch {epoch} of job '{}', found those of epoch {} of job '{}'",
                job.as_str(),
                members.epoch.counter,
                members.job.as_str()
            )));
        }
        Ok(members)
    };
    read().map_err(|error: Error| error.at(&name))
}

/// Puts the claim of a finished run into a directory without a claim of that counter, so that the
/// directory remembers the job. The claim is not locked.
///
/// # Errors
/// The error of the directory.
pub(crate) fn bring_claim(dir: &Arc<dyn Dir>, claim: &Claim, trust: &Trust) -> Result<()> {
    let epoch = claim.epoch.counter;
    let name = FileName::Claim { epoch }.to_string();
    if dir.holds(&name)? {
        return Ok(());
    }
    write_small(dir.as_ref(), &name, &trust.seal(claim.encode())?)
}

/// Reads the claim of one epoch.
///
/// # Errors
/// NotFound; Corrupt, also if the claim is not believed; Invalid if it is sealed with another key.
pub(crate) fn read_claim(dir: &dyn Dir, counter: u64, trust: &Trust) -> Result<Claim> {
    let name = FileName::Claim { epoch: counter }.to_string();
    let bytes = read_small(dir, &name, LIMIT_BYTES)?;
    let claim = Claim::decode(&bytes).and_then(|claim| match off(Switch::ClaimSeal) {
        true => Ok(claim),
        false => trust.check(&bytes).map(|_| claim),
    });
    claim.map_err(|error| error.at(format!("{}/{name}", dir.path().display())))
}

/// Reads the claim of one epoch, and whether it is believed.
///
/// # Errors
/// NotFound; Corrupt.
pub(crate) fn look_at_claim(dir: &dyn Dir, counter: u64, trust: &Trust) -> Result<(Claim, bool)> {
    match read_claim(dir, counter, trust) {
        Ok(claim) => Ok((claim, true)),
        Err(_) => Ok((read_claim(dir, counter, &Trust::nobody())?, false)),
    }
}

/// Records in every directory what this run resumed from (`None`: a fresh start).
///
/// # Errors
/// The error of a directory. Without this record the run must not write checkpoints.
pub fn record_resumed(
    dirs: &[Arc<dyn Dir>],
    job: &JobName,
    epoch: Epoch,
    from: Option<(Step, Epoch)>,
    trust: &Trust,
) -> Result<()> {
    if off(Switch::Resumed) {
        return Ok(());
    }
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
        write_small(dir.as_ref(), &name, &trust.seal(resumed.encode())?)?;
    }
    Ok(())
}

/// Fails if any directory holds a newer claim, or another run's claim at this counter.
///
/// # Errors
/// Fenced, naming the newer run; otherwise the error of a directory.
pub fn check_not_fenced(dirs: &[Arc<dyn Dir>], epoch: Epoch, trust: &Trust) -> Result<()> {
    let highest = highest_counter(dirs)?;
    let mut seen = None;
    if highest > epoch.counter {
        seen = Some(highest);
    // Breaks if: a claim that is not believed counts; any file with such a name would end a run.
    } else if dirs.iter().any(|dir| {
        read_claim(dir.as_ref(), epoch.counter, trust)
            .is_ok_and(|claim| claim.epoch.run != epoch.run)
    }) {
        seen = Some(epoch.counter);
    }
    let Some(counter) = seen else { return Ok(()) };
    let who = dirs
        .iter()
        .find_map(|dir| look_at_claim(dir.as_ref(), counter, trust).ok())
        .map_or_else(String::new, |(claim, believed)| {
            format!(" by {}", describe_if(&claim, believed))
        });
    Err(Error::fenced(format!(
        "epoch {epoch} is superseded: epoch {counter} was claimed{who}"
    ))
    .next("this run must end; its later checkpoints are ignored"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::failpoints::Failpoints;
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;

    // Breaks if: any temporary file with `.claim-` in its name counts as Orcheck's.
    #[test]
    fn files_of_a_program_are_no_unfinished_claims() {
        let scratch = Scratch::new("unfinished");
        let claim = "epoch-000005.claim-07070707.tmp";
        let foreign = [
            "notes.claim-1.tmp",
            "notes.claim-07070707.tmp",
            "epoch-000005.claim-notes.tmp",
            "epoch-000005.claim-.tmp",
        ];
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        for name in foreign.into_iter().chain([claim]) {
            let file = dir.create(name, Create::Buffered).unwrap();
            file.write_at(b"text", 0).unwrap();
        }
        remove_unfinished_claims(dir.as_ref()).unwrap();
        for name in foreign {
            assert!(scratch.path().join(name).exists(), "{name}");
        }
        assert!(!scratch.path().join(claim).exists());
    }
}
