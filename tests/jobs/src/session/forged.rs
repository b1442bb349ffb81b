//! Fault class F24 from end to end: a job whose files were forged by somebody who has everything
//! but the key is restarted by a session, also through agents and servers, and by ranks that read
//! from another node because their own lost its directory. The programs that have this module have
//! it in their own way.
//!
//! The forgeries are those of the engine's tests; `ORCHECK_TRIALS` and `ORCHECK_SEED` as there.

use crate::session::disk;
use crate::session::mistakes::LONG;
use crate::support::Job;
use crate::{Deployment, Test, deployment, session_tests};
use orcheck_fixtures::forgery::attack::{Dice, KINDS, NOTES, confine, leaves_a_copy, reach};
use orcheck_fixtures::forgery::world::{Form, NEWEST, Place, RANKS, REGION_BYTES, SECRET, World};
use orcheck_format::{Dtype, Rank, Result};
use orcheck_io::memory::Span;
use orcheck_io::user::env_var;
use orcheck_testing::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    no_forgery_is_restarted_from_and_none_costs_a_step_of_which_there_is_another_copy,
];

fn number(name: &str) -> Option<u64> {
    env_var(name)?.parse().ok()
}

/// How many forgeries are tried, all kinds in turn.
fn trials() -> u64 {
    let kinds = KINDS.len() as u64;
    match number("ORCHECK_TRIALS") {
        Some(all) => (all * kinds / 200).max(kinds),
        None => match deployment() {
            Deployment::InRank => 5 * kinds,
            Deployment::Served => 2 * kinds,
            // Starting agents takes longest.
            Deployment::Agent => kinds / 2,
        },
    }
}

#[allow(clippy::disallowed_methods)]
fn job(root: &Path) -> Job {
    let key = root.join("key");
    std::fs::write(&key, SECRET.map(|byte| format!("{byte:02x}")).concat()).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    Job::new(root, RANKS, 2, true)
        .placed(&["n0", "n0", "n1", "n1"])
        .with("peers = 1\nencrypt = 'aes-256-gcm'")
        .with(&format!("encrypt_key = 'file:{}'", key.display()))
}

/// Restarts; the step, and whether all ranks have its bytes.
fn restart(root: &Path, world: &World) -> Result<(u64, bool)> {
    let ranks = job(root).run(|session, rank| -> Result<(u64, bool)> {
        let mut session = session?;
        session.find()?;
        let mut state = [vec![0xee; REGION_BYTES], vec![0xee; REGION_BYTES]];
        for (name, bytes) in ["a", "b"].into_iter().zip(&mut state) {
            session.protect(name, Span::from_mut(bytes), Dtype::F64, 0)?;
        }
        let step = session.restart()?;
        let truth = ["a", "b"].map(|name| world.truth(step, Rank(rank), name).unwrap_or_default());
        session.close(LONG)?;
        Ok((step, state == truth))
    });
    let ranks: Vec<(u64, bool)> = ranks.into_iter().collect::<Result<_>>()?;
    assert!(ranks.iter().all(|(step, _)| *step == ranks[0].0));
    Ok((ranks[0].0, ranks.iter().all(|(_, right)| *right)))
}

/// One forged job; what is wrong with what became of it.
fn trial(genuine: &World, kind: usize, seed: u64) -> Option<String> {
    let mut dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..8).for_each(|_| {
        dice.roll(2);
    });
    let (name, forge) = KINDS[kind];
    let mut world = genuine.clone();
    forge(&mut world, &mut dice);
    let mut touched = reach(&mut dice);
    confine(&mut world, genuine, &touched);
    let scratch = Scratch::in_memory("forged");
    let root = scratch.path();
    world.image().write(root).unwrap();
    // Its ranks read from the other node.
    let lost = dice.roll(3);
    if lost < 2 {
        let place = Place::Node(lost as u32);
        disk::remove_tree(&root.join(place.path()));
        touched.push(place);
    }
    let whole = leaves_a_copy(&touched);
    let outcome = restart(root, genuine);
    let wrong = match &outcome {
        Ok((step, right)) => !right || *step == 35 || whole && *step != NEWEST,
        Err(_) => whole || NOTES.contains(&name),
    };
    wrong.then(|| format!("{name}, seed {seed}, lost {lost}: {outcome:?}"))
}

// Breaks if: a session, an agent, a server or a node that others read from believes what the engine
// would not.
#[allow(clippy::print_stdout)]
fn no_forgery_is_restarted_from_and_none_costs_a_step_of_which_there_is_another_copy() {
    let genuine = World::new(Form::Sealed);
    let seed = number("ORCHECK_SEED").unwrap_or(1);
    let whole = Scratch::in_memory("forged");
    genuine.image().write(whole.path()).unwrap();
    assert_eq!(restart(whole.path(), &genuine), Ok((NEWEST, true)));
    let all = (0..trials()).map(|number| {
        let kind = (seed + number * 7) % KINDS.len() as u64;
        trial(&genuine, kind as usize, seed + number)
    });
    let all: Vec<Option<String>> = all.collect();
    println!("{} forgeries", all.len());
    let wrong: Vec<String> = all.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of them: {wrong:#?}", wrong.len());
}
