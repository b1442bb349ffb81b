//! A disk that writes down what it was asked to do, and the images that a power cut may leave of
//! it.
//!
//! How: [`Recorder`] is a medium over a file in memory that also appends every request to a log,
//! each with the length that the job's ledger had at that moment. A [`Recording`] is that log read
//! back. A [`Cut`] names one image: all that was written up to a flush, and some of what was
//! written after it and before the next one, whole or torn.
//!
//! What a disk may do: lose, keep or tear (at 512 bytes or 4 KiB) every write that came after the
//! last completed flush, in any combination. What it may not: lose anything before, or tear what
//! the file system could not live without (`untorn`): that would be the file system's loss, whoever
//! uses it. A write that was handed in while a flush was waiting counts as after it only if the
//! disk took it after it.
//!
//! What was acknowledged when: whatever the ledger held when flush n + 1 came in can only rest on
//! flushes up to n. So an image at flush n must keep every promise in that part of the ledger, and
//! no other.

use crate::disk::Medium;
use orcheck_jobs::trial::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Result, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Unit in which images are held.
pub const BLOCK: usize = 4096;
/// The smallest piece that a disk writes whole.
const SECTOR: usize = 512;

const WRITE: u64 = 0;
const ZERO: u64 = 1;
const FLUSH: u64 = 2;

/// See the module's head.
pub struct Recorder {
    image: File,
    log: File,
    ledger: PathBuf,
    len_bytes: u64,
}

impl Recorder {
    /// Continues from the image in `image`; `log` is made again.
    pub fn new(image: &Path, log: &Path, ledger: &Path) -> Self {
        let image = File::options().read(true).write(true).open(image).unwrap();
        Self {
            len_bytes: image.metadata().unwrap().len(),
            image,
            log: File::create(log).unwrap(),
            ledger: ledger.to_owned(),
        }
    }

    fn note(&mut self, kind: u64, at: u64, len: u64, bytes: &[u8]) -> Result<()> {
        let told = std::fs::metadata(&self.ledger).map_or(0, |found| found.len());
        let mut entry = Vec::with_capacity(32 + bytes.len());
        for word in [kind, at, len, told] {
            entry.extend_from_slice(&word.to_le_bytes());
        }
        entry.extend_from_slice(bytes);
        self.log.write_all(&entry)
    }
}

impl Medium for Recorder {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.image.read_exact_at(bytes, at)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.image.write_all_at(bytes, at)?;
        self.note(WRITE, at, bytes.len() as u64, bytes)
    }

    fn zero(&mut self, at: u64, len_bytes: u64) -> Result<()> {
        let zeros = vec![0; 1 << 20];
        let mut done = 0;
        while done < len_bytes {
            let part = (len_bytes - done).min(zeros.len() as u64);
            self.image
                .write_all_at(&zeros[..part as usize], at + done)?;
            done += part;
        }
        self.note(ZERO, at, len_bytes, &[])
    }

    fn flush(&mut self) -> Result<()> {
        self.note(FLUSH, 0, 0, &[])
    }
}

/// One request that changed the disk.
#[derive(Clone)]
struct Change {
    at: u64,
    len: u64,
    /// `None`: zeros.
    bytes: Option<Rc<[u8]>>,
}

/// The changes between two flushes, at least one, and the length of the ledger when the second
/// came.
#[derive(Default, Clone)]
struct Span {
    changes: Vec<Change>,
    told_bytes: u64,
}

/// What a disk was asked to do, from an image on.
pub struct Recording {
    base: Image,
    /// Each ends with a flush, the last one with the end of the recording.
    spans: Vec<Span>,
    told_bytes: u64,
    untorn: Range<u64>,
    pub flushes: usize,
    pub writes: usize,
}

impl Recording {
    /// Reads a log; `base` is the image that the recorder began with, `told_bytes` the ledger's
    /// length at the end. Bytes in `untorn` are written whole or not at all.
    pub fn read(base: Image, log: &Path, told_bytes: u64, untorn: Range<u64>) -> Self {
        let log = std::fs::read(log).unwrap();
        let (mut spans, mut span) = (Vec::new(), Span::default());
        let (mut flushes, mut writes) = (0, 0);
        let mut rest = &log[..];
        while let Some((head, tail)) = rest.split_at_checked(32) {
            let word = |n: usize| u64::from_le_bytes(head[n * 8..n * 8 + 8].try_into().unwrap());
            let (kind, at, len, told) = (word(0), word(1), word(2), word(3));
            let taken = if kind == WRITE { len as usize } else { 0 };
            // The server may have been killed inside its last entry.
            let Some((bytes, tail)) = tail.split_at_checked(taken) else {
                break;
            };
            rest = tail;
            if kind == FLUSH {
                span.told_bytes = told;
                spans.push(std::mem::take(&mut span));
                flushes += 1;
            } else {
                let bytes = (kind == WRITE).then(|| bytes.into());
                span.changes.push(Change { at, len, bytes });
                writes += 1;
            }
        }
        span.told_bytes = told_bytes;
        spans.push(span);
        // A flush after which nothing is written leaves the image of the next one, with less to
        // live up to.
        spans.retain(|span| !span.changes.is_empty());
        Self {
            base,
            spans,
            told_bytes,
            untorn,
            flushes,
            writes,
        }
    }

    /// Moments with an image of their own: before the first span, and after each.
    pub fn moments(&self) -> usize {
        self.spans.len() + 1
    }

