//! Builds the catalog: what the directories of one job hold.
//!
//! A job keeps its files in one directory per place (a placed directory of level `global`, a node's
//! own directory of level `node`). A scan lists every place once, reads the small files (commit
//! records, claims, resumed records), drops and reports those that it cannot verify, and merges the
//! copies of each commit record. "Latest" is computed from the commit records each time; no pointer
//! file could be stale.
//!
//! Invariants:
//! 1. A scan changes nothing on any disk.
//! 2. A commit is visible only through a record whose checksum, name, job, step, epoch and level
//!    all agree.
//! 3. The resume rule: a commit (s, e) is fenced if an epoch after e resumed from a step below s,
//!    or from nothing. A commit (s', e') with e' > e and s' <= s proves the same if the resumed
//!    record is lost. An epoch that has claimed, but neither recorded where it resumed from nor
//!    committed, restricts nothing.
//! 4. One epoch counter belongs to one run. Two runs that wrote under one counter are an error that
//!    names both, except in a listing; the catalog never chooses between them.
//! 5. Every skipped file is a note with the file, what was expected and what was found. Three kinds
//!    of files are skipped silently: files that vanished between listing and reading (another
//!    process pruned them), temporary files, and claims that are not believed, which restrict
//!    nothing. Of many files of one sort in one place, only the last in the listing, which are the
//!    newest, have notes of their own; one more note counts the others.
//! 6. With a key, only what `trust` believes counts. A choice counts by its file name alone.
//!
//! Faults survived: any number of unreadable places as long as one is readable; damaged, truncated,
//! renamed or foreign files; stale copies that reappear; a crash of any writer at any point.
//!
//! Not here: whether the containers of a commit exist and are intact (`reader`, `verify`); every
//! decision about which commit to use. Records that do not count: `catalog/unread.rs`; two runs at
//! one counter: `catalog/rivals.rs`.

mod rivals;
mod unread;

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Step, printable};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::encoding::{Proof, Trust};
use orcheck_format::disk::{Choice, Claim, CommitRecord, FileName, Resumed};
use orcheck_format::{Decision, Epoch, Error, ErrorKind, JobName, Level, Result};
use orcheck_io::disk::{Dir, Entry, read_small};

use rivals::Rivals;
pub use unread::{Unread, UnreadStep};

/// Size of the largest commit record, claim or resumed record that a scan reads, in bytes.
pub const RECORD_LIMIT_BYTES: u64 = 64 << 20;

/// The job to which a file of this name belongs, according to a claim or commit record that is
/// believed. `None` for any other file, and for a record that is damaged, forged or lacks a
/// required seal.
///
/// # Errors
/// Invalid, marked as [`Detail::OtherKey`], if the record was sealed with a key that was not given.
pub fn job_named_by(dir: &dyn Dir, name: &str, trust: &Trust) -> Result<Option<JobName>> {
    let is_claim = match FileName::parse(name) {
        Some(FileName::Claim { .. }) => true,
        Some(FileName::Commit { .. }) => false,
        _ => return Ok(None),
    };
    let Ok(bytes) = read_small(dir, name, RECORD_LIMIT_BYTES) else {
        return Ok(None);
    };
    // Breaks if: the seal is not checked; anybody who can write to a directory would choose the job
    // that a command works on.
    match trust.check(&bytes) {
        Err(_) if off(Switch::JobProven) => {}
        Err(error) if error.is(Detail::OtherKey) => return Err(error),
        Err(_) => return Ok(None),
        Ok(_) => {}
    }
    Ok(match is_claim {
        true => Claim::decode(&bytes).ok().map(|claim| claim.job),
        false => (CommitRecord::decode(&bytes).ok()).map(|record| record.job),
    })
}

/// A commit record and the places that hold a valid copy of it.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The record itself.
    pub record: CommitRecord,
    /// Indices of the places that hold a valid copy, ascending.
    pub copies: Vec<usize>,
    /// Whether its seal was verified; all copies agree in that.
    pub proof: Proof,
}

