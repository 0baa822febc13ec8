//! One section for each table, and for what follows from them.

use crate::paper::{Beside, LAMBDA, Paper, T, adjoint, apart, at, bar, digits, jet, list, number};
use dualtape::trace::{Seed, Table, Trace};
use dualtape::{
    Condition, Counts, Engine, Equation, Error, Lowering, Options, Parameters, Points, Precision,
    Problem, detach, values,
};
use num_dual::{DualNum, HyperDual64};
use serde_json::{Map, Value, json};

/// A table, in words and as data.
pub struct Section {
    pub key: &'static str,
    pub tables: Vec<Table>,
    pub notes: Vec<String>,
    pub json: Value,
}

type Made = Result<Section, Box<dyn std::error::Error>>;

/// All of them.
pub fn all(paper: &Paper) -> Result<Vec<Section>, Box<dyn std::error::Error>> {
    let make: [fn(&Paper) -> Made; 13] = [
        table1, table2, table3, table4, table5, table6, table7, table8, equation26, precision,
        mixed_mode, pq, stacking,
    ];
    make.iter().map(|make| make(paper)).collect()
}

/// What is asked of y = (2 x1 + x2)².
#[derive(Clone, Copy)]
pub enum Order {
    Value,
    /// ∂y/∂x1.
    First,
    /// y and both first derivatives.
    Both,
    /// ∂²y/∂x1∂x2.
    Mixed,
}

pub fn square(none: &Parameters, order: Order) -> Result<Equation, Error> {
    Equation::record("(2 x1 + x2)²", none, ["x1", "x2"], |[x1, x2]| {
        let u = 2.0 * x1 + x2;
        let y = u.powi(2);
        match order {
            Order::Value => vec![y],
            Order::First => vec![y.d(x1)],
            Order::Both => vec![y, y.d(x1), y.d(x2)],
            Order::Mixed => vec![y.d(x1).d(x2)],
        }
    })
}

/// x1, x2, u, y.
pub fn name_square(trace: &mut Trace) {
    trace.label(0, "x1");
    trace.label(1, "x2");
    let square = trace
        .nodes
        .iter()
        .find(|n| n.graph == 1 && n.operation.starts_with("powi"));
    if let Some((y, u)) = square.map(|node| (node.id, node.inputs[0])) {
        trace.label(u, "u");
        trace.label(y, "y");
    }
}

fn square_trace(order: Order, lowering: Lowering) -> Result<Trace, Error> {
    let none = Parameters::new();
    let equation = square(&none, order)?.lowered(lowering)?;
    let points = Points::from_rows(&[[2.0, 1.0]])?;
    let mut trace = Trace::of(&equation, &none, &points, Seed::Sum)?;
    name_square(&mut trace);
    Ok(trace)
}

/// Two forward passes with one direction each; on the tape both directions ride along.
fn table1(paper: &Paper) -> Made {
    let trace = square_trace(Order::Both, Lowering::Jets)?;
    let one = |label: &str, plane: &str| jet(&trace, label, plane);
    let mut beside = Beside::new(
        paper,
        "Table 1. Forward mode: u = 2 x1 + x2, y = u² at (2, 1)",
    );
    beside.put("Section 2", "u", &one("u", "1"));
    beside.put("Section 2", "y", &one("y", "1"));
    beside.alone("∂u/∂x1, the first pass", &one("u", "x1"));
    beside.put("Section 2", "dy/dx1", &one("y", "x1"));
    beside.alone("∂u/∂x2, the second pass", &one("u", "x2"));
    beside.put("Section 2", "dy/dx2", &one("y", "x2"));
    let value = |label: &str, plane: &str| one(label, plane).first().copied().unwrap_or(f64::NAN);
    Ok(Section {
        key: "table1",
        tables: vec![beside.table],
        notes: vec![
            "The paper makes a pass for each input. A jet carries both tangents in one.".to_owned(),
        ],
        json: json!({
            "u": value("u", "1"),
            "y": value("y", "1"),
            "u_dot": [value("u", "x1"), value("u", "x2")],
            "y_dot": [value("y", "x1"), value("y", "x2")],
        }),
    })
}

