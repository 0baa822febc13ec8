//! The paper's network and its printed numbers.

use dualtape::trace::{Seed, Table, Trace};
use dualtape::{Elemental::Tanh, Equation, Error, Field, Mlp, Parameters, Points};
use serde_json::Value;

/// The collocation point, and the weight of the initial condition.
pub const T: f64 = 0.5;
pub const LAMBDA: f64 = 10.0;

/// The 1-3-3-1 network with its parameters, and what the paper prints.
pub struct Paper {
    pub params: Parameters,
    pub net: Mlp,
    /// Names of the 22 parameters.
    pub names: Vec<String>,
    pub printed: Value,
}

impl Paper {
    pub fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let golden: Value = serde_json::from_str(include_str!("../../tests/data/paper.json"))?;
        let printed = serde_json::from_str(include_str!("../../tests/data/paper_printed.json"))?;
        let mut params = Parameters::new();
        let net = params.mlp("y", &[1, 3, 3, 1], Tanh)?;
        params.set(&numbers(&golden["parameters"]["theta"]))?;
        let names = list(&golden["param_order"]).filter_map(Value::as_str);
        Ok(Self {
            params,
            net,
            names: names.map(str::to_owned).collect(),
            printed,
        })
    }

    /// An expression in y and t.
    pub fn equation(
        &self,
        name: &str,
        expression: impl FnOnce(Field, Field) -> Field,
    ) -> Result<Equation, Error> {
        Equation::record(name, &self.params, ["t"], |[t]| {
            let [y] = self.net.at(&[t]);
            expression(y, t)
        })
    }

    /// The derivative of y of some order.
    pub fn derivative(&self, order: usize) -> Result<Equation, Error> {
        let name = format!("y{}", "'".repeat(order));
        self.equation(&name, |y, t| (0..order).fold(y, |y, _| y.d(t)))
    }

    /// A trace at the collocation point, in the paper's letters.
    pub fn trace(&self, equation: &Equation, seed: Seed<'_>) -> Result<Trace, Error> {
        let mut trace = Trace::of(equation, &self.params, &at(T)?, seed)?;
        name_nodes(&mut trace);
        Ok(trace)
    }
}

/// t, z1, a1, z2, a2, y: names of the nodes of the network.
pub fn name_nodes(trace: &mut Trace) {
    let mut layer = 0;
    let mut names = Vec::new();
    for node in trace.nodes.iter().filter(|node| node.graph == 1) {
        match node.operation.as_str() {
            "coordinate t" => names.push((node.id, "t".to_owned())),
            "affine y.2" => names.push((node.id, "y".to_owned())),
            "tanh" => names.push((node.id, format!("a{layer}"))),
            "derivative t" => names.push((node.id, "y'".to_owned())),
            "linear +1 +1" => names.push((node.id, "R".to_owned())),
            operation if operation.starts_with("affine y.") => {
                layer += 1;
                names.push((node.id, format!("z{layer}")));
            }
            _ => {}
        }
    }
    // In nested reverse mode the residual reads Graph 2.
    let last = trace
        .nodes
        .last()
        .filter(|node| node.operation == "linear +1 +1");
    names.extend(last.map(|node| (node.id, "R".to_owned())));
    for (id, name) in names {
        trace.label(id, &name);
    }
    let mut slopes = Vec::new();
    for node in trace.nodes.iter().filter(|node| node.operation == "tanh'") {
        let argument = node.inputs.first().map(|&id| &trace.nodes[id].label);
        slopes.extend(argument.map(|label| (node.id, format!("φ'({label})"))));
    }
    for (id, name) in slopes {
        trace.label(id, &name);
    }
}

/// The node of a name.
pub fn node(trace: &Trace, label: &str) -> usize {
    let found = trace.nodes.iter().find(|node| node.label == label);
    found.map_or(usize::MAX, |node| node.id)
}

/// Numbers of a named node: a plane, at the first point.
pub fn jet(trace: &Trace, label: &str, plane: &str) -> Vec<f64> {
    let node = trace.nodes.get(node(trace, label));
    node.map_or_else(Vec::new, |node| node.plane(plane, 0))
}

/// Their adjoints.
pub fn adjoint(trace: &Trace, label: &str, plane: &str) -> Vec<f64> {
    let node = trace.nodes.get(node(trace, label));
    node.map_or_else(Vec::new, |node| node.adjoint_plane(plane, 0))
}

/// ∂y/∂ of a named node, as a recorded sweep computes it: its node's label.
pub fn bar(trace: &Trace, label: &str) -> String {
    let recorded = trace.recorded_adjoint(node(trace, "y"), node(trace, label));
    recorded.map_or_else(String::new, |id| trace.nodes[id].label.clone())
}

pub fn at(t: f64) -> Result<Points, Error> {
    Points::from_rows(&[[t]])
}

/// Numbers beside those that the paper prints.
pub struct Beside<'a> {
    printed: &'a Value,
    pub table: Table,
}

impl<'a> Beside<'a> {
    pub fn new(paper: &'a Paper, title: &str) -> Self {
        Self {
            printed: &paper.printed["printed"],
            table: Table::new(title, ["quantity", "here", "paper", "where", "difference"]),
        }
    }

    /// Numbers that the paper does not print.
    pub fn alone(&mut self, what: &str, numbers: &[f64]) {
        for (place, &number) in numbers.iter().enumerate() {
            let what = entry(what, place, numbers.len());
            self.table.row([what, digits(number)]);
        }
    }

    /// Numbers that it prints as `what` in a place of it.
    pub fn put(&mut self, whence: &str, what: &str, numbers: &[f64]) {
        for (place, &number) in numbers.iter().enumerate() {
            let what = entry(what, place, numbers.len());
            let printed = list(self.printed).find(|p| p["where"] == whence && p["what"] == *what);
            let text = |key: &str| printed.and_then(|p| p[key].as_str()).unwrap_or_default();
            let paper = text("printed");
            let remark = match (agrees(number, paper), text("note")) {
                (true, _) => "",
                (false, "") => text("kind"),
                (false, note) => note,
            };
            self.table
                .row([&what, &digits(number), paper, whence, remark]);
        }
    }
}

/// Whether a number, rounded as one that was printed, is that.
pub fn agrees(number: f64, printed: &str) -> bool {
    let places = printed.split('.').nth(1).map_or(0, str::len);
    match printed.parse::<f64>() {
        // Half a unit of the last place, and 0 may have either sign.
        Ok(value) => (number - value).abs() <= 0.5 * 10_f64.powi(-(places as i32)) * (1.0 + 1e-9),
        Err(_) => false,
    }
}

fn entry(what: &str, place: usize, count: usize) -> String {
    match count {
        1 => what.to_owned(),
        _ => format!("{what}, entry {}", place + 1),
    }
}

pub fn digits(x: f64) -> String {
    match x.abs() {
        size if size != 0.0 && size < 1e-4 => format!("{x:.9e}"),
        _ => format!("{:.12}", x + 0.0),
    }
}

/// The largest difference between two lists.
pub fn apart(a: &[f64], b: &[f64]) -> f64 {
    let pairs = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let all = if a.len() == b.len() {
        0.0
    } else {
        f64::INFINITY
    };
    pairs.fold(all, f64::max)
}

pub fn list(value: &Value) -> impl Iterator<Item = &Value> + Clone {
    value.as_array().map_or(&[][..], Vec::as_slice).iter()
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

pub fn numbers(value: &Value) -> Vec<f64> {
    list(value).map(number).collect()
}
