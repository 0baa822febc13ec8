//! Optimisers: how parameters change to make a loss small.
//! Knows nothing of equations, points or the loop that calls it.
//!
//! An [`Objective`] gives a loss, its gradient and, where it is a sum of squares, the rows
//! of its Jacobian; [`Engine`](crate::Engine) is one. A [`Minimizer`] makes a step on it. A
//! method that needs one gradient a step is an [`Optimizer`], and thereby a minimiser.
//!
//! | method | for | memory | a step |
//! | --- | --- | --- | --- |
//! | [`LevenbergMarquardt`] | up to some 3,000 parameters: the method for high accuracy | n² | rows, and some 2 N n² + 3 n³ operations |
//! | [`LastLayer`] | networks whose hidden layers are given; up to some 3,000 parameters in the last | n² | as above, a few steps in all |
//! | [`SsBroyden`] | up to some 5,000 parameters; any loss | n² | a gradient or two, and 3 n² numbers to read |
//! | [`Spring`] | fewer residuals than parameters | N n | rows, N² n operations |
//! | [`GaussNewtonCg`] | many parameters | n | a sweep over the rows, and a gradient or two for each inner iteration |
//! | [`Lbfgs`] | many parameters; any loss | 2 m n | a gradient or two |
//! | [`Adam`] | the first steps; new points at each step | 2 n | a gradient |

use crate::checkpoint::decode;
use crate::engine::Rows;
use crate::error::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

mod dense;
mod first_order;
mod gauss_newton;
mod last_layer;
mod levenberg_marquardt;
mod line_search;
mod objective;
mod quasi_newton;
mod schedule;
mod spring;

pub use first_order::{Adam, GradientDescent};
pub use gauss_newton::GaussNewtonCg;
pub use last_layer::{LastLayer, fit_last_layer};
pub use levenberg_marquardt::LevenbergMarquardt;
pub use quasi_newton::{Lbfgs, SsBroyden};
pub use schedule::Schedule;
pub use spring::Spring;

/// A loss to be made small.
///
/// ```
/// use dualtape::optim::{Iterate, Lbfgs, Minimizer, Objective};
/// use dualtape::Error;
///
/// /// (1 - x)² + 100 (y - x²)²
/// struct Rosenbrock;
///
/// impl Objective for Rosenbrock {
///     fn parameters(&self) -> usize {
///         2
///     }
///     fn gradient(&self, theta: &[f64], gradient: &mut [f64]) -> Result<f64, Error> {
///         let (x, y) = (theta[0], theta[1]);
///         let (a, b) = (1.0 - x, y - x * x);
///         gradient.copy_from_slice(&[-2.0 * a - 400.0 * x * b, 200.0 * b]);
///         Ok(a * a + 100.0 * b * b)
///     }
/// }
///
/// let mut theta = [-1.2, 1.0];
/// let mut gradient = [0.0; 2];
/// let mut method = Lbfgs::default();
/// for _ in 0..60 {
///     let loss = Rosenbrock.gradient(&theta, &mut gradient)?;
///     let at = Iterate { theta: &mut theta, loss, gradient: &gradient };
///     if method.step(&Rosenbrock, at)?.is_some() {
///         break;
///     }
/// }
/// assert!(Rosenbrock.value(&theta)? < 1e-20);
/// # Ok::<(), Error>(())
/// ```
pub trait Objective: Sync {
    /// How many parameters it has.
    fn parameters(&self) -> usize;

    /// The loss and, into `gradient`, its derivatives.
    ///
    /// # Errors
    /// A loss or gradient that is not finite; lengths that do not fit.
    fn gradient(&self, theta: &[f64], gradient: &mut [f64]) -> Result<f64, Error>;

