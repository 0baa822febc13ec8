//! Optimisers: what a gradient does to the parameters, and how the rate changes.
//! Knows nothing of equations, points or the loop that calls it.

use crate::error::Error;

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
}

/// How the rate of an optimiser changes: a factor for each step.
///
/// ```
/// use dualtape::optim::{Adam, Schedule};
///
/// let schedule = Schedule::cosine(1000, 0.01)?.warm_up(10)?;
/// assert_eq!(schedule.factor(4), 0.5);
/// assert_eq!(schedule.factor(10), 1.0);
/// assert_eq!(schedule.factor(5000), 0.01);
/// let adam = Adam::new(1e-3)?.schedule(schedule);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// 1 throughout.
    #[default]
    Constant,
    /// `factor^(step / every)`, smoothly.
    Exponential {
        /// The factor.
        factor: f64,
        /// After how many steps it is reached.
        every: usize,
    },
    /// Half a cosine from 1 down to `floor` over `steps`, then `floor`.
    Cosine {
        /// How many steps it takes.
        steps: usize,
        /// The last factor.
        floor: f64,
    },
    /// From each step on, its factor; 1 before the first.
    Piecewise(Vec<(usize, f64)>),
    /// Linearly up to 1 in `steps`, then another schedule from its beginning.
    WarmUp {
        /// How many steps it takes.
        steps: usize,
        /// What follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// Multiplies the rate by `factor` in every `every` steps, smoothly.
    ///
    /// # Errors
    /// A factor that is not positive and finite, `every` = 0.
    pub fn exponential(factor: f64, every: usize) -> Result<Self, Error> {
        positive("the factor of an exponential schedule", factor)?;
        at_least_one("the period of an exponential schedule", every)?;
        Ok(Self::Exponential { factor, every })
    }

    /// Half a cosine from 1 down to `floor` over `steps`.
    ///
    /// # Errors
    /// A floor outside [0, 1], no steps.
    pub fn cosine(steps: usize, floor: f64) -> Result<Self, Error> {
        at_least_one("the length of a cosine schedule", steps)?;
        within(
            "the floor of a cosine schedule",
            floor,
            (0.0..=1.0).contains(&floor),
            "a factor from 0 to 1",
        )?;
        Ok(Self::Cosine { steps, floor })
    }

    /// From each step on, its factor; 1 before the first.
    ///
    /// ```
    /// use dualtape::optim::Schedule;
    ///
    /// let schedule = Schedule::piecewise(&[(100, 0.1), (200, 0.01)])?;
    /// assert_eq!([99, 100, 500].map(|step| schedule.factor(step)), [1.0, 0.1, 0.01]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Steps that do not increase, factors that are not positive and finite.
    pub fn piecewise(pieces: &[(usize, f64)]) -> Result<Self, Error> {
        for (_, factor) in pieces {
            positive("a factor of a piecewise schedule", *factor)?;
        }
        if let Some(pair) = pieces.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(Error::OutOfRange {
                what: "the steps of a piecewise schedule".to_owned(),
                given: format!("{} and then {}", pair[0].0, pair[1].0),
                expected: "each must be greater than the one before".to_owned(),
            });
        }
        Ok(Self::Piecewise(pieces.to_vec()))
    }

    /// First linearly up to 1 in `steps`, then this schedule from its beginning.
    ///
    /// # Errors
    /// No steps.
    pub fn warm_up(self, steps: usize) -> Result<Self, Error> {
        at_least_one("the length of a warm-up", steps)?;
        Ok(Self::WarmUp {
            steps,
            then: Box::new(self),
        })
    }

    /// The factor for a step, counted from 0.
    pub fn factor(&self, step: usize) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Exponential { factor, every } => factor.powf(step as f64 / *every as f64),
            Self::Cosine { steps, floor } => {
                let share = (step as f64 / *steps as f64).min(1.0);
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
            }
            Self::Piecewise(pieces) => {
                let last = pieces.iter().rev().find(|(from, _)| *from <= step);
                last.map_or(1.0, |(_, factor)| *factor)
            }
            Self::WarmUp { steps, .. } if step < *steps => (step + 1) as f64 / *steps as f64,
            Self::WarmUp { steps, then } => then.factor(step - steps),
        }
    }
}

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
#[derive(Debug, Clone, PartialEq)]
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
        positive("the rate of gradient descent", rate)?;
        Ok(Self {
            rate,
            schedule: Schedule::Constant,
            steps: 0,
        })
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
#[derive(Debug, Clone, PartialEq)]
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
        positive("the rate of Adam", rate)?;
        Ok(Self {
            rate,
            ..Self::default()
        })
    }

    /// The decay of the two averages, 0.9 and 0.999 if not given.
    ///
    /// # Errors
    /// Numbers outside [0, 1).
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Result<Self, Error> {
        for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
            within(
                &format!("{name} of Adam"),
                beta,
                (0.0..1.0).contains(&beta),
                "a number from 0 to less than 1",
            )?;
        }
        (self.beta1, self.beta2) = (beta1, beta2);
        Ok(self)
    }

    /// What is added to the root, 1e-8 if not given.
    ///
    /// # Errors
    /// A number that is not positive and finite.
    pub fn epsilon(mut self, epsilon: f64) -> Result<Self, Error> {
        positive("epsilon of Adam", epsilon)?;
        self.epsilon = epsilon;
        Ok(self)
    }

    /// How the rate changes.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
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
