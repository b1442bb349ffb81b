//! Tests parity: the code against its definition, every loss, the layout, and the groups.
#![allow(clippy::unwrap_used)]

use orcheck_format::disk::ParityGroup;
use orcheck_format::{ErrorKind, NodeId};
use orcheck_placement::Domains;
use orcheck_placement::parity::{Code, Scheme, groups};
use std::collections::BTreeMap;

/// Multiplication in GF(2^8) with the polynomial 0x11d, bit by bit.
fn times(mut a: u16, mut b: u16) -> u8 {
    let mut product = 0;
    while b > 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a <<= 1;
        a ^= if a & 0x100 == 0 { 0 } else { 0x11d };
        b >>= 1;
    }
    product as u8
}

fn inverse(a: u16) -> u16 {
    (1..256).find(|&b| times(a, b) == 1).unwrap()
}

/// The coefficient as the format document gives it.
fn coefficient(data: u16, of: u16, parity: u16, parities: u32) -> u16 {
    match parities {
        1 => 1,
        _ => inverse((of + parity) ^ data),
    }
}

fn block(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn encoded(code: &Code, data: &[Vec<u8>], parity: u32, len: usize) -> Vec<Vec<u8>> {
    let one = |parity| {
        let mut sum = vec![0; len];
        for (nth, bytes) in (0..).zip(data) {
            // In two parts, as bytes arrive.
            let half = bytes.len() / 3;
            code.fold((nth, parity), &bytes[..half], 0, &mut sum);
            code.fold((nth, parity), &bytes[half..], half, &mut sum);
        }
        sum
    };
    (0..parity).map(one).collect()
}

// Breaks if: the matrix is another one; files of other versions could not be rebuilt.
#[test]
fn parity_is_what_the_format_document_says() {
    for (data, parity) in [(2, 1), (7, 1), (4, 2), (8, 2), (8, 4), (20, 3)] {
        let code = Code::new(data, parity).unwrap();
        let blocks: Vec<Vec<u8>> = (0..data.into()).map(|nth| block(nth + 1, 97)).collect();
        let found = encoded(&code, &blocks, parity, 97);
        for (j, found) in (0..).zip(&found) {
            for at in 0..97 {
                let each = (0..).zip(&blocks).map(|(i, block)| {
                    times(coefficient(i, data as u16, j, parity), block[at].into())
                });
                let expected = each.fold(0, |sum, one| sum ^ one);
                assert_eq!(
                    found[at], expected,
                    "parity {j} of {data}+{parity}, byte {at}"
                );
            }
        }
    }
}

// Breaks if: a loss within the promise is not recovered, or one beyond it is guessed.
#[test]
fn every_subset_of_losses_within_the_promise_is_recovered() {
    let codes = [
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (4, 2),
        (8, 2),
        (8, 4),
    ];
    for (data, parity) in codes {
        let (n, len) = ((data + parity) as usize, 64);
        let code = Code::new(data, parity).unwrap();
        let mut all: Vec<Vec<u8>> = (0..data.into()).map(|nth| block(nth + 7, len)).collect();
        let parities = encoded(&code, &all, parity, len);
        all.extend(parities);
        for lost in 1u32..1 << n {
            let there: Vec<Option<&[u8]>> = (all.iter().enumerate())
                .map(|(nth, block)| (lost >> nth & 1 == 0).then_some(&block[..]))
                .collect();
            let wanted = (0..n).filter(|nth| lost >> nth & 1 == 1);
            for wanted in wanted {
                let found = code.recover(&there, wanted);
                if lost.count_ones() <= parity {
                    assert_eq!(
                        found.unwrap(),
                        all[wanted],
                        "{data}+{parity} without {lost:b}"
                    );
                } else {
                    assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt);
                }
            }
        }
    }
}

