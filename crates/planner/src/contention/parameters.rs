//! Defines the parameters of the contention model (machine, servers and disks), and result files
//! with measured bursts.
//!
//! Invariants:
//! 1. A field that is missing, unknown or out of range is an error that names it: nothing is filled
//!    in silently, except that what is fixed is 0 by default.
//! 2. There is one set of defaults, taken from the papers where they give a value; each field
//!    states its source. No field is fitted to a figure.
//!
//! Not here: what the parameters do (`simulation.rs` and below); reading files.

use orcheck_format::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Burst, Mode, simulate};

/// Largest rate, size or time that is accepted: keeps arithmetic away from infinities.
const NUMBER_MAX: f64 = 1e18;
/// Maximum number of requests of one stream in flight, of streams at once and of commands in a
/// disk's queue.
const COUNT_MAX: u32 = 1 << 16;
/// Minimum rate, in bytes per second: below it, times overflow.
const RATE_MIN: f64 = 1.0;
/// Minimum size of a request and of what a page cache writes at a time: a sector.
const REQUEST_MIN_BYTES: u64 = 512;

/// The parameters of the model. Their names are those of the tables and fields in TOML and JSON;
/// `docs/contention.md` describes them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Links.
    pub network: Network,
    /// The compute nodes.
    pub client: Client,
    /// The targets.
    pub server: Server,
    /// The disk of each server.
    pub disk: Disk,
    /// The time of a burst apart from its bytes.
    #[serde(default)]
    pub fixed: Fixed,
}

/// The time of a burst in seconds, apart from its bytes: creating, naming and syncing files, and
/// the commit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// In mode traditional.
    pub traditional_s: f64,
    /// In mode vertical.
    pub vertical_s: f64,
    /// In mode orchestrated.
    pub orchestrated_s: f64,
}

impl Fixed {
    /// For this mode.
    pub fn of(&self, mode: Mode) -> f64 {
        match mode {
            Mode::Traditional => self.traditional_s,
            Mode::Vertical => self.vertical_s,
            Mode::Orchestrated => self.orchestrated_s,
        }
    }

    /// The same number in every mode.
    pub fn all(seconds: f64) -> Self {
        Self {
            traditional_s: seconds,
            vertical_s: seconds,
            orchestrated_s: seconds,
        }
    }
}

/// One link for each node and each server; nothing between them can be full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Bytes per second that a node sends.
    pub node_rate_bytes_per_s: f64,
    /// Bytes per second that a server takes in.
    pub server_rate_bytes_per_s: f64,
    /// Seconds that a message takes one way, apart from its bytes.
    pub latency_s: f64,
}

/// A compute node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Traditional: bytes of a request, which is also the stripe.
    pub request_bytes: u64,
    /// Vertical: bytes of a request.
    pub vertical_request_bytes: u64,
    /// Traditional and vertical: requests of one rank in flight at each server.
    pub in_flight: u32,
    /// Orchestrated: bytes per second at which a node copies images to staging memory, one after
    /// the other; 0 if that is not part of the time.
    pub copy_rate_bytes_per_s: f64,
    /// Orchestrated: number of images that staging memory holds.
    pub stage_slots: u32,
    /// Seconds over which the ranks begin, evenly; 0: all at the same time. Not if images are
    /// copied one after the other.
    pub begin_s: f64,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Orchestrated: bytes of a request.
    pub request_bytes: u64,
    /// Orchestrated: number of streams that it takes in at the same time.
    pub at_once: u32,
    /// Orchestrated: requests of one stream in flight.
    pub window: u32,
    /// Cached: maximum number of dirty bytes.
    pub cache_bytes: u64,
    /// Cached: writeback begins beyond this many dirty bytes, or at the fsync.
    pub cache_background_bytes: u64,
    /// Cached: bytes of one file that are written before the next one has its turn.
    pub write_back_bytes: u64,
}

