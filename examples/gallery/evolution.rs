//! Equations u_t = L u - c u u_x, periodic in x and with a linear L, in windows of time one
//! after the other, and two of them: Korteweg-de Vries and Kuramoto-Sivashinsky.
//!
//! In each window u = B(σ, x) + σ² n(σ, x), where σ runs from 0 to 1. B has the value and the
//! rate that u has at the beginning: the linear part of the equation is solved exactly, the
//! rest stays what it is at σ = 0 (an exponential Euler step). The network learns what this
//! leaves. B and its derivatives come as data of the points, so that the equation is recorded
//! once for all windows.

use crate::common::{Outcome, Reference, Settings, maps, table};
use dualtape::{
    Condition, Design, Elemental::Sin, Engine, Equation, Error, Field, LevenbergMarquardt,
    Parameters, Points, Problem, Sampler, ansatz, data, values,
};
use nalgebra::Complex;
use std::f64::consts::{PI, TAU};
use std::time::Instant;

struct Evolution {
    name: &'static str,
    /// The ends of x.
    x: (f64, f64),
    start: fn(f64) -> f64,
    /// L: orders of derivatives, ascending, and their factors.
    linear: &'static [(usize, f64)],
    /// c.
    advection: f64,
    windows: usize,
    /// Waves that the network sees.
    harmonics: usize,
    width: usize,
    /// Waves of B.
    modes: usize,
    points: usize,
    /// Steps a window.
    steps: usize,
}

/// Korteweg-de Vries: u_t + u u_x + 0.022² u_xxx = 0, u(0, x) = cos(πx). Solitons come out
/// of a wave (Zabusky and Kruskal 1965).
pub fn korteweg_de_vries(settings: &Settings) -> Result<Outcome, Error> {
    let problem = Evolution {
        name: "kdv",
        x: (-1.0, 1.0),
        start: |x| (PI * x).cos(),
        linear: &[(3, -0.022 * 0.022)],
        advection: 1.0,
        windows: 40,
        harmonics: 8,
        width: 20,
        modes: 120,
        points: 3000,
        steps: 35,
    };
    problem.run(settings)
}

/// Kuramoto-Sivashinsky, chaotic: u_t + 100/16 u u_x + 100/16² u_xx + 100/16⁴ u_xxxx = 0,
/// u(0, x) = cos(x) (1 + sin(x)).
pub fn kuramoto_sivashinsky(settings: &Settings) -> Result<Outcome, Error> {
    let problem = Evolution {
        name: "kuramoto-sivashinsky",
        x: (0.0, TAU),
        start: |x| x.cos() * (1.0 + x.sin()),
        linear: &[(2, -100.0 / 256.0), (4, -100.0 / 65_536.0)],
        advection: 100.0 / 16.0,
        windows: 60,
        harmonics: 12,
        width: 20,
        modes: 110,
        points: 4000,
        steps: 45,
    };
    problem.run(settings)
}

/// The amplitudes of the waves exp(2πikx/period), of which the real part counts, through
/// values at equal distances from 0, more than twice as many as waves.
fn waves(values: &[f64], modes: usize) -> Vec<Complex<f64>> {
    let count = values.len();
    let wave = |k: usize| {
        let scale = if k == 0 { 1.0 } else { 2.0 } / count as f64;
        let turn =
            |n: usize| Complex::from_polar(scale, -TAU * ((k * n) % count) as f64 / count as f64);
        values
            .iter()
            .enumerate()
            .map(|(n, value)| turn(n) * value)
            .sum()
    };
    (0..=modes).map(wave).collect()
}

/// B, wave by wave.
struct Base {
    /// 2πk/period.
    numbers: Vec<f64>,
    /// Of L, times the length of the window.
    rates: Vec<Complex<f64>>,
    value: Vec<Complex<f64>>,
    /// Of -c u u_x, times the length of the window.
    rest: Vec<Complex<f64>>,
}

impl Base {
    /// B and its derivatives in x up to an order, and that in σ.
    fn at(&self, s: f64, x: f64, order: usize) -> Vec<f64> {
        let mut sums = vec![0.0; order + 2];
        for (k, &number) in self.numbers.iter().enumerate() {
            let wave = Complex::from_polar(1.0, number * x);
            let z = self.rates[k] * s;
            let grown = z.exp();
            // (exp(z) - 1)/z
            let mean = match z.norm() < 1e-2 {
                true => {
                    1.0 + z / 2.0
                        * (1.0 + z / 3.0 * (1.0 + z / 4.0 * (1.0 + z / 5.0 * (1.0 + z / 6.0))))
                }
                false => (grown - 1.0) / z,
            };
            let mut term = wave * (grown * self.value[k] + mean * s * self.rest[k]);
            sums[order + 1] += (wave * grown * (self.rates[k] * self.value[k] + self.rest[k])).re;
            for sum in &mut sums[..=order] {
                *sum += term.re;
                term *= Complex::new(0.0, number);
            }
        }
        sums
    }
}

