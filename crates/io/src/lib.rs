//! Contains all of Orcheck's access to disks, sockets, memory shared between processes, the clock
//! and randomness.
//!
//! Everything above this crate computes. Everything that reaches the outside is here, behind small
//! traits ([`disk::Dir`], [`disk::File`], [`clock::Clock`]) or plain functions, and passes
//! [`failpoints::Failpoints`] first, so that a test can stop, fail, shorten or kill at each single
//! effect.
//!
//! Invariants
//! 1. No other crate of the project opens a file or a socket, or reads the clock, the environment
//!    or randomness, except `pool` and `net`, which use this one.
//! 2. Every effect on a disk or a socket passes [`failpoints::Failpoints`] before it happens.
//! 3. Every wait has a deadline given by the caller.
//! 4. A path is opened beneath a directory handle by one component, and no symbolic link is
//!    followed there.
//! 5. `unsafe` appears only in the modules whose headers mention it, each block with its reason.
//!
//! Faults survived: short and interrupted reads and writes, full and failing disks, a failed sync
//! (the file is poisoned), dead holders of locks, strangers and liars on a socket, neighbours that
//! write garbage into shared memory.
//!
//! Not here: what the bytes mean (orcheck-format), and when to read or write which of them (the
//! engine).

// This crate is the one place where the calls banned in the rest of the project are allowed.
#![allow(clippy::disallowed_methods)]

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!("Orcheck runs on 64-bit little-endian Linux (x86-64 and Arm)");

pub mod clock;
pub mod descriptor;
pub mod disk;
pub mod errno;
pub mod failpoints;
pub mod machine;
pub mod memory;
pub mod poll;
pub mod rng;
pub mod sync;
pub mod user;
