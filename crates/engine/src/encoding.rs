//! How the bytes of a container differ from those of the program, and which bytes are believed.
//!
//! | file | what |
//! | --- | --- |
//! | `pieces.rs` | pieces compressed, encrypted, and turned back |
//! | `bounce.rs` | memory that pieces pass through |
//! | `shuffle.rs` | bytes of numbers sorted by their place |
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
