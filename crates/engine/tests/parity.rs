//! Tests parity files: how they are gathered from the members of a group, and what is computed from
//! them when files are lost or damaged.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use orcheck_engine::replicas::{
    GatherAction, Gatherer, Gathering, Part, Picks, Rebuilt, verify_parity,
};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName, ParityGroup, ParityTrailer};
use orcheck_format::wire::Message;
use orcheck_format::{
    Crc64, Epoch, Error, ErrorKind, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId,
    crc64,
};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_placement::parity::Code;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EPOCH: Epoch = Epoch {
    counter: 3,
    run: RunId([5; 16]),
};
const UNIT: u64 = 4096;
const ALL: u64 = u64::MAX;

fn container(node: u32) -> FileName {
    FileName::Container {
        step: Step(7),
        epoch: EPOCH.counter,
        run: EPOCH.run.short_bytes(),
        node: NodeId(node),
        writer: WriterId(0),
    }
}

fn parity(node: u32) -> String {
    container(0).parity_on(NodeId(node)).unwrap().to_string()
}

/// Numbers that only look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

fn group(members: u32, parity: u8) -> ParityGroup {
    ParityGroup {
        nodes: (0..members).map(NodeId).collect(),
        parity,
        unit_bytes: UNIT as u32,
    }
}

fn gatherer(group: &ParityGroup, node: u32, has: &dyn Fn(u32) -> bool) -> Gatherer {
    Gatherer::new(Gathering {
        job: JobName::new("job").unwrap(),
        epoch: EPOCH,
        node: NodeId(node),
        group: Arc::new(group.clone()),
        writers: (0..group.members())
            .map(|one| u32::from(has(one)))
            .collect(),
        code: Arc::new(Code::new(group.data(), group.parity.into()).unwrap()),
    })
}

/// What one member sends to one holder, as messages come: as far as its credit allows.
struct Sender {
    holder: u32,
    place: (u32, u32),
    stream: Vec<u8>,
    len_bytes: u64,
    sent: u64,
    credit: u64,
    finished: bool,
    held: bool,
    lost: Option<String>,
}

/// The members of a group, and the parity files that they make.
struct World {
    gatherers: Vec<Gatherer>,
    senders: Vec<Sender>,
    files: BTreeMap<String, Vec<u8>>,
    /// Files that have been completed.
    whole: BTreeSet<String>,
}

impl World {
    fn new(group: &ParityGroup, containers: &[Vec<u8>]) -> Self {
        let has = |member: u32| !containers[member as usize].is_empty();
        let members = 0..group.members();
        let mut world = World {
            gatherers: members
                .clone()
                .map(|one| gatherer(group, one, &has))
                .collect(),
            senders: Vec::new(),
            files: BTreeMap::new(),
            whole: BTreeSet::new(),
        };
        for member in members.clone().filter(|&one| has(one)) {
            for holder in members.clone() {
                let bytes = &containers[member as usize];
                let part = Part::Blocks(Picks::of(group, member, holder));
                let ranges = part.ranges(0, part.bytes_of(bytes.len() as u64));
                let stream: Vec<u8> = (ranges.into_iter())
                    .flat_map(|(at, len)| bytes[at as usize..(at + len) as usize].to_vec())
                    .collect();
                let place = (member, holder);
                world.senders.push(Sender {
                    holder,
                    place,
                    stream,
                    len_bytes: bytes.len() as u64,
                    sent: 0,
                    credit: 0,
                    finished: false,
                    held: false,
                    lost: None,
                });
                let file = (parity(holder), bytes.len() as u64);
                let actions = world.gatherers[holder as usize].reserve(
                    place,
                    Some(NodeId(member)),
                    file,
                    ALL,
                );
                world.act(holder, actions);
            }
        }
        world
    }