/// One reverse pass, and the mixed derivative three ways.
fn table2(paper: &Paper) -> Made {
    let trace = square_trace(Order::Value, Lowering::Jets)?;
    let bar_of = |label| adjoint(&trace, label, "1");
    let mut beside = Beside::new(
        paper,
        "Table 2. Reverse mode, and the mixed derivative of Section 2.5",
    );
    beside.alone("ȳ", &bar_of("y"));
    beside.put("Section 2", "u_bar", &bar_of("u"));
    beside.put("Section 2", "f'(u)", &bar_of("u"));
    beside.alone("x̄1 = ∂y/∂x1", &bar_of("x1"));
    beside.alone("x̄2 = ∂y/∂x2", &bar_of("x2"));
    let output = |trace: &Trace| trace.nodes[trace.outputs[0]].plane("1", 0);
    let jets = output(&square_trace(Order::Mixed, Lowering::Jets)?);
    let nested = output(&square_trace(Order::Mixed, Lowering::NestedReverse)?);
    // The second sweep starts from x̄1 and goes through Graph 2 and Graph 1.
    let first = square_trace(Order::First, Lowering::NestedReverse)?;
    let second = adjoint(&first, "x2", "1");
    beside.put("Section 2", "mixed derivative", &jets);
    beside.alone("the same by two recorded sweeps", &nested);
    beside.alone("the same, x̄2 of a sweep from x̄1", &second);
    Ok(Section {
        key: "table2",
        tables: vec![beside.table],
        notes: Vec::new(),
        json: json!({
            "y_bar": bar_of("y")[0],
            "u_bar": bar_of("u")[0],
            "x_bar": [bar_of("x1")[0], bar_of("x2")[0]],
            "mixed": {"jets": jets[0], "nested": nested[0], "second_sweep": second[0]},
        }),
    })
}

fn table3(paper: &Paper) -> Made {
    let mut table = Table::new("Table 3. The 22 parameters", ["parameter", "value"]);
    for (name, value) in paper.names.iter().zip(paper.params.values()) {
        table.row([name.clone(), value.to_string()]);
    }
    Ok(Section {
        key: "table3",
        tables: vec![table],
        notes: Vec::new(),
        json: json!({"names": paper.names, "theta": paper.params.values()}),
    })
}

/// z, a, y and the derivatives of tanh, from the tape of nested reverse mode, whose first
/// graph is the forward pass and whose second reads φ'(z).
fn table4(paper: &Paper) -> Made {
    let trace = paper.trace(
        &paper.derivative(1)?.lowered(Lowering::NestedReverse)?,
        Seed::Sum,
    )?;
    let [z1, a1, z2, a2, y, slope1, slope2] =
        ["z1", "a1", "z2", "a2", "y", "φ'(z1)", "φ'(z2)"].map(|label| jet(&trace, label, "1"));
    let mut beside = Beside::new(paper, "Table 4. The forward pass at t = 0.5");
    beside.put("Eq. 10", "z1", &z1);
    beside.put("Eq. 10", "a1", &a1);
    beside.put("Eq. 11", "z2", &z2);
    beside.put("Eq. 11", "a2", &a2);
    beside.put("Eq. 12", "y", &y);
    let w2 = paper.params.matrix("y.1.weight")?;
    let terms = [w2[(0, 1)] * a1[1], w2[(0, 2)] * a1[2], z2[0]];
    beside.put("Section 3.3, check of z2[1]", "terms", &terms);
    beside.put("Section 3.4, observation 2", "phi'(z2)", &slope2);
    beside.put("Eq. 21", "phi'(z1)", &slope1);
    Ok(Section {
        key: "table4",
        tables: vec![beside.table],
        notes: Vec::new(),
        json: json!({
            "z1": z1, "a1": a1, "z2": z2, "a2": a2, "y": y[0],
            "phi1(z1)": slope1, "phi1(z2)": slope2, "terms": terms,
        }),
    })
}

