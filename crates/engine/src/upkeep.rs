//! Maintains checkpoints on disks: verifies, scrubs and copies them.
//!
//! | file | what |
//! | --- | --- |
//! | `verify.rs` | reads and verifies every byte of a checkpoint |
//! | `scrub.rs` | does so again and again in the background |
//! | `copying.rs` | copies a checkpoint to another level or directory |
//!
//! Not here: who asks for it (the commands, the server).

pub mod copying;
pub mod scrub;
mod verify;

pub use verify::{Finding, Verdict, verify_commit, verify_commit_with};
