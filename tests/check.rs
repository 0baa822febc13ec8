//! The gradient check: passes what is right, and catches every error that is planted.

use dualtape::check::{Finding, GradientCheck, Test, Verdict, check_remainders};
use dualtape::elemental::Smoothness;
use dualtape::{
    Condition, Elemental, Engine, Equation, Error, Field, Lowering, Options, Parameters, Points,
    Precision, Problem, Quadrature, check_gradient, check_gradient_with, data, detach, select,
};
use proptest::prelude::*;

/// Conditions of every measure on two networks and a coefficient.
fn problem() -> Result<(Parameters, Problem), Error> {
    let mut params = Parameters::seeded(5);
    let u = params.mlp("u", &[2, 7, 6, 1], Elemental::Tanh)?;
    let k = params.mlp("k", &[1, 4, 1], Elemental::Softplus)?;
    let nu = params.coefficient("nu", 0.3)?;
    for (place, value) in params.values_mut().iter_mut().enumerate() {
        *value += 0.1 * (place as f64).sin();
    }
    let flow = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
        let [u] = u.at(&[t, x]);
        let [k] = k.at(&[x]);
        u.d(t) + u * u.d(x) - (nu.field() * k * u.d(x)).d(x)
    })?;
    let start = Equation::record("start", &params, ["t", "x"], |[t, x]| {
        let far = u.at::<1>(&[t, x])[0] - data("observed");
        select(x.above(0.2), far, 2.0 * far)
    })?;
    let energy = Equation::record("energy", &params, ["t", "x"], |[t, x]| {
        let [u] = u.at(&[t, x]);
        0.5 * u.d(x) * u.d(x) + u * t * x
    })?;
    let points = Points::grid(&[(0.0, 1.0, 6), (-1.0, 1.0, 7)])?;
    let observed: Vec<f64> = points.coordinate(1).iter().map(|x| x.sin()).collect();
    let weights: Vec<f64> = points.coordinate(0).iter().map(|t| 1.0 + t).collect();
    let rule = Quadrature::gauss_legendre(&[(0.0, 1.0, 3), (-1.0, 1.0, 4)])?;
    let conditions = [
        Condition::new(&flow, points.clone()).point_weights(&weights),
        Condition::new(&start, points.with_column("observed", &observed)?).weight(10.0),
        Condition::over(&energy, &rule).energy(),
        Condition::integral(&flow, &rule).named("mass"),
    ];
    let problem = Problem::new(&params, conditions)?;
    Ok((params, problem))
}

/// The names and gradients of a problem, to plant errors in.
struct Plant {
    params: Parameters,
    engine: Engine,
    gradients: Vec<Vec<f64>>,
}

impl Plant {
    fn new() -> Result<Self, Error> {
        let (params, problem) = problem()?;
        let engine = Engine::new(&problem)?;
        let gradients = engine.gradients(params.values())?;
        Ok(Self {
            params,
            engine,
            gradients,
        })
    }
    fn check(&self, gradients: &[Vec<f64>]) -> GradientCheck {
        let (params, engine) = (&self.params, &self.engine);
        check_remainders(
            engine.conditions(),
            params.blocks(),
            params.values(),
            gradients,
            |at| engine.losses(at),
        )
    }
    /// What a tampered gradient of one condition leads to.
    fn with(&self, condition: usize, tamper: impl FnOnce(&mut Vec<f64>)) -> GradientCheck {
        let mut gradients = self.gradients.clone();
        tamper(&mut gradients[condition]);
        self.check(&gradients)
    }
}

/// Everything of one test that is in doubt.
fn doubts(report: &GradientCheck, test: Test) -> Vec<&Finding> {
    report.doubts().filter(|f| f.test == test).collect()
}

#[test]
fn c16_a_right_gradient_passes_with_slope_two() -> Result<(), Error> {
    let (params, problem) = problem()?;
    let report = check_gradient(&problem, params.values());
    println!("{report:#}");
    assert!(report.passed(), "{report}");
    // 4 conditions on 4 + 4 blocks of weights and biases, u's of three layers, and nu.
    assert_eq!(report.tests(Test::Remainder), 2 * 4 * 11);
    assert_eq!(report.tests(Test::Nested), 4 * 11);
    assert_eq!(report.tests(Test::Recomputation), 4 * 11);
    for lowering in [Lowering::NestedReverse, Lowering::Partial { inner: 1 }] {
        assert_eq!(report.tests(Test::Lowering(lowering)), 4 * 11);
    }
    let mut slopes = 0;
    for finding in report.findings() {
        if let Some(slope) = finding.slope {
            slopes += 1;
            // Faster, 4, where the third derivative along the direction vanishes.
            assert!((slope - 2.0).abs() < 0.05 || slope > 3.8, "{finding}");
        }
    }
    assert!(slopes > 40, "{slopes}");
    Ok(())
}

