//! Provides one small valid value of every type, with every option used somewhere. The golden files
//! hold their encodings, so these values never change.

use orcheck_format::disk::*;
use orcheck_format::wire::{Disk, Link, NodePart, RecipePart, ReplicaPart, *};
use orcheck_format::{Detail, NodeId, Rank, Step, TargetId, WriterId, *};

pub fn epoch() -> Epoch {
    Epoch {
        counter: 7,
        run: RunId([
            0x1a, 0x2b, 0x3c, 0x4d, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        ]),
    }
}

pub fn job() -> JobName {
    JobName::new("lbm-cavity").unwrap()
}

pub fn header() -> ContainerHeader {
    ContainerHeader {
        features: Features {
            compat: 1 << 63,
            ro_compat: 1 << 5,
            incompat: 0,
        },
        job: job(),
        step: Step(42),
        epoch: epoch(),
        level: Level::Global,
        node: NodeId(3),
        writer: WriterId(0),
        world_size: 8,
        alignment_bytes: 4096,
        created_unix_ms: 1_700_000_000_123,
        encryption: None,
    }
}

pub fn encrypted_header() -> ContainerHeader {
    let count = |from: u8| move |i: usize| from + i as u8;
    ContainerHeader {
        features: Features {
            incompat: Features::ENCODED | Features::ENCRYPTED,
            ..Features::default()
        },
        encryption: Some(Encryption {
            salt: std::array::from_fn(count(0x20)),
            key_check: std::array::from_fn(count(0x80)),
            mac: None,
        }),
        ..header()
    }
}

pub fn sealed_header() -> ContainerHeader {
    let mut header = encrypted_header();
    header.features.incompat |= Features::SEALED;
    if let Some(encryption) = &mut header.encryption {
        encryption.mac = Some(std::array::from_fn(|i| 0xc0 + i as u8));
    }
    header
}

/// A record under a seal that no key makes.
pub fn sealed(record: &[u8]) -> Vec<u8> {
    let mac = std::array::from_fn(|i| 0x40 + i as u8);
    seal(record, std::array::from_fn(|i| 0xa0 + i as u8), |_| mac).unwrap()
}

pub fn rank_header() -> RankHeader {
    RankHeader {
        rank: Rank(6),
        step: Step(42),
        epoch: epoch(),
        stream_len_bytes: 96,
        cut_bytes: 4 << 20,
    }
}

pub fn plain(store: u16, physical: u64, len_bytes: u64) -> Extent {
    let crc = crc64(&len_bytes.to_le_bytes());
    Extent {
        container: None,
        store,
        physical,
        stored_len_bytes: len_bytes,
        len_bytes,
        encoding: 0,
        crc_stored: crc,
        crc_plain: crc,
    }
}

pub fn rank_record(rank: Rank, at: u64) -> RankRecord {
    RankRecord {
        rank,
        stream_len_bytes: 96,
        regions: vec![
            RegionRecord {
                name: "density ρ".into(),
                kind: RegionKind::Array,
                dtype: Dtype::F64,
                flags: 3,
                len_bytes: 64,
                local: vec![2, 4],
                global: vec![8, 4],
                offset: vec![6, 0],
                boxes: Vec::new(),
                same_as: None,
                extents: vec![plain(0, at, 40), plain(0, at + 40, 24)],
            },
            RegionRecord {
                name: "rng".into(),
                kind: RegionKind::Bytes,
                dtype: Dtype::Bytes,
                flags: 0,
                len_bytes: 32,
                local: vec![],
                global: vec![],
                offset: vec![],
                boxes: Vec::new(),
                same_as: None,
                extents: vec![plain(0, at + 64, 32)],
            },
        ],
    }
}

/// With a region that is several boxes, and one that is items of a list.
pub fn boxes_rank_record() -> RankRecord {
    let mut record = rank_record(Rank(6), 0);
    record.regions[0].kind = RegionKind::Boxes;
    record.regions[0].flags = FLAG_OVERLAP;
    record.regions[0].local = vec![];
    record.regions[0].offset = vec![];
    record.regions[0].boxes = vec![
        BoxRecord {
            offset: vec![6, 0],
            local: vec![2, 3],
        },
        BoxRecord {
            offset: vec![0, 1],
            local: vec![1, 2],
        },
    ];
    record.regions[1].kind = RegionKind::Array;
    record.regions[1].dtype = Dtype::I64;
    record.regions[1].flags = FLAG_LIST;
    record.regions[1].local = vec![2, 2];
    record
}

