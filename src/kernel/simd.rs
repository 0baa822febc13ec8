//! Instruction sets: one binary, the widest set the CPU has, chosen once at run time.
//! Knows nothing of jets or tapes.

use std::sync::OnceLock;

/// A vector instruction set, with what pulp does not tell at compile time.
pub trait Isa: pulp::Simd {
    /// Whether `a * b + c` in one rounding is a machine instruction here. Outside
    /// such a set `f64::mul_add` is a library call, some 50 times slower.
    const FMA: bool;
}

impl Isa for pulp::Scalar {
    const FMA: bool = false;
}
#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V3 {
    const FMA: bool = true;
}
#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V4 {
    const FMA: bool = true;
}
#[cfg(target_arch = "aarch64")]
impl Isa for pulp::aarch64::Neon {
    const FMA: bool = true;
}

/// Work that is compiled once for each instruction set. Everything it calls must be
/// `#[inline(always)]`, else it is compiled for the baseline set.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// Does the work with the instructions of `S`.
    fn run<S: Isa>(self, simd: S) -> Self::Output;
}

/// The instruction sets that one binary holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Whatever the target guarantees (SSE2 on x86-64).
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 (F, BW, CD, DQ, VL).
    Avx512,
    /// NEON.
    Neon,
}

impl InstructionSet {
    /// The sets that this CPU can run, narrowest first.
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Self::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            if pulp::x86::V3::try_new().is_some() {
                sets.push(Self::Avx2);
            }
            if pulp::x86::V4::try_new().is_some() {
                sets.push(Self::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::try_new().is_some() {
            sets.push(Self::Neon);
        }
        sets
    }

    /// The widest set that this CPU can run. The variable `DUALTAPE_ISA`
    /// (`baseline`, `avx2`, `avx512`, `neon`) asks for a narrower one, for tests;
    /// a set that the CPU lacks, or an unknown word, is ignored.
    pub fn detect() -> Self {
        static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let available = Self::available();
            let widest = available[available.len() - 1];
            std::env::var("DUALTAPE_ISA")
                .ok()
                .and_then(|word| available.into_iter().find(|set| set.name() == word))
                .unwrap_or(widest)
        })
    }

    /// The word for it in `DUALTAPE_ISA` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Runs `kernel` with these instructions (with the baseline where the CPU lacks them).
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if let Some(simd) = pulp::x86::V4::try_new() => on(simd, kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if let Some(simd) = pulp::x86::V3::try_new() => on(simd, kernel),
            #[cfg(target_arch = "aarch64")]
            Self::Neon if let Some(simd) = pulp::aarch64::Neon::try_new() => on(simd, kernel),
            _ => on(pulp::Scalar::new(), kernel),
        }
    }
}

/// Runs `kernel` with the instructions of a set that is known to be there: a plain call.
#[inline(always)]
pub(crate) fn on<S: Isa, K: Kernel>(simd: S, kernel: K) -> K::Output {
    struct On<S, K>(S, K);
    impl<S: Isa, K: Kernel> pulp::WithSimd for On<S, K> {
        type Output = K::Output;
        #[inline(always)]
        fn with_simd<T: pulp::Simd>(self, _: T) -> K::Output {
            self.1.run(self.0)
        }
    }
    pulp::Simd::vectorize(simd, On(simd, kernel))
}
