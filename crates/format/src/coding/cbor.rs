//! Writes and reads deterministic CBOR: the core deterministic encoding of RFC 8949, section 4.2.1.
//!
//! How: [`Writer`] emits maps with ascending unsigned keys and omits absent options. [`Reader`]
//! checks the head of every item before `minicbor` decodes it.
//!
//! Invariants:
//! 1. Indefinite lengths, longer-than-needed numbers, unordered or repeated keys and trailing bytes
//!    are refused. One value therefore has one encoding, except for keys that this version does not
//!    know.
//! 2. A count or length is compared with the number of bytes left before anything is allocated.
//! 3. Unknown keys are skipped. Their values pass the same checks, at most [`MAX_DEPTH`] levels
//!    deep.
//!
//! Not here: what the keys mean (`manifest`, `record`, `wire`).

use crate::error::{Error, Result};
use crate::ids::{Epoch, JobName, Level, RunId};
use crate::sabotage::{Switch, off};

/// Levels of nesting allowed inside an unknown value: the stack is ours, the bytes are not.
const MAX_DEPTH: u32 = 16;

const UINT: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;

const MAJOR_NAMES: [&str; 8] = [
    "an unsigned number",
    "a negative number",
    "bytes",
    "a text",
    "an array",
    "a map",
    "a tag",
    "a simple value",
];

fn major_name(major: u8) -> &'static str {
    MAJOR_NAMES.get(usize::from(major)).unwrap_or(&"")
}

/// Builds one CBOR item.
pub(crate) struct Writer(minicbor::Encoder<Vec<u8>>);

impl Writer {
    pub(crate) fn new() -> Self {
        Writer(minicbor::Encoder::new(Vec::new()))
    }

    /// A writer that appends to `bytes`.
    pub(crate) fn behind(bytes: Vec<u8>) -> Self {
        Writer(minicbor::Encoder::new(bytes))
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_writer()
    }

    /// The number of bytes so far, with those that it appends to.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.writer().len()
    }

    // Writing to a Vec has the error type Infallible, so there is no error to pass on below.

    pub(crate) fn map(&mut self, pairs: u64) -> &mut Self {
        let _ = self.0.map(pairs);
        self
    }

    pub(crate) fn array(&mut self, len: usize) -> &mut Self {
        let _ = self.0.array(len as u64);
        self
    }

    pub(crate) fn uint(&mut self, value: impl Into<u64>) -> &mut Self {
        let _ = self.0.u64(value.into());
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        let _ = self.0.str(value);
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let _ = self.0.bytes(value);
        self
    }

    pub(crate) fn uints(&mut self, values: &[u64]) -> &mut Self {
        self.array(values.len());
        for value in values {
            self.uint(*value);
        }
        self
    }

    pub(crate) fn texts(&mut self, values: &[String]) -> &mut Self {
        self.array(values.len());
        for value in values {
            self.text(value);
        }
        self
    }

    /// `[counter, run]`
    pub(crate) fn epoch(&mut self, epoch: &Epoch) -> &mut Self {
        self.array(2).uint(epoch.counter).bytes(&epoch.run.0)
    }
}

