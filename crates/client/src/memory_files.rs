//! Keeps memory files: files of the program that become regions of its checkpoints and never touch
//! a file system.
//!
//! How: the bytes of a memory file lie in memory of the pool, where a checkpoint borrows them
//! without a copy. A program that writes a memory file again before they are flushed gets other
//! memory; the two then take turns. A memory file that outgrows its memory moves to twice as much.
//!
//! Invariants:
//! 1. Memory that a checkpoint has borrowed is not written before its CP-thread is done with it.
//! 2. A checkpoint stores a memory file as it was when it was closed. One that is open, or could
//!    not be written completely, refuses the checkpoint on all ranks.
//! 3. After a restart there are exactly the memory files of its step.
//! 4. A memory file has at most two pieces of memory.
//!
//! Survives: a full pool, and a flush that does not end (the write fails; invariant 2).
//!
//! Not here: positions and buffers (whoever implements files on top), files of the program that lie
//! in a directory (`regions/route.rs`).

use crate::regions::{Region, Regions, check_routed};
use orcheck_format::disk::{FLAG_IN_MEMORY, RegionKind, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, Step};
use orcheck_io::memory::{Span, copy_into, copy_span, fill_span};
use std::collections::BTreeMap;
use std::time::Duration;

/// How a memory file is opened: the modes of `fopen()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode {
    /// It may be read.
    pub reads: bool,
    /// It may be written.
    pub writes: bool,
    /// What it held goes.
    pub truncates: bool,
    /// Every write goes to its end.
    pub appends: bool,
}

impl FileMode {
    /// The mode that a text of `fopen()` names: `r`, `w` or `a`, then any of `+`, `b` and `e`.
    ///
    /// # Errors
    /// Invalid for another text.
    pub fn parse(text: &str) -> Result<Self> {
        let (first, rest) = text.split_at_checked(1).unwrap_or_default();
        let plus = rest.contains('+');
        let once = rest.matches('+').count() <= 1;
        let known = once && "rwa".contains(first) && rest.chars().all(|each| "+be".contains(each));
        if first.is_empty() || !known {
            return Err(Error::invalid(format!(
                "mode \"{}\" of a memory file: allowed are r, w, a, r+, w+ and a+",
                text.escape_debug()
            )));
        }
        Ok(Self {
            reads: first == "r" || plus,
            writes: first != "r" || plus,
            truncates: first == "w",
            appends: first == "a",
        })
    }
}

/// All memory files of a session, by name.
#[derive(Default)]
pub(crate) struct MemoryFiles {
    map: BTreeMap<String, MemoryFile>,
}

/// One memory file.
#[derive(Default)]
struct MemoryFile {
    len_bytes: usize,
    /// What its bytes lie in.
    held: Option<Piece>,
    /// What a checkpoint borrowed before.
    spare: Option<Piece>,
    open: Option<FileMode>,
    /// Why it was not written completely.
    failed: Option<Error>,
}

/// Memory of a memory file.
#[derive(Clone)]
struct Piece {
    memory: Span,
    /// The checkpoints that have borrowed it, until they are known to be done with it.
    borrowed: Vec<Step>,
}

impl Piece {
    fn new(memory: Span) -> Self {
        let borrowed = Vec::new();
        Self { memory, borrowed }
    }
}

/// What has memory files.
pub(crate) trait Host {
    fn files(&mut self) -> &mut MemoryFiles;
    fn regions(&mut self) -> &mut Regions;
    /// Allocates at least this many bytes.
    ///
    /// # Errors
    /// NoSpace.
    fn take_memory(&mut self, len_bytes: usize) -> Result<Span>;
    /// Frees what [`Self::take_memory`] gave.
    ///
    /// # Errors
    /// Invalid if a region lies there.
    fn give_memory(&mut self, memory: Span) -> Result<()>;
    /// Frees the end of what [`Self::take_memory`] gave; returns what is left, of at least this
    /// many bytes.
    fn trim_memory(&mut self, memory: Span, len_bytes: usize) -> Span {
        let _ = len_bytes;
        memory
    }
    /// Whether the checkpoint of a step is done with what it borrowed.
    fn is_done(&mut self, step: Step, timeout: Duration) -> bool;
    /// The longest wait for that.
    fn patience(&self) -> Duration;
}

