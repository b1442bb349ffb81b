//! A session: one rank's view of one job.
//!
//! States: open → (found → restarted) | fresh → checkpoints → closed. A wrong order is an error
//! with a text; it changes nothing.
//!
//! Invariants:
//! 1. A checkpoint is staged by all ranks of the same step, or by none: the step, the readiness of
//!    every rank and the wish to stop travel in one message.
//! 2. A job that has checkpoints is never begun afresh by accident: `checkpoint` before `find` (or
//!    before `restart` of what was found) is refused unless `fresh` is set.
//!
//! Not here: lending (`lend.rs`), restart (`resume.rs`), the end (`drain.rs`), opening (`open.rs`).

use crate::agree::agree_min;
use crate::array::ArrayLayout;
use crate::collective::Collective;
use crate::lend::Lent;
use crate::open::{Opened, Threads, open};
use crate::options::{Marshal, Options, Overrun};
use crate::regions::{Codec, Region, Regions, SAME, Target};
use crate::resume::Resume;
use crate::stager::Stager;
use crate::trigger::{Request, Trigger};
use orcheck_engine::container::STRIPE_BYTES;
use orcheck_engine::control::ControlShared;
use orcheck_engine::epoch::Held;
use orcheck_engine::flush::STAGE_SLOT;
use orcheck_engine::index::{Index, IndexShape, Outcome};
use orcheck_engine::layout::{Layout, Mode};
use orcheck_engine::places::Places;
use orcheck_engine::prune::route_name;
use orcheck_engine::stage::{Source, StageContext, Staging};
use orcheck_engine::stream::{Entry, Plan};
use orcheck_format::container::BLOCK_BYTES;
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::ids::{Dtype, Epoch, JobName, Level};
use orcheck_format::manifest::{RegionKind, RegionRecord};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::dir::Dir;
use orcheck_io::gate::Gates;
use orcheck_io::memory::Span;
use orcheck_io::pool::Pool;
use orcheck_io::steps::Steps;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Checkpoints whose outcome can be waited for.
const HISTORY: usize = 64;

/// What a session gets from outside, so that tests can replace it.
#[derive(Clone)]
pub struct Environment {
    /// Numbered steps; absent in production.
    pub steps: Steps,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Default for Environment {
    fn default() -> Self {
        Self { steps: Steps::none(), clock: Arc::new(SystemClock) }
    }
}

/// Figures of the last checkpoint on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Its step.
    pub step: u64,
    /// Time inside `checkpoint`, seconds.
    pub blocked_s: f64,
    /// Of that: copying.
    pub stage_s: f64,
    /// Of that: waiting for an earlier flush or the stage slot.
    pub wait_s: f64,
    /// Bytes of this rank's snapshot.
    pub staged_bytes: u64,
    /// Size of the node's pool.
    pub pool_bytes: u64,
    /// Of that: in use when the checkpoint returned.
    pub pool_used_bytes: u64,
    /// Newest step committed at level `node` in this session; 0 if none.
    pub committed_node_step: u64,
    /// Newest step committed at level `global` in this session; 0 if none.
    pub committed_global_step: u64,
    /// Processor time of the CP-thread that flushes this rank, since the session opened, seconds.
    pub flush_cpu_s: f64,
    /// Checkpoints left out by `overrun = skip`.
    pub skipped: u64,
}

/// One rank's view of one job.
pub struct Session {
    pub(crate) collective: Box<dyn Collective>,
    pub(crate) options: Options,
    pub(crate) environment: Environment,
    pub(crate) rank: u32,
    pub(crate) local: u32,
    writer: u32,
    pub(crate) job: JobName,
    pub(crate) layout: Layout,
    pub(crate) epoch: Epoch,
    pub(crate) places: Places,
    pub(crate) pool: Arc<Pool>,
    pub(crate) shape: IndexShape,
    pub(crate) shared: Arc<ControlShared>,
    pub(crate) threads: Option<Threads>,
    pub(crate) held: Option<Held>,
    gates: Gates,
    pub(crate) regions: Regions,
    pub(crate) trigger: Trigger,
    pub(crate) stager: Option<Stager>,
    pub(crate) lent: BTreeMap<String, Lent>,
    pub(crate) allocations: BTreeMap<usize, (u32, u32)>,
    pub(crate) resume: Resume,
    pub(crate) route: Option<(Arc<dyn Dir>, Arc<dyn Dir>, String)>,
    pub(crate) last_step: Option<u64>,
    pub(crate) last_taken: Option<u64>,
    pub(crate) taken: BTreeSet<u64>,
    /// The last steps taken, whatever became of them.
    history: BTreeSet<u64>,
    turn: u64,
    stats: Stats,
    pub(crate) warnings: Vec<String>,
}

