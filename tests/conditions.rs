//! Conditions of every kind against known residuals, what is built into an ansatz, and
//! weights that change.

mod common;

use common::assert_close;
use dualtape::weights::{Balance, Causal, SelfAdaptive};
use dualtape::{
    Adam, Coefficient, Condition, Design, Domain, Elemental::Tanh, Engine, Equation, Error, Field,
    Options, Parameters, Points, Precision, Problem, Quadrature, Sampler, Train, ansatz, data,
    values,
};
use std::f64::consts::PI;

/// One trainable factor, so that solutions are known functions.
fn factor(value: f64) -> Result<(Parameters, Coefficient), Error> {
    let mut params = Parameters::new();
    let a = params.coefficient("a", value)?;
    Ok((params, a))
}

fn residuals(params: &Parameters, condition: Condition) -> Result<Vec<Vec<f64>>, Error> {
    let name = condition.name().to_owned();
    let engine = Engine::new(&Problem::new(params, [condition])?)?;
    engine.residuals(&name, params.values())
}

fn assert_all(what: &str, list: &[f64], want: f64) {
    for (n, got) in list.iter().enumerate() {
        assert!(
            (got - want).abs() < 1e-13,
            "{what}[{n}]: {got}, want {want}"
        );
    }
}

/// Central differences of a loss.
fn differences(engine: &Engine, theta: &[f64]) -> Result<Vec<f64>, Error> {
    let step = 1e-6;
    (0..theta.len())
        .map(|i| {
            let at = |sign: f64| {
                let mut moved = theta.to_vec();
                moved[i] += sign * step;
                engine.loss(&moved)
            };
            Ok((at(1.0)? - at(-1.0)?) / (2.0 * step))
        })
        .collect()
}

// Boundary conditions.

#[test]
fn neumann_and_robin_by_normals() -> Result<(), Error> {
    let disc = Domain::ball(&[0.5, -1.0], 2.0)?;
    let rim = Sampler::over(&disc.side("surface")?, 1).draw(Design::Sobol, 40)?;
    for (a, miss) in [(1.0, 0.0), (1.5, 2.0)] {
        let (params, factor) = factor(a)?;
        // u = a |x - c|², so that u_n = 2 a R = 4 a and u = 4 a on the rim.
        let u = |x: Field, y: Field| factor.field() * ((x - 0.5).powi(2) + (y + 1.0).powi(2));
        let slope = |u: Field, x: Field, y: Field| u.d(x) * data("nx") + u.d(y) * data("ny");
        let neumann = Equation::record("neumann", &params, ["x", "y"], |[x, y]| {
            slope(u(x, y), x, y) - 4.0
        })?;
        let robin = Equation::record("robin", &params, ["x", "y"], |[x, y]| {
            let u = u(x, y);
            slope(u, x, y) + 3.0 * u - 16.0
        })?;
        let got = residuals(&params, Condition::new(&neumann, rim.clone()))?;
        assert_all("neumann", &got[0], miss);
        let got = residuals(&params, Condition::new(&robin, rim.clone()))?;
        assert_all("robin", &got[0], 4.0 * miss);
    }
    Ok(())
}

#[test]
fn every_side_of_a_box_has_its_own_flux() -> Result<(), Error> {
    let (params, a) = factor(1.0)?;
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let flux = Equation::record("flux", &params, ["x", "y"], |[x, y]| {
        let u = a.field() * (x + 2.0 * y);
        u.d(x) * data("nx") + u.d(y) * data("ny") + 0.0 * (x + y)
    })?;
    for (side, want) in [
        ("left", -1.0),
        ("right", 1.0),
        ("bottom", -2.0),
        ("top", 2.0),
    ] {
        // The grid has the corners: each counts with this side's normal.
        let points = Sampler::over(&square.side(side)?, 0).draw(Design::Grid, 9)?;
        let got = residuals(&params, Condition::new(&flux, points))?;
        assert_all(side, &got[0], want);
    }
    Ok(())
}

