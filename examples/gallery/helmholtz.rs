//! Helmholtz' equation Δu + u = q on [-1, 1]², u = 0 on the boundary, with
//! q = (1 - 17π²) sin(πx) sin(4πy). u = sin(πx) sin(4πy).

use crate::common::{Outcome, Reference, Settings, maps, none};
use dualtape::{Domain, Elemental::Sin, Equation, Error, Field, Parameters, ansatz};
use std::f64::consts::PI;

const POINTS: usize = 4096;
const GRID: [(f64, f64, usize); 2] = [(-1.0, 1.0, 101), (-1.0, 1.0, 201)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let square = Domain::cuboid(&[(-1.0, 1.0), (-1.0, 1.0)])?;
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("u", &[2, 24, 24, 1], Sin)?;
    // Four waves fit into the height: the network sees y faster than x.
    let u = |x: Field, y: Field| {
        let [n] = net.at(&[2.0 * x, 8.0 * y]);
        ansatz::distance(&square, &["left", "right", "bottom", "top"], &[x, y]) * n
    };
    let helmholtz = Equation::record("helmholtz", &params, ["x", "y"], |[x, y]| {
        let u = u(x, y);
        let wave = (PI * x).sin() * (4.0 * PI * y).sin();
        u.laplacian(&[x, y]) + u - (1.0 - 17.0 * PI * PI) * wave
    })?;
    let solution = Equation::record("solution", &params, ["x", "y"], |[x, y]| u(x, y))?;
    let reference = Reference::grid(GRID, |[x, y]| (PI * x).sin() * (4.0 * PI * y).sin())?;

    let train =
        settings
            .train(200)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let report = settings.fit(
        train,
        &mut params,
        &helmholtz,
        (&square.bounds(), POINTS),
        none,
    )?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "helmholtz", GRID, ("x", "y"), &reference, &error)?;
    reference.outcome(&solution, &params, POINTS, &report)
}
