//! Fault class F24: somebody with write access who has everything but the key. Thousands of forged jobs are read as a
//! restart and `orcheck verify` read them; no byte of them may be taken for the job's.
//!
//! `ORCHECK_TRIALS` is the number of forgeries of each kind, `ORCHECK_SEED` repeats a run.

#![allow(clippy::unwrap_used)]

mod attack;
mod world;

use attack::{Dice, KINDS, kept_from, replay};
use orcheck_engine::catalog::Catalog;
use orcheck_engine::places::Places;
use orcheck_engine::restore::{RankView, candidates};
use orcheck_engine::trust::{Accept, Proof, Trust};
use orcheck_engine::verify::verify_commit_with;
use orcheck_format::{CommitRecord, ErrorKind, Result};
use orcheck_io::env_var;
use std::sync::Arc;
use world::{Form, RANKS, SECRET, World, job, key};

fn number(name: &str) -> Option<u64> {
    env_var(name)?.parse().ok()
}

fn trials() -> u64 {
    number("ORCHECK_TRIALS").unwrap_or(200).max(200)
}

fn places(world: &World, trust: &Arc<Trust>) -> Places {
    Places {
        node: None,
        losses: 0,
        others: Vec::new(),
        servers: vec![world.image().dir("")],
        read_only: Vec::new(),
        server_roots: vec!["/".into()],
        notes: Vec::new(),
        trust: Arc::clone(trust),
    }
}

/// What became of reading a job as a restart does.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// This checkpoint was restored; the text says what is wrong with it, if anything.
    Restored(u64, Option<String>),
    Refused(ErrorKind),
}

/// The newest checkpoint that all ranks can read.
fn restart(world: &World, trust: &Arc<Trust>) -> Outcome {
    let places = places(world, trust);
    let offer = match candidates(&job(), &places) {
        Ok(offer) => offer,
        Err(error) => return Outcome::Refused(error.kind()),
    };
    let mut kind = ErrorKind::NotFound;
    for candidate in offer.candidates {
        let read: Result<Option<String>> = (0..RANKS).try_fold(None, |wrong, rank| {
            let mut view = RankView::open(&places, candidate, rank, RANKS)?;
            view.unlock(trust)?;
            let found = wrong_in(world, &mut view, candidate.step, rank)?;
            Ok(wrong.or(found))
        });
        match read {
            Ok(wrong) => return Outcome::Restored(candidate.step, wrong),
            Err(error) => kind = error.kind(),
        }
    }
    Outcome::Refused(kind)
}

