//! The derivative of an equation along a vector of parameters, as an equation of its own.
//! Knows nothing of memory or numbers.
//!
//! Beside each node stands its tangent: that of W·a + b along (V, c) is W·ȧ + V·a + c. What
//! comes out is an ordinary tape over θ and then v, planned and replayed by the same kernels:
//! its residuals are J·v. With θ held fixed, the gradient of ½‖J·v‖² in v is JᵀJ·v, in one
//! forward pass and one sweep, and no row of J is ever made.

use crate::elemental::Slope;
use crate::tape::{Node, NodeId, Nodes, Op, Tape};
use smallvec::{SmallVec, smallvec};

/// The tape of J·v. Of its parameters the first `parameters` are those of the tape given,
/// held fixed; v follows.
pub(crate) fn linearised(tape: &Tape, parameters: usize) -> Tape {
    let mut linear = Linear {
        nodes: Nodes::default(),
        parameters,
    };
    let mut places: Vec<NodeId> = Vec::with_capacity(tape.nodes().len());
    // None where it is 0.
    let mut tangents: Vec<Option<NodeId>> = Vec::with_capacity(tape.nodes().len());
    for node in tape.nodes() {
        let mut own = node.clone();
        own.inputs
            .iter_mut()
            .for_each(|input| *input = places[*input]);
        let along: SmallVec<[Option<NodeId>; 2]> =
            node.inputs.iter().map(|&input| tangents[input]).collect();
        places.push(linear.nodes.push(own.clone()));
        tangents.push(linear.tangent(&own, &along));
    }
    let root = |&root: &NodeId| match tangents[root] {
        Some(tangent) => tangent,
        None => linear.zero(&tape.nodes()[root], 1),
    };
    let roots: Vec<NodeId> = tape.roots().iter().map(root).collect();
    tape.rewritten(linear.nodes.into_list(), roots, Vec::new())
        .holding(parameters)
}

struct Linear {
    nodes: Nodes,
    parameters: usize,
}

impl Linear {
    /// The tangent of a node, whose inputs have such tangents.
    fn tangent(&mut self, node: &Node, along: &[Option<NodeId>]) -> Option<NodeId> {
        let rows = node.rows;
        let any = along.iter().any(Option::is_some);
        match &node.op {
            Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Guard | Op::Detach => None,
            Op::Parameter(index) => {
                let op = Op::Parameter(self.parameters + index);
                Some(self.push(node, op, smallvec![], rows))
            }
            Op::Affine { weight, bias } => {
                let n = self.parameters;
                let bias = bias.map(|bias| n + bias);
                let op = Op::Affine {
                    weight: n + weight,
                    bias,
                };
                let own = self.push(node, op, node.inputs.clone(), rows);
                let inner = along[0].map(|tangent| {
                    let op = Op::Affine {
                        weight: *weight,
                        bias: None,
                    };
                    self.push(node, op, smallvec![tangent], rows)
                });
                self.sum(node, &[Some(own), inner])
            }
            Op::Transposed { weight } => {
                let op = Op::Transposed {
                    weight: self.parameters + weight,
                };
                let own = self.push(node, op, node.inputs.clone(), rows);
                let inner = along[0]
                    .map(|tangent| self.push(node, node.op.clone(), smallvec![tangent], rows));
                self.sum(node, &[Some(own), inner])
            }
            _ if !any => None,
            Op::Linear { factors, .. } => {
                let terms = along.iter().zip(factors);
                let terms = terms.filter_map(|(tangent, &factor)| Some((factor, (*tangent)?)));
                let (factors, inputs) = terms.unzip();
                let op = Op::Linear {
                    factors,
                    shift: 0.0,
                };
                Some(self.push(node, op, inputs, rows))
            }
            Op::Stack => {
                let parts = along.iter().zip(&node.inputs);
                let parts: Vec<(Option<NodeId>, usize)> = parts
                    .map(|(tangent, &input)| (*tangent, self.nodes[input].rows))
                    .collect();
                let inputs = parts
                    .into_iter()
                    .map(|(tangent, rows)| tangent.unwrap_or_else(|| self.zero(node, rows)))
                    .collect();
                Some(self.push(node, Op::Stack, inputs, rows))
            }
            Op::Row(_) | Op::Broadcast | Op::SumRows | Op::Derivative(_) | Op::Laplacian(_) => {
                let inputs = along.iter().flatten().copied().collect();
                Some(self.push(node, node.op.clone(), inputs, rows))
            }
            Op::Product => {
                let mut term = |place: usize| {
                    let inputs = smallvec![along[place]?, node.inputs[1 - place]];
                    Some(self.push(node, Op::Product, inputs, rows))
                };
                let terms = [term(0), term(1)];
                self.sum(node, &terms)
            }
            Op::Elemental(f) => {
                let (z, tangent) = (node.inputs[0], along[0]?);
                match f.slope() {
                    Slope::Number(0.0) => None,
                    Slope::Number(number) => Some(self.scaled(node, number, tangent)),
                    Slope::Argument(factor) => {
                        let product = self.push(node, Op::Product, smallvec![z, tangent], rows);
                        Some(self.scaled(node, factor, product))
                    }
                    Slope::Elemental(slope) => {
                        let slope = self.push(node, Op::Elemental(slope), smallvec![z], rows);
                        Some(self.push(node, Op::Product, smallvec![slope, tangent], rows))
                    }
                }
            }
            Op::Select { .. } => {
                let (then, otherwise) = (along[1], along[2]);
                // The condition is piecewise constant.
                then.or(otherwise)?;
                let mut branch =
                    |tangent: Option<NodeId>| tangent.unwrap_or_else(|| self.zero(node, rows));
                let inputs = smallvec![node.inputs[0], branch(then), branch(otherwise)];
                Some(self.push(node, node.op.clone(), inputs, rows))
            }
        }
    }

    /// A node recorded where another one was.
    fn push(&mut self, of: &Node, op: Op, inputs: SmallVec<[NodeId; 2]>, rows: usize) -> NodeId {
        self.nodes.push(Node {
            op,
            inputs,
            rows,
            source: of.source,
            graph: of.graph,
        })
    }

    fn zero(&mut self, of: &Node, rows: usize) -> NodeId {
        let number = self.push(of, Op::Constant(0.0), smallvec![], 1);
        match rows {
            1 => number,
            _ => self.push(of, Op::Broadcast, smallvec![number], rows),
        }
    }

    fn scaled(&mut self, of: &Node, factor: f64, node: NodeId) -> NodeId {
        let op = Op::Linear {
            factors: smallvec![factor],
            shift: 0.0,
        };
        self.push(of, op, smallvec![node], of.rows)
    }

    fn sum(&mut self, of: &Node, terms: &[Option<NodeId>]) -> Option<NodeId> {
        let inputs: SmallVec<[NodeId; 2]> = terms.iter().flatten().copied().collect();
        if inputs.len() < 2 {
            return inputs.first().copied();
        }
        let op = Op::Linear {
            factors: SmallVec::from_elem(1.0, inputs.len()),
            shift: 0.0,
        };
        Some(self.push(of, op, inputs, of.rows))
    }
}
