//! Equations u_t = F(u, u_x, …), periodic in x, in windows of time one after the other, and
//! two of them: Korteweg-de Vries and Kuramoto-Sivashinsky.
//!
//! In each window u = U(x) + σ n(σ, x), where σ runs from 0 to 1 and U is u at the end of the
//! window before, as a Fourier series: its derivatives come as data of the points, so that
//! the equation is recorded once for all windows.

use crate::common::{Outcome, Reference, Settings, maps, table};
use dualtape::{
    Condition, Design, Elemental::Sin, Engine, Equation, Error, Field, LevenbergMarquardt,
    Parameters, Points, Problem, Sampler, ansatz, data, values,
};
use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::time::Instant;

struct Evolution {
    name: &'static str,
    /// The ends of x.
    x: (f64, f64),
    start: fn(f64) -> f64,
    /// F of u and its derivatives in x.
    rate: fn(&[Field]) -> Field,
    /// The order of the highest of these.
    order: usize,
    windows: usize,
    /// Waves that the network sees.
    harmonics: usize,
    width: usize,
    /// Waves of U.
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
        rate: |u| -u[0] * u[1] - 0.022_f64.powi(2) * u[3],
        order: 3,
        windows: 40,
        harmonics: 8,
        width: 20,
        modes: 120,
        points: 3000,
        steps: 40,
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
        rate: |u| -100.0 * (u[0] * u[1] / 16.0 + u[2] / 256.0 + u[4] / 65_536.0),
        order: 4,
        windows: 60,
        harmonics: 12,
        width: 20,
        modes: 110,
        points: 4000,
        steps: 30,
    };
    problem.run(settings)
}

/// A Fourier series of some period, with cosines and sines of the k-th wave.
struct Series {
    period: f64,
    waves: Vec<(f64, f64)>,
}

impl Series {
    /// Through values at equal distances from 0, more than twice as many as waves.
    fn through(values: &[f64], period: f64, modes: usize) -> Self {
        let count = values.len() as f64;
        let wave = |k: usize| {
            let scale = if k == 0 { 1.0 } else { 2.0 } / count;
            let (mut cosine, mut sine) = (0.0, 0.0);
            for (n, value) in values.iter().enumerate() {
                let angle = TAU * ((k * n) % values.len()) as f64 / count;
                cosine += scale * value * angle.cos();
                sine += scale * value * angle.sin();
            }
            (cosine, sine)
        };
        let waves = (0..=modes).map(wave).collect();
        Self { period, waves }
    }

    fn derivative(&self, x: f64, order: usize) -> f64 {
        let waves = self.waves.iter().enumerate();
        let term = |(k, (cosine, sine)): (usize, &(f64, f64))| {
            let rate = TAU * k as f64 / self.period;
            let angle = rate * x + FRAC_PI_2 * order as f64;
            rate.powi(order as i32) * (cosine * angle.cos() + sine * angle.sin())
        };
        waves.map(term).sum()
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
        let names: Vec<String> = (0..=self.order).map(|k| format!("U{k}")).collect();
        let equation = Equation::record(self.name, &params, ["s", "x"], |[s, x]| {
            let n = n(s, x);
            let mut change = n;
            let mut u = vec![data(&names[0]) + s * n];
            for name in &names[1..] {
                change = change.d(x);
                u.push(data(name) + s * change);
            }
            n + s * n.d(s) - span * (self.rate)(&u)
        })?;
        let solution = Equation::record("solution", &params, ["s", "x"], |[s, x]| {
            data("U0") + s * n(s, x)
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
        let mut initial = Series::through(&start, period, self.modes);
        let columns = |initial: &Series, mut points: Points| {
            for (order, name) in names.iter().enumerate() {
                let x = points.coordinate(1).iter();
                let column: Vec<f64> = x.map(|&x| initial.derivative(x, order)).collect();
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
            let mut draw = || columns(&initial, sampler.draw(Design::Sobol, count)?);
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
                let points = columns(&initial, Points::from_rows(&shares)?)?;
                u.extend(&values(&solution, &params, &points)?[0]);
            }
            let end: Vec<[f64; 2]> = equal.iter().map(|&x| [1.0, x]).collect();
            let end = columns(&initial, Points::from_rows(&end)?)?;
            let end = values(&solution, &params, &end)?.concat();
            initial = Series::through(&end, period, self.modes);
        }

        let error: Vec<f64> = u.iter().zip(&reference.truth).map(|(u, e)| u - e).collect();
        maps(settings, self.name, grid, ("t", "x"), &reference, &error)?;
        Ok(reference.measured(&error, &params, count, (seconds, steps, stop)))
    }
}
