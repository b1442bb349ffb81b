//! Takes checkpoints and ends the session.
//!
//! | file | what |
//! | --- | --- |
//! | `take.rs` | prepares, agrees and stages |
//! | `agreement.rs` | what the ranks agree on before they stage |
//! | `backlog.rs` | bounds the checkpoints in flight |
//! | `lend.rs` | memory that is lent instead of copied, and memory of the pool |
//! | `losses.rs` | reports and returns losses |
//! | `routing.rs` | files that the program writes itself |
//! | `drain.rs` | the end of the session |
//!
//! Not here: the copy and everything after it (the engine).

mod agreement;
mod backlog;
mod drain;
mod lend;
mod losses;
mod routing;
mod take;

pub(crate) use take::{check_call, not_staged};
