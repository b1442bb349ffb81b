//! Lists the names of Unix sockets on this machine, and finds who holds one.
//!
//! How: the kernel lists all names in `/proc/thread-self/net/unix`. A process that connects to one
//! can ask for the user and process that listen there (`SO_PEERCRED`), before anything is sent and
//! before anybody accepts.
//!
//! Invariants
//! 1. A query never waits.
//! 2. Names of other users may contain any bytes: whatever is not a plain name is left out.
//!
//! Faults survived: names that another user took, many names, listeners that accept nobody.
//!
//! Not here: which name is whose ([`crate::listener`] compares users), what is sent.

use crate::address::Address;
use orcheck_format::Result;
use orcheck_io::descriptor::away_from_streams;
use orcheck_io::errno::{last_errno, os_error, rustix_error};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{effective_uid, shown_user};
use rustix::io::Errno;
use rustix::net;
use std::fmt;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel's list of the sockets in this thread's network namespace.
const LIST: &str = "/proc/thread-self/net/unix";
/// Larger than the kernel's list of a million names.
const LIST_LIMIT_BYTES: u64 = 256 << 20;

/// The process at the other end of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The user under whom it began to listen, or connected.
    pub uid: u32,
    /// Its process id; 0 if it is in another PID namespace.
    pub pid: i32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid > 0 {
            write!(f, "process {} of ", self.pid)?;
        }
        f.write_str(&shown_user(self.uid))
    }
}

/// The holder of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nobody listens there.
    Nobody,
    /// A process of this user.
    Own(Peer),
    /// A process of another user.
    Stranger(Peer),
    /// A process whose queue of callers is full.
    Busy,
}

/// Finds who listens at this address of a Unix socket at this moment.
///
/// # Errors
/// Lack of descriptors; an address that is not that of a Unix socket.
pub fn holder(at: &Address, failpoints: &Failpoints) -> Result<Holder> {
    let shown = at.to_string();
    if let Some(errno) = failpoints.refuse("net.look", &shown) {
        return Err(os_error(errno, format_args!("look who holds {shown}")));
    }
    let socket = at.socket()?;
    match net::connect(&socket, &at.raw()?) {
        Ok(()) => {}
        // This includes a socket of another kind, and one that a security module denies.
        Err(Errno::CONNREFUSED | Errno::PROTOTYPE | Errno::ACCESS | Errno::PERM) => {
            return Ok(Holder::Nobody);
        }
        Err(Errno::AGAIN) => return Ok(Holder::Busy),
        Err(errno) => return Err(rustix_error(errno, format_args!("look who holds {shown}"))),
    }
    let peer = peer(&socket, at)?;
    Ok(match peer.uid == effective_uid() {
        true => Holder::Own(peer),
        false => Holder::Stranger(peer),
    })
}

/// The process at the other end, according to the kernel.
#[allow(unsafe_code)]
pub(super) fn peer(socket: &OwnedFd, at: &Address) -> Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to live variables, and `len` is the length of what is filled. Not
    // by rustix, for which no process has number 0, as one in another PID namespace has.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if asked != 0 {
        let what = format_args!("ask who is at the other end of {at}");
        return Err(os_error(last_errno(), what));
    }
    Ok(Peer {
        uid: found.uid,
        pid: found.pid,
    })
}

/// The names on this machine that begin with `prefix` and continue in hexadecimal digits and
/// hyphens, in order.
///
/// # Errors
/// If the kernel's list cannot be read.
pub fn taken_names(prefix: &str) -> Result<Vec<Address>> {
    let mut bytes = Vec::new();
    // Breaks if: the list must be text; a name of arbitrary bytes, which every user may take, would
    // hide all others.
    #[allow(clippy::disallowed_methods)] // a file of the kernel's, not one of the program's
    away_from_streams(|| std::fs::File::open(LIST))
        .and_then(|list| list.take(LIST_LIMIT_BYTES).read_to_end(&mut bytes))
        .map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            os_error(errno, format_args!("read the list of sockets, {LIST}"))
        })?;
    let plain = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    let words = bytes.split(u8::is_ascii_whitespace);
    let names = words.filter_map(|word| {
        let name = word.strip_prefix(b"@")?;
        let rest = name.strip_prefix(prefix.as_bytes())?;
        let name = std::str::from_utf8(name).ok()?;
        rest.iter().all(plain).then_some(name)
    });
    let mut names: Vec<&str> = names.filter(|name| name.len() <= 100).collect();
    names.sort_unstable();
    names.dedup();
    let address = |name: &str| Address::Abstract(name.to_owned());
    Ok(names.into_iter().map(address).collect())
}
