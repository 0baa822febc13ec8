//! The tape: an equation as plain data, and the two inferences (demand, support) that
//! decide which planes each node holds. Knows nothing of recording, memory or numbers.

use crate::elemental::{Elemental, Smoothness};
use crate::error::Error;
use crate::plane::{Coordinate, MAX_ORDER, MAX_PLANES, Plane, Planes, factor_pairs, generated};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::mem::{Discriminant, discriminant};
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

/// The place of a node on its tape. Inputs come before the nodes that read them.
pub type NodeId = usize;

/// Where in the user's source a node was recorded.
pub type Source = &'static Location<'static>;

/// What a node does with its inputs. Every operation works row by row, on jets, except
/// where it says otherwise.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// A coordinate of the point.
    Coordinate(Coordinate),
    /// A column of per-point data.
    Data(usize),
    /// The same number at each point.
    Constant(f64),
    /// One entry of the parameter vector.
    Parameter(usize),
    /// `Σ factors[i]·input[i] + shift`, row by row.
    Linear {
        /// One for each input.
        factors: SmallVec<[f64; 2]>,
        /// Added to the value.
        shift: f64,
    },
    /// The rows of all inputs, one below the other.
    Stack,
    /// One row of the input.
    Row(usize),
    /// A one-row input, repeated.
    Broadcast,
    /// The derivative in a coordinate: the derivation of the algebra.
    Derivative(Coordinate),
    /// The sum of second derivatives over a set of coordinates (ascending).
    Laplacian(Arc<[Coordinate]>),
    /// The product of two inputs.
    Product,
    /// An elementary function of the input.
    Elemental(Elemental),
    /// `W·input + b`, W row-major in the parameter vector.
    Affine {
        /// First entry of W.
        weight: usize,
        /// First entry of b.
        bias: Option<usize>,
    },
    /// `Wᵀ·input`, with W as in [`Op::Affine`]: what it does to adjoints.
    Transposed {
        /// First entry of W.
        weight: usize,
    },
    /// The sum of the rows of the input: what [`Op::Broadcast`] does to adjoints.
    SumRows,
    /// 0 where the second input, an adjoint, is 0 and the first is not finite; else 1. It
    /// is the condition of a selection that keeps what a branch not taken makes out of
    /// recorded adjoints, and has no derivative.
    Guard,
    /// The input, with the reverse sweep cut off: a constant for every gradient in the
    /// parameters. Wrong on purpose where derivatives matter; it shows in every listing.
    Detach,
    /// `input[1]` where `input[0] > 0` (`≥ 0` if `or_equal`), else `input[2]`.
    Select {
        /// Whether 0 takes the first branch.
        or_equal: bool,
    },
}

impl Op {
    /// The name of the operation in listings.
    pub fn name(&self) -> String {
        match self {
            Self::Coordinate(_) => "coordinate".to_owned(),
            Self::Data(_) => "data".to_owned(),
            Self::Constant(value) => format!("constant {value}"),
            Self::Parameter(index) => format!("parameter {index}"),
            Self::Linear { factors, shift } => {
                let mut name = "linear".to_owned();
                for factor in factors {
                    let _ = write!(name, " {factor:+}");
                }
                if *shift != 0.0 {
                    let _ = write!(name, " shift {shift:+}");
                }
                name
            }
            Self::Stack => "stack".to_owned(),
            Self::Row(row) => format!("row {row}"),
            Self::Broadcast => "broadcast".to_owned(),
            Self::Derivative(_) => "derivative".to_owned(),
            Self::Laplacian(_) => "laplacian".to_owned(),
            Self::Product => "product".to_owned(),
            Self::Elemental(elemental) => elemental.name().to_string(),
            Self::Affine { .. } => "affine".to_owned(),
            Self::Transposed { .. } => "transposed".to_owned(),
            Self::SumRows => "sum of rows".to_owned(),
            Self::Guard => "guard".to_owned(),
            Self::Detach => "detach".to_owned(),
            Self::Select { .. } => "select".to_owned(),
        }
    }
}

/// A node: an operation, what it reads, and how many rows it has.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub inputs: SmallVec<[NodeId; 2]>,
    /// Its rows: 1 for a scalar, the width for a layer.
    pub rows: usize,
    /// Where it was recorded, or what it is the adjoint of.
    pub source: Source,
    /// 1 for what was recorded; in nested reverse mode 2 for the adjoints of the first
    /// sweep and what reads them, 3 for those of a sweep through Graph 2, and so on.
    pub graph: usize,
}

