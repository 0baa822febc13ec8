//! The cases that other systems got wrong: small input, one right value. Each test begins
//! with the number of its case.
#![expect(clippy::excessive_precision, reason = "values as they were printed")]

mod common;

use common::{assert_close, lowerings, paper_network};
use dualtape::record::Residuals;
use dualtape::{
    Condition, Elemental, Engine, Equation, Error, Evaluation, Field, Lowering, Options,
    Parameters, Points, Precision, Problem, select, values,
};
use std::f64::consts::PI;

#[track_caller]
fn evaluate<R: Residuals, const N: usize>(
    params: &Parameters,
    names: [&str; N],
    rows: &[[f64; N]],
    closure: impl FnOnce([Field; N]) -> R,
) -> Vec<Vec<f64>> {
    let equation = Equation::record("expression", params, names, closure).expect("an equation");
    let points = Points::from_rows(rows).expect("points");
    let jets = values(&equation, params, &points).expect("values");
    // Nested reverse mode, and all splits, say the same.
    for lowering in lowerings(4) {
        let lowered = equation.lowered(lowering).expect("a lowered equation");
        let got = values(&lowered, params, &points).expect("values").concat();
        for (got, want) in got.iter().zip(jets.iter().flatten()) {
            let close = (got - want).abs() <= 1e-13 * want.abs().max(1.0);
            assert!(got == want || close, "{lowering:?}: {got:e}, jets {want:e}");
        }
    }
    jets
}

/// One condition at points.
#[track_caller]
fn problem<R: Residuals, const N: usize>(
    params: &Parameters,
    names: [&str; N],
    rows: &[[f64; N]],
    closure: impl FnOnce([Field; N]) -> R,
) -> Problem {
    let equation = Equation::record("eq", params, names, closure).expect("an equation");
    let points = Points::from_rows(rows).expect("points");
    Problem::new(params, [Condition::new(&equation, points)]).expect("a problem")
}

#[test]
fn c04_vector_laplacian_with_names_of_two_letters() {
    let params = Parameters::new();
    let rows = [[0.3, 0.7], [-2.0, 5.0], [0.0, 0.0], [1e3, -1e-3]];
    let got = evaluate(&params, ["ab", "cd"], &rows, |[ab, cd]| {
        let u = ab * ab + cd * cd;
        let v = ab.powi(2) - cd.powi(2);
        let by_hand = |w: Field| w.d(ab).d(ab) + w.d(cd).d(cd);
        [
            u.laplacian(&[ab, cd]),
            v.laplacian(&[cd, ab]),
            by_hand(u),
            by_hand(v),
        ]
    });
    assert_eq!(got, [[4.0; 4], [0.0; 4], [4.0; 4], [0.0; 4]]);
}

#[test]
fn c05_second_partials_by_name() {
    let params = Parameters::new();
    let rows = [[0.3, 0.7]];
    let u = |x: Field, y: Field| {
        (0.3 * x - 0.2 * y + 0.1).tanh() + 0.5 * (-0.4 * x + 0.6 * y - 0.2).tanh()
    };
    let want = [
        0.099792372270357880758,
        -0.024758531120182058619,
        -0.03951074678250143532,
        0.029662743647392381818,
        -0.064269277902683493939,
    ];
    let got = evaluate(&params, ["x", "y"], &rows, |[x, y]| {
        let u = u(x, y);
        [
            u,
            u.d(x).d(x),
            u.d(y).d(y),
            u.d(x).d(y),
            u.d(x).d(x) + u.d(y).d(y),
        ]
    });
    for (i, want) in want.iter().enumerate() {
        assert_close(&format!("jets {i}"), &got[i], &[*want], 1e-14);
    }
    // The Δ plane alone.
    let equation = Equation::record("delta", &params, ["x", "y"], |[x, y]| {
        u(x, y).laplacian(&[x, y])
    })
    .expect("an equation");
    let held = |node: usize| {
        let planes = equation.held()[node].planes.iter();
        planes
            .map(|p| p.name(equation.coordinates()))
            .collect::<Vec<_>>()
    };
    let listing = equation.tape().listing().expect("a listing");
    assert!(
        listing.contains("{1 x y}") && listing.contains("{Δ(x,y)}"),
        "{listing}"
    );
    assert!(
        !listing.contains("x.x") && !listing.contains("y.y"),
        "{listing}"
    );
    assert_eq!(held(equation.tape().roots()[0]), ["1"]);
    let points = Points::from_rows(&rows).expect("a point");
    let got = values(&equation, &params, &points).expect("values");
    assert_close("Δ plane", &got[0], &[want[4]], 1e-14);
    // The same function as a network: 2-2-1, and its mixed derivative through the names.
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[2, 2, 1], Elemental::Tanh)
        .expect("a network");
    params
        .set(&[0.3, -0.2, -0.4, 0.6, 0.1, -0.2, 1.0, 0.5, 0.0])
        .expect("set");
    let got = evaluate(&params, ["y", "x"], &[[0.7, 0.3]], |[y, x]| {
        let [u] = net.at(&[x, y]);
        [
            u,
            u.d(x).d(x),
            u.d(y).d(y),
            u.d(y).d(x),
            u.laplacian(&[y, x]),
        ]
    });
    for (i, want) in want.iter().enumerate() {
        assert_close(&format!("network {i}"), &got[i], &[*want], 1e-14);
    }
}

