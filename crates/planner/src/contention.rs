//! Models contention: how long a burst of checkpoints takes on a few targets, in each of the three
//! modes.
//!
//! What it does: [`simulate`] follows every request of a burst of nodes × ranks from its node over
//! the network to the disk of a server, and reports when the last one is there. [`mod@closed_form`]
//! gives the same result without simulating, where a formula is exact except at the beginning and
//! the end. [`Calibration`] holds parameters, and measured bursts to compare with.
//! How: it simulates discrete events (`simulation.rs`) over streams (`layout.rs`), a fairly shared
//! network (`network.rs`), disks with seeks and a command queue (`disk.rs`) and page caches
//! (`cache.rs`). For the cost of a simulation, see [`STEPS_MAX`].
//!
//! The modes (Jin et al., CCGrid 2012, II-A to II-C and IV-B): - *traditional* (Figure 2): every
//! rank is a stream of its own at every server, in stripes that are dealt out in turn. - *vertical*
//! (Figure 3): every rank is one stream, to the server of its node; nodes are dealt out to servers
//! in turn. - *orchestrated* (Figure 4, Algorithm 1): a node is one stream, large requests; images
//! are staged one after the other while the one before is flushed; a server pulls from a bounded
//! number of streams.
//!
//! Assumptions:
//! 1. All ranks begin at the same time, or evenly spread over `begin_s` in an order unrelated to
//!    where their files are, and write the same amount. The time ends when the last node knows that
//!    everything is on a disk (the paper's metric, II-A: first request issued to last one
//!    complete). Coordination precedes it, and the commit record follows it.
//! 2. Links of nodes and servers are shared max-min fairly by their requests; the requests of a
//!    stream follow each other (like TCP, without losses and their cost). What is between the links
//!    is never full (a fat tree: IV-A).
//! 3. A stream has at most a stated number of requests in flight at a server, without a limit over
//!    all servers: a slow server does not keep a rank from the others. This favours traditional.
//! 4. A request reaches the disk, or the cache, when all of it has arrived.
//! 5. Files lie one behind the other on the disk, each contiguous, in the order of their ranks:
//!    alternating streams cost a positioning each time, but a short one. This favours traditional
//!    and vertical: real file systems scatter files.
//! 6. Without a cache, requests reach the disk as they come (II-A: "serviced in a round-robin
//!    manner for the sake of fairness"). The disk takes the nearest of the first few waiting
//!    requests, and continues without a positioning where the last one ended, even if it was idle
//!    in between. A positioning waits for half a rotation: the order ignores the angle.
//! 7. With a cache, requests are answered once they are in memory. Writers that find it full
//!    continue together, as fast as the disk writes. The cache merges adjacent data and writes
//!    files in turn; one fsync ends the burst. Metadata, journals and lock traffic cost nothing
//!    except what `fixed` says. This favours the cached baseline.
//! 8. Traditional and vertical write from the ranks' memory. Orchestrated pays for staging as far
//!    as the flush does not hide it: a node copies one image at a time (III, Algorithm 1).
//! 9. Requests have one size. That checkpointers write many small pieces (II-C: "the impact of
//!    small VFS writes") is not modelled, and orchestrated gets no credit for sparing the servers
//!    that.
//! 10. Processors are fast enough everywhere, and nothing fails.
//! 11. The cost of a checkpoint apart from its bytes (creating, naming and syncing files, the
//!     commit) is one number per mode, `fixed`: 0 unless it is given or was measured with small
//!     images ([`Case::parameters`]). It is added as if the bytes of others could hide none of it,
//!     and does not depend on nodes and ranks.
//!
//! Not here: I/O, clocks and randomness; a comparison with the figures of the papers
//! (`docs/contention.md`).

mod cache;
mod closed_form;
mod disk;
mod layout;
mod network;
mod parameters;
mod simulation;

use orcheck_format::{Error, Result};
use serde::{Deserialize, Serialize};

pub use closed_form::closed_form;
pub use parameters::{Calibration, Case, Client, Disk, Fixed, Network, Parameters, Server, Small};

/// Maximum number of steps of a simulation. A request costs [`REQUEST_STEPS`] and one for each pair
/// of a node and a server that may be on the wire, each link and each command among which the disk
/// chooses. Measured on one core of an AMD EPYC (release build): 0.2 to 0.7 µs per request with 32
/// × 8 ranks on 4 servers, 18 to 51 µs with 4,000 nodes. Bursts just below this number of steps
/// took 34 s (traditional, 32 × 8 ranks on 4) and 80 s (orchestrated, 4,001 nodes on 250).
const STEPS_MAX: u64 = 1 << 34;
const REQUEST_STEPS: u64 = 64;
/// Maximum number of streams of a burst, and of pairs of nodes and servers.
const STREAMS_MAX: u64 = 1 << 20;
/// Maximum number of requests in flight at the same time, which bounds memory: about 100 bytes
/// each.
const IN_FLIGHT_MAX: u64 = 1 << 24;
/// Maximum number of bytes of a burst, far from where sums overflow.
const BYTES_MAX: u64 = 1_000_000_000_000_000_000;

/// How a burst is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every rank is striped over all servers.
    Traditional,
    /// Every rank is whole on the server of its node.
    Vertical,
    /// One stream per node, pulled by its server.
    Orchestrated,
}

