//! Describes a global array: which rank stored which elements of it, and from whom a box of it
//! comes. Pure.
//!
//! A list is an array whose first dimension is the ranks' items one after the other, in the order
//! of ranks. Nothing is recorded about that: the positions are added up from all manifests.
//!
//! Invariants:
//! 1. All parts have the same element type and lie in the same global shape.
//! 2. A part is as long as its shape says, and stored whole.
//! 3. Where parts overlap, the copy of the lowest rank counts, and the overlap is reported.
//!
//! Survives: manifests that contradict each other or themselves. Not here: reading
//! (`all_ranks.rs`), geometry (`boxes.rs`).

use super::boxes::{ArrayBox, Runs, Spans, cover};
use orcheck_format::disk::{FLAG_OVERLAP, FLAG_SAME, RegionKind, RegionRecord};
use orcheck_format::{Dtype, Error, Rank, Result, Step, count};

/// A box of the array that one rank stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayPart {
    /// The rank.
    pub rank: Rank,
    /// Its elements.
    pub elements: ArrayBox,
    /// Position of its container in the commit record.
    pub(super) container: usize,
    /// Where it begins in the rank's region.
    pub(super) first_byte: u64,
}

/// From which parts the elements of some boxes come.
#[derive(Debug, Default)]
pub struct ReadPlan {
    /// By part: the part, and the elements that are taken from it for one of the boxes.
    pub(super) taken: Vec<Taken>,
    /// Two ranks whose parts overlap in a box, the lower one first.
    pub overlap: Option<(Rank, Rank)>,
}

/// Elements that a part and a wanted box have in common.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) part: usize,
    pub(super) runs: Runs,
    /// Where the wanted box begins in the target.
    pub(super) to_byte: u64,
}

/// An array that the ranks stored in parts.
#[derive(Debug, Clone)]
pub struct GlobalArray {
    step: Step,
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    is_list: bool,
    may_overlap: bool,
    /// By rank, those of a rank in the order in which they are stored.
    parts: Vec<ArrayPart>,
}

/// A region of a rank that can be a part of an array.
pub(super) struct StoredPart<'r> {
    pub(super) rank: Rank,
    pub(super) container: usize,
    pub(super) region: &'r RegionRecord,
}

