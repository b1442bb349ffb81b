//! Tests advice: the levels of the module's table, against numbers calculated by hand, random runs,
//! and common sense.

use orcheck_interval::{Level, Levels, Pattern, Single};
use orcheck_planner::advice::{Choice, Failing, Machine, Rates, Task, Way, best};
use orcheck_planner::life::{Failures, Job};
use proptest::prelude::*;

const NEVER: f64 = f64::INFINITY;
const DAY_S: f64 = 86_400.0;

/// 100 nodes with 10 GB each, and round figures.
fn machine() -> Machine {
    Machine {
        memory_bytes_per_s: 70e9,
        copy_bytes_per_s: 20e9,
        memory_passes: 7.0,
        disk: Some(Rates {
            write_bytes_per_s: 2e9,
            read_bytes_per_s: 5e9,
        }),
        network_bytes_per_s: 10e9,
        shared: Rates {
            write_bytes_per_s: 10e9,
            read_bytes_per_s: 20e9,
        },
        failing: Failing {
            process_mtbf_s: 1000.0 * DAY_S,
            node_mtbf_s: 2000.0 * DAY_S,
            together: (10, 1000.0 * DAY_S),
            system_mtbf_s: 50.0 * DAY_S,
        },
    }
}

fn task() -> Task {
    Task {
        nodes: 100,
        node_bytes: 10e9,
        relaunch_s: 30.0,
        work_s: 10.0 * DAY_S,
    }
}

fn of(choices: &[Choice], way: Way) -> &Choice {
    let found = choices.iter().find(|choice| choice.way == way);
    found.expect("the way is offered")
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs()
}

#[track_caller]
fn assert_level(level: &Level, [checkpoint_s, safe_after_s, restart_s, rate_a_day]: [f64; 4]) {
    assert!(close(level.checkpoint_s, checkpoint_s), "{level:?}");
    assert!(close(level.safe_after_s, safe_after_s), "{level:?}");
    assert!(close(level.restart_s, restart_s), "{level:?}");
    assert!(
        (DAY_S / level.mtbf_s - rate_a_day).abs() < 1e-6 * rate_a_day,
        "{level:?}"
    );
}

// Breaks if: a level costs, arrives, restarts or is needed otherwise than the table of the module
// says.
#[test]
fn levels_are_those_worked_out_by_hand() {
    let choices = machine().choices(&task()).unwrap();
    // A day: 0.1 failures of processes, 0.05 of nodes, 0.01 of ten nodes together, 0.02 of the
    // system.
    let program = of(&choices, Way::Program);
    assert_level(&program.levels.0[0], [100.0, 0.0, 80.0, 0.18]);
    let global = of(&choices, Way::Global);
    assert_level(&global.levels.0[0], [1.0, 100.0, 80.0, 0.18]);
    let node = of(&choices, Way::Node);
    assert_level(&node.levels.0[0], [2.0, 5.0, 32.0, 0.1]);
    assert_level(&node.levels.0[1], [2.0, 105.0, 80.0, 0.08]);
    let peers = of(&choices, Way::Peers { replicas: 1 });
    assert_eq!(peers.names, ["peers", "global"]);
    // Almost all of 0.1 + 0.05 + 0.01: a second loss soon after the first needs the file system.
    let level = peers.levels.0[0];
    assert!(
        close(level.checkpoint_s, 3.0) && close(level.safe_after_s, 11.0),
        "{level:?}"
    );
    assert!(close(level.restart_s, 32.0), "{level:?}");
    let kept = DAY_S / level.mtbf_s;
    assert!(kept < 0.16 && kept > 0.159_99, "{kept}");
    let left = DAY_S / peers.levels.0[1].mtbf_s;
    assert!(close(kept + left, 0.18), "{left}");
    let alone = of(&choices, Way::PeersAlone { replicas: 2 });
    assert_eq!(alone.names, ["peers"]);
    assert!(
        close(alone.levels.0[0].checkpoint_s, 3.0),
        "{:?}",
        alone.levels
    );
    assert!(
        close(alone.levels.0[0].safe_after_s, 17.0),
        "{:?}",
        alone.levels
    );
}

// Breaks if: a failure is counted twice, or at no level.
#[test]
fn every_scheme_meets_all_failures() {
    for choice in machine().choices(&task()).unwrap() {
        assert!(close(DAY_S / choice.mtbf_s(), 0.18), "{:?}", choice.way);
    }
}

