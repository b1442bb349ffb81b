//! Implements `orcheck restore`, which writes regions of a checkpoint to plain files.
//!
//! One region is written to the file `--out` (or to standard output with `-`). With `--array`, that
//! file is a NumPy array, put together from all ranks (`restore/array.rs`). With `--all`, region
//! NAME of rank R is written to `rank-R/NAME.bin` below the directory `--out`, and `index.json`
//! describes each file. With `--files`, the files of a set are written below it
//! (`restore/files.rs`).
//!
//! Invariants:
//! 1. A file under its final name is complete and verified: it is written under a temporary name,
//!    synced and renamed.
//! 2. Nothing is replaced without `--force`.
//! 3. An unfinished file is removed on every error and on SIGINT and SIGTERM.
//! 4. A file name derived from a region's name is one plain component and belongs to that name
//!    alone.
//!
//! Faults survived: damage that another copy does not have; damaged regions (with `--all` the
//! others are still restored), a full disk, a kill (a file ending in `.orcheck.tmp` may stay
//! behind; the next restore to that name removes it).

mod array;
mod files;
mod slice;

use std::io::Write;
use std::sync::Arc;

use indicatif::ProgressBar;
use orcheck_engine::directory::Commit;
use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::{Reader, beside_a_good_copy, holder_of};
use orcheck_format::disk::{CommitRecord, ContainerRef, RegionRecord};
use orcheck_format::{Crc64, Error, ErrorKind, Rank, Result, Step};
use orcheck_io::disk::{Create, Dir};
use serde_json::{Value, json};

use crate::args::RestoreArgs;
use crate::commands::{show, verify};
use crate::job::is_out_of_sight;
use crate::job::{Job, parent_and_name, trust};
use crate::output::{Failure, Outcome, count, progress_bar, size};
use crate::{exit, stop};

/// Restores one region or all.
pub fn run(args: &RestoreArgs, json_wanted: bool) -> std::result::Result<Outcome, Failure> {
    stop::install()?;
    let trust = &trust(&args.unlock)?;
    let job = Job::open_trusting(&args.which.place(&args.place), trust)?;
    let commit = job.pick(&args.which)?;
    if let Some(newer) = job.passed_over(commit, &args.which)
        && newer.error.kind() == ErrorKind::Corrupt
    {
        let older = verify::newest_good(&job, |_| true, trust, !json_wanted)?;
        return Err(match older {
            Some(older) => restored_instead(newer.error, older),
            None => newer.error.into(),
        });
    }
    let restored = match (&args.array, &args.region, args.rank) {
        (Some(name), ..) => array::restore(args, &job, name, trust, json_wanted),
        _ if args.files => files::restore(args, &job, trust, json_wanted),
        (_, Some(region), Some(rank)) => one(args, &job, Rank(rank), region, trust, json_wanted),
        _ => all(args, &job, trust, json_wanted),
    };
    restored.map_err(|failure| {
        if let Some(code) = stop::requested() {
            return Failure::with(code, failure.error);
        }
        if failure.code == exit::NOT_FOUND
            && job.missing(commit).is_some()
            && let Some(older) = job.older_whole(commit)
        {
            let next = format!(
                "restore step {} at level {}, which is complete here",
                older.step, older.level
            );
            return Failure::with(failure.code, failure.error.next(next));
        }
        if failure.code != exit::CORRUPT {
            return failure;
        }
        let older = verify::older_good(&job, commit, trust, !json_wanted);
        match (older, job.out_of_sight()) {
            (Ok(Some(older)), _) => restored_instead(failure.error, older),
            (_, Some(hidden)) => Failure::with(failure.code, hidden.advise(failure.error)),
            // Breaks if: it asks for an older step; there is none that can be restored.
            (_, None) => Failure::with(failure.code, failure.error.next(OTHER_COPIES)),
        }
    })
}

/// The failure of damage that another checkpoint does not have.
fn restored_instead(error: Error, good: &CommitRecord) -> Failure {
    let next = format!(
        "restore step {} at level {}, which is good",
        good.step, good.level
    );
    Failure::with(exit::CORRUPT_OLDER_GOOD, error.next(next))
}

/// What to do if neither the checkpoint nor an older one can be restored.
const OTHER_COPIES: &str = "give all directories of the job: another one may hold a good copy";

