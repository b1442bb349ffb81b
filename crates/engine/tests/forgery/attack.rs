//! What somebody does who can write, knows every genuine file, and has everything but the key. Every checksum and digest
//! without a key is made to fit; of seals there are those that can be copied or invented.
//!
//! Not here: what is forged within a container (`containers.rs`) and of whole files, records and notes (`files.rs`);
//! whether anybody believes it (`main.rs`).

use super::world::{
    Form, LEVELS, NEWEST, PLACES, Place, REGION_BYTES, Step, World, container_name,
    container_places, own_extents, record_places,
};
use super::{containers, files};
use orcheck_format::disk::{CommitRecord, FileName, Manifest, seal, seal_of};
use orcheck_format::{Epoch, Level};
use std::sync::Arc;

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
pub const KINDS: [(&str, Forge); 24] = [
    ("downgrade to plain", containers::plain),
    ("downgrade to 0.1.0", containers::old_form),
    ("region of an older step", containers::older_region),
    ("swapped regions", containers::swapped_regions),
    ("swapped ranks", containers::swapped_ranks),
    ("changed declarations", containers::declarations),
    ("changed lengths", containers::lengths),
    ("plain extent", containers::plain_extent),
    ("compressed piece", containers::compressed),
    ("stripe", containers::stripes),
    ("container of another step", files::mixed_containers),
    ("record of another step", files::exchanged_records),
    ("files of another level", files::other_level),
    ("files of another job", files::files_of_other_job),
    ("changed replica", files::replicas),
    ("changed record", files::changed_record),
    ("seal taken off", files::unsealed),
    ("changed header", containers::changed_header),
    ("forged note of resumption", files::forged_note),
    ("forged claim", files::forged_claim),
    ("invented claim", files::invented_claim),
    ("forged list of members", files::forged_members),
    ("exchanged note", files::exchanged_notes),
    ("removed reference", files::removed_reference),
];

/// Those that leave all checkpoints as they are.
pub const NOTES: [&str; 5] = [
    "forged note of resumption",
    "forged claim",
    "invented claim",
    "forged list of members",
    "exchanged note",
];

/// To which directories the attacker has access.
pub fn reach(dice: &mut Dice) -> Vec<Place> {
    match dice.roll(8) {
        0..=3 => PLACES.to_vec(),
        4 => vec![PLACES[dice.roll(PLACES.len())]],
        5 => record_places(Level::Global),
        6 => record_places(LEVELS[0]),
        _ => vec![
            Place::Node(dice.roll(2) as u32),
            Place::Server(0),
            Place::Server(1),
        ],
    }
}

/// Whether a whole copy of every checkpoint lies where the attacker has no access.
pub fn leaves_a_copy(reach: &[Place]) -> bool {
    let nodes = record_places(LEVELS[0]);
    let servers = record_places(Level::Global);
    nodes.iter().any(|place| !reach.contains(place))
        || servers.iter().all(|place| !reach.contains(place))
}

/// What was changed where the attacker has no access is as it was.
pub fn confine(world: &mut World, genuine: &World, reach: &[Place]) {
    world.files.retain(|(place, _), _| reach.contains(place));
    let others = genuine.files.iter();
    let others = others.filter(|((place, _), _)| !reach.contains(place));
    world
        .files
        .extend(others.map(|(at, content)| (at.clone(), Arc::clone(content))));
}

