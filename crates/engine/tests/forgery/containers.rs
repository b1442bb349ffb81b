//! Forgeries within containers: their header, and what their manifests say of regions and extents.

use super::attack::{Dice, at_levels, begin_of, evil, one, put, rename, some_step};
use super::world::{NEWEST, Step, World, container_name, epoch, record_places, region, store};
use orcheck_format::disk::{Compression, Encoding, Extent, Features, FileName, RegionRecord};
use orcheck_format::{Dtype, crc64};

/// A checkpoint of the attacker's own, newer than all, or in the place of one.
pub fn plain(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let newer = dice.roll(2) == 0;
        let bytes = evil(dice);
        for taken in &mut step.containers {
            taken.header.features.incompat &=
                !(Features::ENCODED | Features::ENCRYPTED | Features::SEALED);
            taken.header.encryption = None;
            for (record, stream) in &mut taken.ranks {
                let begin = begin_of(record);
                stream.clear();
                for name in ["a", "b"] {
                    let at = begin + stream.len() as u64;
                    let place = (record.rank, &region(name), at);
                    let extent = store(None, place, (Compression::None, &bytes), stream);
                    let mut regions = record.regions.iter_mut();
                    regions.find(|r| r.name == name).unwrap().extents = vec![extent];
                }
            }
        }
        for named in &mut step.record.containers {
            named.refers_to.clear();
        }
        if newer {
            rename(step, NEWEST + 10, epoch(2));
        }
    });
}

pub fn old_form(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |world, step, dice| {
        for taken in &mut step.containers {
            taken.header.features.incompat &= !Features::SEALED;
            if let Some(encryption) = &mut taken.header.encryption {
                encryption.mac = None;
            }
        }
        if dice.roll(2) == 0 {
            older_extents(world, step, dice);
        }
    });
}

pub fn older_region(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, older_extents);
}

/// A region of some rank from another checkpoint of the same run, which holds it genuinely.
fn older_extents(world: &World, step: &mut Step, dice: &mut Dice) {
    let other = match step.step {
        NEWEST => 40,
        _ => [10, 20][dice.roll(2)],
    };
    let node = one(step, dice) as u32;
    let rank = dice.roll(2);
    if other >= step.step {
        return;
    }
    let name = ["a", "b"][dice.roll(2)];
    let of = world.step(other, step.level);
    let mut from = of.containers[node as usize].clone();
    let extent: Extent = from.region(rank, name).extents[0].clone();
    let taken = &mut step.containers[node as usize];
    let file = extent
        .container
        .clone()
        .unwrap_or(container_name(other, of.record.epoch, node));
    taken.region(rank, name).extents = vec![Extent {
        container: Some(file),
        ..extent
    }];
    step.record.containers[node as usize].refers_to = vec![other];
}

pub fn swapped_regions(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let (at, rank) = (one(step, dice), dice.roll(2));
        let record = &mut step.containers[at].ranks[rank].0;
        match dice.roll(2) {
            0 => {
                let a = std::mem::take(&mut record.regions[0].extents);
                let b = std::mem::replace(&mut record.regions[1].extents, a);
                record.regions[0].extents = b;
            }
            _ => {
                record.regions[0].name = "b".into();
                record.regions[1].name = "a".into();
                record.regions.swap(0, 1);
            }
        }
    });
}

pub fn swapped_ranks(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let at = one(step, dice);
        let ranks = &mut step.containers[at].ranks;
        match dice.roll(2) {
            0 => {
                let first = std::mem::take(&mut ranks[0].0.regions);
                let second = std::mem::replace(&mut ranks[1].0.regions, first);
                ranks[0].0.regions = second;
            }
            _ => {
                let name = dice.roll(2);
                let first = ranks[0].0.regions[name].extents.clone();
                ranks[1].0.regions[name].extents = first;
            }
        }
    });
}

fn some_region<'s>(step: &'s mut Step, dice: &mut Dice) -> &'s mut RegionRecord {
    let (at, rank) = (one(step, dice), dice.roll(2));
    let name = ["a", "b"][dice.roll(2)];
    step.containers[at].region(rank, name)
}

pub fn declarations(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let other = dice.roll(3);
        let region = some_region(step, dice);
        match other {
            0 => region.dtype = Dtype::I64,
            1 => region.name = "c".into(),
            _ => region.local = vec![4, region.len_bytes / 32],
        }
    });
}

pub fn lengths(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let (clear, by) = (dice.roll(2) == 0, 8 * (1 + dice.roll(8)) as u64);
        let region = some_region(step, dice);
        if clear {
            region.extents.clear();
            region.len_bytes = 0;
            region.local = vec![0];
            return;
        }
        region.len_bytes -= by;
        region.local = vec![region.len_bytes / 8];
        let extent = &mut region.extents[0];
        extent.len_bytes -= by;
        if extent.stored_len_bytes > extent.len_bytes {
            extent.stored_len_bytes -= by;
        }
    });
}

