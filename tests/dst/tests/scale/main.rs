//! What a checkpoint costs in large jobs: messages and bytes through the program's collective, to
//! the lead, and on each node in between.
//!
//! How: the commit protocol runs as it is, with the engine's own state machines, up to 10,000 nodes
//! of 64 ranks. Of the collective, the calls of real small sessions are counted at several sizes;
//! that they grow as stated is checked, and then they are carried on to the large size.
//!
//! `cargo test -p orcheck-dst --test scale -- --nocapture` prints the figures of `docs/scale.md`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod calls;
mod commit;