impl GlobalArray {
    /// The array that these regions, by rank, are parts of.
    ///
    /// # Errors
    /// Invalid if a rank's region is no part, or if ranks declared different arrays; Corrupt if a
    /// part is not as long as its shape.
    pub(super) fn of(step: Step, name: &str, regions: &[StoredPart<'_>]) -> Result<Self> {
        let mut this = Self {
            step,
            name: name.to_owned(),
            dtype: Dtype::Bytes,
            shape: Vec::new(),
            is_list: false,
            may_overlap: false,
            parts: Vec::new(),
        };
        if let Some(alone) = regions.iter().find(|one| !one.region.is_part()) {
            return Err(this.no_part((alone.rank, alone.region)));
        }
        let mut first: Option<&StoredPart<'_>> = None;
        for one in regions {
            let first = first.get_or_insert(one);
            this.compare(first, one)?;
            this.add(one)?;
        }
        Ok(this)
    }

    fn compare(&self, first: &StoredPart<'_>, one: &StoredPart<'_>) -> Result<()> {
        let told = |one: &StoredPart<'_>| {
            let region = one.region;
            let dtype = region.dtype.name();
            let shape = match (region.is_list(), item(region)) {
                (true, []) => format!("a list of {dtype}"),
                (true, item) => format!("a list of items of {} {dtype}", shown(item)),
                (false, _) => format!("{} of {dtype}", shown(&region.global)),
            };
            format!("{shape} on rank {}", one.rank)
        };
        let key = |one: &StoredPart<'_>| {
            let region = one.region;
            let shape = match region.is_list() {
                true => item(region).to_vec(),
                false => region.global.clone(),
            };
            (region.is_list(), region.dtype, shape)
        };
        if key(first) == key(one) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "array '{}' is {}, and {}",
            self.name,
            told(first),
            told(one)
        ))
        .next("restore the parts one by one, with `orcheck restore --rank --region`"))
    }

    fn add(&mut self, one: &StoredPart<'_>) -> Result<()> {
        let region = one.region;
        let name = self.name.clone();
        let place = || format!("array '{name}', rank {}", one.rank);
        let mut boxes: Vec<(Vec<u64>, &[u64])> = Vec::new();
        if region.is_list() {
            let before = self.shape.first().copied().unwrap_or(0);
            let items = region.local.first().copied().unwrap_or(0);
            let total = before
                .checked_add(items)
                .ok_or_else(|| Error::corrupt("a list of more than 2^64 items").at(place()))?;
            self.shape = region.local.clone();
            if let Some(first) = self.shape.first_mut() {
                *first = total;
            }
            let mut offset = vec![0; region.local.len()];
            if let Some(first) = offset.first_mut() {
                *first = before;
            }
            boxes.push((offset, &region.local));
        } else {
            self.shape.clone_from(&region.global);
            match region.kind {
                RegionKind::Boxes => {
                    let each = region.boxes.iter();
                    boxes.extend(each.map(|one| (one.offset.clone(), &one.local[..])));
                }
                _ => boxes.push((region.offset.clone(), &region.local)),
            }
        }
        (self.dtype, self.is_list) = (region.dtype, region.is_list());
        self.may_overlap |= region.flags & FLAG_OVERLAP != 0;
        let mut len_bytes = 0u64;
        for (offset, local) in boxes {
            let elements = ArrayBox::new(&offset, local).map_err(|error| error.at(place()))?;
            let bytes = elements.elements().checked_mul(self.dtype.size_bytes());
            let end = bytes.and_then(|bytes| len_bytes.checked_add(bytes));
            let Some(end) = end.filter(|end| *end <= region.len_bytes) else {
                return Err(wrong_length(region, local).at(place()));
            };
            // The rank that stores them has the same elements.
            if region.same_as.is_none() {
                self.parts.push(ArrayPart {
                    rank: one.rank,
                    elements,
                    container: one.container,
                    first_byte: len_bytes,
                });
            }
            len_bytes = end;
        }
        // Breaks if: the boxes are believed; what is missing of the bytes would be zeros.
        match len_bytes == region.len_bytes {
            true => Ok(()),
            false => Err(wrong_length(region, &region.local).at(place())),
        }
    }

    fn no_part(&self, (rank, region): (Rank, &RegionRecord)) -> Error {
        if region.flags & FLAG_SAME != 0 {
            return Error::invalid(format!(
                "region '{}' is the same on all ranks, and no global array",
                self.name
            ))
            .next("restore it of any rank, with --rank and --region");
        }
        Error::invalid(format!(
            "region '{}' of rank {rank} belongs to this rank alone: it is no part of a global array",
            self.name
        ))
        .next("restore it with --rank and --region, or declare global shapes in orc_protect_array")
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape, in C order.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Whether it is a list: the first dimension counts the items of all ranks.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// Whether a rank declared that parts overlap.
    #[must_use]
    pub fn may_overlap(&self) -> bool {
        self.may_overlap
    }

    /// The parts, by rank.
    #[must_use]
    pub fn parts(&self) -> &[ArrayPart] {
        &self.parts
    }

    /// From which parts the elements of some boxes come, which lie one after the other in the
    /// target, each packed in C order.
    ///
    /// # Errors
    /// NotFound, naming a box, if no rank stored it.
    pub fn plan(&self, windows: &[ArrayBox]) -> Result<ReadPlan> {
        let mut plan = ReadPlan::default();
        let mut to_byte = 0;
        let mut spans = Spans::default();
        for (number, part) in self.parts.iter().enumerate() {
            spans.add(number, &part.elements);
        }
        for window in windows {
            let mut near = spans.near(window);
            near.sort_unstable();
            let boxes = near.iter().filter_map(|part| self.parts.get(*part));
            let cover = cover(boxes.map(|part| &part.elements), window);
            if let Some(missing) = &cover.missing {
                return Err(self.nobody_stored(missing));
            }
            let number = |found: usize| near.get(found).copied();
            let rank = |found: usize| Some(self.parts.get(number(found)?)?.rank);
            let overlap = cover.overlap.and_then(|(a, b)| Some((rank(a)?, rank(b)?)));
            plan.overlap = plan.overlap.or(overlap);
            for (found, common) in &cover.taken {
                let number = number(*found);
                let part = number.and_then(|number| Some((number, self.parts.get(number)?)));
                if let Some((number, part)) = part {
                    plan.taken.push(Taken {
                        part: number,
                        runs: Runs::of(common, &part.elements, window),
                        to_byte,
                    });
                }
            }
            to_byte += window.elements() * self.dtype.size_bytes();
        }
        plan.taken.sort_by_key(|taken| taken.part);
        Ok(plan)
    }

    fn nobody_stored(&self, missing: &ArrayBox) -> Error {
        Error::not_found(format!(
            "no rank stored elements {missing} of array '{}', which has shape {}: step {} holds {} of it",
            self.name,
            shown(&self.shape),
            self.step,
            count(self.parts.len() as u64, "part")
        ))
    }
}

fn wrong_length(region: &RegionRecord, local: &[u64]) -> Error {
    Error::corrupt(format!(
        "a part of shape {} in {} bytes",
        shown(local),
        region.len_bytes
    ))
    .next("use an older step")
}

/// The shape of a list's items.
fn item(region: &RegionRecord) -> &[u64] {
    region.local.get(1..).unwrap_or_default()
}

pub(super) fn shown(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "one element".to_owned();
    }
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    lengths.join(" x ")
}
