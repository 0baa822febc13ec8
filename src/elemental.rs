//! Elementals: elementary functions by their Taylor coefficients, exact in the tails.
//! This module knows numbers, but neither jets nor tapes.
//!
//! An elemental is **one function: its Taylor coefficients** c_k(z) = f⁽ᵏ⁾(z)/k!. Everything
//! that a tape needs follows from them: with z = z_0 + δ the value is Σ c_k δ^k, and the jet
//! of f′ is Σ (k+1) c_{k+1} δ^k. So a new elemental is a handful of lines, and its tails are a
//! question about one real variable, answered once.
//!
//! ```
//! use dualtape::elemental::Elemental;
//!
//! // tanh and its derivatives at 20, where 1 - tanh² is already 0
//! let c = Elemental::Tanh.taylor(20.0_f64, 2)?;
//! assert_eq!(c[0], 1.0);
//! assert!((c[1] / 1.6993417021166356e-17 - 1.0).abs() < 1e-15);
//! assert!((2.0 * c[2] / -3.3986834042332711e-17 - 1.0).abs() < 1e-15);
//! # Ok::<(), dualtape::Error>(())
//! ```
//!
//! # How
//!
//! Seeds (the value, the first derivative, what the recurrence needs) are made without
//! differences of nearly equal numbers, from e^(−|x|) or e^(−x²) times smooth factors; the
//! higher coefficients follow by the differential equation of the function, each term of
//! which carries the factor of the tail. Powers, roots and logarithms go by twofold
//! arithmetic. All of these are branch-free loops over lanes, which LLVM turns into vectors
//! for each instruction set; the rest (tan, inverse functions, non-integer powers) go a lane
//! at a time, their recurrences in twofold arithmetic as well.
//!
#![doc = include_str!("../docs/ulp.md")]
//!
//! # What it does not do
//!
//! Orders above [`MAX_ORDER`] + 1; complex or interval arguments; exact rounding. Arguments
//! of sin and cos beyond 10⁶ are right, but go a lane at a time.

mod cyclic;
mod float;
mod gauss;
mod logistic;
mod power;
mod rare;
mod recipe;

use crate::error::Error;
use crate::kernel::simd::{InstructionSet, Isa, Kernel};
pub use crate::plane::MAX_ORDER;
use crate::real::Real;
use num_dual::DualNum;
pub(crate) use recipe::Scratch;
use recipe::{COUNT, fill};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// An elementary function of one variable.
///
/// ```
/// use dualtape::elemental::Elemental;
///
/// let cube = Elemental::Powi(3);
/// assert_eq!(cube.to_string(), "powi(3)");
/// assert_eq!(cube.taylor(-2.0, 3)?, [-8.0, 12.0, -6.0, 1.0]);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Elemental {
    /// tanh x.
    Tanh,
    /// The logistic function 1/(1 + e^−x).
    Sigmoid,
    /// ln σ(x).
    LogSigmoid,
    /// ln(1 + e^x).
    Softplus,
    /// x·σ(x), also called swish.
    Silu,
    /// x·Φ(x), with the exact normal distribution function Φ.
    Gelu,
    /// sin x.
    Sin,
    /// cos x.
    Cos,
    /// tan x.
    Tan,
    /// e^x.
    Exp,
    /// e^x − 1.
    ExpM1,
    /// ln x; NaN below 0.
    Ln,
    /// ln(1 + x); NaN below −1.
    Ln1p,
    /// √x; NaN below 0, slope +∞ at 0.
    Sqrt,
    /// ∛x.
    Cbrt,
    /// 1/x.
    Recip,
    /// x^n for an integer n.
    Powi(i32),
    /// x^a; NaN below 0, unless a is an integer.
    Powf(f64),
    /// sinh x.
    Sinh,
    /// cosh x.
    Cosh,
    /// arcsin x; NaN beyond ±1.
    Asin,
    /// arccos x; NaN beyond ±1.
    Acos,
    /// arctan x.
    Atan,
    /// arsinh x.
    Asinh,
    /// arcosh x; NaN below 1.
    Acosh,
    /// artanh x; NaN beyond ±1.
    Atanh,
    /// The error function.
    Erf,
    /// |x|, with slope 0 at 0.
    Abs,
    /// max(x, 0), with slope 0 at 0.
    Relu,
    /// A function of the user; see [`Elemental::custom`].
    Custom(Custom),
    /// A derivative of another function, as nested reverse mode records it.
    Derivative(Derivative),
}

/// The derivative f⁽ᵏ⁾ of an elemental f. Its coefficients are those of f, shifted by k, and
/// as exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Derivative {
    of: Arc<Elemental>,
    order: usize,
}

