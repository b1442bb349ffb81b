//! Programs as users write them: a session is opened, takes checkpoints, is killed or closed, and
//! restarts.
//!
//! Each file holds the tests of one subject; `tests/session.rs`, `agent.rs` and `served.rs` run
//! them, each in its deployment.

pub mod away;
pub mod beside;
pub mod choosing;
pub mod copying;
pub mod directories;
pub mod disabled;
pub mod disk;
pub mod elastic;
pub mod emptied;
pub mod encoding;
pub mod forged;
pub mod halting;
pub mod hooks;
pub mod incremental;
pub mod kept;
pub mod leftovers;
pub mod lending;
pub mod levels;
pub mod memory;
pub mod memory_files;
pub mod misread;
pub mod mistakes;
pub mod optional;
pub mod outlive;
pub mod overrun;
pub mod parity;
pub mod peers;
pub mod regions;
pub mod resume;
pub mod routed;
pub mod runs;
pub mod save;
pub mod served_agents;
pub mod sharing;
pub mod slow_levels;
pub mod stray;
pub mod told;
pub mod tracked;
pub mod tree;
pub mod triggers;
