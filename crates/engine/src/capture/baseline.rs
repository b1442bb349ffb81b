//! Decides, on the rank's side of an incremental checkpoint, which bytes to store and which to
//! refer to, because an older step already stores them.
//!
//! The **baseline** of a rank holds, for each piece of each region, the CRC of its bytes and their
//! **home**: the step that stored them and their offset in that step's stream. A snapshot compares
//! its CRCs, which it computes anyway, with the baseline. It does not even read those parts of a
//! tracked region (`pages.rs`) that nobody has written, according to the kernel. Unchanged bytes
//! become references.
//!
//! ```text
//! home committed at every level, bytes the same      → reference, home stays
//! home pending, bytes the same                       → stored again, home stays
//! home lost, or other bytes, or a full capture       → stored, home is this step
//! ```
//!
//! "Every level" means those that this snapshot goes to. A home that did not go to one of them
//! counts as lost, and its bytes are stored again. What changed since the last snapshot of a level
//! is therefore what the next one of that level stores, whatever went to other levels in between.
//! The homes of weaker levels end with each snapshot of the strongest one.
//!
//! Invariants:
//! 1. A snapshot refers only to steps that were committed, when it was taken, at every level that
//!    it goes to. It never waits for one.
//! 2. Homes only move forward: every home after a snapshot is either one of the homes before it or
//!    the snapshot itself. Each snapshot names all of its older homes (`refers_to`). An earlier
//!    committed snapshot therefore pins every step that a later one may refer to, and prune need
//!    not hear from ranks whose snapshot is still in flight. This holds at each level by itself:
//!    all homes after a snapshot went to every level that it goes to.
//! 3. In every (`chain` + 1)th checkpoint of the strongest level, all ranks capture everything. In
//!    every `chain`th checkpoint in between, no home of a weaker level is used. A checkpoint
//!    therefore refers to at most 2 `chain` older ones, and to at most `chain` at the strongest
//!    level, and pins end there.
//! 4. Unknown bytes are stored: without a baseline (after an error, or while the last snapshot is
//!    still being staged) a capture is full. A capture is also full after a lost step, because a
//!    directory may be lost with it. A full disk is the exception: storing everything would make it
//!    worse.
//!
//! Survives: the loss of a step at one level or at all. Not here: where bytes lie in files
//! (`ledger.rs`), the copy (`stage.rs`), what may be deleted (`prune.rs`).

use crate::capture::home::{Fate, Home};
use crate::capture::pages::{Copied, Pages, Wanted};
use crate::capture::stream::{Piece, Segment};
use crate::node::Goes;
use orcheck_format::disk::{Extent, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Step};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest `chain`: a snapshot can refer to 64 older steps, half of them at weaker levels.
pub const MAX_CHAIN: u32 = 32;
/// Smaller regions are compared: it costs less to read them than to ask the kernel.
pub const TRACK_FROM_BYTES: usize = 1 << 20;
/// Maximum number of tracked regions of a rank; each takes two descriptors.
const MAX_TRACKED: usize = 64;
/// A region whose pages are mostly written is compared, not tracked, for this many checkpoints.
const REST: u32 = 8;
/// Smaller pieces are stored: a reference takes about a hundred bytes of the record.
const WORTH_BYTES: u64 = 1024;
/// Maximum number of notes kept for the user.
const MAX_NOTES: usize = 16;

/// Why a snapshot refers to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// No older snapshot is known: this is the first of a session, or the first after an error.
    First = 1,
    /// The chain of references has reached its maximum length.
    Chain = 2,
    /// Most of the last snapshot was stored anyway.
    Share = 3,
    /// A step was lost, or the directories changed.
    Loss = 4,
}

/// A summary of a rank's last snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Captured {
    /// Its step.
    pub step: Step,
    /// Bytes of regions that it stored.
    pub stored_bytes: u64,
    /// Bytes of regions that it refers to in older snapshots.
    pub referred_bytes: u64,
    /// Bytes of regions whose written pages were the only ones read.
    pub tracked_bytes: u64,
    /// Why it refers to nothing; `None` if it may.
    pub full: Option<Full>,
}

/// A stored piece of a region.
#[derive(Debug, Clone, Copy)]
struct Unit {
    at_bytes: u64,
    len_bytes: u64,
    crc: u64,
    home: Home,
}

/// The baseline of one region.
enum RegionBaseline {
    Compared(Vec<Unit>),
    Paged(Box<Pages>),
}

