//! Sends messages without waiting, for whoever sends to several peers at once.
//!
//! How: messages wait in a queue. [`Conn::push`] sends of them what the socket takes at once; call
//! it again when the socket can take more. Bytes of replicas ([`Conn::queue_piece`]) stay where
//! they are: the queue knows only their place, and [`Conn::push_from`] sends them straight from the
//! caller's memory, each step right after it was hashed, while it is still in the cache.
//! Where the connection encrypts, they are copied when their turn comes, and encrypted in place.
//!
//! Invariants
//! 1. Messages and pieces leave in the order in which they were queued.
//! 2. A frame that was begun is sent whole, or the connection is dead: only those behind it can be
//!    withdrawn.
//! 3. If the socket takes nothing for the given time, the connection is dead.
//! 4. When [`Conn::borrowed_bytes`] is 0, nothing of the caller's memory is needed any more.
//!
//! Faults survived: as for messages. Not here: waiting until a socket takes more
//! (`orcheck_io::poll`).

use super::bulk::{Place, STEP_BYTES};
use super::{Conn, HEADER_BYTES};
use crate::guard::{MAC_BYTES, RunningMac};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{self, Message};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::rustix_error;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::time::Duration;

const PIECE_HEAD_BYTES: usize = HEADER_BYTES + wire::PIECE_HEAD_BYTES;

/// Learns that these bytes leave, and their offset.
pub type Leaves<'a> = dyn Fn(u64, &[u8]) + Sync + 'a;

/// Bytes of a replica in the caller's memory.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Whose they are, and the offset of the first one.
    pub place: Place,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Is told of every part right before it is sent for the first time on a connection, while the
    /// part is in the cache.
    pub leaves: Option<&'a Leaves<'a>>,
}

impl<'a> Source<'a> {
    /// These bytes of a replica; nobody is told when they leave.
    #[must_use]
    pub fn new(place: Place, bytes: &'a [u8]) -> Self {
        Source {
            place,
            bytes,
            leaves: None,
        }
    }

    fn tell(&self, piece: Piece, at: usize, bytes: &[u8]) {
        if let Some(leaves) = self.leaves {
            leaves(piece.place.at_bytes + at as u64, bytes);
        }
    }

    fn part(&self, piece: Piece) -> Option<&'a [u8]> {
        let at = piece.place.at_bytes.checked_sub(self.place.at_bytes)?;
        let at = usize::try_from(at).ok()?;
        let part = self.bytes.get(at..at.checked_add(piece.len_bytes)?)?;
        (piece.place.slot == self.place.slot).then_some(part)
    }
}

/// What was not sent yet.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// What is being sent.
    now: Option<Now>,
    /// When the socket must have taken something.
    until: Option<Deadline>,
}

enum Waiting {
    Message(Message),
    Piece(Piece),
}

#[derive(Clone, Copy)]
struct Piece {
    place: Place,
    len_bytes: usize,
}

/// A frame that was begun.
struct Now {
    kind: u8,
    sent_bytes: usize,
    what: What,
}

enum What {
    Frame(Vec<u8>),
    Lent(Box<Lent>),
}

/// A frame whose bytes are in the caller's memory.
struct Lent {
    piece: Piece,
    head: [u8; PIECE_HEAD_BYTES],
    mac: RunningMac,
    proven_bytes: usize,
    proof: [u8; MAC_BYTES],
}

impl Lent {
    fn len_bytes(&self) -> usize {
        PIECE_HEAD_BYTES + self.piece.len_bytes + MAC_BYTES
    }

    /// What comes next; adds it to the proof before it is sent for the first time.
    fn next<'a>(&'a mut self, sent_bytes: usize, source: &Source<'a>) -> Option<&'a [u8]> {
        let part = source.part(self.piece)?;
        let Some(at) = sent_bytes.checked_sub(PIECE_HEAD_BYTES) else {
            return self.head.get(sent_bytes..);
        };
        if let Some(at) = at.checked_sub(part.len()) {
            return self.proof.get(at..);
        }
        if at == self.proven_bytes {
            let end = part.len().min(at + STEP_BYTES);
            let step = part.get(at..end)?;
            source.tell(self.piece, at, step);
            self.mac.add(step);
            self.proven_bytes = end;
            if end == part.len() {
                self.proof = self.mac.proof(&self.head);
            }
        }
        part.get(at..self.proven_bytes)
    }
}

