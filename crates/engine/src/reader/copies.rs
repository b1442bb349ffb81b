//! The same container in several directories: at level `peers` the owner's and its replicas.
//!
//! How: copies are the same byte for byte, so an extent that is damaged in one is looked for at the same offset in the
//! next one of that name. Its checksum, of a manifest that is proven, says whether that one is good.
//!
//! Invariants: those of `reader.rs`; what the sink gets it gets once.
//!
//! Not here: restarting from another copy (`restore.rs`).

use std::sync::Arc;

use orcheck_format::error::without_next;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{CommitRecord, ContainerRef, Error, ErrorKind, Extent, RegionRecord, Result};
use orcheck_io::Dir;

use super::source::{Buffers, Source, Stored};
use super::{Reader, listed};

impl Reader {
    /// The copy of a container in this one directory; stripes and what it refers to may be in any of `places`. `None`
    /// where there is none.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub(crate) fn open_in(
        dir: &dyn Dir,
        places: &[Arc<dyn Dir>],
        commit: &CommitRecord,
        container: &ContainerRef,
    ) -> Result<Option<Reader>> {
        match dir.open(&container.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(file) => Self::prove(places, commit, container, file),
        }
    }

    /// As [`Reader::stream_region`], but what is damaged here is read from any other copy in the places; `damage` hears
    /// what was bad where another copy was good.
    ///
    /// # Errors
    /// As [`Reader::stream_region`], when no copy is good.
    pub fn stream_region_of_any_copy(
        &self,
        rank: u32,
        region: &RegionRecord,
        damage: &mut dyn FnMut(&Error),
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.with_owner(rank, region, |reader, rank, region| {
            let mut buffers = Buffers::default();
            let mut at = 0;
            for extent in &region.extents {
                let source = reader.source(rank, region, at, extent)?;
                reader.stream_extent(source, extent, &mut buffers, damage, sink)?;
                at += extent.len_bytes;
            }
            Ok(())
        })
    }

    fn stream_extent(
        &self,
        mut source: Source<'_>,
        extent: &Extent,
        buffers: &mut Buffers,
        damage: &mut dyn FnMut(&Error),
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut done, refused) = (0, std::cell::Cell::new(false));
        let mut once = |at: u64, bytes: &[u8]| {
            let end = at + bytes.len() as u64;
            let new = done.max(at).min(end);
            done = done.max(end);
            let taken = sink(new, &bytes[(new - at) as usize..]);
            refused.set(refused.get() || taken.is_err());
            taken
        };
        let Err(first) = source.stream(buffers, &mut once) else {
            return Ok(());
        };
        let name = match &extent.container {
            Some(name) => name,
            None => &self.manifest.stores[usize::from(extent.store)],
        };
        let read = source.file().name();
        for dir in &self.places {
            // What the sink refuses no other copy mends.
            if refused.get() {
                break;
            }
            if dir.path().join(name).display().to_string() == read || off(Switch::OtherPlace) {
                continue;
            }
            let Ok(file) = dir.open(name) else { continue };
            source.file = Stored::Other(Arc::from(file));
            if source.stream(buffers, &mut once).is_ok() {
                damage(&first);
                return Ok(());
            }
        }
        Err(first)
    }
}

/// What to say of damage where another copy is good: that no older step is needed.
#[must_use]
pub fn beside_a_good_copy(damage: &str) -> String {
    let what = without_next(damage);
    format!("{what}; another copy is good. Next: have the storage checked")
}

/// What to say of a container that is in none of these places.
pub(crate) fn nowhere(
    places: &[Arc<dyn Dir>],
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Error {
    Error::not_found(format!(
        "container {} of step {} ({}, {} bytes) is in none of these places: {}",
        container.file,
        commit.step,
        homes(commit, container),
        container.len_bytes,
        listed(places)
    ))
    .next("give the directory that holds it, or use an older step")
}

/// The nodes that had a container: `node 1 'n1', copies on n0, n3`.
#[must_use]
pub fn homes(commit: &CommitRecord, container: &ContainerRef) -> String {
    let name = |node: u32| commit.nodes.get(node as usize).map_or("?", String::as_str);
    let mut text = format!("node {} '{}'", container.node, name(container.node));
    let holders: Vec<&str> = container.holders.iter().map(|&node| name(node)).collect();
    if !holders.is_empty() {
        text += &format!(", copies on {}", holders.join(", "));
    }
    text
}
