//! Decides who may send when: a server takes in a few files at a time, as many pieces as it has
//! memory for.
//!
//! How: a *stream* is a file that is being written. It offers bytes. During its turn it is granted
//! pieces, a few at a time, until all offered bytes have arrived. A turn also ends if the stream
//! sends nothing for a while and, while other jobs wait, if it has had its share of bytes or time.
//! Turns alternate between the jobs, and within a job follow the order of the offers. Memory is
//! promised only to streams that have a turn: a piece that was granted in an earlier turn waits,
//! unread, for the next one.
//!
//! Invariants:
//! 1. No more pieces are granted than were offered, and at most `window` of one stream are in
//!    flight.
//! 2. Pieces in memory and pieces promised to streams that have a turn are together at most
//!    `pieces`; while another job waits, a job that has half of them gets no more.
//! 3. While fewer than `at_once` streams have a turn and memory is free, also for what was granted
//!    in an earlier turn, no stream that offers bytes waits. One slow stream delays no other for
//!    longer than `stall`, and one that sends nothing for no longer than `idle`.
//! 4. No job waits while another one has at least two turns more, except for turns that have not
//!    ended yet.
//!
//! Survives: streams that stop, vanish, or send late what they were granted. Not here: threads,
//! sockets and memory (`session.rs`, `intake.rs`); what a stream is granted before it offers
//! anything (`orcheck_format::wire::staging`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::PIECE_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of pieces of memory.
    pub pieces: u32,
    /// Number of streams that have a turn at the same time.
    pub at_once: usize,
    /// Number of pieces of one stream in flight.
    pub window: u32,
    /// A turn ends if no piece has begun to arrive for this long, although something was offered or
    /// granted.
    pub idle: Duration,
    /// The same in the middle of a piece.
    pub stall: Duration,
    /// A turn ends after this many bytes, counted in whole pieces, if another job waits.
    pub turn_bytes: u64,
    /// And after this time.
    pub turn: Duration,
}

/// A stream and how many more pieces it may send; 0 if its turn begins with what it was granted
/// before.
pub type Grant = (u64, u32);

/// The decision about a piece that is about to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// It may come: there is memory for it.
    Now,
    /// It was granted, and waits for the stream's next turn.
    Waits,
    /// It was not granted.
    Unwanted,
}

#[derive(Debug)]
struct Stream {
    job: u64,
    /// Bytes that were offered but not granted.
    offered: u64,
    /// Pieces that were granted and have not begun to arrive.
    granted: u32,
    /// Whether a piece is arriving.
    coming: bool,
    /// When the stream last did anything.
    heard: Duration,
    /// Bytes of whole pieces that arrived in this turn, and when it began.
    came: u64,
    since: Duration,
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It offers nothing, or sent nothing in its turn.
    None,
    Waits,
    Has,
}

#[derive(Debug, Default)]
struct Job {
    waiting: VecDeque<u64>,
    turns: usize,
    /// The number of its last turn among all turns.
    last: u64,
    /// Number of pieces of memory that hold something of it.
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
    /// Number of pieces of memory in use.
    held: u32,
    turns: u64,
}

impl Pull {
    /// An order without offers.
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

    /// A piece of a stream is about to arrive.
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
            // It was granted in an earlier turn.
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

    /// The piece has arrived.
    pub fn arrived(&mut self, now: Duration, id: u64) -> Vec<Grant> {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.coming = false;
            stream.heard = now;
            stream.came += PIECE_BYTES;
            // A stream that lost its turn in the middle of it is active again.
            self.enqueue(id);
        }
        self.go_on(now)
    }

    /// A piece of memory of a job is free again: its contents are written, or did not arrive.
    pub fn freed(&mut self, now: Duration, job: u64) -> Vec<Grant> {
        self.held = self.held.saturating_sub(1);
        if let Some(one) = self.jobs.get_mut(&job) {
            one.held = one.held.saturating_sub(1);
        }
        self.forget(job);
        self.go_on(now)
    }

    /// A stream has nothing more to send for now. It may still send later what it was granted.
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

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Grant> {
        self.go_on(now)
    }

    /// Whether a stream waits for the server, and not the server for it.
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

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the
    /// streams do.
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
                // A silent stream waits again once it is active; any other moves to the end of the
                // line.
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
            // What it was granted before counts again with its turn: nobody gets more until there
            // is memory for it.
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
        // Breaks if: a stream that was granted something is waited for; a stopped node would keep
        // its turn forever.
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
    fn others_are_waiting(&self, job: u64) -> bool {
        let starves = |id: &u64| {
            let stream = self.streams.get(id);
            stream.is_some_and(|one| {
                one.job != job && one.offered > 0 && one.granted == 0 && !one.coming
            })
        };
        self.others_wait(job) || self.active.iter().any(starves)
    }

    /// Whether a stream has had, or is about to get, its share while other jobs wait.
    fn has_its_share(&self, stream: &Stream) -> bool {
        let on_the_way = u64::from(stream.granted + u32::from(stream.coming));
        stream.came + on_the_way * PIECE_BYTES >= self.limits.turn_bytes
            && self.others_wait(stream.job)
    }

    fn has_its_time(&self, now: Duration, stream: &Stream) -> bool {
        now.saturating_sub(stream.since) >= self.limits.turn && self.others_wait(stream.job)
    }

    /// Number of pieces that a job holds or was promised.
    fn of_job(&self, job: u64) -> u32 {
        let promised = |id: &u64| match self.streams.get(id) {
            Some(stream) if stream.job == job => stream.granted,
            _ => 0,
        };
        let held = self.jobs.get(&job).map_or(0, |one| one.held);
        held + self.active.iter().map(promised).sum::<u32>()
    }

    /// Number of pieces that may be held and promised together.
    fn bound(&self) -> u32 {
        // Breaks if: it is not respected; a server would want more than it has memory for.
        match off(Switch::PullBound) {
            true => u32::MAX,
            false => self.limits.pieces,
        }
    }

    fn promised(&self) -> u32 {
        let of = |id| self.streams.get(id).map_or(0, |one: &Stream| one.granted);
        self.active.iter().map(of).sum()
    }

    /// Grants one piece after the other, as long as there is memory and a stream that may have one;
    /// first to the job that has the fewest.
    fn grant(&mut self, mut grants: Vec<Grant>) -> Vec<Grant> {
        while self.held + self.promised() < self.bound() {
            let may = |id: &u64| {
                let stream = self.streams.get(id)?;
                // A piece that is arriving counts: it is still in flight.
                let on_the_way = stream.granted + u32::from(stream.coming);
                let (of_job, half) = (self.of_job(stream.job), self.limits.pieces.div_ceil(2));
                let may = stream.offered > 0
                    && on_the_way < self.limits.window
                    && !self.has_its_share(stream)
                    && !(of_job >= half && self.others_are_waiting(stream.job));
                // Within a job, the stream whose turn began first: its bytes are contiguous on the
                // disk, so it must not run dry.
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

    /// When something is due even if nothing happens.
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
