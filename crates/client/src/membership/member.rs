//! Represents a program's membership in a job: a session with checkpoints, or one without.
//!
//! What it does: it opens the kind that the options request, and forwards each call to it.
//!
//! Invariants:
//! 1. All ranks of a job have the same kind.
//!
//! Not here: what the calls do (`session.rs`, `disabled.rs`).

use crate::collective::Collective;
use crate::membership::disabled::Disabled;
use crate::memory_files::{self, FileMode};
use crate::open::{Environment, agree_on_options};
use crate::options::Options;
use crate::regions::{ArrayLayout, Codec, Stored};
use crate::report;
use crate::session::{Restarted, Session, Stats, Waiter, Watcher, Which};
use crate::trigger::Request;
use orcheck_format::{Dtype, Error, Level, Rank, Result};
use orcheck_io::memory::Span;
use std::path::PathBuf;
use std::time::Duration;

/// One program's membership in a job.
pub enum Membership {
    /// With checkpoints.
    Enabled(Box<Session>),
    /// Without.
    Disabled(Box<Disabled>),
}

use Membership::{Disabled as Off, Enabled as On};

/// Calls the same method of either kind.
macro_rules! either {
    ($self:ident, $session:ident => $call:expr) => {
        match $self {
            On($session) => $call,
            Off($session) => $call,
        }
    };
}

impl Membership {
    /// Opens a session of `job`; if that is empty, of the job that the variable ORCHECK_JOB names.
    /// Collective.
    ///
    /// # Errors
    /// The error of any rank, on all ranks: options, directories, another living run, memory.
    pub fn open(job: &str, collective: Box<dyn Collective>, options: Option<&str>) -> Result<Self> {
        let options = Options::load(options);
        Self::open_with(job, collective, options, Environment::default())
    }