impl Evolution {
    fn run(&self, settings: &Settings) -> Result<Outcome, Error> {
        let period = self.x.1 - self.x.0;
        let span = 1.0 / self.windows as f64;
        let mut params = Parameters::seeded(settings.seed);
        let width = self.width;
        let inputs = 1 + 2 * self.harmonics;
        let net = params.mlp("n", &[inputs, width, width, width, 1], Sin)?;
        let n = |s: Field, x: Field| {
            let waves = ansatz::periodic(x, period, self.harmonics);
            net.at::<1>(&[&[2.0 * s - 1.0][..], &waves].concat())[0]
        };
        let order = self
            .linear
            .iter()
            .map(|(order, _)| *order)
            .max()
            .unwrap_or(1);
        let mut names: Vec<String> = (0..=order).map(|k| format!("B{k}")).collect();
        names.push("Bs".to_owned());
        let equation = Equation::record(self.name, &params, ["s", "x"], |[s, x]| {
            let n = n(s, x);
            let mut change = s * s * n;
            let mut u = vec![data("B0") + change];
            for name in &names[1..=order] {
                change = change.d(x);
                u.push(data(name) + change);
            }
            let linear: Field = self
                .linear
                .iter()
                .map(|&(order, factor)| factor * u[order])
                .sum();
            data("Bs") + 2.0 * s * n + s * s * n.d(s)
                - span * (linear - self.advection * u[0] * u[1])
        })?;
        let solution = Equation::record("solution", &params, ["s", "x"], |[s, x]| {
            data("B0") + s * s * n(s, x)
        })?;

        // The reference: times 0, 0.05, …, 1, and 64 places.
        let step = period / 64.0;
        let grid = [(0.0, 1.0, 21), (self.x.0, self.x.1 - step, 64)];
        let reference = Reference {
            points: Points::grid(&grid)?,
            truth: table(&format!("{}.npy", self.name.replace('-', "_")), &[21, 64])?,
        };
        let (times, places) = (
            reference.points.coordinate(0),
            reference.points.coordinate(1),
        );

        let equal: Vec<f64> = (0..4 * self.modes)
            .map(|n| period * n as f64 / (4 * self.modes) as f64)
            .collect();
        let start: Vec<f64> = equal.iter().map(|&x| (self.start)(x)).collect();
        let mut base = self.base(&start, span);
        let columns = |base: &Base, mut points: Points| {
            let pairs = points.coordinate(0).iter().zip(points.coordinate(1));
            let rows: Vec<Vec<f64>> = pairs.map(|(&s, &x)| base.at(s, x, order)).collect();
            for (place, name) in names.iter().enumerate() {
                let column: Vec<f64> = rows.iter().map(|row| row[place]).collect();
                points = points.with_column(name, &column)?;
            }
            Ok::<Points, Error>(points)
        };

        let count = settings.points(self.points);
        let mut sampler = Sampler::new(&[(0.0, 1.0), self.x], settings.seed)?;
        let mut u: Vec<f64> = places[..64].iter().map(|&x| (self.start)(x)).collect();
        let (mut seconds, mut steps, mut stop) = (0.0, 0, String::new());
        for window in 0..self.windows {
            let begin = window as f64 * span;
            let mut draw = || columns(&base, sampler.draw(Design::Sobol, count)?);
            let problem = Problem::new(&params, [Condition::new(&equation, draw()?)])?;
            let mut engine = Engine::with(&problem, &settings.options())?;
            let start = Instant::now();
            settings.rough(&mut engine, &mut params)?;
            let rough = start.elapsed().as_secs_f64();
            let report = settings
                .train(self.steps)
                .redraw(25, (), |(), engine, _| {
                    engine.set_points(self.name, draw()?)
                })
                .run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
            let file = format!("{}-{window}.csv", self.name);
            report.history.write_csv(settings.out.join(file))?;
            (seconds, steps) = (seconds + rough + report.seconds, steps + report.steps);
            stop = report.stop.to_string();

            // What the reference has of this window, and where the next one starts.
            let shares: Vec<[f64; 2]> = times
                .iter()
                .zip(places)
                .map(|(t, x)| [(t - begin) / span, *x])
                .filter(|[s, _]| *s > 1e-9 && *s < 1.0 + 1e-9)
                .collect();
            if !shares.is_empty() {
                let points = columns(&base, Points::from_rows(&shares)?)?;
                u.extend(&values(&solution, &params, &points)?[0]);
            }
            let end: Vec<[f64; 2]> = equal.iter().map(|&x| [1.0, x]).collect();
            let end = columns(&base, Points::from_rows(&end)?)?;
            let end = values(&solution, &params, &end)?.concat();
            base = self.base(&end, span);
        }

        let error: Vec<f64> = u.iter().zip(&reference.truth).map(|(u, e)| u - e).collect();
        maps(settings, self.name, grid, ("t", "x"), &reference, &error)?;
        Ok(reference.measured(&error, &params, count, (seconds, steps, stop)))
    }

    /// B of the window that begins with these values at equal distances.
    fn base(&self, values: &[f64], span: f64) -> Base {
        let period = self.x.1 - self.x.0;
        let numbers: Vec<f64> = (0..=self.modes).map(|k| TAU * k as f64 / period).collect();
        let rate = |&number: &f64| {
            let terms = self.linear.iter();
            let terms = terms.map(|&(order, c)| Complex::new(0.0, number).powu(order as u32) * c);
            span * terms.sum::<Complex<f64>>()
        };
        let mut base = Base {
            rates: numbers.iter().map(rate).collect(),
            value: waves(values, self.modes),
            rest: vec![Complex::default(); numbers.len()],
            numbers,
        };
        let count = values.len() as f64;
        let products = values.iter().enumerate().map(|(n, u)| {
            let slope = base.at(0.0, period * n as f64 / count, 1)[1];
            -span * self.advection * u * slope
        });
        base.rest = waves(&products.collect::<Vec<_>>(), self.modes);
        base
    }
}
