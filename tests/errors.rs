//! Bad input: each mistake gives an error that says what was given, what was expected,
//! what to do and, where it was recorded, the line of the user's source.

use dualtape::{
    Activation, Architecture, Condition, Design, Elemental, Engine, Equation, Error, Field, Init,
    Mlp, Options, Parameters, Points, Precision, Problem, Quadrature, Sampler, data, select,
    values,
};
use num_dual::{DualNum, DualStruct};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Evaluates an expression of one line and notes that line.
macro_rules! at {
    ($line:ident, $value:expr) => {{
        $line = line!();
        $value
    }};
}

/// A network `u` of one input and one output.
fn one() -> (Parameters, Mlp) {
    network(&[1, 4, 1])
}

fn network(widths: &[usize]) -> (Parameters, Mlp) {
    let mut params = Parameters::new();
    let net = params.mlp("u", widths, Elemental::Tanh).expect("a network");
    (params, net)
}

/// The message is `tests/errors.rs:LINE:COLUMN: REST`.
#[track_caller]
fn assert_at<T: std::fmt::Debug>(result: Result<T, Error>, line: u32, rest: &str) {
    let text = result.expect_err("a mistake").to_string();
    let place = format!("{}:{line}:", file!());
    let after = text
        .strip_prefix(&place)
        .unwrap_or_else(|| panic!("`{text}` does not begin with `{place}`"));
    let (column, after) = after.split_once(": ").expect("a column");
    assert!(column.parse::<u32>().is_ok(), "{text}");
    assert_eq!(after, rest);
}

#[track_caller]
fn assert_says<T: std::fmt::Debug>(result: Result<T, Error>, text: &str) {
    assert_eq!(result.expect_err("a mistake").to_string(), text);
}

fn points(x: &[f64]) -> Points {
    Points::new(vec![x.to_vec()]).expect("points")
}

// Derivatives.

#[test]
fn derivative_in_a_coordinate_that_does_not_enter() {
    let (params, net) = one();
    let mut line = 0;
    let says = |name: &str| {
        format!(
            "derivative in `{name}` of a value that does not depend on it; differentiate in a \
             coordinate that enters the value, or drop the term"
        )
    };
    let eq = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[x]);
        let u_t = at!(line, u.d(t));
        u_t + u * t
    });
    assert_at(eq, line, &says("t"));
    let eq = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[x]);
        at!(line, u.laplacian(&[x, t])) + t
    });
    assert_at(eq, line, &says("t"));
    // A number, and a parameter, depend on nothing.
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        u + at!(line, Field::from(3.0).d(x))
    });
    assert_at(eq, line, &says("x"));
    let mut params = params;
    let nu = params.coefficient("nu", 1.0).expect("nu");
    let eq = Equation::record("eq", &params, ["x"], |[x]| at!(line, nu.field().d(x)) + x);
    assert_at(eq, line, &says("x"));
    // Also where the derivative comes after a value that does not depend on it any more.
    let eq = Equation::record("eq", &params, ["x", "y"], |[x, y]| {
        let [u] = net.at(&[x]);
        at!(line, (u.d(x) * nu.field()).d(y)) + y
    });
    assert_at(eq, line, &says("y"));
}

#[test]
fn derivative_in_what_is_no_coordinate() {
    let (params, net) = one();
    let says = "derivative in a value that is not a coordinate of the recording; give one of \
                the fields that the closure received";
    let mut line = 0;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, u.d(2.0 * x))
    });
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, x.d(u))
    });
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, u.d(Field::from(1.0)))
    });
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, u.laplacian(&[x, x + 1.0]))
    });
    assert_at(eq, line, says);
}

#[test]
fn laplacian_over_nothing_or_one_coordinate_twice() {
    let (params, net) = one();
    let mut line = 0;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, u.laplacian(&[]))
    });
    assert_at(
        eq,
        line,
        "Laplacian over no coordinate; name each coordinate that it sums over once, at least one",
    );
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        at!(line, u.laplacian(&[x, x]))
    });
    assert_at(
        eq,
        line,
        "Laplacian over a coordinate twice; name each coordinate that it sums over once, at \
         least one",
    );
}

#[test]
fn data_is_not_differentiated() {
    let (params, net) = one();
    let mut line = 0;
    let says = |column: &str| {
        format!(
            "a derivative of the per-point data `{column}` is asked for, and would silently be \
             taken as zero; differentiate before combining with data, or give the data as a \
             function of the coordinates"
        )
    };
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        let k = at!(line, data("conductivity"));
        (k * u.d(x)).d(x)
    });
    assert_at(eq, line, &says("conductivity"));
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        let k = at!(line, data("k"));
        (k + u).laplacian(&[x])
    });
    assert_at(eq, line, &says("k"));
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let k = at!(line, data("k"));
        let [u] = net.at(&[x + k]);
        u.d(x)
    });
    assert_at(eq, line, &says("k"));
    // Differentiated before it meets the data, it is right.
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        data("k") * u.d(x).d(x) - data("f")
    });
    assert_eq!(eq.expect("an equation").columns(), ["k", "f"]);
}

#[test]
fn c18_relu_under_a_second_derivative() {
    let mut params = Parameters::new();
    let relu = params
        .mlp("r", &[1, 4, 1], Elemental::Relu)
        .expect("a network");
    let mut line = 0;
    let says = |name: &str, order: usize| {
        format!(
            "`{name}` meets a derivative of order {order}, but its derivatives of order above 1 \
             are zero or undefined; use a smooth function such as tanh, or an equation of lower \
             order"
        )
    };
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = at!(line, relu.at(&[x]));
        u.d(x).d(x) + u
    });
    assert_at(eq, line, &says("relu", 2));
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = at!(line, relu.at(&[x]));
        u.laplacian(&[x]) + u
    });
    assert_at(eq, line, &says("relu", 2));
    // A divergence form hides the second derivative, but it is one.
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = at!(line, relu.at(&[x]));
        (u * u.d(x)).d(x)
    });
    assert_at(eq, line, &says("relu", 2));
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let size = at!(line, (x.sin() - x).abs());
        size.d(x).d(x).d(x) + relu.at::<1>(&[x])[0]
    });
    assert_at(eq, line, &says("abs", 3));
    // Of first order it is allowed.
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = relu.at(&[x]);
        u.d(x) + u.abs()
    });
    assert!(eq.is_ok());
    // A kink in one coordinate does not hinder derivatives in another.
    let eq = Equation::record("eq", &params, ["x", "y"], |[x, y]| {
        let [u] = relu.at(&[x]);
        (u * y.sin()).d(y).d(y)
    });
    assert!(eq.is_ok(), "{eq:?}");
}

