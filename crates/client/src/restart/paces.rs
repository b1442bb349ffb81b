//! Continues the paces of levels where the run before left them.
//!
//! A level's pace may be longer than a run lives. Rank 0 therefore looks up how old the newest
//! checkpoint of each level is. It is enough that one rank knows: what is due is agreed on.
//!
//! Not here: when a level is due (`trigger`).

use crate::session::Session;
use orcheck_engine::directory::Catalog;
use orcheck_format::{Level, Rank, Step};
use std::time::Duration;

/// Age of a checkpoint that a level never had: it is due at once.
const NEVER: Duration = Duration::from_secs(1_000_000_000);

impl Session {
    /// Tells the triggers how old each level's newest checkpoint is, up to the step that the
    /// program continues from. What cannot be read starts a pace from now: the level then gets a
    /// checkpoint later, and loses none.
    pub(super) fn continue_paces(&mut self, from: Step) {
        if self.rank != Rank(0) || !self.trigger.has_timed_paces() {
            return;
        }
        for level in self.link.places.levels() {
            let Some(age) = self.age_at(level, from) else {
                continue;
            };
            self.trigger.continue_from(level, age);
        }
    }

    fn age_at(&self, level: Level, from: Step) -> Option<Duration> {
        let places = &self.link.places;
        let dirs = places.of_level(level);
        let catalog = Catalog::scan_trusting(&self.job, &dirs, &places.trust).ok()?;
        let mut there = catalog.commits().iter().map(|commit| &commit.record);
        let newest = there.find(|record| record.level == level && record.step <= from);
        let Some(newest) = newest else {
            return Some(NEVER);
        };
        let now_ms = self.environment.clock.unix_ms();
        Some(Duration::from_millis(
            now_ms.saturating_sub(newest.created_unix_ms),
        ))
    }
}
