//! The plan: a tape as steps over buffers in one arena, with their lifetimes over forward
//! and reverse time. Knows sizes and order, no numbers.

use crate::elemental::{Elemental, falling};
use crate::kernel::jet::{Mode, Quadratic, QuadraticAdjoint, Riccati, Table};
use crate::plane::{Plane, Planes, factor_pairs, generated};
use crate::tape::{ConstantRows, Held, NodeId, Op, Tape};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::{Discriminant, discriminant};
use std::rc::Rc;

/// Lanes are padded to a multiple of this: whole vectors in either precision, and loops
/// long enough for the compiler to vectorise.
pub(crate) const LANES: usize = 16;

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

impl WeightKey {
    /// Rows of what a product with the matrix, or its transpose, gives and takes.
    pub(crate) fn shape(self, transposed: bool) -> (usize, usize) {
        match transposed {
            false => (self.rows, self.columns),
            true => (self.columns, self.rows),
        }
    }

    /// Where in the matrix the weight is by which an input enters an output.
    pub(crate) fn place(self, transposed: bool, output: usize, input: usize) -> usize {
        match transposed {
            false => output * self.columns + input,
            true => input * self.columns + output,
        }
    }
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
    /// Several derivatives of one elemental at one argument.
    Family {
        /// Where each output goes.
        outputs: Vec<BufferId>,
        z: BufferId,
        elemental: Elemental,
        program: Family,
    },
    Affine {
        dst: BufferId,
        /// None where nothing is multiplied out.
        src: Option<BufferId>,
        weight: usize,
        /// Whether it is a product with Wᵀ.
        transposed: bool,
        bias: Option<usize>,
        /// Place of the value in dst.
        value: Option<usize>,
        runs: Vec<Run>,
        /// Planes that are not multiplied out.
        columns: Vec<ColumnSum>,
    },
    Guard {
        dst: BufferId,
        factor: BufferId,
        adjoint: BufferId,
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
        /// Whether W and b are numbers, without adjoints.
        held: bool,
        zbar: BufferId,
        src: Option<BufferId>,
        abar: Option<(BufferId, Mode, Vec<Zero>)>,
        weight: usize,
        transposed: bool,
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
    /// The same, with elementals computed anew in the reverse sweep where that saves
    /// memory: their arguments are kept, not their values and derivatives.
    Recompute,
    /// Values and a reverse sweep to all nodes, parameters or not, to look at: no buffer is
    /// reused.
    Trace,
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
    /// Adjoint buffer of each node.
    pub(crate) adjoints: Vec<Option<BufferId>>,
    /// How the reverse sweep gets at the jet of f'(z), for elementals.
    pub(crate) slopes: Vec<Option<Derivative>>,
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
            families: families(tape, held),
            read_back: Vec::new(),
            redone: vec![None; tape.nodes().len()],
            plan: Self {
                buffers: Vec::new(),
                forward: Vec::new(),
                reverse: Vec::new(),
                roots: Vec::new(),
                seeded: Vec::new(),
                scratch: 0,
                values: vec![None; tape.nodes().len()],
                adjoints: Vec::new(),
                slopes: Vec::new(),
                flops: 0,
            },
            derivatives: vec![None; tape.nodes().len()],
            readers: readers(tape),
            adjoints: vec![None; tape.nodes().len()],
        };
        builder.read_back = builder.read_back();
        for id in 0..tape.nodes().len() {
            builder.forward(id);
        }
        builder.seed();
        if sweep.goes_back() {
            for id in (0..tape.nodes().len()).rev() {
                builder.reverse(id);
            }
        }
        builder.plan.count_flops(builder.weights);
        builder.plan.live(sweep);
        Self {
            adjoints: builder.adjoints,
            slopes: builder.derivatives,
            ..builder.plan
        }
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
                    weight,
                    runs,
                    abar,
                    held,
                    ..
                } => product(*weight, runs) * (usize::from(!held) + usize::from(abar.is_some())),
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
        if sweep.is_watched() {
            for buffer in &mut self.buffers {
                buffer.death = end;
            }
        }
    }

    /// Planes, summed over the rows, that the forward pass leaves for the reverse sweep.
    pub(crate) fn kept(&self) -> usize {
        (0..self.buffers.len())
            .filter(|&id| self.keeps(id))
            .map(|id| self.buffers[id].rows * self.buffers[id].planes)
            .sum()
    }

    /// Whether the forward pass leaves a buffer for the reverse sweep.
    pub(crate) fn keeps(&self, id: BufferId) -> bool {
        let (buffer, seed_time) = (&self.buffers[id], self.forward.len());
        buffer.birth < seed_time && buffer.death > seed_time
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
            Self::Family { outputs, z, .. } => {
                outputs.iter().for_each(|&id| touch(id));
                touch(*z);
            }
            Self::Affine { dst, src, .. } => {
                touch(*dst);
                src.iter().for_each(|&id| touch(id));
            }
            Self::Guard {
                dst,
                factor,
                adjoint,
            } => [dst, factor, adjoint].into_iter().for_each(|&id| touch(id)),
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
                src.iter().for_each(|&id| touch(id));
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

impl Sweep {
    fn goes_back(self) -> bool {
        matches!(self, Self::Reverse | Self::Recompute | Self::Trace)
    }

    /// Whether all numbers are to be there in the end.
    fn is_watched(self) -> bool {
        matches!(self, Self::Inspect | Self::Trace)
    }
}

/// For each elemental that is held, the derivatives of one function at one argument that it
/// is one of: nodes and orders.
fn families(tape: &Tape, held: &[Held]) -> Vec<Rc<[(NodeId, usize)]>> {
    type Function = (NodeId, Discriminant<Elemental>, u64);
    let mut places: HashMap<Function, Vec<(NodeId, usize)>> = HashMap::new();
    let family = |id: NodeId| match &tape.nodes()[id].op {
        Op::Elemental(f) if !held[id].planes.is_empty() => {
            let (of, order) = f.family();
            Some((
                (tape.nodes()[id].inputs[0], discriminant(of), of.bits()),
                order,
            ))
        }
        _ => None,
    };
    for id in 0..held.len() {
        if let Some((key, order)) = family(id) {
            places.entry(key).or_default().push((id, order));
        }
    }
    let shared: HashMap<_, Rc<[(NodeId, usize)]>> = places
        .into_iter()
        .map(|(key, members)| (key, members.into()))
        .collect();
    let none: Rc<[(NodeId, usize)]> = Rc::new([]);
    (0..held.len())
        .map(|id| match family(id) {
            Some((key, _)) => shared[&key].clone(),
            None => none.clone(),
        })
        .collect()
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
pub(crate) enum Derivative {
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
    /// For elementals, all derivatives of the function at the same argument.
    families: Vec<Rc<[(NodeId, usize)]>>,
    /// Nodes whose values the reverse sweep reads, other than to compute elementals anew.
    read_back: Vec<bool>,
    /// Values of elementals that have been computed anew.
    redone: Vec<Option<BufferId>>,
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
        match self.sweep {
            Sweep::Trace => true,
            sweep => sweep.goes_back() && self.held[id].active,
        }
    }

    fn forward(&mut self, id: NodeId) {
        if self.planes(id).is_empty() || self.value(id).is_some() {
            return;
        }
        let node = &self.tape.nodes()[id];
        let rows = node.rows;
        let count = self.planes(id).len();
        if let Op::Elemental(_) = &node.op {
            let step = self.elementals(id);
            self.plan.forward.push(step);
            return;
        }
        let dst = self.buffer(rows, count);
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
            | Op::SumRows
            | Op::Derivative(_)
            | Op::Laplacian(_)
            | Op::Detach
            | Op::Elemental(_) => self.linear(id, dst, None),
            Op::Product => self.product(id, dst),
            Op::Affine { weight, bias } => self.affine(id, dst, *weight, *bias),
            Op::Transposed { weight } => self.affine(id, dst, *weight, None),
            Op::Guard => Step::Guard {
                dst,
                factor: self.value_or_zero(node.inputs[0]),
                adjoint: self.value_or_zero(node.inputs[1]),
            },
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
                row_step: 1,
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
                Op::SumRows => (contribution.row_step, contribution.rows) = (0, rows),
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
            let count = if c.row_step == 0 { 1 } else { c.rows };
            for (from, to, factor) in &c.planes {
                push_term(
                    &mut terms,
                    Term {
                        src,
                        src_row: c.input_row,
                        src_step: c.input_step,
                        dst_row: c.row,
                        dst_step: c.row_step,
                        rows: c.rows,
                        run: Run {
                            src: *from,
                            dst: *to,
                            len: 1,
                        },
                        factor: *factor,
                        mode: fill.mode(c.row, count, *to),
                    },
                );
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

    /// Nodes whose values the reverse sweep reads, other than to compute elementals anew.
    fn read_back(&self) -> Vec<bool> {
        let mut read = vec![false; self.held.len()];
        for (id, node) in self.tape.nodes().iter().enumerate() {
            if !self.differentiates(id) || self.planes(id).is_empty() {
                continue;
            }
            match &node.op {
                Op::Product => {
                    for (factor, other) in [(0, 1), (1, 0)] {
                        if self.differentiates(node.inputs[factor]) {
                            read[node.inputs[other]] = true;
                        }
                    }
                }
                Op::Affine { weight, .. } | Op::Transposed { weight } => {
                    read[node.inputs[0]] |= self.tape.varies(*weight);
                }
                Op::Select { .. } => read[node.inputs[0]] = true,
                Op::Elemental(_) => {
                    let slope = self.slope_planes(id);
                    read[id] |= !slope.is_empty() && self.slope_from_output(id).is_some();
                }
                _ => {}
            }
        }
        read
    }

    /// The value of a node where the reverse sweep reads it.
    fn value_back(&mut self, id: NodeId) -> BufferId {
        self.redo(id);
        self.redone[id].unwrap_or_else(|| self.value_or_zero(id))
    }

    /// The planes of an argument that has none, but is read: its value, 0.
    fn argument_planes(&self, z: NodeId) -> Planes {
        match self.planes(z).is_empty() {
            true => std::iter::once(Plane::value()).collect(),
            false => self.planes(z).clone(),
        }
    }

    /// Planes of f'(z) that the reverse sweep reads: all i with i + j = k for a plane j of z
    /// and a plane k of v.
    fn slope_planes(&self, id: NodeId) -> Planes {
        let z = self.tape.nodes()[id].inputs[0];
        if !self.differentiates(z) {
            return Planes::default();
        }
        let argument = self.argument_planes(z);
        let own = self.planes(id);
        let every = generated(&own.closed(), &argument);
        own.iter()
            .flat_map(|k| factor_pairs(k, &every, &argument))
            .filter_map(|(i, _)| every.get(i).cloned())
            .collect()
    }

    /// (b, c) where the reverse sweep gets f' = a + b·f + c·f² from f. Below a selection f'
    /// may be NaN where the adjoint is 0: it is stored, and guarded.
    fn slope_from_output(&self, id: NodeId) -> Option<[f64; 2]> {
        let own = self.planes(id);
        match &self.tape.nodes()[id].op {
            Op::Elemental(f) => f.riccati(),
            _ => None,
        }
        .filter(|_| *own == own.closed() && !self.guarded[id])
    }

    /// The planes of f'(z) that are stored for the reverse sweep.
    fn stored_slope(&self, id: NodeId) -> Planes {
        let planes = self.slope_planes(id);
        match self.slope_from_output(id) {
            Some(_) => planes.iter().filter(|p| p.is_value()).cloned().collect(),
            None => planes,
        }
    }

    /// The member of a family that is the derivative of another, and holds what is asked.
    fn slope_member(
        &self,
        family: &[(NodeId, usize)],
        order: usize,
        asked: &Planes,
    ) -> Option<usize> {
        family.iter().position(|&(id, other)| {
            other == order + 1 && asked.iter().all(|plane| self.planes(id).contains(plane))
        })
    }

    /// Whether a family is computed anew in the reverse sweep: where that keeps fewer planes.
    fn redoes(&self, family: &[(NodeId, usize)]) -> bool {
        let Some(&(first, _)) = family.first().filter(|_| self.sweep == Sweep::Recompute) else {
            return false;
        };
        let mut kept: Vec<bool> = family.iter().map(|&(id, _)| self.read_back[id]).collect();
        let mut planes = 0;
        for &(id, order) in family {
            let slope = self.stored_slope(id);
            match self.slope_member(family, order, &slope) {
                _ if slope.is_empty() => {}
                Some(member) => kept[member] = true,
                None => planes += slope.len(),
            }
        }
        for (&(id, _), kept) in family.iter().zip(kept) {
            planes += if kept { self.planes(id).len() } else { 0 };
        }
        let z = self.tape.nodes()[first].inputs[0];
        let instead = if self.read_back[z] {
            0
        } else {
            self.planes(z).len()
        };
        planes > instead
    }

    /// Whether an elemental may write over its argument: nobody else reads that, and the
    /// planes are the same.
    fn in_place(&self, id: NodeId) -> bool {
        let z = self.tape.nodes()[id].inputs[0];
        let product = matches!(
            self.tape.nodes()[z].op,
            Op::Affine { .. } | Op::Transposed { .. }
        );
        !self.sweep.is_watched()
            && self.readers[z] == self.families[id].len()
            && product
            && self.planes(z) == self.planes(id)
    }

    /// An elemental, with all other derivatives of the function at the same argument.
    fn elementals(&mut self, id: NodeId) -> Step {
        let family = self.families[id].clone();
        let z = self.value_or_zero(self.tape.nodes()[id].inputs[0]);
        let redoes = self.redoes(&family);
        let mut values = Vec::with_capacity(family.len());
        for &(member, _) in &*family {
            let buffer = match !redoes && !values.contains(&Some(z)) && self.in_place(member) {
                true => z,
                false => self.value_buffer(member),
            };
            self.plan.values[member] = Some(buffer);
            values.push(Some(buffer));
        }
        let outputs = self.family_outputs(&family, values, !redoes);
        self.family_step(&family, z, outputs)
    }

    /// Computes a family anew for the reverse sweep, the first time that it is read.
    fn redo(&mut self, id: NodeId) {
        let family = self.families[id].clone();
        let done = |id: NodeId| self.redone[id].is_some() || self.derivatives[id].is_some();
        if !self.redoes(&family) || family.iter().any(|&(member, _)| done(member)) {
            return;
        }
        let z = self.value_back(self.tape.nodes()[id].inputs[0]);
        let mut values = Vec::with_capacity(family.len());
        for &(member, _) in &*family {
            let in_place = !values.contains(&Some(z)) && self.in_place(member);
            values.push(match (self.read_back[member], in_place) {
                (true, true) => Some(z),
                (true, false) => Some(self.value_buffer(member)),
                (false, _) => None,
            });
        }
        let outputs = self.family_outputs(&family, values, true);
        for output in &outputs {
            if let Some(member) = output.member {
                self.redone[member] = Some(output.buffer);
            }
        }
        let step = self.family_step(&family, z, outputs);
        self.plan.reverse.push(step);
    }

    fn value_buffer(&mut self, id: NodeId) -> BufferId {
        self.buffer(self.tape.nodes()[id].rows, self.planes(id).len())
    }

    /// What a family makes: values for those members that have a place, and where wanted the
    /// jets of their derivatives, which may be the values of other members.
    fn family_outputs(
        &mut self,
        family: &[(NodeId, usize)],
        mut values: Vec<Option<BufferId>>,
        slopes: bool,
    ) -> Vec<FamilyOutput> {
        let mut outputs = Vec::new();
        for &(member, order) in family.iter().filter(|_| slopes) {
            let planes = self.stored_slope(member);
            if planes.is_empty() {
                continue;
            }
            let (slope, planes) = match self.slope_member(family, order, &planes) {
                Some(place) => {
                    let buffer = match values[place] {
                        Some(buffer) => buffer,
                        None => self.value_buffer(family[place].0),
                    };
                    values[place] = Some(buffer);
                    (buffer, self.planes(family[place].0).clone())
                }
                None => {
                    let buffer = self.buffer(self.tape.nodes()[member].rows, planes.len());
                    outputs.push(FamilyOutput {
                        member: None,
                        order: order + 1,
                        buffer,
                        planes: planes.clone(),
                    });
                    (buffer, planes)
                }
            };
            self.derivatives[member] = Some(match self.slope_from_output(member) {
                Some([linear, square]) => Derivative::FromOutput {
                    slope,
                    planes: self.slope_planes(member),
                    linear,
                    square,
                },
                None => Derivative::Stored(slope, planes),
            });
        }
        for (&(member, order), buffer) in family.iter().zip(values) {
            outputs.extend(buffer.map(|buffer| FamilyOutput {
                member: Some(member),
                order,
                buffer,
                planes: self.planes(member).clone(),
            }));
        }
        outputs.sort_by_key(|output| output.order);
        outputs
    }

    fn family_step(
        &mut self,
        family: &[(NodeId, usize)],
        z: BufferId,
        outputs: Vec<FamilyOutput>,
    ) -> Step {
        let node = &self.tape.nodes()[family[0].0];
        let elemental = match &node.op {
            Op::Elemental(f) => f.family().0.clone(),
            _ => unreachable!("a family of elementals"),
        };
        let argument = self.argument_planes(node.inputs[0]);
        let none = Planes::default();
        let pair = match &outputs[..] {
            [v] if v.order == 0 => Some((v, None)),
            [v, d] if (v.order, d.order) == (0, 1) && d.planes.contains(&Plane::value()) => {
                Some((v, Some(d)))
            }
            _ => None,
        };
        // A composition writes v over z at most; a family may write any of its members there.
        let pair = pair.filter(|(_, d)| d.is_none_or(|d| d.buffer != z));
        if let Some((v, d)) = pair {
            let slope = d.map_or(&none, |d| &d.planes);
            let program = Composition::new(&argument, &v.planes, slope);
            self.plan.scratch = self.plan.scratch.max(program.scratch);
            return Step::Compose {
                v: v.buffer,
                d: d.map(|d| d.buffer),
                z: (v.buffer != z).then_some(z),
                elemental,
                program,
            };
        }
        let program = Family::new(&argument, &outputs);
        self.plan.scratch = self.plan.scratch.max(program.scratch);
        Step::Family {
            outputs: outputs.iter().map(|output| output.buffer).collect(),
            z,
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
            src: (!runs.is_empty()).then(|| self.value_or_zero(input)),
            weight,
            transposed: matches!(node.op, Op::Transposed { .. }),
            bias,
            value: self.planes(id).position(&Plane::value()),
            runs,
            columns,
        }
    }

    fn weight(&mut self, id: NodeId, offset: usize) -> usize {
        let node = &self.tape.nodes()[id];
        let (mut rows, mut columns) = (node.rows, self.tape.nodes()[node.inputs[0]].rows);
        if let Op::Transposed { .. } = node.op {
            std::mem::swap(&mut rows, &mut columns);
        }
        self.weights.place(WeightKey {
            offset,
            rows,
            columns,
        })
    }

    /// Which planes of an affine map are multiplied out, and which are columns of W.
    fn affine_planes(&self, id: NodeId, input: NodeId) -> (Vec<Run>, Vec<ColumnSum>) {
        let own = self.planes(id);
        let mut columns = Vec::new();
        let mut runs: Vec<Run> = Vec::new();
        let held = &self.held[input];
        for (dst, plane) in own.iter().enumerate() {
            let parts = match (plane.is_value(), &held.constant, &held.numbers) {
                (false, Some(rows), _) => Some(column_sum(rows, plane)),
                (true, _, Some(numbers)) => {
                    let parts = numbers.iter().copied().enumerate();
                    Some(parts.filter(|(_, number)| *number != 0.0).collect())
                }
                _ => None,
            };
            if let Some(parts) = parts {
                columns.push(ColumnSum { place: dst, parts });
            } else if let Some(src) = self.planes(input).position(plane) {
                push_run(&mut runs, src, dst);
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
            Op::Coordinate(_) | Op::Data(_) | Op::Constant(_) | Op::Detach | Op::Guard => {}
            Op::Parameter(index) => self.plan.reverse.push(Step::ParameterAdjoint {
                adjoint,
                index: *index,
            }),
            Op::Linear { .. }
            | Op::Stack
            | Op::Row(_)
            | Op::Broadcast
            | Op::SumRows
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
                self.redo(id);
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
            Op::Transposed { weight } => self.affine_adjoint(id, adjoint, *weight, None),
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
                    let condition = self.value_back(inputs[0]);
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
        // Rows that were repeated add up in one.
        let count = if c.input_step == 0 { 1 } else { c.rows };
        for &(from, to, factor) in &c.planes {
            push_term(
                &mut terms,
                Term {
                    src: adjoint,
                    src_row: c.row,
                    src_step: c.row_step,
                    dst_row: c.input_row,
                    dst_step: c.input_step,
                    rows: c.rows,
                    run: Run {
                        src: to,
                        dst: from,
                        len: 1,
                    },
                    factor,
                    mode: fill.mode(c.input_row, count, from),
                },
            );
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
        if self.planes(other).is_empty() {
            return;
        }
        let values = self.value_back(other);
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
        let v = self.value_back(id);
        let table = self.contraction(id, z, planes);
        // Scratch: the jet of f', then the adjoint.
        let scratch = planes.len() + self.planes(id).len();
        self.plan.scratch = self.plan.scratch.max(scratch);
        let in_place = !self.sweep.is_watched()
            && self.adjoints[z].is_none()
            && self.planes(z) == self.planes(id);
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
        let held = !self.tape.varies(weight);
        let weight = self.weight(id, weight);
        let (runs, columns) = self.affine_planes(id, input);
        let src = (!held && !runs.is_empty()).then(|| self.value_back(input));
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
            held,
            zbar,
            src,
            abar,
            weight,
            transposed: matches!(self.tape.nodes()[id].op, Op::Transposed { .. }),
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
    /// 0 where one row of the input is repeated.
    input_step: usize,
    row: usize,
    /// 0 where the rows of the input add up in one.
    row_step: usize,
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

/// Adds a term. Where rows add up in one, the first does what the mode says and the others
/// are added.
fn push_term(terms: &mut Vec<Term>, term: Term) {
    if term.dst_step == 0 && term.rows > 1 {
        let rest = Term {
            src_row: term.src_row + term.src_step,
            rows: term.rows - 1,
            mode: Mode::Accumulate,
            ..term.clone()
        };
        terms.extend([Term { rows: 1, ..term }, rest]);
    } else {
        terms.push(term);
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

/// The powers of δ = z − z_0 that planes need: where they are in scratch, and their products.
struct Powers {
    argument: (usize, Planes),
    /// Each power from the second: its first place, and the planes that are computed.
    levels: Vec<(usize, Planes)>,
    products: Vec<(usize, Table)>,
    /// The first place after them.
    end: usize,
}

impl Powers {
    /// For these planes of functions of z, with z from the place `place` on.
    fn new(argument: &Planes, wanted: &Planes, place: usize) -> Self {
        let order = wanted.order();
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
        let mut powers = Self {
            argument: (place, argument.clone()),
            levels: Vec::new(),
            products: Vec::new(),
            end: place + argument.len(),
        };
        for planes in need.iter().skip(2) {
            let planes: Planes = planes.iter().cloned().collect();
            let base = powers.end;
            powers.end += planes.len();
            powers.levels.push((base, planes));
        }
        powers.products = (2..=order)
            .map(|m| {
                let (base, planes) = &powers.levels[m - 2];
                let mut table = Table::default();
                let lower = if m == 2 {
                    &steps
                } else {
                    &powers.levels[m - 3].1
                };
                for (place, plane) in planes.iter().enumerate() {
                    let pairs: Vec<(usize, usize)> = factor_pairs(plane, &steps, lower)
                        .into_iter()
                        .filter_map(|(i, j)| {
                            let left = powers.place(1, steps.get(i)?)?;
                            Some((left, powers.place(m - 1, lower.get(j)?)?))
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
        powers
    }

    /// Where a plane of δ^m is.
    fn place(&self, m: usize, plane: &Plane) -> Option<usize> {
        let (base, planes) = match m {
            1 if plane.is_value() => return None,
            1 => &self.argument,
            _ => &self.levels[m - 2],
        };
        planes.position(plane).map(|i| base + i)
    }

    /// Σ_m coefficient(m)·δ^m on these planes, without the value.
    fn sums(&self, planes: &Planes, coefficient: impl Fn(usize) -> usize) -> Table {
        let mut table = Table::default();
        for (place, plane) in planes.iter().enumerate().filter(|(_, p)| !p.is_value()) {
            let pairs: Vec<(usize, usize)> = (1..=self.levels.len() + 1)
                .filter_map(|m| Some((coefficient(m), self.place(m, plane)?)))
                .collect();
            table.push(place, &[], &pairs);
        }
        table
    }
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
        let powers = Powers::new(argument, &wanted, argument_place);
        let steps: Planes = argument.iter().filter(|p| !p.is_value()).cloned().collect();
        Self {
            order: coefficients,
            scaled,
            derivative_order: derivative.order(),
            argument: argument_place,
            value: powers.sums(own, |m| m),
            derivative: powers.sums(derivative, |m| scaled + m - 1),
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
            scratch: powers.end,
            powers: powers.products,
        }
    }
}

/// What a family makes: f⁽ᵏ⁾(z) on some planes.
struct FamilyOutput {
    /// The node whose value it is, if it is one.
    member: Option<NodeId>,
    order: usize,
    buffer: BufferId,
    planes: Planes,
}

/// Several derivatives f⁽ᵏ⁾(z) as sums of products of scratch planes: `c_0 … c_K`, then z,
/// then the powers of δ = z − z_0, then for one k after the other `e_m = (m+k)!/m! c_{m+k}`.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    /// Taylor coefficients asked of the elemental: 0 to this order.
    pub(crate) order: usize,
    /// First place of z's planes.
    pub(crate) argument: usize,
    /// Each level of powers: the place of its first plane, and its products.
    pub(crate) powers: Vec<(usize, Table)>,
    /// One derivative after the other.
    pub(crate) members: Vec<FamilyMember>,
    /// First place of the `e_m`, m from 1.
    pub(crate) scaled: usize,
    /// Planes of scratch.
    pub(crate) scratch: usize,
}

/// One derivative of a family.
#[derive(Debug, Clone)]
pub(crate) struct FamilyMember {
    /// Place of the value.
    pub(crate) value_place: Option<usize>,
    /// `(m+k)!/m!` and the place of c_{m+k}, m from 0.
    pub(crate) coefficients: Vec<(f64, usize)>,
    /// The planes but the value.
    pub(crate) planes: Table,
}

impl Family {
    fn new(argument: &Planes, outputs: &[FamilyOutput]) -> Self {
        let planes = || outputs.iter().flat_map(|output| output.planes.iter());
        let wanted: Planes = planes().cloned().collect();
        let orders = outputs.iter().map(|o| o.order + o.planes.order());
        let coefficients = orders.max().unwrap_or(0);
        let place = coefficients + 1;
        let powers = Powers::new(argument, &wanted, place);
        let scaled = powers.end;
        let members = outputs
            .iter()
            .map(|output| FamilyMember {
                value_place: output.planes.position(&Plane::value()),
                coefficients: (output.order..=output.order + output.planes.order())
                    .map(|n| (falling(n, output.order), n))
                    .collect(),
                planes: powers.sums(&output.planes, |m| scaled + m - 1),
            })
            .collect();
        Self {
            order: coefficients,
            argument: place,
            members,
            scaled,
            scratch: scaled + wanted.order(),
            powers: powers.products,
        }
    }
}

#[cfg(test)]
mod tests;