#[test]
fn order_above_the_limit() {
    let (params, net) = one();
    let mut line = 0;
    let mut record = |order: usize| {
        Equation::record("eq", &params, ["x"], |[x]| {
            let [mut u] = at!(line, net.at(&[x]));
            for _ in 0..order {
                u = u.d(x);
            }
            u
        })
    };
    assert!(record(12).is_ok());
    let eq = record(13);
    assert_at(
        eq,
        line,
        "a derivative of order 13 is asked for; the limit is 12",
    );
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [mut u] = at!(line, net.at(&[x]));
        for _ in 0..7 {
            u = u.laplacian(&[x]);
        }
        u
    });
    assert_at(
        eq,
        line,
        "a derivative of order 14 is asked for; the limit is 12",
    );
}

// Names and coordinates.

#[test]
fn number_of_coordinates() {
    let (params, _) = one();
    let none: [&str; 0] = [];
    let eq = Equation::record_over("eq", &params, &none, |_| Field::from(0.0));
    assert_says(eq, "0 coordinates given; an equation has from 1 to 4096");
    let names: Vec<String> = (0..4097).map(|i| format!("x{i}")).collect();
    let eq = Equation::record_over("eq", &params, &names, |x| x[0]);
    assert_says(eq, "4097 coordinates given; an equation has from 1 to 4096");
    let eq = Equation::record_over("eq", &params, &names[1..], |x| {
        x.iter().map(|&x| x * x).sum::<Field>()
    });
    assert_eq!(eq.expect("4096 coordinates").coordinates().len(), 4096);
}

#[test]
fn names_given_twice() {
    let (mut params, net) = one();
    let eq = Equation::record("eq", &params, ["x", "y", "x"], |[x, y, z]| x + y + z);
    assert_says(
        eq,
        "the name `x` is given twice among the coordinates; names must differ",
    );
    let says = "the name `u` is given twice among the networks and coefficients; names must differ";
    let count = params.len();
    assert_says(params.mlp("u", &[1, 2, 1], Elemental::Tanh), says);
    assert_says(params.coefficient("u", 1.0), says);
    assert_eq!(
        params.len(),
        count,
        "a refused network leaves nothing behind"
    );
    let columns = points(&[1.0])
        .with_column("a", &[1.0])
        .and_then(|p| p.with_column("a", &[2.0]));
    assert_says(
        columns,
        "the name `a` is given twice among the data columns; names must differ",
    );
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let conditions = [
        Condition::new(&eq, points(&[0.0])),
        Condition::new(&eq, points(&[1.0])),
    ];
    assert_says(
        Problem::new(&params, conditions.clone()),
        "the name `eq` is given twice among the conditions; names must differ",
    );
    let [first, second] = conditions;
    assert!(Problem::new(&params, [first, second.named("end")]).is_ok());
}

#[test]
fn coordinate_that_no_residual_depends_on() {
    let (params, net) = one();
    let eq = Equation::record("eq", &params, ["t", "x"], |[_, x]| net.at::<1>(&[x])[0]);
    let says = "no residual depends on the coordinate `t`; use it, or leave it out of the equation";
    assert_says(eq, says);
    let eq = Equation::record("eq", &params, ["t", "x"], |[t, x]| {
        let _unused = t.sin() + x;
        net.at::<1>(&[x])[0]
    });
    assert_says(eq, says);
}

#[test]
fn network_or_coefficient_that_no_residual_depends_on() {
    let (mut params, net) = one();
    let nu = params.coefficient("nu", 1.0).expect("nu");
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [_] = net.at(&[x]);
        nu.field() * x
    });
    assert_says(
        eq,
        "no residual of equation `eq` depends on `u`; use it, or leave it out",
    );
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let _ = nu.field().exp();
        net.at::<1>(&[x])[0]
    });
    assert_says(
        eq,
        "no residual of equation `eq` depends on `nu`; use it, or leave it out",
    );
    // Not mentioned at all, it may still serve another condition.
    let only_u = Equation::record("u", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("u");
    let only_nu = Equation::record("nu", &params, ["x"], |[x]| nu.field() * x).expect("nu");
    let first = Condition::new(&only_u, points(&[1.0]));
    let second = Condition::new(&only_nu, points(&[1.0]));
    assert_says(
        Problem::new(&params, [first.clone()]),
        "no residual of the problem depends on `nu`; use it, or leave it out",
    );
    assert!(Problem::new(&params, [first, second]).is_ok());
}

// Networks.

#[test]
fn wrong_numbers_of_inputs_and_outputs() {
    let (params, net) = network(&[2, 4, 3]);
    let mut line = 0;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u, ..] = at!(line, net.at::<3>(&[x]));
        u * x
    });
    assert_at(eq, line, "network `u` takes 2 inputs, 1 given");
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = at!(line, net.at(&[x, x]));
        u
    });
    assert_at(eq, line, "network `u` has 3 outputs, 1 taken");
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        at!(line, net.at_all(&[]))[0] + x
    });
    assert_at(eq, line, "network `u` takes 2 inputs, 0 given");
    assert_says(
        net.eval(&params, &[1.0]),
        "inputs of network `u`: 1 given, 2 expected",
    );
}

#[test]
fn values_of_different_numbers_of_rows() {
    // An activation sees a whole layer; what it smuggles out has that many rows.
    thread_local!(static LAYER: Cell<Option<Field>> = const { Cell::new(None) });
    let smuggle = Activation::recorded("smuggle", |z| {
        LAYER.set(Some(z));
        z.tanh()
    });
    let mut params = Parameters::new();
    let wide = params
        .network(
            "wide",
            &Architecture::mlp(&[1, 5, 1]).activation(smuggle.clone()),
        )
        .expect("wide");
    let narrow = params
        .network("narrow", &Architecture::mlp(&[1, 3, 1]).activation(smuggle))
        .expect("narrow");
    let mut line = 0;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = wide.at(&[x]);
        let five = LAYER.take().expect("a layer");
        let [v] = narrow.at(&[x]);
        let three = LAYER.take().expect("a layer");
        let _ = at!(line, five * three);
        u + v
    });
    assert_at(
        eq,
        line,
        "values of 5 and 3 rows cannot be combined row by row",
    );
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = wide.at(&[x]);
        let [v] = narrow.at(&[x]);
        let three = LAYER.take().expect("a layer");
        [u + v, three]
    });
    assert_says(
        eq,
        "the closure of `eq` returned a value of 3 rows; return at least one recorded value",
    );
}

