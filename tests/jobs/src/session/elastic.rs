//! Restarts with another number of ranks and another decomposition: global arrays, lists and what
//! is the same everywhere.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, make_dir, warnings};
use crate::trial::{Random, seed};
use crate::{Test, session_tests};
use orcheck_client::{OPTIONAL, OVERLAP, Restarted, SAME, Session};
use orcheck_format::{Dtype, ErrorKind, Level, Step};
use orcheck_io::memory::{Span, copy_out, fill_span};
use orcheck_testing::Scratch;
use std::path::Path;

pub(crate) mod parts;

use parts::{Field, Items, Part, cut, restores, stores, stores_lists, with_ranks};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    arrays_are_redistributed_to_any_number_of_ranks,
    the_same_ranks_may_cut_an_array_otherwise,
    block_cyclic_parts_are_boxes_of_one_region,
    encoded_and_incremental_checkpoints_are_redistributed,
    lists_are_redistributed_and_every_item_goes_to_one_rank,
    lists_follow_the_order_of_ranks_and_not_of_nodes,
    a_damaged_step_is_replaced_by_an_older_one_with_the_same_lists,
    a_list_that_a_rank_does_not_protect_is_named,
    what_is_the_same_everywhere_is_read_by_any_number_of_ranks,
    memory_of_the_pool_may_be_the_same_everywhere,
    an_array_that_is_the_same_everywhere_is_no_part_of_another,
    overlapping_parts_are_refused_unless_flagged,
    elements_that_nobody_stored_are_named,
    regions_that_need_their_ranks_are_named_with_what_to_call,
    a_damaged_part_costs_every_rank_the_step,
    a_node_alone_has_too_little_for_other_ranks_and_says_so,
    four_nodes_become_three_and_two_with_a_disk_lost,
    a_run_on_other_ranks_is_continued_on_yet_others,
];

// Breaks if: an element comes from another place, or one rank takes what its number stored.
fn arrays_are_redistributed_to_any_number_of_ranks() {
    let mut random = Random::new(seed() ^ 0xe1a5);
    for (global, writers, readers) in [
        (&[100_000][..], 3, 1),
        (&[100_000], 1, 4),
        (&[300, 400], 4, 3),
        (&[40, 50, 60], 2, 5),
        (&[7, 5, 3, 4, 6, 5], 5, 3),
        (&[3, 0, 8], 2, 3),
    ] {
        let scratch = Scratch::new("elastic");
        let job = Job::new(scratch.path(), writers, 2, writers % 2 == 0);
        stores(&job, global, &cut(global, writers, &mut random), &[1, 2], 0);
        for _ in 0..2 {
            let parts = cut(global, readers, &mut random);
            let told = restores(&with_ranks(&job, readers), global, &parts, 2, 0);
            assert!(told.is_empty(), "{told:?}");
        }
    }
}

fn the_same_ranks_may_cut_an_array_otherwise() {
    let mut random = Random::new(seed() ^ 0x5a4e);
    let global = &[120, 130][..];
    let scratch = Scratch::new("otherwise");
    let job = Job::new(scratch.path(), 3, 1, true);
    let parts = cut(global, 3, &mut random);
    stores(&job, global, &parts, &[1], 0);
    // One rank keeps its part.
    let mut others = parts.clone();
    others.swap(0, 2);
    for parts in [others, cut(global, 3, &mut random), parts] {
        let told = restores(&job, global, &parts, 1, 0);
        assert!(told.is_empty(), "{told:?}");
    }
}

/// Protects rows of 40, dealt in blocks of `block` rows in turn, and returns the memory of each.
pub fn protect_blocks(
    session: &mut Session,
    (rank, ranks): (u64, u64),
    (rows, block): (u64, u64),
) -> Vec<Field> {
    let firsts = (rank * block..rows).step_by((ranks * block) as usize);
    let part = |first: u64| Part {
        offset: vec![first, 0],
        local: vec![block.min(rows - first), 40],
    };
    let mut fields: Vec<Field> = firsts
        .map(|first| Field::new(&[rows, 40], &part(first), first % 3))
        .collect();
    if fields.is_empty() {
        let nothing = Part {
            offset: vec![0, 0],
            local: vec![0, 40],
        };
        fields.push(Field::new(&[rows, 40], &nothing, 0));
    }
    let boxes = fields.iter_mut();
    let boxes = boxes.map(|field| (Span::from_mut(&mut field.memory), field.layout.clone()));
    session.protect_boxes("u", boxes.collect(), 0).unwrap();
    fields
}

