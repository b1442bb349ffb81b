//! Models the network: one link for each node and each server, shared fairly by the transfers on
//! the wire.
//!
//! How: transfers between the same two ends are alike and form a *pair*. The rate of a transfer is
//! max-min fair (the fullest link is shared evenly by its transfers, then the next), and is
//! computed again only when the number of transfers of a pair has changed. Within a pair all get
//! the same rate, so one count of the bytes that each has received and a heap of the counts at
//! which they end are enough: a transfer costs the logarithm of their number.
//!
//! Invariants:
//! 1. The rates through a link add up to no more than its capacity, and every transfer passes at
//!    least one full link.
//! 2. Time does not go back; a transfer ends when all its bytes have passed, to a thousandth of a
//!    byte.
//!
//! Not here: latency (`simulation.rs` adds it), what is sent when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of bytes that counts as zero: rounding errors of sums.
const NOTHING_BYTES: f64 = 1e-3;

/// A transfer: where in its pair's count it ends, and a number that keeps equal ones in order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct End {
    at_bytes: f64,
    order: u64,
    stream: u32,
}

impl Eq for End {}

impl Ord for End {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let bytes = self.at_bytes.total_cmp(&other.at_bytes);
        bytes.then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The transfers between one node and one server.
#[derive(Debug, Default)]
struct Pair {
    node: usize,
    server: usize,
    /// Bytes that each of them has received since there were none.
    passed_bytes: f64,
    rate_bytes_per_s: f64,
    /// The number of transfers for which the rates were computed.
    shared_by: usize,
    ends: BinaryHeap<Reverse<End>>,
}

impl Pair {
    /// Seconds until its next transfer ends.
    fn next_s(&self) -> f64 {
        self.ends.peek().map_or(f64::INFINITY, |Reverse(end)| {
            ((end.at_bytes - self.passed_bytes) / self.rate_bytes_per_s).max(0.0)
        })
    }
}

/// The capacity left on a link while rates are computed.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    left_bytes_per_s: f64,
    transfers: usize,
}

/// The links and the transfers on the wire.
#[derive(Debug)]
pub(super) struct Wire {
    node_rate_bytes_per_s: f64,
    server_rate_bytes_per_s: f64,
    pairs: Vec<Pair>,
    /// Pair of each node and server, node by node.
    pair_of: Vec<u32>,
    servers: usize,
    /// Pairs with transfers, or that had some when the rates were computed.
    busy: Vec<u32>,
    /// Number of pairs whose number of transfers has changed since the rates were computed.
    changed: usize,
    now_s: f64,
    /// Seconds until the end of the next transfer, as last computed.
    soonest_s: f64,
    started: u64,
    /// Nodes, then servers.
    links: Vec<Link>,
}

const NO_PAIR: u32 = u32::MAX;

impl Wire {
    /// Links of these rates, without transfers.
    pub(super) fn new(nodes: usize, servers: usize, node_rate: f64, server_rate: f64) -> Self {
        Self {
            node_rate_bytes_per_s: node_rate,
            server_rate_bytes_per_s: server_rate,
            pairs: Vec::new(),
            pair_of: vec![NO_PAIR; nodes * servers],
            servers,
            busy: Vec::new(),
            changed: 0,
            now_s: 0.0,
            soonest_s: f64::INFINITY,
            started: 0,
            links: vec![Link::default(); nodes + servers],
        }
    }

    /// Puts bytes of a stream on the wire at the present time.
    pub(super) fn send(&mut self, node: usize, server: usize, len_bytes: u64, stream: u32) {
        let slot = &mut self.pair_of[node * self.servers + server];
        if *slot == NO_PAIR {
            *slot = self.pairs.len() as u32;
            self.pairs.push(Pair {
                node,
                server,
                ..Pair::default()
            });
        }
        let index = *slot;
        let pair = &mut self.pairs[index as usize];
        if pair.ends.is_empty() {
            pair.passed_bytes = 0.0;
            if pair.shared_by == 0 {
                self.busy.push(index);
            }
        }
        let equal = pair.ends.len() == pair.shared_by;
        pair.ends.push(Reverse(End {
            at_bytes: pair.passed_bytes + len_bytes as f64,
            order: self.started,
            stream,
        }));
        self.started += 1;
        let equal_now = pair.ends.len() == pair.shared_by;
        self.changed = self.changed + usize::from(equal) - usize::from(equal_now);
    }

    /// When the next transfer ends, in seconds from the start; infinity if nothing is on the wire.
    pub(super) fn next_s(&mut self) -> f64 {
        if self.changed > 0 {
            self.share();
        }
        let pairs = self.busy.iter().map(|&pair| &self.pairs[pair as usize]);
        self.soonest_s = pairs.map(Pair::next_s).fold(f64::INFINITY, f64::min);
        self.now_s + self.soonest_s
    }

