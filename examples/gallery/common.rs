//! What all problems of the gallery share: settings, a training loop with the error in view,
//! the outcome, and maps.

use dualtape::plot::Map;
use dualtape::{
    Condition, Design, Engine, Equation, Error, LevenbergMarquardt, Options, Parameters, Points,
    Problem, Report, Sampler, SsBroyden, Train, values,
};
use std::path::PathBuf;
use std::time::Instant;

/// What the user chose.
pub struct Settings {
    pub seed: u64,
    pub threads: usize,
    /// A few steps only.
    pub quick: bool,
    /// Seconds for each training.
    pub seconds: f64,
    /// Where pictures and histories go.
    pub out: PathBuf,
}

/// What came of a problem.
pub struct Outcome {
    pub rel_l2: f64,
    pub max_error: f64,
    pub seconds: f64,
    pub steps: usize,
    pub stop: String,
    pub parameters: usize,
    pub points: usize,
    /// What else is worth knowing, such as the error of a coefficient.
    pub more: Vec<(&'static str, f64)>,
}

impl Settings {
    /// Threads as chosen.
    pub fn options(&self) -> Options {
        Options::default().threads(self.threads)
    }

    /// So many steps, or a few.
    pub fn steps(&self, steps: usize) -> usize {
        if self.quick { steps.min(2) } else { steps }
    }

    /// A training of at most so many steps, which ends where they no longer help; with a
    /// progress bar.
    pub fn train<'a>(&self, steps: usize) -> Train<'a> {
        Train::new(self.steps(steps))
            .time_limit(self.seconds)
            .stall(30, 0.1)
            .log_every(1)
            .progress(true)
    }

    /// Trains one equation on a box; see [`fit_all`](Self::fit_all).
    pub fn fit(
        &self,
        train: Train<'_>,
        params: &mut Parameters,
        equation: &Equation,
        (bounds, count): (&[(f64, f64)], usize),
        start: impl FnOnce(&mut Engine, &mut Parameters) -> Result<(), Error>,
    ) -> Result<Report, Error> {
        let drawn = Drawn::new(equation, Sampler::new(bounds, self.seed)?, count);
        self.fit_all(train, params, vec![drawn], start)
    }

    /// Trains conditions by Levenberg-Marquardt, after a `start`; each on points of Sobol's
    /// sequence, and the next ones every 50 steps. The history is named after the first.
    pub fn fit_all(
        &self,
        train: Train<'_>,
        params: &mut Parameters,
        drawn: Vec<Drawn<'_>>,
        start: impl FnOnce(&mut Engine, &mut Parameters) -> Result<(), Error>,
    ) -> Result<Report, Error> {
        let (mut conditions, mut samplers, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for mut one in drawn {
            let points = one.sampler.draw(Design::Sobol, one.count)?;
            let condition = Condition::new(one.equation, points).named(one.name);
            conditions.push(condition.weight(one.weight));
            samplers.push(one.sampler);
            names.push((one.name.to_owned(), one.count));
        }
        let problem = Problem::new(params, conditions)?;
        let mut engine = Engine::with(&problem, &self.options())?;
        let begin = Instant::now();
        start(&mut engine, params)?;
        let before = begin.elapsed().as_secs_f64();
        let history = self.out.join(format!("{}.csv", names[0].0));
        let mut report = train
            .redraw(50, samplers, move |samplers, engine, _| {
                for (sampler, (name, count)) in samplers.iter_mut().zip(&names) {
                    engine.set_points(name, sampler.draw(Design::Sobol, *count)?)?;
                }
                Ok(())
            })
            .run(&mut engine, params, &mut LevenbergMarquardt::default())?;
        report.history.write_csv(history)?;
        report.seconds += before;
        Ok(report)
    }

    /// A cheap start: steps of the self-scaled Broyden method, which cost a gradient each.
    pub fn rough(&self, engine: &mut Engine, params: &mut Parameters) -> Result<(), Error> {
        let train = Train::new(self.steps(200));
        train
            .run(engine, params, &mut SsBroyden::default())
            .map(drop)
    }
}

/// A condition whose points are drawn anew as training goes on.
pub struct Drawn<'a> {
    pub equation: &'a Equation,
    pub name: &'a str,
    pub weight: f64,
    pub sampler: Sampler,
    pub count: usize,
}

impl<'a> Drawn<'a> {
    /// Named after the equation, with weight 1.
    pub fn new(equation: &'a Equation, sampler: Sampler, count: usize) -> Self {
        Self {
            name: equation.name(),
            equation,
            weight: 1.0,
            sampler,
            count,
        }
    }
}

/// No start.
pub fn none(_: &mut Engine, _: &mut Parameters) -> Result<(), Error> {
    Ok(())
}

/// The exact solution at points that training does not see.
pub struct Reference {
    pub points: Points,
    pub truth: Vec<f64>,
}

impl Reference {
    /// On a grid.
    pub fn grid<const D: usize>(
        axes: [(f64, f64, usize); D],
        exact: impl Fn([f64; D]) -> f64,
    ) -> Result<Self, Error> {
        Ok(Self::at(Points::grid(&axes)?, exact))
    }

