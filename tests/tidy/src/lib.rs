//! The rules of the source tree that no compiler checks.
//!
//! What it does: holds the tests that are about the source tree as a whole, and those of whole jobs
//! on disks of our own making. `tests/tidy.rs`: layers, file lengths, words and marks that must not
//! appear, where `unsafe` and commit records may be written, links in the documents.
//! `tests/blocks`: the power is cut below a real file system.
//! How: the rules are functions from a path and a text to violations; one test runs each rule
//! over the tree, another plants a violation of each and expects it to be found.
//!
//! Invariants:
//! 1. No other crate depends on this one.
//! 2. A rule's message says what to do, not only what is wrong.
//!
//! Faults survived: none, it runs at development time only.
//! Not here: tests of one crate's behaviour; they live beside that crate.
