//! Defines the command line: every command, option and help text.
//!
//! Invariants: `--json` exists on every command; every option that names a quantity names its unit.
//!
//! Not here: what the commands do.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use orcheck_format::{Error, Level, Step};

use crate::exit;

mod advice;
mod copies;
mod mount;
mod plan;
mod profile;
mod values;

pub use advice::{AdviceArgs, JobFigures, MachineFigures};
pub use copies::{CopyArgs, CopyCompress, ScavengeArgs};
pub use mount::MountArgs;
pub use plan::{
    BurstArgs, CalibrateArgs, How, IntervalArgs, JobArgs, OverheadArgs, Plan, PlanArgs,
    SimulateArgs, SurvivalArgs,
};
pub use profile::ProfileArgs;
pub use values::{time_or_none, time_with_unit};

/// Orchestrated checkpoints for parallel programs: list, verify and restore them, and keep a
/// program running.
#[derive(Debug, Parser)]
#[command(name = "orcheck", version, after_help = exit::TABLE, max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// Print one JSON document with a `schema` number instead of text
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the checkpoints of a job
    Ls(LsArgs),
    /// Show what one checkpoint holds: containers, ranks and regions
    Show(ShowArgs),
    /// Read everything and check every checksum
    Verify(VerifyArgs),
    /// Write regions of a checkpoint to plain files
    Restore(RestoreArgs),
    /// Copy a checkpoint to another level, such as from the nodes to the file system
    Copy(CopyArgs),
    /// After a run has died: take the newest step that only its nodes hold to level global
    Scavenge(ScavengeArgs),
    /// Remove chosen checkpoints of a job
    Rm(RmArgs),
    /// Keep checkpoints, whatever the program's keep rule says
    Keep(KeepArgs),
    /// Remove all but the newest checkpoints of a job
    Prune(PruneArgs),
    /// Start a command and restart it after a failure
    Run(RunArgs),
    /// Find state that a program forgot to protect: compare an undisturbed run with a restarted one
    Prove(ProveArgs),
    /// Show how a program writes its files, and write like it elsewhere
    Profile(ProfileArgs),
    /// Mount a directory at another path, and make what programs write there durable in the
    /// background
    Mount(MountArgs),
    /// Run the checkpoint engine of one node in a process that outlives its ranks
    Agent(AgentArgs),
    /// Serve one disk or directory over the network: pull what nodes write, and write it once, in
    /// order
    Server(ServerArgs),
    /// Make one directory for each server of a parallel file system
    Place(PlaceArgs),
    /// Ask a running job to take a checkpoint and end, and wait for it
    Halt(HaltArgs),
    /// Wait until the agents of a job have saved what they hold, and end them
    Drain(DrainArgs),
    /// Show your agents on this machine, and whether the jobs in directories run
    Status(StatusArgs),
    /// Recommend how often to checkpoint, where to, and with how many replicas
    Plan(Box<PlanArgs>),
    /// Examine this machine and given directories, and say what to do
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

impl Command {
    /// The command's name as typed.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Ls(_) => "ls",
            Command::Show(_) => "show",
            Command::Verify(_) => "verify",
            Command::Restore(_) => "restore",
            Command::Copy(_) => "copy",
            Command::Scavenge(_) => "scavenge",
            Command::Prove(_) => "prove",
            Command::Profile(_) => "profile",
            Command::Mount(_) => "mount",
            Command::Rm(_) => "rm",
            Command::Keep(_) => "keep",
            Command::Prune(_) => "prune",
            Command::Run(_) => "run",
            Command::Agent(_) => "agent",
            Command::Server(_) => "server",
            Command::Place(_) => "place",
            Command::Halt(_) => "halt",
            Command::Drain(_) => "drain",
            Command::Status(_) => "status",
            Command::Plan(args) => args.what.as_ref().map_or("plan", Plan::name),
            Command::Doctor(_) => "doctor",
            Command::Completions(_) => "completions",
            Command::Man(_) => "man",
        }
    }
}

