//! A line search for the strong Wolfe conditions (Nocedal and Wright 2006, algorithms 3.5
//! and 3.6), with cubic interpolation.

use super::{Objective, dot, trial};
use crate::error::Error;

/// Sufficient decrease, and how much smaller the slope must be.
const DECREASE: f64 = 1e-4;
const CURVATURE: f64 = 0.9;
/// Most evaluations in one search.
const EVALUATIONS: usize = 40;

/// A point on the line.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The length, in units of the direction.
    pub(crate) length: f64,
    pub(crate) theta: Vec<f64>,
    pub(crate) gradient: Vec<f64>,
    loss: f64,
    slope: f64,
}

/// A point on the line from `theta` along `direction` where the strong Wolfe conditions hold;
/// `None` if none is found. `theta` is not touched.
///
/// # Errors
/// The objective's, but for losses that are not finite: the search turns back from those.
pub(crate) fn strong_wolfe(
    objective: &dyn Objective,
    theta: &[f64],
    loss: f64,
    gradient: &[f64],
    direction: &[f64],
    first: f64,
) -> Result<Option<Found>, Error> {
    let start = Found {
        length: 0.0,
        theta: theta.to_vec(),
        gradient: gradient.to_vec(),
        loss,
        slope: dot(gradient, direction),
    };
    if !(start.slope < 0.0 && start.slope.is_finite()) {
        return Ok(None);
    }
    let evaluate = |length: f64| -> Result<Found, Error> {
        let along = theta.iter().zip(direction).map(|(x, d)| x + length * d);
        let theta: Vec<f64> = along.collect();
        let mut gradient = vec![0.0; theta.len()];
        let loss = trial(objective.gradient(&theta, &mut gradient))?;
        let slope = dot(&gradient, direction);
        Ok(Found {
            length,
            theta,
            gradient,
            loss,
            slope,
        })
    };
    let enough = |at: &Found| at.loss <= loss + DECREASE * at.length * start.slope;
    let flat = |at: &Found| at.slope.abs() <= -CURVATURE * start.slope;
    let mut lower = start.clone();
    let mut length = first;
    let mut budget = EVALUATIONS;
    // Longer and longer, until an interval holds a good point.
    let mut upper = loop {
        if budget == 0 {
            return Ok(None);
        }
        budget -= 1;
        let at = evaluate(length)?;
        if !enough(&at) || (at.loss >= lower.loss && lower.length > 0.0) {
            break at;
        }
        if flat(&at) {
            return Ok(Some(at));
        }
        if at.slope >= 0.0 {
            break std::mem::replace(&mut lower, at);
        }
        let farther = minimum(&lower, &at).clamp(1.5 * length, 10.0 * length);
        lower = at;
        length = farther;
    };
    // `lower` has the least loss of all points with enough decrease, and its slope points
    // towards `upper`.
    while budget > 0 {
        budget -= 1;
        let (a, b) = (lower.length, upper.length);
        let width = (b - a).abs();
        if width <= 1e-15 * a.max(b) {
            break;
        }
        let (low, high) = (a.min(b) + 0.1 * width, a.max(b) - 0.1 * width);
        let middle = 0.5 * (a + b);
        let guess = if upper.loss.is_finite() {
            minimum(&lower, &upper)
        } else {
            middle
        };
        let guess = if guess.is_finite() { guess } else { middle };
        let at = evaluate(guess.clamp(low, high))?;
        if !enough(&at) || at.loss >= lower.loss {
            upper = at;
        } else {
            if flat(&at) {
                return Ok(Some(at));
            }
            if at.slope * (upper.length - lower.length) >= 0.0 {
                upper = lower;
            }
            lower = at;
        }
    }
    // Rounding can hide the last digits of the slope: a true decrease will do.
    let good = lower.length > 0.0 && lower.loss < loss;
    Ok(good.then_some(lower))
}

/// Where the cubic through two points with their slopes is least.
fn minimum(a: &Found, b: &Found) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.length - b.length);
    let root = d1 * d1 - a.slope * b.slope;
    let d2 = root.max(0.0).sqrt().copysign(b.length - a.length);
    b.length - (b.length - a.length) * (b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2)
}
