//! Tests files of format v1 as they were first written. Every later version reads them, and this
//! version writes them byte for byte.
//!
//! They are never regenerated. `ORCHECK_WRITE_GOLDEN=1 cargo test -p orcheck-format golden` writes
//! a file that does not exist yet and leaves the existing ones alone.
#![allow(
    clippy::disallowed_methods,
    reason = "test data, not the product's files"
)]

use crate::samples;
use orcheck_format::Rank;
use orcheck_format::disk::*;
use orcheck_format::wire::*;
use orcheck_format::*;
use std::io::Write;
use std::path::PathBuf;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn current() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("container-header.bin", samples::header().encode().to_vec()),
        (
            "container-header-encrypted.bin",
            samples::encrypted_header().encode().to_vec(),
        ),
        (
            "rank-record-encoded.bin",
            encode_rank_record(&samples::encoded_rank_record()),
        ),
        ("rank-header.bin", samples::rank_header().encode().to_vec()),
        (
            "rank-record.bin",
            encode_rank_record(&samples::rank_record(Rank(6), 0)),
        ),
        ("manifest.bin", samples::manifest().encode()),
        ("trailer.bin", samples::trailer().encode().to_vec()),
        ("commit-record.bin", samples::commit_record().encode()),
        (
            "commit-record-referring.bin",
            samples::referring_record().encode(),
        ),
        (
            "commit-record-replicated.bin",
            samples::replicated_record().encode(),
        ),
        ("claim.bin", samples::claim().encode()),
        ("resumed.bin", samples::resumed().encode()),
        ("members.bin", samples::members().encode()),
        ("choice.bin", samples::choice().encode()),
        (
            "container-header-sealed.bin",
            samples::sealed_header().encode().to_vec(),
        ),
        (
            "commit-record-sealed.bin",
            samples::sealed(&samples::referring_record().encode()),
        ),
        (
            "claim-sealed.bin",
            samples::sealed(&samples::claim().encode()),
        ),
        (
            "resumed-sealed.bin",
            samples::sealed(&samples::resumed().encode()),
        ),
        (
            "members-sealed.bin",
            samples::sealed(&samples::members().encode()),
        ),
        (
            "rank-record-boxes.bin",
            encode_rank_record(&samples::boxes_rank_record()),
        ),
        (
            "commit-record-parity.bin",
            samples::parity_record().encode(),
        ),
        ("parity-trailer.bin", samples::parity_trailer().0.encode()),
        ("frame-vote.bin", samples::frame()),
    ]
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(directory().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn write_golden_files_that_do_not_exist() {
    if std::env::var_os("ORCHECK_WRITE_GOLDEN").is_none() {
        return;
    }
    for (name, bytes) in current() {
        let path = directory().join(name);
        match std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
        {
            Ok(mut file) => file.write_all(&bytes).unwrap(),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

// Breaks if: any field moves, changes its width, or gets another key.
#[test]
fn golden_files_decode_to_the_samples() {
    assert_eq!(
        ContainerHeader::decode(&read("container-header.bin")),
        Ok(samples::header())
    );
    assert_eq!(
        ContainerHeader::decode(&read("container-header-encrypted.bin")),
        Ok(samples::encrypted_header())
    );
    let record = read("rank-record-encoded.bin");
    assert_eq!(
        decode_rank_record(&record),
        Ok((samples::encoded_rank_record(), record.len()))
    );
    let record = read("rank-record-boxes.bin");
    assert_eq!(
        decode_rank_record(&record),
        Ok((samples::boxes_rank_record(), record.len()))
    );
    assert_eq!(
        RankHeader::decode(&read("rank-header.bin")),
        Ok(samples::rank_header())
    );
    let record = read("rank-record.bin");
    assert_eq!(
        decode_rank_record(&record),
        Ok((samples::rank_record(Rank(6), 0), record.len()))
    );
    assert_eq!(
        Manifest::decode(&read("manifest.bin")),
        Ok(samples::manifest())
    );
    assert_eq!(
        Trailer::decode(&read("trailer.bin")),
        Ok(samples::trailer())
    );
    assert_eq!(
        CommitRecord::decode(&read("commit-record.bin")),
        Ok(samples::commit_record())
    );
    let referring = CommitRecord::decode(&read("commit-record-referring.bin")).unwrap();
    assert_eq!(referring, samples::referring_record());
    assert_eq!(referring.refers_to(), [38, 39, 41].map(Step));
    let replicated = CommitRecord::decode(&read("commit-record-replicated.bin")).unwrap();
    assert_eq!(replicated, samples::replicated_record());
    let parity = CommitRecord::decode(&read("commit-record-parity.bin")).unwrap();
    assert_eq!(parity, samples::parity_record());
    let (trailer, at) = samples::parity_trailer();
    let bytes = read("parity-trailer.bin");
    let (body, end) = bytes.split_at(bytes.len() - PARITY_END_BYTES);
    let file_bytes = at + bytes.len() as u64;
    let found = ParityTrailer::find(end.try_into().unwrap(), file_bytes);
    assert_eq!(found, Ok((at, body.len())));
    assert_eq!(ParityTrailer::decode(body, at), Ok(trailer));
    assert_eq!(Claim::decode(&read("claim.bin")), Ok(samples::claim()));
    assert_eq!(
        Resumed::decode(&read("resumed.bin")),
        Ok(samples::resumed())
    );
    assert_eq!(
        Members::decode(&read("members.bin")),
        Ok(samples::members())
    );
    assert_eq!(Choice::decode(&read("choice.bin")), Ok(samples::choice()));
    assert_eq!(
        ContainerHeader::decode(&read("container-header-sealed.bin")),
        Ok(samples::sealed_header())
    );
    let sealed = read("commit-record-sealed.bin");
    assert_eq!(
        CommitRecord::decode(&sealed),
        Ok(samples::referring_record())
    );
    let seal = seal_of(&sealed).unwrap().unwrap();
    assert_eq!(seal.key_id[0], 0xa0);
    assert_eq!(seal.mac[31], 0x40 + 31);
    assert_eq!(seal.covered.len(), sealed.len() - 40);
    assert_eq!(
        Claim::decode(&read("claim-sealed.bin")),
        Ok(samples::claim())
    );
    assert_eq!(
        Resumed::decode(&read("resumed-sealed.bin")),
        Ok(samples::resumed())
    );
    assert_eq!(
        Members::decode(&read("members-sealed.bin")),
        Ok(samples::members())
    );
    // Breaks if: a kind of record loses its seal when it is written.
    for name in [
        "claim-sealed.bin",
        "resumed-sealed.bin",
        "members-sealed.bin",
    ] {
        let bytes = read(name);
        let seal = seal_of(&bytes).unwrap().unwrap();
        assert_eq!((seal.key_id[15], seal.mac[0]), (0xaf, 0x40), "{name}");
    }
    let frame = read("frame-vote.bin");
    let header = FrameHeader::decode(&frame).unwrap();
    assert_eq!(header.seq, 0x0102_0304_0506_0708);
    assert_eq!(
        Message::decode(header.kind, &frame[20..]),
        Ok(samples::messages()[4].clone())
    );
}

#[test]
fn golden_files_are_what_is_written_today() {
    for (name, bytes) in current() {
        assert!(read(name) == bytes, "{name} is written differently now");
    }
    let block: [u8; BLOCK_BYTES] = read("container-header.bin").try_into().unwrap();
    let crc = header_crc(&block);
    assert_eq!(crc, crc64(&block[..4088]));
}

/// Spot checks against the tables of `docs/format.md`, independent of encoder and decoder.
#[test]
fn documented_offsets() {
    let u32_at =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let header = read("container-header.bin");
    assert_eq!(&header[..8], b"ORCKv1\r\n");
    assert_eq!(u64_at(&header, 8), 1 << 63);
    assert_eq!(u64_at(&header, 16), 1 << 5);
    assert_eq!(u64_at(&header, 32), 42);
    assert_eq!(u64_at(&header, 40), 7);
    assert_eq!(header[48], 0x1a);
    assert_eq!(u64_at(&header, 64), 1_700_000_000_123);
    assert_eq!(&header[72..76], &[0x00, 0x04, 10, 0]);
    assert_eq!(
        (
            u32_at(&header, 76),
            u32_at(&header, 80),
            u32_at(&header, 84)
        ),
        (3, 0, 8)
    );
    assert_eq!(u32_at(&header, 88), 4096);
    assert_eq!(&header[96..106], b"lbm-cavity");
    assert_eq!(u64_at(&header, 4088), crc64(&header[..4088]));
    let encrypted = read("container-header-encrypted.bin");
    assert_eq!(u64_at(&encrypted, 24), 0b1100);
    assert_eq!((encrypted[160], encrypted[191]), (0x20, 0x3f));
    assert_eq!((encrypted[192], encrypted[207]), (0x80, 0x8f));
    let rank = read("rank-header.bin");
    assert_eq!(
        (u32_at(&rank, 8), u32_at(&rank, 12), u64_at(&rank, 16)),
        (6, 4 << 20, 42)
    );
    assert_eq!((u64_at(&rank, 24), u64_at(&rank, 48)), (7, 96));
    let trailer = read("trailer.bin");
    assert_eq!((u64_at(&trailer, 8), u64_at(&trailer, 16)), (12288, 777));
    assert_eq!(&trailer[24..56], &Manifest::digest(b"manifest"));
    assert_eq!(
        (u64_at(&trailer, 56), u64_at(&trailer, 64)),
        (20480, 0x0123_4567_89ab_cdef)
    );
    assert_eq!(u64_at(&trailer, 504), crc64(&trailer[..504]));
}
