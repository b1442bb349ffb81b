//! Models the disk of a server: the cost of a request, and which one is next.
//!
//! How: requests queue up and become commands of at most `command_bytes`, one of each request in
//! turn, because the kernel's queue is shared by the writers. A command that begins where the last
//! one ended costs its transfer. Any other also costs a positioning: a seek that grows with the
//! square root of the distance, and half a rotation. Of the `queue_depth` commands that the drive
//! knows, the nearest is next.
//!
//! Invariants:
//! 1. The oldest command is passed over at most [`PASSED_OVER_MAX`] × `queue_depth` times: a drive
//!    lets no command starve.
//! 2. Equal distances are served in the order of arrival.
//! 3. A request ends with the last of its commands.
//!
//! Not here: what is on the disk (`simulation.rs` lays files out), the page cache (`cache.rs`).

use std::collections::VecDeque;

use crate::contention::parameters::Disk;

/// See invariant 1. Large enough not to prevent a good order.
const PASSED_OVER_MAX: u64 = 4;

/// A request to write bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// First byte on the disk.
    pub at_bytes: u64,
    pub len_bytes: u64,
    /// The stream.
    pub stream: u32,
}

/// A part of a request, as the drive sees it.
#[derive(Debug, Clone, Copy)]
struct Command {
    at_bytes: u64,
    len_bytes: u64,
    /// Index of its request in [`Drive::open`].
    of: usize,
}

/// A disk with its queue.
#[derive(Debug)]
pub(super) struct Drive {
    disk: Disk,
    /// Position of the head: behind the last byte that was written.
    head_bytes: u64,
    /// Requests, and how many bytes of each are not written yet; free entries have none.
    open: Vec<(Request, u64)>,
    free: Vec<usize>,
    /// Parts of requests that are not commands yet.
    line: VecDeque<Command>,
    waiting: VecDeque<Command>,
    /// How often the oldest waiting command was passed over.
    passed_over: u64,
    /// The command being written.
    at_work: Option<Command>,
    /// How often the head had to be moved.
    pub positionings: u64,
    /// Number of commands that were begun.
    pub requests: u64,
    /// Seconds of work that was begun.
    pub busy_s: f64,
}

impl Drive {
    pub(super) fn new(disk: &Disk) -> Self {
        Self {
            disk: disk.clone(),
            head_bytes: 0,
            open: Vec::new(),
            free: Vec::new(),
            line: VecDeque::new(),
            waiting: VecDeque::new(),
            passed_over: 0,
            at_work: None,
            positionings: 0,
            requests: 0,
            busy_s: 0.0,
        }
    }

    pub(super) fn put(&mut self, request: Request) {
        let of = self.free.pop().unwrap_or(self.open.len());
        if of == self.open.len() {
            self.open.push((request, 0));
        }
        self.open[of] = (request, request.len_bytes);
        self.line.push_back(Command {
            at_bytes: request.at_bytes,
            len_bytes: request.len_bytes,
            of,
        });
    }

    /// Number of requests that are not written yet.
    pub(super) fn open_requests(&self) -> usize {
        self.open.len() - self.free.len()
    }

    /// Turns queued parts into commands.
    fn fill(&mut self) {
        while self.waiting.len() < self.disk.queue_depth as usize
            && let Some(mut left) = self.line.pop_front()
        {
            let len_bytes = left.len_bytes.min(self.disk.command_bytes);
            self.waiting.push_back(Command { len_bytes, ..left });
            left.at_bytes += len_bytes;
            left.len_bytes -= len_bytes;
            if left.len_bytes > 0 {
                self.line.push_back(left);
            }
        }
    }

    /// Begins the next command, if one waits and none is at work; returns the seconds that it
    /// takes.
    pub(super) fn begin(&mut self) -> Option<f64> {
        if self.at_work.is_some() {
            return None;
        }
        self.fill();
        let next = if self.passed_over >= PASSED_OVER_MAX * u64::from(self.disk.queue_depth) {
            0
        } else {
            let distance = |command: &Command| command.at_bytes.abs_diff(self.head_bytes);
            let all = self.waiting.iter().enumerate();
            // Of equals, the first is the minimum.
            let nearest = all.min_by_key(|(_, command)| distance(command));
            nearest.map_or(0, |(place, _)| place)
        };
        let command = self.waiting.remove(next)?;
        self.passed_over = if next == 0 { 0 } else { self.passed_over + 1 };
        self.requests += 1;
        let mut takes_s =
            self.disk.request_s + command.len_bytes as f64 / self.disk.rate_bytes_per_s;
        if command.at_bytes != self.head_bytes || self.requests == 1 {
            self.positionings += 1;
            takes_s += self.positioning_s(command.at_bytes.abs_diff(self.head_bytes));
        }
        self.head_bytes = command.at_bytes + command.len_bytes;
        self.busy_s += takes_s;
        self.at_work = Some(command);
        Some(takes_s)
    }

