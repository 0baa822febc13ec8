//! Gradients on trial: by remainders of the loss, by nested numbers of num-dual, and by the
//! other ways that an engine has.
//! Knows nothing of how a gradient is made, nor of training.
//!
//! Each condition is tried by itself, on one block of the parameters at a time, so that a
//! small part cannot hide behind a large one:
//!
//! - **Remainder.** The central difference D(h) = (f(θ + hv) − f(θ − hv))/2h along a
//!   direction v differs from g·v by O(h²) if g is the gradient, and by a constant if not.
//!   The entries of v are random numbers from 1 to 2 with random signs: none is small, and no
//!   two are the same, so that even entries that have changed places show. The step is halved
//!   over many decades, D is extrapolated to h = 0 (Romberg 1955), and the limit compared with g·v to within what the rounding of f allows.
//!   That noise is measured, by fourth differences (after Moré and Wild, *Estimating
//!   computational noise*, 2011).
//! - **Nested numbers.** Some points are evaluated anew, tape node by tape node, by
//!   `HyperHyperDual<Dual64>`: up to three nested derivatives in the coordinates and one
//!   along v, with no jet, plan or kernel in common with the engine.
//! - **Lowerings.** Nested reverse mode, a split of both modes and, to the bit, recomputation
//!   give the same gradient.
//!
//! It fails closed: an error, a difference that cannot be resolved, or no test at all is not
//! a pass.

use crate::engine::{Engine, Options, Precision};
use crate::error::Error;
use crate::lower::{Lowering, orders};
use crate::parameters::Block;
use crate::plane::Coordinate;
use crate::problem::{Condition, Measure, Problem};
use crate::tape::{Op, Tape};
use num_dual::{Dual64, HyperHyperDual};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// How many times the step is halved.
const HALVINGS: usize = 22;
/// Directions for each condition and block: errors that cancel along one show along another.
const DIRECTIONS: u64 = 2;
/// A difference is real where it is so many times what the test could resolve.
const DOUBT: f64 = 4.0;
/// A test decides where it resolves this share of the block's gradient,
const RESOLUTION: f64 = 1e-3;
/// or this share of the whole gradient: a block may have none, by a symmetry.
const NEGLIGIBLE: f64 = 1e-9;
/// Points of each condition that nested numbers are tried at.
const POINTS: usize = 3;
/// Agreement of nested numbers and of lowerings with the engine, relative to the numbers that
/// enter.
const AGREEMENT: f64 = 1e-11;

/// A way to doubt a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Test {
    /// Loss and gradient could be evaluated at all.
    Evaluation,
    /// Remainders of the loss fall with the step.
    Remainder,
    /// Numbers of num-dual, nested, give the same.
    Nested,
    /// Another lowering gives the same.
    Lowering(Lowering),
    /// Recomputation gives the same bits.
    Recomputation,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Evaluation => "evaluation",
            Self::Remainder => "remainder",
            Self::Nested => "nested",
            Self::Lowering(Lowering::NestedReverse) => "reverse",
            Self::Lowering(_) => "split",
            Self::Recomputation => "recomputed",
        })
    }
}

/// What came of a test.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// The gradient is right, as far as the test resolves.
    Agrees,
    /// The gradient is wrong.
    Differs,
    /// The rounding of the loss hides the answer; try other parameters.
    Unresolved,
    /// The test could not be made.
    Failed(Error),
}

/// One test of one condition on one block of the parameters.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// Which test.
    pub test: Test,
    /// The condition.
    pub condition: String,
    /// The block of the parameters.
    pub block: String,
    /// Where in the block the largest difference is, if it differs: row and column, from 0.
    pub entry: Option<(usize, usize)>,
    /// The derivative along the direction, by the gradient. Where `entry` is known, the
    /// derivative in that entry.
    pub gradient: f64,
    /// The same by the test.
    pub reference: f64,
    /// The smallest difference that the test could see.
    pub resolution: f64,
    /// The slope of the remainder against the step in logarithms, just above the noise: 2 for
    /// a right gradient, 0 for a wrong one. `None` where too few remainders stand out.
    pub slope: Option<f64>,
    /// What came of it.
    pub verdict: Verdict,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10} {} / {}", self.test, self.condition, self.block)?;
        if let Some((row, column)) = self.entry {
            write!(f, "[{row}, {column}]")?;
        }
        let numbers = format!(
            "gradient {:.9e}, {} {:.9e}, resolved to {:.1e}",
            self.gradient,
            match self.test {
                Test::Nested => "num-dual",
                Test::Lowering(_) | Test::Recomputation => "the other way",
                _ => "loss",
            },
            self.reference,
            self.resolution
        );
        match &self.verdict {
            Verdict::Agrees => write!(f, ": agrees; {numbers}")?,
            Verdict::Differs => write!(
                f,
                ": DIFFERS by {:.3e}; {numbers}",
                self.gradient - self.reference
            )?,
            Verdict::Unresolved => write!(
                f,
                ": UNRESOLVED, the rounding of the loss hides the derivative, try other \
                 parameters; {numbers}"
            )?,
            Verdict::Failed(error) => return write!(f, ": FAILED, {error}"),
        }
        match self.slope {
            Some(slope) => write!(f, ", slope {slope:.2}"),
            None => Ok(()),
        }
    }
}

