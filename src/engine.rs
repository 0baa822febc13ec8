//! The engine: loss, gradient, residuals and Gauss-Newton rows of a problem, chunk by
//! chunk, in parallel. Knows nothing of optimisers.
//!
//! Points are cut into chunks of fixed size, chunks into groups, by the number of points
//! and parameters alone. A group adds up its chunks in order, groups are added in order:
//! the bits of the result do not depend on the number of threads.

use crate::count::{Candidate, Counts, candidates, ways};
use crate::error::{Error, Origin, check_finite};
use crate::kernel::simd::InstructionSet;
use crate::linear::linearised;
use crate::lower::Lowering;
use crate::parameters::{Block, Parameters};
use crate::plan::{LANES, Layout, Plan, Step, Sweep, WeightKey, WeightTable};
use crate::problem::{Condition, Measure, Points, Problem};
use crate::real::Real;
use crate::record::Equation;
use crate::replay::{Chunk, Replay, Sink, Weights, Workspace, holds};
use crate::tape::{NodeId, Op, Tape};
use rayon::prelude::*;
use std::any::Any;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

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
    /// How derivatives in the coordinates are computed.
    pub lowering: Lowering,
    /// Whether elementals are computed anew in the reverse sweep, which keeps less for it.
    /// The result has the same bits.
    pub recompute: bool,
    /// Bytes that an evaluation may allocate, above those of the problem itself. What is
    /// left open above (the chunk, recomputation, a lowering that is [`Lowering::Auto`]) is
    /// chosen to fit, the fastest that does; threads that do not fit are left out.
    pub memory: Option<usize>,
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

    /// A way to compute derivatives in the coordinates.
    #[must_use]
    pub fn lowering(mut self, lowering: Lowering) -> Self {
        self.lowering = lowering;
        self
    }

    /// A number of bytes that an evaluation may allocate.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Less memory for more work: elementals are computed anew in the reverse sweep.
    #[must_use]
    pub fn recompute(mut self, recompute: bool) -> Self {
        self.recompute = recompute;
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
///
/// # Batches
/// A gradient is returned, and never added to one of before: there is no state to be
/// cleared. The loss of a condition is a mean over its points, so that of a set is the sum
/// over its parts, each times its share of the points; the gradients alike.
///
/// ```
/// use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Error, Parameters, Points, Problem};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 8, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [y] = net.at(&[t]);
///     y.d(t) + y
/// })?;
/// let gradient = |rows: &[[f64; 1]]| -> Result<Vec<f64>, Error> {
///     let condition = Condition::new(&decay, Points::from_rows(rows)?);
///     let engine = Engine::new(&Problem::new(&params, [condition])?)?;
///     Ok(engine.evaluate(params.values())?.gradient)
/// };
/// let rows = [[0.0], [0.3], [0.5], [0.9], [1.0]];
/// let (first, second, all) = (gradient(&rows[..2])?, gradient(&rows[2..])?, gradient(&rows)?);
/// for ((a, b), whole) in first.iter().zip(&second).zip(&all) {
///     assert!((0.4 * a + 0.6 * b - whole).abs() < 1e-14);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    core: Core,
    /// The same conditions along a vector of the parameters, once somebody asks.
    linear: OnceLock<Core>,
    options: Options,
    names: Vec<String>,
    /// What the core was compiled from, as it is now.
    conditions: Vec<Condition>,
    blocks: Vec<Block>,
    pool: Option<rayon::ThreadPool>,
}

#[derive(Debug)]
enum Core {
    Double(Runner<f64>),
    Single(Runner<f32>),
}

/// How the engine computes a condition.
#[derive(Debug, Clone)]
pub struct ConditionPlan {
    /// Its name.
    pub condition: String,
    /// How derivatives are computed; never [`Lowering::Auto`].
    pub lowering: Lowering,
    /// Whether elementals are computed anew in the reverse sweep.
    pub recompute: bool,
    /// Points a chunk.
    pub chunk: usize,
    /// What it costs.
    pub counts: Counts,
}

impl Core {
    fn new(problem: &Problem, options: &Options) -> Result<Self, Error> {
        Ok(match options.precision {
            Precision::Double => Self::Double(Runner::new(problem, options)?),
            Precision::Single => Self::Single(Runner::new(problem, options)?),
        })
    }

    fn change(&mut self, place: usize, condition: &Condition) {
        match self {
            Self::Double(runner) => runner.change(place, condition),
            Self::Single(runner) => runner.change(place, condition),
        }
    }

    fn run(
        &self,
        theta: &[f64],
        want: Want<'_>,
        losses: &mut [f64],
        gradient: &mut [f64],
        pool: Option<&rayon::ThreadPool>,
    ) {
        match self {
            Self::Double(runner) => runner.run(theta, want, losses, gradient, pool),
            Self::Single(runner) => runner.run(theta, want, losses, gradient, pool),
        }
    }

    fn scaled_residuals(&self, theta: &[f64], count: usize) -> Vec<f64> {
        match self {
            Self::Double(runner) => runner.scaled_residuals(theta, count),
            Self::Single(runner) => runner.scaled_residuals(theta, count),
        }
    }

    /// Bytes of an evaluation on so many threads, its result included.
    fn bytes(&self, workers: usize) -> usize {
        match self {
            Self::Double(runner) => runner.bytes(workers),
            Self::Single(runner) => runner.bytes(workers),
        }
    }
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
#[non_exhaustive]
pub struct Rows<'a> {
    /// Which condition, by its place.
    pub condition: usize,
    /// Which points of the condition.
    pub points: Range<usize>,
    /// Which residual of the equation.
    pub output: usize,
    /// Scaled residuals, one a point.
    pub residuals: &'a [f64],
    jacobian: &'a [f64],
    stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows of an own sum of squares: scaled residuals, and for each parameter the
    /// derivatives of all of them, parameter by parameter.
    ///
    /// ```
    /// use dualtape::Rows;
    ///
    /// // r = (a + 2b, 3a) at a = 1, b = 0.
    /// let rows = Rows::new(&[1.0, 3.0], &[1.0, 3.0, 2.0, 0.0])?;
    /// assert_eq!((rows.parameters(), rows.parameter(1)), (2, &[2.0, 0.0][..]));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No residual; a number of derivatives that is no multiple of theirs.
    pub fn new(residuals: &'a [f64], jacobian: &'a [f64]) -> Result<Self, Error> {
        if residuals.is_empty() {
            return Err(Error::Empty {
                what: "the list of residuals".to_owned(),
            });
        }
        if !jacobian.len().is_multiple_of(residuals.len()) {
            return Err(Error::OutOfRange {
                what: "the number of derivatives of residuals".to_owned(),
                given: jacobian.len().to_string(),
                expected: format!("a multiple of {}, the number of residuals", residuals.len()),
            });
        }
        Ok(Self {
            condition: 0,
            points: 0..residuals.len(),
            output: 0,
            residuals,
            jacobian,
            stride: residuals.len(),
        })
    }

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