impl Mode {
    /// All modes, from the simplest to the most elaborate.
    pub const ALL: [Mode; 3] = [Mode::Traditional, Mode::Vertical, Mode::Orchestrated];

    /// The name in options and documents.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Traditional => "traditional",
            Mode::Vertical => "vertical",
            Mode::Orchestrated => "orchestrated",
        }
    }
}

/// A burst: every rank writes its bytes, all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// How it is written.
    pub mode: Mode,
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
    /// targets.
    pub servers: u32,
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Whether the servers have a page cache.
    pub cached: bool,
}

/// The result of a burst.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Seconds from the first request, or from the beginning of staging, until everything is on the
    /// disks and the nodes know it.
    pub time_s: f64,
    /// Number of streams that the busiest server serves at the same time (256 → 64 → 8 in the
    /// paper, IV-B).
    pub streams_per_server: u32,
    /// Number of requests that reached the disks; merged requests count once.
    pub disk_requests: u64,
    /// How often a disk had to move its head.
    pub positionings: u64,
    /// Fraction of the time, without what is fixed, in which the busiest disk was at work.
    pub disk_busy: f64,
}

impl Burst {
    /// The total number of bytes.
    pub fn total_bytes(&self) -> u64 {
        self.bytes_per_rank
            .saturating_mul(u64::from(self.nodes))
            .saturating_mul(u64::from(self.ranks_per_node))
    }

    /// Bytes per second of a burst that took this long.
    pub fn rate_bytes_per_s(&self, time_s: f64) -> f64 {
        self.total_bytes() as f64 / time_s
    }

    /// Checks that it can be simulated with these parameters.
    // tidy: long because it is one list of limits, each with its next step
    fn check(&self, parameters: &Parameters) -> Result<()> {
        for (name, value) in [
            ("nodes", u64::from(self.nodes)),
            ("ranks_per_node", u64::from(self.ranks_per_node)),
            ("servers", u64::from(self.servers)),
            ("bytes_per_rank", self.bytes_per_rank),
        ] {
            if value == 0 {
                return Err(Error::invalid(format!(
                    "{name} of a burst: expected 1 or more, found 0"
                )));
            }
        }
        let (nodes, servers) = (u64::from(self.nodes), u64::from(self.servers));
        let ranks = nodes * u64::from(self.ranks_per_node);
        let streams = servers.saturating_mul(ranks);
        if streams > STREAMS_MAX {
            return Err(Error::invalid(format!(
                "nodes × ranks × servers of a burst: expected at most {STREAMS_MAX}, found {streams}"
            ))
            .next("compute a part of the servers with their share of the nodes"));
        }
        let total_bytes = self.total_bytes();
        if total_bytes > BYTES_MAX {
            return Err(Error::invalid(format!(
                "bytes of a burst: expected at most {BYTES_MAX}, found {total_bytes}"
            ))
            .next("compute fewer bytes for each rank"));
        }
        let Parameters { client, server, .. } = parameters;
        let (request_bytes, window, request_name, window_name) = match self.mode {
            Mode::Traditional => (
                client.request_bytes,
                client.in_flight,
                "client.request_bytes",
                "client.in_flight",
            ),
            Mode::Vertical => (
                client.vertical_request_bytes,
                client.in_flight,
                "client.vertical_request_bytes",
                "client.in_flight",
            ),
            Mode::Orchestrated => (
                server.request_bytes,
                server.window,
                "server.request_bytes",
                "server.window",
            ),
        };
        let requests = self
            .bytes_per_rank
            .div_ceil(request_bytes)
            .saturating_mul(ranks);
        let in_flight = streams.saturating_mul(u64::from(window)).min(requests);
        if in_flight > IN_FLIGHT_MAX {
            return Err(Error::invalid(format!(
                "requests in flight of a burst: expected at most {IN_FLIGHT_MAX}, found {in_flight}"
            ))
            .next(format!("make {window_name} smaller")));
        }
        let pairs = match self.mode {
            Mode::Traditional => nodes * servers,
            Mode::Vertical | Mode::Orchestrated => nodes,
        };
        let waiting = u64::from(parameters.disk.queue_depth).min(in_flight);
        let runs = match self.cached {
            true => total_bytes.div_ceil(server.write_back_bytes.min(cache::LEAST_BYTES)),
            false => 0,
        };
        let each = REQUEST_STEPS + pairs + nodes + servers + waiting;
        let steps = requests.saturating_add(runs).saturating_mul(each);
        if steps > STEPS_MAX {
            return Err(Error::invalid(format!(
                "work of a burst: expected at most {STEPS_MAX} steps, which take minutes, found {steps} ({requests} requests and {runs} runs of a page cache, {each} steps each)"
            ))
            .next(format!(
                "compute fewer bytes, a part of the servers with their share of the nodes, or larger requests ({request_name}; cached: server.write_back_bytes)"
            )));
        }
        Ok(())
    }
}

/// Follows every request of a burst, and adds what is fixed.
///
/// # Errors
/// Invalid: a parameter out of range, an empty burst, or one that would take more than a few
/// minutes.
pub fn simulate(parameters: &Parameters, burst: &Burst) -> Result<Outcome> {
    parameters.check()?;
    burst.check(parameters)?;
    let mut outcome = simulation::run(parameters, burst);
    outcome.time_s += parameters.fixed.of(burst.mode);
    Ok(outcome)
}