/// What [`check_gradient`] found.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a check that nobody reads is none"]
pub struct GradientCheck {
    findings: Vec<Finding>,
}

impl GradientCheck {
    /// All tests that were made.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether tests were made and all of them agree.
    pub fn passed(&self) -> bool {
        self.tests(Test::Remainder) > 0 && self.doubts().next().is_none()
    }

    /// Those that do not agree.
    pub fn doubts(&self) -> impl Iterator<Item = &Finding> {
        let agrees = |finding: &&Finding| finding.verdict != Verdict::Agrees;
        self.findings.iter().filter(agrees)
    }

    /// How many tests of a kind were made.
    pub fn tests(&self, test: Test) -> usize {
        self.findings.iter().filter(|f| f.test == test).count()
    }

    /// The report, or an error with all that does not agree.
    ///
    /// # Errors
    /// A check that did not pass.
    pub fn require(self) -> Result<Self, Error> {
        if self.passed() {
            return Ok(self);
        }
        Err(Error::Gradient {
            report: self.to_string(),
        })
    }
}

impl fmt::Display for GradientCheck {
    /// A summary, and a line for each doubt; with `{:#}` a line for each test.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.findings.len();
        write!(
            f,
            "gradient check: {} of {count} tests agree",
            count - self.doubts().count()
        )?;
        if self.tests(Test::Remainder) == 0 {
            write!(f, "; NOT PASSED, no remainder was tested")?;
        }
        for finding in &self.findings {
            if f.alternate() || finding.verdict != Verdict::Agrees {
                write!(f, "\n  {finding}")?;
            }
        }
        Ok(())
    }
}

/// Tests the gradient of a problem at some parameters: each condition on each block, by the
/// means of this module. It costs some fifty losses a block and direction.
///
/// A problem with [`detach`](crate::detach) differs, as it should: its gradient is not that
/// of its loss. Where a kink (ReLU, `select`) lies closer than the smallest step, the answer
/// is that nothing could be resolved.
///
/// ```
/// use dualtape::{
///     Condition, Elemental::Tanh, Equation, Parameters, Points, Problem, check_gradient,
/// };
///
/// let mut params = Parameters::seeded(1);
/// let net = params.mlp("y", &[1, 8, 1], Tanh)?;
/// let decay = Equation::record("decay", &params, ["t"], |[t]| {
///     let [y] = net.at(&[t]);
///     y.d(t) + y * y
/// })?;
/// let points = Points::grid(&[(0.0, 1.0, 30)])?;
/// let problem = Problem::new(&params, [Condition::new(&decay, points)])?;
/// let report = check_gradient(&problem, params.values());
/// assert!(report.passed(), "{report}");
/// println!("{report:#}");
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn check_gradient(problem: &Problem, parameters: &[f64]) -> GradientCheck {
    check_gradient_with(problem, parameters, &Options::default())
}

/// [`check_gradient`] of an engine with options. In single precision its rounding hides more,
/// and nested numbers, which are double, are left out.
pub fn check_gradient_with(
    problem: &Problem,
    parameters: &[f64],
    options: &Options,
) -> GradientCheck {
    let names: Vec<String> = problem.conditions.iter().map(|c| c.name.clone()).collect();
    let evaluated = Engine::with(problem, options)
        .and_then(|engine| Ok((engine.gradients(parameters)?, engine)));
    let (gradients, engine) = match evaluated {
        Ok(evaluated) => evaluated,
        Err(error) => return failed(error),
    };
    let blocks = &problem.blocks;
    let epsilon = epsilon(options);
    let mut report = remainders(&names, blocks, parameters, &gradients, epsilon, &mut |at| {
        engine.losses(at)
    });
    report
        .findings
        .extend(lowerings(problem, parameters, options, &gradients));
    if options.precision == Precision::Double {
        for condition in &problem.conditions {
            report
                .findings
                .extend(nested(problem, condition, parameters, options));
        }
    }
    report
}