/// What the derivative of an elemental is.
pub(crate) enum Slope {
    /// A number.
    Number(f64),
    /// A number times the argument.
    Argument(f64),
    /// Another elemental of the same argument.
    Elemental(Elemental),
}

/// How often a function may be differentiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smoothness {
    /// As often as one likes.
    Unlimited,
    /// Up to this order, almost everywhere.
    UpTo(usize),
}

impl Smoothness {
    /// Whether a jet of this order may pass.
    ///
    /// ```
    /// use dualtape::elemental::Elemental;
    /// assert!(Elemental::Relu.smoothness().allows(1));
    /// assert!(!Elemental::Relu.smoothness().allows(2));
    /// ```
    pub fn allows(self, order: usize) -> bool {
        match self {
            Self::Unlimited => true,
            Self::UpTo(most) => order <= most,
        }
    }
}

type Fill = dyn Fn(f64, &mut [f64]) + Send + Sync;

/// A function of the user, by its Taylor coefficients. Two are equal if they are clones of one.
#[derive(Clone)]
pub struct Custom {
    name: Arc<str>,
    smoothness: Smoothness,
    fill: Arc<Fill>,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom")
            .field("name", &self.name)
            .field("smoothness", &self.smoothness)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fill, &other.fill)
    }
}

impl fmt::Display for Elemental {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Elemental {
    /// A function of the user: `fill(z, c)` writes c\[k\] = f⁽ᵏ⁾(z)/k! for all k below `c.len()`.
    ///
    /// ```
    /// use dualtape::elemental::{Elemental, Smoothness};
    ///
    /// // a parabola, in a handful of lines
    /// let parabola = Elemental::custom("parabola", Smoothness::Unlimited, |z, c| {
    ///     c.fill(0.0);
    ///     for (c, value) in c.iter_mut().zip([z * z, 2.0 * z, 1.0]) {
    ///         *c = value;
    ///     }
    /// });
    /// assert_eq!(parabola.taylor(3.0, 3)?, [9.0, 6.0, 1.0, 0.0]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    pub fn custom(
        name: impl Into<String>,
        smoothness: Smoothness,
        fill: impl Fn(f64, &mut [f64]) + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(Custom {
            name: name.into().into(),
            smoothness,
            fill: Arc::new(fill),
        })
    }

