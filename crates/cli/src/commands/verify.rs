//! Implements `orcheck verify`, which reads everything and checks every checksum, and with
//! `--repair` makes damaged or missing files again first.
//!
//! Exit code 0: all good. 3: damage that loses no data, or with `--all` older checkpoints are
//! damaged while the newest is good. 5: the checkpoint (with `--all`: every one) is damaged. 6: the
//! newest requested checkpoint is damaged, and an older one, which is named, is good. 15: nothing
//! is damaged, but a directory that may hold missing data cannot be read, or was not given; or the
//! commit record of a newer step is here and cannot be read. A damaged commit record or container
//! that has a good copy is damage that loses no data. For an encrypted checkpoint without its key,
//! the stored bytes are checked, and the report says that it is not authenticated, whatever its
//! checksums say.

use orcheck_engine::directory::halt::NewestRun;
use orcheck_engine::directory::{Commit, UnreadStep};
use orcheck_engine::encoding::{Proof, Trust};
use orcheck_engine::upkeep::{Finding, Repair, Verdict, repair, verify_commit_with};
use orcheck_format::disk::{CommitRecord, ContainerRef};
use orcheck_format::{Detail, Error, ErrorKind, Step, without_next};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::args::{VerifyArgs, Which};
use crate::exit;
use crate::job::{Job, trust};
use crate::output::{
    Failure, Outcome, Tone, cell, count, draw_together, plain, progress_bar, right, size, table,
    table_text,
};

struct Checked<'a> {
    commit: &'a Commit,
    verdict: Verdict,
    /// A directory could not be read.
    hidden: bool,
    /// Containers that were written where nobody looked: by file, with that place.
    elsewhere: BTreeMap<String, String>,
}

impl Checked<'_> {
    /// Whether nothing in it is encrypted, or the key verified all of it.
    fn is_proven(&self) -> bool {
        self.commit.proof != Proof::Unchecked && self.verdict.locked_bytes() == 0
    }

    /// Whether nothing is damaged, and missing data may be in a directory that cannot be read, or
    /// was not given.
    fn is_out_of_sight(&self) -> bool {
        let containers = self.verdict.containers.iter();
        // Breaks if: data on a server that is down counts as damaged; a user would throw away a
        // good checkpoint.
        containers
            .flat_map(|container| {
                container
                    .findings
                    .iter()
                    .map(move |found| (container, found))
            })
            .filter(|(_, finding)| finding.fatal)
            .all(|(container, finding)| match finding.kind {
                ErrorKind::Unavailable => true,
                // Breaks if: a forgotten directory counts as lost data.
                ErrorKind::NotFound => self.hidden || self.elsewhere.contains_key(&container.file),
                _ => false,
            })
    }

    /// A finding as reported: it advises an older step only if there is a good one.
    fn told(&self, finding: &Finding, older_good: Option<&CommitRecord>) -> String {
        let is_older = |good: &CommitRecord| good.step <= self.commit.record.step;
        // Breaks if: each one advises it; a user who follows that finds that the older steps are
        // damaged too.
        match finding.fatal && !older_good.is_some_and(is_older) {
            true => without_next(&finding.message),
            false => finding.message.clone(),
        }
    }

    /// What to do if neither it nor any older one can be restored.
    fn next(&self) -> String {
        let step = self.commit.record.step;
        let mut homes: Vec<&str> = self.elsewhere.values().map(String::as_str).collect();
        homes.sort_unstable();
        homes.dedup();
        match (self.is_out_of_sight(), homes.is_empty()) {
            (true, false) => format!(
                "step {step} is not complete here. Next: also give {}, or bring {} back",
                listed_nodes(&homes),
                if homes.len() == 1 { "it" } else { "them" }
            ),
            (true, true) => format!(
                "step {step} is not complete here. Next: bring back what cannot be read, then verify \
                 again"
            ),
            (false, _) => format!(
                "neither step {step} nor an older one can be restored. Next: give all directories of the job: another one may hold a good copy"
            ),
        }
    }

    /// For each container, how many good copies it has here, of how many were made.
    fn counted_copies(&self) -> impl Iterator<Item = (usize, usize)> {
        let made = self.commit.record.containers.iter();
        let made = made.map(|container| (container.file.as_str(), 1 + container.holders.len()));
        let made: BTreeMap<&str, usize> = made.collect();
        self.verdict.containers.iter().map(move |container| {
            let made = made.get(container.file.as_str()).copied().unwrap_or(1);
            (made.min(container.good_copies as usize), made)
        })
    }

    /// The fewest of them for a table, and whether all parity is good too.
    fn copies(&self) -> String {
        let has_parity = !self.commit.record.groups.is_empty() && self.verdict.parity.is_empty();
        match self.counted_copies().min().unwrap_or_default() {
            (found, _) if has_parity => format!("{found} + parity"),
            (found, made) if made > 1 => format!("{found} of {made}"),
            (found, _) => found.to_string(),
        }
    }

    /// The warning that copies are missing, although no data is.
    fn lacks_copies(&self) -> Option<String> {
        let lacking = self.counted_copies().filter(|(found, made)| found < made);
        let (found, made) = lacking.min().filter(|_| self.verdict.is_good())?;
        // Breaks if: it is not reported; the table alone looks as if all were well.
        Some(format!(
            "step {}: here {} of the container with the fewest copies, of {made} that were made. Copies in the memory of agents, and on nodes whose directories were not given, are not counted; if the others are lost, the next restart makes them again, and until then losing another node may cost the step",
            self.commit.record.step,
            match found {
                1 => "is 1 copy".to_owned(),
                _ => format!("are {found} copies"),
            }
        ))
    }

    fn state(&self) -> (&'static str, Tone) {
        if self.verdict.is_good() && !self.is_proven() {
            ("stored whole, not authenticated", Tone::Note)
        } else if self.verdict.is_good() {
            ("good", Tone::Good)
        } else if self.verdict.is_restorable() {
            ("damaged, restorable", Tone::Note)
        } else if self.is_out_of_sight() {
            ("unreachable", Tone::Note)
        } else {
            ("corrupt", Tone::Bad)
        }
    }
}

