//! Who may send when: a server takes from a few at a time, as many pieces as it has memory for.
//!
//! How: a *stream* is a file that is being written. It offers bytes; when its turn comes it is granted pieces, a few at a
//! time, until all that it offered has come. A turn also ends when the stream sends nothing for a while, and, while other
//! jobs wait, when it has had its share of bytes or of time. Turns go round the jobs, and within a job in the order of the
//! offers. Memory is promised to streams whose turn it is, and to no others: what was granted in a turn that is over waits,
//! unread, for the next one.
//!
//! Invariants:
//! 1. No more pieces are granted than were offered, and at most `window` of one stream are on the way.
//! 2. Pieces in memory and pieces promised to streams that have a turn are together at most `pieces`; while another job
//!    waits, one that has half of them gets no more.
//! 3. While fewer than `at_once` streams have a turn, and memory is free, also for what it was granted in an earlier one, nobody
//!    who offers waits: one slow stream delays nobody else for longer than `stall`, and one that sends nothing for longer
//!    than `idle`.
//! 4. No job waits while another one has two turns more than it, but for turns that have not ended yet.
//!
//! Survives: streams that stop, vanish, or send late what they were granted. Not here: threads, sockets and memory
//! (`session.rs`, `intake.rs`); what a stream is granted before it offers anything (`orcheck_format::wire::staging`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::PIECE_BYTES;
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
    /// A turn ends after this many bytes, counted in whole pieces, when another job waits.
    pub turn_bytes: u64,
    /// And after so long.
    pub turn: Duration,
}

/// A stream and how many more pieces it may send; none where its turn begins with what it was granted before.
pub type Grant = (u64, u32);

