//! The trace: its numbers against the paper's, recomputed; its sums; tables, pictures, page.

mod common;
#[path = "../examples/trace/figures.rs"]
mod figures;
#[path = "../examples/trace/paper.rs"]
mod paper;
#[path = "../examples/trace/sections.rs"]
mod sections;

use common::{assert_close, golden, numbers};
use dualtape::trace::{MAX_NUMBERS, Seed, Show, Trace, page};
use dualtape::{
    Condition, Counts, Elemental::Tanh, Engine, Equation, Error, Lowering, Options, Parameters,
    Points, Problem, data, detach, select,
};
use paper::{Paper, agrees, name_nodes};
use resvg::usvg;
use serde_json::Value;

const TOLERANCE: f64 = 1e-13;

/// What the example prints as JSON for one key.
fn section(key: &str) -> Value {
    let paper = Paper::new().expect("the paper's network");
    let all = sections::all(&paper).expect("all sections");
    let found = all.into_iter().find(|section| section.key == key);
    let found = found.expect("a section of that name");
    assert!(!found.tables.is_empty());
    assert!(found.notes.iter().all(|note| note.len() > 20));
    found.json
}

/// Compares entries of the same name, and says how many there were.
#[track_caller]
fn same(got: &Value, want: &Value, names: &[&str]) {
    for name in names {
        assert_close(
            name,
            &numbers(&got[*name]),
            &numbers(&want[*name]),
            TOLERANCE,
        );
    }
}

#[test]
fn tables_1_and_2_a_function_of_two_inputs() {
    let want = &golden("paper.json")["minimal_example"];
    let forward = section("table1");
    same(&forward, want, &["u", "y"]);
    assert_eq!(numbers(&forward["u_dot"]), [2.0, 1.0]);
    assert_eq!(numbers(&forward["y_dot"]), [20.0, 10.0]);
    let reverse = section("table2");
    assert_eq!(numbers(&reverse["y_bar"]), [1.0]);
    assert_eq!(reverse["u_bar"], want["f_prime_of_u"]);
    assert_eq!(numbers(&reverse["x_bar"]), [20.0, 10.0]);
    for way in ["jets", "nested", "second_sweep"] {
        assert_eq!(reverse["mixed"][way], want["mixed_d2y_dx2_dx1"], "{way}");
    }
}

#[test]
fn table_3_parameters() {
    let want = golden("paper.json");
    let got = section("table3");
    assert_eq!(got["names"], want["param_order"]);
    assert_eq!(got["theta"], want["parameters"]["theta"]);
}

#[test]
fn table_4_forward_pass() {
    let want = &golden("paper.json")["forward"]["t=0.5"];
    let names = ["z1", "a1", "z2", "a2", "y", "phi1(z1)", "phi1(z2)"];
    same(&section("table4"), want, &names);
}

#[test]
fn table_5_what_graph_1_keeps() {
    let got = section("table5");
    let nodes = got["nodes"].as_array().expect("nodes");
    let path: Vec<&str> = nodes.iter().filter_map(|n| n["node"].as_str()).collect();
    assert_eq!(path, ["y", "a2", "z2", "a1", "z1", "t"]);
    // Activations, which PyTorch saves too, and slopes in place of its second pass over them.
    let forward = &golden("paper.json")["forward"]["t=0.5"];
    let mut kept = 0;
    for node in nodes {
        for saved in node["kept"].as_array().expect("kept") {
            let name = match (node["node"].as_str(), saved["what"].as_str()) {
                (Some("a1"), Some("value")) => "a1",
                (Some("a2"), Some("value")) => "a2",
                (Some("a1"), Some("slope")) => "phi1(z1)",
                (Some("a2"), Some("slope")) => "phi1(z2)",
                (Some("t"), Some("value")) => {
                    assert_eq!(numbers(&saved["numbers"]), [0.5]);
                    kept += 8;
                    continue;
                }
                other => panic!("{other:?} is kept"),
            };
            let got = numbers(&saved["numbers"]);
            assert_close(name, &got, &numbers(&forward[name]), TOLERANCE);
            kept += 8 * got.len();
        }
    }
    assert_eq!(got["kept_bytes"], kept);
    assert_eq!(kept, 8 * (1 + 3 + 3 + 3 + 3));
}

