//! What goes wrong in a simulated job.
//!
//! Not here: what follows from it (`world.rs`).

use crate::Random;

/// Something that goes wrong after this many events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A node is gone, with its disk.
    Dies(u64, u32),
    /// Two nodes do not see each other for a moment: what is between their agents breaks.
    Cut(u64, u32, u32),
    /// A node and the lead do not see each other any more.
    LeadCut(u64, u32),
    /// The next thing that a node's disk should do fails.
    DiskFails(u64, u32),
    /// Nothing happens on a node for this many events.
    Stalls(u64, u32, u64),
    /// Nothing happens at a node's disk for this many events.
    Slow(u64, u32, u64),
    /// A node is gone, and its disk is there at the restart.
    Crashes(u64, u32),
    /// What a node says to the lead comes twice, and what the lead says to it.
    Repeats(u64, u32),
    /// What a node says to the lead comes in any order, and what the lead says to it.
    Reorders(u64, u32),
    /// The clock of the lead jumps to this.
    Clock(u64, u64),
}

impl Fault {
    pub fn draw(random: &mut Random, nodes: u32) -> Self {
        let mut node = || random.below(u64::from(nodes)) as u32;
        let (a, b) = (node(), node());
        let when = random.below(u64::from(nodes) * 70);
        match random.below(12) {
            0..=2 => Fault::Dies(when, a),
            3 => Fault::Crashes(when, a),
            4 => Fault::Cut(when, a, b),
            5 => Fault::LeadCut(when, a),
            6 => Fault::DiskFails(when, a),
            7 => Fault::Repeats(when, a),
            8 => Fault::Reorders(when, a),
            9 => Fault::Slow(when, a, 100 + random.below(2000)),
            10 => Fault::Clock(when, random.draw() >> 16),
            _ => Fault::Stalls(when, a, 100 + random.below(2000)),
        }
    }

    pub fn when(self) -> u64 {
        match self {
            Fault::Dies(when, _)
            | Fault::Cut(when, ..)
            | Fault::LeadCut(when, _)
            | Fault::DiskFails(when, _)
            | Fault::Crashes(when, _)
            | Fault::Repeats(when, _)
            | Fault::Reorders(when, _)
            | Fault::Clock(when, _)
            | Fault::Slow(when, ..)
            | Fault::Stalls(when, ..) => when,
        }
    }
}
