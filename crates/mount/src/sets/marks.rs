//! Remembers in the backing directory which steps have begun, and puts files aside that are not of
//! a complete set.
//!
//! ```text
//! .orcheck-sets/JOB/running.NODE            a mount is there, or did not end well; the boot ID of
//!                                           the machine, or that everything was durable
//! .orcheck-sets/JOB/begun/STEP.NODE         paths of files of a step that may be incomplete
//! .orcheck-sets/JOB/begun/STEP.NODE.whole   the same; they are whole, but not durable yet
//! .orcheck-sets/JOB/begun/STEP.NODE.lost    the same; some of them cannot become durable
//! .orcheck-sets/JOB/aside/STEP/PATH         a file of a step that never became complete
//! .orcheck-sets/JOB/incoming-N.NODE         a file that is being restored
//! ```
//!
//! Invariants:
//! 1. Nothing of a program's is removed: files are moved.
//! 2. No symbolic link is followed below the backing directory.
//! 3. One mount at a time has the marks of a node (a lock).
//! 4. A step's mark is durable before a file of it has bytes, and names that file or, if its name
//!    has the step, one beside it.
//! 5. A step has a mark until its files, and their names, are durable. A sync that succeeds after
//!    one that failed proves nothing.
//!
//! Faults survived: the death of the mount at any step; a power cut.
//!
//! Not here: which files are restored (`back.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::{Contents, Inode, Kernel, ofd_lock};
use orcheck_io::failpoints::Failpoints;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The directory of the marks.
pub const HOME: &str = ".orcheck-sets";
const BEGUN: &str = "begun";
const ASIDE: &str = "aside";
/// Most directories for files of one step.
const MOST_ASIDE: u32 = 10_000;
/// What `running.NODE` has if everything was durable at the end of the mount.
const AT_REST: &[u8] = b"at rest";
/// The longest mark that is read.
const MOST_BYTES: usize = 64 << 20;

/// The mark of a step.
struct Begun {
    step: u64,
    contents: Contents,
    /// Directories of files that it names durably.
    directories: HashSet<PathBuf>,
}

/// What is known of the files that a mark names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Files may be missing, or incomplete.
    Begun,
    /// They are whole: only a power cut can change that.
    Whole,
    /// So they are, but some of them did not become durable, and cannot.
    Lost,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Begun, Kind::Whole, Kind::Lost];

    /// What ends the name of the mark.
    fn ending(self) -> &'static str {
        match self {
            Kind::Begun => "",
            Kind::Whole => ".whole",
            Kind::Lost => ".lost",
        }
    }
}

/// A mark of an earlier mount.
pub struct Left {
    /// Its step.
    pub step: u64,
    /// Its node.
    node: u32,
    /// What is known of its files.
    pub kind: Kind,
}

impl Left {
    fn name(&self, kind: Kind) -> OsString {
        OsString::from(format!("{}.{}{}", self.step, self.node, kind.ending()))
    }
}

/// The marks of one node's mount.
pub struct Marks {
    root: Inode,
    home: Inode,
    path: PathBuf,
    begun: Inode,
    node: u32,
    nodes: u32,
    points: Failpoints,
    /// The mark that was written last.
    last: Mutex<Option<Begun>>,
    /// The file `running.NODE`, which holds the lock.
    running: Contents,
    /// The last mount did not end well.
    pub crashed: bool,
    /// Nor did the machine: what was not durable is lost.
    pub power_cut: bool,
}

impl Marks {
    /// Those of mount `node` of `nodes` of a job. `None`: another mount has them.
    pub fn open(
        backing: &Path,
        job: &str,
        (node, nodes): (u32, u32),
        boot_id: &str,
        points: &Failpoints,
    ) -> Kernel<Option<Marks>> {
        let root = Inode::root(backing, points.clone())?;
        let home = directory(&directory(&root, OsStr::new(HOME))?, OsStr::new(job))?;
        let begun = directory(&home, OsStr::new(BEGUN))?;
        let running = OsString::from(format!("running.{node}"));
        let crashed = home.child(&running).is_ok();
        let fd = home.create(&running, OFlags::RDWR, 0o644)?;
        let locked = ofd_lock(&fd, 0).map_err(Errno::from_raw_os_error)?;
        if !locked {
            return Ok(None);
        }
        home.sync_names()?;
        let running = Contents::new(fd, points, "running");
        let at_rest = start_is(&running, AT_REST)?;
        let power_cut = crashed && !at_rest && !start_is(&running, boot_id.as_bytes())?;
        Ok(Some(Marks {
            root,
            home,
            path: Path::new(HOME).join(job),
            begun,
            node,
            nodes,
            points: points.clone(),
            last: Mutex::new(None),
            running,
            crashed,
            power_cut,
        }))
    }

