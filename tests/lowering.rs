//! Nested reverse mode beside jets: the same numbers by every split, counted nodes, and
//! recomputation to the bit.

mod common;

use common::{assert_close, lowerings};
use dualtape::record::Residuals;
use dualtape::{
    Activation, Architecture, Condition, Counts, Elemental, Engine, Equation, Error, Evaluation,
    Field, Lowering, Options, Parameters, Points, Precision, Problem, Smoothness, data, detach,
    select,
};
use std::f64::consts::PI;
use std::sync::Mutex;

/// Points in ±1, of a low-discrepancy kind.
fn spread<const D: usize>(n: usize) -> Vec<[f64; D]> {
    let point = |i: usize| {
        std::array::from_fn(|d| {
            let step = [0.754_877_666, 0.569_840_291, 0.430_159_709, 0.324_717_957][d % 4];
            ((i + 1) as f64 * step + d as f64 * 0.13).fract() * 2.0 - 1.0
        })
    };
    (0..n).map(point).collect()
}

fn bits(evaluation: &Evaluation) -> Vec<u64> {
    let all = evaluation.losses.iter().chain(&evaluation.gradient);
    all.map(|x| x.to_bits()).collect()
}

/// Residuals, loss, gradient and Gauss-Newton rows of an equation, by all ways.
#[track_caller]
fn agree<const D: usize, R: Residuals>(
    params: &Parameters,
    names: [&str; D],
    order: usize,
    closure: impl FnOnce([Field; D]) -> R,
) {
    let equation = Equation::record("eq", params, names, closure).expect("an equation");
    let rows = spread(37);
    let column: Vec<f64> = rows.iter().map(|row: &[f64; D]| row[0].cos()).collect();
    let points = Points::from_rows(&rows)
        .and_then(|p| p.with_column("y", &column))
        .expect("points");
    let problem = Problem::new(params, [Condition::new(&equation, points)]).expect("a problem");
    let theta = params.values();
    let all = |lowering: Lowering, recompute: bool| {
        let options = Options::default().lowering(lowering).recompute(recompute);
        let engine = Engine::with(&problem, &options).expect("an engine");
        let evaluation = engine.evaluate(theta).expect("an evaluation");
        assert_eq!(engine.loss(theta), Ok(evaluation.loss));
        let residuals = engine.residuals("eq", theta).expect("residuals").concat();
        let mut jacobian = vec![0.0; theta.len()];
        engine
            .rows("eq", theta, |rows| {
                for (i, sum) in jacobian.iter_mut().enumerate() {
                    *sum += rows
                        .parameter(i)
                        .iter()
                        .zip(rows.residuals)
                        .map(|(j, r)| 2.0 * j * r)
                        .sum::<f64>();
                }
            })
            .expect("rows");
        assert_close("rows", &jacobian, &evaluation.gradient, 1e-12);
        (evaluation, residuals)
    };
    let (jets, residuals) = all(Lowering::Jets, false);
    assert!(jets.gradient.iter().any(|g| *g != 0.0), "a gradient");
    for lowering in lowerings(order) {
        let what = |quantity: &str| format!("{quantity} by {lowering:?}");
        let (got, values) = all(lowering, false);
        assert_close(&what("residuals"), &values, &residuals, 1e-12);
        assert_close(&what("loss"), &[got.loss], &[jets.loss], 1e-12);
        assert_close(&what("gradient"), &got.gradient, &jets.gradient, 1e-12);
        let (again, _) = all(lowering, true);
        if lowering == Lowering::Auto {
            // What is fastest may be another way with recomputation.
            assert_close(&what("recomputed"), &again.gradient, &got.gradient, 1e-12);
        } else {
            assert_eq!(bits(&again), bits(&got), "{}", what("recomputed"));
        }
        // A tape without derivatives up to the order.
        let tape = equation.lowered(lowering).expect("a lowered equation");
        let listing = tape.tape().listing().expect("a listing");
        if lowering == Lowering::NestedReverse {
            assert!(
                !listing.contains("= derivative") && !listing.contains("= Δ"),
                "{listing}"
            );
        }
    }
}

