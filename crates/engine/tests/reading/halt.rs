//! Tests requests to halt: which run is asked, who sees the request, and when it is withdrawn.

use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::directory::halt::{
    EVERY, NewestRun, Watch, When, later_requests, requests, withdraw,
};
use orcheck_engine::encoding::Trust;
use orcheck_engine::node::HaltRequest;
use orcheck_format::ErrorKind;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Verdict;
use orcheck_staging::open_dir;
use orcheck_testing::FaultPlan;

use orcheck_fixtures::reading::{Scratch, claim, epoch, open_places};

const START: Duration = Duration::from_secs(100);

/// Two places; the newest run claimed both, the one before it only the first.
fn places(scratch: &Scratch) -> Vec<Arc<dyn Dir>> {
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    claim(&dirs[0], epoch(1), None);
    for dir in &dirs {
        claim(dir, epoch(2), None);
    }
    open_places(&dirs)
}

// Breaks if: a request is looked for without its epoch: a job that was halted once could never run
// again.
#[test]
fn a_request_to_halt_is_for_one_run() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    assert_eq!((run.claim.epoch, run.lives), (epoch(2), false));
    assert_eq!(run.ask("asked by a test\n").unwrap(), Vec::<String>::new());
    assert_eq!(
        requests(&dirs).unwrap(),
        [(2, "asked by a test".to_owned())]
    );

    let later = START + EVERY;
    let mut asked = Watch::new(dirs.clone(), 2, START, 0);
    let mut next = Watch::new(dirs.clone(), 3, START, 0);
    assert_eq!(
        (asked.look(later, 0), next.look(later, 0)),
        (Some(HaltRequest::Now), None)
    );
    // Said once.
    assert_eq!(asked.look(later + EVERY, 0), None);
}

// Breaks if: a full disk is all that is reported; a job that filled it could not be ended well.
#[test]
fn a_request_that_finds_no_space_says_what_else_ends_the_run() {
    let scratch = Scratch::new();
    places(&scratch);
    let (_, failpoints) = FaultPlan::new()
        .at_site("", 1, Verdict::Fail(28))
        .only_where(".halt")
        .failpoints();
    let dirs = [open_dir(&scratch.path().join("b"), failpoints).unwrap()];
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    let error = run.ask("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let next = error.next_step().unwrap();
    assert!(next.contains("free some kB"), "{error}");
    assert!(next.contains("signal"), "{error}");
}

// Breaks if: each turn of the control thread looks: a shared file system would feel it.
#[test]
fn it_is_looked_for_now_and_then() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    let mut watch = Watch::new(dirs, 2, START, 0);
    assert_eq!(watch.look(START, 0), None);
    run.ask("").unwrap();
    let almost = EVERY - Duration::from_millis(1);
    assert_eq!(watch.look(START + almost, 0), None);
    assert_eq!(watch.look(START + EVERY, 0), Some(HaltRequest::Now));
}

// Breaks if: only one of the directories is looked at, or one without a request takes back what
// another one asks for.
#[test]
fn any_directory_of_the_run_asks() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let second = &dirs[1..];
    let mut watch = Watch::new(dirs.clone(), 2, START, 0);
    assert_eq!(watch.look(START, 0), None);
    NewestRun::newest(second, &Trust::default())
        .unwrap()
        .unwrap()
        .ask("")
        .unwrap();
    let said: Vec<Option<HaltRequest>> = (1..=4)
        .map(|at| watch.look(START + EVERY * at, 0))
        .collect();
    assert_eq!(said, [None, Some(HaltRequest::Now), None, None]);
    assert_eq!(withdraw(&dirs).unwrap(), [2]);
    let said: Vec<Option<HaltRequest>> = (5..=7)
        .map(|at| watch.look(START + EVERY * at, 0))
        .collect();
    assert_eq!(said, [None, Some(HaltRequest::None), None]);
    assert_eq!(requests(&dirs).unwrap(), []);
}

#[test]
fn a_run_whose_claim_is_not_here_is_not_asked() {
    let scratch = Scratch::new();
    let empty = open_places(&[scratch.dir("empty")]);
    assert!(
        NewestRun::newest(&empty, &Trust::default())
            .unwrap()
            .is_none()
    );
    let dirs = places(&scratch);
    let mut all = dirs.clone();
    all.extend(empty.iter().cloned());
    NewestRun::newest(&all, &Trust::default())
        .unwrap()
        .unwrap()
        .ask("")
        .unwrap();
    assert_eq!(requests(&empty).unwrap(), []);
    assert_eq!(requests(&dirs).unwrap().len(), 1);
}