/// The rounding unit of the losses.
fn epsilon(options: &Options) -> f64 {
    match options.precision {
        Precision::Double => f64::EPSILON,
        Precision::Single => f32::EPSILON.into(),
    }
}

fn failed(error: Error) -> GradientCheck {
    GradientCheck {
        findings: vec![Finding {
            test: Test::Evaluation,
            condition: "all conditions".to_owned(),
            block: "all blocks".to_owned(),
            entry: None,
            gradient: f64::NAN,
            reference: f64::NAN,
            resolution: f64::NAN,
            slope: None,
            verdict: Verdict::Failed(error),
        }],
    }
}

/// The remainder test for any losses and gradients of them: one loss and one gradient for
/// each condition, `losses` giving all at once.
///
/// ```
/// use dualtape::check::check_remainders;
/// use dualtape::Parameters;
///
/// let mut params = Parameters::new();
/// params.coefficient("a", 0.3)?;
/// params.coefficient("b", -0.8)?;
/// let loss = |x: &[f64]| Ok(vec![x[0].sin() * x[1].exp()]);
/// let right = vec![0.3_f64.cos() * (-0.8_f64).exp(), 0.3_f64.sin() * (-0.8_f64).exp()];
/// let wrong = vec![right[0], -right[1]];
/// let names = ["f".to_owned()];
/// let check = |gradient| {
///     check_remainders(&names, params.blocks(), params.values(), &[gradient], loss)
/// };
/// assert!(check(right).passed());
/// assert_eq!(check(wrong).doubts().next().unwrap().block, "b");
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn check_remainders(
    conditions: &[String],
    blocks: &[Block],
    parameters: &[f64],
    gradients: &[Vec<f64>],
    mut losses: impl FnMut(&[f64]) -> Result<Vec<f64>, Error>,
) -> GradientCheck {
    remainders(
        conditions,
        blocks,
        parameters,
        gradients,
        f64::EPSILON,
        &mut losses,
    )
}

/// Losses of all conditions at some parameters.
type Losses<'a> = dyn FnMut(&[f64]) -> Result<Vec<f64>, Error> + 'a;

fn remainders(
    conditions: &[String],
    blocks: &[Block],
    parameters: &[f64],
    gradients: &[Vec<f64>],
    epsilon: f64,
    losses: &mut Losses<'_>,
) -> GradientCheck {
    let covered: usize = blocks.iter().map(Block::len).sum();
    let lengths = [
        ("gradients", gradients.len(), conditions.len()),
        ("parameters of all blocks", covered, parameters.len()),
    ];
    let all = gradients
        .iter()
        .map(|g| ("entries of a gradient", g.len(), parameters.len()));
    for (what, given, expected) in lengths.into_iter().chain(all) {
        if given != expected {
            return failed(Error::length(what, given, expected));
        }
    }
    let outside = |block: &&Block| {
        let end = block.offset.checked_add(block.len());
        end.is_none_or(|end| end > parameters.len())
    };
    if let Some(block) = blocks.iter().find(outside) {
        return failed(Error::OutOfRange {
            what: format!("the end of block `{}`", block.name),
            given: format!("{} + {}", block.offset, block.len()),
            expected: format!("there are {} parameters", parameters.len()),
        });
    }
    let mut findings = Vec::new();
    for block in blocks.iter().filter(|block| !block.is_empty()) {
        let range = block.offset..block.offset + block.len();
        for seed in 0..DIRECTIONS {
            let direction: Vec<f64> = direction(seed ^ (block.offset as u64) << 8)
                .take(block.len())
                .collect();
            let mut ladder = |part: Range<usize>| {
                Ladder::climb(
                    losses,
                    conditions.len(),
                    parameters,
                    &range,
                    &direction,
                    part,
                )
            };
            let whole = match ladder(0..block.len()) {
                Ok(ladder) => ladder,
                Err(error) => {
                    let mut report = failed(error);
                    report.findings[0].test = Test::Remainder;
                    report.findings[0].block.clone_from(&block.name);
                    findings.append(&mut report.findings);
                    continue;
                }
            };
            for (place, name) in conditions.iter().enumerate() {
                let scales = Scales {
                    epsilon,
                    whole: gradients[place].iter().map(|g| g.abs()).sum(),
                };
                let gradient = &gradients[place][range.clone()];
                let theta = &parameters[range.clone()];
                let judge = |ladder: &Ladder, part: Range<usize>| {
                    ladder.judge(place, gradient, theta, &direction, part, &scales)
                };
                let mut finding = judge(&whole, 0..block.len());
                finding.condition.clone_from(name);
                finding.block.clone_from(&block.name);
                if finding.verdict == Verdict::Differs {
                    // Halve the block until one entry is left.
                    let mut part = 0..block.len();
                    let mut worst = finding.clone();
                    while part.len() > 1 {
                        let middle = part.start + part.len() / 2;
                        let halves = [part.start..middle, middle..part.end].map(|half| {
                            let ladder = ladder(half.clone()).ok()?;
                            Some((judge(&ladder, half.clone()), half))
                        });
                        let differs = halves
                            .into_iter()
                            .flatten()
                            .filter(|(f, _)| f.verdict == Verdict::Differs);
                        let size = |f: &Finding| (f.gradient - f.reference).abs();
                        match differs.max_by(|a, b| size(&a.0).total_cmp(&size(&b.0))) {
                            Some((found, half)) => (worst, part) = (found, half),
                            None => break,
                        }
                    }
                    if part.len() == 1 {
                        let along = direction[part.start];
                        finding.gradient = worst.gradient / along;
                        finding.reference = worst.reference / along;
                        finding.resolution = worst.resolution / along.abs();
                        finding.entry =
                            Some((part.start / block.columns, part.start % block.columns));
                    }
                }
                findings.push(finding);
            }
        }
    }
    GradientCheck { findings }
}