impl Waiting {
    /// About how many bytes it takes.
    fn size_bytes(&self) -> usize {
        HEADER_BYTES
            + match self {
                Waiting::Message(Message::Data { bytes, .. }) => bytes.len(),
                Waiting::Message(_) => 0,
                Waiting::Piece(piece) => piece.len_bytes,
            }
    }
}

impl Now {
    fn left_bytes(&self) -> usize {
        let len = match &self.what {
            What::Frame(frame) => frame.len(),
            What::Lent(lent) => lent.len_bytes(),
        };
        len - self.sent_bytes
    }
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.now.is_none()
    }

    /// The next piece whose bytes are needed to continue.
    fn needs(&self) -> Option<Piece> {
        match (&self.now, self.waiting.front()) {
            (Some(Now { what, .. }), _) => match what {
                What::Frame(_) => None,
                What::Lent(lent) => Some(lent.piece),
            },
            (None, Some(Waiting::Piece(piece))) => Some(*piece),
            _ => None,
        }
    }
}

impl Conn {
    /// Queues a message; [`Self::push`] sends it.
    ///
    /// # Errors
    /// That of a dead connection.
    pub fn queue(&mut self, message: Message) -> Result<()> {
        self.queue_one(Waiting::Message(message))
    }

    /// Queues bytes of a replica that stay where they are; [`Self::push_from`] sends them.
    ///
    /// # Errors
    /// That of a dead connection; Invalid for more bytes than a frame may hold.
    pub fn queue_piece(&mut self, place: Place, len_bytes: usize) -> Result<()> {
        if len_bytes > wire::MAX_DATA_BYTES {
            return Err(Error::invalid(format!(
                "{len_bytes} bytes of a replica: expected at most {} at a time",
                wire::MAX_DATA_BYTES
            )));
        }
        self.queue_one(Waiting::Piece(Piece { place, len_bytes }))
    }

    fn queue_one(&mut self, one: Waiting) -> Result<()> {
        self.check_alive()?;
        self.outbox.waiting_bytes += one.size_bytes();
        self.outbox.waiting.push_back(one);
        Ok(())
    }

