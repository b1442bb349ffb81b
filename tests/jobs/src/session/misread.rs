//! Reads that succeed with other bytes, while a whole job restarts: another block, another file, an
//! older version of the file, zeros. What comes out is right, or an older step with a warning, or
//! an error; never a wrong byte, never a start from nothing. Each test program that includes this
//! module runs it with the directories it is about.
//!
//! `ORCHECK_TRIALS` is the number of misreads of each sort of job, `ORCHECK_SEED` repeats a run.

use crate::session::disk;
use crate::session::mistakes::LONG;
use crate::support::{Job, State, serve_with};
use crate::{Deployment, Test, deployment, session_tests};
use orcheck_format::disk::FileName;
use orcheck_format::{ErrorKind, Level, Result, Step};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::env_var;
use orcheck_testing::Scratch;
use orcheck_testing::misread::{Instead, Misreader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![a_read_that_gives_other_bytes_never_gives_wrong_ones,];

const NEWEST: u64 = 4;
const SCALE: usize = 40;

fn number(name: &str) -> Option<u64> {
    env_var(name)?.parse().ok()
}

/// A sort of job.
#[derive(Clone, Copy)]
struct Sort {
    name: &'static str,
    /// Servers, and whether nodes have directories of their own.
    dirs: (u32, bool),
    options: &'static str,
    /// What is done to the directories before the restart.
    before: fn(&Path),
}

const SORTS: [Sort; 6] = [
    Sort {
        name: "plain",
        dirs: (2, true),
        options: "",
        before: |_| {},
    },
    Sort {
        name: "encrypted and compressed",
        dirs: (1, false),
        options: "compress = 'lz4'\nencrypt = 'aes-256-gcm'",
        before: |_| {},
    },
    Sort {
        name: "incremental",
        dirs: (1, true),
        options: "incremental = 'auto'",
        before: |_| {},
    },
    Sort {
        name: "incremental, encrypted, replicated",
        dirs: (0, true),
        options: "peers = 1\nincremental = 'auto'\nencrypt = 'aes-256-gcm'",
        before: |_| {},
    },
    Sort {
        name: "read from other nodes",
        dirs: (0, true),
        options: "peers = 1",
        before: |root| disk::remove_tree(&root.join("local/job/n0")),
    },
    Sort {
        name: "the newest damaged",
        dirs: (1, false),
        options: "",
        before: |root| {
            let dir = root.join("ost0/job");
            let mut names = disk::names(&dir).into_iter();
            let newest = names.find(|name| matches!(step_of(name), Some((NEWEST, true))));
            disk::flip(&dir.join(newest.unwrap()), 9000);
        },
    },
];

/// The test program that runs this module.
fn program() -> &'static str {
    match deployment() {
        Deployment::InRank => "session",
        Deployment::Agent => "agent",
        Deployment::Served => "served",
    }
}

fn sorts(wanted: impl Fn(&Sort) -> bool) -> Vec<Sort> {
    SORTS.into_iter().filter(wanted).collect()
}

/// The step of a file's name, and whether it is a container.
fn step_of(name: &str) -> Option<(u64, bool)> {
    match FileName::parse(name)? {
        FileName::Container { step, .. } => Some((step.0, true)),
        FileName::Commit { step, .. } => Some((step.0, false)),
        _ => None,
    }
}

#[allow(clippy::disallowed_methods)]
fn job(root: &Path, sort: &Sort, failpoints: &Failpoints) -> Job {
    let key = root.join("key");
    std::fs::write(&key, "5b".repeat(32)).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    serve_with(root, failpoints);
    let encrypts = sort.options.contains("encrypt");
    let job = Job::new(root, 4, sort.dirs.0, sort.dirs.1)
        .nodes(2)
        .with("keep = 4")
        .with(sort.options)
        .failpoints(failpoints.clone());
    match encrypts {
        true => job.with(&format!("encrypt_key = 'file:{}'", key.display())),
        false => job,
    }
}

fn take(root: &Path, sort: &Sort) {
    job(root, sort, &Failpoints::none()).run(|session, rank| {
        let mut session = session.unwrap();
        for step in 1..=NEWEST {
            let mut state = State::new(rank, step, SCALE);
            // What does not change is referred to.
            state.v = State::new(rank, 1, SCALE).v;
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            for level in [Level::Node, Level::Peers(1), Level::Global] {
                let there = match level {
                    Level::Node => sort.dirs.1 && !sort.options.contains("peers"),
                    Level::Global => sort.dirs.0 > 0,
                    _ => sort.options.contains("peers"),
                };
                if there {
                    session.wait(step, level, LONG).unwrap();
                }
            }
        }
        session.close(LONG).unwrap();
    });
}

/// What a restart gave: the step, whether its bytes are right on all ranks, and its warnings.
fn restart(root: &Path, sort: &Sort, failpoints: &Failpoints) -> Result<(u64, bool, Vec<String>)> {
    let ranks =
        job(root, sort, failpoints).run(|session, rank| -> Result<(u64, bool, Vec<String>)> {
            let mut session = session?;
            session.find()?;
            let mut state = State::empty(rank, SCALE);
            state.protect(&mut session)?;
            let step = session.restart()?;
            let told = crate::support::warnings(&mut session);
            let mut right = State::new(rank, step, SCALE);
            right.v = State::new(rank, 1, SCALE).v;
            let right = (state.u, state.v, state.small) == (right.u, right.v, right.small);
            session.close(LONG)?;
            Ok((step, right, told))
        });
    let mut all: Option<(u64, bool, Vec<String>)> = None;
    for rank in ranks {
        let (step, right, told) = rank?;
        let (first, all_right, all_told) = all.get_or_insert((step, true, Vec::new()));
        assert_eq!(*first, step, "{}", sort.name);
        *all_right &= right;
        all_told.extend(told);
    }
    Ok(all.unwrap_or_default())
}

