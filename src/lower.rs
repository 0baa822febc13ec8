//! Nested reverse mode as a rewrite of the tape: derivatives in the coordinates become
//! recorded vector-Jacobian products, as `create_graph=True` makes them elsewhere.
//! Knows nothing of memory or numbers.
//!
//! A derivative ∂u/∂x is the adjoint of x in a reverse sweep from u. Recorded, the sweep
//! adds nodes to the tape: Graph 2 on top of Graph 1. A sweep through Graph 2 adds Graph 3,
//! and so on. What comes out is an ordinary tape without derivatives, which is planned and
//! replayed by the same kernels, so that both modes can be compared fairly.
//!
//! Nothing is recorded twice: equal nodes are shared, one sweep serves all coordinates of a
//! value, mixed derivatives are taken in ascending order of the coordinates, factors are
//! carried along in place of being multiplied, and nodes that nobody reads are removed.
//! f′(z) is an elemental by itself, computed with f(z) in one go (see the plan), exact in
//! the tails.
//!
//! The rewrite may stop at an order: inner derivatives become sweeps, outer ones stay
//! planes of the jets on that tape, forward over reverse. The other nesting needs no switch
//! of its own: sweeping back from ∂u/∂y on a tape of jets gives ∂/∂x ∂u/∂y = ∂/∂y ∂u/∂x,
//! which is the derivation applied to the recorded adjoint ∂u/∂x: the same tape.

use crate::elemental::{Elemental, Slope};
use crate::error::Error;
use crate::plane::Coordinate;
use crate::tape::{Adjoint, Node, NodeId, Nodes, Op, Source, Sweep, Tape};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// How derivatives in the coordinates are computed. All ways give the same numbers, up to
/// rounding; they differ in time and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Lowering {
    /// As planes of jets, in the forward pass: mixed mode.
    #[default]
    Jets,
    /// By recorded reverse sweeps: nested reverse mode.
    NestedReverse,
    /// Inner derivatives by recorded sweeps, outer ones as planes of jets.
    Partial {
        /// Derivatives up to this order are inner ones: 1 for the gradient only.
        inner: usize,
    },
    /// Whatever the counts say is faster.
    Auto,
}

/// The most nodes that a lowered tape may have: sweeps through sweeps grow without measure.
pub const MAX_NODES: usize = 1 << 20;

/// Rewrites the derivatives up to the order `inner` of a tape.
///
/// # Errors
/// More nodes than `limit`, or than [`MAX_NODES`].
pub(crate) fn lower(tape: &Tape, inner: usize, limit: usize) -> Result<Tape, Error> {
    let orders = orders(tape);
    let mut lowerer = Lowerer {
        nodes: Nodes::default(),
        depends: Vec::new(),
        coordinates: vec![None; tape.coordinates().len()],
        graph: 1,
        limit: limit.min(MAX_NODES),
        gradients: HashMap::new(),
        sweeps: Vec::new(),
    };
    let mut places: Vec<Option<NodeId>> = vec![None; tape.nodes().len()];
    let wanted = wanted(tape);
    for (id, node) in tape
        .nodes()
        .iter()
        .enumerate()
        .filter(|(id, _)| wanted[*id])
    {
        let place = |id: NodeId| places[id].unwrap_or_default();
        let lowered = match &node.op {
            Op::Derivative(_) => {
                let (base, chain) = chain(tape, id);
                let mut value = place(base);
                for (order, &c) in (orders[base] + 1..).zip(&chain) {
                    value = lowerer.derivative(value, c, order <= inner, node.source)?;
                }
                value
            }
            Op::Laplacian(set) => {
                let (base, order) = (place(node.inputs[0]), orders[node.inputs[0]]);
                if order < inner {
                    let mut terms = Vec::with_capacity(set.len());
                    for &c in set.iter() {
                        let first = lowerer.derivative(base, c, true, node.source)?;
                        let second = order + 2 <= inner;
                        let term = lowerer.derivative(first, c, second, node.source)?;
                        terms.push(Scaled::node(term));
                    }
                    let sum = lowerer.sum(terms, node.rows, node.source)?;
                    lowerer.materialised(sum, node.rows, node.source)?
                } else {
                    lowerer.push(node.op.clone(), smallvec![base], node.rows, node.source)?
                }
            }
            op => {
                let inputs = node.inputs.iter().map(|&input| place(input)).collect();
                lowerer.push(op.clone(), inputs, node.rows, node.source)?
            }
        };
        places[id] = Some(lowered);
    }
    let roots: Vec<NodeId> = tape
        .roots()
        .iter()
        .filter_map(|&root| places[root])
        .collect();
    Ok(lowerer.finish(tape, &roots))
}

