//! Implements locks between the processes of a node, and between threads of one process. A gate is
//! held by one of them, or shared by several.
//!
//! How: open-file-description locks on single bytes of the pool's memory file. Every attempt uses
//! its own description (the file re-opened through /proc), so that threads exclude each other as
//! processes do. A waiter sleeps on a counter in the pool that changes when a gate opens. It also
//! looks again every few milliseconds, because a killed holder changes no counter.
//!
//! Invariants
//! 1. The kernel releases a gate when its holder dies: nobody waits for a dead holder beyond one
//!    look.
//! 2. Closing other descriptors of the same file does not open a gate (with classic POSIX locks, it
//!    would).
//! 3. Every wait ends by its deadline.
//!
//! Faults survived: death of a holder or waiter at any point; a neighbour that overwrites the
//! counter (which only slows waking). A child that is forked while a gate is held releases the
//! description before it does anything else ([`orcheck_io::descriptor`]).
//!
//! Not here: the meaning of each byte (the engine).

use crate::pool::{Mapping, Pool};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::descriptor::Living;
use orcheck_io::disk::{ofd_is_locked, ofd_lock, ofd_share, ofd_unlock_all, reopen};
use orcheck_io::errno::{os_error, rustix_error};
use orcheck_io::sync::{Ordering, point, wait, wake};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a waiter sleeps before it checks whether a holder has died.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The gates of a pool; one for each byte number below 2^63.
pub struct Gates {
    file: OwnedFd,
    map: Arc<Mapping>,
}

/// A held gate, or a share in it; dropping it opens the gate.
#[must_use = "a gate that is dropped is open again"]
pub struct Gate {
    byte: u64,
    holder: Living,
    map: Arc<Mapping>,
}

impl Gates {
    /// The gates of this pool.
    pub fn open(pool: &Pool) -> Result<Gates> {
        let file = reopen(&pool.map.file).map_err(|errno| {
            let error = rustix_error(errno, "open the pool's memory again for its locks");
            // Breaks if: it is advised to a process that may open no more files.
            match errno {
                Errno::NOENT => error.next("mount /proc, which the locks of a node need"),
                _ => error,
            }
        })?;
        Ok(Gates {
            file,
            map: Arc::clone(&pool.map),
        })
    }

    /// Locks the gate `byte`, waiting at most `timeout` for its present holders. `Unavailable` at
    /// the deadline.
    pub fn lock(&self, byte: u64, timeout: Duration) -> Result<Gate> {
        self.wait_for(byte, timeout, Gate::close)
    }

    /// As [`Self::lock`], but others may share the gate, and nobody holds it alone.
    pub fn share(&self, byte: u64, timeout: Duration) -> Result<Gate> {
        self.wait_for(byte, timeout, Gate::join)
    }

    fn wait_for(
        &self,
        byte: u64,
        timeout: Duration,
        enter: fn(&Gate) -> Result<bool>,
    ) -> Result<Gate> {
        let longest = if off(Switch::GateDeadline) {
            timeout.saturating_mul(300)
        } else {
            timeout
        };
        let deadline = Deadline::after(longest);
        let gate = self.gate(byte)?;
        let (opened, waiters) = self.map.gate_words();
        loop {
            if enter(&gate)? {
                return Ok(gate);
            }
            waiters.fetch_add(1, Ordering::SeqCst);
            let seen = opened.load(Ordering::SeqCst);
            let entered = enter(&gate);
            if matches!(entered, Ok(false)) {
                let longest = if off(Switch::DeadHolder) {
                    deadline.left()
                } else {
                    deadline.left().min(LOOK_AGAIN)
                };
                wait(opened, seen, longest);
            }
            waiters.fetch_sub(1, Ordering::SeqCst);
            if entered? {
                return Ok(gate);
            }
            if deadline.passed() {
                if enter(&gate)? {
                    return Ok(gate);
                }
                return Err(Error::unavailable(format!(
                    "gate {byte}: still held by another process or thread after {} s",
                    timeout.as_secs_f64()
                ))
                .next("look for a rank that hangs or is stopped"));
            }
        }
    }

    /// Locks the gate if nobody holds it.
    pub fn try_lock(&self, byte: u64) -> Result<Option<Gate>> {
        let gate = self.gate(byte)?;
        Ok(if gate.close()? { Some(gate) } else { None })
    }

    /// As [`Self::share`], if nobody holds the gate alone.
    pub fn try_share(&self, byte: u64) -> Result<Option<Gate>> {
        let gate = self.gate(byte)?;
        Ok(if gate.join()? { Some(gate) } else { None })
    }

    /// Whether somebody holds the gate.
    pub fn is_held(&self, byte: u64) -> Result<bool> {
        point();
        ofd_is_locked(&self.file, byte)
            .map_err(|errno| os_error(errno, format_args!("look at gate {byte}")))
    }

    /// An open gate: a description of the file that holds no lock yet.
    fn gate(&self, byte: u64) -> Result<Gate> {
        let holder = reopen(&self.file)
            .map_err(|errno| rustix_error(errno, "open the pool's memory again for a lock"))?;
        Ok(Gate {
            byte,
            holder: Living::new(holder),
            map: Arc::clone(&self.map),
        })
    }
}

impl Gate {
    /// Lets others share a gate that was held alone. Nobody else can hold it alone meanwhile.
    pub fn let_in(&self) -> Result<()> {
        self.join()?;
        self.tell();
        Ok(())
    }

    fn close(&self) -> Result<bool> {
        point();
        let byte = self.byte;
        ofd_lock(&self.holder, byte)
            .map_err(|errno| os_error(errno, format_args!("lock gate {byte}")))
    }

    fn join(&self) -> Result<bool> {
        point();
        let byte = self.byte;
        ofd_share(&self.holder, byte)
            .map_err(|errno| os_error(errno, format_args!("share gate {byte}")))
    }

    /// Wakes those who wait for a gate.
    fn tell(&self) {
        let (opened, waiters) = self.map.gate_words();
        opened.fetch_add(1, Ordering::SeqCst);
        if waiters.load(Ordering::SeqCst) > 0 {
            wake(opened, u32::MAX);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        point();
        let _ = ofd_unlock_all(&self.holder);
        self.tell();
    }
}
