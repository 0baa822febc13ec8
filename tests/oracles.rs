//! Random networks, equations and points against independent ways: nested numbers of
//! num-dual for the coordinates, central differences for the parameters, and the engine
//! against itself by other routes.

mod common;

use common::{lowerings, noise};
use dualtape::{
    Architecture, Coefficient, Condition, Elemental, Engine, Equation, Field, InstructionSet,
    Lowering, Mlp, Options, Parameters, Points, Precision, Problem, data, select, values,
};
use num_dual::{
    Dual, Dual2, Dual2_64, Dual3_64, Dual64, DualNum, HyperDual, HyperDual64, HyperHyperDual64,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

// The grammar.

/// A function of the network's outputs, the coordinates and the coefficients, point by point.
#[derive(Debug, Clone)]
enum Pure {
    U(usize),
    X(usize),
    Number(f64),
    Coefficient(usize),
    Sum(Box<Pure>, Box<Pure>),
    Difference(Box<Pure>, Box<Pure>),
    Product(Box<Pure>, Box<Pure>),
    Function(usize, Box<Pure>),
    /// By a coordinate above a threshold.
    Choice(usize, f64, Box<Pure>, Box<Pure>),
}

/// A residual: derivatives of such functions, per-point data, combined.
#[derive(Debug, Clone)]
enum Residual {
    /// ∂^α of the function times the first output, α as a list of at most three coordinates.
    Derivative(Pure, Vec<usize>),
    Laplacian(Pure),
    /// ∂_i (f ∂_i u).
    Divergence(Pure, usize),
    Data,
    Sum(Box<Residual>, Box<Residual>),
    Product(Box<Residual>, Box<Residual>),
    Function(usize, Box<Residual>),
}

/// What the grammar asks of a number: a field, or numbers of num-dual.
trait Number: DualNum<Primitive = f64> + Copy {
    fn elemental(self, elemental: Elemental) -> Self;
    fn choice(x: Self, threshold: f64, above: Self, otherwise: Self) -> Self;
}

impl Number for Field {
    fn elemental(self, elemental: Elemental) -> Self {
        self.apply(elemental)
    }
    fn choice(x: Self, threshold: f64, above: Self, otherwise: Self) -> Self {
        select(x.above(threshold), above, otherwise)
    }
}
macro_rules! numbers {
    ($($number:ty)+) => {$(
        impl Number for $number {
            fn elemental(self, elemental: Elemental) -> Self {
                elemental.apply(self)
            }
            fn choice(x: Self, threshold: f64, above: Self, otherwise: Self) -> Self {
                if x > Self::from(threshold) { above } else { otherwise }
            }
        }
    )+};
}
numbers!(f64 HyperHyperDual64);

/// How many functions [`function`] knows.
const FUNCTIONS: usize = 27;

/// Functions with bounded derivatives, each elemental in at least one.
fn function<N: Number>(index: usize, z: N) -> N {
    use Elemental as E;
    let e = |z: N, elemental: E| z.elemental(elemental);
    let wave = || e(z, E::Sin);
    match index {
        0 => e(z, E::Tanh),
        1 => e(z, E::Sin),
        2 => e(z, E::Cos),
        3 => e(z, E::Atan),
        4 => e(z, E::Sigmoid),
        5 => e(z, E::Erf),
        6 => e(z, E::Softplus),
        7 => e(z, E::Silu),
        8 => e(z, E::Gelu),
        9 => e(z, E::LogSigmoid),
        10 => e(z, E::Asinh),
        11 => e(wave(), E::Exp),
        12 => e(z * z + 1.0, E::Sqrt),
        13 => e(z * z + 1.0, E::Ln),
        14 => e(z * z + 1.0, E::Recip),
        15 => e(e(z, E::Tanh), E::Powi(3)),
        16 => e(wave() + 1.5, E::Powf(1.5)),
        17 => e(wave() + 2.0, E::Cbrt),
        18 => e(wave() * 0.5, E::Tan),
        19 => e(wave() * 0.5, E::Asin),
        20 => e(wave() * 0.5, E::Acos),
        21 => e(wave() * 0.5, E::Atanh),
        22 => e(wave(), E::Cosh) - e(wave(), E::Sinh),
        23 => e(wave(), E::ExpM1),
        24 => e(wave() + 1.5, E::Ln1p),
        25 => e(wave() + 2.5, E::Acosh),
        // Steeper than 45° and flatter, in front and behind.
        _ => (wave() * 2.0 + 2.5).atan2(e(z, E::Cos) * 3.0),
    }
}

impl Pure {
    fn value<N: Number>(&self, x: &[N], u: &[N], k: &[N]) -> N {
        let of = |e: &Self| e.value(x, u, k);
        match self {
            Self::U(i) => u[i % u.len()],
            Self::X(i) => x[i % x.len()],
            Self::Number(c) => N::from(*c),
            Self::Coefficient(i) => k[i % k.len()],
            Self::Sum(a, b) => of(a) + of(b),
            Self::Difference(a, b) => of(a) - of(b),
            Self::Product(a, b) => of(a) * of(b),
            Self::Function(index, a) => function(*index, of(a)),
            Self::Choice(i, threshold, a, b) => N::choice(x[i % x.len()], *threshold, of(a), of(b)),
        }
    }
}

/// A value, and how large the numbers were of which it was made.
#[derive(Clone, Copy)]
struct Sized {
    value: f64,
    size: f64,
}

impl Residual {
    fn record(&self, x: &[Field], u: &[Field], k: &[Field]) -> Field {
        let of = |e: &Self| e.record(x, u, k);
        match self {
            Self::Derivative(f, orders) => {
                let mut value = f.value(x, u, k) * u[0];
                for c in orders {
                    value = value.d(x[c % x.len()]);
                }
                value
            }
            Self::Laplacian(f) => (f.value(x, u, k) * u[0]).laplacian(x),
            Self::Divergence(f, c) => {
                let c = x[c % x.len()];
                (f.value(x, u, k) * u[0].d(c)).d(c)
            }
            Self::Data => data("y"),
            Self::Sum(a, b) => of(a) + of(b),
            Self::Product(a, b) => of(a) * of(b),
            Self::Function(index, a) => function(*index, of(a)),
        }
    }

    /// By num-dual, at one point.
    fn oracle(&self, case: &Built, x: &[f64], y: f64) -> Sized {
        let of = |e: &Self| e.oracle(case, x, y);
        match self {
            Self::Derivative(f, orders) => {
                let (value, u) = case.nested(f, x, orders);
                part(value * u, orders.len())
            }
            Self::Laplacian(f) => (0..x.len())
                .map(|c| {
                    let (value, u) = case.nested(f, x, &[c, c]);
                    part(value * u, 2)
                })
                .fold(
                    Sized {
                        value: 0.0,
                        size: 0.0,
                    },
                    |a, b| Sized {
                        value: a.value + b.value,
                        size: a.size + b.size,
                    },
                ),
            Self::Divergence(f, c) => {
                let (f, u) = case.nested(f, x, &[*c, *c]);
                Sized {
                    value: f.eps1 * u.eps1 + f.re * u.eps1eps2,
                    size: part(f, 2).size * part(u, 2).size,
                }
            }
            Self::Data => Sized {
                value: y,
                size: y.abs(),
            },
            Self::Sum(a, b) => {
                let (a, b) = (of(a), of(b));
                Sized {
                    value: a.value + b.value,
                    size: a.size + b.size,
                }
            }
            Self::Product(a, b) => {
                let (a, b) = (of(a), of(b));
                Sized {
                    value: a.value * b.value,
                    size: a.size * b.size,
                }
            }
            Self::Function(index, a) => {
                let a = of(a);
                let value = function(*index, a.value);
                Sized {
                    value,
                    size: 2.0 * a.size + value.abs() + 1.0,
                }
            }
        }
    }
}

/// The derivative in the first `order` directions.
fn part(v: HyperHyperDual64, order: usize) -> Sized {
    let value = [v.re, v.eps1, v.eps1eps2, v.eps1eps2eps3][order];
    let size = 1.0
        + [
            v.re,
            v.eps1,
            v.eps2,
            v.eps3,
            v.eps1eps2,
            v.eps1eps3,
            v.eps2eps3,
            v.eps1eps2eps3,
        ]
        .iter()
        .map(|x| x.abs())
        .sum::<f64>();
    Sized { value, size }
}

// Strategies.

fn pure() -> impl Strategy<Value = Pure> {
    let leaf = prop_oneof![
        3 => (0..3_usize).prop_map(Pure::U),
        2 => (0..3_usize).prop_map(Pure::X),
        1 => (-1.5..1.5).prop_map(Pure::Number),
        1 => (0..2_usize).prop_map(Pure::Coefficient),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let two = (inner.clone(), inner.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            1 => two.clone().prop_map(|(a, b)| Pure::Sum(a, b)),
            1 => two.clone().prop_map(|(a, b)| Pure::Difference(a, b)),
            2 => two.clone().prop_map(|(a, b)| Pure::Product(a, b)),
            3 => (0..FUNCTIONS, inner).prop_map(|(i, a)| Pure::Function(i, Box::new(a))),
            1 => (0..3_usize, -0.5..0.5, two).prop_map(|(i, c, (a, b))| Pure::Choice(i, c, a, b)),
        ]
    })
}

