//! Implements staging servers, which serve a directory of another machine over the network, and the
//! client side with the same traits as local directories.
//!
//! | file | what |
//! | --- | --- |
//! | here | opens a directory by its path, local or on a server |
//! | `client.rs` | a [`Dir`] and its files on a server |
//! | `server.rs` | the server |

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

pub mod client;
pub mod server;

use orcheck_format::Result;
use orcheck_io::disk::{Dir, open_local, open_local_shared, open_local_unlinked};
use orcheck_io::failpoints::Failpoints;
use std::path::Path;
use std::sync::Arc;

/// Opens an existing directory, of this machine or of a staging server (`orcheck://…`).
pub fn open_dir(path: &Path, failpoints: Failpoints) -> Result<Arc<dyn Dir>> {
    match client::is_served(path) {
        true => client::open(path, &failpoints),
        false => open_local(path, failpoints),
    }
}

/// The same; directories that are made beneath it are shared with the members of `group`. Those on
/// a server belong to the server.
pub fn open_shared(
    path: &Path,
    group: Option<u32>,
    failpoints: Failpoints,
) -> Result<Arc<dyn Dir>> {
    match client::is_served(path) {
        true => client::open(path, &failpoints),
        false => open_local_shared(path, group, failpoints),
    }
}

/// Opens an existing directory whose path does not end in a symbolic link.
///
/// # Errors
/// Invalid, marked as [`orcheck_format::Detail::Link`], for a link, naming its destination;
/// otherwise the error of the path.
pub fn open_unlinked(path: &Path, failpoints: Failpoints) -> Result<Arc<dyn Dir>> {
    match client::is_served(path) {
        true => client::open(path, &failpoints),
        false => open_local_unlinked(path, failpoints),
    }
}
