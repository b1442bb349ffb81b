//! Implements the handshake that opens a connection: the messages of both sides, and the caller's
//! side.
//!
//! How: processes of one node use abstract Unix sockets, processes of different nodes TCP. Both
//! sides prove that they know the job's key by answering the other's random challenge, and derive
//! one session key per direction from both challenges, so that a recording of one connection is
//! useless on another. The listener proves itself first. It keeps half-open connections aside and
//! continues with whichever sends something, so that a silent stranger keeps nobody waiting.
//!
//! Invariants
//! 1. No byte beyond the two fixed-size messages of the handshake is read from a peer that has not
//!    proven the key.
//! 2. On a Unix socket, both sides check that the other runs under the same user.
//! 3. At most 64 half-open connections are kept, none longer than 5 s. The oldest is dropped first,
//!    preferably one that has sent nothing yet. A caller that is dropped in this way calls again,
//!    until its deadline.
//! 4. Every wait has a deadline; a stranger's behaviour is never an error of this side.
//! 5. The proofs of the two sides and the two session keys are derived under different labels, so
//!    that no message of one side can be reflected as one of the other.
//! 6. Over TCP, either both sides encrypt or none does: proofs and session keys of the two forms
//!    differ, so that nobody in between can downgrade one side.
//!
//! Faults survived: strangers that are silent, send garbage, connect many times, or replay a
//! recorded handshake.
//!
//! Not here: the listener's side (`listener.rs`), frames (see [`crate::conn`]), how they are
//! encrypted ([`crate::guard`]).

use crate::address::Address;
use crate::conn::{Conn, KERNEL_SILENCE};
use crate::key::{Challenges, Key, NONCE_BYTES};
use crate::munge::{self, AsUser};
use crate::names;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::{backoff, rustix_error};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::effective_uid;
use orcheck_io::poll::poll_one;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

pub(crate) const HELLO: [u8; 8] = *b"ORCnet2\n";
/// Precedes the handshake if there is a MUNGE credential: this text, the credential's length in two
/// bytes, the credential.
pub(crate) const OPENING: [u8; 8] = *b"ORCmng1\n";
pub(crate) const OPENING_BYTES: usize = OPENING.len() + 2;
/// The answer to a refused credential: this text, the reason in one byte, the listener's user in
/// four, zeros.
pub(crate) const REFUSED: [u8; 8] = *b"ORCno 1\n";
pub(crate) const PROOF_BYTES: usize = 32;
pub(crate) const HELLO_BYTES: usize = HELLO.len() + NONCE_BYTES;
pub(crate) const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
pub(crate) const BACKLOG: i32 = 1024;

/// Checks the peer, as far as the kernel knows it, and describes it.
pub(crate) fn check_peer(socket: &OwnedFd, at: &Address) -> Result<String> {
    let what = |errno| rustix_error(errno, format_args!("ask who is at the other end of {at}"));
    match at {
        Address::Abstract(_) => {
            let (ours, peer) = (effective_uid(), names::peer(socket, at)?);
            if peer.uid != ours && !off(Switch::PeerUser) {
                return Err(Error::unavailable(format!(
                    "{at}: expected a process of user {ours}, found {peer}"
                ))
                .next("end that process, or ask its user to"));
            }
            // Ranks hand connections to agents.
            Ok(format!(
                "process {} (or one that it handed the connection to) at {at}",
                peer.pid
            ))
        }
        Address::Tcp(_) => {
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let _ = sockopt::set_socket_keepalive(socket, true);
            // A node that lost power reports nothing: it counts as gone after half a minute.
            let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(10));
            let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
            let _ = sockopt::set_tcp_keepcnt(socket, 4);
            let limit_ms = KERNEL_SILENCE.as_millis() as u32;
            let _ = sockopt::set_tcp_user_timeout(socket, limit_ms);
            let peer = net::getpeername(socket).map_err(what)?;
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            Ok(peer.map_or_else(
                || "an unnamed peer".to_owned(),
                |peer| format!("tcp:{peer}"),
            ))
        }
    }
}

