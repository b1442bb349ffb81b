//! Gathers the figures of a machine and a job: from a preset, a file and flags, in increasing
//! priority, each with its origin.
//!
//! Invariants:
//! 1. Every figure that is used is shown with its origin. None is made up: an error names
//!    everything that is missing.
//!
//! Not here: the use of the figures (`advice.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_io::user::read_text;
use serde::{Deserialize, Serialize};

use crate::args::{AdviceArgs, JobFigures, MachineFigures};
use crate::output::span;

/// Largest file of figures.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

/// Machines with published figures, by name.
const PRESETS: [(&str, &str); 8] = [
    ("blue-waters", include_str!("presets/blue-waters.toml")),
    ("fire-flyer2", include_str!("presets/fire-flyer2.toml")),
    ("frontier", include_str!("presets/frontier.toml")),
    ("hermit", include_str!("presets/hermit.toml")),
    ("jean-zay", include_str!("presets/jean-zay.toml")),
    ("lima", include_str!("presets/lima.toml")),
    ("llama3", include_str!("presets/llama3.toml")),
    ("summit", include_str!("presets/summit.toml")),
];

/// Figures that have a usual value.
const DEFAULTS: [(&str, f64, &str); 4] = [
    ("memory_passes", 7.0, "the most that Shahzad et al. found"),
    ("work", 86_400.0, "a day"),
    ("relaunch", 60.0, "a minute"),
    ("shared_percent", 100.0, "all of it"),
];

/// Range of each figure.
const RANGES: [(&str, f64, f64); 22] = [
    ("machine_nodes", 1.0, 1e7),
    ("nodes", 1.0, 1e7),
    ("ranks_per_node", 1.0, 1e7),
    ("node_gb", 1e-6, 1e6),
    ("rank_gb", 1e-9, 1e6),
    ("work", 1e-6, 1e12),
    ("relaunch", 0.0, 1e12),
    ("shared_percent", 0.1, 100.0),
    ("memory_gb", 1e-3, 1e6),
    ("memory_gb_s", 1e-3, 1e6),
    ("memory_passes", 0.01, 1000.0),
    ("copy_gb_s", 1e-3, 1e6),
    ("disk_write_gb_s", 1e-6, 1e6),
    ("disk_read_gb_s", 1e-6, 1e6),
    ("network_gb_s", 1e-6, 1e6),
    ("shared_write_gb_s", 1e-3, 1e9),
    ("shared_read_gb_s", 1e-3, 1e9),
    ("node_mtbf", 1e-6, f64::INFINITY),
    ("process_mtbf", 1e-6, f64::INFINITY),
    ("together", 1.0, 1e7),
    ("together_mtbf", 1e-6, f64::INFINITY),
    ("system_mtbf", 1e-6, f64::INFINITY),
];

/// The figures without which nothing can be computed, with descriptions.
const NEEDED: [(&str, &str); 6] = [
    ("memory_gb_s", "GB/s of a node's memory"),
    ("network_gb_s", "GB/s of a node's network"),
    ("shared_write_gb_s", "GB/s of the file system"),
    ("node_mtbf", "the mean time between failures of one node"),
    ("node_gb", "GB of a node's part of a checkpoint"),
    ("nodes", "nodes of the job"),
];

/// A preset or a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Described {
    about: String,
    preset: Option<String>,
    machine: MachineFigures,
    job: JobFigures,
    sources: BTreeMap<String, String>,
}

/// A figure and its origin.
#[derive(Debug, Clone)]
pub struct Figure {
    pub value: f64,
    pub origin: String,
}

/// All figures by name.
#[derive(Debug, Default)]
pub struct Figures {
    pub of: BTreeMap<String, Figure>,
    /// The description in the preset or the file.
    pub about: String,
}

