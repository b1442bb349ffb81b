//! Options of `orcheck mount`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Mounts a directory at another path.
#[derive(Debug, Args)]
#[command(after_help = "\
Without COMMAND it stays until it is unmounted (umount MOUNTPOINT), or until SIGTERM or SIGINT, and then waits until all files \
are durable. With COMMAND it stays while the command runs; the exit code is that of the command, or 3 if files could not be made \
durable.
The command runs where you are; only what it writes below MOUNTPOINT goes through the mount.
`sync MOUNTPOINT` returns when everything that was closed is durable. What each call promises: docs/mount.md.

Examples:
    orcheck mount /scratch/me/run results -- mpirun -n 4 lmp -in in.melt
    orcheck mount --stage /local/ssd /scratch/me/run results &
    orcheck mount --profile trace /scratch/me/run results -- ./solver
    orcheck mount --job melt --set 'restart.{step}.*' --set-count 4 --options \"node_dir = '/local/ssd'\" /scratch/me/run results -- ./solver")]
pub struct MountArgs {
    /// The directory that has the files
    #[arg(value_name = "BACKING")]
    pub backing: PathBuf,
    /// An empty directory where programs see them, or BACKING itself
    #[arg(value_name = "MOUNTPOINT")]
    pub mount_point: PathBuf,
    /// Keep new files on this fast storage of the node first, and flush them in the background
    #[arg(long, value_name = "DIR")]
    pub stage: Option<PathBuf>,
    /// What the stage may hold, in MiB (default: half of what is free there); whoever writes more
    /// waits for the flush
    #[arg(long, value_name = "N", requires = "stage", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    pub stage_mib: Option<u64>,
    /// Let the kernel collect small writes. Changes that others make in BACKING may not be seen
    #[arg(long)]
    pub write_back: bool,
    /// Let each read and write come through this process, also where the kernel could do them alone
    #[arg(long)]
    pub no_passthrough: bool,
    /// Mount it read-only
    #[arg(long, conflicts_with_all = ["stage", "write_back"])]
    pub read_only: bool,
    /// Record every write in this file, as `orcheck profile --out` does
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Make the files of each step one checkpoint of this job; --set, or a file named
    /// `.orcheck-set`, says which files belong together
    #[arg(long, value_name = "NAME", conflicts_with = "read_only")]
    pub job: Option<String>,
    /// The files of a step: a path below MOUNTPOINT with `{step}` for the number and `*` for
    /// anything; repeatable. Without `{step}`, each time they are written is the next step
    #[arg(long, value_name = "PATTERN", requires = "job")]
    pub set: Vec<String>,
    /// A set is complete with this many files, of all nodes
    #[arg(long, value_name = "N", requires = "set", value_parser = clap::value_parser!(u64).range(1..))]
    pub set_count: Option<u64>,
    /// A set is complete once this file has been closed
    #[arg(
        long,
        value_name = "PATTERN",
        requires = "set",
        conflicts_with = "set_count"
    )]
    pub set_end: Option<String>,
    /// Options of the job, as the library takes them: "node_dir = '/local/ssd'"
    #[arg(long, value_name = "TOML", requires = "job")]
    pub options: Option<String>,
    /// Number of nodes whose mounts share the job
    #[arg(long, value_name = "N", requires = "job", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// The number of this node, from 0 (default: the rank that mpirun or srun gives this process)
    #[arg(long, value_name = "I", requires = "job")]
    pub node: Option<u32>,
    /// A file that all nodes see, by which their mounts find each other (default:
    /// BACKING/.orcheck-sets/JOB/meeting)
    #[arg(long, value_name = "FILE", requires = "job")]
    pub meet: Option<PathBuf>,
    /// Run this with the mount, and unmount it afterwards
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