#[test]
fn initial_and_dirichlet_on_named_sides() -> Result<(), Error> {
    let domain = Domain::interval(-1.0, 1.0)?.in_time(0.0, 2.0)?;
    let (params, a) = factor(1.0)?;
    // u = e^(-t) sin(πx)
    let u = |t: Field, x: Field| a.field() * (-t).exp() * (PI * x).sin();
    let start = Equation::record("start", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        [u - (PI * x).sin(), u.d(t) + (PI * x).sin()]
    })?;
    let walls = Equation::record("walls", &params, ["t", "x"], |[t, x]| u(t, x))?;
    let inside = Equation::record("inside", &params, ["t", "x"], |[t, x]| {
        let u = u(t, x);
        u.d(t) - u.d(x).d(x) + (1.0 - PI * PI) * u
    })?;
    let cases = [
        (&start, domain.side("initial")?),
        (&walls, domain.some_sides(&["left", "right"])?),
        (&inside, domain.interior()),
    ];
    for (equation, region) in cases {
        let points = Sampler::over(&region, 3).draw(Design::Halton, 30)?;
        for list in residuals(&params, Condition::new(equation, points))? {
            assert_all(equation.name(), &list, 0.0);
        }
    }
    // At the end it is not what it was at the start.
    let end = Sampler::over(&domain.side("final")?, 3).draw(Design::Halton, 30)?;
    let late = residuals(&params, Condition::new(&start, end))?;
    assert!(late[0].iter().any(|r| r.abs() > 0.5));
    Ok(())
}

#[test]
fn periodic_jumps_of_every_order() -> Result<(), Error> {
    let left = Points::from_rows(&[[-1.0, 0.2], [-1.0, 0.7]])?;
    let jumps = |order: usize, u: &dyn Fn(Field, Field) -> Field| {
        let (params, a) = factor(1.0)?;
        let equation = Equation::record("periodic", &params, ["x", "y"], |[x, y]| {
            // A term that counts on neither side, so that both coordinates are there.
            let mut all = ansatz::jumps(x, 2.0, order, |x| a.field() * u(x, y));
            all.iter_mut().for_each(|jump| *jump += 0.0 * x * y);
            all
        })?;
        residuals(&params, Condition::new(&equation, left.clone()))
    };
    // x³: jumps of x³, 3x², 6x, 6 from -1 to 1.
    let cube = jumps(3, &|x, y| x.powi(3) + 0.0 * y)?;
    for (order, want) in [2.0, 0.0, 12.0, 0.0].into_iter().enumerate() {
        assert_all(&format!("x³, order {order}"), &cube[order], want);
    }
    assert_all("x", &jumps(0, &|x, _| x)?[0], 2.0);
    assert_all("y", &jumps(0, &|x, y| y + 0.0 * x)?[0], 0.0);
    for (order, list) in jumps(4, &|x, y| (PI * x).sin() * y)?.iter().enumerate() {
        assert!(
            list.iter().all(|jump| jump.abs() < 1e-12),
            "a sine, order {order}: {list:?}"
        );
    }
    Ok(())
}

#[test]
fn c17_periodic_pairs_of_the_unit_square() -> Result<(), Error> {
    let left = Points::from_rows(&[[0.0, 0.2], [0.0, 0.7]])?;
    type Function = fn(Field, Field) -> Field;
    let cases: [(&str, Function, f64); 3] = [
        ("x", |x, _| x, 1.0),
        ("y", |_, y| y, 0.0),
        ("sine", |x, y| (2.0 * PI * x).sin() * y, 0.0),
    ];
    for (name, u, want) in cases {
        let (params, a) = factor(1.0)?;
        let equation = Equation::record("periodic", &params, ["x", "y"], |[x, y]| {
            ansatz::jumps(x, 1.0, 0, |x| a.field() * u(x, y))[0] + 0.0 * x * y
        })?;
        let got = residuals(&params, Condition::new(&equation, left.clone()))?;
        assert!(
            got[0].iter().all(|jump| (jump - want).abs() < 1e-15),
            "{name}: {got:?}"
        );
    }
    Ok(())
}

#[test]
fn interfaces_join_two_networks() -> Result<(), Error> {
    // k₁ = 1 left of x = 1, k₂ = 3 right of it: u₁ = 3x, u₂ = 3 + (x - 1) fit.
    let mut params = Parameters::new();
    let [a, b] = ["a", "b"].map(|name| params.coefficient(name, 1.0));
    let (a, b) = (a?, b?);
    let interface = Equation::record("interface", &params, ["x", "y"], |[x, y]| {
        let left = 3.0 * a.field() * x * (1.0 + 0.0 * y);
        let right = 3.0 + b.field() * (x - 1.0);
        [left - right, left.d(x) - 3.0 * right.d(x)]
    })?;
    let line = Domain::cuboid(&[(1.0, 2.0), (0.0, 1.0)])?.side("left")?;
    let points = Sampler::over(&line, 0).draw(Design::Grid, 5)?;
    let condition = Condition::new(&interface, points);
    let got = residuals(&params, condition.clone())?;
    assert_all("value", &got[0], 0.0);
    assert_all("flux", &got[1], 0.0);
    params.set(&[1.5, 0.5])?;
    let got = residuals(&params, condition)?;
    assert_all("value", &got[0], 1.5);
    assert_all("flux", &got[1], 3.0);
    Ok(())
}

