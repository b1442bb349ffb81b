//! Tests two copies that begin at the same moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use orcheck_format::{Detail, Level};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_testing::{FaultPlan, Seen};

use crate::{Site, check};
use orcheck_fixtures::reading::open_places;

/// Calls `act` at the step with this number.
struct Meanwhile<F> {
    at: u64,
    act: F,
}

impl<F: Fn() + Send + Sync> FailpointHook for Meanwhile<F> {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.number == self.at {
            (self.act)();
        }
        Verdict::Go
    }
}

/// Stops at the first container that it writes.
struct Pauses {
    here: Barrier,
    on: Barrier,
    done: AtomicBool,
}

impl FailpointHook for Pauses {
    fn at(&self, step: &Failpoint) -> Verdict {
        let writes = step.site == "dir.create" && step.target.contains(".orc");
        if writes && !self.done.swap(true, Ordering::SeqCst) {
            self.here.wait();
            self.on.wait();
        }
        Verdict::Go
    }
}

// Breaks if: a copy looks who is alive before it chooses its claim; of two that begin at the same
// moment each would hold one, and remove what the other writes.
#[test]
fn of_two_that_begin_at_once_one_waits() {
    let site = Site::of(77);
    let last_look = |steps: &[Seen]| {
        let claims = |step: &Seen| step.site == "dir.create" && step.target.contains(".claim-");
        let before = steps.iter().take_while(|step| !claims(step));
        let looks = before.filter(|step| step.site == "dir.list");
        looks.map(|step| step.number).max().unwrap()
    };
    // An equal one, to learn the steps.
    let (plan, failpoints) = FaultPlan::record().failpoints();
    let same = Site::of(77);
    same.copy_to(Level::Global, same.global(&["a"], &failpoints))
        .unwrap();
    let at = last_look(&plan.seen());
    let first = Arc::new(Pauses {
        here: Barrier::new(2),
        on: Barrier::new(2),
        done: AtomicBool::new(false),
    });
    std::thread::scope(|scope| {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let steps = Failpoints::with(Arc::clone(&first) as Arc<dyn FailpointHook>);
        let site = &site;
        let other = scope.spawn(move || {
            begun.recv().unwrap();
            site.copy_to(Level::Global, site.global(&["a"], &steps))
        });
        let begin = std::sync::Mutex::new(begin);
        let holds = Arc::clone(&first);
        let act = move || {
            begin.lock().unwrap().send(()).unwrap();
            // The other one holds its claim now, and writes.
            holds.here.wait();
        };
        let hook = Arc::new(Meanwhile { at, act });
        let steps = Failpoints::with(hook as Arc<dyn FailpointHook>);
        let second = site.copy_to(Level::Global, site.global(&["a"], &steps));
        first.on.wait();
        let first = other.join().unwrap();
        let error = second.map(|_| ()).unwrap_err();
        assert!(error.is(Detail::Held), "{error}");
        let (_, copied) = first.unwrap();
        let places = open_places(&[site.root("a").join("cavity")]);
        check(&places, &copied.record, &site.spec);
    });
}