#[test]
fn c16_one_weight_with_its_sign_reversed() -> Result<(), Error> {
    let plant = Plant::new()?;
    let largest = plant
        .gradients
        .iter()
        .flatten()
        .fold(0.0_f64, |m, g| m.max(g.abs()));
    let mut planted = 0;
    for condition in 0..plant.gradients.len() {
        for index in (condition..plant.params.len()).step_by(5) {
            let g = plant.gradients[condition][index];
            if g.abs() < 1e-7 * largest {
                continue;
            }
            planted += 1;
            let report = plant.with(condition, |gradient| gradient[index] = -g);
            let (block, row, column) = plant.params.locate(index).expect("a place");
            let found = doubts(&report, Test::Remainder);
            assert!(
                !found.is_empty() && !report.passed(),
                "parameter {index}: {report}"
            );
            for finding in found {
                let place = (&finding.condition, &finding.block, finding.entry);
                let name = &plant.engine.conditions()[condition];
                assert_eq!(place, (name, &block.name, Some((row, column))), "{finding}");
                assert_eq!(finding.verdict, Verdict::Differs);
                assert!((finding.gradient + g).abs() < 1e-12 * largest, "{finding}");
                assert!((finding.reference - g).abs() < 1e-6 * largest, "{finding}");
                assert!(finding.slope.is_none_or(|slope| slope < 0.5), "{finding}");
            }
        }
    }
    println!("{planted} weights reversed, each found by name, row and column");
    assert!(planted > 40, "{planted}");
    Ok(())
}

/// The gradient of each term of the flow equation alone.
#[test]
fn c16_one_term_missing_or_three_percent_off() -> Result<(), Error> {
    let mut params = Parameters::seeded(5);
    let net = params.mlp("u", &[2, 7, 1], Elemental::Tanh)?;
    let points = Points::grid(&[(0.0, 1.0, 5), (-1.0, 1.0, 5)])?;
    type Term = fn(Field, Field, Field) -> Field;
    let terms: [Term; 3] = [
        |u, t, _| u.d(t),
        |u, _, x| u * u.d(x),
        |u, _, x| -0.1 * u.d(x).d(x),
    ];
    // The residual with one term's reverse sweep cut off, in whole or in part.
    let gradient = |held: Option<(usize, f64)>| -> Result<Vec<f64>, Error> {
        let equation = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
            let [u] = net.at(&[t, x]);
            let parts = terms.iter().enumerate().map(|(place, term)| {
                let value = term(u, t, x);
                match held {
                    Some((cut, share)) if cut == place => {
                        (1.0 - share) * value + share * detach(value)
                    }
                    _ => value,
                }
            });
            parts.sum::<Field>()
        })?;
        let problem = Problem::new(&params, [Condition::new(&equation, points.clone())])?;
        Ok(Engine::new(&problem)?.evaluate(params.values())?.gradient)
    };
    let equation = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        terms.iter().map(|term| term(u, t, x)).sum::<Field>()
    })?;
    let problem = Problem::new(&params, [Condition::new(&equation, points.clone())])?;
    let engine = Engine::new(&problem)?;
    let check = |gradient: Vec<f64>| {
        check_remainders(
            engine.conditions(),
            params.blocks(),
            params.values(),
            &[gradient],
            |at| engine.losses(at),
        )
    };
    assert!(check(gradient(None)?).passed());
    for term in 0..terms.len() {
        for share in [1.0, 0.03, 1e-5] {
            let report = check(gradient(Some((term, share)))?);
            assert!(!report.passed(), "term {term}, {share}");
            let found = doubts(&report, Test::Remainder);
            // In every block: the term depends on all of them, but for the last bias.
            assert!(found.len() >= 6, "term {term}, {share}: {report}");
            for finding in found {
                let slope = finding.slope;
                assert!(slope.is_none_or(|slope| slope < 1.9), "{finding}");
            }
        }
    }
    Ok(())
}

