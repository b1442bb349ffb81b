//! Tests what a scavenge takes when the directory that it copies to fails.

use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::encoding::Trust;
use orcheck_engine::upkeep::copying::Destination;
use orcheck_engine::upkeep::scavenge::{Outcome, Scavenge, Source};
use orcheck_fixtures::reading::{job, open_places, write};
use orcheck_format::{Result, Step};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::FaultPlan;

use crate::{STEP, Site};

fn scavenge(site: &Site, destinations: Vec<Destination>) -> Result<Outcome> {
    let order = Scavenge {
        job: &job(),
        trust: &Trust::nobody(),
        destinations,
        patience: Duration::ZERO,
        answer: (Duration::from_secs(1), Duration::from_secs(1)),
        strict: false,
        failpoints: Failpoints::none(),
    };
    let named = open_places(&site.sources()).into_iter().zip(["n0", "n1"]);
    let sources = named.map(|(dir, node)| Source {
        dir: Arc::clone(&dir),
        node: Some(node.to_owned()),
    });
    let clock = SystemClock::new();
    let held = order.find(sources.collect(), &clock)?;
    order.take(&held, false, &clock, &mut |_| Ok(()))
}

// Breaks if: an error of the destination counts as damage of the newest step; an older one would be
// taken, and the newest called damaged.
#[test]
fn errors_of_the_destination_take_no_older_step() {
    let site = || {
        let site = Site::of(77);
        let mut older = site.spec.clone();
        older.step = STEP - 5;
        write(&site.sources(), &older);
        site
    };
    let (recorded, failpoints) = FaultPlan::record().failpoints();
    let first = site();
    let done = scavenge(&first, first.global(&["a", "b"], &failpoints)).unwrap();
    assert_eq!(done.taken.unwrap().record.step, Step(STEP));
    let (mut failed, all) = (0, recorded.seen());
    // The first two open the roots. A second error in a row defeats whoever tries again.
    for step in &all[2..] {
        let site = site();
        let (_, failpoints) = FaultPlan::new()
            .at_step(step.number, Verdict::Fail(5))
            .at_step(step.number + 1, Verdict::Fail(5))
            .failpoints();
        match scavenge(&site, site.global(&["a", "b"], &failpoints)) {
            Err(_) => failed += 1,
            Ok(done) => {
                let taken = done
                    .taken
                    .unwrap_or_else(|| panic!("{step:?}: {:?}", done.left));
                assert_eq!(taken.record.step, Step(STEP), "{step:?}: {:?}", done.left);
            }
        }
    }
    println!(
        "{failed} of {} pairs of errors were reported",
        all.len() - 2
    );
    assert!(failed > 30, "{failed}");
}
