//! Replicates a node's containers on other nodes.
//!
//! | file | what |
//! | --- | --- |
//! | `protect.rs` | both sides as state machines; pure |
//! | `owner.rs` | a directory whose containers also appear on other nodes |
//! | `leaving.rs` | the bytes that leave for holders, and their checksum |
//! | `keeper.rs` | the holder: takes replicas in and serves them |
//! | `taken.rs` | the holder's memory for pieces, and the thread that writes them |
//! | `remote.rs` | the files of other nodes, as directories |
//! | `members.rs` | the nodes of earlier runs: who they are, and what they hold |
//! | `lend.rs` | a keeper in the place of one that has ended |
//! | `store.rs` | where replicas of other nodes are kept |
//! | `part.rs` | what a holder gets of a container: all, or blocks for parity |
//! | `parity_file.rs` | blocks of a group's containers → a parity file; pure |
//! | `gather.rs` | the holder of parity files as a state machine; pure |
//! | `survivors.rs` | what is left of a group: lost blocks from the others |
//! | `rebuilt.rs` | lost containers and parity files as a directory |
//! | `mend.rs` | makes replicas and parity again after nodes were lost |
//!
//! Not here: who holds whose replicas (`orcheck-placement`).

mod gather;
mod keeper;
mod leaving;
mod lend;
mod members;
pub mod mend;
mod owner;
mod parity_file;
mod part;
mod protect;
mod rebuilt;
mod remote;
mod store;
mod survivors;
mod taken;

pub use gather::{GatherAction, Gatherer, Gathering};
pub use keeper::{CREDIT_BYTES, KeeperContext, KeeperThread};
pub use lend::{Lender, StopLending};
pub use members::{Asking, keeper_of, list_all, remembered};
pub use owner::{Replicas, ReplicasContext};
pub use part::{Part, Picks};
pub use protect::{
    ConnSlot, Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES,
};
pub use rebuilt::Rebuilt;
pub use remote::{Files, Holdings, NodeAt, Others, OthersContext, files_of, node_dir};
pub use store::{KeptReplicas, ReplicaStore};
pub use survivors::verify_parity;
pub(crate) use survivors::{check_recorded, compare_with_parity, parity_trailer};
