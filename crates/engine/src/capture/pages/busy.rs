//! Learns which groups of pages change between any two captures. Protecting them only makes the
//! program pay: each first write to a protected page is a fault, which takes longer than copying
//! the page, and the copy is due in any case.
//!
//! How: a group that changed almost whole in two captures in a row is busy. The tracker leaves it
//! unprotected and reports it as written, so it is copied and compared as any written page is. As
//! soon as a comparison finds it mostly unchanged, it is protected again.
//!
//! Invariants:
//! 1. Only what a comparison of bytes found counts as changed; a write of the same bytes does not.
//! 2. What is busy is copied. A wrong guess costs a copy, never a change.

use crate::capture::pages::GROUP_PAGES;

/// Number of captures in a row in which a group changed before it is busy.
const CAPTURES: u8 = 2;
/// Number of a group's pages that must change. With fewer, pages that did not change would count
/// towards the share from which a region is captured whole.
const CHANGED_PAGES: u8 = (GROUP_PAGES / 8 * 7) as u8;

/// One group.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// Pages that changed in the capture that is being entered.
    changed: u8,
    /// Captures in a row in which enough of them did.
    in_a_row: u8,
}

/// The groups of a region.
#[derive(Debug, Default)]
pub struct Busy {
    groups: Vec<Group>,
}

impl Busy {
    /// Begins again: nothing is known of any of this many pages.
    pub fn forget(&mut self, pages: usize) {
        self.groups.clear();
        self.groups
            .resize(pages.div_ceil(GROUP_PAGES), Group::default());
    }

    /// A page of the capture that is being entered changed.
    pub fn note(&mut self, page: usize) {
        if let Some(group) = self.groups.get_mut(page / GROUP_PAGES) {
            group.changed += 1;
        }
    }

    /// Ends the capture whose pages were noted.
    pub fn close(&mut self) {
        for group in &mut self.groups {
            group.in_a_row = match group.changed {
                CHANGED_PAGES.. => (group.in_a_row + 1).min(CAPTURES),
                _ => 0,
            };
            group.changed = 0;
        }
    }

    /// The pages (first, count) of `from..to` that are busy: ascending, and none touches another.
    /// They are counted from `from`.
    pub fn ranges(&self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let first = (number * GROUP_PAGES).max(from);
            let end = ((number + 1) * GROUP_PAGES).min(to);
            if group.in_a_row < CAPTURES || first >= end {
                continue;
            }
            match ranges.last_mut() {
                Some((last, count)) if *last + *count + from == first => *count += end - first,
                _ => ranges.push((first - from, end - first)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captures(changed: &[&[usize]]) -> Busy {
        let mut busy = Busy::default();
        busy.forget(4 * GROUP_PAGES);
        for groups in changed {
            for group in *groups {
                (group * GROUP_PAGES..(group + 1) * GROUP_PAGES).for_each(|page| busy.note(page));
            }
            busy.close();
        }
        busy
    }

    // Breaks if: one capture is enough, or a group stays busy that has not changed.
    #[test]
    fn a_group_is_busy_while_it_changes() {
        let all = (0, 4 * GROUP_PAGES);
        assert_eq!(captures(&[&[1, 2]]).ranges(all.0, all.1), []);
        let twice = captures(&[&[1, 2], &[1, 2]]);
        assert_eq!(twice.ranges(all.0, all.1), [(64, 128)]);
        assert_eq!(twice.ranges(1, 130), [(63, 66)]);
        let rested = captures(&[&[1, 2], &[1, 2], &[2], &[1, 2]]);
        assert_eq!(rested.ranges(all.0, all.1), [(128, 64)]);
    }

    // Breaks if: a few pages make a group busy.
    #[test]
    fn a_group_that_changes_in_part_is_not_busy() {
        let mut busy = Busy::default();
        busy.forget(GROUP_PAGES);
        for _ in 0..3 {
            (0..usize::from(CHANGED_PAGES) - 1).for_each(|page| busy.note(page));
            busy.close();
        }
        assert_eq!(busy.ranges(0, GROUP_PAGES), []);
    }
}