/// Directories in the words of a sentence: `the directories of nodes n1 and n2`.
fn listed_nodes(homes: &[&str]) -> String {
    const ONE: &str = "the directory of node ";
    let nodes = homes.iter().map(|home| home.strip_prefix(ONE));
    let nodes: Option<Vec<&str>> = nodes.collect();
    match nodes.as_deref() {
        Some([first @ .., last]) if !first.is_empty() => {
            format!("the directories of nodes {} and {last}", first.join(", "))
        }
        _ => homes.join(", "),
    }
}

/// Whether no commit is of a newer step.
pub fn is_newest(job: &Job, commit: &Commit) -> bool {
    let newest = job.catalog.commits().first();
    newest.is_some_and(|newest| newest.record.step == commit.record.step)
}

/// Verifies one checkpoint or all.
pub fn run(args: &VerifyArgs, show_progress: bool) -> Result<Outcome, Failure> {
    let trust = &trust(&args.unlock)?;
    let mut job = Job::open_trusting(&args.which.place(&args.place), trust)?;
    let repaired = repair_if_asked(args, &mut job, trust)?;
    // Also what is in the memory of agents.
    let job = job.with_agents(trust, &|job, commit| match (args.all, args.which.step()) {
        (true, _) => true,
        (_, Some(step)) => commit.record.step == step,
        _ => is_newest(job, commit),
    })?;
    let commits = wanted(args, &job)?;
    let mut checked = Vec::new();
    for commit in commits {
        checked.push(Checked {
            commit,
            verdict: verify_one(&job, commit, trust, show_progress)?,
            hidden: job.out_of_sight().is_some(),
            elsewhere: elsewhere(&job, commit),
        });
    }
    let first_restorable = checked[0].verdict.is_restorable();
    let older_good = older_than_first(args, &job, &checked, trust, show_progress)?;
    let damaged_record = job
        .catalog
        .problems()
        .iter()
        .any(|problem| problem.kind() == ErrorKind::Corrupt);
    // Breaks if: it is ignored; an older step would be called the newest.
    let newer = newer_unread(args, &job, checked[0].commit);
    let all_good = checked.iter().all(|one| one.verdict.is_good());
    let code = match (first_restorable, older_good) {
        (true, _) if let Some((_, error)) = &newer => match error.kind() {
            ErrorKind::Corrupt => exit::CORRUPT_OLDER_GOOD,
            _ => exit::UNREACHABLE,
        },
        (false, _) if checked[0].is_out_of_sight() => exit::UNREACHABLE,
        (false, Some(_)) => exit::CORRUPT_OLDER_GOOD,
        (false, None) => first_code(&checked[0].verdict),
        (true, _) if all_good && !damaged_record && repaired.left.is_empty() => exit::OK,
        (true, _) => exit::PARTIAL,
    };
    let mut warnings = job.notes();
    warnings.extend(not_authenticated(&checked));
    warnings.extend(checked.iter().filter_map(Checked::lacks_copies));
    let document = json!({
        "job": job.name.as_str(),
        "checkpoints": checked.iter().map(|one| document(one, older_good)).collect::<Vec<Value>>(),
        "newer_unread_step": newer.as_ref().map(|(step, _)| step.0),
        "older_good_step": older_good.map(|record| record.step.0),
        "older_good_level": older_good.map(|record| record.level.to_string()),
        "repaired": repaired.done.iter().map(|one| json!({"path": one.path, "from": one.from}))
            .collect::<Vec<Value>>(),
        "not_repaired": repaired.left.iter().map(Error::to_string).collect::<Vec<String>>(),
        "notes": warnings,
    });
    let mut text = text(&job, &checked, older_good);
    text += &repaired_text(&repaired);
    if let Some((step, error)) = &newer {
        text += &format!("\nstep {step} is newer: {error}\n");
    }
    Ok(Outcome {
        code,
        text,
        document,
        warnings,
    })
}