#[test]
fn table_6_adjoints_and_22_derivatives_in_one_sweep() {
    let want = &golden("paper.json")["reverse"];
    let names = [
        "m3_bar", "a2_bar", "z2_bar", "m2_bar", "a1_bar", "z1_bar", "m1_bar", "t_bar",
    ];
    let got = section("table6");
    same(&got, want, &names);
    let all = numbers(&golden("paper.json")["mixed"]["t=0.5"][0]);
    assert_eq!(all.len(), 22);
    assert_close("dy/dθ", &numbers(&got["dy_dtheta"]), &all, TOLERANCE);
}

#[test]
fn table_7_only_detach_gives_the_wrong_gradient() {
    let want = &golden("paper.json")["create_graph"];
    let got = section("table7");
    same(&got, want, &["with", "without"]);
    for (ours, theirs) in [("with_nested", "with"), ("without_nested", "without")] {
        assert_close(
            ours,
            &numbers(&got[ours]),
            &numbers(&want[theirs]),
            TOLERANCE,
        );
    }
    assert_eq!(
        got["sign_flips"],
        golden("paper_printed.json")["table7_sign_flips"]
    );
    let marked = |which: &str| got["detached_nodes"][which].as_array().map(Vec::len);
    assert_eq!((marked("with"), marked("without")), (Some(0), Some(1)));

    // No way to derivatives, and no recomputation, gives it otherwise.
    let paper = Paper::new().expect("the paper's network");
    let residual = paper
        .equation("residual", |y, t| y.d(t) + y)
        .expect("an equation");
    let condition = Condition::new(&residual, paper::at(paper::T).expect("a point"));
    let problem = Problem::new(&paper.params, [condition]).expect("a problem");
    for lowering in [Lowering::Jets, Lowering::NestedReverse, Lowering::Auto] {
        for recompute in [false, true] {
            let options = Options::default().lowering(lowering).recompute(recompute);
            let engine = Engine::with(&problem, &options).expect("an engine");
            let gradient = engine
                .evaluate(paper.params.values())
                .expect("values")
                .gradient;
            let what = format!("{lowering:?} {recompute}");
            assert_close(&what, &gradient, &numbers(&want["with"]), TOLERANCE);
        }
    }
}

#[test]
fn table_8_second_traversal() {
    let (want, printed) = (golden("paper.json"), golden("paper_printed.json"));
    let got = section("table8");
    let over = &want["mixed"]["over_adjoints"];
    let bars = &got["over_adjoints_of_adjoints"];
    for name in ["y_bar", "a2_bar", "z2_bar", "a1_bar", "z1_bar", "t_bar"] {
        assert_close(
            name,
            &numbers(&bars[name]),
            &numbers(&over[name]),
            TOLERANCE,
        );
    }
    let own = &got["over_adjoints"];
    for name in ["z2", "z1", "t"] {
        assert_close(name, &numbers(&own[name]), &numbers(&over[name]), TOLERANCE);
    }
    // φ' is read from z here.
    let from_z = &printed["over_adjoints_when_phi1_is_read_from_z"];
    assert_eq!(numbers(&own["a2"]), [0.0; 3]);
    same(own, from_z, &["a1"]);
    let split = &printed["split_of_d_dy"];
    for (ours, matrix, theirs) in [
        ("y.2.weight graph2", "W3", "graph2 (m3_bar x over a2_bar)"),
        ("y.1.weight graph2", "W2", "graph2 (m2_bar x over a1_bar)"),
        ("y.1.weight graph1", "W2", "graph1 (over z2 x a1)"),
        ("y.0.weight graph2", "W1", "graph2 (m1_bar x over t_bar)"),
        ("y.0.weight graph1", "W1", "graph1 (over z1 x t)"),
        ("y.1.bias graph1", "b2", "graph1 (over z2)"),
        ("y.0.bias graph1", "b1", "graph1 (over z1)"),
    ] {
        let (got, want) = (&got["shares"][ours], &split[matrix][theirs]);
        assert_close(ours, &numbers(got), &numbers(want), TOLERANCE);
    }
    let gradient = numbers(&want["mixed"]["t=0.5"][1]);
    assert_close("∂y'/∂θ", &numbers(&got["gradient"]), &gradient, TOLERANCE);
    let second = numbers(&want["tangents"]["t=0.5"]["derivatives"])[2];
    assert_close("y''", &numbers(&got["d2y"]), &[second], TOLERANCE);
    // Graph 2 first, from ∂y/∂t back to its seed, then Graph 1.
    let order: Vec<&str> = got["order"]
        .as_array()
        .expect("order")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let place = |label: &str| order.iter().position(|name| *name == label).expect(label);
    assert_eq!(place("∂y/∂t"), 0);
    assert!(place("∂y/∂z1") < place("∂y/∂z2") && place("∂y/∂z2") < place("∂y/∂y"));
    assert!(place("∂y/∂a2") < place("a2") && place("z1") < place("t"));
}

