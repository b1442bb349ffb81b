//! Random programs and their model: what each checkpoint must hold.

use super::*;
use orcheck_format::Rank;

/// What happens to a region before a checkpoint.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Nothing,
    /// Bytes at random places.
    Scattered(u64, u8),
    /// A range, from and length in 1/256 of the region.
    Range(u8, u8),
    /// Written with what is there already.
    Same,
    Everything,
    /// Protected again with another length, in 1/256 of the first.
    Length(u8),
    /// Not part of this checkpoint.
    Absent,
    Lent,
}

#[derive(Debug, Clone)]
pub(super) struct Step {
    /// One change per region.
    changes: Vec<Change>,
    /// The next checkpoint comes before this one is committed.
    hurried: bool,
    /// It goes to level `node` alone, if there is one.
    weak: bool,
    /// Lost at level node or global, by this error.
    lost: Option<(Level, i32)>,
}

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    ranks: u32,
    node_level: bool,
    keep: u32,
    chain: u32,
    threads: u32,
    pool: &'static str,
    /// Length and flags of each region.
    regions: Vec<(usize, u32)>,
    steps: Vec<Step>,
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => Just(Change::Nothing),
        4 => (any::<u64>(), 1u8..40).prop_map(|(seed, count)| Change::Scattered(seed, count)),
        3 => (any::<u8>(), 1u8..60).prop_map(|(from, len)| Change::Range(from, len)),
        1 => Just(Change::Same),
        1 => Just(Change::Everything),
        1 => any::<u8>().prop_map(Change::Length),
        1 => Just(Change::Absent),
        1 => Just(Change::Lent),
    ]
}

pub(super) fn scenario() -> impl Strategy<Value = Scenario> {
    let regions = prop::collection::vec(
        prop_oneof![
            (1_048_576usize..2_000_000).prop_map(|len| (len, CPU_WRITES_ONLY)),
            (1_048_576usize..1_300_000).prop_map(|len| (len, 0)),
            (10usize..300_000).prop_map(|len| (len, 0)),
            (10usize..3000).prop_map(|len| (len, CPU_WRITES_ONLY)),
        ],
        1..4,
    );
    let shape = (1u32..3, any::<bool>(), 1u32..4, 1u32..5, 1u32..4);
    let pools = prop_oneof![Just("32 MiB"), Just("256 KiB")];
    (shape, pools, regions).prop_flat_map(|(shape, pool, regions)| {
        let (ranks, node_level, keep, chain, threads) = shape;
        let lost = prop_oneof![
            6 => Just(None),
            1 => Just(Some((Level::Global, EIO))),
            1 => Just(Some((Level::Global, ENOSPC))),
            1 => Just(Some((Level::Node, EIO))),
        ];
        let changes = prop::collection::vec(change(), regions.len());
        let (hurried, weak) = (prop::bool::weighted(0.3), prop::bool::weighted(0.5));
        let step = (changes, hurried, weak, lost);
        let step = step.prop_map(|(changes, hurried, weak, lost)| Step {
            changes,
            hurried,
            weak,
            lost,
        });
        prop::collection::vec(step, 2..10).prop_map(move |steps| Scenario {
            ranks,
            node_level,
            keep,
            chain,
            threads,
            pool,
            regions: regions.clone(),
            steps,
        })
    })
}

pub(super) type States = Mutex<BTreeMap<(u32, u64), BTreeMap<String, Vec<u8>>>>;

pub(super) fn fill(bytes: &mut [u8], mut seed: u64) {
    for word in bytes.chunks_mut(8) {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&(seed ^ seed >> 29).to_le_bytes()[..word.len()]);
    }
}

