//! The session as a program sees it, on real directories.
#![allow(clippy::unwrap_used)]

mod save;
mod support;
