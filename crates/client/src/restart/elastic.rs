//! Decides what each rank reads of the found checkpoint: what it stored itself, or, in a run with
//! another number of ranks or another decomposition, its part of what all ranks stored.
//!
//! How: parts of global arrays say which elements they are. The items of a list are numbered in the
//! order of ranks, those that were stored and those that are protected now: the ranks tell each
//! other how many they have.
//!
//! Invariants:
//! 1. A region of another rank is never taken for this rank's.
//! 2. Every item of a list goes to exactly one rank, in order, or nothing is read.
//! 3. A region that cannot be redistributed is named, with the call that would allow it.
//!
//! Not here: reading (`engine::restart`), which checkpoint (`resume.rs`).

use crate::collective::{agree_min, bcast_bytes, number, rows};
use crate::memory_files::{self, stored_file};
use crate::regions::{Deal, MOST_LISTS, OPTIONAL, OVERLAP, Region, Stored, Target, wrong_total};
use crate::session::Session;
use orcheck_engine::restart::{ArrayBox, Destination, Elastic, GlobalArray, RankView};
use orcheck_format::disk::{RegionKind, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Rank, Result, count};
use orcheck_io::memory::{Span, fill_span};
use std::collections::BTreeMap;
use std::ops::Range;

/// Names of at most this many regions are listed in a message.
const MOST_NAMED: usize = 20;

/// What a rank reads of a region.
pub(super) enum Reading {
    /// What it stored itself.
    Own,
    /// Boxes of a global array, or items of a list; two ranks that stored some of the elements.
    Boxes(Vec<ArrayBox>, Option<(Rank, Rank)>),
    /// All of a region that is the same on all ranks.
    Same,
    /// Nothing: it is optional and was not stored.
    Nothing,
}

/// Why a region cannot be read.
pub(super) enum Unfit {
    /// It does not fit, or is not there.
    Wrong(Error),
    /// It belongs to each rank alone, and another number of ranks stored it.
    Alone(RegionKind),
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

impl Session {
    /// Learns how many items of each list each rank stored, after all ranks opened a checkpoint.
    /// Collective.
    ///
    /// # Errors
    /// Corrupt if the ranks found records that contradict each other.
    pub(super) fn learn_lists(&mut self) -> Result<()> {
        self.resume.lists.stored.clear();
        let world_size = self.link.layout.world_size();
        let known = self.found("find").and_then(|(candidate, view)| {
            let mine = items_of(view.regions().iter().filter(|region| region.is_list()));
            match mine.len() > MOST_LISTS {
                true => Err(Error::unsupported(format!(
                    "step {} has {} lists; this version restarts from {MOST_LISTS} at most",
                    candidate.step,
                    mine.len()
                ))),
                false => Ok((view.written_by(), mine)),
            }
        });
        let ranks = known.as_ref().map_or(0, |(ranks, _)| i64::from(*ranks));
        let mut words = [ranks, !ranks];
        let (written_by, mine) = agree_min(self.collective.as_mut(), known, &mut words)?;
        // Breaks if: it is not asked; some ranks would wait in a collective call for the others.
        if words[0] != !words[1] {
            return Err(Error::corrupt(
                "the ranks found commit records that name different numbers of ranks",
            )
            .next("run `orcheck verify`"));
        }
        // Of another number of ranks, each rank has opened everything.
        if written_by == world_size {
            self.resume.lists.stored = self.exchange(&mine)?;
        }
        Ok(())
    }

    /// Learns how many items of each list each rank has room for. Collective.
    pub(super) fn deal_lists(&mut self) -> Result<()> {
        let lists = self.memory.regions.iter();
        let lists = lists.filter(|(_, region)| region.is_list());
        let mine = lists
            .filter_map(|(name, region)| Some((name.clone(), *region.shape.0.first()?)))
            .collect();
        self.resume.lists.wanted = self.exchange(&mine)?;
        Ok(())
    }