#[test]
fn observations_have_data_and_weights() -> Result<(), Error> {
    let (params, a) = factor(2.0)?;
    let points =
        Points::from_rows(&[[0.0], [1.0], [2.0]])?.with_column("seen", &[0.0, 1.0, 4.5])?;
    let equation = Equation::record("seen", &params, ["x"], |[x]| a.field() * x - data("seen"))?;
    // Residuals 0, 1, -0.5; weights 1, 2, 4; 3 points; weight 6.
    let condition = Condition::new(&equation, points)
        .point_weights(&[1.0, 2.0, 4.0])
        .weight(6.0);
    let engine = Engine::new(&Problem::new(&params, [condition])?)?;
    let evaluation = engine.evaluate(params.values())?;
    assert!((evaluation.loss - 6.0 / 3.0 * (2.0 + 4.0 * 0.25)).abs() < 1e-15);
    let slope = 6.0 / 3.0 * 2.0 * (2.0 * 1.0 - 4.0 * 0.5 * 2.0);
    assert!((evaluation.gradient[0] - slope).abs() < 1e-14);
    Ok(())
}

// Integrals.

#[test]
fn an_integral_by_hand() -> Result<(), Error> {
    // ∫ a x² over [0, 2] = 8a/3; it should be 3.
    let (params, a) = factor(1.5)?;
    let equation = Equation::record("mass", &params, ["x"], |[x]| a.field() * x * x - 3.0 / 2.0)?;
    let rule = Quadrature::gauss_legendre(&[(0.0, 2.0, 40)])?;
    let condition = Condition::integral(&equation, &rule).weight(0.5);
    for precision in [Precision::Double, Precision::Single] {
        let tolerance = if precision == Precision::Double {
            1e-13
        } else {
            1e-5
        };
        let problem = Problem::new(&params, [condition.clone()])?;
        let engine = Engine::with(&problem, &Options::default().precision(precision))?;
        let evaluation = engine.evaluate(params.values())?;
        let miss = 8.0 * 1.5 / 3.0 - 3.0;
        assert_close("loss", &[evaluation.loss], &[0.5 * miss * miss], tolerance);
        assert_eq!(evaluation.loss, engine.loss(params.values())?);
        let slope = 2.0 * 0.5 * miss * 8.0 / 3.0;
        assert_close("gradient", &evaluation.gradient, &[slope], tolerance);
        // One Gauss-Newton row.
        let mut rows = Vec::new();
        engine.rows("mass", params.values(), |block| {
            assert_eq!((block.points.clone(), block.parameters()), (0..1, 1));
            rows.push((block.residuals[0], block.parameter(0)[0]));
        })?;
        assert_eq!(rows.len(), 1);
        let root = 0.5_f64.sqrt();
        assert_close(
            "row",
            &[rows[0].0, rows[0].1],
            &[root * miss, root * 8.0 / 3.0],
            tolerance,
        );
    }
    Ok(())
}

