//! Manages regions, the named parts of a rank's state.
//!
//! | file | what |
//! | --- | --- |
//! | `region.rs` | regions, and how they enter and leave a snapshot |
//! | `array.rs` | slices of global arrays in memory |
//! | `route.rs` | files that the program writes itself |
//!
//! Not here: the copy (the engine).

mod array;
mod region;
mod route;

pub use array::ArrayLayout;
pub use region::{CPU_WRITES_ONLY, Codec, OPTIONAL, SAME, Stored};
pub(crate) use region::{Region, Regions, RoutedFiles, Target};
pub(crate) use route::{Route, check_routed, restore_files};
