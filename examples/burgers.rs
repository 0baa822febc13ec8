//! Burgers' equation u_t + u u_x = ν u_xx with viscosity ν = 0.01/π on [0, 1] × [-1, 1],
//! u(0, x) = -sin(πx), u(t, ±1) = 0. A shock of width 0.01 forms at x = 0.
use dualtape::{
    Adam, Condition, Elemental::Tanh, Engine, Equation, Field, Options, Parameters, Points,
    Problem, Sampler, Schedule, Train, detach, values,
};
use std::f64::consts::PI;

const NU: f64 = 0.01 / PI;

fn env(n: &str, d: f64) -> f64 {
    std::env::var(n).ok().map_or(d, |v| v.parse().unwrap())
}

/// The solution by Cole and Hopf: a quotient of two integrals over the line, by the
/// trapezoidal rule, which converges faster than any power of its step here.
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let width = env("W", 20.0) as usize;
    let layers = env("L", 3.0) as usize;
    let steps = env("STEPS", 10000.0) as usize;
    let n = env("N", 2000.0) as usize;
    let mut params = Parameters::seeded(env("SEED", 0.0) as u64);
    let mut widths = vec![2];
    widths.extend(vec![width; layers]);
    widths.push(1);
    let net = {
        let f = env("FORM", 0.0) as usize;
        if f == 3 {
            widths[0] = 3;
        }
        params.mlp("u", &widths, Tanh)?
    };
    let form = env("FORM", 0.0) as usize;
    let u = |t: Field, x: Field| {
        let ramp = if env("RAMP", 0.0) > 0.0 {
            1.0 - (-env("RAMP", 0.0) * t).exp()
        } else {
            t
        };
        let inputs: Vec<Field> = match form {
            0 => vec![2.0 * t - 1.0, x],
            1 => vec![2.0 * t - 1.0, 2.0 * x * x - 1.0],
            2 => vec![2.0 * t - 1.0, (x / 0.1).tanh()],
            3 => vec![2.0 * t - 1.0, x, (x / env("S", 0.1)).tanh()],
            4 => vec![
                2.0 * t - 1.0,
                (x / env("S", 0.1)).asinh() / (1.0_f64 / env("S", 0.1)).asinh(),
            ],
            5 => vec![
                2.0 * t - 1.0,
                (x * x / env("S", 0.1).powi(2) + 1.0).ln()
                    / (1.0 / env("S", 0.1).powi(2) + 1.0).ln()
                    * 2.0
                    - 1.0,
            ],
            _ => panic!(),
        };
        let [n] = net.at(&inputs);
        match env("OUT", 3.0) as usize {
            0 => -(PI * x).sin() + ramp * (1.0 - x * x) * n,
            1 => -(PI * x).sin() * (1.0 + ramp * n),
            _ => -(PI * x).sin() * (ramp * n).exp(),
        }
    };
    let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        let r = u.d(t) + u * u.d(x) - NU * u.d(x).d(x);
        let a = env("RW", 0.0);
        if a == 0.0 {
            return r;
        }
        let slope = detach(u.d(x));
        r / (1.0 + a * a * slope * slope).sqrt()
    })?;
    let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| u(t, x))?;
    let axes = [(0.0, 1.0, 101), (-1.0, 1.0, 257)];
    let grid = Points::grid(&axes)?;
    let start = std::time::Instant::now();
    let wanted: Vec<f64> = (0..grid.len())
        .map(|n| exact(grid.coordinate(0)[n], grid.coordinate(1)[n]))
        .collect();
    println!("exact {:?}", start.elapsed());
    let norm = wanted.iter().map(|u| u * u).sum::<f64>();
    let error = |params: &Parameters| {
        let u = &values(&solution, params, &grid)?[0];
        Ok((u
            .iter()
            .zip(&wanted)
            .map(|(u, w)| (u - w).powi(2))
            .sum::<f64>()
            / norm)
            .sqrt())
    };
    let mut sampler = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], 1)?;
    let peak = env("PEAK", 10.0);
    let shock = env("SHOCK", 0.05);
    let mut draw = || {
        sampler.by_density(n, 1.0 + peak, |p: &[f64]| {
            1.0 + peak / (1.0 + (p[1] / shock).powi(2))
        })
    };
    let options = Options::default().threads(2);
    let build = |params: &Parameters, points: Points| -> Result<Engine, dualtape::Error> {
        Engine::with(
            &Problem::new(params, [Condition::new(&burgers, points)])?,
            &options,
        )
    };
    let mut engine = build(&params, draw()?)?;
    let lr = env("LR", 5e-3);
    let mut adam = Adam::new(lr)?
        .betas(0.9, env("B2", 0.999))?
        .schedule(Schedule::cosine(steps, env("FLOOR", 1e-3))?.warm_up(100)?);
    let report = Train::new(steps)
        .redraw(env("EVERY", 500.0) as usize, |engine, params| {
            *engine = build(params, draw()?)?;
            Ok(())
        })
        .metric("rel_l2", steps / 10, |p| {
            let e = error(p)?;
            println!("  {e:.3e} {:?}", start.elapsed());
            Ok(e)
        })
        .run(&mut engine, &mut params, &mut adam)?;
    println!(
        "{report} rel_l2 {:.3e} rate {:.0}/s",
        error(&params)?,
        report.steps as f64 / report.seconds
    );
    Ok(())
}