/// Nodes under construction: equal ones are shared.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    list: Vec<Node>,
    places: HashMap<Key, NodeId>,
}

/// A node but for its place in the source. Numbers are compared by their bits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    op: Discriminant<Op>,
    bits: SmallVec<[u64; 3]>,
    elemental: Option<(Discriminant<Elemental>, usize)>,
    inputs: SmallVec<[NodeId; 2]>,
    rows: usize,
}

impl Key {
    fn new(node: &Node) -> Self {
        let mut elemental = None;
        let bits = match &node.op {
            Op::Coordinate(c) | Op::Derivative(c) => smallvec![u64::from(*c)],
            Op::Data(index) | Op::Parameter(index) | Op::Row(index) => smallvec![*index as u64],
            Op::Constant(value) => smallvec![value.to_bits()],
            Op::Linear { factors, shift } => {
                let numbers = factors.iter().chain([shift]);
                numbers.map(|x| x.to_bits()).collect()
            }
            Op::Laplacian(set) => set.iter().map(|&c| u64::from(c)).collect(),
            Op::Elemental(function) => {
                let (family, order) = function.family();
                elemental = Some((discriminant(family), order));
                smallvec![family.bits()]
            }
            Op::Affine { weight, bias } => {
                smallvec![*weight as u64, bias.map_or(u64::MAX, |bias| bias as u64)]
            }
            Op::Transposed { weight } => smallvec![*weight as u64],
            Op::Select { or_equal } => smallvec![u64::from(*or_equal)],
            Op::Stack | Op::Broadcast | Op::SumRows | Op::Product | Op::Detach | Op::Guard => {
                SmallVec::new()
            }
        };
        Self {
            op: discriminant(&node.op),
            bits,
            elemental,
            inputs: node.inputs.clone(),
            rows: node.rows,
        }
    }
}

impl Nodes {
    /// The place of a node: of one that is there already, if there is one.
    pub(crate) fn push(&mut self, node: Node) -> NodeId {
        *self.places.entry(Key::new(&node)).or_insert_with(|| {
            self.list.push(node);
            self.list.len() - 1
        })
    }

    pub(crate) fn into_list(self) -> Vec<Node> {
        self.list
    }
}

impl Deref for Nodes {
    type Target = [Node];
    fn deref(&self) -> &[Node] {
        &self.list
    }
}

/// A reverse sweep that is recorded on a lowered tape.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The value that is differentiated: its adjoint is 1.
    pub output: NodeId,
    /// The graph that the sweep adds to.
    pub graph: usize,
    /// The adjoints of what the value depends on, as far as somebody reads them, in the
    /// order of the sweep.
    pub adjoints: Vec<Adjoint>,
}

/// The adjoint of a node in a recorded sweep: `factor` times a node, or `factor` itself in
/// each row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjoint {
    /// Of which node.
    pub of: NodeId,
    /// Which node is it, but for the factor.
    pub node: Option<NodeId>,
    /// Times what.
    pub factor: f64,
}

/// An equation as a flat list of nodes.
#[derive(Debug, Clone)]
pub struct Tape {
    nodes: Vec<Node>,
    /// Nodes whose values are the residuals.
    roots: Vec<NodeId>,
    coordinates: Vec<String>,
    columns: Vec<String>,
    /// Recorded sweeps, on a lowered tape.
    sweeps: Option<Vec<Sweep>>,
    /// Parameters before this one are numbers: nothing is derived in them.
    held: usize,
}

/// What the inferences found for one node.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// The planes that the node holds: demand ∩ support, and read by somebody.
    pub planes: Planes,
    /// Whether it depends on a parameter, so that the reverse sweep passes it.
    pub active: bool,
    /// Its planes other than the value, row by row, where they are the same at each point
    /// (the node is affine in the coordinates and free of parameters).
    pub constant: Option<ConstantRows>,
    /// Its value, row by row, where that is a number that the tape knows.
    pub numbers: Option<Vec<f64>>,
}

/// For each row, planes with a value that is the same at each point.
pub type ConstantRows = Vec<SmallVec<[(Plane, f64); 2]>>;