    /// Its name in print.
    pub fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::LogSigmoid => "log_sigmoid",
            Self::Softplus => "softplus",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tan => "tan",
            Self::Exp => "exp",
            Self::ExpM1 => "exp_m1",
            Self::Ln => "ln",
            Self::Ln1p => "ln_1p",
            Self::Sqrt => "sqrt",
            Self::Cbrt => "cbrt",
            Self::Recip => "recip",
            Self::Powi(n) => return Cow::Owned(format!("powi({n})")),
            Self::Powf(a) => return Cow::Owned(format!("powf({a})")),
            Self::Sinh => "sinh",
            Self::Cosh => "cosh",
            Self::Asin => "asin",
            Self::Acos => "acos",
            Self::Atan => "atan",
            Self::Asinh => "asinh",
            Self::Acosh => "acosh",
            Self::Atanh => "atanh",
            Self::Erf => "erf",
            Self::Abs => "abs",
            Self::Relu => "relu",
            Self::Custom(custom) => return Cow::Owned(custom.name.to_string()),
            Self::Derivative(Derivative { of, order }) => {
                return Cow::Owned(match order {
                    1..=3 => format!("{of}{}", "'".repeat(*order)),
                    _ => format!("{of}^({order})"),
                });
            }
        })
    }

    /// The function of a name in print, but for those of the user.
    ///
    /// ```
    /// use dualtape::Elemental;
    ///
    /// for function in [Elemental::Tanh, Elemental::Powi(-2), Elemental::Powf(0.1)] {
    ///     assert_eq!(Elemental::named(&function.name()), Some(function));
    /// }
    /// assert_eq!(Elemental::named("Tanh?"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        const PLAIN: [Elemental; 27] = [
            Elemental::Tanh,
            Elemental::Sigmoid,
            Elemental::LogSigmoid,
            Elemental::Softplus,
            Elemental::Silu,
            Elemental::Gelu,
            Elemental::Sin,
            Elemental::Cos,
            Elemental::Tan,
            Elemental::Exp,
            Elemental::ExpM1,
            Elemental::Ln,
            Elemental::Ln1p,
            Elemental::Sqrt,
            Elemental::Cbrt,
            Elemental::Recip,
            Elemental::Sinh,
            Elemental::Cosh,
            Elemental::Asin,
            Elemental::Acos,
            Elemental::Atan,
            Elemental::Asinh,
            Elemental::Acosh,
            Elemental::Atanh,
            Elemental::Erf,
            Elemental::Abs,
            Elemental::Relu,
        ];
        let argument = |function: &str| {
            let rest = name.strip_prefix(function)?;
            rest.strip_prefix('(')?.strip_suffix(')')
        };
        if let Some(n) = argument("powi") {
            return n.parse().ok().map(Self::Powi);
        }
        if let Some(a) = argument("powf") {
            return a.parse().ok().map(Self::Powf);
        }
        PLAIN.into_iter().find(|function| function.name() == name)
    }

    /// The order of the jets that may pass through it.
    pub fn smoothness(&self) -> Smoothness {
        match self {
            Self::Abs | Self::Relu => Smoothness::UpTo(1),
            Self::Custom(custom) => custom.smoothness,
            Self::Derivative(Derivative { of, order }) => match of.smoothness() {
                Smoothness::UpTo(most) => Smoothness::UpTo(most.saturating_sub(*order)),
                Smoothness::Unlimited => Smoothness::Unlimited,
            },
            _ => Smoothness::Unlimited,
        }
    }

    /// The function f and the order k of which this is f⁽ᵏ⁾.
    pub(crate) fn family(&self) -> (&Self, usize) {
        match self {
            Self::Derivative(Derivative { of, order }) => (of, *order),
            _ => (self, 0),
        }
    }

    /// What tells it from others of its kind.
    pub(crate) fn bits(&self) -> u64 {
        match self {
            Self::Powi(n) => *n as u64,
            Self::Powf(a) => a.to_bits(),
            Self::Custom(custom) => Arc::as_ptr(&custom.fill).addr() as u64,
            _ => 0,
        }
    }

    /// f⁽ᵏ⁾, by another name where it has one that is no more work.
    fn derivative(&self, order: usize) -> Self {
        let order = match self {
            Self::Exp => 0,
            Self::Sin | Self::Cos => order % 4,
            Self::Sinh | Self::Cosh => order % 2,
            _ => order,
        };
        match order {
            0 => self.clone(),
            _ => Self::Derivative(Derivative {
                of: Arc::new(self.clone()),
                order,
            }),
        }
    }

    /// f′, as a rewrite of a tape records it.
    pub(crate) fn slope(&self) -> Slope {
        let (of, order) = self.family();
        let order = order + 1;
        match of {
            Self::Powi(n) if *n >= 0 && order + 1 >= *n as usize => {
                let factorial = (1..=*n).map(f64::from).product();
                match *n as usize {
                    n if order > n => Slope::Number(0.0),
                    n if order == n => Slope::Number(factorial),
                    _ => Slope::Argument(factorial),
                }
            }
            _ => Slope::Elemental(of.derivative(order)),
        }
    }

    /// (b, c) where f' = a + b·f + c·f²: the derivatives of f' follow from f, without loss
    /// in the tails, where all of them are small with f'.
    pub(crate) fn riccati(&self) -> Option<[f64; 2]> {
        match self {
            Self::Tanh => Some([0.0, -1.0]),
            Self::Sigmoid => Some([1.0, -1.0]),
            Self::Tan => Some([0.0, 1.0]),
            Self::Exp | Self::ExpM1 => Some([1.0, 0.0]),
            _ => None,
        }
    }

    /// c_0..=c_order at `z`: c_k = f⁽ᵏ⁾(z)/k!.
    ///
    /// ```
    /// use dualtape::elemental::Elemental;
    /// assert_eq!(Elemental::Exp.taylor(0.0, 3)?, [1.0, 1.0, 0.5, 1.0 / 6.0]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// An order above [`MAX_ORDER`] + 1, or for a derivative f⁽ᵏ⁾ above that less k.
    pub fn taylor<T: Real>(&self, z: T, order: usize) -> Result<Vec<T>, Error> {
        let mut out = vec![T::ZERO; order.min(COUNT) + 1];
        self.taylor_into(&[z], order, &mut out, InstructionSet::detect())?;
        Ok(out)
    }

    /// c_0..=c_order at each of `z`, with the instructions of `set`:
    /// c_k at `z[lane]` goes to `out[k * z.len() + lane]`. Any number of lanes will do.
    ///
    /// ```
    /// use dualtape::{InstructionSet, elemental::Elemental};
    ///
    /// let mut c = [0.0; 4];
    /// Elemental::Recip.taylor_into(&[1.0, 2.0], 1, &mut c, InstructionSet::detect())?;
    /// assert_eq!(c, [1.0, 0.5, -1.0, -0.25]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`taylor`](Self::taylor); `out` shorter than (order + 1)·`z.len()`.
    pub fn taylor_into<T: Real>(
        &self,
        z: &[T],
        order: usize,
        out: &mut [T],
        set: InstructionSet,
    ) -> Result<(), Error> {
        let limit = MAX_ORDER + 1 - self.family().1;
        if order > limit {
            return Err(Error::OutOfRange {
                what: format!("the order of the coefficients of `{self}`"),
                given: order.to_string(),
                expected: format!("at most {limit}"),
            });
        }
        let room = (order + 1) * z.len();
        if out.len() < room {
            return Err(Error::length(
                format!("room for the coefficients of `{self}`"),
                out.len(),
                room,
            ));
        }
        set.dispatch(Batch {
            elemental: self,
            z,
            order,
            out,
        });
        Ok(())
    }

    /// The value.
    pub(crate) fn value(&self, z: f64) -> f64 {
        let mut value = [0.0];
        InstructionSet::detect().dispatch(Batch {
            elemental: self,
            z: &[z],
            order: 0,
            out: &mut value,
        });
        value[0]
    }

    /// The coefficients at a number of lanes that is a multiple of 16: plane k of `out` holds c_k.
    /// The hot path, to be called within `Kernel::run` with `FMA` = `Isa::FMA`.
    #[inline(always)]
    pub(crate) fn coefficients<T: Real, const FMA: bool>(
        &self,
        z: &[T],
        order: usize,
        out: &mut [T],
        scratch: &mut Scratch,
    ) {
        debug_assert!(
            z.len().is_multiple_of(16) && order < COUNT && out.len() >= (order + 1) * z.len()
        );
        macro_rules! vector {
            ($recipe:expr) => {
                if size_of::<T>() == size_of::<f32>() {
                    fill::<T, f32, _, FMA>($recipe, z, order, out, &mut scratch.single)
                } else {
                    fill::<T, f64, _, FMA>($recipe, z, order, out, &mut scratch.double)
                }
            };
        }
        match self {
            Self::Tanh => vector!(logistic::Tanh),
            Self::Sigmoid => vector!(logistic::Sigmoid),
            Self::LogSigmoid => vector!(logistic::Softplus { sign: -1.0 }),
            Self::Softplus => vector!(logistic::Softplus { sign: 1.0 }),
            Self::Silu => vector!(logistic::Silu),
            Self::Gelu => vector!(gauss::Gelu),
            Self::Erf => vector!(gauss::Erf),
            Self::Sin => vector!(cyclic::Sin { quarters: 0 }),
            Self::Cos => vector!(cyclic::Sin { quarters: 1 }),
            Self::Exp => vector!(cyclic::ExpOf),
            Self::Sinh => vector!(cyclic::Sinh { even: false }),
            Self::Cosh => vector!(cyclic::Sinh { even: true }),
            Self::Abs => vector!(cyclic::Abs),
            Self::Relu => vector!(cyclic::Relu),
            Self::Recip => power::powi::<T, FMA>(-1, z, order, out),
            Self::Powi(n) => power::powi::<T, FMA>(*n, z, order, out),
            Self::Powf(a) if *a == f64::from(*a as i32) => {
                power::powi::<T, FMA>(*a as i32, z, order, out)
            }
            Self::Sqrt => power::sqrt::<T, FMA>(z, order, out),
            Self::Cbrt => power::cbrt::<T, FMA>(z, order, out),
            Self::Ln => power::ln::<T, FMA>(z, order, out),
            Self::Ln1p => power::ln_1p::<T, FMA>(z, order, out),
            Self::Powf(a) => by_lane(&|x, c| rare::powf(*a, x, c), z, order, out),
            Self::Tan => by_lane(&rare::tan, z, order, out),
            Self::ExpM1 => by_lane(&rare::exp_m1, z, order, out),
            Self::Asin => by_lane(&rare::asin, z, order, out),
            Self::Acos => by_lane(&rare::acos, z, order, out),
            Self::Atan => by_lane(&rare::atan, z, order, out),
            Self::Asinh => by_lane(&rare::asinh, z, order, out),
            Self::Acosh => by_lane(&rare::acosh, z, order, out),
            Self::Atanh => by_lane(&rare::atanh, z, order, out),
            Self::Custom(custom) => by_lane(&*custom.fill, z, order, out),
            Self::Derivative(derivative) => {
                by_lane(&|x, c| derivative.fill(x, c), z, order, out);
            }
        }
    }

    /// What makes its first coefficients in registers, if that is the shorter way: the same
    /// numbers as [`Self::coefficients`], where products and sums are one instruction.
    #[inline(always)]
    pub(crate) fn in_registers<S: Isa>(&self) -> Option<logistic::Tanh> {
        (S::FMA && *self == Self::Tanh).then_some(logistic::Tanh)
    }

    /// Its value on any number of num-dual: the coefficients at the real part, and Taylor's
    /// series in the rest, which ends. So the tails are ours, and not num-dual's.
    ///
    /// Where x is infinite and the function runs into an asymptote, the derivatives are
    /// those of the asymptote.
    ///
    /// ```
    /// use dualtape::elemental::Elemental;
    /// use num_dual::{Dual64, DualNum};
    ///
    /// let x = Dual64::from(400.0).derivative();
    /// assert_eq!(Elemental::Tanh.apply(x), Dual64::new(1.0, 0.0));
    /// assert!(x.tanh().eps.is_nan());
    /// ```
    pub fn apply<D: DualNum<Primitive = f64> + Copy>(&self, x: D) -> D {
        const { assert!(D::NDERIV < COUNT, "derivatives of too high an order") };
        let re = x.re();
        let order = D::NDERIV;
        let mut coefficients = [0.0; COUNT];
        let c = &mut coefficients[..=order];
        InstructionSet::detect().dispatch(Batch {
            elemental: self,
            z: &[re],
            order,
            out: c,
        });
        if re.is_infinite() && c.iter().skip(2).all(|&c| c == 0.0) {
            return if order == 0 || c[1] == 0.0 {
                D::from(c[0])
            } else {
                x * c[1]
            };
        }
        let delta = x - re;
        let mut power = delta;
        let mut sum = D::from(c[0]);
        for (k, &c) in c.iter().enumerate().skip(1) {
            if k > 1 {
                power *= delta;
            }
            sum += if c.is_infinite() {
                // Not ∞ · 0 = NaN where a part is 0.
                power * f64::MAX.copysign(c) * f64::MAX * f64::MAX
            } else {
                power * c
            };
        }
        sum
    }
}

