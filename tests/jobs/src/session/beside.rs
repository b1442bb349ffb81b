//! A start from nothing is never an accident: what lies beside it is told, and can be made an
//! error.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::session::resume::save;
use crate::support::{Job, State, needs_own_disks, shown};
use crate::{Test, session_tests};
use orcheck_client::{Session, Which};
use orcheck_format::{ErrorKind, Level, Step};
use orcheck_io::failpoints::Verdict;
use orcheck_testing::{FaultPlan, Scratch};
use std::path::Path;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_job_that_must_resume_does_not_begin_from_nothing,
    a_start_from_nothing_beside_data_is_reported_and_refused_by_strict,
    a_job_does_not_begin_from_nothing_beside_nodes_of_other_names,
    a_refused_start_leaves_nothing_and_writes_nothing,
    a_refused_start_leaves_nothing_on_any_node,
    that_a_start_is_fresh_by_choice_is_not_called_a_lack_of_checkpoints,
    other_jobs_are_not_named_when_a_new_one_begins,
    that_a_commit_record_was_removed_is_reported,
    a_directory_that_was_emptied_is_reported,
    what_another_node_remembers_of_a_directory_that_was_emptied_counts,
    a_job_whose_node_level_is_whole_starts_although_only_global_is_missing,
];

fn told(session: &mut Session) -> String {
    let told = crate::support::warnings(session);
    told.join("; ")
}