/// The expected peer, on which messages and next steps depend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// A process of the same run.
    Rank,
    /// A staging server.
    Server,
}

impl Conn {
    /// Connects to a listener within `timeout`; both sides prove that they know the key.
    pub fn connect(
        at: &Address,
        key: &Key,
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Conn> {
        connect(at, Whom::Rank, key, failpoints, timeout)
    }

    /// The same for a staging server, with messages that fit one.
    pub fn connect_to_server(
        at: &Address,
        key: &Key,
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Conn> {
        connect(at, Whom::Server, key, failpoints, timeout)
    }

    /// The same for a listener that identifies users by MUNGE.
    ///
    /// # Errors
    /// Unsupported if libmunge is not installed; Unavailable, with the reason, if the credential is
    /// refused.
    pub fn connect_as_user(
        at: &Address,
        caller: &AsUser,
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Conn> {
        connect_as_user(at, caller, failpoints, timeout)
    }
}

/// The caller's side: connects and completes the handshake before the deadline. A listener that
/// hangs up during the handshake had no room for another caller, and is called again.
pub(crate) fn connect(
    at: &Address,
    whom: Whom,
    key: &Key,
    failpoints: &Failpoints,
    timeout: Duration,
) -> Result<Conn> {
    let known = || Ok((key.clone(), Vec::new()));
    connect_by((at, whom), &known, failpoints, timeout)
}

/// The same with a MUNGE credential, which identifies the user of this process.
pub(crate) fn connect_as_user(
    at: &Address,
    caller: &AsUser,
    failpoints: &Failpoints,
    timeout: Duration,
) -> Result<Conn> {
    // A new one for each call: none is accepted twice.
    let known = || {
        let (key, credential) = munge::seal(caller)?;
        let len = u16::try_from(credential.len()).unwrap_or(u16::MAX);
        let opening = [OPENING.as_slice(), &len.to_le_bytes(), &credential].concat();
        Ok((key, opening))
    };
    connect_by((at, Whom::Server), &known, failpoints, timeout)
}

/// `known` supplies the key, and what is sent before the handshake.
pub(crate) fn connect_by(
    (at, whom): (&Address, Whom),
    known: &dyn Fn() -> Result<(Key, Vec<u8>)>,
    failpoints: &Failpoints,
    timeout: Duration,
) -> Result<Conn> {
    let deadline = Deadline::after(if off(Switch::ConnectDeadline) {
        timeout.saturating_mul(400)
    } else {
        timeout
    });
    if let Some(errno) = failpoints.refuse("net.connect", &at.to_string()) {
        let errno = Errno::from_raw_os_error(errno);
        return Err(rustix_error(errno, format_args!("connect to {at}")));
    }
    let mut attempt = 0;
    loop {
        let (key, opening) = known()?;
        if let Some(conn) = connect_once(
            (at, whom),
            (&key, &opening),
            failpoints,
            (timeout, deadline),
        )? {
            return Ok(conn);
        }
        if deadline.passed() {
            return Err(Error::unavailable(format!(
                "connect to {at}: the listener hung up on {} of {0} calls within {} s",
                attempt + 1,
                timeout.as_secs_f64()
            ))
            .next("look for a crowd of strangers at that address, or another program there"));
        }
        backoff(attempt, deadline);
        attempt += 1;
    }
}

/// `None` if the listener hung up before it had proven the key.
pub(crate) fn connect_once(
    (at, whom): (&Address, Whom),
    (key, opening): (&Key, &[u8]),
    failpoints: &Failpoints,
    (timeout, deadline): (Duration, Deadline),
) -> Result<Option<Conn>> {
    let what = |errno| rustix_error(errno, format_args!("connect to {at}"));
    let late = || no_answer(at, whom, timeout);
    let Some(socket) = reach(at, deadline)? else {
        return Err(late());
    };
    let peer = check_peer(&socket, at)?;
    let caller = key.challenge();
    let hello = [opening, &HELLO, &caller].concat();
    let mut answer = [0; ANSWER_BYTES];
    let said = send_exactly(&socket, &hello, deadline);
    let heard = match said {
        Ok(true) => receive_exactly(&socket, &mut answer, deadline),
        other => other,
    };
    match heard {
        Ok(true) => {}
        Ok(false) => return Err(late()),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(None),
        Err(errno) => return Err(what(errno)),
    }
    let refused = answer
        .strip_prefix(&REFUSED)
        .filter(|_| !opening.is_empty());
    if let Some([why, a, b, c, d, ..]) = refused {
        let uid = u32::from_le_bytes([*a, *b, *c, *d]);
        return Err(munge::refused(*why, uid).at(at));
    }
    let (mut listener, mut given) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
    listener.copy_from_slice(&answer[..NONCE_BYTES]);
    given.copy_from_slice(&answer[NONCE_BYTES..]);
    let challenges = Challenges { caller, listener };
    let given = blake3::Hash::from_bytes(given);
    let key = believe(&challenges, given, key.at(at), (at, whom))?;
    let proof = challenges.caller_proof(&key);
    send_exactly(&socket, proof.as_bytes(), deadline)
        .map_err(what)?
        .then_some(())
        .ok_or_else(late)?;
    let guards = challenges.guards(&key)?;
    let unix = at.is_unix();
    Ok(Some(Conn::new(socket, unix, peer, guards, failpoints)))
}

fn no_answer(at: &Address, whom: Whom, timeout: Duration) -> Error {
    Error::unavailable(format!(
        "connect to {at}: no answer within {} s",
        timeout.as_secs_f64()
    ))
    .next(match whom {
        _ if at.is_unix() => {
            "check whether the process that listens there is stopped or hangs, and end it if it does"
        }
        Whom::Rank => "check that the node is up and that the ranks' network can be reached",
        Whom::Server => "check that the server runs, and that this host reaches it",
    })
}

/// A connected socket; `None` if that takes too long.
fn reach(at: &Address, deadline: Deadline) -> Result<Option<OwnedFd>> {
    let what = |errno| rustix_error(errno, format_args!("connect to {at}"));
    let socket = at.socket()?;
    let raw = at.raw()?;
    let mut attempt = 0;
    loop {
        match net::connect(&socket, &raw) {
            Ok(()) | Err(Errno::ISCONN) if is_itself(&socket) => {
                return Err(what(Errno::CONNREFUSED));
            }
            Ok(()) | Err(Errno::ISCONN) => return Ok(Some(socket)),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {
                if !poll_one(socket.as_fd(), PollFlags::OUT, deadline).map_err(what)? {
                    return Ok(None);
                }
                sockopt::socket_error(&socket)
                    .map_err(what)?
                    .map_err(what)?;
            }
            // The listener's queue is full; a Unix socket does not report when it no longer is.
            Err(Errno::AGAIN) if !deadline.passed() => {
                backoff(attempt, deadline);
                attempt += 1;
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(what(errno)),
        }
    }
}

/// The key that the listener has proven.
///
/// # Errors
/// Unavailable if it knows another key; Invalid if one side encrypts and the other does not.
fn believe(
    challenges: &Challenges,
    given: blake3::Hash,
    mut key: Key,
    (at, whom): (&Address, Whom),
) -> Result<Key> {
    let other_form = key.other_form();
    if given == challenges.listener_proof(&other_form) && !at.is_unix() {
        // Breaks if: the listener's form is adopted; whoever can change one option would expose
        // what all should hide.
        if !off(Switch::NetDowngrade) {
            return Err(other_side(at, whom, key.encrypt));
        }
        key = other_form;
    }
    if given != challenges.listener_proof(&key) && !off(Switch::ListenerProof) {
        return Err(match whom {
            Whom::Rank => {
                Error::unavailable(format!("{at}: the listener does not know this job's key")).next(
                    "check that no other job listens there and that all ranks belong to one run",
                )
            }
            // Breaks if: the message is the one for ranks; the user would look for another job
            // instead of the right key.
            Whom::Server => Error::unavailable(format!("{at}: the server does not know this key"))
                .with(Detail::UnknownKey)
                .next(
                "give the key that this server has for you: ?key=SOURCE in the address, or ORCHECK_SERVER_KEY",
            ),
        });
    }
    Ok(key)
}

/// Whether a socket is connected to itself. If nobody listens at a port of this machine, the kernel
/// may assign that very port to the caller, which would keep it from the process that is to listen
/// there again.
pub(crate) fn is_itself(socket: &OwnedFd) -> bool {
    let ends = (net::getsockname(socket), net::getpeername(socket));
    matches!(ends, (Ok(own), Ok(Some(peer))) if own.address_family() != AddressFamily::UNIX && own == peer)
}

/// The error that one side encrypts and the other does not.
pub(crate) fn other_side(at: &Address, whom: Whom, encrypt: bool) -> Error {
    let (who, other) = match (whom, encrypt) {
        (Whom::Rank, true) => ("this rank", "the other one"),
        (Whom::Rank, false) => ("the other rank", "this one"),
        (Whom::Server, true) => ("the address", "the server"),
        (Whom::Server, false) => ("the server", "the address"),
    };
    let asks = match whom {
        Whom::Rank => "encrypts what it sends",
        Whom::Server => "asks for encryption",
    };
    Error::invalid(format!(
        "{at}: refused, because {who} {asks} and {other} does not"
    ))
    .next(match (whom, encrypt) {
        (Whom::Rank, _) => "give all ranks of the job the same net_encrypt",
        (Whom::Server, true) => {
            "take `encrypt` out of the address, or start the server with --encrypt"
        }
        (Whom::Server, false) => "add `encrypt` to the address of the server, behind '?' or '&'",
    })
}

/// `Ok(false)`: the deadline has passed.
pub(crate) fn send_exactly(
    socket: &OwnedFd,
    mut bytes: &[u8],
    deadline: Deadline,
) -> rustix::io::Result<bool> {
    while !bytes.is_empty() {
        match net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !poll_one(socket.as_fd(), PollFlags::OUT, deadline)? {
                    return Ok(false);
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

pub(crate) fn receive_exactly(
    socket: &OwnedFd,
    mut bytes: &mut [u8],
    deadline: Deadline,
) -> rustix::io::Result<bool> {
    while !bytes.is_empty() {
        match net::recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Errno::CONNRESET),
            Ok((count, _)) => bytes = bytes.get_mut(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !poll_one(socket.as_fd(), PollFlags::IN, deadline)? {
                    return Ok(false);
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Listener;

    // Breaks if: it counts as a connection; the returning listener could not get its port.
    #[test]
    fn a_socket_that_is_connected_to_itself_is_noticed() {
        let at = Address::Tcp(([127, 0, 0, 1], 0).into());
        let socket = at.socket().unwrap();
        net::bind(&socket, &at.raw().unwrap()).unwrap();
        let own = net::getsockname(&socket).unwrap();
        let connected = net::connect(&socket, &own);
        assert!(matches!(connected, Ok(()) | Err(Errno::INPROGRESS)));
        let deadline = Deadline::after(Duration::from_secs(20));
        assert!(poll_one(socket.as_fd(), PollFlags::OUT, deadline).unwrap());
        assert!(is_itself(&socket));
        let listener = Listener::bind(&at).unwrap();
        let socket = at.socket().unwrap();
        let connected = net::connect(&socket, &listener.address().raw().unwrap());
        assert!(matches!(connected, Ok(()) | Err(Errno::INPROGRESS)));
        assert!(!is_itself(&socket));
    }
}
