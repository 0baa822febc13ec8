//! What the elementals need to know of `f32` and `f64`: bits, and tables of coefficients.
//!
//! Everything is branch-free scalar code, which LLVM turns into vectors where it is
//! called in a loop over lanes; a choice is a select, and NaN passes through it.
//! The polynomials were fitted at Chebyshev nodes with 60 digits; each table states
//! what it approximates and where.

use crate::kernel::simd::Isa;
use crate::real::{Lanes, Real};
use std::ops::{Add, Mul, Neg, Sub};

/// [`Real`] with its bits.
pub(super) trait Float: Real {
    /// 1.5 · 2^(bits of the mantissa): adding it rounds to an integer, which then
    /// stands in the low bits.
    const MAGIC: Self;
    /// Largest finite number.
    const MAX: Self;
    /// 1/ln 2.
    const LOG2_E: Self;
    /// ln 2 in two pieces; the first has so few bits that `k * LN_2.0` is exact.
    const LN_2: (Self, Self);
    /// Below this k and above its negative, 2^k is split: `2^(k ± SHIFT)` and `FAR`.
    const SPLIT: Self;
    /// See [`Self::SPLIT`].
    const SHIFT: Self;
    /// Of the exponent.
    const BIAS: Self;
    /// 2^SHIFT and 2^−SHIFT.
    const FAR: (Self, Self);
    /// (e^r − 1 − r)/r² for |r| ≤ ln 2 / 2.
    const EXPM1: &'static [Self];
    /// (sin r − r)/r³ in r², for |r| ≤ π/4.
    const SIN: &'static [Self];
    /// (cos r − 1 + r²/2)/r⁴ in r², for |r| ≤ π/4.
    const COS: &'static [Self];
    /// (2 artanh s − 2s)/s³ in s², for |s| ≤ (√2 − 1)/(√2 + 1).
    const LOG: &'static [Self];
    /// erf x / x − 1 in x², for |x| ≤ 0.8.
    const ERF: &'static [Self];
    /// (y + a)·e^(y²)·erfc y in t = (y − a)/(y + a), for y from 0 to past the underflow of e^(−y²).
    const ERFCX: &'static [Self];
    /// The `a` of [`Self::ERFCX`].
    const ERFCX_A: Self;
    /// Beyond it e^(−|x|), e^(|x|) and all multiples by moderate polynomials are 0 or infinite.
    const EXP_END: Self;
    /// The same for e^(−x²).
    const GAUSS_END: Self;
    /// sin and cos take the scalar way from here on.
    const TURNS_END: Self;

    /// `self * b + c` in one rounding: a machine instruction only where `Isa::FMA`.
    fn fused(self, b: Self, c: Self) -> Self;
    /// |self|.
    fn abs(self) -> Self;
    /// |self| with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// √self.
    fn sqrt(self) -> Self;
    /// The upper half of the mantissa, so that its products are exact.
    fn upper(self) -> Self;
    /// The lowest bits as an exponent: 2^k for self = MAGIC + BIAS + k.
    fn exponent(self) -> Self;
    /// `(r, q)`: self = r + qπ/2 modulo 2π, |r| ≤ π/4, q in 0..4 as the low bits of a `Self`.
    fn quarter_turn<const FMA: bool>(self) -> (Self, Self);
    /// (sin, cos) of r + (q + more)π/2 from those of r.
    fn turn(sin: Self, cos: Self, q: Self, more: u32) -> (Self, Self);
    /// std's (sin, cos), for large arguments.
    fn sin_cos_scalar(self) -> (Self, Self);
}

/// `a * b + c`, in one rounding where that is an instruction.
#[inline(always)]
pub(super) fn fma<F: Float, const FMA: bool>(a: F, b: F, c: F) -> F {
    if FMA { a.fused(b, c) } else { a * b + c }
}

/// Between types; nothing at all from a type to itself.
#[inline(always)]
pub(super) fn cast<A: Real, B: Real>(a: A) -> B {
    B::from_f64(a.to_f64())
}

/// A number of either type.
#[inline(always)]
pub(super) fn num<F: Real>(x: f64) -> F {
    F::from_f64(x)
}

