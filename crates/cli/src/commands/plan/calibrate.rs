//! Implements `orcheck plan calibrate`, which measures figures of this machine in a few seconds.
//!
//! How: as F. Shahzad et al. (IPDPS Workshops 2013) do. All processors move memory, a fixed number
//! of times, for twice as long as a checkpoint takes until it is safe: without a checkpoint, with
//! one at the beginning, and without again. The extra time of the middle run, at the bandwidth of
//! its neighbours, divided by the bytes of the checkpoint, is m. Checkpoints with nothing else
//! running give the rates of copies and of the directory.
//!
//! Invariants:
//! 1. A figure that noise hides is not reported.
//! 2. Nothing is left in the directories, even if SIGINT or SIGTERM asks to end.
//!
//! Not here: the use of the figures (`advice.rs`), the loss of a solver by a checkpoint
//! (`bench/orcbench/lbm.py`).

use std::path::Path;
use std::time::Duration;

use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::{Dtype, Error, Level, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_io::machine::{cpuset, memory};
use orcheck_io::memory::Span;
use orcheck_io::user::write_file;
use orcheck_staging::open_dir;
use serde_json::{Value, json};

use crate::args::CalibrateArgs;
use crate::output::{Failure, Outcome, plain, right, table, table_text};
use crate::{exit, stop};

/// Size of each of the two arrays that are moved: far more than caches hold.
const ARRAY_BYTES: usize = 256 << 20;
const CHUNK_BYTES: u64 = 4 << 20;
/// The figure that one node cannot measure.
const SHARED: &str = "shared_write_gb_s";
/// Longest wait for a checkpoint.
const LONG: Duration = Duration::from_secs(600);
/// Length of a window relative to a flush with nothing else running, and the share of it by which a
/// flush may end after it.
const WINDOW: f64 = 2.0;
const LATE: f64 = 0.02;

/// Measurements of a figure, sorted.
struct Measured {
    name: &'static str,
    what: &'static str,
    sorted: Vec<f64>,
}

impl Measured {
    fn new(name: &'static str, what: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            name,
            what,
            sorted: values,
        }
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted
            .get((last as f64 * share).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }
}

/// # Errors
/// Invalid if the state, the pool and the moved arrays do not fit into memory.
fn check_room(gb: f64) -> Result<()> {
    let (needed, usable) = (
        2.0 * gb * 1e9 + 2.0 * ARRAY_BYTES as f64,
        memory()?.usable_bytes() as f64,
    );
    if needed <= 0.9 * usable {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "--gb {gb}: expected at most {:.1}, for the state and its copy, beside {:.1} GB of arrays, in {:.1} GB of memory",
        ((0.9 * usable - 2.0 * ARRAY_BYTES as f64) / 2e9).max(0.0),
        2.0 * ARRAY_BYTES as f64 / 1e9,
        usable / 1e9
    )))
}

/// Fails once somebody has asked this process to stop: directories are then cleared.
fn go_on() -> Result<()> {
    match stop::requested() {
        None => Ok(()),
        Some(_) => Err(Error::unavailable(
            "stopped by a signal before all was measured",
        )),
    }
}