/// What the directories of one job hold at the time of the scan.
pub struct Catalog {
    places: Vec<Arc<dyn Dir>>,
    commits: Vec<Commit>,
    fenced: Vec<Commit>,
    rejected: Vec<Commit>,
    choices: BTreeMap<ChoiceKey, Option<Choice>>,
    claims: Vec<(Claim, Option<Resumed>)>,
    notes: Vec<String>,
    problems: Vec<Error>,
    refused: Option<Error>,
    other_key: Option<Step>,
    files: Vec<(usize, Entry, Option<FileName>)>,
    unread: Vec<Unread>,
    rivals: Option<Rivals>,
}

/// Commits are ordered and merged by this key.
type CommitKey = (Step, Epoch, Level);

/// The checkpoint of a choice (step, epoch counter, beginning of the run id), and the choice.
type ChoiceKey = ((Step, u64, [u8; 4]), Decision);

fn choice_key(step: Step, epoch: Epoch, decision: Decision) -> ChoiceKey {
    ((step, epoch.counter, epoch.run.short_bytes()), decision)
}

impl Catalog {
    /// Reads the job's directories. An unreadable directory becomes a note.
    ///
    /// # Errors
    /// The first place's error if no place can be listed; `Invalid` if no place was given; `Fenced`
    /// if two runs wrote under one epoch counter.
    pub fn scan(job: &JobName, places: &[Arc<dyn Dir>]) -> Result<Catalog> {
        Self::scan_trusting(job, places, &Trust::default())
    }

    /// As [`Catalog::scan`], but only what `trust` believes counts.
    ///
    /// # Errors
    /// As [`Catalog::scan`].
    pub fn scan_trusting(job: &JobName, places: &[Arc<dyn Dir>], trust: &Trust) -> Result<Catalog> {
        let catalog = Self::scan_to_list(job, places, trust)?;
        match &catalog.rivals {
            // Breaks if: one of them is taken instead; two runs would then write under one epoch.
            Some(rivals) if !off(Switch::OneRunAClaim) => Err(rivals.error(job)),
            _ => Ok(catalog),
        }
    }

    /// As [`Catalog::scan_trusting`], for a listing: two runs at one counter are both in it, and
    /// [`Catalog::undecided`] says so.
    ///
    /// # Errors
    /// As [`Catalog::scan`], without `Fenced`.
    pub fn scan_to_list(job: &JobName, places: &[Arc<dyn Dir>], trust: &Trust) -> Result<Catalog> {
        let mut scan = Scan::new(job, places, trust);
        let mut first_error = None;
        let mut readable = 0usize;
        for (place, dir) in places.iter().enumerate() {
            match dir.list() {
                Ok(entries) => {
                    readable += 1;
                    scan.read_place(place, dir.as_ref(), entries);
                }
                Err(error) => {
                    let place = format!("place {} cannot be listed", dir.path().display());
                    scan.skip(error.clone().at(place));
                    first_error.get_or_insert(error);
                }
            }
        }
        if readable == 0 {
            return Err(first_error.unwrap_or_else(|| {
                Error::invalid(format!("no directory given for job {}", job.as_str()))
                    .next("name at least one directory")
            }));
        }
        scan.finish()
    }

    /// The visible commits, newest first: by step, then epoch, then level, all descending. Copies
    /// of one (step, epoch, level) are merged; fenced commits are left out.
    pub fn commits(&self) -> &[Commit] {
        &self.commits
    }

    /// The commits that the resume rule excludes, newest first.
    pub fn fenced(&self) -> &[Commit] {
        &self.fenced
    }

    /// The first epoch counter under which two runs wrote, and the error that says how to decide
    /// between them; what was written under it and later ones is not restarted from before that.
    #[must_use]
    pub fn undecided(&self, job: &JobName) -> Option<(u64, Error)> {
        let rivals = self.rivals.as_ref()?;
        Some((rivals.since, rivals.error(job)))
    }

