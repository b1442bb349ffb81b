//! The key of a container: derived from the user's key and a salt, and bound to what it encrypts.
//!
//! ```text
//! user's key + salt ─ HKDF-SHA256 ─▶ key check │ AES-256-GCM key of extents │ MAC of the header
//! ```
//!
//! Invariants:
//! 1. A container's key is derived from the user's key and a fresh random salt. No (key, nonce)
//!    pair is used twice, because a container is written strictly forward and the nonce is the
//!    offset of the extent.
//! 2. No message contains a byte of a key; keys are overwritten when dropped.
//! 3. A wrong key (its check) and a forgery (MAC, tag) are different errors.
//!
//! Not here: the keys of seals over records, and what is believed without one (`trust.rs`); where
//! the user's key comes from (`io::user`).

use orcheck_format::disk::{ContainerHeader, Encryption, Features};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Rank, Result};
use orcheck_io::rng::random_bytes;
use orcheck_io::user::{Secret, Wiped, equal};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use zeroize::Zeroizing;

/// Next step for a forgery.
pub(crate) const WHO_CAN_WRITE: &str = "find out who can write to the job's directories";

/// Identifies the bytes of an extent, to which encryption binds it.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// The rank.
    pub rank: Rank,
    /// The region's identity. A later checkpoint that refers to the extent must declare the same
    /// region.
    pub region: [u8; 16],
    /// Where the piece begins in the region.
    pub region_at_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Code of the encoding.
    pub encoding: u16,
}

impl Binding {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"orcheck v1 extent".to_vec();
        if off(Switch::BoundExtent) {
            return bytes;
        }
        bytes.extend_from_slice(&self.rank.0.to_le_bytes());
        bytes.extend_from_slice(&self.region);
        bytes.extend_from_slice(&self.region_at_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.len_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.encoding.to_le_bytes());
        bytes
    }
}

/// The key of one container.
pub struct ContainerKey(Wiped<LessSafeKey>);

impl ContainerKey {
    /// Makes the key of a new container, describes it for readers in the header, and seals the
    /// header.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    pub fn create(secret: &Secret, header: &mut ContainerHeader) -> Result<Self> {
        let salt: [u8; 32] = if off(Switch::Salt) {
            [0; 32]
        } else {
            random_bytes()
        };
        let derived = derive(secret, &salt, header, Form::Sealed)?;
        header.features.incompat |= Features::ENCRYPTED | Features::SEALED;
        let mut encryption = Encryption {
            salt,
            key_check: derived.key_check,
            mac: Some([0; 32]),
        };
        header.encryption = Some(encryption);
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(derived.header.get(), &header.covered()).as_ref());
        encryption.mac = Some(mac);
        header.encryption = Some(encryption);
        Ok(derived.key)
    }

    /// The key of an existing container.
    ///
    /// # Errors
    /// Invalid if the container was written with another key; Corrupt if its header was forged.
    pub fn open(secret: &Secret, header: &ContainerHeader) -> Result<Self> {
        let Some(encryption) = header.encryption else {
            return Err(Error::internal(
                "a container that is not encrypted has no key",
            ));
        };
        let form = match encryption.mac {
            Some(_) => Form::Sealed,
            None => Form::V1,
        };
        let derived = derive(secret, &encryption.salt, header, form)?;
        // Breaks if: the check is left out; a wrong key would look like damage.
        if !equal(&derived.key_check, &encryption.key_check) && !off(Switch::KeyCheck) {
            return Err(other_key("the container was encrypted with another key"));
        }
        // Breaks if: a mismatch is ignored; a changed header would be believed.
        if let Some(mac) = encryption.mac
            && hmac::verify(derived.header.get(), &header.covered(), &mac).is_err()
            && !off(Switch::HeaderMac)
        {
            return Err(Error::corrupt(
                "forged: the header of the container was changed after it was written",
            )
            .next(WHO_CAN_WRITE));
        }
        Ok(derived.key)
    }

    /// Encrypts in place; `room` has the payload followed by [`orcheck_format::disk::SEAL_BYTES`].
    /// `at` is the offset in the container: nothing else may ever be encrypted for that offset.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    ///
    /// # Panics
    /// If `room` is shorter than that.
    pub fn seal(&self, at: u64, binding: &Binding, crc_plain: u64, room: &mut [u8]) -> Result<()> {
        let (text, tag_at) = room.split_at_mut(room.len() - 16);
        let crc_at = text.len() - 8;
        text[crc_at..].copy_from_slice(&crc_plain.to_le_bytes());
        let tag = self
            .0
            .get()
            .seal_in_place_separate_tag(nonce(at), Aad::from(binding.bytes()), text)
            .map_err(|_| Error::internal("AES-256-GCM refused to encrypt"))?;
        tag_at.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts in place; returns the payload and the CRC of the plain bytes.
    pub(super) fn unseal<'a>(
        &self,
        at: u64,
        binding: &Binding,
        stored: &'a mut [u8],
    ) -> Result<(&'a [u8], u64)> {
        let key = self.0.get();
        let text = if off(Switch::Tag) {
            without_tag(key, at, stored)
        } else {
            key.open_in_place(nonce(at), Aad::from(binding.bytes()), stored)
                .map_err(|_| {
                    // Breaks if: a mismatch is ignored; deliberately changed bytes would reach the
                    // program.
                    Error::corrupt(
                        "the bytes were not written here under this key: changed, moved or exchanged",
                    )
                })?
        };
        let (payload, crc) = text
            .split_last_chunk::<8>()
            .ok_or_else(|| Error::corrupt("too short to be encrypted"))?;
        Ok((payload, u64::from_le_bytes(*crc)))
    }
}

