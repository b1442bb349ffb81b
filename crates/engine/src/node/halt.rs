//! What a run is asked for from outside, as ranks and the control thread of a node tell each other.
//!
//! Not here: where requests lie (`directory/halt.rs`).

/// What a run is asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum HaltRequest {
    /// Nothing.
    #[default]
    None,
    /// To take a checkpoint and end.
    Now,
    /// To end after this many further checkpoints.
    After(u64),
}

impl HaltRequest {
    /// As one number, for the ranks of the node.
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Now => 1,
            Self::After(count) => count.saturating_add(1),
        }
    }

    /// What [`Self::word`] gave.
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Now,
            more => Self::After(more - 1),
        }
    }
}
