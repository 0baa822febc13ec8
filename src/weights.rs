//! Weights that change while training: of whole conditions by the size of their gradients
//! or kernels, of points by causality or by their residuals. They are set on the engine,
//! which is not built anew; [`Train::redraw`](crate::Train::redraw) is the place to do it.
//!
//! ```no_run
//! use dualtape::weights::Balance;
//! use dualtape::{Engine, Error, Optimizer, Parameters, Train};
//!
//! # fn run(engine: &mut Engine, params: &mut Parameters, adam: &mut dyn Optimizer) -> Result<(), Error> {
//! let balance = Balance::gradient_norm().memory(0.9)?;
//! let report = Train::new(10_000)
//!     .redraw(100, (), move |(), engine, params| balance.apply(engine, params.values()).map(drop))
//!     .run(engine, params, adam)?;
//! # Ok(())
//! # }
//! ```

use crate::engine::Engine;
use crate::error::{Error, check_finite};
use serde::{Deserialize, Serialize};

fn check_share(what: &str, given: f64, expected: &str, holds: bool) -> Result<(), Error> {
    if holds {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what: what.to_owned(),
        given: given.to_string(),
        expected: expected.to_owned(),
    })
}

/// Weights of conditions that make them learn at one speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    rule: Rule,
    memory: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Rule {
    GradientNorm,
    NtkTrace,
    Losses(f64),
}

impl Balance {
    /// Inversely to the norm of each condition's gradient, λ_i = Σ_j ‖∇L_j‖/‖∇L_i‖ (Wang,
    /// Sankaran, Wang and Perdikaris 2023, algorithm 1).
    pub fn gradient_norm() -> Self {
        Self {
            rule: Rule::GradientNorm,
            memory: 0.0,
        }
    }

    /// Inversely to the mean diagonal of each condition's neural tangent kernel,
    /// λ_i = Σ_j tr K_j/tr K_i, with traces divided by the number of points (Wang, Yu and
    /// Perdikaris 2022). For means of squares and integrals.
    pub fn ntk_trace() -> Self {
        Self {
            rule: Rule::NtkTrace,
            memory: 0.0,
        }
    }

    /// Towards equal losses, slowly: λ_i = w_i (mean L / L_i)^p with the present weights w,
    /// which are part of the losses L. A power p of 0.05 at each step, or more at every
    /// tenth, serves methods of second order (arXiv:2607.02194).
    ///
    /// # Errors
    /// A power that is not above 0 and up to 1.
    pub fn losses(power: f64) -> Result<Self, Error> {
        let holds = power > 0.0 && power <= 1.0;
        check_share(
            "the power of a balance of losses",
            power,
            "it is above 0 and at most 1",
            holds,
        )?;
        Ok(Self {
            rule: Rule::Losses(power),
            memory: 0.0,
        })
    }

    /// How much of the present weights is kept: w ← m w + (1 − m) λ.
    ///
    /// # Errors
    /// A share that is not from 0 to below 1.
    pub fn memory(mut self, share: f64) -> Result<Self, Error> {
        let holds = (0.0..1.0).contains(&share);
        check_share(
            "the memory of weights",
            share,
            "it is from 0 to below 1",
            holds,
        )?;
        self.memory = share;
        Ok(self)
    }

    /// Sets new weights for all conditions, and gives them. A condition whose weight is not
    /// positive, or whose gradient vanishes, keeps its own.
    ///
    /// # Errors
    /// As [`Engine::evaluate`].
    pub fn apply(&self, engine: &mut Engine, theta: &[f64]) -> Result<Vec<f64>, Error> {
        let names = engine.conditions().to_vec();
        let old: Vec<f64> = names
            .iter()
            .map(|name| engine.weight(name))
            .collect::<Result<_, _>>()?;
        let sizes: Vec<f64> = match self.rule {
            Rule::GradientNorm => engine
                .gradients(theta)?
                .iter()
                .map(|g| g.iter().map(|x| x * x).sum::<f64>().sqrt())
                .collect(),
            Rule::NtkTrace => names
                .iter()
                .map(|name| trace(engine, name, theta))
                .collect::<Result<_, _>>()?,
            Rule::Losses(_) => engine.losses(theta)?,
        };
        let counts = |size: &f64| size.is_finite() && *size > 0.0;
        // A new weight is total/size; the present one is a factor of what was measured.
        let (sizes, total): (Vec<f64>, f64) = match self.rule {
            Rule::Losses(power) => {
                let mean = mean(sizes.iter().copied().filter(counts));
                let shares = sizes.iter().map(|loss| (loss / mean).powf(power));
                (shares.zip(&old).map(|(share, w)| share / w).collect(), 1.0)
            }
            _ => {
                let sizes: Vec<f64> = sizes.iter().zip(&old).map(|(size, w)| size / w).collect();
                let total = sizes.iter().filter(|size| counts(size)).sum();
                (sizes, total)
            }
        };
        let new: Vec<f64> = sizes
            .iter()
            .zip(&old)
            .map(|(size, &w)| {
                if w > 0.0 && counts(size) {
                    self.memory * w + (1.0 - self.memory) * total / size
                } else {
                    w
                }
            })
            .collect();
        check_finite("the new weights", &new)?;
        for (name, &weight) in names.iter().zip(&new) {
            engine.set_weight(name, weight)?;
        }
        Ok(new)
    }
}

