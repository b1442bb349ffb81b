//! Encodes halt requests for exchange between the ranks and the control thread of a node.
//!
//! Not here: where the request files are (`directory/halt.rs`).

/// A request to the run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum HaltRequest {
    /// Nothing.
    #[default]
    None,
    /// Take a checkpoint and end.
    Now,
    /// End after this many further checkpoints.
    After(u64),
}

impl HaltRequest {
    /// The request as one number, for the ranks of the node.
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Now => 1,
            Self::After(count) => count.saturating_add(1),
        }
    }

    /// The request for a result of [`Self::word`].
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Now,
            more => Self::After(more - 1),
        }
    }
}