/// Encoded in every way that leaves 64 bytes in 40 and 24 of the first region, and 32 of the
/// second.
pub fn encoded_rank_record() -> RankRecord {
    let mut record = rank_record(Rank(6), 0);
    let extent = |extent: &mut Extent, encoding: Encoding, physical, stored_len_bytes| {
        extent.encoding = encoding.code();
        extent.physical = physical;
        extent.stored_len_bytes = stored_len_bytes;
        if encoding.encrypted {
            extent.crc_plain = 0;
        }
    };
    let zstd = Encoding {
        compression: Compression::Zstd,
        shuffle_log2: 3,
        encrypted: false,
    };
    let lz4 = Encoding {
        compression: Compression::Lz4,
        shuffle_log2: 0,
        encrypted: true,
    };
    let sealed = Encoding {
        encrypted: true,
        ..Encoding::default()
    };
    extent(&mut record.regions[0].extents[0], zstd, 0, 30);
    extent(&mut record.regions[0].extents[1], lz4, 30, 36);
    extent(&mut record.regions[1].extents[0], sealed, 66, 56);
    record.stream_len_bytes = 122;
    record
}

pub fn manifest() -> Manifest {
    let mut second = rank_record(Rank(7), 0);
    second.regions[0].extents = vec![
        Extent {
            container: Some("s000000000041-e000007-1a2b3c4d-n0003-w00.orc".into()),
            ..plain(2, 8192, 40)
        },
        plain(1, 65536, 24),
    ];
    second.regions[1].same_as = Some(Rank(6));
    second.regions[1].extents.clear();
    Manifest {
        job: job(),
        step: Step(42),
        epoch: epoch(),
        level: Level::Peers(2),
        node: NodeId(3),
        node_name: "node-03".into(),
        writer: WriterId(0),
        world_size: 8,
        stores: vec![
            "s000000000042-e000007-1a2b3c4d-n0003-w00.orc".into(),
            "s000000000042-e000007-1a2b3c4d-n0003-w00.stripe01".into(),
        ],
        ranks: vec![rank_record(Rank(6), 8192), second],
    }
}

pub fn trailer() -> Trailer {
    Trailer {
        manifest_at: 12288,
        manifest_len_bytes: 777,
        manifest_digest: Manifest::digest(b"manifest"),
        file_len_bytes: 20480,
        header_crc: 0x0123_4567_89ab_cdef,
    }
}

pub fn container_ref(node: u32, ranks: &[(u32, u32)]) -> ContainerRef {
    ContainerRef {
        file: format!("s000000000042-e000007-1a2b3c4d-n{node:04}-w00.orc"),
        server: TargetId(node % 2),
        node: NodeId(node),
        writer: WriterId(0),
        len_bytes: 20480,
        manifest_digest: Manifest::digest(&node.to_le_bytes()),
        ranks: ranks
            .iter()
            .map(|&(first, count)| (Rank(first), count))
            .collect(),
        refers_to: vec![],
        holders: vec![],
    }
}

/// A commit record whose containers refer to older ones.
pub fn referring_record() -> CommitRecord {
    let mut record = commit_record();
    record.containers[0].refers_to = vec![Step(38), Step(41)];
    record.containers[2].refers_to = vec![Step(39), Step(41)];
    record
}

/// A commit record whose containers have two replicas each.
pub fn replicated_record() -> CommitRecord {
    let mut record = commit_record();
    record.level = Level::Peers(2);
    for (container, holders) in record.containers.iter_mut().zip([[2, 1], [0, 2], [1, 0]]) {
        container.holders = holders.map(NodeId).to_vec();
    }
    record
}

/// A group of three nodes with one parity.
pub fn group() -> ParityGroup {
    ParityGroup {
        nodes: [2, 0, 1].map(NodeId).to_vec(),
        parity: 1,
        unit_bytes: 65536,
    }
}

