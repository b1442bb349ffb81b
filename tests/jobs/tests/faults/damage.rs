//! Damage in each structure of the format: the exact bytes from what is redundant, or the older
//! step with a warning that says what was wrong; never other bytes. With `strict`, an error instead
//! of the older step.

use orcheck_engine::directory::Catalog;
use orcheck_engine::upkeep::verify_commit_with;
use orcheck_format::disk::{BLOCK_BYTES, FileName};
use orcheck_format::{JobName, Step};
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::anatomy::anatomy;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{ENCODED, Life, PAIR, PEERS, SPREAD, STRIPED, Workload, copy_tree, names};
use orcheck_jobs::payload::Origin;
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, apart, seed, share, told, trials,
};
use orcheck_staging::open_dir;
use orcheck_testing::impostor::Impostor;
use orcheck_testing::{Ended, Scratch};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The encoded workload with one copy of everything: damage cannot be mended from another level.
const ALONE: Workload = Workload {
    name: "2 ranks, 2 directories, zstd + aes-256-gcm",
    dirs: 2,
    node_level: false,
    losses: 0,
    lent: false,
    ..ENCODED
};

/// The newest step in the damaged directories; the one before is there too.
const NEWEST: u64 = 3;

/// What must come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// The newest, whatever was damaged: it is redundant, or there is another copy.
    Newest,
    /// The step before, with a warning that contains what is wrong; with `strict` an error.
    Older,
    /// Either.
    Any,
}

/// One place to damage: files relative to the trial's directory, with the bytes of one structure in
/// each.
#[derive(Debug, Clone)]
struct Spot {
    structure: String,
    files: Vec<(PathBuf, Range<usize>)>,
    expect: Expect,
    /// What the warning must name with the file.
    named: Vec<String>,
}

/// What is done to a structure.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// One bit, at this fraction of the structure (in 2^-32).
    Flip(u64),
    /// The file ends where the structure begins.
    Truncate,
    /// The first 4 KiB block of the structure is zero.
    Zero,
    /// The block of the structure and the one after it change places.
    Swap,
    /// The block that an older checkpoint has at the same offset.
    Stale,
}

/// Files of the newest step that satisfy `which`, relative to `root`.
fn files(workload: &Workload, root: &Path, which: &dyn Fn(&FileName) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in workload.job_dirs(root) {
        let mut here = names(&dir);
        here.sort();
        for name in here {
            if FileName::parse(&name).is_some_and(|name| which(&name)) {
                found.push(dir.strip_prefix(root).unwrap().join(name));
            }
        }
    }
    found
}

fn whole(root: &Path, path: &Path) -> Range<usize> {
    0..std::fs::metadata(root.join(path)).unwrap().len() as usize
}

