//! Levenberg-Marquardt with exact steps and a rule that aims at a ratio.

use super::dense::{Model, Work};
use super::{Halt, Iterate, Minimizer, Objective, at_least_one, norm, trial, within};
use crate::checkpoint::{decode, encode};
use crate::error::Error;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Levenberg-Marquardt for sums of squares: steps p that minimise ‖J p + r‖² + λ‖p‖², exactly,
/// with the damping λ chosen anew at each step.
///
/// The Jacobian goes through a streamed QR factorisation and a reduction to a band, from
/// which steps for many dampings follow at little cost. All is done by orthogonal
/// transformations, without JᵀJ, so that dampings down to the square of the rounding unit
/// still tell.
///
/// The rule (after the ratio-targeting rule of arXiv:2607.02194): dampings are tried whose
/// steps are from a third to three times as long as the last step. For each, the true
/// decrease of the loss is compared with that of the linear model. Of those whose ratio, and
/// that of all shorter ones, reaches a target, the longest step is taken. The target is low
/// while λ falls from step to step, and high once it has begun to rise. If no step reaches
/// the target, the one that decreases the loss most is taken; if none decreases it, shorter
/// ones are tried.
///
/// With n parameters and N residuals a step takes 2 N n² + 3 n³ operations (N < n:
/// 2 N² n + 3 N³) and as many evaluations of the loss as dampings are tried, some 16.
///
/// ```
/// use dualtape::optim::LevenbergMarquardt;
/// use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem, Train};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 10, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [n] = net.at(&[t]);
///     let y = 1.0 + t * n; // y(0) = 1
///     y.d(t) + y
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 60)])?;
/// let mut engine = Engine::new(&Problem::new(&params, [Condition::new(&decay, points)])?)?;
/// let mut method = LevenbergMarquardt::default();
/// let report = Train::new(60).run(&mut engine, &mut params, &mut method)?;
/// assert!(report.loss < 1e-18, "{report}");
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LevenbergMarquardt {
    targets: (f64, f64),
    window: usize,
    /// Length of the last step.
    radius: Option<f64>,
    /// λ of the last step.
    damping: f64,
    /// ln λ of the last steps, the oldest first.
    logs: Vec<f64>,
    #[serde(skip)]
    work: Work,
}

/// How far from the last length of step others are tried.
const SPREAD: f64 = 3.0;
/// Ratio of neighbouring dampings.
const FINE: f64 = 1.8;
/// Dampings at the first step, and their ratio.
const FIRST: usize = 24;
const COARSE: f64 = 6.0;
/// Dampings that are solved at a time.
const BATCH: usize = 4;
/// Most dampings in either direction.
const MOST: usize = 40;
/// The least damping in units of ‖J‖².
const LEAST: f64 = 1e-32;

impl Default for LevenbergMarquardt {
    fn default() -> Self {
        Self {
            targets: (0.1, 0.5),
            window: 30,
            radius: None,
            damping: f64::NAN,
            logs: Vec::new(),
            work: Work::default(),
        }
    }
}

/// A step that may be taken.
struct Candidate {
    damping: f64,
    /// The step in the coordinates of the model.
    z: Vec<f64>,
    length: f64,
}

impl LevenbergMarquardt {
    /// Ratios of true to predicted decrease that a step aims at while the damping falls
    /// and once it rises; 0.1 and 0.5 if not given.
    ///
    /// # Errors
    /// Numbers outside (0, 1).
    pub fn targets(mut self, falling: f64, rising: f64) -> Result<Self, Error> {
        for (name, target) in [("falls", falling), ("rises", rising)] {
            let good = target > 0.0 && target < 1.0;
            let what = format!("the target ratio while the damping {name}");
            within(&what, target, good, "a number between 0 and 1")?;
        }
        self.targets = (falling, rising);
        Ok(self)
    }

    /// Over how many steps the damping is watched; 30 if not given.
    ///
    /// # Errors
    /// No steps.
    pub fn window(mut self, steps: usize) -> Result<Self, Error> {
        at_least_one("the window of Levenberg-Marquardt", steps)?;
        self.window = steps;
        Ok(self)
    }

    fn target(&self) -> f64 {
        let half = self.logs.len() / 2;
        let mean = |logs: &[f64]| logs.iter().sum::<f64>() / logs.len() as f64;
        let rising = self.logs.len() >= self.window.max(2)
            && mean(&self.logs[half..]) > mean(&self.logs[..half]);
        if rising {
            self.targets.1
        } else {
            self.targets.0
        }
    }

