//! dualtape
pub mod error;
pub(crate) mod kernel;
pub mod real;

pub use error::Error;
pub use kernel::simd::InstructionSet;
pub use real::Real;
