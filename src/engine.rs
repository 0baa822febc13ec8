//! The engine: loss, gradient, residuals and Gauss-Newton rows of a problem, chunk by
//! chunk, in parallel. Knows nothing of optimisers.
//!
//! Points are cut into chunks of fixed size, chunks into groups, by the number of points
//! and parameters alone. A group adds up its chunks in order, groups are added in order:
//! the bits of the result do not depend on the number of threads.

use crate::error::{Error, check_finite};
use crate::kernel::simd::InstructionSet;
use crate::parameters::{Block, Parameters};
use crate::plan::{Layout, Plan, Sweep, WeightTable};
use crate::problem::{Condition, Measure, Points, Problem, check_point_weights, check_weight};
use crate::real::Real;
use crate::record::Equation;
use crate::replay::{Chunk, Replay, Sink, Weights, Workspace, holds};
use crate::tape::{NodeId, Op, Tape};
use rayon::prelude::*;
use std::any::Any;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The floating-point type of the replay. Parameters, losses and gradients are `f64` in
/// either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// `f64`.
    #[default]
    Double,
    /// `f32`: half the memory, about half the time, seven digits.
    Single,
}

/// How the engine works. The defaults are right for most uses.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The floating-point type of the replay.
    pub precision: Precision,
    /// Points a chunk, a multiple of 16; the engine's choice if `None`.
    pub chunk: Option<usize>,
    /// Threads; rayon's current pool if `None`.
    pub threads: Option<usize>,
    /// Instructions; the widest that the CPU has if `None`.
    pub instructions: Option<InstructionSet>,
}

impl Options {
    /// Another precision.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// A number of points a chunk, a multiple of 16.
    #[must_use]
    pub fn chunk(mut self, points: usize) -> Self {
        self.chunk = Some(points);
        self
    }

    /// A number of threads.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// An instruction set; one that the CPU lacks falls back to the baseline.
    #[must_use]
    pub fn instructions(mut self, set: InstructionSet) -> Self {
        self.instructions = Some(set);
        self
    }
}

/// Loss and gradient of a problem.
///
/// ```
/// use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 8, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [y] = net.at(&[t]);
///     y.d(t) + y
/// })?;
/// let start = Equation::record("start", &params, ["t"], |[t]| {
///     let [y] = net.at(&[t]);
///     y - 1.0
/// })?;
/// let problem = Problem::new(&params, [
///     Condition::new(&decay, Points::grid(&[(0.0, 1.0, 30)])?),
///     Condition::new(&start, Points::from_rows(&[[0.0]])?).weight(10.0),
/// ])?;
/// let engine = Engine::new(&problem)?;
/// let evaluation = engine.evaluate(params.values())?;
/// assert_eq!(evaluation.gradient.len(), params.len());
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    core: Core,
    names: Vec<String>,
    blocks: Vec<Block>,
    pool: Option<rayon::ThreadPool>,
}

#[derive(Debug)]
enum Core {
    Double(Runner<f64>),
    Single(Runner<f32>),
}

/// What [`Engine::evaluate`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The sum of all conditions.
    pub loss: f64,
    /// The loss of each condition, its weight included.
    pub losses: Vec<f64>,
    /// The derivative of the loss in each parameter.
    pub gradient: Vec<f64>,
}

/// Some Gauss-Newton rows: the scaled residuals of one output at some points and their
/// derivatives in all parameters.
///
/// Rows are scaled by √(w q/N), so that over all blocks of all conditions Σ r² is the loss
/// and 2 Jᵀr its gradient (for means of squares). A condition on an integral has one row for
/// each output, the scaled integral, and `points` is 0..1.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Which points of the condition.
    pub points: Range<usize>,
    /// Which residual of the equation.
    pub output: usize,
    /// Scaled residuals, one a point.
    pub residuals: &'a [f64],
    jacobian: &'a [f64],
    stride: usize,
}

impl Rows<'_> {
    /// The derivatives of the scaled residuals in one parameter, one a point.
    ///
    /// # Panics
    /// As a slice would, for an index that is not below [`parameters`](Self::parameters).
    pub fn parameter(&self, index: usize) -> &[f64] {
        &self.jacobian[index * self.stride..][..self.residuals.len()]
    }

    /// How many parameters.
    pub fn parameters(&self) -> usize {
        self.jacobian.len() / self.stride
    }

    /// Copies the row of one point (counted from the block's first) into `row`.
    pub fn copy_row(&self, point: usize, row: &mut [f64]) {
        let column = self.jacobian.iter().skip(point).step_by(self.stride);
        for (to, from) in row.iter_mut().zip(column) {
            *to = *from;
        }
    }
}