/// Graph 1 with what each node saves.
fn table5(paper: &Paper) -> Made {
    let trace = paper.trace(&paper.derivative(0)?, Seed::Sum)?;
    let mut table = Table::new(
        "Table 5. Graph 1, from the output to t, with what each node keeps",
        ["node", "operation", "kept", "bytes", "kept numbers"],
    );
    let mut nodes = Vec::new();
    for node in trace.nodes.iter().rev() {
        let mut lines = Vec::new();
        for kept in &node.kept {
            // A slope is φ'(z), from φ(z): a value that the node itself does not have.
            let kept_numbers = match kept.what {
                "value" => node.plane("1", 0),
                _ => node.plane("1", 0).iter().map(|a| 1.0 - a * a).collect(),
            };
            lines.push((kept.what, kept.bytes, kept_numbers));
        }
        let mut first = [node.label.as_str(), node.operation.as_str()];
        for (what, bytes, kept_numbers) in &lines {
            let kept_numbers: Vec<String> = kept_numbers.iter().map(|x| digits(*x)).collect();
            let [label, operation] = std::mem::take(&mut first);
            table.row([
                label,
                operation,
                what,
                &bytes.to_string(),
                &kept_numbers.join(" "),
            ]);
        }
        if lines.is_empty() {
            table.row([first[0], first[1], "nothing", "0"]);
        }
        let kept: Vec<Value> = lines
            .iter()
            .map(|(what, bytes, kept)| json!({"what": what, "bytes": bytes, "numbers": kept}))
            .collect();
        let inputs = node.inputs.iter().map(|&id| trace.nodes[id].label.clone());
        nodes.push(json!({
            "node": node.label,
            "operation": node.operation,
            "inputs": inputs.collect::<Vec<_>>(),
            "kept": kept,
        }));
    }
    let mut torch = Table::new(
        "PyTorch's Graph 1 of the same network (`nn.Linear`, t of shape 1 × 1)",
        ["node", "saves"],
    );
    for node in list(&paper.printed["torch_graph1"]) {
        let saved = node["saved"].as_object().into_iter().flatten();
        let saved: Vec<String> = saved
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        torch.row([node["name"].as_str().unwrap_or_default(), &saved.join("; ")]);
    }
    let theirs = &paper.printed["torch"]["nn_linear"]["d0y"];
    Ok(Section {
        key: "table5",
        tables: vec![table, torch],
        notes: vec![
            format!(
                "Kept here: {} bytes, without the weights, which lie in the parameter vector \
                 anyway. PyTorch's saved tensors refer to {} bytes, 104 of them weights.",
                trace.kept_bytes, theirs["saved_bytes"]
            ),
            "The paper's eight nodes (Add, Mm, Tanh, Add, Mm, Tanh, Add, Mm) appear for \
             a @ W.T + b; nn.Linear makes one AddmmBackward0, as one affine node here."
                .to_owned(),
        ],
        json: json!({"nodes": nodes, "kept_bytes": trace.kept_bytes}),
    })
}

/// All adjoints and 22 derivatives in one reverse sweep.
fn table6(paper: &Paper) -> Made {
    let trace = paper.trace(&paper.derivative(0)?, Seed::Sum)?;
    let [y, a2, z2, a1, z1, t] =
        ["y", "a2", "z2", "a1", "z1", "t"].map(|label| adjoint(&trace, label, "1"));
    let gradient = &trace.gradient;
    let mut beside = Beside::new(paper, "Table 6. The reverse sweep from y at t = 0.5");
    beside.alone("m3_bar", &y);
    for (whence, what, numbers) in [
        ("Eq. 15", "a2_bar", &a2[..]),
        ("Eq. 16", "W3_bar", &gradient[18..21]),
        ("Eq. 17", "z2_bar", &z2),
        ("Eq. 18", "b2_bar", &gradient[15..18]),
        ("Eq. 19", "a1_bar", &a1),
        ("Eq. 20", "W2_bar", &gradient[6..15]),
        ("Eq. 21", "z1_bar", &z1),
        ("Eq. 22", "m1_bar", &z1),
        ("Eq. 23", "m1_bar as used there", &z1),
    ] {
        beside.put(whence, what, numbers);
    }
    let w1 = &paper.params.values()[..3];
    let terms: Vec<f64> = w1.iter().zip(&z1).map(|(w, z)| w * z).collect();
    beside.put("Eq. 23", "terms of the sum", &terms);
    beside.put("Eq. 23, Table 6", "t_bar = y'", &t);
    beside.put(
        "Section 4.2, note on numerical precision",
        "y' as quoted for Section 5",
        &t,
    );
    beside.put("Eq. 24", "m1_bar as used there", &z1);
    beside.put("Eq. 24", "W1_bar", &gradient[..3]);
    let rounded = [
        ("a2_bar", &a2),
        ("z2_bar", &z2),
        ("m2_bar", &z2),
        ("a1_bar", &a1),
        ("z1_bar", &z1),
        ("m1_bar", &z1),
    ];
    for (what, numbers) in rounded {
        beside.put("Table 6", what, numbers);
    }
    let mut all = Table::new("The gradient of y", ["parameter", "derivative"]);
    for (name, &number) in paper.names.iter().zip(gradient) {
        all.row([name.clone(), digits(number)]);
    }
    Ok(Section {
        key: "table6",
        tables: vec![beside.table, all],
        notes: vec![
            "An affine node adds its bias itself: m and z of the paper are one.".to_owned(),
        ],
        json: json!({
            "m3_bar": y[0], "a2_bar": a2, "z2_bar": z2, "m2_bar": z2, "a1_bar": a1, "z1_bar": z1,
            "m1_bar": z1, "t_bar": t[0], "dy_dtheta": gradient,
        }),
    })
}

