//! Exchanges which ranks are where: ranks report their node, host, socket and a digest of their
//! options.
//!
//! How: rank 0 receives a few bytes from each rank, which distinguish nodes, and broadcasts them as
//! runs of ranks. Longer facts are reported once for each node, by its lowest rank.
//!
//! Invariant: all ranks end with the same layout, or with the same error.
//!
//! Not here: how ranks form nodes and writers (`engine::node`).

use crate::collective::{Collective, agree, agree_min, bcast_bytes, number, rows};
use crate::options::Options;
use orcheck_engine::node::{Layout, MAX_LANES, Scheme};
use orcheck_format::{Error, NodeId, Rank, Result, crc64};
use orcheck_io::machine::{cpu_socket, cpuset, host_name};
use orcheck_io::user::SecretSource;
use std::collections::{BTreeMap, BTreeSet};

/// Length of the longest node and host name that travels.
const NAME_BYTES: usize = 64;
/// What rank 0 receives from each rank: a digest of its node's name and, with scheme `socket`, its
/// socket.
const NODE_BYTES: usize = 8;
const SOCKET_BYTES: usize = 4;

/// Exchanges which ranks are where, and finds ranks with different options.
pub(crate) fn exchange_facts(collective: &mut dyn Collective, options: &Options) -> Result<Layout> {
    let (rank, size) = (collective.rank(), collective.size());
    let host = host_name();
    let node = node_of(options, rank, size).unwrap_or_else(|| host.clone());
    let allowed = check_name(&node).and_then(|()| check_name(&host));
    compare_options(collective, options, allowed)?;

    let mut fact = crc64(node.as_bytes()).to_le_bytes().to_vec();
    if options.scheme == Scheme::Socket {
        let socket = cpuset().first().map_or(0, |&cpu| cpu_socket(cpu));
        fact.extend_from_slice(&socket.to_le_bytes());
    }
    let table = collective.gather(&fact, 0)?;
    let numbered = table.map_or_else(|| Ok(Vec::new()), |table| number_nodes(&table, &fact, size));
    let numbered = agree(collective, numbered)?;
    let runs = bcast_bytes(collective, encode_runs(&numbered), 0)?;
    let numbered = agree(collective, decode_runs(&runs, size))?;

    let own = numbered.get(rank.index()).map_or(0, |one| one.0);
    let count = numbered.iter().map(|one| one.0 + 1).max().unwrap_or(0);
    let lowest = numbered.iter().position(|one| one.0 == own);
    let mut names = [0; 2 * NAME_BYTES];
    names[..node.len()].copy_from_slice(node.as_bytes());
    names[NAME_BYTES..NAME_BYTES + host.len()].copy_from_slice(host.as_bytes());
    let mine = (lowest == Some(rank.index())).then_some((own as usize, &names[..]));
    let table = rows(collective, (count as usize, names.len()), mine)?;
    let names: Vec<(String, String)> = (table.chunks_exact(2 * NAME_BYTES))
        .map(|row| (text(&row[..NAME_BYTES]), text(&row[NAME_BYTES..])))
        .collect();
    let alike = match names.get(own as usize) {
        Some((name, _)) if *name != node => Err(Error::internal(format!(
            "nodes '{name}' and '{node}' were taken for one"
        ))),
        Some((_, first)) if *first != host => Err(Error::invalid(format!(
            "node name '{node}' is used on two hosts, '{first}' and '{host}'"
        ))
        .next("give every host its own ORCHECK_NODE, or unset it")),
        _ => Ok(()),
    };
    agree(collective, alike)?;
    let numbered = numbered
        .into_iter()
        .map(|(node, socket)| (NodeId(node), socket));
    let (node_of, sockets): (Vec<NodeId>, Vec<u32>) = numbered.unzip();
    let lanes = lanes_per_node(options, names.len());
    let modes = (options.mode, options.scheme);
    agree(
        collective,
        Layout::new(names, node_of, &sockets, modes, lanes),
    )
}

/// Fails on all ranks if `allowed` fails on one, or if their options differ.
fn compare_options(
    collective: &mut dyn Collective,
    options: &Options,
    allowed: Result<()>,
) -> Result<()> {
    let mut common = options.clone();
    common.node_name = None;
    common.given.clear();
    // The keys must be the same, and are compared separately; their sources may differ between
    // nodes.
    common
        .encrypt_key
        .fill(SecretSource::Environment(String::new()));
    let digest = crc64(format!("{common:?}").as_bytes()) as i64;
    let mut ends = [digest, !digest];
    agree_min(collective, allowed, &mut ends)?;
    if ends[0] == !ends[1] {
        return Ok(());
    }
    let mut first = digest.to_le_bytes();
    collective.bcast(&mut first, 0)?;
    let differs = i64::from_le_bytes(first) != digest;
    let mut other = [if differs {
        i64::from(collective.rank())
    } else {
        i64::MAX
    }];
    collective.allreduce_min(&mut other)?;
    Err(name_difference(collective, options, other[0] as u32)?)
}

