//! What commit records promise, held against what lies in the directories, be they real or those of
//! an image.
//!
//! How: every record of every age is verified as `orcheck verify` does, which reads what a restart
//! would read: its containers, and of older containers what it refers to. Also, every older step
//! that it names as needed must have its container, whether or not bytes in it are referred to yet.

use crate::life::Workload;
use orcheck_engine::replicas::verify_parity;
use orcheck_engine::restart::reader::Reader;
use orcheck_engine::upkeep::verify_commit_with;
use orcheck_format::disk::{CommitRecord, Compression, ContainerRef, Encoding, FileName};
use orcheck_format::{Level, NodeId, Result};
use orcheck_io::disk::{Dir, read_small};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Far above the length of any record here.
const LIMIT_BYTES: u64 = 1 << 20;

/// How the bytes that records promise are stored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    /// Extents that lie in older containers.
    pub referred: usize,
    pub compressed: usize,
    pub encrypted: usize,
}

impl AddAssign for Kinds {
    fn add_assign(&mut self, other: Self) {
        self.referred += other.referred;
        self.compressed += other.compressed;
        self.encrypted += other.encrypted;
    }
}

/// What the records of a job say.
#[derive(Debug, Default, Clone)]
pub struct Records {
    /// Promises that are not kept, each with the record that gives it.
    pub broken: Vec<String>,
    pub kinds: Kinds,
    /// The directories that have each record, by its level, step and name.
    pub dirs: BTreeMap<(Level, u64, String), Vec<PathBuf>>,
}

/// Looks at all records. `open` opens a directory by its path beneath the root of the job; `None`:
/// it is not there.
pub fn records(workload: &Workload, open: &dyn Fn(&Path) -> Option<Arc<dyn Dir>>) -> Records {
    let mut found = Records::default();
    for level in workload.levels() {
        let beneath = if level == Level::Global {
            "ost"
        } else {
            "local"
        };
        let mut paths = workload.job_dirs(Path::new(""));
        paths.retain(|path| path.display().to_string().starts_with(beneath));
        let dirs: Vec<(PathBuf, Arc<dyn Dir>)> = paths
            .into_iter()
            .filter_map(|path| Some((path.clone(), open(&path)?)))
            .collect();
        let all: Vec<Arc<dyn Dir>> = dirs.iter().map(|(_, dir)| Arc::clone(dir)).collect();
        for (path, dir) in &dirs {
            // Nodes prune by themselves: a node's own record promises what is in its own directory.
            let own = std::slice::from_ref(dir);
            let places = if level == Level::Global { &all } else { own };
            for name in names(dir.as_ref()) {
                let Some(FileName::Commit { step, .. }) = FileName::parse(&name) else {
                    continue;
                };
                let dirs = found.dirs.entry((level, step.0, name.clone()));
                dirs.or_default().push(path.clone());
                let own_node = (level != Level::Global).then_some(path);
                match one(workload, dir.as_ref(), &name, places, own_node) {
                    Ok((broken, kinds)) => {
                        let place = |text| format!("{}/{name}: {text}", path.display());
                        found.broken.extend(broken.into_iter().map(place));
                        found.kinds += kinds;
                    }
                    Err(error) => found
                        .broken
                        .push(format!("{}/{name}: {error}", path.display())),
                }
            }
        }
    }
    found
}

fn names(dir: &dyn Dir) -> Vec<String> {
    let entries = dir.list().unwrap().into_iter();
    entries.map(|entry| entry.name).collect()
}

/// What one record promises that is not there or not whole.
// Breaks if: prune pins nothing (`Pinned::holds`), or not what a pinned checkpoint refers to
// (`Referred::pinned`): a record that stays then names bytes in a container that is gone. The
// newest checkpoint would often be fine.
fn one(
    workload: &Workload,
    dir: &dyn Dir,
    name: &str,
    places: &[Arc<dyn Dir>],
    own_node: Option<&PathBuf>,
) -> Result<(Vec<String>, Kinds)> {
    let bytes = read_small(dir, name, LIMIT_BYTES)?;
    let trust = workload.trust();
    let proof = trust.check(&bytes)?;
    let mut record = CommitRecord::decode(&bytes)?;
    if let Some(path) = own_node {
        let own = |node: u32| path.ends_with(format!("n{node}"));
        // Replicas of others lie here as whole as its own containers.
        let held = |container: &ContainerRef| container.holders.iter().any(|&holder| own(holder.0));
        // Of the parity, its own file is here.
        let of_own = |container: &ContainerRef| {
            let node = NodeId((0..record.nodes.len() as u32).find(|&node| own(node))?);
            let name = FileName::parse(&container.file)?.parity_on(node)?;
            (!record.groups.is_empty()).then(|| name.to_string())
        };
        let parity: BTreeSet<String> = record.containers.iter().filter_map(of_own).collect();
        for file in parity {
            verify_parity(dir, &file)?;
        }
        record.groups.clear();
        (record.containers).retain(|container| own(container.node.0) || held(container));
    }
    let verdict = verify_commit_with(places, &record, (&trust, proof), &mut |_, _| {})?;
    let mut broken: Vec<String> = verdict.findings().map(|f| f.message.clone()).collect();
    let mut kinds = Kinds::default();
    let there: Vec<String> = places.iter().flat_map(|dir| names(dir.as_ref())).collect();
    for container in &record.containers {
        let file = FileName::parse(&container.file);
        for step in &container.refers_to {
            let older = file.as_ref().map(|file| file.at_step(*step).to_string());
            if !older.is_some_and(|older| there.contains(&older)) {
                broken.push(format!(
                    "needs the container of step {step}, which is not there"
                ));
            }
        }
        let Ok(reader) = Reader::open(places, &record, container) else {
            continue;
        };
        let regions = reader
            .manifest()
            .ranks
            .iter()
            .flat_map(|rank| &rank.regions);
        for extent in regions.flat_map(|region| &region.extents) {
            let encoding = Encoding::from_code(extent.encoding)?;
            kinds += Kinds {
                referred: usize::from(extent.container.is_some()),
                compressed: usize::from(encoding.compression != Compression::None),
                encrypted: usize::from(encoding.encrypted),
            };
        }
    }
    Ok((broken, kinds))
}

/// Abstract sockets that carry the id of a run of this job.
pub fn sockets_of(workload: &Workload, root: &Path) -> Vec<String> {
    let table = std::fs::read("/proc/net/unix").unwrap();
    let table = String::from_utf8_lossy(&table);
    let mut runs = BTreeSet::new();
    for dir in workload.job_dirs(root) {
        for name in crate::life::names(&dir)
            .iter()
            .filter(|name| name.ends_with(".claim"))
        {
            let bytes = std::fs::read(dir.join(name)).unwrap_or_default();
            if let Ok(claim) = orcheck_format::disk::Claim::decode(&bytes) {
                runs.insert(claim.epoch.run.to_string());
            }
        }
    }
    let ours = |line: &&str| runs.iter().any(|run| line.contains(run.as_str()));
    table
        .lines()
        .filter(ours)
        .map(|line| format!("socket {line}"))
        .collect()
}