impl MemoryFiles {
    /// What keeps a checkpoint from being taken.
    ///
    /// # Errors
    /// Invalid if a memory file is open; the error that kept one from being written completely.
    pub(crate) fn check_complete(&self) -> Result<()> {
        for (name, file) in &self.map {
            // Breaks if: it is stored all the same; a restart would read half of what the program
            // wrote.
            if file.open.is_some() && !off(Switch::MemoryFileClosed) {
                let text = format!("memory file '{name}' is open");
                return Err(Error::invalid(text).next("close it (fclose) before the checkpoint"));
            }
            if let Some(error) = &file.failed
                && !off(Switch::MemoryFileComplete)
            {
                return Err(error
                    .clone()
                    .at(format!("memory file '{name}' was not written completely")));
            }
        }
        Ok(())
    }

    /// Files that are open, for a warning at the end.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = &str> {
        let open = self.map.iter().filter(|(_, file)| file.open.is_some());
        open.map(|(name, _)| name.as_str())
    }

    /// Whether there is one of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Checks that a name can be that of another region.
    ///
    /// # Errors
    /// Invalid if a memory file has it.
    pub(crate) fn check_free(&self, name: &str) -> Result<()> {
        if !self.has(name) {
            return Ok(());
        }
        let text = format!("'{name}' is a memory file");
        Err(Error::invalid(text)
            .next("give the region another name, or unprotect the memory file first"))
    }

    fn get(&mut self, name: &str) -> Result<&mut MemoryFile> {
        let names: Vec<&str> = self.map.keys().map(String::as_str).take(20).collect();
        let names = names.join(", ");
        self.map.get_mut(name).ok_or_else(|| {
            Error::not_found(match names.is_empty() {
                true => format!("there is no memory file '{name}', and no other one"),
                false => format!("there is no memory file '{name}'; there are: {names}"),
            })
            .next("write it with mode \"w\", or restart from a checkpoint that has it")
        })
    }
}

/// Opens a memory file.
///
/// # Errors
/// Invalid for a name that is not allowed, or of another region; NotFound; Unavailable if it is
/// open already, or if its memory stays borrowed; NoSpace.
pub(crate) fn open<H: Host>(host: &mut H, name: &str, mode: FileMode) -> Result<()> {
    check_routed(name, 0, host.regions())?;
    if let Ok(region) = host.regions().get(name)
        && !region.is_memory_file()
    {
        let text = format!("'{name}' is a region, and cannot be a memory file");
        return Err(Error::invalid(text).next("give one of them another name"));
    }
    let files = host.files();
    if !files.map.contains_key(name) && (mode.truncates || mode.appends) {
        host.regions().put(name, nothing())?;
        host.files()
            .map
            .insert(name.to_owned(), MemoryFile::default());
    }
    let file = host.files().get(name)?;
    if file.open.is_some() {
        let text = format!("memory file '{name}' is open already");
        return Err(Error::unavailable(text).next("close it first"));
    }
    if mode.writes {
        let kept = if mode.truncates { 0 } else { file.len_bytes };
        own_memory(host, name, kept)?;
        // Nothing of it is protected until it is closed.
        host.regions().put(name, nothing())?;
        let file = host.files().get(name)?;
        file.len_bytes = kept;
        if mode.truncates {
            file.failed = None;
        }
    }
    host.files().get(name)?.open = Some(mode);
    Ok(())
}

fn nothing() -> Region {
    Region::memory_file(Span::from_mut(&mut []))
}

/// Makes the memory of a memory file writable, with its first `kept` bytes.
fn own_memory<H: Host>(host: &mut H, name: &str, kept: usize) -> Result<()> {
    let file = host.files().get(name)?;
    let (held, len) = (file.held.clone(), file.len_bytes);
    let Some(held) = held.filter(|held| !held.borrowed.is_empty()) else {
        return Ok(());
    };
    // Breaks if: it is not asked; the checkpoint would store what is written next.
    if is_back(host, &held, Duration::ZERO) || off(Switch::MemoryFileBorrowed) {
        return mark_back(host, name);
    }
    let patience = host.patience();
    let spare = host.files().get(name)?.spare.take();
    let other = match spare {
        Some(spare) if !is_back(host, &spare, patience) => {
            host.files().get(name)?.spare = Some(spare);
            let text = format!(
                "memory file '{name}': both pieces of its memory are still being written to disk after {} s",
                patience.as_secs_f64()
            );
            return Err(Error::unavailable(text).next("take checkpoints less often"));
        }
        Some(spare) if spare.memory.len_bytes() >= kept => Ok(spare.memory),
        Some(spare) => {
            host.give_memory(spare.memory)?;
            host.take_memory(len)
        }
        None => host.take_memory(len),
    };
    let other = match other {
        Ok(other) => other,
        // Breaks if: this is an error; whether a program runs would depend on how fast its disk is.
        Err(_) if is_back(host, &held, patience) => return mark_back(host, name),
        Err(error) => return Err(error),
    };
    copy_span(held.memory.sub(0, kept), other.sub(0, kept));
    let file = host.files().get(name)?;
    file.held = Some(Piece::new(other));
    file.spare = Some(held);
    Ok(())
}

