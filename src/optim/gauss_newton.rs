//! Gauss-Newton without a matrix: damped steps by conjugate gradients.

use super::dense::{cholesky, left_svd, times};
use super::{
    Halt, Iterate, Memory, Minimizer, Objective, at_least_one, dot, norm, positive, recall, trial,
};
use crate::checkpoint::encode;
use crate::error::Error;
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, Mat, MatRef, Par};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

/// Gauss-Newton by conjugate gradients, for networks too large for
/// [`LevenbergMarquardt`](crate::LevenbergMarquardt): steps that solve
/// (JᵀJ + λI) p = −Jᵀr approximately, from products JᵀJ·v alone. It keeps a handful of
/// vectors.
///
/// JᵀJ is preconditioned by its Nyström approximation from a random sketch (Frangella, Tropp
/// and Udell 2023), which captures the large eigenvalues. λ follows the ratio of true to
/// predicted decrease (Nielsen 1999). Its accuracy ends where JᵀJ loses digits: use it
/// for sizes, not for the last digits.
///
/// ```
/// use dualtape::optim::GaussNewtonCg;
///
/// let method = GaussNewtonCg::default().sketch(100)?.iterations(200)?;
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GaussNewtonCg {
    sketch: usize,
    iterations: usize,
    tolerance: f64,
    /// λ in units of the largest eigenvalue that the sketch sees.
    damping: f64,
    growth: f64,
    /// How many sketches were drawn.
    drawn: u64,
}

/// λ at the start, and its least value, in units of the largest eigenvalue.
const FIRST: f64 = 1e-3;
const LEAST: f64 = 1e-15;
/// Most dampings in one step.
const TRIES: usize = 40;

impl Default for GaussNewtonCg {
    fn default() -> Self {
        Self {
            sketch: 50,
            iterations: 100,
            tolerance: 1e-3,
            damping: FIRST,
            growth: 2.0,
            drawn: 0,
        }
    }
}

impl GaussNewtonCg {
    /// Columns of the sketch, 50 if not given. A step needs one sweep over all rows for it,
    /// and twice so many vectors.
    ///
    /// # Errors
    /// No columns.
    pub fn sketch(mut self, columns: usize) -> Result<Self, Error> {
        self.sketch = columns;
        self.check()?;
        Ok(self)
    }

    /// Most iterations a step, 100 if not given; each takes about as long as one or two
    /// gradients.
    ///
    /// # Errors
    /// No iterations.
    pub fn iterations(mut self, most: usize) -> Result<Self, Error> {
        self.iterations = most;
        self.check()?;
        Ok(self)
    }

    /// How far the iterations reduce the residual of the linear system, 1e-3 if not given.
    ///
    /// # Errors
    /// A number that is not positive and finite.
    pub fn tolerance(mut self, relative: f64) -> Result<Self, Error> {
        self.tolerance = relative;
        self.check()?;
        Ok(self)
    }

    /// p with (A + λI) p ≈ b, and A p.
    fn solve(
        &self,
        objective: &dyn Objective,
        theta: &[f64],
        b: &[f64],
        lambda: f64,
        nystrom: &Nystrom,
    ) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let mut p = vec![0.0; b.len()];
        let mut product = p.clone();
        let mut rest = b.to_vec();
        let mut z = nystrom.precondition(&rest, lambda);
        let mut direction = z.clone();
        let mut rz = dot(&rest, &z);
        let goal = self.tolerance * norm(b);
        for _ in 0..self.iterations {
            let ad = objective.gauss_newton(theta, &direction)?;
            let curvature = dot(&direction, &ad) + lambda * dot(&direction, &direction);
            if !(curvature > 0.0 && rz > 0.0) {
                break;
            }
            let alpha = rz / curvature;
            for i in 0..p.len() {
                p[i] += alpha * direction[i];
                product[i] += alpha * ad[i];
                rest[i] -= alpha * (ad[i] + lambda * direction[i]);
            }
            if norm(&rest) <= goal {
                break;
            }
            z = nystrom.precondition(&rest, lambda);
            let next = dot(&rest, &z);
            let beta = next / rz;
            for (d, z) in direction.iter_mut().zip(&z) {
                *d = z + beta * *d;
            }
            rz = next;
        }
        Ok((p, product))
    }

    fn make(
        &mut self,
        objective: &dyn Objective,
        at: &mut Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        let random = ChaCha8Rng::seed_from_u64(self.drawn);
        self.drawn += 1;
        let columns = self.sketch.min(at.theta.len());
        let nystrom = Nystrom::new(objective, at.theta, columns, random)?;
        let b: Vec<f64> = at.gradient.iter().map(|g| -0.5 * g).collect();
        for _ in 0..TRIES {
            let lambda = self.damping * nystrom.largest();
            let (p, product) = self.solve(objective, at.theta, &b, lambda, &nystrom)?;
            // ‖r‖² − ‖J p + r‖².
            let predicted = 2.0 * dot(&b, &p) - dot(&p, &product);
            let moved: Vec<f64> = at.theta.iter().zip(&p).map(|(x, p)| x + p).collect();
            let decrease = at.loss - trial(objective.value(&moved))?;
            let ratio = decrease / predicted;
            if ratio > 1e-4 && decrease > 0.0 {
                let factor = 1.0 - (2.0 * ratio - 1.0).powi(3);
                self.damping = (self.damping * factor.max(1.0 / 3.0)).max(LEAST);
                self.growth = 2.0;
                at.theta.copy_from_slice(&moved);
                return Ok(None);
            }
            self.damping *= self.growth;
            self.growth *= 2.0;
            if self.damping > 1e15 {
                break;
            }
        }
        (self.damping, self.growth) = (FIRST, 2.0);
        Ok(Some(Halt::NoDecrease))
    }
}

