//! Implements listeners, which keep half-open connections and hand over those that have proven
//! themselves.
//!
//! How: a listener keeps half-open connections aside and continues with whichever sends something,
//! so that a silent stranger keeps nobody waiting. The handshake and its invariants are in
//! `handshake.rs`.

mod pending;

use crate::address::Address;
use crate::conn::Conn;
use crate::handshake::{
    ANSWER_BYTES, BACKLOG, HELLO, HELLO_BYTES, OPENING, OPENING_BYTES, PROOF_BYTES, REFUSED,
    check_peer,
};
use crate::key::Key;
use crate::munge::Users;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::descriptor::{self, Living};
use orcheck_io::errno::{retry, rustix_error};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::poll_until;
use pending::{Known, Pending, Progress};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Time within which a caller must have proven its key.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of callers at a time that have not proven their key.
const PENDING_LIMIT: usize = 64;

/// Callers that were refused since the last query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// The last of them, and why it was refused.
    pub last: String,
}

impl Refusals {
    fn add(&mut self, peer: &str, why: &str) {
        self.count += 1;
        self.last = format!("{peer}: {why}");
    }
}

/// Accepts connections; readable ([`AsFd`]) if [`Listener::accept`] has something to do. Only one
/// thread at a time may accept.
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

    /// Continues to listen at the address for another process, which sent the descriptor.
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

    /// What another process needs to continue listening. Peers in the middle of a handshake are
    /// dropped.
    #[must_use]
    pub fn detach(self) -> (OwnedFd, Address) {
        (self.socket.give(), self.at)
    }

    /// The address, with the chosen port.
    #[must_use]
    pub fn address(&self) -> Address {
        self.at.clone()
    }

    /// The callers that were refused since the last query: they follow the protocol, and have
    /// another key or none.
    #[must_use]
    pub fn take_refusals(&self) -> Refusals {
        std::mem::take(&mut *self.refusals())
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most `timeout` for a peer that knows the key. `None`: nobody came, or a stranger
    /// came and was dropped; call again.
    pub fn accept(
        &self,
        key: &Key,
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Option<Conn>> {
        let came = self.accept_one_of(std::slice::from_ref(key), failpoints, timeout)?;
        Ok(came.map(|(_, conn)| conn))
    }

    /// The same for a peer that knows one of several keys; returns which one.
    ///
    /// # Panics
    /// If there is no key.
    pub fn accept_one_of(
        &self,
        keys: &[Key],
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Option<(usize, Conn)>> {
        assert!(!keys.is_empty(), "a listener without a key");
        self.accept_known(keys, None, failpoints, timeout)
    }

    /// The same for a peer that knows one of several keys, or is one of several users; returns
    /// which one (for users, the number they were given with).
    pub fn accept_known(
        &self,
        keys: &[Key],
        users: Option<&Users>,
        failpoints: &Failpoints,
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
            for number in self.ready().map_err(failed)? {
                if number == 0 {
                    *numbers += 1;
                    self.take_in(*numbers, pending)?;
                    continue;
                }
                let mut numbered = pending.iter_mut().enumerate();
                let Some((at, one)) = numbered.find(|(_, one)| one.number == number) else {
                    continue;
                };
                match one.advance(&known, &mut self.refusals()) {
                    Progress::Waits => {}
                    Progress::Dropped => {
                        pending.remove(at);
                        return Ok(None);
                    }
                    Progress::Proven(challenges, key, which) => {
                        let Pending { socket, peer, .. } = pending.remove(at);
                        let _ = epoll::delete(&self.watched, &socket);
                        let (receive, send) = challenges.guards(&key)?;
                        let (socket, unix) = (socket.give(), self.at.is_unix());
                        let conn = Conn::new(socket, unix, peer, (send, receive), failpoints);
                        return Ok(Some((which, conn)));
                    }
                }
            }
            // Breaks if: this waits until nobody comes; a crowd would keep the thread here.
            if deadline.passed() && !off(Switch::AcceptDeadline) {
                return Ok(None);
            }
        }
    }

    /// Numbers of half-open connections that have sent something; 0: there is a new one.
    fn ready(&self) -> std::result::Result<Vec<u64>, Errno> {
        let mut events = Vec::with_capacity(16);
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        retry(|| {
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.watched, room, Some(&now))
        })?;
        Ok(events.iter().map(|event| { event.data }.u64()).collect())
    }

    /// Accepts one new connection as half-open.
    fn take_in(&self, number: u64, pending: &mut Vec<Pending>) -> Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match retry(|| descriptor::accept(&self.socket, flags)) {
            Ok(socket) => socket,
            // A shortage of our own would otherwise make this spin; every other error concerns the
            // peer and passes.
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
            // Breaks if: the oldest is dropped whoever it is; a silent crowd would push out a peer
            // in its handshake.
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

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: `take_in` keeps everybody who comes; strangers would take every descriptor of the
    // process.
    #[test]
    fn half_open_connections_are_bounded() {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let Address::Tcp(at) = listener.address() else {
            unreachable!()
        };
        #[allow(clippy::disallowed_methods)] // strangers do not use our own API
        let strangers: Vec<_> = (0..PENDING_LIMIT + 10)
            .map(|_| std::net::TcpStream::connect(at).unwrap())
            .collect();
        let taken_in = || listener.pending.lock().unwrap().0;
        let give_up = Deadline::after(Duration::from_secs(20));
        while taken_in() < strangers.len() as u64 && !give_up.passed() {
            let came = listener.accept(
                &Key::new([0; 32]),
                &Failpoints::none(),
                Duration::from_millis(20),
            );
            assert!(came.unwrap().is_none());
        }
        assert_eq!(taken_in(), strangers.len() as u64);
        let (_, pending) = &*listener.pending.lock().unwrap();
        assert_eq!(pending.len(), PENDING_LIMIT);
    }

    // Breaks if: `accept` continues as long as somebody comes; its thread would do nothing else
    // meanwhile.
    #[test]
    fn a_crowd_is_taken_in_little_by_little() {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let Address::Tcp(at) = listener.address() else {
            unreachable!()
        };
        #[allow(clippy::disallowed_methods)] // strangers do not use our own API
        let _crowd: Vec<_> = (0..200)
            .map(|_| std::net::TcpStream::connect(at).unwrap())
            .collect();
        let came = listener.accept(&Key::new([0; 32]), &Failpoints::none(), Duration::ZERO);
        assert!(came.unwrap().is_none());
        assert!((1..=16).contains(&listener.pending.lock().unwrap().0));
    }
}
