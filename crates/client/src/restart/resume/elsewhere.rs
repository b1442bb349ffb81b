//! Learns whether a node knows a newer checkpoint than those that rank 0 found.
//!
//! How: each node looks into its own directory. Only if one of them knows a newer step, or rank 0
//! could not read everything, do all ask all others, which takes as many connections as there are
//! pairs of nodes.
//!
//! Not here: the list of rank 0, which reads the directories of all nodes (`resume.rs`).

use crate::collective::{agree, agree_min, bcast_bytes};
use crate::session::Session;
use orcheck_engine::restart::{NodeView, node_view};
use orcheck_format::{Level, Rank, Result, Step};

/// A number as a word that is greater than that of none; steps and epochs begin at 0.
fn rank_of(number: Option<u64>) -> i64 {
    number.map_or(0, |number| (number as i64).saturating_add(1))
}

impl Session {
    /// The newest step that some node knows, if it is newer than `listed`.
    fn newer_step(&mut self, known: &NodeView, listed: Option<Step>) -> Result<Option<Step>> {
        let rank_of_step = |step: Option<Step>| rank_of(step.map(u64::from));
        let mut newest = [-rank_of_step(known.newest.map(|newest| newest.step))];
        agree_min(self.collective.as_mut(), Ok(()), &mut newest)?;
        let newer = -newest[0] > rank_of_step(listed);
        Ok(newer.then(|| Step((-newest[0] - 1) as u64)))
    }

    /// Whether some node holds a checkpoint newer than `listed`, because another node of that run
    /// was replaced. A checkpoint that was merely not committed everywhere does not count.
    pub(super) fn newest_known_elsewhere(
        &mut self,
        own: &NodeView,
        listed: Option<Step>,
    ) -> Result<Option<String>> {
        if self.newer_step(own, listed)?.is_none() {
            return Ok(None);
        }
        // Only now do all nodes ask all others what they know: that a later run superseded it, or
        // that it was rejected.
        let dirs = self.link.places.to_read(Level::Node);
        let all = node_view(&self.job, &dirs, &self.link.places.trust);
        let own = &agree(self.collective.as_mut(), all)?;
        let Some(step) = self.newer_step(own, listed)? else {
            return Ok(None);
        };
        let mine = own.newest.filter(|newest| newest.step == step);
        let mut epoch = [-rank_of(mine.map(|mine| mine.epoch.counter))];
        agree_min(self.collective.as_mut(), Ok(()), &mut epoch)?;
        let counter = (-epoch[0] - 1) as u64;
        let of_rank = |is_it: bool| {
            if is_it {
                i64::from(self.rank)
            } else {
                i64::MAX
            }
        };
        let holds = mine.is_some_and(|mine| mine.epoch.counter == counter);
        let mut ranks = [of_rank(holds), of_rank(!own.claims.contains(&counter))];
        agree_min(self.collective.as_mut(), Ok(()), &mut ranks)?;
        let [holder, lacking] = ranks;
        if lacking == i64::MAX {
            return Ok(None);
        }
        let name = |rank: i64| {
            let node = self.link.layout.node_of(Rank(rank as u32));
            self.link.layout.nodes[node.index()].name.as_str()
        };
        // Only a node that holds the record knows who else wrote it.
        let known = own.nodes.iter().map(String::as_str);
        let gone: Vec<&str> = known
            .filter(|gone| self.link.layout.nodes.iter().all(|node| node.name != *gone))
            .collect();
        let together = match &gone[..] {
            [] => format!(
                "node {}, whose directory holds nothing of that run",
                name(lacking)
            ),
            [one] => format!("node {one}, which is not here"),
            all => format!("nodes {}, which are not here", all.join(", ")),
        };
        let text = format!(
            "node {} holds a checkpoint of step {step} at level node, which it wrote together with {together}",
            name(holder)
        );
        let told = bcast_bytes(self.collective.as_mut(), text.into_bytes(), holder as u32)?;
        Ok(Some(String::from_utf8_lossy(&told).into_owned()))
    }
}