fn one(
    args: &RestoreArgs,
    job: &Job,
    rank: Rank,
    name: &str,
    trust: &Arc<Trust>,
    json_wanted: bool,
) -> std::result::Result<Outcome, Failure> {
    let commit = job.pick(&args.which)?;
    let record = &commit.record;
    let container = holder_of(record, rank)?;
    let proven = (trust, commit.proof);
    let unread = |error| job.unread(commit, &container.file, error);
    let opened = Reader::open_trusting(&job.places_to_read(commit), record, container, proven);
    let reader = opened.map_err(unread)?;
    let region = reader.region(rank, name);
    let region = region.ok_or_else(|| no_region(&reader, (record.step, rank), name))?;
    let mut warnings = job.notes();
    warnings.extend(reader.take_notes());
    if args.out.as_os_str() == "-" {
        if json_wanted {
            return Err(
                Error::invalid("standard output cannot hold both the region and JSON")
                    .next("give --out FILE")
                    .into(),
            );
        }
        let mut damaged = |damage: &Error| warnings.push(beside_a_good_copy(damage.message()));
        let written = to_stdout(&reader, rank, region, &mut damaged);
        written.map_err(|unwritten| unwritten.told(unread))?;
        return Ok(Outcome {
            code: exit::OK,
            text: String::new(),
            document: json!({}),
            warnings,
        });
    }
    let (dir, file) = parent_and_name(&args.out)?;
    let bar = progress_bar(!json_wanted);
    bar.set_length(region.len_bytes);
    let written = write_region(
        dir.as_ref(),
        &file,
        args.force,
        &reader,
        rank,
        region,
        &mut |bytes| bar.inc(bytes),
        &mut |damage| warnings.push(beside_a_good_copy(damage.message())),
    );
    bar.finish_and_clear();
    let crc = written.map_err(|unwritten| unwritten.told(unread))?;
    let mut document = region_entry(region, &args.out.display().to_string(), crc);
    document["job"] = json!(record.job.as_str());
    document["step"] = json!(record.step.0);
    document["rank"] = json!(rank.0);
    document["notes"] = json!(warnings);
    let text = format!(
        "restored region {name:?} of rank {rank}, step {}: {} to {}\n",
        record.step,
        size(region.len_bytes),
        args.out.display()
    );
    Ok(Outcome {
        code: exit::OK,
        text,
        document,
        warnings,
    })
}

fn no_region(reader: &Reader, (step, rank): (Step, Rank), name: &str) -> Error {
    let ranks = reader.manifest().ranks.iter();
    let regions = ranks
        .filter(|one| one.rank == rank)
        .flat_map(|one| &one.regions);
    let names: Vec<&str> = regions.map(|region| region.name.as_str()).collect();
    Error::not_found(format!(
        "rank {rank} has no region {name:?} in step {step}; it has: {}",
        names.join(", ")
    ))
}

/// Regions of a checkpoint that are being written to files below one directory.
struct Extraction<'a> {
    args: &'a RestoreArgs,
    job: &'a Job,
    commit: &'a Commit,
    trust: &'a Arc<Trust>,
    dir: Arc<dyn Dir>,
    places: Vec<Arc<dyn Dir>>,
    bar: ProgressBar,
    entries: Vec<Value>,
    failures: Vec<Failure>,
    warnings: Vec<String>,
    files: u64,
    bytes: u64,
}

fn all(
    args: &RestoreArgs,
    job: &Job,
    trust: &Arc<Trust>,
    json_wanted: bool,
) -> std::result::Result<Outcome, Failure> {
    let commit = job.pick(&args.which)?;
    let record = &commit.record;
    if let Some(rank) = args.rank {
        holder_of(record, Rank(rank))?;
    }
    let bar = progress_bar(!json_wanted);
    let total = record
        .containers
        .iter()
        .map(|container| container.len_bytes);
    bar.set_length(total.sum());
    let mut extraction = Extraction {
        args,
        job,
        commit,
        trust,
        dir: output_dir(args)?,
        places: job.places_to_read(commit),
        bar,
        entries: Vec::new(),
        failures: Vec::new(),
        warnings: job.notes(),
        files: 0,
        bytes: 0,
    };
    for container in &record.containers {
        if args.rank.is_none_or(|rank| container.holds(Rank(rank))) {
            extraction.container(container)?;
        }
    }
    extraction.bar.finish_and_clear();
    extraction.outcome()
}

