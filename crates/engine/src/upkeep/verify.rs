//! Verifies a whole checkpoint: every byte that a restore would read, and every byte that only a
//! rescue would.
//!
//! How: each container is opened as by a restore. Every extent is read and its checksum compared.
//! Then the file is walked from its header through rank headers and rank records to the trailer,
//! the records are compared with the manifest, and the padding must be zero. Verification continues
//! after a finding. If several places hold a container, as at level `peers`, every copy is read,
//! and damage in one copy is not a loss if another copy is good. With parity, a container without a
//! good copy is computed and verified like a copy, and every parity file is read.
//!
//! Invariants:
//! 1. If a verdict has no findings, every region of every rank can be restored (an encrypted one:
//!    was stored whole), and the container could even be rebuilt without its trailer and manifest.
//! 2. A finding that is not `fatal` costs no data.
//! 3. The findings kept per container are bounded; further ones are only counted.
//! 4. Nothing is written.
//!
//! Faults survived: any damage; a container that is missing or cannot be opened is a finding.
//!
//! Not here: damaged commit records (the catalog notes them), and repair.

use orcheck_format::sabotage::{Switch, off};
use std::collections::BTreeSet;
use std::sync::Arc;

use orcheck_format::disk::{
    BLOCK_BYTES, CommitRecord, ContainerRef, Extent, FileName, Manifest, RankRecord, TRAILER_BYTES,
};
use orcheck_format::{Error, ErrorKind, NodeId, Rank, Result};
use orcheck_io::disk::{Dir, File};

use crate::encoding::{Proof, Trust};
use crate::replicas::{
    Rebuilt, check_recorded, compare_with_parity, parity_trailer, verify_parity,
};
use crate::restart::reader::{
    PIECE_BYTES, Reader, beside_a_good_copy, is_striped, manifest_of, nowhere, padded, part_at,
    walk,
};

/// Maximum number of findings kept for one container.
pub const MAX_FINDINGS: usize = 100;

/// A fault in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of fault.
    pub kind: ErrorKind,
    /// Whether data is lost: a restore of this rank (or of the whole container) fails.
    pub fatal: bool,
    /// The rank concerned, if there is one.
    pub rank: Option<Rank>,
    /// The region concerned, if there is one.
    pub region: Option<String>,
    /// What is wrong, where, what was expected and what was found.
    pub message: String,
}

/// The findings about one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerVerdict {
    /// File name of the container.
    pub file: String,
    /// Full path of the copy that was read, the best if there are several; `None` if none could be
    /// opened.
    pub path: Option<String>,
    /// Copies found in the places.
    pub copies: u32,
    /// How many of them have lost nothing.
    pub good_copies: u32,
    /// Index of the node that wrote it.
    pub node: NodeId,
    /// Ranks read.
    pub ranks: u64,
    /// Regions read.
    pub regions: u64,
    /// Bytes of regions read and compared.
    pub checked_bytes: u64,
    /// Encrypted bytes among these that were compared only as stored, because the key is missing.
    pub locked_bytes: u64,
    /// Faults, at most [`MAX_FINDINGS`].
    pub findings: Vec<Finding>,
    /// Findings beyond that.
    pub more_findings: u64,
}

/// The findings about one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// One entry per container of the commit record, in its order.
    pub containers: Vec<ContainerVerdict>,
    /// Parity files that are missing or damaged; no data is lost by that alone.
    pub parity: Vec<Finding>,
}

impl Verdict {
    /// Whether nothing at all is wrong.
    pub fn is_good(&self) -> bool {
        self.findings().next().is_none()
    }

    /// Whether every region of every rank can be restored.
    pub fn is_restorable(&self) -> bool {
        self.findings().all(|finding| !finding.fatal)
    }

    /// All findings kept.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let containers = self.containers.iter();
        containers
            .flat_map(|container| &container.findings)
            .chain(&self.parity)
    }

    /// Bytes of encrypted regions that were compared only as stored.
    pub fn locked_bytes(&self) -> u64 {
        self.containers
            .iter()
            .map(|container| container.locked_bytes)
            .sum()
    }

    /// Bytes of regions read and compared.
    pub fn checked_bytes(&self) -> u64 {
        self.containers
            .iter()
            .map(|container| container.checked_bytes)
            .sum()
    }
}

