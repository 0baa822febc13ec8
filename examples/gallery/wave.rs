//! The wave equation u_tt = 4 u_xx on [0, 1] × [0, 1], u = 0 at the ends, at rest at first.
//! u = sin(πx) cos(2πt) + ½ sin(4πx) cos(8πt).
//!
//! This is a sum of four waves that travel: one layer of sines holds it **exactly**. What is
//! to be found are their frequencies.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::optim::fit_last_layer;
use dualtape::{
    Architecture, Condition, Design, Domain, Engine, Equation, Error, LevenbergMarquardt,
    Parameters, Problem, Sampler,
};
use std::f64::consts::PI;

const INSIDE: usize = 2048;
const SIDES: usize = 512;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 201), (0.0, 1.0, 101)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let domain = Domain::interval(0.0, 1.0)?.in_time(0.0, 1.0)?;
    let mut params = Parameters::seeded(settings.seed);
    // Frequencies up to 30 in t and 15 in x.
    let net = params.network("u", &Architecture::siren(&[2, 40, 1], 60.0))?;
    let record = |name| {
        Equation::record(name, &params, ["t", "x"], |[t, x]| {
            let [u] = net.at(&[t, 0.5 * x]);
            match name {
                "wave" => vec![(u.d(t).d(t) - 4.0 * u.d(x).d(x)) / 100.0],
                "start" => {
                    vec![
                        u - (PI * x).sin() - 0.5 * (4.0 * PI * x).sin(),
                        u.d(t) / 10.0,
                    ]
                }
                _ => vec![u],
            }
        })
    };
    let (wave, start, solution) = (record("wave")?, record("start")?, record("u")?);
    let exact = |[t, x]: [f64; 2]| {
        (PI * x).sin() * (2.0 * PI * t).cos() + 0.5 * (4.0 * PI * x).sin() * (8.0 * PI * t).cos()
    };
    let reference = Reference::grid(GRID, exact)?;

    let draw = |sampler: &mut Sampler, count| sampler.draw(Design::Sobol, count);
    let mut samplers = vec![
        Sampler::over(&domain.interior(), settings.seed),
        Sampler::over(&domain.side("initial")?, settings.seed),
        Sampler::over(&domain.some_sides(&["left", "right"])?, settings.seed),
    ];
    let problem = Problem::new(
        &params,
        [
            Condition::new(&wave, draw(&mut samplers[0], INSIDE)?),
            Condition::new(&start, draw(&mut samplers[1], SIDES)?).weight(10.0),
            Condition::new(&solution, draw(&mut samplers[2], SIDES)?)
                .named("ends")
                .weight(10.0),
        ],
    )?;
    let mut engine = Engine::with(&problem, &settings.options())?;
    fit_last_layer(&engine, &mut params, &net)?;
    let report = settings
        .train(400)
        .compare("u", &solution, &reference.points, &reference.truth, 10)
        .redraw(50, samplers, move |samplers, engine, _| {
            engine.set_points("wave", draw(&mut samplers[0], INSIDE)?)?;
            engine.set_points("start", draw(&mut samplers[1], SIDES)?)?;
            engine.set_points("ends", draw(&mut samplers[2], SIDES)?)
        })
        .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    report.history.write_csv(settings.out.join("wave.csv"))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "wave", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, INSIDE + 2 * SIDES, &report)
}
