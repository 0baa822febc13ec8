//! Equations u_t = F(u, u_x, …), periodic in x, in windows of time one after the other, and
//! two of them: Korteweg-de Vries and Kuramoto-Sivashinsky.
//!
//! In each window u = U(x) + σ n(σ, x), where σ runs from 0 to 1 and U is u at the end of the
//! window before, as a Fourier series: its derivatives come as data of the points, so that
//! the equation is recorded once for all windows. n is a Fourier series too, whose
//! coefficients are the outputs of one network of σ. Windows are short, and what the
//! coefficients do in one is smooth: the hidden layer stays as it is, and the last is found by
//! least squares.

use crate::common::{Outcome, Reference, Settings, table};
use dualtape::optim::LastLayer;
use dualtape::plot::Map;
use dualtape::{
    Condition, Design, Elemental::Tanh, Engine, Equation, Error, Field, Parameters, Points,
    Problem, Sampler, ansatz, data, values,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::fmt::Write;

/// Slopes of the hidden layer. The smaller, the more its functions are like powers of σ, which
/// fit better, and like each other, which costs digits.
const SLOPE: f64 = 0.12;

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
    /// Waves of u.
    waves: usize,
    /// Functions of σ for each.
    width: usize,
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
        windows: 100,
        waves: 128,
        width: 7,
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
        windows: 240,
        waves: 112,
        width: 7,
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
        let mut params = Parameters::new();
        let width = self.width;
        let modes = if settings.quick { 8 } else { self.waves };
        let net = params.mlp("n", &[1, width, 1 + 2 * modes], Tanh)?;
        // Flat functions side by side; the change of the first window begins at 0.
        params.values_mut().fill(0.0);
        params.transposed_mut("n.0.weight")?.fill(SLOPE);
        for (k, bias) in params.transposed_mut("n.0.bias")?.iter_mut().enumerate() {
            *bias = SLOPE * (2.0 * k as f64 / (width - 1) as f64 - 1.0);
        }
        let n = |s: Field, x: Field| {
            let coefficients = net.at_all(&[2.0 * s - 1.0]);
            let waves = ansatz::periodic(x, period, modes);
            let terms = coefficients[1..]
                .iter()
                .zip(waves)
                .map(|(&c, wave)| c * wave);
            coefficients[0] + terms.sum::<Field>()
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

        let equal: Vec<f64> = (0..4 * modes)
            .map(|n| period * n as f64 / (4 * modes) as f64)
            .collect();
        let start: Vec<f64> = equal.iter().map(|&x| (self.start)(x)).collect();
        let mut initial = Series::through(&start, period, modes);
        let columns = |initial: &Series, mut points: Points| {
            for (order, name) in names.iter().enumerate() {
                let x = points.coordinate(1).iter();
                let column: Vec<f64> = x.map(|&x| initial.derivative(x, order)).collect();
                points = points.with_column(name, &column)?;
            }
            Ok::<Points, Error>(points)
        };

        // Chebyshev's times; at each, places at equal distances, moved by chance. u u_x has twice
        // as many waves: with fewer places some would pass for waves of u.
        let shares = Points::chebyshev(&[(0.0, 1.0, width + 4)])?;
        let count = 3 * modes + 20;
        let mut sampler = Sampler::new(&[(0.0, period / count as f64)], settings.seed)?;
        let mut u: Vec<f64> = places[..64].iter().map(|&x| (self.start)(x)).collect();
        let mut method = LastLayer::of(&params, &net)?;
        let (mut seconds, mut steps, mut stop) = (0.0, 0, String::new());
        // What the picture shows: u at the ends of windows, from the left end of x on.
        let left = (self.x.0.rem_euclid(period) / period * equal.len() as f64) as usize;
        let mut picture = Vec::new();
        let mut draw = |u: &[f64]| picture.extend(u[left..].iter().chain(&u[..left]));
        draw(&start);
        // Of windows, in place of one of steps in each.
        let bar = ProgressBar::new(self.windows as u64).with_style(
            ProgressStyle::with_template("{bar:16} {pos}/{len} {elapsed} (left {eta})  {msg}")
                .expect("a template"),
        );
        let mut history = "window,seconds,loss\n".to_owned();
        for window in 0..self.windows {
            let begin = window as f64 * span;
            let shifts = sampler.draw(Design::Uniform, shares.len())?;
            let pairs = shares.coordinate(0).iter().zip(shifts.coordinate(0));
            let rows: Vec<[f64; 2]> = pairs
                .flat_map(|(&s, shift)| {
                    let place = move |n| self.x.0 + shift + period * n as f64 / count as f64;
                    (0..count).map(move |n| [s, place(n)])
                })
                .collect();
            let points = columns(&initial, Points::from_rows(&rows)?)?;
            let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
            let mut engine = Engine::with(&problem, &settings.options())?;
            // One for the linear part, one for what it left.
            let report =
                settings
                    .train(2)
                    .progress(false)
                    .run(&mut engine, &mut params, &mut method)?;
            bar.set_message(format!("loss {:.1e}", report.loss));
            bar.inc(1);
            writeln!(history, "{window},{:.3},{:e}", report.seconds, report.loss)
                .expect("a string");
            (seconds, steps) = (seconds + report.seconds, steps + report.steps);
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
            draw(&end);
            initial = Series::through(&end, period, modes);
        }

        bar.finish_and_clear();
        let path = settings.out.join(format!("{}.csv", self.name));
        std::fs::write(&path, history).map_err(|error| Error::File {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        let error: Vec<f64> = u.iter().zip(&reference.truth).map(|(u, e)| u - e).collect();
        let last = self.x.1 - period / equal.len() as f64;
        let axes = [(0.0, 1.0, self.windows + 1), (self.x.0, last, equal.len())];
        Map::new("u(t, x)", axes, &picture)?
            .labels("t", "x")
            .save(settings.out.join(format!("{}.png", self.name)))?;
        Map::new("Error of u(t, x)", grid, &error)?
            .diverging()
            .labels("t", "x")
            .save(settings.out.join(format!("{}-error.png", self.name)))?;
        Ok(reference.measured(
            &error,
            &params,
            count * shares.len(),
            (seconds, steps, stop),
        ))
    }
}