/// Numbers that go through a formula side by side: one, or some vectors of them. With the same
/// formula their bits are the same.
pub(super) trait Wide:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// `f32`, else `f64`.
    const SINGLE: bool;
    /// Whether `fused` is an instruction.
    const FMA: bool;

    /// A number everywhere, as many as here.
    fn all(self, x: f64) -> Self;
    /// `self * b + c`, in one rounding where that is an instruction.
    fn fused(self, b: Self, c: Self) -> Self;
    /// 1/self.
    fn inverse(self) -> Self;
    /// |self|.
    fn abs(self) -> Self;
    /// |self| with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// `then` where self > `bound`, else `other`.
    fn if_greater(self, bound: Self, then: Self, other: Self) -> Self;
    /// See [`Float::exponent`].
    fn exponent(self) -> Self;

    /// A constant of either type, everywhere.
    #[inline(always)]
    fn constant(self, single: f32, double: f64) -> Self {
        let single = f64::from(single);
        self.all(if Self::SINGLE { single } else { double })
    }
}

/// One number.
#[derive(Clone, Copy)]
pub(super) struct One<F, const FMA: bool>(pub F);

macro_rules! one {
    ($op:ident, $method:ident, $($x:ident)?) => {
        impl<F: Float, const FMA: bool> $op for One<F, FMA> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, $($x: Self)?) -> Self {
                Self($op::$method(self.0, $($x.0)?))
            }
        }
    };
}
one!(Add, add, x);
one!(Sub, sub, x);
one!(Mul, mul, x);
one!(Neg, neg,);

impl<F: Float, const FMA: bool> Wide for One<F, FMA> {
    const SINGLE: bool = size_of::<F>() == size_of::<f32>();
    const FMA: bool = FMA;

    #[inline(always)]
    fn all(self, x: f64) -> Self {
        Self(num(x))
    }
    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        Self(fma::<F, FMA>(self.0, b.0, c.0))
    }
    #[inline(always)]
    fn inverse(self) -> Self {
        Self(F::ONE / self.0)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.abs())
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        Self(self.0.copysign(sign.0))
    }
    #[inline(always)]
    fn if_greater(self, bound: Self, then: Self, other: Self) -> Self {
        if self.0 > bound.0 { then } else { other }
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        Self(self.0.exponent())
    }
}

/// N vectors. A formula waits for its last result only; the N go through it in turns.
#[derive(Clone, Copy)]
pub(super) struct Vectors<T: Real, S: Isa, const N: usize> {
    pub simd: S,
    pub x: [T::Vector<S>; N],
}

/// An operation on each vector: not a closure, which might not be inlined.
macro_rules! each {
    ($self:ident, $n:ident, $x:expr) => {{
        let mut out = $self.x;
        for $n in 0..N {
            out[$n] = $x;
        }
        Self {
            simd: $self.simd,
            x: out,
        }
    }};
}

macro_rules! vectors {
    ($op:ident, $method:ident, $($x:ident)?) => {
        impl<T: Real, S: Isa, const N: usize> $op for Vectors<T, S, N> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, $($x: Self)?) -> Self {
                each!(self, n, <T as Lanes>::$method(self.simd, self.x[n], $($x.x[n])?))
            }
        }
    };
}
vectors!(Add, add, x);
vectors!(Sub, sub, x);
vectors!(Mul, mul, x);
vectors!(Neg, neg,);

impl<T: Real, S: Isa, const N: usize> Wide for Vectors<T, S, N> {
    const SINGLE: bool = size_of::<T>() == size_of::<f32>();
    const FMA: bool = S::FMA;

    #[inline(always)]
    fn all(self, x: f64) -> Self {
        let x = T::splat(self.simd, num(x));
        each!(self, _n, x)
    }
    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        each!(
            self,
            n,
            <T as Lanes>::mul_add(self.simd, self.x[n], b.x[n], c.x[n])
        )
    }
    #[inline(always)]
    fn inverse(self) -> Self {
        let one = T::splat(self.simd, T::ONE);
        each!(self, n, <T as Lanes>::div(self.simd, one, self.x[n]))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        each!(self, n, <T as Lanes>::abs(self.simd, self.x[n]))
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        each!(
            self,
            n,
            <T as Lanes>::copysign(self.simd, self.x[n], sign.x[n])
        )
    }
    #[inline(always)]
    fn if_greater(self, bound: Self, then: Self, other: Self) -> Self {
        each!(
            self,
            n,
            T::if_greater(self.simd, self.x[n], bound.x[n], then.x[n], other.x[n])
        )
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        each!(self, n, <T as Lanes>::exponent(self.simd, self.x[n]))
    }
}

