//! Tests that well-formed but wrong content is refused with a message that names the place.

use crate::samples;
use orcheck_format::disk::*;
use orcheck_format::wire::*;
use orcheck_format::*;
use orcheck_format::{Rank, Step, WriterId};

const FILE_LEN_BYTES: u64 = 20480;

fn refused(change: impl Fn(&mut Manifest), why: &str) {
    let mut manifest = samples::manifest();
    assert_eq!(manifest.validate(FILE_LEN_BYTES), Ok(()));
    change(&mut manifest);
    let error = manifest.validate(FILE_LEN_BYTES).expect_err(why);
    assert!(
        error.message().contains(why),
        "expected {why:?}, found {error}"
    );
    assert!(
        error
            .message()
            .starts_with("manifest of step 42, node 3, writer "),
        "{error}"
    );
}

// Breaks if: the named check is removed from `Manifest::validate`; one case for each.
#[test]
fn manifests() {
    refused(|m| m.stores.clear(), "1 to 65536 stores");
    refused(
        |m| m.stores[0] = "a/b.orc".into(),
        "store 0: expected s0000",
    );
    refused(|m| m.stores.swap(0, 1), "store 0: expected s0000");
    refused(|m| m.writer = WriterId(77), "-n0003-w77.orc, found");
    refused(
        |m| m.epoch.counter = 8,
        "store 0: expected s000000000042-e000008",
    );
    refused(|m| m.world_size = 7, "rank 7 is outside a job of 7 ranks");
    refused(|m| m.ranks.swap(0, 1), "rank 6 is repeated or out of order");
    refused(
        |m| m.ranks[1].rank = Rank(6),
        "rank 6 is repeated or out of order",
    );
    refused(
        |m| m.ranks[0].regions[1].name = "density ρ".into(),
        "is there twice",
    );
    refused(
        |m| region(m).name = "a\nb".into(),
        "without control characters",
    );
    refused(|m| region(m).name = "x".repeat(256), "1 to 255 bytes");
    refused(|m| region(m).local = vec![1; 9], "does not fit: 9 local");
    refused(|m| region(m).offset.clear(), "does not fit");
    refused(|m| region(m).kind = RegionKind::Bytes, "does not fit");
    refused(|m| region(m).local = vec![2, 5], "does not have 64 bytes");
    refused(
        |m| region(m).local = vec![u64::MAX, 4],
        "does not have 64 bytes",
    );
    refused(
        |m| region(m).offset = vec![7, 0],
        "outside a global dimension of 8",
    );
    refused(
        |m| region(m).offset = vec![u64::MAX, 0],
        "outside a global dimension of 8",
    );
    refused(
        |m| region(m).extents.truncate(1),
        "expected extents of 64 bytes in all, found 40",
    );
    refused(
        |m| region(m).extents[0].physical = u64::MAX,
        "overflows 64 bits",
    );
    refused(
        |m| region(m).extents[0].physical = 20470,
        "lie outside the file of 20480 bytes",
    );
    refused(|m| region(m).extents[0].store = 2, "store 2 does not exist");
    refused(
        |m| region(m).extents[0].container = Some("../x.orc".into()),
        "is not the name",
    );
    refused(
        |m| region(m).extents[0].encoding = 3,
        "encoding 0x0003 is unknown",
    );
    encoded_extents();
    refused(
        |m| region(m).extents[0].crc_plain ^= 1,
        "differs from itself",
    );
    refused(
        |m| region(m).extents[0].stored_len_bytes = 39,
        "differs from itself",
    );
    refused(|m| region(m).same_as = Some(Rank(6)), "stored by rank 6");
    refused(
        |m| region(m).same_as = Some(Rank(3)),
        "yet has 2 extents of its own",
    );
    refused(
        |m| {
            region(m).same_as = Some(Rank(6));
            region(m).extents.clear();
        },
        "rank 6 does not store its 64 bytes",
    );
    refused(
        |m| m.ranks[1].regions[1].len_bytes = 33,
        "rank 6 does not store its 33 bytes",
    );
    refused(
        |m| {
            let region = region(m);
            for extent in &mut region.extents {
                extent.len_bytes = u64::MAX;
                extent.stored_len_bytes = u64::MAX;
                extent.physical = 0;
            }
        },
        "overflow 64 bits",
    );
}