/// The newest step whose commit record is here and damaged, or may not be read, and why, if it is
/// newer than this checkpoint.
fn newer_unread(args: &VerifyArgs, job: &Job, commit: &Commit) -> Option<(Step, Error)> {
    let is_lost = |newer: &UnreadStep| newer.error.kind() == ErrorKind::Corrupt;
    let lost = job.passed_over(commit, &args.which).filter(is_lost);
    if let Some(lost) = lost {
        return Some((lost.step, lost.error));
    }
    args.which.step().is_none().then_some(())?;
    let unread = job.unread_record(|step| step > commit.record.step);
    unread.map(|(step, failure)| (step, failure.error))
}

/// The warning that bytes are encrypted and no key was given.
fn not_authenticated(checked: &[Checked<'_>]) -> Option<String> {
    let locked_bytes: u64 = checked.iter().map(|one| one.verdict.locked_bytes()).sum();
    (locked_bytes > 0).then(|| {
        format!(
            "{} are encrypted and no key was given: they are not authenticated, and only their \
             stored bytes were checked. Give --encrypt-key to check who wrote them and what they \
             hold",
            size(locked_bytes)
        )
    })
}

fn repair_if_asked(args: &VerifyArgs, job: &mut Job, trust: &Trust) -> Result<Repair, Failure> {
    let mut all = Repair::default();
    if !args.repair {
        return Ok(all);
    }
    refuse_if_alive(job, trust)?;
    for commit in wanted(args, job)? {
        let Repair { done, left } = repair(&job.places_of(commit), &commit.record)?;
        all.done.extend(done);
        all.left.extend(left);
    }
    *job = Job::open_trusting(&args.which.place(&args.place), trust)?;
    Ok(all)
}

fn repaired_text(repaired: &Repair) -> String {
    let done = repaired.done.iter();
    let done = done.map(|one| match &one.from {
        Some(from) => format!("repaired {} from {from}\n", one.path),
        None => format!("{} was repaired by another repair meanwhile\n", one.path),
    });
    let left = repaired.left.iter();
    let left = left.map(|error| format!("not repaired: {error}\n"));
    done.chain(left).collect()
}

/// An older checkpoint that can be restored, if the first one cannot.
fn older_than_first<'a>(
    args: &VerifyArgs,
    job: &'a Job,
    checked: &[Checked<'a>],
    trust: &Arc<Trust>,
    show_progress: bool,
) -> Result<Option<&'a CommitRecord>, Failure> {
    Ok(match (checked[0].verdict.is_restorable(), args.all) {
        (true, _) => None,
        (false, true) => checked
            .iter()
            .find(|one| one.verdict.is_restorable())
            .map(|one| &one.commit.record),
        (false, false) => older_good(job, checked[0].commit, trust, show_progress)?,
    })
}