/// From what all ranks reported: the node of each, numbered in the order of their lowest ranks, and
/// its socket.
fn number_nodes(table: &[u8], own: &[u8], size: u32) -> Result<Vec<(u32, u32)>> {
    if table.len() != size as usize * own.len() {
        return Err(Error::internal(format!(
            "the collective gathered {} bytes from {size} ranks, expected {}",
            table.len(),
            size as usize * own.len()
        )));
    }
    let mut known = BTreeMap::new();
    let facts = table.chunks_exact(own.len()).map(|fact| {
        let (node, socket) = fact.split_at(NODE_BYTES);
        let next = known.len() as u32;
        let at = *known.entry(number(node)).or_insert(next);
        let socket = socket.get(..SOCKET_BYTES).map_or(0, number);
        (at, socket as u32)
    });
    Ok(facts.collect())
}

/// Encodes runs of ranks on one node and socket: their number, the distance of the node from the
/// previous one, and the socket. If ranks are assigned to nodes in blocks, this takes a few bytes
/// per node; in turns, two or three bytes per rank.
fn encode_runs(numbered: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |mut value: u64| {
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    };
    let mut before = 0;
    for run in numbered.chunk_by(|a, b| a == b) {
        let (node, socket) = run[0];
        let further = i64::from(node) - before;
        before = i64::from(node);
        put(run.len() as u64);
        // The sign is in the lowest bit.
        put(((further << 1) ^ (further >> 63)) as u64);
        put(u64::from(socket));
    }
    bytes
}

fn decode_runs(bytes: &[u8], size: u32) -> Result<Vec<(u32, u32)>> {
    let mut values = Vec::new();
    let (mut value, mut shift) = (0u64, 0);
    for &byte in bytes {
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte < 0x80 {
            values.push(value);
            (value, shift) = (0, 0);
        }
    }
    let mut numbered: Vec<(u32, u32)> = Vec::with_capacity(size as usize);
    let mut node = 0i64;
    for run in values.chunks_exact(3) {
        node += (run[1] >> 1) as i64 ^ -((run[1] & 1) as i64);
        let left = u64::from(size) - numbered.len() as u64;
        let one = (node as u32, run[2] as u32);
        numbered.extend(std::iter::repeat_n(one, run[0].min(left) as usize));
    }
    if numbered.len() != size as usize {
        return Err(Error::internal(format!(
            "rank 0 told the nodes of {} ranks, expected {size}",
            numbered.len()
        )));
    }
    Ok(numbered)
}

fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// The name of this rank's node, if it is given: alone, or in a list over which the ranks are
/// distributed in blocks.
fn node_of(options: &Options, rank: Rank, size: u32) -> Option<String> {
    let names: Vec<&str> = options.node_name.as_deref()?.split(',').collect();
    let at = u64::from(rank) * names.len() as u64 / u64::from(size.max(1));
    names.get(at as usize).map(|name| name.trim().to_owned())
}

/// The error, the same on all ranks, that says how the options of rank `other` differ from those of
/// rank 0.
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

fn check_name(name: &str) -> Result<()> {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a run is attributed to another node, or its socket is lost.
    #[test]
    fn runs_of_ranks_come_out_as_they_went_in() {
        type Place = fn(u32) -> (u32, u32);
        let blocks: Place = |rank| (rank / 64, 0);
        let turns: Place = |rank| (rank % 1000, 0);
        let sockets: Place = |rank| (rank / 64, rank % 2);
        for (place, most_bytes) in [(blocks, 3000), (turns, 4 * 64_000), (sockets, 3 * 64_000)] {
            let numbered: Vec<(u32, u32)> = (0..64_000).map(place).collect();
            let bytes = encode_runs(&numbered);
            assert!(bytes.len() <= most_bytes, "{} bytes", bytes.len());
            assert_eq!(decode_runs(&bytes, 64_000), Ok(numbered));
            assert!(decode_runs(&bytes[..bytes.len() - 3], 64_000).is_err());
        }
    }

    // Breaks if: ranks are assigned in turns; neighbours would be on different nodes, and fewer
    // nodes on others than before.
    #[test]
    fn ranks_are_dealt_over_a_list_of_nodes_in_blocks() {
        let on = |list: &str, size: u32| -> Vec<String> {
            let text = format!("global = '/a'\nnode_name = '{list}'");
            let options = Options::from_text(&text).unwrap();
            (0..size)
                .map(|rank| node_of(&options, Rank(rank), size).unwrap())
                .collect()
        };
        assert_eq!(on("a,b", 4), ["a", "a", "b", "b"]);
        assert_eq!(on("a, b,c", 4), ["a", "a", "b", "c"]);
        assert_eq!(on("a", 2), ["a", "a"]);
        assert_eq!(on("a,b,c", 2), ["a", "b"]);
        let options = Options::from_text("global = '/a'").unwrap();
        assert_eq!(node_of(&options, Rank(0), 1), None);
    }
}
