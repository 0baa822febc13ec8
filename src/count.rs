//! Counting: what an equation costs by jets, by nested reverse mode and by splits between
//! them, without running it; and which of them is the cheapest.
//! Knows plans, and no points.

use crate::elemental::Elemental;
use crate::error::Error;
use crate::kernel::simd::InstructionSet;
use crate::lower::{Lowering, lower, orders};
use crate::plan::{Plan, Run, Step, Sweep, WeightKey, WeightTable};
use crate::real::Real;
use crate::record::Equation;
use std::sync::Arc;

impl Equation {
    /// The same equation with its derivatives computed in another way. [`Lowering::Auto`]
    /// takes what the counts say is fastest in `f64` on this CPU.
    ///
    /// ```
    /// use dualtape::{Elemental::Tanh, Equation, Lowering, Parameters};
    ///
    /// let mut params = Parameters::new();
    /// let net = params.mlp("u", &[10, 32, 32, 1], Tanh)?;
    /// let names: Vec<String> = (0..10).map(|i| format!("x{i}")).collect();
    /// let energy = Equation::record_over("energy", &params, &names, |x| {
    ///     let [u] = net.at(x);
    ///     x.iter().map(|&x| u.d(x) * u.d(x)).sum::<dualtape::Field>()
    /// })?;
    /// let nested = energy.lowered(Lowering::NestedReverse)?;
    /// assert_eq!(nested.tape().sweeps().len(), 1, "one sweep for all coordinates");
    /// // Which is cheaper here, as the tape that is chosen shows.
    /// assert_eq!(energy.lowered(Lowering::Auto)?.tape().sweeps().len(), 1);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nested reverse mode that would record too many nodes.
    pub fn lowered(&self, lowering: Lowering) -> Result<Self, Error> {
        let inner = match lowering {
            Lowering::Jets => 0,
            Lowering::NestedReverse => self.order(),
            Lowering::Partial { inner } => inner.min(self.order()),
            Lowering::Auto => {
                let set = InstructionSet::detect();
                let time = |counts: &Counts| counts.nanoseconds::<f64>(64, set);
                let candidates = candidates(self, &[false]);
                let best = candidates.into_iter().min_by(|a, b| {
                    let (a, b) = (time(&a.counts), time(&b.counts));
                    a.total_cmp(&b)
                });
                return Ok(best.map_or_else(|| self.clone(), |best| best.equation));
            }
        };
        match inner {
            0 => Ok(self.clone()),
            _ => self.with_tape(lower(self.tape(), inner, usize::MAX)?),
        }
    }

    /// The highest order of its derivatives.
    fn order(&self) -> usize {
        orders(self.tape()).into_iter().max().unwrap_or(0)
    }
}

/// One way to compute an equation.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) lowering: Lowering,
    pub(crate) recompute: bool,
    pub(crate) equation: Equation,
    pub(crate) counts: Counts,
}

/// All ways to compute an equation that could be the cheapest, those with more jets first.
pub(crate) fn candidates(equation: &Equation, recompute: &[bool]) -> Vec<Candidate> {
    let order = equation.order();
    // Sweeps through sweeps only grow: the first tape that is out of proportion ends it.
    let limit = 64 * equation.tape().nodes().len() + 1024;
    let mut all = ways(equation, Lowering::Jets, recompute);
    for inner in 1..=order {
        let lowered = lower(equation.tape(), inner, limit);
        let Ok(lowered) = lowered.and_then(|tape| equation.with_tape(tape)) else {
            break;
        };
        let lowering = match inner == order {
            true => Lowering::NestedReverse,
            false => Lowering::Partial { inner },
        };
        all.extend(ways(&lowered, lowering, recompute));
    }
    all
}

/// A lowered equation with and without recomputation.
pub(crate) fn ways(lowered: &Equation, lowering: Lowering, recompute: &[bool]) -> Vec<Candidate> {
    let way = |&recompute: &bool| Candidate {
        lowering,
        recompute,
        equation: lowered.clone(),
        counts: Counts::counted(lowered, recompute),
    };
    recompute.iter().map(way).collect()
}

