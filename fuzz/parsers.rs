//! What every parser must do with any bytes: the entry functions of the fuzzers, and of the test
//! that replays and mutates their corpus in `make check`.
//!
//! An entry panics when a parser does, when an accepted input has a second encoding, or when what
//! comes back is another value. Inputs whose checksum does not fit are tried as they are and with
//! the checksum put right, so that what lies behind it is reached too. Memory and time are the
//! callers' to bound.

use orcheck_engine::encoding::{Binding, ContainerKey, Decoder};
use orcheck_format::disk::{
    Choice, Claim, CommitRecord, ContainerHeader, Encoding, Extent, Features, FileName,
    MAX_ALIGNMENT_BYTES, Manifest, Members, PARITY_END_BYTES, ParityTrailer, RankFooterPrefix,
    RankHeader, Resumed, SEAL_BYTES, Trailer, decode_rank_record, encode_rank_record,
};
use orcheck_format::wire::{Adoption, FrameHeader, KeptMap, Message};
use orcheck_format::{
    Crc64, Epoch, ErrorKind, JobName, Level, NodeId, Rank, Result, RunId, Step, WriterId, crc64,
};
use orcheck_io::user::Secret;
use std::sync::OnceLock;

/// A parser's name and its entry.
pub type Target = (&'static str, fn(&[u8]));

/// Every parser of bytes that come from outside.
pub const TARGETS: [Target; 21] = [
    ("container_header", container_header),
    ("rank_header", rank_header),
    ("rank_record", rank_record),
    ("rank_footer", rank_footer),
    ("manifest", manifest),
    ("trailer", trailer),
    ("commit_record", commit_record),
    ("claim", claim),
    ("resumed", resumed),
    ("members", members),
    ("choice", choice),
    ("parity_trailer", parity_trailer),
    ("frame_header", frame_header),
    ("message", message),
    ("adoption", adoption),
    ("kept_map", kept_map),
    ("file_name", file_name),
    ("identifier", identifier),
    ("options", options),
    ("placement", placement),
    ("stored_piece", stored_piece),
];

/// Runs the entry called `name`.
pub fn run(name: &str, bytes: &[u8]) {
    for (target, entry) in TARGETS {
        if target == name {
            return entry(bytes);
        }
    }
    panic!("there is no parser called '{name}'");
}

/// What is accepted has one encoding, and that encoding is the same value. Unknown keys of maps are
/// allowed and left out when the value is written again, which makes it shorter. `fixed` bytes may
/// differ: they are reserved, or optional features that this version does not know.
fn one_encoding<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    fixed: [std::ops::Range<usize>; 2],
    decode: impl Fn(&[u8]) -> Result<T>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Option<T> {
    let value = match decode(bytes) {
        Ok(value) => value,
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "not an error of a parser: {error}"
            );
            assert!(!error.message().is_empty());
            return None;
        }
    };
    let again = encode(&value);
    let free = |at: usize| fixed.iter().any(|range| range.contains(&at));
    let mut pairs = again.iter().zip(bytes).enumerate();
    let other = pairs.find(|(at, (a, b))| a != b && !free(*at));
    assert!(
        again.len() < bytes.len() || other.is_none(),
        "a second encoding of the same length: (offset, (written, read)) is {other:?}"
    );
    assert_eq!(
        decode(&again).as_ref(),
        Ok(&value),
        "another value came back"
    );
    Some(value)
}

/// The bytes, and the bytes with the CRC of everything before their last eight put there.
fn with_crc(bytes: &[u8], test: impl Fn(&[u8])) {
    test(bytes);
    if let Some(body) = bytes.len().checked_sub(8) {
        let mut mended = bytes.to_vec();
        mended[body..].copy_from_slice(&crc64(&bytes[..body]).to_le_bytes());
        test(&mended);
    }
}

/// Optional features of a small file, and its CRC, which covers them.
fn envelope(bytes: &[u8]) -> [std::ops::Range<usize>; 2] {
    [16..32, bytes.len().saturating_sub(8)..bytes.len()]
}

fn container_header(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, [92..4096, 0..0], ContainerHeader::decode, |v| {
            v.encode().to_vec()
        });
    });
}

fn rank_header(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, [56..4096, 0..0], RankHeader::decode, |v| {
            v.encode().to_vec()
        });
    });
}

fn trailer(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, [72..512, 0..0], Trailer::decode, |v| {
            v.encode().to_vec()
        });
    });
}