    /// Steps around a length, the shortest first.
    fn candidates(&self, model: &Model, radius: Option<f64>) -> Vec<Candidate> {
        let least = model.scale * LEAST;
        let solve = |dampings: Vec<f64>| -> Vec<Candidate> {
            let solved = dampings.into_par_iter().map(|damping| {
                let z = model.solve(damping);
                let length = norm(&z);
                Candidate { damping, z, length }
            });
            solved.collect()
        };
        let Some(radius) = radius else {
            let damping = |k: usize| model.scale * COARSE.powi(-(k as i32));
            return solve((0..FIRST).map(damping).collect());
        };
        let start = self.damping.clamp(least, model.scale * 1e10);
        // Longer and longer steps, then shorter and shorter ones.
        let walk = |first: i32, sign: i32, goal: &dyn Fn(f64) -> bool| {
            let mut found: Vec<Candidate> = Vec::new();
            for batch in 0..MOST / BATCH {
                let place = |k: usize| first + sign * (batch * BATCH + k) as i32;
                let dampings = (0..BATCH).map(|k| start * FINE.powi(place(k)));
                let dampings: Vec<f64> = dampings.filter(|&l| l >= least).collect();
                let end = dampings.is_empty();
                found.extend(solve(dampings));
                if end || found.last().is_some_and(|last| goal(last.length)) {
                    break;
                }
            }
            found
        };
        let longer = walk(0, -1, &|length| length >= radius * SPREAD);
        let shorter = walk(1, 1, &|length| length <= radius / SPREAD);
        let mut all: Vec<Candidate> = shorter.into_iter().rev().chain(longer).collect();
        let within = |c: &Candidate| (radius / SPREAD..=radius * SPREAD).contains(&c.length);
        if all.iter().any(within) {
            all.retain(within);
        } else {
            // All are shorter, or all longer, or there is a gap: the nearest.
            let distance = |c: &Candidate| (c.length / radius).ln().abs();
            all.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
            all.truncate(1);
        }
        all
    }

    /// Chooses a step and takes it.
    fn choose(
        &mut self,
        objective: &dyn Objective,
        model: &Model,
        at: &mut Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        let start = at.theta.to_vec();
        let mut radius = self.radius;
        loop {
            let candidates = self.candidates(model, radius);
            let z: Vec<&[f64]> = candidates.iter().map(|c| c.z.as_slice()).collect();
            let steps = model.expand(&z);
            let target = self.target();
            let mut ratio = f64::INFINITY;
            let mut chosen: Option<usize> = None;
            let mut best: Option<(usize, f64)> = None;
            let mut moved = start.clone();
            for (place, candidate) in candidates.iter().enumerate() {
                let step = steps.col(place).iter();
                for ((to, from), step) in moved.iter_mut().zip(&start).zip(step) {
                    *to = from + step;
                }
                let loss = trial(objective.value(&moved))?;
                let decrease = at.loss - loss;
                ratio = ratio.min(decrease / model.decrease(&candidate.z));
                if ratio >= target {
                    chosen = Some(place);
                }
                if decrease > 0.0 && best.is_none_or(|(_, least)| loss < least) {
                    best = Some((place, loss));
                }
            }
            if let Some(place) = chosen.or(best.map(|(place, _)| place)) {
                for ((to, from), step) in
                    at.theta.iter_mut().zip(&start).zip(steps.col(place).iter())
                {
                    *to = from + step;
                }
                let candidate = &candidates[place];
                self.radius = Some(candidate.length);
                self.damping = candidate.damping;
                if self.logs.len() == self.window.max(2) {
                    self.logs.remove(0);
                }
                self.logs.push(candidate.damping.ln());
                return Ok(None);
            }
            // Shorter steps, until their damping leaves nothing but the gradient.
            let Some(shortest) = candidates.first() else {
                return Ok(Some(Halt::NoDecrease));
            };
            if shortest.damping > model.scale * 1e8 || shortest.length == 0.0 {
                return Ok(Some(Halt::NoDecrease));
            }
            self.damping = shortest.damping;
            radius = Some(shortest.length / SPREAD);
        }
    }
}

impl Minimizer for LevenbergMarquardt {
    fn name(&self) -> &'static str {
        "Levenberg-Marquardt"
    }

    /// λ of the last step.
    fn rate(&self) -> f64 {
        self.damping
    }

    fn step(
        &mut self,
        objective: &dyn Objective,
        mut at: Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        if at.gradient.iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        let mut outcome = Ok(None);
        let before = (self.radius, self.damping);
        objective.within(&mut || {
            let model = Model::new(objective, at.theta, 0..at.theta.len(), &mut self.work);
            outcome = model.and_then(|model| self.choose(objective, &model, &mut at));
        });
        if !matches!(outcome, Ok(None)) {
            (self.radius, self.damping) = before;
        }
        outcome
    }

    fn reset(&mut self) {
        self.radius = None;
        self.damping = f64::NAN;
        self.logs.clear();
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = decode(self.name(), snapshot)?;
        Ok(())
    }
}
