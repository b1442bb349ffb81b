//! Opens doors, the listeners at which other processes reach the threads of a node.
//!
//! Invariants:
//! 1. Within a host, a door is an abstract Unix socket, which disappears with its owner. TCP is
//!    used only where it is necessary or requested.
//! 2. The addresses of a node travel only through the program's collective, as many as fit.
//!
//! Not here: who is admitted (`net`), what is sent there (`engine`).

use crate::collective::{Collective, agree, rows};
use crate::options::NetKind;
use orcheck_engine::node::Layout;
use orcheck_format::{Error, Result};
use orcheck_io::machine::local_addresses;
use orcheck_net::{Address, Listener};
use std::net::SocketAddr;
use std::ops::Range;

/// Size of a node's addresses in a message; what does not fit is left out.
const ADDRESS_BYTES: usize = 192;

/// Opens the door `name`; `hosts`: whether other hosts must be able to reach it.
pub(crate) fn open(name: &str, hosts: bool, net: NetKind) -> Result<(Vec<Listener>, Vec<Address>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    if net == NetKind::Auto {
        let listener = Listener::bind(&Address::Abstract(name.to_owned()))?;
        addresses.push(listener.address());
        listeners.push(listener);
    }
    if hosts || net == NetKind::Tcp {
        // One socket for all addresses if other hosts reach it.
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

/// The addresses of each of these nodes, as their lowest ranks report them.
pub(crate) fn exchange(
    collective: &mut dyn Collective,
    layout: &Layout,
    nodes: Range<u32>,
    own: &[Address],
) -> Result<Vec<Vec<Address>>> {
    let mut text = String::new();
    for address in own {
        let more = format!("{address} ");
        if text.len() + more.len() <= ADDRESS_BYTES {
            text += &more;
        }
    }
    let rank = collective.rank();
    let at = layout.node_of(rank).0.wrapping_sub(nodes.start) as usize;
    let mine = layout.leads_node(rank).then_some((at, text.as_bytes()));
    let table = rows(collective, (nodes.len(), ADDRESS_BYTES), mine)?;
    let parse = |row: &[u8]| {
        let text = String::from_utf8_lossy(row);
        let words = text.trim_end_matches('\0').split_whitespace();
        let addresses: Vec<Address> = words.map(str::parse).collect::<Result<_>>()?;
        if addresses.is_empty() {
            return Err(Error::internal(
                "the addresses of the nodes did not all arrive",
            ));
        }
        Ok(addresses)
    };
    agree(
        collective,
        table.chunks_exact(ADDRESS_BYTES).map(parse).collect(),
    )
}