/// A direction from a seed: numbers from 1 to 2 with either sign.
fn direction(seed: u64) -> impl Iterator<Item = f64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let size = random.random_range(1.0..2.0);
        if random.random() { size } else { -size }
    })
}

/// What numbers are compared with.
struct Scales {
    /// The rounding unit of the losses.
    epsilon: f64,
    /// The sum of all entries of the condition's gradient, without its signs.
    whole: f64,
}

/// Central differences of all losses along a direction, from large steps to small ones.
struct Ladder {
    steps: Vec<f64>,
    /// By condition, then by step.
    differences: Vec<Vec<f64>>,
    /// By condition: the loss, and its rounding noise.
    values: Vec<f64>,
    noise: Vec<f64>,
}

impl Ladder {
    fn climb(
        losses: &mut Losses<'_>,
        conditions: usize,
        parameters: &[f64],
        block: &Range<usize>,
        direction: &[f64],
        part: Range<usize>,
    ) -> Result<Self, Error> {
        let mut moved = parameters.to_vec();
        let places = block.start + part.start..block.start + part.end;
        let mut at = |h: f64| {
            for (place, along) in places.clone().zip(&direction[part.clone()]) {
                moved[place] = parameters[place] + h * along;
            }
            let losses = losses(&moved)?;
            if losses.len() != conditions {
                return Err(Error::length("losses", losses.len(), conditions));
            }
            Ok(losses)
        };
        let values = at(0.0)?;
        let own = &parameters[places.clone()];
        let size = own.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
        let first = size / (own.len() as f64).sqrt();
        let mut ladder = Self {
            steps: Vec::new(),
            differences: vec![Vec::new(); conditions],
            noise: Vec::new(),
            values,
        };
        for halving in 0..HALVINGS {
            let h = first * 0.5_f64.powi(halving as i32);
            // Where the largest steps leave the domain, the smaller ones decide.
            let (Ok(plus), Ok(minus)) = (at(h), at(-h)) else {
                ladder.steps.clear();
                ladder.differences.iter_mut().for_each(Vec::clear);
                continue;
            };
            ladder.steps.push(h);
            for (list, (plus, minus)) in ladder.differences.iter_mut().zip(plus.iter().zip(&minus))
            {
                list.push((plus - minus) / (2.0 * h));
            }
        }
        // Fourth differences see nothing of a smooth function at so small a step.
        let tiny = size * 2.0_f64.powi(-34);
        let table: Vec<Vec<f64>> = (0..10)
            .map(|i| at(f64::from(i) * tiny))
            .collect::<Result<_, _>>()?;
        for place in 0..conditions {
            let mut list: Vec<f64> = table.iter().map(|losses| losses[place]).collect();
            for _ in 0..4 {
                list = list.windows(2).map(|pair| pair[1] - pair[0]).collect();
            }
            let square = list.iter().map(|x| x * x).sum::<f64>() / list.len() as f64;
            // Their variance is 8!/(4!)² = 70 times that of the noise.
            ladder.noise.push((square / 70.0).sqrt());
        }
        Ok(ladder)
    }

