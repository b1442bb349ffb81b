//! Faults at real system calls, from outside: the kernel asks the parent about every call of a run,
//! and the parent lets one of them fail, or kills the run before it. What has no failpoint of its
//! own is met here too.
//!
//! How: `Kernel::watch`. Calls are named by their number and by how many of that number came
//! before, so that a name is the same call in most runs.
//!
//! Not here: transfers that end early (`errors`, `reads`); other programs (`make torture`).

use crate::hardship::{PLAIN, SOON, judge};
use crate::kill_steps::after_a_good_run;
use orcheck_client::Solo;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, copy_tree};
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, check_records, heal, seed, share, told, trials,
};
use orcheck_testing::kernel::{Answer, Asked, Kernel, When};
use orcheck_testing::{Ended, Scratch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

/// The calls that are watched, when, and what they may answer. Without `write`, by which the test
/// itself tells what happens, and without `close`, which a filter cannot let fail as the kernel
/// does: with the descriptor gone.
fn calls() -> Vec<(&'static str, libc::c_long, When, [i32; 2])> {
    use libc::{
        EACCES, EAGAIN, ECONNREFUSED, ECONNRESET, EDQUOT, EINVAL, EIO, EMFILE, ENOBUFS, ENOLCK,
        ENOMEM, ENOSPC, EPERM, EPIPE, EROFS, ESTALE,
    };
    let always = When::Always;
    // Memory of the program itself has no descriptor.
    let of_files = When::IsNot(4, u32::MAX);
    let mut list = vec![
        ("openat", libc::SYS_openat, always, [EMFILE, EIO]),
        ("pread64", libc::SYS_pread64, always, [EIO, ESTALE]),
        ("pwrite64", libc::SYS_pwrite64, always, [ENOSPC, EIO]),
        (
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            always,
            [EMFILE, EPERM],
        ),
        (
            "io_uring_enter",
            libc::SYS_io_uring_enter,
            always,
            [EAGAIN, ENOMEM],
        ),
        (
            "io_uring_register",
            libc::SYS_io_uring_register,
            always,
            [ENOMEM, EINVAL],
        ),
        ("fsync", libc::SYS_fsync, always, [EIO, EDQUOT]),
        ("fdatasync", libc::SYS_fdatasync, always, [EIO, ENOSPC]),
        ("ftruncate", libc::SYS_ftruncate, always, [EIO, ENOSPC]),
        ("fallocate", libc::SYS_fallocate, always, [ENOSPC, ENOMEM]),
        ("renameat2", libc::SYS_renameat2, always, [EIO, EROFS]),
        ("unlinkat", libc::SYS_unlinkat, always, [EIO, EROFS]),
        ("mkdirat", libc::SYS_mkdirat, always, [EDQUOT, EACCES]),
        ("newfstatat", libc::SYS_newfstatat, always, [ESTALE, EIO]),
        ("fstat", libc::SYS_fstat, always, [ESTALE, EIO]),
        ("statx", libc::SYS_statx, always, [ESTALE, EIO]),
        ("fstatfs", libc::SYS_fstatfs, always, [EIO, ESTALE]),
        ("getdents64", libc::SYS_getdents64, always, [EIO, ESTALE]),
        ("faccessat", libc::SYS_faccessat, always, [EIO, EACCES]),
        ("fcntl", libc::SYS_fcntl, always, [ENOLCK, EIO]),
        ("mmap", libc::SYS_mmap, of_files, [ENOMEM, EAGAIN]),
        ("madvise", libc::SYS_madvise, always, [ENOMEM, EAGAIN]),
        (
            "memfd_create",
            libc::SYS_memfd_create,
            always,
            [EMFILE, ENOMEM],
        ),
        ("eventfd2", libc::SYS_eventfd2, always, [EMFILE, ENOMEM]),
        (
            "epoll_create1",
            libc::SYS_epoll_create1,
            always,
            [EMFILE, ENOMEM],
        ),
        ("epoll_ctl", libc::SYS_epoll_ctl, always, [ENOMEM, ENOSPC]),
        ("socket", libc::SYS_socket, always, [EMFILE, ENOBUFS]),
        ("bind", libc::SYS_bind, always, [EACCES, ENOMEM]),
        ("listen", libc::SYS_listen, always, [EIO, ENOMEM]),
        ("connect", libc::SYS_connect, always, [ECONNREFUSED, EAGAIN]),
        ("accept4", libc::SYS_accept4, always, [EMFILE, ENOMEM]),
        ("sendto", libc::SYS_sendto, always, [EPIPE, ENOBUFS]),
        ("sendmsg", libc::SYS_sendmsg, always, [EPIPE, ENOBUFS]),
        ("recvfrom", libc::SYS_recvfrom, always, [ECONNRESET, ENOMEM]),
        ("recvmsg", libc::SYS_recvmsg, always, [ECONNRESET, EMFILE]),
        ("clone", libc::SYS_clone, always, [EAGAIN, ENOMEM]),
        ("clone3", libc::SYS_clone3, always, [EAGAIN, ENOMEM]),
    ];
    #[cfg(target_arch = "x86_64")]
    list.extend([
        ("open", libc::SYS_open, always, [EMFILE, EIO]),
        ("renameat", libc::SYS_renameat, always, [EIO, EROFS]),
    ]);
    list
}

/// One call of a run: which, and the how-manieth of these from 1.
type Moment = (usize, u64);

/// Lives under the eyes of this process, which answers at `moment`. How it ended, and all calls.
fn watched(life: &Life, moment: Option<(Moment, Answer)>) -> Option<(Ended, BTreeMap<usize, u64>)> {
    let list = calls();
    let kernel = list
        .iter()
        .fold(Kernel::new(), |kernel, &(_, call, when, _)| {
            kernel.without(call, when, 0)
        });
    let seen = RefCell::new(BTreeMap::new());
    let life = life.clone().open_ledger();
    let mut decide = |asked: &Asked| {
        let Some(at) = list.iter().position(|&(_, call, ..)| call == asked.call) else {
            return Answer::Go;
        };
        let mut seen = seen.borrow_mut();
        let count: &mut u64 = seen.entry(at).or_default();
        *count += 1;
        match moment {
            Some((here, answer)) if here == (at, *count) => answer,
            _ => Answer::Go,
        }
    };
    let work = || {
        life.live_one(Box::new(Solo), &|_| {});
        0
    };
    let ended = kernel.watch(work, &mut decide, SOON)?;
    Some((ended, seen.into_inner()))
}

/// Checkpoints of each watched run.
const CHECKPOINTS: u64 = 3;

fn trial(base: Option<&Path>, moment: Moment, answer: Answer) -> Outcome {
    let scratch = Scratch::in_memory("outside");
    let root = scratch.path();
    if let Some(base) = base {
        copy_tree(base, root);
    }
    let run = if base.is_some() { 2 } else { 1 };
    let life = Life::new(PLAIN, root, run, CHECKPOINTS);
    let Some((ended, seen)) = watched(&life, Some((moment, answer))) else {
        return Outcome::of(false, Err((Verdict::HardFail, "not watched".to_owned())));
    };
    let struck = seen.get(&moment.0).is_some_and(|&count| count >= moment.1);
    let story = Story::read(root);
    let result = verdict(root, run, ended, answer, &story)
        .and_then(|verdict| heal(&PLAIN, root, run + 1).map(|_| verdict));
    Outcome::of(struck, result)
}

fn verdict(
    root: &Path,
    run: u64,
    ended: Ended,
    answer: Answer,
    story: &Story,
) -> Result<Verdict, Failure> {
    if answer == Answer::Kill {
        check_records(&PLAIN, root)?;
        return if matches!(ended, Ended::Signaled(9) | Ended::Exited(0)) {
            Ok(Verdict::Pass)
        } else {
            Err((Verdict::HardFail, format!("{ended:?}; {}", told(story))))
        };
    }
    let verdict = judge(&PLAIN, root, run, ended, story, 0)?;
    // Something was there, so "nothing is there" is the one answer that must not be given.
    if run == 2 && story.run(2).resumed == Some(None) {
        let text = format!("an error was taken for an empty job; {}", told(story));
        return Err((Verdict::LostWork, text));
    }
    Ok(verdict)
}

/// Any call of a first run and of a restart fails, or is the last one; in a campaign all of them,
/// with every answer.
// Breaks if: `give_up` does nothing (an error at one end of a connection is waited for at the
// other), or an error while listing a directory counts as its end.
pub fn any_system_call_fails() {
    let mut table = Table::default();
    let base = Scratch::in_memory("base");
    after_a_good_run(PLAIN, base.path());
    let list = calls();
    for (row, base) in [("first run", None), ("restart", Some(base.path()))] {
        let scratch = Scratch::in_memory("outside");
        if let Some(base) = base {
            copy_tree(base, scratch.path());
        }
        let run = if base.is_some() { 2 } else { 1 };
        let life = Life::new(PLAIN, scratch.path(), run, CHECKPOINTS);
        let Some((ended, seen)) = watched(&life, None) else {
            println!("  SKIPPED: faults at real system calls (needs Linux 5.6 and seccomp)");
            return;
        };
        assert_eq!(ended, Ended::Exited(0));
        let mut chosen: Vec<(Moment, Answer)> = Vec::new();
        for (&at, &count) in &seen {
            let [one, other] = list[at].3;
            for nth in 1..=count {
                for answer in [Answer::Fail(one), Answer::Fail(other), Answer::Kill] {
                    chosen.push(((at, nth), answer));
                }
            }
        }
        let all = chosen.len();
        let mut random = Random::new(seed());
        let wanted = if trials(0) > 0 { all } else { 70 };
        while chosen.len() > wanted {
            chosen.swap_remove(random.below(chosen.len() as u64) as usize);
        }
        let outcomes = share(chosen.len(), &|n| trial(base, chosen[n].0, chosen[n].1));
        let names: Vec<String> = chosen
            .iter()
            .map(|((at, nth), answer)| format!("{} {nth} {answer:?}", list[*at].0))
            .collect();
        let row = format!("{row}: {} of {all} faults", chosen.len());
        table.add(
            &row,
            &names,
            &outcomes,
            &[Verdict::Pass, Verdict::ClearFail],
        );
    }
    table.finish("any system call fails");
}