/// As [`verify_commit_with`], without a key.
///
/// # Errors
/// As [`verify_commit_with`].
pub fn verify_commit(
    places: &[Arc<dyn Dir>],
    commit: &CommitRecord,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verdict> {
    let nobody = (&Trust::nobody(), Proof::Unchecked);
    verify_commit_with(places, commit, nobody, progress)
}

/// Reads and verifies everything of a checkpoint; of an encrypted one without its key, only what is
/// stored. `progress` is called with the bytes done and the total, which grows while stripes are
/// found.
///
/// # Errors
/// Never for damage, which the verdict holds; `Invalid` if no place is given, or for a wrong key.
pub fn verify_commit_with(
    places: &[Arc<dyn Dir>],
    commit: &CommitRecord,
    (trust, proof): (&Arc<Trust>, Proof),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verdict> {
    if places.is_empty() {
        return Err(
            Error::invalid("no directory given to verify").next("name the job's directories")
        );
    }
    let total = commit
        .containers
        .iter()
        .map(|container| container.len_bytes);
    let parity = if commit.groups.is_empty() {
        Vec::new()
    } else {
        parity_findings(places, commit)
    };
    let rebuilt = (!commit.groups.is_empty()).then(|| Rebuilt::of(places, Some(commit)));
    let rebuilt = rebuilt.flatten();
    let all: Vec<Arc<dyn Dir>> = places.iter().chain(&rebuilt).cloned().collect();
    let mut pass = Pass {
        places: &all,
        rebuilt: rebuilt.is_some(),
        commit,
        trust: (trust, proof),
        total_bytes: total.sum(),
        done_bytes: 0,
        progress,
    };
    let containers = (commit.containers.iter()).map(|container| pass.container(container));
    let containers = containers.collect::<Result<_>>()?;
    Ok(Verdict { containers, parity })
}

/// Reads every parity file of a checkpoint, wherever it is first.
fn parity_findings(places: &[Arc<dyn Dir>], commit: &CommitRecord) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in parity_files(commit) {
        let mut found = Err(Error::not_found(format!(
            "parity file {name} of step {} is in none of these places",
            commit.step
        )));
        for dir in places {
            match check_parity(dir.as_ref(), &name, commit) {
                Ok(()) => found = Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => found = Err(error),
            }
            break;
        }
        if let Err(error) = found {
            let error = error.next("run `orcheck verify --repair`, or restart the job");
            findings.push(finding(&error, false, None, None));
        }
    }
    findings
}

/// Verifies a parity file, and that it protects what the record names.
///
/// # Errors
/// As [`verify_parity`]; Corrupt if it is of another group or of other containers.
pub(crate) fn check_parity(dir: &dyn Dir, name: &str, commit: &CommitRecord) -> Result<()> {
    // Before any block is read: a forged length would keep this busy.
    let trailer = parity_trailer(dir, name)?;
    let path = dir.path().join(name).display().to_string();
    check_recorded(&trailer, commit, &path)?;
    verify_parity(dir, name).map(|_| ())
}

/// The names of the parity files of a checkpoint.
#[must_use]
pub fn parity_files(commit: &CommitRecord) -> BTreeSet<String> {
    let of_container = |container: &ContainerRef| -> Option<Vec<String>> {
        let group = commit.group_of(container.node)?;
        let name = FileName::parse(&container.file)?;
        let others = group.nodes.iter().filter(|&&node| node != container.node);
        let parity = others.filter_map(|&node| Some(name.parity_on(node)?.to_string()));
        Some(parity.collect())
    };
    let all = commit.containers.iter().filter_map(of_container);
    all.flatten().collect()
}

/// One pass over all copies of all containers of a checkpoint.
struct Pass<'a> {
    places: &'a [Arc<dyn Dir>],
    /// Whether the last place has what can be computed from parity.
    rebuilt: bool,
    commit: &'a CommitRecord,
    trust: (&'a Arc<Trust>, Proof),
    /// Grows while stripes and further copies are found.
    total_bytes: u64,
    done_bytes: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Pass<'_> {
    fn container(&mut self, container: &ContainerRef) -> Result<ContainerVerdict> {
        let (places, commit) = (self.places, self.commit);
        let mut copies = Vec::new();
        let (mut opened_one, mut computed, mut no_key) = (false, false, None);
        let stored = places.len() - usize::from(self.rebuilt);
        for (place, dir) in places.iter().enumerate() {
            if place == stored && !copies.iter().all(has_lost) {
                break;
            }
            let missing = place == stored && copies.is_empty();
            let named = (commit, container);
            let opened = Reader::open_copy(dir.as_ref(), places, named, self.trust);
            if matches!(opened, Ok(None)) {
                continue;
            }
            // The first copy was counted as if it were the only one.
            self.total_bytes += match copies.is_empty() {
                true => 0,
                false => container.len_bytes,
            };
            let mut check = Check::new(container);
            match opened {
                // Breaks if: one copy that is not believed ends this; nothing would be reported
                // about the others.
                Err(error) => {
                    check.find(&error, true, None, None);
                    no_key = no_key.or(Some(error).filter(|e| e.kind() == ErrorKind::Invalid));
                }
                Ok(None) => {}
                Ok(Some(reader)) => {
                    opened_one = true;
                    let stripes = reader.stripe_bytes();
                    self.total_bytes += stripes;
                    let (before, total) = (self.done_bytes, self.total_bytes);
                    let progress = &mut self.progress;
                    check.container(&reader, commit, container, &mut |done| {
                        progress(before + done, total)
                    });
                    self.done_bytes += stripes;
                    if self.rebuilt && place < stored {
                        check.against_parity(dir.as_ref(), (places, commit));
                    }
                }
            }
            self.done(container.len_bytes);
            if missing && !has_lost(&check.verdict) {
                check.is_computed();
            }
            computed = place == stored && !has_lost(&check.verdict);
            copies.push(check.verdict);
        }
        // With a different key, nothing can be said about any copy.
        if let Some(error) = no_key.filter(|_| !opened_one) {
            return Err(error);
        }
        if !copies.is_empty() {
            return Ok(of_all_copies(copies, computed));
        }
        self.done(container.len_bytes);
        let mut check = Check::new(container);
        check.find(&nowhere(places, commit, container), true, None, None);
        Ok(check.verdict)
    }

    fn done(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.progress)(self.done_bytes, self.total_bytes);
    }
}

