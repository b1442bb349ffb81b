//! Manages the directories of a job: what they hold, who may write to them, and what is removed.
//!
//! | file | what |
//! | --- | --- |
//! | `places.rs` | all directories of a job, opened once |
//! | `catalog.rs` | which checkpoints they hold |
//! | `epoch.rs` | claims: who may write, and from where a run resumed |
//! | `choose.rs` | rejects, keeps or removes a checkpoint on a person's decision |
//! | `halt.rs` | requests to take a checkpoint and end |
//! | `prune.rs` | removes older checkpoints; `prune/leftovers.rs`: what killed runs left; `prune/lost.rs`: what lost steps left |
//! | `routed.rs` | directories of files that the program writes itself; removes what killed runs left |
//!
//! Not here: making a checkpoint visible (`commit`).

mod catalog;
pub mod choose;
pub mod epoch;
pub mod halt;
mod places;
pub mod prune;
pub mod routed;

pub use crate::directory::catalog::{Unread, UnreadStep};
pub use catalog::{Catalog, Commit, RECORD_LIMIT_BYTES, job_named_by};
pub(crate) use places::{OTHER_NODES, is_directory_loss};
pub use places::{Places, TargetFailure};

use orcheck_format::Result;
use orcheck_format::disk::BLOCK_BYTES;
use orcheck_io::disk::{Create, Dir, File};

/// Creates a file into which blocks of [`BLOCK_BYTES`] can be written.
pub(crate) fn create_fitting(dir: &dyn Dir, name: &str, how: Create) -> Result<Box<dyn File>> {
    let file = dir.create(name, how)?;
    if file.is_direct() && file.alignment_bytes() > BLOCK_BYTES as u32 {
        // This device has larger blocks than ours, so use the page cache.
        file.close()?;
        dir.remove(name)?;
        return dir.create(name, Create::Buffered);
    }
    Ok(file)
}