#[test]
fn c08_powers_at_zero() {
    let params = Parameters::new();
    let derivatives = |f: &dyn Fn(Field) -> Field, at: f64, orders: usize| -> Vec<f64> {
        let got = evaluate(&params, ["x"], &[[at]], |[x]| {
            let mut all = vec![f(x) + 0.0 * x];
            for k in 0..orders {
                all.push(all[k].d(x));
            }
            all
        });
        got.into_iter().flatten().collect()
    };
    assert_eq!(derivatives(&|x| x.powi(2), 0.0, 3), [0.0, 0.0, 2.0, 0.0]);
    assert_eq!(derivatives(&|x| x * x, 0.0, 3), [0.0, 0.0, 2.0, 0.0]);
    assert_eq!(derivatives(&|x| x.powf(2.0), 0.0, 3), [0.0, 0.0, 2.0, 0.0]);
    let gauss = derivatives(&|x| (-(x * x)).exp(), 0.0, 4);
    assert_close("exp(-x²)", &gauss, &[1.0, 0.0, -2.0, 0.0, 12.0], 1e-15);
    assert_eq!(derivatives(&|x| x.powi(3), 0.0, 3), [0.0, 0.0, 0.0, 6.0]);
    assert_eq!(derivatives(&|x| x.powi(0), 0.0, 3), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(
        derivatives(&|x| x.powf(1.5), 0.0, 2),
        [0.0, 0.0, f64::INFINITY]
    );
    assert_eq!(
        derivatives(&|x| x.powi(3), -2.0, 3),
        [-8.0, 12.0, -12.0, 6.0]
    );
    assert_eq!(
        derivatives(&|x| x.powf(3.0), -2.0, 3),
        [-8.0, 12.0, -12.0, 6.0]
    );
}

#[test]
fn c09_the_branch_not_taken_sends_nothing() {
    let params = Parameters::new();
    let rows = [[-1.0], [-4.0], [4.0], [0.0]];
    let got = evaluate(&params, ["x"], &rows, |[x]| {
        let f = select(x.above(0.0), x.sqrt(), x);
        [f, f.d(x), f.d(x).d(x)]
    });
    assert_eq!(got[0], [-1.0, -4.0, 2.0, 0.0]);
    assert_eq!(got[1], [1.0, 1.0, 0.25, 1.0]);
    assert_eq!(got[2], [0.0, 0.0, -0.03125, 0.0]);
    // In the gradient: the NaN of √(a x) and of a network fed with it stay where they are.
    let mut params = Parameters::seeded(4);
    let a = params.coefficient("a", 2.0).expect("a");
    let net = params
        .mlp("u", &[1, 4, 1], Elemental::Tanh)
        .expect("a network");
    let at = |rows: &[[f64; 1]]| {
        let whole = problem(&params, ["x"], rows, |[x]| {
            let root = (a.field() * x).sqrt();
            let [inside] = net.at(&[root]);
            let [outside] = net.at(&[x]);
            let f = select(x.above(0.0), inside * root, outside * a.field());
            f.d(x) + f
        });
        let by = |lowering| {
            let options = Options::default().lowering(lowering);
            let engine = Engine::with(&whole, &options).expect("an engine");
            engine.evaluate(params.values()).expect("finite")
        };
        let jets = by(Lowering::Jets);
        let nested = by(Lowering::NestedReverse);
        assert_close("nested", &nested.gradient, &jets.gradient, 1e-14);
        jets
    };
    let mixed = at(&[[-1.0], [4.0], [-0.5]]);
    let positive = at(&[[4.0]]);
    let negative = at(&[[-1.0], [-0.5]]);
    let want: Vec<f64> = positive
        .gradient
        .iter()
        .zip(&negative.gradient)
        .map(|(p, n)| (p + 2.0 * n) / 3.0)
        .collect();
    assert!(want.iter().all(|g| g.is_finite() && *g != 0.0), "{want:?}");
    assert_close("gradient", &mixed.gradient, &want, 1e-14);
}

#[test]
fn c09_norms_at_the_origin() {
    let params = Parameters::new();
    let origin = [[0.0, 0.0]];
    let got = evaluate(&params, ["x", "y"], &origin, |[x, y]| {
        let square = x * x + y * y;
        [
            square.d(x),
            square.d(y),
            square.d(x).d(x),
            square.d(x).d(y),
            square.d(y).d(y),
            square.laplacian(&[x, y]),
        ]
    });
    assert_eq!(got, [[0.0], [0.0], [2.0], [0.0], [2.0], [4.0]]);
    // ‖x‖ itself: 0 there, but its derivative is not a number, and that is told.
    let mut params = Parameters::new();
    let a = params.coefficient("a", 1.0).expect("a");
    let norm = |x: Field, y: Field| (x * x + y * y).sqrt();
    let whole = problem(&params, ["x", "y"], &[[3.0, 4.0], [0.0, 0.0]], |[x, y]| {
        a.field() * norm(x, y) - 1.0
    });
    let engine = Engine::new(&whole).expect("an engine");
    let evaluation = engine
        .evaluate(params.values())
        .expect("finite: no derivative is taken");
    assert_eq!(evaluation.loss, (16.0 + 1.0) / 2.0);
    assert_eq!(evaluation.gradient, [2.0 * 4.0 * 5.0 / 2.0]);
    let whole = problem(&params, ["x", "y"], &[[3.0, 4.0], [0.0, 0.0]], |[x, y]| {
        a.field() * norm(x, y).d(x)
    });
    let engine = Engine::new(&whole).expect("an engine");
    let error = engine
        .evaluate(params.values())
        .expect_err("NaN at the origin");
    let Error::NonFinite {
        point,
        coordinates,
        node,
        ..
    } = &error
    else {
        panic!("another error: {error}");
    };
    assert_eq!(
        (*point, coordinates.as_str(), node.as_str()),
        (1, "x = 0, y = 0", "sqrt")
    );
    // Where the parameters lead to the origin, the gradient is told, and no NaN is given.
    let mut params = Parameters::new();
    let a = params.coefficient("a", 0.0).expect("a");
    let b = params.coefficient("b", 0.0).expect("b");
    let whole = problem(&params, ["x"], &[[1.0], [2.0]], |[x]| {
        norm(a.field(), b.field()) - x
    });
    let engine = Engine::new(&whole).expect("an engine");
    assert_eq!(engine.loss(params.values()), Ok(2.5));
    let error = engine.evaluate(params.values()).expect_err("no gradient");
    assert!(matches!(error, Error::NonFiniteGradient { .. }), "{error}");
    let mut losses = [0.0];
    let mut gradient = [7.0; 2];
    let error = engine.evaluate_into(params.values(), &mut losses, &mut gradient);
    assert!(error.is_err());
}

#[test]
fn c10_composed_rules() {
    let params = Parameters::new();
    let square = |x: Field| x * x;
    let got = evaluate(&params, ["x"], &[[3.0]], |[x]| {
        let f = square(square(x));
        [f, f.d(x), f.d(x).d(x), f.d(x).d(x).d(x)]
    });
    assert_eq!(got, [[81.0], [108.0], [108.0], [72.0]]);
    let got = evaluate(&params, ["t"], &[[0.7]], |[t]| {
        let m = nalgebra::SMatrix::<Field, 2, 2>::new(
            t + 2.0,
            Field::from(1.0),
            Field::from(1.0),
            2.0 * t + 3.0,
        );
        let determinant = m[(0, 0)] * m[(1, 1)] - m[(0, 1)] * m[(1, 0)];
        let fraction = -t / (1.0 + t * t).sqrt();
        let logarithm = (3.0 * t + 5.0).abs().ln();
        [
            determinant.d(t).d(t),
            fraction.d(t).d(t),
            (3.0 * t + 5.0).ln().d(t).d(t),
            logarithm.d(t),
            determinant,
        ]
    });
    assert_close("determinant", &got[0], &[4.0], 1e-15);
    assert_close("fraction", &got[1], &[0.774914207959094176], 1e-14);
    assert_close("log-determinant", &got[2], &[-0.178536004760960127], 1e-14);
    assert_close("its slope", &got[3], &[3.0 / 7.1], 1e-14);
    assert_close("value", &got[4], &[2.7 * 4.4 - 1.0], 1e-15);
}

#[test]
fn c11_trainable_constant_in_a_condition() {
    // A network that is 0 at the boundary, by a hard constraint; its target C is trained.
    let mut params = Parameters::seeded(6);
    let net = params
        .mlp("u", &[1, 4, 1], Elemental::Tanh)
        .expect("a network");
    let c = params.coefficient("C", 1.0).expect("C");
    let whole = problem(&params, ["x"], &[[0.0]], |[x]| {
        x * net.at::<1>(&[x])[0] - c.field()
    });
    let engine = Engine::new(&whole).expect("an engine");
    let mut theta = params.values().to_vec();
    let step = 0.25;
    for (value, loss, slope) in [(1.0, 1.0, 2.0), (0.5, 0.25, 1.0), (0.25, 0.0625, 0.5)] {
        assert_eq!(theta[c.index()], value);
        let evaluation = engine.evaluate(&theta).expect("an evaluation");
        assert_eq!(evaluation.loss, loss);
        assert_eq!(evaluation.gradient[c.index()], slope);
        assert!(evaluation.gradient[..c.index()].iter().all(|g| *g == 0.0));
        for (theta, g) in theta.iter_mut().zip(&evaluation.gradient) {
            *theta -= step * g;
        }
    }
    params.set(&theta).expect("set");
    assert_eq!(c.value(&params), Ok(0.125));
}

/// Points of a low-discrepancy kind, in the unit square.
fn spread(n: usize) -> Vec<[f64; 2]> {
    (1..=n)
        .map(|i| {
            let i = i as f64;
            [
                (i * 0.754_877_666_246_692_8).fract(),
                (i * 0.569_840_290_998_053_2).fract(),
            ]
        })
        .collect()
}

/// Burgers' equation with an initial condition and a data column.
fn burgers(width: usize, n: usize) -> (Parameters, Problem) {
    let mut params = Parameters::seeded(9);
    let net = params
        .mlp("u", &[2, width, width, 1], Elemental::Tanh)
        .expect("a network");
    let nu = params.coefficient("nu", 0.05).expect("nu");
    let flow = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + u * u.d(x) - nu.field() * u.d(x).d(x)
    })
    .expect("flow");
    let start = Equation::record("start", &params, ["t", "x"], |[t, x]| {
        net.at::<1>(&[t * 0.0, x])[0] - dualtape::data("u0")
    })
    .expect("start");
    let rows = spread(n);
    let column: Vec<f64> = rows.iter().map(|[_, x]| (PI * x).sin()).collect();
    let points = Points::from_rows(&rows).expect("points");
    let with_data = points.clone().with_column("u0", &column).expect("data");
    let conditions = [
        Condition::new(&flow, points),
        Condition::new(&start, with_data).weight(3.0),
    ];
    let whole = Problem::new(&params, conditions).expect("a problem");
    (params, whole)
}