fn residual() -> impl Strategy<Value = Residual> {
    let orders = proptest::collection::vec(0..3_usize, 0..=3);
    let leaf = prop_oneof![
        4 => (pure(), orders.clone()).prop_map(|(f, orders)| Residual::Derivative(f, orders)),
        2 => orders.prop_map(|orders| Residual::Derivative(Pure::Number(1.0), orders)),
        1 => pure().prop_map(Residual::Laplacian),
        1 => Just(Residual::Laplacian(Pure::Number(1.0))),
        1 => (pure(), 0..3_usize).prop_map(|(f, c)| Residual::Divergence(f, c)),
        1 => Just(Residual::Data),
    ];
    leaf.prop_recursive(2, 5, 2, |inner| {
        let two = (inner.clone(), inner.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            2 => two.clone().prop_map(|(a, b)| Residual::Sum(a, b)),
            2 => two.prop_map(|(a, b)| Residual::Product(a, b)),
            1 => (0..FUNCTIONS, inner).prop_map(|(i, a)| Residual::Function(i, Box::new(a))),
        ]
    })
}

const ACTIVATIONS: [Elemental; 11] = [
    Elemental::Tanh,
    Elemental::Sin,
    Elemental::Cos,
    Elemental::Sigmoid,
    Elemental::LogSigmoid,
    Elemental::Softplus,
    Elemental::Silu,
    Elemental::Gelu,
    Elemental::Erf,
    Elemental::Atan,
    Elemental::Asinh,
];