/// What a file has at this offset, at most `len` bytes.
#[allow(clippy::disallowed_methods)]
fn bytes_at(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let from = usize::try_from(at).unwrap().min(bytes.len());
    bytes[from..bytes.len().min(from + len)].to_vec()
}

/// The file of the same kind of an older step, in the same directory; `older` counts the steps
/// between them.
fn of_older_step(path: &Path, older: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let (step, _) = step_of(name)?;
    let other = match FileName::parse(name)? {
        FileName::Commit {
            epoch, run, level, ..
        } => FileName::Commit {
            step: Step(step.checked_sub(older)?),
            epoch,
            run,
            level,
        },
        name => name.at_step(Step(step.checked_sub(older)?)),
    };
    Some(path.with_file_name(other.to_string()))
}

/// The ways in which a read goes wrong.
fn ways() -> Vec<fn() -> Instead> {
    // Small records and containers are what a restart believes.
    fn is_ours(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| FileName::parse(name).is_some())
    }
    fn moved<const BY: i64>() -> Instead {
        Box::new(|path, at, len| {
            let there = at.checked_add_signed(BY).filter(|_| is_ours(path))?;
            Some(bytes_at(path, there, len))
        })
    }
    fn older<const BY: u64>() -> Instead {
        Box::new(|path, at, len| Some(bytes_at(&of_older_step(path, BY)?, at, len)))
    }
    vec![
        || Box::new(|path, _, _| is_ours(path).then(Vec::new)),
        moved::<512>,
        moved::<4096>,
        moved::<65536>,
        moved::<-4096>,
        older::<1>,
        older::<2>,
        // Another writer's.
        || {
            Box::new(|path, at, len| {
                let name = path.file_name()?.to_str()?;
                let other = name.replace("-n0000-", "-n0001-");
                let other = match other == name {
                    true => name.replace("-n0001-", "-n0000-"),
                    false => other,
                };
                step_of(name).filter(|(_, container)| *container)?;
                Some(bytes_at(&path.with_file_name(other), at, len))
            })
        },
    ]
}

// Breaks if: a session, an agent, a server or a node that others read from does not prove what a
// disk gives; or what cannot be read counts as not being there.
#[allow(clippy::print_stdout)]
fn a_read_that_gives_other_bytes_never_gives_wrong_ones() {
    let seed = number("ORCHECK_SEED").unwrap_or(1);
    let ways = ways();
    // Servers and agents each have their part in some sorts of jobs; starting agents takes longest.
    let (sorts, least): (Vec<Sort>, u64) = match program() {
        "served" => (sorts(|sort| sort.dirs.0 > 0), 4),
        "agent" => (sorts(|sort| sort.dirs.0 == 0), 2),
        _ => (SORTS.to_vec(), 8),
    };
    let trials = number("ORCHECK_TRIALS").map_or(least, |all| (all / 50).max(least));
    for sort in sorts {
        let base = Scratch::in_memory("misread-base");
        take(base.path(), &sort);
        (sort.before)(base.path());
        let copied = || {
            let scratch = Scratch::in_memory("misread");
            disk::copy_tree(base.path(), scratch.path());
            scratch
        };
        let count = |way: &fn() -> Instead| {
            let scratch = copied();
            let counts = Misreader::new(0, way());
            let whole = restart(scratch.path(), &sort, &counts.failpoints()).unwrap();
            assert!(whole.1, "{}", sort.name);
            counts.reads()
        };
        let mut reads: Vec<Option<u64>> = vec![None; ways.len()];
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (mut struck, mut right, mut older, mut refused) = (0, 0, 0, 0);
        for trial in 0..trials {
            let way = (seed + trial * 3) as usize % ways.len();
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let there = *reads[way].get_or_insert_with(|| count(&ways[way]));
            let strike = 1 + (dice >> 11) % there.max(1);
            let scratch = copied();
            let hook = Misreader::new(strike, ways[way]());
            let outcome = restart(scratch.path(), &sort, &hook.failpoints());
            let place = || format!("{}, seed {seed}, way {way}, read {strike}", sort.name);
            struck += u64::from(hook.has_struck());
            match outcome {
                Ok((step, false, _)) => panic!("{}: wrong bytes of step {step}", place()),
                Ok((NEWEST, true, _)) => right += 1,
                Ok((step, true, told)) => {
                    assert!(
                        !told.is_empty(),
                        "{}: step {step} without a warning",
                        place()
                    );
                    older += 1;
                }
                Err(error) => {
                    assert!(error.kind() != ErrorKind::NotFound, "{}: {error}", place());
                    refused += 1;
                }
            }
            // Nothing was believed that stays.
            let again = restart(scratch.path(), &sort, &Failpoints::none()).unwrap();
            assert!(again.1, "{}: wrong later", place());
        }
        println!(
            "{}: {trials} misreads, {struck} of other bytes: {right} right, {older} older steps, {refused} refused",
            sort.name
        );
        assert!(struck > 0, "{}", sort.name);
    }
}
