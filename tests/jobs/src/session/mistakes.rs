//! Wrong options, wrong order, wrong regions: each is refused with a message that says what to do,
//! on every rank, and changes nothing.

use crate::support::{Job, State, Threads, needs_own_disks};
use crate::{Test, session_tests};
use orcheck_client::{ArrayLayout, Environment, OPTIONAL, Options, Session};
use orcheck_format::{Dtype, Error, ErrorKind, Level, Result};
use orcheck_io::failpoints::Verdict;
use orcheck_io::memory::Span;
use orcheck_testing::{FaultPlan, Scratch};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    options_that_no_rank_may_have_are_refused_on_all_ranks,
    ranks_with_different_options_are_told_which_option_differs,
    names_of_jobs_nodes_and_regions_are_checked,
    a_job_with_checkpoints_is_not_begun_afresh_by_accident,
    restart_and_stored_need_a_found_checkpoint,
    steps_grow_and_are_the_same_on_all_ranks,
    waiting_for_what_never_comes_is_refused_at_once,
    an_array_fits_what_was_stored_of_it_without_its_shape,
    a_region_that_changed_is_named_with_what_was_stored_and_what_is_there,
    another_number_of_ranks_is_refused_with_the_right_number,
    strict_refuses_the_older_checkpoint_that_is_taken_otherwise,
    when_all_checkpoints_are_damaged_the_error_names_each,
    fresh_begins_anew_and_fences_what_was_there,
    records_that_cannot_be_read_are_never_taken_for_a_fresh_start,
];

pub const LONG: Duration = Duration::from_secs(30);

/// The error is of this kind, and its message holds all these parts.
#[track_caller]
pub fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(
            error.message().contains(part),
            "'{part}' is missing in: {error}"
        );
    }
}

/// The error of a result without asking for `Debug` of its value.
#[track_caller]
pub fn refused<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("this must be refused"),
        Err(error) => error,
    }
}

/// Opens `job` on as many ranks as there are option texts; every rank's error.
fn open_errors(job: &str, texts: &[String]) -> Vec<Error> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = Threads::world(texts.len() as u32)
            .into_iter()
            .zip(texts)
            .map(|(collective, text)| {
                let options = Options::from_text(text);
                scope.spawn(move || {
                    refused(Session::open_with(
                        job,
                        Box::new(collective),
                        options,
                        Environment::default(),
                    ))
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}

/// A job of two ranks with one committed checkpoint of step 5.
fn saved(scratch: &Scratch) -> Job {
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 5, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(5).unwrap();
        session.close(LONG).unwrap();
    });
    job
}

// ---- options ---------------------------------------------------------------------------------

fn options_that_no_rank_may_have_are_refused_on_all_ranks() {
    let scratch = Scratch::new("options");
    let good = Job::new(scratch.path(), 2, 1, false).options;
    for (bad, parts) in [
        ("kep = 2", ["unknown option 'kep'", "did you mean 'keep'?"]),
        (
            "marshal = 'loud'",
            ["marshal = \"loud\"", "expected 'auto' or 'paper'"],
        ),
        (
            "lanes_per_node = 9",
            ["lanes_per_node = 9", "allowed is 0 to 8"],
        ),
        ("signal = 'KILL'", ["signal = 'KILL'", "USR1"]),
    ] {
        let errors = open_errors("job", &[good.clone(), format!("{good}{bad}\n")]);
        says(&errors[1], ErrorKind::Invalid, &parts);
        says(
            &errors[0],
            ErrorKind::Invalid,
            &["rank 1: ", parts[0], parts[1]],
        );
    }
    let nowhere = open_errors("job", &["keep = 3".to_owned()]);
    says(
        &nowhere[0],
        ErrorKind::Invalid,
        &["no directory is configured", "set `global`", "`node_dir`"],
    );
    // What a server put there before is its own.
    let left = crate::session::disk::names(&scratch.path().join("ost0"));
    assert!(
        left.iter().all(|name| name.ends_with(".id")),
        "a refused open leaves nothing: {left:?}"
    );
}

fn ranks_with_different_options_are_told_which_option_differs() {
    let scratch = Scratch::new("differ");
    let good = Job::new(scratch.path(), 3, 1, false).options;
    let texts = [
        good.clone(),
        good.clone(),
        format!("{good}keep = 3\nnode_name = 'other'\n"),
    ];
    for error in open_errors("job", &texts) {
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "rank 2 was opened with other options than rank 0",
                "keep is 3 there and not set on rank 0",
                "pass the same options",
            ],
        );
        assert!(
            !error.message().contains("node_name"),
            "node names may differ: {error}"
        );
    }
}