    /// The lists that rank 0 has, from what each rank has of them. Collective.
    fn exchange(&mut self, mine: &BTreeMap<String, u64>) -> Result<BTreeMap<String, Deal>> {
        // Names have no control characters.
        let names: Vec<&str> = mine.keys().map(String::as_str).collect();
        let names = names.join("\n").into_bytes();
        let names = bcast_bytes(self.collective.as_mut(), names, 0)?;
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let names = String::from_utf8_lossy(&names).into_owned();
        let names: Vec<&str> = names.split('\n').collect();
        let (ranks, row_bytes) = (self.link.layout.world_size() as usize, names.len() * 8);
        // 0 is for a rank that does not have it.
        let word = |name: &&str| mine.get(*name).map_or(0, |items| items.saturating_add(1));
        let row: Vec<u8> = names
            .iter()
            .flat_map(|name| word(name).to_le_bytes())
            .collect();
        let own = Some((self.rank.0 as usize, &row[..]));
        let table = rows(self.collective.as_mut(), (ranks, row_bytes), own)?;
        let deal = |at: usize| {
            let cells = table.chunks_exact(row_bytes);
            let words = cells.map(|row| row.get(at * 8..at * 8 + 8).map_or(0, number));
            Deal::of(self.rank.0, words.map(|word| word.checked_sub(1)))
        };
        let each = names.iter().enumerate();
        Ok(each
            .map(|(at, name)| ((*name).to_owned(), deal(at)))
            .collect())
    }

    fn same_ranks(&self) -> bool {
        let found = self.resume.found.as_ref();
        found.is_some_and(|(_, view)| view.written_by() == self.link.layout.world_size())
    }

    /// How a region is stored in the found checkpoint, for this rank. Written by another number of
    /// ranks: an even share of a global array or list along its first dimension. Local.
    ///
    /// # Errors
    /// Invalid before `find`; NotFound, listing the existing regions; Unsupported if it belongs to
    /// each rank alone, and another number of ranks stored it.
    pub fn stored(&self, name: &str) -> Result<Stored> {
        let (_, view) = self.found("stored")?;
        if let Some(region) = view.region(name) {
            let mut stored = Stored::of(region);
            if let Some(deal) = self.resume.lists.stored.get(name) {
                stored.global.clone_from(&stored.local);
                stored.offset = vec![0; stored.local.len()];
                stored.global[0] = deal.total;
                stored.offset[0] = deal.first;
            }
            return Ok(stored);
        }
        match view.elastic(name).filter(|_| !self.same_ranks()) {
            None => Err(self.not_stored(name)),
            Some(elastic) => match elastic? {
                Elastic::Array(array) => {
                    Stored::share(&array, self.rank, self.link.layout.world_size())
                }
                Elastic::Same(region) => Ok(Stored::of(&region)),
                Elastic::Alone(one) => Err(self.of_other_ranks(&[(name.to_owned(), one.kind)])?),
            },
        }
    }

    /// What this rank reads of a region.
    pub(super) fn reading(
        &mut self,
        name: &str,
        region: &Region,
    ) -> std::result::Result<Reading, Unfit> {
        let same_ranks = self.same_ranks();
        // Mistakes of the program come first: they are no damage.
        let deal = match region.is_list() {
            true => Some(self.resume.lists.wanted(name)?),
            false => None,
        };
        let stored_deal = self.resume.lists.stored.get(name).copied();
        if let (Some(stored), Some(wanted)) = (stored_deal, deal) {
            check_total(name, stored.total, wanted.total)?;
        }
        let Some((_, view)) = &mut self.resume.found else {
            return Err(Error::internal("no checkpoint is open").into());
        };
        if let Some(stored) = view.region(name) {
            let moved = match (stored_deal, deal) {
                (Some(before), Some(now)) => region.is_other_deal(stored, before.first, now.first),
                _ => region.is_other_part(stored),
            };
            // What has not moved goes back to the rank that stored it.
            if !moved {
                region.check_fits(name, stored)?;
                return Ok(Reading::Own);
            }
        } else if same_ranks && !region.may_move() {
            return absent(name, region);
        }
        if same_ranks {
            view.open_all()?;
        }
        let written_by = count(view.written_by().into(), "rank");
        let contradictory = |error: Error| {
            match error.kind() {
            ErrorKind::Invalid => Error::invalid(error.what()).next(format!(
                "restart with {written_by} in the same parts; protect it in the same way on all ranks before the next checkpoint"
            )),
            _ => error,
        }
        };
        match view.elastic(name) {
            None => absent(name, region),
            Some(elastic) => match elastic.map_err(contradictory)? {
                Elastic::Array(array) => read_boxes_of(&array, name, region, deal),
                Elastic::Same(stored) => {
                    region.check_fits(name, &stored)?;
                    match region.target {
                        Target::Memory(_) => Ok(Reading::Same),
                        _ => Err(Error::invalid(format!(
                            "region '{name}' is the same on all ranks in the checkpoint, so it must be contiguous in the program"
                        ))
                        .into()),
                    }
                }
                Elastic::Alone(_) if same_ranks => absent(name, region),
                Elastic::Alone(one) => Err(Unfit::Alone(one.kind)),
            },
        }
    }

