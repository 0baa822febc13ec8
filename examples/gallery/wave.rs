//! The wave equation u_tt = 4 u_xx on [0, 1] × [0, 1], u = 0 at the ends, at rest at first.
//! u = sin(πx) cos(2πt) + ½ sin(4πx) cos(8πt).
//!
//! This is a sum of four waves that travel: one layer of sines holds it **exactly**. What is
//! to be found are their frequencies.

use crate::common::{Drawn, Outcome, Reference, Settings, maps};
use dualtape::domain::Region;
use dualtape::optim::fit_last_layer;
use dualtape::{Architecture, Domain, Equation, Error, Parameters, Sampler};
use std::f64::consts::PI;

const INSIDE: usize = 2048;
const SIDES: usize = 512;
const GRID: [(f64, f64, usize); 2] = [(0.0, 1.0, 201), (0.0, 1.0, 101)];

pub fn run(settings: &Settings) -> Result<Outcome, Error> {
    let domain = Domain::interval(0.0, 1.0)?.in_time(0.0, 1.0)?;
    let mut params = Parameters::seeded(settings.seed);
    // Frequencies up to 30 in t and 15 in x.
    let net = params.network("u", &Architecture::siren(&[2, 40, 1], 60.0))?;
    let record = |name| {
        Equation::record(name, &params, ["t", "x"], |[t, x]| {
            let [u] = net.at(&[t, 0.5 * x]);
            match name {
                "wave" => vec![(u.d(t).d(t) - 4.0 * u.d(x).d(x)) / 100.0],
                "start" => {
                    vec![
                        u - (PI * x).sin() - 0.5 * (4.0 * PI * x).sin(),
                        u.d(t) / 10.0,
                    ]
                }
                _ => vec![u],
            }
        })
    };
    let (wave, start, solution) = (record("wave")?, record("start")?, record("u")?);
    let exact = |[t, x]: [f64; 2]| {
        (PI * x).sin() * (2.0 * PI * t).cos() + 0.5 * (4.0 * PI * x).sin() * (8.0 * PI * t).cos()
    };
    let reference = Reference::grid(GRID, exact)?;

    let train =
        settings
            .train(400)
            .compare("u", &solution, &reference.points, &reference.truth, 10);
    let over = |region: &Region| Sampler::over(region, settings.seed);
    let (initial, ends) = (
        domain.side("initial")?,
        domain.some_sides(&["left", "right"])?,
    );
    let drawn = vec![
        Drawn::new(&wave, over(&domain.interior()), INSIDE),
        Drawn {
            weight: 10.0,
            ..Drawn::new(&start, over(&initial), SIDES)
        },
        Drawn {
            name: "ends",
            weight: 10.0,
            ..Drawn::new(&solution, over(&ends), SIDES)
        },
    ];
    let report = settings.fit_all(train, &mut params, drawn, |engine, params| {
        fit_last_layer(engine, params, &net).map(drop)
    })?;

    let error = reference.error(&solution, &params)?;
    maps(settings, "wave", GRID, ("t", "x"), &reference, &error)?;
    reference.outcome(&solution, &params, INSIDE + 2 * SIDES, &report)
}