/// The highest order of a derivative among the ancestors of each node, its own included.
pub(crate) fn orders(tape: &Tape) -> Vec<usize> {
    let mut orders: Vec<usize> = Vec::with_capacity(tape.nodes().len());
    for node in tape.nodes() {
        let below = node.inputs.iter().map(|&input| orders[input]).max();
        let own = match node.op {
            Op::Derivative(_) => 1,
            Op::Laplacian(_) => 2,
            _ => 0,
        };
        orders.push(below.unwrap_or(0) + own);
    }
    orders
}

/// What a run of derivatives is taken of, and in which coordinates, ascending.
fn chain(tape: &Tape, mut id: NodeId) -> (NodeId, Vec<Coordinate>) {
    let mut coordinates = Vec::new();
    while let Op::Derivative(c) = tape.nodes()[id].op {
        coordinates.push(c);
        id = tape.nodes()[id].inputs[0];
    }
    coordinates.sort_unstable();
    (id, coordinates)
}

/// Nodes that the residuals need, runs of derivatives being taken at once.
fn wanted(tape: &Tape) -> Vec<bool> {
    let mut wanted = vec![false; tape.nodes().len()];
    for &root in tape.roots() {
        wanted[root] = true;
    }
    for id in (0..wanted.len()).rev() {
        if !wanted[id] {
            continue;
        }
        match tape.nodes()[id].op {
            Op::Derivative(_) => wanted[chain(tape, id).0] = true,
            _ => tape.nodes()[id]
                .inputs
                .iter()
                .for_each(|&input| wanted[input] = true),
        }
    }
    wanted
}

/// A number times a node, or in each row the number itself.
#[derive(Debug, Clone, Copy)]
struct Scaled {
    node: Option<NodeId>,
    factor: f64,
}

impl Scaled {
    fn node(node: NodeId) -> Self {
        Self {
            node: Some(node),
            factor: 1.0,
        }
    }

    fn number(factor: f64) -> Self {
        Self { node: None, factor }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            node: self.node,
            factor: self.factor * factor,
        }
    }
}

/// What has flowed into an adjoint so far.
#[derive(Debug, Default)]
struct Inflow {
    /// Into all rows.
    whole: Vec<Scaled>,
    /// Into single rows.
    rows: BTreeMap<usize, Vec<Scaled>>,
}

/// Coordinates as bits.
type CoordinateSet = SmallVec<[u64; 2]>;

fn holds(set: &CoordinateSet, c: Coordinate) -> bool {
    let c = usize::from(c);
    set.get(c / 64)
        .is_some_and(|word| word >> (c % 64) & 1 == 1)
}

/// The derivatives of a value of one row in the coordinates that it depends on.
type Gradient = BTreeMap<Coordinate, Scaled>;

struct Lowerer {
    nodes: Nodes,
    /// Coordinates that each node has derivatives in.
    depends: Vec<CoordinateSet>,
    /// Their nodes.
    coordinates: Vec<Option<NodeId>>,
    /// The graph that is being recorded.
    graph: usize,
    /// How many nodes there may be.
    limit: usize,
    /// Sweeps that have been recorded.
    gradients: HashMap<NodeId, Rc<Gradient>>,
    sweeps: Vec<Sweep>,
}

impl Lowerer {
    fn push(
        &mut self,
        op: Op,
        inputs: SmallVec<[NodeId; 2]>,
        rows: usize,
        source: Source,
    ) -> Result<NodeId, Error> {
        if self.nodes.len() >= self.limit {
            return Err(Error::LoweringTooLarge { limit: self.limit });
        }
        let below = inputs.iter().map(|&input| self.nodes[input].graph).max();
        let id = self.nodes.push(Node {
            graph: self.graph.max(below.unwrap_or(1)),
            op,
            inputs,
            rows,
            source,
        });
        if id == self.depends.len() {
            let depends = self.dependence(id);
            self.depends.push(depends);
        }
        Ok(id)
    }

