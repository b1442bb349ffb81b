//! Tests the contention model against its closed form, and properties that hold for all parameters.

use orcheck_planner::contention::{
    Burst, Calibration, Disk, Fixed, Mode, Network, Outcome, Parameters, closed_form, simulate,
};
use proptest::prelude::*;

fn burst(mode: Mode, nodes: u32, ranks_per_node: u32, bytes_per_rank: u64) -> Burst {
    Burst {
        mode,
        nodes,
        ranks_per_node,
        servers: 4,
        bytes_per_rank,
        cached: false,
    }
}

/// 256 ranks and 16 GB, as in the paper's figure 1.
fn paper_burst(mode: Mode) -> Burst {
    burst(mode, 32, 8, 62_500_000)
}

fn run(parameters: &Parameters, burst: &Burst) -> Outcome {
    simulate(parameters, burst).expect("a burst that can be simulated")
}

/// Seeks cost the same everywhere and requests are served as they come: what the formula knows.
fn plain_seeks(disk: &mut Disk, seek_s: f64) {
    disk.seek_min_s = seek_s;
    disk.seek_max_s = seek_s;
    disk.queue_depth = 1;
}

fn no_seeks(disk: &mut Disk) {
    plain_seeks(disk, 0.0);
    disk.rotation_s = 0.0;
}

fn near(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "{what}: expected {expected} s within {} %, found {found} s",
        tolerance * 100.0
    );
}

// Breaks if: a positioning, a transfer or a link is forgotten or counted twice.
#[test]
fn a_burst_by_hand() {
    let mut parameters = Parameters::default();
    plain_seeks(&mut parameters.disk, 8e-3);
    parameters.disk.rotation_s = 8e-3;
    parameters.disk.request_s = 0.0;
    parameters.disk.rate_bytes_per_s = 65_536e3;
    parameters.network.latency_s = 0.0;
    // 8 ranks of 64 stripes to each of 4 servers: 512 stripes at a server, 12 ms for the head and 1
    // ms for the bytes.
    let traditional = run(&parameters, &burst(Mode::Traditional, 4, 2, 256 * 65_536));
    near(
        traditional.time_s,
        512.0 * 13e-3,
        0.01,
        "every stripe costs a seek",
    );
    assert_eq!(traditional.disk_requests, 2048);
    assert!(traditional.positionings > 2000);
    assert_eq!(traditional.streams_per_server, 8);
    // One node at each server, in one piece: 33,554,432 bytes at 65,536,000 a second, a seek, and
    // the first request's way.
    parameters.client.copy_rate_bytes_per_s = 0.0;
    let orchestrated = run(&parameters, &burst(Mode::Orchestrated, 4, 2, 256 * 65_536));
    let expected = 0.512 + 12e-3 + (4 << 20) as f64 / 117e6;
    near(orchestrated.time_s, expected, 0.001, "one piece");
    assert_eq!(orchestrated.positionings, 4);
    assert_eq!(orchestrated.streams_per_server, 1);
}

// Breaks if: the modes are not the modes: this is what they are for.
#[test]
fn orchestrated_beats_vertical_beats_traditional_on_disks_with_heads() {
    let parameters = Parameters::default();
    let outcomes = Mode::ALL.map(|mode| run(&parameters, &paper_burst(mode)));
    let [traditional, vertical, orchestrated] = &outcomes;
    assert!(traditional.time_s > vertical.time_s, "{outcomes:?}");
    assert!(vertical.time_s > orchestrated.time_s, "{outcomes:?}");
    // "256 ..., which is reduced to 64 ..., and further optimized to 8" (IV-B).
    assert_eq!(
        outcomes.map(|outcome| outcome.streams_per_server),
        [256, 64, 8]
    );
}

// Breaks if: a mode costs something that has nothing to do with heads or links.
#[test]
fn on_plain_disks_all_modes_take_the_time_of_the_bytes() {
    let mut parameters = Parameters::default();
    no_seeks(&mut parameters.disk);
    parameters.disk.request_s = 0.0;
    parameters.client.copy_rate_bytes_per_s = 0.0;
    for rate in [55e6, 500e6] {
        parameters.disk.rate_bytes_per_s = rate;
        let slower = rate.min(117e6);
        for mode in Mode::ALL {
            let outcome = run(&parameters, &paper_burst(mode));
            near(outcome.time_s, 4e9 / slower, 0.01, mode.name());
        }
    }
}

