//! A rank's snapshot: where its bytes lie, which of them are new, and the copy into the pool.
//!
//! | file | what |
//! | --- | --- |
//! | `stage.rs` | copy and checksum, with the handover to the CP-thread |
//! | `stream.rs` | regions cut into pieces, pieces packed into segments |
//! | `baseline.rs` | what is stored already and is only referred to |
//! | `pages.rs` | the same for tracked regions, page by page |
//!
//! Not here: what the CP-thread makes of it (`flush`).

mod baseline;
mod pages;
mod stage;
mod stream;

pub(crate) use crate::capture::stage::Kind;
pub use crate::capture::stage::StageContext;
pub use baseline::{Baseline, Beginning, Capture, Captured, Fate, Full, MAX_CHAIN};
pub use pages::{Copied, Pages};
pub(crate) use stage::own_extent;
pub use stage::{Source, Staging};
pub use stream::{Entry, Piece, Plan, Segment};
