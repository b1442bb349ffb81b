//! Tests fault class F24: an attacker who has write access and everything but the key. Thousands of
//! forged jobs are read as a restart and `orcheck verify` read them; no forged byte may be accepted
//! as the job's.
//!
//! `ORCHECK_TRIALS` is the number of forgeries of each kind, `ORCHECK_SEED` repeats a run.

#![allow(clippy::unwrap_used)]

use orcheck_engine::directory::epoch::{check_not_fenced, read_members};
use orcheck_engine::directory::halt::NewestRun;
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::encoding::{Accept, Proof, Trust};
use orcheck_engine::restart::{RankView, candidates};
use orcheck_engine::upkeep::verify_commit_with;
use orcheck_fixtures::forgery::attack::{
    Dice, KINDS, NOTES, confine, kept_from, leaves_a_copy, reach, replay, strip,
};
use orcheck_fixtures::forgery::world::{
    self, Form, LEVELS, NEWEST, NODES, PLACES, Place, RANKS, SECRET, SERVERS, World, epoch, job,
    key, members, record_places,
};
use orcheck_format::disk::{Claim, CommitRecord, FileName};
use orcheck_format::{ErrorKind, NodeId, Rank, Result, Step};
use orcheck_io::disk::Dir;
use orcheck_io::user::env_var;
use orcheck_testing::power::Image;
use std::sync::Arc;

fn number(name: &str) -> Option<u64> {
    env_var(name)?.parse().ok()
}

fn trials() -> u64 {
    number("ORCHECK_TRIALS").unwrap_or(100).max(100)
}

