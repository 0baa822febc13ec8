//! The loop: steps of optimisers until something says stop, with history, progress and
//! checkpoints. Knows nothing of equations; it sees an engine, parameters and minimisers.

use crate::checkpoint::{self, decode, encode};
use crate::engine::Engine;
use crate::error::{Error, write_text};
use crate::optim::{Halt, Iterate, Minimizer, Objective};
use crate::parameters::Parameters;
use crate::problem::{Condition, Points, Problem};
use crate::record::Equation;
use crate::sample::Sampler;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Measured<'a> = Box<dyn FnMut(&Parameters) -> Result<Vec<f64>, Error> + 'a>;
type Callback<'a> = Box<dyn FnMut(&State<'_>) -> ControlFlow<()> + 'a>;

/// Numbers that are logged now and then.
struct Metric<'a> {
    names: Vec<String>,
    every: usize,
    measure: Measured<'a>,
}

/// What changes the engine now and then, with what it draws from.
struct Redraw<'a> {
    every: usize,
    drawer: Box<dyn Drawer + 'a>,
}

/// A source with the closure that draws from it.
trait Drawer {
    fn draw(&mut self, engine: &mut Engine, parameters: &Parameters) -> Result<(), Error>;
    fn source(&mut self) -> &mut dyn Source;
}

struct Drawing<S, F> {
    source: S,
    draw: F,
}

impl<S, F> Drawer for Drawing<S, F>
where
    S: Source,
    F: FnMut(&mut S, &mut Engine, &Parameters) -> Result<(), Error>,
{
    fn draw(&mut self, engine: &mut Engine, parameters: &Parameters) -> Result<(), Error> {
        (self.draw)(&mut self.source, engine, parameters)
    }
    fn source(&mut self) -> &mut dyn Source {
        &mut self.source
    }
}

/// What new points are drawn from: its state is part of a checkpoint.
pub trait Source {
    /// Its state.
    fn save(&self) -> Vec<u8>;

    /// Back to a state.
    ///
    /// # Errors
    /// A state of something else.
    fn load(&mut self, state: &[u8]) -> Result<(), Error>;
}

/// Nothing: points that depend on no random state.
impl Source for () {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn load(&mut self, state: &[u8]) -> Result<(), Error> {
        decode("nothing", state)
    }
}

impl Source for Sampler {
    fn save(&self) -> Vec<u8> {
        encode(&self.state())
    }
    fn load(&mut self, state: &[u8]) -> Result<(), Error> {
        self.restore(&decode("a sampler", state)?);
        Ok(())
    }
}

impl<S: Source> Source for Vec<S> {
    fn save(&self) -> Vec<u8> {
        encode(&self.iter().map(Source::save).collect::<Vec<_>>())
    }
    fn load(&mut self, state: &[u8]) -> Result<(), Error> {
        let what = "a list of samplers";
        let states: Vec<Vec<u8>> = decode(what, state)?;
        if states.len() != self.len() {
            return Err(Error::length(what, states.len(), self.len()));
        }
        let mut pairs = self.iter_mut().zip(&states);
        pairs.try_for_each(|(source, state)| source.load(state))
    }
}

/// How to train: limits, what is logged, and what is called on the way.
///
/// ```
/// use dualtape::optim::Adam;
/// use dualtape::{
///     Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem, Train,
/// };
///
/// let mut params = Parameters::new();
/// let net = params.mlp("y", &[1, 8, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [n] = net.at(&[t]);
///     let y = 1.0 + t * n; // y(0) = 1
///     y.d(t) + y
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 30)])?;
/// let problem = Problem::new(&params, [Condition::new(&decay, points)])?;
///
/// let mut engine = Engine::new(&problem)?;
/// let mut adam = Adam::new(1e-2)?.betas(0.9, 0.99)?;
/// let report = Train::new(3000).tolerance(1e-4).run(&mut engine, &mut params, &mut adam)?;
/// println!("{report}"); // tolerance reached after … steps in … s; loss …
/// assert!(report.loss <= 1e-4);
/// assert_eq!(report.history.columns(), ["step", "seconds", "rate", "loss", "loss.decay"]);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[must_use = "nothing is trained before `run`"]
pub struct Train<'a> {
    steps: usize,
    seconds: Option<f64>,
    tolerance: Option<f64>,
    /// Steps, and the share of the loss that they must take away.
    stall: Option<(usize, f64)>,
    log_every: usize,
    progress: bool,
    keep_last: bool,
    metrics: Vec<Metric<'a>>,
    callback: Option<Callback<'a>>,
    redraw: Option<Redraw<'a>>,
    checkpoint: Option<(PathBuf, usize)>,
    resume: Option<PathBuf>,
}

/// A stretch of training by one method.
///
/// ```
/// use dualtape::optim::{Adam, LevenbergMarquardt};
/// use dualtape::{
///     Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem, Stage, Train,
/// };
/// # let mut params = Parameters::new();
/// # let net = params.mlp("y", &[1, 8, 1], Tanh)?;
/// # let decay = Equation::record("decay", &params, ["t"], |[t]| {
/// #     let [n] = net.at(&[t]);
/// #     let y = 1.0 + t * n;
/// #     y.d(t) + y
/// # })?;
/// # let points = Points::grid(&[(0.0, 1.0, 30)])?;
/// # let problem = Problem::new(&params, [Condition::new(&decay, points)])?;
/// # let mut engine = Engine::new(&problem)?;
///
/// let mut adam = Adam::new(1e-2)?;
/// let mut lm = LevenbergMarquardt::default();
/// let mut stages = [Stage::new(100, &mut adam), Stage::new(20, &mut lm)];
/// let report = Train::new(1000).run_stages(&mut engine, &mut params, &mut stages)?;
/// assert_eq!(report.stages[0].steps, 100);
/// # Ok::<(), dualtape::Error>(())
/// ```
pub struct Stage<'a> {
    steps: usize,
    until: f64,
    minimizer: &'a mut dyn Minimizer,
}

