//! How fast bulk data travels over one connection on this machine, authenticated alone and
//! encrypted.
//!
//! usage: wire_speed [MiB] per round; alternating rounds, the median of their rates and of their
//! ratios
// It measures, prints, and uses threads of its own.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used)]

use orcheck_format::wire::Message;
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Key, Listener};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const PIECE_BYTES: usize = 4 << 20;
const ROUNDS: usize = 15;

/// GB/s of `pieces` from one thread to another.
fn rate(encrypt: bool, pieces: usize) -> f64 {
    let key = Key {
        encrypt,
        ..Key::new([7; 32])
    };
    let listener = Listener::bind(&Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))));
    let listener = listener.unwrap();
    let at = listener.address();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut conn = Conn::connect(&at, &key, &Failpoints::none(), LIMIT).unwrap();
            let message = Message::Data {
                slot: 1,
                at_bytes: 0,
                bytes: vec![5; PIECE_BYTES],
            };
            for _ in 0..pieces {
                conn.send(&message, LIMIT).unwrap();
            }
            conn.receive(LIMIT).unwrap();
        });
        let mut conn = loop {
            if let Some(conn) = listener.accept(&key, &Failpoints::none(), LIMIT).unwrap() {
                break conn;
            }
        };
        conn.receive(LIMIT).unwrap(); // warm
        let begun = Instant::now();
        for _ in 1..pieces {
            conn.receive(LIMIT).unwrap();
        }
        let took = begun.elapsed().as_secs_f64();
        conn.send(&Message::Held { slot: 1 }, LIMIT).unwrap();
        caller.join().unwrap();
        ((pieces - 1) * PIECE_BYTES) as f64 / took / 1e9
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let mib = std::env::args()
        .nth(1)
        .map_or(1024, |text| text.parse().unwrap());
    let pieces = (mib << 20) / PIECE_BYTES + 1;
    let rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| (rate(false, pieces), rate(true, pieces)))
        .collect();
    println!(
        "authenticated  {:.2} GB/s",
        median(rounds.iter().map(|r| r.0).collect())
    );
    println!(
        "encrypted      {:.2} GB/s",
        median(rounds.iter().map(|r| r.1).collect())
    );
    println!(
        "ratio          {:.2}",
        median(rounds.iter().map(|r| r.1 / r.0).collect())
    );
}
