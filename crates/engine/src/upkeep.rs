//! Maintains checkpoints on disks: verifies, scrubs, copies and rescues them.
//!
//! | file | what |
//! | --- | --- |
//! | `verify.rs` | reads and verifies every byte of a checkpoint |
//! | `scrub.rs` | does so again and again in the background |
//! | `repair.rs` | makes damaged or missing files of a checkpoint again |
//! | `copying.rs` | copies a checkpoint to another level or directory |
//! | `scavenge.rs` | finds what the nodes of an ended run hold, and copies it to level `global` |
//!
//! Not here: who asks for it (the commands, the server).

pub mod copying;
mod repair;
pub mod scavenge;
pub mod scrub;
mod verify;

pub use repair::{Repair, Repaired, repair};
pub use verify::{Finding, Verdict, parity_files, verify_commit, verify_commit_with};