    /// Compares the limit of the differences with the gradient.
    fn judge(
        &self,
        place: usize,
        gradient: &[f64],
        theta: &[f64],
        direction: &[f64],
        part: Range<usize>,
        scales: &Scales,
    ) -> Finding {
        let entries = || part.clone().map(|i| (gradient[i], theta[i], direction[i]));
        let along: f64 = entries().map(|(g, _, v)| g * v).sum();
        let size: f64 = entries().map(|(g, _, v)| (g * v).abs()).sum();
        // Rounding of the loss, and of the moved parameters.
        let shifted: f64 = entries().map(|(g, theta, _)| (g * theta).abs()).sum();
        let noise = self.noise[place].max(scales.epsilon * (self.values[place].abs() + shifted));
        let floor = |k: usize| noise / self.steps[k];

        let d = &self.differences[place];
        // Romberg's columns.
        let column = |list: &[f64], factor: f64| -> Vec<f64> {
            let pairs = list.windows(2);
            pairs
                .map(|p| (factor * p[1] - p[0]) / (factor - 1.0))
                .collect()
        };
        let second = column(d, 4.0);
        let third = column(&second, 16.0);
        // third[k] rests on steps k, k + 1 and k + 2.
        let (mut limit, mut resolution) = (f64::NAN, f64::INFINITY);
        for k in 2..third.len() {
            let change = (third[k] - third[k - 1]).abs();
            let before = (third[k - 1] - third[k - 2]).abs() / 16.0;
            let doubt = change.max(before) + 3.0 * floor(k + 2);
            if doubt < resolution {
                (limit, resolution) = (third[k], doubt);
            }
        }
        let constant = d.iter().all(|d| *d == 0.0) && size == 0.0;
        let difference = (along - limit).abs();
        let negligible = NEGLIGIBLE * scales.epsilon / f64::EPSILON;
        let verdict = if constant {
            Verdict::Agrees
        } else if difference > DOUBT * resolution {
            Verdict::Differs
        } else if difference <= DOUBT * resolution
            && resolution <= f64::max(RESOLUTION * size, negligible * scales.whole)
        {
            Verdict::Agrees
        } else {
            Verdict::Unresolved
        };
        Finding {
            test: Test::Remainder,
            condition: String::new(),
            block: String::new(),
            entry: None,
            gradient: along,
            reference: limit,
            resolution,
            slope: self.slope(place, along, &floor),
            verdict,
        }
    }

    /// The slope of the remainder over the last three halvings that stand out of the noise.
    fn slope(&self, place: usize, along: f64, floor: &dyn Fn(usize) -> f64) -> Option<f64> {
        let remainders = self.differences[place].iter().map(|d| (d - along).abs());
        let standing: Vec<f64> = remainders
            .enumerate()
            .take_while(|(k, remainder)| *remainder > 50.0 * floor(*k))
            .map(|(_, remainder)| remainder)
            .collect();
        let last = standing.last_chunk::<4>()?;
        Some((last[0] / last[3]).log2() / 3.0)
    }
}

// Other ways of the engine.