    fn dependence(&mut self, id: NodeId) -> CoordinateSet {
        let words = self.coordinates.len().div_ceil(64);
        let mut own: CoordinateSet = SmallVec::from_elem(0, words);
        let node = &self.nodes[id];
        match node.op {
            Op::Coordinate(c) => {
                own[usize::from(c) / 64] |= 1 << (c % 64);
                self.coordinates[usize::from(c)] = Some(id);
            }
            Op::Guard => {}
            _ => {
                // The condition of a selection is piecewise constant.
                let skip = usize::from(matches!(node.op, Op::Select { .. }));
                for &input in &node.inputs[skip..] {
                    for (word, other) in own.iter_mut().zip(&self.depends[input]) {
                        *word |= other;
                    }
                }
            }
        }
        own
    }

    fn varies(&self, id: NodeId) -> bool {
        self.depends[id].iter().any(|word| *word != 0)
    }

    /// ∂/∂c of a node: the adjoint of a sweep, or a plane.
    fn derivative(
        &mut self,
        of: NodeId,
        c: Coordinate,
        by_sweep: bool,
        source: Source,
    ) -> Result<NodeId, Error> {
        let rows = self.nodes[of].rows;
        let value = if !holds(&self.depends[of], c) {
            Scaled::number(0.0)
        } else if by_sweep {
            self.adjoint(of, c, source)?
        } else {
            Scaled::node(self.push(Op::Derivative(c), smallvec![of], rows, source)?)
        };
        // What has to be scaled or filled in to be read belongs to the sweep too.
        let graph = self.nodes[of].graph + usize::from(by_sweep);
        let outer = std::mem::replace(&mut self.graph, graph);
        let node = self.materialised(value, rows, source);
        self.graph = outer;
        node
    }

    /// ∂/∂c of a node that depends on c, by sweeps from its rows.
    fn adjoint(&mut self, of: NodeId, c: Coordinate, source: Source) -> Result<Scaled, Error> {
        let rows = self.nodes[of].rows;
        if rows == 1 {
            let gradient = self.gradient(of)?;
            return Ok(gradient.get(&c).copied().unwrap_or(Scaled::number(0.0)));
        }
        let mut inputs = SmallVec::with_capacity(rows);
        for row in 0..rows {
            let value = self.row(Scaled::node(of), row, source)?;
            let row = self.materialised(value, 1, source)?;
            let value = match holds(&self.depends[row], c) {
                true => self.adjoint(row, c, source)?,
                false => Scaled::number(0.0),
            };
            inputs.push(self.materialised(value, 1, source)?);
        }
        Ok(Scaled::node(self.push(Op::Stack, inputs, rows, source)?))
    }

    /// Records the sweep from a value of one row, once.
    fn gradient(&mut self, output: NodeId) -> Result<Rc<Gradient>, Error> {
        if let Some(gradient) = self.gradients.get(&output) {
            return Ok(gradient.clone());
        }
        let graph = self.nodes[output].graph + 1;
        let outer = std::mem::replace(&mut self.graph, graph);
        let mut gradient = Gradient::new();
        let mut adjoints = Vec::new();
        // Nodes that a branch of a selection reads: their numbers may be NaN where the
        // branch is not taken.
        let mut guarded: BTreeSet<NodeId> = BTreeSet::new();
        let mut inflows: BTreeMap<NodeId, Inflow> = BTreeMap::new();
        let seed = Scaled::number(1.0);
        inflows.entry(output).or_default().whole.push(seed);
        while let Some((id, inflow)) = inflows.pop_last() {
            let node = self.nodes[id].clone();
            let bar = self.total(inflow, node.rows, node.source)?;
            adjoints.push(Adjoint {
                of: id,
                node: bar.node,
                factor: bar.factor,
            });
            if let Op::Coordinate(c) = node.op {
                gradient.insert(c, bar);
                continue;
            }
            let guard = guarded.remove(&id);
            let skip = match node.op {
                Op::Select { .. } => 1,
                _ if guard => 0,
                _ => node.inputs.len(),
            };
            guarded.extend(&node.inputs[skip..]);
            self.pull_back(&node, bar, guard, &mut inflows)?;
        }
        self.graph = outer;
        self.sweeps.push(Sweep {
            output,
            graph,
            adjoints,
        });
        let gradient = Rc::new(gradient);
        self.gradients.insert(output, gradient.clone());
        Ok(gradient)
    }

