//! Flushes snapshots from the pool to containers.
//!
//! | file | what |
//! | --- | --- |
//! | `writer.rs` | the CP-thread of one writer: order, gate, pieces, rings |
//! | `container.rs` | writes one file, in order, durable at its end |
//! | `ledger.rs` | remembers what this writer stored where |
//! | `remembered.rs` | remembers what lies where in the pool, for who comes after the ranks |
//!
//! Not here: what is in the pool (`capture`), when a checkpoint counts (`commit`).

mod container;
mod ledger;
mod remembered;
mod writer;

pub use container::{Announced, ContainerWriter, STRIPE_BYTES, Target};
pub use ledger::Ledger;
pub use remembered::Remembered;
pub(crate) use writer::Report;
pub use writer::{FlushContext, Flusher, STAGE_SLOT};
