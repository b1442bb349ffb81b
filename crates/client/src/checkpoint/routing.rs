//! Names a file that the program writes itself, and makes its directory.
//!
//! Invariants: those of `regions/route.rs`.

use crate::regions::{Region, Route, check_routed};
use crate::session::Session;
use orcheck_engine::directory::routed::Routed;
use orcheck_format::Result;
use std::path::PathBuf;

impl Session {
    /// Returns a path at which the program writes a file that becomes region `name`. Each
    /// checkpoint reads it, and `restart` writes it back. The directories in the path exist. Local.
    ///
    /// # Errors
    /// As [`Self::route_file`].
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        self.route_file(name, 0)
    }

    /// The same with flags. [`crate::regions::OPTIONAL`]: the file may be absent. The checkpoint
    /// then has no such region, and a restart from it removes an existing file.
    ///
    /// # Errors
    /// Invalid for a name that is not a relative path of plain names, or that leads through another
    /// routed file, and for other flags; otherwise the error of a directory.
    pub fn route_file(&mut self, name: &str, flags: u32) -> Result<PathBuf> {
        check_routed(name, flags, &self.memory.regions)?;
        let node = self.link.layout.node_of(self.rank).index();
        let route = match (
            self.memory.route.take(),
            &self.link.places.node,
            &self.options.route_dir,
        ) {
            (Some(route), _, _) => route,
            (None, Some(dir), None) => Route {
                home: Routed::in_job(dir, self.link.epoch, self.rank)?,
                budget: None,
            },
            (None, _, _) => Route::of_host(
                (&self.job, self.rank, &self.link.layout.nodes[node].ranks),
                &self.options,
                &self.environment.failpoints,
                &mut self.warnings,
            )?,
        };
        let path = self.memory.route.insert(route).path(name)?;
        self.put(name, Region::file(flags))?;
        Ok(path)
    }
}
