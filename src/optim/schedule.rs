//! How a rate changes from step to step.

use super::{at_least_one, positive, within};
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Warm-ups one after the other that a file may hold.
const WARM_UPS: usize = 64;

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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "Flat", try_from = "Flat")]
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

/// A schedule in a file: without recursion, which a changed file could drive too deep.
#[derive(Serialize, Deserialize)]
struct Flat {
    warm_ups: Vec<usize>,
    then: Last,
}

#[derive(Serialize, Deserialize)]
enum Last {
    Constant,
    Exponential(f64, usize),
    Cosine(usize, f64),
    Piecewise(Vec<(usize, f64)>),
}

impl From<Schedule> for Flat {
    fn from(mut schedule: Schedule) -> Self {
        let mut warm_ups = Vec::new();
        while let Schedule::WarmUp { steps, then } = schedule {
            warm_ups.push(steps);
            schedule = *then;
        }
        let then = match schedule {
            Schedule::Exponential { factor, every } => Last::Exponential(factor, every),
            Schedule::Cosine { steps, floor } => Last::Cosine(steps, floor),
            Schedule::Piecewise(pieces) => Last::Piecewise(pieces),
            Schedule::Constant | Schedule::WarmUp { .. } => Last::Constant,
        };
        Self { warm_ups, then }
    }
}

impl TryFrom<Flat> for Schedule {
    type Error = Error;

    fn try_from(flat: Flat) -> Result<Self, Error> {
        let good = flat.warm_ups.len() <= WARM_UPS;
        let given = flat.warm_ups.len() as f64;
        within("the warm-ups of a schedule", given, good, "at most 64")?;
        let last = match flat.then {
            Last::Constant => Self::Constant,
            Last::Exponential(factor, every) => Self::exponential(factor, every)?,
            Last::Cosine(steps, floor) => Self::cosine(steps, floor)?,
            Last::Piecewise(pieces) => Self::piecewise(&pieces)?,
        };
        let mut outwards = flat.warm_ups.into_iter().rev();
        outwards.try_fold(last, Self::warm_up)
    }
}
