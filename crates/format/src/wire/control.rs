//! Encodes the control messages between the ranks of a node, nodes and the lead.
//!
//! How: a frame is a header of 20 bytes, a payload of deterministic CBOR, and a MAC of 16 bytes
//! over both. The transport appends the MAC and checks it before anyone decodes the payload. It may
//! encrypt the payload.
//!
//! Invariants:
//! 1. A payload is at most [`MAX_PAYLOAD_BYTES`] long; a reader may allocate that much and no more.
//! 2. Texts of errors are at most [`MAX_TEXT_BYTES`]; longer ones are cut when encoded.
//!
//! Faults survived: arbitrary payloads give Corrupt or Unsupported.
//!
//! Not here: connections, authentication, sequence checks (`orcheck-io`); who sends which message
//! when (the engine).

mod kinds;

pub use kinds::place_bytes;

use crate::coding::{Get, Put, Reader, Writer, exactly};
use crate::disk::{
    ContainerRef, MAX_CONTAINERS, MAX_FILE_NAME_BYTES, MAX_METADATA_BYTES, MAX_NODES,
    check_metadata_len,
};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Level;
use crate::numbers::{NodeId, Rank, Step, TargetId};
use crate::sabotage::{Switch, off};
use crate::wire::agent::AgentMessage;
use crate::wire::fields::{MAX_TEXT_BYTES, cut, read_kind};
use crate::wire::staging::StoreMessage;

/// Largest payload of a frame, in bytes: a commit record must fit.
pub const MAX_PAYLOAD_BYTES: u32 = MAX_METADATA_BYTES as u32;
/// Most bytes of a file in one message.
pub const MAX_DATA_BYTES: usize = 16 << 20;
/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 20;

/// Most ranges of nodes that one message speaks for.
const MAX_SPEAKERS: usize = MAX_NODES;

/// Kind of [`Message::Said`].
const SAID: u8 = 64;
/// Kind of a frame whose payload is an offset of 8 bytes followed by raw bytes of a file.
pub const BULK: u8 = 254;
/// Bytes of the offset that precedes raw bytes.
pub const BULK_HEAD_BYTES: usize = 8;
/// Kind of a frame whose payload is a slot of 4 bytes and an offset of 8, followed by raw bytes of
/// a replica.
pub const PIECE: u8 = 253;
/// Bytes of the slot and the offset that precede raw bytes of a replica.
pub const PIECE_HEAD_BYTES: usize = 12;
/// Where the kind is in a frame.
pub const FRAME_KIND_AT: usize = 5;

const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"ORCf");
const FRAME_VERSION: u8 = 1;

/// The header before every payload on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`Message::kind`], or a number above 127 that the transport uses for itself.
    pub kind: u8,
    /// No flags are defined; written as zero.
    pub flags: u16,
    /// Bytes of the payload, without the MAC.
    pub len_bytes: u32,
    /// Counts the frames of one direction of a connection, from 0.
    pub seq: u64,
}

