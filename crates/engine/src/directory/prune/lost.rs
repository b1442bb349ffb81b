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
//! 2. At most [`MOST`] steps are remembered, one that is in several places once for each, with as
//!    many files as there are writers; prune removes the others.
//!
//! Not here: what earlier runs left (`leftovers.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Step};
use orcheck_io::disk::Dir;
use std::collections::VecDeque;

use crate::node::Outcome;

/// Maximum number of steps that are remembered, in all places: the board has as many.
const MOST: usize = 64;

/// Files of steps that are not decided.
#[derive(Default)]
pub(crate) struct NotDecided<P>(VecDeque<Files<P>>);

/// Those of one step in one place.
struct Files<P> {
    place: P,
    step: Step,
    names: Vec<String>,
}

impl<P: PartialEq + Default> NotDecided<P> {
    /// Remembers a file that is whole.
    pub(crate) fn add(&mut self, place: P, step: Step, name: String) {
        let is_it = |files: &&mut Files<P>| files.step == step && files.place == place;
        if let Some(files) = self.0.iter_mut().find(is_it) {
            return files.names.push(name);
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        let names = vec![name];
        self.0.push_back(Files { place, step, names });
    }

    /// Removes those in this place whose step is lost, and forgets all that are decided.
    pub(crate) fn remove_lost(
        &mut self,
        place: &P,
        dir: &dyn Dir,
        outcome: impl Fn(Step) -> Outcome,
    ) {
        self.0.retain(|files| {
            if files.place != *place {
                return true;
            }
            match outcome(files.step) {
                Outcome::Pending => true,
                Outcome::Committed => false,
                Outcome::Lost(error) => {
                    if !error.is(Detail::Undecided) && !off(Switch::LostGoes) {
                        for name in &files.names {
                            // Best effort: prune removes what stays.
                            let _ = dir.remove(name);
                        }
                    }
                    false
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::Error;
    use orcheck_io::disk::Create;
    use orcheck_io::failpoints::Failpoints;
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;

    // Breaks if: only some of a step's files go; where each rank writes one, the disk stays full.
    #[test]
    fn all_files_of_a_lost_step_go_and_no_others() {
        let scratch = Scratch::new("lost-files");
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        let mut files = NotDecided::default();
        for step in 1..=3 {
            for writer in 0..100 {
                let name = format!("{step}-{writer}");
                dir.create(&name, Create::Buffered)
                    .unwrap()
                    .close()
                    .unwrap();
                files.add((), Step(step), name);
            }
        }
        let lost = || Error::no_space("full");
        files.remove_lost(&(), dir.as_ref(), |step| match step.0 {
            1 => Outcome::Lost(lost()),
            2 => Outcome::Lost(lost().with(Detail::Undecided)),
            _ => Outcome::Pending,
        });
        let left = |step: &str| {
            let listed = dir.list().unwrap();
            listed
                .iter()
                .filter(|one| one.name.starts_with(step))
                .count()
        };
        assert_eq!((left("1-"), left("2-"), left("3-")), (0, 100, 100));
        files.remove_lost(&(), dir.as_ref(), |_| Outcome::Lost(lost()));
        assert_eq!((left("2-"), left("3-")), (100, 0));
    }
}
