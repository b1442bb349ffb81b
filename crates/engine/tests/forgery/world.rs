//! A job with encrypted checkpoints, in memory: genuine files, and what each of them holds.
//!
//! ```text
//! epoch 1: step 10 (full) ─ step 20 (full) ─ step 30 (region "b" lies in step 20) ─ step 35 (superseded)
//! epoch 2: resumed from 30 ─ step 40 (full) ─ step 50 (region "b" lies in step 40)
//! ```
//! Two nodes with two ranks each; every rank has the regions "a" and "b", alike but for their names; "a" is compressed.
//! Each checkpoint is there at level `peers`, where each node holds a replica of the other one's container, and at level
//! `global` on two servers. A second job under the same key lies elsewhere.
//!
//! Not here: attacks (`attack.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orcheck_engine::encoding::{Accept, Binding, ContainerKey, Trust};
use orcheck_format::disk::{
    BLOCK_BYTES, Claim, CommitRecord, Compression, ContainerHeader, ContainerRef, Encoding,
    Encryption, Extent, Features, FileName, Manifest, Member, Members, RankHeader, RankRecord,
    RegionKind, RegionRecord, Resumed, SEAL_BYTES, STREAM_LEN_UNKNOWN, TRAILER_BYTES, Trailer,
    encode_rank_record, header_crc,
};
use orcheck_format::{Dtype, Epoch, JobName, Level, RunId, crc64};
use orcheck_io::user::Secret;
use orcheck_testing::power::{Content, Image};
use ring::hkdf;

pub const SECRET: [u8; 32] = [7; 32];
pub const RANKS: u32 = 4;
pub const NODES: u32 = 2;
pub const SERVERS: u32 = 2;
pub const REGION_BYTES: usize = 256;
pub const LEVELS: [Level; 2] = [Level::Peers(1), Level::Global];
/// The newest step.
pub const NEWEST: u64 = 50;

/// In which form the job's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Sealed,
    V1,
    Plain,
}

/// A directory of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Node(u32),
    Server(u32),
}

pub const PLACES: [Place; 4] = [
    Place::Node(0),
    Place::Node(1),
    Place::Server(0),
    Place::Server(1),
];

impl Place {
    /// Where it is beneath the root of a job on disk.
    pub fn path(self) -> String {
        match self {
            Place::Node(node) => format!("local/job/n{node}"),
            Place::Server(server) => format!("ost{server}/job"),
        }
    }
}

/// Where the commit records of a level are.
pub fn record_places(level: Level) -> Vec<Place> {
    match level {
        Level::Global => (0..SERVERS).map(Place::Server).collect(),
        _ => (0..NODES).map(Place::Node).collect(),
    }
}

/// Where a node's container is, at each level.
pub fn container_places(level: Level, node: u32) -> Vec<Place> {
    match level {
        Level::Global => vec![Place::Server(node % SERVERS)],
        _ => vec![Place::Node(node), Place::Node((node + 1) % NODES)],
    }
}

pub fn job() -> JobName {
    JobName::new("job").unwrap()
}

/// Another job of the same user, under the same key.
pub fn other_job() -> JobName {
    JobName::new("jab").unwrap()
}

pub fn epoch(counter: u64) -> Epoch {
    Epoch {
        counter,
        run: RunId([counter as u8; 16]),
    }
}

pub fn key(secret: [u8; 32], accept: Accept) -> Arc<Trust> {
    Trust::new(&[Arc::new(Secret::new(secret))], true, accept).unwrap()
}

/// What a rank's region held at a step.
pub fn payload(job: &JobName, step: u64, rank: u32, region: &str) -> Vec<u8> {
    let line = format!("{} {step} {rank} {region} ", job.as_str());
    line.bytes().cycle().take(REGION_BYTES).collect()
}

/// A container taken apart: what an attacker changes and puts together again.
#[derive(Clone)]
pub struct Taken {
    pub header: ContainerHeader,
    pub ranks: Vec<(RankRecord, Vec<u8>)>,
    /// The name that the file and its manifest give themselves.
    pub file: String,
    /// Files of stripes that the manifest names.
    pub stripes: Vec<String>,
}