/// A network with weights and biases that are not small.
fn net(params: &mut Parameters, architecture: &Architecture) -> dualtape::Mlp {
    let name = format!("net{}", params.len());
    let net = params.network(&name, architecture).expect("a network");
    for (i, x) in params.values_mut().iter_mut().enumerate() {
        *x = 0.9 * (1.0 + 1.7 * i as f64).sin();
    }
    net
}

fn mlp(params: &mut Parameters, widths: &[usize], f: Elemental) -> dualtape::Mlp {
    net(params, &Architecture::mlp(widths).activation(f))
}

#[test]
fn equations_of_practice() {
    let mut params = Parameters::new();
    let u = mlp(&mut params, &[2, 6, 5, 1], Elemental::Tanh);
    let k = params.coefficient("k", 0.3).expect("k");
    agree(&params, ["t", "x"], 2, |[t, x]| {
        let [u] = u.at(&[t, x]);
        // Divergence form, a law by num-dual, data.
        let strain = u.d(x);
        let energy =
            |e: num_dual::Dual<Field>| e * e * e * num_dual::Dual::from_re(k.field()) + e * e;
        let (_, stress) = num_dual::first_derivative(energy, strain);
        u.d(t) - stress.d(x) - data("y")
    });
    agree(&params, ["t", "x"], 4, |[t, x]| {
        // Hard constraints and an embedding; the order of the coordinates is no matter.
        let [n] = u.at(&[t, (PI * x).cos()]);
        let u = t * (1.0 - x * x) * n - (PI * x).sin();
        let mixed = u.d(x).d(t) - u.d(t).d(x);
        [
            u.d(t) + 6.0 * u * u.d(x) + u.d(x).d(x).d(x) + k.field(),
            u.d(x).d(x).d(x).d(x) + u.d(t).d(x).d(t).d(x) + mixed,
        ]
    });
    agree(&params, ["x", "y"], 4, |[x, y]| {
        let [u] = u.at(&[x, y]);
        let laplacian = u.laplacian(&[x, y]);
        [
            k.field() * laplacian.laplacian(&[x, y]) + (u * laplacian).d(y),
            u.d(x) * u.d(x) + u.d(y) * u.d(y),
        ]
    });
}

#[test]
fn several_outputs_and_networks_in_networks() {
    let mut params = Parameters::new();
    let flow = mlp(&mut params, &[3, 7, 3], Elemental::Softplus);
    let outer = mlp(&mut params, &[2, 4, 1], Elemental::Silu);
    agree(&params, ["t", "x", "y"], 2, |[t, x, y]| {
        let [u, v, p] = flow.at(&[t, x, y]);
        let momentum = |w: Field, px: Field| {
            w.d(t) + u * w.d(x) + v * w.d(y) + px - 0.02 * w.laplacian(&[x, y])
        };
        let [viscosity] = outer.at(&[u, y]);
        [
            momentum(u, p.d(x)),
            momentum(v, p.d(y)) * viscosity,
            u.d(x) + v.d(y) + viscosity.d(y),
        ]
    });
}

