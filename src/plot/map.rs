//! Maps of a field over two coordinates, with a colour bar.

use super::axis::{Axis, equal_scales};
use super::{
    BLUE_RED, FONT, INK, LABEL, Layout, MISSING, Pixels, TICK, UNIT, VIRIDIS, blend, canvas, dots,
    drawing, extent, mesh, save, sized, text, title,
};
use crate::error::{Error, check_finite};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Bytes that the cells of a map may take.
const MAP_BYTES: usize = 240_000;
/// Decades that a logarithmic map spans at most.
const DECADES: f64 = 1e-12;

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
/// let svg = Map::new("u(t, x)", axes, &u)?
///     .labels("t [s]", "x [m]")
///     .bar_label("u [m/s]")
///     .to_svg()?;
/// assert!(svg.contains("x [m]") && svg.len() < 300_000);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is drawn before `save`, `to_svg` or `to_png`"]
pub struct Map {
    title: String,
    labels: (String, String),
    bar_label: String,
    axes: [(f64, f64, usize); 2],
    values: Vec<f64>,
    colours: Colours,
    equal: bool,
    points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Colours {
    Plain,
    Diverging,
    Logarithmic,
}

/// From values to shares of the colour scale.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn share(&self, value: f64) -> f64 {
        let (low, high, value) = if self.log {
            (
                self.low.log10(),
                self.high.log10(),
                value.max(self.low).log10(),
            )
        } else {
            (self.low, self.high, value)
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn drawn(&self, value: f64) -> bool {
        value.is_finite() && !(self.log && value < 0.0)
    }
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
        let expected = axes[0].2.saturating_mul(axes[1].2);
        if values.len() != expected {
            let what = format!("values of the map `{title}`");
            return Err(Error::length(what, values.len(), expected));
        }
        Ok(Self {
            title: title.to_owned(),
            labels: (String::new(), String::new()),
            bar_label: String::new(),
            axes,
            values: values.to_vec(),
            colours: Colours::Plain,
            equal: false,
            points: Vec::new(),
        })
    }

    /// What stands at the two axes, units included.
    pub fn labels(mut self, x: &str, y: &str) -> Self {
        self.labels = (x.to_owned(), y.to_owned());
        self
    }

