//! Takes a checkpoint: prepares it, agrees on it and stages it.
//!
//! Invariants:
//! 1. Either all ranks stage a checkpoint of the same step, or none does: the step, the readiness
//!    of every rank, the wish to stop and the levels travel in one message.
//! 2. All ranks of a node decide from the same numbers whether the pool holds all snapshots.
//! 3. All ranks return the same status. An error known before the agreement is returned by all, and
//!    nothing is staged. An error that only one rank meets afterwards (a codec, the pool) costs the
//!    step: that rank is warned at once, its CP-thread tells the others why, and nobody waits.
//!
//! Not here: copying (`engine::capture`), lending (`lend.rs`), what happens afterwards (`engine`).

use crate::checkpoint::agreement::{Agreed, Minima, Offer};
use crate::checkpoint::backlog::Blocker;
use crate::collective::agree_min;
use crate::memory_files::note_borrowed;
use crate::options::{AgentKind, Marshal};
use crate::regions::{CPU_WRITES_ONLY, Regions, RoutedFiles, SAME};
use crate::session::{HISTORY, Lent, RETURN_WAIT, Session, Stager, engine_gone};
use orcheck_engine::capture::{
    Beginning, Capture, EXTENT_BYTES, Entry, Fate, Pages, Parts, Plan, Source, StageContext,
    Staging,
};
use orcheck_engine::flush::{STAGE_SLOT, STRIPE_BYTES};
use orcheck_engine::node::{Goes, Index, Mode, Outcome};
use orcheck_format::disk::{
    BLOCK_BYTES, FileName, MAX_ENCODED_BYTES, MAX_METADATA_BYTES, SEAL_BYTES,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Level, Result, Step, hex};
use orcheck_io::machine::cpuset;
use orcheck_io::memory::{Span, fetch_code_ahead};
use orcheck_pool::{Gate, page_bytes};
use std::sync::Arc;
use std::time::Duration;

/// A snapshot of a rank up to this length does not wake the CP-thread before all ranks of the node
/// return: what the flush would gain by beginning earlier, ranks that still copy would lose.
const QUIET_BYTES: u64 = 32 << 20;

/// The longest part of a stream that pages of a span become: whole blocks, and a page for the
/// partial one at each end.
fn tracked_bytes(span: Span) -> u64 {
    (span.len_bytes().next_multiple_of(BLOCK_BYTES) + 2 * page_bytes()) as u64
}

/// What all ranks have agreed to stage, or to skip if an earlier checkpoint blocks it.
struct Ready {
    prepared: Prepared,
    agreed: Agreed,
    /// The blocker that this rank saw.
    blocker: Option<Blocker>,
    /// When the agreement was reached, and how long it took.
    agreed_at: Duration,
    agreeing: Duration,
}

/// A checkpoint that is prepared on one rank.
struct Prepared {
    parts: Parts,
    lent: Vec<(String, bool)>,
    /// How long this rank waited for room before.
    waited: Duration,
}

/// When one call reached what, and how long it waited.
struct Times {
    begun: Duration,
    /// When the ranks had agreed, and how long that took.
    agreed: Duration,
    agreeing: Duration,
    /// Waiting for room before the agreement, and after it.
    waited: [Duration; 2],
}

impl Prepared {
    /// Regions whose written pages alone are read.
    fn tracked(&self) -> impl Iterator<Item = Span> {
        self.parts
            .sources()
            .iter()
            .filter_map(|source| match source {
                Source::Tracked(span) => Some(*span),
                _ => None,
            })
    }
}

