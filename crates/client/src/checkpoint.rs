//! Taking checkpoints, until the session ends.
//!
//! | file | what |
//! | --- | --- |
//! | `take.rs` | make ready, agree, stage |
//! | `agreement.rs` | what the ranks agree on before they stage |
//! | `backlog.rs` | how many may be on their way |
//! | `lend.rs` | memory lent instead of copied, and memory of the pool |
//! | `losses.rs` | losses are told and returned |
//! | `routing.rs` | files that the program writes itself |
//! | `drain.rs` | the end of the session |
//!
//! Not here: the copy and all that follows (the engine).

mod agreement;
mod backlog;
mod drain;
mod lend;
mod losses;
mod routing;
mod take;

pub(crate) use take::{check_call, not_staged};