    /// Why the resume rule excludes this record, which is one of [`Self::fenced`].
    #[must_use]
    pub fn why_fenced(&self, record: &CommitRecord) -> Option<&str> {
        let begin = does_not_count(record);
        let mut notes = self.notes.iter();
        notes.find_map(|note| note.strip_prefix(&begin))
    }

    /// The commits that would count but were rejected, newest first.
    pub fn rejected(&self) -> &[Commit] {
        &self.rejected
    }

    /// Whether this checkpoint is marked to be kept.
    #[must_use]
    pub fn is_kept(&self, step: Step, epoch: Epoch) -> bool {
        let key = choice_key(step, epoch, Decision::Kept);
        self.choices.contains_key(&key)
    }

    /// Who marked it to be kept, and why; `None` if nobody did, or if the file cannot be read.
    #[must_use]
    pub fn mark(&self, step: Step, epoch: Epoch) -> Option<&Choice> {
        let key = choice_key(step, epoch, Decision::Kept);
        self.choices.get(&key).and_then(Option::as_ref)
    }

    /// Who rejected this checkpoint, and why; `None` if nobody did, or if the file cannot be read.
    #[must_use]
    pub fn rejection(&self, step: Step, epoch: Epoch) -> Option<&Choice> {
        let key = choice_key(step, epoch, Decision::Rejected);
        self.choices.get(&key).and_then(Option::as_ref)
    }

    /// The claims of all epochs, ascending; each with its resumed record, once there is one.
    pub fn claims(&self) -> &[(Claim, Option<Resumed>)] {
        &self.claims
    }

    /// The newest step with a commit record sealed with a different key.
    pub fn other_key(&self) -> Option<Step> {
        self.other_key
    }

    /// Why the first commit record was not believed.
    pub fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }

    /// What was skipped and why, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The notes that report a fault: Corrupt for a damaged record, Unsupported for one of a newer
    /// version, otherwise the error of the disk.
    pub fn problems(&self) -> &[Error] {
        &self.problems
    }

    /// See the module `unread`.
    pub fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Every entry of every place: the index of the place, the entry, and its name if Orcheck gave
    /// it.
    pub fn files(&self) -> &[(usize, Entry, Option<FileName>)] {
        &self.files
    }

    /// The places in the order they were given.
    pub fn places(&self) -> &[Arc<dyn Dir>] {
        &self.places
    }
}

/// Beginning of the note that says why the resume rule excludes a commit.
fn does_not_count(record: &CommitRecord) -> String {
    format!(
        "step {} of epoch {} (level {}) does not count: ",
        record.step, record.epoch, record.level
    )
}

/// Why the resume rule excludes this commit, or `None`.
fn fenced_by(
    commit: &CommitRecord,
    claims: &BTreeMap<u64, Claim>,
    resumed: &BTreeMap<u64, Resumed>,
    oldest: &BTreeMap<u64, Step>,
) -> Option<String> {
    let counter = commit.epoch.counter;
    if let Some(claim) = claims.get(&counter)
        && claim.epoch.run != commit.epoch.run
        && !off(Switch::RunOfRecord)
    {
        return Some(format!(
            "epoch counter {counter} belongs to epoch {} of another run",
            claim.epoch
        ));
    }
    if off(Switch::Superseded) {
        return None;
    }
    resumed
        .range(counter.saturating_add(1)..)
        .find_map(|(_, later)| match later.step {
            None => Some(format!(
                "epoch {} started from nothing after it",
                later.epoch
            )),
            Some(step) if commit.step > step => {
                Some(format!("epoch {} resumed from step {step}", later.epoch))
            }
            Some(_) => None,
        })
        .or_else(|| {
            if off(Switch::SupersededByLater) {
                return None;
            }
            // The same without the resumed record: steps grow, so a later run must have resumed
            // from a step before its own.
            let (later, step) = oldest
                .range(counter.saturating_add(1)..)
                .find(|&(_, &step)| step <= commit.step)?;
            Some(format!("epoch {later} committed step {step} after it"))
        })
}

