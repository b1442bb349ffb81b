//! The same programs as in `../session`, with the directories of level `global` on staging I/O servers.
//!
//! Not here: tests of the disks themselves (`directories`, `overrun`, and what asks `needs_own_disks`).
#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // helpers of the tests that are not here
#![allow(clippy::duplicate_mod)] // of the nodes' replicas: plain, and encrypted

mod agents;
mod emptied;

#[path = "../session/beside.rs"]
mod beside;
#[path = "../session/choosing.rs"]
mod choosing;
#[path = "../session/disk.rs"]
mod disk;
#[path = "../session/encoding.rs"]
mod encoding;
#[path = "../session/forged.rs"]
mod forged;
#[path = "../session/halting.rs"]
mod halting;
#[path = "../session/hooks.rs"]
mod hooks;
#[path = "../session/incremental.rs"]
mod incremental;
#[path = "../session/lending.rs"]
mod lending;
#[path = "../session/memory.rs"]
mod memory;
#[path = "../session/misread.rs"]
mod misread;
#[path = "../session/mistakes.rs"]
mod mistakes;
#[path = "../session/peers.rs"]
mod peers;
#[path = "../session/peers.rs"]
mod peers_encrypted;
#[path = "../session/regions.rs"]
mod regions;
#[path = "../session/resume.rs"]
mod resume;
#[path = "../session/routed.rs"]
mod routed;
#[path = "../session/runs.rs"]
mod runs;
#[path = "../session/save.rs"]
mod save;
#[path = "../session/stray.rs"]
mod stray;
#[path = "../session/support.rs"]
mod support;
#[path = "../session/told.rs"]
mod told;
#[path = "../session/tracked.rs"]
mod tracked;
#[path = "../session/tree.rs"]
mod tree;
#[path = "../session/triggers.rs"]
mod triggers;
