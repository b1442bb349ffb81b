//! Fields and lists that ranks hold in parts: how they are stored, and what must come back.

use crate::session::mistakes::LONG;
use crate::support::{Job, warnings};
use crate::trial::Random;
use orcheck_client::{ArrayLayout, SAME, Session};
use orcheck_format::{Dtype, Level};
use orcheck_io::memory::Span;

/// A box of a global array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub offset: Vec<u64>,
    pub local: Vec<u64>,
}

impl Part {
    pub fn elements(&self) -> u64 {
        self.local.iter().product()
    }

    /// Numbers of its elements in the global array, in C order.
    pub fn numbers<'p>(&'p self, global: &'p [u64]) -> impl Iterator<Item = u64> + 'p {
        (0..self.elements()).map(move |mut element| {
            let (mut number, mut step) = (0, 1);
            for dim in (0..global.len()).rev() {
                number += (self.offset[dim] + element % self.local[dim]) * step;
                element /= self.local[dim];
                step *= global[dim];
            }
            number
        })
    }
}

/// Cuts a box at random into one part for each rank; some may be empty.
pub fn cut(global: &[u64], ranks: u32, random: &mut Random) -> Vec<Part> {
    fn halve(part: Part, ranks: u32, random: &mut Random, parts: &mut Vec<Part>) {
        if ranks == 1 {
            parts.push(part);
            return;
        }
        let left = 1 + random.below(u64::from(ranks) - 1) as u32;
        let dim = random.below(part.local.len() as u64) as usize;
        let at = random.below(part.local[dim] + 1);
        let (mut first, mut second) = (part.clone(), part);
        first.local[dim] = at;
        second.offset[dim] += at;
        second.local[dim] -= at;
        halve(first, left, random, parts);
        halve(second, ranks - left, random, parts);
    }
    let whole = Part {
        offset: vec![0; global.len()],
        local: global.to_vec(),
    };
    let mut parts = Vec::new();
    halve(whole, ranks, random, &mut parts);
    parts
}

/// A rank's part in memory, with `gap` unused elements behind each row.
pub struct Field {
    pub layout: ArrayLayout,
    pub memory: Vec<u8>,
    pub part: Part,
}

pub const UNUSED: u8 = 0xee;