#[test]
fn networks_that_cannot_be_built() {
    let mut params = Parameters::new();
    let mut build = |architecture: Architecture| params.network("u", &architecture);
    assert_says(
        build(Architecture::mlp(&[])),
        "network `u`: 0 widths given; give at least two, inputs and outputs",
    );
    assert_says(
        build(Architecture::mlp(&[3])),
        "network `u`: 1 widths given; give at least two, inputs and outputs",
    );
    assert_says(
        build(Architecture::mlp(&[2, 0, 1])),
        "network `u`: width 1 is 0; every layer needs at least one unit",
    );
    assert_says(
        build(Architecture::mlp(&[2, 4, 0])),
        "network `u`: width 2 is 0; every layer needs at least one unit",
    );
    for widths in [
        [1_000_000, 1_000_000, 1],
        [usize::MAX, usize::MAX, 1],
        [1, usize::MAX, 1],
    ] {
        assert_says(
            build(Architecture::mlp(&widths)),
            &format!("network `u`: widths {widths:?}; a network has at most 2^31 parameters"),
        );
    }
    let activations = [Elemental::Tanh, Elemental::Sin, Elemental::Tanh];
    assert_says(
        build(Architecture::mlp(&[1, 4, 4, 1]).activations(activations)),
        "network `u`: 3 activations for 2 hidden layers; give one for all, or one for each \
         hidden layer",
    );
    let none: [Elemental; 0] = [];
    assert_says(
        build(Architecture::mlp(&[1, 4, 1]).activations(none)),
        "network `u`: 0 activations for 1 hidden layers; give one for all, or one for each \
         hidden layer",
    );
    for omega in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_says(
            build(Architecture::siren(&[1, 4, 1], omega)),
            &format!("network `u`: omega is {omega}; it must be positive and finite"),
        );
    }
    assert!(build(Architecture::mlp(&[1, 4, 1]).init(Init::He)).is_ok());
}

#[test]
fn recorded_activation_on_numbers() {
    let mut params = Parameters::new();
    let own = Activation::recorded("own", |z| z * z);
    let net = params
        .network("u", &Architecture::mlp(&[1, 2, 1]).activation(own))
        .expect("a network");
    assert_says(
        net.eval(&params, &[1.0]),
        "the activation of a network that is evaluated on numbers is `own`, a recorded \
         function; use an `Elemental`, or evaluate a recorded equation",
    );
}

#[test]
fn of_other_parameters() {
    let (params, net) = one();
    let (mut other, _) = one();
    let nu = other.coefficient("nu", 1.0).expect("nu");
    let tail = "belongs to other parameters than those given; build networks, equations and \
                problem from one `Parameters`";
    let eq = Equation::record("eq", &other, ["x"], |[x]| net.at::<1>(&[x])[0]);
    assert_says(eq, &format!("`u` {tail}"));
    let eq = Equation::record("eq", &params, ["x"], |[x]| nu.field() * x);
    assert_says(eq, &format!("`nu` {tail}"));
    assert_says(net.eval(&other, &[1.0]), &format!("`u` {tail}"));
    assert_says(nu.value(&params), &format!("`nu` {tail}"));
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let condition = Condition::new(&eq, points(&[0.0]));
    assert_says(
        Problem::new(&other, [condition]),
        &format!("condition `eq` {tail}"),
    );
    assert_says(
        values(&eq, &other, &points(&[0.0])),
        &format!("condition `eq` {tail}"),
    );
}

#[test]
fn clones_of_parameters_that_went_apart() {
    let mut params = Parameters::new();
    let before = params.clone();
    let net = params.mlp("u", &[1, 4, 1], Elemental::Tanh).expect("u");
    let mut apart = before.clone();
    let other = apart.mlp("v", &[1, 9, 1], Elemental::Tanh).expect("v");
    let after = params.clone();
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let x = points(&[0.5]);
    // A copy with the same blocks is as good as the original.
    assert_eq!(values(&eq, &after, &x), values(&eq, &params, &x));
    assert_eq!(net.eval(&after, &[0.5]), net.eval(&params, &[0.5]));
    // One without the network, or with another in its place, is not.
    for wrong in [&before, &apart] {
        assert!(values(&eq, wrong, &x).is_err());
        assert!(net.eval(wrong, &[0.5]).is_err());
        assert!(Problem::new(wrong, [Condition::new(&eq, x.clone())]).is_err());
    }
    assert!(other.eval(&params, &[0.5]).is_err());
    let mixed = Equation::record("eq", &params, ["x"], |[x]| other.at::<1>(&[x])[0]);
    assert!(mixed.is_err());
}

// Recordings.

#[test]
fn field_of_another_recording() {
    let (params, net) = one();
    let leaked = Cell::new(None);
    let says = "a field of another recording is used; fields live only inside the closure that \
                made them, so move its computation into this one";
    Equation::record("first", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        leaked.set(Some(u));
        u
    })
    .expect("the first");
    let mut line = 0;
    let second = Equation::record("second", &params, ["x"], |[x]| {
        let old = leaked.get().expect("leaked");
        at!(line, x + old)
    });
    assert_at(second, line, says);
    let second = Equation::record("second", &params, ["x"], |[x]| {
        let old = leaked.get().expect("leaked");
        at!(line, old.sin()) + x
    });
    assert_at(second, line, says);
    let second = Equation::record("second", &params, ["x"], |[x]| {
        let old = leaked.get().expect("leaked");
        at!(line, old.d(x))
    });
    assert_at(second, line, says);
    let second = Equation::record("second", &params, ["x"], |[_]| {
        leaked.get().expect("leaked")
    });
    assert_says(second, &format!("result of `second`: {says}"));
    // Outside of a recording nothing panics, and what comes out is of no use.
    let outside = leaked.get().expect("leaked") * 2.0 + data("a");
    let second = Equation::record("second", &params, ["x"], |[x]| at!(line, outside * x));
    assert_at(second, line, says);
}

