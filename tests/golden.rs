//! Golden values: the paper's network and ten equations, in both precisions, on every
//! instruction set.
#![expect(clippy::excessive_precision, reason = "values as they were printed")]

mod common;

use common::{assert_close, golden, layer_numbers, lowerings, network, numbers, paper_network};
use dualtape::{
    Condition, Engine, Equation, Error, Field, InstructionSet, Lowering, Mlp, Options, Parameters,
    Points, Precision, Problem, data, detach, values,
};
use serde_json::Value;

/// Precisions, instruction sets and ways to derivatives, with the tolerance that each
/// promises.
fn settings() -> Vec<(Options, f64)> {
    let mut all = Vec::new();
    for set in InstructionSet::available() {
        for lowering in lowerings(4) {
            for recompute in [false, true] {
                let options = Options::default()
                    .instructions(set)
                    .lowering(lowering)
                    .recompute(recompute);
                all.push((options.clone(), 1e-13));
                // Seven digits of sums that cancel: of the Kuramoto-Sivashinsky gradient,
                // without FMA, jets keep 1.0e-6 and sweeps through sweeps 1.6e-6.
                let rounding = if lowering == Lowering::Jets {
                    1e-6
                } else {
                    2e-6
                };
                all.push((options.precision(Precision::Single), rounding));
            }
        }
    }
    all
}

fn points_of(problem: &Value) -> Points {
    let dimension = problem["inputs"].as_array().expect("inputs").len();
    Points::from_flat(dimension, &numbers(&problem["points"])).expect("points")
}

fn input_names(problem: &Value) -> Vec<String> {
    let inputs = problem["inputs"].as_array().expect("inputs");
    inputs
        .iter()
        .map(|n| n.as_str().expect("name").to_owned())
        .collect()
}

/// Every derivative that the file lists, beside its value.
fn check_derivatives(name: &str, problem: &Value, params: &Parameters, net: &Mlp) {
    let listed = problem["derivatives"].as_object().expect("derivatives");
    let outputs: Vec<&str> = problem["outputs"]
        .as_array()
        .expect("outputs")
        .iter()
        .map(|o| o.as_str().expect("output"))
        .collect();
    for (quantity, meaning) in listed {
        let output = meaning["output"].as_str().expect("output");
        let place = outputs
            .iter()
            .position(|o| *o == output)
            .expect("an output");
        let order = numbers(&meaning["order"]);
        let equation = Equation::record_over(quantity, params, &input_names(problem), |x| {
            let mut u = net.at_all(x)[place];
            for (&x, &k) in x.iter().zip(&order) {
                for _ in 0..k as usize {
                    u = u.d(x);
                }
            }
            u
        })
        .expect("a derivative");
        let want = numbers(&problem["expected"][quantity]);
        for lowering in lowerings(4) {
            let equation = equation.lowered(lowering).expect("a lowered equation");
            let got = values(&equation, params, &points_of(problem)).expect("values");
            let what = format!("{name} {quantity} by {lowering:?}");
            assert_close(&what, &got[0], &want, 1e-13);
        }
    }
}

/// Residuals, loss and gradient of one golden problem.
fn check(
    name: &str,
    residual: impl Fn(&Mlp, &[Field], &Value) -> Vec<Field>,
    residual_names: &[&str],
) {
    let all = golden("pde.json");
    let problem = &all[name];
    let mut params = Parameters::new();
    let net = network(&mut params, "net", problem);
    check_derivatives(name, problem, &params, &net);
    let equation = Equation::record_over(name, &params, &input_names(problem), |x| {
        residual(&net, x, problem)
    })
    .expect("the equation");
    let condition = Condition::new(&equation, points_of(problem));
    let whole = Problem::new(&params, [condition]).expect("the problem");
    for (options, tolerance) in settings() {
        let what = |quantity: &str| format!("{name} {quantity} {options:?}");
        let engine = Engine::with(&whole, &options).expect("the engine");
        let evaluation = engine.evaluate(params.values()).expect("an evaluation");
        let residuals = engine.residuals(name, params.values()).expect("residuals");
        let expected = &problem["expected"];
        for (got, residual) in residuals.iter().zip(residual_names) {
            assert_close(
                &what(residual),
                got,
                &numbers(&expected[*residual]),
                tolerance,
            );
        }
        let loss = numbers(&expected["loss"]);
        assert_close(&what("loss"), &[evaluation.loss], &loss, tolerance);
        let layers = expected["grad"]["layers"].as_array().expect("layers");
        let want = layer_numbers(layers);
        assert_close(&what("gradient"), &evaluation.gradient, &want, tolerance);
    }
}