// Breaks if: the page cache does not merge, or does not keep its limit.
#[test]
fn a_page_cache_helps_traditional_the_more_the_larger_it_is() {
    let mut parameters = Parameters::default();
    parameters.server.cache_background_bytes = 1 << 20;
    let through = run(&parameters, &paper_burst(Mode::Traditional)).time_s;
    let cached = Burst {
        cached: true,
        ..paper_burst(Mode::Traditional)
    };
    let mut before = through;
    for cache_bytes in [64 << 20, 256 << 20, 2 << 30] {
        parameters.server.cache_bytes = cache_bytes;
        let outcome = run(&parameters, &cached);
        assert!(
            outcome.time_s < before * 0.95,
            "{cache_bytes}: {outcome:?}, before {before}"
        );
        before = outcome.time_s;
    }
    let floor = 4e9 / parameters.disk.rate_bytes_per_s;
    assert!(before > floor);
}

// Breaks if: a stream has more requests in flight than it may.
#[test]
fn requests_in_flight_are_what_overlaps() {
    let mut parameters = Parameters::default();
    no_seeks(&mut parameters.disk);
    parameters.disk.request_s = 0.0;
    parameters.disk.rate_bytes_per_s = 100e6;
    parameters.network = Network {
        node_rate_bytes_per_s: 100e6,
        server_rate_bytes_per_s: 100e6,
        latency_s: 1e-3,
    };
    parameters.client.vertical_request_bytes = 1_000_000;
    // 100 requests, each 10 ms on the wire, 10 ms at the disk, 1 ms to it and back.
    let burst = burst(Mode::Vertical, 1, 1, 100_000_000);
    for (in_flight, expected_s) in [(1, 2.2), (2, 50.0 * 22e-3 + 10e-3), (3, 1.0 + 12e-3)] {
        parameters.client.in_flight = in_flight;
        let found_s = run(&parameters, &burst).time_s;
        near(found_s, expected_s, 1e-6, "a window");
    }
}

// Breaks if: the second slot does not let a copy overlap a flush.
#[test]
fn staging_costs_the_first_image_or_the_copies() {
    let mut parameters = Parameters::default();
    let burst = burst(Mode::Orchestrated, 4, 8, 100_000_000);
    parameters.client.copy_rate_bytes_per_s = 0.0;
    let flush_s = run(&parameters, &burst).time_s;
    parameters.client.copy_rate_bytes_per_s = 1e9;
    near(
        run(&parameters, &burst).time_s,
        flush_s + 0.1,
        0.003,
        "overlapped",
    );
    parameters.client.stage_slots = 1;
    let one_slot = run(&parameters, &burst).time_s;
    near(one_slot, flush_s + 0.8, 0.03, "one after the other");
    // A copy slower than the disk: all copies, then the last image's flush.
    parameters.client.stage_slots = 2;
    parameters.client.copy_rate_bytes_per_s = 20e6;
    let slow = run(&parameters, &burst).time_s;
    near(slow, 40.0 + flush_s / 8.0, 0.01, "the copy is the limit");
}

// Breaks if: ranks that begin late are not waited for, or keep the others.
#[test]
fn ranks_may_begin_one_after_the_other() {
    let mut parameters = Parameters::default();
    plain_seeks(&mut parameters.disk, 0.0);
    parameters.client.copy_rate_bytes_per_s = 0.0;
    for mode in Mode::ALL {
        let burst = burst(mode, 1, 4, 16 << 20);
        let alone = Burst {
            ranks_per_node: 1,
            ..burst
        };
        parameters.client.begin_s = 0.0;
        let (together, one) = (run(&parameters, &burst), run(&parameters, &alone));
        // Long after the one before: the last of four begins at three quarters of the time.
        parameters.client.begin_s = 100.0;
        let apart = run(&parameters, &burst);
        near(apart.time_s, 75.0 + one.time_s, 0.01, mode.name());
        // So close that they wait for each other: nothing is lost.
        parameters.client.begin_s = together.time_s / 10.0;
        let close = run(&parameters, &burst).time_s;
        assert!(close <= 1.05 * together.time_s, "{mode:?}: {close} s");
    }
}

