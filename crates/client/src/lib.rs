//! What a rank links: a [`Session`] over the in-process engine.
//!
//! ```text
//! open ─▶ protect … ─▶ find ─▶ (stored, allocate, protect) ─▶ restart
//!      └▶ loop { due? ─▶ checkpoint ─▶ go on computing } ─▶ close
//! ```
//!
//! Invariants:
//! 1. The [`Collective`] is used only on the caller's thread, inside calls marked collective.
//! 2. An error on one rank before a collective call has agreed is returned by all ranks, with the
//!    cause. What a rank meets after that loses the checkpoint; it is warned, all ranks are told, and nobody waits.
//! 3. `checkpoint` returns when the rank's snapshot is staged; everything after that happens
//!    without the program calling in again.
//! 4. Nothing is printed, no signal handler is installed unless configured, nothing is left behind.
//!
//! Not here: the C functions (crate `capi`), the engine (crate `engine`).

mod agent;
mod agree;
pub mod array;
mod auto;
mod backlog;
mod beside;
mod checkpoint;
mod choose;
pub mod collective;
mod connect;
mod disabled;
mod doors;
mod drain;
mod facts;
mod environment;
mod found;
mod lend;
mod lent;
mod losses;
mod mending;
mod routing;
mod stats;
mod mapper;
mod members;
mod membership;
mod mender;
mod open;
pub mod options;
mod peers;
pub mod regions;
pub mod report;
mod resume;
mod route;
pub mod session;
mod stager;
mod start;
mod succession;
mod threads;
mod told;
pub mod trigger;
mod waiter;
mod warnings;

pub use array::ArrayLayout;
pub use collective::{Collective, Solo};
pub use disabled::Disabled;
pub use membership::Membership;
pub use open::JOB_VARIABLE;
pub use options::Options;
pub use regions::{Codec, Stored};
pub use found::{Restarted, Which};
pub use environment::Environment;
pub use session::Session;
pub use stats::Stats;
pub use told::{Event, EventKind, LostSteps, Watcher};
pub use trigger::Request;
pub use waiter::Waiter;
