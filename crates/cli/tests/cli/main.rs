//! Tests the binary from outside: exit codes, JSON documents, files.

// Tests make and damage files themselves, and a failed preparation may panic anywhere.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod advice;
mod agent;
mod burst;
mod choose;
mod copies;
mod copying;
mod drain;
mod encrypted;
mod group;
mod halt;
mod inspect;
mod left;
mod machine;
mod mount;
mod names;
mod nodes;
mod place;
mod places;
mod planning;
mod program;
mod prove;
mod restore;
mod run;
mod scavenge;
mod server;
mod shown;
mod sight;
mod told;
mod unread;

use std::process::{Command, Output};

use serde_json::Value;

/// The binary with these arguments, without anything of the surroundings that could change its
/// answer.
fn orcheck(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orcheck"));
    command
        .args(arguments)
        .env_remove("ORCHECK_GLOBAL")
        .env_remove("ORCHECK_NODE_DIR")
        .env_remove("ORCHECK_JOB")
        .env_remove("ORCHECK_ENCRYPT_KEY")
        .env_remove("ORCHECK_RUN_ATTEMPT")
        .env_remove("ORCHECK_SERVER_KEY");
    command
}

/// What came out.
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn of(output: Output) -> Answer {
        Answer {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Standard output as the one JSON document it must be.
    fn json(&self) -> Value {
        let document: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.stdout));
        assert_eq!(document["schema"], 1);
        assert_eq!(document["exit_code"], self.code);
        document
    }
}

fn answer(arguments: &[&str]) -> Answer {
    Answer::of(orcheck(arguments).output().unwrap())
}
