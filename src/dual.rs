//! The scalar companion: a Wengert list over num-dual numbers, swept once in reverse.
//!
//! It shows the idea of the crate at one point, with numbers that can be read, and it is an
//! oracle for tests. It is not the engine: it records numbers, one node for each scalar, and
//! knows nothing of points, planes, plans or threads.
//!
//! # The idea in one example
//!
//! Every value on the list is a dual number, so y and y' come out of the forward pass. The local
//! partials are dual numbers too, and so are the adjoints. **One** reverse sweep then gives both
//! ∂y/∂θ and ∂y'/∂θ:
//!
//! ```
//! use dualtape::dual::Wengert;
//! use num_dual::Dual64;
//!
//! // y = tanh(w t), at w = 0.3 and t = 0.5; the tangent of t is 1
//! Wengert::record(|tape| {
//!     let w = tape.variable(Dual64::from(0.3));
//!     let t = tape.variable(Dual64::from(0.5).derivative());
//!     let y = (w * t).tanh();
//!
//!     let sech2 = 0.15_f64.cosh().powi(-2);
//!     assert!((y.value().eps - 0.3 * sech2).abs() < 1e-15);       // y' = w sech²(w t)
//!
//!     let w_bar = y.sweep(Dual64::from(1.0)).of(w);
//!     assert!((w_bar.re - 0.5 * sech2).abs() < 1e-15);            // ∂y/∂w = t sech²
//!     let mixed = sech2 - 2.0 * 0.15 * sech2 * 0.15_f64.tanh();
//!     assert!((w_bar.eps - mixed).abs() < 1e-15);                 // ∂y'/∂w
//! });
//! ```
//!
//! # Seeds
//!
//! With the seed 1 the adjoint of a real parameter θ is ∂y/∂θ *in the algebra*: its parts are
//! ∂y/∂θ, ∂y'/∂θ, …. A loss L(y, y', …) has an adjoint for each part, c = (∂L/∂y, ∂L/∂y', …),
//! and wants the one number Σ_k c_k ∂y⁽ᵏ⁾/∂θ. [`TopElement::seed`] turns c into a seed;
//! [`Adjoints::gradient`] then reads that number off.
//!
//! ```
//! use dualtape::dual::{TopElement, Wengert};
//! use num_dual::Dual64;
//!
//! // the loss R² with R = y' + y, y = w t², at w = 3 and t = 2: R = 8 w, dL/dw = 16 R
//! let gradient = Wengert::record(|tape| {
//!     let w = tape.variable(Dual64::from(3.0));
//!     let t = tape.variable(Dual64::from(2.0).derivative());
//!     let y = w * t * t;
//!     let residual = y.value().eps + y.value().re;
//!     let y_bar = Dual64::new(2.0 * residual, 2.0 * residual);    // (∂L/∂y, ∂L/∂y')
//!     y.sweep(y_bar.seed()).gradient(w)
//! });
//! assert_eq!(gradient, 16.0 * 24.0);
//! ```
//!
//! # When multiplication is enough, and when it is not
//!
//! The reverse sweep of a product v = a·b must take each part of v̄ back to the parts of ā: that is
//! `contract`, multiplication by b transposed. An algebra has a *top element* when one product
//! pairing does the job: ⟨f, s⟩ = (the top part of f·s). Then the transpose of multiplication is
//! multiplication again, with the parts of the seed in reverse order, and this module needs no more
//! than that. `f64`, `Dual64` (top ε), `Dual2_64`, `Dual3_64` (top: the highest derivative) and
//! `HyperDual64` (top ε₁ε₂) are of this kind.
//!
//! The planes {1, t, x, xx} of Burgers' equation are not. Both t and xx vanish when multiplied by
//! anything without a value part, so for every linear reading λ the element λ(xx)·t − λ(t)·xx
//! is invisible: λ of its product with any s is 0. No seed can ask for its coefficient. The engine
//! therefore contracts with the product table itself. It must do so for a second reason: `u.d(x)`
//! may stand anywhere in an equation, and a derivation is linear over numbers, but not over jets.
//!
//! # Limits
//!
//! Values come from num-dual, and so do their tails: its `tanh` is sinh/cosh, whose derivatives
//! lose their digits as |x| grows, have wrong signs at 19, and are NaN from 356 on.

