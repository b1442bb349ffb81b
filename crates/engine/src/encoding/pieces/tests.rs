//! Tests that pieces come back, and that nothing else does.

use super::*;
use crate::encoding::key::{Form, derive};
use orcheck_format::disk::{ContainerHeader, Features, MAX_ALIGNMENT_BYTES};
use orcheck_format::{Epoch, ErrorKind, JobName, Level, NodeId, Rank, RunId, Step, WriterId};
use orcheck_pool::PoolShape;
use proptest::prelude::*;

const SECRET: [u8; 32] = *b"a key that only this test knows.";

fn header() -> ContainerHeader {
    ContainerHeader {
        features: Features {
            incompat: Features::ENCODED | Features::ENCRYPTED,
            ..Features::default()
        },
        job: JobName::new("job").unwrap(),
        step: Step(7),
        epoch: Epoch {
            counter: 2,
            run: RunId([9; 16]),
        },
        level: Level::Global,
        node: NodeId(1),
        writer: WriterId(0),
        world_size: 4,
        alignment_bytes: MAX_ALIGNMENT_BYTES,
        created_unix_ms: 0,
        encryption: None,
    }
}

/// A header that describes a key, and that key.
fn keyed() -> (ContainerHeader, ContainerKey) {
    let mut header = header();
    let key = ContainerKey::create(&Secret::new(SECRET), &mut header).unwrap();
    (header, key)
}

fn pool() -> Pool {
    Pool::create(PoolShape {
        chunk_bytes: 1 << 20,
        chunk_count: 1,
        words: 0,
        rings: 0,
        ring_entries: 0,
    })
    .unwrap()
}

fn piece(len: usize, element_log2: u8, crc_plain: u64) -> EncodePiece {
    EncodePiece {
        segment_at_bytes: 0,
        len_bytes: len as u32,
        region_at_bytes: 4096,
        crc_plain,
        element_log2,
        region: [3; 16],
        checked: false,
    }
}

const RANK: u32 = 3;
const AT: u64 = 12345;

/// What a container would hold of `plain`, and its extent.
fn stored(
    plain: &[u8],
    log2: u8,
    recipe: &Recipe,
    key: Option<&ContainerKey>,
) -> (Extent, Vec<u8>) {
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    pool.put(&chunk, 0, plain);
    let crc_plain = crc64(plain);
    let piece = piece(plain.len(), log2, crc_plain);
    let mut encoder = Encoder::new(recipe).unwrap();
    let (mut bytes, mut encoding) = match encoder.encode(&pool, 0, &piece).unwrap() {
        Body::Plain => (plain.to_vec(), Encoding::default()),
        Body::Packed(bytes, encoding) => (bytes.to_vec(), encoding),
        Body::Changed => panic!("the pool was changed"),
    };
    pool.give(chunk);
    encoding.encrypted = key.is_some();
    if let Some(key) = key {
        let binding = Binding {
            rank: Rank(RANK),
            region: piece.region,
            region_at_bytes: piece.region_at_bytes,
            len_bytes: plain.len() as u64,
            encoding: encoding.code(),
        };
        bytes.extend_from_slice(&[0; 24]);
        key.seal(AT, &binding, crc_plain, &mut bytes).unwrap();
    }
    let extent = Extent {
        container: None,
        store: 0,
        physical: AT,
        stored_len_bytes: bytes.len() as u64,
        len_bytes: plain.len() as u64,
        encoding: encoding.code(),
        crc_stored: crc64(&bytes),
        crc_plain: if key.is_some() { 0 } else { crc_plain },
    };
    (extent, bytes)
}

fn decoded(extent: &Extent, bytes: &[u8], key: Option<&ContainerKey>) -> Result<Vec<u8>> {
    decoded_as(extent, bytes, key, Rank(RANK), [3; 16], 4096)
}

fn decoded_as(
    extent: &Extent,
    bytes: &[u8],
    key: Option<&ContainerKey>,
    rank: Rank,
    region: [u8; 16],
    region_at_bytes: u64,
) -> Result<Vec<u8>> {
    let mut decoder = Decoder::default();
    decoder.room(extent).copy_from_slice(bytes);
    decoder
        .decode(extent, rank, region, region_at_bytes, key)
        .map(<[u8]>::to_vec)
}

fn recipe(compression: Compression) -> Recipe {
    Recipe {
        compression,
        level: 1,
        secret: None,
    }
}

fn compressions() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Zstd),
        Just(Compression::Lz4)
    ]
}