fn rank_record(bytes: &[u8]) {
    let whole = |bytes: &[u8]| {
        if let Ok((value, used)) = decode_rank_record(bytes) {
            let again = encode_rank_record(&value);
            assert!(used <= bytes.len());
            // The frame is rounded up to a block; what lies between is not looked at.
            assert!(again.len() <= used.max(again.len()));
            let (back, _) = decode_rank_record(&again).expect("its own encoding");
            assert_eq!(back, value, "another value came back");
        }
    };
    whole(bytes);
    // The CRC of a rank record lies behind its length and covers both sides of itself.
    if let Some(found) = bytes.get(8..12) {
        let len_bytes = u32::from_le_bytes(found.try_into().expect("four")) as usize;
        if let Some(end) = len_bytes.checked_add(24).filter(|&end| end <= bytes.len()) {
            let mut mended = bytes.to_vec();
            let mut crc = Crc64::new();
            crc.update(&bytes[..16]);
            crc.update(&bytes[24..end]);
            mended[16..24].copy_from_slice(&crc.value().to_le_bytes());
            whole(&mended);
        }
    }
}

fn rank_footer(bytes: &[u8]) {
    let _ = RankFooterPrefix::decode(bytes);
}

fn manifest(bytes: &[u8]) {
    let encode = |value: &Manifest| value.encode();
    if let Some(manifest) = one_encoding(bytes, [0..0, 0..0], Manifest::decode, encode) {
        let longer = [bytes, b"\0"].concat();
        assert!(
            Manifest::decode(&longer).is_err(),
            "more follows, and is accepted"
        );
        for len_bytes in [0, 4096, 1 << 20, u64::MAX] {
            let _ = manifest.validate(len_bytes);
        }
    }
}

fn commit_record(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        let encode = |value: &CommitRecord| value.encode();
        if let Some(record) = one_encoding(bytes, envelope(bytes), CommitRecord::decode, encode) {
            let _ = record.validate();
        }
    });
}

fn claim(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, envelope(bytes), Claim::decode, Claim::encode);
    });
}

fn resumed(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, envelope(bytes), Resumed::decode, Resumed::encode);
    });
}

fn members(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, envelope(bytes), Members::decode, Members::encode);
    });
}

fn choice(bytes: &[u8]) {
    with_crc(bytes, |bytes| {
        one_encoding(bytes, envelope(bytes), Choice::decode, Choice::encode);
    });
}

/// The first eight bytes say where it begins in its file.
fn parity_trailer(bytes: &[u8]) {
    let Some((at, body)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let at = u64::from_le_bytes(*at);
    with_crc(body, |bytes| {
        let encode = |value: &ParityTrailer| {
            let mut all = value.encode();
            all.truncate(all.len() - PARITY_END_BYTES);
            all
        };
        let decode = |bytes: &[u8]| ParityTrailer::decode(bytes, at);
        one_encoding(bytes, envelope(bytes), decode, encode);
    });
    if let Some(end) = body.last_chunk::<PARITY_END_BYTES>() {
        let _ = ParityTrailer::find(end, at);
    }
}

fn frame_header(bytes: &[u8]) {
    if let Ok(header) = FrameHeader::decode(bytes) {
        let again = header.encode();
        assert_eq!(FrameHeader::decode(&again).as_ref(), Ok(&header));
    }
}

/// The first byte is the kind of the message.
fn message(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else {
        return;
    };
    if let Ok(message) = Message::decode(kind, payload) {
        assert_eq!(message.kind(), kind);
        let again = message.encode();
        assert!(
            again == payload || again.len() < payload.len(),
            "a second encoding"
        );
        assert_eq!(Message::decode(kind, &again).as_ref(), Ok(&message));
    }
}

fn adoption(bytes: &[u8]) {
    let decode = |bytes: &[u8]| Adoption::decode(bytes, "0.1.0");
    one_encoding(bytes, [0..0, 0..0], decode, Adoption::encode);
}

fn kept_map(bytes: &[u8]) {
    let decode = |bytes: &[u8]| KeptMap::decode(bytes, "0.1.0");
    let map = one_encoding(bytes, [0..0, 0..0], decode, KeptMap::encode);
    for snapshot in map.iter().flat_map(|map| &map.snapshots) {
        for piece in &snapshot.pieces {
            let found = snapshot.piece(&piece.region, piece.region_at_bytes, piece.len_bytes);
            assert_eq!(found, Some(piece), "it cannot be looked up");
        }
    }
}

fn file_name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(name) = FileName::parse(&text) {
        assert_eq!(name.to_string(), text, "a second name of the same file");
        assert!(!text.contains('/') && text != "." && text != "..");
    }
}

fn identifier(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(name) = JobName::new(&text) {
        assert_eq!(name.as_str(), text);
        assert!(!text.contains('/') && text != "." && text != "..");
    }
    if let Ok(run) = RunId::parse(&text) {
        assert_eq!(RunId::parse(&run.to_string()).as_ref(), Ok(&run));
    }
}

