//! How coefficients are made in vectors: seeds from the argument, then a recurrence.

use super::MAX_ORDER;
use super::float::{Float, cast, fma};
use crate::real::Real;

/// Lanes in a register block: with fewer LLVM unrolls the loop before it can vectorise it.
const LANES: usize = 16;
/// Lanes in a block of the plane-wise way, at most.
const CHUNK: usize = 64;
/// Coefficients, at most: one more than `MAX_ORDER + 1` counts.
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

/// What a recipe keeps of an argument.
pub(super) type Seeds<F> = [F; 5];

/// An elemental as the vector code sees it. A state sequence u starts with the first
/// two seeds and goes on by `next`; a coefficient is read from two neighbours of it.
/// All methods must be `#[inline(always)]` and branch-free.
pub(super) trait Recipe<F: Float>: Copy {
    /// Whether `next` reads the convolution.
    const CONVOLVES: bool = false;
    /// Whether arguments beyond `TURNS_END` take `seeds_scalar`.
    const TURNS: bool = false;

    /// From the argument; the first two are u_0 and u_1.
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F>;

    /// `seeds`, without hurry.
    fn seeds_scalar(self, x: F) -> Seeds<F> {
        self.seeds::<false>(x)
    }

    /// u_k, k ≥ 2, from `u1` = u_{k−1}, `u2` = u_{k−2} and
    /// `convolution` = Σ u_i u_{k−1−i}, i = 1..=k−2.
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, u2: F, convolution: F) -> F;

    /// c_k from `u` = u_k and `u1` = u_{k−1}.
    #[inline(always)]
    fn output<const FMA: bool>(self, k: usize, s: &Seeds<F>, x: F, u: F, u1: F) -> F {
        let _ = (k, s, x, u1);
        u
    }
}

/// c_0..=c_order of `recipe` at each of `z` (a multiple of [`LANES`]), computed in `F`.
#[inline(always)]
pub(super) fn fill<T: Real, F: Float, R: Recipe<F>, const FMA: bool>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
) {
    match order {
        0 | 1 => in_registers::<T, F, R, FMA, 2>(recipe, z, order, out),
        2 | 3 => in_registers::<T, F, R, FMA, 4>(recipe, z, order, out),
        4 | 5 => in_registers::<T, F, R, FMA, 6>(recipe, z, order, out),
        _ => in_planes::<T, F, R, FMA>(recipe, z, order, out),
    }
}

/// One pass over the lanes, N coefficients at once.
#[inline(always)]
fn in_registers<T: Real, F: Float, R: Recipe<F>, const FMA: bool, const N: usize>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
) {
    for (at, block) in z.chunks_exact(LANES).enumerate() {
        let block: &[T; LANES] = block.try_into().expect("a block");
        let mut c = [[T::ZERO; LANES]; N];
        for l in 0..LANES {
            let x: F = cast(block[l]);
            let s = recipe.seeds::<FMA>(x);
            let mut u = [F::ZERO; N];
            u[0] = s[0];
            u[1] = s[1];
            // Unrolled by hand: `k` is a constant in each line.
            macro_rules! next {
                ($($k:literal)*) => {$(
                    if N > $k {
                        let sum = if R::CONVOLVES { convolution::<F, FMA, $k, N>(&u) } else { F::ZERO };
                        u[$k] = recipe.next::<FMA>($k, &s, u[$k - 1], u[$k - 2], sum);
                    }
                )*};
            }
            next!(2 3 4 5);
            c[0][l] = cast(recipe.output::<FMA>(0, &s, x, u[0], F::ZERO));
            macro_rules! output {
                ($($k:literal)*) => {$(
                    if N > $k {
                        c[$k][l] = cast(recipe.output::<FMA>($k, &s, x, u[$k], u[$k - 1]));
                    }
                )*};
            }
            output!(1 2 3 4 5);
        }
        for (k, c) in c.iter().enumerate().take(order + 1) {
            out[k * z.len() + at * LANES..][..LANES].copy_from_slice(c);
        }
        if R::TURNS && block.iter().fold(false, |any, &x| any | !(cast::<T, F>(x).abs() <= F::TURNS_END)) {
            in_scalars(recipe, z, order, out, at * LANES, LANES);
        }
    }
}