/// Σ c_i x^i: even and odd powers apart, which halves the chain of dependent products.
#[inline(always)]
pub(super) fn polynomial<F: Float, const FMA: bool>(c: &'static [F], x: F) -> F {
    evaluate(One::<F, FMA>(x), c.len(), |i| One(c[i])).0
}

/// [`polynomial`] of `count` coefficients.
#[inline(always)]
fn evaluate<A: Wide>(x: A, count: usize, c: impl Fn(usize) -> A) -> A {
    let y = x * x;
    let mut i = count - 2;
    let (mut even, mut odd) = (c(i), c(i + 1));
    if i % 2 == 1 {
        (even, odd) = (odd, even);
    }
    while i > 0 {
        i -= 1;
        if i.is_multiple_of(2) {
            even = even.fused(y, c(i));
        } else {
            odd = odd.fused(y, c(i));
        }
    }
    odd.fused(x, even)
}

/// `x` where it is within ±end, else ±end. NaN stays.
#[inline(always)]
pub(super) fn clamp<F: Float>(x: F, end: F) -> F {
    let x = if x > end { end } else { x };
    if x < -end { -end } else { x }
}

/// e^x = (1 + q)·s·far.
pub(super) struct Exp<A> {
    /// e^r − 1 for the rest r of x by ln 2.
    pub q: A,
    /// 2^k, or where that or its multiples might underflow or overflow, 2^(k ± SHIFT): still
    /// negligible beside 1, or 1 beside it.
    pub s: A,
    /// 1, or 2^∓SHIFT.
    pub far: A,
}

/// (k, r) with x = k ln 2 + r; k still with `MAGIC`.
#[inline(always)]
pub(super) fn reduce<F: Float, const FMA: bool>(x: F) -> (F, F) {
    let (sum, r) = reduced(One::<F, FMA>(x));
    (sum.0, r.0)
}

/// See [`reduce`].
#[inline(always)]
pub(super) fn reduced<A: Wide>(x: A) -> (A, A) {
    let magic = x.constant(f32::MAGIC, f64::MAGIC);
    let sum = x.fused(x.constant(f32::LOG2_E, f64::LOG2_E), magic);
    let k = sum - magic;
    let r = (-k).fused(x.constant(f32::LN_2.0, f64::LN_2.0), x);
    let r = (-k).fused(x.constant(f32::LN_2.1, f64::LN_2.1), r);
    (sum, r)
}

impl<A: Wide> Exp<A> {
    /// From `reduced(x)`, |x| ≤ 1.4 · EXP_END. `GROWS`: x may be positive.
    #[inline(always)]
    pub fn new<const GROWS: bool>((sum, r): (A, A)) -> Self {
        let (zero, one) = (r.all(0.0), r.all(1.0));
        let k = sum - r.constant(f32::MAGIC, f64::MAGIC);
        let polynomial = if A::SINGLE {
            let c = f32::EXPM1;
            evaluate(
                r,
                c.len(),
                #[inline(always)]
                |i| r.all(f64::from(c[i])),
            )
        } else {
            let c = f64::EXPM1;
            evaluate(
                r,
                c.len(),
                #[inline(always)]
                |i| r.all(c[i]),
            )
        };
        let q = (r * r).fused(polynomial, r);
        let split = r.constant(f32::SPLIT, f64::SPLIT);
        let shift = r.constant(f32::SHIFT, f64::SHIFT);
        let up = split.if_greater(k, shift, zero);
        let far = split.if_greater(k, r.constant(f32::FAR.1, f64::FAR.1), one);
        let (shift, far) = if GROWS {
            let large = r.constant(f32::FAR.0, f64::FAR.0);
            let far = k.if_greater(-split, large, far);
            (k.if_greater(-split, -shift, up), far)
        } else {
            (up, far)
        };
        let bias = r.constant(f32::BIAS, f64::BIAS);
        Self {
            q,
            s: (sum + (shift + bias)).exponent(),
            far,
        }
    }

