//! Encodes the messages between a process and a staging server: requests about directories and
//! files on the server.
//!
//! How: a process sends requests. Each [`Ask`] except [`Ask::Need`] and [`Ask::Offer`] gets one
//! answer: [`Reply::Told`], [`Reply::Names`], [`Reply::Failed`], or raw bytes for [`Ask::Read`]
//! (`docs/format.md`, "Bytes in bulk"). A connection has at most one open file: `Create` and `Open`
//! open it, `Close` or the next `Create` or `Open` closes it. Bytes to be written also travel raw;
//! bytes after the first [`FIRST_BYTES`] of a file wait until the server asks for them.
//!
//! Versions: a connection begins with [`Ask::Greet`], which lists the versions that the process
//! speaks. The server lists its own in [`Reply::Greeted`], and both use the newest version that
//! both know. Version 1, of Orcheck 0.1.0, has no greeting: its servers take a greeting for a
//! request about the caller's directory, and its processes are sent nothing that they do not know.
//! A reader skips every key of a map, number of an answer and item of an entry that it does not
//! know.
//!
//! Invariants:
//! 1. A directory is at most [`MAX_DEPTH`] plain names below the caller's own directory; no name
//!    leads upwards.
//! 2. A decoded message encodes to the same bytes.
//!
//! Faults survived: arbitrary bytes give Corrupt or Unsupported.
//!
//! Not here: who may send requests (the key of the connection), how they are carried out
//! (`orcheck-staging`).

use crate::coding::{Reader, Writer, flag};
use crate::disk::{MAX_CONTAINERS, MAX_FILE_NAME_BYTES};
use crate::error::{Detail, Error, Result};
use crate::wire::fields::{MAX_TEXT_BYTES, cut, read_kind};

/// Bytes of a file that may be sent before the server asks for any.
pub const FIRST_BYTES: u64 = 64 << 10;
/// Most bytes sent at once to or from a server: what it has room for in one piece.
pub const PIECE_BYTES: u64 = 4 << 20;
/// Most levels of nested directories.
pub const MAX_DEPTH: usize = 4;
/// Most numbers in one answer.
const MAX_NUMBERS: usize = 64;
/// Most items of an entry of a listing; this version knows the first three.
const MAX_ITEMS: usize = 16;
/// Longest name of a release.
const MAX_RELEASE_BYTES: usize = 64;
/// Versions of these messages that this release understands. Raising the first ends the support of
/// a minor release.
const VERSIONS: (u32, u32) = (1, 2);

/// The protocol versions that one side speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
    /// The release of Orcheck on that side, for messages.
    pub release: String,
}

impl Versions {
    /// The versions of this release.
    #[must_use]
    pub fn own() -> Self {
        Self {
            oldest: VERSIONS.0,
            newest: VERSIONS.1,
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The versions of a side that does not send any.
    #[must_use]
    pub fn unsaid() -> Self {
        Self {
            oldest: 1,
            newest: 1,
            release: "0.1.0".to_owned(),
        }
    }

    /// The newest version that both sides speak.
    ///
    /// # Errors
    /// Unsupported, with both sides' versions, if there is none; `ours` and `theirs` name the two
    /// sides.
    pub fn agree(&self, other: &Self, ours: &str, theirs: &str) -> Result<u32> {
        let newest = self.newest.min(other.newest);
        if newest >= self.oldest.max(other.oldest) {
            return Ok(newest);
        }
        let older = if self.newest < other.newest {
            ours
        } else {
            theirs
        };
        Err(Error::unsupported(format!(
            "{ours} speaks {self}, {theirs} speaks {other}: they have no version in common"
        ))
        .next(format!(
            "install a newer release of Orcheck where {older} runs"
        )))
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "versions {} to {} of the protocol (Orcheck {})",
            self.oldest, self.newest, self.release
        )
    }
}

/// Identifies a server's disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// Its number; see [`identity_file`].
    pub identity: u64,
    /// When a server first saw the caller's directory on it, in seconds since 1970, if known.
    pub since_unix_s: Option<u64>,
}

/// The file that identifies a server's disk, in each caller's directory.
#[must_use]
pub fn identity_file(number: u64) -> String {
    format!("server-{number:016x}.id")
}

/// The number in the name of such a file.
#[must_use]
pub fn identity_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("server-")?.strip_suffix(".id")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (identity_file(number) == name).then_some(number)
}

static TOP: StoreDir = StoreDir(String::new());

/// A directory on a server: names joined by `/`; the empty text is the caller's own directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreDir(String);

