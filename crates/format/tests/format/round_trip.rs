//! Tests that every encoded value decodes to itself.

use crate::samples;
use orcheck_format::disk::*;
use orcheck_format::wire::{RecipePart, *};
use orcheck_format::*;
use orcheck_format::{NodeId, Rank, Step, TargetId, WriterId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn epoch() -> impl Strategy<Value = Epoch> {
    (any::<u64>(), any::<[u8; 16]>()).prop_map(|(counter, run)| Epoch {
        counter,
        run: RunId(run),
    })
}

fn job() -> impl Strategy<Value = JobName> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}".prop_map(|name| JobName::new(&name).unwrap())
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![
        Just(Level::Process),
        Just(Level::Node),
        (1u8..).prop_map(Level::Peers),
        Just(Level::Global)
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 äρ/._-]{1,40}"
}

fn extent() -> impl Strategy<Value = Extent> {
    (
        option::of(name()),
        any::<(u16, u64, u64, u64)>(),
        any::<(u16, u64, u64)>(),
    )
        .prop_map(
            |(
                container,
                (store, physical, stored_len_bytes, len_bytes),
                (encoding, stored, plain),
            )| {
                Extent {
                    container,
                    store,
                    physical,
                    stored_len_bytes,
                    len_bytes,
                    encoding,
                    crc_stored: stored,
                    crc_plain: plain,
                }
            },
        )
}

fn region() -> impl Strategy<Value = RegionRecord> {
    let dims = || vec(any::<u64>(), 0..=8);
    (
        name(),
        (0u8..5, 0u8..15, any::<u32>(), any::<u64>()),
        (dims(), dims(), dims(), vec((dims(), dims()), 0..3)),
        option::of(any::<u32>()),
        vec(extent(), 0..4),
    )
        .prop_map(
            |(name, (kind, dtype, flags, len_bytes), shapes, same_as, extents)| {
                let (local, global, offset, boxes) = shapes;
                let boxes = match RegionKind::from_code(kind) {
                    Some(RegionKind::Boxes) => boxes,
                    _ => Vec::new(),
                };
                let of = |(offset, local)| BoxRecord { offset, local };
                RegionRecord {
                    name,
                    kind: RegionKind::from_code(kind).unwrap(),
                    dtype: Dtype::from_code(dtype).unwrap(),
                    flags,
                    len_bytes,
                    local,
                    global,
                    offset,
                    boxes: boxes.into_iter().map(of).collect(),
                    same_as: same_as.map(Rank),
                    extents,
                }
            },
        )
}

fn rank_record() -> impl Strategy<Value = RankRecord> {
    (any::<u32>(), any::<u64>(), vec(region(), 0..4)).prop_map(
        |(rank, stream_len_bytes, regions)| RankRecord {
            rank: Rank(rank),
            stream_len_bytes,
            regions,
        },
    )
}

fn manifest() -> impl Strategy<Value = Manifest> {
    (
        (job(), any::<u64>(), epoch(), level()),
        (any::<u32>(), name(), any::<u32>(), any::<u32>()),
        vec(name(), 0..4),
        vec(rank_record(), 0..4),
    )
        .prop_map(
            |((job, step, epoch, level), (node, node_name, writer, world_size), stores, ranks)| {
                Manifest {
                    job,
                    step: Step(step),
                    epoch,
                    level,
                    node: NodeId(node),
                    node_name,
                    writer: WriterId(writer),
                    world_size,
                    stores,
                    ranks,
                }
            },
        )
}

