//! Measures how much stack the calls of a program use, and tests a call on a thread with less.
//!
//! How: the stack below a call is painted before the call and inspected after it.
//!
//! Not here: the program's callbacks, whose stack is additional.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use orcheck::checkpoint::{orc_checkpoint, orc_due, orc_wait};
use orcheck::regions::{orc_alloc, orc_protect};
use orcheck::restart::{orc_find, orc_restart, orc_route, orc_stored};
use orcheck::session::{orc_abandon, orc_close, orc_open_v};
use orcheck::types::{ORC_API, orc_collective, orc_status};
use orcheck_io::machine::thread::{stack_left, stack_of_thread};
use orcheck_testing::Scratch;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

const LONG_S: f64 = 60.0;
const F64: c_int = 11;
/// More than any call uses.
const PAINTED: usize = 512 << 10;

unsafe extern "C" {
    fn orc_message() -> *const c_char;
}

fn message() -> String {
    // SAFETY: never NULL, and valid until the next call.
    let text = unsafe { CStr::from_ptr(orc_message()) };
    text.to_str().unwrap().to_owned()
}

/// Runs it on a thread with this much stack.
fn on_stack<T: Send>(len_bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    let thread = std::thread::Builder::new().stack_size(len_bytes);
    std::thread::scope(|scope| thread.spawn_scoped(scope, work).unwrap().join().unwrap())
}

/// Bytes of stack that a call uses.
#[inline(never)]
fn depth(call: &mut dyn FnMut()) -> usize {
    const PAINT: u8 = 0xa5;
    let low = std::ptr::with_exposed_provenance_mut::<u8>(stack_of_thread().unwrap().start);
    let left = stack_left().unwrap() - 1024;
    for at in 0..left {
        // SAFETY: above the end of the stack, and below this function's part of it.
        unsafe { low.add(at).write_volatile(PAINT) };
    }
    call();
    // SAFETY: as above.
    let used = |at: &usize| unsafe { low.add(*at).read_volatile() } != PAINT;
    left - (0..left).find(used).unwrap()
}

