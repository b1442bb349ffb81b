//! Manages regions, the named parts of a rank's state.
//!
//! | file | what |
//! | --- | --- |
//! | `region.rs` | regions, and how they enter and leave a snapshot |
//! | `array.rs` | slices of global arrays in memory |
//! | `boxes.rs` | several boxes of a global array in memory |
//! | `lists.rs` | who has which items of a list |
//! | `route.rs` | files that the program writes itself |
//!
//! Not here: the copy (the engine).

mod array;
mod boxes;
mod lists;
mod region;
mod route;

pub use array::ArrayLayout;
pub(crate) use lists::{Deal, Lists, MOST_LISTS, wrong_total};
pub use region::{CPU_WRITES_ONLY, Codec, OPTIONAL, OVERLAP, SAME, Stored};
pub(crate) use region::{Region, Regions, RoutedFiles, Target};
pub(crate) use route::{Route, check_routed, restore_files};