#[test]
fn field_of_another_thread() {
    let (params, net) = one();
    let mut line = 0;
    let mut inner = None;
    let outer = Equation::record("outer", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        inner = std::thread::scope(|scope| {
            let thread = scope
                .spawn(|| Equation::record("inner", &params, ["x"], |[own]| at!(line, own * u)));
            thread.join().ok()
        });
        u.d(x)
    });
    let inner = inner.expect("the thread ended");
    assert_at(
        inner,
        line,
        "a field of another recording is used; fields live only inside the closure that made \
         them, so move its computation into this one",
    );
    assert!(outer.is_ok());
}

#[test]
fn recording_within_a_recording() {
    let (params, net) = one();
    let mut inner = None;
    let outer = Equation::record("outer", &params, ["x"], |[x]| {
        inner = Some(Equation::record("inner", &params, ["x"], |[x]| x * x));
        let [u] = net.at(&[x]);
        u.d(x) - x
    });
    assert_says(
        inner.expect("the inner"),
        "`inner` is recorded while another equation is; record one after the other, outside of \
         each other's closures",
    );
    let outer = outer.expect("the outer is not touched by it");
    let alone = Equation::record("alone", &params, ["x"], |[x]| net.at::<1>(&[x])[0].d(x) - x);
    let x = points(&[0.3]);
    let alone = values(&alone.expect("alone"), &params, &x);
    assert_eq!(values(&outer, &params, &x), alone);
}

#[test]
fn panic_inside_a_recording() {
    let (params, net) = one();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = Equation::record("eq", &params, ["x"], |[x]| {
            let [_u] = net.at(&[x]);
            assert!(params.is_empty(), "on purpose");
            x
        });
    }));
    assert!(panicked.is_err());
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]);
    let eq = eq.expect("the thread can record again");
    assert_eq!(eq.tape().nodes().len(), 4, "nothing is left of the first");
}

#[test]
fn no_residual() {
    let (params, _) = one();
    let eq = Equation::record("eq", &params, ["x"], |_| Vec::<Field>::new());
    assert_says(
        eq,
        "the closure of `eq` returned no residual; return at least one recorded value",
    );
    let says = "the closure of `eq` returned the constant 2.5; return at least one recorded value";
    let eq = Equation::record("eq", &params, ["x"], |_| Field::from(2.5));
    assert_says(eq, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| [x, Field::from(2.5)]);
    assert_says(eq, says);
}

#[test]
fn only_the_first_mistake_is_told() {
    let (params, net) = one();
    let mut line = 0;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        let first = at!(line, u % x);
        let second = u.d(first);
        second * net.at::<1>(&[])[0]
    });
    assert_at(
        eq,
        line,
        "the remainder `%` cannot be recorded; it jumps; for a periodic coordinate use its sine \
         and cosine",
    );
}

#[test]
fn what_cannot_be_recorded() {
    let (params, _) = one();
    let mut line = 0;
    let says = "the remainder `%` cannot be recorded; it jumps; for a periodic coordinate use \
                its sine and cosine";
    let eq = Equation::record("eq", &params, ["x"], |[x]| at!(line, x % 1.0));
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| at!(line, 2.0 % x));
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[mut x]| {
        at!(line, x %= 2.0);
        x
    });
    assert_at(eq, line, says);
    let says = "a spherical Bessel function cannot be recorded; give its Taylor coefficients by \
                `Elemental::custom`";
    let eq = Equation::record("eq", &params, ["x"], |[x]| at!(line, x.sph_j0()));
    assert_at(eq, line, says);
    let eq = Equation::record("eq", &params, ["x"], |[x]| at!(line, x.sph_j2()));
    assert_at(eq, line, says);
}

#[test]
fn constants_that_are_not_finite() {
    let (params, net) = one();
    let mut line = 0;
    let record = |f: &mut dyn FnMut(Field, Field) -> Field| {
        Equation::record("eq", &params, ["x"], |[x]| {
            let [u] = net.at(&[x]);
            f(u, x)
        })
    };
    let eq = record(&mut |u, _| at!(line, u * f64::NAN));
    assert_at(eq, line, "the constant NaN is not finite");
    let eq = record(&mut |u, _| at!(line, u + f64::INFINITY));
    assert_at(eq, line, "the constant inf is not finite");
    let eq = record(&mut |u, _| at!(line, f64::NEG_INFINITY - u));
    assert_at(eq, line, "the constant -inf is not finite");
    let eq = record(&mut |u, _| at!(line, u / 0.0));
    assert_at(eq, line, "the constant inf is not finite");
    let eq = record(&mut |u, x| at!(line, select(x.above(0.0), u, f64::NAN)));
    assert_at(eq, line, "the constant NaN is not finite");
    let eq = record(&mut |_, x| at!(line, net.at::<1>(&[x * 0.0 + f64::NAN])[0]));
    assert_at(eq, line, "the constant NaN is not finite");
    let eq = record(&mut |u, _| at!(line, u.powf(f64::NAN)));
    assert_at(eq, line, "the constant NaN is not finite");
    let eq = record(&mut |u, _| at!(line, u.powf(f64::INFINITY)));
    assert_at(eq, line, "the constant inf is not finite");
    // Made by folding: told where it is used.
    let bad = Field::from(-1.0).sqrt();
    let eq = record(&mut |u, _| at!(line, u - bad));
    assert_at(eq, line, "the constant NaN is not finite");
}

// Comparisons.

/// The message of a panic inside a recording.
fn panic_message<T>(f: impl Fn(Field) -> T) -> String {
    let (params, net) = one();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _ = Equation::record("eq", &params, ["x"], |[x]| {
            let [u] = net.at(&[x]);
            f(u);
            u
        });
    }));
    let payload = caught.expect_err("a panic");
    payload
        .downcast_ref::<String>()
        .expect("a formatted message")
        .clone()
}

#[track_caller]
fn assert_compares(message: &str, line: u32, operation: &str) {
    let place = format!("{}:{line}:", file!());
    assert!(
        message.starts_with(&place),
        "`{message}` does not begin with `{place}`"
    );
    let says = format!(
        ": `{operation}` of a recorded value, which has no number yet; write \
         `select(condition, a, b)` in place of a branch"
    );
    assert!(
        message.ends_with(&says),
        "`{message}` does not end with `{says}`"
    );
}