/// The directories of the job.
#[derive(Debug, Clone, Args)]
pub struct Where {
    /// Placed directory of level global; repeat for each. Default: ORCHECK_GLOBAL, comma separated
    #[arg(long = "dir", value_name = "ROOT")]
    pub dirs: Vec<PathBuf>,
    /// Directory of level node; all nodes found below ROOT/JOB are read. Repeatable. Default:
    /// ORCHECK_NODE_DIR
    #[arg(long = "node-dir", value_name = "ROOT")]
    pub node_dirs: Vec<PathBuf>,
    /// Name of the job; optional where the directories hold only one
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Directories given without a flag; their kind is detected.
    #[arg(skip)]
    pub anywhere: Vec<PathBuf>,
}

/// Which commit of a step to use.
#[derive(Debug, Args)]
pub struct Which {
    /// Step of the checkpoint (default: the newest), and directories of a job, of a node, or above
    /// them
    #[arg(value_name = "STEP|DIR", value_parser = target)]
    pub targets: Vec<Target>,
    /// Level of the commit to use: process, node, peers(f) or global
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
}

/// A step or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A number.
    Step(Step),
    /// Anything else; a directory whose name is a number must be written with a slash.
    Dir(PathBuf),
}

fn target(text: &str) -> Result<Target, String> {
    Ok(match text.parse() {
        Ok(step) => Target::Step(step),
        Err(_) => Target::Dir(PathBuf::from(text)),
    })
}

impl Which {
    /// The newest checkpoint.
    pub fn newest() -> Self {
        Which {
            targets: Vec::new(),
            level: None,
        }
    }

    /// The step, if one is given.
    pub fn step(&self) -> Option<Step> {
        self.steps().next()
    }

    /// Refuses several steps.
    pub fn check(&self) -> Result<(), Error> {
        let first = self.step();
        match self.steps().find(|&step| Some(step) != first) {
            None => Ok(()),
            Some(other) => Err(Error::invalid(format!(
                "steps {} and {other} are given, expected one",
                first.unwrap_or(other)
            ))
            .next("give one step; a directory whose name is a number is written with a slash")),
        }
    }

    fn steps(&self) -> impl Iterator<Item = Step> {
        self.targets.iter().filter_map(|target| match target {
            Target::Step(step) => Some(*step),
            Target::Dir(_) => None,
        })
    }

    /// Where to look: according to the flags, and in the directories given beside the step.
    pub fn place(&self, flags: &Where) -> Where {
        let mut place = flags.clone();
        let dirs = self.targets.iter().filter_map(|target| match target {
            Target::Dir(dir) => Some(dir.clone()),
            Target::Step(_) => None,
        });
        place.anywhere.extend(dirs);
        place
    }
}

