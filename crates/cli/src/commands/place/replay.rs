//! Replays tools for tests: command lines and their output, in the expected order.
//!
//! Not here: anything that runs.

use std::cell::RefCell;
use std::collections::VecDeque;

use orcheck_format::{Error, Result};

use super::tools::{Said, Tools};

/// The recorded calls that are left.
pub struct Replay {
    left: RefCell<VecDeque<(String, Said)>>,
}

impl Replay {
    /// (command line, exit status, output): output of a failure is on standard error.
    pub fn new(calls: &[(&str, i32, &str)]) -> Replay {
        let said = |&(line, code, text): &(&str, i32, &str)| {
            let (out, err) = if code == 0 { (text, "") } else { ("", text) };
            (
                line.to_owned(),
                Said {
                    code,
                    out: out.to_owned(),
                    err: err.to_owned(),
                },
            )
        };
        Replay {
            left: RefCell::new(calls.iter().map(said).collect()),
        }
    }

    /// Whether every recorded call has been made.
    pub fn all_run(&self) -> bool {
        self.left.borrow().is_empty()
    }
}

impl Tools for Replay {
    fn run(&self, line: &[&str]) -> Result<Said> {
        let asked = line.join(" ");
        match self.left.borrow_mut().pop_front() {
            Some((recorded, said)) if recorded == asked => Ok(said),
            Some((recorded, _)) => Err(Error::internal(format!(
                "recorded: `{recorded}`, asked: `{asked}`"
            ))),
            None => Err(Error::internal(format!(
                "nothing recorded, asked: `{asked}`"
            ))),
        }
    }
}
