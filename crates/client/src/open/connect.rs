//! Makes the connections that need no collective: from ranks to their node, and from nodes to the
//! lead, through relays if there are more than `fan_out` nodes.
//!
//! Invariants:
//! 1. Every connection is authenticated with the job key before a byte of it is believed.
//! 2. All connections are made within `CONNECT_TIMEOUT`, or the session does not open.
//! 3. A failure at one end ends the wait at the other: a part that fails in this process stops the
//!    other parts, and a listener that will not be answered any more is closed, which its callers
//!    notice at once.
//!
//! Not here: the transport (`net::conn`), what travels afterwards (`engine::commit`).

use crate::collective::{Collective, agree};
use crate::open::doors;
use crate::open::environment::Environment;
use crate::open::start::Start;
use crate::options::Options;
use orcheck_engine::commit::{Links, Tree};
use orcheck_engine::directory::epoch::ClaimLock;
use orcheck_engine::node::Layout;
use orcheck_format::wire::Message;
use orcheck_format::{Error, NodeId, Rank, Result, RunId};
use orcheck_io::clock::Clock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_io::poll::Poller;
use orcheck_net::{Address, Conn, Key, Listener};
use orcheck_pool::Pool;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for a connection inside `open`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time at one listener while others may be ready.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);

/// A node's place in the tree to the lead.
pub(crate) struct LeadRoute {
    pub(crate) tree: Tree,
    /// Where the nodes directly below connect; on a node's lowest rank.
    pub(crate) doors: Vec<Listener>,
    /// Addresses of the node directly above.
    pub(crate) above: Vec<Address>,
    /// Longest wait for all connections.
    pub(crate) patience: Duration,
}

impl LeadRoute {
    /// Opens the listeners of the relays; `lead` are those of the lead. Collective.
    pub(crate) fn find(
        collective: &mut dyn Collective,
        layout: &Layout,
        options: &Options,
        start: &Start,
        lead: Vec<Listener>,
    ) -> Result<Self> {
        let tree = Tree::new(layout.nodes.len() as u32, options.fan_out);
        let rank = collective.rank();
        let node = layout.node_of(rank);
        let relays = tree.relays();
        let mut way = Self {
            tree,
            doors: lead,
            above: start.addresses.clone(),
            patience: CONNECT_TIMEOUT,
        };
        if relays.is_empty() {
            return Ok(way);
        }
        let mut own = Ok((Vec::new(), Vec::new()));
        if layout.leads_node(rank) && relays.contains(&node.0) {
            let name = format!("orcheck-{}-r{node}", start.run);
            own = doors::open(&name, layout.has_hosts(), options.net);
        }
        let (opened, addresses) = agree(collective, own)?;
        let mut all = doors::exchange(collective, layout, relays.clone(), &addresses)?;
        if relays.contains(&node.0) {
            way.doors = opened;
        }
        if let Some(above) = tree.above(node).filter(|above| relays.contains(&above.0)) {
            way.above = all.swap_remove((above.0 - relays.start) as usize);
        }
        Ok(way)
    }
}

/// What a node's lowest rank holds while others connect.
pub(crate) struct NodeSide {
    pub(crate) held: ClaimLock,
    pub(crate) pool: Arc<Pool>,
    /// Taken by [`connect`], which closes it.
    pub(crate) listener: Option<Listener>,
}

pub(crate) fn node_address(run: RunId, node: NodeId) -> Address {
    Address::Abstract(format!("orcheck-{run}-n{node}"))
}

/// Returns this rank's pool, its connection to the node's control thread and, on a node's lowest
/// rank, the connections of that thread.
pub(crate) fn connect(
    rank: Rank,
    layout: &Layout,
    side: Option<&mut NodeSide>,
    way: LeadRoute,
    start: &Start,
    environment: &Environment,
) -> Result<(Arc<Pool>, Conn, Option<Links>)> {
    let node = layout.node_of(rank);
    let steps = &environment.failpoints;
    let Some(side) = side else {
        let mut conn = enter_node(rank, layout, start, steps)?;
        let pool = Pool::attach(conn.receive_fd(CONNECT_TIMEOUT)?)?;
        return Ok((Arc::new(pool), conn, None));
    };
    let clock = environment.clock.as_ref();
    let ranks = layout.nodes[node.index()].ranks.len();
    let patience = way.patience;
    let below = way.tree.below(node);
    let own_door = side.listener.take().into_iter().collect();
    let meeting = Meeting::new(&start.key, environment, patience)?;
    std::thread::scope(|scope| {
        // Breaks if: nobody calls `give_up`; an error here is noticed only at the deadline.
        let door = || {
            let ours = |_, of| of == node;
            let accepted = meeting.accept_all(own_door, 0, ranks, &ours);
            let accepted = accepted.and_then(|accepted| {
                let mut accepted = accepted.unwrap_or_default();
                for (_, _, conn) in &mut accepted {
                    conn.send_fd(side.pool.fd(), CONNECT_TIMEOUT)?;
                }
                Ok(accepted)
            });
            accepted.inspect_err(|_| meeting.give_up())
        };
        let accept_ranks = spawn_scoped(scope, "orcheck-accept", door)?;
        let lead_door = || {
            let ours = |_, of: NodeId| below.contains(&of.0);
            let accepted = meeting.accept_all(way.doors, 1, below.len(), &ours);
            accepted.inspect_err(|_| meeting.give_up())
        };
        let accept_nodes = (!below.is_empty())
            .then(|| spawn_scoped(scope, "orcheck-accept", lead_door))
            .transpose()
            .inspect_err(|_| meeting.give_up())?;
        let own = enter_node(rank, layout, start, steps).and_then(|mut conn| {
            // This rank already has the pool.
            conn.receive_fd(CONNECT_TIMEOUT).map(|_| conn)
        });
        let own = own.inspect_err(|_| meeting.give_up());
        let to_lead = if node == NodeId(0) || own.is_err() {
            Ok(None)
        } else {
            let me = (rank, node);
            let reached = reach(&way.above, me, &start.key, steps, (clock, patience));
            reached.inspect_err(|_| meeting.give_up()).map(Some)
        };
        let panicked = |_| Error::internal("a connecting thread panicked");
        let ranks = accept_ranks.join().map_err(panicked)?;
        let nodes = accept_nodes.map_or(Ok(Ok(None)), |thread| thread.join().map_err(panicked))?;
        // A part that was made to give up has nothing to report. The error is that of the part that
        // failed by itself, and an acceptor's error ranks before that of a caller whose listener it
        // closed.
        let (ranks, nodes) = (ranks?, nodes?.unwrap_or_default());
        let own = own?;
        let links = links_of(ranks, nodes, to_lead?);
        Ok((Arc::clone(&side.pool), own, Some(links)))
    })
}