    /// What an earlier mount left has been dealt with; from here on, only marks of this start of
    /// the machine are there.
    pub fn settled(&self, boot_id: &str) -> Kernel<()> {
        self.note(boot_id.as_bytes())
    }

    /// Everything is durable at the end of the mount, whatever programs have left.
    pub fn at_rest(&self) -> Kernel<()> {
        self.note(AT_REST)
    }

    fn note(&self, what: &[u8]) -> Kernel<()> {
        self.running.set_len(0)?;
        self.running.write_all(what, 0)?;
        self.running.sync(false)
    }

    /// Where the marks are, below the backing directory.
    pub fn shown(&self) -> String {
        format!("{} below the backing directory", self.path.display())
    }

    fn of_node(&self, what: &str) -> OsString {
        OsString::from(format!("{what}.{}", self.node))
    }

    fn contents(&self, dir: &Inode, name: &OsStr, flags: OFlags) -> Kernel<Contents> {
        let fd = dir.create(name, flags, 0o644)?;
        Ok(Contents::new(fd, &self.points, &name.to_string_lossy()))
    }

    /// Files of a step will be written. `by_name`: the step is in their names, so whoever knows
    /// their directory finds them, and a sync for each directory is enough.
    pub fn begin<'a>(
        &self,
        step: u64,
        paths: impl Iterator<Item = &'a Path>,
        by_name: bool,
    ) -> Kernel<()> {
        let (mut names, mut directories) = (Vec::new(), HashSet::new());
        for path in paths {
            names.extend_from_slice(path.as_os_str().as_bytes());
            names.push(0);
            directories.extend(path.parent().map(Path::to_owned));
        }
        // Held while it is synced: until then, nobody may write a file that it should name.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mark = match last.take() {
            Some(mark) if mark.step == step => mark,
            _ => self.mark_of(step)?,
        };
        mark.contents.write_all(&names, 0)?;
        if !by_name || !directories.is_subset(&mark.directories) {
            mark.contents.sync(false)?;
            mark.directories.extend(directories);
        }
        *last = Some(mark);
        Ok(())
    }

    fn mark_of(&self, step: u64) -> Kernel<Begun> {
        let name = self.of_node(&step.to_string());
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let contents = self.contents(&self.begun, &name, flags)?;
        if contents.stat()?.st_size == 0 {
            self.begun.sync_names()?;
        }
        Ok(Begun {
            step,
            contents,
            directories: HashSet::new(),
        })
    }

    fn mine(&self, step: u64) -> Left {
        let (node, kind) = (self.node, Kind::Begun);
        Left { step, node, kind }
    }

    /// The set of a step is safe or lost. Its files are whole, but not all of them are durable.
    pub fn decided(&self, step: u64) -> Kernel<()> {
        let mine = self.mine(step);
        self.rename(&mine.name(Kind::Begun), &mine.name(Kind::Whole))
    }

    /// A file of a step cannot become durable.
    pub fn lost(&self, step: u64) -> Kernel<()> {
        let mine = self.mine(step);
        self.rename(&mine.name(Kind::Begun), &mine.name(Kind::Lost))?;
        self.rename(&mine.name(Kind::Whole), &mine.name(Kind::Lost))?;
        // Breaks if: it is whole again after a power cut; the next mount would believe a sync.
        self.begun.sync_names()
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> Kernel<()> {
        gone(self.begun.rename(from, &self.begun, to, 0))
    }

    /// The same of all steps whose files were whole.
    pub fn all_lost(&self) -> Kernel<()> {
        let left = self.left()?;
        let mut whole = left.iter().filter(|one| one.kind == Kind::Whole);
        whole.try_for_each(|one| self.keep_as_lost(one))
    }

    /// Makes the names in these directories durable, and their own.
    pub fn sync_directories(&self, directories: &BTreeSet<PathBuf>) -> Kernel<()> {
        let with_above = directories.iter().flat_map(|path| path.ancestors());
        for path in with_above.collect::<BTreeSet<&Path>>() {
            let found = match path.as_os_str().is_empty() {
                true => self.root.child(OsStr::new(".")),
                false => self.find(path),
            };
            match found {
                // Somebody has moved it since.
                Err(errno) if is_absent(errno) => {}
                other => other?.sync_names()?,
            }
        }
        Ok(())
    }

    /// All files of a step are durable: its mark goes.
    pub fn forget_step(&self, step: u64) -> Kernel<()> {
        self.forget(&self.mine(step))
    }

    /// Marks of steps that earlier mounts have begun, in the order of the steps.
    pub fn left(&self) -> Kernel<Vec<Left>> {
        let mut left = Vec::new();
        for entry in self.begun.list()? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            // The first node takes care of the marks of nodes that no longer exist.
            let is_ours =
                |one: &Left| one.node == self.node || self.node == 0 && one.node >= self.nodes;
            left.extend(name.to_str().and_then(parts_of).filter(is_ours));
        }
        left.sort_by_key(|one| (one.step, one.node, one.kind));
        Ok(left)
    }

    /// The paths in such a mark.
    pub fn paths(&self, left: &Left) -> Kernel<Vec<PathBuf>> {
        let inode = self.begun.child(&left.name(left.kind))?;
        if !FileType::from_raw_mode(inode.stat()?.st_mode).is_file() {
            return Ok(Vec::new());
        }
        let fd = inode.open(OFlags::RDONLY)?;
        let file = Contents::new(fd, &self.points, "begun");
        let len = usize::try_from(file.stat()?.st_size).unwrap_or(0);
        let len = len.min(MOST_BYTES);
        let mut bytes = vec![0; len];
        let count = file.read(&mut bytes, 0)?;
        bytes.truncate(count);
        // After a power cut, the end of the last name may be missing, or a hole precede others.
        let whole = bytes.split_inclusive(|byte| *byte == 0);
        let names = whole.filter_map(|name| name.strip_suffix(&[0]));
        Ok(names
            .take_while(|name| !name.is_empty())
            .map(|name| PathBuf::from(OsString::from_vec(name.to_vec())))
            .collect())
    }

    /// The paths of what lies beside a file, itself included.
    pub fn beside(&self, path: &Path) -> Kernel<Vec<PathBuf>> {
        let above = path.parent().unwrap_or(Path::new(""));
        let dir = parent_of(&self.root, path, false).and_then(|(dir, _)| dir.list());
        let listed = match dir {
            // Somebody has changed it since.
            Err(errno) if is_absent(errno) => return Ok(Vec::new()),
            other => other?,
        };
        let mut paths = Vec::new();
        for entry in listed {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                paths.push(above.join(name));
            }
        }
        Ok(paths)
    }

    /// Whether there is something at a path, or nobody can tell.
    pub fn may_exist(&self, path: &Path) -> bool {
        !self.find(path).is_err_and(is_absent)
    }

    /// Makes a file durable that an earlier mount has left in its place. What is not there, or not
    /// a file, needs nothing.
    pub fn sync_file(&self, path: &Path) -> Kernel<()> {
        let found = match self.find(path) {
            Err(errno) if is_absent(errno) => return Ok(()),
            other => other?,
        };
        if !FileType::from_raw_mode(found.stat()?.st_mode).is_file() {
            return Ok(());
        }
        let fd = found.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        Contents::new(fd, &self.points, "whole").sync(false)
    }

    /// A file that such a mark names did not become durable.
    pub fn keep_as_lost(&self, left: &Left) -> Kernel<()> {
        self.rename(&left.name(left.kind), &left.name(Kind::Lost))?;
        self.begun.sync_names()
    }

    /// Removes the marks of a step.
    pub fn forget(&self, left: &Left) -> Kernel<()> {
        for kind in Kind::ALL {
            match gone(self.begun.remove(&left.name(kind), false)) {
                // Not one of ours.
                Err(Errno::ISDIR) => {}
                other => other?,
            }
        }
        // Breaks if: it comes back; after newer sets, files of a whole one would be moved aside.
        self.begun.sync_names()
    }

    /// Nothing was mounted: the next mount is not after a crash, unless this one was.
    pub fn undo(&self) {
        if !self.crashed {
            // A mark that stays costs a comparison at the next start.
            let _ = self.end_mount();
        }
    }

    /// All files are durable, and the mount is over.
    pub fn end_mount(&self) -> Kernel<()> {
        gone(self.home.remove(&self.of_node("running"), false))?;
        self.home.sync_names()
    }

    /// A directory in which files can be put aside.
    pub fn aside(&self, what: &str) -> Kernel<(Inode, PathBuf)> {
        let above = directory(&self.home, OsStr::new(ASIDE))?;
        for number in 0..MOST_ASIDE {
            let name = match number {
                0 => what.to_owned(),
                _ => format!("{what}.{number}"),
            };
            match above.make_dir(OsStr::new(&name), 0o755) {
                Ok(()) => {
                    above.sync_names()?;
                    let path = self.path.join(ASIDE).join(&name);
                    return Ok((above.child(OsStr::new(&name))?, path));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// Moves a file below a directory, if it is there. `true`: it was.
    pub fn move_to(&self, dir: &Inode, path: &Path) -> Kernel<bool> {
        if path.starts_with(HOME) {
            return Ok(false);
        }
        let found = parent_of(&self.root, path, false);
        let (from, name) = match found {
            Err(errno) if is_absent(errno) => return Ok(false),
            other => other?,
        };
        if from.child(name).is_err() {
            return Ok(false);
        }
        let (to, name) = parent_of(dir, path, true)?;
        match from.rename(name, &to, name, 0) {
            // Another node, which shares the directory, has moved it.
            Err(Errno::NOENT) => return Ok(false),
            other => other?,
        }
        to.sync_names()?;
        from.sync_names()?;
        Ok(true)
    }

    /// A new file for what is restored.
    pub fn incoming(&self, number: usize) -> Kernel<Contents> {
        let name = self.incoming_name(number);
        gone(self.home.remove(&name, false))?;
        self.contents(&self.home, &name, OFlags::RDWR | OFlags::EXCL)
    }

    fn incoming_name(&self, number: usize) -> OsString {
        self.of_node(&format!("incoming-{number}"))
    }

    /// Removes what a restart that was killed has left.
    pub fn drop_incoming(&self) -> Kernel<()> {
        let ending = format!(".{}", self.node);
        for entry in self.home.list()? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let text = name.to_str().unwrap_or("");
            if text.starts_with("incoming-") && text.ends_with(&ending) {
                gone(self.home.remove(name, false))?;
            }
        }
        Ok(())
    }

    /// Gives it its mode, and its name.
    pub fn place_incoming(&self, number: usize, mode: u32, path: &Path) -> Kernel<()> {
        let from = self.incoming_name(number);
        self.home.child(&from)?.set_mode(mode)?;
        let (dir, name) = parent_of(&self.root, path, true)?;
        self.home.rename(&from, &dir, name, 0)?;
        dir.sync_names()
    }

    /// What has this path.
    pub fn find(&self, path: &Path) -> Kernel<Inode> {
        let (dir, name) = parent_of(&self.root, path, false)?;
        dir.child(name)
    }
}

/// Whether a mark of a mount was written since the machine started.
fn start_is(mark: &Contents, boot_id: &[u8]) -> Kernel<bool> {
    let mut there = vec![0; boot_id.len()];
    Ok(mark.read(&mut there, 0)? == boot_id.len() && there == boot_id)
}

/// What the name of a mark says.
fn parts_of(name: &str) -> Option<Left> {
    let endings = [Kind::Lost, Kind::Whole].into_iter();
    let mut with = endings.filter_map(|kind| Some((name.strip_suffix(kind.ending())?, kind)));
    let (numbers, kind) = with.next().unwrap_or((name, Kind::Begun));
    let (step, node) = numbers.split_once('.')?;
    let (step, node) = (step.parse().ok()?, node.parse().ok()?);
    // `007.0` is none of ours.
    Some(Left { step, node, kind }).filter(|left| left.name(kind) == name)
}

/// Whether there is no such file: a path that a mark names need not lead anywhere.
fn is_absent(errno: Errno) -> bool {
    let absent = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::LOOP,
        Errno::INVAL,
        Errno::NAMETOOLONG,
    ];
    absent.contains(&errno)
}

/// What is removed may be gone already.
fn gone(removed: Kernel<()>) -> Kernel<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// A directory, which is made if need be; its name is durable then.
fn directory(above: &Inode, name: &OsStr) -> Kernel<Inode> {
    match above.make_dir(name, 0o755) {
        Ok(()) => above.sync_names()?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    above.child(name)
}

/// The directory of a path below `root`, which is made if need be, and the last name.
///
/// # Errors
/// `INVAL` for a path that does not only have names; those of opening and making directories. No
/// symbolic link is followed.
pub fn parent_of<'a>(root: &Inode, path: &'a Path, make: bool) -> Kernel<(Inode, &'a OsStr)> {
    let mut names = Vec::new();
    for part in path.components() {
        // Breaks if: this is not asked; a damaged or forged record could name any file.
        if !matches!(part, Component::Normal(_)) && !off(Switch::SetPath) {
            return Err(Errno::INVAL);
        }
        names.push(part.as_os_str());
    }
    let last = names.pop().ok_or(Errno::INVAL)?;
    let mut dir = root.child(OsStr::new("."))?;
    for name in names {
        dir = match make {
            true => directory(&dir, name)?,
            false => dir.child(name)?,
        };
    }
    Ok((dir, last))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use orcheck_testing::{FaultPlan, Scratch};

    #[test]
    fn nothing_outside_of_the_backing_directory_is_named() {
        let scratch = Scratch::new("marks");
        let backing = scratch.path().join("backing");
        std::fs::create_dir(&backing).unwrap();
        std::fs::write(scratch.path().join("other"), "mine").unwrap();
        std::os::unix::fs::symlink("..", backing.join("up")).unwrap();
        let marks = Marks::open(&backing, "j", (0, 1), "now", &Failpoints::none());
        let marks = marks.unwrap().unwrap();
        for path in [
            "../other",
            "up/other",
            "/etc/passwd",
            ".orcheck-sets/../../other",
            "",
        ] {
            assert!(marks.find(Path::new(path)).is_err(), "{path}");
            let (dir, _) = marks.aside("1").unwrap();
            assert_ne!(marks.move_to(&dir, Path::new(path)), Ok(true), "{path}");
        }
        assert!(scratch.path().join("other").exists());
    }

    #[test]
    fn a_mark_is_durable_before_anybody_may_write() {
        let scratch = Scratch::new("marks");
        let (plan, points) = FaultPlan::record().failpoints();
        let marks = Marks::open(scratch.path(), "j", (0, 1), "now", &points);
        let marks = marks.unwrap().unwrap();
        let mut seen = plan.seen().len();
        let mut steps = |paths: &[&str], by_name| {
            let paths = paths.iter().map(Path::new);
            marks.begin(7, paths, by_name).unwrap();
            let all = plan.seen();
            let sites: Vec<&str> = all[seen..].iter().map(|one| one.site).collect();
            seen = all.len();
            sites
        };
        let (made, written) = ("inode.syncdir", ["inode.write", "inode.sync"]);
        let first = steps(&["d/r.7.a"], true);
        assert!(first.contains(&made), "{first:?}");
        assert_eq!(first[first.len() - 2..], written, "{first:?}");
        assert_eq!(steps(&["d/r.7.b"], true), written[..1]);
        assert_eq!(steps(&["e/r.7.a"], true), written);
        assert_eq!(steps(&["d/state", "d/grid"], false), written);
    }

    #[test]
    fn what_has_begun_is_remembered_until_it_is_durable() {
        let scratch = Scratch::new("marks");
        let open_at = |node, boot_id| {
            Marks::open(scratch.path(), "j", (node, 2), boot_id, &Failpoints::none()).unwrap()
        };
        let open = |node| open_at(node, "now");
        let (first, other) = (open(0).unwrap(), open(1).unwrap());
        assert!(open(0).is_none(), "there is one");
        assert!(!first.crashed);
        first
            .begin(7, [Path::new("a"), Path::new("b\nc")].into_iter(), false)
            .unwrap();
        let begin = |marks: &Marks, step, path| {
            let paths = [Path::new(path)];
            marks.begin(step, paths.into_iter(), true).unwrap();
        };
        begin(&first, 6, "z");
        begin(&first, 7, "d/e");
        begin(&other, 8, "f");
        begin(&open(5).unwrap(), 9, "g");
        drop(first);
        // One that was killed while it restored what a power cut had left is followed by another
        // that does.
        for (boot_id, settled, cut) in [
            ("now", true, true),
            ("now", false, false),
            ("later", false, true),
            ("later", false, true),
        ] {
            let next = open_at(0, boot_id).unwrap();
            assert_eq!((next.crashed, next.power_cut), (true, cut), "{boot_id}");
            if settled {
                next.settled(boot_id).unwrap();
            }
        }
        let first = open_at(0, "later").unwrap();
        let left = first.left().unwrap();
        let steps: Vec<u64> = left.iter().map(|left| left.step).collect();
        assert_eq!(steps, [6, 7, 9], "those of the second node are its own");
        let paths = first.paths(&left[1]).unwrap();
        assert_eq!(paths, [Path::new("a"), Path::new("b\nc"), Path::new("d/e")]);
        let kinds = |marks: &Marks| -> Vec<(u64, Kind)> {
            let left = marks.left().unwrap();
            left.iter().map(|left| (left.step, left.kind)).collect()
        };
        for _ in 0..2 {
            first.decided(7).unwrap();
            assert_eq!(
                kinds(&first),
                [(6, Kind::Begun), (7, Kind::Whole), (9, Kind::Begun)]
            );
        }
        first.keep_as_lost(&first.left().unwrap()[2]).unwrap();
        let directories = BTreeSet::from(["".into(), "d/e".into()]);
        first.sync_directories(&directories).unwrap();
        first.forget_step(7).unwrap();
        first.forget_step(7).unwrap();
        assert_eq!(kinds(&first), [(6, Kind::Begun), (9, Kind::Lost)]);
        first.lost(6).unwrap();
        assert_eq!(kinds(&first), [(6, Kind::Lost), (9, Kind::Lost)]);
        first.at_rest().unwrap();
        drop(first);
        let first = open_at(0, "even later").unwrap();
        assert_eq!((first.crashed, first.power_cut), (true, false), "at rest");
        first.end_mount().unwrap();
        drop(first);
        let next = open_at(0, "even later").unwrap();
        assert!(!next.crashed && !next.power_cut);
    }

    #[test]
    fn marks_that_nobody_wrote_like_this_do_no_harm() {
        let scratch = Scratch::new("marks");
        let marks = Marks::open(scratch.path(), "j", (0, 1), "now", &Failpoints::none());
        let marks = marks.unwrap().unwrap();
        let begun = scratch.path().join(".orcheck-sets/j/begun");
        for name in [
            "007.0",
            "+7.0",
            "7",
            "7.0.whole.lost",
            "x.0",
            "7.-1",
            "99999999999999999999.0",
        ] {
            std::fs::write(begun.join(name), "user\0").unwrap();
        }
        assert!(marks.left().unwrap().is_empty());
        let long = "x".repeat(300) + "/y\0";
        std::fs::write(begun.join("5.0"), long).unwrap();
        let huge = std::fs::File::create(begun.join("6.0.whole")).unwrap();
        huge.set_len(4 << 40).unwrap();
        let left = marks.left().unwrap();
        assert_eq!(left.len(), 2);
        let paths = marks.paths(&left[0]).unwrap();
        assert!(marks.beside(&paths[0]).unwrap().is_empty());
        assert!(!marks.may_exist(&paths[0]));
        marks.sync_file(&paths[0]).unwrap();
        let (aside, _) = marks.aside("5").unwrap();
        assert_eq!(marks.move_to(&aside, &paths[0]), Ok(false));
        assert!(marks.paths(&left[1]).unwrap().is_empty());
        marks.all_lost().unwrap();
        let kinds: Vec<Kind> = marks.left().unwrap().iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [Kind::Begun, Kind::Lost]);
    }
}
