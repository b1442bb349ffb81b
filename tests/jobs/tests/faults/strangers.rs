//! Strangers and bad peers at every door of a running job: whatever they say, the job takes its
//! checkpoints as if nobody were there.
//!
//! How: a process beside the job looks in `/proc` where the job's processes listen, the lead and
//! the nodes while the job opens, keepers and agents all the time, and strikes each of these doors
//! in turn until the job has ended. Rank 0 takes its next checkpoint only after a round of strikes,
//! so that there are some between any two. Connections of the job lead through a wire of our own
//! (`tap.rs`), from which whoever repeats things has what was said.
//!
//! Or another user holds the names under which the job's agents are reached, before they begin.
//!
//! Not here: peers that know the key and misbehave (`engine/tests/keeper.rs`), bits changed on the
//! way (`net/tests/net`).

use crate::agents::{AGENT_HOSTS, AGENT_PEERS, agents, all_ended};
use crate::processes::{each_rank, ends};
use crate::tap::Wire;
use orcheck_engine::host::agent::{KEY, address};
use orcheck_format::JobName;
use orcheck_format::wire::{AgentMessage, FrameHeader, Message};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::effective_uid;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, RESTARTED, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share_among, told, trials,
};
use orcheck_net::{Address, Conn, Key};
use orcheck_testing::hardship::become_user;
use orcheck_testing::hosts::own_network;
use orcheck_testing::squatter::{Squat, Squatter};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Nodes that reach each other over TCP, in the clear and not.
const PLAIN: Workload = Workload {
    name: "agents, peers(1) over TCP",
    options: "agent = 'join'\nnet = 'tcp'",
    ..AGENT_PEERS
};
const ENCRYPTED: Workload = Workload {
    name: "agents, peers(1) over TCP, encrypted",
    options: "agent = 'join'\nnet = 'tcp'\nnet_encrypt = 'aes-256-gcm'",
    ..AGENT_PEERS
};

const CHECKPOINTS: u64 = 3;
/// Longest wait of a stranger for an answer.
const SOON: Duration = Duration::from_millis(50);
/// Connections that are kept open.
const IDLE: usize = 1000;
/// Another user.
const NOBODY: u32 = 65534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    WrongKey,
    Replayed,
    Truncated,
    Oversized,
    Random,
    Idle,
    NeverReads,
    OtherUser,
}

const ATTACKS: [Attack; 8] = [
    Attack::WrongKey,
    Attack::Replayed,
    Attack::Truncated,
    Attack::Oversized,
    Attack::Random,
    Attack::Idle,
    Attack::NeverReads,
    Attack::OtherUser,
];

/// Where somebody listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Door {
    Tcp(u16),
    Unix(String),
}

/// The doors of all children of a process but one.
fn doors(parent: i32, but: i32) -> BTreeSet<Door> {
    let mut inodes = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let process = entry.path();
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let child = fields.split_whitespace().nth(1) == Some(&parent.to_string());
        if !child || entry.file_name() == *but.to_string() {
            continue;
        }
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten();
        let links = files
            .flatten()
            .filter_map(|file| std::fs::read_link(file.path()).ok());
        inodes.extend(links.filter_map(|link| {
            let name = link.to_str()?.strip_prefix("socket:[")?;
            Some(name.strip_suffix(']')?.to_owned())
        }));
    }
    let table = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut found = BTreeSet::new();
    for row in table("/proc/net/tcp").lines() {
        let fields: Vec<&str> = row.split_whitespace().collect();
        if let [_, at, _, "0A", _, _, _, _, _, inode, ..] = fields[..]
            && inodes.contains(inode)
            && let Some((_, port)) = at.split_once(':')
        {
            found.insert(Door::Tcp(u16::from_str_radix(port, 16).unwrap()));
        }
    }
    for row in table("/proc/net/unix").lines() {
        let fields: Vec<&str> = row.split_whitespace().collect();
        if let [_, _, _, "00010000", _, _, inode, name] = fields[..]
            && inodes.contains(inode)
            && let Some(name) = name.strip_prefix('@')
        {
            found.insert(Door::Unix(name.to_owned()));
        }
    }
    found
}

