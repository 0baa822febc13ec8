//! What the integration tests share: golden values, networks made from them, comparison.
#![allow(dead_code, reason = "each test file uses its own part")]

use dualtape::{Architecture, Elemental, Lowering, Mlp, Parameters};
use serde_json::Value;

/// The bytes of a file of `tests/data`.
pub fn data_file(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A JSON file of `tests/data`.
pub fn golden(file: &str) -> Value {
    serde_json::from_slice(&data_file(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Random words from a seed: SplitMix64.
pub struct SplitMix(pub u64);

impl Iterator for SplitMix {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some(z ^ (z >> 31))
    }
}

/// Random numbers in 0..1.
pub fn uniform(seed: u64) -> impl Iterator<Item = f64> {
    SplitMix(seed).map(|word| (word >> 11) as f64 / (1_u64 << 53) as f64)
}

/// The same in ±1.
pub fn noise(seed: u64) -> impl Iterator<Item = f64> {
    uniform(seed).map(|x| 2.0 * x - 1.0)
}

/// Every elemental function, powers by a few.
pub fn elementals() -> Vec<Elemental> {
    use Elemental::*;
    vec![
        Tanh,
        Sigmoid,
        LogSigmoid,
        Softplus,
        Silu,
        Gelu,
        Sin,
        Cos,
        Tan,
        Exp,
        ExpM1,
        Ln,
        Ln1p,
        Sqrt,
        Cbrt,
        Recip,
        Powi(3),
        Powi(-2),
        Powf(1.5),
        Sinh,
        Cosh,
        Asin,
        Acos,
        Atan,
        Asinh,
        Acosh,
        Atanh,
        Erf,
        Abs,
        Relu,
    ]
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
