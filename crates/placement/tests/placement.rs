//! Tests placement: properties over random numbers of nodes, servers, lanes and sizes, and the
//! refusals of the mapping file.
#![allow(clippy::unwrap_used)]

use orcheck_format::{ErrorKind, TargetId};
use orcheck_placement::{DEFAULT_LANES_MAX, Placement};
use proptest::prelude::*;

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i:03}")).collect()
}

fn streams(placement: &Placement) -> Vec<usize> {
    let mut streams = vec![0; placement.servers.len()];
    for lane in placement.lanes.iter().flatten() {
        streams[lane.index()] += 1;
    }
    streams
}

fn spread(counts: impl IntoIterator<Item = usize>) -> usize {
    let counts: Vec<usize> = counts.into_iter().collect();
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

/// Invariants 1 and 2 of the module.
fn check_lanes(placement: &Placement) {
    for lanes in &placement.lanes {
        assert!(!lanes.is_empty(), "a node without a lane: {placement:?}");
        for (i, lane) in lanes.iter().enumerate() {
            assert!(
                placement.servers[lane.index()].active,
                "inactive lane: {placement:?}"
            );
            assert!(
                !lanes[..i].contains(lane),
                "two lanes to one server: {placement:?}"
            );
        }
    }
}

fn fullest(lanes: &[Vec<TargetId>], sizes: &[u64], servers: usize) -> u64 {
    let mut load = vec![0; servers];
    for (of_node, size) in lanes.iter().zip(sizes) {
        for lane in of_node {
            load[lane.index()] += size;
        }
    }
    load.into_iter().max().unwrap()
}

/// The best possible fullest server, one lane per node, by trying every placement.
fn best_fullest(sizes: &[u64], servers: usize) -> u64 {
    let mut best = u64::MAX;
    for mut code in 0..servers.pow(sizes.len() as u32) {
        let mut load = vec![0; servers];
        for size in sizes {
            load[code % servers] += size;
            code /= servers;
        }
        best = best.min(load.into_iter().max().unwrap());
    }
    best
}

proptest! {
    // Breaks if: `balanced` starts the turn again for each node.
    #[test]
    fn balanced_counts_differ_by_one_at_most(nodes in 1_usize..200, servers in 1_usize..40,
                                             lanes in prop::option::of(1_u32..9)) {
        let (nodes, servers) = (names("n", nodes), names("/s", servers));
        prop_assume!(lanes.is_none_or(|l| l as usize <= servers.len()));
        let placement = Placement::balanced(&nodes, &servers, lanes).unwrap();
        check_lanes(&placement);
        prop_assert!(spread(streams(&placement)) <= 1);
        let expected = lanes.unwrap_or(
            ((servers.len() / nodes.len()) as u32).clamp(1, DEFAULT_LANES_MAX));
        prop_assert!(placement.lanes.iter().all(|l| l.len() == expected as usize));
        prop_assert_eq!(&placement, &Placement::balanced(&nodes, &servers, lanes).unwrap());
    }

    // Breaks if: `weighted` takes the nodes in the given order instead of largest first.
    #[test]
    fn weighted_is_within_four_thirds_of_the_best(sizes in prop::collection::vec(0_u64..1000, 1..8),
                                                  servers in 1_usize..4) {
        let nodes = names("n", sizes.len());
        let placement = Placement::weighted(&nodes, &sizes, &names("/s", servers), Some(1)).unwrap();
        check_lanes(&placement);
        let (ours, best) = (fullest(&placement.lanes, &sizes, servers), best_fullest(&sizes, servers));
        prop_assert!(3 * ours <= 4 * best, "fullest {} bytes, best possible {} bytes", ours, best);
    }

    #[test]
    fn weighted_holds_for_any_sizes_and_lanes(sizes in prop::collection::vec(any::<u64>(), 1..60),
                                              servers in 1_usize..20, lanes in 1_u32..9) {
        let (nodes, servers) = (names("n", sizes.len()), names("/s", servers));
        prop_assume!(lanes as usize <= servers.len());
        let placement = Placement::weighted(&nodes, &sizes, &servers, Some(lanes)).unwrap();
        check_lanes(&placement);
        prop_assert!(placement.lanes.iter().all(|l| l.len() == lanes as usize));
        prop_assert_eq!(&placement,
            &Placement::weighted(&nodes, &sizes, &servers, Some(lanes)).unwrap());
    }

    #[test]
    fn weighted_with_equal_sizes_is_balanced(nodes in 1_usize..60, servers in 1_usize..20,
                                             size in prop_oneof![Just(0), 1_u64..1000]) {
        let sizes = vec![size; nodes];
        let placement =
            Placement::weighted(&names("n", nodes), &sizes, &names("/s", servers), None).unwrap();
        prop_assert!(spread(streams(&placement)) <= 1);
    }

    // Breaks if: `without` may pick a server that the node already writes to.
    #[test]
    fn servers_can_be_lost_down_to_the_last(nodes in 1_usize..40, servers in 1_usize..10,
                                            order in any::<prop::sample::Index>(),
                                            lanes in prop::option::of(1_u32..9)) {
        let (nodes, servers) = (names("n", nodes), names("/s", servers));
        prop_assume!(lanes.is_none_or(|l| l as usize <= servers.len()));
        let mut placement = Placement::balanced(&nodes, &servers, lanes).unwrap();
        let first = order.index(servers.len()) as u32;
        for i in 0..servers.len() as u32 {
            let lost = (first + i) % servers.len() as u32;
            let next = placement.without(TargetId(lost), &nodes);
            if i as usize == servers.len() - 1 {
                let error = next.unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::Unavailable);
                prop_assert!(error.message().contains(&servers[lost as usize]));
                break;
            }
            let next = next.unwrap();
            check_lanes(&next);
            prop_assert_eq!(next.generation, placement.generation + 1);
            prop_assert_eq!(&next, &next.without(TargetId(lost), &nodes).unwrap());
            for (before, after) in placement.lanes.iter().zip(&next.lanes) {
                if !before.contains(&TargetId(lost)) {
                    prop_assert_eq!(before, after, "a lane moved that was not on the lost server");
                }
            }
            if lanes.is_none_or(|l| l == 1) && placement.lanes[0].len() == 1 {
                let active = next.servers.iter().zip(streams(&next)).filter(|(s, _)| s.active);
                prop_assert!(spread(active.map(|(_, count)| count)) <= 1);
            }
            placement = next;
        }
    }

    // Breaks if: `to_toml` leaves `inactive` or `generation` out.
    #[test]
    fn mapping_file_round_trip(sizes in prop::collection::vec(0_u64..1000, 1..20),
                               servers in prop::collection::btree_set("/[ -~é]{1,12}", 2..6),
                               lost in any::<prop::sample::Index>()) {
        let (nodes, servers) = (names("node \"q\" ", sizes.len()), servers.into_iter().collect::<Vec<_>>());
        let placement = Placement::weighted(&nodes, &sizes, &servers, None).unwrap();
        for placement in [placement.without(TargetId(lost.index(servers.len()) as u32), &nodes).unwrap(), placement] {
            let text = placement.to_toml(&nodes);
            prop_assert_eq!(Placement::from_toml(&text, &nodes, &servers).unwrap(), placement);
        }
    }

    #[test]
    fn any_text_is_refused_or_gives_a_placement(text in "(?s).{0,200}") {
        if let Ok(placement) = Placement::from_toml(&text, &names("n", 2), &names("/s", 2)) {
            check_lanes(&placement);
        }
    }
}

