//! Advection u_t + 50 u_x = 0 on [0, 1] × [0, 2π], periodic in x, u(0, x) = sin(x).
//! u = sin(x - 50 t): eight periods pass by.
//!
//! A layer of sines holds this **exactly**, by one of its units: its frequency is to be found.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::optim::fit_last_layer;
use dualtape::{
    Architecture, Condition, Design, Engine, Equation, Error, LevenbergMarquardt, Parameters,
    Problem, Sampler, ansatz,
};
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

    let draw = |sampler: &mut Sampler, count| sampler.draw(Design::Sobol, count);
    let mut samplers = vec![
        Sampler::new(&[(0.0, 1.0), (0.0, TAU)], settings.seed)?,
        Sampler::new(&[(0.0, 0.0), (0.0, TAU)], settings.seed)?,
        Sampler::new(&[(0.0, 1.0), (0.0, 0.0)], settings.seed)?,
    ];
    let problem = Problem::new(
        &params,
        [
            Condition::new(&advection, draw(&mut samplers[0], INSIDE)?),
            Condition::new(&start, draw(&mut samplers[1], SIDES)?),
            Condition::new(&period, draw(&mut samplers[2], SIDES)?),
        ],
    )?;
    let mut engine = Engine::with(&problem, &settings.options())?;
    fit_last_layer(&engine, &mut params, &net)?;
    let report = settings
        .train(400)
        .compare("u", &solution, &reference.points, &reference.truth, 10)
        .redraw(50, samplers, move |samplers, engine, _| {
            engine.set_points("advection", draw(&mut samplers[0], INSIDE)?)?;
            engine.set_points("start", draw(&mut samplers[1], SIDES)?)?;
            engine.set_points("period", draw(&mut samplers[2], SIDES)?)
        })
        .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    report
        .history
        .write_csv(settings.out.join("advection.csv"))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "advection", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, INSIDE + 2 * SIDES, &report)
}