use num_dual::{
    Dual, Dual2_64, Dual3_64, Dual64, DualNum, HyperDual64, first_derivative as with_derivative,
};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A Wengert list: every operation on its variables, in the order in which it was done.
///
/// `'t` is the list's name in the type system. Each call of [`record`](Wengert::record) has a new
/// one, so variables of two lists cannot meet in one expression:
///
/// ```compile_fail
/// use dualtape::dual::Wengert;
/// Wengert::record(|a| {
///     let x = a.variable(1.0);
///     Wengert::record(|b| {
///         let y = b.variable(2.0);
///         (x * y).value()            // error: `x` belongs to `a`, `y` to `b`
///     })
/// });
/// ```
///
/// [`Display`](fmt::Display) prints the list, one line a node.
pub struct Wengert<'t, D> {
    nodes: RefCell<Vec<Node<D>>>,
    name: PhantomData<fn(&'t ()) -> &'t ()>,
}

/// One line of the list: what was done, the value, and the inputs with the partial in each.
struct Node<D> {
    op: &'static str,
    value: D,
    inputs: [Option<(usize, D)>; 2],
}

/// A variable on a [`Wengert`] list: a handle, free to copy.
///
/// It has `+ - * /` with variables and with `f64`, `-x`, the elementary functions, and
/// [`map`](Var::map) for any other function of one variable. It has no comparisons: compare
/// [`value`](Var::value)s.
pub struct Var<'t, D> {
    tape: &'t Wengert<'t, D>,
    index: usize,
}

/// What a reverse sweep found: an adjoint for each variable of one list.
pub struct Adjoints<'t, D> {
    bar: Vec<D>,
    name: PhantomData<fn(&'t ()) -> &'t ()>,
}

impl<D: DualNum<Primitive = f64> + Copy> Wengert<'_, D> {
    /// Opens an empty list, hands it to `body`, and returns what `body` returns.
    ///
    /// ```
    /// use dualtape::dual::Wengert;
    /// let (value, slope) = Wengert::record(|tape| {
    ///     let x = tape.variable(2.0);
    ///     let y = x * x * x;
    ///     (y.value(), y.sweep(1.0).of(x))
    /// });
    /// assert_eq!((value, slope), (8.0, 12.0));
    /// ```
    pub fn record<R>(body: impl for<'t> FnOnce(&'t Wengert<'t, D>) -> R) -> R {
        let tape = Wengert {
            nodes: RefCell::new(Vec::new()),
            name: PhantomData,
        };
        body(&tape)
    }
}

impl<'t, D: DualNum<Primitive = f64> + Copy> Wengert<'t, D> {
    /// A leaf: a parameter, a coordinate with its tangent, a constant of the algebra.
    pub fn variable(&'t self, value: D) -> Var<'t, D> {
        self.push("variable", value, [None, None])
    }

    /// The number of nodes so far.
    pub fn len(&self) -> usize {
        self.nodes.borrow().len()
    }

    /// Whether nothing has been recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One reverse sweep for several outputs at once, each with its seed.
    ///
    /// The adjoints are those of Σ output · seed, so a loss over many points is still one sweep.
    ///
    /// ```
    /// use dualtape::dual::Wengert;
    /// let slope = Wengert::record(|tape| {
    ///     let x = tape.variable(3.0);
    ///     let (square, double) = (x * x, 2.0 * x);
    ///     tape.sweep([(square, 1.0), (double, 10.0)]).of(x)
    /// });
    /// assert_eq!(slope, 6.0 + 20.0);
    /// ```
    pub fn sweep(&'t self, seeds: impl IntoIterator<Item = (Var<'t, D>, D)>) -> Adjoints<'t, D> {
        let nodes = self.nodes.borrow();
        let mut bar = vec![D::zero(); nodes.len()];
        for (output, seed) in seeds {
            bar[output.index] += seed;
        }
        for (i, node) in nodes.iter().enumerate().rev() {
            for (input, partial) in node.inputs.into_iter().flatten() {
                let back = partial * bar[i];
                bar[input] += back;
            }
        }
        Adjoints {
            bar,
            name: PhantomData,
        }
    }

    fn push(&'t self, op: &'static str, value: D, inputs: [Option<(usize, D)>; 2]) -> Var<'t, D> {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node { op, value, inputs });
        Var {
            tape: self,
            index: nodes.len() - 1,
        }
    }
}

