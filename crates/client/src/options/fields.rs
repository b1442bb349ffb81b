//! Defines the TOML form of the options: names, types and defaults.
//!
//! Not here: what they mean together (`options.rs`).

use super::enabled::Enabled;
use crate::options::kinds::{
    AgentKind, Balance, Close, IncrementalKind, IntervalKind, Marshal, NetKind, Numa, OnLoss,
    Overrun,
};
use orcheck_format::{Error, Result};
use serde::Deserialize;
use std::path::PathBuf;
use strsim::levenshtein;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ModeName {
    Traditional,
    Vertical,
    Orchestrated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StartName {
    Auto,
    Resume,
    Fresh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SchemeName {
    Node,
    Socket,
    Core,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HugePagesName {
    Off,
    Transparent,
    Reserved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CompressName {
    None,
    Zstd,
    Lz4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum EncryptName {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoreName {
    Disk,
    Memory,
    Both,
    Spill,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Size {
    Bytes(u64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub(super) enabled: Enabled,
    pub(super) global: Option<OneOrMany>,
    pub(super) node_dir: Option<PathBuf>,
    pub(super) route_dir: Option<PathBuf>,
    pub(super) route_budget: Option<Size>,
    pub(super) node_name: Option<String>,
    pub(super) group: Option<String>,
    pub(super) pool: Option<Size>,
    pub(super) chunk: Option<Size>,
    pub(super) mode: ModeName,
    pub(super) scheme: SchemeName,
    pub(super) marshal: Marshal,
    pub(super) overrun: Overrun,
    pub(super) on_loss: OnLoss,
    pub(super) close: Close,
    pub(super) held_steps: u32,
    pub(super) uncommitted_steps: Option<u32>,
    pub(super) placement: Balance,
    pub(super) mapping: Option<PathBuf>,
    pub(super) lanes_per_node: u32,
    pub(super) direct: bool,
    pub(super) check_pool: bool,
    pub(super) pin: bool,
    pub(super) keep: u32,
    pub(super) strict: bool,
    pub(super) start: Option<StartName>,
    pub(super) fresh: bool,
    pub(super) take_over: bool,
    pub(super) take_over_wait_s: f64,
    pub(super) copy_threads: u32,
    pub(super) incremental: IncrementalKind,
    pub(super) incremental_chain: u32,
    pub(super) huge_pages: HugePagesName,
    pub(super) numa: Numa,
    pub(super) timeout_s: f64,
    pub(super) net: NetKind,
    pub(super) fan_out: u32,
    pub(super) net_encrypt: EncryptName,
    pub(super) every_steps: u64,
    pub(super) every_s: f64,
    pub(super) overhead_percent: f64,
    pub(super) interval: IntervalKind,
    pub(super) mtbf_s: f64,
    pub(super) node_mtbf_s: f64,
    pub(super) end_time_unix_s: Option<f64>,
    pub(super) end_margin_s: f64,
    pub(super) signal: Option<String>,
    pub(super) signal_stop: Option<bool>,
    pub(super) compress: CompressName,
    pub(super) compress_level: i32,
    pub(super) encrypt: EncryptName,
    pub(super) encrypt_key: Option<OneOrMany>,
    pub(super) accept: Option<OneOrMany>,
    pub(super) peers: u32,
    pub(super) replicas: Option<u32>,
    pub(super) protect: Option<String>,
    pub(super) topology: Option<PathBuf>,
    pub(super) replica_budget: Option<Size>,
    pub(super) replica_store: StoreName,
    pub(super) agent: AgentKind,
    pub(super) agent_program: PathBuf,
    pub(super) agent_linger_s: f64,
    pub(super) level: toml::Table,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            enabled: Enabled::Said(true),
            global: None,
            node_dir: None,
            route_dir: None,
            route_budget: None,
            node_name: None,
            group: None,
            pool: None,
            chunk: None,
            mode: ModeName::Orchestrated,
            scheme: SchemeName::Node,
            marshal: Marshal::Auto,
            overrun: Overrun::Wait,
            on_loss: OnLoss::Warn,
            close: Close::Safe,
            held_steps: 1,
            uncommitted_steps: None,
            placement: Balance::Balanced,
            mapping: None,
            lanes_per_node: 0,
            direct: true,
            check_pool: false,
            pin: true,
            keep: 2,
            strict: false,
            start: None,
            fresh: false,
            take_over: false,
            take_over_wait_s: 10.0,
            copy_threads: 1,
            incremental: IncrementalKind::Off,
            incremental_chain: 8,
            huge_pages: HugePagesName::Off,
            numa: Numa::Auto,
            timeout_s: 600.0,
            net: NetKind::Auto,
            fan_out: 64,
            net_encrypt: EncryptName::None,
            every_steps: 0,
            every_s: 0.0,
            overhead_percent: 0.0,
            interval: IntervalKind::Off,
            mtbf_s: 0.0,
            node_mtbf_s: 0.0,
            end_time_unix_s: None,
            end_margin_s: 120.0,
            signal: None,
            signal_stop: None,
            compress: CompressName::None,
            compress_level: 1,
            encrypt: EncryptName::None,
            encrypt_key: None,
            accept: None,
            peers: 0,
            replicas: None,
            protect: None,
            topology: None,
            replica_budget: None,
            replica_store: StoreName::Disk,
            agent: AgentKind::Off,
            agent_program: PathBuf::from("orcheck"),
            agent_linger_s: 600.0,
            level: toml::Table::new(),
        }
    }
}

pub(super) const NAMES: [&str; 62] = [
    "enabled",
    "global",
    "node_dir",
    "route_dir",
    "route_budget",
    "node_name",
    "group",
    "pool",
    "chunk",
    "mode",
    "scheme",
    "marshal",
    "overrun",
    "on_loss",
    "close",
    "held_steps",
    "uncommitted_steps",
    "placement",
    "mapping",
    "lanes_per_node",
    "direct",
    "check_pool",
    "pin",
    "keep",
    "strict",
    "start",
    "fresh",
    "take_over",
    "take_over_wait_s",
    "copy_threads",
    "incremental",
    "incremental_chain",
    "huge_pages",
    "numa",
    "timeout_s",
    "net",
    "fan_out",
    "net_encrypt",
    "every_steps",
    "every_s",
    "overhead_percent",
    "interval",
    "mtbf_s",
    "node_mtbf_s",
    "end_time_unix_s",
    "end_margin_s",
    "signal",
    "signal_stop",
    "compress",
    "compress_level",
    "encrypt",
    "encrypt_key",
    "accept",
    "peers",
    "replicas",
    "protect",
    "topology",
    "replica_budget",
    "replica_store",
    "agent",
    "agent_program",
    "agent_linger_s",
];

impl Size {
    pub(super) fn bytes(&self, name: &str) -> Result<u64> {
        let text = match self {
            Self::Bytes(bytes) => return Ok(*bytes),
            Self::Text(text) => text.trim(),
        };
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let unit = match text[digits..].trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => 0,
        };
        text[..digits]
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .filter(|_| unit > 0)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{name} = '{text}' is not a size; write 64 MiB, 2 GiB or a number of bytes"
                ))
            })
    }
}

/// The option with the closest name, if it is close.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    NAMES
        .iter()
        .map(|&known| (levenshtein(name, known), known))
        .min()
        .filter(|&(distance, known)| distance <= known.len() / 2)
        .map(|(_, known)| known)
}