    /// Ends the command at work; returns the request that it completes, if any.
    pub(super) fn end(&mut self) -> Option<Request> {
        let command = self.at_work.take()?;
        let (request, left_bytes) = &mut self.open[command.of];
        *left_bytes -= command.len_bytes;
        if *left_bytes > 0 {
            return None;
        }
        self.free.push(command.of);
        Some(*request)
    }

    fn positioning_s(&self, distance_bytes: u64) -> f64 {
        let Disk {
            seek_min_s,
            seek_max_s,
            span_bytes,
            rotation_s,
            ..
        } = self.disk;
        let far = (distance_bytes as f64 / span_bytes as f64).min(1.0);
        seek_min_s + (seek_max_s - seek_min_s) * far.sqrt() + rotation_s / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(queue_depth: u32) -> Drive {
        Drive::new(&Disk {
            rate_bytes_per_s: 100.0,
            request_s: 0.5,
            seek_min_s: 1.0,
            seek_max_s: 3.0,
            span_bytes: 10_000,
            rotation_s: 2.0,
            queue_depth,
            command_bytes: 100,
        })
    }

    fn serve(drive: &mut Drive, at: &[u64]) -> Vec<(u32, f64)> {
        for (stream, &at_bytes) in (0..).zip(at) {
            drive.put(Request {
                at_bytes,
                len_bytes: 100,
                stream,
            });
        }
        let mut served = Vec::new();
        while let Some(takes_s) = drive.begin() {
            served.push((drive.end().unwrap().stream, takes_s));
        }
        served
    }

    // Breaks if: a positioning is charged to a request that continues where the last one ended, or
    // not to another one.
    #[test]
    fn what_goes_on_costs_its_transfer_and_what_does_not_a_positioning() {
        // From 0 to 0: shortest seek and half a rotation. From 200 to 2700: a quarter of the span,
        // half of the way to the longest seek.
        let took = serve(&mut drive(1), &[0, 100, 2700]);
        assert_eq!(took, [(0, 1.5 + 2.0), (1, 1.5), (2, 1.5 + 2.0 + 1.0)]);
    }

    // Breaks if: the choice is among all waiting commands, or always the oldest.
    #[test]
    fn the_nearest_of_the_first_few_is_next() {
        let order = |depth, at| -> Vec<u32> {
            let served = serve(&mut drive(depth), at);
            served.into_iter().map(|(stream, _)| stream).collect()
        };
        let at = &[5000, 100, 4000, 200, 0];
        assert_eq!(order(1, at), [0, 1, 2, 3, 4]);
        assert_eq!(order(2, at), [1, 2, 0, 3, 4]);
        assert_eq!(order(5, at), [4, 1, 3, 2, 0]);
    }

    // Breaks if: a request is written whole before the next, or answered before its end.
    #[test]
    fn requests_are_written_in_commands_and_in_turn() {
        let mut drive = drive(1);
        for (stream, len_bytes) in [(0, 250), (1, 100)] {
            let at_bytes = 1000 * u64::from(stream);
            drive.put(Request {
                at_bytes,
                len_bytes,
                stream,
            });
        }
        let mut ends = Vec::new();
        while drive.begin().is_some() {
            ends.push((drive.head_bytes, drive.end().map(|request| request.stream)));
        }
        assert_eq!(
            ends,
            [(100, None), (1100, Some(1)), (200, None), (250, Some(0))]
        );
        assert_eq!(drive.open_requests(), 0);
        assert_eq!((drive.requests, drive.positionings), (4, 3));
    }

    // Breaks if: `passed_over` is not counted.
    #[test]
    fn the_oldest_is_not_passed_over_for_ever() {
        let at: Vec<u64> = [9000].into_iter().chain((0..50).map(|i| i * 100)).collect();
        let served = serve(&mut drive(2), &at);
        let place = served.iter().position(|&(stream, _)| stream == 0);
        assert_eq!(place, Some(8));
    }
}