/// Both kinds of sockets.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Door {
    fn address(&self) -> Address {
        match self {
            Door::Tcp(port) => Address::Tcp((Ipv4Addr::LOCALHOST, *port).into()),
            Door::Unix(name) => Address::Abstract(name.clone()),
        }
    }

    fn is_agent(&self) -> bool {
        matches!(self, Door::Unix(name) if name.starts_with("orcheck-agent-"))
    }

    fn open(&self) -> std::io::Result<Box<dyn Stream>> {
        match self {
            Door::Tcp(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_read_timeout(Some(SOON))?;
                stream.set_write_timeout(Some(SOON))?;
                Ok(Box::new(stream))
            }
            Door::Unix(name) => {
                let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
                stream.set_read_timeout(Some(SOON))?;
                stream.set_write_timeout(Some(SOON))?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Past the handshake of an agent, whose key is no secret, with the number of the first frame
    /// still to be said.
    fn inside(&self) -> Option<UnixStream> {
        if !self.is_agent() {
            return None;
        }
        let conn = Conn::connect(&self.address(), &KEY, &Failpoints::none(), SOON).ok()?;
        let stream = UnixStream::from(conn.detach().0);
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        stream.set_write_timeout(Some(SOON)).ok()?;
        Some(stream)
    }
}

fn hello(random: &mut Random) -> Vec<u8> {
    let mut bytes = b"ORCnet2\n".to_vec();
    bytes.extend((0..32).map(|_| random.next() as u8));
    bytes
}

/// What a stranger does beside the job.
struct Stranger<'a> {
    attack: Attack,
    random: Random,
    /// What the wire has heard.
    said: &'a Path,
    /// Connections that stay.
    kept: Vec<(Door, Box<dyn Stream>)>,
}

impl Stranger<'_> {
    /// Says these bytes and waits until it is sent away, or not answered.
    fn say(&mut self, door: &Door, bytes: &[u8]) -> std::io::Result<()> {
        let mut stream = door.open()?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok(())
    }

    /// The same of somebody who got past the handshake.
    fn say_inside(&mut self, door: &Door, bytes: &[u8]) {
        if let Some(mut stream) = door.inside() {
            let _ = stream.write_all(bytes);
            let _ = stream.read(&mut [0; 64]);
        }
    }

    /// Strikes a door once. What must not happen is an error that the trial ends with.
    fn strike(&mut self, door: &Door) -> Result<(), String> {
        let _ = match self.attack {
            Attack::WrongKey => {
                let key = Key {
                    bytes: [9; 32],
                    encrypt: self.random.below(2) == 0,
                };
                let came = Conn::connect(&door.address(), &key, &Failpoints::none(), SOON);
                if came.is_ok() {
                    return Err(format!(
                        "{door:?} let somebody in who does not know the key"
                    ));
                }
                Ok(())
            }
            Attack::Replayed => self.replay(door),
            Attack::Truncated => self.cut_off(door),
            Attack::Oversized => {
                let header = FrameHeader {
                    kind: 1,
                    flags: 0,
                    len_bytes: u32::MAX,
                    seq: 0,
                };
                self.say_inside(door, &[&header.encode()[..], &[0; 4096]].concat());
                let mut bytes = hello(&mut self.random);
                bytes.resize(1 << 20, 0x55);
                self.say(door, &bytes)
            }
            Attack::Random => {
                let count = 1 + self.random.below(3000);
                let bytes: Vec<u8> = (0..count).map(|_| self.random.next() as u8).collect();
                self.say_inside(door, &bytes);
                self.say_inside(door, &self.frame_like(&bytes));
                self.say(door, &bytes)
            }
            Attack::Idle => self.crowd(door, IDLE, &[]),
            Attack::NeverReads => {
                if let Some(stream) = door.inside()
                    && let Ok(mut stream) = stream.try_clone()
                {
                    // Questions until no more are taken, by somebody whose proofs are right.
                    self.ask_on(door);
                    let _ = stream.flush();
                }
                let bytes = hello(&mut self.random);
                self.crowd(door, 100, &bytes)
            }
            Attack::OtherUser => {
                let child = Child::run(|| other_user(door));
                if child.wait(PATIENCE) != Ended::Exited(0) {
                    return Err(format!("{door:?} let another user in"));
                }
                Ok(())
            }
        };
        Ok(())
    }

    /// Random bytes behind a header that fits them.
    fn frame_like(&self, bytes: &[u8]) -> Vec<u8> {
        let header = FrameHeader {
            kind: bytes[0],
            flags: 0,
            len_bytes: bytes.len().saturating_sub(16) as u32,
            seq: 0,
        };
        [&header.encode()[..], bytes].concat()
    }

    /// Says again what callers of the job have said: all at once, and in turn.
    fn replay(&mut self, door: &Door) -> std::io::Result<()> {
        let recordings = std::fs::read_dir(self.said)?.flatten();
        let recordings: Vec<Vec<u8>> = recordings
            .filter_map(|entry| std::fs::read(entry.path()).ok())
            .filter(|bytes| bytes.len() > 72)
            .collect();
        for bytes in &recordings {
            self.say(door, bytes)?;
            let mut stream = door.open()?;
            stream.write_all(&bytes[..40])?;
            let _ = stream.read_exact(&mut [0; 64]);
            stream.write_all(&bytes[40..])?;
            let _ = stream.read(&mut [0; 64]);
        }
        Ok(())
    }

    /// Ends in the middle of each part of a handshake, and of a frame.
    fn cut_off(&mut self, door: &Door) -> std::io::Result<()> {
        for cut in [0, 1, 7, 8, 39] {
            let bytes = hello(&mut self.random);
            door.open()?.write_all(&bytes[..cut])?;
        }
        for cut in [0, 1, 31] {
            let mut stream = door.open()?;
            stream.write_all(&hello(&mut self.random))?;
            let _ = stream.read_exact(&mut [0; 64]);
            stream.write_all(&[7; 32][..cut])?;
        }
        let frame = self.frame_like(&[7; 400]);
        for cut in [1, 19, 20, 21, 300] {
            if let Some(mut stream) = door.inside() {
                stream.write_all(&frame[..cut])?;
            }
        }
        Ok(())
    }

    /// Keeps this many connections open, each of which begins with `bytes`.
    fn crowd(&mut self, door: &Door, count: usize, bytes: &[u8]) -> std::io::Result<()> {
        let here = self.kept.iter().filter(|(at, _)| at == door).count();
        for _ in here..count {
            let mut stream = door.open()?;
            stream.write_all(bytes)?;
            self.kept.push((door.clone(), stream));
        }
        Ok(())
    }

    /// Asks an agent until it takes no more, and takes no answer.
    fn ask_on(&mut self, door: &Door) {
        let conn = Conn::connect(&door.address(), &KEY, &Failpoints::none(), SOON);
        let Ok(mut conn) = conn else { return };
        let ask = Message::Agent(AgentMessage::Status);
        while conn.send(&ask, Duration::from_millis(20)).is_ok() {}
        self.kept
            .push((door.clone(), Box::new(UnixStream::from(conn.detach().0))));
    }
}