#[test]
fn every_elemental_at_every_order() {
    use Elemental as E;
    let cubic = Elemental::custom("cubic", Smoothness::Unlimited, |z, c| {
        c.fill(0.0);
        for (c, x) in c.iter_mut().zip([z * z * z, 3.0 * z * z, 3.0 * z, 1.0]) {
            *c = x;
        }
    });
    let bounded = [
        E::Tanh,
        E::Sigmoid,
        E::LogSigmoid,
        E::Softplus,
        E::Silu,
        E::Gelu,
        E::Sin,
        E::Cos,
        E::Exp,
        E::ExpM1,
        E::Sinh,
        E::Cosh,
        E::Atan,
        E::Asinh,
        E::Erf,
        E::Powi(0),
        E::Powi(1),
        E::Powi(2),
        E::Powi(3),
        E::Powi(5),
        cubic,
    ];
    let positive = [
        E::Ln,
        E::Ln1p,
        E::Sqrt,
        E::Cbrt,
        E::Recip,
        E::Powi(-2),
        E::Powf(1.5),
        E::Powf(3.0),
        E::Abs,
    ];
    let narrow = [E::Tan, E::Asin, E::Acos, E::Atanh];
    let mut params = Parameters::new();
    let [a, b] = ["a", "b"].map(|name| params.coefficient(name, 0.4).expect(name));
    params.values_mut().copy_from_slice(&[0.7, -0.3]);
    let check = |f: Elemental, argument: &dyn Fn(Field) -> Field| {
        let smooth = f.smoothness().allows(2);
        agree(&params, ["x"], if smooth { 4 } else { 1 }, |[x]| {
            let z = argument((a.field() * x).sin() * b.field());
            let mut u = z.apply(f) + a.field() * b.field() * x;
            for _ in 0..if smooth { 4 } else { 1 } {
                u = u.d(x) + x * a.field();
            }
            u + b.field() * x
        });
    };
    bounded.into_iter().for_each(|f| check(f, &|z| 2.0 * z));
    positive.into_iter().for_each(|f| check(f, &|z| z + 1.5));
    narrow.into_iter().for_each(|f| check(f, &|z| z));
    check(E::Acosh, &|z| z + 2.5);
    check(E::Relu, &|z| z);
}

#[test]
fn recorded_activations_of_many_rows() {
    for kind in 0..3 {
        let mut params = Parameters::new();
        let slope = params.coefficient("slope", 0.0).expect("slope");
        let own = slope.clone();
        let activation = match kind {
            0 => Activation::recorded("adaptive", move |z| (own.field() * z).tanh() * z),
            // A kink in one row and not in another, NaN where the branch is not taken.
            1 => Activation::recorded("branched", move |z| {
                let root = (1.0 + z.sqrt() * own.field() * own.field()).ln();
                select(z.above(0.0), root, z * z.exp())
            }),
            // Detached in each row.
            _ => Activation::recorded("frozen", |z| detach(z.sin()) * z + z),
        };
        let architecture = Architecture::mlp(&[2, 4, 3, 1]).activation(activation);
        let u = net(&mut params, &architecture);
        agree(&params, ["x", "y"], 2, |[x, y]| {
            let [u] = u.at(&[x, y]);
            u.d(x).d(y) + u * u.d(x) + u.d(y).d(y) * slope.field()
        });
    }
    // A derivative of all rows at once, inside of the network.
    static COORDINATE: Mutex<Option<Field>> = Mutex::new(None);
    let inner = Activation::recorded("derivative", |z| {
        let x = COORDINATE.lock().expect("no panic").expect("a coordinate");
        (z.tanh().d(x) + z).sin()
    });
    let mut params = Parameters::new();
    let u = net(
        &mut params,
        &Architecture::mlp(&[2, 3, 1]).activation(inner),
    );
    agree(&params, ["x", "y"], 3, |[x, y]| {
        *COORDINATE.lock().expect("no panic") = Some(x);
        let [u] = u.at(&[x, y]);
        u.d(y).d(x) + u.d(y)
    });
}

#[test]
fn detached_values_differentiate_in_the_coordinates_only() {
    let mut params = Parameters::new();
    let u = mlp(&mut params, &[2, 5, 1], Elemental::Tanh);
    let k = params.coefficient("k", 0.8).expect("k");
    agree(&params, ["t", "x"], 3, |[t, x]| {
        let [u] = u.at(&[t, x]);
        let frozen = detach(u * k.field() + x * t);
        let twice = detach(detach(u.d(x)) * u);
        [
            u.d(t) + (frozen * u).d(x).d(x) + detach(u.d(x)).d(x) * u,
            (frozen.sin() * k.field()).d(x).d(t).d(x) + twice.d(x).d(t),
        ]
    });
}