impl<'t, D: DualNum<Primitive = f64> + Copy> Var<'t, D> {
    /// The primal, with whatever derivatives `D` carries.
    pub fn value(self) -> D {
        self.tape.nodes.borrow()[self.index].value
    }

    /// One reverse sweep from here: every adjoint, starting with `seed` as this variable's own.
    ///
    /// The seed 1 differentiates all parts of the value at once; [`TopElement::seed`] makes the
    /// seed of a loss.
    pub fn sweep(self, seed: D) -> Adjoints<'t, D> {
        self.tape.sweep([(self, seed)])
    }

    /// Records any function of one variable; num-dual differentiates it.
    ///
    /// ```
    /// use dualtape::dual::Wengert;
    /// use num_dual::DualNum;
    /// let slope = Wengert::record(|tape| {
    ///     let x = tape.variable(0.5);
    ///     x.map(|x| (x.sin() * 3.0).exp()).sweep(1.0).of(x)
    /// });
    /// let (s, c) = 0.5_f64.sin_cos();
    /// assert!((slope - 3.0 * c * (3.0 * s).exp()).abs() < 1e-14);
    /// ```
    pub fn map(self, f: impl Fn(Dual<D>) -> Dual<D>) -> Self {
        self.elemental("map", f)
    }

    /// Hyperbolic tangent. The partial is cosh⁻², because num-dual's quotient rule loses it in
    /// the tails.
    pub fn tanh(self) -> Self {
        let x = self.value();
        self.unary("tanh", x.tanh(), x.cosh().powi(2).recip())
    }

    /// Integer power.
    pub fn powi(self, n: i32) -> Self {
        self.elemental("powi", |x| x.powi(n))
    }

    /// Real power.
    pub fn powf(self, p: f64) -> Self {
        self.elemental("powf", |x| x.powf(p))
    }

    fn elemental(self, op: &'static str, f: impl Fn(Dual<D>) -> Dual<D>) -> Self {
        let (value, partial) = with_derivative(f, self.value());
        self.unary(op, value, partial)
    }

    fn unary(self, op: &'static str, value: D, partial: D) -> Self {
        self.tape
            .push(op, value, [Some((self.index, partial)), None])
    }

    fn binary(self, op: &'static str, other: Self, value: D, partials: [D; 2]) -> Self {
        let [p, q] = partials;
        let inputs = [Some((self.index, p)), Some((other.index, q))];
        self.tape.push(op, value, inputs)
    }
}

/// Elementary functions whose partial num-dual finds, one level up.
macro_rules! elementals {
    ($($name:ident: $doc:literal),* $(,)?) => {
        impl<D: DualNum<Primitive = f64> + Copy> Var<'_, D> {
            $(#[doc = $doc]
            pub fn $name(self) -> Self {
                self.elemental(stringify!($name), |x| x.$name())
            })*
        }
    };
}

elementals! {
    recip: "The reciprocal 1/x.",
    sqrt: "Square root.",
    exp: "Exponential.",
    ln: "Natural logarithm.",
    sin: "Sine.",
    cos: "Cosine.",
    sinh: "Hyperbolic sine.",
    cosh: "Hyperbolic cosine.",
    asinh: "Area hyperbolic sine.",
    atan: "Arctangent.",
}

/// `Var op Var`, `Var op f64` and `f64 op Var`: the value, and the partial in each operand.
macro_rules! operators {
    ($($op:ident $name:ident |$a:ident, $b:ident| $value:expr, $da:expr, $db:expr;)*) => {$(
        impl<D: DualNum<Primitive = f64> + Copy> $op for Var<'_, D> {
            type Output = Self;
            fn $name(self, other: Self) -> Self {
                let ($a, $b) = (self.value(), other.value());
                self.binary(stringify!($name), other, $value, [$da, $db])
            }
        }
        impl<D: DualNum<Primitive = f64> + Copy> $op<f64> for Var<'_, D> {
            type Output = Self;
            fn $name(self, other: f64) -> Self {
                let ($a, $b) = (self.value(), D::from(other));
                self.unary(stringify!($name), $value, $da)
            }
        }
        impl<'t, D: DualNum<Primitive = f64> + Copy> $op<Var<'t, D>> for f64 {
            type Output = Var<'t, D>;
            fn $name(self, other: Var<'t, D>) -> Var<'t, D> {
                let ($a, $b) = (D::from(self), other.value());
                other.unary(stringify!($name), $value, $db)
            }
        }
    )*};
}

