//! Reads small extents that lie close together in a file with one read.
//!
//! How: before the extents of a region are read, it is determined how far a single read from each
//! of them on should reach ([`ends`]). The first extent of such a run reads all of it into a
//! window, in which the others find their bytes.
//!
//! Invariants:
//! 1. Between two extents of a run, at most [`GAP_BYTES`] are read that nobody wants.
//! 2. There are at most [`WINDOWS`] windows of [`WINDOW_BYTES`].
//! 3. If a run cannot be read, each of its extents is read by itself: one bad block costs one
//!    extent.
//!
//! Not here: verifying (`source.rs`).

use crate::restart::shared::LEAST_BYTES;
use orcheck_format::disk::Extent;
use orcheck_io::disk::File;
use std::collections::{HashMap, HashSet};

/// Maximum length of a run.
const WINDOW_BYTES: u64 = 1 << 20;

/// Maximum distance between two extents of a run.
const GAP_BYTES: u64 = 4 << 10;

/// Longer extents are read by themselves: ranks may share them.
const SMALL_BYTES: u64 = LEAST_BYTES as u64 - 1;

/// The extents of a region may alternate between this many files.
const WINDOWS: usize = 4;

/// Where the run ends that begins with each of these extents, in their files.
pub(super) fn ends(extents: &[(u64, &Extent)]) -> Vec<u64> {
    // By file: the extent behind, and where its run ends.
    let mut behind: HashMap<(Option<&str>, u16), (u64, u64)> = HashMap::new();
    let mut ends = vec![0; extents.len()];
    for ((_, extent), end) in extents.iter().zip(&mut ends).rev() {
        let own_end = extent.physical.saturating_add(extent.stored_len_bytes);
        *end = own_end;
        let file = (extent.container.as_deref(), extent.store);
        if extent.stored_len_bytes > SMALL_BYTES {
            behind.remove(&file);
            continue;
        }
        if let Some(&(next, run_end)) = behind.get(&file)
            && (own_end..=own_end.saturating_add(GAP_BYTES)).contains(&next)
            && run_end - extent.physical <= WINDOW_BYTES
        {
            *end = run_end;
        }
        behind.insert(file, (extent.physical, *end));
    }
    ends
}

/// What was read of some files.
#[derive(Default)]
pub(super) struct Windows {
    windows: Vec<Window>,
    /// The next one that is given away.
    oldest: usize,
    /// Runs that could not be read: file and end.
    failed: HashSet<(String, u64)>,
}

struct Window {
    file: String,
    at: u64,
    bytes: Vec<u8>,
}

impl Windows {
    /// The `len` bytes at `at`, if a run that ends at `end` has more than these and can be read.
    pub(super) fn read(&mut self, file: &dyn File, at: u64, len: u64, end: u64) -> Option<&[u8]> {
        if len > SMALL_BYTES {
            return None;
        }
        let name = file.name();
        let holds = |window: &Window| window.file == name && window.part(at, len).is_some();
        let known = match self.windows.iter().position(holds) {
            Some(known) => known,
            None if end <= at + len || self.failed.contains(&(name.clone(), end)) => return None,
            None => {
                let mut bytes = vec![0; usize::try_from(end - at).ok()?];
                if file.read_at(&mut bytes, at).is_err() {
                    // A bad block may take seconds: it is not tried again for each of them.
                    self.failed.insert((name, end));
                    return None;
                }
                self.keep(Window {
                    file: name,
                    at,
                    bytes,
                })
            }
        };
        self.windows.get(known)?.part(at, len)
    }

    fn keep(&mut self, window: Window) -> usize {
        if self.windows.len() < WINDOWS {
            self.windows.push(window);
            return self.windows.len() - 1;
        }
        let place = self.oldest;
        self.oldest = (place + 1) % WINDOWS;
        if let Some(oldest) = self.windows.get_mut(place) {
            *oldest = window;
        }
        place
    }
}

