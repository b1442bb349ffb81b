//! Holds what a session gets from outside, so that tests can replace it.

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use std::sync::Arc;

/// What a session gets from outside, so that tests can replace it.
#[derive(Clone)]
pub struct Environment {
    /// Failpoints; absent in production.
    pub failpoints: Failpoints,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            failpoints: Failpoints::none(),
            clock: Arc::new(SystemClock),
        }
    }
}