/// Every structure of the newest checkpoint, with what must come back when it is damaged.
fn spots(workload: &Workload, root: &Path) -> Vec<Spot> {
    let other_level = workload.node_level;
    let mut spots = Vec::new();
    let lost = if other_level {
        Expect::Newest
    } else {
        Expect::Older
    };
    for path in files(workload, root, &|name| {
        matches!(
            name,
            FileName::Container {
                step: Step(NEWEST),
                ..
            }
        )
    }) {
        let anatomy = anatomy(&std::fs::read(root.join(&path)).unwrap());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut spot = |structure: &str, range: Range<usize>, expect, named: Vec<String>| {
            spots.push(Spot {
                structure: structure.to_owned(),
                files: vec![(path.clone(), range)],
                expect,
                named,
            });
        };
        spot("container header", anatomy.header, lost, vec![name.clone()]);
        for (rank, header, stream, record) in anatomy.ranks {
            spot("rank header", header, Expect::Newest, vec![]);
            spot("rank record", record.clone(), Expect::Newest, vec![]);
            // Between the last byte of the stream's last region and its record: padding.
            let last = anatomy
                .extents
                .iter()
                .filter(|extent| extent.0 == rank && extent.1 == 0)
                .map(|extent| extent.2.end)
                .max();
            if let Some(last) = last.filter(|&last| last < stream.end) {
                spot("padding", last..stream.end, Expect::Newest, vec![]);
            }
        }
        // A rank record does not say where the pieces of a striped stream went: no manifest comes
        // from a scan.
        let scanned = if workload.options.contains("traditional") {
            lost
        } else {
            Expect::Newest
        };
        spot("manifest", anatomy.manifest, scanned, vec![]);
        spot("trailer", anatomy.trailer, scanned, vec![]);
        for (rank, store, range) in anatomy.extents.into_iter().step_by(3) {
            let (file, structure) = if store == 0 {
                (path.clone(), "stream")
            } else {
                let stripe = name.replace(".orc", &format!(".stripe{store:02}"));
                let found = files(workload, root, &|other| other.to_string() == stripe);
                (found[0].clone(), "stripe")
            };
            let named = vec![
                file.file_name().unwrap().to_string_lossy().into_owned(),
                format!("rank {rank}"),
                format!("bytes {}..{}", range.start, range.end),
            ];
            spots.push(Spot {
                structure: structure.to_owned(),
                files: vec![(file, range)],
                expect: lost,
                named,
            });
        }
    }
    let records = files(workload, root, &|name| {
        matches!(
            name,
            FileName::Commit {
                step: Step(NEWEST),
                ..
            }
        )
    });
    for path in &records {
        let files = vec![(path.clone(), whole(root, path))];
        let structure = "commit record, one copy".to_owned();
        spots.push(Spot {
            structure,
            files,
            expect: Expect::Newest,
            named: vec![],
        });
    }
    let all: Vec<(PathBuf, Range<usize>)> = records
        .iter()
        .map(|path| (path.clone(), whole(root, path)))
        .collect();
    let named = vec![format!("s{NEWEST:012}-e000001-")];
    spots.push(Spot {
        structure: "commit record, all copies".to_owned(),
        files: all,
        expect: Expect::Older,
        named,
    });
    for (structure, end) in [("claim", ".claim"), ("resumed", ".resumed")] {
        let found = files(workload, root, &|name| name.to_string().ends_with(end));
        let all = found
            .iter()
            .map(|path| (path.clone(), whole(root, path)))
            .collect();
        let one = vec![(found[0].clone(), whole(root, &found[0]))];
        for (structure, files) in [
            (format!("{structure}, one copy"), one),
            (format!("{structure}, all copies"), all),
        ] {
            spots.push(Spot {
                structure,
                files,
                expect: Expect::Newest,
                named: vec![],
            });
        }
    }
    spots
}

/// Does the harm; false when there is nothing to do it to.
fn harm(root: &Path, spot: &Spot, harm: Harm) -> bool {
    for (path, range) in &spot.files {
        let full = root.join(path);
        let mut bytes = std::fs::read(&full).unwrap();
        let before = bytes.clone();
        let block = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = (block + BLOCK_BYTES).min(bytes.len());
        match harm {
            Harm::Flip(fraction) => {
                let bits = (range.len() as u64 * 8).max(1);
                let bit = ((u128::from(fraction) * u128::from(bits)) >> 32) as usize;
                bytes[range.start + bit / 8] ^= 1 << (bit % 8);
            }
            Harm::Truncate => bytes.truncate(range.start),
            Harm::Zero => bytes[block..end].fill(0),
            Harm::Swap => {
                if block + 2 * BLOCK_BYTES > bytes.len() {
                    return false;
                }
                let (one, two) = bytes[block..block + 2 * BLOCK_BYTES].split_at_mut(BLOCK_BYTES);
                one.swap_with_slice(two);
            }
            Harm::Stale => {
                let name = path.file_name().unwrap().to_string_lossy();
                let older =
                    name.replace(&format!("s{NEWEST:012}"), &format!("s{:012}", NEWEST - 1));
                if older == name {
                    return false;
                }
                let Some(older) = std::fs::read(full.with_file_name(older))
                    .ok()
                    .filter(|older| older.len() >= end)
                else {
                    return false;
                };
                bytes[block..end].copy_from_slice(&older[block..end]);
            }
        }
        if bytes == before {
            return false;
        }
        std::fs::write(&full, bytes).unwrap();
    }
    true
}

