//! Runs a test under many schedules of its threads: half of them random, half by PCT (probabilistic
//! concurrency testing: few, well-placed changes of priority find the bugs that need a rare order).

use orcheck_io::user::env_var;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Changes of priority in a schedule of PCT.
const DEPTH: usize = 4;

/// Explores `test` under `quick` schedules, or as many as `ORCHECK_TRIALS` says if that is more. A
/// failure prints the schedule, which `shuttle::replay` runs again, and the seed, which runs all of
/// them again.
pub fn explore(name: &str, quick: usize, test: fn()) {
    let number = |name: &str| env_var(name).and_then(|text| text.parse::<u64>().ok());
    let asked = number("ORCHECK_TRIALS").map_or(quick, |asked| quick.max(asked as usize));
    let seed = number("ORCHECK_SEED")
        .unwrap_or_else(|| u64::from_le_bytes(orcheck_io::rng::random_bytes()));
    println!(
        "{name}: {asked} schedules; again: ORCHECK_SEED={seed} ORCHECK_TRIALS={asked} tools/schedules.sh {name}"
    );
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(4_000_000);
    let random = RandomScheduler::new_from_seed(seed, asked.div_ceil(2));
    Runner::new(random, config.clone()).run(test);
    let pct = PctScheduler::new_from_seed(seed, DEPTH, asked / 2);
    Runner::new(pct, config).run(test);
}