impl FrameHeader {
    /// The header.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        Put::new(&mut bytes)
            .u32(FRAME_MAGIC)
            .bytes(&[FRAME_VERSION, self.kind])
            .u16(self.flags)
            .u32(self.len_bytes)
            .u64(self.seq);
        bytes
    }

    /// Reads the first [`FRAME_HEADER_BYTES`] of `bytes`. Fails with Corrupt, or Unsupported for
    /// another version or an unknown flag.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "frame header";
        let bytes = exactly(what, bytes, FRAME_HEADER_BYTES)?;
        let mut get = Get { bytes, at: 0 };
        let magic = get.u32()?;
        if magic != FRAME_MAGIC {
            return Err(Error::corrupt(format!(
                "{what}, byte 0: expected the mark 0x{FRAME_MAGIC:08x}, found 0x{magic:08x}"
            )));
        }
        let [version, kind] = get.array()?;
        if version != FRAME_VERSION && !off(Switch::FrameVersion) {
            return Err(Error::unsupported(format!(
                "{what}, byte 4: expected version {FRAME_VERSION}, found {version}"
            ))
            .next("run the same version of Orcheck on every node"));
        }
        let (flags, len_bytes, seq) = (get.u16()?, get.u32()?, get.u64()?);
        if flags != 0 {
            return Err(Error::unsupported(format!(
                "{what}, byte 6: expected no flags, found 0x{flags:04x}"
            ))
            .next("run the same version of Orcheck on every node"));
        }
        if len_bytes > MAX_PAYLOAD_BYTES && !off(Switch::FrameLength) {
            return Err(Error::corrupt(format!(
                "{what}, byte 8: expected at most {MAX_PAYLOAD_BYTES} bytes, found {len_bytes}"
            )));
        }
        Ok(FrameHeader {
            kind,
            flags,
            len_bytes,
            seq,
        })
    }
}

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first message on a connection: identifies the sender.
    Hello {
        /// The sender's rank.
        rank: Rank,
        /// Index of the sender's node.
        node: NodeId,
    },
    /// A writer's container is durable.
    Durable {
        /// The checkpoint's step.
        step: Step,
        /// The level it was written for.
        level: Level,
        /// The container.
        container: ContainerRef,
    },
    /// A writer could not make its part durable.
    NotDurable {
        /// The checkpoint's step.
        step: Step,
        /// The level it was written for; `None` if it failed before any.
        level: Option<Level>,
        /// Index of the server that failed, if one did.
        server: Option<TargetId>,
        /// Kind of the error.
        kind: ErrorKind,
        /// Text of the error.
        text: String,
    },
    /// A node's containers are all durable.
    Vote {
        /// The checkpoint's step.
        step: Step,
        /// The level.
        level: Level,
        /// Index of the node.
        node: NodeId,
        /// All its containers.
        containers: Vec<ContainerRef>,
    },
    /// The lead asks a node to store a copy of the commit record.
    Record {
        /// The checkpoint's step.
        step: Step,
        /// The level.
        level: Level,
        /// The whole file.
        bytes: Vec<u8>,
    },
    /// A node has stored its copy, or failed to.
    Recorded {
        /// The checkpoint's step.
        step: Step,
        /// The level.
        level: Level,
        /// Index of the node.
        node: NodeId,
        /// The error, if it failed.
        failed: Option<Error>,
    },
    /// Every copy of the commit record is durable.
    Committed {
        /// The checkpoint's step.
        step: Step,
        /// The level.
        level: Level,
    },
    /// The checkpoint will not be committed at this level.
    Aborted {
        /// The checkpoint's step.
        step: Step,
        /// The level.
        level: Level,
        /// Why.
        error: Error,
    },
    /// A new placement map.
    Placement {
        /// Its generation.
        generation: u64,
        /// The map as TOML.
        text: String,
    },
    /// The sender leaves normally.
    Goodbye {
        /// Index of the sender's node.
        node: NodeId,
    },
    /// An owner asks a holder for room for a replica of its container.
    Reserve {
        /// The owner's name for it on this connection.
        slot: u32,
        /// The container's file name.
        file: String,
        /// The most bytes it will have.
        len_bytes: u64,
    },
    /// A holder has reserved the room; the owner may send this many bytes.
    Granted {
        /// The owner's slot.
        slot: u32,
        /// Bytes that may be in flight.
        credit_bytes: u64,
    },
    /// The owner may send more to a holder.
    Credit {
        /// The owner's slot.
        slot: u32,
        /// Bytes beyond those allowed before.
        bytes: u64,
    },
    /// The owner has sent all bytes of a replica.
    Finish {
        /// The owner's slot.
        slot: u32,
        /// Their number.
        len_bytes: u64,
        /// Their CRC-64.
        crc: u64,
    },
    /// A replica is whole and durable at the holder.
    Held {
        /// The owner's slot.
        slot: u32,
    },
    /// A holder does not hold the replica, or cannot serve a fetch.
    Lost {
        /// The owner's slot.
        slot: u32,
        /// Kind of the error.
        kind: ErrorKind,
        /// Text of the error.
        text: String,
    },
    /// The owner no longer needs the replica.
    LetGo {
        /// The owner's slot.
        slot: u32,
    },
    /// Bytes of a file: of a replica on its way to a holder, or of a file that was fetched.
    Data {
        /// The slot of the receiver or the sender.
        slot: u32,
        /// Where they lie in the file.
        at_bytes: u64,
        /// At most [`MAX_DATA_BYTES`].
        bytes: Vec<u8>,
    },
    /// Send bytes of a file; answered by `Data` or `Lost` of the same slot.
    Fetch {
        /// The requester's name for the answer.
        slot: u32,
        /// File name.
        file: String,
        /// Where the bytes begin.
        at_bytes: u64,
        /// How many, at most [`MAX_DATA_BYTES`].
        len_bytes: u64,
    },
    /// Requests the list of files. Answered by `Listing`.
    List,
    /// The job's files in a holder's directory.
    Listing {
        /// Name and length of each.
        files: Vec<(String, u64)>,
    },
    /// The same message of several nodes to the lead, combined and passed on by a node above them.
    Said {
        /// Indices of the nodes: (first, count), ascending, not touching each other.
        by: Vec<(NodeId, u32)>,
        /// The message of each of them; a vote has the containers of all of them.
        message: Box<Message>,
    },
    /// Between a rank and the agent of its node.
    Agent(AgentMessage),
    /// Between a process and a staging server.
    Store(StoreMessage),
}

