//! What the contention model is told: machine, servers and disks; and a result file with bursts that were measured.
//!
//! Invariants:
//! 1. A field that is missing, unknown or out of its range is an error that names it: nothing is filled in quietly.
//! 2. The default is one set, from the documents where they say something; each field says where it is from. No field is
//!    fitted to a figure.
//!
//! Not here: what the parameters do (`simulation.rs` and below); reading files.

use orcheck_format::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Burst, Mode};

/// Largest rate, size or time that is taken for meant: keeps arithmetic away from infinities.
const NUMBER_MAX: f64 = 1e18;
/// Requests of one stream in flight, streams at once and commands in a disk's queue: at most.
const COUNT_MAX: u32 = 1 << 16;

/// The parameters of the model. Their names are those of the tables and fields in TOML and JSON; `docs/contention.md` has them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Links.
    pub network: Network,
    /// What a compute node does.
    pub client: Client,
    /// What an I/O server does.
    pub server: Server,
    /// The disk of each server.
    pub disk: Disk,
}

/// One link for each node and each server, and nothing between them that could be full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Bytes per second that a node sends.
    pub node_rate_bytes_per_s: f64,
    /// Bytes per second that a server takes in.
    pub server_rate_bytes_per_s: f64,
    /// Seconds that a message takes one way besides.
    pub latency_s: f64,
}

/// A compute node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Traditional: bytes of a request, which is the stripe too.
    pub request_bytes: u64,
    /// Vertical: bytes of a request.
    pub vertical_request_bytes: u64,
    /// Traditional and vertical: requests of one rank in flight at each server.
    pub in_flight: u32,
    /// Orchestrated: bytes per second at which a node copies images to staging memory, one after the other; 0 where that is
    /// not part of the time.
    pub copy_rate_bytes_per_s: f64,
    /// Orchestrated: images that staging memory holds.
    pub stage_slots: u32,
}

/// An I/O server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Orchestrated: bytes of a request.
    pub request_bytes: u64,
    /// Orchestrated: streams that it takes in at the same time.
    pub at_once: u32,
    /// Orchestrated: requests of one stream in flight.
    pub window: u32,
    /// Cached: dirty bytes that it holds at most.
    pub cache_bytes: u64,
    /// Cached: writing back begins beyond so many dirty bytes, or at the fsync.
    pub cache_background_bytes: u64,
    /// Cached: bytes of one file that are written before the next one has its turn.
    pub write_back_bytes: u64,
}

/// The disk of a server. A device without heads has no seek and no rotation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Bytes per second in one piece.
    pub rate_bytes_per_s: f64,
    /// Seconds that every request takes besides.
    pub request_s: f64,
    /// Seconds of the shortest seek.
    pub seek_min_s: f64,
    /// Seconds of the seek over the whole span.
    pub seek_max_s: f64,
    /// Bytes of the whole span: a seek over d bytes takes min + (max − min)·√(d/span).
    pub span_bytes: u64,
    /// Seconds of a turn; a positioning waits for half of one.
    pub rotation_s: f64,
    /// Commands among which the disk chooses the nearest; 1: as they come.
    pub queue_depth: u32,
}

impl Default for Network {
    /// 1 Gbit/s (Jin et al., IV-A), of which 117 MB/s are left for data in frames of 1,500 bytes; the latency is assumed.
    fn default() -> Self {
        Self {
            node_rate_bytes_per_s: 117e6,
            server_rate_bytes_per_s: 117e6,
            latency_s: 50e-6,
        }
    }
}

impl Default for Client {
    /// 64 KiB stripes (Jin et al., IV-A) and two images in staging memory (III-B). Assumed: the same requests in vertical mode,
    /// two in flight (one on the wire, one at the disk), 1 GB/s for a copy by one process of that time.
    fn default() -> Self {
        Self {
            request_bytes: 64 << 10,
            vertical_request_bytes: 64 << 10,
            in_flight: 2,
            copy_rate_bytes_per_s: 1e9,
            stage_slots: 2,
        }
    }
}

impl Default for Server {
    /// Chunks of 4 MiB (Ouyang et al.), 8 streams at a server (Jin et al., IV-B). Assumed: two requests of each; the kernel of
    /// that time, which keeps up to a fifth of the servers' 8 GB (IV-A) dirty, begins to write at a tenth, and writes 1,024
    /// pages of a file before the next.
    fn default() -> Self {
        Self {
            request_bytes: 4 << 20,
            at_once: 8,
            window: 2,
            cache_bytes: 1_600_000_000,
            cache_background_bytes: 800_000_000,
            write_back_bytes: 4 << 20,
        }
    }
}

