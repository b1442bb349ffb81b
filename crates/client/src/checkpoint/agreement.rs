//! Implements the agreement of the ranks before they stage a checkpoint, in one message.
//!
//! Invariants:
//! 1. All ranks learn the same: whether the steps, the regions flagged SAME and the lists are
//!    equal, and whether any rank has to wait, wants to stop, wants a loss returned, or has lost
//!    its agent. A checkpoint goes to as many levels as the rank wants that wants most.
//! 2. The message is one row of numbers, so the agreement costs one reduction, whatever the ranks
//!    agree on.
//!
//! Not here: the reduction (`collective`), what follows from it (`take.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, Step};

/// What a rank offers before a checkpoint. It travels as a row of numbers, and all ranks learn the
/// minimum of each. A number and its complement show whether all ranks gave the same number; a
/// negated flag shows whether any rank set it.
pub(crate) struct Offer {
    pub(crate) step: Step,
    /// Checksum of the regions that must be equal on all ranks.
    pub(crate) same: u64,
    /// Whether an earlier checkpoint blocks this one; see `backlog.rs`.
    pub(crate) blocked: bool,
    pub(crate) stop: bool,
    /// Negative if this rank wants a loss returned.
    pub(crate) owes: i64,
    pub(crate) agent_ended: bool,
    /// The number of levels, from the weakest, that this rank wants the checkpoint to go to.
    pub(crate) depth: usize,
}

/// Number of values in an [`Offer`].
const OFFER_LEN: usize = 9;

impl Offer {
    pub(crate) fn encode(&self) -> [i64; OFFER_LEN] {
        [
            self.step.0 as i64,
            !(self.step.0 as i64),
            self.same as i64,
            !(self.same as i64),
            -i64::from(self.blocked),
            -i64::from(self.stop),
            self.owes,
            -i64::from(self.agent_ended),
            -(self.depth as i64),
        ]
    }
}

/// The minimum of each number over the offers of all ranks.
pub(crate) struct Minima(pub(crate) [i64; OFFER_LEN]);

impl Minima {
    pub(crate) fn any_agent_ended(&self) -> bool {
        self.0[7] != 0
    }

    /// What the ranks have agreed on.
    ///
    /// # Errors
    /// Invalid if they offered different steps, different contents of regions flagged SAME, or
    /// different lists.
    pub(crate) fn agreed(self) -> Result<Agreed> {
        let [
            step,
            not_step,
            same,
            not_same,
            blocked,
            stop,
            owes,
            _,
            depth,
        ] = self.0;
        if step != !not_step && !off(Switch::SameStep) {
            return Err(Error::invalid(format!(
                "the ranks checkpoint different steps, from {} to {}",
                step as u64, !not_step as u64
            )));
        }
        if same != !not_same && !off(Switch::SameRegions) {
            return Err(Error::invalid(
                "regions flagged SAME differ between ranks, or not all ranks protect the same lists",
            )
            .next("drop the flag, or make them equal before the checkpoint; protect each list on all ranks, with 0 items where there are none"));
        }
        Ok(Agreed {
            blocked: blocked != 0,
            stop: stop != 0,
            owes,
            depth: depth.unsigned_abs() as usize,
        })
    }
}

/// What all ranks know before they stage.
pub(crate) struct Agreed {
    /// On some rank, an earlier checkpoint blocks this one.
    pub(crate) blocked: bool,
    /// This is the last checkpoint.
    pub(crate) stop: bool,
    /// Negative if some rank wants a loss returned.
    pub(crate) owes: i64,
    /// The number of levels, from the weakest, that the checkpoint goes to.
    pub(crate) depth: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;

    fn offer(step: Step, same: u64) -> Offer {
        Offer {
            step,
            same,
            blocked: false,
            stop: false,
            owes: 0,
            agent_ended: false,
            depth: 1,
        }
    }

    /// The minima of these offers.
    fn least(offers: &[Offer]) -> Minima {
        let rows = offers.iter().map(Offer::encode);
        let least =
            |a: [i64; OFFER_LEN], b: [i64; OFFER_LEN]| std::array::from_fn(|i| a[i].min(b[i]));
        Minima(rows.reduce(least).expect("no offer"))
    }

    #[test]
    fn equal_offers_are_agreed_on_whatever_their_numbers() {
        for (step, same) in [(0, 0), (7, u64::MAX), (i64::MAX as u64, 1 << 63)] {
            let agreed = least(&[offer(Step(step), same), offer(Step(step), same)])
                .agreed()
                .unwrap();
            assert!(!agreed.blocked && !agreed.stop && agreed.owes == 0);
        }
    }

    #[test]
    fn what_one_rank_says_all_ranks_learn() {
        let one = Offer {
            blocked: true,
            stop: true,
            owes: -1,
            depth: 2,
            ..offer(Step(3), 9)
        };
        let agreed = least(&[offer(Step(3), 9), one]).agreed().unwrap();
        assert!(agreed.blocked && agreed.stop && agreed.owes == -1);
        assert_eq!(agreed.depth, 2);
        let ended = Offer {
            agent_ended: true,
            ..offer(Step(3), 9)
        };
        assert!(least(&[ended, offer(Step(3), 9)]).any_agent_ended());
    }

    #[test]
    fn different_steps_and_different_contents_are_refused() {
        let steps = least(&[offer(Step(5), 0), offer(Step(9), 0)]).agreed();
        let error = steps.err().expect("different steps were agreed on");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("from 5 to 9"), "{error}");
        // The upper half of the checksums is negative in a row.
        let same = least(&[offer(Step(5), 1), offer(Step(5), u64::MAX)]).agreed();
        let error = same.err().expect("different contents were agreed on");
        assert!(error.message().contains("SAME"), "{error}");
    }
}