impl<'a> Stage<'a> {
    /// At most so many steps of a method.
    pub fn new(steps: usize, minimizer: &'a mut dyn Minimizer) -> Self {
        Self {
            steps,
            until: f64::NEG_INFINITY,
            minimizer,
        }
    }

    /// Ends the stage, not the training, when the loss is so small.
    #[must_use]
    pub fn until(mut self, loss: f64) -> Self {
        self.until = loss;
        self
    }
}

impl fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps of {}", self.steps, self.minimizer.name())
    }
}

/// How a stage went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageReport {
    /// The name of its method.
    pub method: String,
    /// How many steps it made.
    pub steps: usize,
    /// Why its method could not go on, if so.
    pub halt: Option<Halt>,
}

/// What a callback sees: the parameters after `step` steps, and the loss at them.
#[derive(Debug)]
#[non_exhaustive]
pub struct State<'a> {
    /// How many steps were made.
    pub step: usize,
    /// Seconds since the start.
    pub seconds: f64,
    /// The loss.
    pub loss: f64,
    /// The loss of each condition, its weight included.
    pub losses: &'a [f64],
    /// The names of the conditions.
    pub conditions: &'a [String],
    /// The gradient of the loss.
    pub gradient: &'a [f64],
    /// The parameters.
    pub parameters: &'a Parameters,
}

/// Why training ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Stop {
    /// All steps are done.
    Steps,
    /// The time is up.
    Time,
    /// The loss is at the tolerance or below.
    Tolerance,
    /// The loss no longer becomes smaller: see [`Train::stall`].
    Stalled,
    /// The callback said so.
    Callback,
    /// The user pressed Ctrl-C; a checkpoint is written.
    Interrupted,
    /// The method of the last stage cannot go on.
    Halted(Halt),
    /// The loss or its gradient is not finite: the engine's error, with condition, point and
    /// node. The parameters are earlier ones, at which everything was finite.
    NotFinite(Error),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps => write!(f, "all steps done"),
            Self::Time => write!(f, "time limit reached"),
            Self::Tolerance => write!(f, "tolerance reached"),
            Self::Stalled => write!(f, "the loss no longer decreases"),
            Self::Callback => write!(f, "stopped by the callback"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::Halted(halt) => write!(f, "{halt}"),
            Self::NotFinite(error) => write!(f, "not finite: {error}"),
        }
    }
}

/// How training went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Why it ended.
    pub stop: Stop,
    /// How many steps were made.
    pub steps: usize,
    /// Seconds from start to end.
    pub seconds: f64,
    /// The step after which the parameters were as they are now: the best, or the last.
    pub step: usize,
    /// The loss at the parameters as they are now, computed anew at the end (NaN if that
    /// failed).
    pub loss: f64,
    /// The same by condition.
    pub losses: Vec<f64>,
    /// How each stage went, as far as they were reached.
    pub stages: Vec<StageReport>,
    /// What was logged.
    pub history: History,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} after {} steps in {:.1} s; loss {:.4e} (step {})",
            self.stop, self.steps, self.seconds, self.loss, self.step
        )
    }
}

impl fmt::Debug for Train<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metrics: Vec<&String> = self.metrics.iter().flat_map(|m| &m.names).collect();
        f.debug_struct("Train")
            .field("steps", &self.steps)
            .field("seconds", &self.seconds)
            .field("tolerance", &self.tolerance)
            .field("log_every", &self.log_every)
            .field("metrics", &metrics)
            .finish_non_exhaustive()
    }
}

impl<'a> Train<'a> {
    /// At most so many steps. Without further settings: a row of history every 10 steps, no
    /// progress bar, the best parameters kept.
    pub fn new(steps: usize) -> Self {
        Self {
            steps,
            seconds: None,
            tolerance: None,
            stall: None,
            log_every: 10,
            progress: false,
            keep_last: false,
            metrics: Vec::new(),
            callback: None,
            redraw: None,
            checkpoint: None,
            resume: None,
        }
    }

