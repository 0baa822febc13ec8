//! Points with their data: from lists, grids, nodes of quadratures and files.
//! Knows nothing of equations or domains.

use crate::error::{Error, check_finite};
use serde::{Deserialize, Serialize};
use std::path::Path;

mod npy;
mod quadrature;

pub use npy::{Array, read_npy};
pub use quadrature::Quadrature;

/// Collocation points, with columns of per-point data.
///
/// ```
/// use dualtape::Points;
///
/// let points = Points::from_rows(&[[0.0, -1.0], [0.0, 1.0]])?
///     .with_column("observed", &[0.3, 0.4])?;
/// assert_eq!((points.len(), points.dimension()), (2, 2));
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Lists")]
pub struct Points {
    /// One list for each coordinate.
    coordinates: Vec<Vec<f64>>,
    columns: Vec<(String, Vec<f64>)>,
}

/// Points as they are read, before anything is known of their lengths.
#[derive(Deserialize)]
struct Lists {
    coordinates: Vec<Vec<f64>>,
    columns: Vec<(String, Vec<f64>)>,
}

impl TryFrom<Lists> for Points {
    type Error = Error;

    fn try_from(lists: Lists) -> Result<Self, Error> {
        let mut columns = lists.columns.iter();
        columns.try_fold(Self::new(lists.coordinates)?, |points, (name, list)| {
            points.with_column(name, list)
        })
    }
}

impl Points {
    /// Points from lists of equal length, one for each coordinate.
    ///
    /// # Errors
    /// No coordinate, no point, lists of different lengths, numbers that are not finite.
    pub fn new(coordinates: Vec<Vec<f64>>) -> Result<Self, Error> {
        let Some(first) = coordinates.first() else {
            return Err(Error::Empty {
                what: "the list of coordinates".to_owned(),
            });
        };
        if first.is_empty() {
            return Err(Error::Empty {
                what: "the set of points".to_owned(),
            });
        }
        for (c, list) in coordinates.iter().enumerate() {
            if list.len() != first.len() {
                return Err(Error::length(
                    format!("values of coordinate {c}"),
                    list.len(),
                    first.len(),
                ));
            }
            check_finite(&format!("coordinate {c}"), list)?;
        }
        Ok(Self {
            coordinates,
            columns: Vec::new(),
        })
    }

    /// Points as rows.
    ///
    /// # Errors
    /// No point, numbers that are not finite.
    pub fn from_rows<const D: usize>(rows: &[[f64; D]]) -> Result<Self, Error> {
        Self::new(
            (0..D)
                .map(|d| rows.iter().map(|row| row[d]).collect())
                .collect(),
        )
    }

    /// Points from one list: all coordinates of the first point, then of the second, ….
    ///
    /// # Errors
    /// A length that is no multiple of `dimension`; as [`new`](Self::new).
    pub fn from_flat(dimension: usize, numbers: &[f64]) -> Result<Self, Error> {
        if dimension == 0 || !numbers.len().is_multiple_of(dimension) {
            return Err(Error::OutOfRange {
                what: "the length of a flat list of points".to_owned(),
                given: numbers.len().to_string(),
                expected: format!("a multiple of the dimension {dimension}, which is at least 1"),
            });
        }
        let list = |d: usize| numbers.iter().skip(d).step_by(dimension).copied().collect();
        Self::new((0..dimension).map(list).collect())
    }

    /// A grid: for each axis its two ends (both included) and its number of points; the
    /// last axis runs fastest. An axis of one point stands at its first end.
    ///
    /// # Errors
    /// No axis, an axis without points, more points than can be counted.
    pub fn grid(axes: &[(f64, f64, usize)]) -> Result<Self, Error> {
        Self::tensor(axes, |place, count| {
            if place + 1 == count && count > 1 {
                1.0
            } else {
                place as f64 / (count.max(2) - 1) as f64
            }
        })
    }

