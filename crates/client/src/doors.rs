//! Doors: where the threads of a node are reached from other processes.
//!
//! Invariants:
//! 1. Within a host a door is an abstract Unix socket, gone with its owner; TCP only where it must be, or was asked for.
//! 2. The addresses of a node travel through the program's collective only, and are as many as fit.
//!
//! Not here: who may come in (`io::net`), what is said there (`engine`).

use crate::agree::{agree, bcast_bytes};
use crate::collective::Collective;
use crate::options::NetKind;
use orcheck_engine::layout::Layout;
use orcheck_format::error::{Error, Result};
use orcheck_io::net::{Address, Listener, local_addresses};
use std::net::SocketAddr;

/// Bytes in which a node's addresses travel; what does not fit is left out.
const ADDRESS_BYTES: usize = 192;

/// Opens the door `name`; `hosts`: whether it must be reached from other hosts.
pub(crate) fn open(name: &str, hosts: bool, net: NetKind) -> Result<(Vec<Listener>, Vec<Address>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    if net == NetKind::Auto {
        let listener = Listener::bind(&Address::Abstract(name.to_owned()))?;
        addresses.push(listener.address());
        listeners.push(listener);
    }
    if hosts || net == NetKind::Tcp {
        // One socket for all addresses when they are reached from elsewhere.
        let at = if hosts { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
        let listener = Listener::bind(&Address::Tcp(SocketAddr::from((at, 0))))?;
        if let Address::Tcp(bound) = listener.address() {
            if hosts {
                let all = local_addresses()?;
                addresses.extend(
                    // The listener speaks IPv4.
                    all.into_iter()
                        .filter(std::net::IpAddr::is_ipv4)
                        .map(|ip| Address::Tcp(SocketAddr::new(ip, bound.port()))),
                );
            } else {
                addresses.push(Address::Tcp(bound));
            }
        }
        listeners.push(listener);
    }
    Ok((listeners, addresses))
}

/// Every node's addresses, from what its lowest rank says.
pub(crate) fn exchange(
    collective: &mut dyn Collective,
    layout: &Layout,
    own: &[Address],
) -> Result<Vec<(String, Vec<Address>)>> {
    let mut text = String::new();
    for address in own {
        let more = format!("{address} ");
        if text.len() + more.len() <= ADDRESS_BYTES {
            text += &more;
        }
    }
    let mut bytes = text.into_bytes();
    bytes.resize(ADDRESS_BYTES, b' ');
    let table = collective.gather(&bytes, 0)?;
    // Only what the lowest rank of each node said is of use.
    let table = table.unwrap_or_default();
    let of_node = |rank: u32| {
        table
            .get(rank as usize * ADDRESS_BYTES..)?
            .get(..ADDRESS_BYTES)
    };
    let lowest = layout.nodes.iter().filter_map(|node| node.ranks.first());
    let chosen: Vec<u8> = lowest
        .filter_map(|&rank| of_node(rank))
        .flatten()
        .copied()
        .collect();
    let chosen = if collective.rank() == 0 {
        chosen
    } else {
        Vec::new()
    };
    let chosen = bcast_bytes(collective, chosen, 0)?;
    let parse = || {
        if chosen.len() != layout.nodes.len() * ADDRESS_BYTES {
            return Err(Error::internal(
                "the addresses of the nodes did not all arrive",
            ));
        }
        let parts = layout.nodes.iter().zip(chosen.chunks_exact(ADDRESS_BYTES));
        parts
            .map(|(node, text)| {
                let text = String::from_utf8_lossy(text);
                let addresses = text.split_whitespace().map(str::parse);
                Ok((node.name.clone(), addresses.collect::<Result<_>>()?))
            })
            .collect::<Result<Vec<_>>>()
    };
    agree(collective, parse())
}