/// A session's baseline, shared with the thread that stages lent regions.
#[derive(Default)]
pub struct Baseline {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Regions by name; trackers may already be armed in it while nothing is known.
    regions: BTreeMap<String, RegionBaseline>,
    /// Whether `regions` holds the findings of the last snapshot.
    known: bool,
    /// The step whose snapshot has the baseline at present.
    out: Option<Step>,
    /// Steps since the last full capture that are not decided yet, by the levels that they go to.
    undecided: BTreeSet<(Step, Level)>,
    /// Levels where the next snapshot refers to nothing: a step was lost there, or directories
    /// changed.
    suspect: BTreeSet<Level>,
    /// Every home, the levels that it went to, and those at which it is known to be committed.
    went: BTreeMap<Step, (Goes, BTreeSet<Level>)>,
    generation: Option<u64>,
    mostly_changed: bool,
    /// Regions that are not tracked, each for this many more checkpoints.
    resting: BTreeMap<String, u32>,
    /// Regions that cannot be tracked at their present address.
    refused: BTreeMap<String, usize>,
    captured: Captured,
    notes: Vec<String>,
}

/// What the caller knows at the beginning of a snapshot.
pub struct Beginning<'a> {
    /// Its step.
    pub step: Step,
    /// The levels of the session, weakest first, and those that this checkpoint goes to.
    pub levels: (Vec<Level>, Goes),
    /// The number of earlier checkpoints of the session that went to its strongest level, and of
    /// those after the last such checkpoint; the same on all ranks.
    pub turn: (u64, u64),
    /// The configured chain.
    pub chain: u32,
    /// Placement generation.
    pub generation: u64,
    /// Its own container.
    pub container: FileName,
    /// The fate of a step at a level, and whether a loss makes its directories suspect.
    pub fate: &'a dyn Fn(Step, Level) -> (Fate, bool),
}

impl Beginning<'_> {
    fn goes_to(&self, level: Level) -> bool {
        self.levels.1.includes(level)
    }

    /// The strongest level, unless this checkpoint goes there or the session has no other.
    fn strongest_elsewhere(&self) -> Option<Level> {
        let strongest = self.levels.0.last().copied();
        strongest.filter(|&level| !self.goes_to(level))
    }

    /// Whether all ranks capture everything.
    fn is_full(&self) -> bool {
        let period = u64::from(self.chain) + 1;
        self.strongest_elsewhere().is_none() && self.turn.0.is_multiple_of(period)
    }

    /// Whether no home of a weaker level is used.
    fn ends_weaker_homes(&self) -> bool {
        let nth = self.turn.1 + 1;
        self.strongest_elsewhere().is_some() && nth.is_multiple_of(u64::from(self.chain.max(1)))
    }
}

impl Baseline {
    /// The summary of the last snapshot.
    #[must_use]
    pub fn captured(&self) -> Captured {
        self.lock().captured
    }

