//! A job with encrypted checkpoints, in memory: genuine files, and what each of them holds.
//!
//! ```text
//! epoch 1: step 10 (full) ─ step 20 (full) ─ step 30 (region "b" lies in step 20)
//! epoch 2: resumed from 30 ─ step 40 (full) ─ step 50 (region "b" lies in step 40)
//! ```
//! Two nodes with two ranks each; every rank has the regions "a" and "b", alike but for their names.
//!
//! Not here: attacks (`attack.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use orcheck_engine::commit::name_of;
use orcheck_engine::encoding::{Binding, ContainerKey};
use orcheck_engine::trust::{Accept, Trust};
use orcheck_format::container::{
    BLOCK_BYTES, ContainerHeader, Encryption, Features, RankHeader, STREAM_LEN_UNKNOWN,
    TRAILER_BYTES, Trailer, encode_rank_record, header_crc,
};
use orcheck_format::encoding::{Encoding, SEAL_BYTES};
use orcheck_format::manifest::RegionKind;
use orcheck_format::{
    Claim, CommitRecord, ContainerRef, Dtype, Epoch, Extent, FileName, JobName, Level, Manifest,
    RankRecord, RegionRecord, Resumed, RunId, crc64,
};
use orcheck_io::Secret;
use orcheck_io::testing::image::{Content, Image};
use ring::hkdf;

pub const SECRET: [u8; 32] = [7; 32];
pub const RANKS: u32 = 4;
const REGION_BYTES: usize = 256;
pub const LEVEL: Level = Level::Global;

/// In which form the job's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Sealed,
    V1,
    Plain,
}

pub fn job() -> JobName {
    JobName::new("cavity").unwrap()
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
pub fn payload(step: u64, rank: u32, region: &str) -> Vec<u8> {
    let line = format!("step {step} rank {rank} region {region} ");
    line.bytes().cycle().take(REGION_BYTES).collect()
}

/// A container taken apart: what an attacker changes and puts together again.
#[derive(Clone)]
pub struct Taken {
    pub header: ContainerHeader,
    pub ranks: Vec<(RankRecord, Vec<u8>)>,
    /// The name that the file and its manifest give themselves.
    pub file: String,
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
            stores: vec![self.file.clone()],
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

/// One checkpoint of the job.
#[derive(Clone)]
pub struct Step {
    pub step: u64,
    pub record: CommitRecord,
    pub containers: Vec<Taken>,
}

/// The job's directory, and what an attacker learns by reading it.
#[derive(Clone)]
pub struct World {
    pub files: BTreeMap<String, Vec<u8>>,
    pub steps: Vec<Step>,
}

impl World {
    pub fn new(form: Form) -> World {
        let trust = match form {
            Form::Sealed => key(SECRET, Accept::default()),
            _ => Trust::nobody(),
        };
        let mut world = World {
            files: BTreeMap::new(),
            steps: Vec::new(),
        };
        for (step, counter, older) in [
            (10, 1, None),
            (20, 1, None),
            (30, 1, Some(20)),
            (40, 2, None),
            (50, 2, Some(40)),
        ] {
            world.take(form, &trust, (step, epoch(counter)), older);
        }
        for (counter, from) in [(1, None), (2, Some((30, epoch(1))))] {
            let claim = Claim {
                job: job(),
                epoch: epoch(counter),
                host: "h".into(),
                pid: 1,
                uid: 0,
                since_unix_ms: 1,
                world_size: RANKS,
                nodes: vec!["n0".into(), "n1".into()],
            };
            let resumed = resumed(counter, from);
            let name = FileName::Claim { epoch: counter }.to_string();
            world
                .files
                .insert(name, trust.seal(claim.encode()).unwrap());
            let name = FileName::Resumed { epoch: counter }.to_string();
            world
                .files
                .insert(name, trust.seal(resumed.encode()).unwrap());
        }
        world
    }

    fn take(&mut self, form: Form, trust: &Trust, (step, epoch): (u64, Epoch), older: Option<u64>) {
        let mut containers = Vec::new();
        let mut named = Vec::new();
        for node in 0..2 {
            let taken = self.container(form, (step, epoch), node, older);
            let (bytes, manifest_digest) = taken.build();
            named.push(ContainerRef {
                file: taken.file.clone(),
                server: 0,
                node,
                writer: 0,
                len_bytes: bytes.len() as u64,
                manifest_digest,
                ranks: vec![(2 * node, 2)],
                refers_to: older.into_iter().collect(),
                holders: vec![],
            });
            self.files.insert(taken.file.clone(), bytes);
            containers.push(taken);
        }
        let record = CommitRecord {
            job: job(),
            step,
            epoch,
            level: LEVEL,
            world_size: RANKS,
            nodes: vec!["n0".into(), "n1".into()],
            placement_generation: 1,
            servers: vec!["/ost".into()],
            containers: named,
            created_unix_ms: step,
        };
        let sealed = trust.seal(record.encode()).unwrap();
        self.files.insert(name_of(step, epoch, LEVEL), sealed);
        self.steps.push(Step {
            step,
            record,
            containers,
        });
    }

    fn container(
        &self,
        form: Form,
        (step, epoch): (u64, Epoch),
        node: u32,
        older: Option<u64>,
    ) -> Taken {
        let mut header = ContainerHeader {
            features: Features {
                incompat: Features::REFERENCES,
                ..Features::default()
            },
            job: job(),
            step,
            epoch,
            level: LEVEL,
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
                    Some(older) => self.referred(older, node, rank),
                    None => {
                        let plain = payload(step, rank, name);
                        let place = (rank, &region, at + stream.len() as u64);
                        store(key.as_ref(), place, &plain, &mut stream)
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
        }
    }

    /// The extent of region "b" of a rank in an older checkpoint, as a later one refers to it.
    pub fn referred(&self, older: u64, node: u32, rank: u32) -> Extent {
        let older = self.steps.iter().find(|known| known.step == older).unwrap();
        let taken = &older.containers[node as usize];
        let (record, _) = &taken.ranks[(rank - 2 * node) as usize];
        let extent = &record.regions[1].extents[0];
        Extent {
            container: Some(taken.file.clone()),
            ..extent.clone()
        }
    }

    pub fn image(&self) -> Image {
        let empty = Image::default();
        self.files.iter().fold(empty, |image, (name, bytes)| {
            image.with(name, Some(Content::new(bytes.clone())))
        })
    }

    /// Which steps a restart may return: every byte of a checkpoint that the job took.
    pub fn truth(&self, step: u64, rank: u32, region: &str) -> Option<Vec<u8>> {
        let from = match (step, region) {
            (30, "b") => 20,
            (50, "b") => 40,
            (10 | 20 | 30 | 40 | 50, _) => step,
            _ => return None,
        };
        Some(payload(from, rank, region))
    }
}

pub fn resumed(counter: u64, from: Option<(u64, Epoch)>) -> Resumed {
    Resumed {
        job: job(),
        epoch: epoch(counter),
        step: from.map(|(step, _)| step),
        from: from.map(|(_, epoch)| epoch),
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
    plain: &[u8],
    stream: &mut Vec<u8>,
) -> Extent {
    let encoding = Encoding {
        encrypted: key.is_some(),
        ..Encoding::default()
    };
    let mut stored = plain.to_vec();
    if let Some(key) = key {
        stored.resize(plain.len() + SEAL_BYTES as usize, 0);
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
    header.features.incompat |= match form {
        Form::Plain => 0,
        _ => Features::ENCODED,
    };
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