/// What calls have used at most, and the names of those that used most.
#[derive(Default)]
struct Deepest(Vec<(usize, &'static str)>);

impl Deepest {
    fn call(&mut self, name: &'static str, call: &mut dyn FnMut() -> orc_status) -> orc_status {
        let mut status = orc_status::ORC_OK;
        let used = depth(&mut || status = call());
        self.0.push((used, name));
        status
    }

    fn okay(&mut self, name: &'static str, call: &mut dyn FnMut() -> orc_status) {
        let status = self.call(name, call);
        assert_eq!(status, orc_status::ORC_OK, "{name}: {}", message());
    }
}

/// A run that resumes from `found` (0: from nothing), takes three checkpoints and waits until they
/// are safe at `level`.
fn run(
    options: &str,
    collective: *const orc_collective,
    level: c_int,
    found: u64,
    deepest: &mut Deepest,
) {
    let options = CString::new(options).unwrap();
    let mut s = null_mut();
    let mut x = vec![1.5; 100_000];
    let (mut step, mut due, mut len, mut lent) = (0, 0, 0, null_mut());
    let mut path = [0 as c_char; 4096];
    // SAFETY: every pointer is to a live variable of the right type during the call, or NULL where
    // that is allowed; the region outlives the session.
    unsafe {
        let (job, x_name, f_name) = (c"job".as_ptr(), c"x".as_ptr(), c"f".as_ptr());
        deepest.okay("open", &mut || {
            orc_open_v(ORC_API, &raw mut s, job, collective, options.as_ptr())
        });
        deepest.okay("protect", &mut || {
            orc_protect(s, x_name, x.as_mut_ptr().cast(), F64, x.len(), 0)
        });
        deepest.okay("alloc", &mut || orc_alloc(s, 100_000, &raw mut lent));
        let status = deepest.call("find", &mut || orc_find(s, &raw mut step));
        if found == 0 {
            assert_eq!(status, orc_status::ORC_NOT_FOUND, "{}", message());
        } else {
            assert_eq!(status, orc_status::ORC_OK, "{}", message());
            deepest.okay("stored", &mut || {
                orc_stored(s, x_name, null_mut(), &raw mut len)
            });
            deepest.okay("restart", &mut || orc_restart(s, &raw mut step));
            assert_eq!(step, found, "{}", message());
        }
        deepest.okay("due", &mut || orc_due(s, step + 1, &raw mut due));
        deepest.okay("route", &mut || {
            orc_route(s, f_name, path.as_mut_ptr(), path.len())
        });
        std::fs::write(CStr::from_ptr(path.as_ptr()).to_str().unwrap(), "notes").unwrap();
        for next in step + 1..step + 4 {
            deepest.okay("checkpoint", &mut || orc_checkpoint(s, next));
            deepest.okay("wait", &mut || orc_wait(s, next, level, LONG_S));
        }
        let wrong = deepest.call("wait", &mut || orc_wait(s, 999, level, 0.0));
        assert_eq!(wrong, orc_status::ORC_NOT_FOUND);
        deepest.okay("close", &mut || orc_close(s, LONG_S));
    }
}

/// Changes the middle of the newest container.
fn damage(dir: &Path) {
    let files = std::fs::read_dir(dir.join("job")).unwrap().flatten();
    let mut files: Vec<_> = files
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort_by_key(|path| {
        (
            path.metadata().unwrap().len(),
            path.metadata().unwrap().modified().unwrap(),
        )
    });
    let path = files.pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn solo(more: &str) -> Deepest {
    let scratch = Scratch::new("stack");
    for name in ["pfs", "local"] {
        std::fs::create_dir(scratch.path().join(name)).unwrap();
    }
    let key = scratch.path().join("key");
    std::fs::write(
        &key,
        "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\n",
    )
    .unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let root = scratch.path().display();
    let more = more.replace("KEY", &key.display().to_string());
    let options = format!(
        "global = ['{root}/pfs']\nnode_dir = '{root}/local'\npool = '8 MiB'\nchunk = '64 KiB'\nevery_steps = 1\n{more}"
    );
    let mut deepest = Deepest::default();
    on_stack(PAINTED, || {
        run(&options, null(), 4, 0, &mut deepest);
        run(&options, null(), 4, 3, &mut deepest);
        // The newest is good at one level and not at the other.
        damage(&scratch.path().join("pfs"));
        run(&options, null(), 4, 6, &mut deepest);
    });
    deepest
}

/// What each rank brings.
type Words = Vec<Vec<u8>>;

/// Where the ranks of a job meet: the round, what came so far, what came in the last one.
struct Hub {
    met: Mutex<(u64, Words, Words)>,
    all: Condvar,
}

const RANKS: usize = 2;

/// What a rank's collective has as its context.
struct Rank<'a> {
    hub: &'a Hub,
    rank: usize,
}

impl Rank<'_> {
    fn meet(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let mut met = self.hub.met.lock().unwrap();
        let round = met.0;
        // The rank in front, so that an empty word counts too.
        met.1.push([&[self.rank as u8], mine].concat());
        if met.1.len() == RANKS {
            met.2 = std::mem::take(&mut met.1);
            met.2.sort();
            met.2.iter_mut().for_each(|word| *word = word.split_off(1));
            met.0 += 1;
            self.hub.all.notify_all();
        }
        let limit = Duration::from_secs(60);
        let waited = self
            .hub
            .all
            .wait_timeout_while(met, limit, |met| met.0 == round);
        let (met, late) = waited.unwrap();
        assert!(!late.timed_out(), "the other rank did not come");
        met.2.clone()
    }
}

/// The context of a collective.
///
/// # Safety
/// It is what `collective` made, and lives.
unsafe fn rank_of<'a>(ctx: *mut c_void) -> &'a Rank<'a> {
    // SAFETY: as the caller promises.
    unsafe { &*ctx.cast::<Rank<'a>>() }
}

unsafe extern "C" fn bcast(ctx: *mut c_void, buf: *mut c_void, len: usize, root: c_int) -> c_int {
    // SAFETY: the library gives the context and a buffer of this length.
    let (rank, buf) = unsafe {
        (
            rank_of(ctx),
            std::slice::from_raw_parts_mut(buf.cast::<u8>(), len),
        )
    };
    let all = rank.meet(buf);
    buf.copy_from_slice(&all[root as usize]);
    0
}

unsafe extern "C" fn gather(
    ctx: *mut c_void,
    mine: *const c_void,
    len: usize,
    out: *mut c_void,
    root: c_int,
) -> c_int {
    // SAFETY: the library gives the context and buffers of these lengths.
    unsafe {
        let rank = rank_of(ctx);
        let all = rank
            .meet(std::slice::from_raw_parts(mine.cast::<u8>(), len))
            .concat();
        if rank.rank == root as usize {
            out.cast::<u8>()
                .copy_from_nonoverlapping(all.as_ptr(), all.len());
        }
    }
    0
}

unsafe extern "C" fn allreduce_min(ctx: *mut c_void, v: *mut i64, n: usize) -> c_int {
    // SAFETY: the library gives the context and this many numbers.
    let (rank, values) = unsafe { (rank_of(ctx), std::slice::from_raw_parts_mut(v, n)) };
    let mine: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    for other in rank.meet(&mine) {
        for (value, bytes) in values.iter_mut().zip(other.chunks_exact(8)) {
            *value = (*value).min(i64::from_ne_bytes(bytes.try_into().unwrap()));
        }
    }
    0
}

/// Two ranks on two nodes that keep copies of each other.
fn peers() -> Vec<Deepest> {
    let scratch = Scratch::new("stack");
    let hub = Hub {
        met: Mutex::default(),
        all: Condvar::new(),
    };
    let life = |rank: usize| {
        let ctx = Rank { hub: &hub, rank };
        let collective = orc_collective {
            struct_size: size_of::<orc_collective>(),
            ctx: (&raw const ctx).cast_mut().cast(),
            rank: rank as c_int,
            size: RANKS as c_int,
            bcast: Some(bcast),
            gather: Some(gather),
            allreduce_min: Some(allreduce_min),
            release: None,
        };
        let options = format!(
            "node_dir = '{}'\nnode_name = 'n{rank}'\npeers = 1\npool = '8 MiB'\nchunk = '64 KiB'\n",
            scratch.path().display()
        );
        let mut deepest = Deepest::default();
        run(&options, &raw const collective, 3, 0, &mut deepest);
        run(&options, &raw const collective, 3, 3, &mut deepest);
        deepest
    };
    std::thread::scope(|scope| {
        let rank = |rank| scope.spawn(move || on_stack(PAINTED, || life(rank)));
        let ranks = [0, 1].map(rank);
        ranks.map(|rank| rank.join().unwrap()).into()
    })
}

/// What a call on a small stack says that it needs.
fn asked_for() -> usize {
    let said = on_stack(16 << 10, || {
        // SAFETY: nothing is handed over.
        let status = unsafe { orc_checkpoint(null_mut(), 1) };
        assert_eq!(status, orc_status::ORC_INVALID);
        message()
    });
    let number = said.split("a call needs ").nth(1).unwrap();
    number.split('.').next().unwrap().parse().unwrap()
}

// Breaks if: a call uses much more stack than it did; threads that were not refused would crash in
// it.
#[test]
fn what_a_call_asks_for_is_more_than_the_deepest_one_uses() {
    let variants = [
        "",
        "encrypt = 'aes-256-gcm'\nencrypt_key = 'file:KEY'\ncompress = 'zstd'\n",
        "incremental = 'auto'\ncheck_pool = true\n",
    ];
    let mut all: Vec<Deepest> = variants.iter().map(|more| solo(more)).collect();
    all.extend(peers());
    let mut used: Vec<_> = all.into_iter().flat_map(|deepest| deepest.0).collect();
    used.sort_unstable();
    used.reverse();
    let (deepest, call) = used[0];
    let asked = asked_for();
    println!("the deepest call is {call} with {deepest} bytes of {asked}");
    assert!(deepest * 3 / 2 <= asked, "{call}: {deepest} of {asked}");
    // And it is not asked for many times more.
    assert!(deepest * 4 >= asked, "{call}: {deepest} of {asked}");
}

// Breaks if: nobody asks how much stack is left; the call ends the program with SIGSEGV.
#[test]
fn a_call_on_a_stack_that_is_too_small_is_refused() {
    let scratch = Scratch::new("stack");
    let options = format!(
        "global = '{}'\npool = '8 MiB'\nchunk = '64 KiB'",
        scratch.path().display()
    );
    let options = CString::new(options).unwrap();
    let asked = asked_for();
    let mut x = vec![7.0; 1000];
    let mut s = null_mut();
    // SAFETY: every pointer is to a live variable of the right type during the call, or NULL where
    // that is allowed; the region outlives the session.
    unsafe {
        let opened = orc_open_v(
            ORC_API,
            &raw mut s,
            c"job".as_ptr(),
            null(),
            options.as_ptr(),
        );
        assert_eq!(opened, orc_status::ORC_OK, "{}", message());
        let okay = orc_protect(s, c"x".as_ptr(), x.as_mut_ptr().cast(), F64, x.len(), 0);
        assert_eq!(okay, orc_status::ORC_OK, "{}", message());
        let handle = s.expose_provenance();
        for (len_bytes, fits) in [(16 << 10, false), (asked / 2, false), (2 * asked, true)] {
            let (status, said) = on_stack(len_bytes, || {
                let s = std::ptr::with_exposed_provenance_mut(handle);
                (orc_checkpoint(s, len_bytes as u64), message())
            });
            if fits {
                assert_eq!(status, orc_status::ORC_OK, "{said}");
                continue;
            }
            assert_eq!(status, orc_status::ORC_INVALID);
            for part in [
                "orc_checkpoint: ",
                "bytes of this thread's stack are left",
                "OMP_STACKSIZE",
            ] {
                assert!(said.contains(part), "{said}");
            }
            on_stack(len_bytes, || {
                orc_abandon(std::ptr::with_exposed_provenance_mut(handle))
            });
        }
        // The session did not notice: also not that somebody tried to abandon it.
        assert_eq!(
            orc_wait(s, 2 * asked as u64, 4, LONG_S),
            orc_status::ORC_OK,
            "{}",
            message()
        );
        assert_eq!(orc_close(s, LONG_S), orc_status::ORC_OK, "{}", message());
    }
}
