//! A journal of everything that a program did to its disk, in order.
//!
//! How: a [`Journal`] is a hook for [`Failpoints`] that notes every effect on the directories
//! beneath one root while the program works on a real file system. [`Journal::end`] gives the
//! [`Log`], from which [`super::outage`] makes the images that a power cut may leave.
//!
//! Invariants
//! 1. An effect is noted before its caller continues: whatever the program did because of it is
//!    later in the log.
//! 2. A sync covers the effects that were noted before it began, never those noted meanwhile.
//! 3. The end checks that the log, replayed, is what lies on the real disk: nothing went past the
//!    journal.
//!
//! Not here: files that the program makes by itself, past this crate. They are on no image.

use super::image::{Content, Image, Node, Tree};
use super::outage::Disk;
use orcheck_io::failpoints::{Effect, Failpoint, FailpointHook, Failpoints, Verdict};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// What a name stands for: files and directories are numbered in the order in which they appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inode {
    File(usize),
    Dir(usize),
}

/// Names of one directory.
pub(super) type Names = BTreeMap<String, Inode>;

/// One effect on one directory or file.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// A name now stands for this.
    Link {
        dir: usize,
        name: String,
        inode: Inode,
    },
    /// A name is gone.
    Unlink { dir: usize, name: String },
    /// Both at once.
    Rename {
        dir: usize,
        from: String,
        to: String,
        inode: Inode,
    },
    /// Bytes; the length that they gave the file, if they made it longer.
    Write {
        file: usize,
        at_bytes: u64,
        bytes: Arc<[u8]>,
        longer: Option<u64>,
    },
    /// Another length; whether what lay beyond is gone.
    Length {
        file: usize,
        len_bytes: u64,
        cuts: bool,
    },
    /// What was noted before entry `covers` is durable.
    SyncFile { file: usize, covers: usize },
    /// The same for the names of a directory.
    SyncDir { dir: usize, covers: usize },
}

/// One line of a log.
#[derive(Debug, Clone)]
pub(super) struct Noted {
    pub op: Op,
    pub mark: u64,
}

/// What a program did to its disk.
#[derive(Debug)]
pub struct Log {
    /// What was durable when the journal began, by number.
    pub(super) files: Vec<Arc<Content>>,
    pub(super) dirs: Vec<Names>,
    pub(super) all_files: usize,
    pub(super) all_dirs: usize,
    pub(super) noted: Vec<Noted>,
    last_mark: u64,
}

impl Log {
    /// Number of effects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.noted.len()
    }

    /// What the program's mark was just before effect number `at` (from 0) was told; at the end for
    /// one beyond.
    #[must_use]
    pub fn mark(&self, at: usize) -> u64 {
        self.noted
            .get(at)
            .map_or(self.last_mark, |noted| noted.mark)
    }

    /// Effect number `at` in words.
    #[must_use]
    pub fn name(&self, at: usize) -> String {
        match self.noted.get(at).map(|noted| &noted.op) {
            None => "the end".to_owned(),
            Some(Op::Link { name, .. }) => format!("create {name}"),
            Some(Op::Unlink { name, .. }) => format!("remove {name}"),
            Some(Op::Rename { from, to, .. }) => format!("rename {from} to {to}"),
            Some(Op::Write {
                file,
                at_bytes,
                bytes,
                ..
            }) => format!("write {} bytes at {at_bytes} of file {file}", bytes.len()),
            Some(Op::Length {
                file, len_bytes, ..
            }) => format!("set length of file {file} to {len_bytes}"),
            Some(Op::SyncFile { file, .. }) => format!("sync file {file}"),
            Some(Op::SyncDir { dir, .. }) => format!("sync directory {dir}"),
        }
    }
}

/// A function that says how far the program is in its own account of what it achieved.
pub type Mark = Box<dyn Fn() -> u64 + Send + Sync>;

/// Notes the effects on what lies beneath one root.
pub struct Journal {
    root: PathBuf,
    mark: Mark,
    state: Mutex<State>,
}