    /// Chebyshev's points: on each axis the extrema of a Chebyshev polynomial, both ends
    /// included, dense towards the ends. An axis of one point has its middle.
    ///
    /// ```
    /// use dualtape::Points;
    ///
    /// let points = Points::chebyshev(&[(0.0, 4.0, 5)])?;
    /// assert_eq!(points.coordinate(0)[2], 2.0);
    /// assert!(points.coordinate(0)[1] < 1.0, "closer to the end than equal distances");
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`grid`](Self::grid).
    pub fn chebyshev(axes: &[(f64, f64, usize)]) -> Result<Self, Error> {
        Self::tensor(axes, chebyshev_share)
    }

    /// All combinations of the axes' points, the last axis fastest; `share` gives the place
    /// of a point between the two ends, from 0 to 1.
    fn tensor(
        axes: &[(f64, f64, usize)],
        share: impl Fn(usize, usize) -> f64,
    ) -> Result<Self, Error> {
        if grid_total(axes.iter().map(|axis| axis.2))? == 0 {
            return Self::new(vec![Vec::new(); axes.len()]);
        }
        let nodes: Vec<Vec<f64>> = axes
            .iter()
            .map(|&(from, to, count)| {
                let node = |place: usize| between(from, to, share(place, count));
                (0..count).map(node).collect()
            })
            .collect();
        Self::combined(&nodes)
    }

    /// All combinations of nodes, the last axis fastest.
    pub(crate) fn combined(nodes: &[Vec<f64>]) -> Result<Self, Error> {
        let total = grid_total(nodes.iter().map(Vec::len))?;
        let mut repeat = total;
        let lists = nodes
            .iter()
            .map(|axis| {
                repeat /= axis.len().max(1);
                (0..total)
                    .map(|n| axis[(n / repeat) % axis.len()])
                    .collect()
            })
            .collect();
        Self::new(lists)
    }

    /// Points from a `.npy` file: an array of shape points × coordinates, or a list of
    /// numbers for a single coordinate.
    ///
    /// ```no_run
    /// use dualtape::{Points, points::read_npy};
    ///
    /// let points = Points::from_npy("points.npy")?;
    /// let observed = points.with_column("u", &read_npy("u.npy")?.values)?;
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_npy`]; an array of another shape; as [`new`](Self::new).
    pub fn from_npy(path: impl AsRef<Path>) -> Result<Self, Error> {
        let array = read_npy(&path)?;
        match array.shape[..] {
            [_] => Self::from_flat(1, &array.values),
            [_, dimension] if dimension > 0 => Self::from_flat(dimension, &array.values),
            _ => Err(Error::File {
                path: path.as_ref().display().to_string(),
                reason: format!(
                    "an array of shape {:?}; give points × coordinates, or a list",
                    array.shape
                ),
            }),
        }
    }

    /// Points from a CSV file with a line of names: the named columns become coordinates,
    /// in the order given, and all other columns become data.
    ///
    /// ```no_run
    /// use dualtape::Points;
    ///
    /// // t,x,u
    /// // 0.0,0.5,1.25
    /// let observed = Points::from_csv("measured.csv", &["t", "x"])?;
    /// println!("{:?}", observed.column("u"));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// A file that cannot be read; a column that is not there, or twice; a line of another
    /// length; a cell that is no number, with its line; as [`new`](Self::new).
    pub fn from_csv(path: impl AsRef<Path>, coordinates: &[&str]) -> Result<Self, Error> {
        let path = path.as_ref();
        let fail = |reason: String| Error::File {
            path: path.display().to_string(),
            reason,
        };
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_path(path)
            .map_err(|error| fail(error.to_string()))?;
        let names: Vec<String> = reader
            .headers()
            .map_err(|error| fail(error.to_string()))?
            .iter()
            .map(str::to_owned)
            .collect();
        if let Some(place) = (1..names.len()).find(|&place| names[..place].contains(&names[place]))
        {
            return Err(Error::DuplicateName {
                what: format!("columns in {}", path.display()),
                name: names[place].clone(),
            });
        }
        let mut lists = vec![Vec::new(); names.len()];
        for record in reader.records() {
            let record = record.map_err(|error| fail(error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            for ((cell, name), list) in record.iter().zip(&names).zip(&mut lists) {
                let number: f64 = cell
                    .parse()
                    .map_err(|_| fail(format!("line {line}: `{name}` is `{cell}`, no number")))?;
                list.push(number);
            }
        }
        let mut take = |name: &str| {
            let place = names.iter().position(|other| other == name);
            place.map(|place| std::mem::take(&mut lists[place]))
        };
        let mut own = Vec::with_capacity(coordinates.len());
        for &name in coordinates {
            own.push(take(name).ok_or_else(|| Error::UnknownName {
                what: format!("column in {}", path.display()),
                name: name.to_owned(),
                known: names.join(", "),
            })?);
        }
        let mut points = Self::new(own)?;
        for name in names
            .iter()
            .filter(|name| !coordinates.contains(&name.as_str()))
        {
            let column = take(name).unwrap_or_default();
            points = points.with_column(name, &column)?;
        }
        Ok(points)
    }

    /// The points at some places, in their order, with their data.
    ///
    /// # Errors
    /// No place, or one that is not below [`len`](Self::len).
    pub fn select(&self, places: &[usize]) -> Result<Self, Error> {
        if let Some(place) = places.iter().find(|place| **place >= self.len()) {
            return Err(Error::OutOfRange {
                what: "the place of a point".to_owned(),
                given: place.to_string(),
                expected: format!("there are {} points", self.len()),
            });
        }
        let chosen = |list: &Vec<f64>| places.iter().map(|&place| list[place]).collect();
        let mut points = Self::new(self.coordinates.iter().map(chosen).collect())?;
        let columns = self.columns.iter();
        points.columns = columns
            .map(|(name, list)| (name.clone(), chosen(list)))
            .collect();
        Ok(points)
    }

    /// These points and then others, of the same dimension and with the same columns.
    ///
    /// ```
    /// use dualtape::Points;
    ///
    /// let left = Points::from_rows(&[[0.0]])?.with_column("u", &[1.0])?;
    /// let right = Points::from_rows(&[[1.0]])?.with_column("u", &[2.0])?;
    /// assert_eq!(left.join(&right)?.column("u"), Some(&[1.0, 2.0][..]));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another dimension, other columns.
    pub fn join(mut self, other: &Self) -> Result<Self, Error> {
        if other.dimension() != self.dimension() {
            let what = "coordinates of points to be joined";
            return Err(Error::length(what, other.dimension(), self.dimension()));
        }
        if other.columns.len() != self.columns.len() {
            let what = "columns of points to be joined";
            return Err(Error::length(what, other.columns.len(), self.columns.len()));
        }
        for (name, list) in &mut self.columns {
            let more = other.column(name).ok_or_else(|| Error::UnknownName {
                what: "column among the points to be joined".to_owned(),
                name: name.clone(),
                known: other.column_names().join(", "),
            })?;
            list.extend(more);
        }
        for (list, more) in self.coordinates.iter_mut().zip(&other.coordinates) {
            list.extend(more);
        }
        Ok(self)
    }

    /// Adds a column of data, one number a point, to be read by `data(name)`.
    ///
    /// # Errors
    /// Another number of values than points (nothing is ever repeated to fit), a name that
    /// is taken, numbers that are not finite.
    pub fn with_column(mut self, name: &str, values: &[f64]) -> Result<Self, Error> {
        if values.len() != self.len() {
            return Err(Error::length(
                format!("values of the data column `{name}`"),
                values.len(),
                self.len(),
            ));
        }
        check_finite(&format!("the data column `{name}`"), values)?;
        if self.columns.iter().any(|(other, _)| other == name) {
            return Err(Error::DuplicateName {
                what: "data columns".to_owned(),
                name: name.to_owned(),
            });
        }
        self.columns.push((name.to_owned(), values.to_vec()));
        Ok(self)
    }

    /// How many points.
    pub fn len(&self) -> usize {
        self.coordinates[0].len()
    }

    /// Whether there is none; never, once made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many coordinates a point has.
    pub fn dimension(&self) -> usize {
        self.coordinates.len()
    }

    /// The values of one coordinate.
    ///
    /// # Panics
    /// As a slice would, for an index that is not below [`dimension`](Self::dimension).
    pub fn coordinate(&self, c: usize) -> &[f64] {
        &self.coordinates[c]
    }

    /// All coordinates of one point.
    ///
    /// # Panics
    /// As a slice would, for an index that is not below [`len`](Self::len).
    pub fn point(&self, n: usize) -> Vec<f64> {
        self.coordinates.iter().map(|list| list[n]).collect()
    }

    /// Names of the columns of data.
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// A column of data by its name.
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        let column = self.columns.iter().find(|(other, _)| other == name);
        column.map(|(_, values)| values.as_slice())
    }
}

