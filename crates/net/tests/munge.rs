//! Tests how MUNGE identifies a caller: the test's own daemons have their keys and sockets in a
//! directory of the test.

// Tests start programs and make files themselves, and a failed preparation may panic anywhere.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use orcheck_format::{Error, ErrorKind};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::effective_uid;
use orcheck_net::{Address, AsUser, Conn, Key, Listener, Users};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(20);

/// A munged with a key of its own: a realm. Ended with the test.
struct Realm {
    dir: PathBuf,
    daemon: Child,
}

impl Realm {
    /// `None`, and a line that says so, where this machine or user cannot have one.
    #[allow(clippy::print_stdout)] // what is not tried is reported
    fn new(name: &str) -> Option<Realm> {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let mut places = path.split(':');
        if effective_uid() != 0 || !places.any(|dir| PathBuf::from(dir).join("munged").exists()) {
            println!("SKIPPED: callers known by MUNGE (needs root and the package munge)");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("orcheck-munge-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let key: [u8; 64] = orcheck_io::rng::random_bytes();
        std::fs::write(dir.join("key"), key).unwrap();
        std::fs::set_permissions(dir.join("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new("munged");
        command.env("PATH", &path);
        command.args(["--foreground", "--force"]);
        for file in ["socket", "key-file", "pid-file", "seed-file", "log-file"] {
            let place = dir.join(file.split('-').next().unwrap());
            command.arg(format!("--{file}={}", place.display()));
        }
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(daemon.stderr.take().unwrap());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in err.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let realm = Realm { dir, daemon };
        while !told.recv_timeout(WAIT).unwrap().contains("work threads") {}
        Some(realm)
    }

    fn socket(&self) -> String {
        self.dir.join("socket").display().to_string()
    }

    fn caller(&self, server_uid: u32) -> AsUser {
        AsUser {
            server_uid,
            encrypt: false,
            socket: Some(self.socket()),
        }
    }

    fn users(&self, known: &[(u32, usize)]) -> Users {
        let users = Users::new(known.to_vec(), false).unwrap();
        users.with_munged_at(self.socket())
    }

    /// A credential made with the site's own program.
    fn credential(&self, more: &[&str]) -> Vec<u8> {
        let mut command = Command::new("munge");
        command
            .arg(format!("--socket={}", self.socket()))
            .args(more);
        let pipe = || Stdio::piped();
        let mut made = command.stdin(pipe()).stdout(pipe()).spawn().unwrap();
        let mut payload = b"ORCmung1".to_vec();
        payload.extend_from_slice(&[7; 32]);
        made.stdin.take().unwrap().write_all(&payload).unwrap();
        let out = made.wait_with_output().unwrap();
        assert!(out.status.success());
        out.stdout.trim_ascii().to_vec()
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A listener at a free port.
fn listener() -> Listener {
    Listener::bind(&"tcp:127.0.0.1:0".parse::<Address>().unwrap()).unwrap()
}

/// Accepts until `done`; gives back who came.
fn serve<T: Send>(
    listener: &Listener,
    users: Option<&Users>,
    caller: impl FnOnce() -> T + Send,
) -> (Vec<usize>, T) {
    let keys = [Key::new([3; 32])];
    std::thread::scope(|scope| {
        let calling = scope.spawn(caller);
        let (mut came, end) = (Vec::new(), Instant::now() + WAIT);
        while !calling.is_finished() && Instant::now() < end {
            let one =
                listener.accept_known(&keys, users, &Failpoints::none(), Duration::from_millis(5));
            came.extend(one.unwrap().map(|(which, _)| which));
        }
        (came, calling.join().unwrap())
    })
}

fn call(at: &Address, caller: &AsUser) -> Result<(), Error> {
    Conn::connect_as_user(at, caller, &Failpoints::none(), Duration::from_secs(10)).map(drop)
}

/// What a listener answers to a credential that comes from elsewhere: the reason of a refusal, or
/// none.
fn answer_to(at: &Address, credential: &[u8]) -> Option<u8> {
    let Address::Tcp(at) = at else { unreachable!() };
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    let len = u16::try_from(credential.len()).unwrap().to_le_bytes();
    let said = [
        b"ORCmng1\n",
        len.as_slice(),
        credential,
        b"ORCnet2\n",
        &[5; 32],
    ]
    .concat();
    // In small pieces, as a network may bring it.
    for piece in said.chunks(97) {
        stream.write_all(piece).unwrap();
    }
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    answer.starts_with(b"ORCno 1\n").then_some(answer[8])
}

#[test]
fn a_user_who_is_known_comes_in_and_others_are_told_why_not() {
    let Some(realm) = Realm::new("known") else {
        return;
    };
    let (listener, uid) = (listener(), effective_uid());
    let at = listener.address();
    let users = realm.users(&[(uid + 4321, 2), (uid, 7)]);
    // A connection of several messages: both sides have the same keys.
    let (came, called) = serve(&listener, Some(&users), || {
        (0..3).map(|_| call(&at, &realm.caller(uid))).collect()
    });
    let called: Result<Vec<()>, Error> = called;
    called.unwrap();
    assert_eq!(came, [7, 7, 7]);
    let refused = |users: Option<&Users>, caller: &AsUser, says: &str| {
        let (came, called) = serve(&listener, users, || call(&at, caller));
        let error = called.unwrap_err();
        // Breaks if: the first user is taken for everybody.
        assert_eq!((came, error.kind()), (vec![], ErrorKind::Unavailable));
        assert!(error.to_string().contains(says), "{error}");
    };
    let own = realm.caller(uid);
    let others = realm.users(&[(uid + 4321, 2)]);
    refused(Some(&others), &own, "serves no such user");
    refused(
        Some(&users),
        &realm.caller(uid + 9),
        &format!("munge={uid}"),
    );
    refused(None, &own, "takes no MUNGE");
    let other = Realm::new("other").unwrap();
    refused(Some(&users), &other.caller(uid), "Invalid credential");
    // No munged: an error at once, and nothing else instead.
    let nobody = AsUser {
        socket: Some("/nonexistent".to_owned()),
        ..own
    };
    let error = call(&at, &nobody).unwrap_err();
    assert!(error.to_string().contains("munged"), "{error}");
}

#[test]
fn a_credential_that_is_too_old_or_was_used_before_is_refused() {
    let Some(realm) = Realm::new("fresh") else {
        return;
    };
    let (listener, uid) = (listener(), effective_uid());
    let at = listener.address();
    let users = realm.users(&[(uid, 7)]);
    let sealed = [
        "--restrict-uid",
        &uid.to_string(),
        "--cipher=aes256",
        "--mac=sha256",
    ];
    let credential = realm.credential(&sealed);
    let short = realm.credential(&[&sealed[..], &["--ttl=1"]].concat());
    let (came, answers) = serve(&listener, Some(&users), || {
        let answers = [answer_to(&at, &credential), answer_to(&at, &credential)];
        // Its second goes by.
        let (_tell, told) = mpsc::channel::<()>();
        let _ = told.recv_timeout(Duration::from_millis(2500));
        (answers, answer_to(&at, &short))
    });
    // Who repeats it does not know the key, and could not continue even with the first answer.
    assert_eq!(came, [] as [usize; 0]);
    // Breaks if: what munged says of it is not heeded.
    assert_eq!(answers, ([None, Some(17)], Some(15)));
}

#[test]
fn a_credential_that_is_not_for_the_listener_alone_is_refused() {
    let Some(realm) = Realm::new("sealed") else {
        return;
    };
    let (listener, uid) = (listener(), effective_uid().to_string());
    let at = listener.address();
    let users = realm.users(&[(effective_uid(), 7)]);
    let answers = |more: &[&str]| {
        let credential = realm.credential(more);
        serve(&listener, Some(&users), || answer_to(&at, &credential)).1
    };
    let strong = ["--cipher=aes256", "--mac=sha256"];
    // Breaks if: it is taken; whoever in the realm sees it could speak for its maker.
    assert_eq!(answers(&strong), Some(103));
    assert_eq!(
        answers(&["--cipher=none", "--restrict-uid", &uid]),
        Some(103)
    );
    assert_eq!(
        answers(&[&strong[..], &["--restrict-uid", &uid]].concat()),
        None
    );
    let nonsense = serve(&listener, Some(&users), || {
        answer_to(&at, b"MUNGE:what is this:")
    });
    assert!(nonsense.1.is_some());
}
