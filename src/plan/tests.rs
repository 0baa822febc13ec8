//! Compositions against repeated products, and counted products.

use super::*;
use crate::kernel::jet::bilinear;
use crate::plane::MultiIndex;
use crate::{Elemental, Equation, Parameters};
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
fn dot_product_test(residual: impl Fn([crate::Field; 2], [crate::Field; 2]) -> crate::Field) {
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