operators! {
    Add add |a, b| a + b, D::one(), D::one();
    Sub sub |a, b| a - b, D::one(), -D::one();
    Mul mul |a, b| a * b, b, a;
    Div div |a, b| a / b, b.recip(), -(a / (b * b));
}

impl<D: DualNum<Primitive = f64> + Copy> Neg for Var<'_, D> {
    type Output = Self;
    fn neg(self) -> Self {
        self.unary("neg", -self.value(), -D::one())
    }
}

impl<'t, D: DualNum<Primitive = f64> + Copy> Adjoints<'t, D> {
    /// The adjoint of `variable`: ∂(Σ output · seed)/∂variable in the algebra.
    ///
    /// A variable that was recorded after the sweep has the adjoint 0: no output depends on it.
    pub fn of(&self, variable: Var<'t, D>) -> D {
        self.bar
            .get(variable.index)
            .copied()
            .unwrap_or_else(D::zero)
    }

    /// The derivative of the loss in a real parameter, when the seeds were made by
    /// [`TopElement::seed`]: the top part of the parameter's adjoint.
    pub fn gradient(&self, parameter: Var<'t, D>) -> f64
    where
        D: TopElement,
    {
        self.of(parameter).parts().re()
    }
}

/// An algebra with one top element: there, `contract` is plain multiplication.
///
/// The pairing behind it is ⟨f, s⟩ = (the top part of f·s). For parts that are derivatives, as
/// num-dual stores them, a binomial factor comes from the product:
///
/// | algebra | top part of f·s | seed for the adjoint parts c |
/// |---|---|---|
/// | `f64` | f s | c |
/// | `Dual64` | f s' + f' s | (c₁, c₀) |
/// | `Dual2_64` | f s'' + 2 f' s' + f'' s | (c₂, c₁/2, c₀) |
/// | `Dual3_64` | f s''' + 3 f' s'' + 3 f'' s' + f''' s | (c₃, c₂/3, c₁/3, c₀) |
/// | `HyperDual64` | f s₁₂ + f₁ s₂ + f₂ s₁ + f₁₂ s | (c₁₂, c₂, c₁, c₀) |
///
/// The trait is sealed.
pub trait TopElement: DualNum<Primitive = f64> + Copy + sealed::Sealed {
    /// The seed for adjoint parts: `self` holds ∂L/∂(part) where the value holds that part.
    ///
    /// ```
    /// use dualtape::dual::TopElement;
    /// use num_dual::Dual2_64;
    /// // L = 5 y + 6 y' + 7 y''
    /// let seed = Dual2_64::new(5.0, 6.0, 7.0).seed();
    /// assert_eq!([seed.re, seed.v1, seed.v2], [7.0, 3.0, 5.0]);
    /// ```
    fn seed(self) -> Self;

    /// The inverse of [`seed`](TopElement::seed): from an adjoint of the sweep to ∂L/∂(part).
    ///
    /// Its value part is the gradient in a real parameter. For a coordinate, the other parts are
    /// the derivatives of L in the tangents that were fed in.
    fn parts(self) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f64 {}
    impl Sealed for num_dual::Dual64 {}
    impl Sealed for num_dual::Dual2_64 {}
    impl Sealed for num_dual::Dual3_64 {}
    impl Sealed for num_dual::HyperDual64 {}
}

impl TopElement for f64 {
    fn seed(self) -> Self {
        self
    }
    fn parts(self) -> Self {
        self
    }
}

impl TopElement for Dual64 {
    fn seed(self) -> Self {
        Self::new(self.eps, self.re)
    }
    fn parts(self) -> Self {
        self.seed()
    }
}

impl TopElement for Dual2_64 {
    fn seed(self) -> Self {
        Self::new(self.v2, self.v1 / 2.0, self.re)
    }
    fn parts(self) -> Self {
        Self::new(self.v2, self.v1 * 2.0, self.re)
    }
}

impl TopElement for Dual3_64 {
    fn seed(self) -> Self {
        Self::new(self.v3, self.v2 / 3.0, self.v1 / 3.0, self.re)
    }
    fn parts(self) -> Self {
        Self::new(self.v3, self.v2 * 3.0, self.v1 * 3.0, self.re)
    }
}

impl TopElement for HyperDual64 {
    fn seed(self) -> Self {
        Self::new(self.eps1eps2, self.eps2, self.eps1, self.re)
    }
    fn parts(self) -> Self {
        self.seed()
    }
}

impl<D> Clone for Var<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Var<'_, D> {}

impl<D> fmt::Debug for Var<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.index)
    }
}