impl Engine {
    /// An engine with default options.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new(problem: &Problem) -> Result<Self, Error> {
        Self::with(problem, &Options::default())
    }

    /// An engine.
    ///
    /// # Errors
    /// A chunk that is not a multiple of 16, no threads, threads that cannot be started.
    pub fn with(problem: &Problem, options: &Options) -> Result<Self, Error> {
        if let Some(chunk) = options.chunk
            && (chunk == 0 || !chunk.is_multiple_of(LANES))
        {
            return Err(Error::OutOfRange {
                what: "the number of points a chunk".to_owned(),
                given: chunk.to_string(),
                expected: format!("a positive multiple of {LANES}"),
            });
        }
        let pool = match options.threads {
            None => None,
            Some(threads) => {
                let out = |given: String| Error::OutOfRange {
                    what: "the number of threads".to_owned(),
                    given,
                    expected: format!("from 1 to {MAX_THREADS}, as many as the system lets start"),
                };
                if threads == 0 || threads > MAX_THREADS {
                    return Err(out(threads.to_string()));
                }
                let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                Some(built.map_err(|error| out(format!("{threads} ({error})")))?)
            }
        };
        let core = match options.precision {
            Precision::Double => Core::Double(Runner::new(problem, options)),
            Precision::Single => Core::Single(Runner::new(problem, options)),
        };
        Ok(Self {
            core,
            names: problem.conditions.iter().map(|c| c.name.clone()).collect(),
            blocks: problem.blocks.clone(),
            pool,
        })
    }

    /// How many parameters the gradient has.
    pub fn parameters(&self) -> usize {
        match &self.core {
            Core::Double(runner) => runner.parameters,
            Core::Single(runner) => runner.parameters,
        }
    }

    /// Names of the conditions, in order.
    pub fn conditions(&self) -> &[String] {
        &self.names
    }

    /// The loss.
    ///
    /// # Errors
    /// Parameters of another number or not finite; a residual that is not finite, with the
    /// point and the first node that made it so.
    pub fn loss(&self, theta: &[f64]) -> Result<f64, Error> {
        let mut losses = vec![0.0; self.names.len()];
        self.run(theta, Want::Loss, &mut losses, &mut [])?;
        Ok(losses.iter().sum())
    }

    /// The loss of each condition, its weight included.
    ///
    /// # Errors
    /// As [`loss`](Self::loss).
    pub fn losses(&self, theta: &[f64]) -> Result<Vec<f64>, Error> {
        let mut losses = vec![0.0; self.names.len()];
        self.run(theta, Want::Loss, &mut losses, &mut [])?;
        Ok(losses)
    }

    /// Loss, losses by condition, and gradient.
    ///
    /// # Errors
    /// As [`loss`](Self::loss); a gradient that is not finite.
    pub fn evaluate(&self, theta: &[f64]) -> Result<Evaluation, Error> {
        let mut losses = vec![0.0; self.names.len()];
        let mut gradient = vec![0.0; self.parameters()];
        self.run(theta, Want::Gradient, &mut losses, &mut gradient)?;
        Ok(Evaluation {
            loss: losses.iter().sum(),
            losses,
            gradient,
        })
    }

    /// [`evaluate`](Self::evaluate) into slices that the caller keeps: gives the loss, and
    /// allocates nothing once it is warm (on one thread; rayon's queue is its own).
    /// `losses` has one number for each condition. Nothing is accumulated: both slices are
    /// overwritten.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate); slices of other lengths.
    pub fn evaluate_into(
        &self,
        theta: &[f64],
        losses: &mut [f64],
        gradient: &mut [f64],
    ) -> Result<f64, Error> {
        if losses.len() != self.names.len() {
            return Err(Error::length("losses", losses.len(), self.names.len()));
        }
        if gradient.len() != self.parameters() {
            return Err(Error::length("gradient", gradient.len(), self.parameters()));
        }
        self.run(theta, Want::Gradient, losses, gradient)?;
        Ok(losses.iter().sum())
    }

    /// The gradient of each condition, its weight included; they add up to the gradient.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    pub fn gradients(&self, theta: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let mut losses = vec![0.0; self.names.len()];
        let count = self.parameters();
        let mut gradients = vec![0.0; count * self.names.len()];
        self.run(theta, Want::ByCondition, &mut losses, &mut gradients)?;
        let of = |condition: usize| gradients[condition * count..][..count].to_vec();
        Ok((0..self.names.len()).map(of).collect())
    }

    /// The residuals of a condition, unscaled: one list for each output, one number a
    /// point. Values that are not finite are given as they are.
    ///
    /// # Errors
    /// No such condition; parameters of another number or not finite.
    pub fn residuals(&self, condition: &str, theta: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let place = self.place(condition)?;
        self.check(theta)?;
        let work = || match &self.core {
            Core::Double(runner) => runner.residuals(place, theta),
            Core::Single(runner) => runner.residuals(place, theta),
        };
        Ok(match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        })
    }

    /// Gauss-Newton rows of a condition, handed out chunk by chunk in the order of the
    /// points, all outputs of a chunk before the next.
    ///
    /// # Errors
    /// As [`residuals`](Self::residuals).
    pub fn rows(
        &self,
        condition: &str,
        theta: &[f64],
        mut visit: impl FnMut(Rows<'_>),
    ) -> Result<(), Error> {
        self.visit_rows(condition, theta, &mut visit)
    }

    /// Not generic: the crate that calls it need not compile the kernels again.
    fn visit_rows(
        &self,
        condition: &str,
        theta: &[f64],
        visit: &mut dyn FnMut(Rows<'_>),
    ) -> Result<(), Error> {
        let place = self.place(condition)?;
        self.check(theta)?;
        match &self.core {
            Core::Double(runner) => runner.rows(place, theta, visit),
            Core::Single(runner) => runner.rows(place, theta, visit),
        }
        Ok(())
    }

    /// The weight of a condition.
    ///
    /// # Errors
    /// No such condition.
    pub fn weight(&self, condition: &str) -> Result<f64, Error> {
        let place = self.place(condition)?;
        Ok(match &self.core {
            Core::Double(runner) => runner.conditions[place].weight,
            Core::Single(runner) => runner.conditions[place].weight,
        })
    }

    /// Another weight for a condition; nothing else is built anew.
    ///
    /// # Errors
    /// No such condition; a weight as [`Problem::new`] would not take it.
    pub fn set_weight(&mut self, condition: &str, weight: f64) -> Result<(), Error> {
        let place = self.place(condition)?;
        match &mut self.core {
            Core::Double(runner) => runner.conditions[place].set_weight(weight),
            Core::Single(runner) => runner.conditions[place].set_weight(weight),
        }
    }

    /// Other weights for the points of a condition.
    ///
    /// # Errors
    /// No such condition; weights as [`Problem::new`] would not take them.
    pub fn set_point_weights(&mut self, condition: &str, weights: &[f64]) -> Result<(), Error> {
        let place = self.place(condition)?;
        match &mut self.core {
            Core::Double(runner) => runner.conditions[place].set_point_weights(weights),
            Core::Single(runner) => runner.conditions[place].set_point_weights(weights),
        }
    }

    fn place(&self, condition: &str) -> Result<usize, Error> {
        let place = self.names.iter().position(|name| name == condition);
        place.ok_or_else(|| Error::UnknownName {
            what: "condition".to_owned(),
            name: condition.to_owned(),
            known: self.names.join(", "),
        })
    }

    fn check(&self, theta: &[f64]) -> Result<(), Error> {
        if theta.len() != self.parameters() {
            return Err(Error::length("parameters", theta.len(), self.parameters()));
        }
        check_finite("parameter", theta)
    }

    fn run(
        &self,
        theta: &[f64],
        want: Want,
        losses: &mut [f64],
        gradient: &mut [f64],
    ) -> Result<(), Error> {
        self.check(theta)?;
        match &self.core {
            Core::Double(runner) => runner.run(theta, want, losses, gradient, self.pool.as_ref()),
            Core::Single(runner) => runner.run(theta, want, losses, gradient, self.pool.as_ref()),
        }
        if let Some(place) = losses.iter().position(|loss| !loss.is_finite()) {
            return Err(match &self.core {
                Core::Double(runner) => runner.diagnose(place, theta, losses[place]),
                Core::Single(runner) => runner.diagnose(place, theta, losses[place]),
            });
        }
        if let Some(place) = gradient.iter().position(|g| !g.is_finite()) {
            let index = place % self.parameters();
            let block = self
                .blocks
                .iter()
                .find(|b| (b.offset..b.offset + b.len()).contains(&index));
            return Err(Error::NonFiniteGradient {
                index,
                name: block.map_or_else(String::new, |b| b.name.clone()),
                value: gradient[place],
            });
        }
        Ok(())
    }
}

/// The values of an equation at points: any recorded expression, such as a solution with
/// its derivatives. One list for each output, one number a point.
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters, Points, values};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 8, 1], Tanh)?;
/// let solution = Equation::record("solution", &params, ["t", "x"], |[t, x]| {
///     let [u] = net.at(&[t, x]);
///     [u, u.d(x)]
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 11), (-1.0, 1.0, 21)])?;
/// let fields = values(&solution, &params, &points)?;
/// assert_eq!((fields.len(), fields[0].len()), (2, 231));
/// # Ok::<(), dualtape::Error>(())
/// ```
///
/// # Errors
/// Points or data that do not fit the equation; an equation of other parameters.
pub fn values(
    equation: &Equation,
    parameters: &Parameters,
    points: &Points,
) -> Result<Vec<Vec<f64>>, Error> {
    let condition = Condition::new(equation, points.clone());
    condition.check(parameters)?;
    let problem = Problem {
        conditions: vec![condition],
        parameters: parameters.len(),
        blocks: Vec::new(),
    };
    let runner = Runner::<f64>::new(&problem, &Options::default());
    Ok(runner.residuals(0, parameters.values()))
}

