//! Tests pool memory written to the disk through io_uring: pinned once, unpinned, or by plain
//! writes, always the same bytes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door
#![allow(unsafe_code)] // a child becomes another user

use orcheck_io::disk::{Create, open_local, read_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_pool::{Pool, PoolShape};
use orcheck_testing::kernel::{Kernel, When};
use orcheck_testing::{Child, Ended, FaultPlan, Pinned, Scratch, hardship};
use std::path::Path;
use std::time::Duration;

const CHUNK_BYTES: u32 = 64 << 10;
/// Chunks of a pool in which each is a run of its own.
const FEW: u32 = 6;
/// Chunks of a pool with runs of eight, the last one shorter.
const MANY: u32 = 70;
const PATIENCE: Duration = Duration::from_secs(20);

fn pool(chunk_count: u32) -> Pool {
    let pool = pool_of(chunk_count);
    pool.populate(0, chunk_count).unwrap();
    pool
}

fn pool_of(chunk_count: u32) -> Pool {
    shared_pool(chunk_count, 0)
}

fn shared_pool(chunk_count: u32, ranks: u32) -> Pool {
    let shape = PoolShape {
        chunk_bytes: CHUNK_BYTES,
        chunk_count,
        words: 0,
        rings: ranks,
        ring_entries: 2 * ranks,
    };
    Pool::create(shape).unwrap()
}

/// Writes chunks, parts of chunks and pieces across chunks, with new contents each time, and reads
/// them back. Whether the file was written past the page cache.
fn write_everything(pool: &Pool, dir: &Path, failpoints: Failpoints) -> bool {
    let dir = open_local(dir, failpoints).unwrap();
    let count = pool.shape().chunk_count;
    let chunks: Vec<_> = (0..count).map(|_| pool.try_take(0).unwrap()).collect();
    let size = u64::from(CHUNK_BYTES);
    let mut direct = false;
    for turn in 0..3u64 {
        let mut all = Vec::new();
        for chunk in &chunks {
            let word = |i| (turn << 48 | u64::from(chunk.index()) << 32 | i) ^ 0x5a5a_5a5a;
            let bytes: Vec<u8> = (0..size / 8).flat_map(|i| word(i).to_le_bytes()).collect();
            pool.put(chunk, 0, &bytes);
            all.extend(bytes);
        }
        let name = format!("turn{turn}");
        let file = dir.create(&name, Create::Direct).unwrap();
        direct |= file.is_direct();
        let mut expected = Vec::new();
        // Whole chunks last to first, a part of one, a piece that spans two, and all of them at
        // once.
        let mut pieces: Vec<(u64, u64)> = (0..u64::from(count)).map(|i| (i * size, size)).collect();
        pieces.reverse();
        pieces.extend([(size + 8192, 4096), (2 * size - 4096, 8192)]);
        pieces.push((0, size * u64::from(count)));
        for (at, len) in pieces {
            pool.write_to(&*file, at, len, expected.len() as u64)
                .unwrap();
            expected.extend(&all[at as usize..(at + len) as usize]);
        }
        file.sync().unwrap();
        file.close().unwrap();
        let found = read_small(&*dir, &name, 1 << 30).unwrap();
        assert!(
            found == expected,
            "turn {turn}: other bytes came to the disk"
        );
    }
    for chunk in chunks {
        pool.give(chunk);
    }
    direct
}

/// Buffers that this process has registered with the kernel; `None` without a ring.
fn pinned_buffers() -> Option<usize> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ring = links
        .filter(|link| {
            std::fs::read_link(link.path()).is_ok_and(|to| to == Path::new("anon_inode:[io_uring]"))
        })
        .map(|link| link.file_name())
        .next()?;
    let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(ring)).unwrap();
    let buffers = info
        .lines()
        .skip_while(|line| !line.starts_with("UserBufs:"));
    Some(
        buffers
            .skip(1)
            .take_while(|line| line.starts_with(' '))
            .filter(|line| line.contains("0x"))
            .count(),
    )
}

/// Runs of the pool that this process may pin.
fn most_pinned(pool: &Pool) -> usize {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let run_bytes = u64::from(pool.run_chunks() * CHUNK_BYTES);
    match getrlimit(Resource::Memlock).current {
        Some(limit)
            if !capabilities(None)
                .unwrap()
                .effective
                .contains(CapabilitySet::IPC_LOCK) =>
        {
            (limit / 4 / run_bytes) as usize
        }
        _ => usize::MAX,
    }
}

fn in_child(work: impl FnOnce() -> i32) {
    assert_eq!(Child::run(work).wait(PATIENCE), Ended::Exited(0));
}

// Breaks if: `piece_of` names another chunk, a span across two chunks passes for one, or a chunk is
// pinned again for each write.
#[test]
fn every_chunk_is_pinned_once() {
    for (chunks, pieces) in [(FEW, 6), (MANY, 9)] {
        let scratch = Scratch::new("uring");
        in_child(|| {
            let pool = pool(chunks);
            let direct = write_everything(&pool, scratch.path(), Failpoints::none());
            let pieces = pieces.min(most_pinned(&pool));
            let pinned = pinned_buffers();
            drop(pool);
            let left = pinned_buffers();
            match (direct, pinned) {
                (true, Some(count)) if count != 0 || pieces == 0 => {
                    i32::from(count != pieces || left.is_some())
                }
                found => {
                    println!("SKIPPED: (direct, pinned) {found:?}: this system writes plainly");
                    i32::from(!direct && pinned.is_some())
                }
            }
        });
    }
}