impl StoreDir {
    /// The directory `name` inside this one.
    ///
    /// # Errors
    /// Invalid if `name` is not a plain name, or the directory would be nested too deep.
    pub fn child(&self, name: &str) -> Result<Self> {
        if !is_plain(name) || self.names().count() >= MAX_DEPTH {
            return Err(Error::invalid(format!(
                "directory {name:?} in {:?} refused: expected at most {MAX_DEPTH} plain names",
                self.0
            )));
        }
        Ok(Self(match self.0.as_str() {
            "" => name.to_owned(),
            above => format!("{above}/{name}"),
        }))
    }

    /// The directory that holds this one; `None` for the caller's own directory.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/') {
            Some((above, _)) => Some(Self(above.to_owned())),
            None if self.0.is_empty() => None,
            None => Some(Self::default()),
        }
    }

    /// The names, from the top.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|_| !self.0.is_empty())
    }

    fn is_plain(&self) -> bool {
        self.names().count() <= MAX_DEPTH && self.names().all(is_plain)
    }
}

impl std::fmt::Display for StoreDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= MAX_FILE_NAME_BYTES
        && !name.contains('/')
        && !name.chars().any(char::is_control)
}

/// A request of a process. Offsets and lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Lists the versions that the process speaks, before anything else. Answered by `Greeted`;
    /// version 1 takes it for a request about the caller's directory and answers with `Told`.
    Greet(Versions),
    /// Is there a file or directory of this name? Told: 0 or 1.
    Holds(StoreDir, String),
    /// Opens a file for reading. Told: its length.
    Open(StoreDir, String),
    /// Creates a file; with `true`, past the page cache. Told: whether it is past the page cache;
    /// its alignment; the server's number, which no two starts of the server share and which
    /// changes when its disk loses names; whether consecutive writes may be combined, in pieces of
    /// [`PIECE_BYTES`].
    Create(StoreDir, String, bool),
    /// Renames a file, replacing the second name. Told: the server's number.
    Rename(StoreDir, String, String),
    /// Renames a file, never replacing. Told: the server's number.
    RenameNew(StoreDir, String, String),
    /// Removes a file. Told: the server's number.
    Remove(StoreDir, String),
    /// Lists a directory. Answered by `Names`.
    List(StoreDir),
    /// Makes names durable. Told: the server's number.
    SyncNames(StoreDir),
    /// Opens a directory; with `true`, creates it first. Told: nothing.
    Child(StoreDir, bool),
    /// Removes an empty directory of this name. Told: the server's number.
    RemoveChild(StoreDir, String),
    /// Told: free bytes, and whether the directory is not writable.
    Facts(StoreDir),
    /// Reads this many bytes of the file from an offset on, at most [`PIECE_BYTES`]. They come raw.
    Read(u64, u64),
    /// Announces that this many bytes from an offset on will be read soon. Not answered.
    Need(u64, u64),
    /// Announces this many more bytes to send. Not answered; the server asks for them when it has
    /// room.
    Offer(u64),
    /// Reserves space for this many bytes. Told: nothing.
    Allocate(u64),
    /// Sets the length. Told: nothing.
    Truncate(u64),
    /// Makes everything sent so far durable. Told: how many bytes arrived.
    Sync,
    /// Told: the length.
    Length,
    /// Tries to lock the file for as long as the connection lasts. Told: 0 or 1.
    Lock,
    /// Closes the file. Told: nothing.
    Close,
}

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The versions that the server speaks, and its disk.
    Greeted(Versions, Option<Disk>),
    /// The request was carried out.
    Told(Vec<u64>),
    /// What a directory holds: name, length, whether it is a directory.
    Names(Vec<(String, u64, bool)>),
    /// The request failed. Of the details of an error, only [`Detail::Denied`] is sent, and not by
    /// version 0.1.0.
    Failed(Error),
    /// The process may send this many more pieces of the file being written.
    Want(u32),
    /// The request is still being carried out.
    Busy,
}

/// Every message between a process and a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreMessage {
    /// Sent by the process.
    Ask(Ask),
    /// Sent by the server.
    Reply(Reply),
}

const FIRST_KIND: u8 = 70;
const NAMES: [&str; 25] = [
    "holds",
    "open",
    "create",
    "rename",
    "rename new",
    "remove",
    "list names",
    "sync names",
    "child",
    "remove child",
    "facts",
    "read",
    "need",
    "offer",
    "allocate",
    "truncate",
    "sync",
    "length",
    "try lock",
    "close",
    "told",
    "names",
    "failed",
    "want",
    "busy",
];

