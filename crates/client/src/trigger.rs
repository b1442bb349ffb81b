//! Decides when a checkpoint is due.
//!
//! | file | what |
//! | --- | --- |
//! | `triggers.rs` | steps, times, requests, the end of the job |
//! | `auto.rs` | the interval that `interval = "auto"` keeps |
//!
//! Not here: taking it (`checkpoint`).

mod auto;
mod triggers;

pub use triggers::{Request, Trigger};
