//! Encodes the messages between ranks and the agent of their node: first of all the job as the
//! engine's threads must know it, and connections that are already open.
//!
//! How: [`AgentMessage`] travels in frames like every other message ([`crate::wire::control`]);
//! descriptors follow the messages that announce them.
//!
//! Invariants
//! 1. Both sides run the same version. An adoption begins with the version; another version is
//!    refused by name.
//! 2. What is decoded is consistent: every rank is on one node, with one writer, in ascending
//!    order.
//!
//! Faults survived: arbitrary bytes give Corrupt or Unsupported.
//!
//! Not here: who sends which message when (`engine::host`).

use crate::coding::{Reader, Writer, flag};
use crate::disk::{Compression, Encoding, ParityGroup};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, JobName};
use crate::numbers::{NodeId, Rank, Step};
use crate::sabotage::{Switch, off};
use crate::wire::fields::{MAX_TEXT_BYTES, cut, read_kind};

/// Most ranks, nodes, servers, domains and bytes of an unread frame that a decoder accepts.
const MAX_ITEMS: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 255;
const MAX_PATH_BYTES: usize = 4096;
const MAX_BLOB_BYTES: usize = 32 << 20;

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePart {
    /// Failure domain's name.
    pub name: String,
    /// Host it lives on.
    pub host: String,
    /// Ranks of each writer, ascending.
    pub writers: Vec<Vec<Rank>>,
    /// Where its keeper is reachable; empty without replicas.
    pub addresses: Vec<String>,
}

/// The parameters of replication.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplicaPart {
    /// Replicas of each container; 0 with parity.
    pub replicas: u32,
    /// Groups with parity.
    pub groups: Vec<ParityGroup>,
    /// Losses of nodes that checkpoints survive.
    pub losses: u8,
    /// Room for replicas of other nodes, in bytes.
    pub budget_bytes: u64,
    /// Where those replicas lie, as a number of the engine.
    pub store: u8,
    /// By node: the failure domains that it belongs to.
    pub domains: Vec<Vec<u32>>,
    /// The job's key.
    pub key: [u8; 32],
    /// Whether TCP traffic between nodes is encrypted.
    pub encrypt: bool,
}

/// How containers are encoded.
#[derive(Clone, PartialEq, Eq)]
pub struct RecipePart {
    /// How pieces are compressed.
    pub compression: Compression,
    /// The compressor's level.
    pub level: i32,
    /// The user's key, if containers are encrypted.
    pub secret: Option<[u8; 32]>,
}

/// The job as an agent must know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Adoption {
    /// Version of the sending program.
    pub version: String,
    /// The job.
    pub job: JobName,
    /// Its epoch.
    pub epoch: Epoch,
    /// All nodes.
    pub nodes: Vec<NodePart>,
    /// The agent's node.
    pub node: NodeId,
    /// Placed directories as configured.
    pub servers: Vec<String>,
    /// Directory of the nodes as configured, or empty.
    pub node_root: String,
    /// Checkpoints to keep.
    pub keep: u64,
    /// How streams travel: 0 traditional, 1 vertical, 2 orchestrated.
    pub mode: u8,
    /// Direct I/O where the file system supports it.
    pub direct: bool,
    /// CP-threads run on the SMT sibling if there is one.
    pub pin: bool,
    /// Snapshots may refer to older containers.
    pub incremental: bool,
    /// Longest wait inside the engine, in milliseconds.
    pub timeout_ms: u64,
    /// Most nodes directly below one node in the tree to the lead.
    pub fan_out: u32,
    /// How containers are encoded.
    pub recipe: RecipePart,
    /// Replicas on other nodes, if configured.
    pub replication: Option<ReplicaPart>,
    /// The initial targets of the lanes, as TOML; empty without placed directories.
    pub placement: String,
    /// The directory that relative paths start from.
    pub working_dir: String,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A rank of the node, by its number.
    Rank(Rank),
    /// The lead of the job, or a node between it and this one.
    Lead,
    /// A node below this one, by its index.
    Node(NodeId),
}

