//! Tests that a thread cancelled during a call ends after the call, and that the program continues
//! with the session.

use crate::program::{
    Program, WORKLOADS, end_if_cancelled, inside_a_checkpoint, judge, uncancelled,
};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, seed, share_among, trials,
};
use orcheck_testing::{Child, Scratch};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More checkpoints than the thread comes to before it is cancelled.
const MANY: u64 = 200;
/// Where a trial writes what its thread was in when it was cancelled.
const STRUCK: &str = "struck";
const BETWEEN: &str = "between calls";

/// A moment that nobody chose: it is the fault, and nothing is waited for by it.
pub fn moment(length: Duration) {
    let (mine, _silent) = UnixStream::pair().unwrap();
    mine.set_read_timeout(Some(length.max(Duration::from_micros(1))))
        .unwrap();
    let _ = (&mine).read(&mut [0]);
}

/// What the thread and the one that cancels it share.
struct Shared<'a> {
    program: Program<'a>,
    opened: &'a AtomicBool,
    cancelled: &'a AtomicBool,
}

fn work(shared: &mut Shared) {
    uncancelled();
    let opened = shared.program.open();
    shared.opened.store(opened, Ordering::SeqCst);
    while opened && shared.program.step < MANY && !shared.cancelled.load(Ordering::SeqCst) {
        shared.program.checkpoint();
    }
}

/// A thread of the program. Nothing in this frame needs to be dropped.
extern "C-unwind" fn thread(shared: *mut c_void) -> *mut c_void {
    // SAFETY: what the program handed over; it looks at it again when this thread has ended.
    work(unsafe { &mut *shared.cast::<Shared>() });
    end_if_cancelled();
    null_mut()
}

/// Whether the thread ended because it was cancelled.
fn cancel(shared: &mut Shared, random: &mut Random, aimed: bool, struck: &Path) -> bool {
    let cancelled = shared.cancelled;
    let inside = Arc::clone(&shared.program.inside);
    let at: *mut Shared = shared;
    let mut id = 0;
    let mut end = null_mut();
    // SAFETY: `thread` may be left at its cancellation point; Shared is alive until it was joined,
    // and nothing else touches it before that.
    unsafe {
        let begin: extern "C-unwind" fn(*mut c_void) -> *mut c_void = thread;
        let begin: extern "C" fn(*mut c_void) -> *mut c_void = std::mem::transmute(begin);
        assert_eq!(
            libc::pthread_create(&raw mut id, null(), begin, at.cast()),
            0
        );
        moment(Duration::from_micros(random.below(40_000)));
        let strike = || {
            let call = inside.throughout(|| assert_eq!(libc::pthread_cancel(id), 0));
            std::fs::write(struck, call.unwrap_or(BETWEEN)).unwrap();
        };
        if aimed {
            inside_a_checkpoint(strike);
        } else {
            strike();
        }
        cancelled.store(true, Ordering::SeqCst);
        assert_eq!(libc::pthread_join(id, &raw mut end), 0);
    }
    end.addr() == usize::MAX
}

fn trial(workload: &orcheck_jobs::life::Workload, seed: u64, aimed: bool) -> Outcome {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("cancelled");
    let root = scratch.path();
    let struck = root.join(STRUCK);
    let ended = Child::run(|| {
        uncancelled();
        let (opened, cancelled) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut shared = Shared {
            program: Program::new(workload, root),
            opened: &opened,
            cancelled: &cancelled,
        };
        if !cancel(&mut shared, &mut random, aimed, &struck) {
            return 3;
        }
        // Breaks if: `Uncancelled` leaves cancellation on; the thread ends in the call, or the
        // whole program.
        if opened.load(Ordering::SeqCst) {
            shared.program.checkpoint();
            shared.program.checkpoint();
            shared.program.close();
        }
        0
    })
    .wait(PATIENCE);
    let result: Result<Verdict, Failure> = judge(workload, root, ended);
    // A process that ended at once had no time to note it.
    let struck = std::fs::read_to_string(struck).unwrap_or_default();
    let mut outcome = Outcome::of(struck != BETWEEN, result);
    outcome.text = format!("{struck}: {}", outcome.text);
    outcome
}

/// `pthread_cancel` of the thread that calls, at a random moment of a job or, two times of three,
/// in the middle of a checkpoint: another thread of the program continues.
pub fn a_thread_is_cancelled_at_random_moments() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let mut struck: BTreeMap<String, usize> = BTreeMap::new();
    for workload in WORKLOADS {
        let count = trials(12);
        let outcomes = share_among(2, count, &|n| {
            trial(&workload, seed.wrapping_add(n as u64), n % 3 > 0)
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        for outcome in &outcomes {
            let place = outcome.text.split(':').next().unwrap_or_default();
            *struck.entry(place.to_owned()).or_default() += 1;
        }
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    println!("  cancelled in, how often: {struck:?}");
    // What struck between two calls counts as idle: the table fails when that is too much.
    table.finish("a thread is cancelled while it calls");
}
