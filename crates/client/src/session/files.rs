//! Gives a session its memory files, whose memory comes from the pool.
//!
//! Not here: what may be done with them when (`memory_files.rs`).

use crate::memory_files::{self, FileMode, Host, MemoryFiles};
use crate::regions::Regions;
use crate::session::Session;
use orcheck_format::{Error, ErrorKind, Result, Step};
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
        let len_bytes = len_bytes.unwrap_or(usize::MAX) as u64;
        let taken = self.alloc(len_bytes);
        match (taken, self.progress.last_taken) {
            // Breaks if: nobody waits; whether there is room would depend on how fast the disk is.
            (Err(error), Some(step))
                if error.kind() == ErrorKind::NoSpace
                    && self.is_read_no_more(step, self.timeout()) =>
            {
                self.alloc(len_bytes).map_err(|error| {
                    let what = error.what();
                    Error::no_space(what).next("raise `pool`: it holds each memory file twice while one is being written to disk")
                })
            }
            (taken, _) => taken,
        }
    }

    fn trim_memory(&mut self, memory: Span, len_bytes: usize) -> Span {
        let chunk_bytes = self.link.pool.shape().chunk_bytes as usize;
        let keeps = len_bytes.div_ceil(chunk_bytes).max(1) as u32;
        let address = memory.address();
        match self.memory.allocations.get_mut(&address) {
            Some((first, chunks)) if *chunks > keeps => {
                let (tail, more) = (*first + keeps, *chunks - keeps);
                *chunks = keeps;
                self.give_back(tail, more);
                memory.sub(0, keeps as usize * chunk_bytes)
            }
            _ => memory,
        }
    }

    fn give_memory(&mut self, memory: Span) -> Result<()> {
        self.free(memory.address())
    }

    fn is_done(&mut self, step: Step, timeout: Duration) -> bool {
        // Breaks if: a staging that was only late counts as over; it is still being written.
        self.is_read_no_more(step, timeout)
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

    /// Notes that an open memory file was not written completely, which its writer noticed:
    /// checkpoints are refused until it is written again from its beginning.
    ///
    /// # Errors
    /// NotFound.
    pub fn fail_file(&mut self, name: &str, error: Error) -> Result<()> {
        memory_files::fail(self, name, error)
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
