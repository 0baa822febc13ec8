//! y' + y = 0 on [0, 1], y(0) = 1: the smallest of all. y = exp(-t).

use crate::common::{Outcome, Reference, Settings, none};
use dualtape::plot::Lines;
use dualtape::{Elemental::Tanh, Equation, Error, Field, Parameters, values};

const POINTS: usize = 64;

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("y", &[1, 10, 1], Tanh)?;
    let y = |t: Field| {
        let [n] = net.at(&[2.0 * t - 1.0]);
        1.0 + t * n
    };
    let decay = Equation::record("decay", &params, ["t"], |[t]| {
        let y = y(t);
        y.d(t) + y
    })?;
    let solution = Equation::record("solution", &params, ["t"], |[t]| y(t))?;
    let reference = Reference::grid([(0.0, 1.0, 201)], |[t]| (-t).exp())?;

    let bounds = [(0.0, 1.0)];
    let train = settings.train(100);
    let report = settings.fit(train, &mut params, &decay, (&bounds, POINTS), none)?;

    let t = reference.points.coordinate(0);
    Lines::new("Decay")
        .labels("t", "y(t)")
        .line(
            "network",
            t,
            &values(&solution, &params, &reference.points)?[0],
        )?
        .dashed("exact", t, &reference.truth)?
        .save(settings.out.join("decay.png"))?;
    reference.outcome(&solution, &params, POINTS, &report)
}
