//! Tests that damage in each structure of a container gives the right verdict and never wrong
//! bytes.

use orcheck_engine::restart::reader::{Reader, holder_of};
use orcheck_engine::upkeep::{Verdict, verify_commit};
use orcheck_format::disk::{ContainerHeader, FileName, Manifest, Trailer, header_crc};
use orcheck_format::{ErrorKind, Rank, Step};
use orcheck_io::memory::Span;

use orcheck_fixtures::reading::{
    RegionSpec, Scratch, Spec, Written, flip, open_places, payload, write,
};

struct Case {
    scratch: Scratch,
    spec: Spec,
    written: Written,
}

impl Case {
    fn new() -> Case {
        let scratch = Scratch::new();
        let spec = Spec::new(40, 7);
        let written = write(&[scratch.dir("a")], &spec);
        Case {
            scratch,
            spec,
            written,
        }
    }

    fn verify(&self) -> Verdict {
        verify_commit(
            &open_places(&[self.scratch.dir("a")]),
            &self.written.record,
            &mut |_, _| {},
        )
        .unwrap()
    }

    fn open(&self) -> orcheck_format::Result<Reader> {
        Reader::open(
            &open_places(&[self.scratch.dir("a")]),
            &self.written.record,
            &self.written.record.containers[0],
        )
    }

    /// How many regions of the first container come back right; panics on wrong bytes.
    fn readable(&self) -> usize {
        let Ok(reader) = self.open() else { return 0 };
        let mut right = 0;
        for &rank in &self.spec.nodes[0] {
            for region in &self.spec.regions {
                let Some(record) = reader.region(Rank(rank), &region.name) else {
                    continue;
                };
                let mut found = vec![0; region.len];
                if reader
                    .read_region(Rank(rank), record, Span::from_mut(&mut found))
                    .is_ok()
                {
                    assert!(
                        found == payload(Rank(rank), self.spec.step, &region.name, region.len),
                        "wrong bytes were handed over"
                    );
                    right += 1;
                }
            }
        }
        right
    }

    fn message(&self) -> String {
        let verdict = self.verify();
        verdict
            .findings()
            .map(|finding| finding.message.clone())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[test]
fn header() {
    let case = Case::new();
    flip(
        &case.written.paths[0],
        case.written.structure(0, "header").start + 50,
        3,
    );
    let error = case.open().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for part in [
        "header",
        "bytes 0..4096",
        "expected",
        "found",
        &case.written.record.containers[0].file,
    ] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
    assert!(!case.verify().is_restorable());
}

#[test]
fn rank_header_and_rank_record_cost_no_data() {
    for name in [
        "rank header 1",
        "rank header 0",
        "rank record 1",
        "rank record 0",
    ] {
        let case = Case::new();
        flip(
            &case.written.paths[0],
            case.written.structure(0, name).start + 20,
            5,
        );
        assert_eq!(case.readable(), 6, "{name}");
        let verdict = case.verify();
        assert!(
            !verdict.is_good() && verdict.is_restorable(),
            "{name}: {verdict:?}"
        );
        // The damage is one; the part behind it is still examined.
        assert_eq!(verdict.findings().count(), 1, "{name}: {}", case.message());
        assert!(
            case.message().contains(&name[..name.len() - 2]),
            "{name}: {}",
            case.message()
        );
    }
}

#[test]
fn stream() {
    // Breaks if: `Source::compare` returns Ok; the flipped byte would be handed over.
    let case = Case::new();
    let stream = case.written.structure(0, "stream 0");
    flip(&case.written.paths[0], stream.start + 8192 + 17, 0);
    assert_eq!(case.readable(), 5);
    let verdict = case.verify();
    let findings: Vec<_> = verdict.findings().collect();
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].rank, findings[0].region.as_deref()),
        (Some(Rank(0)), Some("u"))
    );
    assert!(findings[0].fatal && findings[0].kind == ErrorKind::Corrupt);
    let reader = case.open().unwrap();
    let region = reader.region(Rank(0), "u").unwrap();
    let error = reader
        .read_region(Rank(0), region, Span::from_mut(&mut vec![0; 24_000]))
        .unwrap_err();
    let (from, to) = (stream.start + 8192, stream.start + 16_384);
    for part in [
        "step 40",
        "rank 0",
        "region \"u\"",
        "bytes 8192..16384",
        &format!("bytes {from}..{to}"),
        &case.written.paths[0].display().to_string(),
        "expected CRC-64",
        "found",
        "Next:",
    ] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
    // Nothing of a damaged extent is handed on.
    let mut handed = 0;
    let streamed = reader.stream_region(Rank(0), region, &mut |_, bytes| {
        handed += bytes.len();
        Ok(())
    });
    assert_eq!(streamed.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(handed, 8192);
}

