//! Random tapes over all operations, random networks and points: every way to the loss and
//! its gradient gives the same, and the gradient is that of the loss.
//!
//! `DUALTAPE_LONG=1 cargo test --release --test properties` tries 10,000 of each.

mod common;

use common::noise;
use dualtape::check::{Test, Verdict};
use dualtape::plane::Plane;
use dualtape::tape::{NodeId, Op, Tape};
use dualtape::{
    Architecture, Condition, Elemental, Engine, Equation, Error, Evaluation, Field, InstructionSet,
    Lowering, Mlp, Options, Parameters, Points, Problem, check_gradient, data, detach, select,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, BTreeSet};

fn config() -> ProptestConfig {
    let long = std::env::var("DUALTAPE_LONG").is_ok_and(|word| word == "1");
    ProptestConfig {
        cases: if long { 10_000 } else { 256 },
        max_global_rejects: 1_000_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// One instruction on a pool of values: what it does, on which of them, with which number.
#[derive(Debug, Clone)]
struct Step {
    what: u8,
    places: [prop::sample::Index; 3],
    number: f64,
}

/// A random program, network and points.
#[derive(Debug, Clone)]
struct Case {
    dimension: usize,
    hidden: Vec<(usize, usize)>,
    outputs: usize,
    program: Vec<Step>,
    residuals: usize,
    points: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let index = || any::<prop::sample::Index>();
    let step = (0..KINDS, [index(), index(), index()], -1.5..1.5_f64).prop_map(
        |(what, places, number)| Step {
            what,
            places,
            number,
        },
    );
    // Some with enough points for several threads.
    let points = prop_oneof![19 => 1..=40_usize, 1 => 1_500..=2_500_usize];
    (
        1..=3_usize,
        prop::collection::vec((1..=7_usize, 0..ACTIVATIONS.len()), 1..=3),
        1..=2_usize,
        prop::collection::vec(step, 1..=14),
        1..=3_usize,
        points,
        any::<u64>(),
    )
        .prop_map(
            |(dimension, hidden, outputs, program, residuals, points, seed)| Case {
                dimension,
                hidden,
                outputs,
                program,
                residuals,
                points,
                seed,
            },
        )
}

const ACTIVATIONS: [Elemental; 8] = [
    Elemental::Tanh,
    Elemental::Sin,
    Elemental::Sigmoid,
    Elemental::Softplus,
    Elemental::Silu,
    Elemental::Gelu,
    Elemental::Erf,
    Elemental::Atan,
];

/// A value of the pool, with what decides whether it may be differentiated.
#[derive(Clone, Copy)]
struct Value {
    field: Field,
    /// Depends on all coordinates, and on no data.
    smooth: bool,
    /// Derivatives that are nested in it.
    order: usize,
}

/// Kinds of steps.
const KINDS: u8 = 20;

impl Step {
    fn apply(&self, pool: &[Value], x: &[Field], net: &Mlp) -> Option<Value> {
        let [a, b, c] = self.places.map(|place| pool[place.index(pool.len())]);
        let two = |field: Field| Value {
            field,
            smooth: (a.smooth || b.smooth) && !(a.reads_data() || b.reads_data()),
            order: a.order.max(b.order),
        };
        let one = |field: Field| Value { field, ..a };
        let e = |elemental: Elemental| one(a.field.apply(elemental));
        let (f, g) = (a.field, b.field);
        let wave = f.sin();
        use Elemental::*;
        Some(match self.what {
            0 => two(f + g),
            1 => two(f - g * self.number),
            2 | 3 => two(f * g),
            4 => two(f / (g * g + 1.0)),
            5 => one(f * self.number + 0.3),
            6 => {
                let functions = [
                    Tanh, Sin, Cos, Atan, Sigmoid, Erf, Softplus, Silu, Gelu, LogSigmoid, Asinh,
                ];
                e(functions[self.places[1].index(functions.len())].clone())
            }
            7 => {
                let bounded = [
                    wave.exp(),
                    (f * f + 1.0).sqrt(),
                    (f * f + 1.0).ln(),
                    (f * f + 1.0).recip(),
                    (wave + 1.5).powf(1.5),
                    (wave + 2.0).cbrt(),
                    (wave * 0.5).tan(),
                    (wave * 0.5).asin(),
                    (wave * 0.5).acos(),
                    (wave * 0.5).atanh(),
                    wave.cosh(),
                    wave.sinh(),
                    wave.exp_m1(),
                    (wave + 1.5).ln_1p(),
                    (wave + 2.5).acosh(),
                    f.tanh().powi(3),
                    (wave + 2.0).powi(-2),
                ];
                one(bounded[self.places[1].index(bounded.len())])
            }
            8..=11 if a.smooth && a.order < 4 => Value {
                field: f.d(x[self.places[1].index(x.len())]),
                order: a.order + 1,
                ..a
            },
            12 if a.smooth && a.order < 3 => Value {
                field: f.laplacian(x),
                order: a.order + 2,
                ..a
            },
            13 => Value {
                field: select(x[self.places[2].index(x.len())].above(self.number), f, g),
                smooth: a.smooth && b.smooth,
                order: a.order.max(b.order),
            },
            14 | 15 => {
                // The network once more, at other points.
                let inputs: Vec<Field> = (0..x.len())
                    .map(|i| if i == 0 { f.tanh() } else { x[i] + self.number })
                    .collect();
                Value {
                    field: net.at_all(&inputs)[0],
                    smooth: a.smooth,
                    order: a.order,
                }
            }
            16 => two(f.tanh() * g.tanh()),
            17 => {
                let all = [a, b, c];
                Value {
                    field: all.iter().map(|v| v.field).sum(),
                    smooth: all.iter().any(|v| v.smooth) && !all.iter().any(Value::reads_data),
                    order: all.iter().map(|v| v.order).max()?,
                }
            }
            18 => one(Field::from(self.number) - f),
            _ => return None,
        })
    }
}

impl Value {
    /// Marked by an order that no derivative has.
    fn reads_data(&self) -> bool {
        self.order >= DATA
    }
}

const DATA: usize = 100;

struct Built {
    params: Parameters,
    equation: Equation,
    problem: Problem,
}

impl Case {
    /// `None` where the program is no equation, by an error that names why.
    fn build(&self, held: bool) -> Result<Built, Error> {
        let mut params = Parameters::new();
        let mut widths = vec![self.dimension];
        widths.extend(self.hidden.iter().map(|(width, _)| *width));
        widths.push(self.outputs);
        let activations = self.hidden.iter().map(|(_, a)| ACTIVATIONS[*a].clone());
        let architecture = Architecture::mlp(&widths).activations(activations);
        let net = params.network("u", &architecture)?;
        let k = params.coefficient("k", 0.0)?;
        let mut noise = noise(self.seed);
        let mut next = || noise.next().unwrap_or_default();
        params.values_mut().fill_with(&mut next);
        let names: Vec<String> = (0..self.dimension).map(|i| format!("x{i}")).collect();
        let equation = Equation::record_over("random", &params, &names, |x| {
            let plain = |field: Field| Value {
                field,
                smooth: false,
                order: 0,
            };
            let outputs = net.at_all(x);
            let mut pool: Vec<Value> = outputs
                .iter()
                .map(|&field| Value {
                    field,
                    smooth: true,
                    order: 0,
                })
                .collect();
            pool.extend(x.iter().map(|&x| plain(x)));
            pool.extend([plain(k.field()), plain(Field::from(0.7))]);
            pool.push(Value {
                order: DATA,
                ..plain(data("y"))
            });
            for step in &self.program {
                if let Some(value) = step.apply(&pool, x, &net) {
                    pool.push(value);
                    if held && step.what == 5 {
                        pool.push(Value {
                            field: detach(value.field),
                            ..value
                        });
                    }
                }
            }
            let mut residuals: Vec<Field> = pool
                .iter()
                .rev()
                .take(self.residuals)
                .map(|value| value.field)
                .collect();
            // Everything is touched.
            let rest: Field = outputs.iter().chain(x).copied().sum();
            residuals[0] += rest * 0.3 + k.field() - data("y");
            residuals
                .iter_mut()
                .for_each(|residual| *residual += rest * 0.1);
            residuals
        })?;
        let mut list = || (0..self.points).map(|_| next()).collect::<Vec<f64>>();
        let coordinates = (0..self.dimension).map(|_| list()).collect();
        let y = list();
        let points = Points::new(coordinates)?.with_column("y", &y)?;
        let condition = Condition::new(&equation, points).weight(1.5);
        let problem = Problem::new(&params, [condition])?;
        Ok(Built {
            params,
            equation,
            problem,
        })
    }
}

/// What the way to a number must not change.
struct Scale {
    loss: f64,
    gradient: f64,
}

impl Built {
    fn evaluate(&self, options: &Options) -> Result<Evaluation, Error> {
        Engine::with(&self.problem, options)?.evaluate(self.params.values())
    }

    /// Σ |r J|: what rounding errors are measured by.
    fn scale(&self, evaluation: &Evaluation) -> Result<Scale, Error> {
        let mut sums = vec![0.0_f64; self.params.len()];
        Engine::new(&self.problem)?.rows("random", self.params.values(), |rows| {
            for (i, sum) in sums.iter_mut().enumerate() {
                for (r, j) in rows.residuals.iter().zip(rows.parameter(i)) {
                    *sum += 2.0 * (r.abs() + 1e-3) * j.abs();
                }
            }
        })?;
        Ok(Scale {
            loss: evaluation.loss.max(1e-3),
            gradient: sums.iter().fold(1e-3, |m: f64, x| m.max(*x)),
        })
    }
}

/// The larger of the differences of loss and gradient, scaled.
fn difference(a: &Evaluation, b: &Evaluation, scale: &Scale) -> f64 {
    let pairs = a.gradient.iter().zip(&b.gradient);
    let gradient = pairs.fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()));
    ((a.loss - b.loss).abs() / scale.loss).max(gradient / scale.gradient)
}

