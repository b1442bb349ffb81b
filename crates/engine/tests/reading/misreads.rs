//! Tests reads that succeed with wrong bytes: another block, another file, an older version of the
//! file, zeros. Each read of a restart is falsified in turn; the result is right, or an error.

use orcheck_engine::directory::Catalog;
use orcheck_engine::restart::reader::{Reader, holder_of};
use orcheck_format::disk::FileName;
use orcheck_format::{Rank, Result, Step};
use orcheck_io::disk::Dir;
use orcheck_io::memory::Span;
use orcheck_testing::misread::{How, misreading};
use std::path::PathBuf;
use std::sync::Arc;

use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, job, open_places, payload, write};

/// What a restart of rank 1 does, from the listing to the last byte: the step that it found, and
/// whether its bytes are that step's. An error is a clear answer.
fn restart(dir: &Arc<dyn Dir>) -> Result<(u64, bool)> {
    let catalog = Catalog::scan(&job(), std::slice::from_ref(dir))?;
    let commit = catalog
        .commits()
        .first()
        .ok_or_else(|| orcheck_format::Error::not_found("no commit record could be read"))?;
    let record = &commit.record;
    let places = std::slice::from_ref(dir);
    let reader = Reader::open(places, record, holder_of(record, Rank(1))?)?;
    let mut right = true;
    for name in ["u", "notes"] {
        let region = reader
            .region(Rank(1), name)
            .ok_or_else(|| orcheck_format::Error::not_found("a region is missing"))?;
        let mut found = vec![0xee; usize::try_from(region.len_bytes).unwrap()];
        reader.read_region(Rank(1), region, Span::from_mut(&mut found))?;
        right &= found == payload(Rank(1), record.step.0, name, found.len());
    }
    Ok((record.step.0, right))
}

/// Two directories with the same names in them: the older version has other contents under each.
fn versions(scratch: &Scratch) -> [PathBuf; 2] {
    let dirs = [scratch.dir("now"), scratch.dir("older")];
    for (dir, step) in dirs.iter().zip([40, 39]) {
        claim(dir, epoch(7), None);
        write(std::slice::from_ref(dir), &Spec::new(30, 7));
        write(std::slice::from_ref(dir), &Spec::new(step, 7));
    }
    let (now, older) = (Spec::new(40, 7), Spec::new(39, 7));
    for entry in std::fs::read_dir(&dirs[1]).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let renamed = match FileName::parse(&name) {
            Some(FileName::Container { step: Step(39), .. }) => name.replace("039", "040"),
            Some(FileName::Commit { step: Step(39), .. }) => {
                assert_eq!(name, older.commit_name());
                now.commit_name()
            }
            _ => continue,
        };
        std::fs::rename(entry.path(), dirs[1].join(renamed)).unwrap();
    }
    dirs
}

// Breaks if: the CRC of an extent, the digest of the manifest, the name in a record or the step in
// a header is not compared with what was read.
#[test]
fn a_read_that_gives_other_bytes_never_gives_wrong_ones() {
    let scratch = Scratch::new();
    let dirs = versions(&scratch);
    let [now, older] = [0, 1].map(|n| open_places(&dirs[n..=n]).remove(0));
    let others: Vec<String> = now
        .list()
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| {
            matches!(
                FileName::parse(name),
                Some(FileName::Container { .. } | FileName::Commit { .. })
            )
        })
        .collect();
    let mut kinds = vec![How::Zeros, How::Stale(older)];
    kinds.extend([512, 4096, 8192, 65536].map(How::Moved));
    kinds.extend(others.into_iter().map(How::OtherFile));
    let (whole, reads) = misreading(Arc::clone(&now), How::Zeros, 0);
    assert_eq!(restart(&whole).unwrap(), (40, true));
    let (mut right, mut told) = (0, 0);
    for how in kinds {
        for strike in 1..=reads() {
            let (dir, _) = misreading(Arc::clone(&now), how.clone(), strike);
            match restart(&dir) {
                // The newest, or an older one when its record was misread: the bytes are that
                // step's.
                Ok((step, true)) => {
                    assert!(step == 40 || step == 30, "read {strike}: step {step}");
                    right += 1;
                }
                Ok((step, false)) => panic!("read {strike}: wrong bytes of step {step}"),
                Err(error) => {
                    assert!(!error.message().is_empty());
                    told += 1;
                }
            }
        }
    }
    assert!(right > 0 && told > 20, "{right} right, {told} told");
}