fn bits(evaluation: &Evaluation) -> Vec<u64> {
    let all = evaluation
        .losses
        .iter()
        .chain(&evaluation.gradient)
        .chain([&evaluation.loss]);
    all.map(|x| x.to_bits()).collect()
}

#[test]
fn c12_same_bits_for_any_number_of_threads() {
    // Large enough for the parallel path, in either precision; no multiple of any chunk.
    let (params, whole) = burgers(24, 2_037);
    for precision in [Precision::Double, Precision::Single] {
        let with = |options: Options| {
            let engine = Engine::with(&whole, &options.precision(precision)).expect("an engine");
            let first = engine.evaluate(params.values()).expect("an evaluation");
            // Workspaces that have been used give the same.
            for _ in 0..3 {
                let again = engine.evaluate(params.values()).expect("an evaluation");
                assert_eq!(bits(&again), bits(&first));
            }
            let parts = engine.gradients(params.values()).expect("gradients");
            let losses = engine.losses(params.values()).expect("losses");
            let loss_bits = |l: &[f64]| l.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(loss_bits(&losses), loss_bits(&first.losses));
            let residuals = engine
                .residuals("flow", params.values())
                .expect("residuals");
            (bits(&first), parts, residuals)
        };
        let one = with(Options::default().threads(1));
        for threads in [2, 3, 4] {
            assert_eq!(
                with(Options::default().threads(threads)),
                one,
                "{threads} threads"
            );
        }
        assert_eq!(with(Options::default()), one, "the global pool");
    }
}

