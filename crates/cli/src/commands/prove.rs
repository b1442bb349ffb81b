//! Implements `orcheck prove`, which finds state that a program forgot to protect before a failure
//! does.
//!
//! How: the command runs undisturbed until it has committed two checkpoints, at steps a and b, and
//! is killed. A second run gets only the checkpoint of step a, restarts from it, and is killed when
//! it has committed step b. Both checkpoints of step b are then compared, element by element.
//! Whatever the program computes from state that it did not restore differs.
//!
//! Invariants:
//! 1. The program's own directories are never touched: environment variables override its options
//!    for them.
//! 2. Every wait has a deadline; the command and everything it started are dead before the next
//!    step.
//! 3. Everything created is removed again, unless `--keep` is given.
//! 4. Computing processes are killed at once. Processes that started them, such as mpirun, are
//!    asked to end, so that they clean up.
//!
//! Not here: which bytes a checkpoint holds (`orcheck-engine`).

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use orcheck_client::JOB_VARIABLE;
use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::Reader;
use orcheck_format::disk::{CommitRecord, FileName, RegionRecord};
use orcheck_format::{Dtype, Error, ErrorKind, Rank, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Create, Dir, Entry};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::rng::random_bytes;
use orcheck_io::user::{env_var, read_text};
use orcheck_staging::open_dir;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use serde_json::{Value, json};

use super::run::{left_behind, not_started, reap, signal_all};
use crate::args::{ProveArgs, Unlock, Where};
use crate::job::{Job, trust};
use crate::output::{Failure, Outcome, count, size};
use crate::{exit, stop};

/// Time between two looks at directories and the command.
const POLL: Duration = Duration::from_millis(20);
/// How long a launcher may take to end before it is killed.
const LAUNCHER_GRACE: Duration = Duration::from_secs(5);
/// How long killed processes may take to vanish.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// Number of bytes that are copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A further explanation for regions without a type.
const PADDING: &str = " (bytes: if the region holds structures, the unused bytes between their fields differ too; set them to zero, or store the fields one by one)";

/// A difference in one region of one rank.
struct Difference {
    rank: Rank,
    region: String,
    text: String,
    elements: u64,
}

/// What a comparison of two checkpoints found.
#[derive(Default)]
struct Found {
    differences: Vec<Difference>,
    /// Regions that were compared only in part.
    left_out: Vec<String>,
    /// Number of elements with different bytes that are equal within the tolerance.
    near: u64,
    regions: u64,
    bytes: u64,
}

/// Runs the program twice and compares.
pub fn run(args: &ProveArgs) -> std::result::Result<Outcome, Failure> {
    stop::install()?;
    let tolerance = args.tolerance;
    if !(0.0..1.0).contains(&tolerance) {
        let text = format!("--tolerance {tolerance}: expected a share from 0 to less than 1");
        return Err(Error::invalid(text).into());
    }
    let limit = Duration::try_from_secs_f64(args.timeout)
        .map_err(|_| Error::invalid(format!("--timeout {}: expected seconds", args.timeout)))?;
    // The directory is our own: unencrypted data in it is not a forgery.
    let trust = trust(&Unlock {
        encrypt_key: args.encrypt_key.clone(),
        accept: vec!["plain".to_owned()],
    })?;
    // Ranks outlive an mpirun that is killed; they become our children, and are killed too.
    let _ = set_child_subreaper(Some(getpid()));
    let base = (args.dir.clone())
        .or_else(|| env_var("TMPDIR").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("/tmp"));
    let base = open_dir(&base, Failpoints::none())?;
    let name = format!("orcheck-prove-{:016x}", u64::from_le_bytes(random_bytes()));
    let scratch = base.child(&name, true)?;
    let prover = Prover {
        args,
        limit,
        clock: SystemClock::new(),
        scratch: Arc::clone(&scratch),
        trust,
    };
    let proven = prover.prove();
    if !args.keep {
        // Best effort: the answer matters more than leftovers.
        let _ = clear(scratch.as_ref());
        let _ = base.remove_child(&name);
    }
    let mut outcome = proven?;
    if args.keep {
        let kept = scratch.path().display().to_string();
        outcome.text.push_str(&format!("kept: {kept}\n"));
        outcome.document["kept"] = json!(kept);
    }
    Ok(outcome)
}