// Breaks if: what is fixed is forgotten, counted twice, or taken from another mode.
#[test]
fn what_is_fixed_is_added_once() {
    let mut parameters = Parameters::default();
    plain_seeks(&mut parameters.disk, 8e-3);
    let without = parameters.clone();
    parameters.fixed = Fixed {
        traditional_s: 1.0,
        vertical_s: 2.0,
        orchestrated_s: 3.0,
    };
    for (mode, fixed_s) in Mode::ALL.into_iter().zip([1.0, 2.0, 3.0]) {
        let burst = burst(mode, 4, 2, 16 << 20);
        let (with, before) = (run(&parameters, &burst), run(&without, &burst));
        near(with.time_s - before.time_s, fixed_s, 1e-9, mode.name());
        assert_eq!(with.disk_busy, before.disk_busy);
        let formula = |parameters| closed_form(parameters, &burst).unwrap();
        let (with, before) = (formula(&parameters), formula(&without));
        assert_eq!(with.is_some(), before.is_some());
        if let (Some(with), Some(before)) = (with, before) {
            near(with - before, fixed_s, 1e-9, mode.name());
        }
    }
}

// Breaks if: a bound is not checked, or its message does not name the field.
#[test]
fn what_cannot_be_simulated_is_refused_by_name() {
    let good = paper_burst(Mode::Vertical);
    let fails = |parameters: &Parameters, burst: &Burst, name: &str| {
        let said = simulate(parameters, burst).unwrap_err().to_string();
        assert!(said.contains(name), "{said}");
        assert!(closed_form(parameters, burst).is_err());
    };
    let mut parameters = Parameters::default();
    parameters.disk.rate_bytes_per_s = f64::NAN;
    fails(&parameters, &good, "disk.rate_bytes_per_s");
    parameters = Parameters::default();
    parameters.disk.seek_min_s = 1.0;
    fails(&parameters, &good, "disk.seek_max_s");
    parameters = Parameters::default();
    parameters.server.at_once = 0;
    fails(&parameters, &good, "server.at_once");
    parameters = Parameters::default();
    parameters.server.cache_bytes = 1000;
    fails(&parameters, &good, "server.cache_bytes");
    let parameters = Parameters::default();
    fails(&parameters, &Burst { servers: 0, ..good }, "servers");
    let large = Burst {
        bytes_per_rank: u64::MAX,
        ..good
    };
    fails(&parameters, &large, "bytes of a burst");
    let long = Burst {
        bytes_per_rank: 1 << 50,
        ..good
    };
    fails(&parameters, &long, "client.vertical_request_bytes");
    let wide = Burst {
        nodes: u32::MAX,
        ..good
    };
    fails(&parameters, &wide, "nodes × ranks");
    let mut parameters = Parameters::default();
    parameters.server.write_back_bytes = 1;
    fails(&parameters, &good, "server.write_back_bytes");
    parameters.server.write_back_bytes = 512;
    let cached = Burst {
        bytes_per_rank: 10 << 30,
        cached: true,
        ..good
    };
    fails(&parameters, &cached, "runs of a page cache");
    parameters = Parameters::default();
    parameters.client.in_flight = 1 << 16;
    parameters.client.vertical_request_bytes = 512;
    let deep = Burst {
        bytes_per_rank: 64 << 20,
        ..good
    };
    fails(&parameters, &deep, "client.in_flight");
    parameters = Parameters::default();
    parameters.fixed.vertical_s = -1.0;
    fails(&parameters, &good, "fixed.vertical_s");
}

