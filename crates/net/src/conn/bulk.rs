//! Transfers bytes of files over a connection, straight from and into memory.
//!
//! How: such a frame holds its raw bytes after their place: the offset in the file, and for
//! replicas the slot before it ([`wire::PIECE`]). So nothing need be encoded. The receiver first
//! learns their number and then says where they go; the proof is computed as they arrive, and
//! [`Conn::take_piece`] takes what is there without waiting. Encrypted bytes pass through memory of
//! the connection, like messages. How replicas are sent: `outbox.rs`.
//!
//! Invariants
//! 1. The bytes count only if the proof is right: otherwise taking them returns an error, and the
//!    connection is dead.
//! 2. Between the announcement of bytes and their receipt nothing else is received.
//!
//! Faults survived: as for messages. Not here: what the bytes are.

use super::{Conn, HEADER_BYTES};
use crate::guard::{MAC_BYTES, RunningMac};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{self, FrameHeader, Message};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Outcome;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::time::Duration;

const HEAD_BYTES: usize = HEADER_BYTES + wire::BULK_HEAD_BYTES;
/// Number of bytes that are sent, received and verified at a time, while they are in the
/// processor's cache.
pub(super) const STEP_BYTES: usize = 256 << 10;
/// Received bytes are hashed once there are this many, in multiples of [`WHOLE_BYTES`].
const PROVE_BYTES: usize = 64 << 10;
const WHOLE_BYTES: usize = 4096;

/// What arrived.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// The number of bytes of a file that will follow, according to a header that is not verified
    /// yet: take them with [`Conn::receive_bulk`] or [`Conn::take_piece`].
    Bytes(usize),
}

/// Where bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the replica; 0 for bytes of a server's file.
    pub slot: u32,
    /// Their offset in the file.
    pub at_bytes: u64,
}

/// Bytes that have arrived in part.
pub(super) struct Coming {
    mac: RunningMac,
    /// The header and the place.
    head: Vec<u8>,
    kind: u8,
    place: Place,
    done_bytes: usize,
    /// How many of them are in the proof: whole steps, which cost it less than odd ones.
    proven_bytes: usize,
}

