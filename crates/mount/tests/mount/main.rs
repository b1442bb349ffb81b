//! The stackable file system, mounted, killed and compared with the file system beneath it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]

mod crash;
mod faults;
mod programs;
mod rig;
mod same;

/// `true`: this machine cannot mount, which is reported.
fn cannot_mount() -> bool {
    match orcheck_testing::mount::mounting_refused() {
        Some(why) => {
            eprintln!("not tried: {why}");
            true
        }
        None => false,
    }
}