/// The gradients by other lowerings and by recomputation against those given.
fn lowerings(
    problem: &Problem,
    theta: &[f64],
    options: &Options,
    gradients: &[Vec<f64>],
) -> Vec<Finding> {
    let order = |c: &Condition| orders(c.equation.tape()).into_iter().max().unwrap_or(0);
    let order = problem.conditions.iter().map(order).max().unwrap_or(0);
    let lowered =
        |lowering: Lowering| (Test::Lowering(lowering), options.clone().lowering(lowering));
    let mut ways = vec![(
        Test::Recomputation,
        options.clone().recompute(!options.recompute),
    )];
    if order > 0 {
        let plain = match options.lowering {
            Lowering::NestedReverse => Lowering::Jets,
            _ => Lowering::NestedReverse,
        };
        ways.push(lowered(plain));
    }
    if order > 1 {
        ways.push(lowered(Lowering::Partial { inner: 1 }));
    }
    // What rounding does: the gradients at parameters that are hardly others.
    let epsilon = epsilon(options);
    let mut noise = gradients
        .iter()
        .map(|g| vec![0.0; g.len()])
        .collect::<Vec<_>>();
    for seed in 0..2 {
        let moved = theta.iter().zip(direction(seed));
        let moved: Vec<f64> = moved.map(|(x, v)| x * (1.0 + 2.0 * epsilon * v)).collect();
        let near = Engine::with(problem, options).and_then(|engine| engine.gradients(&moved));
        for (noise, (a, b)) in noise
            .iter_mut()
            .zip(gradients.iter().zip(near.unwrap_or_default()))
        {
            for (noise, (a, b)) in noise.iter_mut().zip(a.iter().zip(b)) {
                *noise = f64::max(*noise, (a - b).abs());
            }
        }
    }
    let mut findings = Vec::new();
    for (test, options) in ways {
        let other = match Engine::with(problem, &options).and_then(|engine| engine.gradients(theta))
        {
            Ok(other) => other,
            // Too many nodes: not a way that anybody can go.
            Err(Error::LoweringTooLarge { .. }) => continue,
            Err(error) => {
                let mut report = failed(error);
                report.findings[0].test = test;
                findings.append(&mut report.findings);
                continue;
            }
        };
        for (place, condition) in problem.conditions.iter().enumerate() {
            let (own, other, noise) = (&gradients[place], &other[place], &noise[place]);
            let largest = |list: &[f64]| list.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
            let share = AGREEMENT * epsilon / f64::EPSILON;
            let resolution = match test {
                Test::Recomputation => 0.0,
                _ => share * largest(own) + 30.0 * largest(noise),
            };
            for block in &problem.blocks {
                let range = block.offset..block.offset + block.len();
                let size = |&i: &usize| (own[i] - other[i]).abs();
                let worst = range
                    .max_by(|a, b| size(a).total_cmp(&size(b)))
                    .unwrap_or(block.offset);
                let agrees = match test {
                    Test::Recomputation => own[worst].to_bits() == other[worst].to_bits(),
                    _ => size(&worst) <= resolution,
                };
                let row = (worst - block.offset) / block.columns;
                findings.push(Finding {
                    test,
                    condition: condition.name.clone(),
                    block: block.name.clone(),
                    entry: Some((row, (worst - block.offset) % block.columns)),
                    gradient: own[worst],
                    reference: other[worst],
                    resolution,
                    slope: None,
                    verdict: if agrees {
                        Verdict::Agrees
                    } else {
                        Verdict::Differs
                    },
                });
            }
        }
    }
    findings
}

// Nested numbers.

/// Three directions in the coordinates, and one in the parameters inside.
type Number = HyperHyperDual<Dual64>;

/// Directions in which a part of the tape is differentiated from outside.
type Context = Vec<Coordinate>;

/// Nodes that are needed in each context, or `None` where derivatives are nested too deeply.
fn contexts(tape: &Tape) -> Option<BTreeMap<(usize, Context), Vec<bool>>> {
    let count = tape.nodes().len();
    let mut all: BTreeMap<(usize, Context), Vec<bool>> = BTreeMap::new();
    let mut open = vec![Context::new()];
    let mut first = vec![false; count];
    for &root in tape.roots() {
        first[root] = true;
    }
    all.insert((0, Context::new()), first);
    while let Some(context) = open.pop() {
        let key = (context.len(), context);
        let mut needed = all.remove(&key)?;
        let context = &key.1;
        for id in (0..count).rev() {
            if !needed[id] {
                continue;
            }
            let node = &tape.nodes()[id];
            let inner: Vec<Context> = match &node.op {
                Op::Derivative(c) => vec![[&context[..], &[*c]].concat()],
                Op::Laplacian(set) => set
                    .iter()
                    .map(|c| [&context[..], &[*c, *c]].concat())
                    .collect(),
                _ => {
                    node.inputs.iter().for_each(|&input| needed[input] = true);
                    continue;
                }
            };
            for inner in inner {
                if inner.len() > 3 {
                    return None;
                }
                let marks = all
                    .entry((inner.len(), inner.clone()))
                    .or_insert_with(|| vec![false; count]);
                if !marks[node.inputs[0]] {
                    marks[node.inputs[0]] = true;
                    if !open.contains(&inner) {
                        open.push(inner);
                    }
                }
            }
        }
        all.insert(key, needed);
    }
    Some(all)
}

/// The derivative in the last of `depth` + 1 directions, as a number with `depth`.
fn last_direction(w: Number, depth: usize) -> Number {
    let mut v = Number::from_re(Dual64::from(0.0));
    match depth {
        0 => v.re = w.eps1,
        1 => (v.re, v.eps1) = (w.eps2, w.eps1eps2),
        _ => {
            (v.re, v.eps1, v.eps2) = (w.eps3, w.eps1eps3, w.eps2eps3);
            v.eps1eps2 = w.eps1eps2eps3;
        }
    }
    v
}

