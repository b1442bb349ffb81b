//! Reads a container that lies in several directories: at level `peers`, the owner's copy and its
//! replicas.
//!
//! How: copies are identical byte for byte. If an extent is damaged in one, the reader takes it
//! from the same offset in the next file of that name. Its checksum, from a verified manifest, says
//! whether that one is good.
//!
//! Invariants: those of `reader.rs`; the sink receives each byte once.
//!
//! Not here: the copies of another level (`view.rs`).

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use orcheck_format::disk::{CommitRecord, ContainerRef, FLAG_SAME, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Level, NodeId, Rank, Result, without_next};
use orcheck_io::disk::{Dir, File};
use orcheck_io::memory::{Span, fill_span};
use orcheck_staging::client::shown;

use super::source::{Buffers, Source, Stored};
use super::{Belief, Reader, adds_up, as_usize, listed};
use crate::encoding::{Proof, Trust, WHO_CAN_WRITE};
use crate::replicas::Rebuilt;
use crate::restart::shared::{self, Blocks, Shared, key};

/// What is wanted of a region, and where it goes.
pub(crate) trait Wanted {
    /// Whether some of these bytes of the region are wanted.
    fn wants(&self, bytes: Range<u64>) -> bool;
    /// Memory for exactly these bytes, if all are wanted and go to one place. They may be written
    /// there before they are verified.
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span>;
    /// Takes verified bytes from `at` of the region on, among them some that are not wanted.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
    /// Whether bytes may come in any order, and more than once.
    fn in_any_order(&self) -> bool;
    /// Which of these bytes of the region are wanted, counted from the first of them.
    fn runs(&self, bytes: Range<u64>) -> Vec<Range<u64>>;
}

/// All bytes, in order.
struct Stream<'s>(&'s mut dyn FnMut(u64, &[u8]) -> Result<()>);

impl Wanted for Stream<'_> {
    fn wants(&self, _bytes: Range<u64>) -> bool {
        true
    }

    fn memory(&mut self, _bytes: Range<u64>) -> Option<Span> {
        None
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        (self.0)(at, bytes)
    }

    fn in_any_order(&self) -> bool {
        false
    }

    fn runs(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        shared::all(bytes.end - bytes.start)
    }
}

/// All bytes, to be verified and dropped; whether other ranks of the node want the same.
struct Nowhere(bool);

impl Wanted for Nowhere {
    fn wants(&self, _bytes: Range<u64>) -> bool {
        true
    }

    fn memory(&mut self, _bytes: Range<u64>) -> Option<Span> {
        None
    }

    fn put(&mut self, _at: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn in_any_order(&self) -> bool {
        self.0
    }

    fn runs(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        shared::all(bytes.end - bytes.start)
    }
}

impl Reader {
    /// Opens the copy of a container in this one directory; stripes and containers to which it
    /// refers may be in any of `places`. `None` if it is not there.
    ///
    /// # Errors
    /// As [`Reader::open_trusting`]; without a key, as [`Reader::open`].
    pub(crate) fn open_copy(
        dir: &dyn Dir,
        places: &[Arc<dyn Dir>],
        (commit, container): (&CommitRecord, &ContainerRef),
        (trust, proof): (&Arc<Trust>, Proof),
    ) -> Result<Option<Reader>> {
        let trust = Arc::clone(trust);
        let belief = trust.has_key().then_some(Belief { trust, proof });
        Self::open_in(dir, places, (commit, container), belief.as_ref())
    }

    /// As [`Reader::read_region`], but damaged bytes are read from any other copy in the places;
    /// `damage` is called with what was bad where another copy was good.
    ///
    /// # Errors
    /// As [`Reader::read_region`], if no copy is good.
    pub(crate) fn read_region_of_any_copy(
        &self,
        rank: Rank,
        region: &RegionRecord,
        into: Span,
        damage: &mut dyn FnMut(&Error),
    ) -> Result<()> {
        let mut buffers = Buffers::default();
        let is_same = region.flags & FLAG_SAME != 0;
        self.each_target(
            rank,
            region,
            (into, is_same),
            &mut |reader, source, target, may_wait| {
                // The other ranks of the node want the same; from memory each copies it once.
                if is_same && source.held.is_none() {
                    let put = &mut |at: usize, bytes: &[u8]| {
                        fill_span(target.sub(at, bytes.len()), bytes);
                        Ok(())
                    };
                    let all = || shared::all(source.extent.len_bytes);
                    let how = (&all as &dyn Fn() -> _, may_wait);
                    let shared = reader.take_shared(&source, how, &mut buffers, damage, put)?;
                    if shared != Shared::No {
                        return Ok(shared == Shared::Taken);
                    }
                }
                reader.of_any_copy(source, damage, &mut |source| {
                    (source.read(target, &mut buffers), true)
                })?;
                Ok(true)
            },
        )
    }