/// Whether a scan reads the file.
fn is_small(name: &FileName) -> bool {
    matches!(
        name,
        FileName::Commit { .. }
            | FileName::Claim { .. }
            | FileName::Resumed { .. }
            | FileName::Choice { .. }
    )
}

/// The name that notes give to this sort of small file.
fn sort_of(name: Option<&FileName>) -> &'static str {
    match name {
        Some(FileName::Commit { .. }) => "commit records",
        Some(FileName::Claim { .. }) => "claims",
        Some(FileName::Resumed { .. }) => "notes of resumption",
        _ => "choices",
    }
}

/// The note that a checkpoint is left out, and by whose decision.
fn describe_rejection(record: &CommitRecord, choice: &Option<Choice>) -> String {
    let who = choice.as_ref().map_or_else(String::new, |choice| {
        let why = match choice.why.is_empty() {
            true => String::new(),
            false => format!(": {}", choice.why),
        };
        format!(" by user {} on host {}{why}", choice.uid, choice.host)
    });
    format!(
        "step {} of epoch {} (level {}) was rejected{who}",
        record.step, record.epoch, record.level
    )
}

/// Maximum number of unreadable files of one sort in one place that have notes of their own.
const TOLD_MOST: usize = 8;

/// Files of one sort and place that cannot be read.
#[derive(Default)]
struct Unreadable {
    /// The last ones: whether each is a fault of the disk, and its path if it is skipped.
    last: VecDeque<(bool, Option<String>, Error)>,
    /// The number of further ones of each kind, and the first of them.
    more: Vec<(bool, u64, Error)>,
}

impl Unreadable {
    fn add(&mut self, is_fault: bool, skipped: Option<&str>, error: Error) {
        (self.last).push_back((is_fault, skipped.map(str::to_owned), error));
        // Breaks if: all are kept; a directory full of damaged files would fill the memory and the
        // user's screen.
        if self.last.len() <= TOLD_MOST || off(Switch::NotesBound) {
            return;
        }
        if let Some((is_fault, path, error)) = self.last.pop_front() {
            let error = match path {
                Some(path) => error.at(path),
                None => error,
            };
            let same = |(other, _, first): &&mut (bool, u64, Error)| {
                *other == is_fault && first.kind() == error.kind()
            };
            match self.more.iter_mut().find(same) {
                Some((_, count, _)) => *count += 1,
                None => self.more.push((is_fault, 1, error)),
            }
        }
    }
}

/// A scan in progress.
struct Scan<'a> {
    job: &'a JobName,
    places: &'a [Arc<dyn Dir>],
    trust: &'a Trust,
    refused: Option<Error>,
    other_key: Option<Step>,
    commits: BTreeMap<CommitKey, Vec<Commit>>,
    /// Each with the directories that hold it.
    claims: BTreeMap<u64, Vec<(Claim, Vec<String>)>>,
    resumed: BTreeMap<u64, Resumed>,
    choices: BTreeMap<ChoiceKey, Option<Choice>>,
    files: Vec<(usize, Entry, Option<FileName>)>,
    foreign: Vec<Vec<String>>,
    notes: Vec<String>,
    problems: Vec<Error>,
    /// Why commit records do not count, by place and name.
    unread: BTreeMap<(usize, String), Error>,
}

impl<'a> Scan<'a> {
    fn new(job: &'a JobName, places: &'a [Arc<dyn Dir>], trust: &'a Trust) -> Self {
        Scan {
            job,
            places,
            trust,
            refused: None,
            other_key: None,
            commits: BTreeMap::new(),
            claims: BTreeMap::new(),
            resumed: BTreeMap::new(),
            choices: BTreeMap::new(),
            files: Vec::new(),
            foreign: vec![Vec::new(); places.len()],
            notes: Vec::new(),
            problems: Vec::new(),
            unread: BTreeMap::new(),
        }
    }

