//! Directories that are missing, read-only, full, foreign, mapped or lost.

use crate::session::disk::{self, Mounted, containers, names, skip};
use crate::session::hooks::Meeting;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, shown, warnings};
use crate::{Test, session_tests};
use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::{ErrorKind, Level};
use orcheck_io::failpoints::Verdict;
use orcheck_testing::{FaultPlan, Scratch};
use std::path::Path;
use std::sync::Arc;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_new_job_does_not_start_while_a_directory_is_missing,
    several_missing_directories_are_all_named_with_one_next_step,
    a_known_job_goes_on_without_a_missing_directory_and_says_so,
    a_directory_that_was_not_given_is_asked_for_instead_of_a_start_from_nothing,
    the_same_directory_twice_is_refused_also_under_another_name,
    a_file_in_place_of_a_directory_is_named,
    what_is_in_place_of_a_jobs_directory_is_named_with_what_to_do,
    a_read_only_directory_stops_a_new_job_and_is_left_out_by_a_known_one,
    a_full_directory_fails_the_step_names_the_place_and_the_next_step_goes_on,
    after_a_directory_is_full_the_next_checkpoint_goes_elsewhere,
    foreign_files_are_reported_and_never_touched,
    a_mapping_file_decides_where_containers_land,
    a_mapping_with_more_directories_than_streams_is_told,
    weighted_placement_follows_the_sizes_of_the_last_checkpoint,
    a_directory_that_fails_during_a_step_is_left_out_from_the_next_one_on,
    a_directory_moved_away_loses_the_step_and_is_left_out,
    a_nodes_directory_moved_away_loses_steps_until_it_is_back,
];

/// Protects, checkpoints and waits; the session stays open.
fn save(session: &mut Session, rank: u32, step: u64, scale: usize) {
    let mut state = State::new(rank, step, scale);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
    session.wait(step, Level::Global, LONG).unwrap();
}

/// A new run restores `step` of every rank.
fn restores(job: &Job, step: u64, scale: usize) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        let mut state = State::empty(rank, scale);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(state.is(rank, step, scale), "rank {rank}");
        session.close(LONG).unwrap();
    });
}

// ---- missing ---------------------------------------------------------------------------------

// Breaks if: a missing root is created, or a new job starts without it.
fn a_new_job_does_not_start_while_a_directory_is_missing() {
    let scratch = Scratch::new("missing");
    let job = Job::new(scratch.path(), 2, 2, true);
    for gone in ["ost1", "local"] {
        let path = scratch.path().join(gone);
        disk::remove_tree(&path);
        job.run(|session, _| {
            let error = refused(session);
            let path = path.display().to_string();
            says(
                &error,
                ErrorKind::NotFound,
                &[&path, "No such file or directory", "create the directory"],
            );
            let level = if gone == "local" {
                "level node"
            } else {
                "a new job needs all its directories"
            };
            says(&error, ErrorKind::NotFound, &[level]);
        });
        assert!(!path.exists());
        crate::support::make_dir(&path);
    }
}

// Breaks if: one of them is named: whoever makes that one is refused again.
fn several_missing_directories_are_all_named_with_one_next_step() {
    let scratch = Scratch::new("missing-both");
    let job = Job::new(scratch.path(), 1, 3, false);
    let paths = ["ost1", "ost2"].map(|name| scratch.path().join(name));
    let shown = paths.each_ref().map(|path| path.display().to_string());
    paths.iter().for_each(|path| disk::remove_tree(path));
    job.run(|session, _| {
        let error = refused(session);
        let next = format!("create {} and {}, or correct the paths", shown[0], shown[1]);
        assert_eq!(error.next_step(), Some(next.as_str()), "{error}");
        assert_eq!(
            error.message().matches("No such file").count(),
            2,
            "{error}"
        );
    });
    for path in &paths {
        crate::support::make_dir(path);
    }
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        session.close(LONG).unwrap();
    });
    paths.iter().for_each(|path| disk::remove_tree(path));
    job.run(|session, _| {
        let told = warnings(&mut session.unwrap());
        let next = format!("Next: bring {} and {} back", shown[0], shown[1]);
        assert!(told.iter().any(|text| text.contains(&next)), "{told:?}");
    });
}