/// Two outputs, a network, many chunks, beside another condition: gradients against central
/// differences, rows against the gradient, and the same bits for all threads.
#[test]
fn integrals_beside_other_conditions() -> Result<(), Error> {
    let mut params = Parameters::seeded(4);
    let net = params.mlp("u", &[2, 8, 8, 1], Tanh)?;
    let c = params.coefficient("c", 0.3)?;
    let integrals = Equation::record("integrals", &params, ["x", "y"], |[x, y]| {
        let [u] = net.at(&[x, y]);
        [u - c.field(), u * u.d(x) - 0.1]
    })?;
    let pde = Equation::record("pde", &params, ["x", "y"], |[x, y]| {
        let [u] = net.at(&[x, y]);
        u.laplacian(&[x, y]) + 1.0
    })?;
    let rule = Quadrature::gauss_legendre(&[(0.0, 1.0, 24), (0.0, 2.0, 23)])?;
    let problem = Problem::new(
        &params,
        [
            Condition::integral(&integrals, &rule).weight(3.0),
            Condition::new(&pde, Points::grid(&[(0.0, 1.0, 9), (0.0, 2.0, 7)])?),
        ],
    )?;
    let engine = Engine::with(&problem, &Options::default().chunk(16))?;
    let theta = params.values();
    let evaluation = engine.evaluate(theta)?;
    // The loss from residuals and weights.
    let lists = engine.residuals("integrals", theta)?;
    let square = |list: &Vec<f64>| {
        let sum: f64 = list.iter().zip(rule.weights()).map(|(r, q)| q * r).sum();
        sum * sum
    };
    let want = 3.0 * lists.iter().map(square).sum::<f64>();
    assert_close("loss", &[evaluation.losses[0]], &[want], 1e-13);
    assert_close(
        "gradient",
        &evaluation.gradient,
        &differences(&engine, theta)?,
        1e-7,
    );
    let mut gradient = vec![0.0; theta.len()];
    let mut loss = 0.0;
    for name in ["integrals", "pde"] {
        engine.rows(name, theta, |rows| {
            for (n, r) in rows.residuals.iter().enumerate() {
                loss += r * r;
                for (i, g) in gradient.iter_mut().enumerate() {
                    *g += 2.0 * r * rows.parameter(i)[n];
                }
            }
        })?;
    }
    assert_close("rows, loss", &[loss], &[evaluation.loss], 1e-13);
    assert_close("rows, gradient", &gradient, &evaluation.gradient, 1e-12);
    // An integral is one row among those of the points, for products with J as well.
    assert_eq!(engine.row_count()?, 2 + 9 * 7);
    let residuals = engine.scaled_residuals(theta)?;
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    assert_close("scaled residuals", &[squares], &[loss], 1e-13);
    let half: Vec<f64> = evaluation.gradient.iter().map(|g| 0.5 * g).collect();
    assert_close("Jᵀr", &engine.transposed(theta, &residuals)?, &half, 1e-12);
    let along = engine.along(theta, &half)?;
    let twice = engine.transposed(theta, &along)?;
    assert_close("JᵀJv", &engine.gauss_newton(theta, &half)?, &twice, 1e-12);
    let by_condition = engine.gradients(theta)?;
    let sum: Vec<f64> = by_condition[0]
        .iter()
        .zip(&by_condition[1])
        .map(|(a, b)| a + b)
        .collect();
    assert_close("sum of gradients", &sum, &evaluation.gradient, 1e-13);
    for threads in 1..=4 {
        let options = Options::default().chunk(16).threads(threads);
        assert_eq!(
            evaluation,
            Engine::with(&problem, &options)?.evaluate(theta)?
        );
    }
    Ok(())
}

#[test]
fn energies_and_squares_over_a_quadrature() -> Result<(), Error> {
    // u = a x (1 - x): ∫ ½u'² - u = a²/6 - a/6; ∫ u² = a²/30.
    let (params, a) = factor(1.7)?;
    let rule = Quadrature::gauss_legendre(&[(0.0, 1.0, 5)])?;
    let energy = Equation::record("energy", &params, ["x"], |[x]| {
        let u = a.field() * x * (1.0 - x);
        0.5 * u.d(x) * u.d(x) - u
    })?;
    let size = Equation::record("size", &params, ["x"], |[x]| a.field() * x * (1.0 - x))?;
    let problem = Problem::new(
        &params,
        [
            Condition::over(&energy, &rule).energy(),
            Condition::over(&size, &rule),
        ],
    )?;
    let losses = Engine::new(&problem)?.losses(params.values())?;
    let want = [1.7 * 1.7 / 6.0 - 1.7 / 6.0, 1.7 * 1.7 / 30.0];
    assert_close("losses", &losses, &want, 1e-14);
    Ok(())
}

// Inverse problems.

#[test]
fn a_network_as_the_unknown_function() -> Result<(), Error> {
    // (k u')' = f with u = sin x known and k = 1 + x² wanted, k(0) = 1 built in.
    let mut params = Parameters::seeded(2);
    let net = params.mlp("k", &[1, 10, 1], Tanh)?;
    let inverse = Equation::record("inverse", &params, ["x"], |[x]| {
        let k = ansatz::initial(x, &[1.0.into()], net.at::<1>(&[x])[0]);
        let u = x.sin();
        let f = 2.0 * x * x.cos() - (1.0 + x * x) * x.sin();
        (k * u.d(x)).d(x) - f
    })?;
    let points = Points::grid(&[(0.0, 1.0, 40)])?;
    let mut engine = Engine::new(&Problem::new(&params, [Condition::new(&inverse, points)])?)?;
    let evaluation = engine.evaluate(params.values())?;
    let differences = differences(&engine, params.values())?;
    assert_close("gradient", &evaluation.gradient, &differences, 1e-6);
    Train::new(4000).run(&mut engine, &mut params, &mut Adam::new(1e-2)?)?;
    let k = Equation::record("k", &params, ["x"], |[x]| {
        ansatz::initial(x, &[1.0.into()], net.at::<1>(&[x])[0])
    })?;
    let grid = Points::grid(&[(0.0, 1.0, 17)])?;
    for (got, x) in values(&k, &params, &grid)?[0]
        .iter()
        .zip(grid.coordinate(0))
    {
        assert!((got - 1.0 - x * x).abs() < 5e-3, "k({x}) = {got}");
    }
    Ok(())
}