// Breaks if: boxes are stored or read in another order, or one of them in the place of another.
fn block_cyclic_parts_are_boxes_of_one_region() {
    let mut random = Random::new(seed() ^ 0xb10c);
    let scratch = Scratch::new("boxes");
    let (writers, rows) = (3, 500);
    let job = Job::new(scratch.path(), writers as u32, 2, true).with("incremental = 'auto'");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in 1..=2 {
            let place = (u64::from(rank), writers);
            let mut fields = protect_blocks(&mut session, place, (rows, 7));
            for field in &mut fields {
                let filled = Field::new(&[rows, 40], &field.part, field.part.offset[0] % 3);
                field.memory.copy_from_slice(&filled.fill(step).memory);
            }
            session.checkpoint(step).unwrap();
            crate::support::wait_for_both_levels(&mut session, step);
        }
        session.close(LONG).unwrap();
    });
    // The same boxes, others, more ranks than blocks, and one box each.
    for (readers, block) in [(3, 7), (3, 4), (1, 7), (5, 11), (6, 100)] {
        with_ranks(&job, readers as u32).run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 2);
            assert_eq!(session.stored("u").unwrap().global, [rows, 40]);
            let place = (u64::from(rank), readers);
            let fields = protect_blocks(&mut session, place, (rows, block));
            session.restart().unwrap();
            assert!(fields.iter().all(|field| field.is(2)), "{readers} {block}");
            session.close(LONG).unwrap();
        });
    }
    let parts = cut(&[rows, 40], 4, &mut random);
    restores(&with_ranks(&job, 4), &[rows, 40], &parts, 2, 0);
}

#[allow(clippy::disallowed_methods)]
pub(crate) fn key(root: &Path) -> String {
    make_dir(root);
    let path = root.join("key");
    std::fs::write(&path, "ab".repeat(32)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).unwrap();
    format!(
        "encrypt = 'aes-256-gcm'\nencrypt_key = 'file:{}'",
        path.display()
    )
}

/// Whether extents of the last step's containers are encoded, and whether some lie in older ones.
fn extents_of(root: &Path) -> (bool, bool) {
    let (mut packed, mut older, mut seen) = (false, false, false);
    for dir in ["ost0/job", "ost1/job"].map(|dir| root.join(dir)) {
        let names = disk::names(&dir);
        let is_last = |name: &&String| name.starts_with("s000000000003") && name.ends_with(".orc");
        for name in names.iter().filter(is_last) {
            for extent in crate::anatomy::extents(&disk::read(&dir.join(name))) {
                seen = true;
                packed |= extent.encoding != 0;
                older |= extent.container.is_some();
            }
        }
    }
    assert!(seen, "{} holds no container of step 3", root.display());
    (packed, older)
}

fn encoded_and_incremental_checkpoints_are_redistributed() {
    let mut random = Random::new(seed() ^ 0xc0de);
    let global = &[260, 300][..];
    for (encrypted, lines) in [
        (false, "compress = 'zstd'"),
        (true, ""),
        (true, "compress = 'lz4'"),
        (false, "incremental = 'auto'"),
        (true, "incremental = 'auto'\ncompress = 'zstd'"),
    ] {
        let scratch = Scratch::new("encoded");
        let mut job = Job::new(scratch.path(), 4, 2, true).with(lines);
        if encrypted {
            job = job.with(&key(scratch.path()));
        }
        let parts = cut(global, 4, &mut random);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut field = Field::new(global, &parts[rank as usize], 0).fill(3);
            for step in 1..=3 {
                // The last step changes rank 0 only: the others refer to older containers.
                if rank == 0 {
                    field = Field::new(global, &parts[0], 0).fill(step);
                }
                field.protect(&mut session, 0);
                session.checkpoint(step).unwrap();
                crate::support::wait_for_both_levels(&mut session, step);
            }
            session.close(LONG).unwrap();
        });
        let (packed, older) = extents_of(scratch.path());
        assert_eq!(packed, encrypted || lines.contains("compress"), "{lines}");
        assert_eq!(older, lines.contains("incremental"), "{lines}");
        for readers in [1, 3, 6] {
            let parts = cut(global, readers, &mut random);
            let told = restores(&with_ranks(&job, readers), global, &parts, 3, 0);
            assert!(told.is_empty(), "{told:?}");
        }
    }
}

// ---- lists -----------------------------------------------------------------------------------

