//! Implements a session without checkpoints: `enabled = false`, or `'auto'` with no directory
//! configured.
//!
//! What it does: it lets a program that was ported to Orcheck run as before the port. Each call
//! checks its arguments as a session with checkpoints does, and then does nothing: no checkpoint is
//! due, found or taken, and no step is safe.
//!
//! Invariants:
//! 1. There is no pool, thread, socket, lock or signal handler, and no message between ranks once
//!    all of them have opened. No region is read, and no callback of the program is called.
//! 2. A call that is wrong whatever the directories hold (a name, a shape, a step that does not
//!    grow, the order of calls) fails with the same error as in a session with checkpoints, from
//!    the same code.
//! 3. Nothing claims that a step is stored: `find` and `safe_step` find nothing, the figures are 0
//!    and say why, and a wait that succeeds leaves a warning.
//! 4. Memory from `alloc` and the directory of routed files are released with the session.
//!
//! Faults survived: no memory for `alloc`, no space for temporary files; both are errors of that
//! call.
//!
//! Not here: when checkpoints are disabled (`options/enabled.rs`), the choice between the two kinds
//! (`member.rs`).

use crate::checkpoint::{check_call, not_staged};
use crate::memory_files::{self, Host, MemoryFiles};
use crate::options::Without;
use crate::regions::{ArrayLayout, Codec, Region, Regions, Route, Stored, check_routed};
use crate::report::Warnings;
use crate::session::{HISTORY, Restarted, Stats, Which, found_too_late, nothing_found};
use crate::trigger::Request;
use orcheck_format::{Dtype, Error, JobName, Level, Rank, Result, Step};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::{Buffer, Span};
use orcheck_pool::page_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// Requests to a session without checkpoints; nobody reads them.
static REQUEST: Request = Request::new();

/// One rank's session without checkpoints. It has the calls of [`crate::session::Session`], with
/// the same errors.
pub struct Disabled {
    job: JobName,
    why: Without,
    rank: Rank,
    failpoints: Failpoints,
    regions: Regions,
    allocations: BTreeMap<usize, Buffer>,
    route: Option<Route>,
    files: MemoryFiles,
    last_step: Option<Step>,
    /// The last steps for which a checkpoint was requested.
    history: BTreeSet<Step>,
    warnings: Warnings,
}

impl Host for Disabled {
    fn files(&mut self) -> &mut MemoryFiles {
        &mut self.files
    }

    fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    fn take_memory(&mut self, len_bytes: usize) -> Result<Span> {
        self.alloc(len_bytes as u64)
    }

    fn give_memory(&mut self, memory: Span) -> Result<()> {
        self.free(memory.address())
    }

    fn is_done(&mut self, _: Step, _: Duration) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

impl Disabled {
    pub(crate) fn new(job: JobName, why: Without, rank: Rank, failpoints: Failpoints) -> Self {
        let said = format!("job '{}' runs without checkpoints: {why}", job.as_str());
        let mut warnings = Warnings::default();
        warnings.extend((rank == Rank(0)).then_some(said));
        Self {
            job,
            why,
            rank,
            failpoints,
            regions: Regions::default(),
            allocations: BTreeMap::new(),
            route: None,
            files: MemoryFiles::default(),
            last_step: None,
            history: BTreeSet::new(),
            warnings,
        }
    }

    /// Why there are no checkpoints.
    #[must_use]
    pub fn why(&self) -> Without {
        self.why
    }

    pub(crate) fn protect(
        &mut self,
        name: &str,
        span: Span,
        dtype: Dtype,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::flat(name, span, dtype, flags)?)
    }