/// Decodes one CBOR item.
pub(crate) struct Reader<'b> {
    decoder: minicbor::Decoder<'b>,
    /// The record being read, for messages.
    what: &'static str,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(what: &'static str, bytes: &'b [u8]) -> Self {
        Reader {
            decoder: minicbor::Decoder::new(bytes),
            what,
        }
    }

    fn left(&self) -> &'b [u8] {
        self.decoder
            .input()
            .get(self.decoder.position()..)
            .unwrap_or_default()
    }

    /// A Corrupt error that names the record and the current byte.
    pub(crate) fn corrupt(&self, message: impl std::fmt::Display) -> Error {
        Error::corrupt(format!(
            "{}, byte {}: {message}",
            self.what,
            self.decoder.position()
        ))
    }

    /// An Unsupported error that names the record and the current byte.
    pub(crate) fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        Error::unsupported(format!(
            "{}, byte {}: {message}",
            self.what,
            self.decoder.position()
        ))
    }

    /// Major type, argument and length of the next head. Does not advance.
    fn head(&self) -> Result<(u8, u64, usize)> {
        let left = self.left();
        let Some(&first) = left.first() else {
            return Err(self.corrupt("the bytes end too early"));
        };
        let (major, minor) = (first >> 5, first & 31);
        let extra: usize = match minor {
            0..=23 => return Ok((major, u64::from(minor), 1)),
            24..=27 => 1 << (minor - 24),
            31 => return Err(self.corrupt("an indefinite length is not allowed")),
            _ => return Err(self.corrupt(format_args!("0x{first:02x} starts no CBOR item"))),
        };
        let Some(digits) = left.get(1..1 + extra) else {
            return Err(self.corrupt("the bytes end too early"));
        };
        let argument = digits
            .iter()
            .fold(0u64, |sum, digit| sum << 8 | u64::from(*digit));
        let smallest = match extra {
            1 if major == 7 => 32,
            1 => 24,
            2 => 1 << 8,
            4 => 1 << 16,
            _ => 1 << 32,
        };
        // Floats (major 7, more than one byte) have no shorter integer form to prefer.
        if argument < smallest && !(major == 7 && extra > 1) && !off(Switch::OneSpelling) {
            return Err(self.corrupt(format_args!("{argument} is encoded longer than needed")));
        }
        Ok((major, argument, 1 + extra))
    }

    fn expect(&self, wanted: u8) -> Result<u64> {
        let (major, argument, head_bytes) = self.head()?;
        if major != wanted {
            return Err(self.corrupt(format_args!(
                "expected {}, found {}",
                major_name(wanted),
                major_name(major)
            )));
        }
        let room = (self.left().len() - head_bytes) as u64;
        let needs = match wanted {
            BYTES | TEXT | ARRAY => argument,
            MAP => argument.saturating_mul(2),
            _ => 0,
        };
        if needs > room && !off(Switch::CountBound) {
            return Err(self.corrupt(format_args!(
                "expected at least {needs} more bytes, found {room}"
            )));
        }
        Ok(argument)
    }

    fn decoded<T>(&self, result: std::result::Result<T, minicbor::decode::Error>) -> Result<T> {
        result.map_err(|error| self.corrupt(error))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.expect(UINT)?;
        let value = self.decoder.u64();
        self.decoded(value)
    }

    /// A number that must fit a smaller type.
    pub(crate) fn uint<T: TryFrom<u64>>(&mut self) -> Result<T> {
        let value = self.u64()?;
        T::try_from(value).map_err(|_| {
            self.corrupt(format_args!(
                "{value} does not fit {}",
                std::any::type_name::<T>()
            ))
        })
    }

    pub(crate) fn text(&mut self, max_bytes: usize) -> Result<&'b str> {
        let len = self.expect(TEXT)?;
        if len > max_bytes as u64 && !off(Switch::TextBound) {
            return Err(self.corrupt(format_args!(
                "expected a text of at most {max_bytes} bytes, found {len}"
            )));
        }
        let value = self.decoder.str();
        self.decoded(value)
    }

    /// A name that a person may see: 1 to `max_bytes` bytes, no control characters.
    pub(crate) fn name(&mut self, max_bytes: usize) -> Result<String> {
        let text = self.text(max_bytes)?;
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(self.corrupt(format_args!(
                "{text:?} is not a valid name: expected 1 to {max_bytes} bytes without control \
                 characters"
            )));
        }
        Ok(text.to_owned())
    }

    pub(crate) fn bytes(&mut self, max_bytes: usize) -> Result<&'b [u8]> {
        let len = self.expect(BYTES)?;
        if len > max_bytes as u64 {
            return Err(self.corrupt(format_args!(
                "expected at most {max_bytes} bytes, found {len}"
            )));
        }
        let value = self.decoder.bytes();
        self.decoded(value)
    }

    pub(crate) fn exact<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.bytes(N)?;
        bytes
            .try_into()
            .map_err(|_| self.corrupt(format_args!("expected {N} bytes, found {}", bytes.len())))
    }

    /// The length of an array, checked against `max` and against the bytes that are left.
    pub(crate) fn array(&mut self, max: usize) -> Result<usize> {
        let len = self.expect(ARRAY)?;
        if len > max as u64 && !off(Switch::ItemsBound) {
            return Err(self.corrupt(format_args!("expected at most {max} items, found {len}")));
        }
        let value = self.decoder.array();
        self.decoded(value)?;
        Ok(len as usize)
    }

    /// An array of exactly `len` items.
    pub(crate) fn tuple(&mut self, len: usize) -> Result<()> {
        let found = self.array(len)?;
        if found != len {
            return Err(self.corrupt(format_args!("expected {len} items, found {found}")));
        }
        Ok(())
    }

    /// Skips items that this version does not know.
    pub(crate) fn pass_over(&mut self, items: usize) -> Result<()> {
        (0..items).try_for_each(|_| self.skip(0))
    }

    /// Every item of an array of at most `max` items. The vector grows as items are read, so a
    /// count alone allocates nothing.
    pub(crate) fn items<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let len = self.array(max)?;
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Calls `field` with every key of a map; keys ascend. `field` reads the value of a key that it
    /// knows and returns true. For an unknown key it reads nothing and returns false; the value is
    /// then skipped.
    pub(crate) fn map(
        &mut self,
        mut field: impl FnMut(&mut Self, u64) -> Result<bool>,
    ) -> Result<()> {
        let pairs = self.expect(MAP)?;
        let value = self.decoder.map();
        self.decoded(value)?;
        let mut last = None;
        for _ in 0..pairs {
            let key = self.u64()?;
            if last.is_some_and(|last| key <= last) && !off(Switch::FieldOnce) {
                return Err(self.corrupt(format_args!("key {key} is repeated or out of order")));
            }
            last = Some(key);
            if !field(self, key)? {
                self.skip(0)?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH && !off(Switch::CborDepth) {
            return Err(self.corrupt(format_args!("nested deeper than {MAX_DEPTH}")));
        }
        let (major, argument, head_bytes) = self.head()?;
        match major {
            BYTES => self.bytes(usize::MAX).map(drop),
            TEXT => self.text(usize::MAX).map(drop),
            ARRAY | MAP => {
                let pairs = self.expect(major)?;
                let items = if major == MAP { pairs * 2 } else { pairs };
                self.decoder
                    .set_position(self.decoder.position() + head_bytes);
                for _ in 0..items {
                    self.skip(depth + 1)?;
                }
                Ok(())
            }
            6 => {
                self.decoder
                    .set_position(self.decoder.position() + head_bytes);
                self.skip(depth + 1)
            }
            7 if head_bytes == 1 && argument > 23 => Err(self.corrupt("no such simple value")),
            _ => {
                self.decoder
                    .set_position(self.decoder.position() + head_bytes);
                Ok(())
            }
        }
    }

    /// Fails unless everything was read.
    pub(crate) fn end(&self) -> Result<()> {
        match self.left().len() {
            0 => Ok(()),
            _ if off(Switch::NothingFollows) => Ok(()),
            left => Err(self.corrupt(format_args!("{left} bytes follow the end"))),
        }
    }

    /// The value of a required key, or Corrupt naming it.
    pub(crate) fn need<T>(&self, value: Option<T>, field: &str) -> Result<T> {
        value.ok_or_else(|| self.corrupt(format_args!("{field} is missing")))
    }

    pub(crate) fn job(&mut self) -> Result<JobName> {
        let text = self.text(crate::ids::MAX_JOB_NAME_BYTES)?;
        JobName::new(text).map_err(|error| self.corrupt(error))
    }

    pub(crate) fn epoch(&mut self) -> Result<Epoch> {
        self.tuple(2)?;
        Ok(Epoch {
            counter: self.u64()?,
            run: RunId(self.exact()?),
        })
    }

    pub(crate) fn level(&mut self) -> Result<Level> {
        let code = self.uint::<u16>()?;
        Level::from_code(code)
            .ok_or_else(|| self.unsupported(format_args!("level 0x{code:04x} is unknown")))
    }
}

/// 0 or 1.
pub(crate) fn flag(r: &mut Reader<'_>) -> Result<bool> {
    match r.uint::<u8>()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(r.corrupt(format_args!("expected 0 or 1, found {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skip_all(bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new("test", bytes);
        reader.skip(0)?;
        reader.end()
    }

    // Breaks if: any check of `Reader::head`, `Reader::expect` or `Reader::skip` is dropped.
    #[test]
    fn loose_encodings_are_refused() {
        for (bytes, why) in [
            (&[0x18u8, 23][..], "longer than needed"),
            (&[0x19, 0, 255], "longer than needed"),
            (
                &[0x1b, 0, 0, 0, 0, 255, 255, 255, 255],
                "longer than needed",
            ),
            (&[0x9f, 0xff], "indefinite"),
            (&[0x5f, 0xff], "indefinite"),
            (&[0x1c], "starts no CBOR item"),
            (&[0x62, b'a'], "expected at least 2 more bytes, found 1"),
            (
                &[0x9b, 255, 255, 255, 255, 255, 255, 255, 255],
                "more bytes, found 0",
            ),
            (
                &[0xbb, 255, 255, 255, 255, 255, 255, 255, 255],
                "more bytes, found 0",
            ),
            (&[0x00, 0x00], "1 bytes follow the end"),
            (&[], "end too early"),
            (&[0x62, 0xff, 0xff], "utf-8"),
            (&[0x81; 64], "nested deeper"),
        ] {
            let error = skip_all(bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{bytes:x?}: {error}");
        }
        for good in [
            &[0xf4u8][..],
            &[0xfb, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xc1, 0x81, 0xf6],
            &[0xa1, 1, 2],
        ] {
            assert_eq!(skip_all(good), Ok(()));
        }
    }

    // Breaks if: `key <= last` becomes `key < last`.
    #[test]
    fn keys_must_ascend_and_unknown_ones_are_skipped() {
        let read = |bytes: &[u8]| {
            let mut sum = 0;
            let mut reader = Reader::new("test", bytes);
            reader.map(|reader, key| match key {
                1 | 3 => {
                    sum += reader.u64()?;
                    Ok(true)
                }
                _ => Ok(false),
            })?;
            reader.end()?;
            Ok::<u64, Error>(sum)
        };
        assert_eq!(read(&[0xa3, 1, 10, 2, 0x81, 0xf6, 3, 5]), Ok(15));
        assert!(read(&[0xa2, 1, 1, 1, 2]).is_err());
        assert!(read(&[0xa2, 3, 1, 1, 2]).is_err());
        assert!(read(&[0xa2, 1, 1, 0x61, b'k', 2]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = skip_all(&bytes);
        }
    }
}
