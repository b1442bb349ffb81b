//! Whole jobs: what the programs that run them share, and the tests that each deployment runs.
//!
//! | file | what |
//! | --- | --- |
//! | `deployment.rs` | where the engine and the directories are; runs tests there |
//! | `support.rs` | jobs inside one process: ranks are threads, nodes are names |
//! | `session/` | tests of what a program does with a session |
//! | `harness.rs` | a harness for tests that fork |
//! | `life.rs`, `workloads.rs` | jobs of forked ranks that live until a fault, and what they compute |
//! | `trial.rs`, `oracle.rs`, `ledger.rs`, `records.rs`, `payload.rs`, `anatomy.rs` | what must be true of a job after a fault |
//!
//! Not here: tests of one crate.
// It makes and damages files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::type_complexity,
    missing_docs
)]

pub mod anatomy;
mod deployment;
#[macro_use]
pub mod harness;
pub mod ledger;
pub mod life;
pub mod oracle;
pub mod payload;
pub mod records;
pub mod session;
pub mod support;
pub mod trial;
pub mod workloads;

pub(crate) use deployment::session_tests;
pub use deployment::{Deployment, Test, deployment, encrypted, run};
