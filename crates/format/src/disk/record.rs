//! Encodes small files of one record each: commit records, claims, notes of resumption.
//!
//! How: an envelope of 40 bytes (mark, kind, version, length, feature words), deterministic CBOR,
//! and a CRC-64/NVME over both. A file is one envelope and ends with it.
//!
//! Invariants:
//! 1. A commit record that decodes covers every rank of the job exactly once.
//! 2. Every container it names belongs to its step and epoch.
//!
//! Faults survived: a torn, truncated, extended or flipped record is Corrupt, never half-read.
//!
//! Not here: a record's seal (`seal.rs`); when a record is written, and which of several records
//! counts (the engine).

use crate::coding::{Reader, Writer};
use crate::disk::envelope::{KIND_CLAIM, KIND_COMMIT, KIND_RESUMED, PARITY, REFERS, unwrap, wrap};
use crate::disk::manifest::MAX_NAME_BYTES;
use crate::disk::names::{FileName, MAX_FILE_NAME_BYTES};
use crate::disk::parity::ParityGroup;
use crate::error::{Error, Result};
use crate::ids::{Epoch, JobName, Level};
use crate::numbers::{NodeId, Rank, Step, TargetId, WriterId};
use crate::sabotage::{Switch, off};
use std::collections::BTreeSet;

/// Most nodes of a job: a hundred times as many as the largest machines have.
pub const MAX_NODES: usize = 1 << 20;
/// Most targets of a job.
pub(crate) const MAX_SERVERS: usize = 1 << 16;
/// Longest path of a server, in bytes: PATH_MAX of Linux.
pub(crate) const MAX_PATH_BYTES: usize = 4096;
/// Most containers of a checkpoint: eight lanes on each of 128 Ki nodes.
pub(crate) const MAX_CONTAINERS: usize = 1 << 20;
/// Most rank ranges of one container; ranks of a node are mostly consecutive.
pub(crate) const MAX_RANK_RANGES: usize = 1 << 16;
/// Most older checkpoints that one container may refer to.
pub const MAX_REFERRED: usize = 64;
/// Most nodes that hold a replica of one container: the most losses that a level can name.
pub(crate) const MAX_HOLDERS: usize = 255;
/// The record whose appearance makes a checkpoint restartable at one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord {
    /// The job.
    pub job: JobName,
    /// The checkpoint's step.
    pub step: Step,
    /// The epoch that committed it.
    pub epoch: Epoch,
    /// What the commit survives.
    pub level: Level,
    /// Ranks in the job; each is in exactly one container.
    pub world_size: u32,
    /// Names of the nodes, by index.
    pub nodes: Vec<String>,
    /// Generation of the placement map that was used.
    pub placement_generation: u64,
    /// Paths of the targets as configured, by index. For information only: they may have moved.
    pub servers: Vec<String>,
    /// Every container of the checkpoint.
    pub containers: Vec<ContainerRef>,
    /// When it was committed, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Groups of nodes whose containers are protected by parity; empty without parity.
    pub groups: Vec<ParityGroup>,
}

/// One container of a checkpoint, as a commit record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    /// File name (not path) of the container.
    pub file: String,
    /// Index of the server that holds it.
    pub server: TargetId,
    /// Index of the node that wrote it.
    pub node: NodeId,
    /// Index of the writer within the node.
    pub writer: WriterId,
    /// Bytes of the container's file.
    pub len_bytes: u64,
    /// BLAKE3 digest of its manifest.
    pub manifest_digest: [u8; 32],
    /// The ranks it holds: (first, count), ascending, not touching each other.
    pub ranks: Vec<(Rank, u32)>,
    /// Steps of older checkpoints of the same epoch, ascending, at most [`MAX_REFERRED`]. Extents
    /// of this container lie in their containers, which must stay as long as this one does.
    pub refers_to: Vec<Step>,
    /// Indices of the other nodes that hold a replica, in the order of their selection; empty
    /// except at level `peers`.
    pub holders: Vec<NodeId>,
}