/// The residuals at a point, each with its derivative along `direction`, and how large the
/// numbers were of which they were made.
fn residuals(
    condition: &Condition,
    contexts: &BTreeMap<(usize, Context), Vec<bool>>,
    point: usize,
    theta: &[f64],
    direction: &dyn Fn(usize) -> f64,
) -> (Vec<Dual64>, f64) {
    let tape = condition.equation.tape();
    let parameter = |index: usize| Number::from_re(Dual64::new(theta[index], direction(index)));
    let mut done: BTreeMap<&Context, Vec<Vec<Number>>> = BTreeMap::new();
    let mut size = 1.0_f64;
    // The deepest first: the others read them.
    for ((depth, context), needed) in contexts.iter().rev() {
        let mut values: Vec<Vec<Number>> = Vec::with_capacity(tape.nodes().len());
        for (id, node) in tape.nodes().iter().enumerate() {
            if !needed[id] {
                values.push(Vec::new());
                continue;
            }
            let input = |place: usize| &values[node.inputs[place]];
            let within = |more: &[Coordinate]| {
                let inner = [&context[..], more].concat();
                done[&inner][node.inputs[0]].clone()
            };
            let rows: Vec<Number> = match &node.op {
                Op::Coordinate(c) => {
                    let mut x = Number::from(condition.points.coordinate(usize::from(*c))[point]);
                    let one = |direction: usize| {
                        Dual64::from(f64::from(u8::from(context.get(direction) == Some(c))))
                    };
                    (x.eps1, x.eps2, x.eps3) = (one(0), one(1), one(2));
                    vec![x]
                }
                Op::Data(column) => {
                    let name = &tape.columns()[*column];
                    let list = condition.points.column(name).unwrap_or_default();
                    vec![Number::from(list.get(point).copied().unwrap_or(f64::NAN))]
                }
                Op::Constant(value) => vec![Number::from(*value)],
                Op::Parameter(index) => vec![parameter(*index)],
                Op::Linear { factors, shift } => (0..node.rows)
                    .map(|row| {
                        let terms = factors.iter().enumerate();
                        terms.fold(Number::from(*shift), |sum, (i, factor)| {
                            sum + input(i)[row] * *factor
                        })
                    })
                    .collect(),
                Op::Stack => (0..node.inputs.len())
                    .flat_map(|i| input(i).iter().copied())
                    .collect(),
                Op::Row(row) => vec![input(0)[*row]],
                Op::Broadcast => vec![input(0)[0]; node.rows],
                Op::Derivative(c) => within(&[*c])
                    .into_iter()
                    .map(|w| last_direction(w, *depth))
                    .collect(),
                Op::Laplacian(set) => {
                    let mut sum = vec![Number::from(0.0); node.rows];
                    for c in set.iter() {
                        for (sum, w) in sum.iter_mut().zip(within(&[*c, *c])) {
                            *sum += last_direction(last_direction(w, depth + 1), *depth);
                        }
                    }
                    sum
                }
                Op::Product => input(0)
                    .iter()
                    .zip(input(1))
                    .map(|(a, b)| *a * *b)
                    .collect(),
                Op::Elemental(elemental) => input(0).iter().map(|z| elemental.apply(*z)).collect(),
                Op::Affine { weight, bias } => {
                    let columns = input(0).len();
                    (0..node.rows)
                        .map(|row| {
                            let start =
                                bias.map_or(Number::from(0.0), |bias| parameter(bias + row));
                            let pairs = input(0).iter().enumerate();
                            pairs.fold(start, |sum, (column, a)| {
                                sum + parameter(weight + row * columns + column) * *a
                            })
                        })
                        .collect()
                }
                Op::Transposed { weight } => (0..node.rows)
                    .map(|column| {
                        let pairs = input(0).iter().enumerate();
                        pairs.fold(Number::from(0.0), |sum, (row, a)| {
                            sum + parameter(weight + row * node.rows + column) * *a
                        })
                    })
                    .collect(),
                Op::SumRows => vec![input(0).iter().copied().sum()],
                Op::Guard => {
                    let pairs = input(0).iter().zip(input(1));
                    let open = |(x, adjoint): (&Number, &Number)| {
                        adjoint.re.re != 0.0 || x.re.re.is_finite()
                    };
                    pairs
                        .map(|pair| Number::from(f64::from(u8::from(open(pair)))))
                        .collect()
                }
                Op::Detach => {
                    let still = |part: Dual64| Dual64::from(part.re);
                    let one = |v: &Number| {
                        Number::new(
                            still(v.re),
                            still(v.eps1),
                            still(v.eps2),
                            still(v.eps3),
                            still(v.eps1eps2),
                            still(v.eps1eps3),
                            still(v.eps2eps3),
                            still(v.eps1eps2eps3),
                        )
                    };
                    input(0).iter().map(one).collect()
                }
                Op::Select { or_equal } => (0..node.rows)
                    .map(|row| {
                        let mask = input(0)[row].re.re;
                        let first = mask > 0.0 || *or_equal && mask == 0.0;
                        input(if first { 1 } else { 2 })[row]
                    })
                    .collect(),
            };
            for v in &rows {
                size = size.max(v.re.re.abs()).max(v.re.eps.abs());
            }
            values.push(rows);
        }
        done.insert(context, values);
    }
    let whole = &done[&Context::new()];
    let residuals = tape
        .roots()
        .iter()
        .flat_map(|&root| whole[root].iter().map(|v| v.re));
    (residuals.collect(), size)
}