fn bits(evaluation: &Evaluation) -> Vec<u64> {
    let numbers = evaluation.gradient.iter().chain([&evaluation.loss]);
    numbers.map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(config())]

    /// Threads change no bit; chunks and instruction sets nothing beyond rounding.
    #[test]
    fn every_way_gives_the_same(case in case()) {
        // Not an equation, by a named error: another time.
        let Ok(built) = case.build(true) else { return Err(TestCaseError::reject("no equation")) };
        let Ok(want) = built.evaluate(&Options::default().chunk(32)) else {
            return Err(TestCaseError::reject("not finite"));
        };
        let scale = built.scale(&want)?;
        prop_assume!(want.loss < 1e12 && scale.gradient < 1e12);
        for threads in 1..=4 {
            let got = built.evaluate(&Options::default().chunk(32).threads(threads))?;
            prop_assert_eq!(bits(&got), bits(&want), "{} threads", threads);
        }
        for set in InstructionSet::available() {
            for chunk in [16, 48, 64, 128] {
                let got = built.evaluate(&Options::default().instructions(set).chunk(chunk))?;
                let error = difference(&got, &want, &scale);
                prop_assert!(error < 1e-11, "{}, {} a chunk: {:e}", set.name(), chunk, error);
            }
        }
        for lowering in [Lowering::NestedReverse, Lowering::Partial { inner: 1 }, Lowering::Partial { inner: 2 }, Lowering::Auto, Lowering::Jets] {
            let options = Options::default().chunk(32).lowering(lowering);
            let got = match built.evaluate(&options) {
                Err(Error::LoweringTooLarge { .. }) => continue,
                got => got?,
            };
            let error = difference(&got, &want, &scale);
            prop_assert!(error < 1e-11, "{:?}: {:e}", lowering, error);
            let again = built.evaluate(&options.recompute(true))?;
            if lowering != Lowering::Auto {
                prop_assert_eq!(bits(&again), bits(&got), "{:?} recomputed", lowering);
            }
        }
        // Gauss-Newton rows are another sweep, and products with them two others.
        let engine = Engine::new(&built.problem)?;
        let theta = built.params.values();
        let mut rows = Evaluation { loss: 0.0, ..want.clone() };
        rows.gradient.fill(0.0);
        let v: Vec<f64> = (0..theta.len()).map(|i| (1.0 + i as f64).sin()).collect();
        let mut along: Vec<f64> = Vec::new();
        let mut product = vec![0.0; theta.len()];
        let (mut size, mut size_of_product) = (1e-3_f64, 1e-3_f64);
        engine.rows("random", theta, |block| {
            rows.loss += block.residuals.iter().map(|r| r * r).sum::<f64>();
            for point in 0..block.residuals.len() {
                let row: Vec<f64> = (0..theta.len()).map(|i| block.parameter(i)[point]).collect();
                let s: f64 = row.iter().zip(&v).map(|(j, v)| j * v).sum();
                let most: f64 = row.iter().zip(&v).map(|(j, v)| (j * v).abs()).sum();
                size = size.max(most);
                for (sum, j) in product.iter_mut().zip(&row) {
                    *sum += j * s;
                    size_of_product = size_of_product.max(j.abs() * most);
                }
                along.push(s);
            }
            for (i, sum) in rows.gradient.iter_mut().enumerate() {
                let pairs = block.residuals.iter().zip(block.parameter(i));
                *sum += pairs.map(|(r, j)| 2.0 * r * j).sum::<f64>();
            }
        })?;
        let error = difference(&rows, &want, &scale);
        prop_assert!(error < 1e-11, "rows: {:e}", error);
        let farthest = |a: &[f64], b: &[f64]| {
            a.iter().zip(b).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()))
        };
        for lowering in [Lowering::Jets, Lowering::NestedReverse] {
            let engine = match Engine::with(&built.problem, &Options::default().lowering(lowering)) {
                Err(Error::LoweringTooLarge { .. }) => continue,
                engine => engine?,
            };
            let got = match engine.along(theta, &v) {
                Err(Error::LoweringTooLarge { .. }) => continue,
                got => got?,
            };
            prop_assert_eq!(got.len(), along.len());
            let error = farthest(&got, &along) / size;
            prop_assert!(error < 1e-11, "J v, {:?}: {:e}", lowering, error);
            let error = farthest(&engine.gauss_newton(theta, &v)?, &product) / size_of_product;
            prop_assert!(error < 1e-11, "Jt J v, {:?}: {:e}", lowering, error);
        }
    }

    /// Central differences converge to the gradient at their order, and nested numbers of
    /// num-dual give it to rounding.
    #[test]
    fn the_gradient_is_that_of_the_loss(mut case in case()) {
        case.points = case.points.min(12);
        let Ok(built) = case.build(false) else { return Err(TestCaseError::reject("no equation")) };
        let finite = built.evaluate(&Options::default()).is_ok_and(|e| e.loss < 1e9);
        prop_assume!(finite);
        let report = check_gradient(&built.problem, built.params.values());
        prop_assert!(report.tests(Test::Remainder) > 0);
        for finding in report.doubts() {
            prop_assert!(finding.verdict == Verdict::Unresolved, "{}", report);
        }
    }

    /// A node holds a plane exactly if it can be non-zero and somebody reads it.
    #[test]
    fn planes_are_those_that_matter(case in case()) {
        let Ok(built) = case.build(true) else { return Err(TestCaseError::reject("no equation")) };
        let tape = built.equation.tape();
        let simple = |op: &Op| !matches!(op, Op::Laplacian(_));
        prop_assume!(tape.nodes().iter().all(|node| simple(&node.op)));
        let held = tape.infer()?;
        let matter = reachable(tape);
        for (id, held) in held.iter().enumerate() {
            let own: BTreeSet<Vec<u16>> = held.planes.iter().map(multi_index).collect();
            let want: BTreeSet<Vec<u16>> = matter.get(&id).cloned().unwrap_or_default();
            // What is the same at each point needs no room.
            let constant = held.constant.iter().flatten().flatten();
            let mut known: BTreeSet<Vec<u16>> =
                constant.map(|(plane, _)| multi_index(plane)).collect();
            if held.numbers.is_some() {
                known.insert(Vec::new());
            }
            let missing = want.iter().find(|alpha| !own.contains(*alpha) && !known.contains(*alpha));
            let useless = own.difference(&want).next();
            prop_assert!(
                missing.is_none() && useless.is_none(),
                "node {}, {}: {:?} is missing, {:?} is useless\n{}",
                id, tape.nodes()[id].op.name(), missing, useless, tape.listing()?
            );
        }
    }
}