/// A living run prunes what is repaired, and repairs by itself when it restarts.
fn refuse_if_alive(job: &Job, trust: &Trust) -> Result<(), Failure> {
    let newest = NewestRun::newest(job.catalog.places(), trust)?;
    match newest.filter(|run| run.lives) {
        Some(run) => {
            let error = Error::unavailable(format!(
                "job {} is running (epoch {})",
                job.name.as_str(),
                run.claim.epoch.counter
            ));
            let error = error.with(Detail::Held);
            let next = "wait until it has ended, or verify without --repair";
            Err(Failure::with(exit::HELD, error.next(next)))
        }
        None => Ok(()),
    }
}

fn wanted<'a>(args: &VerifyArgs, job: &'a Job) -> Result<Vec<&'a Commit>, Failure> {
    if !args.all {
        return Ok(vec![job.pick(&args.which)?]);
    }
    if let Some(step) = args.which.step() {
        let error = Error::invalid(format!("--all and step {step} contradict each other"));
        return Err(error.next("leave out one of the two").into());
    }
    job.pick(&Which::newest())?;
    Ok(job.catalog.commits().iter().collect())
}

/// The code of a checkpoint that cannot be restored if no older one is good: that of its most
/// severe finding.
fn first_code(verdict: &Verdict) -> u8 {
    let mut kinds = verdict
        .findings()
        .filter(|finding| finding.fatal)
        .map(|finding| finding.kind);
    let first = kinds.next().unwrap_or(ErrorKind::Corrupt);
    if first == ErrorKind::Corrupt || kinds.any(|kind| kind == ErrorKind::Corrupt) {
        exit::CORRUPT
    } else {
        exit::of(first)
    }
}

/// Containers of a commit that are in none of the places and were written to another directory.
fn elsewhere(job: &Job, commit: &Commit) -> BTreeMap<String, String> {
    let record = &commit.record;
    let missing = (record.containers.iter())
        .filter(|container| job.find_file(commit, &container.file).is_none());
    let with_home = |container: &ContainerRef| {
        Some((container.file.clone(), job.elsewhere(record, container)?))
    };
    missing.filter_map(with_home).collect()
}

fn verify_one(
    job: &Job,
    commit: &Commit,
    trust: &Arc<Trust>,
    show_progress: bool,
) -> Result<Verdict, Failure> {
    let bar = progress_bar(show_progress);
    bar.set_message(format!("step {}", commit.record.step));
    let verdict = verify_commit_with(
        &job.places_of(commit),
        &commit.record,
        (trust, commit.proof),
        &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        },
    );
    bar.finish_and_clear();
    Ok(verdict?)
}

/// The newest other checkpoint that can be restored and is not newer (another level of the same
/// step counts); reads candidates until one is found.
pub fn older_good<'a>(
    job: &'a Job,
    than: &Commit,
    trust: &Arc<Trust>,
    show_progress: bool,
) -> Result<Option<&'a CommitRecord>, Failure> {
    let key = |commit: &Commit| (commit.record.step, commit.record.epoch);
    let is_other = |commit: &Commit| key(commit) <= key(than) && commit.record != than.record;
    newest_good(job, is_other, trust, show_progress)
}