// What is built in.

#[test]
fn distances_vanish_on_their_sides_alone() -> Result<(), Error> {
    let square = Domain::cuboid(&[(-1.0, 1.0), (0.0, 3.0)])?;
    let disc = Domain::ball(&[0.0, 1.5], 0.5)?;
    let other = Domain::ball(&[0.4, 1.5], 0.5)?;
    let triangle = Domain::polygon(&[[0.0, 0.0], [2.0, 0.0], [0.5, 1.5]])?;
    let cases: Vec<(&str, Domain, Vec<&str>)> = vec![
        ("interval", Domain::interval(-1.0, 2.0)?, vec!["left"]),
        ("box", square.clone(), vec!["left", "bottom", "top"]),
        (
            "box in time",
            square.in_time(0.0, 1.0)?,
            vec!["initial", "left", "right"],
        ),
        ("disc", disc.clone(), vec!["surface"]),
        ("triangle", triangle, vec!["edge 0", "edge 2"]),
        (
            "hole",
            square.difference(&disc)?,
            vec!["left", "right", "bottom", "top", "surface"],
        ),
        ("hole alone", square.difference(&disc)?, vec!["surface"]),
        ("union", disc.union(&other)?, vec!["surface"]),
        ("lens", disc.intersection(&other)?, vec!["surface"]),
        (
            "box taken away",
            disc.difference(&Domain::cuboid(&[(-0.1, 0.1), (1.4, 1.6)])?)?,
            vec!["surface", "left", "right", "bottom", "top"],
        ),
    ];
    for (name, domain, sides) in cases {
        let (params, a) = factor(1.0)?;
        let axes: Vec<String> = domain.axis_names().to_vec();
        let distance = Equation::record_over("distance", &params, &axes, |x| {
            let all: Field = x.iter().map(|&x| 0.0 * x).sum();
            a.field() * ansatz::distance(&domain, &sides, x) + all
        })?;
        let at = |points: &Points| values(&distance, &params, points);
        let inside = at(&Sampler::over(&domain.interior(), 1).draw(Design::Sobol, 300)?)?;
        assert!(
            inside[0].iter().all(|d| *d > 0.0),
            "{name}: positive inside"
        );
        for side in domain.sides() {
            let points = Sampler::over(&domain.side(&side)?, 1).draw(Design::Sobol, 50)?;
            let largest = at(&points)?[0].iter().fold(0.0_f64, |m, d| m.max(d.abs()));
            if sides.contains(&side.as_str()) {
                assert!(largest < 1e-12, "{name}: {largest:e} on {side}");
            } else {
                assert!(largest > 0.05, "{name}: {largest:e} on {side}");
            }
        }
    }
    Ok(())
}

#[test]
fn distances_of_nonsense_are_named() -> Result<(), Error> {
    let square = Domain::cuboid(&[(-1.0, 1.0), (-1.0, 1.0)])?;
    let two = square.union(&Domain::cuboid(&[(0.0, 2.0), (0.0, 2.0)])?.rename("left", "gate")?)?;
    let dart = Domain::polygon(&[[0.0, 0.0], [2.0, 0.0], [0.5, 0.5], [0.0, 2.0]])?;
    let cases: [(&Domain, &[&str], usize, &str); 6] = [
        (&square, &["lid"], 2, "left, right, bottom, top"),
        (&square, &[], 2, "empty"),
        (&square, &["left"], 1, "coordinates of a distance"),
        (&two, &["gate"], 2, "all of them or none"),
        (&dart, &["edge 0"], 2, "not convex at vertex 2"),
        (&Domain::sphere(&[0.0, 0.0], 1.0)?, &[], 2, "empty"),
    ];
    for (domain, sides, count, part) in cases {
        let (params, a) = factor(1.0)?;
        let error = Equation::record("d", &params, ["x", "y"], |xy| {
            a.field() * ansatz::distance(domain, sides, &xy[..count]) * xy[0] * xy[1]
        });
        let text = error.expect_err(part).to_string();
        assert!(text.contains(part), "{text}: {part}");
    }
    Ok(())
}

