//! The pictures: the paper's eight figures from our tapes, and the tape of mixed mode.

use crate::paper::{Paper, T, at, name_nodes};
use crate::sections::{Order, name_square, square};
use dualtape::trace::{Seed, Show, Trace, page as html};
use dualtape::{Error, Lowering, Parameters, Points};

pub struct Figure {
    pub name: &'static str,
    pub trace: Trace,
    pub show: Show,
}

/// In the order of the paper: the function of two inputs, then the network.
pub fn all(paper: &Paper) -> Result<Vec<Figure>, Error> {
    let none = Parameters::new();
    let inputs = Points::from_rows(&[[2.0, 1.0]])?;
    let two = |order: Order, lowering: Lowering| -> Result<Trace, Error> {
        let equation = square(&none, order)?.lowered(lowering)?;
        let mut trace = Trace::of(&equation, &none, &inputs, Seed::Sum)?;
        name_square(&mut trace);
        Ok(trace)
    };
    let y = paper.trace(&paper.derivative(0)?, Seed::Sum)?;
    let slope = paper.derivative(1)?;
    let mixed = paper.trace(&slope, Seed::Sum)?;
    let nested = paper.trace(&slope.lowered(Lowering::NestedReverse)?, Seed::Sum)?;
    let figure = |name, trace: &Trace, show| Figure {
        name,
        trace: trace.clone(),
        show,
    };
    Ok(vec![
        figure(
            "figure1-tape",
            &two(Order::Value, Lowering::Jets)?,
            Show::Shape,
        ),
        figure(
            "figure2-forward-mode",
            &two(Order::Both, Lowering::Jets)?,
            Show::Jets,
        ),
        figure(
            "figure3-reverse-mode",
            &two(Order::Value, Lowering::Jets)?,
            Show::Adjoints,
        ),
        figure(
            "figure4-graph-2",
            &two(Order::First, Lowering::NestedReverse)?,
            Show::Jets,
        ),
        figure("figure5-network", &y, Show::Jets),
        figure("figure6-graph-1", &y, Show::Kept),
        figure("figure7-graph-2", &nested, Show::Jets),
        figure("figure8-second-traversal", &nested, Show::Adjoints),
        figure("mixed-mode", &mixed, Show::Jets),
        figure("mixed-mode-sweep", &mixed, Show::Adjoints),
    ])
}

/// The training step's residual in both modes, as one page.
pub fn page(paper: &Paper) -> Result<String, Error> {
    let residual = paper.equation("y' + y", |y, t| y.d(t) + y)?;
    let [mut mixed, mut nested] = Trace::both(&residual, &paper.params, &at(T)?, Seed::Squares)?;
    name_nodes(&mut mixed);
    name_nodes(&mut nested);
    let panels = [
        ("Nested reverse mode", &nested),
        ("Mixed mode: jets forward, one reverse sweep", &mixed),
    ];
    Ok(html(
        "(y' + y)² at t = 0.5 and its gradient, two ways",
        &panels,
    ))
}
