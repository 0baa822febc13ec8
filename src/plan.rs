//! The plan: a tape as steps over buffers in one arena, with their lifetimes over forward
//! and reverse time. Knows sizes and order, no numbers.

use crate::elemental::Elemental;
use crate::kernel::jet::{Mode, Quadratic, QuadraticAdjoint, Riccati, Table};
use crate::plane::{Plane, Planes, factor_pairs, generated};
use crate::record::Equation;
use crate::tape::{ConstantRows, Held, NodeId, Op, Tape};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What an equation costs, counted without running it: for one point, loss and gradient.
///
/// ```
/// use dualtape::{Counts, Elemental::Tanh, Equation, Parameters};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 64, 64, 1], Tanh)?;
/// let heat = Equation::record("heat", &params, ["t", "x"], |[t, x]| {
///     let [u] = net.at(&[t, x]);
///     u.d(t) - u.d(x).d(x)
/// })?;
/// let counts = Counts::of(&heat);
/// assert!(counts.matrix_flops > 0 && counts.products > 0);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Nodes of the tape that hold at least one plane.
    pub nodes: usize,
    /// Planes, summed over the nodes.
    pub planes: usize,
    /// Floating-point operations of the matrix products.
    pub matrix_flops: usize,
    /// Products of planes outside of the matrix products: compositions, products of jets
    /// and their adjoints, summed over the rows.
    pub products: usize,
    /// Bytes of the arena in `f64`, adjoints included, after lifetimes.
    pub bytes: usize,
}

impl Counts {
    /// Counts an equation.
    pub fn of(equation: &Equation) -> Self {
        let held = equation.held();
        let plan = Plan::new(
            equation.tape(),
            held,
            &mut WeightTable::default(),
            Sweep::Reverse,
        );
        let products = |step: &Step| match step {
            Step::Bilinear { dst, table, .. } => plan.buffers[*dst].rows * table.products(),
            Step::Compose { v, program, .. } => {
                let powers: usize = program.powers.iter().map(|(_, t)| t.products()).sum();
                let sums = program.value.products() + program.derivative.products();
                plan.buffers[*v].rows * (powers + sums)
            }
            Step::ComposeAdjoint { v, rule, table, .. } => {
                plan.buffers[*v].rows * (rule.products() + table.products())
            }
            _ => 0,
        };
        let lanes = 64;
        Self {
            nodes: held.iter().filter(|h| !h.planes.is_empty()).count(),
            planes: held.iter().map(|h| h.planes.len()).sum(),
            matrix_flops: plan.flops,
            products: plan.forward.iter().chain(&plan.reverse).map(products).sum(),
            bytes: plan.layout(lanes, size_of::<f64>()).len * size_of::<f64>() / lanes,
        }
    }
}

/// The place of a buffer in [`Plan::buffers`].
pub(crate) type BufferId = usize;

/// A block of rows × planes numbers for each lane.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    pub(crate) rows: usize,
    pub(crate) planes: usize,
    /// First and last moment of its use; forward steps, the seed and the reverse steps are
    /// counted in one sequence.
    pub(crate) birth: usize,
    pub(crate) death: usize,
}

/// A matrix of the parameter vector that products use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WeightKey {
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Which matrices are packed, once an evaluation, for all conditions.
#[derive(Debug, Clone, Default)]
pub(crate) struct WeightTable {
    pub(crate) keys: Vec<WeightKey>,
    places: HashMap<WeightKey, usize>,
}

impl WeightTable {
    fn place(&mut self, key: WeightKey) -> usize {
        *self.places.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }
}

/// A run of adjacent planes: from, to, how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) src: usize,
    pub(crate) dst: usize,
    pub(crate) len: usize,
}

/// A run of adjacent planes with a factor, into rows of a destination.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    pub(crate) src: BufferId,
    pub(crate) src_row: usize,
    /// 0 where one source row serves all destination rows.
    pub(crate) src_step: usize,
    pub(crate) dst_row: usize,
    /// 0 where all source rows add up in one destination row.
    pub(crate) dst_step: usize,
    pub(crate) rows: usize,
    pub(crate) run: Run,
    pub(crate) factor: f64,
    pub(crate) mode: Mode,
}

/// A plane that is a fixed combination of columns of W.
#[derive(Debug, Clone)]
pub(crate) struct ColumnSum {
    /// Its place in the destination.
    pub(crate) place: usize,
    /// Columns and factors.
    pub(crate) parts: Vec<(usize, f64)>,
}

/// Planes `place..place + len` of some rows, to be set to 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zero {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) place: usize,
    pub(crate) len: usize,
}

/// A composition v = f(z) and the jet d of f'(z), as sums of products of scratch planes:
/// `c_0 … c_K`, then `e_k = (k+1)·c_{k+1}`, then z, then the powers of δ = z − z_0.
#[derive(Debug, Clone)]
pub(crate) struct Composition {
    /// Taylor coefficients asked of the elemental: 0 to this order.
    pub(crate) order: usize,
    /// First place of `e_1 …`, where d is wanted.
    pub(crate) scaled: usize,
    /// Order of d.
    pub(crate) derivative_order: usize,
    /// First place of z's planes.
    pub(crate) argument: usize,
    /// Each level of powers: the place of its first plane, and its products.
    pub(crate) powers: Vec<(usize, Table)>,
    /// v without its value, d without its value.
    pub(crate) value: Table,
    pub(crate) derivative: Table,
    /// The same sums without a scratch row, where no order is above 2.
    pub(crate) quadratic: Option<Quadratic>,
    /// Place of the value in v.
    pub(crate) value_place: Option<usize>,
    /// Planes of scratch.
    pub(crate) scratch: usize,
}

