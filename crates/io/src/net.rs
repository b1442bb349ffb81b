//! Addresses, listeners, and the handshake that opens a connection.
//!
//! How: abstract Unix sockets inside a node, TCP between nodes. Both sides prove that they know the job's key by
//! answering the other's random challenge, and derive one session key per direction from both challenges, so
//! that nothing recorded on one connection means anything on another. The listener proves itself first. A
//! listener keeps half-open connections aside and goes on with whichever speaks, so that a silent stranger keeps
//! nobody waiting.
//!
//! Invariants
//! 1. No byte beyond the two fixed-size messages of the handshake is read from a peer that has not proven the key.
//! 2. On a Unix socket both sides check that the other runs under the same user.
//! 3. At most 64 half-open connections are kept (the oldest goes first, of those that said nothing yet if there are any),
//!    none longer than 5 s. A caller that was sent away for that comes again, until its deadline.
//! 4. Every wait has a deadline; a stranger's behaviour is never an error of ours.
//! 5. The proofs of the two sides and the two session keys are made under different labels, so that no message
//!    of one side can be reflected as one of the other.
//! 6. Over TCP both sides encrypt, or none does: proofs and session keys of the two forms differ, so that nobody on the
//!    way can talk one side out of it.
//!
//! Faults survived: strangers that are silent, talk nonsense, connect many times, replay a recorded handshake.
//!
//! Not here: frames (see [`crate::conn`]), how they are encrypted ([`crate::guard`]).

mod here;
mod key;
mod munge;
mod names;
mod pending;

pub use here::{effective_uid, host_name, local_addresses, process_id};
pub use key::Key;
pub use munge::{AsUser, Users};
pub use names::{Holder, Peer, holder, taken_names};

