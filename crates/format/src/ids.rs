//! Defines names and numbers that identify things: jobs, runs, epochs, levels, element types.
//!
//! Invariants:
//! 1. A [`JobName`] is safe as a directory name on every file system.
//! 2. Codes of [`Level`] and [`Dtype`] are stable: they are stored.
//! 3. Epochs are ordered by their counter first; the run id only distinguishes two runs.
//!
//! Not here: how a run id is drawn (`orcheck-io` owns randomness).

use crate::error::{Error, Result};
use data_encoding::HEXLOWER;
use std::fmt;
use std::str::FromStr;

/// Longest job name, in bytes: leaves room for a path prefix in 255-byte file names.
pub const MAX_JOB_NAME_BYTES: usize = 64;

/// The name of a job: 1 to 64 of `A-Z a-z 0-9 . _ -`, the first a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName(String);

impl JobName {
    /// Checks and wraps a name. Fails with Invalid.
    pub fn new(name: &str) -> Result<Self> {
        let first_ok = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric());
        let all_ok = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if first_ok && all_ok && name.len() <= MAX_JOB_NAME_BYTES {
            Ok(JobName(name.to_owned()))
        } else {
            let shown: String = name.chars().take(80).collect();
            Err(Error::invalid(format!(
                "job name {shown:?} is not valid: expected 1 to {MAX_JOB_NAME_BYTES} of A-Z a-z \
                 0-9 . _ -, the first a letter or a digit"
            )))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobName({})", self.0)
    }
}

impl FromStr for JobName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        JobName::new(text)
    }
}

/// Sixteen random bytes that distinguish two incarnations with the same epoch counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub [u8; 16]);

impl RunId {
    /// The first eight hexadecimal digits, as used in file names and messages.
    pub fn short(&self) -> String {
        hex(&self.0[..4])
    }

    /// The bytes behind [`RunId::short`].
    pub fn short_bytes(&self) -> [u8; 4] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    /// Reads exactly 32 lower-case hexadecimal digits. Fails with Invalid.
    pub fn parse(text: &str) -> Result<Self> {
        parse_hex::<16>(text).map(RunId).ok_or_else(|| {
            Error::invalid(format!(
                "run id {:?} is not 32 lower-case hexadecimal digits",
                text.chars().take(40).collect::<String>()
            ))
        })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl FromStr for RunId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        RunId::parse(text)
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Exactly `N` bytes from 2N lower-case hexadecimal digits.
#[must_use]
pub fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// One incarnation of a job; a newer epoch fences off the writers of older ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Grows by at least one with every start of the job; the first is 1.
    pub counter: u64,
    /// Distinguishes two starts that took the same counter.
    pub run: RunId,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.counter, self.run.short())
    }
}

/// What a commit survives, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The crash of a rank.
    Process,
    /// The crash of the agent or a reboot of the node.
    Node,
    /// The loss of any f nodes; f is at least 1.
    Peers(u8),
    /// The loss of the whole allocation.
    Global,
}

impl Level {
    /// The stored number: 0x0100, 0x0200, 0x0300 + f, 0x0400.
    pub fn code(self) -> u16 {
        match self {
            Level::Process => 0x0100,
            Level::Node => 0x0200,
            Level::Peers(losses) => 0x0300 | u16::from(losses),
            Level::Global => 0x0400,
        }
    }

    /// The level with this number.
    pub fn from_code(code: u16) -> Option<Self> {
        match (code >> 8, (code & 0xff) as u8) {
            (1, 0) => Some(Level::Process),
            (2, 0) => Some(Level::Node),
            (3, losses @ 1..) => Some(Level::Peers(losses)),
            (4, 0) => Some(Level::Global),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Process => f.write_str("process"),
            Level::Node => f.write_str("node"),
            Level::Peers(losses) => write!(f, "peers({losses})"),
            Level::Global => f.write_str("global"),
        }
    }
}

