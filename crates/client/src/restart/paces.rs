//! Continues the paces of levels where the run before left them.
//!
//! A level's pace may be longer than a run lives, and each of its checkpoints may be cut off by the
//! end of a run. Rank 0 therefore looks up the newest checkpoint of each level. It is enough that
//! one rank knows: what is due is agreed on.
//!
//! Not here: when a level is due (`trigger`).

use crate::session::Session;
use orcheck_engine::directory::Catalog;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Rank, Step};
use std::time::Duration;

/// Age of a checkpoint that a level never had, or whose time is in the future, because a clock is
/// wrong: the level is due at once.
const NEVER: Duration = Duration::from_secs(1_000_000_000);

impl Session {
    /// Tells the triggers step and age of each level's newest checkpoint, up to the step that the
    /// program continues from. What cannot be read starts a pace from now: the level then gets a
    /// checkpoint later, and loses none.
    pub(super) fn continue_paces(&mut self, from: Step) {
        if self.rank != Rank(0) || !self.trigger.is_paced() {
            return;
        }
        for level in self.link.places.levels() {
            if let Some(newest) = self.newest_recorded(level, from) {
                self.trigger.continue_from(level, newest, from);
            }
        }
    }

    fn newest_recorded(&self, level: Level, from: Step) -> Option<(Step, Duration)> {
        let places = &self.link.places;
        let dirs = places.of_level(level);
        let catalog = Catalog::scan_trusting(&self.job, &dirs, &places.trust).ok()?;
        let mut there = catalog.commits().iter().map(|commit| &commit.record);
        let newest = there.find(|record| record.level == level && record.step <= from);
        let Some(newest) = newest else {
            return Some((Step(0), NEVER));
        };
        let now_ms = self.environment.clock.unix_ms();
        let age_ms = now_ms.checked_sub(newest.created_unix_ms);
        // Breaks if: it counts as taken just now; where the clock is behind, the level would wait
        // for a whole interval in every run.
        let unknown = match off(Switch::FutureIsDue) {
            true => Duration::ZERO,
            false => NEVER,
        };
        Some((newest.step, age_ms.map_or(unknown, Duration::from_millis)))
    }
}