/// A commit record whose containers are protected by parity.
pub fn parity_record() -> CommitRecord {
    let mut record = commit_record();
    record.level = Level::Peers(1);
    record.groups = vec![group()];
    record
}

/// What ends a parity file of node 0, and the length of its blocks.
pub fn parity_trailer() -> (ParityTrailer, u64) {
    let trailer = ParityTrailer {
        job: job(),
        step: Step(42),
        epoch: epoch(),
        writer: WriterId(0),
        group: group(),
        member: 1,
        lens_bytes: vec![20480, 300_000, 140_000],
        crcs: (1..=6).map(|crc| crc * 0x0123_4567_89ab_cdef).collect(),
    };
    (trailer, 65536 + 12288)
}

pub fn commit_record() -> CommitRecord {
    CommitRecord {
        job: job(),
        step: Step(42),
        epoch: epoch(),
        level: Level::Global,
        world_size: 8,
        nodes: vec!["a".into(), "b".into(), "c".into()],
        placement_generation: 2,
        servers: vec!["/pfs/a".into(), "/pfs/b".into()],
        containers: vec![
            container_ref(0, &[(0, 2), (6, 1)]),
            container_ref(1, &[(2, 4)]),
            container_ref(2, &[(7, 1)]),
        ],
        created_unix_ms: 1_700_000_000_456,
        groups: vec![],
    }
}

pub fn claim() -> Claim {
    Claim {
        job: job(),
        epoch: epoch(),
        host: "login1".into(),
        pid: 4711,
        uid: 1000,
        since_unix_ms: 1_700_000_000_789,
        world_size: 8,
        nodes: vec!["a".into(), "b".into()],
    }
}

pub fn resumed() -> Resumed {
    let from = Epoch {
        counter: 6,
        run: RunId([9; 16]),
    };
    Resumed {
        job: job(),
        epoch: epoch(),
        step: Some(Step(41)),
        from: Some(from),
    }
}

pub fn choice() -> Choice {
    Choice {
        job: job(),
        step: Step(42),
        epoch: epoch(),
        decision: Decision::Rejected,
        host: "login1".into(),
        uid: 1000,
        since_unix_ms: 1_700_000_000_999,
        why: "the energy grows".into(),
    }
}

pub fn members() -> Members {
    let member = |name: &str, addresses: &[&str], epoch| Member {
        name: name.into(),
        addresses: addresses.iter().map(|&address| address.into()).collect(),
        key: [epoch as u8; 32],
        encrypt: epoch == 5,
        epoch,
    };
    Members {
        job: job(),
        epoch: epoch(),
        nodes: vec![
            member("a", &["unix:@orcheck-0-k0", "tcp:10.0.0.1:4711"], 7),
            member("b", &["unix:@orcheck-0-k1"], 7),
            member("old", &[], 5),
        ],
    }
}

