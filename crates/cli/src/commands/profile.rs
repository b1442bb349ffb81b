//! Implements `orcheck profile`, which shows how a program writes its files, and writes like it.
//!
//! | file | what |
//! | --- | --- |
//! | `writes.rs` | the calls of a program, and the file that keeps them |
//! | `classes.rs` | what they amount to: sizes, places, time |
//! | `known.rs` | profiles of published checkpoints |
//! | `replay.rs` | writing like a profile, and how long that takes |
//!
//! Invariants:
//! 1. The exit status of a watched command is passed on.
//! 2. A replay makes files in an empty directory of its own, and removes them.
//!
//! Not here: how calls are seen (`orcheck_io::machine`).

pub mod classes;
mod known;
mod replay;
pub mod writes;

use orcheck_io::machine::watch_writes;
use orcheck_io::user::write_file;
use serde_json::json;

use crate::args::ProfileArgs;
use crate::commands::profile::classes::Classes;
use crate::commands::profile::writes::Writes;
use crate::output::{Failure, Outcome};
use crate::picture::draw;

/// Watches a command, or writes like one that was watched.
pub fn run(args: &ProfileArgs, json: bool) -> Result<Outcome, Failure> {
    match &args.replay {
        Some(source) => replay::run(args, source),
        None => watch(args, json),
    }
}

/// Writes the files that were asked for; returns what the calls amount to.
fn keep(args: &ProfileArgs, writes: &Writes) -> Result<Classes, Failure> {
    if let Some(path) = &args.out {
        write_file(path, writes.text().as_bytes()).map_err(|error| error.at("--out"))?;
    }
    let classes = Classes::of(writes);
    if let Some(path) = &args.plot {
        draw(path, &classes.panels())?;
    }
    Ok(classes)
}

fn watch(args: &ProfileArgs, json: bool) -> Result<Outcome, Failure> {
    let mut writes = Writes::default();
    // Breaks if: this is tried only at the end; a run of hours would have been watched in vain.
    keep(args, &writes)?;
    let end = watch_writes(&args.command, &mut |one| writes.note(&one))?;
    let classes = keep(args, &writes)?;
    let mut warnings = Vec::new();
    if end.uring {
        let text = "a process set up io_uring: what it wrote that way is not in the profile";
        warnings.push(text.to_owned());
    }
    if let Some(text) = writes.left_out() {
        warnings.push(text);
    }
    let mut document = classes.document();
    document["status"] = json!(end.status);
    let text = classes.table();
    if json {
        return Ok(Outcome {
            code: end.status,
            text,
            document,
            warnings,
        });
    }
    // Standard output belongs to the command.
    eprint!("{text}");
    Ok(Outcome {
        code: end.status,
        text: String::new(),
        document,
        warnings,
    })
}