#[test]
fn manifest_and_trailer_are_rebuilt() {
    for name in ["manifest", "trailer"] {
        let case = Case::new();
        flip(
            &case.written.paths[0],
            case.written.structure(0, name).start + 11,
            2,
        );
        assert_eq!(case.readable(), 6, "{name}");
        let notes = case.open().unwrap().take_notes();
        let rebuilt = |note: &String| note.contains(name) && note.contains("rebuilt");
        assert!(notes.iter().any(rebuilt), "{notes:?}");
        let verdict = case.verify();
        assert!(!verdict.is_good() && verdict.is_restorable());
    }
}

#[test]
fn a_manifest_that_cannot_be_rebuilt_is_refused() {
    // Breaks if: `rebuild` does not compare the digest; half a manifest would then be believed.
    let case = Case::new();
    flip(
        &case.written.paths[0],
        case.written.structure(0, "trailer").start + 11,
        2,
    );
    flip(
        &case.written.paths[0],
        case.written.structure(0, "rank record 0").start + 40,
        2,
    );
    let error = case.open().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for part in ["trailer", "1 of 2 ranks found", "Next:"] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
    assert!(!case.verify().is_restorable());
}

#[test]
fn padding_is_looked_at() {
    let case = Case::new();
    let padding = case.written.structure(0, "padding 0");
    flip(&case.written.paths[0], padding.start + 3, 2);
    assert_eq!(case.readable(), 6);
    let verdict = case.verify();
    assert!(!verdict.is_good() && verdict.is_restorable());
    assert!(
        case.message()
            .contains(&format!("at byte {}", padding.start + 3)),
        "{}",
        case.message()
    );
}

#[test]
fn a_cut_tail_is_rebuilt_and_a_cut_stream_is_refused() {
    let case = Case::new();
    let path = &case.written.paths[0];
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..case.written.structure(0, "manifest").start]).unwrap();
    assert_eq!(case.readable(), 6);
    assert!(!case.verify().is_good() && case.verify().is_restorable());
    std::fs::write(
        path,
        &bytes[..case.written.structure(0, "stream 0").start + 100],
    )
    .unwrap();
    assert_eq!(case.readable(), 0);
    let error = case.open().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // And an overlong tail costs nothing, but is told.
    std::fs::write(path, [&bytes[..], b"tail"].concat()).unwrap();
    assert_eq!(case.readable(), 6);
    assert!(
        case.message().contains("expected a length of"),
        "{}",
        case.message()
    );
    std::fs::write(path, b"").unwrap();
    assert_eq!(case.readable(), 0);
}

#[test]
fn any_flipped_bit_is_found_and_none_gives_wrong_bytes() {
    // Breaks if: any one comparison of a CRC, of the digest or of the padding is dropped.
    let mut case = Case::new();
    case.spec.regions = vec![RegionSpec {
        name: "u".into(),
        len: 160,
        cut: 64,
    }];
    case.written = write(&[case.scratch.dir("a")], &case.spec);
    let path = case.written.paths[0].clone();
    let good = std::fs::read(&path).unwrap();
    assert!(case.verify().is_good());
    // Every byte of what has content, and one in 61 of the long runs of zeros.
    let step = |at: usize| {
        if good[at..good.len().min(at + 64)]
            .iter()
            .all(|&byte| byte == 0)
        {
            61
        } else {
            1
        }
    };
    let mut at = 0;
    let mut trials = 0;
    while at < good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bad).unwrap();
        let whole = case.readable() == 2;
        let verdict = case.verify();
        assert!(!verdict.is_good(), "the flip at byte {at} was not found");
        assert_eq!(verdict.is_restorable(), whole, "byte {at}: {verdict:?}");
        trials += 1;
        at += step(at);
    }
    assert!(trials > 1000, "{trials}");
}

