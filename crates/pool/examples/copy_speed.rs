//! How much a copy with checksum costs against a plain copy of the same bytes.
//!
//! `cargo run --release -p orcheck-io --example copy_speed [MiB] [pairs] [threads]`: 1 GiB of
//! private memory into a populated pool; for each kernel the median over interleaved pairs of
//! (kernel time ÷ plain copy time), beside the same for the plain copy against itself.
#![allow(unsafe_code, clippy::print_stdout)]

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::memory::{Buffer, Span};
use orcheck_pool::{Kernel, Pool, PoolShape, copy_crc_by};

const CHUNK: usize = 4 << 20;

#[derive(Clone, Copy)]
enum Way {
    PlainWhole,
    PlainChunks,
    Checked(Kernel),
}

fn copy(way: Way, dst: Span, src: Span) {
    let (len, to, from) = (
        src.len_bytes(),
        dst.address() as *mut u8,
        src.address() as *const u8,
    );
    let mut sum = 0u64;
    match way {
        // SAFETY: two distinct pieces of memory of this length, alive during the call.
        Way::PlainWhole => unsafe { std::ptr::copy_nonoverlapping(from, to, len) },
        Way::PlainChunks | Way::Checked(_) => {
            for at in (0..len).step_by(CHUNK) {
                let piece = CHUNK.min(len - at);
                // SAFETY: inside the two pieces of memory.
                unsafe {
                    match way {
                        Way::Checked(kernel) => {
                            sum ^= copy_crc_by(kernel, to.add(at), from.add(at), piece);
                        }
                        _ => std::ptr::copy_nonoverlapping(from.add(at), to.add(at), piece),
                    }
                }
            }
        }
    }
    std::hint::black_box(sum);
}

fn seconds(way: Way, dst: Span, src: Span, threads: usize) -> f64 {
    let clock = SystemClock::new();
    let share = src.len_bytes() / threads;
    let before = clock.now();
    if threads == 1 {
        copy(way, dst, src);
    } else {
        std::thread::scope(|scope| {
            for i in 0..threads {
                let (dst, src) = (dst.sub(i * share, share), src.sub(i * share, share));
                scope.spawn(move || copy(way, dst, src));
            }
        });
    }
    (clock.now() - before).as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse::<usize>().ok());
    let len = numbers.next().unwrap_or(1024) << 20;
    let pairs = numbers.next().unwrap_or(15);
    let threads = numbers.next().unwrap_or(1).max(1);
    let chunks = u32::try_from(len.div_ceil(CHUNK)).expect("a size of this machine");
    let shape = PoolShape {
        chunk_bytes: CHUNK as u32,
        chunk_count: chunks,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    let pool = Pool::create(shape).expect("memory for the pool");
    pool.populate(0, chunks).expect("memory for the pool");
    let dst = pool.run_span(0, chunks).sub(0, len);
    let mut source = Buffer::zeroed(len, 4096);
    source
        .iter_mut()
        .zip(0usize..)
        .for_each(|(byte, i)| *byte = (i ^ (i >> 8)) as u8);
    let src = source.span();

    let ways: Vec<(String, Way)> = [
        ("plain copy, whole".to_owned(), Way::PlainWhole),
        ("plain copy, 4 MiB".to_owned(), Way::PlainChunks),
    ]
    .into_iter()
    .chain(
        Kernel::available()
            .into_iter()
            .map(|k| (format!("copy + CRC, {k:?}"), Way::Checked(k))),
    )
    .collect();
    for (_, way) in &ways {
        seconds(*way, dst, src, threads);
    }
    println!(
        "{} MiB, {threads} thread(s), {pairs} interleaved pairs",
        len >> 20
    );
    println!(
        "{:<24} {:>9} {:>8} {:>8} {:>8}",
        "", "GB/s", "ratio", "least", "most"
    );
    for (name, way) in &ways {
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        for _ in 0..pairs {
            let plain = seconds(Way::PlainWhole, dst, src, threads).min(seconds(
                Way::PlainChunks,
                dst,
                src,
                threads,
            ));
            let time = seconds(*way, dst, src, threads);
            ratios.push(time / plain);
            times.push(time);
        }
        let (least, most) = ratios.iter().fold((f64::MAX, 0.0f64), |(least, most), r| {
            (least.min(*r), most.max(*r))
        });
        let rate = len as f64 / median(times) / 1e9;
        println!(
            "{name:<24} {rate:>9.2} {:>8.3} {least:>8.3} {most:>8.3}",
            median(ratios)
        );
    }
}
