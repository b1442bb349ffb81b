//! Reads the user's key for checkpoints at rest, and protects it in this process.
//!
//! How: `file:PATH` is read from a file that belongs to the user and that nobody else may read,
//! `env:NAME` from an environment variable, and `keyring:NAME` from a key of type "user" in the
//! kernel's keyring of the user or of the session. The key is 32 bytes: raw, as 64 hexadecimal
//! digits, or in base64.
//!
//! Invariants
//! 1. Key bytes are in no message, in no `Debug` output and in no copy except [`Secret`] and what
//!    its one reader makes.
//! 2. They are overwritten when they are no longer needed, also in buffers on the way.
//! 3. A key that others can read is refused.
//!
//! Faults survived: a missing, too open, too long or malformed key; a kernel or sandbox without
//! keyrings. Not here: what is encrypted with it (the engine); swapped-out memory (see SECURITY).
#![allow(unsafe_code)]

use crate::errno::{last_errno, os_error, retry, rustix_error};
use crate::user::environment::{env_var, open_regular};
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use std::ffi::CString;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::path::PathBuf;
use zeroize::{Zeroize, Zeroizing};

/// Length of the key.
pub const SECRET_BYTES: usize = 32;
/// Length of the longest text of a key: base64 or hexadecimal, with room for white space.
const LIMIT_BYTES: usize = 256;

/// A key of the user. It is never shown, and is overwritten when it is dropped.
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A key whose bytes are already known.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Secret(bytes)
    }

    /// The bytes, for deriving keys from them.
    #[must_use]
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if off(Switch::KeyHidden) {
            return write!(f, "{:?}", self.0);
        }
        f.write_str("Secret")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        if !off(Switch::KeyWiped) {
            self.0.zeroize();
        }
    }
}

/// A value whose memory is overwritten when it is dropped: for keys of libraries that do not do
/// that themselves.
pub struct Wiped<T>(ManuallyDrop<Box<MaybeUninit<T>>>);

impl<T> Wiped<T> {
    /// Keeps the value in one place from now on.
    #[must_use]
    pub fn new(value: T) -> Self {
        Wiped(ManuallyDrop::new(Box::new(MaybeUninit::new(value))))
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> &T {
        // SAFETY: initialised in `new`, and taken down only in `drop`.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        // SAFETY: initialised, and nobody looks at it any more; afterwards the bytes belong to no
        // value. The box itself is taken out once.
        unsafe {
            self.0.assume_init_drop();
            let bytes = self.0.as_mut_ptr().cast::<u8>();
            for at in 0..size_of::<T>() {
                bytes.add(at).write_volatile(0);
            }
            drop(ManuallyDrop::take(&mut self.0));
        }
    }
}

/// Whether two proofs, or marks of keys, are equal, in a time that does not depend on where they
/// differ.
#[must_use]
pub fn equal(expected: &[u8], found: &[u8]) -> bool {
    let differences = expected.iter().zip(found);
    let differences = differences.fold(0u8, |difference, (a, b)| difference | (a ^ b));
    expected.len() == found.len() && std::hint::black_box(differences) == 0
}

/// Where a key comes from. Its text, as the user wrote it, is not secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `file:PATH`.
    File(PathBuf),
    /// `keyring:NAME`.
    Keyring(String),
    /// `env:NAME`.
    Environment(String),
}

