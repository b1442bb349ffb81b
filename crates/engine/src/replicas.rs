//! Copies of a node's containers on other nodes.
//!
//! | file | what |
//! | --- | --- |
//! | `protect.rs` | both sides as state machines; pure |
//! | `owner.rs` | a directory whose containers appear on other nodes too |
//! | `keeper.rs` | the holder: takes copies in and gives them back |
//! | `remote.rs` | what other nodes hold, as directories |
//! | `room.rs` | where copies of others lie |
//! | `mend.rs` | copies that are made again after nodes were lost |
//!
//! Not here: who holds whose copies (`orcheck-placement`).

mod keeper;
pub mod mend;
mod owner;
mod protect;
mod remote;
mod room;

pub use keeper::{CREDIT_BYTES, KeeperContext, KeeperThread};
pub use owner::{Replicas, ReplicasContext};
pub use protect::{
    Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES, Place,
};
pub(crate) use remote::OTHER_NODES;
pub use remote::{Files, Holdings, NodeAt, Others, OthersContext, files_of};
pub use room::{ReplicaStore, Room};
