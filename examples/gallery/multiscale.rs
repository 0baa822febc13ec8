//! Poisson's equation on the unit square with scales of 1/4 to 1/16 at once, u = 0 on its
//! boundary. u = ¼ Σ sin(wπx) sin(wπy) over w = 4, 8, 12, 16.
//!
//! The right-hand side has period ½ and is odd in both coordinates, and so, by uniqueness, is
//! the solution; that is built in.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::optim::fit_last_layer;
use dualtape::{Elemental::Sin, Equation, Error, Field, Parameters};
use std::f64::consts::PI;

const SCALES: [f64; 4] = [4.0, 8.0, 12.0, 16.0];
const POINTS: usize = 2048;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 161), (0.0, 1.0, 161)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[6, 20, 20, 1], Sin)?;
    let u = |x: Field, y: Field| {
        let (x, y) = (4.0 * PI * x, 4.0 * PI * y);
        let waves = [1.0, 2.0, 3.0].map(|k| [(k * x).cos(), (k * y).cos()]);
        let [n] = net.at(waves.as_flattened());
        x.sin() * y.sin() * n
    };
    let poisson = Equation::record("multiscale", &params, ["x", "y"], |[x, y]| {
        let source = |w: f64| 0.5 * (w * PI).powi(2) * (w * PI * x).sin() * (w * PI * y).sin();
        u(x, y).laplacian(&[x, y]) + SCALES.map(source).into_iter().sum::<Field>()
    })?;
    let solution = Equation::record("solution", &params, ["x", "y"], |[x, y]| u(x, y))?;
    let reference = Reference::grid(GRID, |[x, y]| {
        let wave = |w: f64| 0.25 * (w * PI * x).sin() * (w * PI * y).sin();
        SCALES.map(wave).into_iter().sum()
    })?;

    let train =
        settings
            .train(200)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let bounds = [(0.0, 1.0), (0.0, 1.0)];
    let report = settings.fit(
        train,
        &mut params,
        &poisson,
        (&bounds, POINTS),
        |engine, params| fit_last_layer(engine, params, &net).map(drop),
    )?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "multiscale", GRID, ("x", "y"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