fn names_of_jobs_nodes_and_regions_are_checked() {
    let scratch = Scratch::new("names");
    let good = Job::new(scratch.path(), 1, 1, false).options;
    says(
        &open_errors("", std::slice::from_ref(&good)).remove(0),
        ErrorKind::Invalid,
        &["the job has no name", "orc_open"],
    );
    for name in ["../up", "a/b", ".hidden", "white space", &"x".repeat(65)] {
        let error = open_errors(name, std::slice::from_ref(&good)).remove(0);
        says(&error, ErrorKind::Invalid, &["job name"]);
    }
    for name in ["..", "a/b", "a b", &"x".repeat(64)] {
        let text = format!("{good}node_name = '{name}'\n");
        says(
            &open_errors("job", &[text])[0],
            ErrorKind::Invalid,
            &["node name", name, "set ORCHECK_NODE"],
        );
    }
    Job::new(scratch.path(), 1, 1, false).run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes = [0u8; 8];
        let span = Span::from_mut(&mut bytes);
        for name in ["", "line\nbreak", "nul\0", &"x".repeat(256)] {
            let error = refused(session.protect(name, span, Dtype::U8, 0));
            says(
                &error,
                ErrorKind::Invalid,
                &["region name", "allowed are 1 to 255 bytes"],
            );
        }
        session.protect("Größe/α β", span, Dtype::U8, 0).unwrap();
        let error = refused(session.protect("x", span, Dtype::U8, 64));
        says(
            &error,
            ErrorKind::Invalid,
            &["region 'x'", "unknown flags 0x40"],
        );
        let error = refused(session.protect("x", span.sub(0, 7), Dtype::F64, 0));
        says(
            &error,
            ErrorKind::Invalid,
            &["region 'x'", "7 bytes", "8 bytes"],
        );
        let layout = ArrayLayout {
            dtype: Dtype::U8,
            global: vec![8],
            offset: vec![4],
            local: vec![8],
            stride: vec![],
        };
        let error = refused(session.protect_array("x", span, layout.clone(), 0));
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "region 'x'",
                "dimension 0",
                "offset 4 + local 8 exceeds global 8",
            ],
        );
        let layout = ArrayLayout {
            offset: vec![0],
            ..layout
        };
        let error = refused(session.protect_array("x", span.sub(0, 4), layout, 0));
        says(
            &error,
            ErrorKind::Invalid,
            &["region 'x'", "spans 8 bytes", "memory 4"],
        );
        for name in ["", "../up", ".hidden", "a b"] {
            says(
                &refused(session.route(name)),
                ErrorKind::Invalid,
                &["file '", "not beginning with '.'"],
            );
        }
        for error in [
            refused(session.unprotect("nobody")),
            refused(session.lend("nobody")),
        ] {
            says(
                &error,
                ErrorKind::NotFound,
                &["no region 'nobody' is protected", "there are: Größe/α β"],
            );
        }
    });
}

// ---- order of calls --------------------------------------------------------------------------

// Breaks if: `make_sure_of_the_past` is not called by `checkpoint`.
fn a_job_with_checkpoints_is_not_begun_afresh_by_accident() {
    let scratch = Scratch::new("order");
    let job = saved(&scratch);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        let error = refused(session.checkpoint(6));
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "job 'job' has checkpoints up to step 5",
                "call find and restart, or set start = 'fresh'",
            ],
        );
        assert_eq!(session.find().unwrap(), 5);
        let error = refused(session.checkpoint(6));
        says(
            &error,
            ErrorKind::Invalid,
            &["checkpoint 5 was found but not restarted", "call restart"],
        );
        assert_eq!(session.restart().unwrap(), 5);
        assert!(state.is(rank, 5, 20));
        let error = refused(session.find());
        says(
            &error,
            ErrorKind::Invalid,
            &["find after restart", "open it again"],
        );
        session.checkpoint(6).unwrap();
        session.close(LONG).unwrap();
    });
}

fn restart_and_stored_need_a_found_checkpoint() {
    let scratch = Scratch::new("unfound");
    Job::new(scratch.path(), 2, 1, false).run(|session, _| {
        let mut session = session.unwrap();
        for error in [refused(session.restart()), refused(session.stored("u"))] {
            says(
                &error,
                ErrorKind::Invalid,
                &["needs a checkpoint that was found", "call find first"],
            );
        }
        says(
            &refused(session.find()),
            ErrorKind::NotFound,
            &["job 'job' begins from nothing", "has no checkpoint"],
        );
        says(
            &refused(session.restart()),
            ErrorKind::Invalid,
            &["needs a checkpoint that was found"],
        );
        session.close(LONG).unwrap();
    });
}

