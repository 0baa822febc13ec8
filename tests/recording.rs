//! What can be recorded: generic functions, num-dual and nalgebra on fields, several
//! networks, shifted points, divergence forms, and which planes each node holds.

mod common;

use common::assert_close;
use dualtape::record::Residuals;
use dualtape::{
    Activation, Architecture, Condition, Elemental, Engine, Equation, Field, Mlp, Parameters,
    Points, Problem, Smoothness, data, detach, select, values,
};
use nalgebra::{SMatrix, SVector};
use num_dual::{Dual2_64, Dual64, DualNum, HyperDual64};
use std::f64::consts::PI;
use std::ops::{Mul, Neg};

const TIGHT: f64 = 1e-13;

/// Values of recorded expressions at points (rows).
#[track_caller]
fn evaluate<R: Residuals, const N: usize>(
    params: &Parameters,
    names: [&str; N],
    rows: &[[f64; N]],
    closure: impl FnOnce([Field; N]) -> R,
) -> Vec<Vec<f64>> {
    let equation = Equation::record("expression", params, names, closure).expect("an equation");
    let points = Points::from_rows(rows).expect("points");
    values(&equation, params, &points).expect("values")
}

/// The loss and its gradient for the mean of squares at points.
#[track_caller]
fn loss_and_gradient<R: Residuals, const N: usize>(
    params: &Parameters,
    names: [&str; N],
    rows: &[[f64; N]],
    closure: impl FnOnce([Field; N]) -> R,
) -> (f64, Vec<f64>) {
    let equation = Equation::record("expression", params, names, closure).expect("an equation");
    let points = Points::from_rows(rows).expect("points");
    let problem = Problem::new(params, [Condition::new(&equation, points)]).expect("a problem");
    let evaluation = Engine::new(&problem)
        .and_then(|engine| engine.evaluate(params.values()))
        .expect("an evaluation");
    (evaluation.loss, evaluation.gradient)
}

fn network(widths: &[usize]) -> (Parameters, Mlp) {
    let mut params = Parameters::seeded(11);
    let net = params.mlp("u", widths, Elemental::Tanh).expect("a network");
    shake(&mut params);
    (params, net)
}

/// Parameters that are all different, biases too.
fn shake(params: &mut Parameters) {
    for (i, value) in params.values_mut().iter_mut().enumerate() {
        *value += 0.3 * (1.7 * i as f64 + 0.5).sin();
    }
}

const X: [[f64; 1]; 5] = [[-0.8], [-0.1], [0.3], [0.77], [1.9]];
const XY: [[f64; 2]; 5] = [
    [0.3, 0.7],
    [-0.4, 0.2],
    [1.1, -0.6],
    [-0.9, -1.2],
    [0.05, 2.0],
];

/// One closed form at all points.
fn form<const N: usize>(rows: &[[f64; N]], f: impl Fn(&[f64; N]) -> f64) -> Vec<f64> {
    rows.iter().map(f).collect()
}

// Generic functions and num-dual.

/// An energy density as a user would write it for any number.
fn energy<D: DualNum<Primitive = f64> + Copy>(strain: D) -> D {
    let square = strain * strain;
    square * 0.5 + square * square * 0.1 + (-square).exp() - strain.powi(3) / 3.0
}
fn stress(strain: f64) -> f64 {
    strain + 0.4 * strain.powi(3) - 2.0 * strain * (-strain * strain).exp() - strain * strain
}
fn stiffness(strain: f64) -> f64 {
    let square = strain * strain;
    1.0 + 1.2 * square + (4.0 * square - 2.0) * (-square).exp() - 2.0 * strain
}

#[test]
fn generic_function_inside_a_recording() {
    let params = Parameters::new();
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let w = energy(x);
        [w, w.d(x), w.d(x).d(x)]
    });
    assert_close("energy", &got[0], &form(&X, |&[x]| energy(x)), TIGHT);
    assert_close("stress", &got[1], &form(&X, |&[x]| stress(x)), TIGHT);
    assert_close("stiffness", &got[2], &form(&X, |&[x]| stiffness(x)), TIGHT);
}

#[test]
fn material_law_by_num_dual() {
    let params = Parameters::new();
    // A displacement whose strain is cos x.
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let strain = x.sin().d(x);
        let (w, stress) = num_dual::first_derivative(energy, strain);
        let (_, again, stiffness) = num_dual::second_derivative(energy, strain);
        let third = num_dual::third_derivative(energy, strain).2;
        (w, stress, again, stiffness, third, stress.d(x))
    });
    let strain = |x: f64| x.cos();
    assert_close(
        "energy",
        &got[0],
        &form(&X, |&[x]| energy(strain(x))),
        TIGHT,
    );
    for i in [1, 2] {
        assert_close(
            "stress",
            &got[i],
            &form(&X, |&[x]| stress(strain(x))),
            TIGHT,
        );
    }
    for i in [3, 4] {
        assert_close(
            "stiffness",
            &got[i],
            &form(&X, |&[x]| stiffness(strain(x))),
            TIGHT,
        );
    }
    // Equilibrium: fields by num-dual, coordinates by the tape.
    let want = form(&X, |&[x]| -stiffness(strain(x)) * x.sin());
    assert_close("divergence", &got[5], &want, TIGHT);
}

#[test]
fn material_law_of_a_network_against_nested_numbers() {
    let (params, net) = network(&[1, 5, 5, 1]);
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        let (_, stress) = num_dual::first_derivative(energy, u.d(x));
        stress.d(x)
    });
    let want = form(&X, |&[x]| {
        let x = num_dual::Dual2::from_re(x).derivative();
        let u: Dual2_64 = net.eval(&params, &[x]).expect("u")[0];
        stiffness(u.v1) * u.v2
    });
    assert_close("divergence", &got[0], &want, TIGHT);
}

#[test]
fn gradient_of_an_energy_of_two_fields() {
    fn law<D: DualNum<Primitive = f64> + Copy>(v: SVector<D, 2>) -> D {
        (v[0] * v[1]).sin() + v[0].powi(2) * v[1]
    }
    let params = Parameters::new();
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let fields = SVector::<Field, 2>::new(x * y, x + y);
        let (value, gradient) = num_dual::gradient(law, &fields);
        let (_, _, hessian) = num_dual::hessian(law, &fields);
        (value, gradient[0], gradient[1], hessian[(0, 1)])
    });
    let ab = |&[x, y]: &[f64; 2]| (x * y, x + y);
    let want = form(&XY, |p| {
        let (a, b) = ab(p);
        (a * b).sin() + a * a * b
    });
    assert_close("value", &got[0], &want, TIGHT);
    let want = form(&XY, |p| {
        let (a, b) = ab(p);
        b * (a * b).cos() + 2.0 * a * b
    });
    assert_close("in the first", &got[1], &want, TIGHT);
    let want = form(&XY, |p| {
        let (a, b) = ab(p);
        a * (a * b).cos() + a * a
    });
    assert_close("in the second", &got[2], &want, TIGHT);
    let want = form(&XY, |p| {
        let (a, b) = ab(p);
        (a * b).cos() - a * b * (a * b).sin() + 2.0 * a
    });
    assert_close("mixed", &got[3], &want, TIGHT);
}

