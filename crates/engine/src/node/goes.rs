//! Says which of a session's levels a checkpoint goes to.
//!
//! A session writes to at most two levels: the node's own directory (level `node` or `peers`) and
//! level `global`. Every snapshot passes through the pool, so level `process` is always one of
//! them.
//!
//! Invariants:
//! 1. A set is never empty: a checkpoint that goes nowhere does not exist.
//! 2. All ranks of a checkpoint have the same set; they agree on it before they stage.
//!
//! Not here: who chooses the levels (`client::trigger`).

use orcheck_format::Level;

/// The number of levels that have containers: the node's own, and `global`.
const SLOTS: u32 = 2;

/// Which of a session's levels a checkpoint goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Goes(u8);

impl Goes {
    /// To all levels that the session has.
    pub const EVERYWHERE: Self = Self((1 << SLOTS) - 1);

    /// To these levels; `None` if none of them has containers.
    #[must_use]
    pub fn to(levels: &[Level]) -> Option<Self> {
        let bits = levels.iter().filter_map(|&level| slot(level));
        Self::from_bits(bits.fold(0, |bits, slot| bits | 1 << slot))
    }

    /// Whether to this level.
    #[must_use]
    pub fn includes(self, level: Level) -> bool {
        slot(level).is_none_or(|slot| self.0 & 1 << slot != 0)
    }

    /// Whether to every level that the other goes to.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those of a session's levels, weakest first.
    #[must_use]
    pub fn of(self, levels: Vec<Level>) -> Vec<Level> {
        let here = levels.into_iter();
        here.filter(|&level| self.includes(level)).collect()
    }

    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let bits = u8::try_from(bits).ok()?;
        (bits != 0 && bits <= Self::EVERYWHERE.0).then_some(Self(bits))
    }
}

/// The place of a level among those that have containers. A session has one of `node` and `peers`.
fn slot(level: Level) -> Option<u32> {
    match level {
        Level::Process => None,
        Level::Node | Level::Peers(_) => Some(0),
        Level::Global => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_names_its_levels_and_crosses_unchanged() {
        let all = [Level::Node, Level::Global];
        assert_eq!(Goes::to(&all), Some(Goes::EVERYWHERE));
        assert_eq!(Goes::to(&[Level::Process]), None);
        for (levels, node, global) in [
            (&[Level::Node][..], true, false),
            (&[Level::Peers(2)], true, false),
            (&[Level::Global], false, true),
            (&all, true, true),
        ] {
            let goes = Goes::to(levels).unwrap();
            let found = [Level::Node, Level::Peers(1), Level::Global].map(|l| goes.includes(l));
            assert_eq!(found, [node, node, global]);
            assert!(goes.includes(Level::Process));
            assert_eq!(Goes::from_bits(goes.bits()), Some(goes));
            assert!(Goes::EVERYWHERE.covers(goes));
            assert_eq!(goes.covers(Goes::EVERYWHERE), node && global);
            assert_eq!(goes.of(all.to_vec()).len(), levels.len());
        }
        for bits in [0, 4, 256, u64::MAX] {
            assert_eq!(Goes::from_bits(bits), None);
        }
    }
}