/// What is done with a chunk of points, one after the other.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Coordinate {
        dst: BufferId,
        coordinate: usize,
        value: Option<usize>,
        first: Option<usize>,
    },
    Data {
        dst: BufferId,
        column: usize,
    },
    Constant {
        dst: BufferId,
        value: f64,
    },
    Parameter {
        dst: BufferId,
        index: usize,
    },
    Linear {
        dst: BufferId,
        zeros: Vec<Zero>,
        terms: Vec<Term>,
        /// Place of the value, and what is added there.
        shift: Option<(usize, f64)>,
    },
    Bilinear {
        dst: BufferId,
        a: BufferId,
        b: BufferId,
        table: Table,
        mode: Mode,
        guarded: bool,
    },
    Compose {
        v: BufferId,
        /// The jet of f'(z), or its value alone where the rest follows from v.
        d: Option<BufferId>,
        /// None where v takes the place of z.
        z: Option<BufferId>,
        elemental: Elemental,
        program: Composition,
    },
    Affine {
        dst: BufferId,
        src: BufferId,
        weight: usize,
        bias: Option<usize>,
        /// Place of the value in dst.
        value: Option<usize>,
        runs: Vec<Run>,
        /// Planes that are not multiplied out.
        columns: Vec<ColumnSum>,
    },
    Select {
        dst: BufferId,
        or_equal: bool,
        condition: BufferId,
        /// For each plane of dst, its place in either branch.
        places: Vec<(Option<usize>, Option<usize>)>,
        then: BufferId,
        otherwise: BufferId,
    },
    /// Adjoint of an affine map: W̄, b̄ and, where the input is active, its adjoint.
    AffineAdjoint {
        zbar: BufferId,
        src: BufferId,
        abar: Option<(BufferId, Mode, Vec<Zero>)>,
        weight: usize,
        bias: Option<usize>,
        value: Option<usize>,
        runs: Vec<Run>,
        columns: Vec<ColumnSum>,
        /// The input may be NaN in lanes that a selection did not take.
        guarded: bool,
    },
    /// Adjoint of a composition whose f' follows from v.
    ComposeAdjoint {
        dst: BufferId,
        /// None where dst takes its place.
        adjoint: Option<BufferId>,
        v: BufferId,
        slope: BufferId,
        rule: Riccati,
        /// The same where no order is above 2.
        quadratic: Option<QuadraticAdjoint>,
        /// Of the jet of f', in scratch.
        planes: usize,
        /// Pairs of its places and those of the adjoint.
        table: Table,
        mode: Mode,
    },
    ParameterAdjoint {
        adjoint: BufferId,
        index: usize,
    },
    SelectAdjoint {
        adjoint: BufferId,
        or_equal: bool,
        condition: BufferId,
        dst: BufferId,
        /// Whether this is the branch taken where the condition holds.
        then: bool,
        places: Vec<Option<usize>>,
        mode: Mode,
    },
}

/// A residual: where its value is (none: it is 0 everywhere), and where its seed goes.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) value: Option<BufferId>,
    pub(crate) adjoint: Option<BufferId>,
}

/// How far a plan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Values only, to look at: no buffer is reused.
    Inspect,
    /// Values only.
    Forward,
    /// Values and the reverse sweep.
    Reverse,
}

/// Steps, buffers and lifetimes for one equation.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) forward: Vec<Step>,
    pub(crate) reverse: Vec<Step>,
    pub(crate) roots: Vec<Root>,
    /// Adjoint buffers of roots, to be cleared before seeding.
    pub(crate) seeded: Vec<BufferId>,
    /// Planes of scratch that one row needs.
    pub(crate) scratch: usize,
    /// Value buffer of each node.
    pub(crate) values: Vec<Option<BufferId>>,
    /// Floating-point operations of the matrix products, for one point.
    pub(crate) flops: usize,
}

/// Offsets in the arena for a number of lanes.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) lanes: usize,
    pub(crate) offset: Vec<usize>,
    pub(crate) stride: Vec<usize>,
    pub(crate) len: usize,
}

impl Plan {
    /// Plans a tape whose planes have been inferred.
    pub(crate) fn new(tape: &Tape, held: &[Held], weights: &mut WeightTable, sweep: Sweep) -> Self {
        let mut builder = Builder {
            tape,
            held,
            weights,
            sweep,
            guarded: guarded(tape),
            plan: Self {
                buffers: Vec::new(),
                forward: Vec::new(),
                reverse: Vec::new(),
                roots: Vec::new(),
                seeded: Vec::new(),
                scratch: 0,
                values: vec![None; tape.nodes().len()],
                flops: 0,
            },
            derivatives: vec![None; tape.nodes().len()],
            readers: readers(tape),
            adjoints: vec![None; tape.nodes().len()],
        };
        for id in 0..tape.nodes().len() {
            builder.forward(id);
        }
        builder.seed();
        if sweep == Sweep::Reverse {
            for id in (0..tape.nodes().len()).rev() {
                builder.reverse(id);
            }
        }
        builder.plan.count_flops(builder.weights);
        builder.plan.live(sweep);
        builder.plan
    }

    fn count_flops(&mut self, weights: &WeightTable) {
        let product = |weight: usize, runs: &[Run]| {
            let key = weights.keys[weight];
            2 * key.rows * key.columns * runs.iter().map(|run| run.len).sum::<usize>()
        };
        self.flops = self
            .forward
            .iter()
            .chain(&self.reverse)
            .map(|step| match step {
                Step::Affine { weight, runs, .. } => product(*weight, runs),
                Step::AffineAdjoint {
                    weight, runs, abar, ..
                } => product(*weight, runs) * (1 + usize::from(abar.is_some())),
                _ => 0,
            })
            .sum();
    }