#[test]
fn matrices_of_fields() {
    let params = Parameters::new();
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let a = SMatrix::<Field, 2, 2>::new(x, y, x * y, x.sin());
        let b = SMatrix::<Field, 2, 2>::new(y, x, Field::from(2.0), x * x);
        let v = SVector::<Field, 2>::new(x.cos(), y);
        let det = |m: &SMatrix<Field, 2, 2>| m[(0, 0)] * m[(1, 1)] - m[(0, 1)] * m[(1, 0)];
        let product = a * b;
        let image = a * v;
        (
            det(&product),
            det(&product) - det(&a) * det(&b),
            image[0],
            image[1].d(x),
            v.dot(&image),
        )
    });
    let det_a = |x: f64, y: f64| x * x.sin() - y * x * y;
    let det_b = |x: f64, y: f64| y * x * x - 2.0 * x;
    let want = form(&XY, |&[x, y]| det_a(x, y) * det_b(x, y));
    assert_close("determinant of the product", &got[0], &want, 1e-12);
    assert!(
        got[1].iter().all(|d| d.abs() < 1e-13),
        "product of determinants: {:?}",
        got[1]
    );
    assert_close(
        "image",
        &got[2],
        &form(&XY, |&[x, y]| x * x.cos() + y * y),
        TIGHT,
    );
    let want = form(&XY, |&[x, y]| y * x.cos() - x * y * x.sin() + y * x.cos());
    assert_close("derivative of the image", &got[3], &want, TIGHT);
    let want = form(&XY, |&[x, y]| {
        x.cos() * (x * x.cos() + y * y) + y * (x * y * x.cos() + x.sin() * y)
    });
    assert_close("form", &got[4], &want, TIGHT);
}

#[test]
fn no_perturbation_is_confused_with_another() {
    let params = Parameters::new();
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let slope = |f: Field| num_dual::first_derivative(|s| s * num_dual::Dual::from_re(f), x).1;
        (
            (x * (x * y).d(y)).d(x),
            (x * (x + y).d(y)).d(x),
            (x * (x * (x * y).d(y)).d(x)).d(y) + y,
            (x * slope(x * y)).d(x),
            (y * (x * x * y).d(x).d(y)).d(x),
        )
    });
    assert_close(
        "d/dx (x d/dy (x y))",
        &got[0],
        &form(&XY, |&[x, _]| 2.0 * x),
        TIGHT,
    );
    assert_close("d/dx (x d/dy (x + y))", &got[1], &form(&XY, |_| 1.0), TIGHT);
    assert_close("d/dy of no y", &got[2], &form(&XY, |&[_, y]| y), TIGHT);
    assert_close(
        "with num-dual inside",
        &got[3],
        &form(&XY, |&[x, y]| 2.0 * x * y),
        TIGHT,
    );
    assert_close(
        "d/dx (y d²/dxdy)",
        &got[4],
        &form(&XY, |&[_, y]| 2.0 * y),
        TIGHT,
    );
}

// Networks in equations.

#[test]
fn several_networks_in_one_equation() {
    let (mut params, u) = network(&[2, 6, 1]);
    let v = params.mlp("v", &[1, 5, 4, 2], Elemental::Silu).expect("v");
    shake(&mut params);
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let [a] = u.at(&[x, y]);
        let [b, c] = v.at(&[a * x]);
        [a.d(x) * b - c.d(y), b.d(x).d(y)]
    });
    let with = |x: HyperDual64, y: HyperDual64| {
        let a = u.eval(&params, &[x, y]).expect("u")[0];
        let bc = v.eval(&params, &[a * x]).expect("v");
        (a, bc[0], bc[1])
    };
    let at = |&[x, y]: &[f64; 2]| {
        with(
            HyperDual64::from_re(x).derivative1(),
            HyperDual64::from_re(y).derivative2(),
        )
    };
    let want = form(&XY, |p| {
        let (a, b, c) = at(p);
        a.eps1 * b.re - c.eps2
    });
    assert_close("first", &got[0], &want, TIGHT);
    assert_close("mixed", &got[1], &form(&XY, |p| at(p).1.eps1eps2), TIGHT);
}

#[test]
fn shifted_and_fixed_points() {
    let (params, net) = network(&[2, 6, 6, 1]);
    let got = evaluate(&params, ["t", "x"], &XY, |[t, x]| {
        let [u] = net.at(&[t, x]);
        let [ahead] = net.at(&[t, x + 2.0]);
        let [scaled] = net.at(&[t, 3.0 * x - 1.0]);
        let [left] = net.at(&[t, Field::from(0.5)]);
        let [crossed] = net.at(&[x, t]);
        [
            ahead - u,
            ahead.d(x),
            scaled.d(x).d(x),
            left.d(t),
            crossed.d(t).d(x),
        ]
    });
    let at = |t: f64, x: f64| {
        let (t, x) = (
            HyperDual64::from_re(t).derivative1(),
            HyperDual64::from_re(x).derivative2(),
        );
        net.eval(&params, &[t, x]).expect("u")[0]
    };
    let second = |t: f64, x: f64| {
        let x = Dual2_64::from_re(x).derivative();
        net.eval(&params, &[Dual2_64::from_re(t), x]).expect("u")[0].v2
    };
    let want = form(&XY, |&[t, x]| at(t, x + 2.0).re - at(t, x).re);
    assert_close("jump", &got[0], &want, TIGHT);
    assert_close(
        "shifted",
        &got[1],
        &form(&XY, |&[t, x]| at(t, x + 2.0).eps2),
        TIGHT,
    );
    let want = form(&XY, |&[t, x]| 9.0 * second(t, 3.0 * x - 1.0));
    assert_close("scaled", &got[2], &want, TIGHT);
    assert_close(
        "fixed",
        &got[3],
        &form(&XY, |&[t, _]| at(t, 0.5).eps1),
        TIGHT,
    );
    assert_close(
        "crossed",
        &got[4],
        &form(&XY, |&[t, x]| at(x, t).eps1eps2),
        TIGHT,
    );
}

#[test]
fn only_fixed_points_and_data_as_inputs() {
    let (params, net) = network(&[2, 4, 1]);
    let equation = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[data("a"), Field::from(-0.5)]);
        u * x
    })
    .expect("an equation");
    let points = Points::from_rows(&X)
        .and_then(|p| p.with_column("a", &[1.0, 2.0, 3.0, 4.0, 5.0]))
        .expect("points");
    let got = values(&equation, &params, &points).expect("values");
    let want: Vec<f64> = X
        .iter()
        .zip(1..)
        .map(|([x], a)| net.eval(&params, &[f64::from(a), -0.5]).expect("u")[0] * x)
        .collect();
    assert_close("values", &got[0], &want, TIGHT);
}

#[test]
fn divergence_form_and_expanded() {
    let (mut params, net) = network(&[2, 6, 6, 1]);
    let c = params.coefficient("c", 0.7).expect("c");
    let k = |u: Field| (-(u * u) * c.field()).exp() + 0.5;
    let slope = |u: Field| -2.0 * c.field() * u * (-(u * u) * c.field()).exp();
    let (loss, gradient) = loss_and_gradient(&params, ["x", "y"], &XY, |[x, y]| {
        let [u] = net.at(&[x, y]);
        (k(u) * u.d(x)).d(x) + (k(u) * u.d(y)).d(y)
    });
    let (expanded, by_hand) = loss_and_gradient(&params, ["x", "y"], &XY, |[x, y]| {
        let [u] = net.at(&[x, y]);
        slope(u) * (u.d(x) * u.d(x) + u.d(y) * u.d(y)) + k(u) * u.laplacian(&[x, y])
    });
    assert!(loss > 1e-3);
    assert_close("loss", &[loss], &[expanded], TIGHT);
    assert_close("gradient", &gradient, &by_hand, TIGHT);
}

