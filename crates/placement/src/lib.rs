//! Decides placement: which server a node writes to, and which nodes hold the replicas of another
//! one.
//!
//! | file | what |
//! | --- | --- |
//! | `placement.rs` | node → servers, one ordered flush stream per server named |
//! | `draw.rs` | node → holders of its replicas |
//! | `deal.rs` | all parts of a step → holders, each as many |
//! | `random.rs` | random numbers that everybody draws alike |
//! | `domains.rs` | which nodes fail together |
//! | `parity.rs` | parity instead of replicas: groups of nodes, and the code |
//!
//! How: placement consists of pure functions of the job, the epoch, the step and the node. Anybody
//! can compute them again; where replicas are, commit records say in addition.
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness except from the seed: equal input gives equal results on
//!    every machine.
//! 2. A requirement that cannot be met is an error, never a silently weaker plan.
//!
//! Faults survived: the loss of servers down to the last one, see [`Placement::without`]; for the
//! losses of nodes that a choice survives, see [`holders`](Draw::holders).
//! Not here: detecting that a server is full or lost (io, engine), moving and keeping replicas
//! (engine), the survival of a whole job in numbers (planner).

mod deal;
mod domains;
mod draw;
pub mod parity;
mod placement;
mod random;

pub use domains::Domains;
pub use draw::Draw;
pub use placement::{DEFAULT_LANES_MAX, Placement, Target};
