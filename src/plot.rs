//! Pictures as SVG: lines with a legend, and maps of a field with a colour bar.
//! Knows nothing of networks; it draws the numbers that it is given.

use crate::error::{Error, check_finite, write_text};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

/// The size of a picture.
const SIZE: (u32, u32) = (760, 480);
/// Drawing happens in whole units, so many to a pixel: curves come out smooth.
const UNIT: i32 = 5;
const FONT: &str = "sans-serif";
const TITLE: i32 = 22 * UNIT;
const LABEL: i32 = 18 * UNIT;
const TICK: i32 = 16 * UNIT;
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Okabe and Ito's colours, which stay apart for colour-blind eyes.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
/// Columns that a line is thinned to; each keeps its least and greatest value.
const LINE_COLUMNS: usize = 500;
/// Bytes that the cells of a map may take.
const MAP_BYTES: usize = 240_000;

/// A picture of lines: histories, slices, solutions of ordinary equations.
///
/// ```
/// use dualtape::plot::Lines;
///
/// let t: Vec<f64> = (0..=100).map(|i| i as f64 / 100.0).collect();
/// let decay: Vec<f64> = t.iter().map(|t| (-5.0 * t).exp()).collect();
/// let svg = Lines::new("Decay")
///     .labels("t [s]", "y")
///     .log_y()
///     .line("exp(-5 t)", &t, &decay)?
///     .to_svg()?;
/// assert!(svg.starts_with("<svg") && svg.contains("exp(-5 t)"));
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is drawn before `save` or `to_svg`"]
pub struct Lines {
    title: String,
    labels: (String, String),
    log: (bool, bool),
    lines: Vec<Line>,
}

#[derive(Debug, Clone)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
}

