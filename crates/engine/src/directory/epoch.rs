//! Epochs: who may write, and from where a run resumed.
//!
//! Every run of a job **claims** the next epoch in every directory before it looks for
//! checkpoints, and records afterwards which step it resumed from. A writer of an older epoch (a
//! zombie: a rank that was thought dead) finds the newer claim after making its record visible and
//! reports `Fenced`; readers ignore steps of older epochs beyond the resumed one.
//!
//! Invariants:
//! 1. A claim appears whole and locked, never over another one, and is durable, with its
//!    directory, before anything is listed: either the zombie sees the claim or the new run sees
//!    the zombie's record.
//! 2. One run per counter: the directories are claimed in order, the loser withdraws its own claims
//!    and names the winner. No counter that any file name holds is given again.
//! 3. A run that still holds the lock of its claim is alive: a second one is refused, not fenced,
//!    unless it asks to take over.
//!
//! Survives: crashes between any two steps (a claim without `resumed` restricts nothing), clock
//! jumps (order is by counter). Not here: the records themselves (`format::record`).

use crate::encoding::Trust;
use orcheck_format::disk::{Claim, FileName, Members, Resumed};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Epoch, Error, ErrorKind, JobName, Result, RunId};
use orcheck_io::clock::{Clock, SystemClock, moment};
use orcheck_io::disk::{Create, Dir, File, Lock, read_small, write_small};
use std::sync::Arc;
use std::time::Duration;

/// Largest claim or resume record that is read.
const LIMIT_BYTES: u64 = 64 << 20;

/// What a new run says of itself.
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

/// A held epoch. Dropping it lets the next run in at once; a claim that was not [`ClaimLock::confirm`]ed
/// is withdrawn.
pub struct ClaimLock {
    /// The epoch.
    pub epoch: Epoch,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Claims by directory, locked for as long as this lives.
    locks: Vec<(Arc<dyn Dir>, Box<dyn File>)>,
    confirmed: bool,
}

impl ClaimLock {
    /// The session is open: the claim stays when it ends.
    pub fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// The claim is taken back: whoever held it writes nothing from here on, and its counter may be given again.
    pub fn withdraw(mut self) {
        self.confirmed = false;
    }

    /// Gives the locks away: the epoch is held until whoever gets them lets go.
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

/// Beyond this one there is no next: counters travel as signed numbers.
const LAST_COUNTER: u64 = i64::MAX as u64 - 1;

/// Highest epoch counter in any name in `dirs`, 0 if none. Names of checkpoints count as well: a
/// counter is never given twice, even if claims were lost.
///
/// # Errors
/// When a directory cannot be listed; Corrupt for a file whose counter is beyond [`LAST_COUNTER`].
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
                | FileName::Stripe { epoch, .. },
            ) = FileName::parse(&entry.name)
            {
                // Breaks if: it counts; the next counter wraps, and the run is older than those before it.
                if epoch > LAST_COUNTER {
                    return Err(Error::corrupt(format!(
                        "file {} in {}: its epoch is beyond {LAST_COUNTER}, the last that another run can follow; no run made it",
                        entry.name,
                        dir.path().display()
                    ))
                    .next("look where it comes from, and remove it"));
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
/// Fenced when another run claimed the same epoch first; what the directories say.
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
    // What was claimed before an error is withdrawn when this is dropped.
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

/// A claim appears under its name locked and whole, or not at all, and never over another one.
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

/// Removes claims that never got their name because their process was killed. One that is being made is locked; one that is
/// empty may be about to be, and stays, as do all where there are no locks.
///
/// # Errors
/// What the directory says.
pub fn remove_unfinished_claims(dir: &dyn Dir) -> Result<()> {
    for entry in dir.list()? {
        let Some(FileName::Temporary(target)) = FileName::parse(&entry.name) else {
            continue;
        };
        // Breaks if: anything like it counts; a program's own `notes.claim-1.tmp` would be removed.
        if claim_of_temporary(&target).is_none() || entry.len_bytes == 0 {
            continue;
        }
        let unlocked = dir.open(&entry.name).and_then(|file| {
            // Breaks if: it is not asked; a run that is just starting would lose its claim, and fail.
            let is_free = file.try_lock()? || off(Switch::UnfinishedClaim);
            Ok(is_free.then_some(file))
        });
        match unlocked {
            Ok(Some(_locked)) => match dir.remove(&entry.name) {
                // Another copy was quicker.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            },
            _ => continue,
        }
    }
    Ok(())
}

/// The counter of the epoch whose claim a temporary file of this target was to become; `None` for any other.
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
            "{}, which only this run knows, is locked by another",
            file.name()
        ))),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            held.notes.push(format!(
                "{} has no locks: a second run of this job would fence this one instead of being refused",
                dir.path().display()
            ));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Why a directory could not be claimed, in the user's words.
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