impl Tape {
    /// A tape from its nodes; inputs must come before their readers.
    pub(crate) fn new(
        nodes: Vec<Node>,
        roots: Vec<NodeId>,
        coordinates: Vec<String>,
        columns: Vec<String>,
    ) -> Self {
        debug_assert!(
            nodes
                .iter()
                .enumerate()
                .all(|(id, node)| { node.inputs.iter().all(|&input| input < id) })
        );
        Self {
            nodes,
            roots,
            coordinates,
            columns,
            sweeps: None,
            held: 0,
        }
    }

    /// The same tape with the first parameters as numbers: nothing is derived in them.
    pub(crate) fn holding(self, held: usize) -> Self {
        Self { held, ..self }
    }

    /// Whether the map by this matrix has derivatives in it.
    pub(crate) fn varies(&self, weight: usize) -> bool {
        weight >= self.held
    }

    /// This equation with other nodes, derivatives being adjoints of recorded sweeps.
    pub(crate) fn rewritten(
        &self,
        nodes: Vec<Node>,
        roots: Vec<NodeId>,
        sweeps: Vec<Sweep>,
    ) -> Self {
        Self {
            sweeps: Some(sweeps),
            held: self.held,
            ..Self::new(nodes, roots, self.coordinates.clone(), self.columns.clone())
        }
    }

    /// The nodes, inputs before readers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The residuals.
    pub fn roots(&self) -> &[NodeId] {
        &self.roots
    }

    /// Names of the coordinates.
    pub fn coordinates(&self) -> &[String] {
        &self.coordinates
    }

    /// Names of the columns of per-point data.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The recorded sweeps of a lowered tape, inner ones first.
    pub fn sweeps(&self) -> &[Sweep] {
        self.sweeps.as_deref().unwrap_or_default()
    }

    /// Which planes each node holds.
    ///
    /// # Errors
    /// Derivatives of order above [`MAX_ORDER`], of per-point data, or of functions that
    /// are not smooth enough; derivatives that are zero everywhere; coordinates that no
    /// residual depends on.
    pub fn infer(&self) -> Result<Vec<Held>, Error> {
        self.infer_with(true)
    }

    /// The same without short cuts, to look at: planes and values that are the same at each
    /// point are held and multiplied out, and so is what recorded sweeps start from.
    pub(crate) fn infer_plainly(&self) -> Result<Vec<Held>, Error> {
        self.infer_with(false)
    }

    fn infer_with(&self, short_cuts: bool) -> Result<Vec<Held>, Error> {
        // What was lowered has been checked when it was recorded, and may have lost a
        // coordinate since: that of t in ∂/∂t (t·u(x)).
        if self.sweeps.is_none() {
            self.check_derivatives()?;
        }
        let mut expanded = BTreeSet::new();
        // A Laplacian beside all its own second derivatives is their sum: no plane for it.
        let mut watched = self.roots.clone();
        if !short_cuts {
            watched.extend(self.sweeps().iter().map(|sweep| sweep.output));
        }
        let demand = loop {
            let demand = self.demand(&watched, &expanded)?;
            let redundant: Vec<Arc<[Coordinate]>> = demand
                .iter()
                .flatten()
                .filter_map(|plane| match plane {
                    Plane::Laplacian(set) => Some(set.clone()),
                    Plane::Partial(_) => None,
                })
                .filter(|set| {
                    demand.iter().any(|planes| {
                        planes.contains(&Plane::Laplacian(set.clone()))
                            && set.iter().all(|&c| planes.contains(&Plane::second(c)))
                    })
                })
                .collect();
            if redundant.is_empty() {
                break demand;
            }
            expanded.extend(redundant);
        };
        let support = self.support(&demand, &expanded);
        self.check_smoothness(&support)?;
        let (constant, numbers) = match short_cuts {
            true => (self.constant_planes(), self.numbers()),
            false => (vec![None; support.len()], vec![None; support.len()]),
        };
        let live = self.live(&watched, &support, &expanded, &constant, &numbers);
        let active = self.active();
        if self.sweeps.is_none() && short_cuts {
            self.check_coordinates(&live, &constant)?;
        }
        Ok(live
            .into_iter()
            .zip(active)
            .zip(constant)
            .zip(numbers)
            .map(|(((planes, active), constant), numbers)| Held {
                planes: planes.into_iter().collect(),
                active,
                constant,
                numbers,
            })
            .collect())
    }

