//! Finds and takes the names under which a user's agents are reached.
//!
//! How: an agent's name is derived from the user, job, node and first directory. If another user
//! holds that name, the agent appends 128 random bits, so that nobody can take the name before it.
//! To look for an agent, a process asks the kernel which of these names are taken, and by which
//! user. See ADR 36.
//!
//! Invariants:
//! 1. A name that another user holds counts as free: it neither keeps an agent from listening nor
//!    from being found.
//! 2. If nobody else interferes, there is one agent per job and node: the kernel gives out the
//!    first name once. An agent with a random name withdraws if it sees another one of its own
//!    user.
//! 3. A search ends: each name is tried without waiting, except that names whose queue of callers
//!    is full are tried for a stated time.
//!
//! Faults survived: another user who holds any number of these names, responsive or not.
//!
//! Not here: what is sent to an agent (`agent.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Clock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::effective_uid;
use orcheck_io::rng::random_bytes;
use orcheck_net::{Address, Holder, Listener, holder, taken_names};
use std::time::Duration;

/// Prefix of the names of all users' agents.
const PREFIX: &str = "orcheck-agent-";
/// Longest wait for a name whose queue of callers is full, before it counts as a stranger's.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
/// Time between two attempts to reach a name whose queue of callers is full.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Number of attempts of agents that withdraw because of each other.
const ATTEMPTS: u32 = 8;

/// The holders of the requested names.
#[derive(Debug, Default)]
pub struct NameHolders {
    /// Agents of this user.
    pub own: Vec<Address>,
    /// Number of names held by other users, or by processes that did not answer.
    pub strange: usize,
    /// The first of these names, and its holder.
    pub who: Option<String>,
}

impl NameHolders {
    fn add_stranger(&mut self, at: &Address, who: &str) {
        self.strange += 1;
        self.who
            .get_or_insert_with(|| format!("{at} is held by {who}"));
    }

    /// Describes the other holders of the names; `None` if there are none.
    #[must_use]
    pub fn strangers(&self) -> Option<String> {
        let first = self.who.as_ref()?;
        Some(match self.strange - 1 {
            0 => first.clone(),
            more => format!("{first}; more names of agents held by others: {more}"),
        })
    }
}

/// The first name of an agent and those derived from it. If the kernel's list cannot be read: only
/// the first name, and why.
fn names(first: &Address) -> (Vec<Address>, Option<Error>) {
    let listed = match first {
        Address::Abstract(name) => taken_names(&format!("{name}-")),
        Address::Tcp(_) => Ok(Vec::new()),
    };
    let first = std::iter::once(first.clone());
    match listed {
        Ok(more) => (first.chain(more).collect(), None),
        Err(error) => (first.collect(), Some(error)),
    }
}

/// Finds the holders of these names. If none of this user answers, tries those with a full queue
/// for up to `busy`.
fn ask(
    names: Vec<Address>,
    (failpoints, clock): (&Failpoints, &dyn Clock),
    busy: Duration,
) -> Result<NameHolders> {
    let mut seen = NameHolders::default();
    let until = clock.now() + busy;
    let mut open = names;
    loop {
        let mut full = Vec::new();
        for at in open {
            match holder(&at, failpoints)? {
                Holder::Nobody => {}
                Holder::Own(_) => seen.own.push(at),
                Holder::Stranger(peer) => seen.add_stranger(&at, &peer.to_string()),
                Holder::Busy => full.push(at),
            }
        }
        if full.is_empty() || !seen.own.is_empty() || clock.now() >= until {
            for at in full {
                seen.add_stranger(&at, "somebody who takes no calls");
            }
            return Ok(seen);
        }
        clock.sleep(LOOK_AGAIN);
        open = full;
    }
}

/// Finds the holders of the names of the agent with this first name.
///
/// # Errors
/// If the kernel does not report which names are taken; lack of descriptors.
pub fn look(first: &Address, failpoints: &Failpoints, clock: &dyn Clock) -> Result<NameHolders> {
    let (names, unlisted) = names(first);
    let seen = ask(names, (failpoints, clock), BUSY_LIMIT)?;
    match unlisted {
        // The agent may have a name that appears only in the list.
        Some(error) if seen.own.is_empty() && seen.strange > 0 => Err(error),
        _ => Ok(seen),
    }
}

