//! tanh and the logistic family, whose tails are e^(−|x|): seeds from it, never from 1 − tanh².

use super::float::{
    Exp, Float, One, Twofold, Vectors, Wide, cast, clamp, exponential, fma, near_one, num,
    polynomial, reduce, reduced,
};
use super::recipe::{Recipe, Seeds};
use crate::kernel::jet::SecondOrder;
use crate::kernel::simd::Isa;
use crate::real::Real;

/// 1/(1 + e) for 0 ≤ e ≤ 1, without a division where products and sums are one
/// instruction: that of 8 numbers takes as long as 30 of them.
#[inline(always)]
fn inverse_of_one_plus<A: Wide>(e: A) -> A {
    let one = e.all(1.0);
    if !A::FMA {
        let n = one + e;
        let d = n.inverse();
        return d - (e - (n - one)) * d * d;
    }
    // 1 − (1 + e)·p(e) is the Chebyshev polynomial of degree 4 on [0, 1], over its value
    // at −1, 577: the smallest error that there is. Two steps make 2e-3 of it 5e-9 and 3e-17.
    let p = e.all(-128.0 / 577.0);
    let p = p.fused(e, e.all(384.0 / 577.0));
    let p = p.fused(e, e.all(-544.0 / 577.0));
    let p = p.fused(e, e.all(576.0 / 577.0));
    let h = (-e).fused(p, one - p);
    let p = h.fused(h, h).fused(p, p);
    let h = (-e).fused(p, one - p);
    h.fused(p, p)
}

/// What they share, all from e = e^(−|x|).
struct Logistic<F> {
    /// See [`Exp::far`].
    far: F,
    /// e, but for `far`.
    near: F,
    /// e − 1.
    m: F,
    /// 1/(1 + e).
    d: F,
    /// (1 − e)/(1 + e) with the sign of x, in two pieces: near 1 its last bit matters to
    /// the higher derivatives.
    t: Twofold<F>,
    /// e/(1 + e)², but for `far`.
    slope: F,
}

impl<F: Float> Logistic<F> {
    /// From |x|, and the sign of x.
    #[inline(always)]
    fn new<const FMA: bool>(y: F, sign: F) -> Self {
        let y = if y > F::EXP_END { F::EXP_END } else { y };
        let [near, m, far] = exponential::<F, FMA, false>(reduce::<F, FMA>(-y));
        // d = 1/n for n = 1 + e in two pieces, and how far d is off
        let n = F::ONE + near;
        let low = near - (n - F::ONE);
        let d = F::ONE / n;
        let off = if FMA { (-n).fused(d, F::ONE) } else { F::ZERO };
        let d = fma::<F, FMA>(d, fma::<F, FMA>(-low, d, off), d);
        // 1 − 2e/(1 + e), or for small |x| (1 − e)/(1 + e)
        let defect = (near + near) * d;
        let t = F::ONE - defect;
        let rest = (F::ONE - t) - defect;
        let small = near > num(0.5);
        let t = if small { -m * d } else { t };
        Self {
            near,
            m,
            d,
            t: Twofold {
                hi: t.copysign(sign),
                lo: if small {
                    F::ZERO
                } else {
                    rest * F::ONE.copysign(sign)
                },
            },
            // near 0 1 − t² is the better conditioned
            slope: if small {
                fma::<F, FMA>(-t, t, F::ONE) * num(0.25)
            } else {
                near * d * d
            },
            far,
        }
    }

    /// σ(|x|) or σ(−|x|) times `far`.
    #[inline(always)]
    fn sigma(&self, negative: bool) -> F {
        if negative {
            self.near * self.d * self.far
        } else {
            self.d
        }
    }