fn options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match orcheck_client::Options::from_text(&text) {
        Ok(options) => {
            let again = orcheck_client::Options::from_text(&text);
            assert_eq!(again.as_ref(), Ok(&options));
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
    }
}

fn placement(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let names = |of: &str| (0..3).map(|n| format!("{of}{n}")).collect::<Vec<_>>();
    let (nodes, servers) = (names("n"), names("/ost"));
    match orcheck_placement::Placement::from_toml(&text, &nodes, &servers) {
        Ok(placement) => {
            let again = placement.to_toml(&nodes);
            let back = orcheck_placement::Placement::from_toml(&again, &nodes, &servers);
            assert_eq!(back.as_ref(), Ok(&placement), "another placement came back");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
    }
}

/// The key of a container with a salt of its own: other bytes in every process, but the same
/// answers.
fn key() -> &'static ContainerKey {
    static KEY: OnceLock<ContainerKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let mut header = ContainerHeader {
            features: Features {
                incompat: Features::ENCODED,
                ..Features::default()
            },
            job: JobName::new("job").expect("a name"),
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
        };
        let secret = Secret::new([7; 32]);
        ContainerKey::create(&secret, &mut header).expect("a key")
    })
}

// Breaks if: `Decoder::decode` does not compare the CRC of the plain bytes, or the tag is not
// looked at (`unseal`).
/// What a piece of a region gives that a container holds: encoding (2 bytes), length in the region
/// (4) and CRC of the plain bytes (8), then the bytes as they are stored, without seal. An
/// encrypted one is tried as it is, which nobody with the key wrote, and sealed by somebody who has
/// the key and is mistaken in everything else.
fn stored_piece(bytes: &[u8]) {
    /// Longer ones are only checked: decoding takes as much memory as the extent says.
    const LONGEST_BYTES: u64 = 64 << 10;
    const AT: u64 = 12345;
    let Some((head, stored)) = bytes.split_at_checked(14) else {
        return;
    };
    let number = |from: usize, to: usize| {
        let bytes = head[from..to].iter().rev();
        bytes.fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    let (encoding, len_bytes, crc_plain) = (number(0, 2) as u16, number(2, 6), number(6, 14));
    let piece = |encoding: u16, crc_plain: u64, stored: &[u8]| {
        let extent = Extent {
            container: None,
            store: 0,
            physical: AT,
            stored_len_bytes: stored.len() as u64,
            len_bytes,
            encoding,
            crc_stored: crc64(stored),
            crc_plain,
        };
        let checked = extent.check_encoding();
        if len_bytes > LONGEST_BYTES {
            return None;
        }
        let mut decoder = Decoder::default();
        decoder.room(&extent).copy_from_slice(stored);
        match decoder.decode(&extent, Rank(3), [4; 16], 8192, Some(key())) {
            Ok(plain) => {
                assert!(checked.is_ok());
                assert_eq!(plain.len() as u64, len_bytes, "another length came back");
                Some(plain.to_vec())
            }
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported));
                None
            }
        }
    };
    let found = piece(encoding, crc_plain, stored);
    let same = |found: &Option<Vec<u8>>| found.as_ref().is_none_or(|p| crc64(p) == crc_plain);
    assert!(same(&found), "bytes came back that are not proven");
    if !Encoding::from_code(encoding).is_ok_and(|encoding| encoding.encrypted) {
        return;
    }
    assert!(found.is_none(), "nobody with the key wrote this");
    let mut sealed = stored.to_vec();
    sealed.resize(stored.len() + SEAL_BYTES as usize, 0);
    let binding = Binding {
        rank: Rank(3),
        region: [4; 16],
        region_at_bytes: 8192,
        len_bytes,
        encoding,
    };
    let done = key().seal(AT, &binding, crc_plain, &mut sealed);
    done.expect("a piece of this length");
    let found = piece(encoding, 0, &sealed);
    assert!(same(&found), "bytes came back that are not proven");
    if found.is_some() && !stored.is_empty() {
        // Somebody who knows the plain bytes and not the key changes one of them and lets the CRC
        // inside follow.
        let zeros = vec![0; stored.len()];
        let change = [&[1], &zeros[1..]].concat();
        let (payload, seal) = sealed.split_at_mut(stored.len());
        payload[0] ^= 1;
        let follow = (crc64(&change) ^ crc64(&zeros)).to_le_bytes();
        (seal.iter_mut().zip(follow)).for_each(|(byte, change)| *byte ^= change);
        assert!(piece(encoding, 0, &sealed).is_none(), "forged");
    }
    // Without encryption the same payload gives the same bytes, where it may be stored so.
    let mut open = Encoding::from_code(encoding).expect("known");
    open.encrypted = false;
    assert!(open.is_plain() || found == piece(open.code(), crc_plain, stored));
}