/// Checks a checkpoint of `step` after one of `last`, without looking at the directories.
///
/// # Errors
/// Invalid: the step, or no region is protected.
pub(crate) fn check_call(step: Step, last: Option<Step>, regions: &Regions) -> Result<()> {
    if i64::try_from(step.0).is_err() {
        return Err(Error::invalid(format!("step {step} is too large")));
    }
    if let Some(last) = last
        && step <= last
        && !off(Switch::StepGrows)
    {
        return Err(Error::invalid(format!(
            "step {step} does not grow: the last checkpoint was of step {last}"
        )));
    }
    if regions.is_empty() {
        return Err(Error::invalid("no region is protected").next("call protect before checkpoint"));
    }
    Ok(())
}

impl Session {
    /// Stages a checkpoint of `step` and returns; everything else happens in the background.
    /// Collective.
    ///
    /// # Errors
    /// The same on all ranks, and then no rank has staged `step`: an invalid order or step, a loss
    /// that is to be returned, a flush that takes too long, an engine that has ended. The state of
    /// the program is untouched. An error that only one rank meets later, such as a codec that
    /// fails, costs the step and is reported like any loss.
    pub fn checkpoint(&mut self, step: u64) -> Result<()> {
        self.checkpoint_at(step, None)
    }

    /// As [`Self::checkpoint`], for a checkpoint that goes at least to the weakest configured level
    /// that survives what `level` does, and to everything that is due. If levels have no paces of
    /// their own and no checkpoint is due, it goes no further. Collective; if the ranks ask for
    /// different levels, the strongest counts.
    ///
    /// # Errors
    /// As there; Unsupported for a level that no configured one covers.
    pub fn checkpoint_at(&mut self, step: u64, level: Option<Level>) -> Result<()> {
        let step = Step(step);
        self.agents.replaced_in_call = 0;
        let taken = self.take(step, level);
        taken.map_err(|error| {
            self.trigger.not_taken();
            not_staged(step, error)
        })
    }

    fn take(&mut self, step: Step, asked: Option<Level>) -> Result<()> {
        let clock = Arc::clone(&self.environment.clock);
        let begun = clock.now();
        self.fetch_ahead();
        // Before looking for another agent, for which the session would claim a new epoch.
        self.require_no_failed_restart()?;
        self.replace_dead_agent()?;
        let mut settling = Duration::ZERO;
        if self.progress.last_taken.is_none() {
            self.require_restart_decided()?;
            settling = clock.now().saturating_sub(begun);
        }
        let turn = self.progress.turn;
        let Some(ready) = self.agree_on_checkpoint(step, turn, asked)? else {
            self.replace_agents()?;
            return self.take(step, asked);
        };
        let mut times = Times {
            begun,
            agreed: ready.agreed_at,
            agreeing: ready.agreeing,
            waited: [ready.prepared.waited, Duration::ZERO],
        };
        let (prepared, agreed) = (ready.prepared, ready.agreed);
        if let Err(error) = self.return_loss(agreed.owes) {
            self.trigger.left_out();
            return Err(error);
        }
        self.trigger.agree_stop(agreed.stop);
        // The last checkpoint before the end is never skipped.
        let last = self.trigger.should_stop();
        let goes = self.trigger.levels_at(agreed.depth);
        self.progress.heading = goes;
        if agreed.blocked && !last && !self.overrun(step, ready.blocker)? {
            self.trigger.left_out();
            return Ok(());
        }
        let turns = self.note_taken(step, goes);
        if let Err(error) = self.stage(step, (turn, turns), prepared, &mut times) {
            self.warnings
                .push(gave_up(step, error).message().to_owned());
        }
        // Breaks if: a rank that failed is not counted; every later lent region would wait in vain.
        self.index().note_return();
        let blocked_s = self.note_times(&times);
        let flush_cpu_ns = self.flush_cpu_ns_of_node();
        // Breaks if: settling the past counts, such as removing what killed runs left; no other
        // checkpoint has this cost, and the next ones would be delayed.
        let own_s = (blocked_s - settling.as_secs_f64()).max(0.0);
        let depth = goes.of(self.options.levels()).len();
        (self.trigger).taken_at((step, depth), own_s, flush_cpu_ns);
        self.memory
            .lent
            .retain(|_, lent| !matches!(lent, Lent::Announced));
        Ok(())
    }