impl Taken {
    /// The file with every checksum and digest made to fit, and the digest of its manifest.
    pub fn build(&self) -> (Vec<u8>, [u8; 32]) {
        let header = self.header.encode();
        let mut bytes = header.to_vec();
        let mut ranks = Vec::new();
        for (record, stream) in &self.ranks {
            let rank_header = RankHeader {
                rank: record.rank,
                step: self.header.step,
                epoch: self.header.epoch,
                stream_len_bytes: STREAM_LEN_UNKNOWN,
                cut_bytes: 1 << 20,
            };
            bytes.extend_from_slice(&rank_header.encode());
            let at = bytes.len() as u64;
            bytes.extend_from_slice(stream);
            pad(&mut bytes);
            let mut framed = record.clone();
            own_extents(&mut framed).for_each(|extent| {
                extent.physical = extent.physical.wrapping_sub(at);
            });
            framed.stream_len_bytes = stream.len() as u64;
            bytes.extend_from_slice(&encode_rank_record(&framed));
            pad(&mut bytes);
            let mut record = record.clone();
            record.stream_len_bytes = stream.len() as u64;
            ranks.push(record);
        }
        let manifest = Manifest {
            job: self.header.job.clone(),
            step: self.header.step,
            epoch: self.header.epoch,
            level: self.header.level,
            node: self.header.node,
            node_name: format!("n{}", self.header.node),
            writer: 0,
            world_size: RANKS,
            stores: [std::slice::from_ref(&self.file), &self.stripes[..]].concat(),
            ranks,
        }
        .encode();
        let manifest_at = bytes.len() as u64;
        bytes.extend_from_slice(&manifest);
        pad(&mut bytes);
        let end = bytes.len() + BLOCK_BYTES;
        bytes.resize(end - TRAILER_BYTES, 0);
        let trailer = Trailer {
            manifest_at,
            manifest_len_bytes: manifest.len() as u64,
            manifest_digest: Manifest::digest(&manifest),
            file_len_bytes: end as u64,
            header_crc: header_crc(&header),
        };
        bytes.extend_from_slice(&trailer.encode());
        (bytes, Manifest::digest(&manifest))
    }

    pub fn region(&mut self, rank: usize, name: &str) -> &mut RegionRecord {
        let regions = &mut self.ranks[rank].0.regions;
        regions
            .iter_mut()
            .find(|region| region.name == name)
            .unwrap()
    }
}

pub fn own_extents(record: &mut RankRecord) -> impl Iterator<Item = &mut Extent> {
    let regions = record.regions.iter_mut();
    let extents = regions.flat_map(|region| &mut region.extents);
    extents.filter(|extent| extent.container.is_none())
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
}

pub fn container_name(step: u64, epoch: Epoch, node: u32) -> String {
    FileName::Container {
        step,
        epoch: epoch.counter,
        run: epoch.run.short_bytes(),
        node,
        writer: 0,
    }
    .to_string()
}

/// One checkpoint of the job at one level.
#[derive(Clone)]
pub struct Step {
    pub step: u64,
    pub level: Level,
    pub record: CommitRecord,
    pub containers: Vec<Taken>,
}

impl Step {
    pub fn record_name(&self) -> String {
        FileName::commit(self.record.step, self.record.epoch, self.record.level).to_string()
    }
}

/// The job's directories, and what an attacker learns by reading them.
#[derive(Clone)]
pub struct World {
    pub job: JobName,
    pub files: BTreeMap<(Place, String), Arc<Content>>,
    /// By step; the weaker level first.
    pub steps: Vec<Step>,
    /// The other job, beside which nobody looks for anything.
    pub other: Option<Arc<World>>,
}

impl World {
    pub fn new(form: Form) -> World {
        let mut world = World::of(job(), form);
        world.other = Some(Arc::new(World::of(other_job(), form)));
        world
    }