/// Measures.
pub fn run(args: &CalibrateArgs) -> std::result::Result<Outcome, Failure> {
    let places = [("disk_write_gb_s", &args.disk), (SHARED, &args.shared)];
    let places: Vec<_> = places
        .into_iter()
        .filter_map(|(name, dir)| dir.as_deref().map(|dir| (name, dir)))
        .collect();
    check_room(args.gb)?;
    stop::install()?;
    let mut all = Vec::new();
    for (number, (name, dir)) in places.iter().enumerate() {
        all.extend(of_place(args, name, dir, number == 0)?);
    }
    let mut shown = table(&["figure", "median", "quartiles", "what"]);
    let (mut lines, mut documents, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for figure in &all {
        let (low, median, high) = (figure.at(0.25), figure.at(0.5), figure.at(0.75));
        shown.add_row(vec![
            plain(figure.name),
            right(format!("{median:.2}")),
            right(format!("{low:.2} to {high:.2}")),
            plain(figure.what),
        ]);
        documents
            .push(json!({ "figure": figure.name, "median": median, "samples": figure.sorted }));
        if figure.name == SHARED {
            // All nodes together get more, or each gets less: nobody measured that here.
            lines.push(format!(
                "# {SHARED} = {median:.3} is what one node gets alone"
            ));
        } else if low > 0.0 {
            lines.push(format!("{} = {median:.3}", figure.name));
        } else {
            warnings.push(format!(
                "{} is hidden by noise ({low:.2} to {high:.2}) and left out: measure on a quieter machine, or with --rounds {}",
                figure.name,
                4 * args.rounds
            ));
        }
    }
    if args.shared.is_some() {
        warnings.push(format!(
            "{SHARED} is what one node gets alone; give `orcheck plan` what all nodes get together"
        ));
    }
    let file = format!(
        "# Measured by `orcheck plan calibrate`, with {} GB a checkpoint; for `orcheck plan --from`.\n[machine]\n{}\n",
        args.gb,
        lines.join("\n")
    );
    if let Some(path) = &args.write {
        write_file(path, file.as_bytes()).map_err(|error| error.at("--write"))?;
        warnings.push(format!("figures written: {}", path.display()));
    }
    Ok(Outcome {
        code: exit::OK,
        text: format!("{}\n{file}", table_text(&shown)),
        document: json!({ "gb": args.gb, "rounds": args.rounds, "figures": documents, "file": file }),
        warnings,
    })
}

/// Measures a directory and, with `beside`, the effect of moving memory at the same time.
fn of_place(
    args: &CalibrateArgs,
    name: &'static str,
    dir: &Path,
    beside: bool,
) -> Result<Vec<Measured>> {
    let above = open_dir(dir, Failpoints::none())?;
    let own = format!("orcheck-calibrate-{}", std::process::id());
    let scratch = above.child(&own, true)?;
    let measured = measure(args, name, scratch.as_ref(), beside);
    // The measurements count, but what is left behind has to be known too.
    let cleared = clear(scratch.as_ref()).and_then(|()| above.remove_child(&own));
    let measured = measured?;
    cleared?;
    Ok(measured)
}

fn measure(
    args: &CalibrateArgs,
    name: &'static str,
    scratch: &dyn Dir,
    beside: bool,
) -> Result<Vec<Measured>> {
    let bytes = (args.gb * 1e9) as usize;
    let mut state: Vec<u8> = (0..bytes)
        .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let mut program = Program::open(scratch.path(), &mut state)?;
    // The first one maps memory, and makes the file's directory.
    program.checkpoint()?;
    let (mut safe_s, mut copies, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        go_on()?;
        let begun = SystemClock.now();
        program.checkpoint()?;
        let took_s = SystemClock.now().saturating_sub(begun).as_secs_f64();
        safe_s.push(took_s);
        rates.push(bytes as f64 / took_s / 1e9);
        copies.push(bytes as f64 / program.session.stats().stage_s.max(1e-9) / 1e9);
    }
    let mut all = vec![Measured::new(
        name,
        "written there, until safe (B_IO)",
        rates,
    )];
    if beside {
        all.push(Measured::new(
            "copy_gb_s",
            "copied in memory, with checksums",
            copies,
        ));
        safe_s.sort_by(f64::total_cmp);
        all.extend(moved_by_others(
            args,
            &mut program,
            safe_s[safe_s.len() / 2],
            bytes,
        )?);
    }
    program.close()?;
    Ok(all)
}

/// B_M and m, for checkpoints that take this long until they are safe.
fn moved_by_others(
    args: &CalibrateArgs,
    program: &mut Program,
    safe_s: f64,
    bytes: usize,
) -> Result<Vec<Measured>> {
    let mut mover = Mover::new();
    mover.sweep(1, || Ok(()))?;
    let one_s = mover.sweep(4, || Ok(()))? / 4.0;
    let sweeps = (WINDOW * safe_s / one_s).ceil().max(1.0) as u32;
    let moved = f64::from(sweeps) * mover.sweep_bytes();
    let (mut none_s, mut with_s) = (vec![mover.sweep(sweeps, || Ok(()))?], Vec::new());
    for _ in 0..args.rounds {
        go_on()?;
        let took_s = mover.sweep(sweeps, || program.begin())?;
        let swept = SystemClock.now();
        program.settle()?;
        let late_s = SystemClock.now().saturating_sub(swept).as_secs_f64();
        // If the checkpoint was not safe when the window ended, the measurement does not count.
        with_s.push((late_s < LATE * took_s).then_some(took_s));
        none_s.push(mover.sweep(sweeps, || Ok(()))?);
    }
    let bandwidth = none_s.iter().map(|took_s| moved / took_s / 1e9).collect();
    let passes = with_s
        .iter()
        .zip(none_s.windows(2))
        .filter_map(|(with_s, beside)| {
            let near_s = (beside[0] + beside[1]) / 2.0;
            Some(((*with_s)? / near_s - 1.0) * moved / bytes as f64)
        });
    Ok(vec![
        Measured::new(
            "memory_gb_s",
            "read and written by all processors (B_M)",
            bandwidth,
        ),
        Measured::new(
            "memory_passes",
            "bytes moved for each byte of a checkpoint (m)",
            passes.collect(),
        ),
    ])
}

/// A program with checkpoints.
struct Program {
    session: Session,
    step: u64,
}

impl Program {
    fn open(dir: &Path, state: &mut [u8]) -> Result<Self> {
        // One snapshot and its records.
        let chunks = (state.len() as u64).div_ceil(CHUNK_BYTES) + 4;
        let path = dir
            .to_str()
            .ok_or_else(|| Error::invalid(format!("{} is not valid UTF-8", dir.display())))?;
        let path = Value::from(path);
        let options = format!(
            "global = [{path}]\nchunk = {CHUNK_BYTES}\npool = {}\nkeep = 1\ncopy_threads = {}",
            chunks * CHUNK_BYTES,
            cpuset().len().clamp(1, 256)
        );
        let mut session = Session::open_with(
            "calibrate",
            Box::new(Solo),
            Options::load(Some(&options)),
            Environment::default(),
        )?;
        session.protect("state", Span::from_mut(state), Dtype::U8, 0)?;
        match session.find() {
            Err(error) if error.kind() == orcheck_format::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Error::internal("a new directory has checkpoints")),
        }
        Ok(Self { session, step: 0 })
    }

    fn begin(&mut self) -> Result<()> {
        self.step += 1;
        self.session.checkpoint(self.step)
    }

    fn settle(&mut self) -> Result<()> {
        self.session.wait(self.step, Level::Global, LONG)
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.begin()?;
        self.settle()
    }

    fn close(self) -> Result<()> {
        self.session.close(LONG)
    }
}