    /// The cuts of this recording, `count` in all and in the order of their moments: each moment
    /// once with nothing of what came after it, the rest at random moments with a random part of
    /// it.
    pub fn cuts(&self, count: usize, seed: u64) -> Vec<Cut> {
        let mut random = Random::new(seed);
        let moments = self.moments();
        let mut cuts: Vec<Cut> = (0..count)
            .map(|n| {
                let exact = n < moments.min(count / 2);
                let moment = match exact {
                    // All of them, or evenly spread when there are more than asked for.
                    true => n * moments / moments.min(count / 2),
                    false => random.below(self.spans.len() as u64) as usize,
                };
                Cut {
                    moment,
                    seed: (!exact).then(|| random.next()),
                }
            })
            .collect();
        cuts.sort_by_key(|cut| cut.moment);
        cuts
    }

    /// How much of the ledger an image of this moment has to live up to.
    pub fn told_bytes(&self, moment: usize) -> u64 {
        // What was told when the next flush came in can only rest on this moment.
        self.spans
            .get(moment)
            .map_or(self.told_bytes, |span| span.told_bytes)
    }
}

/// One image: a moment, and what of the writes after it survived (nothing without a seed).
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    pub moment: usize,
    seed: Option<u64>,
}

/// Walks over the moments of a recording, forwards only.
pub struct Walk {
    image: Image,
    moment: usize,
}

impl Walk {
    pub fn new(recording: &Recording) -> Self {
        Self {
            image: recording.base.clone(),
            moment: 0,
        }
    }

    /// The image of a cut, whose moment must not lie before that of the last one.
    pub fn image(&mut self, recording: &Recording, cut: Cut) -> Image {
        assert!(self.moment <= cut.moment, "cuts are in order");
        while self.moment < cut.moment {
            for change in &recording.spans[self.moment].changes {
                self.image.apply(change, 0..change.len);
            }
            self.moment += 1;
        }
        let mut image = self.image.clone();
        let Some(seed) = cut.seed else {
            return image;
        };
        let mut random = Random::new(seed);
        let pending = &recording.spans[cut.moment].changes;
        // The power may go at any time before the next flush, and a disk may be eager or lazy.
        let issued = 1 + random.below(pending.len() as u64) as usize;
        let (lost, torn) = (random.below(5), random.below(4));
        for change in &pending[..issued] {
            if random.below(4) < lost.min(4) && lost != 0 {
                continue;
            }
            if random.below(4) >= torn {
                image.apply(change, 0..change.len);
                continue;
            }
            let unit = if random.below(2) == 0 { SECTOR } else { BLOCK } as u64;
            let units = change.len.div_ceil(unit);
            let whole = random.below(units + 1);
            let scattered = random.below(2) == 0;
            for n in 0..units {
                let stays = if scattered {
                    random.below(2) == 0
                } else {
                    n < whole
                };
                // Whatever becomes of the piece in which it begins becomes of all of it.
                let within = |at: u64| recording.untorn.start < at && at < recording.untorn.end;
                if within(change.at + n * unit) {
                    continue;
                }
                let mut end = (n + 1) * unit;
                while within(change.at + end) {
                    end += unit;
                }
                if stays {
                    image.apply(change, n * unit..end.min(change.len));
                }
            }
        }
        image
    }
}

/// The contents of a disk; blocks that are not there are zero.
#[derive(Clone)]
pub struct Image {
    len_bytes: u64,
    blocks: BTreeMap<u64, Rc<[u8]>>,
}

impl Image {
    /// Reads a sparse file.
    pub fn read(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let len_bytes = file.metadata().unwrap().len();
        let mut blocks = BTreeMap::new();
        let mut at = 0;
        while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
            for block in data / BLOCK as u64..hole.div_ceil(BLOCK as u64) {
                let mut bytes = [0; BLOCK];
                file.read_exact_at(&mut bytes, block * BLOCK as u64)
                    .unwrap();
                if bytes.iter().any(|byte| *byte != 0) {
                    blocks.insert(block, Rc::from(&bytes[..]));
                }
            }
            at = hole;
        }
        Self { len_bytes, blocks }
    }

    /// Writes it as a sparse file.
    pub fn write(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.len_bytes).unwrap();
        for (block, bytes) in &self.blocks {
            file.write_all_at(bytes, block * BLOCK as u64).unwrap();
        }
    }

    /// Puts the bytes `part` of a change into the image.
    fn apply(&mut self, change: &Change, part: std::ops::Range<u64>) {
        let mut done = part.start;
        while done < part.end {
            let at = change.at + done;
            let (block, skip) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let len = (BLOCK - skip).min((part.end - done) as usize);
            let from = change
                .bytes
                .as_ref()
                .map(|bytes| &bytes[done as usize..done as usize + len]);
            match from {
                None if len == BLOCK => {
                    self.blocks.remove(&block);
                }
                Some(from) if len == BLOCK => {
                    self.blocks.insert(block, Rc::from(from));
                }
                _ => {
                    let mut bytes = self
                        .blocks
                        .get(&block)
                        .map_or(vec![0; BLOCK], |old| old.to_vec());
                    match from {
                        Some(from) => bytes[skip..skip + len].copy_from_slice(from),
                        None => bytes[skip..skip + len].fill(0),
                    }
                    self.blocks.insert(block, Rc::from(bytes));
                }
            }
            done += len as u64;
        }
    }
}
