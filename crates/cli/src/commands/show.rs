//! Implements `orcheck show`, which shows what one checkpoint holds.
//!
//! It reads the manifest of every container, but no data. A container that cannot be opened is
//! shown with the reason, and the exit code is 3. No key is needed: names and lengths are not
//! encrypted. With a key, it is reported whether it fits. Only the requested form, text or JSON, is
//! made: a large job has millions of regions.

use orcheck_engine::directory::Commit;
use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::{Reader, holder_of};
use orcheck_format::disk::{
    ContainerRef, FLAG_IN_MEMORY, FLAG_LIST, FLAG_OVERLAP, FLAG_SAME, ParityGroup, RankRecord,
    RegionKind, RegionRecord,
};
use orcheck_format::{ErrorKind, Level, NodeId, Rank};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Dir;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::args::ShowArgs;
use crate::exit;
use crate::job::is_out_of_sight;
use crate::job::{Job, trust};
use crate::output::{
    Cell, Failure, Outcome, Table, Tone, cell, count, draw_together, moment, plain, right, shape,
    size, table, table_text,
};

/// Maximum number of regions named as belonging to their ranks.
const MOST_NAMED: usize = 8;

/// Shows the checkpoint.
pub fn run(args: &ShowArgs, as_json: bool) -> Result<Outcome, Failure> {
    let trust = trust(&args.unlock)?;
    let job = Job::open_trusting(&args.which.place(&args.place), &trust)?;
    let commit = job.pick(&args.which)?;
    for &rank in &args.ranks {
        holder_of(&commit.record, Rank(rank))?;
    }
    let mut view = View::new(&job, commit, &args.ranks, as_json);
    for container in &commit.record.containers {
        view.add_container(container, &trust)?;
    }
    if let Some(newer) = job.passed_over(commit, &args.which) {
        view.warnings
            .push(format!("step {} is newer: {}", newer.step, newer.error));
    }
    Ok(view.outcome())
}

/// What is shown of one checkpoint, as text or as JSON.
struct View<'a> {
    job: &'a Job,
    commit: &'a Commit,
    places: Vec<Arc<dyn Dir>>,
    /// The ranks that are shown; all if empty.
    ranks_wanted: &'a [u32],
    as_json: bool,
    container_table: Table,
    region_table: Table,
    containers: Vec<Value>,
    ranks: Vec<Value>,
    warnings: Vec<String>,
    /// Number of unreadable containers, and how many of them only because their place is missing.
    failed: u64,
    out_of_sight: u64,
    /// Regions that belong to each rank alone: other numbers of ranks cannot read them.
    alone: BTreeSet<String>,
}

impl<'a> View<'a> {
    fn new(job: &'a Job, commit: &'a Commit, ranks_wanted: &'a [u32], as_json: bool) -> Self {
        let container_table = table(&[
            "container",
            "node",
            "writer",
            "ranks",
            "size",
            "state",
            "copies",
            "place",
        ]);
        let region_table = table(&[
            "rank",
            "region",
            "kind",
            "type",
            "shape",
            "of global",
            "at",
            "size",
            "in older",
            "flags",
        ]);
        Self {
            job,
            commit,
            places: job.places_to_read(commit),
            ranks_wanted,
            as_json,
            container_table,
            region_table,
            containers: Vec::new(),
            ranks: Vec::new(),
            warnings: job.notes(),
            failed: 0,
            out_of_sight: 0,
            alone: BTreeSet::new(),
        }
    }