/// A plane as a sorted list of coordinates.
fn multi_index(plane: &Plane) -> Vec<u16> {
    match plane {
        Plane::Partial(partial) => {
            let pairs = partial.iter();
            pairs
                .flat_map(|(c, order)| std::iter::repeat_n(c, order.into()))
                .collect()
        }
        Plane::Laplacian(_) => unreachable!("no Laplacians here"),
    }
}

/// Highest order of a plane that these programs ask for.
const MOST: usize = 4;

/// All ways to split a multi-index in two.
fn splits(alpha: &[u16]) -> BTreeSet<(Vec<u16>, Vec<u16>)> {
    let masks = 0..1_u32 << alpha.len();
    masks
        .map(|mask| {
            let part = |bit: u32| {
                let chosen = alpha
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| mask >> i & 1 == bit);
                chosen.map(|(_, c)| *c).collect::<Vec<u16>>()
            };
            (part(1), part(0))
        })
        .collect()
}

/// Whether a multi-index is a sum of parts, none empty, all from a set.
fn composed(alpha: &[u16], parts: &BTreeSet<Vec<u16>>) -> bool {
    alpha.is_empty()
        || splits(alpha).iter().any(|(first, rest)| {
            !first.is_empty() && parts.contains(first) && composed(rest, parts)
        })
}

