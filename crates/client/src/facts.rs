//! Who is where: ranks tell their node, host, socket and a digest of their options.
//!
//! Invariant: all ranks end with the same layout, or with the same error.
//!
//! Not here: how ranks form nodes and writers (`engine::layout`).

use crate::agree::{agree, bcast_bytes};
use crate::collective::Collective;
use crate::options::Options;
use orcheck_engine::index::MAX_LANES;
use orcheck_engine::layout::{Layout, RankFacts};
use orcheck_format::crc::crc64;
use orcheck_format::error::{Error, Result};
use orcheck_io::machine::{cpu_socket, cpuset};
use orcheck_io::net::host_name;
use orcheck_io::secret::SecretSource;
use std::collections::BTreeSet;

/// Longest node and host name that travels.
const NAME_BYTES: usize = 64;
const FACT_BYTES: usize = 2 * NAME_BYTES + 16;

/// Everybody learns who is where; ranks with other options are found out.
pub(crate) fn exchange_facts(collective: &mut dyn Collective, options: &Options) -> Result<Layout> {
    let mut common = options.clone();
    common.node_name = None;
    common.given.clear();
    // The key must be the same, and is compared by itself; where it comes from may differ between nodes.
    common.encrypt_key = common
        .encrypt_key
        .map(|_| SecretSource::Environment(String::new()));
    let digest = crc64(format!("{common:?}").as_bytes());
    let host = host_name();
    let fact = RankFacts {
        node: node_of(options, collective.rank(), collective.size())
            .unwrap_or_else(|| host.clone()),
        host,
        socket: cpuset().first().map_or(0, |&cpu| cpu_socket(cpu)),
    };
    let encoded = agree(collective, encode_fact(&fact, digest))?;
    let table = collective.gather(&encoded, 0)?;
    let table = bcast_bytes(collective, table.unwrap_or_default(), 0)?;
    let decoded = decode_facts(&table, collective.size());
    let (facts, digests) = agree(collective, decoded)?;
    if let Some(other) = digests.iter().position(|&d| d != digests[0]) {
        return Err(name_difference(collective, options, other as u32)?);
    }
    let layout = {
        let mut nodes: Vec<&str> = facts.iter().map(|fact| fact.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let lanes = lanes_per_node(options, nodes.len());
        Layout::new(&facts, options.mode, options.scheme, lanes)
    };
    agree(collective, layout)
}

/// The name of this rank's node, if it is given: alone, or in a list over which the ranks are dealt in blocks.
fn node_of(options: &Options, rank: u32, size: u32) -> Option<String> {
    let names: Vec<&str> = options.node_name.as_deref()?.split(',').collect();
    let at = u64::from(rank) * names.len() as u64 / u64::from(size.max(1));
    names.get(at as usize).map(|name| name.trim().to_owned())
}

/// The error, the same on all ranks, that says in what the options of rank `other` differ from
/// those of rank 0.
fn name_difference(
    collective: &mut dyn Collective,
    options: &Options,
    other: u32,
) -> Result<Error> {
    let mine = &options.given;
    let text = bcast_bytes(collective, mine.to_string().into_bytes(), 0)?;
    let first: toml::Table = String::from_utf8_lossy(&text).parse().unwrap_or_default();
    let shown = |value: Option<&toml::Value>| {
        value.map_or_else(|| "not set".to_owned(), ToString::to_string)
    };
    let names: BTreeSet<&String> = first
        .keys()
        .chain(mine.keys())
        .filter(|name| *name != "node_name")
        .collect();
    let differ: Vec<String> = names
        .into_iter()
        .filter(|name| first.get(*name) != mine.get(*name))
        .map(|name| {
            format!(
                "{name} is {} there and {} on rank 0",
                shown(mine.get(name)),
                shown(first.get(name))
            )
        })
        .collect();
    let text = bcast_bytes(collective, differ.join(", ").into_bytes(), other)?;
    Ok(Error::invalid(format!(
        "rank {other} was opened with other options than rank 0: {}",
        String::from_utf8_lossy(&text)
    ))
    .next(
        "pass the same options and ORCHECK_ variables to all ranks; only ORCHECK_NODE may differ",
    ))
}

pub(crate) fn lanes_per_node(options: &Options, nodes: usize) -> u32 {
    let servers = options.global.len();
    options
        .lanes_per_node
        .unwrap_or((servers / nodes.max(1)).max(1) as u32)
        .min(servers.max(1) as u32)
        .min(MAX_LANES)
}

fn encode_fact(fact: &RankFacts, digest: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; FACT_BYTES];
    for (name, at) in [(&fact.node, 0), (&fact.host, NAME_BYTES)] {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty()
            || name.len() >= NAME_BYTES
            || !name.chars().all(allowed)
            || name.starts_with('.')
        {
            return Err(Error::invalid(format!(
                "node name '{}': allowed are 1 to {} letters, digits, '.', '_' and '-', not beginning with '.'",
                name.escape_debug(),
                NAME_BYTES - 1
            ))
            .next("set ORCHECK_NODE"));
        }
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    }
    bytes[2 * NAME_BYTES..2 * NAME_BYTES + 8].copy_from_slice(&digest.to_le_bytes());
    bytes[2 * NAME_BYTES + 8..2 * NAME_BYTES + 12].copy_from_slice(&fact.socket.to_le_bytes());
    Ok(bytes)
}

fn decode_facts(table: &[u8], size: u32) -> Result<(Vec<RankFacts>, Vec<u64>)> {
    if table.len() != size as usize * FACT_BYTES {
        return Err(Error::internal(format!(
            "the collective gathered {} bytes from {size} ranks, expected {}",
            table.len(),
            size as usize * FACT_BYTES
        )));
    }
    let text = |bytes: &[u8]| {
        let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let facts = table
        .chunks_exact(FACT_BYTES)
        .map(|fact| {
            let number = |at: usize| {
                fact[at..at + 8]
                    .iter()
                    .rev()
                    .fold(0u64, |n, &b| n << 8 | u64::from(b))
            };
            let facts = RankFacts {
                node: text(&fact[..NAME_BYTES]),
                host: text(&fact[NAME_BYTES..2 * NAME_BYTES]),
                socket: number(2 * NAME_BYTES + 8) as u32,
            };
            (facts, number(2 * NAME_BYTES))
        })
        .unzip();
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: ranks are dealt in turns; neighbours would be on different nodes, and fewer nodes on others than before.
    #[test]
    fn ranks_are_dealt_over_a_list_of_nodes_in_blocks() {
        let on = |list: &str, size: u32| -> Vec<String> {
            let text = format!("global = '/a'\nnode_name = '{list}'");
            let options = Options::from_text(&text).unwrap();
            (0..size)
                .map(|rank| node_of(&options, rank, size).unwrap())
                .collect()
        };
        assert_eq!(on("a,b", 4), ["a", "a", "b", "b"]);
        assert_eq!(on("a, b,c", 4), ["a", "a", "b", "c"]);
        assert_eq!(on("a", 2), ["a", "a"]);
        assert_eq!(on("a,b,c", 2), ["a", "b"]);
        let options = Options::from_text("global = '/a'").unwrap();
        assert_eq!(node_of(&options, 0, 1), None);
    }
}