#[test]
fn comparison_of_a_recorded_value_panics_with_its_place() {
    macro_rules! case {
        ($operation:literal, $f:expr) => {
            assert_compares(&panic_message($f), line!(), $operation)
        };
    }
    case!("<", |u| u < 0.0);
    case!("<=", |u| u <= 0.0);
    case!(">", |u| u > 0.0);
    case!(">=", |u| u >= 0.0);
    case!("==", |u| u == 0.0);
    case!("!=", |u| u != 0.0);
    case!("!=", |u| u != u);
    case!("partial_cmp", |u| u.partial_cmp(&0.0));
    case!("<", |u| u < Field::from(0.0));
    case!("<=", |u| Field::from(0.0) <= u);
    case!(">", |u| u > u);
    case!(">=", |u| u >= u);
    case!("==", |u| u == u);
    case!("partial_cmp", |u| u.partial_cmp(&u));
    case!("re", |u| u.re());
    case!("==", |u| num_traits::Zero::is_zero(&u));
    case!("==", |u| num_traits::One::is_one(&u));
    case!(">", |u| num_traits::Signed::is_positive(&u));
    case!("<", |u| num_traits::Signed::is_negative(&u));
}

/// A branch on a value, as people write it; returns the line of its comparison.
fn positive_part<D: DualNum<Primitive = f64> + Copy>(x: D) -> D {
    if x > D::from(0.0) { x } else { D::from(0.0) }
}
const POSITIVE_PART: u32 = line!() - 2;

fn magnitude<D: DualNum<Primitive = f64> + Copy>(x: D) -> f64 {
    x.re()
}
const MAGNITUDE: u32 = line!() - 2;

#[test]
fn comparison_within_a_generic_function_panics_with_its_place() {
    assert_compares(&panic_message(positive_part), POSITIVE_PART, ">");
    assert_compares(&panic_message(magnitude), MAGNITUDE, "re");
    let through_num_dual = panic_message(|u| num_dual::first_derivative(positive_part, u));
    assert!(
        through_num_dual.contains("of a recorded value"),
        "{through_num_dual}"
    );
}

#[test]
fn constants_are_compared_as_numbers() {
    let (two, three) = (Field::from(2.0), Field::from(3.0));
    assert!(two < three && two <= three && three > 2.0 && three >= 3.0 && two == 2.0);
    assert!(positive_part(Field::from(-1.0)) == 0.0);
    assert_eq!(two.re(), 2.0);
}

// Points and data.

#[test]
fn c03_no_broadcasting() {
    let (params, net) = one();
    let n = 4;
    let data_values: Vec<f64> = (0..n)
        .map(|i| (2.0 * std::f64::consts::PI * f64::from(i) / f64::from(n)).sin())
        .collect();
    let t: Vec<f64> = (0..n).map(f64::from).collect();
    let fit = |prediction: &dyn Fn(Field) -> Field| {
        let eq = Equation::record("fit", &params, ["t"], |[t]| {
            let [u] = net.at(&[t]);
            prediction(t) + 0.0 * u - data("y")
        })
        .expect("fit");
        let with_data = points(&t).with_column("y", &data_values).expect("data");
        let problem = Problem::new(&params, [Condition::new(&eq, with_data)]).expect("a problem");
        let engine = Engine::new(&problem).expect("an engine");
        engine.loss(params.values()).expect("a loss")
    };
    assert_eq!(fit(&|t| 0.0 * t), 0.5);
    // sin(π/2 · t) takes the same values.
    assert!(fit(&|t| (std::f64::consts::FRAC_PI_2 * t).sin()) < 1e-30);
    assert_eq!(fit(&|t| data("y") + 0.0 * t), 0.0);
    assert_says(
        points(&t).with_column("y", &data_values[..3]),
        "values of the data column `y`: 3 given, 4 expected",
    );
    assert_says(
        points(&t).with_column("y", &[1.0]),
        "values of the data column `y`: 1 given, 4 expected",
    );
}

#[test]
fn points_that_are_not_finite() {
    assert_says(
        Points::new(vec![vec![0.0, 1.0], vec![2.0, f64::NAN]]),
        "coordinate 1 at index 1 is NaN; all numbers must be finite",
    );
    assert_says(
        Points::from_rows(&[[0.0, f64::INFINITY]]),
        "coordinate 1 at index 0 is inf; all numbers must be finite",
    );
    assert_says(
        Points::from_flat(1, &[1.0, f64::NEG_INFINITY]),
        "coordinate 0 at index 1 is -inf; all numbers must be finite",
    );
    assert!(Points::grid(&[(0.0, f64::NAN, 3)]).is_err());
    assert!(Points::grid(&[(f64::MIN, f64::MAX, 3)]).is_err());
    assert_says(
        points(&[1.0, 2.0]).with_column("a", &[0.0, f64::NAN]),
        "the data column `a` at index 1 is NaN; all numbers must be finite",
    );
}

#[test]
fn empty_points() {
    let points_empty = "the set of points is empty; give at least one";
    let no_coordinate = "the list of coordinates is empty; give at least one";
    assert_says(Points::new(vec![]), no_coordinate);
    assert_says(Points::new(vec![vec![], vec![]]), points_empty);
    assert_says(Points::from_rows::<2>(&[]), points_empty);
    assert_says(Points::from_rows::<0>(&[[], []]), no_coordinate);
    assert_says(Points::from_flat(2, &[]), points_empty);
    assert_says(Points::grid(&[]), no_coordinate);
    assert_says(Points::grid(&[(0.0, 1.0, 4), (0.0, 1.0, 0)]), points_empty);
    let (params, _) = one();
    assert_says(
        Problem::new(&params, []),
        "the list of conditions is empty; give at least one",
    );
}

