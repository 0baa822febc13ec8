//! The arithmetic of fields, and all that `num_dual::DualNum` asks, so that functions
//! generic over it run inside a recording.

use super::{Field, Handle, linear, mistake, push_rowwise, select};
use crate::elemental::Elemental;
use crate::error::Error;
use crate::tape::{Op, Source};
use num_dual::{DualNum, DualStruct, Mappable};
use num_traits::{FromPrimitive, Inv, Num, One, Signed, Zero};
use std::cmp::Ordering;
use std::fmt;
use std::iter::{Product, Sum};
use std::ops::{
    Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Rem, RemAssign, Sub, SubAssign,
};
use std::panic::Location;

fn add(a: Field, b: Field, source: Source) -> Field {
    match (a.0, b.0) {
        (Handle::Const(x), Handle::Const(y)) => Field::from(x + y),
        (Handle::Const(x), _) => shifted(b, x, source),
        (_, Handle::Const(y)) => shifted(a, y, source),
        _ => linear(&[a, b], &[1.0, 1.0], 0.0, source),
    }
}

fn shifted(a: Field, shift: f64, source: Source) -> Field {
    if shift == 0.0 {
        return a;
    }
    linear(&[a], &[1.0], shift, source)
}

fn sub(a: Field, b: Field, source: Source) -> Field {
    match (a.0, b.0) {
        (Handle::Const(x), Handle::Const(y)) => Field::from(x - y),
        (Handle::Const(x), _) => linear(&[b], &[-1.0], x, source),
        (_, Handle::Const(y)) => shifted(a, -y, source),
        _ => linear(&[a, b], &[1.0, -1.0], 0.0, source),
    }
}

fn scaled(a: Field, factor: f64, source: Source) -> Field {
    if factor == 1.0 {
        return a;
    }
    linear(&[a], &[factor], 0.0, source)
}

fn mul(a: Field, b: Field, source: Source) -> Field {
    match (a.0, b.0) {
        (Handle::Const(x), Handle::Const(y)) => Field::from(x * y),
        (Handle::Const(x), _) => scaled(b, x, source),
        (_, Handle::Const(y)) => scaled(a, y, source),
        _ => push_rowwise(Op::Product, &[a, b], source),
    }
}

fn div(a: Field, b: Field, source: Source) -> Field {
    match (a.0, b.0) {
        (Handle::Const(x), Handle::Const(y)) => Field::from(x / y),
        (_, Handle::Const(y)) => scaled(a, 1.0 / y, source),
        _ => mul(a, function(b, Elemental::Recip, source), source),
    }
}

fn function(z: Field, elemental: Elemental, source: Source) -> Field {
    match z.0 {
        Handle::Const(x) => Field::from(elemental.value(x)),
        Handle::Node { .. } => push_rowwise(Op::Elemental(elemental), &[z], source),
    }
}

fn rem(a: Field, b: Field, source: Source) -> Field {
    match (a.0, b.0) {
        (Handle::Const(x), Handle::Const(y)) => Field::from(x % y),
        _ => mistake(Error::NotRecordable {
            what: "the remainder `%`".to_owned(),
            instead: "it jumps; for a periodic coordinate use its sine and cosine".to_owned(),
            at: source.to_string(),
        }),
    }
}

macro_rules! operator {
    ($trait:ident $method:ident, $assign:ident $assign_method:ident, $rule:ident) => {
        impl $trait for Field {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: Field) -> Field {
                $rule(self, other, Location::caller())
            }
        }
        impl $trait<&Field> for Field {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: &Field) -> Field {
                $rule(self, *other, Location::caller())
            }
        }
        impl $trait<Field> for &Field {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: Field) -> Field {
                $rule(*self, other, Location::caller())
            }
        }
        impl $trait for &Field {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: &Field) -> Field {
                $rule(*self, *other, Location::caller())
            }
        }
        impl $trait<f64> for Field {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: f64) -> Field {
                $rule(self, Field::from(other), Location::caller())
            }
        }
        impl $trait<Field> for f64 {
            type Output = Field;
            #[track_caller]
            fn $method(self, other: Field) -> Field {
                $rule(Field::from(self), other, Location::caller())
            }
        }
        impl $assign for Field {
            #[track_caller]
            fn $assign_method(&mut self, other: Field) {
                *self = $rule(*self, other, Location::caller());
            }
        }
        impl $assign<f64> for Field {
            #[track_caller]
            fn $assign_method(&mut self, other: f64) {
                *self = $rule(*self, Field::from(other), Location::caller());
            }
        }
    };
}

