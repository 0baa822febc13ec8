//! Whole engines against plain loops, on every instruction set and in both precisions: any
//! width, any row stride, short last chunks, one point.

use dualtape::{
    Condition, Elemental, Engine, Equation, Field, InstructionSet, Options, Parameters, Points,
    Precision, Problem,
};
use proptest::prelude::*;

/// A network and an equation of the form
/// `Σ_o (u + Σ_i α_i u_i + Σ_i β_i u_ii + ½ u u_0)²`, with as many planes as one likes.
#[derive(Debug, Clone)]
struct Shape {
    widths: Vec<usize>,
    sine: bool,
    /// Coordinates with a first derivative, and those of them with a second one.
    first: usize,
    second: usize,
    points: usize,
}

#[derive(Debug, Clone, Copy)]
enum Residual {
    Value,
    Magnitude,
}

/// Coordinate i has these factors at its derivatives.
fn alpha(i: usize) -> f64 {
    1.0 - 0.4 * i as f64
}
fn beta(i: usize) -> f64 {
    0.3 + 0.1 * i as f64
}

/// Numbers in (−1, 1) that look random.
fn number(seed: u64, index: usize) -> f64 {
    let x = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

impl Shape {
    fn inputs(&self) -> usize {
        self.widths[0]
    }

    fn planes(&self) -> usize {
        1 + self.first + self.second
    }

    /// Numbers that `f32` holds too.
    fn theta(&self) -> Vec<f64> {
        let layers = self.widths.windows(2).enumerate();
        layers
            .flat_map(|(layer, w)| {
                let scale = 1.5 / (w[0] as f64).sqrt();
                (0..w[1] * (w[0] + 1)).map(move |i| scale * number(layer as u64, i))
            })
            .map(|x| f64::from(x as f32))
            .collect()
    }

    fn flat_points(&self) -> Vec<f64> {
        (0..self.points * self.inputs())
            .map(|i| f64::from(number(99, i) as f32))
            .collect()
    }

    /// Loss and gradient by loops over points, layers, planes, rows and columns. With
    /// `Residual::Magnitude` what they would be if no term of a residual cancelled another:
    /// what rounding is measured by.
    fn plain(&self, theta: &[f64], residual: Residual) -> (f64, Vec<f64>) {
        let mut loss = 0.0;
        let mut gradient = vec![0.0; theta.len()];
        for point in self.flat_points().chunks(self.inputs()) {
            self.plain_point(theta, point, residual, &mut loss, &mut gradient);
        }
        (loss, gradient)
    }

    fn plain_point(
        &self,
        theta: &[f64],
        point: &[f64],
        residual: Residual,
        loss: &mut f64,
        gradient: &mut [f64],
    ) {
        let (f, planes) = (self.first, self.planes());
        let layers = self.widths.len() - 1;
        // [plane][neuron] of each layer: what enters it, and W·that + b.
        let mut entering = vec![vec![vec![0.0; self.inputs()]; planes]];
        let mut linear: Vec<Vec<Vec<f64>>> = Vec::new();
        for (i, x) in point.iter().enumerate() {
            entering[0][0][i] = *x;
            if i < f {
                entering[0][1 + i][i] = 1.0;
            }
        }
        let mut offset = 0;
        let mut offsets = Vec::new();
        for layer in 0..layers {
            let (columns, rows) = (self.widths[layer], self.widths[layer + 1]);
            offsets.push(offset);
            let w = &theta[offset..][..rows * columns];
            let b = &theta[offset + rows * columns..][..rows];
            offset += rows * (columns + 1);
            let mut z = vec![vec![0.0; rows]; planes];
            for p in 0..planes {
                for i in 0..rows {
                    z[p][i] = if p == 0 { b[i] } else { 0.0 };
                    for k in 0..columns {
                        z[p][i] += w[i * columns + k] * entering[layer][p][k];
                    }
                }
            }
            let mut a = z.clone();
            for i in 0..rows {
                let [c0, c1, c2, _] = self.activation(z[0][i]);
                a[0][i] = c0;
                for d in 0..f {
                    a[1 + d][i] = c1 * z[1 + d][i];
                }
                for d in 0..self.second {
                    a[1 + f + d][i] = c1 * z[1 + f + d][i] + c2 * z[1 + d][i] * z[1 + d][i];
                }
            }
            linear.push(z);
            entering.push(a);
        }

        let u = &linear[layers - 1];
        let mut bar = vec![vec![0.0; self.widths[layers]]; planes];
        for o in 0..self.widths[layers] {
            let slope = if f > 0 { u[1][o] } else { 0.0 };
            let mut terms = vec![u[0][o], 0.5 * u[0][o] * slope];
            terms.extend((0..f).map(|i| alpha(i) * u[1 + i][o]));
            terms.extend((0..self.second).map(|i| beta(i) * u[1 + f + i][o]));
            let r: f64 = match residual {
                Residual::Value => terms.iter().sum(),
                Residual::Magnitude => terms.iter().map(|t| t.abs()).sum(),
            };
            *loss += r * r / self.points as f64;
            let seed = 2.0 * r / self.points as f64;
            bar[0][o] = seed * (1.0 + 0.5 * slope);
            for i in 0..f {
                bar[1 + i][o] = seed * alpha(i);
            }
            if f > 0 {
                bar[1][o] += seed * 0.5 * u[0][o];
            }
            for i in 0..self.second {
                bar[1 + f + i][o] = seed * beta(i);
            }
        }

        for layer in (0..layers).rev() {
            let (columns, rows) = (self.widths[layer], self.widths[layer + 1]);
            let w = &theta[offsets[layer]..][..rows * columns];
            let (gw, rest) = gradient[offsets[layer]..].split_at_mut(rows * columns);
            let mut below = vec![vec![0.0; columns]; planes];
            for i in 0..rows {
                rest[i] += bar[0][i];
                for p in 0..planes {
                    for k in 0..columns {
                        gw[i * columns + k] += bar[p][i] * entering[layer][p][k];
                        below[p][k] += bar[p][i] * w[i * columns + k];
                    }
                }
            }
            if layer == 0 {
                break;
            }
            let z = &linear[layer - 1];
            for k in 0..columns {
                let [_, c1, c2, c3] = self.activation(z[0][k]);
                let mut value = c1 * below[0][k];
                for d in 0..f {
                    value += c2 * z[1 + d][k] * below[1 + d][k];
                }
                for d in 0..self.second {
                    let (slope, bend) = (z[1 + d][k], z[1 + f + d][k]);
                    let g = below[1 + f + d][k];
                    value += (c2 * bend + c3 * slope * slope) * g;
                    below[1 + d][k] = c1 * below[1 + d][k] + 2.0 * c2 * slope * g;
                    below[1 + f + d][k] = c1 * g;
                }
                for d in self.second..f {
                    below[1 + d][k] *= c1;
                }
                below[0][k] = value;
            }
            bar = below;
        }
    }

    /// The activation and three derivatives.
    fn activation(&self, z: f64) -> [f64; 4] {
        if self.sine {
            let (s, c) = z.sin_cos();
            return [s, c, -s, -c];
        }
        let t = z.tanh();
        let slope = 1.0 - t * t;
        [t, slope, -2.0 * t * slope, slope * (6.0 * t * t - 2.0)]
    }

    fn problem(&self) -> (Problem, Vec<f64>) {
        let activation = if self.sine {
            Elemental::Sin
        } else {
            Elemental::Tanh
        };
        let mut params = Parameters::new();
        let net = params.mlp("u", &self.widths, activation).unwrap();
        params.set(&self.theta()).unwrap();
        let names: Vec<String> = (0..self.inputs()).map(|i| format!("x{i}")).collect();
        let equation = Equation::record_over("shape", &params, &names, |x| {
            let outputs: Vec<Field> = match self.widths.last() {
                Some(2) => net.at::<2>(x).to_vec(),
                Some(3) => net.at::<3>(x).to_vec(),
                _ => net.at::<1>(x).to_vec(),
            };
            let residual = |u: Field| {
                let mut r = u;
                if self.first > 0 {
                    r += 0.5 * u * u.d(x[0]);
                }
                for (i, &x) in x[..self.first].iter().enumerate() {
                    r += alpha(i) * u.d(x);
                }
                for (i, &x) in x[..self.second].iter().enumerate() {
                    r += beta(i) * u.d(x).d(x);
                }
                r
            };
            outputs.into_iter().map(residual).collect::<Vec<_>>()
        })
        .unwrap();
        let points = Points::from_flat(self.inputs(), &self.flat_points()).unwrap();
        let problem = Problem::new(&params, [Condition::new(&equation, points)]).unwrap();
        (problem, params.values().to_vec())
    }

    /// Evaluates on every instruction set and in both precisions, and compares.
    fn check(&self, chunk: Option<usize>) -> Result<(), TestCaseError> {
        let (problem, theta) = self.problem();
        let (loss, gradient) = self.plain(&theta, Residual::Value);
        let (scale, magnitudes) = self.plain(&theta, Residual::Magnitude);
        let largest = magnitudes.iter().fold(0.0_f64, |m, g| m.max(g.abs()));
        for set in InstructionSet::available() {
            for precision in [Precision::Double, Precision::Single] {
                let mut options = Options::default().precision(precision).instructions(set);
                options.chunk = chunk;
                let engine = Engine::with(&problem, &options).unwrap();
                let found = engine.evaluate(&theta).unwrap();
                let tolerance = match precision {
                    Precision::Double => 1e-12,
                    Precision::Single => 1e-5,
                };
                let place = || format!("{self:?}, chunk {chunk:?}, {} {precision:?}", set.name());
                let error = (found.loss - loss).abs() / scale;
                prop_assert!(error <= tolerance, "{}: loss off by {error:e}", place());
                prop_assert_eq!(found.gradient.len(), gradient.len());
                for (i, (found, expected)) in found.gradient.iter().zip(&gradient).enumerate() {
                    let error = (found - expected).abs() / largest;
                    prop_assert!(
                        error <= tolerance,
                        "{}: [{i}] is {found:e}, not {expected:e}: {error:e} of the largest",
                        place()
                    );
                }
                self.check_rows(&engine, &theta, &found.gradient, tolerance * largest)?;
            }
        }
        Ok(())
    }

    /// Σ r² is the loss and 2 Jᵀr the gradient; every point is there once.
    fn check_rows(
        &self,
        engine: &Engine,
        theta: &[f64],
        gradient: &[f64],
        tolerance: f64,
    ) -> Result<(), TestCaseError> {
        let mut sum = vec![0.0; gradient.len()];
        let mut seen = vec![0; self.points];
        let visit = |rows: dualtape::Rows<'_>| {
            for point in rows.points.clone() {
                seen[point] += 1;
            }
            for (parameter, sum) in sum.iter_mut().enumerate() {
                let column = rows.parameter(parameter).iter().zip(rows.residuals);
                *sum += 2.0 * column.map(|(j, r)| j * r).sum::<f64>();
            }
        };
        engine.rows("shape", theta, visit).unwrap();
        let outputs = self.widths[self.widths.len() - 1];
        prop_assert!(seen.iter().all(|&n| n == outputs), "{self:?}: {seen:?}");
        for (i, (sum, g)) in sum.iter().zip(gradient).enumerate() {
            let error = (sum - g).abs();
            prop_assert!(
                error <= tolerance,
                "{self:?}: rows [{i}]: {sum:e}, not {g:e}"
            );
        }
        Ok(())
    }
}

