//! Lends memory to a checkpoint instead of copying it, and allocates memory of the pool.
//!
//! `lend` announces a region for the next checkpoint. This rank's own CP-thread then copies private
//! memory while the program continues; memory from `alloc` is written in place. `lent_done` reports
//! when the program may write to it again.
//!
//! Invariants:
//! 1. Lent memory belongs to the program again exactly when `lent_done` reports it; until then its
//!    region is neither moved nor forgotten, nor its pool memory freed.
//! 2. Pool memory is freed only when no region lies in it: the next user of the chunks never sees
//!    them read or written as somebody else's state.
//! 3. `alloc` leaves the node enough chunks for snapshots to pass through.
//!
//! Survives: a staging that fails (`lent_done` returns its error); the end of the engine (the
//! memory belongs to the program again). Not here: the copy (`engine::capture`), the thread
//! (`stager.rs`).

use crate::session::{Lent, Session};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, Step};
use orcheck_io::memory::Span;
use std::time::Duration;

/// Number of chunks that `alloc` leaves for snapshots: one to fill, one to write.
const LEFT_CHUNKS: u32 = 2;

impl Session {
    /// Allocates memory of the node's pool, which is lent without any copy. Local.
    ///
    /// # Errors
    /// NoSpace if the pool has no such run of chunks, or too few would be left.
    pub fn alloc(&mut self, len_bytes: u64) -> Result<Span> {
        let shape = self.link.pool.shape();
        let chunk_bytes = u64::from(shape.chunk_bytes);
        let chunks = u32::try_from(len_bytes.div_ceil(chunk_bytes).max(1)).map_err(|_| {
            Error::no_space(format!("{len_bytes} bytes are more than any pool holds"))
        })?;
        let refused = |why: &str| {
            Error::no_space(format!(
                "the pool of {} chunks of {chunk_bytes} bytes has no {chunks} neighbouring ones \
                 for {len_bytes} bytes: {why}",
                shape.chunk_count
            ))
            .next("raise `pool`, or free pool memory first")
        };
        if !self
            .index()
            .reserve(chunks, shape.chunk_count.saturating_sub(LEFT_CHUNKS))
        {
            return Err(refused(&format!("{LEFT_CHUNKS} stay for snapshots")));
        }
        self.release_kept_snapshots(0);
        let first = self
            .link
            .pool
            .take_run(chunks)
            .ok_or_else(|| refused(&format!("{} are free", self.link.pool.free_chunks())));
        let first = first.inspect_err(|_| self.index().unreserve(chunks))?;
        if let Err(error) = self.link.pool.populate(first, chunks) {
            self.give_back(first, chunks);
            return Err(error);
        }
        let span = self
            .link
            .pool
            .run_span(first, chunks)
            .sub(0, len_bytes as usize);
        self.memory
            .allocations
            .insert(span.address(), (first, chunks));
        Ok(span)
    }

    pub(crate) fn give_back(&self, first: u32, chunks: u32) {
        self.link.pool.give_run(first, chunks);
        self.index().unreserve(chunks);
    }

    /// Frees pool memory. Local.
    ///
    /// # Errors
    /// Invalid for an address that is not from `alloc`, or while a region lies there; Unavailable
    /// while that region is lent.
    pub fn free(&mut self, address: usize) -> Result<()> {
        let Some(&(first, chunks)) = self.memory.allocations.get(&address) else {
            return Err(Error::invalid(format!(
                "{address:#x} was not given by alloc, or was freed already"
            )));
        };
        let run = self.link.pool.run_span(first, chunks);
        if let Some(name) = self.memory.regions.inside(run).cloned()
            && !off(Switch::FreeInUse)
        {
            if !self.lent_is_back(&name, Duration::ZERO)? {
                return Err(Error::unavailable(format!("region '{name}' is still lent"))
                    .next("wait with lent_done before freeing pool memory"));
            }
            return Err(
                Error::invalid(format!("region '{name}' lies in this pool memory"))
                    .next("unprotect it, or protect it elsewhere, before freeing"),
            );
        }
        self.memory.allocations.remove(&address);
        self.give_back(first, chunks);
        Ok(())
    }

    /// Lends this region to the next checkpoint: there is no copy while the program waits. Local.
    ///
    /// # Errors
    /// NotFound; Unsupported for anything but flat memory; Unavailable while it is still lent.
    pub fn lend(&mut self, name: &str) -> Result<()> {
        self.memory.regions.get(name)?.check_lendable(name)?;
        if !self.lent_is_back(name, Duration::ZERO)? {
            return Err(Error::unavailable(format!(
                "region '{name}' is still lent to the last checkpoint"
            ))
            .next("wait with lent_done"));
        }
        self.memory.lent.insert(name.to_owned(), Lent::Announced);
        Ok(())
    }

    /// Waits until lent memory may be written again; a timeout of 0 polls. Local.
    ///
    /// # Errors
    /// Unavailable while it is still lent; the staging's own error if it failed.
    pub fn lent_done(&mut self, name: &str, timeout: Duration) -> Result<()> {
        self.memory.regions.get(name)?;
        if self.lent_is_back(name, timeout)? {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "region '{name}' is still lent after {:.3} s",
            timeout.as_secs_f64()
        ))
        .next("wait longer; do not write to it yet"))
    }

    pub(crate) fn lent_is_back(&mut self, name: &str, timeout: Duration) -> Result<bool> {
        let back = match self.memory.lent.get(name) {
            None => return Ok(true),
            Some(Lent::Announced) => return Ok(true),
            Some(Lent::Streamed(step)) => match &self.memory.stager {
                Some(stager) => stager.wait(*step, timeout),
                None => Ok(true),
            },
            Some(Lent::Borrowed(step)) => self.borrowed_is_back(*step, timeout),
        };
        if !matches!(back, Ok(false)) {
            self.memory.lent.remove(name);
        }
        back
    }

    /// Whether the checkpoint of `step` is done with the memory of the pool that it borrowed.
    ///
    /// # Errors
    /// That of a staging that failed: the CP-thread reads no more of it.
    pub(crate) fn borrowed_is_back(&self, step: Step, timeout: Duration) -> Result<bool> {
        if let Some(stager) = &self.memory.stager {
            stager.wait(step, Duration::ZERO)?;
        }
        Ok(self.is_read_no_more(step, timeout))
    }

    /// Whether the checkpoint of `step` reads nothing in the pool any more.
    pub(crate) fn is_read_no_more(&self, step: Step, timeout: Duration) -> bool {
        let (index, patience) = (self.index(), &self.link.patience);
        let waited = patience.wait(timeout, |slice| {
            match index.wait_done(self.local, step, slice) {
                true => Ok(()),
                false => Err(Error::unavailable("not yet")),
            }
        });
        // With the engine gone, nobody reads it any more.
        waited.is_ok() || patience.check().is_err()
    }
}
