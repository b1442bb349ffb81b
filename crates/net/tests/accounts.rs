//! Tests users and groups that no file of this machine names, as on a cluster with a directory
//! service.
//!
//! A child gets its own `/etc/nsswitch.conf`, which names a service that this test compiles. Needs
//! root and a C compiler; without them, the test says so and is skipped.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, unsafe_code)] // the service is built and loaded by the test

use orcheck_io::machine::group_id;
use orcheck_net::Peer;
use orcheck_testing::mount::{mount_bound, mounting_refused, own_mounts, program_exists};
use orcheck_testing::{Child, Ended, Scratch};
use std::ffi::CString;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// User 71234, group 71235, and a user about whom the service never answers.
const SERVICE: &str = r#"
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>
static enum nss_status of_user(uid_t uid, struct passwd *out) {
    if (uid == 71236) for (;;) pause();
    if (uid != 71234) return NSS_STATUS_NOTFOUND;
    memset(out, 0, sizeof *out);
    out->pw_name = "alice"; out->pw_passwd = "x"; out->pw_gecos = ""; out->pw_dir = "/"; out->pw_shell = "/bin/sh";
    out->pw_uid = uid; out->pw_gid = 71235;
    return NSS_STATUS_SUCCESS;
}
static char *nobody[] = { 0 };
static enum nss_status of_group(struct group *out) {
    out->gr_name = "flow"; out->gr_passwd = "x"; out->gr_gid = 71235; out->gr_mem = nobody;
    return NSS_STATUS_SUCCESS;
}
enum nss_status _nss_orctest_getpwuid_r(uid_t uid, struct passwd *out, char *text, size_t len, int *error) {
    return of_user(uid, out);
}
enum nss_status _nss_orctest_getgrnam_r(const char *name, struct group *out, char *text, size_t len, int *error) {
    /* As for a group of many members: it does not fit at first. */
    if (!strcmp(name, "flow") && len < 100000) { *error = ERANGE; return NSS_STATUS_TRYAGAIN; }
    return strcmp(name, "flow") ? NSS_STATUS_NOTFOUND : of_group(out);
}
"#;

/// Compiles the service, and makes it the only one but the files, for this process.
fn serve(dir: &Path) {
    let (source, module) = (dir.join("service.c"), dir.join("libnss_orctest.so.2"));
    fs::write(&source, SERVICE).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libnss_orctest.so.2", "-o"])
        .args([&module, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    let conf = dir.join("nsswitch.conf");
    fs::write(&conf, "passwd: files orctest\ngroup: files orctest\n").unwrap();
    own_mounts().unwrap();
    mount_bound(&conf, Path::new("/etc/nsswitch.conf")).unwrap();
    // The C library finds what is loaded already under the name that it looks for.
    let module = CString::new(module.to_str().unwrap()).unwrap();
    // SAFETY: the text ends in a zero byte; the module does nothing when it is loaded.
    let loaded = unsafe { libc::dlopen(module.as_ptr(), libc::RTLD_NOW) };
    assert!(!loaded.is_null());
}

fn shown(uid: u32) -> String {
    Peer { uid, pid: 0 }.to_string()
}

// Breaks if: names are read from the files of this machine; or a message waits for a service that
// does not answer.
#[test]
fn users_and_groups_of_a_directory_service_are_known_and_never_waited_for() {
    let refused = mounting_refused();
    let refused = refused.or_else(|| (!program_exists("cc")).then(|| "no C compiler".to_owned()));
    if let Some(why) = refused {
        // Past the harness, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
        return;
    }
    let scratch = Scratch::new("accounts");
    let child = Child::run(|| {
        serve(scratch.path());
        assert_eq!(group_id("flow").unwrap(), 71235);
        assert!(group_id("no-such-group").is_err());
        assert_eq!(shown(71234), "user alice (uid 71234)");
        assert_eq!(shown(0), "user root (uid 0)");
        let begun = Instant::now();
        assert_eq!(shown(71236), "user 71236");
        assert!(begun.elapsed() < Duration::from_secs(20));
        0
    });
    assert!(matches!(child.wait(PATIENCE), Ended::Exited(0)));
}
