//! Tests global arrays that are put together from the parts of all ranks.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use orcheck_engine::restart::reader::Reader;
use orcheck_engine::restart::{AllRanks, ArrayBox, Destination, Unread};
use orcheck_fixtures::reading::{ArraySpec, Scratch, Spec, Written, flip, open_places, write};
use orcheck_format::{Error, ErrorKind, Rank};
use orcheck_io::memory::Span;
use proptest::prelude::*;

/// An array that is cut along each dimension into segments of these lengths; every block belongs to
/// a rank, and reaches `ghosts` elements into its neighbours.
fn cut_into(segments: &[Vec<u64>], ghosts: u64, extent_bytes: usize) -> ArraySpec {
    let global: Vec<u64> = segments.iter().map(|lens| lens.iter().sum()).collect();
    let blocks: usize = segments.iter().map(Vec::len).product();
    let part = |mut block: usize| {
        let mut offset = vec![0; segments.len()];
        let mut local = offset.clone();
        for dim in (0..segments.len()).rev() {
            let lens = &segments[dim];
            let (number, len) = (block % lens.len(), lens[block % lens.len()]);
            block /= lens.len();
            let first: u64 = lens[..number].iter().sum();
            let (from, end) = match len {
                0 => (first, first),
                len => (
                    first.saturating_sub(ghosts),
                    (first + len + ghosts).min(global[dim]),
                ),
            };
            (offset[dim], local[dim]) = (from, end - from);
        }
        (offset, local)
    };
    ArraySpec {
        name: "field".into(),
        parts: (0..blocks).map(part).collect(),
        global,
        cut: extent_bytes,
    }
}

fn write_array(scratch: &Scratch, array: &ArraySpec, nodes: usize) -> (Written, [PathBuf; 2]) {
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    let mut spec = Spec::new(10, 1);
    let ranks: Vec<u32> = (0..array.parts.len() as u32).collect();
    spec.nodes = (ranks.chunks(ranks.len().div_ceil(nodes)))
        .map(<[u32]>::to_vec)
        .collect();
    spec.arrays = vec![array.clone()];
    (write(&dirs, &spec), dirs)
}

/// What a plain program would find in this box.
fn expected(array: &ArraySpec, window: &ArrayBox) -> Vec<u8> {
    let element = |number| {
        let at = window.coordinates(number);
        let holds = |(offset, local): &(Vec<u64>, Vec<u64>)| {
            (0..at.len()).all(|dim| (offset[dim]..offset[dim] + local[dim]).contains(&at[dim]))
        };
        let rank = array.parts.iter().position(holds).unwrap() as u64;
        let places = at.iter().zip(&array.global);
        let element = places.fold(0, |element, (at, len)| element * len + at);
        (rank << 40 | element).to_le_bytes()
    };
    (0..window.elements()).flat_map(element).collect()
}

struct Window(Vec<u8>);

