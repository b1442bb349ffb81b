//! Draws pictures for planning: panels with curves or bars, as SVG or PNG.
//!
//! How: both use the same drawing; a PNG has two pixels where an SVG has one. The font is built in,
//! so that a picture is the same on machines without fonts.
//!
//! Invariants:
//! 1. A file that cannot be drawn or written is an error, and an existing file stays.
//! 2. There are at most as many curves as colours; the names are written beside all of them.
//!
//! Not here: the contents (`commands/plan`).

use std::path::Path;
use std::sync::Once;

use orcheck_format::{Error, Result};
use orcheck_io::user::write_file;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::output::{percent, span};

static FONT: &[u8] = include_bytes!("picture/DejaVuSans.ttf");
const FAMILY: &str = "sans-serif";
/// Size of one panel.
const SIZE: (u32, u32) = (560, 400);
/// Panels beside each other.
const COLUMNS: u32 = 2;
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 95, 168),
    RGBColor(200, 80, 30),
    RGBColor(58, 138, 63),
    RGBColor(122, 74, 160),
    RGBColor(160, 121, 26),
    RGBColor(74, 74, 74),
    RGBColor(194, 67, 127),
    RGBColor(42, 154, 160),
];

/// Steps of shares.
const SHARES: [f64; 10] = [1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2];

/// The quantity on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Seconds, logarithmic.
    Times,
    /// Seconds, linear.
    Time,
    /// Shares of 1, from 0 on.
    Share,
    /// Shares of 1, from the smallest one that is shown.
    PartOfShare,
    /// Whole numbers.
    Count,
}

/// A curve, or points.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Drawn as separate points.
    pub dots: bool,
}

/// Curves over a common axis.
pub struct Lines {
    pub title: String,
    pub x: (Axis, &'static str),
    pub y: (Axis, &'static str),
    pub curves: Vec<Curve>,
}

/// Bars of several parts each.
pub struct Bars {
    pub title: String,
    pub x_label: &'static str,
    pub parts: Vec<&'static str>,
    /// Shares, by the names of the bars.
    pub rows: Vec<(String, Vec<f64>)>,
}

/// One panel of a picture.
pub enum Panel {
    Lines(Lines),
    Bars(Bars),
}

/// Draws the panels, and writes them to a file that ends with `.svg` or `.png`.
///
/// # Errors
/// Invalid for another ending; otherwise the error of the file system.
pub fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // An invalid font would leave out the text; a test draws some.
        let _ = plotters::style::register_font(FAMILY, FontStyle::Normal, FONT);
    });
    let columns = (panels.len() as u32).clamp(1, COLUMNS);
    let rows = (panels.len() as u32).div_ceil(columns).max(1);
    let size = (SIZE.0 * columns, SIZE.1 * rows);
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("svg") => {
            let mut text = String::new();
            let backend = SVGBackend::with_string(&mut text, size);
            sheet(backend, 1, columns as usize, panels)?;
            text.into_bytes()
        }
        Some("png") => {
            let size = (size.0 * 2, size.1 * 2);
            let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
            let backend = BitMapBackend::with_buffer(&mut pixels, size);
            sheet(backend, 2, columns as usize, panels)?;
            png_of(&pixels, size)?
        }
        _ => {
            return Err(Error::invalid(format!(
                "--plot {}: expected a file that ends with .svg or .png",
                path.display()
            )));
        }
    };
    write_file(path, &bytes).map_err(|error| error.at("--plot"))
}

fn png_of(pixels: &[u8], (width, height): (u32, u32)) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(pixels));
    written.map_err(|error| Error::internal(format!("PNG: {error}")))?;
    Ok(bytes)
}

type Drawn = std::result::Result<(), String>;

