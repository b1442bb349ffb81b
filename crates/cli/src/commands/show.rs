//! `orcheck show`: what one checkpoint holds.
//!
//! Reads the manifest of every container, no data. A container that cannot be opened is shown with the reason,
//! and the exit code is 3. No key is needed: names and lengths are not encrypted. With one, it is said whether it fits.
//! Of text and JSON only what is asked for is made: a large job has millions of regions.

use orcheck_engine::restart::reader::Reader;
use orcheck_format::ErrorKind;
use orcheck_format::disk::{RegionKind, RegionRecord};
use orcheck_io::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::args::ShowArgs;
use crate::exit;
use crate::job::is_out_of_sight;
use crate::job::{Job, trust};
use crate::output::{
    Cell, Failure, Outcome, Tone, cell, count, draw_together, moment, plain, right, shape, size,
    table, table_text,
};

/// Shows the checkpoint.
pub fn run(args: &ShowArgs, as_json: bool) -> Result<Outcome, Failure> {
    let trust = trust(&args.unlock)?;
    let job = Job::open_trusting(&args.which.place(&args.place), &trust)?;
    let commit = job.pick(&args.which)?;
    let record = &commit.record;
    for &rank in &args.ranks {
        orcheck_engine::restart::reader::holder_of(record, rank)?;
    }
    let wanted = |rank: u32| args.ranks.is_empty() || args.ranks.contains(&rank);

    let mut warnings = job.notes();
    let mut containers = Vec::new();
    let mut ranks = Vec::new();
    let mut container_table = table(&[
        "container",
        "node",
        "writer",
        "ranks",
        "size",
        "state",
        "copies",
        "place",
    ]);
    let mut region_table = table(&[
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
    let places = job.places_of(commit);
    let (mut failed, mut out_of_sight) = (0u64, 0u64);
    for container in &record.containers {
        let held: u64 = container
            .ranks
            .iter()
            .map(|(_, count)| u64::from(*count))
            .sum();
        let found = job.find_file(commit, &container.file);
        let place = found.map(|place| job.place_path(place));
        let here = job.places_with(commit, &container.file);
        let name_of = |node: &u32| record.nodes.get(*node as usize).cloned();
        let node = record
            .nodes
            .get(container.node as usize)
            .cloned()
            .unwrap_or_default();
        let proven = (&trust, commit.proof);
        let opened = match trust.has_key() {
            true => Reader::open_trusting(&places, record, container, proven),
            false => Reader::open(&places, record, container),
        };
        if let Some(error) = (opened.as_ref().err()).filter(|e| e.kind() == ErrorKind::Invalid) {
            return Err(error.clone().into());
        }
        let opened = opened.map_err(|error| job.unread(commit, &container.file, error));
        let error = (opened.as_ref().err()).map(|failure| failure.error.to_string());
        if !as_json {
            container_table.add_row([
                plain(&container.file),
                plain(&node),
                right(container.writer),
                right(held),
                right(size(container.len_bytes)),
                match &error {
                    None if opened.as_ref().is_ok_and(Reader::is_locked) => {
                        cell("encrypted", Tone::Note)
                    }
                    None => cell("readable", Tone::Good),
                    Some(_) if opened.as_ref().is_err_and(is_out_of_sight) => {
                        cell("unreachable", Tone::Note)
                    }
                    Some(_) => cell("unreadable", Tone::Bad),
                },
                right(match container.holders.len() {
                    0 => here.len().to_string(),
                    holders => format!("{} of {}", here.len(), holders + 1),
                }),
                plain(place.clone().unwrap_or_else(|| "-".into())),
            ]);
        }
        let mut document = match as_json {
            true => json!({
                "file": container.file,
                "place": place,
                "copies": here.iter().map(|&place| job.place_path(place)).collect::<Vec<String>>(),
                "holders": container.holders.iter().filter_map(name_of).collect::<Vec<String>>(),
                "node": container.node,
                "node_name": node,
                "writer": container.writer,
                "len_bytes": container.len_bytes,
                "refers_to": container.refers_to,
                "rank_ranges": container.ranks.iter().map(|(first, count)| json!({ "first": first, "count": count })).collect::<Vec<Value>>(),
                "manifest_blake3": orcheck_format::hex(&container.manifest_digest),
                "error": error,
            }),
            false => Value::Null,
        };
        match opened {
            Err(failure) => {
                failed += 1;
                out_of_sight += u64::from(is_out_of_sight(&failure));
                warnings.push(failure.error.to_string());
            }
            Ok(reader) => {
                let notes = reader.take_notes();
                if as_json {
                    document["encrypted"] = json!(reader.is_encrypted());
                    document["stores"] = json!(reader.manifest().stores);
                    document["notes"] = json!(notes);
                }
                warnings.extend(notes);
                for rank in reader
                    .manifest()
                    .ranks
                    .iter()
                    .filter(|rank| wanted(rank.rank))
                {
                    if !as_json {
                        for region in &rank.regions {
                            region_table.add_row(region_row(rank.rank, region));
                        }
                        continue;
                    }
                    ranks.push(json!({
                        "rank": rank.rank,
                        "container": container.file,
                        "stream_len_bytes": rank.stream_len_bytes,
                        "regions": rank.regions.iter().map(region_document).collect::<Vec<Value>>(),
                    }));
                }
            }
        }
        containers.extend(as_json.then_some(document));
    }

    draw_together(&mut container_table);
    draw_together(&mut region_table);
    let total: u64 = record
        .containers
        .iter()
        .map(|container| container.len_bytes)
        .sum();
    let (text, document) = match as_json {
        true => {
            let document = json!({
                "job": record.job.as_str(),
                "step": record.step,
                "epoch": record.epoch.to_string(),
                "run": record.epoch.run.to_string(),
                "level": record.level.to_string(),
                "world_size": record.world_size,
                "nodes": record.nodes,
                "servers": record.servers,
                "placement_generation": record.placement_generation,
                "created_unix_ms": record.created_unix_ms,
                "record_places": commit.copies.iter().map(|&place| job.place_path(place)).collect::<Vec<String>>(),
                "containers": containers,
                "ranks": ranks,
                "notes": warnings,
            });
            (String::new(), document)
        }
        false => {
            let text = format!(
                "job {}, step {}, epoch {}, level {}: {} on {}, {} in {}\n\
         taken {}\n\
         commit record: {} of it here, placement generation {}, servers {}\n\n{}\n{}",
                record.job.as_str(),
                record.step,
                record.epoch,
                record.level,
                count(u64::from(record.world_size), "rank"),
                count(record.nodes.len() as u64, "node"),
                size(total),
                count(record.containers.len() as u64, "container"),
                moment(record.created_unix_ms, SystemClock::new().unix_ms()),
                if commit.copies.len() == 1 {
                    "1 copy".into()
                } else {
                    format!("{} copies", commit.copies.len())
                },
                record.placement_generation,
                record.servers.join(", "),
                table_text(&container_table),
                table_text(&region_table)
            );
            (text, Value::Null)
        }
    };
    let code = match failed {
        0 => exit::OK,
        _ if failed == out_of_sight => exit::UNREACHABLE,
        _ => exit::PARTIAL,
    };
    Ok(Outcome {
        code,
        text,
        document,
        warnings,
    })
}

/// The word for a region's kind, in text and JSON.
pub fn kind_name(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Bytes => "bytes",
        RegionKind::Array => "array",
        RegionKind::Codec => "codec",
        RegionKind::File => "file",
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
        "same_as": region.same_as,
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

fn region_row(rank: u32, region: &RegionRecord) -> Vec<Cell> {
    let mut flags = Vec::new();
    for (bit, name) in [(1, "optional"), (2, "same"), (4, "cpu-writes-only")] {
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
        plain(shape(&region.local)),
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

    // Breaks if: both are made; the memory of a command that looks at a large job doubles.
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