/// A message between a rank and the agent of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentMessage {
    /// A new run of the job asks the agent to finish older runs; answered by `Done` or `Refused`,
    /// after a `Note` about each session that there was.
    Yield {
        /// Also finish a run whose ranks are alive.
        force: bool,
        /// Longest wait, in milliseconds.
        patience_ms: u64,
    },
    /// Takes a job over; the descriptor of its pool follows. Answered by `Done` or `Refused`, like
    /// each of the next three.
    Adopt {
        /// An encoded [`Adoption`].
        job: Vec<u8>,
    },
    /// The lock of a claim, which outlives its rank; its descriptor follows.
    Lock,
    /// Hands over a listener of the keeper; its descriptor follows.
    Door {
        /// The address it listens on.
        address: String,
    },
    /// Hands over a connection; its descriptor follows.
    Link {
        /// The other end.
        to: Link,
        /// The state to continue from.
        state: ConnState,
    },
    /// Everything was handed over: begin. Answered by `Done` or `Refused`.
    Begin,
    /// The run resumed from this checkpoint; answered by `Done`.
    ResumedFrom {
        /// Its step.
        step: Step,
        /// Counter of its epoch.
        epoch: u64,
    },
    /// Asks what the agent is doing. Answered by a note about the agent, one about each session,
    /// and `Done`.
    Status,
    /// Asks the agent to finish what ranks left behind, and to end. Answered by a note about each
    /// session that ended or still exists, then by `Done`, or by `Refused` if one still exists
    /// after this long.
    Drain {
        /// Longest wait, in milliseconds.
        patience_ms: u64,
    },
    /// Sent on the rank's own connection: its snapshot of this step is whole in the pool.
    Sealed {
        /// The rank.
        rank: Rank,
        /// The step.
        step: Step,
    },
    /// Asks what the user should know. Answered by notes, then `Done`.
    Ask,
    /// The session ends normally. The agent closes the connection when nothing of the session is
    /// left.
    Leave,
    /// Asks for memory that the agent keeps of an earlier run of the job. Answered by `Kept`, or by
    /// `Done` if there is none.
    Recall {
        /// The job.
        job: JobName,
    },
    /// The descriptors of the memory and of its encoded [`KeptMap`](super::KeptMap) follow.
    Kept,
    /// The run needs no memory of an earlier one any more. Answered by `Done` before a job is
    /// handed over, and not afterwards.
    Forget,
    /// The request was carried out.
    Done,
    /// The request was refused.
    Refused {
        /// Kind of the error.
        kind: ErrorKind,
        /// Text of the error.
        text: String,
    },
    /// What the user should know.
    Note {
        /// The text.
        text: String,
    },
}

/// Kind of the first of these messages in a frame header; the others follow.
const FIRST_KIND: u8 = 20;

impl AgentMessage {
    /// The kinds of these messages in a frame header.
    pub(crate) const KINDS: std::ops::RangeInclusive<u8> = FIRST_KIND..=FIRST_KIND + 17;