#[test]
fn output_transform_as_a_hard_constraint() {
    let (params, net) = network(&[1, 6, 6, 1]);
    let ends = [[0.0], [1.0]];
    let hard = |x: Field| {
        let [n] = net.at(&[x]);
        (x * (1.0 - x) * n, n)
    };
    let got = evaluate(&params, ["x"], &ends, |[x]| hard(x).0);
    assert_eq!(got[0], [0.0, 0.0]);
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let (u, n) = hard(x);
        [
            u.d(x).d(x),
            x * (1.0 - x) * n.d(x).d(x) + 2.0 * (1.0 - 2.0 * x) * n.d(x) - 2.0 * n,
        ]
    });
    assert_close("second derivative", &got[0], &got[1], TIGHT);
}

#[test]
fn periodic_embedding() {
    let (params, net) = network(&[3, 6, 6, 1]);
    let embedded = |t: Field, x: Field| net.at::<1>(&[t, (PI * x).cos(), (PI * x).sin()])[0];
    let got = evaluate(&params, ["t", "x"], &XY, |[t, x]| {
        let u = embedded(t, x);
        let around = embedded(t, x + 2.0);
        [u.d(x).d(x), u.d(t).d(x), around - u, around.d(x) - u.d(x)]
    });
    let want = form(&XY, |&[t, x]| {
        let x = Dual2_64::from_re(x).derivative() * PI;
        let inputs = [Dual2_64::from_re(t), DualNum::cos(&x), DualNum::sin(&x)];
        net.eval(&params, &inputs).expect("u")[0].v2
    });
    assert_close("second derivative", &got[0], &want, TIGHT);
    let want = form(&XY, |&[t, x]| {
        let t = HyperDual64::from_re(t).derivative1();
        let x = HyperDual64::from_re(x).derivative2() * PI;
        net.eval(&params, &[t, DualNum::cos(&x), DualNum::sin(&x)])
            .expect("u")[0]
            .eps1eps2
    });
    assert_close("mixed derivative", &got[1], &want, TIGHT);
    for i in [2, 3] {
        assert!(got[i].iter().all(|jump| jump.abs() < 1e-13), "{:?}", got[i]);
    }
}

// Activations.

#[test]
fn custom_elemental_is_as_good_as_a_built_in_one() {
    // tanh, by its own differential equation.
    let own = Elemental::custom("own", Smoothness::Unlimited, |z, c| {
        c[0] = z.tanh();
        for k in 1..c.len() {
            let square: f64 = (0..k).map(|i| c[i] * c[k - 1 - i]).sum();
            c[k] = (f64::from(u8::from(k == 1)) - square) / k as f64;
        }
    });
    let losses = [own, Elemental::Tanh].map(|elemental| {
        let mut params = Parameters::seeded(3);
        let net = params
            .mlp("u", &[2, 6, 5, 1], elemental)
            .expect("a network");
        shake(&mut params);
        loss_and_gradient(&params, ["x", "y"], &XY, |[x, y]| {
            let [u] = net.at(&[x, y]);
            u.d(x).d(x).d(x) + u.d(x).d(y) * u
        })
    });
    assert_close("loss", &[losses[0].0], &[losses[1].0], TIGHT);
    assert_close("gradient", &losses[0].1, &losses[1].1, TIGHT);
}

#[test]
fn custom_elemental_that_is_not_smooth_is_refused() {
    let hat = Elemental::custom("hat", Smoothness::UpTo(1), |z, c| {
        c.fill(0.0);
        c[0] = (1.0 - z.abs()).max(0.0);
        if let Some(slope) = c.get_mut(1) {
            *slope = if z.abs() < 1.0 { -z.signum() } else { 0.0 };
        }
    });
    let params = Parameters::new();
    let got = evaluate(&params, ["x"], &X, |[x]| x.apply(hat.clone()).d(x));
    assert_eq!(got[0], [1.0, 1.0, -1.0, -1.0, 0.0]);
    let second = Equation::record("eq", &params, ["x"], |[x]| x.apply(hat.clone()).d(x).d(x));
    let text = second.expect_err("not smooth").to_string();
    assert!(
        text.contains("`hat` meets a derivative of order 2"),
        "{text}"
    );
}

#[test]
fn adaptive_tanh_with_a_coefficient() {
    let mut params = Parameters::seeded(5);
    let slope = params.coefficient("slope", 1.3).expect("slope");
    let inside = slope.clone();
    let adaptive = Activation::recorded("adaptive", move |z| (inside.field() * z).tanh());
    let net = params
        .network("u", &Architecture::mlp(&[1, 4, 3, 1]).activation(adaptive))
        .expect("a network");
    shake(&mut params);
    // The same network with the slope in its weights and biases.
    let mut plain = Parameters::new();
    let scaled = plain
        .mlp("u", &[1, 4, 3, 1], Elemental::Tanh)
        .expect("a network");
    let factor = slope.value(&params).expect("slope");
    let hidden = 4 + 4 + 12 + 3;
    for (i, (to, from)) in plain
        .values_mut()
        .iter_mut()
        .zip(&params.values()[1..])
        .enumerate()
    {
        *to = if i < hidden { factor * from } else { *from };
    }
    let residual = |net: &Mlp, x: Field| {
        let [u] = net.at(&[x]);
        u.d(x).d(x) + u * u
    };
    let (loss, gradient) = loss_and_gradient(&params, ["x"], &X, |[x]| residual(&net, x));
    let (want, inner) = loss_and_gradient(&plain, ["x"], &X, |[x]| residual(&scaled, x));
    assert_close("loss", &[loss], &[want], TIGHT);
    // Chain rule: the weight w stands as slope·w.
    let mut chained = vec![0.0];
    for (i, g) in inner.iter().enumerate() {
        if i < hidden {
            chained[0] += g * params.values()[i + 1];
            chained.push(g * factor);
        } else {
            chained.push(*g);
        }
    }
    assert_close("gradient", &gradient, &chained, TIGHT);
}

#[test]
fn siren_as_on_numbers() {
    let mut params = Parameters::seeded(2);
    let net = params
        .network("u", &Architecture::siren(&[2, 8, 8, 1], 5.0))
        .expect("a network");
    let bound = |name: &str| params.matrix(name).expect("a block").amax();
    assert!(bound("u.0.weight") <= 0.5 && bound("u.0.weight") > 0.2);
    let inner = (6.0_f64 / 8.0).sqrt() / 5.0;
    assert!(bound("u.1.weight") <= inner && bound("u.1.weight") > 0.5 * inner);
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let [u] = net.at(&[x, y]);
        [u, u.d(x).d(y), u.d(x).d(x)]
    });
    let at = |&[x, y]: &[f64; 2]| {
        let (x, y) = (
            HyperDual64::from_re(x).derivative1(),
            HyperDual64::from_re(y).derivative2(),
        );
        net.eval(&params, &[x, y]).expect("u")[0]
    };
    assert_close("value", &got[0], &form(&XY, |p| at(p).re), TIGHT);
    assert_close("mixed", &got[1], &form(&XY, |p| at(p).eps1eps2), TIGHT);
    let want = form(&XY, |&[x, y]| {
        let x = Dual2_64::from_re(x).derivative();
        net.eval(&params, &[x, Dual2_64::from_re(y)]).expect("u")[0].v2
    });
    assert_close("second", &got[2], &want, TIGHT);
}

