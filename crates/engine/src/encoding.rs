//! Encodes the bytes of containers, and decides which bytes to believe.
//!
//! | file | what |
//! | --- | --- |
//! | `pieces.rs` | compresses and encrypts pieces, and turns them back |
//! | `bounce.rs` | the memory that pieces pass through |
//! | `shuffle.rs` | sorts the bytes of numbers by their position |
//! | `trust.rs` | keys, seals, and what is refused without them |
//!
//! Not here: which bytes belong where (`orcheck-format`).

mod bounce;
mod pieces;
mod shuffle;
mod trust;

pub(crate) use bounce::Bounce;
pub(crate) use pieces::check_stored;
pub use pieces::{Binding, Body, ContainerKey, Decoder, EncodePiece, Encoder, Recipe, fingerprint};
pub(crate) use trust::WHO_CAN_WRITE;
pub use trust::{Accept, HOW_TO_ACCEPT, Proof, Trust, other_key};
