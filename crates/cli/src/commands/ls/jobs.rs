//! Lists all jobs below the directories, each with a summary in one line.
//!
//! Not here: the checkpoints of one job (`ls.rs`).

use orcheck_engine::encoding::Trust;
use orcheck_format::{JobName, Step};
use orcheck_io::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{NOT_AUTHENTICATED, Row, rows};
use crate::exit;
use crate::job::Job;
use crate::job::Search;
use crate::output::{
    Failure, Outcome, Tone, age, cell, draw_together, minute, plain, right, size, table, table_text,
};

/// The summary of a job.
pub struct Summary {
    job: String,
    /// Step and level of the newest checkpoint that can be restarted from, as far as names and
    /// lengths tell.
    pub newest: Option<(Step, String)>,
    created_unix_ms: Option<u64>,
    checkpoints: usize,
    /// Of all files of Orcheck's.
    size_bytes: u64,
    unreachable: bool,
    /// Whether a key verifies the newest one.
    authenticated: bool,
    /// A note on the newest one, or why there is none.
    why: Option<String>,
}

impl Summary {
    /// From its checkpoints.
    pub fn of(job: &Job, rows: &[Row]) -> Self {
        let newest = rows.iter().find(|row| row.state == "restartable");
        let why = |row: &Row| Some(format!("step {}: {}", row.step, row.why.as_ref()?));
        let is_unproven = |row: &&Row| row.why.as_deref() == Some(NOT_AUTHENTICATED);
        let files = job.catalog.files().iter();
        let ours = files.filter(|(_, _, name)| name.is_some());
        Summary {
            job: job.name.as_str().to_owned(),
            newest: newest.map(|row| (row.step, row.level.clone().unwrap_or_default())),
            created_unix_ms: newest.and_then(|row| row.created_unix_ms),
            checkpoints: rows.len(),
            size_bytes: ours.map(|(_, entry, _)| entry.len_bytes).sum(),
            unreachable: rows.iter().any(|row| row.state == "unreachable"),
            authenticated: newest.is_some_and(|row| row.authenticated),
            why: match newest {
                Some(newest) => Some(newest).filter(is_unproven).and_then(why),
                None => rows.first().and_then(why),
            },
        }
    }

    /// Whether nothing is known about its newest checkpoint, because it may be where nobody can
    /// look.
    pub fn is_unreachable(&self) -> bool {
        self.newest.is_none() && self.unreachable
    }

    fn age_ms(&self, now: u64) -> Option<u64> {
        Some(now.saturating_sub(self.created_unix_ms?))
    }

    /// For programs.
    pub fn document(&self, now: u64) -> Value {
        json!({
            "job": self.job,
            "newest_restartable_step": self.newest.as_ref().map(|(step, _)| step.0),
            "level": self.newest.as_ref().map(|(_, level)| level),
            "created_unix_ms": self.created_unix_ms,
            "age_ms": self.age_ms(now),
            "checkpoints": self.checkpoints,
            "size_bytes": self.size_bytes,
            "authenticated": self.authenticated,
            "why": self.why,
        })
    }
}

/// The summaries of the jobs that can be looked at, the warnings, and the exit code if one cannot,
/// or not wholly.
fn summaries(
    search: &mut Search,
    names: &[JobName],
    trust: &Trust,
) -> (Vec<Summary>, Vec<String>, u8) {
    let mut summaries = Vec::new();
    let hidden = search.hidden().iter();
    let mut warnings: Vec<String> = hidden.map(|hidden| hidden.note()).collect();
    let mut code = exit::OK;
    for name in names {
        match search.take(name, trust) {
            Ok(job) => {
                if let Some((_, error)) = job.catalog.undecided(name) {
                    code = code.max(Failure::from(error.clone()).of_one());
                    warnings.push(format!("job {}: {error}", name.as_str()));
                }
                summaries.push(Summary::of(&job, &rows(&job)));
            }
            Err(failure) => {
                code = code.max(failure.of_one());
                warnings.push(format!("job {}: {}", name.as_str(), failure.error));
            }
        }
    }
    (summaries, warnings, code)
}

/// Lists them.
pub fn list(search: &mut Search, names: &[JobName], trust: &Trust) -> Result<Outcome, Failure> {
    let (summaries, warnings, mut code) = summaries(search, names, trust);
    if summaries.iter().any(Summary::is_unreachable) {
        code = exit::UNREACHABLE;
    }
    let now = SystemClock::new().unix_ms();
    let mut shown = table(&[
        "job",
        "newest safe",
        "level",
        "taken",
        "age",
        "steps",
        "size",
    ]);
    for summary in &summaries {
        let (step, level) = match &summary.newest {
            Some((step, level)) => (right(step), plain(level)),
            None if summary.is_unreachable() => (cell("unreachable", Tone::Note), plain("-")),
            None => (cell("none", Tone::Bad), plain("-")),
        };
        shown.add_row([
            plain(&summary.job),
            step,
            level,
            plain(
                summary
                    .created_unix_ms
                    .map_or_else(|| "-".to_owned(), minute),
            ),
            right(summary.age_ms(now).map_or_else(|| "-".to_owned(), age)),
            right(summary.checkpoints),
            right(size(summary.size_bytes)),
        ]);
    }
    draw_together(&mut shown);
    let document = json!({
        "jobs": summaries.iter().map(|summary| summary.document(now)).collect::<Vec<Value>>(),
        "notes": warnings,
    });
    let mut text = table_text(&shown);
    let reasons = summaries.iter().filter_map(|summary| {
        let why = summary.why.as_ref()?;
        Some(format!("job {}: {why}\n", summary.job))
    });
    let reasons: String = reasons.collect();
    if !reasons.is_empty() {
        text += &format!("\n{reasons}");
    }
    Ok(Outcome {
        code,
        text,
        document,
        warnings,
    })
}
