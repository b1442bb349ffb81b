//! What a command hands back, and how it becomes text, JSON, tables and progress bars.
//!
//! Invariants:
//! 1. A JSON document always has `schema`, `command` and `exit_code`; a failed command has `error` besides.
//! 2. A table that does not go to a terminal has no colours, no borders and never wraps.
//! 3. Sizes are in binary units (1 MiB is 2^20 bytes); JSON has bytes and milliseconds, never formatted text.
//!
//! Not here: the contents.

use std::io::IsTerminal;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use orcheck_format::Error;
use orcheck_format::error::printable;
use orcheck_io::clock::LocalTime;
pub use orcheck_io::clock::{age, moment};
use serde_json::{Value, json};

use crate::exit;

/// Version of the JSON documents. Fields may be added within a version; a changed or removed field raises it.
pub const SCHEMA: u32 = 1;

/// The result of a command that came to its end.
pub struct Outcome {
    /// Exit code.
    pub code: u8,
    /// What a person reads.
    pub text: String,
    /// What a program reads; an object.
    pub document: Value,
    /// Lines for standard error; programs find them in the document.
    pub warnings: Vec<String>,
}

/// The result of a command that could not do its work.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What happened and what to do next.
    pub error: Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure {
            code: exit::of(error.kind()),
            error,
        }
    }
}

impl Failure {
    /// An error with an exit code of its own.
    pub fn with(code: u8, error: Error) -> Self {
        Failure { code, error }
    }
}

/// Adds the fields that every document has.
pub fn stamp(document: &mut Value, command: &str, code: u8) {
    if let Value::Object(fields) = document {
        fields.insert("schema".into(), json!(SCHEMA));
        fields.insert("command".into(), json!(command));
        fields.insert("exit_code".into(), json!(code));
    }
}

/// The document of a failed command.
pub fn failure_document(command: &str, failure: &Failure) -> Value {
    let mut document = json!({ "error": { "kind": failure.error.kind().name(), "message": failure.error.message() } });
    stamp(&mut document, command, failure.code);
    document
}

/// The document as it is printed.
pub fn document_text(document: &Value) -> String {
    // `{:#}` of a JSON value cannot fail: its keys are strings.
    format!("{document:#}\n")
}

/// Whether standard output may have colours.
pub fn colours() -> bool {
    std::io::stdout().is_terminal()
        && orcheck_io::env_var("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// How a cell stands out on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Like everything else.
    Plain,
    /// All well.
    Good,
    /// Worth a look.
    Note,
    /// Wrong.
    Bad,
}

/// One cell: its text and how it stands out.
pub fn cell(text: impl ToString, tone: Tone) -> Cell {
    // A note of two lines stays one of two lines.
    let lines: Vec<String> = (text.to_string().split('\n'))
        .map(|line| printable(line.to_owned()))
        .collect();
    let cell = Cell::new(lines.join("\n"));
    match (tone, colours()) {
        (Tone::Plain, _) | (_, false) => cell,
        (Tone::Good, true) => cell.fg(Color::Green),
        (Tone::Note, true) => cell.fg(Color::Yellow),
        (Tone::Bad, true) => cell.fg(Color::Red),
    }
}

/// A plain cell.
pub fn plain(text: impl ToString) -> Cell {
    cell(text, Tone::Plain)
}

/// A plain cell for numbers.
pub fn right(text: impl ToString) -> Cell {
    plain(text).set_alignment(CellAlignment::Right)
}

/// An empty table with these column heads.
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    } else {
        table.force_no_tty();
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    let bold = colours();
    table.set_header(heads.iter().map(|head| {
        let cell = Cell::new(head);
        if bold {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    }));
    table
}

/// Draws the columns of a wide table together, as far as the terminal asks for it: its cells then stay in one line each.
pub fn draw_together(table: &mut Table) {
    let content: usize = (table.column_max_content_widths().iter())
        .map(|&width| usize::from(width))
        .sum();
    let last = table.column_iter().count().saturating_sub(1);
    let fits = |gap: usize| {
        let width = content + gap * last;
        table
            .width()
            .is_none_or(|terminal| width <= usize::from(terminal))
    };
    let gap = if fits(2) { 2 } else { 1 };
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if number == last { 0 } else { gap }));
    }
}

/// The table as text, without the blanks at line ends, with a final line end.
pub fn table_text(table: &Table) -> String {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A progress bar over bytes on standard error; invisible unless that is a terminal and `wanted`.
pub fn progress_bar(wanted: bool) -> ProgressBar {
    if !wanted || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(
        "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    ) {
        bar.set_style(style);
    }
    bar
}

/// A moment for a table, in local time and to the minute; its age has a column of its own.
pub fn minute(unix_ms: u64) -> String {
    let Some(at) = LocalTime::of_unix_ms(unix_ms) else {
        return "-".to_owned();
    };
    let mut text = at.to_string();
    text.truncate("2026-11-24 11:20".len());
    text
}

/// A size for people: at most four digits and a binary unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A computed span of time for people, from seconds: three digits, or two units where it is long.
pub fn span(seconds: f64) -> String {
    let two = |large: f64, large_name: &str, small: f64, small_name: &str| {
        let count = (seconds / small).round();
        let of_large = (large / small).round();
        format!(
            "{:.0} {large_name} {:.0} {small_name}",
            (count / of_large).floor(),
            count % of_large
        )
    };
    match seconds {
        0.0 => "0 s".to_owned(),
        s if s < 1e-3 => format!("{:.3} us", s * 1e6),
        s if s < 0.99995 => format!("{:.1} ms", s * 1e3),
        s if s < 59.995 => format!("{s:.2} s"),
        s if s < 600.0 => two(60.0, "min", 1.0, "s"),
        s if s < 3597.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => two(3600.0, "h", 60.0, "min"),
        s if s < 63_115_200.0 => two(86_400.0, "d", 3600.0, "h"),
        s if s < 3.16e13 => format!("{:.1} y", s / 31_557_600.0),
        s if s.is_finite() => format!("{:.1e} y", s / 31_557_600.0),
        _ => "never".to_owned(),
    }
}

/// A share for people.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// `1 rank`, `2 ranks`.
pub fn count(number: u64, one: &str) -> String {
    if number == 1 {
        format!("1 {one}")
    } else {
        format!("{number} {one}s")
    }
}

/// A shape for people: `64x64x3`, or a dash for what is not an array.
pub fn shape(dims: &[u64]) -> String {
    if dims.is_empty() {
        return "-".into();
    }
    dims.iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join("x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(4 << 20), "4.0 MiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }

    // Breaks if: a time just below a unit is shown as a whole one of the smaller, or 59.9 minutes become 60.
    #[test]
    fn spans() {
        for (seconds, shown) in [
            (0.0, "0 s"),
            (2.5e-7, "0.250 us"),
            (0.0123, "12.3 ms"),
            (2.1875, "2.19 s"),
            (59.999, "1 min 0 s"),
            (119.6, "2 min 0 s"),
            (1248.0, "20.8 min"),
            (3599.0, "1 h 0 min"),
            (7190.0, "2 h 0 min"),
            (86_400.0, "24 h 0 min"),
            (1.8e6, "20 d 20 h"),
            (1e9, "31.7 y"),
            (1e20, "3.2e12 y"),
            (f64::INFINITY, "never"),
        ] {
            assert_eq!(span(seconds), shown, "{seconds}");
        }
    }
}
