//! Checks options that depend on each other: contradictions and requirements.
//!
//! Not here: single values (`fields.rs`), and the options as a whole (`options.rs`).

use super::fields::{CompressName, EncryptName, ModeName, Raw, StartName, StoreName};
use super::{listed, range, within_limits};
use crate::options::kinds::{AgentKind, IntervalKind};
use orcheck_engine::replicas::ReplicaStore;
use orcheck_format::disk::Compression;
use orcheck_format::{Error, Result, count};
use orcheck_io::user::SecretSource;
use orcheck_placement::parity::Scheme;

/// `fresh = true` means the same as `start = 'fresh'`; other values of `start` contradict it.
pub(super) fn start(raw: &Raw) -> Result<()> {
    match raw.start {
        Some(start) if raw.fresh && start != StartName::Fresh => Err(Error::invalid(format!(
            "fresh = true and start = '{}' contradict each other",
            match start {
                StartName::Resume => "resume",
                _ => "auto",
            }
        ))
        .next("set start alone")),
        _ => Ok(()),
    }
}

/// Mean times between failures: at most one of the two, and one if the interval depends on it.
pub(super) fn mtbf(raw: &Raw) -> Result<()> {
    for (name, value) in [("mtbf_s", raw.mtbf_s), ("node_mtbf_s", raw.node_mtbf_s)] {
        if value != 0.0 {
            range(name, value, 1.0, 1e12)?;
        }
    }
    let given = [raw.mtbf_s, raw.node_mtbf_s].map(|value| value != 0.0);
    if !raw.level.is_empty() {
        return Ok(());
    }
    match (given, raw.interval) {
        ([true, true], _) => Err(Error::invalid(format!(
            "mtbf_s = {} and node_mtbf_s = {}: expected one of the two",
            raw.mtbf_s, raw.node_mtbf_s
        ))
        .next("keep mtbf_s, of the whole job, or node_mtbf_s, of each of its nodes")),
        ([false, false], IntervalKind::Auto) => Err(Error::invalid(
            "interval = \"auto\" without a mean time between failures",
        )
        .next("set node_mtbf_s, the mean time in seconds between failures of one node, or mtbf_s, of the whole job")),
        _ => Ok(()),
    }
}

/// Parity instead of replicas.
pub(super) fn protect(raw: &Raw) -> Result<Option<Scheme>> {
    let Some(text) = &raw.protect else {
        return Ok(None);
    };
    let scheme: Scheme = text.parse()?;
    if let Some(replicas) = raw.replicas {
        return Err(Error::invalid(format!(
            "protect = '{scheme}' and replicas = {replicas}: parity takes the place of replicas"
        ))
        .next("keep one of the two"));
    }
    if raw.peers > u32::from(scheme.parity) {
        return Err(Error::invalid(format!(
            "peers = {}, and protect = '{scheme}' survives the loss of {} in each group",
            raw.peers,
            count(scheme.parity.into(), "node")
        ))
        .next("set protect = 'rs=K+M' with M as large as peers, or leave peers out"));
    }
    Ok(Some(scheme))
}