/// Waits up to `patience` until no older claim is locked: a run that died a moment ago may still be
/// ending, and its locks go with it.
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

/// Who holds the lock of the newest claim, in the user's words. A claim that is not believed is held all the same: its run may
/// have begun before the job was encrypted.
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

/// Whether the run that claimed this epoch here holds the lock of its claim. Where there are no locks none is held.
///
/// # Errors
/// What the directory says.
pub fn is_locked(dir: &dyn Dir, counter: u64) -> Result<bool> {
    let file = match dir.open(&FileName::Claim { epoch: counter }.to_string()) {
        Ok(file) => file,
        // Breaks if: what is no file in place of a claim is an error; a job could not start any more.
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

/// Whether the claim of this epoch is here and its lock is known to be free: the run is over.
#[must_use]
pub fn is_free(dir: &dyn Dir, counter: u64) -> bool {
    let file = dir.open(&FileName::Claim { epoch: counter }.to_string());
    file.and_then(|file| file.try_lock()).unwrap_or(false)
}

/// Highest counter that a run claimed, 0 if none.
///
/// # Errors
/// When a directory cannot be listed.
pub fn highest_claim(dirs: &[Arc<dyn Dir>]) -> Result<u64> {
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

/// Who claimed, in the user's words.
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

/// The same of a claim that may not be believed.
#[must_use]
pub fn describe_if(claim: &Claim, believed: bool) -> String {
    // Breaks if: it is shown; whoever can write to the directory would choose whom the user suspects.
    match believed || off(Switch::ClaimSeal) {
        true => describe(claim),
        false => "a run whose claim is not authenticated".into(),
    }
}

/// The list of the nodes of an epoch that a directory keeps.
///
/// # Errors
/// NotFound where there is none; Corrupt for one that is damaged or not believed, or of another job or epoch; Invalid for
/// one under another key.
pub fn read_members(dir: &dyn Dir, job: &JobName, epoch: u64, trust: &Trust) -> Result<Members> {
    let name = FileName::Members { epoch }.to_string();
    let read = || {
        let bytes = read_small(dir, &name, LIMIT_BYTES)?;
        // Breaks if: it is not asked; a forged list would name other hosts, and the key to speak to them with.
        trust.check(&bytes)?;
        let members = Members::decode(&bytes)?;
        // Breaks if: this is passed over; a list that another job sealed with the same key would count.
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

/// Puts the claim of a run that is over into a directory that has none of its counter: the directory then remembers the job
/// by it. It is not locked.
///
/// # Errors
/// What the directory says.
pub fn bring_claim(dir: &Arc<dyn Dir>, claim: &Claim, trust: &Trust) -> Result<()> {
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
/// NotFound; Corrupt, also for one that is not believed; Invalid for one under another key.
pub fn read_claim(dir: &dyn Dir, counter: u64, trust: &Trust) -> Result<Claim> {
    let name = FileName::Claim { epoch: counter }.to_string();
    let bytes = read_small(dir, &name, LIMIT_BYTES)?;
    let claim = Claim::decode(&bytes).and_then(|claim| match off(Switch::ClaimSeal) {
        true => Ok(claim),
        false => trust.check(&bytes).map(|_| claim),
    });
    claim.map_err(|error| error.at(format!("{}/{name}", dir.path().display())))
}

/// The claim of one epoch, and whether it is believed.
///
/// # Errors
/// NotFound; Corrupt.
pub fn look_at_claim(dir: &dyn Dir, counter: u64, trust: &Trust) -> Result<(Claim, bool)> {
    match read_claim(dir, counter, trust) {
        Ok(claim) => Ok((claim, true)),
        Err(_) => Ok((read_claim(dir, counter, &Trust::nobody())?, false)),
    }
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

/// Fenced if any directory holds a newer claim, or one of another run at this counter.
///
/// # Errors
/// Fenced, naming the newer run; what the directories say.
pub fn check_not_fenced(dirs: &[Arc<dyn Dir>], epoch: Epoch, trust: &Trust) -> Result<()> {
    let highest = highest_counter(dirs)?;
    let mut seen = None;
    if highest > epoch.counter {
        seen = Some(highest);
    // Breaks if: one that is not believed counts; a file in place of its claim would end a run.
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

    // Breaks if: any temporary file that has `.claim-` in its name counts as ours.
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