/// The newest of these checkpoints that can be restored; reads them until one is found.
pub fn newest_good<'a>(
    job: &'a Job,
    wanted: impl Fn(&Commit) -> bool,
    trust: &Arc<Trust>,
    show_progress: bool,
) -> Result<Option<&'a CommitRecord>, Failure> {
    let commits = job.catalog.commits().iter();
    for commit in commits.filter(|commit| wanted(commit)) {
        if verify_one(job, commit, trust, show_progress)?.is_restorable() {
            return Ok(Some(&commit.record));
        }
    }
    Ok(None)
}

fn document(one: &Checked<'_>, older_good: Option<&CommitRecord>) -> Value {
    let record = &one.commit.record;
    json!({
        "step": record.step.0,
        "epoch": record.epoch.to_string(),
        "level": record.level.to_string(),
        "verdict": one.state().0,
        "good": one.verdict.is_good(),
        "authenticated": one.commit.proof == Proof::Sealed,
        "restorable": one.verdict.is_restorable(),
        "checked_bytes": one.verdict.checked_bytes(),
        "locked_bytes": one.verdict.locked_bytes(),
        "parity": one.verdict.parity.iter().map(|finding| json!({
            "kind": finding.kind.name(),
            "message": finding.message,
        })).collect::<Vec<Value>>(),
        "containers": one.verdict.containers.iter().map(|container| json!({
            "file": container.file,
            "path": container.path,
            "copies": container.copies,
            "good_copies": container.good_copies,
            "node": container.node.0,
            "ranks": container.ranks,
            "regions": container.regions,
            "checked_bytes": container.checked_bytes,
            "locked_bytes": container.locked_bytes,
            "findings": container.findings.iter().map(|finding| json!({
                "kind": finding.kind.name(),
                "fatal": finding.fatal,
                "rank": finding.rank.map(|rank| rank.0),
                "region": finding.region,
                "message": one.told(finding, older_good),
            })).collect::<Vec<Value>>(),
            "more_findings": container.more_findings,
        })).collect::<Vec<Value>>(),
    })
}

impl Checked<'_> {
    /// A line for each finding.
    fn findings(&self, older_good: Option<&CommitRecord>) -> String {
        let mut findings = String::new();
        for finding in self.verdict.findings() {
            let weight = match finding.fatal {
                true if self.is_out_of_sight() => "not known to be lost",
                true => "data lost",
                false => "no data lost",
            };
            findings += &format!(
                "{} ({weight}): {}\n",
                finding.kind.name().replace('_', " "),
                self.told(finding, older_good)
            );
        }
        let containers = self.verdict.containers.iter();
        let more: u64 = containers.map(|container| container.more_findings).sum();
        if more > 0 {
            let step = self.commit.record.step;
            findings += &format!("and {} more in step {step}\n", count(more, "finding"));
        }
        findings
    }
}

fn text(job: &Job, checked: &[Checked<'_>], older_good: Option<&CommitRecord>) -> String {
    let mut table = table(&[
        "step",
        "epoch",
        "level",
        "containers",
        "ranks",
        "copies",
        "checked",
        "verdict",
    ]);
    let mut findings = String::new();
    for one in checked {
        let record = &one.commit.record;
        let (state, tone) = one.state();
        table.add_row([
            right(record.step),
            right(record.epoch.counter),
            plain(record.level),
            right(one.verdict.containers.len()),
            right(
                one.verdict
                    .containers
                    .iter()
                    .map(|container| container.ranks)
                    .sum::<u64>(),
            ),
            right(one.copies()),
            right(size(one.verdict.checked_bytes())),
            cell(state, tone),
        ]);
        findings += &one.findings(older_good);
    }
    draw_together(&mut table);
    let mut text = format!("job {}\n{}", job.name.as_str(), table_text(&table));
    if !findings.is_empty() {
        text.push('\n');
        text.push_str(&findings);
    }
    if let Some(record) = older_good {
        text.push_str(&format!(
            "
step {} (level {}) can be restored
",
            record.step, record.level
        ));
    } else if !checked[0].verdict.is_restorable() {
        text.push_str(&format!("\n{}\n", checked[0].next()));
    }
    text
}