/// The claim of an epoch by a run; created before any other file of that epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The job.
    pub job: JobName,
    /// The claimed epoch.
    pub epoch: Epoch,
    /// Host of the lead.
    pub host: String,
    /// Process id of the lead on that host.
    pub pid: u32,
    /// User id of the lead.
    pub uid: u32,
    /// When the claim was made, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Ranks in the job.
    pub world_size: u32,
    /// Names of the nodes, by index.
    pub nodes: Vec<String>,
}

/// The step from which an epoch resumed; readers ignore later steps of older epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The job.
    pub job: JobName,
    /// The epoch that resumed.
    pub epoch: Epoch,
    /// The step it restarted from; `None` for a fresh start.
    pub step: Option<Step>,
    /// The epoch that had committed that step.
    pub from: Option<Epoch>,
}

impl ContainerRef {
    /// Whether the container holds this rank.
    pub fn holds(&self, rank: Rank) -> bool {
        let after = self.ranks.partition_point(|(first, _)| *first <= rank);
        let last = self.ranks.iter().take(after).next_back();
        last.is_some_and(|(first, count)| rank.0 - first.0 < *count)
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        let more = [!self.refers_to.is_empty(), !self.holders.is_empty()];
        w.map(7 + more.into_iter().map(u64::from).sum::<u64>());
        w.uint(1u8).text(&self.file);
        w.uint(2u8).uint(self.server);
        w.uint(3u8).uint(self.node);
        w.uint(4u8).uint(self.writer);
        w.uint(5u8).uint(self.len_bytes);
        w.uint(6u8).bytes(&self.manifest_digest);
        w.uint(7u8).array(self.ranks.len());
        for (first, count) in &self.ranks {
            w.array(2).uint(*first).uint(*count);
        }
        if !self.refers_to.is_empty() {
            w.uint(8u8).array(self.refers_to.len());
            for step in &self.refers_to {
                w.uint(*step);
            }
        }
        if !self.holders.is_empty() {
            w.uint(9u8).array(self.holders.len());
            for holder in &self.holders {
                w.uint(*holder);
            }
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        let (mut file, mut server, mut node, mut writer) = (None, None, None, None);
        let (mut len_bytes, mut manifest_digest, mut ranks) = (None, None, None);
        let (mut refers_to, mut holders) = (Vec::new(), Vec::new());
        r.map(|r, key| {
            match key {
                1 => file = Some(r.name(MAX_FILE_NAME_BYTES)?),
                2 => server = Some(r.uint()?),
                3 => node = Some(r.uint()?),
                4 => writer = Some(r.uint()?),
                5 => len_bytes = Some(r.u64()?),
                6 => manifest_digest = Some(r.exact()?),
                7 => {
                    ranks = Some(r.items(MAX_RANK_RANGES, |r| {
                        r.tuple(2)?;
                        Ok((r.uint()?, r.uint()?))
                    })?)
                }
                8 => refers_to = r.items(MAX_REFERRED, Reader::uint)?,
                9 => holders = r.items(MAX_HOLDERS, Reader::uint)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let found = ContainerRef {
            file: r.need(file, "container file (key 1)")?,
            server: r.need(server, "server (key 2)")?,
            node: r.need(node, "node (key 3)")?,
            writer: r.need(writer, "writer (key 4)")?,
            len_bytes: r.need(len_bytes, "container length (key 5)")?,
            manifest_digest: r.need(manifest_digest, "manifest digest (key 6)")?,
            ranks: r.need(ranks, "ranks (key 7)")?,
            refers_to,
            holders,
        };
        found.check().map_err(|error| r.corrupt(error))?;
        Ok(found)
    }

    fn check(&self) -> Result<()> {
        let step = match FileName::parse(&self.file) {
            Some(FileName::Container {
                step, node, writer, ..
            }) if node == self.node && writer == self.writer => step,
            _ => {
                return Err(Error::corrupt(format!(
                    "{:?} is not the name of a container of node {}, writer {}",
                    self.file, self.node, self.writer
                )));
            }
        };
        let ascending = self.refers_to.is_sorted_by(|a, b| a < b);
        let older = self.refers_to.last().is_none_or(|last| *last < step);
        if !ascending || !older || self.refers_to.len() > MAX_REFERRED {
            return Err(Error::corrupt(format!(
                "{}: expected at most {MAX_REFERRED} older steps, ascending, found references to {:?}",
                self.file, self.refers_to
            )));
        }
        let others: BTreeSet<NodeId> = self.holders.iter().copied().collect();
        if others.len() != self.holders.len() || others.contains(&self.node) {
            return Err(Error::corrupt(format!(
                "{}: expected holders that are different nodes and not node {}, found {:?}",
                self.file, self.node, self.holders
            )));
        }
        let mut free = 0u64;
        for (index, (first, count)) in self.ranks.iter().enumerate() {
            let first = u64::from(*first);
            let end = first + u64::from(*count);
            // Touching ranges would be a second encoding of the same set.
            if *count == 0 || end > 1 << 32 || (index > 0 && first <= free) {
                return Err(Error::corrupt(format!(
                    "{}: the rank range of {count} from {first} is empty, too long or not separate \
                     from the one before",
                    self.file
                )));
            }
            free = end;
        }
        Ok(())
    }
}

/// Converts ranks, in any order and perhaps repeated, to ascending (first, count) ranges.
pub fn ranks_to_ranges(ranks: &[Rank]) -> Vec<(Rank, u32)> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(Rank, u32)> = Vec::new();
    for rank in sorted {
        match ranges.last_mut() {
            // No overflow: rank is beyond the range, so first + count <= rank.
            Some((first, count)) if first.0 + *count == rank.0 => *count += 1,
            _ => ranges.push((rank, 1)),
        }
    }
    ranges
}

impl CommitRecord {
    /// The whole file.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(10 + u64::from(!self.groups.is_empty()));
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).uint(self.step);
        w.uint(3u8).epoch(&self.epoch);
        w.uint(4u8).uint(self.level.code());
        w.uint(5u8).uint(self.world_size);
        w.uint(6u8).texts(&self.nodes);
        w.uint(7u8).uint(self.placement_generation);
        w.uint(8u8).texts(&self.servers);
        w.uint(9u8).array(self.containers.len());
        for container in &self.containers {
            container.write(&mut w);
        }
        w.uint(10u8).uint(self.created_unix_ms);
        if !self.groups.is_empty() {
            w.uint(11u8).array(self.groups.len());
            for group in &self.groups {
                group.write(&mut w);
            }
        }
        wrap(KIND_COMMIT, self.incompat(), &w.finish())
    }

    /// The features that a reader must know.
    fn incompat(&self) -> u64 {
        let refers = if self.refers() { REFERS } else { 0 };
        refers | if self.groups.is_empty() { 0 } else { PARITY }
    }

    /// The group of a node, with parity.
    #[must_use]
    pub fn group_of(&self, node: NodeId) -> Option<&ParityGroup> {
        (self.groups.iter()).find(|group| group.position(node).is_some())
    }

    /// Steps of the older checkpoints of the same epoch whose containers must stay as long as this
    /// checkpoint does; ascending.
    pub fn refers_to(&self) -> Vec<Step> {
        let all: BTreeSet<Step> = self
            .containers
            .iter()
            .flat_map(|container| container.refers_to.iter().copied())
            .collect();
        all.into_iter().collect()
    }

    fn refers(&self) -> bool {
        self.containers.iter().any(|c| !c.refers_to.is_empty())
    }

    /// Reads a whole file. Fails with Corrupt or Unsupported.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "commit record";
        let (body, incompat) = unwrap(what, KIND_COMMIT, bytes)?;
        let r = &mut Reader::new(what, body);
        let (mut job, mut step, mut epoch, mut level) = (None, None, None, None);
        let (mut world_size, mut nodes, mut generation) = (None, None, None);
        let (mut servers, mut containers, mut created) = (None, None, None);
        let mut groups = Vec::new();
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => step = Some(r.uint()?),
                3 => epoch = Some(r.epoch()?),
                4 => level = Some(r.level()?),
                5 => world_size = Some(r.uint()?),
                6 => nodes = Some(r.items(MAX_NODES, |r| r.name(MAX_NAME_BYTES))?),
                7 => generation = Some(r.u64()?),
                8 => servers = Some(r.items(MAX_SERVERS, |r| r.name(MAX_PATH_BYTES))?),
                9 => containers = Some(r.items(MAX_CONTAINERS, ContainerRef::read)?),
                10 => created = Some(r.u64()?),
                11 => {
                    groups = r.items(MAX_NODES, ParityGroup::read)?;
                    // An empty list would be a second encoding of none.
                    if groups.is_empty() {
                        return Err(r.corrupt("expected groups (key 11), found none"));
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        let record = CommitRecord {
            job: r.need(job, "job (key 1)")?,
            step: r.need(step, "step (key 2)")?,
            epoch: r.need(epoch, "epoch (key 3)")?,
            level: r.need(level, "level (key 4)")?,
            world_size: r.need(world_size, "world size (key 5)")?,
            nodes: r.need(nodes, "nodes (key 6)")?,
            placement_generation: r.need(generation, "placement generation (key 7)")?,
            servers: r.need(servers, "servers (key 8)")?,
            containers: r.need(containers, "containers (key 9)")?,
            created_unix_ms: r.need(created, "time (key 10)")?,
            groups,
        };
        record.validate().map_err(|error| error.at(what))?;
        // Breaks if: a list without its mark is accepted; a version that does not know the mark
        // would prune what the list names.
        if incompat & (REFERS | PARITY) != record.incompat() {
            return Err(Error::corrupt(format!(
                "{what}, byte 32: expected incompat bit 0 exactly where containers refer to older steps, and bit 2 where groups have parity, found {incompat:#x}"
            )));
        }
        Ok(record)
    }

    /// Checks the groups: with parity, at level `peers`, every node is in one, and each survives
    /// as many losses as the level names.
    fn check_groups(&self) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        let Level::Peers(losses) = self.level else {
            let level = self.level;
            return Err(Error::corrupt(format!(
                "expected groups with parity at level peers only, found them at level {level}"
            )));
        };
        let mut grouped = BTreeSet::new();
        for group in &self.groups {
            group.check(Some(self.nodes.len()))?;
            let weak = group.parity < losses && !off(Switch::ParityCount);
            if weak || !group.nodes.iter().all(|&node| grouped.insert(node)) {
                return Err(Error::corrupt(format!(
                    "expected groups of different nodes with at least {losses} parities, found one of nodes {:?} with {}",
                    group.nodes, group.parity
                )));
            }
        }
        let alone = |container: &&ContainerRef| !grouped.contains(&container.node);
        match self.containers.iter().find(alone) {
            Some(container) => Err(Error::corrupt(format!(
                "{}: node {} is in no group with parity",
                container.file, container.node
            ))),
            None => Ok(()),
        }
    }

    /// Checks the number of replicas: at level `peers` without parity, every container has at least
    /// as many as losses that the level survives; otherwise none.
    fn check_holders(&self, container: &ContainerRef) -> Result<()> {
        let (most, least) = match self.level {
            Level::Peers(losses) if self.groups.is_empty() => (MAX_HOLDERS, losses as usize),
            _ => (0, 0),
        };
        let there = |holder: &NodeId| holder.index() < self.nodes.len();
        let held = container.holders.len();
        // Breaks if: a record with too few replicas is accepted; the loss of its nodes would be the
        // loss of the checkpoint.
        if held < least && !off(Switch::ReplicaCount)
            || held > most
            || !container.holders.iter().all(there)
        {
            return Err(Error::corrupt(format!(
                "{}: expected {least} to {most} holders among {} nodes at level {}, found {:?}",
                container.file,
                self.nodes.len(),
                self.level,
                container.holders
            )));
        }
        Ok(())
    }

    /// Checks that every container belongs to this checkpoint and that every rank is in exactly one
    /// container. `decode` calls this; a committer calls it before it writes. Fails with Corrupt.
    pub fn validate(&self) -> Result<()> {
        self.check_groups()?;
        if off(Switch::EveryRankOnce) {
            return Ok(());
        }
        let run = self.epoch.run.short_bytes();
        let mut ranges = Vec::new();
        for container in &self.containers {
            container.check()?;
            let (node, writer) = (container.node, container.writer);
            let expected = FileName::Container {
                step: self.step,
                epoch: self.epoch.counter,
                run,
                node,
                writer,
            };
            if FileName::parse(&container.file) != Some(expected.clone()) {
                return Err(Error::corrupt(format!(
                    "expected the container {expected}, found {:?}",
                    container.file
                )));
            }
            if node.index() >= self.nodes.len() || container.server.index() >= self.servers.len() {
                return Err(Error::corrupt(format!(
                    "{}: node {node} of {} or server {} of {} does not exist",
                    container.file,
                    self.nodes.len(),
                    container.server,
                    self.servers.len()
                )));
            }
            self.check_holders(container)?;
            ranges.extend(
                container
                    .ranks
                    .iter()
                    .map(|(first, count)| (u64::from(*first), u64::from(*count))),
            );
        }
        ranges.sort_unstable();
        let mut covered = 0u64;
        for (first, count) in ranges {
            if first != covered {
                let (rank, trouble) = if first > covered {
                    (covered, "in no container")
                } else {
                    (first, "in two containers")
                };
                return Err(Error::corrupt(format!("rank {rank} is {trouble}")));
            }
            covered += count;
        }
        if covered != u64::from(self.world_size) || covered == 0 {
            return Err(Error::corrupt(format!(
                "expected containers of {} ranks, found {covered}",
                self.world_size
            )));
        }
        Ok(())
    }
}

impl Claim {
    /// The whole file.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(8);
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).epoch(&self.epoch);
        w.uint(3u8).text(&self.host);
        w.uint(4u8).uint(self.pid);
        w.uint(5u8).uint(self.uid);
        w.uint(6u8).uint(self.since_unix_ms);
        w.uint(7u8).uint(self.world_size);
        w.uint(8u8).texts(&self.nodes);
        wrap(KIND_CLAIM, 0, &w.finish())
    }

    /// Reads a whole file. Fails with Corrupt or Unsupported.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "claim";
        let r = &mut Reader::new(what, unwrap(what, KIND_CLAIM, bytes)?.0);
        let (mut job, mut epoch, mut host, mut pid) = (None, None, None, None);
        let (mut uid, mut since, mut world_size, mut nodes) = (None, None, None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => epoch = Some(r.epoch()?),
                3 => host = Some(r.name(MAX_NAME_BYTES)?),
                4 => pid = Some(r.uint()?),
                5 => uid = Some(r.uint()?),
                6 => since = Some(r.u64()?),
                7 => world_size = Some(r.uint()?),
                8 => nodes = Some(r.items(MAX_NODES, |r| r.name(MAX_NAME_BYTES))?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        Ok(Claim {
            job: r.need(job, "job (key 1)")?,
            epoch: r.need(epoch, "epoch (key 2)")?,
            host: r.need(host, "host (key 3)")?,
            pid: r.need(pid, "process id (key 4)")?,
            uid: r.need(uid, "user id (key 5)")?,
            since_unix_ms: r.need(since, "time (key 6)")?,
            world_size: r.need(world_size, "world size (key 7)")?,
            nodes: r.need(nodes, "nodes (key 8)")?,
        })
    }
}

impl Resumed {
    /// The whole file.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2 + u64::from(self.step.is_some()) + u64::from(self.from.is_some()));
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).epoch(&self.epoch);
        if let Some(step) = self.step {
            w.uint(3u8).uint(step);
        }
        if let Some(from) = &self.from {
            w.uint(4u8).epoch(from);
        }
        wrap(KIND_RESUMED, 0, &w.finish())
    }

    /// Reads a whole file. Fails with Corrupt or Unsupported.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "note of resumption";
        let r = &mut Reader::new(what, unwrap(what, KIND_RESUMED, bytes)?.0);
        let (mut job, mut epoch, mut step, mut from) = (None, None, None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => epoch = Some(r.epoch()?),
                3 => step = Some(r.uint()?),
                4 => from = Some(r.epoch()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        Ok(Resumed {
            job: r.need(job, "job (key 1)")?,
            epoch: r.need(epoch, "epoch (key 2)")?,
            step,
            from,
        })
    }
}
