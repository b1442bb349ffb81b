//! Placement: which server a node writes to, and which nodes hold the copies of another one.
//!
//! | file | what |
//! | --- | --- |
//! | `placement.rs` | node → servers, one ordered flush stream per server named |
//! | `draw.rs` | node → holders of its copies |
//! | `domains.rs` | which nodes fail together |
//!
//! How: pure functions of the job, the epoch, the step and the node; anyone can compute them again, so that a restart
//! knows where to look without being told.
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness but that of the seed: equal input gives equal results on every machine.
//! 2. What cannot be met is an error, never a quietly weaker plan.
//!
//! Faults survived: the loss of servers down to the last one, see [`Placement::without`]; which losses of nodes a choice
//! survives: see [`holders`](Draw::holders).
//! Not here: finding out that a server is full or lost (io, engine), moving copies and keeping them (engine), the survival
//! of a whole job in numbers (planner).

mod domains;
mod draw;
mod placement;

pub use domains::Domains;
pub use draw::Draw;
pub use placement::{DEFAULT_LANES_MAX, Placement, Target};