    pub(crate) fn kind(&self) -> u8 {
        FIRST_KIND
            + match self {
                AgentMessage::Yield { .. } => 0,
                AgentMessage::Adopt { .. } => 1,
                AgentMessage::Lock => 2,
                AgentMessage::Door { .. } => 3,
                AgentMessage::Link { .. } => 4,
                AgentMessage::Begin => 5,
                AgentMessage::ResumedFrom { .. } => 6,
                AgentMessage::Leave => 7,
                AgentMessage::Done => 8,
                AgentMessage::Refused { .. } => 9,
                AgentMessage::Note { .. } => 10,
                AgentMessage::Ask => 11,
                AgentMessage::Sealed { .. } => 12,
                AgentMessage::Status => 13,
                AgentMessage::Drain { .. } => 14,
                AgentMessage::Recall { .. } => 15,
                AgentMessage::Kept => 16,
                AgentMessage::Forget => 17,
            }
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        match self {
            AgentMessage::Yield { force, patience_ms } => {
                w.map(2).uint(1u8).uint(u8::from(*force));
                w.uint(2u8).uint(*patience_ms);
            }
            AgentMessage::Adopt { job } => {
                w.map(1).uint(1u8).bytes(job);
            }
            AgentMessage::Lock
            | AgentMessage::Begin
            | AgentMessage::Ask
            | AgentMessage::Status
            | AgentMessage::Leave
            | AgentMessage::Kept
            | AgentMessage::Forget
            | AgentMessage::Done => {
                w.map(0);
            }
            AgentMessage::Recall { job } => {
                w.map(1).uint(1u8).text(job.as_str());
            }
            AgentMessage::Door { address: text } | AgentMessage::Note { text } => {
                w.map(1).uint(1u8).text(cut(text, MAX_TEXT_BYTES));
            }
            AgentMessage::Link { to, state } => {
                let (whom, index) = match *to {
                    Link::Rank(rank) => (0u8, rank.0),
                    Link::Lead => (1, 0),
                    Link::Node(node) => (2, node.0),
                };
                w.map(3).uint(1u8).uint(whom).uint(2u8).uint(index);
                state.write(w.uint(3u8));
            }
            AgentMessage::Sealed { rank, step } => {
                w.map(2).uint(1u8).uint(*rank).uint(2u8).uint(*step);
            }
            AgentMessage::Drain { patience_ms } => {
                w.map(1).uint(1u8).uint(*patience_ms);
            }
            AgentMessage::ResumedFrom { step, epoch } => {
                w.map(2).uint(1u8).uint(*step).uint(2u8).uint(*epoch);
            }
            AgentMessage::Refused { kind, text } => {
                w.map(2).uint(1u8).uint(kind.code() as u64);
                w.uint(2u8).text(cut(text, MAX_TEXT_BYTES));
            }
        }
    }

