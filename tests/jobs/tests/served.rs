//! The same programs with the directories of level `global` on staging servers.
//!
//! Not here: tests of the disks themselves (`directories`, `overrun`, and what asks
//! `needs_own_disks`).

use orcheck_jobs::session::*;
use orcheck_jobs::{Deployment, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    run(
        Deployment::Served,
        &[
            ("agents", served_agents::TESTS),
            ("emptied", emptied::TESTS),
            ("beside", beside::TESTS),
            ("choosing", choosing::TESTS),
            ("elastic", elastic::TESTS),
            ("sharing", sharing::TESTS),
            ("encoding", encoding::TESTS),
            ("forged", forged::TESTS),
            ("halting", halting::TESTS),
            ("incremental", incremental::TESTS),
            ("lending", lending::TESTS),
            ("levels", levels::TESTS),
            ("memory", memory::TESTS),
            ("memory_files", memory_files::TESTS),
            ("misread", misread::TESTS),
            ("mistakes", mistakes::TESTS),
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
