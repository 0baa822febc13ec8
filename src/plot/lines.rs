//! Lines, marks and time slices, with a legend.

use super::axis::{Axis, equal_scales};
use super::{
    Canvas, FONT, GRID, INK, Layout, PALETTE, Pixels, TICK, UNIT, VIRIDIS, blend, canvas, dashed,
    dots, drawing, mesh, save, sized, text, title,
};
use crate::error::{Error, check_finite};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Columns that a line is thinned to; each keeps its least and greatest value.
const LINE_COLUMNS: usize = 500;
/// Marks of one series that are drawn at most.
const MARKS: usize = 20_000;

/// A picture of lines and marks: histories, slices, solutions of ordinary equations, sets of
/// points.
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
///     .marks("measured", &[0.0, 0.5], &[1.02, 0.07])?
///     .to_svg()?;
/// assert!(svg.starts_with("<svg") && svg.contains("exp(-5 t)"));
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is drawn before `save`, `to_svg` or `to_png`"]
pub struct Lines {
    title: String,
    labels: (String, String),
    log: (bool, bool),
    equal: bool,
    lines: Vec<Line>,
}

#[derive(Debug, Clone)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    look: Look,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Look {
    /// In the next colour of the palette.
    Solid,
    /// In a colour of the scale from early to late, by its place from 0 to 1.
    Scale(f64),
    Dashed,
    Marks,
}

/// Marks of one colour, in units of the drawing.
type Dots = (RGBColor, Vec<(i32, i32)>);
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

impl Lines {
    /// A picture without lines yet.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            labels: (String::new(), String::new()),
            log: (false, false),
            equal: false,
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

    /// One scale for both axes, where they are linear: a circle is round.
    pub fn equal(mut self) -> Self {
        self.equal = true;
        self
    }