/// Lanes are padded to a multiple of this: whole vectors in either precision, and loops
/// long enough for the compiler to vectorise.
const LANES: usize = 16;
/// Points a chunk where nothing speaks against it.
const CHUNK: usize = 64;
/// Bytes that a chunk's arena should not exceed: some caches of a core, since a layer and
/// its neighbours are in use at a time. From 16 to 64 points a chunk, this is the best size
/// measured for widths 64 and 128 and for a Laplacian in 100 coordinates.
const CACHE: usize = 4 << 20;
/// Groups of a condition: enough to balance, few enough that their gradients stay small.
const GROUPS: usize = 16;
/// Bytes that all gradients of a condition's groups may take.
const GRADIENT_BYTES: usize = 1 << 24;
/// Operations below which threads cost more than they bring.
const SERIAL: usize = 20_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Loss,
    Gradient,
    ByCondition,
}

#[derive(Debug)]
struct Compiled<T> {
    name: String,
    equation: Equation,
    gradient: Planned,
    value: Planned,
    coordinates: Vec<Vec<T>>,
    columns: Vec<Vec<T>>,
    points: usize,
    chunk: usize,
    weight: f64,
    point_weights: Option<Vec<f64>>,
    measure: Measure,
}

/// A plan, laid out for whole chunks and for the last one.
#[derive(Debug)]
struct Planned {
    plan: Plan,
    whole: Layout,
    last: Layout,
}

