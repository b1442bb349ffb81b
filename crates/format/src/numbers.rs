//! Numbers that must not be taken for one another: steps, ranks, nodes, writers, targets.
//!
//! How: one type each, stored and shown as the plain number.
//!
//! Invariants:
//! 1. No arithmetic: two ranks have no sum. What counts or indexes says so ([`Rank::index`]).
//! 2. `Debug` and `Display` show the number alone, so a list in a message reads `[3, 7]`.
//!
//! Not here: counts (`nodes: u32`), and the index of a rank within its node, which is another
//! number than its rank.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;
            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map($name)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> u64 {
                u64::from(number.0)
            }
        }

        impl TryFrom<u64> for $name {
            type Error = TryFromIntError;
            fn try_from(number: u64) -> Result<Self, TryFromIntError> {
                Ok($name(number.try_into()?))
            }
        }
    };
}

macro_rules! index {
    ($name:ident) => {
        impl $name {
            /// As an index into a table that has one entry for each.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$name> for i64 {
            fn from(number: $name) -> i64 {
                i64::from(number.0)
            }
        }
    };
}

number!(
    /// The number of a checkpoint in its job: chosen by the program, strictly growing.
    Step(u64)
);
number!(
    /// A process of the job, as in MPI: from 0 to below the number of ranks.
    Rank(u32)
);
number!(
    /// A node of the job, from 0, in the order of its lowest rank.
    NodeId(u32)
);
number!(
    /// A writer of a node, from 0: one CP-thread's stream of containers.
    WriterId(u32)
);
number!(
    /// A target: its place in the job's list of targets, from 0.
    TargetId(u32)
);

index!(Rank);
index!(NodeId);
index!(WriterId);
index!(TargetId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_and_read_as_what_they_are() {
        assert_eq!(
            format!("{:?} {:>3} {}", [Step(3), Step(7)], Rank(2), NodeId(1)),
            "[3, 7]   2 1"
        );
        assert_eq!("12".parse(), Ok(Step(12)));
        assert!("-1".parse::<Rank>().is_err());
        assert!(Rank::try_from(1 << 32).is_err());
        assert_eq!(u64::from(WriterId(9)), 9);
        assert_eq!(TargetId(4).index(), 4);
    }
}