    /// The loss.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    fn value(&self, theta: &[f64]) -> Result<f64, Error> {
        self.gradient(theta, &mut vec![0.0; self.parameters()])
    }

    /// How many residuals r the loss Σ r² adds up.
    ///
    /// # Errors
    /// A loss that is no sum of squares.
    fn row_count(&self) -> Result<usize, Error> {
        Err(Error::NoRows {
            condition: "the objective".to_owned(),
        })
    }

    /// Hands out residuals r and rows of their Jacobian J, block by block: the loss is Σ r²,
    /// its gradient 2 Jᵀr. The blocks and their order are the same at each call.
    ///
    /// # Errors
    /// A loss that is no sum of squares; lengths that do not fit.
    fn rows(&self, theta: &[f64], visit: &mut dyn FnMut(Rows<'_>)) -> Result<(), Error> {
        let _ = (theta, visit);
        self.row_count().map(|_| ())
    }

    /// The residuals alone, in the order of [`rows`](Self::rows); those that are not finite
    /// as they are.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    fn residuals(&self, theta: &[f64]) -> Result<Vec<f64>, Error> {
        let mut residuals = Vec::with_capacity(self.row_count()?);
        self.rows(theta, &mut |rows| residuals.extend(rows.residuals))?;
        Ok(residuals)
    }

    /// Jᵀ·s, for one number a residual.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    fn transposed(&self, theta: &[f64], s: &[f64]) -> Result<Vec<f64>, Error> {
        let mut product = vec![0.0; self.parameters()];
        let mut start = 0;
        self.rows(theta, &mut |rows| {
            let s = &s[start..start + rows.residuals.len()];
            start += s.len();
            for (index, sum) in product.iter_mut().enumerate() {
                *sum += dot(rows.parameter(index), s);
            }
        })?;
        Ok(product)
    }

    /// JᵀJ·v.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    fn gauss_newton(&self, theta: &[f64], v: &[f64]) -> Result<Vec<f64>, Error> {
        let mut product = vec![0.0; v.len()];
        self.rows(theta, &mut |rows| {
            let mut along = vec![0.0; rows.residuals.len()];
            for (index, factor) in v.iter().enumerate() {
                for (sum, x) in along.iter_mut().zip(rows.parameter(index)) {
                    *sum += factor * x;
                }
            }
            for (index, sum) in product.iter_mut().enumerate() {
                let terms = rows.parameter(index).iter().zip(&along);
                *sum += terms.map(|(x, s)| x * s).sum::<f64>();
            }
        })?;
        Ok(product)
    }

    /// Runs `work` on the threads that the objective uses.
    fn within(&self, work: &mut (dyn FnMut() + Send)) {
        work();
    }
}

/// Where a step starts: parameters to be changed, with the loss and its gradient there.
#[derive(Debug)]
pub struct Iterate<'a> {
    /// The parameters.
    pub theta: &'a mut [f64],
    /// The loss at them.
    pub loss: f64,
    /// Its gradient there.
    pub gradient: &'a [f64],
}

/// Why a minimiser cannot go on. The parameters are then as they were, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Halt {
    /// The gradient is 0.
    Stationary,
    /// No length of step along a direction of descent makes the loss smaller enough: the
    /// loss has reached the rounding of its terms, or the gradient is wrong.
    LineSearch,
    /// No damping, however large, makes the loss smaller: it has reached the rounding of
    /// its terms.
    NoDecrease,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stationary => "the gradient is zero",
            Self::LineSearch => "the line search found no decrease",
            Self::NoDecrease => "no damping gives a decrease",
        })
    }
}

/// A method that makes steps on an [`Objective`].
pub trait Minimizer {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// What the history shows as `rate`: the rate of the next step, or the length or damping
    /// of the last one.
    fn rate(&self) -> f64;

    /// One step: changes the parameters, or says why not.
    ///
    /// # Errors
    /// Lengths that do not fit, an objective that lacks what the method needs; the
    /// parameters are then unchanged.
    fn step(&mut self, objective: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error>;

    /// Back to the state before the first step.
    fn reset(&mut self);

    /// As [`Optimizer::loss_changed`].
    fn loss_changed(&mut self) {}

    /// As [`Optimizer::snapshot`].
    fn snapshot(&self) -> Option<Vec<u8>>;

    /// As [`Optimizer::restore`].
    ///
    /// # Errors
    /// A snapshot of something else.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error>;
}

/// A first-order method: keeps its state, and changes the parameters by a gradient.
///
/// ```
/// use dualtape::optim::{Adam, GradientDescent, Optimizer};
///
/// let mut methods: Vec<Box<dyn Optimizer>> =
///     vec![Box::new(GradientDescent::new(0.1)?), Box::new(Adam::new(0.1)?)];
/// for method in &mut methods {
///     let mut theta = [3.0]; // minimise θ²
///     for _ in 0..500 {
///         let gradient = [2.0 * theta[0]];
///         method.step(&mut theta, &gradient)?;
///     }
///     assert!(theta[0].abs() < 1e-3, "{}: {}", method.name(), theta[0]);
/// }
/// # Ok::<(), dualtape::Error>(())
/// ```
pub trait Optimizer {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// The rate of the next step.
    fn rate(&self) -> f64;