/// Whether all checkpoints that have borrowed a piece are done with it. They need not end in order:
/// one may wait for a slow level that a later one does not go to.
fn is_back<H: Host>(host: &mut H, piece: &Piece, timeout: Duration) -> bool {
    let mut borrowed = piece.borrowed.iter().rev();
    borrowed.all(|step| host.is_done(*step, timeout))
}

fn mark_back<H: Host>(host: &mut H, name: &str) -> Result<()> {
    if let Some(held) = &mut host.files().get(name)?.held {
        held.borrowed.clear();
    }
    Ok(())
}

/// Notes that a checkpoint borrows what a memory file holds.
pub(crate) fn note_borrowed<H: Host>(host: &mut H, step: Step, name: &str) -> Result<()> {
    let Some(held) = host.files().get(name)?.held.clone() else {
        return Ok(());
    };
    // Breaks if: only the last one is kept; one before it may take longer.
    let mut borrowed = held.borrowed;
    borrowed.retain(|earlier| !host.is_done(*earlier, Duration::ZERO));
    borrowed.push(step);
    if let Some(held) = &mut host.files().get(name)?.held {
        held.borrowed = borrowed;
    }
    Ok(())
}

/// Writes into an open memory file, from `at` on; a gap before it is filled with zeros. Returns the
/// position behind what was written.
///
/// # Errors
/// Invalid if it is not open for writing; NoSpace. The next checkpoint is then refused.
pub(crate) fn write<H: Host>(host: &mut H, name: &str, at: u64, bytes: &[u8]) -> Result<u64> {
    let file = host.files().get(name)?;
    let Some(mode) = file.open.filter(|mode| mode.writes) else {
        return Err(Error::invalid(format!(
            "memory file '{name}' is not open for writing"
        )));
    };
    let len = file.len_bytes;
    let at = if mode.appends { len as u64 } else { at };
    let written = grown(host, name, at, bytes.len()).and_then(|end| {
        let file = host.files().get(name)?;
        let held = file.held.as_ref().map(|held| held.memory);
        if let Some(memory) = held.filter(|_| !bytes.is_empty()) {
            let start = end - bytes.len();
            zero(memory.sub(len.min(start), start.saturating_sub(len)));
            fill_span(memory.sub(start, bytes.len()), bytes);
            file.len_bytes = len.max(end);
        }
        Ok(end as u64)
    });
    if let Err(error) = &written {
        fail(host, name, error.clone())?;
    }
    written
}

fn zero(memory: Span) {
    let zeros = [0; 4096];
    for at in (0..memory.len_bytes()).step_by(zeros.len()) {
        let len = zeros.len().min(memory.len_bytes() - at);
        fill_span(memory.sub(at, len), &zeros[..len]);
    }
}

/// Makes room for `more` bytes from `at` on; returns where they end.
fn grown<H: Host>(host: &mut H, name: &str, at: u64, more: usize) -> Result<usize> {
    let end = usize::try_from(at).ok().and_then(|at| at.checked_add(more));
    let end = end.filter(|end| isize::try_from(*end).is_ok());
    let end = end.ok_or_else(|| {
        Error::no_space(format!(
            "memory file '{name}': {more} bytes at {at} exceed memory"
        ))
    })?;
    let file = host.files().get(name)?;
    let (held, len) = (file.held.as_ref().map(|held| held.memory), file.len_bytes);
    let room = held.map_or(0, Span::len_bytes);
    if more == 0 || end <= room {
        return Ok(end);
    }
    let twice = end.max(room.saturating_mul(2));
    let memory = host.take_memory(twice);
    let memory = memory.or_else(|_| host.take_memory(end));
    let memory = memory.map_err(|error| error.at(format!("memory file '{name}'")))?;
    if let Some(held) = held {
        copy_span(held.sub(0, len), memory.sub(0, len));
        host.give_memory(held)?;
    }
    host.files().get(name)?.held = Some(Piece::new(memory));
    Ok(end)
}