    /// ln(1 + e) = f − s(f − s²P(s²)) with s = f/(2 + f), f = e or, above √2 − 1, (e − 1)/2 and ln 2.
    #[inline(always)]
    fn log<const FMA: bool>(&self) -> F {
        let big = self.near > num(0.4142);
        let f = if big { self.m * num(0.5) } else { self.near };
        let s = f / (if big { f } else { self.m + F::ONE } + num(2.0));
        let w = s * s;
        let l = f - s * (f - w * polynomial::<F, FMA>(F::LOG, w));
        (if big {
            l + num(std::f64::consts::LN_2)
        } else {
            l
        }) * self.far
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
pub(crate) struct Tanh;

impl<F: Float> Recipe<F> for Tanh {
    const KEPT: usize = 2;
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn low<T: Real, const FMA: bool, const K: usize>(
        self,
        z: &[T],
        [c0, c1, c2, c3]: [&mut [T]; 4],
        [near, minus_one, far]: [&mut [F]; 3],
    ) -> bool {
        // Two loops, since a processor looks ahead by so many instructions only.
        let n = z.len();
        let (near, minus_one, far) = (&mut near[..n], &mut minus_one[..n], &mut far[..n]);
        for l in 0..n {
            let [e, m, f] = tanh_exponential(One::<F, FMA>(cast(z[l])));
            (near[l], minus_one[l], far[l]) = (e.0, m.0, f.0);
        }
        let c0 = &mut c0[..n];
        let c1 = &mut c1[..if K > 0 { n } else { 0 }];
        let c2 = &mut c2[..if K > 1 { n } else { 0 }];
        let c3 = &mut c3[..if K > 2 { n } else { 0 }];
        for l in 0..n {
            let parts = [One(near[l]), One(minus_one[l]), One(far[l])];
            let (t, slope, _) = tanh_and_slope(One::<F, FMA>(cast(z[l])), parts);
            c0[l] = cast(t.0);
            if K > 0 {
                c1[l] = cast(slope.0);
            }
            if K > 1 {
                c2[l] = cast(tanh_second(t, slope).0);
            }
            if K > 2 {
                c3[l] = cast(tanh_third(t, slope).0);
            }
        }
        true
    }

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let parts = tanh_exponential(One::<F, FMA>(x));
        let (t, slope, d) = tanh_and_slope(One(x), parts);
        // Near 1 the last bit of t matters to the higher derivatives.
        let (t, slope, d, near) = (t.0, slope.0, d.0, parts[0].0);
        let rest = (F::ONE - t.abs()) - (near + near) * d;
        let rest = if near > num(0.5) { F::ZERO } else { rest };
        let two = num::<F>(2.0);
        [t, slope, t * two, rest * two.copysign(x), F::ZERO]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, s: &Seeds<F>, _: F, u: F, _: F) -> F {
        // As in `low`, so that a coefficient does not depend on how many were asked.
        let (t, slope) = (s[2] * num(0.5), s[1]);
        match k {
            2 => tanh_second(One::<F, FMA>(t), One(slope)).0,
            3 => tanh_third(One::<F, FMA>(t), One(slope)).0,
            _ => u,
        }
    }
}

/// e = e^(−2|x|), e − 1 and 4, but for the factor of the tail, which goes to the last.
#[inline(always)]
fn tanh_exponential<A: Wide>(x: A) -> [A; 3] {
    let y = x.abs();
    let y = y + y;
    let end = x.constant(f32::EXP_END, f64::EXP_END);
    let e = Exp::new::<false>(reduced(-y.if_greater(end, end, y)));
    [e.near(), e.minus_one(), e.far * e.far.all(4.0)]
}

/// t = tanh x, its derivative 4e/(1 + e)², and 1/(1 + e).
#[inline(always)]
fn tanh_and_slope<A: Wide>(x: A, [e, m, far]: [A; 3]) -> (A, A, A) {
    let d = inverse_of_one_plus(e);
    let t = (m * d).copysign(x);
    // Near 0 the difference is the better conditioned.
    let near_zero = (-t).fused(t, t.all(1.0));
    let tail = (e * d) * (d * far);
    (t, e.if_greater(e.all(0.5), near_zero, tail), d)
}

/// Half the second derivative, −t·t'.
#[inline(always)]
fn tanh_second<A: Wide>(t: A, slope: A) -> A {
    -t * slope
}

/// A sixth of the third derivative, (2t² − t')·t'/3.
#[inline(always)]
fn tanh_third<A: Wide>(t: A, slope: A) -> A {
    (t + t).fused(t, -slope) * (slope * slope.all(1.0 / 3.0))
}

impl<T: Real> SecondOrder<T> for Tanh {
    #[inline(always)]
    fn begin<S: Isa, const N: usize>(
        self,
        simd: S,
        z: [T::Vector<S>; N],
    ) -> [[T::Vector<S>; N]; 3] {
        let [e, m, far] = tanh_exponential(Vectors::<T, S, N> { simd, x: z });
        [e.x, m.x, far.x]
    }

