//! Connects the processes of a job: connections are authenticated, bounded, and encrypted if
//! configured.
//!
//! | file | what |
//! | --- | --- |
//! | `address.rs` | the address of a listener |
//! | `handshake.rs`, `listener.rs` | how a connection is opened and accepted |
//! | `key.rs`, `munge.rs` | what both sides prove: the job's key, or their users by MUNGE |
//! | `conn.rs` | frames on an open connection; `conn/bulk.rs`: bulk data from and into memory |
//! | `guard.rs` | what guards a frame: a MAC, or encryption |
//! | `names.rs` | names of Unix sockets, and who holds them |
//!
//! Not here: the contents of messages (`orcheck-format`).

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

pub use crate::conn::{Leaves, Place, Received, Source};
pub use address::Address;
pub use conn::Conn;
#[doc(hidden)]
pub use guard::frame_proof;
pub use key::Key;
pub use listener::{Listener, Refusals};
pub use munge::{AsUser, Users};
pub use names::{Holder, Peer, holder, taken_names};