/// The kind of a request and its fields.
#[derive(Default)]
struct Parts<'m> {
    dir: Option<&'m StoreDir>,
    name: Option<&'m str>,
    other: Option<&'m str>,
    first: Option<u64>,
    second: Option<u64>,
    versions: Option<&'m Versions>,
}

/// The kind of the request about a directory; a side that does not know greetings takes a greeting
/// for it.
const CHILD: u8 = 8;
/// The key that distinguishes a greeting from that request.
const GREETING: u64 = 9;

impl Ask {
    fn parts(&self) -> (u8, Parts<'_>) {
        let in_dir = |dir| Parts {
            dir: Some(dir),
            ..Parts::default()
        };
        let named = |dir, name| Parts {
            name: Some(name),
            ..in_dir(dir)
        };
        let number = |first| Parts {
            first: Some(first),
            ..Parts::default()
        };
        match self {
            Ask::Greet(versions) => {
                let mut parts = in_dir(&TOP);
                (parts.first, parts.versions) = (Some(0), Some(versions));
                (CHILD, parts)
            }
            Ask::Holds(dir, name) => (0, named(dir, name)),
            Ask::Open(dir, name) => (1, named(dir, name)),
            Ask::Create(dir, name, direct) => {
                let mut parts = named(dir, name);
                parts.first = Some(u64::from(*direct));
                (2, parts)
            }
            Ask::Rename(dir, name, to) | Ask::RenameNew(dir, name, to) => {
                let mut parts = named(dir, name);
                parts.other = Some(to);
                (3 + u8::from(matches!(self, Ask::RenameNew(..))), parts)
            }
            Ask::Remove(dir, name) => (5, named(dir, name)),
            Ask::List(dir) => (6, in_dir(dir)),
            Ask::SyncNames(dir) => (7, in_dir(dir)),
            Ask::Child(dir, create) => {
                let mut parts = in_dir(dir);
                parts.first = Some(u64::from(*create));
                (CHILD, parts)
            }
            Ask::RemoveChild(dir, name) => (9, named(dir, name)),
            Ask::Facts(dir) => (10, in_dir(dir)),
            Ask::Read(at, len) | Ask::Need(at, len) => {
                let mut parts = number(*at);
                parts.second = Some(*len);
                (11 + u8::from(matches!(self, Ask::Need(..))), parts)
            }
            Ask::Offer(bytes) => (13, number(*bytes)),
            Ask::Allocate(len) => (14, number(*len)),
            Ask::Truncate(len) => (15, number(*len)),
            Ask::Sync => (16, Parts::default()),
            Ask::Length => (17, Parts::default()),
            Ask::Lock => (18, Parts::default()),
            Ask::Close => (19, Parts::default()),
        }
    }

    fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self> {
        let (mut dir, mut name, mut other, mut first, mut second) = (None, None, None, None, None);
        let mut versions = None;
        r.map(|r, key| {
            match (kind, key) {
                (CHILD, GREETING) => versions = Some(read_versions(r)?),
                (0..=10, 1) => dir = Some(read_dir(r)?),
                (0..=5 | 9, 2) => name = Some(read_name(r)?),
                (3 | 4, 3) => other = Some(read_name(r)?),
                (2 | 8, 4) => first = Some(u64::from(flag(r)?)),
                (11..=15, 4) => first = Some(r.u64()?),
                (11 | 12, 5) => second = Some(r.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if let Some(versions) = versions {
            return Ok(Ask::Greet(versions));
        }
        let dir = || r.need(dir, "directory (key 1)");
        let name = || r.need(name, "name (key 2)");
        let other = || r.need(other, "second name (key 3)");
        let first = || r.need(first, "key 4");
        let second = || r.need(second, "key 5");
        Ok(match kind {
            0 => Ask::Holds(dir()?, name()?),
            1 => Ask::Open(dir()?, name()?),
            2 => Ask::Create(dir()?, name()?, first()? == 1),
            3 => Ask::Rename(dir()?, name()?, other()?),
            4 => Ask::RenameNew(dir()?, name()?, other()?),
            5 => Ask::Remove(dir()?, name()?),
            6 => Ask::List(dir()?),
            7 => Ask::SyncNames(dir()?),
            CHILD => Ask::Child(dir()?, first()? == 1),
            9 => Ask::RemoveChild(dir()?, name()?),
            10 => Ask::Facts(dir()?),
            11 => Ask::Read(first()?, second()?),
            12 => Ask::Need(first()?, second()?),
            13 => Ask::Offer(first()?),
            14 => Ask::Allocate(first()?),
            15 => Ask::Truncate(first()?),
            16 => Ask::Sync,
            17 => Ask::Length,
            18 => Ask::Lock,
            _ => Ask::Close,
        })
    }
}

impl StoreMessage {
    /// Kinds in frame headers.
    pub(crate) const KINDS: std::ops::Range<u8> = FIRST_KIND..FIRST_KIND + NAMES.len() as u8;

    /// The name of this kind of message.
    pub(crate) fn name_of(kind: u8) -> Option<&'static str> {
        let index = kind.checked_sub(FIRST_KIND)?;
        NAMES.get(usize::from(index)).copied()
    }

    pub(crate) fn kind(&self) -> u8 {
        FIRST_KIND
            + match self {
                StoreMessage::Ask(ask) => ask.parts().0,
                StoreMessage::Reply(Reply::Told(_) | Reply::Greeted(..)) => 20,
                StoreMessage::Reply(Reply::Names(_)) => 21,
                StoreMessage::Reply(Reply::Failed(..)) => 22,
                StoreMessage::Reply(Reply::Want(_)) => 23,
                StoreMessage::Reply(Reply::Busy) => 24,
            }
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        match self {
            StoreMessage::Ask(ask) => {
                let (_, parts) = ask.parts();
                let texts = [parts.dir.map(|dir| dir.0.as_str()), parts.name, parts.other];
                let numbers = [parts.first, parts.second];
                let pairs = texts.iter().flatten().count() + numbers.iter().flatten().count();
                w.map((pairs + usize::from(parts.versions.is_some())) as u64);
                for (key, text) in (1u8..).zip(texts) {
                    if let Some(text) = text {
                        w.uint(key).text(text);
                    }
                }
                for (key, number) in (4u8..).zip(numbers) {
                    if let Some(number) = number {
                        w.uint(key).uint(number);
                    }
                }
                if let Some(versions) = parts.versions {
                    w.uint(GREETING);
                    write_versions(w, versions);
                }
            }
            StoreMessage::Reply(Reply::Greeted(versions, disk)) => {
                let since = disk.and_then(|disk| disk.since_unix_s);
                w.map(2 + u64::from(disk.is_some()) + u64::from(since.is_some()));
                w.uint(1u8).uints(&[]).uint(2u8);
                write_versions(w, versions);
                if let Some(disk) = disk {
                    w.uint(3u8).uint(disk.identity);
                }
                if let Some(since) = since {
                    w.uint(4u8).uint(since);
                }
            }
            StoreMessage::Reply(Reply::Told(numbers)) => {
                w.map(1).uint(1u8).uints(numbers);
            }
            StoreMessage::Reply(Reply::Names(names)) => {
                w.map(1).uint(1u8).array(names.len());
                for (name, len_bytes, is_dir) in names {
                    w.array(3).text(name);
                    w.uint(*len_bytes).uint(u8::from(*is_dir));
                }
            }
            StoreMessage::Reply(Reply::Failed(error)) => {
                let denied = error.is(Detail::Denied);
                w.map(2 + u64::from(denied));
                w.uint(1u8).uint(error.kind().code() as u64);
                w.uint(2u8).text(cut(error.message(), MAX_TEXT_BYTES));
                if denied {
                    w.uint(3u8).uint(1u8);
                }
            }
            StoreMessage::Reply(Reply::Want(pieces)) => {
                w.map(1).uint(1u8).uint(*pieces);
            }
            StoreMessage::Reply(Reply::Busy) => {
                w.map(0);
            }
        }
    }

    pub(crate) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self> {
        let kind = kind - FIRST_KIND;
        if kind <= 19 {
            return Ask::read(kind, r).map(StoreMessage::Ask);
        }
        let (mut numbers, mut names, mut error, mut text, mut pieces) =
            (None, None, None, None, None);
        let (mut versions, mut identity, mut since_unix_s) = (None, None, None);
        let mut denied = false;
        r.map(|r, key| {
            match (kind, key) {
                (20, 2) => versions = Some(read_versions(r)?),
                (20, 3) => identity = Some(r.u64()?),
                (20, 4) => since_unix_s = Some(r.u64()?),
                (20, 1) => numbers = Some(r.items(MAX_NUMBERS, Reader::u64)?),
                (21, 1) => names = Some(r.items(MAX_CONTAINERS, read_entry)?),
                (22, 1) => error = Some(read_kind(r)?),
                (22, 2) => text = Some(r.text(MAX_TEXT_BYTES)?.to_owned()),
                (22, 3) => denied = r.u64()? == 1,
                (23, 1) => pieces = Some(r.uint()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if let Some(versions) = versions {
            let disk = identity.map(|identity| Disk {
                identity,
                since_unix_s,
            });
            return Ok(StoreMessage::Reply(Reply::Greeted(versions, disk)));
        }
        Ok(StoreMessage::Reply(match kind {
            20 => Reply::Told(r.need(numbers, "numbers (key 1)")?),
            21 => Reply::Names(r.need(names, "names (key 1)")?),
            22 => {
                let kind = r.need(error, "error kind (key 1)")?;
                let error = Error::new(kind, r.need(text, "error text (key 2)")?);
                Reply::Failed(match denied {
                    true => error.with(Detail::Denied),
                    false => error,
                })
            }
            23 => Reply::Want(r.need(pieces, "pieces (key 1)")?),
            _ => Reply::Busy,
        }))
    }
}

fn write_versions(w: &mut Writer, versions: &Versions) {
    w.map(3).uint(1u8).uint(versions.oldest);
    w.uint(2u8).uint(versions.newest);
    w.uint(3u8).text(cut(&versions.release, MAX_RELEASE_BYTES));
}

fn read_versions(r: &mut Reader<'_>) -> Result<Versions> {
    let (mut oldest, mut newest, mut release) = (None, None, None);
    r.map(|r, key| {
        match key {
            1 => oldest = Some(r.uint()?),
            2 => newest = Some(r.uint()?),
            3 => release = Some(r.text(MAX_RELEASE_BYTES)?.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let versions = Versions {
        oldest: r.need(oldest, "oldest version (key 1)")?,
        newest: r.need(newest, "newest version (key 2)")?,
        release: r.need(release, "release (key 3)")?,
    };
    // The text is shown to people.
    let plain = |one: char| one.is_ascii_alphanumeric() || "+-.".contains(one);
    if versions.oldest > versions.newest || !versions.release.chars().all(plain) {
        return Err(r.corrupt(format_args!(
            "{versions:?} is not a valid range of versions"
        )));
    }
    Ok(versions)
}

fn read_dir(r: &mut Reader<'_>) -> Result<StoreDir> {
    let dir = StoreDir(r.text(MAX_DEPTH * (MAX_FILE_NAME_BYTES + 1))?.to_owned());
    if dir.is_plain() {
        return Ok(dir);
    }
    Err(r.corrupt(format_args!("{dir:?} is not a directory below another one")))
}

fn read_name(r: &mut Reader<'_>) -> Result<String> {
    let name = r.text(MAX_FILE_NAME_BYTES)?;
    if is_plain(name) {
        return Ok(name.to_owned());
    }
    Err(r.corrupt(format_args!("{name:?} is not a plain name")))
}

/// Reads an entry of a listing. Its name need not be one of ours, but never leads elsewhere.
fn read_entry(r: &mut Reader<'_>) -> Result<(String, u64, bool)> {
    let items = r.array(MAX_ITEMS)?;
    let Some(more) = items.checked_sub(3) else {
        return Err(r.corrupt(format_args!("expected 3 items or more, found {items}")));
    };
    let known = (read_name(r)?, r.u64()?, flag(r)?);
    r.pass_over(more)?;
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a name is not checked; a caller would reach directories above or beside its own.
    #[test]
    fn no_directory_leads_out_of_what_belongs_to_the_caller() {
        let root = StoreDir::default();
        for wrong in [
            "",
            ".",
            "..",
            "a/b",
            "a/../..",
            "\0",
            "a\n",
            &"x".repeat(256),
        ] {
            assert!(root.child(wrong).is_err(), "{wrong:?}");
            let text = wrong.to_owned();
            let ask = Ask::Open(StoreDir(text.clone()), "file".to_owned());
            // The empty text is the root itself, two names are two directories.
            if !matches!(wrong, "" | "a/b") {
                let message = crate::wire::control::Message::Store(StoreMessage::Ask(ask));
                assert!(
                    crate::wire::control::Message::decode(message.kind(), &message.encode())
                        .is_err()
                );
            }
            let ask = Ask::Open(StoreDir::default(), text);
            let message = crate::wire::control::Message::Store(StoreMessage::Ask(ask));
            assert!(
                crate::wire::control::Message::decode(message.kind(), &message.encode()).is_err()
            );
        }
        let mut dir = root;
        for _ in 0..MAX_DEPTH {
            dir = dir.child("d").unwrap();
        }
        assert!(dir.child("d").is_err());
        assert_eq!(dir.names().count(), MAX_DEPTH);
    }
}