fn sheet<B: DrawingBackend>(
    backend: B,
    scale: u32,
    columns: usize,
    panels: &[Panel],
) -> Result<()> {
    let draw = || -> Drawn {
        let sheet = backend.into_drawing_area();
        sheet.fill(&WHITE).map_err(text)?;
        let areas = sheet.split_evenly((panels.len().div_ceil(columns).max(1), columns));
        for (area, panel) in areas.iter().zip(panels) {
            match panel {
                Panel::Lines(lines) => draw_lines(area, scale, lines)?,
                Panel::Bars(bars) => draw_bars(area, scale, bars)?,
            }
        }
        sheet.present().map_err(text)
    };
    draw().map_err(|error| Error::internal(format!("the picture: {error}")))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn font(scale: u32, size: u32) -> TextStyle<'static> {
    (FAMILY, size * scale).into_font().color(&BLACK)
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Draws the title and the names with their colours, and returns the rest of the area.
fn head<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    scale: u32,
    title: &str,
    names: &[&str],
) -> std::result::Result<DrawingArea<B, Shift>, String> {
    let pixels = |n: u32| (n * scale) as i32;
    let (width, _) = area.dim_in_pixel();
    area.draw_text(title, &font(scale, 15), (pixels(14), pixels(10)))
        .map_err(text)?;
    let style = font(scale, 12);
    let (mut x, mut y) = (pixels(14), pixels(34));
    for (number, name) in names.iter().enumerate() {
        let (long, _) = area.estimate_text_size(name, &style).map_err(text)?;
        let wide = pixels(26) + long as i32;
        if x + wide > width as i32 && x > pixels(14) {
            (x, y) = (pixels(14), y + pixels(17));
        }
        let mark = [(x, y + pixels(1)), (x + pixels(10), y + pixels(10))];
        area.draw(&Rectangle::new(mark, colour(number).filled()))
            .map_err(text)?;
        area.draw_text(name, &style, (x + pixels(14), y))
            .map_err(text)?;
        x += wide;
    }
    let used = if names.is_empty() {
        pixels(34)
    } else {
        y + pixels(20)
    };
    Ok(area.split_vertically(used as u32).1)
}

fn draw_lines<B: DrawingBackend>(area: &DrawingArea<B, Shift>, scale: u32, lines: &Lines) -> Drawn {
    let names: Vec<&str> = lines
        .curves
        .iter()
        .map(|curve| curve.name.as_str())
        .collect();
    let area = head(area, scale, &lines.title, &names)?;
    let all = || lines.curves.iter().flat_map(|curve| &curve.points);
    let (x_axis, y_axis) = (lines.x.0, lines.y.0);
    let x = Scale::of(x_axis, all().map(|point| point.0));
    let y = Scale::of(y_axis, all().map(|point| point.1));
    let mut chart = ChartBuilder::on(&area)
        .margin_left(12 * scale)
        .margin_right(18 * scale)
        .x_label_area_size(46 * scale)
        .y_label_area_size(62 * scale)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(226, 226, 226))
        .axis_style(RGBColor(120, 120, 120))
        .label_style(font(scale, 11))
        .axis_desc_style(font(scale, 12))
        .x_desc(lines.x.1)
        .y_desc(lines.y.1)
        .draw()
        .map_err(text)?;
    for (number, curve) in lines.curves.iter().enumerate() {
        let points = curve.points.iter();
        let points = points.map(|&(x, y)| (place(x_axis, x), place(y_axis, y)));
        if curve.dots {
            let dot = |point| Circle::new(point, 3 * scale, colour(number).filled());
            chart.draw_series(points.map(dot)).map_err(text)?;
        } else {
            let style = colour(number).stroke_width(2 * scale);
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(text)?;
        }
    }
    Ok(())
}

