//! Defines the secret behind a connection and what is derived from it: proofs, session keys, and
//! the mark by which a listener with many keys finds the caller's.
//!
//! Invariants
//! 1. Every value derived from a key has a label of its own.
//! 2. A mark reveals nothing to anybody without the key, and no two calls have the same one.
//!
//! Not here: the order of the handshake (`handshake.rs`).

use crate::address::Address;
use crate::guard::Guard;
use orcheck_format::Result;
use orcheck_io::rng::random_bytes;
use orcheck_io::user::equal;
use std::fmt;

pub(super) const NONCE_BYTES: usize = 32;
/// Number of random bytes in a caller's challenge; the rest is the mark.
const RANDOM_BYTES: usize = 16;

/// The secret that the processes of a job share, and how they use it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// The secret.
    pub bytes: [u8; 32],
    /// Whether TCP traffic is encrypted.
    pub encrypt: bool,
}

impl Key {
    /// A secret for connections that are authenticated but not encrypted.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Key {
        Key {
            bytes,
            encrypt: false,
        }
    }

    /// The same secret with the opposite setting of `encrypt`.
    pub(super) fn other_form(&self) -> Key {
        Key {
            bytes: self.bytes,
            encrypt: !self.encrypt,
        }
    }

    /// How to use it at an address: within a machine, nothing leaves the kernel.
    pub(super) fn at(&self, at: &Address) -> Key {
        Key {
            bytes: self.bytes,
            encrypt: self.encrypt && !at.is_unix(),
        }
    }

    /// A caller's challenge: random, and marked so that a listener can find the right key.
    pub(super) fn challenge(&self) -> [u8; NONCE_BYTES] {
        let mut challenge: [u8; NONCE_BYTES] = random_bytes();
        let mark = self.mark(&challenge[..RANDOM_BYTES]);
        challenge[RANDOM_BYTES..].copy_from_slice(&mark);
        challenge
    }

    /// Whether a caller with this key made a challenge.
    pub(super) fn made(&self, challenge: &[u8; NONCE_BYTES]) -> bool {
        let (random, mark) = challenge.split_at(RANDOM_BYTES);
        // Breaks if: they are compared byte by byte; timing would tell a stranger how much of a
        // mark is right.
        equal(&self.mark(random), mark)
    }

    fn mark(&self, random: &[u8]) -> [u8; NONCE_BYTES - RANDOM_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.bytes);
        hasher.update(b"orc2 which key  ").update(random);
        let mut mark = [0; NONCE_BYTES - RANDOM_BYTES];
        mark.copy_from_slice(&hasher.finalize().as_bytes()[..NONCE_BYTES - RANDOM_BYTES]);
        mark
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Both challenges of one handshake.
#[derive(Clone, Copy)]
pub(super) struct Challenges {
    pub caller: [u8; NONCE_BYTES],
    pub listener: [u8; NONCE_BYTES],
}

impl Challenges {
    /// A value that only holders of the key can derive, different for every label and handshake.
    fn derive(&self, key: &Key, label: &[u8; 16]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&key.bytes);
        hasher
            .update(label)
            .update(&self.caller)
            .update(&self.listener);
        if key.encrypt {
            hasher.update(b"aes-256-gcm");
        }
        hasher.finalize()
    }

    pub fn listener_proof(&self, key: &Key) -> blake3::Hash {
        self.derive(key, b"orc2 listener ok")
    }

    pub fn caller_proof(&self, key: &Key) -> blake3::Hash {
        self.derive(key, b"orc2 caller ok  ")
    }

    /// Session keys: (caller to listener, listener to caller).
    pub fn session(&self, key: &Key) -> ([u8; 32], [u8; 32]) {
        let to_listener = self.derive(key, b"orc2 to listener");
        let to_caller = self.derive(key, b"orc2 to caller  ");
        (*to_listener.as_bytes(), *to_caller.as_bytes())
    }

    /// The guards of the frames, in the same order.
    pub fn guards(&self, key: &Key) -> Result<(Guard, Guard)> {
        let (to_listener, to_caller) = self.session(key);
        let guard = |session| Guard::new(session, key.encrypt);
        Ok((guard(to_listener)?, guard(to_caller)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::HELLO;
    use orcheck_format::wire::{self, FrameHeader, Message};

    #[test]
    fn a_key_is_not_printed() {
        assert!(!format!("{:?}", Key::new([7; 32])).contains('7'));
    }

    /// Computed by a program that knows only the specification: `tests/vectors/recompute.py`.
    const VECTORS: &str = include_str!("../tests/vectors/handshake.txt");

    fn vector(name: &str) -> Vec<u8> {
        let line = VECTORS
            .lines()
            .find_map(|line| line.split_once(" = ")?.0.eq(name).then_some(line));
        let (_, digits) = line.expect(name).split_once(" = ").unwrap();
        let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(digit).collect()
    }

    // Breaks if: a label, an order or a length changes; this release could not talk to the previous
    // one.
    #[test]
    fn the_handshake_gives_the_committed_vectors() {
        let bytes = |name: &str| -> [u8; 32] { vector(name).try_into().unwrap() };
        let plain = Key::new(bytes("key"));
        let (random, mark) = (vector("caller random"), bytes("caller challenge"));
        assert_eq!(plain.mark(&random), mark[RANDOM_BYTES..]);
        assert!(plain.made(&mark));
        assert_eq!([&HELLO[..], &mark].concat(), vector("hello"));
        let challenges = Challenges {
            caller: bytes("caller challenge"),
            listener: bytes("listener challenge"),
        };
        for (form, key) in [("plain", plain.clone()), ("encrypted", plain.other_form())] {
            let proof = challenges.listener_proof(&key);
            let answer = [&challenges.listener[..], proof.as_bytes()].concat();
            assert_eq!(answer, vector(&format!("{form} answer")));
            let proof = challenges.caller_proof(&key);
            assert_eq!(
                proof.as_bytes()[..],
                vector(&format!("{form} caller proof"))
            );
            let (to_listener, to_caller) = challenges.session(&key);
            assert_eq!(to_listener[..], vector(&format!("{form} key to listener")));
            assert_eq!(to_caller[..], vector(&format!("{form} key to caller")));
        }
        let hello = Message::Hello {
            rank: orcheck_format::Rank(3),
            node: orcheck_format::NodeId(0),
        };
        let payload = hello.encode();
        let header = FrameHeader {
            kind: hello.kind(),
            flags: 0,
            len_bytes: payload.len() as u32,
            seq: 0,
        };
        let mut frame = [&header.encode()[..], &payload].concat();
        let (to_listener, _) = challenges.guards(&plain).unwrap();
        to_listener.close(0, &mut frame).unwrap();
        assert_eq!(frame, vector("plain first frame"));
        let raw: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        let at = (1u64 << 40).to_le_bytes();
        let piece_at = [&7u32.to_le_bytes()[..], &at].concat();
        for (seq, kind, place, name) in [
            (1, wire::BULK, &at[..], "plain bytes"),
            (2, wire::PIECE, &piece_at, "plain piece"),
        ] {
            let header = FrameHeader {
                kind,
                flags: 0,
                len_bytes: (place.len() + raw.len()) as u32,
                seq,
            };
            let mut frame = [&header.encode()[..], place, &raw].concat();
            to_listener.close(seq, &mut frame).unwrap();
            assert_eq!(frame, vector(name));
        }
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
}
