//! Random layouts against a plain reference, with parts that lie in memory.
//!
//! Not here: containers, damage (`tests/reading`), ranks and levels (`tests/jobs`).

use super::*;
use crate::restart::boxes::ArrayBox;
use orcheck_format::Dtype;
use orcheck_format::disk::{BoxRecord, FLAG_LIST, FLAG_OVERLAP, RegionKind};
use proptest::prelude::*;

/// Random numbers that depend on the seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit.max(1)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

type Part = (Vec<u64>, Vec<u64>);

/// Cuts an array for some ranks: in a regular grid, or anyhow; parts may be empty.
fn cut(global: &[u64], ranks: u64, random: &mut Random) -> Vec<Part> {
    fn halve((offset, local): Part, ranks: u64, random: &mut Random, parts: &mut Vec<Part>) {
        if ranks == 1 {
            parts.push((offset, local));
            return;
        }
        let left = 1 + random.below(ranks - 1);
        let dim = random.below(local.len() as u64) as usize;
        let at = random.below(local[dim] + 1);
        let (mut first, mut second) = ((offset.clone(), local.clone()), (offset, local));
        first.1[dim] = at;
        second.0[dim] += at;
        second.1[dim] -= at;
        halve(first, left, random, parts);
        halve(second, ranks - left, random, parts);
    }
    let mut parts = Vec::new();
    let whole = (vec![0; global.len()], global.to_vec());
    if random.below(2) == 0 {
        halve(whole, ranks, random, &mut parts);
        return parts;
    }
    // Blocks of equal length along one dimension; the last ones may be short or empty.
    let dim = random.below(global.len() as u64) as usize;
    let block = global[dim].div_ceil(ranks);
    for rank in 0..ranks {
        let (mut offset, mut local) = whole.clone();
        let first = (rank * block).min(global[dim]);
        offset[dim] = first;
        local[dim] = block.min(global[dim] - first);
        parts.push((offset, local));
    }
    parts
}

/// Deals blocks along one dimension in turn: each rank has several boxes, in any order, or none.
fn deal(global: &[u64], ranks: u64, random: &mut Random) -> Vec<Vec<Part>> {
    let dim = random.below(global.len() as u64) as usize;
    let block = 1 + random.below(3);
    let mut parts = vec![Vec::new(); ranks as usize];
    for (number, first) in (0..global[dim]).step_by(block as usize).enumerate() {
        let (mut offset, mut local) = (vec![0; global.len()], global.to_vec());
        offset[dim] = first;
        local[dim] = block.min(global[dim] - first);
        let mine: &mut Vec<Part> = &mut parts[number % ranks as usize];
        mine.insert(
            random.below(mine.len() as u64 + 1) as usize,
            (offset, local),
        );
    }
    parts
}

/// One box for each rank, or several.
fn any_cut(global: &[u64], ranks: u64, ghosts: bool, random: &mut Random) -> Vec<Vec<Part>> {
    if random.below(3) == 0 && !ghosts {
        return deal(global, ranks, random);
    }
    let mut parts = cut(global, ranks, random);
    if ghosts {
        with_ghosts(global, &mut parts);
    }
    parts.into_iter().map(|part| vec![part]).collect()
}

fn boxes(parts: &[Part]) -> Vec<ArrayBox> {
    let each = parts.iter();
    each.map(|(offset, local)| ArrayBox::new(offset, local).unwrap())
        .collect()
}

/// Makes parts larger by elements of their neighbours.
fn with_ghosts(global: &[u64], parts: &mut [Part]) {
    for (offset, local) in parts {
        for dim in 0..global.len() {
            if local.contains(&0) {
                continue;
            }
            let end = (offset[dim] + local[dim] + 1).min(global[dim]);
            offset[dim] = offset[dim].saturating_sub(1);
            local[dim] = end - offset[dim];
        }
    }
}

fn shape(random: &mut Random) -> Vec<u64> {
    let dims = 1 + random.below(8) as usize;
    let longest = [1500, 40, 12, 7, 5, 4, 3, 3][dims - 1];
    (0..dims)
        .map(|_| {
            let zero = random.below(60) == 0;
            if zero { 0 } else { 1 + random.below(longest) }
        })
        .collect()
}

