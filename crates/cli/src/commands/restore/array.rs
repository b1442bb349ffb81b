//! Writes a global array to one file in NumPy's format, put together from the parts of all ranks.
//!
//! Invariants:
//! 1. Those of `restore.rs`.
//! 2. Memory stays below a few windows of [`WINDOW_BYTES`], whatever the size of the array.
//! 3. An element that no rank stored is an error; it is never filled in.
//!
//! Source of the format: NumPy Enhancement Proposal 1, version 1.0 of the file.
//! Not here: which elements are where (`engine::restart`).

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::{Reader, beside_a_good_copy};
use orcheck_engine::restart::{AllRanks, Destination, GlobalArray, Unread};
use orcheck_format::{Crc64, Dtype, Error, ErrorKind, Result, Step, count};
use orcheck_io::memory::Span;
use serde_json::json;

use super::slice::Slice;
use super::{check_stop, write_file};
use crate::args::RestoreArgs;
use crate::exit;
use crate::job::{Job, parent_and_name};
use crate::output::{Failure, Outcome, progress_bar, shape, size};

/// Maximum number of bytes of the array in memory.
const WINDOW_BYTES: u64 = 32 << 20;

/// Restores the array `name`.
pub fn restore(
    args: &RestoreArgs,
    job: &Job,
    name: &str,
    trust: &Arc<Trust>,
    json_wanted: bool,
) -> std::result::Result<Outcome, Failure> {
    let to_stdout = args.out.as_os_str() == "-";
    if to_stdout && json_wanted {
        return Err(
            Error::invalid("standard output cannot hold both the array and JSON")
                .next("give --out FILE")
                .into(),
        );
    }
    let commit = job.pick(&args.which)?;
    let record = &commit.record;
    let places = job.places_to_read(commit);
    let unread = |unread: Unread| match &unread.file {
        Some(file) => job.unread(commit, file, unread.error),
        None => unread.error.into(),
    };
    let open =
        |container: &_| Reader::open_trusting(&places, record, container, (trust, commit.proof));
    let all = AllRanks::find(record, Arc::new(open)).map_err(unread)?;
    let array = all.array(name)?;
    let slice = Slice::of(args.slice.as_deref(), array.shape())?;
    let len_bytes = (slice
        .elements
        .elements()
        .checked_mul(array.dtype().size_bytes()))
    .ok_or_else(|| Error::invalid("the array is larger than 2^64 bytes"))?;
    let mut assembly = Assembly {
        header: npy_header(array.dtype(), &slice.shape),
        slice: &slice,
        array: &array,
        all,
        warnings: job.notes(),
        crc: Crc64::new(),
        failed: None,
    };
    if array.dtype() == Dtype::BF16 {
        assembly.warnings.push(
            "NumPy has no bfloat16: the 16 bits of each element are written as uint16".to_owned(),
        );
    }
    let written = match to_stdout {
        true => assembly.fill_stdout(),
        false => assembly.fill_file(args, len_bytes, json_wanted),
    };
    match (written, assembly.failed.take()) {
        (_, Some(failed)) => return Err(unread(failed)),
        (Err(error), None) => return Err(error.into()),
        (Ok(()), None) => {}
    }
    let of = (record.job.as_str(), record.step);
    Ok(assembly.outcome(args, of))
}

/// A file that is being put together.
struct Assembly<'s> {
    header: Vec<u8>,
    slice: &'s Slice,
    array: &'s GlobalArray,
    all: AllRanks<'s>,
    warnings: Vec<String>,
    /// Of the elements, without the header.
    crc: Crc64,
    /// Why the array could not be read, if that is why the file is not there.
    failed: Option<Unread>,
}