/// The gradient of R² with and without Graph 2. On a tape nothing is left out unless
/// `detach` says so.
fn table7(paper: &Paper) -> Made {
    let right = paper.equation("right", |y, t| y.d(t) + y)?;
    let wrong = paper.equation("wrong", |y, t| detach(y.d(t)) + y)?;
    let with = paper.trace(&right, Seed::Squares)?;
    let without = paper.trace(&wrong, Seed::Squares)?;
    let nested = paper.trace(&right.lowered(Lowering::NestedReverse)?, Seed::Squares)?;
    let nested_without = paper.trace(&wrong.lowered(Lowering::NestedReverse)?, Seed::Squares)?;
    let mut table = Table::new(
        "Table 7. The gradient of R², R = y' + y: right, and with y' held constant",
        ["parameter", "right", "detached", "sign"],
    );
    let mut flips = Vec::new();
    for (place, name) in paper.names.iter().enumerate() {
        let (a, b) = (with.gradient[place], without.gradient[place]);
        let flipped = a * b < 0.0;
        table.row([
            name.as_str(),
            &digits(a),
            &digits(b),
            if flipped { "wrong" } else { "" },
        ]);
        flips.extend(flipped.then(|| name.clone()));
    }
    let mut beside = Beside::new(paper, "What the paper prints of it");
    let place = paper
        .names
        .iter()
        .position(|name| name == "W2[1,2]")
        .unwrap_or(0);
    let whence = "Section 6.1, Table 7";
    beside.put(
        whence,
        "dLR/dW2[1,2] with create_graph",
        &[with.gradient[place]],
    );
    beside.put(
        whence,
        "dLR/dW2[1,2] without create_graph",
        &[without.gradient[place]],
    );
    let marked = |trace: &Trace| -> Vec<Value> {
        let nodes = trace.nodes.iter().filter(|node| node.detached);
        nodes
            .map(|node| json!({"node": node.label, "operation": node.operation}))
            .collect()
    };
    Ok(Section {
        key: "table7",
        notes: vec![
            format!(
                "The trace of the wrong one shows `detach` at {}; the other has none. It is the \
                 only way to hold y' constant.",
                without
                    .nodes
                    .iter()
                    .find(|n| n.detached)
                    .map_or("", |n| n.label.as_str())
            ),
            "PyTorch without create_graph raises an error here; it is silently wrong with \
             retain_graph=True, or if y is evaluated twice."
                .to_owned(),
        ],
        tables: vec![table, beside.table],
        json: json!({
            "with": with.gradient,
            "without": without.gradient,
            "with_nested": nested.gradient,
            "without_nested": nested_without.gradient,
            "sign_flips": flips,
            "detached_nodes": {"with": marked(&with), "without": marked(&without)},
        }),
    })
}

const NODES: [&str; 6] = ["y", "a2", "z2", "a1", "z1", "t"];