    /// All derivatives, parameter by parameter, and from one parameter to the next.
    pub(crate) fn jacobian(&self) -> (&[f64], usize) {
        (self.jacobian, self.stride)
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
        let out = |given: String| Error::OutOfRange {
            what: "the number of threads".to_owned(),
            given,
            expected: format!("from 1 to {MAX_THREADS}, as many as the system lets start"),
        };
        if let Some(threads) = options.threads
            && (threads == 0 || threads > MAX_THREADS)
        {
            return Err(out(threads.to_string()));
        }
        let core = Core::new(problem, options)?;
        // As many as fit into the budget, one at least.
        let wanted = options.threads.unwrap_or_else(rayon::current_num_threads);
        let workers = match options.memory {
            Some(bytes) => (1..=wanted)
                .rev()
                .find(|&workers| core.bytes(workers) <= bytes)
                .unwrap_or(1),
            None => wanted,
        };
        let pool = if options.threads.is_some() || workers < wanted {
            let built = rayon::ThreadPoolBuilder::new().num_threads(workers).build();
            let pool = built.map_err(|error| out(format!("{workers} ({error})")))?;
            // Up before the first evaluation, which would else pay for their start.
            pool.broadcast(|_| ());
            Some(pool)
        } else {
            None
        };
        Ok(Self {
            core,
            linear: OnceLock::new(),
            options: options.clone(),
            names: problem.conditions.iter().map(|c| c.name.clone()).collect(),
            conditions: problem.conditions.clone(),
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

    /// How each condition is computed, in order.
    pub fn plans(&self) -> Vec<&ConditionPlan> {
        match &self.core {
            Core::Double(runner) => runner.conditions.iter().map(|c| &c.choice).collect(),
            Core::Single(runner) => runner.conditions.iter().map(|c| &c.choice).collect(),
        }
    }

    /// Bytes that [`evaluate`](Self::evaluate) allocates, its result included, predicted
    /// without running it. It does not depend on the number of points.
    pub fn predicted_bytes(&self) -> usize {
        self.core.bytes(threads(self.pool.as_ref()))
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
    /// points, all outputs of a chunk before the next. Some chunks are computed at a time,
    /// in parallel; never are all rows held.
    ///
    /// # Errors
    /// As [`residuals`](Self::residuals); a condition that is an energy.
    pub fn rows(
        &self,
        condition: &str,
        theta: &[f64],
        mut visit: impl FnMut(Rows<'_>),
    ) -> Result<(), Error> {
        let place = self.place(condition)?;
        self.visit_rows(place..place + 1, theta, &mut visit)
    }

    /// Gauss-Newton rows of all conditions, one after the other, each as
    /// [`rows`](Self::rows) does.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn all_rows(&self, theta: &[f64], mut visit: impl FnMut(Rows<'_>)) -> Result<(), Error> {
        self.visit_rows(0..self.names.len(), theta, &mut visit)
    }

    /// Not generic: the crate that calls it need not compile the kernels again.
    fn visit_rows(
        &self,
        places: Range<usize>,
        theta: &[f64],
        visit: &mut dyn FnMut(Rows<'_>),
    ) -> Result<(), Error> {
        self.squares(places.clone())?;
        self.check(theta)?;
        let pool = self.pool.as_ref();
        match &self.core {
            Core::Double(runner) => runner.rows(places, theta, pool, visit),
            Core::Single(runner) => runner.rows(places, theta, pool, visit),
        }
        Ok(())
    }

    /// How many Gauss-Newton rows there are: points times outputs, over all conditions.
    ///
    /// # Errors
    /// A condition that is an energy.
    pub fn row_count(&self) -> Result<usize, Error> {
        self.squares(0..self.names.len())?;
        let rows = |c: &Condition| match c.measure {
            Measure::Integral => c.equation.tape().roots().len(),
            _ => c.points.len() * c.equation.tape().roots().len(),
        };
        Ok(self.conditions.iter().map(rows).sum())
    }

    /// JᵀJ·v, with J the rows of all conditions: a forward pass along v and one reverse sweep,
    /// in parallel. No row is made, so that time and memory are those of a few gradients.
    ///
    /// The first call compiles the equations along v, which from then on take memory beside
    /// those of the loss, within a budget of the same size.
    ///
    /// # Errors
    /// As [`rows`](Self::rows); a vector of another length than the parameters, or not finite; a
    /// memory budget that is too small.
    pub fn gauss_newton(&self, theta: &[f64], v: &[f64]) -> Result<Vec<f64>, Error> {
        let linear = self.linear(theta, v)?;
        // ½‖J·v‖² has this gradient in v.
        let mut gradient = vec![0.0; 2 * v.len()];
        let mut losses = vec![0.0; self.names.len()];
        let along = [theta, v].concat();
        let pool = self.pool.as_ref();
        linear.run(&along, Want::Gradient, &mut losses, &mut gradient, pool);
        Ok(gradient[v.len()..].iter().map(|g| 0.5 * g).collect())
    }

    /// J·v, the derivative of all scaled residuals along v, in the order of
    /// [`all_rows`](Self::all_rows): a forward pass, in parallel.
    ///
    /// # Errors
    /// As [`gauss_newton`](Self::gauss_newton).
    pub fn along(&self, theta: &[f64], v: &[f64]) -> Result<Vec<f64>, Error> {
        let linear = self.linear(theta, v)?;
        let (along, count) = ([theta, v].concat(), self.row_count()?);
        Ok(self.within(|| linear.scaled_residuals(&along, count)))
    }

    /// The conditions along v.
    fn linear(&self, theta: &[f64], v: &[f64]) -> Result<&Core, Error> {
        self.squares(0..self.names.len())?;
        self.check(theta)?;
        let parameters = self.parameters();
        if v.len() != parameters {
            return Err(Error::length("entries of v", v.len(), parameters));
        }
        check_finite("entry of v", v)?;
        if let Some(linear) = self.linear.get() {
            return Ok(linear);
        }
        let along = |condition: &Condition| {
            let tape = linearised(condition.equation.tape(), parameters);
            Ok(Condition {
                equation: condition.equation.with_tape(tape)?,
                ..condition.clone()
            })
        };
        let problem = Problem {
            conditions: self
                .conditions
                .iter()
                .map(along)
                .collect::<Result<_, _>>()?,
            parameters: 2 * parameters,
            blocks: Vec::new(),
        };
        let linear = Core::new(&problem, &self.options)?;
        Ok(self.linear.get_or_init(|| linear))
    }

    /// Jᵀ·s for one number a scaled residual, in the order of [`all_rows`](Self::all_rows):
    /// a reverse sweep, in parallel.
    ///
    /// # Errors
    /// As [`rows`](Self::rows); another number of entries than rows.
    pub fn transposed(&self, theta: &[f64], s: &[f64]) -> Result<Vec<f64>, Error> {
        let count = self.row_count()?;
        self.check(theta)?;
        if s.len() != count {
            return Err(Error::length("entries of s", s.len(), count));
        }
        let mut product = vec![0.0; self.parameters()];
        let mut losses = vec![0.0; self.names.len()];
        let (want, pool) = (Want::Transposed(s), self.pool.as_ref());
        self.core.run(theta, want, &mut losses, &mut product, pool);
        Ok(product)
    }

    /// The scaled residuals, in the order of [`all_rows`](Self::all_rows), by a forward pass
    /// in parallel. Values that are not finite are given as they are.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn scaled_residuals(&self, theta: &[f64]) -> Result<Vec<f64>, Error> {
        let count = self.row_count()?;
        self.check(theta)?;
        Ok(self.within(|| self.core.scaled_residuals(theta, count)))
    }

    /// Runs `work` on the threads of this engine, so that rayon inside it uses those.
    pub fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// The points of a condition.
    ///
    /// # Errors
    /// No such condition.
    pub fn points(&self, condition: &str) -> Result<&Points, Error> {
        Ok(&self.conditions[self.place(condition)?].points)
    }

    /// Puts a condition on other points, as many as you like, with the data columns that it
    /// reads. Its weights of points are dropped; plans, threads and memory are kept.
    ///
    /// ```
    /// # use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem};
    /// # let mut params = Parameters::new();
    /// # let net = params.mlp("y", &[1, 8, 1], Tanh)?;
    /// # let decay = Equation::record("decay", &params, ["t"], |[t]| {
    /// #     let [y] = net.at(&[t]);
    /// #     y.d(t) + y
    /// # })?;
    /// # let points = Points::grid(&[(0.0, 1.0, 30)])?;
    /// # let problem = Problem::new(&params, [Condition::new(&decay, points)])?;
    /// let mut engine = Engine::new(&problem)?;
    /// engine.set_points("decay", Points::grid(&[(0.0, 1.0, 50)])?)?;
    /// assert_eq!(engine.points("decay")?.len(), 50);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No such condition; points of another dimension, a data column that is missing. The
    /// engine is then unchanged.
    pub fn set_points(&mut self, condition: &str, points: Points) -> Result<(), Error> {
        self.change(condition, |c| {
            c.points = points;
            c.point_weights = None;
        })
    }

    /// Gives a condition another weight.
    ///
    /// # Errors
    /// No such condition; a weight that is not finite, or negative for a mean of squares.
    pub fn set_weight(&mut self, condition: &str, weight: f64) -> Result<(), Error> {
        self.change(condition, |c| c.weight = weight)
    }

    /// The weight of a condition.
    ///
    /// # Errors
    /// No such condition.
    pub fn weight(&self, condition: &str) -> Result<f64, Error> {
        Ok(self.conditions[self.place(condition)?].weight)
    }

    /// Gives the points of a condition other weights, or none.
    ///
    /// # Errors
    /// No such condition; another number of weights than points, negative ones.
    pub fn set_point_weights(
        &mut self,
        condition: &str,
        weights: Option<&[f64]>,
    ) -> Result<(), Error> {
        self.change(condition, |c| {
            c.point_weights = weights.map(<[f64]>::to_vec)
        })
    }

    /// The weights of the points of a condition, if it has any.
    ///
    /// # Errors
    /// No such condition.
    pub fn point_weights(&self, condition: &str) -> Result<Option<&[f64]>, Error> {
        Ok(self.conditions[self.place(condition)?]
            .point_weights
            .as_deref())
    }

    /// Changes points or weights of a condition.
    fn change(
        &mut self,
        condition: &str,
        change: impl FnOnce(&mut Condition),
    ) -> Result<(), Error> {
        let place = self.place(condition)?;
        let mut changed = self.conditions[place].clone();
        change(&mut changed);
        changed.check_points()?;
        self.core.change(place, &changed);
        if let Some(linear) = self.linear.get_mut() {
            linear.change(place, &changed);
        }
        self.conditions[place] = changed;
        Ok(())
    }

    /// Whether conditions are means of squares, so that they have rows.
    fn squares(&self, places: Range<usize>) -> Result<(), Error> {
        let energy = |c: &&Condition| c.measure == Measure::Energy;
        match self.conditions[places].iter().find(energy) {
            Some(condition) => Err(Error::NoRows {
                condition: condition.name.clone(),
            }),
            None => Ok(()),
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
        want: Want<'_>,
        losses: &mut [f64],
        gradient: &mut [f64],
    ) -> Result<(), Error> {
        self.check(theta)?;
        let pool = self.pool.as_ref();
        self.core.run(theta, want, losses, gradient, pool);
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
                origin: match &self.core {
                    Core::Double(runner) => runner.origin(index, theta),
                    Core::Single(runner) => runner.origin(index, theta),
                }
                .map(Box::new),
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
    let problem = Problem::watched(parameters, &condition)?;
    let runner = Runner::<f64>::new(&problem, &Options::default())?;
    Ok(runner.residuals(0, parameters.values()))
}

/// Points a chunk where nothing speaks against it.
const MAX_CHUNK: usize = 64;
/// Bytes that a chunk's arena should not exceed: some caches of a core, since a layer and
/// its neighbours are in use at a time. From 16 to 64 points a chunk, this is the best size
/// measured for widths 64 and 128 and for a Laplacian in 100 coordinates.
const CACHE: usize = 4 << 20;
/// Groups of a condition: enough to balance, few enough that their gradients stay small.
const GROUPS: usize = 16;
/// Bytes that all gradients of a condition's groups may take.
const GRADIENT_BYTES: usize = 1 << 24;
/// Bytes that a block of Gauss-Newton rows should not exceed, where 16 points allow it.
const ROW_BLOCK_BYTES: usize = 1 << 20;
/// Operations below which threads cost more than they bring.
const SERIAL: usize = 3_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Want<'a> {
    Loss,
    Gradient,
    ByCondition,
    /// Jᵀ·s.
    Transposed(&'a [f64]),
}

#[derive(Debug)]
struct Compiled<T> {
    name: String,
    /// As it was recorded, to say where numbers go wrong.
    recorded: Equation,
    equation: Equation,
    choice: ConditionPlan,
    /// Points a chunk, if there are as many.
    most: usize,
    parameters: usize,
    gradient: Planned,
    value: Planned,
    sink: RowPlan,
    coordinates: Vec<Vec<T>>,
    columns: Vec<Vec<T>>,
    points: usize,
    chunk: usize,
    weight: f64,
    point_weights: Option<Vec<f64>>,
    measure: Measure,
}

/// A plan with its layouts.
#[derive(Debug)]
struct Planned {
    plan: Plan,
    layouts: Layouts,
}

impl Planned {
    fn new(plan: Plan) -> Self {
        Self {
            layouts: Layouts::new::<f64>(&plan, LANES, LANES),
            plan,
        }
    }
}

/// A plan's layouts for whole chunks and for the last one.
#[derive(Debug)]
struct Layouts {
    whole: Layout,
    last: Layout,
}

impl Layouts {
    fn new<T>(plan: &Plan, chunk: usize, points: usize) -> Self {
        let rest = (points - 1) % chunk + 1;
        Self {
            whole: plan.layout(chunk, size_of::<T>()),
            last: plan.layout(rest.next_multiple_of(LANES), size_of::<T>()),
        }
    }

    fn of(&self, count: usize) -> &Layout {
        if count.next_multiple_of(LANES) == self.whole.lanes {
            &self.whole
        } else {
            &self.last
        }
    }
}

/// How the reverse sweep fills rows: which of its steps are the first to write what they
/// write, and which parameters no such step writes.
#[derive(Debug)]
struct RowPlan {
    first: Vec<bool>,
    idle: Vec<Range<usize>>,
    /// Points a block of rows; divides the points a chunk.
    chunk: usize,
    layouts: Layouts,
}

impl RowPlan {
    /// Points a block: few enough for the block to stay in a core's cache until it is read.
    fn block<T>(chunk: usize, parameters: usize) -> usize {
        let fits = |size: &usize| size * parameters * size_of::<T>() <= ROW_BLOCK_BYTES;
        let mut powers = [64, 32, LANES]
            .into_iter()
            .filter(|size| chunk.is_multiple_of(*size));
        powers.find(fits).unwrap_or(LANES)
    }

    fn new(plan: &Plan, keys: &[WeightKey], parameters: usize) -> Self {
        let mut seen = vec![false; parameters];
        let mut owned = seen.clone();
        let mut first = Vec::with_capacity(plan.reverse.len());
        for step in &plan.reverse {
            let written = match step {
                Step::AffineAdjoint {
                    weight,
                    bias,
                    held: false,
                    ..
                } => {
                    let key = keys[*weight];
                    let bias = bias.map(|bias| bias..bias + key.rows);
                    let weights = key.offset..key.offset + key.rows * key.columns;
                    [Some(weights), bias]
                }
                Step::ParameterAdjoint { index, .. } => [Some(*index..index + 1), None],
                _ => [None, None],
            };
            let mut written = written.into_iter().flatten();
            let own = !written.clone().flatten().any(|index| seen[index]);
            for index in written.by_ref().flatten() {
                seen[index] = true;
                owned[index] |= own;
            }
            first.push(own);
        }
        let mut idle: Vec<Range<usize>> = Vec::new();
        for index in (0..parameters).filter(|&index| !owned[index]) {
            match idle.last_mut() {
                Some(range) if range.end == index => range.end += 1,
                _ => idle.push(index..index + 1),
            }
        }
        Self {
            first,
            idle,
            chunk: LANES,
            layouts: Layouts::new::<f64>(plan, LANES, LANES),
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
    /// Groups a condition, at most.
    groups: usize,
    /// Numbers of arena and scratch of the largest plan.
    room: (usize, usize),
    weights: WeightTable,
    parameters: usize,
    flops: usize,
    set: InstructionSet,
    states: Mutex<Vec<State<T>>>,
    workspaces: Mutex<Vec<Workspace<T>>>,
    blocks: Mutex<Vec<Vec<T>>>,
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
    fn new(problem: &Problem, options: &Options) -> Result<Self, Error> {
        if options.memory.is_none() {
            return Self::grouped(problem, options, GROUPS);
        }
        // Fewer groups have fewer gradients, if nothing else helps.
        let mut made = Self::grouped(problem, options, GROUPS);
        let mut groups = GROUPS;
        while groups > 1 && matches!(made, Err(Error::MemoryBudget { .. })) {
            groups /= 2;
            made = Self::grouped(problem, options, groups);
        }
        made
    }

    /// With so many groups a condition, at most.
    fn grouped(problem: &Problem, options: &Options, most: usize) -> Result<Self, Error> {
        let set = options.instructions.unwrap_or_else(InstructionSet::detect);
        let room = options.memory.map(|bytes| Room {
            bytes,
            fixed: fixed_bytes::<T>(problem, options, most),
        });
        let mut weights = WeightTable::default();
        let mut conditions = Vec::with_capacity(problem.conditions.len());
        for condition in &problem.conditions {
            let choice = choose::<T>(condition, options, set, room)?;
            let count = problem.parameters;
            conditions.push(Compiled::new(condition, &mut weights, choice, count));
        }
        let mut runner = Self {
            flops: 0,
            conditions,
            tasks: Vec::new(),
            groups: most,
            room: (0, 0),
            weights,
            parameters: problem.parameters,
            set,
            states: Mutex::default(),
            workspaces: Mutex::default(),
            blocks: Mutex::default(),
        };
        runner.share_out();
        Ok(runner)
    }

    fn bytes(&self, workers: usize) -> usize {
        let size = size_of::<T>();
        let seeds = |task: &Task| {
            let condition = &self.conditions[task.condition];
            condition.choice.chunk.min(condition.points) * size
        };
        let shares = size_of::<Share<T>>() + self.parameters * size;
        let result = (self.conditions.len() + self.parameters) * size_of::<f64>();
        Weights::<T>::bytes(self.parameters, &self.weights.keys)
            + self.tasks.len() * shares
            + self.tasks.iter().map(seeds).sum::<usize>()
            + SHELF * (size_of::<State<T>>() + size_of::<Workspace<T>>())
            + result
            + workers.min(self.tasks.len()) * Workspace::<T>::bytes(self.room)
    }

    /// Cuts the conditions into tasks.
    fn share_out(&mut self) {
        self.tasks.clear();
        for (place, condition) in self.conditions.iter().enumerate() {
            let chunks = condition.points.div_ceil(condition.chunk);
            let groups = groups::<T>(chunks, self.parameters, self.groups);
            self.tasks.extend((0..groups).map(|g| Task {
                condition: place,
                chunks: g * chunks / groups..(g + 1) * chunks / groups,
            }));
        }
        let flops = |c: &Compiled<T>| c.gradient.plan.flops.saturating_mul(c.points);
        let flops = self.conditions.iter().map(flops);
        self.flops = flops.fold(0, usize::saturating_add);
        self.room = (0, 0);
        for planned in self.conditions.iter().flat_map(|c| [&c.gradient, &c.value]) {
            let Layouts { whole, last } = &planned.layouts;
            let scratch = planned.plan.scratch * whole.lanes;
            self.room.0 = self.room.0.max(whole.len).max(last.len);
            self.room.1 = self.room.1.max(scratch);
        }
    }

    /// Takes over points and weights of a condition.
    fn change(&mut self, place: usize, condition: &Condition) {
        self.conditions[place].take(condition);
        self.share_out();
    }

    fn run(
        &self,
        theta: &[f64],
        want: Want<'_>,
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
        let measured = !matches!(want, Want::Transposed(_));
        if measured && self.has_integrals() {
            self.each(shares, pool, |task, workspace, share| {
                self.integrate(task, weights, workspace, share);
            });
            self.collect_integrals(shares, integrals);
        }
        let integrals = &*integrals;
        self.each(shares, pool, |task, workspace, share| match want {
            Want::Loss => self.values(task, weights, workspace, share),
            Want::Transposed(s) => self.gradient(task, Some(s), weights, &[], workspace, share),
            Want::Gradient | Want::ByCondition => {
                let whole = integrals.get(task.condition).map_or(&[][..], Vec::as_slice);
                self.gradient(task, None, weights, whole, workspace, share);
            }
        });
        // In the order of the tasks, whoever did them.
        losses.fill(0.0);
        gradient.fill(0.0);
        for (task, share) in self.tasks.iter().zip(&*shares) {
            losses[task.condition] += share.sum;
            let to = match want {
                Want::Loss => continue,
                Want::Gradient | Want::Transposed(_) => &mut gradient[..],
                Want::ByCondition => {
                    &mut gradient[task.condition * self.parameters..][..self.parameters]
                }
            };
            for (to, from) in to.iter_mut().zip(&share.gradient) {
                *to += from.to_f64();
            }
        }
        if measured {
            for (place, (loss, condition)) in losses.iter_mut().zip(&self.conditions).enumerate() {
                if condition.measure == Measure::Integral {
                    *loss = condition.weight * integrals[place].iter().map(|s| s * s).sum::<f64>();
                } else {
                    *loss *= condition.weight / condition.points as f64;
                }
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
            workspace.reserve(self.room);
            work(task, &mut workspace, share);
            give_back(&self.workspaces, workspace);
        };
        let serial = self.flops < SERIAL;
        each_of(serial, pool, shares, &self.tasks, |share, task| {
            work(task, share);
        });
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
        let plan = &condition.value.plan;
        share.integrals.resize(plan.roots.len(), 0.0);
        for chunk in task.chunks.clone() {
            let chunk = condition.piece(condition.chunk, chunk);
            let replay = self.replay(plan, &condition.value.layouts, chunk.count, weights);
            replay.forward(chunk, workspace);
            for (root, sum) in plan.roots.iter().zip(&mut share.integrals) {
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
        plan: &'a Plan,
        layouts: &'a Layouts,
        count: usize,
        weights: &'a Weights<T>,
    ) -> Replay<'a, T> {
        Replay {
            plan,
            layout: layouts.of(count),
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
            let chunk = condition.piece(condition.chunk, chunk);
            let replay = self.replay(
                &condition.value.plan,
                &condition.value.layouts,
                chunk.count,
                weights,
            );
            replay.forward(chunk, workspace);
            for root in &replay.plan.roots {
                if let Some(residual) = replay.residual(root, workspace) {
                    share.sum += condition.sum(residual, chunk.start, chunk.count);
                }
            }
        }
    }

    /// The gradient, or the sweep from seeds for all scaled residuals.
    fn gradient(
        &self,
        task: &Task,
        seeds: Option<&[f64]>,
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
            let chunk = condition.piece(condition.chunk, chunk);
            let replay = self.replay(
                &condition.gradient.plan,
                &condition.gradient.layouts,
                chunk.count,
                weights,
            );
            replay.forward(chunk, workspace);
            replay.clear_seeds(workspace);
            for (output, root) in replay.plan.roots.iter().enumerate() {
                let Some(residual) = replay.residual(root, workspace) else {
                    continue;
                };
                let integral = integrals.get(output).copied();
                share.sum += condition.sum(residual, chunk.start, chunk.count);
                share.seeds.clear();
                let points = chunk.start..chunk.start + chunk.count;
                share
                    .seeds
                    .extend(residual.iter().zip(points).map(|(r, point)| {
                        T::from_f64(match seeds {
                            None => condition.seed(integral.unwrap_or_else(|| r.to_f64()), point),
                            Some(s) => {
                                let row = condition.row(point, output);
                                condition.scale(point) * s[self.first_row(task.condition) + row]
                            }
                        })
                    }));
                replay.seed(root, workspace, share.seeds.iter().copied());
            }
            replay.reverse(workspace, Sink::Gradient(&mut share.gradient));
        }
    }

    /// The place of a condition's first Gauss-Newton row.
    fn first_row(&self, place: usize) -> usize {
        self.conditions[..place].iter().map(Compiled::rows).sum()
    }

    fn scaled_residuals(&self, theta: &[f64], count: usize) -> Vec<f64> {
        let mut all = vec![0.0; count];
        for (place, condition) in self.conditions.iter().enumerate() {
            let first = self.first_row(place);
            for (output, list) in self.residuals(place, theta).iter().enumerate() {
                for (point, r) in list.iter().enumerate() {
                    // An integral is a sum of all points.
                    let r = condition.scale(point) * r;
                    let row = &mut all[first + condition.row(point, output)];
                    *row = if condition.measure == Measure::Integral {
                        *row + r
                    } else {
                        r
                    };
                }
            }
        }
        all
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
                let chunk = condition.piece(condition.chunk, chunk);
                let replay = self.replay(
                    &condition.value.plan,
                    &condition.value.layouts,
                    chunk.count,
                    &weights,
                );
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

    /// The rows of one output at one piece of the points, with the scaled residuals after
    /// them: gives the number of lanes. Lanes without a point are 0.
    fn block(
        &self,
        condition: &Compiled<T>,
        piece: usize,
        output: usize,
        weights: &Weights<T>,
        workspace: &mut Workspace<T>,
        block: &mut Vec<T>,
    ) -> usize {
        let sink = &condition.sink;
        let chunk = condition.piece(sink.chunk, piece);
        let plan = &condition.gradient.plan;
        let replay = self.replay(plan, &sink.layouts, chunk.count, weights);
        let lanes = replay.layout.lanes;
        // The sweep reuses buffers of the forward pass, so each output starts anew.
        replay.forward(chunk, workspace);
        replay.clear_seeds(workspace);
        let root = &replay.plan.roots[output];
        let len = self.parameters * lanes;
        block.resize((len + lanes).max(block.len()), T::ZERO);
        let (rows, residuals) = block.split_at_mut(len);
        let residuals = &mut residuals[..lanes];
        residuals.fill(T::ZERO);
        let scale = |lane: usize| T::from_f64(condition.scale(chunk.start + lane));
        if let Some(values) = replay.residual(root, workspace) {
            for (lane, (r, &value)) in residuals[..chunk.count].iter_mut().zip(values).enumerate() {
                *r = scale(lane) * value;
            }
        }
        replay.seed(root, workspace, (0..chunk.count).map(scale));
        for range in &sink.idle {
            rows[range.start * lanes..range.end * lanes].fill(T::ZERO);
        }
        let first = &sink.first;
        replay.reverse(workspace, Sink::Rows { rows, first });
        lanes
    }

    fn rows(
        &self,
        places: Range<usize>,
        theta: &[f64],
        pool: Option<&rayon::ThreadPool>,
        visit: &mut dyn FnMut(Rows<'_>),
    ) {
        let mut weights = Weights::default();
        weights.load(theta, &self.weights.keys);
        for place in places {
            let condition = &self.conditions[place];
            if condition.measure == Measure::Integral {
                self.integral_rows(place, condition, &weights, visit);
            } else {
                self.point_rows(place, &weights, pool, visit);
            }
        }
    }

    fn point_rows(
        &self,
        place: usize,
        weights: &Weights<T>,
        pool: Option<&rayon::ThreadPool>,
        visit: &mut dyn FnMut(Rows<'_>),
    ) {
        let condition = &self.conditions[place];
        // What is computed at a time: one output of one chunk each.
        let outputs = condition.gradient.plan.roots.len();
        let units: Vec<(usize, usize)> = (0..condition.points.div_ceil(condition.sink.chunk))
            .flat_map(|piece| (0..outputs).map(move |output| (piece, output)))
            .collect();
        // Two a thread: read before they leave the caches.
        let batch = 2 * threads(pool);
        let mut blocks: Vec<(Vec<T>, usize)> = Vec::new();
        blocks.resize_with(batch.min(units.len()), || (take(&self.blocks), 0));
        let mut converted = Vec::new();
        for units in units.chunks(batch) {
            let serial = self.flops < SERIAL / 4;
            each_of(serial, pool, &mut blocks, units, |(block, lanes), unit| {
                let mut workspace: Workspace<T> = take(&self.workspaces);
                let &(piece, output) = unit;
                *lanes = self.block(condition, piece, output, weights, &mut workspace, block);
                give_back(&self.workspaces, workspace);
            });
            for ((block, lanes), &(piece, output)) in blocks.iter().zip(units) {
                let chunk = condition.piece(condition.sink.chunk, piece);
                let numbers = doubles(block, &mut converted);
                let (rows, residuals) = numbers.split_at(self.parameters * lanes);
                visit(Rows {
                    condition: place,
                    points: chunk.start..chunk.start + chunk.count,
                    output,
                    residuals: &residuals[..chunk.count],
                    jacobian: rows,
                    stride: *lanes,
                });
            }
        }
        for (block, _) in blocks {
            give_back(&self.blocks, block);
        }
    }

    /// One row for each output: √w Σ q r.
    fn integral_rows(
        &self,
        place: usize,
        condition: &Compiled<T>,
        weights: &Weights<T>,
        visit: &mut dyn FnMut(Rows<'_>),
    ) {
        let mut workspace: Workspace<T> = take(&self.workspaces);
        let root_weight = condition.weight.sqrt();
        let (plan, layouts) = (&condition.gradient.plan, &condition.gradient.layouts);
        for (output, root) in plan.roots.iter().enumerate() {
            let mut row = vec![T::ZERO; self.parameters];
            let mut integral = 0.0;
            for chunk in 0..condition.points.div_ceil(condition.chunk) {
                let chunk = condition.piece(condition.chunk, chunk);
                let replay = self.replay(plan, layouts, chunk.count, weights);
                replay.forward(chunk, &mut workspace);
                replay.clear_seeds(&mut workspace);
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
                condition: place,
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
        // The recorded tape has the user's own nodes; only overflows may be another's.
        let equations = [&condition.recorded, &condition.equation];
        equations
            .into_iter()
            .find_map(|equation| self.first_bad_value(condition, equation, theta))
            // Finite residuals whose squares or sum overflow.
            .unwrap_or_else(|| Error::OutOfRange {
                what: format!("the loss of condition `{}`", condition.name),
                given: loss.to_string(),
                expected: "its residuals are finite but too large to be added up".to_owned(),
            })
    }

    /// The first point whose part of the gradient in a parameter is not finite, and the node
    /// that makes it so.
    fn origin(&self, index: usize, theta: &[f64]) -> Option<Origin> {
        let mut weights = Weights::default();
        weights.load(theta, &self.weights.keys);
        let mut workspace: Workspace<T> = take(&self.workspaces);
        let mut block: Vec<T> = take(&self.blocks);
        for condition in &self.conditions {
            for piece in 0..condition.points.div_ceil(condition.sink.chunk) {
                for output in 0..condition.gradient.plan.roots.len() {
                    let lanes = self.block(
                        condition,
                        piece,
                        output,
                        &weights,
                        &mut workspace,
                        &mut block,
                    );
                    let chunk = condition.piece(condition.sink.chunk, piece);
                    let row = &block[index * lanes..][..chunk.count];
                    let Some(lane) = row.iter().position(|x| !x.is_finite()) else {
                        continue;
                    };
                    let point = chunk.start + lane;
                    let tape = condition.recorded.tape();
                    let node = self.first_steep(condition, output, point, theta);
                    return Some(Origin {
                        condition: condition.name.clone(),
                        point,
                        coordinates: condition.place(point),
                        node: node.map(|id| {
                            let node = &tape.nodes()[id];
                            (node.op.name(), node.source.to_string())
                        }),
                    });
                }
            }
        }
        None
    }

    /// The last node on the tape that leads to an output and whose own derivatives are not
    /// finite at a point.
    fn first_steep(
        &self,
        condition: &Compiled<T>,
        output: usize,
        point: usize,
        theta: &[f64],
    ) -> Option<NodeId> {
        let (tape, held) = (condition.recorded.tape(), condition.recorded.held());
        let mut keys = self.weights.clone();
        let plan = Plan::new(tape, held, &mut keys, Sweep::Inspect);
        let layouts = Layouts::new::<T>(&plan, condition.chunk, condition.points);
        let mut weights = Weights::default();
        weights.load(theta, &keys.keys);
        let mut workspace = Workspace::default();
        let chunk = condition.piece(condition.chunk, point / condition.chunk);
        let lane = point - chunk.start;
        let replay = Replay {
            plan: &plan,
            layout: layouts.of(chunk.count),
            keys: &keys.keys,
            weights: &weights,
            set: self.set,
        };
        replay.forward(chunk, &mut workspace);
        let rows = |id: NodeId| match plan.values[id] {
            Some(buffer) => replay.buffer(buffer, &workspace),
            None => Vec::new(),
        };
        let root = *tape.roots().get(output)?;
        let mut leads = vec![false; root + 1];
        leads[root] = true;
        for id in (0..=root).rev().filter(|&id| held[id].active) {
            if !leads[id] {
                continue;
            }
            let node = &tape.nodes()[id];
            if let Op::Elemental(elemental) = &node.op {
                let order = held[id].planes.order() + 1;
                let steep = |row: &&[T]| {
                    let taylor = elemental.taylor(row[lane], order);
                    taylor.is_ok_and(|c| c.iter().any(|c| !c.is_finite()))
                };
                if rows(node.inputs[0]).iter().any(steep) {
                    return Some(id);
                }
            }
            for (place, &input) in node.inputs.iter().enumerate() {
                leads[input] |= match &node.op {
                    Op::Select { or_equal } => {
                        let taken = |mask: &&[T]| holds(mask[lane], *or_equal) == (place == 1);
                        place > 0 && rows(node.inputs[0]).iter().any(taken)
                    }
                    _ => true,
                };
            }
        }
        None
    }

    fn first_bad_value(
        &self,
        condition: &Compiled<T>,
        equation: &Equation,
        theta: &[f64],
    ) -> Option<Error> {
        let tape = equation.tape();
        let mut keys = self.weights.clone();
        let plan = Plan::new(tape, equation.held(), &mut keys, Sweep::Inspect);
        let layouts = Layouts::new::<T>(&plan, condition.chunk, condition.points);
        let mut weights = Weights::default();
        weights.load(theta, &keys.keys);
        let mut workspace = Workspace::default();
        for chunk in 0..condition.points.div_ceil(condition.chunk) {
            let chunk = condition.piece(condition.chunk, chunk);
            let replay = Replay {
                plan: &plan,
                layout: layouts.of(chunk.count),
                keys: &keys.keys,
                weights: &weights,
                set: self.set,
            };
            replay.forward(chunk, &mut workspace);
            for (root, &output) in plan.roots.iter().zip(tape.roots()) {
                let Some(residual) = replay.residual(root, &workspace) else {
                    continue;
                };
                let bad = residual[..chunk.count].iter().position(|r| !r.is_finite());
                let Some(lane) = bad else {
                    continue;
                };
                let node = &tape.nodes()[first_bad(tape, output, &replay, lane, &workspace)];
                let point = chunk.start + lane;
                return Some(Error::NonFinite {
                    condition: condition.name.clone(),
                    point,
                    coordinates: condition.place(point),
                    value: residual[lane].to_f64(),
                    node: node.op.name(),
                    at: node.source.to_string(),
                });
            }
        }
        None
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

/// `f64` numbers as they are, others converted into `room`.
#[expect(
    clippy::ptr_arg,
    reason = "only a sized type can be compared with another"
)]
fn doubles<'a, T: Real>(numbers: &'a Vec<T>, room: &'a mut Vec<f64>) -> &'a [f64] {
    match (numbers as &dyn Any).downcast_ref::<Vec<f64>>() {
        Some(doubles) => doubles,
        None => {
            room.clear();
            room.extend(numbers.iter().map(|x| x.to_f64()));
            room
        }
    }
}

/// The most threads that an engine starts.
const MAX_THREADS: usize = 1024;

/// What a list of things that come and go takes when it first gets one.
const SHELF: usize = 4;

/// Threads of the pool, or of the one that is current.
fn threads(pool: Option<&rayon::ThreadPool>) -> usize {
    pool.map_or_else(rayon::current_num_threads, |p| p.current_num_threads())
}

/// Works on each pair, on several threads unless it is `serial` or there is only one of
/// anything: to wake a thread of the pool and wait for it costs tens of microseconds.
fn each_of<A: Send, B: Sync>(
    serial: bool,
    pool: Option<&rayon::ThreadPool>,
    changed: &mut [A],
    given: &[B],
    work: impl Fn(&mut A, &B) + Sync,
) {
    if serial || threads(pool) == 1 || given.len() == 1 {
        for (changed, given) in changed.iter_mut().zip(given) {
            work(changed, given);
        }
        return;
    }
    let mut parallel = || {
        let pairs = changed.par_iter_mut().zip(given).with_max_len(1);
        pairs.for_each(|(changed, given)| work(changed, given));
    };
    match pool {
        Some(pool) => pool.install(parallel),
        None => parallel(),
    }
}

/// Groups of the chunks of a condition.
fn groups<T>(chunks: usize, parameters: usize, most: usize) -> usize {
    let bytes = (parameters * size_of::<T>()).max(1);
    (chunks / 2).min(most).min(GRADIENT_BYTES / bytes).max(1)
}

/// Bytes of an evaluation besides the workspaces, at most.
fn fixed_bytes<T: Real>(problem: &Problem, options: &Options, most: usize) -> usize {
    let mut keys = WeightTable::default();
    for condition in &problem.conditions {
        let equation = &condition.equation;
        Plan::new(equation.tape(), equation.held(), &mut keys, Sweep::Forward);
    }
    let size = size_of::<T>();
    let shares = problem.conditions.iter().map(|condition| {
        let points = condition.points.len();
        let chunk = options.chunk.unwrap_or(LANES);
        let groups = groups::<T>(points.div_ceil(chunk), problem.parameters, most);
        let seeds = options.chunk.unwrap_or(MAX_CHUNK).min(points);
        groups * (size_of::<Share<T>>() + (problem.parameters + seeds) * size)
    });
    Weights::<T>::bytes(problem.parameters, &keys.keys)
        + shares.sum::<usize>()
        + SHELF * (size_of::<State<T>>() + size_of::<Workspace<T>>())
        + (problem.conditions.len() + problem.parameters) * size_of::<f64>()
}

/// What an evaluation may take, and what of it is taken without any workspace.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: usize,
    fixed: usize,
}

/// How to compute a condition: the fastest of what is left open, within the room there is.
fn choose<T: Real>(
    condition: &Condition,
    options: &Options,
    set: InstructionSet,
    room: Option<Room>,
) -> Result<(Equation, ConditionPlan), Error> {
    let recompute: &[bool] = match (options.recompute, room) {
        (true, _) => &[true],
        (false, None) => &[false],
        (false, Some(_)) => &[false, true],
    };
    let recorded = &condition.equation;
    let all = match options.lowering {
        Lowering::Auto => candidates(recorded, recompute),
        lowering => ways(&recorded.lowered(lowering)?, lowering, recompute),
    };
    let points = condition.points.len();
    let mut best: Option<(f64, Candidate, usize)> = None;
    let mut needed = usize::MAX;
    for candidate in all {
        let own = chunk_for::<T>(&candidate.counts);
        let chunks: Vec<usize> = match (options.chunk, room) {
            (Some(chunk), _) => vec![chunk],
            (None, None) => vec![own],
            (None, Some(_)) => (1..=own / LANES).rev().map(|n| n * LANES).collect(),
        };
        for chunk in chunks {
            // Where there is a budget, it counts for these points.
            let chunk = match room {
                Some(_) => chunk.min(points.next_multiple_of(LANES)),
                None => chunk,
            };
            if let Some(room) = room {
                let plan = (
                    candidate.counts.arena_bytes::<T>(chunk) / size_of::<T>(),
                    candidate.counts.scratch(chunk),
                );
                let bytes = room.fixed + Workspace::<T>::bytes(plan);
                needed = needed.min(bytes);
                if bytes > room.bytes {
                    continue;
                }
            }
            let time = candidate.counts.nanoseconds::<T>(chunk, set);
            if best.as_ref().is_none_or(|(least, ..)| time < *least) {
                best = Some((time, candidate.clone(), chunk));
            }
        }
    }
    let Some((_, best, chunk)) = best else {
        return Err(Error::MemoryBudget {
            given: room.map_or(0, |room| room.bytes),
            needed,
        });
    };
    let plan = ConditionPlan {
        condition: condition.name.clone(),
        lowering: best.lowering,
        recompute: best.recompute,
        chunk,
        counts: best.counts,
    };
    Ok((best.equation, plan))
}

impl<T: Real> Compiled<T> {
    fn new(
        condition: &Condition,
        weights: &mut WeightTable,
        (equation, choice): (Equation, ConditionPlan),
        parameters: usize,
    ) -> Self {
        let sweep = match choice.recompute {
            false => Sweep::Reverse,
            true => Sweep::Recompute,
        };
        let gradient = Plan::new(equation.tape(), equation.held(), weights, sweep);
        let value = Plan::new(equation.tape(), equation.held(), weights, Sweep::Forward);
        let mut compiled = Self {
            name: condition.name.clone(),
            recorded: condition.equation.clone(),
            equation,
            most: choice.chunk,
            choice,
            parameters,
            sink: RowPlan::new(&gradient, &weights.keys, parameters),
            gradient: Planned::new(gradient),
            value: Planned::new(value),
            coordinates: Vec::new(),
            columns: Vec::new(),
            points: 0,
            chunk: 0,
            weight: 0.0,
            point_weights: None,
            measure: condition.measure,
        };
        compiled.take(condition);
        compiled
    }

    /// Takes over points and weights, and lays the plans out for so many points.
    fn take(&mut self, condition: &Condition) {
        let points = condition.points.len();
        let chunk = self.most.min(points.next_multiple_of(LANES));
        self.choice.chunk = chunk;
        if (points, chunk) != (self.points, self.chunk) {
            for planned in [&mut self.gradient, &mut self.value] {
                planned.layouts = Layouts::new::<T>(&planned.plan, chunk, points);
            }
            let size = RowPlan::block::<T>(chunk, self.parameters);
            self.sink.chunk = size;
            self.sink.layouts = Layouts::new::<T>(&self.gradient.plan, size, points);
        }
        let convert = |list: &[f64]| list.iter().map(|&x| T::from_f64(x)).collect();
        let column = |name: &String| convert(condition.points.column(name).unwrap_or_default());
        self.coordinates = (0..condition.points.dimension())
            .map(|c| convert(condition.points.coordinate(c)))
            .collect();
        self.columns = self.equation.columns().iter().map(column).collect();
        (self.points, self.chunk) = (points, chunk);
        self.weight = condition.weight;
        self.point_weights.clone_from(&condition.point_weights);
    }

    /// The coordinates of a point, by name.
    fn place(&self, point: usize) -> String {
        let names = self.recorded.tape().coordinates().iter();
        let pairs = names.zip(&self.coordinates);
        let texts = pairs.map(|(name, list)| format!("{name} = {}", list[point]));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The points of one of the pieces of a size.
    fn piece(&self, size: usize, index: usize) -> Chunk<'_, T> {
        let start = index * size;
        Chunk {
            coordinates: &self.coordinates,
            columns: &self.columns,
            start,
            count: size.min(self.points - start),
        }
    }

    /// Gauss-Newton rows: one for each residual at each point, or for each integral.
    fn rows(&self) -> usize {
        let outputs = self.value.plan.roots.len();
        match self.measure {
            Measure::Integral => outputs,
            _ => self.points * outputs,
        }
    }

    /// The place of a Gauss-Newton row among those of the condition.
    fn row(&self, point: usize, output: usize) -> usize {
        if self.measure == Measure::Integral {
            return output;
        }
        let block = self.sink.chunk;
        let start = point / block * block;
        let count = block.min(self.points - start);
        start * self.value.plan.roots.len() + output * count + (point - start)
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
        let weight = self.point_weight(point);
        match self.measure {
            Measure::Integral => self.weight.sqrt() * weight,
            // An energy may have a negative weight; it has no rows but to find its faults.
            _ => (self.weight.abs() * weight / self.points as f64).sqrt(),
        }
    }
}

/// The largest chunk whose arena stays in a core's cache, from 16 to 64 points.
fn chunk_for<T: Real>(counts: &Counts) -> usize {
    let bytes = counts.arena_bytes::<T>(LANES) / LANES;
    let fits = CACHE / bytes.max(1);
    (fits / LANES * LANES).clamp(LANES, MAX_CHUNK)
}