impl Lines {
    /// A picture without lines yet.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            labels: (String::new(), String::new()),
            log: (false, false),
            lines: Vec::new(),
        }
    }

    /// What stands at the two axes, units included.
    pub fn labels(mut self, x: &str, y: &str) -> Self {
        self.labels = (x.to_owned(), y.to_owned());
        self
    }

    /// A logarithmic x axis; points with x ≤ 0 are left out.
    pub fn log_x(mut self) -> Self {
        self.log.0 = true;
        self
    }

    /// A logarithmic y axis; points with y ≤ 0 are left out.
    pub fn log_y(mut self) -> Self {
        self.log.1 = true;
        self
    }

    /// Adds a line. Points that are not finite leave a gap. Without a name it is not in the
    /// legend.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn line(self, name: &str, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        self.add(name, x, y, false)
    }

    /// Adds a dashed line, black: a reference that others are compared with.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn dashed(self, name: &str, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        self.add(name, x, y, true)
    }

    fn add(mut self, name: &str, x: &[f64], y: &[f64], dashed: bool) -> Result<Self, Error> {
        if x.len() != y.len() {
            return Err(Error::length(
                format!("y of the line `{name}`"),
                y.len(),
                x.len(),
            ));
        }
        self.lines.push(Line {
            name: name.to_owned(),
            points: x.iter().copied().zip(y.iter().copied()).collect(),
            dashed,
        });
        Ok(self)
    }

    /// Draws into a file, and makes its folder.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg); a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_text(path.as_ref(), &self.to_svg()?)
    }

    /// The picture as SVG text.
    ///
    /// # Errors
    /// No point that can be drawn.
    pub fn to_svg(&self) -> Result<String, Error> {
        let drawable = |&(x, y): &(f64, f64)| {
            x.is_finite() && y.is_finite() && !(self.log.0 && x <= 0.0) && !(self.log.1 && y <= 0.0)
        };
        let all: Vec<(f64, f64)> = self
            .lines
            .iter()
            .flat_map(|line| &line.points)
            .copied()
            .filter(drawable)
            .collect();
        if all.is_empty() {
            return Err(Error::Empty {
                what: format!("the set of points that can be drawn in `{}`", self.title),
            });
        }
        let x = Axis::over(all.iter().map(|p| p.0), self.log.0, 0.0);
        let y = Axis::over(all.iter().map(|p| p.1), self.log.1, 0.05);
        let corner = emptiest_corner(&all, &x, &y);
        let mut svg = String::new();
        self.draw(&mut svg, x, y, corner, drawable)
            .map_err(|error| drawing(&self.title, &error))?;
        Ok(sized(&svg))
    }

    fn draw(
        &self,
        svg: &mut String,
        x: Axis,
        y: Axis,
        corner: (bool, bool),
        drawable: impl Fn(&(f64, f64)) -> bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let root = canvas(svg)?;
        let columns = x.clone();
        let mut chart = ChartBuilder::on(&root)
            .margin(14 * UNIT)
            .margin_top(44 * UNIT)
            .margin_right(28 * UNIT)
            .x_label_area_size(52 * UNIT)
            .y_label_area_size(38 * UNIT + y.label_width())
            .build_cartesian_2d(x, y)?;
        mesh(&mut chart, &self.labels, GRID.to_rgba())?;
        let area = chart.plotting_area().get_pixel_range();
        title(&root, &self.title, &area)?;
        let mut colours = PALETTE.iter().cycle();
        let mut legend = Vec::new();
        for line in &self.lines {
            let (colour, width) = if line.dashed {
                (&INK, UNIT)
            } else {
                (colours.next().unwrap_or(&INK), 2 * UNIT)
            };
            let style = ShapeStyle::from(colour).stroke_width(width as u32);
            if !line.name.is_empty() {
                legend.push((line, style));
            }
            for piece in line
                .points
                .split(|point| !drawable(point))
                .filter(|p| !p.is_empty())
            {
                let points = thinned(piece, &columns);
                if line.dashed {
                    chart.draw_series([dashed(points, style)])?;
                } else {
                    chart.draw_series(LineSeries::new(points, style))?;
                }
            }
        }

        // The legend, in its corner.
        let longest = legend
            .iter()
            .map(|(line, _)| line.name.chars().count())
            .max();
        let Some(longest) = longest else {
            return Ok(());
        };
        let (row, gap) = (20 * UNIT, 8 * UNIT);
        let width = 48 * UNIT + longest as i32 * 8 * UNIT;
        let height = row * legend.len() as i32 + 8 * UNIT;
        let left = if corner.0 {
            area.0.end - gap - width
        } else {
            area.0.start + gap
        };
        let top = if corner.1 {
            area.1.start + gap
        } else {
            area.1.end - gap - height
        };
        let frame = [(left, top), (left + width, top + height)];
        root.draw(&Rectangle::new(frame, WHITE.mix(0.85).filled()))?;
        root.draw(&Rectangle::new(
            frame,
            ShapeStyle::from(&GRID).stroke_width(UNIT as u32),
        ))?;
        let text = (FONT, TICK)
            .into_font()
            .color(&INK)
            .pos(Pos::new(HPos::Left, VPos::Center));
        for (place, (line, style)) in legend.into_iter().enumerate() {
            let y = top + 4 * UNIT + row / 2 + row * place as i32;
            let sample = vec![(left + 8 * UNIT, y), (left + 32 * UNIT, y)];
            if line.dashed {
                root.draw(&dashed(sample, style))?;
            } else {
                root.draw(&PathElement::new(sample, style))?;
            }
            root.draw_text(&line.name, &text, (left + 40 * UNIT, y))?;
        }
        root.present()?;
        Ok(())
    }
}

/// A map of a field over two coordinates, with a colour bar.
///
/// The numbers lie as those of [`Points::grid`](crate::Points::grid) over the same two axes:
/// the second runs fastest.
///
/// ```
/// use dualtape::plot::Map;
///
/// let axes = [(0.0, 1.0, 30), (-1.0, 1.0, 40)];
/// let grid = dualtape::Points::grid(&axes)?;
/// let u: Vec<f64> = (0..grid.len())
///     .map(|n| (3.0 * grid.coordinate(0)[n]).sin() * grid.coordinate(1)[n])
///     .collect();
/// let svg = Map::new("u(t, x)", axes, &u)?.labels("t [s]", "x [m]").to_svg()?;
/// assert!(svg.contains("x [m]") && svg.len() < 300_000);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is drawn before `save` or `to_svg`"]
pub struct Map {
    title: String,
    labels: (String, String),
    axes: [(f64, f64, usize); 2],
    values: Vec<f64>,
    diverging: bool,
}