#[test]
fn built_in_values_hold_whatever_the_network_is() -> Result<(), Error> {
    let mut params = Parameters::seeded(5);
    let net = params.mlp("n", &[2, 8, 1], Tanh)?;
    let wave = Equation::record("wave", &params, ["t", "x"], |[t, x]| {
        let u = ansatz::initial(t, &[x.sin(), 2.0 * x, x.cos()], net.at::<1>(&[t, x])[0]);
        [
            u,
            u.d(t),
            u.d(t).d(t),
            u.d(t).d(t).d(t),
            net.at::<1>(&[t, x])[0],
        ]
    })?;
    let start = Points::grid(&[(0.0, 0.0, 1), (-1.0, 1.0, 7)])?;
    let got = values(&wave, &params, &start)?;
    for (n, x) in start.coordinate(1).iter().enumerate() {
        let want = [x.sin(), 2.0 * x, x.cos(), 6.0 * got[4][n]];
        for (k, want) in want.into_iter().enumerate() {
            assert!(
                (got[k][n] - want).abs() < 1e-14,
                "order {k} at {x}: {}",
                got[k][n]
            );
        }
    }
    let line = Equation::record("line", &params, ["t", "x"], |[t, x]| {
        let lift = ansatz::between(x, (-1.0, t), (3.0, t * t));
        lift + (x + 1.0) * (3.0 - x) * net.at::<1>(&[t, x])[0]
    })?;
    let ends = Points::from_rows(&[[0.5, -1.0], [0.5, 3.0]])?;
    assert_eq!(values(&line, &params, &ends)?[0], [0.5, 0.25]);
    Ok(())
}

#[test]
fn embeddings_are_periodic() -> Result<(), Error> {
    let mut params = Parameters::seeded(5);
    let net = params.mlp("u", &[7, 8, 1], Tanh)?;
    let jumps = Equation::record("jumps", &params, ["t", "x"], |[t, x]| {
        let u = |x: Field| net.at::<1>(&[&[t][..], &ansatz::periodic(x, 2.5, 3)].concat())[0];
        ansatz::jumps(x, 2.5, 4, u)
    })?;
    let points = Points::grid(&[(0.0, 1.0, 3), (-1.0, 1.0, 4)])?;
    for (order, list) in values(&jumps, &params, &points)?.iter().enumerate() {
        let scale = 10_f64.powi(order as i32);
        assert!(
            list.iter().all(|jump| jump.abs() < 1e-13 * scale),
            "order {order}: {list:?}"
        );
    }
    // Features: as many as promised, and the right frequencies.
    let frequencies = ansatz::random_frequencies(400, 2, 3.0, 1);
    assert_eq!(frequencies, ansatz::random_frequencies(400, 2, 3.0, 1));
    let squares: f64 = frequencies.iter().flatten().map(|b| b * b).sum();
    assert!(
        (squares / 800.0 - 9.0).abs() < 1.5,
        "variance {}",
        squares / 800.0
    );
    let (params, a) = factor(1.0)?;
    let features = Equation::record("features", &params, ["x", "y"], |[x, y]| {
        let waves = ansatz::fourier(&[x, y], &[vec![0.5, 0.25]]);
        [a.field() * waves[0], a.field() * waves[1]]
    })?;
    let got = values(&features, &params, &Points::from_rows(&[[0.5, 1.0]])?)?;
    let angle: f64 = 2.0 * PI * 0.5;
    assert_close(
        "features",
        &got.concat(),
        &[angle.cos(), angle.sin()],
        1e-15,
    );
    let error = Equation::record("bad", &params, ["x", "y"], |[x, y]| {
        a.field() * ansatz::fourier(&[x, y], &[vec![1.0]])[0] * x * y
    });
    assert!(
        error
            .expect_err("one number")
            .to_string()
            .contains("frequency")
    );
    Ok(())
}

// Weights.

/// Two conditions of very different size on one network.
fn unbalanced(seed: u64) -> Result<(Parameters, Problem), Error> {
    let mut params = Parameters::seeded(seed);
    let net = params.mlp("u", &[1, 8, 1], Tanh)?;
    let pde = Equation::record("pde", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        100.0 * (u.d(x) + u)
    })?;
    let start = Equation::record("start", &params, ["x"], |[x]| net.at::<1>(&[x])[0] - 1.0)?;
    let problem = Problem::new(
        &params,
        [
            Condition::new(&pde, Points::grid(&[(0.0, 1.0, 20)])?).weight(2.0),
            Condition::new(&start, Points::from_rows(&[[0.0]])?),
        ],
    )?;
    Ok((params, problem))
}