fn mean(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = numbers.clone().count() as f64;
    numbers.sum::<f64>() / count
}

/// The squared norm of a condition's Gauss-Newton rows.
fn trace(engine: &Engine, condition: &str, theta: &[f64]) -> Result<f64, Error> {
    let mut sum = 0.0;
    engine.rows(condition, theta, |rows| {
        for index in 0..rows.parameters() {
            sum += rows.parameter(index).iter().map(|x| x * x).sum::<f64>();
        }
    })?;
    Ok(sum)
}

/// Weights of points by causality: what happens later counts once what happened before is
/// solved, w_i = exp(−ε Σ_{k<i} L_k) over slices of time (Wang, Sankaran and Perdikaris 2024).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Causal {
    slices: usize,
    epsilon: f64,
}

impl Causal {
    /// So many slices of equal length; `epsilon` says how strict they are, from 0.01 to 100
    /// in the paper.
    ///
    /// # Errors
    /// No slice, an epsilon that is negative or not finite.
    pub fn new(slices: usize, epsilon: f64) -> Result<Self, Error> {
        let holds = slices > 0;
        check_share(
            "the number of slices of time",
            slices as f64,
            "give at least one",
            holds,
        )?;
        let holds = epsilon.is_finite() && epsilon >= 0.0;
        check_share(
            "the epsilon of causal weights",
            epsilon,
            "it must not be negative",
            holds,
        )?;
        Ok(Self { slices, epsilon })
    }

    /// One weight for each point, from its time and the residuals there (one list for each
    /// output).
    ///
    /// ```
    /// use dualtape::weights::Causal;
    ///
    /// // Residual 1 in the first of two slices, 5 in the second.
    /// let weights = Causal::new(2, 1.0)?.weights(&[0.0, 0.1, 0.9, 1.0], &[vec![1.0, 1.0, 5.0, 5.0]])?;
    /// assert_eq!(weights, [1.0, 1.0, (-1_f64).exp(), (-1_f64).exp()]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No point, residuals of another number, numbers that are not finite.
    pub fn weights(&self, times: &[f64], residuals: &[Vec<f64>]) -> Result<Vec<f64>, Error> {
        if times.is_empty() {
            return Err(Error::Empty {
                what: "the list of times".to_owned(),
            });
        }
        check_finite("the times", times)?;
        let squares = squares(times.len(), residuals)?;
        let first = times.iter().copied().fold(f64::INFINITY, f64::min);
        let last = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let slice = |time: f64| {
            let share = if last > first {
                (time - first) / (last - first)
            } else {
                0.0
            };
            ((share * self.slices as f64) as usize).min(self.slices - 1)
        };
        let mut sums = vec![(0.0, 0_usize); self.slices];
        for (&time, square) in times.iter().zip(&squares) {
            let (sum, count) = &mut sums[slice(time)];
            *sum += square;
            *count += 1;
        }
        let mut before = 0.0;
        let weights: Vec<f64> = sums
            .iter()
            .map(|&(sum, count)| {
                let weight = (-self.epsilon * before).exp();
                before += sum / count.max(1) as f64;
                weight
            })
            .collect();
        Ok(times.iter().map(|&time| weights[slice(time)]).collect())
    }