/// Reads and verifies what one directory holds of a container. Data to which it refers in other
/// containers is verified where those are; an encrypted container is read as it is stored. `None`
/// if the container does not exist, or if that directory alone cannot verify it (stripes that are
/// in none of `places`).
pub fn verify_here(
    dir: &dyn Dir,
    places: &[Arc<dyn Dir>],
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Option<ContainerVerdict> {
    let mut check = Check::new(container);
    check.here = true;
    let nobody = (&Trust::nobody(), Proof::Unchecked);
    match Reader::open_copy(dir, places, (commit, container), nobody) {
        Ok(None) => return None,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            let path = dir.path().join(&container.file).display().to_string();
            check.verdict.path = Some(path);
            check.find(&error, true, None, None);
        }
        Ok(Some(reader)) => check.container(&reader, commit, container, &mut |_| {}),
    }
    Some(check.verdict)
}

/// Whether a copy has lost data.
fn has_lost(copy: &ContainerVerdict) -> bool {
    copy.findings.iter().any(|finding| finding.fatal)
}

/// Combines the verdicts on the copies of a container: data is lost only if it is lost in all
/// copies. `computed`: the last one was computed from parity.
fn of_all_copies(mut copies: Vec<ContainerVerdict>, computed: bool) -> ContainerVerdict {
    let whole = copies.iter().filter(|copy| !has_lost(copy)).count();
    let lost: Vec<Lost> = copies.iter().map(Lost::of).collect();
    let worth = |copy: &ContainerVerdict| {
        let fatal = copy.findings.iter().filter(|finding| finding.fatal);
        (fatal.count(), copy.findings.len())
    };
    let best = (0..copies.len()).min_by_key(|&at| worth(&copies[at]));
    let mut all = copies.swap_remove(best.unwrap_or_default());
    all.copies = lost.len() as u32;
    all.good_copies = whole.saturating_sub(usize::from(computed)) as u32;
    let others = copies.into_iter().flat_map(|copy| {
        all.checked_bytes += copy.checked_bytes;
        all.locked_bytes += copy.locked_bytes;
        all.more_findings += copy.more_findings;
        copy.findings
    });
    let others: Vec<Finding> = others.collect();
    all.findings.extend(others);
    for finding in all.findings.iter_mut().filter(|finding| finding.fatal) {
        // Breaks if: one good copy does not count; a replica would be kept for nothing.
        if lost.iter().any(|lost| !lost.holds(finding)) && !off(Switch::OtherPlace) {
            finding.fatal = false;
            finding.message = beside_a_good_copy(&finding.message);
        }
    }
    // Findings beyond the bound matter less than those kept.
    all.findings.sort_by_key(|finding| !finding.fatal);
    all.more_findings += all.findings.len().saturating_sub(MAX_FINDINGS) as u64;
    all.findings.truncate(MAX_FINDINGS);
    all
}

