//! Captures a tracked region page by page: selects the pages that a step stores, and lists the
//! extents that then make up the region.
//!
//! How: the kernel reports which pages were written ([`Tracker`]). The table holds, for each page,
//! the CRC and the home of its bytes; unwritten pages are not read. Written pages are copied one by
//! one into chunks, except for those that turn out to be unchanged. The CRC of a run of pages is
//! combined from the CRCs of its pages, so any run of pages can be referred to or stored. The CRC
//! of a group of pages that lie in one piece is computed once.
//!
//! Groups of pages that change between any two captures are not protected (`pages/busy.rs`): they
//! count as written, and the program pays no fault for them.
//!
//! A region is captured whole, as a fresh base, if more than a quarter of it was written or if it
//! would consist of too many runs. After several whole captures in a row the region is not tracked
//! for a while, because the first write to a protected page costs more than copying the page.
//!
//! Invariants:
//! 1. The scan precedes the copy: a write between the two is either copied or found by the next
//!    scan.
//! 2. A page whose home is not committed is stored again, whether or not it was written.
//! 3. The partial pages at both ends, which may be shared with other data, always count as written
//!    and are compared.
//! 4. After a failed scan nothing is known, and everything is stored.
//! 5. A page that is not protected counts as written.
//!
//! Not here: the kernel's side (`pool::track`), the chunks (`stage.rs`), what homes mean
//! (`baseline.rs`).

mod busy;

use crate::capture::home::{Fate, Home};
use busy::Busy;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{CrcShift, Error, Result, Step, crc64_combine};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_pool::{Tracker, page_bytes};
use std::collections::BTreeSet;

/// A region is captured whole if more than one in this many of its pages was written.
const WHOLE_FROM_SHARE: usize = 4;
/// Tracking of a region pauses after this many whole captures in a row.
const REST_AFTER: u32 = 3;
/// Minimum average number of pages in an extent.
const RUNS_PER_PAGES: usize = 2;
/// Number of pages whose CRCs are combined if they lie in one piece.
const GROUP_PAGES: usize = 64;

/// What is known about a page.
#[derive(Debug, Clone, Copy)]
struct Page {
    crc: u64,
    home: Home,
}

/// A tracked region.
pub struct Pages {
    span: Span,
    /// Size of a page.
    size: usize,
    tracker: Tracker,
    /// Bytes before the first whole page.
    head_bytes: usize,
    /// One entry per page, including the partial pages at both ends; empty while nothing is known.
    table: Vec<Page>,
    /// The CRCs of groups of this many pages, for groups of whole pages that lie in one piece. For
    /// a group without written pages, the capture reads nothing else.
    groups: Vec<Option<u64>>,
    busy: Busy,
    count: usize,
    /// Steps that stored some of the region.
    homes: BTreeSet<Step>,
    /// Number of extents in the last capture.
    extents: usize,
    whole_in_a_row: u32,
    /// The capture in progress stores the whole region.
    whole: bool,
    shift: CrcShift,
    shift_group: CrcShift,
}

/// What to copy of a region.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pages (first, count), ascending.
    pub runs: Vec<(usize, usize)>,
    /// The region was captured whole too often; tracking pauses.
    pub rests: bool,
}

/// A page, as copied.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    /// Its number.
    pub page: usize,
    /// CRC of the copied bytes.
    pub crc: u64,
    /// Its place in this stream; `None` if it is referred to.
    pub stream_at_bytes: Option<u64>,
}

/// A contiguous part of the region that lies in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    /// Where.
    pub place: Home,
    /// Its length.
    pub len_bytes: u64,
    /// CRC of its bytes.
    pub crc: u64,
}

/// The result of entering a capture.
#[derive(Debug)]
pub struct Entered {
    /// Its parts, in order.
    pub runs: Vec<PageRange>,
    /// Bytes that changed.
    pub changed_bytes: u64,
}

impl Pages {
    /// Begins to track a region.
    ///
    /// # Errors
    /// The error of [`Tracker::arm`].
    pub fn arm(span: Span, failpoints: &Failpoints) -> Result<Self> {
        let tracker = Tracker::arm(span, failpoints)?;
        let size = page_bytes();
        let head_bytes = tracker.address() - span.address();
        let tail = head_bytes + tracker.pages() * size < span.len_bytes();
        Ok(Self {
            span,
            size,
            head_bytes,
            count: usize::from(head_bytes > 0) + tracker.pages() + usize::from(tail),
            tracker,
            table: Vec::new(),
            groups: Vec::new(),
            busy: Busy::default(),
            homes: BTreeSet::new(),
            extents: 0,
            whole_in_a_row: 0,
            whole: true,
            shift: CrcShift::by(size as u64),
            shift_group: CrcShift::by((GROUP_PAGES * size) as u64),
        })
    }

