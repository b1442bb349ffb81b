//! Implements one authenticated connection, which carries messages and, on a Unix socket,
//! descriptors.
//!
//! How: a frame consists of a header (kind, length, number), the message, and a proof of both under
//! the session key of its direction. Over TCP the message is encrypted if configured
//! ([`crate::guard`]). The numbers count up by one, so that a repeated, lost or moved frame is
//! noticed.
//!
//! Invariants
//! 1. A message is delivered only if the proof of header and message is right and the number is the
//!    next one.
//! 2. Memory grows with the bytes received, never with a length that a header claims.
//! 3. After a wrong proof, a wrong number, a broken header or an incomplete frame, the connection
//!    is dead: every later call fails with the same error.
//! 4. Every wait has a deadline. A receive that reaches it loses nothing; a send that reaches it
//!    leaves an incomplete frame and ends the connection.
//! 5. At most four descriptors wait to be claimed; further ones are closed.
//! 6. On Unix sockets, where descriptors can travel, nothing is encrypted: it does not leave the
//!    kernel.
//!
//! Faults survived: truncated, repeated, reordered and altered frames; a peer that vanishes at any
//! byte.
//!
//! Not here: who may connect (see [`crate::listener`]), what messages mean (the engine).

mod bulk;
mod outbox;

pub use bulk::{Place, Received};
pub use outbox::{Leaves, Source};