impl Default for Disk {
    /// 55 MB/s (Ouyang et al., the disk of a storage node), 250 GB (Jin et al., IV-A). Assumed, as usual for SATA disks of that
    /// size: 7,200 turns a minute, seeks of 0.8 ms to the next track and 8.5 ms on average, which makes 15.2 ms over all of it,
    /// command queueing of depth 32, 0.1 ms a command.
    fn default() -> Self {
        Self {
            rate_bytes_per_s: 55e6,
            request_s: 100e-6,
            seek_min_s: 0.8e-3,
            seek_max_s: 15.2e-3,
            span_bytes: 250_000_000_000,
            rotation_s: 60.0 / 7200.0,
            queue_depth: 32,
        }
    }
}

impl Parameters {
    /// Whether every field is in its range.
    ///
    /// # Errors
    /// Invalid, with the name of the field, what was expected and what was found.
    pub fn check(&self) -> Result<()> {
        let Parameters {
            network,
            client,
            server,
            disk,
        } = self;
        for (name, value) in [
            (
                "network.node_rate_bytes_per_s",
                network.node_rate_bytes_per_s,
            ),
            (
                "network.server_rate_bytes_per_s",
                network.server_rate_bytes_per_s,
            ),
            ("disk.rate_bytes_per_s", disk.rate_bytes_per_s),
        ] {
            if !(value > 0.0 && value <= NUMBER_MAX) {
                return Err(refused(name, "a rate above 0", value));
            }
        }
        for (name, value) in [
            ("network.latency_s", network.latency_s),
            ("client.copy_rate_bytes_per_s", client.copy_rate_bytes_per_s),
            ("disk.request_s", disk.request_s),
            ("disk.seek_min_s", disk.seek_min_s),
            ("disk.seek_max_s", disk.seek_max_s),
            ("disk.rotation_s", disk.rotation_s),
        ] {
            if !(0.0..=NUMBER_MAX).contains(&value) {
                return Err(refused(name, "0 or more", value));
            }
        }
        for (name, value) in [
            ("client.request_bytes", client.request_bytes),
            (
                "client.vertical_request_bytes",
                client.vertical_request_bytes,
            ),
            ("server.request_bytes", server.request_bytes),
            ("server.cache_bytes", server.cache_bytes),
            ("server.write_back_bytes", server.write_back_bytes),
            ("disk.span_bytes", disk.span_bytes),
        ] {
            if value == 0 || value as f64 > NUMBER_MAX {
                return Err(refused(name, "a size of 1 byte or more", value));
            }
        }
        for (name, value) in [
            ("client.in_flight", client.in_flight),
            ("client.stage_slots", client.stage_slots),
            ("server.at_once", server.at_once),
            ("server.window", server.window),
            ("disk.queue_depth", disk.queue_depth),
        ] {
            if !(1..=COUNT_MAX).contains(&value) {
                return Err(refused(name, "a number from 1 to 65536", value));
            }
        }
        if disk.seek_max_s < disk.seek_min_s {
            return Err(refused(
                "disk.seek_max_s",
                "disk.seek_min_s or more",
                disk.seek_max_s,
            ));
        }
        let largest = client
            .request_bytes
            .max(client.vertical_request_bytes)
            .max(server.request_bytes);
        if server.cache_bytes < largest {
            return Err(refused(
                "server.cache_bytes",
                "room for the largest request",
                server.cache_bytes,
            ));
        }
        Ok(())
    }
}

fn refused(name: &str, expected: &str, found: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{name}: expected {expected}, found {found}"))
}

/// Parameters of one set-up, and the bursts that were measured on it: the key `model` of a result file of `bench-contention`
/// is one of these or a list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// What set-up it is, for the reader.
    #[serde(default)]
    pub name: String,
    /// Links.
    pub network: Network,
    /// Compute nodes.
    pub client: Client,
    /// I/O servers.
    pub server: Server,
    /// Disks.
    pub disk: Disk,
    /// What was measured.
    pub cases: Vec<Case>,
}

impl Calibration {
    /// The parameters alone.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            network: self.network.clone(),
            client: self.client.clone(),
            server: self.server.clone(),
            disk: self.disk.clone(),
        }
    }
}

/// A burst and how long it took. Further fields are for others and are not looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// How the burst was written.
    pub mode: Mode,
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
    /// I/O servers.
    pub servers: u32,
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Whether the servers had a page cache; else each request went to the disk as it came.
    pub cached: bool,
    /// Seconds from the first request to the end of the last, with the fsync.
    pub measured_s: f64,
}

impl Case {
    /// The burst alone.
    pub fn burst(&self) -> Burst {
        Burst {
            mode: self.mode,
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            servers: self.servers,
            bytes_per_rank: self.bytes_per_rank,
            cached: self.cached,
        }
    }
}
