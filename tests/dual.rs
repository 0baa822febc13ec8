//! The scalar companion on the paper's network: y, its derivatives and every mixed derivative,
//! each from one forward pass and one reverse sweep, against the golden values.

use dualtape::dual::{TopElement, Var, Wengert};
use num_dual::{Dual2_64, Dual3_64, Dual64, DualNum};
use serde_json::Value;

/// The numbers in `tests/data/paper.json`.
struct Paper(Value);

impl Paper {
    fn read() -> Self {
        let text = include_str!("data/paper.json");
        Self(serde_json::from_str(text).expect("paper.json is JSON"))
    }

    fn list(&self, pointer: &str) -> Vec<f64> {
        let list = self.0.pointer(pointer).and_then(Value::as_array);
        let list = list.unwrap_or_else(|| panic!("no list at {pointer}"));
        list.iter().map(|x| x.as_f64().expect("a number")).collect()
    }

    fn number(&self, pointer: &str) -> f64 {
        let number = self.0.pointer(pointer).and_then(Value::as_f64);
        number.unwrap_or_else(|| panic!("no number at {pointer}"))
    }
}

/// What the 1-3-3-1 network computes at one point.
struct Trace<'t, D> {
    z1: Vec<Var<'t, D>>,
    z2: Vec<Var<'t, D>>,
    y: Var<'t, D>,
}

/// z = W a + b for a row-major W, θ in the paper's order.
fn layer<'t, D: DualNum<Primitive = f64> + Copy>(
    w: &[Var<'t, D>],
    b: &[Var<'t, D>],
    a: &[Var<'t, D>],
) -> Vec<Var<'t, D>> {
    let rows = w.chunks(a.len()).zip(b);
    rows.map(|(w, &b)| w.iter().zip(a).fold(b, |z, (&w, &a)| z + w * a))
        .collect()
}

fn network<'t, D: DualNum<Primitive = f64> + Copy>(
    theta: &[Var<'t, D>],
    t: Var<'t, D>,
) -> Trace<'t, D> {
    let tanh = |z: &[Var<'t, D>]| z.iter().map(|z| z.tanh()).collect::<Vec<_>>();
    let z1 = layer(&theta[0..3], &theta[3..6], &[t]);
    let z2 = layer(&theta[6..15], &theta[15..18], &tanh(&z1));
    let y = layer(&theta[18..21], &theta[21..22], &tanh(&z2))[0];
    Trace { z1, z2, y }
}

/// The value of y, and the adjoint of every parameter for one seed.
fn run<D: DualNum<Primitive = f64> + Copy>(paper: &Paper, t: D, seed: D) -> (D, Vec<D>) {
    let theta = paper.list("/parameters/theta");
    Wengert::record(|tape| {
        let theta: Vec<_> = theta.iter().map(|&p| tape.variable(D::from(p))).collect();
        let y = network(&theta, tape.variable(t)).y;
        let bar = y.sweep(seed);
        (y.value(), theta.iter().map(|&p| bar.of(p)).collect())
    })
}

/// Within 1e-13 of the largest entry of the expected vector.
fn assert_close(what: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}: lengths");
    let scale = expected.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let error = (g - e).abs() / scale;
        assert!(
            error <= 1e-13,
            "{what}[{i}]: {g} against {e}, error {error:e}"
        );
    }
}

fn parts<D>(numbers: &[D], part: impl Fn(&D) -> f64) -> Vec<f64> {
    numbers.iter().map(part).collect()
}

#[test]
fn dual_adjoints_are_the_gradients_of_y_and_of_its_slope() {
    let paper = Paper::read();
    let (y, theta_bar) = run(&paper, Dual64::from(0.5).derivative(), Dual64::from(1.0));
    let expected = &paper.list("/tangents/t=0.5/derivatives")[..2];
    assert_close("y, y'", &[y.re, y.eps], expected);
    assert_close(
        "dy",
        &parts(&theta_bar, |b| b.re),
        &paper.list("/mixed/t=0.5/0"),
    );
    assert_close(
        "dy'",
        &parts(&theta_bar, |b| b.eps),
        &paper.list("/mixed/t=0.5/1"),
    );
}

#[test]
fn a_plain_number_is_ordinary_reverse_mode() {
    let paper = Paper::read();
    for (t, key) in [(0.5, "t=0.5"), (0.0, "t=0")] {
        let (y, theta_bar) = run(&paper, t, 1.0);
        let expected = paper.number(&format!("/tangents/{key}/derivatives/0"));
        assert_close("y", &[y], &[expected]);
        assert_close("dy", &theta_bar, &paper.list(&format!("/mixed/{key}/0")));
    }
}

#[test]
fn higher_orders_come_from_the_same_sweep() {
    let paper = Paper::read();
    let derivatives = paper.list("/tangents/t=0.5/derivatives");

    let (y, bar) = run(
        &paper,
        Dual2_64::from(0.5).derivative(),
        Dual2_64::from(1.0),
    );
    assert_close("y..y''", &[y.re, y.v1, y.v2], &derivatives[..3]);
    assert_close(
        "dy''",
        &parts(&bar, |b| b.v2),
        &paper.list("/mixed/t=0.5/2"),
    );

    let (y, bar) = run(
        &paper,
        Dual3_64::from(0.5).derivative(),
        Dual3_64::from(1.0),
    );
    assert_close("y..y'''", &[y.re, y.v1, y.v2, y.v3], &derivatives[..4]);
    assert_close(
        "dy'''",
        &parts(&bar, |b| b.v3),
        &paper.list("/mixed/t=0.5/3"),
    );
}