#[test]
fn burgers() {
    let residual = |net: &Mlp, x: &[Field], problem: &Value| {
        let nu = problem["constants"]["nu"].as_f64().expect("nu");
        let [u] = net.at(x);
        let (t, x) = (x[0], x[1]);
        vec![u.d(t) + u * u.d(x) - nu * u.d(x).d(x)]
    };
    check("burgers", residual, &["residual"]);
}

#[test]
fn poisson_5d_by_second_derivatives() {
    let residual = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let laplacian: Field = x.iter().map(|&x| u.d(x).d(x)).sum();
        let f: Field = x.iter().map(|&x| x * x).sum();
        vec![laplacian - f]
    };
    check("poisson_5d", residual, &["residual"]);
}

#[test]
fn poisson_5d_by_the_laplacian() {
    let residual = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let f: Field = x.iter().map(|&x| x.powi(2)).sum();
        vec![u.laplacian(x) - f]
    };
    check("poisson_5d", residual, &["residual"]);
}

#[test]
fn kuramoto_sivashinsky() {
    let residual = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let (t, x) = (x[0], x[1]);
        let second = u.d(x).d(x);
        vec![u.d(t) + u * u.d(x) + second + second.d(x).d(x)]
    };
    check("kuramoto_sivashinsky", residual, &["residual"]);
}

#[test]
fn navier_stokes_by_either_laplacian() {
    for collapsed in [false, true] {
        let residual = |net: &Mlp, x: &[Field], problem: &Value| {
            let nu = problem["constants"]["nu"].as_f64().expect("nu");
            let [u, v, p] = net.at(x);
            let (t, x, y) = (x[0], x[1], x[2]);
            let laplacian = |w: Field| {
                if collapsed {
                    w.laplacian(&[x, y])
                } else {
                    w.d(x).d(x) + w.d(y).d(y)
                }
            };
            let momentum =
                |w: Field, px: Field| w.d(t) + u * w.d(x) + v * w.d(y) + px - nu * laplacian(w);
            vec![momentum(u, p.d(x)), momentum(v, p.d(y)), u.d(x) + v.d(y)]
        };
        check(
            "navier_stokes_2d",
            residual,
            &[
                "residual_momentum_x",
                "residual_momentum_y",
                "residual_continuity",
            ],
        );
    }
}

#[test]
fn variable_coefficients() {
    let residual = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let (x, y) = (x[0], x[1]);
        vec![u.d(x).d(x) + 2.0 * x * u.d(x).d(y) + (1.0 + y * y) * u.d(y).d(y)]
    };
    for name in ["softplus_gelu", "softplus_silu", "silu_gelu"] {
        check(
            &format!("variable_coefficients_{name}"),
            residual,
            &["residual"],
        );
    }
}

#[test]
fn biharmonic_term_by_term_and_by_laplacians() {
    let terms = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let (x, y) = (x[0], x[1]);
        let (xx, yy) = (u.d(x).d(x), u.d(y).d(y));
        vec![xx.d(x).d(x) + 2.0 * xx.d(y).d(y) + yy.d(y).d(y)]
    };
    check("biharmonic_2d", terms, &["residual"]);
    let laplacians = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        vec![u.laplacian(x).laplacian(x)]
    };
    check("biharmonic_2d", laplacians, &["residual"]);
}

#[test]
fn kdv() {
    let residual = |net: &Mlp, x: &[Field], _: &Value| {
        let [u] = net.at(x);
        let (t, x) = (x[0], x[1]);
        vec![u.d(t) + 6.0 * u * u.d(x) + u.d(x).d(x).d(x)]
    };
    check("kdv", residual, &["residual"]);
}

