//! Removes what a run wrote of steps that it has lost, before it writes the next one.
//!
//! Where one node cannot write its part, the parts of the others are whole, and useless. Prune
//! removes them after the next commit; but if they fill the disk, there never is one.
//!
//! How: whoever writes files remembers those whose step is not decided yet, and looks at the
//! board before it writes the next one. Only the thread that is about to write there removes, so
//! that nobody else waits for a disk that hangs.
//!
//! Invariants:
//! 1. A file goes only if its step is lost for good: if a commit record may exist, it stays.
//! 2. At most [`MOST`] files are remembered; prune removes the others.
//!
//! Not here: what earlier runs left (`leftovers.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Step};
use orcheck_io::disk::Dir;
use std::collections::VecDeque;

use crate::node::Outcome;

/// Maximum number of files that are remembered: the board has as many steps.
const MOST: usize = 64;

/// Files of steps that are not decided, in one place each.
#[derive(Default)]
pub(crate) struct NotDecided<P>(VecDeque<(P, Step, String)>);

impl<P: PartialEq + Default> NotDecided<P> {
    /// Remembers a file that is whole.
    pub(crate) fn add(&mut self, place: P, step: Step, file: String) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((place, step, file));
    }

    /// Removes those in this place whose step is lost, and forgets all that are decided.
    pub(crate) fn remove_lost(
        &mut self,
        place: &P,
        dir: &dyn Dir,
        outcome: impl Fn(Step) -> Outcome,
    ) {
        self.0.retain(|(at, step, file)| {
            if at != place {
                return true;
            }
            match outcome(*step) {
                Outcome::Pending => true,
                Outcome::Committed => false,
                Outcome::Lost(error) => {
                    if !error.is(Detail::Undecided) && !off(Switch::LostGoes) {
                        // Best effort: prune removes what stays.
                        let _ = dir.remove(file);
                    }
                    false
                }
            }
        });
    }
}
