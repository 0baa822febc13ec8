//! Least squares on the last layer of a network, as an initialiser.

use super::dense::{Model, Work};
use super::{Objective, trial};
use crate::error::Error;
use crate::network::Mlp;
use crate::parameters::Parameters;

/// Dampings that are tried, in units of ‖J‖².
const DAMPINGS: [f64; 7] = [1e-28, 1e-24, 1e-20, 1e-16, 1e-12, 1e-8, 1e-4];

/// Sets the last layer of a network by least squares: the network is linear in it, and for
/// a linear equation so are the residuals, so that one step finds the best last layer for
/// the hidden layers as they are. Where the residuals are not linear in it, the best of a
/// few damped steps is taken, or none if none decreases the loss. Gives the loss afterwards.
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
    let own = |block: &&crate::parameters::Block| block.group == network.name();
    let blocks: Vec<_> = parameters.blocks().iter().filter(own).collect();
    let [.., weight, bias] = blocks[..] else {
        return Err(Error::OtherParameters {
            what: format!("network `{}`", network.name()),
        });
    };
    let columns = weight.offset..bias.offset + bias.len();
    let theta = parameters.values_mut();
    let start = theta.to_vec();
    let mut least = objective.value(&start)?;
    let mut outcome = Ok(());
    objective.within(&mut || {
        outcome = (|| {
            let mut work = Work::default();
            let model = Model::new(objective, &start, columns.clone(), &mut work)?;
            for damping in DAMPINGS {
                let step = model.expand(&model.damp(damping * model.scale).solution());
                let mut moved = start.clone();
                for (to, step) in moved[columns.clone()].iter_mut().zip(&step) {
                    *to += step;
                }
                let loss = trial(objective.value(&moved))?;
                if loss < least {
                    least = loss;
                    theta.copy_from_slice(&moved);
                }
            }
            Ok(())
        })();
    });
    outcome.map(|()| least)
}