    /// Births and deaths from what the steps touch.
    fn live(&mut self, sweep: Sweep) {
        let seed_time = self.forward.len();
        let end = seed_time + self.reverse.len();
        let mut touch = |id: BufferId, time: usize| {
            let buffer = &mut self.buffers[id];
            buffer.birth = buffer.birth.min(time);
            buffer.death = buffer.death.max(time);
        };
        for (time, step) in self.forward.iter().enumerate() {
            step.touches(&mut |id| touch(id, time));
        }
        for root in &self.roots {
            for id in root.value.into_iter().chain(root.adjoint) {
                touch(id, seed_time);
            }
        }
        for (time, step) in self.reverse.iter().enumerate() {
            step.touches(&mut |id| touch(id, seed_time + 1 + time));
        }
        if sweep == Sweep::Inspect {
            for buffer in &mut self.buffers {
                buffer.death = end;
            }
        }
    }

    /// Places the buffers for a number of lanes of `size` bytes each.
    pub(crate) fn layout(&self, lanes: usize, size: usize) -> Layout {
        let line = 64 / size;
        let stride: Vec<usize> = self
            .buffers
            .iter()
            .map(|buffer| {
                let row = buffer.planes * lanes;
                // Rows a multiple of 4 KiB apart would compete for the same cache sets.
                let aliased = buffer.rows > 1 && row > 0 && (row * size).is_multiple_of(4096);
                row + if aliased { line } else { 0 }
            })
            .collect();
        let sizes: Vec<usize> = self
            .buffers
            .iter()
            .zip(&stride)
            .map(|(buffer, stride)| (buffer.rows * stride).next_multiple_of(line))
            .collect();
        let mut arena = Allocator::default();
        let mut offset = vec![0; self.buffers.len()];
        let mut births: Vec<BufferId> = (0..self.buffers.len()).collect();
        births.sort_by_key(|&id| self.buffers[id].birth);
        let mut deaths: BTreeSet<(usize, BufferId)> = BTreeSet::new();
        for id in births {
            let buffer = &self.buffers[id];
            while let Some(&(death, dead)) = deaths.first() {
                if death >= buffer.birth {
                    break;
                }
                deaths.pop_first();
                arena.free(offset[dead], sizes[dead]);
            }
            offset[id] = arena.allocate(sizes[id]);
            deaths.insert((buffer.death, id));
        }
        Layout {
            lanes,
            offset,
            stride,
            len: arena.end,
        }
    }
}

/// First-fit blocks in one growing arena, best fit among the free ones.
#[derive(Default)]
struct Allocator {
    free: BTreeMap<usize, usize>,
    end: usize,
}

impl Allocator {
    fn allocate(&mut self, size: usize) -> usize {
        if size == 0 {
            return 0;
        }
        let best = self
            .free
            .iter()
            .filter(|&(_, &len)| len >= size)
            .min_by_key(|&(_, &len)| len)
            .map(|(&at, &len)| (at, len));
        if let Some((at, len)) = best {
            self.free.remove(&at);
            if len > size {
                self.free.insert(at + size, len - size);
            }
            return at;
        }
        // Grow out of a free block at the end, if there is one.
        let at = match self.free.last_key_value() {
            Some((&at, &len)) if at + len == self.end => {
                self.free.remove(&at);
                at
            }
            _ => self.end,
        };
        self.end = at + size;
        at
    }

    fn free(&mut self, at: usize, size: usize) {
        if size == 0 {
            return;
        }
        let (mut start, mut len) = (at, size);
        if let Some(next) = self.free.remove(&(at + size)) {
            len += next;
        }
        if let Some((&before, &before_len)) = self.free.range(..at).next_back()
            && before + before_len == at
        {
            self.free.remove(&before);
            start = before;
            len += before_len;
        }
        self.free.insert(start, len);
    }
}

impl Step {
    fn touches(&self, touch: &mut impl FnMut(BufferId)) {
        match self {
            Self::Coordinate { dst, .. }
            | Self::Data { dst, .. }
            | Self::Constant { dst, .. }
            | Self::Parameter { dst, .. } => touch(*dst),
            Self::Linear { dst, terms, .. } => {
                touch(*dst);
                terms.iter().for_each(|term| touch(term.src));
            }
            Self::Bilinear { dst, a, b, .. } => [dst, a, b].into_iter().for_each(|&id| touch(id)),
            Self::Compose { v, d, z, .. } => {
                touch(*v);
                z.iter().chain(d).for_each(|&id| touch(id));
            }
            Self::Affine { dst, src, .. } => {
                touch(*dst);
                touch(*src);
            }
            Self::Select {
                dst,
                condition,
                then,
                otherwise,
                ..
            } => [dst, condition, then, otherwise]
                .into_iter()
                .for_each(|&id| touch(id)),
            Self::AffineAdjoint {
                zbar, src, abar, ..
            } => {
                touch(*zbar);
                touch(*src);
                abar.iter().for_each(|(id, ..)| touch(*id));
            }
            Self::ComposeAdjoint {
                dst,
                adjoint,
                v,
                slope,
                ..
            } => {
                [dst, v, slope].into_iter().for_each(|&id| touch(id));
                adjoint.iter().for_each(|&id| touch(id));
            }
            Self::ParameterAdjoint { adjoint, .. } => touch(*adjoint),
            Self::SelectAdjoint {
                adjoint,
                condition,
                dst,
                ..
            } => [adjoint, condition, dst]
                .into_iter()
                .for_each(|&id| touch(id)),
        }
    }
}

/// Nodes that a branch of a selection reads, directly or not.
fn guarded(tape: &Tape) -> Vec<bool> {
    let mut guarded = vec![false; tape.nodes().len()];
    for (id, node) in tape.nodes().iter().enumerate().rev() {
        let branch = matches!(node.op, Op::Select { .. });
        let skip = usize::from(branch);
        if branch || guarded[id] {
            for &input in &node.inputs[skip..] {
                guarded[input] = true;
            }
        }
    }
    guarded
}

/// How many nodes read each node; a root counts as read once more.
fn readers(tape: &Tape) -> Vec<usize> {
    let mut readers = vec![0; tape.nodes().len()];
    let inputs = tape.nodes().iter().flat_map(|node| &node.inputs);
    for &id in inputs.chain(tape.roots()) {
        readers[id] += 1;
    }
    readers
}