#[test]
fn branches_not_taken_send_nothing() {
    let mut params = Parameters::new();
    let a = params.coefficient("a", 2.0).expect("a");
    let inner = mlp(&mut params, &[1, 4, 1], Elemental::Tanh);
    agree(&params, ["x", "y"], 3, |[x, y]| {
        let root = (a.field() * a.field() * x + 1e-3).sqrt();
        let [inside] = inner.at(&[root]);
        let [outside] = inner.at(&[x * y]);
        // A branch in a branch, and a value that both read.
        let deep = select(
            y.above(0.0),
            (y * a.field() * a.field()).ln() * inside,
            inside + y,
        );
        let f = select(x.above(0.0), deep * root, outside * a.field() * y);
        f.d(x).d(y).d(x) + f.d(y) + f * f.d(x)
    });
    agree(&params, ["x", "y"], 2, |[x, y]| {
        let [u] = inner.at(&[x]);
        (u * a.field() + y).atan2(x * y + 0.3 * u).d(x).d(y) + (u * y).relu()
    });
    // A kink is no trouble where it is not differentiated twice.
    agree(&params, ["x", "y"], 2, |[x, y]| {
        let [u] = inner.at(&[x]);
        ((y * a.field()).relu() * u).d(x).d(y) + ((y * a.field()).abs() * u).d(x).d(x)
    });
}

#[test]
fn derivatives_that_vanish() {
    let mut params = Parameters::new();
    let a = params.coefficient("a", 2.0).expect("a");
    let u = mlp(&mut params, &[1, 3, 1], Elemental::Tanh);
    // After one sweep nothing depends on t any more, after two nothing on x.
    agree(&params, ["t", "x"], 3, |[t, x]| {
        let [u] = u.at(&[x]);
        let line = 3.0 * x + t * u;
        [
            line.d(t) + a.field() * line.d(x) * t,
            line.d(t).d(t) + (x * x * a.field()).d(x).d(x).d(x) + a.field() * x,
            (x * a.field()).d(x).d(x) + line.d(t).d(x).d(x) * 0.5 + (t * t).laplacian(&[t]),
        ]
    });
    // A residual that is a number.
    let params = Parameters::new();
    let equation = Equation::record("three", &params, ["x"], |[x]| (3.0 * x).d(x));
    let lowered = equation
        .and_then(|e| e.lowered(Lowering::NestedReverse))
        .expect("a lowered equation");
    let points = Points::from_rows(&[[1.0], [2.0]]).expect("points");
    let problem = Problem::new(&params, [Condition::new(&lowered, points)]);
    let engine = problem.and_then(|p| Engine::new(&p)).expect("an engine");
    assert_eq!(engine.loss(&[]), Ok(9.0));
}

#[test]
fn mistakes_are_told_in_the_words_of_the_recording() {
    let mut params = Parameters::new();
    let a = params.coefficient("a", 1.0).expect("a");
    let equation = Equation::record("norm", &params, ["x", "y"], |[x, y]| {
        a.field() * (x * x + y * y).sqrt().d(x)
    })
    .expect("an equation");
    let points = Points::from_rows(&[[3.0, 4.0], [0.0, 0.0]]).expect("points");
    let problem = Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
    let errors = lowerings(1).into_iter().map(|lowering| {
        let options = Options::default().lowering(lowering);
        let engine = Engine::with(&problem, &options).expect("an engine");
        let error = engine
            .evaluate(params.values())
            .expect_err("NaN at the origin");
        assert!(
            matches!(&error, Error::NonFinite { point: 1, node, .. } if node == "sqrt"),
            "{error}"
        );
        error.to_string()
    });
    let errors: Vec<String> = errors.collect();
    assert!(errors.windows(2).all(|pair| pair[0] == pair[1]));
    // Smoothness is checked once, where the equation is recorded.
    let kink = Equation::record("kink", &params, ["x"], |[x]| {
        (a.field() * x).relu().d(x).d(x)
    });
    assert!(matches!(kink, Err(Error::NotSmooth { .. })));
}

