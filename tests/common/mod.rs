//! What the integration tests share: golden values, networks made from them, comparison.
#![allow(dead_code, reason = "each test file uses its own part")]

use dualtape::{Architecture, Elemental, Lowering, Mlp, Parameters};
use serde_json::Value;

/// A file of `tests/data`.
pub fn golden(file: &str) -> Value {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every way to derivatives of this order: jets, nested reverse, each split between them.
pub fn lowerings(order: usize) -> Vec<Lowering> {
    let partial = (1..order).map(|inner| Lowering::Partial { inner });
    let all = [Lowering::Jets, Lowering::NestedReverse, Lowering::Auto];
    all.into_iter().chain(partial).collect()
}

/// All numbers below a JSON value, in order.
pub fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Number(number) => vec![number.as_f64().expect("a float")],
        other => panic!("no numbers in {other}"),
    }
}

/// Asserts that two vectors agree within `tolerance` of the largest entry of `want`.
#[track_caller]
pub fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let scale = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (g - w).abs();
        assert!(
            error <= tolerance * scale,
            "{what}[{i}]: got {g:e}, want {w:e}, difference {:.1e} of the largest entry",
            error / scale
        );
    }
}

/// The elemental that a golden file names.
pub fn elemental(name: &str) -> Elemental {
    match name {
        "tanh" => Elemental::Tanh,
        "sin" => Elemental::Sin,
        "softplus" => Elemental::Softplus,
        "gelu" => Elemental::Gelu,
        "silu" => Elemental::Silu,
        other => panic!("unknown activation {other}"),
    }
}

/// A network with the layers of a golden problem.
pub fn network(params: &mut Parameters, name: &str, problem: &Value) -> Mlp {
    let layers = problem["layers"].as_array().expect("layers");
    let mut widths = vec![problem["inputs"].as_array().expect("inputs").len()];
    widths.extend(layers.iter().map(|l| l["b"].as_array().expect("b").len()));
    let activations: Vec<Elemental> = layers[..layers.len() - 1]
        .iter()
        .map(|l| elemental(l["activation"].as_str().expect("activation")))
        .collect();
    let architecture = Architecture::mlp(&widths).activations(activations);
    let offset = params.len();
    let net = params.network(name, &architecture).expect("network");
    let flat = layer_numbers(layers);
    params.values_mut()[offset..offset + flat.len()].copy_from_slice(&flat);
    net
}

/// Weights and biases (or their gradient) as one vector.
pub fn layer_numbers(layers: &[Value]) -> Vec<f64> {
    layers
        .iter()
        .flat_map(|l| {
            let mut all = numbers(&l["w"]);
            all.extend(numbers(&l["b"]));
            all
        })
        .collect()
}

/// The paper's network: 1-3-3-1, tanh.
pub fn paper_network() -> (Parameters, Mlp, Value) {
    let paper = golden("paper.json");
    let mut params = Parameters::new();
    let net = params
        .mlp("y", &[1, 3, 3, 1], Elemental::Tanh)
        .expect("network");
    params
        .set(&numbers(&paper["parameters"]["theta"]))
        .expect("theta");
    (params, net, paper)
}
