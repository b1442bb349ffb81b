//! Defines the one error type: eight kinds and a message that a user can act on.
//!
//! How: a layer that knows more prepends the place with [`Error::at`] and appends the next step
//! with [`Error::next`]; the kind never changes on the way up.
//!
//! Invariants:
//! 1. Codes are stable: they cross the C boundary and the wire.
//! 2. [`std::fmt::Display`] prints the message alone; the kind is for programs.
//! 3. A message is for people. Callers decide by the kind and the [`Detail`], never by the text.
//! 4. A message is one line (except [`Error::of_lines`]) and has no character that controls a
//!    terminal ([`printable`]).
//!
//! Not here: the mapping from an operating system's errno to a kind (`orcheck-io`).

use crate::sabotage::{Switch, off};
use std::fmt;

/// What went wrong, as far as a program can react to it.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The caller's request cannot be carried out: a bad name, a wrong order, a bad option.
    Invalid = 1,
    /// The requested object does not exist.
    NotFound,
    /// A device, directory, node or peer does not answer or refuses; it may come back.
    Unavailable,
    /// A disk, quota or budget is exhausted.
    NoSpace,
    /// Stored or received bytes are not what was written.
    Corrupt,
    /// A newer epoch of the job exists; this writer must stop.
    Fenced,
    /// The bytes or the request need a feature that this version or machine lacks.
    Unsupported,
    /// A defect of Orcheck itself.
    Internal = 8,
}

impl ErrorKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Unavailable,
        ErrorKind::NoSpace,
        ErrorKind::Corrupt,
        ErrorKind::Fenced,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ];

    /// The stable number of this kind, 1 to 8.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// The kind with this number.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The closest Linux errno, for callers that use errno.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::Invalid => 22,     // EINVAL
            ErrorKind::NotFound => 2,     // ENOENT
            ErrorKind::Unavailable => 5,  // EIO
            ErrorKind::NoSpace => 28,     // ENOSPC
            ErrorKind::Corrupt => 74,     // EBADMSG
            ErrorKind::Fenced => 116,     // ESTALE
            ErrorKind::Unsupported => 95, // EOPNOTSUPP
            ErrorKind::Internal => 131,   // ENOTRECOVERABLE
        }
    }

    /// The kind as a lower-case word with underscores, as printed in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::NoSpace => "no_space",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What Orcheck's own code decides by where the kind is too coarse. It does not cross the C
/// boundary.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The kernel denies access to this user.
    Denied = 1,
    /// It was sealed or encrypted with a key that was not given.
    OtherKey,
    /// Nothing proves who wrote it, although encryption is configured.
    Unauthenticated,
    /// Another run holds the job.
    Held,
    /// The step was lost, but a commit record may have been written already.
    Undecided,
    /// The server does not know the caller's key.
    UnknownKey,
    /// A symbolic link where links are not followed.
    Link,
    /// What is missing was written to a directory that is not among the given ones.
    NotGiven,
    /// A limit of the process is reached: whoever asked for something can only raise it.
    Limit,
}

impl Detail {
    const ALL: [Detail; 9] = [
        Detail::Denied,
        Detail::OtherKey,
        Detail::Unauthenticated,
        Detail::Held,
        Detail::Undecided,
        Detail::UnknownKey,
        Detail::Link,
        Detail::NotGiven,
        Detail::Limit,
    ];
}

/// An [`ErrorKind`] with a message: what, where, expected, found, next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    detail: Option<Detail>,
    message: String,
}

/// The result of everything in Orcheck that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            detail: None,
            message: printable(message.into()),
        }
    }

    /// An error with several messages, one per line, as [`joined`] makes them.
    pub fn of_lines(kind: ErrorKind, lines: &[String]) -> Self {
        let lines: Vec<String> = lines.iter().cloned().map(printable).collect();
        Error {
            kind,
            detail: None,
            message: joined(&lines),
        }
    }

    /// An error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error of kind [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// An error of kind [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// An error of kind [`ErrorKind::NoSpace`].
    pub fn no_space(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NoSpace, message)
    }

    /// An error of kind [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// An error of kind [`ErrorKind::Fenced`].
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Fenced, message)
    }

    /// An error of kind [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// An error of kind [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the error has this detail.
    #[must_use]
    pub fn is(&self, detail: Detail) -> bool {
        self.detail == Some(detail)
    }

    /// The same error with this detail.
    #[must_use]
    pub fn with(self, detail: Detail) -> Self {
        let detail = Some(detail);
        Error { detail, ..self }
    }

    /// Kind and detail as one number, for processes of the same version; see [`Self::from_code`].
    #[must_use]
    pub fn code(&self) -> u32 {
        self.code_as(self.kind)
    }

    /// The same number with another kind.
    #[must_use]
    pub fn code_as(&self, kind: ErrorKind) -> u32 {
        kind.code() as u32 | self.detail.map_or(0, |detail| (detail as u32) << 8)
    }

    /// The error with this number and message; Internal for an unknown number.
    #[must_use]
    pub fn from_code(code: u32, message: impl Into<String>) -> Self {
        let kind = ErrorKind::from_code((code & 0xff) as i32);
        let detail = Detail::ALL.into_iter().find(|&one| one as u32 == code >> 8);
        Error {
            detail,
            ..Self::new(kind.unwrap_or(ErrorKind::Internal), message)
        }
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with the place prepended: "place: message". A message that begins with the
    /// end of the place does not say it twice.
    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        let place = printable(place.to_string());
        let rest = match self.message.split_once(": ") {
            Some((head, rest)) if says_at_its_end(&place, head) => rest,
            _ => &self.message,
        };
        Error {
            kind: self.kind,
            detail: self.detail,
            message: format!("{place}: {rest}"),
        }
    }

    /// The same error with this next step: "message. Next: what". It replaces a next step that the
    /// message already has: the last caller to add one knows the request. The step of
    /// [`Detail::Limit`] stays, because no other one helps.
    #[must_use]
    pub fn next(self, what: impl fmt::Display) -> Self {
        if self.is(Detail::Limit) && self.next_step().is_some() {
            return self;
        }
        Error {
            kind: self.kind,
            detail: self.detail,
            message: format!(
                "{}{NEXT}{}",
                without_next(&self.message),
                printable(what.to_string())
            ),
        }
    }

    /// The next step that the message ends with.
    #[must_use]
    pub fn next_step(&self) -> Option<&str> {
        self.message.rsplit_once(NEXT).map(|(_, next)| next)
    }

    /// The message without the next step, for a message that names several errors.
    #[must_use]
    pub fn what(&self) -> String {
        without_next(&self.message)
    }
}