    fn add_container(
        &mut self,
        container: &ContainerRef,
        trust: &Arc<Trust>,
    ) -> Result<(), Failure> {
        let (job, commit) = (self.job, self.commit);
        let record = &commit.record;
        let opened = match trust.has_key() {
            true => {
                let proven = (trust, commit.proof);
                Reader::open_trusting(&self.places, record, container, proven)
            }
            false => Reader::open(&self.places, record, container),
        };
        if let Some(error) = (opened.as_ref().err()).filter(|e| e.kind() == ErrorKind::Invalid) {
            return Err(error.clone().into());
        }
        let opened = opened.map_err(|error| job.unread(commit, &container.file, error));
        let mut document = Value::Null;
        match self.as_json {
            true => document = self.container_document(container, &opened),
            false => {
                let row = self.container_row(container, &opened);
                self.container_table.add_row(row);
            }
        }
        match opened {
            Err(failure) => {
                self.failed += 1;
                self.out_of_sight += u64::from(is_out_of_sight(&failure));
                self.warnings.push(failure.error.to_string());
            }
            Ok(reader) => {
                let notes = reader.take_notes();
                if self.as_json {
                    document["encrypted"] = json!(reader.is_encrypted());
                    document["stores"] = json!(reader.manifest().stores);
                    document["notes"] = json!(notes);
                }
                self.warnings.extend(notes);
                for rank in &reader.manifest().ranks {
                    let regions = rank.regions.iter();
                    let alone = regions.filter(|one| !one.is_part() && one.flags & FLAG_SAME == 0);
                    self.alone.extend(alone.map(|one| one.name.clone()));
                    if self.ranks_wanted.is_empty() || self.ranks_wanted.contains(&rank.rank.0) {
                        self.add_rank(container, rank);
                    }
                }
            }
        }
        self.containers.extend(self.as_json.then_some(document));
        Ok(())
    }

    fn add_rank(&mut self, container: &ContainerRef, rank: &RankRecord) {
        if !self.as_json {
            for region in &rank.regions {
                self.region_table.add_row(region_row(rank.rank, region));
            }
            return;
        }
        let regions: Vec<Value> = rank.regions.iter().map(region_document).collect();
        self.ranks.push(json!({
            "rank": rank.rank.0,
            "container": container.file,
            "stream_len_bytes": rank.stream_len_bytes,
            "regions": regions,
        }));
    }

    fn node_name(&self, node: NodeId) -> Option<String> {
        self.commit.record.nodes.get(node.index()).cloned()
    }

    /// The place of a container.
    fn place(&self, container: &ContainerRef) -> Option<String> {
        let found = self.job.find_file(self.commit, &container.file);
        found.map(|place| self.job.place_path(place))
    }

    fn container_row(
        &self,
        container: &ContainerRef,
        opened: &Result<Reader, Failure>,
    ) -> Vec<Cell> {
        let counts = container.ranks.iter().map(|(_, count)| u64::from(*count));
        let copies = self.job.places_with(self.commit, &container.file).len();
        vec![
            plain(&container.file),
            plain(self.node_name(container.node).unwrap_or_default()),
            right(container.writer),
            right(counts.sum::<u64>()),
            right(size(container.len_bytes)),
            match opened {
                Ok(reader) if reader.is_locked() => cell("encrypted", Tone::Note),
                Ok(_) => cell("readable", Tone::Good),
                Err(failure) if is_out_of_sight(failure) => cell("unreachable", Tone::Note),
                Err(_) => cell("unreadable", Tone::Bad),
            },
            right(match container.holders.len() {
                0 => copies.to_string(),
                holders => format!("{copies} of {}", holders + 1),
            }),
            plain(match (self.place(container), opened) {
                (Some(place), _) => place,
                // Breaks if: it seems to be nowhere, although it is readable.
                (None, Ok(_)) => "(computed from parity)".into(),
                (None, Err(_)) => "-".into(),
            }),
        ]
    }

    fn container_document(
        &self,
        container: &ContainerRef,
        opened: &Result<Reader, Failure>,
    ) -> Value {
        let copies = self.job.places_with(self.commit, &container.file);
        let copies = copies.iter().map(|&place| self.job.place_path(place));
        let holders = container.holders.iter();
        let holders = holders.filter_map(|&node| self.node_name(node));
        let ranges = container.ranks.iter();
        let ranges = ranges.map(|(first, count)| json!({ "first": first.0, "count": count }));
        json!({
            "file": container.file,
            "place": self.place(container),
            "copies": copies.collect::<Vec<String>>(),
            "holders": holders.collect::<Vec<String>>(),
            "node": container.node.0,
            "node_name": self.node_name(container.node).unwrap_or_default(),
            "writer": container.writer.0,
            "len_bytes": container.len_bytes,
            "refers_to": container.refers_to.iter().map(|step| step.0).collect::<Vec<_>>(),
            "rank_ranges": ranges.collect::<Vec<Value>>(),
            "manifest_blake3": orcheck_format::hex(&container.manifest_digest),
            "error": opened.as_ref().err().map(|failure| failure.error.to_string()),
        })
    }

