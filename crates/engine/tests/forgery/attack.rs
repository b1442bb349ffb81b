//! What somebody does who can write everywhere, knows every genuine file, and has everything but the key. Every
//! checksum and digest without a key is made to fit; of seals there are those that can be copied or invented.
//!
//! Not here: whether anybody believes it (`main.rs`).

use crate::world::{
    Form, LEVEL, RANKS, Step, Taken, World, container_name, epoch, own_extents, region, resumed,
    store,
};
use orcheck_engine::commit::name_of;
use orcheck_format::container::{ContainerHeader, Features};
use orcheck_format::seal::{seal, seal_of};
use orcheck_format::{Claim, CommitRecord, Dtype, Epoch, Extent, FileName, Manifest, crc64};

/// Small random numbers, the same for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

/// Forges something in a job's directory.
pub type Forge = fn(&mut World, &mut Dice);

/// The kinds of forgeries.
pub const KINDS: [(&str, Forge); 16] = [
    ("downgrade to plain", plain),
    ("downgrade to 0.1.0", old_form),
    ("region of an older step", older_region),
    ("swapped regions", swapped_regions),
    ("swapped ranks", swapped_ranks),
    ("changed declarations", declarations),
    ("changed lengths", lengths),
    ("plain extent", plain_extent),
    ("container of another step", mixed_containers),
    ("record of another step", exchanged_records),
    ("changed record", changed_record),
    ("seal taken off", unsealed),
    ("changed header", changed_header),
    ("forged note of resumption", forged_note),
    ("forged claim", forged_claim),
    ("removed reference", removed_reference),
];

/// A record with the best seal that can be had without the key; `genuine` is one that has a real one.
fn reseal(record: &CommitRecord, genuine: &[u8], dice: &mut Dice) -> Vec<u8> {
    under_some_seal(record.encode(), genuine, dice)
}

fn under_some_seal(bytes: Vec<u8>, genuine: &[u8], dice: &mut Dice) -> Vec<u8> {
    let copied = seal_of(genuine).unwrap();
    match (dice.roll(4), copied) {
        (0, _) | (_, None) => bytes,
        (1, Some(copied)) => seal(&bytes, copied.key_id, |_| [dice.roll(256) as u8; 32]).unwrap(),
        (2, Some(copied)) => {
            // A MAC without a key: over the right bytes, but anybody's.
            seal(&bytes, copied.key_id, Manifest::digest).unwrap()
        }
        (_, Some(copied)) => seal(&bytes, copied.key_id, |_| copied.mac).unwrap(),
    }
}

fn any_step(world: &World, dice: &mut Dice) -> Step {
    world.steps[dice.roll(world.steps.len())].clone()
}

/// Mostly the newest: that is what a restart reads.
fn some_step(world: &World, dice: &mut Dice) -> Step {
    match dice.roll(3) {
        0 => any_step(world, dice),
        _ => world.steps.last().unwrap().clone(),
    }
}

/// Puts a checkpoint back whose containers were changed, with its record made to fit.
fn put(world: &mut World, step: &Step, dice: &mut Dice) {
    let mut record = step.record.clone();
    for (named, taken) in record.containers.iter_mut().zip(&step.containers) {
        let (bytes, digest) = taken.build();
        named.len_bytes = bytes.len() as u64;
        named.manifest_digest = digest;
        world.files.insert(taken.file.clone(), bytes);
    }
    put_record(world, &record, dice);
}

fn put_record(world: &mut World, record: &CommitRecord, dice: &mut Dice) {
    let donor = any_step(world, dice).record;
    let own = name_of(record.step, record.epoch, record.level);
    let donor = name_of(donor.step, donor.epoch, donor.level);
    let from = match dice.roll(2) {
        0 => &own,
        _ => &donor,
    };
    let genuine = world.files.get(from).or(world.files.get(&donor)).cloned();
    let bytes = reseal(record, &genuine.unwrap(), dice);
    world.files.insert(own, bytes);
}

fn one(step: &mut Step, dice: &mut Dice) -> usize {
    dice.roll(step.containers.len())
}

fn evil(dice: &mut Dice) -> Vec<u8> {
    vec![0xe0 | dice.roll(16) as u8; 256]
}

/// A checkpoint of the attacker's own, newer than all, or in the place of one.
fn plain(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let newer = dice.roll(2) == 0;
    let bytes = evil(dice);
    for taken in &mut step.containers {
        taken.header.features.incompat &=
            !(Features::ENCODED | Features::ENCRYPTED | Features::SEALED);
        taken.header.encryption = None;
        for (record, stream) in &mut taken.ranks {
            let begin = own_extents(record)
                .map(|extent| extent.physical)
                .min()
                .unwrap();
            stream.clear();
            for name in ["a", "b"] {
                let at = begin + stream.len() as u64;
                let extent = store(None, (record.rank, &region(name), at), &bytes, stream);
                record
                    .regions
                    .iter_mut()
                    .find(|r| r.name == name)
                    .unwrap()
                    .extents = vec![extent];
            }
        }
    }
    for named in &mut step.record.containers {
        named.refers_to.clear();
    }
    if newer {
        rename(&mut step, 60, epoch(2));
    }
    put(world, &step, dice);
}

