//! Decides which records and containers to believe, and computes and checks their MACs.
//!
//! How: each of the user's keys yields one key for MACs over small records (`format::disk`) and a
//! public mark. A commit record names the digest of every manifest, so its seal covers the contents
//! of every container. Encryption binds extents to their container (`encoding.rs`). The MAC of a
//! container's header binds its features to the same key.
//!
//! ```text
//! user's key ─▶ MAC of the commit record ─▶ digest of manifest ─▶ extents: length, place, encoding
//!           └─▶ key of the container ──────▶ MAC of the header, tag of each extent
//! ```
//!
//! Invariants:
//! 1. If encryption is configured, everything unencrypted or unsealed is refused unless it is named
//!    in [`Accept`].
//! 2. With a key, every existing seal is checked; a wrong one is never ignored.
//! 3. Damage (CRC), another key (its mark) and a forgery (MAC) are three different errors.
//! 4. MACs are compared in constant time.
//!
//! Not here: what is checked of believed records (`catalog.rs`, `reader.rs`); where keys come from
//! (`io::user`). Nothing here notices that the newest checkpoints were removed: those that remain
//! are older and genuine.

use crate::encoding::key::{ContainerKey, Len, WHO_CAN_WRITE, no_key, other_key};
use orcheck_format::disk::{ContainerHeader, KEY_ID_BYTES, MAC_BYTES, seal, seal_of};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Result};
use orcheck_io::user::{Secret, Wiped, equal};
use ring::{hkdf, hmac};
use std::sync::Arc;
use zeroize::Zeroizing;

/// What is accepted although encryption is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accept {
    /// Unencrypted data.
    pub plain: bool,
    /// Data encrypted in the form of 0.1.0, whose records have no seal.
    pub v1: bool,
}

impl Accept {
    /// Parses the names of the option.
    ///
    /// # Errors
    /// Invalid for an unknown name.
    pub fn parse<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self> {
        let mut accept = Self::default();
        for name in names {
            match name.trim() {
                "plain" => accept.plain = true,
                "v1" => accept.v1 = true,
                other => {
                    return Err(Error::invalid(format!(
                        "accept: expected 'plain' or 'v1', found '{other}'"
                    )));
                }
            }
        }
        Ok(accept)
    }

    fn something(self) -> bool {
        self.plain || self.v1
    }
}

/// What is known about the seal of a believed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proof {
    /// It has no seal.
    #[default]
    None,
    /// It has a seal, and there is no key to check it with.
    Unchecked,
    /// It was sealed with one of the keys.
    Sealed,
}

/// One of the user's keys, with what is derived from it.
struct Known {
    secret: Arc<Secret>,
    id: [u8; KEY_ID_BYTES],
    mac: Wiped<hmac::Key>,
}

/// The user's keys, and what is believed without them.
#[derive(Default)]
pub struct Trust {
    keys: Vec<Known>,
    /// Encryption is configured.
    encrypts: bool,
    accept: Accept,
}

impl Trust {
    /// Without a key: everything is read as it is, and nothing is verified.
    #[must_use]
    pub fn nobody() -> Arc<Self> {
        Arc::default()
    }

