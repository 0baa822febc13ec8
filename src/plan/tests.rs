//! Compositions against repeated products, and counted products.

use super::*;
use crate::kernel::jet::bilinear;
use crate::plane::MultiIndex;
use crate::tape::Node;
use crate::{Elemental, Equation, Field, Parameters};
use proptest::prelude::*;
use std::sync::Arc;

type Jet = BTreeMap<Plane, f64>;

fn at(jet: &Jet, plane: &Plane) -> f64 {
    jet.get(plane).copied().unwrap_or(0.0)
}

fn product(a: &Jet, b: &Jet, target: &Planes) -> Jet {
    let planes = |jet: &Jet| jet.keys().cloned().collect::<Planes>();
    let (pa, pb) = (planes(a), planes(b));
    let of = |jet: &Jet, planes: &Planes, i: usize| planes.get(i).map_or(0.0, |p| at(jet, p));
    let sum = |plane: &Plane| {
        let pairs = factor_pairs(plane, &pa, &pb).into_iter();
        pairs.map(|(i, j)| of(a, &pa, i) * of(b, &pb, j)).sum()
    };
    target.iter().map(|p| (p.clone(), sum(p))).collect()
}

/// Runs a program as the replay does, on one lane.
fn run(
    program: &Composition,
    z: &[f64],
    c: &[f64],
    own: usize,
    derivative: usize,
) -> [Vec<f64>; 2] {
    let simd = pulp::Scalar::new();
    let mut scratch = vec![f64::NAN; program.scratch];
    scratch[..=program.order].copy_from_slice(&c[..=program.order]);
    scratch[program.argument..][..z.len()].copy_from_slice(z);
    for (place, table) in &program.powers {
        let (lower, upper) = scratch.split_at_mut(*place);
        bilinear(simd, table, lower, lower, upper, 1, Mode::Overwrite);
    }
    let mut v = vec![f64::NAN; own];
    if let Some(place) = program.value_place {
        v[place] = c[0];
    }
    bilinear(
        simd,
        &program.value,
        &scratch,
        &scratch,
        &mut v,
        1,
        Mode::Overwrite,
    );
    let mut d = vec![f64::NAN; derivative];
    if derivative > 0 {
        for k in 1..program.order {
            scratch[program.scaled + k - 1] = (k + 1) as f64 * c[k + 1];
        }
        d[0] = c[1];
        bilinear(
            simd,
            &program.derivative,
            &scratch,
            &scratch,
            &mut d,
            1,
            Mode::Overwrite,
        );
    }
    [v, d]
}

fn plane() -> impl Strategy<Value = Plane> {
    let partial = proptest::collection::vec(0..3_u16, 0..=4).prop_map(|list| {
        let add = |sum: MultiIndex, &c: &u16| sum.plus(&MultiIndex::pure(c, 1));
        Plane::Partial(list.iter().fold(MultiIndex::value(), add))
    });
    prop_oneof![5 => partial, 1 => Just(Plane::Laplacian(Arc::from([0, 1])))]
}

