//! Trust: which records and containers are believed, and the MACs by which they are known.
//!
//! How: from each of the user's keys come one key for MACs over small records (`format::seal`) and a public mark of it.
//! A commit record names the digest of every manifest, so that its seal covers what every container holds; extents are
//! bound to their container by what they are encrypted with (`encoding.rs`). The MAC of a container's header binds its
//! features to the same key.
//!
//! ```text
//! user's key ─▶ MAC of the commit record ─▶ digest of each manifest ─▶ extents: length, place, encoding
//!           └─▶ key of the container ──────▶ MAC of the header, tag of each extent
//! ```
//!
//! Invariants:
//! 1. Where encryption is configured, what is not encrypted, and what has no seal, is refused unless it is named
//!    in [`Accept`].
//! 2. A seal that is there is checked whenever there is a key; a wrong one is never passed over.
//! 3. Damage (CRC), another key (its mark) and a forgery (MAC) are three different errors.
//! 4. MACs are compared in constant time.
//!
//! Not here: what is checked of records that are believed (`catalog.rs`, `reader.rs`); where keys come from
//! (`io::secret`). Nothing here notices that the newest checkpoints were removed: what is left is older and genuine.

use crate::encoding::pieces::{ContainerKey, no_key};
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
    /// What is not encrypted.
    pub plain: bool,
    /// What is encrypted in the form of 0.1.0, in which records have no seal.
    pub v1: bool,
}

impl Accept {
    /// From the names of the option.
    ///
    /// # Errors
    /// Invalid for another name.
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

/// What is known of the seal of a record that was believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proof {
    /// It has none.
    #[default]
    None,
    /// It has one, and there is no key to check it with.
    Unchecked,
    /// It was made with one of the keys.
    Sealed,
}

/// One of the user's keys, and what is made of it.
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

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Trust {
    /// Without a key: everything is read as it is, and nothing is proven.
    #[must_use]
    pub fn nobody() -> Arc<Self> {
        Arc::default()
    }

    /// With these keys; the first one writes. `encrypts`: what is not encrypted is refused.
    ///
    /// # Errors
    /// Internal when the library of ciphers refuses.
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

    /// The key with which containers are to be encrypted; `None` where encryption is not configured.
    #[must_use]
    pub fn writing_key(&self) -> Option<&Arc<Secret>> {
        let first = self.keys.first().filter(|_| self.encrypts);
        first.map(|key| &key.secret)
    }

    /// A record as it is to be written: under a seal where encryption is configured.
    ///
    /// # Errors
    /// Internal for what is no record.
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
    /// Corrupt for one that is damaged, forged, or has no seal where one is needed; Invalid for another key.
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
        // Breaks if: this is passed over; whoever can write could make a checkpoint of any containers.
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

    /// The key of a container that a record with this proof names; `None` for one that is not encrypted.
    ///
    /// # Errors
    /// Corrupt for a container in a form that is refused, or that the record cannot have named; Invalid without a key
    /// for an encrypted one, or with another.
    pub fn open(&self, header: &ContainerHeader, proof: Proof) -> Result<Option<ContainerKey>> {
        if self.keys.is_empty() {
            return match header.encryption {
                Some(_) => Err(no_key()),
                None => Ok(None),
            };
        }
        let sealed = header.encryption.is_some_and(|found| found.mac.is_some());
        // Breaks if: a seal is taken off and the rest believed, or set around what has none.
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

/// The next step of whoever meets a forgery.
pub(crate) const WHO_CAN_WRITE: &str = "find out who can write to the job's directories";

/// The next step of whoever meets a refusal.
pub const HOW_TO_ACCEPT: &str = "if this job was not encrypted until now, set accept = ['plain', 'v1'] (--accept plain,v1) for one run";

/// That something is refused because nothing proves who wrote it.
fn refused(what: &str) -> Error {
    Error::corrupt(format!(
        "not authenticated: {what}, and encryption is configured"
    ))
    .with(Detail::Unauthenticated)
    .next(HOW_TO_ACCEPT)
}

/// That something needs another key.
#[must_use]
pub fn other_key(what: &str) -> Error {
    Error::invalid(format!("{what} than those given"))
        .with(Detail::OtherKey)
        .next(
            "add the key of the run that wrote it to encrypt_key (--encrypt-key), after the one that writes",
        )
}
