//! Implements `orcheck completions`, which prints a completion script for a shell.

use clap::CommandFactory;
use serde_json::json;

use crate::args::{Cli, CompletionsArgs};
use crate::exit;
use crate::output::{Failure, Outcome};

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "orcheck", &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    Ok(Outcome {
        code: exit::OK,
        document: json!({ "shell": args.shell.to_string(), "script": text }),
        text,
        warnings: Vec::new(),
    })
}