    /// Stops after so many seconds.
    pub fn time_limit(mut self, seconds: f64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    /// Stops when the loss is so small.
    pub fn tolerance(mut self, loss: f64) -> Self {
        self.tolerance = Some(loss);
        self
    }

    /// Stops when `steps` steps have made the loss smaller by less than a `share` of it: the
    /// least loss of the last `steps` steps is compared with the one before them. Near the
    /// rounding of its terms a method can go on for ever with decreases that mean nothing.
    ///
    /// ```
    /// # use dualtape::Train;
    /// let train = Train::new(10_000).stall(50, 0.1);
    /// ```
    pub fn stall(mut self, steps: usize, share: f64) -> Self {
        self.stall = Some((steps, share));
        self
    }

    /// A row of history every `steps` steps, at least 1; the last step always has one.
    pub fn log_every(mut self, steps: usize) -> Self {
        self.log_every = steps;
        self
    }

    /// A progress bar on standard error, with the loss by condition; silent where that is
    /// no terminal.
    pub fn progress(mut self, on: bool) -> Self {
        self.progress = on;
        self
    }

    /// Leaves the parameters of the last step instead of the best. The best are those of
    /// least loss, since the last change of points if there was one.
    pub fn keep_last(mut self) -> Self {
        self.keep_last = true;
        self
    }

    /// Logs a number every `every` steps and after the last, such as the error against a
    /// known solution.
    ///
    /// ```no_run
    /// # use dualtape::{Equation, Parameters, Points, Train, values};
    /// # fn run(solution: &Equation, grid: &Points, exact: &[f64]) {
    /// let train = Train::new(1000).metric("max_error", 100, |params: &Parameters| {
    ///     let u = &values(solution, params, grid)?[0];
    ///     Ok(u.iter().zip(exact).map(|(u, e)| (u - e).abs()).fold(0.0, f64::max))
    /// });
    /// # }
    /// ```
    pub fn metric(
        mut self,
        name: &str,
        every: usize,
        mut metric: impl FnMut(&Parameters) -> Result<f64, Error> + 'a,
    ) -> Self {
        self.metrics.push(Metric {
            names: vec![name.to_owned()],
            every,
            measure: Box::new(move |parameters| Ok(vec![metric(parameters)?])),
        });
        self
    }

    /// Logs the error against a known solution every `every` steps and after the last:
    /// `NAME.rel_l2`, the relative error in the L2 norm, and `NAME.max_error`. The solution
    /// is the first value of an equation, at points that training should not see.
    ///
    /// ```no_run
    /// # use dualtape::{Equation, Points, Train};
    /// # fn run(solution: &Equation, grid: &Points, exact: &[f64]) {
    /// let train = Train::new(1000).compare("u", solution, grid, exact, 50);
    /// # }
    /// ```
    pub fn compare(
        mut self,
        name: &str,
        solution: &Equation,
        points: &Points,
        exact: &[f64],
        every: usize,
    ) -> Self {
        let condition = Condition::new(solution, points.clone());
        let exact = exact.to_vec();
        let mut engine: Option<Engine> = None;
        let measure = move |parameters: &Parameters| {
            let engine = match &mut engine {
                Some(engine) => engine,
                none => none.insert(Engine::new(&Problem::watched(parameters, &condition)?)?),
            };
            let values = engine.residuals(condition.name(), parameters.values())?;
            let values = &values[0];
            if values.len() != exact.len() {
                return Err(Error::length("exact values", exact.len(), values.len()));
            }
            let (mut error, mut norm, mut max) = (0.0, 0.0, 0.0_f64);
            for (value, exact) in values.iter().zip(&exact) {
                error += (value - exact).powi(2);
                norm += exact * exact;
                max = max.max((value - exact).abs());
            }
            Ok(vec![(error / norm).sqrt(), max])
        };
        self.metrics.push(Metric {
            names: vec![format!("{name}.rel_l2"), format!("{name}.max_error")],
            every,
            measure: Box::new(measure),
        });
        self
    }

    /// Logs the loss of another engine as `validation` every `every` steps and after the
    /// last: the same conditions at points that training does not see.
    ///
    /// ```no_run
    /// # use dualtape::{Engine, Error, Problem, Train};
    /// # fn run(elsewhere: &Problem) -> Result<(), Error> {
    /// let train = Train::new(1000).validate(Engine::new(elsewhere)?, 50);
    /// # Ok(())
    /// # }
    /// ```
    pub fn validate(self, engine: Engine, every: usize) -> Self {
        self.metric("validation", every, move |parameters| {
            engine.loss(parameters.values())
        })
    }

    /// Writes a checkpoint every `every` steps, at the end, and when the user presses
    /// Ctrl-C (which ends training then; pressed again it ends the program). The file is
    /// replaced as a whole: whoever reads it, even after a crash, finds the last one or the
    /// one before.
    ///
    /// It holds all that the next steps depend on: parameters, the methods of all stages,
    /// points and weights, what points are drawn from, stage and step, the best parameters,
    /// and the history. [`resume`](Self::resume) goes on from it, bit for bit.
    pub fn checkpoint(mut self, path: impl AsRef<Path>, every: usize) -> Self {
        self.checkpoint = Some((path.as_ref().to_owned(), every));
        self
    }

    /// Goes on from a checkpoint: give the same parameters, engine, stages, metrics and
    /// redraw as in the run that wrote it. The state in the file replaces theirs.
    ///
    /// ```no_run
    /// # use dualtape::{Adam, Engine, Error, Parameters, Train};
    /// # use std::path::Path;
    /// # fn run(engine: &mut Engine, params: &mut Parameters, adam: &mut Adam) -> Result<(), Error> {
    /// let file = Path::new("out/training.ckpt");
    /// let mut train = Train::new(20_000).checkpoint(file, 500);
    /// if file.exists() {
    ///     train = train.resume(file);
    /// }
    /// train.run(engine, params, adam)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(mut self, path: impl AsRef<Path>) -> Self {
        self.resume = Some(path.as_ref().to_owned());
        self
    }

    /// Called at each step before the parameters change; `ControlFlow::Break(())` stops.
    ///
    /// ```no_run
    /// # use dualtape::Train;
    /// use std::ops::ControlFlow;
    ///
    /// let train = Train::new(1000).callback(|state| {
    ///     if state.losses[0] < 1e-6 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// });
    /// ```
    pub fn callback(mut self, callback: impl FnMut(&State<'_>) -> ControlFlow<()> + 'a) -> Self {
        self.callback = Some(Box::new(callback));
        self
    }

    /// Called every `every` steps (not before the first, nor after the last) to change the
    /// engine, usually to draw new points; also when the method of a stage cannot go on with
    /// the points as they are, which ends the stage only if new ones do not help. What it draws
    /// from is given apart, so that a checkpoint holds its state: a [`Sampler`], a list of
    /// them, `()` if there is none.
    ///
    /// ```no_run
    /// # use dualtape::{Error, Sampler, Train};
    /// # fn run() -> Result<(), Error> {
    /// let inside = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], 7)?;
    /// let train = Train::new(1000).redraw(100, inside, |inside, engine, _| {
    ///     engine.set_points("burgers", inside.latin_hypercube(2000)?)
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn redraw<S: Source + 'a>(
        mut self,
        every: usize,
        source: S,
        draw: impl FnMut(&mut S, &mut Engine, &Parameters) -> Result<(), Error> + 'a,
    ) -> Self {
        self.redraw = Some(Redraw {
            every,
            drawer: Box::new(Drawing { source, draw }),
        });
        self
    }

