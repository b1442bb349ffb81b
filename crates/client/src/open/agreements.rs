//! Agrees, before a session opens, on what must be the same on all ranks: job, options, keys,
//! directories and epoch.
//!
//! Invariant: an error on one rank, or a difference between two, is the same error on all ranks.
//!
//! Not here: the stages that call this (`stages.rs`).

use crate::collective::{Collective, agree, agree_min};
use crate::options::Options;
use orcheck_engine::directory::Places;
use orcheck_engine::directory::epoch::{highest_counter, wait_for_holder};
use orcheck_engine::encoding::{Recipe, Trust, fingerprint};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, JobName, Result};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::user::{SecretSource, env_var};
use std::sync::Arc;
use std::time::Duration;

/// Names the job of a program that does not name one; `orcheck run --job` sets it.
pub const JOB_VARIABLE: &str = "ORCHECK_JOB";
/// Maximum number of looks for a run that holds the job. Each look after the first is needed only
/// because another run came and went in the meantime.
const MOST_LOOKS: u32 = 64;

/// The job's name and this rank's options, once all ranks have valid ones and either all or none of
/// them have checkpoints. Collective; the first message of every session.
///
/// # Errors
/// Invalid for a name or an option, or for a rank without checkpoints among others that have them.
pub(crate) fn agree_on_options(
    collective: &mut dyn Collective,
    job: &str,
    options: Result<Options>,
) -> Result<(JobName, Options)> {
    let rank = i64::from(collective.rank());
    let local = options.and_then(|options| Ok((name_of(job)?, options)));
    let without = (local.as_ref()).is_ok_and(|(_, options)| options.without.is_some());
    // The lowest rank of each kind, if there is one.
    let mut lowest = match without {
        true => [rank, i64::MAX],
        false => [i64::MAX, rank],
    };
    let local = agree_min(collective, local, &mut lowest)?;
    // Breaks if: this is left out; ranks with checkpoints would wait for others that never come.
    if !lowest.contains(&i64::MAX) && !off(Switch::SameEnabled) {
        return Err(Error::invalid(format!(
            "checkpoints are disabled on rank {} and enabled on rank {}",
            lowest[0], lowest[1]
        ))
        .next("give all ranks the same `enabled`, `global` and `node_dir`"));
    }
    Ok(local)
}

/// The job's name: the program's own, or, if it gives none, that in the environment.
fn name_of(job: &str) -> Result<JobName> {
    // Breaks if: the environment wins; a program with two jobs would write both into one.
    if !job.is_empty() {
        return JobName::new(job);
    }
    match env_var(JOB_VARIABLE).filter(|name| !name.is_empty()) {
        Some(name) => JobName::new(&name).map_err(|error| error.at(JOB_VARIABLE)),
        None => Err(Error::invalid("the job has no name")
            .next("pass one to orc_open, or start the program with orcheck run --job NAME")),
    }
}

/// How to encode containers, and what to believe with the user's keys, which must be the same on
/// all ranks. Collective.
pub(crate) fn agree_on_recipe(
    collective: &mut dyn Collective,
    job: &JobName,
    options: &Options,
) -> Result<(Recipe, Arc<Trust>)> {
    let read = options.encrypt_key.iter().map(SecretSource::read);
    let read: Result<Vec<_>> = read.map(|secret| secret.map(Arc::new)).collect();
    let secrets = agree(collective, read)?;
    // The options are the same everywhere, so all ranks get here equally often.
    for secret in &secrets {
        let mine = fingerprint(secret, job.as_str().as_bytes());
        let mut values = [0; 2];
        if let Ok(mine) = mine {
            values = [mine, !mine];
        }
        agree_min(collective, mine.map(|_| ()), &mut values)?;
        // Breaks if: this is left out; a checkpoint that no single key can read would be committed.
        if values[0] != !values[1] && !off(Switch::SameKey) {
            return Err(
                Error::invalid("the ranks were given different keys (encrypt_key)")
                    .next("give all ranks the same keys in the same order"),
            );
        }
    }
    let trust = agree(
        collective,
        Trust::new(&secrets, options.encrypt, options.accept),
    )?;
    let recipe = Recipe {
        compression: options.compression,
        level: options.compress_level,
        secret: secrets.into_iter().next().filter(|_| options.encrypt),
    };
    Ok((recipe, trust))
}

/// Continues a job that its nodes remember without level `global`, if no rank can see any of its
/// directories. Collective.
pub(crate) fn leave_out_global(
    collective: &mut dyn Collective,
    places: &mut Places,
    options: &mut Options,
    notes: &mut Vec<String>,
) -> Result<()> {
    if options.global.is_empty() || options.node_dir.is_none() {
        return Ok(());
    }
    // If some rank sees a directory, the others lack a mount, which the user has to repair.
    let mut lost = [i64::from(places.has_lost_global())];
    let refused = match lost[0] != 0 && options.strict {
        true => Err(Error::unavailable(format!(
            "none of the directories of level global is there: {}",
            places.notes.join("; ")
        ))
        .next("bring one back, or leave strict out to continue at the node's level")),
        false => Ok(()),
    };
    agree_min(collective, refused, &mut lost)?;
    if lost[0] != 0 {
        places.without_global();
        options.global.clear();
        notes.push(
            "none of the directories of level global is there: this run has the node's level only, and waiting for level global is refused"
                .to_owned(),
        );
    }
    Ok(())
}

/// The counter of this run's epoch: one more than the highest that any rank sees. Collective.
pub(crate) fn agree_on_counter(
    collective: &mut dyn Collective,
    dirs: &[Arc<dyn Dir>],
    options: &Options,
    of: (&JobName, &Trust),
    clock: &dyn Clock,
) -> Result<u64> {
    let highest = counter_when_free(dirs, options, of, clock);
    let mut value = [-(highest.as_ref().map_or(0, |&counter| counter as i64))];
    agree_min(collective, highest, &mut value)?;
    Ok(value[0].unsigned_abs() + 1)
}

/// The highest counter that was given out, read before the look for a run that holds the job. A run
/// that claims after that look collides with this one, and one that claimed before it is seen.
fn counter_when_free(
    dirs: &[Arc<dyn Dir>],
    options: &Options,
    of: (&JobName, &Trust),
    clock: &dyn Clock,
) -> Result<u64> {
    let mut highest = highest_counter(dirs)?;
    if options.take_over {
        return Ok(highest);
    }
    let until = clock.now() + Duration::from_secs_f64(options.take_over_wait_s);
    // Breaks if: this has no bound; runs that come and go would keep this one here forever.
    for _ in 0..MOST_LOOKS {
        wait_for_holder(dirs, until.saturating_sub(clock.now()), of, clock)?;
        // Breaks if: the counter is read only after the look for a holder; a run that claims
        // between the two would be fenced instead of refusing this one.
        let now = highest_counter(dirs)?;
        if now == highest || off(Switch::CounterFirst) {
            return Ok(now);
        }
        highest = now;
    }
    Err(Error::unavailable(format!(
        "other runs of the job came and went at each of {MOST_LOOKS} looks, up to epoch {highest}"
    ))
    .next("start it again when no other run of it is being started"))
}
