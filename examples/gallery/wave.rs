//! The wave equation u_tt = 4 u_xx on [0, 1] × [0, 1], u = 0 at the ends, at rest at first.
//! u = sin(πx) cos(2πt) + ½ sin(4πx) cos(8πt).
//!
//! A network of one layer of sines holds this solution exactly (six waves that travel left or right);
//! with initial and boundary values built in and two layers it does not.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::{Elemental::Sin, Equation, Error, Field, Parameters, ansatz};
use std::f64::consts::PI;

const POINTS: usize = 4096;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 201), (0.0, 1.0, 101)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[2, 30, 30, 1], Sin)?;
    let u = |t: Field, x: Field| {
        let [n] = net.at(&[30.0 * (t - 0.5), 15.0 * (x - 0.5)]);
        let start = (PI * x).sin() + 0.5 * (4.0 * PI * x).sin();
        ansatz::initial(t, &[start, 0.0.into()], x * (1.0 - x) * n)
    };
    let wave = Equation::record("wave", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t).d(t) - 4.0 * u.d(x).d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| u(t, x))?;
    let exact = |[t, x]: [f64; 2]| {
        (PI * x).sin() * (2.0 * PI * t).cos()
            + 0.5 * (4.0 * PI * x).sin() * (8.0 * PI * t).cos()
    };
    let reference = Reference::grid(GRID, exact)?;

    let train = settings.train(200).compare(
        "u",
        &solution,
        &reference.points,
        &reference.truth,
        10,
    );
    let bounds = [(0.0, 1.0), (0.0, 1.0)];
    let report = settings.fit(train, &mut params, &net, &wave, (&bounds, POINTS))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "wave", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
