//! Methods that learn curvature from differences of gradients.

use super::line_search::{Found, strong_wolfe};
use super::{
    Halt, Iterate, Memory, Minimizer, Objective, all_finite, at_least_one, dot, norm, recall,
};
use crate::checkpoint::encode;
use crate::error::Error;
use crate::kernel::simd::{InstructionSet, Isa, Kernel};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// L-BFGS (Liu and Nocedal 1989): curvature from the last steps, with a line search for the
/// strong Wolfe conditions.
///
/// ```
/// use dualtape::optim::Lbfgs;
///
/// let method = Lbfgs::new(100)?; // the default keeps 50 pairs
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lbfgs {
    memory: usize,
    /// Steps s and differences y of gradients, the oldest first.
    pairs: VecDeque<(Vec<f64>, Vec<f64>)>,
    length: f64,
}

impl Default for Lbfgs {
    fn default() -> Self {
        Self {
            memory: 50,
            pairs: VecDeque::new(),
            length: f64::NAN,
        }
    }
}

impl Lbfgs {
    /// L-BFGS with so many pairs in memory.
    ///
    /// # Errors
    /// No pairs.
    pub fn new(memory: usize) -> Result<Self, Error> {
        let lbfgs = Self {
            memory,
            ..Self::default()
        };
        lbfgs.check()?;
        Ok(lbfgs)
    }

    /// −H g, by the two loops.
    fn direction(&self, gradient: &[f64]) -> Vec<f64> {
        let mut d: Vec<f64> = gradient.iter().map(|g| -g).collect();
        let mut factors = Vec::with_capacity(self.pairs.len());
        for (s, y) in self.pairs.iter().rev() {
            let factor = dot(s, &d) / dot(s, y);
            add(-factor, y, &mut d);
            factors.push(factor);
        }
        if let Some((s, y)) = self.pairs.back() {
            let scale = dot(s, y) / dot(y, y);
            d.iter_mut().for_each(|x| *x *= scale);
        }
        for ((s, y), factor) in self.pairs.iter().zip(factors.iter().rev()) {
            let correction = dot(y, &d) / dot(s, y);
            add(factor - correction, s, &mut d);
        }
        d
    }
}

impl Minimizer for Lbfgs {
    fn name(&self) -> &'static str {
        "L-BFGS"
    }

    /// The length that the last line search found, in units of its direction.
    fn rate(&self) -> f64 {
        self.length
    }

    fn step(&mut self, objective: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        check(&at, self.pairs.front().map(|(s, _)| s.len()))?;
        if at.gradient.iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        // With what it remembers, and once more from the gradient alone.
        loop {
            let direction = self.direction(at.gradient);
            let first = first_length(self.pairs.is_empty(), &direction);
            let found = search(objective, &at, &direction, first)?;
            match found {
                Some(found) => {
                    let (s, y) = difference(&at, &found);
                    if dot(&s, &y) > 0.0 {
                        if self.pairs.len() == self.memory {
                            self.pairs.pop_front();
                        }
                        self.pairs.push_back((s, y));
                    }
                    self.length = found.length;
                    at.theta.copy_from_slice(&found.theta);
                    return Ok(None);
                }
                None if self.pairs.is_empty() => return Ok(Some(Halt::LineSearch)),
                None => self.pairs.clear(),
            }
        }
    }

    fn reset(&mut self) {
        self.pairs.clear();
        self.length = f64::NAN;
    }

    fn loss_changed(&mut self) {
        self.pairs.clear();
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}

impl Memory for Lbfgs {
    fn check(&self) -> Result<(), Error> {
        at_least_one("the memory of L-BFGS", self.memory)?;
        let length = self.pairs.front().map_or(0, |(s, _)| s.len());
        for numbers in self.pairs.iter().flat_map(|(s, y)| [s, y]) {
            if numbers.len() != length {
                return Err(Error::length("pair of L-BFGS", numbers.len(), length));
            }
            all_finite("the pairs of L-BFGS", numbers)?;
        }
        Ok(())
    }
}