/// What becomes of a piece that is about to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// It may come: memory is there for it.
    Now,
    /// It was granted, and waits for the stream's next turn.
    Waits,
    /// It was not granted.
    Unwanted,
}

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
    /// Bytes of whole pieces that came in this turn, and when it began.
    came: u64,
    since: Duration,
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
    /// Pieces of memory that hold something of it.
    held: u32,
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

    /// A stream of a job has at least this many bytes to send.
    pub fn offer(&mut self, now: Duration, id: u64, job: u64, bytes: u64) -> Vec<Grant> {
        let stream = self.streams.entry(id).or_insert(Stream {
            job,
            offered: 0,
            granted: 0,
            coming: false,
            heard: now,
            came: 0,
            since: now,
            turn: Turn::None,
        });
        stream.offered = stream.offered.max(bytes);
        stream.heard = now;
        if stream.turn == Turn::None {
            stream.job = job;
        }
        self.enqueue(id);
        self.go_on(now)
    }

    /// A piece of a stream is about to come.
    pub fn begins(&mut self, now: Duration, id: u64, job: u64) -> Begins {
        let Some(stream) = self.streams.get_mut(&id).filter(|one| one.granted > 0) else {
            return Begins::Unwanted;
        };
        if stream.turn == Turn::None {
            stream.job = job;
            self.enqueue(id);
        }
        let Some(stream) = self
            .streams
            .get_mut(&id)
            .filter(|one| one.turn == Turn::Has)
        else {
            // It was granted in a turn that is over.
            return Begins::Waits;
        };
        stream.granted -= 1;
        stream.coming = true;
        stream.heard = now;
        self.held += 1;
        self.jobs.entry(stream.job).or_default().held += 1;
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        Begins::Now
    }

    /// The piece has come.
    pub fn arrived(&mut self, now: Duration, id: u64) -> Vec<Grant> {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.coming = false;
            stream.heard = now;
            stream.came += PIECE_BYTES;
            // One that lost its turn in the middle of it is heard of again.
            self.enqueue(id);
        }
        self.go_on(now)
    }

    /// A piece of memory of a job is free again: what it held is written, or did not come.
    pub fn freed(&mut self, now: Duration, job: u64) -> Vec<Grant> {
        self.held = self.held.saturating_sub(1);
        if let Some(one) = self.jobs.get_mut(&job) {
            one.held = one.held.saturating_sub(1);
        }
        self.forget(job);
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
            self.forget(stream.job);
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

    /// Forgets a job that has nothing left.
    fn forget(&mut self, job: u64) {
        let left = self.jobs.get(&job).is_some_and(|one| one.held > 0);
        if !left && !self.streams.values().any(|one| one.job == job) {
            self.jobs.remove(&job);
        }
    }

    fn enqueue(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.turn == Turn::None
            && (stream.offered > 0 || stream.granted > 0)
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
        let grants = self.serve(now);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        grants
    }

    /// Panics where the state contradicts the invariants above: a defect, whatever streams do.
    pub fn check_invariants(&self) {
        // 1.
        for (id, stream) in &self.streams {
            let on_the_way = stream.granted + u32::from(stream.coming);
            assert!(on_the_way <= self.limits.window, "stream {id}: {stream:?}");
            let job = self.jobs.get(&stream.job);
            let places = job.map_or(0, |job| job.waiting.iter().filter(|one| *one == id).count());
            let waits = usize::from(stream.turn == Turn::Waits);
            assert_eq!(places, waits, "stream {id} in the line of its job");
            let has = stream.turn == Turn::Has;
            assert_eq!(self.active.contains(id), has, "stream {id}: {stream:?}");
        }
        // 2. and 3.
        assert!(self.active.len() <= self.limits.at_once);
        let (held, promised) = (self.held, self.promised());
        assert!(
            held + promised <= self.bound(),
            "{held} pieces held and {promised} promised of {}",
            self.limits.pieces
        );
        for (id, job) in &self.jobs {
            let of_job = |one: &&u64| self.streams.get(one).is_some_and(|one| one.job == *id);
            let turns = self.active.iter().filter(of_job).count();
            assert_eq!(job.turns, turns, "turns of job {id}");
        }
        let by_job: u32 = self.jobs.values().map(|job| job.held).sum();
        assert_eq!(by_job, held, "pieces held, by job and in all");
    }

    fn serve(&mut self, now: Duration) -> Vec<Grant> {
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
        let mut grants: Vec<Grant> = Vec::new();
        while self.active.len() < self.limits.at_once {
            let waiting = self.jobs.iter().filter(|(_, job)| !job.waiting.is_empty());
            let Some((&next, _)) = waiting.min_by_key(|(_, job)| (job.turns, job.last)) else {
                break;
            };
            let Some(&id) = self.jobs.get(&next).and_then(|job| job.waiting.front()) else {
                break;
            };
            let Some(granted) = self.streams.get(&id).map(|one| one.granted) else {
                break;
            };
            // What it was granted before counts again with its turn: nobody gets more until there is memory for it.
            if self.held + self.promised() + granted > self.bound() {
                return grants;
            }
            self.turns += 1;
            if let Some(job) = self.jobs.get_mut(&next) {
                job.waiting.pop_front();
                job.turns += 1;
                job.last = self.turns;
            }
            self.active.push(id);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.turn = Turn::Has;
                stream.heard = now;
                stream.since = now;
                // It may come now.
                grants.extend((granted > 0).then_some((id, 0)));
            }
        }
        self.grant(grants)
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
            (false, 1..) => stopped(self.limits.idle) || self.has_its_time(now, stream),
            // With something to offer it waits for memory, which is not its fault.
            _ => {
                self.has_its_share(stream)
                    || self.has_its_time(now, stream)
                    || (stream.offered == 0 && stopped(self.limits.idle))
            }
        }
    }

    fn others_wait(&self, job: u64) -> bool {
        let mut others = self.jobs.iter().filter(|(one, _)| **one != job);
        others.any(|(_, other)| !other.waiting.is_empty())
    }

    /// Whether another job waits for a turn, or has one and no memory.
    fn others_want(&self, job: u64) -> bool {
        let starves = |id: &u64| {
            let stream = self.streams.get(id);
            stream.is_some_and(|one| {
                one.job != job && one.offered > 0 && one.granted == 0 && !one.coming
            })
        };
        self.others_wait(job) || self.active.iter().any(starves)
    }

    /// Whether a stream has had, or is about to get, what it may have while other jobs wait, as they do.
    fn has_its_share(&self, stream: &Stream) -> bool {
        let on_the_way = u64::from(stream.granted + u32::from(stream.coming));
        stream.came + on_the_way * PIECE_BYTES >= self.limits.turn_bytes
            && self.others_wait(stream.job)
    }

    fn has_its_time(&self, now: Duration, stream: &Stream) -> bool {
        now.saturating_sub(stream.since) >= self.limits.turn && self.others_wait(stream.job)
    }

    /// Pieces that a job holds, or was promised.
    fn of_job(&self, job: u64) -> u32 {
        let promised = |id: &u64| match self.streams.get(id) {
            Some(stream) if stream.job == job => stream.granted,
            _ => 0,
        };
        let held = self.jobs.get(&job).map_or(0, |one| one.held);
        held + self.active.iter().map(promised).sum::<u32>()
    }

    /// Pieces that may be held and promised together.
    fn bound(&self) -> u32 {
        // Breaks if: it is not kept; a server would want more than it has memory for.
        match off(Switch::PullBound) {
            true => u32::MAX,
            false => self.limits.pieces,
        }
    }

    fn promised(&self) -> u32 {
        let of = |id| self.streams.get(id).map_or(0, |one: &Stream| one.granted);
        self.active.iter().map(of).sum()
    }

    /// One piece after the other, as long as there is memory and somebody who may have one: first those of the job that has
    /// the fewest.
    fn grant(&mut self, mut grants: Vec<Grant>) -> Vec<Grant> {
        while self.held + self.promised() < self.bound() {
            let may = |id: &u64| {
                let stream = self.streams.get(id)?;
                // What is coming counts: it is still on the way.
                let on_the_way = stream.granted + u32::from(stream.coming);
                let (of_job, half) = (self.of_job(stream.job), self.limits.pieces.div_ceil(2));
                let may = stream.offered > 0
                    && on_the_way < self.limits.window
                    && !self.has_its_share(stream)
                    && !(of_job >= half && self.others_want(stream.job));
                // Of one job the one whose turn began first: its bytes lie in a row on the disk, so it is not to run dry.
                may.then_some((of_job, stream.since, *id))
            };
            let Some((.., id)) = self.active.iter().filter_map(may).min() else {
                break;
            };
            let Some(stream) = self.streams.get_mut(&id) else {
                break;
            };
            stream.offered = stream.offered.saturating_sub(PIECE_BYTES);
            stream.granted += 1;
            match grants.iter_mut().find(|(one, _)| *one == id) {
                Some((_, pieces)) => *pieces += 1,
                None => grants.push((id, 1)),
            }
        }
        grants
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
            Some((stream.heard + limit).min(stream.since + self.limits.turn))
        };
        let waits = self.jobs.values().any(|job| !job.waiting.is_empty());
        self.active.iter().filter_map(due).min().filter(|_| waits)
    }
}