// Breaks if: `Places::open` treats every missing root as an error, or tells nobody about it.
fn a_known_job_goes_on_without_a_missing_directory_and_says_so() {
    let scratch = Scratch::new("known");
    let job = Job::new(scratch.path(), 4, 2, false).nodes(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        session.close(LONG).unwrap();
    });
    // Node 1's containers were there: the checkpoint cannot be restored, and that is reported too.
    disk::rename(&scratch.path().join("ost1"), &scratch.path().join("away"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let told = warnings(&mut session);
        assert!(
            told.iter()
                .any(|text| text.contains("skipped: level global") && text.contains("ost1")),
            "{told:?}"
        );
        let error = refused(session.find());
        // Breaks if: the containers alone are named; whoever follows that would give a good
        // checkpoint up.
        says(
            &error,
            ErrorKind::Unavailable,
            &[
                "ost1 of level global cannot be read (open directory ",
                "No such file or directory",
                "no checkpoint of job 'job' can be restored",
                "step 1 skipped",
                ".orc",
                "Next: bring ",
            ],
        );
        assert!(!error.message().contains("fresh"), "{error}");
        assert!(
            told.iter()
                .all(|text| !text.contains("create the directory"))
        );
        let _ = rank;
    });
    let strict = job.clone().with("strict = true");
    strict.run(|session, _| {
        let error = refused(session.unwrap().find());
        says(
            &error,
            ErrorKind::Unavailable,
            &["ost1", "strict", "Next: bring "],
        );
    });
    // Back again: nothing was lost.
    disk::rename(&scratch.path().join("away"), &scratch.path().join("ost1"));
    restores(&job, 1, 20);
    disk::rename(&scratch.path().join("ost1"), &scratch.path().join("away"));
    job.clone().with("fresh = true").run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 2, 20);
        session.close(LONG).unwrap();
    });
    assert_eq!(
        containers(&scratch.path().join("ost0"))
            .iter()
            .filter(|(step, _)| *step == 2)
            .count(),
        2
    );
    restores(&job, 2, 20);
    // Back again: what it holds of the older life does not count.
    disk::rename(&scratch.path().join("away"), &scratch.path().join("ost1"));
    restores(&job, 2, 20);
}

// Breaks if: what lies in a directory that was not given counts as lost; the user is told to begin
// from nothing.
fn a_directory_that_was_not_given_is_asked_for_instead_of_a_start_from_nothing() {
    let scratch = Scratch::new("forgotten");
    let both = Job::new(scratch.path(), 4, 2, false).nodes(2);
    both.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        session.close(LONG).unwrap();
    });
    let one = Job::new(scratch.path(), 4, 1, false).nodes(2);
    let ost1 = shown(scratch.path(), 1);
    let written = format!("it was written to {ost1}, which is none of them");
    let next = format!("Next: give {ost1} too");
    for job in [one.clone(), one.with("strict = true")] {
        job.run(|session, _| {
            let error = refused(session.unwrap().find());
            says(&error, ErrorKind::Corrupt, &[&written, &next]);
            assert!(!error.message().contains("fresh"), "{error}");
        });
    }
    restores(&both, 1, 20);
}

fn the_same_directory_twice_is_refused_also_under_another_name() {
    let scratch = Scratch::new("twice");
    let job = Job::new(scratch.path(), 1, 1, false);
    let ost = scratch.path().join("ost0").display().to_string();
    let twice = Job {
        options: job
            .options
            .replace("global = ", &format!("node_dir = '{ost}'\nglobal = ")),
        ..job.clone()
    };
    twice.run(|session, _| {
        let error = refused(session);
        says(
            &error,
            ErrorKind::Invalid,
            &[&ost, "is configured twice", "its own directory"],
        );
    });
    let dotted = format!("['{ost}', '{}/../{}']", ost, "ost0");
    let dotted = Job {
        options: job.options.replace(&format!("['{ost}']"), &dotted),
        ..job
    };
    dotted.run(|session, _| {
        let error = refused(session);
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "is the same directory as one configured before it",
                "its own directory",
            ],
        );
    });
    assert_eq!(
        names(&scratch.path().join("ost0/job")),
        Vec::<String>::new(),
        "no claim is left"
    );
}