    /// Reports what could not be read in a place.
    fn tell(&mut self, dir: &dyn Dir, sorts: &str, unread: Unreadable) {
        let summed = unread.more.into_iter().map(|(is_fault, count, first)| {
            let place = format!(
                "skipped {count} more such files ({sorts}) in {}; the first of them",
                dir.path().display()
            );
            (is_fault, first.at(place))
        });
        let last = unread.last.into_iter();
        let last = last.map(|(is_fault, path, error)| match path {
            Some(path) => (is_fault, error.at(format!("skipped {path}"))),
            None => (is_fault, error),
        });
        for (is_fault, error) in summed.chain(last) {
            match is_fault {
                true => self.skip(error),
                false => self.notes.push(error.to_string()),
            }
        }
    }

    fn skip(&mut self, error: Error) {
        self.notes.push(error.to_string());
        self.problems.push(error);
    }

    fn read_place(&mut self, place: usize, dir: &dyn Dir, entries: Vec<Entry>) {
        let mut unread: BTreeMap<&str, Unreadable> = BTreeMap::new();
        for entry in entries {
            let name = FileName::parse(&entry.name);
            // Breaks if: directories are skipped; one in place of the newest commit record would
            // hide the checkpoint.
            let name = name.filter(|name| !entry.is_dir || is_small(name));
            match &name {
                None if entry.is_dir => {}
                None => self.foreign[place].push(entry.name.clone()),
                Some(name_of_small) if is_small(name_of_small) => {
                    let path = dir.path().join(&entry.name).display().to_string();
                    let unread = unread.entry(sort_of(name.as_ref())).or_default();
                    match read_small(dir, &entry.name, RECORD_LIMIT_BYTES) {
                        Ok(bytes) => {
                            let taken = match &name {
                                Some(FileName::Commit { .. }) => {
                                    self.take_commit(place, &entry.name, &bytes)
                                }
                                Some(FileName::Claim { epoch }) => {
                                    self.take_claim(*epoch, &bytes, dir)
                                }
                                Some(FileName::Resumed { epoch }) => {
                                    self.take_resumed(*epoch, &bytes, unread)
                                }
                                Some(name @ FileName::Choice { .. }) => {
                                    self.take_choice(name, &bytes)
                                }
                                _ => Ok(()),
                            };
                            match taken {
                                Ok(()) => {}
                                // A run that died while it claimed leaves a torn claim. It
                                // restricts nothing, so it is not a fault of the disk.
                                Err(error) => {
                                    let torn = matches!(name, Some(FileName::Claim { .. }));
                                    self.keep_why(place, &entry.name, &name, &error);
                                    unread.add(!torn, Some(&path), error);
                                }
                            }
                        }
                        // Another process has pruned it since the listing.
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => {
                            self.keep_why(place, &entry.name, &name, &error);
                            unread.add(true, Some(&path), error);
                        }
                    }
                }
                Some(_) => {}
            }
            self.files.push((place, entry, name));
        }
        for (sort, unread) in unread {
            self.tell(dir, sort, unread);
        }
    }

    /// Remembers why a commit record does not count, also if there is no note about it.
    fn keep_why(&mut self, place: usize, file: &str, name: &Option<FileName>, error: &Error) {
        if matches!(name, Some(FileName::Commit { .. })) {
            (self.unread).insert((place, file.to_owned()), error.clone());
        }
    }

