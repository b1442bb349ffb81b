//! Implements `orcheck`, the one program that operators and scripts use.
//!
//! What it does: it lists, shows, verifies and restores checkpoints, restarts a program that
//! failed, examines a machine, and prints its own completions and manual pages.
//!
//! How: one file per command under `commands/`. A command computes an [`output::Outcome`] (text,
//! JSON, exit code) and prints nothing itself, except `run`, which talks while the program runs,
//! and progress bars.
//!
//! Invariants:
//! 1. Exit codes are those of [`exit`], the same in every version.
//! 2. With `--json`, standard output is exactly one JSON document with a `schema` number.
//! 3. Colours and progress bars appear only on a terminal.
//! 4. Only `rm` and `prune` delete anything, and nothing is overwritten unless `--force` is given.
//! 5. Files, clock and environment are accessed only through orcheck-io.
//!
//! Faults survived: a closed pipe on standard output, damaged and half-copied checkpoints, signals
//! in the middle of a restore (its unfinished file is removed).
//!
//! Not here: any decision about which bytes are right (orcheck-engine).

// These texts appear in a header and in help texts, where brackets are brackets.
#![allow(rustdoc::broken_intra_doc_links)]
// A command-line program writes to standard output and standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod exit;
mod job;
mod output;
mod picture;
mod stop;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use orcheck_format::printable;

use crate::args::Cli;
use crate::output::{Failure, Outcome};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors: clap returns 0 for them and 2 for wrong usage.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    let name = cli.command.name();
    let json = cli.json;
    let (code, text, document) = match commands::dispatch(cli) {
        Ok(Outcome {
            code,
            text,
            mut document,
            warnings,
        }) => {
            if !json {
                for warning in &warnings {
                    eprintln!("orcheck: note: {}", printable(warning.clone()));
                }
            }
            output::stamp(&mut document, name, code);
            (code, text, document)
        }
        Err(failure) => {
            eprintln!("orcheck: {}", failure.error);
            let document = output::failure_document(name, &failure);
            (failure.code, String::new(), document)
        }
    };
    let written = match (json, document.is_null()) {
        (true, false) => output::document_text(&document),
        // `run` reports on standard error: standard output belongs to the command.
        (true, true) => String::new(),
        (false, _) => text,
    };
    match print(&written) {
        Ok(()) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("orcheck: {}", failure.error);
            ExitCode::from(failure.code)
        }
    }
}

/// Writes the result in one go. A reader that has gone (`orcheck ls | head`) is not an error.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(orcheck_format::Error::unavailable(format!(
            "standard output cannot be written: {error}"
        ))
        .into()),
    }
}