/// Reads from `at` on; returns how many bytes, 0 at the end.
///
/// # Errors
/// NotFound.
pub(crate) fn read<H: Host>(host: &mut H, name: &str, at: u64, into: &mut [u8]) -> Result<usize> {
    let file = host.files().get(name)?;
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let count = file.len_bytes.saturating_sub(at).min(into.len());
    if let Some(held) = file.held.as_ref().filter(|_| count > 0) {
        copy_into(held.memory.sub(at, count), &mut into[..count]);
    }
    Ok(count)
}

/// The length of a memory file in bytes.
///
/// # Errors
/// NotFound.
pub(crate) fn len_bytes<H: Host>(host: &mut H, name: &str) -> Result<u64> {
    Ok(host.files().get(name)?.len_bytes as u64)
}

/// Closes a memory file: the following checkpoints store what it holds.
///
/// # Errors
/// NotFound; Invalid if it is not open.
pub(crate) fn close<H: Host>(host: &mut H, name: &str) -> Result<()> {
    let file = host.files().get(name)?;
    if file.open.take().is_none() {
        return Err(Error::invalid(format!("memory file '{name}' is not open")));
    }
    let (held, len) = (file.held.as_ref().map(|held| held.memory), file.len_bytes);
    // What it grew by in advance goes; the next one may be a little longer.
    if let Some(memory) = held {
        let memory = host.trim_memory(memory, len + len / 8);
        if let Some(held) = &mut host.files().get(name)?.held {
            held.memory = memory;
        }
    }
    let region = contents(host.files().get(name)?);
    host.regions().put(name, region)
}

/// Notes that a memory file was not written completely.
///
/// # Errors
/// NotFound.
pub(crate) fn fail<H: Host>(host: &mut H, name: &str, error: Error) -> Result<()> {
    host.files().get(name)?.failed = Some(error);
    Ok(())
}

/// What a memory file holds, as a region.
fn contents(file: &MemoryFile) -> Region {
    match &file.held {
        Some(held) => Region::memory_file(held.memory.sub(0, file.len_bytes)),
        None => nothing(),
    }
}

/// Forgets a memory file and frees its memory. `patience`: how long to wait for a checkpoint that
/// has borrowed it.
///
/// # Errors
/// Unavailable while it is open, or borrowed for longer.
pub(crate) fn remove<H: Host>(host: &mut H, name: &str, patience: Duration) -> Result<()> {
    let file = host.files().get(name)?;
    if file.open.is_some() {
        let text = format!("memory file '{name}' is open");
        return Err(Error::unavailable(text).next("close it first"));
    }
    let pieces: Vec<Piece> = file.held.iter().chain(&file.spare).cloned().collect();
    if !pieces.iter().all(|piece| is_back(host, piece, patience)) {
        let text = format!("memory file '{name}' is still being written to disk");
        return Err(Error::unavailable(text).next("call orc_wait first"));
    }
    host.files().map.remove(name);
    host.regions().remove(name)?;
    let mut pieces = pieces.into_iter();
    pieces.try_for_each(|piece| host.give_memory(piece.memory))
}

/// Makes room for the memory files of a checkpoint that is about to be restored, and forgets all
/// others.
///
/// # Errors
/// Invalid if one is open; NoSpace.
pub(crate) fn adopt<H: Host>(host: &mut H, stored: &[(String, u64)]) -> Result<()> {
    let patience = host.patience();
    let old: Vec<String> = host.files().map.keys().cloned().collect();
    for name in old {
        // Breaks if: it stays; the program would read bytes of another step than its regions have.
        if stored.iter().any(|(other, _)| *other == name) || !off(Switch::MemoryFilesOfStep) {
            // No damage: no older step would help.
            let removed = remove(host, &name, patience);
            removed.map_err(|error| match error.next_step() {
                Some(next) => Error::invalid(error.what()).next(next.to_owned()),
                None => error,
            })?;
        }
    }
    for (name, len_bytes) in stored {
        // The program routes it: it gets a file.
        if host.regions().get(name).is_ok() {
            continue;
        }
        let mut file = MemoryFile::default();
        if *len_bytes > 0 {
            let len_bytes = usize::try_from(*len_bytes).unwrap_or(usize::MAX);
            let memory = host.take_memory(len_bytes);
            let memory = memory.map_err(|error| error.at(format!("memory file '{name}'")))?;
            file.held = Some(Piece::new(memory));
            file.len_bytes = len_bytes;
        }
        let region = contents(&file);
        host.files().map.insert(name.clone(), file);
        host.regions().put(name, region)?;
    }
    Ok(())
}