    pub(crate) fn protect_array(
        &mut self,
        name: &str,
        span: Span,
        layout: ArrayLayout,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::array(name, span, layout, flags)?)
    }

    pub(crate) fn protect_boxes(
        &mut self,
        name: &str,
        boxes: Vec<(Span, ArrayLayout)>,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::boxes(name, boxes, flags)?)
    }

    pub(crate) fn protect_list(
        &mut self,
        name: &str,
        span: Span,
        items: (Dtype, &[u64]),
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::list(name, span, items, flags)?)
    }

    pub(crate) fn protect_codec(
        &mut self,
        name: &str,
        codec: Box<dyn Codec>,
        flags: u32,
    ) -> Result<()> {
        self.put(name, Region::packed(codec, flags))
    }

    fn put(&mut self, name: &str, region: Region) -> Result<()> {
        self.files.check_free(name)?;
        self.regions.put(name, region)
    }

    pub(crate) fn unprotect(&mut self, name: &str) -> Result<()> {
        if self.files.has(name) {
            return memory_files::remove(self, name, Duration::ZERO);
        }
        self.regions.remove(name)?;
        if let Some(route) = &self.route {
            route.prune(name, &self.regions);
        }
        Ok(())
    }

    /// Allocates ordinary memory.
    pub(crate) fn alloc(&mut self, len_bytes: u64) -> Result<Span> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let mut buffer = Buffer::try_zeroed(len, page_bytes())?;
        let span = buffer.span();
        self.allocations.insert(span.address(), buffer);
        Ok(span)
    }

    pub(crate) fn free(&mut self, address: usize) -> Result<()> {
        let Some(buffer) = self.allocations.get_mut(&address) else {
            return Err(Error::invalid(format!(
                "{address:#x} was not given by alloc, or was freed already"
            )));
        };
        if let Some(name) = self.regions.inside(buffer.span()) {
            return Err(
                Error::invalid(format!("region '{name}' lies in this pool memory"))
                    .next("unprotect it, or protect it elsewhere, before freeing"),
            );
        }
        self.allocations.remove(&address);
        Ok(())
    }

    pub(crate) fn lend(&mut self, name: &str) -> Result<()> {
        self.regions.get(name)?.check_lendable(name)
    }

    pub(crate) fn lent_done(&mut self, name: &str, _: Duration) -> Result<()> {
        self.regions.get(name).map(|_| ())
    }

    /// A path among the temporary files; files written there are not captured.
    pub(crate) fn route_file(&mut self, name: &str, flags: u32) -> Result<PathBuf> {
        check_routed(name, flags, &self.regions)?;
        let route = match self.route.take() {
            Some(route) => route,
            None => Route::among_temporary_files(
                (&self.job, Rank(self.rank.0)),
                &self.failpoints,
                &mut self.warnings,
            )?,
        };
        let path = self.route.insert(route).path(name)?;
        self.put(name, Region::file(flags))?;
        Ok(path)
    }

    pub(crate) fn due(&mut self, _: u64) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn requester(&self) -> &'static Request {
        &REQUEST
    }

    pub(crate) fn should_stop(&self) -> bool {
        false
    }

    pub(crate) fn checkpoint_at(&mut self, step: u64, _: Option<Level>) -> Result<()> {
        let step = Step(step);
        check_call(step, self.last_step, &self.regions)
            .and_then(|()| self.files.check_complete())
            .map_err(|error| not_staged(step, error))?;
        self.last_step = Some(step);
        self.history.insert(step);
        if self.history.len() > HISTORY {
            self.history.pop_first();
        }
        Ok(())
    }

    /// There is nothing to wait for: always `None`.
    pub(crate) fn waiter<T>(&mut self, step: u64, level: Level) -> Result<Option<T>> {
        let step = Step(step);
        let forgotten = self.history.len() == HISTORY
            && self.history.first().is_some_and(|&first| step < first);
        if !self.history.contains(&step) && !forgotten {
            return Err(Error::not_found(format!(
                "this session took no checkpoint of step {step}"
            ))
            .next("wait for a step that was checkpointed and not skipped"));
        }
        self.warnings.push(format!(
            "nothing of checkpoint {step} is safe at level {level}: {}",
            self.why
        ));
        Ok(None)
    }

    pub(crate) fn find(&mut self) -> Result<u64> {
        self.find_step(Which::Newest)
    }

    pub(crate) fn find_step(&mut self, which: Which) -> Result<u64> {
        if self.last_step.is_some() {
            return Err(found_too_late());
        }
        Err(Error::not_found(format!(
            "job '{}' has no {which} here: {}",
            self.job.as_str(),
            self.why
        ))
        .next("start from nothing"))
    }

    pub(crate) fn stored(&self, _: &str) -> Result<Stored> {
        Err(nothing_found("stored"))
    }

    pub(crate) fn try_restart(&mut self) -> Result<Restarted> {
        Err(nothing_found("restart"))
    }

    pub(crate) fn restart_region(&mut self, _: &str) -> Result<Restarted> {
        Err(nothing_found("restart_region"))
    }

    pub(crate) fn reject(&mut self, step: u64) -> Result<()> {
        if self.history.contains(&Step(step)) {
            return Ok(());
        }
        Err(Error::not_found(format!(
            "job '{}' has no checkpoint of step {step}: {}",
            self.job.as_str(),
            self.why
        )))
    }

    pub(crate) fn safe_step(&self, level: Level) -> Result<u64> {
        Err(Error::not_found(format!(
            "no checkpoint of this session is safe at level {level}: {}",
            self.why
        )))
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            disabled: true,
            ..Stats::default()
        }
    }

    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.warnings.take()
    }

    pub(crate) fn close_telling(mut self, _: Duration) -> (Result<()>, Vec<String>) {
        // Breaks if: this error is returned; only the rank whose files cannot be removed would
        // return it.
        if let Some(Err(error)) = self.route.take().map(Route::remove) {
            self.warnings.push(error.message().to_owned());
        }
        let told = std::iter::from_fn(|| self.warnings.take()).collect();
        (Ok(()), told)
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        // As in abandon: there is nobody to return an error to.
        let _ = self.route.take().map(Route::remove);
    }
}
