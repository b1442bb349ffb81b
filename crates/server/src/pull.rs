//! Who may send when: a server takes from a few at a time, as many pieces as it has memory for.
//!
//! How: a *stream* is a file that is being written. It offers bytes; when its turn comes it is granted pieces, a few at a
//! time, until all that it offered has come. A turn also ends when the stream sends nothing for a while, and, while other
//! jobs wait, when it has had its share. Turns go round the jobs, and within a job in the order of the offers. Memory
//! is promised to streams whose turn it is, and to no others.
//!
//! Invariants:
//! 1. No more pieces are granted than were offered, and at most `window` of one stream are on the way.
//! 2. Pieces in memory and pieces promised to streams that have a turn are together at most `pieces`.
//! 3. While memory is free and fewer than `at_once` streams have a turn, nobody who offers waits: one slow stream delays
//!    nobody else for longer than `stall`, and one that sends nothing for longer than `idle`.
//! 4. No job waits while another one has two turns more than it, but for turns that have not ended yet.
//!
//! Survives: streams that stop, vanish, or send late what they were granted. Not here: threads, sockets and memory
//! (`session.rs`, `intake.rs`); what a stream is granted before it offers anything (`orcheck_format::store`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::store::PIECE_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What is bounded.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Pieces of memory.
    pub pieces: u32,
    /// Streams that have a turn at the same time.
    pub at_once: usize,
    /// Pieces of one stream that are on the way.
    pub window: u32,
    /// A turn ends when nothing began to come for so long, although something was offered, or granted.
    pub idle: Duration,
    /// The same in the middle of a piece.
    pub stall: Duration,
    /// A turn ends after so many bytes when another job waits.
    pub turn_bytes: u64,
}

/// A stream and how many pieces it may send besides.
pub type Grant = (u64, u32);

#[derive(Debug)]
struct Stream {
    job: u64,
    /// Bytes that were offered and not granted.
    offered: u64,
    /// Pieces that were granted and have not begun to come.
    granted: u32,
    /// Whether a piece is coming.
    coming: bool,
    /// When anything was heard of it.
    heard: Duration,
    /// Bytes that came in this turn.
    came: u64,
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It offers nothing, or said nothing in its turn.
    None,
    Waits,
    Has,
}

#[derive(Debug, Default)]
struct Job {
    waiting: VecDeque<u64>,
    turns: usize,
    /// Which turn of all its last one was.
    last: u64,
}

/// The order of streams; see the module.
#[derive(Debug)]
pub struct Pull {
    limits: Limits,
    streams: BTreeMap<u64, Stream>,
    jobs: BTreeMap<u64, Job>,
    /// Streams that have a turn.
    active: Vec<u64>,
    /// Pieces of memory that hold something.
    held: u32,
    turns: u64,
}