struct Prover<'a> {
    args: &'a ProveArgs,
    limit: Duration,
    clock: SystemClock,
    scratch: Arc<dyn Dir>,
    trust: Arc<Trust>,
}

impl Prover<'_> {
    fn prove(&self) -> std::result::Result<Outcome, Failure> {
        let (a, b, first) = self.undisturbed("undisturbed")?;
        let resumed = self.resumed(a, b, &first)?;
        let again = match self.args.twice {
            true => Some(self.undisturbed_to("again", b)?),
            false => None,
        };
        let mut found = Found::default();
        let again = again
            .as_ref()
            .map(|job| self.checkpoint(job, b))
            .transpose()?;
        let pair = (self.checkpoint(&first, b)?, self.checkpoint(&resumed, b)?);
        compare(&pair, again.as_ref(), self.args.tolerance, &mut found)?;
        Ok(self.outcome(a, b, &first, &found))
    }

    fn outcome(&self, a: Step, b: Step, job: &Job, found: &Found) -> Outcome {
        let all = count(found.regions, "region");
        let mut text = String::new();
        for left_out in &found.left_out {
            text.push_str(&format!("left out: {left_out}\n"));
        }
        for one in &found.differences {
            text.push_str(&format!(
                "region {} of rank {} {}\n",
                one.region, one.rank, one.text
            ));
        }
        let code = match &found.differences[..] {
            [] => {
                // Breaks if: different bytes are called the same; a user who compares files
                // afterwards would believe neither.
                let (has, is) = match found.regions {
                    1 => ("has", "is"),
                    _ => ("have", "are"),
                };
                let how = match found.near {
                    0 => format!("{has} the same bytes"),
                    near => format!(
                        "{is} the same within the tolerance of {} ({})",
                        self.args.tolerance,
                        differs_in_its_bytes(near)
                    ),
                };
                let but = match found.left_out.is_empty() {
                    true => "",
                    false => ", apart from what is left out,",
                };
                text.push_str(&format!(
                    "proven: at step {b}, {all} ({}) {how}{but} in the undisturbed run and in the one that was killed and restarted from step {a}\n",
                    size(found.bytes)
                ));
                exit::OK
            }
            different => {
                text.push_str(&format!(
                    "not proven: {} of {all} differ at step {b} after a restart from step {a}. Next: protect the state that these regions are computed from; for a program that is not deterministic add --twice or --tolerance\n",
                    different.len()
                ));
                exit::DIFFERS
            }
        };
        let differences: Vec<Value> = (found.differences.iter())
            .map(|one| {
                json!({ "rank": one.rank.0, "region": one.region, "elements": one.elements, "first": one.text })
            })
            .collect();
        Outcome {
            code,
            text,
            document: json!({
                "job": job.name.as_str(), "from_step": a.0, "at_step": b.0, "regions": found.regions,
                "bytes": found.bytes, "differences": differences, "left_out": found.left_out,
                "within_tolerance": found.near,
            }),
            warnings: Vec::new(),
        }
    }

    /// Where a run writes.
    fn place(&self, run: &str) -> Result<Where> {
        let dir = self.scratch.child(run, true)?;
        dir.child("node", true)?;
        Ok(Where {
            dirs: vec![dir.child("global", true)?.path().to_owned()],
            node_dirs: Vec::new(),
            job: self.args.job.clone(),
            anywhere: Vec::new(),
        })
    }

    /// A run from nothing until two steps are committed; returns both, and what it left.
    fn undisturbed(&self, run: &str) -> std::result::Result<(Step, Step, Job), Failure> {
        let place = self.place(run)?;
        let job = self.until(&place, run, "auto", &|steps| steps.len() >= 2)?;
        let steps = steps_of(&job);
        match steps[..] {
            [a, b, ..] => Ok((a, b, job)),
            _ => Err(few(&steps, self.args.every)),
        }
    }

    fn undisturbed_to(&self, run: &str, b: Step) -> std::result::Result<Job, Failure> {
        let place = self.place(run)?;
        self.until(&place, run, "auto", &|steps| steps.contains(&b))
    }

    /// A run that gets only the checkpoint of step `a`, until step `b` is committed.
    fn resumed(&self, a: Step, b: Step, first: &Job) -> std::result::Result<Job, Failure> {
        let place = self.place("resumed")?;
        let to = open_dir(&place.dirs[0], Failpoints::none())?.child(first.name.as_str(), true)?;
        for (from, entry, name) in first.catalog.files() {
            let wanted = match name {
                Some(
                    FileName::Container { step, .. }
                    | FileName::Stripe { step, .. }
                    | FileName::Parity { step, .. }
                    | FileName::Commit { step, .. },
                ) => *step == a,
                Some(FileName::Claim { .. }) => true,
                _ => false,
            };
            if wanted {
                copy(
                    first.catalog.places()[*from].as_ref(),
                    to.as_ref(),
                    &entry.name,
                )?;
            }
        }
        self.until(&place, "resumed", "resume", &|steps| steps.contains(&b))
    }

    /// Runs the command until its committed steps suffice, kills it, and returns what it left.
    fn until(
        &self,
        place: &Where,
        run: &str,
        start: &str,
        enough: &dyn Fn(&[Step]) -> bool,
    ) -> std::result::Result<Job, Failure> {
        let mut command = self.command(place, start)?;
        let started = command.spawn();
        let mut child = started.map_err(|error| not_started(&self.args.command[0], &error))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let begin = self.clock.now();
        let mut ended = None;
        let over = loop {
            let late = self.clock.now().saturating_sub(begin) >= self.limit;
            let job = Job::open(place);
            let done = job.as_ref().is_ok_and(|job| enough(&steps_of(job)));
            if done || late || stop::requested().is_some() || ended.is_some() {
                break done;
            }
            // Its last commits count too: look once more.
            ended = child.try_wait().ok().flatten();
            if ended.is_none() {
                self.clock.sleep(POLL);
            }
        };
        if let Some(group) = group {
            self.end(group);
        }
        let _ = child.wait();
        if let Some(code) = stop::requested() {
            return Err(Failure::with(
                code,
                Error::unavailable("stopped by a signal"),
            ));
        }
        match (over, Job::open_trusting(place, &self.trust)) {
            (true, job) => job,
            (false, Ok(job)) if ended.is_some() && !steps_of(&job).is_empty() => {
                Err(few(&steps_of(&job), self.args.every))
            }
            (false, _) => Err(match ended {
                Some(status) if status.success() => Error::unavailable(format!(
                    "the {run} run ended without a checkpoint, although one was due every {} steps",
                    self.args.every
                ))
                .next("give an --every smaller than half of the program's steps; the program has to ask orc_due at each step")
                .into(),
                Some(status) => Error::unavailable(format!(
                    "the {run} run ended ({status}) without the checkpoints that are needed"
                ))
                .next("correct what it reports above")
                .into(),
                None => Failure::with(
                    exit::TIMEOUT,
                    Error::unavailable(format!(
                        "the {run} run did not take the checkpoints that are needed within {} s",
                        self.limit.as_secs_f64()
                    ))
                    .next("give a smaller --every, or a longer --timeout"),
                ),
            }),
        }
    }

    fn checkpoint(&self, job: &Job, step: Step) -> Result<Checkpoint> {
        checkpoint(job, step, &self.trust).map_err(|error| match self.trust.has_key() {
            true => error,
            false => {
                error.next("for an encrypted job give --encrypt-key, or set ORCHECK_ENCRYPT_KEY")
            }
        })
    }

    fn command(&self, place: &Where, start: &str) -> Result<Command> {
        let (program, rest) =
            (self.args.command.split_first()).ok_or_else(|| Error::invalid("no command given"))?;
        let global = &place.dirs[0];
        let mut command = Command::new(program);
        command.args(rest).process_group(0).stdin(Stdio::null());
        // Standard output is reserved for the answer.
        let said = std::io::stderr().as_fd().try_clone_to_owned();
        command.stdout(said.map_or_else(|_| Stdio::null(), Stdio::from));
        command
            .env("ORCHECK_ENABLED", "true")
            .env("ORCHECK_GLOBAL", global)
            .env("ORCHECK_NODE_DIR", global.with_file_name("node"))
            .env("ORCHECK_EVERY_STEPS", self.args.every.to_string())
            .env("ORCHECK_EVERY_S", "0")
            .env("ORCHECK_OVERHEAD_PERCENT", "0")
            .env("ORCHECK_INTERVAL", "off")
            .env("ORCHECK_KEEP", "1000000")
            .env("ORCHECK_OVERRUN", "wait")
            .env("ORCHECK_INCREMENTAL", "off")
            .env("ORCHECK_AGENT", "off")
            // Replicas prove nothing here, and one node has nowhere to put them; those in memory
            // need an agent.
            .env("ORCHECK_PEERS", "0")
            .env("ORCHECK_REPLICAS", "0")
            .env("ORCHECK_REPLICA_STORE", "disk")
            .env("ORCHECK_START", start)
            .env_remove("ORCHECK_FRESH");
        // Breaks if: the program does not get it; an encrypted job could not be proven if only this
        // command line has the key.
        if !self.args.encrypt_key.is_empty() {
            command.env("ORCHECK_ENCRYPT_KEY", self.args.encrypt_key.join(","));
        }
        if let Some(job) = &self.args.job {
            command.env(JOB_VARIABLE, job);
        } else if env_var(JOB_VARIABLE).is_none() {
            command.env(JOB_VARIABLE, "prove");
        }
        Ok(command)
    }

    /// Ends a run and everything it started.
    fn end(&self, group: Pid) {
        let (launchers, programs) = processes();
        // Launchers first: a launcher whose ranks die before it is asked to end reports a failure.
        for &launcher in &launchers {
            let _ = kill_process(launcher, Signal::TERM);
        }
        for &program in &programs {
            let _ = kill_process(program, Signal::KILL);
        }
        let grace = match launchers.is_empty() {
            true => Duration::ZERO,
            false => LAUNCHER_GRACE,
        };
        let begin = self.clock.now();
        reap();
        while left_behind(group) {
            let waited = self.clock.now().saturating_sub(begin);
            if waited >= grace + KILL_WAIT {
                break;
            }
            if waited >= grace {
                signal_all(group, Signal::KILL);
            }
            self.clock.sleep(POLL);
            reap();
        }
    }
}

