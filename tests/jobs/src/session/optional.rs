//! Optional regions that an older step does not have: when newer bytes prove to be damaged, they
//! keep what the program has put there, on every rank.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, warnings};
use crate::{Test, session_tests};
use orcheck_client::{ArrayLayout, Codec, OPTIONAL, Restarted, SAME, Session};
use orcheck_format::{Dtype, ErrorKind, Result, Step};
use orcheck_io::failpoints::Verdict;
use orcheck_io::memory::Span;
use orcheck_testing::{FaultPlan, Scratch};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_fallback_leaves_optional_regions_as_they_were,
    what_was_filled_from_a_damaged_step_is_asked_for_again,
    what_cannot_be_read_once_it_was_verified_is_told,
];

/// Bytes of each rank that writes.
const LEN: usize = 40_000;
/// Stands for what the program has put there before the restart.
const BEFORE: u64 = 77;

/// Bytes of the region `what`, from `at` on.
fn content(what: u8, step: u64, at: usize, len: usize) -> Vec<u8> {
    let word = |i: usize| (i / 8) as u64 ^ u64::from(what) << 56 ^ step << 40 ^ 0x5eed << 24;
    (at..at + len)
        .map(|i| word(i).to_le_bytes()[i % 8])
        .collect()
}

struct Packed(Arc<Mutex<Vec<u8>>>);

impl Codec for Packed {
    fn size(&mut self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        dst.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..dst.len()]);
        Ok(())
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        self.0.lock().unwrap()[at as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }
}

/// A rank's regions; all but `z` are optional.
struct Regions {
    z: Vec<u8>,
    a: Vec<u8>,
    same: Vec<u8>,
    packed: Arc<Mutex<Vec<u8>>>,
    at: usize,
    total: usize,
}

impl Regions {
    fn new(rank: u32, (ranks, total): (usize, usize), step: u64) -> Self {
        let len = total / ranks;
        let at = rank as usize * len;
        Self {
            z: content(b'z', step, at, len),
            a: content(b'a', step, at, len),
            same: content(b's', step, 0, LEN),
            packed: Arc::new(Mutex::new(content(b'p', step, at, len))),
            at,
            total,
        }
    }

    fn protect_z(&mut self, session: &mut Session) {
        let layout = part(self.z.len(), self.at, self.total);
        let span = Span::from_mut(&mut self.z);
        session.protect_array("z", span, layout, 0).unwrap();
    }

    fn protect_a(&mut self, session: &mut Session) {
        let layout = part(self.a.len(), self.at, self.total);
        let span = Span::from_mut(&mut self.a);
        session.protect_array("a", span, layout, OPTIONAL).unwrap();
    }

    fn protect(&mut self, session: &mut Session, packs: bool) {
        self.protect_z(session);
        self.protect_a(session);
        let same = Span::from_mut(&mut self.same);
        session
            .protect("same", same, Dtype::U8, OPTIONAL | SAME)
            .unwrap();
        if packs {
            let packed = Box::new(Packed(Arc::clone(&self.packed)));
            session.protect_codec("packed", packed, OPTIONAL).unwrap();
        }
    }

    /// Whether `z` is of one step, and what is optional of another one.
    fn is(&self, step: u64, optional: u64) -> bool {
        let (at, len) = (self.at, self.z.len());
        self.z == content(b'z', step, at, len)
            && self.a == content(b'a', optional, at, len)
            && self.same == content(b's', optional, 0, LEN)
            && *self.packed.lock().unwrap() == content(b'p', optional, at, len)
    }
}

fn part(len: usize, at: usize, total: usize) -> ArrayLayout {
    ArrayLayout {
        dtype: Dtype::U8,
        local: vec![len as u64],
        global: vec![total as u64],
        offset: vec![at as u64],
        stride: vec![],
    }
}

/// Step 1 has only `z`, step 2 has all.
fn save(job: &Job, ranks: usize, packs: bool) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap_err();
        let mut first = Regions::new(rank, (ranks, ranks * LEN), 1);
        first.protect_z(&mut session);
        session.checkpoint(1).unwrap();
        let mut second = Regions::new(rank, (ranks, ranks * LEN), 2);
        second.protect(&mut session, packs);
        session.checkpoint(2).unwrap();
        session.close(LONG).unwrap();
    });
}

/// Where a container holds these bytes.
fn place_of(dir: &Path, bytes: &[u8]) -> (PathBuf, usize) {
    let names = disk::names(dir).into_iter();
    let found = names
        .filter(|name| name.ends_with(".orc"))
        .find_map(|name| {
            let path = dir.join(name);
            let held = disk::read(&path);
            let at = held.windows(bytes.len()).position(|part| part == bytes)?;
            Some((path, at))
        });
    found.unwrap()
}