    /// What stands at the colour bar, unit included.
    pub fn bar_label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.bar_label);
        self
    }

    /// Colours that diverge from white at 0, for errors.
    pub fn diverging(mut self) -> Self {
        self.colours = Colours::Diverging;
        self
    }

    /// Colours by the logarithm, for sizes of errors and residuals; at most twelve decades.
    /// Negative values are drawn grey, and 0 as the least.
    pub fn log(mut self) -> Self {
        self.colours = Colours::Logarithmic;
        self
    }

    /// One scale for both axes: a square is square.
    pub fn equal(mut self) -> Self {
        self.equal = true;
        self
    }

    /// Points on the map, such as those of training.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn points(mut self, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        if x.len() != y.len() {
            return Err(Error::length("y of points on a map", y.len(), x.len()));
        }
        self.points.extend(x.iter().copied().zip(y.iter().copied()));
        Ok(self)
    }

    /// Draws into a file, and makes its folder: PNG where the name ends so, else SVG.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg); a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        save(path.as_ref(), &self.to_svg()?)
    }

    /// The picture as PNG, two dots to a pixel of the SVG.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg).
    #[cfg(feature = "png")]
    pub fn to_png(&self) -> Result<Vec<u8>, Error> {
        super::png::render(&self.to_svg()?)
    }

    /// The picture as SVG text.
    ///
    /// # Errors
    /// No value that can be drawn.
    pub fn to_svg(&self) -> Result<String, Error> {
        let scale = self.scale()?;
        let mut svg = String::new();
        let (map, bar) = self
            .draw(&mut svg, scale)
            .map_err(|error| drawing(&self.title, &*error))?;
        // Cells and points lie above the background, the first element, and below all else.
        let cells = self.cells(&map, scale) + &self.bar_cells(&bar) + &self.dots(&map);
        let place = svg.find("/>\n").map_or(0, |end| end + 3);
        svg.insert_str(place, &cells);
        Ok(sized(&svg))
    }

    fn scale(&self) -> Result<Scale, Error> {
        let log = self.colours == Colours::Logarithmic;
        let drawn = |v: &f64| v.is_finite() && !(log && *v <= 0.0);
        let (mut low, mut high) = extent(self.values.iter().copied().filter(drawn));
        if low > high {
            return Err(Error::Empty {
                what: format!(
                    "the set of values that can be drawn in the map `{}`",
                    self.title
                ),
            });
        }
        if self.colours == Colours::Diverging {
            high = low.abs().max(high.abs());
            low = -high;
        }
        if log {
            low = low.max(high * DECADES);
        }
        if low == high {
            // A constant field: some room around it, so that the bar has a length.
            let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
            (low, high) = (low - room, high + room);
        }
        Ok(Scale { low, high, log })
    }

    /// Axes, labels and the bar's ticks; gives where map and bar lie.
    fn draw(
        &self,
        svg: &mut String,
        scale: Scale,
    ) -> Result<(Pixels, Pixels), Box<dyn std::error::Error>> {
        let root = canvas(svg)?;
        let value = Axis::between(scale.low, scale.high, scale.log);
        let label = if self.bar_label.is_empty() {
            0
        } else {
            26 * UNIT
        };
        let bar_area = 74 * UNIT + value.label_width() + label;
        let [x, y] = self
            .axes
            .map(|(from, to, _)| Axis::between(from, to, false));
        let layout = Layout::new(y.label_width(), bar_area + 14 * UNIT);
        let narrow = if self.equal {
            equal_scales(&layout.inner(), &x, &y)
        } else {
            (0, 0)
        };
        let mut chart = layout.builder(&root, narrow).build_cartesian_2d(x, y)?;
        mesh(&mut chart, &self.labels, TRANSPARENT)?;
        let map = chart.plotting_area().get_pixel_range();
        title(&root, &self.title, &map)?;
        let bar = (map.0.end + 24 * UNIT..map.0.end + 48 * UNIT, map.1.clone());
        let ink = ShapeStyle::from(&INK).stroke_width(UNIT as u32);
        let tick_text = text(FONT, TICK, Pos::new(HPos::Left, VPos::Center));
        for tick in &value.ticks {
            let (x, y) = (bar.0.end, value.map(tick, (bar.1.end, bar.1.start)));
            root.draw(&PathElement::new(vec![(x, y), (x + 5 * UNIT, y)], ink))?;
            root.draw_text(&value.format_ext(tick), &tick_text, (x + 9 * UNIT, y))?;
        }
        if label > 0 {
            let style = text(FONT, LABEL, Pos::new(HPos::Center, VPos::Center))
                .transform(FontTransform::Rotate270);
            let x = bar.0.end + 9 * UNIT + value.label_width() + 18 * UNIT;
            let y = (bar.1.start + bar.1.end) / 2;
            root.draw_text(&self.bar_label, &style, (x, y))?;
        }
        root.present()?;
        Ok((map, bar))
    }

    /// The map itself: as fine as the budget of bytes allows.
    fn cells(&self, pixels: &Pixels, scale: Scale) -> String {
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
                let share = scale.share(value);
                (share * f64::from(levels - 1)).round() / f64::from(levels - 1)
            };
            svg = merged(pixels, block * UNIT, |x, y| {
                let value = self.at(x, y);
                scale.drawn(value).then(|| self.colour(colour(value)))
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

    /// The points, dark with a light edge: seen on any colour.
    fn dots(&self, pixels: &Pixels) -> String {
        let shares = |&(x, y): &(f64, f64)| {
            let share = |(from, to, _): (f64, f64, usize), x: f64| (x - from) / (to - from);
            (share(self.axes[0], x), share(self.axes[1], y))
        };
        let place =
            |share: f64, from: i32, to: i32| from + (share * f64::from(to - from)).round() as i32;
        let list: Vec<(i32, i32)> = self
            .points
            .iter()
            .map(shares)
            .filter(|(x, y)| (0.0..=1.0).contains(x) && (0.0..=1.0).contains(y))
            .map(|(x, y)| {
                (
                    place(x, pixels.0.start, pixels.0.end),
                    place(y, pixels.1.end, pixels.1.start),
                )
            })
            .collect();
        if list.is_empty() {
            return String::new();
        }
        dots(WHITE, 5 * UNIT, &list) + &dots(BLACK, 3 * UNIT, &list)
    }

    fn colour(&self, share: f64) -> u32 {
        let stops: &[u32] = match self.colours {
            Colours::Diverging => &BLUE_RED,
            Colours::Plain | Colours::Logarithmic => &VIRIDIS,
        };
        blend(stops, share)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            Map::new("no sizes", axes, &[-1.0, 0.0, 0.0, 0.0])?
                .log()
                .to_svg()
                .is_err()
        );
        assert!(
            Map::new("ragged", axes, &[0.0; 4])?
                .points(&[0.0], &[])
                .is_err()
        );
        Map::new("constant", axes, &[0.0, 0.0, f64::NAN, 0.0])?.to_svg()?;
        Ok(())
    }

    #[test]
    fn logarithms_of_sizes() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 2), (0.0, 1.0, 2)];
        let map = Map::new("sizes", axes, &[1e-3, 0.0, 10.0, 1e-1])?.log();
        let scale = map.scale()?;
        assert_eq!((scale.low, scale.high), (1e-3, 10.0));
        for (value, want) in [(0.0, 0.0), (1e-3, 0.0), (1e-1, 0.5), (10.0, 1.0)] {
            assert!((scale.share(value) - want).abs() < 1e-12, "{value}");
        }
        let wide = Map::new("wide", axes, &[1e-300, 1.0, 1.0, 1.0])?
            .log()
            .scale()?;
        assert_eq!(wide.low, 1e-12);
        Ok(())
    }

    #[test]
    fn equal_scales_make_squares() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 2), (0.0, 1.0, 2)];
        for (axes, ratio) in [(axes, 1.0), ([(0.0, 4.0, 2), (0.0, 1.0, 2)], 4.0)] {
            let map = Map::new("square", axes, &[0.0, 1.0, 2.0, 3.0])?.equal();
            let mut svg = String::new();
            let (area, _) = map.draw(&mut svg, map.scale()?).expect("a drawing");
            let length = |range: std::ops::Range<i32>| f64::from(range.end - range.start);
            let got = length(area.0) / length(area.1);
            assert!((got / ratio - 1.0).abs() < 0.01, "{got}, want {ratio}");
        }
        Ok(())
    }

    #[test]
    fn points_on_a_map_are_those_within() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 2), (0.0, 1.0, 2)];
        let map = Map::new("points", axes, &[0.0, 1.0, 2.0, 3.0])?;
        let svg = map
            .points(&[0.5, 2.0, f64::NAN], &[0.5, 0.5, 0.5])?
            .to_svg()?;
        assert_eq!(svg.matches("h0").count(), 2, "one point with its edge");
        Ok(())
    }
}
