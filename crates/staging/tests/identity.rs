//! Tests the identity of a server's disk: callers and operators notice another disk.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::ErrorKind;
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::{Dir, write_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Key};
use orcheck_staging::open_dir;
use orcheck_staging::server::{Config, Order, Server, Stopper, Tenant};
use orcheck_testing::Scratch;
use orcheck_testing::ports::bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

struct Running {
    at: Address,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Of two tenants, at this address or at a free one.
    fn start(dir: &Path, at: Option<&Address>) -> Self {
        let tenant = |(name, byte): (&str, u8)| Tenant {
            name: name.to_owned(),
            key: Key::new([byte; 32]),
            quota_bytes: None,
        };
        let free = Address::Tcp(([127, 0, 0, 1], 0).into());
        let config = Config {
            address: at.cloned().unwrap_or(free),
            dir: dir.to_path_buf(),
            tenants: [("one", 1), ("two", 2)].map(tenant).to_vec(),
            pieces: 4,
            at_once: 2,
            order: Order::Pulled,
            ordinary_share: 0.0,
        };
        let server = bound(|| Server::bind(&config, Arc::new(SystemClock), Failpoints::none()));
        let (at, stopper) = (server.address(), server.stopper());
        let thread = Some(std::thread::spawn(|| server.run()));
        Self {
            at,
            stopper,
            thread,
        }
    }

    /// What the first tenant calls it.
    fn url(&self, scratch: &Scratch) -> PathBuf {
        let key = scratch.path().join("key");
        std::fs::write(&key, [1; 32]).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let at = self.at.to_string().replace("tcp:", "");
        PathBuf::from(format!("orcheck://{at}?key=file:{}", key.display()))
    }

    fn job_dir(&self, scratch: &Scratch) -> Arc<dyn Dir> {
        let root = open_dir(&self.url(scratch), Failpoints::none()).unwrap();
        root.child("job", true).unwrap()
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

// Breaks if: `check_path` does not ask; what is written after an empty disk took the place of the
// old one would be called safe beside what is gone.
#[test]
fn a_server_before_another_disk_is_told_from_the_one_that_was_opened() {
    let scratch = Scratch::new("identity");
    let disk = scratch.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let server = Running::start(&disk, None);
    let at = server.at.clone();
    let dir = server.job_dir(&scratch);
    dir.check_path().unwrap();
    // The same disk, by another start of the server.
    drop(server);
    let server = Running::start(&disk, Some(&at));
    dir.check_path().unwrap();
    let id = |dir: &Path| {
        let names = std::fs::read_dir(dir).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        names
            .filter(|name| name.ends_with(".id"))
            .collect::<Vec<_>>()
    };
    let first = id(&disk);
    assert!(first.len() == 1 && id(&disk.join("one")) == first && id(&disk.join("two")) == first);
    let number = first[0]
        .trim_start_matches("server-")
        .trim_end_matches(".id");
    // An empty disk in its place, with the directory of the job made again.
    drop(server);
    std::fs::rename(&disk, scratch.path().join("away")).unwrap();
    std::fs::create_dir(&disk).unwrap();
    let server = Running::start(&disk, Some(&at));
    std::fs::create_dir(disk.join("one/job")).unwrap();
    let error = dir.check_path().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for says in [
        "another disk than when this run began",
        number,
        "mount the disk",
    ] {
        assert!(
            error.message().contains(says) || error.to_string().contains(says),
            "{error}"
        );
    }
    // A new caller that knows which disk it wants is refused; one that does not has what is there.
    let url = server.url(&scratch);
    let with_id = PathBuf::from(format!("{}&id={number}", url.display()));
    let error = open_dir(&with_id, Failpoints::none()).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("another disk than the address says"),
        "{error}"
    );
    open_dir(&url, Failpoints::none())
        .unwrap()
        .check_path()
        .unwrap();
    // And an operator who says which disk it is to be.
    let number = u64::from_str_radix(number, 16).unwrap();
    let error = orcheck_staging::server::expect_identity(&disk, number).unwrap_err();
    assert!(
        error
            .message()
            .contains("is not the one that this server had"),
        "{error}"
    );
    orcheck_staging::server::expect_identity(&scratch.path().join("away"), number).unwrap();
}

// Breaks if: the server does not look where its own directory is; a disk that was unmounted under
// it takes checkpoints that its next start does not have.
#[test]
fn a_directory_moved_away_under_its_server_is_an_error_at_the_next_sync() {
    let scratch = Scratch::new("under");
    let disk = scratch.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let server = Running::start(&disk, None);
    let dir = server.job_dir(&scratch);
    write_small(&*dir, "record", b"one").unwrap();
    std::fs::rename(&disk, scratch.path().join("away")).unwrap();
    let error = write_small(&*dir, "record", b"two").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error
            .message()
            .contains("moved away, replaced or unmounted"),
        "{error}"
    );
    std::fs::rename(scratch.path().join("away"), &disk).unwrap();
    write_small(&*dir, "record", b"three").unwrap();
}
