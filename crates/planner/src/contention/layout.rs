//! Lays out the streams of a burst and their files.
//!
//! Invariants:
//! 1. Streams are sorted by their server; together their bytes are the bytes of the burst.
//! 2. The files of a server lie one behind the other, each contiguous: no file system does better.
//!
//! Not here: what happens to them.

use super::{Burst, Mode};
use crate::contention::parameters::Parameters;

/// The sequence of bytes from one node into one file of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamPlan {
    pub node: usize,
    /// The first rank whose images it holds; the others follow.
    pub rank: usize,
    pub server: usize,
    /// The offset of its file on the disk.
    pub at_bytes: u64,
    pub total_bytes: u64,
    /// Bytes of each image in it; all bytes if it is one image.
    pub image_bytes: u64,
    pub request_bytes: u64,
    /// Maximum number of requests in flight.
    pub window: u32,
}

/// The streams of a checked burst. Streams without bytes are left out.
pub(super) fn plan(parameters: &Parameters, burst: &Burst) -> Vec<StreamPlan> {
    let servers = burst.servers as usize;
    let ranks = burst.ranks_per_node as usize;
    let client = &parameters.client;
    let mut plans = Vec::new();
    for server in 0..servers {
        let mut end_bytes = 0;
        let mut add = |node, rank, total_bytes, image_bytes, request_bytes, window| {
            if total_bytes > 0 {
                plans.push(StreamPlan {
                    node,
                    rank,
                    server,
                    at_bytes: end_bytes,
                    total_bytes,
                    image_bytes,
                    request_bytes,
                    window,
                });
            }
            end_bytes += total_bytes;
        };
        for node in 0..burst.nodes as usize {
            // Nodes are assigned in turn, as in `Placement::balanced`.
            let own = node % servers == server;
            let bytes = burst.bytes_per_rank;
            match burst.mode {
                Mode::Traditional => {
                    for rank in 0..ranks {
                        // Ranks begin at different servers, so that short files are spread too.
                        let place = (server + servers - (node * ranks + rank) % servers) % servers;
                        let part = stripes(bytes, client.request_bytes, servers, place);
                        let rank = node * ranks + rank;
                        add(
                            node,
                            rank,
                            part,
                            part,
                            client.request_bytes,
                            client.in_flight,
                        );
                    }
                }
                Mode::Vertical if own => {
                    let request = client.vertical_request_bytes;
                    for rank in node * ranks..(node + 1) * ranks {
                        add(node, rank, bytes, bytes, request, client.in_flight);
                    }
                }
                Mode::Orchestrated if own => {
                    let total = bytes * u64::from(burst.ranks_per_node);
                    let server = &parameters.server;
                    let first = node * ranks;
                    add(
                        node,
                        first,
                        total,
                        bytes,
                        server.request_bytes,
                        server.window,
                    );
                }
                Mode::Vertical | Mode::Orchestrated => {}
            }
        }
    }
    plans
}

/// The bytes of a striped file on the server at this position of the round.
fn stripes(bytes: u64, stripe_bytes: u64, servers: usize, place: usize) -> u64 {
    let (servers, place) = (servers as u64, place as u64);
    let whole = bytes / stripe_bytes;
    let rounds = whole / servers;
    let own = rounds + u64::from(place < whole % servers);
    let rest = match place == whole % servers {
        true => bytes % stripe_bytes,
        false => 0,
    };
    own * stripe_bytes + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Breaks if: the rest of a file goes to another server than the next one in turn.
        #[test]
        fn stripes_are_those_of_dealing_them_out_one_by_one(bytes in 0u64..5000, stripe in 1u64..600, servers in 1usize..7) {
            let mut dealt = vec![0; servers];
            let mut left = bytes;
            for place in (0..servers).cycle() {
                let part = left.min(stripe);
                dealt[place] += part;
                left -= part;
                if left == 0 {
                    break;
                }
            }
            let computed: Vec<u64> = (0..servers).map(|place| stripes(bytes, stripe, servers, place)).collect();
            prop_assert_eq!(computed, dealt);
        }
    }

    proptest! {
        // Breaks if: a stream is dropped, or two files overlap.
        #[test]
        fn every_byte_has_one_place(
            mode in prop::sample::select(vec![Mode::Traditional, Mode::Vertical, Mode::Orchestrated]),
            nodes in 1u32..9, ranks in 1u32..5, servers in 1u32..6, bytes in 1u64..400_000
        ) {
            let burst = Burst { mode, nodes, ranks_per_node: ranks, servers, bytes_per_rank: bytes, cached: false };
            let plans = plan(&Parameters::default(), &burst);
            let total: u64 = plans.iter().map(|plan| plan.total_bytes).sum();
            prop_assert_eq!(total, bytes * u64::from(nodes * ranks));
            for pair in plans.windows(2) {
                let after = pair[0].at_bytes + pair[0].total_bytes;
                let expected = if pair[0].server == pair[1].server { after } else { 0 };
                prop_assert!(pair[0].server <= pair[1].server);
                prop_assert_eq!(pair[1].at_bytes, expected);
            }
        }
    }
}
