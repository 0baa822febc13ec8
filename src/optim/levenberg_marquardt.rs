//! Levenberg-Marquardt with exact steps and a rule that aims at a ratio.

use super::dense::{Damped, Model, Work};
use super::{
    Halt, Iterate, Memory, Minimizer, Objective, all_finite, at_least_one, norm, positive, recall,
    trial, within,
};
use crate::checkpoint::encode;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Levenberg-Marquardt for sums of squares: steps p that minimise ‖J p + r‖² + λ‖p‖², exactly,
/// with the damping λ chosen anew at each step.
///
/// The Jacobian goes through a streamed QR factorisation and a reduction to a band, from
/// which steps for many dampings follow at little cost. All is done by orthogonal
/// transformations, without JᵀJ, so that dampings down to the square of the rounding unit
/// still tell.
///
/// Each step is bent by the second derivative of the residuals along it (geodesic
/// acceleration: Transtrum and Sethna 2012) where that decreases the loss more, and can then
/// be much longer.
///
/// The rule (after the ratio-targeting rule of arXiv:2607.02194): the true decrease of the
/// loss is compared with that of the linear model, and the longest step, that is the least
/// λ, is sought whose ratio reaches a target. The target is low while λ falls from step to
/// step, and high once it has begun to rise. If no step reaches the target, the one that
/// decreases the loss most is taken.
///
/// With n parameters and N residuals a step takes 2 N n² + 3 n³ operations (N < n:
/// 2 N² n + 3 N³). Each damping that is tried, some 6 a step, needs the loss at two
/// points, the residuals at two, and a reverse sweep.
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
    acceleration: f64,
    /// λ of the last step.
    damping: f64,
    /// ln λ of the last steps, the oldest first.
    logs: Vec<f64>,
    #[serde(skip)]
    work: Work,
}

/// The first damping, and bounds, in units of ‖J‖².
const FIRST: f64 = 1e-3;
const LEAST: f64 = 1e-32;
const MOST: f64 = 1e8;
/// Dampings are tried farther and farther from the last, first by this factor.
const FACTOR: f64 = 3.0;
/// Two dampings so close are one.
const CLOSE: f64 = 1.3;
/// Most dampings in the direction of longer steps.
const LONGER: usize = 5;
/// Half the distance of the points for second derivatives, in units of the step.
const DISTANCE: f64 = 0.1;

impl Default for LevenbergMarquardt {
    fn default() -> Self {
        Self {
            targets: (0.1, 0.5),
            window: 30,
            acceleration: 0.75,
            damping: f64::NAN,
            logs: Vec::new(),
            work: Work::default(),
        }
    }
}

/// A step that was tried.
struct Tried {
    damping: f64,
    theta: Vec<f64>,
    ratio: f64,
    decrease: f64,
}

impl LevenbergMarquardt {
    /// Ratios of true to predicted decrease that a step aims at while the damping falls
    /// and once it rises; 0.1 and 0.5 if not given.
    ///
    /// # Errors
    /// Numbers outside (0, 1).
    pub fn targets(mut self, falling: f64, rising: f64) -> Result<Self, Error> {
        self.targets = (falling, rising);
        self.check()?;
        Ok(self)
    }

    /// Over how many steps the damping is watched; 30 if not given.
    ///
    /// # Errors
    /// No steps.
    pub fn window(mut self, steps: usize) -> Result<Self, Error> {
        self.window = steps;
        self.check()?;
        Ok(self)
    }

