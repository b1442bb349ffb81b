//! A session without checkpoints: every call works and stores nothing, and what is wrong with a
//! call is wrong here too.

use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, Threads, make_dir};
use crate::{Test, session_tests};
use orcheck_client::{
    ArrayLayout, Codec, Collective, Environment, Membership, OPTIONAL, Options, SAME, Solo, Which,
    Without,
};
use orcheck_format::{Dtype, Error, ErrorKind, Level, Rank, Result, Step};
use orcheck_io::failpoints::{FailpointHook, Failpoints, Verdict};
use orcheck_io::memory::{Span, copy_out, fill_span};
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_call_of_a_disabled_session_works_and_stores_nothing,
    auto_asks_for_a_directory_and_says_where_there_is_none,
    checkpoints_that_are_disabled_on_some_ranks_are_an_error_on_all,
    a_run_that_has_to_resume_is_refused_without_checkpoints,
    an_empty_variable_of_a_directory_is_no_wish_to_run_without_checkpoints,
    routed_files_that_cannot_be_removed_are_a_warning_of_close,
    a_wrong_call_is_refused_as_in_a_session_with_checkpoints,
];

/// Counts the messages of a rank that is alone with nobody to talk to.
struct Counted(Arc<AtomicU64>);

impl Collective for Counted {
    fn rank(&self) -> Rank {
        Rank(0)
    }
    fn size(&self) -> u32 {
        1
    }
    fn bcast(&mut self, _: &mut [u8], _: u32) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn gather(&mut self, mine: &[u8], _: u32) -> Result<Option<Vec<u8>>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Some(mine.to_vec()))
    }
    fn allreduce_min(&mut self, _: &mut [i64]) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Bytes that nobody may ask for.
struct Untouched;

impl Codec for Untouched {
    fn size(&mut self) -> Result<u64> {
        panic!("a session without checkpoints asked for bytes");
    }
    fn pack(&mut self, _: u64, _: &mut [u8]) -> Result<()> {
        self.size().map(|_| ())
    }
    fn unpack(&mut self, _: u64, _: &[u8]) -> Result<()> {
        self.size().map(|_| ())
    }
}

fn open(collective: Box<dyn Collective>, options: &str) -> Result<Membership> {
    let options = Options::from_text(options);
    Membership::open_with("job", collective, options, Environment::default())
}

fn exists(path: &std::path::Path) -> bool {
    #[allow(clippy::disallowed_methods)]
    path.exists()
}

// Breaks if: a call falls through to something that needs a pool, a directory or another rank, or
// claims that a step is safe.
fn every_call_of_a_disabled_session_works_and_stores_nothing() {
    let messages = Arc::new(AtomicU64::new(0));
    let mut s = open(Box::new(Counted(Arc::clone(&messages))), "enabled = false").unwrap();
    let said = s.take_warning().unwrap();
    assert!(
        said.contains("runs without checkpoints: enabled = false"),
        "{said}"
    );
    let after_open = messages.load(Ordering::Relaxed);

    let events = Arc::new(AtomicU64::new(0));
    let heard = Arc::clone(&events);
    s.watch(Some(Box::new(move |_| {
        heard.fetch_add(1, Ordering::Relaxed);
    })));
    let mut u = vec![7u8; 800];
    s.protect("u", Span::from_mut(&mut u), Dtype::F64, SAME)
        .unwrap();
    s.protect_codec("c", Box::new(Untouched), OPTIONAL).unwrap();
    let pool = s.alloc(100_000).unwrap();
    fill_span(pool, &vec![9; 100_000]);
    assert_eq!(pool.address() % 4096, 0);
    s.protect("pool", pool, Dtype::U8, 0).unwrap();
    let path = s.route("notes.txt").unwrap();
    #[allow(clippy::disallowed_methods)]
    std::fs::write(&path, "notes").unwrap();

    says(
        &refused(s.find()),
        ErrorKind::NotFound,
        &["job 'job' has no checkpoint here: enabled = false"],
    );
    says(
        &refused(s.find_step(Which::OlderThan(Step(7)))),
        ErrorKind::NotFound,
        &["no checkpoint older than step 7"],
    );
    for step in 1..200 {
        assert!(!s.due(step).unwrap());
        s.requester().request(true);
        s.lend("pool").unwrap();
        s.checkpoint(step).unwrap();
        s.lent_done("pool", Duration::ZERO).unwrap();
        assert!(!s.should_stop(), "nobody hears a request");
    }
    assert!(s.take_warning().is_none());
    assert!(s.waiter(199, Level::Global).unwrap().is_none());
    let said = s.take_warning().unwrap();
    assert!(said.contains("nothing of checkpoint 199 is safe"), "{said}");
    let error = refused(s.safe_step(Level::Node));
    says(&error, ErrorKind::NotFound, &["enabled = false"]);
    s.reject(199).unwrap();
    let stats = s.stats();
    assert!(stats.disabled);
    assert_eq!(
        (stats.step.0, stats.staged_bytes, stats.pool_bytes),
        (0, 0, 0)
    );
    says(
        &refused(s.free(pool.address())),
        ErrorKind::Invalid,
        &["region 'pool' lies in"],
    );
    s.unprotect("pool").unwrap();
    assert_eq!(copy_out(pool.sub(99_999, 1)), [9]);
    s.free(pool.address()).unwrap();
    assert!(exists(&path));
    s.close(LONG).unwrap();
    assert!(!exists(path.parent().unwrap()), "the directory stays");
    assert_eq!(events.load(Ordering::Relaxed), 0);
    assert_eq!(messages.load(Ordering::Relaxed), after_open);
    assert_eq!(after_open, 1);
}