#[test]
fn equation_26_training_step() {
    let want = &golden("paper.json")["training_step"];
    let names = [
        "y",
        "dy",
        "y(0)",
        "residual",
        "2R",
        "2*lambda*(y(0)-1)",
        "loss_residual",
        "loss_ic",
        "loss",
        "gradient",
    ];
    same(&section("equation26"), want, &names);
}

#[test]
fn section_6_4_curvature_of_saturated_neurons() {
    let want = golden("paper.json");
    let got = section("precision");
    let forward = &want["forward"]["t=0.5"];
    assert_close(
        "φ''(z2)",
        &numbers(&got["phi2(z2)"]),
        &numbers(&forward["phi2(z2)"]),
        TOLERANCE,
    );
    let exact = numbers(&want["saturation"]["phi2"]);
    // Each to its own size: a difference of 1 − tanh² would lose them all.
    for (name, tolerance) in [("phi2_f64", 1e-15), ("phi2_f32", 5e-7)] {
        for (got, want) in numbers(&got[name]).iter().zip(&exact) {
            assert!(
                (got / want - 1.0).abs() < tolerance,
                "{name}: {got:e} for {want:e}"
            );
        }
    }
}

#[test]
fn mixed_mode_has_one_graph_and_its_tangents_are_the_over_adjoints() {
    let want = golden("paper.json");
    let got = section("mixed_mode");
    let step = &want["training_step"];
    same(&got, step, &["loss", "gradient"]);
    let create_graph = numbers(&want["create_graph"]["with"]);
    let residual = numbers(&got["residual_gradient"]);
    assert_close("of R²", &residual, &create_graph, TOLERANCE);
    let tangents = &want["tangents"]["t=0.5"];
    for (ours, theirs) in [
        ("z1", "z1_dot"),
        ("a1", "a1_dot"),
        ("z2", "z2_dot"),
        ("a2", "a2_dot"),
    ] {
        let theirs = numbers(&tangents[theirs]);
        assert_close(ours, &numbers(&got["tangents"][ours]), &theirs, TOLERANCE);
        assert_close(
            ours,
            &numbers(&got["over_adjoints"][ours]),
            &theirs,
            TOLERANCE,
        );
    }
    assert!(got["largest_difference"].as_f64().expect("a number") < 1e-15);
    let graphs = |mode: &str| got["counts"][mode]["nodes"].as_array().map(Vec::len);
    assert_eq!((graphs("mixed"), graphs("nested")), (Some(1), Some(2)));
}

#[test]
fn p_and_q_contracted_are_the_reverse_sweep() {
    let want = &golden("paper_printed.json")["pq"];
    let got = section("pq");
    assert_eq!(got["passes"], 22);
    for (letter, layer) in [
        ("P", "a1"),
        ("P", "a2"),
        ("P", "y"),
        ("Q", "a1"),
        ("Q", "a2"),
        ("Q", "y"),
    ] {
        let name = format!("{letter}[{layer}]");
        assert_close(
            &name,
            &numbers(&got[letter][layer]),
            &numbers(&want[&name]),
            TOLERANCE,
        );
    }
    let sweep = numbers(&got["reverse_sweep"]);
    for (layer, below) in [("a1", 6), ("a2", 18), ("y", 22)] {
        let contraction = numbers(&got["contraction"][layer]);
        assert_close(layer, &contraction, &sweep[..below], TOLERANCE);
    }
}

#[test]
fn stacking_counts() {
    let got = section("stacking");
    let want = numbers(&golden("paper.json")["tangents"]["t=0.5"]["derivatives"]);
    assert_close("y to y''''", &numbers(&got["values"]), &want, TOLERANCE);
    let of = |mode: &str, what: &str| -> Vec<f64> {
        let list = got[mode].as_array().expect("a list").iter();
        list.map(|entry| numbers(&entry[what]).iter().sum())
            .collect()
    };
    assert_eq!(of("torch", "nodes"), [15.0, 22.0, 38.0, 77.0, 180.0]);
    assert_eq!(of("jets", "nodes"), STACKED[0]);
    assert_eq!(of("nested", "nodes"), STACKED[1]);
    assert_eq!(of("jets", "kept_bytes"), STACKED[2]);
    assert_eq!(of("nested", "kept_bytes"), STACKED[3]);
}