    /// Adds a line. Points that are not finite leave a gap. Without a name it is not in the
    /// legend.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn line(self, name: &str, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        self.add(name, x, y, Look::Solid)
    }

    /// Adds a dashed line, black: a reference that others are compared with.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn dashed(self, name: &str, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        self.add(name, x, y, Look::Dashed)
    }

    /// Adds points, each with a mark: collocation points, measurements. Of more than 20,000
    /// every second, third, … is drawn.
    ///
    /// # Errors
    /// Lists of different lengths.
    pub fn marks(self, name: &str, x: &[f64], y: &[f64]) -> Result<Self, Error> {
        self.add(name, x, y, Look::Marks)
    }

    /// Adds profiles of a field over a grid in time and space at some times, each as a line
    /// over space named `t = …`, in colours from early to late. The numbers lie as those of
    /// [`Points::grid`](crate::Points::grid) over the two axes; of times between two rows the
    /// nearer row is taken.
    ///
    /// ```
    /// use dualtape::plot::Lines;
    ///
    /// let axes = [(0.0, 1.0, 11), (0.0, 3.0, 31)];
    /// let grid = dualtape::Points::grid(&axes)?;
    /// let wave = |n: usize| (grid.coordinate(1)[n] - grid.coordinate(0)[n]).sin();
    /// let u: Vec<f64> = (0..grid.len()).map(wave).collect();
    /// let svg = Lines::new("A wave")
    ///     .labels("x [m]", "u")
    ///     .slices(axes, &u, &[0.0, 0.5, 1.0])?
    ///     .to_svg()?;
    /// assert!(svg.contains("t = 0.5"));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of values than the grid has, no time, times beyond the axis.
    pub fn slices(
        mut self,
        axes: [(f64, f64, usize); 2],
        values: &[f64],
        times: &[f64],
    ) -> Result<Self, Error> {
        for (place, (time, x, y)) in profiles(axes, values, times)?.into_iter().enumerate() {
            let share = place as f64 / (times.len().max(2) - 1) as f64;
            let name = format!("t = {time}");
            self = self.add(&name, &x, &y, Look::Scale(share))?;
        }
        Ok(self)
    }

    /// Adds the profiles of a reference at some times, dashed, under one name.
    ///
    /// # Errors
    /// As [`slices`](Self::slices).
    pub fn dashed_slices(
        mut self,
        name: &str,
        axes: [(f64, f64, usize); 2],
        values: &[f64],
        times: &[f64],
    ) -> Result<Self, Error> {
        for (place, (_, x, y)) in profiles(axes, values, times)?.into_iter().enumerate() {
            self = self.add(if place == 0 { name } else { "" }, &x, &y, Look::Dashed)?;
        }
        Ok(self)
    }

    fn add(mut self, name: &str, x: &[f64], y: &[f64], look: Look) -> Result<Self, Error> {
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
            look,
        });
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
        let marks = self.has_marks();
        let x = Axis::over(
            all.iter().map(|p| p.0),
            self.log.0,
            if marks { 0.02 } else { 0.0 },
        );
        let y = Axis::over(all.iter().map(|p| p.1), self.log.1, 0.05);
        let corner = emptiest_corner(&all, &x, &y);
        let draw = |series: bool| -> Fallible<(String, Vec<Dots>)> {
            let mut svg = String::new();
            let dots = self.draw(&mut svg, [&x, &y], corner, series, drawable)?;
            Ok((svg, dots))
        };
        let fail = |error: Box<dyn std::error::Error>| drawing(&self.title, &*error);
        let (mut svg, all_dots) = draw(true).map_err(fail)?;
        if marks {
            // Marks lie above the grid and below the lines: where the picture without series
            // ends.
            let (frame, _) = draw(false).map_err(fail)?;
            let place = frame.rfind("</svg>").unwrap_or(0);
            let size = match all_dots.iter().map(|(_, list)| list.len()).max() {
                Some(..=200) => 6 * UNIT,
                Some(..=2000) => 4 * UNIT,
                _ => 2 * UNIT,
            };
            let text: String = all_dots
                .iter()
                .map(|(colour, list)| dots(*colour, size, list))
                .collect();
            svg.insert_str(place, &text);
        }
        Ok(sized(&svg))
    }

    fn has_marks(&self) -> bool {
        self.lines.iter().any(|line| line.look == Look::Marks)
    }

    /// Draws all but the marks, and gives where they lie; without `series`, the frame alone.
    fn draw(
        &self,
        svg: &mut String,
        [x, y]: [&Axis; 2],
        corner: (bool, bool),
        series: bool,
        drawable: impl Fn(&(f64, f64)) -> bool,
    ) -> Fallible<Vec<Dots>> {
        let root = canvas(svg)?;
        // Marks fill their area: the legend stands beside it.
        let legend = self
            .lines
            .iter()
            .map(|line| line.name.chars().count())
            .max();
        let beside = self.has_marks() && legend.is_some_and(|longest| longest > 0);
        let room = if beside {
            8 * UNIT + legend_width(legend.unwrap_or(0))
        } else {
            0
        };
        let layout = Layout::new(y.label_width(), 28 * UNIT + room);
        let narrow = if self.equal && !self.log.0 && !self.log.1 {
            equal_scales(&layout.inner(), x, y)
        } else {
            (0, 0)
        };
        let mut chart = layout
            .builder(&root, narrow)
            .build_cartesian_2d(x.clone(), y.clone())?;
        mesh(&mut chart, &self.labels, GRID.to_rgba())?;
        let area = chart.plotting_area().get_pixel_range();
        title(&root, &self.title, &area)?;
        let mut dots: Vec<Dots> = Vec::new();
        if !series {
            root.present()?;
            return Ok(dots);
        }
        let mut colours = PALETTE.iter().copied().cycle();
        let mut legend = Vec::new();
        for line in &self.lines {
            let (colour, width) = match line.look {
                Look::Dashed => (INK, UNIT),
                // The end of the scale is too light for a line.
                Look::Scale(share) => (rgb(blend(&VIRIDIS, 0.85 * share)), 2 * UNIT),
                Look::Solid | Look::Marks => (colours.next().unwrap_or(INK), 2 * UNIT),
            };
            let style = ShapeStyle::from(&colour).stroke_width(width as u32);
            if !line.name.is_empty() {
                legend.push((line, style));
            }
            if line.look == Look::Marks {
                let every = line.points.len().div_ceil(MARKS).max(1);
                let shown = line.points.iter().step_by(every).filter(|p| drawable(p));
                dots.push((
                    colour,
                    shown.map(|point| chart.backend_coord(point)).collect(),
                ));
                continue;
            }
            for piece in line
                .points
                .split(|point| !drawable(point))
                .filter(|p| !p.is_empty())
            {
                let points = thinned(piece, x);
                if line.look == Look::Dashed {
                    chart.draw_series([dashed(points, style)])?;
                } else {
                    chart.draw_series(LineSeries::new(points, style))?;
                }
            }
        }
        let place = if beside {
            Place::Beside
        } else {
            Place::Corner(corner.0, corner.1)
        };
        draw_legend(&root, &area, place, &legend)?;
        root.present()?;
        Ok(dots)
    }
}

/// Where the legend stands.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In a corner: whether it is to the right, and above.
    Corner(bool, bool),
    /// To the right of the axes.
    Beside,
}

fn legend_width(longest: usize) -> i32 {
    48 * UNIT + longest as i32 * 8 * UNIT
}