impl Message {
    /// The number of this kind of message in a frame header.
    pub fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => 1,
            Message::Durable { .. } => 2,
            Message::NotDurable { .. } => 3,
            Message::Vote { .. } => 4,
            Message::Record { .. } => 5,
            Message::Recorded { .. } => 6,
            Message::Committed { .. } => 7,
            Message::Aborted { .. } => 8,
            Message::Placement { .. } => 9,
            Message::Goodbye { .. } => 10,
            Message::Reserve { .. } => 11,
            Message::Granted { .. } => 12,
            Message::Credit { .. } => 13,
            Message::Finish { .. } => 14,
            Message::Held { .. } => 15,
            Message::Lost { .. } => 16,
            Message::LetGo { .. } => 17,
            Message::Data { .. } => 18,
            Message::Fetch { .. } => 19,
            Message::Said { .. } => SAID,
            Message::Agent(message) => message.kind(),
            Message::Store(message) => message.kind(),
            Message::List => 40,
            Message::Listing { .. } => 41,
        }
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_after(Vec::new(), 0)
    }

    /// Appends the payload to `bytes` and reserves room for `more` bytes after it, so long content
    /// is copied once.
    pub fn encode_after(&self, mut bytes: Vec<u8>, more: usize) -> Vec<u8> {
        let long = match self {
            Message::Data { bytes, .. } | Message::Record { bytes, .. } => bytes.len(),
            _ => 0,
        };
        bytes.reserve(long + more + 64);
        let mut w = Writer::behind(bytes);
        match self {
            Message::Hello { rank, node } => {
                w.map(2).uint(1u8).uint(*rank).uint(2u8).uint(*node);
            }
            Message::Placement { generation, text } => {
                w.map(2).uint(1u8).uint(*generation).uint(2u8).text(text);
            }
            Message::Goodbye { node } => {
                w.map(1).uint(1u8).uint(*node);
            }
            Message::List => {
                w.map(0);
            }
            Message::Listing { files } => {
                w.map(1).uint(1u8).array(files.len());
                for (name, len_bytes) in files {
                    w.array(2).text(name).uint(*len_bytes);
                }
            }
            Message::Said { by, message } => {
                w.map(3).uint(1u8).array(by.len());
                for (first, count) in by {
                    w.array(2).uint(*first).uint(*count);
                }
                w.uint(2u8).uint(message.kind());
                w.uint(3u8).bytes(&message.encode());
            }
            Message::Agent(message) => message.write(&mut w),
            Message::Store(message) => message.write(&mut w),
            Message::Durable { .. }
            | Message::NotDurable { .. }
            | Message::Vote { .. }
            | Message::Record { .. }
            | Message::Recorded { .. }
            | Message::Committed { .. }
            | Message::Aborted { .. } => write_about_checkpoint(self, &mut w),
            Message::Reserve { .. }
            | Message::Granted { .. }
            | Message::Credit { .. }
            | Message::Finish { .. }
            | Message::Held { .. }
            | Message::LetGo { .. }
            | Message::Data { .. }
            | Message::Fetch { .. }
            | Message::Lost { .. } => write_about_replica(self, &mut w),
        }
        w.finish()
    }

    /// Reads a payload of this kind. Fails with Corrupt, or Unsupported for an unknown kind.
    pub fn decode(kind: u8, bytes: &[u8]) -> Result<Message> {
        check_metadata_len("message", bytes)?;
        let r = &mut Reader::new("message", bytes);
        let message = match kind {
            1 => {
                let (rank, node) = pair(r, Reader::uint, Reader::uint)?;
                Message::Hello { rank, node }
            }
            2..=8 => read_about_checkpoint(kind, r)?,
            9 => {
                let text = |r: &mut Reader<'_>| r.text(MAX_METADATA_BYTES).map(str::to_owned);
                let (generation, text) = pair(r, Reader::u64, text)?;
                Message::Placement { generation, text }
            }
            10 => {
                let mut node = None;
                r.map(|r, key| {
                    if key == 1 {
                        node = Some(r.uint()?);
                    }
                    Ok(key == 1)
                })?;
                Message::Goodbye {
                    node: r.need(node, "key 1")?,
                }
            }
            11..=19 => read_about_replica(kind, r)?,
            SAID => read_relayed(r)?,
            40 => {
                r.map(|_, _| Ok(false))?;
                Message::List
            }
            41 => {
                let mut files = None;
                r.map(|r, key| {
                    if key == 1 {
                        files = Some(r.items(MAX_CONTAINERS, |r| {
                            r.tuple(2)?;
                            Ok((r.name(MAX_FILE_NAME_BYTES)?, r.u64()?))
                        })?);
                    }
                    Ok(key == 1)
                })?;
                Message::Listing {
                    files: r.need(files, "files (key 1)")?,
                }
            }
            _ if AgentMessage::KINDS.contains(&kind) => {
                Message::Agent(AgentMessage::read(kind, r)?)
            }
            _ if StoreMessage::KINDS.contains(&kind) => {
                Message::Store(StoreMessage::read(kind, r)?)
            }
            _ => return Err(r.unsupported(format_args!("a message of kind {kind} is unknown"))),
        };
        r.end()?;
        Ok(message)
    }
}