    /// One step: changes `theta` by the gradient at it.
    ///
    /// # Errors
    /// Slices of different lengths, or of another length than at the step before; `theta`
    /// is then unchanged.
    fn step(&mut self, theta: &mut [f64], gradient: &[f64]) -> Result<(), Error>;

    /// Back to the state before the first step.
    fn reset(&mut self);

    /// The loss is another function from now on, such as after new points were drawn.
    /// Methods that compare gradients of different steps forget them here; averages, as in
    /// [`Adam`], stay.
    fn loss_changed(&mut self) {}

    /// Everything that the next steps depend on, for a checkpoint;
    /// [`encode`](crate::checkpoint::encode) makes it of anything serialisable. `None`: the
    /// method cannot be part of a checkpoint.
    fn snapshot(&self) -> Option<Vec<u8>> {
        None
    }

    /// Back to the state of a snapshot.
    ///
    /// # Errors
    /// A snapshot of something else.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        let _ = snapshot;
        Err(Error::NoSnapshot {
            what: self.name().to_owned(),
        })
    }
}

impl<O: Optimizer + ?Sized> Minimizer for O {
    fn name(&self) -> &'static str {
        Optimizer::name(self)
    }
    fn rate(&self) -> f64 {
        Optimizer::rate(self)
    }
    fn step(&mut self, _: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        Optimizer::step(self, at.theta, at.gradient)?;
        Ok(None)
    }
    fn reset(&mut self) {
        Optimizer::reset(self);
    }
    fn loss_changed(&mut self) {
        Optimizer::loss_changed(self);
    }
    fn snapshot(&self) -> Option<Vec<u8>> {
        Optimizer::snapshot(self)
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        Optimizer::restore(self, snapshot)
    }
}

/// The loss at a trial point: infinite where it is not finite, since that is no error of
/// the user's.
fn trial(loss: Result<f64, Error>) -> Result<f64, Error> {
    match loss {
        Ok(loss) if loss.is_nan() => Ok(f64::INFINITY),
        Err(
            Error::NonFinite { .. }
            | Error::NonFiniteGradient { .. }
            | Error::NonFiniteInput { .. }
            | Error::OutOfRange { .. },
        ) => Ok(f64::INFINITY),
        other => other,
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// What a method keeps between its steps.
trait Memory: DeserializeOwned {
    /// Errors on what the method itself could not have come to: a file may have been changed.
    fn check(&self) -> Result<(), Error>;
}

/// The memory that a snapshot of a method holds.
fn recall<M: Memory>(name: &str, snapshot: &[u8]) -> Result<M, Error> {
    let memory: M = decode(name, snapshot)?;
    memory.check()?;
    Ok(memory)
}

fn all_finite(what: &str, numbers: &[f64]) -> Result<(), Error> {
    match numbers.iter().find(|number| !number.is_finite()) {
        None => Ok(()),
        Some(&number) => within(what, number, false, "finite numbers"),
    }
}

/// From 0 to less than 1.
fn fraction(what: &str, given: f64) -> Result<(), Error> {
    let good = (0.0..1.0).contains(&given);
    within(what, given, good, "a number from 0 to less than 1")
}

fn within(what: &str, given: f64, good: bool, expected: &str) -> Result<(), Error> {
    if good {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what: what.to_owned(),
        given: given.to_string(),
        expected: format!("give {expected}"),
    })
}

fn positive(what: &str, given: f64) -> Result<(), Error> {
    let good = given.is_finite() && given > 0.0;
    within(what, given, good, "a positive and finite number")
}

fn at_least_one(what: &str, given: usize) -> Result<(), Error> {
    within(what, given as f64, given > 0, "at least 1 step")
}

fn same_length(theta: &[f64], gradient: &[f64]) -> Result<(), Error> {
    if theta.len() == gradient.len() {
        return Ok(());
    }
    Err(Error::length("gradient", gradient.len(), theta.len()))
}