fn auto_asks_for_a_directory_and_says_where_there_is_none() {
    let mut off = open(Box::new(Solo), "enabled = 'auto'\nevery_s = 5\npeers = 1").unwrap();
    assert!(matches!(&off, Membership::Disabled(off) if off.why() == Without::NoDirectory));
    let said = off.take_warning().unwrap();
    let words = "enabled = 'auto', and no directory is configured";
    assert!(said.contains(words), "{said}");
    assert!(off.take_warning().is_none(), "it is reported once");
    off.abandon();

    let scratch = Scratch::new("disabled-auto");
    let dir = scratch.path().join("pfs");
    make_dir(&dir);
    let options = format!(
        "global = '{}'\nenabled = 'auto'\npool = '8 MiB'\nchunk = '64 KiB'",
        dir.display()
    );
    let on = open(Box::new(Solo), &options).unwrap();
    assert!(matches!(on, Membership::Enabled(_)));
    on.close(LONG).unwrap();
    let off = open(
        Box::new(Solo),
        &format!("{options}\nenabled = false").replace("enabled = 'auto'\n", ""),
    );
    assert!(matches!(off, Ok(Membership::Disabled(_))));
    says(
        &refused(open(Box::new(Solo), "every_s = 5")),
        ErrorKind::Invalid,
        &["no directory is configured", "enabled = 'auto'"],
    );
}

// Breaks if: open.rs does not compare; ranks with checkpoints then wait for others that never come.
fn checkpoints_that_are_disabled_on_some_ranks_are_an_error_on_all() {
    let scratch = Scratch::new("disabled-some");
    let dir = scratch.path().join("pfs");
    make_dir(&dir);
    let on = format!("global = '{}'\nenabled = 'auto'", dir.display());
    let texts = [on.as_str(), "enabled = 'auto'", on.as_str()];
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (Threads::world(3).into_iter().zip(texts))
            .map(|(collective, text)| {
                scope.spawn(move || refused(open(Box::new(collective), text)))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in &errors {
        says(
            error,
            ErrorKind::Invalid,
            &["checkpoints are disabled on rank 1 and enabled on rank 0"],
        );
    }
}

// Breaks if: a start from nothing is refused only where a directory is empty, and not where there
// is none.
fn a_run_that_has_to_resume_is_refused_without_checkpoints() {
    for (enabled, why) in [
        ("enabled = false", "enabled = false"),
        ("enabled = 'auto'", "no directory is configured"),
    ] {
        let options = format!("{enabled}\nstart = 'resume'");
        let parts = ["start = 'resume'", why, "Next: "];
        let error = refused(open(Box::new(Solo), &options));
        says(&error, ErrorKind::Invalid, &parts);
    }
}

// Breaks if: an empty variable counts as none under `enabled = 'auto'`: where
// ORCHECK_GLOBAL=$SCRATCH and SCRATCH is not set, the job would run to its end without a
// checkpoint.
fn an_empty_variable_of_a_directory_is_no_wish_to_run_without_checkpoints() {
    const CHILD: &str = "ORCHECK_TEST_EMPTY_VARIABLE";
    let auto = || Options::load(Some("enabled = 'auto'\nglobal = []"));
    if let Some(variable) = orcheck_io::user::env_var(CHILD) {
        let parts = [variable.as_str(), "empty", "enabled = \"auto\"", "Next: "];
        says(&refused(auto()), ErrorKind::Invalid, &parts);
        // Otherwise it is as if it was not set.
        Options::load(Some("node_dir = '/a'")).unwrap();
        Options::load(Some("enabled = false")).unwrap();
        return;
    }
    auto().unwrap();
    let this = "disabled";
    let name = "an_empty_variable_of_a_directory_is_no_wish_to_run_without_checkpoints";
    for variable in ["ORCHECK_GLOBAL", "ORCHECK_NODE_DIR"] {
        #[allow(clippy::disallowed_methods)]
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("{this}::{name}")]);
        let ended = child.env(CHILD, variable).env(variable, "").output();
        let ended = ended.unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("1 passed"), "{said}");
    }
}

