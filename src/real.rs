//! The floating-point types of the replay: `f32` and `f64`, with the few operations
//! that the kernels need. Not `num_traits::Float`: its methods clash with the jets'.

use crate::kernel::simd::Isa;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// `f32` or `f64`.
pub trait Real:
    Lanes
    + Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + std::fmt::Debug
    + std::fmt::Display
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Distance from 1 to the next larger number.
    const EPSILON: Self;

    /// The nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// The same number, exactly.
    fn to_f64(self) -> f64;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

/// Seals [`Real`] and holds what only kernels see.
pub(crate) mod lanes {
    use crate::kernel::simd::Isa;

    /// [`Real`] on vectors: the part that kernels written with `pulp` see.
    pub trait Lanes: Copy {
        /// A vector register.
        type Vector<S: pulp::Simd>: Copy;

        /// Numbers in a vector.
        fn lanes<S: pulp::Simd>() -> usize;
        /// A slice as vectors, and what is left over.
        fn as_vectors<S: pulp::Simd>(x: &[Self]) -> (&[Self::Vector<S>], &[Self]);
        /// A slice as vectors, and what is left over.
        fn as_vectors_mut<S: pulp::Simd>(x: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]);
        /// The same number in each lane.
        fn splat<S: pulp::Simd>(simd: S, x: Self) -> Self::Vector<S>;
        /// `a + b`.
        fn add<S: pulp::Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
        /// `a − b`.
        fn sub<S: pulp::Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
        /// `a * b`.
        fn mul<S: pulp::Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
        /// `a / b`.
        fn div<S: pulp::Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
        /// `−a`.
        fn neg<S: pulp::Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
        /// `|a|`.
        fn abs<S: pulp::Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
        /// `|a|` with the sign of `sign`.
        fn copysign<S: pulp::Simd>(
            simd: S,
            a: Self::Vector<S>,
            sign: Self::Vector<S>,
        ) -> Self::Vector<S>;
        /// `then` where `a > b`, else `other`.
        fn if_greater<S: pulp::Simd>(
            simd: S,
            a: Self::Vector<S>,
            b: Self::Vector<S>,
            then: Self::Vector<S>,
            other: Self::Vector<S>,
        ) -> Self::Vector<S>;
        /// The lowest bits of a number as the exponent of another: 2^k, if they are k and the bias.
        fn exponent<S: pulp::Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
        /// `a * b + c`, in one rounding where that is an instruction.
        fn mul_add<S: Isa>(
            simd: S,
            a: Self::Vector<S>,
            b: Self::Vector<S>,
            c: Self::Vector<S>,
        ) -> Self::Vector<S>;
        /// Sum of the lanes.
        fn reduce_sum<S: pulp::Simd>(simd: S, a: Self::Vector<S>) -> Self;
    }
}
pub(crate) use lanes::Lanes;

/// Methods of [`Lanes`] that are one operation of `pulp`.
macro_rules! lanewise {
    ($($name:ident = $op:ident($($x:ident),*);)*) => {$(
        #[inline(always)]
        fn $name<S: pulp::Simd>(simd: S, $($x: Self::Vector<S>),*) -> Self::Vector<S> {
            simd.$op($($x),*)
        }
    )*};
}

macro_rules! real {
    ($t:ty, $vector:ident, $lanes:ident, $as_simd:ident, $as_mut_simd:ident,
     $splat:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $neg:ident, $abs:ident,
     $and:ident, $or:ident, $greater:ident, $select:ident, $mul_add:ident, $reduce_sum:ident) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const EPSILON: Self = <$t>::EPSILON;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }

        impl Lanes for $t {
            type Vector<S: pulp::Simd> = S::$vector;

            #[inline(always)]
            fn lanes<S: pulp::Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn as_vectors<S: pulp::Simd>(x: &[Self]) -> (&[Self::Vector<S>], &[Self]) {
                S::$as_simd(x)
            }
            #[inline(always)]
            fn as_vectors_mut<S: pulp::Simd>(
                x: &mut [Self],
            ) -> (&mut [Self::Vector<S>], &mut [Self]) {
                S::$as_mut_simd(x)
            }
            #[inline(always)]
            fn splat<S: pulp::Simd>(simd: S, x: Self) -> Self::Vector<S> {
                simd.$splat(x)
            }
            lanewise! {
                add = $add(a, b);
                sub = $sub(a, b);
                mul = $mul(a, b);
                div = $div(a, b);
                neg = $neg(a);
                abs = $abs(a);
            }
            #[inline(always)]
            fn copysign<S: pulp::Simd>(
                simd: S,
                a: Self::Vector<S>,
                sign: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$or(simd.$abs(a), simd.$and(simd.$splat(-0.0), sign))
            }
            #[inline(always)]
            fn if_greater<S: pulp::Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                then: Self::Vector<S>,
                other: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$select(simd.$greater(a, b), then, other)
            }
            #[inline(always)]
            fn exponent<S: pulp::Simd>(_: S, mut a: Self::Vector<S>) -> Self::Vector<S> {
                // A loop over the numbers, which becomes one shift of them all.
                for x in pulp::bytemuck::cast_slice_mut::<_, $t>(std::slice::from_mut(&mut a)) {
                    *x = <$t>::from_bits(x.to_bits() << (<$t>::MANTISSA_DIGITS - 1));
                }
                a
            }
            #[inline(always)]
            fn mul_add<S: Isa>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                c: Self::Vector<S>,
            ) -> Self::Vector<S> {
                if S::FMA {
                    simd.$mul_add(a, b, c)
                } else {
                    simd.$add(simd.$mul(a, b), c)
                }
            }
            #[inline(always)]
            fn reduce_sum<S: pulp::Simd>(simd: S, a: Self::Vector<S>) -> Self {
                simd.$reduce_sum(a)
            }
        }
    };
}

real!(
    f32,
    f32s,
    F32_LANES,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    neg_f32s,
    abs_f32s,
    and_f32s,
    or_f32s,
    greater_than_f32s,
    select_f32s,
    mul_add_f32s,
    reduce_sum_f32s
);
real!(
    f64,
    f64s,
    F64_LANES,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    neg_f64s,
    abs_f64s,
    and_f64s,
    or_f64s,
    greater_than_f64s,
    select_f64s,
    mul_add_f64s,
    reduce_sum_f64s
);
