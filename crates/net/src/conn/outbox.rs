//! Sends messages without waiting, for whoever sends to several peers at once.
//!
//! How: messages wait in a queue. [`Conn::push`] sends of them what the socket takes at once; call
//! it again when the socket can take more.
//!
//! Invariants
//! 1. Messages leave in the order in which they were queued.
//! 2. A message that was begun is sent whole, or the connection is dead: only those behind it can
//!    be withdrawn.
//! 3. If the socket takes nothing for the given time, the connection is dead.
//!
//! Faults survived: as for messages. Not here: waiting until a socket takes more
//! (`orcheck_io::poll`).

use super::{Conn, HEADER_BYTES};
use crate::guard::MAC_BYTES;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::rustix_error;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::time::Duration;

/// What was not sent yet.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    /// The frame that is being sent, and how many of its bytes were sent.
    frame: Vec<u8>,
    kind: u8,
    sent_bytes: usize,
    /// When the socket must have taken something.
    until: Option<Deadline>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.frame.is_empty()
    }
}

impl Conn {
    /// Queues a message; [`Self::push`] sends it.
    ///
    /// # Errors
    /// That of a dead connection.
    pub fn queue(&mut self, message: Message) -> Result<()> {
        self.check_alive()?;
        self.outbox.waiting_bytes += size_bytes(&message);
        self.outbox.waiting.push_back(message);
        Ok(())
    }

    /// About how many bytes are queued.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.outbox.waiting_bytes + self.outbox.frame.len() - self.outbox.sent_bytes
    }

    /// Withdraws queued messages, but for the one that is being sent.
    pub fn withdraw(&mut self, which: impl Fn(&Message) -> bool) {
        self.outbox.waiting.retain(|message| !which(message));
        self.outbox.waiting_bytes = self.outbox.waiting.iter().map(size_bytes).sum();
    }

    /// Sends of the queued messages what the socket takes now; `true` if that was all.
    ///
    /// # Errors
    /// Unavailable if it has taken nothing for `timeout`, or if the peer is gone.
    pub fn push(&mut self, timeout: Duration) -> Result<bool> {
        let timeout = match off(Switch::SendDeadline) {
            true => timeout.saturating_mul(120),
            false => timeout,
        };
        self.check_alive()?;
        while self.next_to_send()? {
            let outbox = &self.outbox;
            let rest = outbox.frame.get(outbox.sent_bytes..).unwrap_or_default();
            match self.send_some(outbox.kind, rest, None, SendFlags::empty()) {
                Ok(0) => {
                    return Err(self.die(Error::unavailable("send: the socket accepted nothing")));
                }
                Ok(count) => {
                    self.outbox.sent_bytes += count;
                    self.outbox.until = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let until = self.outbox.until;
                    let until = until.unwrap_or_else(|| Deadline::after(timeout));
                    self.outbox.until = Some(until);
                    return match until.passed() {
                        false => Ok(false),
                        true => {
                            let queued = self.queued_bytes();
                            Err(self.die(
                                Error::unavailable(format!(
                                    "send: none of {queued} bytes were taken within {} s",
                                    timeout.as_secs_f64()
                                ))
                                .next("look for a peer that hangs or is stopped"),
                            ))
                        }
                    };
                }
                Err(errno) => return Err(self.die(rustix_error(errno, "send queued messages"))),
            }
        }
        self.outbox.until = None;
        Ok(true)
    }

    /// Seals the next frame when the one before has left; `false` if there is none.
    fn next_to_send(&mut self) -> Result<bool> {
        if self.outbox.sent_bytes < self.outbox.frame.len() {
            return Ok(true);
        }
        (self.outbox.frame, self.outbox.sent_bytes) = (Vec::new(), 0);
        let Some(message) = self.outbox.waiting.pop_front() else {
            return Ok(false);
        };
        self.outbox.waiting_bytes -= size_bytes(&message);
        let mut frame = message.encode_after(vec![0; HEADER_BYTES], MAC_BYTES);
        self.seal(message.kind(), &mut frame)?;
        (self.outbox.frame, self.outbox.kind) = (frame, message.kind());
        Ok(true)
    }
}

fn size_bytes(message: &Message) -> usize {
    match message {
        Message::Data { bytes, .. } => HEADER_BYTES + bytes.len(),
        _ => HEADER_BYTES,
    }
}