#[test]
fn c12_one_engine_asked_by_several_threads_at_once() {
    let (params, whole) = burgers(24, 700);
    let engine = Engine::new(&whole).expect("an engine");
    let want = bits(&engine.evaluate(params.values()).expect("an evaluation"));
    std::thread::scope(|scope| {
        let ask = || bits(&engine.evaluate(params.values()).expect("an evaluation"));
        let threads: Vec<_> = (0..3)
            .map(|_| scope.spawn(move || [ask(), ask(), ask()]))
            .collect();
        for thread in threads {
            for got in thread.join().expect("no panic") {
                assert_eq!(got, want);
            }
        }
    });
}

#[test]
fn c12_any_number_of_points() {
    // The mean over n points is that over each point by itself.
    let (params, _) = burgers(5, 1);
    let single: Vec<Evaluation> = (0..70)
        .map(|i| {
            let (_, whole) = part_of_points(&params, i..i + 1);
            let engine = Engine::new(&whole).expect("an engine");
            engine.evaluate(params.values()).expect("an evaluation")
        })
        .collect();
    for n in 1..=70 {
        let (_, whole) = part_of_points(&params, 0..n);
        let mut first = None;
        for threads in [1, 2, 3, 4] {
            let options = Options::default().threads(threads).chunk(16);
            let engine = Engine::with(&whole, &options).expect("an engine");
            let evaluation = engine.evaluate(params.values()).expect("an evaluation");
            let bits = bits(&evaluation);
            assert_eq!(
                first.get_or_insert(bits.clone()),
                &bits,
                "{n} points, {threads} threads"
            );
            let mean =
                |f: &dyn Fn(&Evaluation) -> f64| single[..n].iter().map(f).sum::<f64>() / n as f64;
            assert_close("loss", &[evaluation.loss], &[mean(&|e| e.loss)], 1e-13);
            let want: Vec<f64> = (0..params.len())
                .map(|i| mean(&|e: &Evaluation| e.gradient[i]))
                .collect();
            assert_close(
                &format!("gradient, {n} points"),
                &evaluation.gradient,
                &want,
                1e-13,
            );
        }
    }
}