    #[inline(always)]
    fn finish<S: Isa, const N: usize>(
        self,
        simd: S,
        z: [T::Vector<S>; N],
        [e, m, far]: [[T::Vector<S>; N]; 3],
    ) -> [[T::Vector<S>; N]; 3] {
        let e = Vectors::<T, S, N> { simd, x: e };
        let parts = [e, Vectors { simd, x: m }, Vectors { simd, x: far }];
        let (t, slope, _) = tanh_and_slope(Vectors { simd, x: z }, parts);
        [t.x, slope.x, tanh_second(t, slope).x]
    }
}

/// 1/(1 + e^(−x)): σ'' = −tanh(x/2) · σ'.
#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl<F: Float> Recipe<F> for Sigmoid {
    const KEPT: usize = 2;
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        [
            p.sigma(x < F::ZERO),
            p.slope * p.far,
            p.t.hi,
            p.t.lo,
            F::ZERO,
        ]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
}

/// ln(1 + e^x), whose derivative is σ; or, with sign −1, ln σ(x) = −ln(1 + e^(−x)).
#[derive(Clone, Copy)]
pub(super) struct Softplus {
    pub sign: f64,
}

impl<F: Float> Recipe<F> for Softplus {
    const KEPT: usize = 2;
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let sign = num::<F>(self.sign);
        let x = x * sign;
        let p = Logistic::new::<FMA>(x.abs(), x);
        let positive = if x > F::ZERO { x } else { F::ZERO };
        let value = (positive + p.log::<FMA>()) * sign;
        [
            p.sigma(x < F::ZERO),
            p.slope * p.far * sign,
            p.t.hi * sign,
            p.t.lo * sign,
            value,
        ]
    }
    #[inline(always)]
    fn value(self, s: &Seeds<F>, _: F) -> F {
        s[4]
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution * num(self.sign))
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, k: usize, _: &Seeds<F>, _: F, _: F, u1: F) -> F {
        u1 * num(1.0 / k as f64)
    }
}

/// c_0 of x·g(x), from g without the factor `far`; `end` bounds x where g is 0 (∞ · 0).
#[inline(always)]
pub(super) fn product_value<F: Float>(x: F, end: F, g: F, far: F) -> F {
    (if x < -end { -end } else { x } * far) * g
}

/// c_k of x·g(x) from g_k and g_{k−1}, both without the factor `far`.
#[inline(always)]
pub(super) fn product_coefficient<F: Float, const FMA: bool>(
    x: F,
    end: F,
    (g, g1): (F, F),
    far: F,
) -> F {
    fma::<F, FMA>(clamp(x, end), g, g1) * far
}

/// x·σ(x).
#[derive(Clone, Copy)]
pub(super) struct Silu;

impl<F: Float> Recipe<F> for Silu {
    const KEPT: usize = 3;
    const CONVOLVES: bool = true;

