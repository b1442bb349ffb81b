//! Computes what can be said about a burst without simulating it.
//!
//! How: in the middle of a burst, the slowest of node links, server links and disks is always at
//! work. The time is the number of bytes that the fullest of each has to pass, divided by its rate.
//! The disk's share is counted in requests: each costs its transfer, plus a positioning wherever
//! streams alternate. The time before the slowest part has work, and after it is done, is added:
//! the copy of the first image, one request on each other part, and the latency both ways.
//!
//! Not here: whatever depends on the order of requests: a command queue that finds something near,
//! seeks that depend on the distance, commands shorter than requests, ranks that begin late, a page
//! cache, too few requests in flight to keep everything busy, nodes that lose their turn because
//! they stage more slowly than they could flush, turns that are not divided evenly among nodes.
//! There is no formula for these.

use orcheck_format::Result;

use super::layout::plan;
use super::{Burst, Mode};
use crate::contention::parameters::Parameters;

/// Minimum number of requests in flight at a server for which wire and disk can be assumed busy at
/// the same time.
const IN_FLIGHT_MIN: u64 = 4;

/// The time of a burst in seconds, if there is a formula.
///
/// # Errors
/// Invalid: as for [`super::simulate`].
// tidy: long because it is one derivation, from streams to the time of the burst
pub fn closed_form(parameters: &Parameters, burst: &Burst) -> Result<Option<f64>> {
    parameters.check()?;
    burst.check(parameters)?;
    let disk = &parameters.disk;
    let positioning_s = disk.seek_min_s + disk.rotation_s / 2.0;
    let as_they_come = disk.queue_depth == 1 && disk.seek_min_s == disk.seek_max_s;
    let sequential = positioning_s == 0.0 && disk.seek_max_s == 0.0;
    let begins_late = parameters.client.begin_s > 0.0;
    if burst.cached || begins_late || !(as_they_come || sequential) {
        return Ok(None);
    }
    let plans = plan(parameters, burst);
    let network = &parameters.network;
    let mut node_bytes = vec![0; burst.nodes as usize];
    let mut slowest = Slowest::default();
    for server in 0..burst.servers as usize {
        let first = plans.partition_point(|plan| plan.server < server);
        let own = &plans[first..];
        let own = &own[..own.partition_point(|plan| plan.server == server)];
        let turns = match burst.mode {
            Mode::Orchestrated => parameters.server.at_once as usize,
            Mode::Traditional | Mode::Vertical => own.len(),
        };
        if turns > 0 && own.len() > turns && !own.len().is_multiple_of(turns) {
            return Ok(None);
        }
        // Streams are equally long: those that have a turn end together, and the next ones begin.
        let mut passed = Slowest::default();
        for group in own.chunks(turns.max(1)) {
            if (group.len() as u64) * u64::from(group[0].window) < IN_FLIGHT_MIN {
                return Ok(None);
            }
            let mut bytes = 0;
            let mut requests = 0;
            let mut longest = 0;
            for stream in group {
                if stream.request_bytes > disk.command_bytes {
                    return Ok(None);
                }
                node_bytes[stream.node] += stream.total_bytes;
                bytes += stream.total_bytes;
                longest = longest.max(stream.total_bytes);
                let images = stream.total_bytes / stream.image_bytes;
                requests += images * stream.image_bytes.div_ceil(stream.request_bytes);
            }
            let positionings = match group.len() {
                1 => 1,
                _ => requests,
            };
            let disk_s = bytes as f64 / disk.rate_bytes_per_s
                + requests as f64 * disk.request_s
                + positionings as f64 * positioning_s;
            let wire_s = (bytes as f64 / network.server_rate_bytes_per_s)
                .max(longest as f64 / network.node_rate_bytes_per_s);
            passed.time_s += wire_s.max(disk_s);
            passed.on_wire |= wire_s > disk_s;
            passed.groups += 1;
        }
        if passed.time_s > slowest.time_s {
            slowest = passed;
        }
    }
    let most = node_bytes.into_iter().max().unwrap_or(0);
    let node_s = most as f64 / network.node_rate_bytes_per_s;
    if node_s > slowest.time_s {
        slowest = Slowest {
            time_s: node_s,
            on_wire: true,
            groups: 1,
        };
    }
    let request_bytes = plans
        .first()
        .map_or(0, |plan| plan.request_bytes.min(plan.image_bytes).min(most))
        as f64;
    let slower = network
        .node_rate_bytes_per_s
        .min(network.server_rate_bytes_per_s);
    // The part that is not the slowest is passed once, by the first request or the last one.
    let ends_s = match slowest.on_wire {
        true => request_bytes / disk.rate_bytes_per_s + disk.request_s + positioning_s,
        false => request_bytes / slower,
    };
    let fixed_s = parameters.fixed.of(burst.mode);
    let mut time_s = slowest.time_s + ends_s + 2.0 * network.latency_s + fixed_s;
    if burst.mode == Mode::Orchestrated && parameters.client.copy_rate_bytes_per_s > 0.0 {
        let Some(copy_s) = copy_s(parameters, burst, &slowest) else {
            return Ok(None);
        };
        time_s += copy_s;
    }
    Ok(Some(time_s))
}

/// The seconds that staging adds: for the first image, or for all if a node copies more slowly than
/// it flushes and has a turn all the time.
fn copy_s(parameters: &Parameters, burst: &Burst, flush: &Slowest) -> Option<f64> {
    let image_s = burst.bytes_per_rank as f64 / parameters.client.copy_rate_bytes_per_s;
    let images = f64::from(burst.ranks_per_node);
    if flush.groups > 1 && image_s * images > flush.time_s / f64::from(flush.groups) {
        return None;
    }
    // The last image is flushed after it is copied.
    Some(image_s.max(image_s * images + flush.time_s / images - flush.time_s))
}

/// The slowest part of a burst so far.
#[derive(Default)]
struct Slowest {
    time_s: f64,
    /// Whether it is a link, not a disk.
    on_wire: bool,
    /// How many groups have a turn one after the other.
    groups: u32,
}
