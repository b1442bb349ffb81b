//! The order in which a rank takes the extents of a region.
//!
//! How: first what other ranks of the node have read, then an extent that nobody is reading. It
//! waits for one that is being read if there is no other, or if the next one could take the place
//! of one that others still want.
//!
//! Invariants:
//! 1. Without other ranks, and for extents that are not shared, it is the order of the region.
//! 2. A rank that was told that an extent is busy waits for it if it would come next again: it
//!    never asks twice without waiting.
//!
//! Not here: taking them (`shared.rs`).

use super::{Key, SharedReads};
use crate::node::{Index, SHARED_EXTENTS};
use std::collections::{HashMap, VecDeque};

/// How far ahead of its first extent a rank looks for a better one.
const AHEAD_EXTENTS: usize = 2 * SHARED_EXTENTS as usize;

/// The extents of a region that a rank has not taken yet.
pub(crate) struct Order<'s> {
    shared: Option<&'s SharedReads>,
    /// By extent; `None`: not shared.
    keys: Vec<Option<Key>>,
    left: VecDeque<usize>,
    /// Where the extent that comes next is in `left`.
    at: usize,
    /// The extent that was last found to be busy.
    busy: Option<usize>,
}

impl<'s> Order<'s> {
    /// Of extents with these keys.
    pub(crate) fn new(shared: Option<&'s SharedReads>, keys: Vec<Option<Key>>) -> Self {
        Self {
            shared,
            left: (0..keys.len()).collect(),
            keys,
            at: 0,
            busy: None,
        }
    }

    /// The extent to take next, and whether the rank is to wait if another one is reading it.
    pub(crate) fn next(&mut self) -> Option<(usize, bool)> {
        let (at, must_wait) = match self.shared {
            Some(shared) => self.choose(shared),
            None => (0, false),
        };
        self.at = at;
        let next = self.left.get(at).copied()?;
        Some((next, must_wait || self.busy == Some(next)))
    }

    /// The extent that came next was taken.
    pub(crate) fn taken(&mut self) {
        self.left.remove(self.at);
        self.busy = None;
    }

    /// Another rank is reading the extent that came next.
    pub(crate) fn is_busy(&mut self) {
        self.busy = self.left.get(self.at).copied();
    }

    fn choose(&self, shared: &SharedReads) -> (usize, bool) {
        let index = Index::new(&shared.pool, shared.shape);
        let places = (0..SHARED_EXTENTS).map(|place| index.shared_extent(place));
        let used = places.filter(|place| place.key != Key::default());
        let there: HashMap<Key, bool> = used.map(|one| (one.key, one.is_there)).collect();
        let (mut unread, mut read_by_others) = (None, None);
        for (at, one) in self.left.iter().enumerate().take(AHEAD_EXTENTS) {
            let key = self.keys.get(*one).copied().flatten();
            match key.and_then(|key| there.get(&key)) {
                Some(true) if self.busy != Some(*one) => return (at, false),
                Some(_) => drop(read_by_others.get_or_insert(at)),
                None => drop(unread.get_or_insert((at, key.is_some()))),
            }
        }
        let being_read = there.values().filter(|is_there| !**is_there).count();
        // Breaks if: there is no limit; ranks would read the extents of others again and again.
        let enough = being_read >= SHARED_EXTENTS as usize / 4;
        match (unread, read_by_others) {
            (Some((_, true)), Some(other)) if enough => (other, true),
            (Some((unread, _)), _) => (unread, false),
            (None, Some(other)) => (other, true),
            (None, None) => (0, false),
        }
    }
}
