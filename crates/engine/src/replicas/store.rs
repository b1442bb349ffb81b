//! Manages a node's space for replicas of other nodes: on its disk, in the memory of its agent, or
//! in both.
//!
//! How: it is a directory in front of the node's own one. What the node writes itself goes to the
//! disk as always; replicas go where the option says. Files in memory are listed, read and removed
//! like those on disk, so that restart, prune and peers need not know where a file is.
//!
//! Invariants:
//! 1. A file that is in both places is read from memory, and removed from both.
//! 2. With `Both`, a replica is reported safe only when it is on the disk.
//! 3. Memory takes at most what was set aside for it.
//!
//! Survives: what the disk survives; files that are only in memory end with the agent. Not here:
//! how much one owner may bring (`protect.rs`), who holds what (`orcheck-placement`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Create, Dir, Entry, File, Ram};
use std::path::Path;
use std::sync::Arc;

/// Where replicas of other nodes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaStore {
    /// In the node's directory.
    Disk,
    /// In the memory of the node's agent.
    Memory,
    /// In both: on the disk they are safe, in memory they are fast to read.
    Both,
    /// In memory as far as there is room, then on disk.
    Spill,
}

impl ReplicaStore {
    /// All variants; agents are told the number of a variant in this list.
    pub const ALL: [Self; 4] = [Self::Disk, Self::Memory, Self::Both, Self::Spill];

    /// Its name, as in the options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Both => "both",
            Self::Spill => "spill",
        }
    }

    /// The space that the protocol may grant, if this much is set aside.
    pub(crate) fn granted_bytes(self, budget_bytes: u64) -> u64 {
        match self {
            // What does not fit into memory goes to the disk.
            Self::Spill => u64::MAX,
            _ => budget_bytes,
        }
    }
}

/// A node's directory and the memory for replicas; see the module.
pub struct KeptReplicas {
    disk: Arc<dyn Dir>,
    ram: Arc<Ram>,
    store: ReplicaStore,
    memory_bytes: u64,
}

impl KeptReplicas {
    /// Keeps replicas on the disk only.
    #[must_use]
    pub fn on_disk(disk: Arc<dyn Dir>) -> Self {
        Self::new(disk, Arc::default(), ReplicaStore::Disk, 0)
    }

    /// Keeps replicas as `store` says, at most `memory_bytes` of them in `ram`.
    #[must_use]
    pub fn new(disk: Arc<dyn Dir>, ram: Arc<Ram>, store: ReplicaStore, memory_bytes: u64) -> Self {
        Self {
            disk,
            ram,
            store,
            memory_bytes,
        }
    }

    /// Creates a replica with space for `len_bytes`.
    ///
    /// # Errors
    /// NoSpace, or the error of the disk; nothing of the replica is then left.
    pub fn create_replica(&self, name: &str, how: Create, len_bytes: u64) -> Result<Box<dyn File>> {
        let created = match self.store {
            ReplicaStore::Disk => self.disk.create(name, how),
            ReplicaStore::Memory => self.in_memory(name, len_bytes),
            ReplicaStore::Both => self.in_memory(name, len_bytes).and_then(|memory| {
                let disk = self.disk.create(name, how);
                let disk = disk.inspect_err(|_| {
                    self.ram.remove(name);
                })?;
                Ok(Box::new(Twice { disk, memory }) as Box<dyn File>)
            }),
            ReplicaStore::Spill => match self.in_memory(name, len_bytes) {
                Err(error) if error.kind() == ErrorKind::NoSpace => self.disk.create(name, how),
                created => created,
            },
        };
        let file = created?;
        file.allocate(len_bytes).inspect_err(|_| {
            // Best effort: prune collects what cannot be removed now.
            let _ = self.remove(name);
        })?;
        Ok(file)
    }