#[test]
fn burgers_inverse_with_coefficients_and_data() {
    let all = golden("pde.json");
    let problem = &all["burgers_inverse"];
    let mut params = Parameters::new();
    let net = network(&mut params, "u", problem);
    let start = |name: &str| {
        problem["trainable_scalars"][name]
            .as_f64()
            .expect("a start")
    };
    let lambda = params
        .coefficient("lambda1", start("lambda1"))
        .expect("lambda1");
    let nu = params.coefficient("nu", start("nu")).expect("nu");
    check_derivatives("burgers_inverse", problem, &params, &net);
    let residual = Equation::record("residual", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + lambda.field() * u * u.d(x) - nu.field() * u.d(x).d(x)
    })
    .expect("the equation");
    let observed = Equation::record("data", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u - data("u_data")
    })
    .expect("the data equation");
    let points = points_of(problem);
    let with_data = points
        .clone()
        .with_column("u_data", &numbers(&problem["u_data"]))
        .expect("data");
    let conditions = [
        Condition::new(&residual, points),
        Condition::new(&observed, with_data),
    ];
    let whole = Problem::new(&params, conditions).expect("the problem");
    let expected = &problem["expected"];
    let layers = expected["grad"]["layers"].as_array().expect("layers");
    let mut want = layer_numbers(layers);
    for name in ["lambda1", "nu"] {
        want.extend(numbers(&expected["grad"]["scalars"][name]));
    }
    for (options, tolerance) in settings() {
        let engine = Engine::with(&whole, &options).expect("the engine");
        let evaluation = engine.evaluate(params.values()).expect("an evaluation");
        let losses: Vec<f64> = ["loss_residual", "loss_data"]
            .iter()
            .flat_map(|key| numbers(&expected[*key]))
            .collect();
        assert_close("losses", &evaluation.losses, &losses, tolerance);
        assert_close("gradient", &evaluation.gradient, &want, tolerance);
        let got = engine
            .residuals("residual", params.values())
            .expect("residuals");
        assert_close(
            "residual",
            &got[0],
            &numbers(&expected["residual"]),
            tolerance,
        );
    }
}

// The paper.

fn at(t: f64) -> Points {
    Points::from_rows(&[[t]]).expect("a point")
}

/// y, y', … at one t.
fn paper_derivatives(params: &Parameters, net: &Mlp, t: f64, order: usize) -> Vec<f64> {
    let equation = Equation::record("derivatives", params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        let mut all = vec![y];
        for k in 0..order {
            all.push(all[k].d(t));
        }
        all
    })
    .expect("derivatives");
    let values = values(&equation, params, &at(t)).expect("values");
    values.into_iter().flatten().collect()
}

/// The gradient of the k-th derivative of y in all parameters: an energy at one point.
fn gradient_of(
    params: &Parameters,
    options: &Options,
    t: f64,
    residual: impl Fn(Field) -> Field,
) -> Vec<f64> {
    let equation = Equation::record("energy", params, ["t"], |[t]| residual(t)).expect("energy");
    let condition = Condition::new(&equation, at(t)).energy();
    let problem = Problem::new(params, [condition]).expect("problem");
    let engine = Engine::with(&problem, options).expect("engine");
    engine
        .evaluate(params.values())
        .expect("evaluation")
        .gradient
}

fn derivative(mut y: Field, t: Field, order: usize) -> Field {
    for _ in 0..order {
        y = y.d(t);
    }
    y
}

#[test]
fn c02_derivatives_of_the_papers_network() {
    let (params, net, paper) = paper_network();
    for t in ["0.5", "0"] {
        let want = numbers(&paper["tangents"][format!("t={t}")]["derivatives"]);
        let got = paper_derivatives(&params, &net, t.parse().expect("t"), 4);
        assert_close(&format!("derivatives at {t}"), &got, &want, 1e-13);
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_close(&format!("order {k}"), &[*got], &[*want], 1e-14);
        }
    }
    let listed = [
        0.17684335738651596332,
        0.55141387346909438503,
        -0.33620781064979106749,
        -0.77047335001949151,
        2.0362520718077861,
    ];
    assert_close(
        "C2",
        &paper_derivatives(&params, &net, 0.5, 4),
        &listed,
        1e-14,
    );
}

#[test]
fn mixed_gradients_of_the_papers_network() {
    let (params, net, paper) = paper_network();
    for (options, tolerance) in settings() {
        for order in 0..4 {
            let want = numbers(&paper["mixed"]["t=0.5"][order]);
            let got = gradient_of(&params, &options, 0.5, |t| {
                let [y] = net.at(&[t]);
                derivative(y, t, order)
            });
            assert_close(
                &format!("gradient of order {order}"),
                &got,
                &want,
                tolerance,
            );
        }
        let want = numbers(&paper["mixed"]["t=0"][0]);
        let got = gradient_of(&params, &options, 0.0, |t| net.at::<1>(&[t])[0]);
        assert_close("gradient at 0", &got, &want, tolerance);
    }
}

