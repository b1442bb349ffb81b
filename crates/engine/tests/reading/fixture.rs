//! Checkpoints made straight from the format: a small writer that knows nothing of the engine.
//!
//! Every payload identifies itself (job, rank, step, region, offset), so that swapped, stale or zero bytes are
//! recognised. Files are damaged by flipping bits in place.
//!
//! Not here: assertions.

#![allow(dead_code)] // Each test program uses its own part.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orcheck_format::disk::{
    BLOCK_BYTES, Claim, CommitRecord, ContainerHeader, ContainerRef, Extent, Features, FileName,
    Manifest, RankHeader, RankRecord, RegionKind, RegionRecord, Resumed, STREAM_LEN_UNKNOWN,
    STRIPE_UNIT_BYTES, TRAILER_BYTES, Trailer, encode_rank_record, header_crc, ranks_to_ranges,
};
use orcheck_format::{Dtype, Epoch, JobName, Level, RunId, crc64};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Steps;
use orcheck_staging::open_dir;

/// A directory that is removed at the end of the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("orcheck-test-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A directory below, made if needed.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn open_places(dirs: &[PathBuf]) -> Vec<Arc<dyn Dir>> {
    dirs.iter()
        .map(|dir| open_dir(dir, Steps::none()).unwrap())
        .collect()
}

pub fn job() -> JobName {
    JobName::new("cavity").unwrap()
}

pub fn epoch(counter: u64) -> Epoch {
    Epoch {
        counter,
        run: RunId([counter as u8 + 0x10; 16]),
    }
}

/// What a rank stores in a region of that name.
pub fn payload(rank: u32, step: u64, region: &str, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        let mut line = format!("cavity r{rank} s{step} {region} @{}", bytes.len()).into_bytes();
        line.resize(64, b'.');
        bytes.extend_from_slice(&line);
    }
    bytes.truncate(len);
    bytes
}

/// A region to be written: name, length in bytes, extent length in bytes.
#[derive(Clone)]
pub struct RegionSpec {
    pub name: String,
    pub len: usize,
    pub cut: usize,
}

/// A checkpoint to be written.
#[derive(Clone)]
pub struct Spec {
    pub job: JobName,
    pub step: u64,
    pub epoch: Epoch,
    pub level: Level,
    /// The ranks of each node, in the order in which they flush.
    pub nodes: Vec<Vec<u32>>,
    pub regions: Vec<RegionSpec>,
    pub alignment: u32,
    pub incompat: u64,
    /// Stripe files per container.
    pub stripes: usize,
    /// Rank headers do not know the length of the stream.
    pub unknown_len: bool,
}

impl Spec {
    pub fn new(step: u64, counter: u64) -> Spec {
        let region = |name: &str, len, cut| RegionSpec {
            name: name.into(),
            len,
            cut,
        };
        Spec {
            job: job(),
            step,
            epoch: epoch(counter),
            level: Level::Global,
            nodes: vec![vec![1, 0], vec![2, 3]],
            regions: vec![
                region("u", 8 * 3000, 8192),
                region("notes", 77, 8192),
                region("empty", 0, 8192),
            ],
            alignment: 4096,
            incompat: 0,
            stripes: 0,
            unknown_len: false,
        }
    }

    fn name(&self, node: u32) -> FileName {
        FileName::Container {
            step: self.step,
            epoch: self.epoch.counter,
            run: self.epoch.run.short_bytes(),
            node,
            writer: 0,
        }
    }

    pub fn commit_name(&self) -> String {
        FileName::Commit {
            step: self.step,
            epoch: self.epoch.counter,
            run: self.epoch.run.short_bytes(),
            level: self.level,
        }
        .to_string()
    }
}

/// A checkpoint that was written.
pub struct Written {
    pub record: CommitRecord,
    /// Path of each container.
    pub paths: Vec<PathBuf>,
    /// For each container, its structures by name with their byte range.
    pub structures: Vec<Vec<(String, std::ops::Range<usize>)>>,
}

impl Written {
    pub fn structure(&self, container: usize, name: &str) -> std::ops::Range<usize> {
        let found = self.structures[container]
            .iter()
            .find(|(known, _)| known == name);
        found
            .unwrap_or_else(|| panic!("no structure {name}"))
            .1
            .clone()
    }
}