    /// Gives a durable replica its final name.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) fn name_replica(&self, from: &str, to: &str) -> Result<()> {
        let renamed = match self.disk.rename(from, to) {
            Err(error) if self.store != ReplicaStore::Disk => {
                let missing = error.kind() == ErrorKind::NotFound;
                (missing && self.ram.list()?.iter().any(|entry| entry.name == from))
                    .then_some(())
                    .ok_or(error)
            }
            renamed => renamed,
        };
        renamed.map(|()| self.ram.rename(from, to))
    }

    fn in_memory(&self, name: &str, len_bytes: u64) -> Result<Box<dyn File>> {
        self.check_memory(name, len_bytes)?;
        self.ram.create(name)
    }

    /// Sets space aside for a replica to become longer, if it is in memory.
    ///
    /// # Errors
    /// NoSpace.
    pub(crate) fn grow(&self, name: &str, from_bytes: u64, to_bytes: u64) -> Result<()> {
        let in_memory = self.store != ReplicaStore::Disk
            && self.ram.list()?.iter().any(|entry| entry.name == name);
        if !in_memory {
            return Ok(());
        }
        self.check_memory(name, to_bytes.saturating_sub(from_bytes))?;
        self.ram.open(name)?.allocate(to_bytes)
    }

    fn check_memory(&self, name: &str, len_bytes: u64) -> Result<()> {
        let used = self.ram.used_bytes()?;
        let free = self.memory_bytes.saturating_sub(used);
        // Breaks if: this is left out; replicas of other nodes would take the memory in which the
        // program computes.
        if len_bytes > free && !off(Switch::ReplicaMemory) {
            return Err(Error::no_space(format!(
                "{len_bytes} bytes of memory were asked for {name}, and {free} of {} for replicas are free",
                self.memory_bytes
            ))
            .next("raise replica_budget, keep fewer checkpoints, use more nodes, or set replica_store = 'spill'"));
        }
        Ok(())
    }

    /// What counts against the budget: everything that is where replicas go.
    ///
    /// # Errors
    /// What the disk says.
    pub fn held(&self) -> Result<Vec<Entry>> {
        match self.store {
            ReplicaStore::Memory => self.ram.list(),
            _ => self.list(),
        }
    }
}

impl Dir for KeptReplicas {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        self.disk.create(name, how)
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        match self.ram.open(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.disk.open(name),
            opened => opened,
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename(from, to)
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename_new(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let was_there = self.ram.remove(name);
        match self.disk.remove(name) {
            Err(error) if was_there && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = self.ram.list()?;
        let disk = self.disk.list()?;
        let new = |entry: &Entry| entries.iter().all(|known| known.name != entry.name);
        let more: Vec<Entry> = disk.into_iter().filter(new).collect();
        entries.extend(more);
        entries.sort();
        Ok(entries)
    }

    fn sync(&self) -> Result<()> {
        self.disk.sync()
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        self.disk.child(name, create)
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        self.disk.remove_child(name)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.disk.free_bytes()
    }

    fn read_only(&self) -> Result<bool> {
        self.disk.read_only()
    }

    fn check_path(&self) -> Result<()> {
        self.disk.check_path()
    }
}

/// A replica that is written to disk and to memory.
struct Twice {
    disk: Box<dyn File>,
    memory: Box<dyn File>,
}

impl File for Twice {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        self.memory.write_at(buf, at)?;
        self.disk.write_at(buf, at)
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.memory.read_at(buf, at)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.memory.allocate(len)?;
        self.disk.allocate(len)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.memory.truncate(len)?;
        self.disk.truncate(len)
    }

    fn sync(&self) -> Result<()> {
        self.disk.sync()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.disk.len_bytes()
    }

    fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    fn alignment_bytes(&self) -> u32 {
        self.disk.alignment_bytes()
    }

    fn try_lock(&self) -> Result<bool> {
        self.disk.try_lock()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.memory.close()?;
        self.disk.close()
    }

    fn name(&self) -> String {
        self.disk.name()
    }
}
