//! Pictures as SVG and PNG: lines, marks and time slices with a legend, and maps of a field
//! with a colour bar. Knows nothing of networks; it draws the numbers that it is given.

use crate::error::{Error, write_text};
use axis::Axis;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

mod axis;
mod lines;
mod map;
#[cfg(feature = "png")]
mod png;

pub use lines::Lines;
pub use map::Map;

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
/// What stands for a value that cannot be drawn.
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
/// More labels than any axis has ticks.
const MANY: usize = 100;

/// A rectangle of the drawing, in units.
type Pixels = (Range<i32>, Range<i32>);
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Into a file of the kind that its name ends with.
fn save(path: &Path, svg: &str) -> Result<(), Error> {
    match path.extension() {
        #[cfg(feature = "png")]
        Some(kind) if kind.eq_ignore_ascii_case("png") => {
            crate::error::write_file(path, &png::render(svg)?)
        }
        #[cfg(not(feature = "png"))]
        Some(kind) if kind.eq_ignore_ascii_case("png") => Err(Error::file(
            path,
            "pictures as PNG need the feature `png` of dualtape; turn it on, or write a .svg"
                .to_owned(),
        )),
        _ => write_text(path, svg),
    }
}

/// Where the axes lie: the room around them, in units.
struct Layout {
    left: i32,
    right: i32,
}

impl Layout {
    const MARGIN: i32 = 14 * UNIT;
    const TOP: i32 = 44 * UNIT;
    const BELOW: i32 = 52 * UNIT;

    /// Room for the labels of the y axis, and for what stands to the right.
    fn new(y_labels: i32, right: i32) -> Self {
        Self {
            left: 38 * UNIT + y_labels,
            right,
        }
    }

    /// What is left for the drawing itself.
    fn inner(&self) -> Pixels {
        let (width, height) = (SIZE.0 as i32 * UNIT, SIZE.1 as i32 * UNIT);
        (
            Self::MARGIN + self.left..width - self.right,
            Self::TOP..height - Self::MARGIN - Self::BELOW,
        )
    }

    /// A chart, narrower by some units at either side.
    fn builder<'a, 'b>(
        &self,
        root: &'a Canvas<'b>,
        narrow: (i32, i32),
    ) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
        let mut builder = ChartBuilder::on(root);
        builder
            .margin_left(Self::MARGIN + narrow.0)
            .margin_right(self.right + narrow.0)
            .margin_top(Self::TOP + narrow.1)
            .margin_bottom(Self::MARGIN + narrow.1)
            .x_label_area_size(Self::BELOW)
            .y_label_area_size(self.left);
        builder
    }
}

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

/// The style of a text, by its size and where its place is within it.
fn text(font: &str, size: i32, place: Pos) -> TextStyle<'_> {
    (font, size).into_font().color(&INK).pos(place)
}

fn title(root: &Canvas<'_>, title: &str, area: &Pixels) -> Result<(), Box<dyn std::error::Error>> {
    let style = text(FONT, TITLE, Pos::new(HPos::Center, VPos::Center));
    let middle = (area.0.start + area.0.end) / 2;
    root.draw_text(title, &style, (middle, area.1.start - 19 * UNIT))?;
    Ok(())
}

fn dashed<C: Clone>(
    points: Vec<C>,
    style: ShapeStyle,
) -> DashedPathElement<std::vec::IntoIter<C>, i32> {
    DashedPathElement::new(points, 6 * UNIT, 4 * UNIT, style)
}

/// Round dots of one colour: strokes without length and with round ends, in one path.
fn dots(colour: RGBColor, size: i32, list: &[(i32, i32)]) -> String {
    let mut svg = format!(
        "<path stroke=\"#{:02x}{:02x}{:02x}\" stroke-width=\"{size}\" stroke-linecap=\"round\" \
         fill=\"none\" d=\"",
        colour.0, colour.1, colour.2
    );
    for (x, y) in list {
        let _ = write!(svg, "M{x} {y}h0");
    }
    svg.push_str("\"/>\n");
    svg
}

/// The drawing at its size in pixels; the view box keeps the units.
fn sized(svg: &str) -> String {
    let (width, height) = (SIZE.0 * UNIT as u32, SIZE.1 * UNIT as u32);
    let drawn = format!("width=\"{width}\" height=\"{height}\" viewBox");
    let shown = format!("width=\"{}\" height=\"{}\" viewBox", SIZE.0, SIZE.1);
    svg.replacen(&drawn, &shown, 1)
}

fn drawing(title: &str, error: &dyn std::error::Error) -> Error {
    Error::File {
        path: format!("the picture `{title}`"),
        reason: error.to_string(),
    }
}

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

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
        (low.min(v), high.max(v))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_run_from_end_to_end() {
        assert_eq!(
            (blend(&VIRIDIS, 0.0), blend(&VIRIDIS, 1.0)),
            (0x44_0154, 0xfd_e725)
        );
        assert_eq!(blend(&BLUE_RED, 0.5), 0xf7_f7f7);
    }
}