    /// (1 + q)·s, that is e^x but for `far`.
    #[inline(always)]
    pub fn near(&self) -> A {
        self.s.fused(self.q, self.s)
    }

    /// e^x − 1 where `far` is 1; elsewhere −1, or e^x but for `far`.
    #[inline(always)]
    pub fn minus_one(&self) -> A {
        self.s.fused(self.q, self.s - self.s.all(1.0))
    }
}

/// e^x and e^x − 1 as [`Exp::near`] and [`Exp::minus_one`] tell them, and `Exp::far`; from
/// `reduce(x)`.
#[inline(always)]
pub(super) fn exponential<F: Float, const FMA: bool, const GROWS: bool>(
    (sum, r): (F, F),
) -> [F; 3] {
    let e = Exp::new::<GROWS>((One::<F, FMA>(sum), One(r)));
    [e.near(), e.minus_one(), e.far].map(
        #[inline(always)]
        |x| x.0,
    )
}

/// 1/far of an exponential that does not grow.
#[inline(always)]
pub(super) fn near_one<F: Float>(far: F) -> F {
    if far < F::ONE { F::FAR.0 } else { F::ONE }
}

/// A sum `hi + lo` of two numbers, with about twice the precision of one.
#[derive(Clone, Copy)]
pub(super) struct Twofold<F> {
    pub hi: F,
    pub lo: F,
}

impl<F: Float> Twofold<F> {
    #[inline(always)]
    pub fn new(hi: F) -> Self {
        Self { hi, lo: F::ZERO }
    }

    /// `hi` with the correction `lo`, unless the result leaves the finite numbers:
    /// then `lo` would be inf − inf.
    #[inline(always)]
    fn guarded(hi: F, lo: F) -> Self {
        let sum = hi + lo;
        let rest = lo - (sum - hi);
        let fine = rest.abs() <= F::MAX;
        Self {
            hi: if fine & (sum != hi) { sum } else { hi }, // -0 + 0 would be 0
            lo: if fine { rest } else { F::ZERO },
        }
    }

    /// a·b.
    #[inline(always)]
    pub fn product<const FMA: bool>(a: F, b: F) -> Self {
        let hi = a * b;
        let lo = if FMA {
            a.fused(b, -hi)
        } else {
            let (ah, bh) = (a.upper(), b.upper());
            let (al, bl) = (a - ah, b - bh);
            ((ah * bh - hi) + ah * bl + al * bh) + al * bl
        };
        Self { hi, lo }
    }

    /// a + b.
    #[inline(always)]
    pub fn sum(a: F, b: F) -> Self {
        let hi = a + b;
        let c = hi - a;
        Self {
            hi,
            lo: (a - (hi - c)) + (b - c),
        }
    }

    #[inline(always)]
    pub fn times<const FMA: bool>(self, b: Self) -> Self {
        let p = Self::product::<FMA>(self.hi, b.hi);
        let cross = fma::<F, FMA>(self.hi, b.lo, self.lo * b.hi);
        Self::guarded(p.hi, p.lo + cross)
    }

    #[inline(always)]
    pub fn plus(self, b: Self) -> Self {
        let s = Self::sum(self.hi, b.hi);
        Self::guarded(s.hi, s.lo + (self.lo + b.lo))
    }

    /// 1/self.
    #[inline(always)]
    pub fn recip<const FMA: bool>(self) -> Self {
        let r = F::ONE / self.hi;
        let p = Self::product::<FMA>(self.hi, r);
        let error = ((F::ONE - p.hi) - p.lo) - self.lo * r;
        Self::guarded(r, r * error)
    }

    /// 1/√self, for a `hi` that is normal, 0 or infinite.
    #[inline(always)]
    pub fn rsqrt<const FMA: bool>(self) -> Self {
        let s = self.hi.sqrt();
        let r = F::ONE / s;
        let (p, q) = (Self::product::<FMA>(s, r), Self::product::<FMA>(s, s));
        let of_quotient = (F::ONE - p.hi) - p.lo;
        let of_root = ((self.hi - q.hi) - q.lo + self.lo) * r * r;
        Self::guarded(r, r * (of_quotient - of_root * cast(0.5)))
    }

