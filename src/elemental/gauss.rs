//! erf and x·Φ(x), whose tails are e^(−x²): the square in two pieces, and e^(y²) erfc y
//! by one polynomial in (y − a)/(y + a).

use super::float::{Float, Twofold, clamp, exponential, fma, near_one, num, polynomial, reduce};
use super::logistic::{product_coefficient, product_value};
use super::recipe::{Recipe, Seeds};

/// e^(y²)·erfc y for y ≥ 0.
#[inline(always)]
fn erfcx<F: Float, const FMA: bool>(y: F) -> F {
    let q = F::ONE / (y + F::ERFCX_A);
    let t = (y - F::ERFCX_A) * q; // 1 − 2aq would double the error of q
    polynomial::<F, FMA>(F::ERFCX, t) * q
}

/// u_k from the equation f'' = −h x f' of a Gaussian integral:
/// k(k−1) u_k = −h (x (k−1) u_{k−1} + (k−2) u_{k−2}).
#[inline(always)]
fn hermite<F: Float, const FMA: bool>(k: usize, h: f64, x: F, u1: F, u2: F) -> F {
    let k = k as f64;
    fma::<F, FMA>(
        x * num(-h / k),
        u1,
        u2 * num(-h * (k - 2.0) / (k * (k - 1.0))),
    )
}

/// erf.
#[derive(Clone, Copy)]
pub(super) struct Erf;

impl<F: Float> Recipe<F> for Erf {
    const KEPT: usize = 2;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let x = clamp(x, F::GAUSS_END);
        let y = x.abs();
        let square = Twofold::product::<FMA>(y, y);
        let (k, r) = reduce::<F, FMA>(-square.hi);
        let [gauss, _, far] = exponential::<F, FMA, false>((k, r - square.lo));
        let outer = (F::ONE - gauss * erfcx::<F, FMA>(y)).copysign(x);
        let inner = fma::<F, FMA>(x, polynomial::<F, FMA>(F::ERF, square.hi), x);
        let erf = if y < num(0.8) { inner } else { outer };
        [
            erf,
            gauss * num(std::f64::consts::FRAC_2_SQRT_PI),
            x,
            far,
            F::ZERO,
        ]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, u2: F, _: F) -> F {
        hermite::<F, FMA>(k, 2.0, s[2], u1, u2)
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, _: usize, s: &Seeds<F>, _: F, u: F, _: F) -> F {
        u * s[3]
    }
}

/// x·Φ(x), Φ(−y) = e^(−y²/2)·erfcx(y/√2)/2: no difference in the left tail.
#[derive(Clone, Copy)]
pub(super) struct Gelu;

impl<F: Float> Recipe<F> for Gelu {
    const KEPT: usize = 2;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let half = num::<F>(0.5);
        let x = clamp(x, end());
        let y = x.abs();
        let square = Twofold::product::<FMA>(y, y).scaled(half);
        let (k, r) = reduce::<F, FMA>(-square.hi);
        let [gauss, _, far] = exponential::<F, FMA, false>((k, r - square.lo));
        let tail = gauss * (half * erfcx::<F, FMA>(y * num(std::f64::consts::FRAC_1_SQRT_2)));
        let phi = if x < F::ZERO {
            tail
        } else {
            (F::ONE - tail) * near_one(far)
        };
        [phi, gauss * num(0.3989422804014327), x, far, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, u2: F, _: F) -> F {
        hermite::<F, FMA>(k, 1.0, s[2], u1, u2)
    }
    #[inline(always)]
    fn value(self, s: &Seeds<F>, x: F) -> F {
        product_value(x, end(), s[0], s[3])
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, _: usize, s: &Seeds<F>, x: F, u: F, u1: F) -> F {
        product_coefficient::<F, FMA>(x, end(), (u, u1), s[3])
    }
}

/// Beyond it e^(−x²/2) is 0.
#[inline(always)]
fn end<F: Float>() -> F {
    F::GAUSS_END * num(std::f64::consts::SQRT_2)
}
