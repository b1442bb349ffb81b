//! Hooks into the numbered steps: hold a step until released, count who is where at once.

use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longest wait for something that must happen: a test that would hang fails instead.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to look for something that must not happen.
pub const WINDOW: Duration = Duration::from_millis(60);

/// A barrier for this many threads at which one that does not come fails the test.
pub struct Meeting {
    of: u32,
    /// All who came so far.
    came: Mutex<u32>,
    changed: Condvar,
}

impl Meeting {
    pub fn of(threads: u32) -> Self {
        Self {
            of: threads,
            came: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until all have come; whether this was the last one.
    pub fn wait(&self) -> bool {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        self.changed.notify_all();
        let all = came.next_multiple_of(self.of);
        let last = *came == all;
        let (came, timeout) = self
            .changed
            .wait_timeout_while(came, PATIENCE, |came| *came < all)
            .unwrap();
        drop(came);
        assert!(!timeout.timed_out(), "another thread did not come");
        last
    }
}

/// Holds the steps of one site, on targets that contain a text, until released.
pub struct Hold {
    site: &'static str,
    part: String,
    /// Steps of the site that pass before.
    pass: u32,
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    released: bool,
    arrived: u32,
    seen: BTreeMap<&'static str, u32>,
    /// Sites seen before the release.
    before: BTreeMap<&'static str, u32>,
}

impl Hold {
    pub fn at(site: &'static str, part: &str) -> Arc<Self> {
        Self::after(0, site, part)
    }

    /// The first `pass` steps of the site, wherever they are, are not held.
    pub fn after(pass: u32, site: &'static str, part: &str) -> Arc<Self> {
        Arc::new(Self {
            site,
            part: part.to_owned(),
            pass,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    fn state(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap()
    }

    /// Waits until a step is held.
    pub fn wait_until_held(&self) {
        let (state, timeout) = self
            .changed
            .wait_timeout_while(self.state(), PATIENCE, |state| state.arrived == 0)
            .unwrap();
        drop(state);
        assert!(!timeout.timed_out(), "no step of {} came", self.site);
    }

    /// Whether `site` is seen `count` times within the window.
    pub fn sees(&self, site: &'static str, count: u32) -> bool {
        let missing = |state: &mut Held| state.seen.get(site).copied().unwrap_or(0) < count;
        let (_state, timeout) = self
            .changed
            .wait_timeout_while(self.state(), WINDOW, missing)
            .unwrap();
        !timeout.timed_out()
    }

    /// How often `site` was seen before the release.
    pub fn seen_before_release(&self, site: &'static str) -> u32 {
        self.state().before.get(site).copied().unwrap_or(0)
    }

    /// How often `site` was seen.
    pub fn seen(&self, site: &'static str) -> u32 {
        self.state().seen.get(site).copied().unwrap_or(0)
    }

    /// Holds the next step that comes.
    pub fn hold_again(&self) {
        let mut state = self.state();
        state.released = false;
        state.arrived = 0;
    }

    pub fn release(&self) {
        self.state().released = true;
        self.changed.notify_all();
    }
}

impl FailpointHook for Hold {
    fn at(&self, step: &Failpoint) -> Verdict {
        let mut state = self.state();
        let seen = state.seen.entry(step.site).or_default();
        *seen += 1;
        let passes = *seen <= self.pass;
        if !state.released {
            *state.before.entry(step.site).or_default() += 1;
        }
        if step.site == self.site && step.target.contains(&self.part) && !passes {
            state.arrived += 1;
            self.changed.notify_all();
            // At the deadline the step continues: the test fails by what it then finds.
            let _ = self
                .changed
                .wait_timeout_while(state, PATIENCE, |state| !state.released)
                .unwrap();
        } else {
            self.changed.notify_all();
        }
        Verdict::Go
    }
}

/// Holds each step of one site until as many are allowed.
pub struct Single {
    site: &'static str,
    /// How many came, and how many may go.
    state: Mutex<(u32, u32)>,
    changed: Condvar,
}

impl Single {
    pub fn at(site: &'static str) -> Arc<Self> {
        Arc::new(Self {
            site,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// Lets the first `count` go.
    pub fn allow(&self, count: u32) {
        self.state.lock().unwrap().1 = count;
        self.changed.notify_all();
    }

    /// Waits until `count` have come.
    pub fn wait_for(&self, count: u32) {
        let missing = |state: &mut (u32, u32)| state.0 < count;
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, missing);
        assert!(!waited.unwrap().1.timed_out(), "no step {count} came");
    }
}

impl FailpointHook for Single {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site == self.site {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            let mine = state.0;
            self.changed.notify_all();
            // At the deadline the step continues: the test fails by what it then finds.
            let _ = self
                .changed
                .wait_timeout_while(state, PATIENCE, |state| state.1 < mine)
                .unwrap();
        }
        Verdict::Go
    }
}

/// Several holds at once, each released by itself.
pub struct Holds(Vec<Arc<Hold>>);

impl Holds {
    pub fn failpoints(holds: &[&Arc<Hold>]) -> Failpoints {
        let holds = holds.iter().map(|&hold| Arc::clone(hold)).collect();
        Failpoints::with(Arc::new(Self(holds)))
    }
}

impl FailpointHook for Holds {
    fn at(&self, step: &Failpoint) -> Verdict {
        for hold in &self.0 {
            hold.at(step);
        }
        Verdict::Go
    }
}

/// Counts how many streams begin in one directory at once. Every stream's beginning is held until
/// `wanted` are there, or the window is over.
pub struct Crowd {
    site: &'static str,
    wanted: u32,
    state: Mutex<BTreeMap<String, (u32, u32)>>,
    changed: Condvar,
}

impl Crowd {
    /// `wanted` streams at once are looked for.
    pub fn of(site: &'static str, wanted: u32) -> Arc<Self> {
        Arc::new(Self {
            site,
            wanted,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// The most that were at once in a directory whose path contains `part`.
    pub fn most(&self, part: &str) -> u32 {
        let state = self.state.lock().unwrap();
        state
            .iter()
            .filter(|(dir, _)| dir.contains(part))
            .map(|(_, &(_, most))| most)
            .max()
            .unwrap_or(0)
    }
}

impl FailpointHook for Crowd {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site != self.site
            || !step.target.contains(".orc") && !step.target.contains(".stripe")
        {
            return Verdict::Go;
        }
        let dir = Path::new(step.target)
            .parent()
            .unwrap()
            .display()
            .to_string();
        let mut state = self.state.lock().unwrap();
        let entry = state.entry(dir.clone()).or_default();
        entry.0 += 1;
        entry.1 = entry.1.max(entry.0);
        self.changed.notify_all();
        let alone = |state: &mut BTreeMap<String, (u32, u32)>| state[&dir].1 < self.wanted;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, WINDOW, alone)
            .unwrap();
        state.get_mut(&dir).unwrap().0 -= 1;
        Verdict::Go
    }
}

/// Counts snapshots in memory: begun, and not known to have left the pool. A snapshot has left
/// when the next one but one has its turn at the lane.
pub struct Snapshots {
    wanted: u32,
    state: Mutex<Counted>,
    changed: Condvar,
}

#[derive(Default)]
struct Counted {
    begun: u32,
    taken: u32,
    most: u32,
}

impl Snapshots {
    /// `wanted` snapshots in memory at once are looked for.
    pub fn of(wanted: u32) -> Arc<Self> {
        Arc::new(Self {
            wanted,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// The most that were in memory at once.
    pub fn most(&self) -> u32 {
        self.state.lock().unwrap().most
    }
}

impl FailpointHook for Snapshots {
    fn at(&self, step: &Failpoint) -> Verdict {
        let mut state = self.state.lock().unwrap();
        match step.site {
            "stage.begin" => {
                state.begun += 1;
                state.most = state.most.max(state.begun - state.taken.saturating_sub(1));
                self.changed.notify_all();
            }
            "flush.taken" => state.taken += 1,
            // A stream is being written: the flush continues only when nobody else comes.
            "file.allocate" => {
                let wanted = self.wanted;
                let _ = self
                    .changed
                    .wait_timeout_while(state, WINDOW, |state| state.most < wanted)
                    .unwrap();
            }
            _ => {}
        }
        Verdict::Go
    }
}

/// Notes which bytes of files are read.
#[derive(Default)]
pub struct Reads(Mutex<Vec<(String, Range<u64>)>>);

impl Reads {
    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// How many bytes were read.
    ///
    /// # Panics
    /// If one of them was read twice.
    pub fn of_each_byte_once(&self) -> u64 {
        let mut reads = std::mem::take(&mut *self.0.lock().unwrap());
        reads.sort_by(|(a, x), (b, y)| (a, x.start).cmp(&(b, y.start)));
        for pair in reads.windows(2) {
            let [(file, first), (other, second)] = pair else {
                unreachable!("a pair")
            };
            let apart = file != other || first.end <= second.start;
            assert!(apart, "read twice: {file}, bytes {first:?} and {second:?}");
        }
        reads.iter().map(|(_, bytes)| bytes.end - bytes.start).sum()
    }
}

impl FailpointHook for Reads {
    fn at(&self, _step: &Failpoint) -> Verdict {
        Verdict::Go
    }

    fn has_read(&self, path: &str, at_bytes: u64, bytes: &mut [u8]) {
        // Data, no metadata.
        if bytes.len() >= 16 << 10 {
            let read = at_bytes..at_bytes + bytes.len() as u64;
            self.0.lock().unwrap().push((path.to_owned(), read));
        }
    }
}