/// The data that a copy of a container has lost.
enum Lost {
    Everything,
    Regions(BTreeSet<(Rank, Option<String>)>),
}

impl Lost {
    fn of(copy: &ContainerVerdict) -> Self {
        let mut regions = BTreeSet::new();
        for finding in copy.findings.iter().filter(|finding| finding.fatal) {
            // There were more findings than could be kept, so it is not known which ranks are
            // affected.
            let Some(rank) = finding.rank.filter(|_| copy.more_findings == 0) else {
                return Self::Everything;
            };
            regions.insert((rank, finding.region.clone()));
        }
        Self::Regions(regions)
    }

    fn holds(&self, finding: &Finding) -> bool {
        match (self, finding.rank) {
            (Self::Everything, _) => true,
            // The whole container is lost here, and this copy exists.
            (Self::Regions(_), None) => false,
            (Self::Regions(regions), Some(rank)) => {
                regions.contains(&(rank, None)) || regions.contains(&(rank, finding.region.clone()))
            }
        }
    }
}

struct Check {
    verdict: ContainerVerdict,
    /// Whether only what the container itself stores is read.
    here: bool,
}

impl Check {
    fn new(container: &ContainerRef) -> Self {
        Check {
            here: false,
            verdict: ContainerVerdict {
                file: container.file.clone(),
                path: None,
                copies: 0,
                good_copies: 0,
                node: container.node,
                ranks: 0,
                regions: 0,
                checked_bytes: 0,
                locked_bytes: 0,
                findings: Vec::new(),
                more_findings: 0,
            },
        }
    }

    fn find(&mut self, error: &Error, fatal: bool, rank: Option<Rank>, region: Option<&str>) {
        if self.verdict.findings.len() >= MAX_FINDINGS {
            self.verdict.more_findings += 1;
            // A fatal finding is never dropped in favour of harmless ones.
            let Some(slot) = self
                .verdict
                .findings
                .iter_mut()
                .rev()
                .find(|kept| fatal && !kept.fatal)
            else {
                return;
            };
            *slot = finding(error, fatal, rank, region);
            return;
        }
        self.verdict
            .findings
            .push(finding(error, fatal, rank, region));
    }

    /// Compares the copy in this directory with what its parity says.
    // Breaks if: it is left out; what no restore reads could be damaged, and with it what parity
    // computes from it.
    fn against_parity(&mut self, dir: &dyn Dir, places: (&[Arc<dyn Dir>], &CommitRecord)) {
        if let Err(error) = compare_with_parity(dir, &self.verdict.file, places) {
            let error = error.next("run `orcheck verify --repair`");
            self.find(&error, false, None, None);
        }
    }

    /// Notes that the container is nowhere, and was computed.
    fn is_computed(&mut self) {
        let what = format!("{} is in none of these places", self.verdict.file);
        let error = Error::not_found(format!("{what}, and can be computed from parity"));
        let error = error.next("run `orcheck verify --repair`, or restart the job");
        self.find(&error, false, None, None);
    }

