//! Values of flags: whole numbers, numbers and times, refused with their range.
//!
//! Not here: the flags (`args.rs`, `plan.rs`, `advice.rs`).

/// A parser for whole numbers from `least` to `most`, which the type can hold.
pub fn whole<N: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let found = text.trim().parse::<u64>().ok();
        found
            .filter(|found| (least..=most).contains(found))
            .and_then(|found| N::try_from(found).ok())
            .ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

/// A finite number from `least` to `most`.
pub fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(found) if (least..=most).contains(&found) => Ok(found),
        _ => Err(format!("expected a number from {least} to {most:e}")),
    }
}

/// Units of time, and their seconds; a year has 365.25 days.
const UNITS_S: [(&str, f64); 8] = [
    ("us", 1e-6),
    ("ms", 1e-3),
    ("min", 60.0),
    ("s", 1.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("y", 31_557_600.0),
    ("", 1.0),
];

/// Seconds of a time such as 90s, 1.5h or 5y.
pub fn time_or_none(text: &str) -> Result<f64, String> {
    let refused =
        || "expected a time from 0 to 30000y, such as 90s, 5min, 1.5h, 30d or 5y".to_owned();
    let with_unit = |(unit, seconds)| text.strip_suffix(unit).map(|count| (count, seconds));
    let (count, seconds): (&str, f64) = UNITS_S
        .into_iter()
        .find_map(with_unit)
        .ok_or_else(refused)?;
    number(count, 0.0, 1e12 / seconds)
        .map(|found| found * seconds)
        .map_err(|_| refused())
}

/// The same, but never a number alone: for times that nobody counts in seconds.
pub fn time_with_unit(text: &str) -> Result<f64, String> {
    if text.trim().parse::<f64>().is_ok() {
        return Err("expected a time with its unit, such as 24h, 90min or 30d".to_owned());
    }
    time_or_none(text)
}

/// The same, but not zero.
pub fn time(text: &str) -> Result<f64, String> {
    match time_or_none(text) {
        Ok(seconds) if seconds >= 1e-6 => Ok(seconds),
        _ => {
            Err("expected a time from 1us to 30000y, such as 90s, 5min, 1.5h, 30d or 5y".to_owned())
        }
    }
}