#[test]
fn single_precision() {
    let mut params = Parameters::new();
    let u = mlp(&mut params, &[2, 6, 5, 1], Elemental::Tanh);
    let equation = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let [u] = u.at(&[t, x]);
        u.d(t) + u * u.d(x) - 0.1 * u.d(x).d(x)
    })
    .expect("an equation");
    let points = Points::from_rows(&spread::<2>(100)).expect("points");
    let problem = Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
    let evaluate = |options: &Options| {
        let engine = Engine::with(&problem, options).expect("an engine");
        engine.evaluate(params.values()).expect("an evaluation")
    };
    let want = evaluate(&Options::default());
    for lowering in lowerings(2) {
        let options = Options::default()
            .lowering(lowering)
            .precision(Precision::Single);
        let got = evaluate(&options);
        assert_close("gradient", &got.gradient, &want.gradient, 1e-5);
        let again = evaluate(&options.recompute(true));
        assert_eq!(bits(&again), bits(&got), "{lowering:?}");
    }
}

/// Nodes of Graph 1, Graph 2, … of an equation.
fn graphs(equation: &Equation, lowering: Lowering) -> Vec<usize> {
    Counts::of(&equation.lowered(lowering).expect("a lowered equation")).nodes
}

fn stacked(order: usize) -> Equation {
    let mut params = Parameters::new();
    let y = mlp(&mut params, &[1, 3, 3, 1], Elemental::Tanh);
    Equation::record("y", &params, ["t"], |[t]| {
        let [mut y] = y.at(&[t]);
        for _ in 0..order {
            y = y.d(t);
        }
        y
    })
    .expect("an equation")
}

#[test]
fn nodes_by_graph() {
    let mut params = Parameters::new();
    let y = mlp(&mut params, &[1, 3, 3, 1], Elemental::Tanh);
    let ode = Equation::record("ode", &params, ["t"], |[t]| {
        let [y] = y.at(&[t]);
        y.d(t) + y
    })
    .expect("an equation");
    assert_eq!(graphs(&ode, Lowering::Jets), [8]);
    assert_eq!(graphs(&ode, Lowering::NestedReverse), [6, 8]);
    let mut params = Parameters::new();
    let u = mlp(&mut params, &[2, 64, 64, 64, 64, 1], Elemental::Tanh);
    let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let [u] = u.at(&[t, x]);
        u.d(t) + u * u.d(x) - 0.01 * u.d(x).d(x)
    })
    .expect("an equation");
    assert_eq!(graphs(&burgers, Lowering::Jets), [19]);
    assert_eq!(graphs(&burgers, Lowering::NestedReverse), [12, 17, 32]);
    assert_eq!(graphs(&burgers, Lowering::Partial { inner: 1 }), [12, 20]);
    // y to y'''' of the paper's network.
    let nested: Vec<usize> = (0..=4)
        .map(|k| graphs(&stacked(k), Lowering::NestedReverse).iter().sum())
        .collect();
    assert_eq!(nested, [6, 11, 22, 41, 73]);
    let jets: Vec<usize> = (0..=4)
        .map(|k| graphs(&stacked(k), Lowering::Jets).iter().sum())
        .collect();
    assert_eq!(jets, [6, 7, 8, 9, 10]);
}

