//! Tests the promises of this crate's disk functions against the model of a power cut.
// It makes directories by itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use orcheck_io::disk::{Create, Dir, open_local, write_small};
use orcheck_testing::Scratch;
use orcheck_testing::power::{Disk, Image, Journal, Log, choice, choices};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What `work` does in `<root>/d`, where the file `old` lies already; `work` may say how far it is.
fn record(work: impl FnOnce(&dyn Dir, &AtomicU64)) -> Log {
    let scratch = Scratch::in_memory("outage");
    let path = scratch.path().join("d");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("old"), b"old").unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let mark = Arc::clone(&told);
    let mark = Box::new(move || mark.load(Ordering::SeqCst));
    let journal = Journal::begin(scratch.path(), mark).unwrap();
    let dir = open_local(&path, journal.failpoints()).unwrap();
    work(dir.as_ref(), &told);
    journal.end().unwrap()
}

/// Every image of every moment, with the mark that had been told.
fn images(log: &Log, grain_bytes: Option<u64>) -> Vec<(u64, Image)> {
    let mut found = Vec::new();
    let mut disk = Disk::new(log);
    loop {
        let parts = disk.parts(grain_bytes);
        for number in 0..choices(parts.len()) {
            let kept = choice(&parts, number, 7);
            found.push((log.mark(disk.at()), disk.image(&parts, &kept)));
        }
        if !disk.advance() {
            return found;
        }
    }
}

fn contents(images: &[(u64, Image)], path: &str) -> BTreeSet<Option<Vec<u8>>> {
    let content = |image: &Image| image.file(path).map(|content| content.bytes().to_vec());
    images.iter().map(|(_, image)| content(image)).collect()
}

// Breaks if: `write_small` does not sync the file, renames before it does, or writes in place.
#[test]
fn a_small_file_is_whole_or_absent() {
    let new = vec![b'n'; 2000];
    let log = record(|dir, told| {
        write_small(dir, "new", &new).unwrap();
        told.store(1, Ordering::SeqCst);
        write_small(dir, "old", b"newer").unwrap();
        told.store(2, Ordering::SeqCst);
    });
    for grain in [None, Some(4096), Some(512)] {
        let images = images(&log, grain);
        let found = contents(&images, "d/new");
        assert_eq!(found, BTreeSet::from([None, Some(new.clone())]));
        let found = contents(&images, "d/old");
        let both = [Some(b"old".to_vec()), Some(b"newer".to_vec())];
        assert_eq!(found, BTreeSet::from(both));
        for (told, image) in &images {
            // Breaks if: `write_small` does not sync the directory.
            assert!(*told < 1 || image.file("d/new").is_some());
            assert!(*told < 2 || *image.file("d/old").unwrap().bytes() == *b"newer");
        }
    }
}

// Breaks if: `parts` leaves lengths to the writes, does not cut them, or `choice` forgets a subset.
#[test]
fn what_was_not_synced_may_be_torn_short_or_zero() {
    let log = record(|dir, _| {
        let file = dir.create("f", Create::Buffered).unwrap();
        dir.sync().unwrap();
        file.write_at(&[b'a'; 1024], 0).unwrap();
        file.close().unwrap();
    });
    let found = contents(&images(&log, Some(512)), "d/f");
    let half = |first: u8, second: u8| Some([[first; 512], [second; 512]].concat());
    let expected = [
        None,
        Some(vec![]),
        half(0, 0),
        half(b'a', 0),
        half(0, b'a'),
        half(b'a', b'a'),
    ];
    assert_eq!(found, BTreeSet::from(expected));
}