// Breaks if: what only one rank meets when it removes its routed files is a status, which the
// others do not have.
fn routed_files_that_cannot_be_removed_are_a_warning_of_close() {
    let plan = Arc::new(FaultPlan::new());
    let environment = Environment {
        failpoints: Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>),
        ..Environment::default()
    };
    let options = Options::from_text("enabled = false");
    let mut s = Membership::open_with("job", Box::new(Solo), options, environment).unwrap();
    s.route("notes.txt").unwrap();
    plan.fail_from_now("dir.remove", "orcheck-route-u", Verdict::Fail(5));
    let (closed, told) = s.close_telling(LONG);
    closed.unwrap();
    assert!(
        told.iter()
            .any(|text| text.contains("Input/output error") && text.contains("orcheck-route-u")),
        "{told:?}"
    );
}

type Call = fn(&mut Membership) -> Result<()>;

/// Calls that are wrong whatever a directory holds.
const WRONG: [(&str, Call); 17] = [
    ("no name", |s| s.protect("", span(), Dtype::U8, 0)),
    ("control characters", |s| {
        s.protect("a\n", span(), Dtype::U8, 0)
    }),
    ("flags", |s| s.protect("a", span(), Dtype::U8, 64)),
    ("half an element", |s| s.protect("a", span(), Dtype::F64, 0)),
    ("a shape of another size", |s| {
        s.protect_array("a", span(), layout(3), 0)
    }),
    ("nothing to unprotect", |s| s.unprotect("b")),
    ("SAME of a codec", |s| {
        s.protect_codec("a", Box::new(Untouched), SAME)
    }),
    ("a routed name", |s| s.route("../a").map(|_| ())),
    ("memory of nobody", |s| s.free(4096)),
    ("nothing to lend", |s| s.lend("b")),
    ("a codec to lend", |s| s.lend("codec")),
    ("nothing was lent", |s| s.lent_done("b", Duration::ZERO)),
    ("stored before find", |s| s.stored("a").map(|_| ())),
    ("restart before find", |s| s.try_restart().map(|_| ())),
    ("a region before find", |s| {
        s.restart_region("a").map(|_| ())
    }),
    ("a step beyond i64", |s| s.checkpoint(u64::MAX)),
    ("a step never taken", |s| {
        let waiter = s.waiter(77, Level::Global)?;
        waiter.map_or(Ok(()), |waiter| waiter.wait(Duration::ZERO))
    }),
];

fn span() -> Span {
    Span::from_mut(vec![0u8; 20].leak())
}

fn layout(len: u64) -> ArrayLayout {
    ArrayLayout {
        dtype: Dtype::U8,
        global: Vec::new(),
        offset: Vec::new(),
        local: vec![len],
        stride: Vec::new(),
    }
}

// Breaks if: a session without checkpoints takes what one with checkpoints refuses: who enables
// them meets it first then.
fn a_wrong_call_is_refused_as_in_a_session_with_checkpoints() {
    let scratch = Scratch::new("disabled-wrong");
    let job = Job::new(scratch.path(), 1, 1, false);
    let mut on = open(Box::new(Solo), &job.options).unwrap();
    let mut off = open(Box::new(Solo), "enabled = false").unwrap();
    for s in [&mut on, &mut off] {
        s.protect_codec("codec", Box::new(Untouched), 0).unwrap();
    }
    let both = |name: &str, call: Call, on: &mut Membership, off: &mut Membership| {
        let expected = call(on).err().unwrap_or_else(|| panic!("{name} is fine"));
        let error = call(off).err().unwrap_or_else(|| panic!("{name} is taken"));
        assert_eq!(error.kind(), expected.kind(), "{name}: {error}, {expected}");
        let first = |error: &Error| {
            let what = error.message().split(". Next").next().unwrap();
            let staged = what.split_once(" was not staged: ");
            let what = staged.map_or(what, |(_, what)| what);
            what.split([';', ':']).next().unwrap().to_owned()
        };
        assert_eq!(first(&error), first(&expected), "{name}");
    };
    for (name, call) in WRONG {
        both(name, call, &mut on, &mut off);
    }
    for s in [&mut on, &mut off] {
        s.unprotect("codec").unwrap();
    }
    both("nothing protected", |s| s.checkpoint(1), &mut on, &mut off);
    for s in [&mut on, &mut off] {
        s.protect("u", span(), Dtype::U8, 0).unwrap();
        assert_eq!(refused(s.find()).kind(), ErrorKind::NotFound);
        s.checkpoint(5).unwrap();
    }
    both(
        "the same step again",
        |s| s.checkpoint(5),
        &mut on,
        &mut off,
    );
    both(
        "find after a checkpoint",
        |s| s.find().map(|_| ()),
        &mut on,
        &mut off,
    );
    on.close(LONG).unwrap();
    off.close(LONG).unwrap();
}
