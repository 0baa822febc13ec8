//! The trace: everything that happens to an equation at a few points, node by node. Values
//! and derivatives of the forward pass, what is kept for the reverse sweep, adjoints, and
//! what each node adds to the gradient. To look at, not to compute with: nothing is reused,
//! no short cut is taken, and the reverse sweep goes on to the coordinates.

use crate::error::Error;
use crate::kernel::simd::InstructionSet;
use crate::lower::Lowering;
use crate::parameters::Parameters;
use crate::plan::{BufferId, Derivative, LANES, Plan, Sweep, WeightTable};
use crate::plane::{Plane, Planes};
use crate::points::Points;
use crate::problem::{Condition, Problem};
use crate::record::Equation;
use crate::replay::{Chunk, Replay, Sink, Weights, Workspace};
use crate::tape::{Adjoint, Held, NodeId, Op, Tape};
use serde::Serialize;
use std::collections::HashMap;

mod drawing;
mod page;
mod table;

pub use drawing::Show;
pub use page::page;
pub use table::Table;

/// The most numbers that the jets and adjoints of a trace may have together.
pub const MAX_NUMBERS: usize = 1 << 22;

/// What the reverse sweep of a trace starts from: the adjoint of each output at each point.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Seed<'a> {
    /// 1: the gradient of the sum of all outputs over all points.
    Sum,
    /// 2r/N: the gradient of the mean over the N points of the sum of squares.
    Squares,
    /// These numbers: one list for each output, one number for each point.
    Given(&'a [Vec<f64>]),
}

/// Numbers of a node: by row, then plane, then point.
pub type Jets = Vec<Vec<Vec<f64>>>;

/// An equation at some points, node by node: values and derivatives, what is kept for the
/// reverse sweep, adjoints, and the gradient in the parameters.
///
/// Derivatives are derivatives, not Taylor coefficients: the number of plane `x.x` is
/// ∂²u/∂x², and its adjoint is ∂L/∂(∂²u/∂x²). Griewank and Walther, *Evaluating
/// Derivatives* (2008), chapters 2 and 3, have the notation.
///
/// ```
/// use dualtape::trace::{Seed, Trace};
/// use dualtape::{Elemental::Tanh, Equation, Lowering, Parameters, Points};
///
/// let mut params = Parameters::seeded(1);
/// let net = params.mlp("u", &[1, 3, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [u] = net.at(&[t]);
///     u.d(t) + u
/// })?;
/// let points = Points::from_rows(&[[0.5]])?;
/// let mixed = Trace::of(&decay, &params, &points, Seed::Squares)?;
/// let nested = decay.lowered(Lowering::NestedReverse)?;
/// let nested = Trace::of(&nested, &params, &points, Seed::Squares)?;
///
/// assert_eq!((mixed.graphs(), nested.graphs()), (1, 2));
/// assert!(nested.nodes.len() > mixed.nodes.len());
/// for (a, b) in mixed.gradient.iter().zip(&nested.gradient) {
///     assert!((a - b).abs() < 1e-14);
/// }
/// println!("{mixed}");
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Trace {
    /// Name of the equation.
    pub equation: String,
    /// Names of the coordinates.
    pub coordinates: Vec<String>,
    /// The points, coordinate by coordinate.
    pub points: Vec<Vec<f64>>,
    /// The nodes, inputs before readers: the order of the forward pass. The reverse sweep
    /// goes the other way.
    pub nodes: Vec<TraceNode>,
    /// The outputs: their nodes.
    pub outputs: Vec<NodeId>,
    /// What the reverse sweep started from: by output, then point.
    pub seeds: Vec<Vec<f64>>,
    /// Names of the parameters, such as `u.0.weight[2,0]`: block, row and column.
    pub parameters: Vec<String>,
    /// The gradient in the parameters.
    pub gradient: Vec<f64>,
    /// Bytes of all that is kept for the reverse sweep.
    pub kept_bytes: usize,
}

