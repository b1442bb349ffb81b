//! The engine: stage, marshal, flush, commit, prune, restart.
//!
//! What one byte goes through, and the file that does it:
//!
//! ```text
//! region ─ stream.rs (where it lies) ─ stage.rs (copy + CRC into the pool)
//!        ─ index.rs (descriptor crosses to the CP-thread) ─ flush.rs (gate, order)
//!        ─ encoding.rs (smaller, encrypted, if asked for) ─ container.rs (bytes of the file)
//!        ─ protocol.rs (votes) ─ commit.rs (visible)
//!        ─ prune.rs (older ones go)            restart: catalog.rs ─ reader.rs ─ restore.rs
//! ```
//!
//! Invariants:
//! 1. Only `commit.rs` makes a checkpoint visible, and only after every container of it is durable.
//! 2. Nothing here calls into the program: the engine completes a checkpoint on its own threads.
//! 3. Every wait has a deadline; a failed fsync is a loss and never retried on the same pages.
//! 4. `protocol.rs`, `relay.rs`, `protect.rs`, `stream.rs` and `layout.rs` are pure: no I/O, no clock.
//!
//! Not here: the program's view (crate `client`), where bytes physically go (crate `io`), the
//! bytes themselves (crate `format`).

pub mod capture;
pub mod commit;
pub mod directory;
pub mod encoding;
pub mod flush;
pub mod host;
pub mod node;
pub mod replicas;
pub mod restart;
pub mod upkeep;
