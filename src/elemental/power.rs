//! Functions whose derivatives are powers: c_k = w_k·p_k, p_{k+1} = p_k·ratio, in twofold
//! arithmetic, so that no order is worse than the first. f32 goes through f64.

use super::float::{Float, Twofold, cast, polynomial};
use super::recipe::{CHUNK, COUNT};
use crate::real::Real;

/// Twofold numbers, halves apart so that they load as vectors.
struct Plane {
    hi: [f64; CHUNK],
    lo: [f64; CHUNK],
}

impl Plane {
    fn new() -> Self {
        Self {
            hi: [0.0; CHUNK],
            lo: [0.0; CHUNK],
        }
    }

    #[inline(always)]
    fn at(&self, l: usize) -> Twofold<f64> {
        Twofold {
            hi: self.hi[l],
            lo: self.lo[l],
        }
    }

    #[inline(always)]
    fn set(&mut self, l: usize, x: Twofold<f64>) {
        (self.hi[l], self.lo[l]) = (x.hi, x.lo);
    }

    /// self\[l\] = f(l, self\[l\]).
    #[inline(always)]
    fn update(&mut self, n: usize, f: impl Fn(usize, Twofold<f64>) -> Twofold<f64>) {
        let (hi, lo) = (&mut self.hi[..n], &mut self.lo[..n]);
        for l in 0..n {
            let new = f(
                l,
                Twofold {
                    hi: hi[l],
                    lo: lo[l],
                },
            );
            (hi[l], lo[l]) = (new.hi, new.lo);
        }
    }
}

/// The planes of a family of powers: plane `plane(j)` gets w·p_j, where p_0 is
/// anchor·ratio^`repeat`, for (anchor, ratio) = `seed(x)`, and j = 0..`count`.
#[inline(always)]
fn chain<T: Real, const FMA: bool>(
    z: &[T],
    out: &mut [T],
    (count, repeat): (usize, u32),
    plane: impl Fn(usize) -> usize,
    weights: &[f64; COUNT],
    seed: impl Fn(f64) -> (Twofold<f64>, Twofold<f64>),
) {
    const UP: f64 = f64::from_bits((1023 + 64) << 52);
    const DOWN: f64 = f64::from_bits((1023 - 64) << 52);
    let (mut p, mut ratio, mut square) = (Plane::new(), Plane::new(), Plane::new());
    let mut scale = [0.0; CHUNK];
    let lanes = z.len();
    for (at, z) in z.chunks(CHUNK).enumerate().map(|(i, z)| (i * CHUNK, z)) {
        let n = z.len();
        let scale = &mut scale[..n];
        for l in 0..n {
            let (anchor, step) = seed(z[l].to_f64());
            let far = step.hi.abs() < 1.0;
            // Away from the end of the range for which p makes: w·p may lie inside where p does not.
            scale[l] = if far { DOWN } else { UP };
            p.set(l, anchor.scaled(if far { UP } else { DOWN }));
            ratio.set(l, step);
            square.set(l, step);
        }
        let mut bits = repeat;
        while bits != 0 {
            if bits & 1 == 1 {
                p.update(n, |l, p| p.times::<FMA>(square.at(l)));
            }
            bits >>= 1;
            if bits != 0 {
                square.update(n, |_, s| s.times::<FMA>(s));
            }
        }
        for j in 0..count {
            let k = plane(j);
            let w = weights[k];
            let out = &mut out[k * lanes + at..][..n];
            for l in 0..n {
                out[l] = cast((w * p.at(l).rounded()) * scale[l]);
            }
            if j + 1 < count {
                p.update(n, |l, p| p.times::<FMA>(ratio.at(l)));
            }
        }
    }
}

/// c_0 alone.
#[inline(always)]
fn value<T: Real>(z: &[T], out: &mut [T], f: impl Fn(f64) -> f64) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(f(z.to_f64()));
    }
}

/// The binomial coefficients of p/q over 0..=order: whole numbers, exact up to 2^53, then
/// one division.
#[inline(always)]
fn binomials(p: f64, q: f64, order: usize) -> [f64; COUNT] {
    let mut w = [1.0; COUNT];
    let (mut above, mut below) = (1.0, 1.0);
    for k in 0..order {
        above *= p - q * k as f64;
        below *= q * (k as f64 + 1.0);
        w[k + 1] = above / below;
    }
    w
}

/// (−1)^(k+1)/k, for logarithms.
const HARMONIC: [f64; COUNT] = {
    let mut w = [0.0; COUNT];
    let mut k = 1;
    while k < COUNT {
        w[k] = if k % 2 == 1 { 1.0 } else { -1.0 } / k as f64;
        k += 1;
    }
    w
};