/// An extent of the attacker's own bytes inside an encrypted container.
pub fn plain_extent(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |_, step, dice| {
        let (at, rank) = (one(step, dice), dice.roll(2));
        let (bytes, which) = (evil(dice), dice.roll(2));
        let (record, stream) = &mut step.containers[at].ranks[rank];
        let physical = begin_of(record) + stream.len() as u64;
        // In the padding: what lies behind stays where it is.
        stream.extend_from_slice(&bytes);
        record.regions[which].extents = vec![Extent {
            container: None,
            store: 0,
            physical,
            stored_len_bytes: bytes.len() as u64,
            len_bytes: bytes.len() as u64,
            encoding: 0,
            crc_stored: crc64(&bytes),
            crc_plain: crc64(&bytes),
        }];
    });
}

/// A compressed piece of somebody else, of another length, or under another encoding.
pub fn compressed(world: &mut World, dice: &mut Dice) {
    at_levels(world, dice, |world, step, dice| {
        let (at, rank) = (one(step, dice), dice.roll(2));
        let (other, what) = ([10, 20, 30, 40][dice.roll(4)], dice.roll(4));
        let bytes = evil(dice);
        let donor = &world.step(other, step.level).containers[at].ranks[rank];
        let (record, stream) = &mut step.containers[at].ranks[rank];
        let begin = begin_of(record);
        let extent = &mut record.regions[0].extents[0];
        match what {
            // The stored bytes of the same rank and region at another step, in the same place.
            0 => {
                let theirs = &donor.0.regions[0].extents[0];
                let len = theirs.stored_len_bytes as usize;
                let stored = donor.1[..len].to_vec();
                let room = len.min(stream.len());
                stream[..room].copy_from_slice(&stored[..room]);
                extent.stored_len_bytes = theirs.stored_len_bytes;
                extent.crc_stored = crc64(&stream[..room]);
            }
            // Another algorithm, or none.
            1 => {
                let encoding = Encoding::from_code(extent.encoding).unwrap();
                let compression = match encoding.compression {
                    Compression::Zstd => Compression::Lz4,
                    _ => Compression::Zstd,
                };
                extent.encoding = Encoding {
                    compression,
                    ..encoding
                }
                .code();
            }
            // As if it were shuffled.
            2 => {
                let encoding = Encoding::from_code(extent.encoding).unwrap();
                extent.encoding = Encoding {
                    shuffle_log2: 3,
                    ..encoding
                }
                .code();
            }
            // The attacker's own, compressed and not encrypted.
            _ => {
                let place = (record.rank, &region("a"), begin + stream.len() as u64);
                let own = store(None, place, (Compression::Zstd, &bytes), stream);
                record.regions[0].extents = vec![own];
            }
        }
    });
}

/// Pieces are moved into a stripe of the container.
pub fn stripes(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let (at, rank, what) = (one(&step, dice), dice.roll(2), dice.roll(3));
    let bytes = evil(dice);
    let name = FileName::parse(&step.containers[at].file).unwrap();
    let FileName::Container {
        step: number,
        epoch,
        run,
        node,
        writer,
    } = name
    else {
        return;
    };
    let stripe = FileName::Stripe {
        step: number,
        epoch,
        run,
        node,
        writer,
        stripe: 1,
    }
    .to_string();
    let taken = &mut step.containers[at];
    taken.stripes = vec![stripe.clone()];
    if dice.roll(2) == 0 {
        taken.header.features.incompat |= Features::STRIPED;
    }
    let (record, stream) = &mut taken.ranks[rank];
    let begin = begin_of(record);
    let extent = &mut record.regions[0].extents[0];
    let in_stripe = match what {
        // The same bytes, at the same offset or at the beginning.
        0 | 1 => {
            let own = (extent.physical - begin) as usize;
            let stored = stream[own..own + extent.stored_len_bytes as usize].to_vec();
            let before = if what == 0 { extent.physical } else { 0 };
            extent.physical = before;
            let mut file = vec![0; before as usize];
            file.extend_from_slice(&stored);
            file
        }
        _ => {
            *extent = Extent {
                physical: 0,
                stored_len_bytes: bytes.len() as u64,
                len_bytes: bytes.len() as u64,
                encoding: 0,
                crc_stored: crc64(&bytes),
                crc_plain: crc64(&bytes),
                ..extent.clone()
            };
            bytes
        }
    };
    extent.store = 1;
    world.put_in(&record_places(step.level), &stripe, &in_stripe);
    put(world, &step, dice);
}

/// A field of the header alone: its CRC fits, and the trailer's copy of that.
pub fn changed_header(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let at = one(&step, dice);
    let header = &mut step.containers[at].header;
    match dice.roll(5) {
        0 => header.features.compat ^= 1 << dice.roll(64),
        1 => header.created_unix_ms += 1,
        2 => header.features.incompat ^= Features::REFERENCES,
        3 => {
            if let Some(encryption) = &mut header.encryption {
                encryption.salt[dice.roll(32)] ^= 1;
            }
        }
        _ => {
            if let Some(encryption) = &mut header.encryption {
                encryption.key_check[dice.roll(16)] ^= 1;
            }
        }
    }
    // The record stays genuine: its digest is of the manifest, which did not change.
    let (bytes, _) = step.containers[at].build();
    let places = record_places(step.level);
    world.put_in(&places, &step.containers[at].file, &bytes);
}
