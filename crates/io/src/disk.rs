//! Accesses disks: directories and files behind the traits [`Dir`] and [`File`], on the disks of
//! this machine and in memory.
//!
//! | file | what |
//! | --- | --- |
//! | `dir.rs` | directories: names, modes, listings, paths; `dir/shared.rs`: those of a group |
//! | `file.rs` | files: exact reads and writes, direct I/O, durability |
//! | `inode.rs` | files and directories that keep being what they are under any name |
//! | `small.rs` | small files, written and read as a whole |
//! | `usage.rs` | the disk space of a file |
//! | `lock.rs` | locks that belong to an open file |
//! | `ram.rs` | the same traits in the memory of this process |
//! | `paced.rs` | a directory that is read no faster than a stated rate |
//! | `read_only.rs` | directories and files that are only read |
//! | `device.rs` | the device below a directory, and how much it moved |
//!
//! Not here: staging servers (`orcheck-staging`), which implement the same traits.

mod device;
mod dir;
mod file;
mod inode;
mod lock;
mod paced;
mod ram;
mod read_only;
mod small;
mod usage;

pub use device::Device;
pub use dir::{
    Create, Dir, Entry, check_name, kind_name, linked, open_local, open_local_shared,
    open_local_unlinked,
};
pub use file::{
    File, PinnedWrite, check_aligned, check_length, check_range, read_cached_span, read_span,
    write_pinned,
};
pub use inode::{Contents, Inode, Kernel};
pub use lock::{Lock, ofd_is_locked, ofd_lock, ofd_share, ofd_unlock_all, reopen};
pub use paced::{Pace, paced};
pub use ram::Ram;
pub use read_only::{ReadDir, ReadFile, ReadOnly};
pub use small::{read_small, write_private, write_small};
pub use usage::DiskUsage;