/// Nodes of jets and of nested reverse mode, then bytes kept by them.
const STACKED: [[f64; 5]; 4] = [
    [6.0, 7.0, 8.0, 9.0, 10.0],
    [6.0, 11.0, 22.0, 41.0, 73.0],
    [104.0, 152.0, 200.0, 248.0, 296.0],
    [104.0, 224.0, 440.0, 776.0, 1232.0],
];

#[test]
fn the_28_differences_are_found() {
    let printed = golden("paper_printed.json");
    let all = printed["printed"].as_array().expect("a list");
    let paper = Paper::new().expect("the paper's network");
    let text: String = sections::all(&paper)
        .expect("all sections")
        .iter()
        .flat_map(|section| &section.tables)
        .map(|table| table.markdown())
        .collect();
    let mut differences = 0;
    for entry in all {
        let word = |key: &str| entry[key].as_str().unwrap_or_default();
        let right = agrees(
            entry["recomputed"].as_f64().expect("a number"),
            word("printed"),
        );
        assert_eq!(Value::Bool(right), entry["agrees"], "{entry}");
        differences += usize::from(!right);
        // A line of a table says so.
        let cells = format!("| {} | {} |", word("printed"), word("where"));
        let line = text.lines().find(|line| {
            line.starts_with(&format!("| {} |", word("what"))) && line.contains(&cells)
        });
        let line = line.unwrap_or_else(|| panic!("no line for {entry}"));
        let explained = !line.ends_with("|  |");
        assert_eq!(explained, !right, "{line}");
    }
    assert_eq!((all.len(), differences), (100, 28));
}

/// A small problem with most operations: two networks' worth of jets, data, a coefficient,
/// a selection, and derivatives of second order in two coordinates.
fn mixed_bag() -> (Parameters, Equation, Points) {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("u", &[2, 4, 4, 2], Tanh).expect("a network");
    let nu = params.coefficient("nu", 0.3).expect("a coefficient");
    let equation = Equation::record("bag", &params, ["t", "x"], |[t, x]| {
        let [u, v] = net.at(&[t, x]);
        let flux = (nu.field() * u.d(x)).d(x);
        let w = select(x.above(0.2), u * v, u.sin());
        [u.d(t) - flux + w, v.laplacian(&[t, x]) - data("f")]
    })
    .expect("an equation");
    let points = Points::from_rows(&[[0.1, 0.5], [0.7, -0.4], [0.3, 0.2]]).expect("points");
    let points = points.with_column("f", &[1.0, -2.0, 0.5]).expect("data");
    (params, equation, points)
}

#[test]
fn a_trace_is_what_the_engine_computes() {
    let (params, equation, points) = mixed_bag();
    let condition = Condition::new(&equation, points.clone());
    let problem = Problem::new(&params, [condition]).expect("a problem");
    let engine = Engine::new(&problem).expect("an engine");
    let want = engine.evaluate(params.values()).expect("values").gradient;
    let residuals = engine.residuals("bag", params.values()).expect("residuals");
    for lowering in common::lowerings(2) {
        let equation = equation.lowered(lowering).expect("a lowered equation");
        let trace = Trace::of(&equation, &params, &points, Seed::Squares).expect("a trace");
        let what = format!("{lowering:?}");
        assert_close(&what, &trace.gradient, &want, TOLERANCE);
        for (&root, want) in trace.outputs.iter().zip(&residuals) {
            assert_close(&what, &trace.nodes[root].jet[0][0], want, TOLERANCE);
        }
        // What the nodes add is all there is.
        let mut sum = vec![0.0; params.len()];
        for share in trace.nodes.iter().flat_map(|node| &node.shares) {
            for (total, value) in sum[share.first..].iter_mut().zip(&share.values) {
                *total += value;
            }
        }
        assert_close(&what, &sum, &want, TOLERANCE);
        // Bytes are those of the plan of a training step.
        let kept = Counts::of(&equation).kept_bytes::<f64>(64) / 64 * points.len();
        assert_eq!(trace.kept_bytes, kept, "{what}");
        let all: usize = trace.nodes.iter().map(|node| node.kept_bytes()).sum();
        assert_eq!(all, kept, "{what}");
    }
}