/// The jet of f'(z) of an elemental.
#[derive(Debug, Clone)]
enum Derivative {
    /// In a buffer, with its planes.
    Stored(BufferId, Planes),
    /// Its value in a buffer, the rest from v by f' = a + b·f + c·f².
    FromOutput {
        slope: BufferId,
        planes: Planes,
        linear: f64,
        square: f64,
    },
}

struct Builder<'a> {
    tape: &'a Tape,
    held: &'a [Held],
    weights: &'a mut WeightTable,
    sweep: Sweep,
    guarded: Vec<bool>,
    plan: Plan,
    /// How the reverse sweep gets at the jet of f'(z), for elementals.
    derivatives: Vec<Option<Derivative>>,
    /// How many nodes read each node.
    readers: Vec<usize>,
    /// Adjoint buffers that have got a contribution.
    adjoints: Vec<Option<BufferId>>,
}

impl Builder<'_> {
    fn buffer(&mut self, rows: usize, planes: usize) -> BufferId {
        self.plan.buffers.push(Buffer {
            rows,
            planes,
            birth: usize::MAX,
            death: 0,
        });
        self.plan.buffers.len() - 1
    }

    fn planes(&self, id: NodeId) -> &Planes {
        &self.held[id].planes
    }

    fn value(&self, id: NodeId) -> Option<BufferId> {
        self.plan.values[id]
    }

    fn differentiates(&self, id: NodeId) -> bool {
        self.sweep == Sweep::Reverse && self.held[id].active
    }

    fn forward(&mut self, id: NodeId) {
        if self.planes(id).is_empty() {
            return;
        }
        let node = &self.tape.nodes()[id];
        let rows = node.rows;
        let count = self.planes(id).len();
        let dst = match &node.op {
            Op::Elemental(_) if self.in_place(id) => self.value_or_zero(node.inputs[0]),
            _ => self.buffer(rows, count),
        };
        self.plan.values[id] = Some(dst);
        let step = match &node.op {
            Op::Coordinate(c) => Step::Coordinate {
                dst,
                coordinate: usize::from(*c),
                value: self.planes(id).position(&Plane::value()),
                first: self.planes(id).position(&Plane::first(*c)),
            },
            Op::Data(column) => Step::Data {
                dst,
                column: *column,
            },
            Op::Constant(value) => Step::Constant { dst, value: *value },
            Op::Parameter(index) => Step::Parameter { dst, index: *index },
            Op::Linear { shift, .. } => {
                let place = self.planes(id).position(&Plane::value());
                let shift = place
                    .map(|place| (place, *shift))
                    .filter(|(_, s)| *s != 0.0);
                self.linear(id, dst, shift)
            }
            Op::Stack
            | Op::Row(_)
            | Op::Broadcast
            | Op::Derivative(_)
            | Op::Laplacian(_)
            | Op::Detach => self.linear(id, dst, None),
            Op::Product => self.product(id, dst),
            Op::Elemental(elemental) => self.compose(id, dst, elemental.clone()),
            Op::Affine { weight, bias } => self.affine(id, dst, *weight, *bias),
            Op::Select { or_equal } => {
                let (condition, then, otherwise) = (node.inputs[0], node.inputs[1], node.inputs[2]);
                let places = self
                    .planes(id)
                    .iter()
                    .map(|p| {
                        (
                            self.planes(then).position(p),
                            self.planes(otherwise).position(p),
                        )
                    })
                    .collect();
                // A branch without any plane is 0; the condition's buffer stands in for it.
                let zero = self.value_or_zero(condition);
                // The mask of a row is copied there.
                self.plan.scratch = self.plan.scratch.max(1);
                Step::Select {
                    dst,
                    or_equal: *or_equal,
                    condition: zero,
                    places,
                    then: self.value(then).unwrap_or(zero),
                    otherwise: self.value(otherwise).unwrap_or(zero),
                }
            }
        };
        self.plan.forward.push(step);
    }

    /// The value of a node, or of one that is 0 everywhere.
    fn value_or_zero(&mut self, id: NodeId) -> BufferId {
        if let Some(buffer) = self.value(id) {
            return buffer;
        }
        let rows = self.tape.nodes()[id].rows;
        let dst = self.buffer(rows, 1);
        self.plan.values[id] = Some(dst);
        self.plan.forward.push(Step::Linear {
            dst,
            zeros: vec![Zero {
                row: 0,
                rows,
                place: 0,
                len: 1,
            }],
            terms: Vec::new(),
            shift: None,
        });
        dst
    }

    /// How each input of a linear node enters it.
    fn contributions(&self, id: NodeId) -> Vec<Contribution> {
        let node = &self.tape.nodes()[id];
        let mut row = 0;
        let mut all = Vec::new();
        for (place, &input) in node.inputs.iter().enumerate() {
            let rows = self.tape.nodes()[input].rows;
            let mut contribution = Contribution {
                input,
                input_row: 0,
                input_step: 1,
                row: 0,
                rows: node.rows,
                planes: Vec::new(),
            };
            let mut scale = 1.0;
            match &node.op {
                Op::Linear { factors, .. } => scale = factors[place],
                Op::Stack => {
                    contribution.row = row;
                    contribution.rows = rows;
                    row += rows;
                }
                Op::Row(r) => contribution.input_row = *r,
                Op::Broadcast => contribution.input_step = 0,
                _ => {}
            }
            let inputs = self.planes(input);
            for (to, plane) in self.planes(id).iter().enumerate() {
                let sources = match &node.op {
                    Op::Derivative(c) => plane.derivative_sources(*c),
                    Op::Laplacian(set) => {
                        let collapsed = inputs.contains(&Plane::Laplacian(set.clone()));
                        plane.laplacian_sources(set, collapsed)
                    }
                    _ => vec![(plane.clone(), 1.0)],
                };
                for (source, factor) in sources {
                    if let Some(from) = inputs.position(&source) {
                        contribution.planes.push((from, to, scale * factor));
                    }
                }
            }
            all.push(contribution);
        }
        all
    }

    fn linear(&mut self, id: NodeId, dst: BufferId, shift: Option<(usize, f64)>) -> Step {
        let contributions = self.contributions(id);
        let mut fill = Fill::new(self.tape.nodes()[id].rows, self.planes(id).len(), true);
        let mut terms = Vec::new();
        for c in &contributions {
            let Some(src) = self.value(c.input) else {
                continue;
            };
            for (from, to, factor) in &c.planes {
                terms.push(Term {
                    src,
                    src_row: c.input_row,
                    src_step: c.input_step,
                    dst_row: c.row,
                    dst_step: 1,
                    rows: c.rows,
                    run: Run {
                        src: *from,
                        dst: *to,
                        len: 1,
                    },
                    factor: *factor,
                    mode: fill.mode(c.row, c.rows, *to),
                });
            }
        }
        Step::Linear {
            dst,
            zeros: fill.zeros(),
            terms: merged(terms),
            shift,
        }
    }

    fn product(&mut self, id: NodeId, dst: BufferId) -> Step {
        let inputs = &self.tape.nodes()[id].inputs;
        let (a, b) = (inputs[0], inputs[1]);
        let mut table = Table::default();
        for (place, plane) in self.planes(id).iter().enumerate() {
            let pairs = factor_pairs(plane, self.planes(a), self.planes(b));
            if a == b {
                table.push_symmetric(place, &pairs);
            } else {
                table.push(place, &[], &pairs);
            }
        }
        Step::Bilinear {
            dst,
            a: self.value_or_zero(a),
            b: self.value_or_zero(b),
            table,
            mode: Mode::Overwrite,
            guarded: false,
        }
    }

    /// Whether an elemental may write over its argument: nobody else reads that, and the
    /// planes are the same.
    fn in_place(&self, id: NodeId) -> bool {
        let z = self.tape.nodes()[id].inputs[0];
        self.sweep != Sweep::Inspect
            && self.readers[z] == 1
            && matches!(self.tape.nodes()[z].op, Op::Affine { .. })
            && self.planes(z) == self.planes(id)
    }

    fn compose(&mut self, id: NodeId, v: BufferId, elemental: Elemental) -> Step {
        let node = &self.tape.nodes()[id];
        let z = node.inputs[0];
        let argument = self.value_or_zero(z);
        let argument_planes: Planes = if self.planes(z).is_empty() {
            std::iter::once(Plane::value()).collect()
        } else {
            self.planes(z).clone()
        };
        let own = self.planes(id).clone();
        // Planes of f'(z) that the reverse sweep reads: all i with i + j = k for a plane j
        // of z and a plane k of v.
        let derivative: Planes = if self.differentiates(z) {
            let every = generated(&own.closed(), &argument_planes);
            own.iter()
                .flat_map(|k| factor_pairs(k, &every, &argument_planes))
                .filter_map(|(i, _)| every.get(i).cloned())
                .collect()
        } else {
            Planes::default()
        };
        // Below a selection f' may be NaN where the adjoint is 0: it is stored, and guarded.
        let from_output = elemental
            .riccati()
            .filter(|_| own == own.closed() && !self.guarded[id]);
        let stored = match from_output {
            Some(_) => derivative
                .iter()
                .filter(|p| p.is_value())
                .cloned()
                .collect(),
            None => derivative.clone(),
        };
        let program = Composition::new(&argument_planes, &own, &stored);
        self.plan.scratch = self.plan.scratch.max(program.scratch);
        let d = (!derivative.is_empty()).then(|| {
            let d = self.buffer(node.rows, stored.len());
            self.derivatives[id] = Some(match from_output {
                Some([linear, square]) => Derivative::FromOutput {
                    slope: d,
                    planes: derivative,
                    linear,
                    square,
                },
                None => Derivative::Stored(d, derivative),
            });
            d
        });
        Step::Compose {
            v,
            d,
            z: (argument != v).then_some(argument),
            elemental,
            program,
        }
    }

    fn affine(&mut self, id: NodeId, dst: BufferId, weight: usize, bias: Option<usize>) -> Step {
        let node = &self.tape.nodes()[id];
        let input = node.inputs[0];
        let weight = self.weight(id, weight);
        let (runs, columns) = self.affine_planes(id, input);
        Step::Affine {
            dst,
            src: self.value_or_zero(input),
            weight,
            bias,
            value: self.planes(id).position(&Plane::value()),
            runs,
            columns,
        }
    }

    fn weight(&mut self, id: NodeId, offset: usize) -> usize {
        let node = &self.tape.nodes()[id];
        self.weights.place(WeightKey {
            offset,
            rows: node.rows,
            columns: self.tape.nodes()[node.inputs[0]].rows,
        })
    }

    /// Which planes of an affine map are multiplied out, and which are columns of W.
    fn affine_planes(&self, id: NodeId, input: NodeId) -> (Vec<Run>, Vec<ColumnSum>) {
        let own = self.planes(id);
        let mut columns = Vec::new();
        let mut runs: Vec<Run> = Vec::new();
        for (dst, plane) in own.iter().enumerate() {
            match &self.held[input].constant {
                Some(rows) if !plane.is_value() => columns.push(ColumnSum {
                    place: dst,
                    parts: column_sum(rows, plane),
                }),
                _ => {
                    if let Some(src) = self.planes(input).position(plane) {
                        push_run(&mut runs, src, dst);
                    }
                }
            }
        }
        (runs, columns)
    }

    /// Where the residuals are, and where their seeds go.
    fn seed(&mut self) {
        for &root in self.tape.roots() {
            let value = self.value(root).filter(|_| !self.planes(root).is_empty());
            let adjoint = (value.is_some() && self.differentiates(root)).then(|| {
                self.adjoints[root].unwrap_or_else(|| {
                    let adjoint = self.buffer(1, self.planes(root).len());
                    self.adjoints[root] = Some(adjoint);
                    self.plan.seeded.push(adjoint);
                    adjoint
                })
            });
            self.plan.roots.push(Root { value, adjoint });
        }
    }

    /// The adjoint buffer of a node, and whether it is new.
    fn adjoint(&mut self, id: NodeId) -> (BufferId, bool) {
        if let Some(buffer) = self.adjoints[id] {
            return (buffer, false);
        }
        let buffer = self.buffer(self.tape.nodes()[id].rows, self.planes(id).len());
        self.adjoints[id] = Some(buffer);
        (buffer, true)
    }

    fn reverse(&mut self, id: NodeId) {
        let Some(adjoint) = self.adjoints[id] else {
            return;
        };
        let node = &self.tape.nodes()[id];
        match &node.op {
            Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Detach => {}
            Op::Parameter(index) => self.plan.reverse.push(Step::ParameterAdjoint {
                adjoint,
                index: *index,
            }),
            Op::Linear { .. }
            | Op::Stack
            | Op::Row(_)
            | Op::Broadcast
            | Op::Derivative(_)
            | Op::Laplacian(_) => {
                for contribution in self.contributions(id) {
                    self.linear_adjoint(adjoint, &contribution);
                }
            }
            Op::Product => {
                let (a, b) = (node.inputs[0], node.inputs[1]);
                self.contract(id, adjoint, a, b);
                self.contract(id, adjoint, b, a);
            }
            Op::Elemental(_) => {
                let z = node.inputs[0];
                match self.derivatives[id].clone() {
                    Some(Derivative::Stored(d, planes)) => {
                        self.contract_into(id, adjoint, z, d, &planes);
                    }
                    Some(Derivative::FromOutput {
                        slope,
                        planes,
                        linear,
                        square,
                    }) => {
                        let rules = (
                            self.riccati(id, &planes, linear, square),
                            self.quadratic_adjoint(id, z, linear, square),
                        );
                        self.compose_adjoint(id, adjoint, z, slope, &planes, rules);
                    }
                    None => {}
                }
            }
            Op::Affine { weight, bias } => self.affine_adjoint(id, adjoint, *weight, *bias),
            Op::Select { or_equal } => {
                let or_equal = *or_equal;
                let inputs = node.inputs.clone();
                for (branch, then) in [(inputs[1], true), (inputs[2], false)] {
                    if !self.differentiates(branch) || self.planes(branch).is_empty() {
                        continue;
                    }
                    let places = self
                        .planes(branch)
                        .iter()
                        .map(|p| self.planes(id).position(p))
                        .collect();
                    let (dst, new) = self.adjoint(branch);
                    let condition = self.value_or_zero(inputs[0]);
                    self.plan.reverse.push(Step::SelectAdjoint {
                        adjoint,
                        or_equal,
                        condition,
                        dst,
                        then,
                        places,
                        mode: if new {
                            Mode::Overwrite
                        } else {
                            Mode::Accumulate
                        },
                    });
                }
            }
        }
    }

    fn linear_adjoint(&mut self, adjoint: BufferId, c: &Contribution) {
        if !self.differentiates(c.input) || c.planes.is_empty() {
            return;
        }
        let (dst, new) = self.adjoint(c.input);
        let rows = self.tape.nodes()[c.input].rows;
        let mut fill = Fill::new(rows, self.planes(c.input).len(), new);
        let mut terms = Vec::new();
        for &(from, to, factor) in &c.planes {
            let (first, step, count) = if c.input_step == 0 {
                // Rows that were repeated add up: the first overwrites, the others add.
                (0, 0, 1)
            } else {
                (c.input_row, 1, c.rows)
            };
            let term = |src_row: usize, rows: usize, mode: Mode| Term {
                src: adjoint,
                src_row,
                src_step: 1,
                dst_row: first,
                dst_step: step,
                rows,
                run: Run {
                    src: to,
                    dst: from,
                    len: 1,
                },
                factor,
                mode,
            };
            let mode = fill.mode(first, count, from);
            if step == 0 {
                terms.push(term(c.row, 1, mode));
                terms.push(term(c.row + 1, c.rows - 1, Mode::Accumulate));
            } else {
                terms.push(term(c.row, c.rows, mode));
            }
        }
        self.plan.reverse.push(Step::Linear {
            dst,
            zeros: fill.zeros(),
            terms: merged(terms),
            shift: None,
        });
    }

    /// The adjoint of a product in one factor: `contract` with the other.
    fn contract(&mut self, id: NodeId, adjoint: BufferId, factor: NodeId, other: NodeId) {
        if !self.differentiates(factor) || self.planes(factor).is_empty() {
            return;
        }
        let Some(values) = self.value(other).filter(|_| !self.planes(other).is_empty()) else {
            return;
        };
        let planes = self.planes(other).clone();
        self.contract_into(id, adjoint, factor, values, &planes);
    }

    /// `input̄_j (=|+=) Σ e_i v̄_k` over i + j = k, e being a jet in a buffer.
    fn contract_into(
        &mut self,
        id: NodeId,
        adjoint: BufferId,
        input: NodeId,
        jet: BufferId,
        planes: &Planes,
    ) {
        let table = self.contraction(id, input, planes);
        let guarded = self.guarded[id];
        let (dst, new) = self.adjoint(input);
        self.plan.reverse.push(Step::Bilinear {
            dst,
            a: jet,
            b: adjoint,
            table,
            mode: if new {
                Mode::Overwrite
            } else {
                Mode::Accumulate
            },
            guarded,
        });
    }

    /// Multiplication by a jet on `planes`, transposed: from planes of `id` to those of `input`.
    fn contraction(&self, id: NodeId, input: NodeId, planes: &Planes) -> Table {
        let target = self.planes(input);
        let mut pairs: Vec<Vec<(usize, usize)>> = vec![Vec::new(); target.len()];
        for (k, plane) in self.planes(id).iter().enumerate() {
            for (i, j) in factor_pairs(plane, planes, target) {
                pairs[j].push((i, k));
            }
        }
        let mut table = Table::default();
        for (j, pairs) in pairs.iter().enumerate() {
            table.push(j, &[], pairs);
        }
        table
    }

    /// The planes of f' = a + b·f + c·f² but for its value.
    fn riccati(&self, id: NodeId, planes: &Planes, linear: f64, square: f64) -> Riccati {
        let own = self.planes(id);
        let mut rule = Riccati::new(linear, square);
        for (place, plane) in planes.iter().enumerate().filter(|(_, p)| !p.is_value()) {
            rule.push(place, own.position(plane), &factor_pairs(plane, own, own));
        }
        rule
    }

    /// The adjoint as one kernel, where v is of second order at most.
    fn quadratic_adjoint(
        &self,
        id: NodeId,
        z: NodeId,
        linear: f64,
        square: f64,
    ) -> Option<QuadraticAdjoint> {
        let (own, target) = (self.planes(id), self.planes(z));
        let value = Plane::value();
        if own.order() > 2 || own.position(&value) != Some(0) || target.position(&value) != Some(0)
        {
            return None;
        }
        let firsts: Planes = own.iter().filter(|p| p.order() == 1).cloned().collect();
        let planes: Vec<_> = own
            .iter()
            .enumerate()
            .skip(1)
            .map(|(place, plane)| {
                let pairs = factor_pairs(plane, &firsts, &firsts)
                    .into_iter()
                    .map(|(i, j)| (i + 1, j + 1))
                    .collect();
                (place, target.position(plane), pairs)
            })
            .collect();
        let zeros: Vec<usize> = target
            .iter()
            .enumerate()
            .filter(|(_, plane)| !own.contains(plane))
            .map(|(place, _)| place)
            .collect();
        Some(QuadraticAdjoint::new(linear, square, &planes, &zeros))
    }

    fn compose_adjoint(
        &mut self,
        id: NodeId,
        adjoint: BufferId,
        z: NodeId,
        slope: BufferId,
        planes: &Planes,
        (rule, quadratic): (Riccati, Option<QuadraticAdjoint>),
    ) {
        let Some(v) = self.value(id) else {
            return;
        };
        let table = self.contraction(id, z, planes);
        // Scratch: the jet of f', then the adjoint.
        let scratch = planes.len() + self.planes(id).len();
        self.plan.scratch = self.plan.scratch.max(scratch);
        let in_place = self.adjoints[z].is_none() && self.planes(z) == self.planes(id);
        if in_place {
            self.adjoints[z] = Some(adjoint);
        }
        let (dst, new) = self.adjoint(z);
        self.plan.reverse.push(Step::ComposeAdjoint {
            dst,
            adjoint: (!in_place).then_some(adjoint),
            v,
            slope,
            rule,
            quadratic,
            planes: planes.len(),
            table,
            mode: if new || in_place {
                Mode::Overwrite
            } else {
                Mode::Accumulate
            },
        });
    }

    fn affine_adjoint(&mut self, id: NodeId, zbar: BufferId, weight: usize, bias: Option<usize>) {
        let input = self.tape.nodes()[id].inputs[0];
        let weight = self.weight(id, weight);
        let (runs, columns) = self.affine_planes(id, input);
        let src = self.value_or_zero(input);
        let abar = (self.differentiates(input) && !runs.is_empty()).then(|| {
            let (dst, new) = self.adjoint(input);
            let rows = self.tape.nodes()[input].rows;
            let mut fill = Fill::new(rows, self.planes(input).len(), new);
            let mut mode = Mode::Accumulate;
            for run in &runs {
                for place in run.src..run.src + run.len {
                    mode = fill.mode(0, rows, place);
                }
            }
            (dst, mode, fill.zeros())
        });
        let guarded = self.guarded[id];
        self.plan.reverse.push(Step::AffineAdjoint {
            zbar,
            src,
            abar,
            weight,
            bias,
            value: self.planes(id).position(&Plane::value()),
            runs,
            columns,
            guarded,
        });
    }
}

