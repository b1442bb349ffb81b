//! Encodes the list of members: where later runs reach the nodes of a run.
//!
//! How: one small record beside the claim of the epoch, with the same envelope (`record.rs`). Every
//! node of the run keeps one in its own directory. Any node that is left can therefore find the
//! others, including nodes that hold replicas but have no rank in the next run.
//!
//! Invariants:
//! 1. A list that decodes names every node once.
//! 2. The keys in a list are secret: only its owner can read the file, and a printed list has no
//!    keys.
//!
//! Not here: who contacts these nodes, and what for (crate `client`).

use crate::coding::{Reader, Writer, flag};
use crate::disk::envelope::{KIND_MEMBERS, unwrap, wrap};
use crate::disk::manifest::MAX_NAME_BYTES;
use crate::disk::record::MAX_NODES;
use crate::error::{Error, Result};
use crate::ids::{Epoch, JobName};
use std::collections::BTreeSet;
use std::fmt;

/// Most addresses of one node.
pub(crate) const MAX_ADDRESSES: usize = 64;
/// Longest address, in bytes; the path of a Unix socket is shorter.
pub(crate) const MAX_ADDRESS_BYTES: usize = 256;

/// The nodes of a run, and older nodes that it knows of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The job.
    pub job: JobName,
    /// The run.
    pub epoch: Epoch,
    /// Its nodes, and nodes of earlier runs that are not among them.
    pub nodes: Vec<Member>,
}

/// One node.
#[derive(Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where its keeper was reachable, best first.
    pub addresses: Vec<String>,
    /// The key of the last run that the node took part in.
    pub key: [u8; 32],
    /// Whether that run encrypts TCP traffic.
    pub encrypt: bool,
    /// The counter of that run's epoch.
    pub epoch: u64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, addresses, epoch) = (&self.name, &self.addresses, self.epoch);
        write!(f, "{name} of epoch {epoch} at {addresses:?}")
    }
}

impl Members {
    /// The whole file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(3);
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).epoch(&self.epoch);
        w.uint(3u8).array(self.nodes.len());
        for member in &self.nodes {
            w.map(5);
            w.uint(1u8).text(&member.name);
            w.uint(2u8).texts(&member.addresses);
            w.uint(3u8).bytes(&member.key);
            w.uint(4u8).uint(u8::from(member.encrypt));
            w.uint(5u8).uint(member.epoch);
        }
        wrap(KIND_MEMBERS, 0, &w.finish())
    }

    /// Reads a whole file. Fails with Corrupt or Unsupported.
    ///
    /// # Errors
    /// See above.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "list of members";
        let r = &mut Reader::new(what, unwrap(what, KIND_MEMBERS, bytes)?.0);
        let (mut job, mut epoch, mut nodes) = (None, None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => epoch = Some(r.epoch()?),
                3 => nodes = Some(r.items(MAX_NODES, Member::read)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        let members = Members {
            job: r.need(job, "job (key 1)")?,
            epoch: r.need(epoch, "epoch (key 2)")?,
            nodes: r.need(nodes, "nodes (key 3)")?,
        };
        let names: BTreeSet<&str> = members.nodes.iter().map(|node| &*node.name).collect();
        if names.len() != members.nodes.len() {
            return Err(Error::corrupt(format!(
                "{what}: expected every node once, found {} names for {} nodes",
                names.len(),
                members.nodes.len()
            )));
        }
        Ok(members)
    }
}

impl Member {
    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let (mut name, mut addresses, mut secret) = (None, None, None);
        let (mut encrypt, mut epoch) = (None, None);
        r.map(|r, key| {
            match key {
                1 => name = Some(r.name(MAX_NAME_BYTES)?),
                2 => addresses = Some(r.items(MAX_ADDRESSES, |r| r.name(MAX_ADDRESS_BYTES))?),
                3 => secret = Some(r.exact()?),
                4 => encrypt = Some(flag(r)?),
                5 => epoch = Some(r.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Member {
            name: r.need(name, "node name (key 1)")?,
            addresses: r.need(addresses, "addresses (key 2)")?,
            key: r.need(secret, "key of the run (key 3)")?,
            encrypt: r.need(encrypt, "encryption (key 4)")?,
            epoch: r.need(epoch, "epoch of the node (key 5)")?,
        })
    }
}