fn draw_legend(
    root: &Canvas<'_>,
    area: &Pixels,
    place: Place,
    legend: &[(&Line, ShapeStyle)],
) -> Fallible<()> {
    let longest = legend
        .iter()
        .map(|(line, _)| line.name.chars().count())
        .max();
    let Some(longest) = longest else {
        return Ok(());
    };
    let (row, gap) = (20 * UNIT, 8 * UNIT);
    let width = legend_width(longest);
    let height = row * legend.len() as i32 + 8 * UNIT;
    let left = match place {
        Place::Beside => area.0.end + gap,
        Place::Corner(true, _) => area.0.end - gap - width,
        Place::Corner(false, _) => area.0.start + gap,
    };
    let top = match place {
        Place::Beside => area.1.start,
        Place::Corner(_, true) => area.1.start + gap,
        Place::Corner(_, false) => area.1.end - gap - height,
    };
    let frame = [(left, top), (left + width, top + height)];
    root.draw(&Rectangle::new(frame, WHITE.mix(0.85).filled()))?;
    root.draw(&Rectangle::new(
        frame,
        ShapeStyle::from(&GRID).stroke_width(UNIT as u32),
    ))?;
    let text = text(FONT, TICK, Pos::new(HPos::Left, VPos::Center));
    for (place, (line, style)) in legend.iter().enumerate() {
        let y = top + 4 * UNIT + row / 2 + row * place as i32;
        let sample = vec![(left + 8 * UNIT, y), (left + 32 * UNIT, y)];
        match line.look {
            Look::Dashed => root.draw(&dashed(sample, *style))?,
            Look::Marks => {
                let middle = (left + 20 * UNIT, y);
                root.draw(&Circle::new(middle, 3 * UNIT, style.color.filled()))?;
            }
            Look::Solid | Look::Scale(_) => root.draw(&PathElement::new(sample, *style))?,
        }
        root.draw_text(&line.name, &text, (left + 40 * UNIT, y))?;
    }
    Ok(())
}

fn rgb(colour: u32) -> RGBColor {
    RGBColor((colour >> 16) as u8, (colour >> 8) as u8, colour as u8)
}

/// A time, the places of the second axis, and the values there.
type Profile = (f64, Vec<f64>, Vec<f64>);

/// Rows of a grid at some times.
fn profiles(
    axes: [(f64, f64, usize); 2],
    values: &[f64],
    times: &[f64],
) -> Result<Vec<Profile>, Error> {
    let [(from, to, rows), (a, b, columns)] = axes;
    check_finite("the ends of the axes of slices", &[from, to, a, b])?;
    if rows.checked_mul(columns) != Some(values.len()) || columns == 0 {
        let expected = rows.saturating_mul(columns);
        return Err(Error::length("values of slices", values.len(), expected));
    }
    if times.is_empty() {
        return Err(Error::Empty {
            what: "the list of times of slices".to_owned(),
        });
    }
    let step = |from: f64, to: f64, count: usize| (to - from) / (count.max(2) - 1) as f64;
    let x: Vec<f64> = (0..columns)
        .map(|j| a + step(a, b, columns) * j as f64)
        .collect();
    times
        .iter()
        .map(|&time| {
            if !(from..=to).contains(&time) {
                return Err(Error::OutOfRange {
                    what: "a time of a slice".to_owned(),
                    given: time.to_string(),
                    expected: format!("the axis runs from {from} to {to}"),
                });
            }
            let row = ((time - from) / step(from, to, rows)).round();
            let row = if row.is_finite() {
                (row as usize).min(rows - 1)
            } else {
                0
            };
            // As it is written, not as it is rounded.
            let near = from + step(from, to, rows) * row as f64;
            let shown = if (near - time).abs() <= 1e-9 * (to - from) {
                time
            } else {
                near
            };
            Ok((
                shown,
                x.clone(),
                values[row * columns..][..columns].to_vec(),
            ))
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn slices_are_the_nearest_rows() -> Result<(), Error> {
        let axes = [(0.0, 1.0, 11), (0.0, 2.0, 3)];
        let values: Vec<f64> = (0..33).map(f64::from).collect();
        let got = profiles(axes, &values, &[0.0, 0.34, 1.0])?;
        let x = vec![0.0, 1.0, 2.0];
        assert_eq!(got[0], (0.0, x.clone(), vec![0.0, 1.0, 2.0]));
        assert_eq!(got[1].2, [9.0, 10.0, 11.0]);
        assert!((got[1].0 - 0.3).abs() < 1e-12);
        assert_eq!(got[2], (1.0, x, vec![30.0, 31.0, 32.0]));
        assert!(profiles(axes, &values, &[1.5]).is_err());
        assert!(profiles(axes, &values, &[]).is_err());
        assert!(profiles(axes, &values[1..], &[0.5]).is_err());
        Ok(())
    }

    #[test]
    fn what_cannot_be_drawn_is_named() -> Result<(), Error> {
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

    #[test]
    fn marks_lie_between_grid_and_lines() -> Result<(), Error> {
        let many: Vec<f64> = (0..50_000).map(f64::from).collect();
        let svg = Lines::new("marks")
            .line("line", &[0.0, 5e4], &[0.0, 5e4])?
            .marks("points", &many, &many)?
            .to_svg()?;
        let marks = svg.find("stroke-linecap").expect("marks");
        let line = svg.find("<polyline").expect("lines");
        let last = svg.rfind("<text").expect("the legend");
        assert!(
            svg.find("marks").expect("the title") < marks && marks < last,
            "{line} {marks}"
        );
        assert_eq!(svg.matches("h0").count(), 16_667, "every third");
        Ok(())
    }
}