    /// Backwards from the residuals: which planes somebody may want.
    fn demand(
        &self,
        watched: &[NodeId],
        expanded: &BTreeSet<Arc<[Coordinate]>>,
    ) -> Result<Vec<BTreeSet<Plane>>, Error> {
        let mut demand = vec![BTreeSet::new(); self.nodes.len()];
        for &root in watched {
            demand[root].insert(Plane::value());
        }
        for id in (0..self.nodes.len()).rev() {
            let node = &self.nodes[id];
            let wanted = std::mem::take(&mut demand[id]);
            self.check_demand(node, &wanted)?;
            match &node.op {
                Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Parameter(_) => {}
                Op::Linear { .. }
                | Op::Stack
                | Op::Row(_)
                | Op::Broadcast
                | Op::SumRows
                | Op::Detach
                | Op::Affine { .. }
                | Op::Transposed { .. } => {
                    for &input in &node.inputs {
                        // Of a coordinate only what it can hold: there may be thousands.
                        let first = match self.nodes[input].op {
                            Op::Coordinate(c) => Some(Plane::first(c)),
                            _ => None,
                        };
                        let asks = |p: &&Plane| match &first {
                            Some(first) => p.is_value() || *p == first || p.order() > MAX_ORDER,
                            None => true,
                        };
                        demand[input].extend(wanted.iter().filter(asks).cloned());
                    }
                }
                Op::Derivative(_) | Op::Laplacian(_) => {
                    let sources = wanted
                        .iter()
                        .flat_map(|plane| plane_sources(&node.op, plane, expanded))
                        .map(|(plane, _)| plane);
                    demand[node.inputs[0]].extend(sources);
                }
                Op::Product | Op::Elemental(_) => {
                    let closed = wanted.iter().cloned().collect::<Planes>().closed();
                    for &input in &node.inputs {
                        demand[input].extend(closed.iter().cloned());
                    }
                }
                Op::Select { .. } => {
                    if !wanted.is_empty() {
                        demand[node.inputs[0]].insert(Plane::value());
                    }
                    for &input in &node.inputs[1..] {
                        demand[input].extend(wanted.iter().cloned());
                    }
                }
                Op::Guard => {
                    for &input in &node.inputs {
                        demand[input].extend(wanted.iter().cloned());
                    }
                }
            }
            demand[id] = wanted;
        }
        Ok(demand)
    }

