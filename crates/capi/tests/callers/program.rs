//! Implements a solver of one rank that uses the C interface as a C program does.

use orcheck::checkpoint::{orc_checkpoint, orc_wait};
use orcheck::regions::{orc_protect, orc_protect_codec};
use orcheck::restart::orc_find;
use orcheck::session::{orc_close, orc_open_v};
use orcheck::types::{ORC_API, orc_codec, orc_status};
use orcheck_format::disk::FileName;
use orcheck_format::{Error, Level};
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::ledger::{Ledger, Story};
use orcheck_jobs::life::{INCREMENTAL, LONG, SOLO, Workload, names};
use orcheck_jobs::payload::{Origin, Payload};
use orcheck_jobs::trial::{Failure, Verdict, told};
use orcheck_testing::Ended;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const U8: c_int = 5;
const F64: c_int = 11;
const SAME: c_int = 2;

unsafe extern "C" {
    fn orc_message() -> *const c_char;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// One rank, one directory.
const PLAIN: Workload = Workload {
    name: "1 rank, global",
    routed: false,
    ..SOLO
};

/// Both levels, a pool of a few chunks, unreadable: most of a checkpoint is staged while others are
/// written.
const SMALL: Workload = Workload {
    name: "1 rank, node + global, encrypted, 4 chunks",
    node_level: true,
    options: "pool = '256 KiB'\ncompress = 'zstd'\nencrypt = 'aes-256-gcm'",
    ..PLAIN
};

/// What the programs are.
pub const WORKLOADS: [Workload; 3] = [PLAIN, SMALL, INCREMENTAL];

/// The text of the calling thread's last call.
pub fn message() -> String {
    // SAFETY: never NULL, and valid until the next call.
    let text = unsafe { CStr::from_ptr(orc_message()) };
    text.to_string_lossy().into_owned()
}

/// Keeps the calling thread from being cancelled, except in [`Program::call`].
pub fn uncancelled() {
    // SAFETY: the old state may be NULL on Linux.
    unsafe { pthread_setcancelstate(1, null_mut()) };
}

/// Ends the calling thread if it was cancelled before. Nothing in the frames above may need to be
/// dropped.
pub fn end_if_cancelled() {
    // SAFETY: 0 is what threads begin with; the caller promises frames that can be left.
    unsafe {
        pthread_setcancelstate(0, null_mut());
        pthread_testcancel();
    }
}

/// Where a thread that takes a checkpoint meets the one that cancels it: nobody comes, one asks,
/// both are there, or it is done.
static MEETING: AtomicU8 = AtomicU8::new(0);

/// Does something while the other thread of this process is in the middle of a checkpoint.
pub fn inside_a_checkpoint(act: impl FnOnce()) {
    MEETING.store(1, Ordering::SeqCst);
    while MEETING.load(Ordering::SeqCst) != 2 {
        std::thread::yield_now();
    }
    act();
    MEETING.store(3, Ordering::SeqCst);
}

fn meet() {
    let asked = MEETING.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst);
    while asked.is_ok() && MEETING.load(Ordering::SeqCst) == 2 {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn size(ctx: *mut c_void, len_bytes: *mut usize) -> c_int {
    // SAFETY: the address that was handed over with the function; a place for a number.
    unsafe {
        pthread_testcancel();
        *len_bytes = (*ctx.cast::<Mutex<Vec<u8>>>()).lock().unwrap().len();
    }
    0
}

unsafe extern "C" fn pack(ctx: *mut c_void, at: usize, dst: *mut c_void, len: usize) -> c_int {
    meet();
    // SAFETY: as above; `dst` has room for `len` bytes.
    unsafe {
        pthread_testcancel();
        let bytes = (*ctx.cast::<Mutex<Vec<u8>>>()).lock().unwrap();
        dst.cast::<u8>()
            .copy_from_nonoverlapping(bytes[at..at + len].as_ptr(), len);
    }
    0
}

unsafe extern "C" fn unpack(_: *mut c_void, _: usize, _: *const c_void, _: usize) -> c_int {
    1
}

/// The calls of a program, by the names that its ledger has.
const CALLS: [&str; 7] = [
    "open",
    "find",
    "protect",
    "protect_codec",
    "checkpoint",
    "wait",
    "close",
];

/// Which call a thread is in, for other threads.
#[derive(Default)]
pub struct Inside {
    /// Above the low byte the number of the last call; in it one more than its place in [`CALLS`]
    /// while it lasts, then 0.
    now: AtomicU64,
}

impl Inside {
    fn enter(&self, name: &str) {
        let place = CALLS.iter().position(|call| *call == name).unwrap() as u64;
        let number = (self.now.load(Ordering::SeqCst) >> 8) + 1;
        self.now.store(number << 8 | (place + 1), Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_and(!0xff, Ordering::SeqCst);
    }

    /// The call that lasted all the time of `act`.
    pub fn throughout(&self, act: impl FnOnce()) -> Option<&'static str> {
        let before = self.now.load(Ordering::SeqCst);
        act();
        let same = self.now.load(Ordering::SeqCst) == before;
        call(before).filter(|_| same)
    }
}

fn call(now: u64) -> Option<&'static str> {
    CALLS.get((now & 0xff).checked_sub(1)? as usize).copied()
}

/// A program in the middle of its life.
pub struct Program<'a> {
    workload: Workload,
    root: &'a Path,
    ledger: Ledger,
    /// Read by other threads.
    session: AtomicPtr<c_void>,
    state: Payload,
    pub step: u64,
    pub inside: Arc<Inside>,
}