fn steps_grow_and_are_the_same_on_all_ranks() {
    let scratch = Scratch::new("steps");
    Job::new(scratch.path(), 2, 1, false).run(|session, rank| {
        let mut session = session.unwrap();
        says(
            &refused(session.checkpoint(1)),
            ErrorKind::Invalid,
            &["no region is protected", "call protect"],
        );
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        let error = refused(session.checkpoint(7 + u64::from(rank)));
        says(
            &error,
            ErrorKind::Invalid,
            &["different steps, from 7 to 8"],
        );
        session.checkpoint(9).unwrap();
        for step in [9, 3] {
            let error = refused(session.checkpoint(step));
            says(
                &error,
                ErrorKind::Invalid,
                &[&format!("step {step} does not grow"), "was of step 9"],
            );
        }
        says(
            &refused(session.checkpoint(u64::MAX)),
            ErrorKind::Invalid,
            &["too large"],
        );
        session.checkpoint(10).unwrap();
        session.wait(9, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    // What was refused left nothing that a restart could take for a checkpoint.
    Job::new(scratch.path(), 2, 1, false).run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 10);
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 10);
        assert!(state.is(rank, 1, 20));
    });
}

// Breaks if: `wait` asks the board without `check_taken`: it then waits for ever.
fn waiting_for_what_never_comes_is_refused_at_once() {
    let scratch = Scratch::new("wait");
    Job::new(scratch.path(), 1, 0, true).run(|session, rank| {
        let mut session = session.unwrap();
        let error = refused(session.wait(1, Level::Node, LONG));
        says(
            &error,
            ErrorKind::NotFound,
            &["took no checkpoint of step 1", "it took none yet"],
        );
        let mut state = State::new(rank, 1, 5);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        session.checkpoint(3).unwrap();
        for step in [2, 4] {
            let error = refused(session.wait(step, Level::Node, LONG));
            let what = format!("took no checkpoint of step {step}");
            says(
                &error,
                ErrorKind::NotFound,
                &[&what, "its last is of step 3"],
            );
        }
        let error = refused(session.wait(3, Level::Global, LONG));
        says(
            &error,
            ErrorKind::Unsupported,
            &["level global is not configured", "set `global`"],
        );
        let error = refused(session.wait(3, Level::Peers(1), LONG));
        says(
            &error,
            ErrorKind::Unsupported,
            &["level peers(1) is not configured"],
        );
        session.wait(3, Level::Process, LONG).unwrap();
        session.wait(1, Level::Node, LONG).unwrap();
        for step in 4..70 {
            session.checkpoint(step).unwrap();
        }
        session.wait(69, Level::Node, LONG).unwrap();
        let error = refused(session.wait(1, Level::Node, LONG));
        says(
            &error,
            ErrorKind::NotFound,
            &["too long ago", "the newest safe at level node is 69"],
        );
        session.close(LONG).unwrap();
    });
}

// ---- regions that changed --------------------------------------------------------------------

// Breaks if: `check_regions` is left out of `restart`: a buffer of another size is then overrun.
// Breaks if: what version 0.1.0 stored of a Fortran array, without its shape, no longer fits the
// array.
fn an_array_fits_what_was_stored_of_it_without_its_shape() {
    let scratch = Scratch::new("shapeless");
    let job = Job::new(scratch.path(), 1, 1, false);
    let layout = |rows: u64, stride: Vec<u64>| ArrayLayout {
        dtype: Dtype::F64,
        global: vec![],
        offset: vec![],
        local: vec![rows, 5],
        stride,
    };
    let stored: Vec<u8> = (0..160).collect();
    let (mut flat, mut shaped) = (stored.clone(), stored.clone());
    let (flat, shaped) = (Span::from_mut(&mut flat), Span::from_mut(&mut shaped));
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.protect("flat", flat, Dtype::F64, 0).unwrap();
        session
            .protect_array("shaped", shaped, layout(4, vec![]), 0)
            .unwrap();
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    let mut now = [vec![0u8; 160], vec![0u8; 160], vec![0u8; 224]];
    let [a, b, gaps] = now.each_mut().map(|bytes| Span::from_mut(bytes));
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.protect("shaped", b, Dtype::F64, 0).unwrap();
        for wrong in [5, 3] {
            let span = Span::from_mut(vec![0u8; 200].leak()).sub(0, wrong as usize * 40);
            session
                .protect_array("flat", span, layout(wrong, vec![]), 0)
                .unwrap();
            let size = format!(
                "the size is 160 bytes in the checkpoint, {} bytes",
                wrong * 40
            );
            says(&refused(session.restart()), ErrorKind::Invalid, &[&size]);
        }
        session
            .protect_array("flat", a, layout(4, vec![]), 0)
            .unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.protect("shaped", b, Dtype::F64, 0).unwrap();
        session
            .protect_array("flat", gaps.sub(0, 224 - 16), layout(4, vec![7, 1]), 0)
            .unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        session.close(LONG).unwrap();
    });
    assert_eq!([&now[0], &now[1]], [&stored, &stored]);
    assert_eq!(now[2][56..96], stored[40..80]);
    assert_eq!(now[2][40..56], [0; 16]);
}