use crate::clock::Deadline;
use crate::conn::Conn;
use crate::descriptor::{self, Living};
use crate::dir::retry;
use crate::error::rustix_error;
use crate::file::backoff;
use crate::poll::{poll_one, poll_until};
use crate::steps::Steps;
use key::{Challenges, NONCE_BYTES};
use orcheck_format::error::Detail;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use pending::{Known, Pending, Progress};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, sockopt,
};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Where a listener is reached. As text: `unix:@name` or `tcp:ip:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A name in the abstract space of Unix sockets: no file, gone with its owner.
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
    fn family(&self) -> AddressFamily {
        match self {
            Address::Abstract(_) => AddressFamily::UNIX,
            Address::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        }
    }

    /// The address as the kernel takes it.
    fn raw(&self) -> Result<SocketAddrAny> {
        match self {
            Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())
                .map(Into::into)
                .map_err(|errno| rustix_error(errno, format_args!("use the address {self}"))),
            Address::Tcp(at) => Ok((*at).into()),
        }
    }

    fn socket(&self) -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        descriptor::socket(self.family(), flags)
            .map_err(|errno| rustix_error(errno, format_args!("make a socket for {self}")))
    }

    fn is_unix(&self) -> bool {
        matches!(self, Address::Abstract(_))
    }
}

const HELLO: [u8; 8] = *b"ORCnet1\n";
/// What comes before it with a MUNGE credential: this, the credential's length in two bytes, the credential.
const OPENING: [u8; 8] = *b"ORCmng1\n";
const OPENING_BYTES: usize = OPENING.len() + 2;
/// The answer to a credential that is refused: this, why in one byte, the listener's user in four, zeros.
const REFUSED: [u8; 8] = *b"ORCno 1\n";
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = HELLO.len() + NONCE_BYTES;
const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
const PENDING_LIMIT: usize = 64;
const BACKLOG: i32 = 1024;

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

/// Callers that did not prove what they had to since it was asked last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// Who was the last one, and why it was refused.
    pub last: String,
}

impl Refusals {
    fn add(&mut self, peer: &str, why: &str) {
        self.count += 1;
        self.last = format!("{peer}: {why}");
    }
}

/// Accepts connections; readable ([`AsFd`]) when [`Listener::accept`] has something to do. One thread at a time
/// may accept.
pub struct Listener {
    socket: Living,
    watched: OwnedFd,
    at: Address,
    pending: Mutex<(u64, Vec<Pending>)>,
    refusals: Mutex<Refusals>,
}

impl Listener {
    /// Listens at an address; TCP port 0 lets the kernel choose one, see [`Listener::address`].
    pub fn bind(at: &Address) -> Result<Listener> {
        let what = |errno| rustix_error(errno, format_args!("listen at {at}"));
        let socket = at.socket()?;
        if !at.is_unix() {
            sockopt::set_socket_reuseaddr(&socket, true).map_err(what)?;
        }
        net::bind(&socket, &at.raw()?).map_err(what)?;
        net::listen(&socket, BACKLOG).map_err(what)?;
        let at = match at {
            Address::Abstract(_) => at.clone(),
            Address::Tcp(_) => {
                let bound = net::getsockname(&socket).map_err(what)?;
                Address::Tcp(SocketAddr::try_from(bound).map_err(what)?)
            }
        };
        Listener::attach(socket, at)
    }

    /// Goes on listening at the address for another process, which sent the descriptor.
    pub fn attach(socket: OwnedFd, at: Address) -> Result<Listener> {
        let what = |errno| rustix_error(errno, format_args!("listen at {at}"));
        let watched = descriptor::watched().map_err(what)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&watched, &socket, data, epoll::EventFlags::IN).map_err(what)?;
        Ok(Listener {
            socket: Living::new(socket),
            watched,
            at,
            pending: Mutex::new((0, Vec::new())),
            refusals: Mutex::default(),
        })
    }

    /// What another process needs to go on listening. Peers that were shaking hands here are dropped.
    #[must_use]
    pub fn detach(self) -> (OwnedFd, Address) {
        (self.socket.give(), self.at)
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> Address {
        self.at.clone()
    }

    /// Who was refused since this was asked last: callers that keep to the protocol, and have another key or none.
    #[must_use]
    pub fn take_refusals(&self) -> Refusals {
        std::mem::take(&mut *self.refusals())
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a peer that knows the key, at most `timeout`. `None`: nobody came, or a stranger came and was
    /// dropped; call again.
    pub fn accept(&self, key: &Key, steps: &Steps, timeout: Duration) -> Result<Option<Conn>> {
        let came = self.accept_one_of(std::slice::from_ref(key), steps, timeout)?;
        Ok(came.map(|(_, conn)| conn))
    }

    /// The same for a peer that knows one of several keys; tells which one.
    ///
    /// # Panics
    /// Without a key.
    pub fn accept_one_of(
        &self,
        keys: &[Key],
        steps: &Steps,
        timeout: Duration,
    ) -> Result<Option<(usize, Conn)>> {
        assert!(!keys.is_empty(), "a listener without a key");
        self.accept_known(keys, None, steps, timeout)
    }

    /// The same for a peer that knows one of several keys, or is one of several users; tells which one (of the users: what
    /// they were given with).
    pub fn accept_known(
        &self,
        keys: &[Key],
        users: Option<&Users>,
        steps: &Steps,
        timeout: Duration,
    ) -> Result<Option<(usize, Conn)>> {
        let deadline = Deadline::after(timeout);
        let mut pending = match self.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::invalid(format!(
                    "{}: another thread is accepting",
                    self.at
                )));
            }
        };
        let (numbers, pending) = &mut *pending;
        let keys: Vec<Key> = keys.iter().map(|key| key.at(&self.at)).collect();
        let known = Known { keys: &keys, users };
        loop {
            pending.retain(|one| !one.until.passed());
            let look_again = pending
                .iter()
                .fold(deadline, |least, one| least.earlier(one.until));
            let failed =
                |errno| rustix_error(errno, format_args!("wait for a peer at {}", self.at));
            let mut entries = [PollFd::from_borrowed_fd(
                self.watched.as_fd(),
                PollFlags::IN,
            )];
            if !poll_until(&mut entries, look_again).map_err(failed)? {
                if deadline.passed() {
                    return Ok(None);
                }
                continue;
            }
            let mut events = Vec::with_capacity(16);
            let now = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            retry(|| {
                epoll::wait(
                    &self.watched,
                    rustix::buffer::spare_capacity(&mut events),
                    Some(&now),
                )
            })
            .map_err(failed)?;
            for event in &events {
                let data = event.data;
                let number = data.u64();
                if number == 0 {
                    *numbers += 1;
                    self.take_in(*numbers, pending)?;
                    continue;
                }
                let Some(at) = pending.iter().position(|one| one.number == number) else {
                    continue;
                };
                match pending[at].advance(&known, &mut self.refusals()) {
                    Progress::Waits => {}
                    Progress::Dropped => {
                        pending.remove(at);
                        return Ok(None);
                    }
                    Progress::Proven(challenges, which) => {
                        let proven = pending.remove(at);
                        let _ = epoll::delete(&self.watched, &proven.socket);
                        let (receive, send) = challenges.guards(proven.key(&known, which))?;
                        let Pending { socket, peer, .. } = proven;
                        let unix = self.at.is_unix();
                        let conn = Conn::new(socket.give(), unix, peer, (send, receive), steps);
                        return Ok(Some((which, conn)));
                    }
                }
            }
            // Breaks if: it is looked at only when nobody comes; strangers who keep coming would keep the thread here.
            if deadline.passed() && !off(Switch::AcceptDeadline) {
                return Ok(None);
            }
        }
    }

    /// Takes one new connection in as half-open.
    fn take_in(&self, number: u64, pending: &mut Vec<Pending>) -> Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match retry(|| descriptor::accept(&self.socket, flags)) {
            Ok(socket) => socket,
            // Our own shortage would otherwise spin; everything else is the peer's and passes.
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                return Err(rustix_error(
                    errno,
                    format_args!("accept a connection at {}", self.at),
                )
                .next("raise the limit of open files (ulimit -n)"));
            }
            Err(_) => return Ok(()),
        };
        let Ok(peer) = check_peer(&socket, &self.at) else {
            return Ok(());
        };
        if pending.len() >= PENDING_LIMIT && !off(Switch::HalfOpen) {
            // Breaks if: the oldest goes whoever it is; a crowd that says nothing would push out who is shaking hands.
            let silent = |one: &Pending| one.answered.is_none() && !off(Switch::SilentFirst);
            let goes = pending.iter().position(silent).unwrap_or(0);
            pending.remove(goes);
        }
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.watched, &socket, data, epoll::EventFlags::IN).is_ok() {
            let until = Deadline::after(HANDSHAKE_LIMIT);
            pending.push(Pending {
                socket: Living::new(socket),
                number,
                peer,
                until,
                heard: Vec::new(),
                answered: None,
                credential: None,
            });
        }
        Ok(())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

/// Checks who is at the other end, as far as the kernel knows, and describes it.
fn check_peer(socket: &OwnedFd, at: &Address) -> Result<String> {
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
            Ok(format!("process {} at {at}", peer.pid))
        }
        Address::Tcp(_) => {
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let _ = sockopt::set_socket_keepalive(socket, true);
            // A node that lost its power says nothing: it counts as gone after half a minute.
            let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(10));
            let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
            let _ = sockopt::set_tcp_keepcnt(socket, 4);
            let _ = sockopt::set_tcp_user_timeout(socket, 30_000);
            let peer = net::getpeername(socket).map_err(what)?;
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            Ok(peer.map_or_else(
                || "an unnamed peer".to_owned(),
                |peer| format!("tcp:{peer}"),
            ))
        }
    }
}

/// Who is expected at the other end: what a caller is told, and should do, depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// A process of the same run.
    Rank,
    /// A staging I/O server.
    Server,
}

/// The caller's side: connects and shakes hands, all before the deadline. A listener that hangs up in the middle of it had
/// no room for another caller: it is asked again.
pub(crate) fn connect(
    at: &Address,
    whom: Whom,
    key: &Key,
    steps: &Steps,
    timeout: Duration,
) -> Result<Conn> {
    let known = || Ok((key.clone(), Vec::new()));
    connect_by((at, whom), &known, steps, timeout)
}

/// The same with a MUNGE credential that says under which user this process runs.
pub(crate) fn connect_as_user(
    at: &Address,
    caller: &AsUser,
    steps: &Steps,
    timeout: Duration,
) -> Result<Conn> {
    // A new one for each call: none is taken twice.
    let known = || {
        let (key, credential) = munge::seal(caller)?;
        let len = u16::try_from(credential.len()).unwrap_or(u16::MAX);
        let opening = [OPENING.as_slice(), &len.to_le_bytes(), &credential].concat();
        Ok((key, opening))
    };
    connect_by((at, Whom::Server), &known, steps, timeout)
}

/// `known` gives the key, and what is sent before the handshake.
fn connect_by(
    (at, whom): (&Address, Whom),
    known: &dyn Fn() -> Result<(Key, Vec<u8>)>,
    steps: &Steps,
    timeout: Duration,
) -> Result<Conn> {
    let deadline = Deadline::after(if off(Switch::ConnectDeadline) {
        timeout.saturating_mul(400)
    } else {
        timeout
    });
    if let Some(errno) = steps.refuse("net.connect", &at.to_string()) {
        let errno = Errno::from_raw_os_error(errno);
        return Err(rustix_error(errno, format_args!("connect to {at}")));
    }
    let mut attempt = 0;
    loop {
        let (key, opening) = known()?;
        if let Some(conn) = connect_once((at, whom), (&key, &opening), steps, (timeout, deadline))?
        {
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

/// `None`: the listener hung up before it had proven the key.
fn connect_once(
    (at, whom): (&Address, Whom),
    (key, opening): (&Key, &[u8]),
    steps: &Steps,
    (timeout, deadline): (Duration, Deadline),
) -> Result<Option<Conn>> {
    let what = |errno| rustix_error(errno, format_args!("connect to {at}"));
    let late = || {
        Error::unavailable(format!(
            "connect to {at}: no answer within {} s",
            timeout.as_secs_f64()
        ))
        .next(match whom {
            Whom::Rank => "check that the node is up and that the ranks' network can be reached",
            Whom::Server => "check that the server runs, and that this host reaches it",
        })
    };
    let socket = at.socket()?;
    let raw = at.raw()?;
    let mut attempt = 0;
    loop {
        match net::connect(&socket, &raw) {
            Ok(()) | Err(Errno::ISCONN) if is_itself(&socket) => {
                return Err(what(Errno::CONNREFUSED));
            }
            Ok(()) | Err(Errno::ISCONN) => break,
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {
                if !poll_one(socket.as_fd(), PollFlags::OUT, deadline).map_err(what)? {
                    return Err(late());
                }
                sockopt::socket_error(&socket)
                    .map_err(what)?
                    .map_err(what)?;
            }
            // The listener's queue is full; a Unix socket does not say when it no longer is.
            Err(Errno::AGAIN) if !deadline.passed() => {
                backoff(attempt, deadline);
                attempt += 1;
            }
            Err(Errno::AGAIN) => return Err(late()),
            Err(errno) => return Err(what(errno)),
        }
    }
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
    if !opening.is_empty() && answer.starts_with(&REFUSED) {
        let (why, rest) = (answer[REFUSED.len()], &answer[REFUSED.len() + 1..]);
        let uid = u32::from_le_bytes(array(rest));
        return Err(munge::refused(why, uid).at(at));
    }
    let challenges = Challenges {
        caller,
        listener: array(&answer),
    };
    let given = blake3::Hash::from_bytes(array(&answer[NONCE_BYTES..]));
    let mut key = key.at(at);
    let other_form = key.other_form();
    if given == challenges.listener_proof(&other_form) && !at.is_unix() {
        // Breaks if: the listener's form is taken over; whoever can change one option opens what all should hide.
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
            // Breaks if: it is told as between ranks; the user would look for another job instead of the right key.
            Whom::Server => Error::unavailable(format!("{at}: the server does not know this key"))
                .with(Detail::UnknownKey)
                .next(
                "give the key that this server has for you: ?key=SOURCE in the address, or ORCHECK_SERVER_KEY",
            ),
        });
    }
    let proof = challenges.caller_proof(&key);
    send_exactly(&socket, proof.as_bytes(), deadline)
        .map_err(what)?
        .then_some(())
        .ok_or_else(late)?;
    let guards = challenges.guards(&key)?;
    let unix = at.is_unix();
    Ok(Some(Conn::new(socket, unix, peer, guards, steps)))
}

/// Whether a socket is connected to itself: where nobody listens at a port of this machine, the kernel may give the caller
/// that very port. It would keep the port from whoever is to listen there again.
fn is_itself(socket: &OwnedFd) -> bool {
    let ends = (net::getsockname(socket), net::getpeername(socket));
    matches!(ends, (Ok(own), Ok(Some(peer))) if own.address_family() != AddressFamily::UNIX && own == peer)
}

/// One side encrypts, and the other one does not.
fn other_side(at: &Address, whom: Whom, encrypt: bool) -> Error {
    let (ours, theirs) = if encrypt {
        ("encrypts", "does not")
    } else {
        ("does not encrypt", "does")
    };
    Error::invalid(format!(
        "{at}: this side {ours} what it sends, the listener {theirs}; the connection is refused"
    ))
    .next(match (whom, encrypt) {
        (Whom::Rank, _) => "give all ranks of the job the same net_encrypt",
        (Whom::Server, true) => {
            "take `encrypt` out of the address, or start the server with --encrypt"
        }
        (Whom::Server, false) => "add `encrypt` to the address of the server, behind '?' or '&'",
    })
}

/// `Ok(false)`: the deadline passed.
fn send_exactly(
    socket: &OwnedFd,
    mut bytes: &[u8],
    deadline: Deadline,
) -> rustix::io::Result<bool> {
    while !bytes.is_empty() {
        match net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
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

fn receive_exactly(
    socket: &OwnedFd,
    bytes: &mut [u8],
    deadline: Deadline,
) -> rustix::io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        match net::recv(socket, &mut bytes[done..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Errno::CONNRESET),
            Ok((count, _)) => done += count,
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
        assert!(!format!("{:?}", Key::new([7; 32])).contains('7'));
    }

    // Breaks if: `take_in` keeps all who come; strangers would take every descriptor of the process.
    #[test]
    fn half_open_connections_are_bounded() {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let Address::Tcp(at) = listener.address() else {
            unreachable!()
        };
        #[allow(clippy::disallowed_methods)] // strangers do not come through this door
        let strangers: Vec<_> = (0..PENDING_LIMIT + 10)
            .map(|_| std::net::TcpStream::connect(at).unwrap())
            .collect();
        let taken_in = || listener.pending.lock().unwrap().0;
        let give_up = Deadline::after(Duration::from_secs(20));
        while taken_in() < strangers.len() as u64 && !give_up.passed() {
            let came = listener.accept(
                &Key::new([0; 32]),
                &Steps::none(),
                Duration::from_millis(20),
            );
            assert!(came.unwrap().is_none());
        }
        assert_eq!(taken_in(), strangers.len() as u64);
        let (_, pending) = &*listener.pending.lock().unwrap();
        assert_eq!(pending.len(), PENDING_LIMIT);
    }

    // Breaks if: `accept` goes on as long as somebody comes; its thread would do nothing else for so long.
    #[test]
    fn a_crowd_is_taken_in_little_by_little() {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let Address::Tcp(at) = listener.address() else {
            unreachable!()
        };
        #[allow(clippy::disallowed_methods)] // strangers do not come through this door
        let _crowd: Vec<_> = (0..200)
            .map(|_| std::net::TcpStream::connect(at).unwrap())
            .collect();
        let came = listener.accept(&Key::new([0; 32]), &Steps::none(), Duration::ZERO);
        assert!(came.unwrap().is_none());
        assert!((1..=16).contains(&listener.pending.lock().unwrap().0));
    }

    #[test]
    fn proofs_and_keys_differ_by_side_and_challenge() {
        let key = Key::new([1; 32]);
        let hides = key.other_form();
        let one = Challenges {
            caller: [2; 32],
            listener: [3; 32],
        };
        let two = Challenges {
            caller: [2; 32],
            listener: [4; 32],
        };
        // Breaks if: two labels are equal, or a challenge is left out of the derivation.
        let mut all = vec![
            one.listener_proof(&key),
            one.caller_proof(&key),
            blake3::Hash::from_bytes(one.session(&key).0),
            blake3::Hash::from_bytes(one.session(&key).1),
            two.listener_proof(&key),
            two.caller_proof(&key),
            one.listener_proof(&hides),
            one.caller_proof(&hides),
            blake3::Hash::from_bytes(one.session(&hides).0),
            blake3::Hash::from_bytes(one.session(&hides).1),
        ];
        all.sort_by_key(|hash| *hash.as_bytes());
        all.dedup();
        assert_eq!(all.len(), 10);
    }

    // Breaks if: it is taken for a connection; the port is then kept from the listener that is to come back.
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

    #[test]
    fn this_machine_has_a_name_and_addresses() {
        assert!(!host_name().is_empty());
        assert!(!local_addresses().unwrap().is_empty());
        assert_eq!(process_id(), std::process::id());
    }
}
