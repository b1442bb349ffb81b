//! Remembers what this writer stored where, so that a snapshot can refer to bytes of an older
//! container.
//!
//! A rank refers to a place by a step and an offset in its own stream, because it does not know
//! where its stream lies in a file, or how it was stored. The writer knows this for each level, and
//! turns the reference into a place in the older container's file.
//!
//! Invariants:
//! 1. Only the contents of a finished rank stream are entered. The rank that refers to a step knows
//!    whether the step was committed (`baseline.rs`).
//! 2. For each rank it holds the last snapshot and those that this snapshot still needs: at most
//!    `MAX_REFERRED` + 1.
//! 3. A reference to unencoded bytes may be to any part of them; a reference to an encoded extent
//!    must be to the whole extent.
//!
//! Survives: a step that is lost (its entry is never referred to, and is dropped with the next
//! one). Not here: which bytes may be referred to, and pinning them (`prune.rs`).

use orcheck_format::disk::{Extent, RankRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Rank, Result, Step};
use std::collections::BTreeMap;

/// What one rank stored in one container: its extents by their offset in the rank's stream.
type Stored = BTreeMap<u64, Extent>;

/// What one writer stored at each level.
#[derive(Debug, Default)]
pub struct Ledger {
    ranks: BTreeMap<(Level, Rank), BTreeMap<Step, Stored>>,
}