    // tidy: long because it has one arm for each message
    pub(crate) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self> {
        let (mut first, mut second, mut state) = (None, None, None);
        let (mut text, mut job, mut error, mut name) = (None, None, None, None);
        let message = kind - FIRST_KIND;
        r.map(|r, key| {
            match (message, key) {
                (0 | 4 | 6 | 12 | 14, 1) => first = Some(r.u64()?),
                (0 | 4 | 6 | 12, 2) => second = Some(r.u64()?),
                (1, 1) => job = Some(r.bytes(MAX_BLOB_BYTES)?.to_vec()),
                (4, 3) => state = Some(ConnState::read(r)?),
                (9, 1) => error = Some(read_kind(r)?),
                (15, 1) => name = Some(r.job()?),
                (3 | 10, 1) | (9, 2) => text = Some(r.text(MAX_TEXT_BYTES)?.to_owned()),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(match message {
            0 => match r.need(first, "force (key 1)")? {
                force @ 0..=1 => AgentMessage::Yield {
                    force: force == 1,
                    patience_ms: r.need(second, "patience (key 2)")?,
                },
                other => return Err(r.corrupt(format_args!("expected 0 or 1, found {other}"))),
            },
            1 => AgentMessage::Adopt {
                job: r.need(job, "job (key 1)")?,
            },
            2 => AgentMessage::Lock,
            3 => AgentMessage::Door {
                address: r.need(text, "address (key 1)")?,
            },
            4 => {
                let index = r.need(second, "index (key 2)")?;
                let index = u32::try_from(index)
                    .map_err(|_| r.corrupt(format_args!("{index} is not a rank or node")))?;
                let to = match r.need(first, "whom (key 1)")? {
                    0 => Link::Rank(Rank(index)),
                    1 if index == 0 => Link::Lead,
                    2 => Link::Node(NodeId(index)),
                    other => return Err(r.corrupt(format_args!("link {other} is unknown"))),
                };
                let state = r.need(state, "state (key 3)")?;
                AgentMessage::Link { to, state }
            }
            5 => AgentMessage::Begin,
            6 => AgentMessage::ResumedFrom {
                step: Step(r.need(first, "step (key 1)")?),
                epoch: r.need(second, "epoch (key 2)")?,
            },
            7 => AgentMessage::Leave,
            8 => AgentMessage::Done,
            9 => AgentMessage::Refused {
                kind: r.need(error, "error kind (key 1)")?,
                text: r.need(text, "error text (key 2)")?,
            },
            11 => AgentMessage::Ask,
            13 => AgentMessage::Status,
            15 => AgentMessage::Recall {
                job: r.need(name, "job (key 1)")?,
            },
            16 => AgentMessage::Kept,
            17 => AgentMessage::Forget,
            14 => AgentMessage::Drain {
                patience_ms: r.need(first, "patience (key 1)")?,
            },
            12 => {
                let rank = r.need(first, "rank (key 1)")?;
                AgentMessage::Sealed {
                    rank: Rank::try_from(rank)
                        .map_err(|_| r.corrupt(format_args!("{rank} is not a rank")))?,
                    step: Step(r.need(second, "step (key 2)")?),
                }
            }
            _ => AgentMessage::Note {
                text: r.need(text, "text (key 1)")?,
            },
        })
    }
}

/// The state of an authenticated connection that moves to another process.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnState {
    /// Whether descriptors can travel over it.
    pub unix: bool,
    /// Whether payloads are encrypted; never true where descriptors travel.
    pub encrypted: bool,
    /// Who is at the other end, for messages.
    pub peer: String,
    /// Key of the frames that are sent.
    pub send_key: [u8; 32],
    /// Key of the frames that are received.
    pub receive_key: [u8; 32],
    /// Frames sent so far.
    pub sent: u64,
    /// Frames received so far.
    pub received: u64,
    /// Bytes received but not taken yet.
    pub inbox: Vec<u8>,
}

impl Adoption {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(17 + u64::from(self.replication.is_some()));
        w.uint(1u8).text(&self.version);
        w.uint(2u8).text(self.job.as_str());
        w.uint(3u8).epoch(&self.epoch);
        w.uint(4u8).array(self.nodes.len());
        for node in &self.nodes {
            w.array(4).text(&node.name).text(&node.host);
            w.array(node.writers.len());
            for ranks in &node.writers {
                numbers(&mut w, ranks);
            }
            w.texts(&node.addresses);
        }
        w.uint(5u8).uint(self.node);
        w.uint(6u8).texts(&self.servers);
        w.uint(7u8).text(&self.node_root);
        w.uint(8u8).uint(self.keep);
        w.uint(9u8).uint(self.mode);
        w.uint(10u8).uint(u8::from(self.direct));
        w.uint(11u8).uint(u8::from(self.pin));
        w.uint(12u8).uint(u8::from(self.incremental));
        w.uint(13u8).uint(self.timeout_ms);
        w.uint(14u8).array(3);
        w.uint(compressed(self.recipe.compression).code());
        w.uint((i64::from(self.recipe.level) + (1 << 31)) as u64);
        w.bytes(self.recipe.secret.as_ref().map_or(&[][..], |key| key));
        if let Some(replication) = &self.replication {
            w.uint(15u8).array(7);
            w.uint(replication.replicas).uint(replication.losses);
            w.uint(replication.budget_bytes).uint(replication.store);
            w.array(replication.domains.len());
            for domains in &replication.domains {
                numbers(&mut w, domains);
            }
            w.bytes(&replication.key);
            w.uint(u8::from(replication.encrypt));
            w.array(replication.groups.len());
            for group in &replication.groups {
                group.write(&mut w);
            }
        }
        w.uint(16u8).text(&self.placement);
        w.uint(17u8).text(&self.working_dir);
        w.uint(18u8).uint(self.fan_out);
        w.finish()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Corrupt; Unsupported for another version than `version`.
    pub fn decode(bytes: &[u8], version: &str) -> Result<Self> {
        let r = &mut Reader::new("adoption", bytes);
        let (mut said, mut job, mut epoch, mut nodes) = (None, None, None, None);
        let (mut node, mut servers, mut node_root, mut keep) = (None, None, None, None);
        let (mut mode, mut direct, mut pin, mut incremental) = (None, None, None, None);
        let (mut timeout_ms, mut recipe, mut replication, mut placement) = (None, None, None, None);
        let (mut working_dir, mut fan_out) = (None, None);
        r.map(|r, key| {
            match key {
                1 => {
                    let text = r.text(MAX_NAME_BYTES)?;
                    if text != version && !off(Switch::AdoptionVersion) {
                        return Err(r
                            .unsupported(format_args!(
                                "expected version {version}, found {text}"
                            ))
                            .next("run the same version of Orcheck in programs and agents; end the old agent"));
                    }
                    said = Some(text.to_owned());
                }
                2 => job = Some(r.job()?),
                3 => epoch = Some(r.epoch()?),
                4 => nodes = Some(r.items(MAX_ITEMS, read_node)?),
                5 => node = Some(r.uint::<u32>()?),
                6 => servers = Some(r.items(MAX_ITEMS, |r| path(r))?),
                7 => node_root = Some(path(r)?),
                8 => keep = Some(r.u64()?),
                9 => mode = Some(r.uint::<u8>()?),
                10 => direct = Some(flag(r)?),
                11 => pin = Some(flag(r)?),
                12 => incremental = Some(flag(r)?),
                13 => timeout_ms = Some(r.u64()?),
                14 => recipe = Some(read_recipe(r)?),
                15 => replication = Some(read_replication(r)?),
                17 => working_dir = Some(path(r)?),
                18 => fan_out = Some(r.uint::<u32>()?),
                16 => placement = Some(r.text(MAX_BLOB_BYTES)?.to_owned()),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        let adoption = Self {
            version: r.need(said, "version (key 1)")?,
            job: r.need(job, "job (key 2)")?,
            epoch: r.need(epoch, "epoch (key 3)")?,
            nodes: r.need(nodes, "nodes (key 4)")?,
            node: NodeId(r.need(node, "node (key 5)")?),
            servers: r.need(servers, "servers (key 6)")?,
            node_root: r.need(node_root, "node directory (key 7)")?,
            keep: r.need(keep, "keep (key 8)")?,
            mode: r.need(mode, "mode (key 9)")?,
            direct: r.need(direct, "direct (key 10)")?,
            pin: r.need(pin, "pin (key 11)")?,
            incremental: r.need(incremental, "incremental (key 12)")?,
            timeout_ms: r.need(timeout_ms, "timeout (key 13)")?,
            fan_out: r.need(fan_out, "fan-out (key 18)")?,
            recipe: r.need(recipe, "recipe (key 14)")?,
            replication,
            placement: r.need(placement, "placement (key 16)")?,
            working_dir: r.need(working_dir, "working directory (key 17)")?,
        };
        if !off(Switch::AdoptionRanks) {
            adoption.check().map_err(|error| r.corrupt(error))?;
        }
        Ok(adoption)
    }

    fn check(&self) -> Result<()> {
        let mut ranks: Vec<Rank> = Vec::new();
        for node in &self.nodes {
            for writer in &node.writers {
                if writer.is_empty() || !writer.is_sorted() {
                    return Err(Error::corrupt(format!(
                        "node '{}' has a writer whose ranks do not ascend",
                        node.name
                    )));
                }
                ranks.extend(writer);
            }
        }
        ranks.sort_unstable();
        if ranks.is_empty() || ranks.iter().zip(0..).any(|(&rank, at)| rank != Rank(at)) {
            return Err(Error::corrupt("its ranks are not 0, 1, 2, …, each once"));
        }
        if self.node.index() >= self.nodes.len() {
            return Err(Error::corrupt(format!(
                "it has {} nodes, so node {} does not exist",
                self.nodes.len(),
                self.node
            )));
        }
        let domains = self.replication.as_ref().map(|r| r.domains.len());
        if domains.is_some_and(|len| len != self.nodes.len()) {
            return Err(Error::corrupt(
                "the number of its nodes differs from the number of their domain lists",
            ));
        }
        if self.fan_out == 0 {
            return Err(Error::corrupt("a fan-out of 0 reaches no node"));
        }
        if self.mode > 2 {
            return Err(Error::corrupt(format!("mode {} is unknown", self.mode)));
        }
        Ok(())
    }
}

impl ConnState {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.array(8).uint(u8::from(self.unix));
        w.uint(u8::from(self.encrypted)).text(&self.peer);
        w.bytes(&self.send_key).bytes(&self.receive_key);
        w.uint(self.sent).uint(self.received).bytes(&self.inbox);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        r.tuple(8)?;
        let (unix, encrypted) = (flag(r)?, flag(r)?);
        if unix && encrypted {
            return Err(r.corrupt("a connection within a host is encrypted"));
        }
        Ok(Self {
            unix,
            encrypted,
            peer: r.text(MAX_PATH_BYTES)?.to_owned(),
            send_key: r.exact()?,
            receive_key: r.exact()?,
            sent: r.u64()?,
            received: r.u64()?,
            inbox: r.bytes(MAX_BLOB_BYTES)?.to_vec(),
        })
    }
}

// Keys do not belong in logs.
impl std::fmt::Debug for ConnState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnState(to {})", self.peer)
    }
}

impl std::fmt::Debug for Adoption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.nodes.get(self.node.index()).map(|node| &node.name);
        write!(
            f,
            "Adoption({}, {}, {name:?})",
            self.job.as_str(),
            self.epoch
        )
    }
}