/// A fresh problem of the same parameters at a part of the points.
fn part_of_points(params: &Parameters, part: std::ops::Range<usize>) -> (Parameters, Problem) {
    let mut own = Parameters::seeded(9);
    let net = own
        .mlp("u", &[2, 5, 5, 1], Elemental::Tanh)
        .expect("a network");
    let nu = own.coefficient("nu", 0.05).expect("nu");
    own.set(params.values()).expect("set");
    let flow = Equation::record("flow", &own, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + u * u.d(x) - nu.field() * u.d(x).d(x) - dualtape::data("f")
    })
    .expect("flow");
    let rows = &spread(70)[part];
    let column: Vec<f64> = rows.iter().map(|[t, x]| t - x * x).collect();
    let points = Points::from_rows(rows)
        .and_then(|p| p.with_column("f", &column))
        .expect("points");
    let whole = Problem::new(&own, [Condition::new(&flow, points)]).expect("a problem");
    (own, whole)
}

#[test]
fn c15_fourth_order() {
    let params = Parameters::new();
    let got = evaluate(&params, ["x", "y"], &[[0.3, 0.7]], |[x, y]| {
        let u = x.sin() * (2.0 * y).sin();
        let (xx, yy) = (u.d(x).d(x), u.d(y).d(y));
        [
            u.laplacian(&[x, y]).laplacian(&[x, y]),
            xx.d(x).d(x) + 2.0 * xx.d(y).d(y) + yy.d(y).d(y),
        ]
    });
    for got in &got {
        assert_close("Δ²u", got, &[7.2805076965137758982], 1e-14);
    }
}