    /// Trains by one method. Afterwards `parameters` are the best ones, or the last with
    /// [`keep_last`](Self::keep_last).
    ///
    /// A loss or gradient that is not finite ends training with [`Stop::NotFinite`] and the
    /// best (or last) parameters at which it was finite.
    ///
    /// # Errors
    /// Settings out of range; an engine of another number of parameters; a loss that is not
    /// finite before the first step; a checkpoint that cannot be written, or is damaged, or
    /// of another training; whatever a metric or `redraw` gives as an error.
    pub fn run<M: Minimizer + ?Sized>(
        self,
        engine: &mut Engine,
        parameters: &mut Parameters,
        minimizer: &mut M,
    ) -> Result<Report, Error> {
        let steps = self.steps;
        let mut only = ByRef(minimizer);
        self.run_stages(engine, parameters, &mut [Stage::new(steps, &mut only)])
    }

    /// Trains by several methods, one after the other: a stage ends after its steps, at its
    /// loss, or when its method cannot go on.
    ///
    /// # Errors
    /// As [`run`](Self::run); no stage.
    pub fn run_stages(
        mut self,
        engine: &mut Engine,
        parameters: &mut Parameters,
        stages: &mut [Stage<'_>],
    ) -> Result<Report, Error> {
        self.check(engine, parameters, stages)?;
        let start = Instant::now();
        let mut now = Now::new(parameters, self.history(engine, parameters)?, stages);
        if let Some(path) = self.resume.take() {
            now = Saved::load(&path, &now, engine, parameters, stages, &mut self.redraw)?;
        }
        let before = now.seconds;
        let interrupt = self.checkpoint.is_some().then(Interrupt::new).transpose()?;
        let bar = self.bar(stages);
        let mut shown = start;
        let mut losses = vec![0.0; engine.conditions().len()];
        let mut gradient = vec![0.0; parameters.len()];
        let memo = Mutex::new(Memo::default());
        let resumed = now.step;
        let mut halted = false;
        let stop = loop {
            let step = now.step;
            if step > 0
                && let Some(redraw) = &mut self.redraw
                && (step.is_multiple_of(redraw.every) || halted)
                && step < self.steps
                && now.redrawn != step
            {
                redraw.drawer.draw(engine, parameters)?;
                let what = "conditions of the redrawn engine";
                same_count(what, engine.conditions().len(), losses.len())?;
                for stage in &mut *stages {
                    stage.minimizer.loss_changed();
                }
                now.best.loss = f64::INFINITY;
                now.redrawn = step;
                halted = false;
                Memo::of(&memo).theta.clear();
            }
            let theta = parameters.values();
            let loss = match Memo::of(&memo).evaluate(engine, theta, &mut losses, &mut gradient) {
                Ok(loss) => loss,
                Err(error) if step == 0 => return Err(error),
                Err(error) => break Stop::NotFinite(error),
            };
            now.last.take(parameters, step, loss);
            if loss < now.best.loss {
                now.best.take(parameters, step, loss);
            }
            let stalled = now.stalled(self.stall, loss);
            let stage = now.stage_at(stages, loss);
            now.seconds = before + start.elapsed().as_secs_f64();
            let mut stop = None;
            if let Some(callback) = &mut self.callback {
                let state = State {
                    step,
                    seconds: now.seconds,
                    loss,
                    losses: &losses,
                    conditions: engine.conditions(),
                    gradient: &gradient,
                    parameters,
                };
                stop = callback(&state).is_break().then_some(Stop::Callback);
            }
            if self.tolerance.is_some_and(|tolerance| loss <= tolerance) {
                stop = Some(Stop::Tolerance);
            } else if stalled {
                stop = stop.or(Some(Stop::Stalled));
            } else if step >= self.steps || stage == stages.len() {
                stop = stop.or(Some(Stop::Steps));
            } else if interrupt.as_ref().is_some_and(Interrupt::came) {
                stop = stop.or(Some(Stop::Interrupted));
            } else if self
                .seconds
                .is_some_and(|limit| now.seconds - before >= limit)
            {
                stop = stop.or(Some(Stop::Time));
            }
            if let Some((path, every)) = &self.checkpoint
                && (stop.is_some() || (step > resumed && step.is_multiple_of(*every)))
            {
                Saved::write(path, &now, engine, parameters, stages, &mut self.redraw)?;
            }

            let rate = stages[stage.min(stages.len() - 1)].minimizer.rate();
            let rows = now.history.numbers.len();
            self.log(&mut now, parameters, loss, &losses, rate, stop.is_some())?;
            if let Some(bar) = &bar {
                bar.set_position(step as u64);
                if stop.is_some() || shown.elapsed() > Duration::from_millis(200) || step == 0 {
                    let conditions = engine.conditions();
                    bar.set_message(message(loss, &losses, conditions, &now.history));
                    shown = Instant::now();
                }
            }
            if let Some(stop) = stop {
                break stop;
            }

            // A step of this stage; where its method cannot go on, of the next.
            let objective = Watched {
                engine,
                memo: &memo,
            };
            now.stage = stage;
            let halt = loop {
                let at = Iterate {
                    theta: parameters.values_mut(),
                    loss,
                    gradient: &gradient,
                };
                let halt = stages[now.stage].minimizer.step(&objective, at)?;
                now.reports[now.stage].halt = halt;
                if halt.is_none() {
                    break None;
                }
                halted = self.redraw.is_some() && step > 0 && now.redrawn != step;
                if halted {
                    break halt;
                }
                if now.stage + 1 == stages.len() {
                    break halt;
                }
                now.stage += 1;
            };
            if halted {
                // With new points, and a new row for this step.
                now.history.numbers.truncate(rows);
                now.recent.pop();
                continue;
            }
            if let Some(halt) = halt {
                // This was the last step, so its row is complete.
                now.history.numbers.truncate(rows);
                self.log(&mut now, parameters, loss, &losses, rate, true)?;
                if let Some((path, _)) = &self.checkpoint {
                    Saved::write(path, &now, engine, parameters, stages, &mut self.redraw)?;
                }
                break Stop::Halted(halt);
            }
            now.reports[now.stage].steps += 1;
            now.step += 1;
        };
        if let Some(bar) = &bar {
            bar.abandon();
        }

        let kept = if self.keep_last || now.best.loss.is_infinite() {
            &now.last
        } else {
            &now.best
        };
        parameters.values_mut().copy_from_slice(&kept.theta);
        // Recomputed, so that what is reported is what anyone finds at these parameters.
        let losses = engine.losses(parameters.values());
        let losses = losses.unwrap_or_else(|_| vec![f64::NAN; engine.conditions().len()]);
        let reached = (now.stage + 1).min(stages.len());
        now.reports.truncate(reached);
        Ok(Report {
            stop,
            steps: now.step,
            seconds: before + start.elapsed().as_secs_f64(),
            step: kept.step,
            loss: losses.iter().sum(),
            losses,
            stages: now.reports,
            history: now.history,
        })
    }

    /// A row of the history, if one is due.
    fn log(
        &mut self,
        now: &mut Now,
        parameters: &Parameters,
        loss: f64,
        losses: &[f64],
        rate: f64,
        last: bool,
    ) -> Result<(), Error> {
        let due = |every: usize| last || now.step.is_multiple_of(every);
        if !due(self.log_every) && !self.metrics.iter().any(|metric| due(metric.every)) {
            return Ok(());
        }
        let numbers = &mut now.history.numbers;
        numbers.extend([now.step as f64, now.seconds, rate, loss]);
        numbers.extend(losses);
        numbers.extend(coefficients(parameters).map(|(_, index)| parameters.values()[index]));
        for metric in &mut self.metrics {
            if last || now.step.is_multiple_of(metric.every) {
                numbers.extend((metric.measure)(parameters)?);
            } else {
                numbers.extend(metric.names.iter().map(|_| f64::NAN));
            }
        }
        Ok(())
    }

    fn check(
        &self,
        engine: &Engine,
        parameters: &Parameters,
        stages: &[Stage<'_>],
    ) -> Result<(), Error> {
        if stages.is_empty() {
            return Err(Error::Empty {
                what: "the list of stages".to_owned(),
            });
        }
        same_count("parameters", parameters.len(), engine.parameters())?;
        let not_negative = |what: &str, given: Option<f64>| match given {
            Some(number) if number.is_nan() || number < 0.0 => Err(Error::OutOfRange {
                what: what.to_owned(),
                given: number.to_string(),
                expected: "give a number that is not negative".to_owned(),
            }),
            _ => Ok(()),
        };
        not_negative("the time limit in seconds", self.seconds)?;
        not_negative("the tolerance", self.tolerance)?;
        if let Some((_, share)) = self.stall
            && !(share > 0.0 && share < 1.0)
        {
            return Err(Error::OutOfRange {
                what: "the share of the loss below which training has stalled".to_owned(),
                given: share.to_string(),
                expected: "give a number between 0 and 1".to_owned(),
            });
        }
        let log = [("the log interval", self.log_every)];
        let stall = self.stall.map(|(steps, _)| ("the steps of a stall", steps));
        let redraw = self
            .redraw
            .as_ref()
            .map(|redraw| ("the redraw interval", redraw.every));
        let checkpoint = self
            .checkpoint
            .as_ref()
            .map(|(_, every)| ("the checkpoint interval", *every));
        let metrics = self
            .metrics
            .iter()
            .map(|metric| ("the interval of a metric", metric.every));
        match log
            .into_iter()
            .chain(redraw)
            .chain(stall)
            .chain(checkpoint)
            .chain(metrics)
            .find(|(_, every)| *every == 0)
        {
            Some((what, _)) => Err(Error::OutOfRange {
                what: what.to_owned(),
                given: "0".to_owned(),
                expected: "give at least 1 step".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn history(&self, engine: &Engine, parameters: &Parameters) -> Result<History, Error> {
        let mut columns: Vec<String> = ["step", "seconds", "rate", "loss"]
            .map(str::to_owned)
            .to_vec();
        columns.extend(
            engine
                .conditions()
                .iter()
                .map(|name| format!("loss.{name}")),
        );
        let coefficients = coefficients(parameters).map(|(name, _)| name.to_owned());
        columns.extend(coefficients);
        columns.extend(self.metrics.iter().flat_map(|metric| metric.names.clone()));
        for (place, name) in columns.iter().enumerate() {
            if columns[..place].contains(name) {
                return Err(Error::DuplicateName {
                    what: "columns of the history (conditions, coefficients and metrics)"
                        .to_owned(),
                    name: name.clone(),
                });
            }
        }
        Ok(History {
            columns,
            numbers: Vec::new(),
        })
    }

    /// The progress bar, where anybody can see it.
    fn bar(&self, stages: &[Stage<'_>]) -> Option<ProgressBar> {
        if !self.progress {
            return None;
        }
        let all = stages.iter().map(|stage| stage.steps);
        let steps = all.fold(0, usize::saturating_add).min(self.steps);
        let (bar, template) = if steps < usize::MAX {
            let template = "{bar:16} {pos}/{len} {elapsed} (left {eta})  {wide_msg}";
            (ProgressBar::new(steps as u64), template)
        } else {
            (
                ProgressBar::no_length(),
                "{spinner} {pos} {elapsed}  {wide_msg}",
            )
        };
        if bar.is_hidden() {
            return None;
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Some(bar)
    }
}

/// A minimiser behind a reference, of whatever size.
struct ByRef<'a, M: ?Sized>(&'a mut M);

impl<M: Minimizer + ?Sized> Minimizer for ByRef<'_, M> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn rate(&self) -> f64 {
        self.0.rate()
    }
    fn step(&mut self, objective: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        self.0.step(objective, at)
    }
    fn reset(&mut self) {
        self.0.reset();
    }
    fn loss_changed(&mut self) {
        self.0.loss_changed();
    }
    fn snapshot(&self) -> Option<Vec<u8>> {
        self.0.snapshot()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        self.0.restore(snapshot)
    }
}

/// The last evaluation, so that what a line search found need not be evaluated again.
#[derive(Default)]
struct Memo {
    theta: Vec<f64>,
    losses: Vec<f64>,
    gradient: Vec<f64>,
}

impl Memo {
    fn of(memo: &Mutex<Self>) -> std::sync::MutexGuard<'_, Self> {
        memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evaluate(
        &self,
        engine: &Engine,
        theta: &[f64],
        losses: &mut [f64],
        gradient: &mut [f64],
    ) -> Result<f64, Error> {
        if self.theta != theta {
            return engine.evaluate_into(theta, losses, gradient);
        }
        losses.copy_from_slice(&self.losses);
        gradient.copy_from_slice(&self.gradient);
        Ok(losses.iter().sum())
    }
}

/// An engine that remembers the last gradient that was asked of it.
struct Watched<'a> {
    engine: &'a Engine,
    memo: &'a Mutex<Memo>,
}

impl Objective for Watched<'_> {
    fn parameters(&self) -> usize {
        self.engine.parameters()
    }
    fn value(&self, theta: &[f64]) -> Result<f64, Error> {
        self.engine.loss(theta)
    }
    fn gradient(&self, theta: &[f64], gradient: &mut [f64]) -> Result<f64, Error> {
        let mut memo = Memo::of(self.memo);
        memo.theta.clear();
        memo.losses.resize(self.engine.conditions().len(), 0.0);
        let loss = self
            .engine
            .evaluate_into(theta, &mut memo.losses, gradient)?;
        memo.gradient.clear();
        memo.gradient.extend_from_slice(gradient);
        memo.theta.extend_from_slice(theta);
        Ok(loss)
    }
    fn row_count(&self) -> Result<usize, Error> {
        self.engine.row_count()
    }
    fn rows(
        &self,
        theta: &[f64],
        visit: &mut dyn FnMut(crate::engine::Rows<'_>),
    ) -> Result<(), Error> {
        self.engine.all_rows(theta, visit)
    }
    fn residuals(&self, theta: &[f64]) -> Result<Vec<f64>, Error> {
        self.engine.scaled_residuals(theta)
    }
    fn transposed(&self, theta: &[f64], s: &[f64]) -> Result<Vec<f64>, Error> {
        self.engine.transposed(theta, s)
    }
    fn gauss_newton(&self, theta: &[f64], v: &[f64]) -> Result<Vec<f64>, Error> {
        self.engine.gauss_newton(theta, v)
    }
    fn within(&self, work: &mut (dyn FnMut() + Send)) {
        self.engine.within(work);
    }
}

/// Ctrl-C during a training with checkpoints.
struct Interrupt {
    flag: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Interrupt {
    fn new() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        let signal = signal_hook::consts::SIGINT;
        // The second Ctrl-C finds the flag set and ends the program as usual.
        let shutdown =
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
        let set = signal_hook::flag::register(signal, Arc::clone(&flag));
        let fail = |error: std::io::Error| Error::OutOfRange {
            what: "the handler of Ctrl-C".to_owned(),
            given: error.to_string(),
            expected: "the system must allow one while checkpoints are written".to_owned(),
        };
        Ok(Self {
            ids: vec![shutdown.map_err(fail)?, set.map_err(fail)?],
            flag,
        })
    }

    fn came(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for &id in &self.ids {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Where a training stands.
#[derive(Debug, Serialize, Deserialize)]
struct Now {
    step: usize,
    stage: usize,
    seconds: f64,
    /// The step of the last change of points.
    redrawn: usize,
    /// The losses of the last steps, if somebody asks whether they decrease.
    recent: Vec<f64>,
    best: Kept,
    last: Kept,
    reports: Vec<StageReport>,
    history: History,
}

impl Now {
    fn new(parameters: &Parameters, history: History, stages: &[Stage<'_>]) -> Self {
        let report = |stage: &Stage<'_>| StageReport {
            method: stage.minimizer.name().to_owned(),
            steps: 0,
            halt: None,
        };
        Self {
            step: 0,
            stage: 0,
            seconds: 0.0,
            redrawn: 0,
            recent: Vec::new(),
            best: Kept::at(parameters),
            last: Kept::at(parameters),
            reports: stages.iter().map(report).collect(),
            history,
        }
    }

    /// Whether all lengths are those of a fresh training.
    fn fits(&self, fresh: &Self) -> bool {
        let lengths = |now: &Self| {
            let kept = (now.best.theta.len(), now.last.theta.len());
            (kept, now.reports.len(), now.history.columns.len())
        };
        let whole = self
            .history
            .numbers
            .len()
            .is_multiple_of(self.history.columns.len());
        lengths(self) == lengths(fresh) && whole && self.stage < self.reports.len()
    }

    /// Takes a loss; whether the last so many steps took away less than their share.
    fn stalled(&mut self, stall: Option<(usize, f64)>, loss: f64) -> bool {
        let Some((steps, share)) = stall else {
            return false;
        };
        self.recent.push(loss);
        let surplus = self.recent.len().saturating_sub(steps + 1);
        self.recent.drain(..surplus);
        let least = self.recent[1..]
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        self.recent.len() == steps + 1 && least > (1.0 - share) * self.recent[0]
    }

    /// The stage of the next step: the present one, or the first after it that is not over.
    fn stage_at(&self, stages: &[Stage<'_>], loss: f64) -> usize {
        let pairs = stages.iter().zip(&self.reports).enumerate();
        let mut open = pairs.filter(|(_, (s, r))| r.steps < s.steps && loss > s.until);
        let next = open.find(|(place, _)| *place >= self.stage);
        next.map_or(stages.len(), |(place, _)| place)
    }
}

/// A checkpoint's content, as it is read.
#[derive(Deserialize)]
struct Saved {
    blocks: Vec<(String, usize)>,
    theta: Vec<f64>,
    now: Now,
    methods: Vec<(String, Vec<u8>)>,
    conditions: Vec<Placed>,
    source: Option<Vec<u8>>,
}

/// The same, as it is written.
#[derive(Serialize)]
struct Saving<'a> {
    blocks: Vec<(String, usize)>,
    theta: &'a [f64],
    now: &'a Now,
    methods: Vec<(String, Vec<u8>)>,
    conditions: Vec<Placed>,
    source: Option<Vec<u8>>,
}

/// A condition's points and weights.
#[derive(Serialize, Deserialize)]
struct Placed {
    name: String,
    points: Points,
    weight: f64,
    point_weights: Option<Vec<f64>>,
}

impl Saved {
    fn write(
        path: &Path,
        now: &Now,
        engine: &Engine,
        parameters: &Parameters,
        stages: &[Stage<'_>],
        redraw: &mut Option<Redraw<'_>>,
    ) -> Result<(), Error> {
        let method = |stage: &Stage<'_>| {
            let name = stage.minimizer.name().to_owned();
            match stage.minimizer.snapshot() {
                Some(snapshot) => Ok((name, snapshot)),
                None => Err(Error::NoSnapshot { what: name }),
            }
        };
        let placed = |name: &String| {
            Ok(Placed {
                name: name.clone(),
                points: engine.points(name)?.clone(),
                weight: engine.weight(name)?,
                point_weights: engine.point_weights(name)?.map(<[f64]>::to_vec),
            })
        };
        let saving = Saving {
            blocks: blocks(parameters),
            theta: parameters.values(),
            now,
            methods: stages.iter().map(method).collect::<Result<_, Error>>()?,
            conditions: engine
                .conditions()
                .iter()
                .map(placed)
                .collect::<Result<_, Error>>()?,
            source: redraw.as_mut().map(|r| r.drawer.source().save()),
        };
        checkpoint::write(path, &saving)
    }

    /// Reads a checkpoint and puts everything back; where it does not fit, nothing is
    /// changed but the methods that were restored before.
    fn load(
        path: &Path,
        fresh: &Now,
        engine: &mut Engine,
        parameters: &mut Parameters,
        stages: &mut [Stage<'_>],
        redraw: &mut Option<Redraw<'_>>,
    ) -> Result<Now, Error> {
        let saved: Self = checkpoint::read(path)?;
        let other = |what: &str| Error::File {
            path: path.display().to_string(),
            reason: format!(
                "a checkpoint of another training: {what}; give the same parameters, engine, \
                 stages, metrics and redraw as in the run that wrote it"
            ),
        };
        if saved.blocks != blocks(parameters) {
            return Err(other("other networks or coefficients"));
        }
        let names: Vec<&String> = saved.conditions.iter().map(|c| &c.name).collect();
        if !names.into_iter().eq(engine.conditions()) {
            return Err(other("other conditions"));
        }
        let methods = saved.methods.iter().map(|(name, _)| name.as_str());
        if !methods.eq(stages.iter().map(|stage| stage.minimizer.name())) {
            return Err(other("other methods"));
        }
        if saved.now.history.columns != fresh.history.columns {
            return Err(other("other metrics"));
        }
        if !saved.now.fits(fresh) {
            return Err(other("other numbers of parameters, stages or columns"));
        }
        match (redraw, &saved.source) {
            (Some(redraw), Some(source)) => redraw.drawer.source().load(source)?,
            (None, None) => {}
            _ => return Err(other("points are redrawn in one of them only")),
        }
        for (stage, (_, snapshot)) in stages.iter_mut().zip(&saved.methods) {
            stage.minimizer.restore(snapshot)?;
        }
        for placed in saved.conditions {
            engine.set_points(&placed.name, placed.points)?;
            engine.set_weight(&placed.name, placed.weight)?;
            engine.set_point_weights(&placed.name, placed.point_weights.as_deref())?;
        }
        parameters.set(&saved.theta)?;
        Ok(saved.now)
    }
}

/// Names and lengths of the blocks.
fn blocks(parameters: &Parameters) -> Vec<(String, usize)> {
    let blocks = parameters.blocks().iter();
    blocks
        .map(|block| (block.name.clone(), block.len()))
        .collect()
}

/// Parameters worth keeping, with their loss.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    theta: Vec<f64>,
    step: usize,
    loss: f64,
}

impl Kept {
    fn at(parameters: &Parameters) -> Self {
        Self {
            theta: parameters.values().to_vec(),
            step: 0,
            loss: f64::INFINITY,
        }
    }

    fn take(&mut self, parameters: &Parameters, step: usize, loss: f64) {
        self.theta.copy_from_slice(parameters.values());
        (self.step, self.loss) = (step, loss);
    }
}

/// Names and places of the trainable coefficients.
fn coefficients(parameters: &Parameters) -> impl Iterator<Item = (&str, usize)> {
    let blocks = parameters.blocks().iter();
    blocks
        .filter(|block| block.name == block.group)
        .map(|block| (block.name.as_str(), block.offset))
}

fn same_count(what: &str, given: usize, expected: usize) -> Result<(), Error> {
    if given == expected {
        return Ok(());
    }
    Err(Error::length(what, given, expected))
}

/// Loss, loss by condition if there are several, and the last metrics.
fn message(loss: f64, losses: &[f64], conditions: &[String], history: &History) -> String {
    let mut text = format!("loss {loss:.2e}");
    if losses.len() > 1 {
        let parts = conditions.iter().zip(losses);
        let parts: Vec<String> = parts
            .map(|(name, loss)| format!("{name} {loss:.1e}"))
            .collect();
        let _ = write!(text, " ({})", parts.join(", "));
    }
    for column in 4 + losses.len()..history.columns.len() {
        let last = history
            .rows()
            .rev()
            .map(|row| row[column])
            .find(|x| !x.is_nan());
        if let Some(last) = last {
            let _ = write!(text, "  {} {last:.3e}", history.columns[column]);
        }
    }
    text
}

/// What was logged: a table with one row for each logged step.
///
/// Its columns are `step`, `seconds`, `rate`, `loss`, the loss of each condition as
/// `loss.NAME`, each trainable coefficient and each metric by its name. Where a metric was
/// not due it is NaN.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct History {
    columns: Vec<String>,
    numbers: Vec<f64>,
}

impl History {
    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The rows, in order.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &[f64]> {
        self.numbers.chunks_exact(self.columns.len())
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.numbers.len() / self.columns.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// One column.
    ///
    /// # Errors
    /// No such column.
    pub fn column(&self, name: &str) -> Result<Vec<f64>, Error> {
        let place = self.columns.iter().position(|column| column == name);
        let place = place.ok_or_else(|| Error::UnknownName {
            what: "column of the history".to_owned(),
            name: name.to_owned(),
            known: self.columns.join(", "),
        })?;
        Ok(self.rows().map(|row| row[place]).collect())
    }

    /// One column and its steps, without the rows where it was not logged: a curve to draw.
    ///
    /// # Errors
    /// No such column.
    pub fn curve(&self, name: &str) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let column = self.column(name)?.into_iter();
        let steps = self.rows().map(|row| row[0]);
        Ok(steps
            .zip(column)
            .filter(|(_, value)| !value.is_nan())
            .unzip())
    }

    /// The table as CSV: a line of names, then a line a row; a cell that is NaN is empty.
    pub fn to_csv(&self) -> String {
        let quoted = |name: &String| {
            if name.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", name.replace('"', "\"\""))
            } else {
                name.clone()
            }
        };
        let mut text = self
            .columns
            .iter()
            .map(quoted)
            .collect::<Vec<_>>()
            .join(",");
        text.push('\n');
        for row in self.rows() {
            for (place, number) in row.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                if !number.is_nan() {
                    let _ = write!(text, "{number:?}");
                }
            }
            text.push('\n');
        }
        text
    }

    /// The table as JSON, `{"columns": […], "rows": [[…], …]}`; NaN is null.
    pub fn to_json(&self) -> String {
        let rows: Vec<&[f64]> = self.rows().collect();
        serde_json::json!({ "columns": self.columns, "rows": rows }).to_string()
    }

    /// Writes [`to_csv`](Self::to_csv) into a file, and makes its folder.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_csv(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_text(path.as_ref(), &self.to_csv())
    }

    /// Writes [`to_json`](Self::to_json) into a file, and makes its folder.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_json(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_text(path.as_ref(), &self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> History {
        History {
            columns: ["step", "loss", "a, \"b\""].map(str::to_owned).to_vec(),
            numbers: vec![0.0, 0.5, f64::NAN, 10.0, 1e-9, 0.25],
        }
    }

    #[test]
    fn csv_and_json() {
        let csv = "step,loss,\"a, \"\"b\"\"\"\n0.0,0.5,\n10.0,1e-9,0.25\n";
        assert_eq!(table().to_csv(), csv);
        let json =
            r#"{"columns":["step","loss","a, \"b\""],"rows":[[0.0,0.5,null],[10.0,1e-9,0.25]]}"#;
        assert_eq!(table().to_json(), json);
    }

    #[test]
    fn columns_by_name() {
        assert_eq!(table().column("loss").expect("loss"), [0.5, 1e-9]);
        let (steps, values) = table().curve("a, \"b\"").expect("a curve");
        assert_eq!((steps, values), (vec![10.0], vec![0.25]));
        let message = table()
            .column("error")
            .expect_err("no such column")
            .to_string();
        assert!(message.contains("step, loss"), "{message}");
    }

    #[test]
    fn the_bar_shows_losses_by_condition_and_the_last_metric() {
        let names = [
            "step",
            "seconds",
            "rate",
            "loss",
            "loss.pde",
            "loss.start",
            "rel_l2",
        ];
        let history = History {
            columns: names.map(str::to_owned).to_vec(),
            numbers: [[0.0; 7], [f64::NAN; 7]].concat(),
        };
        let conditions = ["pde", "start"].map(str::to_owned);
        let text = message(0.75, &[0.5, 0.25], &conditions, &history);
        assert_eq!(
            text,
            "loss 7.50e-1 (pde 5.0e-1, start 2.5e-1)  rel_l2 0.000e0"
        );
    }
}