pub fn value(step: u64, number: u64) -> u64 {
    (step << 40 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Field {
    pub fn new(global: &[u64], part: &Part, gap: u64) -> Self {
        let mut stride = vec![1; global.len()];
        for dim in (0..global.len() - 1).rev() {
            stride[dim] = stride[dim + 1] * part.local[dim + 1];
            if dim == global.len() - 2 {
                stride[dim] += gap;
            }
        }
        let layout = ArrayLayout {
            dtype: Dtype::U64,
            global: global.to_vec(),
            offset: part.offset.clone(),
            local: part.local.clone(),
            stride: if gap == 0 { Vec::new() } else { stride },
        };
        let len_bytes = layout.extent_bytes().unwrap();
        Self {
            layout,
            memory: vec![UNUSED; len_bytes as usize],
            part: part.clone(),
        }
    }

    /// Where the elements are in memory, in elements and in C order.
    pub fn places(&self) -> Vec<usize> {
        let at = |mut element: u64| {
            let (mut place, mut step) = (0, 1);
            for dim in (0..self.part.local.len()).rev() {
                let stride = self.layout.stride.get(dim).copied().unwrap_or(step);
                place += element % self.part.local[dim] * stride;
                element /= self.part.local[dim];
                step *= self.part.local[dim];
            }
            place as usize
        };
        (0..self.part.elements()).map(at).collect()
    }

    pub fn fill(mut self, step: u64) -> Self {
        let global = self.layout.global.clone();
        let part = self.part.clone();
        for (place, number) in self.places().into_iter().zip(part.numbers(&global)) {
            self.memory[place * 8..][..8].copy_from_slice(&value(step, number).to_le_bytes());
        }
        self
    }

    pub fn protect(&mut self, session: &mut Session, flags: u32) {
        let layout = self.layout.clone();
        let span = Span::from_mut(&mut self.memory);
        session.protect_array("u", span, layout, flags).unwrap();
    }

    /// Whether it is what `fill` makes of it; nothing else was written.
    pub fn is(&self, step: u64) -> bool {
        let expected = Self {
            layout: self.layout.clone(),
            memory: vec![UNUSED; self.memory.len()],
            part: self.part.clone(),
        };
        self.memory == expected.fill(step).memory
    }
}

pub fn with_ranks(job: &Job, ranks: u32) -> Job {
    Job {
        ranks,
        ranks_per_node: ranks,
        placed: None,
        ..job.clone()
    }
}

/// Takes checkpoints of these steps of a field that is cut into these parts.
pub fn stores(job: &Job, global: &[u64], parts: &[Part], steps: &[u64], flags: u32) {
    let peers = (1..3).find(|peers| job.options.contains(&format!("peers = {peers}")));
    let level = peers.map_or(Level::Global, Level::Peers);
    store_at(job, level, (global, parts), steps, flags);
}

/// Takes checkpoints of these steps, and waits for them at a level.
pub fn store_at(
    job: &Job,
    level: Level,
    (global, parts): (&[u64], &[Part]),
    steps: &[u64],
    flags: u32,
) {
    let gap = |rank: u32| {
        if flags & SAME != 0 {
            0
        } else {
            u64::from(rank % 2) * 3
        }
    };
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut fields = Vec::new();
        for &step in steps {
            let mut field = Field::new(global, &parts[rank as usize], gap(rank)).fill(step);
            field.protect(&mut session, flags);
            fields.push(field);
            session.checkpoint(step).unwrap();
            session.wait(step, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
}

/// Restores the field, cut into these parts.
pub fn restores(job: &Job, global: &[u64], parts: &[Part], step: u64, flags: u32) -> Vec<String> {
    let gap = |rank: u32| {
        if flags & SAME != 0 {
            0
        } else {
            u64::from(rank % 3) * 2
        }
    };
    let told = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        assert_eq!(session.stored("u").unwrap().global, global);
        let mut field = Field::new(global, &parts[rank as usize], gap(rank));
        field.protect(&mut session, flags);
        assert_eq!(session.restart().unwrap(), step);
        assert!(field.is(step), "rank {rank}: {:?}", field.part);
        let told = warnings(&mut session);
        session.close(LONG).unwrap();
        told
    });
    told.concat()
}

/// Particles: three numbers each, and one.
#[derive(Debug, PartialEq)]
pub struct Items {
    pub x: Vec<u8>,
    pub id: Vec<u8>,
}

impl Items {
    pub fn new(items: u64) -> Self {
        Self {
            x: vec![UNUSED; 24 * items as usize],
            id: vec![UNUSED; 8 * items as usize],
        }
    }

    pub fn from(first: u64, items: u64) -> Self {
        let end = first + items;
        Self {
            x: (3 * first..3 * end).flat_map(u64::to_le_bytes).collect(),
            id: (first..end)
                .flat_map(|id| value(7, id).to_le_bytes())
                .collect(),
        }
    }

    pub fn protect(&mut self, session: &mut Session, flags: u32) {
        let items = self.id.len() as u64 / 8;
        for (name, bytes, shape) in [
            ("x", &mut self.x, &[items, 3][..]),
            ("id", &mut self.id, &[items]),
        ] {
            let span = Span::from_mut(bytes);
            session
                .protect_list(name, span, (Dtype::U64, shape), flags)
                .unwrap();
        }
    }
}

pub fn stores_lists(job: &Job, items: &[u64]) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let first = items[..rank as usize].iter().sum();
        let mut mine = Items::from(first, items[rank as usize]);
        mine.protect(&mut session, 0);
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
}
