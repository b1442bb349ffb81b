//! Keeps the calls by which a program wrote files, and reads and writes the file that holds them.
//!
//! ```text
//! orcheck profile 1
//! file NUMBER PATH
//! process NUMBER RANK
//! write MICROSECONDS TOOK PROCESS FILE OFFSET BYTES
//! sync MICROSECONDS TOOK PROCESS FILE
//! resize MICROSECONDS TOOK PROCESS FILE BYTES
//! ```
//!
//! Invariants:
//! 1. At most [`MOST`] calls are kept; the others are counted.
//! 2. A file that is not of this form is refused, with the line.
//!
//! Not here: what the calls amount to (`classes.rs`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

use orcheck_format::{Error, Result, printable};
use orcheck_io::machine::{Effect, Watched, rank_of};
use orcheck_io::user::read_text;

/// Most calls that are kept, of some 50 bytes each.
const MOST: usize = 10_000_000;
/// Most bytes that one call writes, by the kernel's limit.
const LONGEST_BYTES: u64 = 0x7fff_f000;
/// Longest file that is read.
const LIMIT_BYTES: u64 = 1 << 30;
const HEAD: &str = "orcheck profile 1";

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Since the command was started.
    pub at_us: u64,
    pub took_us: u64,
    pub process: u32,
    pub file: u32,
    pub what: Effect,
}

/// The calls of a program, in the order in which they returned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub files: Vec<PathBuf>,
    /// The rank of each process, where it is known.
    pub ranks: Vec<Option<u32>>,
    pub calls: Vec<Call>,
    /// Number of those that were not kept.
    more: u64,
    by_path: BTreeMap<PathBuf, u32>,
    by_number: BTreeMap<u32, u32>,
}

impl Writes {
    /// Keeps a call.
    pub fn note(&mut self, one: &Watched) {
        if self.calls.len() >= MOST {
            self.more += 1;
            return;
        }
        let (files, ranks) = (&mut self.files, &mut self.ranks);
        let file = *(self.by_path.entry(one.path.clone())).or_insert_with(|| {
            files.push(one.path.clone());
            files.len() as u32 - 1
        });
        let process = *(self.by_number.entry(one.process)).or_insert_with(|| {
            ranks.push(rank_of(one.process));
            ranks.len() as u32 - 1
        });
        self.calls.push(Call {
            at_us: one.at.as_micros() as u64,
            took_us: one.took.as_micros() as u64,
            process,
            file,
            what: one.what,
        });
    }

    /// What to say if calls were not kept.
    pub fn left_out(&self) -> Option<String> {
        (self.more > 0).then(|| format!("{} more calls are not in the profile", self.more))
    }

    /// How many processes write at once when this is written again.
    pub fn processes(&self) -> usize {
        self.ranks.len()
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        // Writing to a string cannot fail.
        for (number, path) in self.files.iter().enumerate() {
            let path = printable(path.display().to_string());
            let _ = writeln!(text, "file {number} {path}");
        }
        for (number, rank) in self.ranks.iter().enumerate() {
            let rank = rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            let _ = writeln!(text, "process {number} {rank}");
        }
        for call in &self.calls {
            let Call {
                at_us,
                took_us,
                process,
                file,
                what,
            } = call;
            let common = format_args!("{at_us} {took_us} {process} {file}");
            let _ = match what {
                Effect::Wrote { offset, len_bytes } => {
                    writeln!(text, "write {common} {offset} {len_bytes}")
                }
                Effect::Synced => writeln!(text, "sync {common}"),
                Effect::Resized { len_bytes } => writeln!(text, "resize {common} {len_bytes}"),
            };
        }
        text
    }

    /// Reads a file that [`Self::text`] wrote.
    ///
    /// # Errors
    /// NotFound; Invalid, with the line, for anything else.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path, LIMIT_BYTES)?;
        Self::parse(&text).map_err(|error| error.at(path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        if head != HEAD {
            return Err(Error::invalid(format!(
                "expected '{HEAD}' in the first line, found '{}'",
                head.chars().take(40).collect::<String>().escape_debug()
            ))
            .next("write one with `orcheck profile --out FILE -- COMMAND`"));
        }
        let mut writes = Self::default();
        for (number, line) in (2..).zip(lines) {
            if writes.line(line).is_none() || writes.calls.len() > MOST {
                return Err(Error::invalid(format!(
                    "line {number} is no call: '{}'",
                    line.chars().take(80).collect::<String>().escape_debug()
                )));
            }
        }
        Ok(writes)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next()?;
        match kind {
            "file" => {
                let number = next(&mut words)? as usize;
                let path = line.splitn(3, ' ').nth(2)?;
                self.files.push(PathBuf::from(path));
                return (number + 1 == self.files.len()).then_some(());
            }
            "process" => {
                let number = next(&mut words)? as usize;
                self.ranks.push(words.next()?.parse().ok());
                return (number + 1 == self.ranks.len()).then_some(());
            }
            _ => {}
        }
        let (at_us, took_us) = (next(&mut words)?, next(&mut words)?);
        let process = u32::try_from(next(&mut words)?).ok()?;
        let file = u32::try_from(next(&mut words)?).ok()?;
        let known = (process as usize) < self.ranks.len() && (file as usize) < self.files.len();
        let what = match kind {
            "write" => {
                let (offset, len_bytes) = (next(&mut words)?, next(&mut words)?);
                offset
                    .checked_add(len_bytes)
                    .filter(|_| len_bytes <= LONGEST_BYTES)?;
                Effect::Wrote { offset, len_bytes }
            }
            "sync" => Effect::Synced,
            "resize" => Effect::Resized {
                len_bytes: next(&mut words)?,
            },
            _ => return None,
        };
        self.calls.push(Call {
            at_us,
            took_us,
            process,
            file,
            what,
        });
        (known && words.next().is_none()).then_some(())
    }
}

fn next(words: &mut SplitAsciiWhitespace<'_>) -> Option<u64> {
    words.next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by a panic
mod tests {
    use super::*;
    use std::time::Duration;

    // Breaks if: what is read differs from what was written.
    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let mut writes = Writes::default();
        let wrote = Effect::Wrote {
            offset: 5,
            len_bytes: 7,
        };
        let resized = Effect::Resized { len_bytes: 99 };
        for (at, what) in [wrote, Effect::Synced, resized].into_iter().enumerate() {
            writes.note(&Watched {
                process: u32::MAX - at as u32 / 2,
                at: Duration::from_millis(at as u64),
                took: Duration::from_micros(3),
                path: PathBuf::from("/dir/a file"),
                what,
            });
        }
        let read = Writes::parse(&writes.text()).unwrap();
        assert_eq!((&read.files, &read.calls), (&writes.files, &writes.calls));
        assert_eq!(read.processes(), 2);
    }

    // Breaks if: a damaged file is taken for a profile.
    #[test]
    fn anything_else_is_refused_with_its_line() {
        let good = "orcheck profile 1\nfile 0 a\nprocess 0 -\n";
        Writes::parse(good).unwrap();
        for bad in [
            "write 0 0 0 1 0 1",
            "write 0 0 1 0 0 1",
            "write 0 0 0 0 18446744073709551615 1",
            "write 0 0 0 0 0 2147483647",
            "sync 0 0 0",
            "file 5 b",
            "sync 0 0 0 0 7",
            "other",
            "",
        ] {
            let error = Writes::parse(&format!("{good}{bad}\n")).unwrap_err();
            assert!(error.message().contains("line 4"), "{bad}: {error}");
        }
        assert!(
            Writes::parse("")
                .unwrap_err()
                .message()
                .contains("first line")
        );
    }
}