    /// The vector-Jacobian product of one node: what its adjoint adds to those of its inputs.
    fn pull_back(
        &mut self,
        node: &Node,
        bar: Scaled,
        guard: bool,
        inflows: &mut BTreeMap<NodeId, Inflow>,
    ) -> Result<(), Error> {
        let (rows, source) = (node.rows, node.source);
        let varying: SmallVec<[(usize, NodeId); 2]> = (0..node.inputs.len())
            .map(|place| (place, node.inputs[place]))
            .filter(|&(_, input)| self.varies(input))
            .collect();
        let mut flow = |input: NodeId, part: Scaled| {
            inflows.entry(input).or_default().whole.push(part);
        };
        match &node.op {
            Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Parameter(_) | Op::Guard => {}
            Op::Linear { factors, .. } => {
                for (place, input) in varying {
                    flow(input, bar.times(factors[place]));
                }
            }
            Op::Stack => {
                let mut first = 0;
                for (place, &input) in node.inputs.iter().enumerate() {
                    let count = self.nodes[input].rows;
                    if varying.iter().any(|&(varies, _)| varies == place) {
                        flow(input, self.rows(bar, first, count, source)?);
                    }
                    first += count;
                }
            }
            Op::Row(row) => {
                let inflow = inflows.entry(node.inputs[0]).or_default();
                inflow.rows.entry(*row).or_default().push(bar);
            }
            Op::Broadcast => flow(node.inputs[0], self.sum_rows(bar, rows, source)?),
            Op::SumRows => {
                let input = node.inputs[0];
                let count = self.nodes[input].rows;
                flow(input, self.broadcast(bar, count, source)?);
            }
            Op::Product => {
                for (place, input) in varying {
                    let other = self.scaled(node.inputs[1 - place]);
                    let other = self.guarded(other, bar, guard, rows, source)?;
                    flow(input, self.product(bar, other, rows, source)?);
                }
            }
            Op::Elemental(f) => {
                let z = node.inputs[0];
                let slope = self.slope(f, z, rows, source)?;
                let slope = self.guarded(slope, bar, guard, rows, source)?;
                flow(z, self.product(bar, slope, rows, source)?);
            }
            Op::Affine { weight, .. } => {
                let input = node.inputs[0];
                let op = Op::Transposed { weight: *weight };
                let columns = self.nodes[input].rows;
                flow(input, self.matrix(op, bar, rows, columns, source)?);
            }
            Op::Transposed { weight } => {
                let input = node.inputs[0];
                let op = Op::Affine {
                    weight: *weight,
                    bias: None,
                };
                let count = self.nodes[input].rows;
                flow(input, self.matrix(op, bar, rows, count, source)?);
            }
            Op::Select { or_equal } => {
                let bar = self.materialised(bar, rows, source)?;
                let zero = self.materialised(Scaled::number(0.0), rows, source)?;
                for (place, input) in varying.into_iter().filter(|&(place, _)| place > 0) {
                    let branches = if place == 1 { [bar, zero] } else { [zero, bar] };
                    let inputs = smallvec![node.inputs[0], branches[0], branches[1]];
                    let op = Op::Select {
                        or_equal: *or_equal,
                    };
                    flow(input, Scaled::node(self.push(op, inputs, rows, source)?));
                }
            }
            // These act on the derivatives in the coordinates themselves.
            Op::Detach | Op::Derivative(_) | Op::Laplacian(_) => {
                let input = node.inputs[0];
                for c in 0..self.coordinates.len() {
                    let Some(coordinate) = self.coordinates[c] else {
                        continue;
                    };
                    if !holds(&self.depends[input], c as Coordinate) {
                        continue;
                    }
                    let inner = self.adjoint(input, c as Coordinate, source)?;
                    let local = match (inner.node, &node.op) {
                        (Some(inner), op) => {
                            Scaled::node(self.push(op.clone(), smallvec![inner], rows, source)?)
                        }
                        (None, Op::Detach) => inner,
                        (None, _) => Scaled::number(0.0),
                    };
                    let local = local.times(inner.node.map_or(1.0, |_| inner.factor));
                    let local = self.guarded(local, bar, guard, rows, source)?;
                    let part = self.product(bar, local, rows, source)?;
                    flow(coordinate, self.sum_rows(part, rows, source)?);
                }
            }
        }
        Ok(())
    }

    /// f′(z).
    fn slope(
        &mut self,
        f: &Elemental,
        z: NodeId,
        rows: usize,
        source: Source,
    ) -> Result<Scaled, Error> {
        Ok(match f.slope() {
            Slope::Number(number) => Scaled::number(number),
            Slope::Argument(factor) => self.scaled(z).times(factor),
            Slope::Elemental(slope) => {
                Scaled::node(self.push(Op::Elemental(slope), smallvec![z], rows, source)?)
            }
        })
    }