fn numbers(planes: &Planes, numbers: &[i8]) -> Jet {
    let cycle = numbers.iter().cycle().map(|&n| f64::from(n));
    planes.iter().cloned().zip(cycle).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(
            proptest::test_runner::FileFailurePersistence::WithSource("regressions"),
        )),
        ..ProptestConfig::default()
    })]

    /// v = Σ c_m δ^m and d = Σ (m+1) c_{m+1} δ^m, power by power, and ⟨d·ż, v̄⟩ = ⟨ż, z̄⟩ with
    /// v̇ = d·ż the differential of v.
    #[test]
    fn composition_by_repeated_products(
        asked in proptest::collection::vec(plane(), 1..5),
        missing in proptest::collection::vec(plane(), 0..4),
        z_numbers in proptest::collection::vec(-3..=3_i8, 40),
        dot_numbers in proptest::collection::vec(-3..=3_i8, 40),
        bar_numbers in proptest::collection::vec(-3..=3_i8, 40),
        c in proptest::collection::vec(-2..=2_i8, 8),
    ) {
        // What the node holds, and what its argument holds: a closed set, but for planes
        // that are zero.
        let wanted: Planes = asked.into_iter().collect();
        let closed = wanted.closed();
        let gone = |p: &Plane| !p.is_value() && missing.contains(p);
        let laplacian = |p: &Plane| matches!(p, Plane::Laplacian(_));
        let argument: Planes =
            closed.iter().filter(|p| !gone(p) || laplacian(p)).cloned().collect();
        let own = generated(&wanted, &argument);
        let every = generated(&own.closed(), &argument);
        let derivative: Planes = own
            .iter()
            .flat_map(|k| factor_pairs(k, &every, &argument))
            .filter_map(|(i, _)| every.get(i).cloned())
            .collect();
        let program = Composition::new(&argument, &own, &derivative);
        let z = numbers(&argument, &z_numbers);
        let c: Vec<f64> = c.iter().map(|&n| f64::from(n)).collect();
        let row: Vec<f64> = argument.iter().map(|p| at(&z, p)).collect();
        let [v, d] = run(&program, &row, &c, own.len(), derivative.len());

        let mut delta = z;
        delta.remove(&Plane::value());
        let mut power = Jet::from([(Plane::value(), 1.0)]);
        let mut sums = [Jet::new(), Jet::new()];
        for m in 0..=closed.order() {
            for (plane, value) in &power {
                *sums[0].entry(plane.clone()).or_insert(0.0) += c[m] * value;
                *sums[1].entry(plane.clone()).or_insert(0.0) += (m + 1) as f64 * c[m + 1] * value;
            }
            power = product(&power, &delta, &closed);
        }
        let want = |sum: &Jet, planes: &Planes| -> Vec<f64> {
            planes.iter().map(|p| at(sum, p)).collect()
        };
        if !own.is_empty() {
            prop_assert_eq!(&v, &want(&sums[0], &own));
        }
        prop_assert_eq!(&d, &want(&sums[1], &derivative));

        let z_dot = numbers(&argument, &dot_numbers);
        let v_bar = numbers(&own, &bar_numbers);
        let d: Jet = derivative.iter().cloned().zip(d).collect();
        let v_dot = product(&d, &z_dot, &own);
        prop_assert_eq!(&v_dot, &product(&sums[1], &z_dot, &own));
        let forward: f64 = own.iter().map(|p| at(&v_dot, p) * at(&v_bar, p)).sum();
        let mut backward = 0.0;
        for (k, plane) in own.iter().enumerate() {
            for (i, j) in factor_pairs(plane, &derivative, &argument) {
                let (i, j) = (derivative.get(i).expect("a plane"), argument.get(j).expect("one"));
                backward += at(&d, i) * at(&v_bar, own.get(k).expect("one")) * at(&z_dot, j);
            }
        }
        prop_assert_eq!(forward, backward);
    }
}

/// Products of planes in the activations of a network under the derivative of order k.
fn products(k: usize) -> usize {
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[1, 3, 3, 1], Elemental::Tanh)
        .expect("a network");
    let equation = Equation::record("eq", &params, ["x"], |[x]| {
        let [mut u] = net.at(&[x]);
        for _ in 0..k {
            u = u.d(x);
        }
        u
    })
    .expect("an equation");
    let mut weights = WeightTable::default();
    let plan = Plan::new(
        equation.tape(),
        equation.held(),
        &mut weights,
        Sweep::Forward,
    );
    let counted = plan.forward.iter().map(|step| match step {
        Step::Compose { program, .. } => {
            let powers = program.powers.iter().map(|(_, table)| table.products());
            program.value.products() + powers.sum::<usize>()
        }
        _ => 0,
    });
    counted.sum()
}

#[test]
fn c15_products_do_not_double_with_each_order() {
    let counts: Vec<usize> = (1..=12).map(products).collect();
    for (k, count) in (1..=6).zip(&counts) {
        assert!(
            *count <= 3 * k * k,
            "order {k}: {count} products, {counts:?}"
        );
    }
    // Twice the order costs less than eight times the products; 2^k would be 64 times.
    assert!(counts[11] < 8 * counts[5], "{counts:?}");
}