#[test]
fn lengths_that_do_not_match() {
    assert_says(
        Points::new(vec![vec![0.0; 4], vec![0.0; 3]]),
        "values of coordinate 1: 3 given, 4 expected",
    );
    assert_says(
        Points::from_flat(3, &[0.0; 7]),
        "the length of a flat list of points is 7; a multiple of the dimension 3, which is at \
         least 1",
    );
    assert_says(
        Points::from_flat(0, &[]),
        "the length of a flat list of points is 0; a multiple of the dimension 0, which is at \
         least 1",
    );
    let (params, net) = one();
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let plane = Points::from_rows(&[[0.0, 1.0]]).expect("points");
    assert_says(
        Problem::new(&params, [Condition::new(&eq, plane.clone())]),
        "coordinates of the points of condition `eq`: 2 given, 1 expected",
    );
    assert_says(
        values(&eq, &params, &plane),
        "coordinates of the points of condition `eq`: 2 given, 1 expected",
    );
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    const LARGE: usize = 1_000_000_000;
    let refused = |text: String| {
        assert!(
            text.contains("the number of points to be made is"),
            "{text}"
        );
        assert!(text.contains("at most 2^29 coordinates"), "{text}");
    };
    for axes in [
        vec![(0.0, 1.0, LARGE)],
        vec![(0.0, 1.0, LARGE); 2],
        vec![(0.0, 1.0, usize::MAX); 2],
        vec![(0.0, 1.0, 1 << 16); 2],
        vec![(0.0, 1.0, 2); 40],
    ] {
        refused(Points::grid(&axes).expect_err("too large").to_string());
        refused(Points::chebyshev(&axes).expect_err("too large").to_string());
        refused(
            Quadrature::gauss_legendre(&axes)
                .expect_err("too large")
                .to_string(),
        );
    }
    for count in [LARGE, usize::MAX] {
        let mut sampler = Sampler::new(&[(0.0, 1.0); 3], 1).expect("a sampler");
        use Design::{Chebyshev, Grid, Halton, LatinHypercube, Sobol, Uniform};
        for design in [Grid, Chebyshev, Uniform, LatinHypercube, Sobol, Halton] {
            refused(
                sampler
                    .draw(design, count)
                    .expect_err("too large")
                    .to_string(),
            );
        }
        let density = sampler.by_density(count, 1.0, |_| 1.0);
        refused(density.expect_err("too large").to_string());
        let pool = sampler.largest(1, count, |_| Ok(Vec::new()));
        refused(pool.expect_err("too large").to_string());
    }
    // Networks: too wide, too wide to be multiplied, without layers, of no width.
    for widths in [
        &[1, 1_000_000, 1_000_000, 1][..],
        &[1, usize::MAX, 1],
        &[usize::MAX, usize::MAX],
        &[1 << 32, 1 << 32, 1],
        &[1],
        &[],
        &[1, 0, 1],
    ] {
        let error = Parameters::new()
            .mlp("u", widths, Elemental::Tanh)
            .expect_err("absurd");
        assert!(
            matches!(error, Error::Architecture { .. }),
            "{widths:?}: {error}"
        );
    }
    // As wide as that is allowed where it fits.
    assert!(
        Parameters::new()
            .mlp("u", &[1, 1_000_000, 1], Elemental::Tanh)
            .is_ok()
    );
    // A chunk of any size is no larger than its points.
    let (params, problem) = plain();
    let options = Options::default().chunk(usize::MAX - 15);
    let engine = Engine::with(&problem, &options).expect("an engine");
    assert!(engine.evaluate(params.values()).is_ok());
}

#[test]
fn weights_out_of_range() {
    let (params, net) = one();
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let two = || Condition::new(&eq, points(&[0.0, 1.0]));
    let build = |condition: Condition| Problem::new(&params, [condition]);
    let finite = "it must be finite, and not negative for a mean of squares";
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        assert_says(
            build(two().weight(weight)),
            &format!("the weight of condition `eq` is {weight}; {finite}"),
        );
    }
    assert!(build(two().weight(-1.0).energy()).is_ok());
    assert_says(
        build(two().weight(f64::NAN).energy()),
        &format!("the weight of condition `eq` is NaN; {finite}"),
    );
    assert_says(
        build(two().point_weights(&[1.0])),
        "point weights of condition `eq`: 1 given, 2 expected",
    );
    assert_says(
        build(two().point_weights(&[1.0, f64::NAN])),
        "point weights of condition `eq` at index 1 is NaN; all numbers must be finite",
    );
    assert_says(
        build(two().point_weights(&[1.0, -0.5])),
        "a point weight of condition `eq` is -0.5; it must not be negative",
    );
}

#[test]
fn missing_data_column() {
    let (params, net) = one();
    let eq = Equation::record("fit", &params, ["x"], |[x]| {
        net.at::<1>(&[x])[0] - data("observed")
    })
    .expect("fit");
    let says = "condition `fit` reads the data column `observed`, which its points do not have; \
                add it with `Points::with_column(\"observed\", …)`";
    assert_says(
        Problem::new(&params, [Condition::new(&eq, points(&[0.0]))]),
        says,
    );
    assert_says(values(&eq, &params, &points(&[0.0])), says);
}

// Parameters and engines.

/// A problem of the network alone, at some points.
fn plain() -> (Parameters, Problem) {
    let (params, net) = one();
    let eq = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0]).expect("eq");
    let condition = Condition::new(&eq, points(&[0.0, 0.5, 1.0]));
    let problem = Problem::new(&params, [condition]).expect("a problem");
    (params, problem)
}

#[test]
fn wrong_numbers_of_parameters() {
    let (mut params, problem) = plain();
    let engine = Engine::new(&problem).expect("an engine");
    let short = vec![0.0; 12];
    let says = "parameters: 12 given, 13 expected";
    assert_says(engine.loss(&short), says);
    assert_says(engine.losses(&short), says);
    assert_says(engine.evaluate(&short), says);
    assert_says(engine.gradients(&short), says);
    assert_says(engine.residuals("eq", &short), says);
    assert_says(engine.rows("eq", &short, |_| ()), says);
    assert_says(params.set(&short), says);
    assert_says(
        engine.evaluate_into(params.values(), &mut [], &mut [0.0; 13]),
        "losses: 0 given, 1 expected",
    );
    assert_says(
        engine.evaluate_into(params.values(), &mut [0.0], &mut [0.0; 12]),
        "gradient: 12 given, 13 expected",
    );
    let mut bad = params.values().to_vec();
    bad[3] = f64::NAN;
    let says = "parameter at index 3 is NaN; all numbers must be finite";
    assert_says(engine.loss(&bad), says);
    assert_says(engine.evaluate(&bad), says);
    assert_says(engine.residuals("eq", &bad), says);
    let before = params.values().to_vec();
    assert_says(params.set(&bad), says);
    assert_eq!(params.values(), before, "a refused set changes nothing");
    // Parameters that grew after the problem was made.
    params.coefficient("nu", 1.0).expect("nu");
    assert_says(
        engine.loss(params.values()),
        "parameters: 14 given, 13 expected",
    );
}