/// The second traversal: from t̄ = y' through Graph 2 and Graph 1.
fn table8(paper: &Paper) -> Made {
    let trace = paper.trace(
        &paper.derivative(1)?.lowered(Lowering::NestedReverse)?,
        Seed::Sum,
    )?;
    let mut table = Table::new(
        "Table 8. The second traversal, from y' through Graph 2 and Graph 1",
        [
            "step",
            "graph",
            "node",
            "operation",
            "over-adjoint",
            "adds to",
        ],
    );
    let mut order = Vec::new();
    let mut shares: Map<String, Value> = Map::new();
    for (step, node) in trace.nodes.iter().rev().enumerate() {
        let over = node.adjoint_plane("1", 0);
        let text: Vec<String> = over.iter().map(|x| digits(*x)).collect();
        let adds: Vec<&str> = node
            .shares
            .iter()
            .map(|share| share.block.as_str())
            .collect();
        table.row([
            (step + 1).to_string(),
            node.graph.to_string(),
            node.label.clone(),
            node.operation.clone(),
            text.join(" "),
            adds.join(", "),
        ]);
        order.push(node.label.clone());
        for share in &node.shares {
            let key = format!("{} graph{}", share.block, node.graph);
            shares.insert(key, json!(share.values));
        }
    }
    let over = |label: &str| adjoint(&trace, label, "1");
    let over_bars: Map<String, Value> = NODES
        .iter()
        .map(|label| (format!("{label}_bar"), json!(over(&bar(&trace, label)))))
        .collect();
    let overs: Map<String, Value> = NODES
        .iter()
        .map(|label| ((*label).to_owned(), json!(over(label))))
        .collect();
    let mut beside = Beside::new(paper, "What the paper prints of it");
    beside.put(
        "Section 5, text after Table 8",
        "final over-adjoint t = y''",
        &over("t"),
    );
    Ok(Section {
        key: "table8",
        tables: vec![table, beside.table],
        notes: vec![
            "PyTorch reads φ' from the saved output a, so its over-adjoints of a1 and a2 contain \
             −2a; here φ'(z) is a node that reads z, and they do not. All others are the same."
                .to_owned(),
        ],
        json: json!({
            "order": order,
            "over_adjoints_of_adjoints": over_bars,
            "over_adjoints": overs,
            "shares": shares,
            "gradient": trace.gradient,
            "d2y": over("t").first(),
        }),
    })
}

/// The training step: R² + λ (y(0) − 1)².
struct Step {
    evaluation: dualtape::Evaluation,
    residual: f64,
    miss: f64,
}

fn training_step(paper: &Paper, lowering: Lowering) -> Result<Step, Error> {
    let decay = paper.equation("decay", |y, t| y.d(t) + y)?;
    let start = paper.equation("start", |y, _| y - 1.0)?;
    let conditions = [
        Condition::new(&decay, at(T)?),
        Condition::new(&start, at(0.0)?).weight(LAMBDA),
    ];
    let problem = Problem::new(&paper.params, conditions)?;
    let engine = Engine::with(&problem, &Options::default().lowering(lowering))?;
    let theta = paper.params.values();
    Ok(Step {
        evaluation: engine.evaluate(theta)?,
        residual: engine.residuals("decay", theta)?[0][0],
        miss: engine.residuals("start", theta)?[0][0],
    })
}

fn equation26(paper: &Paper) -> Made {
    let step = training_step(paper, Lowering::NestedReverse)?;
    let solution = paper.equation("y, y'", |y, t| y.d(t))?;
    let slope = values(&solution, &paper.params, &at(T)?)?[0][0];
    let (residual, start) = (step.residual, step.miss + 1.0);
    let mut beside = Beside::new(paper, "Equation 26. The training step, R² + 10 (y(0) − 1)²");
    beside.alone("y", &[residual - slope]);
    beside.alone("y'", &[slope]);
    beside.alone("R = y' + y", &[residual]);
    beside.alone("y(0)", &[start]);
    beside.put("Section 5.1", "2R", &[2.0 * residual]);
    beside.put(
        "Section 5.1",
        "2*lambda*(y(0)-1)",
        &[2.0 * LAMBDA * step.miss],
    );
    beside.alone("R²", &step.evaluation.losses[..1]);
    beside.alone("(y(0) − 1)²", &[step.miss * step.miss]);
    beside.alone("loss", &[step.evaluation.loss]);
    let mut all = Table::new("Its gradient", ["parameter", "derivative"]);
    for (name, &number) in paper.names.iter().zip(&step.evaluation.gradient) {
        all.row([name.clone(), digits(number)]);
    }
    Ok(Section {
        key: "equation26",
        tables: vec![beside.table, all],
        notes: Vec::new(),
        json: json!({
            "y": residual - slope,
            "dy": slope,
            "y(0)": start,
            "residual": residual,
            "2R": 2.0 * residual,
            "2*lambda*(y(0)-1)": 2.0 * LAMBDA * step.miss,
            "loss_residual": step.evaluation.losses[0],
            "loss_ic": step.miss * step.miss,
            "loss": step.evaluation.loss,
            "gradient": step.evaluation.gradient,
        }),
    })
}

