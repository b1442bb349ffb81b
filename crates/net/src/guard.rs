//! Guards the frames of a connection by a MAC, or by encryption, which proves as much and also
//! hides the contents.
//!
//! How: each direction of a connection has its own key, derived from the job's key and both
//! challenges of the handshake. The MAC is a hash of the bytes at a secret point (`polyval.rs`),
//! which keyed BLAKE3 turns into a proof together with the head: the header, and for bytes of files
//! their place. Encryption is AES-256-GCM over the payload, in place; the header, which holds kind,
//! length and number, stays readable and is bound to the tag. The nonce is the frame's number.
//!
//! Invariants
//! 1. A frame has the same length in both forms, and encrypting it copies nothing.
//! 2. No nonce is used twice with one key: numbers count up by one, and a connection that moves to
//!    another process takes its count along. The MAC has no nonce: nothing leaks if one repeats.
//! 3. A frame in one form is never mistaken for one in the other: their keys differ (see
//!    [`crate::listener`]).
//! 4. Keys, and the point, are overwritten when they are no longer needed.
//! 5. Heads of one kind have one length, and the header has the number of bytes: frames with equal
//!    heads have bodies of equal length, so only a collision of the hash makes two of them alike.
//!
//! Survives: any change of any byte of a frame. Not here: which number comes next
//! ([`crate::conn`]), when to encrypt (the option `net_encrypt`). Why this MAC:
//! `docs/adr/0048-frames-are-proven-by-a-polynomial-and-blake3.md`.

mod polyval;

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, wire};
use orcheck_io::user::{Wiped, equal};
use polyval::{BLOCK_BYTES, Point, Running};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

const HEADER_BYTES: usize = wire::FRAME_HEADER_BYTES;
/// Number of bytes behind every frame: its MAC or its tag.
pub const MAC_BYTES: usize = 16;

/// Guards one direction of a connection.
pub(crate) struct Guard {
    key: Zeroizing<[u8; 32]>,
    point: Point,
    cipher: Option<Wiped<LessSafeKey>>,
}

impl Guard {
    pub(crate) fn new(key: [u8; 32], encrypt: bool) -> Result<Guard> {
        let key = Zeroizing::new(key);
        let cipher = encrypt.then(|| UnboundKey::new(&AES_256_GCM, key.as_ref()));
        let cipher = cipher
            .transpose()
            .map_err(|_| Error::internal("the cipher library refused the key of a connection"))?;
        let cipher = cipher.map(|key| Wiped::new(LessSafeKey::new(key)));
        let point = keyed(&key, &[b"orc2 frame point"]);
        let point = Point::new(point);
        Ok(Guard { key, point, cipher })
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        *self.key
    }

    pub(crate) fn encrypts(&self) -> bool {
        self.cipher.is_some()
    }

    /// A running MAC for a frame that is made, or arrives, piece by piece; none if it is encrypted,
    /// which needs the whole frame.
    pub(crate) fn running(&self) -> Option<RunningMac> {
        self.cipher.is_none().then(|| self.mac())
    }

    fn mac(&self) -> RunningMac {
        RunningMac {
            key: self.key.clone(),
            hash: self.point.begin(),
        }
    }

    /// The MAC of a whole frame, without it.
    fn mac_of(&self, frame: &[u8]) -> Option<[u8; MAC_BYTES]> {
        let kind = *frame.get(wire::FRAME_KIND_AT)?;
        let place_bytes = wire::place_bytes(kind).unwrap_or(0);
        // One that is too short for its place is refused when that is looked for.
        let end = (HEADER_BYTES + place_bytes).min(frame.len());
        let (head, body) = frame.split_at_checked(end)?;
        let mut mac = self.mac();
        mac.add(body);
        Some(mac.proof(head))
    }

    /// Completes a frame; `frame` has its header and payload.
    pub(crate) fn close(&self, seq: u64, frame: &mut Vec<u8>) -> Result<()> {
        let proof = match &self.cipher {
            None => (self.mac_of(frame))
                .ok_or_else(|| Error::internal("a frame has no room for its header"))?,
            Some(cipher) => {
                let (header, payload) = frame
                    .split_at_mut_checked(HEADER_BYTES)
                    .ok_or_else(|| Error::internal("a frame has no room for its header"))?;
                let tag = cipher.get().seal_in_place_separate_tag(
                    nonce(seq),
                    Aad::from(bound(header)),
                    payload,
                );
                let tag = tag.map_err(|_| Error::internal("AES-256-GCM refused to encrypt"))?;
                let mut proof = [0; MAC_BYTES];
                proof.copy_from_slice(tag.as_ref());
                proof
            }
        };
        frame.extend_from_slice(&proof);
        Ok(())
    }