#[test]
fn buffers_in_use_at_the_same_time_are_apart() {
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[2, 5, 4, 2], Elemental::Silu)
        .expect("a network");
    let equation = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let [u, v] = net.at(&[t, x]);
        [u.d(t) + (u * v).d(x).d(x), (v * u.sin()).d(x) - v.d(t) * x]
    })
    .expect("an equation");
    for sweep in [Sweep::Inspect, Sweep::Forward, Sweep::Reverse] {
        let mut weights = WeightTable::default();
        let plan = Plan::new(equation.tape(), equation.held(), &mut weights, sweep);
        for lanes in [16, 48, 64, 128] {
            let layout = plan.layout(lanes, 8);
            let range = |id: BufferId| {
                let start = layout.offset[id];
                start..start + plan.buffers[id].rows * layout.stride[id]
            };
            for (i, a) in plan.buffers.iter().enumerate() {
                assert!(range(i).end <= layout.len);
                assert!(layout.stride[i] >= a.planes * lanes);
                assert_eq!(layout.offset[i] % 8, 0, "a buffer begins with a cache line");
                for (j, b) in plan.buffers.iter().enumerate().take(i) {
                    let together = a.birth <= b.death && b.birth <= a.death;
                    let (ri, rj) = (range(i), range(j));
                    let overlap = ri.start < rj.end && rj.start < ri.end;
                    assert!(
                        !(together && overlap),
                        "{sweep:?}, {lanes} lanes: {i} and {j}"
                    );
                }
            }
        }
    }
}

/// Rows of planes of one lane, before anything is written.
fn blank(buffer: &Buffer) -> Vec<Vec<f64>> {
    vec![vec![f64::NAN; buffer.planes]; buffer.rows]
}

/// A linear step on one lane.
fn apply(step: &Step, src: &BTreeMap<BufferId, Vec<Vec<f64>>>, out: &mut [Vec<f64>]) {
    let Step::Linear { zeros, terms, .. } = step else {
        panic!("a linear step");
    };
    for z in zeros {
        for row in &mut out[z.row..z.row + z.rows] {
            row[z.place..z.place + z.len].fill(0.0);
        }
    }
    for t in terms {
        for row in 0..t.rows {
            let from = &src[&t.src][t.src_row + row * t.src_step][t.run.src..][..t.run.len];
            let to = &mut out[t.dst_row + row * t.dst_step][t.run.dst..][..t.run.len];
            for (to, from) in to.iter_mut().zip(from) {
                let part = t.factor * from;
                *to = if t.mode == Mode::Overwrite {
                    part
                } else {
                    *to + part
                };
            }
        }
    }
}

/// ⟨Lx, ȳ⟩ = ⟨x, Lᵀȳ⟩ in whole numbers, for the linear node that is the residual.
fn dot_product_test(residual: impl Fn([Field; 2], [Field; 2]) -> Field) {
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[2, 3, 2], Elemental::Tanh)
        .expect("a network");
    let equation = Equation::record("linear", &params, ["t", "x"], |x| residual(net.at(&x), x))
        .expect("an equation");
    let (tape, held) = (equation.tape(), equation.held());
    let plan = Plan::new(tape, held, &mut WeightTable::default(), Sweep::Reverse);
    let root = tape.roots()[0];
    let value = plan.values[root].expect("a value");
    let forward = plan
        .forward
        .iter()
        .find(|s| matches!(s, Step::Linear { dst, .. } if *dst == value));
    let bar = plan.seeded[0];
    let reverse: Vec<&Step> = plan
        .reverse
        .iter()
        .filter(|s| matches!(s, Step::Linear { terms, .. } if terms.iter().all(|t| t.src == bar)))
        .collect();
    let inputs = &tape.nodes()[root].inputs;
    assert_eq!(reverse.len(), inputs.len(), "an adjoint for each input");
    let mut next = 0.0;
    let mut numbers = |id: BufferId| {
        let mut block = blank(&plan.buffers[id]);
        block.iter_mut().flatten().for_each(|x| {
            next = (next * 7.0 + 3.0) % 11.0;
            *x = next - 5.0;
        });
        block
    };
    let places: Vec<BufferId> = inputs
        .iter()
        .map(|&i| plan.values[i].expect("an input"))
        .collect();
    let x: BTreeMap<_, _> = places.iter().map(|&id| (id, numbers(id))).collect();
    let y_bar = BTreeMap::from([(bar, numbers(bar))]);
    let mut y = blank(&plan.buffers[value]);
    apply(forward.expect("a forward step"), &x, &mut y);
    let dot = |a: &[Vec<f64>], b: &[Vec<f64>]| -> f64 {
        a.iter()
            .flatten()
            .zip(b.iter().flatten())
            .map(|(a, b)| a * b)
            .sum()
    };
    let mut right = 0.0;
    for (step, place) in reverse.iter().zip(&places) {
        let mut x_bar = blank(&plan.buffers[*place]);
        apply(step, &y_bar, &mut x_bar);
        right += dot(&x_bar, &x[place]);
    }
    assert_ne!(right, 0.0, "numbers that tell nothing");
    assert_eq!(dot(&y, &y_bar[&bar]), right);
}