/// Starts a map of `pairs` with the two keys that most messages share.
fn checkpoint(w: &mut Writer, pairs: u64, step: Step, level: Level) -> &mut Writer {
    w.map(pairs)
        .uint(1u8)
        .uint(step)
        .uint(2u8)
        .uint(level.code())
}

/// A map of two required keys, 1 and 2.
fn pair<'b, A, B>(
    r: &mut Reader<'b>,
    first: impl Fn(&mut Reader<'b>) -> Result<A>,
    second: impl Fn(&mut Reader<'b>) -> Result<B>,
) -> Result<(A, B)> {
    let (mut a, mut b) = (None, None);
    r.map(|r, key| {
        match key {
            1 => a = Some(first(r)?),
            2 => b = Some(second(r)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((r.need(a, "key 1")?, r.need(b, "key 2")?))
}

// tidy: long because it has one arm for each message about a checkpoint
fn write_about_checkpoint(message: &Message, w: &mut Writer) {
    match message {
        Message::Durable {
            step,
            level,
            container,
        } => {
            checkpoint(w, 3, *step, *level).uint(3u8);
            container.write(w);
        }
        Message::NotDurable {
            step,
            level,
            server,
            kind,
            text,
        } => {
            w.map(3 + u64::from(level.is_some()) + u64::from(server.is_some()));
            w.uint(1u8).uint(*step);
            if let Some(level) = level {
                w.uint(2u8).uint(level.code());
            }
            if let Some(server) = server {
                w.uint(3u8).uint(*server);
            }
            w.uint(4u8)
                .uint(kind.code() as u64)
                .uint(5u8)
                .text(cut(text, MAX_TEXT_BYTES));
        }
        Message::Vote {
            step,
            level,
            node,
            containers,
        } => {
            checkpoint(w, 4, *step, *level).uint(3u8).uint(*node);
            w.uint(4u8).array(containers.len());
            for container in containers {
                container.write(w);
            }
        }
        Message::Record { step, level, bytes } => {
            checkpoint(w, 3, *step, *level).uint(3u8).bytes(bytes);
        }
        Message::Recorded {
            step,
            level,
            node,
            failed,
        } => {
            let pairs = if failed.is_some() { 5 } else { 3 };
            checkpoint(w, pairs, *step, *level).uint(3u8).uint(*node);
            if let Some(error) = failed {
                w.uint(4u8)
                    .uint(error.code())
                    .uint(5u8)
                    .text(cut(error.message(), MAX_TEXT_BYTES));
            }
        }
        Message::Committed { step, level } => {
            checkpoint(w, 2, *step, *level);
        }
        Message::Aborted { step, level, error } => {
            checkpoint(w, 4, *step, *level);
            w.uint(4u8)
                .uint(error.code())
                .uint(5u8)
                .text(cut(error.message(), MAX_TEXT_BYTES));
        }
        _ => {}
    }
}

fn write_about_replica(message: &Message, w: &mut Writer) {
    match message {
        Message::Reserve {
            slot,
            file,
            len_bytes,
        } => {
            w.map(3).uint(1u8).uint(*slot);
            w.uint(2u8).text(file).uint(3u8).uint(*len_bytes);
        }
        Message::Granted {
            slot,
            credit_bytes: bytes,
        }
        | Message::Credit { slot, bytes } => {
            w.map(2).uint(1u8).uint(*slot).uint(2u8).uint(*bytes);
        }
        Message::Finish {
            slot,
            len_bytes,
            crc,
        } => {
            w.map(3).uint(1u8).uint(*slot);
            w.uint(2u8).uint(*len_bytes).uint(3u8).uint(*crc);
        }
        Message::Held { slot } | Message::LetGo { slot } => {
            w.map(1).uint(1u8).uint(*slot);
        }
        Message::Data {
            slot,
            at_bytes,
            bytes,
        } => {
            w.map(3).uint(1u8).uint(*slot);
            w.uint(2u8).uint(*at_bytes).uint(3u8).bytes(bytes);
        }
        Message::Fetch {
            slot,
            file,
            at_bytes,
            len_bytes,
        } => {
            w.map(4).uint(1u8).uint(*slot).uint(2u8).text(file);
            w.uint(3u8).uint(*at_bytes).uint(4u8).uint(*len_bytes);
        }
        Message::Lost { slot, kind, text } => {
            w.map(3).uint(1u8).uint(*slot);
            w.uint(2u8).uint(kind.code() as u64);
            w.uint(3u8).text(cut(text, MAX_TEXT_BYTES));
        }
        _ => {}
    }
}

// tidy: long because it has one arm for each message about a checkpoint
fn read_about_checkpoint(message: u8, r: &mut Reader<'_>) -> Result<Message> {
    let (mut step, mut level, mut number, mut container) = (None, None, None, None);
    let (mut containers, mut record, mut kind, mut text) = (None, None, None, None);
    let mut code = None;
    r.map(|r, key| {
        match (message, key) {
            (_, 1) => step = Some(r.uint()?),
            (_, 2) => level = Some(r.level()?),
            (2, 3) => container = Some(ContainerRef::read(r)?),
            (3 | 4 | 6, 3) => number = Some(r.uint::<u32>()?),
            (5, 3) => record = Some(r.bytes(MAX_METADATA_BYTES)?.to_vec()),
            (4, 4) => containers = Some(r.items(MAX_CONTAINERS, ContainerRef::read)?),
            (3, 4) => kind = Some(read_kind(r)?),
            (6 | 8, 4) => code = Some(r.uint()?),
            (3 | 6 | 8, 5) => text = Some(r.text(MAX_TEXT_BYTES)?.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let step = r.need(step, "step (key 1)")?;
    if message == 3 {
        let kind = r.need(kind, "error kind (key 4)")?;
        let text = r.need(text, "error text (key 5)")?;
        return Ok(Message::NotDurable {
            step,
            level,
            server: number.map(TargetId),
            kind,
            text,
        });
    }
    let level = r.need(level, "level (key 2)")?;
    Ok(match message {
        2 => {
            let container = r.need(container, "container (key 3)")?;
            Message::Durable {
                step,
                level,
                container,
            }
        }
        4 => {
            let node = r.need(number, "node (key 3)")?;
            let containers = r.need(containers, "containers (key 4)")?;
            Message::Vote {
                step,
                level,
                node: NodeId(node),
                containers,
            }
        }
        5 => Message::Record {
            step,
            level,
            bytes: r.need(record, "record (key 3)")?,
        },
        6 => {
            let node = r.need(number, "node (key 3)")?;
            let failed = match (code, text) {
                (None, None) => None,
                (Some(code), Some(text)) => Some(Error::from_code(code, text)),
                _ => return Err(r.corrupt("expected keys 4 and 5 together, found one")),
            };
            Message::Recorded {
                step,
                level,
                node: NodeId(node),
                failed,
            }
        }
        7 => Message::Committed { step, level },
        _ => {
            let code = r.need(code, "error code (key 4)")?;
            let text = r.need(text, "error text (key 5)")?;
            let error = Error::from_code(code, text);
            Message::Aborted { step, level, error }
        }
    })
}

/// Reads a combined message. Only messages of nodes to the lead can be combined, and only once.
fn read_relayed(r: &mut Reader<'_>) -> Result<Message> {
    let (mut by, mut kind, mut bytes) = (None, None, None);
    r.map(|r, key| {
        match key {
            1 => {
                by = Some(r.items(MAX_SPEAKERS, |r| {
                    r.tuple(2)?;
                    Ok((r.uint()?, r.uint::<u32>()?))
                })?);
            }
            2 => kind = Some(r.uint::<u8>()?),
            3 => bytes = Some(r.bytes(MAX_METADATA_BYTES)?.to_vec()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let by = r.need(by, "nodes (key 1)")?;
    let kind = r.need(kind, "kind (key 2)")?;
    let bytes = r.need(bytes, "message (key 3)")?;
    let mut end = 0;
    for &(first, count) in &by {
        let next = u64::from(first) + u64::from(count);
        if count == 0 || u64::from(first) < end || next > MAX_NODES as u64 {
            return Err(r.corrupt(format_args!(
                "{count} nodes from {first} are not a valid range"
            )));
        }
        // A range that touches the one before would have been merged with it.
        end = next + 1;
    }
    if !matches!(kind, 3 | 4 | 6 | 10) {
        return Err(r.corrupt(format_args!(
            "a message of kind {kind} cannot be passed on for others"
        )));
    }
    let message = Box::new(Message::decode(kind, &bytes)?);
    Ok(Message::Said { by, message })
}

fn read_about_replica(message: u8, r: &mut Reader<'_>) -> Result<Message> {
    let (mut slot, mut file, mut first, mut second) = (None, None, None, None);
    let (mut kind, mut text, mut bytes, mut len) = (None, None, None, None);
    r.map(|r, key| {
        match (message, key) {
            (_, 1) => slot = Some(r.uint::<u32>()?),
            (11 | 19, 2) => file = Some(r.name(MAX_FILE_NAME_BYTES)?),
            (12..=14 | 18, 2) => first = Some(r.u64()?),
            (11 | 14 | 19, 3) => second = Some(r.u64()?),
            (18, 3) => bytes = Some(r.bytes(MAX_DATA_BYTES)?.to_vec()),
            (19, 4) => len = Some(r.u64()?),
            (16, 2) => kind = Some(read_kind(r)?),
            (16, 3) => text = Some(r.text(MAX_TEXT_BYTES)?.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let slot = r.need(slot, "slot (key 1)")?;
    Ok(match message {
        11 => Message::Reserve {
            slot,
            file: r.need(file, "container file (key 2)")?,
            len_bytes: r.need(second, "length (key 3)")?,
        },
        12 => Message::Granted {
            slot,
            credit_bytes: r.need(first, "credit (key 2)")?,
        },
        13 => Message::Credit {
            slot,
            bytes: r.need(first, "credit (key 2)")?,
        },
        14 => Message::Finish {
            slot,
            len_bytes: r.need(first, "length (key 2)")?,
            crc: r.need(second, "checksum (key 3)")?,
        },
        15 => Message::Held { slot },
        18 => Message::Data {
            slot,
            at_bytes: r.need(first, "offset (key 2)")?,
            bytes: r.need(bytes, "bytes (key 3)")?,
        },
        19 => Message::Fetch {
            slot,
            file: r.need(file, "file (key 2)")?,
            at_bytes: r.need(second, "offset (key 3)")?,
            len_bytes: r.need(len, "length (key 4)")?,
        },
        16 => Message::Lost {
            slot,
            kind: r.need(kind, "error kind (key 2)")?,
            text: r.need(text, "error text (key 3)")?,
        },
        _ => Message::LetGo { slot },
    })
}