    /// About how many bytes are queued.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        let now = self.outbox.now.as_ref().map_or(0, Now::left_bytes);
        self.outbox.waiting_bytes + now
    }

    /// How many of them are still to be sent from the caller's memory.
    #[must_use]
    pub fn borrowed_bytes(&self) -> usize {
        let of = |one: &Waiting| match one {
            Waiting::Message(_) => 0,
            Waiting::Piece(piece) => piece.len_bytes,
        };
        let waiting: usize = self.outbox.waiting.iter().map(of).sum();
        let now = self.outbox.now.as_ref();
        let lent = now.filter(|now| matches!(now.what, What::Lent(_)));
        waiting + lent.map_or(0, Now::left_bytes)
    }

    /// Whether something is queued that can be sent with these bytes.
    #[must_use]
    pub fn can_push(&self, source: Option<Source<'_>>) -> bool {
        let needed = self.outbox.needs();
        let there = |piece| source.is_some_and(|source| source.part(piece).is_some());
        !self.outbox.is_empty() && needed.is_none_or(there)
    }

    /// Withdraws queued messages and pieces, but for what is being sent: the pieces of this
    /// replica, and the messages that `which` names.
    pub fn withdraw(&mut self, slot: u32, which: impl Fn(&Message) -> bool) {
        let stays = |one: &Waiting| match one {
            Waiting::Message(message) => !which(message),
            Waiting::Piece(piece) => piece.place.slot != slot,
        };
        self.outbox.waiting.retain(stays);
        self.outbox.waiting_bytes = self.outbox.waiting.iter().map(Waiting::size_bytes).sum();
    }

    /// Sends of the queued messages what the socket takes now; `true` if that was all.
    ///
    /// # Errors
    /// Unavailable if it has taken nothing for `timeout`, or if the peer is gone.
    pub fn push(&mut self, timeout: Duration) -> Result<bool> {
        self.push_from(None, timeout)
    }

    /// The same, and pieces whose bytes these are. Stops before a piece whose bytes are not there.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_from(&mut self, source: Option<Source<'_>>, timeout: Duration) -> Result<bool> {
        let timeout = match off(Switch::SendDeadline) {
            true => timeout.saturating_mul(120),
            false => timeout,
        };
        self.check_alive()?;
        while !self.outbox.is_empty() {
            if !self.can_push(source) {
                return Ok(false);
            }
            self.begin_next(source)?;
            let Some(mut now) = self.outbox.now.take() else {
                break;
            };
            let sent = self.push_once(&mut now, source);
            let left_bytes = now.left_bytes();
            if left_bytes > 0 {
                self.outbox.now = Some(now);
            }
            match sent {
                Ok(0) => {
                    return Err(self.die(Error::unavailable("send: the socket accepted nothing")));
                }
                Ok(_) => self.outbox.until = None,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.full(timeout),
                Err(errno) => return Err(self.die(rustix_error(errno, "send queued messages"))),
            }
        }
        self.outbox.until = None;
        Ok(true)
    }

    /// Sends once.
    fn push_once(&self, now: &mut Now, source: Option<Source<'_>>) -> rustix::io::Result<usize> {
        let left_bytes = now.left_bytes();
        let rest = match &mut now.what {
            What::Frame(frame) => frame.get(now.sent_bytes..).unwrap_or_default(),
            What::Lent(lent) => {
                let source = source.as_ref().ok_or(Errno::FAULT)?;
                lent.next(now.sent_bytes, source).ok_or(Errno::FAULT)?
            }
        };
        let more = match rest.len() < left_bytes {
            true => SendFlags::MORE,
            false => SendFlags::empty(),
        };
        let count = self.send_some(now.kind, rest, None, more)?;
        now.sent_bytes += count;
        Ok(count)
    }

    /// The socket takes nothing now.
    fn full(&mut self, timeout: Duration) -> Result<bool> {
        let until = self.outbox.until;
        let until = until.unwrap_or_else(|| Deadline::after(timeout));
        self.outbox.until = Some(until);
        if !until.passed() {
            return Ok(false);
        }
        let queued = self.queued_bytes();
        Err(self.die(
            Error::unavailable(format!(
                "send: none of {queued} bytes were taken within {} s",
                timeout.as_secs_f64()
            ))
            .next("look for a peer that hangs or is stopped"),
        ))
    }

    /// Begins the next frame when the one before has left.
    fn begin_next(&mut self, source: Option<Source<'_>>) -> Result<()> {
        if self.outbox.now.is_some() {
            return Ok(());
        }
        let Some(next) = self.outbox.waiting.pop_front() else {
            return Ok(());
        };
        self.outbox.waiting_bytes -= next.size_bytes();
        let (kind, what) = match next {
            Waiting::Message(message) => {
                let mut frame = message.encode_after(vec![0; HEADER_BYTES], MAC_BYTES);
                self.seal(message.kind(), &mut frame)?;
                (message.kind(), What::Frame(frame))
            }
            Waiting::Piece(piece) => (wire::PIECE, self.begin_piece(piece, source)?),
        };
        self.outbox.now = Some(Now {
            kind,
            sent_bytes: 0,
            what,
        });
        Ok(())
    }

    fn begin_piece(&mut self, piece: Piece, source: Option<Source<'_>>) -> Result<What> {
        let place = piece.place.encode();
        let Some(mac) = self.send.running() else {
            let there = source.and_then(|source| Some((source, source.part(piece)?)));
            let (source, part) =
                there.ok_or_else(|| Error::internal("bytes of a piece are not there"))?;
            source.tell(piece, 0, part);
            let mut frame = Vec::with_capacity(PIECE_HEAD_BYTES + piece.len_bytes + MAC_BYTES);
            frame.resize(HEADER_BYTES, 0);
            frame.extend_from_slice(&place);
            frame.extend_from_slice(part);
            self.seal(wire::PIECE, &mut frame)?;
            return Ok(What::Frame(frame));
        };
        let header = self.header(wire::PIECE, place.len() + piece.len_bytes)?;
        // Breaks if: the number is used again after an incomplete send.
        self.sent += 1;
        let mut head = [0; PIECE_HEAD_BYTES];
        let (of_frame, of_piece) = head.split_at_mut(HEADER_BYTES);
        of_frame.copy_from_slice(&header);
        of_piece.copy_from_slice(&place);
        let proof = mac.proof(&head);
        Ok(What::Lent(Box::new(Lent {
            piece,
            head,
            mac,
            proven_bytes: 0,
            proof,
        })))
    }
}