fn a_file_in_place_of_a_directory_is_named() {
    let scratch = Scratch::new("file");
    let job = Job::new(scratch.path(), 1, 1, false);
    disk::remove_tree(&scratch.path().join("ost0"));
    disk::write(&scratch.path().join("ost0"), b"not a directory");
    job.run(|session, _| {
        says(
            &refused(session),
            ErrorKind::Invalid,
            &["ost0", "Not a directory", "name a directory"],
        );
    });
}

// Breaks if: the error has no next step; nothing says that the file is in the way of the job's
// directory.
fn what_is_in_place_of_a_jobs_directory_is_named_with_what_to_do() {
    for name in ["ost0/job", "local/job"] {
        let scratch = Scratch::new("in-place");
        let job = Job::new(scratch.path(), 1, 1, true);
        let path = scratch.path().join(name);
        disk::write(&path, b"a note");
        job.run(|session, _| {
            let error = refused(session);
            let path = path.display().to_string();
            says(&error, ErrorKind::Invalid, &[&path, "Not a directory"]);
            let next = error.next_step().unwrap_or_else(|| panic!("{error}"));
            assert!(next.contains("move what is in place of"), "{error}");
            assert!(next.contains(&path), "{error}");
        });
    }
}

// ---- read-only -------------------------------------------------------------------------------

/// Makes `dir` unwritable for this user: a read-only mount for the superuser, else its mode.
struct ReadOnly<'a> {
    path: &'a Path,
    mounted: Option<Mounted>,
}

impl<'a> ReadOnly<'a> {
    /// Before the test uses the directory.
    fn prepare(path: &'a Path, test: &str) -> Option<Self> {
        if !disk::is_superuser() {
            return Some(Self {
                path,
                mounted: None,
            });
        }
        let mounted = Mounted::new(path, "size=8m");
        if mounted.is_none() {
            skip(test, "the superuser may not mount a file system here");
            return None;
        }
        Some(Self { path, mounted })
    }

    fn begin(&self) {
        match &self.mounted {
            Some(mounted) => mounted.make_read_only(),
            None => disk::set_writable(self.path, false),
        }
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        if self.mounted.is_none() {
            disk::set_writable(self.path, true);
        }
    }
}

// Breaks if: `open_beneath` does not ask `read_only`, or `open_copy` reads only where it may write.
fn a_read_only_directory_stops_a_new_job_and_is_left_out_by_a_known_one() {
    let scratch = Scratch::new("readonly");
    let path = scratch.path().join("ost1");
    crate::support::make_dir(&path);
    let Some(read_only) = ReadOnly::prepare(&path, "a_read_only_directory") else {
        return;
    };
    let job = Job::new(scratch.path(), 2, 2, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        session.close(LONG).unwrap();
    });
    read_only.begin();
    let path = path.display().to_string();
    // Another job, which no directory knows.
    let opened = Session::open_with(
        "new",
        Box::new(Solo),
        Options::from_text(&job.options),
        Environment::default(),
    );
    says(
        &refused(opened),
        ErrorKind::Unavailable,
        &[
            &path,
            "is read-only",
            "mount it writable, or configure another",
        ],
    );
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let told = warnings(&mut session);
        assert!(told.iter().any(|text| text.contains("read, but not written") && text.contains("is read-only")), "{told:?}");
        assert_eq!(session.find().unwrap(), 1);
        State::restores(&mut session, rank, 1, 20);
        save(&mut session, rank, 2, 20);
        session.close(LONG).unwrap();
    });
}

// ---- full ------------------------------------------------------------------------------------

// Breaks if: the error of a write is dropped, or a failed container is left lying.
fn a_full_directory_fails_the_step_names_the_place_and_the_next_step_goes_on() {
    let scratch = Scratch::new("full");
    let full = scratch.path().join("ost0");
    let Some(_mounted) = Mounted::new(&full, "size=1m") else {
        return skip(
            "a_full_directory",
            "mounting a file system of 1 MiB needs the superuser",
        );
    };
    let job = Job::new(scratch.path(), 1, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 50);
        let mut large = State::new(rank, 2, 900);
        large.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        let error = refused(session.wait(2, Level::Global, LONG));
        says(
            &error,
            ErrorKind::NoSpace,
            &[
                "checkpoint 2 is not safe at level global",
                "node n0",
                &full.display().to_string(),
                "No space left on device (ENOSPC)",
            ],
        );
        assert_eq!(containers(&full), [(1, 0)], "the failed container is gone");
        save(&mut session, rank, 3, 50);
        session.close(LONG).unwrap();
    });
    restores(&job, 3, 50);
}