/// How an input enters a linear node.
struct Contribution {
    input: NodeId,
    input_row: usize,
    input_step: usize,
    row: usize,
    rows: usize,
    /// From a plane of the input to a plane of the node, times what.
    planes: Vec<(usize, usize, f64)>,
}

/// Which numbers of a buffer have been written, to tell what is to be overwritten, added
/// to, or zeroed.
struct Fill {
    rows: usize,
    /// For each plane, ranges of rows written.
    written: Vec<BTreeSet<(usize, usize)>>,
    new: bool,
}

impl Fill {
    fn new(rows: usize, planes: usize, new: bool) -> Self {
        Self {
            rows,
            written: vec![BTreeSet::new(); planes],
            new,
        }
    }

    fn mode(&mut self, row: usize, rows: usize, place: usize) -> Mode {
        if self.new && self.written[place].insert((row, rows)) {
            Mode::Overwrite
        } else {
            Mode::Accumulate
        }
    }

    /// What is left to be zeroed, before anything is written.
    fn zeros(&self) -> Vec<Zero> {
        let mut zeros: Vec<Zero> = Vec::new();
        if !self.new {
            return zeros;
        }
        for (place, ranges) in self.written.iter().enumerate() {
            let mut next = 0;
            let mut push = |row: usize, rows: usize| {
                if rows == 0 {
                    return;
                }
                match zeros
                    .iter_mut()
                    .find(|z| z.row == row && z.rows == rows && z.place + z.len == place)
                {
                    Some(zero) => zero.len += 1,
                    None => zeros.push(Zero {
                        row,
                        rows,
                        place,
                        len: 1,
                    }),
                }
            };
            for &(row, rows) in ranges {
                push(next, row.saturating_sub(next));
                next = next.max(row + rows);
            }
            push(next, self.rows - next);
        }
        zeros
    }
}