impl Extraction<'_> {
    fn container(&mut self, container: &ContainerRef) -> std::result::Result<(), Failure> {
        let (job, commit) = (self.job, self.commit);
        let places = self.places.clone();
        let open = || {
            let proven = (self.trust, commit.proof);
            Reader::open_trusting(&places, &commit.record, container, proven)
        };
        let unread = |error| job.unread(commit, &container.file, error);
        let reader = match open() {
            Ok(reader) => reader,
            // Without the key, nothing can be restored.
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error.into()),
            Err(error) => {
                let failure = unread(error);
                let said = failure.error.what();
                self.entries
                    .push(json!({ "container": container.file, "error": said }));
                self.failures.push(failure);
                return Ok(());
            }
        };
        self.warnings.extend(reader.take_notes());
        let opens = || !open().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
        let mut gone = None;
        for rank in &reader.manifest().ranks {
            if self.args.rank.is_some_and(|wanted| wanted != rank.rank.0) {
                continue;
            }
            let rank_name = format!("rank-{:06}", rank.rank);
            let rank_dir = self.dir.child(&rank_name, true)?;
            for region in &rank.regions {
                let file = format!("{}.bin", plain_name(&region.name));
                let (bar, warnings) = (&self.bar, &mut self.warnings);
                let mut write = || {
                    write_region(
                        rank_dir.as_ref(),
                        &file,
                        self.args.force,
                        &reader,
                        rank.rank,
                        region,
                        &mut |bytes| bar.inc(bytes),
                        &mut |damage| warnings.push(beside_a_good_copy(damage.message())),
                    )
                };
                let written = unless_gone(&mut gone, &mut write, opens);
                let mut entry = match written {
                    Ok(crc) => {
                        self.files += 1;
                        self.bytes += region.len_bytes;
                        region_entry(region, &format!("{rank_name}/{file}"), crc)
                    }
                    // Only an error of this one region leaves anything to continue with.
                    Err(Unwritten::NotRead(error))
                        if concerns_it_alone(&error) && stop::requested().is_none() =>
                    {
                        let failure = unread(error);
                        let mut entry = show::region_document(region);
                        entry["error"] = json!(failure.error.what());
                        self.failures.push(failure);
                        entry
                    }
                    Err(unwritten) => return Err(unwritten.told(unread)),
                };
                entry["rank"] = json!(rank.rank.0);
                self.entries.push(entry);
            }
        }
        Ok(())
    }

    fn outcome(mut self) -> std::result::Result<Outcome, Failure> {
        if self.files == 0 && !self.failures.is_empty() {
            return Err(self.failures.swap_remove(0));
        }
        let (record, args) = (&self.commit.record, self.args);
        let complete = self.failures.is_empty();
        let mut document = json!({
            "schema": crate::output::SCHEMA,
            "job": record.job.as_str(),
            "step": record.step.0,
            "epoch": record.epoch.to_string(),
            "level": record.level.to_string(),
            "world_size": record.world_size,
            "regions": self.entries,
            "complete": complete,
        });
        let index = format!("{document:#}\n");
        write_file(self.dir.as_ref(), "index.json", args.force, &mut |sink| {
            sink(0, index.as_bytes())
        })?;
        let failed = self.failures.iter().map(|failure| failure.error.what());
        self.warnings.extend(failed);
        document["out"] = json!(args.out.display().to_string());
        document["notes"] = json!(self.warnings);
        let mut text = format!(
            "restored {} of step {}: {} to {}{}\n",
            count(self.files, "region"),
            record.step,
            size(self.bytes),
            args.out.display(),
            match self.failures.len() {
                0 => String::new(),
                failed => format!("; {failed} failed"),
            }
        );
        let out_of_sight = self
            .failures
            .iter()
            .find(|failure| is_out_of_sight(failure));
        let next = match out_of_sight {
            Some(failure) => failure.error.next_step(),
            None if complete => None,
            None => Some("see with `orcheck verify --all` whether an older step is good"),
        };
        if let Some(next) = next {
            text.push_str(&format!("Next: {next}\n"));
            document["next"] = json!(next);
        }
        let code = match complete {
            true => exit::OK,
            // Breaks if: it is partial; data on a server that is down would count as damaged.
            false if self.failures.iter().all(is_out_of_sight) => exit::UNREACHABLE,
            false => exit::PARTIAL,
        };
        Ok(Outcome {
            code,
            text,
            document,
            warnings: self.warnings,
        })
    }
}

fn region_entry(region: &RegionRecord, file: &str, crc: u64) -> Value {
    let mut entry: Value = show::region_document(region);
    entry["file"] = json!(file);
    entry["crc64_nvme"] = json!(format!("{crc:016x}"));
    entry
}