impl Ledger {
    /// Enters what a rank stored with `step`: each of its own extents as it lies in the container,
    /// with its offset in the rank's stream. Forgets what a later snapshot cannot refer to any
    /// more.
    pub fn enter(
        &mut self,
        (level, rank, step): (Level, Rank, Step),
        refers_to: &[Step],
        own: impl IntoIterator<Item = (u64, Extent)>,
    ) {
        let mut stored = Stored::new();
        for (stream_at, extent) in own {
            // Unencoded neighbours become one: a snapshot can refer to any part of it.
            if let Some((&at, last)) = stored.last_key_value()
                && last.encoding == 0
                && extent.encoding == 0
                && last.store == extent.store
                && at + last.len_bytes == stream_at
                && last.physical + last.len_bytes == extent.physical
            {
                let len_bytes = last.len_bytes + extent.len_bytes;
                let whole = Extent {
                    len_bytes,
                    stored_len_bytes: len_bytes,
                    ..last.clone()
                };
                stored.insert(at, whole);
                continue;
            }
            stored.insert(stream_at, extent);
        }
        let steps = self.ranks.entry((level, rank)).or_default();
        steps.retain(|older, _| refers_to.contains(older) || off(Switch::LedgerForgets));
        steps.insert(step, stored);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever was
    /// stored.
    pub fn check_invariants(&self) {
        for ((level, rank), steps) in &self.ranks {
            for (step, stored) in steps {
                let next = stored.iter().skip(1);
                for ((at, extent), (next_at, _)) in stored.iter().zip(next) {
                    assert!(
                        at + extent.len_bytes <= *next_at,
                        "rank {rank}, step {step}, level {level}: the bytes at {at} and {next_at} overlap"
                    );
                }
            }
        }
    }

    /// Turns the references of a rank record (the name of a step's container, an offset in that
    /// rank's stream) into places in those containers at `level`. `step_of` reads the step from a
    /// container's name.
    ///
    /// # Errors
    /// Internal for a place that this writer did not store: the container must not be used.
    pub fn resolve(
        &self,
        level: Level,
        record: &mut RankRecord,
        step_of: impl Fn(&str) -> Option<Step>,
    ) -> Result<()> {
        let rank = record.rank;
        let steps = self.ranks.get(&(level, rank));
        let extents = record.regions.iter_mut().flat_map(|region| {
            let name = region.name.as_str();
            region.extents.iter_mut().map(move |extent| (name, extent))
        });
        let mut known: Option<(String, &Stored)> = None;
        for (region, extent) in extents {
            let Some(file) = &extent.container else {
                continue;
            };
            let stored = match &known {
                Some((last, stored)) if last == file => Some(*stored),
                _ => step_of(file).and_then(|step| steps?.get(&step)),
            };
            let place = stored.and_then(|stored| resolve(stored, extent));
            let (Some(stored), Some(place)) = (stored, place) else {
                return Err(Error::internal(format!(
                    "rank {rank}, region '{region}': {} bytes at {} of its stream in {file} are not what this writer stored there at level {level}",
                    extent.len_bytes, extent.physical
                )));
            };
            if known.as_ref().is_none_or(|(last, _)| last != file) {
                known = Some((file.clone(), stored));
            }
            let container = extent.container.take();
            *extent = Extent { container, ..place };
        }
        Ok(())
    }
}

/// The place of a part of a rank's stream in a file.
fn resolve(stored: &Stored, wanted: &Extent) -> Option<Extent> {
    let (&at, found) = stored.range(..=wanted.physical).next_back()?;
    let into = wanted.physical - at;
    if found.encoding != 0 {
        let whole = into == 0 && found.len_bytes == wanted.len_bytes;
        return whole.then(|| found.clone());
    }
    let fits =
        into.checked_add(wanted.len_bytes)? <= found.len_bytes || off(Switch::ReferencePlace);
    fits.then(|| Extent {
        container: None,
        store: found.store,
        physical: found.physical + into,
        ..wanted.clone()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use orcheck_format::disk::{RegionKind, RegionRecord};
    use orcheck_format::{Dtype, ErrorKind};

    fn extent(container: Option<&str>, physical: u64, len_bytes: u64, encoding: u16) -> Extent {
        Extent {
            container: container.map(str::to_owned),
            store: 0,
            physical,
            stored_len_bytes: len_bytes,
            len_bytes,
            encoding,
            crc_stored: physical ^ len_bytes,
            crc_plain: physical ^ len_bytes,
        }
    }

    pub(in crate::flush) fn record(extents: Vec<Extent>) -> RankRecord {
        RankRecord {
            rank: Rank(3),
            stream_len_bytes: 0,
            regions: vec![RegionRecord {
                name: "u".into(),
                kind: RegionKind::Bytes,
                dtype: Dtype::Bytes,
                flags: 0,
                len_bytes: extents.iter().map(|extent| extent.len_bytes).sum(),
                local: vec![],
                global: vec![],
                offset: vec![],
                boxes: Vec::new(),
                same_as: None,
                extents,
            }],
        }
    }

    fn step_of(name: &str) -> Option<Step> {
        name.parse().ok()
    }

    // Breaks if: a place is looked up at another level, or the offset in the extent is left out.
    #[test]
    fn a_reference_becomes_a_place_of_its_level() {
        let mut ledger = Ledger::default();
        let own = [
            (0, extent(None, 8192, 4096, 0)),
            (4096, extent(None, 12288, 100, 0)),
        ];
        ledger.enter((Level::Node, Rank(3), Step(7)), &[], own);
        let own = [
            (0, extent(None, 40960, 4096, 0)),
            (4096, extent(None, 45056, 100, 0)),
        ];
        ledger.enter((Level::Global, Rank(3), Step(7)), &[], own);
        for (level, base) in [(Level::Node, 8192), (Level::Global, 40960)] {
            let mut wanted = record(vec![extent(Some("7"), 4000, 150, 0)]);
            ledger.resolve(level, &mut wanted, step_of).unwrap();
            let found = &wanted.regions[0].extents[0];
            assert_eq!((found.physical, found.len_bytes), (base + 4000, 150));
            assert_eq!(
                found.crc_plain,
                4000 ^ 150,
                "the referrer knows the CRC of the part"
            );
            assert_eq!(found.container.as_deref(), Some("7"));
        }
        for wrong in [
            extent(Some("7"), 4000, 197, 0),
            extent(Some("8"), 0, 10, 0),
            extent(Some("x"), 0, 10, 0),
        ] {
            let error = ledger.resolve(Level::Node, &mut record(vec![wrong]), step_of);
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Internal);
        }
    }

    #[test]
    fn an_encoded_extent_is_referred_to_whole_or_not_at_all() {
        let mut ledger = Ledger::default();
        let encoded = Extent {
            stored_len_bytes: 33,
            ..extent(None, 8192, 4096, 5)
        };
        ledger.enter(
            (Level::Global, Rank(3), Step(7)),
            &[],
            [(0, encoded.clone()), (4096, encoded.clone())],
        );
        let mut whole = record(vec![extent(Some("7"), 4096, 4096, 0)]);
        ledger.resolve(Level::Global, &mut whole, step_of).unwrap();
        let found = &whole.regions[0].extents[0];
        assert_eq!((found.encoding, found.stored_len_bytes), (5, 33));
        assert_eq!(found.crc_stored, encoded.crc_stored);
        for (at, len) in [(0, 4095), (1, 4095), (0, 8192)] {
            let mut part = record(vec![extent(Some("7"), at, len, 0)]);
            assert!(ledger.resolve(Level::Global, &mut part, step_of).is_err());
        }
    }

    // Breaks if: `enter` keeps everything; a long run would fill memory.
    #[test]
    fn what_nobody_refers_to_is_forgotten() {
        let mut ledger = Ledger::default();
        for step in 0..1000 {
            let needed: Vec<Step> = if step > 500 { vec![Step(500)] } else { vec![] };
            let own = [(0, extent(None, step, 10, 0))];
            ledger.enter((Level::Global, Rank(3), Step(step)), &needed, own);
        }
        let left: Vec<Step> = ledger.ranks[&(Level::Global, Rank(3))]
            .keys()
            .copied()
            .collect();
        assert_eq!(left, [Step(500), Step(999)]);
    }
}