/// Joins terms of adjacent planes.
fn merged(terms: Vec<Term>) -> Vec<Term> {
    let mut out: Vec<Term> = Vec::with_capacity(terms.len());
    for term in terms {
        if let Some(last) = out.last_mut()
            && (last.src, last.src_row, last.src_step) == (term.src, term.src_row, term.src_step)
            && (last.dst_row, last.dst_step, last.rows) == (term.dst_row, term.dst_step, term.rows)
            && last.factor == term.factor
            && last.mode == term.mode
            && last.run.src + last.run.len == term.run.src
            && last.run.dst + last.run.len == term.run.dst
        {
            last.run.len += term.run.len;
        } else {
            out.push(term);
        }
    }
    out
}

fn push_run(runs: &mut Vec<Run>, src: usize, dst: usize) {
    match runs.last_mut() {
        Some(run) if run.src + run.len == src && run.dst + run.len == dst => run.len += 1,
        _ => runs.push(Run { src, dst, len: 1 }),
    }
}

/// The columns of W whose combination is this plane of `W·input`.
fn column_sum(rows: &ConstantRows, plane: &Plane) -> Vec<(usize, f64)> {
    rows.iter()
        .enumerate()
        .flat_map(|(column, planes)| {
            planes
                .iter()
                .filter(|(p, _)| p == plane)
                .map(move |&(_, factor)| (column, factor))
        })
        .collect()
}