/// The processes below us: those that started others, and those that did not.
fn processes() -> (Vec<Pid>, Vec<Pid>) {
    let (mut launchers, mut programs) = (Vec::new(), Vec::new());
    let mut open = children(getpid());
    while let Some(process) = open.pop() {
        let own = children(process);
        match own.is_empty() {
            true => programs.push(process),
            false => launchers.push(process),
        }
        open.extend(own);
    }
    (launchers, programs)
}

/// The processes that one has started, by any of its threads; none if the kernel does not report
/// them.
fn children(of: Pid) -> Vec<Pid> {
    let tasks = format!("/proc/{of}/task");
    let listed = open_dir(Path::new(&tasks), Failpoints::none()).and_then(|dir| dir.list());
    let of_thread = |thread: Entry| {
        let path = format!("{tasks}/{}/children", thread.name);
        read_text(Path::new(&path), 1 << 20).unwrap_or_default()
    };
    let texts = listed.unwrap_or_default().into_iter().map(of_thread);
    let all = texts.collect::<Vec<String>>().join(" ");
    (all.split_whitespace())
        .filter_map(|text| text.parse().ok().and_then(Pid::from_raw))
        .collect()
}

/// The committed steps, in order.
fn steps_of(job: &Job) -> Vec<Step> {
    let commits = job.catalog.commits().iter();
    let mut steps: Vec<Step> = commits.map(|commit| commit.record.step).collect();
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn few(steps: &[Step], every: u64) -> Failure {
    let listed: Vec<String> = steps.iter().map(Step::to_string).collect();
    Error::not_found(format!(
        "the command ended after these checkpoints: {}; two are needed, with steps between them",
        listed.join(", ")
    ))
    .next(format!(
        "give an --every smaller than {every}, or a longer run"
    ))
    .into()
}

fn differs_in_its_bytes(elements: u64) -> String {
    match elements {
        1 => "1 element differs in its bytes".to_owned(),
        more => format!("{more} elements differ in their bytes"),
    }
}

/// The regions of a checkpoint, and how to read them.
struct Checkpoint {
    readers: Vec<Reader>,
    /// Reader and region, by rank and name.
    regions: BTreeMap<(Rank, String), (usize, RegionRecord)>,
}

fn checkpoint(job: &Job, step: Step, trust: &Arc<Trust>) -> Result<Checkpoint> {
    let mut commits = job.catalog.commits().iter();
    let commit = commits
        .find(|commit| commit.record.step == step)
        .ok_or_else(|| match job.catalog.refused() {
            Some(refused) => refused.clone(),
            None => Error::not_found(format!("step {step} is not committed")),
        })?;
    let record: &CommitRecord = &commit.record;
    let places = job.places_to_read(commit);
    let mut all = Checkpoint {
        readers: Vec::new(),
        regions: BTreeMap::new(),
    };
    for container in &record.containers {
        let proven = (trust, commit.proof);
        let reader = Reader::open_trusting(&places, record, container, proven)?;
        for rank in &reader.manifest().ranks {
            for region in &rank.regions {
                let key = (rank.rank, region.name.clone());
                all.regions.insert(key, (all.readers.len(), region.clone()));
            }
        }
        all.readers.push(reader);
    }
    Ok(all)
}

impl Checkpoint {
    fn read(&self, key: &(Rank, String)) -> Result<Option<Vec<u8>>> {
        let Some((reader, region)) = self.regions.get(key) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        self.readers[*reader].stream_region_of_any_copy(
            key.0,
            region,
            &mut |_| {},
            &mut |_, part| {
                bytes.extend_from_slice(part);
                match stop::requested() {
                    None => Ok(()),
                    Some(_) => Err(Error::unavailable("stopped by a signal")),
                }
            },
        )?;
        Ok(Some(bytes))
    }
}

/// Compares two checkpoints. `again`: another one like the first; whatever differs between those
/// two does not count.
fn compare(
    (first, resumed): &(Checkpoint, Checkpoint),
    again: Option<&Checkpoint>,
    tolerance: f64,
    found: &mut Found,
) -> Result<()> {
    for (key, (_, region)) in &first.regions {
        compare_region((first, resumed), key, region, (again, tolerance), found)?;
    }
    for (rank, name) in resumed.regions.keys() {
        if !first.regions.contains_key(&(*rank, name.clone())) {
            found.differences.push(Difference {
                rank: *rank,
                region: name.clone(),
                text: "is there only after the restart".into(),
                elements: 0,
            });
        }
    }
    Ok(())
}

fn compare_region(
    (first, resumed): (&Checkpoint, &Checkpoint),
    key: &(Rank, String),
    region: &RegionRecord,
    (again, tolerance): (Option<&Checkpoint>, f64),
    found: &mut Found,
) -> Result<()> {
    let (rank, name) = key;
    found.regions += 1;
    found.bytes += region.len_bytes;
    let mine = first.read(key)?.unwrap_or_default();
    let mut differ = |text: String, elements: u64| {
        found.differences.push(Difference {
            rank: *rank,
            region: name.clone(),
            text,
            elements,
        });
    };
    let Some(other) = resumed.read(key)? else {
        differ("is missing after the restart".into(), 0);
        return Ok(());
    };
    if mine.len() != other.len() {
        let (before, after) = (mine.len(), other.len());
        let text = format!("has {before} bytes undisturbed and {after} after the restart");
        differ(text, 0);
        return Ok(());
    }
    let third = again.map(|again| again.read(key)).transpose()?.flatten();
    let one = region.dtype.size_bytes() as usize;
    let (mut first_at, mut elements, mut noisy) = (None, 0u64, 0u64);
    for (at, (x, y)) in mine.chunks(one).zip(other.chunks(one)).enumerate() {
        let noise = third.as_ref().is_some_and(|third| {
            let z = third.get(at * one..at * one + x.len());
            !z.is_some_and(|z| same(region.dtype, x, z, tolerance))
        });
        if noise {
            noisy += 1;
        } else if !same(region.dtype, x, y, tolerance) {
            first_at.get_or_insert(at);
            elements += 1;
        } else if x != y {
            found.near += 1;
        }
    }
    if let Some(at) = first_at {
        let value = |bytes: &[u8]| shown(region.dtype, &bytes[at * one..][..one]);
        // Breaks if: it is left out; a user who stores structures would look for a variable that
        // does not exist.
        let padding = match region.dtype {
            Dtype::Bytes => PADDING,
            _ => "",
        };
        let text = format!(
            "differs in {}, first element {at}: {} undisturbed, {} after the restart{padding}",
            count(elements, "element"),
            value(&mine),
            value(&other)
        );
        differ(text, elements);
    }
    if noisy > 0 {
        let of = mine.len() / one;
        found.left_out.push(format!(
                "{noisy} of {of} elements of region {name} of rank {rank}, which differ between two undisturbed runs"
            ));
    }
    Ok(())
}

/// Whether two elements are equal; floats may differ by a share of the larger one.
fn same(dtype: Dtype, x: &[u8], y: &[u8], tolerance: f64) -> bool {
    if x == y {
        return true;
    }
    match (tolerance > 0.0, floats(dtype, x), floats(dtype, y)) {
        (true, Some(x), Some(y)) => x
            .iter()
            .zip(&y)
            // Breaks if: an infinity is close to everything.
            .all(|(x, y)| {
                x == y || (x - y).is_finite() && (x - y).abs() <= tolerance * x.abs().max(y.abs())
            }),
        _ => false,
    }
}

/// The floats that make up an element, if it consists of floats.
fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    let single = |part: &[u8]| part.try_into().map(f32::from_le_bytes).map(f64::from).ok();
    let double = |part: &[u8]| part.try_into().map(f64::from_le_bytes).ok();
    let half = |part: &[u8]| part.try_into().map(u16::from_le_bytes).ok();
    match dtype {
        Dtype::F16 => bytes.chunks(2).map(|part| half(part).map(of_f16)).collect(),
        Dtype::BF16 => bytes
            .chunks(2)
            .map(|part| half(part).map(of_bf16))
            .collect(),
        Dtype::F32 | Dtype::C64 => bytes.chunks(4).map(single).collect(),
        Dtype::F64 | Dtype::C128 => bytes.chunks(8).map(double).collect(),
        _ => None,
    }
}