#[test]
fn weights_can_be_set_without_building_anew() -> Result<(), Error> {
    let (params, problem) = unbalanced(1)?;
    let mut engine = Engine::new(&problem)?;
    assert_eq!((engine.weight("pde")?, engine.weight("start")?), (2.0, 1.0));
    let point_weights: Vec<f64> = (0..20).map(f64::from).collect();
    engine.set_weight("pde", 7.0)?;
    engine.set_point_weights("pde", Some(&point_weights))?;
    let [pde, start] = problem.conditions() else {
        panic!("two conditions")
    };
    let pde = pde.clone().weight(7.0).point_weights(&point_weights);
    let anew = Engine::new(&Problem::new(&params, [pde, start.clone()])?)?;
    assert_eq!(
        engine.evaluate(params.values())?,
        anew.evaluate(params.values())?
    );
    let bad = [
        (engine.set_weight("wall", 1.0), "pde, start"),
        (engine.set_weight("pde", -1.0), "not negative"),
        (engine.set_weight("pde", f64::NAN), "finite"),
        (
            engine.set_point_weights("pde", Some(&[1.0])),
            "point weights",
        ),
        (engine.set_point_weights("start", Some(&[-1.0])), "negative"),
        (engine.weight("wall").map(drop), "wall"),
    ];
    for (result, part) in bad {
        let text = result.expect_err(part).to_string();
        assert!(text.contains(part), "{text}: {part}");
    }
    assert_eq!(
        engine.evaluate(params.values())?,
        anew.evaluate(params.values())?
    );
    Ok(())
}

#[test]
fn balanced_conditions_pull_equally() -> Result<(), Error> {
    let (params, problem) = unbalanced(1)?;
    let theta = params.values();
    let norms = |engine: &Engine| -> Result<Vec<f64>, Error> {
        let norm = |g: &Vec<f64>| g.iter().map(|x| x * x).sum::<f64>().sqrt();
        Ok(engine.gradients(theta)?.iter().map(norm).collect())
    };
    let traces = |engine: &Engine| -> Result<Vec<f64>, Error> {
        ["pde", "start"]
            .into_iter()
            .map(|name| {
                let mut sum = 0.0;
                engine.rows(name, theta, |rows| {
                    for i in 0..rows.parameters() {
                        sum += rows.parameter(i).iter().map(|x| x * x).sum::<f64>();
                    }
                })?;
                Ok(sum)
            })
            .collect()
    };
    let mut engine = Engine::new(&problem)?;
    let before = norms(&engine)?;
    assert!(before[0] > 20.0 * before[1], "{before:?}");
    let plain = [before[0] / 2.0, before[1]];
    let weights = Balance::gradient_norm().apply(&mut engine, theta)?;
    let total = plain[0] + plain[1];
    assert_close(
        "by gradient",
        &weights,
        &[total / plain[0], total / plain[1]],
        1e-12,
    );
    let after = norms(&engine)?;
    assert_close("norms", &after, &[total, total], 1e-12);
    // Balanced weights stay, and memory goes only part of the way.
    assert_close(
        "again",
        &Balance::gradient_norm().apply(&mut engine, theta)?,
        &weights,
        1e-12,
    );
    engine.set_weight("pde", 2.0)?;
    engine.set_weight("start", 1.0)?;
    let part = Balance::gradient_norm()
        .memory(0.75)?
        .apply(&mut engine, theta)?;
    let want = [0.75 * 2.0 + 0.25 * weights[0], 0.75 + 0.25 * weights[1]];
    assert_close("memory", &part, &want, 1e-12);

    let mut engine = Engine::new(&problem)?;
    Balance::ntk_trace().apply(&mut engine, theta)?;
    let after = traces(&engine)?;
    assert_close("traces", &[after[0]], &[after[1]], 1e-12);
    // Switched off, it stays off.
    engine.set_weight("pde", 0.0)?;
    assert_eq!(Balance::ntk_trace().apply(&mut engine, theta)?[0], 0.0);
    assert!(Balance::ntk_trace().memory(1.0).is_err());

    // By losses: a tenth of the way in logarithms, and equal in the end.
    let mut engine = Engine::new(&problem)?;
    let losses = engine.losses(theta)?;
    let mean = (losses[0] + losses[1]) / 2.0;
    let weights = Balance::losses(0.1)?.apply(&mut engine, theta)?;
    let want: Vec<f64> = [2.0, 1.0]
        .iter()
        .zip(&losses)
        .map(|(w, loss)| w * (mean / loss).powf(0.1))
        .collect();
    assert_close("by loss", &weights, &want, 1e-12);
    for _ in 0..400 {
        Balance::losses(0.1)?.apply(&mut engine, theta)?;
    }
    let after = engine.losses(theta)?;
    assert_close("losses", &[after[0]], &[after[1]], 1e-9);
    for power in [0.0, 1.5, f64::NAN] {
        assert!(Balance::losses(power).is_err(), "{power}");
    }
    Ok(())
}

