//! Manages the containers of a step at each level: opens them, writes them together, and loses or
//! closes them.
//!
//! Invariants: those of `writer.rs`. A container that fails at one level costs only that level.
//!
//! Not here: what is written (`writer.rs`), and how (`container.rs`).

use super::{FlushContext, Flusher, NODE_DISK_GATE, SERVER_GATES, Snapshot};
use crate::directory::TargetFailure;
use crate::encoding::ContainerKey;
use crate::flush::container::{ContainerWriter, Target};
use crate::flush::ledger::Ledger;
use crate::node::{Index, Mode};
use orcheck_format::disk::{BLOCK_BYTES, ContainerHeader, Features};
use orcheck_format::wire::Message;
use orcheck_format::{Error, Level, NodeId, Result, Step, TargetId};
use orcheck_io::disk::Dir;
use orcheck_io::machine::thread_cpu_time;
use orcheck_pool::Gate;
use std::sync::Arc;

/// Header, trailer, and what a manifest says apart from the records of its ranks, at most.
const AROUND_RANKS_BYTES: u64 = 64 << 10;

/// One container of the step being flushed, or the reason why there is none.
pub(super) struct Sink {
    pub(super) level: Level,
    pub(super) server: Option<TargetId>,
    /// Nodes that hold replicas.
    pub(super) holders: Vec<NodeId>,
    /// The maximum length of its file.
    most_bytes: u64,
    pub(super) container: Option<ContainerWriter>,
}

impl Flusher {
    /// Where a container of `level` goes now.
    fn target(
        &self,
        step: Step,
        level: Level,
        (holders, most_bytes): (&mut Vec<NodeId>, u64),
    ) -> std::result::Result<(Target, Option<TargetId>), TargetFailure> {
        if level == Level::Global {
            let (server, dir) = self.placed_dir()?;
            let stripes = match self.context.mode {
                Mode::Traditional => self.active_dirs(),
                _ => Vec::new(),
            };
            return Ok((self.target_in(dir, server, stripes), Some(server)));
        }
        let mut dir = self
            .context
            .places
            .node
            .clone()
            .ok_or_else(|| Error::internal(format!("level {level} has no directory")))?;
        if let (Level::Peers(_), Some(replicas)) = (level, &self.context.replicas) {
            *holders = replicas.holders(step)?;
            dir = replicas.wrap(dir, holders.clone(), most_bytes);
        }
        Ok((self.target_in(dir, TargetId(0), Vec::new()), None))
    }

    fn target_in(
        &self,
        dir: Arc<dyn Dir>,
        server: TargetId,
        stripes: Vec<(TargetId, Arc<dyn Dir>)>,
    ) -> Target {
        let (pool, shape) = (Arc::clone(&self.context.pool), self.context.shape);
        Target {
            dir,
            server,
            stripes,
            direct: self.context.direct,
            ranks: self.context.ranks.len() as u64,
            coming: None,
            settled: Arc::new(move || Index::new(&pool, shape).wait_for_prune()),
        }
    }

    /// The directory of level `global` to which this writer's lane leads.
    fn placed_dir(&self) -> std::result::Result<(TargetId, Arc<dyn Dir>), TargetFailure> {
        let (places, lane) = (&self.context.places, self.context.writer);
        let server = self.index().lane_server(lane.0).ok_or_else(|| {
            Error::unavailable("no placed directory is left")
                .next("mend or replace the directories of `global`")
        })?;
        let dir = places.servers.get(server.index()).cloned().flatten();
        let dir = dir.ok_or_else(|| match places.server_roots.get(server.index()) {
            // The lead must learn which directory failed, to place this node elsewhere.
            Some(root) => {
                let error = format!("directory {} is not there on this node", root.display());
                TargetFailure::of(server, Error::unavailable(error))
            }
            // Breaks if: the number is trusted; a bit that flipped in the pool would end this
            // thread.
            None => {
                let most = places.server_roots.len();
                let error =
                    format!("lane {lane} leads to directory {server} of {most} in the pool");
                Error::corrupt(error).into()
            }
        })?;
        Ok((server, dir))
    }

    /// The directories of level `global` that are in use.
    fn active_dirs(&self) -> Vec<(TargetId, Arc<dyn Dir>)> {
        let index = self.index();
        let all = (0..).map(TargetId).zip(&self.context.places.servers);
        let active = all.filter(|(server, _)| !index.is_inactive(*server));
        active
            .filter_map(|(server, dir)| Some((server, dir.clone()?)))
            .collect()
    }

    /// The maximum length of a container in bytes, by what its ranks declared.
    fn most_bytes(&self, step: Step) -> u64 {
        let locals = self.context.ranks.iter().map(|&(local, _)| local);
        let declared = locals.map(|local| self.index().declared_bytes(local, step));
        // Breaks if: whole chunks are counted; a small disk would refuse what fits.
        declared.fold(AROUND_RANKS_BYTES, u64::saturating_add)
    }

