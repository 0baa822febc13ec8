//! tanh and the logistic family, whose tails are e^(−|x|): seeds from it, never from 1 − tanh².

use super::float::{Exp, Float, clamp, fma, num, polynomial};
use super::recipe::Recipe;

/// c' of a function whose derivative is a square: k c_k = −(a c_{k−1} + Σ c_i c_{k−1−i}).
/// All terms carry the factor e^(−|x|) of the tail, so that it stays exact there.
#[inline(always)]
fn riccati<F: Float, const FMA: bool>(k: usize, a: F, u1: F, convolution: F) -> F {
    fma::<F, FMA>(a, u1, convolution) * num(-1.0 / k as f64)
}

/// tanh: (tanh)' = 4e/(1 + e)² with e = e^(−2|x|), then u'' = −2 tanh · u'.
#[derive(Clone, Copy)]
pub(super) struct Tanh;

impl<F: Float> Recipe<F> for Tanh {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> [F; 4] {
        let two = num::<F>(2.0);
        let y = clamp(x.abs() * two, F::EXP_END);
        let e = Exp::new::<FMA, false>(-y, F::ZERO);
        let m = e.minus_one::<FMA>();
        let half = F::ONE / (m + two);
        let tanh = (-m * half).copysign(x);
        let g = half + half;
        let slope = e.near::<FMA>() * (g * g) * e.far;
        [tanh, slope, tanh + tanh, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &[F; 4], u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s[2], u1, convolution)
    }
}

/// What the logistic functions share, all from e = e^(−|x|).
struct Logistic<F> {
    e: Exp<F>,
    /// e, but for `e.far`.
    near: F,
    /// e − 1.
    m: F,
    /// 1/(1 + e).
    d: F,
    /// tanh(x/2).
    t: F,
    /// σ', but for `e.far`.
    slope: F,
}

impl<F: Float> Logistic<F> {
    #[inline(always)]
    fn new<const FMA: bool>(x: F) -> Self {
        let e = Exp::new::<FMA, false>(-clamp(x.abs(), F::EXP_END), F::ZERO);
        let (near, m) = (e.near::<FMA>(), e.minus_one::<FMA>());
        let d = F::ONE / (m + num(2.0));
        let t = (-m * d).copysign(x);
        Self { near, m, d, t, slope: near * d * d, e }
    }

    /// ln(1 + e) = f − s(f − s²P(s²)) with s = f/(2 + f), f = e or, above √2 − 1, (e − 1)/2 and ln 2.
    #[inline(always)]
    fn log<const FMA: bool>(&self) -> F {
        let big = self.near > num(0.4142);
        let f = if big { self.m * num(0.5) } else { self.near };
        let s = f / (if big { f } else { self.m + F::ONE } + num(2.0));
        let w = s * s;
        let l = f - s * (f - w * polynomial::<F, FMA>(F::LOG, w));
        (if big { l + num(std::f64::consts::LN_2) } else { l }) * self.e.far
    }
}

/// 1/(1 + e^(−x)): σ'' = −tanh(x/2) · σ'.
#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl<F: Float> Recipe<F> for Sigmoid {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> [F; 4] {
        let p = Logistic::new::<FMA>(x);
        let value = if x < F::ZERO { p.near * p.d * p.e.far } else { p.d };
        [value, p.slope * p.e.far, p.t, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &[F; 4], u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s[2], u1, convolution)
    }
}

/// ln(1 + e^x), whose derivative is σ.
#[derive(Clone, Copy)]
pub(super) struct Softplus;

impl<F: Float> Recipe<F> for Softplus {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> [F; 4] {
        let p = Logistic::new::<FMA>(x);
        let sigma = if x < F::ZERO { p.near * p.d * p.e.far } else { p.d };
        let positive = if x > F::ZERO { x } else { F::ZERO };
        [sigma, p.slope * p.e.far, p.t, positive + p.log::<FMA>()]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &[F; 4], u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s[2], u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &[F; 4], _: F, _: F, u1: F) -> F {
        if k == 0 { s[3] } else { u1 * num(1.0 / k as f64) }
    }
}

/// ln σ(x) = −softplus(−x): first derivative σ(−x), then those of −σ.
#[derive(Clone, Copy)]
pub(super) struct LogSigmoid;

impl<F: Float> Recipe<F> for LogSigmoid {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> [F; 4] {
        let p = Logistic::new::<FMA>(x);
        let mirrored = if x > F::ZERO { p.near * p.d * p.e.far } else { p.d };
        let negative = if x < F::ZERO { x } else { F::ZERO };
        [mirrored, p.slope * p.e.far, p.t, negative - p.log::<FMA>()]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &[F; 4], u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s[2], u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &[F; 4], _: F, _: F, u1: F) -> F {
        match k {
            0 => s[3],
            1 => u1,
            _ => u1 * num(-1.0 / k as f64),
        }
    }
}

/// c_k of x·g(x) from u = g_k and u1 = g_{k−1}, both without the factor `far`; `end`
/// bounds x where g' is 0 (∞ · 0).
#[inline(always)]
pub(super) fn times_argument<F: Float, const FMA: bool>(
    k: usize,
    x: F,
    end: F,
    u: F,
    u1: F,
    far: F,
) -> F {
    if k == 0 {
        let x = if x < -end { -end } else { x };
        (x * far) * u
    } else {
        fma::<F, FMA>(clamp(x, end), u, u1) * far
    }
}

/// x·σ(x).
#[derive(Clone, Copy)]
pub(super) struct Silu;

impl<F: Float> Recipe<F> for Silu {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> [F; 4] {
        let p = Logistic::new::<FMA>(x);
        let sigma = p.d * if x < F::ZERO { p.near } else { p.e.near_one() };
        [sigma, p.slope, p.t, p.e.far]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &[F; 4], u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s[2], u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &[F; 4], x: F, u: F, u1: F) -> F {
        times_argument::<F, FMA>(k, x, F::EXP_END, u, u1, s[3])
    }
}
