//! The session as a program sees it, on real directories, with the engine in the ranks.

use orcheck_jobs::session::*;
use orcheck_jobs::{Deployment, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    run(
        Deployment::InRank,
        &[
            ("away", away::TESTS),
            ("beside", beside::TESTS),
            ("choosing", choosing::TESTS),
            ("copying", copying::TESTS),
            ("directories", directories::TESTS),
            ("disabled", disabled::TESTS),
            ("elastic", elastic::TESTS),
            ("sharing", sharing::TESTS),
            ("encoding", encoding::TESTS),
            ("forged", forged::TESTS),
            ("halting", halting::TESTS),
            ("incremental", incremental::TESTS),
            ("leftovers", leftovers::TESTS),
            ("lending", lending::TESTS),
            ("levels", levels::TESTS),
            ("memory", memory::TESTS),
            ("memory_files", memory_files::TESTS),
            ("misread", misread::TESTS),
            ("mistakes", mistakes::TESTS),
            ("optional", optional::TESTS),
            ("overrun", overrun::TESTS),
            ("parity", parity::TESTS),
            ("parity_encrypted", parity::TESTS),
            ("peers", peers::TESTS),
            ("peers_encrypted", peers::TESTS),
            ("regions", regions::TESTS),
            ("resume", resume::TESTS),
            ("routed", routed::TESTS),
            ("runs", runs::TESTS),
            ("save", save::TESTS),
            ("slow_levels", slow_levels::TESTS),
            ("stray", stray::TESTS),
            ("told", told::TESTS),
            ("tracked", tracked::TESTS),
            ("tree", tree::TESTS),
            ("triggers", triggers::TESTS),
        ],
    )
}