    /// The notes for the user; each is returned once.
    #[must_use]
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().notes)
    }

    /// Whether the region is captured by pages, whether it was tracked before or is from now on.
    #[must_use]
    pub fn track(&self, name: &str, span: Span, failpoints: &Failpoints) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let refused = state.refused.get(name) == Some(&span.address());
        let resting = state.resting.contains_key(name);
        if span.len_bytes() < TRACK_FROM_BYTES || refused || resting || state.out.is_some() {
            return false;
        }
        let regions = &mut state.regions;
        match regions.get(name) {
            Some(RegionBaseline::Paged(pages))
                if pages.span() == span || off(Switch::TrackedMemory) =>
            {
                return true;
            }
            // Drop the old tracker first: the kernel allows only one.
            Some(RegionBaseline::Paged(_)) => drop(regions.remove(name)),
            _ => {}
        }
        let tracked = regions
            .values()
            .filter(|held| matches!(held, RegionBaseline::Paged(_)));
        if tracked.count() >= MAX_TRACKED {
            return false;
        }
        match Pages::arm(span, failpoints) {
            Ok(pages) => {
                regions.insert(name.to_owned(), RegionBaseline::Paged(Box::new(pages)));
                true
            }
            Err(error) => {
                state.refused.insert(name.to_owned(), span.address());
                note(
                    &mut state.notes,
                    format!(
                        "region '{name}' is compared, not tracked: {}",
                        error.message()
                    ),
                );
                false
            }
        }
    }

    /// Takes the baseline for a snapshot of regions (name, captured by pages); [`Capture::finish`]
    /// returns the new baseline.
    #[must_use]
    pub fn begin(
        self: &Arc<Self>,
        names: Vec<(String, bool)>,
        beginning: &Beginning<'_>,
    ) -> Capture {
        let mut state = self.lock();
        let full = state.why_full(beginning);
        // Breaks if: only the steps of a full capture are forgotten here; a lost step would then
        // end every chain.
        let fate = |step, level| (beginning.fate)(step, level).0;
        let undecided = &mut state.undecided;
        undecided.retain(|&(step, level)| fate(step, level) == Fate::Pending);
        if full.is_some() {
            undecided.retain(|&(_, level)| !beginning.goes_to(level));
            state.suspect.retain(|&level| !beginning.goes_to(level));
        }
        let (levels, goes) = &beginning.levels;
        let going = goes.of(levels.clone()).into_iter();
        (state.undecided).extend(going.map(|level| (beginning.step, level)));
        state.out = Some(beginning.step);
        state.known = false;
        state.resting.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        // Breaks if: regions that are not in this snapshot stay; a later snapshot would refer to
        // homes that no committed checkpoint pins.
        let mut regions = std::mem::take(&mut state.regions);
        if cfg!(debug_assertions) {
            state.check_invariants();
        }
        let held: Vec<Option<RegionBaseline>> = names
            .iter()
            .map(|(name, paged)| {
                let held = regions.remove(name)?;
                // The pages of a region that is copied this time would keep their homes beyond a
                // full capture.
                (*paged == matches!(held, RegionBaseline::Paged(_))).then_some(held)
            })
            .collect();
        let homes = held.iter().flatten().flat_map(RegionBaseline::homes);
        let homes: BTreeSet<Step> = homes.collect();
        // 2. Homes only move forward.
        debug_assert!(homes.range(beginning.step..).next().is_none());
        state.went.retain(|step, _| homes.contains(step));
        let home = |&step: &Step| {
            let container = beginning.container.at_step(step).to_string();
            (step, (state.fate_of_home(step, beginning), container))
        };
        let homes = homes.iter().map(home).collect();
        state.went.insert(beginning.step, (*goes, BTreeSet::new()));
        drop(state);
        Capture {
            baseline: Arc::clone(self),
            step: beginning.step,
            full,
            homes,
            next: names.iter().map(|_| Vec::new()).collect(),
            names: names.into_iter().map(|(name, _)| name).collect(),
            held,
            changed_bytes: 0,
            captured: Captured {
                step: beginning.step,
                full,
                ..Captured::default()
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why the snapshot that begins must not refer to any other; `None` if it may.
    fn why_full(&mut self, beginning: &Beginning<'_>) -> Option<Full> {
        let lost = |&&(step, level): &&(Step, Level)| (beginning.fate)(step, level).1;
        let lost = self.undecided.iter().filter(lost);
        self.suspect.extend(lost.map(|&(_, level)| level));
        let generation = self.generation.replace(beginning.generation);
        if generation.is_some_and(|before| before != beginning.generation) {
            self.suspect.insert(Level::Global);
        }
        let suspect = |&level: &Level| beginning.goes_to(level);
        if !self.known {
            Some(Full::First)
        } else if beginning.is_full() && !off(Switch::Chain) {
            Some(Full::Chain)
        } else if self.suspect.iter().any(suspect) && !off(Switch::FullAfterLoss) {
            Some(Full::Loss)
        } else if self.mostly_changed {
            Some(Full::Share)
        } else {
            None
        }
    }

    /// The fate of an older home at the levels of the snapshot that begins.
    fn fate_of_home(&mut self, step: Step, beginning: &Beginning<'_>) -> Fate {
        let (levels, goes) = &beginning.levels;
        let Some((went, committed)) = self.went.get_mut(&step) else {
            return Fate::Lost;
        };
        let mut fate = Fate::Committed;
        // The board forgets; what is committed and referred to stays.
        for level in went.of(levels.clone()) {
            if committed.contains(&level) {
                continue;
            }
            let found = (beginning.fate)(step, level).0;
            if found == Fate::Committed {
                committed.insert(level);
            } else if goes.includes(level) && fate != Fate::Lost {
                fate = found;
            }
        }
        // Breaks if: what is committed somewhere may be referred to everywhere; a checkpoint would
        // need the containers of a level that it is not at.
        let elsewhere = !went.covers(*goes) && !off(Switch::HomeAtLevel);
        let strongest = beginning.strongest_elsewhere();
        let weaker = strongest.is_some_and(|level| !went.includes(level));
        match elsewhere || weaker && beginning.ends_weaker_homes() {
            true => Fate::Lost,
            false => fate,
        }
    }

    /// Panics if the state contradicts the invariants above, which is a defect no matter what the
    /// program does.
    fn check_invariants(&self) {
        // 4. While a snapshot has the baseline, this state knows nothing.
        assert!(!(self.known && self.out.is_some()));
        assert!(self.resting.values().all(|&left| left > 0));
        assert!(self.notes.len() <= MAX_NOTES);
        for (name, region) in &self.regions {
            let RegionBaseline::Compared(units) = region else {
                continue;
            };
            let next = units.iter().skip(1);
            let mut pairs = units.iter().zip(next);
            assert!(
                pairs.all(|(one, next)| one.at_bytes + one.len_bytes <= next.at_bytes),
                "region '{name}': its pieces overlap"
            );
        }
    }
}

fn note(notes: &mut Vec<String>, text: String) {
    if notes.len() < MAX_NOTES {
        notes.push(text);
    }
}

impl RegionBaseline {
    fn homes(&self) -> BTreeSet<Step> {
        match self {
            RegionBaseline::Compared(units) => units.iter().map(|unit| unit.home.step).collect(),
            RegionBaseline::Paged(pages) => pages.homes().clone(),
        }
    }
}

/// A snapshot that is being taken against the baseline.
pub struct Capture {
    baseline: Arc<Baseline>,
    step: Step,
    full: Option<Full>,
    /// The steps that stored some of the bytes before: their fates, and this writer's container of
    /// each.
    homes: BTreeMap<Step, (Fate, String)>,
    names: Vec<String>,
    held: Vec<Option<RegionBaseline>>,
    next: Vec<Vec<Unit>>,
    changed_bytes: u64,
    captured: Captured,
}

impl Capture {
    fn fate(&self, step: Step) -> Fate {
        if off(Switch::HomeCommitted) {
            return Fate::Committed;
        }
        self.homes.get(&step).map_or(Fate::Lost, |(fate, _)| *fate)
    }

    /// The pages of a tracked region.
    #[must_use]
    pub fn pages(&self, region: usize) -> Option<&Pages> {
        match self.held.get(region) {
            Some(Some(RegionBaseline::Paged(pages))) => Some(pages),
            _ => None,
        }
    }

    /// Selects what to copy of a tracked region.
    pub fn want(&mut self, region: usize, most_extents: usize) -> Option<Wanted> {
        let mut held = self.held.get_mut(region)?.take();
        let Some(RegionBaseline::Paged(pages)) = &mut held else {
            return None;
        };
        let most_extents = most_extents.min(Pages::most_extents(pages.span().len_bytes()));
        let wanted = pages.want(self.full.is_some(), most_extents, &|step| self.fate(step));
        let wanted = wanted.unwrap_or_else(|(wanted, error)| {
            let mut state = self.baseline.lock();
            let name = &self.names[region];
            let text = format!("region '{name}' is captured whole: {}", error.message());
            note(&mut state.notes, text);
            wanted
        });
        self.held[region] = held;
        Some(wanted)
    }

    /// Whether a copied page can be referred to instead.
    #[must_use]
    pub(crate) fn is_page_stored(&self, pages: &Pages, page: usize, crc: u64) -> bool {
        pages.is_stored(page, crc, &|step| self.fate(step))
    }

    /// Enters the copied pages of a tracked region and returns its extents.
    pub(crate) fn enter_pages(
        &mut self,
        region: usize,
        wanted: &Wanted,
        copied: &[Copied],
        cut_bytes: u64,
    ) -> Vec<Extent> {
        let Some(RegionBaseline::Paged(mut pages)) = self.held[region].take() else {
            return Vec::new();
        };
        let entered = pages.enter(self.step, copied, cut_bytes, &|step| self.fate(step));
        self.changed_bytes += entered.changed_bytes;
        self.captured.tracked_bytes += pages.span().len_bytes() as u64;
        let mut extents = Vec::with_capacity(entered.runs.len());
        for run in entered.runs {
            self.count(run.len_bytes, run.place.step == self.step);
            extents.push(self.extent(run.place, run.len_bytes, run.crc));
        }
        if wanted.rests {
            let mut state = self.baseline.lock();
            let name = self.names[region].clone();
            let text = format!(
                "region '{name}' is compared for {REST} checkpoints, not tracked: for several in a row, more than a quarter of its pages was written, or pages in too many places. Next: if that stays so, protect it without ORC_CPU_WRITES_ONLY"
            );
            note(&mut state.notes, text);
            state.resting.insert(name, REST);
        } else {
            self.held[region] = Some(RegionBaseline::Paged(pages));
        }
        extents
    }

    fn unit(&self, piece: &Piece) -> Option<&Unit> {
        let Some(Some(RegionBaseline::Compared(units))) = self.held.get(piece.region) else {
            return None;
        };
        let at = units
            .binary_search_by_key(&piece.region_at_bytes, |unit| unit.at_bytes)
            .ok()?;
        Some(&units[at]).filter(|unit| unit.len_bytes == piece.len_bytes)
    }

    /// The unit of a piece, if its bytes are unchanged.
    fn same(&self, piece: &Piece, crc: u64) -> Option<&Unit> {
        self.unit(piece).filter(|unit| unit.crc == crc)
    }

    /// Whether every piece of a segment can be referred to, so that the segment need not be handed
    /// over.
    // Breaks if: `any` instead of `all`; a piece that changed would be lost.
    #[must_use]
    pub fn is_stored(&self, segment: &Segment, crcs: &[u64]) -> bool {
        let worth = segment.len_bytes >= WORTH_BYTES * segment.pieces.len() as u64;
        let mut pieces = segment.pieces.iter().zip(crcs);
        self.full.is_none()
            && worth
            && pieces.all(|(piece, &crc)| {
                self.same(piece, crc)
                    .is_some_and(|unit| self.fate(unit.home.step) == Fate::Committed)
            })
    }

    /// Enters a piece and returns its extent. `own` is the place in this stream that stores it;
    /// `None` if [`Self::is_stored`] is true of its segment.
    pub fn enter(&mut self, piece: &Piece, crc: u64, own: Option<u64>) -> Extent {
        let here = Home {
            step: self.step,
            stream_at_bytes: own.unwrap_or(0),
        };
        if self.same(piece, crc).is_none() {
            self.changed_bytes += piece.len_bytes;
        }
        let home = match self.same(piece, crc) {
            // Breaks if: a pending home is replaced; checkpoints in quick succession would never
            // refer to older ones.
            Some(unit) if self.full.is_none() && self.fate(unit.home.step) != Fate::Lost => {
                unit.home
            }
            _ => here,
        };
        self.next[piece.region].push(Unit {
            at_bytes: piece.region_at_bytes,
            len_bytes: piece.len_bytes,
            crc,
            home,
        });
        let place = if own.is_some() { here } else { home };
        self.count(piece.len_bytes, own.is_some());
        self.extent(place, piece.len_bytes, crc)
    }

    /// The extent of the bytes at a place in this stream or in an older one.
    fn extent(&self, place: Home, len_bytes: u64, crc: u64) -> Extent {
        let older = self.homes.get(&place.step);
        Extent {
            container: older.map(|(_, container)| container.clone()),
            store: 0,
            physical: place.stream_at_bytes,
            stored_len_bytes: len_bytes,
            len_bytes,
            encoding: 0,
            crc_stored: crc,
            crc_plain: crc,
        }
    }

    fn count(&mut self, len_bytes: u64, stored: bool) {
        if stored {
            self.captured.stored_bytes += len_bytes;
        } else {
            self.captured.referred_bytes += len_bytes;
        }
    }

    /// The older steps that must be kept as long as this snapshot, ascending.
    #[must_use]
    pub fn refers_to(&self) -> Vec<Step> {
        let mut homes: BTreeSet<Step> = self
            .next
            .iter()
            .flatten()
            .map(|unit| unit.home.step)
            .collect();
        for held in self.held.iter().flatten() {
            if let RegionBaseline::Paged(pages) = held {
                homes.extend(pages.homes());
            }
        }
        homes.remove(&self.step);
        homes.into_iter().collect()
    }

    /// Completes the snapshot: its findings become the baseline of the next one.
    pub fn finish(mut self) {
        let baseline = Arc::clone(&self.baseline);
        let mut state = baseline.lock();
        // Breaks if: a slow snapshot overwrites the baseline of a newer one.
        if state.out != Some(self.step) && !off(Switch::LateBaseline) {
            return;
        }
        let all_bytes = self.captured.stored_bytes + self.captured.referred_bytes;
        state.mostly_changed = self.full.is_none() && self.changed_bytes > all_bytes / 2;
        state.captured = self.captured;
        state.out = None;
        state.known = true;
        let found = std::mem::take(&mut self.held).into_iter();
        let found = found.zip(std::mem::take(&mut self.next));
        let names = std::mem::take(&mut self.names);
        let regions = names.into_iter().zip(found);
        state.regions = regions
            .map(|(name, (held, units))| match held {
                Some(paged @ RegionBaseline::Paged(_)) => (name, paged),
                _ => (name, RegionBaseline::Compared(units)),
            })
            .collect();
        if cfg!(debug_assertions) {
            state.check_invariants();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Disarm the trackers of this capture before anything is armed again.
        self.held.clear();
        let mut state = self.baseline.lock();
        if state.out == Some(self.step) {
            state.out = None;
        }
    }
}
