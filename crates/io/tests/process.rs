//! Tests signals, the environment, and the tools for other crates' tests.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::ErrorKind;
use orcheck_io::machine::install_signal;
use orcheck_io::user::{env_var, read_text, write_file};
use orcheck_testing::{Child, Ended, Scratch};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

static PLAIN_CALLS: AtomicU32 = AtomicU32::new(0);
static INFO_CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn plain(signal: i32) {
    PLAIN_CALLS.fetch_add(signal as u32, Ordering::SeqCst);
}

extern "C" fn with_info(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's structure for this signal.
    #[allow(unsafe_code)]
    let number = unsafe { (*info).si_signo };
    INFO_CALLS.fetch_add(number as u32, Ordering::SeqCst);
}

#[allow(unsafe_code)]
fn raise(signal: i32) {
    // SAFETY: sends a signal to this thread.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

#[test]
#[allow(unsafe_code)]
fn a_signal_sets_the_flag_and_reaches_the_earlier_handler() {
    static ONE: AtomicBool = AtomicBool::new(false);
    static TWO: AtomicBool = AtomicBool::new(false);
    static THREE: AtomicBool = AtomicBool::new(false);
    // SAFETY: installs handlers of the right signatures that only touch atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = plain as extern "C" fn(i32) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
        action.sa_sigaction =
            with_info as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    install_signal(libc::SIGUSR1, &ONE).unwrap();
    install_signal(libc::SIGUSR1, &ONE).unwrap();
    install_signal(libc::SIGUSR2, &TWO).unwrap();
    install_signal(libc::SIGWINCH, &THREE).unwrap();
    raise(libc::SIGUSR1);
    raise(libc::SIGUSR2);
    raise(libc::SIGWINCH);
    assert!(
        ONE.load(Ordering::SeqCst) && TWO.load(Ordering::SeqCst) && THREE.load(Ordering::SeqCst)
    );
    // Breaks if: the earlier handler is not called, or with the wrong number of arguments.
    assert_eq!(PLAIN_CALLS.load(Ordering::SeqCst), libc::SIGUSR1 as u32);
    assert_eq!(INFO_CALLS.load(Ordering::SeqCst), libc::SIGUSR2 as u32);
    assert_eq!(
        install_signal(libc::SIGUSR1, &TWO).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    for signal in [libc::SIGKILL, libc::SIGSEGV, 0, -1, 65] {
        assert_eq!(
            install_signal(signal, &ONE).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}

#[test]
fn texts_are_read_up_to_their_limit() {
    let scratch = Scratch::new("text");
    let path = scratch.path().join("config.toml");
    std::fs::write(&path, "a = 1\n").unwrap();
    assert_eq!(read_text(&path, 6).unwrap(), "a = 1\n");
    assert_eq!(read_text(&path, 5).unwrap_err().kind(), ErrorKind::Invalid);
    std::fs::write(&path, [b'a', 0xff]).unwrap();
    assert!(
        read_text(&path, 100)
            .unwrap_err()
            .message()
            .contains("byte 1")
    );
    assert_eq!(
        read_text(&scratch.path().join("none"), 9)
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    assert!(read_text(scratch.path(), 9).is_err());
    assert!(read_text(Path::new("/dev/zero"), 9).is_err());
    assert!(env_var("PATH").is_some());
    assert_eq!(env_var("ORCHECK_NO_SUCH_VARIABLE"), None);
}

#[test]
fn children_report_how_they_ended() {
    assert_eq!(Child::run(|| 7).wait(LIMIT), Ended::Exited(7));
    let park = || {
        Child::run(|| {
            loop {
                std::thread::park();
            }
        })
    };
    let child = park();
    assert!(child.id() > 0);
    child.kill();
    assert_eq!(child.wait(LIMIT), Ended::Signaled(libc::SIGKILL));
    assert_eq!(park().wait(Duration::from_millis(20)), Ended::Hung);
    drop(park());
}

#[test]
fn scratch_directories_leave_nothing() {
    let scratch = Scratch::in_memory("left");
    let path = scratch.path().to_owned();
    std::fs::write(path.join("x"), "y").unwrap();
    drop(scratch);
    assert!(!path.exists());
}

// Breaks if: an attempt that fails leaves its temporary file, or takes what was there.
#[test]
fn a_file_for_the_user_is_there_whole_or_not_at_all() {
    let scratch = Scratch::new("user");
    let path = scratch.path().join("plan.svg");
    for text in ["first", "second and longer", "3"] {
        write_file(&path, text.as_bytes()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    let taken = scratch.path().join("taken.svg");
    std::fs::create_dir(&taken).unwrap();
    let error = write_file(&taken, b"text").unwrap_err();
    assert!(error.message().contains("taken.svg"), "{error}");
    let nowhere = write_file(&scratch.path().join("no/plan.svg"), b"text").unwrap_err();
    assert!(nowhere.message().contains("no/plan.svg"), "{nowhere}");
    let left = std::fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(left, 2, "the file, and the directory that was in the way");
}