#[test]
fn linear_maps_match_their_adjoints() {
    dot_product_test(|[u, _], [t, _]| u.d(t));
    dot_product_test(|[u, _], [_, x]| u.d(x).d(x));
    dot_product_test(|[u, _], x| u.laplacian(&x));
    dot_product_test(|[u, _], x| u.laplacian(&x).laplacian(&x));
    dot_product_test(|[u, v], _| 3.0 * u - v);
    dot_product_test(|[u, v], [t, x]| u.d(t) - 2.0 * v.d(x));
    dot_product_test(|[_, v], _| v);
}

/// An equation whose tape is given node by node, of what `touch` touches.
fn equation(
    params: &Parameters,
    touch: impl Fn(Field) -> Field,
    nodes: Vec<(Op, Vec<NodeId>, usize)>,
) -> Equation {
    let recorded = Equation::record("eq", params, ["x"], |[x]| touch(x)).expect("an equation");
    let node = |(op, inputs, rows): (Op, Vec<NodeId>, usize)| Node {
        op,
        inputs: inputs.into(),
        rows,
        source: std::panic::Location::caller(),
        graph: 1,
    };
    let nodes: Vec<Node> = nodes.into_iter().map(node).collect();
    let roots = vec![nodes.len() - 1];
    let tape = recorded.tape().rewritten(nodes, roots, Vec::new());
    recorded.with_tape(tape).expect("an equation")
}

/// Value and gradient at some points, both as an energy and by rows; a value at the points.
fn evaluate(params: &Parameters, equation: &Equation, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let points = crate::Points::new(vec![x.to_vec()]).expect("points");
    let squares = crate::Condition::new(equation, points);
    let engine = |condition: crate::Condition| {
        let problem = crate::Problem::new(params, [condition]).expect("a problem");
        crate::Engine::new(&problem).expect("an engine")
    };
    let theta = params.values();
    let energy = engine(squares.clone().energy()).evaluate(theta);
    let gradient = energy.expect("an evaluation").gradient;
    let engine = engine(squares);
    let mut sums = vec![0.0; theta.len()];
    let scale = (x.len() as f64).sqrt();
    engine
        .rows("eq", theta, |rows| {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += rows.parameter(i).iter().sum::<f64>() / scale;
            }
        })
        .expect("rows");
    for (sum, g) in sums.iter().zip(&gradient) {
        assert!(
            (sum - g).abs() <= 1e-14 * (1.0 + g.abs()),
            "{sums:?}, {gradient:?}"
        );
    }
    (
        engine.residuals("eq", theta).expect("values").concat(),
        gradient,
    )
}