/// The directories as a node sees them.
fn places(image: &Image, node: NodeId, trust: &Arc<Trust>) -> Places {
    let dir = |place: Place| image.dir(&place.path());
    Places {
        job: job(),
        node: dir(Place::Node(node.0)),
        losses: 1,
        others: dir(Place::Node((node.0 + 1) % NODES)).into_iter().collect(),
        servers: (0..SERVERS)
            .map(|server| dir(Place::Server(server)))
            .collect(),
        read_only: Vec::new(),
        away: Vec::new(),
        server_roots: (0..SERVERS)
            .map(|server| format!("/ost{server}").into())
            .collect(),
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
    let image = world.image();
    let places: Vec<Places> = (0..NODES)
        .map(|node| places(&image, NodeId(node), trust))
        .collect();
    let offer = match candidates(&job(), &places[0]) {
        Ok(offer) => offer,
        Err(error) => return Outcome::Refused(error.kind()),
    };
    let mut kind = ErrorKind::NotFound;
    for candidate in offer.candidates {
        let read: Result<Option<String>> = (0..RANKS).try_fold(None, |wrong, rank| {
            let places = &places[(rank / 2) as usize];
            let mut view = RankView::open(places, candidate, Rank(rank), RANKS)?;
            let found = wrong_in(world, &mut view, candidate.step.0, Rank(rank))?;
            Ok(wrong.or(found))
        });
        match read {
            Ok(wrong) => return Outcome::Restored(candidate.step.0, wrong),
            Err(error) => kind = error.kind(),
        }
    }
    Outcome::Refused(kind)
}

/// What differs from what the rank stored at that step.
fn wrong_in(world: &World, view: &mut RankView, step: u64, rank: Rank) -> Result<Option<String>> {
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
    let image = world.image();
    let dirs: Vec<Arc<dyn Dir>> = PLACES
        .iter()
        .filter_map(|place| image.dir(&place.path()))
        .collect();
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

/// Lists of members that are believed, although no run of this job wrote them so.
fn believed_lists(world: &World, trust: &Arc<Trust>) -> usize {
    let image = world.image();
    let read = |(node, counter): (u32, u64)| {
        let dir = image.dir(&Place::Node(node).path())?;
        let list = read_members(dir.as_ref(), &job(), counter, trust).ok()?;
        Some(list != members(&job(), counter))
    };
    let all = (0..NODES).flat_map(|node| (1..6).map(move |counter| (node, counter)));
    all.filter(|&at| read(at) == Some(true)).count()
}

/// Runs kinds of forgeries, all where none is named, against files of one form; how often each was
/// believed, and what was. A checkpoint whose whole copy lies out of the attacker's reach must
/// still be restored, unless forgeries are `accepted` by the options.
fn campaign(
    form: Form,
    trust: &Arc<Trust>,
    (kinds, trials): (&[&str], u64),
    accepted: bool,
) -> Vec<(&'static str, u64, String)> {
    let seed = number("ORCHECK_SEED").unwrap_or(1);
    let genuine = World::new(form);
    let whole = Outcome::Restored(NEWEST, None);
    assert_eq!(restart(&genuine, trust), whole);
    assert_eq!(believed_lists(&genuine, trust), 0);
    let wanted = |kind: &str| kinds.is_empty() || kinds.contains(&kind);
    (KINDS.iter().filter(|(kind, _)| wanted(kind)))
        .map(|&(kind, forge)| {
            let (mut believed, mut first) = (0, String::new());
            for trial in 0..trials {
                let mut dice = Dice((seed + trial + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut world = genuine.clone();
                for _ in 0..8 {
                    dice.roll(2);
                }
                forge(&mut world, &mut dice);
                let reach = reach(&mut dice);
                confine(&mut world, &genuine, &reach);
                let outcome = restart(&world, trust);
                // A note that nobody of this job wrote must not hide a checkpoint either.
                let must_hold = NOTES.contains(&kind) || leaves_a_copy(&reach) && !accepted;
                let moved = match must_hold {
                    true => outcome != whole,
                    false => matches!(
                        outcome,
                        Outcome::Restored(_, Some(_)) | Outcome::Restored(35, _)
                    ),
                };
                let listed = believed_lists(&world, trust) > 0;
                if moved || listed || verified_forgeries(&world, &genuine, trust) > 0 {
                    believed += 1;
                    if first.is_empty() {
                        first = format!("seed {seed} trial {trial}, {reach:?}: {outcome:?}");
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
    let believed = campaign(Form::Sealed, &trust, (&[], trials), false);
    println!(
        "{} forgeries of {} kinds",
        trials * KINDS.len() as u64,
        KINDS.len()
    );
    let passed: Vec<_> = (believed.iter())
        .filter(|(_, count, _)| *count > 0)
        .collect();
    assert!(passed.is_empty(), "of {trials} each: {passed:#?}");
}

/// The generator is good for something: files of 0.1.0 are no match for it.
#[test]
fn many_of_the_same_forgeries_pass_where_records_have_no_seal() {
    let accept = Accept {
        v1: true,
        plain: false,
    };
    let kinds = [
        "region of an older step",
        "changed record",
        "forged note of resumption",
        "forged claim",
        "forged list of members",
        "changed lengths",
    ];
    let believed = campaign(Form::V1, &key(SECRET, accept), (&kinds, 60), true);
    let passed = |kind: &str| {
        believed
            .iter()
            .any(|(known, count, _)| *known == kind && *count > 0)
    };
    for kind in kinds {
        assert!(passed(kind), "{kind}: {believed:?}");
    }
}

// Breaks if: what has no tag at all is read because encryption in the old form is accepted, or the
// other way round.
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
                true => Outcome::Restored(NEWEST, None),
                false => Outcome::Refused(ErrorKind::Corrupt),
            };
            assert_eq!(outcome, expected, "{form:?} with {accept:?}");
        }
        // Without encryption configured everything stays readable, with its key.
        let secrets = [Arc::new(orcheck_io::user::Secret::new(SECRET))];
        let reading = Trust::new(&secrets, false, none).unwrap();
        assert_eq!(restart(&world, &reading), Outcome::Restored(NEWEST, None));
    }
    // With 'v1' accepted, forgeries that neither the old form has: no plain extent in an encrypted
    // container, no sealed container under a record without a seal.
    let kinds = ["plain extent", "downgrade to plain"];
    for (kind, count, first) in campaign(Form::V1, &key(SECRET, v1), (&kinds, 60), true) {
        assert_eq!(count, 0, "{kind}: {first}");
    }
    let believed = campaign(Form::Sealed, &key(SECRET, both), (&[], 20), true);
    for (kind, count, first) in believed {
        if ![
            "downgrade to plain",
            "forged note of resumption",
            "forged claim",
            "invented claim",
            "forged list of members",
        ]
        .contains(&kind)
        {
            assert_eq!(count, 0, "{kind}: {first}");
        }
    }
}

/// A forged header in some copies of each container of a step: at one level, in one directory of
/// several that are looked into, or everywhere but on one node.
fn with_forged_copies(step: u64) -> Vec<(World, Vec<Place>)> {
    let genuine = World::new(Form::Sealed);
    let whole_levels = LEVELS.map(record_places).to_vec();
    let single = PLACES.map(|place| vec![place]).to_vec();
    let all_but = |left| PLACES.into_iter().filter(move |&place| place != left);
    let but_one_node = [0, 1].map(|node| all_but(Place::Node(node)).collect());
    let forge = |places: Vec<Place>| {
        let mut world = genuine.clone();
        for &place in &places {
            let level = match place {
                Place::Node(_) => LEVELS[0],
                Place::Server(_) => LEVELS[1],
            };
            // A server that had no copy has a forged one now.
            for taken in &genuine.step(step, level).containers {
                let mut forged = taken.clone();
                forged.header.created_unix_ms += 1;
                world.put(place, &taken.file, forged.build().0);
            }
        }
        (world, places)
    };
    let all = [whole_levels, single, but_one_node.to_vec()].concat();
    all.into_iter().map(forge).collect()
}

// Breaks if: `open_first` or `referred` gives up at the first copy that is not believed, or
// `RankView::open` at the first level.
#[test]
fn one_forged_copy_does_not_cost_the_step() {
    let trust = key(SECRET, Accept::default());
    // The newest refers to step 40.
    let newest = with_forged_copies(NEWEST).into_iter();
    for (world, forged) in newest.chain(with_forged_copies(40)) {
        let outcome = restart(&world, &trust);
        assert_eq!(outcome, Outcome::Restored(NEWEST, None), "{forged:?}");
        // What was passed over is told to somebody.
        let image = world.image();
        let offer = candidates(&job(), &places(&image, NodeId(0), &trust)).unwrap();
        let mut told = Vec::new();
        for rank in 0..RANKS {
            let places = places(&image, NodeId(rank / 2), &trust);
            let mut view = RankView::open(&places, offer.candidates[0], Rank(rank), RANKS).unwrap();
            wrong_in(&world, &mut view, NEWEST, Rank(rank)).unwrap();
            told.extend(view.take_notes());
        }
        let nodes = forged.iter().any(|place| matches!(place, Place::Node(_)));
        assert!(
            !nodes || told.iter().any(|note| note.contains("forged")),
            "{forged:?}: {told:?}"
        );
    }
}

// Breaks if: `verify_commit_with` ends at the first copy that is not believed.
#[test]
fn verify_names_a_forged_copy_and_reads_the_others() {
    let trust = key(SECRET, Accept::default());
    for (world, forged) in with_forged_copies(NEWEST) {
        let image = world.image();
        let dirs = PLACES.map(|place| image.dir(&place.path()).unwrap());
        let catalog = Catalog::scan_trusting(&job(), &dirs, &trust).unwrap();
        let newest: Vec<_> = (catalog.commits().iter())
            .filter(|commit| commit.record.step == Step(NEWEST))
            .collect();
        let (mut good, mut told) = (0, Vec::new());
        for commit in &newest {
            let proven = (&trust, commit.proof);
            let verdict =
                verify_commit_with(&dirs, &commit.record, proven, &mut |_, _| {}).unwrap();
            assert_eq!(verdict.containers.len(), NODES as usize);
            good += usize::from(verdict.is_restorable());
            told.extend(verdict.findings().map(|finding| finding.message.clone()));
        }
        // Of each container there is one copy at level `global`, and two at `peers`.
        let lost = [
            forged.starts_with(&record_places(LEVELS[0])),
            forged.iter().any(|place| matches!(place, Place::Server(_))),
        ];
        let lost = lost.into_iter().filter(|&lost| lost).count();
        assert!(
            newest.len() == 2 && good == 2 - lost,
            "{forged:?}: {told:?}"
        );
        let one = |place: &Place| {
            told.iter()
                .any(|t| t.contains("forged") && t.contains(&place.path()))
        };
        assert!(forged.iter().all(one), "{forged:?}: {told:?}");
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

/// What is not prevented, as SECURITY.md says: notes that are removed, so that a superseded
/// checkpoint counts again.
#[test]
fn a_superseded_checkpoint_counts_again_where_the_note_that_superseded_it_was_removed() {
    let trust = key(SECRET, Accept::default());
    let mut world = World::new(Form::Sealed);
    let step = strip(&mut world);
    assert_eq!(restart(&world, &trust), Outcome::Restored(step, None));
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
    let record = world.step(NEWEST, LEVELS[1]).record.clone();
    let name = world.step(NEWEST, LEVELS[1]).record_name();
    let trust = key(SECRET, Accept::default());
    let said = |bytes: &[u8]| trust.check(bytes).unwrap_err().to_string();

    let genuine = world.read(&name).unwrap();
    let mut damaged = genuine.clone();
    damaged[60] ^= 1;
    assert!(said(&damaged).contains("CRC"), "{}", said(&damaged));
    let seal = orcheck_format::disk::seal_of(&genuine).unwrap().unwrap();
    let forged = orcheck_format::disk::seal(&record.encode(), seal.key_id, |_| [0; 32]).unwrap();
    assert!(said(&forged).contains("forged"), "{}", said(&forged));
    let error = other.check(&genuine).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("another key"), "{error}");
    // Beside genuine ones neither is in the way.
    for level in LEVELS {
        let name = world.step(NEWEST, level).record_name();
        world.put_in(&record_places(level), &name, &forged);
    }
    assert_eq!(restart(&world, &trust), Outcome::Restored(40, None));
}

// Breaks if: only the first key reads: a job would lose its checkpoints with the change of its key.
#[test]
fn every_key_reads_and_the_first_one_writes() {
    let world = World::new(Form::Sealed);
    let secret = |bytes| Arc::new(orcheck_io::user::Secret::new(bytes));
    let rotated = [secret([8; 32]), secret(SECRET)];
    let trust = Trust::new(&rotated, true, Accept::default()).unwrap();
    assert_eq!(restart(&world, &trust), Outcome::Restored(NEWEST, None));
    let written = trust.seal(world.steps[0].record.encode()).unwrap();
    assert_eq!(
        key([8; 32], Accept::default()).check(&written),
        Ok(Proof::Sealed)
    );
    assert!(key(SECRET, Accept::default()).check(&written).is_err());
    // Without any key it is read and not believed to be proven.
    assert_eq!(Trust::nobody().check(&written), Ok(Proof::Unchecked));
}

// Breaks if: a claim counts whoever wrote it; a file in place of a run's claim would end the run,
// or accuse another user.
#[test]
fn an_invented_claim_ends_no_run_and_names_nobody() {
    let trust = key(SECRET, Accept::default());
    let name = FileName::Claim { epoch: 2 }.to_string();
    let mut world = World::new(Form::Sealed);
    let genuine = world.read(&name).unwrap();
    let look = |world: &World, trust: &Arc<Trust>| {
        let dirs = places(&world.image(), NodeId(0), trust).servers;
        let dirs: Vec<_> = dirs.into_iter().flatten().collect();
        let run = NewestRun::newest(&dirs, trust).unwrap().unwrap();
        let ended = check_not_fenced(&dirs, epoch(2), trust).map_err(|error| error.kind());
        (ended, run.describe())
    };
    let (ended, who) = look(&world, &trust);
    assert_eq!(ended, Ok(()));
    assert!(who.contains("on host"), "{who}");
    let mut claim = Claim::decode(&genuine).unwrap();
    claim.epoch.run.0[3] ^= 1;
    claim.host = "elsewhere".into();
    let others = key([8; 32], Accept::default());
    for bytes in [claim.encode(), others.seal(claim.encode()).unwrap()] {
        world.note(&name, bytes);
        let (ended, who) = look(&world, &trust);
        assert_eq!(ended, Ok(()));
        assert_eq!(who, "a run whose claim is not authenticated");
        // Without a key there is nothing to tell it by.
        let (ended, who) = look(&world, &Trust::nobody());
        assert_eq!(ended, Err(ErrorKind::Fenced));
        assert!(who.contains("elsewhere"), "{who}");
    }
}

// Breaks if: the number in a claim that is not believed counts; a request to halt would be for
// another run.
#[test]
fn a_request_to_halt_is_for_the_run_whose_number_the_file_of_its_claim_has() {
    let trust = key(SECRET, Accept::default());
    let name = FileName::Claim { epoch: 2 }.to_string();
    let mut world = World::new(Form::Sealed);
    let mut claim = Claim::decode(&world.read(&name).unwrap()).unwrap();
    claim.epoch.counter = 1;
    world.note(&name, claim.encode());
    let dirs = places(&world.image(), NodeId(0), &trust).servers;
    let dirs: Vec<_> = dirs.into_iter().flatten().collect();
    let run = NewestRun::newest(&dirs, &trust).unwrap().unwrap();
    assert_eq!(run.claim.epoch.counter, 2);
}