    /// Makes room for the memory files of the found checkpoint, unless `only` one region is read.
    ///
    /// # Errors
    /// Unsupported if another number of ranks stored them; Invalid, NoSpace.
    pub(super) fn adopt_memory_files(&mut self, only: Option<&str>) -> Result<()> {
        if only.is_some() {
            return Ok(());
        }
        let same_ranks = self.same_ranks();
        let (_, view) = self.found("restart")?;
        if same_ranks {
            let stored: Vec<_> = view.regions().iter().filter_map(stored_file).collect();
            return memory_files::adopt(self, &stored);
        }
        let mut alone = Vec::new();
        for name in view.region_names() {
            if let Some(Ok(Elastic::Alone(one))) = view.elastic(&name)
                && stored_file(&one).is_some()
                && self.memory.regions.get(&name).is_err()
            {
                alone.push((name, one.kind));
            }
        }
        match alone.is_empty() {
            true => memory_files::adopt(self, &[]),
            // Breaks if: it passes; what the program wrote would be missing without a word.
            false => Err(self.of_other_ranks(&alone)?),
        }
    }

    /// The error that regions belong to each rank alone, and another number of ranks stored them.
    pub(super) fn of_other_ranks(&self, alone: &[(String, RegionKind)]) -> Result<Error> {
        let (candidate, view) = self.found("restart")?;
        let ranks = count(view.written_by().into(), "rank");
        let of = |kinds: &[RegionKind]| -> Vec<&str> {
            let named = alone.iter().filter(|(_, kind)| kinds.contains(kind));
            named.map(|(name, _)| name.as_str()).collect()
        };
        let (mut why, mut how) = (Vec::new(), Vec::new());
        for (kinds, what, call) in [
            (
                &[RegionKind::Bytes, RegionKind::Array, RegionKind::Boxes][..],
                "each rank's own",
                "declare them as parts of global arrays (orc_protect_array, orc_protect_boxes), as lists (orc_protect_list) or with ORC_SAME",
            ),
            (
                &[RegionKind::Codec],
                "packed by each rank on its own",
                "protect the contents as arrays or lists instead",
            ),
            (
                &[RegionKind::File],
                "files of each rank",
                "protect what is in the files as arrays or lists instead",
            ),
        ] {
            let named = of(kinds);
            if named.is_empty() {
                continue;
            }
            let more = match named.len().saturating_sub(MOST_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = named.iter().take(MOST_NAMED).copied();
            let named: Vec<&str> = named.collect();
            why.push(format!("{}{more} ({what})", named.join(", ")));
            how.push(call);
        }
        Ok(Error::unsupported(format!(
            "step {} was written by {ranks}, this run has {}, and these regions cannot be redistributed: {}",
            candidate.step,
            self.link.layout.world_size(),
            why.join("; ")
        ))
        .next(format!(
            "restart with {ranks}; for any number of ranks, {}",
            how.join("; ")
        )))
    }
}

fn absent(name: &str, region: &Region) -> std::result::Result<Reading, Unfit> {
    match region.flags & OPTIONAL != 0 {
        true => Ok(Reading::Nothing),
        false => Err(Error::invalid(format!("region '{name}' is not in the checkpoint")).into()),
    }
}

fn check_total(name: &str, stored: u64, wanted: u64) -> Result<()> {
    // Breaks if: it is not compared; items of the list would be lost.
    match wanted == stored || off(Switch::ListTotal) {
        true => Ok(()),
        false => Err(wrong_total(name, stored, wanted)),
    }
}

/// The boxes that a region holds, if the array has exactly one copy of each element that counts.
fn read_boxes_of(
    array: &GlobalArray,
    name: &str,
    region: &Region,
    deal: Option<Deal>,
) -> std::result::Result<Reading, Unfit> {
    region.check_fits_array(name, array)?;
    let mut first = 0;
    if let Some(deal) = deal {
        let total = array.shape().first().copied().unwrap_or(0);
        check_total(name, total, deal.total)?;
        first = deal.first;
    }
    let windows = region.windows(first)?;
    // It is no damage: no other copy or older step is asked for.
    let plan = array.plan(&windows).map_err(|error| {
        Error::invalid(error.what()).next(
            "protect elements that some rank stored (`orcheck show` lists the parts), or restart as the step was written",
        )
    })?;
    let may_overlap = region.flags & OVERLAP != 0 || array.may_overlap();
    if let Some((lower, higher)) = plan.overlap
        && !(may_overlap || off(Switch::PartsOverlap))
    {
        // Breaks if: one of them is taken all the same; ranks that disagree about an element would
        // not be noticed.
        let who = match lower == higher {
            true => format!("rank {lower} stored some of its elements twice"),
            false => format!("ranks {lower} and {higher} both stored some of its elements"),
        };
        return Err(Error::invalid(format!("array '{name}': {who}"))
            .next("leave halos out (stride); only if all copies were equal at the checkpoint, flag the array ORC_OVERLAP: the lowest rank's copy then counts")
            .into());
    }
    Ok(Reading::Boxes(windows, plan.overlap))
}

/// Items of lists, by name.
fn items_of<'r>(regions: impl Iterator<Item = &'r RegionRecord>) -> BTreeMap<String, u64> {
    let items = |region: &RegionRecord| Some((region.name.clone(), *region.local.first()?));
    regions.filter_map(items).collect()
}

/// Reads what `reading` says into a region.
pub(super) fn read_part(
    view: &mut RankView,
    (name, region): (&str, &Region),
    reading: &Reading,
) -> Result<()> {
    match (reading, &region.target) {
        (Reading::Nothing, _) => Ok(()),
        (Reading::Same, Target::Memory(span)) => view.read_same(name, *span),
        (Reading::Boxes(windows, _), _) => view.read_boxes(name, windows, &mut InPlace(region)),
        (Reading::Own, Target::Memory(span)) => view.read(name, *span),
        (Reading::Own | Reading::Same, _) => view.stream(name, &mut |at, bytes| {
            let of_region = |error: Error| error.at(format!("region '{name}'"));
            region.take_back(at, bytes, None).map_err(of_region)
        }),
    }
}

/// Verifies what `reading` says, and keeps nothing of it.
pub(super) fn prove_part(view: &mut RankView, name: &str, reading: &Reading) -> Result<()> {
    match reading {
        Reading::Nothing => Ok(()),
        Reading::Same => view.prove_same(name),
        Reading::Boxes(windows, _) => view.read_boxes(name, windows, &mut Nowhere),
        Reading::Own => view.prove(name),
    }
}

/// Takes bytes and drops them.
struct Nowhere;

impl Destination for Nowhere {
    fn memory(&mut self, _bytes: Range<u64>) -> Option<Span> {
        None
    }

    fn put(&mut self, _at: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A region, as the packed boxes that it holds.
struct InPlace<'r>(&'r Region);

impl Destination for InPlace<'_> {
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span> {
        match &self.0.target {
            Target::Memory(span) => {
                let (at, len) = (bytes.start as usize, (bytes.end - bytes.start) as usize);
                Some(span.sub(at, len))
            }
            Target::Boxes(boxes) => boxes.memory(bytes),
            _ => None,
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        match &self.0.target {
            Target::Memory(span) => {
                fill_span(span.sub(at as usize, bytes.len()), bytes);
                Ok(())
            }
            _ => self.0.take_back(at, bytes, None),
        }
    }
}