#[test]
fn a_seed_picks_one_derivative() {
    let paper = Paper::read();
    let expected = |k: usize| paper.list(&format!("/mixed/t=0.5/{k}"));
    let t = Dual2_64::from(0.5).derivative();
    for (k, c) in [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        .into_iter()
        .enumerate()
    {
        let (_, bar) = run(&paper, t, Dual2_64::new(c[0], c[1], c[2]).seed());
        assert_close("Dual2", &parts(&bar, |b| b.parts().re), &expected(k));
    }
    let t = Dual3_64::from(0.5).derivative();
    for k in 0..4 {
        let c: [f64; 4] = std::array::from_fn(|j| f64::from(u8::from(j == k)));
        let (_, bar) = run(&paper, t, Dual3_64::new(c[0], c[1], c[2], c[3]).seed());
        assert_close("Dual3", &parts(&bar, |b| b.parts().re), &expected(k));
    }
}

#[test]
fn c01_gradient_of_the_residual_loss() {
    let paper = Paper::read();
    let t = Dual64::from(0.5).derivative();
    let (y, _) = run(&paper, t, Dual64::from(0.0));
    let residual = y.eps + y.re;
    assert_close("R", &[residual], &[paper.number("/training_step/residual")]);

    let both = Dual64::new(2.0 * residual, 2.0 * residual);
    let (_, bar) = run(&paper, t, both.seed());
    let gradient = parts(&bar, |b| b.parts().re);
    assert_close("dR²", &gradient, &paper.list("/create_graph/with"));
    assert!((gradient[7] - -0.561907248246446).abs() < 1e-14);

    // y' held constant: its adjoint is dropped, in so many words
    let value_only = Dual64::new(2.0 * residual, 0.0);
    let (_, bar) = run(&paper, t, value_only.seed());
    let gradient = parts(&bar, |b| b.parts().re);
    assert_close(
        "dR², y' constant",
        &gradient,
        &paper.list("/create_graph/without"),
    );
    assert!((gradient[7] - 0.0604881291902332).abs() < 1e-14);
}

/// R² + λ (y(0) − 1)²: two points, one tape, one sweep.
#[test]
fn a_training_step_is_one_sweep() {
    let paper = Paper::read();
    let (theta, lambda) = (
        paper.list("/parameters/theta"),
        paper.number("/parameters/lambda"),
    );
    let (loss, gradient): (f64, Vec<f64>) = Wengert::record(|tape| {
        let theta: Vec<_> = theta
            .iter()
            .map(|&p| tape.variable(Dual64::from(p)))
            .collect();
        let at = |t: Dual64| network(&theta, tape.variable(t)).y;
        let inside = at(Dual64::from(0.5).derivative());
        let start = at(Dual64::from(0.0));
        let (y, miss) = (inside.value(), start.value().re - 1.0);
        let residual = y.eps + y.re;

        let seeds = [
            (inside, Dual64::new(2.0 * residual, 2.0 * residual).seed()),
            (start, Dual64::new(2.0 * lambda * miss, 0.0).seed()),
        ];
        let bar = tape.sweep(seeds);
        let loss = residual.powi(2) + lambda * miss.powi(2);
        (loss, theta.iter().map(|&p| bar.gradient(p)).collect())
    });
    assert_close("loss", &[loss], &[paper.number("/training_step/loss")]);
    assert_close(
        "gradient",
        &gradient,
        &paper.list("/training_step/gradient"),
    );
}

/// Reverse mode twice needs a second graph. Its adjoints are already here: those of the adjoints
/// (Graph 2) are the tangents of the forward pass, and those of the values are the ε parts of
/// the one dual-valued sweep.
#[test]
fn the_over_adjoints_of_graph_2_are_tangents() {
    let paper = Paper::read();
    let theta = paper.list("/parameters/theta");
    let over = |name: &str| paper.list(&format!("/mixed/over_adjoints/{name}"));
    Wengert::record(|tape| {
        let theta: Vec<_> = theta
            .iter()
            .map(|&p| tape.variable(Dual64::from(p)))
            .collect();
        let t = tape.variable(Dual64::from(0.5).derivative());
        let Trace { z1, z2, y } = network(&theta, t);
        let bar = y.sweep(Dual64::from(1.0));

        for (z, name) in [(&z1, "1"), (&z2, "2")] {
            let tangent = parts(z, |z| z.value().eps);
            assert_close("tangent of z", &tangent, &over(&format!("m{name}_bar")));
            let adjoint = parts(z, |&z| bar.of(z).re);
            assert_close(
                "adjoint of z",
                &adjoint,
                &paper.list(&format!("/reverse/z{name}_bar")),
            );
            let tangent_of_adjoint = parts(z, |&z| bar.of(z).eps);
            assert_close(
                "its ε part",
                &tangent_of_adjoint,
                &over(&format!("z{name}")),
            );
        }
        // the coordinate itself: (y', y'')
        assert_close("t", &[bar.of(t).re], &[paper.number("/reverse/t_bar")]);
        assert_close(
            "t, ε",
            &[bar.of(t).eps],
            &[paper.number("/mixed/over_adjoints/t")],
        );
    });
}