    fn container(
        &mut self,
        reader: &Reader,
        commit: &CommitRecord,
        container: &ContainerRef,
        progress: &mut dyn FnMut(u64),
    ) {
        self.verdict.path = Some(reader.own_file().name());
        for note in reader.take_notes() {
            self.find(&Error::corrupt(note), false, None, None);
        }
        for rank in container
            .ranks
            .iter()
            .flat_map(|(first, count)| (first.0..=first.0 + (count - 1)).map(Rank))
        {
            if reader
                .manifest()
                .ranks
                .binary_search_by_key(&rank, |record| record.rank)
                .is_err()
            {
                self.find(
                    &Error::corrupt(format!("rank {rank} is missing in {}", container.file)),
                    true,
                    Some(rank),
                    None,
                );
            }
        }
        let mut done = 0;
        for record in &reader.manifest().ranks {
            self.verdict.ranks += 1;
            self.regions(reader, record, &mut done, progress);
        }
        self.structures(reader, commit, container);
    }

    fn regions(
        &mut self,
        reader: &Reader,
        record: &RankRecord,
        done: &mut u64,
        progress: &mut dyn FnMut(u64),
    ) {
        let rank = record.rank;
        for region in &record.regions {
            self.verdict.regions += 1;
            if region.same_as.is_some() && self.here {
                continue;
            }
            if region.same_as.is_some() {
                // The bytes are checked where they are stored; here only that they are stored.
                if let Err(error) = reader.with_owner(rank, region, |_, _, _| Ok(())) {
                    self.find(&error, true, Some(rank), Some(&region.name));
                }
                continue;
            }
            let mut damage = Vec::new();
            let here = self.here;
            let wanted = |extent: &Extent| extent.container.is_none() || !here;
            let locked_bytes = reader.check_region(
                (rank, region),
                &wanted,
                &mut |error| damage.push(error),
                &mut |bytes| {
                    *done += bytes;
                    progress(*done);
                },
            );
            for error in &damage {
                self.find(error, true, Some(rank), Some(&region.name));
            }
            self.verdict.checked_bytes += region.len_bytes;
            self.verdict.locked_bytes += locked_bytes;
        }
    }

    /// Checks what no restore needs: rank headers, rank records, padding.
    fn structures(&mut self, reader: &Reader, commit: &CommitRecord, container: &ContainerRef) {
        let file = reader.own_file();
        let header = reader.header();
        let alignment = u64::from(header.alignment_bytes);
        let end = reader.file_len_bytes();
        let mut expected: Vec<&RankRecord> = reader.manifest().ranks.iter().collect();
        let mut at = alignment;
        let mut sound = true;
        self.zeros(file, BLOCK_BYTES as u64, at);
        while !expected.is_empty() {
            match part_at(file, header, alignment, at, end) {
                Ok(part) => {
                    let stream_len = if is_striped(header) {
                        0
                    } else {
                        part.record.stream_len_bytes
                    };
                    let stream_end = part.stream_at + stream_len;
                    self.zeros(file, part.header_at + BLOCK_BYTES as u64, part.stream_at);
                    self.zeros(file, stream_end, part.record_at);
                    self.zeros(file, part.record_at + part.record_len_bytes, part.end);
                    expected.retain(|record| record.rank != part.record.rank);
                    at = part.end;
                }
                Err(error) => {
                    sound = false;
                    self.find(
                        &error.next("no data is lost, but keep another copy"),
                        false,
                        None,
                        None,
                    );
                    // The damaged part is skipped if its length is known from the manifest.
                    let Some(next) = after_damage(file, header, alignment, at, end, &mut expected)
                    else {
                        break;
                    };
                    at = next;
                }
            }
        }
        // If everything was sound, only the manifest follows.
        let (parts, stopped) = walk(file, header, if sound { at } else { end });
        let whole = parts.len() == reader.manifest().ranks.len();
        if sound && !whole {
            // It was all there a moment ago: what was not compared must not appear to have been.
            self.find(&stopped.next("verify again"), false, None, None);
        }
        if whole
            && !same_manifest(
                &manifest_of(parts, header, commit, container),
                reader.manifest(),
            )
        {
            self.find(
                &Error::corrupt(format!(
                    "{}: the rank records and the manifest differ",
                    file.name()
                ))
                .next("no data is lost, but keep another copy"),
                false,
                None,
                None,
            );
        }
        if expected.is_empty() && whole {
            let manifest_len = reader.manifest().encode().len() as u64;
            self.zeros(file, at + manifest_len, end - TRAILER_BYTES as u64);
        }
    }