// Breaks if: items are lost between ranks, come twice or in another order.
fn lists_are_redistributed_and_every_item_goes_to_one_rank() {
    let mut random = Random::new(seed() ^ 0x1157);
    for items in [
        &[5000, 0, 12_345][..],
        &[0, 0],
        &[1],
        &[0, 7],
        &[3000, 3000, 1, 2],
    ] {
        let scratch = Scratch::new("lists");
        let total: u64 = items.iter().sum();
        let job = Job::new(scratch.path(), items.len() as u32, 1, false);
        stores_lists(&job, items);
        for readers in [1, 2, items.len() as u32, 5] {
            // As the library deals them, and in any other way.
            for even in [true, false] {
                let mut left = total;
                let mut deal: Vec<u64> = (1..readers)
                    .map(|_| {
                        let some = random.below(left + 1);
                        left -= some;
                        some
                    })
                    .collect();
                deal.push(left);
                let same_ranks = readers as usize == items.len();
                with_ranks(&job, readers).run(|session, rank| {
                    let mut session = session.unwrap();
                    session.find().unwrap();
                    let stored = session.stored("x").unwrap();
                    assert_eq!(stored.global, [total, 3]);
                    let share = match same_ranks {
                        true => items[rank as usize],
                        false => {
                            total / u64::from(readers)
                                + u64::from(u64::from(rank) < total % u64::from(readers))
                        }
                    };
                    assert_eq!(stored.local, [share, 3]);
                    let (first, mine) = match even {
                        true => (stored.offset[0], stored.local[0]),
                        false => (deal[..rank as usize].iter().sum(), deal[rank as usize]),
                    };
                    let mut list = Items::new(mine);
                    list.protect(&mut session, 0);
                    session.restart().unwrap();
                    let expected = Items::from(first, mine);
                    assert!(list == expected, "{first}: {mine} of {items:?}");
                    session.close(LONG).unwrap();
                });
            }
        }
        // Too many or too few together.
        for wrong in [total + 1, total.saturating_sub(1)] {
            if wrong == total {
                continue;
            }
            with_ranks(&job, 2).run(|session, rank| {
                let mut session = session.unwrap();
                session.find().unwrap();
                let mut list = Items::new(if rank == 0 { wrong } else { 0 });
                list.protect(&mut session, 0);
                let error = refused(session.restart());
                let room = format!("the ranks have room for {wrong} together");
                says(&error, ErrorKind::Invalid, &["list 'x' has", &room]);
            });
        }
    }
}

