//! Holds what the processes of a node share through the pool, and the layout of nodes and ranks.
//!
//! | file | what |
//! | --- | --- |
//! | `index.rs` | words and rings that connect ranks, CP-threads and the control thread |
//! | `descriptor.rs` | what a rank tells its CP-thread about a segment |
//! | `goes.rs` | which levels a checkpoint goes to |
//! | `kept.rs` | snapshots that stay in the pool until they are safe |
//! | `halt.rs` | halt requests, as the processes of a node exchange them |
//! | `patience.rs` | waits for the engine, but not for one that is gone |
//! | `budget.rs` | how large the pool may be |
//! | `layout.rs` | nodes, ranks, and which writer flushes which rank |
//!
//! Not here: the pool itself (`orcheck-pool`).

mod budget;
mod descriptor;
mod goes;
mod halt;
mod index;
mod kept;
mod layout;
mod patience;

pub use budget::pool_chunks;
pub use goes::Goes;
pub use halt::HaltRequest;
pub use index::{
    Descriptor, ENGINE_ALIVE, Index, IndexShape, MAX_LANES, Outcome, POOL_IN_USE, POOL_OF_RANK,
};
pub(crate) use index::{SHARED_BLOCKS, SHARED_EXTENTS, SharedExtent};
pub use kept::Kept;
pub(crate) use layout::Node;
pub use layout::{Layout, Mode, Scheme};
pub use patience::Patience;