/// Knocks as another user, who knows the agent's key; 0 when nobody opens.
fn other_user(door: &Door) -> i32 {
    if become_user(NOBODY).is_err() {
        return 2;
    }
    let key = if door.is_agent() {
        KEY
    } else {
        Key::new([9; 32])
    };
    if Conn::connect(&door.address(), &key, &Failpoints::none(), SOON).is_ok() {
        return 1;
    }
    // Without the library's politeness: on a Unix socket not even the challenge is answered.
    let (Door::Unix(_), Ok(mut stream)) = (door, door.open()) else {
        return 0;
    };
    let _ = stream.write_all(&hello(&mut Random::new(1)));
    i32::from(stream.read_exact(&mut [0; 64]).is_ok())
}

/// Strikes all doors of the job's processes, again and again. Each round that found doors of both
/// kinds is told.
fn besiege(
    attack: Attack,
    (parent, wire): (i32, i32),
    root: &Path,
    seed: u64,
    told: &UnixStream,
) -> ! {
    let said = root.join("said");
    let mut stranger = Stranger {
        attack,
        random: Random::new(seed),
        said: &said,
        kept: Vec::new(),
    };
    told.set_nonblocking(true).unwrap();
    loop {
        let doors = doors(parent, wire);
        let both = doors.iter().any(|door| matches!(door, Door::Tcp(_)))
            && doors.iter().any(Door::is_agent);
        for door in &doors {
            if let Err(text) = stranger.strike(door) {
                std::fs::write(root.join("breach"), text).unwrap();
            }
        }
        // Doors that are closed keep nothing.
        stranger.kept.retain(|(door, _)| doors.contains(door));
        if both {
            let _ = (&*told).write(b"r");
        }
    }
}