#[test]
fn a_program_that_writes_itself_is_the_textbook_case() {
    let choices = machine().choices(&task()).unwrap();
    let single = Single {
        checkpoint_s: 100.0,
        restart_s: 80.0,
        mtbf_s: DAY_S / 0.18,
    };
    let found = of(&choices, Way::Program).found.as_ref().unwrap();
    assert!((found.pattern.interval_s / single.best_s() - 1.0).abs() < 1e-3);
    assert!(close(
        found.efficiency,
        single.efficiency(found.pattern.interval_s)
    ));
}

// Breaks if: work that begins again is told to take another time than runs take.
#[test]
fn work_that_may_begin_anew_takes_as_long_as_runs_do() {
    let mut machine = machine();
    machine.failing.system_mtbf_s = 20.0 * DAY_S;
    let task = task();
    let choices = machine.choices(&task).unwrap();
    let choice = of(&choices, Way::PeersAlone { replicas: 2 });
    let found = choice.found.as_ref().unwrap();
    let below = choice.levels.0[0];
    let from_nothing = Level {
        mtbf_s: choice.from_nothing_mtbf_s,
        restart_s: task.relaunch_s,
        ..below
    };
    // Of the second level there is no checkpoint before the end.
    let every = (task.work_s / found.pattern.interval_s) as u32 + 2;
    let job = Job {
        work_s: task.work_s,
        levels: Levels(vec![below, from_nothing]),
        pattern: Pattern {
            interval_s: found.pattern.interval_s,
            every: vec![1, every],
        },
        failures: Failures::Exponential,
    };
    let runs = 4000;
    let total_s: f64 = (0..runs)
        .map(|number| job.live(1, number).unwrap().total_s)
        .sum();
    let drawn = task.work_s / (total_s / runs as f64);
    assert!(
        (choice.efficiency() / drawn - 1.0).abs() < 0.02,
        "{} and {drawn}",
        choice.efficiency()
    );
    // Without it only little would be lost: it is what counts here.
    assert!(found.efficiency > 0.99 && choice.efficiency() < 0.85);
}

#[test]
fn without_a_disk_or_enough_nodes_there_are_no_replicas() {
    let mut diskless = machine();
    diskless.disk = None;
    let ways: Vec<Way> = diskless
        .choices(&task())
        .unwrap()
        .iter()
        .map(|c| c.way)
        .collect();
    assert_eq!(ways, [Way::Program, Way::Global]);
    // One node has nobody to give replicas to.
    let few = Task { nodes: 1, ..task() };
    let choices = machine().choices(&few).unwrap();
    assert!(
        !choices
            .iter()
            .any(|choice| matches!(choice.way, Way::Peers { .. }))
    );
    // Where processes alone never fail, what is on the node alone is of no use.
    let mut steady = machine();
    steady.failing.process_mtbf_s = NEVER;
    let choices = steady.choices(&task()).unwrap();
    assert!(!choices.iter().any(|choice| choice.way == Way::Node));
}

// Breaks if: the levels do not make a difference where they are made for.
#[test]
fn a_slow_file_system_makes_replicas_worth_it() {
    let mut slow = machine();
    slow.shared = Rates {
        write_bytes_per_s: 0.5e9,
        read_bytes_per_s: 0.5e9,
    };
    slow.failing.node_mtbf_s = 100.0 * DAY_S;
    let choices = slow.choices(&task()).unwrap();
    let at = best(&choices).unwrap();
    assert!(
        matches!(choices[at].way, Way::Peers { .. }),
        "{:?}",
        choices[at].way
    );
    // With a fast one and hardly a failure nothing more than that is recommended.
    let mut calm = machine();
    calm.failing = Failing {
        process_mtbf_s: NEVER,
        node_mtbf_s: 1e6 * DAY_S,
        together: (1, NEVER),
        system_mtbf_s: NEVER,
    };
    calm.shared = Rates {
        write_bytes_per_s: 1e13,
        read_bytes_per_s: 1e13,
    };
    let choices = calm.choices(&task()).unwrap();
    assert_eq!(choices[best(&choices).unwrap()].way, Way::Global);
}

#[test]
fn hopeless_jobs_are_said_to_be() {
    let mut broken = machine();
    broken.failing.node_mtbf_s = 60.0;
    let choices = broken.choices(&task()).unwrap();
    assert_eq!(best(&choices), None);
    assert!(choices.iter().all(|choice| choice.efficiency() < 1e-4));
}

