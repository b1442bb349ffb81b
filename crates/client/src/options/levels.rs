//! Defines the tables `[level.NAME]`: how often checkpoints go to each level.
//!
//! A checkpoint that goes to a level also goes to all weaker ones, as in the model with which
//! `orcheck plan interval --level` prices such patterns.
//!
//! Invariants:
//! 1. Either no level has a table, and every checkpoint goes to all of them, or each configured
//!    level has one that says how often.
//! 2. A weaker level is not rarer than a stronger one, as far as both are given in the same unit.
//!
//! Not here: when a checkpoint is due (`trigger`).

use super::fields::{NAMES, Raw, nearest};
use super::other_variables::variable_of;
use super::{Options, range};
use crate::options::kinds::IntervalKind;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Result};
use strsim::levenshtein;

/// Every option of a level, as documents and messages name it.
pub(super) const OF_LEVELS: [&str; 12] = [
    "level.node.every_s",
    "level.node.every_steps",
    "level.node.mtbf_s",
    "level.node.node_mtbf_s",
    "level.peers.every_s",
    "level.peers.every_steps",
    "level.peers.mtbf_s",
    "level.peers.node_mtbf_s",
    "level.global.every_s",
    "level.global.every_steps",
    "level.global.mtbf_s",
    "level.global.node_mtbf_s",
];

/// How often checkpoints go to a level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// The level.
    pub level: Level,
    /// Every this many seconds; 0: off.
    pub every_s: f64,
    /// Every this many steps; 0: off.
    pub every_steps: u64,
    /// Mean time between failures of the job that need this level and no stronger one, seconds; 0:
    /// not given.
    pub mtbf_s: f64,
    /// The same for one node.
    pub node_mtbf_s: f64,
}

impl Pace {
    /// Mean time between failures of a job on this many nodes that need this level, in seconds.
    #[must_use]
    pub fn mtbf_s_of(&self, nodes: usize) -> f64 {
        match self.mtbf_s > 0.0 {
            true => self.mtbf_s,
            false => self.node_mtbf_s / nodes.max(1) as f64,
        }
    }
}

impl Options {
    /// Mean time between failures of each level in a job on this many nodes, in seconds, weakest
    /// level first, if the pattern of levels depends on them.
    #[must_use]
    pub(crate) fn pattern_mtbf_s(&self, nodes: usize) -> Option<Vec<f64>> {
        let measured = self.interval == IntervalKind::Auto && !self.paces.is_empty();
        measured.then(|| {
            self.paces
                .iter()
                .map(|pace| pace.mtbf_s_of(nodes))
                .collect()
        })
    }
}

/// Enters the value of an option of a level, such as `level.node.every_s`, into the table of all
/// options.
pub(super) fn enter(table: &mut toml::Table, name: &str, value: toml::Value) {
    let mut parts: Vec<&str> = name.split('.').collect();
    let Some(last) = parts.pop() else { return };
    let mut at = table;
    for part in parts {
        let next = at.entry(part).or_insert_with(|| toml::Table::new().into());
        if !next.is_table() {
            *next = toml::Table::new().into();
        }
        let toml::Value::Table(next) = next else {
            return;
        };
        at = next;
    }
    at.insert(last.to_owned(), value);
}

/// Adds the tables of a later source: what it does not say stays.
pub(super) fn merge(into: &mut toml::Table, more: toml::Value) {
    let both = match (into.remove("level"), more) {
        (Some(toml::Value::Table(mut all)), toml::Value::Table(more)) => {
            for (name, table) in more {
                match (all.get_mut(&name), table) {
                    (Some(toml::Value::Table(before)), toml::Value::Table(table)) => {
                        before.extend(table);
                    }
                    (_, table) => drop(all.insert(name, table)),
                }
            }
            toml::Value::Table(all)
        }
        (_, more) => more,
    };
    into.insert("level".to_owned(), both);
}

