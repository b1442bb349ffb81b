//! Lets processes that no parallel environment connects act as the ranks of a job, such as mounts
//! on several nodes.
//!
//! How: they meet by a file that all of them see. Rank 0 listens, and writes its addresses and a
//! random key there; the others connect and prove that they know the key. Every operation goes
//! through rank 0.
//!
//! Invariants:
//! 1. Only processes of this user take part: the file belongs to it, and nobody else may read it.
//! 2. Once all have met, the file is removed. One that a killed process left is replaced.
//! 3. After a failure, every later operation fails, on all ranks.
//!
//! Faults survived: a rank that dies or does not answer, which is an error of all others; a stale
//! file.
//!
//! Not here: who proves what on a connection (crate `net`).

use crate::collective::operations::Collective;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Rank, Result, hex, parse_hex};
use orcheck_io::clock::{Clock, Deadline, SystemClock};
use orcheck_io::disk::{Contents, Inode, Kernel};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{effective_uid, local_addresses};
use orcheck_io::rng::random_bytes;
use orcheck_net::{Address, Conn, Key, Listener, Received};
use rustix::fs::{FileType, OFlags};
use std::ffi::OsStr;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const TITLE: &str = "orcheck-meeting 1";
/// The longest file of a meeting.
const FILE_BYTES: usize = 16 << 10;
/// The permissions of others on the file.
const OTHERS: u32 = 0o077;
/// Between two attempts to join.
const POLL: Duration = Duration::from_millis(50);
/// For one attempt at one address.
const CONNECT: Duration = Duration::from_secs(2);
const CALM: Patience = Patience {
    most: CONNECT,
    stop: || false,
};
/// Until it is told that others are waited for.
const CALM_TIME: Duration = Duration::from_secs(3);
/// Bytes of a message that travel in one frame.
const FRAME_BYTES: usize = 32 << 10;
/// The longest message of a rank.
const MESSAGE_BYTES: u64 = 64 << 20;

/// The ranks that have met. Clones are the same rank: they share its connections.
#[derive(Clone)]
pub struct Meeting {
    rank: u32,
    size: u32,
    /// The longest silence of another rank.
    patience: Patience,
    links: Arc<Mutex<Links>>,
}

/// How long another rank may be silent.
#[derive(Clone, Copy)]
struct Patience {
    most: Duration,
    /// Ends the waiting.
    stop: fn() -> bool,
}

struct Links {
    /// Of rank 0, those to the others in their order; of another rank, the one to rank 0.
    conns: Vec<Conn>,
    failed: Option<Error>,
}

impl Meeting {
    /// A rank that is alone.
    #[must_use]
    pub fn alone() -> Meeting {
        Meeting::of(0, 1, Vec::new(), CALM)
    }

    fn of(rank: u32, size: u32, conns: Vec<Conn>, patience: Patience) -> Meeting {
        let failed = None;
        let links = Arc::new(Mutex::new(Links { conns, failed }));
        Meeting {
            rank,
            size,
            patience,
            links,
        }
    }

    /// Meets the other ranks by a file that all of them see; waits for them at most `wait`, and
    /// calls `waits` if they do not come at once. Later, a rank that is silent for longer than
    /// `patience` counts as lost. `stop` ends all waiting.
    ///
    /// # Errors
    /// Invalid for a rank that there is not; Unavailable if not all came in time; otherwise the
    /// error of the file.
    pub fn join(
        file: &Path,
        (rank, size): (u32, u32),
        (wait, patience): (Duration, Duration),
        waits: &dyn Fn(),
        stop: fn() -> bool,
    ) -> Result<Meeting> {
        if rank >= size {
            let text = format!("node {rank} of {size}: nodes are counted from 0");
            return Err(Error::invalid(text));
        }
        if size == 1 {
            return Ok(Meeting::alone());
        }
        let told = std::cell::Cell::new(false);
        let (by, calm) = (Deadline::after(wait), Deadline::after(CALM_TIME));
        let over = || {
            if calm.passed() && !told.replace(true) {
                waits();
            }
            by.passed() || stop()
        };
        let conns = match rank {
            0 => lead(file, size, &over)?,
            _ => vec![follow(file, (rank, size), &over)?],
        };
        let most = patience;
        let met = Meeting::of(rank, size, conns, Patience { most, stop });
        met.exchange(&[])?;
        Ok(met)
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the bytes of each rank to all ranks, in the order of ranks. Collective.
    ///
    /// # Errors
    /// Unavailable if a rank is gone or silent; every later call returns the same.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut links = self.links();
        if let Some(error) = &links.failed {
            return Err(error.clone());
        }
        let done = match self.rank {
            0 => collect(&mut links.conns, mine, self.patience),
            _ => contribute(&mut links.conns, (mine, self.size), self.patience),
        };
        done.map_err(|error| {
            let error = error.at("the processes that share this job");
            // The others notice at once.
            links.conns.clear();
            links.failed = Some(error.clone());
            error
        })
    }
}

