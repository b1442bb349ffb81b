//! Keeps optional regions as the program has prepared them until nothing can turn up damaged any
//! more: an older step may not have them, and then nothing would replace their bytes.
//!
//! How: a restart first reads all other regions, and verifies the optional ones without keeping
//! anything of them. Only when every rank has done so are the optional ones read into place. A copy
//! of what their memory held would cost memory that a restart may not have, and what a codec took
//! cannot be taken from it again; so their stored bytes are read twice.
//!
//! Invariants:
//! 1. As long as an older step may still be used, no optional region is touched before every rank
//!    has verified all that it reads.
//! 2. An optional region that was filled from one step is never passed off as part of another one:
//!    the program is told, and has to protect it again.
//!
//! Survives: damage to any region on any rank; files that become unreadable after they were
//! verified, and regions that were read one by one from a step that proves to be damaged (invariant
//! 2).
//!
//! Not here: routed files, which a restart from a step without them removes
//! (`regions/route.rs`).

use crate::regions::{OPTIONAL, Region, Target};
use crate::restart::elastic::{Reading, Unfit, prove_part};
use crate::session::Session;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};

/// Regions, and what this rank reads of each.
pub(super) type Readings = Vec<(String, Region, Reading)>;

/// Whether bytes of a step that is given up could stay in a region.
pub(super) fn may_keep(region: &Region, reading: &Reading) -> bool {
    region.flags & OPTIONAL != 0
        && !matches!(region.target, Target::File)
        && !matches!(reading, Reading::Nothing)
}

impl Session {
    /// Splits regions into those that are read at once, and those that are verified first.
    pub(super) fn optional_last(&self, readings: Readings) -> (Readings, Readings) {
        let no_older = self.resume.left.is_empty() && !self.resume.chosen;
        // Breaks if: they are read with the others; damage that a rank finds later would make an
        // older step, which may not have them, impossible.
        readings.into_iter().partition(|(_, region, reading)| {
            no_older || !may_keep(region, reading) || off(Switch::OptionalProven)
        })
    }

    /// Verifies what will be read of these regions. Local.
    ///
    /// # Errors
    /// As reading them.
    pub(super) fn prove_regions(&mut self, readings: &Readings) -> Result<()> {
        let Some((_, view)) = &mut self.resume.found else {
            return Err(Error::internal("no checkpoint is open"));
        };
        let mut regions = readings.iter();
        regions.try_for_each(|(name, _, reading)| prove_part(view, name, reading))
    }

    /// What is read of a region, unless that is nothing and the region holds bytes of another step.
    pub(super) fn reading_of_one_step(
        &mut self,
        name: &str,
        region: &Region,
    ) -> std::result::Result<Reading, Unfit> {
        let reading = self.reading(name, region)?;
        let (found, _) = self.found("restart")?;
        match self.resume.touched.get(name) {
            // Breaks if: it counts as unchanged; the program would continue with the bytes of two
            // steps.
            Some(from)
                if from != found
                    && matches!(reading, Reading::Nothing)
                    && !off(Switch::OptionalUnmixed) =>
            {
                Err(Error::invalid(format!(
                    "optional region '{name}' was filled from step {}, and step {} does not have it",
                    from.step, found.step
                ))
                .next("give the region its initial contents, protect it again, and call restart again")
                .into())
            }
            _ => Ok(reading),
        }
    }
}