use crate::guard::{Guard, MAC_BYTES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{self, ConnState, FrameHeader, Message};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::descriptor::{Living, above_streams};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::{Failpoints, Outcome};
use orcheck_io::poll::{poll_one, poll_until};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, sockopt,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HEADER_BYTES: usize = wire::FRAME_HEADER_BYTES;
/// The kind of the frame that accompanies a descriptor; kinds above 127 belong to the transport.
const KIND_DESCRIPTOR: u8 = 255;
const PIECE_BYTES: usize = 64 * 1024;
const DESCRIPTORS_LIMIT: usize = 4;

/// An open connection; see the module.
pub struct Conn {
    socket: Living,
    unix: bool,
    peer: String,
    send: Guard,
    receive: Guard,
    sent: u64,
    received: u64,
    inbox: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    piece: Vec<u8>,
    outbox: outbox::Outbox,
    coming: Option<bulk::Coming>,
    dead: Option<Error>,
    longest: u32,
    /// Longest wait while the peer neither takes nor sends anything, if that is what counts.
    quiet: Option<Duration>,
    /// Set once this side ends, if it does not wait for its peers then.
    ending: Option<Arc<AtomicBool>>,
    failpoints: Failpoints,
}

/// Bytes that are kept while a frame waits for room, if messages may be as long; whoever sends more
/// has to wait too.
const KEPT_MOST_BYTES: usize = 1 << 20;
/// How long the kernel keeps a connection whose peer takes nothing.
pub(crate) const KERNEL_SILENCE: Duration = Duration::from_secs(30);
/// How soon a wait inside a frame notices that this side ends.
const ENDING_LOOK: Duration = Duration::from_millis(200);

impl Conn {
    pub(crate) fn new(
        socket: OwnedFd,
        unix: bool,
        peer: String,
        (send, receive): (Guard, Guard),
        failpoints: &Failpoints,
    ) -> Conn {
        Conn {
            socket: Living::new(socket),
            unix,
            peer,
            send,
            receive,
            sent: 0,
            received: 0,
            inbox: Vec::new(),
            descriptors: VecDeque::new(),
            piece: vec![0; PIECE_BYTES],
            outbox: outbox::Outbox::default(),
            coming: None,
            dead: None,
            longest: wire::MAX_PAYLOAD_BYTES,
            quiet: None,
            ending: None,
            failpoints: failpoints.clone(),
        }
    }

    /// Ends the connection in this process and returns what another process needs to continue it.
    /// Queued messages are lost. Not in the middle of a frame: the other process could not continue
    /// it.
    #[must_use]
    pub fn detach(self) -> (OwnedFd, ConnState) {
        let state = ConnState {
            unix: self.unix,
            peer: self.peer,
            encrypted: self.send.encrypts(),
            send_key: self.send.key(),
            receive_key: self.receive.key(),
            sent: self.sent,
            received: self.received,
            inbox: self.inbox,
        };
        (self.socket.give(), state)
    }

    /// Continues a connection that another process detached. Descriptors that had arrived and were
    /// not received are lost.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    pub fn attach(socket: OwnedFd, state: ConnState, failpoints: &Failpoints) -> Result<Conn> {
        let guard = |key| Guard::new(key, state.encrypted);
        let guards = (guard(state.send_key)?, guard(state.receive_key)?);
        let mut conn = Conn::new(socket, state.unix, state.peer, guards, failpoints);
        conn.sent = state.sent;
        conn.received = state.received;
        conn.inbox = state.inbox;
        Ok(conn)
    }

    /// Accepts only messages of at most this many bytes from now on; bulk data has a bound of its
    /// own.
    pub fn take_at_most(&mut self, longest: u32) {
        self.longest = longest;
    }

    /// Sends a message; when this returns, the kernel has all of it. Not while messages are queued
    /// ([`Self::queue`]).
    pub fn send(&mut self, message: &Message, timeout: Duration) -> Result<()> {
        let longest = if off(Switch::SendDeadline) {
            timeout.saturating_mul(120)
        } else {
            timeout
        };
        // Encoded in place, so that bulk data is not copied once more.
        let frame = message.encode_after(vec![0; HEADER_BYTES], MAC_BYTES);
        self.send_frame(message.kind(), frame, None, Deadline::after(longest))
    }

    /// Waits for the next message. `Unavailable` if none arrived within `timeout` (the connection
    /// stays open) or the peer is gone.
    pub fn receive(&mut self, timeout: Duration) -> Result<Message> {
        let deadline = Deadline::after(if off(Switch::ReceiveDeadline) {
            timeout.saturating_mul(400)
        } else {
            timeout
        });
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            self.wait_for_more("message", deadline, timeout)?;
        }
    }

    /// The next message if it has arrived; does not wait. Call it until `None` before waiting on
    /// the descriptor.
    pub fn try_receive(&mut self) -> Result<Option<Message>> {
        let Some(header) = self.next_frame()? else {
            return Ok(None);
        };
        if header.kind == KIND_DESCRIPTOR && !self.unix {
            return Err(self.die(Error::corrupt("a descriptor's frame came over TCP")));
        }
        if header.kind == KIND_DESCRIPTOR {
            return Err(Error::invalid(format!(
                "{}: expected a message, found a descriptor waiting to be received first",
                self.peer
            )));
        }
        if let Outcome::Fail(errno) = self.step("net.receive", header.kind) {
            return Err(self.die(rustix_error(Errno::from_raw_os_error(errno), "receive")));
        }
        let end = HEADER_BYTES + header.len_bytes as usize;
        let payload = self.inbox.get(HEADER_BYTES..end).unwrap_or_default();
        let message = Message::decode(header.kind, payload);
        self.consume(&header);
        message.map(Some).map_err(|error| error.at(&self.peer))
    }

    /// Sends a descriptor to a peer on this machine.
    pub fn send_fd(&mut self, fd: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
        self.check_unix()?;
        let frame = vec![0; HEADER_BYTES];
        self.send_frame(KIND_DESCRIPTOR, frame, Some(fd), Deadline::after(timeout))
    }

    /// Waits for a descriptor.
    pub fn receive_fd(&mut self, timeout: Duration) -> Result<OwnedFd> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(fd) = self.try_receive_fd()? {
                return Ok(fd);
            }
            self.wait_for_more("descriptor", deadline, timeout)?;
        }
    }

    /// The next descriptor if it has arrived; does not wait.
    pub fn try_receive_fd(&mut self) -> Result<Option<OwnedFd>> {
        self.check_unix()?;
        let Some(header) = self.next_frame()? else {
            return Ok(None);
        };
        if header.kind != KIND_DESCRIPTOR {
            return Err(Error::invalid(format!(
                "{}: expected a descriptor, found a message waiting to be received first",
                self.peer
            )));
        }
        self.consume(&header);
        match self.descriptors.pop_front() {
            Some(fd) => Ok(Some(fd)),
            None => Err(self.die(Error::corrupt(
                "a descriptor's frame came without the descriptor",
            ))),
        }
    }

    /// Describes the peer, for messages.
    #[must_use]
    pub fn peer(&self) -> String {
        self.peer.clone()
    }

    /// Whether nothing more can arrive: the connection is dead, or the peer has closed it and
    /// everything that it sent before was received.
    pub fn is_closed(&mut self) -> bool {
        if self.dead.is_some() {
            return true;
        }
        if self.frame_is_whole() {
            return false;
        }
        let mut one = [0; 1];
        loop {
            return match net::recv(
                &self.socket,
                &mut one,
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            ) {
                Ok((count, _)) => count == 0,
                Err(Errno::INTR) => continue,
                Err(errno) => errno != Errno::AGAIN,
            };
        }
    }

    /// Ends a connection whose peer violates the protocol; returns the error, which every later
    /// call returns too.
    pub fn give_up(&mut self, error: Error) -> Error {
        self.die(error)
    }

    /// Ends the connection with this error and returns it.
    fn die(&mut self, error: Error) -> Error {
        let error = error.at(&self.peer);
        self.dead = Some(error.clone());
        let _ = net::shutdown(&self.socket, net::Shutdown::Both);
        error
    }

    fn check_unix(&self) -> Result<()> {
        if self.unix {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{}: descriptors travel over Unix sockets only",
            self.peer
        )))
    }

    fn check_alive(&self) -> Result<()> {
        self.dead
            .as_ref()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Sends a frame; `frame` has room for the header, followed by the payload.
    fn send_frame(
        &mut self,
        kind: u8,
        mut frame: Vec<u8>,
        fd: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<()> {
        self.check_alive()?;
        self.seal(kind, &mut frame)?;
        self.send_all(kind, &frame, (fd, SendFlags::empty()), deadline)
    }

    /// Completes a frame, which must leave next, with its header and its proof.
    fn seal(&mut self, kind: u8, frame: &mut Vec<u8>) -> Result<()> {
        let Some((room, payload)) = frame.split_first_chunk_mut() else {
            return Err(Error::internal("a frame has no room for its header"));
        };
        *room = self.header(kind, payload.len())?;
        self.send.close(self.sent, frame)?;
        // Breaks if: the number is used again after an incomplete send; so would be the nonce.
        self.sent += 1;
        Ok(())
    }

    fn header(&self, kind: u8, payload_bytes: usize) -> Result<[u8; HEADER_BYTES]> {
        let len_bytes = u32::try_from(payload_bytes)
            .ok()
            .filter(|len| *len <= wire::MAX_PAYLOAD_BYTES)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{}: expected a message of at most {} bytes, found {}",
                    self.peer,
                    wire::MAX_PAYLOAD_BYTES,
                    payload_bytes
                ))
            })?;
        let header = FrameHeader {
            kind,
            flags: 0,
            len_bytes,
            seq: self.sent,
        };
        Ok(header.encode())
    }

    /// Sends bytes of a frame, with a descriptor beside the first of them; more may follow at once.
    fn send_all(
        &mut self,
        kind: u8,
        bytes: &[u8],
        (fd, more): (Option<BorrowedFd<'_>>, SendFlags),
        deadline: Deadline,
    ) -> Result<()> {
        // Breaks if: it is sent all the same; it would lie in the middle of a queued one.
        if !self.outbox.is_empty() && !off(Switch::QueueFirst) {
            return Err(self.die(Error::internal("a frame would overtake queued messages")));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let fd = fd.filter(|_| rest.len() == bytes.len());
            match self.send_some(kind, rest, fd, more) {
                Ok(0) => {
                    return Err(self.die(Error::unavailable("send: the socket accepted nothing")));
                }
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_room((rest.len(), bytes.len()), deadline)?,
                Err(errno) => {
                    return Err(self.die(rustix_error(
                        errno,
                        format_args!("send {} bytes", bytes.len()),
                    )));
                }
            }
        }
        Ok(())
    }

    /// From now on sending waits until the deadline of what is sent, but no longer than `quiet`
    /// while the peer neither takes nor sends anything.
    pub fn wait_while_alive(&mut self, quiet: Duration) {
        self.quiet = Some(quiet);
    }

    /// From now on the kernel keeps a connection for as long as `most` whose peer takes nothing;
    /// `None`: as it did at first. Only for those who notice by themselves that a peer is gone.
    pub fn outlast_silence(&mut self, most: Option<Duration>) {
        if !self.unix {
            let limit = most.unwrap_or(KERNEL_SILENCE).as_millis();
            let limit_ms = u32::try_from(limit).unwrap_or(u32::MAX);
            let _ = sockopt::set_tcp_user_timeout(&self.socket, limit_ms);
        }
    }

    /// From now on a wait in the middle of a frame ends the connection soon after this is set.
    pub fn end_with(&mut self, ending: &Arc<AtomicBool>) {
        self.ending = Some(Arc::clone(ending));
    }

    /// Waits until the peer takes more; `rest` of `all` bytes are not sent yet.
    fn wait_for_room(&mut self, (rest, all): (usize, usize), deadline: Deadline) -> Result<()> {
        let quiet = self.quiet;
        let silence = || quiet.map_or(deadline, |quiet| Deadline::after(quiet).earlier(deadline));
        let mut until = silence();
        loop {
            let kept_most = KEPT_MOST_BYTES.min(self.longest as usize);
            let hears = self.inbox.len() < kept_most && !off(Switch::SignsOfLife);
            let flags = match quiet.is_some() && hears {
                true => PollFlags::OUT | PollFlags::IN,
                false => PollFlags::OUT,
            };
            match self.wait_inside(flags, until)? {
                // A sign of life.
                Some(PollFlags::IN) => match self.receive_some() {
                    Ok(0) => {
                        let error = Error::unavailable("the peer closed the connection");
                        return Err(self.die(error));
                    }
                    Ok(_) => until = silence(),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
                },
                Some(_) => return Ok(()),
                None => {
                    let how = match quiet.filter(|_| !deadline.passed()) {
                        Some(quiet) => format!(
                            "for {} s, and the peer said nothing either",
                            quiet.as_secs_f64()
                        ),
                        None => "before the deadline".to_owned(),
                    };
                    let error = Error::unavailable(format!(
                        "send: the last {rest} of {all} bytes were not taken {how}"
                    ));
                    return Err(self.die(error.next("look for a peer that hangs or is stopped")));
                }
            }
        }
    }

    /// Waits in the middle of a frame for one of these events; `None` if none came in time.
    fn wait_inside(&mut self, flags: PollFlags, until: Deadline) -> Result<Option<PollFlags>> {
        loop {
            let ending = self.ending.as_ref();
            let ends = ending.map(|ending| ending.load(Ordering::Acquire));
            if ends == Some(true) {
                let error = Error::unavailable("this side ends, in the middle of a message");
                return Err(self.die(error));
            }
            let look = ends.map_or(until, |_| Deadline::after(ENDING_LOOK).earlier(until));
            let mut entries = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
            match poll_until(&mut entries, look) {
                Ok(true) => return Ok(Some(entries[0].revents())),
                Ok(false) if until.passed() => return Ok(None),
                Ok(false) => {}
                Err(errno) => return Err(self.die(rustix_error(errno, "wait for the peer"))),
            }
        }
    }

    /// The failpoint before a message is sent, or after it arrived and before it is delivered.
    fn step(&self, site: &'static str, kind: u8) -> Outcome {
        if !self.failpoints.are_taken() {
            return Outcome::Go;
        }
        let target = format!("{} {}", self.peer, Message::name_of(kind));
        self.failpoints.outcome(site, &target)
    }

    fn send_some(
        &self,
        kind: u8,
        bytes: &[u8],
        fd: Option<BorrowedFd<'_>>,
        more: SendFlags,
    ) -> rustix::io::Result<usize> {
        let bytes = match self.step("net.send", kind) {
            Outcome::Go | Outcome::Pretend => bytes,
            Outcome::Fail(errno) => return Err(Errno::from_raw_os_error(errno)),
            Outcome::Short(0) => return Ok(0),
            Outcome::Short(count) => bytes.get(..count).unwrap_or(bytes),
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
        let Some(fd) = fd else {
            return net::send(&self.socket, bytes, flags);
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)
    }

    /// Waits until the socket has more, or fails at the deadline.
    fn wait_for_more(&mut self, what: &str, deadline: Deadline, timeout: Duration) -> Result<()> {
        match poll_one(self.socket.as_fd(), PollFlags::IN, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::unavailable(format!(
                "{}: no {what} within {} s",
                self.peer,
                timeout.as_secs_f64()
            ))),
            Err(errno) => Err(self.die(rustix_error(errno, "wait to receive"))),
        }
    }

    /// Whether the inbox holds one complete frame.
    fn frame_is_whole(&self) -> bool {
        FrameHeader::decode(self.inbox.get(..HEADER_BYTES).unwrap_or_default()).is_ok_and(
            |header| self.inbox.len() >= HEADER_BYTES + header.len_bytes as usize + MAC_BYTES,
        )
    }

    /// Reads what the socket has; returns the header of the frame at the start of the inbox, after
    /// checking it together with its payload. `None`: no complete frame yet. An encrypted payload
    /// is readable afterwards, and must be consumed.
    fn next_frame(&mut self) -> Result<Option<FrameHeader>> {
        self.check_alive()?;
        if self.coming.is_some() {
            return Err(self.die(Error::internal("a frame is taken in the middle of bytes")));
        }
        loop {
            if let Some(head) = self.inbox.get(..HEADER_BYTES) {
                let header = FrameHeader::decode(head).map_err(|error| self.die(error))?;
                self.check_number(&header)?;
                if header.len_bytes > self.longest && wire::place_bytes(header.kind).is_none() {
                    return Err(self.die(Error::corrupt(format!(
                        "a message of {} bytes comes: expected at most {}",
                        header.len_bytes, self.longest
                    ))));
                }
                let end = HEADER_BYTES + header.len_bytes as usize;
                if let Some(frame) = self.inbox.get_mut(..end + MAC_BYTES) {
                    if !self.receive.open(self.received, frame) {
                        return Err(self.die(Error::corrupt(format!(
                            "frame {} of {} bytes is not what the peer sent (wrong MAC)",
                            header.seq, header.len_bytes
                        ))));
                    }
                    return Ok(Some(header));
                }
            }
            match self.receive_some() {
                Ok(0) if self.inbox.is_empty() => {
                    return Err(self.die(Error::unavailable("the peer closed the connection")));
                }
                Ok(0) => {
                    let held = self.inbox.len();
                    return Err(self.die(Error::unavailable(format!(
                        "the peer closed the connection {held} bytes into frame {}",
                        self.received
                    ))));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
    }

    fn check_number(&mut self, header: &FrameHeader) -> Result<()> {
        if header.seq == self.received || off(Switch::FrameOrder) {
            return Ok(());
        }
        Err(self.die(Error::corrupt(format!(
            "expected frame {}, found frame {}: repeated, lost or moved",
            self.received, header.seq
        ))))
    }

    /// Drops a frame from the inbox after it was checked.
    fn consume(&mut self, header: &FrameHeader) {
        self.inbox
            .drain(..HEADER_BYTES + header.len_bytes as usize + MAC_BYTES);
        if self.inbox.is_empty() && self.inbox.capacity() > 16 * PIECE_BYTES {
            self.inbox = Vec::new(); // a rare large message does not keep its memory
        }
        self.received += 1;
    }

    fn receive_some(&mut self) -> rustix::io::Result<usize> {
        let count = if self.unix {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_LIMIT))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut pieces = [IoSliceMut::new(&mut self.piece)];
            let got = net::recvmsg(&self.socket, &mut pieces, &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    for fd in fds {
                        let fd = above_streams(fd)?;
                        if self.descriptors.len() < DESCRIPTORS_LIMIT || off(Switch::Descriptors) {
                            self.descriptors.push_back(fd);
                        }
                    }
                }
            }
            got.bytes
        } else {
            net::recv(&self.socket, &mut self.piece[..], RecvFlags::DONTWAIT)?.0
        };
        let came = self.piece.get(..count).unwrap_or_default();
        self.inbox.extend_from_slice(came);
        Ok(count)
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn guard(key: u8) -> Guard {
        Guard::new([key; 32], false).unwrap()
    }

    fn conn() -> (OwnedFd, Conn) {
        let flags = SocketFlags::CLOEXEC;
        let (raw, socket) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let guards = (guard(1), guard(2));
        let conn = Conn::new(socket, true, "test".to_owned(), guards, &Failpoints::none());
        (raw, conn)
    }

    #[test]
    fn memory_follows_what_came_not_what_a_header_claims() {
        let (raw, mut conn) = conn();
        let len_bytes = wire::MAX_PAYLOAD_BYTES;
        let header = FrameHeader {
            kind: 1,
            flags: 0,
            len_bytes,
            seq: 0,
        }
        .encode();
        rustix::io::write(&raw, &header).unwrap();
        assert!(conn.try_receive().unwrap().is_none());
        // Breaks if: the inbox reserves what the header announces.
        assert!(
            conn.inbox.capacity() <= 2 * PIECE_BYTES,
            "{}",
            conn.inbox.capacity()
        );
    }

    #[test]
    fn unclaimed_descriptors_are_bounded() {
        let (raw, mut conn) = conn();
        let (one, _two) = rustix::pipe::pipe().unwrap();
        let header = FrameHeader {
            kind: 1,
            flags: 0,
            len_bytes: 40,
            seq: 0,
        }
        .encode();
        for byte in header {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = [one.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            net::sendmsg(
                &raw,
                &[IoSlice::new(&[byte])],
                &mut control,
                SendFlags::empty(),
            )
            .unwrap();
            assert!(conn.try_receive().unwrap().is_none());
        }
        assert_eq!(conn.descriptors.len(), DESCRIPTORS_LIMIT);
    }

    #[test]
    fn a_descriptor_frame_without_descriptor_is_refused() {
        let (raw, mut conn) = conn();
        let header = FrameHeader {
            kind: KIND_DESCRIPTOR,
            flags: 0,
            len_bytes: 0,
            seq: 0,
        }
        .encode();
        let mut frame = header.to_vec();
        guard(2).close(0, &mut frame).unwrap();
        rustix::io::write(&raw, &frame).unwrap();
        assert!(conn.receive_fd(Duration::from_secs(5)).is_err());
        assert!(conn.is_closed());
    }
}