/// Writes containers (node n into directory n, round robin) and the commit record (into every directory).
pub fn write(dirs: &[PathBuf], spec: &Spec) -> Written {
    let mut containers = Vec::new();
    let mut paths = Vec::new();
    let mut structures = Vec::new();
    for (node, ranks) in spec.nodes.iter().enumerate() {
        let server = node % dirs.len();
        let built = build(spec, node as u32, ranks);
        let path = dirs[server].join(&built.manifest.stores[0]);
        std::fs::write(&path, &built.bytes).unwrap();
        for (number, stripe) in built.stripes.iter().enumerate() {
            let dir = &dirs[(server + number) % dirs.len()];
            std::fs::write(dir.join(&built.manifest.stores[number + 1]), stripe).unwrap();
        }
        containers.push(ContainerRef {
            file: built.manifest.stores[0].clone(),
            server: server as u32,
            node: node as u32,
            writer: 0,
            len_bytes: built.bytes.len() as u64,
            manifest_digest: Manifest::digest(&built.manifest.encode()),
            ranks: ranks_to_ranges(ranks),
            refers_to: vec![],
            holders: vec![],
        });
        paths.push(path);
        structures.push(built.structures);
    }
    let record = CommitRecord {
        job: spec.job.clone(),
        step: spec.step,
        epoch: spec.epoch,
        level: spec.level,
        world_size: spec.nodes.iter().map(|ranks| ranks.len() as u32).sum(),
        nodes: (0..spec.nodes.len())
            .map(|node| format!("node{node}"))
            .collect(),
        placement_generation: 1,
        servers: dirs.iter().map(|dir| dir.display().to_string()).collect(),
        containers,
        created_unix_ms: 1_700_000_000_000,
    };
    for dir in dirs {
        std::fs::write(dir.join(spec.commit_name()), record.encode()).unwrap();
    }
    Written {
        record,
        paths,
        structures,
    }
}

struct Built {
    bytes: Vec<u8>,
    stripes: Vec<Vec<u8>>,
    manifest: Manifest,
    structures: Vec<(String, std::ops::Range<usize>)>,
}

fn pad(bytes: &mut Vec<u8>, alignment: u32) {
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
}

fn build(spec: &Spec, node: u32, ranks: &[u32]) -> Built {
    let world_size = spec.nodes.iter().map(|ranks| ranks.len() as u32).sum();
    let header = ContainerHeader {
        features: Features {
            incompat: spec.incompat,
            ..Features::default()
        },
        job: spec.job.clone(),
        step: spec.step,
        epoch: spec.epoch,
        level: spec.level,
        node,
        writer: 0,
        world_size,
        alignment_bytes: spec.alignment,
        created_unix_ms: 1_700_000_000_000,
        encryption: None,
    }
    .encode();
    let mut bytes = header.to_vec();
    pad(&mut bytes, spec.alignment);
    let mut structures = vec![("header".to_string(), 0..BLOCK_BYTES)];
    let mut stripes = vec![Vec::new(); spec.stripes];
    let mut records = Vec::new();
    for &rank in ranks {
        let (stream, relative) = rank_stream(spec, rank);
        let begin = bytes.len();
        bytes.extend_from_slice(
            &RankHeader {
                rank,
                step: spec.step,
                epoch: spec.epoch,
                stream_len_bytes: if spec.unknown_len {
                    STREAM_LEN_UNKNOWN
                } else {
                    stream.len() as u64
                },
                cut_bytes: 8192,
            }
            .encode(),
        );
        structures.push((format!("rank header {rank}"), begin..bytes.len()));
        pad(&mut bytes, spec.alignment);
        let stream_at = bytes.len();
        let mut absolute = relative.clone();
        let extents = absolute
            .regions
            .iter_mut()
            .flat_map(|region| &mut region.extents);
        if spec.stripes == 0 {
            bytes.extend_from_slice(&stream);
            structures.push((format!("stream {rank}"), stream_at..bytes.len()));
            if !bytes.len().is_multiple_of(spec.alignment as usize) {
                let end = bytes.len().next_multiple_of(spec.alignment as usize);
                structures.push((format!("padding {rank}"), bytes.len()..end));
            }
            pad(&mut bytes, spec.alignment);
            extents.for_each(|extent| extent.physical += stream_at as u64);
        } else {
            let mut units = Vec::new();
            for (number, unit) in stream.chunks(STRIPE_UNIT_BYTES as usize).enumerate() {
                let store = (number + rank as usize) % spec.stripes;
                units.push((store, stripes[store].len() as u64));
                stripes[store].extend_from_slice(unit);
            }
            extents.for_each(|extent| {
                let (store, at) = units[(extent.physical / STRIPE_UNIT_BYTES) as usize];
                extent.store = store as u16 + 1;
                extent.physical = at + extent.physical % STRIPE_UNIT_BYTES;
            });
        }
        let begin = bytes.len();
        bytes.extend_from_slice(&encode_rank_record(&relative));
        structures.push((format!("rank record {rank}"), begin..bytes.len()));
        pad(&mut bytes, spec.alignment);
        records.push(absolute);
    }
    records.sort_by_key(|record| record.rank);
    let mut stores = vec![spec.name(node).to_string()];
    for stripe in 1..=spec.stripes as u32 {
        let FileName::Container {
            step,
            epoch,
            run,
            node,
            writer,
        } = spec.name(node)
        else {
            unreachable!()
        };
        stores.push(
            FileName::Stripe {
                step,
                epoch,
                run,
                node,
                writer,
                stripe,
            }
            .to_string(),
        );
    }
    let manifest = Manifest {
        job: spec.job.clone(),
        step: spec.step,
        epoch: spec.epoch,
        level: spec.level,
        node,
        node_name: format!("node{node}"),
        writer: 0,
        world_size,
        stores,
        ranks: records,
    };
    let encoded = manifest.encode();
    let manifest_at = bytes.len();
    bytes.extend_from_slice(&encoded);
    structures.push(("manifest".into(), manifest_at..bytes.len()));
    pad(&mut bytes, spec.alignment);
    let end = bytes.len() + spec.alignment as usize;
    bytes.resize(end - TRAILER_BYTES, 0);
    let trailer = Trailer {
        manifest_at: manifest_at as u64,
        manifest_len_bytes: encoded.len() as u64,
        manifest_digest: Manifest::digest(&encoded),
        file_len_bytes: end as u64,
        header_crc: header_crc(&header),
    };
    structures.push(("trailer".into(), bytes.len()..end));
    bytes.extend_from_slice(&trailer.encode());
    Built {
        bytes,
        stripes,
        manifest,
        structures,
    }
}