/// Replaces control characters, and characters that change the writing direction, by escapes. File
/// names may hold any: on a terminal they would colour, erase or forge the output.
#[must_use]
pub fn printable(text: String) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    // Breaks if: they are printed; a file name could print a line of its own after the message.
    if !text.contains(acts) || off(Switch::Printable) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match acts(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The separator before a next step.
const NEXT: &str = ". Next: ";

/// Removes the next steps of quoted errors from a text: each ends where the text or the surrounding
/// bracket ends.
#[must_use]
pub fn without_next(text: &str) -> String {
    let mut text = text.to_owned();
    // Breaks if: it stays; the message would give two instructions, the first of them out of place.
    while let Some((before, next)) = text.split_once(NEXT) {
        let mut depth = 0_usize;
        let end = next.find(|c| {
            match c {
                '(' => depth += 1,
                ')' if depth == 0 => return true,
                ')' => depth -= 1,
                _ => {}
            }
            false
        });
        let behind = end.and_then(|end| next.get(end..)).unwrap_or_default();
        text = [before, behind].concat();
    }
    text
}

/// Joins several messages into one text, one per line. The text has at most one next step, at its
/// end. The last message that has a next step supplies it and is moved to the end.
#[must_use]
pub fn joined(messages: &[String]) -> String {
    let last = messages.iter().rposition(|message| message.contains(NEXT));
    // Breaks if: each keeps its own; the text would give several instructions at once.
    let others = messages
        .iter()
        .enumerate()
        .filter(|(at, _)| Some(*at) != last);
    let mut lines: Vec<String> = others.map(|(_, message)| without_next(message)).collect();
    lines.extend(last.and_then(|last| messages.get(last)).cloned());
    lines.join("\n")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A number and the noun that it counts, for messages: `1 rank`, `2 ranks`.
#[must_use]
pub fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        more => format!("{more} {one}s"),
    }
}

/// Whether a place ends with this one, which is a whole word or address of it, whatever the scheme.
fn says_at_its_end(place: &str, head: &str) -> bool {
    let head = head.strip_prefix("tcp:").unwrap_or(head);
    let before = place.strip_suffix(head);
    before.is_some_and(|before| before.is_empty() || before.ends_with([' ', '/']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_one_to_eight_and_come_back() {
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.code(), at as i32 + 1);
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(9), None);
    }

    #[test]
    fn place_next_step_and_number_keep_what_happened() {
        for detail in Detail::ALL {
            let error = Error::unavailable("refused").with(detail);
            let error = error.at("step 4").next("wait");
            let again = Error::from_code(error.code(), error.message());
            assert!(again.is(detail), "{detail:?}");
            assert_eq!(again, error);
        }
        for (code, kind) in [
            (1, ErrorKind::Invalid),
            (0, ErrorKind::Internal),
            (u32::MAX, ErrorKind::Internal),
            (0xff03, ErrorKind::Unavailable),
        ] {
            assert_eq!(Error::from_code(code, "text"), Error::new(kind, "text"));
        }
    }

    #[test]
    fn place_and_next_step_keep_the_kind() {
        let error = Error::no_space("disk full").at("step 4").next("free 3 MiB");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.to_string(), "step 4: disk full. Next: free 3 MiB");
    }

    #[test]
    fn messages_in_one_text_have_one_next_step_at_its_end() {
        let said = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            joined(&texts)
        };
        assert_eq!(said(&[]), "");
        assert_eq!(said(&["a", "b"]), "a\nb");
        let text = said(&["a. Next: do a", "b. Next: do b", "c"]);
        assert_eq!(text, "a\nc\nb. Next: do b");
    }

    #[test]
    fn a_message_has_one_next_step_the_last_that_was_given() {
        let inner =
            Error::corrupt("block 3 is damaged").next("use an older step (one that is good)");
        let again = inner.clone().at("step 4").next("start from nothing");
        assert_eq!(
            again.message(),
            "step 4: block 3 is damaged. Next: start from nothing"
        );
        let quoted = Error::not_found(format!("nothing here ({inner}), and 2 more"));
        assert_eq!(
            quoted.next("give all directories").message(),
            "nothing here (block 3 is damaged), and 2 more. Next: give all directories"
        );
        assert_eq!(inner.what(), "block 3 is damaged");
    }

    #[test]
    fn a_place_is_said_once() {
        let error = Error::unavailable("tcp:127.0.0.1:79: the server does not know this key");
        let error = error.at("orcheck://127.0.0.1:79");
        let error = error.at("level global, directory orcheck://127.0.0.1:79");
        assert_eq!(
            error.message(),
            "level global, directory orcheck://127.0.0.1:79: the server does not know this key"
        );
        let other = Error::corrupt("node1: damaged").at("anode1");
        assert_eq!(other.message(), "anode1: node1: damaged");
    }
}
