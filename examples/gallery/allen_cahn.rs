//! Allen-Cahn: u_t = ε u_xx + 5 u - 5 u³ on [0, 1] × [-1, 1], periodic in x, ε = 0.0001,
//! u(0, x) = x² cos(πx).
//!
//! Two things are known and built in. Without diffusion each point follows an ordinary
//! equation, solved by u = R(t, a) for the initial value a; the network changes a. And the
//! initial values, continued with their period, have a kink at x = ±1, which diffusion alone
//! would round off like the heat equation does, K below. The solution is even about x = 0 and
//! x = 1: the network sees even functions, on one half of the domain.

use crate::common::{Outcome, Reference, Settings, maps, table};
use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Field, LevenbergMarquardt, Parameters,
    Points, Problem, Sampler,
};
use std::f64::consts::PI;

const DIFFUSION: f64 = 1e-4;
const POINTS: usize = 6000;
/// The grid of the reference, thinned: times 0, 0.05, …, 1, and places -1 + j/32.
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 21), (-1.0, 1.0 - 1.0 / 32.0, 64)];

/// The solution of a_t = 5 a - 5 a³ from a.
fn reaction(t: Field, a: Field) -> Field {
    a * (5.0 * t).exp() / (1.0 + a * a * ((10.0 * t).exp() - 1.0)).sqrt()
}

/// Even, of second order in the distance to the kink at x = 1: 1 there, 0 farther off than
/// heat reaches.
fn near_kink(t: Field, d: Field) -> Field {
    (-d * d / (4.0 * DIFFUSION * t + 1e-4)).exp()
}

/// The change by the heat equation of initial values 2 |d| by the time t:
/// 4 √(εt) ierfc(d / 2√(εt)).
fn rounding(t: Field, d: Field) -> Field {
    let width = 2.0 * (DIFFUSION * t).sqrt();
    let z = d / width;
    2.0 * width * ((-z * z).exp() / PI.sqrt() - z * (1.0 - z.erf()))
}

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("a", &[3, 20, 20, 20, 1], Tanh)?;
    // For x in [0, 1].
    let u = |t: Field, x: Field| {
        let d = 1.0 - x;
        let inputs = [2.0 * t - 1.0, (PI * x).cos(), 2.0 * near_kink(t, d) - 1.0];
        let [n] = net.at(&inputs);
        reaction(t, x * x * (PI * x).cos() + rounding(t, d) + 0.01 * t * n)
    };
    let allen_cahn = Equation::record("allen-cahn", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t) - DIFFUSION * u.d(x).d(x) - 5.0 * u + 5.0 * u.powi(3)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| {
        u(t + 1e-12, x.abs())
    })?;
    let reference = Reference {
        points: Points::grid(&GRID)?,
        truth: table("allen_cahn.npy", &[21, 64])?,
    };

    // More points at the front, x = 1/2, in the middle, and at the kink.
    let draw = |sampler: &mut Sampler| {
        let near = |x: f64, place: f64, width: f64| (-((x - place) / width).powi(2)).exp();
        sampler.by_density(POINTS, 8.0, |p: &[f64]| {
            let x = p[1];
            1.0 + 3.0 * near(x, 0.5, 0.1) + 2.0 * near(x, 0.0, 0.1) + 3.0 * near(x, 1.0, 0.05)
        })
    };
    let mut sampler = Sampler::new(&[(0.0, 1.0), (0.0, 1.0)], settings.seed)?;
    let condition = Condition::new(&allen_cahn, draw(&mut sampler)?);
    let problem = Problem::new(&params, [condition])?;
    let mut engine = Engine::with(&problem, &settings.options())?;
    let report = settings
        .train(100)
        .compare("u", &solution, &reference.points, &reference.truth, 10)
        .redraw(20, sampler, move |sampler, engine, _| {
            engine.set_points("allen-cahn", draw(sampler)?)
        })
        .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    report
        .history
        .write_csv(settings.out.join("allen-cahn.csv"))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "allen-cahn", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