operator!(Add add, AddAssign add_assign, add);
operator!(Sub sub, SubAssign sub_assign, sub);
operator!(Mul mul, MulAssign mul_assign, mul);
operator!(Div div, DivAssign div_assign, div);
operator!(Rem rem, RemAssign rem_assign, rem);

impl Neg for Field {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        sub(Self::from(-0.0), self, Location::caller())
    }
}
impl Neg for &Field {
    type Output = Field;
    #[track_caller]
    fn neg(self) -> Field {
        -*self
    }
}

impl From<f64> for Field {
    fn from(value: f64) -> Self {
        Self(Handle::Const(value))
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Handle::Const(value) => write!(f, "{value}"),
            Handle::Node { id, .. } => write!(f, "%{id}"),
        }
    }
}
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Sum for Field {
    #[track_caller]
    fn sum<I: Iterator<Item = Self>>(fields: I) -> Self {
        let source = Location::caller();
        fields.fold(Self::from(0.0), |a, b| add(a, b, source))
    }
}
impl<'a> Sum<&'a Field> for Field {
    #[track_caller]
    fn sum<I: Iterator<Item = &'a Field>>(fields: I) -> Self {
        fields.copied().sum()
    }
}
impl Product for Field {
    #[track_caller]
    fn product<I: Iterator<Item = Self>>(fields: I) -> Self {
        let source = Location::caller();
        fields.fold(Self::from(1.0), |a, b| mul(a, b, source))
    }
}

// Comparisons. Between two numbers they are what they are; a recorded value has no number.

#[track_caller]
fn compared(a: Handle, b: Handle, operation: &str) -> (f64, f64) {
    match (a, b) {
        (Handle::Const(x), Handle::Const(y)) => (x, y),
        _ => uncomparable(operation),
    }
}

#[track_caller]
fn uncomparable(operation: &str) -> ! {
    panic!(
        "{}: `{operation}` of a recorded value, which has no number yet; \
         write `select(condition, a, b)` in place of a branch",
        Location::caller()
    )
}

impl PartialEq for Field {
    #[track_caller]
    fn eq(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, "==");
        x == y
    }
    #[expect(
        clippy::partialeq_ne_impl,
        reason = "the provided one hides the caller"
    )]
    #[track_caller]
    fn ne(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, "!=");
        x != y
    }
}
impl PartialOrd for Field {
    #[track_caller]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (x, y) = compared(self.0, other.0, "partial_cmp");
        x.partial_cmp(&y)
    }
    #[track_caller]
    fn lt(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, "<");
        x < y
    }
    #[track_caller]
    fn le(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, "<=");
        x <= y
    }
    #[track_caller]
    fn gt(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, ">");
        x > y
    }
    #[track_caller]
    fn ge(&self, other: &Self) -> bool {
        let (x, y) = compared(self.0, other.0, ">=");
        x >= y
    }
}
impl PartialEq<f64> for Field {
    #[track_caller]
    fn eq(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), "==");
        x == y
    }
    #[expect(
        clippy::partialeq_ne_impl,
        reason = "the provided one hides the caller"
    )]
    #[track_caller]
    fn ne(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), "!=");
        x != y
    }
}
impl PartialOrd<f64> for Field {
    #[track_caller]
    fn partial_cmp(&self, other: &f64) -> Option<Ordering> {
        let (x, y) = compared(self.0, Handle::Const(*other), "partial_cmp");
        x.partial_cmp(&y)
    }
    #[track_caller]
    fn lt(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), "<");
        x < y
    }
    #[track_caller]
    fn le(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), "<=");
        x <= y
    }
    #[track_caller]
    fn gt(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), ">");
        x > y
    }
    #[track_caller]
    fn ge(&self, other: &f64) -> bool {
        let (x, y) = compared(self.0, Handle::Const(*other), ">=");
        x >= y
    }
}

