//! Implements the engine: it stages, marshals, flushes, commits, prunes and restarts.
//!
//! The path of a byte, and the file behind each step:
//!
//! ```text
//! region ─ capture/stream (where it lies) ─ capture/stage (copy + CRC into the pool)
//!        ─ node/index (descriptor crosses to the CP-thread) ─ flush/writer (gate, order)
//!        ─ encoding/pieces (compressed, encrypted, if configured) ─ flush/container (bytes)
//!        ─ commit/protocol (votes) ─ commit/record (visible)
//!        ─ directory/prune (removes older ones)
//! back:  directory/catalog ─ restart/restore ─ restart/reader
//! ```
//!
//! Invariants:
//! 1. Only `commit/record.rs` makes a checkpoint visible, and only after every container of it is
//!    durable.
//! 2. Nothing here calls into the program: the engine completes a checkpoint on its own threads.
//! 3. Every wait has a deadline; a failed fsync is a loss and is never retried on the same pages.
//! 4. `commit/protocol.rs`, `commit/relay.rs`, `replicas/protect.rs`, `capture/stream.rs` and
//!    `node/layout.rs` are pure: no I/O, no clock.
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