    fn of(job: JobName, form: Form) -> World {
        let trust = match form {
            Form::Sealed => key(SECRET, Accept::default()),
            _ => Trust::nobody(),
        };
        let mut world = World {
            job,
            files: BTreeMap::new(),
            steps: Vec::new(),
            other: None,
        };
        for (step, counter, older) in [
            (10, 1, None),
            (20, 1, None),
            (30, 1, Some(20)),
            (35, 1, None),
            (40, 2, None),
            (NEWEST, 2, Some(40)),
        ] {
            for level in LEVELS {
                world.take(form, &trust, (step, epoch(counter), level), older);
            }
        }
        for (counter, from) in [(1, None), (2, Some((30, epoch(1))))] {
            let claim = Claim {
                job: world.job.clone(),
                epoch: epoch(counter),
                host: "h".into(),
                pid: 1,
                uid: 0,
                since_unix_ms: 1,
                world_size: RANKS,
                nodes: node_names(),
            };
            let resumed = resumed(&world.job, counter, from);
            let name = FileName::Claim { epoch: counter }.to_string();
            world.note(&name, trust.seal(claim.encode()).unwrap());
            let name = FileName::Resumed { epoch: counter }.to_string();
            world.note(&name, trust.seal(resumed.encode()).unwrap());
            let name = FileName::Members { epoch: counter }.to_string();
            let members = members(&world.job, counter).encode();
            for node in 0..NODES {
                let sealed = trust.seal(members.clone()).unwrap();
                world.put(Place::Node(node), &name, sealed);
            }
        }
        world
    }

    pub fn put(&mut self, place: Place, name: &str, bytes: Vec<u8>) {
        let content = Content::new(bytes);
        self.files.insert((place, name.to_owned()), content);
    }

    pub fn put_in(&mut self, places: &[Place], name: &str, bytes: &[u8]) {
        for &place in places {
            self.put(place, name, bytes.to_vec());
        }
    }

    /// A small record that is in every directory.
    pub fn note(&mut self, name: &str, bytes: Vec<u8>) {
        self.put_in(&PLACES, name, &bytes);
    }

    pub fn remove(&mut self, name: &str) {
        self.files.retain(|(_, known), _| known != name);
    }

