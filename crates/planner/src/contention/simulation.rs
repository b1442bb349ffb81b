//! Simulates one burst, event by event: streams, the network, the servers and their disks.
//!
//! How: a *stream* is the sequence of bytes from one node into one file of one server. It puts a
//! request on the wire if it has bytes ready, a turn (orchestrated), fewer requests in flight than
//! its window, and nothing on the wire already. A request passes the wire, the latency, the page
//! cache or the disk, and the latency back; then the next may go. Time advances from event to
//! event; among simultaneous events, the one that was scheduled first comes first.
//!
//! Invariants:
//! 1. Every byte goes over the wire once and to the disk once; the simulation ends when all have
//!    arrived.
//! 2. The same burst and parameters give the same result on every machine with IEEE 754 rounding.
//! 3. At most `window` requests of a stream are in flight, `at_once` streams of a server have a
//!    turn, and `stage_slots` images of a node are staged.
//!
//! Not here: the shares of the links (`network.rs`), the disk (`disk.rs`), the page cache
//! (`cache.rs`).

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::cache::{self, Cache};
use super::disk::{Drive, Request};
use super::layout::{StreamPlan, plan};
use super::network::Wire;
use super::{Burst, Mode, Outcome};
use crate::contention::parameters::Parameters;

#[derive(Debug, Clone, Copy)]
enum Happening {
    /// A request has arrived at its server.
    Arrived(Request),
    /// The disk of a server has written a request.
    Written(usize),
    /// The node of a stream learns that this many bytes are in the server's cache, or on its disk.
    Answered(u32, u64),
    /// Another image of a stream is in staging memory.
    Staged(u32),
    /// Another rank of a stream begins, with this many bytes.
    Begun(u32, u64),
}

#[derive(Debug, Clone, Copy)]
struct Event {
    at_s: f64,
    order: u64,
    what: Happening,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let time = self.at_s.total_cmp(&other.at_s);
        time.then(self.order.cmp(&other.order))
    }
}

#[derive(Debug)]
struct Stream {
    plan: StreamPlan,
    /// Bytes that may be sent.
    ready_bytes: u64,
    sent_bytes: u64,
    arrived_bytes: u64,
    answered_bytes: u64,
    in_flight: u32,
    on_wire: Option<Request>,
    /// Number of images that are staged, or being staged.
    images_begun: u32,
    staging: bool,
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    None,
    InLine,
    Has,
}

#[derive(Debug)]
struct Station {
    drive: Drive,
    cache: Option<Cache>,
    /// Bytes that have not arrived yet.
    missing_bytes: u64,
    line: VecDeque<u32>,
    turns: u32,
}

struct Simulation<'a> {
    parameters: &'a Parameters,
    burst: &'a Burst,
    now_s: f64,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    wire: Wire,
    streams: Vec<Stream>,
    stations: Vec<Station>,
    last_answer_s: f64,
    taken: Vec<Request>,
}

/// Simulates a checked burst.
pub(super) fn run(parameters: &Parameters, burst: &Burst) -> Outcome {
    let plans = plan(parameters, burst);
    let servers = burst.servers as usize;
    let mut stations = Vec::with_capacity(servers);
    for server in 0..servers {
        let first = plans.partition_point(|plan| plan.server < server);
        let own = plans[first..].partition_point(|plan| plan.server == server);
        let total = |plan: &StreamPlan| plan.total_bytes;
        stations.push(Station {
            drive: Drive::new(&parameters.disk),
            cache: burst
                .cached
                .then(|| Cache::new(&parameters.server, first as u32, own)),
            missing_bytes: plans[first..first + own].iter().map(total).sum(),
            line: VecDeque::new(),
            turns: 0,
        });
    }
    let network = &parameters.network;
    let mut simulation = Simulation {
        parameters,
        burst,
        now_s: 0.0,
        events: BinaryHeap::new(),
        order: 0,
        wire: Wire::new(
            burst.nodes as usize,
            servers,
            network.node_rate_bytes_per_s,
            network.server_rate_bytes_per_s,
        ),
        streams: plans.into_iter().map(stream_of).collect(),
        stations,
        last_answer_s: 0.0,
        taken: Vec::new(),
    };
    simulation.run();
    simulation.outcome()
}

fn stream_of(plan: StreamPlan) -> Stream {
    Stream {
        plan,
        ready_bytes: 0,
        sent_bytes: 0,
        arrived_bytes: 0,
        answered_bytes: 0,
        in_flight: 0,
        on_wire: None,
        images_begun: 0,
        staging: false,
        turn: Turn::None,
    }
}

