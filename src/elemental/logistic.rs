//! tanh and the logistic family, whose tails are e^(−|x|): seeds from it, never from 1 − tanh².

use super::float::{Exp, Float, Twofold, clamp, fma, num, polynomial};
use super::recipe::{Recipe, Seeds};

/// What they share, all from e = e^(−|x|).
struct Logistic<F> {
    e: Exp<F>,
    /// e, but for `e.far`.
    near: F,
    /// e − 1.
    m: F,
    /// 1/(1 + e).
    d: F,
    /// (1 − e)/(1 + e) with the sign of x, in two pieces: near 1 its last bit matters to
    /// the higher derivatives.
    t: Twofold<F>,
    /// e/(1 + e)², but for `e.far`.
    slope: F,
}

impl<F: Float> Logistic<F> {
    /// From |x|, and the sign of x.
    #[inline(always)]
    fn new<const FMA: bool>(y: F, sign: F) -> Self {
        let e = Exp::new::<FMA, false>(-clamp(y, F::EXP_END), F::ZERO);
        let (near, m) = (e.near::<FMA>(), e.minus_one::<FMA>());
        // d = 1/n for n = 1 + e in two pieces, and how far d is off
        let n = F::ONE + near;
        let low = near - (n - F::ONE);
        let d = F::ONE / n;
        let p = Twofold::product::<FMA>(n, d);
        let off = ((F::ONE - p.hi) - p.lo) - low * d;
        let square = d * d;
        let square = fma::<F, FMA>(square, off + off, square);
        let d = fma::<F, FMA>(d, off, d);
        // 1 − 2e/(1 + e), or for small |x| (1 − e)/(1 + e)
        let defect = (near + near) * d;
        let t = F::ONE - defect;
        let rest = (F::ONE - t) - defect;
        let small = near > num(0.5);
        let one = F::ONE.copysign(sign);
        Self {
            near,
            m,
            d,
            t: Twofold {
                hi: (if small { -m * d } else { t }) * one,
                lo: if small { F::ZERO } else { rest * one },
            },
            slope: near * square,
            e,
        }
    }

    /// σ(|x|) or σ(−|x|) times `e.far`.
    #[inline(always)]
    fn sigma(&self, negative: bool) -> F {
        if negative { self.near * self.d * self.e.far } else { self.d }
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

/// k u_k = −(a u_{k−1} + Σ u_i u_{k−1−i}), for a function whose derivative is 1 − u² or so;
/// a = `s[2]` + `s[3]`. Every term carries the factor e^(−|x|) of the tail, which stays exact.
#[inline(always)]
fn riccati<F: Float, const FMA: bool>(k: usize, s: &Seeds<F>, u1: F, convolution: F) -> F {
    let sum = fma::<F, FMA>(s[2], u1, fma::<F, FMA>(s[3], u1, convolution));
    sum * num(-1.0 / k as f64)
}

/// tanh: its derivative is 4e/(1 + e)² with e = e^(−2|x|); u'' = −2 tanh · u'.
#[derive(Clone, Copy)]
pub(super) struct Tanh;

impl<F: Float> Recipe<F> for Tanh {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let two = num::<F>(2.0);
        let p = Logistic::new::<FMA>(x.abs() * two, x);
        let slope = (p.slope * num(4.0)) * p.e.far;
        [p.t.hi, slope, p.t.hi * two, p.t.lo * two, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
}

/// 1/(1 + e^(−x)): σ'' = −tanh(x/2) · σ'.
#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl<F: Float> Recipe<F> for Sigmoid {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        [p.sigma(x < F::ZERO), p.slope * p.e.far, p.t.hi, p.t.lo, F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
}

/// ln(1 + e^x), whose derivative is σ.
#[derive(Clone, Copy)]
pub(super) struct Softplus;

impl<F: Float> Recipe<F> for Softplus {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        let sigma = p.sigma(x < F::ZERO);
        let positive = if x > F::ZERO { x } else { F::ZERO };
        [sigma, p.slope * p.e.far, p.t.hi, p.t.lo, positive + p.log::<FMA>()]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &Seeds<F>, _: F, _: F, u1: F) -> F {
        if k == 0 { s[4] } else { u1 * num(1.0 / k as f64) }
    }
}

/// ln σ(x) = −softplus(−x): first derivative σ(−x), then those of −σ.
#[derive(Clone, Copy)]
pub(super) struct LogSigmoid;

impl<F: Float> Recipe<F> for LogSigmoid {
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        let mirrored = p.sigma(x > F::ZERO);
        let negative = if x < F::ZERO { x } else { F::ZERO };
        [mirrored, p.slope * p.e.far, p.t.hi, p.t.lo, negative - p.log::<FMA>()]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &Seeds<F>, _: F, _: F, u1: F) -> F {
        match k {
            0 => s[4],
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
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        let sigma = p.d * if x < F::ZERO { p.near } else { p.e.near_one() };
        [sigma, p.slope, p.t.hi, p.t.lo, p.e.far]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &Seeds<F>, x: F, u: F, u1: F) -> F {
        times_argument::<F, FMA>(k, x, F::EXP_END, u, u1, s[4])
    }
}
