//! Every bit and every byte of what is not data, and tens of thousands of damages to what is.
//!
//! How: a small job leaves two checkpoints; its directories become an image. One trial changes some
//! bytes of one file and restarts. Each bit of each small structure is flipped, each file cut at
//! each byte of them; data suffers flips, bursts, zeroed, swapped and stale blocks at seeded
//! places. What must come back follows from what is redundant: the newest step, or the one before
//! and a report that names the file and the place; never other bytes, and never a fresh start.
//!
//! `ORCHECK_TRIALS` raises the number of damages to data, `ORCHECK_SEED` chooses them.

use crate::look::restart;
use orcheck_format::Step;
use orcheck_format::disk::{BLOCK_BYTES, FileName};
use orcheck_jobs::anatomy::anatomy;
use orcheck_jobs::life::{Life, PAIR, SPREAD, STRIPED, View, Workload};
use orcheck_jobs::payload::Origin;
use orcheck_jobs::trial::{Failure, Outcome, Random, Table, Verdict, apart, seed, share, trials};
use orcheck_testing::power::{Content, Image};
use orcheck_testing::{Ended, Scratch};
use std::ops::Range;

/// The newest step; the one before is there too.
const NEWEST: u64 = 3;

/// What must come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// The newest: what was damaged is redundant.
    Newest,
    /// As before, and somebody must have said which file is damaged.
    NewestSaid,
    /// The step before, and what was said names the file and the place.
    Older,
    /// Either.
    Any,
}

/// One structure, in one file or in all its copies.
struct Spot {
    row: &'static str,
    /// Paths, with the bytes of the structure in each.
    files: Vec<(String, Range<usize>)>,
    /// After a flipped bit, and after the file was cut inside.
    flipped: Expect,
    cut: Expect,
    /// What must be said of a place in data.
    place: Vec<String>,
}

/// What is done to the bytes of a file.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// One bit of the structure.
    Flip(usize),
    /// The file ends at this byte of the structure.
    Cut(usize),
    /// This many bytes from this one of the structure are others.
    Burst(usize, usize, u8),
    /// The block around this byte is zero.
    Zero(usize),
    /// It and the next one change places.
    Swap(usize),
    /// It is that of the older checkpoint at the same place.
    Stale(usize),
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Files of one kind.
fn files(image: &Image, which: impl Fn(&FileName) -> bool) -> Vec<(String, Range<usize>)> {
    let all = image.files().into_iter();
    let ours = all.filter(|path| FileName::parse(name_of(path)).is_some_and(|name| which(&name)));
    ours.map(|path| {
        let len = image.file(&path).unwrap().bytes().len();
        (path, 0..len)
    })
    .collect()
}

/// Every structure of one checkpoint.
fn spots(workload: &Workload, image: &Image, of_step: u64) -> Vec<Spot> {
    let mut spots = Vec::new();
    let striped = workload.options.contains("traditional");
    for (path, _) in files(
        image,
        |name| matches!(name, FileName::Container { step, .. } if *step == Step(of_step)),
    ) {
        let anatomy = anatomy(&image.file(&path).unwrap().bytes());
        // Level node is read first, and level global only where that fails.
        let (lost, said) = match (workload.node_level, path.starts_with("local")) {
            (true, true) => (Expect::NewestSaid, Expect::NewestSaid),
            (true, false) => (Expect::Newest, Expect::Newest),
            (false, _) => (Expect::Older, Expect::NewestSaid),
        };
        // Where the pieces of a striped stream lie is in the manifest alone.
        let scanned = if striped { lost } else { said };
        let mut spot = |row, range, flipped, cut| {
            let files = vec![(path.clone(), range)];
            let place = Vec::new();
            spots.push(Spot {
                row,
                files,
                flipped,
                cut,
                place,
            });
        };
        spot("container header", anatomy.header, lost, lost);
        for (_, header, _, record) in anatomy.ranks {
            spot("rank header", header, Expect::Newest, lost);
            spot("rank record", record, Expect::Newest, lost);
        }
        spot("manifest", anatomy.manifest, scanned, scanned);
        spot("trailer", anatomy.trailer, scanned, scanned);
        for (rank, store, range) in anatomy.extents {
            let file = if store == 0 {
                path.clone()
            } else {
                let stripe = name_of(&path).replace(".orc", &format!(".stripe{store:02}"));
                let found = image
                    .files()
                    .into_iter()
                    .find(|other| name_of(other) == stripe);
                found.unwrap()
            };
            let place = vec![
                format!("rank {rank}"),
                format!("bytes {}..{}", range.start, range.end),
            ];
            let files = vec![(file, range)];
            spots.push(Spot {
                row: "data",
                files,
                flipped: lost,
                cut: lost,
                place,
            });
        }
    }
    let mut copies = |row: [&'static str; 2], found: Vec<(String, Range<usize>)>, one, all| {
        let place = Vec::new;
        let first = vec![found[0].clone()];
        spots.push(Spot {
            row: row[0],
            files: first,
            flipped: one,
            cut: one,
            place: place(),
        });
        if found.len() > 1 {
            spots.push(Spot {
                row: row[1],
                files: found,
                flipped: all,
                cut: all,
                place: place(),
            });
        }
    };
    copies(
        ["commit record, one copy", "commit record, all copies"],
        files(
            image,
            |name| matches!(name, FileName::Commit { step, .. } if *step == Step(of_step)),
        ),
        Expect::NewestSaid,
        Expect::Older,
    );
    copies(
        ["claim, one copy", "claim, all copies"],
        files(image, |name| matches!(name, FileName::Claim { .. })),
        Expect::NewestSaid,
        Expect::NewestSaid,
    );
    copies(
        ["resumed, one copy", "resumed, all copies"],
        files(image, |name| matches!(name, FileName::Resumed { .. })),
        Expect::NewestSaid,
        Expect::NewestSaid,
    );
    spots
}

