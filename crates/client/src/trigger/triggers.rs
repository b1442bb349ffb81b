//! Decides when a checkpoint is due.
//!
//! * every n steps, once a multiple of n was reached or passed since the last checkpoint: every
//!   rank knows this, without a message;
//! * every t seconds, a measured interval, a signal, a request from inside or outside, the job's
//!   end, an overhead budget: one rank may know before another, so all ranks agree every m steps,
//!   with m such that agreeing costs less than 0.1 % of the run time.
//!
//! What is due is a depth, the number of levels that the checkpoint goes to (`paces.rs`); with
//! triggers for all levels, it is all of them.
//!
//! Invariants:
//! 1. All ranks get the same answer for the same step, and the same depth.
//! 2. If only a step trigger is configured, no message is sent; requests are then agreed in the
//!    next checkpoint's own message.
//! 3. `Request` is async-signal-safe: atomic stores only.
//!
//! Not here: taking the checkpoint (`checkpoint`), the measured interval (`auto.rs`).

use crate::collective::{Collective, agree_min};
use crate::options::Options;
use crate::trigger::auto::Auto;
pub use crate::trigger::auto::Kept;
use crate::trigger::paces::{Paces, passed};
use crate::trigger::pattern::Pattern;
use orcheck_engine::node::{Goes, HaltRequest};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Result, Step};
use orcheck_io::clock::Clock;
use orcheck_io::machine::install_signal;
use orcheck_io::memory::{fetch_ahead, fetch_code_ahead};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum share of the run time that agreeing may cost.
const AGREE_SHARE: f64 = 0.001;
/// Longest time between two agreements, unless one step takes longer.
const MAX_LATENCY_S: f64 = 5.0;
/// Maximum number of steps between two agreements.
const MAX_STRIDE: i64 = 1_000_000;

/// A request for a checkpoint, from a signal handler or another thread.
#[derive(Debug, Default)]
pub struct Request {
    checkpoint: AtomicBool,
    stop: AtomicBool,
}

impl Request {
    /// Nothing is requested yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            checkpoint: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Requests a checkpoint as soon as all ranks agree; with `stop_after`, also the end.
    pub fn request(&self, stop_after: bool) {
        self.checkpoint.store(true, Ordering::Release);
        if stop_after {
            self.stop.store(true, Ordering::Release);
        }
    }
}

/// A watched signal of this process. Its handler stays for good, so all sessions share it, and each
/// sees every raise.
#[derive(Default)]
struct Watched {
    raised: AtomicBool,
    count: AtomicU64,
}

static WATCHED: Mutex<BTreeMap<i32, &'static Watched>> = Mutex::new(BTreeMap::new());

/// One session's view of a watched signal.
struct SignalView {
    watched: &'static Watched,
    seen: u64,
    pending: bool,
}

impl SignalView {
    fn of(signal: i32) -> Result<Self> {
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = match all.get(&signal) {
            Some(&watched) => watched,
            None => {
                // One small leak per signal and process: the signal may arrive at any later time.
                let watched: &'static Watched = Box::leak(Box::default());
                install_signal(signal, &watched.raised)?;
                all.insert(signal, watched);
                watched
            }
        };
        Ok(Self {
            watched,
            seen: watched.count.load(Ordering::Acquire),
            pending: false,
        })
    }

    /// Whether the signal arrived since it was last handled.
    fn is_pending(&mut self) -> bool {
        if self.watched.raised.swap(false, Ordering::AcqRel) {
            self.watched.count.fetch_add(1, Ordering::AcqRel);
        }
        let count = self.watched.count.load(Ordering::Acquire);
        self.pending |= count != self.seen;
        self.seen = count;
        self.pending
    }

    /// Marks everything up to now as handled.
    fn clear(&mut self) {
        self.is_pending();
        self.pending = false;
    }
}