    /// Advances to a time not after [`Wire::next_s`]; returns the streams whose transfers have
    /// ended by then.
    pub(super) fn advance(&mut self, to_s: f64, ended: &mut Vec<u32>) {
        let passed_s = to_s - self.now_s;
        // Because of rounding, a transfer that ends now could be left with a few bytes, and time
        // would stand still.
        let due_s = match to_s >= self.now_s + self.soonest_s {
            true => self.soonest_s * (1.0 + 1e-9),
            false => -1.0,
        };
        self.now_s = to_s;
        for &index in &self.busy {
            let pair = &mut self.pairs[index as usize];
            let equal = pair.ends.len() == pair.shared_by;
            let due = pair.next_s() <= due_s;
            pair.passed_bytes += pair.rate_bytes_per_s * passed_s;
            if due && let Some(Reverse(first)) = pair.ends.peek() {
                pair.passed_bytes = pair.passed_bytes.max(first.at_bytes);
            }
            while let Some(Reverse(end)) = pair.ends.peek() {
                if end.at_bytes > pair.passed_bytes + NOTHING_BYTES {
                    break;
                }
                ended.push(end.stream);
                pair.ends.pop();
            }
            let equal_now = pair.ends.len() == pair.shared_by;
            self.changed = self.changed + usize::from(equal) - usize::from(equal_now);
        }
    }

    /// Computes all rates.
    fn share(&mut self) {
        let nodes = self.links.len() - self.servers;
        let pairs = &mut self.pairs;
        self.busy
            .retain(|&index| match pairs[index as usize].ends.len() {
                0 => {
                    pairs[index as usize].shared_by = 0;
                    false
                }
                _ => true,
            });
        for (number, link) in self.links.iter_mut().enumerate() {
            link.transfers = 0;
            link.left_bytes_per_s = match number < nodes {
                true => self.node_rate_bytes_per_s,
                false => self.server_rate_bytes_per_s,
            };
        }
        for &index in &self.busy {
            let pair = &mut pairs[index as usize];
            pair.shared_by = pair.ends.len();
            self.links[pair.node].transfers += pair.shared_by;
            self.links[nodes + pair.server].transfers += pair.shared_by;
        }
        self.changed = 0;
        let mut open = self.busy.clone();
        while !open.is_empty() {
            let shares = self.links.iter().filter(|link| link.transfers > 0);
            let share = shares
                .map(|link| link.left_bytes_per_s / link.transfers as f64)
                .fold(f64::INFINITY, f64::min);
            let full: Vec<bool> = self
                .links
                .iter()
                .map(|link| link.left_bytes_per_s <= share * link.transfers as f64 * (1.0 + 1e-9))
                .collect();
            let links = &mut self.links;
            open.retain(|&index| {
                let pair = &mut pairs[index as usize];
                if !full[pair.node] && !full[nodes + pair.server] {
                    return true;
                }
                pair.rate_bytes_per_s = share;
                for link in [pair.node, nodes + pair.server] {
                    links[link].transfers -= pair.shared_by;
                    links[link].left_bytes_per_s -= share * pair.shared_by as f64;
                }
                false
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(nodes: usize, servers: usize, transfers: &[(usize, usize)]) -> Vec<f64> {
        let mut wire = Wire::new(nodes, servers, 100.0, 120.0);
        for &(node, server) in transfers {
            wire.send(node, server, 1000, 0);
        }
        wire.next_s();
        let pair = |&(node, server): &(usize, usize)| {
            wire.pairs[wire.pair_of[node * servers + server] as usize].rate_bytes_per_s
        };
        transfers.iter().map(pair).collect()
    }

    // Breaks if: `left_bytes_per_s` is not reduced by what was assigned.
    #[test]
    fn the_fullest_link_is_shared_first_and_others_get_the_rest() {
        assert_eq!(rates(1, 1, &[(0, 0)]), [100.0]);
        assert_eq!(rates(3, 1, &[(0, 0), (1, 0), (2, 0)]), [40.0, 40.0, 40.0]);
        // Server 0 is the fullest: 40 each. Node 0 has 60 left for its other transfer.
        assert_eq!(
            rates(3, 2, &[(0, 0), (1, 0), (2, 0), (0, 1)]),
            [40.0, 40.0, 40.0, 60.0]
        );
        // Two transfers of a pair count twice.
        let shared = rates(2, 1, &[(0, 0), (0, 0), (1, 0)]);
        assert_eq!(shared, [40.0, 40.0, 40.0]);
    }

    // Breaks if: a new transfer gets credit for bytes that passed before.
    #[test]
    fn who_joins_later_shares_from_then_on() {
        let mut wire = Wire::new(1, 1, 100.0, 100.0);
        let mut ended = Vec::new();
        wire.send(0, 0, 100, 1);
        assert_eq!(wire.next_s(), 1.0);
        wire.advance(0.5, &mut ended);
        wire.send(0, 0, 25, 2);
        assert!(ended.is_empty());
        // 50 are left of the first and 25 of the second, at 50 per second each.
        assert_eq!(wire.next_s(), 1.0);
        wire.advance(1.0, &mut ended);
        assert_eq!(ended, [2]);
        assert_eq!(wire.next_s(), 1.25);
        wire.advance(1.25, &mut ended);
        assert_eq!(ended, [2, 1]);
        assert_eq!(wire.next_s(), f64::INFINITY);
    }
}
