//! A tree of files in memory, as a disk may hold it, seen through the same [`Dir`] and [`File`] as
//! a real one.
//!
//! How: an [`Image`] shares what it has in common with other images, so that thousands that differ
//! in one file take little memory and no time to make. Its directories are read-only, like those of
//! a file system mounted so.
//!
//! Invariants
//! 1. An image never changes; [`Image::with`] gives another one.
//! 2. Two images have the same digest only if they hold the same names and bytes (BLAKE3).
//!
//! Not here: which images a power cut may leave (see [`super::outage`]).

use orcheck_format::{Error, Result};
use orcheck_io::disk::{Create, Dir, Entry, File, check_name};
use orcheck_io::errno::os_error;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The bytes of one file. Zeros at its end take no memory: space is reserved in large steps.
#[derive(Debug, Default)]
pub struct Content {
    /// Up to the last byte that is not zero.
    pub(super) head: Vec<u8>,
    pub(super) len: usize,
    digest: OnceLock<[u8; 32]>,
}

impl Content {
    /// A file of these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Arc<Content> {
        let len = bytes.len();
        Content::of_len(bytes, len)
    }

    /// A file of this length that begins with these bytes, cut where they are more; zeros follow.
    pub(super) fn of_len(mut head: Vec<u8>, len: usize) -> Arc<Content> {
        head.truncate(len);
        head.truncate(
            head.iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |at| at + 1),
        );
        let digest = OnceLock::new();
        Arc::new(Content { head, len, digest })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if self.head.len() == self.len {
            return Cow::Borrowed(&self.head);
        }
        let mut bytes = self.head.clone();
        bytes.resize(self.len, 0);
        Cow::Owned(bytes)
    }

    fn digest(&self) -> &[u8; 32] {
        let hash = || {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.len.to_le_bytes()).update(&self.head);
            *hasher.finalize().as_bytes()
        };
        self.digest.get_or_init(hash)
    }
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    File(Arc<Content>),
    Dir(Arc<Tree>),
}

pub(super) type Tree = BTreeMap<String, Node>;

/// What a disk holds at one moment.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub(super) tree: Arc<Tree>,
}

impl Image {
    /// The directories beneath `root` with all they hold; what else lies in `root` itself is left
    /// out.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read(root: &Path) -> std::io::Result<Image> {
        let mut tree = read_tree(root)?;
        tree.retain(|_, node| matches!(node, Node::Dir(_)));
        let tree = Arc::new(tree);
        Ok(Image { tree })
    }

    /// Writes it beneath `root`, which is made if it is not there.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, root: &Path) -> std::io::Result<()> {
        write_tree(&self.tree, root)
    }

    /// The file at this path from the root, its components separated by `/`.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&Arc<Content>> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        match self.find(parent)?.get(name)? {
            Node::File(content) => Some(content),
            Node::Dir(_) => None,
        }
    }

    /// Paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        list_files(&self.tree, "", &mut found);
        found
    }

    /// The same with another content of one file; `None` removes it. Directories on the way are
    /// made.
    #[must_use]
    pub fn with(&self, path: &str, content: Option<Arc<Content>>) -> Image {
        let parts: Vec<&str> = path.split('/').collect();
        let tree = Arc::new(replace(&self.tree, &parts, content));
        Image { tree }
    }

    /// A digest of all names and bytes.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        digest_tree(&self.tree, &mut hasher);
        *hasher.finalize().as_bytes()
    }

    /// The directory at this path from the root; `None` if it is not there. It calls itself
    /// `/<path>`.
    #[must_use]
    pub fn dir(&self, path: &str) -> Option<Arc<dyn Dir>> {
        let tree = self.find(path)?.clone();
        let path = Path::new("/").join(path);
        Some(Arc::new(ImageDir { tree, path }))
    }

    fn find(&self, path: &str) -> Option<&Arc<Tree>> {
        let mut tree = &self.tree;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match tree.get(part)? {
                Node::Dir(child) => tree = child,
                Node::File(_) => return None,
            }
        }
        Some(tree)
    }
}

fn read_tree(path: &Path) -> std::io::Result<Tree> {
    let mut tree = Tree::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let node = if kind.is_dir() {
            Node::Dir(Arc::new(read_tree(&entry.path())?))
        } else {
            Node::File(Content::new(std::fs::read(entry.path())?))
        };
        tree.insert(entry.file_name().to_string_lossy().into_owned(), node);
    }
    Ok(tree)
}

fn write_tree(tree: &Tree, path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for (name, node) in tree {
        let path = path.join(name);
        match node {
            Node::File(content) => {
                std::fs::write(&path, &content.head)?;
                std::fs::File::options()
                    .write(true)
                    .open(&path)?
                    .set_len(content.len as u64)?;
            }
            Node::Dir(child) => write_tree(child, &path)?,
        }
    }
    Ok(())
}

