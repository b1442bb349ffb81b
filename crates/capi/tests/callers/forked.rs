//! Tests a program that forks while another of its threads is in a call: calls of the child are
//! refused, the child may end in any way, and the parent is not affected.

use crate::cancelled::moment;
use crate::program::{Program, WORKLOADS, judge, message};
use orcheck::checkpoint::{orc_checkpoint, orc_due, orc_wait};
use orcheck::regions::orc_protect;
use orcheck::restart::{orc_find, orc_restart};
use orcheck::session::{orc_abandon, orc_close};
use orcheck::types::orc_status;
use orcheck_format::Error;
use orcheck_jobs::life::Workload;
use orcheck_jobs::trial::{
    Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share_among, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::ffi::{c_int, c_void};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

/// Longest life of a child; then SIGALRM ends it.
const CHILD_S: u32 = 30;
/// Children of one program.
const CHILDREN: u64 = 8;

/// What a child does.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Calls,
    Returns,
    Leaves,
    Executes,
    Forks,
    Dies,
    /// In its parent's memory, which waits for it.
    Vforks,
}

const KINDS: [Kind; 7] = [
    Kind::Calls,
    Kind::Returns,
    Kind::Leaves,
    Kind::Executes,
    Kind::Forks,
    Kind::Dies,
    Kind::Vforks,
];

/// Calls of a child on its parent's session; how many were not refused.
fn calls(session: *mut c_void) -> c_int {
    let (mut x, mut due, mut step) = ([0.0f64], 0, 0);
    // SAFETY: live variables of the right types; the session is what the parent opened, or closed
    // since.
    let statuses = unsafe {
        [
            orc_checkpoint(session.cast(), 1 << 20),
            orc_protect(
                session.cast(),
                c"x".as_ptr(),
                x.as_mut_ptr().cast(),
                12,
                1,
                0,
            ),
            orc_due(session.cast(), 1 << 20, &raw mut due),
            orc_find(session.cast(), &raw mut step),
            orc_restart(session.cast(), &raw mut step),
            orc_wait(session.cast(), 1, 4, 0.0),
            orc_close(session.cast(), 1.0),
        ]
    };
    let told = message().contains("forked") || message().contains("closed");
    // SAFETY: as above.
    unsafe { orc_abandon(session.cast()) };
    let allowed = statuses
        .iter()
        .filter(|status| **status != orc_status::ORC_INVALID);
    allowed.count() as c_int + c_int::from(!told)
}

extern "C" fn in_shared_memory(session: *mut c_void) -> c_int {
    calls(session)
}

/// What a child does after the fork; never returns.
fn be(kind: Kind, session: *mut c_void) -> ! {
    // SAFETY: calls that a forked child may make; each ends it, or comes back with a number.
    unsafe {
        libc::alarm(CHILD_S);
        match kind {
            Kind::Calls | Kind::Vforks => libc::_exit(calls(session)),
            Kind::Returns => libc::exit(0),
            Kind::Leaves => libc::_exit(0),
            Kind::Executes => {
                let program = c"/bin/true";
                let arguments = [program.as_ptr(), std::ptr::null()];
                libc::execv(program.as_ptr(), arguments.as_ptr());
                libc::_exit(9);
            }
            Kind::Forks => {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(CHILD_S);
                    libc::exit(calls(session));
                }
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                libc::exit(c_int::from(status != 0));
            }
            Kind::Dies => {
                libc::kill(libc::getpid(), libc::SIGKILL);
                libc::_exit(9);
            }
        }
    }
}

/// One child of this program, which has other threads; its status as `waitpid` gives it.
fn child(kind: Kind, session: *mut c_void) -> c_int {
    let mut status = -1;
    if let Kind::Vforks = kind {
        let mut stack = vec![0u128; 64 << 10];
        // SAFETY: the child runs on that stack, and this thread stands still until it has ended.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let top = stack.as_mut_ptr().add(stack.len());
            let child = libc::clone(in_shared_memory, top.cast(), flags, session);
            assert!(child > 0);
            libc::waitpid(child, &raw mut status, 0);
        }
        return status;
    }
    // SAFETY: the child only does what `be` says.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            be(kind, session);
        }
        libc::waitpid(child, &raw mut status, 0);
    }
    status
}

