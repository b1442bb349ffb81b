//! Reads bytes that lie in other containers: in older ones of the same writer, and in those of
//! ranks that hold the same region.
//!
//! Invariants: those of `reader.rs`; a container of another job, run or writer, or one that is not
//! believed, is never mistaken for the intended one.
//!
//! Not here: which bytes these are (the manifest names them, and `reader.rs` verifies it).

use std::sync::{Arc, PoisonError};

use orcheck_format::disk::{ContainerHeader, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Rank, Result};
use orcheck_io::disk::File;

use super::{Reader, holder_of, is_more_specific, listed, read_header};
use crate::encoding::ContainerKey;

/// An older container, with its key if it has one that is known.
pub(super) type Referred = (Arc<dyn File>, Option<Arc<ContainerKey>>);

impl Reader {
    /// Finds the rank that stores the bytes of a region that several ranks hold in common, and
    /// calls `then` with it.
    pub(crate) fn with_owner(
        &self,
        rank: Rank,
        region: &RegionRecord,
        then: impl FnOnce(&Reader, Rank, &RegionRecord) -> Result<()>,
    ) -> Result<()> {
        let Some(owner) = region.same_as else {
            return then(self, rank, region);
        };
        let context = || {
            format!(
                "region {:?} of rank {rank}, stored once by rank {owner}",
                region.name
            )
        };
        let other;
        let reader = if self.rank(owner).is_some() {
            self
        } else {
            other = self
                .owner_reader(owner)
                .map_err(|error| error.at(context()))?;
            other.as_ref()
        };
        let stored = reader
            .region(owner, &region.name)
            .filter(|stored| stored.same_as.is_none() && stored.len_bytes == region.len_bytes)
            .ok_or_else(|| {
                Error::corrupt(format!(
                    "expected a region of {} bytes there, found none",
                    region.len_bytes
                ))
                .at(context())
            })?;
        then(reader, owner, stored)
    }

    fn owner_reader(&self, owner: Rank) -> Result<Arc<Reader>> {
        let holder = holder_of(&self.commit, owner)?;
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = owners.get(&holder.file) {
            return Ok(reader.clone());
        }
        let belief = self.belief.clone();
        let mut reader = Reader::open_first(&self.places, &self.commit, holder, belief)?;
        reader.share(self.shared.as_ref());
        reader.recall(self.memory.as_ref());
        let reader = Arc::new(reader);
        owners.insert(holder.file.clone(), reader.clone());
        Ok(reader)
    }

    /// Opens the older container of this name, after checking that it is the intended one and
    /// believed. The CRCs in this container's manifest verify its data.
    pub(super) fn referred(&self, name: &str) -> Result<Referred> {
        let mut referred = self.referred.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = referred.get(name) {
            return Ok(known.clone());
        }
        let expected = ContainerHeader {
            step: self.manifest.referred_step(name)?,
            ..self.header.clone()
        };
        let mut failed: Option<Error> = None;
        for dir in &self.places {
            let file = match dir.open(name) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened,
            };
            match file.and_then(|file| self.believe_referred(&expected, file)) {
                // The container of another level has the same name.
                Ok(None) => {}
                Ok(Some(found)) => {
                    if let Some(error) = failed {
                        self.pass_over(dir.as_ref(), &error);
                    }
                    referred.insert(name.to_owned(), found.clone());
                    return Ok(found);
                }
                Err(error) if off(Switch::OtherPlace) => return Err(error),
                Err(error) if is_more_specific(&error, failed.as_ref()) => failed = Some(error),
                Err(_) => {}
            }
        }
        let error = failed.unwrap_or_else(|| {
            Error::corrupt(format!(
                "container {name}, in which step {} stored bytes that have not changed since, is \
                 in none of these places: {}",
                expected.step,
                listed(&self.places)
            ))
            .next("give the directory that holds it, or use an older step")
        });
        Err(error)
    }

    /// Opens a copy of an older container, with its key; `None` for one of another level.
    fn believe_referred(
        &self,
        expected: &ContainerHeader,
        file: Box<dyn File>,
    ) -> Result<Option<Referred>> {
        let header = read_header(file.as_ref())?;
        check_older(expected, &header).map_err(|error| error.at(file.name()))?;
        if header.level != expected.level {
            return Ok(None);
        }
        let key = match &self.belief {
            Some(belief) if belief.trust.has_key() => {
                let key = belief.trust.open(&header, belief.proof);
                key.map_err(|error| error.at(file.name()))?.map(Arc::new)
            }
            _ => None,
        };
        Ok(Some((Arc::from(file), key)))
    }
}

/// Checks that a container of the expected name is of the same job, run and writer; its level is
/// not compared.
fn check_older(expected: &ContainerHeader, found: &ContainerHeader) -> Result<()> {
    let told = |header: &ContainerHeader| {
        format!(
            "job {}, step {}, epoch {}, node {}, writer {}",
            header.job.as_str(),
            header.step,
            header.epoch,
            header.node,
            header.writer
        )
    };
    let (expected, found) = (told(expected), told(found));
    // Breaks if: this always returns Ok; a container of another job could stand in for the older
    // one.
    if expected == found || off(Switch::OlderContainer) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "the header of a container that is referred to: expected {expected}; found {found}"
    ))
    .next("use an older step"))
}
