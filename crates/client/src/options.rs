//! Defines the options: their names, sources and meanings.
//!
//! Later sources win: the built-in default, the program's text (`orc_open`), the file
//! `$ORCHECK_CONFIG`, the environment (`ORCHECK_` and the option's name in capitals). Every option
//! has its variable; an unknown name is an error that proposes the nearest one
//! (`options/other_variables.rs` lists the variables that are not options).
//!
//! Invariant: all ranks of a job must have the same options, except `node_name` and the sources of
//! keys.

mod enabled;
mod fields;
mod kinds;
mod levels;
mod other_variables;
mod together;
mod wrong_value;

pub use enabled::Without;
pub use kinds::{
    AgentKind, Balance, Close, IncrementalKind, IntervalKind, Marshal, NetKind, Numa, OnLoss,
    Overrun,
};
pub use levels::Pace;

use fields::{
    EncryptName, HugePagesName, ModeName, NAMES, OneOrMany, Raw, SchemeName, Size, StartName,
};
use orcheck_engine::capture::MAX_CHAIN;
use orcheck_engine::encoding::Accept;
use orcheck_engine::node::{Mode, Scheme};
use orcheck_engine::replicas::ReplicaStore;
use orcheck_format::disk::Compression;
use orcheck_format::{Error, Level, Result};
use orcheck_io::user::{SecretSource, env_names, env_text, env_var, read_text};
use orcheck_pool::HugePages;
use orcheck_staging::client::{is_served, with_key};
use std::path::{Path, PathBuf};
use together::{SIGTERM, encoding, mtbf, protect, replica_store, replicas, start, watched_signal};
use wrong_value::blame;

/// Largest configuration file.
const CONFIG_LIMIT_BYTES: u64 = 1 << 20;