#[test]
fn c01_the_wrong_gradient_only_by_detach() {
    let (params, net, paper) = paper_network();
    let place = params.block("y.1.weight").expect("W2").offset + 1;
    let right = gradient_of(&params, &Options::default(), 0.5, |t| {
        let [y] = net.at(&[t]);
        (y.d(t) + y).powi(2)
    });
    assert_close(
        "with",
        &right,
        &numbers(&paper["create_graph"]["with"]),
        1e-13,
    );
    assert_close("dL/dW2[1,2]", &[right[place]], &[-0.561907248246446], 1e-14);
    let wrong = gradient_of(&params, &Options::default(), 0.5, |t| {
        let [y] = net.at(&[t]);
        (detach(y.d(t)) + y).powi(2)
    });
    assert_close(
        "without",
        &wrong,
        &numbers(&paper["create_graph"]["without"]),
        1e-13,
    );
    assert_close("detached", &[wrong[place]], &[0.0604881291902332], 1e-14);
    let equation = Equation::record("detached", &params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        detach(y.d(t)) + y
    })
    .expect("detached");
    let listing = equation.tape().listing().expect("listing");
    assert!(listing.contains("detach"), "{listing}");
}

/// The paper's two conditions, at given points.
fn paper_problem(params: &Parameters, net: &Mlp, t: &[f64]) -> Problem {
    let decay = Equation::record("decay", params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        y.d(t) + y
    })
    .expect("decay");
    let start =
        Equation::record("start", params, ["t"], |[t]| net.at::<1>(&[t])[0] - 1.0).expect("start");
    let conditions = [
        Condition::new(&decay, Points::new(vec![t.to_vec()]).expect("points")),
        Condition::new(&start, at(0.0)).weight(10.0),
    ];
    Problem::new(params, conditions).expect("problem")
}

#[test]
fn training_step_of_the_paper() {
    let (params, net, paper) = paper_network();
    let problem = paper_problem(&params, &net, &[0.5]);
    let step = &paper["training_step"];
    for (options, tolerance) in settings() {
        let engine = Engine::with(&problem, &options).expect("engine");
        let evaluation = engine.evaluate(params.values()).expect("evaluation");
        let residual = engine
            .residuals("decay", params.values())
            .expect("residual");
        assert_close(
            "residual",
            &residual[0],
            &numbers(&step["residual"]),
            tolerance,
        );
        assert_close(
            "loss",
            &[evaluation.loss],
            &numbers(&step["loss"]),
            tolerance,
        );
        assert_close(
            "loss of the equation",
            &evaluation.losses[..1],
            &numbers(&step["loss_residual"]),
            tolerance,
        );
        // loss_ic is (y(0) - 1)², without its weight.
        let start = evaluation.losses[1] / 10.0;
        assert_close(
            "loss of the start",
            &[start],
            &numbers(&step["loss_ic"]),
            tolerance,
        );
        assert_close(
            "gradient",
            &evaluation.gradient,
            &numbers(&step["gradient"]),
            tolerance,
        );
        let parts = engine.gradients(params.values()).expect("gradients");
        let sum: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a + b).collect();
        assert_close("sum of gradients", &sum, &evaluation.gradient, tolerance);
        let want = numbers(&paper["create_graph"]["with"]);
        assert_close("gradient of the equation", &parts[0], &want, tolerance);
    }
}

#[test]
fn thirty_points_of_the_paper() -> Result<(), Error> {
    let (params, net, paper) = paper_network();
    let case = &paper["collocation30"];
    let t = numbers(&case["t"]);
    let problem = paper_problem(&params, &net, &t);
    for (options, tolerance) in settings() {
        let engine = Engine::with(&problem, &options)?;
        let evaluation = engine.evaluate(params.values())?;
        assert_close(
            "loss",
            &[evaluation.loss],
            &numbers(&case["loss"]),
            tolerance,
        );
        assert_close(
            "gradient",
            &evaluation.gradient,
            &numbers(&case["gradient"]),
            tolerance,
        );
    }
    let fields = Equation::record("fields", &params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        (y, y.d(t))
    })?;
    let got = values(&fields, &params, &Points::new(vec![t])?)?;
    assert_close("y", &got[0], &numbers(&case["y"]), 1e-13);
    assert_close("dy", &got[1], &numbers(&case["dy"]), 1e-13);
    Ok(())
}
