//! Models the page cache of a server, which accepts requests at once while there is room, and
//! writes longer runs than it was given.
//!
//! How: it works like Linux (mm/page-writeback.c, fs/fs-writeback.c). Bytes of a file that arrived
//! one after the other are one dirty run. Writers continue unhindered up to halfway between
//! `cache_background_bytes` and `cache_bytes` (the freerun ceiling). Beyond that, all of them
//! continue in turn, one step each, as fast as the disk writes. Writeback begins when more than
//! `cache_background_bytes` are not in flight. It then goes once round all dirty files, up to
//! `write_back_bytes` of each, as far as the kernel's queue accepts them. Once everything has
//! arrived (the fsync), each file is written to its end before the next.
//!
//! Invariants
//! 1. At most `cache_bytes` are dirty, including those in flight to the disk.
//! 2. While a writer waits for room, writing continues.
//! 3. Requests of one stream are accepted one after the other.
//!
//! Not here: the disk (`disk.rs`); a journal, which costs the baseline nothing here.

use std::collections::VecDeque;

use super::disk::Request;
use crate::contention::parameters::Server;

/// Maximum number of runs in flight to the disk at the same time. (At the model disks of
/// `bench/orcbench/contention.py`, 44 to 53 requests waited on average with 64 files or more.)
pub(super) const RUNS_AT_ONCE: usize = 64;
/// Number of bytes that a throttled writer may write before it is throttled again: 32 pages.
pub(super) const LEAST_BYTES: u64 = 128 << 10;
/// Number of bytes of a long request that become dirty at a time: a large folio.
pub(super) const STEP_BYTES: u64 = 512 << 10;

/// The dirty run of one file, and the requests that extend it.
#[derive(Debug, Default)]
struct File {
    at_bytes: u64,
    len_bytes: u64,
    /// Requests that wait for room.
    waiting: VecDeque<Request>,
    /// How much of the first of them is already in the cache.
    entered_bytes: u64,
    /// How much may follow before the room is checked again.
    free_bytes: u64,
}

/// A page cache.
#[derive(Debug)]
pub(super) struct Cache {
    limit_bytes: u64,
    room_bytes: u64,
    background_bytes: u64,
    write_back_bytes: u64,
    /// Including those in flight to the disk.
    dirty_bytes: u64,
    on_way_bytes: u64,
    /// Files of the streams from `first` on; each stream writes one file.
    files: Vec<File>,
    first: u32,
    /// Streams whose files have a run, in the order of their turns.
    round: VecDeque<u32>,
    /// Number of files left in this round.
    round_left: usize,
    /// Streams that wait for room, in the order of their turns.
    blocked: VecDeque<u32>,
}

impl Cache {
    /// An empty cache for `streams` streams, numbered from `first` on.
    pub(super) fn new(server: &Server, first: u32, streams: usize) -> Self {
        let background_bytes = server.cache_background_bytes.min(server.cache_bytes);
        Self {
            limit_bytes: server.cache_bytes,
            room_bytes: background_bytes + (server.cache_bytes - background_bytes).div_ceil(2),
            background_bytes,
            write_back_bytes: server.write_back_bytes,
            dirty_bytes: 0,
            on_way_bytes: 0,
            files: (0..streams).map(|_| File::default()).collect(),
            first,
            round: VecDeque::new(),
            round_left: 0,
            blocked: VecDeque::new(),
        }
    }

    /// A request arrives; it is added to `taken` once all of it is in the cache, here or in
    /// [`Cache::written`].
    pub(super) fn take(&mut self, request: Request, taken: &mut Vec<Request>) {
        let file = &mut self.files[(request.stream - self.first) as usize];
        if file.waiting.is_empty()
            && request.len_bytes <= file.free_bytes
            && self.dirty_bytes + request.len_bytes <= self.limit_bytes
        {
            file.free_bytes -= request.len_bytes;
            self.enter(request.stream, request.at_bytes, request.len_bytes);
            taken.push(request);
            return;
        }
        file.waiting.push_back(request);
        if file.waiting.len() == 1 {
            self.blocked.push_back(request.stream);
        }
        self.take_in(taken);
    }

    /// Lets waiting writers continue, a little each in turn, as long as there is room.
    fn take_in(&mut self, taken: &mut Vec<Request>) {
        while self.dirty_bytes < self.room_bytes
            && let Some(stream) = self.blocked.pop_front()
        {
            let alone = self.blocked.is_empty();
            let file = &mut self.files[(stream - self.first) as usize];
            let Some(&request) = file.waiting.front() else {
                continue;
            };
            let left_bytes = request.len_bytes - file.entered_bytes;
            let step_bytes = if alone { left_bytes } else { STEP_BYTES };
            let now_bytes = (self.room_bytes - self.dirty_bytes)
                .min(step_bytes)
                .min(left_bytes);
            let at_bytes = request.at_bytes + file.entered_bytes;
            file.entered_bytes += now_bytes;
            file.free_bytes = LEAST_BYTES.saturating_sub(now_bytes);
            if file.entered_bytes == request.len_bytes {
                file.entered_bytes = 0;
                file.waiting.pop_front();
                taken.push(request);
            }
            if !file.waiting.is_empty() {
                self.blocked.push_back(stream);
            }
            self.enter(stream, at_bytes, now_bytes);
        }
    }

