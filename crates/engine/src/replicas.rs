//! Replicates a node's containers on other nodes.
//!
//! | file | what |
//! | --- | --- |
//! | `protect.rs` | both sides as state machines; pure |
//! | `owner.rs` | a directory whose containers also appear on other nodes |
//! | `keeper.rs` | the holder: takes replicas in and serves them |
//! | `remote.rs` | the files of other nodes, as directories |
//! | `members.rs` | the nodes of earlier runs: who they are, and what they hold |
//! | `lend.rs` | a keeper in the place of one that has ended |
//! | `store.rs` | where replicas of other nodes are kept |
//! | `mend.rs` | makes replicas again after nodes were lost |
//!
//! Not here: who holds whose replicas (`orcheck-placement`).

mod keeper;
mod lend;
mod members;
pub mod mend;
mod owner;
mod protect;
mod remote;
mod store;

pub use keeper::{CREDIT_BYTES, KeeperContext, KeeperThread};
pub use lend::{Lender, StopLending};
pub(crate) use members::merge;
pub use members::{keeper_of, list_all, remembered};
pub use owner::{Replicas, ReplicasContext};
pub use protect::{
    ConnSlot, Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES,
};
pub(crate) use remote::OTHER_NODES;
pub use remote::{Files, Holdings, NodeAt, Others, OthersContext, files_of, node_dir};
pub use store::{KeptReplicas, ReplicaStore};