    /// Has the processor fetch what this call is about to use, all at once. A program that computed
    /// for a while has taken its caches and translations, and each page that is touched by itself
    /// then costs a microsecond or more.
    fn fetch_ahead(&self) {
        fetch_code_ahead(Self::checkpoint_at as *const (), 0, 12);
        fetch_code_ahead(Self::take_warning as *const (), 0, 2);
        Staging::fetch_ahead();
        self.trigger.fetch_ahead();
        (self.index()).fetch_ahead(self.local, self.writer, self.progress.turn);
    }

    /// Notes where the time of a call went that ends now; returns all of it, in seconds.
    fn note_times(&mut self, times: &Times) -> f64 {
        let since = |then: Duration, now: Duration| now.saturating_sub(then);
        let now = self.environment.clock.now();
        let stats = &mut self.progress.stats;
        let (all, rest) = (since(times.begun, now), since(times.agreed, now));
        stats.spent(all, times.agreeing, times.waited, rest);
        stats.blocked_s
    }

    /// Prepares this rank, and agrees with the others whether and how the checkpoint is taken.
    /// `None`: some node's agent has ended; the session must first be opened again.
    fn agree_on_checkpoint(
        &mut self,
        step: Step,
        turn: u64,
        asked: Option<Level>,
    ) -> Result<Option<Ready>> {
        let covered = asked.map_or(Ok(()), |level| self.levels_that_cover(level).map(drop));
        let depth = self.trigger.depth_wished(step, asked);
        self.progress.heading = self.trigger.levels_at(depth);
        // Before the agreement: a rank that waits in vain tells all others, and nothing is staged.
        let room = covered.and_then(|()| self.wait_for_room_here());
        let prepared = room.and_then(|waited| self.prepare(step, waited));
        if let Ok(prepared) = &prepared {
            self.declare(prepared, (turn, step));
        }
        let same = self.memory.regions.same_crc();
        self.poll_halt();
        let has_agent = self.options.agent != AgentKind::Off;
        let ended = self.engine_ended();
        self.poll_outcomes();
        let prepared = match ended && !has_agent {
            // Breaks if: this is left to staging; only the ranks of this node would return an
            // error.
            true => Err(engine_gone(&self.link.shared)),
            false => prepared,
        };
        // Read once: what is reported later is what was agreed on.
        let blocker = self.blocker();
        let offer = Offer {
            step,
            same,
            blocked: blocker.is_some(),
            stop: self.trigger.stops_with_this(),
            owes: self.progress.outcomes.owes(),
            agent_ended: has_agent && ended,
            depth,
        };
        let mut values = offer.encode();
        let clock = Arc::clone(&self.environment.clock);
        let begun = clock.now();
        let prepared = agree_min(self.collective.as_mut(), prepared, &mut values)?;
        let agreed_at = clock.now();
        let least = Minima(values);
        if least.any_agent_ended() {
            return Ok(None);
        }
        Ok(Some(Ready {
            prepared,
            agreed: least.agreed()?,
            blocker,
            agreed_at,
            agreeing: agreed_at.saturating_sub(begun),
        }))
    }

    /// Whether the engine of this node has ended. An agent that was killed reports nothing, and a
    /// rank that misses it tells the others. Without agents the engine is in a rank: a thread of
    /// it that ends says so, and a rank that was killed cannot agree to anything.
    fn engine_ended(&self) -> bool {
        match self.options.agent {
            AgentKind::Off => self.index().is_gone(),
            _ => self.agent_ended(),
        }
    }

