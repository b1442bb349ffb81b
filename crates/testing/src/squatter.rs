//! Another user of this machine who holds names of Unix sockets before their owner comes.
//!
//! How: the names are taken on a thread that becomes the other user; the kernel keeps whose a
//! socket was when it began to listen. Needs root.
//!
//! Not here: what is done to those who call.

use super::hardship::become_user;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::OwnedFd;

/// What a squatter does with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squat {
    /// Listens, and accepts nobody.
    Listens,
    /// Has the name, and does not listen.
    Idle,
    /// Listens, and its queue of callers is full.
    Full,
}

/// Holds names until it is dropped.
#[derive(Debug)]
pub struct Squatter {
    _sockets: Vec<OwnedFd>,
}

impl Squatter {
    /// Takes these names as another user.
    ///
    /// # Panics
    /// Where a name is taken, or this is not root.
    #[must_use]
    pub fn hold(user: u32, names: &[(Vec<u8>, Squat)]) -> Squatter {
        let taken = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // The system call changes this thread alone.
                assert_eq!(become_user(user), Ok(()), "needs root");
                names.iter().flat_map(take).collect()
            });
            thread.join()
        });
        match taken {
            Ok(sockets) => Squatter { _sockets: sockets },
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn stream() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket")
}

fn take((name, squat): &(Vec<u8>, Squat)) -> Vec<OwnedFd> {
    let at = SocketAddrUnix::new_abstract_name(name).expect("a name");
    let mut sockets = vec![stream()];
    bind(&sockets[0], &at).expect("a free name");
    if *squat != Squat::Idle {
        listen(&sockets[0], if *squat == Squat::Full { 0 } else { 64 }).expect("listening");
    }
    if *squat == Squat::Full {
        fill(&at, &mut sockets);
    }
    sockets
}

/// Calls until no more callers are taken.
fn fill(at: &SocketAddrUnix, sockets: &mut Vec<OwnedFd>) {
    loop {
        let caller = stream();
        match connect(&caller, at) {
            Ok(()) => sockets.push(caller),
            Err(Errno::AGAIN) => return,
            Err(errno) => panic!("filling a queue: {errno}"),
        }
    }
}
