//! Defines addresses, at which listeners are reached.
//!
//! Not here: which addresses a node gives to the others (the client).

use orcheck_format::{Error, Result};
use orcheck_io::descriptor;
use orcheck_io::errno::rustix_error;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// The address of a listener. As text: `unix:@name` or `tcp:ip:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A name in the abstract space of Unix sockets: it is no file, and disappears with its owner.
    Abstract(String),
    /// IP address and port.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "unix:@{name}"),
            Address::Tcp(at) => write!(f, "tcp:{at}"),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let refused = || {
            Error::invalid(format!(
                "address {text:?}: expected \"unix:@name\" or \"tcp:ip:port\""
            ))
        };
        if let Some(name) = text.strip_prefix("unix:@") {
            let plain = !name.contains('\0') && (1..=100).contains(&name.len());
            return if plain {
                Ok(Address::Abstract(name.to_owned()))
            } else {
                Err(refused())
            };
        }
        let at = text.strip_prefix("tcp:").ok_or_else(refused)?;
        Ok(Address::Tcp(at.parse().map_err(|_| refused())?))
    }
}

impl Address {
    pub(crate) fn family(&self) -> AddressFamily {
        match self {
            Address::Abstract(_) => AddressFamily::UNIX,
            Address::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        }
    }

    /// The address as the kernel takes it.
    pub(crate) fn raw(&self) -> Result<SocketAddrAny> {
        match self {
            Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())
                .map(Into::into)
                .map_err(|errno| rustix_error(errno, format_args!("use the address {self}"))),
            Address::Tcp(at) => Ok((*at).into()),
        }
    }

    pub(crate) fn socket(&self) -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        descriptor::socket(self.family(), flags)
            .map_err(|errno| rustix_error(errno, format_args!("make a socket for {self}")))
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Address::Abstract(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_and_parse() {
        for text in ["unix:@orcheck-7", "tcp:127.0.0.1:80", "tcp:[::1]:9"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "unix:name",
            "unix:@",
            "unix:@a\0b",
            "tcp:host:1",
            "tcp:1.2.3.4",
            "udp:1.2.3.4:5",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }
}