impl Map {
    /// A map of `values` over a grid: for each axis its two ends and its number of points.
    /// Values that are not finite are drawn grey.
    ///
    /// # Errors
    /// An axis with fewer than two points or without length, another number of values.
    pub fn new(title: &str, axes: [(f64, f64, usize); 2], values: &[f64]) -> Result<Self, Error> {
        for (axis, (from, to, count)) in axes.into_iter().enumerate() {
            check_finite(&format!("the ends of axis {axis} of a map"), &[from, to])?;
            if count < 2 || from >= to {
                return Err(Error::OutOfRange {
                    what: format!("axis {axis} of the map `{title}`"),
                    given: format!("{count} points from {from} to {to}"),
                    expected: "give at least two points, and the lower end first".to_owned(),
                });
            }
        }
        if values.len() != axes[0].2 * axes[1].2 {
            let what = format!("values of the map `{title}`");
            return Err(Error::length(what, values.len(), axes[0].2 * axes[1].2));
        }
        Ok(Self {
            title: title.to_owned(),
            labels: (String::new(), String::new()),
            axes,
            values: values.to_vec(),
            diverging: false,
        })
    }

    /// What stands at the two axes, units included.
    pub fn labels(mut self, x: &str, y: &str) -> Self {
        self.labels = (x.to_owned(), y.to_owned());
        self
    }

    /// Colours that diverge from white at 0, for errors.
    pub fn diverging(mut self) -> Self {
        self.diverging = true;
        self
    }

    /// Draws into a file, and makes its folder.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg); a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_text(path.as_ref(), &self.to_svg()?)
    }

    /// The picture as SVG text.
    ///
    /// # Errors
    /// No value that is finite.
    pub fn to_svg(&self) -> Result<String, Error> {
        let finite = self.values.iter().copied().filter(|v| v.is_finite());
        let (mut low, mut high) = extent(finite);
        if low > high {
            return Err(Error::Empty {
                what: format!("the set of finite values of the map `{}`", self.title),
            });
        }
        if self.diverging {
            high = low.abs().max(high.abs());
            low = -high;
        }
        if low == high {
            // A constant field: some room around it, so that the bar has a length.
            let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
            (low, high) = (low - room, high + room);
        }
        let mut svg = String::new();
        let (map, bar) = self
            .draw(&mut svg, low, high)
            .map_err(|error| drawing(&self.title, &error))?;
        // The cells lie above the background, the first element, and below all else.
        let cells = self.cells(&map, low, high) + &self.bar_cells(&bar);
        let place = svg.find("/>\n").map_or(0, |end| end + 3);
        svg.insert_str(place, &cells);
        Ok(sized(&svg))
    }

    /// Axes, labels and the bar's ticks; gives where map and bar lie.
    fn draw(
        &self,
        svg: &mut String,
        low: f64,
        high: f64,
    ) -> Result<(Pixels, Pixels), Box<dyn std::error::Error>> {
        let root = canvas(svg)?;
        let value = Axis::between(low, high, false);
        let bar_area = 74 * UNIT + value.label_width();
        let (left, _) = root.split_horizontally(SIZE.0 as i32 * UNIT - bar_area);
        let [x, y] = self
            .axes
            .map(|(from, to, _)| Axis::between(from, to, false));
        let mut chart = ChartBuilder::on(&left)
            .margin(14 * UNIT)
            .margin_top(44 * UNIT)
            .x_label_area_size(52 * UNIT)
            .y_label_area_size(38 * UNIT + y.label_width())
            .build_cartesian_2d(x, y)?;
        mesh(&mut chart, &self.labels, TRANSPARENT)?;
        let map = chart.plotting_area().get_pixel_range();
        title(&root, &self.title, &map)?;
        let bar = (map.0.end + 24 * UNIT..map.0.end + 48 * UNIT, map.1.clone());
        let ink = ShapeStyle::from(&INK).stroke_width(UNIT as u32);
        let text = (FONT, TICK)
            .into_font()
            .color(&INK)
            .pos(Pos::new(HPos::Left, VPos::Center));
        for tick in &value.ticks {
            let (x, y) = (bar.0.end, value.map(tick, (bar.1.end, bar.1.start)));
            root.draw(&PathElement::new(vec![(x, y), (x + 5 * UNIT, y)], ink))?;
            root.draw_text(&value.format_ext(tick), &text, (x + 9 * UNIT, y))?;
        }
        root.present()?;
        Ok((map, bar))
    }

    /// The map itself: as fine as the budget of bytes allows.
    fn cells(&self, pixels: &Pixels, low: f64, high: f64) -> String {
        let tries = [
            (2, 96),
            (2, 48),
            (3, 48),
            (4, 48),
            (4, 24),
            (6, 24),
            (8, 16),
        ];
        let mut svg = String::new();
        for (block, levels) in tries {
            let colour = |value: f64| {
                let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
                (share * f64::from(levels - 1)).round() / f64::from(levels - 1)
            };
            svg = merged(pixels, block * UNIT, |x, y| {
                let value = self.at(x, y);
                value.is_finite().then(|| self.colour(colour(value)))
            });
            if svg.len() <= MAP_BYTES {
                break;
            }
        }
        svg
    }

    fn bar_cells(&self, pixels: &Pixels) -> String {
        merged(pixels, 2 * UNIT, |_, y| Some(self.colour(y)))
    }

    fn colour(&self, share: f64) -> u32 {
        blend(if self.diverging { &BLUE_RED } else { &VIRIDIS }, share)
    }

    /// The value at a place, both coordinates from 0 to 1, bilinearly from its neighbours.
    fn at(&self, x: f64, y: f64) -> f64 {
        let place = |share: f64, count: usize| {
            let place = share * (count - 1) as f64;
            let index = (place as usize).min(count - 2);
            (index, place - index as f64)
        };
        let rows = self.axes[1].2;
        let ((i, a), (j, b)) = (place(x, self.axes[0].2), place(y, rows));
        let corner = |di: usize, dj: usize| self.values[(i + di) * rows + j + dj];
        (corner(0, 0) * (1.0 - b) + corner(0, 1) * b) * (1.0 - a)
            + (corner(1, 0) * (1.0 - b) + corner(1, 1) * b) * a
    }
}