/// Gives a checkpoint another step and epoch, in its record and its containers.
fn rename(step: &mut Step, number: u64, epoch: Epoch) {
    step.step = number;
    (step.record.step, step.record.epoch) = (number, epoch);
    for (named, taken) in step.record.containers.iter_mut().zip(&mut step.containers) {
        named.file = container_name(number, epoch, named.node);
        taken.file = named.file.clone();
        (taken.header.step, taken.header.epoch) = (number, epoch);
    }
}

fn old_form(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    for taken in &mut step.containers {
        taken.header.features.incompat &= !Features::SEALED;
        if let Some(encryption) = &mut taken.header.encryption {
            encryption.mac = None;
        }
    }
    if dice.roll(2) == 0 {
        older_extents(world, &mut step, dice);
    }
    put(world, &step, dice);
}

fn older_region(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    older_extents(world, &mut step, dice);
    put(world, &step, dice);
}

/// Region "b" of some rank from another checkpoint of the same run, which holds it genuinely.
fn older_extents(world: &World, step: &mut Step, dice: &mut Dice) {
    let other = match step.step {
        50 => 40,
        _ => [10, 20][dice.roll(2)],
    };
    let node = one(step, dice) as u32;
    let rank = dice.roll(2);
    if other >= step.step {
        return;
    }
    let name = ["a", "b"][dice.roll(2)];
    let of = world
        .steps
        .iter()
        .find(|known| known.step == other)
        .unwrap();
    let from = &of.containers[node as usize];
    let mut from = from.clone();
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

fn swapped_regions(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let (at, rank) = (one(&mut step, dice), dice.roll(2));
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
    put(world, &step, dice);
}

fn swapped_ranks(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let at = one(&mut step, dice);
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
    put(world, &step, dice);
}

fn declarations(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let (at, rank) = (one(&mut step, dice), dice.roll(2));
    let name = ["a", "b"][dice.roll(2)];
    let other = dice.roll(3);
    let region = step.containers[at].region(rank, name);
    match other {
        0 => region.dtype = Dtype::I64,
        1 => region.name = "c".into(),
        _ => region.local = vec![4, region.len_bytes / 32],
    }
    put(world, &step, dice);
}

fn lengths(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let (at, rank) = (one(&mut step, dice), dice.roll(2));
    let region = step.containers[at].region(rank, "a");
    match dice.roll(2) {
        0 => {
            let by = 8 * (1 + dice.roll(8)) as u64;
            region.len_bytes -= by;
            region.local = vec![region.len_bytes / 8];
            region.extents[0].len_bytes -= by;
            region.extents[0].stored_len_bytes -= by;
        }
        _ => {
            region.extents.clear();
            region.len_bytes = 0;
            region.local = vec![0];
        }
    }
    put(world, &step, dice);
}

/// An extent of the attacker's own bytes inside an encrypted container.
fn plain_extent(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let (at, rank) = (one(&mut step, dice), dice.roll(2));
    let bytes = evil(dice);
    let (record, stream) = &mut step.containers[at].ranks[rank];
    let extent = own_extents(record).next().unwrap();
    let length = bytes.len();
    // The same place: what lies behind stays where it is.
    stream[..length].copy_from_slice(&bytes);
    extent.encoding = 0;
    extent.stored_len_bytes = extent.len_bytes;
    (extent.crc_stored, extent.crc_plain) = (crc64(&bytes), crc64(&bytes));
    put(world, &step, dice);
}

/// One container of the checkpoint is that of another one, under its name.
fn mixed_containers(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let other = any_step(world, dice);
    let at = one(&mut step, dice);
    if other.step == step.step {
        return;
    }
    let mut taken: Taken = other.containers[at].clone();
    match dice.roll(3) {
        // Bytes as they are, under another name.
        0 => {
            let (bytes, _) = taken.build();
            world.files.insert(step.containers[at].file.clone(), bytes);
        }
        1 => {
            taken.file = step.containers[at].file.clone();
            taken.header = ContainerHeader {
                encryption: taken.header.encryption,
                ..step.containers[at].header.clone()
            };
            step.containers[at] = taken;
            step.record.containers[at].refers_to = other.record.containers[at].refers_to.clone();
            put(world, &step, dice);
        }
        _ => {
            taken.file = step.containers[at].file.clone();
            taken.header = step.containers[at].header.clone();
            step.containers[at] = taken;
            put(world, &step, dice);
        }
    }
}

/// A record takes the place of another one, as it is or rewritten.
fn exchanged_records(world: &mut World, dice: &mut Dice) {
    let (mut step, other) = (any_step(world, dice), any_step(world, dice));
    let own = name_of(step.record.step, step.record.epoch, LEVEL);
    match dice.roll(3) {
        0 => {
            let theirs = name_of(other.record.step, other.record.epoch, LEVEL);
            let bytes = world.files[&own].clone();
            world.files.insert(theirs, bytes);
        }
        1 => {
            let bytes = world.files[&own].clone();
            world.files.insert(name_of(70, epoch(2), LEVEL), bytes);
        }
        _ => {
            rename(&mut step, 70, epoch(2 + dice.roll(2) as u64));
            put(world, &step, dice);
        }
    }
}

fn changed_record(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let record = &mut step.record;
    match dice.roll(4) {
        0 => record.containers[0].manifest_digest[dice.roll(32)] ^= 1,
        1 => record.created_unix_ms += 1,
        2 => {
            record.world_size = RANKS / 2;
            record.containers.pop();
        }
        _ => record.placement_generation += 1 + dice.roll(8) as u64,
    }
    let record = record.clone();
    put_record(world, &record, dice);
}

fn unsealed(world: &mut World, dice: &mut Dice) {
    let step = some_step(world, dice);
    let name = name_of(step.record.step, step.record.epoch, LEVEL);
    let mut record = step.record.clone();
    record.created_unix_ms += dice.roll(2) as u64;
    world.files.insert(name, record.encode());
}

/// A field of the header alone: its CRC fits, and the trailer's copy of that.
fn changed_header(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let at = one(&mut step, dice);
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
    world.files.insert(step.containers[at].file.clone(), bytes);
}

/// A later run that resumed from long ago, or from nothing: the newest checkpoints would not count.
fn forged_note(world: &mut World, dice: &mut Dice) {
    let counter = 2 + dice.roll(3) as u64;
    let from = [None, Some((10, epoch(1))), Some((20, epoch(1)))][dice.roll(3)];
    let genuine = world.files[&FileName::Resumed { epoch: 2 }.to_string()].clone();
    let bytes = under_some_seal(resumed(counter, from).encode(), &genuine, dice);
    world
        .files
        .insert(FileName::Resumed { epoch: counter }.to_string(), bytes);
}

/// Another run claims the epoch of the newest checkpoints: they would be those of a stranger.
fn forged_claim(world: &mut World, dice: &mut Dice) {
    let name = FileName::Claim { epoch: 2 }.to_string();
    let genuine = world.files[&name].clone();
    let mut claim = Claim::decode(&genuine).unwrap();
    claim.epoch.run.0[dice.roll(16)] ^= 1 + dice.roll(255) as u8;
    let bytes = under_some_seal(claim.encode(), &genuine, dice);
    world.files.insert(name, bytes);
}

/// The container that a checkpoint refers to is gone, or another one is in its place.
fn removed_reference(world: &mut World, dice: &mut Dice) {
    let (older, other) = [(40, 50), (20, 10), (40, 20)][dice.roll(3)];
    let node = dice.roll(2);
    let at = |step: u64| {
        world
            .steps
            .iter()
            .position(|known| known.step == step)
            .unwrap()
    };
    let (older, other) = (at(older), at(other));
    let name = world.steps[older].containers[node].file.clone();
    match dice.roll(3) {
        0 => {
            world.files.remove(&name);
        }
        1 => {
            let (bytes, _) = world.steps[other].containers[node].build();
            world.files.insert(name, bytes);
        }
        _ => {
            let mut taken = world.steps[other].containers[node].clone();
            taken.file = name.clone();
            taken.header = world.steps[older].containers[node].header.clone();
            let (bytes, _) = taken.build();
            world.files.insert(name, bytes);
        }
    }
}

/// Everything that is newer than some checkpoint is gone: what is left is older, and genuine.
pub fn replay(world: &mut World, dice: &mut Dice) -> u64 {
    let keep = dice.roll(world.steps.len() - 1);
    for step in &world.steps[keep + 1..] {
        world
            .files
            .remove(&name_of(step.record.step, step.record.epoch, LEVEL));
    }
    let step = &world.steps[keep];
    if step.record.epoch.counter == 1 {
        for name in [FileName::Claim { epoch: 2 }, FileName::Resumed { epoch: 2 }] {
            world.files.remove(&name.to_string());
        }
    }
    step.step
}

/// All files of a job that was never encrypted, or by 0.1.0: what an attacker may have kept.
pub fn kept_from(form: Form) -> World {
    World::new(form)
}