/// A random problem, as data that prints and shrinks.
#[derive(Debug, Clone)]
struct Case {
    dimension: usize,
    /// Width and activation of each hidden layer.
    hidden: Vec<(usize, usize)>,
    outputs: usize,
    residuals: Vec<Residual>,
    points: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    (
        1..=3_usize,
        proptest::collection::vec((1..=9_usize, 0..ACTIVATIONS.len()), 1..=4),
        1..=2_usize,
        proptest::collection::vec(residual(), 1..=2),
        1..=40_usize,
        any::<u64>(),
    )
        .prop_map(
            |(dimension, hidden, outputs, residuals, points, seed)| Case {
                dimension,
                hidden,
                outputs,
                residuals,
                points,
                seed,
            },
        )
}

/// A case with its parameters, equation and points.
struct Built {
    params: Parameters,
    net: Mlp,
    coefficients: [Coefficient; 2],
    equation: Equation,
    points: Points,
    y: Vec<f64>,
}

impl Case {
    fn build(&self) -> Built {
        let mut params = Parameters::new();
        let mut widths = vec![self.dimension];
        widths.extend(self.hidden.iter().map(|(width, _)| *width));
        widths.push(self.outputs);
        let activations = self.hidden.iter().map(|(_, a)| ACTIVATIONS[*a].clone());
        let architecture = Architecture::mlp(&widths).activations(activations);
        let net = params.network("u", &architecture).expect("a network");
        let coefficients = ["k", "l"].map(|name| params.coefficient(name, 0.0).expect("a name"));
        let mut noise = noise(self.seed);
        params
            .values_mut()
            .fill_with(|| noise.next().expect("noise"));
        let names: Vec<String> = (0..self.dimension).map(|i| format!("x{i}")).collect();
        let equation = Equation::record_over("random", &params, &names, |x| {
            let u = net.at_all(x);
            let k = [coefficients[0].field(), coefficients[1].field()];
            let all = self.residuals.iter().map(|r| r.record(x, &u, &k));
            let mut all: Vec<Field> = all.collect();
            // Everything is touched, and there is something to minimise.
            let rest: Field = u.iter().copied().sum();
            all[0] += rest * k[0] * 0.5 + k[1];
            if equation_reads_no_data(&self.residuals) {
                all[0] -= data("y");
            }
            all
        })
        .expect("an equation");
        let list = |noise: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
            noise.take(self.points).collect()
        };
        let coordinates = (0..self.dimension).map(|_| list(&mut noise)).collect();
        let y = list(&mut noise);
        let points = Points::new(coordinates)
            .and_then(|p| p.with_column("y", &y))
            .expect("points");
        Built {
            params,
            net,
            coefficients,
            equation,
            points,
            y,
        }
    }
}