impl Figures {
    /// The figures for these arguments.
    ///
    /// # Errors
    /// Invalid, naming the flag or the key, the value and the range, or everything that is missing.
    pub fn gather(args: &AdviceArgs) -> Result<Self> {
        let mut figures = Self::default();
        let described = args
            .from
            .as_deref()
            .map(|path| file(path).map(|file| (path, file)));
        let described = described.transpose()?;
        let in_file = described.as_ref().and_then(|(_, file)| file.preset.clone());
        if let Some(name) = args.preset.clone().or(in_file) {
            let preset = preset(&name)?;
            figures.about.clone_from(&preset.about);
            figures.take(&preset.machine, &preset.job, |key| {
                let source = preset.sources.get(key);
                source.map_or_else(|| format!("preset {name}"), Clone::clone)
            });
        }
        if let Some((path, file)) = &described {
            if !file.about.is_empty() {
                figures.about.clone_from(&file.about);
            }
            figures.take(&file.machine, &file.job, |key| {
                let source = file.sources.get(key);
                source.map_or_else(|| path.display().to_string(), Clone::clone)
            });
        }
        figures.take(&args.machine, &args.job, |_| "given".to_owned());
        for (name, value, origin) in DEFAULTS {
            figures.otherwise(name, value, &format!("assumed: {origin}"));
        }
        for (name, other, share) in [
            ("nodes", "machine_nodes", 1.0),
            ("copy_gb_s", "memory_gb_s", 0.5),
            ("disk_read_gb_s", "disk_write_gb_s", 1.0),
            ("shared_read_gb_s", "shared_write_gb_s", 1.0),
        ] {
            if let Some(value) = figures.value(other) {
                let of = if share < 1.0 { "half of" } else { "as" };
                figures.otherwise(
                    name,
                    value * share,
                    &format!("assumed: {of} {}", flag(other)),
                );
            }
        }
        if let (None, Some(rank_gb), Some(ranks)) = (
            figures.value("node_gb"),
            figures.value("rank_gb"),
            figures.value("ranks_per_node"),
        ) {
            figures.otherwise("node_gb", rank_gb * ranks, "by its ranks");
        }
        figures.check()?;
        // Without a figure, failures of that kind are assumed never to happen, which is shown.
        for name in ["process_mtbf", "together_mtbf", "system_mtbf"] {
            figures.otherwise(name, f64::INFINITY, "assumed: nothing was given");
        }
        Ok(figures)
    }

    /// Overrides existing figures with these.
    fn take(
        &mut self,
        machine: &MachineFigures,
        job: &JobFigures,
        origin: impl Fn(&str) -> String,
    ) {
        // The size of a node's part is given in one way or the other: the later one counts.
        if job.rank_gb.is_some() {
            self.of.remove("node_gb");
        }
        if job.node_gb.is_some() {
            self.of.remove("rank_gb");
        }
        for (name, value) in numbers(machine).into_iter().chain(numbers(job)) {
            let whole = value.as_integer().map(|whole| whole as f64);
            if let Some(value) = value.as_float().or(whole) {
                let origin = origin(&name);
                self.of.insert(name, Figure { value, origin });
            }
        }
    }

    fn otherwise(&mut self, name: &str, value: f64, origin: &str) {
        self.of.entry(name.to_owned()).or_insert(Figure {
            value,
            origin: origin.to_owned(),
        });
    }