/// The number of nodes that may be lost, and of replicas of each container.
pub(super) fn replicas(raw: &Raw, protect: Option<Scheme>, anywhere: bool) -> Result<(u32, u32)> {
    within_limits("peers", f64::from(raw.peers))?;
    let (peers, replicas, named) = match protect {
        Some(scheme) if raw.peers == 0 => {
            let named = format!("protect = '{scheme}'");
            (u32::from(scheme.parity), 0, named)
        }
        Some(_) => (raw.peers, 0, format!("peers = {}", raw.peers)),
        None => {
            let replicas = raw.replicas.unwrap_or(raw.peers);
            range("replicas", f64::from(replicas), f64::from(raw.peers), 255.0).map_err(
                |error| {
                    error.next(
                        "each loss of a node that `peers` promises to survive takes a replica",
                    )
                },
            )?;
            (raw.peers, replicas, format!("peers = {}", raw.peers))
        }
    };
    if peers == 0 {
        if replicas > 0 {
            return Err(
                Error::invalid(format!("replicas = {replicas} without peers"))
                    .next("set peers to the number of nodes that may be lost"),
            );
        }
        return Ok((0, 0));
    }
    if raw.node_dir.is_none() && anywhere {
        return Err(Error::invalid(format!("{named} without node_dir"))
            .next("set node_dir to a directory on each node's own disk"));
    }
    if raw.mode == ModeName::Traditional {
        let option = if protect.is_some() {
            "protect"
        } else {
            "peers"
        };
        return Err(Error::invalid(format!(
            "{option} does not go with mode = \"traditional\", whose containers are striped"
        ))
        .next("leave one of the two out"));
    }
    Ok((peers, replicas))
}

/// Where to keep replicas of other nodes.
pub(super) fn replica_store(name: StoreName, agent: AgentKind) -> Result<ReplicaStore> {
    let store = match name {
        StoreName::Disk => return Ok(ReplicaStore::Disk),
        StoreName::Memory => ReplicaStore::Memory,
        StoreName::Both => ReplicaStore::Both,
        StoreName::Spill => ReplicaStore::Spill,
    };
    // Breaks if: this is left out; the replicas would end with the ranks, and a killed job would
    // have none.
    if agent == AgentKind::Off {
        return Err(Error::invalid(
            "replicas in memory (replica_store) end with the process that has them, which is a rank",
        )
        .next("set agent = \"start\" or \"join\", or replica_store = \"disk\""));
    }
    Ok(store)
}

/// How to encode containers, and where the key comes from.
pub(super) fn encoding(raw: &Raw) -> Result<(Compression, bool, Vec<SecretSource>)> {
    let compression = match raw.compress {
        CompressName::None => Compression::None,
        CompressName::Zstd => Compression::Zstd,
        CompressName::Lz4 => Compression::Lz4,
    };
    let encrypt = raw.encrypt == EncryptName::Aes256Gcm;
    let encrypt_key = listed(raw.encrypt_key.as_ref())
        .map(SecretSource::parse)
        .collect::<Result<Vec<_>>>()
        .map_err(|error| error.at("encrypt_key"))?;
    if encrypt && encrypt_key.is_empty() {
        return Err(Error::invalid("encrypt = \"aes-256-gcm\" without a key")
            .next("set encrypt_key to file:PATH, keyring:NAME or env:NAME"));
    }
    if raw.mode == ModeName::Traditional && (encrypt || compression != Compression::None) {
        return Err(Error::invalid(
            "mode = \"traditional\" stores everything as it is; compress and encrypt must be \"none\" there",
        )
        .next("use mode orchestrated or vertical"));
    }
    Ok((compression, encrypt, encrypt_key))
}

/// Number of the signal that asks a process to end.
pub(super) const SIGTERM: i32 = 15;

/// The watched signal. Without one, no signal can request a stop.
pub(super) fn watched_signal(name: Option<&str>, stop: Option<bool>) -> Result<Option<i32>> {
    let name = name.filter(|name| !name.is_empty());
    if name.is_none() && stop == Some(true) {
        return Err(
            Error::invalid("signal_stop = true, but no signal is watched")
                .next("set `signal` too, or leave `signal_stop` out"),
        );
    }
    name.map(signal_number).transpose()
}

fn signal_number(name: &str) -> Result<i32> {
    // Numbers of Linux on x86-64 and Arm.
    match name.trim_start_matches("SIG") {
        "USR1" => Ok(10),
        "USR2" => Ok(12),
        "TERM" => Ok(SIGTERM),
        "HUP" => Ok(1),
        "XCPU" => Ok(24),
        _ => Err(Error::invalid(format!(
            "signal = '{name}'; allowed are USR1, USR2, TERM, HUP and XCPU"
        ))),
    }
}
