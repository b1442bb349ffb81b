//! Computes the interval between checkpoints of one kind, for random and independent failures.
//!
//! Terms: δ is the cost of a checkpoint to the program, M the mean time between failures, R the
//! time of a restart, and τ the computing time between two checkpoints, all in seconds. A failure
//! may strike at any time: while computing, in a checkpoint, in a restart.
//!
//! | rule | τ | source |
//! | --- | --- | --- |
//! | first order | √(2δM) | Young (Communications of the ACM 17(9), 1974) |
//! | higher order | √(2δM) · (1 + ⅓ √(δ/2M) + ⅑ δ/2M) − δ, at most M | Daly (FGCS 22(3), 2006) |
//! | exact | the minimum of [`Single::expected_s`] | Daly's expected time |
//!
//! Invariants:
//! 1. The interval grows with δ and with M, and does not depend on R: a failure costs the same R
//!    whatever the interval is.
//! 2. An efficiency is between 0 and 1.
//!
//! Not here: several levels (`levels.rs`), failures with other distributions (`life.rs`).

use crate::within;
use orcheck_format::{Error, Result};

/// Shortest and longest valid time: a nanosecond, and longer than any machine lasts.
pub const TIMES_S: (f64, f64) = (1e-9, 1e12);

/// A job with checkpoints of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Single {
    /// δ, the cost of a checkpoint to the program, seconds.
    pub checkpoint_s: f64,
    /// R, the time from a failure until the program computes again, seconds; without lost work.
    pub restart_s: f64,
    /// M, mean time between failures of the whole job, seconds.
    pub mtbf_s: f64,
}

impl Single {
    /// # Errors
    /// Invalid: an invalid time, or failures that come before a checkpoint ends.
    pub fn check(&self) -> Result<()> {
        within(
            "checkpoint, seconds",
            self.checkpoint_s,
            TIMES_S.0,
            TIMES_S.1,
        )?;
        within("restart, seconds", self.restart_s, 0.0, TIMES_S.1)?;
        within(
            "mean time between failures, seconds",
            self.mtbf_s,
            TIMES_S.0,
            TIMES_S.1,
        )?;
        if self.mtbf_s <= self.checkpoint_s {
            return Err(Error::invalid(format!(
                "mean time between failures {} s: expected more than the {} s of a checkpoint, or the job never makes progress",
                self.mtbf_s, self.checkpoint_s
            ))
            .next("take checkpoints that cost less, or run on fewer nodes"));
        }
        Ok(())
    }

    /// Young's rule, seconds of computing.
    #[must_use]
    pub fn young_s(&self) -> f64 {
        (2.0 * self.checkpoint_s * self.mtbf_s).sqrt()
    }

    /// Daly's rule, seconds of computing.
    #[must_use]
    pub fn daly_s(&self) -> f64 {
        let share = self.checkpoint_s / (2.0 * self.mtbf_s);
        if share >= 1.0 {
            return self.mtbf_s;
        }
        self.young_s() * (1.0 + share.sqrt() / 3.0 + share / 9.0) - self.checkpoint_s
    }

    /// The interval that minimises [`Self::expected_s`], in seconds of computing.
    ///
    /// The derivative is zero where (1 − x) e^x = e^(−δ/M), with x = τ/M between 0 and 1.
    #[must_use]
    pub fn best_s(&self) -> f64 {
        // Subtract 1 on both sides, so that no precision is lost where they are almost 1.
        let aim = (-self.checkpoint_s / self.mtbf_s).exp_m1();
        let (mut low, mut high) = (0.0f64, 1.0f64);
        while high - low > f64::EPSILON * high {
            let x = low + (high - low) / 2.0;
            if x <= low || x >= high {
                break;
            }
            // (1 − x) e^x − 1 = (e^x − 1) − x e^x, which falls from 0 to −1.
            if series(x) > aim {
                low = x;
            } else {
                high = x;
            }
        }
        low * self.mtbf_s
    }

    /// The mean time that this much computing takes, with checkpoints after every `interval_s` of
    /// it (Daly's model): a segment and its checkpoint begin again after each failure, and so do
    /// restarts.
    #[must_use]
    pub fn expected_s(&self, work_s: f64, interval_s: f64) -> f64 {
        let m = self.mtbf_s;
        let segment = ((interval_s + self.checkpoint_s) / m).exp_m1();
        m * (self.restart_s / m).exp() * segment * work_s / interval_s
    }

    /// The fraction of the time that is useful computing.
    #[must_use]
    pub fn efficiency(&self, interval_s: f64) -> f64 {
        1.0 / self.expected_s(1.0, interval_s)
    }
}

/// (1 − x) e^x − 1, at full precision near 0 too, where it is −x²/2 − x³/3 − x⁴/8 ….
fn series(x: f64) -> f64 {
    if x > 0.1 {
        return x.exp_m1() - x * x.exp();
    }
    // The term of x^n is −(n − 1)/n!.
    let (mut power, mut sum) = (x, 0.0);
    for n in 2..14 {
        power *= x / f64::from(n);
        sum -= f64::from(n - 1) * power;
    }
    sum
}
