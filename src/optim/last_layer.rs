//! Least squares on the last layer of a network: as a method, and as an initialiser.

use super::dense::{Model, Work};
use super::{Halt, Iterate, Memory, Minimizer, Objective, positive, recall, trial};
use crate::checkpoint::encode;
use crate::error::Error;
use crate::network::Mlp;
use crate::parameters::Parameters;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Dampings that are tried, in units of ‖J‖².
const DAMPINGS: [f64; 7] = [1e-28, 1e-24, 1e-20, 1e-16, 1e-12, 1e-8, 1e-4];
/// Those for where none of them decreases the loss, far from a solution.
const MORE: [f64; 4] = [1e-2, 1.0, 1e3, 1e6];

/// Gauss-Newton on the last layer of a network, with its hidden layers as they are.
///
/// A network is linear in its last layer. So are the residuals of a linear equation, and a
/// step finds the best last layer; those of a nonlinear one are nearly so, and a few steps
/// do. Where the hidden layers are given by what is known of the solution, such as its
/// dependence on time in a short window, that is all the training there need be. A
/// step is the best of a few dampings.
///
/// With n numbers in the layer and N residuals a step takes 2 N n² + 3 n³ operations.
///
/// ```
/// use dualtape::optim::LastLayer;
/// use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem, Train};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 20, 1], Tanh)?;
/// let logistic = Equation::record("logistic", &params, ["t"], |[t]| {
///     let [n] = net.at(&[t]);
///     let y = 0.1 + t * n; // y(0) = 0.1
///     y.d(t) - y * (1.0 - y)
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 60)])?;
/// let mut engine = Engine::new(&Problem::new(&params, [Condition::new(&logistic, points)])?)?;
/// let mut method = LastLayer::of(&params, &net)?;
/// let report = Train::new(5).run(&mut engine, &mut params, &mut method)?;
/// assert!(report.loss < 1e-9, "{report}");
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LastLayer {
    /// The layer's places among the parameters.
    columns: Range<usize>,
    /// λ of the last step.
    damping: f64,
    #[serde(skip)]
    work: Work,
}

impl LastLayer {
    /// The last layer of `network`.
    ///
    /// # Errors
    /// A network of other parameters.
    pub fn of(parameters: &Parameters, network: &Mlp) -> Result<Self, Error> {
        let own = |block: &&crate::parameters::Block| block.group == network.name();
        let blocks: Vec<_> = parameters.blocks().iter().filter(own).collect();
        let [.., weight, bias] = blocks[..] else {
            return Err(Error::OtherParameters {
                what: format!("network `{}`", network.name()),
            });
        };
        Ok(Self {
            columns: weight.offset..bias.offset + bias.len(),
            damping: f64::NAN,
            work: Work::default(),
        })
    }

    /// The loss after the best step and its damping, if one decreases it; the parameters
    /// are then changed.
    fn best(
        &mut self,
        objective: &dyn Objective,
        theta: &mut [f64],
        mut least: f64,
    ) -> Result<Option<(f64, f64)>, Error> {
        let start = theta.to_vec();
        let model = Model::new(objective, &start, self.columns.clone(), &mut self.work)?;
        let mut best = None;
        for share in DAMPINGS.into_iter().chain(MORE) {
            if best.is_some() && MORE.contains(&share) {
                break;
            }
            let damping = share * model.scale;
            let step = model.expand(&model.damp(damping).solution());
            let mut moved = start.clone();
            for (to, step) in moved[self.columns.clone()].iter_mut().zip(&step) {
                *to += step;
            }
            let loss = trial(objective.value(&moved))?;
            if loss < least {
                least = loss;
                best = Some((loss, damping));
                theta.copy_from_slice(&moved);
            }
        }
        Ok(best)
    }
}

impl Memory for LastLayer {
    fn check(&self) -> Result<(), Error> {
        // None before the first step.
        if self.damping.is_nan() {
            return Ok(());
        }
        positive("the damping of the last layer", self.damping)
    }
}

impl Minimizer for LastLayer {
    fn name(&self) -> &'static str {
        "Gauss-Newton on the last layer"
    }

    /// λ of the last step.
    fn rate(&self) -> f64 {
        self.damping
    }

    fn step(&mut self, objective: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        if self.columns.end > at.theta.len() {
            let what = "parameters";
            return Err(Error::length(what, at.theta.len(), self.columns.end));
        }
        if at.gradient[self.columns.clone()].iter().all(|g| *g == 0.0) {
            return Ok(Some(Halt::Stationary));
        }
        let mut outcome = Ok(None);
        objective.within(&mut || outcome = self.best(objective, at.theta, at.loss));
        Ok(match outcome? {
            Some((_, damping)) => {
                self.damping = damping;
                None
            }
            None => Some(Halt::NoDecrease),
        })
    }

    fn reset(&mut self) {
        self.damping = f64::NAN;
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        let found: Self = recall(self.name(), snapshot)?;
        if found.columns != self.columns {
            return Err(Error::OtherParameters {
                what: "the last layer of the snapshot".to_owned(),
            });
        }
        self.damping = found.damping;
        Ok(())
    }
}

/// Sets the last layer of a network by one step of [`LastLayer`], or leaves it if none
/// decreases the loss. Gives the loss afterwards.
///
/// ```
/// use dualtape::optim::fit_last_layer;
/// use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 20, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [n] = net.at(&[t]);
///     let y = 1.0 + t * n;
///     y.d(t) + y
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 60)])?;
/// let engine = Engine::new(&Problem::new(&params, [Condition::new(&decay, points)])?)?;
/// let loss = fit_last_layer(&engine, &mut params, &net)?;
/// assert!(loss < 1e-5, "without a step of training: {loss}");
/// # Ok::<(), dualtape::Error>(())
/// ```
///
/// # Errors
/// A network of other parameters, a loss that is no sum of squares or not finite.
pub fn fit_last_layer(
    objective: &dyn Objective,
    parameters: &mut Parameters,
    network: &Mlp,
) -> Result<f64, Error> {
    let mut method = LastLayer::of(parameters, network)?;
    let theta = parameters.values_mut();
    let loss = objective.value(theta)?;
    let mut outcome = Ok(None);
    objective.within(&mut || outcome = method.best(objective, theta, loss));
    Ok(outcome?.map_or(loss, |(loss, _)| loss))
}