impl<D: fmt::Debug> fmt::Debug for Adjoints<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.bar).finish()
    }
}

impl<D: fmt::Display> fmt::Debug for Wengert<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<D: fmt::Display> fmt::Display for Wengert<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, node) in self.nodes.borrow().iter().enumerate() {
            let inputs: Vec<String> = node
                .inputs
                .iter()
                .flatten()
                .map(|(input, _)| format!("v{input}"))
                .collect();
            let call = format!("{}({})", node.op, inputs.join(", "));
            writeln!(f, "v{i:<3} = {call:<14} = {}", node.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// num-dual's `==` looks at the value only, so tests compare the parts.
    fn fields(x: HyperDual64) -> [f64; 4] {
        [x.re, x.eps1, x.eps2, x.eps1eps2]
    }

    /// The paper's minimal example: y = u², u = 2 x₁ + x₂. Its mixed derivative is 4, not 0.
    #[test]
    fn the_minimal_example_has_the_mixed_derivative_4() {
        let x1 = HyperDual64::from(2.0).derivative1();
        let x2 = HyperDual64::from(1.0).derivative2();
        Wengert::record(|tape| {
            let (x1, x2) = (tape.variable(x1), tape.variable(x2));
            let u = 2.0 * x1 + x2;
            let y = u * u;
            assert_eq!(fields(y.value()), [25.0, 20.0, 10.0, 4.0]);

            // with seed 1 the adjoints are the gradient, with its own derivatives along
            let bar = y.sweep(HyperDual64::from(1.0));
            assert_eq!(fields(bar.of(x1)), [20.0, 8.0, 4.0, 0.0]);
            assert_eq!(fields(bar.of(x2)), [10.0, 4.0, 2.0, 0.0]);
        });
    }

    #[test]
    fn one_sweep_serves_several_outputs() {
        Wengert::record(|tape| {
            let x = tape.variable(3.0);
            let (a, b) = (x * x, x.recip());
            let bar = tape.sweep([(a, 2.0), (b, 9.0), (a, 1.0)]);
            assert!(near(bar.of(x), 3.0 * 6.0 - 1.0));
            assert_eq!(bar.of(a), 3.0);
        });
    }

    #[test]
    fn a_variable_that_came_after_the_sweep_has_adjoint_zero() {
        Wengert::record(|tape| {
            let x = tape.variable(3.0);
            let bar = (x * x).sweep(1.0);
            let late = tape.variable(1.0);
            assert_eq!(bar.of(late), 0.0);
        });
    }

    #[test]
    fn the_tape_prints_one_line_a_node() {
        let trace = Wengert::record(|tape| {
            let w = tape.variable(Dual64::from(3.0));
            let t = tape.variable(Dual64::from(2.0).derivative());
            let _ = w * t - 1.0;
            assert_eq!((tape.len(), tape.is_empty()), (4, false));
            tape.to_string()
        });
        let expected = "v0   = variable()     = 3 + 0ε\n\
                        v1   = variable()     = 2 + 1ε\n\
                        v2   = mul(v0, v1)    = 6 + 3ε\n\
                        v3   = sub(v2)        = 5 + 3ε\n";
        assert_eq!(trace, expected);
    }

    #[test]
    fn every_elemental_has_its_derivative() {
        let x = 0.7;
        type F = for<'t> fn(Var<'t, f64>) -> Var<'t, f64>;
        let table: [(&str, F, f64); 14] = [
            ("recip", |x| x.recip(), -1.0 / (x * x)),
            ("sqrt", |x| x.sqrt(), 0.5 / x.sqrt()),
            ("exp", |x| x.exp(), x.exp()),
            ("ln", |x| x.ln(), 1.0 / x),
            ("sin", |x| x.sin(), x.cos()),
            ("cos", |x| x.cos(), -x.sin()),
            ("sinh", |x| x.sinh(), x.cosh()),
            ("cosh", |x| x.cosh(), x.sinh()),
            ("tanh", |x| x.tanh(), x.cosh().powi(-2)),
            ("asinh", |x| x.asinh(), 1.0 / (1.0 + x * x).sqrt()),
            ("atan", |x| x.atan(), 1.0 / (1.0 + x * x)),
            ("powi", |x| x.powi(-3), -3.0 * x.powi(-4)),
            ("powf", |x| x.powf(1.5), 1.5 * x.sqrt()),
            (
                "constants",
                |x| 1.0 - (2.0 / x - 3.0) / 4.0 + x,
                1.0 + 0.5 / (x * x),
            ),
        ];
        for (name, f, expected) in table {
            let got = Wengert::record(|tape| {
                let x = tape.variable(x);
                f(x).sweep(1.0).of(x)
            });
            assert!(
                (got - expected).abs() <= 1e-15 * expected.abs().max(1.0),
                "{name}: {got} against {expected}"
            );
        }
    }

