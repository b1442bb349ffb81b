//! Captures a rank's snapshot: finds where its bytes lie and which of them are new, and copies them
//! into the pool.
//!
//! | file | what |
//! | --- | --- |
//! | `stage.rs` | copies and checksums a snapshot, and hands it over to the CP-thread |
//! | `stream.rs` | cuts regions into pieces and packs pieces into segments |
//! | `baseline.rs` | knows what is already stored, so that a snapshot only refers to it; which regions are tracked, and what follows when tracking fails |
//! | `home.rs` | where bytes were stored, and what became of that step |
//! | `pages.rs` | does the same for tracked regions, page by page |
//!
//! Not here: what the CP-thread does with a snapshot (`flush`).

mod baseline;
mod home;
mod pages;
mod stage;
mod stream;

pub(crate) use crate::capture::stage::Kind;
pub use crate::capture::stage::StageContext;
pub use baseline::{Baseline, Beginning, Capture, Captured, Full, MAX_CHAIN};
pub use home::Fate;
pub use pages::{Copied, Pages};
pub(crate) use stage::own_extent;
pub use stage::{EXTENT_BYTES, Parts, ReadFn, Source, Staging};
pub use stream::{Entry, Piece, Plan, Segment};