/// Damages the step 2 of `what` at this byte of it, and says where.
fn damage(dir: &Path, what: u8, at: usize) -> (PathBuf, usize) {
    let place = place_of(dir, &content(what, 2, at, 64));
    disk::flip(&place.0, place.1);
    place
}

// Breaks if: a rank reads optional regions before the others have read theirs, or fills one of them
// before it has verified all; what it holds of the damaged step would stay.
fn a_fallback_leaves_optional_regions_as_they_were() {
    for (writers, readers) in [(1, 1), (3, 3), (3, 2)] {
        let scratch = Scratch::new("fallback");
        let dir = scratch.path().join("ost0/job");
        let packs = writers == readers;
        let total = writers * LEN;
        let job = Job::new(scratch.path(), writers as u32, 1, false);
        save(&job, writers, packs);
        let job = Job::new(scratch.path(), readers as u32, 1, false);
        let restarts = |step: u64, optional: u64, what: &str| {
            job.run(|session, rank| {
                let mut session = session.unwrap();
                assert_eq!(session.find().unwrap(), 2);
                let mut regions = Regions::new(rank, (readers, total), BEFORE);
                regions.protect(&mut session, packs);
                let restarted = session.try_restart().unwrap();
                assert_eq!(restarted, Restarted::Step(Step(step)), "{what}");
                if !packs {
                    let packed = content(b'p', optional, regions.at, regions.z.len());
                    *regions.packed.lock().unwrap() = packed;
                }
                assert!(regions.is(step, optional), "{what}, rank {rank}");
            });
        };
        restarts(2, 2, "whole");
        let last = total - LEN / 2;
        for (what, at) in [
            (b'z', LEN / 2),
            (b'z', last),
            (b'a', LEN / 2),
            (b'a', last),
            (b's', LEN / 2),
            (b'p', last),
        ] {
            if what == b'p' && !packs {
                continue;
            }
            let (path, spot) = damage(&dir, what, at);
            let what = format!("{} at {at}, {readers} of {writers} ranks", what as char);
            restarts(1, BEFORE, &what);
            disk::flip(&path, spot);
        }
        restarts(2, 2, "whole again");
    }
}

// Breaks if: a region that the program has read alone counts as unchanged after its step proved to
// be damaged.
fn what_was_filled_from_a_damaged_step_is_asked_for_again() {
    let scratch = Scratch::new("refilled");
    let (ranks, total) = (2, 2 * LEN);
    let job = Job::new(scratch.path(), ranks as u32, 1, false);
    save(&job, ranks, true);
    damage(&scratch.path().join("ost0/job"), b'z', LEN / 2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut regions = Regions::new(rank, (ranks, total), BEFORE);
        regions.protect(&mut session, true);
        let read = session.restart_region("a").unwrap();
        assert_eq!(read, Restarted::Step(Step(2)));
        let again = session.try_restart().unwrap();
        assert_eq!(again, Restarted::Again(Step(1)));
        let told = warnings(&mut session).join("; ");
        let filled = "optional region 'a' was filled from step 2, and step 1 does not have it";
        assert!(told.contains(filled), "{told}");
        // Who continues with it gets an error.
        says(
            &refused(session.try_restart()),
            ErrorKind::Invalid,
            &[filled, "protect it again"],
        );
        regions.a = content(b'a', BEFORE, regions.at, LEN);
        regions.protect_a(&mut session);
        assert_eq!(session.restart().unwrap(), 1);
        assert!(regions.is(1, BEFORE));
    });
}

// Breaks if: damage that comes after all was verified leaves a rank with bytes of two steps.
fn what_cannot_be_read_once_it_was_verified_is_told() {
    let scratch = Scratch::new("verified");
    let (ranks, total) = (3, 3 * LEN);
    let job = Job::new(scratch.path(), ranks as u32, 1, false);
    save(&job, ranks, true);
    // Each time that it is tried.
    let (_, failpoints) = FaultPlan::new()
        .always("restart.region", Verdict::Fail(5))
        .only_where("same")
        .failpoints();
    job.failpoints(failpoints).run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut regions = Regions::new(rank, (ranks, total), BEFORE);
        regions.protect(&mut session, true);
        let again = session.try_restart().unwrap();
        assert_eq!(again, Restarted::Again(Step(1)));
        let told = warnings(&mut session).join("; ");
        for name in ["a", "packed", "same"] {
            let filled = format!("optional region '{name}' was filled from step 2");
            assert!(told.contains(&filled), "{told}");
        }
        let before = Regions::new(rank, (ranks, total), BEFORE);
        regions.a.copy_from_slice(&before.a);
        regions.same.copy_from_slice(&before.same);
        *regions.packed.lock().unwrap() = before.packed.lock().unwrap().clone();
        regions.protect(&mut session, true);
        assert_eq!(session.restart().unwrap(), 1);
        assert!(regions.is(1, BEFORE));
    });
}
