//! Fetches what a checkpoint is about to touch of the index and the pool.
//!
//! Invariant: nothing is changed, and nothing waits.
//!
//! Not here: why; see `docs/adr/0047-a-checkpoint-takes-over-what-the-last-one-was-made-of.md`.

use super::{
    BOARD_STEPS, DECLARED, DONE, FLUSH_CPU_NS, GOING, GONE, HALT, Index, NEWS, NOTES, POPPED,
    RETURNS, SLOW, TAKEN, WRITERS,
};
use orcheck_format::WriterId;
use orcheck_io::memory::fetch_code_ahead;

impl Index<'_> {
    /// Has the processor fetch what a checkpoint of this rank is about to touch.
    pub fn fetch_ahead(&self, local: u32, writer: WriterId, turn: u64) {
        fetch_code_ahead(Self::push_quietly as *const (), 0, 3);
        let of_rank = [
            DONE,
            TAKEN,
            POPPED,
            DECLARED,
            DECLARED + 1,
            FLUSH_CPU_NS,
            SLOW,
        ];
        let of_rank = of_rank.map(|word| self.rank_word(local, word));
        let going = GOING + 2 * (turn % u64::from(BOARD_STEPS)) as u32;
        let of_node = [NEWS, GONE, RETURNS, NOTES, HALT, going, WRITERS + writer.0];
        let board = self.shape.board_base();
        for word in of_rank.into_iter().chain(of_node).chain([board]) {
            self.pool.fetch_word_ahead(word);
        }
        let chunk_count = self.pool.shape().chunk_count;
        let near = self.first_chunk(local, chunk_count);
        self.pool.fetch_ahead(near, local);
    }
}