    #[inline(always)]
    fn seeds<const FMA: bool>(self, x: F) -> Seeds<F> {
        let p = Logistic::new::<FMA>(x.abs(), x);
        let sigma = p.d * if x < F::ZERO { p.near } else { near_one(p.far) };
        [sigma, p.slope, p.t.hi, p.t.lo, p.far]
    }
    #[inline(always)]
    fn value(self, s: &Seeds<F>, x: F) -> F {
        product_value(x, F::EXP_END, s[0], s[4])
    }
    #[inline(always)]
    fn next<const FMA: bool>(self, k: usize, s: &Seeds<F>, u1: F, _: F, convolution: F) -> F {
        riccati::<F, FMA>(k, s, u1, convolution)
    }
    #[inline(always)]
    fn coefficient<const FMA: bool>(self, _: usize, s: &Seeds<F>, x: F, u: F, u1: F) -> F {
        product_coefficient::<F, FMA>(x, F::EXP_END, (u, u1), s[4])
    }
}

#[cfg(test)]
mod tests {
    //! Coefficients in registers are those in memory, bit by bit.

    use super::*;
    use crate::elemental::{Elemental, Scratch};
    use crate::kernel::jet::{Quadratic, second_order};
    use crate::kernel::simd::{InstructionSet, Kernel};
    use proptest::prelude::*;

    /// c_0, c_1, c_2 at `z`, both ways; none where the shorter way is not taken.
    struct BothWays<'a, T>(&'a [T]);

    impl<T: Real> Kernel for BothWays<'_, T> {
        type Output = Option<[Vec<T>; 2]>;

        #[inline(always)]
        fn run<S: Isa>(self, simd: S) -> Self::Output {
            let Self(z) = self;
            let lanes = z.len();
            let tanh = Elemental::Tanh.in_registers::<S>()?;
            let mut memory = vec![T::ZERO; 3 * lanes];
            Elemental::Tanh.coefficients::<T, true>(z, 2, &mut memory, &mut Scratch::default());

            // The jet (z, 1, 0): its planes of v are c_0, c_1 and c_2.
            let mut rule = Quadratic::default();
            rule.push(Some(1), &[], Some(1), None);
            rule.push(None, &[(1, 1)], Some(2), None);
            let mut jet = z.to_vec();
            jet.resize(2 * lanes, T::ONE);
            let mut v = vec![T::ZERO; 3 * lanes];
            let mut slope = vec![T::ZERO; lanes];
            second_order(
                simd,
                tanh,
                &rule,
                Some(0),
                Some(&jet),
                &mut v,
                Some(&mut slope),
                lanes,
            );
            assert!(slope.iter().zip(&v[lanes..]).all(|(a, b)| same(*a, *b)));
            Some([memory, v])
        }
    }

    /// Equal, or NaN both.
    fn same<T: Real>(a: T, b: T) -> bool {
        a.to_f64() == b.to_f64() || (a.to_f64().is_nan() && b.to_f64().is_nan())
    }

    fn check<T: Real>(z: &[f64]) -> Result<(), TestCaseError> {
        let z: Vec<T> = z.iter().map(|&z| T::from_f64(z)).collect();
        for set in InstructionSet::available() {
            let both = set.dispatch(BothWays(&z));
            prop_assert_eq!(both.is_some(), set != InstructionSet::Baseline);
            let Some([memory, registers]) = both else {
                continue;
            };
            for (at, (a, b)) in memory.iter().zip(&registers).enumerate() {
                let (k, z) = (at / z.len(), z[at % z.len()]);
                prop_assert!(same(*a, *b), "{}: c_{k}({z}): {a} or {b}", set.name());
            }
        }
        Ok(())
    }

    fn argument() -> impl Strategy<Value = f64> {
        prop_oneof![
            8 => -4.0..4.0,
            4 => -1e-3..1e-3,
            4 => -800.0..800.0,
            1 => any::<f64>(),
            1 => prop::sample::select(vec![
                0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE, 5e-324,
            ]),
        ]
    }

    proptest! {
        #[test]
        fn coefficients_of_tanh_in_registers_are_those_in_memory(
            // So many lanes that blocks of 8, 4 and 1 vectors come, whatever their width.
            z in (1..10usize).prop_flat_map(|n| prop::collection::vec(argument(), 16 * n)),
        ) {
            check::<f64>(&z)?;
            check::<f32>(&z)?;
        }
    }
}
