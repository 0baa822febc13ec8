//! Points with weights that make integrals.
//! Knows nothing of equations.

use super::{Points, between};
use crate::error::{Error, check_finite};
use gauss_quad::GaussLegendre;
use std::num::NonZeroUsize;

/// Points and the weights that a sum over them needs to be an integral.
///
/// ```
/// use dualtape::Quadrature;
///
/// // ∫∫ x² y over [0, 1] × [0, 2] is 2/3; two points an axis are exact up to degree 3.
/// let rule = Quadrature::gauss_legendre(&[(0.0, 1.0, 2), (0.0, 2.0, 2)])?;
/// let integral: f64 = (0..rule.points().len())
///     .map(|n| rule.points().point(n))
///     .zip(rule.weights())
///     .map(|(p, w)| w * p[0] * p[0] * p[1])
///     .sum();
/// assert!((integral - 2.0 / 3.0).abs() < 1e-15);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Quadrature {
    points: Points,
    weights: Vec<f64>,
}

impl Quadrature {
    /// Any points with their weights, not negative.
    ///
    /// # Errors
    /// Another number of weights than points, weights that are negative or not finite.
    pub fn new(points: Points, weights: &[f64]) -> Result<Self, Error> {
        if weights.len() != points.len() {
            let what = "weights of a quadrature";
            return Err(Error::length(what, weights.len(), points.len()));
        }
        check_finite("the weights of a quadrature", weights)?;
        if let Some(negative) = weights.iter().find(|weight| **weight < 0.0) {
            return Err(Error::OutOfRange {
                what: "a weight of a quadrature".to_owned(),
                given: negative.to_string(),
                expected: "it must not be negative".to_owned(),
            });
        }
        Ok(Self {
            points,
            weights: weights.to_vec(),
        })
    }

    /// Points of equal weight that add up to a measure: for random and quasi-random points.
    ///
    /// # Errors
    /// A measure that is negative or not finite.
    pub fn equal(points: Points, measure: f64) -> Result<Self, Error> {
        let weights = vec![measure / points.len() as f64; points.len()];
        Self::new(points, &weights)
    }

    /// Gauss and Legendre's rule on a box: for each axis its two ends and its number of
    /// points. With n points an axis it is exact for polynomials up to degree 2n − 1.
    ///
    /// # Errors
    /// No axis, an axis without points or of more than a million, more than 2^29 coordinates,
    /// ends that are not finite or in the wrong order.
    pub fn gauss_legendre(axes: &[(f64, f64, usize)]) -> Result<Self, Error> {
        super::grid_total(axes.iter().map(|axis| axis.2))?;
        let mut nodes = Vec::with_capacity(axes.len());
        let mut weights = vec![1.0];
        for (axis, &(from, to, count)) in axes.iter().enumerate() {
            check_finite(&format!("the ends of axis {axis}"), &[from, to])?;
            let degree = NonZeroUsize::new(count).filter(|count| count.get() <= 1_000_000);
            let (Some(degree), true) = (degree, from <= to) else {
                return Err(Error::OutOfRange {
                    what: format!("axis {axis} of a quadrature"),
                    given: format!("{count} points from {from} to {to}"),
                    expected: "give 1 to 1,000,000 points, and the lower end first".to_owned(),
                });
            };
            let rule = GaussLegendre::new(degree);
            let pairs = rule.as_node_weight_pairs();
            let node = |&(x, _): &(f64, f64)| between(from, to, 0.5 * (1.0 + x));
            nodes.push(pairs.iter().map(node).collect());
            let half = 0.5 * (to - from);
            weights = weights
                .iter()
                .flat_map(|outer| pairs.iter().map(move |(_, weight)| outer * half * weight))
                .collect();
        }
        Self::new(Points::combined(&nodes)?, &weights)
    }

    /// Its points.
    pub fn points(&self) -> &Points {
        &self.points
    }

    /// Its weights, one a point.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }
}
