//! Bits that flip in the pool while a job runs: in staged bytes, and in the words, bitmaps and
//! rings before them.
//!
//! How: at a step that the seed chooses, one bit of the pool's memory is flipped through a
//! descriptor of its own, as a stray write or a bad module would. The job has `check_pool`. What it
//! then calls safe must be restartable, bit for bit; a step that is lost, or an engine that gives
//! up with an error, is no failure.

use crate::hooks::{Key, Named};
use orcheck_io::failpoints::{Failpoint, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PAIR, Workload};
use orcheck_jobs::trial::{
    Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

/// Two ranks that share a pool; waits for what a flip took away are short. One writer: the bits
/// flip on its thread, so that nothing is on its way to the disk meanwhile. What flips between
/// check and write is not found, as the documents say.
const SHARED: Workload = Workload {
    name: "2 ranks, 1 node, node + global, check_pool",
    nodes: 1,
    options: "check_pool = true\nlanes_per_node = 1\ntimeout_s = 2.0",
    ..PAIR
};
const CHECKPOINTS: u64 = 4;
/// About as many steps as two checkpoints take.
const STEPS: u64 = 120;
/// Where the chunks begin is a multiple of this, and the words before them are fewer bytes.
const AREA_BYTES: u64 = 2 << 20;

/// Where a bit flips.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// In what ranks staged.
    Data,
    /// In what ranks and engine tell each other.
    Words,
}

const ROWS: [(Place, &str); 2] = [
    (Place::Data, "a bit of staged bytes"),
    (Place::Words, "a bit of words, bitmaps or rings"),
];

/// The pools of this process, each once.
fn pools() -> Vec<File> {
    let mut seen = Vec::new();
    let mut pools = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let is_pool = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().contains("memfd:orcheck-pool"));
        let open = || File::options().read(true).write(true).open(entry.path());
        let Some(Ok(file)) = is_pool.then(open) else {
            continue;
        };
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        if !seen.contains(&inode) {
            seen.push(inode);
            pools.push(file);
        }
    }
    pools
}

/// Flips one bit of a word that is not zero, if a few looks find one.
fn flip(place: Place, random: &mut Random) -> bool {
    let pools = pools();
    let Some(pool) = pools.get(random.below(pools.len() as u64) as usize) else {
        return false;
    };
    let len = pool.metadata().unwrap().len();
    let area = AREA_BYTES.min(len);
    // Not the head, which says how the pool is made and is read once.
    let (from, to) = match place {
        Place::Data => (area, len),
        Place::Words => (64, area),
    };
    let mut block = vec![0; 4096];
    for _ in 0..4000 {
        let at = from + random.below((to - from) / 4096) * 4096;
        let here = (to - at).min(4096) as usize;
        pool.read_exact_at(&mut block[..here], at).unwrap();
        let used: Vec<usize> = (0..here)
            .step_by(8)
            .filter(|&i| block[i..i + 8] != [0; 8])
            .collect();
        if used.is_empty() {
            continue;
        }
        let byte = used[random.below(used.len() as u64) as usize] + random.below(8) as usize;
        let flipped = block[byte] ^ 1 << random.below(8);
        pool.write_all_at(&[flipped], at + byte as u64).unwrap();
        return true;
    }
    false
}

/// Counts snapshots that are whole in the pool, and those whose flush begins.
#[derive(Default)]
struct Seals {
    sealed: Mutex<u64>,
    changed: Condvar,
    taken: AtomicU64,
}

impl Seals {
    /// Whether this step is the begin of flush number `which`; then all snapshots of its checkpoint
    /// are staged.
    fn are_taken(&self, key: &Key, which: u64) -> bool {
        let ranks = u64::from(SHARED.ranks);
        match key.site.as_str() {
            "stage.seal" => {
                *self.sealed.lock().unwrap() += 1;
                self.changed.notify_all();
            }
            "flush.taken" if self.taken.fetch_add(1, Ordering::SeqCst) == which => {
                let wanted = (which / ranks + 1) * ranks;
                let sealed = self.sealed.lock().unwrap();
                let waiting = |sealed: &mut u64| *sealed < wanted;
                let _ = self.changed.wait_timeout_while(sealed, PATIENCE, waiting);
                return true;
            }
            _ => {}
        }
        false
    }
}

fn one(place: Place, number: u64) -> Outcome {
    let mut random = Random::new(seed().wrapping_add(number.wrapping_mul(0x9e37)));
    let scratch = Scratch::in_memory("flips");
    let root = scratch.path();
    let (begin, step) = (2 + random.below(2), random.below(STEPS));
    let counted = AtomicU64::new(0);
    let struck = root.join("struck");
    let random = Mutex::new(random);
    let mark = struck.clone();
    let seals = Seals::default();
    let decide = move |key: &Key, _: &Failpoint| {
        let now = match place {
            Place::Words => counted.fetch_add(1, Ordering::SeqCst) == step,
            // Before one of the snapshots of the next checkpoints is flushed, when all of that
            // checkpoint are staged.
            Place::Data => seals.are_taken(key, step % (2 * u64::from(SHARED.ranks))),
        };
        if now && flip(place, &mut random.lock().unwrap()) {
            // In the process of the run.
            std::fs::write(&mark, "").unwrap();
        }
        Do::Go
    };
    let hook = Named::new(root, Box::new(decide));
    let life = Life::new(SHARED, root, 1, CHECKPOINTS).failpoints(hook.failpoints());
    // A ring that a flip stopped costs every wait its deadline.
    let ended = Child::run(|| {
        life.live(&|checkpoint| {
            if checkpoint == begin {
                hook.arm();
            }
        });
        0
    })
    .wait(3 * PATIENCE);
    Outcome::of(struck.exists(), judge(root, ended))
}

/// The program was not harmed, and the next run finds all that was called safe.
fn judge(root: &Path, ended: Ended) -> Result<Verdict, (Verdict, String)> {
    let story = || told(&Story::read(root));
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return Err((Verdict::Hang, story())),
        ended => return Err((Verdict::HardFail, format!("{ended:?}; {}", story()))),
    }
    let _ = std::fs::remove_file(root.join("struck"));
    heal(&SHARED, root, 2).map(|_| Verdict::Pass)
}

// Breaks if: descriptors are believed although they were changed; or bytes go into a container that
// are not those whose checksum the rank took.
pub fn a_bit_flips_in_the_pool() {
    let mut table = Table::default();
    for (place, row) in ROWS {
        let count = trials(40);
        let outcomes = share(count, &|n| one(place, n as u64));
        let names: Vec<String> = (0..count).map(|n| format!("trial {n}")).collect();
        table.add(row, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("a bit flips in the pool");
}