/// A checkpoint made ready on one rank.
struct Prepared {
    plan: Plan,
    records: Vec<RegionRecord>,
    sources: Vec<Source>,
    lent: Vec<(String, bool)>,
}

impl Session {
    /// Opens a session of `job`. Collective.
    ///
    /// # Errors
    /// Of any rank, on all ranks: options, directories, another living run, memory.
    pub fn open(job: &str, collective: Box<dyn Collective>, options: Option<&str>) -> Result<Self> {
        Self::open_with(job, collective, Options::load(options), Environment::default())
    }

    /// As [`Self::open`], with everything from outside given.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        job: &str,
        mut collective: Box<dyn Collective>,
        options: Result<Options>,
        environment: Environment,
    ) -> Result<Self> {
        let (opened, options) = open(job, collective.as_mut(), options, &environment)?;
        let rank = collective.rank();
        let Opened {
            job,
            layout,
            epoch,
            places,
            pool,
            shape,
            shared,
            threads,
            held,
            notes,
            gates,
            trigger,
        } = opened;
        Ok(Self {
            local: layout.local_index(rank),
            writer: layout.writer_of(rank),
            collective,
            environment,
            rank,
            job,
            layout,
            epoch,
            places,
            pool,
            shape,
            shared,
            threads: Some(threads),
            held,
            gates,
            regions: Regions::default(),
            trigger,
            stager: None,
            lent: BTreeMap::new(),
            allocations: BTreeMap::new(),
            resume: Resume::default(),
            route: None,
            last_step: None,
            last_taken: None,
            taken: BTreeSet::new(),
            history: BTreeSet::new(),
            turn: 0,
            stats: Stats::default(),
            warnings: notes,
            options,
        })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// This run's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    // ---- regions -----------------------------------------------------------------------------

    /// Names flat memory as part of the state. Again: a new address or size. Local.
    ///
    /// # Errors
    /// Invalid name, flags or length; Unavailable while the region is lent.
    pub fn protect(&mut self, name: &str, span: Span, dtype: Dtype, flags: u32) -> Result<()> {
        let len_bytes = span.len_bytes() as u64;
        if !len_bytes.is_multiple_of(dtype.size_bytes()) {
            return Err(Error::invalid(format!(
                "region '{name}': {len_bytes} bytes are no whole number of {} elements of {} bytes",
                dtype.name(),
                dtype.size_bytes()
            )));
        }
        let shape = (Vec::new(), Vec::new(), Vec::new());
        let target = Target::Memory(span);
        self.put(name, Region { kind: RegionKind::Bytes, dtype, flags, target, shape })
    }

    /// Names an array, possibly strided, possibly a slice of a global one. `span` covers it from
    /// its first to its last element. Local.
    ///
    /// # Errors
    /// As [`Self::protect`]; Invalid for shapes that do not fit.
    pub fn protect_array(&mut self, name: &str, span: Span, layout: ArrayLayout, flags: u32) -> Result<()> {
        layout.validate().map_err(|error| error.at(format!("region '{name}'")))?;
        let extent_bytes = layout.extent_bytes()?;
        if span.len_bytes() as u64 != extent_bytes {
            return Err(Error::invalid(format!(
                "region '{name}': the array spans {extent_bytes} bytes, the memory {}",
                span.len_bytes()
            )));
        }
        let dtype = layout.dtype;
        let shape = (layout.local.clone(), layout.global.clone(), layout.offset.clone());
        let target = if layout.is_contiguous() {
            Target::Memory(span)
        } else {
            Target::Strided(span, layout)
        };
        self.put(name, Region { kind: RegionKind::Array, dtype, flags, target, shape })
    }

    /// Names something that packs and unpacks itself. Local.
    ///
    /// # Errors
    /// Invalid name or flags (`SAME` needs flat memory).
    pub fn protect_codec(&mut self, name: &str, codec: Box<dyn Codec>, flags: u32) -> Result<()> {
        let target = Target::Codec(Arc::new(std::sync::Mutex::new(codec)));
        let shape = (Vec::new(), Vec::new(), Vec::new());
        self.put(name, Region { kind: RegionKind::Codec, dtype: Dtype::Bytes, flags, target, shape })
    }

    fn put(&mut self, name: &str, region: Region) -> Result<()> {
        if matches!(self.lent.get(name), Some(Lent::Streamed(_) | Lent::Borrowed(_)))
            && !self.lent_is_back(name, Duration::ZERO)?
        {
            return Err(Error::unavailable(format!("region '{name}' is still lent"))
                .next("wait with lent_done before moving it"));
        }
        if region.flags & SAME != 0 && !matches!(region.target, Target::Memory(_)) {
            return Err(Error::invalid(format!("region '{name}': SAME needs contiguous memory")));
        }
        self.regions.put(name, region)?;
        let chunk_bytes = u64::from(self.pool.shape().chunk_bytes);
        let outside = |span: Span| self.pool.offset_of(span).is_none();
        let chunks = self.regions.memory_bytes(outside).div_ceil(chunk_bytes) + 1;
        self.index().want_chunks(self.local, self.writer, chunks);
        Ok(())
    }

    /// Forgets a region. Local.
    ///
    /// # Errors
    /// NotFound; Unavailable while it is lent.
    pub fn unprotect(&mut self, name: &str) -> Result<()> {
        self.regions.get(name)?;
        if !self.lent_is_back(name, Duration::ZERO)? {
            return Err(Error::unavailable(format!("region '{name}' is still lent"))
                .next("wait with lent_done before unprotecting it"));
        }
        self.lent.remove(name);
        self.regions.remove(name)
    }

    /// A path at which the program writes a file that becomes region `name`: read at each
    /// checkpoint, written back by `restart`. Local.
    ///
    /// # Errors
    /// What the directory says.
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) || name.starts_with('.') {
            return Err(Error::invalid(format!(
                "routed file '{}': allowed are 1 to 128 letters, digits, '.', '_' and '-', not beginning with '.'",
                name.escape_debug()
            )));
        }
        if self.route.is_none() {
            let parent = self.places.all().into_iter().next().ok_or_else(|| {
                Error::unavailable("no directory of this job is left for routed files")
            })?;
            let child = route_name(self.epoch, self.rank);
            let dir = parent.child(&child, true)?;
            self.route = Some((parent, dir, child));
        }
        let target = Target::File(name.to_owned());
        let shape = (Vec::new(), Vec::new(), Vec::new());
        self.put(name, Region { kind: RegionKind::File, dtype: Dtype::Bytes, flags: 0, target, shape })?;
        match &self.route {
            Some((_, dir, _)) => Ok(dir.path().join(name)),
            None => Err(Error::internal("the routed directory vanished")),
        }
    }

    // ---- triggers ----------------------------------------------------------------------------

    /// Whether a checkpoint is due at `step`. Collective; usually without a message.
    ///
    /// # Errors
    /// What the collective says.
    pub fn due(&mut self, step: u64) -> Result<bool> {
        self.trigger.due(self.collective.as_mut(), step)
    }

    /// Handle for signal handlers and other threads.
    #[must_use]
    pub fn requester(&self) -> &'static Request {
        self.trigger.request()
    }

    /// Whether all ranks agreed to end.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.trigger.should_stop()
    }

    // ---- checkpoint --------------------------------------------------------------------------

    pub(crate) fn index(&self) -> Index<'_> {
        Index::new(&self.pool, self.shape)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.options.timeout_s)
    }

    /// Stages a checkpoint of `step` and returns; the rest happens in the background. Collective.
    ///
    /// # Errors
    /// Invalid order or step; what a codec or the pool says. The state of the program is untouched.
    pub fn checkpoint(&mut self, step: u64) -> Result<()> {
        let clock = Arc::clone(&self.environment.clock);
        let begun = clock.now();
        self.make_sure_of_the_past()?;
        let turn = self.turn;
        let prepared = self.prepare(step);
        if let Ok(prepared) = &prepared {
            self.index().declare_chunks(self.local, turn, self.chunks_of(prepared));
        }
        let same = self.regions.same_crc();
        let busy = self.flushing() >= self.options.held_steps as usize;
        let mut values = [
            step as i64,
            !(step as i64),
            same as i64,
            !(same as i64),
            -i64::from(busy),
            -i64::from(self.trigger.wants_stop()),
        ];
        let prepared = agree_min(self.collective.as_mut(), prepared, &mut values)?;
        if values[0] != !values[1] {
            return Err(Error::invalid(format!(
                "the ranks checkpoint different steps, from {} to {}",
                values[0] as u64, !values[1] as u64
            )));
        }
        if values[2] != !values[3] {
            return Err(Error::invalid("regions flagged SAME differ between ranks")
                .next("drop the flag, or make them equal before the checkpoint"));
        }
        self.trigger.agree_stop(values[5] != 0);
        if values[4] != 0 && !self.overrun(step)? {
            return Ok(());
        }
        self.turn += 1;
        self.last_step = Some(step);
        self.last_taken = Some(step);
        self.taken.insert(step);
        self.history.insert(step);
        if self.history.len() > HISTORY {
            self.history.pop_first();
        }
        let staged = self.stage(step, turn, prepared, begun);
        let blocked_s = clock.now().saturating_sub(begun).as_secs_f64();
        self.stats.blocked_s = blocked_s;
        self.trigger.taken(blocked_s);
        self.lent.retain(|_, lent| !matches!(lent, Lent::Announced));
        staged
    }

    /// Snapshots of this rank that have not left the pool.
    fn flushing(&mut self) -> usize {
        let index = Index::new(&self.pool, self.shape);
        let local = self.local;
        self.taken.retain(|&step| !index.is_done(local, step));
        self.taken.len()
    }

    /// What to do although the last checkpoint is still being flushed; false: leave this one out.
    fn overrun(&mut self, step: u64) -> Result<bool> {
        let last = self.last_step.unwrap_or(0);
        match self.options.overrun {
            Overrun::Wait => Ok(true),
            Overrun::Skip => {
                self.stats.skipped += 1;
                self.warnings.push(format!("checkpoint {step} was left out: {last} is still being flushed"));
                Ok(false)
            }
            Overrun::Error => Err(Error::unavailable(format!(
                "checkpoint {step} comes while {last} is still being flushed"
            ))
            .next("checkpoint less often, or set overrun = \"wait\"")),
        }
    }

    fn prepare(&mut self, step: u64) -> Result<Prepared> {
        if i64::try_from(step).is_err() {
            return Err(Error::invalid(format!("step {step} is too large")));
        }
        if self.last_step.is_some_and(|last| step <= last) {
            return Err(Error::invalid(format!(
                "step {step} does not grow: the last checkpoint was of step {}",
                self.last_step.unwrap_or(0)
            )));
        }
        if self.regions.is_empty() {
            return Err(Error::invalid("no region is protected").next("call protect before checkpoint"));
        }
        let node = &self.layout.nodes[self.layout.node_of(self.rank) as usize];
        let storer = node.ranks.first().copied().unwrap_or(self.rank);
        let route = self.route.as_ref().map(|(_, dir, _)| dir);
        let striped = self.options.mode == Mode::Traditional;
        let (mut records, mut sources, mut entries, mut lent) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, region) in self.regions.iter() {
            let elsewhere = (region.flags & SAME != 0 && storer != self.rank).then_some(storer);
            let (record, source) = region.prepare(name, elsewhere, route)?;
            let len_bytes = record.len_bytes;
            let entry = match (&source, self.lent.get(name)) {
                (Source::Elsewhere, _) => Entry::Copied { len_bytes: 0 },
                (Source::Memory(span), Some(Lent::Announced)) => {
                    let pool_at = self.pool.offset_of(*span).filter(|at| at.is_multiple_of(BLOCK_BYTES as u64));
                    lent.push((name.clone(), pool_at.is_some() && !striped));
                    match pool_at {
                        Some(pool_at_bytes) if !striped => Entry::Borrowed { len_bytes, pool_at_bytes },
                        _ => Entry::Streamed { len_bytes },
                    }
                }
                _ => Entry::Copied { len_bytes },
            };
            records.push(record);
            sources.push(source);
            entries.push(entry);
        }
        let chunk_bytes = u64::from(self.pool.shape().chunk_bytes);
        let plan = Plan::new(&entries, chunk_bytes, self.cut_bytes());
        Ok(Prepared { plan, records, sources, lent })
    }

    /// Longest extent: a chunk, or a stripe unit when striped.
    fn cut_bytes(&self) -> u64 {
        match self.options.mode {
            Mode::Traditional => STRIPE_BYTES,
            _ => u64::from(self.pool.shape().chunk_bytes),
        }
    }

    /// Chunks this rank needs so that nobody has to wait: its snapshots, their records, and what
    /// `alloc` took from the pool.
    fn chunks_of(&self, prepared: &Prepared) -> u64 {
        let extents: u64 = prepared.plan.segments.iter().map(|segment| segment.pieces.len() as u64).sum();
        let record_bytes = 4096 + extents * 96 + prepared.records.len() as u64 * 512;
        let record = record_bytes.div_ceil(u64::from(self.pool.shape().chunk_bytes));
        let own: u64 = self.allocations.values().map(|&(_, chunks)| u64::from(chunks)).sum();
        (prepared.plan.packed_chunks() + record) * u64::from(self.options.held_steps) + own
    }

    fn stage(&mut self, step: u64, turn: u64, prepared: Prepared, begun: Duration) -> Result<()> {
        let clock = Arc::clone(&self.environment.clock);
        let timeout = self.timeout();
        let wait_from = clock.now();
        if self.options.held_steps as usize <= self.flushing_before(step) {
            self.wait_for_room(step, timeout)?;
        }
        let fits = self.index().declared_chunks(turn) <= u64::from(self.pool.shape().chunk_count);
        let slot = if fits && self.options.marshal == Marshal::Auto {
            None
        } else {
            Some(self.gates.lock(STAGE_SLOT, timeout).map_err(|error| error.at("stage slot of the node")))
        };
        let stage_from = clock.now();
        let context = StageContext {
            pool: Arc::clone(&self.pool),
            shape: self.shape,
            local: self.local,
            rank: self.rank,
            writer: self.writer,
            timeout,
            steps: self.environment.steps.clone(),
        };
        let staged_bytes: u64 = prepared.records.iter().map(|record| record.len_bytes).sum();
        let (slot, refused) = match slot.transpose() {
            Ok(slot) => (slot, None),
            Err(error) => (None, Some(error)),
        };
        let parts = (prepared.records, prepared.sources);
        let mut staging = Staging::new(context, step, prepared.plan, parts, slot, self.cut_bytes() as u32);
        staging.begin()?;
        if let Some(error) = refused {
            return Err(error);
        }
        staging.foreground(self.options.copy_threads)?;
        for (name, borrowed) in prepared.lent {
            let lent = if borrowed { Lent::Borrowed(step) } else { Lent::Streamed(step) };
            self.lent.insert(name, lent);
        }
        if staging.has_background() {
            let stager = match self.stager.take() {
                Some(stager) => stager,
                None => Stager::start()?,
            };
            stager.hand_over(step, staging)?;
            self.stager = Some(stager);
        } else {
            staging.finish()?;
        }
        let now = clock.now();
        let shape = self.pool.shape();
        self.stats.step = step;
        self.stats.blocked_s = now.saturating_sub(begun).as_secs_f64();
        self.stats.wait_s = stage_from.saturating_sub(wait_from).as_secs_f64();
        self.stats.stage_s = now.saturating_sub(stage_from).as_secs_f64();
        self.stats.staged_bytes = staged_bytes;
        self.stats.pool_bytes = u64::from(shape.chunk_count) * u64::from(shape.chunk_bytes);
        self.stats.pool_used_bytes =
            u64::from(shape.chunk_count - self.pool.free_chunks()) * u64::from(shape.chunk_bytes);
        Ok(())
    }

    /// Earlier snapshots of this rank that are still in the pool.
    fn flushing_before(&self, step: u64) -> usize {
        let index = self.index();
        self.taken.iter().filter(|&&other| other < step && !index.is_done(self.local, other)).count()
    }

    fn wait_for_room(&self, step: u64, timeout: Duration) -> Result<()> {
        let held = self.options.held_steps as usize;
        let earlier: Vec<u64> = self.taken.iter().copied().filter(|&other| other < step).collect();
        let Some(&oldest) = earlier.len().checked_sub(held).and_then(|at| earlier.get(at)) else { return Ok(()) };
        if self.index().wait_done(self.local, oldest, timeout) {
            return Ok(());
        }
        Err(if self.index().is_gone() {
            self.engine_gone()
        } else {
            Error::unavailable(format!(
                "checkpoint {step} waited {:.0} s for the flush of {oldest}",
                timeout.as_secs_f64()
            ))
            .next("look for a stalled directory; raise timeout_s if it is only slow")
        })
    }

    pub(crate) fn engine_gone(&self) -> Error {
        let notes = self.shared.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let why = notes.last().map(|note| format!(": {note}")).unwrap_or_default();
        Error::unavailable(format!("the checkpoint engine of this node ended{why}"))
            .next("end the program and restart it from the last committed checkpoint")
    }

    /// Waits until `step` is committed at `level` or at a configured level that survives more.
    /// Local; a timeout of 0 polls.
    ///
    /// # Errors
    /// Why it was lost; Unavailable at the deadline; Unsupported for a level that no configured one
    /// covers; NotFound for a step that this session never took.
    pub fn wait(&self, step: u64, level: Level, timeout: Duration) -> Result<()> {
        let Some(level) = self.places.levels().into_iter().find(|&configured| configured >= level) else {
            return Err(Error::unsupported(format!("level {level} is not configured"))
                .next("set `global` for level global; level peers needs node agents, which this version has not"));
        };
        self.check_taken(step, level)?;
        let clock = &self.environment.clock;
        let until = clock.now() + timeout;
        loop {
            let index = self.index();
            let news = index.news();
            match index.outcome(step, level) {
                Outcome::Committed => return Ok(()),
                Outcome::Lost(error) => {
                    return Err(error.at(format!("checkpoint {step} is not safe at level {level}")));
                }
                Outcome::Pending => {}
            }
            if index.is_gone() {
                return Err(self.engine_gone());
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                return Err(Error::unavailable(format!(
                    "checkpoint {step} is not yet safe at level {level} after {:.3} s",
                    timeout.as_secs_f64()
                ))
                .next("wait longer; it goes on in the background"));
            }
            index.wait_news(news, left.min(Duration::from_millis(200)));
        }
    }

    /// Whether this session took a checkpoint of `step`, as far as it still knows.
    fn check_taken(&self, step: u64, level: Level) -> Result<()> {
        if self.history.contains(&step) {
            return Ok(());
        }
        let index = self.index();
        let forgotten = self.history.len() == HISTORY && self.history.first().is_some_and(|&first| step < first);
        if forgotten && index.outcome(step, level) != Outcome::Pending {
            return Ok(());
        }
        if forgotten {
            let newest = index.committed_step(level).map_or("none".to_owned(), |step| step.to_string());
            return Err(Error::not_found(format!(
                "checkpoint {step} is too long ago: what became of the last {HISTORY} is known; the newest safe at level {level} is {newest}"
            )));
        }
        let last = self.history.last().map_or("it took none yet".to_owned(), |last| format!("its last is of step {last}"));
        Err(Error::not_found(format!("this session took no checkpoint of step {step}; {last}"))
            .next("wait for a step that was checkpointed and not skipped"))
    }

    /// Figures of the last checkpoint. Local.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let index = self.index();
        Stats {
            committed_node_step: index.committed_step(Level::Node).unwrap_or(0),
            committed_global_step: index.committed_step(Level::Global).unwrap_or(0),
            flush_cpu_s: index.flush_cpu_ns(self.local) as f64 / 1e9,
            ..self.stats
        }
    }

    /// The oldest warning that was not taken yet. Local.
    pub fn take_warning(&mut self) -> Option<String> {
        let mut notes = self.shared.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.warnings.append(&mut notes);
        drop(notes);
        if self.warnings.is_empty() { None } else { Some(self.warnings.remove(0)) }
    }
}

/// Whether an error means that a checkpoint is damaged rather than that the call was wrong.
pub(crate) fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unavailable)
}