/// Bytes of an element: its number, and who stored it.
fn element(number: u64, rank: u64, size_bytes: usize) -> Vec<u8> {
    let word = (number << 8 | rank).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let both = [word.to_le_bytes(), (!word).to_le_bytes()].concat();
    both[..size_bytes].to_vec()
}

fn number(global: &[u64], at: &[u64]) -> u64 {
    let each = global.iter().zip(at);
    each.fold(0, |number, (len, at)| number * len + at)
}

fn holds((offset, local): &Part, at: &[u64]) -> bool {
    (0..at.len()).all(|dim| (offset[dim]..offset[dim] + local[dim]).contains(&at[dim]))
}

/// Memory that a box is read into: all of it is contiguous, or nothing.
struct Memory {
    bytes: Vec<u8>,
    contiguous: bool,
}

impl Destination for Memory {
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span> {
        let range = bytes.start as usize..bytes.end as usize;
        self.contiguous
            .then(|| Span::from_mut(&mut self.bytes[range]))
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Reads boxes of parts that are in memory, as `AllRanks::read` does with containers.
fn read(
    array: &GlobalArray,
    windows: &[ArrayBox],
    stored: &[Vec<u8>],
    extent_bytes: u64,
    contiguous: bool,
) -> Vec<u8> {
    let size_bytes = array.dtype().size_bytes();
    let elements: u64 = windows.iter().map(ArrayBox::elements).sum();
    let mut memory = Memory {
        bytes: vec![0xee; (elements * size_bytes) as usize],
        contiguous,
    };
    let plan = array.plan(windows).unwrap();
    let mut pieces = RankPieces::new(array, &plan, &mut memory);
    while let Some((part, mut pieces)) = pieces.next().unwrap() {
        let bytes = &stored[part.rank.0 as usize];
        for (extent, found) in bytes.chunks(extent_bytes as usize).enumerate() {
            let start = extent as u64 * extent_bytes;
            let range = start..start + found.len() as u64;
            if !pieces.wants(range.clone()) {
                continue;
            }
            match pieces.memory(range) {
                Some(span) => orcheck_io::memory::fill_span(span, found),
                None => pieces.put(start, found).unwrap(),
            }
        }
    }
    memory.bytes
}

fn record(local: &[u64], dtype: Dtype, flags: u32) -> RegionRecord {
    RegionRecord {
        name: "field".into(),
        kind: RegionKind::Array,
        dtype,
        flags,
        len_bytes: local.iter().product::<u64>() * dtype.size_bytes(),
        local: local.to_vec(),
        global: Vec::new(),
        offset: Vec::new(),
        boxes: Vec::new(),
        same_as: None,
        extents: Vec::new(),
    }
}

fn array_of(records: &[RegionRecord]) -> GlobalArray {
    let candidates: Vec<StoredPart<'_>> = (records.iter().enumerate())
        .map(|(rank, region)| StoredPart {
            rank: Rank(rank as u32),
            container: 0,
            region,
        })
        .collect();
    GlobalArray::of(Step(1), "field", &candidates).unwrap()
}

fn any_array(random: &mut Random) {
    let global = shape(random);
    let dtype = random.one_of(&[Dtype::U8, Dtype::I16, Dtype::F32, Dtype::F64, Dtype::C128]);
    let size_bytes = dtype.size_bytes() as usize;
    let (writers, readers) = (1 + random.below(64), 1 + random.below(64));
    let ghosts = random.below(3) == 0;
    let parts = any_cut(&global, writers, ghosts, random);
    let flags = if ghosts { FLAG_OVERLAP } else { 0 };
    let records = records(&global, &parts, dtype, flags);
    let stored: Vec<Vec<u8>> = (parts.iter().enumerate())
        .map(|(rank, parts)| {
            let bytes = |at: Vec<u64>| element(number(&global, &at), rank as u64, size_bytes);
            coordinates(&boxes(parts)).flat_map(bytes).collect()
        })
        .collect();
    let array = array_of(&records);
    assert_eq!(array.shape(), global);
    let extent_bytes = random.one_of(&[5, 64, 1000, 1 << 20]);
    let ghosts_wanted = random.below(3) == 0;
    for mut wanted in any_cut(&global, readers, ghosts_wanted, random) {
        // Patches with ghost layers: boxes of one rank that have elements in common.
        if random.below(4) == 0 {
            wanted.extend(wanted.clone());
            with_ghosts(&global, &mut wanted);
        }
        let windows = boxes(&wanted);
        let lowest = |at: Vec<u64>| {
            let has = |parts: &Vec<Part>| parts.iter().any(|part| holds(part, &at));
            let rank = parts.iter().position(has).unwrap();
            element(number(&global, &at), rank as u64, size_bytes)
        };
        let expected: Vec<u8> = coordinates(&windows).flat_map(lowest).collect();
        let contiguous = random.below(2) == 0;
        let found = read(&array, &windows, &stored, extent_bytes, contiguous);
        assert!(found == expected, "{parts:?} -> {wanted:?} of {global:?}");
        assert!(ghosts || array.plan(&windows).unwrap().overlap.is_none());
    }
}

/// Where the elements of boxes are, box after box.
fn coordinates(boxes: &[ArrayBox]) -> impl Iterator<Item = Vec<u64>> + '_ {
    let each = boxes.iter();
    each.flat_map(|one| (0..one.elements()).map(|element| one.coordinates(element)))
}

/// What ranks store that have these boxes: a box each, or any number.
fn records(global: &[u64], parts: &[Vec<Part>], dtype: Dtype, flags: u32) -> Vec<RegionRecord> {
    let several = parts.iter().any(|parts| parts.len() != 1);
    let of_rank = |parts: &Vec<Part>| match &parts[..] {
        [(offset, local)] if !several => RegionRecord {
            global: global.to_vec(),
            offset: offset.clone(),
            ..record(local, dtype, flags)
        },
        _ => RegionRecord {
            kind: RegionKind::Boxes,
            global: global.to_vec(),
            local: Vec::new(),
            boxes: (parts.iter().cloned())
                .map(|(offset, local)| BoxRecord { offset, local })
                .collect(),
            ..record(&[coordinates(&boxes(parts)).count() as u64], dtype, flags)
        },
    };
    parts.iter().map(of_rank).collect()
}

fn any_list(random: &mut Random) {
    let item: Vec<u64> = (0..random.below(3)).map(|_| 1 + random.below(4)).collect();
    let (writers, readers) = (1 + random.below(64), 1 + random.below(64));
    let longest = random.one_of(&[1, 3, 40]);
    let items: Vec<u64> = (0..writers).map(|_| random.below(longest)).collect();
    let records: Vec<RegionRecord> = (items.iter())
        .map(|items| record(&[&[*items][..], &item].concat(), Dtype::I32, FLAG_LIST))
        .collect();
    let per_item = item.iter().product::<u64>();
    let total: u64 = items.iter().sum();
    let all: Vec<u8> = (0..total * per_item)
        .flat_map(|number| element(number, 0, 4))
        .collect();
    let mut rest = &all[..];
    let stored: Vec<Vec<u8>> = (items.iter())
        .map(|items| {
            let (mine, after) = rest.split_at((items * per_item * 4) as usize);
            rest = after;
            mine.to_vec()
        })
        .collect();
    let array = array_of(&records);
    assert!(array.is_list());
    assert_eq!(array.shape(), [&[total][..], &item].concat());
    let extent_bytes = random.one_of(&[7, 64, 1 << 20]);
    let mut found = Vec::new();
    let mut first = 0;
    for reader in 0..readers {
        let mine = match reader + 1 == readers {
            true => total - first,
            false => random.below(total - first + 1),
        };
        let mut offset = vec![0; item.len() + 1];
        offset[0] = first;
        let window = ArrayBox::new(&offset, &[&[mine][..], &item].concat()).unwrap();
        found.extend(read(
            &array,
            &[window],
            &stored,
            extent_bytes,
            reader % 2 == 0,
        ));
        first += mine;
    }
    assert!(found == all, "{items:?} of {item:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    // Breaks if: an element is left out, taken twice, from another place or from the wrong rank.
    #[test]
    fn any_layout_is_read_in_any_other_layout(seed: u64) {
        let mut random = Random(seed);
        match random.below(5) {
            0 => any_list(&mut random),
            _ => any_array(&mut random),
        }
    }
}