impl Zero for Field {
    fn zero() -> Self {
        Self::from(0.0)
    }
    #[track_caller]
    fn is_zero(&self) -> bool {
        *self == 0.0
    }
}
impl One for Field {
    fn one() -> Self {
        Self::from(1.0)
    }
    #[track_caller]
    fn is_one(&self) -> bool {
        *self == 1.0
    }
}
impl Num for Field {
    type FromStrRadixErr = num_traits::ParseFloatError;
    fn from_str_radix(text: &str, radix: u32) -> Result<Self, Self::FromStrRadixErr> {
        f64::from_str_radix(text, radix).map(Self::from)
    }
}
impl FromPrimitive for Field {
    fn from_i64(n: i64) -> Option<Self> {
        f64::from_i64(n).map(Self::from)
    }
    fn from_u64(n: u64) -> Option<Self> {
        f64::from_u64(n).map(Self::from)
    }
    fn from_f64(x: f64) -> Option<Self> {
        Some(Self::from(x))
    }
}
impl Inv for Field {
    type Output = Self;
    #[track_caller]
    fn inv(self) -> Self {
        function(self, Elemental::Recip, Location::caller())
    }
}
impl Signed for Field {
    #[track_caller]
    fn abs(&self) -> Self {
        function(*self, Elemental::Abs, Location::caller())
    }
    #[track_caller]
    fn abs_sub(&self, other: &Self) -> Self {
        function(*self - *other, Elemental::Relu, Location::caller())
    }
    #[track_caller]
    fn signum(&self) -> Self {
        select(self.at_least(0.0), 1.0, -1.0)
    }
    #[track_caller]
    fn is_positive(&self) -> bool {
        *self > 0.0
    }
    #[track_caller]
    fn is_negative(&self) -> bool {
        *self < 0.0
    }
}

impl DualStruct for Field {
    type Real = f64;
    type Inner = f64;
    #[track_caller]
    fn re(&self) -> f64 {
        match self.0 {
            Handle::Const(value) => value,
            Handle::Node { .. } => uncomparable("re"),
        }
    }
    fn from_inner(inner: &f64) -> Self {
        Self::from(*inner)
    }
}
impl Mappable<Self> for Field {
    type Output<O> = O;
    fn map_dual<M: Fn(Self) -> O, O>(self, f: M) -> O {
        f(self)
    }
}

/// Elementary functions, both inherent (so that recording needs no import) and for
/// `DualNum`.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $elemental:ident;)+) => {
        impl Field {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self) -> Self {
                    function(self, Elemental::$elemental, Location::caller())
                }
            )+

            /// `self` to an integer power.
            #[track_caller]
            pub fn powi(self, n: i32) -> Self {
                function(self, Elemental::Powi(n), Location::caller())
            }
            /// `self` to a real power.
            #[track_caller]
            pub fn powf(self, p: f64) -> Self {
                function(self, Elemental::Powf(p), Location::caller())
            }
            /// Absolute value. Serves derivatives of first order only.
            #[track_caller]
            pub fn abs(self) -> Self {
                function(self, Elemental::Abs, Location::caller())
            }
            /// The angle of the point (`x`, `self`) in (−π, π].
            #[track_caller]
            pub fn atan2(self, x: impl Into<Self>) -> Self {
                atan2(self, x.into())
            }
            /// Sine and cosine.
            #[track_caller]
            pub fn sin_cos(self) -> (Self, Self) {
                (self.sin(), self.cos())
            }
        }

        impl DualNum for Field {
            type Primitive = f64;
            const NDERIV: usize = 0;
            type InnerDual = f64;
            fn from_re(re: f64) -> Self {
                Self::from(re)
            }
            #[track_caller]
            fn scale(self, factor: &f64) -> Self {
                self * *factor
            }
            $(
                #[track_caller]
                fn $name(&self) -> Self {
                    function(*self, Elemental::$elemental, Location::caller())
                }
            )+
            #[track_caller]
            fn powi(&self, n: i32) -> Self {
                Self::powi(*self, n)
            }
            #[track_caller]
            fn powf(&self, p: f64) -> Self {
                Self::powf(*self, p)
            }
            #[track_caller]
            fn exp2(&self) -> Self {
                (*self * std::f64::consts::LN_2).exp()
            }
            #[track_caller]
            fn log(&self, base: f64) -> Self {
                self.ln() / base.ln()
            }
            #[track_caller]
            fn log2(&self) -> Self {
                self.ln() * std::f64::consts::LOG2_E
            }
            #[track_caller]
            fn log10(&self) -> Self {
                self.ln() * std::f64::consts::LOG10_E
            }
            #[track_caller]
            fn sin_cos(&self) -> (Self, Self) {
                (self.sin(), self.cos())
            }
            #[track_caller]
            fn atan2(&self, x: Self) -> Self {
                atan2(*self, x)
            }
            #[track_caller]
            fn sph_j0(&self) -> Self {
                no_bessel(Location::caller())
            }
            #[track_caller]
            fn sph_j1(&self) -> Self {
                no_bessel(Location::caller())
            }
            #[track_caller]
            fn sph_j2(&self) -> Self {
                no_bessel(Location::caller())
            }
        }
    };
}

