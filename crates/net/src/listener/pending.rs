//! Implements the listener's side of the handshake, for one caller that has not proven anything
//! yet.
//!
//! Invariants: those of `handshake.rs`. It reads no more than the next fixed-size message, or a
//! credential of bounded length.
//!
//! Not here: how many such callers there may be, and for how long (`listener.rs`).

use super::{
    ANSWER_BYTES, HELLO, HELLO_BYTES, OPENING, OPENING_BYTES, PROOF_BYTES, REFUSED, Refusals,
};
use crate::key::{Challenges, Key, NONCE_BYTES};
use crate::munge::{self, Users};
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::clock::Deadline;
use orcheck_io::descriptor::Living;
use orcheck_io::errno::retry;
use orcheck_io::machine::effective_uid;
use orcheck_io::rng::random_bytes;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

/// A connection whose peer has not proven anything yet.
pub(super) struct Pending {
    pub(super) socket: Living,
    pub(super) number: u64,
    pub(super) peer: String,
    pub(super) until: Deadline,
    pub(super) heard: Vec<u8>,
    /// What was answered, and with which of the listener's keys.
    pub(super) answered: Option<(Challenges, usize)>,
    /// The contents of the caller's MUNGE credential, or why it was refused.
    pub(super) credential: Option<std::result::Result<(usize, Key), u8>>,
}

/// How a listener identifies callers.
pub(super) struct Known<'a> {
    pub(super) keys: &'a [Key],
    pub(super) users: Option<&'a Users>,
}

pub(super) enum Progress {
    Waits,
    Dropped,
    Proven(Challenges, Key, usize),
}

impl Pending {
    /// The key that applies to this caller.
    fn key<'a>(&'a self, known: &'a Known<'_>, which: usize) -> Option<&'a Key> {
        match &self.credential {
            Some(Ok((_, own))) => Some(own),
            _ => known.keys.get(which),
        }
    }

    /// The number of bytes that come next, as far as it is known.
    fn wanted(&self) -> usize {
        if self.answered.is_some() {
            return PROOF_BYTES;
        }
        if self.credential.is_some() || !self.heard.starts_with(&OPENING) {
            return HELLO_BYTES;
        }
        match self.heard.get(OPENING.len()..OPENING_BYTES) {
            Some(&[low, high]) => {
                let len = u16::from_le_bytes([low, high]);
                OPENING_BYTES + usize::from(len).min(munge::CREDENTIAL_MAX)
            }
            _ => OPENING_BYTES,
        }
    }

    /// Continues with whatever the peer has sent, without blocking; records refused callers in
    /// `refusals`.
    pub(super) fn advance(&mut self, known: &Known<'_>, refusals: &mut Refusals) -> Progress {
        // Until it is known which of the two beginnings this is, read no more than the shorter one.
        let wanted = match self.heard.len() {
            0..8 if self.answered.is_none() && self.credential.is_none() => OPENING.len(),
            _ => self.wanted(),
        };
        let mut piece = [0; 512];
        let room = (wanted - self.heard.len()).min(piece.len());
        let (room, _) = piece.split_at_mut(room);
        match retry(|| net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => return Progress::Dropped,
            Ok((count, _)) => self.heard.extend(room.iter().take(count)),
            Err(Errno::AGAIN) => return Progress::Waits,
            Err(_) => return Progress::Dropped,
        }
        if self.heard.len() < self.wanted() {
            return Progress::Waits;
        }
        let heard = std::mem::take(&mut self.heard);
        if let Some((challenges, which)) = self.answered {
            let (Some(given), Some(key)) = (heard.first_chunk(), self.key(known, which)) else {
                return Progress::Dropped;
            };
            let given = blake3::Hash::from_bytes(*given); // its equality takes constant time
            let right = given == challenges.caller_proof(key) || off(Switch::CallerProof);
            if right {
                return Progress::Proven(challenges, key.clone(), which);
            }
            refusals.add(&self.peer, "its proof of a key is wrong");
            return Progress::Dropped;
        }
        if self.credential.is_none() && heard.starts_with(&OPENING) {
            let refused = Err(munge::refusal::NO_MUNGE);
            let credential = heard.get(OPENING_BYTES..).unwrap_or_default();
            let admit = |users: &Users| users.admit(credential);
            self.credential = Some(known.users.map_or(refused, admit));
            return Progress::Waits;
        }
        let hello = heard.strip_prefix(&HELLO);
        let Some(caller) = hello.and_then(|caller| caller.first_chunk()) else {
            return Progress::Dropped;
        };
        if let Some(Err(why)) = &self.credential {
            let uid = known.users.map_or_else(effective_uid, Users::own_uid);
            refusals.add(&self.peer, &munge::refused(*why, uid).what());
            let mut answer = [0; ANSWER_BYTES];
            let refused = REFUSED.into_iter().chain([*why]).chain(uid.to_le_bytes());
            (answer.iter_mut().zip(refused)).for_each(|(at, byte)| *at = byte);
            // Everything that it sent was read, so it receives this before the end of the
            // connection.
            self.say(&answer);
            return Progress::Dropped;
        }
        self.answer(*caller, known, refusals)
    }

    /// Answers a caller's challenge with a proof and a challenge of the listener's own.
    fn answer(
        &mut self,
        caller: [u8; NONCE_BYTES],
        known: &Known<'_>,
        refusals: &mut Refusals,
    ) -> Progress {
        let challenges = Challenges {
            caller,
            listener: random_bytes(),
        };
        // A caller with another key is answered all the same: it will find that this is not the
        // listener it meant.
        let mut keys = known.keys.iter();
        let which = match &self.credential {
            Some(Ok((which, _))) => *which,
            _ => match keys.position(|key| key.made(&challenges.caller)) {
                Some(which) => which,
                None => {
                    // Breaks if: nobody learns of it; a key that was changed at only one end would
                    // look like silence.
                    refusals.add(&self.peer, "it knows none of the keys here");
                    0
                }
            },
        };
        let Some(key) = self.key(known, which) else {
            return Progress::Dropped;
        };
        let proof = challenges.listener_proof(key);
        let mut answer = [0; ANSWER_BYTES];
        answer[..NONCE_BYTES].copy_from_slice(&challenges.listener);
        answer[NONCE_BYTES..].copy_from_slice(proof.as_bytes());
        self.answered = Some((challenges, which));
        match self.say(&answer) {
            true => Progress::Waits,
            false => Progress::Dropped,
        }
    }

    /// An empty socket buffer takes 64 bytes at once; a caller that arranges otherwise is a
    /// stranger.
    fn say(&self, answer: &[u8; ANSWER_BYTES]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        matches!(
            retry(|| net::send(&self.socket, answer, flags)),
            Ok(ANSWER_BYTES)
        )
    }
}