#[test]
fn c16_other_wrong_gradients() -> Result<(), Error> {
    let plant = Plant::new()?;
    assert!(plant.check(&plant.gradients).passed());
    type Tamper = fn(&mut Vec<f64>);
    let tampers: [(&str, Tamper); 8] = [
        ("zero", |g| g.fill(0.0)),
        ("doubled", |g| g.iter_mut().for_each(|g| *g *= 2.0)),
        ("a millionth off", |g| {
            g.iter_mut().for_each(|g| *g *= 1.0 + 1e-6)
        }),
        ("two entries exchanged", |g| g.swap(1, 4)),
        ("shifted by one", |g| g.rotate_left(1)),
        ("one missing number", |g| g[3] = 0.0),
        ("not a number", |g| g[3] = f64::NAN),
        ("infinite", |g| g[3] = f64::INFINITY),
    ];
    for (what, tamper) in tampers {
        for condition in 0..2 {
            let report = plant.with(condition, tamper);
            assert!(!report.passed(), "{what}: {report}");
            let other = |f: &&Finding| f.condition != plant.engine.conditions()[condition];
            assert_eq!(report.doubts().filter(other).count(), 0, "{what}: {report}");
        }
    }
    // Any two neighbours that have changed places.
    let entries = plant.gradients[0].len();
    for i in 0..entries - 1 {
        let report = plant.with(0, |g| g.swap(i, i + 1));
        assert!(!report.passed(), "entries {i} and {}: {report}", i + 1);
    }
    // A vector that is too short or too long, and gradients of other conditions.
    assert!(!plant.with(0, |g| g.truncate(3)).passed());
    assert!(!plant.with(0, |g| g.push(0.0)).passed());
    assert!(!plant.check(&plant.gradients[1..]).passed());
    let mut exchanged = plant.gradients.clone();
    exchanged.swap(0, 1);
    assert!(!plant.check(&exchanged).passed());
    Ok(())
}

/// tanh with one coefficient that is off by a share.
fn off(order: usize, share: f64) -> Elemental {
    Elemental::custom("off", Smoothness::Unlimited, move |z, c| {
        let right = Elemental::Tanh.taylor(z, c.len() - 1).expect("orders");
        c.copy_from_slice(&right);
        if let Some(c) = c.get_mut(order) {
            *c *= 1.0 + share;
        }
    })
}