    /// How long a bend may be in units of its step, for a step to be bent at all; 0.75 if
    /// not given, 0 for straight steps.
    ///
    /// # Errors
    /// A number that is negative or not finite.
    pub fn acceleration(mut self, most: f64) -> Result<Self, Error> {
        self.acceleration = most;
        self.check()?;
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

    /// The step for a damping, and what it brings.
    fn attempt(
        &self,
        objective: &dyn Objective,
        model: &Model,
        damping: f64,
        at: &Iterate<'_>,
        residuals: &[f64],
    ) -> Result<Tried, Error> {
        let damped = model.damp(damping);
        let z = damped.solution();
        let step = model.expand(&z);
        let go = |step: &[f64]| -> Result<Tried, Error> {
            let theta: Vec<f64> = at.theta.iter().zip(step).map(|(x, p)| x + p).collect();
            let decrease = at.loss - trial(objective.value(&theta))?;
            Ok(Tried {
                damping,
                theta,
                ratio: decrease / model.decrease(&z),
                decrease,
            })
        };
        let straight = go(&step)?;
        if self.acceleration > 0.0
            && let Some(bend) = bend(objective, model, &damped, &step, at.theta, residuals)?
            && norm(&bend) <= self.acceleration * norm(&step)
        {
            let bent: Vec<f64> = step.iter().zip(&bend).map(|(p, a)| p + a).collect();
            let bent = go(&bent)?;
            if bent.decrease > straight.decrease {
                return Ok(bent);
            }
        }
        Ok(straight)
    }

    /// Chooses a step and takes it.
    fn choose(
        &mut self,
        objective: &dyn Objective,
        model: &Model,
        at: &mut Iterate<'_>,
    ) -> Result<Option<Halt>, Error> {
        let target = self.target();
        let residuals = match self.acceleration > 0.0 {
            true => objective.residuals(at.theta)?,
            false => Vec::new(),
        };
        let (least, most) = (model.scale * LEAST, model.scale * MOST);
        let mut damping = match self.damping.is_nan() {
            true => model.scale * FIRST,
            false => self.damping.clamp(least, most),
        };
        // The longest step that reaches the target, the damping of the shortest that does
        // not, and the best of all steps.
        let mut good: Option<Tried> = None;
        let mut bad: Option<f64> = None;
        let mut best: Option<Tried> = None;
        let (mut factor, mut longer) = (FACTOR, 0);
        loop {
            let tried = self.attempt(objective, model, damping, at, &residuals)?;
            if tried.ratio >= target {
                good = Some(tried);
            } else {
                bad = Some(damping);
                let least = best.as_ref().map_or(0.0, |best| best.decrease);
                if tried.decrease > least {
                    best = Some(tried);
                }
            }
            damping = match (&good, bad) {
                (Some(good), Some(bad)) if good.damping <= CLOSE * bad => break,
                (Some(good), Some(bad)) => (good.damping * bad).sqrt(),
                (Some(good), None) => {
                    longer += 1;
                    if good.damping <= least || longer == LONGER {
                        break;
                    }
                    (good.damping / factor).max(least)
                }
                (None, _) if damping >= most => break,
                (None, _) => (damping * factor).min(most),
            };
            if good.is_none() || bad.is_none() {
                factor *= factor.min(1e2);
            }
        }
        let Some(taken) = good.or(best) else {
            return Ok(Some(Halt::NoDecrease));
        };
        at.theta.copy_from_slice(&taken.theta);
        self.damping = taken.damping;
        if self.logs.len() == self.window.max(2) {
            self.logs.remove(0);
        }
        self.logs.push(taken.damping.ln());
        Ok(None)
    }
}

/// Half the acceleration along a step: −½ (JᵀJ + λI)⁻¹ Jᵀ r″, with r″ the second derivative of
/// the residuals along the step, by differences. `None` where the residuals are not finite.
fn bend(
    objective: &dyn Objective,
    model: &Model,
    damped: &Damped,
    step: &[f64],
    theta: &[f64],
    residuals: &[f64],
) -> Result<Option<Vec<f64>>, Error> {
    let mut second: Vec<f64> = residuals.iter().map(|r| -2.0 * r).collect();
    for distance in [DISTANCE, -DISTANCE] {
        let moved: Vec<f64> = theta
            .iter()
            .zip(step)
            .map(|(x, p)| x + distance * p)
            .collect();
        if !moved.iter().all(|x| x.is_finite()) {
            return Ok(None);
        }
        for (sum, r) in second.iter_mut().zip(objective.residuals(&moved)?) {
            *sum += r;
        }
    }
    if !second.iter().all(|x| x.is_finite()) {
        return Ok(None);
    }
    let gradient = objective.transposed(theta, &second)?;
    let bend = model.expand(&damped.normal(&model.contract(&gradient)));
    let factor = -0.5 / (DISTANCE * DISTANCE);
    Ok(Some(bend.iter().map(|x| factor * x).collect()))
}

impl Memory for LevenbergMarquardt {
    fn check(&self) -> Result<(), Error> {
        for (name, target) in [("falls", self.targets.0), ("rises", self.targets.1)] {
            let good = target > 0.0 && target < 1.0;
            let what = format!("the target ratio while the damping {name}");
            within(&what, target, good, "a number between 0 and 1")?;
        }
        at_least_one("the window of Levenberg-Marquardt", self.window)?;
        let most = self.acceleration;
        let good = most >= 0.0 && most.is_finite();
        let what = "the acceleration of Levenberg-Marquardt";
        within(what, most, good, "a number from 0")?;
        // None before the first step.
        if !self.damping.is_nan() {
            positive("the damping of Levenberg-Marquardt", self.damping)?;
        }
        all_finite("the last dampings of Levenberg-Marquardt", &self.logs)
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
        objective.within(&mut || {
            let model = Model::new(objective, at.theta, 0..at.theta.len(), &mut self.work);
            outcome = model.and_then(|model| self.choose(objective, &model, &mut at));
        });
        outcome
    }

    fn reset(&mut self) {
        self.damping = f64::NAN;
        self.logs.clear();
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        *self = recall(self.name(), snapshot)?;
        Ok(())
    }
}
