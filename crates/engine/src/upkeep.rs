//! Checkpoints that lie on disks: proven, watched, copied.
//!
//! | file | what |
//! | --- | --- |
//! | `verify.rs` | every byte of a checkpoint is read and proven |
//! | `scrub.rs` | the same in the background, again and again |
//! | `copying.rs` | a checkpoint is brought to another level or directory |
//!
//! Not here: who asks for it (the commands, the server).

pub mod copying;
pub mod scrub;
mod verify;

pub use verify::{Finding, Verdict, verify_commit, verify_commit_with};