pub(super) fn apply(change: &Change, bytes: &mut Vec<u8>, full_len: usize, seed: u64) {
    let len = bytes.len();
    match *change {
        Change::Nothing | Change::Absent | Change::Lent => {}
        Change::Scattered(places, count) => {
            for i in 0..u64::from(count) {
                let at = places.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % len;
                bytes[at] = bytes[at].wrapping_add(1 + seed as u8 % 5);
            }
        }
        Change::Range(from, part) => {
            let from = len * usize::from(from) / 256;
            let to = (from + len * usize::from(part) / 256 + 1).min(len);
            fill(&mut bytes[from..to], seed);
        }
        Change::Same => {
            let copy = bytes.clone();
            bytes.copy_from_slice(&copy);
        }
        Change::Everything => fill(bytes, seed),
        Change::Length(part) => {
            let wanted = (full_len * usize::from(part) / 256).max(1);
            bytes.resize(wanted, 0xa5);
        }
    }
}

pub(super) fn job_of(scenario: &Scenario, root: &Path, failpoints: Failpoints) -> Job {
    Job::new(root, scenario.ranks, 1, scenario.node_level)
        .pool(scenario.pool)
        .with("incremental = 'auto'")
        .with(&format!("incremental_chain = {}", scenario.chain))
        .with(&format!("keep = {}", scenario.keep))
        .with(&format!("copy_threads = {}", scenario.threads))
        .with("held_steps = 2")
        .failpoints(failpoints)
}

pub(super) fn live(
    scenario: &Scenario,
    session: &mut Session,
    rank: u32,
    plan: &FaultPlan,
    states: &States,
) {
    let mut memory: Vec<Vec<u8>> = scenario
        .regions
        .iter()
        .enumerate()
        .map(|(region, &(len, _))| {
            let mut bytes = vec![0; len];
            fill(&mut bytes, u64::from(rank) << 32 | region as u64);
            bytes
        })
        .collect();
    for (number, step) in scenario.steps.iter().enumerate() {
        let number = number as u64 + 1;
        let mut state = BTreeMap::new();
        for (region, change) in step.changes.iter().enumerate() {
            let name = format!("r{region}");
            let (full_len, flags) = scenario.regions[region];
            let bytes = &mut memory[region];
            if matches!(change, Change::Absent) && region > 0 {
                let _ = session.unprotect(&name);
                continue;
            }
            apply(change, bytes, full_len, number << 8 | region as u64);
            session
                .protect(&name, Span::from_mut(bytes), Dtype::U8, flags)
                .unwrap();
            if matches!(change, Change::Lent) {
                session.lend(&name).unwrap();
            }
            state.insert(name, bytes.clone());
        }
        states.lock().unwrap().insert((rank, number), state);
        if let (0, Some((level, errno))) = (rank, step.lost) {
            let place = if level == Level::Node {
                "local/job/n0/"
            } else {
                "ost0/job/"
            };
            let file = format!("{place}s{number:012}-");
            plan.fail_from_now("file.sync", &file, Verdict::Fail(errno));
        }
        let level = (step.weak && scenario.node_level).then_some(Level::Node);
        session.checkpoint_at(number, level).unwrap();
        for region in 0..scenario.regions.len() {
            let _ = session.lent_done(&format!("r{region}"), LONG);
        }
        if !step.hurried || step.lost.is_some() {
            for level in [Level::Node, Level::Global] {
                if level == Level::Global || scenario.node_level {
                    let _ = session.wait(number, level, LONG);
                }
            }
        }
    }
}

pub(super) fn places(scenario: &Scenario, root: &Path, level: Level) -> Places {
    let node = (level == Level::Node).then(|| root.join("local"));
    let servers: Vec<PathBuf> = (level == Level::Global)
        .then(|| root.join("ost0"))
        .into_iter()
        .collect();
    let _ = scenario;
    Places::open(
        &JobName::new("job").unwrap(),
        "n0",
        node.as_ref(),
        &servers,
        &Failpoints::none(),
        false,
    )
    .unwrap()
}