/// Restarts in damaged directories and judges.
fn restart(
    workload: &Workload,
    root: &Path,
    spot: &Spot,
    strict: bool,
) -> Result<Verdict, Failure> {
    let life = Life::new(*workload, root, 2, 0);
    let life = if strict {
        life.with("strict = true")
    } else {
        life
    };
    match apart(&life) {
        Ended::Exited(0) => {}
        Ended::Hung => return Err((Verdict::Hang, told(&Story::read(root)))),
        ended => {
            return Err((
                Verdict::HardFail,
                format!("{ended:?}; {}", told(&Story::read(root))),
            ));
        }
    }
    let story = Story::read(root);
    let mine = story.run(2);
    if let Some(text) = mine.wrong.first() {
        return Err((Verdict::SilentWrong, text.clone()));
    }
    let said = format!("{} {}", mine.warnings.join(" | "), mine.errors.join(" | "));
    let unnamed = spot.named.iter().find(|part| !said.contains(part.as_str()));
    match (spot.expect, mine.resumed.flatten()) {
        (
            _,
            Some(Origin {
                run: 1,
                step: NEWEST,
            }),
        ) => Ok(Verdict::Pass),
        (Expect::Newest, found) => Err((
            Verdict::LostWork,
            format!("got {found:?}; {}", told(&story)),
        )),
        (_, Some(Origin { run: 1, step })) if step == NEWEST - 1 && !strict => match unnamed {
            None => Ok(Verdict::FellBack),
            Some(part) => Err((
                Verdict::FellBack,
                format!("no warning names '{part}'; {}", told(&story)),
            )),
        },
        (_, None) if strict && !mine.errors.is_empty() => match unnamed {
            None => Ok(Verdict::ClearFail),
            Some(part) => Err((
                Verdict::ClearFail,
                format!("the error does not name '{part}'; {}", told(&story)),
            )),
        },
        (_, found) => Err((
            Verdict::HardFail,
            format!("got {found:?} (strict {strict}); {}", told(&story)),
        )),
    }
}

// Breaks if: `Source::compare`, `check_digest` or `check_crc` in reader and format accept whatever
// they find, or strict looks at the checkpoints that can be read only.
pub fn damaged_structures() {
    let seed = seed();
    let flips = (trials(8) as u64).min(2000);
    println!("  seed {seed} (ORCHECK_SEED)");
    let mut table = Table::default();
    for workload in [SPREAD, PAIR, STRIPED, ALONE] {
        let workload = Workload {
            keep: 2,
            ..workload
        };
        let base = Scratch::in_memory("whole");
        assert_eq!(
            apart(&Life::new(workload, base.path(), 1, NEWEST)),
            Ended::Exited(0)
        );
        let spots = spots(&workload, base.path());
        let mut random = Random::new(seed);
        let mut list: Vec<(usize, Harm)> = Vec::new();
        for number in 0..spots.len() {
            list.extend(
                [Harm::Truncate, Harm::Zero, Harm::Swap, Harm::Stale].map(|harm| (number, harm)),
            );
            list.extend([0, u64::from(u32::MAX)].map(|edge| (number, Harm::Flip(edge))));
            list.extend((2..flips).map(|_| (number, Harm::Flip(random.below(1 << 32)))));
        }
        let outcomes = share(list.len(), &|n| {
            let (spot, how) = (&spots[list[n].0], list[n].1);
            let mut worst = Outcome::of(false, Ok(Verdict::Pass));
            // With another copy strict changes nothing, so it is the harder case.
            let expect = loosened(&workload, spot, how).expect;
            let tried: &[bool] = if expect == Expect::Newest {
                &[true]
            } else {
                &[false, true]
            };
            for &strict in tried {
                let scratch = Scratch::in_memory("damage");
                copy_tree(base.path(), scratch.path());
                if !harm(scratch.path(), spot, how) {
                    return worst;
                }
                // What a block swap or a cut does to the neighbours is not what the structure
                // promises.
                let spot = loosened(&workload, spot, how);
                let result = restart(&workload, scratch.path(), &spot, strict);
                let failed = result.is_err();
                let outcome = Outcome::of(true, result);
                if failed || !strict || tried.len() == 1 {
                    worst = outcome;
                }
                if failed {
                    break;
                }
            }
            worst
        });
        let mut rows: Vec<&str> = spots.iter().map(|spot| spot.structure.as_str()).collect();
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            let chosen: Vec<usize> = (0..list.len())
                .filter(|&n| spots[list[n].0].structure == row)
                .collect();
            let names: Vec<String> = chosen
                .iter()
                .map(|&n| format!("{:?} of {:?}", list[n].1, spots[list[n].0].files))
                .collect();
            let outcomes: Vec<Outcome> = chosen.iter().map(|&n| outcomes[n].clone()).collect();
            table.add(
                &format!("{}: {row}", workload.name),
                &names,
                &outcomes,
                &[Verdict::Pass, Verdict::FellBack],
            );
        }
    }
    table.finish("damaged structures, each also with strict");
}

/// A cut, swapped, zeroed or stale block reaches beyond the structure it begins in: without another
/// copy only a good state and a clear word are promised then.
fn loosened(workload: &Workload, spot: &Spot, how: Harm) -> Spot {
    let small = ["commit", "claim", "resumed"]
        .iter()
        .any(|part| spot.structure.starts_with(part));
    match how {
        Harm::Flip(_) => spot.clone(),
        _ if small || workload.node_level => spot.clone(),
        _ => Spot {
            expect: Expect::Any,
            named: vec![],
            ..spot.clone()
        },
    }
}

