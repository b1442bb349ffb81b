//! Requests to halt: who is asked, who sees it, and when it is taken back.

use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::halt::{EVERY, Run, Watch, requests, withdraw};
use orcheck_io::Dir;

use crate::fixture::{Scratch, claim, epoch, open_places};

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

// Breaks if: a request is looked for without its epoch: a job that was halted once could never run again.
#[test]
fn a_request_to_halt_is_for_one_run() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = Run::newest(&dirs).unwrap().unwrap();
    assert_eq!((run.claim.epoch, run.lives), (epoch(2), false));
    assert_eq!(run.ask("asked by a test\n").unwrap(), Vec::<String>::new());
    assert_eq!(
        requests(&dirs).unwrap(),
        [(2, "asked by a test".to_owned())]
    );

    let later = START + EVERY;
    let mut asked = Watch::new(dirs.clone(), 2, START);
    let mut next = Watch::new(dirs.clone(), 3, START);
    assert_eq!((asked.look(later), next.look(later)), (Some(true), None));
    // Said once.
    assert_eq!(asked.look(later + EVERY), None);
}

// Breaks if: each turn of the control thread looks: a shared file system would feel it.
#[test]
fn it_is_looked_for_now_and_then() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let run = Run::newest(&dirs).unwrap().unwrap();
    run.ask("").unwrap();
    let mut watch = Watch::new(dirs, 2, START);
    let almost = EVERY - Duration::from_millis(1);
    assert_eq!(watch.look(START + almost), None);
    assert_eq!(watch.look(START + EVERY), Some(true));
}

// Breaks if: only one of the directories is looked at, or one without a request takes back what another one asks for.
#[test]
fn any_directory_of_the_run_asks() {
    let scratch = Scratch::new();
    let dirs = places(&scratch);
    let second = &dirs[1..];
    Run::newest(second).unwrap().unwrap().ask("").unwrap();
    let mut watch = Watch::new(dirs.clone(), 2, START);
    let said: Vec<Option<bool>> = (1..=4).map(|at| watch.look(START + EVERY * at)).collect();
    assert_eq!(said, [None, Some(true), None, None]);
    assert_eq!(withdraw(&dirs).unwrap(), [2]);
    let said: Vec<Option<bool>> = (5..=7).map(|at| watch.look(START + EVERY * at)).collect();
    assert_eq!(said, [None, Some(false), None]);
    assert_eq!(requests(&dirs).unwrap(), []);
}

#[test]
fn a_run_whose_claim_is_not_here_is_not_asked() {
    let scratch = Scratch::new();
    let empty = open_places(&[scratch.dir("empty")]);
    assert!(Run::newest(&empty).unwrap().is_none());
    let dirs = places(&scratch);
    let mut all = dirs.clone();
    all.extend(empty.iter().cloned());
    Run::newest(&all).unwrap().unwrap().ask("").unwrap();
    assert_eq!(requests(&empty).unwrap(), []);
    assert_eq!(requests(&dirs).unwrap().len(), 1);
}
