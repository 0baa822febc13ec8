//! Recorded expressions as data: to a file and back, and their derivatives.

use super::damaged;
use crate::elemental::Elemental;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::plane::{Coordinate, MAX_COORDINATES};
use crate::record::{Equation, ParameterSpace};
use crate::tape::{Node, NodeId, Op, Source, Tape};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::panic::Location;

/// An equation as it stands in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct Expression {
    name: String,
    coordinates: Vec<String>,
    columns: Vec<String>,
    outputs: Vec<NodeId>,
    nodes: Vec<SavedNode>,
}

#[derive(Serialize, Deserialize)]
struct SavedNode {
    op: SavedOp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<NodeId>,
    rows: usize,
}

/// An [`Op`], with functions by their names.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedOp {
    Coordinate(Coordinate),
    Data(usize),
    Constant(f64),
    Parameter(usize),
    Linear { factors: Vec<f64>, shift: f64 },
    Stack,
    Row(usize),
    Broadcast,
    Derivative(Coordinate),
    Laplacian(Vec<Coordinate>),
    Product,
    Elemental(String),
    Affine { weight: usize, bias: Option<usize> },
    Detach,
    Select { or_equal: bool },
}

impl Expression {
    pub(super) fn of(equation: &Equation) -> Result<Self, Error> {
        let tape = equation.tape();
        let nodes = tape.nodes().iter().map(|node| {
            Ok(SavedNode {
                op: match &node.op {
                    Op::Coordinate(c) => SavedOp::Coordinate(*c),
                    Op::Data(column) => SavedOp::Data(*column),
                    Op::Constant(value) => SavedOp::Constant(*value),
                    Op::Parameter(index) => SavedOp::Parameter(*index),
                    Op::Linear { factors, shift } => SavedOp::Linear {
                        factors: factors.to_vec(),
                        shift: *shift,
                    },
                    Op::Stack => SavedOp::Stack,
                    Op::Row(row) => SavedOp::Row(*row),
                    Op::Broadcast => SavedOp::Broadcast,
                    Op::Derivative(c) => SavedOp::Derivative(*c),
                    Op::Laplacian(set) => SavedOp::Laplacian(set.to_vec()),
                    Op::Product => SavedOp::Product,
                    Op::Elemental(Elemental::Custom(_)) => {
                        return Err(Error::NotRecordable {
                            what: format!("the function `{}` of the user", node.op.name()),
                            instead: "a file can only hold functions that the library knows"
                                .to_owned(),
                            at: node.source.to_string(),
                        });
                    }
                    Op::Elemental(Elemental::Derivative(_)) => return Err(lowered(node)),
                    Op::Elemental(elemental) => SavedOp::Elemental(elemental.name().into_owned()),
                    Op::Affine { weight, bias } => SavedOp::Affine {
                        weight: *weight,
                        bias: *bias,
                    },
                    Op::Detach => SavedOp::Detach,
                    Op::Select { or_equal } => SavedOp::Select {
                        or_equal: *or_equal,
                    },
                    Op::Transposed { .. } | Op::SumRows | Op::Guard => return Err(lowered(node)),
                },
                inputs: node.inputs.to_vec(),
                rows: node.rows,
            })
        });
        Ok(Self {
            name: equation.name().to_owned(),
            coordinates: tape.coordinates().to_vec(),
            columns: tape.columns().to_vec(),
            outputs: tape.roots().to_vec(),
            nodes: nodes.collect::<Result<_, Error>>()?,
        })
    }

