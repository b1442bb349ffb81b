//! The commit protocol as two pure state machines: what a node does, what the lead does.
//!
//! ```text
//! writer ──Durable──▶ node ──Vote──▶ lead      all nodes voted?
//!                                     ├─ level global: write the record into every directory
//!                                     ├─ level node, peers: Record ▶ every node writes its copy ▶ Recorded
//!                                     └─ level process (engines that outlive their ranks): nothing to write
//! ranks ◀──board── node ◀──Committed / Aborted── lead
//! ```
//!
//! The node is in `protocol/node.rs`, the lead in `protocol/lead.rs`.
//!
//! Invariants, which both check after every event in debug builds (`check_invariants`):
//! 1. A commit record is asked for only after every writer of every node reported its container
//!    durable at that level.
//! 2. A (step, level) is decided once; whatever arrives later about it is ignored.
//! 3. A loss is final: no vote after it can commit the step at that level.
//! 4. Duplicated and reordered messages change nothing; a node that is gone aborts what waits for it.
//! 5. State is bounded: decisions older than `REMEMBERED` steps are forgotten, votes for them too.
//! 6. A loss whose cause does not begin with [`UNDECIDED`] has no commit record, not even one begun.
//!
//! Between many nodes and the lead there are others (`relay.rs`), which pass on what several of them say as one message.
//!
//! Pure: the driver (`control.rs`) brings messages in, carries actions out, and passes the time.
//! Not here: what a record contains on disk (`commit.rs`).

mod lead;
mod node;

pub use lead::{JobFacts, LeadAction, LeadEvent, LeadState};
pub use node::{NodeAction, NodeEvent, NodeState};

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Level};
use std::collections::BTreeSet;

/// How the cause of a loss begins that was decided when a commit record may have been written already: any copy of it counts at
/// a restart. It is left where it is; a newer run may have found it.
pub const UNDECIDED: &str = "its commit record may nevertheless be there";

/// The same cause of a loss whose commit record may be there.
#[must_use]
pub fn undecided(error: Error) -> Error {
    // Breaks if: it is left out; a step counts as lost for good which the next run restarts from.
    if error.is(Detail::Undecided) || off(Switch::UndecidedSaid) {
        return error;
    }
    error.at(UNDECIDED).with(Detail::Undecided)
}

/// Decisions that are remembered, to recognise late messages.
const REMEMBERED: usize = 4096;

/// Remembers a decision; false if it was known (or so old that it counts as known).
fn remember(decided: &mut BTreeSet<(u64, Level)>, key: (u64, Level)) -> bool {
    if decided.len() >= REMEMBERED && decided.first().is_some_and(|first| key < *first) {
        return false;
    }
    let new = decided.insert(key) || off(Switch::DecidedOnce);
    while decided.len() > REMEMBERED {
        decided.pop_first();
    }
    new
}