#[test]
fn network_without_hidden_layers_under_derivatives() {
    // u = a t + b x + c: transport needs only the derivatives, which are the weights.
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[2, 1], Elemental::Tanh)
        .expect("a network");
    params.set(&[2.0, 3.0, 5.0]).expect("set");
    let rows = [[0.1, 0.2], [0.3, -0.4]];
    let (loss, gradient) = loss_and_gradient(&params, ["t", "x"], &rows, |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + 2.0 * u.d(x) - 1.0
    });
    assert_eq!((loss, gradient), (49.0, vec![14.0, 28.0, 0.0]));
}

// Selection.

#[test]
fn select_by_point() {
    let (mut params, net) = network(&[1, 5, 1]);
    let nu = params.coefficient("nu", 2.0).expect("nu");
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        let by_sign = select(x.above(0.0), x.sin(), x * x);
        let strict = select(x.above(0.3), 1.0, 0.0);
        let weak = select(x.at_least(0.3), 1.0, 0.0);
        let below = select(x.below(0.3), 1.0, 0.0);
        let most = select(x.at_most(0.3), 1.0, 0.0);
        let nested = select(x.above(0.5), select(x.above(1.0), 3.0, x), u * 0.0 - 1.0);
        [by_sign, by_sign.d(x), by_sign.d(x).d(x)]
            .map(|f| f + 0.0 * nu.field())
            .into_iter()
            .chain([strict, weak, below, most, nested])
            .collect::<Vec<_>>()
    });
    let branch = |positive: fn(f64) -> f64, other: fn(f64) -> f64| {
        form(&X, |&[x]| if x > 0.0 { positive(x) } else { other(x) })
    };
    assert_close("value", &got[0], &branch(f64::sin, |x| x * x), TIGHT);
    assert_close("first", &got[1], &branch(f64::cos, |x| 2.0 * x), TIGHT);
    assert_close("second", &got[2], &branch(|x| -x.sin(), |_| 2.0), TIGHT);
    assert_eq!(got[3], [0.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(got[4], [0.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(got[5], [1.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(got[6], [1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(got[7], [-1.0, -1.0, -1.0, 0.77, 3.0]);
}

#[test]
fn select_without_any_elementary_function() {
    let mut params = Parameters::new();
    let k = params.coefficient("k", 3.0).expect("k");
    let (loss, gradient) = loss_and_gradient(&params, ["x"], &X, |[x]| {
        select(x.above(0.0), k.field() * x, -x)
    });
    let squares: f64 = X
        .iter()
        .map(|[x]| if *x > 0.0 { 9.0 * x * x } else { x * x })
        .sum();
    let positive: f64 = X
        .iter()
        .map(|[x]| if *x > 0.0 { 6.0 * x * x } else { 0.0 })
        .sum();
    assert_close("loss", &[loss], &[squares / 5.0], TIGHT);
    assert_close("gradient", &gradient, &[positive / 5.0], TIGHT);
}

#[test]
fn network_below_a_selection_leaves_its_inputs_alone() {
    // In the lanes where `outer` is not taken its adjoints are 0; `u` is still read there.
    let (mut params, inner) = network(&[1, 4, 1]);
    let outer = params.mlp("v", &[1, 3, 1], Elemental::Tanh).expect("v");
    shake(&mut params);
    let combined = |[x]: [Field; 1]| {
        let [u] = inner.at(&[x]);
        let square = u * u;
        let [v] = outer.at(&[u]);
        select(x.above(0.0), v, u) + square
    };
    let all = loss_and_gradient(&params, ["x"], &X, combined);
    // Each branch by itself, at its own points, added up.
    let (negative, positive) = X.split_at(2);
    let at_positive = loss_and_gradient(&params, ["x"], positive, |[x]| {
        let [u] = inner.at(&[x]);
        outer.at::<1>(&[u])[0] + u * u
    });
    let mut alone = Parameters::seeded(11);
    let same = alone.mlp("u", &[1, 4, 1], Elemental::Tanh).expect("u");
    let count = alone.len();
    alone.set(&params.values()[..count]).expect("set");
    let at_negative = loss_and_gradient(&alone, ["x"], negative, |[x]| {
        let [u] = same.at(&[x]);
        u + u * u
    });
    let loss = (2.0 * at_negative.0 + 3.0 * at_positive.0) / 5.0;
    assert_close("loss", &[all.0], &[loss], TIGHT);
    let want: Vec<f64> = (0..params.len())
        .map(|i| {
            let negative = at_negative.1.get(i).copied().unwrap_or(0.0);
            (2.0 * negative + 3.0 * at_positive.1[i]) / 5.0
        })
        .collect();
    assert_close("gradient", &all.1, &want, TIGHT);
}

#[test]
fn selection_inside_an_activation() {
    // A leaky ReLU by selection, row by row of a layer.
    let leaky = Activation::recorded("leaky", |z| select(z.above(0.0), z, 0.1 * z));
    let mut params = Parameters::seeded(8);
    let net = params
        .network("u", &Architecture::mlp(&[1, 7, 6, 1]).activation(leaky))
        .expect("a network");
    shake(&mut params);
    let by_hand = |x: f64, theta: &[f64]| {
        let leak = |z: f64| if z > 0.0 { z } else { 0.1 * z };
        let first: Vec<f64> = (0..7).map(|i| leak(theta[i] * x + theta[7 + i])).collect();
        let second: Vec<f64> = (0..6)
            .map(|i| {
                let sum: f64 = (0..7).map(|j| theta[14 + i * 7 + j] * first[j]).sum();
                leak(sum + theta[56 + i])
            })
            .collect();
        let sum: f64 = (0..6).map(|j| theta[62 + j] * second[j]).sum();
        sum + theta[68]
    };
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        [u, u.d(x)]
    });
    assert_close(
        "value",
        &got[0],
        &form(&X, |&[x]| by_hand(x, params.values())),
        TIGHT,
    );
    let h = 1e-6;
    let want = form(&X, |&[x]| {
        (by_hand(x + h, params.values()) - by_hand(x - h, params.values())) / (2.0 * h)
    });
    assert_close("slope", &got[1], &want, 1e-9);
    // Piecewise linear in each parameter, so central differences are exact but for rounding.
    let (_, gradient) = loss_and_gradient(&params, ["x"], &X, |[x]| net.at::<1>(&[x])[0]);
    let loss = |theta: &[f64]| {
        form(&X, |&[x]| by_hand(x, theta).powi(2))
            .iter()
            .sum::<f64>()
            / 5.0
    };
    let differences: Vec<f64> = (0..params.len())
        .map(|i| {
            let mut theta = params.values().to_vec();
            theta[i] += h;
            let above = loss(&theta);
            theta[i] -= 2.0 * h;
            (above - loss(&theta)) / (2.0 * h)
        })
        .collect();
    assert_close("gradient", &gradient, &differences, 1e-9);
}

#[test]
fn detached_values_keep_their_derivatives_in_the_coordinates() {
    let (params, net) = network(&[1, 5, 1]);
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        [detach(u).d(x).d(x), u.d(x).d(x)]
    });
    assert_eq!(got[0], got[1]);
    let (loss, gradient) = loss_and_gradient(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        detach(u.d(x))
    });
    assert!(loss > 1e-3);
    assert!(gradient.iter().all(|g| *g == 0.0), "{gradient:?}");
}

// Elementary functions.

/// Value and first two derivatives in x of recorded functions at points.
fn jets(points: &[f64], functions: &[&dyn Fn(Field) -> Field]) -> Vec<[Vec<f64>; 3]> {
    let params = Parameters::new();
    let rows: Vec<[f64; 1]> = points.iter().map(|&x| [x]).collect();
    let got = evaluate(&params, ["x"], &rows, |[x]| {
        let orders = |f: &&dyn Fn(Field) -> Field| {
            let v = f(x) + 0.0 * x;
            [v, v.d(x), v.d(x).d(x)]
        };
        functions.iter().flat_map(orders).collect::<Vec<_>>()
    });
    got.chunks(3)
        .map(|three| [three[0].clone(), three[1].clone(), three[2].clone()])
        .collect()
}

#[track_caller]
fn assert_jets(name: &str, got: &[Vec<f64>; 3], points: &[f64], f: impl Fn(f64) -> [f64; 3]) {
    for (n, &x) in points.iter().enumerate() {
        for (order, want) in f(x).into_iter().enumerate() {
            let got = got[order][n];
            let error = (got - want).abs();
            assert!(
                error <= 1e-13 * want.abs() + 1e-15,
                "{name} at {x}, order {order}: got {got:e}, want {want:e}"
            );
        }
    }
}

#[test]
fn every_function_of_num_dual() {
    /// Inherent, by the trait, and on num-dual's own numbers.
    macro_rules! case {
        ($points:expr, $name:ident $(, $argument:expr)*) => {{
            let points: &[f64] = &$points;
            let inherent = |x: Field| Field::$name(x $(, $argument)*);
            let generic = |x: Field| <Field as DualNum>::$name(&x $(, $argument)*);
            let got = jets(points, &[&inherent, &generic]);
            for got in &got {
                assert_jets(stringify!($name), got, points, |x| {
                    let v = DualNum::$name(&Dual2_64::from_re(x).derivative() $(, $argument)*);
                    [v.re, v.v1, v.v2]
                });
            }
        }};
    }
    macro_rules! trait_only {
        ($points:expr, $name:ident $(, $argument:expr)*) => {{
            let points: &[f64] = &$points;
            let got = jets(points, &[&|x: Field| <Field as DualNum>::$name(&x $(, $argument)*)]);
            assert_jets(stringify!($name), &got[0], points, |x| {
                let v = DualNum::$name(&Dual2_64::from_re(x).derivative() $(, $argument)*);
                [v.re, v.v1, v.v2]
            });
        }};
    }
    let all = [-2.3, -0.7, 0.2, 1.1, 3.7];
    let inside = [-0.9, -0.3, 0.11, 0.5, 0.83];
    let positive = [0.03, 0.4, 1.0, 2.7, 30.0];
    let not_zero = [-3.0, -0.2, 0.1, 1.0, 7.5];
    case!(all, tanh);
    case!(all, sin);
    case!(all, cos);
    case!([-1.2, -0.3, 0.4, 1.3], tan);
    case!(all, exp);
    case!(all, exp_m1);
    case!(positive, ln);
    case!([-0.5, 0.0, 0.2, 3.0], ln_1p);
    case!(positive, sqrt);
    case!(positive, cbrt);
    case!(not_zero, recip);
    case!(all, sinh);
    case!(all, cosh);
    case!(inside, asin);
    case!(inside, acos);
    case!(all, atan);
    case!(all, asinh);
    case!([1.01, 1.5, 2.5, 40.0], acosh);
    case!(inside, atanh);
    for n in [-3, -1, 0, 1, 2, 3, 7] {
        case!(not_zero, powi, n);
    }
    for p in [-1.5, 0.5, 1.0, 2.0, 2.7] {
        case!(positive, powf, p);
    }
    trait_only!(all, exp2);
    trait_only!(positive, log, 3.0);
    trait_only!(positive, log2);
    trait_only!(positive, log10);
    let got = jets(&all, &[&|x| x.sin_cos().0, &|x| x.sin_cos().1]);
    assert_jets("sin of sin_cos", &got[0], &all, |x| {
        [x.sin(), x.cos(), -x.sin()]
    });
    assert_jets("cos of sin_cos", &got[1], &all, |x| {
        [x.cos(), -x.sin(), -x.cos()]
    });
    let got = jets(&positive, &[&|x| x.powd(x)]);
    assert_jets("x to the x", &got[0], &positive, |x| {
        let x = Dual2_64::from_re(x).derivative();
        let v = x.powd(x);
        [v.re, v.v1, v.v2]
    });
    let got = jets(&all, &[&|x| x.mul_add(x, x)]);
    assert_jets("mul_add", &got[0], &all, |x| {
        [x * x + x, 2.0 * x + 1.0, 2.0]
    });
}

#[test]
fn every_function_that_num_dual_lacks() {
    let all = [-6.0, -2.3, -0.7, 0.2, 1.1, 3.7, 8.0];
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let slope = |x: f64| sigmoid(x) * sigmoid(-x);
    let curvature = |x: f64| slope(x) * (sigmoid(-x) - sigmoid(x));
    let got = jets(
        &all,
        &[
            &Field::sigmoid,
            &Field::log_sigmoid,
            &Field::softplus,
            &Field::silu,
            &Field::erf,
            &|x| (x * x).silu(),
        ],
    );
    assert_jets("sigmoid", &got[0], &all, |x| {
        [sigmoid(x), slope(x), curvature(x)]
    });
    assert_jets("log_sigmoid", &got[1], &all, |x| {
        [-(-x).exp().ln_1p(), sigmoid(-x), -slope(x)]
    });
    assert_jets("softplus", &got[2], &all, |x| {
        [x.max(0.0) + (-x.abs()).exp().ln_1p(), sigmoid(x), slope(x)]
    });
    assert_jets("silu", &got[3], &all, |x| {
        let second = 2.0 * slope(x) + x * curvature(x);
        [x * sigmoid(x), sigmoid(x) + x * slope(x), second]
    });
    for (n, x) in all.iter().enumerate() {
        let density = 2.0 / PI.sqrt() * (-x * x).exp();
        assert_close("slope of erf", &[got[4][1][n]], &[density], TIGHT);
        assert_close(
            "curvature of erf",
            &[got[4][2][n]],
            &[-2.0 * x * density],
            TIGHT,
        );
    }
    assert_close("erf", &[got[4][0][4]], &[0.8802050695740817], TIGHT);
    // gelu = x Φ(x), with Φ by erf.
    let got = jets(
        &all,
        &[&Field::gelu, &|x| {
            x * 0.5 * (1.0 + (x / 2.0_f64.sqrt()).erf())
        }],
    );
    for (order, (own, by_erf)) in got[0].iter().zip(&got[1]).enumerate() {
        for (n, x) in all.iter().enumerate().filter(|(_, x)| **x > -1.0) {
            let what = format!("gelu at {x}, order {order}");
            assert_close(&what, &[own[n]], &[by_erf[n]], 1e-12);
        }
    }
}

#[test]
fn functions_with_a_kink() {
    let params = Parameters::new();
    let rows = [[-2.0], [0.0], [3.0]];
    let got = evaluate(&params, ["x"], &rows, |[x]| {
        let sign = num_traits::Signed::signum(&x);
        let part = num_traits::Signed::abs_sub(&x, &Field::from(1.0));
        [
            x.abs(),
            x.abs().d(x),
            x.relu(),
            x.relu().d(x),
            sign,
            part,
            part.d(x),
        ]
    });
    assert_eq!(got[0], [2.0, 0.0, 3.0]);
    assert_eq!(got[1], [-1.0, 0.0, 1.0]);
    assert_eq!(got[2], [0.0, 0.0, 3.0]);
    assert_eq!(got[3], [0.0, 0.0, 1.0]);
    assert_eq!(got[4], [-1.0, 1.0, 1.0]);
    assert_eq!(got[5], [0.0, 0.0, 2.0]);
    assert_eq!(got[6], [0.0, 0.0, 1.0]);
}

#[test]
fn gradient_through_kinks() {
    let mut params = Parameters::seeded(12);
    let net = params
        .mlp("u", &[2, 6, 5, 2], Elemental::Relu)
        .expect("a network");
    shake(&mut params);
    let equation = Equation::record("eq", &params, ["x", "y"], |[x, y]| {
        let [u, v] = net.at(&[x, y]);
        u.d(x) + v.abs() * u + num_traits::Signed::signum(&v) * v.d(y)
    })
    .expect("an equation");
    let points = Points::from_rows(&XY).expect("points");
    let problem = Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    let evaluation = engine.evaluate(params.values()).expect("an evaluation");
    assert!(evaluation.loss > 1e-2);
    let h = 1e-6;
    let differences: Vec<f64> = (0..params.len())
        .map(|i| {
            let at = |step: f64| {
                let mut theta = params.values().to_vec();
                theta[i] += step;
                engine.loss(&theta).expect("a loss")
            };
            (at(h) - at(-h)) / (2.0 * h)
        })
        .collect();
    assert_close("gradient", &evaluation.gradient, &differences, 1e-9);
}

/// As generic code multiplies.
fn references<'a, T: Mul<&'a T, Output = T> + Copy>(a: &'a T, b: &'a T) -> T {
    *a * b
}

#[test]
fn arithmetic_with_numbers_and_references() {
    let params = Parameters::new();
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let mut y = x;
        y += 1.0;
        y *= x;
        y -= 0.5 * x;
        y /= 2.0;
        let mut z = x;
        z += x;
        z -= x * 3.0;
        z *= z;
        z /= 4.0 + x;
        let sum: Field = [x, y, Field::from(2.0)].iter().sum();
        let product: Field = [x, Field::from(2.0), x].into_iter().product();
        [
            y,
            z,
            sum,
            product,
            1.0 / (2.0 - references(&x, &x)),
            Neg::neg(&x) + x * 3.0 - x,
            -x,
            x.powi(0) - 1.0 + 0.0 * x,
        ]
    });
    let y = |x: f64| ((x + 1.0) * x - 0.5 * x) / 2.0;
    assert_close("y", &got[0], &form(&X, |&[x]| y(x)), TIGHT);
    assert_close("z", &got[1], &form(&X, |&[x]| x * x / (4.0 + x)), TIGHT);
    assert_close("sum", &got[2], &form(&X, |&[x]| x + y(x) + 2.0), TIGHT);
    assert_close("product", &got[3], &form(&X, |&[x]| 2.0 * x * x), TIGHT);
    assert_close(
        "quotient",
        &got[4],
        &form(&X, |&[x]| 1.0 / (2.0 - x * x)),
        TIGHT,
    );
    assert_close("x", &got[5], &form(&X, |&[x]| x), TIGHT);
    assert_close("-x", &got[6], &form(&X, |&[x]| -x), TIGHT);
    assert_eq!(got[7], [0.0; 5]);
}