/// Section 6.4: φ'' in the tails, in both precisions.
fn precision(paper: &Paper) -> Made {
    let trace = paper.trace(
        &paper.derivative(2)?.lowered(Lowering::NestedReverse)?,
        Seed::Sum,
    )?;
    let curvature = trace.nodes.iter().find(|node| {
        let reads = node
            .inputs
            .first()
            .map(|&id| trace.nodes[id].label.as_str());
        node.operation == "tanh''" && reads == Some("z2")
    });
    let curvature = curvature.map_or_else(Vec::new, |node| node.plane("1", 0));
    let mut beside = Beside::new(paper, "Section 6.4. The second derivative of tanh");
    beside.put(
        "Section 6.4",
        "phi''(z2[1])",
        &curvature[..curvature.len().min(1)],
    );
    let triple = [
        jet(&trace, "z2", "1")[0],
        jet(&trace, "a2", "1")[0],
        jet(&trace, "φ'(z2)", "1")[0],
    ];
    beside.put("Section 6.4", "z2[1], tanh, phi'", &triple);

    let none = Parameters::new();
    let tails = Equation::record("φ''", &none, ["z"], |[z]| z.tanh().d(z).d(z))?;
    let rows: Vec<&Value> = list(&paper.printed["saturation"]).collect();
    let z: Vec<f64> = rows.iter().map(|row| number(&row["z"])).collect();
    let points = Points::new(vec![z.clone()])?;
    let double = values(&tails, &none, &points)?.concat();
    let single = {
        let problem = Problem::new(&none, [Condition::new(&tails, points)])?;
        let options = Options::default().precision(Precision::Single);
        Engine::with(&problem, &options)?
            .residuals("φ''", &[])?
            .concat()
    };
    let mut table = Table::new(
        "φ''(z) of saturated neurons",
        [
            "z",
            "exact",
            "here, f64",
            "here, f32",
            "−2t(1−t²), f64",
            "PyTorch, f64",
            "PyTorch, f32",
        ],
    );
    for (place, row) in rows.iter().enumerate() {
        let theirs = |key: &str| format!("{:.9e}", number(&row[key]) + 0.0);
        table.row([
            z[place].to_string(),
            theirs("phi2"),
            format!("{:.9e}", double[place]),
            format!("{:.9e}", single[place]),
            theirs("one_minus_square_f64"),
            theirs("torch_f64"),
            theirs("torch_f32"),
        ]);
    }
    Ok(Section {
        key: "precision",
        tables: vec![beside.table, table],
        notes: vec![
            "1 − tanh² cancels: PyTorch's φ'' is 0 in f32 from z = 10 on and 4 % off in f64 at \
             18. Here the coefficients come from exp(−2|z|), and are right to rounding."
                .to_owned(),
        ],
        json: json!({
            "phi2(z2)": curvature, "z2[1], tanh, phi'": triple,
            "z": z, "phi2_f64": double, "phi2_f32": single,
        }),
    })
}

