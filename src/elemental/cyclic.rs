//! Functions whose derivatives repeat (exponential, circular, hyperbolic) or end.

use super::float::{Float, clamp, exponential, fma, num, polynomial, reduce};
use super::recipe::{INVERSE_FACTORIAL, Recipe, Seeds};

/// e^x.
#[derive(Clone, Copy)]
pub(super) struct ExpOf;

impl<F: Float> Recipe<F> for ExpOf {
    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let x = reduce::<F, FMA>(clamp(x, F::EXP_END));
        let [near, _, far] = exponential::<F, FMA, true>(x);
        let value = near * far;
        [value, value, F::ZERO, F::ZERO, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, _: usize, _: &Seeds<F>, u1: F, _: F, _: F) -> F {
        u1
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, _: &Seeds<F>, _: F, u: F, _: F) -> F {
        u * num(INVERSE_FACTORIAL[k])
    }
}

/// sin(x + quarters·π/2): x reduced by π/2 in pieces, polynomials of the rest.
#[derive(Clone, Copy)]
pub(super) struct Sin {
    pub quarters: u32,
}

impl<F: Float> Recipe<F> for Sin {
    const TURNS: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let (r, q) = x.quarter_turn::<FMA>();
        let w = r * r;
        let sin = fma::<F, FMA>(r * w, polynomial::<F, FMA>(F::SIN, w), r).copysign(r);
        let rest = fma::<F, FMA>(w, polynomial::<F, FMA>(F::COS, w), num(-0.5));
        let (sin, cos) = F::turn(sin, fma::<F, FMA>(w, rest, F::ONE), q, self.quarters);
        [sin, cos, F::ZERO, F::ZERO, F::ZERO]
    }
    fn seeds_scalar(self, x: F) -> Seeds<F> {
        let (sin, cos) = x.sin_cos_scalar();
        let (sin, cos) = F::turn(sin, cos, F::MAGIC, self.quarters);
        [sin, cos, F::ZERO, F::ZERO, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, _: usize, _: &Seeds<F>, _: F, u2: F, _: F) -> F {
        -u2
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, _: &Seeds<F>, _: F, u: F, _: F) -> F {
        u * num(INVERSE_FACTORIAL[k])
    }
}

/// sinh, or with `even` cosh, from m = e^|x| − 1: (m + m/(1 + m))/2 and (e^|x| + e^(−|x|))/2.
#[derive(Clone, Copy)]
pub(super) struct Sinh {
    pub even: bool,
}

impl<F: Float> Recipe<F> for Sinh {
    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let y = reduce::<F, FMA>(clamp(x.abs(), F::EXP_END));
        let [near, m, far] = exponential::<F, FMA, true>(y);
        let inverse = F::ONE / near;
        // Above the split the second terms are negligible, whatever their scale.
        let half = num::<F>(0.5) * far;
        let sinh = (fma::<F, FMA>(m, inverse, m) * half).copysign(x);
        let cosh = (near + inverse) * half;
        let (first, second) = if self.even {
            (cosh, sinh)
        } else {
            (sinh, cosh)
        };
        [first, second, F::ZERO, F::ZERO, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, _: usize, _: &Seeds<F>, _: F, u2: F, _: F) -> F {
        u2
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, _: &Seeds<F>, _: F, u: F, _: F) -> F {
        u * num(INVERSE_FACTORIAL[k])
    }
}

/// |x|, with slope 0 at 0.
#[derive(Clone, Copy)]
pub(super) struct Abs;

/// max(x, 0), with slope 0 at 0.
#[derive(Clone, Copy)]
pub(super) struct Relu;

impl<F: Float> Recipe<F> for Abs {
    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        // NaN is its own slope.
        let slope = if x > F::ZERO { F::ONE } else { x };
        let slope = if x < F::ZERO { -F::ONE } else { slope };
        [
            x.abs(),
            if x == F::ZERO { F::ZERO } else { slope },
            F::ZERO,
            F::ZERO,
            F::ZERO,
        ]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, _: usize, _: &Seeds<F>, _: F, _: F, _: F) -> F {
        F::ZERO
    }
}

impl<F: Float> Recipe<F> for Relu {
    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let slope = if x > F::ZERO { F::ONE } else { x };
        let zero = x <= F::ZERO;
        [
            if zero { F::ZERO } else { x },
            if zero { F::ZERO } else { slope },
            F::ZERO,
            F::ZERO,
            F::ZERO,
        ]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, _: usize, _: &Seeds<F>, _: F, _: F, _: F) -> F {
        F::ZERO
    }
}
