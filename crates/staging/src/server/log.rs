//! Reports to the operator of a running server in single lines, sent to wherever its owner wants
//! them.
//!
//! Invariants:
//! 1. Events that strangers can cause repeatedly appear in at most one line per [`RARELY`], which
//!    counts those that were left out.
//! 2. No line contains anything secret.
//!
//! Not here: where lines go (the command), the final counts ([`crate::server::Counts`]).

use crate::server::locked::guard;
use orcheck_io::clock::Clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Time between two lines of one kind.
const RARELY: Duration = Duration::from_secs(10);

type Say = Box<dyn Fn(&str) + Send + Sync>;

/// See the module.
pub(crate) struct Log {
    clock: Arc<dyn Clock>,
    say: OnceLock<Say>,
    /// When each kind was last reported, and how many events were left out since.
    kinds: Mutex<BTreeMap<&'static str, (Duration, u64)>>,
}

impl Log {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            say: OnceLock::new(),
            kinds: Mutex::default(),
        }
    }

    /// Sets where lines go.
    pub(crate) fn send_to(&self, say: Say) {
        let _ = self.say.set(say);
    }

    /// Reports one line.
    pub(crate) fn say(&self, line: &str) {
        if let Some(say) = self.say.get() {
            say(line);
        }
    }

    /// Reports one line about `count` events of a kind, unless another line of that kind was
    /// reported a moment ago.
    pub(crate) fn say_rarely(&self, kind: &'static str, count: u64, line: &str) {
        let now = self.clock.now();
        let mut kinds = guard(&self.kinds);
        let left_out = match kinds.get_mut(kind) {
            // Breaks if: each of them is a line; strangers would fill the disk of the log.
            Some((at, left_out)) if now.saturating_sub(*at) < RARELY => {
                *left_out += count;
                return;
            }
            Some((_, left_out)) => *left_out + count - 1,
            None => count - 1,
        };
        kinds.insert(kind, (now, 0));
        drop(kinds);
        match left_out {
            0 => self.say(line),
            more => self.say(&format!("{line} (and {more} more of this kind)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is set by hand.
    #[derive(Default)]
    struct Hand(Mutex<Duration>);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            *guard(&self.0)
        }

        fn unix_ms(&self) -> u64 {
            0
        }

        fn sleep(&self, time: Duration) {
            *guard(&self.0) += time;
        }
    }

    #[test]
    fn what_comes_again_and_again_is_told_rarely_and_counted() {
        let clock = Arc::new(Hand::default());
        let log = Log::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&lines);
        log.send_to(Box::new(move |line| guard(&into).push(line.to_owned())));
        for second in 0..25 {
            log.say_rarely("a", 2, &format!("a {second}"));
            clock.sleep(Duration::from_secs(1));
        }
        log.say_rarely("b", 1, "b");
        let told = guard(&lines).clone();
        assert_eq!(
            told,
            [
                "a 0 (and 1 more of this kind)",
                "a 10 (and 19 more of this kind)",
                "a 20 (and 19 more of this kind)",
                "b"
            ]
        );
    }
}
