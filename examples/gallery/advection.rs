//! Advection u_t + 50 u_x = 0 on [0, 1] × [0, 2π], periodic in x, u(0, x) = sin(x).
//! u = sin(x - 50 t): eight periods pass by.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::{Elemental::Sin, Equation, Error, Field, Parameters, ansatz};
use std::f64::consts::TAU;

const SPEED: f64 = 50.0;
const POINTS: usize = 4096;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 301), (0.0, TAU, 65)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[3, 20, 20, 1], Sin)?;
    // Time on the scale of its changes, x by its sine and cosine.
    let u = |t: Field, x: Field| {
        let [n] = net.at(&[&[2.0 * SPEED * (t - 0.5)][..], &ansatz::periodic(x, TAU, 1)].concat());
        x.sin() + t * n
    };
    let advection = Equation::record("advection", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t) / SPEED + u.d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| u(t, x))?;
    let reference = Reference::grid(GRID, |[t, x]| (x - SPEED * t).sin())?;

    let train = settings.train(200).compare(
        "u",
        &solution,
        &reference.points,
        &reference.truth,
        10,
    );
    let bounds = [(0.0, 1.0), (0.0, TAU)];
    let report = settings.fit(train, &mut params, &net, &advection, (&bounds, POINTS))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "advection", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
