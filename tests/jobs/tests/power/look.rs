//! What a restart would find on an image: the engine's own search and reading, with every rank in
//! turn.
//!
//! The order of events is that of `Session::find` and `restart`: rank 0 lists the candidates, every
//! rank opens its part of one, then all read; the lowest rank that fails decides. A sample of the
//! images goes through real sessions too (see `cuts`), so that this short cut cannot lie for long.

use orcheck_engine::directory::Places;
use orcheck_engine::restart::{NodeView, candidates, node_view};
use orcheck_format::{Error, ErrorKind, JobName, Level};
use orcheck_jobs::life::{Trouble, View, Workload};
use orcheck_jobs::payload::Origin;
use orcheck_jobs::trial::{Failure, Verdict};
use orcheck_testing::power::Image;
use std::path::PathBuf;

/// What a restart found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The state that came back; `None`: the job begins from nothing.
    pub origin: Option<Origin>,
    /// What was said of damaged checkpoints that were passed over, newest first.
    pub damage: Vec<String>,
    /// What else the user is told.
    pub notes: Vec<String>,
}

/// The directories of one node on an image. One that is not there is empty, as after a run has made
/// it.
pub fn places(workload: &Workload, image: &Image, node: u32, view: View) -> Places {
    let wanted = |level| view == View::All || view == View::Only(level);
    let dir = |path: String| {
        let none = || Image::default().dir("");
        image.dir(&path).or_else(none).unwrap()
    };
    let node_level = workload.node_level && wanted(workload.node_level());
    let dirs = if wanted(Level::Global) {
        workload.dirs
    } else {
        0
    };
    Places {
        job: JobName::new("job").unwrap(),
        node: node_level.then(|| dir(format!("local/job/n{node}"))),
        losses: workload.losses,
        others: Vec::new(),
        servers: (0..dirs)
            .map(|i| Some(dir(format!("ost{i}/job"))))
            .collect(),
        read_only: Vec::new(),
        away: Vec::new(),
        server_roots: (0..dirs)
            .map(|i| PathBuf::from(format!("/ost{i}")))
            .collect(),
        notes: Vec::new(),
        trust: workload.trust(),
    }
}

/// Restarts, using the levels of `view`.
pub fn restart(workload: &Workload, image: &Image, view: View) -> Result<Found, Failure> {
    let job = JobName::new("job").unwrap();
    let places: Vec<Places> = (0..workload.nodes)
        .map(|node| places(workload, image, node, view))
        .collect();
    let stuck = |error: &Error| (Verdict::HardFail, format!("{view:?}: {error}"));
    let offer = candidates(&job, &places[0]).map_err(|error| stuck(&error))?;
    let nodes: Vec<NodeView> = places
        .iter()
        .map(|places| node_view(&job, &places.to_read(Level::Node), &places.trust))
        .collect::<orcheck_format::Result<_>>()
        .map_err(|error| stuck(&error))?;
    let mut found = Found {
        notes: offer.notes,
        ..Found::default()
    };
    found
        .damage
        .extend(offer.hidden.map(|error| error.to_string()));
    for candidate in offer.candidates {
        if nodes.iter().any(|node| node.fenced.contains(&candidate)) {
            continue;
        }
        match workload.read(&places, candidate, &mut found.notes) {
            Ok(origin) => {
                found.origin = Some(origin);
                return Ok(found);
            }
            Err(Trouble::Refused(error)) if error.kind() == ErrorKind::NotFound => {}
            Err(Trouble::Refused(error)) => found.damage.push(error.to_string()),
            Err(Trouble::Wrong(text)) => {
                return Err((Verdict::SilentWrong, format!("{view:?}: {text}")));
            }
        }
    }
    if found.damage.is_empty() {
        return Ok(found);
    }
    // The job does not begin from nothing by itself: a person has to look.
    Err((
        Verdict::HardFail,
        format!(
            "{view:?}: nothing can be restored: {}",
            found.damage.join("; ")
        ),
    ))
}