fn commit_refused(change: impl Fn(&mut CommitRecord), why: &str) {
    let mut record = samples::commit_record();
    change(&mut record);
    let error = CommitRecord::decode(&record.encode()).expect_err(why);
    assert!(
        error.message().contains(why),
        "expected {why:?}, found {error}"
    );
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

// Breaks if: the named check is removed from `CommitRecord::validate`; one case for each.
#[test]
fn commit_records() {
    commit_refused(
        |r| r.containers[1].ranks = vec![(Rank(2), 3)],
        "rank 5 is in no container",
    );
    commit_refused(
        |r| r.containers[1].ranks = vec![(Rank(2), 5)],
        "rank 6 is in two containers",
    );
    commit_refused(
        |r| r.world_size = 9,
        "expected containers of 9 ranks, found 8",
    );
    commit_refused(
        |r| r.world_size = 0,
        "expected containers of 0 ranks, found 8",
    );
    commit_refused(
        |r| {
            r.world_size = 0;
            r.containers.clear();
        },
        "expected containers of 0 ranks",
    );
    commit_refused(
        |r| r.containers[0].ranks = vec![(Rank(0), 2), (Rank(2), 1)],
        "not separate",
    );
    commit_refused(
        |r| r.containers[0].ranks = vec![(Rank(6), 1), (Rank(0), 2)],
        "not separate",
    );
    commit_refused(|r| r.containers[0].ranks = vec![(Rank(0), 0)], "is empty");
    commit_refused(
        |r| r.containers[0].ranks = vec![(Rank(u32::MAX), 2)],
        "too long",
    );
    commit_refused(
        |r| r.containers[0].file = "x.orc".into(),
        "not the name of a container",
    );
    commit_refused(
        |r| r.containers[0].file = "../x".into(),
        "not the name of a container",
    );
    for wrong in [vec![41, 40], vec![41, 41], vec![42], vec![40, 43]] {
        commit_refused(
            |r| r.containers[0].refers_to = wrong.iter().copied().map(Step).collect(),
            "expected at most 64 older steps",
        );
    }
    let peers = Level::Peers(2);
    for (level, holders) in [
        (Level::Node, vec![1]),
        (peers, vec![]),
        (peers, vec![1]),
        (peers, vec![1, 3]),
        (peers, vec![1, 1]),
        (peers, vec![1, 0]),
    ] {
        commit_refused(
            |r| {
                r.level = level;
                r.containers[0].holders = holders.iter().copied().map(NodeId).collect();
            },
            "holders",
        );
    }
    let group = |nodes: &[u32], parity| ParityGroup {
        nodes: nodes.iter().copied().map(NodeId).collect(),
        parity,
        unit_bytes: 4096,
    };
    for (level, groups, why) in [
        (Level::Node, vec![group(&[0, 1, 2], 1)], "level peers only"),
        (peers, vec![group(&[0, 1, 2], 1)], "at least 2 parities"),
        (peers, vec![group(&[0, 1], 1)], "at least 2 parities"),
        (peers, vec![group(&[0, 1, 2], 3)], "more than parities"),
        (peers, vec![group(&[0, 1, 1], 2)], "different nodes"),
        (peers, vec![group(&[0, 1, 3], 2)], "different nodes"),
        (
            Level::Peers(1),
            vec![group(&[0, 1], 1)],
            "node 2 is in no group",
        ),
        (
            Level::Peers(1),
            vec![group(&[0, 1], 1), group(&[1, 2], 1)],
            "groups of different nodes",
        ),
    ] {
        commit_refused(
            |r| {
                r.level = level;
                r.groups.clone_from(&groups);
            },
            why,
        );
    }
    commit_refused(
        |r| {
            r.level = Level::Peers(1);
            r.groups = vec![group(&[0, 1, 2], 1)];
            r.containers[0].holders = vec![NodeId(1)];
        },
        "holders",
    );
    commit_refused(
        |r| r.step = Step(43),
        "expected the container s000000000043",
    );
    commit_refused(
        |r| r.epoch.counter = 8,
        "expected the container s000000000042-e000008",
    );
    commit_refused(|r| r.epoch.run = RunId([0; 16]), "expected the container");
    commit_refused(|r| r.nodes.truncate(2), "node 2 of 2");
    commit_refused(|r| r.servers.truncate(1), "server 1 of 1");
    commit_refused(|r| r.nodes[0].clear(), "is not a valid name");
}

// Breaks if: names are not compared; which of two addresses is the node's would be chance.
#[test]
fn a_list_has_every_member_once() {
    let mut members = samples::members();
    members.nodes[2].name = "a".into();
    let error = Members::decode(&members.encode()).unwrap_err();
    assert!(
        error
            .message()
            .contains("every node once, found 2 names for 3 nodes"),
        "{error}"
    );
    assert!(
        !format!("{members:?}").contains("7, 7"),
        "its key is printed"
    );
}

/// A record of one kind is not read as another, whatever its file is called.
#[test]
fn kinds_are_not_mixed_up() {
    let error = Claim::decode(&samples::resumed().encode()).unwrap_err();
    assert!(error.message().contains("kind 2, found 3"), "{error}");
    assert!(CommitRecord::decode(&samples::claim().encode()).is_err());
    // Breaks if: `check_magic` returns Ok always; the CRC of a foreign block fits.
    let errors = [
        ContainerHeader::decode(&samples::rank_header().encode()).unwrap_err(),
        RankHeader::decode(&samples::header().encode()).unwrap_err(),
    ];
    for error in errors {
        assert!(
            error.message().contains("byte 0: expected the mark \"ORCK"),
            "{error}"
        );
    }
}

fn reseal(bytes: &mut [u8]) {
    let body = bytes.len() - 8;
    let crc = crc64(&bytes[..body]);
    bytes[body..].copy_from_slice(&crc.to_le_bytes());
}

// Breaks if: where the seal begins is computed before it is known to fit; the shortest of these
// would end the process.
#[test]
fn a_record_that_is_too_short_for_its_seal_is_refused() {
    let genuine = samples::claim().encode();
    for len in 48..96 {
        let mut record = genuine[..40].to_vec();
        record[32] = 2; // says that there is a seal
        record.resize(len, 0);
        reseal(&mut record);
        let error = seal_of(&record).unwrap_err();
        assert!(error.message().contains("cannot hold a seal"), "{error}");
    }
}

// Breaks if: `check_readable` is not called by the decoder.
fn region(manifest: &mut Manifest) -> &mut RegionRecord {
    &mut manifest.ranks[0].regions[0]
}

// Breaks if: boxes are believed that are outside the array, or not as long as the region.
#[test]
fn boxes_lie_in_the_array_and_fill_the_region() {
    let boxes = |m: &mut Manifest| {
        let stored = samples::boxes_rank_record().regions[0].clone();
        let extents = std::mem::take(&mut region(m).extents);
        *region(m) = RegionRecord { extents, ..stored };
    };
    let mut manifest = samples::manifest();
    boxes(&mut manifest);
    assert_eq!(manifest.validate(FILE_LEN_BYTES), Ok(()));
    let refuse = |change: &dyn Fn(&mut RegionRecord), why| {
        refused(
            |m| {
                boxes(m);
                change(region(m));
            },
            why,
        );
    };
    refuse(
        &|r| r.boxes[1].offset[1] = 3,
        "box 1: elements 3..3+2 lie outside",
    );
    refuse(&|r| r.boxes[0].offset[0] = u64::MAX, "box 0: elements");
    refuse(
        &|r| r.boxes[1].local[1] = 1,
        "boxes of 56 bytes do not have 64",
    );
    refuse(&|r| drop(r.boxes.pop()), "boxes of 48 bytes");
    refuse(
        &|r| r.boxes[0].local = vec![2],
        "box 0 does not have 2 dimensions",
    );
    refuse(
        &|r| r.local = vec![8],
        "boxes of a global array of 2 dimensions",
    );
    refuse(&|r| r.global.clear(), "of 0 dimensions");
    refuse(
        &|r| {
            r.global = vec![u64::MAX; 2];
            r.boxes[0].offset = vec![0; 2];
            r.boxes[0].local = vec![u64::MAX; 2];
        },
        "box 0 has more than 2^64 bytes",
    );
}

/// What an encoded extent may say; the first extent has 40 bytes, stored in 40.
fn encoded_extents() {
    // Breaks if: an unknown bit, a shuffle of nothing or of 32-byte elements is let through.
    for encoding in [0x200, 0x8000, 0x80, 0x10, 0x51, 0x61, 0x71] {
        refused(
            |m| region(m).extents[0].encoding = encoding,
            "is unknown to this version",
        );
    }
    let with = |encoding: u16, stored_len_bytes: u64, crc_plain: u64| {
        move |m: &mut Manifest| {
            let extent = &mut region(m).extents[0];
            extent.encoding = encoding;
            extent.stored_len_bytes = stored_len_bytes;
            extent.crc_plain = crc_plain;
        }
    };
    for (encoding, stored_len_bytes) in [
        (0x001, 0),
        (0x001, 40),
        (0x042, 41),
        (0x100, 63),
        (0x100, 65),
        (0x100, 0),
        (0x101, 24),
        (0x101, 64),
    ] {
        refused(
            with(encoding, stored_len_bytes, 0),
            &format!("cannot be stored in {stored_len_bytes} bytes"),
        );
    }
    refused(with(0x100, 64, 1), "shows a CRC of its plain bytes");
    // Breaks if: the bound on encoded extents is taken away; a bomb could then ask for any amount
    // of memory.
    refused(
        |m| {
            let region = region(m);
            region.extents[0].encoding = 1;
            region.extents[0].len_bytes = (4 << 20) + 1;
        },
        "expected 1 to 4194304 bytes",
    );
    for (encoding, stored_len_bytes, crc_plain) in [
        (0x001, 1, 5),
        (0x042, 39, 0),
        (0x100, 64, 0),
        (0x131, 63, 0),
    ] {
        let mut manifest = samples::manifest();
        with(encoding, stored_len_bytes, crc_plain)(&mut manifest);
        assert_eq!(manifest.validate(1 << 20), Ok(()));
    }
}

#[test]
fn every_encoding_is_its_number() {
    let mut known = 0;
    for code in 0..=u16::MAX {
        if let Ok(encoding) = Encoding::from_code(code) {
            assert_eq!(encoding.code(), code);
            assert_eq!(encoding.is_plain(), code == 0);
            known += 1;
        }
    }
    // As it is, and two compressions with five shuffles; each encrypted or not.
    assert_eq!(known, 2 * (1 + 2 * 5));
}

#[test]
fn a_region_is_identified_by_all_that_was_declared() {
    let first = samples::rank_record(Rank(6), 0).regions[0].clone();
    let identity = first.identity();
    let same = |change: &dyn Fn(&mut RegionRecord)| {
        let mut other = first.clone();
        change(&mut other);
        other.identity() == identity
    };
    assert!(same(&|r| r.extents.clear()));
    assert!(same(&|r| r.same_as = Some(Rank(3))));
    // Breaks if: a field is left out; bytes could then be passed off as those of another region.
    assert!(!same(&|r| r.name.push('x')));
    assert!(!same(&|r| r.kind = RegionKind::Bytes));
    assert!(!same(&|r| r.dtype = Dtype::I64));
    assert!(!same(&|r| r.flags ^= 1));
    assert!(!same(&|r| r.len_bytes += 8));
    assert!(!same(&|r| r.local[0] += 1));
    assert!(!same(&|r| r.global[0] += 1));
    assert!(!same(&|r| r.offset[0] -= 1));
}

#[test]
fn an_unknown_incompatible_feature_is_refused_by_number() {
    let mut header = samples::header();
    for bit in 0..64 {
        header.features.incompat = 1 << bit;
        let decoded = ContainerHeader::decode(&header.encode());
        let mut record = samples::claim().encode();
        record[32 + bit / 8] = 1 << (bit % 8);
        reseal(&mut record);
        let kind = Claim::decode(&record).unwrap_err().kind();
        // Bit 1 promises a seal for which there is no room.
        let expected = match bit {
            1 => ErrorKind::Corrupt,
            _ => ErrorKind::Unsupported,
        };
        assert_eq!(kind, expected);
        if 1 << bit == Features::SEALED {
            let error = decoded.unwrap_err();
            assert!(error.message().contains("without encryption"), "{error}");
            continue;
        }
        if Features::KNOWN_INCOMPAT >> bit & 1 != 0 {
            let found = decoded.unwrap();
            assert_eq!(found.features, header.features);
            assert_eq!(found.encryption.is_some(), 1 << bit == Features::ENCRYPTED);
            continue;
        }
        let error = decoded.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .message()
                .contains(&format!("feature bit {bit} is unknown")),
            "{error}"
        );
    }
    // Breaks if: `wrap` leaves the bit of a record that refers out; an older version would restart
    // from it.
    let mut record = samples::referring_record().encode();
    assert_eq!(record[32], 1);
    assert_eq!(samples::parity_record().encode()[32], 4);
    record[32] = 8;
    reseal(&mut record);
    assert_eq!(
        CommitRecord::decode(&record).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    // Compatible ones, of either sort, change nothing.
    let mut record = samples::claim().encode();
    record[16..32].fill(0xff);
    reseal(&mut record);
    assert_eq!(Claim::decode(&record), Ok(samples::claim()));
}

#[test]
fn unknown_versions_are_refused() {
    let mut record = samples::claim().encode();
    record[10] = 2;
    reseal(&mut record);
    let error = Claim::decode(&record).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.message().contains("expected version 1, found 2"),
        "{error}"
    );
    let mut frame = samples::frame();
    frame[4] = 2;
    assert_eq!(
        FrameHeader::decode(&frame).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        Message::decode(120, &[0xa0]).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn reserved_bytes_and_unknown_keys_are_ignored() {
    let mut block = samples::header().encode();
    block[4000] = 1;
    reseal(&mut block);
    assert_eq!(ContainerHeader::decode(&block), Ok(samples::header()));
    // The claim with a ninth pair, 200: [null, "x"].
    let good = samples::claim().encode();
    let mut cbor = good[40..good.len() - 8].to_vec();
    assert_eq!(cbor[0], 0xa8);
    cbor[0] = 0xa9;
    cbor.extend([0x18, 200, 0x82, 0xf6, 0x61, b'x']);
    let mut bytes = good[..40].to_vec();
    bytes[12..16].copy_from_slice(&(cbor.len() as u32).to_le_bytes());
    bytes.extend(cbor);
    bytes.extend([0; 8]);
    reseal(&mut bytes);
    assert_eq!(Claim::decode(&bytes), Ok(samples::claim()));
}

// Breaks if: `FrameHeader::decode` takes any length: its reader would allocate what a stranger
// says.
#[test]
fn a_frame_longer_than_allowed_is_refused() {
    let mut header = FrameHeader {
        kind: 1,
        flags: 0,
        len_bytes: wire::MAX_PAYLOAD_BYTES,
        seq: 0,
    };
    assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    header.len_bytes += 1;
    let error = FrameHeader::decode(&header.encode()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

// Breaks if: a list, a text, a rank record or a manifest may be as long as it says, wherever it
// says so.
#[test]
fn lists_and_texts_have_their_bounds() {
    let refused = |change: &dyn Fn(&mut Manifest), why: &str| {
        let mut manifest = samples::manifest();
        change(&mut manifest);
        let error = Manifest::decode(&manifest.encode()).expect_err(why);
        assert!(error.message().contains(why), "{error}");
    };
    refused(
        &|m| region(m).local = vec![1; MAX_DIMS + 1],
        "expected at most 8 items, found 9",
    );
    refused(
        &|m| m.node_name = "x".repeat(256),
        "expected a text of at most 255 bytes, found 256",
    );
    let mut framed = encode_rank_record(&samples::rank_record(Rank(0), 0));
    assert!(RankFooterPrefix::decode(&framed).is_ok());
    framed[8..12].copy_from_slice(&(MAX_METADATA_BYTES as u32 + 1).to_le_bytes());
    let error = RankFooterPrefix::decode(&framed).unwrap_err();
    assert!(
        error.message().contains("expected at most 67108864 bytes"),
        "{error}"
    );
    let good = Trailer {
        manifest_at: 4096,
        manifest_len_bytes: 100,
        manifest_digest: [1; 32],
        file_len_bytes: 1 << 40,
        header_crc: 7,
    };
    assert_eq!(Trailer::decode(&good.encode()), Ok(good));
    for bad in [
        Trailer {
            file_len_bytes: 4096 + 100 + 511,
            ..good
        },
        Trailer {
            manifest_at: u64::MAX,
            ..good
        },
        Trailer {
            manifest_len_bytes: MAX_METADATA_BYTES as u64 + 1,
            ..good
        },
    ] {
        let error = Trailer::decode(&bad.encode()).unwrap_err();
        assert!(error.message().contains("does not fit a file"), "{error}");
    }
}