fn collect(conns: &mut [Conn], mine: &[u8], patience: Patience) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![mine.to_vec()];
    for conn in conns.iter_mut() {
        all.push(receive(conn, patience)?);
    }
    for conn in conns {
        for part in &all {
            send(conn, part, patience)?;
        }
    }
    Ok(all)
}

fn contribute(
    conns: &mut [Conn],
    (mine, size): (&[u8], u32),
    patience: Patience,
) -> Result<Vec<Vec<u8>>> {
    let conn = conns
        .first_mut()
        .ok_or_else(|| Error::internal("no connection to rank 0"))?;
    send(conn, mine, patience)?;
    (0..size).map(|_| receive(conn, patience)).collect()
}

/// Sends a message in frames, each with the number of bytes that follow it.
fn send(conn: &mut Conn, bytes: &[u8], patience: Patience) -> Result<()> {
    let mut left = bytes;
    loop {
        let (frame, rest) = left.split_at(left.len().min(FRAME_BYTES));
        conn.send_bulk(rest.len() as u64, &[frame], patience.most)?;
        if rest.is_empty() {
            return Ok(());
        }
        left = rest;
    }
}

fn receive(conn: &mut Conn, patience: Patience) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let by = Deadline::after(patience.most);
    loop {
        let len = match conn.receive_any(POLL.min(by.left())) {
            Ok(Received::Bytes(len)) => len,
            Ok(Received::Message(_)) => {
                return Err(Error::corrupt("expected bytes, found a message"));
            }
            Err(error) if conn.is_closed() || by.passed() => return Err(error),
            Err(_) if (patience.stop)() => return Err(stopped()),
            Err(_) => continue,
        };
        let mut frame = vec![0; len];
        let left = conn.receive_bulk(&mut frame, patience.most, patience.most)?;
        bytes.extend_from_slice(&frame);
        if left == 0 {
            return Ok(bytes);
        }
        if left.saturating_add(bytes.len() as u64) > MESSAGE_BYTES {
            return Err(Error::corrupt(format!("a message with {left} more bytes")));
        }
    }
}

fn stopped() -> Error {
    Error::unavailable("a signal interrupted the wait")
}

/// Rank 0: lets the others find it, and waits for them.
fn lead(file: &Path, size: u32, over: &dyn Fn() -> bool) -> Result<Vec<Conn>> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let listener = Listener::bind(&Address::Tcp(any))?;
    let key = Key::new(random_bytes());
    let place = Place::of(file)?;
    place.write(&notice(&listener, &key, size)?)?;
    let came = admit(&listener, &key, (size, file), over);
    let removed = place.remove();
    let conns = came?;
    removed?;
    Ok(conns)
}

fn admit(
    listener: &Listener,
    key: &Key,
    (size, file): (u32, &Path),
    over: &dyn Fn() -> bool,
) -> Result<Vec<Conn>> {
    let mut conns: Vec<Option<Conn>> = (1..size).map(|_| None).collect();
    while conns.iter().any(Option::is_none) {
        if over() {
            let came = conns.iter().flatten().count();
            return Err(missing(came + 1, size, file));
        }
        let Some(mut conn) = listener.accept(key, &Failpoints::none(), POLL)? else {
            continue;
        };
        // A process that was killed between the two is not waited for.
        let Ok(said) = receive(&mut conn, CALM) else {
            continue;
        };
        let rank = said.try_into().map(u32::from_le_bytes).unwrap_or(0);
        let free = rank
            .checked_sub(1)
            .and_then(|at| conns.get_mut(at as usize));
        if let Some(free) = free {
            // One that has died since is replaced.
            if free.as_mut().is_none_or(Conn::is_closed) {
                *free = Some(conn);
                continue;
            }
        }
        let text = format!("two mounts say that they are node {rank}");
        return Err(Error::invalid(text).next("give each node a number of its own"));
    }
    Ok(conns.into_iter().flatten().collect())
}

fn missing(came: usize, size: u32, file: &Path) -> Error {
    Error::unavailable(format!("{came} of {size} nodes came to {}", file.display())).next(
        "start one mount on each node, each with its own number, and let all of them see that file",
    )
}

/// What the file says.
fn notice(listener: &Listener, key: &Key, size: u32) -> Result<String> {
    let mut text = format!("{TITLE}\nranks {size}\nkey {}\n", hex(&key.bytes));
    if let Address::Tcp(bound) = listener.address() {
        // Loopback last: the others are on this machine only in tests.
        let mut all = local_addresses()?;
        all.retain(IpAddr::is_ipv4);
        all.sort_by_key(IpAddr::is_loopback);
        for ip in all {
            let at = Address::Tcp(SocketAddr::new(ip, bound.port()));
            let _ = writeln!(text, "address {at}");
        }
    }
    Ok(text)
}

