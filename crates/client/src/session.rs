//! Holds one rank's view of one job, and what all calls use.
//!
//! | file | what |
//! | --- | --- |
//! | `state.rs` | [`Session`] |
//! | `outcomes.rs` | the outcomes of the steps that were taken |
//! | `files.rs` | memory files |
//! | `found.rs` | what is known about the job's past |
//! | `lent.rs` | which region is lent for which checkpoint |
//! | `stager.rs` | the rank's own CP-thread |
//! | `mapper.rs` | maps the pool while the program computes |
//! | `waiter.rs` | a wait for a checkpoint to be safe |
//! | `stats.rs` | figures |
//!
//! Not here: the calls of one phase (`checkpoint`, `restart`, `succession`).

mod files;
mod found;
mod lent;
mod mapper;
mod outcomes;
mod stager;
mod state;
mod stats;
mod waiter;

pub(crate) use found::{Past, found_too_late, nothing_found};
pub use found::{Restarted, Which};
pub(crate) use lent::Lent;
pub use outcomes::{Event, EventKind, LostSteps, Watcher};
pub(crate) use outcomes::{HISTORY, Loss, with_next_step};
pub(crate) use stager::{RETURN_WAIT, Stager};
pub use state::Session;
pub use stats::{Spent, Stats};
pub use waiter::Waiter;
pub(crate) use waiter::engine_gone;
