//! Names a file that the program writes itself, and its directory.
//!
//! Invariants: those of `regions/route.rs`.

use crate::regions::{Region, Route, check_routed};
use crate::session::Session;
use orcheck_engine::directory::routed::Routed;
use orcheck_format::Result;
use std::path::PathBuf;

impl Session {
    /// A path at which the program writes a file that becomes region `name`: read at each
    /// checkpoint, written back by `restart`. The directories in it are there. Local.
    ///
    /// # Errors
    /// As [`Self::route_file`].
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        self.route_file(name, 0)
    }

    /// The same with flags. [`crate::regions::OPTIONAL`]: the file may be absent. A checkpoint then has none, and a restart from it removes
    /// the one that is there.
    ///
    /// # Errors
    /// Invalid for a name that is no relative path of plain names, or leads through another routed file, and for other
    /// flags; what the directory says.
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