/// The keys of encrypted checkpoints.
#[derive(Debug, Args)]
pub struct Unlock {
    /// Source of the key of encrypted checkpoints: file:PATH, keyring:NAME or env:NAME; never the
    /// key itself. Several sources, separated by commas, are tried in turn. Data that none of them
    /// authenticates is refused. Default: ORCHECK_ENCRYPT_KEY
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    pub encrypt_key: Vec<String>,
    /// With a key: also read files that are not encrypted (plain), or encrypted by version 0.1.0
    /// (v1). Anyone who can write to the directories can make such files. Default: ORCHECK_ACCEPT
    #[arg(long, value_name = "plain,v1", value_delimiter = ',')]
    pub accept: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Directories to search: of a job, of a node, or above them
    #[arg(value_name = "DIR")]
    pub at: Vec<PathBuf>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Only this rank; repeatable
    #[arg(long = "rank", value_name = "R")]
    pub ranks: Vec<u32>,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// All checkpoints of the job
    #[arg(long, conflicts_with = "level")]
    pub all: bool,
    /// Make damaged or missing files again, from good copies or from parity, and verify the result
    #[arg(long)]
    pub repair: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Rank of the region
    #[arg(long, value_name = "R", required_unless_present_any = ["all", "array", "files"])]
    pub rank: Option<u32>,
    /// Name of the region
    #[arg(long, value_name = "NAME", required_unless_present_any = ["all", "array", "files"])]
    pub region: Option<String>,
    /// Name of a global array: put it together from all ranks, as a .npy file (NumPy)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rank", "region", "all"])]
    pub array: Option<String>,
    /// The part of the array to write, as in NumPy: "0:10,:,5"
    #[arg(long, value_name = "SLICE", requires = "array", conflicts_with_all = ["rank", "region", "all"], allow_hyphen_values = true)]
    pub slice: Option<String>,
    /// All regions (of all ranks, or of --rank), each to its own file below the directory --out,
    /// with index.json
    #[arg(long, conflicts_with = "region")]
    pub all: bool,
    /// The files of a set, which `orcheck mount` has kept, with their paths, permissions and times,
    /// in the new directory --out: all of them, or none
    #[arg(long, conflicts_with_all = ["rank", "region", "array", "all", "force"])]
    pub files: bool,
    /// File to write, or the directory with --all or --files; "-" writes one region or array to
    /// standard output
    #[arg(long, value_name = "PATH")]
    pub out: PathBuf,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A step is removed at all its levels, from all given directories; give all directories of the job. Refused: a step that another \
step refers to, a step marked by `orcheck keep`, a step of a live run, and any step while a directory cannot be read. A removed \
step cannot be brought back.")]
pub struct RmArgs {
    /// Steps to remove, and directories of a job, of a node, or above them
    #[arg(value_name = "STEP|DIR", value_parser = target, required = true)]
    pub targets: Vec<Target>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Neither the program nor `orcheck prune` removes a marked step, and `orcheck rm` refuses it. It does not count for \
the program's option keep.")]
pub struct KeepArgs {
    /// Steps to keep, and directories of a job, of a node, or above them
    #[arg(value_name = "STEP|DIR", value_parser = target, required = true)]
    pub targets: Vec<Target>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Reason, for those who find the mark
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "undo")]
    pub why: String,
    /// Remove the mark
    #[arg(long)]
    pub undo: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Restartable steps are counted at each level; the newest N of each level stay, with all that they refer to. Marked \
steps stay too. Rejected and superseded steps do not count, and are removed. Containers without a commit \
record stay and are listed; the next run of the job removes what killed runs left. The exit code is 3 if a step cannot be \
removed, for instance because its run is alive. Refused while a directory cannot be read, and for an encrypted job without its key.")]
pub struct PruneArgs {
    /// Directories to search: of a job, of a node, or above them
    #[arg(value_name = "DIR")]
    pub at: Vec<PathBuf>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// How many checkpoints stay at each level, at least 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command starts in its own process group. SIGTERM, SIGINT, SIGHUP and SIGUSR1 are passed on to the group; after \
SIGTERM, SIGINT or SIGHUP there is no further restart, and whatever still runs after the grace time is killed. \
The program gets --dir as ORCHECK_GLOBAL, --node-dir as ORCHECK_NODE_DIR and --job as ORCHECK_JOB, and 1, 2, ... in \
ORCHECK_RUN_ATTEMPT. It reports which job it opened and where, so these options are optional. Exit codes 126 and 127 and wrong \
options are final. With --json each event is one JSON \
line on standard error, because standard output belongs to the command.")]
pub struct RunArgs {
    #[command(flatten)]
    pub place: Where,
    /// How many times to restart after a failure
    #[arg(
        long,
        visible_alias = "max-restarts",
        value_name = "N",
        default_value_t = 3,
        allow_negative_numbers = true
    )]
    pub restarts: u32,
    /// Give up after this many runs in a row that commit no newer step, or open no job; 0: never
    /// for that reason
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        allow_negative_numbers = true
    )]
    pub no_progress: u32,
    /// Time to wait before a restart; doubled each time, up to 60 s, until a run commits a newer
    /// step. Without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time_or_none, allow_negative_numbers = true)]
    pub pause: f64,
    /// Time between asking the command to end and killing it; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_or_none, allow_negative_numbers = true)]
    pub grace: f64,
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command runs until it has taken two checkpoints, and is killed. A second run restarts from the first one alone and runs \
until it takes the second one again; the two second ones are compared. All checkpoints are in a directory of their own, which is removed. \
The output of the command goes to standard error. The exit code is 0 when all regions are equal, and 14 when some differ.")]
pub struct ProveArgs {
    // 11 is prime: two or three rotating buffers are then not back in their places, so a pointer
    // that was protected once is found.
    /// Steps between the checkpoints of a program that calls orc_due. Avoid a multiple of the
    /// number of buffers that it swaps: they would be back in place
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Share by which floating-point elements may differ, such as 1e-12; it does not apply to
    /// regions of type ORC_BYTES
    #[arg(
        long,
        value_name = "REL",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub tolerance: f64,
    /// Run undisturbed a second time, and ignore what differs between these two runs
    #[arg(long)]
    pub twice: bool,
    /// Name of the job, for a program that gives none; the job to compare, for a program that opens
    /// several
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Existing directory for the checkpoints, which all nodes must see. Default: TMPDIR, or /tmp
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Leave the checkpoints in place
    #[arg(long)]
    pub keep: bool,
    /// Longest time of one run; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time_or_none, allow_negative_numbers = true)]
    pub timeout: f64,
    /// Source of the key of an encrypted job: file:PATH, keyring:NAME or env:NAME. Default:
    /// ORCHECK_ENCRYPT_KEY
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    pub encrypt_key: Vec<String>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Ranks with agent = \"start\" or \"join\" (ORCHECK_AGENT) hand their node's engine to the agent of the same user, job, node \
and first directory. When ranks die, the checkpoints that they had taken are still saved. The agent ends when the job has ended in \
order, or else --linger seconds after its last session; SIGTERM and SIGINT end it, and with it what is still being written. It \
has no files: its address is an abstract socket.")]
pub struct AgentArgs {
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    pub job: String,
    /// The first placed directory of the job, as its ranks name it. Default: the first of
    /// ORCHECK_GLOBAL
    #[arg(long = "dir", value_name = "ROOT")]
    pub dir: Option<PathBuf>,
    /// Node directory of a job without placed directories. Default: ORCHECK_NODE_DIR
    #[arg(long = "node-dir", value_name = "ROOT")]
    pub node_dir: Option<PathBuf>,
    /// Name of this node. Default: ORCHECK_NODE, or the name of the host
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Time to stay after the last session; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time_or_none)]
    pub linger: f64,
    /// Continue in the background once it can be reached
    #[arg(long)]
    pub detach: bool,
    /// Already in the background
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
}