/// An order unrelated to where files are: ranks begin in random order.
fn shuffled(streams: usize) -> Vec<u32> {
    // The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
    let mixed = |number: u32| {
        let mut z = u64::from(number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut order: Vec<u32> = (0..streams as u32).collect();
    order.sort_by_key(|&number| mixed(number));
    order
}

impl Simulation<'_> {
    fn run(&mut self) {
        let ranks = self.burst.nodes as usize * self.burst.ranks_per_node as usize;
        // The position of each rank among those that begin.
        let mut begins = vec![0; ranks];
        for (place, rank) in (0..).zip(shuffled(ranks)) {
            begins[rank as usize] = place;
        }
        for stream in shuffled(self.streams.len()) {
            let staged = self.burst.mode == Mode::Orchestrated
                && self.parameters.client.copy_rate_bytes_per_s > 0.0;
            let begin_s = self.parameters.client.begin_s;
            let own = &mut self.streams[stream as usize];
            if staged {
                self.stage(stream);
            } else if begin_s > 0.0 {
                let (first, image_bytes) = (own.plan.rank, own.plan.image_bytes);
                let images = own.plan.total_bytes / image_bytes;
                for &place in &begins[first..first + images as usize] {
                    let in_s = begin_s * f64::from(place) / ranks as f64;
                    self.later(in_s, Happening::Begun(stream, image_bytes));
                }
            } else {
                own.ready_bytes = own.plan.total_bytes;
                self.send(stream);
            }
        }
        let mut passed = Vec::new();
        loop {
            let wire_s = self.wire.next_s();
            let event_s = self
                .events
                .peek()
                .map_or(f64::INFINITY, |Reverse(event)| event.at_s);
            let next_s = wire_s.min(event_s).max(self.now_s);
            if next_s == f64::INFINITY {
                break;
            }
            self.now_s = next_s;
            passed.clear();
            self.wire.advance(next_s, &mut passed);
            for &stream in &passed {
                self.off_the_wire(stream);
            }
            while let Some(Reverse(event)) = self.events.peek().copied() {
                if event.at_s > next_s {
                    break;
                }
                self.events.pop();
                self.happen(event.what);
            }
        }
    }

    fn later(&mut self, in_s: f64, what: Happening) {
        self.order += 1;
        self.events.push(Reverse(Event {
            at_s: self.now_s + in_s,
            order: self.order,
            what,
        }));
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrived(request) => self.arrive(request),
            Happening::Written(server) => self.written(server),
            Happening::Answered(stream, len_bytes) => self.answered(stream, len_bytes),
            Happening::Begun(stream, len_bytes) => {
                self.streams[stream as usize].ready_bytes += len_bytes;
                self.send(stream);
            }
            Happening::Staged(stream) => {
                let own = &mut self.streams[stream as usize];
                own.staging = false;
                own.ready_bytes += own.plan.image_bytes;
                self.stage(stream);
                self.send(stream);
            }
        }
    }

    /// Begins to stage the next image of a node, if there is one and room for it.
    fn stage(&mut self, stream: u32) {
        let client = &self.parameters.client;
        let own = &mut self.streams[stream as usize];
        let images = own.plan.total_bytes / own.plan.image_bytes;
        let flushed = own.answered_bytes / own.plan.image_bytes;
        let held = u64::from(own.images_begun) - flushed;
        if own.staging
            || u64::from(own.images_begun) == images
            || held >= u64::from(client.stage_slots)
        {
            return;
        }
        own.staging = true;
        own.images_begun += 1;
        let takes_s = own.plan.image_bytes as f64 / client.copy_rate_bytes_per_s;
        self.later(takes_s, Happening::Staged(stream));
    }

    /// Puts the next request of a stream on the wire, if it may.
    fn send(&mut self, stream: u32) {
        let own = &mut self.streams[stream as usize];
        if own.on_wire.is_some() || own.sent_bytes == own.ready_bytes {
            return;
        }
        let server = own.plan.server;
        if self.burst.mode == Mode::Orchestrated && own.turn != Turn::Has {
            if own.turn == Turn::None {
                own.turn = Turn::InLine;
                self.stations[server].line.push_back(stream);
                self.give_turns(server);
            }
            return;
        }
        if own.in_flight == own.plan.window {
            return;
        }
        // An image begins with a new request, because it is staged and flushed as a whole.
        let left_of_image = own.plan.image_bytes - own.sent_bytes % own.plan.image_bytes;
        let request = Request {
            at_bytes: own.plan.at_bytes + own.sent_bytes,
            len_bytes: own.plan.request_bytes.min(left_of_image),
            stream,
        };
        own.sent_bytes += request.len_bytes;
        own.in_flight += 1;
        own.on_wire = Some(request);
        self.wire
            .send(own.plan.node, server, request.len_bytes, stream);
    }

    fn give_turns(&mut self, server: usize) {
        while self.stations[server].turns < self.parameters.server.at_once {
            let Some(stream) = self.stations[server].line.pop_front() else {
                return;
            };
            self.stations[server].turns += 1;
            self.streams[stream as usize].turn = Turn::Has;
            self.send(stream);
        }
    }

    fn off_the_wire(&mut self, stream: u32) {
        let own = &mut self.streams[stream as usize];
        if let Some(request) = own.on_wire.take() {
            self.later(
                self.parameters.network.latency_s,
                Happening::Arrived(request),
            );
        }
        self.send(stream);
    }

    fn arrive(&mut self, request: Request) {
        let own = &mut self.streams[request.stream as usize];
        own.arrived_bytes += request.len_bytes;
        let server = own.plan.server;
        // Everything that it had has arrived: the turn is over.
        if own.turn == Turn::Has && own.arrived_bytes == own.ready_bytes {
            own.turn = Turn::None;
            self.stations[server].turns -= 1;
            self.give_turns(server);
        }
        let station = &mut self.stations[server];
        station.missing_bytes -= request.len_bytes;
        match &mut station.cache {
            None => station.drive.put(request),
            Some(cache) => {
                let mut taken = std::mem::take(&mut self.taken);
                cache.take(request, &mut taken);
                self.answer_all(taken);
            }
        }
        self.work(server);
    }

    /// Answers the requests that are in the cache; the list is kept for the next time.
    fn answer_all(&mut self, mut taken: Vec<Request>) {
        for request in taken.drain(..) {
            self.answer(request);
        }
        self.taken = taken;
    }

    fn answer(&mut self, request: Request) {
        let latency_s = self.parameters.network.latency_s;
        self.later(
            latency_s,
            Happening::Answered(request.stream, request.len_bytes),
        );
    }

    /// Keeps the disk of a server busy.
    fn work(&mut self, server: usize) {
        let station = &mut self.stations[server];
        if let Some(pages) = &mut station.cache {
            while station.drive.open_requests() < cache::RUNS_AT_ONCE
                && let Some(run) = pages.next(station.missing_bytes == 0)
            {
                station.drive.put(run);
            }
        }
        if let Some(takes_s) = station.drive.begin() {
            self.later(takes_s, Happening::Written(server));
        }
    }

    fn written(&mut self, server: usize) {
        let station = &mut self.stations[server];
        let Some(request) = station.drive.end() else {
            return self.work(server);
        };
        self.last_answer_s = self.now_s + self.parameters.network.latency_s;
        match &mut station.cache {
            None => self.answer(request),
            Some(cache) => {
                let mut taken = std::mem::take(&mut self.taken);
                cache.written(request, &mut taken);
                self.answer_all(taken);
            }
        }
        self.work(server);
    }

    fn answered(&mut self, stream: u32, len_bytes: u64) {
        let own = &mut self.streams[stream as usize];
        own.in_flight -= 1;
        own.answered_bytes += len_bytes;
        if own.staging || own.images_begun > 0 {
            self.stage(stream);
        }
        self.send(stream);
    }

    fn outcome(&self) -> Outcome {
        let drives = || self.stations.iter().map(|station| &station.drive);
        let busiest_s = drives().map(|drive| drive.busy_s).fold(0.0, f64::max);
        let mut by_server = vec![0; self.stations.len()];
        for stream in &self.streams {
            by_server[stream.plan.server] += 1;
        }
        let most = by_server.into_iter().max().unwrap_or(0);
        Outcome {
            time_s: self.last_answer_s,
            streams_per_server: match self.burst.mode {
                Mode::Orchestrated => most.min(self.parameters.server.at_once),
                Mode::Traditional | Mode::Vertical => most,
            },
            disk_requests: drives().map(|drive| drive.requests).sum(),
            positionings: drives().map(|drive| drive.positionings).sum(),
            disk_busy: busiest_s / self.last_answer_s,
        }
    }
}
