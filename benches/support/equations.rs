//! The equations of the study of memory and of the calibration.

use dualtape::{Elemental, Equation, Error, Field, Parameters};
use std::f64::consts::PI;

/// An equation for a network of any width and depth.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// The highest order of its derivatives.
    pub order: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub residual: fn(&[Field], &[Field]) -> Vec<Field>,
}

impl Case {
    const fn new(
        name: &'static str,
        order: usize,
        [inputs, outputs]: [usize; 2],
        residual: fn(&[Field], &[Field]) -> Vec<Field>,
    ) -> Self {
        Self {
            name,
            order,
            inputs,
            outputs,
            residual,
        }
    }

    /// The equation of a name.
    pub fn named(name: &str) -> Option<Self> {
        CASES.into_iter().find(|case| case.name == name)
    }

    /// Inputs, hidden layers, outputs.
    pub fn widths(&self, hidden: &[usize]) -> Vec<usize> {
        let ends = ([self.inputs], [self.outputs]);
        [&ends.0, hidden, &ends.1].concat()
    }

    /// Records the equation with a new network.
    pub fn record(
        &self,
        params: &mut Parameters,
        hidden: &[usize],
        activation: Elemental,
    ) -> Result<Equation, Error> {
        let net = params.mlp("u", &self.widths(hidden), activation)?;
        let names: Vec<String> = (0..self.inputs).map(|i| format!("x{i}")).collect();
        Equation::record_over(self.name, params, &names, |x| {
            (self.residual)(x, &net.at_all(x))
        })
    }
}

/// u⁽ᵏ⁾ + u.
fn chain<const ORDER: usize>(x: &[Field], u: &[Field]) -> Vec<Field> {
    let derivative = (0..ORDER).fold(u[0], |u, _| u.d(x[0]));
    vec![derivative + u[0]]
}

/// Σ ∂²u/∂xᵢ², each of them named.
fn poisson(x: &[Field], u: &[Field]) -> Vec<Field> {
    vec![x.iter().map(|&x| u[0].d(x).d(x)).sum::<Field>() + 1.0]
}

/// The same as one operator.
fn laplace(x: &[Field], u: &[Field]) -> Vec<Field> {
    vec![u[0].laplacian(x) + 1.0]
}

fn energy(x: &[Field], u: &[Field]) -> Vec<Field> {
    vec![x.iter().map(|&x| u[0].d(x) * u[0].d(x)).sum()]
}

pub const CASES: [Case; 25] = [
    Case::new("chain-1", 1, [1, 1], chain::<1>),
    Case::new("chain-2", 2, [1, 1], chain::<2>),
    Case::new("chain-3", 3, [1, 1], chain::<3>),
    Case::new("chain-4", 4, [1, 1], chain::<4>),
    Case::new("chain-5", 5, [1, 1], chain::<5>),
    Case::new("chain-6", 6, [1, 1], chain::<6>),
    Case::new("chain-7", 7, [1, 1], chain::<7>),
    Case::new("chain-8", 8, [1, 1], chain::<8>),
    Case::new("burgers", 2, [2, 1], |x, u| {
        let (t, x, u) = (x[0], x[1], u[0]);
        vec![u.d(t) + u * u.d(x) - 0.01 / PI * u.d(x).d(x)]
    }),
    Case::new("kdv", 3, [2, 1], |x, u| {
        let (t, x, u) = (x[0], x[1], u[0]);
        vec![u.d(t) + 6.0 * u * u.d(x) + u.d(x).d(x).d(x)]
    }),
    Case::new("ks", 4, [2, 1], |x, u| {
        let (t, x, u) = (x[0], x[1], u[0]);
        let second = u.d(x).d(x);
        vec![u.d(t) + u * u.d(x) + second + second.d(x).d(x)]
    }),
    Case::new("biharmonic", 4, [2, 1], |x, u| {
        vec![u[0].laplacian(x).laplacian(x)]
    }),
    Case::new("ns", 2, [3, 3], |x, u| {
        let (t, x, y) = (x[0], x[1], x[2]);
        let momentum = |w: Field, slope: Field| {
            w.d(t) + u[0] * w.d(x) + u[1] * w.d(y) + slope - 0.01 * w.laplacian(&[x, y])
        };
        vec![
            momentum(u[0], u[2].d(x)),
            momentum(u[1], u[2].d(y)),
            u[0].d(x) + u[1].d(y),
        ]
    }),
    Case::new("poisson-2", 2, [2, 1], poisson),
    Case::new("poisson-5", 2, [5, 1], poisson),
    Case::new("poisson-10", 2, [10, 1], poisson),
    Case::new("poisson-20", 2, [20, 1], poisson),
    Case::new("laplace-2", 2, [2, 1], laplace),
    Case::new("laplace-5", 2, [5, 1], laplace),
    Case::new("laplace-10", 2, [10, 1], laplace),
    Case::new("laplace-20", 2, [20, 1], laplace),
    Case::new("energy-2", 1, [2, 1], energy),
    Case::new("energy-5", 1, [5, 1], energy),
    Case::new("energy-10", 1, [10, 1], energy),
    Case::new("energy-20", 1, [20, 1], energy),
];
