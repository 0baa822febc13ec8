//! Burgers' equation u_t + u u_x = ν u_xx on [0, 1] × [-1, 1] with viscosity ν = 0.01/π,
//! u(0, x) = -sin(πx) and u(t, ±1) = 0. A shock of width 0.01 forms at x = 0.

use dualtape::plot::{Lines, Map};
use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Field, LevenbergMarquardt, Options,
    Parameters, Points, Problem, Sampler, Train, values,
};
use std::f64::consts::PI;
use std::process::ExitCode;

const NU: f64 = 0.01 / PI;
/// Points at a time, drawn anew every `REDRAW` steps.
const POINTS: usize = 6000;
const REDRAW: usize = 20;
/// The grid on which errors are measured and pictures are drawn.
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 101), (-1.0, 1.0, 257)];

/// The solution of Cole and Hopf: a quotient of two integrals over the line. The trapezoidal
/// rule for them converges faster than any power of its step, here to 1e-15.
fn exact(t: f64, x: f64) -> f64 {
    if t == 0.0 {
        return -(PI * x).sin();
    }
    let (mut above, mut below) = (0.0, 0.0);
    for k in -240..=240 {
        let s = 0.05 * f64::from(k);
        let y = x - 2.0 * (NU * t).sqrt() * s;
        let weight = (-s * s - (PI * y).cos() / (2.0 * PI * NU)).exp();
        above -= weight * (PI * y).sin();
        below += weight;
    }
    above / below
}

fn run(settings: &Settings) -> Result<(), Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[3, 20, 20, 20, 1], Tanh)?;

    // u has the sign of -sin(πx) for ever: a factor exp(t n) leaves initial and boundary
    // values exact. It is even in x, and steep near 0, so the network sees x in two even
    // coordinates: a square, and a logarithm that spreads the shock out.
    let u = |t: Field, x: Field| {
        let spread = (1.0 + (x / 0.02).powi(2)).ln() / 2501_f64.ln();
        // All inputs run from -1 to 1.
        let inputs = [t, x * x, spread].map(|input| 2.0 * input - 1.0);
        let [n] = net.at(&inputs);
        -(PI * x).sin() * (t * n).exp()
    };
    let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t) + u * u.d(x) - NU * u.d(x).d(x)
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| u(t, x))?;

    // A grid that training never sees.
    let grid = Points::grid(&GRID)?;
    let (times, places) = (grid.coordinate(0), grid.coordinate(1));
    let exact = |(&t, &x)| exact(t, x);
    let truth: Vec<f64> = times.iter().zip(places).map(exact).collect();

    // The residual is odd in x, so that one half is enough; more points where the shock is.
    let near = |point: &[f64]| 1.0 + 4.0 * (-(point[1] / 0.1).powi(2)).exp();
    let draw = move |sampler: &mut Sampler| sampler.by_density(POINTS, 5.0, near);
    let mut sampler = Sampler::new(&[(0.0, 1.0), (0.0, 1.0)], settings.seed)?;
    let condition = Condition::new(&burgers, draw(&mut sampler)?);
    let problem = Problem::new(&params, [condition])?;
    let options = Options::default().threads(settings.threads);
    let mut engine = Engine::with(&problem, &options)?;

    let mut method = LevenbergMarquardt::default();
    let report = Train::new(settings.steps)
        .time_limit(settings.seconds)
        .log_every(1)
        .progress(true)
        .compare("u", &solution, &grid, &truth, 5)
        .redraw(REDRAW, sampler, move |sampler, engine, _| {
            engine.set_points("burgers", draw(sampler)?)
        })
        .run(&mut engine, &mut params, &mut method)?;

    let field = values(&solution, &params, &grid)?.concat();
    let error: Vec<f64> = field
        .iter()
        .zip(&truth)
        .map(|(u, truth)| u - truth)
        .collect();
    let norm = |list: &[f64]| list.iter().map(|x| x * x).sum::<f64>().sqrt();
    let rel_l2 = norm(&error) / norm(&truth);
    let max_error = error.iter().fold(0.0_f64, |max, e| max.max(e.abs()));

    // Pictures.
    let out = &settings.out;
    Map::new("u(t, x)", GRID, &field)?
        .labels("t", "x")
        .save(out.join("solution.svg"))?;
    Map::new("Error of u(t, x)", GRID, &error)?
        .diverging()
        .labels("t", "x")
        .save(out.join("error.svg"))?;
    let columns = GRID[1].2;
    let mut slices = Lines::new("Slices of u").labels("x", "u(t, x)");
    for row in [0, 25, 50, 100] {
        let slice = row * columns..(row + 1) * columns;
        let x = &places[slice.clone()];
        let name = format!("t = {}", times[slice.start]);
        slices = slices.line(&name, x, &field[slice.clone()])?;
        slices = slices.dashed(if row == 100 { "exact" } else { "" }, x, &truth[slice])?;
    }
    slices.save(out.join("slices.svg"))?;
    let mut curves = Lines::new("Training").labels("step", "").log_y();
    for (column, name) in [("loss", "loss"), ("u.rel_l2", "relative L2 error")] {
        let (steps, values) = report.history.curve(column)?;
        curves = curves.line(name, &steps, &values)?;
    }
    curves.save(out.join("history.svg"))?;
    report.history.write_csv(out.join("history.csv"))?;

    if settings.json {
        let result = serde_json::json!({
            "rel_l2": rel_l2, "max_error": max_error, "seconds": report.seconds,
            "steps": report.steps, "stop": report.stop.to_string(),
            "parameters": params.len(), "points": POINTS, "threads": settings.threads,
        });
        println!("{result}");
    } else {
        println!("{report}");
        println!("{} parameters, {POINTS} points", params.len());
        println!("relative L2 error {rel_l2:.2e}, largest error {max_error:.2e}");
        println!("pictures and history in {}", out.display());
    }
    Ok(())
}

// The command line.

const HELP: &str = "\
Trains Burgers' equation, compares with the exact solution, draws pictures.

Usage: cargo run --release --example burgers [-- OPTIONS]

Options:
  --short        few steps, for a test
  --seconds N    time limit of the training (55)
  --seed N       seed of weights and points (0)
  --threads N    threads (as many as there are cores)
  --out DIR      where pictures go (out/burgers)
  --json         print one line of JSON
  -h, --help     this text";

struct Settings {
    steps: usize,
    seconds: f64,
    seed: u64,
    threads: usize,
    out: std::path::PathBuf,
    json: bool,
}

/// The settings, or nothing if help was asked for.
fn settings() -> Result<Option<Settings>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut settings = Settings {
        steps: 100,
        seconds: 55.0,
        seed: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        out: "out/burgers".into(),
        json: false,
    };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("short") => settings.steps = 12,
            Long("seconds") => settings.seconds = arguments.value()?.parse()?,
            Long("seed") => settings.seed = arguments.value()?.parse()?,
            Long("threads") => settings.threads = arguments.value()?.parse()?,
            Long("out") => settings.out = arguments.value()?.into(),
            Long("json") => settings.json = true,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Some(settings))
}

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}; `--help` lists the options");
            return ExitCode::from(2);
        }
    };
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