/// The directory that `--all` fills; it must be new or empty unless `--force` is given.
fn output_dir(args: &RestoreArgs) -> Result<Arc<dyn Dir>> {
    let dir = match orcheck_staging::open_dir(&args.out, orcheck_io::failpoints::Failpoints::none())
    {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (parent, name) = parent_and_name(&args.out)?;
            parent.child(&name, true)?
        }
        opened => opened?,
    };
    match dir.list()?.first() {
        Some(entry) if !args.force => Err(Error::invalid(format!(
            "{} is not empty: it holds {}",
            args.out.display(),
            entry.name
        ))
        .next("give a new or empty directory, or --force")),
        _ => Ok(dir),
    }
}

/// Why a region was not written.
enum Unwritten {
    /// It cannot be read.
    NotRead(Error),
    /// It cannot be written to its destination.
    NotTaken(Error),
}

impl Unwritten {
    /// As the user reads it.
    fn told(self, unread: impl Fn(Error) -> Failure) -> Failure {
        match self {
            Unwritten::NotRead(error) => unread(error),
            Unwritten::NotTaken(error) => error.into(),
        }
    }
}

/// Writes a region, unless its container is gone: it was unreachable for an earlier region, and did
/// not open again after that. One bad place of a disk concerns only one region.
fn unless_gone(
    gone: &mut Option<Error>,
    write: &mut dyn FnMut() -> std::result::Result<u64, Unwritten>,
    opens: impl Fn() -> bool,
) -> std::result::Result<u64, Unwritten> {
    // Breaks if: each region is tried; there would be as many waits for a stalled server as
    // regions.
    if let Some(error) = gone {
        return Err(Unwritten::NotRead(error.clone()));
    }
    let written = write();
    if let Err(Unwritten::NotRead(error)) = &written
        && error.kind() == ErrorKind::Unavailable
        && !opens()
    {
        *gone = Some(error.clone());
    }
    written
}

/// Whether an error in reading a region says nothing about the others.
fn concerns_it_alone(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unavailable
    )
}

/// Passes a region to `sink`, and distinguishes its errors from those of reading.
fn stream(
    reader: &Reader,
    rank: Rank,
    region: &RegionRecord,
    damage: &mut dyn FnMut(&Error),
    sink: &mut Sink<'_>,
) -> std::result::Result<(), Unwritten> {
    let mut taken = true;
    let streamed = reader.stream_region_of_any_copy(rank, region, damage, &mut |at, bytes| {
        sink(at, bytes).inspect_err(|_| taken = false)
    });
    streamed.map_err(|error| match taken {
        true => Unwritten::NotRead(error),
        false => Unwritten::NotTaken(error),
    })
}

fn to_stdout(
    reader: &Reader,
    rank: Rank,
    region: &RegionRecord,
    damage: &mut dyn FnMut(&Error),
) -> std::result::Result<(), Unwritten> {
    let mut stdout = std::io::stdout().lock();
    let failed = |error| Error::unavailable(format!("standard output cannot be written: {error}"));
    stream(reader, rank, region, damage, &mut |_, bytes| {
        check_stop()?;
        stdout.write_all(bytes).map_err(failed)
    })?;
    stdout
        .flush()
        .map_err(|error| Unwritten::NotTaken(failed(error)))
}

/// Writes one region and returns the checksum of what was written.
#[allow(clippy::too_many_arguments)]
fn write_region(
    dir: &dyn Dir,
    name: &str,
    force: bool,
    reader: &Reader,
    rank: Rank,
    region: &RegionRecord,
    progress: &mut dyn FnMut(u64),
    damage: &mut dyn FnMut(&Error),
) -> std::result::Result<u64, Unwritten> {
    let mut crc = Crc64::new();
    let mut not_read = false;
    let written = write_file(dir, name, force, &mut |sink| {
        let streamed = stream(reader, rank, region, damage, &mut |at, bytes| {
            crc.update(bytes);
            sink(at, bytes)?;
            progress(bytes.len() as u64);
            Ok(())
        });
        streamed.map_err(|unwritten| match unwritten {
            Unwritten::NotRead(error) => {
                not_read = true;
                error
            }
            Unwritten::NotTaken(error) => error,
        })
    });
    match (written, not_read) {
        (Ok(()), _) => Ok(crc.value()),
        (Err(error), true) => Err(Unwritten::NotRead(error)),
        (Err(error), false) => Err(Unwritten::NotTaken(error)),
    }
}