// Breaks if: a full directory keeps its lanes, or its loss is told to nobody.
fn after_a_directory_is_full_the_next_checkpoint_goes_elsewhere() {
    for mode in ["orchestrated", "vertical", "traditional"] {
        let scratch = Scratch::new("elsewhere");
        let full = scratch.path().join("ost1");
        let Some(_mounted) = Mounted::new(&full, "size=1m") else {
            return skip(
                "after_a_directory_is_full",
                "mounting a file system of 1 MiB needs the superuser",
            );
        };
        let job = Job::new(scratch.path(), 2, 3, false).with(&format!("mode = '{mode}'"));
        let job = if mode == "traditional" {
            job
        } else {
            job.nodes(2)
        };
        let results = job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::new(rank, 1, 3000);
            state.protect(&mut session).unwrap();
            session.checkpoint(1).unwrap();
            let failed = session.wait(1, Level::Global, LONG);
            save(&mut session, rank, 2, 3000);
            let told = warnings(&mut session);
            session.close(LONG).unwrap();
            (failed, told)
        });
        for (failed, _) in &results {
            says(
                failed.as_ref().unwrap_err(),
                ErrorKind::NoSpace,
                &["ost1", "ENOSPC"],
            );
        }
        let told: Vec<&String> = results.iter().flat_map(|(_, told)| told).collect();
        let expected = |text: &&String| {
            text.contains("ost1") && text.contains("takes no more containers of this run")
        };
        let lost = |text: &&String| text.contains("checkpoint 1 is lost at level global");
        assert!(
            told.iter().any(expected) && told.iter().all(|text| expected(text) || lost(text)),
            "{mode}: {told:?}"
        );
        restores(&job, 2, 3000);
    }
}

// ---- foreign ---------------------------------------------------------------------------------

// Breaks if: prune removes what `FileName::parse` does not know.
fn foreign_files_are_reported_and_never_touched() {
    let scratch = Scratch::new("foreign");
    let job = Job::new(scratch.path(), 1, 1, false).with("keep = 1");
    let dir = scratch.path().join("ost0/job");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        disk::write(&dir.join("notes.txt"), b"mine");
        disk::write(&dir.join("s000000000001.orc.bak"), b"also mine");
        crate::support::make_dir(&dir.join("plots"));
        disk::write(&dir.join("plots/route-e000001-aabbccdd-r0"), b"and this");
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let told = warnings(&mut session);
        let dir = dir.display().to_string();
        assert!(
            told.iter().any(|text| text.contains("2 files")
                && text.contains(&dir)
                && text.contains("notes.txt")),
            "{told:?}"
        );
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        session.restart().unwrap();
        for step in 2..5 {
            save(&mut session, rank, step, 20);
        }
        session.close(LONG).unwrap();
    });
    assert_eq!(
        containers(&scratch.path().join("ost0")),
        [(4, 0)],
        "prune did its work"
    );
    assert_eq!(disk::read(&dir.join("notes.txt")), b"mine");
    assert_eq!(disk::read(&dir.join("s000000000001.orc.bak")), b"also mine");
    assert_eq!(
        disk::read(&dir.join("plots/route-e000001-aabbccdd-r0")),
        b"and this"
    );
}

// ---- placement -------------------------------------------------------------------------------