impl Planned {
    fn new<T>(plan: Plan, chunk: usize, points: usize) -> Self {
        let rest = (points - 1) % chunk + 1;
        let whole = plan.layout(chunk, size_of::<T>());
        let last = plan.layout(rest.next_multiple_of(LANES), size_of::<T>());
        Self { plan, whole, last }
    }

    fn layout(&self, count: usize) -> &Layout {
        if count.next_multiple_of(LANES) == self.whole.lanes {
            &self.whole
        } else {
            &self.last
        }
    }
}

/// A run of chunks of one condition: the unit of parallel work.
#[derive(Debug, Clone)]
struct Task {
    condition: usize,
    chunks: Range<usize>,
}

/// What a task makes.
#[derive(Debug, Default)]
struct Share<T> {
    gradient: Vec<T>,
    /// Seeds of one residual, lane by lane.
    seeds: Vec<T>,
    /// Σ q r² or Σ q r.
    sum: f64,
    /// Σ q r of each residual, where the integral is what counts.
    integrals: Vec<f64>,
}

/// What an evaluation needs and the next can reuse.
#[derive(Debug, Default)]
struct State<T> {
    weights: Weights<T>,
    shares: Vec<Share<T>>,
    /// For each condition, the integral of each residual, where that is what counts.
    integrals: Vec<Vec<f64>>,
}

#[derive(Debug)]
struct Runner<T> {
    conditions: Vec<Compiled<T>>,
    tasks: Vec<Task>,
    weights: WeightTable,
    parameters: usize,
    flops: usize,
    set: InstructionSet,
    states: Mutex<Vec<State<T>>>,
    workspaces: Mutex<Vec<Workspace<T>>>,
}

/// Takes something from a shelf, or makes it; a panic elsewhere does not spoil the shelf.
fn take<T: Default>(shelf: &Mutex<Vec<T>>) -> T {
    let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    shelf.pop().unwrap_or_default()
}

fn give_back<T>(shelf: &Mutex<Vec<T>>, thing: T) {
    let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    shelf.push(thing);
}

impl<T: Real> Runner<T> {
    fn new(problem: &Problem, options: &Options) -> Self {
        let mut weights = WeightTable::default();
        let conditions: Vec<Compiled<T>> = problem
            .conditions
            .iter()
            .map(|condition| Compiled::new(condition, &mut weights, options.chunk))
            .collect();
        let bytes = (problem.parameters * size_of::<T>()).max(1);
        let mut tasks = Vec::new();
        for (place, condition) in conditions.iter().enumerate() {
            let chunks = condition.points.div_ceil(condition.chunk);
            let groups = (chunks / 2).min(GROUPS).min(GRADIENT_BYTES / bytes).max(1);
            tasks.extend((0..groups).map(|g| Task {
                condition: place,
                chunks: g * chunks / groups..(g + 1) * chunks / groups,
            }));
        }
        let flops = |c: &Compiled<T>| c.gradient.plan.flops.saturating_mul(c.points);
        Self {
            flops: conditions.iter().map(flops).fold(0, usize::saturating_add),
            conditions,
            tasks,
            weights,
            parameters: problem.parameters,
            set: options.instructions.unwrap_or_else(InstructionSet::detect),
            states: Mutex::default(),
            workspaces: Mutex::default(),
        }
    }