/// The planes that matter, by brute force: a search from the residuals over pairs of node and
/// plane, among those that can be non-zero.
fn reachable(tape: &Tape) -> BTreeMap<NodeId, BTreeSet<Vec<u16>>> {
    let coordinates = tape.coordinates().len() as u16;
    // Every multi-index up to the highest order.
    let mut all: BTreeSet<Vec<u16>> = BTreeSet::from([Vec::new()]);
    for _ in 0..MOST {
        let more: Vec<Vec<u16>> = all
            .iter()
            .flat_map(|alpha| (0..coordinates).map(move |c| sum(alpha, c)))
            .collect();
        all.extend(more);
    }
    let mut support: Vec<BTreeSet<Vec<u16>>> = Vec::new();
    for node in tape.nodes() {
        let of = |place: usize| &support[node.inputs[place]];
        let value = || BTreeSet::from([Vec::new()]);
        let union = || {
            node.inputs
                .iter()
                .flat_map(|&input| support[input].clone())
                .collect()
        };
        support.push(match &node.op {
            Op::Coordinate(c) => BTreeSet::from([Vec::new(), vec![*c]]),
            Op::Data(_) | Op::Constant(_) | Op::Parameter(_) => value(),
            Op::Linear { .. }
            | Op::Stack
            | Op::Row(_)
            | Op::Broadcast
            | Op::Detach
            | Op::Affine { .. } => {
                let mut own: BTreeSet<Vec<u16>> = union();
                own.insert(Vec::new());
                own
            }
            Op::Select { .. } => of(1).union(of(2)).cloned().collect(),
            Op::Derivative(c) => all
                .iter()
                .filter(|alpha| of(0).contains(&sum(alpha, *c)))
                .cloned()
                .collect(),
            Op::Product => all
                .iter()
                .filter(|alpha| {
                    splits(alpha)
                        .iter()
                        .any(|(a, b)| of(0).contains(a) && of(1).contains(b))
                })
                .cloned()
                .collect(),
            Op::Elemental(_) => all
                .iter()
                .filter(|alpha| composed(alpha, of(0)))
                .cloned()
                .collect(),
            other => unreachable!("{other:?}"),
        });
    }
    let mut seen: BTreeMap<NodeId, BTreeSet<Vec<u16>>> = BTreeMap::new();
    let mut open: Vec<(NodeId, Vec<u16>)> = tape
        .roots()
        .iter()
        .map(|&root| (root, Vec::new()))
        .collect();
    while let Some((id, alpha)) = open.pop() {
        if !support[id].contains(&alpha) || !seen.entry(id).or_default().insert(alpha.clone()) {
            continue;
        }
        let node = &tape.nodes()[id];
        let input = |place: usize| node.inputs[place];
        match &node.op {
            Op::Derivative(c) => open.push((input(0), sum(&alpha, *c))),
            Op::Product => {
                for (a, b) in splits(&alpha) {
                    if support[input(0)].contains(&a) && support[input(1)].contains(&b) {
                        open.extend([(input(0), a), (input(1), b)]);
                    }
                }
            }
            Op::Elemental(_) => {
                open.push((input(0), Vec::new()));
                let own = &support[input(0)];
                for (part, rest) in splits(&alpha) {
                    if !part.is_empty() && own.contains(&part) && composed(&rest, own) {
                        open.push((input(0), part));
                    }
                }
            }
            Op::Select { .. } => {
                open.extend([
                    (input(0), Vec::new()),
                    (input(1), alpha.clone()),
                    (input(2), alpha),
                ]);
            }
            _ => open.extend(node.inputs.iter().map(|&input| (input, alpha.clone()))),
        }
    }
    seen
}

fn sum(alpha: &[u16], c: u16) -> Vec<u16> {
    let mut sum = [alpha, &[c]].concat();
    sum.sort_unstable();
    sum
}
