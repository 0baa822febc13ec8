//! The workloads that the benches share: networks, points and residuals, the same numbers
//! as the peers have.

use crate::numbers;
use dualtape::{
    Condition, Elemental::Tanh, Equation, Error, Field, Mlp, Parameters, Points, Problem,
};

#[derive(Clone, Copy, PartialEq)]
pub enum Pde {
    /// u' + u, and the value at 0: the problem of the paper.
    Paper,
    Ode,
    Burgers,
    Laplace,
    Ks,
    Ns,
}

/// What is evaluated.
#[derive(Clone, Copy, PartialEq)]
pub enum Job {
    Gradient,
    /// The rows of the Gauss-Newton matrix, handed out by chunk.
    Rows,
    /// JᵀJ·v, of the same matrix.
    Product,
}

pub struct Workload {
    pub name: &'static str,
    pub job: Job,
    pde: Pde,
    inputs: usize,
    width: usize,
    hidden: usize,
    points: usize,
}

const fn gradient(
    name: &'static str,
    pde: Pde,
    [inputs, width, hidden]: [usize; 3],
    points: usize,
) -> Workload {
    Workload {
        name,
        job: Job::Gradient,
        pde,
        inputs,
        width,
        hidden,
        points,
    }
}

const fn jacobian(name: &'static str, job: Job, width: usize) -> Workload {
    Workload {
        job,
        ..gradient(name, Pde::Burgers, [2, width, 4], 4096)
    }
}

pub const WORKLOADS: [Workload; 22] = [
    gradient("paper-3x2-n1", Pde::Paper, [1, 3, 2], 1),
    gradient("ode-3x2-n1", Pde::Ode, [1, 3, 2], 1),
    gradient("ode-3x2-n30", Pde::Ode, [1, 3, 2], 30),
    gradient("ode-32x2-n30", Pde::Ode, [1, 32, 2], 30),
    gradient("ode-32x2-n1000", Pde::Ode, [1, 32, 2], 1000),
    gradient("ode-32x2-n10000", Pde::Ode, [1, 32, 2], 10000),
    gradient("burgers-20x8-n1000", Pde::Burgers, [2, 20, 8], 1000),
    gradient("burgers-20x8-n10000", Pde::Burgers, [2, 20, 8], 10000),
    gradient("burgers-64x4-n10000", Pde::Burgers, [2, 64, 4], 10000),
    gradient("burgers-128x4-n10000", Pde::Burgers, [2, 128, 4], 10000),
    gradient("burgers-256x4-n4096", Pde::Burgers, [2, 256, 4], 4096),
    gradient("poisson2d-64x4-n10000", Pde::Laplace, [2, 64, 4], 10000),
    gradient("laplace10-128x4-n1000", Pde::Laplace, [10, 128, 4], 1000),
    gradient("laplace100-128x4-n256", Pde::Laplace, [100, 128, 4], 256),
    gradient("laplace100-128x4-n1000", Pde::Laplace, [100, 128, 4], 1000),
    gradient("ks-64x4-n4096", Pde::Ks, [2, 64, 4], 4096),
    gradient("ns-64x4-n4096", Pde::Ns, [3, 64, 4], 4096),
    jacobian("rows-20x4-n4096", Job::Rows, 20),
    jacobian("rows-64x4-n4096", Job::Rows, 64),
    jacobian("product-20x4-n4096", Job::Product, 20),
    jacobian("product-64x4-n4096", Job::Product, 64),
    jacobian("product-256x4-n4096", Job::Product, 256),
];

impl Workload {
    /// The workload of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }

    fn widths(&self) -> Vec<usize> {
        let outputs = if self.pde == Pde::Ns { 3 } else { 1 };
        let mut widths = vec![self.inputs];
        widths.extend(vec![self.width; self.hidden]);
        widths.push(outputs);
        widths
    }

    /// The network and its parameters.
    pub fn network(&self) -> Result<(Parameters, Mlp), Error> {
        let widths = self.widths();
        let mut params = Parameters::new();
        let net = params.mlp("net", &widths, Tanh)?;
        params.set(&numbers::network(&widths))?;
        Ok((params, net))
    }

    /// Points in the unit cube, in another number where one is given.
    pub fn points(&self, number: Option<usize>) -> Result<Points, Error> {
        if self.pde == Pde::Paper {
            return Points::from_rows(&[[0.5]]);
        }
        let n = number.unwrap_or(self.points);
        Points::from_flat(self.inputs, &numbers::points(self.inputs, n))
    }

    /// Records the equation and puts it on the points.
    pub fn problem(
        &self,
        params: &Parameters,
        net: &Mlp,
        points: Points,
    ) -> Result<Problem, Error> {
        let names: Vec<String> = (0..self.inputs).map(|i| format!("x{i}")).collect();
        let equation = Equation::record_over("pde", params, &names, |x| self.residual(net, x))?;
        let mut conditions = vec![Condition::new(&equation, points)];
        if self.pde == Pde::Paper {
            let start = Equation::record("start", params, ["t"], |[t]| {
                let [u] = net.at(&[t]);
                u - 1.0
            })?;
            conditions.push(Condition::new(&start, Points::from_rows(&[[0.0]])?).weight(10.0));
        }
        Problem::new(params, conditions)
    }

    fn residual(&self, net: &Mlp, x: &[Field]) -> Vec<Field> {
        const NU_BURGERS: f64 = 0.01 / std::f64::consts::PI;
        const NU_NS: f64 = 0.01;
        match self.pde {
            Pde::Paper | Pde::Ode => {
                let [u] = net.at(x);
                vec![u.d(x[0]) + u]
            }
            Pde::Burgers => {
                let [u] = net.at(x);
                let (t, x) = (x[0], x[1]);
                vec![u.d(t) + u * u.d(x) - NU_BURGERS * u.d(x).d(x)]
            }
            Pde::Laplace => {
                let [u] = net.at(x);
                vec![u.laplacian(x) + 1.0]
            }
            Pde::Ks => {
                let [u] = net.at(x);
                let (t, x) = (x[0], x[1]);
                let second = u.d(x).d(x);
                vec![u.d(t) + u * u.d(x) + second + second.d(x).d(x)]
            }
            Pde::Ns => {
                let [u, v, p] = net.at(x);
                let (t, x, y) = (x[0], x[1], x[2]);
                let momentum = |w: Field, slope: Field| {
                    w.d(t) + u * w.d(x) + v * w.d(y) + slope - NU_NS * w.laplacian(&[x, y])
                };
                vec![momentum(u, p.d(x)), momentum(v, p.d(y)), u.d(x) + v.d(y)]
            }
        }
    }
}