fn draw_bars<B: DrawingBackend>(area: &DrawingArea<B, Shift>, scale: u32, bars: &Bars) -> Drawn {
    let area = head(area, scale, &bars.title, &bars.parts)?;
    let totals = bars.rows.iter().map(|(_, parts)| parts.iter().sum());
    let x = Scale::of(Axis::Share, totals);
    // A single bar is no wider than one of several.
    let count = bars.rows.len().max(4);
    let names = bars.rows.iter().map(|(name, _)| name.clone());
    let y = Scale {
        low: count as f64,
        high: 0.0,
        ticks: (0..count).map(|row| row as f64 + 0.5).zip(names).collect(),
    };
    let mut chart = ChartBuilder::on(&area)
        .margin_left(12 * scale)
        .margin_right(18 * scale)
        .x_label_area_size(46 * scale)
        .y_label_area_size(150 * scale)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(226, 226, 226))
        .axis_style(RGBColor(120, 120, 120))
        .label_style(font(scale, 11))
        .axis_desc_style(font(scale, 12))
        .x_desc(bars.x_label)
        .draw()
        .map_err(text)?;
    for (row, (_, parts)) in bars.rows.iter().enumerate() {
        let (mut from, top) = (0.0, row as f64 + 0.2);
        for (number, part) in parts.iter().enumerate() {
            let corners = [(from, top), (from + part, top + 0.6)];
            chart
                .plotting_area()
                .draw(&Rectangle::new(corners, colour(number).filled()))
                .map_err(text)?;
            from += part;
        }
    }
    Ok(())
}

/// The position of a value on its axis.
fn place(axis: Axis, value: f64) -> f64 {
    match axis {
        Axis::Times => value.max(1e-9).log10(),
        _ => value,
    }
}

/// A time in one unit: ticks are at whole ones.
fn round_span(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 0.999 * unit);
    match unit {
        _ if seconds == 0.0 => "0".to_owned(),
        Some((unit, name)) => format!("{} {name}", (seconds / unit * 100.0).round() / 100.0),
        None => span(seconds),
    }
}

/// The ends of an axis, and the positions of its ticks.
struct Scale {
    low: f64,
    high: f64,
    /// The position, and the label.
    ticks: Vec<(f64, String)>,
}

impl Scale {
    fn of(axis: Axis, values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        match axis {
            Axis::Times => Self::of_times(low.max(1e-6), high.max(1e-6)),
            Axis::Share => Self::even(axis, low.min(0.0), high, &SHARES),
            Axis::PartOfShare => Self::even(axis, low, high, &SHARES),
            Axis::Count => Self::even(axis, low, high, &[1.0, 2.0, 5.0]),
            Axis::Time => Self::even(
                axis,
                0.0,
                high,
                &[
                    1.0, 10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0,
                    86_400.0,
                ],
            ),
        }
    }

    /// About six ticks at multiples of one of these steps, or of a step times a power of ten.
    fn even(axis: Axis, low: f64, high: f64, steps: &[f64]) -> Self {
        let high = if high > low { high } else { low + 1e-4 };
        let mut all = steps.to_vec();
        let last = steps.last().copied().unwrap_or(1.0);
        all.extend(
            (1..12)
                .flat_map(|n| [1.0, 2.0, 5.0].map(|of| last * of * 10f64.powi(n - 1)))
                .filter(|&step| step > last),
        );
        let step = all.into_iter().find(|step| (high - low) / step <= 7.0);
        let step = step.unwrap_or((high - low) / 6.0);
        let first = (low / step).ceil() as i64;
        let ticks = (first..).map(|n| n as f64 * step);
        let named = |tick: f64| match axis {
            Axis::Times | Axis::Time => (tick, round_span(tick)),
            Axis::Share | Axis::PartOfShare => (tick, percent(tick).replace(".00", "")),
            Axis::Count => (tick, format!("{tick:.0}")),
        };
        let ticks = ticks.take_while(|&tick| tick <= high * (1.0 + 1e-9));
        Self {
            low,
            high: high + (high - low) * 0.03,
            ticks: ticks.map(named).collect(),
        }
    }

    /// Round times between these.
    fn of_times(low: f64, high: f64) -> Self {
        let named = [
            1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0,
            864_000.0, 8.64e6, 8.64e7, 8.64e8, 8.64e9,
        ];
        let ticks = named.into_iter().filter(|time| (low..=high).contains(time));
        let ticks = ticks.map(|time: f64| (time.log10(), round_span(time)));
        Self {
            low: low.log10(),
            high: high.log10().max(low.log10() + 0.1),
            ticks: ticks.collect(),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _hint: H) -> Vec<f64> {
        self.ticks.iter().map(|&(at, _)| at).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| at == value);
        tick.map_or_else(String::new, |(_, name)| name.clone())
    }
}
