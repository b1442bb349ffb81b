//! Provides a program with checkpoints: this test program itself, started again and controlled by
//! its environment.
//!
//! It prints `ready STEP` when its session is open, and then everything it does. It never lives
//! longer than a minute.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use orcheck_client::{Environment, Membership, Options, Session, Solo};
use orcheck_format::{Dtype, ErrorKind, Level};
use orcheck_io::memory::Span;

const WHAT: &str = "ORCHECK_TEST_PROGRAM";
const JOB: &str = "ORCHECK_TEST_JOB";
const OPTIONS: &str = "ORCHECK_TEST_OPTIONS";
const LONG: Duration = Duration::from_secs(60);

/// The arguments that make the program of this one.
pub fn command_line() -> Vec<String> {
    let own = std::env::current_exe().unwrap().display().to_string();
    let rest = ["--exact", "program::program", "--nocapture"];
    [vec![own], rest.map(str::to_owned).to_vec()].concat()
}

/// Tells a command, or what it starts, to be the program.
pub fn tell(command: &mut Command, what: &str, job: &str, options: &str) {
    command.env(WHAT, what).env(JOB, job).env(OPTIONS, options);
}

/// The program, running; killed at the end of the test.
pub struct Running {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a command that the program is a part of.
    pub fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    pub fn start(what: &str, job: &str, options: &str) -> Self {
        let line = command_line();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        tell(&mut command, what, job, options);
        Self::of(command)
    }

    /// Reads until a line begins like this, and gives it back.
    pub fn wait_for(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            if self.out.read_line(&mut line).unwrap() == 0 {
                let mut said = String::new();
                let error = self.child.stderr.as_mut().unwrap();
                error.read_to_string(&mut said).unwrap();
                panic!("it ended without saying {begin}: {said}");
            }
            if line.starts_with(begin) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// The next line on standard error.
    pub fn error_line(&mut self) -> String {
        let error = self.child.stderr.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while error.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Sends a signal to it.
    pub fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}"))
            .arg(self.child.id().to_string());
        assert!(kill.status().unwrap().success());
    }

    /// Kills the command that it started.
    pub fn kill_command(&self) {
        let pid = self.child.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap();
        let mut kill = Command::new("kill");
        kill.arg("-KILL").args(children.split_whitespace());
        assert!(kill.status().unwrap().success());
    }