// Breaks if: the option is ignored where `find` or the first checkpoint decides that there is
// nothing.
fn a_job_that_must_resume_does_not_begin_from_nothing() {
    let scratch = Scratch::new("mustresume");
    let job = Job::new(scratch.path(), 2, 1, false);
    let resumes = job.clone().with("start = 'resume'");
    resumes.run(|session, rank| {
        let mut session = session.unwrap();
        let error = refused(session.find());
        says(
            &error,
            ErrorKind::Invalid,
            &["start = 'resume'", "job 'job'", &shown(scratch.path(), 0)],
        );
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        let error = refused(session.checkpoint(1));
        says(&error, ErrorKind::Invalid, &["start = 'resume'"]);
    });
    save(&job, &[(1, 10)]);
    resumes.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
    });
    // The older name of another choice.
    job.with("start = 'fresh'").run(|session, _| {
        let error = refused(session.unwrap().find());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

/// Brings the data of a job to where the next run does not look for it.
type Misplace = fn(&Path);

fn all_files(from: &Path, to: &Path) {
    crate::support::make_dir(to);
    for name in disk::names(from) {
        disk::rename(&from.join(&name), &to.join(&name));
    }
}

// Breaks if: only the job's own directory is looked at: each of these looks like a new job.
fn a_start_from_nothing_beside_data_is_reported_and_refused_by_strict() {
    let cases: [(&str, bool, Misplace, &[&str]); 4] = [
        (
            "mistyped",
            false,
            |root| disk::rename(&root.join("ost0/job"), &root.join("ost0/jobs")),
            &["ost0/jobs", "up to step 2", "may be mistyped"],
        ),
        (
            "flat",
            false,
            |root| all_files(&root.join("ost0/job"), &root.join("ost0")),
            &["ost0 itself holds checkpoint files", "belong in"],
        ),
        (
            "flat node",
            true,
            |root| all_files(&root.join("local/job/n0"), &root.join("local/job")),
            &["local/job itself holds", "directory of their node"],
        ),
        (
            "node of a mistyped job",
            true,
            |root| disk::rename(&root.join("local/job"), &root.join("local/jop")),
            &["local/jop", "up to step 2", "may be mistyped"],
        ),
    ];
    for (case, of_node, misplace, parts) in cases {
        let scratch = Scratch::new("beside");
        let job = Job::new(scratch.path(), 2, u32::from(!of_node), of_node);
        save(&job, &[(1, 10), (2, 10)]);
        misplace(scratch.path());
        let ost0 = shown(scratch.path(), 0);
        let parts: Vec<String> = parts
            .iter()
            .map(|part| part.replace("ost0", &ost0))
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        job.clone().with("strict = true").run(|session, _| {
            let error = refused(session.unwrap().find());
            says(&error, ErrorKind::Invalid, &parts);
            assert!(error.message().contains("start = 'fresh'"), "{error}");
        });
        job.clone().with("start = 'resume'").run(|session, _| {
            says(
                &refused(session.unwrap().find()),
                ErrorKind::Invalid,
                &parts,
            );
        });
        for (line, silent) in [("start = 'auto'", false), ("start = 'fresh'", true)] {
            let said = job.clone().with(line).run(|session, _| {
                let mut session = session.unwrap();
                let error = refused(session.find());
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                format!("{error}; {}", told(&mut session))
            });
            for (part, said) in parts
                .iter()
                .flat_map(|part| said.iter().map(move |said| (part, said)))
            {
                assert_eq!(
                    !said.contains(*part),
                    silent,
                    "{case}: '{part}' in {said:?}"
                );
            }
        }
    }
}

// Breaks if: it begins from nothing; two runs would write under one epoch, and nobody could say
// later which one counts.
fn a_job_does_not_begin_from_nothing_beside_nodes_of_other_names() {
    let scratch = Scratch::new("other-names");
    let old = Job::new(scratch.path(), 2, 0, true).placed(&["a", "b"]);
    save(&old, &[(1, 10), (2, 10)]);
    let new = old.clone().placed(&["x", "y"]);
    for _ in 0..2 {
        new.run(|session, _| {
            let mut session = session.unwrap();
            let error = refused(session.find());
            let of_a = "local/job/a holds checkpoints of this job up to step 2, taken on node 'a'";
            says(&error, ErrorKind::Invalid, &[of_a, "ORCHECK_NODE"]);
            assert_eq!(refused(session.checkpoint(3)).kind(), ErrorKind::Invalid);
        });
    }
    let plan = FaultPlan::new().always("dir.list", Verdict::Fail(13));
    let unreadable = plan.only_where("local/job/b").failpoints().1;
    new.clone().failpoints(unreadable).run(|session, _| {
        let error = refused(session.unwrap().find());
        says(&error, ErrorKind::Invalid, &["local/job/b cannot be read"]);
    });
    old.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 2));
    // Only the option is wrong: what was `node_dir` is given as a directory of level `global`.
    let wrong = Scratch::new("wrong-option");
    save(&Job::new(wrong.path(), 2, 0, true), &[(1, 10)]);
    disk::rename(&wrong.path().join("local"), &wrong.path().join("ost0"));
    Job::new(wrong.path(), 2, 1, false).run(|session, _| {
        let error = refused(session.unwrap().find());
        let words = ["up to step 1, written by a node", "ORCHECK_NODE_DIR"];
        says(&error, ErrorKind::Invalid, &words);
    });
    // A run that committed nothing left nothing to continue from.
    let begun = Scratch::new("begun");
    let old = Job::new(begun.path(), 2, 0, true).placed(&["a", "b"]);
    save(&old, &[(1, 10)]);
    for node in ["a", "b"] {
        let dir = begun.path().join("local/job").join(node);
        let names = disk::names(&dir);
        let records = names.iter().filter(|name| name.ends_with(".commit"));
        records.for_each(|name| disk::remove_file(&dir.join(name)));
    }
    old.placed(&["x", "y"]).run(|session, _| {
        let error = refused(session.unwrap().find());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
    new.clone().with("start = 'fresh'").run(|session, _| {
        let error = refused(session.unwrap().find());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

// Breaks if: the claim stays, after which the mistyped name is listed as a job; or the run
// continues without it.
fn a_refused_start_leaves_nothing_and_writes_nothing() {
    let scratch = Scratch::new("refused");
    let job = Job::new(scratch.path(), 2, 1, true);
    save(&job, &[(1, 10)]);
    for dir in ["ost0", "local"] {
        let dir = scratch.path().join(dir);
        disk::rename(&dir.join("job"), &dir.join("jobs"));
    }
    for line in ["start = 'resume'", "strict = true"] {
        job.clone().with(line).run(|session, rank| {
            let mut session = session.unwrap();
            let first = refused(session.find());
            // As a program that ends without a close leaves it.
            for dir in ["ost0/job", "local/job/n0"] {
                let left = disk::names(&scratch.path().join(dir));
                assert!(rank != 0 || left.is_empty(), "{line}: {left:?}");
            }
            let mut state = State::new(rank, 1, 10);
            state.protect(&mut session).unwrap();
            let later = [
                refused(session.find()),
                refused(session.checkpoint(1)),
                refused(session.reject(1)),
            ];
            for error in later {
                assert!(error.message().ends_with(first.message()), "{error}");
            }
        });
    }
    // Nobody is in the way of a run that is right.
    for dir in ["ost0", "local"] {
        let dir = scratch.path().join(dir);
        disk::remove_tree(&dir.join("job"));
        disk::rename(&dir.join("jobs"), &dir.join("job"));
    }
    job.with("start = 'resume'").run(|session, _| {
        assert_eq!(session.unwrap().find().unwrap(), 1);
    });
}

// Breaks if: a list of the run's nodes stays where the claim goes; the name is listed as a job all
// the same.
fn a_refused_start_leaves_nothing_on_any_node() {
    let scratch = Scratch::new("refused-peers");
    let job = Job::new(scratch.path(), 2, 0, true)
        .placed(&["a", "b"])
        .with("peers = 1\nstart = 'resume'");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let own = scratch
            .path()
            .join("local/job")
            .join(["a", "b"][rank as usize]);
        assert!(!disk::names(&own).is_empty());
        refused(session.find());
        assert_eq!(disk::names(&own), [""; 0]);
    });
}

fn that_a_start_is_fresh_by_choice_is_not_called_a_lack_of_checkpoints() {
    let scratch = Scratch::new("fresh");
    let job = Job::new(scratch.path(), 1, 1, false);
    save(&job, &[(1, 10)]);
    job.with("start = 'fresh'").run(|session, _| {
        let mut session = session.unwrap();
        let error = refused(session.find());
        let begins = "job 'job' begins from nothing, because start = 'fresh'";
        says(&error, ErrorKind::NotFound, &[begins]);
        assert!(!error.message().contains("no checkpoint"), "{error}");
        let error = refused(session.find_step(Which::Exactly(Step(1))));
        says(
            &error,
            ErrorKind::NotFound,
            &["start = 'fresh' begins from nothing"],
        );
    });
}

fn other_jobs_are_not_named_when_a_new_one_begins() {
    let scratch = Scratch::new("others");
    let job = Job::new(scratch.path(), 1, 1, false);
    save(&job, &[(1, 10)]);
    disk::rename(
        &scratch.path().join("ost0/job"),
        &scratch.path().join("ost0/pipeflow"),
    );
    let said = job.with("strict = true").run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(refused(session.find()).kind(), ErrorKind::NotFound);
        told(&mut session)
    });
    assert_eq!(said, [""]);
}

// Breaks if: containers without a record are not looked at: the newest step would vanish silently.
fn that_a_commit_record_was_removed_is_reported() {
    let scratch = Scratch::new("record");
    let job = Job::new(scratch.path(), 2, 1, false);
    save(&job, &[(1, 10), (2, 10)]);
    let dir = scratch.path().join("ost0/job");
    let remove_newest = || {
        let records = disk::names(&dir).into_iter();
        let newest = records
            .filter(|name| name.ends_with(".commit"))
            .max()
            .unwrap();
        disk::rename(&dir.join(newest), &scratch.path().join("removed"));
    };
    remove_newest();
    let said = job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        told(&mut session)
    });
    assert!(
        said[0].contains("step 2 of epoch 1 has 1 container,"),
        "{said:?}"
    );
    assert!(said[0].contains("no commit record"), "{said:?}");
    remove_newest();
    for (line, next) in [
        ("strict = true", "set start = 'fresh'"),
        ("start = 'resume'", "bring the commit record back"),
    ] {
        job.clone().with(line).run(|session, _| {
            let mut session = session.unwrap();
            let error = refused(session.find());
            let parts = ["step 2 of epoch 1 has 1 container,", "no commit record"];
            says(&error, ErrorKind::Invalid, &parts);
            assert!(error.message().contains(next), "{error}");
        });
    }
    let said = job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(refused(session.find()).kind(), ErrorKind::NotFound);
        told(&mut session)
    });
    assert!(said[0].contains("no commit record"), "{said:?}");
    // A run that was told and began from nothing has passed it by.
    job.run(|session, rank| {
        let mut session = session.unwrap();
        refused(session.find());
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
    });
    let said = job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        told(&mut session)
    });
    assert!(!said[0].contains("no commit record"), "{said:?}");
}