/// The options of one rank, merged and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Why there are no checkpoints; `None` if there are.
    pub without: Option<Without>,
    /// Directories of level `global`, one per target; if empty, there is no such level.
    pub global: Vec<PathBuf>,
    /// Directory of level `node`, local to the node.
    pub node_dir: Option<PathBuf>,
    /// Where files of the program are kept; default: in the node's directory, or else in memory.
    pub route_dir: Option<PathBuf>,
    /// Limit for files of the program there, per host; default: in memory, a quarter of what is
    /// usable.
    pub route_budget_bytes: Option<u64>,
    /// Failure domain of this rank; default: the host's name.
    pub node_name: Option<String>,
    /// The group of users that shares the job's directories; `None`: they belong to this user only.
    pub group: Option<String>,
    /// Size of the staging pool of a node; default: up to a quarter of what is usable.
    pub pool_bytes: Option<u64>,
    /// Unit of transfer, 4 MiB by default.
    pub chunk_bytes: u32,
    /// How checkpoints travel.
    pub mode: Mode,
    /// How many CP-threads a node has.
    pub scheme: Scheme,
    /// When to use the stage slot.
    pub marshal: Marshal,
    /// What to do with a checkpoint that arrives too early.
    pub overrun: Overrun,
    /// What to do when a checkpoint is lost.
    pub on_loss: OnLoss,
    /// What the end of the session waits for.
    pub close: Close,
    /// Maximum number of a rank's checkpoints in the pool.
    pub held_steps: u32,
    /// Maximum number of steps that are neither safe nor lost at the level that counts when a
    /// checkpoint returns.
    pub uncommitted_steps: u32,
    /// Default mapping of nodes to directories.
    pub placement: Balance,
    /// A user's mapping file.
    pub mapping: Option<PathBuf>,
    /// Lanes per node; `None`: as many as there are servers per node, at least one.
    pub lanes_per_node: Option<u32>,
    /// Whether to use direct I/O if the file system supports it.
    pub direct: bool,
    /// Whether to compare the pool with what was staged right before it is handed to the kernel.
    pub check_pool: bool,
    /// Whether to pin CP-threads to the SMT sibling, if there is one.
    pub pin: bool,
    /// Number of checkpoints to keep.
    pub keep: usize,
    /// Fail rather than fall back to an older checkpoint.
    pub strict: bool,
    /// Begin from nothing although there are checkpoints.
    pub fresh: bool,
    /// Refuse to begin from nothing.
    pub start_resumes: bool,
    /// Fence off another run of the job although it is alive.
    pub take_over: bool,
    /// How long to wait for another run to end.
    pub take_over_wait_s: f64,
    /// Threads that copy.
    pub copy_threads: usize,
    /// How many older checkpoints one may refer to; `None`: every checkpoint is full.
    pub incremental_chain: Option<u32>,
    /// Page size of the pool.
    pub huge_pages: HugePages,
    /// Whether to place memory by NUMA node.
    pub numa: Numa,
    /// Longest wait inside a call that has no timeout of its own.
    pub timeout_s: f64,
    /// How nodes communicate.
    pub net: NetKind,
    /// Maximum number of nodes directly below one in the tree through which nodes vote.
    pub fan_out: u32,
    /// Whether to encrypt TCP traffic.
    pub net_encrypt: bool,
    /// Trigger: every this many steps; 0: off.
    pub every_steps: u64,
    /// Trigger: every this many seconds; 0: off.
    pub every_s: f64,
    /// Trigger: as often as this share of run time allows; 0: off.
    pub overhead_percent: f64,
    /// Trigger: the interval that loses least, from the measured cost of checkpoints.
    pub interval: IntervalKind,
    /// Mean time between failures of the whole job, seconds; 0: not given.
    pub mtbf_s: f64,
    /// Mean time between failures of one node, seconds; 0: not given.
    pub node_mtbf_s: f64,
    /// Trigger: once, and stop, before the job's end.
    pub end_time_unix_s: Option<f64>,
    /// Whether the end came from Slurm, so that nobody chose this trigger.
    pub end_is_given: bool,
    /// How long before the end.
    pub end_margin_s: f64,
    /// Number of node losses that checkpoints survive by replicas or parity on other nodes; 0:
    /// none.
    pub peers: u8,
    /// Number of replicas of each container; at least `peers`, and 0 with parity.
    pub replicas: u8,
    /// Parity instead of replicas.
    pub protect: Option<orcheck_placement::parity::Scheme>,
    /// Which nodes fail together.
    pub topology: Option<PathBuf>,
    /// Space for replicas of other nodes; `None`: what the file system has.
    pub replica_budget_bytes: Option<u64>,
    /// Where to keep them.
    pub replica_store: ReplicaStore,
    /// Whether the node's engine runs in a process of its own.
    pub agent: AgentKind,
    /// The program `orcheck`, to start agents with.
    pub agent_program: PathBuf,
    /// How long a started agent stays after its last session.
    pub agent_linger_s: f64,
    /// Trigger: this signal.
    pub signal: Option<i32>,
    /// Whether the program is to stop after the checkpoint that the signal makes due.
    pub signal_stop: bool,
    /// How to compress containers.
    pub compression: Compression,
    /// Level of the compressor, if it has levels.
    pub compress_level: i32,
    /// Whether containers are encrypted.
    pub encrypt: bool,
    /// Where the keys come from: the first one encrypts, each one decrypts.
    pub encrypt_key: Vec<SecretSource>,
    /// What a restart accepts although encryption is configured.
    pub accept: Accept,
    /// How often checkpoints go to each level, weakest first; empty: always to all of them.
    pub paces: Vec<Pace>,
    /// What was set, unchanged, for messages.
    pub(crate) given: toml::Table,
}

impl Options {
    /// Merges defaults, the program's text, the configuration file and the environment.
    ///
    /// # Errors
    /// Invalid, naming the source, the option, the value and what is allowed.
    pub fn load(text: Option<&str>) -> Result<Self> {
        let (mut table, from_environment) = table_of(text)?;
        let end = env_var("SLURM_JOB_END_TIME").and_then(|value| value.parse::<i64>().ok());
        let end_is_given = end.is_some() && !table.contains_key("end_time_unix_s");
        if let Some(end) = end {
            let entry = table.entry("end_time_unix_s");
            entry.or_insert(toml::Value::Integer(end));
        }
        let options = Self::from_table(table)
            .map_err(|error| other_variables::name_in(error, &from_environment))?;
        Ok(Self {
            end_is_given,
            ..options
        })
    }