#[test]
fn atan2_in_all_quadrants() {
    let params = Parameters::new();
    let mut rows: Vec<[f64; 2]> = Vec::new();
    for x in [-3.0, -1.0, -1e-3, 1e-3, 1.0, 3.0] {
        for y in [-2.0, -1.0, -1e-4, 1e-4, 1.0, 2.0] {
            rows.push([x, y]);
        }
    }
    rows.extend([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]);
    let got = evaluate(&params, ["x", "y"], &rows, |[x, y]| {
        let angle = y.atan2(x);
        let inside = DualNum::atan2(&(y * 2.0), x * 2.0);
        [
            angle,
            angle.d(x),
            angle.d(y),
            angle.d(x).d(x),
            angle.d(x).d(y),
            inside,
        ]
    });
    for (n, &[x, y]) in rows.iter().enumerate() {
        let square = x * x + y * y;
        let want = [
            y.atan2(x),
            -y / square,
            x / square,
            2.0 * x * y / (square * square),
            (y * y - x * x) / (square * square),
            y.atan2(x),
        ];
        for (i, want) in want.into_iter().enumerate() {
            let error = (got[i][n] - want).abs();
            assert!(
                error <= 1e-13 * want.abs().max(1e-3),
                "atan2({y}, {x}) quantity {i}: got {}, want {want}",
                got[i][n]
            );
        }
    }
}