// Breaks if: a holder protects its own container, or a block goes to one member twice: the loss of
// that member would cost two blocks of a codeword.
#[test]
fn the_blocks_of_a_codeword_are_on_different_members() {
    for members in 3..=14u32 {
        for parity in 1..members.min(5) as u8 {
            let group = ParityGroup {
                nodes: (0..members).map(NodeId).collect(),
                parity,
                unit_bytes: 4096,
            };
            let mut sent: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            for codeword in 0..members {
                let data = (0..group.data()).map(|data| group.owner(codeword, data));
                let parities = (0..u32::from(parity)).map(|one| group.holder(codeword, one));
                let mut all: Vec<u32> = data.chain(parities).collect();
                all.sort_unstable();
                assert_eq!(all, (0..members).collect::<Vec<_>>());
                for data in 0..group.data() {
                    assert_eq!(
                        group.codeword_of(group.owner(codeword, data), data),
                        codeword
                    );
                }
            }
            for member in 0..members {
                for holder in 0..members {
                    let picks = group.picks(member, holder);
                    assert_eq!(picks.is_empty(), member == holder);
                    assert!(picks.is_sorted_by(|a, b| a.data < b.data));
                    *sent.entry((member, 0)).or_default() += picks.len();
                }
            }
            // What is sent is m times the data, and so is what each holds of the others.
            let each = (group.data() * u32::from(parity)) as usize;
            assert!(sent.values().all(|&blocks| blocks == each));
        }
    }
}

#[test]
fn lengths_follow_the_longest_container() {
    let group = ParityGroup {
        nodes: (0..8).map(NodeId).collect(),
        parity: 1,
        unit_bytes: 8192,
    };
    assert_eq!(group.blocks_bytes(0), 0);
    assert_eq!(group.blocks_bytes(1), 4096);
    assert_eq!(group.blocks_bytes(5000), 8192);
    assert_eq!(group.blocks_bytes(7 * 8192), 8192);
    assert_eq!(group.blocks_bytes(7 * 8192 + 1), 8192 + 4096);
}

#[test]
fn codes_have_names() {
    for text in ["xor=3", "xor=8", "rs=4+2", "rs=8+4", "xor=64"] {
        assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
    }
    for wrong in [
        "",
        "xor",
        "xor=2",
        "xor=256",
        "rs=8",
        "rs=8+0",
        "rs=0+2",
        "rs=200+100",
        "copies=2",
    ] {
        let error = wrong.parse::<Scheme>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}");
    }
}

// Breaks if: topology is ignored; a switch would take two members of a group.
#[test]
fn no_two_nodes_of_a_group_fail_together() {
    let scheme: Scheme = "rs=2+2".parse().unwrap();
    // Eight nodes on four switches, and every second one on one of two power lines.
    let of = (0..8u32).map(|node| vec![node / 2]);
    let domains = Domains::of(of.collect());
    let found = groups(&domains, scheme).unwrap();
    assert_eq!(found.len(), 2);
    for group in &found {
        assert_eq!(group.nodes.len(), 4);
        for (at, &node) in group.nodes.iter().enumerate() {
            assert!(
                group.nodes[..at]
                    .iter()
                    .all(|&other| !domains.together(node, other))
            );
        }
    }
    // Three nodes on one switch do not fit into two groups.
    let crowded = Domains::of([0, 0, 0, 1, 2, 3, 4, 5].map(|one| vec![one]).to_vec());
    let error = groups(&crowded, scheme).unwrap_err();
    assert!(error.to_string().contains("fail together"), "{error}");
    assert_eq!(
        groups(&Domains::none(2), scheme).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

// Breaks if: a job that has lost nodes cannot continue on those that are left.
#[test]
fn too_few_nodes_for_one_group_form_a_smaller_one_that_survives_as_many_losses() {
    for (scheme, nodes) in [("xor=8", 3), ("xor=8", 7), ("rs=8+2", 3), ("rs=8+2", 9)] {
        let scheme: Scheme = scheme.parse().unwrap();
        let found = groups(&Domains::none(nodes), scheme).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].nodes.len(), nodes as usize);
        assert_eq!(found[0].parity, scheme.parity);
    }
    for (scheme, nodes) in [("xor=3", 2), ("rs=4+4", 4)] {
        let error = groups(&Domains::none(nodes), scheme.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[test]
fn nodes_that_are_left_make_groups_larger() {
    let scheme: Scheme = "xor=4".parse().unwrap();
    for nodes in 4..40 {
        let found = groups(&Domains::none(nodes), scheme).unwrap();
        let mut all: Vec<u32> = found
            .iter()
            .flat_map(|group| &group.nodes)
            .map(|n| n.0)
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..nodes).collect::<Vec<_>>());
        assert!(
            found
                .iter()
                .all(|group| (4..8).contains(&group.nodes.len()))
        );
        let sizes = found.iter().map(|group| group.nodes.len());
        assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }
}
