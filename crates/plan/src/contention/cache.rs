//! The page cache of a server: takes requests in at once while there is room, and writes longer runs than it was given.
//!
//! How: bytes of a file that came one after the other are one dirty run. Writing back begins beyond `cache_background_bytes`, and
//! goes round the files in the order in which they became dirty, up to `write_back_bytes` of each at a time; once everything has
//! arrived (the fsync) each file is written to its end before the next. Whoever finds no room waits in line.
//!
//! Invariants:
//! 1. No more than `cache_bytes` are dirty, those on their way to the disk included.
//! 2. While somebody waits for room, writing goes on.
//! 3. The disk is given one run at a time: the order is the cache's.
//!
//! Not here: the disk (`disk.rs`); a journal, which costs the baseline nothing here.

use std::collections::VecDeque;

use super::Server;
use super::disk::Request;

/// The dirty run of one file.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    at_bytes: u64,
    len_bytes: u64,
}

/// A page cache.
#[derive(Debug)]
pub(super) struct Cache {
    limit_bytes: u64,
    background_bytes: u64,
    write_back_bytes: u64,
    dirty_bytes: u64,
    /// Of the streams from `first` on; each writes one file.
    runs: Vec<Run>,
    first: u32,
    /// Streams whose files have a run, in the order of their turns.
    round: VecDeque<u32>,
    blocked: VecDeque<Request>,
}

impl Cache {
    /// An empty cache for `streams` streams, numbered from `first` on.
    pub(super) fn new(server: &Server, first: u32, streams: usize) -> Self {
        Self {
            limit_bytes: server.cache_bytes,
            background_bytes: server.cache_background_bytes,
            write_back_bytes: server.write_back_bytes,
            dirty_bytes: 0,
            runs: vec![Run::default(); streams],
            first,
            round: VecDeque::new(),
            blocked: VecDeque::new(),
        }
    }

    /// A request comes; whether it is taken in at once. One that is not is handed out by [`Cache::written`].
    pub(super) fn take(&mut self, request: Request) -> bool {
        if !self.blocked.is_empty() || self.dirty_bytes + request.len_bytes > self.limit_bytes {
            self.blocked.push_back(request);
            return false;
        }
        self.enter(request);
        true
    }

    fn enter(&mut self, request: Request) {
        self.dirty_bytes += request.len_bytes;
        let run = &mut self.runs[(request.stream - self.first) as usize];
        if run.len_bytes == 0 {
            run.at_bytes = request.at_bytes;
            self.round.push_back(request.stream);
        }
        run.len_bytes += request.len_bytes;
    }

    /// The run that the disk is to write next. `complete`: everything that will come has come.
    pub(super) fn next(&mut self, complete: bool) -> Option<Request> {
        let wanted = complete || !self.blocked.is_empty();
        if !wanted && self.dirty_bytes <= self.background_bytes {
            return None;
        }
        let stream = self.round.pop_front()?;
        let run = &mut self.runs[(stream - self.first) as usize];
        let request = Request {
            at_bytes: run.at_bytes,
            len_bytes: run.len_bytes.min(self.write_back_bytes),
            stream,
        };
        run.at_bytes += request.len_bytes;
        run.len_bytes -= request.len_bytes;
        if run.len_bytes > 0 {
            match complete && self.blocked.is_empty() {
                true => self.round.push_front(stream),
                false => self.round.push_back(stream),
            }
        }
        Some(request)
    }

    /// A run is on the disk: those for which there is room now are taken in, and added to `taken`.
    pub(super) fn written(&mut self, run: Request, taken: &mut Vec<Request>) {
        self.dirty_bytes -= run.len_bytes;
        while let Some(&request) = self.blocked.front() {
            if self.dirty_bytes + request.len_bytes > self.limit_bytes {
                break;
            }
            self.blocked.pop_front();
            self.enter(request);
            taken.push(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(stream: u32, at_bytes: u64, len_bytes: u64) -> Request {
        Request {
            at_bytes,
            len_bytes,
            stream,
        }
    }

    // Breaks if: runs are not merged, the round does not go on, or the limit does not hold.
    #[test]
    fn runs_are_merged_and_the_limit_holds() {
        let server = Server {
            cache_bytes: 100,
            cache_background_bytes: 50,
            write_back_bytes: 30,
            ..Server::default()
        };
        let mut cache = Cache::new(&server, 7, 2);
        assert!(cache.take(request(7, 0, 20)));
        assert!(cache.take(request(8, 500, 20)));
        // Not beyond the background limit, so nothing is written before the fsync.
        assert_eq!(cache.next(false), None);
        assert!(cache.take(request(7, 20, 20)));
        assert!(cache.take(request(8, 520, 20)));
        assert!(!cache.take(request(7, 40, 40)));
        assert!(!cache.take(request(8, 540, 1)), "nobody jumps the queue");
        let first = cache.next(false).unwrap();
        assert_eq!(first, request(7, 0, 30));
        let second = cache.next(false).unwrap();
        assert_eq!(second, request(8, 500, 30));
        let mut taken = Vec::new();
        cache.written(first, &mut taken);
        assert_eq!(taken, [request(7, 40, 40), request(8, 540, 1)]);
        // All has come: each file to its end.
        assert_eq!(cache.next(true), Some(request(7, 30, 30)));
        assert_eq!(cache.next(true), Some(request(7, 60, 20)));
        assert_eq!(cache.next(true), Some(request(8, 530, 11)));
        assert_eq!(cache.next(true), None);
    }
}