/// A record with the best seal that can be had without the key; `genuine` is one that has a real one.
pub fn under_some_seal(bytes: Vec<u8>, genuine: &[u8], dice: &mut Dice) -> Vec<u8> {
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

pub fn any_step(world: &World, dice: &mut Dice) -> Step {
    world.steps[dice.roll(world.steps.len())].clone()
}

/// Mostly the newest, at one of its levels: that is what a restart reads.
pub fn some_step(world: &World, dice: &mut Dice) -> Step {
    match dice.roll(3) {
        0 => any_step(world, dice),
        _ => world.step(NEWEST, LEVELS[dice.roll(2)]).clone(),
    }
}

/// The same checkpoint at the other level.
pub fn at_other_level(world: &World, step: &Step) -> Step {
    let level = LEVELS.into_iter().find(|level| *level != step.level);
    world.step(step.step, level.unwrap()).clone()
}

/// Does the same to a checkpoint at one of its levels, or at both.
pub fn at_levels(
    world: &mut World,
    dice: &mut Dice,
    change: impl Fn(&World, &mut Step, &mut Dice),
) {
    let step = some_step(world, dice);
    let mut steps = vec![step];
    if dice.roll(2) == 0 {
        steps.push(at_other_level(world, &steps[0]));
    }
    let begun = dice.0;
    for mut step in steps {
        dice.0 = begun;
        change(world, &mut step, dice);
        put(world, &step, dice);
    }
}

/// Puts a checkpoint back whose containers were changed, with its record made to fit.
pub fn put(world: &mut World, step: &Step, dice: &mut Dice) {
    let mut record = step.record.clone();
    // Everywhere, so that the forged copy is found before a genuine one.
    let everywhere = dice.roll(2) == 0;
    for (named, taken) in record.containers.iter_mut().zip(&step.containers) {
        let (bytes, digest) = taken.build();
        named.len_bytes = bytes.len() as u64;
        named.manifest_digest = digest;
        let places = match everywhere {
            true => record_places(step.level),
            false => container_places(step.level, named.node),
        };
        world.put_in(&places, &taken.file, &bytes);
    }
    put_record(world, &record, dice);
}

pub fn put_record(world: &mut World, record: &CommitRecord, dice: &mut Dice) {
    let donor = any_step(world, dice).record_name();
    let own = FileName::commit(record.step, record.epoch, record.level).to_string();
    let from = match dice.roll(2) {
        0 => &own,
        _ => &donor,
    };
    let genuine = world.read(from).or_else(|| world.read(&donor));
    let bytes = under_some_seal(record.encode(), &genuine.unwrap(), dice);
    world.put_in(&record_places(record.level), &own, &bytes);
}

pub fn one(step: &Step, dice: &mut Dice) -> usize {
    dice.roll(step.containers.len())
}

pub fn evil(dice: &mut Dice) -> Vec<u8> {
    vec![0xe0 | dice.roll(16) as u8; REGION_BYTES]
}

pub fn begin_of(record: &mut orcheck_format::disk::RankRecord) -> u64 {
    let extents = own_extents(record).map(|extent| extent.physical);
    extents.min().unwrap()
}

/// Gives a checkpoint another step and epoch, in its record and its containers.
pub fn rename(step: &mut Step, number: u64, epoch: Epoch) {
    step.step = number;
    (step.record.step, step.record.epoch) = (number, epoch);
    for (named, taken) in step.record.containers.iter_mut().zip(&mut step.containers) {
        named.file = container_name(number, epoch, named.node);
        taken.file = named.file.clone();
        (taken.header.step, taken.header.epoch) = (number, epoch);
    }
}

/// Everything that is newer than some checkpoint is gone: what is left is older, and genuine.
pub fn replay(world: &mut World, dice: &mut Dice) -> u64 {
    let step = [10, 20, 30, 40][dice.roll(4)];
    let newer: Vec<String> = (world.steps.iter())
        .filter(|known| known.step > step)
        .map(Step::record_name)
        .collect();
    newer.iter().for_each(|name| world.remove(name));
    if step < 40 {
        for name in [FileName::Claim { epoch: 2 }, FileName::Resumed { epoch: 2 }] {
            world.remove(&name.to_string());
        }
    }
    step
}

/// The run that superseded a checkpoint never was: the checkpoint counts again.
pub fn strip(world: &mut World) -> u64 {
    let later: Vec<String> = (world.steps.iter())
        .filter(|known| known.record.epoch.counter == 2)
        .map(Step::record_name)
        .collect();
    later.iter().for_each(|name| world.remove(name));
    world.remove(&FileName::Resumed { epoch: 2 }.to_string());
    35
}

/// All files of a job that was never encrypted, or by 0.1.0: what an attacker may have kept.
pub fn kept_from(form: Form) -> World {
    World::new(form)
}