/// s = Σ_i a_i (Wᵀ(W [x, x²] + b))_i: the gradient of W by hand, with W (3 × 2).
#[test]
fn transposed_products_and_sums_of_rows() {
    let mut params = Parameters::new();
    let net = params.mlp("w", &[2, 3], Elemental::Tanh).expect("W");
    let weights = [0.5, -1.0, 2.0, 0.25, -0.75, 1.5, 1.0, -2.0, 3.0];
    params.set(&weights).expect("W");
    let transposed = Op::Transposed { weight: 0 };
    let affine = Op::Affine {
        weight: 0,
        bias: Some(6),
    };
    let square = Op::Elemental(Elemental::Powi(2));
    let equation = equation(
        &params,
        |x| net.at::<3>(&[x, x])[0],
        vec![
            (Op::Coordinate(0), vec![], 1),
            (square, vec![0], 1),
            (Op::Stack, vec![0, 1], 2),
            (affine, vec![2], 3),
            (transposed, vec![3], 2),
            (Op::SumRows, vec![4], 1),
        ],
    );
    let points = [0.5, -2.0, 1.0, 3.0];
    let (values, gradient) = evaluate(&params, &equation, &points);
    let (w, b) = weights.split_at(6);
    let mut want = [0.0; 9];
    for (n, x) in points.into_iter().enumerate() {
        let a = [x, x * x];
        let y: Vec<f64> = (0..3)
            .map(|i| w[2 * i] * a[0] + w[2 * i + 1] * a[1] + b[i])
            .collect();
        let sum: f64 = (0..6).map(|k| w[k] * y[k / 2]).sum();
        assert!((values[n] - sum).abs() < 1e-13, "{} {sum}", values[n]);
        for i in 0..3 {
            let rows = w[2 * i] + w[2 * i + 1];
            for (j, a) in a.iter().enumerate() {
                want[2 * i + j] += (y[i] + rows * a) / 4.0;
            }
            want[6 + i] += rows / 4.0;
        }
    }
    for (got, want) in gradient.iter().zip(want) {
        assert!((got - want).abs() < 1e-13, "{gradient:?} {want:?}");
    }
}

/// Numbers that the tape knows are columns of W: for W·[2, −1] + b and Wᵀ·[1, 0, 3].
#[test]
fn products_with_known_numbers() {
    let mut params = Parameters::new();
    let net = params.mlp("w", &[2, 3], Elemental::Tanh).expect("W");
    let weights = [0.5, -1.0, 2.0, 0.25, -0.75, 1.5, 1.0, -2.0, 3.0];
    params.set(&weights).expect("W");
    let affine = Op::Affine {
        weight: 0,
        bias: Some(6),
    };
    let nodes = |transposed: bool| {
        let mut nodes = vec![
            (Op::Coordinate(0), vec![], 1),
            (Op::Constant(2.0), vec![], 1),
            (Op::Constant(-1.0), vec![], 1),
            (Op::Constant(0.0), vec![], 1),
        ];
        if transposed {
            let three = Op::Linear {
                factors: smallvec::smallvec![1.0, -1.0],
                shift: 0.0,
            };
            nodes.push((three, vec![1, 2], 1));
            nodes.push((
                Op::Linear {
                    factors: smallvec::smallvec![-1.0],
                    shift: 0.0,
                },
                vec![2],
                1,
            ));
            nodes.push((Op::Stack, vec![5, 3, 4], 3));
            nodes.push((Op::Transposed { weight: 0 }, vec![6], 2));
        } else {
            nodes.push((Op::Stack, vec![1, 2], 2));
            nodes.push((affine.clone(), vec![4], 3));
        }
        let last = nodes.len() - 1;
        nodes.push((Op::SumRows, vec![last], 1));
        nodes.push((Op::Product, vec![0, last + 1], 1));
        nodes
    };
    let x = [0.5, -2.0, 1.0];
    let mean = x.iter().sum::<f64>() / 3.0;
    let check = |transposed: bool, sum: f64, slopes: [f64; 9]| {
        let touch = |x| net.at::<3>(&[x, x])[0];
        let equation = equation(&params, touch, nodes(transposed));
        let plan = Plan::new(
            equation.tape(),
            equation.held(),
            &mut WeightTable::default(),
            Sweep::Reverse,
        );
        assert_eq!(plan.flops, 0, "nothing is multiplied out");
        let (values, gradient) = evaluate(&params, &equation, &x);
        for (value, x) in values.iter().zip(x) {
            assert!((value - sum * x).abs() < 1e-13, "{value}, {}", sum * x);
        }
        for (g, slope) in gradient.iter().zip(slopes) {
            assert!((g - slope * mean).abs() < 1e-13, "{gradient:?}, {slopes:?}");
        }
    };
    let rows: f64 = (0..3)
        .map(|i| 2.0 * weights[2 * i] - weights[2 * i + 1])
        .sum();
    check(
        false,
        rows + 2.0,
        [2.0, -1.0, 2.0, -1.0, 2.0, -1.0, 1.0, 1.0, 1.0],
    );
    let columns = weights[0] + weights[1] + 3.0 * (weights[4] + weights[5]);
    check(true, columns, [1.0, 1.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 0.0]);
}