// Sharing, orders, numbers of coordinates.

#[test]
fn equal_nodes_are_shared() {
    let (mut params, net) = network(&[1, 4, 1]);
    let nu = params.coefficient("nu", 1.0).expect("nu");
    let count = |closure: &dyn Fn(Field) -> Field| {
        let equation = Equation::record("eq", &params, ["x"], |[x]| closure(x));
        equation.expect("an equation").tape().nodes().len()
    };
    // x, affine, tanh, affine
    assert_eq!(count(&|x| net.at::<1>(&[x])[0]), 4);
    assert_eq!(count(&|x| net.at::<1>(&[x])[0] * net.at::<1>(&[x])[0]), 5);
    let twice = |x: Field| net.at::<1>(&[x])[0].d(x) + net.at::<1>(&[x])[0].d(x).sin();
    assert_eq!(count(&twice), 7);
    assert_eq!(
        count(&|x| (nu.field() * x.sin()) * (nu.field() * x.sin())),
        5
    );
    // Different constants, powers and places are different nodes.
    assert_eq!(count(&|x| x.powi(2) + x.powi(3)), 4);
    assert_eq!(count(&|x| (x + 1.0) * (x + 2.0)), 4);
    assert_eq!(count(&|x| (x * 2.0) * (x + 2.0)), 4);
    // Numbers fold.
    assert_eq!(count(&|x| x + (Field::from(1.0) + 2.0).sqrt() * 3.0), 2);
    assert_eq!(count(&|x| x * 1.0 + 0.0), 1);
}

#[test]
fn mixed_derivatives_in_128_coordinates() {
    let params = Parameters::new();
    let names: Vec<String> = (0..128).map(|i| format!("x{i}")).collect();
    let a: Vec<f64> = (0..128).map(|i| 0.1 + 0.01 * f64::from(i)).collect();
    let point: Vec<f64> = (0..128).map(|i| 0.02 * f64::from(i % 7) - 0.05).collect();
    let equation = Equation::record_over("many", &params, &names, |x| {
        let phase: Field = x.iter().zip(&a).map(|(&x, &a)| a * x).sum();
        let u = phase.sin();
        vec![
            u.d(x[0]).d(x[127]),
            u.d(x[127]).d(x[0]),
            u.d(x[63]).d(x[64]).d(x[65]),
            u.d(x[127]).d(x[127]).d(x[1]).d(x[64]),
            u.laplacian(x),
        ]
    })
    .expect("an equation");
    let got = values(
        &equation,
        &params,
        &Points::from_flat(128, &point).expect("a point"),
    )
    .expect("values");
    let phase: f64 = a.iter().zip(&point).map(|(a, x)| a * x).sum();
    let squares: f64 = a.iter().map(|a| a * a).sum();
    let want = [
        -a[0] * a[127] * phase.sin(),
        -a[0] * a[127] * phase.sin(),
        -a[63] * a[64] * a[65] * phase.cos(),
        a[127] * a[127] * a[1] * a[64] * phase.sin(),
        -squares * phase.sin(),
    ];
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_close(&format!("derivative {i}"), got, &[want], 1e-12);
    }
}