/// A rectangle of the drawing, in units.
type Pixels = (Range<i32>, Range<i32>);
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// More labels than any axis has ticks.
const MANY: usize = 100;

fn mesh(
    chart: &mut Chart<'_, '_>,
    labels: &(String, String),
    grid: RGBAColor,
) -> Result<(), Box<dyn std::error::Error>> {
    chart
        .configure_mesh()
        .x_desc(&labels.0)
        .y_desc(&labels.1)
        .axis_desc_style((FONT, LABEL).into_font().color(&INK))
        .label_style((FONT, TICK).into_font().color(&INK))
        .axis_style(ShapeStyle::from(&INK).stroke_width(UNIT as u32))
        .set_all_tick_mark_size(5 * UNIT)
        .bold_line_style(ShapeStyle::from(grid).stroke_width(UNIT as u32))
        .light_line_style(TRANSPARENT)
        .x_labels(MANY)
        .y_labels(MANY)
        .draw()?;
    Ok(())
}

/// A white sheet.
fn canvas(svg: &mut String) -> Result<Canvas<'_>, Box<dyn std::error::Error>> {
    let size = (SIZE.0 * UNIT as u32, SIZE.1 * UNIT as u32);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    Ok(root)
}

fn title(root: &Canvas<'_>, title: &str, area: &Pixels) -> Result<(), Box<dyn std::error::Error>> {
    let text = (FONT, TITLE)
        .into_font()
        .color(&INK)
        .pos(Pos::new(HPos::Center, VPos::Center));
    root.draw_text(title, &text, ((area.0.start + area.0.end) / 2, 25 * UNIT))?;
    Ok(())
}

fn dashed<C: Clone>(
    points: Vec<C>,
    style: ShapeStyle,
) -> DashedPathElement<std::vec::IntoIter<C>, i32> {
    DashedPathElement::new(points, 6 * UNIT, 4 * UNIT, style)
}

/// The drawing at its size in pixels; the view box keeps the units.
fn sized(svg: &str) -> String {
    let (width, height) = (SIZE.0 * UNIT as u32, SIZE.1 * UNIT as u32);
    let drawn = format!("width=\"{width}\" height=\"{height}\" viewBox");
    let shown = format!("width=\"{}\" height=\"{}\" viewBox", SIZE.0, SIZE.1);
    svg.replacen(&drawn, &shown, 1)
}

fn drawing(title: &str, error: &dyn std::fmt::Display) -> Error {
    Error::File {
        path: format!("the picture `{title}`"),
        reason: error.to_string(),
    }
}