/// Another rank: finds rank 0.
fn follow(file: &Path, (rank, size): (u32, u32), over: &dyn Fn() -> bool) -> Result<Conn> {
    let place = Place::of(file)?;
    loop {
        let last = match place.read() {
            Ok(text) => match call(&text, (rank, size)) {
                Ok(conn) => return Ok(conn),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if last.kind() == orcheck_format::ErrorKind::Invalid {
            return Err(last);
        }
        if over() {
            return Err(last.at(format!("node {rank} found no node 0")).next(
                "start all nodes with the same meeting file (of mounts: --meet), which all of them see",
            ));
        }
        SystemClock.sleep(POLL);
    }
}

fn call(text: &str, (rank, size): (u32, u32)) -> Result<Conn> {
    let torn = || Error::unavailable("the file of the meeting is not whole");
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(Error::invalid(format!(
            "not a file of a meeting: expected {TITLE:?} in its first line"
        )));
    }
    let mut word = |name: &str| {
        let line = lines.next().ok_or_else(torn)?;
        line.strip_prefix(name).map(str::trim).ok_or_else(torn)
    };
    let ranks = word("ranks")?;
    if ranks != size.to_string() {
        // It may be left from another run.
        let text = format!("node 0 waits for {ranks} nodes, and this is one of {size}");
        return Err(Error::unavailable(text).next("give all mounts the same --nodes"));
    }
    let key = Key::new(parse_hex::<32>(word("key")?).ok_or_else(torn)?);
    let mut last = torn();
    for address in lines.filter_map(|line| line.strip_prefix("address ")) {
        let at: Address = address.parse()?;
        let joined = Conn::connect(&at, &key, &Failpoints::none(), CONNECT).and_then(|mut conn| {
            send(&mut conn, &rank.to_le_bytes(), CALM)?;
            Ok(conn)
        });
        match joined {
            Ok(conn) => return Ok(conn),
            Err(error) => last = error,
        }
    }
    Err(Error::unavailable(last.message()))
}

/// Where the file of a meeting is.
struct Place<'a> {
    dir: Inode,
    name: &'a OsStr,
    path: &'a Path,
}