impl Minimizer for GaussNewtonCg {
    fn name(&self) -> &'static str {
        "Gauss-Newton CG"
    }

    /// λ of the next step, in units of the largest eigenvalue of JᵀJ.
    fn rate(&self) -> f64 {
        self.damping
    }

    fn step(
        &mut self,
        objective: &dyn Objective,
        mut at: Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        super::same_length(at.theta, at.gradient)?;
        objective.row_count()?;
        if at.gradient.iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        let mut outcome = Ok(None);
        objective.within(&mut || outcome = self.make(objective, &mut at));
        outcome
    }

    fn reset(&mut self) {
        (self.damping, self.growth, self.drawn) = (FIRST, 2.0, 0);
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}

impl Memory for GaussNewtonCg {
    fn check(&self) -> Result<(), Error> {
        at_least_one("the sketch of Gauss-Newton CG", self.sketch)?;
        at_least_one("the iterations of Gauss-Newton CG", self.iterations)?;
        positive("the tolerance of Gauss-Newton CG", self.tolerance)?;
        positive("the damping of Gauss-Newton CG", self.damping)?;
        positive("the growth of the damping of Gauss-Newton CG", self.growth)
    }
}

/// A ≈ U Λ Uᵀ for A = JᵀJ.
struct Nystrom {
    u: Mat<f64>,
    eigenvalues: Vec<f64>,
}

impl Nystrom {
    fn new(
        objective: &dyn Objective,
        theta: &[f64],
        columns: usize,
        mut random: ChaCha8Rng,
    ) -> Result<Self, Error> {
        let n = theta.len();
        let omega: Mat<f64> = Mat::from_fn(n, columns, |_, _| StandardNormal.sample(&mut random));
        // Y = A Ω in one sweep.
        let mut y: Mat<f64> = Mat::zeros(n, columns);
        objective.rows(theta, &mut |rows| {
            let (numbers, stride) = rows.jacobian();
            let count = rows.residuals.len();
            let j = MatRef::from_column_major_slice_with_stride(numbers, count, n, stride);
            let along = times(j, omega.as_ref());
            matmul(
                y.as_mut(),
                Accum::Add,
                j.transpose(),
                along.as_ref(),
                1.0,
                Par::Seq,
            );
        })?;
        // A small shift makes ΩᵀA Ω positive definite in spite of rounding.
        let failed = || Error::OutOfRange {
            what: "a sketch of JᵀJ".to_owned(),
            given: "not positive definite".to_owned(),
            expected: "take a smaller sketch".to_owned(),
        };
        let mut shift = 0.0;
        let mut more = (n as f64).sqrt() * f64::EPSILON * y.norm_l2();
        let lower = loop {
            for j in 0..columns {
                for i in 0..n {
                    y[(i, j)] += more * omega[(i, j)];
                }
            }
            shift += more;
            if let Some(lower) = cholesky(times(omega.transpose(), y.as_ref())) {
                break lower;
            }
            more *= 10.0;
            if more.is_nan() || more > f64::EPSILON.sqrt() * y.norm_l2() {
                return Err(failed());
            }
        };
        // B = Y L⁻ᵀ, then A ≈ B Bᵀ.
        let mut b = y.transpose().to_owned();
        solve_lower_triangular_in_place(lower.as_ref(), b.as_mut(), Par::Seq);
        let (u, values) = left_svd(b.transpose()).ok_or_else(failed)?;
        let eigenvalues = values.iter().map(|s| (s * s - shift).max(0.0)).collect();
        Ok(Self { u, eigenvalues })
    }

    fn largest(&self) -> f64 {
        self.eigenvalues.iter().copied().fold(0.0, f64::max)
    }

    /// P⁻¹ v with P = U (Λ + λ) Uᵀ/(λ_least + λ) + (I − U Uᵀ).
    fn precondition(&self, v: &[f64], lambda: f64) -> Vec<f64> {
        let least = self
            .eigenvalues
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        let v = MatRef::from_column_major_slice(v, v.len(), 1);
        let mut across = times(self.u.transpose(), v);
        for (j, value) in self.eigenvalues.iter().enumerate() {
            across[(j, 0)] *= (least + lambda) / (value + lambda) - 1.0;
        }
        let change = times(self.u.as_ref(), across.as_ref());
        v.col(0)
            .iter()
            .zip(change.col(0).iter())
            .map(|(v, c)| v + c)
            .collect()
    }
}
