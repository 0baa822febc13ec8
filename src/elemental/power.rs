//! Functions whose derivatives are powers: c_k = w_k·p_k, p_{k+1} = p_k·ratio, in twofold
//! arithmetic, so that no order is worse than the first. f32 goes through f64.

use super::float::{Float, Twofold, cast, polynomial};
use super::recipe::COUNT;
use crate::real::Real;

/// Lanes in a block, at most.
const CHUNK: usize = 64;

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
    let mut p = [Twofold::new(0.0); CHUNK];
    let mut ratio = [Twofold::new(0.0); CHUNK];
    let mut square = [Twofold::new(0.0); CHUNK];
    let mut scale = [0.0; CHUNK];
    let mut at = 0;
    for block in z.chunks(CHUNK) {
        let n = block.len();
        let (p, ratio, square, scale) =
            (&mut p[..n], &mut ratio[..n], &mut square[..n], &mut scale[..n]);
        for l in 0..n {
            (p[l], ratio[l]) = seed(block[l].to_f64());
            square[l] = ratio[l];
        }
        let mut bits = repeat;
        while bits != 0 {
            if bits & 1 == 1 {
                for l in 0..n {
                    p[l] = p[l].times::<FMA>(square[l]);
                }
            }
            bits >>= 1;
            if bits != 0 {
                for l in 0..n {
                    square[l] = square[l].times::<FMA>(square[l]);
                }
            }
        }
        // Away from the end of the range for which p makes: w·p may lie inside where p does not.
        for l in 0..n {
            let down = f64::from_bits((1023 - 64) << 52);
            let up = f64::from_bits((1023 + 64) << 52);
            let falls = ratio[l].hi.abs() < 1.0;
            p[l] = p[l].scaled(if falls { up } else { down });
            scale[l] = if falls { down } else { up };
        }
        for j in 0..count {
            let k = plane(j);
            let w = weights[k];
            let out = &mut out[k * z.len() + at..][..n];
            for l in 0..n {
                out[l] = cast((w * p[l].rounded()) * scale[l]);
            }
            if j + 1 < count {
                for l in 0..n {
                    p[l] = p[l].times::<FMA>(ratio[l]);
                }
            }
        }
        at += n;
    }
}

/// c_0 alone.
#[inline(always)]
fn value<T: Real>(z: &[T], out: &mut [T], f: impl Fn(f64) -> f64) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(f(z.to_f64()));
    }
}

/// The binomial coefficients of `a` over k, each rounded once.
fn binomials(a: f64) -> [f64; COUNT] {
    let mut w = [0.0; COUNT];
    let mut b = Twofold::new(1.0);
    for (k, w) in w.iter_mut().enumerate() {
        *w = b.rounded();
        let factor = Twofold::sum(a, -(k as f64));
        b = b.times::<false>(factor).times::<false>(Twofold::new(k as f64 + 1.0).recip::<false>());
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
    let weights = binomials(f64::from(n));
    if n < 0 {
        let shape = (order + 1, n.unsigned_abs());
        chain::<T, FMA>(z, out, shape, |j| j, &weights, |x| {
            (Twofold::new(1.0), Twofold::new(x).recip::<FMA>())
        });
    } else {
        // Upwards from the lowest power that is asked for.
        let top = order.min(n as usize);
        let shape = (top + 1, n as u32 - top as u32);
        chain::<T, FMA>(z, out, shape, |j| top - j, &weights, |x| {
            (Twofold::new(1.0), Twofold::new(x))
        });
        out[(top + 1) * z.len()..(order + 1) * z.len()].fill(T::ZERO);
    }
}

/// √x. x^(−1/2) is made from x, not from √x, and away from the subnormal numbers, where
/// the second half of a twofold number is lost.
#[inline(always)]
pub(super) fn sqrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    value(z, out, f64::sqrt);
    chain::<T, FMA>(z, out, (order, 0), |j| j + 1, &binomials(0.5), |x| {
        let x = if x == 0.0 { 0.0 } else { x }; // -0 too has slope +∞
        let tiny = x < 1e-280;
        let far = f64::from_bits((1023 + 200) << 52);
        let root = Twofold::new(if tiny { x * far } else { x }).sqrt::<FMA>();
        let anchor = root.recip::<FMA>();
        let anchor = anchor.scaled(if tiny { f64::from_bits((1023 + 100) << 52) } else { 1.0 });
        (anchor, Twofold::new(x).recip::<FMA>())
    });
}

/// ∛x, with one Newton step for its error.
#[inline(always)]
pub(super) fn cbrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(z, out, (order, 0), |j| j + 1, &binomials(1.0 / 3.0), |x| {
        let c = x.cbrt();
        let square = Twofold::product::<FMA>(c, c);
        let cube = square.times::<FMA>(Twofold::new(c));
        let error = ((cube.hi - x) + cube.lo) / (3.0 * x); // relative, of c
        let inverse = square.recip::<FMA>();
        let error = if error.abs() < 1e-14 { error } else { 0.0 };
        let anchor = inverse.plus(Twofold::new(2.0 * error * inverse.hi));
        (anchor, Twofold::new(x).recip::<FMA>())
    });
    value(z, out, f64::cbrt);
}

/// ln x. Outside the domain all is NaN.
#[inline(always)]
pub(super) fn ln<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(z, out, (order, 0), |j| j + 1, &HARMONIC, |x| {
        let x = if x == 0.0 { 0.0 } else { x };
        let r = Twofold::new(if x < 0.0 { f64::NAN } else { x }).recip::<FMA>();
        (r, r)
    });
    value(z, out, log::<FMA>);
}

/// ln(1 + x).
#[inline(always)]
pub(super) fn ln_1p<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    chain::<T, FMA>(z, out, (order, 0), |j| j + 1, &HARMONIC, |x| {
        let mut y = Twofold::sum(1.0, x);
        y.hi = if x < -1.0 { f64::NAN } else { y.hi };
        let r = y.recip::<FMA>();
        (r, r)
    });
    value(z, out, f64::ln_1p);
}

/// ln x = k ln 2 + f − s(f − s²P(s²)), with x = 2^k(1 + f), √½ ≤ 1 + f < √2, s = f/(2 + f).
#[inline(always)]
fn log<const FMA: bool>(x: f64) -> f64 {
    const ROOT: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let tiny = x < f64::MIN_POSITIVE;
    let scaled = if tiny { x * f64::from_bits((1023 + 54) << 52) } else { x };
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