    /// Verifies a whole frame and makes its payload readable. If this fails, none of it may be
    /// used.
    pub(crate) fn open(&self, seq: u64, frame: &mut [u8]) -> bool {
        let Some(cipher) = &self.cipher else {
            let Some((text, proof)) = frame.split_last_chunk::<MAC_BYTES>() else {
                return false;
            };
            let expected = self.mac_of(text);
            return expected.is_some_and(|mac| equal(&mac, proof)) || off(Switch::Mac);
        };
        let Some((header, sealed)) = frame.split_at_mut_checked(HEADER_BYTES) else {
            return false;
        };
        if off(Switch::NetCipher) {
            // In counter mode, encrypting twice decrypts.
            let Some((text, _)) = sealed.split_last_chunk_mut::<MAC_BYTES>() else {
                return false;
            };
            let again = cipher
                .get()
                .seal_in_place_separate_tag(nonce(seq), Aad::empty(), text);
            return again.is_ok();
        }
        let opened = cipher
            .get()
            .open_in_place(nonce(seq), Aad::from(bound(header)), sealed);
        opened.is_ok()
    }
}

/// The MAC of a frame that is not contiguous.
pub(crate) struct RunningMac {
    key: Zeroizing<[u8; 32]>,
    hash: Running,
}

impl RunningMac {
    /// Adds bytes that follow the head.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.hash.add(bytes);
    }

    /// The proof of everything that was added behind this head: the header, and the place if the
    /// kind has one.
    pub(crate) fn proof(&self, head: &[u8]) -> [u8; MAC_BYTES] {
        let hash = Zeroizing::new(self.hash.hash());
        // Breaks if: the head is left out; a frame would do for another kind, number or place.
        let head = if off(Switch::MacHead) { &[] } else { head };
        keyed(&self.key, &[b"orc2 frame proof", &*hash, head])
    }

    pub(crate) fn proves(&self, head: &[u8], found: &[u8]) -> bool {
        equal(&self.proof(head), found) || off(Switch::Mac)
    }
}

/// The proof of a frame under the key of its direction, for tests that make frames by themselves.
///
/// # Errors
/// Internal if the frame has no header.
#[doc(hidden)]
pub fn frame_proof(key: [u8; 32], frame: &[u8]) -> Result<[u8; MAC_BYTES]> {
    let mut closed = frame.to_vec();
    Guard::new(key, false)?.close(0, &mut closed)?;
    let proof = closed.last_chunk::<MAC_BYTES>().copied();
    proof.ok_or_else(|| Error::internal("a frame has no proof"))
}

/// Keyed BLAKE3 of these texts, one after the other.
fn keyed(key: &[u8; 32], texts: &[&[u8]]) -> [u8; BLOCK_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for text in texts {
        hasher.update(text);
    }
    let mut short = [0; BLOCK_BYTES];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..BLOCK_BYTES]);
    short
}

/// What is bound to a payload, together with the key and the number.
fn bound(header: &[u8]) -> &[u8] {
    if off(Switch::NetHeader) { &[] } else { header }
}

fn nonce(seq: u64) -> Nonce {
    let mut bytes = [0; 12];
    if !off(Switch::NetNonce) {
        bytes[4..].copy_from_slice(&seq.to_le_bytes());
    }
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"twenty bytes of head and what nobody else may read";

    fn frame(guard: &Guard, seq: u64) -> Vec<u8> {
        let mut frame = TEXT.to_vec();
        guard.close(seq, &mut frame).unwrap();
        frame
    }

    // Breaks if: the nonce is not the number (equal texts look equal), or the header is encrypted
    // or not bound.
    #[test]
    fn equal_texts_look_different_and_their_header_is_bound() {
        let guard = Guard::new([7; 32], true).unwrap();
        let (one, two) = (frame(&guard, 0), frame(&guard, 1));
        for frame in [&one, &two] {
            assert_eq!(frame.len(), TEXT.len() + MAC_BYTES);
            assert_eq!(frame[..HEADER_BYTES], TEXT[..HEADER_BYTES]);
            assert_ne!(frame[HEADER_BYTES..TEXT.len()], TEXT[HEADER_BYTES..]);
        }
        assert_ne!(one[HEADER_BYTES..], two[HEADER_BYTES..]);
        let opens = |guard: &Guard, seq, mut frame: Vec<u8>| {
            let opened = guard.open(seq, &mut frame);
            opened && frame[..TEXT.len()] == *TEXT
        };
        assert!(opens(&guard, 0, one.clone()));
        assert!(!opens(&guard, 1, one.clone()));
        for at in 0..one.len() {
            let mut other = one.clone();
            other[at] ^= 1;
            assert!(!guard.open(0, &mut other), "byte {at}");
        }
        // Another key, and the other form with the same key.
        let stranger = Guard::new([8; 32], true).unwrap();
        let plain = Guard::new([7; 32], false).unwrap();
        assert!(!opens(&stranger, 0, one.clone()) && !opens(&plain, 0, one));
        assert!(opens(&plain, 0, frame(&plain, 0)));
        assert!(!opens(&guard, 0, frame(&plain, 0)));
    }
}
