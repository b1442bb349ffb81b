//! Runs the thread that keeps rereading a server's data.
//!
//! Each damaged file is one line on standard error. Once per period in which everything is reread,
//! a line reports what was read, if anything; the document at the end of the server has the same
//! counts.
//!
//! Faults survived: a standard error that nobody reads. Nothing waits for the thread, so a disk
//! that hangs delays nobody.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use orcheck_engine::upkeep::scrub::Counts;
use orcheck_engine::upkeep::scrub::{Progress, Scrub};
use orcheck_format::Result;
use orcheck_io::clock::Clock;
use orcheck_io::disk::Pace;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;
use orcheck_staging::server::Stopper;

/// Time between two looks for containers that are new or due.
const LOOK: Duration = Duration::from_secs(60);
/// The same if everything is reread sooner.
const LOOK_LEAST: Duration = Duration::from_millis(100);

/// A running scrub.
pub struct Scrubbed {
    pace: Arc<Pace>,
    progress: Progress,
}

impl Scrubbed {
    /// Ends it soon.
    pub fn stop(&self) {
        self.pace.stop();
    }

    /// The work done so far.
    pub fn counts(&self) -> Counts {
        self.progress.counts()
    }
}

/// Starts to read the directories below `dir` of all tenants of the server, including later ones,
/// at `rate_mib_s`, and each container once per `every`.
///
/// # Errors
/// The error of a directory.
pub fn start(
    dir: &Path,
    rate_mib_s: u32,
    every: Duration,
    server: &Stopper,
    clock: &Arc<dyn Clock>,
) -> Result<Scrubbed> {
    let root = open_dir(dir, Failpoints::none())?;
    let mut watched = server.names();
    let open = |name: &String| Ok((name.clone(), root.child(name, false)?));
    let dirs = watched.iter().map(open).collect::<Result<Vec<_>>>()?;
    let (server, asked) = (server.clone(), server.clone());
    let busy = move |read_bytes| {
        server.set_background_reads(read_bytes);
        server.is_busy()
    };
    let pace = Pace::new(u64::from(rate_mib_s) << 20, Arc::clone(clock), busy);
    let mut scrub = Scrub::new(dirs, &pace, Arc::clone(clock), every);
    let progress = scrub.progress();
    let scrubbed = Scrubbed {
        pace: Arc::clone(&pace),
        progress: progress.clone(),
    };
    let clock = Arc::clone(clock);
    orcheck_io::machine::thread::spawn("orcheck-scrub", move || {
        let (mut told, mut told_at) = (progress.counts(), clock.now());
        loop {
            for name in asked.names() {
                // One that cannot be opened now is tried again.
                if !watched.contains(&name)
                    && let Ok(dir) = root.child(&name, false)
                {
                    scrub.watch(name.clone(), dir);
                    watched.push(name);
                }
            }
            scrub.pass(&mut |damage| say(&format!("{damage}")));
            let now = progress.counts();
            if now.containers > told.containers && clock.now() >= told_at.saturating_add(every) {
                say(&format!("since the start {now}"));
                (told, told_at) = (now, clock.now());
            }
            if !pace.pause(every.clamp(LOOK_LEAST, LOOK)) {
                return;
            }
        }
    })?;
    Ok(scrubbed)
}

fn say(line: &str) {
    // Nobody may be reading it any more.
    let _ = writeln!(std::io::stderr(), "orcheck: scrub: {line}");
}
