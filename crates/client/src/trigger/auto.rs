//! Computes the interval of `interval = "auto"` from the measured cost of checkpoints and the
//! configured failures.
//!
//! How: each checkpoint yields what it cost the program (the call, and the processor time of its
//! flush divided by the processors of the node) and how long it took to be safe at all levels. The
//! lower median of the last few of each, and the largest over all ranks, go into
//! [`Single::best_s`]. While the last checkpoint is not safe, the next one is not due, however
//! short that interval is, because it would make the program wait. (Only the next step sees when a
//! checkpoint is safe; the time until then is reported, but not used in the computation.)
//!
//! Invariants:
//! 1. All ranks have the same interval, because it is computed only from agreed numbers.
//! 2. The first checkpoint is due at once, in order to be measured; no other is due before the last
//!    is safe or lost.
//!
//! Not here: when a checkpoint is due (`triggers.rs`), the rule itself
//! (`orcheck_interval::single`).

use orcheck_format::Step;
use orcheck_interval::Single;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of checkpoints that are remembered: an unusually long one is outvoted, and a change is
/// followed soon.
const REMEMBERED: usize = 7;
/// Minimum cost; smaller ones cannot be measured.
pub(super) const LEAST_S: f64 = 1e-6;

/// What the triggers of one rank know about checkpoints, and the agreed interval.
#[derive(Debug)]
pub struct Auto {
    mtbf_s: f64,
    /// Processors on which the ranks of this node compute.
    processors: f64,
    blocked_s: Recent,
    flush_cpu_s: Recent,
    safe_after_s: Recent,
    /// The checkpoint whose flush is being measured.
    flushing: Option<Flushing>,
    kept: Option<Kept>,
    complained: bool,
}

/// The agreed figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Computing time from the end of one checkpoint to the beginning of the next, seconds.
    pub interval_s: f64,
    /// What a checkpoint costs the program, seconds.
    pub cost_s: f64,
    /// Time from the end of the call until a checkpoint is safe at all levels, seconds.
    pub safe_after_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Flushing {
    step: Step,
    returned: Duration,
    cpu_ns: u64,
}

impl Auto {
    /// For a mean time between failures of the job of `mtbf_s` seconds, and this many processors
    /// for the ranks of this node.
    #[must_use]
    pub fn new(mtbf_s: f64, processors: usize) -> Self {
        Self {
            mtbf_s,
            processors: processors.max(1) as f64,
            blocked_s: Recent::default(),
            flush_cpu_s: Recent::default(),
            safe_after_s: Recent::default(),
            flushing: None,
            kept: None,
            complained: false,
        }
    }

    /// Notes that a checkpoint of `step` returned after `blocked_s`; `cpu_ns`: processor time of
    /// flushes until now.
    pub fn taken(&mut self, step: Step, blocked_s: f64, now: Duration, cpu_ns: u64) {
        self.blocked_s.push(blocked_s);
        self.flushing = Some(Flushing {
            step,
            returned: now,
            cpu_ns,
        });
    }

    /// The step whose flush is being measured.
    #[must_use]
    pub fn awaited(&self) -> Option<Step> {
        self.flushing.map(|flushing| flushing.step)
    }

    /// Notes that the awaited step is safe at all levels, or never will be.
    pub fn flushed(&mut self, safe: bool, now: Duration, cpu_ns: u64) {
        if let Some(flushing) = self.flushing.take()
            && safe
        {
            let after = now.saturating_sub(flushing.returned);
            self.safe_after_s.push(after.as_secs_f64());
            let cpu_s = cpu_ns.saturating_sub(flushing.cpu_ns) as f64 / 1e9;
            self.flush_cpu_s.push(cpu_s);
        }
    }

    /// This rank's contribution to the agreement, which takes the minimum: negative microseconds of
    /// the cost, and of the time until safe.
    #[must_use]
    pub fn measured(&self) -> [i64; 2] {
        let Some(blocked_s) = self.blocked_s.median() else {
            return [0, 0];
        };
        let cpu_s = self.flush_cpu_s.median().unwrap_or(0.0);
        let cost_s = (blocked_s + cpu_s / self.processors).max(LEAST_S);
        let safe_after_s = self.safe_after_s.median().unwrap_or(0.0);
        [cost_s, safe_after_s].map(|seconds| -((seconds * 1e6).ceil() as i64))
    }

    /// Takes the agreed figures.
    pub fn agree(&mut self, measured: [i64; 2]) {
        let [cost_s, safe_after_s] = measured.map(|value| value.unsigned_abs() as f64 / 1e6);
        if cost_s <= 0.0 {
            return;
        }
        let single = Single {
            checkpoint_s: cost_s,
            restart_s: cost_s,
            mtbf_s: self.mtbf_s,
        };
        self.kept = Some(Kept {
            interval_s: single.best_s(),
            cost_s,
            safe_after_s,
        });
    }

    /// A warning, given once, if checkpoints cost more than the time between failures.
    pub fn complaint(&mut self) -> Option<String> {
        let cost_s = self.kept?.cost_s;
        if cost_s < self.mtbf_s || std::mem::replace(&mut self.complained, true) {
            return None;
        }
        Some(format!(
            "a checkpoint costs {cost_s:.3} s, and something fails every {} s (mtbf_s, \
             node_mtbf_s): the job will hardly make progress",
            self.mtbf_s
        ))
    }

    /// The interval, once there was a checkpoint.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        self.kept
    }

    /// Whether a checkpoint would be due this long after the last one if the last one were safe;
    /// somebody then has to check whether it ever will be.
    #[must_use]
    pub fn is_overdue(&self, since: Duration) -> bool {
        let over = |kept: Kept| since.as_secs_f64() >= kept.interval_s;
        self.flushing.is_some() && self.kept.is_none_or(over)
    }

    /// Whether a checkpoint is due this long after the last one.
    #[must_use]
    pub fn is_due(&self, since: Duration) -> bool {
        match self.kept {
            None => self.blocked_s.0.is_empty(),
            Some(kept) => self.flushing.is_none() && since.as_secs_f64() >= kept.interval_s,
        }
    }
}

/// The last few measurements.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<f64>);

impl Recent {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push_back(value);
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The lower median: the first checkpoint of a run takes longer than all others.
    pub(super) fn median(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}
