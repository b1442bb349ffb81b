//! The parsers against their committed corpus and seeded mutations of it, in this process.
//!
//! The same entries run under libFuzzer for longer, see `tools/fuzz.sh`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod mutate;
#[allow(dead_code)]
#[path = "../../../../fuzz/parsers.rs"]
mod parsers;

use mutate::Mutator;
use orcheck_io::machine::thread_cpu_time;
use orcheck_io::rng::random_bytes;
use orcheck_io::user::env_var;
use orcheck_testing::Counting;
use parsers::{TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that a parser may take at its peak: so much for each byte of input (an extent is nine
/// bytes at least and ten times that in memory; the entry holds the value twice, and its encoding),
/// and so much whatever the input.
const BYTES_PER_BYTE: usize = 64;
const BYTES_ANYWAY: usize = 256 << 10;
/// Processor time that one input may take.
const CPU_TIME: Duration = Duration::from_secs(2);
/// Mutations of each parser's inputs, unless `ORCHECK_TRIALS` says more.
const MUTATIONS: usize = 4000;

fn corpus_of(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name);
    let listed = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}; every parser has a corpus", folder.display()));
    let mut files: Vec<_> = listed
        .map(|entry| {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            (path, bytes)
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// Runs one input and says what is wrong with how the parser took it.
fn verdict((_, entry): Target, bytes: &[u8]) -> Option<String> {
    let begun = thread_cpu_time();
    let (ended, peak) = Counting::peak_of(|| catch_unwind(AssertUnwindSafe(|| entry(bytes))));
    let took = thread_cpu_time().saturating_sub(begun);
    let limit = BYTES_ANYWAY + BYTES_PER_BYTE * bytes.len();
    match ended {
        Err(_) => Some("panicked (its message stands above)".into()),
        // Breaks if: a decoder allocates what a length says before it looks whether so much can
        // follow.
        Ok(()) if peak > limit => Some(format!("took {peak} bytes, expected at most {limit}")),
        Ok(()) if took > CPU_TIME => Some(format!("took {took:?} of processor time")),
        Ok(()) => None,
    }
}

fn fail(name: &str, what: &str, bytes: &[u8]) -> ! {
    let path = std::env::temp_dir().join(format!("orcheck-fuzz-{name}-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    panic!(
        "{name}: {what}; the input of {} bytes is {}: put it into fuzz/corpus/{name}/ with the fix",
        bytes.len(),
        path.display()
    );
}

#[test]
fn every_parser_survives_its_corpus() {
    for target in TARGETS {
        for (path, bytes) in corpus_of(target.0) {
            if let Some(what) = verdict(target, &bytes) {
                panic!("{}: {what}", path.display());
            }
        }
    }
}

// Breaks if: the end of CBOR is not asked for, a file name is accepted that would be written
// otherwise, or an offset and a length of the trailer are added without looking for an overflow.
#[test]
fn every_parser_survives_mutations_of_its_corpus() {
    let number = |name: &str| env_var(name).and_then(|text| text.parse::<u64>().ok());
    let seed = number("ORCHECK_SEED").unwrap_or_else(|| u64::from_le_bytes(random_bytes()));
    let rounds = number("ORCHECK_TRIALS").map_or(MUTATIONS, |asked| MUTATIONS.max(asked as usize));
    println!(
        "{rounds} mutations of each of {} parsers; again: ORCHECK_SEED={seed} ORCHECK_TRIALS={rounds} \
         cargo test -p orcheck-dst --test fuzz",
        TARGETS.len()
    );
    for target in TARGETS {
        let inputs: Vec<Vec<u8>> = corpus_of(target.0)
            .into_iter()
            .map(|(_, bytes)| bytes)
            .collect();
        let mut mutator = Mutator::new(seed, target.0);
        for _ in 0..rounds {
            let bytes = mutator.mutate(&inputs);
            if let Some(what) = verdict(target, &bytes) {
                fail(target.0, &format!("{what} (seed {seed})"), &bytes);
            }
        }
    }
}

// The harness itself: a parser that believes a length is found out.
#[test]
fn a_parser_that_trusts_a_length_is_found_out() {
    fn trusting(bytes: &[u8]) {
        let len = usize::from(bytes[0]) << 20;
        drop(std::hint::black_box(vec![1u8; len]));
    }
    fn panicking(bytes: &[u8]) {
        let _ = std::hint::black_box(bytes[bytes.len()]);
    }
    // Breaks if: `verdict` does not look at the peak, or at the panic.
    assert!(
        verdict(("trusting", trusting), &[9])
            .unwrap()
            .contains("9437184")
    );
    assert!(verdict(("panicking", panicking), &[9]).is_some());
    assert_eq!(verdict(("trusting", trusting), &[0]), None);
}
