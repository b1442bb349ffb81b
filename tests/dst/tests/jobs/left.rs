//! The restart of a job on the nodes that are left, from what is on their disks, held against what
//! must come of it.

use crate::material::{Material, SCALE};
use crate::world::Disk;
use orcheck_engine::directory::Places;
use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::{RankView, candidates};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::{JobName, Rank};
use orcheck_io::disk::Dir;
use orcheck_io::memory::Span;
use orcheck_jobs::support::State;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The disks of the nodes that are left.
pub struct Left<'a> {
    material: &'a Material,
    disks: BTreeMap<u32, &'a Disk>,
    dirs: BTreeMap<u32, Arc<dyn Dir>>,
}

impl<'a> Left<'a> {
    pub fn new(
        material: &'a Material,
        disks: &'a BTreeMap<u32, Disk>,
        lost: &BTreeSet<u32>,
    ) -> Self {
        let left = disks.iter().filter(|(node, _)| !lost.contains(node));
        let disks: BTreeMap<u32, &Disk> = left.map(|(&node, disk)| (node, disk)).collect();
        let mut image = material.empty.clone();
        for (node, disk) in &disks {
            for (name, content) in disk.iter() {
                image = image.with(&format!("n{node}/{name}"), Some(Arc::clone(content)));
            }
        }
        let dir = |node: &u32| Some((*node, image.dir(&format!("n{node}"))?));
        let dirs = disks.keys().filter_map(dir).collect();
        Self {
            material,
            disks,
            dirs,
        }
    }

    /// The newest step that must be restored: a record is left, and each of its containers.
    fn expected(&self) -> Option<u64> {
        let mut records: BTreeMap<u64, CommitRecord> = BTreeMap::new();
        for disk in self.disks.values() {
            for (name, content) in disk.iter() {
                if matches!(FileName::parse(name), Some(FileName::Commit { .. })) {
                    let record = CommitRecord::decode(&content.bytes()).unwrap();
                    records.insert(record.step.0, record);
                }
            }
        }
        let whole = |record: &&CommitRecord| {
            let there = |file: &String| self.disks.values().any(|disk| disk.contains_key(file));
            record
                .containers
                .iter()
                .all(|container| there(&container.file))
        };
        let found = records.values().filter(whole).map(|record| record.step);
        found.max().map(u64::from)
    }

    /// Restarts all ranks on the nodes that are left; the step.
    pub fn restart(&self) -> Option<u64> {
        let expected = self.expected();
        let found = self.newest();
        assert_eq!(found, expected, "on nodes {:?}", self.disks.keys());
        found
    }

    fn newest(&self) -> Option<u64> {
        let job = JobName::new("job").unwrap();
        let (&first, _) = self.dirs.iter().next()?;
        let offer = match candidates(&job, &self.places(first)) {
            Ok(offer) => offer,
            Err(error) => panic!("{error}"),
        };
        for candidate in offer.candidates {
            let ranks = self.material.nodes;
            let homes: Vec<u32> = self.dirs.keys().copied().collect();
            let views: Result<Vec<RankView>, _> = (0..ranks)
                .map(|rank| {
                    let home = homes[rank as usize % homes.len()];
                    RankView::open(&self.places(home), candidate, Rank(rank), ranks)
                })
                .collect();
            let views = match views {
                Ok(views) => views,
                Err(error) => {
                    // Breaks if: the message does not say which container is nowhere.
                    let text = error.to_string();
                    assert!(
                        text.contains(".orc") && text.contains("in none of these places"),
                        "{text}"
                    );
                    continue;
                }
            };
            for (rank, mut view) in (0..).zip(views) {
                let mut state = State::empty(rank, SCALE);
                for (name, bytes) in [
                    ("u", &mut state.u),
                    ("v", &mut state.v),
                    ("small", &mut state.small),
                ] {
                    view.read(name, Span::from_mut(bytes)).unwrap();
                }
                assert!(
                    state.is(rank, candidate.step.0, SCALE),
                    "wrong bytes of rank {rank}, step {}",
                    candidate.step
                );
            }
            return Some(candidate.step.0);
        }
        None
    }

    /// The directories as one of the nodes sees them.
    fn places(&self, home: u32) -> Places {
        let others = self.dirs.iter().filter(|(node, _)| **node != home);
        Places {
            job: JobName::new("job").unwrap(),
            node: self.dirs.get(&home).cloned(),
            losses: self.material.replicas as u8,
            others: others.map(|(_, dir)| Arc::clone(dir)).collect(),
            servers: Vec::new(),
            read_only: Vec::new(),
            away: Vec::new(),
            server_roots: Vec::new(),
            notes: Vec::new(),
            trust: Trust::nobody(),
        }
    }
}