/// Every checkpoint with a record holds the model's bytes; returns how many there are.
pub(super) fn check(scenario: &Scenario, root: &Path, level: Level, states: &States) -> usize {
    let places = places(scenario, root, level);
    let catalog = Catalog::scan(&JobName::new("job").unwrap(), &places.all()).unwrap();
    assert_eq!(catalog.problems(), [], "level {level}");
    let states = states.lock().unwrap();
    for commit in catalog.commits() {
        let record = &commit.record;
        let verdict = verify_commit(&places.all(), record, &mut |_, _| ()).unwrap();
        assert!(
            verdict.is_good(),
            "step {} at {level}: {verdict:?}",
            record.step
        );
        let candidate = Candidate {
            step: record.step,
            epoch: record.epoch,
        };
        for rank in 0..scenario.ranks {
            let expected = &states[&(rank, record.step.0)];
            let mut view = RankView::open(&places, candidate, Rank(rank), scenario.ranks).unwrap();
            let names: Vec<&String> = expected.keys().collect();
            assert_eq!(view.region_names().iter().collect::<Vec<_>>(), names);
            for (name, bytes) in expected {
                let mut found = vec![0xee; bytes.len()];
                view.read(name, Span::from_mut(&mut found)).unwrap();
                assert!(
                    found == *bytes,
                    "step {}, rank {rank}, {name} at {level}",
                    record.step
                );
                let mut streamed = Vec::new();
                view.stream(name, &mut |_, part| {
                    streamed.extend_from_slice(part);
                    Ok(())
                })
                .unwrap();
                assert!(streamed == *bytes, "streamed: step {}, {name}", record.step);
            }
        }
    }
    catalog.commits().len()
}

pub(super) fn try_scenario(scenario: &Scenario) {
    let scratch = Scratch::in_memory("incremental");
    let (plan, steps) = FaultPlan::new().failpoints();
    let states = States::default();
    job_of(scenario, scratch.path(), steps).run(|session, rank| {
        let mut session = session.unwrap();
        live(scenario, &mut session, rank, &plan, &states);
        let _ = session.close(LONG);
    });
    let mut levels = vec![Level::Global];
    if scenario.node_level {
        levels.push(Level::Node);
    }
    let mut newest = 0;
    for &level in &levels {
        let count = check(scenario, scratch.path(), level, &states);
        let chain = match level {
            // What went there alone is referred to as well.
            Level::Node => 2 * scenario.chain,
            _ => scenario.chain,
        };
        let bound = (scenario.keep * (chain + 2) + 1) as usize;
        assert!(
            count <= bound,
            "{count} checkpoints stay at level {level}, {bound} are needed at most"
        );
        newest = newest.max(count);
    }
    if newest == 0 {
        return;
    }
    // A later run resumes from the newest, takes its own, and prunes: what stays is whole again.
    let last = scenario.steps.len() as u64;
    job_of(scenario, scratch.path(), Failpoints::none()).run(|session, rank| {
        let mut session = session.unwrap();
        let found = session.find().unwrap();
        let expected = states.lock().unwrap()[&(rank, found)].clone();
        let mut memory: BTreeMap<String, Vec<u8>> = expected
            .iter()
            .map(|(name, bytes)| (name.clone(), vec![0; bytes.len()]))
            .collect();
        for (name, bytes) in &mut memory {
            session
                .protect(name, Span::from_mut(bytes), Dtype::U8, CPU_WRITES_ONLY)
                .unwrap();
        }
        assert_eq!(session.restart().unwrap(), found);
        assert!(
            memory == expected,
            "rank {rank} restarted from other bytes than those of step {found}"
        );
        for step in last + 1..last + 4 {
            for bytes in memory.values_mut() {
                let at = bytes.len() / 2;
                bytes[at] ^= 0x55;
            }
            session.checkpoint(step).unwrap();
            states.lock().unwrap().insert((rank, step), memory.clone());
            session.wait(step, Level::Global, LONG).unwrap();
        }
        assert_eq!(session.stats().captured.step.0, last + 3);
        session.close(LONG).unwrap();
    });
    for level in levels {
        assert!(check(scenario, scratch.path(), level, &states) > 0);
    }
}
