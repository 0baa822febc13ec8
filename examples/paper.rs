//! The worked example of arXiv 2607.13042: a 1-3-3-1 network, y' + y = 0, y(0) = 1, one
//! collocation point t = 0.5, and the initial condition weighted by λ = 10.

use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Mlp, Parameters, Points, Problem, values,
};
use num_dual::Dual64;
use serde_json::{Value, json};
use std::process::ExitCode;

const HELP: &str = "\
The paper's network: values, residual, loss and all 22 gradients beside golden values.

Usage: cargo run --release --example paper [-- OPTIONS]

Options:
  --json      one JSON object instead of tables
  -h, --help  this text";
const T: f64 = 0.5;
const LAMBDA: f64 = 10.0;

fn main() -> ExitCode {
    let mut json = false;
    let mut arguments = lexopt::Parser::from_env();
    loop {
        match arguments.next() {
            Ok(None) => break,
            Ok(Some(lexopt::Arg::Long("json"))) => json = true,
            Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            Ok(Some(other)) => return misuse(&other.unexpected()),
            Err(error) => return misuse(&error),
        }
    }
    match run(json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn misuse(error: &lexopt::Error) -> ExitCode {
    eprintln!("error: {error}; `--help` lists the options");
    ExitCode::from(2)
}

fn run(json: bool) -> Result<(), Box<dyn std::error::Error>> {
    let golden: Value = serde_json::from_str(include_str!("../tests/data/paper.json"))?;
    let names: Vec<&str> = list(&golden["param_order"])
        .filter_map(Value::as_str)
        .collect();
    let mut params = Parameters::new();
    let net = params.mlp("y", &[1, 3, 3, 1], Tanh)?;
    params.set(&numbers(&golden["parameters"]["theta"]))?;

    // y and y' from one forward pass, on dual numbers.
    let dual = net.eval(&params, &[Dual64::from_re(T).derivative()])?[0];

    // y and its derivatives from one replay of the tape.
    let tape = Equation::record("derivatives", &params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        let (d1, d2) = (y.d(t), y.d(t).d(t));
        [y, d1, d2, d2.d(t), d2.d(t).d(t)]
    })?;
    let derivatives = values(&tape, &params, &at(T)?)?.concat();

    // The loss R² + λ (y(0) - 1)² and its gradient from one reverse sweep.
    let decay = Equation::record("decay", &params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        y.d(t) + y
    })?;
    let start = Equation::record("start", &params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        y - 1.0
    })?;
    let conditions = [
        Condition::new(&decay, at(T)?),
        Condition::new(&start, at(0.0)?).weight(LAMBDA),
    ];
    let engine = Engine::new(&Problem::new(&params, conditions)?)?;
    let evaluation = engine.evaluate(params.values())?;
    let residual = engine.residuals("decay", params.values())?[0][0];
    let miss = engine.residuals("start", params.values())?[0][0];
    let mixed = mixed(&params, &net)?;

    if json {
        let all = json!({
            "y": derivatives[0],
            "dy": derivatives[1],
            "d2y": derivatives[2],
            "d3y": derivatives[3],
            "d4y": derivatives[4],
            "residual": residual,
            "loss": evaluation.loss,
            "loss_residual": evaluation.losses[0],
            "loss_ic": miss * miss,
            "gradient": evaluation.gradient,
            "mixed": mixed,
        });
        println!("{all}");
        return Ok(());
    }

    println!("{}", golden["problem"].as_str().unwrap_or_default());
    println!("\nParameters");
    for block in params.blocks() {
        let name = block.name.replace("y.", "layer ");
        println!("  {name}");
        for row in params.matrix(&block.name)?.row_iter() {
            let row: Vec<String> = row.iter().map(|x| format!("{x:>6}")).collect();
            println!("    {}", row.join(" "));
        }
    }
    let step = &golden["training_step"];
    let want = numbers(&golden["tangents"]["t=0.5"]["derivatives"]);
    heading("One forward pass at t = 0.5, on dual numbers");
    row("y", dual.re, want[0]);
    row("y'", dual.eps, want[1]);
    heading("One forward pass at t = 0.5, on the tape");
    for (order, name) in ["y", "y'", "y''", "y'''", "y''''"].into_iter().enumerate() {
        row(name, derivatives[order], want[order]);
    }
    heading("The loss");
    row("R = y' + y", residual, number(&step["residual"]));
    row("R²", evaluation.losses[0], number(&step["loss_residual"]));
    row("(y(0) - 1)²", miss * miss, number(&step["loss_ic"]));
    row(
        "R² + 10 (y(0) - 1)²",
        evaluation.loss,
        number(&step["loss"]),
    );
    heading("Its gradient, from one reverse sweep");
    for ((name, got), want) in names
        .iter()
        .zip(&evaluation.gradient)
        .zip(numbers(&step["gradient"]))
    {
        row(name, *got, want);
    }
    heading("The gradient of y' at t = 0.5, from one reverse sweep");
    for ((name, got), want) in names
        .iter()
        .zip(&mixed)
        .zip(numbers(&golden["mixed"]["t=0.5"][1]))
    {
        row(name, *got, want);
    }
    Ok(())
}

/// ∂y'/∂θ: y' as an energy at one point.
fn mixed(params: &Parameters, net: &Mlp) -> Result<Vec<f64>, Error> {
    let slope = Equation::record("slope", params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        y.d(t)
    })?;
    let problem = Problem::new(params, [Condition::new(&slope, at(T)?).energy()])?;
    Ok(Engine::new(&problem)?.evaluate(params.values())?.gradient)
}

fn at(t: f64) -> Result<Points, Error> {
    Points::from_rows(&[[t]])
}

fn heading(text: &str) {
    println!("\n{text}");
    println!(
        "  {:<20} {:>22} {:>22} {:>11}",
        "", "dualtape", "golden", "difference"
    );
}

fn row(name: &str, got: f64, want: f64) {
    println!(
        "  {name:<20} {got:>22.16} {want:>22.16} {:>11.1e}",
        got - want
    );
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).map(number).collect()
}
