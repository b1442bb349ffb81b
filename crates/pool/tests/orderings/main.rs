//! Tests the lock-free parts under every memory ordering that the language allows, as `loom`
//! enumerates them.
//!
//! The library's own source files are compiled here with the atomics of `loom`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}
#[allow(dead_code)]
#[path = "../../src/bitmap.rs"]
mod bitmap;
#[allow(dead_code, unused_imports)]
#[path = "../../src/ring.rs"]
mod ring;

use bitmap::Bitmap;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use ring::Ring;
use sync::AtomicU64;

struct Memory {
    read: AtomicU64,
    written: AtomicU64,
    entries: [[AtomicU64; 8]; 2],
}

impl Memory {
    fn new() -> Self {
        let entry = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            entries: [entry(), entry()],
        }
    }

    fn ring(&self) -> Ring<'_> {
        Ring {
            read: &self.read,
            written: &self.written,
            entries: &self.entries,
        }
    }
}

fn explored(model: loom::model::Builder, test: impl Fn() + Sync + Send + 'static) {
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&runs);
    model.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        test();
    });
    println!(
        "{} executions",
        runs.load(std::sync::atomic::Ordering::Relaxed)
    );
}

fn model() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model
}

// Breaks if: `push` publishes with a relaxed store, or `pop` looks with a relaxed load (words of
// the slot's last entry are read); if `pop` gives the slot back with a relaxed store, or `push`
// looks at `read` with a relaxed load (the slot is overwritten while it is read).
#[test]
fn entries_cross_whole_and_in_order() {
    explored(model(), || {
        const ENTRIES: u64 = 3;
        let memory = Arc::new(Memory::new());
        let other = Arc::clone(&memory);
        let producer = loom::thread::spawn(move || {
            for number in 1..=ENTRIES {
                while !other.ring().push(&[number; 8]) {
                    loom::thread::yield_now();
                }
            }
        });
        for number in 1..=ENTRIES {
            loop {
                if let Some(entry) = memory.ring().pop() {
                    assert_eq!(entry, [number; 8]);
                    break;
                }
                loom::thread::yield_now();
            }
        }
        assert_eq!(memory.ring().pop(), None);
        producer.join().unwrap();
    });
}

struct Chunks {
    taken: [AtomicU64; 1],
    contents: [UnsafeCell<u32>; 2],
}

// SAFETY is the bitmap's to give: whoever holds a bit alone touches what it stands for, and loom
// checks that.
impl Chunks {
    fn use_one(&self, near: u32) -> bool {
        let bitmap = Bitmap {
            words: &self.taken,
            count: 2,
        };
        let Some(index) = bitmap.claim(near) else {
            return false;
        };
        self.contents[index as usize].with_mut(|_| ());
        bitmap.release(index, 1);
        true
    }
}

// Breaks if: `release` clears the bit with a relaxed operation, or `set_if_clear` sets it with one:
// loom then sees two threads write the same chunk; if what `fetch_or` found is not looked at, too.
#[test]
fn a_chunk_is_written_by_its_holder_alone() {
    explored(model(), || {
        let chunks = Arc::new(Chunks {
            taken: [AtomicU64::new(0)],
            contents: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let others: Vec<_> = (0..2)
            .map(|near| {
                let chunks = Arc::clone(&chunks);
                loom::thread::spawn(move || chunks.use_one(near))
            })
            .collect();
        let mut used = usize::from(chunks.use_one(0));
        used += others
            .into_iter()
            .map(|other| usize::from(other.join().unwrap()))
            .sum::<usize>();
        assert!(used >= 2, "two chunks, three takers: two of them get one");
        let bitmap = Bitmap {
            words: &chunks.taken,
            count: 2,
        };
        assert_eq!(bitmap.free(), 2);
    });
}

// Breaks if: `claim_exactly` keeps the bits that it got when it loses one (a run is then lost for
// good).
#[test]
fn a_run_is_taken_whole_or_not_at_all() {
    explored(model(), || {
        let words = Arc::new([AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let taker = loom::thread::spawn(move || {
            let bitmap = Bitmap {
                words: &*other,
                count: 3,
            };
            let one = bitmap.claim(1);
            if let Some(index) = one {
                bitmap.release(index, 1);
            }
        });
        let bitmap = Bitmap {
            words: &*words,
            count: 3,
        };
        if let Some(first) = bitmap.claim_run(2) {
            assert!(first < 2 && bitmap.has(first) && bitmap.has(first + 1));
            bitmap.release(first, 2);
        }
        taker.join().unwrap();
        assert_eq!(bitmap.free(), 3);
    });
}