#[test]
fn torn_files_are_never_half_read() {
    let mut case = Case::new();
    case.spec.regions = vec![RegionSpec {
        name: "u".into(),
        len: 5000,
        cut: 4096,
    }];
    case.written = write(&[case.scratch.dir("a")], &case.spec);
    let path = case.written.paths[0].clone();
    let good = std::fs::read(&path).unwrap();
    for len in (0..good.len()).step_by(512) {
        // Cut short, and of the right length with zeros where the end was lost.
        for filled in [false, true] {
            let mut torn = good[..len].to_vec();
            if filled {
                torn.resize(good.len(), 0);
            }
            std::fs::write(&path, &torn).unwrap();
            case.readable();
            // Losing only zeros at the end of the last block but one changes nothing in a filled
            // file.
            assert!(
                !case.verify().is_good() || torn == good,
                "cut at {len}, filled {filled}"
            );
        }
    }
    assert_eq!(
        holder_of(&case.written.record, Rank(0)).unwrap().file,
        case.written.record.containers[0].file
    );
}

/// Puts other bytes of the same length over a structure of the first container.
fn replace(case: &Case, name: &str, bytes: &[u8]) {
    let path = &case.written.paths[0];
    let range = case.written.structure(0, name);
    assert_eq!(range.len(), bytes.len());
    let mut file = std::fs::read(path).unwrap();
    file[range].copy_from_slice(bytes);
    std::fs::write(path, file).unwrap();
}

fn structure(case: &Case, name: &str) -> Vec<u8> {
    let file = std::fs::read(&case.written.paths[0]).unwrap();
    file[case.written.structure(0, name)].to_vec()
}

// Breaks if: `check_digest` returns Ok: a manifest that is well-formed and another one is believed.
#[test]
fn another_well_formed_manifest_is_not_believed() {
    let case = Case::new();
    let mut other = Manifest::decode(&structure(&case, "manifest")).unwrap();
    let right = other.node_name.clone();
    other.node_name = "x".repeat(right.len());
    replace(&case, "manifest", &other.encode());
    let reader = case.open().unwrap();
    assert_eq!(reader.manifest().node_name, right);
    let told = |note: &String| note.contains("BLAKE3") && note.contains("rebuilt");
    let notes = reader.take_notes();
    assert!(notes.iter().any(told), "{notes:?}");
}

// Breaks if: the trailer's copy of the header's CRC is not compared: parts of two files pass as
// one.
#[test]
fn a_header_of_another_file_is_noticed() {
    let case = Case::new();
    let mut header = ContainerHeader::decode(&structure(&case, "header")).unwrap();
    header.created_unix_ms += 1;
    replace(&case, "header", &header.encode());
    let reader = case.open().unwrap();
    let told = |note: &String| note.contains("not of one file");
    let notes = reader.take_notes();
    assert!(notes.iter().any(told), "{notes:?}");
}

// Breaks if: `check_manifest` does not ask whether the commit record names the older checkpoint:
// prune, which reads only records, would take it away.
#[test]
fn a_reference_that_is_named_by_no_record_is_refused() {
    let mut case = Case::new();
    let path = case.written.paths[0].clone();
    let file = std::fs::read(&path).unwrap();
    let mut manifest = Manifest::decode(&structure(&case, "manifest")).unwrap();
    let older = FileName::parse(&manifest.stores[0])
        .unwrap()
        .at_step(Step(39));
    manifest.ranks[0].regions[0].extents[0].container = Some(older.to_string());
    let encoded = manifest.encode();
    let manifest_at = case.written.structure(0, "manifest").start;
    let mut bytes = file[..manifest_at].to_vec();
    bytes.extend_from_slice(&encoded);
    bytes.resize(bytes.len().next_multiple_of(4096) + 4096, 0);
    let len_bytes = bytes.len() as u64;
    let mut header = [0; 4096];
    header.copy_from_slice(&file[..4096]);
    let trailer = Trailer {
        manifest_at: manifest_at as u64,
        manifest_len_bytes: encoded.len() as u64,
        manifest_digest: Manifest::digest(&encoded),
        file_len_bytes: len_bytes,
        header_crc: header_crc(&header),
    }
    .encode();
    let end = bytes.len();
    bytes[end - trailer.len()..].copy_from_slice(&trailer);
    std::fs::write(&path, bytes).unwrap();
    let container = &mut case.written.record.containers[0];
    container.len_bytes = len_bytes;
    container.manifest_digest = Manifest::digest(&encoded);
    let error = case.open().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.message().contains("the commit record names []"),
        "{error}"
    );
    case.written.record.containers[0].refers_to = vec![Step(39)];
    assert_eq!(case.open().unwrap().take_notes(), [] as [String; 0]);
}
