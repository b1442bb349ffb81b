//! Writes like a program that was watched, into one or several directories, and says how long it
//! takes.
//!
//! How: a thread for each process issues its calls one after the other, as fast as they return;
//! what the program did between them is left out. Two clocks: until the last thread has made its
//! last call (*continue*), and until every file is synced (*safe*). The directories take turns, in
//! rotating order.
//!
//! Invariants:
//! 1. Everything is below a new directory, which is removed on every path.
//! 2. Each copy of the profile has files of its own; processes that shared a file share it again.
//!
//! Not here: the contents, which do not matter but are not zeros.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use orcheck_format::{Error, Result, count, hex};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Create, Dir, File, open_local};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::Effect;
use orcheck_io::memory::zeroed;
use orcheck_io::rng::random_bytes;
use serde_json::{Value, json};

use crate::args::ProfileArgs;
use crate::commands::profile::classes::processes as named;
use crate::commands::profile::known;
use crate::commands::profile::writes::{Call, Writes};
use crate::exit;
use crate::output::{Failure, Outcome, plain, right, size, span, table, table_text};
use crate::stop;

/// Ranks of a published profile, unless told otherwise.
const RANKS: u32 = 8;
/// Most threads.
const MOST_PROCESSES: usize = 1024;

/// How long one replay took.
#[derive(Debug, Clone, Copy)]
struct Took {
    until_continue: Duration,
    until_safe: Duration,
}

/// Replays a profile.
pub fn run(args: &ProfileArgs, source: &str) -> std::result::Result<Outcome, Failure> {
    let most = MOST_PROCESSES as u32;
    if let Some(ranks) = args.ranks.filter(|ranks| *ranks > most) {
        let text = format!("-n {ranks}: from 1 to {most} are possible");
        return Err(Error::invalid(text).into());
    }
    stop::install()?;
    let (writes, copies) = source_of(source, args.ranks)?;
    let processes = writes.processes() * copies;
    if processes == 0 || processes > MOST_PROCESSES {
        return Err(Error::invalid(format!(
            "{source} has {}; from 1 to {MOST_PROCESSES} are possible",
            named(processes)
        ))
        .into());
    }
    let dirs = (args.dirs.iter()).map(|path| open_local(path, Failpoints::none()));
    let dirs = dirs.collect::<Result<Vec<_>>>()?;
    let mut found: Vec<Vec<Took>> = vec![Vec::new(); dirs.len()];
    for round in 0..args.rounds {
        for turn in 0..dirs.len() {
            let one = (round as usize + turn) % dirs.len();
            let took = replay(dirs[one].as_ref(), &writes, copies);
            let took = took.map_err(|error| match stop::requested() {
                Some(code) => Failure::with(code, error),
                None => error.into(),
            })?;
            found[one].push(took);
        }
    }
    Ok(outcome(&args.dirs, &writes, copies, found))
}

/// The profile, and how many copies of it are written at once.
fn source_of(source: &str, ranks: Option<u32>) -> Result<(Writes, usize)> {
    if let Some(writes) = known::profile(source, ranks.unwrap_or(RANKS)) {
        return Ok((writes, 1));
    }
    let writes =
        Writes::read(Path::new(source)).map_err(|error| {
            let next = error.next_step().map(ToOwned::to_owned);
            let published = known::names();
            error.next(next.unwrap_or_else(|| {
                format!("give a file of `orcheck profile --out`, or {published}")
            }))
        })?;
    let processes = writes.processes().max(1);
    let copies = ranks.map_or(1, |ranks| (ranks as usize).div_ceil(processes));
    Ok((writes, copies))
}

fn replay(parent: &dyn Dir, writes: &Writes, copies: usize) -> Result<Took> {
    let name = format!("orcheck-replay-{}", hex(&random_bytes::<8>()));
    let dir = parent.child(&name, true)?;
    let took = replay_in(dir.as_ref(), writes, copies);
    let removed = clear(parent, dir.as_ref(), &name);
    let took = took?;
    removed?;
    Ok(took)
}

fn clear(parent: &dyn Dir, dir: &dyn Dir, name: &str) -> Result<()> {
    for entry in dir.list()? {
        dir.remove(&entry.name)?;
    }
    parent.remove_child(name)
}