    /// `global` and `node_dir` from the configuration file and the environment, for commands, which
    /// open no job.
    ///
    /// # Errors
    /// As [`Self::load`], for a variable that is not an option and an unreadable file.
    pub fn directories() -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
        let (table, _) = table_of(None)?;
        let text = |value: &toml::Value| {
            let path = value.as_str().map(str::trim);
            path.filter(|path| !path.is_empty()).map(PathBuf::from)
        };
        let global = match table.get("global") {
            Some(toml::Value::Array(many)) => many.iter().filter_map(text).collect(),
            one => one.and_then(text).into_iter().collect(),
        };
        Ok((global, table.get("node_dir").and_then(text)))
    }

    /// Whether to compare what was staged with what the pool holds when it is written: always if
    /// this process reads it to send it to another one.
    #[must_use]
    pub(crate) fn checks_pool(&self) -> bool {
        self.check_pool || self.peers > 0 || self.global.iter().any(|root| is_served(root))
    }

    /// Mean time between failures of a job on this many nodes, in seconds, if the interval depends
    /// on it.
    #[must_use]
    pub(crate) fn mtbf_s_of(&self, nodes: usize) -> Option<f64> {
        let of_nodes_s = self.node_mtbf_s / nodes.max(1) as f64;
        let mtbf_s = if self.mtbf_s > 0.0 {
            self.mtbf_s
        } else {
            of_nodes_s
        };
        (self.interval == IntervalKind::Auto && self.paces.is_empty()).then_some(mtbf_s)
    }

    /// The levels that are configured, weakest first.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let own = self.node_dir.as_ref().map(|_| match self.peers {
            0 => Level::Node,
            losses => Level::Peers(losses),
        });
        let global = (!self.global.is_empty()).then_some(Level::Global);
        own.into_iter().chain(global).collect()
    }

    /// Options from TOML text alone, for tests.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_text(text: &str) -> Result<Self> {
        let mut table = toml::Table::new();
        merge(&mut table, text, "the options")?;
        Self::from_table(table)
    }

    // tidy: long because it has one line for each option
    fn from_table(mut table: toml::Table) -> Result<Self> {
        seconds_as_floats(&mut table);
        let raw: Raw = toml::Value::Table(table.clone())
            .try_into()
            .map_err(|error: toml::de::Error| blame(&table, &error))?;
        let (compression, encrypt, encrypt_key) = encoding(&raw)?;
        let accept = Accept::parse(listed(raw.accept.as_ref()))?;
        let anywhere = raw.node_dir.is_some()
            || (raw.global.as_ref()).is_some_and(|global| *global != OneOrMany::Many(Vec::new()));
        let protect = protect(&raw)?;
        let (peers, replicas) = replicas(&raw, protect, anywhere)?;
        mtbf(&raw)?;
        start(&raw)?;
        let global = directories(&raw)?;
        let paces = levels::paces(&raw, peers, !global.is_empty())?;
        let resumes = raw.start == Some(StartName::Resume);
        let without = enabled::without(raw.enabled, anywhere, resumes)?;
        let signal = watched_signal(raw.signal.as_deref(), raw.signal_stop)?;
        let chunk_bytes = chunk_bytes(raw.chunk.as_ref())?;
        let uncommitted_steps = raw.uncommitted_steps.unwrap_or(raw.held_steps);
        all_within_limits(&raw, uncommitted_steps)?;
        if raw.incremental == IncrementalKind::Auto && raw.mode == ModeName::Traditional {
            return Err(Error::invalid(
                "incremental = \"auto\" does not go with mode = \"traditional\", whose containers are striped",
            )
            .next("leave one of the two out"));
        }
        Ok(Self {
            without,
            global,
            node_dir: raw.node_dir,
            route_dir: raw.route_dir,
            route_budget_bytes: raw
                .route_budget
                .map(|size| size.bytes("route_budget"))
                .transpose()?,
            node_name: raw.node_name,
            group: raw.group,
            pool_bytes: match raw.pool {
                None => None,
                Some(Size::Text(text)) if text == "auto" => None,
                Some(size) => Some(size.bytes("pool")?),
            },
            chunk_bytes: chunk_bytes as u32,
            mode: match raw.mode {
                ModeName::Traditional => Mode::Traditional,
                ModeName::Vertical => Mode::Vertical,
                ModeName::Orchestrated => Mode::Orchestrated,
            },
            scheme: match raw.scheme {
                SchemeName::Node => Scheme::Node,
                SchemeName::Socket => Scheme::Socket,
                SchemeName::Core => Scheme::Core,
            },
            marshal: raw.marshal,
            overrun: raw.overrun,
            on_loss: raw.on_loss,
            close: raw.close,
            held_steps: raw.held_steps,
            uncommitted_steps,
            placement: raw.placement,
            mapping: raw.mapping,
            lanes_per_node: match raw.lanes_per_node {
                0 => protect.map(|_| 1),
                lanes => Some(lanes),
            },
            direct: raw.direct,
            check_pool: raw.check_pool,
            pin: raw.pin,
            keep: raw.keep as usize,
            strict: raw.strict,
            fresh: raw.fresh || raw.start == Some(StartName::Fresh),
            start_resumes: resumes,
            take_over: raw.take_over,
            take_over_wait_s: raw.take_over_wait_s,
            copy_threads: raw.copy_threads as usize,
            incremental_chain: (raw.incremental == IncrementalKind::Auto)
                .then_some(raw.incremental_chain),
            huge_pages: match raw.huge_pages {
                HugePagesName::Off => HugePages::Off,
                HugePagesName::Transparent => HugePages::Transparent,
                HugePagesName::Reserved => HugePages::Reserved,
            },
            numa: raw.numa,
            timeout_s: raw.timeout_s,
            net: raw.net,
            fan_out: raw.fan_out,
            net_encrypt: raw.net_encrypt == EncryptName::Aes256Gcm,
            every_steps: raw.every_steps,
            every_s: raw.every_s,
            overhead_percent: raw.overhead_percent,
            interval: raw.interval,
            mtbf_s: raw.mtbf_s,
            node_mtbf_s: raw.node_mtbf_s,
            end_time_unix_s: raw.end_time_unix_s,
            end_is_given: false,
            end_margin_s: raw.end_margin_s,
            signal,
            signal_stop: raw.signal_stop.unwrap_or(signal == Some(SIGTERM)),
            compression,
            compress_level: raw.compress_level,
            encrypt,
            encrypt_key,
            accept,
            peers: peers as u8,
            replicas: replicas as u8,
            protect,
            topology: raw.topology,
            replica_budget_bytes: (raw.replica_budget)
                .map(|size| size.bytes("replica_budget"))
                .transpose()?,
            replica_store: replica_store(raw.replica_store, raw.agent)?,
            agent: raw.agent,
            agent_program: raw.agent_program,
            agent_linger_s: raw.agent_linger_s,
            paces,
            given: table,
        })
    }
}

