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

pub mod adoption;
pub mod agent;
pub mod baseline;
pub mod budget;
pub mod catalog;
pub mod choose;
pub mod commit;
pub mod container;
pub mod control;
pub mod copying;
pub mod descriptor;
pub mod encoding;
pub mod epoch;
pub mod flush;
pub mod halt;
pub mod host;
pub mod index;
pub mod keeper;
pub mod kept;
pub mod layout;
pub mod ledger;
pub mod mend;
pub mod pages;
pub mod patience;
pub mod places;
pub mod protect;
pub mod protocol;
pub mod prune;
pub mod reader;
pub mod relay;
pub mod remote;
pub mod replicas;
pub mod restore;
pub mod room;
pub mod routed;
pub mod scrub;
pub mod stage;
pub mod stream;
pub mod trust;
pub mod verify;