#[test]
fn adjoints_of_a_sweep_are_known() {
    let equation = stacked(2)
        .lowered(Lowering::NestedReverse)
        .expect("a lowered equation");
    let tape = equation.tape();
    let [first, second] = tape.sweeps() else {
        panic!("two sweeps: {:?}", tape.sweeps());
    };
    assert_eq!((first.graph, second.graph), (2, 3));
    // ŷ itself, its two layers, t.
    let seed = first.adjoints[0];
    assert_eq!((seed.of, seed.node, seed.factor), (first.output, None, 1.0));
    assert_eq!(tape.nodes()[first.output].graph, 1);
    assert_eq!(tape.nodes()[second.output].graph, 2);
    // The second sweep starts where the first ended, and ends at the residual.
    assert_eq!(
        first.adjoints.last().and_then(|a| a.node),
        Some(second.output)
    );
    assert_eq!(
        second.adjoints.last().and_then(|a| a.node),
        Some(tape.roots()[0])
    );
    for sweep in tape.sweeps() {
        for adjoint in &sweep.adjoints {
            assert!(
                adjoint
                    .node
                    .is_none_or(|node| tape.nodes()[node].rows == tape.nodes()[adjoint.of].rows)
            );
            assert!(tape.nodes()[adjoint.of].graph < sweep.graph);
        }
    }
    // Jets have no second graph.
    assert!(stacked(2).tape().sweeps().is_empty());
}

/// What the counts choose for an equation of a network with these hidden layers.
fn chosen<const D: usize>(
    hidden: &[usize],
    outputs: usize,
    residual: impl Fn(&[Field], &[Field]) -> Vec<Field>,
) -> Lowering {
    let mut params = Parameters::seeded(1);
    let mut widths = vec![D];
    widths.extend(hidden);
    widths.push(outputs);
    let net = params
        .mlp("u", &widths, Elemental::Tanh)
        .expect("a network");
    let names: Vec<String> = (0..D).map(|i| format!("x{i}")).collect();
    let equation = Equation::record_over("eq", &params, &names, |x| residual(x, &net.at_all(x)))
        .expect("an equation");
    let points = Points::from_rows(&spread::<D>(200)).expect("points");
    let problem = Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
    let options = Options::default().lowering(Lowering::Auto);
    let engine = Engine::with(&problem, &options).expect("an engine");
    // The same each time.
    let again = Engine::with(&problem, &options).expect("an engine");
    assert_eq!(engine.plans()[0].lowering, again.plans()[0].lowering);
    engine.plans()[0].lowering
}

fn energy(x: &[Field], u: &[Field]) -> Vec<Field> {
    vec![x.iter().map(|&x| u[0].d(x) * u[0].d(x)).sum()]
}

#[test]
fn auto_takes_sweeps_for_gradients_in_many_coordinates() {
    for hidden in [&[32, 32][..], &[64, 64, 64, 64], &[128, 128, 128]] {
        let nested = Lowering::NestedReverse;
        assert_eq!(chosen::<5>(hidden, 1, energy), nested, "{hidden:?}");
        assert_eq!(chosen::<10>(hidden, 1, energy), nested, "{hidden:?}");
        assert_eq!(chosen::<20>(hidden, 1, energy), nested, "{hidden:?}");
    }
}

#[test]
fn auto_takes_jets_for_high_orders_several_outputs_and_laplacians() {
    for hidden in [&[32, 32][..], &[64, 64, 64, 64], &[128, 128, 128]] {
        let jets = |what: &str, lowering: Lowering| {
            assert_eq!(lowering, Lowering::Jets, "{what}, {hidden:?}");
        };
        let kdv = chosen::<2>(hidden, 1, |x, u| {
            let u = u[0];
            vec![u.d(x[0]) + 6.0 * u * u.d(x[1]) + u.d(x[1]).d(x[1]).d(x[1])]
        });
        jets("third order", kdv);
        let biharmonic = chosen::<2>(hidden, 1, |x, u| vec![u[0].laplacian(x).laplacian(x)]);
        jets("fourth order", biharmonic);
        let navier_stokes = chosen::<3>(hidden, 3, |x, u| {
            let (t, x, y) = (x[0], x[1], x[2]);
            let momentum = |w: Field, px: Field| {
                let viscous = w.d(x).d(x) + w.d(y).d(y);
                w.d(t) + u[0] * w.d(x) + u[1] * w.d(y) + px - 0.01 * viscous
            };
            vec![
                momentum(u[0], u[2].d(x)),
                momentum(u[1], u[2].d(y)),
                u[0].d(x) + u[1].d(y),
            ]
        });
        jets("several outputs", navier_stokes);
        let laplace = |x: &[Field], u: &[Field]| vec![u[0].laplacian(x) + 1.0];
        jets(
            "a Laplacian in 5 coordinates",
            chosen::<5>(hidden, 1, laplace),
        );
        jets(
            "a Laplacian in 20 coordinates",
            chosen::<20>(hidden, 1, laplace),
        );
    }
}

