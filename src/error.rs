//! The one error type: what was given, what was expected, what to do.

/// Everything that can go wrong with what a user gives.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {}
