//! Contention: how long a burst of checkpoints takes on a few I/O servers, in each of the three modes.
//!
//! What it does: [`simulate`] follows every request of a burst of nodes × ranks from its node over the network to the disk of a
//! server and tells when the last one is there; [`closed_form`] says the same without simulating, where a formula is exact but
//! for the beginning and the end; [`Calibration`] has parameters and measured bursts to compare with.
//! How: discrete events (`simulation.rs`) over streams (`layout.rs`), a network that is shared fairly (`network.rs`), disks with
//! seeks and a command queue (`disk.rs`) and page caches (`cache.rs`). A burst of a million requests takes seconds.
//!
//! The modes (Jin et al., CCGrid 2012, II-A to II-C and IV-B):
//! - *traditional* (Figure 2): every rank is a stream of its own at every server, in stripes that are dealt out in turn.
//! - *vertical* (Figure 3): every rank is one stream, to the server of its node; nodes are dealt out to servers in turn.
//! - *orchestrated* (Figure 4, Algorithm 1): a node is one stream, large requests; images are staged one after the other while
//!   the one before is flushed; a server pulls from a bounded number of streams.
//!
//! Assumptions:
//! 1. All ranks begin at the same time, in an order that has nothing to do with where their files lie, and have equally much to
//!    write. The time is from then on to the moment at which the last node knows that everything is on a disk (the paper's
//!    metric, II-A: first request issued to last one complete). Coordination is before it, the commit record after it.
//! 2. Links of nodes and servers are shared max-min fairly by the requests on them, each of a stream's after the one before
//!    (as TCP does it, without losses and their cost); what is between the links is never full (a fat tree: IV-A).
//! 3. A stream has at most a stated number of requests in flight at a server, and no limit over all servers together: a slow
//!    server does not keep a rank from the others. This favours traditional.
//! 4. A request reaches the disk, or the cache, when all of it has arrived.
//! 5. Files lie one behind the other on the disk, each in one piece, in the order of their ranks: streams that take turns cost a
//!    positioning each time, but a short one. This favours traditional and vertical: real file systems scatter.
//! 6. Without a cache, requests reach the disk as they come (II-A: "serviced in a round-robin manner for the sake of fairness").
//!    The disk takes the nearest of the first few that wait, and goes on without a positioning where the last one ended, also if
//!    it stood idle in between. A positioning waits for half a turn: the order does not look at the angle.
//! 7. With a cache, requests are answered once they are in memory; it merges what is adjacent and writes files in turn; one fsync
//!    ends the burst. Metadata, journals and lock traffic cost nothing. This favours the cached baseline.
//! 8. Traditional and vertical write from the ranks' memory. Orchestrated pays for staging, as far as it is not hidden behind
//!    the flush: a node copies one image at a time (III, Algorithm 1).
//! 9. Requests have one size. That checkpointers write many small pieces (II-C: "the impact of small VFS writes") is not
//!    modelled, and orchestrated gets no credit for sparing the servers that.
//! 10. Processors are fast enough everywhere, and nothing fails.
//!
//! Not here: I/O, clocks and randomness; how the figures of the documents compare (`docs/contention.md`).

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
pub use parameters::{Calibration, Case, Client, Disk, Network, Parameters, Server};

/// Requests of a burst, at most: what takes minutes to simulate.
const REQUESTS_MAX: u64 = 1 << 26;
/// Streams of a burst, and pairs of nodes and servers, at most.
const STREAMS_MAX: u64 = 1 << 20;

/// How a burst is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every rank in stripes over all servers.
    Traditional,
    /// Every rank whole on the server of its node.
    Vertical,
    /// One stream a node, pulled by its server.
    Orchestrated,
}

impl Mode {
    /// All of them, in the order in which each one goes further than the one before.
    pub const ALL: [Mode; 3] = [Mode::Traditional, Mode::Vertical, Mode::Orchestrated];

    /// As in options and documents.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Traditional => "traditional",
            Mode::Vertical => "vertical",
            Mode::Orchestrated => "orchestrated",
        }
    }
}

/// What is written: every rank its bytes, all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// How it is written.
    pub mode: Mode,
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
    /// I/O servers.
    pub servers: u32,
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Whether the servers have a page cache.
    pub cached: bool,
}

/// What came of a burst.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Seconds from the first request, or from the begin of staging, until all is on the disks and the nodes know.
    pub time_s: f64,
    /// Streams that the busiest server serves at the same time (256 → 64 → 8 in the paper, IV-B).
    pub streams_per_server: u32,
    /// Requests that reached the disks: what was merged counts once.
    pub disk_requests: u64,
    /// How often a disk had to move its head.
    pub positionings: u64,
    /// Share of the time in which the busiest disk was at work.
    pub disk_busy: f64,
}

impl Burst {
    /// All bytes of it.
    pub fn total_bytes(&self) -> u64 {
        self.bytes_per_rank
            .saturating_mul(u64::from(self.nodes))
            .saturating_mul(u64::from(self.ranks_per_node))
    }

    /// Whether it can be simulated with these parameters.
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
        let streams = u64::from(self.servers)
            .saturating_mul(u64::from(self.nodes))
            .saturating_mul(u64::from(self.ranks_per_node));
        if streams > STREAMS_MAX {
            return Err(Error::invalid(format!(
                "nodes × ranks × servers of a burst: expected at most {STREAMS_MAX}, found {streams}; compute a part of the servers with their share of the nodes"
            )));
        }
        let request_bytes = match self.mode {
            Mode::Traditional => parameters.client.request_bytes,
            Mode::Vertical => parameters.client.vertical_request_bytes,
            Mode::Orchestrated => parameters.server.request_bytes,
        };
        let requests = self
            .bytes_per_rank
            .div_ceil(request_bytes)
            .saturating_mul(u64::from(self.nodes) * u64::from(self.ranks_per_node));
        if requests > REQUESTS_MAX {
            return Err(Error::invalid(format!(
                "requests of a burst: expected at most {REQUESTS_MAX}, found {requests}; compute fewer bytes or larger requests"
            )));
        }
        Ok(())
    }
}

/// Follows every request of a burst.
///
/// # Errors
/// Invalid: a parameter out of its range, a burst of nothing, or one of more than 2^26 requests or 2^20 streams.
pub fn simulate(parameters: &Parameters, burst: &Burst) -> Result<Outcome> {
    parameters.check()?;
    burst.check(parameters)?;
    Ok(simulation::run(parameters, burst))
}
