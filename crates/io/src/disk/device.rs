//! Finds the disk of a directory, and how much it has transferred.
//!
//! How: the kernel counts what every block device reads and writes; for a partition, the counters
//! of the whole disk are used.
//!
//! Faults survived: directories without a disk of their own (network, memory, several disks): an
//! error says so. Not here: whose bytes they were.

use crate::descriptor::away_from_streams;
use crate::errno::os_error;
use orcheck_format::{Error, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The unit in which the kernel counts sectors, whatever the disk's own is.
const SECTOR_BYTES: u64 = 512;

/// Counters of the disk that holds a directory.
#[derive(Debug)]
pub struct Device {
    stat: File,
    name: String,
}

impl Device {
    /// Finds the disk of a directory.
    ///
    /// # Errors
    /// Unsupported if the directory is not on a single block device of this machine.
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
        let stat = away_from_streams(|| File::open(&whole)).map_err(|_| {
            Error::unsupported(format!(
                "{} lies on no single block device of this machine ({major}:{minor})",
                dir.display()
            ))
        })?;
        Ok(Self { stat, name: device })
    }

    /// Total number of bytes read and written since the device appeared.
    ///
    /// # Errors
    /// Unavailable if the device is gone.
    pub fn moved_bytes(&self) -> Result<u64> {
        let mut text = [0; 512];
        let gone = |what: &dyn std::fmt::Display| {
            Error::unavailable(format!("{}: the disk's counters: {what}", self.name))
        };
        let len = self.stat.read_at(&mut text, 0).map_err(|e| gone(&e))?;
        let text = String::from_utf8_lossy(&text[..len]);
        moved_in(&text).ok_or_else(|| gone(&format_args!("expected numbers, found {text:?}")))
    }
}

/// Bytes read and written, from the kernel's line about a disk: the third and the seventh number
/// are sectors.
fn moved_in(stat: &str) -> Option<u64> {
    let mut fields = stat.split_ascii_whitespace();
    let mut sectors = |skip| fields.nth(skip)?.parse::<u64>().ok();
    let (read, written) = (sectors(2)?, sectors(3)?);
    Some(read.saturating_add(written).saturating_mul(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::moved_in;

    // Breaks if: requests, merged ones or milliseconds are mistaken for sectors.
    #[test]
    fn a_line_of_the_kernel_is_read() {
        let line = "  130391     5713 10276578    71230   227046   207440 34500976   385016        0   119764   471041\n";
        assert_eq!(moved_in(line), Some((10_276_578 + 34_500_976) * 512));
        // A disk without moving parts also reports discards and flushes at the end.
        assert_eq!(
            moved_in(&format!("{} 1 2 3 4 5 6", line.trim_end())),
            moved_in(line)
        );
        for strange in ["", "1 2 3 4 5 6", "1 2 x 4 5 6 7", "1 2 3 4 5 6 -7"] {
            assert_eq!(moved_in(strange), None, "{strange:?}");
        }
    }
}
