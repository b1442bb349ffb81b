//! Finds a checkpoint and restores it.
//!
//! | file | what |
//! | --- | --- |
//! | `resume.rs` | finds and restarts; `resume/unrestored.rs`: errors if nothing can be restored |
//! | `elastic.rs` | decides what each rank reads: what it stored, or its part of what all did |
//! | `optional.rs` | keeps optional regions untouched until nothing can turn up damaged any more |
//! | `choose.rs` | rejects a checkpoint, or reads one region alone |
//! | `beside.rs` | starts from nothing, and looks for misplaced data first |
//! | `mending.rs` | makes copies again |
//! | `paces.rs` | continues the paces of levels |
//!
//! Not here: reading and verifying (the engine).

mod beside;
mod choose;
mod elastic;
mod mending;
mod optional;
mod paces;
mod resume;