/// A staging server.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Directory to serve; one server at a time
    #[arg(long, value_name = "ROOT")]
    pub dir: PathBuf,
    /// IP address and port to listen at; port 0: any free port
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7420")]
    pub listen: std::net::SocketAddr,
    /// Source of a tenant's key, and the name of the tenant's directory below ROOT: NAME=file:PATH,
    /// NAME=keyring:KEY or NAME=env:VARIABLE; without NAME= it is 'default'. Repeatable; each key
    /// opens its own directory
    #[arg(
        long = "key",
        value_name = "[NAME=]SOURCE",
        required_unless_present_any = ["munge", "tenants"]
    )]
    pub keys: Vec<String>,
    /// Serve the user with this number, as authenticated by MUNGE on this host; without NAME= the
    /// directory is uid-UID. Repeatable. The user writes orcheck://HOST:PORT?munge=N, where N is
    /// the user of this server
    #[arg(long, value_name = "[NAME=]UID")]
    pub munge: Vec<String>,
    /// File with more tenants: for each a table [NAME] with key = 'SOURCE' or munge = UID, and
    /// quota_gib = N if wanted. SIGHUP makes the server read it again, and all keys from files and
    /// keyrings; open connections continue
    #[arg(long, value_name = "FILE")]
    pub tenants: Option<PathBuf>,
    /// File outside ROOT in which the server remembers its disk; it does not start on another one,
    /// such as an empty directory where the disk is not mounted. Created if missing
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Quota of a tenant's directory in GiB; without NAME= that of 'default'. Repeatable
    #[arg(long, value_name = "[NAME=]GIB")]
    pub quota_gib: Vec<String>,
    /// Encrypt the connections; ranks must agree, with orcheck://HOST:PORT?encrypt
    #[arg(long)]
    pub encrypt: bool,
    /// Memory for data on its way to the disk, in MiB; as much again for reading
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub memory_mib: u32,
    /// Files to take in at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub at_once: u32,
    /// Share of its rate that other traffic on the same disk keeps: from 0, none, to 0.99
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub ordinary_share: f64,
    /// Order of writing. For comparison with the servers of parallel file systems there are
    /// 'arrival': each request as it comes, straight to the disk; and 'arrival-cached': the same,
    /// through the page cache
    #[arg(long, value_enum, default_value_t = ServerOrder::Pull)]
    pub order: ServerOrder,
    /// Keep rereading ROOT to find damage, at this many MiB per second, and slower while callers
    /// are served; 0: not at all
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub scrub_mib_s: u32,
    /// Time after which a container is read again, such as 24h; a number alone is refused
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time_with_unit)]
    pub scrub_every: f64,
    /// How long the disk may take to write what the server holds when it is told to end, such as
    /// 30s; then the server ends with an error. A number alone is refused
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_with_unit)]
    pub stop_limit: f64,
}