/// The plain loops are right: differences fall with the square of the step.
#[test]
fn plain_loops_against_differences() {
    let shape = Shape {
        widths: vec![3, 5, 4, 2],
        sine: false,
        first: 3,
        second: 2,
        points: 4,
    };
    let theta = shape.theta();
    let (_, gradient) = shape.plain(&theta, Residual::Value);
    let loss = |theta: &[f64]| shape.plain(theta, Residual::Value).0;
    for i in 0..theta.len() {
        let error = |h: f64| {
            let (mut more, mut less) = (theta.clone(), theta.clone());
            more[i] += h;
            less[i] -= h;
            ((loss(&more) - loss(&less)) / (2.0 * h) - gradient[i]).abs()
        };
        let (coarse, fine) = (error(2e-3), error(1e-3));
        assert!(
            fine < 1e-10 || (3.5..4.5).contains(&(coarse / fine)),
            "[{i}]: {coarse:e}, then {fine:e}"
        );
    }
}

#[test]
fn products_of_every_width() {
    let points = [1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 127, 130];
    for width in 1..=70 {
        let first = width % 4;
        Shape {
            widths: vec![3, width, 71 - width, 1 + width % 3],
            sine: width % 5 == 0,
            first,
            second: first.min(width % 3),
            points: points[width % points.len()],
        }
        .check(None)
        .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Every stride of rows is chunk × planes, and one line more where that is 4 KiB.
#[test]
fn products_of_every_row_stride() {
    for chunk in (16..=256).step_by(16) {
        for planes in 1..=9 {
            let first = planes / 2;
            Shape {
                widths: vec![4, 11, 7, 1],
                sine: planes % 2 == 0,
                first,
                second: planes - 1 - first,
                // A whole chunk and a short one.
                points: chunk + 1 + (chunk + 5 * planes) % 16,
            }
            .check(Some(chunk))
            .unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

fn shapes() -> impl Strategy<Value = (Shape, Option<usize>)> {
    let widths = (
        1..=4_usize,
        prop::collection::vec(1..=70_usize, 1..=3),
        1..=3_usize,
    );
    let chunk = prop::option::of((1..=16_usize).prop_map(|n| 16 * n));
    (
        widths,
        any::<bool>(),
        0..=4_usize,
        0..=4_usize,
        1..=200_usize,
        chunk,
    )
        .prop_map(
            |((inputs, hidden, outputs), sine, first, second, points, chunk)| {
                let mut widths = vec![inputs];
                widths.extend(hidden);
                widths.push(outputs);
                let first = first.min(inputs);
                let second = second.min(first);
                let shape = Shape {
                    widths,
                    sine,
                    first,
                    second,
                    points,
                };
                (shape, chunk)
            },
        )
}

/// `DUALTAPE_LONG=1` asks for many more cases.
fn cases(few: u32, many: u32) -> u32 {
    match std::env::var("DUALTAPE_LONG") {
        Ok(word) if word == "1" => many,
        _ => few,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(48, 10_000),
        failure_persistence: Some(Box::new(
            proptest::test_runner::FileFailurePersistence::WithSource("regressions"),
        )),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_shape((shape, chunk) in shapes()) {
        shape.check(chunk)?;
    }
}