/// Takes bytes at an offset.
type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Creates a file whole or not at all.
fn write_file(
    dir: &dyn Dir,
    name: &str,
    force: bool,
    fill: &mut dyn FnMut(&mut Sink<'_>) -> Result<()>,
) -> Result<()> {
    let shown = dir.path().join(name).display().to_string();
    let taken = || {
        Error::invalid(format!("{shown} exists"))
            .next("give another --out, or --force to replace it")
    };
    if !force && dir.list()?.iter().any(|entry| entry.name == name) {
        return Err(taken());
    }
    // Breaks if: it is replaced all the same; `--out /dev/null --force` would leave a file there.
    match dir.open(name) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let what = error.what();
            return Err(
                Error::invalid(what).next("give the name of a file, or - for standard output")
            );
        }
        _ => {}
    }
    let temporary = format!("{name}.orcheck.tmp");
    match dir.remove(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Readable only for its owner, even in a directory that a group shares: the data may have been
    // encrypted in the checkpoint.
    let file = dir.create(&temporary, Create::Private)?;
    let filled = fill(&mut |at, bytes| {
        check_stop()?;
        file.write_at(bytes, at)
    });
    let finished = filled
        .and_then(|()| file.sync())
        .and_then(|()| file.close())
        .and_then(|()| {
            match force {
                true => dir.rename(&temporary, name)?,
                // Breaks if: it replaces; a file that appeared meanwhile would be lost.
                false => dir
                    .rename_new(&temporary, name)
                    .map_err(|error| match error.kind() {
                        ErrorKind::Invalid => taken(),
                        _ => error,
                    })?,
            }
            dir.sync()
        });
    if finished.is_err() {
        // The present error is more informative than a failure to clean up.
        let _ = dir.remove(&temporary);
    }
    finished
}

fn check_stop() -> Result<()> {
    match stop::requested() {
        None => Ok(()),
        Some(_) => Err(Error::unavailable(
            "stopped by a signal; unfinished files were removed",
        )),
    }
}

/// A file name for a region: letters, digits, `.`, `_` and `-` stay, everything else (and a leading
/// dot) becomes `%XX`. A name that would be too long is truncated and ends in its checksum.
fn plain_name(region: &str) -> String {
    const LIMIT_BYTES: usize = 200;
    let mut name = String::new();
    for (index, byte) in region.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric()
            || byte == b'_'
            || byte == b'-'
            || (byte == b'.' && index > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > LIMIT_BYTES {
        name.truncate(LIMIT_BYTES - 18);
        name.push_str(&format!(
            "%-{:016x}",
            orcheck_format::crc64(region.as_bytes())
        ));
    }
    name
}

#[cfg(test)]
// A test makes the file that is in the way.
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        // Breaks if: the rename replaces.
        let path = std::env::temp_dir().join(format!("orcheck-restore-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let dir =
            orcheck_staging::open_dir(&path, orcheck_io::failpoints::Failpoints::none()).unwrap();
        let taken = path.join("x");
        let written = write_file(dir.as_ref(), "x", false, &mut |sink| {
            std::fs::write(&taken, b"mine").unwrap();
            sink(0, b"ours")
        });
        assert_eq!(written.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
        assert_eq!(dir.list().unwrap().len(), 1, "the unfinished file is gone");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_rest_of_a_container_that_does_not_open_again_is_not_waited_for() {
        // Breaks if: the other regions are tried all the same; or one that a disk cannot read costs
        // all others.
        for (opens, expected) in [(false, 1), (true, 3)] {
            let (mut gone, mut tried) = (None, 0);
            for _ in 0..3 {
                let mut write = || {
                    tried += 1;
                    Err(Unwritten::NotRead(Error::unavailable("no answer")))
                };
                let written = unless_gone(&mut gone, &mut write, || opens);
                assert!(matches!(written, Err(Unwritten::NotRead(_))));
            }
            assert_eq!(tried, expected);
        }
    }

    #[test]
    fn region_names_become_plain_and_distinct_file_names() {
        // Breaks if: '/' or a leading '.' is let through; a region could leave the directory.
        assert_eq!(plain_name("u"), "u");
        assert_eq!(plain_name("fluid/density"), "fluid%2Fdensity");
        assert_eq!(plain_name(".."), "%2E.");
        assert_eq!(plain_name("a%2Fb"), "a%252Fb");
        assert_eq!(plain_name("ä"), "%C3%A4");
        let long = plain_name(&"x".repeat(255));
        assert_eq!(long.len(), 200);
        assert_ne!(long, plain_name(&format!("{}y", "x".repeat(254))));
    }
}