/// Slowly growing numbers, constant stretches and noise.
fn plain_bytes() -> impl Strategy<Value = Vec<u8>> {
    let smooth = (1usize..30_000, any::<u32>()).prop_map(|(len, from)| {
        (0..len)
            .flat_map(|i| (f64::from(from) + i as f64 * 0.25).to_le_bytes())
            .take(len)
            .collect()
    });
    prop_oneof![
        smooth,
        proptest::collection::vec(any::<u8>(), 1..20_000),
        (1usize..300_000, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // Breaks if: a length, a remainder behind the last element, or the CRC inside is handled
    // wrongly.
    #[test]
    fn pieces_come_back(
        plain in plain_bytes(),
        compression in compressions(),
        log2 in 0u8..=4,
        encrypted in any::<bool>(),
    ) {
        let (_, key) = keyed();
        let key = encrypted.then_some(&key);
        let (extent, bytes) = stored(&plain, log2, &recipe(compression), key);
        prop_assert!(extent.check_encoding().is_ok());
        prop_assert_eq!(decoded(&extent, &bytes, key).unwrap(), plain);
        if encrypted {
            let error = decoded(&extent, &bytes, None).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    /// Stored bytes changed by somebody who makes the outer CRC match again.
    // Breaks if: the tag, or without encryption the CRC of the plain bytes, is not compared.
    #[test]
    fn changed_bytes_never_come_back(
        plain in plain_bytes(),
        compression in compressions(),
        encrypted in any::<bool>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
    ) {
        let (_, key) = keyed();
        let key = encrypted.then_some(&key);
        let (mut extent, bytes) = stored(&plain, 3, &recipe(compression), key);
        if extent.encoding == 0 {
            return Ok(());
        }
        let mut changed = bytes.clone();
        for (at, with) in edits {
            let at = at.index(changed.len());
            changed[at] ^= with;
        }
        extent.crc_stored = crc64(&changed);
        match decoded(&extent, &changed, key) {
            // There is more than one compressed form of the same bytes; the plain bytes are what
            // counts.
            Ok(found) => prop_assert!(found == plain && !(encrypted && changed != bytes)),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }

    /// Decoding any damaged extent ends in verified bytes or an error.
    #[test]
    fn decoding_survives_anything(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        len_bytes in 0u64..1 << 23,
        encoding in prop_oneof![Just(1u16), Just(2), Just(0x31), Just(0x42), Just(0x101), any::<u16>()],
        crc_plain in any::<u64>(),
    ) {
        let (_, key) = keyed();
        let extent = Extent {
            container: None,
            store: 0,
            physical: AT,
            stored_len_bytes: bytes.len() as u64,
            len_bytes,
            encoding,
            crc_stored: crc64(&bytes),
            crc_plain,
        };
        prop_assert!(decoded(&extent, &bytes, Some(&key)).is_err() || encoding == 0);
    }
}

// Breaks if: decoded bytes are not compared; LZ4 makes bytes of almost anything.
#[test]
fn what_was_decoded_wrongly_is_refused() {
    let plain: Vec<u8> = (0..300u32).flat_map(u32::to_le_bytes).collect();
    let (mut extent, bytes) = stored(&plain, 2, &recipe(Compression::Lz4), None);
    assert_ne!(extent.encoding, 0);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // The damage came before the bytes were stored, or with a matching CRC.
        extent.crc_stored = crc64(&changed);
        match decoded(&extent, &changed, None) {
            Ok(found) => assert!(found == plain, "bit {bit}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}

// Breaks if: any bit of the stored bytes, or of the tag, is not covered by tag or CRC.
#[test]
fn every_bit_of_an_encrypted_extent_counts() {
    let (_, key) = keyed();
    let plain: Vec<u8> = (0..300u32).flat_map(u32::to_le_bytes).collect();
    for compression in [Compression::None, Compression::Zstd, Compression::Lz4] {
        let (mut extent, bytes) = stored(&plain, 2, &recipe(compression), Some(&key));
        assert_eq!(decoded(&extent, &bytes, Some(&key)).unwrap(), plain);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = decoded(&extent, &changed, Some(&key)).unwrap_err();
            assert!(error.message().contains("expected CRC-64"), "{error}");
            // Somebody who knows the format makes the outer CRC match.
            let honest = std::mem::replace(&mut extent.crc_stored, crc64(&changed));
            let error = decoded(&extent, &changed, Some(&key)).unwrap_err();
            assert!(error.message().contains("changed, moved"), "{error}");
            extent.crc_stored = honest;
        }
    }
}

// Breaks if: any of these is left out of the authenticated data, the nonce, or the derivation of
// the key.
#[test]
fn an_extent_belongs_to_one_place() {
    let (header, key) = keyed();
    let plain = vec![5; 5000];
    let (extent, bytes) = stored(&plain, 0, &recipe(Compression::Zstd), Some(&key));
    let refused = |extent: &Extent, key: &ContainerKey, rank, region, at| {
        let error = decoded_as(extent, &bytes, Some(key), rank, region, at).unwrap_err();
        assert!(error.message().contains("changed, moved"), "{error}");
    };
    refused(&extent, &key, Rank(RANK + 1), [3; 16], 4096);
    refused(&extent, &key, Rank(RANK), [4; 16], 4096);
    refused(&extent, &key, Rank(RANK), [3; 16], 0);
    let moved = |change: &dyn Fn(&mut Extent)| {
        let mut extent = extent.clone();
        change(&mut extent);
        extent
    };
    refused(
        &moved(&|e| e.physical += 1),
        &key,
        Rank(RANK),
        [3; 16],
        4096,
    );
    refused(
        &moved(&|e| e.len_bytes += 1),
        &key,
        Rank(RANK),
        [3; 16],
        4096,
    );
    refused(
        &moved(&|e| e.encoding ^= 3),
        &key,
        Rank(RANK),
        [3; 16],
        4096,
    );
    // The same place in another container, to which this one's salt was copied.
    let secret = Secret::new(SECRET);
    let changes: [&dyn Fn(&mut ContainerHeader); 8] = [
        &|h| h.step.0 += 1,
        &|h| h.epoch.counter += 1,
        &|h| h.epoch.run.0[0] ^= 1,
        &|h| h.level = Level::Node,
        &|h| h.node.0 += 1,
        &|h| h.writer.0 += 1,
        &|h| h.job = JobName::new("jobs").unwrap(),
        &|h| {
            if let Some(encryption) = &mut h.encryption {
                encryption.salt[31] ^= 0x80;
            }
        },
    ];
    for change in changes {
        let mut other = header.clone();
        change(&mut other);
        assert!(ContainerKey::open(&secret, &other).is_err());
        let salt = other.encryption.unwrap().salt;
        let key = derive(&secret, &salt, &other, Form::Sealed).unwrap().key;
        refused(&extent, &key, Rank(RANK), [3; 16], 4096);
    }
    assert!(ContainerKey::open(&secret, &header).is_ok());
    let error = ContainerKey::open(&Secret::new([1; 32]), &header)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("another key"), "{error}");
}

/// Changes every field of the header and makes all checksums match.
// Breaks if: the MAC of the header is not compared; anybody could tell a reader what features to
// expect.
#[test]
fn a_header_that_was_changed_is_forged_and_the_key_is_not_to_blame() {
    let (header, _) = keyed();
    let secret = Secret::new(SECRET);
    let changes: [&dyn Fn(&mut ContainerHeader); 7] = [
        &|h| h.features.compat ^= 1,
        &|h| h.features.incompat ^= Features::REFERENCES,
        &|h| h.step.0 += 1,
        &|h| h.world_size += 1,
        &|h| h.alignment_bytes /= 2,
        &|h| h.created_unix_ms += 1,
        &|h| h.node.0 += 1,
    ];
    for change in changes {
        let mut other = header.clone();
        change(&mut other);
        let other = ContainerHeader::decode(&other.encode()).unwrap();
        let error = ContainerKey::open(&secret, &other).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("forged"), "{error}");
    }
    // Without the bit it is a header of 0.1.0, which has a different key check.
    let mut other = header.clone();
    other.features.incompat ^= Features::SEALED;
    let other = ContainerHeader::decode(&other.encode()).unwrap();
    assert!(ContainerKey::open(&secret, &other).is_err());
}

// Breaks if: salts are reused; two containers would then share key and nonces.
#[test]
fn every_container_has_a_key_of_its_own() {
    let (first, _) = keyed();
    let (second, _) = keyed();
    let (first, second) = (first.encryption.unwrap(), second.encryption.unwrap());
    assert_ne!(first.salt, second.salt);
    assert_ne!(first.key_check, second.key_check);
}

/// A region that does not shrink is skipped for longer and longer, and tried again.
#[test]
fn what_does_not_shrink_is_soon_left_alone() {
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    let mut state = 1u64;
    let noise: Vec<u8> = (0..1 << 16)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    pool.put(&chunk, 0, &noise);
    let sent = |bytes: &[u8]| piece(bytes.len(), 3, crc64(bytes));
    let piece = sent(&noise);
    let mut encoder = Encoder::new(&recipe(Compression::Zstd)).unwrap();
    let mut pauses = Vec::new();
    for _ in 0..200 {
        assert!(matches!(
            encoder.encode(&pool, 0, &piece).unwrap(),
            Body::Plain
        ));
        pauses.push(encoder.stubborn[&piece.region].pass);
    }
    // Breaks if: the pause never ends; a region that changes its nature would stay large forever.
    assert_eq!(pauses.iter().max(), Some(&MAX_PASSED));
    let zeros = vec![0; noise.len()];
    pool.put(&chunk, 0, &zeros);
    let piece = sent(&zeros);
    let tries =
        (0..=MAX_PASSED).map(|_| matches!(encoder.encode(&pool, 0, &piece), Ok(Body::Packed(..))));
    assert!(tries.collect::<Vec<_>>().contains(&true));
    assert!(encoder.stubborn.is_empty());
    pool.give(chunk);
}
