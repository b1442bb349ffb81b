//! Implements `orcheck scavenge --serve`: gives out what the directories of nodes on this machine
//! hold, where their agents have ended.
//!
//! Invariants:
//! 1. It ends at its stated time, or at a signal, and leaves nothing.
//! 2. It succeeds only if it serves every node whose directory was given.
//!
//! Not here: what is given out, and to whom (`replicas/lend.rs` of the engine).

use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::encoding::Trust;
use orcheck_engine::replicas::Lender;
use orcheck_format::Error;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn;
use serde_json::json;

use super::{SLICE, sources};
use crate::job::Job;
use crate::output::{Failure, Outcome};
use crate::{exit, stop};

/// Serves until `timeout` has passed; `says`: tells on standard output that it serves.
pub(super) fn run(
    job: &Job,
    trust: &Arc<Trust>,
    (timeout, says): (Duration, bool),
    clock: &SystemClock,
) -> Result<Outcome, Failure> {
    let (mut lenders, mut notes, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources(job) {
        let Some(node) = source.node else { continue };
        let whose = (&job.name, &*node);
        let lender = Lender::open(source.dir, whose, trust, &Failpoints::none(), &mut notes)?;
        lenders.push(lender);
        nodes.push(node);
    }
    if lenders.is_empty() {
        let error = Error::not_found(format!(
            "no directory of a node of job {} is here",
            job.name.as_str()
        ));
        return Err(error.next("give it with --node-dir").into());
    }
    let mut threads = Vec::new();
    for lender in lenders {
        let stopper = lender.stopper();
        threads.push((spawn("orcheck-lend", move || lender.run())?, stopper));
    }
    if says {
        let (job, nodes) = (job.name.as_str(), nodes.join(", "));
        println!("job {job}: gives out what is on {nodes}: ready");
    }
    let until = clock.now().saturating_add(timeout);
    while stop::requested().is_none() && clock.now() < until {
        clock.sleep(SLICE.min(until.saturating_sub(clock.now())));
    }
    let mut ended = Ok(());
    for (thread, stopper) in threads {
        stopper.stop();
        let of_one = thread.join();
        let of_one = of_one.unwrap_or_else(|_| Err(Error::internal("a keeper panicked")));
        ended = ended.and(of_one);
    }
    ended?;
    Ok(Outcome {
        code: stop::requested().unwrap_or(exit::OK),
        text: String::new(),
        document: json!({ "job": job.name.as_str(), "nodes": nodes, "notes": notes }),
        warnings: notes,
    })
}