fn replay_in(dir: &dyn Dir, writes: &Writes, copies: usize) -> Result<Took> {
    let mut of_process: Vec<Vec<Call>> = vec![Vec::new(); writes.processes()];
    for call in &writes.calls {
        if let Some(calls) = of_process.get_mut(call.process as usize) {
            calls.push(*call);
        }
    }
    let largest = writes.calls.iter().filter_map(|call| match call.what {
        Effect::Wrote { len_bytes, .. } => usize::try_from(len_bytes).ok(),
        _ => None,
    });
    let largest = largest.max().unwrap_or(0);
    let mut files: Vec<Arc<dyn File>> = Vec::new();
    for copy in 0..copies {
        for number in 0..writes.files.len() {
            let file = dir.create(&format!("copy{copy}-file{number}"), Create::Buffered)?;
            files.push(Arc::from(file));
        }
    }
    let bytes = &filled(largest)?[..];
    let clock = SystemClock::new();
    // Held until all threads are there; true: some are not, and nobody begins.
    let gate = RwLock::new(false);
    let mut begun = Duration::ZERO;
    let done = std::thread::scope(|scope| {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::new();
        let mut failed = None;
        for copy in 0..copies {
            let first = copy * writes.files.len();
            let files = &files[first..first + writes.files.len()];
            for calls in &of_process {
                let gate = &gate;
                let work = move || -> Result<()> {
                    let cancelled = *gate.read().unwrap_or_else(PoisonError::into_inner);
                    let mut calls = calls.iter().filter(|_| !cancelled);
                    calls.try_for_each(|call| issue(call, files, bytes))
                };
                match std::thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => failed = Some(error),
                }
            }
        }
        *closed = failed.is_some();
        begun = clock.now();
        drop(closed);
        let joined = threads.into_iter().try_for_each(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err(Error::internal("a thread of the replay panicked")))
        });
        match failed {
            Some(error) => Err(
                Error::unavailable(format!("a thread cannot be started: {error}"))
                    .next("give fewer processes (-n)"),
            ),
            None => joined,
        }
    });
    let until_continue = clock.now().saturating_sub(begun);
    done?;
    files.iter().try_for_each(|file| file.sync())?;
    dir.sync()?;
    Ok(Took {
        until_continue,
        until_safe: clock.now().saturating_sub(begun),
    })
}

/// Bytes to write, for all threads.
fn filled(len: usize) -> Result<Vec<u8>> {
    let mut bytes = zeroed(len)?;
    bytes.fill(0x5a);
    Ok(bytes)
}

fn issue(call: &Call, files: &[Arc<dyn File>], bytes: &[u8]) -> Result<()> {
    if stop::requested().is_some() {
        return Err(Error::unavailable("the replay was stopped"));
    }
    let Some(file) = files.get(call.file as usize) else {
        return Err(Error::internal("a call without a file"));
    };
    match call.what {
        Effect::Wrote { offset, len_bytes } => {
            let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
            file.write_at(&bytes[..len.min(bytes.len())], offset)
        }
        Effect::Synced => file.sync(),
        Effect::Resized { len_bytes } => file.truncate(len_bytes),
    }
}

fn outcome(
    paths: &[std::path::PathBuf],
    writes: &Writes,
    copies: usize,
    found: Vec<Vec<Took>>,
) -> Outcome {
    let bytes = bytes_of(writes);
    let bytes = bytes * copies as u64;
    let mut rows = table(&[
        "directory",
        "continue",
        "safe",
        "rate until safe",
        "times the first's",
    ]);
    let mut documents: Vec<Value> = Vec::new();
    let mut first_s = None;
    for (path, each) in paths.iter().zip(&found) {
        let continues = median(
            each.iter()
                .map(|took| took.until_continue.as_secs_f64())
                .collect(),
        );
        let safe = median(
            each.iter()
                .map(|took| took.until_safe.as_secs_f64())
                .collect(),
        );
        let first_s = *first_s.get_or_insert(safe);
        rows.add_row([
            plain(path.display()),
            right(span(continues)),
            right(span(safe)),
            right(format!(
                "{}/s",
                size((bytes as f64 / safe.max(1e-9)) as u64)
            )),
            right(format!("{:.2}", safe / first_s.max(1e-9))),
        ]);
        let us = |of: &dyn Fn(&Took) -> Duration| -> Vec<u64> {
            each.iter()
                .map(|took| of(took).as_micros() as u64)
                .collect()
        };
        documents.push(json!({
            "directory": path.display().to_string(),
            "continue_us": us(&|took| took.until_continue),
            "safe_us": us(&|took| took.until_safe),
        }));
    }
    let calls = (writes.calls.len() * copies) as u64;
    let processes = writes.processes() * copies;
    let text = format!(
        "{} of {} by {}, median of {}\n{}",
        count(calls, "call"),
        size(bytes),
        named(processes),
        count(found.first().map_or(0, Vec::len) as u64, "round"),
        table_text(&rows)
    );
    Outcome {
        code: exit::OK,
        text,
        document: json!({ "calls": calls, "bytes": bytes, "processes": processes, "replayed": documents }),
        warnings: Vec::new(),
    }
}

fn bytes_of(writes: &Writes) -> u64 {
    let each = writes.calls.iter().map(|call| match call.what {
        Effect::Wrote { len_bytes, .. } => len_bytes,
        _ => 0,
    });
    each.sum()
}

fn median(mut each: Vec<f64>) -> f64 {
    each.sort_by(f64::total_cmp);
    each.get(each.len() / 2).copied().unwrap_or(0.0)
}
