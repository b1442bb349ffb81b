//! Tests keys from the kernel's keyrings: each is found where it is and nowhere else; everything
//! else is an error that says so.
//!
//! Each test is a child process with its own session keyring, which disappears with it. An entry of
//! the user's keyring is removed at the end of the test, or expires after a minute.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, unsafe_code)] // keys are written by the test

use orcheck_format::{Error, ErrorKind};
use orcheck_io::rng::random_bytes;
use orcheck_io::user::SecretSource;
use orcheck_testing::impostor::Impostor;
use orcheck_testing::{Child, Ended, Scratch};
use std::ffi::{CString, c_long};
use std::io::Write as _;
use std::time::Duration;

const KEY: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
const REFUSED: i32 = 77;
const PATIENCE: Duration = Duration::from_secs(30);
const SESSION: i32 = libc::KEY_SPEC_SESSION_KEYRING;
const USER: i32 = libc::KEY_SPEC_USER_KEYRING;

/// Adds a key of type "user"; its number, or the error number.
fn add(keyring: i32, name: &str, bytes: &[u8]) -> Result<c_long, i32> {
    let name = CString::new(name).unwrap();
    // SAFETY: both texts end in a zero byte, the bytes are as many as the kernel is told, and all
    // outlive the call.
    let id = unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            bytes.as_ptr(),
            bytes.len(),
            keyring,
        )
    };
    if id > 0 { Ok(id) } else { Err(errno()) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn keyctl(operation: u32, first: c_long, second: c_long) -> c_long {
    // SAFETY: the operations used here take numbers, or a null pointer for a name.
    unsafe { libc::syscall(libc::SYS_keyctl, operation, first, second) }
}

/// A name that nobody else uses.
fn fresh() -> String {
    format!("orcheck-test-{:016x}", u64::from_le_bytes(random_bytes()))
}

fn read(name: &str) -> Result<[u8; 32], Error> {
    let source = SecretSource::parse(&format!("keyring:{name}")).unwrap();
    source.read().map(|secret| *secret.bytes())
}

/// Runs `test` in a child with an empty session keyring, where the kernel gives one.
fn with_session(test: fn()) {
    let child = Child::run(|| {
        if keyctl(libc::KEYCTL_JOIN_SESSION_KEYRING, 0, 0) < 0 {
            let errno = errno();
            // Past the harness, which would keep it to itself.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: the kernel gives no keyring (error {errno})"
            );
            let expected = matches!(errno, libc::ENOSYS | libc::EPERM);
            let error = read(&fresh()).unwrap_err();
            let said = error.kind() == ErrorKind::Unsupported;
            return if expected && said { REFUSED } else { 1 };
        }
        test();
        0
    });
    let ended = child.wait(PATIENCE);
    assert!(matches!(ended, Ended::Exited(0 | REFUSED)), "{ended:?}");
}

// Breaks if: only the user's keyring is searched, or what is read is not decoded as other keys are.
#[test]
fn a_key_of_the_session() {
    with_session(|| {
        let (plain, hex) = (fresh(), fresh());
        add(SESSION, &plain, &KEY).unwrap();
        let digits: String = KEY.iter().map(|byte| format!("{byte:02x}")).collect();
        add(SESSION, &hex, format!("{digits}\n").as_bytes()).unwrap();
        assert_eq!(read(&plain).unwrap(), KEY);
        assert_eq!(read(&hex).unwrap(), KEY);
        // Replaced, as by somebody who changes the key between two runs.
        add(SESSION, &plain, &[7; 32]).unwrap();
        assert_eq!(read(&plain).unwrap(), [7; 32]);
    });
}

/// Where a job does not run in the session of a login, the user's keyring is not linked into that
/// of the session.
// Breaks if: the key is not linked to the thread that reads it.
#[test]
fn a_key_of_the_user() {
    with_session(|| {
        let name = fresh();
        let id = add(SESSION, &name, &KEY).unwrap();
        assert_eq!(keyctl(libc::KEYCTL_SET_TIMEOUT, id, 60), 0);
        assert_eq!(keyctl(libc::KEYCTL_LINK, id, USER.into()), 0);
        assert_eq!(keyctl(libc::KEYCTL_UNLINK, id, SESSION.into()), 0);
        let found = read(&name);
        assert_eq!(keyctl(libc::KEYCTL_UNLINK, id, USER.into()), 0);
        assert_eq!(found.unwrap(), KEY);
        let error = read(&name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    });
}

// Breaks if: a key that is not there, gone or no key looks like one, or the message shows what was
// found.
#[test]
fn what_is_no_key() {
    with_session(|| {
        let refused = |name: &str, word: &str| {
            let error = read(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(word), "{text}");
            assert!(!text.contains("hidden"), "{text}");
        };
        let name = fresh();
        refused(&name, "keyctl padd user");
        let id = add(SESSION, &name, b"hidden, and too short").unwrap();
        refused(&name, "32 bytes");
        add(SESSION, &name, &[b'a'; 300]).unwrap();
        refused(&name, "more than 256 bytes");
        add(SESSION, &name, &KEY).unwrap();
        assert_eq!(read(&name).unwrap(), KEY);
        assert_eq!(keyctl(libc::KEYCTL_REVOKE, id, 0), 0);
        refused(&name, "keyctl padd user");
    });
}

// Breaks if: what cannot be opened is an error of the machine; the user would look for it there.
#[test]
fn what_is_no_file_is_no_key() {
    let scratch = Scratch::new("keys");
    for by in Impostor::ALL.into_iter().filter(|by| *by != Impostor::Link) {
        let path = scratch.path().join(format!("{by:?}"));
        std::fs::write(&path, KEY).unwrap();
        by.put(&path).unwrap();
        let source = SecretSource::parse(&format!("file:{}", path.display())).unwrap();
        let error = source.read().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let what = format!(
            "{}: expected a regular file, found {}",
            path.display(),
            by.name()
        );
        assert!(error.message().contains(&what), "{error}");
    }
}
