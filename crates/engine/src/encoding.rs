//! Encodes the bytes of containers, and decides which bytes to believe.
//!
//! | file | what |
//! | --- | --- |
//! | `pieces.rs` | compresses and encrypts pieces, and turns them back |
//! | `key.rs` | the key of a container, and what it encrypts |
//! | `bounce.rs` | the memory that pieces pass through |
//! | `shuffle.rs` | sorts the bytes of numbers by their position |
//! | `trust.rs` | the user's keys, the seals of records, and what is refused without them |
//!
//! Not here: which bytes belong where (`orcheck-format`).

mod bounce;
mod key;
mod pieces;
mod shuffle;
mod trust;

pub(crate) use bounce::Bounce;
pub(crate) use key::WHO_CAN_WRITE;
pub use key::{Binding, ContainerKey, fingerprint, other_key};
pub(crate) use pieces::check_stored;
pub use pieces::{Body, Decoder, EncodePiece, Encoder, Recipe};
pub use trust::{Accept, HOW_TO_ACCEPT, Proof, Trust};