/// Decrypts without verifying the tag, which must not happen; see [`Switch::Tag`]. In counter mode,
/// encrypting twice decrypts.
fn without_tag<'a>(key: &LessSafeKey, at: u64, stored: &'a mut [u8]) -> &'a mut [u8] {
    let end = stored.len().saturating_sub(AES_256_GCM.tag_len());
    let text = &mut stored[..end];
    let _ = key.seal_in_place_separate_tag(nonce(at), Aad::empty(), text);
    text
}

fn nonce(at: u64) -> Nonce {
    let mut bytes = [0; 12];
    if !off(Switch::Nonce) {
        bytes[4..].copy_from_slice(&at.to_le_bytes());
    }
    Nonce::assume_unique_for_key(bytes)
}

/// Bytes to derive.
pub(super) struct Len(pub(super) usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// The form in which a container is encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// That of 0.1.0: the header has no MAC.
    V1,
    Sealed,
}

/// Keys derived from the user's key and the salt of a container.
pub(super) struct Derived {
    key_check: [u8; 16],
    pub(super) key: ContainerKey,
    /// For the MAC of the header.
    header: Wiped<hmac::Key>,
}

pub(super) fn derive(
    secret: &Secret,
    salt: &[u8; 32],
    header: &ContainerHeader,
    form: Form,
) -> Result<Derived> {
    let refused = |_| Error::internal("the cipher library refused to derive a key");
    let job = header.job.as_str().as_bytes();
    let mut container = vec![job.len() as u8];
    container.extend_from_slice(job);
    container.extend_from_slice(&header.step.0.to_le_bytes());
    container.extend_from_slice(&header.epoch.counter.to_le_bytes());
    container.extend_from_slice(&header.epoch.run.0);
    container.extend_from_slice(&header.level.code().to_le_bytes());
    container.extend_from_slice(&header.node.0.to_le_bytes());
    container.extend_from_slice(&header.writer.0.to_le_bytes());
    if off(Switch::BoundContainer) {
        container.clear();
    }
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret.bytes());
    let expand = |info: [&[u8]; 2], out: &mut [u8]| {
        extracted
            .expand(&info, Len(out.len()))
            .and_then(|okm| okm.fill(out))
            .map_err(refused)
    };
    let mut key_check = [0; 16];
    match form {
        Form::V1 => expand([b"orcheck v1 key check", &container], &mut key_check)?,
        // From the key alone: a changed header must not look like a wrong key.
        Form::Sealed => expand([b"orcheck v2 key check", &[]], &mut key_check)?,
    }
    let label: &[u8] = match form {
        Form::V1 => b"orcheck v1 container key",
        Form::Sealed => b"orcheck v2 container key",
    };
    let mut key = Zeroizing::new([0; 32]);
    expand([label, &container], key.as_mut())?;
    let unbound = UnboundKey::new(&AES_256_GCM, key.as_ref()).map_err(refused)?;
    let mut header = Zeroizing::new([0; 32]);
    expand([b"orcheck v2 header", &[]], header.as_mut())?;
    Ok(Derived {
        key_check,
        key: ContainerKey(Wiped::new(LessSafeKey::new(unbound))),
        header: Wiped::new(hmac::Key::new(hmac::HMAC_SHA256, header.as_ref())),
    })
}

/// 63 bits by which ranks find out whether they have the same key; they reveal nothing about it.
///
/// # Errors
/// Internal if the cipher library refuses.
pub fn fingerprint(secret: &Secret, salt: &[u8]) -> Result<i64> {
    let refused = |_| Error::internal("the cipher library refused to derive a key");
    let mut bytes = [0; 8];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(secret.bytes())
        .expand(&[b"orcheck v1 same key"], Len(8))
        .and_then(|okm| okm.fill(&mut bytes))
        .map_err(refused)?;
    Ok(i64::from_le_bytes(bytes) & i64::MAX)
}

pub(crate) fn no_key() -> Error {
    Error::invalid("the checkpoint is encrypted and no key was given")
        .with(Detail::OtherKey)
        .next(
            "set encrypt_key (ORCHECK_ENCRYPT_KEY, or --encrypt-key) to the source of the key that \
             it was written with",
        )
}

/// The error for data that needs another key.
#[must_use]
pub fn other_key(what: &str) -> Error {
    Error::invalid(format!("{what} than those given"))
        .with(Detail::OtherKey)
        .next(
            "add the key of the run that wrote it to encrypt_key (--encrypt-key), after the one that writes",
        )
}
