//! Tests the keeper's thread on real sockets: owners, readers, strangers, and peers that stop
//! reading.
// Strangers come by sockets of their own.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use orcheck_engine::node::Outcome;
use orcheck_engine::replicas::{
    CREDIT_BYTES, KeeperContext, KeeperThread, KeptReplicas, NodeAt, Others, OthersContext,
    ReplicaStore, Replicas, ReplicasContext,
};
use orcheck_format::disk::FileName;
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, ErrorKind, JobName, NodeId, Rank, Result, RunId, Step, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::{Create, Dir, Ram, read_small};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Address, Conn, Key, Listener, Place, Received, Source};
use orcheck_placement::Domains;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const KEY: Key = Key::new([7; 32]);
const EPOCH: Epoch = Epoch {
    counter: 1,
    run: RunId([3; 16]),
};

fn container(step: u64, node: NodeId) -> String {
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [3; 4],
        node,
        writer: WriterId(0),
    };
    name.to_string()
}

fn content(len: usize) -> Vec<u8> {
    (0..len / 8)
        .flat_map(|i| (i as u64 * 31).to_le_bytes())
        .collect()
}

/// Node 1 with its keeper, and what nodes need to reach it.
struct Holder {
    scratch: Scratch,
    address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<(JoinHandle<Result<()>>, Waker)>,
}

impl Holder {
    fn new(budget_bytes: u64) -> Self {
        Self::with_room(budget_bytes, KeptReplicas::on_disk)
    }

    fn with_room(budget_bytes: u64, room: impl FnOnce(Arc<dyn Dir>) -> KeptReplicas) -> Self {
        Self::with_faults(budget_bytes, room, Failpoints::none())
    }