    /// The region.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Number of pages, including the partial pages at both ends.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Maximum number of extents of a region of this many bytes.
    #[must_use]
    pub fn most_extents(len_bytes: usize) -> usize {
        (len_bytes / page_bytes() / RUNS_PER_PAGES).max(1024)
    }

    /// Steps that stored some of the region.
    #[must_use]
    pub fn homes(&self) -> &BTreeSet<Step> {
        &self.homes
    }

    /// A page's place in the region: offset and length in bytes.
    #[must_use]
    pub fn part(&self, page: usize) -> (usize, usize) {
        let size = self.size;
        let at = match (self.head_bytes, page) {
            (0, page) => page * size,
            (head, 0) => return (0, head),
            (head, page) => head + (page - 1) * size,
        };
        (at, size.min(self.span.len_bytes() - at))
    }

    /// A page's memory.
    #[must_use]
    pub fn memory(&self, page: usize) -> Span {
        let (at, len) = self.part(page);
        self.span.sub(at, len)
    }

    /// Asks the kernel which pages were written, protects them again, and selects what to copy.
    ///
    /// # Errors
    /// The error of the scan; the next capture then stores everything.
    pub fn want(
        &mut self,
        full: bool,
        most_extents: usize,
        fate: &dyn Fn(Step) -> Fate,
    ) -> std::result::Result<Wanted, (Wanted, Error)> {
        let everything = |rests| Wanted {
            runs: vec![(0, self.count)],
            rests,
        };
        self.whole = true;
        let head = usize::from(self.head_bytes > 0);
        let busy = self.busy.ranges(head, head + self.tracker.pages());
        let written = match self.tracker.scan(&busy) {
            Ok(written) => written,
            Err(_) if off(Switch::FailedScan) => Vec::new(),
            Err(error) => {
                self.table.clear();
                self.homes.clear();
                return Err((everything(true), error));
            }
        };
        if self.table.is_empty() || full {
            self.whole_in_a_row = 0;
            return Ok(everything(false));
        }
        let mut runs = Runs::default();
        if head > 0 && !off(Switch::PageEnds) {
            runs.add(0, 1);
        }
        for &(first, count) in &written {
            runs.add(first + head, count);
        }
        if head + self.tracker.pages() < self.count && !off(Switch::PageEnds) {
            runs.add(self.count - 1, 1);
        }
        let heavy = runs.pages * WHOLE_FROM_SHARE > self.count;
        // Breaks if: pending or lost homes are ignored; their pages would be in no committed
        // checkpoint.
        if self.homes.iter().any(|&step| fate(step) != Fate::Committed) {
            runs = self.with_uncommitted(&runs, fate);
        }
        let scattered = self.extents + 2 * runs.runs.len() > most_extents;
        if heavy || scattered {
            self.whole_in_a_row += 1;
            return Ok(everything(self.whole_in_a_row >= REST_AFTER));
        }
        self.whole_in_a_row = 0;
        self.whole = false;
        Ok(Wanted {
            runs: runs.runs,
            rests: false,
        })
    }

    /// `runs`, and all pages whose home is not committed.
    fn with_uncommitted(&self, runs: &Runs, fate: &dyn Fn(Step) -> Fate) -> Runs {
        let mut all = Runs::default();
        let mut written = runs.runs.iter().peekable();
        let mut last = (Step(u64::MAX), false);
        for (number, page) in self.table.iter().enumerate() {
            if last.0 != page.home.step {
                last = (page.home.step, fate(page.home.step) != Fate::Committed);
            }
            while written
                .next_if(|(first, count)| first + count <= number)
                .is_some()
            {}
            let is_written = written.peek().is_some_and(|(first, _)| *first <= number);
            if last.1 || is_written {
                all.add(number, 1);
            }
        }
        all
    }

    /// Whether a copied page is unchanged and can be referred to.
    #[must_use]
    pub fn is_stored(&self, page: usize, crc: u64, fate: &dyn Fn(Step) -> Fate) -> bool {
        // Breaks if: a whole capture leaves out unchanged pages; it would not be a fresh base.
        !self.whole
            && self
                .table
                .get(page)
                .is_some_and(|known| known.crc == crc && fate(known.home.step) == Fate::Committed)
    }

