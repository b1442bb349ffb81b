//! What tables and pictures say of a choice: its name, its interval, its share of checkpoints.

use orcheck_planner::advice::{Choice, Way};

/// The name of a way.
pub fn name_of(way: Way) -> String {
    match way {
        Way::Program => "program, global".to_owned(),
        Way::Global => "global".to_owned(),
        Way::Node => "node, global".to_owned(),
        Way::Peers { replicas } => format!("peers({replicas}), global"),
        Way::PeersAlone { replicas } => format!("peers({replicas})"),
    }
}

/// Computing between two checkpoints.
pub fn interval_s(choice: &Choice) -> f64 {
    let found = choice.found.as_ref();
    found.map_or(f64::INFINITY, |found| found.pattern.interval_s)
}

/// The fraction of the time that goes into checkpoints that count.
pub fn checkpoints(choice: &Choice) -> f64 {
    let last = choice
        .levels
        .0
        .last()
        .map_or(0.0, |level| level.checkpoint_s);
    choice.efficiency() * last / interval_s(choice)
}