// Breaks if: what other levels remember of the job is not compared with an empty directory.
fn a_directory_that_was_emptied_is_reported() {
    let scratch = Scratch::new("emptied");
    let job = Job::new(scratch.path(), 2, 1, true);
    save(&job, &[(1, 10)]);
    let dir = scratch.path().join("ost0/job");
    let restarts = || {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 1);
            let mut state = State::empty(rank, 10);
            state.protect(&mut session).unwrap();
            assert_eq!(session.restart().unwrap(), 1);
            told(&mut session)
        })
    };
    let said = restarts();
    assert!(!said[0].contains("earlier runs"), "{said:?}");
    disk::remove_tree(&dir);
    let said = restarts();
    for part in [
        &shown(scratch.path(), 0),
        "holds nothing of earlier runs",
        "node 'n0' remembers epoch 2",
        "emptied",
    ] {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
    assert!(!said[1].contains("earlier runs"), "{said:?}");
    // One of two, without which nothing can be restored: the error names it.
    let scratch = Scratch::new("emptied");
    let job = Job::new(scratch.path(), 2, 2, false).nodes(2);
    save(&job, &[(1, 10)]);
    disk::remove_tree(&scratch.path().join("ost1/job"));
    job.run(|session, rank| {
        let error = refused(session.unwrap().find());
        let ost1 = shown(scratch.path(), 1);
        let parts: &[&str] = match rank {
            0 => &["can be restored", &ost1, "holds nothing of earlier runs"],
            _ => &["can be restored"],
        };
        says(&error, ErrorKind::Corrupt, parts);
    });
}