/// All agents of this user on this machine.
///
/// # Errors
/// As [`look`].
pub fn list(clock: &dyn Clock) -> Result<NameHolders> {
    let names = taken_names(&format!("{PREFIX}{}-", effective_uid()))?;
    ask(names, (&Failpoints::none(), clock), BUSY_LIMIT)
}

/// The first name of an agent of this user.
pub(super) fn first(hash: u64) -> Address {
    Address::Abstract(format!("{PREFIX}{}-{hash:016x}", effective_uid()))
}

/// Whether `at` is one of the names of the agent whose first name is `first`.
#[must_use]
pub fn is_of(at: &Address, first: &Address) -> bool {
    let (Address::Abstract(at), Address::Abstract(first)) = (at, first) else {
        return at == first;
    };
    let rest = at.strip_prefix(first.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Listens under the first of the agent's names that no other user holds. Also returns the holders
/// of the names before it.
pub(super) fn bind(
    first: &Address,
    failpoints: &Failpoints,
    clock: &dyn Clock,
) -> Result<(Listener, Option<String>)> {
    let there = |at: &Address| {
        Err(Error::unavailable(format!(
            "an agent of this user is there already, at {at}"
        )))
    };
    let look = || ask(names(first).0, (failpoints, clock), Duration::ZERO);
    for _ in 0..ATTEMPTS {
        if let Some(at) = look()?.own.first() {
            return there(at);
        }
        let failed = match Listener::bind(first) {
            Ok(listener) => return Ok((listener, look()?.strangers())),
            Err(error) => error,
        };
        // An agent of this user that has the name and does not listen yet will do so in a moment.
        clock.sleep(LOOK_AGAIN);
        let seen = look()?;
        if let Some(at) = seen.own.first() {
            return there(at);
        }
        // Breaks if: the name counts as taken; whoever takes it first, which every user can, keeps
        // the job from running.
        if off(Switch::NameHeld) {
            return Err(failed);
        }
        let at = format!("{first}-{:032x}", u128::from_le_bytes(random_bytes())).parse()?;
        let listener = Listener::bind(&at)?;
        // An agent that looks later sees both. Breaks if: it looks before it listens; two that
        // begin at once would both stay.
        let others = look()?.own;
        let Some(other) = others.into_iter().find(|other| *other != at) else {
            let silent = || format!("{first} is held by somebody who does not listen");
            return Ok((listener, Some(seen.strangers().unwrap_or_else(silent))));
        };
        drop(listener);
        let pause = u32::from_le_bytes(random_bytes()) % 100;
        clock.sleep(LOOK_AGAIN + Duration::from_millis(pause.into()));
        if look()?.own.contains(&other) {
            return there(&other);
        }
    }
    Err(Error::unavailable(
        "several agents of one job and node begin at the same time",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::clock::SystemClock;
    use orcheck_testing::hosts::own_network;
    use orcheck_testing::squatter::{Squat, Squatter};

    #[test]
    fn names_with_something_behind_the_first_one_are_of_the_same_agent() {
        let first = first(7);
        let other = |rest: &str| format!("{first}{rest}").parse::<Address>().unwrap();
        assert!(is_of(&first, &first) && is_of(&other("-0af"), &first));
        assert!(!is_of(&other("0"), &first) && !is_of(&super::first(8), &first));
    }

    // Breaks if: an agent looks for others before it has taken its name, or nobody withdraws.
    #[test]
    fn of_agents_that_begin_at_once_behind_a_squatter_at_most_one_stays() {
        if effective_uid() != 0 {
            println!("SKIPPED of_agents_that_begin_at_once_…: needs root");
            return;
        }
        let rounds = || {
            own_network().unwrap();
            let first = first(7);
            let name = first.to_string().as_bytes()["unix:@".len()..].to_vec();
            let _squatter = Squatter::hold(65534, &[(name, Squat::Listens)]);
            let begin = |_| bind(&first, &Failpoints::none(), &SystemClock).ok();
            for _ in 0..10 {
                let stay: Vec<_> = std::thread::scope(|scope| {
                    let all: Vec<_> = (0..6).map(|n| scope.spawn(move || begin(n))).collect();
                    all.into_iter()
                        .filter_map(|one| one.join().unwrap())
                        .collect()
                });
                assert!(stay.len() <= 1, "{}", stay.len());
                let alone = bind(&first, &Failpoints::none(), &SystemClock);
                assert_eq!(alone.is_ok(), stay.is_empty());
            }
        };
        std::thread::scope(|scope| scope.spawn(rounds).join().unwrap());
    }
}
