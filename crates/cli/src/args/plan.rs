//! Defines the flags of `orcheck plan`.
//!
//! Invariants:
//! 1. A value out of its range is refused here, with the name of the flag and the range;
//!    combinations of flags are checked where they are used.
//!
//! Not here: what is computed (`commands/plan`).

use std::path::PathBuf;

use crate::args::advice::AdviceArgs;
use crate::args::values::{number, time, time_or_none, whole};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use orcheck_interval::Level;
use orcheck_planner::contention::Mode;
use orcheck_planner::survival::{NODES_MAX, Redundancy};

/// What the help of a command says about times.
macro_rules! of_times {
    () => {
        "TIME is a number with a unit (us, ms, s, min, h, d, y); a number alone is in seconds."
    };
}

/// What to compute.
#[derive(Debug, Args)]
#[command(after_help = of_times!())]
pub struct PlanArgs {
    #[command(subcommand)]
    pub what: Option<Plan>,
    #[command(flatten)]
    pub advice: AdviceArgs,
}

/// Computations, one each.
#[derive(Debug, Subcommand)]
pub enum Plan {
    /// How long a burst of checkpoints takes on a few targets, in each mode
    Burst(BurstArgs),
    /// How many nodes may be lost at once, with copies on other nodes or parity, and how likely a
    /// loss is survived
    Survival(SurvivalArgs),
    /// How often to take checkpoints, and what share of the time is left for computing
    Interval(IntervalArgs),
    /// How long a job takes with failures, run by run, and what the time goes into
    Simulate(SimulateArgs),
    /// What checkpoints cost a run in which nothing fails, written by the program or by threads
    /// beside it
    Overhead(OverheadArgs),
    /// Measure this machine: its memory, copies in it, and directories
    Calibrate(CalibrateArgs),
}

impl Plan {
    /// The command's name as typed.
    pub fn name(&self) -> &'static str {
        match self {
            Plan::Burst(_) => "plan burst",
            Plan::Survival(_) => "plan survival",
            Plan::Interval(_) => "plan interval",
            Plan::Simulate(_) => "plan simulate",
            Plan::Overhead(_) => "plan overhead",
            Plan::Calibrate(_) => "plan calibrate",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every rank writes its part at once; the time ends when all is on the disks. Each request is simulated, from the node over \
its link and the server's to the server's disk. The defaults are the cluster of the document about orchestration: 32 nodes, \
4 servers, 1 Gbit/s, disks of 2012; docs/contention.md has all parameters, what is assumed, and the form of a result file. \
'Formula' is what follows from bytes, rates and seeks alone, where that is enough.")]
pub struct BurstArgs {
    /// Compute nodes
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole::<u32>(1, u32::MAX.into()), allow_hyphen_values = true)]
    pub nodes: u32,
    /// Ranks on each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<u32>(1, u32::MAX.into()), allow_hyphen_values = true)]
    pub ranks_per_node: u32,
    /// Targets
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<u32>(1, u32::MAX.into()), allow_hyphen_values = true)]
    pub servers: u32,
    /// Size of the whole checkpoint, in GB (10^9 bytes)
    #[arg(
        long,
        value_name = "GB",
        default_value_t = 16.0,
        allow_hyphen_values = true
    )]
    pub total_gb: f64,
    /// Only this mode; repeatable
    #[arg(long = "mode", value_name = "MODE", value_parser = burst_mode())]
    pub modes: Vec<Mode>,
    /// A parameter, such as disk.rate_bytes_per_s=90e6; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Take parameters and bursts from a result file of bench-contention, and compare with what was
    /// measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "ranks_per_node", "servers", "total_gb", "modes"])]
    pub from: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each node keeps its own part of a checkpoint, and others keep it too or can compute it; losses are of nodes that are lost at \