/// The disk of a server. A device without heads has no seek and no rotation time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Sequential rate, bytes per second.
    pub rate_bytes_per_s: f64,
    /// Seconds that every request takes, apart from its bytes.
    pub request_s: f64,
    /// Seconds of the shortest seek.
    pub seek_min_s: f64,
    /// Seconds of the seek over the whole span.
    pub seek_max_s: f64,
    /// Bytes of the whole span: a seek over d bytes takes min + (max − min)·√(d/span).
    pub span_bytes: u64,
    /// Seconds of a rotation; a positioning waits for half of one.
    pub rotation_s: f64,
    /// Number of commands among which the disk chooses the nearest; 1: in order.
    pub queue_depth: u32,
    /// Maximum number of bytes of a command; longer requests are several commands.
    pub command_bytes: u64,
}

impl Default for Network {
    /// 1 Gbit/s (Jin et al., IV-A); 117 MB/s of it remain for data in frames of 1,500 bytes; the
    /// latency is assumed.
    fn default() -> Self {
        Self {
            node_rate_bytes_per_s: 117e6,
            server_rate_bytes_per_s: 117e6,
            latency_s: 50e-6,
        }
    }
}

impl Default for Client {
    /// 64 KiB stripes (Jin et al., IV-A) and two images in staging memory (III-B). Assumed: the
    /// same requests in vertical mode, two in flight (one on the wire, one at the disk), 1 GB/s for
    /// a copy by one process of that time.
    fn default() -> Self {
        Self {
            request_bytes: 64 << 10,
            vertical_request_bytes: 64 << 10,
            in_flight: 2,
            copy_rate_bytes_per_s: 1e9,
            stage_slots: 2,
            begin_s: 0.0,
        }
    }
}

impl Default for Server {
    /// Chunks of 4 MiB (Ouyang et al.), 8 streams at a server (Jin et al., IV-B). Assumed: two
    /// requests of each; the kernel of that time, which keeps up to a fifth of the servers' 8 GB
    /// (IV-A) dirty, begins to write at a tenth, and writes 1,024 pages of a file before the next.
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
    /// 55 MB/s (Ouyang et al., the disk of a storage node), 250 GB (Jin et al., IV-A). Assumed, as
    /// usual for SATA disks of that size: 7,200 rotations per minute, seeks of 0.8 ms to the next
    /// track and 8.5 ms on average, which makes 15.2 ms over the whole span, command queueing of
    /// depth 32, 0.1 ms per command; and that the kernel does not split requests.
    fn default() -> Self {
        Self {
            rate_bytes_per_s: 55e6,
            request_s: 100e-6,
            seek_min_s: 0.8e-3,
            seek_max_s: 15.2e-3,
            span_bytes: 250_000_000_000,
            rotation_s: 60.0 / 7200.0,
            queue_depth: 32,
            command_bytes: 1 << 40,
        }
    }
}

