//! Forgeries of whole files: containers, records and notes of other steps, levels and jobs, and changed ones.

use super::attack::{
    Dice, any_step, at_other_level, one, put, put_record, rename, some_step, under_some_seal,
};
use super::world::{
    LEVELS, NEWEST, NODES, Place, RANKS, Taken, World, container_places, epoch, members,
    own_extents, record_places, resumed,
};
use orcheck_format::disk::{Claim, ContainerHeader, FileName};
use orcheck_format::{Level, crc64};

/// One container of the checkpoint is that of another one, under its name.
pub fn mixed_containers(world: &mut World, dice: &mut Dice) {
    let mut step = some_step(world, dice);
    let other = any_step(world, dice);
    let at = one(&step, dice);
    if other.step == step.step {
        return;
    }
    let mut taken: Taken = other.containers[at].clone();
    match dice.roll(3) {
        // Bytes as they are, under another name.
        0 => {
            let (bytes, _) = taken.build();
            let name = step.containers[at].file.clone();
            world.put_in(&record_places(step.level), &name, &bytes);
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
pub fn exchanged_records(world: &mut World, dice: &mut Dice) {
    let (mut step, other) = (any_step(world, dice), any_step(world, dice));
    let own = step.record_name();
    match dice.roll(3) {
        0 => {
            let bytes = world.read(&own).unwrap();
            let places = record_places(other.level);
            world.put_in(&places, &other.record_name(), &bytes);
        }
        1 => {
            let bytes = world.read(&own).unwrap();
            let name = FileName::commit(NEWEST + 20, epoch(2), step.level).to_string();
            world.put_in(&record_places(step.level), &name, &bytes);
        }
        _ => {
            rename(&mut step, NEWEST + 20, epoch(2 + dice.roll(2) as u64));
            put(world, &step, dice);
        }
    }
}

/// Files of one level in the place of those of the other one.
pub fn other_level(world: &mut World, dice: &mut Dice) {
    let step = some_step(world, dice);
    let other = at_other_level(world, &step);
    let places = record_places(other.level);
    let at = one(&step, dice);
    match dice.roll(4) {
        // The record, under its own name or under that of the other level.
        0 => {
            let bytes = world.read(&step.record_name()).unwrap();
            let name = match dice.roll(2) {
                0 => step.record_name(),
                _ => other.record_name(),
            };
            world.put_in(&places, &name, &bytes);
        }
        // The container, which has the same name.
        1 => {
            let (bytes, _) = step.containers[at].build();
            world.put_in(&places, &step.containers[at].file, &bytes);
        }
        // Both, as if they had always been there.
        2 => {
            let mut moved = step.clone();
            moved.level = other.level;
            moved.record.level = other.level;
            put(world, &moved, dice);
        }
        _ => {
            let mut moved = step.clone();
            moved.level = other.level;
            moved.record.level = other.level;
            for taken in &mut moved.containers {
                taken.header.level = other.level;
            }
            put(world, &moved, dice);
        }
    }
}

/// Genuine files of another job under the same key, as they are or in the name of this one.
pub fn files_of_other_job(world: &mut World, dice: &mut Dice) {
    let other = world.other.clone().unwrap();
    let step = some_step(world, dice);
    let theirs = other.step(step.step, step.level).clone();
    let at = one(&step, dice);
    let places = record_places(step.level);
    match dice.roll(6) {
        0 => {
            let (bytes, _) = theirs.containers[at].build();
            world.put_in(&places, &step.containers[at].file, &bytes);
        }
        1 => {
            let bytes = other.read(&step.record_name()).unwrap();
            world.put_in(&places, &step.record_name(), &bytes);
        }
        // The whole checkpoint.
        2 => {
            for (named, taken) in theirs.record.containers.iter().zip(&theirs.containers) {
                let (bytes, _) = taken.build();
                let places = container_places(step.level, named.node);
                world.put_in(&places, &taken.file, &bytes);
            }
            let bytes = other.read(&step.record_name()).unwrap();
            world.put_in(&places, &step.record_name(), &bytes);
        }
        // The whole job.
        3 => world.files = other.files.clone(),
        // In this job's name.
        4 => {
            let mut moved = theirs;
            moved.record.job = world.job.clone();
            for taken in &mut moved.containers {
                taken.header.job = world.job.clone();
            }
            put(world, &moved, dice);
        }
        _ => {
            for counter in [1, 2] {
                let notes = [
                    FileName::Claim { epoch: counter },
                    FileName::Resumed { epoch: counter },
                    FileName::Members { epoch: counter },
                ];
                let name = notes[dice.roll(3)].to_string();
                let bytes = other.read(&name).unwrap();
                world.note(&name, bytes);
            }
        }
    }
}

/// At level `peers`: who holds what, and what they hold.
pub fn replicas(world: &mut World, dice: &mut Dice) {
    let mut step = world
        .step([40, NEWEST, NEWEST][dice.roll(3)], LEVELS[0])
        .clone();
    let at = one(&step, dice);
    let holder = Place::Node((at as u32 + 1) % NODES);
    let file = step.containers[at].file.clone();
    match dice.roll(4) {
        0 => {
            step.record.containers[at].holders = vec![];
            put_record(world, &step.record, dice);
        }
        1 => {
            let neighbour = &step.containers[1 - at];
            let mut taken = neighbour.clone();
            if dice.roll(2) == 0 {
                taken.header = step.containers[at].header.clone();
                taken.file = file.clone();
            }
            world.put(holder, &file, taken.build().0);
        }
        2 => {
            let older = world.step(40, LEVELS[0]).containers[at].clone();
            world.put(holder, &file, older.build().0);
        }
        _ => {
            // The replica alone is the attacker's: the record does not say so.
            let taken = &mut step.containers[at];
            let (record, stream) = &mut taken.ranks[dice.roll(2)];
            let own = own_extents(record).next().unwrap();
            stream[dice.roll(own.stored_len_bytes as usize)] ^= 1 + dice.roll(255) as u8;
            own.crc_stored = crc64(&stream[..own.stored_len_bytes as usize]);
            world.put(holder, &file, taken.build().0);
        }
    }
}

pub fn changed_record(world: &mut World, dice: &mut Dice) {
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
    put_record(world, &step.record, dice);
}

pub fn unsealed(world: &mut World, dice: &mut Dice) {
    let step = some_step(world, dice);
    let mut record = step.record.clone();
    record.created_unix_ms += dice.roll(2) as u64;
    let places = record_places(step.level);
    world.put_in(&places, &step.record_name(), &record.encode());
}

/// A later run that resumed from long ago, or from nothing: the newest checkpoints would not count.
pub fn forged_note(world: &mut World, dice: &mut Dice) {
    let counter = 2 + dice.roll(3) as u64;
    let from = [None, Some((10, epoch(1))), Some((20, epoch(1)))][dice.roll(3)];
    let genuine = world.read(&FileName::Resumed { epoch: 2 }.to_string());
    let note = resumed(&world.job, counter, from).encode();
    let bytes = under_some_seal(note, &genuine.unwrap(), dice);
    world.note(&FileName::Resumed { epoch: counter }.to_string(), bytes);
}

/// Another run claims the epoch of the newest checkpoints: they would be those of a stranger.
pub fn forged_claim(world: &mut World, dice: &mut Dice) {
    let name = FileName::Claim { epoch: 2 }.to_string();
    let genuine = world.read(&name).unwrap();
    let mut claim = Claim::decode(&genuine).unwrap();
    claim.epoch.run.0[dice.roll(16)] ^= 1 + dice.roll(255) as u8;
    let bytes = under_some_seal(claim.encode(), &genuine, dice);
    world.note(&name, bytes);
}

/// A run that never was: newer than all, by a user and on a host that the attacker chooses.
pub fn invented_claim(world: &mut World, dice: &mut Dice) {
    let genuine = world.read(&FileName::Claim { epoch: 2 }.to_string());
    let genuine = genuine.unwrap();
    let mut claim = Claim::decode(&genuine).unwrap();
    claim.epoch = epoch(2 + dice.roll(3) as u64);
    claim.epoch.run.0[dice.roll(16)] ^= 1 + dice.roll(255) as u8;
    claim.host = "elsewhere".into();
    claim.uid += 1 + dice.roll(1000) as u32;
    let counter = claim.epoch.counter;
    let bytes = under_some_seal(claim.encode(), &genuine, dice);
    world.note(&FileName::Claim { epoch: counter }.to_string(), bytes);
}

/// Other nodes, other addresses, other keys to speak to them with; or none.
pub fn forged_members(world: &mut World, dice: &mut Dice) {
    let counter = 1 + dice.roll(3) as u64;
    let mut list = members(&world.job, counter);
    match dice.roll(5) {
        0 => list.nodes[0].addresses = vec!["tcp:192.0.2.1:1".into()],
        1 => list.nodes[1].key[dice.roll(32)] ^= 1 + dice.roll(255) as u8,
        2 => list.nodes.truncate(1),
        3 => list.nodes[0].name = "n7".into(),
        _ => list.nodes.iter_mut().for_each(|node| node.epoch += 3),
    }
    let name = FileName::Members { epoch: counter }.to_string();
    if dice.roll(6) == 0 {
        world.remove(&name);
        return;
    }
    let genuine = world.read(&FileName::Members { epoch: 2 }.to_string());
    let bytes = under_some_seal(list.encode(), &genuine.unwrap(), dice);
    world.put_in(&record_places(LEVELS[0]), &name, &bytes);
}

/// Genuine notes of one epoch in the place of those of another one, or of another kind.
pub fn exchanged_notes(world: &mut World, dice: &mut Dice) {
    let note = |kind: usize, epoch: u64| match kind {
        0 => FileName::Claim { epoch },
        1 => FileName::Resumed { epoch },
        _ => FileName::Members { epoch },
    };
    let of = |dice: &mut Dice, last: usize| (dice.roll(3), 1 + dice.roll(last) as u64);
    let ((kind, counter), (to_kind, to)) = (of(dice, 2), of(dice, 3));
    let to_kind = if dice.roll(2) == 0 { kind } else { to_kind };
    let bytes = world.read(&note(kind, counter).to_string()).unwrap();
    world.note(&note(to_kind, to).to_string(), bytes);
}

/// The container that a checkpoint refers to is gone, or another one is in its place: at one level, or at both.
pub fn removed_reference(world: &mut World, dice: &mut Dice) {
    let (older, other) = [(40, NEWEST), (20, 10), (40, 20)][dice.roll(3)];
    let (node, what) = (dice.roll(2), dice.roll(5));
    let first = LEVELS[dice.roll(2)];
    let both = dice.roll(2) == 0;
    for level in LEVELS {
        if level == first || both {
            replace_referred(world, level, node, (older, other), what);
        }
    }
}

fn replace_referred(
    world: &mut World,
    level: Level,
    node: usize,
    (older, other): (u64, u64),
    what: usize,
) {
    let older = world.step(older, level).containers[node].clone();
    let other = world.step(other, level).containers[node].clone();
    let places = record_places(level);
    match what {
        0 => {
            for place in places {
                world.files.remove(&(place, older.file.clone()));
            }
        }
        1 => world.put_in(&places, &older.file, &other.build().0),
        2 => {
            let mut taken = other;
            taken.file = older.file.clone();
            taken.header = older.header;
            world.put_in(&places, &older.file, &taken.build().0);
        }
        // Its header alone.
        3 => {
            let mut taken = older;
            taken.header.created_unix_ms += 1;
            world.put_in(&places, &taken.file, &taken.build().0);
        }
        // That of another job.
        _ => {
            let theirs = world.other.clone().unwrap();
            let theirs = &theirs.step(older.header.step, level).containers[node];
            world.put_in(&places, &theirs.file, &theirs.build().0);
        }
    }
}