    fn run(
        &self,
        theta: &[f64],
        want: Want,
        losses: &mut [f64],
        gradient: &mut [f64],
        pool: Option<&rayon::ThreadPool>,
    ) {
        let mut state: State<T> = take(&self.states);
        let State {
            weights,
            shares,
            integrals,
        } = &mut state;
        weights.load(theta, &self.weights.keys);
        shares.resize_with(self.tasks.len(), Share::default);
        let weights = &*weights;
        if self.has_integrals() {
            self.each(shares, pool, |task, workspace, share| {
                self.integrate(task, weights, workspace, share);
            });
            self.collect_integrals(shares, integrals);
        }
        let integrals = &*integrals;
        self.each(shares, pool, |task, workspace, share| {
            if want == Want::Loss {
                self.values(task, weights, workspace, share);
            } else {
                let whole = integrals.get(task.condition).map_or(&[][..], Vec::as_slice);
                self.gradient(task, weights, whole, workspace, share);
            }
        });
        // In the order of the tasks, whoever did them.
        losses.fill(0.0);
        gradient.fill(0.0);
        for (task, share) in self.tasks.iter().zip(&*shares) {
            losses[task.condition] += share.sum;
            let to = match want {
                Want::Loss => continue,
                Want::Gradient => &mut gradient[..],
                Want::ByCondition => {
                    &mut gradient[task.condition * self.parameters..][..self.parameters]
                }
            };
            for (to, from) in to.iter_mut().zip(&share.gradient) {
                *to += from.to_f64();
            }
        }
        for (place, (loss, condition)) in losses.iter_mut().zip(&self.conditions).enumerate() {
            if condition.measure == Measure::Integral {
                *loss = condition.weight * integrals[place].iter().map(|s| s * s).sum::<f64>();
            } else {
                *loss *= condition.weight / condition.points as f64;
            }
        }
        give_back(&self.states, state);
    }

    /// Does all tasks, on several threads where that pays.
    fn each(
        &self,
        shares: &mut [Share<T>],
        pool: Option<&rayon::ThreadPool>,
        work: impl Fn(&Task, &mut Workspace<T>, &mut Share<T>) + Sync,
    ) {
        let work = |task: &Task, share: &mut Share<T>| {
            let mut workspace: Workspace<T> = take(&self.workspaces);
            work(task, &mut workspace, share);
            give_back(&self.workspaces, workspace);
        };
        if self.flops < SERIAL || self.tasks.len() == 1 {
            for (task, share) in self.tasks.iter().zip(shares) {
                work(task, share);
            }
            return;
        }
        let mut parallel = || {
            self.tasks
                .par_iter()
                .zip(&mut *shares)
                .with_max_len(1)
                .for_each(|(task, share)| work(task, share));
        };
        match pool {
            Some(pool) => pool.install(parallel),
            None => parallel(),
        }
    }

    fn has_integrals(&self) -> bool {
        let mut measures = self.conditions.iter().map(|condition| condition.measure);
        measures.any(|measure| measure == Measure::Integral)
    }

    /// Σ q r of each residual over a task's points, where the integral is what counts: its
    /// square needs the whole before anything can be swept back.
    fn integrate(
        &self,
        task: &Task,
        weights: &Weights<T>,
        workspace: &mut Workspace<T>,
        share: &mut Share<T>,
    ) {
        let condition = &self.conditions[task.condition];
        share.integrals.clear();
        if condition.measure != Measure::Integral {
            return;
        }
        share
            .integrals
            .resize(condition.value.plan.roots.len(), 0.0);
        for chunk in task.chunks.clone() {
            let chunk = condition.chunk(chunk);
            let replay = self.replay(&condition.value, chunk.count, weights);
            replay.forward(chunk, workspace);
            for (root, sum) in replay.plan.roots.iter().zip(&mut share.integrals) {
                if let Some(residual) = replay.residual(root, workspace) {
                    *sum += condition.sum(residual, chunk.start, chunk.count);
                }
            }
        }
    }

    /// The integrals of whole conditions, from their tasks in order.
    fn collect_integrals(&self, shares: &[Share<T>], integrals: &mut Vec<Vec<f64>>) {
        integrals.resize_with(self.conditions.len(), Vec::new);
        integrals.iter_mut().for_each(Vec::clear);
        for (task, share) in self.tasks.iter().zip(shares) {
            let whole = &mut integrals[task.condition];
            whole.resize(share.integrals.len(), 0.0);
            for (sum, part) in whole.iter_mut().zip(&share.integrals) {
                *sum += part;
            }
        }
    }