/// Every file of the newest checkpoint and of its run as a whole, with what must come back without
/// it.
fn whole_files(workload: &Workload, root: &Path) -> Vec<Spot> {
    let lost = match workload.node_level {
        true => Expect::Newest,
        false => Expect::Older,
    };
    let spot = |structure: &str, paths: &[PathBuf], expect| {
        let named = paths.iter().take(1).map(|path| path.file_name());
        Spot {
            structure: structure.to_owned(),
            files: paths.iter().map(|path| (path.clone(), 0..0)).collect(),
            expect,
            named: named
                .map(|name| name.unwrap().to_string_lossy().into_owned())
                .collect(),
        }
    };
    let mut spots = Vec::new();
    for path in files(workload, root, &|name| {
        matches!(
            name,
            FileName::Container {
                step: Step(NEWEST),
                ..
            }
        )
    }) {
        spots.push(spot("container", &[path], lost));
    }
    for path in files(workload, root, &|name| {
        matches!(
            name,
            FileName::Stripe {
                step: Step(NEWEST),
                ..
            }
        )
    }) {
        spots.push(spot("stripe", &[path], lost));
    }
    let records = files(workload, root, &|name| {
        matches!(
            name,
            FileName::Commit {
                step: Step(NEWEST),
                ..
            }
        )
    });
    for path in &records {
        spots.push(spot(
            "commit record, one copy",
            std::slice::from_ref(path),
            Expect::Newest,
        ));
    }
    spots.push(spot("commit record, all copies", &records, Expect::Older));
    for (structure, end) in [
        ("claim", ".claim"),
        ("resumed", ".resumed"),
        ("members", ".members"),
    ] {
        let found = files(workload, root, &|name| name.to_string().ends_with(end));
        if found.is_empty() {
            continue;
        }
        spots.push(spot(
            &format!("{structure}, one copy"),
            &found[..1],
            Expect::Newest,
        ));
        spots.push(spot(
            &format!("{structure}, all copies"),
            &found,
            Expect::Newest,
        ));
    }
    spots
}

/// What `verify` says of the newest step: whether anything is wrong, in words.
fn verified(workload: &Workload, root: &Path) -> String {
    let places: Vec<_> = workload
        .job_dirs(root)
        .iter()
        .map(|dir| open_dir(dir, Failpoints::none()).unwrap())
        .collect();
    let trust = workload.trust();
    let job = JobName::new("job").unwrap();
    let catalog = Catalog::scan_trusting(&job, &places, &trust).unwrap();
    let mut said: Vec<String> = catalog.notes().to_vec();
    for commit in catalog.commits() {
        let proven = (&trust, commit.proof);
        let verdict = verify_commit_with(&places, &commit.record, proven, &mut |_, _| {}).unwrap();
        said.extend(verdict.findings().map(|finding| finding.message.clone()));
    }
    said.join(" | ")
}

/// Something else stands in place of files: they count as damaged, are named, and keep no run from
/// what it does.
fn replaced(
    workload: &Workload,
    base: &Path,
    spot: &Spot,
    by: Impostor,
) -> Result<Verdict, Failure> {
    let mut found = Verdict::Pass;
    // With another copy strict changes nothing, so it is the harder case.
    let tried: &[bool] = match spot.expect {
        Expect::Newest => &[true],
        _ => &[true, false],
    };
    for &strict in tried {
        let scratch = Scratch::in_memory("replaced");
        let root = scratch.path();
        copy_tree(base, root);
        for (path, _) in &spot.files {
            by.put(&root.join(path)).unwrap();
        }
        let said = verified(workload, root);
        let what = format!("expected a regular file, found {}", by.name());
        // Lists of members are no part of a checkpoint.
        let is_verified = !spot.structure.starts_with("members");
        if is_verified && !(said.contains(&spot.named[0]) && said.contains(&what)) {
            return Err((Verdict::HardFail, format!("verify says: {said}")));
        }
        found = restart(workload, root, spot, strict)?;
        // It is in nobody's way later on.
        let life = Life::new(*workload, root, 3, 2);
        let ended = apart(&life);
        let story = Story::read(root);
        let next = story.run(3);
        if ended != Ended::Exited(0) || !next.closed || !next.errors.is_empty() {
            return Err((Verdict::HardFail, format!("{ended:?}; {}", told(&story))));
        }
    }
    Ok(found)
}