/// Name and length of a stored memory file.
pub(crate) fn stored_file(record: &RegionRecord) -> Option<(String, u64)> {
    let is_ours = record.kind == RegionKind::File && record.flags & FLAG_IN_MEMORY != 0;
    is_ours.then(|| (record.name.clone(), record.len_bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by a panic
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;
    use orcheck_io::memory::Buffer;
    use std::collections::BTreeSet;

    /// Memory of two pieces, and the checkpoints that are done.
    #[derive(Default)]
    struct Pool {
        files: MemoryFiles,
        regions: Regions,
        taken: BTreeMap<usize, Buffer>,
        done: BTreeSet<Step>,
        most: usize,
    }

    impl Host for Pool {
        fn files(&mut self) -> &mut MemoryFiles {
            &mut self.files
        }

        fn regions(&mut self) -> &mut Regions {
            &mut self.regions
        }

        fn take_memory(&mut self, len_bytes: usize) -> Result<Span> {
            if self.taken.len() >= self.most {
                return Err(Error::no_space("no piece is left"));
            }
            let mut buffer = Buffer::zeroed(len_bytes.next_multiple_of(4096), 4096);
            let span = buffer.span();
            self.taken.insert(span.address(), buffer);
            Ok(span)
        }

        fn give_memory(&mut self, memory: Span) -> Result<()> {
            self.taken.remove(&memory.address()).map(drop).unwrap();
            Ok(())
        }

        fn is_done(&mut self, step: Step, timeout: Duration) -> bool {
            // Whoever waits sees all of them end.
            timeout > Duration::ZERO || self.done.contains(&step)
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(1)
        }
    }

    fn pool(most: usize) -> Pool {
        let mut pool = Pool {
            most,
            ..Pool::default()
        };
        put(&mut pool, &[1; 5000]);
        pool
    }

    fn put(pool: &mut Pool, bytes: &[u8]) {
        open(pool, "a", FileMode::parse("w").unwrap()).unwrap();
        write(pool, "a", 0, bytes).unwrap();
        close(pool, "a").unwrap();
    }

    fn held(pool: &mut Pool) -> Span {
        pool.files.get("a").unwrap().held.as_ref().unwrap().memory
    }

    // Breaks if: a later checkpoint that is done speaks for an earlier one that is not: that one
    // may wait for a slow level.
    #[test]
    fn memory_is_left_alone_until_every_checkpoint_is_done_with_it() {
        let mut pool = pool(2);
        let first = held(&mut pool);
        for step in [1, 2, 3] {
            note_borrowed(&mut pool, Step(step), "a").unwrap();
        }
        pool.done.extend([Step(2), Step(3)]);
        assert_eq!(
            remove(&mut pool, "a", Duration::ZERO).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        put(&mut pool, &[2; 100]);
        assert_ne!(held(&mut pool).address(), first.address());
        let mut old = [0; 5000];
        copy_into(first.sub(0, 5000), &mut old);
        assert_eq!(old, [1; 5000]);
        // Then the first one again.
        note_borrowed(&mut pool, Step(4), "a").unwrap();
        pool.done.insert(Step(1));
        put(&mut pool, &[3; 100]);
        assert_eq!(held(&mut pool).address(), first.address());
        assert_eq!(pool.taken.len(), 2);
    }

    // Breaks if: a pool without room for two pieces is an error at once.
    #[test]
    fn without_room_for_another_piece_the_flush_is_waited_for() {
        let mut pool = pool(1);
        let first = held(&mut pool);
        note_borrowed(&mut pool, Step(1), "a").unwrap();
        put(&mut pool, &[2; 100]);
        assert_eq!(held(&mut pool).address(), first.address());
        let mut found = [0; 101];
        assert_eq!(read(&mut pool, "a", 0, &mut found).unwrap(), 100);
        assert_eq!(found[..100], [2; 100]);
    }
}