struct State {
    log: Log,
    /// Directory numbers by path, and what the names in them stand for now.
    paths: HashMap<PathBuf, usize>,
    names: Vec<Names>,
    /// File numbers by the numbers that the effects carry, and lengths now.
    numbers: HashMap<u64, usize>,
    lengths: Vec<u64>,
    /// Length of the log when a thread began its present sync.
    begun: HashMap<ThreadId, usize>,
}

impl Journal {
    /// Begins; all that lies beneath `root` now counts as durable. `mark` is asked at every effect,
    /// before it is told to anybody.
    ///
    /// # Errors
    /// What the file system says.
    pub fn begin(root: &Path, mark: Mark) -> std::io::Result<Arc<Journal>> {
        let image = Image::read(root)?;
        let mut state = State {
            log: Log {
                files: Vec::new(),
                dirs: Vec::new(),
                all_files: 0,
                all_dirs: 0,
                noted: Vec::new(),
                last_mark: 0,
            },
            paths: HashMap::new(),
            names: Vec::new(),
            numbers: HashMap::new(),
            lengths: Vec::new(),
            begun: HashMap::new(),
        };
        state.take_in(&image.tree, root);
        state.log.dirs = state.names.clone();
        Ok(Arc::new(Journal {
            root: root.to_path_buf(),
            mark,
            state: Mutex::new(state),
        }))
    }

    /// Steps that are noted here.
    #[must_use]
    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// The log. Everybody who takes its steps must have ended.
    ///
    /// # Errors
    /// What the file system says; and when the log, replayed, is not what lies on the disk.
    pub fn end(&self) -> std::io::Result<Log> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let log = &mut state.log;
        let mut log = Log {
            files: std::mem::take(&mut log.files),
            dirs: std::mem::take(&mut log.dirs),
            all_files: log.all_files,
            all_dirs: log.all_dirs,
            noted: std::mem::take(&mut log.noted),
            last_mark: (self.mark)(),
        };
        log.noted.shrink_to_fit();
        let real = Image::read(&self.root)?;
        let mut disk = Disk::new(&log);
        while disk.advance() {}
        let parts = disk.parts(None);
        let replayed = disk.image(&parts, &vec![true; parts.len()]);
        if replayed.digest() != real.digest() {
            return Err(std::io::Error::other(format!(
                "the journal is not what happened: on the disk are {:?}, in the journal {:?}",
                real.files(),
                replayed.files()
            )));
        }
        Ok(log)
    }
}

impl State {
    fn take_in(&mut self, tree: &Tree, path: &Path) -> usize {
        let dir = self.new_dir(path.to_path_buf());
        for (name, node) in tree {
            let inode = match node {
                Node::File(content) => {
                    self.log.files.push(Arc::clone(content));
                    Inode::File(self.new_file(content.len as u64))
                }
                Node::Dir(child) => Inode::Dir(self.take_in(child, &path.join(name))),
            };
            self.names[dir].insert(name.clone(), inode);
        }
        dir
    }

    fn new_dir(&mut self, path: PathBuf) -> usize {
        let number = self.names.len();
        self.names.push(Names::new());
        self.paths.insert(path, number);
        self.log.all_dirs = self.names.len();
        number
    }

    fn new_file(&mut self, len_bytes: u64) -> usize {
        let number = self.lengths.len();
        self.lengths.push(len_bytes);
        self.log.all_files = self.lengths.len();
        number
    }