    fn check_job(&self, found: &JobName) -> Result<()> {
        if found == self.job || off(Switch::JobInRecord) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the record belongs to another job: expected {}, found {}",
            self.job.as_str(),
            found.as_str()
        ))
        .next("move the file back to the directory of its own job"))
    }

    fn take_commit(&mut self, place: usize, name: &str, bytes: &[u8]) -> Result<()> {
        let record = CommitRecord::decode(bytes)?;
        let proof = self.trust.check(bytes).inspect_err(|error| {
            self.refused.get_or_insert_with(|| error.clone());
            if error.is(Detail::OtherKey) {
                self.other_key = self.other_key.max(Some(record.step));
            }
        })?;
        self.check_job(&record.job)?;
        let expected = FileName::commit(record.step, record.epoch, record.level).to_string();
        if name != expected && !off(Switch::NameInRecord) {
            // Breaks if: this comparison is dropped; a renamed record would pass for another step.
            return Err(Error::corrupt(format!(
                "the file name and the record disagree: the record belongs in {expected}"
            ))
            .next("rename the file back"));
        }
        let variants = self
            .commits
            .entry((record.step, record.epoch, record.level))
            .or_default();
        let same = |commit: &&mut Commit| commit.record == record && commit.proof == proof;
        match variants.iter_mut().find(same) {
            Some(commit) => commit.copies.push(place),
            None => variants.push(Commit {
                record,
                copies: vec![place],
                proof,
            }),
        }
        Ok(())
    }

    fn take_claim(&mut self, counter: u64, bytes: &[u8], dir: &dyn Dir) -> Result<()> {
        let claim = Claim::decode(bytes)?;
        // A claim that is not believed restricts nothing, and each run with another key leaves one:
        // no note.
        if self.trust.check(bytes).is_err() {
            return Ok(());
        }
        self.check_job(&claim.job)?;
        if claim.epoch.counter != counter {
            return Err(Error::corrupt(format!(
                "the file name and the claim disagree: name says epoch {counter}, claim says {}",
                claim.epoch
            )));
        }
        let claims = self.claims.entry(counter).or_default();
        let place = dir.path().display().to_string();
        match claims
            .iter_mut()
            .find(|(other, _)| other.epoch == claim.epoch)
        {
            Some((_, places)) => places.push(place),
            None => claims.push((claim, vec![place])),
        }
        Ok(())
    }

    fn take_resumed(&mut self, counter: u64, bytes: &[u8], unread: &mut Unreadable) -> Result<()> {
        let resumed = Resumed::decode(bytes)?;
        // Breaks if: it counts; anybody who can write could hide the newest checkpoints behind an
        // invented run.
        if let Err(error) = self.trust.check(bytes) {
            let what = format!("the note of resumption of epoch {counter} does not count");
            unread.add(false, None, error.at(what));
            return Ok(());
        }
        self.check_job(&resumed.job)?;
        if resumed.epoch.counter != counter {
            return Err(Error::corrupt(format!(
                "the file name and the resumed record disagree: name says epoch {counter}, record says {}",
                resumed.epoch
            )));
        }
        // If copies differ, the one that fences more wins: a step that a run resumed from before
        // must never come back.
        match self.resumed.get(&counter) {
            Some(known) if known.step <= resumed.step && !off(Switch::FencesMore) => {}
            _ => {
                self.resumed.insert(counter, resumed);
            }
        }
        Ok(())
    }

    /// A choice counts by its name: a checkpoint that the program found wrong must not come back
    /// because this file was damaged.
    fn take_choice(&mut self, name: &FileName, bytes: &[u8]) -> Result<()> {
        let FileName::Choice {
            step,
            epoch,
            run,
            decision,
        } = *name
        else {
            return Ok(());
        };
        let read = Choice::decode(bytes);
        if let Ok(choice) = &read {
            self.check_job(&choice.job)?;
        }
        let read = read.and_then(|choice| match choice.file_name() == *name {
            true => Ok(choice),
            false => Err(Error::corrupt(format!(
                "the file name and the choice disagree: the choice belongs in {}",
                choice.file_name()
            ))),
        });
        let known = self
            .choices
            .entry(((step, epoch, run), decision))
            .or_default();
        let choice = read?;
        known.get_or_insert(choice);
        Ok(())
    }

    fn finish(mut self) -> Result<Catalog> {
        let (claims, rivals) = self.settle_claims();
        let Sorted {
            commits,
            fenced,
            rejected,
        } = self.sort_commits(&claims);
        self.note_foreign_files();
        let mut resumed = self.resumed;
        let catalog = Catalog {
            places: self.places.to_vec(),
            commits,
            fenced,
            rejected,
            choices: self.choices,
            claims: claims
                .into_iter()
                .map(|(counter, claim)| (claim, resumed.remove(&counter)))
                .collect(),
            notes: self.notes,
            problems: self.problems,
            refused: self.refused,
            other_key: self.other_key,
            files: self.files,
            unread: Vec::new(),
            rivals,
        };
        Ok(Catalog {
            unread: unread::find(&catalog, self.unread),
            ..catalog
        })
    }

    /// Sorts the commits into those that count, those that are superseded, and those that were
    /// rejected; newest first.
    fn sort_commits(&mut self, claims: &BTreeMap<u64, Claim>) -> Sorted {
        let mut oldest: BTreeMap<u64, Step> = BTreeMap::new();
        for (step, epoch, _) in self.commits.keys() {
            let first = oldest.entry(epoch.counter).or_insert(*step);
            *first = (*first).min(*step);
        }
        let mut sorted = Sorted::default();
        for (key, variants) in std::mem::take(&mut self.commits).into_iter().rev() {
            let commit = self.best_of(key, variants);
            if let Some(why) = fenced_by(&commit.record, claims, &self.resumed, &oldest) {
                let note = format!("{}{why}", does_not_count(&commit.record));
                let claimed = claims.get(&key.1.counter);
                if claimed.is_some_and(|claim| claim.epoch.run != key.1.run) {
                    // Two runs have files under one counter: somebody mixed directories.
                    self.skip(Error::fenced(note));
                } else {
                    self.notes.push(printable(note));
                }
                sorted.fenced.push(commit);
                continue;
            }
            let rejection = choice_key(key.0, key.1, Decision::Rejected);
            let known = self.choices.get(&rejection);
            match known.filter(|_| !off(Switch::Rejected)) {
                None => sorted.commits.push(commit),
                Some(choice) => {
                    // Breaks if: it is offered all the same; the program would find it wrong at
                    // every restart.
                    self.notes.push(describe_rejection(&commit.record, choice));
                    sorted.rejected.push(commit);
                }
            }
        }
        sorted
    }

    /// The record that counts if copies in different places differ.
    fn best_of(&mut self, (step, epoch, level): CommitKey, mut variants: Vec<Commit>) -> Commit {
        if variants.len() > 1 {
            // Verified records first, then those with the most copies; the sort is stable, so ties
            // keep the order of the places.
            variants.sort_by_key(|commit| {
                std::cmp::Reverse((commit.proof == Proof::Sealed, commit.copies.len()))
            });
            let others = variants[1..].iter().flat_map(|other| &other.copies);
            let places: Vec<String> = others
                .map(|&place| self.places[place].path().display().to_string())
                .collect();
            let differ = Error::corrupt(format!(
                "commit records of step {step} epoch {epoch} level {level} differ between places; \
                 the one with the most copies counts, not the one in {}",
                places.join(", ")
            ));
            self.skip(differ);
        }
        variants.swap_remove(0)
    }

    fn note_foreign_files(&mut self) {
        for (place, names) in self.foreign.iter_mut().enumerate() {
            names.sort();
            if let Some(first) = names.first() {
                self.notes.push(printable(format!(
                    "{} file{} in {} not written by Orcheck left alone (first: {first})",
                    names.len(),
                    if names.len() == 1 { "" } else { "s" },
                    self.places[place].path().display()
                )));
            }
        }
    }
}

/// Commits, by whether they count.
#[derive(Default)]
struct Sorted {
    commits: Vec<Commit>,
    fenced: Vec<Commit>,
    rejected: Vec<Commit>,
}
