//! `orcheck status`: the agents of this user on this machine.
//!
//! Invariants: an agent that does not answer in time is shown as silent, never left out.
//!
//! Not here: agents of other nodes; ask there.

use std::collections::BTreeMap;
use std::time::Duration;

use orcheck_engine::agent::{Told, list, status};
use orcheck_io::Address;
use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::exit;
use crate::output::{Failure, Outcome, plain, right, size, span, table, table_text};

/// Longest wait for an agent.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Asks all of them.
pub fn run(args: &StatusArgs) -> Result<Outcome, Failure> {
    let mut agents = Vec::new();
    let mut warnings = Vec::new();
    for at in list()? {
        match status(&at, ANSWER_LIMIT) {
            Ok(told) => agents.extend(of_job(&at, told, args.job.as_deref())),
            // Connections to agents are in the kernel's list too, until they are closed.
            Err(error) => warnings.push(format!("{at} is silent: {}", error.message())),
        }
    }
    let mut shown = table(&[
        "job",
        "node",
        "epoch",
        "ranks",
        "pool",
        "sealed",
        "at the node",
        "global",
        "interval",
        "replicas",
    ]);
    for agent in &agents {
        let field = |of: &Value, name: &str| match &of[name] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let sessions = agent["sessions"].as_array().cloned().unwrap_or_default();
        for session in sessions
            .iter()
            .chain(sessions.is_empty().then_some(&Value::Null))
        {
            let pool = field(session, "pool_bytes")
                .parse()
                .map_or("-".to_owned(), size);
            let ranks = match session {
                Value::Null => "no session".to_owned(),
                session => format!(
                    "{} of {} live",
                    field(session, "ranks_alive"),
                    field(session, "ranks")
                ),
            };
            shown.add_row(vec![
                plain(field(agent, "job")),
                plain(field(agent, "node")),
                right(field(session, "epoch")),
                plain(ranks),
                right(pool),
                right(field(session, "committed_process")),
                right(field(session, "committed_node")),
                right(field(session, "committed_global")),
                right(interval(session)),
                right(replicas(session)),
            ]);
        }
    }
    let text = if agents.is_empty() {
        "no agents of this user are on this machine\n".to_owned()
    } else {
        table_text(&shown)
    };
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({ "agents": agents }),
        warnings,
    })
}

/// The interval that follows from what was measured, and from what: `41.2 s (0.4 s each)`.
fn interval(session: &Value) -> String {
    let seconds = |name: &str| session[name].as_f64().map(|us| span(us / 1e6));
    let kept = seconds("interval_us").zip(seconds("checkpoint_us"));
    kept.map_or("-".to_owned(), |(kept, cost)| {
        format!("{kept} ({cost} each)")
    })
}

/// What a node holds for others, and how much it may: `3, 12.0 MiB of 2.0 GiB`.
fn replicas(session: &Value) -> String {
    let number = |name: &str| session[name].as_u64();
    let Some((held, bytes)) = number("replicas").zip(number("replica_bytes")) else {
        return "-".to_owned();
    };
    let budget = number("replica_budget_bytes");
    let budget = budget.map_or(String::new(), |budget| format!(" of {}", size(budget)));
    format!("{held}, {}{budget}", size(bytes))
}

/// What an agent said, if it is of the job that is asked for.
fn of_job(at: &Address, told: Told, wanted: Option<&str>) -> Option<Value> {
    let mut told = told.into_iter();
    let own = told.next()?;
    if wanted.is_some_and(|wanted| own.get("job").is_none_or(|job| job != wanted)) {
        return None;
    }
    let sessions: Vec<Value> = told.map(typed).collect();
    let mut agent = json!(own);
    agent["address"] = json!(at.to_string());
    agent["sessions"] = json!(sessions);
    Some(agent)
}

/// What an agent said of a session, as a document.
pub fn typed(session: BTreeMap<String, String>) -> Value {
    let typed = |(name, value): (String, String)| {
        let value = match (value.as_str(), value.parse::<u64>()) {
            ("none", _) => Value::Null,
            (_, Ok(number)) => json!(number),
            _ => json!(value),
        };
        (name, value)
    };
    Value::Object(session.into_iter().map(typed).collect())
}