/// The paces of the configured levels, weakest first; none if checkpoints go to all levels. `peers`
/// is the number of nodes that may be lost, also by parity.
///
/// # Errors
/// Invalid for a table that is not of a configured level, or whose options contradict each other or
/// those outside the tables.
pub(super) fn paces(raw: &Raw, peers: u32, global: bool) -> Result<Vec<Pace>> {
    let mut named = Vec::new();
    for (name, value) in &raw.level {
        named.push((name.as_str(), one(name, value)?));
    }
    if named.is_empty() {
        return Ok(Vec::new());
    }
    check_beside(raw)?;
    let own = raw.node_dir.is_some().then_some(match peers {
        0 => ("node", Level::Node),
        losses => ("peers", Level::Peers(losses as u8)),
    });
    let configured: Vec<(&str, Level)> = own
        .into_iter()
        .chain(global.then_some(("global", Level::Global)))
        .collect();
    if configured.is_empty() {
        return Ok(Vec::new());
    }
    if let Some((name, _)) =
        (named.iter()).find(|(name, _)| !configured.iter().any(|c| c.0 == *name))
    {
        return Err(not_configured(name, raw, peers));
    }
    let mut paces = Vec::new();
    for &(name, level) in &configured {
        let Some((_, pace)) = named.iter().find(|(named, _)| *named == name) else {
            return Err(Error::invalid(format!(
                "level {name} is configured, and [level.{name}] is not given: expected a pace for every level"
            ))
            .next(format!("add the table [level.{name}], with every_s or every_steps")));
        };
        check_pace(name, pace, raw.interval)?;
        paces.push(Pace { level, ..*pace });
    }
    check_order(&configured, &paces)?;
    Ok(paces)
}

/// One table.
fn one(name: &str, value: &toml::Value) -> Result<Pace> {
    const LEVELS: [&str; 3] = ["node", "peers", "global"];
    if !LEVELS.contains(&name) {
        let error = Error::invalid(format!(
            "[level.{name}]: expected a table of level node, peers or global"
        ));
        return Err(match name {
            "process" => error.next("leave it out: every checkpoint passes through memory"),
            _ => error.next("name one of the three"),
        });
    }
    let Some(table) = value.as_table() else {
        return Err(Error::invalid(format!(
            "level.{name} = {value}: expected a table with every_s or every_steps"
        )));
    };
    let mut pace = Pace {
        level: Level::Global,
        every_s: 0.0,
        every_steps: 0,
        mtbf_s: 0.0,
        node_mtbf_s: 0.0,
    };
    for (option, value) in table {
        let full = format!("level.{name}.{option}");
        match option.as_str() {
            "every_s" => pace.every_s = seconds(&full, value, 1e9)?,
            "mtbf_s" => pace.mtbf_s = seconds(&full, value, 1e12)?,
            "node_mtbf_s" => pace.node_mtbf_s = seconds(&full, value, 1e12)?,
            "every_steps" => {
                let steps = value
                    .as_integer()
                    .and_then(|steps| u64::try_from(steps).ok());
                pace.every_steps = steps.filter(|&steps| steps > 0).ok_or_else(|| {
                    Error::invalid(format!(
                        "{full} = {value}: expected a whole number, 1 or more"
                    ))
                })?;
            }
            _ => return Err(unknown(&full)),
        }
    }
    Ok(pace)
}

fn unknown(full: &str) -> Error {
    let near = OF_LEVELS
        .iter()
        .min_by_key(|known| levenshtein(full, known));
    let error = Error::invalid(format!("unknown option '{full}'"));
    let option = full.rsplit('.').next().unwrap_or_default();
    match near.filter(|known| levenshtein(full, known) <= 4) {
        _ if NAMES.contains(&option) => error.next(format!(
            "put {option} above the first [table]: what follows a [table] belongs to it"
        )),
        Some(near) => error.next(format!("did you mean '{near}'?")),
        None => error.next("a level has every_s, every_steps, mtbf_s and node_mtbf_s"),
    }
}

fn seconds(full: &str, value: &toml::Value, most: f64) -> Result<f64> {
    let number = match value {
        toml::Value::Integer(seconds) => Some(*seconds as f64),
        other => other.as_float(),
    };
    let least = if full.ends_with("mtbf_s") { 1.0 } else { 1e-3 };
    match number {
        Some(seconds) => range(full, seconds, least, most).map(|()| seconds),
        None => Err(Error::invalid(format!(
            "{full} = {value}: expected a number of seconds, such as 90 or 0.5"
        ))),
    }
}

/// Options that say when every checkpoint is due, at all levels.
fn check_beside(raw: &Raw) -> Result<()> {
    let both = [
        ("every_s", raw.every_s != 0.0),
        ("every_steps", raw.every_steps != 0),
        ("overhead_percent", raw.overhead_percent != 0.0),
        ("mtbf_s", raw.mtbf_s != 0.0),
        ("node_mtbf_s", raw.node_mtbf_s != 0.0),
    ];
    match both.iter().find(|(_, given)| *given) {
        // Breaks if: both are accepted; nobody could say where a checkpoint goes that only the
        // option outside the tables makes due.
        Some((name, _)) if !off(Switch::PaceAlone) => Err(Error::invalid(format!(
            "{name} and [level.…] contradict each other: {name} is about checkpoints of all levels"
        ))
        .next(format!(
            "set {name} = 0 ({}=0 overrides what a program passes to orc_open) and what is due in each table [level.NAME], or leave the tables out",
            variable_of(name)
        ))),
        _ => Ok(()),
    }
}