the same time, chosen at random. HOW is peers:K (K copies on other nodes, dealt evenly in random order, as level 'peers' \
does), random:K (on nodes drawn at random for each node), partner:K (on the next K nodes), xor:G (groups of G nodes that may \
lose one) or rs:K+M (groups of K+M nodes that may lose M). Exact where there is a formula or a count; \
otherwise, and with --trials, by drawing losses at random.")]
pub struct SurvivalArgs {
    /// Print Table 1 of Walters and Chaudhary (HiPC 2007) beside the exact numbers, and mark each
    /// difference
    #[arg(long, conflicts_with_all = ["nodes", "with", "percent", "lost", "together", "apart"])]
    pub table1: bool,
    /// Nodes of the job; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128, 256, 512, 1024, 2048], value_parser = whole::<u32>(1, NODES_MAX.into()), allow_hyphen_values = true)]
    pub nodes: Vec<u32>,
    /// How others protect a node's part; several with commas
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_values = ["peers:1", "peers:2", "peers:3", "peers:4"], value_parser = how)]
    pub with: Vec<How>,
    /// Find the most losses that are survived with this probability; several with commas
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [90.0, 99.0, 99.9], value_parser = percent, allow_hyphen_values = true)]
    pub percent: Vec<f64>,
    /// Find how likely this many losses are survived instead; several with commas
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        conflicts_with = "percent",
        value_parser = whole::<u32>(0, NODES_MAX.into()),
        allow_hyphen_values = true
    )]
    pub lost: Vec<u32>,
    /// Nodes that fail together, such as those at one switch: losses are of this many nodes each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, NODES_MAX.into()), allow_hyphen_values = true)]
    pub together: u32,
    /// What protects a node's part keeps away from those that fail together with it
    #[arg(long)]
    pub apart: bool,
    /// Draw losses so often too, beside each exact number
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 10_000_000_000), allow_hyphen_values = true)]
    pub trials: Option<u64>,
    /// What the random numbers of the trials are from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX), allow_hyphen_values = true)]
    pub seed: u64,
    /// Draw survival by losses, where it is exact, into a file that ends with .svg or .png
    #[arg(long, value_name = "FILE", conflicts_with = "table1")]
    pub plot: Option<PathBuf>,
}

/// How to protect a node's part, as the user wrote it.
#[derive(Debug, Clone)]
pub struct How {
    pub name: String,
    pub redundancy: Redundancy,
}

fn how(text: &str) -> Result<How, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    // As in option `protect`, too.
    let redundancy = match text.split_once([':', '=']) {
        Some(("peers", copies)) => number(copies).map(|replicas| Redundancy::Peers { replicas }),
        Some(("random", copies)) => number(copies).map(|replicas| Redundancy::Random { replicas }),
        Some(("partner", copies)) => {
            number(copies).map(|replicas| Redundancy::Partner { replicas })
        }
        Some(("xor", size)) => number(size).map(|size| Redundancy::Group { size, parity: 1 }),
        Some(("rs", sizes)) => sizes.split_once('+').and_then(|(data, parity)| {
            let (data, parity) = (number(data)?, number(parity)?);
            let size = data.checked_add(parity)?;
            Some(Redundancy::Group { size, parity })
        }),
        _ => None,
    };
    let redundancy = redundancy
        .ok_or("expected peers:K, random:K, partner:K, xor:G or rs:K+M, with whole numbers")?;
    let name = text.to_owned();
    Ok(How { name, redundancy })
}