/// Bytes far from anything but zeros are padding: some of them are enough from day to day.
fn is_padding(bytes: &[u8], at: usize) -> bool {
    let around = at.saturating_sub(24)..(at + 24).min(bytes.len());
    bytes[around].iter().all(|&byte| byte == 0)
}

fn harmed(image: &Image, path: &str, range: &Range<usize>, harm: Harm) -> Option<Vec<u8>> {
    let before = image.file(path).unwrap().bytes();
    let mut bytes = before.to_vec();
    let block = |at: usize| {
        let start = (range.start + at) / BLOCK_BYTES * BLOCK_BYTES;
        start..(start + BLOCK_BYTES).min(before.len())
    };
    match harm {
        Harm::Flip(bit) => bytes[range.start + bit / 8] ^= 1 << (bit % 8),
        Harm::Cut(at) => bytes.truncate(range.start + at),
        Harm::Burst(at, len, salt) => {
            let end = (range.start + at + len).min(range.end);
            for (n, byte) in bytes[range.start + at..end].iter_mut().enumerate() {
                *byte = byte
                    .wrapping_mul(5)
                    .wrapping_add(salt | 1)
                    .wrapping_add(n as u8);
            }
        }
        Harm::Zero(at) => bytes[block(at)].fill(0),
        Harm::Swap(at) => {
            let start = block(at).start;
            let two = bytes.get_mut(start..start + 2 * BLOCK_BYTES)?;
            let (one, two) = two.split_at_mut(BLOCK_BYTES);
            one.swap_with_slice(two);
        }
        Harm::Stale(at) => {
            let older = path.replace(&format!("s{NEWEST:012}"), &format!("s{:012}", NEWEST - 1));
            let older = image.file(&older)?.bytes();
            bytes[block(at)].copy_from_slice(older.get(block(at))?);
        }
    }
    (before != bytes).then_some(bytes)
}

/// Restarts and judges.
fn judge(
    workload: &Workload,
    image: &Image,
    expect: Expect,
    named: &[String],
) -> Result<Verdict, Failure> {
    let found = restart(workload, image, View::All)?;
    let said = [found.damage.as_slice(), found.notes.as_slice()]
        .concat()
        .join(" | ");
    let unsaid = || named.iter().find(|part| !said.contains(part.as_str()));
    let run = 1;
    match (expect, found.origin) {
        (
            Expect::Newest | Expect::Any,
            Some(Origin {
                run: 1,
                step: NEWEST,
            }),
        ) => Ok(Verdict::Pass),
        (
            Expect::NewestSaid,
            Some(Origin {
                run: 1,
                step: NEWEST,
            }),
        ) => match unsaid() {
            None => Ok(Verdict::Pass),
            Some(part) => Err((Verdict::HardFail, format!("nobody said '{part}': {said}"))),
        },
        (Expect::Older | Expect::Any, Some(origin))
            if origin
                == (Origin {
                    run,
                    step: NEWEST - 1,
                }) =>
        {
            match unsaid() {
                None => Ok(Verdict::FellBack),
                Some(part) => Err((Verdict::FellBack, format!("nobody said '{part}': {said}"))),
            }
        }
        (_, Some(origin)) if origin.run == run && origin.step >= NEWEST - 1 => Err((
            Verdict::LostWork,
            format!("expected {expect:?}, found {origin:?}: {said}"),
        )),
        (_, found) => Err((Verdict::HardFail, format!("found {found:?}: {said}"))),
    }
}

