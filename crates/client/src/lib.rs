//! Implements what a rank links: a [`Session`] on top of the in-process engine.
//!
//! ```text
//! open ─▶ protect … ─▶ find ─▶ (stored, allocate, protect) ─▶ restart
//!      └▶ loop { due? ─▶ checkpoint ─▶ continue computing } ─▶ close
//! ```
//!
//! Invariants:
//! 1. The [`Collective`] is used only on the caller's thread, inside calls marked collective.
//! 2. An error on one rank before a collective call has agreed is returned by all ranks, with its
//!    cause. An error that a rank meets afterwards costs the checkpoint: that rank is warned, all
//!    ranks are told, and nobody waits.
//! 3. `checkpoint` returns when the rank's snapshot is staged; everything after that happens
//!    without further calls of the program.
//! 4. Nothing is printed, no signal handler is installed unless configured, and nothing is left
//!    behind.
//!
//! Not here: the C functions (crate `capi`), the engine (crate `engine`).

mod checkpoint;
mod collective;
mod membership;
mod memory_files;
mod open;
mod options;
mod regions;
pub mod report;
mod restart;
mod session;
mod succession;
mod trigger;

pub use crate::collective::{Collective, Meeting, Solo};
pub use crate::membership::{Disabled, Membership};
pub use crate::memory_files::FileMode;
pub use crate::open::{Environment, JOB_VARIABLE};
pub use crate::options::Without;
pub use crate::regions::{ArrayLayout, CPU_WRITES_ONLY, Codec, OPTIONAL, OVERLAP, SAME, Stored};
pub use crate::session::{
    Event, EventKind, LostSteps, Restarted, Session, Spent, Stats, Waiter, Watcher, Which,
};
pub use crate::trigger::{Request, Trigger};
pub use options::Options;
