//! Connections between the processes of a job: authenticated, bounded, and encrypted if that was asked for.
//!
//! | file | what |
//! | --- | --- |
//! | `address.rs` | where a listener is reached |
//! | `handshake.rs`, `listener.rs` | how a connection is opened, and who waits for callers |
//! | `key.rs`, `munge.rs` | what both sides prove: the job's key, or their users by MUNGE |
//! | `conn.rs` | frames on an open connection; `conn/bulk.rs`: many bytes straight from and into memory |
//! | `guard.rs` | what guards a frame: a MAC, or encryption |
//! | `names.rs` | names of Unix sockets, and who holds one |
//!
//! Not here: what the messages are (`orcheck-format`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod address;
mod conn;
mod guard;
mod handshake;
mod key;
mod listener;
mod munge;
mod names;

pub use crate::conn::Received;
pub use address::Address;
pub use conn::Conn;
pub use key::Key;
pub use listener::{Listener, Refusals};
pub use munge::{AsUser, Users};
pub use names::{Holder, Peer, holder, taken_names};