    /// Lets it continue.
    pub fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// Its exit code and what it said on standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let error = self.child.stderr.as_mut().unwrap();
        error.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the program does. In a run of the tests nobody tells it anything.
#[test]
fn program() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let begin = Instant::now();
    let options = std::env::var(OPTIONS).unwrap();
    let job = std::env::var(JOB).unwrap();
    if let Some(ending) = what.strip_prefix("without checkpoints ") {
        return without(&job, &options, ending);
    }
    let options = Options::load(Some(&options));
    let mut session =
        Session::open_with(&job, Box::new(Solo), options, Environment::default()).unwrap();
    let mut u = vec![7u8; 100_000];
    session
        .protect("u", Span::from_mut(&mut u), Dtype::U8, 0)
        .unwrap();
    let (mut v, mut w, mut turns) = (vec![0u8; 800], vec![0u8; 800], vec![0u8; 8]);
    if what.starts_with("solves") {
        session
            .protect("v", Span::from_mut(&mut v), Dtype::F64, 0)
            .unwrap();
    }
    if what == "solves" || what == "solves-padded" {
        session
            .protect("turns", Span::from_mut(&mut turns), Dtype::F64, 0)
            .unwrap();
    }
    let mut big = vec![1u8; if what == "loses" { 20 << 20 } else { 0 }];
    if what == "loses" {
        session
            .protect("big", Span::from_mut(&mut big), Dtype::U8, 0)
            .unwrap();
    }
    let mut padded = vec![0u8; 80];
    if what == "solves-padded" {
        session
            .protect("cells", Span::from_mut(&mut padded), Dtype::Bytes, 0)
            .unwrap();
    }
    let mut step = match session.find() {
        Ok(_) => session.restart().unwrap(),
        Err(_) => 0,
    };
    say(&format!("ready {step}"));
    match what.as_str() {
        "computes" => {
            while !session.should_stop() {
                step += 1;
                if session.due(step).unwrap() {
                    session.checkpoint(step).unwrap();
                }
                assert!(begin.elapsed() < LONG, "nobody asked it to halt");
                std::thread::yield_now();
            }
            session.close(LONG).unwrap();
            say(&format!("stopped {step}"));
        }
        // Tells of every checkpoint that was due, and begins when it is told to.
        "tells" => {
            let _ = std::io::stdin().read(&mut [0]);
            while !session.should_stop() {
                step += 1;
                if session.due(step).unwrap() {
                    session.checkpoint(step).unwrap();
                    say(&format!("taken {step}"));
                }
                assert!(begin.elapsed() < LONG, "nobody ended it");
                std::thread::yield_now();
            }
        }
        // Computes from one buffer into another and swaps them; what is protected stays the memory
        // that was the first one.
        "solves-swapping" => loop {
            step += 1;
            set(&mut w, 17, element(&v, 17) + 1.0);
            std::mem::swap(&mut v, &mut w);
            if session.due(step).unwrap() {
                session.checkpoint(step).unwrap();
            }
            assert!(begin.elapsed() < LONG, "nobody ended it");
            std::thread::yield_now();
        },
        // Computes from a counter, which one of them forgets to protect; the noisy one also from
        // its process's number.
        "solves" | "solves-forgetful" | "solves-noisy" | "solves-padded" => loop {
            step += 1;
            let turn = element(&turns, 0) + 1.0;
            set(&mut turns, 0, turn);
            let noisy = what == "solves-noisy";
            let sum = element(&v, 17) + if noisy { 1.0 } else { turn };
            set(&mut v, 17, sum);
            if noisy {
                let noise = f64::from(std::process::id()) * 1e-9;
                set(&mut v, 3, step as f64 + noise);
            }
            if what == "solves-padded" {
                set(&mut padded, 1, f64::from(std::process::id()));
            }
            if session.due(step).unwrap() {
                session.checkpoint(step).unwrap();
            }
            assert!(begin.elapsed() < LONG, "nobody ended it");
            std::thread::yield_now();
        },
        "ends" => session.close(LONG).unwrap(),
        // As one that reads no warnings: only its end tells that something is wrong.
        "loses" => {
            for more in 1..=3 {
                session.checkpoint(step + more).unwrap();
            }
            session.close(LONG).unwrap();
        }
        // As a program with a defect: whatever it restarts from, it gets no further.
        "fails" => panic!("as told"),
        "holds" => {
            session.checkpoint(step + 1).unwrap();
            session.wait(step + 1, Level::Global, LONG).unwrap();
            say(&format!("taken {}", step + 1));
            // Until it may take another one.
            let _ = std::io::stdin().read(&mut [0]);
            session.checkpoint(step + 2).unwrap();
            let safe = session.wait(step + 2, Level::Global, LONG);
            say(&format!("sealed {}", safe.is_ok()));
            let _ = std::io::stdin().read(&mut [0]);
        }
        // Takes a checkpoint, and then hears nothing any more.
        "deaf" => {
            session.checkpoint(step + 1).unwrap();
            let safe = session.wait(step + 1, Level::Process, LONG);
            say(&format!("sealed {}", safe.is_ok()));
            // The end of its input is the end of the test that started it.
            let _ = std::io::stdin().read(&mut [0]);
        }
        other => panic!("{other} is nothing that it can do"),
    }
}

/// Computes in a session that has no checkpoints.
fn without(job: &str, options: &str, ending: &str) {
    let mut session = Membership::open(job, Box::new(Solo), Some(options)).unwrap();
    let mut u = vec![7u8; 1000];
    session
        .protect("u", Span::from_mut(&mut u), Dtype::U8, 0)
        .unwrap();
    assert_eq!(session.find().unwrap_err().kind(), ErrorKind::NotFound);
    for step in 1..10 {
        assert!(!session.due(step).unwrap());
    }
    session.checkpoint(10).unwrap();
    session.close(LONG).unwrap();
    assert_eq!(ending, "ends", "as told");
}

fn element(bytes: &[u8], at: usize) -> f64 {
    f64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: usize, value: f64) {
    bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
}

/// To the test that started this.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}