/// The self-scaled Broyden method (Al-Baali; for PINNs Urbán, Stefanou and Pons 2025): a dense
/// inverse Hessian, updated by a member of Broyden's family that lies between BFGS and DFP or
/// beyond, and scaled before each update; with a line search for the strong Wolfe conditions.
///
/// It keeps n² numbers for n parameters. New points drop them, as they belong to another
/// loss: draw new points every some 500 steps, or use [`keep`](Self::keep).
///
/// ```
/// use dualtape::optim::SsBroyden;
///
/// let method = SsBroyden::default();
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SsBroyden {
    /// The inverse Hessian, row by row; empty for the identity at the start.
    inverse: Vec<f64>,
    length: f64,
    keep: bool,
}

impl SsBroyden {
    /// Keeps the inverse Hessian when new points are drawn. Where these are many, the new
    /// loss has nearly the same curvature.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// H·g, with rows in parallel.
    fn product(&self, g: &[f64]) -> Vec<f64> {
        let set = InstructionSet::detect();
        let rows = self.inverse.par_chunks_exact(g.len()).with_min_len(64);
        rows.map(|row| set.dispatch(Dot(row, g))).collect()
    }

    /// The update for a step s with gradients before and after; Hg of the latter.
    fn update(&mut self, s: &[f64], y: &[f64], before: &[f64], after: &[f64], length: f64) {
        let n = s.len();
        let fresh = self.inverse.is_empty();
        // H y = H g₊ + s/α, since s = −α H g.
        let mut hy = if fresh {
            y.to_vec()
        } else {
            self.product(after)
        };
        if !fresh {
            add(1.0 / length, s, &mut hy);
        }
        let sy = dot(s, y);
        let yhy = dot(y, &hy);
        if !(sy > 0.0 && yhy > 0.0) {
            return;
        }
        let Update { tau, ss, sw, ww } = Update::new(sy, yhy, dot(s, before), length, n, fresh);
        if ![tau, ss, sw, ww].iter().all(|x| x.is_finite()) || tau <= 0.0 {
            return;
        }
        if fresh {
            self.inverse = vec![0.0; n * n];
            for i in 0..n {
                self.inverse[i * n + i] = 1.0;
            }
        }
        let set = InstructionSet::detect();
        let rows = self.inverse.par_chunks_exact_mut(n).with_min_len(64);
        rows.enumerate().for_each(|(i, row)| {
            set.dispatch(RankTwo {
                row,
                scale: 1.0 / tau,
                s,
                s_factor: ss * s[i] + sw * hy[i],
                w: &hy,
                w_factor: sw * s[i] + ww * hy[i],
            });
        });
    }
}

/// H ← H/τ + ss·s sᵀ + sw·(s wᵀ + w sᵀ) + ww·w wᵀ with w = H y.
#[derive(Debug)]
struct Update {
    tau: f64,
    ss: f64,
    sw: f64,
    ww: f64,
}

impl Update {
    /// The formulas of the method for s·y, y·Hy and s·g (g before the step).
    fn new(sy: f64, yhy: f64, sg: f64, length: f64, n: usize, fresh: bool) -> Self {
        let rho = 1.0 / sy;
        let h = rho * yhy;
        let b = -length * rho * sg;
        // Cauchy and Schwarz: a ≥ 0, but for rounding; at 0 all members of the family agree.
        let a = (b * h - 1.0).max(f64::EPSILON);
        let c = (a / (1.0 + a)).sqrt();
        let rho_minus = (h * (1.0 - c)).min(1.0);
        let theta_minus = (rho_minus - 1.0) / a;
        let theta = theta_minus.max((1.0 / rho_minus).min((1.0 - b) / b));
        let sigma = 1.0 + theta * a;
        let tau = if fresh {
            h / sigma
        } else {
            let q = sigma.abs().powf(1.0 / (1.0 - n as f64));
            let first = (1.0 / b).min(1.0);
            if theta > 0.0 {
                first * q.min(1.0 / theta)
            } else {
                (first * q).min(sigma)
            }
        };
        let phi = (1.0 - theta) / sigma;
        Self {
            tau,
            ss: phi * yhy * rho * rho / tau + rho,
            sw: -phi * rho / tau,
            ww: (phi - 1.0) / (yhy * tau),
        }
    }
}

