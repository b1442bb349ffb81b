//! Defines a session, one rank's view of one job.
//!
//! States: open → (found → restarted) | fresh → checkpoints → closed. A call in the wrong order is
//! an error with a text, and changes nothing.
//!
//! Invariants:
//! 1. A job that has checkpoints never begins from nothing by accident: `checkpoint` before `find`
//!    (or before `restart` from what was found) is refused unless `fresh` is set.
//!
//! Not here: taking a checkpoint (`checkpoint`), lending (`lend.rs`), restart (`resume.rs`), the
//! end (`drain.rs`), opening (`open`).

use crate::collective::Collective;
use crate::memory_files::{self, MemoryFiles};
use crate::open::{Environment, Link, Opened, dies_with_ranks, open};
use crate::options::{AgentKind, Options};
use crate::regions::{ArrayLayout, Codec, Region, Regions, Route};
use crate::report::{self, Warnings};
use crate::session::found::Resume;
use crate::session::lent::Lent;
use crate::session::mapper::Mapper;
use crate::session::outcomes::{HISTORY, Outcomes};
use crate::session::stager::Stager;
use crate::session::stats::Stats;
use crate::session::waiter::Waiter;
use crate::trigger::{Request, Trigger};
use orcheck_engine::capture::{Baseline, Captured, Parts};
use orcheck_engine::node::{Goes, Index, Kept, Outcome};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Dtype, Epoch, Error, JobName, Level, Rank, Result, Step, WriterId};
use orcheck_io::memory::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One rank's view of one job.
pub struct Session {
    pub(crate) collective: Box<dyn Collective>,
    pub(crate) options: Options,
    pub(crate) environment: Environment,
    pub(crate) job: JobName,
    pub(crate) rank: Rank,
    /// This rank's number among those of its node.
    pub(crate) local: u32,
    pub(crate) writer: WriterId,
    pub(crate) link: Link,
    pub(crate) memory: Memory,
    pub(crate) progress: Progress,
    pub(crate) agents: Agents,
    pub(crate) trigger: Trigger,
    pub(crate) resume: Resume,
    pub(crate) warnings: Warnings,
    /// The program was told, if necessary, that nothing makes a checkpoint due.
    pub(crate) untriggered_warned: bool,
    /// Stored regions that it does not protect are no surprise to the program.
    pub(crate) wants_part: bool,
}

/// The state that the program protects, and how it reaches the pool.
pub(crate) struct Memory {
    pub(crate) regions: Regions,
    /// What the last snapshot was made of, if the next one may be of the same, and the value of
    /// [`Regions::changes`] then.
    pub(crate) parts: Option<(u64, Parts)>,
    /// With `incremental = auto`: which of the state is stored where.
    pub(crate) baseline: Option<Arc<Baseline>>,
    pub(crate) lent: BTreeMap<String, Lent>,
    /// Chunks of `orc_alloc`: first and number, by address.
    pub(crate) allocations: BTreeMap<usize, (u32, u32)>,
    pub(crate) route: Option<Route>,
    pub(crate) files: MemoryFiles,
    pub(crate) mapper: Mapper,
    pub(crate) stager: Option<Arc<Stager>>,
    /// The last step that `stager` was handed, until it is known to have sent it.
    pub(crate) handed_over: Option<Step>,
    /// Snapshots of this rank in the pool, for the successor of an agent.
    pub(crate) kept: Arc<Kept>,
}

/// How far the job has come in this session.
pub(crate) struct Progress {
    /// The last step that was restarted from or taken; the next one must be larger.
    pub(crate) last_step: Option<Step>,
    pub(crate) last_taken: Option<Step>,
    /// Steps taken whose snapshots may still be in the pool.
    pub(crate) taken: BTreeSet<Step>,
    /// The last steps taken, whatever their outcome, and the levels that each goes to.
    pub(crate) history: BTreeMap<Step, Goes>,
    /// The levels that the checkpoint goes to that is being taken.
    pub(crate) heading: Goes,
    /// The sequence number of the next checkpoint.
    pub(crate) turn: u64,
    /// Number of checkpoints that went to the strongest level, and of those since the last one.
    pub(crate) turns: (u64, u64),
    pub(crate) stats: Stats,
    pub(crate) outcomes: Outcomes,
}

