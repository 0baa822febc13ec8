//! Functions whose derivatives are powers: c_k = w_k·p_k, p_{k+1} = p_k·ratio, in twofold
//! arithmetic, so that no order is worse than the first. f32 goes through f64.

use super::float::{Float, Twofold, cast, polynomial};
use super::recipe::{CHUNK, COUNT};
use crate::real::Real;

/// What a family of powers makes of an argument: the first power, and the ratio of two.
trait Powers: Copy {
    /// (p_0, ratio); branch-free.
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>);
}

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
    fn multiply<const FMA: bool>(&mut self, by: &Self, n: usize) {
        let (hi, lo) = (&mut self.hi[..n], &mut self.lo[..n]);
        let (by_hi, by_lo) = (&by.hi[..n], &by.lo[..n]);
        for l in 0..n {
            let (hi, lo) = (&mut hi[l], &mut lo[l]);
            let by = Twofold {
                hi: by_hi[l],
                lo: by_lo[l],
            };
            let p = Twofold { hi: *hi, lo: *lo }.times::<FMA>(by);
            (*hi, *lo) = (p.hi, p.lo);
        }
    }

    #[inline(always)]
    fn square<const FMA: bool>(&mut self, n: usize) {
        let (hi, lo) = (&mut self.hi[..n], &mut self.lo[..n]);
        for l in 0..n {
            let x = Twofold {
                hi: hi[l],
                lo: lo[l],
            };
            let p = x.times::<FMA>(x);
            (hi[l], lo[l]) = (p.hi, p.lo);
        }
    }
}

/// The planes of a family: plane `first + step·j` gets w·p_j, j = 0..`count`; before that
/// p_0 is multiplied by ratio^`repeat`.
#[inline(always)]
fn chain<T: Real, P: Powers, const FMA: bool>(
    powers: P,
    z: &[T],
    out: &mut [T],
    (first, step, count): (usize, isize, usize),
    repeat: u32,
    weights: &[f64; COUNT],
) {
    const UP: f64 = f64::from_bits((1023 + 64) << 52);
    const DOWN: f64 = f64::from_bits((1023 - 64) << 52);
    if count == 0 {
        return;
    }
    let (mut p, mut ratio) = (Plane::new(), Plane::new());
    let mut scale = [0.0; CHUNK];
    let lanes = z.len();
    for (at, z) in z.chunks(CHUNK).enumerate().map(|(i, z)| (i * CHUNK, z)) {
        let n = z.len();
        let scale = &mut scale[..n];
        {
            let (p_hi, p_lo) = (&mut p.hi[..n], &mut p.lo[..n]);
            let (ratio_hi, ratio_lo) = (&mut ratio.hi[..n], &mut ratio.lo[..n]);
            for l in 0..n {
                let (anchor, ratio) = powers.seed::<FMA>(z[l].to_f64());
                // Away from the end of the range for which p makes: w·p may lie inside
                // where p does not.
                let falls = ratio.hi.abs() < 1.0;
                let anchor = anchor.scaled(if falls { UP } else { DOWN });
                scale[l] = if falls { DOWN } else { UP };
                (p_hi[l], p_lo[l]) = (anchor.hi, anchor.lo);
                (ratio_hi[l], ratio_lo[l]) = (ratio.hi, ratio.lo);
            }
        }
        if repeat != 0 {
            let mut square = Plane {
                hi: ratio.hi,
                lo: ratio.lo,
            };
            let mut bits = repeat;
            loop {
                if bits & 1 == 1 {
                    p.multiply::<FMA>(&square, n);
                }
                bits >>= 1;
                if bits <= 1 {
                    // The top bit as two factors: their square may leave the range early.
                    for _ in 0..2 * bits {
                        p.multiply::<FMA>(&square, n);
                    }
                    break;
                }
                square.square::<FMA>(n);
            }
        }
        for j in 0..count {
            if j > 0 {
                p.multiply::<FMA>(&ratio, n);
            }
            let k = first.wrapping_add_signed(step * j as isize);
            let w = weights[k];
            let out = &mut out[k * lanes + at..][..n];
            let (hi, lo) = (&p.hi[..n], &p.lo[..n]);
            for l in 0..n {
                let p = Twofold {
                    hi: hi[l],
                    lo: lo[l],
                };
                out[l] = cast((w * p.rounded()) * scale[l]);
            }
        }
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

/// 1, and x to multiply by.
#[derive(Clone, Copy)]
struct Up;

impl Powers for Up {
    #[inline(always)]
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>) {
        (Twofold::new(1.0), Twofold::new(x))
    }
}

/// 1, and 1/x to multiply by.
#[derive(Clone, Copy)]
struct Down;

impl Powers for Down {
    #[inline(always)]
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>) {
        (Twofold::new(1.0), Twofold::new(x).recip::<FMA>())
    }
}

