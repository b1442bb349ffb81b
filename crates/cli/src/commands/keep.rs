//! Implements `orcheck keep`, which marks checkpoints that are to stay.
//!
//! Not here: the effect of the mark (engine, `prune.rs` and `choose.rs`).

use orcheck_engine::directory::choose::{checkpoint_of, decide, decision, take_back};
use orcheck_format::{Decision, Error};
use orcheck_io::clock::SystemClock;
use serde_json::{Value, json};

use crate::args::{KeepArgs, Target};
use crate::exit;
use crate::job::not_read;
use crate::job::{Job, trust};
use crate::output::{Failure, Outcome};

/// Marks them, or takes the marks back.
pub fn run(args: &KeepArgs) -> Result<Outcome, Failure> {
    let mut place = args.place.clone();
    let mut steps = Vec::new();
    for target in &args.targets {
        match target {
            Target::Step(step) => steps.push(*step),
            Target::Dir(dir) => place.anywhere.push(dir.clone()),
        }
    }
    if steps.is_empty() {
        return Err(Error::invalid("no step given")
            .next("name the steps to keep; `orcheck ls` lists them")
            .into());
    }
    let job = Job::open_trusting(&place, &*trust(&args.unlock)?)?;
    let clock = SystemClock::new();
    let mut choices = Vec::new();
    for &step in &steps {
        let record = checkpoint_of(&job.catalog, step).map_err(not_read)?;
        let of = (step, record.epoch);
        choices.push(decision(&job.name, of, Decision::Kept, &args.why, &clock));
    }
    let (mut text, mut changed) = (String::new(), Vec::new());
    for choice in &choices {
        let (step, dirs) = (choice.step, job.catalog.places());
        let was = job.catalog.is_kept(step, choice.epoch);
        let said = match (args.undo, was) {
            (true, _) => {
                take_back(dirs, &choice.file_name())?;
                match was {
                    true => "is not kept any more",
                    false => "was not marked",
                }
            }
            (false, true) => "is marked already",
            (false, false) => "stays until the mark is taken back with `orcheck keep --undo`",
        };
        if !args.undo {
            // Even if some directories already have the mark.
            decide(dirs, choice)?;
        }
        text += &format!("job {}: step {step} {said}\n", job.name.as_str());
        changed.push(json!({
            "step": step.0,
            "epoch": choice.epoch.to_string(),
            "kept": !args.undo,
            "changed": was == args.undo,
        }));
    }
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({
            "job": job.name.as_str(),
            "checkpoints": Value::Array(changed),
            "notes": job.notes(),
        }),
        warnings: job.notes(),
    })
}
