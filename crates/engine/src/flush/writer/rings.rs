//! Reads the rings of the ranks.
//!
//! Invariants:
//! 1. Before looking at a ring, the CP-thread checks whether its rank has ended; no descriptor is
//!    then overlooked.
//! 2. A rank that has ended holds up no other: while the CP-thread waits for another rank's
//!    snapshot, it returns the chunks that the ended rank did not finish.
//!
//! Survives: a rank that ends at any moment, except for the chunk that it is filling. Not here:
//! what is done with a snapshot (`writer.rs`).

use super::{Announced, Begin, Flusher, SLICE};
use crate::node::Descriptor;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use std::collections::VecDeque;

impl Flusher {
    /// Takes the `Begin` of a rank's next snapshot off its ring, if it is there.
    pub(super) fn find_begin(&mut self, which: usize) -> Result<()> {
        let (_, rank) = self.context.ranks[which];
        if self.begun[which].is_some() {
            return Ok(());
        }
        match self.pop(which)? {
            None => Ok(()),
            Some(Descriptor::Begin {
                step,
                stream_len_bytes,
                cut_bytes,
                pipelined,
                may_shrink,
                kept,
                goes,
            }) => {
                self.begun[which] = Some(Begin {
                    step,
                    announced: Announced {
                        stream_len_bytes,
                        cut_bytes,
                        may_shrink,
                    },
                    pipelined,
                    kept,
                    goes,
                });
                Ok(())
            }
            Some(other) => Err(Error::corrupt(format!(
                "rank {rank} sent {other:?} where the begin of a snapshot was expected"
            ))),
        }
    }

    /// The rank's next descriptor; `None` if the session ends first.
    pub(super) fn next(&mut self, which: usize) -> Result<Option<Descriptor>> {
        if let Some(descriptor) = self.ahead.pop_front() {
            return Ok(Some(descriptor));
        }
        loop {
            let news = self.index().writer_news(self.context.writer);
            let gone = self.is_gone(which);
            if let Some(descriptor) = self.pop(which)? {
                return Ok(Some(descriptor));
            }
            if gone {
                return Ok(Some(Descriptor::Fail));
            }
            if self.stopping() {
                return Ok(None);
            }
            self.drop_unfinished(which)?;
            self.index()
                .wait_for_entries(self.context.writer, news, SLICE);
        }
    }

    /// Whether the rank has ended. Check this before looking at its ring: nothing can arrive after
    /// it.
    pub(super) fn is_gone(&self, which: usize) -> bool {
        self.index().is_rank_gone(self.context.ranks[which].0) && !off(Switch::RankGone)
    }

    pub(super) fn pop(&mut self, which: usize) -> Result<Option<Descriptor>> {
        match self.left[which].pop_front() {
            None => self.index().pop(self.context.ranks[which].0),
            descriptor => Ok(descriptor),
        }
    }

    /// Returns the chunks that ranks other than `waited_for` took for a snapshot that they did not
    /// finish before they ended. They may be all the chunks there are, and the awaited rank may
    /// need one.
    fn drop_unfinished(&mut self, waited_for: usize) -> Result<()> {
        for which in 0..self.context.ranks.len() {
            if which == waited_for || !self.left[which].is_empty() || !self.is_gone(which) {
                continue;
            }
            let mut left = VecDeque::new();
            while let Some(descriptor) = self.pop(which)? {
                left.push_back(descriptor);
            }
            let begun = self.begun[which].as_ref().map(|begin| begin.kept);
            let kept = begun == Some(true)
                || matches!(left.front(), Some(Descriptor::Begin { kept: true, .. }));
            if !kept && !left.contains(&Descriptor::Seal) && !off(Switch::UnfinishedDropped) {
                for descriptor in &left {
                    if let Descriptor::Segment {
                        chunk: Some(chunk), ..
                    }
                    | Descriptor::Record { chunk, .. } = *descriptor
                    {
                        self.give(Some((chunk, 1)))?;
                    }
                }
                left.retain(|descriptor| matches!(descriptor, Descriptor::Begin { .. }));
            }
            self.left[which] = left;
        }
        Ok(())
    }
}