/// Any split of any number of ranks over nodes.
fn commit_record() -> impl Strategy<Value = CommitRecord> {
    (
        vec(0u32..4, 1..60),
        job(),
        (any::<u64>(), epoch(), level(), any::<u64>()),
        any::<[u8; 32]>(),
    )
        .prop_map(
            |(owners, job, (step, epoch, level, created_unix_ms), manifest_digest)| {
                let run = [
                    epoch.run.0[0],
                    epoch.run.0[1],
                    epoch.run.0[2],
                    epoch.run.0[3],
                ];
                // Every loss that a level names takes a holder of its own.
                let losses = match level {
                    Level::Peers(losses) => usize::from(losses),
                    _ => 0,
                };
                let count = 4.max(losses as u32 + 1);
                let containers = (0..4u32).map(|node| {
                    let ranks: Vec<u32> = (0..owners.len() as u32)
                        .filter(|rank| owners[*rank as usize] == node)
                        .collect();
                    let file = FileName::Container {
                        step: Step(step),
                        epoch: epoch.counter,
                        run,
                        node: NodeId(node),
                        writer: WriterId(node),
                    };
                    let reference = ContainerRef {
                        file: file.to_string(),
                        server: TargetId(node / 2),
                        node: NodeId(node),
                        writer: WriterId(node),
                        len_bytes: step ^ 99,
                        manifest_digest,
                        ranks: ranks_to_ranges(
                            &ranks.iter().copied().map(Rank).collect::<Vec<_>>(),
                        ),
                        refers_to: (0..u64::from(node))
                            .filter(|older| *older < step)
                            .map(Step)
                            .collect(),
                        holders: (0..count)
                            .filter(|other| *other != node)
                            .take(losses)
                            .map(NodeId)
                            .collect(),
                    };
                    for rank in 0..owners.len() as u32 + 2 {
                        assert_eq!(reference.holds(Rank(rank)), ranks.contains(&rank));
                    }
                    reference
                });
                CommitRecord {
                    job,
                    step: Step(step),
                    epoch,
                    level,
                    world_size: owners.len() as u32,
                    nodes: (0..count).map(|node| format!("node{node}")).collect(),
                    placement_generation: created_unix_ms / 3,
                    servers: vec!["/a".into(), "/b".into()],
                    containers: containers.collect(),
                    created_unix_ms,
                    groups: vec![],
                }
            },
        )
}

