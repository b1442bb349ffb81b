//! Finding a checkpoint and restoring it.
//!
//! | file | what |
//! | --- | --- |
//! | `resume.rs` | find and restart; `resume/unrestored.rs`: errors when nothing can be restored |
//! | `choose.rs` | a checkpoint is rejected, or one region read alone |
//! | `beside.rs` | a start from nothing, and what lies beside it |
//! | `mending.rs` | copies that are made again |
//!
//! Not here: reading and proving (the engine).

mod beside;
mod choose;
mod mending;
mod resume;
