//! Old and restricted kernels: runs without one system call after the other, and kills on Linux
//! 4.18.
//!
//! Not here: the tests of the session and of `orcheck-io` as on Linux 4.18, which
//! `tools/old-kernel.sh` repeats; file systems that lack something (`hardship.rs`).

use crate::hooks::{Key, Named};
use crate::kill_steps::record;
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, NODES, PAIR, SOLO, STRIPED, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Table, Verdict, check_records, heal, seed, share, told, trials,
};
use orcheck_testing::kernel::{Kernel, When};
use orcheck_testing::{Child, Ended, Scratch};

/// The largest advice to madvise that Linux 4.18 knows, plus one.
const NEWER_ADVICE: u32 = 20;
/// Flags of memfd_create from Linux 6.3.
const NEWER_MEMFD_FLAGS: u32 = 0x18;

/// What must come of a missing call.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// Every promise is kept, only slower.
    Fallback,
    /// The session does not open, and the error contains this.
    Refused(&'static str),
}

/// The calls that are missing, one after the other, and what must come of each.
fn missing() -> Vec<(&'static str, Kernel, Then)> {
    use Then::{Fallback, Refused};
    let without = |call, when, errno| Kernel::new().without(call, when, errno);
    let fallbacks = [
        ("clone3", libc::SYS_clone3, libc::ENOSYS),
        ("openat2", libc::SYS_openat2, libc::ENOSYS),
        ("close_range", libc::SYS_close_range, libc::ENOSYS),
        ("faccessat2", libc::SYS_faccessat2, libc::ENOSYS),
        ("io_uring_setup", libc::SYS_io_uring_setup, libc::ENOSYS),
        (
            "io_uring_setup, forbidden",
            libc::SYS_io_uring_setup,
            libc::EPERM,
        ),
        ("userfaultfd", libc::SYS_userfaultfd, libc::ENOSYS),
        ("userfaultfd, forbidden", libc::SYS_userfaultfd, libc::EPERM),
        ("statx", libc::SYS_statx, libc::ENOSYS),
        // Filters of older containers answer so to calls that they do not know.
        ("statx, forbidden", libc::SYS_statx, libc::EPERM),
        ("copy_file_range", libc::SYS_copy_file_range, libc::ENOSYS),
        ("renameat2", libc::SYS_renameat2, libc::ENOSYS),
        ("mbind, forbidden", libc::SYS_mbind, libc::EPERM),
        (
            "set_mempolicy, forbidden",
            libc::SYS_set_mempolicy,
            libc::EPERM,
        ),
        (
            "get_mempolicy, forbidden",
            libc::SYS_get_mempolicy,
            libc::EPERM,
        ),
        ("move_pages, forbidden", libc::SYS_move_pages, libc::EPERM),
        (
            "sched_setaffinity, forbidden",
            libc::SYS_sched_setaffinity,
            libc::EPERM,
        ),
        (
            "sched_getaffinity",
            libc::SYS_sched_getaffinity,
            libc::ENOSYS,
        ),
    ];
    let mut list: Vec<_> = fallbacks
        .into_iter()
        .map(|(name, call, errno)| (name, without(call, When::Always, errno), Fallback))
        .collect();
    let flags = |name, call, when, errno, then| (name, without(call, when, errno), then);
    list.extend([
        (
            "everything after Linux 4.18",
            Kernel::linux_4_18(),
            Fallback,
        ),
        // As file systems do that cannot rename without replacing.
        flags(
            "renameat2 with flags",
            libc::SYS_renameat2,
            When::IsNot(4, 0),
            libc::EINVAL,
            Fallback,
        ),
        flags(
            "madvise, newer advice",
            libc::SYS_madvise,
            When::AtLeast(2, NEWER_ADVICE),
            libc::EINVAL,
            Fallback,
        ),
        flags(
            "memfd_create, newer flags",
            libc::SYS_memfd_create,
            When::Bits(1, NEWER_MEMFD_FLAGS),
            libc::EINVAL,
            Fallback,
        ),
        flags(
            "ioctl(PAGEMAP_SCAN)",
            libc::SYS_ioctl,
            When::Is(1, 0xc060_6610),
            libc::ENOTTY,
            Fallback,
        ),
        flags(
            "fcntl(F_SETFL)",
            libc::SYS_fcntl,
            When::Is(1, libc::F_SETFL as u32),
            libc::EINVAL,
            Fallback,
        ),
        // What there is no replacement for.
        flags(
            "memfd_create",
            libc::SYS_memfd_create,
            When::Always,
            libc::ENOSYS,
            Refused("Linux 4.18"),
        ),
        flags(
            "memfd_create, forbidden",
            libc::SYS_memfd_create,
            When::Always,
            libc::EPERM,
            Refused("EPERM"),
        ),
        flags(
            "fallocate",
            libc::SYS_fallocate,
            When::Always,
            libc::ENOSYS,
            Refused("Linux 4.18"),
        ),
        flags(
            "eventfd2",
            libc::SYS_eventfd2,
            When::Always,
            libc::ENOSYS,
            Refused("Linux 4.18"),
        ),
        flags(
            "sockets",
            libc::SYS_socket,
            When::Always,
            libc::EPERM,
            Refused("EPERM"),
        ),
    ]);
    list
}

