//! Elementals that are computed a lane at a time: the value by std, the derivatives by
//! recurrences in twofold arithmetic, which forgives their cancellation. f32 goes through f64.

use super::float::Twofold;
use super::recipe::INVERSE_FACTORIAL;
use std::f64::consts::LN_2;

/// Above it arsinh x = arcosh x = ln 2x, while std overflows at half the range.
const HUGE: f64 = 1e100;

type Two = Twofold<f64>;

#[inline]
fn two(x: f64) -> Two {
    Two::new(x)
}
#[inline]
fn times(a: Two, b: Two) -> Two {
    a.times::<false>(b)
}
#[inline]
fn recip(a: Two) -> Two {
    a.recip::<false>()
}

/// c_1.. of a function with derivative u, from u_0 and
/// (k + 1) u_{k+1} = m_k·a·u_k + n_k·b·u_{k−1}, `(m_k, n_k)` = `weights(k)`.
fn integral(c: &mut [f64], u0: Two, a: Two, b: Two, weights: impl Fn(f64) -> (f64, f64)) {
    let (mut last, mut u) = (two(0.0), u0);
    for (k, c) in c.iter_mut().enumerate().skip(1) {
        let inverse = recip(two(k as f64));
        *c = times(u, inverse).rounded();
        let (m, n) = weights(k as f64 - 1.0);
        let next = times(times(a, u), two(m)).plus(times(times(b, last), two(n)));
        (last, u) = (u, times(next, inverse));
    }
}

/// Weights of 1/(1 ± x²) and of its root.
fn rational(sign: f64) -> impl Fn(f64) -> (f64, f64) {
    move |k| (sign * 2.0 * (k + 1.0), sign * (k + 1.0))
}
fn root(m: f64, n: f64) -> impl Fn(f64) -> (f64, f64) {
    move |k| (m * (2.0 * k + 1.0), n * k)
}

/// Above it 1 ± x² is written with 1/x, and does not overflow.
const FAR: f64 = 2.0;

/// For 1 + σx²: x/(1 + σx²), 1/(1 + σx²), and itself, there divided by x².
fn quadratic(x: f64, sigma: f64) -> (Two, Two, Two) {
    let far = x.abs() > FAR;
    let y = if far { recip(two(x)) } else { two(x) };
    let square = times(y, y);
    let d = if far {
        square.plus(two(sigma))
    } else if sigma > 0.0 {
        two(1.0).plus(square)
    } else {
        times(Two::sum(1.0, -x), Two::sum(1.0, x)) // each factor exact
    };
    let r = recip(d);
    (times(y, r), if far { times(square, r) } else { r }, d)
}

/// tan: c' = 1 + c², in which no term cancels.
pub(super) fn tan(x: f64, c: &mut [f64]) {
    let mut u = [two(0.0); super::recipe::COUNT];
    u[0] = two(x.tan());
    for k in 0..c.len() {
        c[k] = u[k].rounded();
        if k + 1 < c.len() {
            let mut sum = two(if k == 0 { 1.0 } else { 0.0 });
            for i in 0..=k {
                sum = sum.plus(times(u[i], u[k - i]));
            }
            u[k + 1] = times(sum, recip(two(k as f64 + 1.0)));
        }
    }
}

/// e^x − 1.
pub(super) fn exp_m1(x: f64, c: &mut [f64]) {
    let e = x.exp();
    for (c, w) in c.iter_mut().zip(INVERSE_FACTORIAL) {
        *c = e * w;
    }
    c[0] = x.exp_m1();
}

/// arctan.
pub(super) fn atan(x: f64, c: &mut [f64]) {
    c[0] = x.atan();
    let (a, b, _) = quadratic(x, 1.0);
    integral(c, b, a, b, rational(-1.0));
}

/// artanh. At ±1 infinite, beyond NaN.
pub(super) fn atanh(x: f64, c: &mut [f64]) {
    if !inside(x, c, 1.0) {
        return;
    }
    c[0] = x.atanh();
    let (a, b, _) = quadratic(x, -1.0);
    integral(c, b, a, b, rational(1.0));
}