    /// The equation, once everything in it has been checked.
    #[track_caller]
    pub(super) fn equation(&self, parameters: &Parameters) -> Result<Equation, Error> {
        let source = Location::caller();
        let bad = |what: &str| damaged(&format!("its expression `{}` {what}", self.name));
        if self.coordinates.is_empty() || self.coordinates.len() > MAX_COORDINATES {
            return Err(bad("has no coordinates, or too many"));
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(self.nodes.len());
        for (id, node) in self.nodes.iter().enumerate() {
            let made = self.node(node, &nodes, parameters, source);
            nodes.push(made.ok_or_else(|| bad(&format!("is damaged at node {id}")))?);
        }
        let scalar = |id: &NodeId| nodes.get(*id).is_some_and(|node| node.rows == 1);
        if self.outputs.is_empty() || !self.outputs.iter().all(scalar) {
            return Err(bad("has no outputs, or outputs that are not there"));
        }
        let reads = |block_at: usize| {
            nodes.iter().any(|node| match node.op {
                Op::Parameter(index) => index == block_at,
                Op::Affine { weight, .. } => weight == block_at,
                _ => false,
            })
        };
        let mut groups: Vec<String> = Vec::new();
        for block in parameters.blocks() {
            if reads(block.offset) && !groups.contains(&block.group) {
                groups.push(block.group.clone());
            }
        }
        let tape = Tape::new(
            nodes,
            self.outputs.clone(),
            self.coordinates.clone(),
            self.columns.clone(),
        );
        Equation::from_tape(&self.name, tape, parameters.owner(), groups)
    }

    /// A node that fits those before it, the parameters and the coordinates; else nothing.
    fn node(
        &self,
        node: &SavedNode,
        before: &[Node],
        parameters: &Parameters,
        source: Source,
    ) -> Option<Node> {
        let rows = node
            .inputs
            .iter()
            .map(|&input| before.get(input).map(|node| node.rows))
            .collect::<Option<Vec<usize>>>()?;
        let takes = |count: usize| rows.len() == count && rows.iter().all(|&r| r == node.rows);
        let leaf = rows.is_empty() && node.rows == 1;
        let coordinate = |c: Coordinate| usize::from(c) < self.coordinates.len();
        let within = |from: usize, length: Option<usize>| {
            from.checked_add(length?)
                .filter(|end| *end <= parameters.len())
        };
        let (op, fits) = match &node.op {
            SavedOp::Coordinate(c) => (Op::Coordinate(*c), leaf && coordinate(*c)),
            SavedOp::Data(column) => (Op::Data(*column), leaf && *column < self.columns.len()),
            SavedOp::Constant(value) => (Op::Constant(*value), leaf && value.is_finite()),
            SavedOp::Parameter(index) => (Op::Parameter(*index), leaf && *index < parameters.len()),
            SavedOp::Linear { factors, shift } => {
                let finite = factors.iter().chain([shift]).all(|x| x.is_finite());
                let op = Op::Linear {
                    factors: SmallVec::from_slice(factors),
                    shift: *shift,
                };
                (op, finite && !factors.is_empty() && takes(factors.len()))
            }
            SavedOp::Stack => {
                let sum = rows.iter().try_fold(0_usize, |sum, &r| sum.checked_add(r));
                (Op::Stack, !rows.is_empty() && sum == Some(node.rows))
            }
            SavedOp::Row(row) => {
                let inside = rows.len() == 1 && *row < rows[0];
                (Op::Row(*row), inside && node.rows == 1)
            }
            SavedOp::Broadcast => (Op::Broadcast, rows == [1]),
            SavedOp::Derivative(c) => (Op::Derivative(*c), takes(1) && coordinate(*c)),
            SavedOp::Laplacian(set) => {
                let ascending = set.is_sorted_by(|a, b| a < b);
                let inside = set.last().is_some_and(|&c| coordinate(c));
                (
                    Op::Laplacian(set.as_slice().into()),
                    takes(1) && ascending && inside,
                )
            }
            SavedOp::Product => (Op::Product, takes(2)),
            SavedOp::Elemental(name) => {
                let elemental = Elemental::named(name)?;
                let finite = !matches!(elemental, Elemental::Powf(a) if !a.is_finite());
                (Op::Elemental(elemental), takes(1) && finite)
            }
            SavedOp::Affine { weight, bias } => {
                let length = rows.first()?.checked_mul(node.rows);
                let matrix = within(*weight, length).is_some();
                let shift = bias.is_none_or(|b| within(b, Some(node.rows)).is_some());
                let op = Op::Affine {
                    weight: *weight,
                    bias: *bias,
                };
                (op, rows.len() == 1 && matrix && shift)
            }
            SavedOp::Detach => (Op::Detach, takes(1)),
            SavedOp::Select { or_equal } => {
                let op = Op::Select {
                    or_equal: *or_equal,
                };
                (op, takes(3))
            }
        };
        // More rows than parameters and nodes come of no recording.
        let most = parameters.len().max(self.nodes.len());
        (fits && (1..=most).contains(&node.rows)).then(|| Node {
            op,
            inputs: SmallVec::from_slice(&node.inputs),
            rows: node.rows,
            source,
            graph: 1,
        })
    }
}

fn lowered(node: &Node) -> Error {
    Error::NotRecordable {
        what: format!("`{}`, an adjoint of nested reverse mode,", node.op.name()),
        instead: "save the equation as it was recorded, and lower it after loading".to_owned(),
        at: node.source.to_string(),
    }
}

/// The derivatives of an equation's outputs: for each order, all outputs.
#[track_caller]
pub(super) fn differentiated(equation: &Equation, orders: &[&[&str]]) -> Result<Equation, Error> {
    let source = Location::caller();
    let tape = equation.tape();
    let mut nodes = tape.nodes().to_vec();
    let mut outputs = Vec::with_capacity(orders.len() * tape.roots().len());
    for order in orders {
        for &root in tape.roots() {
            let mut last = root;
            for name in *order {
                let place = tape.coordinates().iter().position(|own| own == name);
                let place = place.ok_or_else(|| Error::UnknownName {
                    what: format!("coordinate of `{}`", equation.name()),
                    name: (*name).to_owned(),
                    known: tape.coordinates().join(", "),
                })?;
                nodes.push(Node {
                    op: Op::Derivative(place as Coordinate),
                    inputs: SmallVec::from_slice(&[last]),
                    rows: 1,
                    source,
                    graph: 1,
                });
                last = nodes.len() - 1;
            }
            outputs.push(last);
        }
    }
    if outputs.is_empty() {
        return Err(Error::Empty {
            what: "the list of derivatives".to_owned(),
        });
    }
    let tape = Tape::new(
        nodes,
        outputs,
        tape.coordinates().to_vec(),
        tape.columns().to_vec(),
    );
    let groups = equation.groups().to_vec();
    Equation::from_tape(equation.name(), tape, equation.owner(), groups)
}