    fn check_demand(&self, node: &Node, wanted: &BTreeSet<Plane>) -> Result<(), Error> {
        let order = wanted.iter().next_back().map_or(0, Plane::order);
        if order > MAX_ORDER {
            return Err(Error::OrderTooHigh {
                order,
                limit: MAX_ORDER,
                at: node.source.to_string(),
            });
        }
        if wanted.len() > MAX_PLANES {
            return Err(Error::PlaneLimit {
                planes: wanted.len(),
                limit: MAX_PLANES,
                at: node.source.to_string(),
            });
        }
        match &node.op {
            Op::Data(column) if order > 0 => Err(Error::DataDifferentiated {
                column: self.columns[*column].clone(),
                at: node.source.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// A kink matters only where planes of its argument meet it.
    fn check_smoothness(&self, support: &[Planes]) -> Result<(), Error> {
        for (node, planes) in self.nodes.iter().zip(support) {
            if let Op::Elemental(elemental) = &node.op
                && let Smoothness::UpTo(smoothness) = elemental.smoothness()
                && planes.order() > smoothness
            {
                return Err(Error::NotSmooth {
                    elemental: elemental.name().to_string(),
                    order: planes.order(),
                    smoothness,
                    at: node.source.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Forwards from the leaves: which of the demanded planes can be non-zero.
    fn support(
        &self,
        demand: &[BTreeSet<Plane>],
        expanded: &BTreeSet<Arc<[Coordinate]>>,
    ) -> Vec<Planes> {
        let mut support: Vec<Planes> = Vec::with_capacity(self.nodes.len());
        for (node, wanted) in self.nodes.iter().zip(demand) {
            let input = |i: usize| &support[node.inputs[i]];
            let value = Plane::value();
            let kept = |keep: &dyn Fn(&Plane) -> bool| -> Planes {
                wanted.iter().filter(|p| keep(p)).cloned().collect()
            };
            let planes = match &node.op {
                Op::Coordinate(c) => kept(&|p| p.is_value() || *p == Plane::first(*c)),
                // Zero is not stored: rows of adjoints that nothing flows into are many.
                Op::Constant(number) if number.to_bits() == 0 => Planes::default(),
                Op::Data(_) | Op::Constant(_) | Op::Parameter(_) => kept(&|p| *p == value),
                Op::Linear { shift, .. } => kept(&|p| {
                    (p.is_value() && *shift != 0.0)
                        || (0..node.inputs.len()).any(|i| input(i).contains(p))
                }),
                Op::Affine { bias, .. } => {
                    kept(&|p| (p.is_value() && bias.is_some()) || input(0).contains(p))
                }
                Op::Stack => kept(&|p| (0..node.inputs.len()).any(|i| input(i).contains(p))),
                Op::Row(_) | Op::Broadcast | Op::SumRows | Op::Detach | Op::Transposed { .. } => {
                    kept(&|p| input(0).contains(p))
                }
                Op::Guard => kept(&Plane::is_value),
                Op::Derivative(_) | Op::Laplacian(_) => kept(&|p| {
                    plane_sources(&node.op, p, expanded)
                        .iter()
                        .any(|(source, _)| input(0).contains(source))
                }),
                Op::Product => kept(&|p| !factor_pairs(p, input(0), input(1)).is_empty()),
                Op::Elemental(_) => generated(&wanted.iter().cloned().collect(), input(0)),
                Op::Select { .. } => kept(&|p| input(1).contains(p) || input(2).contains(p)),
            };
            support.push(planes);
        }
        support
    }

    /// Backwards again, with the supports known: which planes are read in the end.
    fn live(
        &self,
        watched: &[NodeId],
        support: &[Planes],
        expanded: &BTreeSet<Arc<[Coordinate]>>,
        constant: &[Option<ConstantRows>],
        numbers: &[Option<Vec<f64>>],
    ) -> Vec<BTreeSet<Plane>> {
        let mut live: Vec<BTreeSet<Plane>> = vec![BTreeSet::new(); self.nodes.len()];
        for &root in watched {
            live[root].extend(support[root].iter().filter(|p| p.is_value()).cloned());
        }
        for id in (0..self.nodes.len()).rev() {
            let node = &self.nodes[id];
            let read = std::mem::take(&mut live[id]);
            let mut mark = |input: NodeId, planes: &mut dyn Iterator<Item = Plane>| {
                live[input].extend(planes.filter(|p| support[input].contains(p)));
            };
            match &node.op {
                Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Parameter(_) => {}
                Op::Linear { .. }
                | Op::Stack
                | Op::Row(_)
                | Op::Broadcast
                | Op::SumRows
                | Op::Detach
                | Op::Guard => {
                    for &input in &node.inputs {
                        mark(input, &mut read.iter().cloned());
                    }
                }
                // The planes of an affine map of the coordinates are columns of W: only the
                // value has to be multiplied out, and it is read by the gradient of W. If it
                // is a number, as in the seed of a recorded sweep, not even that.
                Op::Affine { .. } | Op::Transposed { .. } if constant[node.inputs[0]].is_some() => {
                    if !read.is_empty() && numbers[node.inputs[0]].is_none() {
                        mark(node.inputs[0], &mut std::iter::once(Plane::value()));
                    }
                }
                Op::Affine { .. } | Op::Transposed { .. } => {
                    mark(node.inputs[0], &mut read.iter().cloned());
                }
                Op::Derivative(_) | Op::Laplacian(_) => mark(
                    node.inputs[0],
                    &mut read
                        .iter()
                        .flat_map(|p| plane_sources(&node.op, p, expanded))
                        .map(|(source, _)| source),
                ),
                Op::Product => {
                    let (a, b) = (node.inputs[0], node.inputs[1]);
                    let pairs: Vec<(usize, usize)> = read
                        .iter()
                        .flat_map(|p| factor_pairs(p, &support[a], &support[b]))
                        .collect();
                    mark(
                        a,
                        &mut pairs
                            .iter()
                            .filter_map(|&(i, _)| support[a].get(i).cloned()),
                    );
                    mark(
                        b,
                        &mut pairs
                            .iter()
                            .filter_map(|&(_, j)| support[b].get(j).cloned()),
                    );
                }
                Op::Elemental(_) => {
                    let z = node.inputs[0];
                    let target: Planes = read.iter().cloned().collect();
                    let parts = generated(&target.closed(), &support[z]);
                    for p in &read {
                        let places = factor_pairs(p, &support[z], &parts);
                        mark(
                            z,
                            &mut places
                                .iter()
                                .filter_map(|&(i, _)| support[z].get(i).cloned()),
                        );
                    }
                    if !read.is_empty() {
                        mark(z, &mut std::iter::once(Plane::value()));
                    }
                }
                Op::Select { .. } => {
                    if !read.is_empty() {
                        mark(node.inputs[0], &mut std::iter::once(Plane::value()));
                    }
                    for &input in &node.inputs[1..] {
                        mark(input, &mut read.iter().cloned());
                    }
                }
            }
            live[id] = read;
        }
        live
    }

    /// Planes that are the same at each point, for nodes affine in the coordinates.
    fn constant_planes(&self) -> Vec<Option<ConstantRows>> {
        let mut all: Vec<Option<ConstantRows>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let rows = match &node.op {
                Op::Coordinate(c) => Some(vec![SmallVec::from_iter([(Plane::first(*c), 1.0)])]),
                Op::Constant(_) | Op::Data(_) => Some(vec![SmallVec::new()]),
                Op::Linear { factors, .. } => (|| {
                    let mut sums = vec![SmallVec::<[(Plane, f64); 2]>::new(); node.rows];
                    for (&input, &factor) in node.inputs.iter().zip(factors) {
                        for (sum, row) in sums.iter_mut().zip(all[input].as_ref()?) {
                            for (plane, value) in row {
                                match sum.iter_mut().find(|(p, _)| p == plane) {
                                    Some((_, total)) => *total += factor * value,
                                    None => sum.push((plane.clone(), factor * value)),
                                }
                            }
                        }
                    }
                    Some(sums)
                })(),
                Op::Stack => node
                    .inputs
                    .iter()
                    .map(|&input| all[input].clone())
                    .collect::<Option<Vec<_>>>()
                    .map(|rows| rows.concat()),
                Op::Row(row) => all[node.inputs[0]]
                    .as_ref()
                    .map(|rows| vec![rows[*row].clone()]),
                Op::Broadcast => all[node.inputs[0]]
                    .as_ref()
                    .map(|rows| vec![rows[0].clone(); node.rows]),
                _ => None,
            };
            all.push(rows);
        }
        all
    }

    /// Values that the tape knows.
    fn numbers(&self) -> Vec<Option<Vec<f64>>> {
        let mut all: Vec<Option<Vec<f64>>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let input = |place: usize| all[node.inputs[place]].as_ref();
            let numbers = match &node.op {
                Op::Constant(number) => Some(vec![*number]),
                Op::Linear { factors, shift } => (|| {
                    let mut sums = vec![*shift; node.rows];
                    for (place, factor) in factors.iter().enumerate() {
                        for (sum, number) in sums.iter_mut().zip(input(place)?) {
                            *sum += factor * number;
                        }
                    }
                    Some(sums)
                })(),
                Op::Stack => {
                    let rows: Option<Vec<_>> = (0..node.inputs.len()).map(input).collect();
                    rows.map(|rows| rows.into_iter().flatten().copied().collect())
                }
                Op::Row(row) => input(0).map(|numbers| vec![numbers[*row]]),
                Op::Broadcast => input(0).map(|numbers| vec![numbers[0]; node.rows]),
                _ => None,
            };
            all.push(numbers);
        }
        all
    }

    /// Which nodes depend on a parameter.
    fn active(&self) -> Vec<bool> {
        let mut active = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            if matches!(node.op, Op::Detach | Op::Guard) {
                active.push(false);
                continue;
            }
            let own = match node.op {
                Op::Parameter(index) => index >= self.held,
                Op::Affine { weight, .. } | Op::Transposed { weight } => self.varies(weight),
                _ => false,
            };
            // The condition of a selection is piecewise constant.
            let skip = usize::from(matches!(node.op, Op::Select { .. }));
            let any = own || node.inputs[skip..].iter().any(|&input| active[input]);
            active.push(any);
        }
        active
    }

    /// A derivative in a coordinate that its input does not depend on is a mistake.
    fn check_derivatives(&self) -> Result<(), Error> {
        let words = self.coordinates.len().div_ceil(64);
        let mut depends: Vec<SmallVec<[u64; 2]>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut own: SmallVec<[u64; 2]> = SmallVec::from_elem(0, words);
            for &input in &node.inputs {
                for (word, other) in own.iter_mut().zip(&depends[input]) {
                    *word |= other;
                }
            }
            let has = |c: Coordinate| own[usize::from(c) / 64] >> (c % 64) & 1 == 1;
            let missing = match &node.op {
                Op::Derivative(c) if !has(*c) => Some(*c),
                Op::Laplacian(set) => set.iter().copied().find(|&c| !has(c)),
                _ => None,
            };
            if let Some(c) = missing {
                return Err(Error::IndependentDerivative {
                    coordinate: self.coordinates[usize::from(c)].clone(),
                    at: node.source.to_string(),
                });
            }
            if let Op::Coordinate(c) = node.op {
                own[usize::from(c) / 64] |= 1 << (c % 64);
            }
            depends.push(own);
        }
        Ok(())
    }

    fn check_coordinates(
        &self,
        live: &[BTreeSet<Plane>],
        constant: &[Option<ConstantRows>],
    ) -> Result<(), Error> {
        for (c, name) in self.coordinates.iter().enumerate() {
            let first = Plane::first(c as Coordinate);
            let touched = self
                .nodes
                .iter()
                .zip(live)
                .any(|(node, planes)| match node.op {
                    Op::Coordinate(d) => usize::from(d) == c && !planes.is_empty(),
                    // A derivative that is a column of W needs no number of the coordinate.
                    Op::Affine { .. } => {
                        constant[node.inputs[0]].is_some() && planes.contains(&first)
                    }
                    _ => false,
                });
            if !touched {
                return Err(Error::UntouchedCoordinate { name: name.clone() });
            }
        }
        Ok(())
    }

    /// A listing: one line a node, with rows and planes; on a lowered tape also the graph
    /// that it belongs to and what it is the adjoint of.
    pub fn listing(&self) -> Result<String, Error> {
        let held = self.infer()?;
        let mut text = String::new();
        for (id, (node, held)) in self.nodes.iter().zip(&held).enumerate() {
            let mut name = node.op.name();
            match &node.op {
                Op::Coordinate(c) | Op::Derivative(c) => {
                    let _ = write!(name, " {}", self.coordinates[usize::from(*c)]);
                }
                Op::Data(column) => {
                    let _ = write!(name, " {}", self.columns[*column]);
                }
                Op::Laplacian(set) => {
                    let plane = Plane::Laplacian(set.clone());
                    name = plane.name(&self.coordinates);
                }
                _ => {}
            }
            let inputs: Vec<String> = node.inputs.iter().map(|i| format!("%{i}")).collect();
            let planes: Vec<String> = held
                .planes
                .iter()
                .map(|p| p.name(&self.coordinates))
                .collect();
            let root = if self.roots.contains(&id) {
                "  residual"
            } else {
                ""
            };
            let graph = match (&self.sweeps, node.graph) {
                (Some(_), graph) => format!("  graph {graph}"),
                (None, _) => String::new(),
            };
            let adjoints: String = self
                .sweeps()
                .iter()
                .flat_map(|sweep| sweep.adjoints.iter().map(|a| (sweep.output, a)))
                .filter(|(_, adjoint)| adjoint.node == Some(id))
                .map(|(output, a)| match a.factor {
                    1.0 => format!("  ∂%{output}/∂%{}", a.of),
                    factor => format!("  ∂%{output}/∂%{} / {factor}", a.of),
                })
                .collect();
            let _ = writeln!(
                text,
                "%{id} = {name} {}  rows {}  {{{}}}{graph}{adjoints}{root}",
                inputs.join(" "),
                node.rows,
                planes.join(" "),
            );
        }
        Ok(text)
    }
}

/// Which planes of the input, times what, make a plane of a derivative or a Laplacian.
pub(crate) fn plane_sources(
    op: &Op,
    plane: &Plane,
    expanded: &BTreeSet<Arc<[Coordinate]>>,
) -> Vec<(Plane, f64)> {
    match op {
        Op::Derivative(c) => plane.derivative_sources(*c),
        Op::Laplacian(set) => {
            let collapsed = set.len() > 1 && !expanded.contains(set);
            plane.laplacian_sources(set, collapsed)
        }
        _ => vec![(plane.clone(), 1.0)],
    }
}