/// A guard is 0 only where its factor is not finite and the adjoint is 0.
#[test]
fn guards() {
    let params = Parameters::new();
    let linear = |factor: f64, shift: f64| Op::Linear {
        factors: smallvec::smallvec![factor],
        shift,
    };
    // 1/x beside x − 2 and x: at 0, 2 and 1.
    let guard = |adjoint: NodeId| {
        equation(
            &params,
            |x| x,
            vec![
                (Op::Coordinate(0), vec![], 1),
                (Op::Elemental(Elemental::Recip), vec![0], 1),
                (linear(1.0, -2.0), vec![0], 1),
                (Op::Guard, vec![1, adjoint], 1),
            ],
        )
    };
    let at = [0.0, 2.0, 1.0];
    assert_eq!(evaluate(&params, &guard(2), &at).0, [1.0, 1.0, 1.0]);
    assert_eq!(evaluate(&params, &guard(0), &at).0, [0.0, 1.0, 1.0]);
}

/// Several derivatives of a function at once are what each of them is alone.
#[test]
fn families() {
    let mut params = Parameters::new();
    let k = params.coefficient("k", 0.8).expect("k");
    let of = |order: usize| {
        let mut f = Elemental::Tanh;
        for _ in 0..order {
            let crate::elemental::Slope::Elemental(slope) = f.slope() else {
                panic!("an elemental");
            };
            f = slope;
        }
        Op::Elemental(f)
    };
    let x = [0.4, -1.3, 25.0];
    let together = |members: &[usize]| {
        let mut nodes = vec![
            (Op::Coordinate(0), vec![], 1),
            (Op::Parameter(0), vec![], 1),
            (Op::Product, vec![0, 1], 1),
        ];
        let mut sum = Vec::new();
        for &order in members {
            nodes.push((of(order), vec![2], 1));
            sum.push(nodes.len() - 1);
        }
        nodes.push((
            Op::Linear {
                factors: sum.iter().map(|&id| id as f64).collect(),
                shift: 0.0,
            },
            sum,
            1,
        ));
        equation(&params, |x| k.field() * x, nodes)
    };
    let (values, gradient) = evaluate(&params, &together(&[0, 1, 2, 4]), &x);
    let mut sums = ([0.0; 3], 0.0);
    for (place, order) in [(3.0, 0), (4.0, 1), (5.0, 2), (6.0, 4)] {
        let (own, slope) = evaluate(&params, &together(&[order]), &x);
        for (n, own) in own.iter().enumerate() {
            sums.0[n] += place / 3.0 * own;
            let c = Elemental::Tanh
                .taylor(0.8 * x[n], order)
                .expect("coefficients");
            let want = c[order] * (1..=order).map(|k| k as f64).product::<f64>();
            assert!((own / 3.0 / want - 1.0).abs() < 1e-14, "order {order}");
        }
        sums.1 += place / 3.0 * slope[0];
    }
    for (got, want) in values.iter().zip(sums.0) {
        assert!((got - want).abs() < 1e-14, "{got}, {want}");
    }
    assert!((gradient[0] - sums.1).abs() < 1e-14);
}