#[test]
fn orders_eight_and_twelve() {
    let params = Parameters::new();
    let a = [0.7, -1.3, 0.9];
    let rows = [[0.3, -0.2, 0.5], [1.0, 0.4, -0.7]];
    let orders = [
        [3, 3, 2],
        [8, 0, 0],
        [2, 2, 4],
        [1, 1, 6],
        [4, 4, 4],
        [0, 12, 0],
    ];
    let got = evaluate(&params, ["x", "y", "z"], &rows, |x| {
        let u = (a[0] * x[0] + a[1] * x[1] + a[2] * x[2]).sin();
        let v = (x[0] * a[0]).sin() * (x[1] * a[1]).exp() * (x[2] * a[2]).cos();
        let mut all = Vec::new();
        for order in orders {
            for mut f in [u, v] {
                for (&x, &k) in x.iter().zip(&order) {
                    for _ in 0..k {
                        f = f.d(x);
                    }
                }
                all.push(f);
            }
        }
        all
    });
    for (i, order) in orders.iter().enumerate() {
        let factor: f64 = a.iter().zip(order).map(|(a, &k)| a.powi(k)).product();
        let shift = f64::from(order.iter().sum::<i32>()) * PI / 2.0;
        let want = form(&rows, |x| {
            factor * (a[0] * x[0] + a[1] * x[1] + a[2] * x[2] + shift).sin()
        });
        assert_close(&format!("sin(a.x), {order:?}"), &got[2 * i], &want, 1e-12);
        let quarter = |k: i32| f64::from(k) * PI / 2.0;
        let want = form(&rows, |x| {
            factor
                * (a[0] * x[0] + quarter(order[0])).sin()
                * (a[1] * x[1]).exp()
                * (a[2] * x[2] + quarter(order[2])).cos()
        });
        assert_close(
            &format!("product, {order:?}"),
            &got[2 * i + 1],
            &want,
            1e-12,
        );
    }
}

#[test]
fn eighth_mixed_derivative_of_a_network() {
    // One hidden layer: the derivative is Σ c_j w_j^α tanh^(8)(z_j).
    let (params, net) = network(&[2, 3, 1]);
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let [mut u] = net.at(&[x, y]);
        for c in [x, y, x, x, y, x, y, x] {
            u = u.d(c);
        }
        u
    });
    let theta = params.values();
    let want = form(&XY, |&[x, y]| {
        (0..3)
            .map(|j| {
                let (a, b) = (theta[2 * j], theta[2 * j + 1]);
                let z: f64 = a * x + b * y + theta[6 + j];
                let c: Vec<f64> = Elemental::Tanh.taylor(z, 8).unwrap();
                theta[9 + j] * a.powi(5) * b.powi(3) * c[8] * 40320.0
            })
            .sum()
    });
    assert_close("order eight", &got[0], &want, 1e-12);
}

// Which planes are held.

/// For each node: operation, rows and planes.
fn sets(equation: &Equation) -> Vec<(String, usize, String)> {
    let tape = equation.tape();
    tape.nodes()
        .iter()
        .zip(equation.held())
        .map(|(node, held)| {
            let planes: Vec<String> = held
                .planes
                .iter()
                .map(|p| p.name(tape.coordinates()))
                .collect();
            (node.op.name(), node.rows, planes.join(" "))
        })
        .collect()
}

#[track_caller]
fn assert_sets(equation: &Equation, want: &[(&str, usize, &str)]) {
    let got = sets(equation);
    let listing = equation.tape().listing().expect("a listing");
    let got: Vec<(&str, usize, &str)> = got
        .iter()
        .map(|(op, rows, planes)| (op.as_str(), *rows, planes.as_str()))
        .collect();
    assert_eq!(got, want, "\n{listing}");
}

#[test]
fn planes_of_burgers() {
    let (params, net) = network(&[2, 4, 5, 1]);
    let equation = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + u * u.d(x) - 0.01 * u.d(x).d(x)
    })
    .expect("burgers");
    assert_sets(
        &equation,
        &[
            ("coordinate", 1, "1"),
            ("coordinate", 1, "1"),
            ("stack", 2, "1"),
            ("affine", 4, "1 t x"),
            ("tanh", 4, "1 t x x.x"),
            ("affine", 5, "1 t x x.x"),
            ("tanh", 5, "1 t x x.x"),
            ("affine", 1, "1 t x x.x"),
            ("derivative", 1, "1"),
            ("derivative", 1, "1 x"),
            ("product", 1, "1"),
            ("linear +1 +1", 1, "1"),
            ("derivative", 1, "1"),
            ("linear +0.01", 1, "1"),
            ("linear +1 -1", 1, "1"),
        ],
    );
}

#[test]
fn planes_of_burgers_as_a_divergence() {
    let (params, net) = network(&[2, 4, 5, 1]);
    let equation = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + (0.5 * (u * u)).d(x) - (0.01 * u.d(x)).d(x)
    })
    .expect("burgers");
    let got = sets(&equation);
    let set = |op: &str| {
        let found: Vec<&str> = got
            .iter()
            .filter(|(name, ..)| name == op)
            .map(|(_, _, set)| set.as_str())
            .collect();
        found.join(" | ")
    };
    assert_eq!(set("affine"), "1 t x | 1 t x x.x | 1 t x x.x");
    assert_eq!(set("tanh"), "1 t x x.x | 1 t x x.x");
    assert_eq!(set("product"), "x");
    assert_eq!(set("linear +0.5"), "x");
    assert_eq!(set("linear +0.01"), "x");
    assert_eq!(set("derivative"), "1 | 1 | x | 1");
}

#[test]
fn planes_of_kuramoto_sivashinsky() {
    let (params, net) = network(&[2, 4, 5, 1]);
    let equation = Equation::record("ks", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        let second = u.d(x).d(x);
        u.d(t) + u * u.d(x) + second + second.d(x).d(x)
    })
    .expect("ks");
    let got = sets(&equation);
    let at = |place: usize| (got[place].0.as_str(), got[place].2.as_str());
    assert_eq!(at(3), ("affine", "1 t x"));
    assert_eq!(at(4), ("tanh", "1 t x x.x x.x.x x.x.x.x"));
    assert_eq!(at(5), ("affine", "1 t x x.x x.x.x x.x.x.x"));
    // The last layer is linear: only what the equation reads.
    assert_eq!(at(6), ("tanh", "1 t x x.x x.x.x.x"));
    assert_eq!(at(7), ("affine", "1 t x x.x x.x.x.x"));
}

#[test]
fn planes_of_navier_stokes() {
    let (params, net) = network(&[3, 4, 5, 3]);
    for (collapsed, hidden, second) in [
        (false, "1 t x y x.x y.y", "x.x y.y"),
        (true, "1 t x y Δ(x,y)", "Δ(x,y)"),
    ] {
        let equation = Equation::record("ns", &params, ["t", "x", "y"], |[t, x, y]| {
            let [u, v, p] = net.at(&[t, x, y]);
            let viscous = |w: Field| {
                if collapsed {
                    w.laplacian(&[x, y])
                } else {
                    w.d(x).d(x) + w.d(y).d(y)
                }
            };
            let momentum =
                |w: Field, px: Field| w.d(t) + u * w.d(x) + v * w.d(y) + px - 0.1 * viscous(w);
            [momentum(u, p.d(x)), momentum(v, p.d(y)), u.d(x) + v.d(y)]
        })
        .expect("ns");
        let got = sets(&equation);
        let at = |place: usize| (got[place].0.as_str(), got[place].2.as_str());
        assert_eq!(at(4), ("affine", "1 t x y"));
        for (place, op) in [(5, "tanh"), (6, "affine"), (7, "tanh"), (8, "affine")] {
            assert_eq!(at(place), (op, hidden));
        }
        assert_eq!(at(9), ("row 0", format!("1 t x y {second}").as_str()));
        assert_eq!(at(10), ("row 1", format!("1 t x y {second}").as_str()));
        assert_eq!(at(11), ("row 2", "x y"));
    }
}