impl SecretSource {
    /// Parses the user's text. `Invalid`, without repeating the text, if it is not a source: it may
    /// be the key itself, given by mistake.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("keyring", name)) if !name.is_empty() => Ok(Self::Keyring(name.to_owned())),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Environment(name.to_owned())),
            _ if off(Switch::KeyUnsaid) => Err(Error::invalid(text)),
            _ => Err(Error::invalid(
                "the source of the key is not understood (it is not repeated here)",
            )
            .next("write file:PATH, keyring:NAME or env:NAME; never the key itself")),
        }
    }

    /// Reads the key. `Invalid` if there is none, if others can read it, or if it is not 32 bytes;
    /// `Unsupported` if the kernel has no keyrings.
    pub fn read(&self) -> Result<Secret> {
        let text = match self {
            Self::File(path) => read_file(path),
            Self::Keyring(name) => read_keyring(name),
            Self::Environment(name) => env_var(name)
                .filter(|text| !text.is_empty())
                .map(|text| Zeroizing::new(text.into_bytes()))
                .ok_or_else(|| {
                    Error::invalid("the variable is not set").next("export it to every rank")
                }),
        };
        text.and_then(|text| decode(&text)).map_err(|error| {
            // Not "not found": that would read as "there is no checkpoint".
            let kind = match error.kind() {
                ErrorKind::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Invalid,
            };
            let missing = error.kind() == ErrorKind::NotFound;
            let error = Error::new(kind, error.message()).at(format!("key from {self}"));
            match (self, missing) {
                (Self::File(path), true) => error.next(format!(
                    "correct the path; the first key of all is made with `head -c 32 /dev/urandom > {0} && chmod 600 {0}`",
                    path.display()
                )),
                _ => error,
            }
        })
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Keyring(name) => write!(f, "keyring:{name}"),
            Self::Environment(name) => write!(f, "env:{name}"),
        }
    }
}

/// 32 bytes: raw, in hexadecimal or in base64.
fn decode(text: &[u8]) -> Result<Secret> {
    let exact = |bytes: &[u8]| <[u8; SECRET_BYTES]>::try_from(bytes).ok().map(Secret);
    if let Some(secret) = exact(text) {
        return Ok(secret);
    }
    let trimmed = text.trim_ascii();
    let decoded = match trimmed.len() {
        64 => HEXLOWER_PERMISSIVE.decode(trimmed).ok(),
        44 => BASE64.decode(trimmed).ok(),
        _ => None,
    };
    let decoded = Zeroizing::new(decoded.unwrap_or_default());
    exact(&decoded).ok_or_else(|| {
        Error::invalid(format!(
            "expected {SECRET_BYTES} bytes, or 64 hexadecimal digits, or 44 characters of base64; found {} bytes \
             of something else",
            text.len()
        ))
        .next("make a key, for example with: head -c 32 /dev/urandom > FILE; chmod 600 FILE")
    })
}

