//! What the simulated nodes write: the containers of a real job.

use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::{Epoch, Level, NodeId};
use orcheck_jobs::support::{Job, State, make_dir};
use orcheck_testing::Scratch;
use orcheck_testing::power::{Content, Image};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Size of a rank's state, in thousands of bytes.
pub const SCALE: usize = 2;
const STEPS: u64 = 3;
const LONG: Duration = Duration::from_secs(60);

/// A job of one rank on each node that took checkpoints of steps 1 … 3.
pub struct Material {
    pub nodes: u32,
    pub replicas: u32,
    pub epoch: Epoch,
    /// By step and node.
    pub containers: BTreeMap<(u64, NodeId), (ContainerRef, Arc<Content>)>,
    /// Claim and note of resumption, as every node has them.
    pub small: BTreeMap<String, Arc<Content>>,
    /// An empty directory for each node.
    pub empty: Image,
}

impl Material {
    pub fn of(nodes: u32, replicas: u32) -> Self {
        let scratch = Scratch::in_memory("jobs");
        let job = Job::new(scratch.path(), nodes, 0, true)
            .nodes(nodes)
            .pool("256 KiB")
            .with(&format!("peers = {replicas}\nkeep = 3"));
        job.run(|session, rank| {
            let mut session = session.unwrap();
            for step in 1..=STEPS {
                let mut state = State::new(rank, step, SCALE);
                state.protect(&mut session).unwrap();
                session.checkpoint(step).unwrap();
                session
                    .wait(step, Level::Peers(replicas as u8), LONG)
                    .unwrap();
            }
            session.close(LONG).unwrap();
        });
        let image = Image::read(&scratch.path().join("local/job")).unwrap();
        let dirs = Scratch::in_memory("jobs");
        (0..nodes).for_each(|node| make_dir(&dirs.path().join(format!("n{node}"))));
        let mut containers = BTreeMap::new();
        let mut small = BTreeMap::new();
        let mut epoch = None;
        for path in image.files() {
            let Some(name) = path.strip_prefix("n0/") else {
                continue;
            };
            let content = image.file(&path).unwrap();
            match FileName::parse(name).unwrap() {
                FileName::Commit { .. } => {
                    let record = CommitRecord::decode(&content.bytes()).unwrap();
                    epoch = Some(record.epoch);
                    for mut container in record.containers {
                        let at = format!("n{}/{}", container.node, container.file);
                        let bytes = Arc::clone(image.file(&at).unwrap());
                        container.holders.clear();
                        containers.insert((record.step.0, container.node), (container, bytes));
                    }
                }
                FileName::Claim { .. } | FileName::Resumed { .. } => {
                    small.insert(name.to_owned(), Arc::clone(content));
                }
                _ => {}
            }
        }
        Self {
            nodes,
            replicas,
            epoch: epoch.unwrap(),
            containers,
            small,
            empty: Image::read(dirs.path()).unwrap(),
        }
    }
}