    fn outcome(mut self) -> Outcome {
        let code = match self.failed {
            0 => exit::OK,
            failed if failed == self.out_of_sight => exit::UNREACHABLE,
            _ => exit::PARTIAL,
        };
        let (text, document) = match self.as_json {
            true => (String::new(), self.document()),
            false => (self.text(), Value::Null),
        };
        Outcome {
            code,
            text,
            document,
            warnings: self.warnings,
        }
    }

    /// The groups with parity: a line for each.
    fn groups(&self) -> String {
        let names = |group: &ParityGroup| {
            let nodes = group.nodes.iter();
            let names = nodes.filter_map(|&node| self.node_name(node));
            names.collect::<Vec<String>>().join(", ")
        };
        let groups = self.commit.record.groups.iter();
        let lines = groups.map(|group| {
            let losses = count(group.parity.into(), "node");
            format!(
                "parity protects against the loss of {losses} of {}\n",
                names(group)
            )
        });
        lines.collect()
    }

    /// On how many ranks it can be restarted.
    fn elastic(&self) -> String {
        if self.failed > 0 {
            return String::new();
        }
        let ranks = count(u64::from(self.commit.record.world_size), "rank");
        let named: Vec<&str> = self
            .alone
            .iter()
            .map(String::as_str)
            .take(MOST_NAMED)
            .collect();
        match self.alone.len() {
            // A node sees only its own directory.
            0 if self.commit.record.level == Level::Node && self.commit.record.nodes.len() > 1 => {
                format!("restart: on {ranks}; from another level on any number\n")
            }
            0 => "restart: on any number of ranks\n".into(),
            few if few <= MOST_NAMED => {
                format!(
                    "restart: on {ranks} only, because these regions belong to their ranks: {}\n",
                    named.join(", ")
                )
            }
            all => format!(
                "restart: on {ranks} only, because {all} regions belong to their ranks ({}, …)\n",
                named.join(", ")
            ),
        }
    }

    /// The levels at which the step has a commit record here, weakest first.
    fn levels(&self) -> Vec<String> {
        let own = &self.commit.record;
        let commits = self.job.catalog.commits().iter();
        let commits = commits
            .chain(self.job.catalog.rejected())
            .chain(self.job.catalog.fenced());
        let same = commits.map(|commit| &commit.record);
        let same = same.filter(|record| (record.step, record.epoch) == (own.step, own.epoch));
        let levels: BTreeSet<Level> = same.map(|record| record.level).collect();
        levels.iter().map(Level::to_string).collect()
    }

    fn document(&mut self) -> Value {
        let record = &self.commit.record;
        let places = self.commit.copies.iter();
        let places = places.map(|&place| self.job.place_path(place));
        json!({
            "job": record.job.as_str(),
            "step": record.step.0,
            "epoch": record.epoch.to_string(),
            "run": record.epoch.run.to_string(),
            "level": record.level.to_string(),
            "levels": self.levels(),
            "world_size": record.world_size,
            "nodes": record.nodes,
            "servers": record.servers,
            "placement_generation": record.placement_generation,
            "created_unix_ms": record.created_unix_ms,
            "record_places": places.collect::<Vec<String>>(),
            "groups": record.groups.iter().map(|group| json!({
                "nodes": group.nodes.iter().filter_map(|&node| self.node_name(node)).collect::<Vec<_>>(),
                "parity": group.parity,
            })).collect::<Vec<Value>>(),
            "of_each_rank": self.alone,
            "containers": std::mem::take(&mut self.containers),
            "ranks": std::mem::take(&mut self.ranks),
            "notes": self.warnings,
        })
    }