/// The order in which a server writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerOrder {
    /// A few files at a time, in large pieces.
    Pull,
    /// Each request as it arrives.
    Arrival,
    /// The same through the page cache.
    ArrivalCached,
}

/// Directories on servers of a parallel file system.
#[derive(Debug, Args)]
#[command(after_help = "\
Run it once, before a job: it calls the file system's own tools (lfs, mfscli, beegfs-ctl, pvfs2-statfs, ...), and may need \
an administrator. DIR/SERVER is made and bound to each server that is up and not full; a file of one byte is written, \
looked up and removed in each. Standard output ends with the line for the option `global`. Running it again changes nothing.")]
pub struct PlaceArgs {
    /// A directory of the parallel file system
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// auto, moosefs, lustre, beegfs, orangefs, gpfs, or the path of the site's own program
    #[arg(long, value_name = "NAME|PATH", default_value = "auto")]
    pub driver: String,
    /// Number of servers (those with most free space), or their names, comma separated. Default:
    /// all
    #[arg(long, value_name = "N|NAMES")]
    pub servers: Option<String>,
    /// A server with less free space than this, in percent, counts as full
    #[arg(long, value_name = "P", default_value_t = 2.0)]
    pub min_free_percent: f64,
    /// Group of users that shares the new files, as the job's option `group`. Default:
    /// ORCHECK_GROUP
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Also write the line to this file, for ORCHECK_CONFIG
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// The nodes of a supervised job.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Nodes of the job, comma separated. The command gets the remaining ones in ORCHECK_NODES, and
    /// in place of {nodes} and {count} in its arguments
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// Nodes that replace lost ones
    #[arg(long, value_name = "LIST")]
    pub spares: Option<String>,
    /// Shell command that fails when node {node} is lost, such as 'ssh {node} true'. It runs before
    /// a restart, and while the command runs; the loss of a node ends the command
    #[arg(long, value_name = "COMMAND")]
    pub alive: Option<String>,
    /// Time between two checks of the nodes; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time_or_none, allow_negative_numbers = true)]
    pub look: f64,
    /// Fewest nodes to continue with
    #[arg(long, value_name = "N")]
    pub min_nodes: Option<usize>,
    /// The nodes are names on this machine: ORCHECK_NODE is set to the list, and the ranks are
    /// dealt over it
    #[arg(long = "virtual")]
    pub virtual_nodes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The run receives the request within seconds and takes a checkpoint at the next step that its ranks agree on; orc_should_stop() \
is then true on all of them. With every_steps as the only trigger it is the next regular checkpoint. The request is for the \
current run: `orcheck run` does not start the job again (it ends with 13), and a job that is started again continues \
from the checkpoint. A future time (--at) holds for later runs too. Give one of the job's directories; of level node, that of any node will do.")]
pub struct HaltArgs {
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
    /// Longest wait for the run to end, without a unit in seconds; the request stays after it
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time_or_none, allow_negative_numbers = true)]
    pub timeout: f64,
    /// Halt at this time: 14:30, '2026-11-24 14:30' (both local), or in 90min. The command does not
    /// wait for it
    #[arg(long, value_name = "TIME", conflicts_with_all = ["after", "list", "remove"])]
    pub at: Option<String>,
    /// Halt after this many further checkpoints; the command does not wait for them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["list", "remove"])]
    pub after: Option<u64>,
    /// Send the request, and do not wait
    #[arg(long)]
    pub no_wait: bool,
    /// Send the request although no run seems to be alive
    #[arg(long)]
    pub force: bool,
    /// Show the requests, and whether the job runs
    #[arg(long, conflicts_with_all = ["no_wait", "force", "remove"])]
    pub list: bool,
    /// Withdraw the request; a run that has agreed to it ends all the same
    #[arg(long, conflicts_with_all = ["no_wait", "force"])]
    pub remove: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