impl Parameters {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// Invalid, with the name of the field, what was expected and what was found.
    // tidy: long because it is one list of fields and their ranges
    pub fn check(&self) -> Result<()> {
        let Parameters {
            network,
            client,
            server,
            disk,
            fixed,
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
            if !(RATE_MIN..=NUMBER_MAX).contains(&value) {
                return Err(refused(name, "1 byte a second or more", value));
            }
        }
        let copied = client.copy_rate_bytes_per_s;
        if copied != 0.0 && !(RATE_MIN..=NUMBER_MAX).contains(&copied) {
            let expected = "0, or 1 byte a second or more";
            return Err(refused("client.copy_rate_bytes_per_s", expected, copied));
        }
        for (name, value) in [
            ("network.latency_s", network.latency_s),
            ("client.begin_s", client.begin_s),
            ("disk.request_s", disk.request_s),
            ("disk.seek_min_s", disk.seek_min_s),
            ("disk.seek_max_s", disk.seek_max_s),
            ("disk.rotation_s", disk.rotation_s),
            ("fixed.traditional_s", fixed.traditional_s),
            ("fixed.vertical_s", fixed.vertical_s),
            ("fixed.orchestrated_s", fixed.orchestrated_s),
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
            ("server.write_back_bytes", server.write_back_bytes),
            ("disk.command_bytes", disk.command_bytes),
        ] {
            if value < REQUEST_MIN_BYTES || value as f64 > NUMBER_MAX {
                return Err(refused(name, "512 bytes (a sector) or more", value));
            }
        }
        let span_bytes = disk.span_bytes;
        if span_bytes == 0 || span_bytes as f64 > NUMBER_MAX {
            let expected = "a size of 1 byte or more";
            return Err(refused("disk.span_bytes", expected, span_bytes));
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
        if server.cache_bytes < largest || server.cache_bytes as f64 > NUMBER_MAX {
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

/// Parameters of one set-up, and the bursts that were measured on it: the key `model` of a result
/// file of `bench-contention` holds one of these or a list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// A description of the set-up, for the reader.
    #[serde(default)]
    pub name: String,
    /// Links.
    pub network: Network,
    /// Compute nodes.
    pub client: Client,
    /// targets.
    pub server: Server,
    /// Disks.
    pub disk: Disk,
    /// The time of a burst apart from its bytes, if its case has no small burst.
    #[serde(default)]
    pub fixed: Fixed,
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
            fixed: self.fixed.clone(),
        }
    }
}

/// A burst and its measured time. Other fields are for others and are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// How the burst was written.
    pub mode: Mode,
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
    /// targets.
    pub servers: u32,
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Whether the servers had a page cache; otherwise each request went to the disk as it came.
    pub cached: bool,
    /// Seconds from the first request to the end of the last, with the fsync.
    pub measured_s: f64,
    /// Seconds from the first rank that began to the last, if measured: `client.begin_s` of this
    /// burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin_s: Option<f64>,
    /// The same burst with almost empty images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small: Option<Small>,
}

/// A burst with small images, which shows what is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Small {
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Seconds that it took.
    pub measured_s: f64,
    /// As in [`Case`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin_s: Option<f64>,
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

    /// The parameters of this burst: its own values replace those of the set-up. What is fixed is
    /// the time of the small burst that its bytes do not explain.
    ///
    /// # Errors
    /// Invalid: a small burst that is not smaller, or that cannot be simulated.
    pub fn parameters(&self, setup: &Parameters) -> Result<Parameters> {
        let mut parameters = setup.clone();
        if let Some(small) = &self.small {
            if small.bytes_per_rank >= self.bytes_per_rank {
                let expected = format!("fewer than bytes_per_rank ({})", self.bytes_per_rank);
                let found = small.bytes_per_rank;
                return Err(refused("small.bytes_per_rank", &expected, found));
            }
            check_measured("small.measured_s", small.measured_s)?;
            parameters.fixed = Fixed::default();
            parameters.client.begin_s = small.begin_s.unwrap_or(setup.client.begin_s);
            let burst = Burst {
                bytes_per_rank: small.bytes_per_rank,
                ..self.burst()
            };
            let bytes_s = simulate(&parameters, &burst)?.time_s;
            parameters.fixed = Fixed::all((small.measured_s - bytes_s).max(0.0));
        }
        parameters.client.begin_s = self.begin_s.unwrap_or(setup.client.begin_s);
        Ok(parameters)
    }

    /// Checks that a burst can have taken the stated time.
    ///
    /// # Errors
    /// Invalid, with what was found.
    pub fn check(&self) -> Result<()> {
        check_measured("measured_s", self.measured_s)
    }
}

fn check_measured(name: &str, seconds: f64) -> Result<()> {
    match seconds > 0.0 && seconds <= NUMBER_MAX {
        true => Ok(()),
        false => Err(refused(name, "seconds above 0", seconds)),
    }
}
