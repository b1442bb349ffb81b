//! Tests catalog, reader and verification on files made directly with the format crate.

// Tests make and damage files themselves, and a failed preparation may panic anywhere.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod array;
mod catalog;
mod choose;
mod copies;
mod damage;
mod halt;
mod leftovers;
mod misreads;
mod reader;
mod repair;
mod scrub;
mod writer;