#[test]
fn a_budget_may_decide_between_modes() {
    // The gradient in many coordinates is not only faster by a sweep, it is smaller.
    let mut params = Parameters::seeded(1);
    let net = mlp(&mut params, &[10, 32, 32, 1], Elemental::Tanh);
    let names: Vec<String> = (0..10).map(|i| format!("x{i}")).collect();
    let equation = Equation::record_over("energy", &params, &names, |x| energy(x, &net.at_all(x)))
        .expect("an equation");
    let jets = Counts::of(&equation);
    let nested = Counts::of(&equation.lowered(Lowering::NestedReverse).expect("a tape"));
    assert!(3 * nested.kept_bytes::<f64>(64) < jets.kept_bytes::<f64>(64));
    assert!(3 * nested.arena_bytes::<f64>(64) < jets.arena_bytes::<f64>(64));
    assert_eq!(jets.arena_bytes::<f32>(64) * 2, jets.arena_bytes::<f64>(64));
    // Recomputation keeps less, in either mode.
    for lowering in [Lowering::Jets, Lowering::NestedReverse] {
        let equation = equation.lowered(lowering).expect("a tape");
        let kept = Counts::of(&equation).kept_bytes::<f64>(64);
        let less = Counts::recomputed(&equation).kept_bytes::<f64>(64);
        assert!(less < kept, "{less} of {kept} by {lowering:?}");
    }
}

#[test]
fn gradients_are_returned_and_batches_add_up() {
    let mut params = Parameters::new();
    let u = mlp(&mut params, &[2, 6, 1], Elemental::Tanh);
    let equation = Equation::record("heat", &params, ["t", "x"], |[t, x]| {
        let [u] = u.at(&[t, x]);
        u.d(t) - 0.1 * u.d(x).d(x)
    })
    .expect("an equation");
    let rows = spread::<2>(150);
    let theta = params.values();
    let engine = |rows: &[[f64; 2]], options: &Options| {
        let points = Points::from_rows(rows).expect("points");
        let problem = Problem::new(&params, [Condition::new(&equation, points)]);
        Engine::with(&problem.expect("a problem"), options).expect("an engine")
    };
    for lowering in lowerings(2) {
        let options = Options::default().lowering(lowering).chunk(16);
        let whole = engine(&rows, &options);
        let full = whole.evaluate(theta).expect("an evaluation");
        // Asking twice adds nothing, and what stood in the slices is gone.
        let mut losses = [f64::NAN];
        let mut gradient = vec![1e300; theta.len()];
        for _ in 0..2 {
            whole
                .evaluate_into(theta, &mut losses, &mut gradient)
                .expect("an evaluation");
            assert_eq!(gradient, full.gradient);
        }
        // Uneven batches, weighted by their share of the points.
        let mut sum = vec![0.0; theta.len()];
        let mut loss = 0.0;
        for batch in [&rows[..70], &rows[70..71], &rows[71..]] {
            let part = engine(batch, &options)
                .evaluate(theta)
                .expect("an evaluation");
            let share = batch.len() as f64 / rows.len() as f64;
            loss += share * part.loss;
            for (sum, g) in sum.iter_mut().zip(&part.gradient) {
                *sum += share * g;
            }
        }
        assert_close("loss", &[loss], &[full.loss], 1e-14);
        assert_close("gradient", &sum, &full.gradient, 1e-14);
    }
}