    /// With these keys; the first one writes. `encrypts`: unencrypted data is refused.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    pub fn new(secrets: &[Arc<Secret>], encrypts: bool, accept: Accept) -> Result<Arc<Self>> {
        let keys = secrets.iter().map(|secret| {
            let made =
                hkdf::Salt::new(hkdf::HKDF_SHA256, b"orcheck v2 records").extract(secret.bytes());
            let expand = |label: &[u8], out: &mut [u8]| {
                made.expand(&[label], Len(out.len()))
                    .and_then(|okm| okm.fill(out))
                    .map_err(|_| Error::internal("the cipher library refused to derive a key"))
            };
            let mut id = [0; KEY_ID_BYTES];
            expand(b"which key", &mut id)?;
            let mut mac = Zeroizing::new([0; MAC_BYTES]);
            expand(b"seal", mac.as_mut())?;
            Ok(Known {
                secret: Arc::clone(secret),
                id,
                mac: Wiped::new(hmac::Key::new(hmac::HMAC_SHA256, mac.as_ref())),
            })
        });
        Ok(Arc::new(Self {
            keys: keys.collect::<Result<_>>()?,
            encrypts: encrypts && !secrets.is_empty(),
            accept,
        }))
    }

    /// Whether there is a key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The key with which to encrypt containers; `None` if encryption is not configured.
    #[must_use]
    pub(crate) fn writing_key(&self) -> Option<&Arc<Secret>> {
        let first = self.keys.first().filter(|_| self.encrypts);
        first.map(|key| &key.secret)
    }

    /// A record in the form to write: sealed if encryption is configured.
    ///
    /// # Errors
    /// Internal if this is not a record.
    pub fn seal(&self, record: Vec<u8>) -> Result<Vec<u8>> {
        match self.keys.first() {
            Some(key) if self.encrypts => seal(&record, key.id, |covered| {
                let mut mac = [0; MAC_BYTES];
                mac.copy_from_slice(hmac::sign(key.mac.get(), covered).as_ref());
                mac
            }),
            _ => Ok(record),
        }
    }

    /// Whether a record is believed, and why.
    ///
    /// # Errors
    /// Corrupt for a record that is damaged, forged, or lacks a required seal; Invalid for another
    /// key.
    pub fn check(&self, record: &[u8]) -> Result<Proof> {
        let Some(found) = seal_of(record)? else {
            if self.encrypts && !self.accept.something() && !off(Switch::UnsealedRefused) {
                return Err(refused("the record has no seal"));
            }
            return Ok(Proof::None);
        };
        if self.keys.is_empty() {
            return Ok(Proof::Unchecked);
        }
        let Some(key) = self.keys.iter().find(|key| equal(&key.id, &found.key_id)) else {
            return Err(other_key("the record was sealed with another key"));
        };
        // Breaks if: a mismatch is ignored; anybody who can write could make a checkpoint of any
        // containers.
        if hmac::verify(key.mac.get(), found.covered, &found.mac).is_err()
            && !off(Switch::RecordMac)
        {
            return Err(Error::corrupt(
                "forged: the record's seal was not made with your key, or the record was changed after it was sealed",
            )
            .next(WHO_CAN_WRITE));
        }
        Ok(Proof::Sealed)
    }

    /// The key of a container named by a record with this proof; `None` if it is not encrypted.
    ///
    /// # Errors
    /// Corrupt for a container in a refused form, or one that the record cannot have named; Invalid
    /// for an encrypted one without its key.
    pub fn open(&self, header: &ContainerHeader, proof: Proof) -> Result<Option<ContainerKey>> {
        if self.keys.is_empty() {
            return match header.encryption {
                Some(_) => Err(no_key()),
                None => Ok(None),
            };
        }
        let sealed = header.encryption.is_some_and(|found| found.mac.is_some());
        // Breaks if: a container is believed whose seal was removed, or that was put under a seal
        // although it has none.
        if sealed != (proof == Proof::Sealed) && !off(Switch::SealedTogether) {
            return Err(Error::corrupt(match sealed {
                true => "forged: the container belongs to a sealed commit record, and the record has no seal",
                false => "forged: a sealed commit record names a container without a seal",
            })
            .next(WHO_CAN_WRITE));
        }
        if header.encryption.is_none() {
            if self.encrypts && !self.accept.plain && !off(Switch::PlainRefused) {
                return Err(refused("the container is not encrypted"));
            }
            return Ok(None);
        }
        if !sealed && self.encrypts && !self.accept.v1 && !off(Switch::V1Refused) {
            return Err(refused(
                "the container is encrypted in the form of 0.1.0, which does not prove who wrote it",
            ));
        }
        let mut other = None;
        for key in &self.keys {
            match ContainerKey::open(&key.secret, header) {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.is(Detail::OtherKey) => {
                    other = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(other.unwrap_or_else(no_key))
    }
}

/// Next step for a refusal.
pub const HOW_TO_ACCEPT: &str = "if this job was not encrypted until now, set accept = ['plain', 'v1'] (--accept plain,v1) for one run";

/// The error for data whose writer nothing proves.
fn refused(what: &str) -> Error {
    Error::corrupt(format!(
        "not authenticated: {what}, and encryption is configured"
    ))
    .with(Detail::Unauthenticated)
    .next(HOW_TO_ACCEPT)
}