/// A life on that kernel.
fn live_on(kernel: &Kernel, life: &Life) -> Ended {
    Child::run(|| match kernel.apply() {
        Ok(()) => {
            life.live(&|_| {});
            0
        }
        Err(errno) => 200 + errno,
    })
    .wait(PATIENCE)
}

/// A first run and a restart on that kernel, then one on the kernel that is really here.
fn trial(workload: &Workload, kernel: &Kernel, then: Then) -> Outcome {
    let scratch = Scratch::in_memory("kernel");
    let root = scratch.path();
    let both = || -> Result<Verdict, Failure> {
        for run in [1, 2] {
            let ended = live_on(kernel, &Life::new(*workload, root, run, 3));
            let story = Story::read(root);
            let hard = |text: String| Err((Verdict::HardFail, format!("{text}; {}", told(&story))));
            match ended {
                Ended::Exited(0) => {}
                Ended::Hung => return Err((Verdict::Hang, told(&story))),
                ended => return hard(format!("run {run} ended with {ended:?}")),
            }
            let mine = story.run(run);
            match then {
                Then::Fallback if mine.errors.is_empty() && mine.closed => {
                    check_records(workload, root)?;
                }
                Then::Fallback => return hard(format!("run {run} has no way around it")),
                Then::Refused(text) => {
                    let said = mine
                        .errors
                        .iter()
                        .any(|error| error.starts_with("open ") && error.contains(text));
                    if !said || mine.epoch.is_some() {
                        return hard(format!("expected a refusal that says '{text}'"));
                    }
                }
            }
        }
        heal(workload, root, 3)?;
        Ok(if then == Then::Fallback {
            Verdict::Pass
        } else {
            Verdict::ClearFail
        })
    };
    Outcome::of(true, both())
}

/// Every system call that came after Linux 4.18 or that a container may forbid is missing once,
/// alone and together.
// Breaks if: `rename_new` knows no way without renameat2, or the text of a missing call does not
// name the kernel that has it.
pub fn every_newer_call_is_missing() {
    let mut table = Table::default();
    let list = missing();
    for (workload, every) in [(SOLO, 1), (PAIR, 1), (NODES, 4), (STRIPED, 4)] {
        // The larger workloads try a part of the calls, other ones each time, unless in a campaign.
        let every = if trials(0) > 0 { 1 } else { every };
        let from = seed() as usize % every;
        let chosen: Vec<_> = list.iter().skip(from).step_by(every).collect();
        let outcomes = share(chosen.len(), &|n| {
            trial(&workload, &chosen[n].1, chosen[n].2)
        });
        let names: Vec<String> = chosen.iter().map(|(name, ..)| (*name).to_owned()).collect();
        for (then, verdict) in [("replaced", Verdict::Pass), ("refused", Verdict::ClearFail)] {
            let of: Vec<usize> = (0..chosen.len())
                .filter(|&n| (chosen[n].2 == Then::Fallback) == (verdict == Verdict::Pass))
                .collect();
            let outcomes: Vec<Outcome> = of.iter().map(|&n| outcomes[n].clone()).collect();
            let names: Vec<String> = of.iter().map(|&n| names[n].clone()).collect();
            table.add(
                &format!("{}: {then}", workload.name),
                &names,
                &outcomes,
                &[verdict],
            );
        }
    }
    table.finish("one system call after the other is missing");
}

fn kill_at(workload: &Workload, key: &Key) -> Outcome {
    let scratch = Scratch::in_memory("oldkill");
    let root = scratch.path();
    let hook = Named::at(root, key.clone(), Do::Kill);
    hook.arm();
    let life = Life::new(*workload, root, 1, 3).failpoints(hook.failpoints());
    let ended = live_on(&Kernel::linux_4_18(), &life);
    let story = Story::read(root);
    let result = match ended {
        Ended::Hung => Err((Verdict::Hang, told(&story))),
        Ended::Exited(code) if code != 0 => {
            Err((Verdict::HardFail, format!("exit {code}; {}", told(&story))))
        }
        _ if !story.run(1).errors.is_empty() => Err((Verdict::HardFail, told(&story))),
        _ => check_records(workload, root)
            .and_then(|()| heal(workload, root, 2))
            .map(|_| Verdict::Pass),
    };
    Outcome::of(ended == Ended::Signaled(9), result)
}

/// A part of the steps at which `kill_steps` kills, on Linux 4.18; all of them in a campaign.
// Breaks if: what replaces renameat2 leaves a claim's temporary name behind that the next run does
// not collect.
pub fn killed_on_linux_4_18() {
    let mut table = Table::default();
    let every = if trials(0) > 0 { 1 } else { 8 };
    let seed = seed() as usize;
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [SOLO, NODES, STRIPED] {
        let keys = record(workload, 3, 1, &|_| {}, None);
        let keys: Vec<&Key> = keys.iter().skip(seed % every).step_by(every).collect();
        let outcomes = share(keys.len(), &|n| kill_at(&workload, keys[n]));
        let names: Vec<String> = keys
            .iter()
            .map(|key| key.to_string().replace('\t', " "))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("killed on Linux 4.18");
}
