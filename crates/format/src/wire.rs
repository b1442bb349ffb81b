//! Encodes and decodes the messages between processes.
//!
//! | file | what |
//! | --- | --- |
//! | `control.rs` | frames, and messages between ranks, nodes and the lead |
//! | `agent.rs` | messages between ranks and the agent of their node |
//! | `kept.rs` | what an agent says about memory that it keeps |
//! | `staging.rs` | messages between a process and a staging server |
//! | `fields.rs` | fields that several kinds of messages share |
//!
//! Not here: connections (`orcheck-net`).

mod agent;
mod control;
mod fields;
mod kept;
mod staging;

pub use agent::{Adoption, AgentMessage, ConnState, Link, NodePart, RecipePart, ReplicaPart};
pub use control::{
    BULK, BULK_HEAD_BYTES, FRAME_HEADER_BYTES, FRAME_KIND_AT, FrameHeader, MAX_DATA_BYTES,
    MAX_PAYLOAD_BYTES, Message, PIECE, PIECE_HEAD_BYTES, place_bytes,
};
pub use fields::MAX_TEXT_BYTES;
pub use kept::{KeptMap, KeptPiece, KeptSnapshot, RegionIdentity};
pub use staging::{
    Ask, Disk, FIRST_BYTES, MAX_DEPTH, PIECE_BYTES, Reply, StoreDir, StoreMessage, Versions,
    identity_file, identity_of,
};
