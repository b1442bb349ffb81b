//! Gives out what a node's directory holds after all processes of the node have ended.
//!
//! How: the list of members in the directory says where the node's keeper was reachable, and by
//! which key. A keeper listens there again, so that whoever knows the list finds it: a next run, or
//! a scavenge.
//!
//! Invariants:
//! 1. Only what the keeper would give out is given out, to peers that prove the same key.
//! 2. Nothing is taken in.
//! 3. Where somebody already listens, nothing is lent: the node serves by itself.
//!
//! Not here: what was in the memory of an agent that has ended (it is gone).

use crate::encoding::Trust;
use crate::node::Outcome;
use crate::replicas::keeper::{KeeperContext, KeeperThread};
use crate::replicas::members::{keeper_of, last_remembered};
use crate::replicas::store::KeptReplicas;
use orcheck_format::{Epoch, Error, JobName, NodeId, Result, RunId};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Address, Listener};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A keeper in the place of one that has ended.
pub struct Lender {
    keeper: KeeperThread,
    stop: StopLending,
}

/// Ends a [`Lender`] from another thread.
#[derive(Clone)]
pub struct StopLending {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl StopLending {
    /// Ends it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Lender {
    /// Listens where the keeper of this node did.
    ///
    /// # Errors
    /// NotFound if the directory does not say where that was; Unavailable if somebody listens
    /// there.
    pub fn open(
        dir: Arc<dyn Dir>,
        (job, node): (&JobName, &str),
        trust: &Trust,
        failpoints: &Failpoints,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let listed = last_remembered(dir.as_ref(), job, trust, notes)?;
        let mut of_node = listed.iter().filter(|member| member.name == node);
        let Some(member) = of_node.next() else {
            return Err(Error::not_found(format!(
                "{} does not say where node '{node}' was reachable: its runs had no peers",
                dir.path().display()
            ))
            .next("make the directories of all nodes visible where `orcheck scavenge` runs"));
        };
        let at = keeper_of(member)?;
        let mut listeners = Vec::new();
        for address in doors(&at.addresses) {
            let bound = Listener::bind(&address);
            listeners.push(bound.map_err(|error| {
                error
                    .at(format!("in the place of the keeper of node '{node}'"))
                    .next("leave it if a run or an agent of this node serves already; end it otherwise")
            })?);
        }
        let poller = Poller::new()?;
        let stop = StopLending {
            stop: Arc::default(),
            waker: poller.waker(),
        };
        let context = KeeperContext {
            // It takes nothing in: these are never compared with anything.
            epoch: Epoch {
                counter: member.epoch,
                run: RunId([0; 16]),
            },
            node: NodeId(0),
            budget_bytes: 0,
            room: Arc::new(KeptReplicas::on_disk(dir)),
            direct: false,
            gathering: None,
            outcome: Box::new(|_| Outcome::Pending),
            key: at.key,
            failpoints: failpoints.clone(),
            stop: Arc::clone(&stop.stop),
        };
        Ok(Self {
            keeper: KeeperThread::new(context, listeners, poller),
            stop,
        })
    }

    /// A handle that ends it.
    #[must_use]
    pub fn stopper(&self) -> StopLending {
        self.stop.clone()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// Lack of descriptors.
    pub fn run(self) -> Result<()> {
        self.keeper.run()
    }
}

/// Where to listen so that all these addresses lead here. A keeper that other hosts reach has one
/// port at all addresses of its host.
fn doors(addresses: &[Address]) -> Vec<Address> {
    let mut doors: Vec<Address> = Vec::new();
    for address in addresses {
        let door = match address {
            Address::Tcp(at) if !at.ip().is_loopback() => {
                // Breaks if: the family is another one; whoever knows the address reaches nobody.
                let any = match at.ip() {
                    IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                    IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                };
                Address::Tcp(SocketAddr::new(any, at.port()))
            }
            other => other.clone(),
        };
        let is_wide = |one: &Address| matches!(one, Address::Tcp(at) if at.ip().is_unspecified());
        let is_ipv6 = |one: &Address| matches!(one, Address::Tcp(at) if at.is_ipv6());
        let port = |one: &Address| match one {
            Address::Tcp(at) => Some(at.port()),
            Address::Abstract(_) => None,
        };
        match doors
            .iter_mut()
            .find(|one| port(one).is_some() && port(one) == port(&door))
        {
            // The one at all addresses hears the loopback as well, that of IPv6 also IPv4.
            Some(known) if is_wide(&door) && !(is_wide(known) && is_ipv6(known)) => *known = door,
            Some(_) => {}
            None => doors.push(door),
        }
    }
    doors
}

#[cfg(test)]
mod tests {
    // Breaks if: a port is bound twice, or at the loopback alone although other hosts knew it.
    #[test]
    fn one_port_is_opened_once_for_all_addresses() {
        let doors = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().unwrap());
            let doors = super::doors(&addresses.collect::<Vec<_>>());
            doors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let hosts = [
            "unix:@k",
            "tcp:127.0.0.1:7",
            "tcp:10.0.0.1:7",
            "tcp:10.0.1.1:7",
        ];
        assert_eq!(doors(&hosts), ["unix:@k", "tcp:0.0.0.0:7"]);
        assert_eq!(doors(&["tcp:127.0.0.1:9"]), ["tcp:127.0.0.1:9"]);
        assert_eq!(doors(&["tcp:[fd00::1]:7"]), ["tcp:[::]:7"]);
        let both = ["tcp:[fd00::1]:7", "tcp:10.0.0.1:7", "tcp:127.0.0.1:7"];
        assert_eq!(doors(&both), ["tcp:[::]:7"]);
        assert_eq!(doors(&[both[1], both[0]]), ["tcp:[::]:7"]);
    }
}
