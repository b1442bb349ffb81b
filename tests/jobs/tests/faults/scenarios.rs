//! What users of SCR and FTI see happen to their checkpoints, as one table: four ranks on four
//! virtual nodes take steps 1 and 2, something happens, and a restart gives a step, a fresh start
//! or an error, with the words that the user reads.
//!
//! How: every run is a process of its own, so that it can be killed; its ranks are threads. The
//! restart writes down what each rank got and was told. Where a run lives through what happens, its
//! ranks write down what they are told, too. What can happen is in `scene.rs`, the table in
//! `table.rs`.

mod scene;
mod table;

use orcheck_format::ErrorKind;
use orcheck_jobs::support::make_dir;
use orcheck_jobs::trial::PATIENCE;
use orcheck_testing::{Child, Ended, Scratch};
use scene::{Levels, Scene, comes_back};
use table::SCENARIOS;

const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// What a restart gives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gives {
    Step(u64),
    /// One of these on all ranks: a moment decides whether the second was committed.
    StepOrNext(u64),
    Fresh,
    Refused(ErrorKind),
}

struct Scenario {
    name: &'static str,
    levels: Levels,
    happens: fn(&Scene),
    /// Where the restart finds the directories, below those of the first run.
    root: &'static str,
    /// The nodes of the ranks at the restart.
    home: [&'static str; 4],
    /// Options of the restart beside those of the job.
    options: &'static str,
    gives: Gives,
    /// Each is in what some rank is told, while it happens or at the restart; without any, nobody
    /// is told anything.
    told: &'static [&'static str],
    /// Whether somebody is told something depends on the nodes that were drawn for the copies.
    either: bool,
}

/// Runs one scenario; what went otherwise than the table says.
fn play(scenario: &Scenario) -> std::result::Result<(), String> {
    let scratch = Scratch::in_memory("scenario");
    let scene = Scene {
        root: scratch.path(),
        levels: scenario.levels,
    };
    scene.takes_two();
    (scenario.happens)(&scene);
    // A directory that is gone with its disk is there again, and empty.
    make_dir(&scratch.path().join("local"));
    let root = scratch.path().join(scenario.root);
    let scene = Scene {
        root: &root,
        ..scene
    };
    let job = scene.job().placed(&scenario.home).with(scenario.options);
    let report = scratch.path().join("report");
    let ended = Child::run(|| {
        let ranks = job.run(comes_back);
        let gives = ranks.iter().map(|(found, _)| match found {
            Ok(Some(step)) => Gives::Step(*step),
            Ok(None) => Gives::Fresh,
            Err(error) => Gives::Refused(error.kind()),
        });
        let mut lines: Vec<String> = gives.map(|gives| format!("{gives:?}")).collect();
        for (found, told) in ranks {
            lines.extend(found.err().map(|error| error.to_string()));
            lines.extend(told);
        }
        std::fs::write(&report, lines.join("\n")).unwrap();
        0
    });
    let ended = ended.wait(PATIENCE);
    if ended != Ended::Exited(0) {
        return Err(format!("the restart ended with {ended:?}"));
    }
    let report = std::fs::read_to_string(&report).unwrap() + "\n" + &scene.heard();
    let report = report.trim_end();
    let expected = match scenario.gives {
        Gives::StepOrNext(step) => vec![Gives::Step(step), Gives::Step(step + 1)],
        gives => vec![gives],
    };
    let on_all_ranks = |gives: &Gives| {
        let expected = format!("{gives:?}");
        report.lines().take(4).all(|line| line == expected)
    };
    if !expected.iter().any(on_all_ranks) {
        return Err(format!(
            "expected {:?} on every rank, found {report}",
            scenario.gives
        ));
    }
    for part in scenario.told {
        if !report.contains(part) {
            return Err(format!("nobody is told '{part}', but {report}"));
        }
    }
    // Nothing is reported four times: one rank reports what concerns the job. A run that was killed
    // in a flush may leave containers of a step that it never committed, and that is told.
    let unfinished = |line: &&str| line.contains("and no commit record: its run ended");
    let lines = report.lines().filter(|line| !unfinished(line)).count();
    if scenario.told.is_empty() && !scenario.either && lines > 4 {
        return Err(format!("nothing happened, and the user is told {report}"));
    }
    Ok(())
}

/// Every row of the table.
// Breaks if: a fallback is silent, a copy is not used, or an error does not name what is missing.
pub fn what_happens_to_users_of_scr_and_fti() {
    let mut failed = Vec::new();
    for scenario in SCENARIOS {
        match play(scenario) {
            Ok(()) => println!("  ok      {}", scenario.name),
            Err(text) => {
                println!("  FAILED  {}: {text}", scenario.name);
                failed.push(scenario.name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
