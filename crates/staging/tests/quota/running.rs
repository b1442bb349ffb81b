//! A server of one tenant with a quota, and what its tests share.

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Steps;
use orcheck_net::{Address, Key};
use orcheck_staging::open_dir;
use orcheck_staging::server::{Config, Order, Server, Stopper, Tenant};
use orcheck_testing::Scratch;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const MIB: u64 = 1 << 20;
/// What the tenant may take.
pub const QUOTA: u64 = 10 * MIB;
/// What a name costs.
pub const ENTRY: u64 = 4096;
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn tenant(quota_bytes: Option<u64>) -> Tenant {
    Tenant {
        name: "one".to_owned(),
        key: Key::new([1; 32]),
        quota_bytes,
    }
}

pub struct Running {
    pub at: Address,
    pub stopper: Stopper,
    lines: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(scratch: &Scratch, steps: Steps) -> Self {
        Self::with_quota(scratch, steps, QUOTA)
    }

    pub fn with_quota(scratch: &Scratch, steps: Steps, quota: u64) -> Self {
        Self::with_clock(scratch, steps, Some(quota), Arc::new(SystemClock))
    }

    pub fn with_clock(
        scratch: &Scratch,
        steps: Steps,
        quota: Option<u64>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let config = Config {
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            dir: scratch.path().to_path_buf(),
            tenants: vec![tenant(quota)],
            pieces: 4,
            at_once: 2,
            order: Order::Pulled,
            ordinary_share: 0.0,
        };
        let server = Server::bind(&config, clock, steps).unwrap();
        let (at, stopper) = (server.address(), server.stopper());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&lines);
        server.tell_to(move |line| into.lock().unwrap().push(line.to_owned()));
        let thread = Some(std::thread::spawn(|| server.run()));
        Self {
            at,
            stopper,
            lines,
            thread,
        }
    }

    /// What it told its operator.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// What belongs to the tenant, over connections of its own.
    pub fn open(&self, scratch: &Scratch) -> Arc<dyn Dir> {
        open_dir(self.url(scratch).as_ref(), Steps::none()).unwrap()
    }

    pub fn url(&self, scratch: &Scratch) -> String {
        let key = scratch.path().join("key");
        std::fs::write(&key, [1; 32]).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).unwrap();
        let at = self.at.to_string().replace("tcp:", "orcheck://");
        format!("{at}?key=file:{}", key.display())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 255) as u8).collect()
}

/// What another thread of the server does soon.
pub fn wait_until(so: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < until, "it did not come to be so");
        std::thread::yield_now();
    }
}
