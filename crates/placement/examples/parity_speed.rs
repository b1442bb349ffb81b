//! What parity costs a processor, beside a copy of the same bytes.
//!
//! `cargo run --release -p orcheck-placement --example parity_speed [MiB] [pairs]`: for each code,
//! the median over interleaved pairs of (processor time to fold every data byte into its parities ÷
//! time of a copy of the data), as JSON. Blocks have 256 KiB and lie in memory one after the other.
#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use orcheck_placement::parity::Code;
use std::time::Instant;

const BLOCK: usize = 256 << 10;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(work: impl FnOnce()) -> f64 {
    let before = Instant::now();
    work();
    before.elapsed().as_secs_f64()
}

fn main() {
    let number = |nth: usize, unset: usize| {
        let given = std::env::args().nth(nth).and_then(|text| text.parse().ok());
        given.unwrap_or(unset)
    };
    let (len, pairs) = (number(1, 256) << 20, number(2, 15));
    let data: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut copy = vec![1u8; len];
    let codes = [
        ("xor=8", 7, 1),
        ("rs=4+2", 4, 2),
        ("rs=8+2", 8, 2),
        ("rs=8+4", 8, 4),
    ];
    let mut lines = Vec::new();
    for (name, k, m) in codes {
        let Ok(code) = Code::new(k, m) else { continue };
        let mut parity = vec![vec![0u8; BLOCK]; m as usize];
        let mut ratios = Vec::new();
        let mut rates = Vec::new();
        for pair in 0..=pairs {
            let copied_s = seconds(|| copy.copy_from_slice(&data));
            let folded_s = seconds(|| {
                for (nth, block) in (0..).zip(data.chunks(BLOCK)) {
                    for (one, parity) in (0..m).zip(&mut parity) {
                        code.fold((nth % k, one), block, 0, parity);
                    }
                }
            });
            std::hint::black_box((&copy, &parity));
            // The first pair touches the memory for the first time.
            if pair > 0 {
                ratios.push(folded_s / copied_s);
                rates.push(len as f64 / folded_s);
            }
        }
        let (ratio, rate) = (median(ratios.clone()), median(rates));
        let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
        lines.push(format!(
            "  \"{name}\": {{\"over_memcpy\": {ratio:.4}, \"bytes_per_s\": {rate:.0}, \"pairs\": [{}]}}",
            all.join(", ")
        ));
    }
    println!("{{\n{}\n}}", lines.join(",\n"));
}