#[test]
fn adjoints_of_coordinates_are_the_derivatives_of_the_output() {
    let mut params = Parameters::seeded(5);
    let net = params.mlp("u", &[2, 5, 1], Tanh).expect("a network");
    let u = Equation::record("u", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x * x]);
        u
    })
    .expect("an equation");
    let slopes = Equation::record("slopes", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x * x]);
        [u.d(t), u.d(x)]
    })
    .expect("an equation");
    let points = Points::from_rows(&[[0.1, 0.5], [0.7, -0.4]]).expect("points");
    let trace = Trace::of(&u, &params, &points, Seed::Sum).expect("a trace");
    let want = dualtape::values(&slopes, &params, &points).expect("values");
    for (node, want) in trace.nodes.iter().zip(&want) {
        assert_close(&node.operation, &node.adjoint[0][0], want, TOLERANCE);
    }
    // Seeds by hand scale them.
    let seeds = vec![vec![2.0, -3.0]];
    let given = Trace::of(&u, &params, &points, Seed::Given(&seeds)).expect("a trace");
    let scaled: Vec<f64> = want[1].iter().zip(&seeds[0]).map(|(w, s)| w * s).collect();
    assert_close("x", &given.nodes[1].adjoint[0][0], &scaled, TOLERANCE);
}

#[test]
fn an_adjoint_of_a_plane_is_that_of_the_derivative() {
    // ∂(y'')/∂ of each number of the jet of z, y = z³: y'' = 3z² z'' + 6z z'².
    let none = Parameters::new();
    let cube = Equation::record("cube", &none, ["t"], |[t]| (t.sin().powi(3)).d(t).d(t))
        .expect("an equation");
    let points = Points::from_rows(&[[0.4]]).expect("a point");
    let trace = Trace::of(&cube, &none, &points, Seed::Sum).expect("a trace");
    let sin = trace
        .nodes
        .iter()
        .find(|node| node.operation == "sin")
        .expect("sin");
    let (z, dz, ddz) = (0.4_f64.sin(), 0.4_f64.cos(), -0.4_f64.sin());
    let one = |plane: &str| (sin.plane(plane, 0)[0], sin.adjoint_plane(plane, 0)[0]);
    let pairs = [
        ("1", z, 6.0 * z * ddz + 6.0 * dz * dz),
        ("t", dz, 12.0 * z * dz),
        ("t.t", ddz, 3.0 * z * z),
    ];
    for (plane, value, adjoint) in pairs {
        let (got, bar) = one(plane);
        assert_close(plane, &[got], &[value], TOLERANCE);
        assert_close(plane, &[bar], &[adjoint], TOLERANCE);
    }
}