/// One trial: a spot and what is done to it.
struct Case {
    spot: usize,
    harm: Harm,
}

/// Every bit and every length of every structure.
fn metadata_cases(spots: &[Spot], image: &Image, random: &mut Random, thorough: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for (number, spot) in spots.iter().enumerate() {
        let (path, range) = &spot.files[0];
        let mut add = |harm| cases.push(Case { spot: number, harm });
        if spot.row == "data" {
            continue;
        }
        // Containers are alike: the one that is read first is taken to pieces from day to day, the
        // others in a campaign.
        let first = !rows.contains(&spot.row);
        rows.push(spot.row);
        if !first && !thorough {
            continue;
        }
        let bytes = &image.file(path).unwrap().bytes()[range.clone()];
        for at in 0..bytes.len() {
            // That a structure does not decode, its first copy shows; all of them need a glance
            // only.
            if !thorough && spot.files.len() > 1 {
                add(Harm::Flip(at * 8 + random.below(8) as usize));
                add(Harm::Cut(at));
            } else if thorough || !is_padding(bytes, at) {
                (0..8).for_each(|bit| add(Harm::Flip(at * 8 + bit)));
                add(Harm::Cut(at));
            } else if random.below(16) == 0 {
                add(Harm::Flip(at * 8 + random.below(8) as usize));
                add(Harm::Cut(at));
            }
        }
    }
    cases
}

/// Seeded damage to data: flips, bursts of 8 to 64 bytes, and blocks.
fn data_cases(spots: &[Spot], random: &mut Random, count: usize) -> Vec<Case> {
    let places: Vec<usize> = (0..spots.len())
        .filter(|&number| spots[number].row == "data")
        .collect();
    let case = |turn: usize| {
        let spot = places[random.below(places.len() as u64) as usize];
        let len = spots[spot].files[0].1.len();
        let at = random.below(len as u64) as usize;
        let harm = match turn % 8 {
            0..=3 => Harm::Flip(at * 8 + random.below(8) as usize),
            4 => Harm::Burst(at, 8 + random.below(57) as usize, random.below(256) as u8),
            5 => Harm::Zero(at),
            6 => Harm::Swap(at),
            _ => Harm::Stale(at),
        };
        Case { spot, harm }
    };
    (0..count).map(case).collect()
}

/// What the harm to a spot must lead to, and what must be said.
fn expected(workload: &Workload, spot: &Spot, harm: Harm) -> (Expect, Vec<String>) {
    let file = name_of(&spot.files[0].0).to_owned();
    let with = |more: &[String]| [std::slice::from_ref(&file), more].concat();
    match harm {
        Harm::Flip(_) | Harm::Burst(..) => (spot.flipped, with(&spot.place)),
        Harm::Cut(_) => (spot.cut, with(&[])),
        // A whole block: it may reach into the padding or the structures around.
        _ if workload.node_level => (Expect::Newest, Vec::new()),
        _ => (Expect::Any, with(&[])),
    }
}

/// Damages to data from day to day, of each kind of job.
const DATA: usize = 3500;

/// The jobs whose checkpoints are damaged: each with state of next to nothing, and of several
/// blocks.
const JOBS: [(&str, Workload); 3] = [
    ("one copy", SPREAD),
    ("both levels", PAIR),
    ("striped", Workload { keep: 2, ..STRIPED }),
];

// Breaks if: `Source::compare`, `check_digest` or `check_crc` in reader and format accept whatever
// they find, a damaged copy ends the search for another, or a record that cannot be read looks like
// none.
pub fn every_bit_of_metadata() {
    let seed = seed();
    let thorough = trials(0) > 0;
    let mut table = Table::default();
    for (number, (name, workload)) in JOBS.into_iter().enumerate() {
        let workload = Workload {
            scale: 1,
            ..workload
        };
        let image = checkpoints(&workload);
        let mut spots = spots(&workload, &image, NEWEST);
        // Small records are alike in all jobs.
        spots.retain(|spot| number == 0 || thorough || spot.files[0].0.ends_with(".orc"));
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let cases = metadata_cases(&spots, &image, &mut random, thorough);
        try_all(&mut table, name, &workload, &image, &spots, &cases);
    }
    table.finish("every bit and every length of what is not data");
}