    // ⟨f, s⟩ = top part of f·s must be Σ c_k f_k when s is the seed of c.

    fn top<D: TopElement>(f: D) -> f64 {
        f.parts().re()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-13 * a.abs().max(b.abs()).max(1.0)
    }

    proptest! {
        #[test]
        fn a_seed_pairs_each_part_with_its_adjoint(
            f in prop::array::uniform4(-2.0..2.0f64),
            c in prop::array::uniform4(-2.0..2.0f64),
        ) {
            let dot = |n: usize| -> f64 { (0..n).map(|k| c[k] * f[k]).sum() };
            prop_assert!(near(top(f[0] * c[0].seed()), dot(1)));

            let (v, s) = (Dual64::new(f[0], f[1]), Dual64::new(c[0], c[1]));
            prop_assert!(near(top(v * s.seed()), dot(2)));

            let (v, s) = (Dual2_64::new(f[0], f[1], f[2]), Dual2_64::new(c[0], c[1], c[2]));
            prop_assert!(near(top(v * s.seed()), dot(3)));

            let v = Dual3_64::new(f[0], f[1], f[2], f[3]);
            let s = Dual3_64::new(c[0], c[1], c[2], c[3]);
            prop_assert!(near(top(v * s.seed()), dot(4)));
            prop_assert!(near(s.seed().parts().v1, c[1]) && near(s.seed().parts().v2, c[2]));

            let v = HyperDual64::new(f[0], f[1], f[2], f[3]);
            let s = HyperDual64::new(c[0], c[1], c[2], c[3]);
            prop_assert!(near(top(v * s.seed()), dot(4)));
        }
    }

    /// A random expression in two coordinates and three parameters.
    #[derive(Debug, Clone)]
    enum Expr {
        Coordinate(usize),
        Parameter(usize),
        Sum(Box<Expr>, Box<Expr>),
        Difference(Box<Expr>, Box<Expr>),
        Product(Box<Expr>, Box<Expr>),
        Quotient(Box<Expr>, Box<Expr>),
        Tanh(Box<Expr>),
        Sin(Box<Expr>),
        Softened(Box<Expr>),
    }
    use Expr::{
        Coordinate, Difference, Parameter, Product, Quotient, Sin, Softened, Sum as Total, Tanh,
    };

