//! Implements the staging pool: memory that the ranks of a node share, and the copy into it for
//! which the program waits.
//!
//! | file | what |
//! | --- | --- |
//! | `pool.rs` | the pool: its chunks, their owners, waiting for a chunk |
//! | `pool/ahead.rs` | fetches what a checkpoint is about to touch |
//! | `pool/kept.rs` | the memory of a pool whose run has ended |
//! | `head.rs`, `bitmap.rs`, `ring.rs` | its head: shape, taken chunks, descriptors in flight |
//! | `pages.rs`, `numa.rs` | the pages of its memory, and their placement |
//! | `gate.rs` | locks between the processes of a node |
//! | `copy.rs`, `copy/fold.rs` | copy and checksum in one pass; a kernel per kind of processor |
//! | `uring.rs` | writes from the pool to the disk, with pages pinned once |
//! | `track.rs` | finds which pages of the program's memory were written |
//!
//! Not here: when something is staged, and where it is written (the engine).

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

// Every module uses this name, so that two of them can be tested with the atomics of another
// scheduler.
use orcheck_io::sync;

pub use copy::{Kernel, check_choice, copy_crc_by, kernel};
pub use gate::{Gate, Gates};
pub use head::PoolShape;
pub use numa::{MemoryNode, own_nodes};
pub use pages::HugePages;
pub use pool::{Chunk, KeptPool, Pool, read_sealed, seal_bytes};
pub use ring::Ring;
pub use track::{Tracker, page_bytes};
#[doc(hidden)]
pub use uring::Uring;
