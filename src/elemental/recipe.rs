//! How coefficients are made in vectors: seeds from the argument, then a recurrence,
//! plane after plane of a block that stays in cache.

use super::MAX_ORDER;
use super::float::{Float, cast, fma};
use crate::real::Real;

/// Lanes in a block, at most. Their number is not a constant in the loops: LLVM would
/// unroll a short one before it can vectorise it.
pub(super) const CHUNK: usize = 64;
/// Coefficients, at most.
pub(super) const COUNT: usize = MAX_ORDER + 2;

/// 1/k!.
pub(super) const INVERSE_FACTORIAL: [f64; COUNT] = {
    let mut table = [1.0; COUNT];
    let mut factorial = 1.0;
    let mut k = 1;
    while k < COUNT {
        factorial *= k as f64;
        table[k] = 1.0 / factorial;
        k += 1;
    }
    table
};

/// What a recipe makes of an argument: u_0, u_1, then [`Recipe::KEPT`] numbers for the
/// recurrence; the last may serve `value` alone.
pub(super) type Seeds<F> = [F; 5];

/// An elemental as the vector code sees it. A sequence u starts with the first two seeds
/// and goes on by `next`; a coefficient is read from two neighbours of it.
/// All methods are `#[inline(always)]` and branch-free.
pub(super) trait Recipe<F: Float>: Copy {
    /// Seeds after the first two that `next` and `coefficient` read.
    const KEPT: usize = 0;
    /// Whether `next` reads the convolution.
    const CONVOLVES: bool = false;
    /// Whether arguments beyond `TURNS_END` take `seeds_scalar`.
    const TURNS: bool = false;

    /// All coefficients up to K, from 0 to 3, where there is a shorter way than seeds;
    /// else it returns false.
    #[inline(always)]
    fn low<T: Real, const FMA: bool, const K: usize>(
        self,
        z: &[T],
        out: [&mut [T]; 4],
        scratch: [&mut [F]; 3],
    ) -> bool {
        let _ = (z, out, scratch);
        false
    }

    /// From the argument.
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F>;

    /// `seeds`, without hurry.
    fn seeds_scalar(self, x: F) -> Seeds<F> {
        self.seeds::<false>(x)
    }

    /// c_0.
    #[inline(always)]
    fn value(self, s: &Seeds<F>, x: F) -> F {
        let _ = x;
        s[0]
    }

    /// u_k, k ≥ 2, from `u1` = u_{k−1}, `u2` = u_{k−2} and
    /// `convolution` = Σ u_i u_{k−1−i}, i = 1..=k−2.
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, u2: F, convolution: F) -> F;

    /// c_k, k ≥ 1, from `u` = u_k and `u1` = u_{k−1}.
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, s: &Seeds<F>, x: F, u: F, u1: F) -> F {
        let _ = (k, s, x, u1);
        u
    }
}

/// Planes of a block: the sequence, what is kept of the seeds, and a sum.
const PLANES: usize = COUNT + 4;

/// Where the vector code works. Made once and used again: clearing it for each row would
/// cost as much as an exponential.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) double: Box<[[f64; CHUNK]; PLANES]>,
    pub(super) single: Box<[[f32; CHUNK]; PLANES]>,
}

impl Scratch {
    /// Bytes that it allocates.
    pub(crate) const BYTES: usize = PLANES * CHUNK * (size_of::<f64>() + size_of::<f32>());
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            double: Box::new([[0.0; CHUNK]; PLANES]),
            single: Box::new([[0.0; CHUNK]; PLANES]),
        }
    }
}

