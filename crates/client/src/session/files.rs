//! Gives a session its memory files, whose memory comes from the pool.
//!
//! Not here: what may be done with them when (`memory_files.rs`).

use crate::memory_files::{self, FileMode, Host, MemoryFiles};
use crate::regions::Regions;
use crate::session::Session;
use orcheck_format::{Result, Step};
use orcheck_io::memory::Span;
use std::time::Duration;

impl Host for Session {
    fn files(&mut self) -> &mut MemoryFiles {
        &mut self.memory.files
    }

    fn regions(&mut self) -> &mut Regions {
        &mut self.memory.regions
    }

    fn take_memory(&mut self, len_bytes: usize) -> Result<Span> {
        let chunk_bytes = self.link.pool.shape().chunk_bytes as usize;
        let len_bytes = len_bytes.checked_next_multiple_of(chunk_bytes);
        self.alloc(len_bytes.unwrap_or(usize::MAX) as u64)
    }

    fn give_memory(&mut self, memory: Span) -> Result<()> {
        self.free(memory.address())
    }

    fn is_done(&mut self, step: Step, timeout: Duration) -> bool {
        // Breaks if: the error of a staging that failed counts as not done; nobody reads it any
        // more.
        self.borrowed_is_back(step, timeout).unwrap_or(true)
    }

    fn patience(&self) -> Duration {
        self.timeout()
    }
}

impl Session {
    /// Opens a memory file, a file of the program that never touches a file system. When it is
    /// closed, its bytes are region `name` of the following checkpoints; a restart brings back the
    /// memory files of its step. Local, as all calls for memory files.
    ///
    /// # Errors
    /// Invalid for a name that is not a relative path of plain names, or that of another region;
    /// NotFound if there is none to read; Unavailable if it is open already, or if its memory is
    /// still being written to disk at the deadline; NoSpace.
    pub fn open_file(&mut self, name: &str, mode: FileMode) -> Result<()> {
        memory_files::open(self, name, mode)
    }

    /// Writes into an open memory file from `at` on, or at its end if the mode says so; a gap is
    /// filled with zeros. Returns the position after what was written.
    ///
    /// # Errors
    /// Invalid if it is not open for writing; NoSpace: checkpoints are then refused until it is
    /// written again from its beginning.
    pub fn write_file(&mut self, name: &str, at: u64, bytes: &[u8]) -> Result<u64> {
        memory_files::write(self, name, at, bytes)
    }

    /// Reads from a memory file; returns how many bytes, 0 at its end.
    ///
    /// # Errors
    /// NotFound.
    pub fn read_file(&mut self, name: &str, at: u64, into: &mut [u8]) -> Result<usize> {
        memory_files::read(self, name, at, into)
    }

    /// The length of a memory file in bytes.
    ///
    /// # Errors
    /// NotFound.
    pub fn file_len(&mut self, name: &str) -> Result<u64> {
        memory_files::len_bytes(self, name)
    }

    /// Closes a memory file.
    ///
    /// # Errors
    /// Invalid if it is not open.
    pub fn close_file(&mut self, name: &str) -> Result<()> {
        memory_files::close(self, name)
    }

    /// Warns of memory files that are open at the end.
    pub(crate) fn warn_of_open_files(&mut self) {
        for name in self.memory.files.open_ones() {
            let text = format!(
                "memory file '{name}' was open at the end of the session: what was written to it since is in no checkpoint"
            );
            self.warnings.push(text);
        }
    }
}