/// A session's triggers.
pub struct Trigger {
    every_steps: u64,
    /// The step from which multiples of `every_steps` are counted: that of the last checkpoint that
    /// went to all levels, the one restarted from, or the one at which the program began to ask.
    counted_from: Option<Step>,
    /// Whether somebody chose a trigger other than requests.
    chosen: bool,
    every: Option<Duration>,
    overhead_share: f64,
    auto: Option<Auto>,
    paces: Paces,
    pattern: Option<Pattern>,
    /// The depth of what the last answer made due; 0: nothing.
    due: usize,
    end_unix_ms: Option<u64>,
    agreed: bool,
    request: &'static Request,
    signal: Option<SignalView>,
    /// The program is to stop after the checkpoint that the signal makes due.
    signal_stop: bool,
    clock: Arc<dyn Clock>,
    /// Number of calls from one agreement to the next, and number of calls since the last.
    stride: i64,
    calls: i64,
    /// The step of the last question.
    asked_at: Step,
    last_call: Option<Duration>,
    step_time_s: f64,
    cost_s: f64,
    opened: Duration,
    /// The last checkpoint that went to all levels.
    last_checkpoint: Duration,
    blocked_s: f64,
    last_blocked_s: f64,
    stop: bool,
    /// The halt request of somebody outside.
    halt: HaltRequest,
    /// A checkpoint was lost, and this run is to end because of it.
    lost: bool,
    /// Number of checkpoints until it ends, once it was asked to end after some.
    halt_after: Option<u64>,
    /// The last answer of `due` came from a wish, not from the step.
    answered: bool,
}

impl Trigger {
    /// Creates the configured triggers of a job on this many nodes; this node has this many
    /// processors for its ranks. Installs the signal's handler if one is configured (it chains).
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn new(
        options: &Options,
        (nodes, processors): (usize, usize),
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        // One small leak per session: a signal may arrive at any later time.
        let request: &'static Request = Box::leak(Box::default());
        let signal = options.signal.map(SignalView::of).transpose()?;
        let every = (options.every_s > 0.0).then(|| Duration::from_secs_f64(options.every_s));
        let end_unix_ms = options
            .end_time_unix_s
            .map(|end| ((end - options.end_margin_s).max(0.0) * 1000.0) as u64);
        let auto = (options.mtbf_s_of(nodes)).map(|mtbf_s| Auto::new(mtbf_s, processors));
        let now = clock.now();
        let paces = Paces::new(options.levels(), &options.paces, now);
        let pattern = options.pattern_mtbf_s(nodes);
        let pattern = pattern.map(|mtbf_s| Pattern::new(mtbf_s, processors));
        let timed = paces.by_clock() || pattern.is_some();
        let chosen = timed
            || every.is_some()
            || auto.is_some()
            || signal.is_some()
            || options.overhead_percent > 0.0;
        let configured = chosen || end_unix_ms.is_some();
        Ok(Self {
            every_steps: options.every_steps,
            counted_from: None,
            chosen: chosen
                || options.every_steps > 0
                || paces.is_paced()
                || end_unix_ms.is_some() && !options.end_is_given,
            every,
            overhead_share: options.overhead_percent / 100.0,
            auto,
            agreed: configured || options.every_steps == 0 && !paces.is_paced(),
            paces,
            pattern,
            due: 0,
            end_unix_ms,
            request,
            signal,
            signal_stop: options.signal_stop,
            clock,
            stride: 1,
            calls: 0,
            asked_at: Step(0),
            last_call: None,
            step_time_s: 0.0,
            cost_s: 0.0,
            opened: now,
            last_checkpoint: now,
            blocked_s: 0.0,
            last_blocked_s: 0.0,
            stop: false,
            halt: HaltRequest::None,
            lost: false,
            halt_after: None,
            answered: false,
        })
    }

