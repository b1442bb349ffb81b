//! The staging pool: memory that the ranks of a node share, and the copy into it that the program waits for.
//!
//! | file | what |
//! | --- | --- |
//! | `pool.rs` | the pool: chunks, who has them, waiting for one |
//! | `head.rs`, `bitmap.rs`, `ring.rs` | what lies at its start: its shape, which chunks are taken, descriptors on their way |
//! | `pages.rs`, `numa.rs` | what its memory is made of, and where it lies |
//! | `gate.rs` | locks between the processes of a node |
//! | `copy.rs`, `copy/fold.rs` | copy and checksum in one pass; a kernel for each kind of processor |
//! | `uring.rs` | from the pool to the disk, with pages pinned once |
//! | `track.rs` | which pages of the program's memory were written |
//!
//! Not here: what is staged when, and what of it is written where (the engine).

// It reads the kernel's files about this machine's memory and this process's pages.
#![allow(clippy::disallowed_methods)]

mod bitmap;
mod copy;
mod gate;
mod head;
mod numa;
mod pages;
mod pool;
mod ring;
mod track;
mod uring;

// By this name in every module, so that two of them can be tested under the atomics of another scheduler.
use orcheck_io::sync;

pub use copy::{Kernel, check_choice, copy_crc_by, kernel};
pub use gate::{Gate, Gates};
pub use head::PoolShape;
pub use numa::{MemoryNode, own_nodes};
pub use pages::HugePages;
pub use pool::{Chunk, Pool};
pub use ring::Ring;
pub use track::{Tracker, page_bytes};
#[doc(hidden)]
pub use uring::Uring;