#[test]
fn unknown_names() {
    let (mut params, problem) = plain();
    let engine = Engine::new(&problem).expect("an engine");
    let says = "there is no condition `other`; there are: eq";
    assert_says(engine.residuals("other", params.values()), says);
    assert_says(engine.rows("other", params.values(), |_| ()), says);
    let says = "there is no parameter block `w`; there are: u.0.weight, u.0.bias, u.1.weight, \
                u.1.bias";
    assert_says(params.block("w"), says);
    assert_says(params.matrix("w"), says);
    assert_says(params.transposed("w"), says);
    assert_says(params.transposed_mut("w"), says);
    assert_eq!(params.locate(13), None);
    assert_says(
        params.coefficient("nu", f64::NAN),
        "the start of coefficient `nu` at index 0 is NaN; all numbers must be finite",
    );
    assert_eq!(
        params.len(),
        13,
        "a refused coefficient leaves nothing behind"
    );
    assert!(params.coefficient("nu", 1.0).is_ok());
}

#[test]
fn options_out_of_range() {
    let (_, problem) = plain();
    for chunk in [0, 1, 15, 17, 40] {
        assert_says(
            Engine::with(&problem, &Options::default().chunk(chunk)),
            &format!("the number of points a chunk is {chunk}; a positive multiple of 16"),
        );
    }
    for threads in [0, 1_000_000_000, usize::MAX] {
        let engine = Engine::with(&problem, &Options::default().threads(threads));
        let text = engine.expect_err("too few or too many").to_string();
        let begins = format!("the number of threads is {threads}");
        assert!(text.starts_with(&begins), "{text}");
    }
    // A chunk of any size works.
    let (params, problem) = plain();
    let want = Engine::new(&problem)
        .and_then(|e| e.loss(params.values()))
        .expect("a loss");
    for chunk in [16, 1024, 1040, 1 << 20] {
        let engine = Engine::with(&problem, &Options::default().chunk(chunk)).expect("an engine");
        assert_eq!(engine.loss(params.values()), Ok(want));
    }
}

// Numbers that go wrong during an evaluation.

/// 200 points in [0, 1], x = n/200.
fn many() -> Points {
    points(&(0..200).map(|n| f64::from(n) / 200.0).collect::<Vec<_>>())
}

/// The errors of `loss` and `evaluate` in all settings, which must agree.
fn non_finite(
    params: &Parameters,
    x: &Points,
    residual: impl Fn(Field) -> Field,
) -> (Error, Vec<Error>) {
    let eq = Equation::record("heat", params, ["x"], |[x]| residual(x)).expect("heat");
    let condition = Condition::new(&eq, x.clone()).named("inner");
    let problem = Problem::new(params, [condition]).expect("a problem");
    let mut errors = Vec::new();
    for precision in [Precision::Double, Precision::Single] {
        for chunk in [16, 64] {
            let options = Options::default().precision(precision).chunk(chunk);
            let engine = Engine::with(&problem, &options).expect("an engine");
            errors.push(engine.loss(params.values()).expect_err("not finite"));
            errors.push(engine.evaluate(params.values()).expect_err("not finite"));
        }
    }
    (errors[0].clone(), errors)
}

#[track_caller]
fn assert_non_finite(errors: &[Error], point: usize, value: f64, node: &str, line: u32) {
    for error in errors {
        let Error::NonFinite {
            condition,
            point: got_point,
            coordinates,
            value: got_value,
            node: got_node,
            at,
        } = error
        else {
            panic!("another error: {error}");
        };
        assert_eq!(condition, "inner");
        assert_eq!(*got_point, point, "{error}");
        assert!(coordinates.starts_with("x = 0"), "{error}");
        let same = got_value == &value || (got_value.is_nan() && value.is_nan());
        assert!(same, "{error}");
        assert_eq!(got_node, node, "{error}");
        assert!(at.starts_with(&format!("{}:{line}:", file!())), "{error}");
    }
}

#[test]
fn nan_in_the_middle_of_many_points() {
    let (params, net) = one();
    let line = Cell::new(0);
    let (first, all) = non_finite(&params, &many(), |x| {
        let [u] = net.at(&[x]);
        line.set(line!() + 1);
        let root = (0.614 - x).sqrt();
        u * root + root.exp()
    });
    assert_non_finite(&all, 123, f64::NAN, "sqrt", line.get());
    let text = first.to_string();
    let place = format!("{}:{}:", file!(), line.get());
    assert!(
        text.starts_with(&format!(
            "condition `inner`: the residual is NaN at point 123 (x = 0.615); the first value \
             that is not finite comes from `sqrt`, recorded at {place}"
        )),
        "{text}"
    );
}

#[test]
fn division_by_zero_at_one_point() {
    let (params, net) = one();
    let line = Cell::new(0);
    let x = points(&(0..70).map(|n| f64::from(n) / 64.0).collect::<Vec<_>>());
    let (_, all) = non_finite(&params, &x, |x| {
        let [u] = net.at(&[x]);
        line.set(line!() + 1);
        let pole = 1.0 / (x - 0.5);
        pole + u
    });
    assert_non_finite(&all, 32, f64::INFINITY, "recip", line.get());
}

#[test]
fn infinite_derivative_inside_a_residual() {
    let (params, net) = one();
    let line = Cell::new(0);
    let x = points(&(0..70).map(|n| f64::from(n) / 64.0).collect::<Vec<_>>());
    // The value of the root at 1/2 is 0; its derivative in x is not.
    let (_, all) = non_finite(&params, &x, |x| {
        let [u] = net.at(&[x]);
        line.set(line!() + 1);
        let root = ((x - 0.5) * (x - 0.5)).sqrt();
        root.d(x) * u
    });
    assert_non_finite(&all, 32, f64::NAN, "sqrt", line.get());
}

#[test]
fn branch_not_taken_is_not_blamed() {
    let (params, net) = one();
    let line = Cell::new(0);
    let (_, all) = non_finite(&params, &many(), |x| {
        let [u] = net.at(&[x]);
        // NaN below 1/2, but not taken there.
        let harmless = select(x.above(0.5), (x - 0.5).sqrt(), u);
        line.set(line!() + 1);
        let guilty = (x - 0.248).ln();
        harmless + guilty
    });
    assert_non_finite(&all, 0, f64::NAN, "ln", line.get());
}