impl Destination for Window {
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span> {
        Some(Span::from_mut(
            &mut self.0[bytes.start as usize..bytes.end as usize],
        ))
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// The bytes of a window, and ranks that overlap in it.
type Read = (Vec<u8>, Option<(Rank, Rank)>);

fn read(written: &Written, dirs: &[PathBuf], window: &ArrayBox) -> Result<Read, Unread> {
    let places = open_places(dirs);
    let record = &written.record;
    let open = |container: &_| Reader::open(&places, record, container);
    let mut all = AllRanks::find(record, Arc::new(open))?;
    let array = all.array("field")?;
    let plan = array.plan(std::slice::from_ref(window))?;
    let mut found = Window(vec![0; window.elements() as usize * 8]);
    all.read(&array, &plan, &mut found, &mut |_| ())?;
    Ok((found.0, plan.overlap))
}

fn layouts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let segments = |most| proptest::collection::vec(0u64..5, 1..=most);
    prop_oneof![
        proptest::collection::vec(segments(12), 1),
        proptest::collection::vec(segments(4), 2),
        proptest::collection::vec(segments(3), 3),
        proptest::collection::vec(segments(2), 4..=5),
        proptest::collection::vec(proptest::collection::vec(1u64..3, 1..=1), 6..=8),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // Breaks if: a run, an extent or a part is left out, taken twice or put elsewhere.
    #[test]
    fn any_box_of_any_layout_is_what_the_ranks_stored(
        segments in layouts(),
        ghosts in prop_oneof![3 => Just(0u64), 1 => 1u64..3],
        extent_bytes in prop_oneof![Just(8usize), Just(40), Just(1000)],
        nodes in 1usize..4,
        corners in proptest::collection::vec((0u64..100, 0u64..100), 8),
    ) {
        let array = cut_into(&segments, ghosts, extent_bytes);
        let of_dim = |(&len, &(a, b)): (&u64, &(u64, u64))| {
            let (a, b) = (a % (len + 1), b % (len + 1));
            (a.min(b), a.abs_diff(b))
        };
        let (offset, shape): (Vec<u64>, Vec<u64>) =
            array.global.iter().zip(&corners).map(of_dim).unzip();
        let window = ArrayBox::new(&offset, &shape).unwrap();
        let scratch = Scratch::new();
        let (written, dirs) = write_array(&scratch, &array, nodes);
        let (bytes, overlap) = read(&written, &dirs, &window).unwrap();
        prop_assert_eq!(bytes, expected(&array, &window));
        prop_assert!(ghosts > 0 || overlap.is_none());
    }
}

#[test]
fn what_nobody_stored_is_named() {
    let mut array = cut_into(&[vec![4, 4], vec![5, 3]], 0, 1000);
    array.parts[3] = (vec![5, 5], vec![3, 3]);
    let scratch = Scratch::new();
    let (written, dirs) = write_array(&scratch, &array, 2);
    let whole = ArrayBox::whole(&[8, 8]).unwrap();
    let unread = read(&written, &dirs, &whole).unwrap_err();
    assert_eq!(unread.error.kind(), ErrorKind::NotFound);
    let said = unread.error.message();
    assert!(
        said.contains("no rank stored elements [4:5, 5:8] of array 'field'"),
        "{said}"
    );
    let stored = ArrayBox::new(&[0, 0], &[8, 5]).unwrap();
    assert!(read(&written, &dirs, &stored).is_ok());
}

// Breaks if: extents that hold nothing of the box are read, or damage in one that does is let
// through.
#[test]
fn only_the_extents_of_the_box_are_read() {
    let array = cut_into(&[vec![64, 64], vec![64]], 0, 64 * 8);
    let scratch = Scratch::new();
    let (written, dirs) = write_array(&scratch, &array, 2);
    // Row 10 of the part of rank 1, in the array's extents behind the other regions of the rank.
    let stream = written.structure(1, "stream 1");
    let others = 8 * 3000 + 77;
    flip(
        &written.paths[1],
        stream.start + others + 10 * 64 * 8 + 5,
        1,
    );
    let rows = |first, count| ArrayBox::new(&[first, 0], &[count, 64]).unwrap();
    for (first, count) in [(0, 74), (75, 53)] {
        let window = rows(first, count);
        let (bytes, _) = read(&written, &dirs, &window).unwrap();
        assert!(bytes == expected(&array, &window));
    }
    let unread = read(&written, &dirs, &rows(74, 1)).unwrap_err();
    assert_eq!(unread.error.kind(), ErrorKind::Corrupt);
    let name = written.paths[1].file_name().unwrap().to_str().unwrap();
    assert!(unread.file.unwrap().contains(name));
}

#[test]
fn what_is_no_global_array_is_refused() {
    let array = cut_into(&[vec![4]], 0, 1000);
    let scratch = Scratch::new();
    let (written, dirs) = write_array(&scratch, &array, 1);
    let places = open_places(&dirs);
    let record = &written.record;
    let find = |name| {
        let open = |container: &_| Reader::open(&places, record, container);
        let all = AllRanks::find(record, Arc::new(open)).unwrap();
        all.array(name).unwrap_err()
    };
    let error = find("u");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.message().contains("belongs to this rank alone"),
        "{error}"
    );
    let error = find("fields");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("it has: field"), "{error}");
}

// Breaks if: its part of the array, or its items of a list, are left out without a word.
#[test]
fn a_rank_that_is_in_no_container_is_named() {
    let array = cut_into(&[vec![4, 4]], 0, 1000);
    let scratch = Scratch::new();
    let (mut written, dirs) = write_array(&scratch, &array, 2);
    let whole = ArrayBox::whole(&[4]).unwrap();
    assert!(read(&written, &dirs, &whole).is_ok());
    written.record.containers.pop();
    let unread = read(&written, &dirs, &whole).unwrap_err();
    assert_eq!(unread.error.kind(), ErrorKind::Corrupt);
    let said = unread.error.message();
    assert!(
        said.contains("no container of step 10 holds rank 1"),
        "{said}"
    );
}

// Breaks if: a container that was closed for another one cannot be read again, or its notes are
// forgotten.
#[test]
fn more_containers_are_read_than_are_open_at_once() {
    let array = cut_into(&[vec![3; 40]], 1, 16);
    let scratch = Scratch::new();
    let (written, dirs) = write_array(&scratch, &array, 40);
    assert_eq!(written.record.containers.len(), 40);
    let whole = ArrayBox::whole(&array.global).unwrap();
    let (bytes, overlap) = read(&written, &dirs, &whole).unwrap();
    assert!(bytes == expected(&array, &whole) && overlap.is_some());
    // The trailer of the first container.
    let len = std::fs::metadata(&written.paths[0]).unwrap().len();
    flip(&written.paths[0], len as usize - 100, 1);
    let places = open_places(&dirs);
    let open = |container: &_| Reader::open(&places, &written.record, container);
    let mut all = AllRanks::find(&written.record, Arc::new(open)).unwrap();
    let notes = all.take_notes();
    assert!(
        notes.len() == 1 && notes[0].contains("rebuilt"),
        "{notes:?}"
    );
}