/// Converts whole numbers of seconds to floating-point numbers.
fn seconds_as_floats(table: &mut toml::Table) {
    for name in [
        "take_over_wait_s",
        "timeout_s",
        "every_s",
        "overhead_percent",
        "mtbf_s",
        "node_mtbf_s",
        "end_time_unix_s",
        "end_margin_s",
        "agent_linger_s",
    ] {
        if let Some(value) = table.get_mut(name)
            && let toml::Value::Integer(integer) = *value
        {
            *value = toml::Value::Float(integer as f64);
        }
    }
}

/// The directories of level `global`, after checking that they and the other directories are usable
/// for their purposes.
fn directories(raw: &Raw) -> Result<Vec<PathBuf>> {
    let global: Vec<PathBuf> = match &raw.global {
        None => Vec::new(),
        Some(OneOrMany::One(one)) => vec![PathBuf::from(one)],
        Some(OneOrMany::Many(many)) => many.iter().map(PathBuf::from).collect(),
    };
    for path in &global {
        recordable("global", path)?;
    }
    if let Some(path) = &raw.node_dir {
        recordable("node_dir", path)?;
    }
    // An agent opens them too, in another environment.
    let global = global.iter().map(|path| with_key(path)).collect();
    for (name, path, next) in [
        (
            "node_dir",
            &raw.node_dir,
            "name staging servers in `global`",
        ),
        (
            "route_dir",
            &raw.route_dir,
            "name a directory that the program can write files in",
        ),
    ] {
        if let Some(served) = path.as_ref().filter(|path| is_served(path)) {
            let text = format!(
                "{name} = '{}': expected a directory of this machine",
                served.display()
            );
            return Err(Error::invalid(text).next(next));
        }
    }
    Ok(global)
}

fn chunk_bytes(chunk: Option<&Size>) -> Result<u64> {
    let chunk_bytes = chunk.map_or(Ok(4 << 20), |size| size.bytes("chunk"))?;
    if !(65536..=(1 << 30)).contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(65536) {
        return Err(Error::invalid(format!(
            "chunk = {chunk_bytes} bytes; allowed are multiples of 64 KiB from 64 KiB to 1 GiB"
        )));
    }
    Ok(chunk_bytes)
}