    /// At any points.
    pub fn at<const D: usize>(points: Points, exact: impl Fn([f64; D]) -> f64) -> Self {
        let place = |n: usize| std::array::from_fn(|d| points.coordinate(d)[n]);
        let truth = (0..points.len()).map(|n| exact(place(n))).collect();
        Self { points, truth }
    }

    /// The outcome of a training of `solution`.
    pub fn outcome(
        &self,
        solution: &Equation,
        params: &Parameters,
        points: usize,
        report: &Report,
    ) -> Result<Outcome, Error> {
        let error = self.error(solution, params)?;
        let training = (report.seconds, report.steps, report.stop.to_string());
        Ok(self.measured(&error, params, points, training))
    }

    /// The outcome by its error and the seconds, steps and end of training.
    pub fn measured(
        &self,
        error: &[f64],
        params: &Parameters,
        points: usize,
        (seconds, steps, stop): (f64, usize, String),
    ) -> Outcome {
        let norm = |list: &[f64]| list.iter().map(|x| x * x).sum::<f64>().sqrt();
        Outcome {
            rel_l2: norm(error) / norm(&self.truth),
            max_error: error.iter().fold(0.0, |max, e| e.abs().max(max)),
            seconds,
            steps,
            stop,
            parameters: params.len(),
            points,
            more: Vec::new(),
        }
    }

    /// Solution minus truth, point by point.
    pub fn error(&self, solution: &Equation, params: &Parameters) -> Result<Vec<f64>, Error> {
        let field = values(solution, params, &self.points)?.concat();
        Ok(field.iter().zip(&self.truth).map(|(u, e)| u - e).collect())
    }
}

/// Draws a solution over two coordinates and its error.
pub fn maps(
    settings: &Settings,
    name: &str,
    axes: [(f64, f64, usize); 2],
    labels: (&str, &str),
    reference: &Reference,
    error: &[f64],
) -> Result<(), Error> {
    let u: Vec<f64> = reference
        .truth
        .iter()
        .zip(error)
        .map(|(e, d)| e + d)
        .collect();
    let title = format!("u({}, {})", labels.0, labels.1);
    let file = |what: &str| settings.out.join(format!("{name}{what}.png"));
    Map::new(&title, axes, &u)?
        .labels(labels.0, labels.1)
        .save(file(""))?;
    Map::new(&format!("Error of {title}"), axes, error)?
        .diverging()
        .labels(labels.0, labels.1)
        .save(file("-error"))
}

/// A stored reference solution; `data/README.md` says where each is from.
pub fn table(file: &str, shape: &[usize]) -> Result<Vec<f64>, Error> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gallery/data");
    let path = PathBuf::from(folder).join(file);
    let array = dualtape::points::read_npy(&path)?;
    if array.shape == shape {
        return Ok(array.values);
    }
    Err(Error::File {
        path: path.display().to_string(),
        reason: format!(
            "an array of shape {:?}; {shape:?} was expected",
            array.shape
        ),
    })
}