impl Composition {
    /// v on the planes `own` and d on the planes `derivative`, from z on `argument`.
    fn new(argument: &Planes, own: &Planes, derivative: &Planes) -> Self {
        let wanted: Planes = own.iter().chain(derivative).cloned().collect();
        let order = wanted.order();
        let coefficients = match derivative.is_empty() {
            true => order,
            false => order.max(derivative.order() + 1),
        };
        let scaled = coefficients + 1;
        let argument_place = scaled + derivative.order();
        let steps: Planes = argument.iter().filter(|p| !p.is_value()).cloned().collect();

        // support[m]: planes where δ^m can be non-zero; need[m]: those that are computed.
        let closed = wanted.closed();
        let mut support: Vec<Planes> = vec![Planes::default(), steps.clone()];
        for m in 2..=order {
            let planes = closed
                .iter()
                .filter(|p| !factor_pairs(p, &steps, &support[m - 1]).is_empty())
                .cloned()
                .collect();
            support.push(planes);
        }
        let mut need = vec![BTreeSet::new(); order + 1];
        for m in (2..=order).rev() {
            let targets: Vec<Plane> = wanted
                .iter()
                .filter(|p| support[m].contains(p))
                .cloned()
                .chain(std::mem::take(&mut need[m]))
                .collect();
            if m > 2 {
                let sources = targets
                    .iter()
                    .flat_map(|p| factor_pairs(p, &steps, &support[m - 1]))
                    .filter_map(|(_, j)| support[m - 1].get(j).cloned());
                let sources: Vec<Plane> = sources.collect();
                need[m - 1].extend(sources);
            }
            need[m] = targets.into_iter().collect();
        }

        // Places: powers follow z.
        let mut next = argument_place + argument.len();
        let mut levels: Vec<(usize, Planes)> = Vec::new();
        for planes in need.iter().skip(2) {
            let planes: Planes = planes.iter().cloned().collect();
            levels.push((next, planes.clone()));
            next += planes.len();
        }
        let argument_of = |p: &Plane| argument.position(p).map(|i| argument_place + i);
        let power_of = |m: usize, p: &Plane| match m {
            1 => (!p.is_value()).then(|| argument_of(p)).flatten(),
            _ => {
                let (base, planes) = &levels[m - 2];
                planes.position(p).map(|i| base + i)
            }
        };
        let powers = (2..=order)
            .map(|m| {
                let (base, planes) = &levels[m - 2];
                let mut table = Table::default();
                let lower = if m == 2 { &steps } else { &levels[m - 3].1 };
                for (place, plane) in planes.iter().enumerate() {
                    let pairs: Vec<(usize, usize)> = factor_pairs(plane, &steps, lower)
                        .into_iter()
                        .filter_map(|(i, j)| {
                            let left = argument_of(steps.get(i)?)?;
                            Some((left, power_of(m - 1, lower.get(j)?)?))
                        })
                        .collect();
                    if m == 2 {
                        table.push_symmetric(place, &pairs);
                    } else {
                        table.push(place, &[], &pairs);
                    }
                }
                (*base, table)
            })
            .filter(|(_, table)| !table.is_empty())
            .collect();
        let sums = |planes: &Planes, coefficient: &dyn Fn(usize) -> usize| {
            let mut table = Table::default();
            for (place, plane) in planes.iter().enumerate().filter(|(_, p)| !p.is_value()) {
                let pairs: Vec<(usize, usize)> = (1..=order)
                    .filter_map(|m| Some((coefficient(m), power_of(m, plane)?)))
                    .collect();
                table.push(place, &[], &pairs);
            }
            table
        };
        Self {
            order: coefficients,
            scaled,
            derivative_order: derivative.order(),
            argument: argument_place,
            powers,
            value: sums(own, &|m| m),
            derivative: sums(derivative, &|m| scaled + m - 1),
            quadratic: (order <= 2).then(|| {
                let mut quadratic = Quadratic::default();
                for plane in wanted.iter().filter(|p| !p.is_value()) {
                    quadratic.push(
                        argument.position(plane),
                        &factor_pairs(plane, &steps, &steps)
                            .into_iter()
                            .filter_map(|(i, j)| {
                                let place = |i: usize| argument.position(steps.get(i)?);
                                Some((place(i)?, place(j)?))
                            })
                            .collect::<Vec<_>>(),
                        own.position(plane),
                        derivative.position(plane),
                    );
                }
                quadratic
            }),
            value_place: own.position(&Plane::value()),
            scratch: next,
        }
    }
}

#[cfg(test)]
mod tests;
