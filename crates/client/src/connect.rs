//! The paths that need no collective: ranks to their node, nodes to the lead.
//!
//! Invariants:
//! 1. Every connection is authenticated with the job key before a byte of it is believed.
//! 2. All connections come within `CONNECT_TIMEOUT`, or the session does not open.
//!
//! Not here: the transport (`io::conn`), what travels afterwards (`engine::control`).

use crate::session::Environment;
use crate::start::Start;
use orcheck_engine::control::Links;
use orcheck_engine::epoch::Held;
use orcheck_engine::layout::Layout;
use orcheck_format::error::{Error, Result};
use orcheck_format::ids::RunId;
use orcheck_format::wire::Message;
use orcheck_io::clock::Clock;
use orcheck_io::conn::Conn;
use orcheck_io::net::{Address, Key, Listener};
use orcheck_io::poll::Poller;
use orcheck_io::pool::Pool;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a connection inside `open`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest stay at one listener while others may be ready.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);

/// What a node's lowest rank holds while the others connect.
pub(crate) struct NodeSide {
    pub(crate) held: Held,
    pub(crate) pool: Arc<Pool>,
    pub(crate) listener: Listener,
}

pub(crate) fn node_address(run: RunId, node: u32) -> Address {
    Address::Abstract(format!("orcheck-{run}-n{node}"))
}

/// This rank's pool, its connection to the node's control thread, and, on a node's lowest rank,
/// the connections of that thread.
pub(crate) fn connect(
    rank: u32,
    layout: &Layout,
    side: Option<&NodeSide>,
    listeners: Vec<Listener>,
    start: &Start,
    environment: &Environment,
) -> Result<(Arc<Pool>, Conn, Option<Links>)> {
    let node = layout.node_of(rank);
    let steps = &environment.steps;
    let join = || -> Result<(Option<Pool>, Conn)> {
        let mut conn = Conn::connect(
            &node_address(start.run, node),
            &start.key,
            steps,
            CONNECT_TIMEOUT,
        )
        .map_err(|error| {
            error.at(format!(
                "rank {rank} and the lowest rank of node '{}'",
                layout.nodes[node as usize].name
            ))
        })?;
        conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
        let fd = conn.receive_fd(CONNECT_TIMEOUT)?;
        // The node's lowest rank has the pool already.
        let pool = if side.is_some() {
            None
        } else {
            Some(Pool::attach(fd)?)
        };
        Ok((pool, conn))
    };
    let Some(side) = side else {
        let (pool, conn) = join()?;
        let pool = pool.ok_or_else(|| Error::internal("no pool was received"))?;
        return Ok((Arc::new(pool), conn, None));
    };
    let clock = environment.clock.as_ref();
    let ranks = layout.nodes[node as usize].ranks.len();
    let nodes = layout.nodes.len();
    std::thread::scope(|scope| {
        let accept_ranks = scope.spawn(|| {
            let accepted = accept_all(
                std::slice::from_ref(&side.listener),
                ranks,
                &start.key,
                environment,
            );
            accepted.and_then(|mut accepted| {
                for (_, _, conn) in &mut accepted {
                    conn.send_fd(side.pool.fd(), CONNECT_TIMEOUT)?;
                }
                Ok(accepted)
            })
        });
        let accept_nodes = (rank == 0 && nodes > 1)
            .then(|| scope.spawn(|| accept_all(&listeners, nodes - 1, &start.key, environment)));
        let own = join();
        let to_lead = if rank == 0 {
            Ok(None)
        } else {
            reach_lead(rank, node, start, steps, clock).map(Some)
        };
        let panicked = |_| Error::internal("a connecting thread panicked");
        let ranks = accept_ranks.join().map_err(panicked)??;
        let nodes =
            accept_nodes.map_or(Ok(Ok(Vec::new())), |thread| thread.join().map_err(panicked))??;
        let links = Links {
            ranks: ranks
                .into_iter()
                .map(|(rank, _, conn)| (rank, conn))
                .collect(),
            lead: to_lead?,
            nodes: nodes
                .into_iter()
                .map(|(_, node, conn)| (node, conn))
                .collect(),
        };
        Ok((Arc::clone(&side.pool), own?.1, Some(links)))
    })
}

/// Accepts `expected` authenticated connections, each with its hello.
fn accept_all(
    listeners: &[Listener],
    expected: usize,
    key: &Key,
    environment: &Environment,
) -> Result<Vec<(u32, u32, Conn)>> {
    let poller = Poller::new()?;
    let clock = environment.clock.as_ref();
    let until = clock.now() + CONNECT_TIMEOUT;
    let mut accepted = Vec::new();
    while accepted.len() < expected {
        let left = until.saturating_sub(clock.now());
        if left.is_zero() {
            return Err(Error::unavailable(format!(
                "{} of {expected} expected connections came within {:.0} s",
                accepted.len(),
                CONNECT_TIMEOUT.as_secs_f64()
            ))
            .next("look for ranks that did not start, or a firewall between the nodes"));
        }
        let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
        for ready in poller.wait(&fds, left)? {
            // A silent stranger at one door must not keep the others closed.
            let patience = left.min(ACCEPT_SLICE);
            if let Some(mut conn) = listeners[ready].accept(key, &environment.steps, patience)?
                && let Message::Hello { rank, node } = conn.receive(left)?
            {
                accepted.push((rank, node, conn));
            }
        }
    }
    Ok(accepted)
}

fn reach_lead(
    rank: u32,
    node: u32,
    start: &Start,
    steps: &orcheck_io::steps::Steps,
    clock: &dyn Clock,
) -> Result<Conn> {
    let until = clock.now() + CONNECT_TIMEOUT;
    let mut errors = Vec::new();
    for address in &start.addresses {
        let left = until
            .saturating_sub(clock.now())
            .min(Duration::from_secs(10));
        match Conn::connect(address, &start.key, steps, left) {
            Ok(mut conn) => {
                conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
                return Ok(conn);
            }
            Err(error) => errors.push(error.message().to_owned()),
        }
    }
    Err(Error::unavailable(format!(
        "rank {rank} cannot reach the lead of the job: {}",
        errors.join("; ")
    ))
    .next("check that nodes reach each other over TCP"))
}