/// The stream of a rank and its record, positions relative to the stream. Region "same" is stored by rank 0.
fn rank_stream(spec: &Spec, rank: u32) -> (Vec<u8>, RankRecord) {
    let mut stream = Vec::new();
    let mut regions = Vec::new();
    for region in &spec.regions {
        let shared = region.name == "same";
        let bytes = payload(
            if shared { 0 } else { rank },
            spec.step,
            &region.name,
            region.len,
        );
        let stored = !shared || rank == 0;
        let mut extents = Vec::new();
        if stored {
            for piece in bytes.chunks(region.cut) {
                let crc = crc64(piece);
                extents.push(Extent {
                    container: None,
                    store: 0,
                    physical: stream.len() as u64,
                    stored_len_bytes: piece.len() as u64,
                    len_bytes: piece.len() as u64,
                    encoding: 0,
                    crc_stored: crc,
                    crc_plain: crc,
                });
                stream.extend_from_slice(piece);
            }
        }
        let is_array = region.name == "u";
        regions.push(RegionRecord {
            name: region.name.clone(),
            kind: if is_array {
                RegionKind::Array
            } else {
                RegionKind::Bytes
            },
            dtype: if is_array { Dtype::F64 } else { Dtype::Bytes },
            flags: if shared { 2 } else { 0 },
            len_bytes: region.len as u64,
            local: if is_array {
                vec![region.len as u64 / 8]
            } else {
                Vec::new()
            },
            global: Vec::new(),
            offset: Vec::new(),
            same_as: (!stored).then_some(0),
            extents,
        });
    }
    let record = RankRecord {
        rank,
        stream_len_bytes: stream.len() as u64,
        regions,
    };
    (stream, record)
}

/// Flips one bit of a file in place.
pub fn flip(path: &Path, at: usize, bit: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

/// Writes a claim, and what its run resumed from if that is given.
pub fn claim(dir: &Path, epoch: Epoch, resumed: Option<Option<u64>>) {
    let claim = Claim {
        job: job(),
        epoch,
        host: "host-a".into(),
        pid: 4711,
        uid: 1000,
        since_unix_ms: 1_700_000_000_000,
        world_size: 4,
        nodes: vec!["node0".into(), "node1".into()],
    };
    std::fs::write(
        dir.join(
            FileName::Claim {
                epoch: epoch.counter,
            }
            .to_string(),
        ),
        claim.encode(),
    )
    .unwrap();
    if let Some(step) = resumed {
        let resumed = Resumed {
            job: job(),
            epoch,
            step,
            from: None,
        };
        std::fs::write(
            dir.join(
                FileName::Resumed {
                    epoch: epoch.counter,
                }
                .to_string(),
            ),
            resumed.encode(),
        )
        .unwrap();
    }
}