#[test]
fn detach_shows() {
    let mut params = Parameters::seeded(5);
    let net = params.mlp("u", &[1, 3, 1], Tanh).expect("a network");
    let equation = Equation::record("held", &params, ["t"], |[t]| {
        let [u] = net.at(&[t]);
        detach(u.d(t)) * u
    })
    .expect("an equation");
    let points = Points::from_rows(&[[0.1]]).expect("a point");
    let trace = Trace::of(&equation, &params, &points, Seed::Sum).expect("a trace");
    let held: Vec<_> = trace.nodes.iter().filter(|node| node.detached).collect();
    assert_eq!(held.len(), 1);
    // It gets an adjoint and passes nothing on.
    assert!(held[0].adjoint[0][0][0] != 0.0);
    let slope = &trace.nodes[held[0].inputs[0]];
    assert_eq!(slope.adjoint[0][0], [0.0]);
    for text in [
        trace.to_string(),
        trace.to_markdown(),
        trace.to_svg(Show::Shape),
    ] {
        assert!(text.contains("detach"), "{text}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let (params, equation, points) = mixed_bag();
    let trace = |points: &Points, seed| Trace::of(&equation, &params, points, seed);
    let short = vec![vec![1.0; 3]];
    assert!(matches!(
        trace(&points, Seed::Given(&short)),
        Err(Error::Length {
            given: 1,
            expected: 2,
            ..
        })
    ));
    let uneven = vec![vec![1.0; 3], vec![1.0; 2]];
    assert!(matches!(
        trace(&points, Seed::Given(&uneven)),
        Err(Error::Length {
            given: 2,
            expected: 3,
            ..
        })
    ));
    let other = Parameters::new();
    assert!(Trace::of(&equation, &other, &points, Seed::Sum).is_err());
    let bare = Points::from_rows(&[[0.1, 0.5]]).expect("a point");
    assert!(matches!(
        trace(&bare, Seed::Sum),
        Err(Error::MissingColumn { .. })
    ));
    let many = Points::grid(&[(0.0, 1.0, 400), (0.0, 1.0, 400)]).expect("points");
    let many = many.with_column("f", &vec![0.0; 160_000]).expect("data");
    let error = trace(&many, Seed::Sum).expect_err("too many numbers");
    assert!(
        error.to_string().contains(&MAX_NUMBERS.to_string()),
        "{error}"
    );
}

#[test]
fn names_are_of_the_block_and_the_adjoint() {
    let (params, equation, points) = mixed_bag();
    let mut trace = Trace::of(&equation, &params, &points, Seed::Sum).expect("a trace");
    assert_eq!(trace.parameters[0], "u.0.weight[0,0]");
    assert_eq!(trace.parameters[3], "u.0.weight[1,1]");
    assert_eq!(trace.parameters[8], "u.0.bias[0]");
    assert_eq!(trace.parameters.last().map(String::as_str), Some("nu"));
    assert_eq!(trace.nodes[0].operation, "coordinate t");
    trace.label(0, "time");
    assert_eq!(trace.nodes[0].label, "time");
    assert!(trace.to_string().contains("time"));
    trace.label(usize::MAX, "nothing");

    let paper = Paper::new().expect("the paper's network");
    let slope = paper
        .derivative(2)
        .expect("y''")
        .lowered(Lowering::NestedReverse)
        .expect("lowered");
    let trace = paper.trace(&slope, Seed::Sum).expect("a trace");
    let labels: Vec<&str> = trace.nodes.iter().map(|node| node.label.as_str()).collect();
    assert!(labels.contains(&"∂y/∂t"), "{labels:?}");
    assert!(labels.contains(&"∂(∂y/∂t)/∂t"), "{labels:?}");
    assert_eq!(trace.graphs(), 3);
}

#[test]
fn every_digit_is_in_the_json() {
    let (params, equation, points) = mixed_bag();
    let trace = Trace::of(&equation, &params, &points, Seed::Squares).expect("a trace");
    let json: Value = serde_json::from_str(&trace.to_json().to_string()).expect("JSON");
    assert_eq!(numbers(&json["gradient"]), trace.gradient);
    let nodes = json["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), equation.tape().nodes().len());
    for (entry, node) in nodes.iter().zip(&trace.nodes) {
        assert_eq!(numbers(&entry["jet"]), node.jet.concat().concat());
        assert_eq!(numbers(&entry["adjoint"]), node.adjoint.concat().concat());
    }
}

#[test]
fn pictures_are_well_formed_and_whole() {
    let paper = Paper::new().expect("the paper's network");
    let all = figures::all(&paper).expect("figures");
    assert_eq!(all.len(), 10);
    for figure in &all {
        let name = figure.name;
        for show in [Show::Shape, Show::Jets, Show::Kept, Show::Adjoints] {
            let svg = figure.trace.to_svg(show);
            let tree =
                usvg::roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{name}: {e}"));
            let boxes = tree.descendants().filter(|n| n.attribute("rx").is_some());
            assert_eq!(boxes.count(), figure.trace.nodes.len(), "{name}");
            let arrows = tree.descendants().filter(|n| n.has_attribute("marker-end"));
            let edges: usize = figure
                .trace
                .nodes
                .iter()
                .map(|node| node.inputs.len())
                .sum();
            assert_eq!(arrows.count(), edges, "{name}");
            // Nothing lies over anything else.
            let corners: Vec<[f64; 4]> = tree
                .descendants()
                .filter(|n| n.attribute("rx").is_some())
                .map(|n| {
                    ["x", "y", "width", "height"].map(|key| {
                        n.attribute(key)
                            .and_then(|text| text.parse().ok())
                            .expect("a number")
                    })
                })
                .collect();
            for (place, a) in corners.iter().enumerate() {
                for b in &corners[..place] {
                    let apart = a[0] + a[2] <= b[0]
                        || b[0] + b[2] <= a[0]
                        || a[1] + a[3] <= b[1]
                        || b[1] + b[3] <= a[1];
                    assert!(apart, "{name}: {a:?} over {b:?}");
                }
            }
            usvg::Tree::from_str(&svg, &usvg::Options::default()).expect("a drawing");
        }
        let dot = figure.trace.to_dot(figure.show);
        assert!(
            dot.starts_with("digraph \"") && dot.ends_with("}\n"),
            "{dot}"
        );
        let cross = figure.trace.nodes.iter().flat_map(|node| {
            node.inputs
                .iter()
                .filter(|&&id| figure.trace.nodes[id].graph != node.graph)
        });
        assert_eq!(
            dot.matches("[style=dashed]").count(),
            cross.count(),
            "{name}"
        );
        assert_eq!(
            dot.matches("subgraph").count(),
            figure.trace.graphs(),
            "{name}"
        );
    }
}

#[test]
fn the_page_needs_nothing_else() {
    let paper = Paper::new().expect("the paper's network");
    let html = figures::page(&paper).expect("a page");
    for foreign in ["http://", "https://", "@import", "url(//", "src=", "<link"] {
        // The name of SVG is no address to load from.
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(foreign), "{foreign}");
    }
    let start = html.find("application/json\">").expect("data") + "application/json\">".len();
    let end = start + html[start..].find("</script>").expect("an end");
    let data: Value = serde_json::from_str(&html[start..end]).expect("JSON");
    let panels = data.as_array().expect("panels");
    assert_eq!(panels.len(), 2);
    let want = numbers(&golden("paper.json")["create_graph"]["with"]);
    for panel in panels {
        let trace = &panel["trace"];
        assert_close("gradient", &numbers(&trace["gradient"]), &want, TOLERANCE);
        let nodes = trace["nodes"].as_array().map(Vec::len);
        assert_eq!(panel["drawing"]["nodes"].as_array().map(Vec::len), nodes);
        assert_eq!(panel["phrases"].as_array().map(Vec::len), nodes);
    }
    assert_eq!(
        panels[0]["drawing"]["graphs"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        panels[1]["drawing"]["graphs"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn a_name_cannot_break_out_of_a_picture_or_the_page() {
    let none = Parameters::new();
    let name = "</script><b> & \"quoted\" \\ }";
    let square = Equation::record(name, &none, ["x"], |[x]| x * x).expect("an equation");
    let points = Points::from_rows(&[[0.1]]).expect("a point");
    let mut trace = Trace::of(&square, &none, &points, Seed::Sum).expect("a trace");
    name_nodes(&mut trace);
    trace.label(0, name);
    let html = page(name, &[(name, &trace)]);
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<b>"));
    usvg::roxmltree::Document::parse(&trace.to_svg(Show::Shape)).expect("XML");
    assert!(trace.to_dot(Show::Shape).contains("\\\"quoted\\\" \\\\ }"));
}

#[test]
fn pictures_of_the_docs_are_what_the_example_draws() {
    let paper = Paper::new().expect("the paper's network");
    let page = include_str!("../docs/xray.md");
    let mut found = 0;
    for figure in figures::all(&paper).expect("figures") {
        let name = format!("xray/{}.svg", figure.name);
        if page.contains(&name) {
            let path = format!("{}/docs/{name}", env!("CARGO_MANIFEST_DIR"));
            let drawn = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(
                drawn,
                figure.trace.to_svg(figure.show),
                "{name}: `--svg` draws it anew"
            );
            found += 1;
        }
    }
    assert_eq!(found, page.matches("](xray/").count());
    assert_eq!(found, 4);
}

#[test]
fn a_factor_that_is_carried_along_belongs_to_graph_2() {
    // ∂y/∂x1 of (2 x1 + x2)² is 4u: one node, and no other in Graph 2.
    let none = Parameters::new();
    let equation = sections::square(&none, sections::Order::First).expect("an equation");
    let nested = equation
        .lowered(Lowering::NestedReverse)
        .expect("a lowered equation");
    let points = Points::from_rows(&[[2.0, 1.0]]).expect("a point");
    let mut trace = Trace::of(&nested, &none, &points, Seed::Sum).expect("a trace");
    sections::name_square(&mut trace);
    assert_eq!(trace.graphs(), 2);
    let last = &trace.nodes[trace.outputs[0]];
    assert_eq!((last.graph, last.label.as_str()), (2, "∂y/∂x1"));
    assert_eq!(last.plane("1", 0), [20.0]);
    assert!(
        trace
            .nodes
            .iter()
            .filter(|node| node.graph == 1)
            .all(|n| !n.label.contains('∂'))
    );
}