pub fn messages() -> Vec<Message> {
    let (step, level, node) = (42, Level::Global, 1);
    let text = "write 4096 bytes at offset 8192 failed".to_string();
    vec![
        Message::Hello {
            rank: Rank(5),
            node: NodeId(node),
        },
        Message::Durable {
            step: Step(step),
            level,
            container: container_ref(1, &[(2, 4)]),
        },
        Message::NotDurable {
            step: Step(step),
            level: Some(level),
            server: Some(TargetId(1)),
            kind: ErrorKind::NoSpace,
            text: text.clone(),
        },
        Message::NotDurable {
            step: Step(step),
            level: None,
            server: None,
            kind: ErrorKind::Invalid,
            text: String::new(),
        },
        Message::Vote {
            step: Step(step),
            level,
            node: NodeId(node),
            containers: commit_record().containers,
        },
        Message::Record {
            step: Step(step),
            level,
            bytes: commit_record().encode(),
        },
        Message::Recorded {
            step: Step(step),
            level,
            node: NodeId(node),
            failed: None,
        },
        Message::Recorded {
            step: Step(step),
            level,
            node: NodeId(node),
            failed: Some(Error::corrupt(text.clone()).with(Detail::Undecided)),
        },
        Message::Committed {
            step: Step(step),
            level: Level::Node,
        },
        Message::Aborted {
            step: Step(step),
            level,
            error: Error::new(ErrorKind::Fenced, text).with(Detail::Undecided),
        },
        Message::Placement {
            generation: 3,
            text: "generation = 3\n".into(),
        },
        Message::Goodbye { node: NodeId(node) },
        Message::Said {
            by: vec![(NodeId(0), 1), (NodeId(3), 2)],
            message: Box::new(Message::Goodbye { node: NodeId(node) }),
        },
        Message::Reserve {
            slot: 3,
            file: container_ref(1, &[]).file,
            len_bytes: 1 << 33,
        },
        Message::Granted {
            slot: 3,
            credit_bytes: 16 << 20,
        },
        Message::Credit {
            slot: 3,
            bytes: 4 << 20,
        },
        Message::Finish {
            slot: 3,
            len_bytes: 20480,
            crc: 0x0123_4567_89ab_cdef,
        },
        Message::Held { slot: 3 },
        Message::Lost {
            slot: 3,
            kind: ErrorKind::NoSpace,
            text: "no room".into(),
        },
        Message::LetGo { slot: 3 },
        Message::Data {
            slot: 3,
            at_bytes: 1 << 33,
            bytes: b"bytes".to_vec(),
        },
        Message::List,
        Message::Listing {
            files: vec![("epoch-000007.claim".into(), 40), ("x.tmp".into(), 1 << 40)],
        },
        Message::Fetch {
            slot: 4,
            file: container_ref(1, &[]).file,
            at_bytes: 4096,
            len_bytes: 4 << 20,
        },
    ]
    .into_iter()
    .chain(agent_messages().into_iter().map(Message::Agent))
    .chain(store_messages().into_iter().map(Message::Store))
    .collect()
}

pub fn store_messages() -> Vec<StoreMessage> {
    let job = StoreDir::default().child("lbm").unwrap();
    let node = job.child("n0").unwrap();
    let file = || "epoch-000007.claim".to_owned();
    let versions = |oldest, newest| Versions {
        oldest,
        newest,
        release: "0.3.0-rc.1".into(),
    };
    let asks = [
        Ask::Greet(versions(2, 3)),
        Ask::Holds(job.clone(), file()),
        Ask::Open(node.clone(), file()),
        Ask::Create(node.clone(), file(), true),
        Ask::Rename(job.clone(), file(), "other".into()),
        Ask::RenameNew(job.clone(), file(), "other".into()),
        Ask::Remove(job.clone(), file()),
        Ask::List(StoreDir::default()),
        Ask::SyncNames(job.clone()),
        Ask::Child(node, true),
        Ask::RemoveChild(job.clone(), "n0".into()),
        Ask::Facts(job),
        Ask::Read(4096, 4 << 20),
        Ask::Need(0, 1 << 30),
        Ask::Offer(12 << 20),
        Ask::Allocate(1 << 30),
        Ask::Truncate(4096),
        Ask::Sync,
        Ask::Length,
        Ask::Lock,
        Ask::Close,
    ];
    let disk = |since_unix_s| Disk {
        identity: 0x0123_4567_89ab_cdef,
        since_unix_s,
    };
    let replies = [
        Reply::Greeted(versions(1, 2), None),
        Reply::Greeted(versions(1, 2), Some(disk(None))),
        Reply::Greeted(versions(1, 2), Some(disk(Some(1_795_509_431)))),
        Reply::Told(vec![1, 4096]),
        Reply::Names(vec![("n0".into(), 4096, true), (file(), 120, false)]),
        Reply::Failed(Error::no_space("the disk is full")),
        Reply::Failed(Error::unavailable("list failed").with(Detail::Denied)),
        Reply::Want(2),
        Reply::Busy,
    ];
    let asks = asks.into_iter().map(StoreMessage::Ask);
    asks.chain(replies.into_iter().map(StoreMessage::Reply))
        .collect()
}