// Breaks if: only the node of rank 0 is asked what it remembers; that one may be new.
fn what_another_node_remembers_of_a_directory_that_was_emptied_counts() {
    let scratch = Scratch::new("emptied-elsewhere");
    let job = Job::new(scratch.path(), 3, 1, true)
        .placed(&["a", "b", "c"])
        .with("peers = 1");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        for level in [Level::Peers(1), Level::Global] {
            session.wait(1, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    disk::remove_tree(&scratch.path().join("ost0/job"));
    disk::remove_tree(&scratch.path().join("local/job/a"));
    let said = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        told(&mut session)
    });
    for part in [
        &shown(scratch.path(), 0),
        "holds nothing of earlier runs",
        "node 'b' remembers epoch 1",
    ] {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
}

// Breaks if: the node's memory of the job does not count, or the run continues silently.
fn a_job_whose_node_level_is_whole_starts_although_only_global_is_missing() {
    // A server that is not there: in the tests of servers.
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("noglobal");
    let job = Job::new(scratch.path(), 4, 1, true).nodes(2);
    save(&job, &[(1, 10)]);
    let (here, away) = (scratch.path().join("ost0"), scratch.path().join("away"));
    disk::rename(&here, &away);
    job.clone().with("strict = true").run(|session, _| {
        let error = refused(session);
        says(&error, ErrorKind::Unavailable, &["level global", "ost0"]);
    });
    let said = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        let mut state = State::new(rank, 2, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        session.wait(2, Level::Node, LONG).unwrap();
        let error = refused(session.wait(2, Level::Global, LONG));
        says(&error, ErrorKind::Unsupported, &["level global"]);
        let said = told(&mut session);
        session.close(LONG).unwrap();
        said
    });
    for said in &said {
        assert!(
            said.contains("ost0") && said.contains("node's level only"),
            "{said}"
        );
    }
    disk::rename(&away, &here);
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 2));
    // A job that no node remembers is still new, and needs all of its directories.
    disk::remove_tree(&scratch.path().join("local/job"));
    disk::rename(&here, &away);
    job.run(|session, _| {
        let error = refused(session);
        assert!(
            error
                .message()
                .contains("a new job needs all its directories"),
            "{error}"
        );
    });
}