    fn text(&mut self) -> String {
        draw_together(&mut self.container_table);
        draw_together(&mut self.region_table);
        let record = &self.commit.record;
        let total = record
            .containers
            .iter()
            .map(|container| container.len_bytes);
        format!(
            "job {}, step {}, epoch {}, level {}: {} on {}, {} in {}\n\
             recorded here at level {}\n\
             taken {}\n\
             commit record: {} of it here{}\n{}{}\n{}\n{}",
            record.job.as_str(),
            record.step,
            record.epoch,
            record.level,
            count(u64::from(record.world_size), "rank"),
            count(record.nodes.len() as u64, "node"),
            size(total.sum()),
            count(record.containers.len() as u64, "container"),
            self.levels().join(" and "),
            moment(record.created_unix_ms, SystemClock::new().unix_ms()),
            match self.commit.copies.len() {
                1 => "1 copy".into(),
                copies => format!("{copies} copies"),
            },
            match record.servers.is_empty() {
                true => String::new(),
                false => format!(
                    "; {}: {}",
                    match record.level {
                        Level::Global => "global directories and servers",
                        _ => "directories of the run",
                    },
                    record.servers.join(", ")
                ),
            },
            self.groups(),
            self.elastic(),
            table_text(&self.container_table),
            table_text(&self.region_table)
        )
    }
}

/// The word for a region's kind, in text and JSON.
pub fn kind_name(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Bytes => "bytes",
        RegionKind::Array => "array",
        RegionKind::Codec => "codec",
        RegionKind::File => "file",
        RegionKind::Boxes => "boxes",
    }
}

/// A region for programs; `restore` writes the same into its index.
pub fn region_document(region: &RegionRecord) -> Value {
    json!({
        "name": region.name,
        "kind": kind_name(region.kind),
        "dtype": region.dtype.name(),
        "flags": region.flags,
        "len_bytes": region.len_bytes,
        "local": region.local,
        "global": region.global,
        "offset": region.offset,
        "boxes": region.boxes.iter().map(|one| json!({"offset": one.offset, "local": one.local})).collect::<Vec<_>>(),
        "same_as": region.same_as.map(|rank| rank.0),
        "extents": region.extents.len(),
        "referred_bytes": referred_bytes(region),
        "stored_bytes": region.extents.iter().map(|extent| extent.stored_len_bytes).sum::<u64>(),
    })
}

/// Bytes of a region that lie in containers of older checkpoints.
fn referred_bytes(region: &RegionRecord) -> u64 {
    let extents = region.extents.iter();
    let older = extents.filter(|extent| extent.container.is_some());
    older.map(|extent| extent.len_bytes).sum()
}

fn region_row(rank: Rank, region: &RegionRecord) -> Vec<Cell> {
    let mut flags = Vec::new();
    for (bit, name) in [
        (1, "optional"),
        (FLAG_SAME, "same"),
        (4, "cpu-writes-only"),
        (FLAG_LIST, "list"),
        (FLAG_OVERLAP, "overlap"),
        (FLAG_IN_MEMORY, "in-memory"),
    ] {
        if region.flags & bit != 0 {
            flags.push(name.to_string());
        }
    }
    if let Some(owner) = region.same_as {
        flags.push(format!("stored by rank {owner}"));
    }
    vec![
        right(rank),
        plain(&region.name),
        plain(kind_name(region.kind)),
        plain(region.dtype.name()),
        plain(match region.kind {
            RegionKind::Boxes => match region.boxes.len() {
                1 => "1 box".to_owned(),
                boxes => format!("{boxes} boxes"),
            },
            _ => shape(&region.local),
        }),
        plain(shape(&region.global)),
        plain(shape(&region.offset)),
        right(size(region.len_bytes)),
        right(size(referred_bytes(region))),
        plain(flags.join(" ")),
    ]
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)] // as in all tests that make files
#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use orcheck_fixtures::reading::{Scratch, Spec, write};

    // Breaks if: both are made; the memory of the command doubles for a large job.
    #[test]
    fn of_text_and_json_only_what_is_asked_for_is_made() {
        let scratch = Scratch::new();
        let dir = scratch.dir("cavity");
        write(std::slice::from_ref(&dir), &Spec::new(10, 1));
        let line = ["orcheck", "show", &dir.display().to_string()].map(str::to_owned);
        let Command::Show(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command");
        };
        let shown = |as_json| run(&args, as_json).ok().unwrap();
        let text = shown(false);
        assert!(text.document.is_null());
        assert!(text.text.contains("job cavity, step 10"), "{}", text.text);
        let json = shown(true);
        assert_eq!(json.text, "");
        assert_eq!(
            json.document["containers"][0]["file"],
            json.document["ranks"][0]["container"]
        );
    }
}