/// Loss and derivatives of a condition at some of its points, by nested numbers, against an
/// engine at the same points.
fn nested(
    problem: &Problem,
    condition: &Condition,
    theta: &[f64],
    options: &Options,
) -> Vec<Finding> {
    let Some(contexts) = contexts(condition.equation.tape()) else {
        return Vec::new();
    };
    let count = condition.points.len();
    let mut places: Vec<usize> = (0..POINTS)
        .map(|i| i * (count - 1) / (POINTS - 1))
        .collect();
    places.dedup();
    let evaluated = condition.points.select(&places).and_then(|points| {
        let weights = condition.point_weights.as_ref();
        let part = Problem {
            conditions: vec![Condition {
                points,
                point_weights: weights.map(|all| places.iter().map(|&place| all[place]).collect()),
                ..condition.clone()
            }],
            parameters: problem.parameters,
            blocks: problem.blocks.clone(),
        };
        let evaluation = Engine::with(&part, options)?.evaluate(theta)?;
        Ok((part, evaluation))
    });
    let (part, evaluation) = match evaluated {
        Ok(evaluated) => evaluated,
        Err(error) => {
            let mut report = failed(error);
            report.findings[0].test = Test::Nested;
            report.findings[0].condition.clone_from(&condition.name);
            return report.findings;
        }
    };
    let part = &part.conditions[0];
    let share = part.weight / places.len() as f64;
    problem
        .blocks
        .iter()
        .map(|block| {
            let range = block.offset..block.offset + block.len();
            let entries: Vec<f64> = direction(!(block.offset as u64))
                .take(block.len())
                .collect();
            let direction = |index: usize| {
                if range.contains(&index) {
                    entries[index - block.offset]
                } else {
                    0.0
                }
            };
            let (mut slope, mut size) = (0.0, 0.0);
            let mut integrals: Vec<Dual64> = Vec::new();
            for point in 0..places.len() {
                let q = part
                    .point_weights
                    .as_ref()
                    .map_or(1.0, |weights| weights[point]);
                let (residuals, numbers) = residuals(part, &contexts, point, theta, &direction);
                size += (share * q).abs() * numbers * numbers;
                integrals.resize(residuals.len(), Dual64::from(0.0));
                for (r, integral) in residuals.iter().zip(&mut integrals) {
                    *integral += *r * q;
                    slope += match part.measure {
                        Measure::Squares => 2.0 * share * q * r.re * r.eps,
                        Measure::Energy => share * q * r.eps,
                        Measure::Integral => 0.0,
                    };
                }
            }
            if part.measure == Measure::Integral {
                slope = integrals
                    .iter()
                    .map(|s| 2.0 * part.weight * s.re * s.eps)
                    .sum();
            }
            let along: f64 = range
                .clone()
                .map(|i| evaluation.gradient[i] * direction(i))
                .sum();
            let resolution = AGREEMENT * size;
            // NaN differs.
            let verdict = if (along - slope).abs() <= resolution {
                Verdict::Agrees
            } else {
                Verdict::Differs
            };
            Finding {
                test: Test::Nested,
                condition: condition.name.clone(),
                block: block.name.clone(),
                entry: None,
                gradient: along,
                reference: slope,
                resolution,
                slope: None,
                verdict,
            }
        })
        .collect()
}
