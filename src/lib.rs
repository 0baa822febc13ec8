//! Physics-informed neural networks by mixed-mode differentiation: jets forward, one
//! reverse sweep.
//!
//! A differential equation is written as a closure and recorded once on a [`tape`]. Every
//! value on it is a *jet*: a number with the derivatives in the coordinates that the
//! equation asks for, found by inference. One forward pass gives network, derivatives and
//! residual; **one** reverse sweep over the jets gives the gradient in all parameters.
//! There is no graph of a graph.
//!
//! ```
//! use dualtape::{Condition, Elemental::Tanh, Engine, Equation, Parameters, Points, Problem};
//!
//! let mut params = Parameters::seeded(1);
//! let net = params.mlp("u", &[2, 32, 32, 1], Tanh)?;
//! let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
//!     let [n] = net.at(&[t, x]);
//!     let u = t * (1.0 - x * x) * n - (std::f64::consts::PI * x).sin();
//!     u.d(t) + u * u.d(x) - 0.01 * u.d(x).d(x)
//! })?;
//! let points = Points::grid(&[(0.0, 1.0, 20), (-1.0, 1.0, 41)])?;
//! let problem = Problem::new(&params, [Condition::new(&burgers, points)])?;
//! let engine = Engine::new(&problem)?;
//! let evaluation = engine.evaluate(params.values())?;
//! println!("loss {}, {} derivatives", evaluation.loss, evaluation.gradient.len());
//! # Ok::<(), dualtape::Error>(())
//! ```
//!
//! # What it does not do
//! No GPU, no meshes, no data-dependent control flow in an equation: a comparison of
//! recorded values is an error, and [`select`] takes its place. `f32` and `f64` only.
//!
//! # Where to start
//! The [course] is five short pages, and [trust] says what you can rely on.
//! [`Equation::record`] writes an equation down, [`Problem`] puts it on points, [`Engine`]
//! evaluates it. [`dual`] shows the idea at one point, readable from end to end.
//!
//! # Floors
//! A module uses those above it in this list, never those below: [`error`], [`plane`],
//! [`elemental`], [`tape`], [`record`] and [`lower`], the plan (private) and [`count`], the
//! replay (private), [`network`] and [`parameters`], [`points`], [`domain`] and [`sample`],
//! [`ansatz`], [`problem`], [`engine`], [`check`] and [`trace`], [`weights`] and [`model`],
//! [`optim`] and [`train`]. [`plot`] stands beside them, and [`dual`] uses none of them.

/// A short course, each page adding one idea.
pub mod course {
    #[doc = include_str!("../docs/1-dual-numbers.md")]
    pub mod dual_numbers {}
    #[doc = include_str!("../docs/2-jets.md")]
    pub mod jets {}
    #[doc = include_str!("../docs/3-the-tape.md")]
    pub mod the_tape {}
    #[doc = include_str!("../docs/4-reverse-sweep.md")]
    pub mod reverse_sweep {}
    #[doc = include_str!("../docs/5-a-pinn.md")]
    pub mod a_pinn {}
}

#[doc = include_str!("../docs/trust.md")]
pub mod trust {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/xray.md")]
struct XRay;

pub mod ansatz;
pub mod check;
pub mod checkpoint;
pub mod count;
pub mod domain;
pub mod dual;
pub mod elemental;
pub mod engine;
pub mod error;
pub(crate) mod kernel;
pub(crate) mod linear;
pub mod lower;
pub mod model;
pub mod network;
pub mod optim;
pub mod parameters;
pub(crate) mod plan;
pub mod plane;
pub mod plot;
pub mod points;
pub mod problem;
pub mod real;
pub mod record;
pub(crate) mod replay;
pub mod sample;
pub mod tape;
pub mod trace;
pub mod train;
pub mod weights;

pub use check::{GradientCheck, check_gradient, check_gradient_with};
pub use count::Counts;
pub use domain::Domain;
pub use elemental::{Elemental, Smoothness};
pub use engine::{ConditionPlan, Engine, Evaluation, Options, Precision, Rows, values};
pub use error::Error;
pub use kernel::simd::InstructionSet;
pub use lower::Lowering;
pub use model::Model;
pub use network::{Activation, Architecture, Init, Mlp};
pub use optim::{
    Adam, GaussNewtonCg, GradientDescent, Lbfgs, LevenbergMarquardt, Minimizer, Objective,
    Optimizer, Schedule, Spring, SsBroyden,
};
pub use parameters::{Block, Coefficient, Parameters};
pub use points::{Points, Quadrature};
pub use problem::{Condition, Measure, Problem};
pub use real::Real;
pub use record::{Equation, Field, Mask, data, detach, select};
pub use sample::{Design, Sampler, SamplerState};
pub use train::{History, Report, Source, Stage, StageReport, State, Stop, Train};