    /// Counts a checkpoint that all ranks are about to stage; returns the number of those before
    /// that went to the strongest level, and of those after the last one that did.
    fn note_taken(&mut self, step: Step, goes: Goes) -> (u64, u64) {
        if self.local == 0 {
            self.index().note_going(self.progress.turn, step, goes);
        }
        let levels = self.link.places.levels();
        let strongest = levels.last().is_none_or(|&level| goes.includes(level));
        let progress = &mut self.progress;
        let turns = progress.turns;
        progress.turns = match strongest {
            true => (turns.0 + 1, 0),
            false => (turns.0, turns.1 + 1),
        };
        progress.turn += 1;
        progress.last_step = Some(step);
        progress.last_taken = Some(step);
        progress.taken.insert(step);
        progress.history.insert(step, goes);
        progress.outcomes.took(step, &goes.of(levels));
        // What is not decided yet is waited for next (`backlog.rs`).
        while progress.history.len() > HISTORY
            && let Some(oldest) = progress.history.first_entry()
            && (progress.outcomes.open.first()).is_some_and(|(open, _)| open > oldest.key())
        {
            oldest.remove();
        }
        turns
    }

    fn prepare(&mut self, step: Step, waited: Duration) -> Result<Prepared> {
        check_call(step, self.progress.last_step, &self.memory.regions)?;
        self.memory.files.check_complete()?;
        if let Some(parts) = self.parts_of_last() {
            let lent = Vec::new();
            return Ok(Prepared {
                parts,
                lent,
                waited,
            });
        }
        let node = &self.link.layout.nodes[self.link.layout.node_of(self.rank).index()];
        let storer = node.ranks.first().copied().unwrap_or(self.rank);
        let route = self.memory.route.as_ref();
        let striped = self.options.mode == Mode::Traditional;
        let (mut records, mut sources, mut entries, mut lent) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, region) in self.memory.regions.iter() {
            let elsewhere = (region.flags & SAME != 0 && storer != self.rank).then_some(storer);
            let files = route.map(|route| route as &dyn RoutedFiles);
            let Some((record, source)) = region.prepare(name, elsewhere, files)? else {
                continue;
            };
            let len_bytes = record.len_bytes;
            let source = self.tracked_or(name, region.flags, source);
            let in_pool = |span: Span| {
                let at = self.link.pool.offset_of(span).filter(|_| !striped);
                at.filter(|at| at.is_multiple_of(BLOCK_BYTES as u64))
            };
            let announced = matches!(self.memory.lent.get(name), Some(Lent::Announced));
            let entry = match source {
                Source::Elsewhere | Source::Tracked(_) => Entry::Copied { len_bytes: 0 },
                Source::Memory(span) if announced || region.is_memory_file() => match in_pool(span)
                {
                    Some(pool_at_bytes) => Entry::Borrowed {
                        len_bytes,
                        pool_at_bytes,
                    },
                    None if announced => Entry::Streamed { len_bytes },
                    None => Entry::Copied { len_bytes },
                },
                _ => Entry::Copied { len_bytes },
            };
            match entry {
                Entry::Borrowed { .. } => lent.push((name.clone(), true)),
                Entry::Streamed { .. } => lent.push((name.clone(), false)),
                Entry::Copied { .. } => {}
            }
            records.push(record);
            sources.push(source);
            entries.push(entry);
        }
        let routed_bytes = match route {
            Some(route) => route.take_stock(&self.index(), self.local)?,
            None => 0,
        };
        self.progress.stats.routed_bytes = routed_bytes;
        let chunk_bytes = u64::from(self.link.pool.shape().chunk_bytes);
        let plan = Plan::new(&entries, chunk_bytes, self.cut_bytes());
        let parts = Parts::new(plan, records, sources);
        Ok(Prepared {
            parts,
            lent,
            waited,
        })
    }

    /// What the last snapshot was made of, if this one is of the same.
    fn parts_of_last(&mut self) -> Option<Parts> {
        let (changes, parts) = self.memory.parts.take()?;
        let announced = |lent: &Lent| matches!(lent, Lent::Announced);
        // Breaks if: a region that was declared again is read where it was before.
        let same = changes == self.memory.regions.changes() || off(Switch::PartsOfLast);
        (same && !self.memory.lent.values().any(announced)).then_some(parts)
    }

    /// Keeps what a snapshot was made of, if the next one may be of the same.
    fn keep_parts(&mut self, parts: Parts) {
        let memory = &mut self.memory;
        let plain = memory.baseline.is_none() && memory.route.is_none();
        memory.parts = (plain && parts.is_same_again()).then(|| (memory.regions.changes(), parts));
    }

    /// Turns memory into a source whose written pages alone are read, if the program allows it and
    /// the system supports it; other sources are unchanged.
    fn tracked_or(&self, name: &str, flags: u32, source: Source) -> Source {
        let (Some(baseline), Source::Memory(span)) = (&self.memory.baseline, &source) else {
            return source;
        };
        let whole_pages =
            (self.link.pool.shape().chunk_bytes as usize).is_multiple_of(page_bytes());
        // An encoded extent is referred to as a whole, not by runs of its pages.
        let tracked = flags & CPU_WRITES_ONLY != 0
            && !self.link.encoded
            && !self.memory.lent.contains_key(name)
            && self.link.pool.offset_of(*span).is_none()
            && whole_pages
            && baseline.track(name, *span, &self.environment.failpoints);
        if tracked {
            return Source::Tracked(*span);
        }
        source
    }

    /// Takes the baseline for the snapshot of `step`.
    fn capture(
        &self,
        step: Step,
        turn: (u64, u64),
        prepared: &Prepared,
    ) -> Option<(Capture, usize)> {
        let (baseline, chain) = (
            self.memory.baseline.as_ref()?,
            self.options.incremental_chain?,
        );
        let names = prepared
            .parts
            .regions()
            .iter()
            .zip(prepared.parts.sources());
        let names = names.map(|(record, source)| {
            let tracked = matches!(source, Source::Tracked(_));
            // Encryption binds a region to its declaration: with another declaration it is another
            // region.
            let name = if self.link.encoded {
                format!("{}\0{}", record.name, hex(&record.identity()))
            } else {
                record.name.clone()
            };
            (name, tracked)
        });
        let index = self.index();
        let fate = |step: Step, level: Level| match index.outcome(step, level) {
            Outcome::Committed => (Fate::Committed, false),
            Outcome::Lost(error) => (Fate::Lost, error.kind() != ErrorKind::NoSpace),
            Outcome::Pending => (Fate::Pending, false),
        };
        let beginning = Beginning {
            step,
            levels: (self.link.places.levels(), self.progress.heading),
            turn,
            chain,
            generation: index.generation(),
            container: FileName::Container {
                step,
                epoch: self.link.epoch.counter,
                run: self.link.epoch.run.short_bytes(),
                node: self.link.layout.node_of(self.rank),
                writer: self.writer,
            },
            fate: &fate,
        };
        let capture = baseline.begin(names.collect(), &beginning);
        Some((capture, self.most_extents(prepared)))
    }

    /// Maximum number of extents of each tracked region: the records of all ranks of a writer must
    /// fit into one manifest, half of which is left for the other regions.
    fn most_extents(&self, prepared: &Prepared) -> usize {
        let node = &self.link.layout.nodes[self.link.layout.node_of(self.rank).index()];
        let ranks = node.writers[self.writer.index()].len().max(1);
        let tracked = prepared.tracked().count().max(1);
        MAX_METADATA_BYTES / 2 / EXTENT_BYTES as usize / ranks / tracked
    }

    /// Maximum length of an extent: a chunk, or a stripe unit in mode `traditional`.
    fn cut_bytes(&self) -> u64 {
        match self.options.mode {
            Mode::Traditional => STRIPE_BYTES,
            // A decoded piece must fit into memory, whatever the size of a chunk.
            _ if self.link.encoded => {
                u64::from(self.link.pool.shape().chunk_bytes).min(MAX_ENCODED_BYTES)
            }
            _ => u64::from(self.link.pool.shape().chunk_bytes),
        }
    }

    /// Tells the node what this rank is about to stage.
    fn declare(&self, prepared: &Prepared, (turn, step): (u64, Step)) {
        let (index, local) = (self.index(), self.local);
        let extents = self.extents_of(prepared);
        let record_bytes = prepared.parts.most_record_bytes(extents);
        index.declare_chunks(local, turn, self.chunks_of(prepared, record_bytes));
        let most_bytes = self.most_bytes(prepared, extents, record_bytes);
        index.declare_bytes(local, (turn, step), most_bytes);
    }

    /// Number of extents in this rank's record, at most.
    fn extents_of(&self, prepared: &Prepared) -> u64 {
        let most = self.most_extents(prepared);
        let segments = prepared.parts.plan().segments.iter();
        let whole: u64 = segments.map(|segment| segment.pieces.len() as u64).sum();
        let cut_bytes = self.cut_bytes();
        let pages = |span: Span| {
            // A full capture is not bounded by `most`.
            let full = span.len_bytes() as u64 / cut_bytes + 3;
            full.max(Pages::most_extents(span.len_bytes()).min(most) as u64)
        };
        whole + prepared.tracked().map(pages).sum::<u64>()
    }

    /// Number of bytes that this rank's snapshot takes in a container, at most: its stream, and its
    /// record twice, behind the stream and in the manifest.
    fn most_bytes(&self, prepared: &Prepared, extents: u64, record_bytes: u64) -> u64 {
        let stream = prepared.parts.plan().stream_len_bytes
            + prepared.tracked().map(tracked_bytes).sum::<u64>();
        let encoded = match self.link.encoded {
            // A seal each; what is written from the pool, 64 KiB or more, begins at a block.
            true => extents * SEAL_BYTES + stream / 16,
            false => 0,
        };
        // Rank header, and the blocks that stream, record and manifest begin.
        stream + encoded + 2 * record_bytes + 4 * BLOCK_BYTES as u64
    }

    /// Number of chunks that this rank needs so that nobody has to wait: for its snapshots, their
    /// records, and what `alloc` took from the pool.
    fn chunks_of(&self, prepared: &Prepared, record_bytes: u64) -> u64 {
        let chunk_bytes = u64::from(self.link.pool.shape().chunk_bytes);
        let tracked = prepared.tracked().map(tracked_bytes);
        let page_chunks: u64 = tracked.map(|bytes| bytes.div_ceil(chunk_bytes)).sum();
        let record = record_bytes.div_ceil(chunk_bytes);
        let own: u64 = self
            .memory
            .allocations
            .values()
            .map(|&(_, chunks)| u64::from(chunks))
            .sum();
        (prepared.parts.plan().packed_chunks() + page_chunks + record)
            * u64::from(self.options.held_steps)
            + own
    }

    /// Copies the prepared checkpoint into the pool, and leaves the rest to threads. Because the
    /// ranks have agreed, a rank that fails here still begins its snapshot and gives it up: its
    /// CP-thread and the other ranks are already at this step.
    fn stage(
        &mut self,
        step: Step,
        (turn, turns): (u64, (u64, u64)),
        prepared: Prepared,
        times: &mut Times,
    ) -> Result<()> {
        let timeout = self.timeout();
        let (slot, pipelined) = self.enter_pool(step, turn, &mut times.waited[1]);
        let (slot, refused) = match slot {
            Ok(slot) => (slot, None),
            Err(error) => (None, Some(error)),
        };
        let staged_bytes = prepared.parts.len_bytes();
        if turn == 0 {
            self.finish_mapping(pipelined, &prepared);
        }
        let incremental = self.capture(step, turns, &prepared);
        let mut staging = Staging::new(
            self.stage_context(pipelined, staged_bytes),
            step,
            prepared.parts,
            (slot, pipelined),
            self.cut_bytes() as u32,
            incremental,
        );
        let (stager, refused) = match self.stager_for(&staging) {
            Ok(stager) => (stager, refused),
            Err(error) => (None, refused.or(Some(error))),
        };
        // If everything is lent, the rank's own CP-thread begins: the program waits for nothing.
        if refused.is_some() || staging.has_foreground() || stager.is_none() {
            if let Err((earlier, error)) = self.wait_for_stager(step, timeout) {
                earlier.give_up(step, staging, error.clone())?;
                return Err(error);
            }
            if let Some(error) = refused {
                staging.give_up(&error)?;
                return Err(error);
            }
            staging.begin()?;
        }
        staging.foreground(self.options.copy_threads)?;
        self.note_lent(step, prepared.lent);
        match stager {
            Some(stager) => self.hand_over(&stager, step, (turn, pipelined), staging)?,
            None => {
                let (late, parts) = staging.finish()?;
                self.keep_parts(parts);
                if let Some(late) = late {
                    self.warnings.push(format!(
                        "checkpoint {step} is staged, and its flush is late: {late}"
                    ));
                }
            }
        }
        let stats = &mut self.progress.stats;
        stats.step = step;
        stats.staged_bytes = staged_bytes;
        self.note_pool_use();
        Ok(())
    }

    /// Maps what the first snapshot is about to be copied into.
    fn finish_mapping(&mut self, pipelined: bool, prepared: &Prepared) {
        let ahead = match pipelined {
            true => 0,
            false => prepared.parts.plan().foreground as u64 + 1,
        };
        self.memory.mapper.finish(ahead);
    }

    fn note_lent(&mut self, step: Step, regions: Vec<(String, bool)>) {
        for (name, borrowed) in regions {
            if self.memory.files.has(&name) {
                // It is there: this was just asked.
                let _ = note_borrowed(self, step, &name);
                continue;
            }
            let lent = match borrowed {
                true => Lent::Borrowed(step),
                false => Lent::Streamed(step),
            };
            self.memory.lent.insert(name, lent);
        }
    }

    fn note_pool_use(&mut self) {
        let (pool, shape) = (&self.link.pool, self.link.pool.shape());
        let used = shape.chunk_count - pool.free_chunks();
        let bytes = |chunks: u32| u64::from(chunks) * u64::from(shape.chunk_bytes);
        self.progress.stats.pool_bytes = bytes(shape.chunk_count);
        self.progress.stats.pool_used_bytes = bytes(used);
    }

    /// Waits for room in the pool and, if the pool cannot hold the snapshots of all ranks at once,
    /// for the node's stage slot, which is the second value.
    fn enter_pool(
        &mut self,
        step: Step,
        turn: u64,
        waited: &mut Duration,
    ) -> (Result<Option<Gate>>, bool) {
        // If checkpoints are skipped instead, only the last one waits, and it does so here.
        let room = self.wait_for_room(Some(step));
        let room = room.map(|time| *waited += time);
        self.release_kept_snapshots(self.options.held_steps as usize - 1);
        let chunk_count = u64::from(self.link.pool.shape().chunk_count);
        let fits = self.index().declared_chunks(turn) <= chunk_count;
        let pipelined = !fits || self.options.marshal == Marshal::Paper;
        (self.trigger).note_room(!pipelined && self.options.held_steps > 1);
        let slot = room.and_then(|()| {
            if !pipelined {
                return Ok(None);
            }
            let clock = &self.environment.clock;
            let before = clock.now();
            let lock = |slice| self.link.gates.lock(STAGE_SLOT, slice);
            let locked = self.link.patience.wait(self.timeout(), lock);
            *waited += clock.now().saturating_sub(before);
            let locked = locked.map_err(|error| error.at("stage slot of the node"));
            locked.map(Some)
        });
        (slot, pipelined)
    }

    fn stage_context(&self, pipelined: bool, staged_bytes: u64) -> StageContext {
        let threads = self.link.threads.as_ref();
        let keeps = self.options.agent != AgentKind::Off && !pipelined;
        StageContext {
            pool: Arc::clone(&self.link.pool),
            shape: self.link.shape,
            local: self.local,
            rank: self.rank,
            writer: self.writer,
            encoded: self.link.encoded,
            checked: self.options.checks_pool(),
            goes: self.progress.heading,
            timeout: self.timeout(),
            patience: self.link.patience.clone(),
            failpoints: self.environment.failpoints.clone(),
            sealed: threads.and_then(|threads| threads.sealed.clone()),
            kept: keeps.then(|| Arc::clone(&self.memory.kept)),
            quiet: staged_bytes <= QUIET_BYTES,
        }
    }

    /// Leaves the rest of a snapshot to this rank's own CP-thread.
    fn hand_over(
        &mut self,
        stager: &Stager,
        step: Step,
        (turn, pipelined): (u64, bool),
        mut staging: Staging,
    ) -> Result<()> {
        staging.continue_in_background();
        let (pool, shape) = (Arc::clone(&self.link.pool), self.link.shape);
        let clock = Arc::clone(&self.environment.clock);
        let holdup = move || {
            // With a stage slot, the other ranks cannot return before this one is flushed; with a
            // spare processor, nothing keeps a rank from returning.
            if !pipelined && cpuset().len() <= shape.ranks as usize {
                let index = Index::new(&pool, shape);
                let _ = index.wait_returned(turn, clock.as_ref(), RETURN_WAIT);
            }
        };
        stager.hand_over(step, staging, Box::new(holdup))?;
        self.memory.handed_over = Some(step);
        Ok(())
    }

    /// The rank's own CP-thread, if this snapshot needs it.
    fn stager_for(&mut self, staging: &Staging) -> Result<Option<Arc<Stager>>> {
        if !staging.has_background() {
            return Ok(None);
        }
        let stager = match self.memory.stager.take() {
            Some(stager) => stager,
            None => Arc::new(Stager::start()?),
        };
        self.memory.stager = Some(Arc::clone(&stager));
        Ok(Some(stager))
    }

    /// Waits until the rank's own CP-thread has sent what it was handed: the snapshots of one rank
    /// are sent one after the other and never mix.
    fn wait_for_stager(
        &mut self,
        step: Step,
        timeout: Duration,
    ) -> std::result::Result<(), (Arc<Stager>, Error)> {
        let (Some(stager), Some(earlier)) = (&self.memory.stager, self.memory.handed_over) else {
            return Ok(());
        };
        // `lent_done` returns an error of that snapshot; it was given up, and no more of it
        // follows.
        if matches!(stager.wait(earlier, timeout), Ok(false)) {
            let error = Error::unavailable(format!(
                "it waited {:.1} s for memory lent to checkpoint {earlier} to be read",
                timeout.as_secs_f64()
            ));
            let error =
                error.next("raise timeout_s, or wait with lent_done before the next checkpoint");
            self.memory.handed_over = Some(step);
            return Err((Arc::clone(stager), error));
        }
        self.memory.handed_over = None;
        Ok(())
    }
}

/// The warning for a rank that has just given up its snapshot.
fn gave_up(step: Step, error: Error) -> Error {
    let told = error.what() != error.message();
    let error = error.at(format!(
        "checkpoint {step} will be lost at every level, because this rank gave its snapshot up"
    ));
    if told {
        return error;
    }
    error.next("mend that; the next checkpoint tries again")
}

/// An error of `checkpoint`, which tells the program that nothing was staged.
pub(crate) fn not_staged(step: Step, error: Error) -> Error {
    error.at(format!("checkpoint {step} was not staged"))
}