/// x^n.
#[inline(always)]
pub(super) fn powi<T: Real, const FMA: bool>(n: i32, z: &[T], order: usize, out: &mut [T]) {
    let weights = binomials(f64::from(n), 1.0, order);
    if n < 0 {
        let planes = (0, 1, order + 1);
        chain::<T, _, FMA>(Down, z, out, planes, n.unsigned_abs(), &weights);
    } else {
        // Upwards from the lowest power that is asked for.
        let top = order.min(n as usize);
        let planes = (top, -1, top + 1);
        chain::<T, _, FMA>(Up, z, out, planes, n as u32 - top as u32, &weights);
        out[(top + 1) * z.len()..(order + 1) * z.len()].fill(T::ZERO);
    }
}

/// x^(−1/2) made from x, not from √x, and away from the subnormal numbers, where the second
/// half of a twofold number is lost.
#[derive(Clone, Copy)]
struct Root;

impl Powers for Root {
    #[inline(always)]
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>) {
        const FAR: f64 = f64::from_bits((1023 + 200) << 52);
        const ROOT: f64 = f64::from_bits((1023 + 100) << 52);
        let x = if x == 0.0 { 0.0 } else { x }; // -0 too has slope +∞
        let tiny = x < 1e-280;
        let anchor = Twofold::new(if tiny { x * FAR } else { x }).rsqrt::<FMA>();
        let anchor = anchor.scaled(if tiny { ROOT } else { 1.0 });
        (anchor, anchor.times::<FMA>(anchor))
    }
}

/// √x.
#[inline(always)]
pub(super) fn sqrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(z.to_f64().sqrt());
    }
    let weights = binomials(1.0, 2.0, order);
    chain::<T, _, FMA>(Root, z, out, (1, 1, order), 0, &weights);
}

/// x^(−2/3) from std's cube root and its error.
#[derive(Clone, Copy)]
struct CubeRoot;

impl Powers for CubeRoot {
    #[inline(always)]
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>) {
        let c = x.cbrt();
        let square = Twofold::product::<FMA>(c, c);
        let cube = square.times::<FMA>(Twofold::new(c));
        let error = ((cube.hi - x) + cube.lo) / (3.0 * x); // relative, of c
        let error = if error.abs() < 1e-14 { error } else { 0.0 };
        let inverse = square.recip::<FMA>();
        // At 0 the slope is infinite, and there is nothing to correct.
        let correction = if error == 0.0 { 0.0 } else { inverse.hi };
        let anchor = inverse.plus(Twofold::new(2.0 * error * correction));
        (anchor, Twofold::new(x).recip::<FMA>())
    }
}

/// ∛x.
#[inline(always)]
pub(super) fn cbrt<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(z.to_f64().cbrt());
    }
    let weights = binomials(1.0, 3.0, order);
    chain::<T, _, FMA>(CubeRoot, z, out, (1, 1, order), 0, &weights);
}

/// 1/(x + shift), NaN outside the domain of the logarithm.
#[derive(Clone, Copy)]
struct Inverse {
    shift: f64,
}

impl Powers for Inverse {
    #[inline(always)]
    fn seed<const FMA: bool>(self, x: f64) -> (Twofold<f64>, Twofold<f64>) {
        let mut y = Twofold::sum(self.shift, x);
        y.hi = if y.hi < 0.0 { f64::NAN } else { y.hi };
        let r = y.recip::<FMA>();
        (r, r)
    }
}

/// ln x.
#[inline(always)]
pub(super) fn ln<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(log::<FMA>(z.to_f64()));
    }
    chain::<T, _, FMA>(Inverse { shift: 0.0 }, z, out, (1, 1, order), 0, &HARMONIC);
}

/// ln(1 + x).
#[inline(always)]
pub(super) fn ln_1p<T: Real, const FMA: bool>(z: &[T], order: usize, out: &mut [T]) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = cast(z.to_f64().ln_1p());
    }
    chain::<T, _, FMA>(Inverse { shift: 1.0 }, z, out, (1, 1, order), 0, &HARMONIC);
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
