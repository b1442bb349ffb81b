//! Power cuts below a real file system: the job runs on ext4, xfs or btrfs on a loop device on a
//! disk of our own that writes down every request; then the images that the disk may be left with
//! are mounted, which lets the file system's own recovery run, and the job must come up from each.
//!
//! Its harness, trials, lives and payload are those of the client's fault tests. It needs root,
//! loop devices and FUSE, and says SKIPPED where it has none. Every test runs in a child with a
//! mount table of its own, so that nothing is left behind even when it is killed.
// It makes files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    dead_code
)]

mod cut;
mod disk;
mod record;

use std::process::ExitCode;

const TESTS: &[orcheck_jobs::harness::Test] = &[
    ("ext4_after_a_power_cut", || {
        cut::comes_back(&cut::EXT4, 240)
    }),
    ("xfs_after_a_power_cut", || cut::comes_back(&cut::XFS, 240)),
    ("btrfs_after_a_power_cut", || {
        cut::comes_back(&cut::BTRFS, 24)
    }),
    ("ext4_without_a_sync", || {
        cut::left_out_syncs_are_noticed(&cut::EXT4)
    }),
    ("xfs_without_a_sync", || {
        cut::left_out_syncs_are_noticed(&cut::XFS)
    }),
];

fn main() -> ExitCode {
    orcheck_jobs::harness::run("-p orcheck-dst --test blocks", TESTS)
}
