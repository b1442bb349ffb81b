//! Tests the format from outside: round trips, damage, golden files, validation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod golden;
mod round_trip;
mod samples;
mod validation;
mod versions;
