//! Where the parts of a job run: the parameter of all tests of sessions.
//!
//! How: a test program has one deployment. It is set before the first test, and whoever starts a
//! part of a job asks for it. The tests are compiled once, in this library; each program lists the
//! modules that it runs.

use libtest_mimic::{Arguments, Trial};
use std::cell::Cell;
use std::process::ExitCode;
use std::sync::OnceLock;

/// Where the engine of a node runs, and where the directories of level `global` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// The engine in the ranks, directories on disks of this machine.
    InRank,
    /// The engine in an agent.
    Agent,
    /// The engine in the ranks, directories on staging servers.
    Served,
}

static DEPLOYMENT: OnceLock<Deployment> = OnceLock::new();

thread_local! {
    static ENCRYPTED: Cell<bool> = const { Cell::new(false) };
}

/// The deployment of this test program: in the ranks unless it said another one.
#[must_use]
pub fn deployment() -> Deployment {
    *DEPLOYMENT.get_or_init(|| Deployment::InRank)
}

/// Whether the test on this thread is to encrypt all that travels over TCP.
#[must_use]
pub fn encrypted() -> bool {
    ENCRYPTED.get()
}

/// A test by its name.
pub type Test = (&'static str, fn());

/// The tests of a module. One that is left out is dead code, which the compiler reports.
macro_rules! session_tests {
    ($($name:ident,)*) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use session_tests;

/// Runs the tests of these modules in a deployment. Those of a module whose name ends in
/// `_encrypted` encrypt.
#[must_use]
pub fn run(deployment: Deployment, modules: &[(&'static str, &'static [Test])]) -> ExitCode {
    let arguments = Arguments::from_args();
    DEPLOYMENT.get_or_init(|| deployment);
    let trial = |module: &'static str, &(name, test): &'static Test| {
        Trial::test(format!("{module}::{name}"), move || {
            ENCRYPTED.set(module.ends_with("_encrypted"));
            test();
            Ok(())
        })
    };
    let trials = modules
        .iter()
        .flat_map(|&(module, tests)| tests.iter().map(move |test| trial(module, test)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
