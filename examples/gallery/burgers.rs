//! Burgers' equation u_t + u u_x = ν u_xx on [0, 1] × [-1, 1], u(0, x) = -sin(πx), u = 0 at
//! the ends, forwards for two viscosities and backwards: viscosity and advection coefficient
//! from values of u. A shock of width πν forms at x = 0.

use crate::common::{Outcome, Reference, Settings, maps};
use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Field, LevenbergMarquardt, Mlp,
    Parameters, Points, Problem, Sampler, data,
};
use std::f64::consts::PI;

const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 101), (-1.0, 1.0, 257)];

/// The solution of Cole and Hopf: a quotient of two integrals over the line. The trapezoidal
/// rule for them converges faster than any power of its step, here to 1e-15.
fn exact(nu: f64, t: f64, x: f64) -> f64 {
    if t == 0.0 {
        return -(PI * x).sin();
    }
    let (mut above, mut below) = (0.0, 0.0);
    for k in -240..=240 {
        let s = 0.05 * f64::from(k);
        let y = x - 2.0 * (nu * t).sqrt() * s;
        let weight = (-s * s - (PI * y).cos() / (2.0 * PI * nu)).exp();
        above -= weight * (PI * y).sin();
        below += weight;
    }
    above / below
}

/// u has the sign of -sin(πx) for ever: a factor exp(t n) leaves initial and boundary values
/// exact. It is even in x, and steep near 0, so the network sees x in two even coordinates: a
/// square, and a logarithm that spreads the shock out.
fn ansatz(net: &Mlp, nu: f64, t: Field, x: Field) -> Field {
    let width = 2.0 * PI * nu;
    let spread = (1.0 + (x / width).powi(2)).ln() / (1.0 + width.powi(-2)).ln();
    // All inputs run from -1 to 1.
    let [n] = net.at(&[t, x * x, spread].map(|input| 2.0 * input - 1.0));
    -(PI * x).sin() * (t * n).exp()
}

/// Points of one half of the domain, since residuals are odd in x; more where the shock is.
fn draw(sampler: &mut Sampler, nu: f64, count: usize) -> Result<Points, Error> {
    let near = |point: &[f64]| 1.0 + 4.0 * (-(point[1] / (10.0 * PI * nu)).powi(2)).exp();
    sampler.by_density(count, 5.0, near)
}

/// A network with three hidden layers, and how it is trained.
struct Effort {
    width: usize,
    points: usize,
    steps: usize,
}

/// ν = 0.01/π.
pub fn steep(settings: &Settings) -> Result<Outcome, Error> {
    let effort = Effort {
        width: 28,
        points: 9000,
        steps: 200,
    };
    Ok(forward(settings, "burgers", 0.01 / PI, &effort)?.0)
}

/// ν = 0.01. Training ends in some minimum, and how deep that is shows at its bottom only: a
/// quick start comes first, and a wide one follows where that is not deep enough.
pub fn mild(settings: &Settings) -> Result<Outcome, Error> {
    const ENOUGH: f64 = 1e-24;
    let [quick, wide] = [(20, 3000), (28, 5000)].map(|(width, points)| Effort {
        width,
        points,
        steps: 200,
    });
    let (first, loss) = forward(settings, "burgers-mild", 0.01, &quick)?;
    if loss <= ENOUGH || settings.quick {
        return Ok(first);
    }
    let (second, _) = forward(settings, "burgers-mild", 0.01, &wide)?;
    Ok(Outcome {
        seconds: first.seconds + second.seconds,
        steps: first.steps + second.steps,
        ..second
    })
}

/// The outcome, and the loss at its end.
fn forward(
    settings: &Settings,
    name: &str,
    nu: f64,
    effort: &Effort,
) -> Result<(Outcome, f64), Error> {
    let mut params = Parameters::seeded(settings.seed);
    let &Effort {
        width,
        points: count,
        steps,
    } = effort;
    let net = params.mlp("u", &[3, width, width, width, 1], Tanh)?;
    let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let u = ansatz(&net, nu, t, x);
        u.d(t) + u * u.d(x) - nu * u.d(x).d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| {
        ansatz(&net, nu, t, x)
    })?;
    let reference = Reference::grid(GRID, |[t, x]| exact(nu, t, x))?;

    let mut sampler = Sampler::new(&[(0.0, 1.0), (0.0, 1.0)], settings.seed)?;
    let condition = Condition::new(&burgers, draw(&mut sampler, nu, count)?);
    let problem = Problem::new(&params, [condition])?;
    let mut engine = Engine::with(&problem, &settings.options())?;
    let report = settings
        .train(steps)
        .compare("u", &solution, &reference.points, &reference.truth, 10)
        .redraw(20, sampler, move |sampler, engine, _| {
            engine.set_points("burgers", draw(sampler, nu, count)?)
        })
        .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    report
        .history
        .write_csv(settings.out.join(format!("{name}.csv")))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, name, GRID, ("t", "x"), &reference, &error)?;
    let outcome = reference.outcome(&solution, &params, count, &report)?;
    Ok((outcome, report.loss))
}

/// u_t + λ u u_x = ν u_xx with unknown λ and ν: from 500 values of u, exact to rounding.
pub fn inverse(settings: &Settings) -> Result<Outcome, Error> {
    const POINTS: usize = 4000;
    const OBSERVED: usize = 500;
    const NU: f64 = 0.01 / PI;
    /// What ν is taken for at first; the network's inputs and the points go by it.
    const GUESS: f64 = 0.01;
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[3, 20, 20, 20, 1], Tanh)?;
    let lambda = params.coefficient("lambda", 0.5)?;
    let nu = params.coefficient("nu", GUESS)?;
    let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let u = ansatz(&net, GUESS, t, x);
        u.d(t) + lambda.field() * u * u.d(x) - nu.field() * u.d(x).d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| {
        ansatz(&net, GUESS, t, x)
    })?;
    let observations = Equation::record("observations", &params, ["t", "x"], |[t, x]| {
        ansatz(&net, GUESS, t, x) - data("u")
    })?;
    let reference = Reference::grid(GRID, |[t, x]| exact(NU, t, x))?;

    let mut sampler = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], settings.seed)?.stream(1);
    let observed = Reference::at(sampler.uniform(OBSERVED)?, |[t, x]| exact(NU, t, x));
    let observed = observed.points.with_column("u", &observed.truth)?;
    let mut sampler = Sampler::new(&[(0.0, 1.0), (0.0, 1.0)], settings.seed)?;
    let problem = Problem::new(
        &params,
        [
            Condition::new(&burgers, draw(&mut sampler, GUESS, POINTS)?),
            Condition::new(&observations, observed).weight(100.0),
        ],
    )?;
    let mut engine = Engine::with(&problem, &settings.options())?;
    let report = settings
        .train(100)
        .compare("u", &solution, &reference.points, &reference.truth, 10)
        .redraw(20, sampler, move |sampler, engine, _| {
            engine.set_points("burgers", draw(sampler, GUESS, POINTS)?)
        })
        .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    report.history.write_csv(settings.out.join("inverse.csv"))?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "inverse", GRID, ("t", "x"), &reference, &error)?;
    let mut outcome = reference.outcome(&solution, &params, POINTS + OBSERVED, &report)?;
    let relative = |value: f64, exact: f64| (value / exact - 1.0).abs();
    outcome.more = vec![
        ("lambda_error", relative(lambda.value(&params)?, 1.0)),
        ("nu_error", relative(nu.value(&params)?, NU)),
    ];
    Ok(outcome)
}