    /// The first copy of a file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut places = PLACES.iter();
        places.find_map(|&place| self.read_in(place, name))
    }

    pub fn read_in(&self, place: Place, name: &str) -> Option<Vec<u8>> {
        let content = self.files.get(&(place, name.to_owned()))?;
        Some(content.bytes().into_owned())
    }

    fn take(
        &mut self,
        form: Form,
        trust: &Trust,
        (step, epoch, level): (u64, Epoch, Level),
        older: Option<u64>,
    ) {
        let mut containers = Vec::new();
        let mut named = Vec::new();
        for node in 0..NODES {
            let taken = self.container(form, (step, epoch, level), node, older);
            let (bytes, manifest_digest) = taken.build();
            let holders = match level {
                Level::Global => vec![],
                _ => vec![(node + 1) % NODES],
            };
            named.push(ContainerRef {
                file: taken.file.clone(),
                server: node % SERVERS,
                node,
                writer: 0,
                len_bytes: bytes.len() as u64,
                manifest_digest,
                ranks: vec![(2 * node, 2)],
                refers_to: older.into_iter().collect(),
                holders,
            });
            self.put_in(&container_places(level, node), &taken.file, &bytes);
            containers.push(taken);
        }
        let record = CommitRecord {
            job: self.job.clone(),
            step,
            epoch,
            level,
            world_size: RANKS,
            nodes: node_names(),
            placement_generation: 1,
            servers: (0..SERVERS).map(|server| format!("/ost{server}")).collect(),
            containers: named,
            created_unix_ms: step,
        };
        let sealed = trust.seal(record.encode()).unwrap();
        let name = FileName::commit(step, epoch, level).to_string();
        self.put_in(&record_places(level), &name, &sealed);
        self.steps.push(Step {
            step,
            level,
            record,
            containers,
        });
    }

    fn container(
        &self,
        form: Form,
        (step, epoch, level): (u64, Epoch, Level),
        node: u32,
        older: Option<u64>,
    ) -> Taken {
        let mut header = ContainerHeader {
            features: Features {
                incompat: Features::REFERENCES,
                ..Features::default()
            },
            job: self.job.clone(),
            step,
            epoch,
            level,
            node,
            writer: 0,
            world_size: RANKS,
            alignment_bytes: BLOCK_BYTES as u32,
            created_unix_ms: 1,
            encryption: None,
        };
        let key = header_key(form, &mut header);
        let mut at = 2 * BLOCK_BYTES as u64;
        let mut ranks = Vec::new();
        for rank in [2 * node, 2 * node + 1] {
            let mut stream = Vec::new();
            let mut regions = Vec::new();
            for name in ["a", "b"] {
                let mut region = region(name);
                let extent = match older.filter(|_| name == "b") {
                    Some(older) => self.referred((older, level), node, rank),
                    None => {
                        let plain = payload(&self.job, step, rank, name);
                        let place = (rank, &region, at + stream.len() as u64);
                        let how = match (name, node) {
                            ("b", _) => Compression::None,
                            (_, 0) => Compression::Zstd,
                            _ => Compression::Lz4,
                        };
                        store(key.as_ref(), place, (how, &plain), &mut stream)
                    }
                };
                region.extents.push(extent);
                regions.push(region);
            }
            let record = RankRecord {
                rank,
                stream_len_bytes: stream.len() as u64,
                regions,
            };
            // Behind the stream: its padding, the rank record, and the next rank header.
            at += (stream.len().next_multiple_of(BLOCK_BYTES) + 2 * BLOCK_BYTES) as u64;
            ranks.push((record, stream));
        }
        Taken {
            header,
            ranks,
            file: container_name(step, epoch, node),
            stripes: vec![],
        }
    }

    pub fn step(&self, step: u64, level: Level) -> &Step {
        let mut steps = self.steps.iter();
        steps
            .find(|known| (known.step, known.level) == (step, level))
            .unwrap()
    }

    /// The extent of region "b" of a rank in an older checkpoint, as a later one refers to it.
    fn referred(&self, (older, level): (u64, Level), node: u32, rank: u32) -> Extent {
        let taken = &self.step(older, level).containers[node as usize];
        let (record, _) = &taken.ranks[(rank - 2 * node) as usize];
        let extent = &record.regions[1].extents[0];
        Extent {
            container: Some(taken.file.clone()),
            ..extent.clone()
        }
    }

    /// The whole job as it lies beneath a root.
    pub fn image(&self) -> Image {
        let empty = Image::default();
        let mut image = self
            .files
            .iter()
            .fold(empty, |image, ((place, name), content)| {
                image.with(
                    &format!("{}/{name}", place.path()),
                    Some(Arc::clone(content)),
                )
            });
        // A directory whose files are all gone is there all the same.
        let gone: BTreeSet<Place> = PLACES.into_iter().collect();
        for place in gone {
            if image.dir(&place.path()).is_none() {
                let name = format!("{}/x.tmp", place.path());
                image = image
                    .with(&name, Some(Content::new(vec![])))
                    .with(&name, None);
            }
        }
        image
    }

    /// Which steps a restart may return: every byte of a checkpoint that the job took and that was not superseded.
    pub fn truth(&self, step: u64, rank: u32, region: &str) -> Option<Vec<u8>> {
        let from = match (step, region) {
            (30, "b") => 20,
            (NEWEST, "b") => 40,
            (10 | 20 | 30 | 35 | 40 | NEWEST, _) => step,
            _ => return None,
        };
        Some(payload(&self.job, from, rank, region))
    }
}

fn node_names() -> Vec<String> {
    (0..NODES).map(|node| format!("n{node}")).collect()
}

pub fn resumed(job: &JobName, counter: u64, from: Option<(u64, Epoch)>) -> Resumed {
    Resumed {
        job: job.clone(),
        epoch: epoch(counter),
        step: from.map(|(step, _)| step),
        from: from.map(|(_, epoch)| epoch),
    }
}

/// The nodes of an epoch; nobody listens there.
pub fn members(job: &JobName, counter: u64) -> Members {
    let member = |name: String| Member {
        addresses: vec![format!("unix:@{}-{name}-{counter}", job.as_str())],
        name,
        key: [counter as u8; 32],
        encrypt: false,
        epoch: counter,
    };
    Members {
        job: job.clone(),
        epoch: epoch(counter),
        nodes: node_names().into_iter().map(member).collect(),
    }
}