/// What loss and gradient of an equation cost, counted without running it.
///
/// ```
/// use dualtape::{Counts, Elemental::Tanh, Equation, Lowering, Parameters};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 64, 64, 1], Tanh)?;
/// let ks = Equation::record("kuramoto-sivashinsky", &params, ["t", "x"], |[t, x]| {
///     let [u] = net.at(&[t, x]);
///     u.d(t) + u * u.d(x) + u.d(x).d(x) + u.d(x).d(x).d(x).d(x)
/// })?;
/// let jets = Counts::of(&ks);
/// let nested = Counts::of(&ks.lowered(Lowering::NestedReverse)?);
/// assert_eq!((jets.nodes.len(), nested.nodes.len()), (1, 5), "Graph 1 to Graph 5");
/// assert!(2 * nested.matrix_flops > 3 * jets.matrix_flops);
/// // Bytes that the reverse sweep of a chunk of 64 points finds in memory.
/// assert!(2 * nested.kept_bytes::<f64>(64) > 5 * jets.kept_bytes::<f64>(64));
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Counts {
    /// Nodes that hold at least one plane: of Graph 1, of Graph 2, ….
    pub nodes: Vec<usize>,
    /// Planes, summed over the nodes.
    pub planes: usize,
    /// Floating-point operations of the matrix products, for one point.
    pub matrix_flops: usize,
    /// Products of planes outside of the matrix products: compositions, products of jets
    /// and their adjoints, summed over the rows, for one point.
    pub products: usize,
    /// Taylor coefficients of elementary functions, summed over the rows, for one point.
    pub coefficients: usize,
    work: Work,
    plan: Arc<Plan>,
}

impl Counts {
    /// Counts an equation.
    pub fn of(equation: &Equation) -> Self {
        Self::counted(equation, false)
    }

    /// Counts an equation whose elementals are computed anew in the reverse sweep.
    pub fn recomputed(equation: &Equation) -> Self {
        Self::counted(equation, true)
    }

    fn counted(equation: &Equation, recompute: bool) -> Self {
        let held = equation.held();
        let sweep = match recompute {
            false => Sweep::Reverse,
            true => Sweep::Recompute,
        };
        let mut weights = WeightTable::default();
        let plan = Plan::new(equation.tape(), held, &mut weights, sweep);
        let mut nodes = Vec::new();
        for (node, held) in equation.tape().nodes().iter().zip(held) {
            nodes.resize(node.graph.max(nodes.len()), 0);
            nodes[node.graph - 1] += usize::from(!held.planes.is_empty());
        }
        let steps = || plan.forward.iter().chain(&plan.reverse);
        let products = |step: &Step| match step {
            Step::Bilinear { dst, table, .. } => plan.buffers[*dst].rows * table.products(),
            Step::Compose { v, program, .. } => {
                let sums = program.value.products() + program.derivative.products();
                let powers = program.powers.iter().map(|(_, t)| t.products());
                plan.buffers[*v].rows * (sums + powers.sum::<usize>())
            }
            Step::Family { z, program, .. } => {
                let sums = program.members.iter().map(|m| m.planes.products());
                let powers = program.powers.iter().map(|(_, t)| t.products());
                plan.buffers[*z].rows * sums.chain(powers).sum::<usize>()
            }
            Step::ComposeAdjoint { v, rule, table, .. } => {
                plan.buffers[*v].rows * (rule.products() + table.products())
            }
            _ => 0,
        };
        let coefficients = |step: &Step| match step {
            Step::Compose { v, program, .. } => plan.buffers[*v].rows * (program.order + 1),
            Step::Family { z, program, .. } => plan.buffers[*z].rows * (program.order + 1),
            _ => 0,
        };
        Self {
            nodes,
            planes: held.iter().map(|h| h.planes.len()).sum(),
            matrix_flops: plan.flops,
            products: steps().map(products).sum(),
            coefficients: steps().map(coefficients).sum(),
            work: Work::of(&plan, &weights.keys),
            plan: Arc::new(plan),
        }
    }

