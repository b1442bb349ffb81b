//! Starts to make lost copies again after a restart.
//!
//! Invariants: those of `open/peers.rs`.

use crate::open::Mender;
use crate::session::Session;
use orcheck_engine::replicas::mend;
use orcheck_format::disk::CommitRecord;
use orcheck_format::{Error, Result, Step};
use std::sync::Arc;

impl Session {
    /// On a node's lowest rank, starts to make copies again in the background that were lost with
    /// their nodes. Local.
    ///
    /// # Errors
    /// If nothing could be started; the restart is good without it.
    pub(crate) fn start_mending(&mut self, record: &CommitRecord) -> Result<()> {
        let (Some(peers), Some(dir), Some(threads)) = (
            &self.link.peers,
            &self.link.places.node,
            &mut self.link.threads,
        ) else {
            return Ok(());
        };
        if !self.link.layout.leads_node(self.rank) {
            return Ok(());
        }
        let Some(replicas) = self.link.host.replicas(self.rank, &threads.flush_stop)? else {
            return Ok(());
        };
        let (members, step) = (peers.nodes.len() as u32, record.step);
        let (copies, impossible) = mend::plan(record, &peers.holdings, members, &replicas);
        if copies.is_empty() && impossible.is_empty() {
            return Ok(());
        }
        let errors = impossible.iter().map(|(_, error)| unmade(step, error));
        self.warnings.extend(errors);
        // Breaks if: only possible copies are waited for; with `close = "copies"`, nobody would
        // miss a copy without a node.
        let mut mender = Mender::unable(step, impossible);
        if !copies.is_empty() {
            let dirs = (Arc::clone(dir), self.link.places.others.clone());
            let signs = (
                Arc::clone(&self.link.shared),
                Arc::clone(&threads.flush_stop),
            );
            mender = mender.start(copies, dirs, replicas, signs)?;
        }
        threads.mender = Some(mender);
        Ok(())
    }

    /// Notes that no copy of the step is rebuilt: a warning, and an error of a close that has to
    /// wait for copies.
    pub(crate) fn leave_unmended(&mut self, step: Step, error: Error) {
        if let Some(threads) = &mut self.link.threads {
            threads.mender = Some(Mender::none(step, error.clone()));
        }
        self.warnings.push(unmended(step, error));
    }
}

fn unmade(step: Step, error: &Error) -> String {
    format!("a file of step {step} could not be rebuilt: {error}")
}

/// The warning that no copy is rebuilt, and why.
fn unmended(step: Step, error: Error) -> String {
    let told = error.what() != error.message();
    let error = error.at(format!(
        "copies of step {step} that were lost are not rebuilt"
    ));
    if told {
        return error.message().to_owned();
    }
    let error = error.next("take a checkpoint soon; its copies are made as usual");
    error.message().to_owned()
}
