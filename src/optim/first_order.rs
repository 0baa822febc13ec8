//! Methods that see one gradient a step.

use super::{
    Memory, Optimizer, Schedule, all_finite, fraction, positive, recall, same_length, within,
};
use crate::checkpoint::encode;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Gradient descent: θ ← θ − rate · gradient.
///
/// ```
/// use dualtape::optim::{GradientDescent, Optimizer};
///
/// let mut theta = [1.0, 2.0];
/// GradientDescent::new(0.5)?.step(&mut theta, &[1.0, -1.0])?;
/// assert_eq!(theta, [0.5, 2.5]);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradientDescent {
    rate: f64,
    schedule: Schedule,
    steps: usize,
}

impl GradientDescent {
    /// Gradient descent with a rate.
    ///
    /// # Errors
    /// A rate that is not positive and finite.
    pub fn new(rate: f64) -> Result<Self, Error> {
        let descent = Self {
            rate,
            schedule: Schedule::Constant,
            steps: 0,
        };
        descent.check()?;
        Ok(descent)
    }

    /// How the rate changes.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }
}

impl Optimizer for GradientDescent {
    fn name(&self) -> &'static str {
        "gradient descent"
    }

    fn rate(&self) -> f64 {
        self.rate * self.schedule.factor(self.steps)
    }

    fn step(&mut self, theta: &mut [f64], gradient: &[f64]) -> Result<(), Error> {
        same_length(theta, gradient)?;
        let rate = self.rate();
        for (p, g) in theta.iter_mut().zip(gradient) {
            *p -= rate * g;
        }
        self.steps += 1;
        Ok(())
    }

    fn reset(&mut self) {
        self.steps = 0;
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}

impl Memory for GradientDescent {
    fn check(&self) -> Result<(), Error> {
        positive("the rate of gradient descent", self.rate)
    }
}

/// Adam (Kingma and Ba 2015) with bias correction:
/// m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², and
/// θ ← θ − rate · m/(1 − β₁ᵏ) / (√(v/(1 − β₂ᵏ)) + ε), with ε outside of the root.
///
/// ```
/// use dualtape::optim::{Adam, Schedule};
///
/// let default = Adam::default(); // rate 1e-3, β 0.9 and 0.999, ε 1e-8
/// let other = Adam::new(5e-3)?
///     .betas(0.9, 0.99)?
///     .epsilon(1e-12)?
///     .schedule(Schedule::exponential(0.5, 1000)?);
/// assert!(Adam::new(-1.0).is_err());
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    schedule: Schedule,
    steps: usize,
    /// β₁ᵏ and β₂ᵏ after k steps.
    powers: (f64, f64),
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Default for Adam {
    fn default() -> Self {
        Self {
            rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            schedule: Schedule::Constant,
            steps: 0,
            powers: (1.0, 1.0),
            first: Vec::new(),
            second: Vec::new(),
        }
    }
}

impl Adam {
    /// Adam with a rate and the usual other settings.
    ///
    /// # Errors
    /// A rate that is not positive and finite.
    pub fn new(rate: f64) -> Result<Self, Error> {
        let adam = Self {
            rate,
            ..Self::default()
        };
        adam.check()?;
        Ok(adam)
    }

    /// The decay of the two averages, 0.9 and 0.999 if not given.
    ///
    /// # Errors
    /// Numbers outside [0, 1).
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Result<Self, Error> {
        (self.beta1, self.beta2) = (beta1, beta2);
        self.check()?;
        Ok(self)
    }

    /// What is added to the root, 1e-8 if not given.
    ///
    /// # Errors
    /// A number that is not positive and finite.
    pub fn epsilon(mut self, epsilon: f64) -> Result<Self, Error> {
        self.epsilon = epsilon;
        self.check()?;
        Ok(self)
    }

    /// How the rate changes.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }
}

impl Memory for Adam {
    fn check(&self) -> Result<(), Error> {
        positive("the rate of Adam", self.rate)?;
        fraction("beta1 of Adam", self.beta1)?;
        fraction("beta2 of Adam", self.beta2)?;
        positive("epsilon of Adam", self.epsilon)?;
        for power in [self.powers.0, self.powers.1] {
            let good = (0.0..=1.0).contains(&power);
            within(
                "a power of beta of Adam",
                power,
                good,
                "a number from 0 to 1",
            )?;
        }
        if self.first.len() != self.second.len() {
            let (given, expected) = (self.second.len(), self.first.len());
            return Err(Error::length("averages of Adam", given, expected));
        }
        all_finite("the averages of Adam", &self.first)?;
        all_finite("the averages of Adam", &self.second)
    }
}

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        "Adam"
    }

    fn rate(&self) -> f64 {
        self.rate * self.schedule.factor(self.steps)
    }

    fn step(&mut self, theta: &mut [f64], gradient: &[f64]) -> Result<(), Error> {
        same_length(theta, gradient)?;
        if self.steps == 0 {
            self.first.clear();
            self.first.resize(theta.len(), 0.0);
            self.second.clone_from(&self.first);
        } else if theta.len() != self.first.len() {
            let what = "parameters of Adam, whose averages have their length";
            return Err(Error::length(what, theta.len(), self.first.len()));
        }
        let rate = self.rate();
        let (beta1, beta2, epsilon) = (self.beta1, self.beta2, self.epsilon);
        self.steps += 1;
        self.powers = (self.powers.0 * beta1, self.powers.1 * beta2);
        let step = rate / (1.0 - self.powers.0);
        let root = (1.0 - self.powers.1).sqrt();
        let averages = self.first.iter_mut().zip(&mut self.second);
        for ((p, g), (m, v)) in theta.iter_mut().zip(gradient).zip(averages) {
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *p -= step * *m / (v.sqrt() / root + epsilon);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.steps = 0;
        self.powers = (1.0, 1.0);
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}
