//! Waits for the engine of the node: for a long time, but never for an engine that is gone.
//!
//! A wait is cut into slices. Between two slices the waiter checks whether the session is ending,
//! whether the engine has reported its end, and whether the engine still holds the lock that it
//! holds while alive. A killed process reports nothing, but the kernel releases its locks.
//!
//! Invariants:
//! 1. A wait ends at its deadline, or within two slices after the engine is gone.
//! 2. A rank that finds the engine gone tells the other ranks of the node.
//!
//! Not here: what to wait for.

use crate::node::index::{ENGINE_ALIVE, Index, IndexShape};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_pool::{Gates, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time between two looks.
const SLICE: Duration = Duration::from_millis(200);

/// What a waiting rank checks.
#[derive(Clone)]
pub struct Patience {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// The node's locks.
    pub gates: Arc<Gates>,
    /// Set when this rank's session ends.
    pub stop: Arc<AtomicBool>,
}

impl Patience {
    /// Repeats `attempt`, each time with the longest time that it may wait, until it returns
    /// anything but Unavailable or `timeout` is over.
    ///
    /// # Errors
    /// The last attempt's error; Unavailable if nobody is left to wait for.
    pub fn wait<T>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut(Duration) -> Result<T>,
    ) -> Result<T> {
        let mut left = if off(Switch::PatienceEnds) {
            timeout.saturating_mul(300)
        } else {
            timeout
        };
        loop {
            let slice = left.min(SLICE);
            match attempt(slice) {
                Err(error) if error.kind() == ErrorKind::Unavailable && left > slice => {
                    left -= slice;
                    self.check()?;
                }
                // The attempt knows only about its last slice.
                Err(error) if error.kind() == ErrorKind::Unavailable && timeout > slice => {
                    return Err(error.at(format!("after {:.1} s", timeout.as_secs_f64())));
                }
                done => return done,
            }
        }
    }

    /// Checks that there still is an engine to wait for.
    ///
    /// # Errors
    /// Unavailable, naming what has ended.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Acquire) {
            return Err(Error::unavailable("the session ends"));
        }
        let index = Index::new(&self.pool, self.shape);
        if !off(Switch::EngineAlive) && !index.is_gone() && !self.gates.is_held(ENGINE_ALIVE)? {
            index.set_gone();
        }
        if index.is_gone() {
            return Err(
                Error::unavailable("the checkpoint engine of this node ended")
                    .next("with agents, take the next checkpoint, which continues with others; without, restart the program from the last committed checkpoint"),
            );
        }
        Ok(())
    }
}
