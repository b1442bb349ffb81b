//! Sums the writes of a program: by size, by where they go, and over time.
//!
//! How: the classes of sizes are those of X. Ouyang et al., SNAPI 2010. Each process's writes to
//! one file are a *stream*. A write is *in order* where it begins where the stream's last one
//! ended, *strided* where it begins as far from the last one's begin as that one did from its own
//! predecessor's, and *elsewhere* otherwise; the last two are seeks.
//!
//! Invariants:
//! 1. Every write is in exactly one class, and in exactly one kind of place.
//!
//! Not here: which calls there were (`writes.rs`).

use std::collections::BTreeMap;

use orcheck_format::count;
use orcheck_io::machine::Effect;
use serde_json::{Value, json};

use crate::commands::profile::writes::Writes;
use crate::output::{percent, plain, right, size, table, table_text};
use crate::picture::{Axis, Curve, Lines, Panel};

/// Where classes end, in bytes; the last one has no end.
const ENDS: [u64; 9] = [
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];
/// Slices of a run.
const SLICES: usize = 40;

/// Writes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Class {
    pub writes: u64,
    pub bytes: u64,
    pub us: u64,
}

/// The last write of a stream.
struct Last {
    begin: u64,
    end: u64,
    stride: Option<i128>,
}

/// What the writes of a program amount to.
#[derive(Debug, Default)]
pub struct Classes {
    classes: [Class; ENDS.len() + 1],
    in_order: u64,
    strided: u64,
    elsewhere: u64,
    streams: usize,
    files: usize,
    processes: usize,
    syncs: Class,
    /// From the first call's begin to the last one's end.
    lasted_us: u64,
    /// Bytes of each slice of that time.
    slices: Vec<u64>,
}

impl Classes {
    /// Of these writes.
    pub fn of(writes: &Writes) -> Self {
        let mut sums = Self {
            files: writes.files.len(),
            processes: writes.processes(),
            slices: vec![0; SLICES],
            ..Self::default()
        };
        let begin = writes.calls.iter().map(|call| call.at_us).min();
        let end = (writes.calls.iter()).map(|call| call.at_us + call.took_us);
        let begin = begin.unwrap_or(0);
        sums.lasted_us = end.max().unwrap_or(0) - begin;
        let mut streams: BTreeMap<(u32, u32), Last> = BTreeMap::new();
        // Where files end, as far as they were written.
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for call in &writes.calls {
            let (offset, len_bytes) = match call.what {
                Effect::Wrote { offset, len_bytes } => (offset, len_bytes),
                Effect::Synced => {
                    sums.syncs.writes += 1;
                    sums.syncs.us += call.took_us;
                    continue;
                }
                Effect::Resized { .. } => continue,
            };
            let class = ENDS.iter().take_while(|end| **end < len_bytes).count();
            if let Some(class) = sums.classes.get_mut(class) {
                class.writes += 1;
                class.bytes += len_bytes;
                class.us += call.took_us;
            }
            let slice = (call.at_us - begin) * SLICES as u64 / (sums.lasted_us + 1);
            if let Some(slice) = sums.slices.get_mut(slice as usize) {
                *slice += len_bytes;
            }
            let last = streams.get(&(call.process, call.file));
            let stride = last.map(|last| i128::from(offset) - i128::from(last.begin));
            match last {
                Some(last) if last.end == offset => sums.in_order += 1,
                Some(last) if last.stride.is_some() && last.stride == stride => sums.strided += 1,
                None if ends.get(&call.file).copied().unwrap_or(0) == offset => sums.in_order += 1,
                _ => sums.elsewhere += 1,
            }
            let end = ends.entry(call.file).or_default();
            *end = (*end).max(offset + len_bytes);
            let last = Last {
                begin: offset,
                end: offset + len_bytes,
                stride,
            };
            streams.insert((call.process, call.file), last);
        }
        sums.streams = streams.len();
        sums
    }

    fn all(&self) -> Class {
        let add = |sum: Class, one: &Class| Class {
            writes: sum.writes + one.writes,
            bytes: sum.bytes + one.bytes,
            us: sum.us + one.us,
        };
        self.classes.iter().fold(Class::default(), add)
    }

    /// Seconds from the first call's begin to the last one's end.
    pub fn lasted_s(&self) -> f64 {
        self.lasted_us as f64 / 1e6
    }

    /// For people.
    pub fn table(&self) -> String {
        let all = self.all();
        if all.writes == 0 {
            return "no regular file was written\n".to_owned();
        }
        let mut rows = table(&[
            "write size",
            "writes",
            "of all",
            "bytes",
            "of all",
            "time",
            "of all",
        ]);
        let of = |part: u64, all: u64| percent(part as f64 / (all.max(1)) as f64);
        for (number, class) in self.classes.iter().enumerate() {
            if class.writes == 0 {
                continue;
            }
            rows.add_row([
                plain(name_of(number)),
                right(class.writes),
                right(of(class.writes, all.writes)),
                right(size(class.bytes)),
                right(of(class.bytes, all.bytes)),
                right(format!("{:.3} s", class.us as f64 / 1e6)),
                right(of(class.us, all.us)),
            ]);
        }
        let rate = all.bytes as f64 / self.lasted_s().max(1e-6);
        format!(
            "{}\n{} of {} by {} to {}, in {:.3} s: {}/s; {}\n\
             in order {}, strided {}, elsewhere {}\n",
            table_text(&rows),
            count(all.writes, "write"),
            size(all.bytes),
            processes(self.processes),
            count(self.files as u64, "file"),
            self.lasted_s(),
            size(rate as u64),
            count(self.syncs.writes, "sync"),
            of(self.in_order, all.writes),
            of(self.strided, all.writes),
            of(self.elsewhere, all.writes),
        )
    }