/// The most coordinates that are made at once: 4 GiB. Lists that exist may be longer.
pub(crate) const MOST: usize = 1 << 29;

/// Whether so many points may be made, before any is.
pub(crate) fn check_room(points: Option<usize>, dimension: usize) -> Result<(), Error> {
    let numbers = points.and_then(|points| points.checked_mul(dimension.max(1)));
    if numbers.is_some_and(|numbers| numbers <= MOST) {
        return Ok(());
    }
    let points = points.map_or("more than can be counted".to_owned(), |n| n.to_string());
    Err(Error::OutOfRange {
        what: "the number of points to be made".to_owned(),
        given: format!("{points}, of {dimension} coordinates each"),
        expected: "take fewer: at most 2^29 coordinates, 4 GiB, are made at once".to_owned(),
    })
}

/// How many points a grid has, of so many an axis.
pub(crate) fn grid_total(counts: impl ExactSizeIterator<Item = usize>) -> Result<usize, Error> {
    let axes = counts.len();
    let total = { counts }.try_fold(1_usize, |product, count| product.checked_mul(count));
    check_room(total, axes)?;
    Ok(total.unwrap_or_default())
}

/// The extrema of a Chebyshev polynomial, from 0 to 1.
pub(crate) fn chebyshev_share(place: usize, count: usize) -> f64 {
    if count < 2 {
        return 0.5;
    }
    // As a sine of a symmetric argument: exact in the middle, and the same from either end.
    let last = (count - 1) as f64;
    let angle = (2.0 * place as f64 - last) / last * std::f64::consts::FRAC_PI_2;
    0.5 * (1.0 + angle.sin())
}

/// The number at a share of the way, never beyond the ends.
pub(crate) fn between(from: f64, to: f64, share: f64) -> f64 {
    if share == 1.0 {
        return to;
    }
    let x = from + (to - from) * share;
    // Neither `clamp`, which panics where an end is NaN, nor a NaN that gets lost.
    if x.is_nan() {
        return x;
    }
    x.max(from.min(to)).min(from.max(to))
}