    /// Bytes of the values, and jets of derivatives, that the forward pass leaves for the
    /// reverse sweep, for a chunk of so many points.
    pub fn kept_bytes<T: Real>(&self, points: usize) -> usize {
        self.plan.kept() * lanes(points) * size_of::<T>()
    }

    /// Bytes of the arena, adjoints included, for a chunk of so many points: for a whole
    /// batch in one piece, if that is the chunk.
    pub fn arena_bytes<T: Real>(&self, points: usize) -> usize {
        self.plan.layout(lanes(points), size_of::<T>()).len * size_of::<T>()
    }

    /// Numbers of scratch of a chunk.
    pub(crate) fn scratch(&self, points: usize) -> usize {
        self.plan.scratch * lanes(points)
    }

    /// An estimate of the time of loss and gradient of one point on one thread, in chunks
    /// of `chunk` points, from the counts and what each kind of work cost where it was
    /// calibrated (`cargo bench --bench calibrate`). Absolute figures are those of that
    /// machine; ratios hold elsewhere too.
    pub fn nanoseconds<T: Real>(&self, chunk: usize, set: InstructionSet) -> f64 {
        let double = size_of::<T>() == size_of::<f64>();
        self.work
            .time::<T>(lanes(chunk) as f64, &weights(set, double))
            / chunk as f64
    }

    /// The kinds of work of which the time is made.
    pub fn work(&self) -> &Work {
        &self.work
    }
}

/// Points as they are stored: whole vectors.
fn lanes(points: usize) -> usize {
    points.next_multiple_of(crate::plan::LANES)
}

/// Work by kinds that cost different times: of one chunk, and of one point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Work {
    /// Steps of a chunk.
    pub steps: f64,
    /// Rows that steps go through, of a chunk.
    pub rows: f64,
    /// Sums over the points, of a chunk: entries of W̄.
    pub sums: f64,
    /// Floating-point operations of W·a and Wᵀ·z̄, of a point.
    pub products: f64,
    /// Floating-point operations of z̄·aᵀ, of a point.
    pub outer: f64,
    /// Numbers that matrix products load and store, of a point.
    pub operands: f64,
    /// Products of planes that follow a table, of a point.
    pub planes: f64,
    /// Products of planes in the kernels of second order, which need no table, of a point.
    pub fused: f64,
    /// Numbers that the forward pass leaves for the reverse sweep, of a point.
    pub kept: f64,
    /// Numbers of the arena, of a point.
    pub arena: f64,
    /// Numbers written by other steps than matrix products, of a point.
    pub moves: f64,
    /// Elementary functions that run in vectors, in units of a tanh.
    pub vectors: f64,
    /// Elementary functions that run a lane at a time, in nanoseconds.
    pub lanes: f64,
}

/// How many kinds.
const KINDS: usize = 13;

/// Bytes of a core's own cache, or what of it an arena can count on.
const OWN_CACHE: f64 = (1 << 20) as f64;
/// The same of the cache that cores share.
const SHARED_CACHE: f64 = (1 << 24) as f64;

impl Work {
    /// What the time is made of, for a chunk of so many points, of numbers of `size` bytes.
    pub fn kinds(&self, points: f64, size: usize) -> [f64; KINDS] {
        // Numbers come from farther away, the more there are.
        let arena = self.arena * points * size as f64;
        let beyond = |cache: f64| 1.0 - cache / arena.max(cache);
        let far = beyond(OWN_CACHE);
        [
            self.steps,
            self.rows,
            self.sums,
            points * self.products,
            points * self.outer,
            points * self.operands,
            points * self.planes,
            points * self.fused,
            points * self.kept * far,
            points * self.moves,
            points * self.vectors,
            points * self.moves * far,
            points * self.moves * beyond(SHARED_CACHE),
        ]
    }

    fn time<T: Real>(&self, points: f64, weights: &[f64; KINDS]) -> f64 {
        let kinds = self.kinds(points, size_of::<T>());
        let sum: f64 = kinds.iter().zip(weights).map(|(n, w)| n * w).sum();
        sum + points * self.lanes
    }