impl Assembly<'_> {
    fn fill_stdout(&mut self) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        let failed =
            |error| Error::unavailable(format!("standard output cannot be written: {error}"));
        self.fill(&mut |_, bytes| {
            check_stop()?;
            stdout.write_all(bytes).map_err(failed)
        })?;
        stdout.flush().map_err(failed)
    }

    fn fill_file(&mut self, args: &RestoreArgs, len_bytes: u64, json_wanted: bool) -> Result<()> {
        let (dir, file) = parent_and_name(&args.out)?;
        let bar = progress_bar(!json_wanted);
        bar.set_length(len_bytes);
        let written = write_file(dir.as_ref(), &file, args.force, &mut |sink| {
            self.fill(&mut |at, bytes| {
                bar.inc(bytes.len() as u64);
                sink(at, bytes)
            })
        });
        bar.finish_and_clear();
        written
    }

    fn outcome(self, args: &RestoreArgs, (job, step): (&str, Step)) -> Outcome {
        let (array, name) = (self.array, self.array.name());
        let parts = array.parts().len() as u64;
        let len_bytes = self.slice.elements.elements() * array.dtype().size_bytes();
        let text = format!(
            "restored array {name:?}, step {step}: {} of {}, {} from {}, to {}\n",
            shape(&self.slice.shape),
            array.dtype().name(),
            size(len_bytes),
            count(parts, "part"),
            args.out.display()
        );
        Outcome {
            code: exit::OK,
            text: if args.out.as_os_str() == "-" {
                String::new()
            } else {
                text
            },
            document: json!({
                "job": job,
                "step": step.0,
                "name": name,
                "dtype": array.dtype().name(),
                "global": array.shape(),
                "offset": self.slice.elements.offset(),
                "local": self.slice.elements.shape(),
                "shape": self.slice.shape,
                "parts": parts,
                "len_bytes": len_bytes,
                "file": args.out.display().to_string(),
                "crc64_nvme": format!("{:016x}", self.crc.value()),
                "notes": self.warnings,
            }),
            warnings: self.warnings,
        }
    }

    fn fill(&mut self, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        sink(0, &self.header)?;
        let mut at = self.header.len() as u64;
        let mut overlap = None;
        let array = self.array;
        let size_bytes = array.dtype().size_bytes();
        let mut window = Window(Vec::new());
        for elements in self.slice.elements.windows(WINDOW_BYTES / size_bytes) {
            let plan = array
                .plan(std::slice::from_ref(&elements))
                .map_err(|error| {
                    self.refuse(match error.kind() {
                        ErrorKind::NotFound => error.next(
                            "choose what was stored with --slice; `orcheck show` lists the parts",
                        ),
                        _ => error,
                    })
                })?;
            overlap = overlap.or(plan.overlap);
            window
                .0
                .resize((elements.elements() * size_bytes) as usize, 0);
            let warnings = &mut self.warnings;
            let mut damaged = |damage: &Error| warnings.push(beside_a_good_copy(damage.message()));
            let read = self.all.read(array, &plan, &mut window, &mut damaged);
            read.map_err(|unread| self.refuse(unread))?;
            self.crc.update(&window.0);
            sink(at, &window.0)?;
            at += window.0.len() as u64;
        }
        if let Some((lower, higher)) = overlap {
            self.warnings.push(format!(
                "parts overlap, such as those of ranks {lower} and {higher}: the copy of the lowest rank was taken"
            ));
        }
        Ok(())
    }

    /// Keeps which file it is about.
    fn refuse(&mut self, unread: impl Into<Unread>) -> Error {
        let unread = unread.into();
        let error = unread.error.clone();
        self.failed = Some(unread);
        error
    }
}

/// A window of the array, in C order.
struct Window(Vec<u8>);

impl Destination for Window {
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span> {
        let memory = self.0.get_mut(bytes.start as usize..bytes.end as usize);
        memory.map(Span::from_mut)
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let at = at as usize;
        let room = self.0.get_mut(at..at + bytes.len());
        let room = room.ok_or_else(|| Error::internal("bytes outside the window"))?;
        room.copy_from_slice(bytes);
        Ok(())
    }
}

/// What precedes the elements in the file.
fn npy_header(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let kind = match dtype {
        Dtype::Bytes | Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::I16 => "<i2",
        Dtype::I32 => "<i4",
        Dtype::I64 => "<i8",
        Dtype::U16 | Dtype::BF16 => "<u2",
        Dtype::U32 => "<u4",
        Dtype::U64 => "<u8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        Dtype::C128 => "<c16",
    };
    // A tuple of one element has a comma at its end.
    let lengths: Vec<String> = shape.iter().map(|len| format!("{len},")).collect();
    let mut text = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}",
        lengths.join(" ")
    );
    const BEFORE: usize = 10;
    while !(BEFORE + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_format() {
        for (shape, shown) in [(&[][..], "()"), (&[7], "(7,)"), (&[3, 4], "(3, 4,)")] {
            let header = npy_header(Dtype::F64, shape);
            assert!(header.len().is_multiple_of(64));
            assert_eq!(header.last(), Some(&b'\n'));
            let text = std::str::from_utf8(&header[10..]).unwrap();
            let expected =
                format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shown}, }}");
            assert_eq!(text.trim_end(), expected);
            assert_eq!(
                usize::from(header[8]) + 256 * usize::from(header[9]),
                text.len()
            );
        }
    }
}
