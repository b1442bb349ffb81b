//! Tests global arrays that are put together from the parts of all ranks.

use std::path::PathBuf;

use orcheck_engine::restart::reader::Reader;
use orcheck_engine::restart::{ArrayBox, ArrayWindow, GlobalArray, Unread};
use orcheck_fixtures::reading::{ArraySpec, Scratch, Spec, Written, flip, open_places, write};
use orcheck_format::ErrorKind;
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

fn read(written: &Written, dirs: &[PathBuf], window: &ArrayBox) -> Result<ArrayWindow, Unread> {
    let places = open_places(dirs);
    let record = &written.record;
    let open = |container: &_| Reader::open(&places, record, container);
    GlobalArray::find(record, "field", Box::new(open))?.read(window, &mut |_| ())
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
        let ArrayWindow { bytes, overlap } = read(&written, &dirs, &window).unwrap();
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
        said.contains("no rank stored element [4, 5] of array 'field'"),
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
        let bytes = read(&written, &dirs, &window).unwrap().bytes;
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
        let found = GlobalArray::find(record, name, Box::new(open));
        found.err().unwrap().error
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
