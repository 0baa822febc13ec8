//! Poisson's equation -Δu = 2π² sin(πx) sin(πy) on the unit square, u = 0 on its boundary.
//! u = sin(πx) sin(πy).

use crate::common::{Outcome, Reference, Settings, maps, none};
use dualtape::{Domain, Elemental::Sin, Equation, Error, Field, Parameters, ansatz};
use std::f64::consts::PI;

const POINTS: usize = 2048;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 101), (0.0, 1.0, 101)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[2, 16, 16, 1], Sin)?;
    // The solution is symmetric about both middles, and so are the network's inputs.
    let u = |x: Field, y: Field| {
        let [n] = net.at(&[x, y].map(|x| 8.0 * x * (1.0 - x) - 1.0));
        ansatz::distance(&square, &["left", "right", "bottom", "top"], &[x, y]) * n
    };
    let poisson = Equation::record("poisson", &params, ["x", "y"], |[x, y]| {
        u(x, y).laplacian(&[x, y]) + 2.0 * PI * PI * (PI * x).sin() * (PI * y).sin()
    })?;
    let solution = Equation::record("solution", &params, ["x", "y"], |[x, y]| u(x, y))?;
    let reference = Reference::grid(GRID, |[x, y]| (PI * x).sin() * (PI * y).sin())?;

    let train =
        settings
            .train(150)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let report = settings.fit(
        train,
        &mut params,
        &poisson,
        (&square.bounds(), POINTS),
        none,
    )?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "poisson", GRID, ("x", "y"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