    fn expressions() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![
            (0..2usize).prop_map(Coordinate),
            (0..3usize).prop_map(Parameter)
        ];
        leaf.prop_recursive(4, 24, 2, |e| {
            let pair = || (e.clone().prop_map(Box::new), e.clone().prop_map(Box::new));
            let one = || e.clone().prop_map(Box::new);
            prop_oneof![
                pair().prop_map(|(a, b)| Total(a, b)),
                pair().prop_map(|(a, b)| Difference(a, b)),
                pair().prop_map(|(a, b)| Product(a, b)),
                pair().prop_map(|(a, b)| Quotient(a, b)),
                one().prop_map(Tanh),
                one().prop_map(Sin),
                one().prop_map(Softened),
            ]
        })
    }

    /// The forward pass alone, by num-dual, without a tape. Bounded: divisors are above 1.
    fn plain<D: DualNum<Primitive = f64> + Copy>(e: &Expr, x: &[D; 2], p: &[D; 3]) -> D {
        let go = |e: &Expr| plain(e, x, p);
        match e {
            Coordinate(i) => x[*i],
            Parameter(i) => p[*i],
            Total(a, b) => go(a) + go(b),
            Difference(a, b) => go(a) - go(b),
            Product(a, b) => go(a).sin() * go(b).sin(),
            Quotient(a, b) => {
                let b = go(b).sin();
                go(a) / (b * b + 1.0)
            }
            Tanh(a) => go(a).sin().tanh(),
            Sin(a) => go(a).sin(),
            Softened(a) => (go(a).cos().exp() + 1.0).ln().sqrt(),
        }
    }

    fn taped<'t, D: DualNum<Primitive = f64> + Copy>(
        e: &Expr,
        x: &[Var<'t, D>; 2],
        p: &[Var<'t, D>; 3],
    ) -> Var<'t, D> {
        let go = |e: &Expr| taped(e, x, p);
        match e {
            Coordinate(i) => x[*i],
            Parameter(i) => p[*i],
            Total(a, b) => go(a) + go(b),
            Difference(a, b) => go(a) - go(b),
            Product(a, b) => go(a).sin() * go(b).sin(),
            Quotient(a, b) => {
                let b = go(b).sin();
                go(a) / (b * b + 1.0)
            }
            Tanh(a) => go(a).sin().tanh(),
            Sin(a) => go(a).sin(),
            Softened(a) => (go(a).cos().exp() + 1.0).ln().sqrt(),
        }
    }

    /// ⟨c, y⟩ part by part, as the top part of a product.
    fn loss<D: TopElement>(e: &Expr, x: &[D; 2], p: [f64; 3], c: D) -> f64 {
        top(plain(e, x, &p.map(D::from)) * c.seed())
    }

    fn check<D: TopElement>(e: &Expr, x: [D; 2], p: [f64; 3], c: D) -> Result<(), TestCaseError> {
        let (value, gradient) = Wengert::record(|tape| {
            let x = x.map(|x| tape.variable(x));
            let p = p.map(|p| tape.variable(D::from(p)));
            let y = taped(e, &x, &p);
            let bar = y.sweep(c.seed());
            (y.value(), p.map(|p| bar.gradient(p)))
        });
        let forward = plain(e, &x, &p.map(D::from));
        prop_assert!(near(top(value * c.seed()), top(forward * c.seed())));

        // Two central differences, extrapolated; their own gap says how far they can be trusted.
        for i in 0..3 {
            let slope = |h: f64| {
                let at = |h: f64| {
                    let mut q = p;
                    q[i] += h;
                    loss(e, &x, q, c)
                };
                (at(h) - at(-h)) / (2.0 * h)
            };
            let (wide, narrow) = (slope(2e-3), slope(1e-3));
            let expected = narrow + (narrow - wide) / 3.0;
            let trust = 1e-8 * (1.0 + expected.abs()) + 0.05 * (narrow - wide).abs();
            prop_assert!(
                (gradient[i] - expected).abs() <= trust,
                "parameter {i}: {} against {expected}",
                gradient[i]
            );
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn the_gradient_of_any_loss_agrees_with_central_differences(
            e in expressions(),
            x in prop::array::uniform2(-1.0..1.0f64),
            p in prop::array::uniform3(-1.0..1.0f64),
            c in prop::array::uniform4(-1.0..1.0f64),
        ) {
            check(&e, x, p, c[0])?;
            let [t, s] = x;
            check(&e, [Dual64::from(t).derivative(), Dual64::from(s)], p, Dual64::new(c[0], c[1]))?;
            check(
                &e,
                [Dual2_64::from(t).derivative(), Dual2_64::from(s)],
                p,
                Dual2_64::new(c[0], c[1], c[2]),
            )?;
            check(
                &e,
                [Dual3_64::from(t).derivative(), Dual3_64::from(s)],
                p,
                Dual3_64::new(c[0], c[1], c[2], c[3]),
            )?;
            check(
                &e,
                [HyperDual64::from(t).derivative1(), HyperDual64::from(s).derivative2()],
                p,
                HyperDual64::new(c[0], c[1], c[2], c[3]),
            )?;
        }
    }
}
