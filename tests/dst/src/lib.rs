//! Simulates whole jobs, and cuts the power below real file systems.
//!
//! `tests/jobs`: a job of many nodes in one process, driven by a seed. `tests/blocks`: power cuts
//! below ext4, XFS and Btrfs. `tests/scale`: jobs of 10,000 nodes. `tests/schedules`: threads in
//! every order.
//!
//! Invariant: a failure prints the command that repeats it.
//!
//! Not here: tests with real processes (`tests/jobs` of the tree), rules about the tree
//! (`tests/tidy`).
