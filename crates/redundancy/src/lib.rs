//! Redundancy: where copies of a node's checkpoint go, so that the loss of nodes is not the loss of the checkpoint.
//!
//! What it does: names the **holders** of each node's replicas ([`Draw`]) among nodes that do not fail together with it
//! ([`Domains`]).
//! How: pure functions of the job, the epoch, the step and the node; anyone can compute them again, so that a restart
//! knows where to look without being told.
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness but that of the seed: equal input gives equal holders on every machine.
//! 2. A redundancy that cannot be had is an error, never a quietly weaker one.
//!
//! Faults survived: none by itself; which losses a choice survives is said in [`holders`](Draw::holders).
//! Not here: moving bytes and keeping them (engine), the survival of a whole job in numbers (plan).

mod domains;
mod draw;

pub use domains::Domains;
pub use draw::Draw;