    fn of(plan: &Plan, keys: &[WeightKey]) -> Self {
        let mut work = Self {
            kept: plan.kept() as f64,
            arena: plan.layout(crate::plan::LANES, size_of::<f64>()).len as f64
                / crate::plan::LANES as f64,
            ..Self::default()
        };
        for step in plan.forward.iter().chain(&plan.reverse) {
            work.add(plan, keys, step);
        }
        work
    }

    fn add(&mut self, plan: &Plan, keys: &[WeightKey], step: &Step) {
        self.steps += 1.0;
        let rows = |id: usize| plan.buffers[id].rows as f64;
        let planes = |id: usize| plan.buffers[id].planes as f64;
        let length = |runs: &[Run]| runs.iter().map(|run| run.len).sum::<usize>() as f64;
        match step {
            Step::Coordinate { dst, .. }
            | Step::Data { dst, .. }
            | Step::Constant { dst, .. }
            | Step::Parameter { dst, .. } => self.moves += planes(*dst),
            Step::Linear { zeros, terms, .. } => {
                for zero in zeros {
                    self.moves += (zero.rows * zero.len) as f64;
                }
                for term in terms {
                    self.rows += term.rows as f64;
                    self.moves += (term.rows * term.run.len) as f64;
                }
            }
            Step::Bilinear { dst, table, .. } => {
                self.rows += rows(*dst);
                self.planes += rows(*dst) * table.products() as f64;
                self.moves += rows(*dst) * table.outputs() as f64;
            }
            Step::Compose {
                v,
                d,
                elemental,
                program,
                ..
            } => {
                let powers: usize = program.powers.iter().map(|(_, t)| t.products()).sum();
                let sums = program.value.products() + program.derivative.products();
                self.rows += rows(*v);
                let products = rows(*v) * (powers + sums) as f64;
                match program.quadratic {
                    Some(_) => self.fused += products,
                    None => self.planes += products,
                }
                self.moves += rows(*v) * (planes(*v) + d.map_or(0.0, planes));
                self.evaluate(elemental, program.order, rows(*v));
            }
            Step::ComposeAdjoint {
                dst,
                v,
                rule,
                planes: jet,
                table,
                quadratic,
                ..
            } => {
                self.rows += rows(*v);
                let products = rows(*v) * (rule.products() + table.products()) as f64;
                match quadratic {
                    Some(_) => self.fused += products,
                    None => self.planes += products,
                }
                self.moves += rows(*v) * (*jet as f64 + planes(*dst));
            }
            Step::Family {
                outputs,
                z,
                elemental,
                program,
            } => {
                let powers: usize = program.powers.iter().map(|(_, t)| t.products()).sum();
                let sums: usize = program.members.iter().map(|m| m.planes.products()).sum();
                self.rows += rows(*z);
                self.planes += rows(*z) * (powers + sums) as f64;
                let written: f64 = outputs.iter().map(|&id| planes(id)).sum();
                self.moves += rows(*z) * (planes(*z) + written);
                self.evaluate(elemental, program.order, rows(*z));
            }
            Step::Affine {
                weight,
                transposed,
                runs,
                columns,
                ..
            } => {
                let (outputs, inputs) = keys[*weight].shape(*transposed);
                self.multiply(outputs, inputs, length(runs));
                self.moves += (outputs * columns.len()) as f64;
            }
            Step::AffineAdjoint {
                weight,
                transposed,
                bias,
                runs,
                columns,
                abar,
                held,
                ..
            } => {
                let key = keys[*weight];
                let (outputs, inputs) = key.shape(*transposed);
                if abar.is_some() {
                    self.multiply(inputs, outputs, length(runs));
                }
                if !held {
                    self.outer(key, length(runs));
                    let sums = columns.len() + usize::from(bias.is_some());
                    self.moves += (outputs * sums) as f64;
                }
            }
            Step::ParameterAdjoint { .. } => self.moves += 1.0,
            Step::Select { dst, .. } | Step::SelectAdjoint { dst, .. } => {
                self.rows += rows(*dst);
                self.moves += 4.0 * rows(*dst) * planes(*dst);
            }
            Step::Guard {
                dst,
                factor,
                adjoint,
            } => {
                self.rows += rows(*dst);
                self.moves += 8.0 * rows(*dst) * (planes(*factor) + planes(*adjoint));
            }
        }
    }