#[test]
fn planes_of_embeddings_and_divergences() {
    let (params, net) = network(&[3, 4, 1]);
    let equation = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, (PI * x).cos(), (PI * x).sin()]);
        u.d(t) - u.d(x).d(x)
    })
    .expect("eq");
    let got = sets(&equation);
    let set = |op: &str| {
        let found = got.iter().find(|(name, ..)| name == op).expect("a node");
        found.2.as_str()
    };
    assert_eq!(set("cos"), "1 x x.x");
    assert_eq!(set("sin"), "1 x x.x");
    assert_eq!(set("stack"), "1 t x x.x");
    assert_eq!(set("tanh"), "t x.x");
    // d/dx (W''(u) u_x): the chain of W'' carries x only, for its derivative.
    let (params, net) = network(&[2, 4, 1]);
    let equation = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        (u.exp() * u.d(x)).d(x)
    })
    .expect("eq");
    let got = sets(&equation);
    let set = |op: &str| {
        let found = got.iter().find(|(name, ..)| name == op).expect("a node");
        found.2.as_str()
    };
    assert_eq!(set("exp"), "1 x");
    assert_eq!(set("product"), "x");
}

#[test]
fn laplacian_in_100_dimensions_holds_102_planes() {
    let (params, net) = network(&[100, 6, 5, 1]);
    let names: Vec<String> = (0..100).map(|i| format!("x{i}")).collect();
    let equation = Equation::record_over("poisson", &params, &names, |x| {
        let [u] = net.at(x);
        u.laplacian(x) + u
    })
    .expect("poisson");
    let counts: Vec<(String, usize)> = equation
        .tape()
        .nodes()
        .iter()
        .zip(equation.held())
        .filter(|(node, _)| matches!(node.op.name().as_str(), "affine" | "tanh"))
        .map(|(node, held)| (node.op.name(), held.planes.len()))
        .collect();
    let counts: Vec<(&str, usize)> = counts.iter().map(|(op, n)| (op.as_str(), *n)).collect();
    // The first layer is affine in the coordinates: no Δ. The last reads u and Δu.
    let want = [
        ("affine", 101),
        ("tanh", 102),
        ("affine", 102),
        ("tanh", 2),
        ("affine", 2),
    ];
    assert_eq!(counts, want);
    // And it is right: against one dual number a direction.
    let point: Vec<f64> = (0..100).map(|i| (f64::from(i) * 0.37).sin()).collect();
    let got = values(
        &equation,
        &params,
        &Points::from_flat(100, &point).expect("a point"),
    )
    .expect("values");
    let want: f64 = (0..100)
        .map(|i| {
            let mut x: Vec<Dual2_64> = point.iter().map(|&x| Dual2_64::from_re(x)).collect();
            x[i] = x[i].derivative();
            net.eval(&params, &x).expect("u")[0].v2
        })
        .sum();
    let u = net.eval(&params, &point).expect("u")[0];
    assert_close("Δu + u", &got[0], &[want + u], 1e-12);
}

#[test]
fn laplacian_in_1024_dimensions() {
    let (params, net) = network(&[1024, 3, 1]);
    let names: Vec<String> = (0..1024).map(|i| format!("x{i}")).collect();
    let equation = Equation::record_over("poisson", &params, &names, |x| {
        let [u] = net.at(x);
        u.laplacian(x)
    })
    .expect("poisson");
    let point: Vec<f64> = (0..1024)
        .map(|i| 0.1 * (f64::from(i) * 0.37).sin())
        .collect();
    let got = values(
        &equation,
        &params,
        &Points::from_flat(1024, &point).expect("a point"),
    )
    .expect("values");
    // One hidden layer: Σ c_j |w_j|² tanh''(z_j).
    let weights = params.matrix("u.0.weight").expect("weights");
    let biases = params.matrix("u.0.bias").expect("biases");
    let outer = params.matrix("u.1.weight").expect("weights");
    let want: f64 = (0..3)
        .map(|j| {
            let row = weights.row(j);
            let z = row.iter().zip(&point).map(|(w, x)| w * x).sum::<f64>() + biases[j];
            let second: f64 = 2.0 * Elemental::Tanh.taylor(z, 2).expect("coefficients")[2];
            outer[j] * row.norm_squared() * second
        })
        .sum();
    assert_close("Δu", &got[0], &[want], 1e-12);
}

#[test]
fn laplacian_beside_its_own_second_derivatives_holds_no_plane_for_it() {
    let (params, net) = network(&[2, 4, 1]);
    let equation = Equation::record("eq", &params, ["x", "y"], |[x, y]| {
        let [u] = net.at(&[x, y]);
        [u.laplacian(&[x, y]), u.d(x).d(x) * u.d(y).d(y)]
    })
    .expect("eq");
    let all = sets(&equation);
    assert!(all.iter().all(|(_, _, set)| !set.contains('Δ')), "{all:?}");
    // Two different Laplacians, and one of a Laplacian, beside each other.
    let got = evaluate(&params, ["x", "y"], &XY, |[x, y]| {
        let [u] = net.at(&[x, y]);
        let (xx, yy) = (u.d(x).d(x), u.d(y).d(y));
        let bi = xx.d(x).d(x) + 2.0 * xx.d(y).d(y) + yy.d(y).d(y);
        [
            u.laplacian(&[x, y]) - xx - yy,
            u.laplacian(&[x]) - xx,
            u.laplacian(&[y, x]).laplacian(&[x, y]) - bi,
            u.laplacian(&[x, y]).d(x) - xx.d(x) - yy.d(x),
            (u * u).laplacian(&[x, y]) - 2.0 * (u * (xx + yy) + u.d(x).powi(2) + u.d(y).powi(2)),
        ]
    });
    for (i, list) in got.iter().enumerate() {
        assert!(
            list.iter().all(|d| d.abs() < 1e-12),
            "identity {i}: {list:?}"
        );
    }
}

#[test]
fn residuals_of_every_shape() {
    let params = Parameters::new();
    let rows = [[1.0, 2.0]];
    let one = evaluate(&params, ["x", "y"], &rows, |[x, y]| x * y);
    assert_eq!(one, [[2.0]]);
    let tuple = evaluate(&params, ["x", "y"], &rows, |[x, y]| {
        (x, y, x + y, x - y, x * y, x / y)
    });
    assert_eq!(tuple, [[1.0], [2.0], [3.0], [-1.0], [2.0], [0.5]]);
    let array = evaluate(&params, ["x", "y"], &rows, |x| x);
    assert_eq!(array, [[1.0], [2.0]]);
    let vector = evaluate(&params, ["x", "y"], &rows, |[x, y]| vec![x, y, x]);
    assert_eq!(vector, [[1.0], [2.0], [1.0]]);
}

#[test]
fn first_pass_gives_value_and_derivative() {
    let (params, net) = network(&[1, 5, 1]);
    let got = evaluate(&params, ["x"], &X, |[x]| {
        let [u] = net.at(&[x]);
        [u, u.d(x)]
    });
    for (n, &[x]) in X.iter().enumerate() {
        let u = net
            .eval(&params, &[Dual64::from_re(x).derivative()])
            .expect("u")[0];
        assert_close("u and u'", &[got[0][n], got[1][n]], &[u.re, u.eps], TIGHT);
    }
}