// Breaks if: `Source::compare` accepts whatever it finds, or the report does not name file, rank
// and bytes.
pub fn seeded_damage_to_data() {
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let mut table = Table::default();
    for (number, (name, workload)) in JOBS.into_iter().enumerate() {
        let scale = if name == "striped" { 70 } else { 16 };
        let workload = Workload { scale, ..workload };
        let image = checkpoints(&workload);
        let spots = spots(&workload, &image, NEWEST);
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let cases = data_cases(&spots, &mut random, trials(DATA));
        try_all(&mut table, name, &workload, &image, &spots, &cases);
        let both: Vec<Spot> = spots
            .into_iter()
            .chain(self::spots(&workload, &image, NEWEST - 1))
            .collect();
        let count = trials(DATA) / 2;
        let several = |number| several(&workload, &image, &both, random_of(seed, number));
        let outcomes = share(count, &several);
        let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let allowed = [Verdict::Pass, Verdict::FellBack, Verdict::ClearFail];
        table.add(
            &format!("{name}: several places"),
            &names,
            &outcomes,
            &allowed,
        );
    }
    table.finish(&format!(
        "damaged data; again: ORCHECK_SEED={seed} cargo test -p orcheck-jobs --test power -- data"
    ));
}

/// The choices of one trial, whoever runs it.
fn random_of(seed: u64, number: usize) -> Random {
    Random::new(seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Two to nine damages at once, to anything of both checkpoints.
// Breaks if: what cannot be read looks like what was never there; the job would then begin from
// nothing.
fn several(workload: &Workload, image: &Image, spots: &[Spot], mut random: Random) -> Outcome {
    let mut changed = image.clone();
    let mut files = Vec::new();
    for _ in 0..2 + random.below(8) {
        let spot = &spots[random.below(spots.len() as u64) as usize];
        for (path, range) in &spot.files {
            let there = changed.file(path).unwrap().bytes().len();
            let range = range.start.min(there)..range.end.min(there);
            if range.is_empty() {
                continue;
            }
            let at = random.below(range.len() as u64) as usize;
            let harm = match random.below(4) {
                0 => Harm::Cut(at),
                1 => Harm::Zero(at),
                _ => Harm::Flip(at * 8 + random.below(8) as usize),
            };
            if let Some(bytes) = harmed(&changed, path, &range, harm) {
                changed = changed.with(path, Some(Content::new(bytes)));
                files.push(name_of(path).to_owned());
            }
        }
    }
    let named = |text: &str| files.iter().any(|file| text.contains(file.as_str()));
    let result = match restart(workload, &changed, View::All) {
        Err((Verdict::HardFail, text)) if named(&text) => Ok(Verdict::ClearFail),
        Err(failure) => Err(failure),
        Ok(found) => match found.origin {
            Some(Origin {
                run: 1,
                step: NEWEST,
            }) => Ok(Verdict::Pass),
            Some(Origin { run: 1, step: 2 }) if named(&found.damage.join(" ")) => {
                Ok(Verdict::FellBack)
            }
            other => Err((
                Verdict::HardFail,
                format!("found {other:?}: {:?}; damaged {files:?}", found.damage),
            )),
        },
    };
    Outcome::of(!files.is_empty(), result)
}

/// The directories after three checkpoints; two are kept.
fn checkpoints(workload: &Workload) -> Image {
    let scratch = Scratch::in_memory("whole");
    let ended = apart(&Life::new(*workload, scratch.path(), 1, NEWEST));
    assert_eq!(ended, Ended::Exited(0));
    Image::read(scratch.path()).unwrap()
}

fn try_all(
    table: &mut Table,
    name: &str,
    workload: &Workload,
    image: &Image,
    spots: &[Spot],
    cases: &[Case],
) {
    let outcomes = share(cases.len(), &|number| {
        let Case { spot, harm } = &cases[number];
        let spot = &spots[*spot];
        let mut changed = image.clone();
        for (path, range) in &spot.files {
            // The same bytes by chance: nothing to find.
            let Some(bytes) = harmed(image, path, range, *harm) else {
                return Outcome::of(false, Ok(Verdict::Pass));
            };
            changed = changed.with(path, Some(Content::new(bytes)));
        }
        let (expect, named) = expected(workload, spot, *harm);
        Outcome::of(true, judge(workload, &changed, expect, &named))
    });
    let mut rows: Vec<&str> = cases.iter().map(|case| spots[case.spot].row).collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let chosen: Vec<usize> = (0..cases.len())
            .filter(|&n| spots[cases[n].spot].row == row)
            .collect();
        let names: Vec<String> = chosen
            .iter()
            .map(|&n| format!("{:?} of {:?}", cases[n].harm, spots[cases[n].spot].files))
            .collect();
        let outcomes: Vec<Outcome> = chosen.iter().map(|&n| outcomes[n].clone()).collect();
        let allowed = [Verdict::Pass, Verdict::FellBack];
        table.add(&format!("{name}: {row}"), &names, &outcomes, &allowed);
    }
}
