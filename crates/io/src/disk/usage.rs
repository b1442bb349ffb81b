//! What a file or a directory takes of its disk.
//!
//! Not here: who may take how much (`orcheck-staging`).

use rustix::fs::{self, FileType};

/// The disk space of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// Its identity: device and inode.
    pub id: (u64, u64),
    /// Whether it is a directory.
    pub is_dir: bool,
    /// The number of its names; at most 1 for a directory. Without a name it is gone when the last
    /// user closes it.
    pub names: u64,
    /// Length in bytes; 0 for a directory.
    pub len_bytes: u64,
    /// Bytes of its blocks on the disk now.
    pub disk_bytes: u64,
}

impl DiskUsage {
    /// From the result of `stat`.
    pub fn of(stat: &fs::Stat) -> Self {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        #[allow(clippy::useless_conversion)] // 32 bits on Arm
        let links = u64::from(stat.st_nlink);
        DiskUsage {
            id: (stat.st_dev, stat.st_ino),
            is_dir,
            // Breaks if: a removed directory that somebody has open counts as having a name.
            names: if is_dir { links.min(1) } else { links },
            len_bytes: if is_dir { 0 } else { size },
            // In units of 512 bytes, whatever the block size of the file system is.
            disk_bytes: u64::try_from(stat.st_blocks)
                .unwrap_or(0)
                .saturating_mul(512),
        }
    }
}
