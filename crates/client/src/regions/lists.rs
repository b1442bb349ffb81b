//! Knows who has which items of a list: those that were stored, and those that are protected now.
//!
//! Invariants:
//! 1. The items of a list are numbered in the order of ranks; the first item of a rank follows the
//!    last one of the rank before.
//!
//! Not here: how ranks learn it of each other (`restart/elastic.rs`).

use orcheck_format::{Error, Result, count};
use std::collections::BTreeMap;

/// Maximum number of lists of a program: at a restart, each rank tells all others the lengths.
pub(crate) const MOST_LISTS: usize = 1024;

/// The lists, by name.
#[derive(Default)]
pub(crate) struct Lists {
    /// As the same number of ranks stored them.
    pub(crate) stored: BTreeMap<String, Deal>,
    /// As protected now.
    pub(crate) wanted: BTreeMap<String, Deal>,
}

/// Which items of a list a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deal {
    /// Its first one.
    pub(crate) first: u64,
    /// The number of all ranks' items.
    pub(crate) total: u64,
    /// A rank that does not have the list.
    pub(crate) lacking: Option<u32>,
}

impl Deal {
    /// Of this rank, from the items of each rank; `None` where it does not have the list.
    pub(crate) fn of(rank: u32, items: impl Iterator<Item = Option<u64>>) -> Self {
        let (mut first, mut total, mut lacking) = (0, 0u64, None);
        for (other, items) in (0..).zip(items) {
            if other == rank {
                first = total;
            }
            match items {
                // More than 2^64 items cannot be stored, so the total never agrees.
                Some(items) => total = total.saturating_add(items),
                None => lacking = lacking.or(Some(other)),
            }
        }
        Self {
            first,
            total,
            lacking,
        }
    }
}

impl Lists {
    /// What this rank wants of a list.
    ///
    /// # Errors
    /// Invalid if some rank does not protect it.
    pub(crate) fn wanted(&self, name: &str) -> Result<Deal> {
        let deal = self.wanted.get(name);
        let lacking = deal.map_or(Some(0), |deal| deal.lacking);
        match (deal, lacking) {
            (Some(deal), None) => Ok(*deal),
            (_, lacking) => Err(Error::invalid(format!(
                "list '{name}' is not protected on rank {}",
                lacking.unwrap_or(0)
            ))
            .next("protect it on all ranks, with 0 items where there are none")),
        }
    }
}

/// The error that the ranks do not take exactly what there is.
pub(crate) fn wrong_total(name: &str, stored: u64, wanted: u64) -> Error {
    Error::invalid(format!(
        "list '{name}' has {} in the checkpoint, and the ranks have room for {wanted} together",
        count(stored, "item")
    ))
    .next(format!(
        "let the ranks protect exactly {} together; orc_stored gives each rank a share (local[0])",
        count(stored, "item")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_numbered_in_the_order_of_ranks() {
        let items = [Some(5), Some(0), None, Some(7)];
        let deal = |rank| Deal::of(rank, items.into_iter());
        assert_eq!([0, 1, 2, 3].map(|rank| deal(rank).first), [0, 5, 5, 5]);
        assert_eq!((deal(3).total, deal(3).lacking), (12, Some(2)));
        let most = Deal::of(1, [Some(u64::MAX), Some(3)].into_iter());
        assert_eq!((most.first, most.total), (u64::MAX, u64::MAX));
    }
}
