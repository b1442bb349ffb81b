//! Tests `server`, started as an operator starts it and used by programs and commands.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use orcheck_testing::impostor::Impostor;

use crate::program::{self, Running};
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::Scratch;

// Breaks if: what was remembered is not compared; an unmounted disk's mount point would take
// checkpoints.
#[test]
fn a_server_that_remembers_its_disk_does_not_start_before_another_one() {
    let scratch = Scratch::new();
    let file = scratch.path().join("identity").display().to_string();
    let more = ["--identity", &file];
    drop(Server::run(command(&scratch, &more), Scratch::new()));
    let remembered = std::fs::read_to_string(&file).unwrap();
    assert_eq!(remembered.trim().len(), 16, "{remembered}");
    drop(Server::run(command(&scratch, &more), Scratch::new()));
    std::fs::rename(scratch.path().join("disk"), scratch.path().join("away")).unwrap();
    let refused = command(&scratch, &more).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    for words in [
        remembered.trim(),
        "found none",
        "mount the disk that the server had",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let empty = std::fs::read_dir(scratch.path().join("disk")).unwrap();
    assert_eq!(empty.count(), 0, "nothing is written there");
}

/// A server of two keys, killed at the end of the test.
pub struct Server {
    scratch: Scratch,
    child: Option<Child>,
    /// `orcheck://…`
    pub at: String,
}

fn key(scratch: &Scratch, name: &str, byte: u8) -> PathBuf {
    let path = scratch.path().join(name);
    std::fs::write(&path, [byte; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn command(scratch: &Scratch, more: &[&str]) -> Command {
    let dir = scratch.dir("disk").display().to_string();
    let first = format!("file:{}", key(scratch, "key", 1).display());
    let second = format!("other=file:{}", key(scratch, "other-key", 2).display());
    let mut command = orcheck(&["server", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    command.args(["--key", &first, "--key", &second]).args(more);
    command
}

impl Server {
    pub fn start(more: &[&str]) -> Self {
        let scratch = Scratch::new();
        Self::run(command(&scratch, more), scratch)
    }

    pub fn run(mut command: Command, scratch: Scratch) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let at = line.trim_end().strip_suffix(": ready").unwrap();
        let at = at.rsplit(' ').next().unwrap().to_owned();
        assert!(at.starts_with("orcheck://127.0.0.1:"), "{line}");
        Self {
            scratch,
            child: Some(child),
            at,
        }
    }

    pub fn place(&self, key: &str) -> String {
        let key = self.scratch.path().join(key);
        format!("{}?key=file:{}", self.at, key.display())
    }

    fn end(&mut self) -> Answer {
        let child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn take_one(place: &str, variable: Option<(&str, &str)>) {
    let line = program::command_line();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    let options = format!("global = '{place}'\npool = '8 MiB'\nchunk = '64 KiB'");
    program::tell(&mut command, "holds", "cavity", &options);
    command.envs(variable);
    let mut running = Running::of(command);
    running.wait_for("taken 1");
    running.go_on();
    assert_eq!(running.wait_for("sealed"), "sealed true");
}

#[test]
fn a_program_checkpoints_to_a_server_and_commands_look_at_it() {
    let mut server = Server::start(&[]);
    let place = server.place("key");
    take_one(&place, None);
    let on_disk = server.scratch.path().join("disk/default/cavity");
    let containers = std::fs::read_dir(&on_disk).unwrap().flatten();
    let containers = containers.filter(|one| one.file_name().to_str().unwrap().ends_with(".orc"));
    assert_eq!(containers.count(), 2);
    // The directory on the disk and the server tell the same.
    let local = server
        .scratch
        .path()
        .join("disk/default")
        .display()
        .to_string();
    for dir in [place.as_str(), local.as_str()] {
        let listed = answer(&["ls", "--dir", dir, "--json"]);
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        assert_eq!(listed.json()["checkpoints"].as_array().unwrap().len(), 2);
        let verified = answer(&["verify", "--all", "--dir", dir]);
        assert_eq!(verified.code, 0, "{}", verified.stderr);
    }
    let out = server.scratch.path().join("u.bin").display().to_string();
    let restored = answer(&[
        "restore", "--rank", "0", "--region", "u", "--out", &out, "--dir", &place,
    ]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert_eq!(std::fs::read(&out).unwrap(), [7u8; 100_000]);
    // Another key sees nothing of it.
    let other = answer(&["ls", "--dir", &server.place("other-key")]);
    assert_ne!(other.code, 0);
    assert!(!other.stdout.contains("cavity"));
    let doctor = answer(&["doctor", "--dir", &place]);
    assert!(
        doctor.stdout.contains("staging server"),
        "{}",
        doctor.stdout
    );
    let ended = server.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (143, ""));
    let gone = answer(&["ls", "--dir", &place]);
    assert_ne!(gone.code, 0);
    assert!(gone.stderr.contains(&server.at), "{}", gone.stderr);
}

/// A run of a job on a server: from which step it resumed. It takes two more checkpoints.
fn run_of(job: &str, place: &str) -> String {
    let line = program::command_line();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    let options = format!("global = '{place}'\npool = '8 MiB'\nchunk = '64 KiB'");
    program::tell(&mut command, "holds", job, &options);
    let mut running = Running::of(command);
    let resumed = running.wait_for("ready");
    running.wait_for("taken");
    running.go_on();
    assert_eq!(running.wait_for("sealed"), "sealed true");
    resumed
}

// Breaks if: what is no file on the server's disk is an error of the server, and not damage, for
// its callers.
#[test]
fn what_is_no_file_on_a_servers_disk_counts_as_damage() {
    let server = Server::start(&[]);
    let place = server.place("key");
    let files = [
        ("s000000000002-", ".orc", "ready 1"),
        ("s000000000002-", ".commit", "ready 1"),
        ("epoch-000001", ".claim", "ready 2"),
        ("epoch-000001", ".resumed", "ready 2"),
    ];
    for (number, (begin, end, resumes)) in files.into_iter().enumerate() {
        for by in Impostor::ALL {
            let job = format!("{number}-{by:?}");
            assert_eq!(run_of(&job, &place), "ready 0");
            let on_disk = server.scratch.path().join("disk/default").join(&job);
            let mut names = std::fs::read_dir(&on_disk).unwrap().flatten();
            let name = names.find_map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name.starts_with(begin) && name.ends_with(end)).then_some(name)
            });
            let name = name.unwrap();
            by.put(&on_disk.join(&name)).unwrap();
            let found = answer(&["verify", "--all", "--job", &job, "--dir", &place]);
            let said = format!("{}{}", found.stdout, found.stderr);
            let what = format!("expected a regular file, found {}", by.name());
            assert!(
                said.contains(&name) && said.contains(&what),
                "{job}: {said}"
            );
            if resumes == "ready 1" {
                assert_ne!(found.code, 0, "{job}: {said}");
            }
            assert_eq!(run_of(&job, &place), resumes, "{job}");
        }
    }
}

#[test]
fn the_key_may_come_from_the_environment_and_what_travels_may_be_encrypted() {
    let server = Server::start(&["--encrypt"]);
    let key = server.scratch.path().join("key");
    let source = format!("file:{}", key.display());
    let place = format!("{}?encrypt", server.at);
    take_one(&place, Some(("ORCHECK_SERVER_KEY", &source)));
    let listed = orcheck(&["ls", "--dir", &place])
        .env("ORCHECK_SERVER_KEY", &source)
        .output();
    assert_eq!(Answer::of(listed.unwrap()).code, 0);
    for (place, says) in [
        (server.at.clone(), "where the key comes from"),
        (format!("{}?key={source}", server.at), "encrypt"),
        ("orcheck://127.0.0.1?key=file:/none".to_owned(), "/none"),
    ] {
        let refused = answer(&["ls", "--dir", &place]);
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    let server = Server::start(&[]);
    let again = Answer::of(command(&server.scratch, &[]).output().unwrap());
    assert!(
        again.code == 1 && again.stderr.contains("another server has"),
        "{}",
        again.stderr
    );
    let scratch = Scratch::new();
    let twice = format!("third=file:{}", key(&scratch, "third-key", 1).display());
    let refused = Answer::of(command(&scratch, &["--key", &twice]).output().unwrap());
    assert!(
        refused.stderr.contains("could not be told apart"),
        "{}",
        refused.stderr
    );
    let open = key(&scratch, "open", 9);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = format!("open=file:{}", open.display());
    let refused = Answer::of(command(&scratch, &["--key", &open]).output().unwrap());
    assert!(refused.stderr.contains("mode 0600"), "{}", refused.stderr);
    // Breaks if: a number without a unit is taken for some unit.
    for option in ["--scrub-every", "--stop-limit"] {
        let refused = Answer::of(command(&scratch, &[option, "24"]).output().unwrap());
        assert!(
            refused.code == 2 && refused.stderr.contains("such as 24h"),
            "{option}: {}",
            refused.stderr
        );
    }
    let refused = answer(&[
        "server",
        "--dir",
        "/nonexistent",
        "--key",
        "file:/nonexistent",
    ]);
    assert_ne!(refused.code, 0);
}

#[test]
fn damage_that_lies_on_a_server_is_told_of_while_it_runs() {
    // Everything is read again after a third of a second.
    let mut server = Server::start(&["--scrub-every", "360ms", "--json"]);
    take_one(&server.place("key"), None);
    let on_disk = server.scratch.path().join("disk/default/cavity");
    let containers = std::fs::read_dir(&on_disk).unwrap().flatten();
    let mut containers = containers.map(|one| one.path());
    let path = containers.find(|path| path.extension().is_some_and(|end| end == "orc"));
    let path = path.unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(64)
        .position(|found| found == [7; 64])
        .unwrap();
    // One byte: a file written whole is short for a moment, which the server would report.
    orcheck_fixtures::reading::flip(&path, at, 1);
    let err = BufReader::new(server.child.as_mut().unwrap().stderr.take().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        for line in err.lines() {
            tell.send(line.unwrap()).unwrap();
        }
    });
    let path = path.display().to_string();
    let about = |line: &String| line.contains(&path);
    let wait = std::time::Duration::from_secs(60);
    let line = loop {
        let line = told.recv_timeout(wait).unwrap();
        if about(&line) {
            break line;
        }
        assert!(
            line.starts_with("orcheck: scrub: since the start"),
            "{line}"
        );
    };
    for says in [
        "orcheck: scrub: corrupt: tenant default, job cavity, step ",
        "expected CRC-64",
        "`orcheck verify --job cavity",
    ] {
        assert!(line.contains(says), "{says}: {line}");
    }
    // It continues reading, and has nothing more to tell of that file.
    let counts = told.recv_timeout(wait).unwrap();
    assert!(counts.ends_with("1 damaged file"), "{counts}");
    told.recv_timeout(wait).unwrap();
    let ended = server.end();
    assert_eq!(ended.code, 143);
    reading.join().unwrap();
    assert!(!told.iter().any(|line| about(&line)));
    let document = ended.stdout.split_once('{').unwrap().1;
    assert!(document.contains("\"damaged_files\": 1"), "{document}");
}

// Breaks if: the server answers with one of its keys and says nothing, or the caller takes it for a
// rank of another run.
#[test]
fn a_caller_with_another_key_is_named_at_both_ends() {
    let mut server = Server::start(&["--json"]);
    key(&server.scratch, "wrong-key", 7);
    let callers = 4;
    for _ in 0..callers {
        let refused = answer(&["ls", "--dir", &server.place("wrong-key")]);
        assert_ne!(refused.code, 0);
        for says in [
            server.at.as_str(),
            "the server does not know this key",
            "ORCHECK_SERVER_KEY",
        ] {
            assert!(refused.stderr.contains(says), "{says}: {}", refused.stderr);
        }
        assert!(!refused.stderr.contains("rank"), "{}", refused.stderr);
    }
    let ended = server.end();
    let lines = ended.stderr.lines();
    let lines: Vec<&str> = lines.filter(|line| line.contains("knows none")).collect();
    assert!(
        lines[0].starts_with("orcheck: server: a caller was refused: tcp:127.0.0.1:"),
        "{lines:?}"
    );
    // Who asks again and again does not fill the log.
    assert!(lines.len() < callers, "{lines:?}");
    let document = ended.stdout.split_once('{').unwrap().1;
    let refused = document.split_once("\"refused_callers\": ").unwrap().1;
    let refused: usize = refused[..refused.find(',').unwrap()].parse().unwrap();
    assert!(refused >= callers, "{document}");
}

/// A daemon of our own: however the test ends, it ends too.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A munged of our own, ended with the test; `None`, and a line that says so, where there can be
/// none.
#[allow(clippy::print_stdout)] // what is not tried is reported
fn munged(scratch: &Scratch) -> Option<(Daemon, String)> {
    let paths = ["/usr/sbin/munged", "/usr/bin/munged", "/sbin/munged"];
    let munged = paths.iter().find(|path| PathBuf::from(path).exists());
    let (Some(munged), true) = (munged, rustix::process::geteuid().is_root()) else {
        println!("SKIPPED: users known by MUNGE (needs root and the package munge)");
        return None;
    };
    let dir = scratch.dir("munge");
    let realm = key(scratch, "realm", 11);
    let socket = dir.join("socket").display().to_string();
    let mut command = Command::new(munged);
    command.args(["--foreground", "--force"]);
    command.arg(format!("--socket={socket}"));
    command.arg(format!("--key-file={}", realm.display()));
    command.arg(format!("--pid-file={}", dir.join("pid").display()));
    command.arg(format!("--seed-file={}", dir.join("seed").display()));
    for open in [scratch.path(), dir.as_path()] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut daemon = Daemon(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut err = BufReader::new(daemon.0.stderr.as_mut().unwrap());
    let mut line = String::new();
    while !line.contains("work threads") {
        line.clear();
        assert_ne!(err.read_line(&mut line).unwrap(), 0, "munged ended");
    }
    Some((daemon, socket))
}

#[test]
fn users_known_by_munge_have_directories_of_their_own() {
    use std::os::unix::process::CommandExt;
    const VARIABLE: &str = "ORCHECK_MUNGE_SOCKET";
    let scratch = Scratch::new();
    let Some((daemon, socket)) = munged(&scratch) else {
        return;
    };
    let users = ["--munge", "0", "--munge", "others=4321", "--encrypt"];
    let mut command = command(&scratch, &users);
    command.env(VARIABLE, &socket);
    let server = Server::run(command, scratch);
    let place = format!("{}?munge&encrypt", server.at);
    take_one(&place, Some((VARIABLE, &socket)));
    assert!(server.scratch.path().join("disk/uid-0/cavity").is_dir());
    let list = |uid: u32, place: &str| {
        let mut command = orcheck(&["ls", "--dir", place]);
        command.env(VARIABLE, &socket);
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        Answer::of(command.output().unwrap())
    };
    let own = list(0, &place);
    assert_eq!(own.code, 0, "{}", own.stderr);
    // The library is loaded, the daemon is asked, and says that it is somebody else.
    let place = format!("{}?munge=0&encrypt", server.at);
    let other = list(4321, &place);
    assert!(other.stderr.contains("no job found"), "{}", other.stderr);
    let stranger = list(4322, &place);
    assert!(
        stranger.stderr.contains("serves no such user"),
        "{}",
        stranger.stderr
    );
    // Without munged there is an error, and no other way in.
    drop(daemon);
    let gone = list(0, &place);
    assert_ne!(gone.code, 0);
    assert!(gone.stderr.contains("munged"), "{}", gone.stderr);
}

/// Lines of the standard error of a server, as they come.
struct Lines(std::sync::mpsc::Receiver<String>);

impl Lines {
    fn of(server: &mut Server) -> Self {
        let err = BufReader::new(server.child.as_mut().unwrap().stderr.take().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in err.lines() {
                let Ok(()) = tell.send(line.unwrap()) else {
                    return;
                };
            }
        });
        Self(told)
    }

    /// The next line that says so.
    fn wait_for(&self, words: &str) -> String {
        loop {
            let next = self.0.recv_timeout(std::time::Duration::from_secs(30));
            let line = next.unwrap_or_else(|_| panic!("no line with {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

fn hang_up(server: &Server) {
    let pid = rustix::process::Pid::from_child(server.child.as_ref().unwrap());
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

// Breaks if: the signal ends the server, or what it rereads ends connections; a mistake in the file
// has to change nothing.
#[test]
fn a_server_rereads_keys_and_quotas_at_sighup_and_keeps_its_connections() {
    let scratch = Scratch::new();
    let file = scratch.path().join("tenants.toml");
    let physics = key(&scratch, "physics-key", 3);
    let chemistry = key(&scratch, "chemistry-key", 4);
    let write = |text: String| std::fs::write(&file, text).unwrap();
    let table = |name: &str, key: &PathBuf, more: &str| {
        format!("[{name}]\nkey = 'file:{}'\n{more}\n", key.display())
    };
    write(table("physics", &physics, ""));
    let dir = scratch.dir("disk").display().to_string();
    let first = format!("file:{}", key(&scratch, "key", 1).display());
    let given = file.display().to_string();
    let mut command = orcheck(&["server", "--dir", &dir, "--listen", "127.0.0.1:0", "--json"]);
    command.args([
        "--key",
        &first,
        "--key",
        "env=env:SERVER_TEST_KEY",
        "--tenants",
        &given,
    ]);
    command.env("SERVER_TEST_KEY", "07".repeat(32));
    let mut server = Server::run(command, scratch);
    let lines = Lines::of(&mut server);
    let open = |name: &str| {
        let place = server.place(name);
        orcheck_staging::open_dir(place.as_ref(), orcheck_io::failpoints::Failpoints::none())
    };
    // A program in the middle of a file, and one that waits.
    let (own, others) = (open("key").unwrap(), open("physics-key").unwrap());
    let files = [&own, &others].map(|dir| {
        let file = dir
            .create("file", orcheck_io::disk::Create::Buffered)
            .unwrap();
        file.write_at(&[7; 100_000], 0).unwrap();
        file
    });
    assert!(open("chemistry-key").is_err());
    // Another key for the first one, a quota for the second one, and a third one.
    std::fs::write(server.scratch.path().join("key"), [9; 32]).unwrap();
    write(table("physics", &physics, "quota_gib = 0.001") + &table("chemistry", &chemistry, ""));
    key(&server.scratch, "old-key", 1);
    hang_up(&server);
    let line = lines.wait_for("reread");
    for says in [
        "new: chemistry",
        "other keys: default",
        "quotas: physics 0.001 GiB",
        "not reread: the key of env, which comes from the environment, and all other options",
    ] {
        assert!(line.contains(says), "{says}: {line}");
    }
    for file in files {
        file.write_at(&[8; 100_000], 100_000).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
    }
    assert!(
        open("old-key")
            .err()
            .unwrap()
            .to_string()
            .contains("does not know this key")
    );
    assert!(open("key").unwrap().holds("file").unwrap());
    assert!(!open("chemistry-key").unwrap().holds("file").unwrap());
    // What was stored before is counted towards the quota.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let expected = (1 << 30) / 1000 - 200_000 - 30_000..(1 << 30) / 1000 - 200_000;
    while !expected.contains(&others.free_bytes().unwrap()) {
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            others.free_bytes()
        );
        std::thread::yield_now();
    }
    // Nothing of a file with a mistake counts, and the server continues.
    write(table("physics", &chemistry, "") + "[chemistry]\nquota = 1\n");
    hang_up(&server);
    let line = lines.wait_for("nothing was changed");
    assert!(
        line.contains("tenants.toml") && line.contains("quota"),
        "{line}"
    );
    assert!(open("physics-key").unwrap().holds("file").unwrap());
    // One that is not served any more is refused from then on.
    write(table("physics", &physics, "quota_gib = 0.001"));
    hang_up(&server);
    let line = lines.wait_for("reread");
    assert!(line.contains("gone: chemistry"), "{line}");
    assert!(open("chemistry-key").is_err());
    let ended = server.end();
    assert_eq!(ended.code, 143);
    let document = ended.stdout.split_once('{').unwrap().1;
    assert!(document.contains("\"name\": \"physics\""), "{document}");
}