For the end of a batch script: when ranks are gone, their agents still write, replicate and commit complete snapshots. An \
agent whose ranks live continues until they end; use `orcheck halt` first.")]
pub struct DrainArgs {
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    pub job: String,
    /// Only agents with this first directory, spelled as they were given it: where several jobs
    /// have this name
    #[arg(long = "dir", value_name = "ROOT")]
    pub dir: Option<PathBuf>,
    /// Longest wait, without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time_or_none, allow_negative_numbers = true)]
    pub timeout: f64,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Directories to search for jobs: of a job, of a node, or above them
    #[arg(value_name = "DIR")]
    pub at: Vec<PathBuf>,
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub unlock: Unlock,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Placed directory to examine; repeat for each. Default: ORCHECK_GLOBAL, comma separated
    #[arg(long = "dir", value_name = "ROOT")]
    pub dirs: Vec<PathBuf>,
    /// Directory of level node to examine; repeatable. Default: ORCHECK_NODE_DIR
    #[arg(long = "node-dir", value_name = "ROOT")]
    pub node_dirs: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for the pages; created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Replace existing pages
    #[arg(long)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    // Breaks if: a new flag omits it; `--mtbf 5` would silently be five seconds.
    #[test]
    fn every_help_says_what_a_time_without_a_unit_is() {
        let mut open = vec![Cli::command()];
        let mut times = 0;
        while let Some(command) = open.pop() {
            open.extend(command.get_subcommands().cloned());
            let of_all = command.get_after_help().map(ToString::to_string);
            for flag in command.get_arguments() {
                let id = flag.get_id();
                let names = flag.get_value_names().unwrap_or_default();
                // The time of day of `halt --at` has no unit; a level of `plan` contains times.
                let is_time = names.iter().any(|name| *name == "TIME") && id != "at";
                if !is_time && id != "levels" {
                    continue;
                }
                times += 1;
                let own = flag.get_help().map(ToString::to_string);
                let said = [&own, &of_all].into_iter().flatten();
                let said: String = said.map(|text| text.to_lowercase()).collect();
                let is_said = [
                    "without a unit in seconds",
                    "a number alone is in seconds",
                    "number alone is refused",
                ];
                assert!(
                    is_said.iter().any(|words| said.contains(words)),
                    "{} {id}: {said}",
                    command.get_name()
                );
            }
        }
        assert!(times > 20, "{times}");
    }
}