impl Progress {
    fn new() -> Self {
        Self {
            last_step: None,
            last_taken: None,
            taken: BTreeSet::new(),
            history: BTreeMap::new(),
            heading: Goes::EVERYWHERE,
            turn: 0,
            turns: (0, 0),
            stats: Stats::default(),
            outcomes: Outcomes::default(),
        }
    }

    /// The newest step that goes to this level, of those that are remembered.
    pub(crate) fn newest_at(&self, level: Level) -> Option<Step> {
        let mut steps = self.history.iter().rev();
        let newest = steps.find(|(_, goes)| goes.includes(level));
        newest.map(|(&step, _)| step)
    }
}

/// What is known about agents that ended while the session was open.
pub(crate) struct Agents {
    pub(crate) replaced_in_call: u32,
    /// An agent has ended, and the session is not completely open again yet.
    pub(crate) being_replaced: bool,
    /// The highest epoch that this run requested.
    pub(crate) newest_epoch: u64,
}

impl Session {
    pub(crate) fn open_agreed(
        agreed: (JobName, Options),
        mut collective: Box<dyn Collective>,
        environment: Environment,
    ) -> Result<Self> {
        let rank = collective.rank();
        let opened = open(agreed, collective.as_mut(), &environment, None)?;
        let Opened {
            job,
            options,
            link,
            trigger,
            memory,
            notes,
        } = opened;
        if rank == Rank(0) {
            report::opened(&job, link.epoch, &options, trigger.is_configured());
        }
        let local = link.layout.local_index(rank);
        let index = Index::new(&link.pool, link.shape);
        let first_chunk = index.first_chunk(local, link.pool.shape().chunk_count);
        // An agent's pool still has what a rank of an earlier run declared.
        index.add_routed(local, 0);
        let mut warnings = Warnings::default();
        warnings.extend(notes);
        Ok(Self {
            collective,
            environment,
            job,
            rank,
            local,
            writer: link.layout.writer_of(rank),
            memory: Memory {
                regions: Regions::default(),
                parts: None,
                baseline: options.incremental_chain.map(|_| Arc::default()),
                lent: BTreeMap::new(),
                allocations: BTreeMap::new(),
                route: None,
                files: MemoryFiles::default(),
                mapper: Mapper::new(Arc::clone(&link.pool), first_chunk),
                stager: None,
                handed_over: None,
                kept: Arc::default(),
            },
            progress: Progress::new(),
            agents: Agents {
                replaced_in_call: 0,
                being_replaced: false,
                newest_epoch: link.epoch.counter,
            },
            link,
            trigger,
            resume: Resume {
                memory,
                ..Resume::default()
            },
            warnings,
            wants_part: false,
            untriggered_warned: false,
            options,
        })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// This run's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.link.epoch
    }

    // ---- regions -----------------------------------------------------------------------------

    /// Names flat memory as part of the state; a repeated call sets a new address or size. Local.
    ///
    /// # Errors
    /// Invalid name, flags or length; Unavailable while the region is lent.
    pub fn protect(&mut self, name: &str, span: Span, dtype: Dtype, flags: u32) -> Result<()> {
        self.put(name, Region::flat(name, span, dtype, flags)?)
    }

