//! The stackable file system, mounted, killed and compared with the file system beneath it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]

mod crash;
mod faults;
mod fields;
mod programs;
mod rig;
mod same;
mod sets;
mod sets_crash;
mod staged;

/// A number from the environment, for longer runs.
fn number(name: &str, default: u64) -> u64 {
    let set = orcheck_io::user::env_var(name).and_then(|text| text.parse().ok());
    set.unwrap_or(default)
}

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