/// Blocks of about one size in one colour each, as strokes: one path for each colour, one
/// stroke for each run of equal blocks in a row. `colour` sees a block's middle, from 0 to 1
/// in both directions, upwards.
fn merged(pixels: &Pixels, block: i32, colour: impl Fn(f64, f64) -> Option<u32>) -> String {
    let (width, height) = (pixels.0.end - pixels.0.start, pixels.1.end - pixels.1.start);
    let (columns, rows) = ((width / block).max(1), (height / block).max(1));
    let mut paths: BTreeMap<u32, String> = BTreeMap::new();
    let middle = |place: i32, count: i32| (f64::from(place) + 0.5) / f64::from(count);
    for row in 0..rows {
        let y = 1.0 - middle(row, rows);
        let colours: Vec<u32> = (0..columns)
            .map(|x| colour(middle(x, columns), y).unwrap_or(MISSING))
            .collect();
        let mut from = 0;
        for run in colours.chunk_by(|a, b| a == b) {
            let path = paths.entry(run[0]).or_default();
            let _ = write!(path, "M{from} {row}h{}", run.len());
            from += run.len();
        }
    }
    // Blocks are units of the group. Strokes overlap a little: no seams at any zoom.
    let mut svg = String::new();
    let scale = |length: i32, count: i32| f64::from(length) / f64::from(count);
    let (sx, sy) = (scale(width, columns), scale(height, rows));
    let (x, y) = (
        f64::from(pixels.0.start),
        f64::from(pixels.1.start) + 0.5 * sy,
    );
    let _ = writeln!(
        svg,
        "<g shape-rendering=\"crispEdges\" stroke-width=\"1.06\" \
         transform=\"translate({x:.2} {y:.2}) scale({sx:.4} {sy:.4})\">"
    );
    for (colour, path) in paths {
        let _ = writeln!(svg, "<path stroke=\"#{colour:06x}\" d=\"{path}\"/>");
    }
    svg.push_str("</g>\n");
    svg
}

/// What stands for a value that is not finite.
const MISSING: u32 = 0x9a_9a9a;
/// matplotlib's viridis, at equal distances.
const VIRIDIS: [u32; 10] = [
    0x44_0154, 0x48_2878, 0x3e_4989, 0x31_688e, 0x26_828e, 0x1f_9e89, 0x35_b779, 0x6e_ce58,
    0xb5_de2b, 0xfd_e725,
];
/// ColorBrewer's RdBu, from blue over white to red.
const BLUE_RED: [u32; 11] = [
    0x05_3061, 0x21_66ac, 0x43_93c3, 0x92_c5de, 0xd1_e5f0, 0xf7_f7f7, 0xfd_dbc7, 0xf4_a582,
    0xd6_604d, 0xb2_182b, 0x67_001f,
];

fn blend(stops: &[u32], share: f64) -> u32 {
    let place = share * (stops.len() - 1) as f64;
    let index = (place as usize).min(stops.len() - 2);
    let part = place - index as f64;
    let channel = |shift: u32| {
        let of = |stop: u32| f64::from((stop >> shift) & 0xff);
        let mixed = of(stops[index]) * (1.0 - part) + of(stops[index + 1]) * part;
        (mixed.round() as u32) << shift
    };
    channel(16) | channel(8) | channel(0)
}

/// At most so many points, which look the same: the least and the greatest of each column.
fn thinned(points: &[(f64, f64)], axis: &Axis) -> Vec<(f64, f64)> {
    if points.len() <= 2 * LINE_COLUMNS {
        return points.to_vec();
    }
    let column = |x: f64| (axis.share(x) * LINE_COLUMNS as f64) as i64;
    let mut all = Vec::new();
    for bucket in points.chunk_by(|a, b| column(a.0) == column(b.0)) {
        let by_y = |a: &usize, b: &usize| bucket[*a].1.total_cmp(&bucket[*b].1);
        let low = (0..bucket.len()).min_by(by_y).unwrap_or(0);
        let high = (0..bucket.len()).max_by(by_y).unwrap_or(0);
        all.push(bucket[low.min(high)]);
        if low != high {
            all.push(bucket[low.max(high)]);
        }
    }
    all
}