functions! {
    /// Hyperbolic tangent.
    tanh Tanh;
    /// Sine.
    sin Sin;
    /// Cosine.
    cos Cos;
    /// Tangent.
    tan Tan;
    /// Exponential.
    exp Exp;
    /// `exp(self) − 1`.
    exp_m1 ExpM1;
    /// Natural logarithm.
    ln Ln;
    /// `ln(1 + self)`.
    ln_1p Ln1p;
    /// Square root.
    sqrt Sqrt;
    /// Cubic root.
    cbrt Cbrt;
    /// Reciprocal.
    recip Recip;
    /// Hyperbolic sine.
    sinh Sinh;
    /// Hyperbolic cosine.
    cosh Cosh;
    /// Arcsine.
    asin Asin;
    /// Arccosine.
    acos Acos;
    /// Arctangent.
    atan Atan;
    /// Area hyperbolic sine.
    asinh Asinh;
    /// Area hyperbolic cosine.
    acosh Acosh;
    /// Area hyperbolic tangent.
    atanh Atanh;
}

/// Functions that `DualNum` does not have.
macro_rules! more_functions {
    ($($(#[$doc:meta])* $name:ident $elemental:ident;)+) => {
        impl Field {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self) -> Self {
                    function(self, Elemental::$elemental, Location::caller())
                }
            )+
        }
    };
}

more_functions! {
    /// The logistic function `1 / (1 + exp(−self))`.
    sigmoid Sigmoid;
    /// `ln(sigmoid(self))`.
    log_sigmoid LogSigmoid;
    /// `ln(1 + exp(self))`.
    softplus Softplus;
    /// `self · sigmoid(self)`.
    silu Silu;
    /// `self · Φ(self)`, Φ the normal distribution (exact, by erf).
    gelu Gelu;
    /// The error function.
    erf Erf;
    /// `max(self, 0)`. Serves derivatives of first order only.
    relu Relu;
}

#[track_caller]
fn no_bessel(source: Source) -> Field {
    mistake(Error::NotRecordable {
        what: "a spherical Bessel function".to_owned(),
        instead: "give its Taylor coefficients by `Elemental::custom`".to_owned(),
        at: source.to_string(),
    })
}

/// By arctangents of the smaller over the larger of the two, so that no ratio overflows;
/// the constants between the sectors have no derivative.
#[track_caller]
fn atan2(y: Field, x: Field) -> Field {
    use std::f64::consts::{FRAC_PI_2, PI};
    if let (Handle::Const(y), Handle::Const(x)) = (y.0, x.0) {
        return Field::from(y.atan2(x));
    }
    let flat = y.abs().at_most(x.abs());
    // The division of the branch that is not taken must not be by 0.
    let ratio = select(flat, y, -x) / select(flat, x, y);
    let behind = select(y.at_least(0.0), PI, -PI);
    let offset = select(
        flat,
        select(x.below(0.0), behind, 0.0),
        select(y.at_least(0.0), FRAC_PI_2, -FRAC_PI_2),
    );
    ratio.atan() + offset
}
