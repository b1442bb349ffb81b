//! Power cuts: what was done to a disk (`journal.rs`), which parts of it may be left (`outage.rs`),
//! and the disk in memory that is then restarted from (`image.rs`).

mod image;
mod journal;
mod outage;

pub use image::{Content, Image};
pub use journal::{Journal, Log};
pub use outage::{Disk, Part, choice, choices};
