//! Defines the collective operations that a program supplies, and the one-rank case.
//!
//! Invariant: implementations are called only on the thread that calls the session, inside
//! collective calls, in the same order on all ranks; MPI_THREAD_FUNNELED suffices.

use orcheck_format::{Rank, Result};

/// What Orcheck needs from the program's parallel environment.
pub trait Collective: Send {
    /// This rank.
    fn rank(&self) -> Rank;
    /// Ranks in the job.
    fn size(&self) -> u32;
    /// `buf` of `root` reaches all ranks; its length is the same everywhere.
    ///
    /// # Errors
    /// The error of the environment; the session is unusable afterwards.
    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()>;
    /// `root` gets the `mine` of all ranks (of equal lengths) in rank order, others `None`.
    ///
    /// # Errors
    /// As [`Self::bcast`].
    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>>;
    /// Element-wise minimum over all ranks, on all ranks.
    ///
    /// # Errors
    /// As [`Self::bcast`].
    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()>;
}

/// A program with one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn size(&self) -> u32 {
        1
    }

    fn bcast(&mut self, _buf: &mut [u8], _root: u32) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, mine: &[u8], _root: u32) -> Result<Option<Vec<u8>>> {
        Ok(Some(mine.to_vec()))
    }

    fn allreduce_min(&mut self, _values: &mut [i64]) -> Result<()> {
        Ok(())
    }
}