    /// One of them.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.of.get(name).map(|figure| figure.value)
    }

    /// A figure that exists, because [`Self::gather`] made sure of it.
    #[must_use]
    pub fn known(&self, name: &str) -> f64 {
        self.value(name).unwrap_or(f64::NAN)
    }

    fn check(&self) -> Result<()> {
        self.check_ranges()?;
        self.check_pairs()?;
        let missing: Vec<String> = NEEDED
            .into_iter()
            .filter(|(name, _)| self.value(name).is_none())
            .map(|(name, what)| format!("{} ({what})", flag(name)))
            .collect();
        if !missing.is_empty() {
            let of = if self.about.is_empty() {
                String::new()
            } else {
                format!(" of {}", self.about)
            };
            return Err(Error::invalid(format!(
                "not enough is known{of}: expected {}",
                missing.join(", ")
            ))
            .next("give them; `orcheck plan calibrate` measures what can be measured, and an operator knows how often nodes fail"));
        }
        if let Some(of_machine) = self.value("machine_nodes") {
            let nodes = self.known("nodes");
            if nodes > of_machine {
                return Err(Error::invalid(format!(
                    "--nodes {nodes}: expected at most {of_machine}, the nodes of the machine"
                )));
            }
        }
        if let Some(memory_gb) = self.value("memory_gb") {
            let node_gb = self.known("node_gb");
            if node_gb > memory_gb {
                return Err(Error::invalid(format!(
                    "--node-gb {node_gb}: expected at most {memory_gb}, the memory of a node"
                )));
            }
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<()> {
        for (name, least, most) in RANGES {
            let Some(figure) = self.of.get(name) else {
                continue;
            };
            if !(least..=most).contains(&figure.value) {
                let expected = match (is_time(name), most.is_finite()) {
                    (true, true) => format!("{} to {}", span(least), span(most)),
                    (true, false) => format!("at least {}, or never", span(least)),
                    (false, _) => format!("{least:?} to {most:?}"),
                };
                let (flag, value) = (flag(name), figure.value);
                let error = Error::invalid(format!("{flag} {value:?}: expected {expected}"));
                return Err(match figure.origin.as_str() {
                    "given" => error,
                    origin => error.at(origin),
                });
            }
        }
        Ok(())
    }

    /// Checks figures that mean nothing without another one.
    fn check_pairs(&self) -> Result<()> {
        let has = |name: &str| self.of.contains_key(name);
        if has("rank_gb") && !has("ranks_per_node") {
            return Err(Error::invalid(
                "--rank-gb without --ranks-per-node: expected the number of ranks on each node",
            ));
        }
        if has("together") && !has("together_mtbf") {
            return Err(Error::invalid(
                "--together without --together-mtbf: expected the mean time between failures of nodes that fail together",
            ));
        }
        if self.value("disk_read_gb_s").is_some() && self.value("disk_write_gb_s").is_none() {
            return Err(Error::invalid(
                "--disk-read-gb-s without --disk-write-gb-s: expected the GB/s written to a node's disk",
            ));
        }
        if self.value("together_mtbf").is_some() && self.value("together").is_none() {
            return Err(Error::invalid(
                "--together-mtbf without --together: expected the number of nodes that fail together",
            ));
        }
        Ok(())
    }
}

/// The fields that are set. Unlike JSON, TOML keeps values that are not numbers, which are then
/// refused.
fn numbers(of: &impl Serialize) -> toml::Table {
    toml::Table::try_from(of).unwrap_or_default()
}

/// Whether a figure is a time, in seconds.
#[must_use]
pub fn is_time(name: &str) -> bool {
    name.ends_with("mtbf") || name == "work" || name == "relaunch"
}

/// The flag of a figure.
#[must_use]
pub fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

fn preset(name: &str) -> Result<Described> {
    let known = PRESETS.into_iter().find(|(known, _)| *known == name);
    let (_, text) = known.ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        Error::invalid(format!(
            "--preset '{name}': expected one of {}",
            names.join(", ")
        ))
    })?;
    parse(text).map_err(|what| Error::internal(format!("preset {name}: {what}")))
}

fn file(path: &Path) -> Result<Described> {
    let text = read_text(path, FILE_LIMIT_BYTES)?;
    parse(&text).map_err(|what| {
        Error::invalid(format!("{}: {what}", path.display()))
            .next("docs/planning.md has an example of such a file")
    })
}

fn parse(text: &str) -> std::result::Result<Described, String> {
    let described: Described =
        toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
    let known = [numbers(&described.machine), numbers(&described.job)];
    let unknown = |name: &&String| !known.iter().any(|figures| figures.contains_key(*name));
    if let Some(name) = described.sources.keys().find(unknown) {
        return Err(format!(
            "[sources] {name}: expected the name of a figure of this file"
        ));
    }
    if described.job.node_gb.is_some() && described.job.rank_gb.is_some() {
        return Err("[job] node_gb and rank_gb: expected one of the two".to_owned());
    }
    Ok(described)
}

/// Every preset with its figures: its name and description, and the value and source of each
/// figure.
///
/// # Errors
/// Internal: an unreadable preset.
pub fn presets() -> Result<Vec<(&'static str, Figures)>> {
    let figures = |(name, _): (&'static str, &str)| {
        let preset = preset(name)?;
        let mut figures = Figures {
            about: preset.about.clone(),
            ..Figures::default()
        };
        figures.take(&preset.machine, &preset.job, |key| {
            preset.sources.get(key).cloned().unwrap_or_default()
        });
        Ok((name, figures))
    };
    PRESETS.into_iter().map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a preset is unreadable, or has a figure without a source or out of range.
    #[test]
    fn every_figure_of_a_preset_has_a_source() {
        for (name, figures) in presets().unwrap() {
            assert!(!figures.about.is_empty(), "{name}");
            for (key, figure) in &figures.of {
                assert!(figure.origin.len() > 5, "{name}: {key}");
                let range = RANGES.iter().find(|(known, ..)| known == key);
                let inside =
                    range.is_none_or(|(_, least, most)| (*least..=*most).contains(&figure.value));
                assert!(inside, "{name}: {key} {}", figure.value);
            }
            assert!(figures.of.len() >= 5, "{name}");
        }
    }
}