    /// For programs.
    pub fn document(&self) -> Value {
        let all = self.all();
        let classes: Vec<Value> = (self.classes.iter().enumerate())
            .map(|(number, class)| {
                json!({
                    "most_bytes": ENDS.get(number),
                    "writes": class.writes,
                    "bytes": class.bytes,
                    "us": class.us,
                })
            })
            .collect();
        json!({
            "writes": all.writes,
            "bytes": all.bytes,
            "us": all.us,
            "lasted_us": self.lasted_us,
            "classes": classes,
            "in_order": self.in_order,
            "strided": self.strided,
            "elsewhere": self.elsewhere,
            "seeks": self.strided + self.elsewhere,
            "streams": self.streams,
            "files": self.files,
            "processes": self.processes,
            "syncs": self.syncs.writes,
            "sync_us": self.syncs.us,
            "bytes_over_time": self.slices,
        })
    }

    /// For a picture: shares by size, and bytes over time.
    pub fn panels(&self) -> Vec<Panel> {
        let all = self.all();
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        let curve = |name: &str, of: &dyn Fn(&Class) -> f64| Curve {
            name: name.to_owned(),
            points: (self.classes.iter().enumerate())
                .map(|(number, class)| (number as f64, of(class)))
                .collect(),
            dots: false,
        };
        let slice_s = self.lasted_s() / SLICES as f64;
        let mib_per_s = |bytes: &u64| *bytes as f64 / slice_s.max(1e-9) / f64::from(1 << 20);
        vec![
            Panel::Lines(Lines {
                title: "Shares by size of write (classes from 64 B to more than 1 MiB)".to_owned(),
                x: (Axis::Count, "class"),
                y: (Axis::Share, "share"),
                curves: vec![
                    curve("writes", &|class| share(class.writes, all.writes)),
                    curve("bytes", &|class| share(class.bytes, all.bytes)),
                    curve("time", &|class| share(class.us, all.us)),
                ],
            }),
            Panel::Lines(Lines {
                title: "Written over time".to_owned(),
                x: (Axis::Time, "since the first write"),
                y: (Axis::Count, "MiB/s"),
                curves: vec![Curve {
                    name: "all files".to_owned(),
                    points: (self.slices.iter().enumerate())
                        .map(|(at, bytes)| ((at as f64 + 0.5) * slice_s, mib_per_s(bytes)))
                        .collect(),
                    dots: false,
                }],
            }),
        ]
    }
}

/// A number of processes.
pub fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

fn name_of(class: usize) -> String {
    match (
        class.checked_sub(1).and_then(|at| ENDS.get(at)),
        ENDS.get(class),
    ) {
        (_, Some(most)) => format!("up to {}", size(*most)),
        (Some(least), None) => format!("more than {}", size(*least)),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::machine::Watched;
    use std::path::PathBuf;
    use std::time::Duration;

    // Breaks if: a write is in another class or kind of place than it should be.
    #[test]
    fn a_known_pattern_is_summed_exactly() {
        let mut writes = Writes::default();
        let mut at = 0;
        let mut put = |process: u32, path: &str, what: Effect| {
            at += 10;
            writes.note(&Watched {
                process,
                at: Duration::from_micros(at),
                took: Duration::from_micros(5),
                path: PathBuf::from(path),
                what,
            });
        };
        let wrote = |offset, len_bytes| Effect::Wrote { offset, len_bytes };
        // In order: 64 bytes each, then one of a byte more than a class.
        for n in 0..10 {
            put(u32::MAX, "a", wrote(n * 64, 64));
        }
        put(u32::MAX, "a", wrote(640, 65));
        // Every 4096 bytes: the first two say what the stride is.
        for n in 0..8 {
            put(u32::MAX - 1, "b", wrote(4096 * n + 7, 1 << 10));
        }
        put(u32::MAX - 1, "b", wrote(3, 2 << 20));
        put(u32::MAX - 1, "b", Effect::Synced);
        put(u32::MAX - 1, "b", Effect::Resized { len_bytes: 1 });
        let classes = Classes::of(&writes);
        let found = classes.document();
        assert_eq!(found["writes"], 20);
        assert_eq!(
            (&found["in_order"], &found["strided"], &found["elsewhere"]),
            (&json!(11), &json!(6), &json!(3))
        );
        assert_eq!(found["seeks"], 9);
        assert_eq!(
            (&found["streams"], &found["files"], &found["processes"]),
            (&json!(2), &json!(2), &json!(2))
        );
        assert_eq!(found["syncs"], 1);
        let of = |class: usize| found["classes"][class]["writes"].clone();
        assert_eq!(
            [of(0), of(1), of(2), of(9)],
            [10, 1, 8, 1].map(|n| json!(n))
        );
        assert_eq!(found["bytes"], 640 + 65 + 8 * 1024 + (2 << 20));
        let slices: u64 = classes.slices.iter().sum();
        assert_eq!(found["bytes"], slices);
        assert!(classes.table().contains("up to 64 B"));
        assert!(classes.table().contains("more than 1.0 MiB"));
    }
}