// Breaks if: the time is not looked at again at each look, or a count replaces a request to halt at
// once.
#[test]
fn a_request_for_later_waits_for_its_time_or_count() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    let mut turn = 0;
    let mut watch = Watch::new(dirs.clone(), 2, START, 0);
    // As many looks as there are directories see all of them.
    let mut look = |watch: &mut Watch, unix_ms| {
        let said = (0..dirs.len()).filter_map(|_| {
            turn += 1;
            watch.look(START + EVERY * turn, unix_ms)
        });
        said.collect::<Vec<_>>()
    };
    run.ask_later(When::At(5000), "asked by a test\n").unwrap();
    // Who knows only the older name sees nothing: 0.1.0 would end at once.
    assert_eq!(requests(&dirs).unwrap(), []);
    assert_eq!(later_requests(&dirs).unwrap(), [(2, Some(When::At(5000)))]);
    assert_eq!(look(&mut watch, 4999), []);
    assert_eq!(look(&mut watch, 5000), [HaltRequest::Now]);
    assert_eq!(withdraw(&dirs).unwrap(), [2]);
    assert_eq!(look(&mut watch, 5001), [HaltRequest::None]);

    run.ask_later(When::After(3), "").unwrap();
    assert_eq!(look(&mut watch, 6000), [HaltRequest::After(3)]);
    assert_eq!(look(&mut watch, 7000), []);
    run.ask("").unwrap();
    assert_eq!(look(&mut watch, 7000), [HaltRequest::Now]);
    for asked in [
        HaltRequest::None,
        HaltRequest::Now,
        HaltRequest::After(1),
        HaltRequest::After(9),
    ] {
        assert_eq!(HaltRequest::of_word(asked.word()), asked);
    }
    std::fs::write(scratch.dir("a").join("epoch-000002.halt-at"), "soon").unwrap();
    assert_eq!(later_requests(&dirs[..1]).unwrap(), [(2, None)]);
}

/// As many looks as there are directories, from this turn on, at this time.
fn looks(watch: &mut Watch, turn: u32, unix_ms: u64) -> Vec<HaltRequest> {
    let said = (turn..turn + 2).filter_map(|turn| watch.look(START + EVERY * turn, unix_ms));
    said.collect()
}

// Breaks if: the request goes with its run; the job would run past the time that an operator named,
// and nobody would say so.
#[test]
fn a_time_to_halt_at_applies_to_runs_that_begin_before_it() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    run.ask_later(When::At(5000), "asked by a test\n").unwrap();
    let mut next = Watch::new(dirs.clone(), 3, START, 4000);
    // Also when the first look comes after it.
    assert_eq!(looks(&mut next, 1, 6000), [HaltRequest::Now]);
    assert_eq!(later_requests(&dirs).unwrap(), [(3, Some(When::At(5000)))]);
    assert_eq!(withdraw(&dirs).unwrap(), [3]);
    assert_eq!(looks(&mut next, 3, 6000), [HaltRequest::None]);

    // Neither a time that is over, nor a count, which was for the run that saw it.
    for when in [When::At(5000), When::After(1)] {
        run.ask_later(when, "").unwrap();
        let mut next = Watch::new(dirs.clone(), 4, START, 5000);
        assert_eq!(looks(&mut next, 1, 6000), []);
        assert_eq!(later_requests(&dirs).unwrap(), [(2, Some(when))]);
    }
}

// Breaks if: a directory that takes no file for a while forgets the time, or keeps asking when it
// was withdrawn.
#[test]
fn a_time_to_halt_at_that_cannot_be_written_again_applies_until_it_is_withdrawn() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    run.ask_later(When::At(5000), "").unwrap();
    // Directories of that name are in the way, for root too.
    let in_the_way = ["a", "b"].map(|dir| scratch.dir(dir).join("epoch-000003.halt-at.tmp"));
    for path in &in_the_way {
        std::fs::create_dir(path).unwrap();
    }
    let mut next = Watch::new(dirs.clone(), 3, START, 4000);
    assert_eq!(looks(&mut next, 1, 4000), []);
    assert_eq!(looks(&mut next, 3, 5000), [HaltRequest::Now]);
    assert_eq!(later_requests(&dirs).unwrap(), [(2, Some(When::At(5000)))]);
    assert_eq!(withdraw(&dirs).unwrap(), [2]);
    assert_eq!(looks(&mut next, 5, 6000), [HaltRequest::None]);
}

// Breaks if: a directory that does not answer for a while takes the request back.
#[test]
fn a_time_to_halt_at_applies_while_its_directory_cannot_be_listed() {
    let scratch = Scratch::new();
    let (plan, failpoints) = FaultPlan::new().failpoints();
    let dirs = vec![open_dir(&scratch.dir("a"), failpoints).unwrap()];
    claim(&scratch.dir("a"), epoch(2), None);
    let run = NewestRun::newest(&dirs, &Trust::default())
        .unwrap()
        .unwrap();
    run.ask_later(When::At(5000), "").unwrap();
    std::fs::create_dir(scratch.dir("a").join("epoch-000003.halt-at.tmp")).unwrap();
    let mut next = Watch::new(dirs, 3, START, 4000);
    assert_eq!(looks(&mut next, 1, 4000), []);
    plan.fail_from_now("dir.list", "", Verdict::Fail(5));
    assert_eq!(looks(&mut next, 3, 4000), []);
    assert_eq!(looks(&mut next, 5, 5000), [HaltRequest::Now]);
}
