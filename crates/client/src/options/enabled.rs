//! Defines `enabled`, which decides whether a job has checkpoints at all.
//!
//! Not here: what a session without them does (`crate::membership::disabled`).

use orcheck_format::{Error, Result};
use serde::Deserialize;
use std::fmt;

/// The option as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum Enabled {
    Said(bool),
    Named(Name),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Name {
    Auto,
}

/// Why a job has no checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// The option says so.
    Disabled,
    /// It depends on whether there is a directory, and there is none.
    NoDirectory,
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "enabled = false",
            Self::NoDirectory => "enabled = 'auto', and no directory is configured",
        })
    }
}

/// Why there are no checkpoints, if there are none. `anywhere`: whether a directory is configured;
/// `resumes`: whether the run has to resume.
///
/// # Errors
/// Invalid if checkpoints, or one to resume from, are required and there is no directory for them.
pub(super) fn without(enabled: Enabled, anywhere: bool, resumes: bool) -> Result<Option<Without>> {
    match enabled {
        // Breaks if: these two are accepted; without checkpoints nothing is found, and the run
        // would start from nothing.
        Enabled::Said(false) if resumes => Err(Error::invalid(
            "enabled = false and start = 'resume' contradict each other: without checkpoints a run starts from nothing",
        )
        .next("set start = 'auto' for a run without checkpoints")),
        Enabled::Named(Name::Auto) if resumes && !anywhere => Err(Error::invalid(
            "start = 'resume', but enabled = 'auto' and no directory is configured: the run would start from nothing",
        )
        .next("set `global` or `node_dir` to the directories of the run that is to continue")),
        Enabled::Said(false) => Ok(Some(Without::Disabled)),
        _ if anywhere => Ok(None),
        Enabled::Named(Name::Auto) => Ok(Some(Without::NoDirectory)),
        Enabled::Said(true) => Err(Error::invalid("no directory is configured").next(
            "set `global` (directories of the parallel file system; ORCHECK_GLOBAL), `node_dir` (a local one; ORCHECK_NODE_DIR), or enabled = 'auto' to run without checkpoints",
        )),
    }
}