#[test]
fn nonsense_is_refused_by_name() {
    let refused = |change: fn(&mut Machine, &mut Task), part: &str| {
        let (mut machine, mut task) = (machine(), task());
        change(&mut machine, &mut task);
        let error = machine.choices(&task).unwrap_err();
        assert!(error.message().contains(part), "{part}: {error}");
    };
    refused(
        |machine, _| machine.memory_bytes_per_s = f64::NAN,
        "node's memory",
    );
    refused(
        |machine, _| machine.shared.write_bytes_per_s = -1.0,
        "written to the file system",
    );
    refused(
        |machine, _| machine.failing.node_mtbf_s = 0.0,
        "failures of a node",
    );
    refused(
        |machine, _| machine.failing.together = (0, 1.0),
        "fail together",
    );
    refused(|_, task| task.nodes = 0, "nodes of the job");
    refused(|_, task| task.work_s = 0.0, "work");
    refused(|_, task| task.node_bytes = f64::INFINITY, "node's part");
    refused(
        |machine, _| {
            machine.failing = Failing {
                process_mtbf_s: NEVER,
                node_mtbf_s: NEVER,
                together: (1, NEVER),
                system_mtbf_s: NEVER,
            };
        },
        "nothing ever fails",
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    // Breaks if: a better machine, or fewer failures, are worse for any way.
    #[test]
    fn what_is_better_never_makes_it_worse(
        nodes in 2u32..3000, gb in 0.1f64..200.0, node_days in 50.0f64..5000.0, shared in 1.0f64..2000.0, better in 1.1f64..10.0,
    ) {
        let task = Task { nodes, node_bytes: gb * 1e9, ..task() };
        let mut worse = machine();
        worse.failing.node_mtbf_s = node_days * DAY_S;
        worse.shared = Rates { write_bytes_per_s: shared * 1e9, read_bytes_per_s: shared * 1e9 };
        let mut faster = worse;
        faster.shared.write_bytes_per_s *= better;
        let mut steadier = worse;
        steadier.failing.node_mtbf_s *= better;
        let before = worse.choices(&task).unwrap();
        for changed in [faster, steadier] {
            for (before, after) in before.iter().zip(&changed.choices(&task).unwrap()) {
                prop_assert_eq!(before.way, after.way);
                let (before, after) = (before.efficiency(), after.efficiency());
                prop_assert!(after >= before * (1.0 - 1e-6), "{} and {}", before, after);
                prop_assert!((0.0..=1.0).contains(&after));
            }
        }
    }
}

// Breaks if: the loss of a node counts as that of all that could fail with it, or replicas vanish
// where a job has few switches.
#[test]
fn nodes_and_switches_are_lost_each_by_themselves() {
    let kept = |together| {
        let mut machine = machine();
        machine.failing.together = together;
        let choices = machine.choices(&task()).unwrap();
        let peers = of(&choices, Way::Peers { replicas: 1 });
        1.0 / peers.levels.0[0].mtbf_s
    };
    // Switches that all but never fail change nothing.
    let alone = kept((1, NEVER));
    for size in [2, 30, 50, 51, 100] {
        let with = kept((size, 1e12));
        assert!(
            (with / alone - 1.0).abs() < 1e-4,
            "{size}: {with} and {alone}"
        );
    }
    // Those that fail need the file system where replicas cannot be kept away from them.
    let of_switches = kept((50, 1000.0 * DAY_S)) - alone;
    assert!(
        (of_switches * DAY_S / 0.002 - 1.0).abs() < 0.01,
        "{of_switches}"
    );
    assert!((kept((51, 1000.0 * DAY_S)) / alone - 1.0).abs() < 1e-4);
}

// Breaks if: work that is shorter than an interval is told to need parts of checkpoints.
#[test]
fn short_work_is_done_without_checkpoints() {
    let short = Task {
        work_s: 60.0,
        ..task()
    };
    for choice in machine().choices(&short).unwrap() {
        assert!(choice.is_without(), "{:?}", choice.way);
        let mtbf_s = DAY_S / 0.18;
        let expected = 60.0 / (mtbf_s * (30.0 / mtbf_s).exp() * (60.0 / mtbf_s).exp_m1());
        assert!(close(choice.efficiency(), expected), "{:?}", choice.way);
    }
    let long = machine().choices(&task()).unwrap();
    assert!(long.iter().all(|choice| !choice.is_without()));
}