fn not_configured(name: &str, raw: &Raw, peers: u32) -> Error {
    let error = Error::invalid(format!(
        "[level.{name}], but level {name} is not configured"
    ));
    match name {
        "node" if raw.node_dir.is_some() => error.next(format!(
            "write [level.peers]: with peers = {peers}, `node_dir` is of that level"
        )),
        "peers" if raw.node_dir.is_some() => {
            error.next("set peers to the number of nodes that may be lost, or write [level.node]")
        }
        "global" => error.next("set `global`, or leave the table out"),
        _ => error.next("set `node_dir`, or leave the table out"),
    }
}

fn check_pace(name: &str, pace: &Pace, interval: IntervalKind) -> Result<()> {
    let paced = pace.every_s > 0.0 || pace.every_steps > 0;
    let failures = (pace.mtbf_s > 0.0, pace.node_mtbf_s > 0.0);
    let table = format!("[level.{name}]");
    match (interval, failures) {
        (_, (true, true)) => Err(Error::invalid(format!(
            "{table}: mtbf_s and node_mtbf_s: expected one of the two"
        ))
        .next("keep mtbf_s, of the whole job, or node_mtbf_s, of each of its nodes")),
        (IntervalKind::Auto, _) if paced => Err(Error::invalid(format!(
            "{table}: every_s or every_steps contradicts interval = \"auto\", which finds the pace"
        ))
        .next("leave one of the two out")),
        (IntervalKind::Auto, (false, false)) => Err(Error::invalid(format!(
            "interval = \"auto\", and {table} has no mean time between failures"
        ))
        .next("set mtbf_s there: the mean time in seconds between failures that need this level and no stronger one")),
        (IntervalKind::Auto, _) => Ok(()),
        (IntervalKind::Off, (false, false)) if paced => Ok(()),
        (IntervalKind::Off, (false, false)) => Err(Error::invalid(format!("{table} is empty"))
            .next("set every_s or every_steps there")),
        (IntervalKind::Off, _) => Err(Error::invalid(format!(
            "{table}: a mean time between failures without interval = \"auto\""
        ))
        .next("set interval = \"auto\", or every_s in its place")),
    }
}

/// A checkpoint that goes to a level also goes to the weaker ones.
fn check_order(configured: &[(&str, Level)], paces: &[Pace]) -> Result<()> {
    for (names, pair) in configured.windows(2).zip(paces.windows(2)) {
        let [weak, strong] = pair else { continue };
        let rarer = |weak: f64, strong: f64| weak > 0.0 && strong > 0.0 && weak > strong;
        let steps = (weak.every_steps as f64, strong.every_steps as f64);
        let alone = |pace: &Pace| pace.every_s == 0.0 || pace.every_steps == 0;
        let comparable = alone(weak) && alone(strong);
        let found = if rarer(weak.every_s, strong.every_s) && comparable {
            Some(("every_s", weak.every_s, strong.every_s))
        } else if rarer(steps.0, steps.1) && comparable {
            Some(("every_steps", steps.0, steps.1))
        } else {
            None
        };
        if let (Some((option, weak, strong)), [(one, _), (other, _)]) = (found, names) {
            return Err(Error::invalid(format!(
                "level.{one}.{option} = {weak} is more than level.{other}.{option} = {strong}: what goes to {other} also goes to {one}"
            ))
            .next(format!("set level.{one}.{option} to {strong} or less")));
        }
    }
    Ok(())
}

/// The nearest option, of a level or not.
pub(super) fn nearest_of_all(name: &str) -> Option<&'static str> {
    let distance = |known: &&&str| levenshtein(name, &known.replace('.', "_"));
    let near = OF_LEVELS.iter().min_by_key(distance)?;
    let is_level = name.starts_with("level") && !NAMES.contains(&name);
    match is_level && distance(&near) <= 6 {
        true => Some(near),
        false => nearest(name),
    }
}