    /// `rows` × `columns` by `columns` × planes.
    fn multiply(&mut self, rows: usize, columns: usize, planes: f64) {
        self.products += 2.0 * (rows * columns) as f64 * planes;
        // A block of rows reads all columns once.
        let blocks = rows.div_ceil(crate::kernel::gemm::TALL);
        self.operands += (blocks * columns + rows) as f64 * planes;
    }

    fn outer(&mut self, key: WeightKey, planes: f64) {
        self.sums += (key.rows * key.columns) as f64;
        self.outer += 2.0 * (key.rows * key.columns) as f64 * planes;
        let blocks = key.rows.div_ceil(crate::kernel::gemm::TALL);
        self.operands += (blocks * key.columns + key.rows) as f64 * planes;
    }

    fn evaluate(&mut self, elemental: &Elemental, order: usize, rows: f64) {
        use Elemental as E;
        let order = order as f64;
        // A value, and each further coefficient.
        let (vector, value, more) = match elemental {
            E::Tanh | E::Sigmoid | E::LogSigmoid | E::Softplus | E::Silu => (true, 1.0, 0.1),
            E::Sin | E::Cos | E::Exp | E::Sinh | E::Cosh => (true, 0.7, 0.05),
            E::Erf | E::Gelu => (true, 1.5, 0.1),
            E::Abs | E::Relu => (true, 0.1, 0.05),
            E::Recip | E::Powi(_) | E::Sqrt | E::Cbrt | E::Ln | E::Ln1p => (true, 2.0, 0.5),
            _ => (false, 20.0, 5.0),
        };
        let cost = rows * (value + order * more);
        if vector {
            self.vectors += cost;
        } else {
            self.lanes += cost;
        }
    }
}

/// Nanoseconds of each kind of work, in the order of [`Work::kinds`], fitted by
/// `cargo bench --bench calibrate` on one core of a Xeon with AVX-512 (ten equations, four
/// networks, three lowerings, with and without recomputation, in chunks and in one piece): of
/// 1,176 ratios to the time of jets in chunks 1,127 are met within 15 %, of 1,020 in one piece
/// 921. There was no NEON to calibrate on: between the two others of its width.
#[rustfmt::skip]
fn weights(set: InstructionSet, double: bool) -> [f64; KINDS] {
    use InstructionSet::{Avx2, Avx512, Baseline, Neon};
    match (set, double) {
        (Avx512, true) => [32.7, 4.81, 0.341, 0.0149, 0.0, 0.0494, 0.143, 0.0403, 0.0426, 0.0, 1.1, 0.312, 0.59],
        (Avx512, false) => [25.0, 5.66, 0.0805, 0.00594, 0.0, 0.0307, 0.0692, 0.0216, 0.0, 0.0, 0.67, 0.128, 0.189],
        (Avx2, true) => [26.2, 5.47, 0.476, 0.0214, 0.0, 0.092, 0.154, 0.0687, 0.0155, 0.0, 1.9, 0.259, 0.524],
        (Avx2, false) => [20.6, 5.3, 0.922, 0.00267, 0.0181, 0.0261, 0.0874, 0.0605, 0.0, 0.0, 0.958, 0.127, 0.202],
        (Baseline, true) => [42.6, 6.19, 0.0, 0.111, 0.0, 0.116, 0.357, 0.22, 0.0, 0.0, 3.99, 0.209, 0.552],
        (Baseline, false) => [22.4, 12.2, 0.0208, 0.0519, 0.0585, 0.194, 0.267, 0.189, 0.0, 0.00722, 1.74, 0.114, 0.229],
        (Neon, true) => [33.0, 5.8, 0.25, 0.065, 0.0, 0.1, 0.25, 0.14, 0.01, 0.0, 2.8, 0.23, 0.54],
        (Neon, false) => [21.5, 8.5, 0.4, 0.027, 0.038, 0.1, 0.17, 0.12, 0.0, 0.004, 1.3, 0.12, 0.215],
    }
}
