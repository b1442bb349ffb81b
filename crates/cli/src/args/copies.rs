//! Defines the command lines of `copy` and `scavenge`.
//!
//! Not here: what the commands do.

use std::path::PathBuf;

use clap::Args;
use orcheck_format::{Level, Step};

use super::{Unlock, Where, Which, time_or_none};

#[derive(Debug, Args)]
#[command(after_help = "\
Give the sources as for `verify`: directories of nodes, wherever they were collected, of their peers, or of level global. Every byte is \
verified before it is written. The copy is complete or absent; the sources do not change; a job that starts with the \
new directories continues from it. Refused: checkpoints that a newer run superseded, directories of a live run or of another job.")]
pub struct CopyArgs {
    /// Level of the copy: global, or node
    #[arg(long, value_name = "LEVEL", value_parser = level_of_copy)]
    pub to: Level,
    #[command(flatten)]
    pub which: Which,
    /// Step of the checkpoint; it can also be given without a flag
    #[arg(long, value_name = "N")]
    pub step: Option<Step>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// With --to global: directory to copy to; repeat for each. The files go to ROOT/JOB. Default:
    /// ORCHECK_GLOBAL
    #[arg(long = "global", value_name = "ROOT", value_delimiter = ',')]
    pub global: Vec<PathBuf>,
    /// With --to node: directory to copy to. The files of each node go to ROOT/JOB/NODE. Default:
    /// ORCHECK_NODE_DIR
    #[arg(long = "node-root", value_name = "ROOT")]
    pub node_root: Option<PathBuf>,
    /// Group of users that shares the new files, as the job's option `group`. Default:
    /// ORCHECK_GROUP
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Compression of the copy: none, zstd or lz4. Default: that of the checkpoint
    #[arg(long, value_enum, value_name = "HOW")]
    pub compress: Option<CopyCompress>,
    /// Show what would be copied, and copy nothing
    #[arg(long)]
    pub dry_run: bool,
}

fn level_of_copy(text: &str) -> Result<Level, String> {
    match text.parse() {
        Ok(level @ (Level::Global | Level::Node)) => Ok(level),
        _ => Err(
            "expected global or node; a run with peers makes the replicas when it resumes"
                .to_owned(),
        ),
    }
}

/// The compression of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CopyCompress {
    /// No compression.
    None,
    /// By zstd.
    Zstd,
    /// By LZ4.
    Lz4,
}

#[derive(Debug, Args)]
#[command(after_help = "\
For the end of a batch script, or for a later job on the same nodes. Run it on a node of the job, or where the directories of the nodes \
are visible. It waits for the agents of this machine and for a run that is ending, asks the agents of other nodes, and copies as \
`orcheck copy --to global` does. A step with missing or damaged parts is named and left, and the next older one is taken \
(exit code 3). Refused while a run is alive (exit code 7).")]
pub struct ScavengeArgs {
    /// Directories to search: of a job, of a node, or above them
    #[arg(value_name = "DIR")]
    pub at: Vec<PathBuf>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Directory of level global to write to; repeat for each. The files go to ROOT/JOB. Default:
    /// that of --dir, or ORCHECK_GLOBAL
    #[arg(long = "global", value_name = "ROOT", value_delimiter = ',')]
    pub global: Vec<PathBuf>,
    /// Group of users that shares the new files, as the job's option `group`. Default:
    /// ORCHECK_GROUP
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Longest wait for agents that still write, for a run or another scavenge that is ending, and
    /// for nodes that may have a missing part of the newest step; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "2min", value_parser = time_or_none, allow_negative_numbers = true)]
    pub timeout: f64,
    /// Take the newest step or none
    #[arg(long)]
    pub strict: bool,
    /// Take nothing: give out what this node's directory holds to a scavenge on another node, in
    /// the place of an agent that has ended, until a signal or for --timeout
    #[arg(long, conflicts_with_all = ["global", "group", "strict", "dry_run"])]
    pub serve: bool,
    /// Show what would be taken, and take nothing
    #[arg(long)]
    pub dry_run: bool,
}