fn equation_reads_no_data(residuals: &[Residual]) -> bool {
    fn reads(r: &Residual) -> bool {
        match r {
            Residual::Data => true,
            Residual::Sum(a, b) | Residual::Product(a, b) => reads(a) || reads(b),
            Residual::Function(_, a) => reads(a),
            _ => false,
        }
    }
    !residuals.iter().any(reads)
}

impl Built {
    /// A function and the first output at a point, nested in up to three directions.
    fn nested(
        &self,
        f: &Pure,
        x: &[f64],
        directions: &[usize],
    ) -> (HyperHyperDual64, HyperHyperDual64) {
        let mut point: Vec<HyperHyperDual64> =
            x.iter().map(|&x| HyperHyperDual64::from_re(x)).collect();
        for (place, direction) in directions.iter().enumerate() {
            let x = &mut point[direction % x.len()];
            match place {
                0 => x.eps1 = 1.0,
                1 => x.eps2 = 1.0,
                _ => x.eps3 = 1.0,
            }
        }
        let u = self.net.eval(&self.params, &point).expect("u");
        let k = self.numbers();
        (f.value(&point, &u, &k.map(HyperHyperDual64::from)), u[0])
    }

    fn numbers(&self) -> [f64; 2] {
        [0, 1].map(|i: usize| {
            self.coefficients[i]
                .value(&self.params)
                .expect("a coefficient")
        })
    }

    /// The points, one by one.
    fn rows(&self) -> impl Iterator<Item = Vec<f64>> {
        (0..self.points.len()).map(|n| self.points.point(n))
    }

    /// The residuals by a way to derivatives: one list for each.
    fn residuals(&self, lowering: Lowering) -> Vec<Vec<f64>> {
        let engine = self.engine(Options::default().lowering(lowering));
        let residuals = engine.residuals("random", self.params.values());
        residuals.expect("residuals")
    }

    fn problem(&self) -> Problem {
        let condition = Condition::new(&self.equation, self.points.clone()).weight(1.5);
        Problem::new(&self.params, [condition]).expect("a problem")
    }

