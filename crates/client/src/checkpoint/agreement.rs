//! What the ranks agree on before they stage a checkpoint, in one message.
//!
//! Invariants:
//! 1. All ranks learn the same: whether the steps and the regions flagged SAME are equal, whether a
//!    rank has to wait, ends, wants a loss returned, or lost its agent.
//! 2. It is one row of numbers, so the agreement costs one reduction, whatever is agreed on.
//!
//! Not here: the reduction (`collective`), what follows from it (`take.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};

/// What a rank says before a checkpoint. It travels as a row of numbers; all ranks learn the
/// least: a number and its complement tell whether all ranks said the same, a negated flag whether
/// any rank set it.
pub(crate) struct Offer {
    pub(crate) step: u64,
    /// Checksum of the regions that have to be equal on all ranks.
    pub(crate) same: u64,
    /// An earlier checkpoint keeps this one from being taken, see `backlog.rs`.
    pub(crate) blocked: bool,
    pub(crate) stop: bool,
    /// Less than 0: this rank wants a loss returned.
    pub(crate) owes: i64,
    pub(crate) agent_ended: bool,
}

/// Numbers of an [`Offer`].
const OFFER_LEN: usize = 8;

impl Offer {
    pub(crate) fn encode(&self) -> [i64; OFFER_LEN] {
        [
            self.step as i64,
            !(self.step as i64),
            self.same as i64,
            !(self.same as i64),
            -i64::from(self.blocked),
            -i64::from(self.stop),
            self.owes,
            -i64::from(self.agent_ended),
        ]
    }
}

/// The least of each number over the offers of all ranks.
pub(crate) struct Minima(pub(crate) [i64; OFFER_LEN]);

impl Minima {
    pub(crate) fn any_agent_ended(&self) -> bool {
        self.0[7] != 0
    }

    /// What the ranks agreed on.
    ///
    /// # Errors
    /// Invalid: they offered different steps, or different contents of regions flagged SAME.
    pub(crate) fn agreed(self) -> Result<Agreed> {
        let [step, not_step, same, not_same, blocked, stop, owes, _] = self.0;
        if step != !not_step && !off(Switch::SameStep) {
            return Err(Error::invalid(format!(
                "the ranks checkpoint different steps, from {} to {}",
                step as u64, !not_step as u64
            )));
        }
        if same != !not_same && !off(Switch::SameRegions) {
            return Err(Error::invalid("regions flagged SAME differ between ranks")
                .next("drop the flag, or make them equal before the checkpoint"));
        }
        Ok(Agreed {
            blocked: blocked != 0,
            stop: stop != 0,
            owes,
        })
    }
}

/// What all ranks know before they stage.
pub(crate) struct Agreed {
    /// On some rank an earlier checkpoint is in the way.
    pub(crate) blocked: bool,
    /// This checkpoint is the last one.
    pub(crate) stop: bool,
    /// Less than 0: some rank wants a loss returned.
    pub(crate) owes: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;

    fn offer(step: u64, same: u64) -> Offer {
        Offer {
            step,
            same,
            blocked: false,
            stop: false,
            owes: 0,
            agent_ended: false,
        }
    }

    /// What all ranks learn from these offers.
    fn least(offers: &[Offer]) -> Minima {
        let rows = offers.iter().map(Offer::encode);
        let least =
            |a: [i64; OFFER_LEN], b: [i64; OFFER_LEN]| std::array::from_fn(|i| a[i].min(b[i]));
        Minima(rows.reduce(least).expect("no offer"))
    }

    #[test]
    fn equal_offers_are_agreed_on_whatever_their_numbers() {
        for (step, same) in [(0, 0), (7, u64::MAX), (i64::MAX as u64, 1 << 63)] {
            let agreed = least(&[offer(step, same), offer(step, same)])
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
            ..offer(3, 9)
        };
        let agreed = least(&[offer(3, 9), one]).agreed().unwrap();
        assert!(agreed.blocked && agreed.stop && agreed.owes == -1);
        let ended = Offer {
            agent_ended: true,
            ..offer(3, 9)
        };
        assert!(least(&[ended, offer(3, 9)]).any_agent_ended());
    }

    #[test]
    fn different_steps_and_different_contents_are_refused() {
        let steps = least(&[offer(5, 0), offer(9, 0)]).agreed();
        let error = steps.err().expect("different steps were agreed on");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("from 5 to 9"), "{error}");
        // The upper half of a checksum is negative in a row.
        let same = least(&[offer(5, 1), offer(5, u64::MAX)]).agreed();
        let error = same.err().expect("different contents were agreed on");
        assert!(error.message().contains("SAME"), "{error}");
    }
}