fn list_files(tree: &Tree, above: &str, found: &mut Vec<String>) {
    for (name, node) in tree {
        let path = if above.is_empty() {
            name.clone()
        } else {
            format!("{above}/{name}")
        };
        match node {
            Node::File(_) => found.push(path),
            Node::Dir(child) => list_files(child, &path, found),
        }
    }
}

fn replace(tree: &Tree, parts: &[&str], content: Option<Arc<Content>>) -> Tree {
    let mut tree = tree.clone();
    match (parts, content) {
        ([name], Some(content)) => {
            tree.insert((*name).to_owned(), Node::File(content));
        }
        ([name], None) => {
            tree.remove(*name);
        }
        ([name, rest @ ..], content) => {
            let child = match tree.get(*name) {
                Some(Node::Dir(child)) => replace(child, rest, content),
                None if content.is_some() => replace(&Tree::new(), rest, content),
                _ => return tree,
            };
            tree.insert((*name).to_owned(), Node::Dir(Arc::new(child)));
        }
        ([], _) => {}
    }
    tree
}

fn digest_tree(tree: &Tree, hasher: &mut blake3::Hasher) {
    for (name, node) in tree {
        hasher.update(name.as_bytes());
        match node {
            Node::File(content) => hasher.update(b"\0f").update(content.digest()),
            Node::Dir(child) => {
                hasher.update(b"\0d");
                digest_tree(child, hasher);
                hasher.update(b"\0/")
            }
        };
    }
}

/// A directory of an image.
struct ImageDir {
    tree: Arc<Tree>,
    path: PathBuf,
}

impl ImageDir {
    fn full(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn refuse<T>(&self, verb: &str, name: &str) -> Result<T> {
        Err(os_error(
            libc::EROFS,
            format_args!("{verb} {}", self.full(name)),
        ))
    }

    fn node(&self, name: &str) -> Result<&Node> {
        check_name(name).map_err(|error| error.at(self.path.display()))?;
        self.tree
            .get(name)
            .ok_or_else(|| os_error(libc::ENOENT, format_args!("open {}", self.full(name))))
    }
}

impl Dir for ImageDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn create(&self, name: &str, _how: Create) -> Result<Box<dyn File>> {
        self.refuse("create", name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        match self.node(name)? {
            Node::File(content) => Ok(Box::new(ImageFile {
                content: Arc::clone(content),
                path: self.full(name),
            })),
            Node::Dir(_) => Err(Error::corrupt(format!(
                "{} refused: expected a regular file, found a directory",
                self.full(name)
            ))),
        }
    }

    fn rename(&self, from: &str, _to: &str) -> Result<()> {
        self.refuse("rename", from)
    }

    fn rename_new(&self, from: &str, _to: &str) -> Result<()> {
        self.refuse("rename", from)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.refuse("remove", name)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let entry = |(name, node): (&String, &Node)| Entry {
            name: name.clone(),
            len_bytes: match node {
                Node::File(content) => content.len as u64,
                Node::Dir(_) => 0,
            },
            is_dir: matches!(node, Node::Dir(_)),
        };
        Ok(self.tree.iter().map(entry).collect())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        match self.node(name) {
            Ok(Node::Dir(tree)) => Ok(Arc::new(ImageDir {
                tree: Arc::clone(tree),
                path: self.path.join(name),
            })),
            Ok(Node::File(_)) => Err(os_error(
                libc::ENOTDIR,
                format_args!("open directory {}", self.full(name)),
            )),
            Err(_) if create => self.refuse("create directory", name),
            Err(error) => Err(error),
        }
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        self.refuse("remove directory", name)
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn read_only(&self) -> Result<bool> {
        Ok(true)
    }
}

/// A file of an image, open for reading.
struct ImageFile {
    content: Arc<Content>,
    path: String,
}

impl ImageFile {
    fn refuse(&self, verb: &str) -> Result<()> {
        Err(os_error(libc::EROFS, format_args!("{verb} {}", self.path)))
    }
}

impl File for ImageFile {
    fn write_at(&self, _buf: &[u8], _at: u64) -> Result<()> {
        self.refuse("write")
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let Content { head, len, .. } = &*self.content;
        let here = usize::try_from(at).map_or(0, |at| len.saturating_sub(at));
        if here < buf.len() {
            return Err(Error::corrupt(format!(
                "{}: expected {} bytes at offset {at}, found {here} before the end of the file",
                self.path,
                buf.len(),
            ))
            .next("the file is truncated: use another copy or an older checkpoint"));
        }
        let from = head.get(at as usize..).unwrap_or_default();
        let (bytes, zeros) = buf.split_at_mut(from.len().min(buf.len()));
        bytes.copy_from_slice(&from[..bytes.len()]);
        zeros.fill(0);
        Ok(())
    }

    fn allocate(&self, _len: u64) -> Result<()> {
        self.refuse("allocate space for")
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        self.refuse("truncate")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.content.len as u64)
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn alignment_bytes(&self) -> u32 {
        4096
    }

    fn try_lock(&self) -> Result<bool> {
        Ok(true)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        self.path.clone()
    }
}