fn read_file(path: &std::path::Path) -> Result<Zeroizing<Vec<u8>>> {
    let shown = path.display();
    let what = |errno| rustix_error(errno, format_args!("read {shown}"));
    let (handle, stat) = open_regular(path)?;
    let mode = stat.st_mode & 0o7777;
    let user = crate::machine::effective_uid();
    // Breaks if: the mode is ignored; a key that the whole site can read would pass for a secret.
    if (mode & 0o177 != 0 || stat.st_uid != user) && !off(Switch::KeyOwner) {
        return Err(Error::invalid(format!(
            "expected a file of user {user} that only this user may read (mode 0600 or 0400), found user {} and \
             mode {mode:04o}",
            stat.st_uid
        ))
        .next(format!("chmod 600 {shown}, and make a new key if others may have read it")));
    }
    let mut bytes = Zeroizing::new(vec![0; LIMIT_BYTES + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match retry(|| rustix::io::read(&handle, &mut bytes[len..])).map_err(what)? {
            0 => break,
            more => len += more,
        }
    }
    if len > LIMIT_BYTES {
        return Err(Error::invalid(format!(
            "expected a key, found more than {LIMIT_BYTES} bytes"
        )));
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn read_keyring(name: &str) -> Result<Zeroizing<Vec<u8>>> {
    let description =
        CString::new(name).map_err(|_| Error::invalid("the name of the key holds a zero byte"))?;
    let what = |errno| {
        let error = os_error(errno, "look for a key of type 'user'");
        match errno {
            libc::ENOKEY | libc::EKEYEXPIRED | libc::EKEYREVOKED => Error::invalid(error.message())
                .next(format!("keyctl padd user {name} @u < KEYFILE")),
            libc::ENOSYS | libc::EPERM => {
                Error::unsupported(error.message()).next("use file:PATH or env:NAME")
            }
            _ => error,
        }
    };
    // Only its possessor may read a key, and the user's keyring is not always part of the
    // session's, so the key is linked to this thread while it is read. Breaks if: it is not linked;
    // keys in @u would be refused in many batch jobs.
    const HELD: i32 = libc::KEY_SPEC_THREAD_KEYRING;
    let mut found = Err(libc::ENOKEY);
    for keyring in [libc::KEY_SPEC_USER_KEYRING, libc::KEY_SPEC_SESSION_KEYRING] {
        // SAFETY: both texts end in a zero byte and outlive the call.
        let id = unsafe {
            libc::syscall(
                libc::SYS_keyctl,
                libc::KEYCTL_SEARCH,
                keyring,
                c"user".as_ptr(),
                description.as_ptr(),
                HELD,
            )
        };
        found = if id > 0 { Ok(id) } else { Err(last_errno()) };
        if !matches!(found, Err(libc::ENOKEY)) {
            break;
        }
    }
    let id = found.map_err(what)?;
    let mut bytes = Zeroizing::new(vec![0u8; LIMIT_BYTES]);
    // SAFETY: the buffer is as long as the kernel is told.
    let len = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_READ,
            id,
            bytes.as_mut_ptr(),
            bytes.len(),
        )
    };
    let len = usize::try_from(len).map_err(|_| what(last_errno()));
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_UNLINK, id, HELD) };
    let len = len?;
    // The kernel returns the full length of the key even if it was truncated.
    if len > LIMIT_BYTES {
        return Err(Error::invalid(format!(
            "expected a key, found more than {LIMIT_BYTES} bytes"
        )));
    }
    bytes.truncate(len);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";

    // Breaks if: a byte, or the length, is left out.
    #[test]
    fn proofs_are_equal_only_as_a_whole() {
        let proof = [7u8; 16];
        assert!(equal(&proof, &proof) && equal(&[], &[]));
        for at in 0..proof.len() {
            let mut other = proof;
            other[at] ^= 0x80;
            assert!(!equal(&proof, &other), "byte {at}");
            assert!(!equal(&proof, &proof[..at]) && !equal(&proof[..at], &proof));
        }
    }

    #[test]
    fn three_ways_to_write_a_key_are_one_key() {
        let hex = HEXLOWER_PERMISSIVE.encode(&KEY);
        let base64 = BASE64.encode(&KEY);
        for text in [
            KEY.to_vec(),
            hex.clone().into_bytes(),
            hex.to_uppercase().into_bytes(),
            format!("{hex}\n").into_bytes(),
            format!(" {base64}\r\n").into_bytes(),
        ] {
            assert_eq!(decode(&text).unwrap().bytes(), &KEY);
        }
        for text in [
            &KEY[..31],
            &KEY.repeat(2)[..],
            b"",
            &[b'g'; 64],
            &[b'!'; 44],
        ] {
            let error = decode(text).unwrap_err().to_string();
            // Breaks if: the message repeats what was found.
            assert!(text.is_empty() || !error.contains(std::str::from_utf8(text).unwrap()));
        }
    }

    // Breaks if: `Secret` is dropped unchanged; the key would stay in memory that others get.
    #[test]
    fn a_key_is_overwritten_when_it_goes() {
        let mut kept = MaybeUninit::new(Secret(KEY));
        // SAFETY: initialised, and taken down once; the bytes stay readable, they only belong to no
        // value any more.
        let left: [u8; SECRET_BYTES] = unsafe {
            kept.assume_init_drop();
            kept.as_ptr().cast::<[u8; SECRET_BYTES]>().read_volatile()
        };
        assert_eq!(left, [0; SECRET_BYTES]);
    }

    #[test]
    fn nothing_shows_a_key() {
        let secret = Secret(KEY);
        assert_eq!(format!("{secret:?}"), "Secret");
        let error = SecretSource::parse("0123456789abcdefghijklmnopqrstuv").unwrap_err();
        assert!(!error.to_string().contains("0123456789"), "{error}");
        for text in ["file:/a b", "keyring:job", "env:KEY"] {
            assert_eq!(SecretSource::parse(text).unwrap().to_string(), text);
        }
        for text in ["file:", "keyring:", "env:", "hex:00", ""] {
            assert!(SecretSource::parse(text).is_err());
        }
    }
}