/// x^n.
#[inline(always)]
pub(super) fn powi<T: Real, const FMA: bool>(n: i32, z: &[T], order: usize, out: &mut [T]) {
    let weights = binomials(f64::from(n), 1.0, order);
    if n < 0 {
        let shape = (order + 1, n.unsigned_abs());
        chain::<T, FMA>(
            z,
            out,
            shape,
            |j| j,
            &weights,
            |x| (Twofold::new(1.0), Twofold::new(x).recip::<FMA>()),
        );
    } else {
        // Upwards from the lowest power that is asked for.
        let top = order.min(n as usize);
        let shape = (top + 1, n as u32 - top as u32);
        chain::<T, FMA>(
            z,
            out,
            shape,
            |j| top - j,
            &weights,
            |x| (Twofold::new(1.0), Twofold::new(x)),
        );
        out[(top + 1) * z.len()..(order + 1) * z.len()].fill(T::ZERO);
    }
}

/// √x. x^(−1/2) is made from x, not from √x, and away from the subnormal numbers, where
/// the second half of a twofold number is lost.
#[inline(always)]
pub(super) fn sqrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    value(z, out, f64::sqrt);
    chain::<T, FMA>(
        z,
        out,
        (order, 0),
        |j| j + 1,
        &binomials(1.0, 2.0, order),
        |x| {
            let x = if x == 0.0 { 0.0 } else { x }; // -0 too has slope +∞
            let tiny = x < 1e-280;
            let far = f64::from_bits((1023 + 200) << 52);
            let anchor = Twofold::new(if tiny { x * far } else { x }).rsqrt::<FMA>();
            let anchor = anchor.scaled(if tiny {
                f64::from_bits((1023 + 100) << 52)
            } else {
                1.0
            });
            (anchor, anchor.times::<FMA>(anchor))
        },
    );
}

/// ∛x, with one Newton step for its error.
#[inline(always)]
pub(super) fn cbrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(
        z,
        out,
        (order, 0),
        |j| j + 1,
        &binomials(1.0, 3.0, order),
        |x| {
            let c = x.cbrt();
            let square = Twofold::product::<FMA>(c, c);
            let cube = square.times::<FMA>(Twofold::new(c));
            let error = ((cube.hi - x) + cube.lo) / (3.0 * x); // relative, of c
            let inverse = square.recip::<FMA>();
            let error = if error.abs() < 1e-14 { error } else { 0.0 };
            let anchor = inverse.plus(Twofold::new(2.0 * error * inverse.hi));
            (anchor, Twofold::new(x).recip::<FMA>())
        },
    );
    value(z, out, f64::cbrt);
}

/// ln x. Outside the domain all is NaN.
#[inline(always)]
pub(super) fn ln<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(
        z,
        out,
        (order, 0),
        |j| j + 1,
        &HARMONIC,
        |x| {
            let x = if x == 0.0 { 0.0 } else { x };
            let r = Twofold::new(if x < 0.0 { f64::NAN } else { x }).recip::<FMA>();
            (r, r)
        },
    );
    value(z, out, log::<FMA>);
}

/// ln(1 + x).
#[inline(always)]
pub(super) fn ln_1p<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(
        z,
        out,
        (order, 0),
        |j| j + 1,
        &HARMONIC,
        |x| {
            let mut y = Twofold::sum(1.0, x);
            y.hi = if x < -1.0 { f64::NAN } else { y.hi };
            let r = y.recip::<FMA>();
            (r, r)
        },
    );
    value(z, out, f64::ln_1p);
}

/// ln x = k ln 2 + f − s(f − s²P(s²)), with x = 2^k(1 + f), √½ ≤ 1 + f < √2, s = f/(2 + f).
#[inline(always)]
fn log<const FMA: bool>(x: f64) -> f64 {
    const ROOT: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let tiny = x < f64::MIN_POSITIVE;
    let scaled = if tiny {
        x * f64::from_bits((1023 + 54) << 52)
    } else {
        x
    };
    let bits = scaled.to_bits().wrapping_add((1023 << 52) - ROOT);
    let m = f64::from_bits((bits & ((1 << 52) - 1)) + ROOT);
    // The exponent as a number: behind the point of 2^52.
    let k = f64::from_bits((bits >> 52) | (1075 << 52)) - (4503599627370496.0 + 1023.0);
    let k = if tiny { k - 54.0 } else { k };
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let w = s * s;
    let (high, low) = <f64 as Float>::LN_2;
    let l = k * high + (f - (s * (f - w * polynomial::<f64, FMA>(f64::LOG, w)) - k * low));
    let l = if x < f64::INFINITY { l } else { x }; // ∞ and NaN
    let l = if x < 0.0 { f64::NAN } else { l };
    if x == 0.0 { f64::NEG_INFINITY } else { l }
}