proptest! {
    #[test]
    fn container_header(
        (compat, ro_compat, striped) in any::<(u64, u64, bool)>(),
        (job, epoch, level) in (job(), epoch(), level()),
        (step, created_unix_ms) in any::<(u64, u64)>(),
        (node, writer, world_size) in any::<(u32, u32, u32)>(),
        alignment in 12u32..=20,
        encryption in option::of(any::<([u8; 32], [u8; 16], Option<[u8; 32]>)>()),
    ) {
        let encryption = encryption.map(|(salt, key_check, mac)| Encryption { salt, key_check, mac });
        let bit = match encryption {
            Some(Encryption { mac: Some(_), .. }) => Features::ENCRYPTED | Features::SEALED,
            Some(_) => Features::ENCRYPTED,
            None => 0,
        };
        let header = ContainerHeader {
            features: Features { compat, ro_compat, incompat: u64::from(striped) | bit },
            job, step: Step(step), epoch, level, node: NodeId(node), writer: WriterId(writer), world_size,
            alignment_bytes: 1 << alignment,
            created_unix_ms,
            encryption,
        };
        prop_assert_eq!(ContainerHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn rank_header((rank, cut_bytes) in any::<(u32, u32)>(), (step, stream_len_bytes) in any::<(u64, u64)>(), epoch in epoch()) {
        let header = RankHeader { rank: Rank(rank), step: Step(step), epoch, stream_len_bytes, cut_bytes };
        prop_assert_eq!(RankHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn trailer(at in 0u64..1 << 62, len in 0u64..=64 << 20, more in 512u64..1 << 40, digest: [u8; 32], header_crc: u64) {
        let trailer = Trailer {
            manifest_at: at,
            manifest_len_bytes: len,
            manifest_digest: digest,
            file_len_bytes: at + len + more,
            header_crc,
        };
        prop_assert_eq!(Trailer::decode(&trailer.encode()), Ok(trailer));
    }

    #[test]
    fn rank_records(record in rank_record(), behind in vec(any::<u8>(), 0..9)) {
        let mut bytes = encode_rank_record(&record);
        let len = bytes.len();
        prop_assert_eq!(
            RankFooterPrefix::decode(&bytes).unwrap().len_bytes as usize + RANK_RECORD_PREFIX_BYTES,
            len
        );
        bytes.extend(behind);
        prop_assert_eq!(decode_rank_record(&bytes), Ok((record, len)));
    }

    // Breaks if: a checksum is written to another place, or with another length than a reader
    // accepts.
    #[test]
    fn renewed_rank_records(record in rank_record(), seed: u64, short in any::<bool>()) {
        let mut framed = FramedRecord::new(&record);
        prop_assert_eq!(framed.bytes(), &encode_rank_record(&record)[..]);
        let mut renewed = record;
        let mut crcs = Vec::new();
        let mut one_is_short = false;
        for extent in renewed.regions.iter_mut().flat_map(|region| &mut region.extents) {
            let shift = if short && crcs.len() == 1 { 40 } else { 0 };
            let crc = (seed | 1 << 63).rotate_left(crcs.len() as u32 % 20) >> shift;
            one_is_short |= [extent.crc_stored, extent.crc_plain, crc].iter().any(|&crc| crc <= u64::from(u32::MAX));
            (extent.crc_stored, extent.crc_plain) = (crc, crc);
            crcs.push(crc);
        }
        prop_assert_eq!(framed.renew(&crcs), !one_is_short);
        if !one_is_short {
            prop_assert_eq!(framed.bytes(), &encode_rank_record(&renewed)[..]);
        }
        crcs.push(u64::MAX);
        prop_assert!(!framed.renew(&crcs));
    }

    #[test]
    fn manifests(manifest in manifest(), len: u64) {
        let decoded = Manifest::decode(&manifest.encode());
        let _ = manifest.validate(len);
        prop_assert_eq!(decoded, Ok(manifest));
    }

    #[test]
    fn commit_records(record in commit_record()) {
        prop_assert_eq!(CommitRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn claims(
        (job, epoch, host) in (job(), epoch(), name()),
        (pid, uid, since_unix_ms, world_size) in any::<(u32, u32, u64, u32)>(),
        nodes in vec(name(), 0..5),
    ) {
        let claim = Claim { job, epoch, host, pid, uid, since_unix_ms, world_size, nodes };
        prop_assert_eq!(Claim::decode(&claim.encode()), Ok(claim));
    }

    #[test]
    fn lists_of_members(
        (job, epoch) in (job(), epoch()),
        nodes in vec((name(), vec(name(), 0..3), any::<[u8; 32]>(), any::<(bool, u64)>()), 0..5),
    ) {
        let named: BTreeMap<String, Member> = nodes
            .into_iter()
            .map(|(name, addresses, key, (encrypt, epoch))| (name.clone(), Member { name, addresses, key, encrypt, epoch }))
            .collect();
        let members = Members { job, epoch, nodes: named.into_values().collect() };
        prop_assert_eq!(Members::decode(&members.encode()), Ok(members));
    }

    #[test]
    fn choices(
        (job, epoch, step) in (job(), epoch(), any::<u64>()),
        (host, uid, since_unix_ms) in (name(), any::<u32>(), any::<u64>()),
        (why, rejected) in (option::of(name()), any::<bool>()),
    ) {
        let decision = Decision::ALL[usize::from(rejected)];
        let why = why.unwrap_or_default();
        let choice = Choice { job, step: Step(step), epoch, decision, host, uid, since_unix_ms, why };
        prop_assert_eq!(Choice::decode(&choice.encode()), Ok(choice));
    }

    #[test]
    fn notes_of_resumption(job in job(), epochs in (epoch(), option::of(epoch())), step: Option<u64>) {
        let resumed = Resumed { job, epoch: epochs.0, step: step.map(Step), from: epochs.1 };
        prop_assert_eq!(Resumed::decode(&resumed.encode()), Ok(resumed));
    }

    #[test]
    fn ranges_hold_exactly_their_ranks(ranks in vec(prop_oneof![0u32..40, (u32::MAX - 9)..=u32::MAX], 0..60)) {
        let ranges = ranks_to_ranges(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        let mut expanded = Vec::new();
        for (first, count) in &ranges {
            expanded.extend(u64::from(*first)..u64::from(*first) + u64::from(*count));
        }
        let mut expected: Vec<u64> = ranks.iter().map(|rank| u64::from(*rank)).collect();
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(expanded, expected);
        let touching = ranges.windows(2).any(|pair| pair[0].0.0 + pair[0].1 >= pair[1].0.0);
        prop_assert!(!touching);
    }
}

#[test]
fn messages_and_frames() {
    for message in samples::messages() {
        assert_eq!(
            Message::decode(message.kind(), &message.encode()),
            Ok(message)
        );
    }
    let frame = samples::frame();
    let header = FrameHeader::decode(&frame).unwrap();
    assert_eq!(header.encode(), frame[..20]);
    assert_eq!(header.len_bytes as usize, frame.len() - 20);
}

#[test]
fn what_is_handed_to_an_agent() {
    let whole = samples::adoption();
    let least = Adoption {
        replication: None,
        recipe: RecipePart {
            compression: Compression::None,
            level: 1,
            secret: None,
        },
        placement: String::new(),
        ..whole.clone()
    };
    for adoption in [whole, least] {
        let bytes = adoption.encode();
        assert_eq!(Adoption::decode(&bytes, "0.1.0"), Ok(adoption));
        for len in 0..bytes.len() {
            assert!(Adoption::decode(&bytes[..len], "0.1.0").is_err());
        }
        // Breaks if: the version is not looked at; an old agent would take fields for what they are
        // not.
        let error = Adoption::decode(&bytes, "0.2.0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn what_is_said_about_kept_memory() {
    let map = samples::kept_map();
    let bytes = map.encode();
    assert_eq!(KeptMap::decode(&bytes, "0.1.0"), Ok(map.clone()));
    for len in 0..bytes.len() {
        assert!(KeptMap::decode(&bytes[..len], "0.1.0").is_err());
    }
    let error = KeptMap::decode(&bytes, "0.2.0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let snapshot = &map.snapshots[0];
    for piece in &snapshot.pieces {
        let found = |region, len| snapshot.piece(region, piece.region_at_bytes, len);
        assert_eq!(found(&piece.region, piece.len_bytes), Some(piece));
        assert_eq!(found(&piece.region, piece.len_bytes - 1), None);
        assert_eq!(found(&[9; 16], piece.len_bytes), None);
    }
    type Change = fn(&mut KeptSnapshot);
    let changes: [Change; 4] = [
        |snapshot| snapshot.pieces.swap(0, 1),
        |snapshot| snapshot.pieces[1] = snapshot.pieces[0],
        |snapshot| snapshot.pieces.clear(),
        |snapshot| snapshot.digests.clear(),
    ];
    for change in changes {
        let mut map = samples::kept_map();
        change(&mut map.snapshots[0]);
        let error = KeptMap::decode(&map.encode(), "0.1.0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_rank_in_two_places_is_not_handed_over() {
    type Change = fn(&mut Adoption);
    let changes: [Change; 5] = [
        |adoption| adoption.nodes[0].writers[0] = vec![Rank(0), Rank(3)],
        |adoption| adoption.nodes[0].writers[0] = vec![Rank(2), Rank(0)],
        |adoption| adoption.nodes[0].writers[1] = vec![],
        |adoption| adoption.node = NodeId(2),
        |adoption| adoption.mode = 3,
    ];
    for change in changes {
        let mut adoption = samples::adoption();
        change(&mut adoption);
        let error = Adoption::decode(&adoption.encode(), "0.1.0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_long_error_text_is_cut_between_characters() {
    let text = "ä".repeat(40_000);
    let message = Message::Aborted {
        step: Step(1),
        level: Level::Node,
        error: Error::internal(text),
    };
    match Message::decode(message.kind(), &message.encode()) {
        Ok(Message::Aborted { error, .. }) => assert_eq!(error.message(), "ä".repeat(32 << 10)),
        other => panic!("{other:?}"),
    }
}