// Breaks if: the form that `docs/contention.md` shows is not the one that is read.
#[test]
fn the_calibration_of_the_documentation_is_read_and_nothing_is_filled_in() {
    let text = include_str!("../../../docs/contention.md");
    let json = text
        .split("```json\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let mut document: serde_json::Value = serde_json::from_str(json).unwrap();
    let read: Calibration = serde_json::from_value(document["model"].clone()).unwrap();
    read.parameters().check().unwrap();
    assert_eq!(read.cases.len(), 1);
    simulate(&read.parameters(), &read.cases[0].burst()).unwrap();
    let taken = document["model"]["disk"]
        .as_object_mut()
        .unwrap()
        .remove("rotation_s");
    assert!(taken.is_some());
    let error = serde_json::from_value::<Calibration>(document["model"].clone()).unwrap_err();
    assert!(error.to_string().contains("rotation_s"), "{error}");
}

fn modes() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

prop_compose! {
    fn any_burst()(mode in modes(), nodes in 1u32..9, ranks_per_node in 1u32..5, servers in 1u32..5,
                   bytes_per_rank in 1u64..6_000_000, cached in any::<bool>()) -> Burst {
        Burst { mode, nodes, ranks_per_node, servers, bytes_per_rank, cached }
    }
}

prop_compose! {
    fn any_parameters()(link in 20e6..500e6, server_link in 20e6..500e6, latency_s in 0.0..1e-3, in_flight in 1u32..5,
                        copy in prop::sample::select(vec![0.0, 50e6, 1e9]), slots in 1u32..4, at_once in 1u32..6,
                        window in 1u32..4, cache in 5_000_000u64..60_000_000, rate in 20e6..500e6,
                        seek_s in 0.0..10e-3, far in 0.0..10e-3, depth in prop::sample::select(vec![1u32, 4, 32]))
                       -> Parameters {
        let network = Network { node_rate_bytes_per_s: link, server_rate_bytes_per_s: server_link, latency_s };
        let mut parameters = Parameters { network, ..Parameters::default() };
        parameters.client.in_flight = in_flight;
        parameters.client.copy_rate_bytes_per_s = copy;
        parameters.client.stage_slots = slots;
        parameters.server.at_once = at_once;
        parameters.server.window = window;
        parameters.server.cache_bytes = cache;
        parameters.server.cache_background_bytes = cache / 2;
        parameters.disk.rate_bytes_per_s = rate;
        parameters.disk.seek_min_s = seek_s;
        parameters.disk.seek_max_s = seek_s + far;
        parameters.disk.queue_depth = depth;
        parameters
    }
}

/// What no order of anything can beat: the bytes of the fullest link and disk.
fn floor_s(parameters: &Parameters, burst: &Burst) -> f64 {
    let node = burst.bytes_per_rank as f64 * f64::from(burst.ranks_per_node);
    let most = match burst.mode {
        Mode::Traditional => node * f64::from(burst.nodes) / f64::from(burst.servers),
        _ => node * f64::from(burst.nodes.div_ceil(burst.servers)),
    };
    let network = &parameters.network;
    (node / network.node_rate_bytes_per_s)
        .max(most / network.server_rate_bytes_per_s)
        .max(most / parameters.disk.rate_bytes_per_s)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // Breaks if: bytes are lost or overtake each other, or the simulation stops before its end.
    #[test]
    fn no_burst_is_faster_than_its_bytes_or_slower_than_one_request_at_a_time(
        parameters in any_parameters(), burst in any_burst()
    ) {
        let outcome = run(&parameters, &burst);
        prop_assert!(outcome.time_s >= floor_s(&parameters, &burst) * (1.0 - 1e-9), "{:?}", outcome);
        prop_assert!(outcome.disk_busy > 0.0 && outcome.disk_busy <= 1.0 + 1e-9);
        prop_assert!(outcome.positionings <= outcome.disk_requests);
        let Parameters { network, client, disk, .. } = &parameters;
        let bytes = burst.total_bytes() as f64;
        let requests = bytes / 65_536.0 + f64::from(burst.nodes * burst.ranks_per_node * burst.servers);
        let copy_s = match client.copy_rate_bytes_per_s {
            rate if rate > 0.0 => bytes / rate,
            _ => 0.0,
        };
        let per_request_s = disk.request_s + disk.seek_max_s + disk.rotation_s + 2.0 * network.latency_s;
        let slowest = network.node_rate_bytes_per_s.min(network.server_rate_bytes_per_s);
        let ceiling_s = copy_s + requests * per_request_s + bytes / slowest + bytes / disk.rate_bytes_per_s;
        prop_assert!(outcome.time_s <= ceiling_s, "{:?} > {}", outcome, ceiling_s);
        prop_assert_eq!(run(&parameters, &burst), outcome);
    }

    // Breaks if: the formula or the simulation forgets a part.
    #[test]
    fn the_simulation_is_the_closed_form_where_there_is_one(
        mode in modes(), per_server in 1u32..4, ranks in 1u32..5, servers in 1u32..5, link in 40e6..400e6,
        server_link in 40e6..400e6, rate in 40e6..400e6, seek_s in prop::sample::select(vec![0.0, 2e-3, 8e-3]),
        at_once in 1u32..5, copy in prop::sample::select(vec![0.0, 100e6, 1e9])
    ) {
        let mut parameters = Parameters::default();
        plain_seeks(&mut parameters.disk, seek_s);
        if seek_s == 0.0 {
            no_seeks(&mut parameters.disk);
        }
        parameters.disk.rate_bytes_per_s = rate;
        parameters.network.node_rate_bytes_per_s = link;
        parameters.network.server_rate_bytes_per_s = server_link;
        parameters.server.at_once = at_once;
        parameters.server.window = 4;
        parameters.client.in_flight = 4;
        parameters.client.copy_rate_bytes_per_s = copy;
        let nodes = per_server * servers;
        let burst = Burst { mode, nodes, ranks_per_node: ranks, servers, bytes_per_rank: 64 << 20, cached: false };
        let formula = closed_form(&parameters, &burst).unwrap();
        let even = per_server <= at_once || per_server % at_once == 0;
        prop_assert!(formula.is_some() || copy == 100e6 || !even, "no queue, no distance, no cache, enough in flight");
        let Some(formula) = formula else {
            return Ok(());
        };
        let found = run(&parameters, &burst).time_s;
        prop_assert!((found / formula - 1.0).abs() < 0.05, "simulated {} s, formula {} s", found, formula);
    }

    // Breaks if: the order of events depends on sizes in a way that no machine has. (A disk that
    // chooses the nearest may well be slower when it is faster: it is done before the next request
    // of the same file is there, and turns to another one.)
    #[test]
    fn more_bytes_take_longer_and_faster_parts_do_not(
        parameters in any_parameters(), burst in any_burst(), bytes_per_rank in 2_000_000u64..6_000_000
    ) {
        let mut parameters = parameters;
        parameters.disk.queue_depth = 1;
        // A node that stages slowly loses its turns: who has one then is another matter.
        parameters.client.copy_rate_bytes_per_s = 0.0;
        let burst = Burst { bytes_per_rank, ..burst };
        let time_s = run(&parameters, &burst).time_s;
        let twice = Burst { bytes_per_rank: bytes_per_rank * 2, ..burst };
        // A page cache begins to write earlier, and in larger pieces, when there is more.
        prop_assert!(burst.cached || run(&parameters, &twice).time_s > time_s);
        let mut faster = parameters.clone();
        faster.disk.rate_bytes_per_s *= 2.0;
        faster.disk.seek_min_s /= 2.0;
        faster.disk.seek_max_s /= 2.0;
        faster.disk.rotation_s /= 2.0;
        faster.disk.request_s /= 2.0;
        // Another order of arrivals may cost a few positionings: nothing real is monotonic to the
        // last request.
        let found_s = run(&faster, &burst).time_s;
        prop_assert!(found_s <= time_s * 1.1, "faster disk: {} s, before {} s", found_s, time_s);
        // With heads, a slow network may keep streams from taking turns.
        no_seeks(&mut parameters.disk);
        let time_s = run(&parameters, &burst).time_s;
        let mut faster = parameters.clone();
        faster.network.node_rate_bytes_per_s *= 2.0;
        faster.network.server_rate_bytes_per_s *= 2.0;
        let found_s = run(&faster, &burst).time_s;
        prop_assert!(found_s <= time_s * 1.1, "faster network: {} s, before {} s", found_s, time_s);
    }
}