// Breaks if: the parts are taken in the order of containers.
fn lists_follow_the_order_of_ranks_and_not_of_nodes() {
    let scratch = Scratch::new("placed");
    let job = Job::new(scratch.path(), 5, 2, false).placed(&["a", "b", "a", "b", "a"]);
    let items = [100, 20, 3, 400, 50];
    stores_lists(&job, &items);
    for readers in [1, 5, 3] {
        let job = match readers {
            5 => job.clone(),
            readers => with_ranks(&job, readers),
        };
        job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            let last = rank + 1 == readers;
            let mut list = Items::new(if last { 573 } else { 0 });
            list.protect(&mut session, 0);
            session.restart().unwrap();
            let expected = if last {
                Items::from(0, 573)
            } else {
                Items::new(0)
            };
            assert!(list == expected);
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: what the ranks told each other is forgotten with the step that is damaged.
fn a_damaged_step_is_replaced_by_an_older_one_with_the_same_lists() {
    for readers in [2, 3] {
        let scratch = Scratch::new("older");
        let job = Job::new(scratch.path(), 2, 1, false);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            for step in [1, 2] {
                let mut list = Items::from(u64::from(rank) * 5000, 5000);
                list.protect(&mut session, 0);
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        crate::session::mistakes::damage_newest(&scratch);
        with_ranks(&job, readers).run(|session, _| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 2);
            let stored = session.stored("x").unwrap();
            let mut list = Items::new(stored.local[0]);
            list.protect(&mut session, 0);
            assert_eq!(session.try_restart().unwrap(), Restarted::Step(Step(1)));
            assert!(list == Items::from(stored.offset[0], stored.local[0]));
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: lists are not compared; the items of the rank that forgot one would be missing.
fn a_list_that_a_rank_does_not_protect_is_named() {
    let scratch = Scratch::new("lacking");
    let job = Job::new(scratch.path(), 3, 1, true);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let (mut list, mut other) = (Items::from(0, 5), vec![0; 8]);
        let span = Span::from_mut(&mut other);
        session.protect("other", span, Dtype::U8, 0).unwrap();
        if rank != 1 {
            list.protect(&mut session, 0);
        }
        let error = refused(session.checkpoint(1));
        let what = "not all ranks protect the same lists";
        says(&error, ErrorKind::Invalid, &[what, "with 0 items"]);
    });
    stores_lists(&job, &[10, 20, 30]);
    for (lacking, ranks) in [(0, 3), (2, 3), (1, 2)] {
        with_ranks(&job, ranks).run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            let mut list = Items::new(session.stored("x").unwrap().local[0]);
            let mut other = vec![0; 8];
            let span = Span::from_mut(&mut other);
            session.protect("other", span, Dtype::U8, OPTIONAL).unwrap();
            if rank != lacking {
                list.protect(&mut session, 0);
            }
            let error = refused(session.restart());
            let what = format!("list 'id' is not protected on rank {lacking}");
            says(&error, ErrorKind::Invalid, &[&what]);
        });
    }
}

// Breaks if: it is taken for a part; those of two nodes would overlap.
fn an_array_that_is_the_same_everywhere_is_no_part_of_another() {
    let scratch = Scratch::new("same array");
    let job = Job::new(scratch.path(), 4, 1, false).nodes(2);
    let global = &[30, 20][..];
    let whole = Part {
        offset: vec![0, 0],
        local: global.to_vec(),
    };
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut field = Field::new(global, &whole, 0).fill(1);
        field.protect(&mut session, SAME);
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    for readers in [3, 1] {
        with_ranks(&job, readers).run(|session, _| {
            let mut session = session.unwrap();
            session.find().unwrap();
            assert_eq!(session.stored("u").unwrap().local, global);
            let mut field = Field::new(global, &whole, 0);
            field.protect(&mut session, SAME);
            session.restart().unwrap();
            assert!(field.is(1));
            session.close(LONG).unwrap();
        });
    }
}

fn what_is_the_same_everywhere_is_read_by_any_number_of_ranks() {
    let scratch = Scratch::new("same");
    let job = Job::new(scratch.path(), 4, 1, true).nodes(2);
    let table: Vec<u8> = (0..200_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut mine = table.clone();
        session
            .protect("table", Span::from_mut(&mut mine), Dtype::U8, SAME)
            .unwrap();
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    for readers in [1, 3, 7] {
        with_ranks(&job, readers).run(|session, _| {
            let mut session = session.unwrap();
            session.find().unwrap();
            assert_eq!(session.stored("table").unwrap().len_bytes, 200_000);
            let (mut mine, mut new) = (vec![0; 200_000], vec![9; 10]);
            session
                .protect("table", Span::from_mut(&mut mine), Dtype::U8, SAME)
                .unwrap();
            session
                .protect("new", Span::from_mut(&mut new), Dtype::U8, OPTIONAL)
                .unwrap();
            assert_eq!(session.restart().unwrap(), 1);
            assert!(mine == table && new == [9; 10]);
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: what several ranks share goes through the pool also into the pool.
fn memory_of_the_pool_may_be_the_same_everywhere() {
    let scratch = Scratch::new("pool");
    let job = Job::new(scratch.path(), 3, 1, true);
    for step in [0, 1] {
        job.run(|session, _| {
            let mut session = session.unwrap();
            let memory = session.alloc(100_000).unwrap();
            if step == 1 {
                assert_eq!(session.find().unwrap(), 1);
            } else {
                fill_span(memory, &[7; 100_000]);
            }
            session.protect("table", memory, Dtype::U8, SAME).unwrap();
            if step == 1 {
                assert_eq!(session.restart().unwrap(), 1);
                assert!(copy_out(memory) == [7; 100_000]);
            } else {
                session.checkpoint(1).unwrap();
            }
            session.close(LONG).unwrap();
        });
    }
}

// ---- what cannot be ----------------------------------------------------------------------------

/// Two parts with a row in common, on which the ranks disagree: what each stores there says who.
fn store_ghosts(job: &Job, flags: u32) {
    let global = &[20, 50][..];
    let parts = with_ghosts();
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let step = 1 + u64::from(rank);
        let mut field = Field::new(global, &parts[rank as usize], 0).fill(step);
        field.protect(&mut session, flags);
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
}

fn with_ghosts() -> Vec<Part> {
    let part = |first, rows| Part {
        offset: vec![first, 0],
        local: vec![rows, 50],
    };
    vec![part(0, 11), part(10, 10)]
}

// Breaks if: one of the copies is taken without a word, or with the flag that of a higher rank.
fn overlapping_parts_are_refused_unless_flagged() {
    let global = &[20, 50][..];
    let whole = Part {
        offset: vec![0, 0],
        local: global.to_vec(),
    };
    for (stored, wanted) in [(0, 0), (0, OVERLAP), (OVERLAP, 0)] {
        let scratch = Scratch::new("overlap");
        let job = Job::new(scratch.path(), 2, 1, false);
        store_ghosts(&job, stored);
        with_ranks(&job, 1).run(|session, _| {
            let mut session = session.unwrap();
            session.find().unwrap();
            let mut field = Field::new(global, &whole, 0);
            field.protect(&mut session, wanted);
            if (stored, wanted) == (0, 0) {
                let error = refused(session.restart());
                let what = "ranks 0 and 1 both stored some of its elements";
                says(&error, ErrorKind::Invalid, &[what, "ORC_OVERLAP"]);
                return;
            }
            session.restart().unwrap();
            let (upper, lower) = field.memory.split_at(11 * 50 * 8);
            let of = |step| Field::new(global, &whole, 0).fill(step).memory;
            assert!(upper == &of(1)[..11 * 50 * 8] && lower == &of(2)[11 * 50 * 8..]);
            session.close(LONG).unwrap();
        });
    }
}

fn elements_that_nobody_stored_are_named() {
    let global = &[20, 50][..];
    let scratch = Scratch::new("hole");
    let job = Job::new(scratch.path(), 2, 1, false);
    let mut parts = with_ghosts();
    parts[1].offset[0] = 12;
    parts[1].local[0] = 8;
    stores(&job, global, &parts, &[1], 0);
    with_ranks(&job, 1).run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let whole = Part {
            offset: vec![0, 0],
            local: global.to_vec(),
        };
        let mut field = Field::new(global, &whole, 0);
        field.protect(&mut session, 0);
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &["no rank stored elements [11:12, 0:50] of array 'u'"],
        );
    });
}

fn regions_that_need_their_ranks_are_named_with_what_to_call() {
    let scratch = Scratch::new("alone");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 5, 20);
        state.protect(&mut session).unwrap();
        let mut items = Items::from(0, 4);
        items.protect(&mut session, 0);
        session.checkpoint(5).unwrap();
        session.close(LONG).unwrap();
    });
    with_ranks(&job, 3).run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 5);
        let what = "step 5 was written by 2 ranks, this run has 3";
        says(
            &refused(session.stored("v")),
            ErrorKind::Unsupported,
            &[what, "v (each rank's own)", "restart with 2 ranks"],
        );
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        let mut items = Items::new(session.stored("id").unwrap().local[0]);
        items.protect(&mut session, 0);
        says(
            &refused(session.restart()),
            ErrorKind::Unsupported,
            &[
                what,
                "cannot be redistributed: small, u, v (each rank's own)",
                "orc_protect_array",
                "orc_protect_list",
                "ORC_SAME",
            ],
        );
        for name in ["small", "u", "v"] {
            session.unprotect(name).unwrap();
        }
        assert_eq!(session.restart().unwrap(), 5);
        session.close(LONG).unwrap();
    });
}