pub fn region(name: &str) -> RegionRecord {
    RegionRecord {
        name: name.into(),
        kind: RegionKind::Array,
        dtype: Dtype::F64,
        flags: 0,
        len_bytes: REGION_BYTES as u64,
        local: vec![REGION_BYTES as u64 / 8],
        global: vec![],
        offset: vec![],
        same_as: None,
        extents: vec![],
    }
}

/// Appends a piece to the stream, as its form asks for.
pub fn store(
    key: Option<&ContainerKey>,
    (rank, region, physical): (u32, &RegionRecord, u64),
    (compression, plain): (Compression, &[u8]),
    stream: &mut Vec<u8>,
) -> Extent {
    let encoding = Encoding {
        compression,
        encrypted: key.is_some(),
        ..Encoding::default()
    };
    let mut stored = match compression {
        Compression::None => plain.to_vec(),
        Compression::Zstd => zstd::bulk::compress(plain, 1).unwrap(),
        Compression::Lz4 => lz4_flex::block::compress(plain),
    };
    if let Some(key) = key {
        stored.resize(stored.len() + SEAL_BYTES as usize, 0);
        let binding = Binding {
            rank,
            region: region.identity(),
            region_at_bytes: 0,
            len_bytes: plain.len() as u64,
            encoding: encoding.code(),
        };
        key.seal(physical, &binding, crc64(plain), &mut stored)
            .unwrap();
    }
    let extent = Extent {
        container: None,
        store: 0,
        physical,
        stored_len_bytes: stored.len() as u64,
        len_bytes: plain.len() as u64,
        encoding: encoding.code(),
        crc_stored: crc64(&stored),
        crc_plain: if key.is_some() { 0 } else { crc64(plain) },
    };
    stream.extend_from_slice(&stored);
    extent
}

/// Makes a header say how its container is encrypted, in the words of that form.
fn header_key(form: Form, header: &mut ContainerHeader) -> Option<ContainerKey> {
    let secret = Secret::new(SECRET);
    header.features.incompat |= Features::ENCODED;
    match form {
        Form::Plain => None,
        Form::Sealed => Some(ContainerKey::create(&secret, header).unwrap()),
        Form::V1 => {
            header.features.incompat |= Features::ENCRYPTED;
            header.encryption = Some(Encryption {
                salt: [header.step as u8; 32],
                key_check: v1_key_check(header),
                mac: None,
            });
            Some(ContainerKey::open(&secret, header).unwrap())
        }
    }
}

/// As `docs/format.md` has it for files of 0.1.0, written down a second time.
fn v1_key_check(header: &ContainerHeader) -> [u8; 16] {
    struct Len;
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            16
        }
    }
    let job = header.job.as_str();
    let mut info = vec![job.len() as u8];
    info.extend_from_slice(job.as_bytes());
    info.extend_from_slice(&header.step.to_le_bytes());
    info.extend_from_slice(&header.epoch.counter.to_le_bytes());
    info.extend_from_slice(&header.epoch.run.0);
    info.extend_from_slice(&header.level.code().to_le_bytes());
    info.extend_from_slice(&header.node.to_le_bytes());
    info.extend_from_slice(&header.writer.to_le_bytes());
    let salt = [header.step as u8; 32];
    let mut check = [0; 16];
    hkdf::Salt::new(hkdf::HKDF_SHA256, &salt)
        .extract(&SECRET)
        .expand(&[b"orcheck v1 key check", &info], Len)
        .and_then(|okm| okm.fill(&mut check))
        .unwrap();
    check
}

/// What a region says of itself, apart from where it lies.
#[derive(Debug, PartialEq, Eq)]
pub struct RegionShape(String);

impl RegionShape {
    pub fn of(region: &RegionRecord) -> Self {
        let RegionRecord {
            dtype,
            len_bytes,
            local,
            ..
        } = region;
        Self(format!("{dtype:?} {len_bytes} {local:?}"))
    }
}