    /// A factor of an adjoint, made 0 where it is not finite and the adjoint is 0: below a
    /// selection, where the branch is not taken.
    fn guarded(
        &mut self,
        factor: Scaled,
        bar: Scaled,
        guard: bool,
        rows: usize,
        source: Source,
    ) -> Result<Scaled, Error> {
        let (Some(node), Some(adjoint), true) = (factor.node, bar.node, guard) else {
            return Ok(factor);
        };
        let mask = self.push(Op::Guard, smallvec![node, adjoint], rows, source)?;
        let zero = self.materialised(Scaled::number(0.0), rows, source)?;
        let op = Op::Select { or_equal: false };
        let kept = self.push(op, smallvec![mask, node, zero], rows, source)?;
        Ok(Scaled::node(kept).times(factor.factor))
    }

    /// A node, as a number or with its factor where it is one.
    fn scaled(&self, id: NodeId) -> Scaled {
        let node = &self.nodes[id];
        match &node.op {
            Op::Constant(number) => Scaled::number(*number),
            Op::Broadcast => match self.nodes[node.inputs[0]].op {
                Op::Constant(number) => Scaled::number(number),
                _ => Scaled::node(id),
            },
            Op::Linear { factors, shift } if *shift == 0.0 && factors.len() == 1 => {
                Scaled::node(node.inputs[0]).times(factors[0])
            }
            _ => Scaled::node(id),
        }
    }

    fn product(
        &mut self,
        a: Scaled,
        b: Scaled,
        rows: usize,
        source: Source,
    ) -> Result<Scaled, Error> {
        let node = match (a.node, b.node) {
            (Some(a), Some(b)) => {
                let inputs = smallvec![a.min(b), a.max(b)];
                Some(self.push(Op::Product, inputs, rows, source)?)
            }
            (a, b) => a.or(b),
        };
        Ok(Scaled {
            node,
            factor: a.factor * b.factor,
        })
    }

    /// A product with a matrix, the factor being carried along.
    fn matrix(
        &mut self,
        op: Op,
        bar: Scaled,
        inputs: usize,
        rows: usize,
        source: Source,
    ) -> Result<Scaled, Error> {
        let factor = if bar.node.is_some() { bar.factor } else { 1.0 };
        let bar = match bar.node {
            Some(node) => node,
            None => self.materialised(bar, inputs, source)?,
        };
        let node = self.push(op, smallvec![bar], rows, source)?;
        Ok(Scaled::node(node).times(factor))
    }

    /// Everything that flowed into an adjoint.
    fn total(&mut self, inflow: Inflow, rows: usize, source: Source) -> Result<Scaled, Error> {
        let Inflow {
            mut whole,
            rows: mut single,
        } = inflow;
        if !single.is_empty() {
            let mut inputs = SmallVec::with_capacity(rows);
            for row in 0..rows {
                let sum = self.sum(single.remove(&row).unwrap_or_default(), 1, source)?;
                inputs.push(self.materialised(sum, 1, source)?);
            }
            whole.push(Scaled::node(self.push(Op::Stack, inputs, rows, source)?));
        }
        self.sum(whole, rows, source)
    }

    /// A sum in the order of the nodes, each node once.
    fn sum(&mut self, terms: Vec<Scaled>, rows: usize, source: Source) -> Result<Scaled, Error> {
        let mut shift = 0.0;
        let mut sums: BTreeMap<NodeId, f64> = BTreeMap::new();
        for term in terms {
            let term = match term.node {
                Some(node) => self.scaled(node).times(term.factor),
                None => term,
            };
            match term.node {
                Some(node) => *sums.entry(node).or_insert(0.0) += term.factor,
                None => shift += term.factor,
            }
        }
        sums.retain(|_, factor| *factor != 0.0);
        Ok(match (sums.len(), shift) {
            (0, number) => Scaled::number(number),
            (1, 0.0) => {
                let (&node, &factor) = sums.iter().next().unwrap_or((&0, &0.0));
                Scaled::node(node).times(factor)
            }
            (_, shift) => {
                let op = Op::Linear {
                    factors: sums.values().copied().collect(),
                    shift,
                };
                let inputs = sums.keys().copied().collect();
                Scaled::node(self.push(op, inputs, rows, source)?)
            }
        })
    }

