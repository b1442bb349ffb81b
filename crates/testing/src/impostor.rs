//! What is no regular file, in place of one.
//!
//! Not here: which files are replaced, and what must come of it.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What stands in place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impostor {
    /// A socket that nobody listens at.
    Socket,
    /// A FIFO that nobody writes to.
    Fifo,
    /// A device that reads as empty; a FIFO again where this process may make none.
    Device,
    /// A directory with a file in it.
    Directory,
    /// A symbolic link to the file itself, which was moved aside.
    Link,
}

impl Impostor {
    /// All of them.
    pub const ALL: [Impostor; 5] = [
        Impostor::Socket,
        Impostor::Fifo,
        Impostor::Device,
        Impostor::Directory,
        Impostor::Link,
    ];

    /// How messages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Impostor::Socket => "a socket",
            Impostor::Fifo => "a FIFO",
            Impostor::Device if !rustix::process::geteuid().is_root() => "a FIFO",
            Impostor::Device => "a device",
            Impostor::Directory => "a directory",
            Impostor::Link => "a symbolic link",
        }
    }

    /// Puts it in place of the file.
    ///
    /// # Errors
    /// What the file system says.
    pub fn put(self, path: &Path) -> std::io::Result<()> {
        if self == Impostor::Link {
            let aside = path.with_extension("aside");
            std::fs::rename(path, &aside)?;
            return std::os::unix::fs::symlink(aside, path);
        }
        std::fs::remove_file(path)?;
        let made = match self {
            Impostor::Directory => {
                std::fs::create_dir(path)?;
                return std::fs::write(path.join("inside"), "x");
            }
            Impostor::Socket => make(libc::S_IFSOCK, path),
            Impostor::Device => match make(libc::S_IFCHR, path) {
                libc::EPERM => make(libc::S_IFIFO, path),
                made => made,
            },
            _ => make(libc::S_IFIFO, path),
        };
        match made {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Makes a file of another kind; the error number, 0 for none.
fn make(kind: libc::mode_t, path: &Path) -> i32 {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return libc::EINVAL;
    };
    // SAFETY: the path is zero-terminated and lives.
    match unsafe { libc::mknod(path.as_ptr(), kind | 0o600, libc::makedev(1, 3)) } {
        0 => 0,
        _ => orcheck_io::errno::last_errno(),
    }
}