// ---- damage and lost nodes ---------------------------------------------------------------------

fn a_damaged_part_costs_every_rank_the_step() {
    let mut random = Random::new(seed() ^ 0xda3a);
    let global = &[300, 200][..];
    let scratch = Scratch::new("damaged");
    let job = Job::new(scratch.path(), 4, 1, false).nodes(4);
    let halves = |rank: u64| Part {
        offset: vec![rank * 75, 0],
        local: vec![75, 200],
    };
    let parts: Vec<Part> = (0..4).map(halves).collect();
    stores(&job, global, &parts, &[1, 2], 0);
    crate::session::mistakes::damage_newest(&scratch);
    let parts = cut(global, 3, &mut random);
    with_ranks(&job, 3).run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut field = Field::new(global, &parts[rank as usize], 0);
        field.protect(&mut session, 0);
        assert_eq!(session.try_restart().unwrap(), Restarted::Step(Step(1)));
        assert!(field.is(1));
        let told = warnings(&mut session);
        assert!(
            rank != 0 || told.iter().any(|text| text.contains("step 2 skipped")),
            "{told:?}"
        );
        session.close(LONG).unwrap();
    });
}

// Breaks if: other nodes' parts that are not seen count as damage, or are filled in.
fn a_node_alone_has_too_little_for_other_ranks_and_says_so() {
    let mut random = Random::new(seed() ^ 0xa104);
    let global = &[100, 90][..];
    for with_global in [true, false] {
        let scratch = Scratch::new("alone");
        let dirs = u32::from(with_global);
        let job = Job::new(scratch.path(), 4, dirs, true).nodes(2);
        let parts = cut(global, 4, &mut random);
        let last = if with_global {
            Level::Global
        } else {
            Level::Node
        };
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut field = Field::new(global, &parts[rank as usize], 0).fill(1);
            field.protect(&mut session, 0);
            session.checkpoint(1).unwrap();
            session.wait(1, last, LONG).unwrap();
            session.close(LONG).unwrap();
        });
        let others = cut(global, 4, &mut random);
        if with_global {
            // The nodes' own directories have less, and nothing is wrong with that.
            let told = restores(&job, global, &others, 1, 0);
            assert!(told.is_empty(), "{told:?}");
            let three = Job {
                ranks: 3,
                ..job.clone()
            };
            let told = restores(&three, global, &cut(global, 3, &mut random), 1, 0);
            assert!(told.is_empty(), "{told:?}");
            continue;
        }
        job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            let mut field = Field::new(global, &others[rank as usize], 0);
            field.protect(&mut session, 0);
            let error = refused(session.restart());
            assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
        });
        let three = Job {
            ranks: 3,
            ..job.clone()
        };
        three.run(|session, _| {
            let error = refused(session.unwrap().find());
            says(
                &error,
                ErrorKind::Unavailable,
                &[
                    "4 ranks wrote it, in other parts, so the parts of all nodes are needed",
                    "restart with 4 ranks in the same parts; if",
                    "copy the step",
                ],
            );
        });
        // As they were.
        restores(&job, global, &parts, 1, 0);
    }
}

