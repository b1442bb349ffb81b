//! Implements `orcheck plan`, which computes what a set-up will cost before it is built.
//!
//! Not here: the computations (`orcheck_planner`).

mod advice;
mod burst;
mod calibrate;
mod choices;
mod figures;
mod interval;
mod overhead;
mod pictures;
mod result;
mod simulate;
mod survival;
mod threads;

use crate::args::{Plan, PlanArgs};
use crate::output::{Failure, Outcome};

/// Runs the given computation.
pub fn run(args: &PlanArgs) -> Result<Outcome, Failure> {
    let Some(what) = &args.what else {
        return advice::run(&args.advice);
    };
    args.advice.refuse(what.name())?;
    match what {
        Plan::Burst(args) => burst::run(args),
        Plan::Survival(args) => survival::run(args),
        Plan::Interval(args) => interval::run(args),
        Plan::Simulate(args) => simulate::run(args),
        Plan::Overhead(args) => overhead::run(args),
        Plan::Calibrate(args) => calibrate::run(args),
    }
}
