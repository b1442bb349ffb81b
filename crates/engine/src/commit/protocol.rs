//! Implements the commit protocol as two pure state machines, one for a node and one for the lead.
//!
//! ```text
//! writer ──Durable──▶ node ──Vote──▶ lead      all nodes voted?
//!                                     ├─ level global: write the record into every directory
//!                                     ├─ level node, peers: Record ▶ nodes write copies ▶ Recorded
//!                                     └─ level process (with agents): nothing to write
//! ranks ◀──board── node ◀──Committed / Aborted── lead
//! ```
//!
//! The node is in `protocol/node.rs`, the lead in `protocol/lead.rs`.
//!
//! Invariants, which both check after every event in debug builds (`check_invariants`):
//! 1. The lead writes a commit record only after every writer of every node has reported its
//!    container durable at that level.
//! 2. Each (step, level) is decided once; later messages about it are ignored.
//! 3. A loss is final: no vote after it can commit the step at that level.
//! 4. Duplicated and reordered messages change nothing; a node that is gone aborts every step that
//!    waits for it.
//! 5. State is bounded: decisions older than `REMEMBERED` steps are forgotten, and so are votes for
//!    them.
//! 6. If the cause of a loss does not begin with [`UNDECIDED`], no commit record exists, not even a
//!    partial one.
//!
//! In large jobs there are relays between the nodes and the lead (`relay.rs`), which combine the
//! messages of several nodes into one.
//!
//! Pure: the driver (`control.rs`) delivers messages, performs actions, and supplies the time.
//! Not here: what a record contains on disk (`record.rs`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod lead;
mod node;

pub use lead::{JobFacts, LeadAction, LeadEvent, LeadState};
pub use node::{NodeAction, NodeEvent, NodeState};

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Level, Step};
use std::collections::BTreeSet;

/// Beginning of the cause of a loss that was decided when a commit record might already have been
/// written. Any copy of that record counts at a restart. The record is not removed, because a newer
/// run may have found it.
pub const UNDECIDED: &str = "its commit record may nevertheless be there";

/// The error of a loss, marked to say that its commit record may exist.
#[must_use]
pub fn undecided(error: Error) -> Error {
    // Breaks if: the mark is left out; a step from which the next run restarts counts as lost for
    // good.
    if error.is(Detail::Undecided) || off(Switch::UndecidedSaid) {
        return error;
    }
    error.at(UNDECIDED).with(Detail::Undecided)
}

/// Number of decisions that are remembered, to recognise late messages.
const REMEMBERED: usize = 4096;

/// Remembers a decision; returns false if it was known, or is so old that it counts as known.
fn remember(decided: &mut BTreeSet<(Step, Level)>, key: (Step, Level)) -> bool {
    if decided.len() >= REMEMBERED && decided.first().is_some_and(|first| key < *first) {
        return false;
    }
    let new = decided.insert(key) || off(Switch::DecidedOnce);
    while decided.len() > REMEMBERED {
        decided.pop_first();
    }
    new
}