#[test]
fn overflow_of_a_square_is_told() {
    let (params, net) = one();
    let eq = Equation::record("big", &params, ["x"], |[x]| {
        1e200 * (1.5 + x) + net.at::<1>(&[x])[0]
    })
    .expect("big");
    let problem = Problem::new(&params, [Condition::new(&eq, many())]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    let text = engine
        .loss(params.values())
        .expect_err("overflow")
        .to_string();
    assert_eq!(
        text,
        "the loss of condition `big` is inf; its residuals are finite but too large to be added \
         up"
    );
    // As an energy it is a number.
    let condition = Condition::new(&eq, many()).energy();
    let problem = Problem::new(&params, [condition]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    assert!(engine.loss(params.values()).is_ok());
    // Next to a residual that is NaN, the large one of an energy is not blamed.
    let line = Cell::new(0);
    let eq = Equation::record("big", &params, ["x"], |[x]| {
        line.set(line!() + 1);
        1e200 * (1.5 + x) + net.at::<1>(&[x])[0] + (0.614 - x).sqrt()
    })
    .expect("big");
    let condition = Condition::new(&eq, many()).energy().named("inner");
    let problem = Problem::new(&params, [condition]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    let error = engine.loss(params.values()).expect_err("NaN");
    assert_non_finite(&[error], 123, f64::NAN, "sqrt", line.get());
}

#[test]
fn data_too_large_for_single_precision() {
    let (params, net) = one();
    let line = Cell::new(0);
    let eq = Equation::record("fit", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        line.set(line!() + 1);
        u - data("y")
    })
    .expect("fit");
    let mut column = vec![1.0; 200];
    column[123] = 1e300;
    let x = many().with_column("y", &column).expect("data");
    let problem = Problem::new(
        &params,
        [Condition::new(&eq, x).named("inner").weight(1e-300)],
    )
    .expect("a problem");
    let single = Options::default().precision(Precision::Single);
    let engine = Engine::with(&problem, &single).expect("an engine");
    let error = engine.loss(params.values()).expect_err("infinite in f32");
    assert_non_finite(&[error], 123, f64::NEG_INFINITY, "data", line.get());
}

#[test]
fn infinite_gradient_of_a_finite_loss() {
    let mut params = Parameters::new();
    let a = params.coefficient("a", 0.0).expect("a");
    let b = params.coefficient("b", 1.0).expect("b");
    let line = line!() + 2;
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        a.field().sqrt() + b.field() * x - 2.0
    })
    .expect("eq");
    for n in [1, 17, 100] {
        let x = points(&(0..n).map(|i| f64::from(i) / 100.0).collect::<Vec<_>>());
        let problem = Problem::new(&params, [Condition::new(&eq, x)]).expect("a problem");
        for precision in [Precision::Double, Precision::Single] {
            let options = Options::default().precision(precision);
            let engine = Engine::with(&problem, &options).expect("an engine");
            assert!(engine.loss(params.values()).is_ok(), "the loss is finite");
            for error in [
                engine.evaluate(params.values()).expect_err("not finite"),
                engine.gradients(params.values()).expect_err("not finite"),
            ] {
                let text = error.to_string();
                let Error::NonFiniteGradient {
                    index,
                    name,
                    value,
                    origin,
                    ..
                } = error
                else {
                    panic!("another error: {text}");
                };
                assert_eq!((index, name.as_str()), (0, "a"));
                let origin = origin.expect("an origin");
                assert_eq!((origin.condition.as_str(), origin.point), ("eq", 0));
                let (node, at) = origin.node.expect("a node");
                assert_eq!(node, "sqrt");
                assert!(at.contains(&format!("errors.rs:{line}:")), "{at}");
                assert_eq!(
                    text,
                    format!(
                        "the gradient in parameter 0 (`a`) is {value} although the loss is \
                         finite: condition `eq`, point 0 (x = 0), the derivative of `sqrt`, \
                         recorded at {at}; look for a function with an infinite derivative, such \
                         as a square root at 0"
                    )
                );
            }
        }
    }
}

/// Where one of many points, in one of two conditions, meets an infinite derivative; and
/// where the branch that is not taken has one too.
#[test]
fn the_origin_of_an_infinite_gradient_is_found() {
    let mut params = Parameters::new();
    let a = params.coefficient("a", 0.25).expect("a");
    let fine = Equation::record("fine", &params, ["x"], |[x]| a.field() * x).expect("fine");
    let line = line!() + 3;
    let steep = Equation::record("steep", &params, ["x", "y"], |[x, y]| {
        let spared = select(x.above(2.0), (a.field() - 0.25).sqrt(), a.field());
        (a.field() - x).powf(1.5).d(x) + spared * y
    })
    .expect("steep");
    let rows: Vec<[f64; 2]> = (0..200)
        .map(|i| [if i == 137 { 0.25 } else { -1.0 }, f64::from(i)])
        .collect();
    let conditions = [
        Condition::new(&fine, points(&[0.5])),
        Condition::new(&steep, Points::from_rows(&rows).expect("points"))
            .energy()
            .weight(-1.0),
    ];
    let problem = Problem::new(&params, conditions).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    assert!(engine.loss(params.values()).is_ok());
    let error = engine.evaluate(params.values()).expect_err("infinite");
    let Error::NonFiniteGradient {
        origin: Some(origin),
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((origin.condition.as_str(), origin.point), ("steep", 137));
    assert_eq!(origin.coordinates, "x = 0.25, y = 137");
    let (node, at) = origin.node.as_ref().expect("a node");
    assert_eq!(node, "powf(1.5)");
    assert!(at.contains(&format!("errors.rs:{line}:")), "{at}");
}

#[test]
fn residuals_that_are_not_finite_are_given_as_they_are() {
    let (params, net) = one();
    let eq = Equation::record("eq", &params, ["x"], |[x]| {
        net.at::<1>(&[x])[0] + (0.5 - x).sqrt()
    })
    .expect("eq");
    let x = points(&[0.0, 1.0, 0.25]);
    let problem = Problem::new(&params, [Condition::new(&eq, x)]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    let residuals = engine.residuals("eq", params.values()).expect("residuals");
    let finite: Vec<bool> = residuals[0].iter().map(|r| r.is_finite()).collect();
    assert_eq!(finite, [true, false, true]);
}