/// The value of 16 bits of type bfloat16: the upper half of a single.
fn of_bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// The value of 16 bits of IEEE 754's binary16.
fn of_f16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// An element in the form that a user reads.
fn shown(dtype: Dtype, bytes: &[u8]) -> String {
    if let Some(values) = floats(dtype, bytes) {
        let values: Vec<String> = values.iter().map(f64::to_string).collect();
        return values.join(" + i ");
    }
    let mut wide = [0u8; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    let unsigned = u64::from_le_bytes(wide);
    let unused = 64 - 8 * len as u32;
    match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => {
            (((unsigned << unused) as i64) >> unused).to_string()
        }
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => unsigned.to_string(),
        _ => format!("{unsigned:#x}"),
    }
}

fn copy(from: &dyn Dir, to: &dyn Dir, name: &str) -> Result<()> {
    let source = from.open(name)?;
    let target = to.create(name, Create::Buffered)?;
    let len = source.len_bytes()?;
    let mut piece = Vec::new();
    let mut at = 0;
    while at < len {
        piece.resize((len - at).min(PIECE_BYTES) as usize, 0);
        source.read_at(&mut piece, at)?;
        target.write_at(&piece, at)?;
        at += piece.len() as u64;
    }
    target.close()
}

/// Removes everything in a directory of our own.
fn clear(dir: &dyn Dir) -> Result<()> {
    for entry in dir.list()? {
        if entry.is_dir {
            clear(dir.child(&entry.name, false)?.as_ref())?;
            dir.remove_child(&entry.name)?;
        } else {
            match dir.remove(&entry.name) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_may_differ_by_the_tolerance_and_integers_never() {
        let (x, y) = (1.0f64.to_le_bytes(), (1.0f64 + 1e-9).to_le_bytes());
        assert!(!same(Dtype::F64, &x, &y, 0.0));
        assert!(same(Dtype::F64, &x, &y, 1e-8));
        assert!(!same(Dtype::F64, &x, &y, 1e-10));
        assert!(!same(Dtype::U8, &[1], &[2], 0.9));
        let nan = f64::NAN.to_le_bytes();
        assert!(same(Dtype::F64, &nan, &nan, 0.0) && !same(Dtype::F64, &x, &nan, 0.5));
    }

    // Breaks if: half-precision elements are compared as bytes; a program with rounded sums could
    // not be proven.
    #[test]
    fn halves_are_floats_too() {
        for (dtype, bits, value) in [
            (Dtype::F16, 0x3c00, 1.0),
            (Dtype::F16, 0xc500, -5.0),
            (Dtype::F16, 0x0001, 2f64.powi(-24)),
            (Dtype::F16, 0x7bff, 65504.0),
            (Dtype::F16, 0xfc00, f64::NEG_INFINITY),
            (Dtype::BF16, 0x3f80, 1.0),
            (Dtype::BF16, 0xc0a0, -5.0),
        ] {
            let bytes = u16::to_le_bytes(bits);
            assert_eq!(floats(dtype, &bytes), Some(vec![value]), "{bits:#x}");
            let next = (bits + 1).to_le_bytes();
            // The value after the greatest is infinite.
            let near = bits & 0x7fff < 0x7bff;
            assert!(!same(dtype, &bytes, &next, 1e-9), "{bits:#x}");
            assert_eq!(same(dtype, &bytes, &next, 0.5), near, "{bits:#x}");
        }
        assert!(
            floats(Dtype::F16, &0x7e00u16.to_le_bytes()).is_some_and(|found| found[0].is_nan())
        );
        assert_eq!(shown(Dtype::F16, &0x3e00u16.to_le_bytes()), "1.5");
    }

    #[test]
    fn elements_are_shown_as_their_type_has_them() {
        assert_eq!(shown(Dtype::I16, &(-3i16).to_le_bytes()), "-3");
        assert_eq!(shown(Dtype::U32, &7u32.to_le_bytes()), "7");
        assert_eq!(shown(Dtype::F32, &2.5f32.to_le_bytes()), "2.5");
        assert_eq!(shown(Dtype::Bytes, &[255]), "0xff");
    }
}