    pub(super) fn open_sink(&mut self, step: Step, level: Level) -> Result<Sink> {
        // Its room is needed now.
        let mut not_decided = std::mem::take(&mut self.not_decided);
        let context = &self.context;
        let (mut server, mut holders, most_bytes) = (None, Vec::new(), self.most_bytes(step));
        let container = self
            .target(step, level, (&mut holders, most_bytes))
            .and_then(|(target, placed)| {
                server = placed;
                let outcome = |step| Index::new(&context.pool, context.shape).outcome(step, level);
                let own = [(target.server, Arc::clone(&target.dir))];
                for (server, dir) in own.iter().chain(&target.stripes) {
                    let place = Some((level, *server));
                    not_decided.remove_lost(&place, dir.as_ref(), outcome);
                }
                let striped = !target.stripes.is_empty();
                let recipe = &context.recipe;
                let mut header = ContainerHeader {
                    features: if striped {
                        Features::striped()
                    } else if context.incremental {
                        Features::references()
                    } else {
                        Features::default()
                    },
                    job: context.job.clone(),
                    step,
                    epoch: context.epoch,
                    level,
                    node: context.node.0,
                    writer: context.writer,
                    world_size: context.world_size,
                    alignment_bytes: BLOCK_BYTES as u32,
                    created_unix_ms: context.clock.unix_ms(),
                    encryption: None,
                };
                let mut key = None;
                if !recipe.is_plain() {
                    header.features.incompat |= Features::ENCODED;
                }
                if let Some(secret) = &recipe.secret {
                    let made = ContainerKey::create(secret, &mut header);
                    key = Some(made?);
                }
                ContainerWriter::create(header, &context.node.1, &target, key)
                    .map_err(|failure| failure.where_placed(server))
            });
        self.not_decided = not_decided;
        match container {
            Ok(container) => Ok(Sink {
                level,
                server,
                holders,
                most_bytes,
                container: Some(container),
            }),
            Err(failure) => {
                self.report_loss(step, level, failure)?;
                Ok(Sink {
                    level,
                    server,
                    holders,
                    most_bytes,
                    container: None,
                })
            }
        }
    }

    pub(super) fn report_loss(
        &mut self,
        step: Step,
        level: Level,
        TargetFailure { target, error }: TargetFailure,
    ) -> Result<()> {
        let text = format!("node {}: {}", self.context.node.1, error.message());
        (self.report)(Message::NotDurable {
            step,
            level: Some(level),
            server: target,
            kind: error.kind(),
            text,
        })
    }

    /// Does `work` on a sink's container; the first error loses the container.
    pub(super) fn on_sink(
        &mut self,
        step: Step,
        sink: &mut Sink,
        work: impl FnOnce(&mut ContainerWriter, &FlushContext, &mut Ledger) -> Result<()>,
    ) -> Result<()> {
        let Some(mut container) = sink.container.take() else {
            return Ok(());
        };
        match work(&mut container, &self.context, &mut self.ledger) {
            Ok(()) => {
                sink.container = Some(container);
                Ok(())
            }
            Err(error) => {
                let failure = TargetFailure::of(container.used_server(), error);
                container.abort();
                self.report_loss(step, sink.level, failure.where_placed(sink.server))
            }
        }
    }

    /// Gives up a sink's container for a reason that no directory caused.
    pub(super) fn lose(&mut self, step: Step, sink: &mut Sink, error: Error) -> Result<()> {
        let Some(container) = sink.container.take() else {
            return Ok(());
        };
        container.abort();
        self.report_loss(step, sink.level, error.into())
    }

    /// Locks the gates of all sinks, always in the same order; a gate that does not open loses its
    /// sink.
    pub(super) fn lock_gates(&mut self, step: Step, sinks: &mut [Sink]) -> Result<Vec<Gate>> {
        let mut held = Vec::new();
        if self.context.mode != Mode::Orchestrated {
            return Ok(held);
        }
        for sink in sinks {
            let byte = match sink.level {
                Level::Global => SERVER_GATES + u64::from(sink.server.unwrap_or(TargetId(0))),
                _ => NODE_DISK_GATE,
            };
            let locked = self.gates.lock(byte, self.context.gate_timeout);
            match locked {
                Ok(gate) => held.push(gate),
                Err(error) => self.lose(step, sink, error)?,
            }
        }
        Ok(held)
    }

    /// Enters snapshots whose container is durable.
    fn remember(&self, step: Step, held: &[Snapshot], digest: [u8; 32]) {
        let Some(remembered) = &self.context.remembered else {
            return;
        };
        for snapshot in held {
            if let Some(record) = &snapshot.record {
                let whose = (snapshot.rank, step);
                remembered.enter(whose, record, &snapshot.spans, digest);
            }
        }
    }

    pub(super) fn close_sinks(
        &mut self,
        step: Step,
        sinks: Vec<Sink>,
        whole: bool,
        held: &[Snapshot],
    ) -> Result<()> {
        for sink in sinks {
            let Some(container) = sink.container else {
                continue;
            };
            if !whole {
                container.abort();
                continue;
            }
            let (flushed_bytes, stored_bytes) = container.written();
            let stripes = container.stripe_files();
            match container.finish() {
                Ok(mut container) => {
                    // Breaks if: it is longer; holders set aside no more.
                    debug_assert!(container.len_bytes <= sink.most_bytes, "{container:?}");
                    container.holders = sink.holders;
                    // Count before anybody can learn that the step is safe.
                    self.written.0 += flushed_bytes;
                    self.written.1 += stored_bytes.max(container.len_bytes);
                    let cpu_ns = thread_cpu_time().as_nanos() as u64;
                    for &(local, _) in &self.context.ranks {
                        self.index()
                            .set_flushed(local, self.written.0, self.written.1, cpu_ns);
                    }
                    self.remember(step, held, container.manifest_digest);
                    let own = (sink.server.unwrap_or(TargetId(0)), container.file.clone());
                    for (server, file) in stripes.into_iter().chain([own]) {
                        self.not_decided.add(Some((sink.level, server)), step, file);
                    }
                    self.context.failpoints.at("flush.durable", "")?;
                    (self.report)(Message::Durable {
                        step,
                        level: sink.level,
                        container,
                    })?;
                }
                Err(failure) => {
                    let failure = failure.where_placed(sink.server);
                    self.report_loss(step, sink.level, failure)?;
                }
            }
        }
        Ok(())
    }
}