    /// Takes an extent that another rank of the node has read and verified, or reads it for all.
    fn take_shared(
        &self,
        source: &Source<'_>,
        (wanted, may_wait): (&dyn Fn() -> Vec<Range<u64>>, bool),
        buffers: &mut Buffers,
        damage: &mut dyn FnMut(&Error),
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<Shared> {
        let Some(shared) = &self.shared else {
            return Ok(Shared::No);
        };
        let extent = shared::Extent {
            key: key(&self.digest, source.rank, &source.region.name, source.at),
            crc: (!source.encrypted).then_some(source.extent.crc_plain),
            len_bytes: as_usize(source.extent.len_bytes)?,
            wanted,
        };
        let mut read = |memory, blocks: &mut Blocks| {
            self.of_any_copy(source.clone(), damage, &mut |source| {
                (source.read_in_blocks(memory, buffers, blocks), true)
            })
        };
        shared.take(extent, may_wait, &mut read, put)
    }

    /// As [`Reader::stream_region`], but damaged bytes are read from any other copy in the places;
    /// `damage` is called with what was bad where another copy was good.
    ///
    /// # Errors
    /// As [`Reader::stream_region`], if no copy is good.
    pub fn stream_region_of_any_copy(
        &self,
        rank: Rank,
        region: &RegionRecord,
        damage: &mut dyn FnMut(&Error),
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.take_from_any_copy((rank, region), &mut Stream(sink), damage)
    }

    /// Verifies what [`Reader::read_region_of_any_copy`] would read, and keeps nothing of it.
    ///
    /// # Errors
    /// As [`Reader::read_region`], if no copy is good.
    pub(crate) fn prove_region_of_any_copy(
        &self,
        rank: Rank,
        region: &RegionRecord,
        damage: &mut dyn FnMut(&Error),
    ) -> Result<()> {
        adds_up(rank, region)?;
        let is_same = region.flags & FLAG_SAME != 0;
        self.take_from_any_copy((rank, region), &mut Nowhere(is_same), damage)
    }

    /// Reads the extents that hold wanted bytes of a region; the others are not read.
    ///
    /// # Errors
    /// As [`Reader::stream_region`], if no copy is good.
    pub(crate) fn take_from_any_copy(
        &self,
        (rank, region): (Rank, &RegionRecord),
        taken: &mut dyn Wanted,
        damage: &mut dyn FnMut(&Error),
    ) -> Result<()> {
        let mut buffers = Buffers::default();
        let taken = RefCell::new(taken);
        let wanted = |bytes| taken.borrow().wants(bytes);
        let how: (&dyn Fn(_) -> bool, _) = (&wanted, taken.borrow().in_any_order());
        self.each_source(rank, region, how, &mut |reader, source, may_wait| {
            let mut taken = taken.borrow_mut();
            let bytes = source.at..source.at + source.extent.len_bytes;
            if let Some(memory) = taken.memory(bytes) {
                reader.of_any_copy(source, damage, &mut |source| {
                    (source.read(memory, &mut buffers), true)
                })?;
                return Ok(true);
            }
            if taken.in_any_order() && source.held.is_none() {
                let at = source.at;
                let taken = RefCell::new(&mut *taken);
                let runs = || taken.borrow().runs(at..at + source.extent.len_bytes);
                let how = (&runs as &dyn Fn() -> _, may_wait);
                let put = &mut |more: usize, bytes: &[u8]| {
                    taken.borrow_mut().put(at + more as u64, bytes)
                };
                let shared = reader.take_shared(&source, how, &mut buffers, damage, put)?;
                if shared != Shared::No {
                    return Ok(shared == Shared::Taken);
                }
            }
            let (mut done, mut refused) = (0, false);
            reader.of_any_copy(source, damage, &mut |source| {
                let read = source.stream(&mut buffers, &mut |at, bytes| {
                    let end = at + bytes.len() as u64;
                    let new = done.max(at).min(end);
                    done = done.max(end);
                    let put = taken.put(new, bytes.get((new - at) as usize..).unwrap_or_default());
                    refused |= put.is_err();
                    put
                });
                // Another copy does not help if the bytes are refused.
                (read, !refused)
            })?;
            Ok(true)
        })
    }

    /// Does `work` with one copy of the extent after the other until one is good. Also returns
    /// whether another copy may help.
    fn of_any_copy(
        &self,
        mut source: Source<'_>,
        damage: &mut dyn FnMut(&Error),
        work: &mut dyn FnMut(&Source<'_>) -> (Result<()>, bool),
    ) -> Result<()> {
        let first = match work(&source) {
            (Err(error), true) if !off(Switch::OtherPlace) => error,
            (done, _) => return done,
        };
        let name = match &source.extent.container {
            Some(name) => name,
            None => match self.manifest.stores.get(usize::from(source.extent.store)) {
                Some(name) => name,
                None => return Err(first),
            },
        };
        let read = source.file().name();
        for file in self.other_copies(name) {
            if file.name() == read {
                continue;
            }
            source.file = Stored::Other(file);
            match work(&source) {
                (Ok(()), _) => {
                    damage(&first);
                    return Ok(());
                }
                (Err(error), false) => return Err(error),
                (Err(_), true) => {}
            }
        }
        Err(first)
    }

    /// The files of this name in all places, opened once.
    fn other_copies(&self, name: &str) -> Vec<Arc<dyn File>> {
        let mut known = (self.other_copies.lock()).unwrap_or_else(PoisonError::into_inner);
        let open = || -> Vec<Arc<dyn File>> {
            let there = self.places.iter().filter_map(|dir| dir.open(name).ok());
            there.map(Arc::from).collect()
        };
        known.entry(name.to_owned()).or_insert_with(open).clone()
    }
}

/// The message about damage when another copy is good, so that no older step is needed.
#[must_use]
pub fn beside_a_good_copy(damage: &str) -> String {
    let what = without_next(damage);
    let next = match damage.contains(WHO_CAN_WRITE) {
        true => WHO_CAN_WRITE,
        false => "have the storage checked",
    };
    format!("{what}; another copy is good. Next: {next}")
}

/// The error for a container that is in none of these places.
pub(crate) fn nowhere(
    places: &[Arc<dyn Dir>],
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Error {
    let text = format!(
        "container {} of step {} ({}, {} bytes) is in none of these places: {}",
        container.file,
        commit.step,
        homes(commit, container),
        container.len_bytes,
        listed(places)
    );
    let text = match Rebuilt::why_not(places, &container.file) {
        Some(why) => format!("{text}; {}", why.what()),
        None => text,
    };
    match not_given(places, commit, container) {
        // Breaks if: it counts as lost; a user who forgot one of two directories would give up good
        // checkpoints.
        Some(home) => Error::not_found(format!(
            "{text}; it was written to {home}, which is none of them"
        ))
        .with(Detail::NotGiven)
        .next(format!("give {home} too")),
        None => {
            Error::not_found(text).next("give the directory that holds it, or use an older step")
        }
    }
}

/// The directory to which a container was written, if it is none of these and there were more than
/// these.
fn not_given<'a>(
    places: &[Arc<dyn Dir>],
    commit: &'a CommitRecord,
    container: &ContainerRef,
) -> Option<&'a str> {
    // Paths may have changed since then: if as many are given as there were, these are all of them.
    if commit.level != Level::Global || places.len() >= commit.servers.len() {
        return None;
    }
    let root = shown(commit.servers.get(container.server.index())?);
    let inside = Path::new(root).join(commit.job.as_str());
    let is_here = |dir: &Arc<dyn Dir>| dir.path() == inside || dir.path() == Path::new(root);
    (!places.iter().any(is_here)).then_some(root)
}

/// The nodes that had a container, as in `node 1 'n1', copies on n0, n3`.
#[must_use]
pub fn homes(commit: &CommitRecord, container: &ContainerRef) -> String {
    let name = |node: NodeId| commit.nodes.get(node.index()).map_or("?", String::as_str);
    let mut text = format!("node {} '{}'", container.node, name(container.node));
    let holders: Vec<&str> = container.holders.iter().map(|&node| name(node)).collect();
    if !holders.is_empty() {
        text += &format!(", copies on {}", holders.join(", "));
    }
    if let Some(group) = commit.group_of(container.node) {
        let others = group.nodes.iter().filter(|&&node| node != container.node);
        let others: Vec<&str> = others.map(|&node| name(node)).collect();
        text += &format!(", parity on {}", others.join(", "));
    }
    text
}
