//! Guards the frames of a connection by a MAC, or by encryption, which proves as much and also
//! hides the contents.
//!
//! How: each direction of a connection has its own key, derived from the job's key and both
//! challenges of the handshake. The MAC is keyed BLAKE3 over header and payload. Encryption is
//! AES-256-GCM over the payload, in place; the header, which holds kind, length and number, stays
//! readable and is bound to the tag. The nonce is the frame's number.
//!
//! Invariants
//! 1. A frame has the same length in both forms, and encrypting it copies nothing.
//! 2. No nonce is used twice with one key: numbers count up by one, and a connection that moves to
//!    another process takes its count along.
//! 3. A frame in one form is never mistaken for one in the other: their keys differ (see
//!    [`crate::listener`]).
//! 4. Keys are overwritten when they are no longer needed.
//!
//! Survives: any change of any byte of a frame. Not here: which number comes next
//! ([`crate::conn`]), when to encrypt (the option `net_encrypt`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, wire};
use orcheck_io::user::{Wiped, equal};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

const HEADER_BYTES: usize = wire::FRAME_HEADER_BYTES;
/// Number of bytes behind every frame: its MAC or its tag.
pub const MAC_BYTES: usize = 16;

/// Guards one direction of a connection.
pub(crate) struct Guard {
    key: Zeroizing<[u8; 32]>,
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
        Ok(Guard { key, cipher })
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
        let plain = self.cipher.is_none();
        plain.then(|| RunningMac(blake3::Hasher::new_keyed(&self.key)))
    }

    /// Completes a frame; `frame` has its header and payload.
    pub(crate) fn close(&self, seq: u64, frame: &mut Vec<u8>) -> Result<()> {
        let proof = match &self.cipher {
            None => mac(&self.key, frame),
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
            return equal(&mac(&self.key, text), proof) || off(Switch::Mac);
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
pub(crate) struct RunningMac(blake3::Hasher);

impl RunningMac {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn proof(&self) -> [u8; MAC_BYTES] {
        let mut proof = [0; MAC_BYTES];
        proof.copy_from_slice(&self.0.finalize().as_bytes()[..MAC_BYTES]);
        proof
    }

    pub(crate) fn proves(&self, found: &[u8]) -> bool {
        equal(&self.proof(), found) || off(Switch::Mac)
    }
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

fn mac(key: &[u8; 32], frame: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(&blake3::keyed_hash(key, frame).as_bytes()[..MAC_BYTES]);
    mac
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