impl FromStr for Level {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let peers = || {
            let losses: u8 = text
                .strip_prefix("peers(")?
                .strip_suffix(')')?
                .parse()
                .ok()?;
            (losses > 0).then_some(Level::Peers(losses))
        };
        match text {
            "process" => Ok(Level::Process),
            "node" => Ok(Level::Node),
            "global" => Ok(Level::Global),
            _ => peers().filter(|level| level.to_string() == text).ok_or_else(|| {
                Error::invalid(format!(
                    "level {:?} is unknown: expected process, node, peers(1) to peers(255) or global",
                    text.chars().take(40).collect::<String>()
                ))
            }),
        }
    }
}

/// The type of one element of a region.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// Untyped bytes.
    Bytes = 0,
    /// Signed, 1 byte.
    I8 = 1,
    /// Signed, 2 bytes.
    I16,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Unsigned, 1 byte.
    U8 = 5,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// IEEE 754 half precision.
    F16 = 9,
    /// IEEE 754 single precision.
    F32 = 10,
    /// IEEE 754 double precision.
    F64 = 11,
    /// The upper half of an IEEE 754 single.
    BF16 = 12,
    /// Two singles: real, imaginary.
    C64 = 13,
    /// Two doubles: real, imaginary.
    C128 = 14,
}

impl Dtype {
    /// Every element type, in the order of the codes.
    pub const ALL: [Dtype; 15] = [
        Dtype::Bytes,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::BF16,
        Dtype::C64,
        Dtype::C128,
    ];

    /// The size of one element, in bytes.
    pub fn size_bytes(self) -> u64 {
        match self {
            Dtype::Bytes | Dtype::I8 | Dtype::U8 => 1,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::BF16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 | Dtype::C64 => 8,
            Dtype::C128 => 16,
        }
    }

    /// The stored number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The element type with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name, as printed and as accepted by [`FromStr`].
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bytes => "bytes",
            Dtype::I8 => "i8",
            Dtype::I16 => "i16",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::U8 => "u8",
            Dtype::U16 => "u16",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::BF16 => "bf16",
            Dtype::C64 => "c64",
            Dtype::C128 => "c128",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "element type {:?} is unknown",
                    text.chars().take(40).collect::<String>()
                ))
            })
    }
}

/// A decision about a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// The program found the checkpoint wrong: it is never offered again and does not count for
    /// `keep`.
    Rejected,
    /// A user wants it to stay: it is never pruned.
    Kept,
}

impl Decision {
    /// Every decision.
    pub const ALL: [Decision; 2] = [Decision::Rejected, Decision::Kept];

    /// The extension of the file's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Decision::Rejected => "rejected",
            Decision::Kept => "kept",
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Decision::Rejected => 1,
            Decision::Kept => 2,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_are_checked() {
        for good in ["a", "0", "lbm-3.2_x", &"x".repeat(64)] {
            assert_eq!(JobName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "-a",
            "_a",
            "a/b",
            "a b",
            "ä",
            "a\0",
            &"x".repeat(65),
        ] {
            assert!(JobName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn codes_come_back() {
        for code in 0..=u8::MAX {
            if let Some(dtype) = Dtype::from_code(code) {
                assert_eq!(dtype.code(), code);
                assert_eq!(dtype.name().parse(), Ok(dtype));
            }
        }
        let mut last = None;
        for code in 0..=u16::MAX {
            if let Some(level) = Level::from_code(code) {
                assert_eq!(level.code(), code);
                assert_eq!(level.to_string().parse(), Ok(level));
                assert!(last < Some(level));
                last = Some(level);
            }
        }
        for bad in [
            "peers(0)",
            "peers(01)",
            "peers(+1)",
            "peers(256)",
            "Global",
            "",
        ] {
            assert!(bad.parse::<Level>().is_err(), "{bad}");
        }
    }

    #[test]
    fn epochs_order_by_counter_first() {
        let run = |byte| RunId([byte; 16]);
        let older = Epoch {
            counter: 2,
            run: run(9),
        };
        let newer = Epoch {
            counter: 3,
            run: run(1),
        };
        assert!(older < newer);
        assert_eq!(newer.to_string(), "3-01010101");
        assert_eq!(RunId::parse(&run(0xab).to_string()), Ok(run(0xab)));
        assert!(RunId::parse(&"AB".repeat(16)).is_err());
    }
}