// Breaks if: `first_placement` ignores `mapping`.
fn a_mapping_file_decides_where_containers_land() {
    let scratch = Scratch::new("mapping");
    let file = scratch.path().join("map.toml");
    let ost = |i: u32| scratch.path().join(format!("ost{i}"));
    let job = Job::new(scratch.path(), 3, 3, false)
        .nodes(3)
        .with(&format!("mapping = '{}'", file.display()));
    let text = format!(
        "[nodes]\nn0 = '{}'\nn1 = '{}'\nn2 = '{}'\n",
        ost(2).display(),
        ost(2).display(),
        ost(0).display()
    );
    disk::write(&file, text.as_bytes());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        session.close(LONG).unwrap();
    });
    assert_eq!(containers(&ost(0)), [(1, 2)]);
    assert_eq!(containers(&ost(1)), []);
    assert_eq!(containers(&ost(2)), [(1, 0), (1, 1)]);
    for i in 0..3 {
        let records = names(&ost(i).join("job"))
            .iter()
            .filter(|name| name.ends_with("global.commit"))
            .count();
        assert_eq!(records, 1, "every directory holds the record");
    }
    restores(&job, 1, 20);

    for (text, parts) in [
        (
            "[nodes]\nn0 = '/nowhere'\n",
            ["map.toml", "/nowhere", "which is not configured"],
        ),
        (
            "[nodes]\n",
            ["map.toml", "node \"n0\" has no entry", "add a line such as"],
        ),
        ("nodes: n0", ["map.toml", "mapping file", "docs/options.md"]),
    ] {
        disk::write(&file, text.as_bytes());
        job.run(|session, _| says(&refused(session), ErrorKind::Invalid, &parts));
    }
    disk::remove_file(&file);
    job.run(|session, _| {
        says(
            &refused(session),
            ErrorKind::NotFound,
            &["map.toml", "No such file"],
        )
    });
}

fn a_mapping_with_more_directories_than_streams_is_told() {
    let scratch = Scratch::new("lanes");
    let file = scratch.path().join("map.toml");
    let both = format!("'{0}/ost0', '{0}/ost1'", scratch.path().display());
    disk::write(
        &file,
        format!("[nodes]\nn0 = [{both}]\nn1 = [{both}]\n").as_bytes(),
    );
    let job = Job::new(scratch.path(), 4, 2, false)
        .nodes(2)
        .with(&format!("mapping = '{}'", file.display()));
    let told = job
        .run(|session, _| warnings(&mut session.unwrap()))
        .concat();
    for node in ["'n0'", "'n1'"] {
        let what = [node, "2 directories", "1 CP-threads", "set lanes_per_node"];
        assert!(
            told.iter()
                .any(|text| what.iter().all(|part| text.contains(part))),
            "{told:?}"
        );
    }
    let job = job.with("lanes_per_node = 2");
    let told = job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        let told = warnings(&mut session);
        session.close(LONG).unwrap();
        told
    });
    assert_eq!(told.concat(), Vec::<String>::new());
    for ost in ["ost0", "ost1"] {
        assert_eq!(containers(&scratch.path().join(ost)), [(1, 0), (1, 1)]);
    }
}

// Breaks if: `first_placement` takes `Balance::Weighted` for `Balanced`.
fn weighted_placement_follows_the_sizes_of_the_last_checkpoint() {
    let scratch = Scratch::new("weighted");
    let job = Job::new(scratch.path(), 4, 2, false)
        .nodes(4)
        .with("placement = 'weighted'");
    // Node 1 is as large as all others together.
    let scale = |rank: u32| if rank == 1 { 900 } else { 300 };
    let ost = |i: u32| scratch.path().join(format!("ost{i}"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, scale(rank));
        session.close(LONG).unwrap();
    });
    assert_eq!(
        containers(&ost(0)),
        [(1, 0), (1, 2)],
        "without sizes: balanced"
    );
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, scale(rank));
        state.protect(&mut session).unwrap();
        session.restart().unwrap();
        save(&mut session, rank, 2, scale(rank));
        session.close(LONG).unwrap();
    });
    let second = |i| {
        containers(&ost(i))
            .into_iter()
            .filter(|(step, _)| *step == 2)
            .map(|(_, node)| node)
    };
    let mut nodes: Vec<Vec<u32>> = vec![second(0).collect(), second(1).collect()];
    nodes.sort();
    assert_eq!(nodes, [vec![0, 2, 3], vec![1]]);
}

// ---- lost during the run ---------------------------------------------------------------------

