//! Kernels of the replay: plain numbers in rows; no tapes, no parameters' names.

pub(crate) mod gemm;
pub(crate) mod jet;
pub(crate) mod simd;
