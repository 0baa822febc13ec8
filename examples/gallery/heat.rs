//! The heat equation u_t = u_xx/4 on [0, 1] × [0, 1], u(0, x) = sin(πx), u = 0 at the ends.
//! u = exp(-π²t/4) sin(πx).

use crate::common::{Outcome, Reference, Settings, maps, none};
use dualtape::{Elemental::Sin, Equation, Error, Field, Parameters};
use std::f64::consts::PI;

const POINTS: usize = 2048;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 101), (0.0, 1.0, 101)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[2, 16, 16, 1], Sin)?;
    // Initial and boundary values hold whatever the network is; it sees x by an even function,
    // since the solution is symmetric about the middle.
    let u = |t: Field, x: Field| {
        let [n] = net.at(&[2.0 * t - 1.0, 8.0 * x * (1.0 - x) - 1.0]);
        (PI * x).sin() + t * x * (1.0 - x) * n
    };
    let heat = Equation::record("heat", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t) - 0.25 * u.d(x).d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| u(t, x))?;
    let exact = |[t, x]: [f64; 2]| (-PI * PI * t / 4.0).exp() * (PI * x).sin();
    let reference = Reference::grid(GRID, exact)?;

    let train =
        settings
            .train(150)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let bounds = [(0.0, 1.0), (0.0, 1.0)];
    let report = settings.fit(train, &mut params, &heat, (&bounds, POINTS), none)?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "heat", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