    /// A node for what has been a number, or has a factor.
    fn materialised(
        &mut self,
        value: Scaled,
        rows: usize,
        source: Source,
    ) -> Result<NodeId, Error> {
        match value.node {
            Some(node) if value.factor == 1.0 => Ok(node),
            Some(node) => {
                let op = Op::Linear {
                    factors: smallvec![value.factor],
                    shift: 0.0,
                };
                self.push(op, smallvec![node], rows, source)
            }
            None => {
                let number = self.push(Op::Constant(value.factor), smallvec![], 1, source)?;
                match rows {
                    1 => Ok(number),
                    _ => self.push(Op::Broadcast, smallvec![number], rows, source),
                }
            }
        }
    }

    fn row(&mut self, value: Scaled, row: usize, source: Source) -> Result<Scaled, Error> {
        let Some(id) = value.node else {
            return Ok(value);
        };
        let node = &self.nodes[id];
        let one = match &node.op {
            _ if node.rows == 1 => id,
            Op::Broadcast => node.inputs[0],
            Op::Stack if node.inputs.len() == node.rows => node.inputs[row],
            _ => self.push(Op::Row(row), smallvec![id], 1, source)?,
        };
        Ok(self.scaled(one).times(value.factor))
    }

    fn rows(
        &mut self,
        value: Scaled,
        first: usize,
        count: usize,
        source: Source,
    ) -> Result<Scaled, Error> {
        if value.node.is_none() || count == 1 {
            return self.row(value, first, source);
        }
        let mut inputs = SmallVec::with_capacity(count);
        for row in first..first + count {
            let row = self.row(value, row, source)?;
            inputs.push(self.materialised(row, 1, source)?);
        }
        Ok(Scaled::node(self.push(Op::Stack, inputs, count, source)?))
    }

    fn broadcast(&mut self, value: Scaled, rows: usize, source: Source) -> Result<Scaled, Error> {
        let node = match value.node {
            Some(node) if rows > 1 => {
                Some(self.push(Op::Broadcast, smallvec![node], rows, source)?)
            }
            node => node,
        };
        Ok(Scaled { node, ..value })
    }

    fn sum_rows(&mut self, value: Scaled, rows: usize, source: Source) -> Result<Scaled, Error> {
        Ok(match value.node {
            None => value.times(rows as f64),
            Some(_) if rows == 1 => value,
            Some(node) => {
                let sum = self.push(Op::SumRows, smallvec![node], 1, source)?;
                Scaled::node(sum).times(value.factor)
            }
        })
    }

    /// The tape of what the residuals read.
    fn finish(self, tape: &Tape, roots: &[NodeId]) -> Tape {
        let mut read = vec![false; self.nodes.len()];
        for &root in roots {
            read[root] = true;
        }
        let close = |read: &mut [bool]| {
            for id in (0..read.len()).rev() {
                if read[id] {
                    let inputs = self.nodes[id].inputs.iter();
                    inputs.for_each(|&input| read[input] = true);
                }
            }
        };
        close(&mut read);
        // What is differentiated stays, to say of what the others are adjoints. It holds no
        // planes if only its derivatives are read.
        for sweep in self.sweeps.iter().rev() {
            let is_read = |a: &Adjoint| a.node.is_some_and(|node| read[node]);
            if sweep.adjoints.iter().any(is_read) {
                read[sweep.output] = true;
            }
        }
        close(&mut read);
        let mut places: Vec<Option<NodeId>> = Vec::with_capacity(read.len());
        let mut next = 0;
        for &read in &read {
            places.push(read.then_some(next));
            next += usize::from(read);
        }
        let place = |id: NodeId| places[id].unwrap_or_default();
        let nodes = self.nodes.into_list().into_iter().zip(&read);
        let nodes: Vec<Node> = nodes
            .filter(|(_, read)| **read)
            .map(|(mut node, _)| {
                node.inputs
                    .iter_mut()
                    .for_each(|input| *input = place(*input));
                node
            })
            .collect();
        let roots = roots.iter().map(|&root| place(root)).collect();
        let sweeps = self
            .sweeps
            .into_iter()
            .filter_map(|sweep| {
                let adjoint = |a: Adjoint| {
                    Some(Adjoint {
                        of: places[a.of]?,
                        node: match a.node {
                            Some(node) => Some(places[node]?),
                            None => None,
                        },
                        factor: a.factor,
                    })
                };
                Some(Sweep {
                    output: places[sweep.output]?,
                    graph: sweep.graph,
                    adjoints: sweep.adjoints.into_iter().filter_map(adjoint).collect(),
                })
            })
            .collect();
        tape.rewritten(nodes, roots, sweeps)
    }
}

#[cfg(test)]
mod tests;