    /// The effect in terms of this log; `None` for what lies elsewhere or was made past the
    /// journal.
    // tidy: long because it has one arm for each effect
    fn translate(&mut self, effect: &Effect, covers: usize) -> Option<Op> {
        Some(match *effect {
            Effect::Created { dir, name, file } => {
                let dir = *self.paths.get(dir)?;
                let number = self.new_file(0);
                self.numbers.insert(file, number);
                self.link(dir, name, Inode::File(number))
            }
            Effect::MadeDir { dir, name } => {
                let parent = *self.paths.get(dir)?;
                if self.names[parent].contains_key(name) {
                    return None;
                }
                let number = self.new_dir(dir.join(name));
                self.link(parent, name, Inode::Dir(number))
            }
            Effect::Linked { dir, from, to } => {
                let dir = *self.paths.get(dir)?;
                let inode = *self.names[dir].get(from)?;
                self.link(dir, to, inode)
            }
            Effect::Renamed { dir, from, to } => {
                let dir = *self.paths.get(dir)?;
                let inode = self.names[dir].remove(from)?;
                self.names[dir].insert(to.to_owned(), inode);
                Op::Rename {
                    dir,
                    from: from.to_owned(),
                    to: to.to_owned(),
                    inode,
                }
            }
            Effect::Removed { dir, name } => {
                let dir = *self.paths.get(dir)?;
                self.names[dir].remove(name)?;
                let name = name.to_owned();
                Op::Unlink { dir, name }
            }
            Effect::Wrote {
                file,
                at_bytes,
                bytes,
            } => {
                let file = *self.numbers.get(&file)?;
                let end = at_bytes + bytes.len() as u64;
                let longer = (end > self.lengths[file]).then_some(end);
                self.lengths[file] = self.lengths[file].max(end);
                let bytes = bytes.into();
                Op::Write {
                    file,
                    at_bytes,
                    bytes,
                    longer,
                }
            }
            Effect::Reserved { file, len_bytes } => {
                let file = *self.numbers.get(&file)?;
                if len_bytes <= self.lengths[file] {
                    return None;
                }
                self.set_length(file, len_bytes, false)
            }
            Effect::SetLength { file, len_bytes } => {
                let file = *self.numbers.get(&file)?;
                self.set_length(file, len_bytes, true)
            }
            Effect::Synced { file } => Op::SyncFile {
                file: *self.numbers.get(&file)?,
                covers,
            },
            Effect::SyncedDir { dir } => Op::SyncDir {
                dir: *self.paths.get(dir)?,
                covers,
            },
        })
    }

    fn link(&mut self, dir: usize, name: &str, inode: Inode) -> Op {
        let name = name.to_owned();
        self.names[dir].insert(name.clone(), inode);
        Op::Link { dir, name, inode }
    }

    fn set_length(&mut self, file: usize, len_bytes: u64, cuts: bool) -> Op {
        self.lengths[file] = len_bytes;
        Op::Length {
            file,
            len_bytes,
            cuts,
        }
    }
}

impl FailpointHook for Journal {
    fn at(&self, step: &Failpoint) -> Verdict {
        if matches!(step.site, "file.sync" | "dir.sync") {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = state.log.noted.len();
            state.begun.insert(std::thread::current().id(), now);
        }
        Verdict::Go
    }

    fn done(&self, effect: &Effect) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.log.noted.len();
        let begun = state.begun.get(&std::thread::current().id());
        let covers = begun.copied().unwrap_or(now);
        let mark = (self.mark)();
        // Another thread may have made a directory that this one uses, and not have told of it yet.
        let dir = place(effect).filter(|dir| dir.starts_with(&self.root));
        let unknown = dir.into_iter().flat_map(Path::ancestors);
        let unknown: Vec<&Path> = unknown
            .take_while(|dir| !state.paths.contains_key(*dir))
            .collect();
        for made in unknown.into_iter().rev() {
            let name = made.file_name().unwrap_or_default().to_string_lossy();
            let (dir, name) = (made.parent().unwrap_or(made), name.as_ref());
            let op = state.translate(&Effect::MadeDir { dir, name }, covers);
            let noted = op.map(|op| Noted { op, mark });
            state.log.noted.extend(noted);
        }
        if let Some(op) = state.translate(effect, covers) {
            state.log.noted.push(Noted { op, mark });
        }
    }
}

/// The directory in which an effect happened, if in one.
fn place<'e>(effect: &Effect<'e>) -> Option<&'e Path> {
    match *effect {
        Effect::Created { dir, .. }
        | Effect::MadeDir { dir, .. }
        | Effect::Linked { dir, .. }
        | Effect::Renamed { dir, .. }
        | Effect::Removed { dir, .. }
        | Effect::SyncedDir { dir } => Some(dir),
        _ => None,
    }
}
