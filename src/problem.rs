//! Problems: conditions, equations at their points, that share one parameter vector.
//! Knows nothing of how they are evaluated.

use crate::error::{Error, check_finite};
use crate::parameters::{Block, Parameters};
use crate::points::Quadrature;
use crate::record::{Equation, ParameterSpace};

pub use crate::points::Points;

/// What a condition makes of its residuals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The mean of the sum of their squares.
    Squares,
    /// The mean of their sum, as it is: an energy to be minimised.
    Energy,
    /// The sum of the squares of their integrals over the points.
    Integral,
}

/// An equation at its points, with a weight: one term of the loss.
///
/// With N points, weights w (of the condition) and q (of the points) and residuals r_k,
/// the term is `w/N · Σ_n q_n Σ_k r_nk²`; of an energy it is `w/N · Σ_n q_n Σ_k r_nk`, and
/// of an integral `w · Σ_k (Σ_n q_n r_nk)²`.
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

    /// An integral that must vanish: w (Σ q r)² for each residual, over the points and
    /// weights of a quadrature. A value c that an integral over a domain of measure |Ω|
    /// must have is part of the residual, as c/|Ω|; it may hold a coefficient.
    ///
    /// ```
    /// use dualtape::{Condition, Elemental::Tanh, Equation, Parameters, Quadrature};
    ///
    /// let mut params = Parameters::new();
    /// let net = params.mlp("u", &[1, 8, 1], Tanh)?;
    /// // ∫ u dx = 3 over [0, 2]
    /// let mass = Equation::record("mass", &params, ["x"], |[x]| net.at::<1>(&[x])[0] - 3.0 / 2.0)?;
    /// let rule = Quadrature::gauss_legendre(&[(0.0, 2.0, 20)])?;
    /// let condition = Condition::integral(&mass, &rule);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    pub fn integral(equation: &Equation, rule: &Quadrature) -> Self {
        Self {
            point_weights: Some(rule.weights().to_vec()),
            measure: Measure::Integral,
            ..Self::new(equation, rule.points().clone())
        }
    }

    /// The integral of squares over a quadrature, w Σ q r², and not their mean. With
    /// [`energy`](Self::energy) the integral of the residuals themselves.
    pub fn over(equation: &Equation, rule: &Quadrature) -> Self {
        let count = rule.points().len() as f64;
        Self {
            point_weights: Some(rule.weights().iter().map(|weight| weight * count).collect()),
            ..Self::new(equation, rule.points().clone())
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
        check_weight(name, self.measure, self.weight)?;
        if let Some(weights) = &self.point_weights {
            check_point_weights(name, weights, self.points.len())?;
        }
        Ok(())
    }
}

pub(crate) fn check_weight(condition: &str, measure: Measure, weight: f64) -> Result<(), Error> {
    if weight.is_finite() && (measure == Measure::Energy || weight >= 0.0) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what: format!("the weight of condition `{condition}`"),
        given: weight.to_string(),
        expected: match measure {
            Measure::Integral => "it must be finite, and not negative for an integral",
            _ => "it must be finite, and not negative for a mean of squares",
        }
        .to_owned(),
    })
}

pub(crate) fn check_point_weights(
    condition: &str,
    weights: &[f64],
    points: usize,
) -> Result<(), Error> {
    let what = format!("point weights of condition `{condition}`");
    if weights.len() != points {
        return Err(Error::length(what, weights.len(), points));
    }
    check_finite(&what, weights)?;
    match weights.iter().find(|w| **w < 0.0) {
        None => Ok(()),
        Some(negative) => Err(Error::OutOfRange {
            what: format!("a point weight of condition `{condition}`"),
            given: negative.to_string(),
            expected: "it must not be negative".to_owned(),
        }),
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