/// What differs from what the rank stored at that step.
fn wrong_in(world: &World, view: &mut RankView, step: u64, rank: u32) -> Result<Option<String>> {
    if view.region_names() != ["a", "b"] {
        return Ok(Some(format!(
            "step {step} rank {rank}: {:?}",
            view.region_names()
        )));
    }
    for name in ["a", "b"] {
        let declared = view.region(name).map(world::RegionShape::of);
        let mut bytes = Vec::new();
        view.stream(name, &mut |_, part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        let good = world
            .truth(step, rank, name)
            .is_some_and(|truth| truth == bytes);
        if !good || declared != Some(world::RegionShape::of(&world::region(name))) {
            return Ok(Some(format!(
                "step {step} rank {rank} region {name}: {declared:?}"
            )));
        }
    }
    Ok(None)
}

/// Commits that `orcheck verify` calls good with the key, although nobody wrote them so.
fn verified_forgeries(world: &World, genuine: &World, trust: &Arc<Trust>) -> usize {
    let dirs = [world.image().dir("").unwrap()];
    let Ok(catalog) = Catalog::scan_trusting(&job(), &dirs, trust) else {
        return 0;
    };
    let known = |record: &CommitRecord| genuine.steps.iter().any(|step| step.record == *record);
    let invented = catalog.commits().iter();
    let invented = invented.filter(|commit| !known(&commit.record));
    let good = invented.filter(|commit| {
        let proven = (trust, commit.proof);
        verify_commit_with(&dirs, &commit.record, proven, &mut |_, _| {})
            .is_ok_and(|verdict| verdict.is_good())
    });
    good.count()
}

/// Runs all kinds against files of one form; how often each was believed, and what was.
fn campaign(form: Form, trust: &Arc<Trust>, trials: u64) -> Vec<(&'static str, u64, String)> {
    let seed = number("ORCHECK_SEED").unwrap_or(1);
    let genuine = World::new(form);
    assert_eq!(restart(&genuine, trust), Outcome::Restored(50, None));
    KINDS
        .iter()
        .map(|&(kind, forge)| {
            let (mut believed, mut first) = (0, String::new());
            for trial in 0..trials {
                let mut dice = Dice((seed + trial + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut world = genuine.clone();
                for _ in 0..8 {
                    dice.roll(2);
                }
                forge(&mut world, &mut dice);
                let outcome = restart(&world, trust);
                let moved = match kind {
                    // A note that nobody of this job wrote must not hide a checkpoint.
                    "forged note of resumption" | "forged claim" => {
                        // Over a genuine note: without it nothing is hidden either.
                        outcome != Outcome::Restored(50, None)
                    }
                    _ => matches!(outcome, Outcome::Restored(_, Some(_))),
                };
                if moved || verified_forgeries(&world, &genuine, trust) > 0 {
                    believed += 1;
                    if first.is_empty() {
                        first = format!("seed {seed} trial {trial}: {outcome:?}");
                    }
                }
            }
            (kind, believed, first)
        })
        .collect()
}

// Breaks if: the MAC over records is not compared, or a record without one is believed.
#[test]
fn every_forgery_is_refused() {
    let trials = trials();
    let trust = key(SECRET, Accept::default());
    let believed = campaign(Form::Sealed, &trust, trials);
    println!(
        "{} forgeries of {} kinds",
        trials * KINDS.len() as u64,
        KINDS.len()
    );
    for (kind, count, first) in &believed {
        assert_eq!(
            *count, 0,
            "{kind}: {count} of {trials} were believed, {first}"
        );
    }
}

/// The generator is good for something: files of 0.1.0 are no match for it.
#[test]
fn many_of_the_same_forgeries_pass_where_records_have_no_seal() {
    let accept = Accept {
        v1: true,
        plain: false,
    };
    let believed = campaign(Form::V1, &key(SECRET, accept), 60);
    let passed = |kind: &str| {
        believed
            .iter()
            .any(|(known, count, _)| *known == kind && *count > 0)
    };
    for kind in [
        "region of an older step",
        "changed record",
        "forged note of resumption",
        "forged claim",
        "changed lengths",
    ] {
        assert!(passed(kind), "{kind}: {believed:?}");
    }
}

// Breaks if: what has no tag at all is read because encryption in the old form is accepted, or the other way round.
#[test]
fn accepting_one_form_does_not_accept_another() {
    let none = Accept::default();
    let (plain, v1) = (
        Accept {
            plain: true,
            v1: false,
        },
        Accept {
            plain: false,
            v1: true,
        },
    );
    let both = Accept {
        plain: true,
        v1: true,
    };
    for (form, accepted) in [
        (
            Form::Plain,
            [(none, false), (plain, true), (v1, false), (both, true)],
        ),
        (
            Form::V1,
            [(none, false), (plain, false), (v1, true), (both, true)],
        ),
        (
            Form::Sealed,
            [(none, true), (plain, true), (v1, true), (both, true)],
        ),
    ] {
        let world = kept_from(form);
        for (accept, readable) in accepted {
            let outcome = restart(&world, &key(SECRET, accept));
            let expected = match readable {
                true => Outcome::Restored(50, None),
                false => Outcome::Refused(ErrorKind::Corrupt),
            };
            assert_eq!(outcome, expected, "{form:?} with {accept:?}");
        }
        // Without encryption configured everything stays readable, with its key.
        let secrets = [Arc::new(orcheck_io::Secret::new(SECRET))];
        let reading = Trust::new(&secrets, false, none).unwrap();
        assert_eq!(restart(&world, &reading), Outcome::Restored(50, None));
    }
    // With 'v1' accepted, forgeries that neither the old form has: no plain extent in an encrypted container, no
    // sealed container under a record without a seal.
    for kind in ["plain extent", "downgrade to plain"] {
        let believed = campaign(Form::V1, &key(SECRET, v1), 60);
        let (_, count, first) = believed.iter().find(|(known, ..)| *known == kind).unwrap();
        assert_eq!(*count, 0, "{kind}: {first}");
    }
    let believed = campaign(Form::Sealed, &key(SECRET, both), 60);
    for (kind, count, first) in believed {
        if ![
            "downgrade to plain",
            "forged note of resumption",
            "forged claim",
        ]
        .contains(&kind)
        {
            assert_eq!(count, 0, "{kind}: {first}");
        }
    }
}

/// What is not prevented, as SECURITY.md says: older checkpoints that are genuine and whole.
#[test]
fn a_job_whose_newest_checkpoints_were_removed_restarts_from_an_older_one() {
    let trust = key(SECRET, Accept::default());
    for trial in 1..50 {
        let mut world = World::new(Form::Sealed);
        let step = replay(&mut world, &mut Dice(trial * 77));
        assert_eq!(restart(&world, &trust), Outcome::Restored(step, None));
    }
}

// Breaks if: a wrong key is taken for damage or for a forgery, or one of them for another.
#[test]
fn another_key_damage_and_forgery_are_three_things() {
    let mut world = World::new(Form::Sealed);
    let other = key([8; 32], Accept::default());
    assert_eq!(
        restart(&world, &other),
        Outcome::Refused(ErrorKind::Invalid)
    );
    let record = world.steps[4].record.clone();
    let name = orcheck_engine::commit::name_of(record.step, record.epoch, record.level);
    let trust = key(SECRET, Accept::default());
    let said = |bytes: &[u8]| trust.check(bytes).unwrap_err().to_string();

    let genuine = world.files[&name].clone();
    let mut damaged = genuine.clone();
    damaged[60] ^= 1;
    assert!(said(&damaged).contains("CRC"), "{}", said(&damaged));
    let seal = orcheck_format::seal::seal_of(&genuine).unwrap().unwrap();
    let forged = orcheck_format::seal::seal(&record.encode(), seal.key_id, |_| [0; 32]).unwrap();
    assert!(said(&forged).contains("forged"), "{}", said(&forged));
    let error = other.check(&genuine).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("another key"), "{error}");
    // Beside genuine ones neither is in the way.
    world.files.insert(name, forged);
    assert_eq!(restart(&world, &trust), Outcome::Restored(40, None));
}

// Breaks if: only the first key reads: a job would lose its checkpoints with the change of its key.
#[test]
fn every_key_reads_and_the_first_one_writes() {
    let world = World::new(Form::Sealed);
    let secret = |bytes| Arc::new(orcheck_io::Secret::new(bytes));
    let rotated = [secret([8; 32]), secret(SECRET)];
    let trust = Trust::new(&rotated, true, Accept::default()).unwrap();
    assert_eq!(restart(&world, &trust), Outcome::Restored(50, None));
    let written = trust.seal(world.steps[0].record.encode()).unwrap();
    assert_eq!(
        key([8; 32], Accept::default()).check(&written),
        Ok(Proof::Sealed)
    );
    assert!(key(SECRET, Accept::default()).check(&written).is_err());
    // Without any key it is read and not believed to be proven.
    assert_eq!(Trust::nobody().check(&written), Ok(Proof::Unchecked));
}