#[test]
fn a_mapping_file_as_a_user_writes_it() {
    let text = r#"
        inactive = ["/s002"]
        [nodes]
        n000 = "/s001"
        n001 = ["/s000", "/s001"]
        elsewhere = "/not/of/this/run"
    "#;
    let placement = Placement::from_toml(text, &names("n", 2), &names("/s", 3)).unwrap();
    assert_eq!(
        placement.lanes,
        [vec![TargetId(1)], vec![TargetId(0), TargetId(1)]]
    );
    assert_eq!(placement.generation, 0);
    assert!(!placement.servers[2].active);
}

#[test]
fn a_wrong_mapping_file_is_refused_with_the_reason() {
    for (text, reason) in [
        ("nodes = 3", "mapping file"),
        ("[nodes]\nn000 = \"/s000\"", "\"n001\" has no entry"),
        (
            "[nodes]\nn000 = \"/s000\"\nn001 = \"/typo\"",
            "\"/typo\", which is not configured",
        ),
        ("[nodes]\nn000 = \"/s000\"\nn001 = []", "has 0 servers"),
        (
            "[nodes]\nn000 = [\"/s000\", \"/s000\"]\nn001 = \"/s001\"",
            "twice",
        ),
        (
            "inactive = [\"/s001\"]\n[nodes]\nn000 = \"/s000\"\nn001 = \"/s001\"",
            "inactive",
        ),
        (
            "inactive = [\"/other\"]\n[nodes]\nn000 = \"/s000\"\nn001 = \"/s001\"",
            "not configured",
        ),
        (
            "lanes = 2\n[nodes]\nn000 = \"/s000\"\nn001 = \"/s001\"",
            "unknown field `lanes`",
        ),
        (
            "generation = -1\n[nodes]\nn000 = \"/s000\"\nn001 = \"/s001\"",
            "generation",
        ),
    ] {
        let error = Placement::from_toml(text, &names("n", 2), &names("/s", 2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(error.message().contains(reason), "{text}\n gave: {error}");
    }
}

#[test]
fn impossible_input_is_refused_with_the_reason() {
    let (nodes, servers) = (names("n", 2), names("/s", 2));
    let twice = vec!["/a".to_owned(), "/a".to_owned()];
    for (result, reason) in [
        (Placement::balanced(&[], &servers, None), "no node"),
        (Placement::balanced(&nodes, &[], None), "no target"),
        (
            Placement::balanced(&nodes, &twice, None),
            "\"/a\" is given twice",
        ),
        (
            Placement::balanced(&nodes, &servers, Some(3)),
            "expected 1 to 2",
        ),
        (
            Placement::balanced(&nodes, &servers, Some(0)),
            "expected 1 to 2",
        ),
        (
            Placement::weighted(&nodes, &[1], &servers, None),
            "1 sizes for 2 nodes",
        ),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{reason}");
        assert!(
            error.message().contains(reason),
            "expected {reason}, got: {error}"
        );
    }
    let placement = Placement::balanced(&nodes, &servers, None).unwrap();
    assert_eq!(
        placement.without(TargetId(2), &nodes).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(
        placement
            .without(TargetId(0), &nodes[..1])
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
}