    fn replay<'a>(
        &'a self,
        planned: &'a Planned,
        count: usize,
        weights: &'a Weights<T>,
    ) -> Replay<'a, T> {
        Replay {
            plan: &planned.plan,
            layout: planned.layout(count),
            keys: &self.weights.keys,
            weights,
            set: self.set,
        }
    }

    fn values(
        &self,
        task: &Task,
        weights: &Weights<T>,
        workspace: &mut Workspace<T>,
        share: &mut Share<T>,
    ) {
        let condition = &self.conditions[task.condition];
        share.sum = 0.0;
        if condition.measure == Measure::Integral {
            return;
        }
        for chunk in task.chunks.clone() {
            let chunk = condition.chunk(chunk);
            let replay = self.replay(&condition.value, chunk.count, weights);
            replay.forward(chunk, workspace);
            for root in &replay.plan.roots {
                if let Some(residual) = replay.residual(root, workspace) {
                    share.sum += condition.sum(residual, chunk.start, chunk.count);
                }
            }
        }
    }

    fn gradient(
        &self,
        task: &Task,
        weights: &Weights<T>,
        integrals: &[f64],
        workspace: &mut Workspace<T>,
        share: &mut Share<T>,
    ) {
        let condition = &self.conditions[task.condition];
        share.sum = 0.0;
        share.gradient.clear();
        share.gradient.resize(self.parameters, T::ZERO);
        for chunk in task.chunks.clone() {
            let chunk = condition.chunk(chunk);
            let replay = self.replay(&condition.gradient, chunk.count, weights);
            replay.forward(chunk, workspace);
            replay.clear_seeds(workspace);
            for (output, root) in replay.plan.roots.iter().enumerate() {
                let Some(residual) = replay.residual(root, workspace) else {
                    continue;
                };
                let integral = integrals.get(output).copied();
                share.sum += condition.sum(residual, chunk.start, chunk.count);
                share.seeds.clear();
                share
                    .seeds
                    .extend(residual[..chunk.count].iter().enumerate().map(|(lane, r)| {
                        let r = integral.unwrap_or_else(|| r.to_f64());
                        T::from_f64(condition.seed(r, chunk.start + lane))
                    }));
                replay.seed(root, workspace, share.seeds.iter().copied());
            }
            replay.reverse(workspace, Sink::Gradient(&mut share.gradient));
        }
    }

    fn residuals(&self, place: usize, theta: &[f64]) -> Vec<Vec<f64>> {
        let condition = &self.conditions[place];
        let mut weights = Weights::default();
        weights.load(theta, &self.weights.keys);
        let outputs = condition.value.plan.roots.len();
        let blocks: Vec<Vec<f64>> = (0..condition.points.div_ceil(condition.chunk))
            .into_par_iter()
            .map(|chunk| {
                let mut workspace: Workspace<T> = take(&self.workspaces);
                let chunk = condition.chunk(chunk);
                let replay = self.replay(&condition.value, chunk.count, &weights);
                replay.forward(chunk, &mut workspace);
                let mut block = vec![0.0; outputs * chunk.count];
                for (root, out) in replay.plan.roots.iter().zip(block.chunks_mut(chunk.count)) {
                    if let Some(residual) = replay.residual(root, &workspace) {
                        for (out, r) in out.iter_mut().zip(residual) {
                            *out = r.to_f64();
                        }
                    }
                }
                give_back(&self.workspaces, workspace);
                block
            })
            .collect();
        (0..outputs)
            .map(|output| {
                blocks
                    .iter()
                    .flat_map(|block| block.chunks(block.len() / outputs).nth(output))
                    .flatten()
                    .copied()
                    .collect()
            })
            .collect()
    }

    fn rows(&self, place: usize, theta: &[f64], visit: &mut dyn FnMut(Rows<'_>)) {
        let condition = &self.conditions[place];
        if condition.measure == Measure::Integral {
            self.integral_rows(condition, theta, visit);
            return;
        }
        let mut weights = Weights::default();
        weights.load(theta, &self.weights.keys);
        let mut workspace: Workspace<T> = take(&self.workspaces);
        let lanes = condition.gradient.whole.lanes;
        let mut jacobian = vec![T::ZERO; self.parameters * lanes];
        let mut converted = Vec::new();
        let mut residuals = Vec::new();
        for chunk in 0..condition.points.div_ceil(condition.chunk) {
            let chunk = condition.chunk(chunk);
            let replay = self.replay(&condition.gradient, chunk.count, &weights);
            let lanes = replay.layout.lanes;
            for output in 0..replay.plan.roots.len() {
                // The sweep reuses buffers of the forward pass, so each output starts anew.
                replay.forward(chunk, &mut workspace);
                replay.clear_seeds(&mut workspace);
                let root = &replay.plan.roots[output];
                let scale = |lane: usize| condition.scale(chunk.start + lane);
                residuals.clear();
                residuals.extend((0..chunk.count).map(scale));
                match replay.residual(root, &workspace) {
                    Some(values) => {
                        for (r, value) in residuals.iter_mut().zip(values) {
                            *r *= value.to_f64();
                        }
                    }
                    None => residuals.fill(0.0),
                }
                let seeds = (0..chunk.count).map(|lane| T::from_f64(scale(lane)));
                replay.seed(root, &mut workspace, seeds);
                let rows = &mut jacobian[..self.parameters * lanes];
                rows.fill(T::ZERO);
                replay.reverse(&mut workspace, Sink::Rows(rows));
                // f64 rows are handed out as they are.
                let whole = (&jacobian as &dyn Any).downcast_ref::<Vec<f64>>();
                let numbers: &[f64] = match whole {
                    Some(numbers) => &numbers[..self.parameters * lanes],
                    None => {
                        converted.clear();
                        converted.extend(
                            jacobian[..self.parameters * lanes]
                                .iter()
                                .map(|x| x.to_f64()),
                        );
                        &converted
                    }
                };
                visit(Rows {
                    points: chunk.start..chunk.start + chunk.count,
                    output,
                    residuals: &residuals,
                    jacobian: numbers,
                    stride: lanes,
                });
            }
        }
        give_back(&self.workspaces, workspace);
    }

    /// One row for each output: √w Σ q r.
    fn integral_rows(
        &self,
        condition: &Compiled<T>,
        theta: &[f64],
        visit: &mut dyn FnMut(Rows<'_>),
    ) {
        let mut weights = Weights::default();
        weights.load(theta, &self.weights.keys);
        let mut workspace: Workspace<T> = take(&self.workspaces);
        let root_weight = condition.weight.sqrt();
        for output in 0..condition.gradient.plan.roots.len() {
            let mut row = vec![T::ZERO; self.parameters];
            let mut integral = 0.0;
            for chunk in 0..condition.points.div_ceil(condition.chunk) {
                let chunk = condition.chunk(chunk);
                let replay = self.replay(&condition.gradient, chunk.count, &weights);
                replay.forward(chunk, &mut workspace);
                replay.clear_seeds(&mut workspace);
                let root = &replay.plan.roots[output];
                if let Some(residual) = replay.residual(root, &workspace) {
                    integral += condition.sum(residual, chunk.start, chunk.count);
                }
                let share = |lane: usize| root_weight * condition.point_weight(chunk.start + lane);
                let seeds = (0..chunk.count).map(|lane| T::from_f64(share(lane)));
                replay.seed(root, &mut workspace, seeds);
                replay.reverse(&mut workspace, Sink::Gradient(&mut row));
            }
            let row: Vec<f64> = row.iter().map(|x| x.to_f64()).collect();
            visit(Rows {
                points: 0..1,
                output,
                residuals: &[root_weight * integral],
                jacobian: &row,
                stride: 1,
            });
        }
        give_back(&self.workspaces, workspace);
    }

    /// The first residual of a condition that is not finite, and the first node that made
    /// it so.
    fn diagnose(&self, place: usize, theta: &[f64], loss: f64) -> Error {
        let condition = &self.conditions[place];
        let tape = condition.equation.tape();
        let mut keys = self.weights.clone();
        let plan = Plan::new(tape, condition.equation.held(), &mut keys, Sweep::Inspect);
        let planned = Planned::new::<T>(plan, condition.chunk, condition.points);
        let mut weights = Weights::default();
        weights.load(theta, &keys.keys);
        let mut workspace = Workspace::default();
        for chunk in 0..condition.points.div_ceil(condition.chunk) {
            let chunk = condition.chunk(chunk);
            let replay = Replay {
                plan: &planned.plan,
                layout: planned.layout(chunk.count),
                keys: &keys.keys,
                weights: &weights,
                set: self.set,
            };
            replay.forward(chunk, &mut workspace);
            for (root, &output) in planned.plan.roots.iter().zip(tape.roots()) {
                let Some(residual) = replay.residual(root, &workspace) else {
                    continue;
                };
                let bad = residual[..chunk.count].iter().position(|r| !r.is_finite());
                let Some(lane) = bad else {
                    continue;
                };
                let node = &tape.nodes()[first_bad(tape, output, &replay, lane, &workspace)];
                let point = chunk.start + lane;
                let coordinates: Vec<String> = tape
                    .coordinates()
                    .iter()
                    .zip(&condition.coordinates)
                    .map(|(name, list)| format!("{name} = {}", list[point]))
                    .collect();
                return Error::NonFinite {
                    condition: condition.name.clone(),
                    point,
                    coordinates: coordinates.join(", "),
                    value: residual[lane].to_f64(),
                    node: node.op.name(),
                    at: node.source.to_string(),
                };
            }
        }
        // Finite residuals whose squares or sum overflow.
        Error::OutOfRange {
            what: format!("the loss of condition `{}`", condition.name),
            given: loss.to_string(),
            expected: "its residuals are finite but too large to be added up".to_owned(),
        }
    }
}

/// The first node that is not finite in a lane and that leads to `root`, not by a branch of
/// a selection that is not taken there.
fn first_bad<T: Real>(
    tape: &Tape,
    root: NodeId,
    replay: &Replay<'_, T>,
    lane: usize,
    workspace: &Workspace<T>,
) -> NodeId {
    let lanes = replay.layout.lanes;
    let rows = |id: NodeId| match replay.plan.values[id] {
        Some(buffer) => replay.buffer(buffer, workspace),
        None => Vec::new(),
    };
    let bad_row = |row: &[T]| row.iter().skip(lane).step_by(lanes).any(|x| !x.is_finite());
    let mut leads = vec![false; tape.nodes().len()];
    leads[root] = true;
    let mut first = root;
    for id in (0..=root).rev() {
        if !leads[id] {
            continue;
        }
        first = id;
        let node = &tape.nodes()[id];
        for (place, &input) in node.inputs.iter().enumerate() {
            let bad = match &node.op {
                Op::Select { or_equal } if place > 0 => {
                    let taken = |mask: &&[T]| holds(mask[lane], *or_equal) == (place == 1);
                    let masks = rows(node.inputs[0]);
                    let pairs = masks.iter().zip(rows(input));
                    pairs
                        .filter(|(mask, _)| taken(mask))
                        .any(|(_, row)| bad_row(row))
                }
                Op::Select { .. } => false,
                _ => rows(input).into_iter().any(bad_row),
            };
            leads[input] |= bad;
        }
    }
    first
}

/// The most threads that an engine starts.
const MAX_THREADS: usize = 1024;
impl<T: Real> Compiled<T> {
    fn new(condition: &Condition, weights: &mut WeightTable, chunk: Option<usize>) -> Self {
        let equation = &condition.equation;
        let gradient = Plan::new(equation.tape(), equation.held(), weights, Sweep::Reverse);
        let value = Plan::new(equation.tape(), equation.held(), weights, Sweep::Forward);
        let points = condition.points.len();
        let convert = |list: &[f64]| list.iter().map(|&x| T::from_f64(x)).collect();
        let chunk = chunk.unwrap_or_else(|| chunk_for::<T>(&gradient));
        let chunk = chunk.min(points.next_multiple_of(LANES));
        let column = |name: &String| {
            let values = condition.points.column(name).unwrap_or_default();
            convert(values)
        };
        Self {
            name: condition.name.clone(),
            equation: equation.clone(),
            gradient: Planned::new::<T>(gradient, chunk, points),
            value: Planned::new::<T>(value, chunk, points),
            coordinates: (0..condition.points.dimension())
                .map(|c| convert(condition.points.coordinate(c)))
                .collect(),
            columns: equation.columns().iter().map(column).collect(),
            points,
            chunk,
            weight: condition.weight,
            point_weights: condition.point_weights.clone(),
            measure: condition.measure,
        }
    }

    fn chunk(&self, index: usize) -> Chunk<'_, T> {
        let start = index * self.chunk;
        Chunk {
            coordinates: &self.coordinates,
            columns: &self.columns,
            start,
            count: self.chunk.min(self.points - start),
        }
    }

    fn set_weight(&mut self, weight: f64) -> Result<(), Error> {
        check_weight(&self.name, self.measure, weight)?;
        self.weight = weight;
        Ok(())
    }

    fn set_point_weights(&mut self, weights: &[f64]) -> Result<(), Error> {
        check_point_weights(&self.name, weights, self.points)?;
        self.point_weights = Some(weights.to_vec());
        Ok(())
    }

    fn point_weight(&self, point: usize) -> f64 {
        self.point_weights
            .as_ref()
            .map_or(1.0, |weights| weights[point])
    }

    /// Σ q r² or Σ q r over the points of a chunk.
    fn sum(&self, residual: &[T], start: usize, count: usize) -> f64 {
        let terms = residual[..count].iter().enumerate().map(|(lane, r)| {
            let r = r.to_f64();
            let measured = match self.measure {
                Measure::Squares => r * r,
                Measure::Energy | Measure::Integral => r,
            };
            self.point_weight(start + lane) * measured
        });
        terms.sum()
    }

    /// The derivative of the loss in a residual; where the integral counts, `residual` is
    /// the integral.
    fn seed(&self, residual: f64, point: usize) -> f64 {
        let weight = self.weight * self.point_weight(point);
        let share = weight / self.points as f64;
        match self.measure {
            Measure::Squares => 2.0 * share * residual,
            Measure::Energy => share,
            Measure::Integral => 2.0 * weight * residual,
        }
    }

    /// The scale of a Gauss-Newton row.
    fn scale(&self, point: usize) -> f64 {
        (self.weight * self.point_weight(point) / self.points as f64).sqrt()
    }
}

/// The largest chunk whose arena stays in a core's cache, from 16 to 64 points.
fn chunk_for<T>(plan: &Plan) -> usize {
    let bytes = plan.layout(LANES, size_of::<T>()).len * size_of::<T>() / LANES;
    let fits = CACHE / bytes.max(1);
    (fits / LANES * LANES).clamp(LANES, CHUNK)
}