/// arsinh.
pub(super) fn asinh(x: f64, c: &mut [f64]) {
    c[0] = if x.abs() < HUGE {
        x.asinh()
    } else {
        (x.abs().ln() + LN_2).copysign(x)
    };
    let (a, b, d) = quadratic(x, 1.0);
    let u = d.rsqrt::<false>();
    let u = if x.abs() > FAR {
        times(u, recip(two(x.abs())))
    } else {
        u
    };
    integral(c, u, a, b, root(-1.0, -1.0));
}

/// arcsin. At ±1 with infinite derivatives, beyond NaN.
pub(super) fn asin(x: f64, c: &mut [f64]) {
    if inside(x, c, 1.0) {
        let (a, b, d) = quadratic(x, -1.0);
        integral(c, d.rsqrt::<false>(), a, b, root(1.0, 1.0));
    }
    c[0] = x.asin();
}

/// arccos.
pub(super) fn acos(x: f64, c: &mut [f64]) {
    asin(x, c);
    for c in c.iter_mut() {
        *c = -*c;
    }
    c[0] = x.acos();
}

/// arcosh. At 1 with infinite derivatives, below NaN.
pub(super) fn acosh(x: f64, c: &mut [f64]) {
    let infinite = f64::INFINITY;
    if x > 1.0 && x < infinite {
        // x² − 1 = −(1 − x²)
        let (a, b, d) = quadratic(x, -1.0);
        let (a, b, u) = (
            a.scaled(-1.0),
            b.scaled(-1.0),
            d.scaled(-1.0).rsqrt::<false>(),
        );
        let u = if x > FAR { times(u, recip(two(x))) } else { u };
        integral(c, u, a, b, root(-1.0, -1.0));
    } else {
        for (k, c) in c.iter_mut().enumerate() {
            let end = if k % 2 == 1 { infinite } else { -infinite };
            *c = if x == 1.0 {
                end
            } else if x == infinite {
                0.0
            } else {
                f64::NAN
            };
        }
    }
    c[0] = arcosh(x);
}

/// std loses half the digits near 1.
fn arcosh(x: f64) -> f64 {
    let t = x - 1.0;
    if t < 0.0 {
        f64::NAN
    } else if t < 1.0 {
        (t + (t * (t + 2.0)).sqrt()).ln_1p()
    } else if x < HUGE {
        x.acosh()
    } else {
        x.ln() + LN_2
    }
}

/// Fills the orders of an odd function with poles at ±end, and says whether x lies between.
fn inside(x: f64, c: &mut [f64], end: f64) -> bool {
    if x.abs() < end {
        return true;
    }
    for (k, c) in c.iter_mut().enumerate() {
        let odd = if k % 2 == 1 {
            f64::INFINITY
        } else {
            f64::INFINITY.copysign(x)
        };
        *c = if x.abs() == end { odd } else { f64::NAN };
    }
    false
}

/// x^a for a that is no integer: each power by itself, so that x^a may leave the range
/// while its derivatives do not.
pub(super) fn powf(a: f64, x: f64, c: &mut [f64]) {
    if x < 0.0 && a.fract() != 0.0 {
        // std has a value at −∞, and a − k may round to an integer.
        c.fill(f64::NAN);
        return;
    }
    let mut b = two(1.0);
    for (k, c) in c.iter_mut().enumerate() {
        let e = Two::sum(a, -(k as f64));
        let p = x.powf(e.hi);
        let w = b.rounded();
        let p = if p > 1e-280 && p < 1e280 {
            w * p
        } else {
            // In two halves: w·p may lie in the range where p does not.
            let half = x.powf(0.5 * e.hi);
            (w * half) * half
        };
        // What a − k lost by rounding.
        let lost = p * (e.lo * x.ln());
        *c = if lost.is_finite() { p + lost } else { p };
        b = times(times(b, e), recip(two(k as f64 + 1.0)));
    }
}
