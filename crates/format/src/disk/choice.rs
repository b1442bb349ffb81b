//! Encodes choices: decisions of a program or a person about one checkpoint.
//!
//! How: a choice is a small file beside the commit records of its checkpoint. It is named after the
//! checkpoint and has the same envelope (`record.rs`). Its name holds everything that the engine
//! needs; who made the decision, when and why is inside.
//!
//! Invariants:
//! 1. A choice that decodes belongs to one checkpoint: job, step and epoch.
//!
//! Not here: who writes a choice, and its effects (`engine::directory`, `catalog`, `prune`).

use crate::coding::{Reader, Writer};
use crate::disk::envelope::{KIND_CHOICE, unwrap, wrap};
use crate::disk::manifest::MAX_NAME_BYTES;
use crate::disk::names::FileName;
use crate::error::{Error, Result};
use crate::ids::{Decision, Epoch, JobName};
use crate::numbers::Step;

/// Longest reason, in bytes.
pub const MAX_WHY_BYTES: usize = 1024;

/// A decision about one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The job.
    pub job: JobName,
    /// The checkpoint's step.
    pub step: Step,
    /// The run that wrote the checkpoint.
    pub epoch: Epoch,
    /// The decision.
    pub decision: Decision,
    /// The host on which the decision was made.
    pub host: String,
    /// The user who made the decision.
    pub uid: u32,
    /// When the decision was made, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Why, for people; may be empty.
    pub why: String,
}

impl Choice {
    /// The name of its file.
    #[must_use]
    pub fn file_name(&self) -> FileName {
        FileName::Choice {
            step: self.step,
            epoch: self.epoch.counter,
            run: self.epoch.run.short_bytes(),
            decision: self.decision,
        }
    }

    /// The whole file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(7 + u64::from(!self.why.is_empty()));
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).uint(self.step);
        w.uint(3u8).epoch(&self.epoch);
        w.uint(4u8).uint(self.decision.code());
        w.uint(5u8).text(&self.host);
        w.uint(6u8).uint(self.uid);
        w.uint(7u8).uint(self.since_unix_ms);
        if !self.why.is_empty() {
            w.uint(8u8).text(&self.why);
        }
        wrap(KIND_CHOICE, 0, &w.finish())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// Corrupt or Unsupported.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "choice";
        let r = &mut Reader::new(what, unwrap(what, KIND_CHOICE, bytes)?.0);
        let (mut job, mut step, mut epoch, mut code) = (None, None, None, None);
        let (mut host, mut uid, mut since, mut why) = (None, None, None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => step = Some(r.uint()?),
                3 => epoch = Some(r.epoch()?),
                4 => code = Some(r.uint::<u8>()?),
                5 => host = Some(r.name(MAX_NAME_BYTES)?),
                6 => uid = Some(r.uint()?),
                7 => since = Some(r.u64()?),
                8 => why = Some(r.name(MAX_WHY_BYTES)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        let code = r.need(code, "decision (key 4)")?;
        let decision = Decision::ALL.into_iter().find(|known| known.code() == code);
        Ok(Choice {
            job: r.need(job, "job (key 1)")?,
            step: r.need(step, "step (key 2)")?,
            epoch: r.need(epoch, "epoch (key 3)")?,
            decision: decision.ok_or_else(|| {
                Error::unsupported(format!("{what}: expected decision 1 or 2, found {code}"))
                    .next("read it with the version that wrote it, or a newer one")
            })?,
            host: r.need(host, "host (key 5)")?,
            uid: r.need(uid, "user id (key 6)")?,
            since_unix_ms: r.need(since, "time (key 7)")?,
            why: why.unwrap_or_default(),
        })
    }
}