#[derive(Debug, Args)]
#[command(after_help = concat!("\
Failures come at random, independently of each other, and may strike in checkpoints and restarts too. The intervals are of \
computing, from the end of one checkpoint to the beginning of the next. A LEVEL is \
NAME:cost=TIME,mtbf=TIME,restart=TIME,after=TIME: what a checkpoint of it costs the program, with the lower levels; the mean \
time between failures that need it and no higher one; from such a failure until the program computes again (default: the \
cost); and from when the program continues until the checkpoint has reached the level (default: at once). ", of_times!()))]
pub struct IntervalArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Another interval to compare with; several with commas
    #[arg(long, value_name = "TIME", value_delimiter = ',', conflicts_with = "levels", value_parser = time, allow_hyphen_values = true)]
    pub every: Vec<f64>,
    /// Time of a step of the program: the options of several levels then count steps, as a program
    /// needs them that waits for its checkpoints
    #[arg(long, value_name = "TIME", value_parser = time, requires = "levels", allow_hyphen_values = true)]
    pub step: Option<f64>,
    /// Draw it, into a file that ends with .svg or .png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// A job and its failures.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// What a checkpoint costs the program: how long it waits for it
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, required_unless_present = "levels")]
    pub checkpoint: Option<f64>,
    /// From a failure until the program computes again, without what was lost; default: as long as
    /// a checkpoint
    #[arg(long, value_name = "TIME", value_parser = time_or_none, allow_hyphen_values = true)]
    pub restart: Option<f64>,
    /// Mean time between failures of the whole job
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, required_unless_present_any = ["node_mtbf", "levels"])]
    pub mtbf: Option<f64>,
    /// Mean time between failures of one node; the job has --nodes of them
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, conflicts_with = "mtbf", requires = "nodes")]
    pub node_mtbf: Option<f64>,
    /// Nodes of the job, any of which ends it by failing
    #[arg(long, value_name = "N", requires = "node_mtbf", value_parser = whole::<u32>(1, u32::MAX.into()), allow_hyphen_values = true)]
    pub nodes: Option<u32>,
    /// Computing that the job has to do
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time, allow_hyphen_values = true)]
    pub work: f64,
    /// Checkpoints of several levels instead; repeat from the weakest to the strongest
    #[arg(long = "level", value_name = "LEVEL", value_parser = level, conflicts_with_all = ["checkpoint", "restart", "mtbf", "node_mtbf"])]
    pub levels: Vec<NamedLevel>,
}

#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each run is followed failure by failure until its work is done. TIME and LEVEL are those of `orcheck plan interval`, whose \
recommendation is taken where no interval is given. A trace has a line for each failure: the time from its beginning, and the name of \
the level that it needs (or nothing, where there is one), such as 36.5h global; each run begins at a random time of it, and at its \
end it begins again. ", of_times!()))]
pub struct SimulateArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Computing between two checkpoints; their levels stay as recommended, or as --pattern says
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub interval: Option<f64>,
    /// For each level: every this many checkpoints one is of it; 1 for the first, with commas
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        requires = "interval",
        value_parser = whole::<u32>(1, u32::MAX.into()),
        allow_hyphen_values = true
    )]
    pub pattern: Vec<u32>,
    /// Failures with a Weibull distribution of this shape; below 1 they come in bursts
    #[arg(long, value_name = "SHAPE", value_parser = shape, allow_hyphen_values = true)]
    pub weibull: Option<f64>,
    /// Failures as they came somewhere
    #[arg(long, value_name = "FILE", conflicts_with = "weibull")]
    pub trace: Option<PathBuf>,
    /// Runs
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u64>(1, 1_000_000), allow_hyphen_values = true)]
    pub runs: u64,
    /// What the random numbers are from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX), allow_hyphen_values = true)]
    pub seed: u64,
    /// Draw the first run, and what the time goes into, into a file that ends with .svg or .png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = concat!("\