/// A node of a trace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TraceNode {
    /// Its place on the tape.
    pub id: NodeId,
    /// Its name: `%` and its place, what it is the adjoint of, or what
    /// [`label`](Trace::label) said.
    pub label: String,
    /// What it does.
    pub operation: String,
    /// What it reads.
    pub inputs: Vec<NodeId>,
    /// Its rows.
    pub rows: usize,
    /// 1 for what was recorded, 2 for the adjoints of the first recorded sweep, ….
    pub graph: usize,
    /// Which adjoints it is in recorded sweeps.
    pub adjoint_of: Vec<AdjointOf>,
    /// Whether the reverse sweep ends here, by [`detach`](crate::detach).
    pub detached: bool,
    /// Where it was recorded.
    pub at: String,
    /// Names of its planes: `1` for the value, `t`, `x.x`, … for derivatives. None where
    /// nobody reads it.
    pub planes: Vec<String>,
    /// Its value and derivatives.
    pub jet: Jets,
    /// The adjoint of each number of the jet.
    pub adjoint: Jets,
    /// What of it the forward pass leaves for the reverse sweep.
    pub kept: Vec<Kept>,
    /// What it adds to the gradient.
    pub shares: Vec<Share>,
    /// Whether the label was given.
    #[serde(skip)]
    named: bool,
}

/// An adjoint that was recorded: ∂output/∂of = factor · node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdjointOf {
    /// What the sweep started from.
    pub output: NodeId,
    /// Of which node.
    pub of: NodeId,
    /// Times what.
    pub factor: f64,
}

/// Numbers that are kept for the reverse sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// `value` for the jet itself, `slope` for that of f′(z).
    pub what: &'static str,
    /// Their planes.
    pub planes: Vec<String>,
    /// Their bytes, in double precision, for all points of the trace.
    pub bytes: usize,
}

/// What a node adds to some entries of the gradient.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// Name of the block of parameters.
    pub block: String,
    /// The first entry.
    pub first: usize,
    /// One number for each entry from there.
    pub values: Vec<f64>,
}

impl Trace {
    /// Runs an equation, as it was recorded or lowered, at some points, and keeps everything.
    ///
    /// # Errors
    /// Points or data that do not fit the equation; an equation of other parameters; seeds
    /// of another shape than outputs × points; more than [`MAX_NUMBERS`] numbers.
    pub fn of(
        equation: &Equation,
        parameters: &Parameters,
        points: &Points,
        seed: Seed<'_>,
    ) -> Result<Self, Error> {
        Problem::watched(parameters, &Condition::new(equation, points.clone()))?;
        let tape = equation.tape();
        let held = tape.infer_plainly()?;
        let mut keys = WeightTable::default();
        let plan = Plan::new(tape, &held, &mut keys, Sweep::Trace);
        let layout = plan.layout(points.len().next_multiple_of(LANES), size_of::<f64>());
        if layout.len > MAX_NUMBERS {
            return Err(Error::OutOfRange {
                what: format!("the trace of equation `{}`", equation.name()),
                given: format!("{} numbers", layout.len),
                expected: format!("at most {MAX_NUMBERS}; trace fewer points"),
            });
        }
        let mut weights = Weights::default();
        weights.load(parameters.values(), &keys.keys);
        let coordinates: Vec<Vec<f64>> = (0..points.dimension())
            .map(|c| points.coordinate(c).to_vec())
            .collect();
        let column = |name: &String| points.column(name).unwrap_or_default().to_vec();
        let columns: Vec<Vec<f64>> = equation.columns().iter().map(column).collect();
        let chunk = Chunk {
            coordinates: &coordinates,
            columns: &columns,
            start: 0,
            count: points.len(),
        };
        let replay = Replay {
            plan: &plan,
            layout: &layout,
            keys: &keys.keys,
            weights: &weights,
            set: InstructionSet::detect(),
        };
        let mut workspace = Workspace::default();
        replay.forward(chunk, &mut workspace);
        let residuals: Vec<Vec<f64>> = plan
            .roots
            .iter()
            .map(|root| match replay.residual(root, &workspace) {
                Some(lanes) => lanes[..points.len()].to_vec(),
                None => vec![0.0; points.len()],
            })
            .collect();
        let seeds = seeds(seed, residuals)?;
        replay.clear_seeds(&mut workspace);
        for (root, seeds) in plan.roots.iter().zip(&seeds) {
            replay.seed(root, &mut workspace, seeds.iter().copied());
        }
        let mut gradient = vec![0.0; parameters.len()];
        replay.reverse(&mut workspace, Sink::Gradient(&mut gradient));
        let reader = Reader {
            tape,
            held: &held,
            parameters,
            replay: &replay,
            workspace: &workspace,
            points: points.len(),
        };
        let mut nodes: Vec<TraceNode> = (0..tape.nodes().len()).map(|id| reader.node(id)).collect();
        keep(equation, points.len(), &mut nodes);
        let name = |index: usize| match parameters.locate(index) {
            Some((block, row, column)) if block.columns > 1 || block.name.ends_with("weight") => {
                format!("{}[{row},{column}]", block.name)
            }
            Some((block, row, _)) if block.rows > 1 => format!("{}[{row}]", block.name),
            Some((block, ..)) => block.name.clone(),
            None => format!("{index}"),
        };
        let mut trace = Self {
            equation: equation.name().to_owned(),
            coordinates: equation.coordinates().to_vec(),
            points: coordinates,
            outputs: tape.roots().to_vec(),
            seeds,
            parameters: (0..parameters.len()).map(name).collect(),
            gradient,
            kept_bytes: nodes.iter().map(TraceNode::kept_bytes).sum(),
            nodes,
        };
        trace.relabel();
        Ok(trace)
    }

