//! dualtape
pub mod dual;
pub mod elemental;
pub mod engine;
pub mod error;
pub(crate) mod kernel;
pub mod network;
pub mod parameters;
pub(crate) mod plan;
pub mod plane;
pub mod problem;
pub mod real;
pub mod record;
pub(crate) mod replay;
pub mod tape;

pub use elemental::{Elemental, Smoothness};
pub use engine::{Engine, Evaluation, Options, Precision, Rows, values};
pub use error::Error;
pub use kernel::simd::InstructionSet;
pub use network::{Activation, Architecture, Init, Mlp};
pub use parameters::{Block, Coefficient, Parameters};
pub use plan::Counts;
pub use problem::{Condition, Measure, Points, Problem};
pub use real::Real;
pub use record::{Equation, Field, Mask, data, detach, select};