Synchronous: n S / B_IO, equation (1) of Shahzad et al. (IPDPS Workshops 2013). Asynchronous: m S_node n / B_M, their equation (2), \
a lower bound: it counts what the writing threads take of the memory's bandwidth, and nothing that the program waits for \
as well. m is measured apart from the run that it explains; they found 5 to 7 for the I/O of an MPI library. GB are 10^9 bytes. ", of_times!()))]
pub struct OverheadArgs {
    /// Checkpoints
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 1_000_000_000), allow_hyphen_values = true)]
    pub checkpoints: u64,
    /// GB of one node's part of a checkpoint
    #[arg(long, value_name = "GB", value_parser = size, allow_hyphen_values = true)]
    pub node_gb: f64,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, u32::MAX.into()), allow_hyphen_values = true)]
    pub nodes: u32,
    /// GB/s of a node's memory
    #[arg(long, value_name = "GB/S", value_parser = size, allow_hyphen_values = true)]
    pub memory_gb_s: f64,
    /// Bytes that move between memory and processors for each byte written
    #[arg(long, value_name = "M", default_value_t = 7.0, value_parser = passes, allow_hyphen_values = true)]
    pub memory_passes: f64,
    /// GB/s of the file system, for all nodes together
    #[arg(long, value_name = "GB/S", value_parser = size, allow_hyphen_values = true)]
    pub io_gb_s: f64,
    /// Time of the run without checkpoints: tells shares of it, and how many checkpoints fit
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub run: Option<f64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Checkpoints of a state that has --gb are taken to a directory of its own in each of the two, which is removed afterwards; before the \
first of them all processors move memory meanwhile. Nothing else should run on the machine. It prints the table [machine] of a file \
for `orcheck plan --from`.")]
pub struct CalibrateArgs {
    /// A directory on the node's own disk
    #[arg(long, value_name = "DIR", required_unless_present = "shared")]
    pub disk: Option<PathBuf>,
    /// A directory of the file system that all nodes share
    #[arg(long, value_name = "DIR")]
    pub shared: Option<PathBuf>,
    /// GB (10^9 bytes) of a checkpoint
    #[arg(long, value_name = "GB", default_value_t = 0.5, value_parser = state_size, allow_hyphen_values = true)]
    pub gb: f64,
    /// Checkpoints of each kind
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = whole::<u32>(1, 1000), allow_hyphen_values = true)]
    pub rounds: u32,
    /// Write the figures to a file too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

fn state_size(text: &str) -> Result<f64, String> {
    number(text, 1e-3, 1e3)
}

/// A level of checkpoints, with its name.
#[derive(Debug, Clone)]
pub struct NamedLevel {
    pub name: String,
    pub level: Level,
}

fn level(text: &str) -> Result<NamedLevel, String> {
    let (name, rest) = text
        .split_once(':')
        .ok_or("expected NAME:cost=TIME,mtbf=TIME")?;
    if name.is_empty() {
        return Err("expected a name before ':'".to_owned());
    }
    let (mut cost, mut mtbf, mut restart, mut after) = (None, None, None, None);
    for part in rest.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let at = |what: String| format!("{key}={value}: {what}");
        let (into, found) = match key {
            "cost" => (&mut cost, time(value)),
            "mtbf" => (&mut mtbf, time(value)),
            "restart" => (&mut restart, time_or_none(value)),
            "after" => (&mut after, time_or_none(value)),
            _ => return Err(format!("'{key}': expected cost, mtbf, restart or after")),
        };
        if into.replace(found.map_err(at)?).is_some() {
            return Err(format!("'{key}' is there twice"));
        }
    }
    let checkpoint_s = cost.ok_or("cost=TIME is missing")?;
    Ok(NamedLevel {
        name: name.to_owned(),
        level: Level {
            checkpoint_s,
            safe_after_s: after.unwrap_or(0.0),
            restart_s: restart.unwrap_or(checkpoint_s),
            mtbf_s: mtbf.ok_or("mtbf=TIME is missing")?,
        },
    })
}

fn size(text: &str) -> Result<f64, String> {
    number(text, 1e-6, 1e6)
}

fn passes(text: &str) -> Result<f64, String> {
    number(text, 0.01, 1000.0)
}

fn shape(text: &str) -> Result<f64, String> {
    number(text, 0.1, 10.0)
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 1e-6, 100.0).map_err(|_| "expected more than 0 and at most 100".to_owned())
}

/// The modes of the model, by name.
fn burst_mode() -> impl TypedValueParser<Value = Mode> {
    let value = |mode: Mode| {
        PossibleValue::new(mode.name()).help(match mode {
            Mode::Traditional => "Every rank in stripes over all servers",
            Mode::Vertical => "Every rank whole on the server of its node",
            Mode::Orchestrated => "One stream a node, pulled by its server",
        })
    };
    PossibleValuesParser::new(Mode::ALL.map(value)).try_map(|name| {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| format!("expected a mode, found '{name}'"))
    })
}
