//! Tells what a mount found, what became of files and sets, and what it left.
//!
//! Not here: the mount itself (`mount.rs`).

use orcheck_format::count;
use orcheck_mount::{Back, Ended, Found, SetCounts};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// Names that are shown of each kind.
const SHOWN: usize = 5;

/// Tells whoever runs the mount.
pub fn say(line: &str) {
    // Nobody may be reading it any more.
    let _ = writeln!(std::io::stderr(), "orcheck: mount: {line}");
}

fn names(paths: &[PathBuf]) -> String {
    let shown = paths.iter().take(SHOWN);
    let shown: Vec<String> = shown.map(|path| path.display().to_string()).collect();
    match paths.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Tells what an earlier mount had left in the stage.
pub fn tell_found(found: &Found) {
    if !found.closed.is_empty() {
        say(&format!(
            "flushed what an earlier mount had left in the stage: {}",
            names(&found.closed)
        ));
    }
    if !found.open.is_empty() {
        say(&format!(
            "an earlier mount was killed while programs wrote; these files contain everything written up to that point: {}",
            names(&found.open)
        ));
    }
    for (path, why) in &found.left {
        say(&format!(
            "{} stays in the stage: {why}; look at it, then remove it",
            path.display()
        ));
    }
}

/// The same as JSON.
pub fn found_document(found: &Found) -> serde_json::Value {
    let left: Vec<_> = found
        .left
        .iter()
        .map(|(path, why)| json!({"path": path, "why": why}))
        .collect();
    json!({ "closed": found.closed, "open": found.open, "left": left })
}

/// What went wrong, in the last lines.
pub fn warnings(ended: &Ended) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(stage) = &ended.left_in {
        let files = count(ended.counts.left_files, "file");
        warnings.push(format!(
            "{files} could not be flushed and stay in {}; mount again with the same --stage when there is room",
            stage.display()
        ));
    }
    if ended.counts.lost_files > 0 {
        let files = count(ended.counts.lost_files, "file");
        warnings.push(format!("{files} may not be durable, as reported above"));
    }
    if let Some(sets) = &ended.sets {
        let kinds = [(sets.lost, "lost"), (sets.incomplete, "incomplete")];
        for (number, what) in kinds.into_iter().filter(|(number, _)| *number > 0) {
            let sets = count(number, "set");
            let verb = if number == 1 { "was" } else { "were" };
            warnings.push(format!("{sets} {verb} {what}, as reported above"));
        }
        if sets.gave_up {
            warnings.push("no further sets were kept, as reported above".to_owned());
        }
    }
    warnings
}

/// Tells how many sets became checkpoints.
pub fn tell_kept(sets: Option<&SetCounts>) {
    if let Some(sets) = sets {
        say(&format!("{} became safe", count(sets.safe, "set")));
    }
}

/// Tells what the beginning of the mount has changed in the backing directory.
pub fn tell_back(back: &Back) {
    if let Some(step) = back.step.filter(|_| !back.restored.is_empty()) {
        say(&format!(
            "restored files of step {step}: {}",
            names(&back.restored)
        ));
    }
    for (path, why) in &back.aside {
        say(&format!("moved {why}, to {}", path.display()));
    }
}

/// What became of sets, and what was put back.
pub fn sets_document(sets: Option<&SetCounts>, back: Option<&Back>) -> serde_json::Value {
    let (Some(sets), Some(back)) = (sets, back) else {
        return serde_json::Value::Null;
    };
    let aside: Vec<_> = back.aside.iter().map(|(path, _)| path).collect();
    json!({
        "safe": sets.safe,
        "lost": sets.lost,
        "incomplete": sets.incomplete,
        "gave_up": sets.gave_up,
        "newest_at_start": back.step,
        "restored": back.restored,
        "moved_aside": aside,
    })
}
