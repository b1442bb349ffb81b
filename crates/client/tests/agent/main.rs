//! The same programs as in `../session`, with the engine of each node in an agent.
#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod)] // of the nodes' replicas: plain, and encrypted

mod outlive;

#[path = "../session/beside.rs"]
mod beside;
#[path = "../session/choosing.rs"]
mod choosing;
#[path = "../session/directories.rs"]
mod directories;
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
#[path = "../session/overrun.rs"]
mod overrun;
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
