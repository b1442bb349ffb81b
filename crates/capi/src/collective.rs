//! Wraps the program's communicator as a `Collective`.
//!
//! What it does: calls the three C functions of an `orc_collective` with checked lengths.
//!
//! Invariants:
//! 1. The functions are called only on the thread that made the `[collective]` call.
//! 2. With one rank, no C function is called.
//! 3. An error names the function that failed, with what it returned.
//!
//! Faults survived: functions that fail. One that writes beyond its buffer cannot be survived.
//!
//! Not here: MPI; the user compiles `include/orcheck_mpi.h`.

use crate::convert::covers;
use crate::fault::callback;
use crate::types::orc_collective;
use orcheck_client::Collective;
use orcheck_format::{Error, Rank, Result};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Bcast = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int;
type Gather = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, c_int) -> c_int;
type AllreduceMin = unsafe extern "C" fn(*mut c_void, *mut i64, usize) -> c_int;

pub(crate) struct ProgramCollective {
    ctx: *mut c_void,
    rank: u32,
    size: u32,
    bcast: Bcast,
    gather: Gather,
    allreduce_min: AllreduceMin,
    apart: Arc<AtomicBool>,
}

// SAFETY: the context is used only inside calls of the program, on the thread that makes them;
// which thread that may be is the program's choice, as the header says.
unsafe impl Send for ProgramCollective {}

impl ProgramCollective {
    /// Checks and copies the structure.
    pub(crate) fn new(c: &orc_collective) -> Result<ProgramCollective> {
        covers::<orc_collective>(c.struct_size, "orc_collective")?;
        let (Ok(rank), Ok(size)) = (u32::try_from(c.rank), u32::try_from(c.size)) else {
            return Err(bad_rank(c));
        };
        if rank >= size {
            return Err(bad_rank(c));
        }
        let (Some(bcast), Some(gather), Some(allreduce_min)) = (c.bcast, c.gather, c.allreduce_min)
        else {
            return Err(Error::invalid(
                "bcast, gather or allreduce_min of orc_collective is NULL",
            ));
        };
        Ok(ProgramCollective {
            ctx: c.ctx,
            rank,
            size,
            bcast,
            gather,
            allreduce_min,
            apart: Arc::default(),
        })
    }

    /// Becomes true when a function has failed: no collective operation is possible after that.
    pub(crate) fn apart(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.apart)
    }

    fn root(&self, root: u32) -> Result<c_int> {
        c_int::try_from(root)
            .ok()
            .filter(|_| root < self.size)
            .ok_or_else(|| Error::internal(format!("root {root} of {} ranks", self.size)))
    }

    fn check(&self, name: &str, returned: c_int) -> Result<()> {
        if returned == 0 {
            return Ok(());
        }
        self.apart.store(true, Ordering::Relaxed);
        Err(Error::unavailable(format!(
            "{name} of the program's orc_collective returned {returned} on rank {} of {}",
            self.rank, self.size
        ))
        .next("orc_abandon the session; a rank is probably gone"))
    }
}

impl Collective for ProgramCollective {
    fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        let root = self.root(root)?;
        if self.size == 1 || buf.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffer is valid for reads and writes of its length during the call.
        let returned = callback(|| unsafe {
            (self.bcast)(self.ctx, buf.as_mut_ptr().cast(), buf.len(), root)
        });
        self.check("bcast", returned)
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let c_root = self.root(root)?;
        if self.size == 1 {
            return Ok(Some(mine.to_vec()));
        }
        let mut all = (root == self.rank)
            .then(|| {
                mine.len()
                    .checked_mul(self.size as usize)
                    .map(|len| vec![0_u8; len])
                    .ok_or_else(|| Error::internal("gather of more than memory"))
            })
            .transpose()?;
        if mine.is_empty() {
            return Ok(all);
        }
        let out = all
            .as_mut()
            .map_or(null_mut(), |all| all.as_mut_ptr().cast());
        // SAFETY: `mine` is readable for its length; `out` is NULL or has room for that of all
        // ranks.
        let returned = callback(|| unsafe {
            (self.gather)(self.ctx, mine.as_ptr().cast(), mine.len(), out, c_root)
        });
        self.check("gather", returned)?;
        Ok(all)
    }

    fn allreduce_min(&mut self, v: &mut [i64]) -> Result<()> {
        if self.size == 1 || v.is_empty() {
            return Ok(());
        }
        // SAFETY: the numbers are valid for reads and writes during the call.
        let returned =
            callback(|| unsafe { (self.allreduce_min)(self.ctx, v.as_mut_ptr(), v.len()) });
        self.check("allreduce_min", returned)
    }
}

fn bad_rank(c: &orc_collective) -> Error {
    Error::invalid(format!(
        "orc_collective says rank {} of {}, expected a rank from 0 below its size",
        c.rank, c.size
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn bcast(_: *mut c_void, _: *mut c_void, _: usize, _: c_int) -> c_int {
        15
    }
    unsafe extern "C" fn gather(
        _: *mut c_void,
        mine: *const c_void,
        len: usize,
        out: *mut c_void,
        _: c_int,
    ) -> c_int {
        for rank in 0..2 {
            // SAFETY: `out` has room for both ranks.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    mine.cast::<u8>(),
                    out.cast::<u8>().add(rank * len),
                    len,
                );
            }
        }
        0
    }
    unsafe extern "C" fn allreduce_min(_: *mut c_void, _: *mut i64, _: usize) -> c_int {
        0
    }

    fn two_ranks() -> orc_collective {
        orc_collective {
            struct_size: size_of::<orc_collective>(),
            ctx: null_mut(),
            rank: 0,
            size: 2,
            bcast: Some(bcast),
            gather: Some(gather),
            allreduce_min: Some(allreduce_min),
            release: None,
        }
    }

    #[test]
    fn a_failing_function_is_named() {
        let mut collective = ProgramCollective::new(&two_ranks()).unwrap();
        let error = collective.bcast(&mut [0; 4], 0).unwrap_err();
        assert!(
            error.message().contains("bcast") && error.message().contains("returned 15"),
            "{error}"
        );
        assert_eq!(collective.gather(b"ab", 0).unwrap(), Some(b"abab".to_vec()));
        assert!(collective.bcast(&mut [0; 4], 2).is_err());
        assert!(collective.apart().load(Ordering::Relaxed));
    }

    #[test]
    fn wrong_structures_are_refused() {
        for wrong in [
            orc_collective {
                struct_size: 8,
                ..two_ranks()
            },
            orc_collective {
                rank: 2,
                ..two_ranks()
            },
            orc_collective {
                rank: -1,
                ..two_ranks()
            },
            orc_collective {
                size: 0,
                ..two_ranks()
            },
            orc_collective {
                gather: None,
                ..two_ranks()
            },
        ] {
            assert!(ProgramCollective::new(&wrong).is_err());
        }
    }
}