/// c_0..=c_order of `recipe` at each of `z`, computed in `F`.
#[inline(always)]
pub(super) fn fill<T: Real, F: Float, R: Recipe<F>, const FMA: bool>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
    planes: &mut [[F; CHUNK]; PLANES],
) {
    match order {
        0 => return fill_low::<T, F, R, FMA, 0>(recipe, z, out, planes),
        1 => return fill_low::<T, F, R, FMA, 1>(recipe, z, out, planes),
        2 => return fill_low::<T, F, R, FMA, 2>(recipe, z, out, planes),
        3 => return fill_low::<T, F, R, FMA, 3>(recipe, z, out, planes),
        _ => {}
    }
    let (u, rest) = planes.split_at_mut(COUNT);
    let [kept @ .., sum] = rest else {
        return;
    };
    let lanes = z.len();
    for (at, z) in z.chunks(CHUNK).enumerate().map(|(i, z)| (i * CHUNK, z)) {
        let n = z.len();
        let [s2, s3, s4] = &mut *kept else {
            return;
        };
        let (s2, s3, s4, sum) = (&mut s2[..n], &mut s3[..n], &mut s4[..n], &mut sum[..n]);
        {
            let (u0, u1) = u.split_at_mut(1);
            let (u0, u1, out) = (&mut u0[0][..n], &mut u1[0][..n], &mut out[at..][..n]);
            for l in 0..n {
                let x = cast(z[l]);
                let s = recipe.seeds::<FMA>(x);
                out[l] = cast(recipe.value(&s, x));
                (u0[l], u1[l]) = (s[0], s[1]);
                if R::KEPT > 0 {
                    s2[l] = s[2];
                }
                if R::KEPT > 1 {
                    s3[l] = s[3];
                }
                if R::KEPT > 2 {
                    s4[l] = s[4];
                }
            }
        }
        for k in 1..=order {
            let (known, rest) = u.split_at_mut(k);
            let (next, out) = (&mut rest[0][..n], &mut out[k * lanes + at..][..n]);
            let u1 = &known[k - 1][..n];
            if k == 1 {
                for l in 0..n {
                    let s = [u1[l], next[l], s2[l], s3[l], s4[l]];
                    out[l] = cast(recipe.coefficient::<FMA>(1, &s, cast(z[l]), next[l], u1[l]));
                }
                continue;
            }
            // The convolution, but for its outermost pair, by symmetry.
            let (first, last) = (&known[1][..n], &known[k.max(3) - 2][..n]);
            let twice = F::from_f64(if k == 3 { 1.0 } else { 2.0 });
            if R::CONVOLVES && k > 2 {
                sum.fill(F::ZERO);
                for i in 2..k.div_ceil(2) {
                    let (a, b) = (&known[i][..n], &known[k - 1 - i][..n]);
                    let twice = F::from_f64(if 2 * i == k - 1 { 1.0 } else { 2.0 });
                    for l in 0..n {
                        sum[l] = fma::<F, FMA>(a[l] * twice, b[l], sum[l]);
                    }
                }
            }
            let u2 = &known[k - 2][..n];
            // Not a closure: one that is called twice is not inlined.
            macro_rules! step {
                ($l:ident, $convolution:expr) => {{
                    let s = [first[$l], first[$l], s2[$l], s3[$l], s4[$l]];
                    next[$l] = recipe.next::<FMA>(k, &s, u1[$l], u2[$l], $convolution);
                    let c = recipe.coefficient::<FMA>(k, &s, cast(z[$l]), next[$l], u1[$l]);
                    out[$l] = cast(c);
                }};
            }
            if R::CONVOLVES && k > 2 {
                for l in 0..n {
                    step!(l, fma::<F, FMA>(first[l] * twice, last[l], sum[l]));
                }
            } else {
                for l in 0..n {
                    step!(l, F::ZERO);
                }
            }
        }
        if R::TURNS && z.iter().fold(false, |any, &x| any | far::<T, F>(x)) {
            in_scalars(recipe, z, order, &mut out[at..], lanes);
        }
    }
}

/// [`fill`] for the lowest orders, K from 0 to 3, all in registers.
#[inline(always)]
fn fill_low<T: Real, F: Float, R: Recipe<F>, const FMA: bool, const K: usize>(
    recipe: R,
    z: &[T],
    out: &mut [T],
    planes: &mut [[F; CHUNK]; PLANES],
) {
    let lanes = z.len();
    let [first, second, third, ..] = planes;
    for (at, z) in z.chunks(CHUNK).enumerate().map(|(i, z)| (i * CHUNK, z)) {
        let n = z.len();
        let (c0, rest) = out.split_at_mut(lanes);
        let (c1, rest) = rest.split_at_mut(if K > 0 { lanes } else { 0 });
        let (c2, rest) = rest.split_at_mut(if K > 1 { lanes } else { 0 });
        let c0 = &mut c0[at..][..n];
        let c1 = &mut c1[if K > 0 { at } else { 0 }..][..if K > 0 { n } else { 0 }];
        let c2 = &mut c2[if K > 1 { at } else { 0 }..][..if K > 1 { n } else { 0 }];
        let c3 = &mut rest[if K > 2 { at } else { 0 }..][..if K > 2 { n } else { 0 }];
        let scratch = [&mut first[..n], &mut second[..n], &mut third[..n]];
        if !recipe.low::<T, FMA, K>(z, [c0, c1, c2, c3], scratch) {
            for l in 0..n {
                let x = cast(z[l]);
                let s = recipe.seeds::<FMA>(x);
                c0[l] = cast(recipe.value(&s, x));
                let (u0, u1) = (s[0], s[1]);
                if K > 0 {
                    c1[l] = cast(recipe.coefficient::<FMA>(1, &s, x, u1, u0));
                }
                if K > 1 {
                    let u2 = recipe.next::<FMA>(2, &s, u1, u0, F::ZERO);
                    c2[l] = cast(recipe.coefficient::<FMA>(2, &s, x, u2, u1));
                    if K > 2 {
                        let convolution = if R::CONVOLVES { u1 * u1 } else { F::ZERO };
                        let u3 = recipe.next::<FMA>(3, &s, u2, u1, convolution);
                        c3[l] = cast(recipe.coefficient::<FMA>(3, &s, x, u3, u2));
                    }
                }
            }
        }
        if R::TURNS && z.iter().fold(false, |any, &x| any | far::<T, F>(x)) {
            in_scalars(recipe, z, K, &mut out[at..], lanes);
        }
    }
}

/// Too far out for the vector code, or NaN.
#[inline(always)]
fn far<T: Real, F: Float>(x: T) -> bool {
    let near = cast::<T, F>(x).abs() <= F::TURNS_END;
    !near
}

/// The far lanes once more, with `seeds_scalar`.
#[cold]
#[inline(never)]
fn in_scalars<T: Real, F: Float, R: Recipe<F>>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
    lanes: usize,
) {
    for (l, &x) in z.iter().enumerate().filter(|(_, x)| far::<T, F>(**x)) {
        let x: F = cast(x);
        let s = recipe.seeds_scalar(x);
        out[l] = cast(recipe.value(&s, x));
        let (mut u1, mut u) = (s[0], s[1]);
        for k in 1..=order {
            if k > 1 {
                (u1, u) = (u, recipe.next::<false>(k, &s, u, u1, F::ZERO));
            }
            out[k * lanes + l] = cast(recipe.coefficient::<false>(k, &s, x, u, u1));
        }
    }
}