fn besieged(workload: Workload, attack: Attack, seed: u64) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("strangers");
    let root = scratch.path();
    let parent = std::process::id() as i32;
    let wire = Wire::lay(&root.join("said"), None);
    let (rounds, told_rounds) = UnixStream::pair().unwrap();
    rounds.set_read_timeout(Some(PATIENCE)).unwrap();
    let agents = agents(workload, root, None);
    let stranger = Child::run(|| besiege(attack, (parent, wire.id()), root, seed, &told_rounds));
    let children = each_rank(workload.ranks, |rank, mine| {
        let life = Life::new(workload, root, 1, CHECKPOINTS);
        life.live_one(wire.tap(mine), &|number| {
            if rank == 0 && (1..RESTARTED).contains(&number) {
                // A round since the last checkpoint: what was told before does not count.
                rounds.set_nonblocking(true).unwrap();
                while matches!((&rounds).read(&mut [0; 64]), Ok(1..)) {}
                rounds.set_nonblocking(false).unwrap();
                (&rounds).read_exact(&mut [0]).unwrap();
            }
        });
    });
    let ended = ends(children);
    let struck_to_the_end = !stranger.has_ended();
    drop(stranger);
    let story = Story::read(root);
    let run = story.run(1);
    if let Ok(text) = std::fs::read_to_string(root.join("breach")) {
        return Err((Verdict::SilentWrong, text));
    }
    let fail = |verdict| Err((verdict, format!("{ended:?}; {}", told(&story))));
    if ended.contains(&Ended::Hung) {
        return fail(Verdict::Hang);
    }
    if ended.iter().any(|end| *end != Ended::Exited(0)) || !struck_to_the_end {
        return fail(Verdict::HardFail);
    }
    if !run.closed || !run.errors.is_empty() || run.acked.len() as u64 != CHECKPOINTS {
        return fail(Verdict::LostWork);
    }
    all_ended(agents)?;
    // The job was ended in order: the next run has agents of its own.
    let next = crate::agents::agents(workload, root, None);
    heal(&workload, root, 2)?;
    all_ended(next)
}

