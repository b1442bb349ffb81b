//! The session as a program sees it, on real directories.
#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod)] // of the nodes' replicas: plain, and encrypted

mod beside;
mod choosing;
mod copying;
mod directories;
mod disabled;
mod disk;
mod encoding;
mod forged;
mod halting;
mod hooks;
mod incremental;
mod leftovers;
mod lending;
mod memory;
mod misread;
mod mistakes;
mod overrun;
mod peers;
#[path = "peers.rs"]
mod peers_encrypted;
mod regions;
mod resume;
mod routed;
mod runs;
mod save;
mod stray;
mod support;
mod told;
mod tracked;
mod tree;
mod triggers;