fn a_region_that_changed_is_named_with_what_was_stored_and_what_is_there() {
    let scratch = Scratch::new("changed");
    let job = Job::new(scratch.path(), 1, 1, false);
    let layout = |local: u64| ArrayLayout {
        dtype: Dtype::F64,
        global: vec![16],
        offset: vec![4],
        local: vec![local],
        stride: vec![],
    };
    let mut a = vec![1u8; 80];
    let mut grid = vec![2u8; 64];
    job.run(|session, _| {
        let (mut a, mut grid) = (a.clone(), grid.clone());
        let mut session = session.unwrap();
        session
            .protect("a", Span::from_mut(&mut a), Dtype::F64, 0)
            .unwrap();
        session
            .protect_array("grid", Span::from_mut(&mut grid), layout(8), 0)
            .unwrap();
        session.checkpoint(3).unwrap();
        session.close(LONG).unwrap();
    });
    let (a, grid) = (Span::from_mut(&mut a), Span::from_mut(&mut grid));
    job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 3);
        session.protect("a", a, Dtype::F64, 0).unwrap();
        session.protect_array("grid", grid, layout(8), 0).unwrap();

        session.protect("a", a, Dtype::I64, 0).unwrap();
        let next = "protect the regions as they were stored";
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "step 3 does not fit the program",
                "region 'a': the type is f64 in the checkpoint, i64 in the program",
                next,
            ],
        );

        session.protect("a", a.sub(0, 72), Dtype::F64, 0).unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "region 'a': the size is 80 bytes in the checkpoint, 72 bytes",
                next,
            ],
        );

        session.protect("a", a, Dtype::F64, 0).unwrap();
        // A part of another array; another part of the same array would be read.
        let wider = ArrayLayout {
            global: vec![17],
            ..layout(8)
        };
        session.protect_array("grid", grid, wider, 0).unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "region 'grid': the shape is [8], a part of [16] from [4]",
                "[8], a part of [17] from [4]",
            ],
        );

        session.protect("grid", grid, Dtype::F64, 0).unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &["region 'grid': the kind is array in the checkpoint, bytes"],
        );

        // Renamed: both names are in the message, and everything that is wrong is in one message.
        session.unprotect("grid").unwrap();
        session.protect("mesh", grid, Dtype::F64, 0).unwrap();
        session.protect("a", a, Dtype::U64, 0).unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "region 'mesh' is not in the checkpoint",
                "the checkpoint has: a, grid",
                "the type is f64",
                "flag new ones ORC_OPTIONAL",
            ],
        );

        session.protect("mesh", grid, Dtype::F64, OPTIONAL).unwrap();
        session.protect("a", a, Dtype::F64, 0).unwrap();
        assert_eq!(session.restart().unwrap(), 3);
        let warnings = crate::support::warnings(&mut session);
        assert!(
            warnings
                .iter()
                .any(|text| text.contains("stored but not protected, left out: grid")),
            "{warnings:?}"
        );
        session.close(LONG).unwrap();
    });
}

// ---- restart that cannot be had --------------------------------------------------------------

// Breaks if: a rank takes what the rank of its number stored.
fn another_number_of_ranks_is_refused_with_the_right_number() {
    let scratch = Scratch::new("world");
    let job = Job {
        ranks: 3,
        ranks_per_node: 3,
        placed: None,
        ..saved(&scratch)
    };
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 5);
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        says(
            &refused(session.restart()),
            ErrorKind::Unsupported,
            &[
                "step 5 was written by 2 ranks, this run has 3",
                "restart with 2 ranks",
            ],
        );
    });
}