/// The same step by jets, and the identity that explains it: the over-adjoints of Graph 2
/// are the tangents of the forward pass.
fn mixed_mode(paper: &Paper) -> Made {
    let residual = paper.equation("residual", |y, t| y.d(t) + y)?;
    let mixed = paper.trace(&residual, Seed::Squares)?;
    let nested = paper.trace(&residual.lowered(Lowering::NestedReverse)?, Seed::Squares)?;
    let over = paper.trace(
        &paper.derivative(1)?.lowered(Lowering::NestedReverse)?,
        Seed::Sum,
    )?;
    let mut table = Table::new(
        "Mixed mode. Tangents of the forward pass, and over-adjoints of Graph 2",
        [
            "node",
            "row",
            "tangent",
            "over-adjoint of its adjoint",
            "difference",
        ],
    );
    let (mut tangents, mut overs) = (Map::new(), Map::new());
    let mut largest: f64 = 0.0;
    for label in NODES {
        let tangent = jet(&mixed, label, "t");
        let other = adjoint(&over, &bar(&over, label), "1");
        for (row, (a, b)) in tangent.iter().zip(&other).enumerate() {
            let name = if row == 0 { label } else { "" };
            let apart = format!("{:.1e}", a - b);
            table.row([name, &row.to_string(), &digits(*a), &digits(*b), &apart]);
        }
        largest = largest.max(apart(&tangent, &other));
        tangents.insert(label.to_owned(), json!(tangent));
        overs.insert(label.to_owned(), json!(other));
    }
    let mut sizes = Table::new(
        "The residual y' + y at one point",
        ["mode", "nodes", "of them in Graph 2", "bytes kept"],
    );
    let mut counted = Map::new();
    for (mode, trace) in [("mixed", &mixed), ("nested", &nested)] {
        let counts = trace.counts();
        let total: usize = counts.iter().sum();
        let beyond = total - counts[0];
        sizes.row([
            mode.to_owned(),
            total.to_string(),
            beyond.to_string(),
            trace.kept_bytes.to_string(),
        ]);
        counted.insert(
            mode.to_owned(),
            json!({"nodes": counts, "kept_bytes": trace.kept_bytes}),
        );
    }
    let step = training_step(paper, Lowering::Jets)?;
    let reverse = training_step(paper, Lowering::NestedReverse)?;
    let between = apart(&step.evaluation.gradient, &reverse.evaluation.gradient);
    Ok(Section {
        key: "mixed_mode",
        tables: vec![table, sizes],
        notes: vec![
            format!(
                "The largest difference is {largest:.1e}: to sweep through Graph 2 is to run forward mode."
            ),
            format!(
                "The gradient of the whole training step in the two modes differs by {between:.1e}."
            ),
        ],
        json: json!({
            "tangents": tangents,
            "over_adjoints": overs,
            "largest_difference": largest,
            "loss": step.evaluation.loss,
            "gradient": step.evaluation.gradient,
            "residual_gradient": mixed.gradient,
            "counts": counted,
        }),
    })
}

/// The network on numbers that carry derivatives, layer by layer.
fn layers<D: DualNum<Primitive = f64> + Copy>(theta: &[D], t: D) -> [Vec<D>; 3] {
    let affine = |weights: &[D], biases: &[D], a: &[D]| -> Vec<D> {
        let rows = biases.iter().zip(weights.chunks(a.len()));
        let dot = |w: &[D]| {
            w.iter()
                .zip(a)
                .fold(D::from(0.0), |sum, (&w, &a)| sum + w * a)
        };
        rows.map(|(&b, w)| dot(w) + b).collect()
    };
    let tanh = |z: Vec<D>| -> Vec<D> { z.iter().map(DualNum::tanh).collect() };
    let a1 = tanh(affine(&theta[..3], &theta[3..6], &[t]));
    let a2 = tanh(affine(&theta[6..15], &theta[15..18], &a1));
    let y = affine(&theta[18..21], &theta[21..], &a2);
    [a1, a2, y]
}

/// For each layer, one row a parameter, one number a neuron.
type Sensitivities = [Vec<Vec<f64>>; 3];