impl<'a> Program<'a> {
    /// Not opened yet.
    pub fn new(workload: &Workload, root: &'a Path) -> Self {
        Program {
            workload: *workload,
            root,
            ledger: Ledger::new(root, 1),
            session: AtomicPtr::new(null_mut()),
            state: Payload::blank(0, workload.scale),
            step: 0,
            inside: Arc::default(),
        }
    }

    /// The session; NULL before `open` and after `close`.
    pub fn session(&self) -> &AtomicPtr<c_void> {
        &self.session
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// One call, in which the thread can be cancelled; whether it was `expected`.
    fn call(&self, name: &str, expected: orc_status, call: &mut dyn FnMut() -> orc_status) -> bool {
        self.inside.enter(name);
        // SAFETY: both states are valid; between them there is nothing but the call.
        let status = unsafe {
            pthread_setcancelstate(0, null_mut());
            let status = call();
            pthread_setcancelstate(1, null_mut());
            status
        };
        self.inside.leave();
        if status != expected {
            let text = format!("{status:?}: {}", message());
            self.ledger.error(name, &Error::internal(text));
        }
        status == expected
    }

    fn okay(&self, name: &str, call: &mut dyn FnMut() -> orc_status) -> bool {
        self.call(name, orc_status::ORC_OK, call)
    }

    /// Opens, and finds nothing.
    pub fn open(&self) -> bool {
        let job = self.workload.job(self.root, Failpoints::none());
        let text = format!("{}node_name = 'n0'\n", job.options);
        let options = CString::new(text).unwrap();
        let mut session = null_mut();
        // SAFETY: each pointer is to a live variable of the right type, or NULL where that is
        // allowed.
        let opened = self.okay("open", &mut || unsafe {
            orc_open_v(
                ORC_API,
                &raw mut session,
                c"job".as_ptr(),
                null(),
                options.as_ptr(),
            )
        });
        if !opened {
            return false;
        }
        self.session.store(session.cast(), Ordering::SeqCst);
        for dir in self.workload.job_dirs(self.root) {
            for name in names(&dir) {
                if let Some(FileName::Claim { epoch }) = FileName::parse(&name) {
                    self.ledger.epoch(epoch);
                }
            }
        }
        let mut step = 0;
        // SAFETY: as above.
        let find = &mut || unsafe { orc_find(session, &raw mut step) };
        self.call("find", orc_status::ORC_NOT_FOUND, find);
        self.ledger.resumed(None);
        true
    }

    /// Protects the state of the next step and takes a checkpoint of it; waits until it is safe at
    /// each level.
    pub fn checkpoint(&mut self) {
        self.step += 1;
        let (run, step) = (1, self.step);
        self.state = Payload::new(0, Origin { run, step }, self.workload.scale);
        let session = self.session.load(Ordering::SeqCst);
        let tail: *const Mutex<Vec<u8>> = &raw const *self.state.tail;
        let regions = self.state.memory().map(|(name, bytes)| {
            let (dtype, flags) = match name {
                "small" => (F64, 0),
                "shared" => (U8, SAME),
                _ => (U8, 0),
            };
            let count = if dtype == F64 {
                bytes.len() / 8
            } else {
                bytes.len()
            };
            (
                CString::new(name).unwrap(),
                bytes.as_mut_ptr(),
                dtype,
                count,
                flags,
            )
        });
        for (name, at, dtype, count, flags) in &regions {
            // SAFETY: the memory stays until the next checkpoint was taken, which names it again
            // before.
            self.okay("protect", &mut || unsafe {
                orc_protect(
                    session.cast(),
                    name.as_ptr(),
                    at.cast(),
                    *dtype,
                    *count,
                    *flags,
                )
            });
        }
        let codec = orc_codec {
            struct_size: size_of::<orc_codec>(),
            ctx: tail.cast_mut().cast(),
            size: Some(size),
            pack: Some(pack),
            unpack: Some(unpack),
        };
        // SAFETY: as above.
        self.okay("protect_codec", &mut || unsafe {
            orc_protect_codec(session.cast(), c"tail".as_ptr(), &raw const codec, 0)
        });
        self.ledger.begun(step);
        // SAFETY: an open session.
        if self.okay("checkpoint", &mut || unsafe {
            orc_checkpoint(session.cast(), step)
        }) {
            self.ledger.staged(step);
        }
        for level in self.workload.levels() {
            let number = if level == Level::Global { 4 } else { 2 };
            let limit = LONG.as_secs_f64();
            // SAFETY: as above.
            if self.okay("wait", &mut || unsafe {
                orc_wait(session.cast(), step, number, limit)
            }) {
                self.ledger.acked(step, level);
            }
        }
    }

    /// Closes.
    pub fn close(&self) {
        let session = self.session.swap(null_mut(), Ordering::SeqCst);
        // SAFETY: an open session, which no other call uses from now on.
        if self.okay("close", &mut || unsafe {
            orc_close(session.cast(), LONG.as_secs_f64())
        }) {
            self.ledger.closed();
        }
    }
}

/// Whether a program that nobody killed ended well, and the next run finds what it left.
pub fn judge(workload: &Workload, root: &Path, ended: Ended) -> Result<Verdict, Failure> {
    let story = Story::read(root);
    let mine = story.run(1);
    let fail = |verdict| Err((verdict, format!("{ended:?}; {}", told(&story))));
    match ended {
        Ended::Hung => return fail(Verdict::Hang),
        Ended::Exited(0) if mine.errors.is_empty() && mine.closed => {}
        _ => return fail(Verdict::HardFail),
    }
    orcheck_jobs::trial::heal(workload, root, 2).map(|_| Verdict::Pass)
}