// Breaks if: what is no regular file counts as a mistake of the call (Invalid), or of ours
// (Internal), and not as damage.
pub fn something_else_in_place_of_a_file() {
    let mut table = Table::default();
    for workload in [SPREAD, PAIR, STRIPED, ALONE, PEERS] {
        let workload = Workload {
            keep: 2,
            ..workload
        };
        let base = Scratch::in_memory("whole");
        assert_eq!(
            apart(&Life::new(workload, base.path(), 1, NEWEST)),
            Ended::Exited(0)
        );
        let spots = whole_files(&workload, base.path());
        let list: Vec<(usize, Impostor)> = (0..spots.len())
            .flat_map(|spot| Impostor::ALL.map(|by| (spot, by)))
            .collect();
        let outcomes = share(list.len(), &|n| {
            let (spot, by) = list[n];
            Outcome::of(true, replaced(&workload, base.path(), &spots[spot], by))
        });
        let names: Vec<String> = list
            .iter()
            .map(|(spot, by)| {
                format!(
                    "{by:?} for {}, {:?}",
                    spots[*spot].structure, spots[*spot].files[0].0
                )
            })
            .collect();
        let allowed = [Verdict::Pass, Verdict::FellBack, Verdict::ClearFail];
        table.add(workload.name, &names, &outcomes, &allowed);
    }
    table.finish("something else in place of a file, each also with strict");
}

/// Run 1 commits steps 1 to 3; step 3 is out of sight while run 2 resumes from 2 and commits its
/// own step 3; then run 1's step 3 reappears (a directory that came back), and every `resumed`
/// record is unreadable.
// Breaks if: a commit of a later epoch does not fence the steps of earlier epochs from its own step
// on.
pub fn an_old_timeline_stays_fenced_without_its_resumed_record() {
    let workload = SPREAD;
    let scratch = Scratch::in_memory("timeline");
    let root = scratch.path();
    assert_eq!(
        apart(&Life::new(workload, root, 1, NEWEST + 1)),
        Ended::Exited(0)
    );
    let aside = Scratch::in_memory("aside");
    let hidden = aside.path();
    copy_tree(root, hidden);
    for step in [NEWEST, NEWEST + 1] {
        for path in files(
            &workload,
            root,
            &|name| matches!(name, FileName::Commit { step: s, .. } | FileName::Container { step: s, .. } if *s == Step(step)),
        ) {
            std::fs::remove_file(root.join(path)).unwrap();
        }
    }
    // Its newest two are gone, so this run has to be given an older one: run 1 kept steps 3 and 4
    // only.
    for path in files(&workload, hidden, &|name| {
        matches!(name, FileName::Commit { .. } | FileName::Container { .. })
    }) {
        if path.to_string_lossy().contains(&format!("s{NEWEST:012}")) {
            std::fs::copy(hidden.join(&path), root.join(&path)).unwrap();
        }
    }
    assert_eq!(apart(&Life::new(workload, root, 2, 1)), Ended::Exited(0));
    let told_by_2 = Story::read(root).run(2);
    assert_eq!(
        told_by_2.resumed,
        Some(Some(Origin {
            run: 1,
            step: NEWEST
        })),
        "{told_by_2:?}"
    );
    for path in files(
        &workload,
        hidden,
        &|name| matches!(name, FileName::Commit { step, .. } | FileName::Container { step, .. } if *step == Step(NEWEST + 1)),
    ) {
        std::fs::copy(hidden.join(&path), root.join(&path)).unwrap();
    }
    // Of run 2 only its step is left to tell: what it resumed from cannot be read.
    for path in files(&workload, root, &|name| {
        matches!(name, FileName::Resumed { .. })
    }) {
        let full = root.join(path);
        let mut bytes = std::fs::read(&full).unwrap();
        bytes[20] ^= 4;
        std::fs::write(full, bytes).unwrap();
    }
    // The container of run 2's own step is damaged as well: the one before is left, never run 1's
    // step 4.
    for path in files(&workload, root, &|name| {
        matches!(name, FileName::Container { epoch: 2, .. })
    }) {
        let full = root.join(path);
        let mut bytes = std::fs::read(&full).unwrap();
        bytes[9000] ^= 1;
        std::fs::write(full, bytes).unwrap();
    }
    assert_eq!(apart(&Life::new(workload, root, 3, 0)), Ended::Exited(0));
    let story = Story::read(root);
    assert_eq!(
        story.run(3).resumed,
        Some(Some(Origin {
            run: 1,
            step: NEWEST
        })),
        "{}",
        told(&story)
    );
}
