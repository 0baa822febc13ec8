//! Advection u_t + 50 u_x = 0 on [0, 1] × [0, 2π], periodic in x, u(0, x) = sin(x).
//! u = sin(x - 50 t): eight periods pass by.
//!
//! A layer of sines holds this **exactly**, by one of its units: its frequency is to be found.

use crate::common::{Drawn, Outcome, Reference, Settings, maps};
use dualtape::optim::fit_last_layer;
use dualtape::{Architecture, Equation, Error, Parameters, Sampler, ansatz};
use std::f64::consts::TAU;

const SPEED: f64 = 50.0;
const INSIDE: usize = 2048;
const SIDES: usize = 512;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 301), (0.0, TAU, 65)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    // Frequencies up to 60 in t and 3 in x.
    let net = params.network("u", &Architecture::siren(&[2, 40, 1], 120.0))?;
    let record = |name| {
        Equation::record(name, &params, ["t", "x"], |[t, x]| {
            let u = |x| net.at::<1>(&[t, 0.05 * x])[0];
            match name {
                "advection" => vec![u(x).d(t) / SPEED + u(x).d(x)],
                "start" => vec![u(x) - x.sin()],
                "period" => ansatz::jumps(x, TAU, 1, u),
                _ => vec![u(x)],
            }
        })
    };
    let (advection, start, period) = (record("advection")?, record("start")?, record("period")?);
    let solution = record("solution")?;
    let reference = Reference::grid(GRID, |[t, x]| (x - SPEED * t).sin())?;

    let sampler = |t, x| Sampler::new(&[(0.0, t), (0.0, x)], settings.seed);
    let train =
        settings
            .train(400)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let drawn = vec![
        Drawn::new(&advection, sampler(1.0, TAU)?, INSIDE),
        Drawn::new(&start, sampler(0.0, TAU)?, SIDES),
        Drawn::new(&period, sampler(1.0, 0.0)?, SIDES),
    ];
    let report = settings.fit_all(train, &mut params, drawn, |engine, params| {
        fit_last_layer(engine, params, &net).map(drop)
    })?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "advection", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, INSIDE + 2 * SIDES, &report)
}
