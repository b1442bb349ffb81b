//! Defines the flags of `orcheck plan` itself: a machine and a job, which a file may describe too.
//!
//! Invariants:
//! 1. A figure has one name: the flag with underscores is its key in files and presets.
//!
//! Not here: the valid ranges of figures (`commands/plan/figures.rs`).

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize};

use super::values::{time, time_or_none, whole};

#[derive(Debug, Args)]
#[command(next_help_heading = "Advice")]
pub struct AdviceArgs {
    /// Begin with the published figures of this machine; --presets lists them
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// List the machines, with what is published of each and where
    #[arg(long, conflicts_with_all = ["preset", "from"])]
    pub presets: bool,
    /// Take figures from a TOML file with tables [machine] and [job], whose keys are the flags'
    /// names
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Draw it, into a file that ends with .svg or .png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobFigures,
    #[command(flatten)]
    pub machine: MachineFigures,
}

impl AdviceArgs {
    /// Refuses figures before a command that does not take them.
    pub fn refuse(&self, command: &str) -> orcheck_format::Result<()> {
        let set =
            |figures: Result<toml::Table, _>| figures.is_ok_and(|figures| !figures.is_empty());
        let figures =
            set(toml::Table::try_from(&self.job)) || set(toml::Table::try_from(&self.machine));
        let others = [
            self.preset.is_some(),
            self.presets,
            self.from.is_some(),
            self.plot.is_some(),
        ];
        if !figures && !others.contains(&true) {
            return Ok(());
        }
        Err(orcheck_format::Error::invalid(format!(
            "flags of `orcheck plan` come before '{command}': put them after it, if it accepts them"
        )))
    }
}

/// What a job is like.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The job")]
pub struct JobFigures {
    /// Nodes of the job; default: the machine's
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 10_000_000), allow_hyphen_values = true)]
    pub nodes: Option<u32>,
    /// Ranks on each node, for --rank-gb
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 10_000_000), allow_hyphen_values = true)]
    pub ranks_per_node: Option<u32>,
    /// GB (10^9 bytes) of one node's part of a checkpoint
    #[arg(long, value_name = "GB", allow_hyphen_values = true)]
    pub node_gb: Option<f64>,
    /// GB of one rank's part, instead
    #[arg(
        long,
        value_name = "GB",
        conflicts_with = "node_gb",
        allow_hyphen_values = true
    )]
    pub rank_gb: Option<f64>,
    /// Computing that the job has to do; default: 24h
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub work: Option<f64>,
    /// From a failure until the program runs again and reads; default: 1min
    #[arg(long, value_name = "TIME", value_parser = time_or_none, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub relaunch: Option<f64>,
    /// Share of the file system's rate that the job gets; default: 100
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub shared_percent: Option<f64>,
}

/// What a machine is like; figures are of one node unless said.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The machine (of one node unless said)")]
pub struct MachineFigures {
    /// Nodes of the machine
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 10_000_000), allow_hyphen_values = true)]
    pub machine_nodes: Option<u32>,
    /// GB of memory
    #[arg(long, value_name = "GB", allow_hyphen_values = true)]
    pub memory_gb: Option<f64>,
    /// GB/s of memory (B_M)
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub memory_gb_s: Option<f64>,
    /// Bytes that move in memory for each byte that is written somewhere (m); default: 7
    #[arg(long, value_name = "M", allow_hyphen_values = true)]
    pub memory_passes: Option<f64>,
    /// GB/s of copies in memory; default: half of --memory-gb-s
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub copy_gb_s: Option<f64>,
    /// GB/s written to the own disk; none: no disk, no replicas
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub disk_write_gb_s: Option<f64>,
    /// GB/s read from it; default: as written
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub disk_read_gb_s: Option<f64>,
    /// GB/s of the network, each way
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub network_gb_s: Option<f64>,
    /// GB/s written to the file system by all nodes together
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub shared_write_gb_s: Option<f64>,
    /// GB/s read from it; default: as written
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    pub shared_read_gb_s: Option<f64>,
    /// Mean time between failures of one node, with what it had
    #[arg(long, value_name = "TIME", value_parser = mtbf, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub node_mtbf: Option<f64>,
    /// Mean time between failures of the program on one node, which stays; default: never, and
    /// 'never' takes back what a preset says
    #[arg(long, value_name = "TIME", value_parser = mtbf, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub process_mtbf: Option<f64>,
    /// Nodes that fail together, such as those at one switch
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 10_000_000), allow_hyphen_values = true)]
    pub together: Option<u32>,
    /// Mean time between failures of one such switch; default: never
    #[arg(long, value_name = "TIME", value_parser = mtbf, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub together_mtbf: Option<f64>,
    /// Mean time between failures of the whole machine at once; default: never
    #[arg(long, value_name = "TIME", value_parser = mtbf, allow_hyphen_values = true)]
    #[serde(deserialize_with = "of_file")]
    pub system_mtbf: Option<f64>,
}

/// A time, or never.
fn mtbf(text: &str) -> Result<f64, String> {
    match text.trim() {
        "never" => Ok(f64::INFINITY),
        text => time_or_none(text).map_err(|error| format!("{error}, or never")),
    }
}

/// A time as in flags, or a number of seconds.
fn of_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Time {
        Text(String),
        Seconds(f64),
        None(()),
    }
    match Time::deserialize(from)? {
        Time::Text(text) => mtbf(&text).map(Some).map_err(serde::de::Error::custom),
        Time::Seconds(seconds) => Ok(Some(seconds)),
        Time::None(()) => Ok(None),
    }
}
