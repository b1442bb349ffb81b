//! Transfers bytes of files over a connection, straight from and into memory.
//!
//! How: such a frame holds its raw bytes after their offset in the file, so that nothing need be
//! encoded. The receiver first learns their number and then says where they go; the proof is
//! computed as they arrive. Encrypted bytes, and those on Unix sockets, pass through memory of the
//! connection, like messages.
//!
//! Invariants
//! 1. The bytes count only if the proof is right: otherwise `receive_bulk` returns an error, and
//!    the connection is dead.
//! 2. Between the announcement of bytes and their receipt nothing else is received.
//!
//! Faults survived: as for messages. Not here: what the bytes are.

use super::{Conn, HEADER_BYTES};
use crate::guard::MAC_BYTES;
use orcheck_format::wire::{self, FrameHeader, Message};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Outcome;
use orcheck_io::poll::poll_one;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::os::fd::AsFd;
use std::time::Duration;

const HEAD_BYTES: usize = HEADER_BYTES + wire::BULK_HEAD_BYTES;
/// Number of bytes that are sent, received and verified at a time, while they are in the
/// processor's cache.
const STEP_BYTES: usize = 256 << 10;
const NO_HEAD: &str = "bytes were announced that are not there";

/// What arrived.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// The number of bytes of a file that will follow, according to a header that is not verified
    /// yet: take them with [`Conn::receive_bulk`].
    Bytes(usize),
}