    /// The same equation at the same points in mixed mode and in nested reverse mode.
    ///
    /// # Errors
    /// As [`of`](Self::of) and [`Equation::lowered`].
    pub fn both(
        equation: &Equation,
        parameters: &Parameters,
        points: &Points,
        seed: Seed<'_>,
    ) -> Result<[Self; 2], Error> {
        let nested = equation.lowered(Lowering::NestedReverse)?;
        Ok([
            Self::of(equation, parameters, points, seed)?,
            Self::of(&nested, parameters, points, seed)?,
        ])
    }

    /// How many graphs there are: 1 in mixed mode, one more for each order in nested reverse
    /// mode.
    pub fn graphs(&self) -> usize {
        self.nodes.iter().map(|node| node.graph).max().unwrap_or(0)
    }

    /// Nodes that hold numbers, of each graph.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.graphs()];
        for node in self.nodes.iter().filter(|node| !node.planes.is_empty()) {
            counts[node.graph - 1] += 1;
        }
        counts
    }

    /// Gives a node a name for tables and pictures. Adjoints of it are called after it.
    /// A place that is not on the tape changes nothing.
    pub fn label(&mut self, id: NodeId, label: &str) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.label = label.to_owned();
            node.named = true;
            self.relabel();
        }
    }

    /// The recorded adjoint ∂output/∂of, if somebody reads it: its node.
    pub fn recorded_adjoint(&self, output: NodeId, of: NodeId) -> Option<NodeId> {
        let is = |a: &AdjointOf| (a.output, a.of) == (output, of);
        let mut nodes = self.nodes.iter();
        Some(nodes.find(|node| node.adjoint_of.iter().any(is))?.id)
    }

    /// All of it, every digit.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Names after what they are adjoints of, but for those that were given.
    fn relabel(&mut self) {
        for id in 0..self.nodes.len() {
            let node = &self.nodes[id];
            if node.named {
                continue;
            }
            // A node of the graph that is swept may serve as an adjoint too, as x does for x².
            let recorded = |a: &&AdjointOf| self.nodes[a.output].graph < node.graph;
            let label = match node.adjoint_of.iter().find(recorded) {
                Some(adjoint) => {
                    let name = |id: NodeId| match &self.nodes[id] {
                        node if node.label.starts_with('∂') => format!("({})", node.label),
                        node => node.label.clone(),
                    };
                    let (of, output) = (name(adjoint.of), name(adjoint.output));
                    match adjoint.factor {
                        1.0 => format!("∂{output}/∂{of}"),
                        factor => format!("∂{output}/∂{of} / {factor}"),
                    }
                }
                None => format!("%{id}"),
            };
            self.nodes[id].label = label;
        }
    }
}

impl TraceNode {
    /// Bytes that are kept for the reverse sweep.
    pub fn kept_bytes(&self) -> usize {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }

    /// The numbers of a plane at a point, row by row; none where the node does not hold it.
    pub fn plane(&self, plane: &str, point: usize) -> Vec<f64> {
        self.numbers(&self.jet, plane, point)
    }

    /// The adjoints of these.
    pub fn adjoint_plane(&self, plane: &str, point: usize) -> Vec<f64> {
        self.numbers(&self.adjoint, plane, point)
    }

    fn numbers(&self, jets: &Jets, plane: &str, point: usize) -> Vec<f64> {
        let place = self.planes.iter().position(|name| name == plane);
        let number = |row: &Vec<Vec<f64>>| row.get(place?)?.get(point).copied();
        jets.iter().filter_map(number).collect()
    }
}

fn seeds(seed: Seed<'_>, mut residuals: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, Error> {
    let points = residuals.first().map_or(0, Vec::len);
    match seed {
        Seed::Sum => residuals.iter_mut().for_each(|list| list.fill(1.0)),
        Seed::Squares => {
            let all = residuals.iter_mut().flatten();
            all.for_each(|r| *r *= 2.0 / points as f64);
        }
        Seed::Given(given) => {
            if given.len() != residuals.len() {
                let what = "lists of seeds, one for each output".to_owned();
                return Err(Error::length(what, given.len(), residuals.len()));
            }
            if let Some(list) = given.iter().find(|list| list.len() != points) {
                let what = "seeds of an output, one for each point".to_owned();
                return Err(Error::length(what, list.len(), points));
            }
            return Ok(given.to_vec());
        }
    }
    Ok(residuals)
}