    fn enter(&mut self, stream: u32, at_bytes: u64, len_bytes: u64) {
        let file = &mut self.files[(stream - self.first) as usize];
        if file.len_bytes == 0 {
            file.at_bytes = at_bytes;
            self.round.push_back(stream);
        }
        file.len_bytes += len_bytes;
        self.dirty_bytes += len_bytes;
    }

    /// The run that the disk is to write next. `complete`: everything has arrived.
    pub(super) fn next(&mut self, complete: bool) -> Option<Request> {
        let idle_bytes = self.dirty_bytes - self.on_way_bytes;
        let needed = !self.blocked.is_empty() && self.on_way_bytes == 0;
        if self.round_left == 0 {
            if !complete && !needed && idle_bytes <= self.background_bytes {
                return None;
            }
            self.round_left = self.round.len();
        }
        let stream = self.round.pop_front()?;
        self.round_left -= 1;
        let file = &mut self.files[(stream - self.first) as usize];
        let request = Request {
            at_bytes: file.at_bytes,
            len_bytes: file.len_bytes.min(self.write_back_bytes),
            stream,
        };
        file.at_bytes += request.len_bytes;
        file.len_bytes -= request.len_bytes;
        self.on_way_bytes += request.len_bytes;
        if file.len_bytes > 0 {
            match complete && self.blocked.is_empty() {
                true => {
                    self.round.push_front(stream);
                    self.round_left += 1;
                }
                false => self.round.push_back(stream),
            }
        }
        Some(request)
    }

    /// A run is on the disk: waiting writers continue, and requests that are now in the cache are
    /// added to `taken`.
    pub(super) fn written(&mut self, run: Request, taken: &mut Vec<Request>) {
        self.dirty_bytes -= run.len_bytes;
        self.on_way_bytes -= run.len_bytes;
        self.take_in(taken);
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

    fn cache(streams: usize) -> Cache {
        let server = Server {
            cache_bytes: 10 * STEP_BYTES,
            cache_background_bytes: 6 * STEP_BYTES,
            write_back_bytes: 3 * STEP_BYTES,
            ..Server::default()
        };
        Cache::new(&server, 7, streams)
    }

    // Breaks if: runs are not merged, the round does not continue, or writeback begins too early.
    #[test]
    fn runs_are_merged_and_files_have_turns() {
        let (mut cache, mut taken) = (cache(2), Vec::new());
        for at in 0..3 {
            cache.take(request(7, at * STEP_BYTES, STEP_BYTES), &mut taken);
            cache.take(request(8, (90 + at) * STEP_BYTES, STEP_BYTES), &mut taken);
        }
        assert_eq!((taken.len(), cache.next(false)), (6, None));
        cache.take(request(7, 3 * STEP_BYTES, STEP_BYTES), &mut taken);
        assert_eq!(cache.next(false), Some(request(7, 0, 3 * STEP_BYTES)));
        // Once round all files, and no further: bytes in flight no longer count.
        let other = Some(request(8, 90 * STEP_BYTES, 3 * STEP_BYTES));
        assert_eq!((cache.next(false), cache.next(false)), (other, None));
        // Everything has arrived: each file to its end.
        let rest = Some(request(7, 3 * STEP_BYTES, STEP_BYTES));
        assert_eq!(cache.next(true), rest);
        assert_eq!(cache.next(true), None);
    }

    // Breaks if: a throttled writer is throttled again for each small request, or continues without
    // end.
    #[test]
    fn small_requests_go_on_for_a_while() {
        let (mut cache, mut taken) = (cache(2), Vec::new());
        let half = LEAST_BYTES / 2;
        cache.take(request(7, 0, 8 * STEP_BYTES - half), &mut taken);
        cache.take(request(8, 90 * STEP_BYTES, half), &mut taken);
        assert_eq!((taken.len(), cache.dirty_bytes), (2, 8 * STEP_BYTES));
        for (nth, count) in (1..).zip([3, 3]) {
            cache.take(request(8, 90 * STEP_BYTES + nth * half, half), &mut taken);
            assert_eq!(taken.len(), count);
        }
        assert!(cache.dirty_bytes > 8 * STEP_BYTES && cache.dirty_bytes <= 10 * STEP_BYTES);
    }

    // Breaks if: one waiting writer is accepted whole before the others, the limit does not hold,
    // or writing stops while they wait.
    #[test]
    fn those_who_wait_go_on_together() {
        let (mut cache, mut taken) = (cache(2), Vec::new());
        cache.take(request(7, 0, 20 * STEP_BYTES), &mut taken);
        cache.take(request(8, 90 * STEP_BYTES, 2 * STEP_BYTES), &mut taken);
        assert_eq!((taken.len(), cache.dirty_bytes), (0, 8 * STEP_BYTES));
        let run = cache.next(false).unwrap();
        assert_eq!(run, request(7, 0, 3 * STEP_BYTES));
        cache.written(run, &mut taken);
        // Two steps of one and one of the other.
        assert_eq!((taken.len(), cache.dirty_bytes), (0, 8 * STEP_BYTES));
        let mut written_bytes = run.len_bytes;
        while let Some(run) = cache.next(false) {
            cache.written(run, &mut taken);
            written_bytes += run.len_bytes;
        }
        assert_eq!(
            taken,
            [
                request(8, 90 * STEP_BYTES, 2 * STEP_BYTES),
                request(7, 0, 20 * STEP_BYTES)
            ]
        );
        // Bytes up to the background limit stay.
        assert!(cache.dirty_bytes <= 6 * STEP_BYTES);
        assert_eq!(written_bytes + cache.dirty_bytes, 22 * STEP_BYTES);
    }
}
