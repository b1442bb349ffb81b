//! Maps the operating system's error numbers to the project's error kinds.
//!
//! How: there is one table, so that the same number has the same meaning wherever it appears.
//!
//! Invariants
//! 1. A number that is not in the table becomes `Internal`: never a kind that invites a silent
//!    retry.
//! 2. The message names the attempt first, then the system's text and the number's name.
//!
//! Not here: the kinds themselves (orcheck-format), and which failures are worth another attempt.

use crate::clock::Deadline;
use orcheck_format::{Detail, Error, ErrorKind};
use rustix::io::Errno;
use std::fmt::Display;
use std::time::Duration;

/// The symbolic name of an error number, for messages ("ENOSPC").
#[must_use]
pub(crate) fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EPIPE => "EPIPE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOLCK => "ENOLCK",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ENOBUFS => "ENOBUFS",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ESTALE => "ESTALE",
        libc::EDQUOT => "EDQUOT",
        libc::ESHUTDOWN => "ESHUTDOWN",
        libc::EREMOTEIO => "EREMOTEIO",
        _ => "errno",
    }
}

/// Whether an error means that this user lacks permission.
#[must_use]
pub fn is_denied(error: &Error) -> bool {
    error.is(Detail::Denied)
}

/// The kind that an error number stands for.
#[must_use]
pub(crate) fn errno_kind(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOENT => ErrorKind::NotFound,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EIO
        | libc::ESTALE
        | libc::ETIMEDOUT
        | libc::ENODEV
        | libc::EROFS
        | libc::EACCES
        | libc::EPERM
        | libc::EMFILE
        | libc::ENFILE
        | libc::ENOMEM
        | libc::ENOBUFS
        | libc::EAGAIN
        | libc::EBUSY
        | libc::EINTR
        | libc::ENOLCK
        | libc::EREMOTEIO
        | libc::EPIPE
        | libc::ECONNREFUSED
        | libc::ECONNRESET
        | libc::ECONNABORTED
        | libc::ENETUNREACH
        | libc::EHOSTUNREACH
        | libc::EADDRINUSE
        | libc::EADDRNOTAVAIL
        | libc::ESHUTDOWN => ErrorKind::Unavailable,
        libc::EEXIST
        | libc::ENOTDIR
        | libc::EISDIR
        | libc::ELOOP
        | libc::ENAMETOOLONG
        | libc::EINVAL
        | libc::ENOTEMPTY
        | libc::EXDEV => ErrorKind::Invalid,
        libc::EOPNOTSUPP | libc::ENOSYS => ErrorKind::Unsupported,
        _ => ErrorKind::Internal,
    }
}

/// The error for a failed call to the operating system; `what` says what was attempted, in the
/// infinitive: `write 4096 bytes at offset 0 of /pfs/a/x` gives `write 4096 … of /pfs/a/x failed:
/// No space left on device (ENOSPC)`.
pub fn os_error(errno: i32, what: impl Display) -> Error {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let name = errno_name(errno);
    let error = if name == "errno" {
        Error::new(
            errno_kind(errno),
            format!("{what} failed: {text} (errno {errno})"),
        )
    } else if errno == libc::ENOSYS {
        let missing = "the kernel, a filter of system calls, or the file system does not know this call; Linux 4.18 and newer do";
        Error::new(
            errno_kind(errno),
            format!("{what} failed: {text} ({name}): {missing}"),
        )
    } else if errno == libc::EMFILE {
        // An agent's message is read in another process.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = most.map_or(String::new(), |most| format!(" at most {most}"));
        let pid = std::process::id();
        Error::new(
            errno_kind(errno),
            format!("{what} failed: {text} ({name}): process {pid} may have{most} files open"),
        )
        .with(Detail::Limit)
        .next("raise the limit of open files (`ulimit -n`)")
    } else {
        Error::new(errno_kind(errno), format!("{what} failed: {text} ({name})"))
    };
    match errno {
        libc::EACCES | libc::EPERM => error.with(Detail::Denied),
        _ => error,
    }
}

/// The same for an error number from rustix.
pub fn rustix_error(errno: rustix::io::Errno, what: impl Display) -> Error {
    os_error(errno.raw_os_error(), what)
}

/// The calling thread's last error number, for calls made through libc.
pub fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Repeats a call that a signal interrupted.
pub fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Pauses before the next attempt at something that has no wake-up: briefly at first, then up to 5
/// ms, never past the deadline.
pub fn backoff(attempt: u32, deadline: Deadline) {
    let pause = Duration::from_micros(20u64 << attempt.min(8));
    std::thread::sleep(pause.min(deadline.left()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_attempt_text_and_number() {
        let error = os_error(
            libc::ENOSPC,
            "write 4194304 bytes at offset 8192 of /pfs/a/x.orc",
        );
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(
            error.message(),
            "write 4194304 bytes at offset 8192 of /pfs/a/x.orc failed: No space left on device (ENOSPC)"
        );
        let strange = os_error(libc::EDOM, "compute");
        assert_eq!(strange.kind(), ErrorKind::Internal);
        assert!(strange.message().contains("errno 33"), "{strange}");
    }

    #[test]
    fn every_listed_number_has_its_kind() {
        for (errno, kind) in [
            (libc::ENOENT, ErrorKind::NotFound),
            (libc::EDQUOT, ErrorKind::NoSpace),
            (libc::EIO, ErrorKind::Unavailable),
            (libc::ESTALE, ErrorKind::Unavailable),
            (libc::EROFS, ErrorKind::Unavailable),
            (libc::EMFILE, ErrorKind::Unavailable),
            (libc::EEXIST, ErrorKind::Invalid),
            (libc::ELOOP, ErrorKind::Invalid),
            (libc::EBADF, ErrorKind::Internal),
        ] {
            assert_eq!(errno_kind(errno), kind, "errno {errno}");
        }
    }
}