fn links_of(ranks: Vec<Accepted>, nodes: Vec<Accepted>, lead: Option<Conn>) -> Links {
    let ranks = ranks.into_iter().map(|(rank, _, conn)| (rank, conn));
    let nodes = nodes.into_iter().map(|(_, node, conn)| (node, conn));
    Links {
        ranks: ranks.collect(),
        nodes: nodes.collect(),
        lead,
    }
}

/// Connects to the control thread of this rank's node, which answers with the pool.
fn enter_node(rank: Rank, layout: &Layout, start: &Start, failpoints: &Failpoints) -> Result<Conn> {
    let node = layout.node_of(rank);
    let address = node_address(start.run, node);
    let conn = Conn::connect(&address, &start.key, failpoints, CONNECT_TIMEOUT);
    let mut conn = conn.map_err(|error| {
        error.at(format!(
            "rank {rank} and the lowest rank of node '{}'",
            layout.nodes[node.index()].name
        ))
    })?;
    conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
    Ok(conn)
}

/// A rank, its node, and the connection to it.
type Accepted = (Rank, NodeId, Conn);

/// The parts of one process that wait for connections; the failure of one ends the waits of all.
struct Meeting<'a> {
    key: &'a Key,
    environment: &'a Environment,
    patience: Duration,
    /// One for each part that accepts.
    pollers: [Poller; 2],
    given_up: AtomicBool,
}

impl<'a> Meeting<'a> {
    fn new(key: &'a Key, environment: &'a Environment, patience: Duration) -> Result<Self> {
        Ok(Self {
            key,
            environment,
            patience,
            pollers: [Poller::new()?, Poller::new()?],
            given_up: AtomicBool::new(false),
        })
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.pollers.iter().for_each(|poller| poller.waker().wake());
    }

    /// Accepts `expected` authenticated connections, each with its hello, and closes the listeners;
    /// `None` if another part gave up meanwhile.
    fn accept_all(
        &self,
        listeners: Vec<Listener>,
        part: usize,
        expected: usize,
        ours: &dyn Fn(Rank, NodeId) -> bool,
    ) -> Result<Option<Vec<Accepted>>> {
        let clock = self.environment.clock.as_ref();
        let until = clock.now() + self.patience;
        let mut accepted = Vec::new();
        while accepted.len() < expected {
            if self.given_up.load(Ordering::Acquire) {
                return Ok(None);
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                return Err(Error::unavailable(format!(
                    "{} of {expected} expected connections came within {:.0} s",
                    accepted.len(),
                    self.patience.as_secs_f64()
                ))
                .next("look for ranks that did not start, or a firewall between the nodes"));
            }
            let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
            for ready in self.pollers[part].wait(&fds, left)? {
                // A silent stranger at one listener must not keep the others waiting.
                let patience = left.min(ACCEPT_SLICE);
                let steps = &self.environment.failpoints;
                if let Some(mut conn) = listeners[ready].accept(self.key, steps, patience)?
                    && let Message::Hello { rank, node } = conn.receive(left)?
                    && ours(rank, node)
                {
                    accepted.push((rank, node, conn));
                }
            }
        }
        Ok(Some(accepted))
    }
}

/// Connects to the node directly above in the tree to the lead.
fn reach(
    above: &[Address],
    (rank, node): (Rank, NodeId),
    key: &Key,
    failpoints: &Failpoints,
    (clock, patience): (&dyn Clock, Duration),
) -> Result<Conn> {
    let until = clock.now() + patience;
    let mut errors = Vec::new();
    for address in above {
        let left = until
            .saturating_sub(clock.now())
            .min(Duration::from_secs(10));
        match Conn::connect(address, key, failpoints, left) {
            Ok(mut conn) => {
                conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
                return Ok(conn);
            }
            Err(error) => errors.push(error.what()),
        }
    }
    Err(Error::unavailable(format!(
        "rank {rank} cannot reach the lead of the job: {}",
        errors.join("; ")
    ))
    .next("check whether the process there has ended or is stopped, and whether nodes reach each other"))
}
