//! The directories of one job: where level `node` and level `global` keep their files.
//!
//! `<node root>/<job>/<node name>/` and `<placed root>/<job>/`, all opened once, beneath their
//! roots, without following symbolic links.
//!
//! Invariants:
//! 1. A root is never created: a mistyped path is an error, not a new directory.
//! 2. A placed root that is gone is skipped only when another one remembers the job (it holds a
//!    claim), and the skip is reported.
//!
//! Not here: what the files mean (`catalog.rs`), which server a node uses (`plan::placement`).

use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::ids::{JobName, Level};
use orcheck_format::names::FileName;
use orcheck_io::dir::{Dir, open_dir};
use orcheck_io::steps::Steps;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory handles of one job as one node sees them.
#[derive(Clone)]
pub struct Places {
    /// Level `node`: this node's own directory.
    pub node: Option<Arc<dyn Dir>>,
    /// Level `global`: the placed directories by server index; `None` for one that is gone.
    pub servers: Vec<Option<Arc<dyn Dir>>>,
    /// Paths as configured, by server index.
    pub server_roots: Vec<PathBuf>,
    /// What was skipped and why.
    pub notes: Vec<String>,
}

impl Places {
    /// Opens (and with `create` makes, below the roots) the directories of `job`.
    ///
    /// # Errors
    /// Invalid for the same root twice; NotFound or Unavailable for a root that is missing or
    /// cannot be written, unless the job is known from another root.
    pub fn open(
        job: &JobName,
        node_name: &str,
        node_root: Option<&PathBuf>,
        server_roots: &[PathBuf],
        steps: &Steps,
        create: bool,
    ) -> Result<Self> {
        let mut seen: Vec<&PathBuf> = Vec::new();
        for root in server_roots.iter().chain(node_root) {
            if seen.contains(&root) {
                return Err(Error::invalid(format!(
                    "directory {} is configured twice",
                    root.display()
                ))
                .next("give every level and every I/O server its own directory"));
            }
            seen.push(root);
        }
        let node = match node_root {
            Some(root) => Some(
                open_beneath(root, &[job.as_str(), node_name], steps, create).map_err(|error| {
                    error.at(format!("level node, directory {}", root.display()))
                })?,
            ),
            None => None,
        };
        let mut notes = Vec::new();
        let mut servers = Vec::new();
        let mut first_error = None;
        for root in server_roots {
            match open_beneath(root, &[job.as_str()], steps, create) {
                Ok(dir) => servers.push(Some(dir)),
                Err(error) => {
                    let error = error.at(format!("level global, directory {}", root.display()));
                    notes.push(format!("skipped: {}", error.message()));
                    servers.push(None);
                    first_error.get_or_insert(error);
                }
            }
        }
        let known = servers
            .iter()
            .flatten()
            .any(|dir| holds_claim(dir.as_ref()));
        match first_error {
            Some(error) if !known => Err(error.at(format!(
                "job '{}' is new here, and a new job needs all its directories",
                job.as_str()
            ))),
            _ => Ok(Self {
                node,
                servers,
                server_roots: server_roots.to_vec(),
                notes,
            }),
        }
    }

    /// Directories that hold commit records of `level`.
    #[must_use]
    pub fn of_level(&self, level: Level) -> Vec<Arc<dyn Dir>> {
        match level {
            Level::Global => self.servers.iter().flatten().cloned().collect(),
            _ => self.node.iter().cloned().collect(),
        }
    }

    /// All directories this node can read, nearest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn Dir>> {
        self.node
            .iter()
            .chain(self.servers.iter().flatten())
            .cloned()
            .collect()
    }

    /// Configured levels, weakest first.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        if self.node.is_some() {
            levels.push(Level::Node);
        }
        if !self.server_roots.is_empty() {
            levels.push(Level::Global);
        }
        levels
    }
}

fn open_beneath(root: &Path, names: &[&str], steps: &Steps, create: bool) -> Result<Arc<dyn Dir>> {
    let mut dir = open_dir(root, steps.clone())?;
    if dir.read_only()? {
        return Err(
            Error::unavailable(format!("{} is read-only", root.display()))
                .next("mount it writable, or configure another directory"),
        );
    }
    for name in names {
        let child = dir.child(name, create)?;
        if create {
            // The new entry must survive a power cut before anything below it can.
            dir.sync()?;
        }
        dir = child;
    }
    Ok(dir)
}

fn holds_claim(dir: &dyn Dir) -> bool {
    match dir.list() {
        Ok(entries) => entries
            .iter()
            .any(|entry| matches!(FileName::parse(&entry.name), Some(FileName::Claim { .. }))),
        Err(_) => false,
    }
}

/// Whether an error says that a directory, rather than a file's content, is the problem.
#[must_use]
pub fn is_directory_loss(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace | ErrorKind::Unavailable | ErrorKind::NotFound
    )
}