// Breaks if: a door waits for one who came in, a stranger's end is an error of the job, or a proof
// is not looked at.
pub fn strangers_at_every_door() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let root = effective_uid() == 0;
    if !root {
        println!("  SKIPPED OtherUser: needs root to become another user");
    }
    let attacks: Vec<Attack> = ATTACKS
        .into_iter()
        .filter(|attack| root || *attack != Attack::OtherUser)
        .collect();
    // The doors are the same: encrypted, a part of the attacks in the quick check.
    for (workload, quick) in [(PLAIN, attacks.len()), (ENCRYPTED, 2)] {
        let count = trials(quick);
        let attack = |n: usize| attacks[(seed as usize).wrapping_add(n) % attacks.len()];
        let outcomes = share_among(2, count, &|n| {
            let seed = seed.wrapping_add(n as u64);
            Outcome::of(true, besieged(workload, attack(n), seed))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("{:?}, seed {}", attack(n), seed.wrapping_add(n as u64)))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("strangers at every door while checkpoints are taken");
}

/// A frame of the job itself is sent twice on its own connection, to the lead and to each holder.
fn repeated(workload: Workload, nth: u64) -> Outcome {
    let scratch = Scratch::in_memory("strangers");
    let root = scratch.path();
    let said = root.join("said");
    let wire = Wire::lay(&said, Some(nth));
    let agents = agents(workload, root, None);
    let children = each_rank(workload.ranks, |_, mine| {
        Life::new(workload, root, 1, CHECKPOINTS).live_one(wire.tap(mine), &|_| {});
    });
    let ended = ends(children);
    let names = std::fs::read_dir(&said).unwrap().flatten();
    let struck = names
        .filter(|entry| entry.path().extension().is_some())
        .count();
    let judge = || {
        let story = Story::read(root);
        if let Some(ended) = ended.iter().find(|ended| **ended != Ended::Exited(0)) {
            let hung = *ended == Ended::Hung;
            let verdict = if hung {
                Verdict::Hang
            } else {
                Verdict::HardFail
            };
            return Err((verdict, format!("{ended:?}; {}", told(&story))));
        }
        // Whoever is on the way can always cut the line: steps may be lost, but not silently.
        let acked = story.run(1).acked.len() as u64;
        if acked < CHECKPOINTS && story.run(1).errors.is_empty() {
            return Err((Verdict::LostWork, told(&story)));
        }
        // Agents of a run that was ended in order are gone; others wait for the next run.
        let mut next = Vec::new();
        for (node, agent) in (0..).zip(agents) {
            if story.run(1).closed {
                all_ended(vec![agent])?;
                next.push(crate::agents::agent(workload, root, node, None));
            } else {
                next.push(agent);
            }
        }
        heal(&workload, root, 2)?;
        all_ended(next)
    };
    Outcome::of(struck > 0, judge())
}

// Breaks if: the number of a frame is not compared; what was said twice would be counted twice.
pub fn frames_that_are_repeated_on_their_way() {
    let mut table = Table::default();
    for workload in [PLAIN, ENCRYPTED] {
        let count = trials(2).min(8);
        let outcomes = share_among(2, count, &|n| repeated(workload, n as u64));
        let names: Vec<String> = (0..count).map(|n| format!("frame {n}")).collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("a frame of the job is repeated on its way");
}

/// What another user does with the names; decoys look like names of agents too.
const MANNERS: [Squat; 3] = [Squat::Listens, Squat::Idle, Squat::Full];
/// Decoys for each name.
const DECOYS: u64 = 100;

/// The job begins, and is restarted, while another user holds the first name of every agent and
/// many like them.
fn squatted(workload: Workload, squat: Squat, seed: u64) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("squatted");
    let root = scratch.path();
    let place = if workload.dirs > 0 { "ost0" } else { "local" };
    let job = JobName::new("job").unwrap();
    let mut random = Random::new(seed);
    let mut names = Vec::new();
    for node in 0..workload.nodes {
        let first = address(&job, &format!("n{node}"), &root.join(place));
        let Address::Abstract(first) = first else {
            unreachable!()
        };
        names.push((first.clone().into_bytes(), squat));
        for decoy in 0..DECOYS {
            let name = format!("{first}-{:016x}{:016x}", random.next(), random.next());
            let squat = MANNERS[(decoy % 3) as usize];
            names.push((name.into_bytes(), squat));
        }
        // The kernel shows it as it is: the list is no text.
        names.push(([first.as_bytes(), b"\xff\n@x"].concat(), squat));
    }
    // Jobs of other tests on this machine have their names to themselves.
    own_network().unwrap();
    let squatter = Squatter::hold(NOBODY, &names);
    let agents = agents(workload, root, None);
    let ended = ends(each_rank(workload.ranks, |_, mine| {
        Life::new(workload, root, 1, CHECKPOINTS).live_one(mine, &|_| {});
    }));
    let story = Story::read(root);
    let run = story.run(1);
    if ended.contains(&Ended::Hung) {
        return Err((Verdict::Hang, told(&story)));
    }
    if ended.iter().any(|end| *end != Ended::Exited(0)) || !run.errors.is_empty() || !run.closed {
        return Err((Verdict::HardFail, format!("{ended:?}; {}", told(&story))));
    }
    if run.acked.len() != CHECKPOINTS as usize * workload.levels().len() {
        return Err((Verdict::LostWork, told(&story)));
    }
    all_ended(agents)?;
    let next = crate::agents::agents(workload, root, None);
    heal(&workload, root, 2)?;
    all_ended(next)?;
    drop(squatter);
    Ok(Verdict::Pass)
}

// Breaks if: a name that another user holds counts as taken, or as that of an agent.
pub fn names_of_agents_that_another_user_holds() {
    if effective_uid() != 0 {
        println!("  SKIPPED: needs root to become another user");
        return;
    }
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [AGENT_HOSTS, AGENT_PEERS] {
        let count = trials(3);
        let manner = |n: usize| MANNERS[n % MANNERS.len()];
        let outcomes = share_among(2, count, &|n| {
            let seed = seed.wrapping_add(n as u64);
            Outcome::of(true, squatted(workload, manner(n), seed))
        });
        let names: Vec<String> = (0..count).map(|n| format!("{:?}", manner(n))).collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("another user holds the names of the agents");
}