    /// The handle for signal handlers; valid forever.
    #[must_use]
    pub fn request(&self) -> &'static Request {
        self.request
    }

    /// Whether all ranks have agreed to end after the last checkpoint.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.stop
    }

    /// This rank's wish to take a checkpoint and stop.
    fn wants_stop(&self) -> bool {
        self.request.stop.load(Ordering::Acquire) || self.halt == HaltRequest::Now || self.lost
    }

    /// This rank's wish to stop after the checkpoint that is being taken, for its message.
    #[must_use]
    pub fn stops_with_this(&mut self) -> bool {
        let signalled = self.signal_stop && self.is_signalled();
        signalled || self.wants_stop() || self.halt_after.is_some_and(|left| left <= 1)
    }

    /// Notes that a checkpoint was lost and `on_loss = "stop"` asks this run to end.
    pub(crate) fn hear_loss(&mut self) {
        self.lost = true;
    }

    /// Notes the halt request of somebody outside; it can be withdrawn until all ranks have agreed.
    pub fn poll_halt(&mut self, asked: HaltRequest) {
        if asked != self.halt {
            self.halt = asked;
            self.halt_after = match asked {
                HaltRequest::After(count) => Some(count),
                _ => None,
            };
        }
    }

    /// Takes the agreed wish to stop.
    pub(crate) fn agree_stop(&mut self, stop: bool) {
        self.stop |= stop;
        if let Some(signal) = self.signal.as_mut().filter(|_| stop) {
            signal.clear();
        }
    }

    /// Whether a checkpoint is due at `step`.
    ///
    /// # Errors
    /// The error of the collective.
    pub fn due(&mut self, collective: &mut dyn Collective, step: Step) -> Result<bool> {
        self.due = self.by_steps(step);
        self.asked_at = step;
        self.answered = false;
        if !self.agreed {
            return Ok(self.due > 0);
        }
        let now = self.clock.now();
        if let Some(last) = self.last_call {
            let step_time_s = now.saturating_sub(last).as_secs_f64();
            // A running mean that forgets: steps may get slower or faster.
            self.step_time_s = if self.step_time_s == 0.0 {
                step_time_s
            } else {
                0.9 * self.step_time_s + 0.1 * step_time_s
            };
        }
        self.last_call = Some(now);
        self.calls += 1;
        if self.calls < self.stride {
            return Ok(self.due > 0);
        }
        self.calls = 0;
        let (wish, ending) = self.wishes(now);
        let mut values = vec![
            -(wish as i64),
            -i64::from(ending || self.wants_stop()),
            -self.stride_wish(),
        ];
        values.extend(self.auto.iter().flat_map(Auto::measured));
        values.extend(self.pattern.iter().flat_map(Pattern::measured));
        agree_min(collective, Ok(()), &mut values)?;
        if let (Some(auto), &[.., cost, safe_after]) = (&mut self.auto, &values[..]) {
            auto.agree([cost, safe_after]);
        }
        if let Some(pattern) = &mut self.pattern {
            pattern.agree(&values[3..]);
        }
        let cost_s = self.clock.now().saturating_sub(now).as_secs_f64();
        // The fastest agreement seen is its cost; longer ones waited for a slower rank.
        self.cost_s = if self.cost_s == 0.0 {
            cost_s
        } else {
            self.cost_s.min(cost_s)
        };
        // It grows slowly: fast steps while a program warms up must not make it unresponsive
        // afterwards.
        self.stride = (-values[2]).clamp(1, MAX_STRIDE.min(2 * self.stride));
        // The wish to stop makes one checkpoint due, not one at every step until the program ends.
        let stops_now = values[1] != 0 && !self.stop;
        self.stop |= stops_now;
        let agreed = match stops_now {
            true => self.paces.deepest(),
            false => values[0].unsigned_abs() as usize,
        };
        // A wish for all levels stays if only some of them are due.
        if agreed == self.paces.deepest() {
            // The wish has been granted.
            self.answered = true;
            self.request.checkpoint.store(false, Ordering::Release);
            if let Some(signal) = &mut self.signal {
                signal.clear();
            }
        }
        self.due = self.due.max(agreed);
        Ok(self.due > 0)
    }

    /// The depth of what is due because a multiple of `every_steps` was reached or passed.
    fn by_steps(&mut self, step: Step) -> usize {
        let all = passed(self.every_steps, &mut self.counted_from, step);
        match all {
            true => self.paces.deepest(),
            false => self.paces.due_by_steps(step),
        }
    }

    /// The depth that this rank offers for a checkpoint of `step`: of all that is due, and of what
    /// the program asks for; at least the weakest level.
    pub fn depth_wished(&mut self, step: Step, asked: Option<Level>) -> usize {
        let least = match asked {
            Some(level) => self.paces.depth_of(level),
            None if self.paces.is_paced() => 1,
            None => self.paces.deepest(),
        };
        // Breaks if: the last checkpoint goes only where it is due; the job could end with what a
        // lost node takes along.
        if (self.stop || self.stops_with_this()) && !off(Switch::LastToStrongest) {
            return self.paces.deepest();
        }
        if !self.paces.is_paced() {
            return least.max(self.due);
        }
        // A program that does not ask when checkpoints are due takes what is due now.
        let (wish, _) = self.wishes(self.clock.now());
        let due = self.due.max(self.paces.owed()).max(wish);
        least.max(due).max(self.paces.due_by_steps(step))
    }

    /// Has the processor fetch what a checkpoint is about to use of this.
    pub(crate) fn fetch_ahead(&self) {
        fetch_code_ahead(Self::depth_wished as *const (), 0, 1);
        fetch_code_ahead(Self::taken_at as *const (), 0, 1);
        fetch_ahead(std::ptr::from_ref(self).addr());
    }

    /// The levels of a checkpoint of this depth, on which all ranks agreed.
    #[must_use]
    pub fn levels_at(&self, depth: usize) -> Goes {
        match self.stop && !off(Switch::LastToStrongest) {
            true => Goes::EVERYWHERE,
            false => self.paces.at_depth(depth),
        }
    }

    /// For each level that has a pace: seconds and steps between two of its checkpoints.
    pub(crate) fn paces_in_force(&self) -> Vec<(Level, f64, u64)> {
        let kept_s = self.pattern.as_ref().and_then(Pattern::kept_s);
        self.paces.in_force(kept_s)
    }

    /// Whether levels have paces of their own.
    pub(crate) fn is_paced(&self) -> bool {
        self.paces.is_paced()
    }

    /// Notes that the program continues from `from`, when the newest checkpoint of a level was of
    /// this step and this old.
    pub(crate) fn continue_from(&mut self, level: Level, newest: (Step, Duration), from: Step) {
        self.paces.continue_from(level, newest, from);
    }

    /// Notes that the newest checkpoint of a level did not get there.
    pub(crate) fn owe(&mut self, level: Level) {
        self.paces.owe(self.paces.depth_of(level));
    }

    /// Notes that the program continues from this step, which needs no checkpoint; `None`: where it
    /// begins is open again.
    pub fn count_from(&mut self, step: Option<Step>) {
        self.counted_from = step;
        self.paces.count_from(step);
    }

    /// Whether somebody chose a trigger other than requests. The end of the job's time that a batch
    /// system reports is nobody's choice: a job that is killed before it would have no checkpoint.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.chosen
    }

    /// Number of calls between agreements that keeps their cost below the share, from what was seen
    /// so far.
    fn stride_wish(&self) -> i64 {
        if self.step_time_s <= 0.0 || self.cost_s <= 0.0 {
            return 1;
        }
        let stride = (self.cost_s / (AGREE_SHARE * self.step_time_s)).ceil();
        // A wish must not wait long either: a batch system's grace time may be half a minute.
        let every_s = self.every.map(|every| every.as_secs_f64());
        let kept_s = self.kept().map(|kept| kept.interval_s);
        let paces_s = self
            .paces_in_force()
            .into_iter()
            .map(|(_, every_s, _)| every_s);
        let paces_s = paces_s.filter(|every_s| *every_s > 0.0);
        let patience_s = (every_s.into_iter().chain(kept_s).chain(paces_s))
            .fold(MAX_LATENCY_S, |patience_s, s| patience_s.min(0.05 * s));
        let limit = (patience_s / self.step_time_s).max(1.0);
        stride.min(limit).clamp(1.0, MAX_STRIDE as f64) as i64
    }

    fn is_signalled(&mut self) -> bool {
        self.signal.as_mut().is_some_and(SignalView::is_pending)
    }

    /// The depth of the checkpoint that this rank wishes, and whether it wishes to end.
    fn wishes(&mut self, now: Duration) -> (usize, bool) {
        let signalled = self.is_signalled();
        let asked = self.request.checkpoint.load(Ordering::Acquire) || signalled;
        let since = now.saturating_sub(self.last_checkpoint);
        let by_time = self.every.is_some_and(|every| since >= every)
            || self.auto.as_ref().is_some_and(|auto| auto.is_due(since));
        let elapsed_s = now.saturating_sub(self.opened).as_secs_f64();
        let by_budget = self.overhead_share > 0.0
            && elapsed_s > 0.0
            && self.blocked_s + self.last_blocked_s <= self.overhead_share * elapsed_s
            && since > Duration::ZERO;
        let ending = (signalled && self.signal_stop)
            || (self.end_unix_ms).is_some_and(|end| self.clock.unix_ms() >= end);
        let paced = self.paces.due_by_time(now);
        let since = self.paces.since(now);
        let measured = self
            .pattern
            .as_ref()
            .map_or(0, |pattern| pattern.due(&since));
        let depth = match asked || by_time || by_budget {
            true => self.paces.deepest(),
            false => paced.max(measured),
        };
        (depth, ending)
    }

    /// Notes that a due checkpoint was skipped: the wish for it remains.
    pub fn left_out(&mut self) {
        // The next multiple counts, as if this one had been taken.
        self.counted_from = Some(self.asked_at);
        self.paces.left_out(self.asked_at, self.due);
        self.not_taken();
    }

    /// Notes that a due checkpoint failed and was not staged: the wish for it remains.
    pub(crate) fn not_taken(&mut self) {
        if self.answered {
            self.request.checkpoint.store(true, Ordering::Release);
        }
    }

    /// As [`Self::taken_at`], for a checkpoint that goes to all levels.
    pub fn taken(&mut self, step: Step, blocked_s: f64, flush_cpu_ns: u64) {
        self.taken_at((step, self.paces.deepest()), blocked_s, flush_cpu_ns);
    }

    /// Notes that a checkpoint of `step` and this depth was taken and blocked the program this
    /// long; `flush_cpu_ns`: processor time of flushes until now.
    pub fn taken_at(&mut self, (step, depth): (Step, usize), blocked_s: f64, flush_cpu_ns: u64) {
        let now = self.clock.now();
        self.paces.taken(step, depth, now);
        self.due = 0;
        // Breaks if: one of a weaker level counts, too; a program that takes them often would never
        // have one that goes to all.
        if depth >= self.paces.deepest() || off(Switch::DueToAll) {
            self.last_checkpoint = now;
            self.counted_from = Some(step);
            if let Some(auto) = &mut self.auto {
                auto.taken(step, blocked_s, now, flush_cpu_ns);
            }
            if self.paces.is_paced() {
                // What was requested since the question has been taken as well.
                self.request.checkpoint.store(false, Ordering::Release);
            }
        }
        if let Some(pattern) = &mut self.pattern {
            pattern.taken((step, depth), blocked_s, now, flush_cpu_ns);
        }
        self.halt_after = self.halt_after.map(|left| left.saturating_sub(1));
        self.last_blocked_s = blocked_s;
        self.blocked_s += blocked_s;
        self.last_call = None;
    }

    /// The step that the triggers measure until it is safe.
    #[must_use]
    pub fn awaited(&self) -> Option<Step> {
        self.auto.as_ref().and_then(Auto::awaited)
    }

    /// The steps that they measure until each is safe at a level, with the number of the level.
    pub(crate) fn awaited_by_level(&self) -> Vec<(usize, Step)> {
        self.pattern
            .as_ref()
            .map_or_else(Vec::new, Pattern::awaited)
    }

    /// Notes whether the pool of this node holds all snapshots, more than one of each rank.
    pub(crate) fn note_room(&mut self, has_room: bool) {
        if let Some(pattern) = &mut self.pattern {
            pattern.note_room(has_room);
        }
    }

    /// Notes that such a step is safe at that level, or never will be.
    pub(crate) fn flushed_at(&mut self, at: usize, safe: bool, flush_cpu_ns: u64) {
        if let Some(pattern) = &mut self.pattern {
            pattern.flushed(at, safe, self.clock.now(), flush_cpu_ns);
        }
    }

    /// Whether a checkpoint waits only for the awaited step.
    #[must_use]
    pub(crate) fn is_overdue(&self) -> bool {
        let since = || self.clock.now().saturating_sub(self.last_checkpoint);
        let pattern = self.pattern.as_ref();
        let by_level = || self.paces.since(self.clock.now());
        (self.auto.as_ref()).is_some_and(|auto| auto.is_overdue(since()))
            || pattern.is_some_and(|pattern| pattern.is_overdue(&by_level()))
    }

    /// Notes that the awaited step is safe at all levels, or never will be; `flush_cpu_ns`:
    /// processor time of flushes until now.
    pub fn flushed(&mut self, safe: bool, flush_cpu_ns: u64) {
        if let Some(auto) = &mut self.auto {
            auto.flushed(safe, self.clock.now(), flush_cpu_ns);
        }
    }

    /// A warning, given once, about checkpoints that cost too much.
    pub fn complaint(&mut self) -> Option<String> {
        let of_pattern = self.pattern.as_mut().and_then(Pattern::complaint);
        of_pattern.or_else(|| self.auto.as_mut().and_then(Auto::complaint))
    }

    /// The interval that `interval = "auto"` keeps, and the figures behind it.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        let of_pattern = self.pattern.as_ref().and_then(|pattern| {
            let [cost_s, safe_after_s] = pattern.of_weakest()?;
            let interval_s = *pattern.kept_s()?.first()?;
            Some(Kept {
                interval_s,
                cost_s,
                safe_after_s,
            })
        });
        of_pattern.or_else(|| self.auto.as_ref().and_then(Auto::kept))
    }
}