/// A program with a thread that calls and one that forks.
fn forks(workload: &Workload, root: &std::path::Path, random: &mut Random) {
    let mut program = Program::new(workload, root);
    let ledger = program.ledger().clone();
    let shared = AtomicPtr::new(std::ptr::null_mut());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (shared, done) = (&shared, &done);
        scope.spawn(move || {
            if program.open() {
                shared.store(program.session().load(Ordering::SeqCst), Ordering::SeqCst);
                // Until the last child was made, so that all are made while something is being
                // done.
                while !done.load(Ordering::SeqCst) {
                    program.checkpoint();
                }
                program.close();
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..CHILDREN {
            moment(Duration::from_micros(random.below(8_000)));
            let kind = KINDS[random.below(KINDS.len() as u64) as usize];
            let session = shared.load(Ordering::SeqCst);
            if session.is_null() {
                continue;
            }
            let status = child(kind, session);
            let expected = if let Kind::Dies = kind {
                libc::SIGKILL
            } else {
                0
            };
            if status != expected {
                let text = format!("a child that {kind:?} ended with status {status:#x}");
                ledger.error("fork", &Error::internal(text));
            }
        }
        done.store(true, Ordering::SeqCst);
    });
}

fn trial(workload: &Workload, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("forked");
    let root = scratch.path();
    let ended = Child::run(|| {
        forks(workload, root, &mut random);
        0
    })
    .wait(PATIENCE);
    Outcome::of(true, judge(workload, root, ended))
}

fn campaign(title: &str, quick: usize, trial: &dyn Fn(&Workload, u64) -> Outcome) {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in WORKLOADS {
        let count = trials(quick);
        let outcomes = share_among(2, count, &|n| trial(&workload, seed.wrapping_add(n as u64)));
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish(title);
}

/// Children of every kind, forked by one thread at random moments of what another one does.
// Breaks if: registry.rs looks at a slot without asking whose it is.
pub fn children_at_random_moments() {
    campaign("children are forked while a thread calls", 8, &trial);
}

/// The program is killed, and a child that it forked lives on with all of its descriptors.
fn outlived(workload: &Workload, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("outlived");
    let root = scratch.path();
    let (mut mine, theirs) = UnixStream::pair().unwrap();
    mine.set_read_timeout(Some(PATIENCE)).unwrap();
    // The child ends when this end is closed.
    let (hold, held) = UnixStream::pair().unwrap();
    let parent = Child::run(|| {
        // Otherwise the child itself would keep it open.
        // SAFETY: the descriptors are this process's copies, and not used any more.
        unsafe {
            libc::close(mine.as_raw_fd());
            libc::close(hold.as_raw_fd());
        }
        let mut program = Program::new(workload, root);
        if !program.open() {
            return 1;
        }
        let before = random.below(3);
        for _ in 0..before {
            program.checkpoint();
        }
        // SAFETY: the child only says that it lives, waits, and leaves.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut byte = b'f';
                // Not its parent: what the child lets go of, it does before its `fork` returns.
                libc::write(theirs.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::read(held.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        loop {
            program.checkpoint();
        }
    });
    drop(theirs);
    drop(held);
    let forked = matches!(mine.read(&mut [0]), Ok(1));
    moment(Duration::from_micros(random.below(10_000)));
    parent.kill();
    let ended = parent.wait(PATIENCE);
    let result = if forked && ended == Ended::Signaled(libc::SIGKILL) {
        heal(workload, root, 2).map(|_| Verdict::Pass)
    } else {
        Err((Verdict::HardFail, format!("{ended:?}")))
    };
    drop(hold);
    Outcome::of(true, result)
}

/// A killed program does not count as alive because a child of it is.
// Breaks if: a child keeps the lock of the claim.
pub fn children_that_outlive_a_killed_program() {
    campaign(
        "a child outlives the program, which is killed",
        4,
        &outlived,
    );
}