/// Σ u_i u_{k−1−i}, i = 1..=k−2: each product once, for the sum is symmetric.
#[inline(always)]
fn convolution<F: Float, const FMA: bool, const K: usize, const N: usize>(u: &[F; N]) -> F {
    let m = K - 1;
    let mut sum = F::ZERO;
    let mut i = 1;
    while 2 * i < m {
        sum = fma::<F, FMA>(u[i], u[m - i], sum);
        i += 1;
    }
    sum = sum + sum;
    if m >= 2 && m % 2 == 0 {
        sum = fma::<F, FMA>(u[m / 2], u[m / 2], sum);
    }
    sum
}

/// Any order: plane after plane, in cache.
#[inline(always)]
fn in_planes<T: Real, F: Float, R: Recipe<F>, const FMA: bool>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
) {
    let mut u = [[F::ZERO; CHUNK]; COUNT];
    let mut s = [[F::ZERO; 5]; CHUNK];
    let mut at = 0;
    for block in z.chunks(CHUNK) {
        let n = block.len();
        let (u0, rest) = u.split_at_mut(1);
        let (u0, u1, s) = (&mut u0[0][..n], &mut rest[0][..n], &mut s[..n]);
        for l in 0..n {
            s[l] = recipe.seeds::<FMA>(cast(block[l]));
            u0[l] = s[l][0];
            u1[l] = s[l][1];
        }
        for k in 2..=order {
            let (known, rest) = u.split_at_mut(k);
            let next = &mut rest[0][..n];
            next.fill(F::ZERO);
            if R::CONVOLVES {
                for i in 1..k - 1 {
                    let (a, b) = (&known[i][..n], &known[k - 1 - i][..n]);
                    for l in 0..n {
                        next[l] = fma::<F, FMA>(a[l], b[l], next[l]);
                    }
                }
            }
            let (u1, u2) = (&known[k - 1][..n], &known[k - 2][..n]);
            for l in 0..n {
                next[l] = recipe.next::<FMA>(k, &s[l], u1[l], u2[l], next[l]);
            }
        }
        for k in 0..=order {
            let (u, u1) = (&u[k][..n], &u[k.saturating_sub(1)][..n]);
            let out = &mut out[k * z.len() + at..][..n];
            for l in 0..n {
                out[l] = cast(recipe.output::<FMA>(k, &s[l], cast(block[l]), u[l], u1[l]));
            }
        }
        if R::TURNS && block.iter().fold(false, |any, &x| any | !(cast::<T, F>(x).abs() <= F::TURNS_END)) {
            in_scalars(recipe, z, order, out, at, n);
        }
        at += n;
    }
}

/// The lanes from `start` on once more, with `seeds_scalar`.
#[cold]
#[inline(never)]
fn in_scalars<T: Real, F: Float, R: Recipe<F>>(
    recipe: R,
    z: &[T],
    order: usize,
    out: &mut [T],
    start: usize,
    count: usize,
) {
    for l in start..start + count {
        let x: F = cast(z[l]);
        if x.abs() <= F::TURNS_END {
            continue;
        }
        let s = recipe.seeds_scalar(x);
        let mut u = [s[0], s[1]];
        for k in 0..=order {
            if k >= 2 {
                u = [u[1], recipe.next::<false>(k, &s, u[1], u[0], F::ZERO)];
            }
            let (now, before) = if k == 0 { (u[0], F::ZERO) } else { (u[1], u[0]) };
            out[k * z.len() + l] = cast(recipe.output::<false>(k, &s, x, now, before));
        }
    }
}
