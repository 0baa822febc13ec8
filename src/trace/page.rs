//! Traces as one page for a browser: nothing is loaded from elsewhere.

use super::Trace;
use super::drawing::{Show, escaped};
use serde_json::json;

const TEMPLATE: &str = include_str!("page.html");

/// A self-contained HTML page with some traces side by side, each with its name: forward
/// pass and reverse sweep step by step, with mouse or keyboard, and the numbers and bytes
/// of each node. `#step=12` at the end of its address opens it at a step.
///
/// ```no_run
/// use dualtape::trace::{Seed, Trace, page};
/// # use dualtape::{Elemental::Tanh, Equation, Parameters, Points};
/// # let mut params = Parameters::new();
/// # let net = params.mlp("u", &[1, 3, 1], Tanh)?;
/// # let equation = Equation::record("slope", &params, ["t"], |[t]| {
/// #     let [u] = net.at(&[t]);
/// #     u.d(t)
/// # })?;
/// let points = Points::from_rows(&[[0.5]])?;
/// let [mixed, nested] = Trace::both(&equation, &params, &points, Seed::Sum)?;
/// let html = page("slope", &[("mixed", &mixed), ("nested", &nested)]);
/// std::fs::write("slope.html", html)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn page(title: &str, traces: &[(&str, &Trace)]) -> String {
    let panel = |&(name, trace): &(&str, &Trace)| {
        json!({
            "name": name,
            "trace": trace.to_json(),
            "drawing": trace.drawing(Show::Shape),
            "phrases": trace.nodes.iter().map(|node| trace.phrase(node)).collect::<Vec<_>>(),
        })
    };
    let data: Vec<_> = traces.iter().map(panel).collect();
    // Nothing in the data may end the script.
    let data = json!(data).to_string().replace('<', "\\u003c");
    TEMPLATE
        .replace("{{title}}", &escaped(title))
        .replace("{{data}}", &data)
}
