//! Tests how a server leaves room for ordinary traffic, on simulated disks.

use orcheck_staging::server::pauses::{FIRST_PAUSE, PAUSE_MAX, Pauses, Seen};
use std::time::Duration;

const PIECE_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

/// A disk in time steps of 1 ms, on which others move what they can.
struct Disk {
    now: Duration,
    others_bytes: f64,
    /// Rates in bytes per second: of others alone, of others while the server writes, of the
    /// server.
    alone: f64,
    beside: f64,
    server: f64,
    /// After each write others get nothing for so long.
    back: Duration,
    disturbed_until: Duration,
}

impl Disk {
    fn pass(&mut self, time: Duration, writing: bool) -> Seen {
        let (begin, step) = (self.others_bytes, Duration::from_millis(1));
        let end = self.now + time;
        while self.now < end {
            let rate = match writing {
                true => self.beside,
                false if self.now < self.disturbed_until => 0.0,
                false => self.alone,
            };
            self.others_bytes += rate * step.as_secs_f64();
            self.now += step;
        }
        if writing {
            self.disturbed_until = self.now + self.back;
        }
        Seen {
            took: time,
            moved_bytes: (self.others_bytes - begin) as u64,
        }
    }

    /// Writes for so long, as the server does; returns what it wrote and the longest pause.
    fn serve(&mut self, room: &mut Pauses, time: Duration) -> (f64, Duration) {
        let (end, mut wrote, mut longest) = (self.now + time, 0.0, Duration::ZERO);
        while self.now < end {
            let seen = self.pass(Duration::from_secs_f64(PIECE_BYTES / self.server), true);
            wrote += PIECE_BYTES;
            let pause = if room.is_shared() {
                room.wrote(seen)
            } else if room.is_due(self.now) {
                FIRST_PAUSE
            } else {
                continue;
            };
            longest = longest.max(pause);
            if !pause.is_zero() {
                let (first, rest) = (self.pass(pause / 2, false), self.pass(pause / 2, false));
                room.paused(self.now, first, rest, true);
            }
        }
        (wrote, longest)
    }
}

fn disk(alone: f64, beside: f64, back_ms: u64) -> Disk {
    Disk {
        now: Duration::ZERO,
        others_bytes: 0.0,
        alone,
        beside,
        server: 80e6,
        back: Duration::from_millis(back_ms),
        disturbed_until: Duration::ZERO,
    }
}

const LONG: Duration = Duration::from_secs(120);

// Breaks if: the account is not charged for the time of the writes, or only for that.
#[test]
fn others_keep_their_share_and_the_server_gets_on() {
    for share in [0.5, 0.8, 0.9, 0.95] {
        for (alone, beside, back_ms) in [
            (60e6, 0.0, 20),
            (60e6, 20e6, 0),
            (2e6, 0.2e6, 20),
            (400e3, 0.0, 5),
        ] {
            let (mut disk, mut room) = (disk(alone, beside, back_ms), Pauses::new(share));
            let (wrote, longest) = disk.serve(&mut room, LONG);
            let kept = disk.others_bytes / (alone * LONG.as_secs_f64());
            let what = format!("share {share}, alone {alone}, beside {beside}, back {back_ms}");
            assert!(kept >= share - 0.02, "{what}: kept {kept}");
            // What others can spare is used.
            let spared = (1.0 - share) * 80e6 * LONG.as_secs_f64();
            assert!(wrote >= 0.35 * spared, "{what}: wrote {wrote} of {spared}");
            assert!(longest <= PAUSE_MAX);
        }
    }
}

#[test]
fn nobody_waits_for_traffic_that_is_not_there_or_not_disturbed() {
    let full = 80e6 * LONG.as_secs_f64();
    for (alone, beside) in [(0.0, 0.0), (60e6, 60e6)] {
        let (mut disk, mut room) = (disk(alone, beside, 0), Pauses::new(0.95));
        let (wrote, _) = disk.serve(&mut room, LONG);
        assert!(wrote >= 0.95 * full, "beside {beside}: {wrote} of {full}");
    }
}

#[test]
fn traffic_may_come_and_go() {
    let (mut disk, mut room) = (disk(0.0, 0.0, 10), Pauses::new(0.9));
    disk.serve(&mut room, LONG);
    assert!(!room.is_shared());
    disk.alone = 60e6;
    disk.beside = 5e6;
    let before = disk.others_bytes;
    disk.serve(&mut room, LONG);
    let kept = (disk.others_bytes - before) / (60e6 * LONG.as_secs_f64());
    assert!(room.is_shared() && kept >= 0.87, "{kept}");
    (disk.alone, disk.beside) = (0.0, 0.0);
    let (wrote, _) = disk.serve(&mut room, LONG);
    assert!(
        !room.is_shared() && wrote >= 0.9 * 80e6 * LONG.as_secs_f64(),
        "{wrote}"
    );
}

// Breaks if: what a sync of the server's own moves is taken for others, or others are forgotten
// because of it.
#[test]
fn what_may_be_the_servers_own_makes_nobody_new() {
    let second = Duration::from_secs(1);
    let seen = |moved_bytes| Seen {
        took: second,
        moved_bytes,
    };
    let (busy, quiet) = (seen(50_000_000), seen(0));
    let mut room = Pauses::new(0.9);
    room.paused(second, busy, busy, false);
    assert!(!room.is_shared() && !room.is_due(second) && room.is_due(2 * second));
    room.paused(2 * second, busy, busy, true);
    assert!(room.is_shared());
    room.paused(3 * second, busy, seen(90_000_000), false);
    assert!(room.is_shared());
    // That nothing moved is certain.
    room.paused(4 * second, quiet, quiet, false);
    assert!(!room.is_shared());
}