/// Reads a replay that is over.
struct Reader<'a> {
    tape: &'a Tape,
    held: &'a [Held],
    parameters: &'a Parameters,
    replay: &'a Replay<'a, f64>,
    workspace: &'a Workspace<f64>,
    points: usize,
}

impl Reader<'_> {
    fn node(&self, id: NodeId) -> TraceNode {
        let node = &self.tape.nodes()[id];
        let names = self.tape.coordinates();
        let planes = &self.held[id].planes;
        let factor = |plane: &Plane| plane.derivative_factor();
        let adjoint = self.adjoint(id);
        // A sweep starts from a number, which has no node of its own but this one.
        let starts = |graph: usize, a: &Adjoint| {
            graph == node.graph && a.node.is_none() && node.op == Op::Constant(a.factor)
        };
        // The factor is carried along until somebody reads the adjoint.
        let scales = |other: NodeId, factor: f64| match &node.op {
            Op::Linear { factors, shift } => {
                node.graph > 1
                    && node.inputs[..] == [other]
                    && factors[..] == [factor]
                    && *shift == 0.0
            }
            _ => false,
        };
        let sweeps = self.tape.sweeps().iter();
        let adjoint_of = sweeps
            .flat_map(|sweep| sweep.adjoints.iter().map(move |a| (sweep, a)))
            .filter_map(|(sweep, a)| {
                let factor = match a.node {
                    Some(other) if other == id => a.factor,
                    Some(other) if scales(other, a.factor) => 1.0,
                    None if starts(sweep.graph, a) => 1.0,
                    _ => return None,
                };
                Some(AdjointOf {
                    output: sweep.output,
                    of: a.of,
                    factor,
                })
            })
            .collect();
        TraceNode {
            id,
            label: String::new(),
            operation: self.operation(id),
            inputs: node.inputs.to_vec(),
            rows: node.rows,
            graph: node.graph,
            adjoint_of,
            detached: node.op == Op::Detach,
            at: node.source.to_string(),
            planes: planes.iter().map(|p| p.name(names)).collect(),
            jet: scaled(self.value(id), planes, factor),
            adjoint: scaled(adjoint.clone(), planes, |p| 1.0 / factor(p)),
            kept: Vec::new(),
            shares: self.shares(id, &adjoint),
            named: false,
        }
    }

    fn operation(&self, id: NodeId) -> String {
        let node = &self.tape.nodes()[id];
        let coordinate = |c: u16| &self.tape.coordinates()[usize::from(c)];
        let layer = |weight: usize| match self.parameters.locate(weight) {
            Some((block, ..)) => block.name.trim_end_matches(".weight").to_owned(),
            None => weight.to_string(),
        };
        match &node.op {
            Op::Coordinate(c) => format!("coordinate {}", coordinate(*c)),
            Op::Derivative(c) => format!("derivative {}", coordinate(*c)),
            Op::Data(column) => format!("data {}", self.tape.columns()[*column]),
            Op::Laplacian(set) => Plane::Laplacian(set.clone()).name(self.tape.coordinates()),
            Op::Parameter(index) => format!("parameter {}", layer(*index)),
            Op::Affine { weight, bias } => match bias {
                Some(_) => format!("affine {}", layer(*weight)),
                None => format!("matrix {}", layer(*weight)),
            },
            Op::Transposed { weight } => format!("transposed {}", layer(*weight)),
            op => op.name(),
        }
    }

    /// The numbers of a buffer by row, plane and point; Taylor coefficients.
    fn jets(&self, buffer: BufferId) -> Jets {
        let lanes = self.replay.layout.lanes;
        self.replay
            .buffer(buffer, self.workspace)
            .into_iter()
            .map(|row| {
                let planes = row.chunks_exact(lanes);
                planes.map(|p| p[..self.points].to_vec()).collect()
            })
            .collect()
    }

    fn value(&self, id: NodeId) -> Jets {
        let buffer = self.replay.plan.values[id].filter(|_| !self.held[id].planes.is_empty());
        buffer.map_or_else(Vec::new, |buffer| self.jets(buffer))
    }

    /// The adjoint of a node; 0 where nothing flowed into it.
    fn adjoint(&self, id: NodeId) -> Jets {
        let planes = self.held[id].planes.len();
        match self.replay.plan.adjoints[id] {
            _ if planes == 0 => Vec::new(),
            Some(buffer) => self.jets(buffer),
            None => vec![vec![vec![0.0; self.points]; planes]; self.tape.nodes()[id].rows],
        }
    }

    /// What a node adds to the gradient, from its adjoint and its input.
    fn shares(&self, id: NodeId, adjoint: &Jets) -> Vec<Share> {
        let node = &self.tape.nodes()[id];
        let outer = |rows: &Jets, row_planes: &Planes, columns: &Jets, column_planes: &Planes| {
            let mut values = Vec::with_capacity(rows.len() * columns.len());
            for row in rows {
                for column in columns {
                    let mut sum = 0.0;
                    for (place, plane) in row_planes.iter().enumerate() {
                        if let Some(other) = column_planes.position(plane) {
                            let pairs = row[place].iter().zip(&column[other]);
                            sum += pairs.map(|(a, b)| a * b).sum::<f64>();
                        }
                    }
                    values.push(sum);
                }
            }
            values
        };
        let share = |first: usize, values: Vec<f64>| Share {
            block: match self.parameters.locate(first) {
                Some((block, ..)) => block.name.clone(),
                None => String::new(),
            },
            first,
            values,
        };
        let planes = &self.held[id].planes;
        match (&node.op, planes.position(&Plane::value())) {
            _ if planes.is_empty() => Vec::new(),
            (Op::Affine { weight, bias }, value) => {
                let input = node.inputs[0];
                let a = self.value(input);
                let held = &self.held[input].planes;
                let mut shares = Vec::new();
                if !a.is_empty() {
                    shares.push(share(*weight, outer(adjoint, planes, &a, held)));
                }
                if let (Some(bias), Some(place)) = (bias, value) {
                    let sums = adjoint.iter().map(|row| row[place].iter().sum());
                    shares.push(share(*bias, sums.collect()));
                }
                shares
            }
            (Op::Transposed { weight }, _) => {
                let input = node.inputs[0];
                let a = self.value(input);
                match a.is_empty() {
                    true => Vec::new(),
                    false => {
                        let held = &self.held[input].planes;
                        vec![share(*weight, outer(&a, held, adjoint, planes))]
                    }
                }
            }
            (Op::Parameter(index), Some(place)) => {
                vec![share(*index, vec![adjoint[0][place].iter().sum()])]
            }
            _ => Vec::new(),
        }
    }
}