impl Derivative {
    /// (j + k)!/j! · c_{j+k} of f. A plan asks f itself, and does not come here.
    fn fill(&self, z: f64, out: &mut [f64]) {
        let mut all = [0.0; COUNT];
        let all = &mut all[..(out.len() + self.order).min(COUNT)];
        InstructionSet::detect().dispatch(Batch {
            elemental: &self.of,
            z: &[z],
            order: all.len() - 1,
            out: all,
        });
        for (j, (out, c)) in out.iter_mut().zip(&all[self.order..]).enumerate() {
            *out = falling(j + self.order, self.order) * c;
        }
    }
}

/// n·(n − 1)·… with k factors: what k derivatives make of the n-th Taylor coefficient.
pub(crate) fn falling(n: usize, k: usize) -> f64 {
    (0..k).map(|i| (n - i) as f64).product()
}

/// Any number of lanes, in padded blocks.
struct Batch<'a, T> {
    elemental: &'a Elemental,
    z: &'a [T],
    order: usize,
    out: &'a mut [T],
}

impl<T: Real> Kernel for Batch<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _: S) {
        const BLOCK: usize = 64;
        let lanes = self.z.len();
        let mut z = [T::ZERO; BLOCK];
        let mut c = [T::ZERO; BLOCK * COUNT];
        let mut scratch = Scratch::default();
        let mut at = 0;
        for block in self.z.chunks(BLOCK) {
            let n = block.len();
            let padded = n.next_multiple_of(16);
            z[..n].copy_from_slice(block);
            z[n..padded].fill(T::ONE);
            let c = &mut c[..(self.order + 1) * padded];
            if S::FMA {
                self.elemental
                    .coefficients::<T, true>(&z[..padded], self.order, c, &mut scratch);
            } else {
                self.elemental
                    .coefficients::<T, false>(&z[..padded], self.order, c, &mut scratch);
            }
            for (k, c) in c.chunks(padded).enumerate() {
                self.out[k * lanes + at..][..n].copy_from_slice(&c[..n]);
            }
            at += n;
        }
    }
}

/// A lane at a time.
#[inline(never)]
fn by_lane<T: Real>(fill: &dyn Fn(f64, &mut [f64]), z: &[T], order: usize, out: &mut [T]) {
    let mut c = [0.0; COUNT];
    for (lane, x) in z.iter().enumerate() {
        fill(x.to_f64(), &mut c[..=order]);
        for (k, &c) in c[..=order].iter().enumerate() {
            out[k * z.len() + lane] = T::from_f64(c);
        }
    }
}