/// Two arrays for each processor; one is computed from the other.
struct Mover(Vec<(Vec<f64>, Vec<f64>)>);

impl Mover {
    fn new() -> Self {
        let threads = cpuset().len().max(1);
        let numbers = ARRAY_BYTES / size_of::<f64>() / threads;
        Self(
            (0..threads)
                .map(|_| (vec![1.0; numbers], vec![2.0; numbers]))
                .collect(),
        )
    }

    /// Number of bytes that one sweep reads and writes.
    fn sweep_bytes(&self) -> f64 {
        self.0
            .iter()
            .map(|(from, _)| 2.0 * size_of_val(&from[..]) as f64)
            .sum()
    }

    /// Runs this many sweeps on all processors, and `beside` at their beginning; returns the
    /// seconds.
    fn sweep(&mut self, sweeps: u32, beside: impl FnOnce() -> Result<()>) -> Result<f64> {
        let begun = SystemClock.now();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (from, to) in &mut self.0 {
                let work = move || {
                    for _ in 0..sweeps {
                        for (to, from) in to.iter_mut().zip(&*from) {
                            *to = 1.000_001 * from;
                        }
                        std::mem::swap(from, to);
                    }
                };
                threads.push(spawn_scoped(scope, "orcheck-move", work)?);
            }
            let done = beside();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| Error::internal("a thread that moves memory ended"))?;
            }
            done
        })?;
        Ok(SystemClock.now().saturating_sub(begun).as_secs_f64())
    }
}

/// Removes everything in a directory.
fn clear(dir: &dyn Dir) -> Result<()> {
    for entry in dir.list()? {
        if entry.is_dir {
            clear(dir.child(&entry.name, false)?.as_ref())?;
            dir.remove_child(&entry.name)?;
        } else {
            dir.remove(&entry.name)?;
        }
    }
    Ok(())
}