impl Pull {
    /// Nobody offers anything yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            streams: BTreeMap::new(),
            jobs: BTreeMap::new(),
            active: Vec::new(),
            held: 0,
            turns: 0,
        }
    }

    /// A stream of a job has at least so many bytes to send.
    pub fn offer(&mut self, now: Duration, id: u64, job: u64, bytes: u64) -> Vec<Grant> {
        let stream = self.streams.entry(id).or_insert(Stream {
            job,
            offered: 0,
            granted: 0,
            coming: false,
            heard: now,
            came: 0,
            turn: Turn::None,
        });
        stream.offered = stream.offered.max(bytes);
        stream.heard = now;
        self.enqueue(id);
        self.go_on(now)
    }

    /// A piece of a stream is coming; false when none was granted.
    pub fn begins(&mut self, now: Duration, id: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|one| one.granted > 0) else {
            return false;
        };
        stream.granted -= 1;
        stream.coming = true;
        stream.heard = now;
        self.held += 1;
        true
    }

    /// The piece has come.
    pub fn arrived(&mut self, now: Duration, id: u64, bytes: u64) -> Vec<Grant> {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.coming = false;
            stream.heard = now;
            stream.came += bytes;
            // One that lost its turn while it said nothing is heard of again.
            self.enqueue(id);
        }
        self.go_on(now)
    }

    /// A piece of memory is free again: what it held is written, or did not come.
    pub fn freed(&mut self, now: Duration) -> Vec<Grant> {
        self.held = self.held.saturating_sub(1);
        self.go_on(now)
    }

    /// A stream has nothing more to send for now. What it was granted it may still send, later.
    pub fn pauses(&mut self, now: Duration, id: u64) -> Vec<Grant> {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.offered = 0;
            if stream.turn == Turn::Waits {
                stream.turn = Turn::None;
                if let Some(job) = self.jobs.get_mut(&stream.job) {
                    job.waiting.retain(|&one| one != id);
                }
            }
            self.end_turn(id);
        }
        self.go_on(now)
    }

    /// A stream is gone.
    pub fn ended(&mut self, now: Duration, id: u64) -> Vec<Grant> {
        self.end_turn(id);
        if let Some(stream) = self.streams.remove(&id)
            && let Some(job) = self.jobs.get_mut(&stream.job)
        {
            job.waiting.retain(|&one| one != id);
            let others = self.streams.values().any(|one| one.job == stream.job);
            if !others {
                self.jobs.remove(&stream.job);
            }
        }
        self.go_on(now)
    }

    /// Time passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Grant> {
        self.go_on(now)
    }

    /// Whether a stream waits for the server, not the server for it.
    #[must_use]
    pub fn waits(&self, id: u64) -> bool {
        self.streams
            .get(&id)
            .is_some_and(|one| one.offered > 0 && one.granted == 0 && !one.coming)
    }

    fn enqueue(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.turn == Turn::None
            && stream.offered > 0
        {
            stream.turn = Turn::Waits;
            let job = self.jobs.entry(stream.job).or_default();
            job.waiting.push_back(id);
        }
    }

    fn end_turn(&mut self, id: u64) {
        let Some(at) = self.active.iter().position(|&one| one == id) else {
            return;
        };
        self.active.remove(at);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.turn = Turn::None;
            stream.came = 0;
            if let Some(job) = self.jobs.get_mut(&stream.job) {
                job.turns = job.turns.saturating_sub(1);
            }
        }
    }

    /// Ends turns, gives turns, grants pieces.
    fn go_on(&mut self, now: Duration) -> Vec<Grant> {
        for id in self.active.clone() {
            if self.is_over(now, id) {
                let silent = self
                    .streams
                    .get(&id)
                    .is_some_and(|one| one.granted > 0 || one.coming);
                self.end_turn(id);
                // One that has gone silent waits again when it is heard of; any other goes to the end of the line.
                if !silent {
                    self.enqueue(id);
                }
            }
        }
        while self.active.len() < self.limits.at_once {
            let waiting = self.jobs.iter().filter(|(_, job)| !job.waiting.is_empty());
            let Some((&next, _)) = waiting.min_by_key(|(_, job)| (job.turns, job.last)) else {
                break;
            };
            self.turns += 1;
            let Some(job) = self.jobs.get_mut(&next) else {
                break;
            };
            job.turns += 1;
            job.last = self.turns;
            if let Some(id) = job.waiting.pop_front() {
                self.active.push(id);
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.turn = Turn::Has;
                    stream.heard = now;
                }
            }
        }
        self.grant()
    }

    fn is_over(&self, now: Duration, id: u64) -> bool {
        let Some(stream) = self.streams.get(&id) else {
            return true;
        };
        let silent = now.saturating_sub(stream.heard);
        // Breaks if: who was granted something is waited for; a node that is stopped would keep its turn for ever.
        let stopped = |limit| silent >= limit && !off(Switch::PullStalled);
        match (stream.coming, stream.granted) {
            (true, _) => stopped(self.limits.stall),
            (false, 1..) => stopped(self.limits.idle),
            // With something to offer it waits for memory, which is not its fault.
            _ => self.has_its_share(stream) || (stream.offered == 0 && stopped(self.limits.idle)),
        }
    }

    /// Whether a stream has had, or is about to get, what it may have while other jobs wait, as they do.
    fn has_its_share(&self, stream: &Stream) -> bool {
        let on_the_way = u64::from(stream.granted + u32::from(stream.coming));
        stream.came + on_the_way * PIECE_BYTES >= self.limits.turn_bytes
            && self
                .jobs
                .iter()
                .any(|(&job, one)| job != stream.job && !one.waiting.is_empty())
    }

    fn promised(&self) -> u32 {
        let of = |id| self.streams.get(id).map_or(0, |one: &Stream| one.granted);
        self.active.iter().map(of).sum()
    }

    /// One piece each, as long as there is memory and somebody who may have one.
    fn grant(&mut self) -> Vec<Grant> {
        let mut grants: Vec<Grant> = Vec::new();
        let bound = if off(Switch::PullBound) {
            u32::MAX
        } else {
            self.limits.pieces
        };
        let mut used = self.held + self.promised();
        loop {
            let mut granted = false;
            for &id in &self.active {
                let Some(stream) = self.streams.get(&id) else {
                    continue;
                };
                // What is coming counts: it is still on the way.
                let on_the_way = stream.granted + u32::from(stream.coming);
                let may = used < bound && stream.offered > 0 && on_the_way < self.limits.window;
                if !may || self.has_its_share(stream) {
                    continue;
                }
                let Some(stream) = self.streams.get_mut(&id) else {
                    continue;
                };
                stream.offered = stream.offered.saturating_sub(PIECE_BYTES);
                stream.granted += 1;
                used += 1;
                granted = true;
                match grants.iter_mut().find(|(one, _)| *one == id) {
                    Some((_, pieces)) => *pieces += 1,
                    None => grants.push((id, 1)),
                }
            }
            if !granted {
                return grants;
            }
        }
    }

    /// When something is due although nothing happens.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let due = |id: &u64| {
            let stream = self.streams.get(id)?;
            let limit = if stream.coming {
                self.limits.stall
            } else {
                self.limits.idle
            };
            Some(stream.heard + limit)
        };
        let waits = self.jobs.values().any(|job| !job.waiting.is_empty());
        self.active.iter().filter_map(due).min().filter(|_| waits)
    }
}