    fn with_faults(
        budget_bytes: u64,
        room: impl FnOnce(Arc<dyn Dir>) -> KeptReplicas,
        disk: Failpoints,
    ) -> Self {
        let scratch = Scratch::new("keeper");
        let listener =
            Listener::bind(&Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let address = listener.address();
        let context = KeeperContext {
            epoch: EPOCH,
            node: NodeId(1),
            room: Arc::new(room(open_dir(scratch.path(), disk).unwrap())),
            budget_bytes,
            direct: true,
            gathering: None,
            outcome: Box::new(|_| Outcome::Pending),
            key: KEY,
            failpoints: Failpoints::none(),
            stop: Arc::clone(&stop),
        };
        let poller = Poller::new().unwrap();
        let waker = poller.waker();
        let keeper = KeeperThread::new(context, vec![listener], poller);
        let thread = std::thread::spawn(move || keeper.run());
        Self {
            scratch,
            address,
            stop,
            thread: Some((thread, waker)),
        }
    }

    fn dir(&self) -> Arc<dyn Dir> {
        open_dir(self.scratch.path(), Failpoints::none()).unwrap()
    }

    fn nodes(&self, key: &Key) -> Vec<NodeAt> {
        two_nodes(self.address.clone(), key)
    }

    /// What node 0 brings its containers with.
    fn replicas(&self, key: Key, timeout: Duration) -> Arc<Replicas> {
        let context = ReplicasContext {
            job: JobName::new("job").unwrap(),
            epoch: EPOCH,
            own: (Rank(0), NodeId(0)),
            replicas: 1,
            group: None,
            domains: Domains::none(2),
            nodes: self.nodes(&key),
            timeout,
            clock: Arc::new(SystemClock),
            failpoints: Failpoints::none(),
            stop: Arc::default(),
        };
        Replicas::new(context).unwrap()
    }

    fn connect(&self, node: NodeId) -> Conn {
        let mut conn = Conn::connect(&self.address, &KEY, &Failpoints::none(), LONG).unwrap();
        conn.send(
            &Message::Hello {
                rank: Rank(9),
                node,
            },
            LONG,
        )
        .unwrap();
        conn
    }

    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take() {
            Some((thread, waker)) => {
                waker.wake();
                thread.join().unwrap()
            }
            None => Ok(()),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.end().unwrap();
    }
}

/// Node 0, which nobody asks, and node 1 at this address.
fn two_nodes(address: Address, key: &Key) -> Vec<NodeAt> {
    let node = |name: &str, addresses| NodeAt {
        name: name.into(),
        addresses,
        key: key.clone(),
    };
    vec![node("n0", Vec::new()), node("n1", vec![address])]
}

/// Brings a container of node 0 to node 1.
fn bring(replicas: &Arc<Replicas>, own: &Scratch, step: u64, bytes: &[u8]) -> Result<()> {
    let dir = open_dir(own.path(), Failpoints::none()).unwrap();
    let most = bytes.len() as u64 + 4096;
    let dir = replicas.wrap(dir, replicas.holders(Step(step))?, most);
    let file = dir.create(&container(step, NodeId(0)), Create::Direct)?;
    for (n, piece) in bytes.chunks(5 << 20).enumerate() {
        file.write_at(piece, n as u64 * (5 << 20))?;
    }
    file.truncate(bytes.len() as u64)?;
    file.sync()?;
    file.close()
}

#[test]
fn a_container_arrives_and_is_read_back() {
    let (holder, own) = (Holder::new(u64::MAX), Scratch::new("owner"));
    let replicas = holder.replicas(KEY, LONG);
    let bytes = content(CREDIT_BYTES as usize + (9 << 20));
    bring(&replicas, &own, 1, &bytes).unwrap();
    assert!(read_small(holder.dir().as_ref(), &container(1, NodeId(0)), 1 << 30).unwrap() == bytes);
    let context = OthersContext {
        own: (Rank(0), NodeId(0)),
        members: 2,
        asks_own: false,
        nodes: holder.nodes(&KEY),
        timeout: LONG,
        failpoints: Failpoints::none(),
    };
    let holdings = vec![
        Vec::new(),
        vec![(container(1, NodeId(0)), bytes.len() as u64)],
    ];
    // Breaks if: a temporary file is offered; nobody knows when it is whole.
    std::fs::write(holder.scratch.path().join("x.tmp"), b"x").unwrap();
    let listed = holder.nodes(&KEY)[1].list((Rank(0), NodeId(0)), &Failpoints::none(), LONG);
    assert_eq!(listed.unwrap(), holdings[1]);
    let dirs = Others::new(context, &holdings).dirs();
    assert_eq!(dirs.len(), 1);
    let file = dirs[0].open(&container(1, NodeId(0))).unwrap();
    // In order, backwards, and across pieces.
    for (at, len) in [
        (0, bytes.len()),
        (4096, 100),
        (0, 4096),
        (3 << 20, 9 << 20),
        (bytes.len() - 1, 1),
    ] {
        let mut part = vec![0; len];
        file.read_at(&mut part, at as u64).unwrap();
        assert!(part == bytes[at..at + len], "{len} bytes at {at}");
    }
    let error = file
        .read_at(&mut [0; 2], bytes.len() as u64 - 1)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("node n1/"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let (holder, own) = (Holder::new(1 << 20), Scratch::new("owner"));
    let error = bring(&holder.replicas(KEY, LONG), &own, 1, &content(2 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("node 'n1'"), "{error}");
    assert!(holder.dir().list().unwrap().is_empty());
}

// Breaks if: what is held is counted by the keeper alone: prune removes replicas, and their room is
// free again.
#[test]
fn the_room_of_pruned_replicas_is_free_again() {
    let (holder, own) = (Holder::new(3 << 20), Scratch::new("owner"));
    let replicas = holder.replicas(KEY, LONG);
    bring(&replicas, &own, 1, &content(2 << 20)).unwrap();
    let error = bring(&replicas, &own, 2, &content(2 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    holder.dir().remove(&container(1, NodeId(0))).unwrap();
    bring(&replicas, &own, 3, &content(2 << 20)).unwrap();
}

// Breaks if: an owner that goes away is not noticed; what it brought stays, and so does its room.
#[test]
fn an_owner_that_gives_up_leaves_nothing() {
    let (mut holder, own) = (Holder::new(8 << 20), Scratch::new("owner"));
    let replicas = holder.replicas(KEY, LONG);
    let dir = open_dir(own.path(), Failpoints::none()).unwrap();
    let dir = replicas.wrap(dir, vec![NodeId(1)], 8 << 20);
    let file = dir
        .create(&container(1, NodeId(0)), Create::Direct)
        .unwrap();
    file.write_at(&content(1 << 20), 0).unwrap();
    assert_eq!(holder.dir().list().unwrap().len(), 1);
    drop(file);
    // The room is free again for the next one.
    bring(&replicas, &own, 2, &content(2 << 20)).unwrap();
    assert_eq!(holder.dir().list().unwrap().len(), 1);
    holder.end().unwrap();
}

#[test]
fn without_the_key_nobody_comes_in() {
    let (holder, own) = (Holder::new(u64::MAX), Scratch::new("owner"));
    let error = bring(
        &holder.replicas(Key::new([8; 32]), LONG),
        &own,
        1,
        &content(4096),
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(holder.dir().list().unwrap().is_empty());
}

// Breaks if: half-open connections are waited for one after the other.
#[test]
fn a_thousand_strangers_keep_nobody_waiting() {
    let (holder, own) = (Holder::new(u64::MAX), Scratch::new("owner"));
    let Address::Tcp(at) = holder.address else {
        unreachable!()
    };
    let strangers: Vec<TcpStream> = (0..1000)
        .map_while(|_| TcpStream::connect(at).ok())
        .collect();
    assert!(strangers.len() > 900, "{}", strangers.len());
    bring(&holder.replicas(KEY, LONG), &own, 1, &content(4096)).unwrap();
}

// Breaks if: bytes are sent to readers by the thread that takes replicas in.
#[test]
fn who_stops_listening_keeps_nobody_waiting() {
    let (holder, own) = (Holder::new(u64::MAX), Scratch::new("owner"));
    let replicas = holder.replicas(KEY, Duration::from_secs(5));
    bring(&replicas, &own, 1, &content(32 << 20)).unwrap();
    let mut deaf: Vec<Conn> = (0..3).map(|_| holder.connect(NodeId(0))).collect();
    for conn in &mut deaf {
        for slot in 0..8 {
            let fetch = Message::Fetch {
                slot,
                file: container(1, NodeId(0)),
                at_bytes: 0,
                len_bytes: 16 << 20,
            };
            conn.send(&fetch, LONG).unwrap();
        }
    }
    bring(&replicas, &own, 2, &content(4 << 20)).unwrap();
}

// Breaks if: a name is not looked at before it is opened.
#[test]
fn only_files_of_the_job_are_read() {
    let holder = Holder::new(u64::MAX);
    std::fs::write(holder.scratch.path().join("secret"), b"secret").unwrap();
    let mut conn = holder.connect(NodeId(0));
    for (file, kind) in [
        ("secret", ErrorKind::Invalid),
        ("../secret", ErrorKind::Invalid),
        ("epoch-000001.members", ErrorKind::Invalid),
        ("epoch-000001.claim", ErrorKind::NotFound),
    ] {
        let fetch = Message::Fetch {
            slot: 5,
            file: file.into(),
            at_bytes: 0,
            len_bytes: 1,
        };
        conn.send(&fetch, LONG).unwrap();
        match conn.receive(LONG).unwrap() {
            Message::Lost {
                slot: 5,
                kind: found,
                ..
            } => assert_eq!(found, kind, "{file}"),
            other => panic!("{other:?}"),
        }
    }
}

// Breaks if: nonsense of one peer ends the thread, or takes what another one brings with it.
#[test]
fn nonsense_ends_its_connection_only() {
    let (holder, own) = (Holder::new(u64::MAX), Scratch::new("owner"));
    for nonsense in [
        Message::Held { slot: 1 },
        Message::Reserve {
            slot: 0,
            file: container(1, NodeId(0)),
            len_bytes: 1,
        },
        Message::Goodbye { node: NodeId(0) },
    ] {
        let mut conn = holder.connect(NodeId(2));
        conn.send(&nonsense, LONG).unwrap();
        assert_eq!(
            conn.receive(LONG).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert!(conn.is_closed());
    }
    bring(&holder.replicas(KEY, LONG), &own, 1, &content(1 << 20)).unwrap();
}

// Breaks if: a holder that says nothing is waited for without a deadline.
#[test]
fn a_holder_that_says_nothing_is_left_at_the_deadline() {
    let own = Scratch::new("owner");
    let holder = Holder::new(u64::MAX);
    let silent = Listener::bind(&Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    let address = silent.address();
    let stop = Arc::new(AtomicBool::new(false));
    let accepts = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut conns = Vec::new();
            while !stop.load(Ordering::Acquire) {
                conns.extend(
                    silent
                        .accept(&KEY, &Failpoints::none(), Duration::from_millis(50))
                        .unwrap(),
                );
            }
        })
    };
    let context = ReplicasContext {
        job: JobName::new("job").unwrap(),
        epoch: EPOCH,
        own: (Rank(0), NodeId(0)),
        replicas: 1,
        group: None,
        domains: Domains::none(2),
        nodes: two_nodes(address, &KEY),
        timeout: Duration::from_millis(700),
        clock: Arc::new(SystemClock),
        failpoints: Failpoints::none(),
        stop: Arc::default(),
    };
    let error = bring(&Replicas::new(context).unwrap(), &own, 1, &content(4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.message().contains("node 'n1' (asked for room)"),
        "{error}"
    );
    stop.store(true, Ordering::Release);
    accepts.join().unwrap();
    drop(holder);
}

/// Brings bytes of a replica.
fn send_piece(conn: &mut Conn, slot: u32, at_bytes: u64, bytes: &[u8]) {
    let place = Place { slot, at_bytes };
    let poller = Poller::new().unwrap();
    conn.queue_piece(place, bytes.len()).unwrap();
    while !conn
        .push_from(Some(Source::new(place, bytes)), LONG)
        .unwrap()
    {
        poller.wait_for(&[(conn.as_fd(), true)], LONG).unwrap();
    }
}

/// A holder by hand, which reads a container only when told; how many bytes came, all right.
fn hold(
    conn: &mut Conn,
    is_right: impl Fn(u64, &[u8]) -> bool,
    read: impl FnOnce(),
) -> Result<u64> {
    let (mut slot_of, mut came, mut read) = (0, 0, Some(read));
    let poller = Poller::new()?;
    loop {
        match conn.receive_any(LONG)? {
            Received::Message(Message::Hello { .. }) => {}
            Received::Message(Message::Reserve { slot, .. }) => {
                (slot_of, came) = (slot, 0);
                let credit_bytes = 64 << 20;
                conn.send(&Message::Granted { slot, credit_bytes }, LONG)?;
                if let Some(read) = read.take() {
                    read();
                }
            }
            Received::Message(Message::Finish { slot, .. }) => {
                conn.send(&Message::Held { slot }, LONG)?;
                return Ok(came);
            }
            Received::Message(Message::LetGo { .. }) => {}
            Received::Message(other) => panic!("{other:?}"),
            Received::Bytes(len) => {
                let mut bytes = vec![0; len];
                let at = loop {
                    match conn.take_piece(&mut bytes)? {
                        Some(place) => break place.at_bytes,
                        None => drop(poller.wait(&[conn.as_fd()], LONG)?),
                    }
                };
                assert!(is_right(at, &bytes), "slot {slot_of}: wrong bytes at {at}");
                came += len as u64;
            }
        }
    }
}

/// Refuses every write.
struct FullDisk;

impl FailpointHook for FullDisk {
    fn at(&self, step: &Failpoint) -> Verdict {
        match step.site {
            "file.write" => Verdict::Fail(28),
            _ => Verdict::Go,
        }
    }
}

// Breaks if: a write returns while a link still needs its memory; other bytes would be sent under a
// right proof, or the next container would wait behind them.
#[test]
fn bytes_of_a_write_that_fails_are_not_needed_afterwards() {
    let own = Scratch::new("owner");
    let listener = Listener::bind(&Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    let address = listener.address();
    let bytes = content(32 << 20);
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (listener, bytes) = (&listener, &bytes);
        let holder = scope.spawn(move || {
            let accept = || listener.accept(&KEY, &Failpoints::none(), LONG).unwrap();
            let next = || std::iter::repeat_with(accept).flatten().next().unwrap();
            let right = |at: u64, came: &[u8]| *came == bytes[at as usize..][..came.len()];
            let mut conn = next();
            // It reads nothing until the write has failed; then the same connection continues, or
            // it was ended in the middle of a frame.
            let first = hold(&mut conn, right, || {
                let _ = resumed.recv();
            });
            let came = first.or_else(|_| hold(&mut next(), right, || {}));
            assert_eq!(came.unwrap(), bytes.len() as u64);
        });
        let context = ReplicasContext {
            job: JobName::new("job").unwrap(),
            epoch: EPOCH,
            own: (Rank(0), NodeId(0)),
            replicas: 1,
            group: None,
            domains: Domains::none(2),
            nodes: two_nodes(address, &KEY),
            timeout: Duration::from_secs(3),
            clock: Arc::new(SystemClock),
            failpoints: Failpoints::none(),
            stop: Arc::default(),
        };
        let replicas = Replicas::new(context).unwrap();
        let full = open_dir(own.path(), Failpoints::with(Arc::new(FullDisk))).unwrap();
        let dir = replicas.wrap(full, vec![NodeId(1)], 64 << 20);
        let file = dir
            .create(&container(1, NodeId(0)), Create::Direct)
            .unwrap();
        let mut memory = bytes.clone();
        assert!(file.write_at(&memory, 0).is_err());
        memory.fill(9);
        resume.send(()).unwrap();
        bring(&replicas, &own, 2, bytes).unwrap();
        drop(file);
        holder.join().unwrap();
    });
}

fn names(dir: &dyn Dir) -> Vec<String> {
    let entries = dir.list().unwrap().into_iter();
    entries.map(|entry| entry.name).collect()
}

#[test]
fn replicas_lie_where_the_option_says() {
    use ReplicaStore::{Both, Disk, Memory, Spill};
    const MIB: u64 = 1 << 20;
    // Two containers of a MiB each come, with room for one and a half.
    for (store, in_memory, on_disk) in [(Disk, 0, 1), (Memory, 1, 0), (Both, 1, 1), (Spill, 1, 1)] {
        let ram = Arc::new(Ram::default());
        let room = |disk| KeptReplicas::new(disk, Arc::clone(&ram), store, MIB + MIB / 2);
        let budget_bytes = if store == Spill {
            u64::MAX
        } else {
            MIB + MIB / 2
        };
        let mut holder = Holder::with_room(budget_bytes, room);
        let own = Scratch::new("owner");
        let replicas = holder.replicas(KEY, LONG);
        let bytes = content(MIB as usize);
        bring(&replicas, &own, 1, &bytes).unwrap();
        let second = bring(&replicas, &own, 2, &bytes);
        assert_eq!(second.is_ok(), store == Spill, "{store:?}: {second:?}");
        assert_eq!(ram.list().unwrap().len(), in_memory, "{store:?}");
        assert_eq!(names(holder.dir().as_ref()).len(), on_disk, "{store:?}");
        // Breaks if: what is in memory is neither listed nor read; nobody would find it.
        let listed = holder.nodes(&KEY)[1]
            .list((Rank(0), NodeId(0)), &Failpoints::none(), LONG)
            .unwrap();
        assert_eq!(listed.len(), if store == Spill { 2 } else { 1 });
        let context = OthersContext {
            own: (Rank(0), NodeId(0)),
            members: 2,
            asks_own: false,
            nodes: holder.nodes(&KEY),
            timeout: LONG,
            failpoints: Failpoints::none(),
        };
        let dirs = Others::new(context, &vec![Vec::new(), listed]).dirs();
        assert!(read_small(dirs[0].as_ref(), &container(1, NodeId(0)), MIB).unwrap() == bytes);
        holder.end().unwrap();
        // Breaks if: memory keeps what prune removes.
        let room = KeptReplicas::new(holder.dir(), Arc::clone(&ram), store, MIB);
        for name in names(&room) {
            room.remove(&name).unwrap();
        }
        assert!(names(&room).is_empty() && ram.list().unwrap().is_empty());
    }
}

#[test]
fn replicas_in_memory_take_no_more_than_their_room() {
    let scratch = Scratch::new("room");
    let disk = open_dir(scratch.path(), Failpoints::none()).unwrap();
    let ram = Arc::new(Ram::default());
    let room = KeptReplicas::new(disk, Arc::clone(&ram), ReplicaStore::Both, 1 << 20);
    let first = room.create_replica("a", Create::Direct, 1 << 19).unwrap();
    let error = room
        .create_replica("b", Create::Direct, (1 << 19) + 1)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("524288 of 1048576"), "{error}");
    // Breaks if: one that is refused leaves something in either place.
    assert_eq!(names(&room), ["a"]);
    first.close().unwrap();
    let taken = room.create_replica("a", Create::Direct, 1).err().unwrap();
    assert_eq!(
        (taken.kind(), ram.list().unwrap().len()),
        (ErrorKind::Invalid, 1)
    );
}

// Breaks if: a replica has its name from the beginning; a crash on the way would leave what looks
// like a copy.
#[test]
fn half_of_a_replica_has_no_name() {
    let holder = Holder::new(u64::MAX);
    let mut conn = holder.connect(NodeId(0));
    let file = container(1, NodeId(0));
    reserve(&mut conn, &file, 1 << 20);
    send_piece(&mut conn, 1, 0, &content(4096));
    let credit = conn.receive(LONG).unwrap();
    assert!(
        matches!(credit, Message::Credit { slot: 1, .. }),
        "{credit:?}"
    );
    let coming = orcheck_engine::directory::prune::coming_name(&file, EPOCH.counter);
    assert_eq!(names(holder.dir().as_ref()), [coming]);
    let listed = holder.nodes(&KEY)[1]
        .list((Rank(0), NodeId(0)), &Failpoints::none(), LONG)
        .unwrap();
    assert_eq!(listed, []);
    assert_eq!(finish(&mut conn, &content(4096)), Message::Held { slot: 1 });
    assert_eq!(names(holder.dir().as_ref()), [file]);
}

/// Gets room for a file in slot 1.
fn reserve(conn: &mut Conn, file: &str, len_bytes: u64) {
    let reserve = Message::Reserve {
        slot: 1,
        file: file.into(),
        len_bytes,
    };
    conn.send(&reserve, LONG).unwrap();
    let granted = conn.receive(LONG).unwrap();
    assert!(
        matches!(granted, Message::Granted { slot: 1, .. }),
        "{granted:?}"
    );
}

/// Ends the file in slot 1; returns the answer, after what was said about its pieces.
fn finish(conn: &mut Conn, bytes: &[u8]) -> Message {
    let finish = Message::Finish {
        slot: 1,
        len_bytes: bytes.len() as u64,
        crc: orcheck_format::crc64(bytes),
    };
    conn.send(&finish, LONG).unwrap();
    loop {
        match conn.receive(LONG).unwrap() {
            Message::Credit { slot: 1, .. } => {}
            other => return other,
        }
    }
}

/// A disk whose first write waits, and then succeeds or fails.
struct SlowDisk {
    /// Says that the write has begun.
    begun: Mutex<Option<Sender<()>>>,
    end: Mutex<Receiver<Verdict>>,
}

impl SlowDisk {
    fn failpoints() -> (Failpoints, Receiver<()>, Sender<Verdict>) {
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let (begun, end_of) = (Mutex::new(Some(begun)), Mutex::new(ends));
        let disk = Self { begun, end: end_of };
        (Failpoints::with(Arc::new(disk)), begins, end)
    }
}

impl FailpointHook for SlowDisk {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site != "file.write" {
            return Verdict::Go;
        }
        let Some(begun) = self.begun.lock().unwrap().take() else {
            return Verdict::Go;
        };
        begun.send(()).unwrap();
        self.end.lock().unwrap().recv().unwrap()
    }
}

// Breaks if: what comes back from the thread is known by its slot alone; the file of a replica that
// was given up would be written on under the name of the next one.
#[test]
fn a_slot_is_used_again_while_its_old_file_is_written() {
    let (disk, begun, end) = SlowDisk::failpoints();
    let holder = Holder::with_faults(u64::MAX, KeptReplicas::on_disk, disk);
    let mut conn = holder.connect(NodeId(0));
    reserve(&mut conn, &container(1, NodeId(0)), 1 << 20);
    send_piece(&mut conn, 1, 0, &[9; 8192]);
    begun.recv_timeout(LONG).unwrap();
    conn.send(&Message::LetGo { slot: 1 }, LONG).unwrap();
    let second = container(2, NodeId(0));
    reserve(&mut conn, &second, 1 << 20);
    let bytes = content(1 << 20);
    send_piece(&mut conn, 1, 0, &bytes[..4096]);
    end.send(Verdict::Go).unwrap();
    send_piece(&mut conn, 1, 4096, &bytes[4096..]);
    assert_eq!(finish(&mut conn, &bytes), Message::Held { slot: 1 });
    assert_eq!(names(holder.dir().as_ref()), [second.as_str()]);
    assert!(read_small(holder.dir().as_ref(), &second, 1 << 30).unwrap() == bytes);
}

// Breaks if: pieces that wait behind a write that failed are written, or the file stays.
#[test]
fn a_disk_that_fails_with_pieces_on_their_way_costs_one_replica() {
    let (disk, begun, end) = SlowDisk::failpoints();
    let holder = Holder::with_faults(u64::MAX, KeptReplicas::on_disk, disk);
    let mut conn = holder.connect(NodeId(0));
    let bytes = content(1 << 20);
    reserve(&mut conn, &container(1, NodeId(0)), 1 << 20);
    for (n, piece) in bytes.chunks(1 << 18).enumerate() {
        send_piece(&mut conn, 1, (n << 18) as u64, piece);
    }
    begun.recv_timeout(LONG).unwrap();
    end.send(Verdict::Fail(5)).unwrap();
    let lost = finish(&mut conn, &bytes);
    let Message::Lost { slot: 1, text, .. } = &lost else {
        panic!("{lost:?}");
    };
    assert!(text.contains("(EIO)"), "{text}");
    // The connection is as good as before.
    let second = container(2, NodeId(0));
    reserve(&mut conn, &second, 1 << 20);
    send_piece(&mut conn, 1, 0, &bytes);
    assert_eq!(finish(&mut conn, &bytes), Message::Held { slot: 1 });
    assert_eq!(names(holder.dir().as_ref()), [second]);
}