    fn engine(&self, options: Options) -> Engine {
        Engine::with(&self.problem(), &options).expect("an engine")
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// The largest difference, as a share of `size` and the largest entry.
fn difference(a: &[f64], b: &[f64], size: f64) -> f64 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(size, |m, x| m.max(x.abs()));
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
        / scale
}

/// max_i Σ_n |r_n J_ni| + |J_ni|: what rounding errors of the gradient are measured by.
fn gradient_size(engine: &Engine, params: &Parameters) -> f64 {
    let mut sums = vec![0.0; params.len()];
    engine
        .rows("random", params.values(), |rows| {
            for (i, sum) in sums.iter_mut().enumerate() {
                for (r, j) in rows.residuals.iter().zip(rows.parameter(i)) {
                    *sum += 2.0 * (r.abs() + 1e-3) * j.abs();
                }
            }
        })
        .expect("rows");
    sums.iter().fold(0.0, |m: f64, x| m.max(*x))
}

proptest! {
    #![proptest_config(config(256))]

    /// (a) Residuals with all their derivatives in the coordinates, by nested numbers.
    #[test]
    fn derivatives_in_the_coordinates(case in case()) {
        let built = case.build();
        let ways = lowerings(3);
        let got: Vec<Vec<Vec<f64>>> = ways.iter().map(|&way| built.residuals(way)).collect();
        for (n, x) in built.rows().enumerate() {
            for (i, residual) in case.residuals.iter().enumerate() {
                let mut want = residual.oracle(&built, &x, built.y[n]);
                if i == 0 {
                    let u = built.net.eval(&built.params, &x).expect("u");
                    let rest: f64 = u.iter().sum();
                    let [k, l] = built.numbers();
                    want.value += rest * k * 0.5 + l;
                    want.size += rest.abs() + 1.0;
                    if equation_reads_no_data(&case.residuals) {
                        want.value -= built.y[n];
                    }
                }
                for (way, got) in ways.iter().zip(&got) {
                    let error = (got[i][n] - want.value).abs() / want.size.max(want.value.abs());
                    prop_assert!(
                        error < 1e-12,
                        "residual {} at {:?} by {:?}: got {:e}, want {:e} ({:.1e})",
                        i, x, way, got[i][n], want.value, error
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// (b) The error of central differences falls by four or more when the step halves, down to
    /// the floor of rounding.
    #[test]
    fn gradient_against_central_differences(case in case(), way in 0..5_usize) {
        let built = case.build();
        let engine = built.engine(Options::default().lowering(lowerings(3)[way]));
        let theta = built.params.values();
        let evaluation = engine.evaluate(theta).expect("an evaluation");
        prop_assert_eq!(engine.loss(theta), Ok(evaluation.loss));
        let direction: Vec<f64> = noise(case.seed ^ 0x5555).take(theta.len()).collect();
        let slope: f64 = evaluation.gradient.iter().zip(&direction).map(|(g, v)| g * v).sum();
        let at = |h: f64| {
            let moved: Vec<f64> = theta.iter().zip(&direction).map(|(t, v)| t + h * v).collect();
            engine.loss(&moved).expect("a loss")
        };
        // Rounding of the loss: of its own size, and of the sizes of what it is made of.
        let size = evaluation.loss + gradient_size(&engine, &built.params);
        let mut last: Option<f64> = None;
        let mut best = f64::INFINITY;
        let mut ratios = Vec::new();
        for k in 0..11 {
            let h = 1e-2 * 0.5_f64.powi(k);
            let error = (at(h) - at(-h)) / (2.0 * h) - slope;
            let floor = 64.0 * f64::EPSILON * size / h;
            if let Some(before) = last {
                if error.abs() > 20.0 * floor {
                    ratios.push(before / error);
                }
                // What is left when the second order is taken out.
                let rest = (4.0 * error - before).abs() / 3.0;
                best = best.min(rest / floor.max(1e-10 * size));
            }
            last = Some(error);
        }
        if let Some(ratio) = ratios.last() {
            // Faster, or through zero, where the term of fourth order is the larger; a wrong
            // gradient stands still, at 1.
            prop_assert!(ratio.abs() > 3.0, "slope {}, ratios {:?}", slope, ratios);
        }
        prop_assert!(best < 64.0, "slope {}, best error {} floors", slope, best);
    }

    /// (c) Rows: Σ r² is the loss, 2 Jᵀr its gradient.
    #[test]
    fn rows_give_loss_and_gradient(case in case(), way in 0..5_usize) {
        let built = case.build();
        for precision in [Precision::Double, Precision::Single] {
            let options = Options::default().precision(precision).chunk(16);
            let engine = built.engine(options.lowering(lowerings(3)[way]));
            let tolerance = if precision == Precision::Double { 1e-13 } else { 1e-5 };
            let theta = built.params.values();
            let evaluation = engine.evaluate(theta).expect("an evaluation");
            let mut loss = 0.0;
            let mut gradient = vec![0.0; theta.len()];
            let mut seen = vec![0; built.equation.outputs()];
            let mut row = vec![0.0; theta.len()];
            engine.rows("random", theta, |rows| {
                assert_eq!(seen[rows.output], rows.points.start);
                seen[rows.output] = rows.points.end;
                assert_eq!(rows.points.len(), rows.residuals.len());
                assert_eq!(rows.parameters(), theta.len());
                for (n, r) in rows.residuals.iter().enumerate() {
                    loss += r * r;
                    rows.copy_row(n, &mut row);
                    for (i, (sum, j)) in gradient.iter_mut().zip(&row).enumerate() {
                        assert_eq!(rows.parameter(i)[n].to_bits(), j.to_bits());
                        *sum += 2.0 * j * r;
                    }
                }
            }).expect("rows");
            prop_assert!(seen.iter().all(|n| *n == case.points), "{:?}", seen);
            prop_assert!((loss - evaluation.loss).abs() <= tolerance * evaluation.loss);
            let size = gradient_size(&engine, &built.params);
            let error = difference(&gradient, &evaluation.gradient, size);
            prop_assert!(error < tolerance, "{:e}", error);
        }
    }

    /// (d) Single precision agrees with double.
    #[test]
    fn single_precision(case in case(), way in 0..5_usize) {
        let built = case.build();
        let double = built.engine(Options::default());
        let theta = built.params.values();
        let want = double.evaluate(theta).expect("an evaluation");
        let options = Options::default().precision(Precision::Single);
        let single = built.engine(options.lowering(lowerings(3)[way]));
        let got = single.evaluate(theta).expect("an evaluation");
        // Residuals first: relative to what they are made of.
        let residuals = [&double, &single].map(|engine| {
            engine.residuals("random", theta).expect("residuals")
        });
        let mut size: f64 = 1.0;
        for (n, x) in built.rows().enumerate() {
            for (i, residual) in case.residuals.iter().enumerate() {
                let own = residual.oracle(&built, &x, built.y[n]).size + 2.0;
                size = size.max(own);
                let error = (residuals[1][i][n] - residuals[0][i][n]).abs();
                prop_assert!(error <= 3e-5 * own, "residual {} at {:?}: {:e} of {}", i, x, error, own);
            }
        }
        let scale = gradient_size(&double, &built.params) * size;
        let error = difference(&got.gradient, &want.gradient, scale);
        prop_assert!(error < 3e-5, "gradient: {:e}", error);
    }

    /// (e), (f) Instruction sets, chunk sizes and threads agree to rounding.
    #[test]
    fn instruction_sets_and_chunks(case in case()) {
        let built = case.build();
        let theta = built.params.values();
        let reference = built.engine(Options::default().instructions(InstructionSet::Baseline));
        let want = reference.evaluate(theta).expect("an evaluation");
        let size = gradient_size(&reference, &built.params);
        for set in InstructionSet::available() {
            for chunk in [16, 32, 48, 64, 96, 112, 128] {
                let engine = built.engine(Options::default().instructions(set).chunk(chunk));
                let got = engine.evaluate(theta).expect("an evaluation");
                let error = difference(&[got.loss], &[want.loss], 0.0);
                prop_assert!(error < 1e-12, "loss, {} {}: {:e}", set.name(), chunk, error);
                let error = difference(&got.gradient, &want.gradient, size);
                prop_assert!(error < 1e-12, "gradient, {} {}: {:e}", set.name(), chunk, error);
            }
        }
    }

    /// Every way to derivatives gives the gradient of jets, and recomputation its bits.
    #[test]
    fn every_way_to_derivatives(case in case()) {
        let built = case.build();
        let theta = built.params.values();
        let jets = built.engine(Options::default());
        let want = jets.evaluate(theta).expect("an evaluation");
        let size = gradient_size(&jets, &built.params);
        for way in lowerings(3) {
            let options = Options::default().lowering(way);
            let got = built.engine(options.clone()).evaluate(theta).expect("an evaluation");
            let error = difference(&got.gradient, &want.gradient, size);
            prop_assert!(error < 1e-12, "gradient by {:?}: {:e}", way, error);
            // What is fastest may be another way with recomputation.
            if way == Lowering::Auto {
                continue;
            }
            let again = built.engine(options.recompute(true)).evaluate(theta).expect("the same");
            let bits = |g: &[f64]| g.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&again.gradient), bits(&got.gradient), "{:?}", way);
        }
    }

    /// (g) Gradients by condition add up to the gradient.
    #[test]
    fn gradients_add_up(case in case(), weights in [0.1..3.0, 0.1..3.0]) {
        let built = case.build();
        let point_weights: Vec<f64> = built.y.iter().map(|y| y.abs()).collect();
        let named = |name: &str| Condition::new(&built.equation, built.points.clone()).named(name);
        let conditions = [
            named("one").weight(weights[0]),
            named("two").weight(weights[1]).point_weights(&point_weights),
            named("three").energy(),
        ];
        let theta = built.params.values();
        let whole = Problem::new(&built.params, conditions.clone()).expect("a problem");
        let engine = Engine::new(&whole).expect("an engine");
        let evaluation = engine.evaluate(theta).expect("an evaluation");
        let parts = engine.gradients(theta).expect("gradients");
        let sum: Vec<f64> = (0..theta.len()).map(|i| parts.iter().map(|p| p[i]).sum()).collect();
        let size = parts.iter().flatten().fold(0.0, |m: f64, x| m.max(x.abs()));
        prop_assert!(difference(&sum, &evaluation.gradient, size) < 1e-14);
        prop_assert!(difference(&[evaluation.losses.iter().sum()], &[evaluation.loss], 1e-300) < 1e-15);
        for (i, condition) in conditions.into_iter().enumerate() {
            let alone = Problem::new(&built.params, [condition]).expect("a problem");
            let own = Engine::new(&alone).and_then(|e| e.evaluate(theta)).expect("an evaluation");
            prop_assert_eq!(own.loss, evaluation.losses[i]);
            prop_assert_eq!(&own.gradient, &parts[i]);
        }
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// (a) again: each number type of num-dual, for the network alone.
    #[test]
    fn network_on_every_number(case in case()) {
        let built = case.build();
        let (net, params) = (&built.net, &built.params);
        let names: Vec<String> = (0..case.dimension).map(|i| format!("x{i}")).collect();
        let last = case.dimension - 1;
        let equation = Equation::record_over("jets", params, &names, |x| {
            let u = net.at_all(x)[0];
            let (a, b) = (x[0], x[last]);
            let second = u.d(a).d(a);
            let mut all = vec![u, u.d(a), second, second.d(a), u.d(a).d(b), second.d(b).d(b)];
            all.push(second.d(a).d(a).d(b));
            all
        }).expect("an equation");
        let got = values(&equation, params, &built.points).expect("values");
        for (n, x) in built.rows().enumerate().take(5) {
            fn first<D: DualNum<Primitive = f64> + Copy>(
                net: &Mlp, params: &Parameters, x: &[f64], a: D, b: Option<D>,
            ) -> D {
                let mut point: Vec<D> = x.iter().map(|&x| D::from(x)).collect();
                point[0] = a;
                if let Some(b) = b {
                    let last = point.len() - 1;
                    point[last] = b;
                }
                net.eval(params, &point).expect("u")[0]
            }
            let (a, b) = (x[0], x[last]);
            let mut want = [f64::NAN; 7];
            let d = first(net, params, &x, Dual64::from_re(a).derivative(), None);
            (want[0], want[1]) = (d.re, d.eps);
            let d = first(net, params, &x, Dual3_64::from_re(a).derivative(), None);
            (want[2], want[3]) = (d.v2, d.v3);
            let d2 = first(net, params, &x, Dual2_64::from_re(a).derivative(), None);
            prop_assert!((d.v2 - d2.v2).abs() <= 1e-13 * (1.0 + d.v2.abs()));
            if last == 0 {
                // Nested: u_aa in the inner numbers, two or three more in the outer.
                let inner = Dual2::from_re(a).derivative();
                let nested = Dual2::<Dual2_64>::new(inner, 1.0.into(), 0.0.into());
                let d = first(net, params, &x, nested, None);
                (want[4], want[5]) = (d.v2.re, d.v2.v2);
                let nested = Dual::<Dual2<Dual2_64>>::new(nested, 1.0.into());
                want[6] = first(net, params, &x, nested, None).eps.v2.v2;
            } else {
                let d = first(
                    net, params, &x,
                    HyperDual64::from_re(a).derivative1(),
                    Some(HyperDual64::from_re(b).derivative2()),
                );
                want[4] = d.eps1eps2;
                // ∂_aa inside, ∂_bb outside; then one more ∂_a in a third.
                let inner = Dual2_64::from_re(a).derivative();
                let outer_a = Dual2::<Dual2_64>::from_re(inner);
                let outer_b = Dual2::<Dual2_64>::from_re(Dual2_64::from_re(b)).derivative();
                want[5] = first(net, params, &x, outer_a, Some(outer_b)).v2.v2;
                let inner = Dual2_64::from_re(a).derivative();
                let twice = Dual2::<Dual2_64>::new(inner, 1.0.into(), 0.0.into());
                let zero = Dual2::<Dual2_64>::from_re(0.0.into());
                let hyper_a = HyperDual::<Dual2<Dual2_64>>::new(twice, zero, zero, zero);
                let at_b = Dual2::<Dual2_64>::from_re(Dual2_64::from_re(b));
                let one = Dual2::<Dual2_64>::from_re(1.0.into());
                let hyper_b = HyperDual::<Dual2<Dual2_64>>::new(at_b, one, zero, zero);
                want[6] = first(net, params, &x, hyper_a, Some(hyper_b)).eps1.v2.v2;
            }
            let size = 1.0 + want.iter().map(|w| w.abs()).sum::<f64>();
            for (i, want) in want.iter().enumerate() {
                let error = (got[i][n] - want).abs() / size;
                prop_assert!(error < 1e-12, "derivative {}: got {:e}, want {:e}", i, got[i][n], want);
            }
        }
    }
}
