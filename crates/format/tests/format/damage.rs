//! Tests damaged bytes: every truncation, every flipped bit, arbitrary bytes. Damage to bytes that
//! a CRC or digest covers must be refused; damage to bytes that only the transport's MAC covers
//! must be survived.

use crate::samples;
use orcheck_format::Rank;
use orcheck_format::disk::*;
use orcheck_format::wire::{FRAME_HEADER_BYTES, *};
use orcheck_format::*;
use proptest::prelude::*;

type Decode = fn(&[u8]) -> Result<Vec<u8>>;

/// Every encoding that checks itself: its bytes, and decode followed by encode.
fn sealed() -> Vec<(&'static str, Vec<u8>, Decode)> {
    vec![
        ("header", samples::header().encode().to_vec(), |b| {
            ContainerHeader::decode(b).map(|v| v.encode().to_vec())
        }),
        (
            "encrypted header",
            samples::encrypted_header().encode().to_vec(),
            |b| ContainerHeader::decode(b).map(|v| v.encode().to_vec()),
        ),
        (
            "sealed header",
            samples::sealed_header().encode().to_vec(),
            |b| ContainerHeader::decode(b).map(|v| v.encode().to_vec()),
        ),
        (
            "rank header",
            samples::rank_header().encode().to_vec(),
            |b| RankHeader::decode(b).map(|v| v.encode().to_vec()),
        ),
        (
            "rank record",
            encode_rank_record(&samples::rank_record(Rank(6), 0)),
            |b| decode_rank_record(b).map(|(v, _)| encode_rank_record(&v)),
        ),
        ("trailer", samples::trailer().encode().to_vec(), |b| {
            Trailer::decode(b).map(|v| v.encode().to_vec())
        }),
        ("commit record", samples::commit_record().encode(), |b| {
            CommitRecord::decode(b).map(|v| v.encode())
        }),
        ("claim", samples::claim().encode(), |b| {
            Claim::decode(b).map(|v| v.encode())
        }),
        ("resumed", samples::resumed().encode(), |b| {
            Resumed::decode(b).map(|v| v.encode())
        }),
        ("members", samples::members().encode(), |b| {
            Members::decode(b).map(|v| v.encode())
        }),
        ("choice", samples::choice().encode(), |b| {
            Choice::decode(b).map(|v| v.encode())
        }),
        (
            "sealed claim",
            samples::sealed(&samples::claim().encode()),
            |b| Claim::decode(b).map(|v| samples::sealed(&v.encode())),
        ),
        (
            "sealed note of resumption",
            samples::sealed(&samples::resumed().encode()),
            |b| Resumed::decode(b).map(|v| samples::sealed(&v.encode())),
        ),
        (
            "sealed list of members",
            samples::sealed(&samples::members().encode()),
            |b| Members::decode(b).map(|v| samples::sealed(&v.encode())),
        ),
        (
            "commit record with parity",
            samples::parity_record().encode(),
            |b| CommitRecord::decode(b).map(|v| v.encode()),
        ),
        (
            "parity trailer",
            parity_trailer(&samples::parity_trailer().0),
            |b| {
                let at = samples::parity_trailer().1;
                ParityTrailer::decode(b, at).map(|v| parity_trailer(&v))
            },
        ),
    ]
}

/// A parity trailer without its end.
fn parity_trailer(trailer: &ParityTrailer) -> Vec<u8> {
    let mut bytes = trailer.encode();
    bytes.truncate(bytes.len() - PARITY_END_BYTES);
    bytes
}

// Breaks if: `check_crc` returns Ok always.
#[test]
fn every_flipped_bit_is_refused() {
    for (name, good, decode) in sealed() {
        assert_eq!(decode(&good).as_ref(), Ok(&good), "{name}");
        let mut bytes = good.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&bytes).expect_err(name);
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{name}, bit {bit}: {error}"
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

// Breaks if: `exactly` gives what there is instead of an error (it would panic or pass).
#[test]
fn every_truncation_is_refused() {
    for (name, good, decode) in sealed() {
        for len in 0..good.len() {
            let error = decode(&good[..len]).expect_err(name);
            assert_eq!(
                error.kind(),
                ErrorKind::Corrupt,
                "{name}, {len} bytes: {error}"
            );
        }
    }
}

// Breaks if: the length comparison in the envelope is `<` instead of `!=`.
#[test]
fn a_small_record_with_something_behind_it_is_refused() {
    for (name, good, decode) in sealed().into_iter().skip(6) {
        let error = decode(&[&good[..], b"\0"].concat()).expect_err(name);
        assert!(error.message().contains("expected a file of"), "{error}");
    }
}

/// A manifest is covered by its digest: a flip gives an error or another manifest, and then the
/// digest differs; in no case does a decoded manifest have two encodings.
// Breaks if: `Manifest::decode` no longer asks whether everything was read.
#[test]
fn a_flipped_manifest_is_refused_or_another_one() {
    let good = samples::manifest().encode();
    for len in 0..good.len() {
        assert!(Manifest::decode(&good[..len]).is_err(), "{len} bytes");
    }
    assert!(Manifest::decode(&[&good[..], b"\0"].concat()).is_err());
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(Manifest::digest(&bytes), Manifest::digest(&good));
        if let Ok(other) = Manifest::decode(&bytes) {
            // A flipped key that is then unknown is dropped, all else comes back.
            let again = other.encode();
            assert!(again == bytes || again.len() < bytes.len(), "bit {bit}");
            assert_ne!(other, samples::manifest(), "bit {bit}");
            let _ = other.validate(1 << 20);
        }
    }
}

