//! Tests the contention model against SimGrid, an established simulator: five common cases, within
//! 5 %.
//!
//! The same bursts run in `bench/simgrid/burst.cpp`, which this test compiles: another program and
//! another simulator, whose network shares links max-min fairly and whose disks have a rate but no
//! seeks. Where SimGrid is not installed, the test says so; `make check` installs it.

// Compiling and running another program is what this test is about.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use orcheck_planner::contention::{Burst, Mode, Parameters, simulate};

const TOLERANCE: f64 = 0.05;
const MIB: u64 = 1 << 20;

struct Common {
    name: &'static str,
    burst: Burst,
    parameters: Parameters,
}

/// Links, a disk without heads, and nothing that SimGrid does not have.
fn common(
    name: &'static str,
    burst: (Mode, u32, u32, u32, u64),
    rates: (f64, f64, f64),
    latency_s: f64,
) -> Common {
    let (mode, nodes, ranks_per_node, servers, bytes_per_rank) = burst;
    let mut parameters = Parameters::default();
    let network = &mut parameters.network;
    network.node_rate_bytes_per_s = rates.0;
    network.server_rate_bytes_per_s = rates.1;
    network.latency_s = latency_s;
    parameters.client.copy_rate_bytes_per_s = 0.0;
    let disk = &mut parameters.disk;
    disk.rate_bytes_per_s = rates.2;
    (disk.request_s, disk.rotation_s) = (0.0, 0.0);
    (disk.seek_min_s, disk.seek_max_s) = (0.0, 0.0);
    disk.queue_depth = 1;
    let burst = Burst {
        mode,
        nodes,
        ranks_per_node,
        servers,
        bytes_per_rank,
        cached: false,
    };
    Common {
        name,
        burst,
        parameters,
    }
}

fn cases() -> Vec<Common> {
    use Mode::{Orchestrated, Traditional, Vertical};
    let mut cases = vec![
        common(
            "links-of-the-servers",
            (Vertical, 8, 4, 2, 8 * MIB),
            (117e6, 117e6, 2e9),
            50e-6,
        ),
        common(
            "links-of-the-nodes",
            (Traditional, 2, 4, 4, 16 * MIB),
            (117e6, 117e6, 1e9),
            50e-6,
        ),
        common(
            "disks",
            (Traditional, 8, 4, 4, 8 * MIB),
            (117e6, 117e6, 55e6),
            50e-6,
        ),
        common(
            "nodes-that-do-not-go-evenly",
            (Vertical, 5, 2, 2, 24 * MIB),
            (40e6, 117e6, 90e6),
            1e-3,
        ),
        common(
            "turns-at-a-server",
            (Orchestrated, 8, 2, 2, 32 * MIB),
            (60e6, 1.25e9, 150e6),
            50e-6,
        ),
    ];
    cases[4].parameters.server.at_once = 2;
    cases
}

impl Common {
    /// The line that the other program reads.
    fn line(&self) -> String {
        let Parameters {
            network,
            client,
            server,
            disk,
            fixed: _, // 0: SimGrid knows bytes
        } = &self.parameters;
        let (request_bytes, in_flight) = match self.burst.mode {
            Mode::Traditional => (client.request_bytes, client.in_flight),
            Mode::Vertical => (client.vertical_request_bytes, client.in_flight),
            Mode::Orchestrated => (server.request_bytes, server.window),
        };
        format!(
            "{} {} {} {} {} {} {request_bytes} {in_flight} {} {} {} {} {}\n",
            self.name,
            self.burst.mode.name(),
            self.burst.nodes,
            self.burst.ranks_per_node,
            self.burst.servers,
            self.burst.bytes_per_rank,
            server.at_once,
            network.node_rate_bytes_per_s,
            network.server_rate_bytes_per_s,
            disk.rate_bytes_per_s,
            network.latency_s,
        )
    }
}

/// Compiles the program; nothing where SimGrid is not installed.
fn compiled() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let mut probe = Command::new(&compiler)
        .args(["-std=c++17", "-E", "-x", "c++", "-", "-o", "/dev/null"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut text = probe.stdin.take().unwrap();
    // The compiler may be gone already: its status says what to think of it.
    let _ = text.write_all(b"#include <simgrid/s4u.hpp>\n");
    drop(text);
    if !probe.wait().unwrap().success() {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/simgrid/burst.cpp");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simgrid-burst");
    let done = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(&source)
        .args(["-lsimgrid", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{} does not compile: {}",
        source.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    Some(program)
}

// Breaks if: a link is shared otherwise than fairly, a window is not kept, or a server's disk waits
// for what is there.
#[test]
fn five_common_cases_agree_with_simgrid() {
    let Some(program) = compiled() else {
        // Past the test harness, which keeps what a passing test prints: the log of `make check`
        // shows it.
        let mut log = std::io::stderr();
        writeln!(
            log,
            "SKIPPED: five_common_cases_agree_with_simgrid: SimGrid or a C++ compiler is missing (apt install libsimgrid-dev g++)"
        )
        .unwrap();
        return;
    };
    let cases = cases();
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for case in &cases {
        input.write_all(case.line().as_bytes()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let times: Vec<(&str, f64)> = said
        .lines()
        .map(|line| {
            let (name, time) = line.split_once(' ').unwrap();
            (name, time.parse().unwrap())
        })
        .collect();
    assert_eq!(times.len(), cases.len(), "{said}");
    for (case, (name, simgrid_s)) in cases.iter().zip(times) {
        assert_eq!(case.name, name);
        let own_s = simulate(&case.parameters, &case.burst).unwrap().time_s;
        println!(
            "{name}: model {own_s:.4} s, SimGrid {simgrid_s:.4} s, {:+.2} %",
            (own_s / simgrid_s - 1.0) * 100.0
        );
        assert!(
            (own_s / simgrid_s - 1.0).abs() <= TOLERANCE,
            "{name}: model {own_s} s, SimGrid {simgrid_s} s"
        );
    }
}