    /// Both halves by a power of two, or an approximate factor.
    #[inline(always)]
    pub fn scaled(self, factor: F) -> Self {
        Self {
            hi: self.hi * factor,
            lo: self.lo * factor,
        }
    }

    /// The nearest number.
    #[inline(always)]
    pub fn rounded(self) -> F {
        Self::guarded(self.hi, self.lo).hi
    }
}

impl Float for f64 {
    const MAGIC: Self = 6_755_399_441_055_744.0;
    const MAX: Self = f64::MAX;
    const LOG2_E: Self = std::f64::consts::LOG2_E;
    const LN_2: (Self, Self) = (0.6931471803691238, 1.9082149292705877e-10);
    const SPLIT: Self = -900.0;
    const SHIFT: Self = 512.0;
    const BIAS: Self = 1023.0;
    const FAR: (Self, Self) = (
        f64::from_bits((1023 + 512) << 52),
        f64::from_bits((1023 - 512) << 52),
    );
    const EXPM1: &'static [Self] = &[
        0.5000000000000001,
        0.16666666666666669,
        0.04166666666662404,
        0.008333333333330055,
        0.0013888888917258759,
        0.00019841269863088255,
        2.4801521225986432e-05,
        2.7557268406190795e-06,
        2.7620121717381933e-07,
        2.51004110820149e-08,
    ];
    const SIN: &'static [Self] = &[
        -0.16666666666666666,
        0.008333333333330936,
        -0.00019841269836740532,
        2.7557316093198404e-06,
        -2.5051129896450185e-08,
        1.5917988979397435e-10,
    ];
    const COS: &'static [Self] = &[
        0.041666666666666664,
        -0.0013888888888887389,
        2.48015872987544e-05,
        -2.755731726587808e-07,
        2.087614504941318e-09,
        -1.138254464534925e-11,
    ];
    const LOG: &'static [Self] = &[
        0.6666666666666666,
        0.4000000000000091,
        0.2857142857078221,
        0.22222222396552982,
        0.18181795124476754,
        0.15386267672882226,
        0.1326802614042874,
        0.13094416666525344,
    ];
    const ERF: &'static [Self] = &[
        0.12837916709551256,
        -0.37612638903183626,
        0.11283791670947298,
        -0.02686617064321942,
        0.005223977601471378,
        -0.000854832526774754,
        0.00012055252657271225,
        -1.4923283048388212e-05,
        1.641705649300286e-06,
        -1.5827667064567424e-07,
        1.1079017947501558e-08,
    ];
    const ERFCX: &'static [Self] = &[
        1.08705558926226,
        -0.937799724567112,
        0.6941136466346434,
        -0.43525602671688396,
        0.22573862164747405,
        -0.09231870663871836,
        0.026518619880185973,
        -0.003177050338285488,
        -0.0013053546735149759,
        0.0007145316440490487,
        -4.2062301004307815e-05,
        -7.4776863757711e-05,
        1.8647840726943693e-05,
        7.243426960891108e-06,
        -3.394068101567004e-06,
        -7.949749232042154e-07,
        5.547207889577787e-07,
        1.1481138610593327e-07,
        -8.892334071176644e-08,
        -2.170074866649648e-08,
        1.301990032111872e-08,
        4.23115523985308e-09,
        -1.2666895317799894e-09,
        -5.397933086770169e-10,
    ];
    const ERFCX_A: Self = 3.5;
    const EXP_END: Self = 800.0;
    const GAUSS_END: Self = 30.0;
    const TURNS_END: Self = 1e6;

    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.abs()
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.copysign(sign)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn upper(self) -> Self {
        f64::from_bits(self.to_bits() & !0x07ff_ffff)
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        f64::from_bits(self.to_bits() << 52)
    }
    #[inline(always)]
    fn quarter_turn<const FMA: bool>(self) -> (Self, Self) {
        // π/2 in pieces of 33, 33 and 53 bits: products with |k| < 2^20 are exact.
        let sum = fma::<f64, FMA>(self, std::f64::consts::FRAC_2_PI, Self::MAGIC);
        let k = sum - Self::MAGIC;
        let r = fma::<f64, FMA>(-k, 1.5707963267341256, self);
        let r = fma::<f64, FMA>(-k, 6.077100506303966e-11, r);
        let r = fma::<f64, FMA>(-k, 2.0222662487959506e-21, r);
        (r, sum)
    }
    #[inline(always)]
    fn turn(sin: Self, cos: Self, q: Self, more: u32) -> (Self, Self) {
        let q = q.to_bits().wrapping_add(more.into());
        let odd = q & 1 != 0;
        let (s, c) = (if odd { cos } else { sin }, if odd { sin } else { cos });
        (
            f64::from_bits(s.to_bits() ^ ((q & 2) << 62)),
            f64::from_bits(c.to_bits() ^ ((q.wrapping_add(1) & 2) << 62)),
        )
    }
    #[inline]
    fn sin_cos_scalar(self) -> (Self, Self) {
        self.sin_cos()
    }
}