fn all_within_limits(raw: &Raw, uncommitted_steps: u32) -> Result<()> {
    [
        ("held_steps", f64::from(raw.held_steps)),
        ("uncommitted_steps", f64::from(uncommitted_steps)),
        ("keep", f64::from(raw.keep)),
        ("copy_threads", f64::from(raw.copy_threads)),
        ("incremental_chain", f64::from(raw.incremental_chain)),
        ("timeout_s", raw.timeout_s),
        ("take_over_wait_s", raw.take_over_wait_s),
        ("every_s", raw.every_s),
        ("overhead_percent", raw.overhead_percent),
        ("end_time_unix_s", raw.end_time_unix_s.unwrap_or(0.0)),
        ("end_margin_s", raw.end_margin_s),
        ("agent_linger_s", raw.agent_linger_s),
        ("fan_out", f64::from(raw.fan_out)),
        ("lanes_per_node", f64::from(raw.lanes_per_node)),
        ("compress_level", f64::from(raw.compress_level)),
    ]
    .into_iter()
    .try_for_each(|(name, value)| within_limits(name, value))
}

/// Checks that a commit record can hold a directory's path.
fn recordable(name: &str, path: &Path) -> Result<()> {
    // Breaks if: it is accepted; no checkpoint in it could ever be committed.
    match path.to_string_lossy().contains(char::is_control) {
        true => Err(Error::invalid(format!(
            "{name} = '{}': expected a path without control characters, such as tabs and line breaks",
            path.display()
        ))
        .next("rename the directory, or name another one")),
        false => Ok(()),
    }
}

/// The entries of a list that may be written as one text.
fn listed(value: Option<&OneOrMany>) -> impl Iterator<Item = &str> {
    let entries = match value {
        None => &[],
        Some(OneOrMany::One(one)) => std::slice::from_ref(one),
        Some(OneOrMany::Many(many)) => many.as_slice(),
    };
    entries
        .iter()
        .map(|text| text.trim())
        .filter(|text| !text.is_empty())
}

/// All options that were set, later sources over earlier ones, and the names of those set in the
/// environment.
fn table_of(text: Option<&str>) -> Result<(toml::Table, Vec<&'static str>)> {
    let mut table = toml::Table::new();
    if let Some(text) = text {
        merge(&mut table, text, "the options given to open")?;
    }
    if let Some(path) = env_text("ORCHECK_CONFIG")? {
        let text = read_text(std::path::Path::new(&path), CONFIG_LIMIT_BYTES).map_err(|error| {
            error
                .at("ORCHECK_CONFIG")
                .next("correct the path in ORCHECK_CONFIG, or unset it")
        })?;
        merge(&mut table, &text, &path)?;
    }
    let (mut empty, mut set) = (Vec::new(), Vec::new());
    for name in NAMES.into_iter().chain(levels::OF_LEVELS) {
        match env_text(&other_variables::variable_of(name))? {
            None => {}
            Some(value) if value.is_empty() => empty.push(name),
            Some(value) => {
                levels::enter(&mut table, name, value_of(name, &value));
                set.push(name);
            }
        }
    }
    other_variables::check_empty(&table, &empty)?;
    // The source of a key may be a variable of any name.
    let mut places = vec![toml::Value::Table(table.clone()).to_string()];
    places.extend(env_var("ORCHECK_SERVER_KEY"));
    other_variables::check(&env_names(other_variables::PREFIX), &places)?;
    Ok((table, set))
}

