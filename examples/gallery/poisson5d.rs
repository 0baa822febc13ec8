//! Poisson's equation -Δu = π² Σ cos(πx_i) on the unit cube of five dimensions, with the
//! values of u = Σ cos(πx_i) on its ten faces.
//!
//! Boundary values are a condition of their own: extended by interpolation between the faces
//! they would be the solution itself. A layer of sines holds this solution **exactly**, by
//! five of its units; the directions of five axes and their frequency are to be found.

use crate::common::{Drawn, Outcome, Reference, Settings, maps};
use dualtape::domain::Region;
use dualtape::optim::fit_last_layer;
use dualtape::{Architecture, Domain, Equation, Error, Field, Parameters, Points, Sampler};
use std::f64::consts::PI;

const INSIDE: usize = 4096;
const FACES: usize = 2048;
const CHECKED: usize = 10_000;

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let cube = Domain::cuboid(&[(0.0, 1.0); 5])?;
    let mut params = Parameters::seeded(settings.seed);
    let net = params.network("u", &Architecture::siren(&[5, 40, 1], 6.0))?;
    let u = |x: [Field; 5]| -> Field {
        let [n] = net.at(&x.map(|x| 2.0 * x - 1.0));
        n
    };
    let sum = |x: [Field; 5]| -> Field { x.iter().map(|&x| (PI * x).cos()).sum() };
    let names = ["a", "b", "c", "d", "e"];
    let poisson = Equation::record("poisson5d", &params, names, |x| {
        u(x).laplacian(&x) + PI * PI * sum(x)
    })?;
    let faces = Equation::record("faces", &params, names, |x| u(x) - sum(x))?;
    let solution = Equation::record("solution", &params, names, u)?;
    let exact = |x: [f64; 5]| x.iter().map(|x| (PI * x).cos()).sum::<f64>();
    let checked = Sampler::over(&cube.interior(), 1000).uniform(CHECKED)?;
    let reference = Reference::at(checked, exact);

    let over = |region: &Region| Sampler::over(region, settings.seed);
    let train =
        settings
            .train(200)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let drawn = vec![
        Drawn::new(&poisson, over(&cube.interior()), INSIDE),
        Drawn {
            weight: 100.0,
            ..Drawn::new(&faces, over(&cube.boundary()?), FACES)
        },
    ];
    let report = settings.fit_all(train, &mut params, drawn, |engine, params| {
        fit_last_layer(engine, params, &net).map(drop)
    })?;

    // The middle plane of the first two coordinates.
    let plane = [(0.0, 1.0, 65), (0.0, 1.0, 65)];
    let middle = [(0.5, 0.5, 1); 3];
    let axes = [plane[0], plane[1], middle[0], middle[1], middle[2]];
    let shown = Reference::at(Points::grid(&axes)?, exact);
    let error = shown.error(&solution, &params)?;
    maps(settings, "poisson5d", plane, ("a", "b"), &shown, &error)?;
    reference.outcome(&solution, &params, INSIDE + FACES, &report)
}