// Breaks if: `Op::SyncFile` makes names durable, or `Op::SyncDir` contents.
#[test]
fn a_name_and_its_bytes_need_a_sync_each() {
    let log = record(|dir, told| {
        let file = dir.create("f", Create::Buffered).unwrap();
        file.write_at(b"bytes", 0).unwrap();
        file.sync().unwrap();
        told.store(1, Ordering::SeqCst);
        let other = dir.create("g", Create::Buffered).unwrap();
        other.write_at(b"bytes", 0).unwrap();
        dir.sync().unwrap();
        told.store(2, Ordering::SeqCst);
        dir.remove("old").unwrap();
    });
    let images = images(&log, None);
    let after = |told: u64| {
        let chosen: Vec<(u64, Image)> = images
            .iter()
            .filter(|(mark, _)| *mark == told)
            .cloned()
            .collect();
        chosen
    };
    let whole = Some(b"bytes".to_vec());
    let nameless = contents(&after(1), "d/f");
    assert_eq!(nameless, BTreeSet::from([None, whole.clone()]));
    assert_eq!(contents(&after(2), "d/f"), BTreeSet::from([whole.clone()]));
    let empty = contents(&after(2), "d/g");
    assert!(empty.contains(&Some(vec![])) && empty.contains(&Some(vec![0; 5])));
    let removed = contents(&after(2), "d/old");
    assert_eq!(removed, BTreeSet::from([None, Some(b"old".to_vec())]));
}

// Breaks if: a directory's pending operations survive as a prefix only, or an unsynced directory
// for sure.
#[test]
fn directories_lose_any_of_their_operations() {
    let log = record(|dir, _| {
        let child = dir.child("child", true).unwrap();
        child.create("x", Create::Buffered).unwrap();
        child.create("y", Create::Buffered).unwrap();
    });
    let images = images(&log, None);
    let pairs: BTreeSet<(bool, bool)> = images
        .iter()
        .map(|(_, image)| {
            let there = |name: &str| image.file(&format!("d/child/{name}")).is_some();
            (there("x"), there("y"))
        })
        .collect();
    assert_eq!(pairs.len(), 4, "{pairs:?}");
    assert!(
        images
            .iter()
            .any(|(_, image)| image.dir("d/child").is_none())
    );
}

// Breaks if: `choice` gives the same subset twice below 4,096, or leaves out a prefix, a single or
// a pair above.
#[test]
fn the_subsets_are_those_that_are_promised() {
    let log = record(|dir, _| {
        let file = dir.create("f", Create::Buffered).unwrap();
        file.write_at(&[1; 20 * 512], 0).unwrap();
    });
    let mut disk = Disk::new(&log);
    while disk.advance() {}
    let some = disk.parts(None);
    let all: BTreeSet<Vec<bool>> = (0..choices(some.len()))
        .map(|number| choice(&some, number, 1))
        .collect();
    assert_eq!((some.len(), all.len()), (3, 8));
    let many = disk.parts(Some(512));
    let tried: BTreeSet<Vec<bool>> = (0..choices(many.len()))
        .map(|number| choice(&many, number, 1))
        .collect();
    let n = many.len();
    assert_eq!(n, 22);
    for first in 0..n {
        let prefix = (0..n).map(|part| part < first).collect::<Vec<_>>();
        assert!(tried.contains(&prefix));
        for second in 0..n {
            let dropped = (0..n).map(|part| part != first && part != second);
            assert!(tried.contains(&dropped.collect::<Vec<_>>()));
        }
    }
}

// Breaks if: the journal passes over what happens in a directory that it was not told of yet, as
// when two threads need the same one and the second is faster.
#[test]
fn a_directory_that_another_thread_made_may_be_lost_with_what_is_in_it() {
    let log = record(|dir, _| {
        std::fs::create_dir(dir.path().join("made")).unwrap();
        let made = dir.child("made", false).unwrap();
        made.create("f", Create::Buffered).unwrap();
        made.sync().unwrap();
        // Without this the file is durable in a directory that is not.
        dir.sync().unwrap();
    });
    let there = |image: &Image| image.file("d/made/f").is_some();
    let all = images(&log, None);
    assert!(all.iter().any(|(_, image)| !there(image)));
    assert!(all.last().is_some_and(|(_, image)| there(image)));
}
