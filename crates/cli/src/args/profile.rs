//! Options of `orcheck profile`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Watches a command, or writes like one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    orcheck profile --out trace -- mpirun -n 4 lmp -in in.melt
    orcheck profile --replay trace /scratch/me /local
    orcheck profile --replay lu.c.64 -n 8 /scratch/me")]
pub struct ProfileArgs {
    /// Keep all calls in this file
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub out: Option<PathBuf>,
    /// Draw a picture (.svg or .png)
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub plot: Option<PathBuf>,
    /// Write like a profile: a file of --out, or lu.c.64 or bt.c.64, whose shares were published
    #[arg(long, value_name = "FILE|NAME", requires = "dirs")]
    pub replay: Option<String>,
    /// Processes that write at once, rounded up to whole copies of a profile (default: one copy; of
    /// a published one, 8)
    #[arg(short = 'n', long, value_name = "N", requires = "replay", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// How often each directory is written to; the median counts
    #[arg(long, value_name = "N", requires = "replay", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Directories to replay in; they take turns
    #[arg(value_name = "DIR", requires = "replay")]
    pub dirs: Vec<PathBuf>,
    /// The command to watch
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "replay",
        conflicts_with = "replay"
    )]
    pub command: Vec<OsString>,
}