impl Coming {
    /// Adds to the proof what has come, as far as it is worth it.
    fn prove(&mut self, into: &[u8], least_bytes: usize) {
        let came = self.done_bytes - self.proven_bytes;
        if came < least_bytes.max(1) {
            return;
        }
        let end = match self.done_bytes < into.len() {
            true => self.done_bytes - self.done_bytes % WHOLE_BYTES,
            false => self.done_bytes,
        };
        self.mac
            .add(into.get(self.proven_bytes..end).unwrap_or_default());
        self.proven_bytes = end.max(self.proven_bytes);
    }
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
        let more = (None, SendFlags::MORE);
        self.send_all(wire::BULK, &head, more, deadline)?;
        for part in parts.iter().flat_map(|part| part.chunks(STEP_BYTES)) {
            mac.add(part);
            self.send_all(wire::BULK, part, more, deadline)?;
        }
        let last = (None, SendFlags::empty());
        self.send_all(wire::BULK, &mac.proof(&head), last, deadline)
    }

    /// The next message or announcement of bytes, if it has arrived; does not wait. As
    /// [`Conn::try_receive`].
    ///
    /// # Errors
    /// As [`Conn::try_receive`].
    pub fn try_receive_any(&mut self) -> Result<Option<Received>> {
        while self.inbox.len() < HEADER_BYTES + wire::PIECE_HEAD_BYTES {
            if self.announced()?.is_some() {
                break;
            }
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

    /// Takes all announced bytes of a server's file; returns their offset.
    ///
    /// # Errors
    /// Unavailable if none come for as long as `quiet`, not all within `most`, or the peer is gone;
    /// Corrupt if they are not what it sent, not as many as announced, or those of a replica. The
    /// connection is then dead. Invalid if none were announced.
    pub fn receive_bulk(
        &mut self,
        into: &mut [u8],
        quiet: Duration,
        most: Duration,
    ) -> Result<u64> {
        let (last, mut silence) = (Deadline::after(most), Deadline::after(quiet));
        loop {
            if let Some(place) = self.take(wire::BULK, into)? {
                return Ok(place.at_bytes);
            }
            self.wait_in_frame((silence, quiet), (last, most))?;
            // Breaks if: all have to come within `quiet`; of many callers that share a slow link
            // each gets a little of it, and would lose its connection.
            if !off(Switch::PieceProgress) {
                silence = Deadline::after(quiet);
            }
        }
    }

    /// Takes those of the announced bytes of a replica that have arrived; does not wait. `None`:
    /// more must come; call it again with the same memory, and use nothing of it before.
    ///
    /// # Errors
    /// As [`Conn::receive_bulk`]; Corrupt for bytes of a server's file.
    pub fn take_piece(&mut self, into: &mut [u8]) -> Result<Option<Place>> {
        self.take(wire::PIECE, into)
    }

    fn take(&mut self, expected: u8, into: &mut [u8]) -> Result<Option<Place>> {
        self.check_alive()?;
        let taken = match self.coming.take() {
            Some(coming) => self.take_more(into, coming)?,
            None => match self.announced()? {
                Some(len) if len == into.len() => match self.receive.running() {
                    Some(mac) => {
                        let coming = self.begin_to_take(into, mac)?;
                        self.take_more(into, coming)?
                    }
                    None => self.take_whole(into)?,
                },
                found => {
                    return Err(Error::invalid(format!(
                        "{}: expected {} bytes to be announced, found {found:?}",
                        self.peer,
                        into.len()
                    )));
                }
            },
        };
        let Some((place, kind)) = taken else {
            return Ok(None);
        };
        if kind != expected && !off(Switch::BulkKind) {
            let number = self.received - 1;
            return Err(self.die(Error::corrupt(format!(
                "frame {number} is of kind {kind}: expected {expected}"
            ))));
        }
        if let Outcome::Fail(errno) = self.step("net.receive", kind) {
            return Err(self.die(rustix_error(Errno::from_raw_os_error(errno), "receive")));
        }
        Ok(Some(place))
    }

    /// The header at the start of the inbox and the place behind it, if such a frame begins there.
    fn bulk_head(&mut self) -> Result<Option<(FrameHeader, Place, usize)>> {
        let Some(head) = self.inbox.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let header = FrameHeader::decode(head).map_err(|error| self.die(error))?;
        let end = wire::place_bytes(header.kind).map(|bytes| HEADER_BYTES + bytes);
        let place = end.and_then(|end| Some((self.inbox.get(HEADER_BYTES..end)?, end)));
        Ok(place.map(|(bytes, end)| (header, Place::decode(bytes), end)))
    }

    /// The number of bytes that the frame at the start of the inbox announces, if any.
    fn announced(&mut self) -> Result<Option<usize>> {
        let Some((header, _, end)) = self.bulk_head()? else {
            return Ok(None);
        };
        self.check_number(&header)?;
        match (header.len_bytes as usize).checked_sub(end - HEADER_BYTES) {
            Some(len) if len <= wire::MAX_DATA_BYTES => Ok(Some(len)),
            _ => Err(self.die(Error::corrupt(format!(
                "frame {} brings {} bytes: expected an offset and at most {} bytes",
                header.seq,
                header.len_bytes,
                wire::MAX_DATA_BYTES
            )))),
        }
    }

    /// Takes the head, and what has arrived behind it.
    fn begin_to_take(&mut self, into: &mut [u8], mac: RunningMac) -> Result<Coming> {
        let Some((header, place, end)) = self.bulk_head()? else {
            return Err(self.die(Error::internal("bytes were announced that are not there")));
        };
        let (head, came) = self.inbox.split_at(end);
        let here = came.len().min(into.len());
        let first = into.get_mut(..here).unwrap_or_default();
        first.copy_from_slice(came.get(..here).unwrap_or_default());
        let coming = Coming {
            mac,
            head: head.to_vec(),
            kind: header.kind,
            place,
            done_bytes: here,
            proven_bytes: 0,
        };
        self.inbox.drain(..end + here);
        Ok(coming)
    }

    fn take_more(&mut self, into: &mut [u8], mut coming: Coming) -> Result<Option<(Place, u8)>> {
        let len = into.len();
        while coming.done_bytes < len {
            let end = len.min(coming.done_bytes + STEP_BYTES);
            let step = into.get_mut(coming.done_bytes..end).unwrap_or_default();
            // A descriptor comes with a frame of its own, never within these bytes.
            match net::recv(&self.socket, &mut *step, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.ended(coming.done_bytes)),
                Ok((count, _)) => {
                    coming.done_bytes += count;
                    coming.prove(into, PROVE_BYTES);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.coming = Some(coming);
                    return Ok(None);
                }
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
        coming.prove(into, 0);
        while self.inbox.len() < MAC_BYTES {
            match self.receive_some() {
                Ok(0) => return Err(self.ended(len)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.coming = Some(coming);
                    return Ok(None);
                }
                Err(errno) => return Err(self.die(rustix_error(errno, "receive"))),
            }
        }
        let proof = self.inbox.get(..MAC_BYTES).unwrap_or_default();
        if !coming.mac.proves(&coming.head, proof) {
            let number = self.received;
            return Err(self.die(Error::corrupt(format!(
                "frame {number} of {len} bytes is not what the peer sent (wrong MAC)"
            ))));
        }
        self.inbox.drain(..MAC_BYTES);
        self.received += 1;
        Ok(Some((coming.place, coming.kind)))
    }

    fn take_whole(&mut self, into: &mut [u8]) -> Result<Option<(Place, u8)>> {
        let Some(header) = self.next_frame()? else {
            return Ok(None);
        };
        // An encrypted place is readable only now.
        let Some((_, place, end)) = self.bulk_head()? else {
            return Err(self.die(Error::internal("bytes were announced that are not there")));
        };
        let bytes = self.inbox.get(end..end + into.len()).unwrap_or_default();
        into.copy_from_slice(bytes);
        self.consume(&header);
        Ok(Some((place, header.kind)))
    }

    fn ended(&mut self, done: usize) -> Error {
        let number = self.received;
        self.die(Error::unavailable(format!(
            "the peer closed the connection {done} bytes into frame {number}"
        )))
    }

    /// An incomplete frame cannot be taken back: stopping inside it ends the connection.
    fn wait_in_frame(
        &mut self,
        (silence, quiet): (Deadline, Duration),
        (last, most): (Deadline, Duration),
    ) -> Result<()> {
        let came = match last.passed() {
            true => None,
            false => self.wait_inside(PollFlags::IN, silence.earlier(last))?,
        };
        if came.is_some() {
            return Ok(());
        }
        let number = self.received;
        let what = match last.passed() {
            true => format!("frame {number} is not whole after {} s", most.as_secs_f64()),
            false => format!(
                "frame {number} is not whole, and nothing more of it came for {} s",
                quiet.as_secs_f64()
            ),
        };
        let next = "look for a peer that hangs or is stopped, and for a network that is too slow";
        Err(self.die(Error::unavailable(what).next(next)))
    }
}

impl Place {
    /// Reads the bytes between a header and raw bytes; for a server's file there is no slot.
    fn decode(bytes: &[u8]) -> Place {
        let mut all = [0; wire::PIECE_HEAD_BYTES];
        let from = wire::PIECE_HEAD_BYTES.saturating_sub(bytes.len());
        if let Some(end) = all.get_mut(from..) {
            end.copy_from_slice(bytes);
        }
        let [s0, s1, s2, s3, at @ ..] = all;
        Place {
            slot: u32::from_le_bytes([s0, s1, s2, s3]),
            at_bytes: u64::from_le_bytes(at),
        }
    }

    /// The bytes between the header and the raw bytes of a replica.
    pub(super) fn encode(self) -> [u8; wire::PIECE_HEAD_BYTES] {
        let mut bytes = [0; wire::PIECE_HEAD_BYTES];
        let (slot, at) = bytes.split_at_mut(4);
        slot.copy_from_slice(&self.slot.to_le_bytes());
        at.copy_from_slice(&self.at_bytes.to_le_bytes());
        bytes
    }
}
