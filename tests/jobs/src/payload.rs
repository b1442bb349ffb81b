//! State that says whose it is: every 64 bytes carry region, rank, run, step and offset, so that
//! stale, swapped, zero and mixed bytes are recognised, and not only that a checksum is wrong.

use orcheck_client::{Codec, SAME, Session};
use orcheck_format::{Dtype, Error, Result};
use orcheck_io::memory::Span;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Or-ed into the scale: a small part of the state changes with every step, a third of it with
/// every third one, the rest with every fourth, so that checkpoints can refer to several older
/// ones. Takes a scale of several chunks.
pub const RARELY: usize = 1 << 20;

const MAGIC: u64 = 0x0c4e_c4ed_0000_0000;

/// One rank's state.
pub struct Payload {
    /// The large region.
    pub u: Vec<u8>,
    /// A region that is no whole number of blocks; lent when the workload lends.
    pub v: Vec<u8>,
    /// A region smaller than its own identity.
    pub small: Vec<u8>,
    /// A region that is the same on all ranks, and stored once.
    pub shared: Vec<u8>,
    /// A region without bytes.
    pub none: Vec<u8>,
    /// What the codec packs; its length depends on the step.
    pub tail: Arc<Mutex<Vec<u8>>>,
    /// The routed file, where the workload has one.
    pub route: Option<PathBuf>,
}

/// Which run wrote a state, and at which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Number of the run in the trial, from 1.
    pub run: u64,
    /// Its step.
    pub step: u64,
}

fn part(region: u64, rank: u32, origin: Origin, len: usize) -> Vec<u8> {
    let Origin { run, step } = origin;
    let mut block = [0u8; 64];
    let words = [
        run,
        step,
        MAGIC | region,
        u64::from(rank),
        0,
        !run,
        !step,
        run * 1_000_003 + step,
    ];
    for (word, to) in words.iter().zip(block.chunks_mut(8)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let mut bytes = vec![0u8; len];
    for (i, to) in bytes.chunks_mut(64).enumerate() {
        block[32..40].copy_from_slice(&(i as u64 * 64).to_le_bytes());
        to.copy_from_slice(&block[..to.len()]);
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |n, &b| n << 8 | u64::from(b))
}

fn tail_len(step: u64) -> usize {
    900 + 77 * (step % 7) as usize
}

impl Payload {
    /// The state of `rank` at one step of one run; `scale` is about the size in KiB.
    pub fn new(rank: u32, origin: Origin, scale: usize) -> Self {
        let (mut third, mut fourth) = (origin, origin);
        if scale & RARELY != 0 {
            third.step -= origin.step % 3;
            fourth.step -= origin.step % 4;
        }
        let scale = scale & !RARELY;
        let mut u = part(1, rank, origin, scale * 700 + 17 * rank as usize);
        let (len, often) = (u.len(), u.len() / 512 * 64);
        u[often..].copy_from_slice(&part(1, rank, fourth, len)[often..]);
        Self {
            u,
            v: part(2, rank, third, scale * 300 + 5),
            small: part(3, rank, origin, 24),
            shared: part(6, 0, origin, 130),
            none: Vec::new(),
            tail: Arc::new(Mutex::new(part(4, rank, origin, tail_len(origin.step)))),
            route: None,
        }
    }

    /// The same sizes with bytes that no run writes.
    pub fn blank(rank: u32, scale: usize) -> Self {
        let mut blank = Self::new(rank, Origin { run: 0, step: 0 }, scale);
        blank.scribble(false);
        *blank.tail.lock().unwrap() = vec![0xee; 3];
        blank
    }

    /// What a program does after `checkpoint`: continues computing in the same memory, except in
    /// what it lent.
    pub fn scribble(&mut self, lent: bool) {
        self.u.fill(0xee);
        self.small.fill(0xee);
        self.shared.fill(0xee);
        if !lent {
            self.v.fill(0xee);
        }
    }

    /// The regions that are plain memory, by name.
    pub fn memory(&mut self) -> [(&'static str, &mut Vec<u8>); 5] {
        [
            ("u", &mut self.u),
            ("v", &mut self.v),
            ("small", &mut self.small),
            ("shared", &mut self.shared),
            ("none", &mut self.none),
        ]
    }

    /// Names all regions.
    pub fn protect(&mut self, session: &mut Session, routed: bool) -> Result<()> {
        session.protect("u", Span::from_mut(&mut self.u), Dtype::U8, 0)?;
        session.protect("v", Span::from_mut(&mut self.v), Dtype::U8, 0)?;
        session.protect("small", Span::from_mut(&mut self.small), Dtype::F64, 0)?;
        session.protect("shared", Span::from_mut(&mut self.shared), Dtype::U8, SAME)?;
        session.protect("none", Span::from_mut(&mut self.none), Dtype::U8, 0)?;
        session.protect_codec("tail", Box::new(Tail(Arc::clone(&self.tail))), 0)?;
        if routed {
            self.route = Some(session.route("notes")?);
        }
        Ok(())
    }

    /// Writes the routed file as the program does.
    pub fn write_route(&self, rank: u32, origin: Origin) {
        if let Some(path) = &self.route {
            std::fs::write(path, part(5, rank, origin, 5000)).unwrap();
        }
    }

    /// Which run and step the state is of; an error when it is not exactly one state.
    pub fn origin(&self, rank: u32, scale: usize) -> std::result::Result<Origin, String> {
        let origin = Origin {
            run: word(&self.u, 0),
            step: word(&self.u, 8),
        };
        if origin.run > 1 << 40 || origin.step > 1 << 40 {
            return Err(format!(
                "rank {rank}: the first bytes are those of no run: {:02x?}",
                &self.u[..16]
            ));
        }
        let expected = Self::new(rank, origin, scale);
        let mut parts = vec![
            ("u", self.u.clone(), expected.u),
            ("v", self.v.clone(), expected.v),
            ("small", self.small.clone(), expected.small),
            ("shared", self.shared.clone(), expected.shared),
            (
                "tail",
                self.tail.lock().unwrap().clone(),
                expected.tail.lock().unwrap().clone(),
            ),
        ];
        if let Some(path) = &self.route {
            let found = std::fs::read(path)
                .map_err(|error| format!("rank {rank}: routed file: {error}"))?;
            parts.push(("notes", found, part(5, rank, origin, 5000)));
        }
        for (name, found, expected) in parts {
            if found != expected {
                let at = found
                    .iter()
                    .zip(&expected)
                    .position(|(a, b)| a != b)
                    .unwrap_or(found.len().min(expected.len()));
                return Err(format!(
                    "rank {rank}: region {name} is not that of {origin:?}: {} bytes, expected {}, first difference at {at}",
                    found.len(),
                    expected.len()
                ));
            }
        }
        Ok(origin)
    }
}

/// A region that packs itself.
struct Tail(Arc<Mutex<Vec<u8>>>);

impl Codec for Tail {
    fn size(&mut self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        let bytes = self.0.lock().unwrap();
        let from = at as usize;
        let part = bytes
            .get(from..from + dst.len())
            .ok_or_else(|| Error::internal("the tail ended"))?;
        dst.copy_from_slice(part);
        Ok(())
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        let mut bytes = self.0.lock().unwrap();
        bytes.truncate(at as usize);
        bytes.extend_from_slice(src);
        Ok(())
    }
}
