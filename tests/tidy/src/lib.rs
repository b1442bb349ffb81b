//! Checks the rules of the source tree that no compiler checks.
//!
//! `tests/tidy`: layers, rooms, lengths of files and functions, marks that must not appear, where
//! `unsafe` and commit records may be, links and addresses that lead somewhere. `tests/words`: the
//! words of the glossary. `tests/sabotage`: every switch has a test that notices it.
//! How: the rules are functions from a path and a text to violations. One test runs each rule over
//! the tree, another plants a violation of each and expects it to be found.
//!
//! Invariants:
//! 1. No other crate depends on this one.
//! 2. A rule's message says what to do, not only what is wrong.
//!
//! Not here: tests of one crate's behaviour, which live beside that crate.