fn agent_messages() -> Vec<AgentMessage> {
    let state = ConnState {
        unix: true,
        encrypted: false,
        peer: "process 7 at unix:@orcheck-n0".into(),
        send_key: [1; 32],
        receive_key: [2; 32],
        sent: 3,
        received: 4,
        inbox: b"half a frame".to_vec(),
    };
    let link = |to| AgentMessage::Link {
        to,
        state: state.clone(),
    };
    vec![
        AgentMessage::Yield {
            force: true,
            patience_ms: 600_000,
        },
        AgentMessage::Adopt {
            job: adoption().encode(),
        },
        AgentMessage::Lock,
        AgentMessage::Door {
            address: "tcp:10.0.0.1:4711".into(),
        },
        link(Link::Rank(Rank(5))),
        link(Link::Lead),
        link(Link::Node(NodeId(2))),
        AgentMessage::Begin,
        AgentMessage::ResumedFrom {
            step: Step(41),
            epoch: 6,
        },
        AgentMessage::Sealed {
            rank: Rank(5),
            step: Step(42),
        },
        AgentMessage::Ask,
        AgentMessage::Status,
        AgentMessage::Drain {
            patience_ms: 30_000,
        },
        AgentMessage::Note {
            text: "the directory is full".into(),
        },
        AgentMessage::Recall { job: job() },
        AgentMessage::Kept,
        AgentMessage::Forget,
        AgentMessage::Leave,
        AgentMessage::Done,
        AgentMessage::Refused {
            kind: ErrorKind::Unavailable,
            text: "an older run is still being flushed".into(),
        },
    ]
}

/// What a rank hands over, with everything in it that there can be.
pub fn kept_map() -> KeptMap {
    let piece = |region, region_at_bytes, len_bytes, pool_at_bytes| KeptPiece {
        region: [region; 16],
        region_at_bytes,
        len_bytes,
        crc_plain: 0x1122_3344_5566_7788,
        pool_at_bytes,
    };
    let snapshot = |rank, digests: &[u8], pieces| KeptSnapshot {
        rank: Rank(rank),
        digests: digests.iter().map(|byte| [*byte; 32]).collect(),
        pieces,
    };
    KeptMap {
        version: "0.1.0".to_owned(),
        snapshots: vec![
            snapshot(
                0,
                &[7, 8],
                vec![
                    piece(1, 0, 4 << 20, 0),
                    piece(1, 4 << 20, 100, 4 << 20),
                    piece(2, 0, 24, 8 << 20),
                ],
            ),
            snapshot(3, &[9], vec![piece(1, 0, 1, 12 << 20)]),
        ],
    }
}

pub fn adoption() -> Adoption {
    let node = |name: &str, writers: &[&[u32]]| NodePart {
        name: name.into(),
        host: "host".into(),
        writers: writers
            .iter()
            .map(|ranks| ranks.iter().copied().map(Rank).collect())
            .collect(),
        addresses: vec!["unix:@orcheck-k0".into(), "tcp:10.0.0.1:4711".into()],
    };
    Adoption {
        version: "0.1.0".into(),
        job: job(),
        epoch: epoch(),
        nodes: vec![node("a", &[&[0, 2], &[1]]), node("b", &[&[3]])],
        node: NodeId(1),
        servers: vec!["/pfs/ost0".into(), "/pfs/ost1".into()],
        node_root: "/local".into(),
        keep: 2,
        mode: 2,
        direct: true,
        pin: false,
        incremental: true,
        timeout_ms: 600_000,
        fan_out: 64,
        recipe: RecipePart {
            compression: Compression::Zstd,
            level: -3,
            secret: Some([7; 32]),
        },
        replication: Some(ReplicaPart {
            replicas: 1,
            losses: 1,
            budget_bytes: u64::MAX,
            store: 2,
            domains: vec![vec![0], vec![1, 2]],
            key: [9; 32],
            encrypt: true,
            groups: vec![group()],
        }),
        placement: "generation = 0\n".into(),
        working_dir: "/home/me".into(),
    }
}

/// One frame as it precedes its MAC: header, then payload.
pub fn frame() -> Vec<u8> {
    let message = &messages()[4];
    let payload = message.encode();
    let header = FrameHeader {
        kind: message.kind(),
        flags: 0,
        len_bytes: payload.len() as u32,
        seq: 0x0102_0304_0506_0708,
    };
    [header.encode().to_vec(), payload].concat()
}
