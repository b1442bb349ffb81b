//! Maps the part of the pool that a rank stages into, while the program computes.
//!
//! The first touch of memory costs a process several times as much as copying the same number of
//! bytes, and all ranks of a node would pay for it in their first checkpoint. A thread of the rank
//! therefore maps the memory once the rank has declared what it protects. It never preempts the
//! program, shares a processor with it only if there is none to spare, and begins a moment late:
//! other ranks may still be in the call that let this one begin.
//!
//! Invariants:
//! 1. It ends by itself when everything is mapped, and before the first checkpoint continues; the
//!    rest is mapped there.
//! 2. It ignores errors: memory that is unavailable is requested again when it is needed, and then
//!    reports its error.
//!
//! Not here: which chunks are a rank's part (`engine::node`), mapping itself (`pool`).

use orcheck_io::machine::thread::{never_preempt, spawn};
use orcheck_pool::Pool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long it lets the other ranks return from a call.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread, and what is mapped.
pub(crate) struct Mapper {
    pool: Arc<Pool>,
    first: u32,
    /// Number of chunks mapped by threads that have ended.
    mapped: u32,
    wishes: Arc<Wishes>,
    thread: Option<JoinHandle<u32>>,
}

/// What the thread is to do.
#[derive(Default)]
struct Wishes {
    now: Mutex<Wish>,
    changed: Condvar,
}

#[derive(Default)]
struct Wish {
    chunks: u64,
    ends: bool,
    /// The thread has let the other ranks return.
    begun: bool,
}

impl Wishes {
    fn now(&self) -> MutexGuard<'_, Wish> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a moment, unless the thread is to end; then has `tell` tell how many are wanted.
    fn begin(&self, tell: impl Fn(u64)) {
        let waits = |wish: &mut Wish| !wish.ends;
        let waited = (self.changed).wait_timeout_while(self.now(), PAUSE, waits);
        let (mut wish, _) = waited.unwrap_or_else(PoisonError::into_inner);
        wish.begun = true;
        // Breaks if: it is told without the lock; a larger number that came meanwhile would be
        // overwritten.
        tell(wish.chunks);
    }

    fn end(&self) {
        self.now().ends = true;
        self.changed.notify_all();
    }
}

impl Mapper {
    /// For the chunks from `first` on; maps nothing yet.
    pub(crate) fn new(pool: Arc<Pool>, first: u32) -> Self {
        Self {
            pool,
            first,
            mapped: 0,
            wishes: Arc::default(),
            thread: None,
        }
    }

    /// Maps this many chunks in the background, and has `tell` tell the CP-thread how many.
    pub(crate) fn want(&mut self, chunks: u64, tell: impl Fn(u64) + Send + 'static) {
        let (begun, ends) = {
            let mut wish = self.wishes.now();
            wish.chunks = chunks;
            if wish.begun || wish.ends {
                tell(chunks);
            }
            (wish.begun, wish.ends)
        };
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        if self.thread.is_some() || self.within(chunks) <= self.mapped || ends {
            return;
        }
        let (pool, first, mut mapped) = (Arc::clone(&self.pool), self.first, self.mapped);
        let (wishes, most) = (Arc::clone(&self.wishes), self.within(u64::MAX));
        let thread = spawn("orcheck-map", move || {
            never_preempt();
            if !begun {
                wishes.begin(tell);
            }
            let wants_more = |mapped: u32| {
                let wish = wishes.now();
                mapped < most && u64::from(mapped) < wish.chunks && !wish.ends
            };
            while wants_more(mapped) && pool.populate(first + mapped, 1).is_ok() {
                mapped += 1;
            }
            mapped
        });
        self.thread = thread.ok();
    }

    /// Ends the thread for good, and maps the rest of `chunks` in the foreground.
    pub(crate) fn finish(&mut self, chunks: u64) {
        self.wishes.end();
        self.join();
        let left = self.within(chunks).saturating_sub(self.mapped);
        let _ = self.pool.populate(self.first + self.mapped, left);
        self.mapped += left;
    }

    /// `chunks`, limited by the end of the pool.
    fn within(&self, chunks: u64) -> u32 {
        let most = self.pool.shape().chunk_count.saturating_sub(self.first);
        chunks.min(u64::from(most)) as u32
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported; the rest is mapped again.
            self.mapped = thread.join().unwrap_or(self.mapped);
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.wishes.end();
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_pool::PoolShape;
    use orcheck_testing::page_faults;
    use std::sync::atomic::{AtomicU64, Ordering};

    const CHUNK_BYTES: u32 = 1 << 20;

    fn pool() -> Arc<Pool> {
        let shape = PoolShape {
            chunk_bytes: CHUNK_BYTES,
            chunk_count: 8,
            words: 0,
            rings: 0,
            ring_entries: 0,
        };
        Arc::new(Pool::create(shape).unwrap())
    }

    fn faults_of(work: impl FnOnce()) -> u64 {
        let before = page_faults();
        work();
        page_faults() - before
    }

    // Breaks if: nothing or the wrong chunks are mapped ahead, or a later request is forgotten.
    #[test]
    fn what_is_wanted_is_mapped_ahead() {
        let pages = u64::from(CHUNK_BYTES / 4096);
        let pool = pool();
        let mut mapper = Mapper::new(Arc::clone(&pool), 3);
        mapper.want(1, |_| ());
        mapper.join();
        mapper.want(2, |_| ());
        mapper.join();
        let bytes = vec![1; CHUNK_BYTES as usize];
        let faults = faults_of(|| {
            mapper.finish(2);
            for chunk in [pool.try_take(3), pool.try_take(3)].map(Option::unwrap) {
                assert!([3, 4].contains(&chunk.index()));
                pool.put(&chunk, 0, &bytes);
                let _ = chunk.into_index();
            }
        });
        assert_eq!(mapper.mapped, 2);
        assert!(faults < pages / 4, "{faults} faults");
    }

    // Breaks if: a checkpoint right after `protect` finds unmapped memory, more is requested than
    // there is, or the CP-thread is not told because the thread had to end before it began.
    #[test]
    fn the_rest_is_mapped_before_the_first_checkpoint_goes_on() {
        let mut mapper = Mapper::new(pool(), 3);
        let told = Arc::new(AtomicU64::new(0));
        let tell = || {
            let told = Arc::clone(&told);
            move |chunks| told.store(chunks, Ordering::Relaxed)
        };
        mapper.want(100, tell());
        mapper.finish(100);
        assert_eq!(mapper.mapped, 5);
        assert_eq!(told.load(Ordering::Relaxed), 100);
        mapper.want(7, tell());
        assert_eq!(told.load(Ordering::Relaxed), 7);
        assert!(mapper.thread.is_none(), "it ended for good");
    }
}
