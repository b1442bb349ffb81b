//! The code that threads and processes of a node wait for each other with, under chosen schedules;
//! see `crates/io/src/sync.rs`. Run by `tools/schedules.sh`.
#![cfg(orcheck_shuttle)]
#![allow(clippy::unwrap_used)]

mod explore;
mod index;
mod node;
mod snapshot;