    /// Checks that the bytes from `from` to `to` are zero.
    fn zeros(&mut self, file: &dyn File, from: u64, to: u64) {
        let mut at = from;
        let mut piece = Vec::new();
        while at < to {
            let len = PIECE_BYTES.min(to - at);
            piece.resize(len as usize, 0);
            if let Err(error) = file.read_at(&mut piece, at) {
                self.find(&error, false, None, None);
                return;
            }
            if let Some(index) = piece.iter().position(|&byte| byte != 0)
                && !off(Switch::Padding)
            {
                let error = Error::corrupt(format!(
                    "{}: padding at bytes {from}..{to}: expected zeros, found {:#04x} at byte {}",
                    file.name(),
                    piece[index],
                    at + index as u64
                ))
                .next("no data is lost, but have the storage checked");
                self.find(&error, false, None, None);
                return;
            }
            at += len;
        }
    }
}

/// Whether the rank records and the manifest agree. With stripes, only the manifest knows.
fn same_manifest(rebuilt: &Manifest, stored: &Manifest) -> bool {
    if stored.stores.len() == 1 {
        return rebuilt == stored;
    }
    let without_places = |manifest: &Manifest| {
        let mut ranks = manifest.ranks.clone();
        for extent in ranks
            .iter_mut()
            .flat_map(|rank| &mut rank.regions)
            .flat_map(|region| &mut region.extents)
        {
            (extent.store, extent.physical) = (0, 0);
        }
        ranks
    };
    without_places(rebuilt) == without_places(stored)
}

fn finding(error: &Error, fatal: bool, rank: Option<Rank>, region: Option<&str>) -> Finding {
    Finding {
        kind: error.kind(),
        fatal,
        rank,
        region: region.map(str::to_string),
        message: error.to_string(),
    }
}

/// Finds the beginning of the part after a damaged one: the offset that follows from the manifest's
/// stream length and the length of the record, if a part (or the end of the parts) really is there.
fn after_damage(
    file: &dyn File,
    header: &orcheck_format::disk::ContainerHeader,
    alignment: u64,
    at: u64,
    end: u64,
    expected: &mut Vec<&RankRecord>,
) -> Option<u64> {
    for index in 0..expected.len() {
        let record = expected[index];
        let stream_at = at.checked_add(alignment)?;
        let own = record.regions.iter().flat_map(|region| &region.extents);
        let mut own = own.filter(|extent| extent.container.is_none() && extent.store == 0);
        if own.any(|extent| {
            extent.physical < stream_at || extent.physical - stream_at >= record.stream_len_bytes
        }) {
            // The manifest has this rank at another offset.
            continue;
        }
        let in_file = if is_striped(header) {
            0
        } else {
            record.stream_len_bytes
        };
        let stream_end = stream_at.checked_add(in_file)?;
        let record_at = padded(stream_end, alignment)?;
        let next = padded(
            record_at.checked_add(framed_len_bytes(record, stream_at))?,
            alignment,
        )?;
        let last = expected.len() == 1;
        if next < end && (last || part_at(file, header, alignment, next, end).is_ok()) {
            expected.remove(index);
            return Some(next);
        }
    }
    None
}

/// Length of the framed rank record for this entry of the manifest.
fn framed_len_bytes(record: &RankRecord, stream_at: u64) -> u64 {
    let mut relative = record.clone();
    for extent in relative
        .regions
        .iter_mut()
        .flat_map(|region| &mut region.extents)
    {
        if extent.container.is_none() && extent.store == 0 {
            extent.physical = extent.physical.saturating_sub(stream_at);
        }
    }
    orcheck_format::disk::encode_rank_record(&relative).len() as u64
}
