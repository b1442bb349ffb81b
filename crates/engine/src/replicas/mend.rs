//! Mends replication: after nodes were lost, restores the configured number of copies of what the
//! run resumed from.
//!
//! How: all nodes know who holds what, so each determines by itself which copies to make. If too
//! few nodes hold a container, the first of them brings it to new holders. If the only holders have
//! no rank in this run, and may therefore leave at any time, one node fetches the container first.
//! With parity, what a lost member of a group had is fetched, or computed, by a node that has
//! nothing else of the group. Mending continues in the background while the job computes.
//!
//! Invariants:
//! 1. Exactly one node makes each missing copy.
//! 2. Only copies on nodes of this run count.
//! 3. No node takes what two members of a group had.
//! 4. A copy that cannot be made is reported; it harms nothing that exists.
//!
//! Not here: how copies travel (`owner.rs`), which files a group needs and where
//! (`mend/parity.rs`).

mod parity;

use crate::directory::prune::coming_name;
use crate::replicas::owner::Replicas;
use crate::replicas::protect::PIECE_BYTES;
use crate::replicas::remote::Holdings;
use crate::replicas::survivors::verify_parity;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, NodeId, Result, crc64};
use orcheck_io::disk::{Create, Dir};
use orcheck_io::memory::zeroed;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A container that this node brings to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Its file.
    pub file: String,
    /// Whether this node must first fetch it, or compute it.
    pub fetch: bool,
    /// Its length, if that is known.
    pub len_bytes: Option<u64>,
    /// To whom.
    pub to: Vec<NodeId>,
}

/// The result of mending.
#[derive(Debug, Default)]
pub struct Mended {
    /// Copies that were made.
    pub made: u32,
    /// Why others could not be made.
    pub errors: Vec<Error>,
}

/// The containers that a restart from this record may read: its own, and the older ones to which
/// they refer.
pub(crate) fn needed(record: &CommitRecord) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for container in &record.containers {
        let name = FileName::parse(&container.file);
        let older = container.refers_to.iter();
        files.extend(older.filter_map(|&step| Some(name.as_ref()?.at_step(step).to_string())));
        files.insert(container.file.clone());
    }
    files
}

/// Plans the copies that this node has to make, in a run of this many `members`; later entries of
/// `holdings` are other nodes. Also returns the files that no further node can take as a copy, and
/// why.
#[must_use]
pub fn plan(
    record: &CommitRecord,
    holdings: &Holdings,
    members: u32,
    replicas: &Replicas,
) -> (Vec<Copy>, Vec<(String, Error)>) {
    if !record.groups.is_empty() {
        return parity::plan(record, holdings, members, replicas);
    }
    let (mut copies, mut impossible) = (Vec::new(), Vec::new());
    for file in needed(record) {
        let len = |node: &Vec<(String, u64)>| {
            node.iter()
                .find(|(name, _)| *name == file)
                .map(|(_, len)| *len)
        };
        // A truncated file is not a copy.
        let own = record.containers.iter().find(|own| own.file == file);
        let known = own.map(|own| own.len_bytes);
        let longest = known.or_else(|| holdings.iter().filter_map(len).max());
        let held = (0..members)
            .map(NodeId)
            .zip(holdings)
            .filter(|(_, node)| len(node).is_some() && len(node) == longest);
        let mut held: Vec<NodeId> = held.map(|(node, _)| node).collect();
        // Breaks if: nobody fetches it; it would be lost with the node that has it.
        let elsewhere = holdings.iter().any(|node| len(node) == longest);
        let fetch = held.is_empty() && elsewhere && !off(Switch::MendFetch);
        if fetch {
            let fetcher = crc64(file.as_bytes()) % u64::from(members.max(1));
            held.push(NodeId(fetcher as u32));
        }
        let missing = replicas.copies().saturating_sub(held.len() as u32);
        let ours = held.first() == Some(&replicas.node());
        if !ours || missing == 0 && !fetch {
            continue;
        }
        // Breaks if: the first file without a node ends the plan; copies that are possible would
        // not be made.
        match replicas.more(record.step, &held, missing) {
            Ok(to) => copies.push(Copy {
                file,
                fetch,
                len_bytes: longest,
                to,
            }),
            Err(error) => {
                let error = error.at(&file);
                impossible.push((file, error));
            }
        }
    }
    (copies, impossible)
}

/// Makes the copies, as far as possible.
pub fn mend(
    copies: &[Copy],
    dir: &dyn Dir,
    others: &[Arc<dyn Dir>],
    replicas: &Arc<Replicas>,
) -> Mended {
    let mut mended = Mended::default();
    for Copy {
        file,
        fetch: fetches,
        len_bytes,
        to,
    } in copies
    {
        let fetched = match fetches {
            true => fetch((file, *len_bytes), others, dir, replicas.epoch()).map(|()| 1),
            false => Ok(0),
        };
        let made = fetched.and_then(|fetched| {
            mended.made += fetched;
            if to.is_empty() {
                return Ok(());
            }
            // If it is not on the disk, it is in the agent's memory, which is queried like another
            // node, and first.
            let mut dirs = std::iter::once(dir).chain(others.iter().map(|other| other.as_ref()));
            let has_it = dirs.find(|dir| dir.open(file).is_ok());
            replicas.copy(has_it.unwrap_or(dir), file, to)
        });
        match made {
            Ok(()) => mended.made += to.len() as u32,
            Err(error) => mended.errors.push(error.at(file)),
        }
    }
    mended
}

/// Brings a file here from the first node that has it whole. Whoever reads a container verifies it,
/// like any other; a parity file is verified here.
fn fetch(
    (file, len_bytes): (&str, Option<u64>),
    others: &[Arc<dyn Dir>],
    dir: &dyn Dir,
    epoch: u64,
) -> Result<()> {
    let mut last = Error::not_found("no node has it any more");
    let coming = coming_name(file, epoch);
    for other in others {
        // What an interrupted run left of it is in the way.
        let _ = dir.remove(&coming);
        match fetch_from(other.as_ref(), (file, &coming), len_bytes, dir) {
            Ok(()) => return Ok(()),
            // Breaks if: the last directory's "not found" hides why the others failed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
        let _ = dir.remove(&coming);
    }
    Err(last)
}

fn fetch_from(
    from: &dyn Dir,
    (file, coming): (&str, &str),
    expected: Option<u64>,
    dir: &dyn Dir,
) -> Result<()> {
    let source = from.open(file)?;
    let len_bytes = source.len_bytes()?;
    if let Some(expected) = expected.filter(|&expected| expected != len_bytes) {
        return Err(Error::corrupt(format!(
            "expected {expected} bytes, found {len_bytes}"
        )));
    }
    // Breaks if: it has its name from the beginning; after a crash halfway, it would count as
    // there.
    let target = dir.create(coming, Create::Buffered)?;
    let mut at = 0;
    while at < len_bytes {
        let mut bytes = zeroed((len_bytes - at).min(PIECE_BYTES) as usize)?;
        source.read_at(&mut bytes, at)?;
        target.write_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    target.sync()?;
    target.close()?;
    dir.rename(coming, file)?;
    dir.sync()?;
    if let Some(FileName::Parity { .. }) = FileName::parse(file) {
        verify_parity(dir, file).inspect_err(|_| {
            // A damaged one would protect nothing, and count as there.
            let _ = dir.remove(file);
        })?;
    }
    Ok(())
}
