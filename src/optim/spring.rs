//! Gauss-Newton in the space of residuals, with momentum.

use super::dense::{cholesky, times};
use super::{
    Halt, Iterate, Memory, Minimizer, Objective, all_finite, fraction, positive, recall, trial,
};
use crate::checkpoint::encode;
use crate::error::Error;
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::{
    solve_lower_triangular_in_place, solve_upper_triangular_in_place,
};
use faer::{Accum, Mat, MatRef, Par};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The kernel form of Gauss-Newton, for fewer residuals N than parameters n:
/// p = μ p₋ − Jᵀ (J Jᵀ + λI)⁻¹ (r + μ J p₋), with p₋ the step before. That is the step that
/// solves the damped problem nearest to μ p₋: SPRING (Goldshlager, Abrahamsen and Lin 2024),
/// a momentum after Kaczmarz that lets few random points a step do for many.
///
/// Along p the loss is searched over lengths 1, 1/2, 1/4, …. It needs J as a whole, N n
/// numbers, and N² n operations a step. λ is given in units of the mean of the diagonal of
/// J Jᵀ and adapts: it falls while full steps are taken and grows when short ones are.
///
/// ```
/// use dualtape::optim::Spring;
///
/// let method = Spring::default(); // momentum 0.9
/// let method = Spring::new(0.99, 1e-8)?;
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spring {
    momentum: f64,
    first: f64,
    damping: f64,
    /// The step before.
    step: Vec<f64>,
}

/// Bounds of λ in units of the mean diagonal.
const LEAST: f64 = 1e-15;
const MOST: f64 = 1e6;
/// The shortest step is 2 to the power of minus this.
const HALVINGS: i32 = 10;
/// Parameters that a task of the product J Jᵀ adds up.
const SLICE: usize = 512;

impl Default for Spring {
    fn default() -> Self {
        Self {
            momentum: 0.9,
            first: 1e-6,
            damping: 1e-6,
            step: Vec::new(),
        }
    }
}

impl Spring {
    /// The kernel form with a momentum μ (0: none) and a damping λ to start with.
    ///
    /// # Errors
    /// A momentum outside [0, 1), a damping that is not positive and finite.
    pub fn new(momentum: f64, damping: f64) -> Result<Self, Error> {
        let spring = Self {
            momentum,
            first: damping,
            damping,
            step: Vec::new(),
        };
        spring.check()?;
        Ok(spring)
    }

    fn make(
        &mut self,
        objective: &dyn Objective,
        at: &mut Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        let (n, count) = (at.theta.len(), objective.row_count()?);
        // Jᵀ, a column for each residual.
        let mut columns = Mat::zeros(n, count);
        let mut r = Mat::zeros(count, 1);
        let mut start = 0;
        objective.rows(at.theta, &mut |rows| {
            for (point, residual) in rows.residuals.iter().enumerate() {
                r[(start + point, 0)] = *residual;
                rows.copy_row(point, columns.col_as_slice_mut(start + point));
            }
            start += rows.residuals.len();
        })?;
        let kernel = gram(columns.as_ref());
        let mean = (0..count).map(|i| kernel[(i, i)]).sum::<f64>() / count as f64;
        let mut momentum = self.momentum;
        if self.step.len() != n {
            self.step = vec![0.0; n];
        }
        loop {
            let previous = MatRef::from_column_major_slice(&self.step, n, 1);
            let mut right = times(columns.transpose(), previous);
            for i in 0..count {
                right[(i, 0)] = r[(i, 0)] + momentum * right[(i, 0)];
            }
            let mut shifted = kernel.clone();
            for i in 0..count {
                shifted[(i, i)] += self.damping * mean;
            }
            if let Some(lower) = cholesky(shifted) {
                solve_lower_triangular_in_place(lower.as_ref(), right.as_mut(), Par::Seq);
                let upper = lower.transpose();
                solve_upper_triangular_in_place(upper, right.as_mut(), Par::Seq);
                let back = times(columns.as_ref(), right.as_ref());
                let step: Vec<f64> = (0..n)
                    .map(|i| momentum * self.step[i] - back[(i, 0)])
                    .collect();
                if let Some((length, theta)) = search(objective, at, &step)? {
                    let factor = match length {
                        0 => 0.5,
                        1..=2 => 1.0,
                        _ => 2.0,
                    };
                    self.damping = (self.damping * factor).clamp(LEAST, MOST);
                    let length = 0.5_f64.powi(length);
                    self.step = step.iter().map(|x| length * x).collect();
                    at.theta.copy_from_slice(&theta);
                    return Ok(None);
                }
            }
            // Without momentum, then with more and more damping.
            if momentum > 0.0 {
                momentum = 0.0;
            } else if self.damping < MOST {
                self.damping *= 10.0;
            } else {
                self.damping = self.first;
                return Ok(Some(Halt::NoDecrease));
            }
        }
    }
}

/// The best of the lengths 1, 1/2, 1/4, … as a number of halvings, if it decreases the loss:
/// it stops at the first that is worse than the one before.
fn search(
    objective: &dyn Objective,
    at: &Iterate<'_>,
    step: &[f64],
) -> Result<Option<(i32, Vec<f64>)>, Error> {
    let mut best: Option<(i32, Vec<f64>, f64)> = None;
    for halvings in 0..=HALVINGS {
        let length = 0.5_f64.powi(halvings);
        let along = at.theta.iter().zip(step).map(|(x, p)| x + length * p);
        let theta: Vec<f64> = along.collect();
        let loss = trial(objective.value(&theta))?;
        match &best {
            Some((.., least)) if loss >= *least => break,
            _ if loss < at.loss => best = Some((halvings, theta, loss)),
            _ => {}
        }
    }
    Ok(best.map(|(halvings, theta, _)| (halvings, theta)))
}

/// J Jᵀ from the columns of Jᵀ: sums over slices of the parameters, added in order.
fn gram(columns: MatRef<'_, f64>) -> Mat<f64> {
    let (n, count) = (columns.nrows(), columns.ncols());
    // Columns of the product are independent: so are the tasks.
    let mut product = Mat::zeros(count, count);
    let tasks = product.as_mut().par_col_chunks_mut(64).enumerate();
    tasks.for_each(|(task, mut part)| {
        let right = columns.subcols(task * 64, part.ncols());
        for start in (0..n).step_by(SLICE) {
            let len = SLICE.min(n - start);
            matmul(
                part.as_mut(),
                Accum::Add,
                columns.subrows(start, len).transpose(),
                right.subrows(start, len),
                1.0,
                Par::Seq,
            );
        }
    });
    product
}

impl Minimizer for Spring {
    fn name(&self) -> &'static str {
        "SPRING"
    }

    /// λ of the next step, in units of the mean of the diagonal of J Jᵀ.
    fn rate(&self) -> f64 {
        self.damping
    }

    fn step(
        &mut self,
        objective: &dyn Objective,
        mut at: Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        super::same_length(at.theta, at.gradient)?;
        if at.gradient.iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        let mut outcome = Ok(None);
        objective.within(&mut || outcome = self.make(objective, &mut at));
        outcome
    }

    fn reset(&mut self) {
        self.damping = self.first;
        self.step.clear();
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}

impl Memory for Spring {
    fn check(&self) -> Result<(), Error> {
        fraction("the momentum of SPRING", self.momentum)?;
        positive("the damping of SPRING", self.first)?;
        positive("the damping of SPRING", self.damping)?;
        all_finite("the last step of SPRING", &self.step)
    }
}