impl Float for f32 {
    const MAGIC: Self = 12_582_912.0;
    const MAX: Self = f32::MAX;
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const LN_2: (Self, Self) = (0.693_115_23, 3.194_618_3e-5);
    const SPLIT: Self = -110.0;
    const SHIFT: Self = 80.0;
    const BIAS: Self = 127.0;
    const FAR: (Self, Self) = (
        f32::from_bits((127 + 80) << 23),
        f32::from_bits((127 - 80) << 23),
    );
    const EXPM1: &'static [Self] = &[
        0.5,
        0.166_665_76,
        0.041_666_556,
        0.008_363_195,
        0.001_392_620_4,
    ];
    const SIN: &'static [Self] = &[
        -0.166_666_67,
        0.008_333_332,
        -0.000_198_400_84,
        2.724_962e-6,
    ];
    const COS: &'static [Self] = &[0.041_666_664, -0.001_388_830_1, 2.454_769e-5];
    const LOG: &'static [Self] = &[0.666_666_87, 0.399_886_55, 0.295_856_8];
    const ERF: &'static [Self] = &[
        0.128_379_17,
        -0.376_126_02,
        0.112_831_31,
        -0.026_821_59,
        0.005_086_514,
        -0.000_654_381_7,
    ];
    const ERFCX: &'static [Self] = &[
        1.054_031_8,
        -0.804_651_8,
        0.453_914_34,
        -0.171_252_07,
        0.028_357_903,
        0.008_399_979,
        -0.004_796_626,
        -0.000_456_430_66,
        0.000_642_873_23,
        6.426_721e-5,
        -4.638_585_2e-5,
    ];
    const ERFCX_A: Self = 2.5;
    const EXP_END: Self = 115.0;
    const GAUSS_END: Self = 11.8;
    const TURNS_END: Self = 1e6;

    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.abs()
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.copysign(sign)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn upper(self) -> Self {
        f32::from_bits(self.to_bits() & !0x0fff)
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        f32::from_bits(self.to_bits() << 23)
    }
    #[inline(always)]
    fn quarter_turn<const FMA: bool>(self) -> (Self, Self) {
        // In f64, where two pieces of π/2 do.
        let x = f64::from(self);
        let sum = fma::<f64, FMA>(x, std::f64::consts::FRAC_2_PI, f64::MAGIC);
        let k = sum - f64::MAGIC;
        let r = fma::<f64, FMA>(-k, 1.5707963267341256, x);
        let r = fma::<f64, FMA>(-k, 6.077100506303966e-11, r);
        (r as f32, f32::from_bits(sum.to_bits() as u32))
    }
    #[inline(always)]
    fn turn(sin: Self, cos: Self, q: Self, more: u32) -> (Self, Self) {
        let q = q.to_bits().wrapping_add(more);
        let odd = q & 1 != 0;
        let (s, c) = (if odd { cos } else { sin }, if odd { sin } else { cos });
        (
            f32::from_bits(s.to_bits() ^ ((q & 2) << 30)),
            f32::from_bits(c.to_bits() ^ ((q.wrapping_add(1) & 2) << 30)),
        )
    }
    #[inline]
    fn sin_cos_scalar(self) -> (Self, Self) {
        self.sin_cos()
    }
}
