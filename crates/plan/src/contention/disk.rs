//! The disk of a server: what a request costs, and which one is next.
//!
//! How: a request that begins where the last one ended costs its transfer; every other one costs a positioning besides: a seek
//! that grows with the square root of the distance, and half a turn. Of the first `queue_depth` requests that wait, the nearest
//! is next; the others wait in line.
//!
//! Invariants:
//! 1. The oldest request is passed over at most [`PASSED_OVER_MAX`] × `queue_depth` times: a drive lets nobody starve.
//! 2. Equal distances are served in the order of arrival.
//!
//! Not here: what is on the disk (`simulation.rs` lays files out), the page cache (`cache.rs`).

use std::collections::VecDeque;

use super::Disk;

/// See invariant 1. Large enough that it does not stand in the way of a good order.
const PASSED_OVER_MAX: u64 = 4;

/// Bytes to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// First byte on the disk.
    pub at_bytes: u64,
    pub len_bytes: u64,
    /// Of which stream.
    pub stream: u32,
}

/// A disk with its queue.
#[derive(Debug)]
pub(super) struct Drive {
    disk: Disk,
    /// Where the head is: behind the last byte that was written.
    head_bytes: u64,
    waiting: VecDeque<Request>,
    /// How often the oldest that waits was passed over.
    passed_over: u64,
    /// The one that is being written.
    at_work: Option<Request>,
    /// How often the head had to be moved.
    pub positionings: u64,
    /// Requests that were begun.
    pub requests: u64,
    /// Seconds of work that was begun.
    pub busy_s: f64,
}

impl Drive {
    pub(super) fn new(disk: &Disk) -> Self {
        Self {
            disk: disk.clone(),
            head_bytes: 0,
            waiting: VecDeque::new(),
            passed_over: 0,
            at_work: None,
            positionings: 0,
            requests: 0,
            busy_s: 0.0,
        }
    }

    pub(super) fn put(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    pub(super) fn idle(&self) -> bool {
        self.at_work.is_none()
    }

    /// Begins the next request, if one waits and none is at work; seconds that it takes.
    pub(super) fn begin(&mut self) -> Option<f64> {
        if self.at_work.is_some() {
            return None;
        }
        let depth = self.disk.queue_depth as usize;
        let next = if self.passed_over >= PASSED_OVER_MAX * depth as u64 {
            0
        } else {
            let distance = |request: &Request| request.at_bytes.abs_diff(self.head_bytes);
            let among = self.waiting.iter().take(depth).enumerate();
            // Of equals the first is the least.
            let nearest = among.min_by_key(|(_, request)| distance(request));
            nearest.map_or(0, |(place, _)| place)
        };
        let request = self.waiting.remove(next)?;
        self.passed_over = if next == 0 { 0 } else { self.passed_over + 1 };
        self.requests += 1;
        let mut takes_s =
            self.disk.request_s + request.len_bytes as f64 / self.disk.rate_bytes_per_s;
        if request.at_bytes != self.head_bytes || self.requests == 1 {
            self.positionings += 1;
            takes_s += self.positioning_s(request.at_bytes.abs_diff(self.head_bytes));
        }
        self.head_bytes = request.at_bytes + request.len_bytes;
        self.busy_s += takes_s;
        self.at_work = Some(request);
        Some(takes_s)
    }

    /// Ends the request at work.
    pub(super) fn end(&mut self) -> Option<Request> {
        self.at_work.take()
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

    // Breaks if: a positioning is charged to a request that goes on where the last one ended, or not to another one.
    #[test]
    fn what_goes_on_costs_its_transfer_and_what_does_not_a_positioning() {
        // From 0 to 0: shortest seek and half a turn. From 200 to 2700: a quarter of the span, half of the way to the longest.
        let took = serve(&mut drive(1), &[0, 100, 2700]);
        assert_eq!(took, [(0, 1.5 + 2.0), (1, 1.5), (2, 1.5 + 2.0 + 1.0)]);
    }

    // Breaks if: the choice is among all that wait, or always the oldest.
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

    // Breaks if: `passed_over` is not counted.
    #[test]
    fn the_oldest_is_not_passed_over_for_ever() {
        let at: Vec<u64> = [9000].into_iter().chain((0..50).map(|i| i * 100)).collect();
        let served = serve(&mut drive(2), &at);
        let place = served.iter().position(|&(stream, _)| stream == 0);
        assert_eq!(place, Some(8));
    }
}
