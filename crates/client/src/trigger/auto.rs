//! The interval that `interval = "auto"` keeps: from what checkpoints were measured to cost, and the failures that are configured.
//!
//! How: each checkpoint gives what the program lost by it (the call, and the processor time of its flush shared by the
//! processors of the node) and how long it took to be safe at all levels. The lower median of the last few of each, and of
//! all ranks the largest, go into [`Single::best_s`]. While the last checkpoint is not safe the next one is not due, however
//! short that interval: it would make the program wait. (When it is safe is seen at the next step only; so the time that took is told,
//! and not computed with.)
//!
//! Invariants:
//! 1. All ranks have the same interval: it is computed from agreed numbers alone.
//! 2. The first checkpoint is due at once, because it is measured; no other one before the last is safe or lost.
//!
//! Not here: when a checkpoint is due (`trigger.rs`), the rule itself (`orcheck_interval::single`).

use orcheck_interval::Single;
use std::collections::VecDeque;
use std::time::Duration;

/// Checkpoints that are remembered: one that took unusually long is outvoted, and a change is followed soon.
const REMEMBERED: usize = 7;
/// Nothing costs less than can be measured.
const LEAST_S: f64 = 1e-6;

/// What the triggers of one rank know of checkpoints, and the interval that all agreed on.
#[derive(Debug)]
pub struct Auto {
    mtbf_s: f64,
    /// Processors that the ranks of this node compute on.
    processors: f64,
    blocked_s: Recent,
    flush_cpu_s: Recent,
    safe_after_s: Recent,
    /// The checkpoint whose flush is being measured.
    flushing: Option<Flushing>,
    kept: Option<Kept>,
    complained: bool,
}

/// What all ranks agreed on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Computing from the end of one checkpoint to the begin of the next, seconds.
    pub interval_s: f64,
    /// What a checkpoint costs the program, seconds.
    pub cost_s: f64,
    /// From when the program continues until a checkpoint is safe at all levels, seconds.
    pub safe_after_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Flushing {
    step: u64,
    returned: Duration,
    cpu_ns: u64,
}

impl Auto {
    /// A failure of the job every `mtbf_s` seconds in the mean; this many processors for the ranks of this node.
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

    /// A checkpoint of `step` returned after `blocked_s`; `cpu_ns`: processor time of flushes until now.
    pub fn taken(&mut self, step: u64, blocked_s: f64, now: Duration, cpu_ns: u64) {
        self.blocked_s.push(blocked_s);
        self.flushing = Some(Flushing {
            step,
            returned: now,
            cpu_ns,
        });
    }

    /// The step whose flush is being measured.
    #[must_use]
    pub fn awaited(&self) -> Option<u64> {
        self.flushing.map(|flushing| flushing.step)
    }

    /// The awaited step is safe at all levels, or it never will be.
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

    /// What this rank brings to the agreement; the smallest is taken: negative microseconds of cost, and until safe.
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

    /// What all agreed on.
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

    /// What is to be said once, if checkpoints cost more than the time between failures.
    pub fn complaint(&mut self) -> Option<String> {
        let cost_s = self.kept?.cost_s;
        if cost_s < self.mtbf_s || std::mem::replace(&mut self.complained, true) {
            return None;
        }
        Some(format!(
            "a checkpoint costs {cost_s:.3} s, and something fails every {} s (mtbf_s, node_mtbf_s): the job will hardly get on",
            self.mtbf_s
        ))
    }

    /// The interval, once there was a checkpoint.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        self.kept
    }

    /// Whether one would be due so long after the last one, were that safe: then somebody has to look whether it ever will be.
    #[must_use]
    pub fn is_overdue(&self, since: Duration) -> bool {
        let over = |kept: Kept| since.as_secs_f64() >= kept.interval_s;
        self.flushing.is_some() && self.kept.is_none_or(over)
    }

    /// Whether a checkpoint is due so long after the last one.
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
struct Recent(VecDeque<f64>);

impl Recent {
    fn push(&mut self, value: f64) {
        self.0.push_back(value);
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// The lower one: the first checkpoint of a run takes longer than all others.
    fn median(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}