/// The corner with the fewest points near it: whether it is to the right, and above.
fn emptiest_corner(points: &[(f64, f64)], x: &Axis, y: &Axis) -> (bool, bool) {
    let near = |(right, top): (bool, bool)| {
        let close = |p: &&(f64, f64)| {
            let far = |share: f64, end: bool| (share - f64::from(u8::from(end))).abs() > 0.35;
            !far(x.share(p.0), right) && !far(y.share(p.1), top)
        };
        points.iter().filter(close).count()
    };
    let corners = [(true, true), (false, true), (true, false), (false, false)];
    corners
        .into_iter()
        .min_by_key(|corner| near(*corner))
        .unwrap_or((true, true))
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
        (low.min(v), high.max(v))
    })
}

/// An axis with its ticks, linear or logarithmic.
#[derive(Debug, Clone)]
struct Axis {
    /// The ends; their logarithms to base 10 on a logarithmic axis.
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<f64>,
    /// The distance of ticks on a linear axis.
    step: f64,
}

impl Axis {
    /// An axis that holds all values, with a share of its length as room at either end.
    fn over(values: impl Iterator<Item = f64>, log: bool, room: f64) -> Self {
        let (low, high) = extent(values);
        if log {
            let (low, high) = (low.log10(), high.log10());
            let room = (room * (high - low)).max(0.02);
            return Self::between(10_f64.powf(low - room), 10_f64.powf(high + room), true);
        }
        let mut room = room * (high - low);
        if low == high {
            room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
        }
        Self::between(low - room, high + room, false)
    }

    fn between(low: f64, high: f64, log: bool) -> Self {
        let (from, to) = if log {
            (low.log10(), high.log10())
        } else {
            (low, high)
        };
        let within = |tick: &f64| {
            let slack = 1e-9 * (to - from);
            (from - slack..=to + slack).contains(&if log { tick.log10() } else { *tick })
        };
        let multiples = |step: f64| {
            let first = (from / step).floor() as i64;
            let last = (to / step).ceil() as i64;
            (first..=last).map(move |k| k as f64 * step)
        };
        let mut step = round_up((to - from) / 7.0);
        let ticks: Vec<f64> = if !log {
            multiples(step).filter(within).collect()
        } else if to - from >= 1.5 {
            step = ((to - from) / 8.0).ceil();
            multiples(step)
                .map(|k| 10_f64.powf(k))
                .filter(within)
                .collect()
        } else {
            let decades = from.floor() as i32..=to.ceil() as i32;
            let fine = |decade: i32| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(decade));
            decades.flat_map(fine).filter(within).collect()
        };
        Self {
            from,
            to,
            log,
            ticks,
            step,
        }
    }

    /// Where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let place = if self.log { value.log10() } else { value };
        (place - self.from) / (self.to - self.from)
    }

    /// Units that the longest tick label takes, about.
    fn label_width(&self) -> i32 {
        let longest = self
            .ticks
            .iter()
            .map(|tick| self.format_ext(tick).chars().count())
            .max();
        longest.unwrap_or(0) as i32 * 8 * UNIT
    }
}