impl Conn {
    /// Sends bytes at an offset of a file: the parts, one after the other.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn send_bulk(&mut self, at: u64, parts: &[&[u8]], timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(timeout);
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let Some(mut mac) = self.send.running() else {
            let mut frame = Vec::with_capacity(HEAD_BYTES + len_bytes + MAC_BYTES);
            frame.resize(HEADER_BYTES, 0);
            frame.extend_from_slice(&at.to_le_bytes());
            for part in parts {
                frame.extend_from_slice(part);
            }
            return self.send_frame(wire::BULK, frame, None, deadline);
        };
        self.check_alive()?;
        let mut head = [0; HEAD_BYTES];
        let header = self.header(wire::BULK, wire::BULK_HEAD_BYTES + len_bytes)?;
        head[..HEADER_BYTES].copy_from_slice(&header);
        head[HEADER_BYTES..].copy_from_slice(&at.to_le_bytes());
        self.sent += 1;
        mac.add(&head);
        let more = (None, SendFlags::MORE);
        self.send_all(wire::BULK, &head, more, deadline)?;
        for part in parts.iter().flat_map(|part| part.chunks(STEP_BYTES)) {
            mac.add(part);
            self.send_all(wire::BULK, part, more, deadline)?;
        }
        let last = (None, SendFlags::empty());
        self.send_all(wire::BULK, &mac.proof(), last, deadline)
    }

    /// The next message or announcement of bytes, if it has arrived; does not wait. As
    /// [`Conn::try_receive`].
    ///
    /// # Errors
    /// As [`Conn::try_receive`].
    pub fn try_receive_any(&mut self) -> Result<Option<Received>> {
        while self.inbox.len() < HEAD_BYTES {
            self.check_alive()?;
            match self.receive_some() {
                // The search for a frame reports the end.
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                // Breaks if: a frame is searched for now; the rest of a header that arrives
                // meanwhile would pass for a message.
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
        match self.announced()? {
            Some(len) => Ok(Some(Received::Bytes(len))),
            None => Ok(self.try_receive()?.map(Received::Message)),
        }
    }

    /// Waits for the next message or announcement, as [`Conn::receive`].
    ///
    /// # Errors
    /// As [`Conn::receive`].
    pub fn receive_any(&mut self, timeout: Duration) -> Result<Received> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(received) = self.try_receive_any()? {
                return Ok(received);
            }
            self.wait_for_more("answer", deadline, timeout)?;
        }
    }

    /// Takes all announced bytes; returns their offset.
    ///
    /// # Errors
    /// Unavailable if they do not arrive within `timeout` or the peer is gone; Corrupt if they are
    /// not what it sent, or not as many as announced. The connection is then dead. Invalid if none
    /// were announced.
    pub fn receive_bulk(&mut self, into: &mut [u8], timeout: Duration) -> Result<u64> {
        let deadline = Deadline::after(timeout);
        match self.announced()? {
            Some(len) if len == into.len() => {}
            found => {
                return Err(Error::invalid(format!(
                    "{}: expected {} bytes to be announced, found {found:?}",
                    self.peer,
                    into.len()
                )));
            }
        }
        let at = match self.receive.running() {
            Some(mac) if !self.unix => self.receive_into(into, mac, deadline, timeout)?,
            _ => self.receive_whole(into, deadline, timeout)?,
        };
        if let Outcome::Fail(errno) = self.step("net.receive", wire::BULK) {
            return Err(self.die(rustix_error(Errno::from_raw_os_error(errno), "receive")));
        }
        Ok(at)
    }

    /// The number of bytes that the frame at the start of the inbox announces, if any.
    fn announced(&mut self) -> Result<Option<usize>> {
        let Some(head) = self.inbox.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let header = FrameHeader::decode(head).map_err(|error| self.die(error))?;
        if header.kind != wire::BULK || self.inbox.len() < HEAD_BYTES {
            return Ok(None);
        }
        self.check_number(&header)?;
        match (header.len_bytes as usize).checked_sub(wire::BULK_HEAD_BYTES) {
            Some(len) if len <= wire::MAX_DATA_BYTES => Ok(Some(len)),
            _ => Err(self.die(Error::corrupt(format!(
                "frame {} brings {} bytes: expected an offset and at most {} bytes",
                header.seq,
                header.len_bytes,
                wire::MAX_DATA_BYTES
            )))),
        }
    }

    fn receive_into(
        &mut self,
        into: &mut [u8],
        mut mac: crate::guard::RunningMac,
        deadline: Deadline,
        timeout: Duration,
    ) -> Result<u64> {
        let Some((head, came)) = self.inbox.split_first_chunk() else {
            return Err(self.die(Error::internal(NO_HEAD)));
        };
        let at = offset(head);
        mac.add(head);
        let len = into.len();
        let here = came.len().min(len);
        let (first, mut rest) = into.split_at_mut(here);
        first.copy_from_slice(came.get(..here).unwrap_or_default());
        mac.add(first);
        self.inbox.drain(..HEAD_BYTES + here);
        while !rest.is_empty() {
            let step = rest.len().min(STEP_BYTES);
            let (piece, _) = rest.split_at_mut(step);
            match net::recv(&self.socket, piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.ended(len - rest.len())),
                Ok((count, _)) => {
                    let (came, after) = std::mem::take(&mut rest).split_at_mut(count.min(step));
                    mac.add(came);
                    rest = after;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_in_frame(deadline, timeout)?,
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
        while self.inbox.len() < MAC_BYTES {
            match self.receive_some() {
                Ok(0) => return Err(self.ended(len)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_in_frame(deadline, timeout)?,
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
        let proof = self.inbox.get(..MAC_BYTES).unwrap_or_default();
        if !mac.proves(proof) {
            let number = self.received;
            return Err(self.die(Error::corrupt(format!(
                "frame {number} of {len} bytes is not what the peer sent (wrong MAC)"
            ))));
        }
        self.inbox.drain(..MAC_BYTES);
        self.received += 1;
        Ok(at)
    }

    fn receive_whole(
        &mut self,
        into: &mut [u8],
        deadline: Deadline,
        timeout: Duration,
    ) -> Result<u64> {
        let header = loop {
            match self.next_frame()? {
                Some(header) => break header,
                None => self.wait_in_frame(deadline, timeout)?,
            }
        };
        let frame = self.inbox.split_first_chunk();
        let Some((head, bytes)) =
            frame.and_then(|(head, rest)| Some((head, rest.get(..into.len())?)))
        else {
            return Err(self.die(Error::internal(NO_HEAD)));
        };
        let at = offset(head);
        into.copy_from_slice(bytes);
        self.consume(&header);
        Ok(at)
    }

    fn ended(&mut self, done: usize) -> Error {
        let number = self.received;
        self.die(Error::unavailable(format!(
            "the peer closed the connection {done} bytes into frame {number}"
        )))
    }

    /// An incomplete frame cannot be taken back: stopping inside it ends the connection.
    fn wait_in_frame(&mut self, deadline: Deadline, timeout: Duration) -> Result<()> {
        match poll_one(self.socket.as_fd(), PollFlags::IN, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let number = self.received;
                Err(self.die(Error::unavailable(format!(
                    "frame {number} did not come whole within {} s",
                    timeout.as_secs_f64()
                ))))
            }
            Err(errno) => Err(self.die(rustix_error(errno, "wait to receive"))),
        }
    }
}

fn offset(head: &[u8; HEAD_BYTES]) -> u64 {
    let mut at = [0; wire::BULK_HEAD_BYTES];
    at.copy_from_slice(&head[HEADER_BYTES..]);
    u64::from_le_bytes(at)
}