impl<'a> Place<'a> {
    fn of(path: &'a Path) -> Result<Self> {
        let name = path.file_name().ok_or_else(|| {
            Error::invalid(format!("{}: expected the name of a file", path.display()))
        })?;
        let above = match path.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        };
        let dir = Inode::root(above, Failpoints::none())
            .map_err(|errno| rustix_error(errno, above.display()))?;
        Ok(Place { dir, name, path })
    }

    /// Writes it whole, or not at all.
    fn write(&self, text: &str) -> Result<()> {
        // Breaks if: this is not asked; a file of the user would be lost.
        if self.dir.child(self.name).is_ok() && !self.read()?.starts_with(TITLE) {
            return Err(Error::invalid(format!(
                "{}: it is there, and not a file of a meeting",
                self.path.display()
            ))
            .next("name a file that is not there"));
        }
        let mut new = self.name.to_owned();
        new.push(format!(".{}", hex(&random_bytes::<8>())));
        let write = || -> Kernel<()> {
            let fd = self
                .dir
                .create(&new, OFlags::WRONLY | OFlags::EXCL, 0o600)?;
            let file = Contents::new(fd, &Failpoints::none(), "meeting");
            file.write_all(text.as_bytes(), 0)?;
            self.dir.rename(&new, &self.dir, self.name, 0)
        };
        write().map_err(|errno| rustix_error(errno, self.path.display()))
    }

    fn read(&self) -> Result<String> {
        let failed = |errno| rustix_error(errno, self.path.display());
        let file = self.dir.child(self.name).map_err(failed)?;
        let stat = file.stat().map_err(failed)?;
        let regular = FileType::from_raw_mode(stat.st_mode).is_file();
        // Breaks if: this is not asked; anybody could let this process connect to theirs.
        let ours = stat.st_uid == effective_uid() && stat.st_mode & OTHERS == 0;
        if !regular || !ours && !off(Switch::MeetingOwner) {
            return Err(Error::invalid(format!(
                "{}: expected a file of this user that nobody else may read",
                self.path.display()
            )));
        }
        let fd = file
            .open(OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(failed)?;
        let mut bytes = vec![0; FILE_BYTES];
        let len = Contents::new(fd, &Failpoints::none(), "meeting")
            .read(&mut bytes, 0)
            .map_err(failed)?;
        bytes.truncate(len);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn remove(&self) -> Result<()> {
        let removed = self.dir.remove(self.name, false);
        removed.map_err(|errno| rustix_error(errno, self.path.display()))
    }
}

impl Collective for Meeting {
    fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        let mine: &[u8] = if self.rank == root { buf } else { &[] };
        let all = self.exchange(mine)?;
        match all.get(root as usize) {
            Some(bytes) if bytes.len() == buf.len() => buf.copy_from_slice(bytes),
            _ => return Err(Error::corrupt("a broadcast of another length")),
        }
        Ok(())
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let all = self.exchange(mine)?;
        Ok((self.rank == root).then(|| all.concat()))
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        let mine: Vec<u8> = values.iter().flat_map(|one| one.to_le_bytes()).collect();
        for theirs in self.exchange(&mine)? {
            if theirs.len() != mine.len() {
                return Err(Error::corrupt("a reduction of another length"));
            }
            for (value, bytes) in values.iter_mut().zip(theirs.as_chunks::<8>().0) {
                *value = (*value).min(i64::from_le_bytes(*bytes));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;
    use orcheck_testing::Scratch;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    const SOON: Duration = Duration::from_secs(20);

    fn each<T: Send + 'static>(
        file: &Path,
        size: u32,
        work: impl Fn(Result<Meeting>) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let start = |rank| -> JoinHandle<T> {
            let (file, work): (PathBuf, _) = (file.to_owned(), work.clone());
            std::thread::spawn(move || {
                let wait = (SOON, SOON);
                work(Meeting::join(&file, (rank, size), wait, &|| {}, || false))
            })
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn processes_meet_and_work_together() {
        let scratch = Scratch::new("meeting");
        let file = scratch.path().join("meet");
        // Of a run that was killed: nobody listens there.
        let key = "00".repeat(32);
        let stale = format!("{TITLE}\nranks 3\nkey {key}\naddress tcp:127.0.0.1:1\n");
        std::fs::write(&file, stale).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let found = each(&file, 3, |met| {
            let mut met = met.unwrap();
            let rank = met.rank().0;
            let long = vec![rank as u8; 100_000 * rank as usize];
            let all = met.exchange(&long).unwrap();
            assert!(
                all.iter()
                    .zip(0..)
                    .all(|(one, rank)| *one == vec![rank as u8; 100_000 * rank as usize])
            );
            let mut word = [rank as u8; 5];
            met.bcast(&mut word, 2).unwrap();
            let mut least = [i64::from(rank), -i64::from(rank)];
            met.allreduce_min(&mut least).unwrap();
            (word, least, met.gather(&[rank as u8], 1).unwrap())
        });
        assert_eq!(found[0], ([2; 5], [0, -2], None));
        assert_eq!(found[1], ([2; 5], [0, -2], Some(vec![0, 1, 2])));
        assert!(!file.exists());
    }

    #[test]
    fn a_rank_that_is_gone_is_an_error_of_all_others() {
        let scratch = Scratch::new("meeting");
        for gone in [0, 2] {
            let found = each(&scratch.path().join("meet"), 3, move |met| {
                let met = met.unwrap();
                if met.rank().0 == gone {
                    return ErrorKind::Unavailable;
                }
                let first = met.exchange(b"there").unwrap_err();
                assert_eq!(met.exchange(b"again").unwrap_err(), first);
                first.kind()
            });
            assert_eq!(found, [ErrorKind::Unavailable; 3]);
        }
    }

    #[test]
    fn what_is_not_a_meeting_of_this_user_is_refused() {
        let scratch = Scratch::new("meeting");
        let file = scratch.path().join("meet");
        let refused = |rank, size| {
            let wait = (Duration::from_millis(100), SOON);
            Meeting::join(&file, (rank, size), wait, &|| {}, || false)
                .err()
                .unwrap()
        };
        assert_eq!(refused(2, 2).kind(), ErrorKind::Invalid);
        assert_eq!(refused(1, 2).kind(), ErrorKind::NotFound);
        let alone = refused(0, 2);
        assert_eq!(alone.kind(), ErrorKind::Unavailable);
        assert!(alone.message().contains("1 of 2 nodes"), "{alone}");
        assert!(!file.exists());
        std::fs::write(&file, format!("{TITLE}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(1, 2).message().contains("nobody else may read"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(refused(1, 2).kind(), ErrorKind::Unavailable);
        std::fs::write(&file, "something else").unwrap();
        assert!(refused(0, 2).message().contains("not a file of a meeting"));
        assert_eq!(std::fs::read(&file).unwrap(), b"something else");
        assert!(refused(1, 2).message().contains("not a file of a meeting"));
        std::fs::write(&file, format!("{TITLE}\nranks 3\n")).unwrap();
        assert!(refused(1, 2).message().contains("waits for 3"));
    }
}
