//! Models a server's directory: names, lengths, contents, and the charge for them. A file system
//! that fits on a page and does each operation completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What each name costs; and the unit in which lengths are charged.
pub const ENTRY: u64 = 4096;

/// How an operation is to come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Ok,
    /// It makes no sense: the directory or file is not there, or is of the wrong kind.
    Refused,
    /// It is beyond the quota.
    Quota,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Dir,
    /// A file, by its inode.
    File(u64),
}

#[derive(Debug, Clone, Default)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// Length for which space is reserved, while it is being written.
    pub reserved: u64,
    pub opened: u32,
}

/// See the module. Names are paths from what belongs to the caller.
#[derive(Default)]
pub struct Reference {
    pub names: BTreeMap<String, Kind>,
    pub files: BTreeMap<u64, Body>,
    pub quota: u64,
}

pub fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

fn whole(len: u64) -> u64 {
    len.div_ceil(ENTRY) * ENTRY
}

impl Reference {
    pub fn has_dir(&self, path: &str) -> bool {
        path.is_empty() || self.names.get(path) == Some(&Kind::Dir)
    }

    /// What is right in a directory.
    pub fn list(&self, dir: &str) -> BTreeMap<String, Kind> {
        let below = match dir {
            "" => String::new(),
            dir => format!("{dir}/"),
        };
        let inside = self.names.iter().filter_map(|(path, kind)| {
            let name = path.strip_prefix(&below)?;
            (!name.contains('/')).then(|| (name.to_owned(), *kind))
        });
        inside.collect()
    }

    fn content(&self, id: u64) -> u64 {
        let body = &self.files[&id];
        whole((body.bytes.len() as u64).max(body.reserved))
    }

    /// What is charged: the directory itself, the file that says which disk it is, with a line in
    /// it, and all that was made.
    pub fn used(&self) -> u64 {
        let names = (self.names.len() + 3) as u64 * ENTRY;
        names + self.files.keys().map(|id| self.content(*id)).sum::<u64>()
    }

    /// Whether so much more may be taken.
    fn room(&self, more: u64) -> Expect {
        match more > 0 && self.used() + more > self.quota {
            true => Expect::Quota,
            false => Expect::Ok,
        }
    }

    /// Whether there is room for a new name.
    pub fn new_name(&self, dir: &str, name: &str) -> Expect {
        match self.has_dir(dir) && !self.names.contains_key(&join(dir, name)) {
            true => self.room(ENTRY),
            false => Expect::Refused,
        }
    }

    pub fn make_dir(&mut self, dir: &str, name: &str) -> Expect {
        let path = join(dir, name);
        if self.has_dir(dir) && self.has_dir(&path) {
            return Expect::Ok;
        }
        let expect = self.new_name(dir, name);
        if expect == Expect::Ok {
            self.names.insert(path, Kind::Dir);
        }
        expect
    }

    /// Whether a file may come to this length.
    pub fn grown(&self, id: u64, len: u64) -> Expect {
        let body = &self.files[&id];
        let most = (body.bytes.len() as u64).max(body.reserved).max(len);
        self.room(whole(most) - self.content(id))
    }

    pub fn rename(&mut self, dir: &str, (from, to): (&str, &str), replaces: bool) -> Expect {
        if !self.has_dir(dir) {
            return Expect::Refused;
        }
        let (from, to) = (join(dir, from), join(dir, to));
        let Some(kind) = self.names.get(&from).copied() else {
            return Expect::Refused;
        };
        match self.names.get(&to) {
            Some(_) if !replaces => return Expect::Refused,
            Some(_) if from == to => return Expect::Ok,
            Some(Kind::Dir) if kind == Kind::Dir && self.list(&to).is_empty() => {}
            Some(Kind::File(_)) if kind != Kind::Dir => {}
            Some(_) => return Expect::Refused,
            None => {}
        }
        self.names.remove(&to);
        let moved: Vec<String> = (self.names.keys())
            .filter(|path| **path == from || path.starts_with(&format!("{from}/")))
            .cloned()
            .collect();
        for path in moved {
            if let Some(kind) = self.names.remove(&path) {
                self.names
                    .insert(format!("{to}{}", &path[from.len()..]), kind);
            }
        }
        self.forget();
        Expect::Ok
    }

    /// Removes a file, or an empty directory.
    pub fn remove(&mut self, dir: &str, name: &str, is_dir: bool) -> Expect {
        let path = join(dir, name);
        let fits = match self.names.get(&path) {
            Some(Kind::Dir) => is_dir && self.list(&path).is_empty(),
            Some(Kind::File(_)) => !is_dir,
            None => false,
        };
        if !fits {
            return Expect::Refused;
        }
        self.names.remove(&path);
        self.forget();
        Expect::Ok
    }

    pub fn close(&mut self, id: u64, written: bool) {
        if let Some(body) = self.files.get_mut(&id) {
            body.opened -= 1;
            if written {
                body.reserved = 0;
            }
        }
        self.forget();
    }

    /// Files that have no name and are open nowhere are gone.
    fn forget(&mut self) {
        let names = self.names.values().filter_map(|kind| match kind {
            Kind::File(id) => Some(*id),
            Kind::Dir => None,
        });
        let named: BTreeSet<u64> = names.collect();
        self.files
            .retain(|id, body| body.opened > 0 || named.contains(id));
    }

    /// Takes over what is on the disk, after an operation failed and may have happened all the
    /// same.
    pub fn adopt(&mut self, root: &Path) {
        self.names.clear();
        self.adopt_below(root, "");
        self.forget();
    }

    fn adopt_below(&mut self, root: &Path, dir: &str) {
        for entry in std::fs::read_dir(root.join(dir)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if is_identity(&name) {
                continue;
            }
            let path = join(dir, &name);
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                self.names.insert(path.clone(), Kind::Dir);
                self.adopt_below(root, &path);
                continue;
            }
            self.names.insert(path, Kind::File(about.ino()));
            let body = self.files.entry(about.ino()).or_default();
            body.bytes = std::fs::read(entry.path()).unwrap();
        }
    }
}

pub fn is_identity(name: &str) -> bool {
    name.starts_with("server-") && name.ends_with(".id")
}
