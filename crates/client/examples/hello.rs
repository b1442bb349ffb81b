//! The smallest Rust program with checkpoints: it counts, can be killed, and counts on when it is
//! started again. `ORCHECK_GLOBAL=/scratch/me cargo run -p orcheck-client --example hello`
#![allow(clippy::print_stdout)]

use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::{Dtype, ErrorKind, Result};
use orcheck_io::memory::Span;
use std::time::Duration;

fn main() -> Result<()> {
    let mut sum = vec![0; 8];
    let options = Options::load(Some("every_steps = 1000"));
    let mut session = Session::open_with("hello", Box::new(Solo), options, Environment::default())?;
    // The memory stays where it is until the session is closed.
    session.protect("sum", Span::from_mut(&mut sum), Dtype::F64, 0)?;
    let mut step = match session.find() {
        Ok(_) => session.restart()?,
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    println!("from step {step}");
    while step < 10_000 && !session.should_stop() {
        step += 1;
        let so_far = f64::from_le_bytes(std::array::from_fn(|i| sum[i]));
        sum.copy_from_slice(&(so_far + 1.0 / step as f64).to_le_bytes());
        if session.due(step)? {
            session.checkpoint(step)?;
        }
    }
    session.close(Duration::from_secs(60))?;
    let sum = f64::from_le_bytes(std::array::from_fn(|i| sum[i]));
    println!("sum of 1/n up to {step}: {sum:.12}");
    Ok(())
}