/// The error about a text of options, with its line.
fn unreadable(text: &str, source: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.as_bytes()[..at].iter();
    let number = before.filter(|&&byte| byte == b'\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    let what = error.message().replace('\n', ", ");
    let next = match line.matches('=').count() {
        0 | 1 => {
            "write NAME = VALUE, with texts in quotes: every_steps = 10, keep = 2, node_dir = '/tmp'"
        }
        _ => "put each option on a line of its own: a line break (\\n) separates them",
    };
    let number = number + 1;
    Error::invalid(format!(
        "{source}: line {number}, `{line}`, cannot be read: {what}"
    ))
    .next(next)
}

fn merge(table: &mut toml::Table, text: &str, source: &str) -> Result<()> {
    let more: toml::Table = (text.parse()).map_err(|error| unreadable(text, source, &error))?;
    for (name, value) in more {
        if name == "level" {
            levels::merge(table, value);
            continue;
        }
        if !NAMES.contains(&name.as_str()) {
            let error = Error::invalid(format!("{source}: unknown option '{name}'"));
            return Err(match levels::nearest_name(&name) {
                Some(near) => error.next(format!("did you mean '{near}'?")),
                None => error.next(format!("the options are {}, level", NAMES.join(", "))),
            });
        }
        table.insert(name, value);
    }
    Ok(())
}

/// Options that may be lists.
const LISTS: [&str; 3] = ["global", "encrypt_key", "accept"];

/// A value from the environment: TOML if it parses as TOML, a list if the option takes one,
/// otherwise text. Options that are names, which may look like numbers.
const TEXTS: [&str; 2] = ["group", "node_name"];

fn value_of(name: &str, value: &str) -> toml::Value {
    if let Ok(table) = format!("v = {value}").parse::<toml::Table>()
        && let Some(parsed) = table.get("v")
        && (parsed.is_str() || !TEXTS.contains(&name))
    {
        return parsed.clone();
    }
    if LISTS.contains(&name) && value.contains(',') {
        return toml::Value::Array(
            value
                .split(',')
                .map(|part| toml::Value::String(part.trim().to_owned()))
                .collect(),
        );
    }
    toml::Value::String(value.to_owned())
}

/// The allowed values of options.
const LIMITS: [(&str, f64, f64); 16] = [
    ("held_steps", 1.0, 16.0),
    ("uncommitted_steps", 1.0, 32.0),
    ("keep", 1.0, 1e6),
    ("copy_threads", 1.0, 256.0),
    ("incremental_chain", 1.0, MAX_CHAIN as f64),
    ("timeout_s", 0.1, 1e6),
    ("take_over_wait_s", 0.0, 1e6),
    ("every_s", 0.0, 1e9),
    ("overhead_percent", 0.0, 100.0),
    ("end_time_unix_s", 0.0, 1e11),
    ("end_margin_s", 0.0, 1e9),
    ("agent_linger_s", 0.0, 1e6),
    ("fan_out", 2.0, 1024.0),
    ("lanes_per_node", 0.0, 8.0),
    ("compress_level", 1.0, 19.0),
    ("peers", 0.0, 255.0),
];

fn within_limits(name: &str, value: f64) -> Result<()> {
    match LIMITS.iter().find(|(limited, ..)| *limited == name) {
        Some((_, low, high)) => range(name, value, *low, *high),
        // Breaks if: it passes; a name that is spelt differently in the list would take any value.
        None => Err(Error::internal(format!("option {name} has no limits"))),
    }
}

fn range(name: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{name} = {value}; allowed is {low} to {high}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_names_the_nearest() {
        let error = Options::from_text("globel = '/pfs'").unwrap_err();
        assert!(error.message().contains("did you mean 'global'"), "{error}");
    }

    // Breaks if: the reader has to find the line, or is not told how two options are separated.
    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, parts) in [
            (
                "global = '/a'\nevery_steps = ten",
                ["line 2, `every_steps = ten`", "NAME = VALUE"],
            ),
            (
                "every_steps = 10, keep = 2",
                [
                    "line 1, `every_steps = 10, keep = 2`",
                    "on a line of its own",
                ],
            ),
        ] {
            let error = Options::from_text(text).unwrap_err();
            let said = parts.iter().all(|part| error.to_string().contains(part));
            assert!(said, "{error}");
        }
    }

    #[test]
    fn a_name_may_look_like_a_number() {
        for name in TEXTS {
            assert_eq!(value_of(name, "20000").as_str(), Some("20000"));
            assert_eq!(value_of(name, "'20000'").as_str(), Some("20000"));
        }
        assert_eq!(value_of("keep", "2").as_integer(), Some(2));
    }

    // Breaks if: a signal ends a program that requested a checkpoint by it, or the program
    // continues after SIGTERM until it is killed.
    #[test]
    fn a_program_stops_on_sigterm_unless_told_otherwise() {
        for (text, stops) in [
            ("signal = 'TERM'", true),
            ("signal = 'SIGTERM'", true),
            ("signal = 'TERM'\nsignal_stop = false", false),
            ("signal = 'USR1'", false),
            ("signal = 'USR1'\nsignal_stop = true", true),
            ("", false),
        ] {
            let options = Options::from_text(&format!("global = '/a'\n{text}")).unwrap();
            assert_eq!(options.signal_stop, stops, "{text}");
        }
    }

    #[test]
    fn sizes_and_ranges_are_checked_by_name() {
        let good =
            Options::from_text("global = ['/a', '/b']\npool = '64 MiB'\nevery_s = 5").unwrap();
        assert_eq!(good.pool_bytes, Some(64 << 20));
        assert_eq!(good.global.len(), 2);
        for (text, part) in [
            ("global = '/a'\npool = '64 parsecs'", "pool"),
            ("global = '/a'\nkeep = 0", "keep"),
            ("global = '/a'\nchunk = 5000", "chunk"),
            ("global = '/a'\nmode = 'sideways'", "mode"),
            ("global = '/a'\nhuge_pages = 'many'", "huge_pages"),
            ("global = '/a'\nnuma = 'maybe'", "numa"),
            ("global = '/a'\nsignal = 'KILL'", "signal"),
            ("global = '/a'\nsignal_stop = true", "no signal is watched"),
            ("global = '/a'\nincremental_chain = 33", "incremental_chain"),
            (
                "global = '/a'\nincremental = 'auto'\nmode = 'traditional'",
                "striped",
            ),
            (
                "global = '/a'\ninterval = 'auto'",
                "mean time between failures",
            ),
            (
                "global = '/a'\nmtbf_s = 1e5\nnode_mtbf_s = 1e7",
                "one of the two",
            ),
            ("global = '/a'\nmtbf_s = -3", "mtbf_s"),
            ("global = '/a'\nnode_mtbf_s = nan", "node_mtbf_s"),
            ("global = '/a'\nend_time_unix_s = nan", "end_time_unix_s"),
            ("global = '/a'\ninterval = 'often'", "interval"),
            (
                "global = '/a'\nstart = 'resume'\nfresh = true",
                "contradict",
            ),
            ("global = '/a'\nstart = 'again'", "start"),
            ("enabled = false\nstart = 'resume'", "start = 'resume'"),
            ("enabled = 'auto'\nstart = 'resume'", "start = 'resume'"),
            ("", "enabled = 'auto'"),
            ("enabled = true", "no directory"),
            ("enabled = 'maybe'", "expected true, false or 'auto'"),
            (
                "enabled = 'auto'\nglobal = '/a'\npeers = 1",
                "without node_dir",
            ),
            ("enabled = false\nkeep = 0", "keep"),
            // Breaks if: they are accepted; each commit record would be damaged, because it names
            // them.
            ("global = ['/a', \"/b\\tc\"]", "global = '/b\\tc': expected"),
            ("node_dir = \"/b\\nc\"", "node_dir = '/b\\nc': expected"),
        ] {
            let error = Options::from_text(text).unwrap_err();
            assert!(error.message().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_form_names_its_option_and_what_is_expected() {
        for (text, parts) in [
            ("mode = 'sideways'", ["mode = \"sideways\"", "orchestrated"]),
            (
                "keep = 'two'",
                ["keep = \"two\"", "expected a whole number, 1 to 1000000"],
            ),
            (
                "every_steps = 'x'",
                ["every_steps = \"x\"", "expected a whole number, 0 or more"],
            ),
            (
                "every_s = 'ten'",
                ["every_s = \"ten\"", "expected a number of seconds"],
            ),
            (
                "strict = 'yes'",
                ["strict = \"yes\"", "expected true or false"],
            ),
            ("mapping = 3", ["mapping = 3", "expected a path"]),
            ("overrun = 'fly'", ["overrun = \"fly\"", "'wait'"]),
            ("overrun = 3", ["overrun = 3", "expected one of its words"]),
            ("pool = true", ["pool = true", "64 MiB"]),
            ("global = 7", ["global = 7", "list of paths"]),
        ] {
            let error = Options::from_text(text).unwrap_err();
            assert!(
                parts.iter().all(|part| error.message().contains(part)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn environment_values_are_toml_or_text() {
        assert_eq!(value_of("keep", "3"), toml::Value::Integer(3));
        assert_eq!(
            value_of("mode", "vertical"),
            toml::Value::String("vertical".into())
        );
        assert_eq!(value_of("global", "/a, /b").as_array().unwrap().len(), 2);
        assert_eq!(
            value_of("pool", "64 MiB"),
            toml::Value::String("64 MiB".into())
        );
    }
}