#[test]
fn damaged_frames_are_survived() {
    for message in samples::messages() {
        let good = message.encode();
        for len in 0..good.len() {
            assert!(Message::decode(message.kind(), &good[..len]).is_err());
        }
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = Message::decode(message.kind(), &bytes);
        }
    }
    let frame = samples::frame();
    for len in 0..FRAME_HEADER_BYTES {
        assert!(FrameHeader::decode(&frame[..len]).is_err());
    }
    for bit in 0..64 {
        // Mark, version and flags; kind is any number, length and sequence are for the MAC.
        let mut bytes = frame.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            FrameHeader::decode(&bytes).is_err(),
            bit / 8 != 5,
            "bit {bit}"
        );
    }
}

// Breaks if: `Reader::expect` does not compare a count with the bytes that are left.
#[test]
fn a_huge_count_is_refused_before_anything_is_allocated() {
    // A manifest whose list of ranks claims 2^16 entries and ends there.
    let manifest = samples::manifest();
    let empty = Manifest {
        ranks: vec![],
        ..manifest
    }
    .encode();
    let mut bytes = empty[..empty.len() - 1].to_vec();
    bytes.extend([0x9a, 0, 1, 0, 0]);
    let error = Manifest::decode(&bytes).unwrap_err();
    assert!(
        error
            .message()
            .contains("expected at least 65536 more bytes, found 0"),
        "{error}"
    );
    // A rank record whose frame claims 64 MiB, and one that claims more than is allowed.
    let mut bytes = encode_rank_record(&samples::rank_record(Rank(6), 0));
    bytes[8..12].copy_from_slice(&(64u32 << 20).to_le_bytes());
    assert!(
        decode_rank_record(&bytes)
            .unwrap_err()
            .message()
            .contains("expected 67108888 bytes")
    );
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(
        decode_rank_record(&bytes)
            .unwrap_err()
            .message()
            .contains("at most 67108864")
    );
}

#[test]
fn a_wrong_crc_names_offset_expected_and_found() {
    let mut bytes = samples::rank_header().encode();
    bytes[100] = 1;
    let error = RankHeader::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for part in ["rank header", "byte 4088", "expected 0x", "found 0x"] {
        assert!(error.message().contains(part), "{error}");
    }
}

// Breaks if: `exactly` gives what there is instead of an error (the fields behind it panic).
proptest! {
    #[test]
    fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for (_, _, decode) in sealed() {
            prop_assert!(decode(&bytes).is_err());
        }
        let _ = Manifest::decode(&bytes);
        let _ = FrameHeader::decode(&bytes);
        let _ = RankFooterPrefix::decode(&bytes);
        for kind in 0..=11 {
            let _ = Message::decode(kind, &bytes);
        }
    }

    /// Damage behind a CRC that fits: the CBOR decoders are on their own.
    #[test]
    fn damage_with_a_fitting_crc_is_survived(
        which in 0usize..3,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (name, good, decode) = sealed().swap_remove(6 + which);
        let body = good.len() - 8;
        let mut bytes = good;
        for (at, value) in edits {
            let at = 40 + at.index(body - 40);
            bytes[at] = value;
        }
        let crc = crc64(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(again) = decode(&bytes) {
            prop_assert!(again == bytes || again.len() < bytes.len(), "{}", name);
        }
    }

    #[test]
    fn damaged_manifests_are_survived(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in any::<u64>(),
    ) {
        let mut bytes = samples::manifest().encode();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(manifest) = Manifest::decode(&bytes) {
            let _ = manifest.validate(len);
        }
    }
}