fn numbers<T: Copy + Into<u64>>(w: &mut Writer, values: &[T]) {
    w.array(values.len());
    for value in values {
        w.uint(*value);
    }
}

fn path(r: &mut Reader<'_>) -> Result<String> {
    r.text(MAX_PATH_BYTES).map(str::to_owned)
}

fn read_node(r: &mut Reader<'_>) -> Result<NodePart> {
    r.tuple(4)?;
    Ok(NodePart {
        name: r.name(MAX_NAME_BYTES)?,
        host: r.name(MAX_NAME_BYTES)?,
        writers: r.items(MAX_ITEMS, |r| r.items(MAX_ITEMS, Reader::uint))?,
        addresses: r.items(MAX_ITEMS, |r| r.name(MAX_NAME_BYTES))?,
    })
}

/// The encoding that only compresses; its code is what travels.
fn compressed(compression: Compression) -> Encoding {
    Encoding {
        compression,
        ..Encoding::default()
    }
}

fn read_recipe(r: &mut Reader<'_>) -> Result<RecipePart> {
    r.tuple(3)?;
    let encoding = Encoding::from_code(r.uint()?)?;
    let compression = encoding.compression;
    if encoding != compressed(compression) {
        return Err(r.unsupported("a recipe has an encoding that does more than compress"));
    }
    let level = i64::from(r.uint::<u32>()?) - (1 << 31);
    let secret = match r.bytes(32)? {
        [] => None,
        bytes => Some(bytes.try_into().map_err(|_| {
            r.corrupt(format_args!(
                "expected a key of 32 bytes, found {}",
                bytes.len()
            ))
        })?),
    };
    Ok(RecipePart {
        compression,
        level: level as i32,
        secret,
    })
}

fn read_replication(r: &mut Reader<'_>) -> Result<ReplicaPart> {
    r.tuple(7)?;
    let part = ReplicaPart {
        replicas: r.uint()?,
        losses: r.uint()?,
        budget_bytes: r.u64()?,
        store: r.uint()?,
        domains: r.items(MAX_ITEMS, |r| r.items(MAX_NAME_BYTES, Reader::uint))?,
        key: r.exact()?,
        encrypt: flag(r)?,
        groups: r.items(MAX_ITEMS, ParityGroup::read)?,
    };
    let checked = (part.groups.iter()).try_for_each(|group| group.check(None));
    checked.map_err(|error| r.corrupt(error))?;
    Ok(part)
}
