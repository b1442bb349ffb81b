//! Defines what a file system must support so that Orcheck can place files on its servers.
//!
//! To add one: implement [`Driver`] and name it in `who` of `place.rs`. A site need not do that: a
//! program with three subcommands is enough (`site.rs`, docs/placement.md).
//!
//! Not here: running programs (`tools.rs`).

use std::path::Path;

use orcheck_format::{Error, Result};

use super::tools::Tools;

/// One server of a file system, or one target if a server has several: the unit to which files can
/// be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its name in the file system's own tools; unique.
    pub name: String,
    /// What the driver pins with: a label, an index, a pool.
    pub handle: String,
    /// Free space.
    pub free_bytes: Option<u64>,
    /// Total space.
    pub total_bytes: Option<u64>,
    /// Why it cannot be used now; `None` if it can.
    pub down: Option<String>,
}

impl Server {
    /// A server about which nothing more is known.
    pub fn named(name: impl Into<String>) -> Server {
        let name = name.into();
        Server {
            handle: name.clone(),
            name,
            free_bytes: None,
            total_bytes: None,
            down: None,
        }
    }
}

/// A file system with servers. See the module.
pub trait Driver {
    /// Its name in `--driver`.
    fn name(&self) -> &str;

    /// All servers behind a directory, including those that cannot be used now.
    ///
    /// # Errors
    /// NotFound for a tool that is missing, Unavailable for one that fails.
    fn servers(&self, tools: &dyn Tools, dir: &Path) -> Result<Vec<Server>>;

    /// From now on, the bytes of new files in this directory, and in directories made in it, are on
    /// that server and no other. Repeating this changes nothing.
    ///
    /// # Errors
    /// As [`Driver::servers`]; also Unavailable if the user may not do that.
    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()>;

    /// The names of the servers that hold bytes of a file; `None` if the file system does not
    /// report them.
    ///
    /// # Errors
    /// As [`Driver::servers`].
    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>>;
}

/// A path as an argument of a tool.
///
/// # Errors
/// Invalid if it is not UTF-8, because the output of the tools could not be compared.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| Error::invalid(format!("{}: expected a path in UTF-8", path.display())))
}

/// The error for output that a driver does not understand.
pub fn strange(command: &str, expected: &str, found: &str) -> Error {
    let shown: String = found.chars().take(200).collect();
    Error::unavailable(format!("{command}: expected {expected}, found '{}'", shown.trim()))
        .next("if this version of the tool prints something else, a driver of your own can read it (docs/placement.md); please report it")
}