fn scaled(mut jets: Jets, planes: &Planes, factor: impl Fn(&Plane) -> f64) -> Jets {
    for row in &mut jets {
        for (numbers, plane) in row.iter_mut().zip(planes.iter()) {
            let factor = factor(plane);
            numbers.iter_mut().for_each(|x| *x *= factor);
        }
    }
    jets
}

/// Notes what the plan of a training step keeps, with all its short cuts.
fn keep(equation: &Equation, points: usize, nodes: &mut [TraceNode]) {
    let (tape, held) = (equation.tape(), equation.held());
    let plan = Plan::new(tape, held, &mut WeightTable::default(), Sweep::Reverse);
    let names = |planes: &Planes| -> Vec<String> {
        planes.iter().map(|p| p.name(tape.coordinates())).collect()
    };
    // A buffer that is written over belongs to the last.
    let mut owners: HashMap<BufferId, (NodeId, &'static str, Vec<String>)> = HashMap::new();
    for (id, held) in held.iter().enumerate() {
        if let Some(buffer) = plan.values[id] {
            owners.insert(buffer, (id, "value", names(&held.planes)));
        }
    }
    for (id, slope) in plan.slopes.iter().enumerate() {
        let (buffer, planes) = match slope {
            None => continue,
            Some(Derivative::Stored(buffer, planes)) => (*buffer, names(planes)),
            Some(Derivative::FromOutput { slope, .. }) => {
                (*slope, vec![Plane::value().name(tape.coordinates())])
            }
        };
        owners.entry(buffer).or_insert((id, "slope", planes));
    }
    let mut kept: Vec<BufferId> = owners.keys().copied().collect();
    kept.retain(|&buffer| plan.keeps(buffer));
    kept.sort_unstable();
    for buffer in kept {
        let numbers = plan.buffers[buffer].rows * plan.buffers[buffer].planes * points;
        if let Some((id, what, planes)) = owners.remove(&buffer) {
            nodes[id].kept.push(Kept {
                what,
                planes,
                bytes: numbers * size_of::<f64>(),
            });
        }
    }
}