    /// Enters the copied pages (ascending; all pages if nothing was known) and returns the parts of
    /// which the region consists, each of at most `cut_bytes`.
    pub fn enter(
        &mut self,
        step: Step,
        copied: &[Copied],
        cut_bytes: u64,
        fate: &dyn Fn(Step) -> Fate,
    ) -> Entered {
        let unknown = self.table.is_empty();
        if unknown {
            let home = Home {
                step,
                stream_at_bytes: 0,
            };
            self.table = vec![Page { crc: 0, home }; self.count];
            self.busy.forget(self.count);
        }
        let mut changed_bytes = 0;
        for copy in copied {
            let len_bytes = self.part(copy.page).1 as u64;
            let page = &mut self.table[copy.page];
            let same = !unknown && page.crc == copy.crc;
            changed_bytes += if same { 0 } else { len_bytes };
            if !same && !unknown {
                self.busy.note(copy.page);
            }
            page.crc = copy.crc;
            if let Some(stream_at_bytes) = copy.stream_at_bytes
                && !(same && !self.whole && fate(page.home.step) != Fate::Lost)
            {
                page.home = Home {
                    step,
                    stream_at_bytes,
                };
            }
        }
        self.busy.close();
        let runs = self.runs(step, copied, cut_bytes);
        self.extents = runs.len();
        Entered {
            runs,
            changed_bytes,
        }
    }

    fn runs(&mut self, step: Step, copied: &[Copied], cut_bytes: u64) -> Vec<PageRange> {
        self.sum_up(copied);
        let mut stored = copied
            .iter()
            .filter_map(|copy| Some((copy.page, copy.stream_at_bytes?)))
            .peekable();
        let mut runs: Vec<PageRange> = Vec::new();
        let (mut homes, mut last) = (BTreeSet::new(), None);
        let group_bytes = (GROUP_PAGES * self.size) as u64;
        let mut number = 0;
        while let Some(page) = self.table.get(number) {
            if last != Some(page.home.step) {
                last = Some(page.home.step);
                homes.insert(page.home.step);
            }
            let group = (number.is_multiple_of(GROUP_PAGES))
                .then(|| self.groups[number / GROUP_PAGES])
                .flatten()
                // Breaks if: pages that this snapshot stores are read from their previous home.
                .filter(|_| {
                    stored
                        .peek()
                        .is_none_or(|(at, _)| *at >= number + GROUP_PAGES)
                })
                .filter(|_| group_bytes <= cut_bytes);
            let (place, len_bytes, crc) = match group {
                Some(crc) => (page.home, group_bytes, crc),
                None => {
                    let now = stored.next_if(|(at, _)| *at == number);
                    let place = now.map_or(page.home, |(_, stream_at_bytes)| Home {
                        step,
                        stream_at_bytes,
                    });
                    (place, self.part(number).1 as u64, page.crc)
                }
            };
            match runs.last_mut() {
                Some(run)
                    if run.place.step == place.step
                        && run.place.stream_at_bytes + run.len_bytes == place.stream_at_bytes
                        && run.len_bytes + len_bytes <= cut_bytes =>
                {
                    run.crc = self.append(run.crc, crc, len_bytes);
                    run.len_bytes += len_bytes;
                }
                _ => runs.push(PageRange {
                    place,
                    len_bytes,
                    crc,
                }),
            }
            number += group.map_or(1, |_| GROUP_PAGES);
        }
        self.homes = homes;
        runs
    }

    /// Recomputes the CRCs of groups with copied pages.
    // Breaks if: this is done only once.
    fn sum_up(&mut self, copied: &[Copied]) {
        let size = self.size as u64;
        self.groups.resize(self.count.div_ceil(GROUP_PAGES), None);
        let mut last = None;
        for copy in copied {
            let group = copy.page / GROUP_PAGES;
            if last.replace(group) == Some(group) {
                continue;
            }
            let first = group * GROUP_PAGES;
            let pages = self.table.get(first..first + GROUP_PAGES).unwrap_or(&[]);
            let in_one_piece = pages.windows(2).all(|pair| {
                pair[0].home.step == pair[1].home.step
                    && pair[0].home.stream_at_bytes + size == pair[1].home.stream_at_bytes
            });
            let whole = |number| self.part(number).1 as u64 == size;
            let fine = !pages.is_empty() && in_one_piece;
            self.groups[group] =
                (fine && whole(first) && whole(first + GROUP_PAGES - 1)).then(|| {
                    let crcs = pages.iter().map(|page| page.crc);
                    crcs.reduce(|sum, crc| self.shift.append(sum, crc))
                        .unwrap_or(0)
                });
        }
    }

    /// The CRC of `a ++ b`.
    fn append(&self, a: u64, b: u64, len_b_bytes: u64) -> u64 {
        if len_b_bytes == self.size as u64 {
            self.shift.append(a, b)
        } else if len_b_bytes == (GROUP_PAGES * self.size) as u64 {
            self.shift_group.append(a, b)
        } else {
            crc64_combine(a, b, len_b_bytes)
        }
    }
}

/// Ascending runs of pages that do not touch each other.
#[derive(Default)]
struct Runs {
    runs: Vec<(usize, usize)>,
    pages: usize,
}

impl Runs {
    fn add(&mut self, first: usize, count: usize) {
        self.pages += count;
        match self.runs.last_mut() {
            Some((last, before)) if *last + *before == first => *before += count,
            _ => self.runs.push((first, count)),
        }
    }
}