    /// As [`Self::open`], with an explicit environment.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        job: &str,
        mut collective: Box<dyn Collective>,
        options: Result<Options>,
        environment: Environment,
    ) -> Result<Self> {
        let rank = collective.rank();
        let agreed = agree_on_options(collective.as_mut(), job, options);
        let opened = agreed.and_then(|(job, options)| match options.without {
            None => Session::open_agreed((job, options), collective, environment)
                .map(|session| On(Box::new(session))),
            Some(why) => {
                if rank == Rank(0) {
                    report::disabled(&job, why);
                }
                let off = Disabled::new(job, why, rank, environment.failpoints);
                Ok(Off(Box::new(off)))
            }
        });
        opened.inspect_err(|error| {
            if rank == Rank(0) {
                report::refused(error);
            }
        })
    }

    /// See [`Session::protect`].
    ///
    /// # Errors
    /// As there.
    pub fn protect(&mut self, name: &str, span: Span, dtype: Dtype, flags: u32) -> Result<()> {
        either!(self, session => session.protect(name, span, dtype, flags))
    }

    /// See [`Session::protect_array`].
    ///
    /// # Errors
    /// As there.
    pub fn protect_array(
        &mut self,
        name: &str,
        span: Span,
        layout: ArrayLayout,
        flags: u32,
    ) -> Result<()> {
        either!(self, session => session.protect_array(name, span, layout, flags))
    }

    /// See [`Session::protect_boxes`].
    ///
    /// # Errors
    /// As there.
    pub fn protect_boxes(
        &mut self,
        name: &str,
        boxes: Vec<(Span, ArrayLayout)>,
        flags: u32,
    ) -> Result<()> {
        either!(self, session => session.protect_boxes(name, boxes, flags))
    }

    /// See [`Session::protect_list`].
    ///
    /// # Errors
    /// As there.
    pub fn protect_list(
        &mut self,
        name: &str,
        span: Span,
        items: (Dtype, &[u64]),
        flags: u32,
    ) -> Result<()> {
        either!(self, session => session.protect_list(name, span, items, flags))
    }

    /// See [`Session::protect_codec`].
    ///
    /// # Errors
    /// As there.
    pub fn protect_codec(&mut self, name: &str, codec: Box<dyn Codec>, flags: u32) -> Result<()> {
        either!(self, session => session.protect_codec(name, codec, flags))
    }

    /// See [`Session::unprotect`].
    ///
    /// # Errors
    /// As there.
    pub fn unprotect(&mut self, name: &str) -> Result<()> {
        either!(self, session => session.unprotect(name))
    }

    /// See [`Session::alloc`]; without checkpoints, this is ordinary memory.
    ///
    /// # Errors
    /// As there.
    pub fn alloc(&mut self, len_bytes: u64) -> Result<Span> {
        either!(self, session => session.alloc(len_bytes))
    }

    /// See [`Session::free`].
    ///
    /// # Errors
    /// As there.
    pub fn free(&mut self, address: usize) -> Result<()> {
        either!(self, session => session.free(address))
    }

    /// See [`Session::lend`].
    ///
    /// # Errors
    /// As there.
    pub fn lend(&mut self, name: &str) -> Result<()> {
        either!(self, session => session.lend(name))
    }

    /// See [`Session::lent_done`]; without checkpoints, it returns at once.
    ///
    /// # Errors
    /// As there.
    pub fn lent_done(&mut self, name: &str, timeout: Duration) -> Result<()> {
        either!(self, session => session.lent_done(name, timeout))
    }

    /// See [`Session::route`]; without checkpoints, the path is among the temporary files, and the
    /// file is not captured.
    ///
    /// # Errors
    /// As there.
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        self.route_file(name, 0)
    }

    /// See [`Session::route_file`]; without checkpoints, as [`Self::route`].
    ///
    /// # Errors
    /// As there.
    pub fn route_file(&mut self, name: &str, flags: u32) -> Result<PathBuf> {
        either!(self, session => session.route_file(name, flags))
    }

    /// See [`Session::open_file`]; without checkpoints, memory files are kept in ordinary memory.
    ///
    /// # Errors
    /// As there.
    pub fn open_file(&mut self, name: &str, mode: FileMode) -> Result<()> {
        either!(self, session => memory_files::open(&mut **session, name, mode))
    }

    /// See [`Session::write_file`].
    ///
    /// # Errors
    /// As there.
    pub fn write_file(&mut self, name: &str, at: u64, bytes: &[u8]) -> Result<u64> {
        either!(self, session => memory_files::write(&mut **session, name, at, bytes))
    }

    /// See [`Session::read_file`].
    ///
    /// # Errors
    /// As there.
    pub fn read_file(&mut self, name: &str, at: u64, into: &mut [u8]) -> Result<usize> {
        either!(self, session => memory_files::read(&mut **session, name, at, into))
    }

    /// See [`Session::file_len`].
    ///
    /// # Errors
    /// As there.
    pub fn file_len(&mut self, name: &str) -> Result<u64> {
        either!(self, session => memory_files::len_bytes(&mut **session, name))
    }

    /// See [`Session::fail_file`].
    ///
    /// # Errors
    /// As there.
    pub fn fail_file(&mut self, name: &str, error: Error) -> Result<()> {
        either!(self, session => memory_files::fail(&mut **session, name, error))
    }

    /// See [`Session::close_file`].
    ///
    /// # Errors
    /// As there.
    pub fn close_file(&mut self, name: &str) -> Result<()> {
        either!(self, session => memory_files::close(&mut **session, name))
    }

    /// See [`Session::due`]; without checkpoints, never.
    ///
    /// # Errors
    /// As there.
    pub fn due(&mut self, step: u64) -> Result<bool> {
        either!(self, session => session.due(step))
    }

    /// See [`Session::requester`]; without checkpoints, nobody reads the request.
    #[must_use]
    pub fn requester(&self) -> &'static Request {
        either!(self, session => session.requester())
    }

    /// See [`Session::should_stop`]; without checkpoints, never.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        either!(self, session => session.should_stop())
    }

    /// See [`Session::checkpoint`]; without checkpoints, nothing is stored.
    ///
    /// # Errors
    /// As there.
    pub fn checkpoint(&mut self, step: u64) -> Result<()> {
        self.checkpoint_at(step, None)
    }

    /// See [`Session::checkpoint_at`]; without checkpoints, nothing is stored.
    ///
    /// # Errors
    /// As there.
    pub fn checkpoint_at(&mut self, step: u64, level: Option<Level>) -> Result<()> {
        either!(self, session => session.checkpoint_at(step, level))
    }

    /// See [`Session::waiter`]; without checkpoints there is nothing to wait for, and a warning
    /// reports that.
    ///
    /// # Errors
    /// As there.
    pub fn waiter(&mut self, step: u64, level: Level) -> Result<Option<Waiter>> {
        match self {
            On(session) => session.waiter(step, level).map(Some),
            Off(session) => session.waiter(step, level),
        }
    }

    /// See [`Session::poll_outcomes`].
    pub fn poll_outcomes(&mut self) {
        if let On(session) = self {
            session.poll_outcomes();
        }
    }

    /// See [`Session::watch`]; without checkpoints, there are no events.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        if let On(session) = self {
            session.watch(watcher);
        }
    }

    /// See [`Session::safe_step`].
    ///
    /// # Errors
    /// As there.
    pub fn safe_step(&self, level: Level) -> Result<u64> {
        either!(self, session => session.safe_step(level))
    }

    /// See [`Session::find`].
    ///
    /// # Errors
    /// As there.
    pub fn find(&mut self) -> Result<u64> {
        either!(self, session => session.find())
    }

    /// See [`Session::find_step`].
    ///
    /// # Errors
    /// As there.
    pub fn find_step(&mut self, which: Which) -> Result<u64> {
        either!(self, session => session.find_step(which))
    }

    /// See [`Session::stored`].
    ///
    /// # Errors
    /// As there.
    pub fn stored(&self, name: &str) -> Result<Stored> {
        either!(self, session => session.stored(name))
    }

    /// See [`Session::want_part`].
    pub fn want_part(&mut self) {
        if let On(session) = self {
            session.want_part();
        }
    }

    /// See [`Session::try_restart`].
    ///
    /// # Errors
    /// As there.
    pub fn try_restart(&mut self) -> Result<Restarted> {
        either!(self, session => session.try_restart())
    }

    /// See [`Session::restart_region`].
    ///
    /// # Errors
    /// As there.
    pub fn restart_region(&mut self, name: &str) -> Result<Restarted> {
        either!(self, session => session.restart_region(name))
    }

    /// See [`Session::reject`].
    ///
    /// # Errors
    /// As there.
    pub fn reject(&mut self, step: u64) -> Result<()> {
        either!(self, session => session.reject(step))
    }

    /// See [`Session::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        either!(self, session => session.stats())
    }

    /// See [`Session::take_warning`].
    pub fn take_warning(&mut self) -> Option<String> {
        either!(self, session => session.take_warning())
    }

    /// See [`Session::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.close_telling(timeout).0
    }

    /// See [`Session::close_telling`].
    pub fn close_telling(self, timeout: Duration) -> (Result<()>, Vec<String>) {
        either!(self, session => session.close_telling(timeout))
    }

    /// See [`Session::abandon`].
    pub fn abandon(self) {
        match self {
            On(session) => session.abandon(),
            Off(session) => drop(session),
        }
    }
}

impl Session {
    /// Opens a session with checkpoints. Collective.
    ///
    /// # Errors
    /// As [`Membership::open_with`]; Invalid for options without checkpoints.
    pub fn open_with(
        job: &str,
        collective: Box<dyn Collective>,
        options: Result<Options>,
        environment: Environment,
    ) -> Result<Self> {
        match Membership::open_with(job, collective, options, environment)? {
            Membership::Enabled(session) => Ok(*session),
            Membership::Disabled(_) => Err(Error::invalid("the options disable checkpoints")
                .next("leave `enabled` out, or set it to true")),
        }
    }
}
