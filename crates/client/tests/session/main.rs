//! The session as a program sees it, on real directories.
#![allow(clippy::unwrap_used)]

mod directories;
mod disk;
mod encoding;
mod halting;
mod hooks;
mod incremental;
mod lending;
mod memory;
mod mistakes;
mod overrun;
mod peers;
mod regions;
mod resume;
mod runs;
mod save;
mod support;
mod tracked;
mod triggers;
