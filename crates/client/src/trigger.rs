//! Decides when a checkpoint is due.
//!
//! | file | what |
//! | --- | --- |
//! | `triggers.rs` | steps, times, requests, the end of the job |
//! | `auto.rs` | the interval that `interval = "auto"` keeps |
//! | `paces.rs` | levels that each have a pace of their own |
//! | `pattern.rs` | the paces that `interval = "auto"` finds |
//!
//! Not here: taking it (`checkpoint`).

mod auto;
mod paces;
mod pattern;
mod triggers;

pub use triggers::{Request, Trigger};
