//! Turns the result of a command into text, JSON, tables and progress bars.
//!
//! Invariants:
//! 1. A JSON document always has `schema`, `command` and `exit_code`; a failed command also has
//!    `error`.
//! 2. A table that does not go to a terminal has no colours, no borders, whole names, and never
//!    wraps. On a terminal long names are shortened in the middle.
//! 3. Sizes are in binary units (1 MiB is 2^20 bytes); JSON has bytes and milliseconds, never
//!    formatted text.
//!
//! Not here: the contents.

use std::io::IsTerminal;

use comfy_table::{Attribute, CellAlignment, Color, ContentArrangement, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub use orcheck_format::count;
use orcheck_format::{Error, ErrorKind, printable};
use orcheck_io::clock::LocalTime;
pub use orcheck_io::clock::{age, moment};
use serde_json::{Value, json};

use crate::exit;

/// Version of the JSON documents. Fields may be added within a version; a changed or removed field
/// raises it.
pub const SCHEMA: u32 = 1;

/// The result of a command that completed.
pub struct Outcome {
    /// Exit code.
    pub code: u8,
    /// The text for a person.
    pub text: String,
    /// The JSON object for a program.
    pub document: Value,
    /// Lines for standard error; programs find them in the document.
    pub warnings: Vec<String>,
}

/// The result of a command that could not do its work.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What happened, and what to do next.
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

    /// The exit code if this concerns one job of several, and the others were examined.
    pub fn of_one(&self) -> u8 {
        match self.error.kind() {
            ErrorKind::Unavailable => exit::UNREACHABLE,
            _ => exit::PARTIAL,
        }
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
        && orcheck_io::user::env_var("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// How a cell is highlighted on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Not highlighted.
    Plain,
    /// All well.
    Good,
    /// Worth a look.
    Note,
    /// Wrong.
    Bad,
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
    is_number: bool,
}

/// A cell: its text and its highlighting.
pub fn cell(text: impl ToString, tone: Tone) -> Cell {
    // A note of two lines stays a note of two lines.
    let lines: Vec<String> = (text.to_string().split('\n'))
        .map(|line| printable(line.to_owned()))
        .collect();
    Cell {
        text: lines.join("\n"),
        tone,
        is_number: false,
    }
}

/// A plain cell.
pub fn plain(text: impl ToString) -> Cell {
    cell(text, Tone::Plain)
}

/// A plain cell for numbers.
pub fn right(text: impl ToString) -> Cell {
    Cell {
        is_number: true,
        ..plain(text)
    }
}

/// Columns with heads, and rows of cells.
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<Cell>>,
    is_close: bool,
}

/// An empty table with these column heads.
pub fn table(heads: &[&str]) -> Table {
    Table {
        heads: heads.iter().map(|&head| head.to_owned()).collect(),
        rows: Vec::new(),
        is_close: false,
    }
}

/// Moves the columns of a wide table closer together, as far as the terminal requires it: each cell
/// then stays in one line.
pub fn draw_together(table: &mut Table) {
    table.is_close = true;
}

/// The table as text, without blanks at line ends, with a final newline.
pub fn table_text(table: &Table) -> String {
    let columns = comfy_table::Table::new().width();
    let columns = columns.filter(|_| std::io::stdout().is_terminal());
    table.text(columns.map(usize::from))
}

/// Minimum length of a shortened name.
const NAME_LEAST: usize = 12;

impl Table {
    /// Adds a row.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text for a terminal of this many columns, or for a file.
    fn text(&self, columns: Option<usize>) -> String {
        let (caps, gap) = match columns {
            Some(columns) => self.fit(columns),
            None => (vec![usize::MAX; self.heads.len()], 2),
        };
        let mut drawn = comfy_table::Table::new();
        drawn.load_style(presets::NOTHING);
        match columns {
            Some(columns) => drawn
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(u16::try_from(columns).unwrap_or(u16::MAX)),
            None => drawn
                .force_no_tty()
                .set_content_arrangement(ContentArrangement::Disabled),
        };
        let colours = colours();
        drawn.set_header(self.heads.iter().map(|head| {
            let head = comfy_table::Cell::new(head);
            match colours {
                true => head.add_attribute(Attribute::Bold),
                false => head,
            }
        }));
        for row in &self.rows {
            let cells = row.iter().zip(&caps).map(|(cell, &cap)| {
                let drawn = comfy_table::Cell::new(shortened(&cell.text, cap));
                let drawn = match cell.is_number {
                    true => drawn.set_alignment(CellAlignment::Right),
                    false => drawn,
                };
                match (cell.tone, colours) {
                    (Tone::Plain, _) | (_, false) => drawn,
                    (Tone::Good, true) => drawn.fg(Color::Green),
                    (Tone::Note, true) => drawn.fg(Color::Yellow),
                    (Tone::Bad, true) => drawn.fg(Color::Red),
                }
            });
            drawn.add_row(cells);
        }
        if self.is_close {
            let last = self.heads.len().saturating_sub(1);
            for (number, column) in drawn.column_iter_mut().enumerate() {
                column.set_padding((0, if number == last { 0 } else { gap }));
            }
        }
        let mut text = String::new();
        for line in drawn.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The maximum length of names in each column such that rows fit a terminal, and the gap
    /// between columns.
    fn fit(&self, columns: usize) -> (Vec<usize>, u16) {
        let wide = |text: &str| text.split('\n').map(|line| line.chars().count()).max();
        let column = |number: usize| self.rows.iter().filter_map(move |row| row.get(number));
        let mut widths: Vec<usize> = Vec::new();
        let mut may_shrink: Vec<bool> = Vec::new();
        for (number, head) in self.heads.iter().enumerate() {
            let cells = column(number).filter_map(|cell| wide(&cell.text));
            widths.push(cells.chain(wide(head)).max().unwrap_or(0));
            // A cell of several words is wrapped between them instead, and a number must keep its
            // digits.
            let is_name = |cell: &Cell| {
                wide(&cell.text) <= Some(NAME_LEAST) || !cell.is_number && !cell.text.contains(' ')
            };
            may_shrink.push(column(number).all(is_name));
        }
        let content = |widths: &[usize]| widths.iter().sum::<usize>();
        let gaps = self.heads.len().saturating_sub(1);
        let gap = match content(&widths) + 2 * gaps > columns {
            true => 1,
            false => 2,
        };
        let around = match self.is_close {
            true => gap * gaps,
            false => 2 * self.heads.len(),
        };
        while content(&widths) + around > columns {
            let names = (0..widths.len()).filter(|&one| may_shrink[one]);
            let least = |one: usize| NAME_LEAST.max(self.heads[one].chars().count());
            let longest = names
                .filter(|&one| widths[one] > least(one))
                .max_by_key(|&one| widths[one]);
            let Some(longest) = longest else {
                break;
            };
            widths[longest] -= 1;
        }
        let caps = widths.iter().zip(may_shrink);
        let caps = caps.map(|(&width, may_shrink)| if may_shrink { width } else { usize::MAX });
        (caps.collect(), gap as u16)
    }
}

/// A name with at most this many characters: its beginning and its end, which distinguishes names
/// more often.
fn shortened(name: &str, most: usize) -> String {
    let count = name.chars().count();
    if count <= most || most < NAME_LEAST {
        return name.to_owned();
    }
    let first = (most - 1) / 3;
    let last = most - 1 - first;
    let begins: String = name.chars().take(first).collect();
    let ends: String = name.chars().skip(count - last).collect();
    format!("{begins}…{ends}")
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

/// A computed span of time for people, from seconds: three digits, or two units if it is long.
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

    // Breaks if: names are not shortened; a row would be broken into lines in the middle of a name.
    #[test]
    fn long_names_are_shortened_on_a_terminal_and_whole_elsewhere() {
        let file = |node: u32| format!("s000000000003-e000001-d926f2d9-n{node:04}-w00.orc");
        let place = "/pfs/projects/of/a/group/with/many/directories/cavity";
        for is_close in [false, true] {
            let mut shown = table(&["container", "node", "size", "state", "place"]);
            for node in 0..3 {
                shown.add_row([
                    plain(file(node)),
                    plain(format!("node-with-a-long-name-{node}")),
                    right("804.0 KiB"),
                    cell("readable", Tone::Good),
                    plain(place),
                ]);
            }
            shown.is_close = is_close;
            let text = shown.text(Some(80));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 4, "{text}");
            for (number, line) in lines[1..].iter().enumerate() {
                assert!(line.chars().count() <= 80, "{text}");
                assert!(line.contains(&format!("{number}-w00.orc ")), "{text}");
                assert!(
                    line.contains(&format!("-{number} ")) && line.ends_with("/cavity"),
                    "{text}"
                );
            }
            // Sentences are wrapped between words, and nothing is wider than necessary.
            shown.add_row([
                plain("a note of several words that is wrapped between them"),
                plain("-"),
            ]);
            assert!(
                shown
                    .text(Some(80))
                    .lines()
                    .all(|line| line.chars().count() <= 80)
            );
            for whole in [shown.text(None), shown.text(Some(400))] {
                assert!(whole.contains(&file(2)) && whole.contains(place), "{whole}");
            }
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(4 << 20), "4.0 MiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }

    // Breaks if: a time just below a unit is shown as a whole one of the smaller, or 59.9 minutes
    // become 60.
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