// Breaks if: `LeadState::replace` keeps the old placement, or a healthy directory is blamed for it.
fn a_directory_that_fails_during_a_step_is_left_out_from_the_next_one_on() {
    for (mode, site) in [
        ("orchestrated", "file.write"),
        ("traditional", "dir.create"),
        ("traditional", "file.allocate"),
        ("traditional", "file.write"),
        ("traditional", "file.sync"),
    ] {
        let scratch = Scratch::new("lost");
        let plan = Arc::new(FaultPlan::new());
        let failpoints = orcheck_io::failpoints::Failpoints::with(
            Arc::clone(&plan) as Arc<dyn orcheck_io::failpoints::FailpointHook>
        );
        // Striped: the rank's container is in ost0, one of its stripes in ost1. Otherwise node 1
        // writes to ost1.
        let nodes = if mode == "traditional" { 1 } else { 2 };
        let job = Job::new(scratch.path(), nodes, 3, false)
            .nodes(nodes)
            .with(&format!("mode = '{mode}'"))
            .failpoints(failpoints);
        let told = job.run(|session, rank| {
            let mut session = session.unwrap();
            save(&mut session, rank, 1, 300);
            plan.fail_from_now(site, "ost1", Verdict::Fail(5));
            let mut state = State::new(rank, 2, 300);
            state.protect(&mut session).unwrap();
            session.checkpoint(2).unwrap();
            let error = refused(session.wait(2, Level::Global, LONG));
            says(
                &error,
                ErrorKind::Unavailable,
                &["checkpoint 2 is not safe at level global", "ost1", "EIO"],
            );
            save(&mut session, rank, 3, 300);
            let told = warnings(&mut session);
            session.close(LONG).unwrap();
            told
        });
        plan.heal();
        let told = told.concat();
        assert!(
            told.iter().all(|text| text.contains("ost1")
                && (text.contains("takes no more containers")
                    || text.contains("checkpoint 2 is lost"))),
            "{mode}: {told:?}"
        );
        let left_out = |text: &String| text.contains("takes no more containers");
        assert!(told.iter().any(left_out), "{mode}: {told:?}");
        restores(
            &Job {
                failpoints: orcheck_io::failpoints::Failpoints::none(),
                ..job
            },
            3,
            300,
        );
    }
}

/// What the wait for a step says whose directory is not where its path leads.
fn moved_away(session: &mut Session, step: u64, level: Level, dir: &str) {
    let error = refused(session.wait(step, level, LONG));
    let step = format!("checkpoint {step} is not safe");
    let expected = [step.as_str(), dir, "moved away, replaced or unmounted"];
    says(&error, ErrorKind::Unavailable, &expected);
}

// Breaks if: containers or records are written wherever the open handle leads (`Dir::check_path`
// says Ok).
fn a_directory_moved_away_loses_the_step_and_is_left_out() {
    if crate::support::needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("moved");
    let (here, there) = (scratch.path().join("ost1"), scratch.path().join("away"));
    let job = Job::new(scratch.path(), 2, 2, false).nodes(2);
    let all = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1, 20);
        if all.wait() {
            disk::rename(&here, &there);
            crate::support::make_dir(&here);
        }
        all.wait();
        let mut state = State::new(rank, 2, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        moved_away(&mut session, 2, Level::Global, "ost1");
        save(&mut session, rank, 3, 20);
        session.close(LONG).unwrap();
    });
    assert_eq!(disk::names(&here), [""; 0]);
    let steps: Vec<u64> = containers(&there).iter().map(|(step, _)| *step).collect();
    assert!(!steps.contains(&3), "{steps:?}");
    // Without what was moved away: the newest step that was called safe.
    restores(&job, 3, 20);
}

// Breaks if: a node writes its record, or a container, where the open handle leads.
fn a_nodes_directory_moved_away_loses_steps_until_it_is_back() {
    let scratch = Scratch::new("moved-node");
    let (here, there) = (scratch.path().join("local"), scratch.path().join("away"));
    let job = Job::new(scratch.path(), 2, 0, true);
    let all = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut take = |step: u64| {
            let mut state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            all.wait();
            session.checkpoint(step).unwrap();
            let result = session.wait(step, Level::Node, LONG);
            // Nobody moves anything before all have waited.
            all.wait();
            result
        };
        take(1).unwrap();
        if rank == 0 {
            disk::rename(&here, &there);
        }
        for step in [2, 3] {
            let error = refused(take(step));
            says(
                &error,
                ErrorKind::Unavailable,
                &[
                    "local",
                    "moved away, replaced or unmounted",
                    "found nothing",
                ],
            );
        }
        if rank == 0 {
            disk::rename(&there, &here);
        }
        take(4).unwrap();
        session.close(LONG).unwrap();
    });
    let left = disk::names(&here.join("job/n0"));
    assert!(
        left.iter().all(|name| !name.contains("s000000000002")),
        "{left:?}"
    );
}
