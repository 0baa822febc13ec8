//! Problems: points with their data, and conditions that share one parameter vector.
//! Knows nothing of how they are evaluated.

use crate::error::{Error, check_finite};
use crate::parameters::{Block, Parameters};
use crate::record::{Equation, ParameterSpace};
use serde::{Deserialize, Serialize};

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
pub struct Points {
    /// One list for each coordinate.
    coordinates: Vec<Vec<f64>>,
    columns: Vec<(String, Vec<f64>)>,
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
        let total = axes
            .iter()
            .try_fold(1_usize, |product, axis| product.checked_mul(axis.2))
            .filter(|total| *total <= 1 << 32)
            .ok_or_else(|| Error::OutOfRange {
                what: "the size of a grid".to_owned(),
                given: "more than 2^32 points".to_owned(),
                expected: "take fewer points an axis".to_owned(),
            })?;
        let mut repeat = total;
        let lists = axes
            .iter()
            .map(|&(from, to, count)| {
                repeat /= count.max(1);
                (0..total)
                    .map(|n| {
                        let place = (n / repeat) % count;
                        if place + 1 == count && count > 1 {
                            to
                        } else {
                            let share = place as f64 / (count.max(2) - 1) as f64;
                            from + (to - from) * share
                        }
                    })
                    .collect()
            })
            .collect();
        Self::new(lists)
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

    /// A column of data by its name.
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        let column = self.columns.iter().find(|(other, _)| other == name);
        column.map(|(_, values)| values.as_slice())
    }
}

/// What a condition makes of its residuals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The mean of the sum of their squares.
    Squares,
    /// The mean of their sum, as it is: an energy to be minimised.
    Energy,
}

/// An equation at its points, with a weight: one term of the loss.
///
/// With N points, weights w (of the condition) and q (of the points) and residuals r_k,
/// the term is `w/N · Σ_n q_n Σ_k r_nk²`.
#[derive(Debug, Clone)]
pub struct Condition {
    pub(crate) name: String,
    pub(crate) equation: Equation,
    pub(crate) points: Points,
    pub(crate) weight: f64,
    pub(crate) point_weights: Option<Vec<f64>>,
    pub(crate) measure: Measure,
}

impl Condition {
    /// The mean of squares of an equation's residuals, with weight 1 and the equation's
    /// name.
    pub fn new(equation: &Equation, points: Points) -> Self {
        Self {
            name: equation.name().to_owned(),
            equation: equation.clone(),
            points,
            weight: 1.0,
            point_weights: None,
            measure: Measure::Squares,
        }
    }

    /// Another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Its weight in the loss.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// A weight for each point, not negative.
    #[must_use]
    pub fn point_weights(mut self, weights: &[f64]) -> Self {
        self.point_weights = Some(weights.to_vec());
        self
    }

    /// The mean of the residuals themselves: an energy (Deep Ritz).
    #[must_use]
    pub fn energy(mut self) -> Self {
        self.measure = Measure::Energy;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its equation.
    pub fn equation(&self) -> &Equation {
        &self.equation
    }

    /// Its points.
    pub fn points(&self) -> &Points {
        &self.points
    }

    pub(crate) fn check(&self, parameters: &Parameters) -> Result<(), Error> {
        let name = &self.name;
        let known = |group: &String| parameters.groups().contains(group);
        if self.equation.owner() != parameters.owner() || !self.equation.groups().iter().all(known)
        {
            return Err(Error::OtherParameters {
                what: format!("condition `{name}`"),
            });
        }
        self.check_points()
    }

    /// Whether points, data and weights fit the equation.
    pub(crate) fn check_points(&self) -> Result<(), Error> {
        let name = &self.name;
        let expected = self.equation.coordinates().len();
        if self.points.dimension() != expected {
            return Err(Error::length(
                format!("coordinates of the points of condition `{name}`"),
                self.points.dimension(),
                expected,
            ));
        }
        for column in self.equation.columns() {
            if self.points.column(column).is_none() {
                return Err(Error::MissingColumn {
                    condition: name.clone(),
                    column: column.clone(),
                });
            }
        }
        if !self.weight.is_finite() || (self.measure == Measure::Squares && self.weight < 0.0) {
            return Err(Error::OutOfRange {
                what: format!("the weight of condition `{name}`"),
                given: self.weight.to_string(),
                expected: "it must be finite, and not negative for a mean of squares".to_owned(),
            });
        }
        if let Some(weights) = &self.point_weights {
            if weights.len() != self.points.len() {
                return Err(Error::length(
                    format!("point weights of condition `{name}`"),
                    weights.len(),
                    self.points.len(),
                ));
            }
            check_finite(&format!("point weights of condition `{name}`"), weights)?;
            if let Some(negative) = weights.iter().find(|w| **w < 0.0) {
                return Err(Error::OutOfRange {
                    what: format!("a point weight of condition `{name}`"),
                    given: negative.to_string(),
                    expected: "it must not be negative".to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// Conditions that share one parameter vector: the loss is their sum.
#[derive(Debug, Clone)]
pub struct Problem {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) parameters: usize,
    pub(crate) blocks: Vec<Block>,
}

impl Problem {
    /// Conditions whose equations were recorded with `parameters`.
    ///
    /// # Errors
    /// No condition; points, data or weights that do not fit; two conditions of one name;
    /// a network or coefficient that no condition depends on.
    pub fn new(
        parameters: &Parameters,
        conditions: impl IntoIterator<Item = Condition>,
    ) -> Result<Self, Error> {
        let conditions: Vec<Condition> = conditions.into_iter().collect();
        if conditions.is_empty() {
            return Err(Error::Empty {
                what: "the list of conditions".to_owned(),
            });
        }
        for (place, condition) in conditions.iter().enumerate() {
            condition.check(parameters)?;
            if conditions[..place]
                .iter()
                .any(|other| other.name == condition.name)
            {
                return Err(Error::DuplicateName {
                    what: "conditions".to_owned(),
                    name: condition.name.clone(),
                });
            }
        }
        for group in parameters.groups() {
            let read = |c: &Condition| c.equation.groups().contains(group);
            if !conditions.iter().any(read) {
                return Err(Error::UntouchedParameter {
                    name: group.clone(),
                    within: "the problem".to_owned(),
                });
            }
        }
        Ok(Self {
            conditions,
            parameters: parameters.len(),
            blocks: parameters.blocks().to_vec(),
        })
    }

    /// One condition, to be looked at and not trained: it may leave parameters untouched.
    pub(crate) fn watched(parameters: &Parameters, condition: &Condition) -> Result<Self, Error> {
        condition.check(parameters)?;
        Ok(Self {
            conditions: vec![condition.clone()],
            parameters: parameters.len(),
            blocks: Vec::new(),
        })
    }

    /// The conditions, in order.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}
