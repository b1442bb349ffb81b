//! Implements the engine: it stages, marshals, flushes, commits, prunes and restarts.
//!
//! The path of a byte, and the file behind each step:
//!
//! ```text
//! region ─ stream.rs (where it lies) ─ stage.rs (copy + CRC into the pool)
//!        ─ index.rs (descriptor crosses to the CP-thread) ─ flush.rs (gate, order)
//!        ─ encoding.rs (compressed, encrypted, if configured) ─ container.rs (bytes of the file)
//!        ─ protocol.rs (votes) ─ record.rs (visible)
//!        ─ prune.rs (removes older ones)       restart: catalog.rs ─ reader.rs ─ restore.rs
//! ```
//!
//! Invariants:
//! 1. Only `commit/record.rs` makes a checkpoint visible, and only after every container of it is
//!    durable.
//! 2. Nothing here calls into the program: the engine completes a checkpoint on its own threads.
//! 3. Every wait has a deadline; a failed fsync is a loss and is never retried on the same pages.
//! 4. `protocol.rs`, `relay.rs`, `protect.rs`, `stream.rs` and `layout.rs` are pure: no I/O, no
//!    clock.
//!
//! Not here: the program's view (crate `client`), where bytes physically go (crate `io`), the
//! encoding of files and messages (crate `format`).

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