    /// Names an array, possibly strided, possibly a slice of a global one. `span` covers it from
    /// its first to its last element. Local.
    ///
    /// # Errors
    /// As [`Self::protect`]; Invalid for shapes that do not match.
    pub fn protect_array(
        &mut self,
        name: &str,
        span: Span,
        layout: ArrayLayout,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::array(name, span, layout, flags)?)
    }

    /// Names several boxes of a global array as one region, each with the memory from its first to
    /// its last element. Local.
    ///
    /// # Errors
    /// As [`Self::protect_array`]; Invalid if they are not of one global array.
    pub fn protect_boxes(
        &mut self,
        name: &str,
        boxes: Vec<(Span, ArrayLayout)>,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::boxes(name, boxes, flags)?)
    }

    /// Names this rank's items of a list; a restart redistributes the items of all ranks. `items`
    /// is their element type and shape; their number comes first. Local.
    ///
    /// # Errors
    /// As [`Self::protect_array`].
    pub fn protect_list(
        &mut self,
        name: &str,
        span: Span,
        items: (Dtype, &[u64]),
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::list(name, span, items, flags)?)
    }

    /// Names state that the program packs and unpacks. Local.
    ///
    /// # Errors
    /// Invalid name or flags (`SAME` needs flat memory).
    pub fn protect_codec(&mut self, name: &str, codec: Box<dyn Codec>, flags: u32) -> Result<()> {
        self.put(name, Region::packed(codec, flags))
    }

    pub(crate) fn put(&mut self, name: &str, region: Region) -> Result<()> {
        self.memory.files.check_free(name)?;
        if matches!(
            self.memory.lent.get(name),
            Some(Lent::Streamed(_) | Lent::Borrowed(_))
        ) && !self.lent_is_back(name, Duration::ZERO)?
        {
            return Err(Error::unavailable(format!("region '{name}' is still lent"))
                .next("wait with lent_done before moving it"));
        }
        self.memory.regions.put(name, region)?;
        self.resume.touched.remove(name);
        self.prepare_pool();
        Ok(())
    }

    /// Has the memory of the pool prepared in the background into which the protected regions are
    /// going to be copied. Where an earlier run may have left something, only once it is decided
    /// what this one continues from: it would take processors and memory from the restart.
    pub(crate) fn prepare_pool(&mut self) {
        let first_run = self.link.epoch.counter == 1;
        if !first_run && !self.options.fresh && !self.resume.state.is_decided() {
            return;
        }
        let chunk_bytes = u64::from(self.link.pool.shape().chunk_bytes);
        let outside = |span: Span| self.link.pool.offset_of(span).is_none();
        let state_bytes = self.memory.regions.memory_bytes(outside);
        // One more for the records and the ends of regions. With room for several snapshots, each
        // is taken while others are being flushed.
        let chunks = (state_bytes.div_ceil(chunk_bytes) + 1) * u64::from(self.options.held_steps);
        let (pool, shape) = (Arc::clone(&self.link.pool), self.link.shape);
        let (local, writer) = (self.local, self.writer);
        let tell = move |chunks| Index::new(&pool, shape).want_chunks(local, writer, chunks);
        self.memory.mapper.want(chunks, tell);
    }

    /// Forgets a region. Local.
    ///
    /// # Errors
    /// NotFound; Unavailable while it is lent.
    pub fn unprotect(&mut self, name: &str) -> Result<()> {
        self.memory.regions.get(name)?;
        if self.memory.files.has(name) {
            return memory_files::remove(self, name, Duration::ZERO);
        }
        if !self.lent_is_back(name, Duration::ZERO)? {
            return Err(Error::unavailable(format!("region '{name}' is still lent"))
                .next("wait with lent_done before unprotecting it"));
        }
        self.memory.lent.remove(name);
        self.memory.regions.remove(name)?;
        self.resume.touched.remove(name);
        if let Some(route) = &self.memory.route {
            route.prune(name, &self.memory.regions);
        }
        Ok(())
    }

    // ---- triggers ----------------------------------------------------------------------------

    /// Whether a checkpoint is due at `step`. Collective; usually without a message.
    ///
    /// # Errors
    /// The error of the collective.
    pub fn due(&mut self, step: u64) -> Result<bool> {
        self.poll_halt();
        self.release_kept_snapshots(usize::MAX);
        self.poll_measured_checkpoint();
        self.poll_outcomes();
        self.warn_untriggered();
        let due = self.trigger.due(self.collective.as_mut(), Step(step))?;
        if self.local == 0
            && let Some(kept) = self.trigger.kept()
        {
            let kept = [kept.interval_s, kept.cost_s, kept.safe_after_s];
            self.index().set_interval(kept);
        }
        self.publish_paces();
        let complaint = self.trigger.complaint();
        self.warnings
            .extend(complaint.filter(|_| self.rank == Rank(0)));
        Ok(due)
    }

    /// Publishes the paces of levels, for `orcheck status`.
    fn publish_paces(&self) {
        if self.local != 0 {
            return;
        }
        let mut paces = [(0.0, 0); 2];
        for (level, every_s, every_steps) in self.trigger.paces_in_force() {
            paces[usize::from(level == Level::Global)] = (every_s, every_steps);
        }
        self.index().set_paces(paces);
    }

    /// Warns once, if the program asks when checkpoints are due and nothing makes one due.
    fn warn_untriggered(&mut self) {
        let said = std::mem::replace(&mut self.untriggered_warned, true);
        if said
            || self.rank != Rank(0)
            || self.trigger.is_configured()
            || off(Switch::UntriggeredSaid)
        {
            return;
        }
        let when = match self.options.end_time_unix_s {
            Some(_) => "before the end of the job's time ",
            None => "",
        };
        let failures = self.options.mtbf_s > 0.0 || self.options.node_mtbf_s > 0.0;
        let next = match failures {
            // Breaks if: it is not said; who gives the time between failures expects an interval.
            true => {
                "add the line `interval = 'auto'` to the options, or set ORCHECK_INTERVAL=auto: a mean time between failures alone makes none due"
            }
            false => "add the line `every_s = 600` to the options, or set ORCHECK_EVERY_S=600",
        };
        let text = format!(
            "no trigger is configured: {when}no checkpoint is due unless somebody requests one; {next}"
        );
        self.warnings.push(text);
        self.pass_on_warnings();
    }

    /// Processor time of all CP-threads of this node since the session opened.
    pub(crate) fn flush_cpu_ns_of_node(&self) -> u64 {
        let (index, node) = (
            self.index(),
            &self.link.layout.nodes[self.link.layout.node_of(self.rank).index()],
        );
        let local = |rank: &Rank| node.ranks.iter().position(|other| other == rank);
        let of_writers = node
            .writers
            .iter()
            .filter_map(|ranks| local(ranks.first()?));
        of_writers
            .map(|local| index.flush_cpu_ns(local as u32))
            .sum()
    }

    /// Tells the triggers when the step that they measure is safe at all levels.
    fn poll_measured_checkpoint(&mut self) {
        self.poll_measured_levels();
        let Some(step) = self.trigger.awaited() else {
            return;
        };
        let index = self.index();
        let outcomes: Vec<Outcome> = (self.levels_of(step).into_iter())
            .map(|level| index.outcome(step, level))
            .collect();
        let flush_cpu_ns = self.flush_cpu_ns_of_node();
        let lost = |outcome: &Outcome| matches!(outcome, Outcome::Lost(_));
        let safe = |outcome: &Outcome| *outcome == Outcome::Committed;
        if outcomes.iter().all(safe) {
            self.trigger.flushed(true, flush_cpu_ns);
        } else if outcomes.iter().any(lost)
            // If the engine has ended, nobody reports it: only the next checkpoint finds another
            // one.
            || self.trigger.is_overdue() && self.link.patience.check().is_err()
        {
            self.trigger.flushed(false, flush_cpu_ns);
        }
    }

    /// The same for each level that has a pace of its own.
    fn poll_measured_levels(&mut self) {
        let levels = self.options.levels();
        for (at, step) in self.trigger.awaited_by_level() {
            let outcome = (levels.get(at))
                .map_or(Outcome::Pending, |&level| self.index().outcome(step, level));
            // Of a level that is not there now, or after its engine has ended, nothing is awaited.
            let open = &self.progress.outcomes.open;
            let awaited = (levels.get(at)).is_some_and(|&level| open.contains(&(step, level)));
            let ended = || self.trigger.is_overdue() && self.link.patience.check().is_err();
            let safe = match outcome {
                Outcome::Committed => true,
                Outcome::Pending if awaited && !ended() => continue,
                _ => false,
            };
            let flush_cpu_ns = self.flush_cpu_ns_of_node();
            self.trigger.flushed_at(at, safe, flush_cpu_ns);
        }
    }

    /// The levels that a checkpoint of this session goes to, weakest first; all of them for a step
    /// that is forgotten.
    pub(crate) fn levels_of(&self, step: Step) -> Vec<Level> {
        let goes = self.progress.history.get(&step).copied();
        goes.unwrap_or(Goes::EVERYWHERE)
            .of(self.link.places.levels())
    }

    /// Tells the triggers whether the engine of this node has seen a halt request.
    pub(crate) fn poll_halt(&mut self) {
        let asked = self.index().halt();
        self.trigger.poll_halt(asked);
    }

    /// Handle for signal handlers and other threads.
    #[must_use]
    pub fn requester(&self) -> &'static Request {
        self.trigger.request()
    }

    /// Whether all ranks have agreed to end.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.trigger.should_stop()
    }

    // ---- waiting and figures ------------------------------------------------------------------

    pub(crate) fn index(&self) -> Index<'_> {
        Index::new(&self.link.pool, self.link.shape)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.options.timeout_s)
    }

    /// Waits until `step` is committed at `level` or at a configured level that survives more.
    /// Local; a timeout of 0 polls.
    ///
    /// # Errors
    /// As [`Session::waiter`] and [`Waiter::wait`].
    pub fn wait(&self, step: u64, level: Level, timeout: Duration) -> Result<()> {
        let waited = self.waiter(step, level)?.wait(timeout);
        self.release_kept_snapshots(usize::MAX);
        waited
    }

    /// A waiter for `step` to be committed at `level` or at a configured level that survives more.
    /// It may wait in another thread while the program continues with the session. Local.
    ///
    /// # Errors
    /// Unsupported for a level that no configured one covers; NotFound for a step that this session
    /// never took.
    pub fn waiter(&self, step: u64, level: Level) -> Result<Waiter> {
        let mut enough = self.levels_that_cover(level)?;
        let step = Step(step);
        self.check_taken(step, &enough)?;
        match self.progress.history.get(&step) {
            // Breaks if: it is waited for where it does not go; nothing would ever be decided.
            Some(&goes) if !off(Switch::WaitedWhereItGoes) => {
                enough.retain(|&level| goes.includes(level));
            }
            _ => {
                let index = self.index();
                let decided = |&level: &Level| index.outcome(step, level) != Outcome::Pending;
                if !self.progress.history.contains_key(&step) && !off(Switch::NeverComes) {
                    enough.retain(decided);
                }
            }
        }
        if enough.is_empty() {
            return Err(self.not_there(step, level));
        }
        Ok(self.waiter_for(step, enough))
    }

    /// The configured levels that survive what `level` does; at least one.
    pub(crate) fn levels_that_cover(&self, level: Level) -> Result<Vec<Level>> {
        let mut enough: Vec<Level> = self.link.places.levels();
        if self.options.agent != AgentKind::Off && !dies_with_ranks(&self.options) {
            enough.push(Level::Process);
        }
        enough.retain(|&l| l >= level);
        if enough.is_empty() {
            let next = match (level, self.options.peers) {
                (Level::Peers(losses), had) if had > 0 => {
                    format!("set `peers` to {losses} instead of {had}, or wait for fewer losses")
                }
                (Level::Peers(losses), _) => format!("set `node_dir` and `peers = {losses}`"),
                _ => "set `global`, or wait for a weaker level".to_owned(),
            };
            return Err(Error::unsupported(format!("level {level} is not configured")).next(next));
        }
        Ok(enough)
    }

    /// The same for one of `levels`, without checking the step.
    pub(crate) fn waiter_for(&self, step: Step, levels: Vec<Level>) -> Waiter {
        Waiter {
            step,
            levels,
            patience: self.link.patience.clone(),
            shared: Arc::clone(&self.link.shared),
            clock: Arc::clone(&self.environment.clock),
        }
    }

    /// The error that a checkpoint goes neither to a level nor to a stronger one.
    fn not_there(&self, step: Step, level: Level) -> Error {
        let there: Vec<String> = self.levels_of(step).iter().map(Level::to_string).collect();
        let newest = self.progress.history.iter().rev().find(|(_, goes)| {
            let levels = goes.of(self.link.places.levels());
            levels.iter().any(|&other| other >= level)
        });
        let next = match newest {
            Some((step, _)) => format!(
                "wait for step {step}, the last one that goes there, or ask for the level when you take the checkpoint (orc_checkpoint_at)"
            ),
            None => "ask for the level when you take the checkpoint (orc_checkpoint_at)".to_owned(),
        };
        Error::not_found(format!(
            "checkpoint {step} does not go to level {level}: it goes to level {}",
            there.join(" and ")
        ))
        .next(next)
    }

    /// Checks that this session took a checkpoint of `step`, as far as it still knows.
    fn check_taken(&self, step: Step, levels: &[Level]) -> Result<()> {
        if self.progress.history.contains_key(&step) || off(Switch::NeverComes) {
            return Ok(());
        }
        let index = self.index();
        let forgotten = self.progress.history.len() >= HISTORY
            && self
                .progress
                .history
                .first_key_value()
                .is_some_and(|(&first, _)| step < first);
        let decided = |&level: &Level| index.outcome(step, level) != Outcome::Pending;
        if forgotten && levels.iter().any(decided) {
            return Ok(());
        }
        if forgotten {
            let newest = index
                .committed_step(levels[0])
                .map_or("none".to_owned(), |step| step.to_string());
            return Err(Error::not_found(format!(
                "checkpoint {step} is too long ago: only the outcomes of the last {HISTORY} are \
                 known; the newest safe at level {} is {newest}",
                levels[0]
            )));
        }
        let last = self
            .progress
            .history
            .last_key_value()
            .map_or("it took none yet".to_owned(), |(last, _)| {
                format!("its last is of step {last}")
            });
        Err(Error::not_found(format!(
            "this session took no checkpoint of step {step}; {last}"
        ))
        .next("wait for a step that was checkpointed and not skipped"))
    }

    /// Figures of the last checkpoint. Local.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let index = self.index();
        let (flushed_bytes, file_bytes) = index.flushed_bytes(self.local);
        let (pool, chunk_bytes) = (&self.link.pool, self.link.pool.shape().chunk_bytes);
        Stats {
            pool_memory_bytes: u64::from(pool.backed_chunks()) * u64::from(chunk_bytes),
            flushed_bytes,
            file_bytes,
            interval_s: self.trigger.kept().map_or(0.0, |kept| kept.interval_s),
            committed_node_step: index.committed_step(Level::Node).unwrap_or_default(),
            committed_global_step: index.committed_step(Level::Global).unwrap_or_default(),
            flush_cpu_s: index.flush_cpu_ns(self.local) as f64 / 1e9,
            captured: (self.memory.baseline.as_ref())
                .map_or_else(Captured::default, |b| b.captured()),
            lost: self.progress.outcomes.lost,
            ..self.progress.stats
        }
    }

    /// Reports to `orcheck run`, on rank 0, the warnings that were not reported yet: a program may
    /// never read them.
    pub(crate) fn pass_on_warnings(&mut self) {
        for text in self.warnings.news().filter(|_| self.rank == Rank(0)) {
            report::warned(&self.job, text);
        }
    }

    /// A restart is not warned about what is stored and not protected: the program wants a part.
    /// Local.
    pub fn want_part(&mut self) {
        self.wants_part = true;
    }

    /// Takes the oldest warning. Local.
    pub fn take_warning(&mut self) -> Option<String> {
        self.poll_outcomes();
        let mut notes = self
            .link
            .shared
            .notes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        self.warnings.append(&mut notes);
        drop(notes);
        let noted = self.index().notes();
        if let Some(agent) = self
            .link
            .threads
            .as_mut()
            .and_then(|threads| threads.agent.as_mut())
        {
            let mut notes = Vec::new();
            agent.take_notes(noted, &mut notes);
            self.warnings.extend(notes);
        }
        if let Some(baseline) = &self.memory.baseline {
            self.warnings.extend(baseline.take_notes());
        }
        self.pass_on_warnings();
        self.warnings.take()
    }
}