    fn act(&mut self, holder: u32, actions: Vec<GatherAction>) {
        let mut actions: VecDeque<GatherAction> = actions.into();
        while let Some(action) = actions.pop_front() {
            match action {
                GatherAction::Create(name, _) => {
                    assert!(self.files.insert(name, Vec::new()).is_none());
                }
                GatherAction::Grow(name, from, to) => {
                    assert!(from < to && self.files.contains_key(&name));
                }
                GatherAction::Write(name, at, bytes) => {
                    let file = self.files.get_mut(&name).unwrap();
                    assert_eq!(file.len() as u64, at, "rows leave in order");
                    file.extend_from_slice(&bytes);
                }
                GatherAction::Complete(name, at, bytes) => {
                    let file = self.files.get_mut(&name).unwrap();
                    assert_eq!(file.len() as u64, at);
                    file.extend_from_slice(&bytes);
                    actions.extend(self.gatherers[holder as usize].completed(&name));
                    self.whole.insert(name);
                }
                GatherAction::Remove(name) => {
                    self.files.remove(&name);
                }
                GatherAction::To(conn, message) => self.tell(holder, conn, &message),
                GatherAction::HangUp(_, error) => panic!("{error}"),
            }
        }
    }

    fn tell(&mut self, holder: u32, conn: u32, message: &Message) {
        let is_it = |one: &&mut Sender| one.holder == holder && one.place.0 == conn;
        let sender = self.senders.iter_mut().find(is_it).unwrap();
        match message {
            Message::Granted { credit_bytes, .. } => sender.credit = *credit_bytes,
            Message::Credit { bytes, .. } => sender.credit += bytes,
            Message::Held { .. } => sender.held = true,
            Message::Lost { text, .. } => sender.lost = Some(text.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// One member sends something; returns false if nobody can.
    fn step(&mut self, numbers: &mut Numbers) -> bool {
        let able: Vec<usize> = (0..self.senders.len())
            .filter(|&one| {
                let sender = &self.senders[one];
                let left = sender.stream.len() as u64 - sender.sent;
                let may = left == 0 || sender.credit > 0;
                !sender.finished && sender.lost.is_none() && may
            })
            .collect();
        if able.is_empty() {
            return false;
        }
        let which = able[numbers.below(able.len() as u64) as usize];
        let sender = &mut self.senders[which];
        let (place, holder, at) = (sender.place, sender.holder, sender.sent);
        let left = sender.stream.len() as u64 - at;
        if left == 0 {
            sender.finished = true;
            let (len, crc) = (sender.len_bytes, crc64(&sender.stream));
            let actions = self.gatherers[holder as usize].finish(place, len, crc);
            self.act(holder, actions);
            return true;
        }
        let len = (1 + numbers.below(3 * UNIT)).min(left).min(sender.credit);
        sender.sent += len;
        sender.credit -= len;
        let bytes = sender.stream[at as usize..(at + len) as usize].to_vec();
        let actions = self.gatherers[holder as usize].data(place, at, &bytes);
        self.act(holder, actions);
        true
    }
}

/// Containers of very different lengths; one member has none.
fn containers(group: &ParityGroup, numbers: &mut Numbers) -> Vec<Vec<u8>> {
    let row = group.row_bytes();
    let lens = [3 * row + 77, 1, 2 * row, row - 1, 0, 3 * row + UNIT + 5];
    let of_member = |member: u32| {
        let len = lens[(member as usize + group.parity as usize) % lens.len()];
        numbers.bytes(len)
    };
    (0..group.members()).map(of_member).collect()
}

/// A directory for each member, with its container and its parity file.
struct Disks {
    scratch: Scratch,
    containers: Vec<Vec<u8>>,
    parity: BTreeMap<String, Vec<u8>>,
    members: u32,
}

impl Disks {
    fn new(group: &ParityGroup, numbers: &mut Numbers) -> Self {
        let containers = containers(group, numbers);
        let mut world = World::new(group, &containers);
        while world.step(numbers) {}
        assert!(world.senders.iter().all(|one| one.held), "nobody waits");
        assert_eq!(world.whole.len(), world.files.len());
        let disks = Disks {
            scratch: Scratch::in_memory("parity"),
            containers,
            parity: world.files,
            members: group.members(),
        };
        for member in 0..disks.members {
            std::fs::create_dir(disks.path(member)).unwrap();
            disks.restore(member);
        }
        disks
    }

    fn path(&self, member: u32) -> PathBuf {
        self.scratch.path().join(format!("m{member}"))
    }

    /// Writes the member's files as they were.
    fn restore(&self, member: u32) {
        let bytes = &self.containers[member as usize];
        if !bytes.is_empty() {
            std::fs::write(self.path(member).join(container(member).to_string()), bytes).unwrap();
        }
        if let Some(bytes) = self.parity.get(&parity(member)) {
            std::fs::write(self.path(member).join(parity(member)), bytes).unwrap();
        }
    }

    fn lose(&self, member: u32) {
        for name in [container(member).to_string(), parity(member)] {
            let _ = std::fs::remove_file(self.path(member).join(name));
        }
    }

    fn dirs(&self) -> Vec<Arc<dyn Dir>> {
        (0..self.members)
            .map(|one| open_dir(&self.path(one), Failpoints::none()).unwrap())
            .collect()
    }

    /// What can be computed of a file.
    fn computed(&self, name: &str) -> Result<Vec<u8>, Error> {
        let none = || Error::not_found("no parity");
        let file = Rebuilt::of(&self.dirs(), None)
            .ok_or_else(none)?
            .open(name)?;
        let mut bytes = vec![0; file.len_bytes()? as usize];
        // In pieces of odd lengths, from the beginning on.
        for at in (0..bytes.len()).step_by(5001) {
            let end = bytes.len().min(at + 5001);
            file.read_at(&mut bytes[at..end], at as u64)?;
        }
        Ok(bytes)
    }

    /// Every file of a member that is lost or not is what it was.
    fn check(&self, member: u32, why: &str) {
        let own = &self.containers[member as usize];
        if !own.is_empty() {
            let found = self.computed(&container(member).to_string()).unwrap();
            assert!(found == *own, "container of {member}, {why}");
        }
        if let Some(own) = self.parity.get(&parity(member)) {
            let found = self.computed(&parity(member)).unwrap();
            assert!(found == *own, "parity of {member}, {why}");
        }
    }
}

const GROUPS: [(u32, u8); 10] = [
    (3, 1),
    (3, 2),
    (4, 1),
    (5, 1),
    (6, 1),
    (7, 1),
    (8, 1),
    (6, 2),
    (10, 2),
    (12, 4),
];

// Breaks if: any loss within the promise gives other bytes, or any beyond it gives bytes at all.
#[test]
fn rebuilt_files_are_what_they_were_after_every_loss() {
    for (members, losses) in GROUPS {
        let group = group(members, losses);
        let disks = Disks::new(
            &group,
            &mut Numbers(u64::from(members) << 8 | u64::from(losses)),
        );
        let mut refused = 0;
        let most = if members > 8 {
            u32::from(losses) + 1
        } else {
            members - 1
        };
        for lost in 0u32..1 << members {
            let gone: Vec<u32> = (0..members).filter(|one| lost >> one & 1 == 1).collect();
            if gone.is_empty() || gone.len() as u32 > most {
                continue;
            }
            let within = gone.len() <= usize::from(losses);
            gone.iter().for_each(|&member| disks.lose(member));
            let which = gone[lost as usize % gone.len()];
            match within {
                true => disks.check(which, &format!("{members} with {losses}, without {gone:?}")),
                false => {
                    // Short containers may have lost no more than parity gives.
                    let with_data = |one: &&u32| !disks.containers[**one as usize].is_empty();
                    for &one in gone.iter().filter(with_data) {
                        match disks.computed(&container(one).to_string()) {
                            Ok(found) => assert!(found == disks.containers[one as usize]),
                            Err(error) => {
                                refused += 1;
                                assert_ne!(error.kind(), ErrorKind::Internal);
                            }
                        }
                    }
                }
            }
            gone.iter().for_each(|&member| disks.restore(member));
        }
        assert!(
            refused > 0 || most == u32::from(losses),
            "{members} with {losses}"
        );
    }
}

// Breaks if: a loss beyond the promise is filled in, or nobody says which files are missing.
#[test]
fn rebuilt_files_need_enough_of_the_group() {
    let group = group(6, 2);
    let numbers = &mut Numbers(99);
    let mut disks = Disks::new(&group, numbers);
    for member in 0..6 {
        // All have containers here.
        assert_eq!(disks.containers[member].is_empty(), member == 2);
    }
    for member in [0, 1, 3] {
        disks.lose(member);
    }
    let error = disks.computed(&container(0).to_string()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.contains("4 of 6 nodes are needed"), "{text}");
    for name in [parity(1), container(3).to_string()] {
        assert!(text.contains(&name), "{text}");
    }
    disks.containers.clear();
}

// Breaks if: a damaged block is used: bytes that were never there would come back.
#[test]
fn rebuilt_files_use_no_damaged_block() {
    for (members, losses) in [(6, 2), (7, 3)] {
        let group = group(members, losses);
        let numbers = &mut Numbers(7 + u64::from(members));
        let disks = Disks::new(&group, numbers);
        let lost = 0;
        disks.lose(lost);
        for other in 1..members {
            for name in [container(other).to_string(), parity(other)] {
                let path = disks.path(other).join(&name);
                let Ok(good) = std::fs::read(&path) else {
                    continue;
                };
                // Every structure, at its edges and somewhere inside; cut; too long.
                let len = good.len();
                let inside = numbers.below(len as u64) as usize;
                for at in [
                    0,
                    inside,
                    len / 2,
                    len.saturating_sub(300),
                    len.saturating_sub(16),
                    len - 1,
                ] {
                    let mut bad = good.clone();
                    bad[at.min(len - 1)] ^= 1 << numbers.below(8);
                    std::fs::write(&path, &bad).unwrap();
                    disks.check(lost, &format!("{name} is damaged at {at}"));
                }
                for cut in [0, len / 2, len - 1] {
                    std::fs::write(&path, &good[..cut]).unwrap();
                    disks.check(lost, &format!("{name} is cut at {cut}"));
                }
                std::fs::write(&path, [&good[..], &[0; 10]].concat()).unwrap();
                disks.check(lost, &format!("{name} is too long"));
                std::fs::write(&path, &good).unwrap();
            }
        }
        // A parity file in the place of another one.
        let (one, two) = (disks.path(1).join(parity(1)), disks.path(2).join(parity(2)));
        std::fs::copy(one, two).unwrap();
        disks.check(lost, "a parity file is another one's");
        let dir = open_dir(&disks.path(2), Failpoints::none()).unwrap();
        let error = verify_parity(dir.as_ref(), &parity(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

// Breaks if: a file that is lost while another one is computed from it ends the rebuild although
// enough is left.
#[test]
fn rebuilt_files_survive_a_second_loss_meanwhile() {
    let group = group(6, 2);
    let disks = Disks::new(&group, &mut Numbers(1234));
    disks.lose(0);
    let file = Rebuilt::of(&disks.dirs(), None).unwrap();
    let file = file.open(&container(0).to_string()).unwrap();
    let own = &disks.containers[0];
    let mut bytes = vec![0; own.len()];
    let half = own.len() / 2;
    file.read_at(&mut bytes[..half], 0).unwrap();
    // Its files are open: they shrink under whoever reads them.
    for name in [container(5).to_string(), parity(5)] {
        std::fs::File::options()
            .write(true)
            .open(disks.path(5).join(name))
            .unwrap()
            .set_len(0)
            .unwrap();
    }
    file.read_at(&mut bytes[half..], half as u64).unwrap();
    assert!(bytes == *own);
}

// Breaks if: what is computed is not compared with its checksum: parity that was wrong before its
// own checksum was taken would give wrong data, although other parity is right.
#[test]
fn rebuilt_files_are_compared_with_what_other_trailers_say() {
    let group = group(6, 2);
    let disks = Disks::new(&group, &mut Numbers(31));
    disks.lose(0);
    // Member 1 holds parity that is wrong, with checksums that fit.
    let path = disks.path(1).join(parity(1));
    let mut bytes = std::fs::read(&path).unwrap();
    let end: [u8; 16] = bytes[bytes.len() - 16..].try_into().unwrap();
    let (at, len) = ParityTrailer::find(&end, bytes.len() as u64).unwrap();
    let mut trailer = ParityTrailer::decode(&bytes[at as usize..][..len], at).unwrap();
    let row = (u64::from(group.data()) + 1) as usize;
    bytes[10] ^= 1;
    trailer.crcs[0] = crc64(&bytes[..UNIT as usize]);
    let second = UNIT as usize + 10;
    bytes[second] ^= 1;
    trailer.crcs[row] = crc64(&bytes[UNIT as usize..2 * UNIT as usize]);
    bytes.truncate(at as usize);
    bytes.extend_from_slice(&trailer.encode());
    std::fs::write(&path, bytes).unwrap();
    disks.check(0, "one parity file is wrong");
}

/// The commit record of what is on these disks.
fn record(group: &ParityGroup, containers: &[Vec<u8>]) -> CommitRecord {
    let there = (0..group.members()).zip(containers);
    let there = there.filter(|(_, bytes)| !bytes.is_empty());
    CommitRecord {
        job: JobName::new("job").unwrap(),
        step: Step(7),
        epoch: EPOCH,
        level: Level::Peers(2),
        world_size: group.members(),
        nodes: (0..group.members()).map(|one| format!("m{one}")).collect(),
        placement_generation: 1,
        servers: Vec::new(),
        containers: there
            .map(|(member, bytes)| ContainerRef {
                file: container(member).to_string(),
                server: TargetId(0),
                node: NodeId(member),
                writer: WriterId(0),
                len_bytes: bytes.len() as u64,
                manifest_digest: [0; 32],
                ranks: vec![(Rank(member), 1)],
                refers_to: Vec::new(),
                holders: Vec::new(),
            })
            .collect(),
        created_unix_ms: 0,
        groups: vec![group.clone()],
    }
}

// Breaks if: the trailers that most agree with are believed although the commit record knows
// better.
#[test]
fn rebuilt_files_have_the_lengths_of_the_commit_record() {
    let group = group(4, 2);
    let disks = Disks::new(&group, &mut Numbers(77));
    let record = record(&group, &disks.containers);
    let lost = (0..4).find(|&one| {
        let len = disks.containers[one as usize].len();
        len > 1 && disks.containers.iter().any(|other| other.len() > len)
    });
    let lost = lost.unwrap();
    disks.lose(lost);
    let computed = || {
        let dir = Rebuilt::of(&disks.dirs(), Some(&record)).unwrap();
        let file = dir.open(&container(lost).to_string()).unwrap();
        let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(computed() == disks.containers[lost as usize]);
    // The good one between them is outvoted, and is enough.
    for forged in [(lost + 1) % 4, (lost + 3) % 4] {
        let path = disks.path(forged).join(parity(forged));
        forge(&path, |trailer| trailer.lens_bytes[lost as usize] -= 1);
    }
    assert!(computed() == disks.containers[lost as usize]);
}

// Breaks if: memory grows with a length that a trailer claims.
#[test]
fn rebuilt_files_of_forged_lengths_are_refused() {
    let group = group(4, 2);
    let disks = Disks::new(&group, &mut Numbers(78));
    for lost in [0, 1] {
        std::fs::remove_file(disks.path(lost).join(parity(lost))).unwrap();
    }
    for forged in [2, 3] {
        let path = disks.path(forged).join(parity(forged));
        let claim = |trailer: &mut ParityTrailer| {
            let own = trailer.member as usize;
            trailer.lens_bytes[own] = 1 << 60;
        };
        forge(&path, claim);
        let bytes = std::fs::read(&path).unwrap();
        let (trailer, _) = trailer_in(&bytes);
        let error = trailer.of_member(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    let error = disks.computed(&parity(0)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound),
        "{error}"
    );
}

/// The trailer of a parity file, and where it begins.
fn trailer_in(bytes: &[u8]) -> (ParityTrailer, u64) {
    let end = bytes.last_chunk().unwrap();
    let (at, len) = ParityTrailer::find(end, bytes.len() as u64).unwrap();
    let trailer = ParityTrailer::decode(&bytes[at as usize..][..len], at).unwrap();
    (trailer, at)
}

/// Changes the trailer of a parity file; its checksum fits.
fn forge(path: &Path, change: impl Fn(&mut ParityTrailer)) {
    let mut bytes = std::fs::read(path).unwrap();
    let (mut trailer, at) = trailer_in(&bytes);
    change(&mut trailer);
    bytes.truncate(at as usize);
    bytes.extend_from_slice(&trailer.encode());
    std::fs::write(path, bytes).unwrap();
}

// Breaks if: a damaged byte is not noticed, wherever it is.
#[test]
fn rebuilt_files_and_all_others_are_verified_byte_by_byte() {
    let group = group(4, 1);
    let numbers = &mut Numbers(5);
    let disks = Disks::new(&group, numbers);
    let dir = open_dir(&disks.path(1), Failpoints::none()).unwrap();
    let good = disks.parity[&parity(1)].clone();
    assert_eq!(
        verify_parity(dir.as_ref(), &parity(1))
            .unwrap()
            .file_bytes(),
        good.len() as u64
    );
    for at in (0..good.len()).step_by(good.len() / 200) {
        let mut bad = good.clone();
        bad[at] ^= 1 << numbers.below(8);
        std::fs::write(disks.path(1).join(parity(1)), &bad).unwrap();
        let error = verify_parity(dir.as_ref(), &parity(1)).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::NotFound, "byte {at}");
    }
}

// Breaks if: a file is made without one of its members, or those who wait are not told.
#[test]
fn gathering_is_lost_with_any_of_its_members() {
    let group = group(4, 1);
    let numbers = &mut Numbers(77);
    let containers: Vec<Vec<u8>> = (0..4).map(|_| numbers.bytes(5 * UNIT)).collect();
    for (case, steps) in [("at once", 0), ("in the middle", 9)] {
        let mut world = World::new(&group, &containers);
        for _ in 0..steps {
            world.step(numbers);
        }
        // Member 2 is gone for holder 1.
        let actions = world.gatherers[1].gone(2);
        world.act(1, actions);
        while world.step(numbers) {}
        for sender in &world.senders {
            let concerned = sender.holder == 1 && sender.place.0 != 2;
            assert_eq!(
                sender.lost.is_some(),
                concerned,
                "{case}: {:?}",
                sender.place
            );
            assert!(sender.holder == 1 || sender.held, "{case}");
        }
        assert!(!world.files.contains_key(&parity(1)), "{case}");
        // Whoever comes later is told at once.
        let late = world.gatherers[1].reserve((9, 9), Some(NodeId(3)), (parity(1), 100), ALL);
        assert!(
            matches!(&late[..], [GatherAction::To(9, Message::Lost { .. })]),
            "{late:?}"
        );
    }
}

// Breaks if: a member may be as far ahead as it likes: the memory of a node would hold a group.
#[test]
fn gathering_holds_a_bounded_number_of_rows() {
    let group = group(3, 1);
    let mut one = gatherer(&group, 0, &|_| true);
    let granted = one.reserve((1, 1), Some(NodeId(1)), (parity(0), 1 << 30), ALL);
    let Some(GatherAction::To(_, Message::Granted { credit_bytes, .. })) = granted.last() else {
        panic!("{granted:?}");
    };
    assert!(*credit_bytes <= 32 * group.row_bytes(), "{credit_bytes}");
    let most = vec![1; *credit_bytes as usize];
    assert!(
        one.data((1, 1), 0, &most).is_empty(),
        "member 2 has sent nothing"
    );
    let actions = one.data((1, 1), *credit_bytes, &[1]);
    assert!(
        matches!(actions.last(), Some(GatherAction::HangUp(1, _))),
        "{actions:?}"
    );
}

// Breaks if: a member sends more than space was granted for: a full budget would be exceeded.
#[test]
fn gathering_stays_within_what_was_granted() {
    let group = group(3, 1);
    let sent = |len_bytes: u64| {
        let mut one = gatherer(&group, 0, &|member| member != 2);
        let _ = one.reserve((1, 1), Some(NodeId(1)), (parity(0), 100), ALL);
        one.data((1, 1), 0, &vec![3; len_bytes as usize])
    };
    assert!(sent(100).is_empty());
    let actions = sent(101);
    assert!(
        matches!(actions.last(), Some(GatherAction::HangUp(1, _))),
        "{actions:?}"
    );
}

// Breaks if: bytes that changed on their way become parity; a file of another run, of another node
// or without space is begun.
#[test]
fn gathering_takes_only_what_it_should() {
    let group = group(3, 1);
    let fresh = || gatherer(&group, 0, &|member| member != 2);
    // A checksum that differs.
    let mut one = fresh();
    let _ = one.reserve((1, 1), Some(NodeId(1)), (parity(0), 100), ALL);
    let _ = one.data((1, 1), 0, &[3; 100]);
    let mut crc = Crc64::new();
    crc.update(&[4; 100]);
    let actions = one.finish((1, 1), 100, crc.value());
    let refused = |actions: &[GatherAction], kind: ErrorKind| {
        let told = actions.iter().any(
            |action| matches!(action, GatherAction::To(1, Message::Lost { kind: k, .. }) if *k == kind),
        );
        assert!(told, "{kind:?}: {actions:?}");
    };
    refused(&actions, ErrorKind::Corrupt);
    // No space.
    refused(
        &fresh().reserve((1, 1), Some(NodeId(1)), (parity(0), 1 << 20), 1000),
        ErrorKind::NoSpace,
    );
    // Too long for one parity file.
    refused(
        &fresh().reserve((1, 1), Some(NodeId(1)), (parity(0), 1 << 50), ALL),
        ErrorKind::Unsupported,
    );
    // Of another run; for another node; by a node that has no container, is not a member, is this
    // one, or did not say who it is.
    let other_run = parity(0).replace("-e000003-", "-e000002-");
    for (from, name) in [
        (Some(NodeId(1)), other_run),
        (Some(NodeId(1)), parity(1)),
        (Some(NodeId(1)), container(0).to_string()),
        (Some(NodeId(2)), parity(0)),
        (Some(NodeId(7)), parity(0)),
        (None, parity(0)),
    ] {
        let actions = fresh().reserve((1, 1), from, (name.clone(), 100), ALL);
        assert!(
            matches!(actions.last(), Some(GatherAction::HangUp(1, _))),
            "{from:?} {name}: {actions:?}"
        );
    }
    // Twice.
    let mut one = fresh();
    let _ = one.reserve((1, 1), Some(NodeId(1)), (parity(0), 100), ALL);
    refused(
        &one.reserve((1, 2), Some(NodeId(1)), (parity(0), 100), ALL),
        ErrorKind::Corrupt,
    );
}