// Breaks if: parts that only other nodes hold are not read from there.
fn four_nodes_become_three_and_two_with_a_disk_lost() {
    let mut random = Random::new(seed() ^ 0x4e32);
    let global = &[200, 150][..];
    // Node c is lost with its disk; a node that has no rank here is lost, too.
    for (peers, runs) in [
        (
            1,
            [
                &["a", "b", "d"][..],
                &["a", "a", "b", "b", "d", "d"],
                &["a", "b", "c", "d", "a"],
            ],
        ),
        (2, [&["b", "d"], &["d", "d", "b"], &["a", "b"]]),
    ] {
        let scratch = Scratch::new("nodes");
        let kept = scratch.path().join("kept");
        let local = scratch.path().join("local");
        let job = Job::new(scratch.path(), 8, 0, true)
            .placed(&["a", "a", "b", "b", "c", "c", "d", "d"])
            .with(&format!("peers = {peers}"));
        stores(&job, global, &cut(global, 8, &mut random), &[1, 2], 0);
        disk::copy_tree(&local, &kept);
        for nodes in runs {
            disk::remove_tree(&local);
            disk::copy_tree(&kept, &local);
            disk::remove_tree(&local.join("job/c"));
            let ranks = nodes.len() as u32;
            let mut job = with_ranks(&job, ranks).placed(nodes);
            if peers == 2 {
                job.options = job.options.replace("peers = 2", "peers = 1");
            }
            restores(&job, global, &cut(global, ranks, &mut random), 2, 0);
        }
    }
}

fn a_run_on_other_ranks_is_continued_on_yet_others() {
    let mut random = Random::new(seed() ^ 0xc047);
    let global = &[90, 110][..];
    let scratch = Scratch::new("continued");
    let job = Job::new(scratch.path(), 4, 1, true).with("incremental = 'auto'\nkeep = 2");
    let mut step = 1;
    stores(&job, global, &cut(global, 4, &mut random), &[step], 0);
    for ranks in [3, 5, 1, 2] {
        let parts = cut(global, ranks, &mut random);
        with_ranks(&job, ranks).run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), step);
            let mut field = Field::new(global, &parts[rank as usize], 0);
            field.protect(&mut session, 0);
            assert_eq!(session.restart().unwrap(), step);
            assert!(field.is(step));
            for step in step + 1..=step + 2 {
                field = Field::new(global, &parts[rank as usize], 0).fill(step);
                field.protect(&mut session, 0);
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        step += 2;
    }
}