// Breaks if: a run is pinned with a chunk that has no memory yet; the kernel would put it there
// without a word.
#[test]
fn memory_that_is_not_there_is_not_pinned() {
    let scratch = Scratch::new("holes");
    in_child(|| {
        let pool = pool_of(MANY);
        let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
        let file = dir.create("first", Create::Direct).unwrap();
        let chunk = pool.try_take(0).unwrap();
        pool.put(&chunk, 0, &[7; 4096]);
        let before = rustix::fs::fstat(pool.fd()).unwrap().st_blocks;
        pool.write_to(&*file, 0, 4096, 0).unwrap();
        let after = rustix::fs::fstat(pool.fd()).unwrap().st_blocks;
        let none = pinned_buffers().unwrap_or(0) == 0 && before == after;
        pool.populate(0, pool.run_chunks()).unwrap();
        pool.write_to(&*file, 0, 4096, 0).unwrap();
        let found = pinned_buffers();
        pool.give(chunk);
        i32::from(!none || file.is_direct() && found == Some(0) && most_pinned(&pool) > 0)
    });
}

// Breaks if: what may not be pinned is not written, or the ranks that share a pool pin more than a
// quarter of what the program may lock: it could then register no memory of its own.
#[test]
fn the_program_keeps_its_locked_memory() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can become somebody without rights");
    }
    for (limit_bytes, ranks) in [(0, 1), (192 << 10, 1), (4 << 20, 1), (4 << 20, 2)] {
        let scratch = Scratch::new("unpinned");
        std::os::unix::fs::chown(scratch.path(), Some(65534), Some(65534)).unwrap();
        in_child(|| {
            hardship::limit(hardship::Resource::LockedMemory, limit_bytes).unwrap();
            // SAFETY: changes nothing but this child's identity.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
            let pool = shared_pool(MANY, ranks);
            pool.populate(0, MANY).unwrap();
            let direct = write_everything(&pool, scratch.path(), Failpoints::none());
            let piece = u64::from(pool.run_chunks() * CHUNK_BYTES);
            let found = pinned_buffers().unwrap_or(0) as u64;
            let mut own = orcheck_io::memory::Buffer::zeroed(limit_bytes as usize / 2, 4096);
            let span = orcheck_io::memory::Span::from_mut(&mut own[..]);
            // Where no ring can be had the program has none either.
            let locked =
                limit_bytes < 4 << 20 || Pinned::new(span).is_ok() || pinned_buffers().is_none();
            let expected = found == limit_bytes / 4 / u64::from(ranks) / piece
                || !direct
                || pinned_buffers().is_none();
            i32::from(!locked) | i32::from(!expected) << 1
        });
    }
}

// Breaks if: `Uring::write` takes a refusal of the ring for one of the disk, or continues with a
// ring that holds a write which was not taken.
#[test]
fn calls_of_the_ring_that_fail_cost_nothing_but_time() {
    let scratch = Scratch::new("refused");
    let always = When::Always;
    let enter = libc::SYS_io_uring_enter;
    let register = libc::SYS_io_uring_register;
    let kernels = [
        Kernel::new().without(libc::SYS_io_uring_setup, always, libc::EPERM),
        Kernel::new().without(libc::SYS_io_uring_setup, always, libc::EMFILE),
        Kernel::new().without(enter, always, libc::EAGAIN),
        Kernel::new().without(enter, always, libc::EINTR),
        Kernel::new().without(enter, always, libc::ENOSYS),
        Kernel::new().without(register, always, libc::ENOMEM),
        Kernel::new().without(register, always, libc::EINVAL),
    ];
    for (number, kernel) in kernels.iter().enumerate() {
        let dir = scratch.path().join(number.to_string());
        std::fs::create_dir(&dir).unwrap();
        in_child(|| {
            kernel.apply().unwrap();
            write_everything(&pool(FEW), &dir, Failpoints::none());
            i32::from(pinned_buffers().is_some_and(|count| count > 0))
        });
    }
}

// Breaks if: pool memory takes a way to the disk on which no step is counted; no test could let it
// fail.
#[test]
fn its_writes_are_steps_as_any_other() {
    let scratch = Scratch::new("steps");
    in_child(|| {
        let (plan, failpoints) = FaultPlan::new()
            .at_site(
                "file.write",
                2,
                orcheck_io::failpoints::Verdict::Short(4096),
            )
            .at_site(
                "file.write",
                4,
                orcheck_io::failpoints::Verdict::Fail(libc::EINTR),
            )
            .failpoints();
        let pool = pool(FEW);
        write_everything(&pool, scratch.path(), failpoints);
        let writes = plan
            .seen()
            .iter()
            .filter(|seen| seen.site == "file.write")
            .count();
        // In each of three turns nine pieces; the ring cuts one into two and one into six; one more
        // for the short one and one for the interrupted one.
        let pieces = if pinned_buffers().is_some() { 15 } else { 9 };
        i32::from(writes != 3 * pieces + 2)
    });
}

// Breaks if: a full disk is taken for a refusal of the ring, or its error is lost.
#[test]
fn a_real_error_of_the_disk_is_reported() {
    let scratch = Scratch::new("limit");
    in_child(|| {
        let pool = pool(FEW);
        let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
        let file = dir.create("sparse", Create::Direct).unwrap();
        // Beyond the longest file of any file system here.
        let error = pool.write_to(&*file, 0, 4096, (i64::MAX as u64 - 8191) / 4096 * 4096);
        i32::from(error.is_ok())
    });
}