/// P = ∂a/∂θ and Q = ∂ȧ/∂θ by a forward pass for each parameter, contracted with the
/// adjoints of one reverse sweep.
fn pq(paper: &Paper) -> Made {
    let names = ["a1", "a2", "y"];
    let (mut p, mut q) = (Sensitivities::default(), Sensitivities::default());
    let theta = paper.params.values();
    for k in 0..theta.len() {
        let mut duals: Vec<HyperDual64> = theta.iter().map(|&x| x.into()).collect();
        duals[k] = duals[k].derivative2();
        let a = layers(&duals, HyperDual64::from(T).derivative1());
        for (layer, a) in a.iter().enumerate() {
            p[layer].push(a.iter().map(|a| a.eps2).collect());
            q[layer].push(a.iter().map(|a| a.eps1eps2).collect());
        }
    }
    let residual = paper.equation("residual", |y, t| y.d(t) + y)?;
    let trace = paper.trace(&residual, Seed::Squares)?;
    // Σ ā·P + (∂L/∂ȧ)·Q over the neurons of a layer: all that flows through it.
    let contraction = |layer: usize| -> Vec<f64> {
        let bars = ["1", "t"].map(|plane| adjoint(&trace, names[layer], plane));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let pairs = p[layer].iter().zip(&q[layer]);
        pairs
            .map(|(p, q)| dot(&bars[0], p) + dot(&bars[1], q))
            .collect()
    };
    let [first, second, all] = [0, 1, 2].map(contraction);
    // Layers below a1, below a2, and all.
    let differences = [
        apart(&first[..6], &trace.gradient[..6]),
        apart(&second[..18], &trace.gradient[..18]),
        apart(&all, &trace.gradient),
    ];
    let mut table = Table::new(
        "P and Q of y, one forward pass a parameter, and the gradient of R²",
        [
            "parameter",
            "P = ∂y/∂θ",
            "Q = ∂y'/∂θ",
            "2R (P + Q)",
            "one reverse sweep",
        ],
    );
    for (k, name) in paper.names.iter().enumerate() {
        table.row([
            name.clone(),
            digits(p[2][k][0]),
            digits(q[2][k][0]),
            digits(all[k]),
            digits(trace.gradient[k]),
        ]);
    }
    let object = |lists: &Sensitivities| -> Map<String, Value> {
        let pairs = names.iter().zip(lists);
        let pairs = pairs.map(|(name, list)| match *name {
            "y" => ("y".to_owned(), json!(list.concat())),
            name => (name.to_owned(), json!(list)),
        });
        pairs.collect()
    };
    Ok(Section {
        key: "pq",
        tables: vec![table],
        notes: vec![format!(
            "{} forward passes. Contracted with the adjoints of a1, of a2 and of y they give \
                 what one reverse sweep gives, to {:.1e}, {:.1e} and {:.1e}.",
            theta.len(),
            differences[0],
            differences[1],
            differences[2]
        )],
        json: json!({
            "P": object(&p),
            "Q": object(&q),
            "passes": theta.len(),
            "contraction": {"a1": first[..6], "a2": second[..18], "y": all},
            "reverse_sweep": trace.gradient,
            "differences": differences,
        }),
    })
}

/// Derivatives of y of order 0 to 4: how tapes grow.
fn stacking(paper: &Paper) -> Made {
    let mut table = Table::new(
        "Stacking. Nodes, and bytes kept for the gradient at one point",
        [
            "derivative",
            "value",
            "nodes, jets",
            "nodes, nested",
            "nodes, PyTorch",
            "bytes, jets",
            "bytes, nested",
            "bytes, PyTorch",
        ],
    );
    let torch = &paper.printed["torch"]["nn_linear"];
    let (mut found, mut jets, mut nested) = (Vec::new(), Vec::new(), Vec::new());
    let mut theirs = Vec::new();
    for order in 0..=4 {
        let equation = paper.derivative(order)?;
        let lowered = equation.lowered(Lowering::NestedReverse)?;
        let value = values(&equation, &paper.params, &at(T)?)?[0][0];
        let mut cells = vec![equation.name().to_owned(), digits(value)];
        let mut bytes = Vec::new();
        for (equation, list) in [(&equation, &mut jets), (&lowered, &mut nested)] {
            let trace = paper.trace(equation, Seed::Sum)?;
            let nodes = Counts::of(equation).nodes;
            cells.push(nodes.iter().sum::<usize>().to_string());
            bytes.push(trace.kept_bytes.to_string());
            list.push(json!({"nodes": nodes, "kept_bytes": trace.kept_bytes}));
        }
        let torch = &torch[format!("d{order}y")];
        cells.push(torch["nodes"].to_string());
        cells.extend(bytes);
        cells.push(torch["saved_bytes"].to_string());
        table.row(cells);
        found.push(value);
        theirs.push(torch.clone());
    }
    Ok(Section {
        key: "stacking",
        tables: vec![table],
        notes: vec![
            "PyTorch's bytes include the weights that its nodes refer to, 104 of them. Its nodes \
             are those that each derivative reaches backwards, leaves included."
                .to_owned(),
        ],
        json: json!({"values": found, "jets": jets, "nested": nested, "torch": theirs}),
    })
}