    /// Sets the weights of a condition's points, whose times are given, and gives the least:
    /// near 1, all of it is solved and a larger epsilon may follow.
    ///
    /// # Errors
    /// As [`weights`](Self::weights) and [`Engine::residuals`].
    pub fn apply(
        &self,
        engine: &mut Engine,
        condition: &str,
        times: &[f64],
        theta: &[f64],
    ) -> Result<f64, Error> {
        let weights = self.weights(times, &engine.residuals(condition, theta)?)?;
        engine.set_point_weights(condition, Some(&weights))?;
        Ok(weights.into_iter().fold(f64::INFINITY, f64::min))
    }
}

/// Weights of points that grow where residuals stay large: self-adaptive ones.
///
/// ```
/// use dualtape::weights::SelfAdaptive;
///
/// let mut weights = SelfAdaptive::ascent(0.5)?;
/// assert_eq!(weights.update(&[vec![2.0, 0.0]])?, [3.0, 1.0]); // 1 + 0.5·2²
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfAdaptive {
    rate: f64,
    /// What is kept of the weights; `None` for plain ascent.
    decay: Option<f64>,
    weights: Vec<f64>,
}

impl SelfAdaptive {
    /// Gradient ascent of the loss in the weights, λ ← λ + η r², from 1 (McClenny and
    /// Braga-Neto 2023).
    ///
    /// # Errors
    /// A rate that is negative or not finite.
    pub fn ascent(rate: f64) -> Result<Self, Error> {
        let holds = rate.is_finite() && rate >= 0.0;
        check_share(
            "the rate of weights",
            rate,
            "it must not be negative",
            holds,
        )?;
        Ok(Self {
            rate,
            decay: None,
            weights: Vec::new(),
        })
    }

    /// Weights that stay below η/(1 − γ), λ ← γ λ + η |r|/max |r|, from 1 (residual-based
    /// attention: Anagnostopoulos, Toscano, Stergiopulos and Karniadakis 2024).
    ///
    /// # Errors
    /// A rate that is negative or not finite, a decay γ that is not from 0 to below 1.
    pub fn bounded(decay: f64, rate: f64) -> Result<Self, Error> {
        let holds = (0.0..1.0).contains(&decay);
        check_share(
            "the decay of weights",
            decay,
            "it is from 0 to below 1",
            holds,
        )?;
        Ok(Self {
            decay: Some(decay),
            ..Self::ascent(rate)?
        })
    }

    /// The next weights, from the residuals (one list for each output). For other points
    /// than before, of another number, they start anew.
    ///
    /// # Errors
    /// No residual, lists of different lengths, numbers that are not finite.
    pub fn update(&mut self, residuals: &[Vec<f64>]) -> Result<&[f64], Error> {
        let count = residuals.first().map_or(0, Vec::len);
        if count == 0 {
            return Err(Error::Empty {
                what: "the list of residuals".to_owned(),
            });
        }
        let squares = squares(count, residuals)?;
        if self.weights.len() != count {
            self.weights = vec![1.0; count];
        }
        let most = squares.iter().copied().fold(0.0, f64::max).sqrt();
        for (weight, square) in self.weights.iter_mut().zip(&squares) {
            *weight = match self.decay {
                None => *weight + self.rate * square,
                Some(decay) if most > 0.0 => decay * *weight + self.rate * square.sqrt() / most,
                Some(_) => *weight,
            };
        }
        Ok(&self.weights)
    }

    /// Forgets all weights: the next points have nothing to do with the last.
    pub fn reset(&mut self) {
        self.weights.clear();
    }

    /// Sets the next weights of a condition's points.
    ///
    /// # Errors
    /// As [`update`](Self::update) and [`Engine::residuals`].
    pub fn apply(
        &mut self,
        engine: &mut Engine,
        condition: &str,
        theta: &[f64],
    ) -> Result<(), Error> {
        let residuals = engine.residuals(condition, theta)?;
        let weights = self.update(&residuals)?;
        engine.set_point_weights(condition, Some(weights))
    }
}

/// Σ r² over the outputs, point by point.
fn squares(count: usize, residuals: &[Vec<f64>]) -> Result<Vec<f64>, Error> {
    let mut squares = vec![0.0; count];
    for list in residuals {
        if list.len() != count {
            return Err(Error::length("residuals of points", list.len(), count));
        }
        check_finite("the residuals", list)?;
        for (square, r) in squares.iter_mut().zip(list) {
            *square += r * r;
        }
    }
    Ok(squares)
}