/// The least of 1, 2, 5, 10, 20, … that is not less.
fn round_up(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|m| m * decade >= step * (1.0 - 1e-9));
    round.unwrap_or(10.0) * decade
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = self.share(*value).clamp(-1.0, 2.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        if self.log {
            return 10_f64.powf(self.from)..10_f64.powf(self.to);
        }
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, tick: &f64) -> String {
        if self.log {
            let plain = self.from >= -2.1 && self.to <= 4.0;
            return if plain {
                format!("{tick}")
            } else {
                format!("{tick:.0e}")
            };
        }
        let largest = self.from.abs().max(self.to.abs());
        if !(1e-3..1e6).contains(&largest) {
            // Enough digits to tell neighbouring ticks apart.
            if tick.abs() < 1e-9 * largest {
                return "0".to_owned();
            }
            let digits = (tick.abs().log10().floor() - self.step.log10().floor()).max(0.0);
            return format!("{tick:.*e}", digits as usize);
        }
        let decimals = (-self.step.log10().floor()).max(0.0);
        format!(
            "{:.*}",
            decimals as usize,
            if *tick == 0.0 { 0.0 } else { *tick }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks
            .iter()
            .map(|tick| axis.format_ext(tick))
            .collect()
    }

    #[test]
    fn ticks_are_round() {
        let cases: [(f64, f64, bool, &[&str]); 6] = [
            (-1.0, 1.0, false, &["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
            (
                0.0,
                5000.0,
                false,
                &["0", "1000", "2000", "3000", "4000", "5000"],
            ),
            (
                -3e-5,
                3e-5,
                false,
                &["-3e-5", "-2e-5", "-1e-5", "0", "1e-5", "2e-5", "3e-5"],
            ),
            (
                2e7,
                2.6e7,
                false,
                &[
                    "2.0e7", "2.1e7", "2.2e7", "2.3e7", "2.4e7", "2.5e7", "2.6e7",
                ],
            ),
            (
                1e-6,
                1.0,
                true,
                &["1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1", "1e0"],
            ),
            (0.9, 6.0, true, &["1", "2", "5"]),
        ];
        for (low, high, log, want) in cases {
            assert_eq!(
                labels(&Axis::between(low, high, log)),
                want,
                "{low} to {high}"
            );
        }
    }

    #[test]
    fn awkward_ranges_have_few_ticks() {
        for (low, high) in [
            (0.0, 1e-300),
            (-1e300, 1e300),
            (0.1, 0.1000001),
            (3.0, 17.0),
        ] {
            let axis = Axis::over([low, high].into_iter(), false, 0.05);
            assert!(
                (2..=9).contains(&axis.ticks.len()),
                "{low} to {high}: {:?}",
                labels(&axis)
            );
        }
        for (low, high) in [(1e-300, 1.0), (1e-16, 3.0), (2.0, 2.0), (2.0, 2.1)] {
            let axis = Axis::over([low, high].into_iter(), true, 0.05);
            assert!(
                axis.ticks.len() <= 9,
                "{low} to {high}: {:?}",
                labels(&axis)
            );
        }
    }

    #[test]
    fn colours_run_from_end_to_end() {
        assert_eq!(
            (blend(&VIRIDIS, 0.0), blend(&VIRIDIS, 1.0)),
            (0x44_0154, 0xfd_e725)
        );
        assert_eq!(blend(&BLUE_RED, 0.5), 0xf7_f7f7);
    }

    #[test]
    fn thinning_keeps_the_extremes() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 0.5)).collect();
        points[77_777].1 = 9.0;
        points[33_333].1 = -9.0;
        let thin = thinned(&points, &Axis::between(0.0, 1e5, false));
        assert!(thin.len() <= 2 * LINE_COLUMNS + 2);
        assert!(thin.contains(&points[77_777]) && thin.contains(&points[33_333]));
    }

    #[test]
    fn merged_cells_cover_every_block_once() {
        let svg = merged(&(10..31, 5..18), 2, |x, y| Some(u32::from(x > y)));
        let runs = svg.split('h').filter_map(|piece| {
            piece
                .split(['M', '"'])
                .next()
                .and_then(|length| length.parse::<usize>().ok())
        });
        assert_eq!(runs.sum::<usize>(), 10 * 6);
    }

    #[test]
    fn noise_stays_within_the_budget() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 300), (0.0, 1.0, 300)];
        let noise: Vec<f64> = (0..90_000).map(|i| f64::from(i * 7919 % 10_007)).collect();
        let svg = Map::new("noise", axes, &noise)?.to_svg()?;
        assert!(svg.len() < 300_000, "{} bytes", svg.len());
        Ok(())
    }

    #[test]
    fn what_cannot_be_drawn_is_named() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 2), (0.0, 1.0, 2)];
        assert!(Map::new("short", axes, &[0.0; 3]).is_err());
        assert!(Map::new("flat", [(0.0, 0.0, 2), axes[1]], &[0.0; 4]).is_err());
        assert!(Map::new("nothing", axes, &[f64::NAN; 4])?.to_svg().is_err());
        Map::new("constant", axes, &[0.0, 0.0, f64::NAN, 0.0])?.to_svg()?;
        assert!(Lines::new("ragged").line("a", &[0.0], &[]).is_err());
        let message = Lines::new("log of 0")
            .log_y()
            .line("a", &[1.0], &[0.0])?
            .to_svg();
        let message = message.expect_err("nothing to draw").to_string();
        assert!(message.contains("log of 0"), "{message}");
        Lines::new("<&> a point")
            .line("<a & b>", &[1.0], &[1.0])?
            .to_svg()?;
        Ok(())
    }
}
