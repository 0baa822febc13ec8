//! The loop: steps of an optimiser until something says stop, with history and progress.
//! Knows nothing of equations; it sees an engine, parameters and an optimiser.

use crate::engine::Engine;
use crate::error::{Error, write_text};
use crate::optim::Optimizer;
use crate::parameters::Parameters;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::{self, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

type Metric<'a> = Box<dyn FnMut(&Parameters) -> Result<f64, Error> + 'a>;
type Callback<'a> = Box<dyn FnMut(&State<'_>) -> ControlFlow<()> + 'a>;
type Redraw<'a> = Box<dyn FnMut(&mut Engine, &Parameters) -> Result<(), Error> + 'a>;

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
    log_every: usize,
    progress: bool,
    keep_last: bool,
    metrics: Vec<(String, usize, Metric<'a>)>,
    callback: Option<Callback<'a>>,
    redraw: Option<(usize, Redraw<'a>)>,
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
    /// The callback said so.
    Callback,
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
            Self::Callback => write!(f, "stopped by the callback"),
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
        let metrics: Vec<&String> = self.metrics.iter().map(|(name, ..)| name).collect();
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
            log_every: 10,
            progress: false,
            keep_last: false,
            metrics: Vec::new(),
            callback: None,
            redraw: None,
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
        metric: impl FnMut(&Parameters) -> Result<f64, Error> + 'a,
    ) -> Self {
        self.metrics
            .push((name.to_owned(), every, Box::new(metric)));
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
    /// engine, usually to draw new points.
    ///
    /// ```no_run
    /// # use dualtape::{Condition, Engine, Equation, Error, Parameters, Problem, Sampler, Train};
    /// # fn run(burgers: &Equation) -> Result<(), Error> {
    /// let mut inside = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], 7)?;
    /// let train = Train::new(1000).redraw(100, move |engine, params| {
    ///     let points = inside.latin_hypercube(2000)?;
    ///     *engine = Engine::new(&Problem::new(params, [Condition::new(burgers, points)])?)?;
    ///     Ok(())
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn redraw(
        mut self,
        every: usize,
        redraw: impl FnMut(&mut Engine, &Parameters) -> Result<(), Error> + 'a,
    ) -> Self {
        self.redraw = Some((every, Box::new(redraw)));
        self
    }

    /// Trains. Afterwards `parameters` are the best ones, or the last with
    /// [`keep_last`](Self::keep_last).
    ///
    /// A loss or gradient that is not finite ends training with [`Stop::NotFinite`] and the
    /// best (or last) parameters at which it was finite.
    ///
    /// # Errors
    /// Settings out of range; an engine of another number of parameters; a loss that is not
    /// finite before the first step; whatever a metric or `redraw` gives as an error.
    pub fn run(
        mut self,
        engine: &mut Engine,
        parameters: &mut Parameters,
        optimizer: &mut dyn Optimizer,
    ) -> Result<Report, Error> {
        self.check(engine, parameters)?;
        let start = Instant::now();
        let coefficients: Vec<usize> = coefficients(parameters).map(|(_, index)| index).collect();
        let mut history = self.history(engine, parameters)?;
        let bar = self.bar();
        let mut shown = start;
        let mut losses = vec![0.0; engine.conditions().len()];
        let mut gradient = vec![0.0; parameters.len()];
        let mut metrics = vec![f64::NAN; self.metrics.len()];
        let mut best = Kept::at(parameters);
        let mut last = Kept::at(parameters);
        let mut step = 0;
        let stop = loop {
            if step > 0
                && let Some((every, redraw)) = &mut self.redraw
                && step % *every == 0
                && step < self.steps
            {
                redraw(engine, parameters)?;
                let what = "conditions of the redrawn engine";
                same_count(what, engine.conditions().len(), losses.len())?;
                optimizer.loss_changed();
                best.loss = f64::INFINITY;
            }
            let loss = match engine.evaluate_into(parameters.values(), &mut losses, &mut gradient) {
                Ok(loss) => loss,
                Err(error) if step == 0 => return Err(error),
                Err(error) => break Stop::NotFinite(error),
            };
            last.take(parameters, step, loss);
            if loss < best.loss {
                best.take(parameters, step, loss);
            }
            let seconds = start.elapsed().as_secs_f64();
            let mut stop = None;
            if let Some(callback) = &mut self.callback {
                let state = State {
                    step,
                    seconds,
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
            } else if step == self.steps {
                stop = stop.or(Some(Stop::Steps));
            } else if self.seconds.is_some_and(|limit| seconds >= limit) {
                stop = stop.or(Some(Stop::Time));
            }

            let mut log = stop.is_some() || step % self.log_every == 0;
            for ((_, every, metric), value) in self.metrics.iter_mut().zip(&mut metrics) {
                *value = f64::NAN;
                if stop.is_some() || step % *every == 0 {
                    *value = metric(parameters)?;
                    log = true;
                }
            }
            if log {
                let numbers = &mut history.numbers;
                numbers.extend([step as f64, seconds, optimizer.rate(), loss]);
                numbers.extend(&losses);
                numbers.extend(coefficients.iter().map(|&index| parameters.values()[index]));
                numbers.extend(&metrics);
            }
            if let Some(bar) = &bar {
                bar.set_position(step as u64);
                if stop.is_some() || shown.elapsed() > Duration::from_millis(200) || step == 0 {
                    bar.set_message(message(loss, &losses, engine.conditions(), &history));
                    shown = Instant::now();
                }
            }
            if let Some(stop) = stop {
                break stop;
            }
            optimizer.step(parameters.values_mut(), &gradient)?;
            step += 1;
        };
        if let Some(bar) = &bar {
            bar.abandon();
        }

        let kept = if self.keep_last || best.loss.is_infinite() {
            &last
        } else {
            &best
        };
        parameters.values_mut().copy_from_slice(&kept.theta);
        // Recomputed, so that what is reported is what anyone finds at these parameters.
        let losses = engine.losses(parameters.values());
        let losses = losses.unwrap_or_else(|_| vec![f64::NAN; engine.conditions().len()]);
        Ok(Report {
            stop,
            steps: step,
            seconds: start.elapsed().as_secs_f64(),
            step: kept.step,
            loss: losses.iter().sum(),
            losses,
            history,
        })
    }

    fn check(&self, engine: &Engine, parameters: &Parameters) -> Result<(), Error> {
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
        let log = [("the log interval", self.log_every)];
        let redraw = self
            .redraw
            .as_ref()
            .map(|(every, _)| ("the redraw interval", *every));
        let metrics = self
            .metrics
            .iter()
            .map(|(_, every, _)| ("the interval of a metric", *every));
        match log
            .into_iter()
            .chain(redraw)
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
        columns.extend(self.metrics.iter().map(|(name, ..)| name.clone()));
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
    fn bar(&self) -> Option<ProgressBar> {
        if !self.progress {
            return None;
        }
        let (bar, template) = if self.steps < usize::MAX {
            let template = "{bar:16} {pos}/{len} {elapsed} (left {eta})  {wide_msg}";
            (ProgressBar::new(self.steps as u64), template)
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

/// Parameters worth keeping, with their loss.
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
#[derive(Debug, Clone, PartialEq)]
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