/// The option nearest to a name, or the name of the tables of levels.
pub(super) fn nearest_name(name: &str) -> Option<&'static str> {
    match levenshtein(name, "level") <= 2 {
        true => Some("level"),
        false => nearest(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::Level;

    const TWO: &str = "node_dir = '/n'\nglobal = '/g'\n";

    #[test]
    fn each_level_has_its_pace_weakest_first() {
        let text = format!("{TWO}level.global.every_s = 600\n[level.node]\nevery_steps = 10\n");
        let paces = Options::from_text(&text).unwrap().paces;
        let found: Vec<_> = paces
            .iter()
            .map(|p| (p.level, p.every_s, p.every_steps))
            .collect();
        assert_eq!(found, [(Level::Node, 0.0, 10), (Level::Global, 600.0, 0)]);
        assert!(Options::from_text(TWO).unwrap().paces.is_empty());
        let peers = format!("peers = 1\n{TWO}level.peers.every_s = 5\nlevel.global.every_s = 50");
        let paces = Options::from_text(&peers).unwrap().paces;
        assert_eq!(paces[0].level, Level::Peers(1));
        let auto = format!(
            "interval = 'auto'\n{TWO}level.node.mtbf_s = 1e4\nlevel.global.node_mtbf_s = 1e6"
        );
        let paces = Options::from_text(&auto).unwrap().paces;
        assert_eq!(
            (paces[0].mtbf_s_of(8), paces[1].mtbf_s_of(8)),
            (1e4, 125_000.0)
        );
    }

    // Breaks if: a pattern that cannot be meant is accepted; a level would quietly get no
    // checkpoints.
    #[test]
    fn what_does_not_fit_together_is_refused_with_one_next_step() {
        for (text, part) in [
            (
                "[level.disk]\nevery_s = 5",
                "expected a table of level node, peers or global",
            ),
            ("[level.process]\nevery_s = 5", "leave it out"),
            ("level = 5", "level"),
            ("level.node = 5", "expected a table"),
            ("level.node.every_s = 5", "[level.global] is not given"),
            (
                "level.node.evry_s = 5",
                "did you mean 'level.node.every_s'?",
            ),
            (
                "level.peers.every_s = 5\nlevel.global.every_s = 9",
                "set peers",
            ),
            ("level.node.every_s = 'x'", "expected a number of seconds"),
            ("level.node.every_s = 0", "level.node.every_s = 0"),
            ("level.node.every_steps = -1", "a whole number, 1 or more"),
            (
                "level.node.every_s = 50\nlevel.global.every_s = 5",
                "set level.node.every_s to 5",
            ),
            (
                "level.node.every_steps = 9\nlevel.global.every_steps = 5",
                "also goes to node",
            ),
            (
                "every_s = 9\nlevel.node.every_s = 1\nlevel.global.every_s = 5",
                "contradict",
            ),
            (
                "every_steps = 9\nlevel.node.every_s = 1\nlevel.global.every_s = 5",
                "contradict",
            ),
            (
                "level.node.mtbf_s = 10\nlevel.global.every_s = 5",
                "without interval",
            ),
            (
                "interval = 'auto'\nlevel.node.mtbf_s = 10\nlevel.global.every_s = 5",
                "finds the pace",
            ),
            (
                "interval = 'auto'\nlevel.node.mtbf_s = 10\nlevel.global = {}",
                "no mean time",
            ),
            (
                "level.node = {}\nlevel.global.every_s = 5",
                "[level.node] is empty",
            ),
        ] {
            let error = Options::from_text(&format!("{TWO}{text}")).unwrap_err();
            assert!(error.message().contains(part), "{text}: {error}");
        }
        let alone = "global = '/g'\nlevel.node.every_s = 5\nlevel.global.every_s = 9";
        let error = Options::from_text(alone).unwrap_err();
        assert!(
            error.message().contains("level node is not configured"),
            "{error}"
        );
        let peers = format!("peers = 1\n{TWO}level.node.every_s = 5\nlevel.global.every_s = 9");
        let error = Options::from_text(&peers).unwrap_err();
        assert!(error.message().contains("write [level.peers]"), "{error}");
    }

    // Breaks if: what was pasted below a table, or a table of a wrong name, gets no way out.
    #[test]
    fn a_table_that_is_misnamed_or_takes_what_follows_is_explained() {
        for (text, next) in [
            ("[levels.node]\nevery_s = 1", "did you mean 'level'?"),
            (
                "[level.global]\nevery_s = 1\nglobal = '/g'",
                "put global above the first [table]",
            ),
        ] {
            let error = Options::from_text(text).unwrap_err();
            assert!(error.message().contains(next), "{error}");
        }
    }
}
