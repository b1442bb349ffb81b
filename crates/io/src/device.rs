//! The disk below a directory, and how much it has moved.
//!
//! How: the kernel counts what every block device reads and writes; a partition's counters are those of its whole disk.
//!
//! Faults survived: directories without a disk of their own (network, memory, several disks): an error says so. Not here:
//! whose bytes they were.

use crate::error::os_error;
use orcheck_format::{Error, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes of what the kernel counts sectors in, whatever the disk's own.
const SECTOR_BYTES: u64 = 512;

/// Counters of the disk that a directory lies on.
#[derive(Debug)]
pub struct Device {
    stat: File,
    name: String,
}

impl Device {
    /// Finds the disk of a directory.
    ///
    /// # Errors
    /// Unsupported when the directory lies on no single block device of this machine.
    pub fn of(dir: &Path) -> Result<Self> {
        let number = std::fs::metadata(dir)
            .map_err(|error| {
                let errno = error.raw_os_error().unwrap_or_default();
                os_error(errno, format_args!("look at {}", dir.display()))
            })?
            .dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = format!("/sys/dev/block/{major}:{minor}");
        let whole = match Path::new(&device).join("partition").exists() {
            true => format!("{device}/../stat"),
            false => format!("{device}/stat"),
        };
        let stat = File::open(&whole).map_err(|_| {
            Error::unsupported(format!(
                "{} lies on no single block device of this machine ({major}:{minor})",
                dir.display()
            ))
        })?;
        Ok(Self { stat, name: device })
    }

    /// Bytes read and written since it has been there.
    ///
    /// # Errors
    /// Unavailable when the device is gone.
    pub fn moved_bytes(&self) -> Result<u64> {
        let mut text = [0; 512];
        let gone = |what: &dyn std::fmt::Display| {
            Error::unavailable(format!("{}: the disk's counters: {what}", self.name))
        };
        let len = self.stat.read_at(&mut text, 0).map_err(|e| gone(&e))?;
        let text = String::from_utf8_lossy(&text[..len]);
        let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
        match (fields.nth(2), fields.nth(3)) {
            (Some(Ok(read)), Some(Ok(written))) => {
                Ok(read.saturating_add(written).saturating_mul(SECTOR_BYTES))
            }
            _ => Err(gone(&format_args!("expected numbers, found {text:?}"))),
        }
    }
}