/// The whole check, of a function of the user whose derivatives are wrong.
#[test]
fn c16_an_elemental_with_a_wrong_derivative() -> Result<(), Error> {
    for order in 1..=3 {
        for share in [0.0, -2.0, 0.03, 1e-4] {
            let mut params = Parameters::seeded(2);
            let net = params.mlp("u", &[1, 5, 1], off(order, share))?;
            let equation = Equation::record("eq", &params, ["x"], |[x]| {
                let [u] = net.at(&[x]);
                u.d(x).d(x) + u
            })?;
            let points = Points::grid(&[(-1.0, 1.0, 9)])?;
            let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
            let report = check_gradient(&problem, params.values());
            assert_eq!(
                report.passed(),
                share == 0.0,
                "c_{order} by {share}: {report}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_detached_part_is_named() -> Result<(), Error> {
    let mut params = Parameters::seeded(2);
    let net = params.mlp("u", &[1, 5, 1], Elemental::Tanh)?;
    let equation = Equation::record("held", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        detach(u.d(x)) + u
    })?;
    let points = Points::grid(&[(-1.0, 1.0, 9)])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    let report = check_gradient(&problem, params.values());
    assert!(!doubts(&report, Test::Remainder).is_empty());
    // Both say what the sweep should say; it is the loss that has another slope.
    assert!(doubts(&report, Test::Nested).is_empty(), "{report}");
    let Err(Error::Gradient { report }) = report.require() else {
        panic!("it passed");
    };
    assert!(
        report.contains("DIFFERS") && report.contains("held / u.0.weight"),
        "{report}"
    );
    Ok(())
}

#[test]
fn it_fails_closed() -> Result<(), Error> {
    let (params, whole) = problem()?;
    // Parameters of another number, or not finite.
    for theta in [&params.values()[1..], &vec![f64::NAN; params.len()]] {
        let report = check_gradient(&whole, theta);
        assert!(!report.passed());
        assert!(report.to_string().contains("FAILED"), "{report}");
    }
    // A loss that is an error, at once or later, or of another number.
    let names = ["f".to_owned()];
    let mut params = Parameters::new();
    params.coefficient("a", 1.0)?;
    type Losses<'a> = dyn FnMut(&[f64]) -> Result<Vec<f64>, Error> + 'a;
    let check = |losses: &mut Losses<'_>| {
        check_remainders(
            &names,
            params.blocks(),
            params.values(),
            &[vec![2.0]],
            losses,
        )
    };
    assert!(check(&mut |x| Ok(vec![x[0] * x[0]])).passed());
    assert!(
        !check(&mut |_| Err(Error::Empty {
            what: "it".to_owned()
        }))
        .passed()
    );
    let mut calls = 0;
    let mut later = |x: &[f64]| {
        calls += 1;
        if calls > 30 {
            Err(Error::Empty {
                what: "it".to_owned(),
            })
        } else {
            Ok(vec![x[0] * x[0]])
        }
    };
    assert!(!check(&mut later).passed());
    assert!(!check(&mut |_| Ok(vec![])).passed());
    assert!(!check(&mut |_| Ok(vec![f64::NAN])).passed());
    // Nothing to be tested is no pass.
    let none = check_remainders(&names, &[], &[], &[vec![]], |_| Ok(vec![1.0]));
    assert!(!none.passed() && none.findings().is_empty());
    assert!(none.to_string().contains("NOT PASSED"), "{none}");
    Ok(())
}

#[test]
fn what_cannot_be_resolved_is_no_pass() -> Result<(), Error> {
    let names = ["f".to_owned()];
    let mut params = Parameters::new();
    params.coefficient("a", 0.7)?;
    for (scale, want) in [(1e-6, Verdict::Agrees), (1e-17, Verdict::Unresolved)] {
        let gradient = vec![scale * 0.7_f64.cos()];
        let report = check_remainders(&names, params.blocks(), params.values(), &[gradient], |x| {
            Ok(vec![1.0 + scale * x[0].sin()])
        });
        assert_eq!(report.passed(), want == Verdict::Agrees);
        assert_eq!(report.findings()[0].verdict, want, "{report:#}");
    }
    Ok(())
}

#[test]
fn a_domain_that_large_steps_leave() -> Result<(), Error> {
    // √a with a = 0.01: the first steps go below 0.
    let mut params = Parameters::new();
    let a = params.coefficient("a", 0.01)?;
    let equation = Equation::record("root", &params, ["x"], |[x]| a.field().sqrt() - x)?;
    let points = Points::grid(&[(0.0, 1.0, 5)])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    let report = check_gradient(&problem, params.values());
    assert!(report.passed(), "{report}");
    Ok(())
}

#[test]
fn single_precision_passes_to_its_own_resolution() -> Result<(), Error> {
    let (params, problem) = problem()?;
    let options = Options::default().precision(Precision::Single);
    let report = check_gradient_with(&problem, params.values(), &options);
    let differs = |f: &&Finding| !matches!(f.verdict, Verdict::Agrees | Verdict::Unresolved);
    assert_eq!(report.doubts().filter(differs).count(), 0, "{report}");
    let agree = report.findings().len() - report.doubts().count();
    assert!(agree > 60, "{agree}: {report}");
    Ok(())
}

#[test]
fn orders_beyond_three_are_left_to_remainders() -> Result<(), Error> {
    let mut params = Parameters::seeded(2);
    let net = params.mlp("u", &[2, 5, 1], Elemental::Sin)?;
    let points = Points::grid(&[(-1.0, 1.0, 4), (0.0, 1.0, 3)])?;
    type Operator = fn(Field, Field, Field) -> Field;
    let operators: [(Operator, usize); 4] = [
        (|u, x, _| u.d(x).d(x).d(x), 5),
        (|u, x, y| u.d(y).laplacian(&[x, y]), 5),
        (|u, x, y| (u * u.laplacian(&[x, y])).d(x), 5),
        (|u, x, y| u.laplacian(&[x, y]).laplacian(&[x, y]), 0),
    ];
    for (operator, nested) in operators {
        let equation = Equation::record("eq", &params, ["x", "y"], |[x, y]| {
            let [u] = net.at(&[x, y]);
            operator(u, x, y) + u
        })?;
        let problem = Problem::new(&params, [Condition::new(&equation, points.clone())])?;
        let report = check_gradient(&problem, params.values());
        assert!(report.passed(), "{report}");
        assert_eq!(report.tests(Test::Nested), nested.min(4));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// Whatever the network, a right gradient passes, and one with a wrong entry does not.
    #[test]
    fn any_network(seed: u64, width in 1..6_usize, layers in 1..3_usize, which: prop::sample::Index) {
        let mut params = Parameters::seeded(seed);
        let widths = [vec![1], vec![width; layers], vec![1]].concat();
        let net = params.mlp("u", &widths, Elemental::Tanh).expect("a network");
        let equation = Equation::record("eq", &params, ["x"], |[x]| {
            let [u] = net.at(&[x]);
            u.d(x) + u * u - x
        }).expect("an equation");
        let points = Points::grid(&[(-1.0, 1.0, 6)]).expect("points");
        let problem = Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
        let engine = Engine::new(&problem).expect("an engine");
        let mut gradient = engine.gradients(params.values()).expect("a gradient");
        let check = |gradient: &[Vec<f64>]| {
            check_remainders(engine.conditions(), params.blocks(), params.values(), gradient, |at| engine.losses(at))
        };
        let report = check(&gradient);
        prop_assert!(report.passed(), "{report}");
        let largest = gradient[0].iter().fold(0.0_f64, |m, g| m.max(g.abs()));
        let place = which.index(gradient[0].len());
        gradient[0][place] += 1e-6 * largest;
        prop_assert!(!check(&gradient).passed());
    }
}
