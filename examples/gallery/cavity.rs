//! The lid-driven cavity at Reynolds number 100: steady Navier-Stokes on the unit square, no
//! slip, and a lid that moves with u = 16 x² (1 - x)².
//!
//! Velocities are derivatives of a stream function, u = ψ_y and v = -ψ_x, so that mass is
//! conserved, and the curl of the momentum equations leaves one without pressure. The network
//! gives stream function and vorticity ω = Δψ, which keeps all derivatives at second order.

use crate::common::{Outcome, Reference, Settings, maps, table};
use dualtape::{Elemental::Sin, Equation, Error, Field, Parameters, Points};

const REYNOLDS: f64 = 100.0;
const POINTS: usize = 2048;
/// The grid of the reference: its nodes 0, 0.05, …, 1.
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 21), (0.0, 1.0, 21)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let mut params = Parameters::seeded(settings.seed);
    let net = params.mlp("flow", &[2, 20, 20, 20, 2], Sin)?;
    // All velocities on the boundary hold whatever the network is.
    let flow = |x: Field, y: Field| {
        let [n, omega] = net.at(&[2.0 * x - 1.0, 2.0 * y - 1.0]);
        let (wall, lid) = (16.0 * x * x * (1.0 - x).powi(2), 1.0 - y);
        [wall * y * y * lid * (lid * n - 1.0), 10.0 * omega]
    };
    let psi = |x: Field, y: Field| flow(x, y)[0];
    let vorticity = Equation::record("cavity", &params, ["x", "y"], |[x, y]| {
        let [psi, omega] = flow(x, y);
        [
            psi.laplacian(&[x, y]) - omega,
            psi.d(y) * omega.d(x) - psi.d(x) * omega.d(y) - omega.laplacian(&[x, y]) / REYNOLDS,
        ]
    })?;
    // The errors of both velocities count, one after the other.
    let u = Equation::record("u", &params, ["x", "y"], |[x, y]| psi(x, y).d(y))?;
    let both = Equation::record("velocity", &params, ["x", "y"], |[x, y]| {
        let psi = psi(x, y);
        [psi.d(y), -psi.d(x)]
    })?;
    let grid = Points::grid(&GRID)?;
    let u_truth = table("cavity_u.npy", &[21, 21])?;
    let truth = [u_truth.clone(), table("cavity_v.npy", &[21, 21])?].concat();
    let reference = Reference {
        points: grid.clone(),
        truth,
    };

    let train = settings.train(400).compare("u", &u, &grid, &u_truth, 10);
    let bounds = [(0.0, 1.0), (0.0, 1.0)];
    let report = settings.fit(
        train,
        &mut params,
        &vorticity,
        (&bounds, POINTS),
        |engine, params| settings.rough(engine, params),
    )?;

    let shown = Reference {
        points: grid,
        truth: u_truth,
    };
    let error = shown.error(&u, &params)?;
    maps(settings, "cavity", GRID, ("x", "y"), &shown, &error)?;
    reference.outcome(&both, &params, POINTS, &report)
}