#[test]
fn causal_weights_wait_for_earlier_times() -> Result<(), Error> {
    let times = [0.0, 0.2, 0.6, 0.9, 1.0];
    let lists = [vec![1.0, 2.0, 3.0, 1.0, 1.0], vec![0.0, 1.0, 0.0, 0.0, 1.0]];
    // Slices of length 1/4: {0, 0.2}, {}, {0.6}, {0.9, 1}; mean squares 3, 0, 9, 1.5.
    let got = Causal::new(4, 0.1)?.weights(&times, &lists)?;
    let late = [(-0.3_f64).exp(), (-1.2_f64).exp()];
    assert_close(
        "weights",
        &got,
        &[1.0, 1.0, late[0], late[1], late[1]],
        1e-15,
    );
    let one = Causal::new(3, 0.1)?.weights(&[2.0, 2.0], &[vec![1.0, 1.0]])?;
    assert_eq!(one, [1.0, 1.0]);

    let (params, problem) = unbalanced(1)?;
    let mut engine = Engine::new(&problem)?;
    let times = problem.conditions()[0].points().coordinate(0).to_vec();
    let least = Causal::new(5, 1e-3)?.apply(&mut engine, "pde", &times, params.values())?;
    let residuals = engine.residuals("pde", params.values())?;
    let weights = Causal::new(5, 1e-3)?.weights(&times, &residuals)?;
    assert_eq!(least, weights[19]);
    assert!(
        least < 1.0 && weights.is_sorted_by(|a, b| a >= b),
        "{weights:?}"
    );
    let loss = weights
        .iter()
        .zip(&residuals[0])
        .map(|(w, r)| w * r * r)
        .sum::<f64>()
        / 20.0;
    assert_close(
        "loss",
        &engine.losses(params.values())?[..1],
        &[2.0 * loss],
        1e-13,
    );
    assert!(Causal::new(0, 1.0).is_err() && Causal::new(1, -1.0).is_err());
    assert!(Causal::new(2, 1.0)?.weights(&[], &[]).is_err());
    assert!(Causal::new(2, 1.0)?.weights(&[0.0], &[vec![]]).is_err());
    Ok(())
}

#[test]
fn points_that_stay_wrong_gain_weight() -> Result<(), Error> {
    let mut ascent = SelfAdaptive::ascent(0.5)?;
    ascent.update(&[vec![1.0, 2.0]])?;
    assert_eq!(ascent.update(&[vec![1.0, 0.0]])?, [2.0, 3.0]);
    let text = serde_json::to_string(&ascent).expect("a text");
    let mut again: SelfAdaptive = serde_json::from_str(&text).expect("weights");
    assert_eq!(
        again.update(&[vec![0.0, 2.0]])?,
        ascent.update(&[vec![0.0, 2.0]])?
    );
    assert_eq!(
        ascent.update(&[vec![1.0]])?,
        [1.5],
        "other points start anew"
    );
    ascent.reset();
    assert_eq!(ascent.update(&[vec![1.0]])?, [1.5]);

    let mut bounded = SelfAdaptive::bounded(0.9, 0.1)?;
    for _ in 0..500 {
        bounded.update(&[vec![4.0, 1.0, 0.0]])?;
    }
    let want = [1.0, 0.25, 0.0];
    assert_close(
        "bounded",
        bounded.update(&[vec![4.0, 1.0, 0.0]])?,
        &want,
        1e-12,
    );
    assert!(SelfAdaptive::bounded(1.0, 0.1).is_err() && SelfAdaptive::ascent(-1.0).is_err());
    assert!(ascent.update(&[]).is_err() && ascent.update(&[vec![f64::NAN]]).is_err());

    let (params, problem) = unbalanced(1)?;
    let mut engine = Engine::new(&problem)?;
    let residuals = engine.residuals("pde", params.values())?;
    let mut weights = SelfAdaptive::ascent(0.01)?;
    weights.apply(&mut engine, "pde", params.values())?;
    let want: f64 = residuals[0]
        .iter()
        .map(|r| (1.0 + 0.01 * r * r) * r * r)
        .sum();
    assert_close(
        "loss",
        &engine.losses(params.values())?[..1],
        &[2.0 * want / 20.0],
        1e-13,
    );
    Ok(())
}

#[test]
fn weights_change_in_the_loop() -> Result<(), Error> {
    let (mut params, problem) = unbalanced(1)?;
    let mut engine = Engine::new(&problem)?;
    let balance = Balance::gradient_norm().memory(0.5)?;
    let mut seen = Vec::new();
    Train::new(300)
        .redraw(50, (), |(), engine, params| {
            seen.push(balance.apply(engine, params.values())?);
            Ok(())
        })
        .run(&mut engine, &mut params, &mut Adam::new(1e-2)?)?;
    assert_eq!(seen.len(), 5);
    assert!(
        seen.iter().all(|weights| weights[1] > weights[0]),
        "{seen:?}"
    );
    assert_eq!(engine.weight("start")?, seen[4][1]);
    Ok(())
}