#[test]
fn c17_periodic_pairs() {
    let params = Parameters::new();
    // The jump between a point on the left edge and its partner on the right.
    let jump = |u: &dyn Fn(Field, Field) -> Field| {
        let rows = [[0.0, 0.2], [0.0, 0.7]];
        let got = evaluate(&params, ["x", "y"], &rows, |[x, y]| {
            u(x + 1.0, y) - u(x, y) + 0.0 * x * y
        });
        got[0].clone()
    };
    assert_eq!(jump(&|x, _| x), [1.0, 1.0]);
    assert_eq!(jump(&|_, y| y), [0.0, 0.0]);
    for jump in jump(&|x, y| (2.0 * PI * x).sin() * y) {
        assert!(jump.abs() < 1e-15, "{jump}");
    }
    // And of a network that is trained to be periodic: the same parameters at both ends.
    let mut params = Parameters::seeded(1);
    let net = params
        .mlp("u", &[2, 5, 1], Elemental::Tanh)
        .expect("a network");
    let got = evaluate(&params, ["x", "y"], &[[0.0, 0.2]], |[x, y]| {
        let at = |x: Field| net.at::<1>(&[x, y])[0];
        [at(x + 1.0) - at(x), at(x + 1.0).d(x) - at(x).d(x)]
    });
    let ends = [0.0, 1.0].map(|x| {
        let x = num_dual::Dual64::from(x).derivative();
        net.eval(&params, &[x, 0.2.into()]).expect("u")[0]
    });
    assert_close("jump", &got[0], &[ends[1].re - ends[0].re], 1e-13);
    assert_close(
        "jump of the slope",
        &got[1],
        &[ends[1].eps - ends[0].eps],
        1e-13,
    );
}

#[test]
fn one_point_of_the_paper_on_any_chunk() {
    let (params, net, _) = paper_network();
    let whole = problem(&params, ["t"], &[[0.5]], |[t]| {
        let [y] = net.at(&[t]);
        y.d(t) + y
    });
    let evaluations = [None, Some(16), Some(64), Some(1024)].map(|chunk| {
        let mut options = Options::default();
        options.chunk = chunk;
        let engine = Engine::with(&whole, &options).expect("an engine");
        bits(&engine.evaluate(params.values()).expect("an evaluation"))
    });
    assert!(evaluations.iter().all(|e| *e == evaluations[0]));
}

#[test]
fn problem_without_parameters() {
    let params = Parameters::new();
    let whole = problem(&params, ["x"], &[[2.0], [4.0]], |[x]| x - 1.0);
    let engine = Engine::new(&whole).expect("an engine");
    let evaluation = engine.evaluate(&[]).expect("an evaluation");
    assert_eq!((evaluation.loss, evaluation.gradient.len()), (5.0, 0));
    assert_eq!(engine.gradients(&[]), Ok(vec![vec![]]));
    let mut squares = 0.0;
    engine
        .rows("eq", &[], |rows| {
            assert_eq!(rows.parameters(), 0);
            squares += rows.residuals.iter().map(|r| r * r).sum::<f64>();
        })
        .expect("rows");
    assert_close("squares", &[squares], &[5.0], 1e-15);
}

#[test]
fn points_weights_and_energies() {
    let mut params = Parameters::new();
    let k = params.coefficient("k", 3.0).expect("k");
    let equation = Equation::record("eq", &params, ["x"], |[x]| [k.field() * x, x - k.field()])
        .expect("an equation");
    let points = Points::from_rows(&[[1.0], [2.0]]).expect("points");
    let evaluate = |condition: Condition| {
        let whole = Problem::new(&params, [condition]).expect("a problem");
        let engine = Engine::new(&whole).expect("an engine");
        engine.evaluate(params.values()).expect("an evaluation")
    };
    // Residuals (3, 6) and (−2, −1).
    let plain = evaluate(Condition::new(&equation, points.clone()));
    assert_eq!(
        (plain.loss, plain.gradient[0]),
        (25.0, (6.0 + 4.0 + 24.0 + 2.0) / 2.0)
    );
    let weighted = Condition::new(&equation, points.clone())
        .weight(4.0)
        .point_weights(&[0.5, 3.0]);
    let weighted = evaluate(weighted);
    assert_eq!(weighted.loss, 2.0 * (0.5 * 13.0 + 3.0 * 37.0));
    assert_eq!(weighted.gradient[0], 2.0 * (0.5 * 10.0 + 3.0 * 26.0));
    let energy = Condition::new(&equation, points)
        .weight(-2.0)
        .point_weights(&[0.5, 3.0])
        .energy();
    let energy = evaluate(energy);
    assert_eq!(energy.loss, -(0.5 * 1.0 + 3.0 * 5.0));
    assert_eq!(energy.gradient[0], -(0.5 * 0.0 + 3.0 * 1.0));
}