impl Minimizer for SsBroyden {
    fn name(&self) -> &'static str {
        "SSBroyden"
    }

    /// The length that the last line search found, in units of its direction.
    fn rate(&self) -> f64 {
        self.length
    }

    fn step(&mut self, objective: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        let n = at.theta.len();
        check(
            &at,
            (!self.inverse.is_empty()).then(|| self.inverse.len() / n.max(1)),
        )?;
        if at.gradient.iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        let mut outcome = Ok(None);
        objective.within(&mut || outcome = self.make(objective, &at));
        if let Ok(None) = outcome {
            return Ok(Some(Halt::LineSearch));
        }
        if let Some(found) = outcome? {
            at.theta.copy_from_slice(&found.theta);
        }
        Ok(None)
    }

    fn reset(&mut self) {
        self.inverse.clear();
        self.length = f64::NAN;
    }

    fn loss_changed(&mut self) {
        if !self.keep {
            self.inverse.clear();
        }
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}

impl Memory for SsBroyden {
    fn check(&self) -> Result<(), Error> {
        let (given, side) = (self.inverse.len(), self.inverse.len().isqrt());
        if given != side * side {
            return Err(Error::length(
                "square matrix of SSBroyden",
                given,
                side * side,
            ));
        }
        all_finite("the matrix of SSBroyden", &self.inverse)
    }
}

impl SsBroyden {
    /// Searches along −H g, and from the gradient alone if that finds nothing.
    fn make(
        &mut self,
        objective: &dyn Objective,
        at: &Iterate<'_>,
    ) -> Result<Option<Found>, Error> {
        loop {
            let fresh = self.inverse.is_empty();
            let mut direction = match fresh {
                true => at.gradient.to_vec(),
                false => self.product(at.gradient),
            };
            direction.iter_mut().for_each(|d| *d = -*d);
            let found = search(objective, at, &direction, first_length(fresh, &direction))?;
            match found {
                Some(found) => {
                    let (s, y) = difference(at, &found);
                    self.update(&s, &y, at.gradient, &found.gradient, found.length);
                    self.length = found.length;
                    return Ok(Some(found));
                }
                None if fresh => return Ok(None),
                None => self.inverse.clear(),
            }
        }
    }
}

fn check(at: &Iterate<'_>, known: Option<usize>) -> Result<(), Error> {
    super::same_length(at.theta, at.gradient)?;
    match known {
        Some(known) if known != at.theta.len() => Err(Error::length(
            "parameters of a method whose memory has their length",
            at.theta.len(),
            known,
        )),
        _ => Ok(()),
    }
}

fn search(
    objective: &dyn Objective,
    at: &Iterate<'_>,
    direction: &[f64],
    first: f64,
) -> Result<Option<Found>, Error> {
    strong_wolfe(objective, at.theta, at.loss, at.gradient, direction, first)
}

/// 1, but a step of length 1 at most along a bare gradient.
fn first_length(fresh: bool, direction: &[f64]) -> f64 {
    if fresh {
        (1.0 / norm(direction)).min(1.0)
    } else {
        1.0
    }
}

/// s and y.
fn difference(at: &Iterate<'_>, found: &Found) -> (Vec<f64>, Vec<f64>) {
    let minus = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect();
    (
        minus(&found.theta, at.theta),
        minus(&found.gradient, at.gradient),
    )
}

fn add(factor: f64, from: &[f64], to: &mut [f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

struct Dot<'a>(&'a [f64], &'a [f64]);

impl Kernel for Dot<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> f64 {
        crate::kernel::jet::dot(simd, self.0, self.1)
    }
}

struct RankTwo<'a> {
    row: &'a mut [f64],
    scale: f64,
    s: &'a [f64],
    s_factor: f64,
    w: &'a [f64],
    w_factor: f64,
}

impl Kernel for RankTwo<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, _: S) {
        for ((x, s), w) in self.row.iter_mut().zip(self.s).zip(self.w) {
            *x = *x * self.scale + self.s_factor * s + self.w_factor * w;
        }
    }
}