impl Window {
    fn part(&self, at: u64, len: u64) -> Option<&[u8]> {
        let first = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes
            .get(first..first.checked_add(usize::try_from(len).ok()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::disk::Ram;
    use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    fn extent(container: Option<&str>, physical: u64, stored_len_bytes: u64) -> Extent {
        Extent {
            container: container.map(str::to_owned),
            store: 0,
            physical,
            len_bytes: stored_len_bytes,
            stored_len_bytes,
            encoding: 0,
            crc_plain: 0,
            crc_stored: 0,
        }
    }

    fn ends_of(extents: &[Extent]) -> Vec<u64> {
        let each: Vec<(u64, &Extent)> = extents.iter().map(|extent| (0, extent)).collect();
        ends(&each)
    }

    #[test]
    fn runs_end_at_gaps_and_long_extents_and_behind_a_window() {
        let of = |physical, len| extent(None, physical, len);
        assert_eq!(
            ends_of(&[of(0, 10), of(10, 10), of(30, 5)]),
            [35, 35, 35],
            "small gaps are read too"
        );
        assert_eq!(ends_of(&[of(0, 10), of(11 + GAP_BYTES, 5)])[0], 10);
        assert_eq!(
            ends_of(&[of(0, 10), of(10, SMALL_BYTES + 1), of(11 + SMALL_BYTES, 9)])[0],
            10
        );
        assert_eq!(ends_of(&[of(100, 10), of(0, 10)]), [110, 10], "backwards");
        let long: Vec<Extent> = (0..100).map(|i| of(i * 16_000, 16_000)).collect();
        for (extent, end) in long.iter().zip(ends_of(&long)) {
            assert!(end - extent.physical <= WINDOW_BYTES);
        }
        // The runs are as long as they can be.
        let distinct = ends_of(&long)
            .windows(2)
            .filter(|two| two[0] != two[1])
            .count();
        assert_eq!(distinct, 1);
    }

    #[test]
    fn files_have_runs_of_their_own() {
        let extents = [
            extent(Some("a"), 0, 10),
            extent(None, 500, 10),
            extent(Some("a"), 10, 10),
            extent(None, 510, 10),
        ];
        assert_eq!(ends_of(&extents), [20, 520, 20, 520]);
    }

    /// Fails or counts reads.
    #[derive(Default)]
    struct Reads {
        count: AtomicU32,
        refuse: AtomicBool,
    }

    impl FailpointHook for Reads {
        fn at(&self, step: &Failpoint) -> Verdict {
            match step.site.ends_with("read") && self.refuse.load(Ordering::SeqCst) {
                true => Verdict::Fail(5),
                false => Verdict::Go,
            }
        }

        fn has_read(&self, _path: &str, _at_bytes: u64, _bytes: &mut [u8]) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_run_is_read_once_and_its_end_is_not_passed() {
        let reads = Arc::new(Reads::default());
        let ram = Ram::new(Failpoints::with(
            Arc::clone(&reads) as Arc<dyn FailpointHook>
        ));
        let file = ram.create("file").unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i >> 3) as u8).collect();
        file.write_at(&bytes, 0).unwrap();
        let mut windows = Windows::default();
        for at in (0..50_000).step_by(1000) {
            let found = windows.read(file.as_ref(), at, 1000, 50_000).unwrap();
            assert!(found == &bytes[at as usize..][..1000]);
        }
        assert_eq!(reads.count.load(Ordering::SeqCst), 1);
        // The last extent of a run, and a run whose file ends early or fails.
        assert!(windows.read(file.as_ref(), 50_000, 10, 50_010).is_none());
        assert!(windows.read(file.as_ref(), 99_000, 10, 100_001).is_none());
        reads.refuse.store(true, Ordering::SeqCst);
        assert!(windows.read(file.as_ref(), 60_000, 10, 70_000).is_none());
        reads.refuse.store(false, Ordering::SeqCst);
        assert!(
            windows.read(file.as_ref(), 61_000, 10, 70_000).is_none(),
            "once is enough"
        );
        assert!(windows.read(file.as_ref(), 10, 10, 50_000).is_some());
    }
}