/// Damages the newest container of the job in `ost0`.
pub fn damage_newest(scratch: &Scratch) {
    let dir = scratch.path().join("ost0/job");
    let newest = crate::session::disk::names(&dir)
        .into_iter()
        .rfind(|name| name.ends_with(".orc"))
        .unwrap();
    let mut bytes = crate::session::disk::read(&dir.join(&newest));
    // In the stream of the first rank: after the header and its rank header.
    bytes[3 * 4096] ^= 1;
    crate::session::disk::write(&dir.join(newest), &bytes);
}

// Breaks if: `restart` asks `is_damage` but not `options.strict`.
fn strict_refuses_the_older_checkpoint_that_is_taken_otherwise() {
    let scratch = Scratch::new("strict");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in [5, 6] {
            let mut state = State::new(rank, step, 100);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    damage_newest(&scratch);
    job.clone().with("strict = true").run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 6);
        let mut state = State::empty(rank, 100);
        state.protect(&mut session).unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Corrupt,
            &[
                "s000000000006",
                "rank",
                "region",
                "strict allows no step older than 6",
                "Next: run `orcheck verify`; leave strict out to restart from an older step",
            ],
        );
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 6);
        State::restores(&mut session, rank, 5, 100);
        let warnings = crate::support::warnings(&mut session);
        assert!(
            warnings.iter().any(|text| text.contains("step 6 skipped")),
            "{warnings:?}"
        );
        session.close(LONG).unwrap();
    });
}

// Breaks if: only those are named that nobody was told of yet; the newest would not be among them.
fn when_all_checkpoints_are_damaged_the_error_names_each() {
    let scratch = Scratch::new("all-damaged");
    let job = Job::new(scratch.path(), 1, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in [5, 6] {
            let mut state = State::new(rank, step, 100);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            damage_newest(&scratch);
        }
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 6);
        let mut state = State::empty(rank, 100);
        state.protect(&mut session).unwrap();
        let error = refused(session.restart());
        let named = ["step 6 skipped", "step 5 skipped", "start = 'fresh'"];
        says(&error, ErrorKind::Corrupt, &named);
        let error = refused(session.find());
        says(&error, ErrorKind::Corrupt, &["(steps 6, 5)"]);
    });
}

// Breaks if: `find` looks for candidates although `fresh` is set, or readers ignore a resume of
// nothing.
fn fresh_begins_anew_and_fences_what_was_there() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("fresh");
    let job = saved(&scratch);
    // A fresh run that ends before its first checkpoint has superseded nothing.
    job.clone().with("fresh = true").run(|session, _| {
        says(
            &refused(session.unwrap().find()),
            ErrorKind::NotFound,
            &["begins from nothing"],
        );
    });
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 5));
    // With its first checkpoint it has, even when that one is lost.
    let (_, broken) = FaultPlan::new()
        .always("file.write", Verdict::Fail(5))
        .only_where(".orc")
        .failpoints();
    let fresh = job.clone().with("fresh = true").failpoints(broken);
    fresh.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        let error = refused(session.close(LONG));
        says(
            &error,
            ErrorKind::Unavailable,
            &["checkpoint 1 is not safe", "EIO"],
        );
    });
    job.run(|session, _| {
        let error = refused(session.unwrap().find());
        says(&error, ErrorKind::NotFound, &["has no checkpoint"]);
    });
    job.clone().with("fresh = true").run(|session, rank| {
        let mut session = session.unwrap();
        says(
            &refused(session.find()),
            ErrorKind::NotFound,
            &["begins from nothing"],
        );
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        assert_eq!(
            session.unwrap().find().unwrap(),
            1,
            "step 5 is of another life"
        )
    });
}

// Breaks if: `candidates` returns an empty list although the catalog met problems.
fn records_that_cannot_be_read_are_never_taken_for_a_fresh_start() {
    let scratch = Scratch::new("unreadable");
    let job = saved(&scratch);
    let dir = scratch.path().join("ost0/job");
    let record = crate::session::disk::names(&dir)
        .into_iter()
        .find(|name| name.ends_with(".commit"))
        .unwrap();
    let mut bytes = crate::session::disk::read(&dir.join(&record));
    bytes[40] ^= 1;
    crate::session::disk::write(&dir.join(&record), &bytes);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let error = refused(session.find());
        says(
            &error,
            ErrorKind::Corrupt,
            &[
                "none can be read",
                &record,
                "orcheck verify",
                "start = 'fresh'",
            ],
        );
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        says(
            &refused(session.checkpoint(1)),
            ErrorKind::Corrupt,
            &["none can be read"],
        );
    });
}
