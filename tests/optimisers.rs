//! Optimisers on known problems, and against their formulas.

use dualtape::optim::{Halt, Iterate, LastLayer, Optimizer, Schedule, fit_last_layer};
use dualtape::{
    Adam, Condition, Elemental::Tanh, Engine, Equation, Error, GaussNewtonCg, GradientDescent,
    Lbfgs, LevenbergMarquardt, Minimizer, Objective, Options, Parameters, Points, Problem, Rows,
    Spring, SsBroyden, Train, values,
};
use nalgebra::{DMatrix, DVector};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Residuals with their Jacobian, as an objective; `slope` multiplies what is said of the
/// derivatives, so that -1 is a lie.
struct Squares<F> {
    parameters: usize,
    residuals: F,
    slope: f64,
}

impl<F: Fn(&[f64]) -> (DVector<f64>, DMatrix<f64>) + Sync> Squares<F> {
    fn new(parameters: usize, residuals: F) -> Self {
        Self {
            parameters,
            residuals,
            slope: 1.0,
        }
    }
}

impl<F: Fn(&[f64]) -> (DVector<f64>, DMatrix<f64>) + Sync> Objective for Squares<F> {
    fn parameters(&self) -> usize {
        self.parameters
    }
    fn gradient(&self, theta: &[f64], gradient: &mut [f64]) -> Result<f64, Error> {
        let (r, j) = (self.residuals)(theta);
        gradient.copy_from_slice((self.slope * 2.0 * j.transpose() * &r).as_slice());
        Ok(r.norm_squared())
    }
    fn row_count(&self) -> Result<usize, Error> {
        Ok((self.residuals)(&vec![0.0; self.parameters]).0.len())
    }
    fn rows(&self, theta: &[f64], visit: &mut dyn FnMut(Rows<'_>)) -> Result<(), Error> {
        let (r, j) = (self.residuals)(theta);
        let j = self.slope * j;
        // Blocks of different sizes.
        let mut start = 0;
        while start < r.len() {
            let count = (r.len() - start).min(1 + start % 7 + 30);
            let block = j.rows(start, count).into_owned();
            visit(Rows::new(
                r.rows(start, count).as_slice(),
                block.as_slice(),
            )?);
            start += count;
        }
        Ok(())
    }
}

/// Residuals and their derivatives.
type Residuals = (DVector<f64>, DMatrix<f64>);

fn rosenbrock() -> Squares<impl Fn(&[f64]) -> Residuals + Sync> {
    Squares::new(2, |theta| {
        let (x, y) = (theta[0], theta[1]);
        let r = DVector::from_vec(vec![1.0 - x, 10.0 * (y - x * x)]);
        (
            r,
            DMatrix::from_row_slice(2, 2, &[-1.0, 0.0, -20.0 * x, 10.0]),
        )
    })
}

/// Steps until the method halts or the number is reached; gives the halt.
fn minimise(
    objective: &dyn Objective,
    method: &mut dyn Minimizer,
    theta: &mut [f64],
    steps: usize,
) -> Result<Option<Halt>, Error> {
    let mut gradient = vec![0.0; theta.len()];
    for _ in 0..steps {
        let loss = objective.gradient(theta, &mut gradient)?;
        let at = Iterate {
            theta: &mut *theta,
            loss,
            gradient: &gradient,
        };
        if let Some(halt) = method.step(objective, at)? {
            return Ok(Some(halt));
        }
    }
    Ok(None)
}

/// All methods that look at the loss, each fresh.
fn searching() -> Vec<Box<dyn Minimizer>> {
    vec![
        Box::new(Lbfgs::default()),
        Box::new(SsBroyden::default()),
        Box::new(LevenbergMarquardt::default()),
        Box::new(Spring::default()),
        Box::new(GaussNewtonCg::default()),
    ]
}

#[test]
fn c14_rosenbrock() -> Result<(), Error> {
    for mut method in searching() {
        let objective = rosenbrock();
        let mut theta = [-1.2, 1.0];
        let halt = minimise(&objective, method.as_mut(), &mut theta, 400)?;
        let loss = objective.value(&theta)?;
        assert!(loss < 1e-20, "{}: {loss:e}, {halt:?}", method.name());
    }
    Ok(())
}

#[test]
fn c14_a_search_that_fails_leaves_the_parameters() -> Result<(), Error> {
    let mut objective = rosenbrock();
    objective.slope = -1.0;
    for mut method in searching() {
        let mut theta = [-1.2, 1.0];
        let halt = minimise(&objective, method.as_mut(), &mut theta, 1)?;
        assert!(
            matches!(halt, Some(Halt::LineSearch | Halt::NoDecrease)),
            "{}: {halt:?}",
            method.name()
        );
        let bits = theta.map(f64::to_bits);
        assert_eq!(bits, [-1.2_f64, 1.0].map(f64::to_bits), "{}", method.name());
        let text = halt.map(|halt| halt.to_string()).unwrap_or_default();
        assert!(text.contains("decrease"), "{text}");
    }
    Ok(())
}

#[test]
fn a_zero_gradient_is_a_named_end() -> Result<(), Error> {
    for mut method in searching() {
        let mut theta = [1.0, 1.0];
        let halt = minimise(&rosenbrock(), method.as_mut(), &mut theta, 1)?;
        assert_eq!(halt, Some(Halt::Stationary), "{}", method.name());
        assert_eq!(theta, [1.0, 1.0]);
    }
    Ok(())
}

#[test]
fn c14_a_changed_loss_drops_the_memory() -> Result<(), Error> {
    let make: [fn() -> Box<dyn Minimizer>; 2] = [
        || Box::new(Lbfgs::default()),
        || Box::new(SsBroyden::default()),
    ];
    for make in make {
        let objective = rosenbrock();
        let (mut old, mut theta) = (make(), [-1.2, 1.0]);
        minimise(&objective, old.as_mut(), &mut theta, 10)?;
        let mut with_memory = theta;
        let mut dropped = theta;
        let mut fresh = theta;
        let snapshot = old.snapshot().expect("a snapshot");
        minimise(&objective, old.as_mut(), &mut with_memory, 1)?;
        old.restore(&snapshot)?;
        old.loss_changed();
        minimise(&objective, old.as_mut(), &mut dropped, 1)?;
        minimise(&objective, make().as_mut(), &mut fresh, 1)?;
        assert_eq!(dropped, fresh, "{}", old.name());
        assert_ne!(dropped, with_memory, "{}", old.name());
    }
    Ok(())
}

#[test]
fn a_changed_memory_is_refused_or_harmless() -> Result<(), Error> {
    let (mut refused, mut harmless) = (0, 0);
    let mut methods = every_method()?;
    let mut params = Parameters::new();
    let single = params.mlp("n", &[1, 1], Tanh)?;
    methods.push(Box::new(LastLayer::of(&params, &single)?));
    for mut method in methods {
        let mut theta = [-1.2, 1.0];
        minimise(&rosenbrock(), method.as_mut(), &mut theta, 6)?;
        let good = method.snapshot().expect("a snapshot");
        let rate = method.rate().to_le_bytes();
        for number in [0.0, -1.0, 5e-324, 1e300, f64::INFINITY, f64::NAN] {
            for place in 0..good.len() - 7 {
                let mut changed = good.clone();
                changed[place..place + 8].copy_from_slice(&f64::to_le_bytes(number));
                if method.restore(&changed).is_ok() {
                    harmless += 1;
                    // Ends, with whatever result.
                    let _ = minimise(&rosenbrock(), method.as_mut(), &mut theta.clone(), 3);
                } else {
                    refused += 1;
                }
                // The rate is a setting or a damping; of the two others it is a report.
                let is_rate = good[place..place + 8] == rate;
                if is_rate && !["L-BFGS", "SSBroyden"].contains(&method.name()) {
                    let may_be_fresh = ["Levenberg-Marquardt", "Gauss-Newton on the last layer"];
                    let fresh = number.is_nan() && may_be_fresh.contains(&method.name());
                    let expected = fresh || number > 0.0 && number.is_finite();
                    let restored = method.restore(&changed).is_ok();
                    assert_eq!(restored, expected, "{} with {number}", method.name());
                }
                method.restore(&good)?;
                assert_eq!(method.snapshot().as_ref(), Some(&good), "{}", method.name());
            }
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 1000 && harmless > 1000);
    Ok(())
}

#[test]
fn schedules_come_back_and_do_not_nest_without_end() -> Result<(), Error> {
    let schedules = [
        Schedule::Constant,
        Schedule::exponential(0.5, 3)?,
        Schedule::cosine(9, 0.1)?.warm_up(3)?,
        Schedule::piecewise(&[(2, 0.5), (4, 0.1)])?
            .warm_up(2)?
            .warm_up(1)?,
    ];
    for schedule in schedules {
        let given = GradientDescent::new(0.1)?.schedule(schedule);
        let snapshot = Optimizer::snapshot(&given).expect("a snapshot");
        let mut back = GradientDescent::new(1.0)?;
        Optimizer::restore(&mut back, &snapshot)?;
        assert_eq!(back, given);
    }
    // So many warm-ups of one step, and then a constant rate, from step 0.
    let restore = |count: usize, as_bytes: &[u8]| {
        let mut bytes = [&0.1_f64.to_le_bytes(), as_bytes].concat();
        bytes.extend(std::iter::repeat_n(1, count));
        bytes.extend([0, 0]);
        Optimizer::restore(&mut GradientDescent::new(1.0)?, &bytes)
    };
    restore(64, &[64])?;
    for (count, as_bytes) in [(65, &[65][..]), (1_000_000, &[0xc0, 0x84, 0x3d])] {
        assert!(restore(count, as_bytes).is_err(), "{count} warm-ups");
    }
    Ok(())
}

/// r = tanh(A θ) − b with random entries.
fn random(rows: usize, columns: usize) -> Squares<impl Fn(&[f64]) -> Residuals + Sync> {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut next = || random.random_range(-1.0..1.0);
    let a = DMatrix::from_fn(rows, columns, |_, _| next());
    let b = DVector::from_fn(rows, |_, _| next());
    Squares::new(columns, move |theta| {
        let z = (&a * DVector::from_column_slice(theta)).map(f64::tanh);
        let mut j = a.clone();
        for (mut row, z) in j.row_iter_mut().zip(z.iter()) {
            row *= 1.0 - z * z;
        }
        (z - &b, j)
    })
}

/// More rows than columns, fewer, and sizes around those of panels and bands.
const SHAPES: [(usize, usize); 9] = [
    (1, 1),
    (7, 3),
    (3, 7),
    (300, 31),
    (300, 32),
    (300, 33),
    (1500, 150),
    (150, 151),
    (70, 260),
];

#[test]
fn levenberg_marquardt_agrees_with_the_normal_equations() -> Result<(), Error> {
    for (rows, columns) in SHAPES {
        let objective = random(rows, columns);
        let mut method = LevenbergMarquardt::default().acceleration(0.0)?;
        let mut theta = vec![0.01; columns];
        for step in 0..4 {
            let before = theta.clone();
            let (r, j) = (objective.residuals)(&before);
            if minimise(&objective, &mut method, &mut theta, 1)?.is_some() {
                break;
            }
            let lambda = method.rate();
            let jt = j.transpose();
            // In the space that is smaller, which is as well conditioned as J allows.
            let want = if rows >= columns {
                let system = &jt * &j + lambda * DMatrix::identity(columns, columns);
                -system.cholesky().expect("definite").solve(&(&jt * &r))
            } else {
                let system = &j * &jt + lambda * DMatrix::identity(rows, rows);
                -&jt * system.cholesky().expect("definite").solve(&r)
            };
            let got = DVector::from_iterator(
                columns,
                theta
                    .iter()
                    .zip(&before)
                    .map(|(after, before)| after - before),
            );
            let error = (&got - &want).norm() / want.norm();
            assert!(
                error < 1e-8,
                "{rows}x{columns}, step {step}, damping {lambda:e}: {error:e}"
            );
        }
    }
    Ok(())
}

/// The bend of a step is −½ (JᵀJ + λI)⁻¹ Jᵀ r″; along Rosenbrock's valley it is what counts.
#[test]
fn levenberg_marquardt_bends_its_steps() -> Result<(), Error> {
    let objective = rosenbrock();
    let mut method = LevenbergMarquardt::default().acceleration(100.0)?;
    let before = [-1.2, 1.0];
    let mut theta = before;
    minimise(&objective, &mut method, &mut theta, 1)?;
    let (r, j) = (objective.residuals)(&before);
    let system = j.transpose() * &j + method.rate() * DMatrix::identity(2, 2);
    let system = system.cholesky().expect("definite");
    let p = -system.solve(&(j.transpose() * &r));
    let second = DVector::from_vec(vec![0.0, -20.0 * p[0] * p[0]]);
    let bend = -0.5 * system.solve(&(j.transpose() * second));
    let got = DVector::from_iterator(2, theta.iter().zip(before).map(|(x, from)| x - from));
    assert!(bend.norm() > 0.1 * p.norm(), "a case that bends");
    let error = (&got - (&p + &bend)).norm() / p.norm();
    assert!(error < 1e-9, "{error:e}");
    Ok(())
}

#[test]
fn levenberg_marquardt_solves_linear_least_squares_at_once() -> Result<(), Error> {
    let (rows, columns) = (500, 80);
    let mut random = ChaCha8Rng::seed_from_u64(9);
    // Columns of very different sizes: the normal equations would see half of them as noise.
    let a = DMatrix::from_fn(rows, columns, |_, j| {
        random.random_range(-1.0..1.0) * 10_f64.powf(-10.0 * j as f64 / columns as f64)
    });
    let solution = DVector::from_fn(columns, |j, _| 1.0 + j as f64);
    let b = &a * &solution;
    let objective = Squares::new(columns, |theta| {
        (&a * DVector::from_column_slice(theta) - &b, a.clone())
    });
    let mut theta = vec![0.0; columns];
    minimise(
        &objective,
        &mut LevenbergMarquardt::default(),
        &mut theta,
        3,
    )?;
    let error = (DVector::from_vec(theta) - &solution).amax();
    assert!(error < 1e-2, "largest error {error:e}");
    Ok(())
}

#[test]
fn least_squares_by_every_method() -> Result<(), Error> {
    for mut method in searching() {
        let objective = random(60, 12);
        let mut theta = vec![0.1; 12];
        let mut best = vec![0.1; 12];
        minimise(&objective, method.as_mut(), &mut theta, 300)?;
        minimise(
            &objective,
            &mut LevenbergMarquardt::default(),
            &mut best,
            100,
        )?;
        let (loss, least) = (objective.value(&theta)?, objective.value(&best)?);
        assert!(
            (loss - least).abs() < 1e-6 * least,
            "{}: {loss}, least {least}",
            method.name()
        );
    }
    Ok(())
}

/// The formulas of the self-scaled Broyden method, written out with matrices.
fn broyden(
    h: &DMatrix<f64>,
    s: &DVector<f64>,
    y: &DVector<f64>,
    g: &DVector<f64>,
    alpha: f64,
    first: bool,
) -> DMatrix<f64> {
    let n = s.len() as f64;
    let hy = h * y;
    let yhy = y.dot(&hy);
    let rho = 1.0 / y.dot(s);
    let big_h = rho * yhy;
    let b = -alpha * rho * s.dot(g);
    let a = b * big_h - 1.0;
    let c = (a.abs() / (1.0 + a)).sqrt();
    let rho_minus = f64::min(1.0, big_h * (1.0 - c));
    let theta_minus = (rho_minus - 1.0) / a;
    let theta = theta_minus.max(f64::min(1.0 / rho_minus, (1.0 - b) / b));
    let sigma = 1.0 + theta * a;
    let q = sigma.abs().powf(1.0 / (1.0 - n));
    let tau = if first {
        big_h / (1.0 + a * theta)
    } else if theta > 0.0 {
        f64::min(1.0, 1.0 / b) * f64::min(q, 1.0 / theta)
    } else {
        f64::min(f64::min(1.0, 1.0 / b) * q, sigma)
    };
    let phi = (1.0 - theta) / (1.0 + a * theta);
    let v = rho * s - &hy / yhy;
    (h - &hy * hy.transpose() / yhy + phi * yhy * &v * v.transpose()) / tau
        + rho * s * s.transpose()
}

#[test]
fn ssbroyden_follows_its_formulas() -> Result<(), Error> {
    let objective = random(40, 5);
    let mut method = SsBroyden::default();
    let mut theta = vec![0.3; 5];
    let gradient = |theta: &[f64]| -> Result<DVector<f64>, Error> {
        let mut g = vec![0.0; 5];
        objective.gradient(theta, &mut g)?;
        Ok(DVector::from_vec(g))
    };
    let mut h = DMatrix::identity(5, 5);
    for step in 0..6 {
        let before = theta.clone();
        let g = gradient(&before)?;
        assert_eq!(minimise(&objective, &mut method, &mut theta, 1)?, None);
        let alpha = method.rate();
        let s = DVector::from_vec(theta.clone()) - DVector::from_vec(before);
        let want = -alpha * &h * &g;
        let error = (&s - &want).norm() / want.norm();
        assert!(error < 1e-9, "step {step}: {error:e}");
        let y = gradient(&theta)? - &g;
        h = broyden(&h, &s, &y, &g, alpha, step == 0);
        // Whatever the member of the family, the secant equation holds.
        assert!((&h * &y - &s).norm() < 1e-9 * s.norm());
    }
    Ok(())
}

#[test]
fn lbfgs_follows_the_bfgs_formula_while_it_remembers_all() -> Result<(), Error> {
    let objective = random(40, 5);
    let mut method = Lbfgs::default();
    let mut theta = vec![0.3; 5];
    let mut pairs: Vec<(DVector<f64>, DVector<f64>)> = Vec::new();
    for step in 0..6 {
        let before = theta.clone();
        let mut g = vec![0.0; 5];
        objective.gradient(&before, &mut g)?;
        let g = DVector::from_vec(g);
        assert_eq!(minimise(&objective, &mut method, &mut theta, 1)?, None);
        let s = DVector::from_vec(theta.clone()) - DVector::from_vec(before);
        let mut h = DMatrix::identity(5, 5);
        if let Some((s, y)) = pairs.last() {
            h *= s.dot(y) / y.dot(y);
        }
        for (s, y) in &pairs {
            let rho = 1.0 / y.dot(s);
            let left = DMatrix::identity(5, 5) - rho * s * y.transpose();
            h = &left * h * left.transpose() + rho * s * s.transpose();
        }
        let want = -method.rate() * h * &g;
        let error = (&s - &want).norm() / want.norm();
        assert!(error < 1e-9, "step {step}: {error:e}");
        let mut after = vec![0.0; 5];
        objective.gradient(&theta, &mut after)?;
        pairs.push((s, DVector::from_vec(after) - g));
    }
    Ok(())
}

#[test]
fn spring_without_momentum_is_the_damped_step() -> Result<(), Error> {
    let objective = random(20, 50);
    let damping = 1e-3;
    let mut method = Spring::new(0.0, damping)?;
    let mut theta = vec![0.01; 50];
    let before = theta.clone();
    let (r, j) = (objective.residuals)(&before);
    minimise(&objective, &mut method, &mut theta, 1)?;
    let kernel = &j * j.transpose();
    let lambda = damping * kernel.trace() / 20.0;
    let system = kernel + lambda * DMatrix::identity(20, 20);
    let want = -j.transpose() * system.cholesky().expect("definite").solve(&r);
    let got = DVector::from_vec(theta) - DVector::from_vec(before);
    // Up to the length that was searched for: a power of two.
    let ratio = got.norm() / want.norm();
    assert!((&got - ratio * &want).norm() < 1e-9 * got.norm());
    assert!(
        (ratio.log2() - ratio.log2().round()).abs() < 1e-9,
        "{ratio}"
    );
    Ok(())
}

// On networks.

/// y' + y = 0 with y(0) = c and c to be found from y(1) = 1/e.
fn decay(points: usize) -> Result<(Parameters, Problem), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 8, 1], Tanh)?;
    let start = params.coefficient("C", 0.5)?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = start.field() + t * n;
        y.d(t) + y
    })?;
    let observed = Equation::record("observed", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        start.field() + t * n - (-1.0_f64).exp()
    })?;
    let problem = Problem::new(
        &params,
        [
            Condition::new(&equation, Points::grid(&[(0.0, 1.0, points)])?),
            Condition::new(&observed, Points::from_rows(&[[1.0]])?).weight(4.0),
        ],
    )?;
    Ok((params, problem))
}

fn every_method() -> Result<Vec<Box<dyn Minimizer>>, Error> {
    let mut all = searching();
    all.push(Box::new(Adam::new(0.03)?));
    all.push(Box::new(GradientDescent::new(0.02)?));
    Ok(all)
}

#[test]
fn c11_every_method_trains_a_coefficient_of_a_condition() -> Result<(), Error> {
    for mut method in every_method()? {
        let (mut params, problem) = decay(20)?;
        let place = params.block("C")?.offset;
        let mut engine = Engine::new(&problem)?;
        let train = Train::new(150).log_every(1);
        let report = train.run(&mut engine, &mut params, method.as_mut())?;
        let c = report.history.column("C")?;
        let name = method.name();
        assert_eq!(c[0], 0.5);
        assert_ne!(c[1], c[0], "{name}");
        let exact: &[&str] = &["Levenberg-Marquardt", "SSBroyden", "L-BFGS"];
        let tolerance = if exact.contains(&name) { 1e-4 } else { 0.45 };
        let found = params.values()[place];
        assert!((found - 1.0).abs() < tolerance, "{name}: {found}, {report}");
    }
    Ok(())
}

#[test]
fn c12_the_bits_do_not_depend_on_threads() -> Result<(), Error> {
    // Enough points and parameters for parallel work in every part.
    let mut params = Parameters::seeded(3);
    let net = params.mlp("u", &[2, 14, 14, 1], Tanh)?;
    let equation = Equation::record("heat", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) - u.d(x).d(x) - x.sin()
    })?;
    let points = Points::grid(&[(0.0, 1.0, 53), (0.0, 1.0, 59)])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    for (place, _) in every_method()?.iter().enumerate() {
        let mut first: Option<Vec<u64>> = None;
        for threads in 1..=4 {
            let mut params = params.clone();
            let mut method = every_method()?.swap_remove(place);
            let mut engine = Engine::with(&problem, &Options::default().threads(threads))?;
            if method.name() == "SPRING" {
                let few = Points::grid(&[(0.0, 1.0, 11), (0.0, 1.0, 13)])?;
                engine.set_points("heat", few)?;
            }
            Train::new(3).run(&mut engine, &mut params, method.as_mut())?;
            let bits: Vec<u64> = params.values().iter().map(|x| x.to_bits()).collect();
            match &first {
                Some(first) => assert!(first == &bits, "{}, {threads} threads", method.name()),
                None => first = Some(bits),
            }
        }
    }
    Ok(())
}

#[test]
fn an_energy_has_no_rows() -> Result<(), Error> {
    let mut params = Parameters::new();
    let net = params.mlp("u", &[1, 4, 1], Tanh)?;
    let energy = Equation::record("energy", &params, ["x"], |[x]| {
        let [n] = net.at(&[x]);
        let u = x * (1.0 - x) * n;
        0.5 * u.d(x) * u.d(x) - u
    })?;
    let points = Points::grid(&[(0.0, 1.0, 1000)])?;
    let problem = Problem::new(&params, [Condition::new(&energy, points).energy()])?;
    let mut engine = Engine::new(&problem)?;
    let error = engine
        .all_rows(params.values(), |_| {})
        .expect_err("no rows");
    assert!(
        error.to_string().contains("`energy` is an energy"),
        "{error}"
    );
    let methods: [Box<dyn Minimizer>; 3] = [
        Box::new(LevenbergMarquardt::default()),
        Box::new(Spring::default()),
        Box::new(GaussNewtonCg::default()),
    ];
    for mut method in methods {
        let before = params.values().to_vec();
        let error = Train::new(5).run(&mut engine, &mut params, method.as_mut());
        assert!(
            matches!(error, Err(Error::NoRows { .. })),
            "{}",
            method.name()
        );
        assert_eq!(params.values(), before);
    }
    // Those that see gradients alone lower it: the least is -1/24.
    let report = Train::new(60).run(&mut engine, &mut params, &mut SsBroyden::default())?;
    assert!((report.loss + 1.0 / 24.0).abs() < 1e-3, "{report}");
    Ok(())
}

#[test]
fn the_last_layer_of_a_linear_problem_is_a_step() -> Result<(), Error> {
    let mut params = Parameters::seeded(1);
    let net = params.mlp("y", &[1, 25, 1], Tanh)?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 1.0 + t * n;
        y.d(t) + y
    })?;
    let points = Points::grid(&[(0.0, 1.0, 80)])?;
    let engine = Engine::new(&Problem::new(&params, [Condition::new(&equation, points)])?)?;
    let hidden = params.matrix("y.0.weight")?;
    let loss = fit_last_layer(&engine, &mut params, &net)?;
    assert_eq!(loss, engine.loss(params.values())?);
    assert!(loss < 1e-6, "{loss:e}");
    assert_eq!(params.matrix("y.0.weight")?, hidden, "hidden layers stay");
    let again = fit_last_layer(&engine, &mut params, &net)?;
    assert!(again <= loss);
    Ok(())
}

#[test]
fn the_last_layer_of_a_nonlinear_problem_takes_a_few_steps() -> Result<(), Error> {
    let mut params = Parameters::seeded(1);
    let net = params.mlp("y", &[1, 25, 1], Tanh)?;
    params.values_mut().fill(0.0);
    params.transposed_mut("y.0.weight")?.fill(1.0);
    for (k, bias) in params.transposed_mut("y.0.bias")?.iter_mut().enumerate() {
        *bias = -(k as f64) / 24.0;
    }
    let logistic = Equation::record("logistic", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 0.1 + t * n;
        y.d(t) - 3.0 * y * (1.0 - y)
    })?;
    let solution = Equation::record("solution", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        0.1 + t * n
    })?;
    let points = Points::chebyshev(&[(0.0, 1.0, 80)])?;
    let problem = Problem::new(&params, [Condition::new(&logistic, points)])?;
    let mut engine = Engine::new(&problem)?;
    let hidden = params.values()[..50].to_vec();
    let mut method = LastLayer::of(&params, &net)?;
    let report = Train::new(8).run(&mut engine, &mut params, &mut method)?;
    assert_eq!(params.values()[..50], hidden, "hidden layers stay");
    let end = values(&solution, &params, &Points::grid(&[(1.0, 1.0, 1)])?)?[0][0];
    let exact = 1.0 / (1.0 + 9.0 * (-3.0_f64).exp());
    assert!(report.loss < 1e-17, "{report}");
    // What a residual makes of the solution grows no faster than exp(3 t).
    let bound = 20.0 * report.loss.sqrt();
    assert!((end - exact).abs() < bound, "{end} for {exact}, {report}");

    // The memory is of this layer.
    let other = params.mlp("z", &[1, 3, 1], Tanh)?;
    let mut other = LastLayer::of(&params, &other)?;
    let snapshot = other.snapshot().expect("a snapshot");
    let error = method.restore(&snapshot).expect_err("another layer");
    assert!(matches!(error, Error::OtherParameters { .. }), "{error}");
    // A problem without it.
    let error = Train::new(1).run(&mut engine, &mut Parameters::new(), &mut other);
    assert!(error.is_err());
    let mut theta = [0.0, 0.0];
    let error = minimise(&rosenbrock(), &mut other, &mut theta, 1);
    assert!(matches!(error, Err(Error::Length { .. })), "{error:?}");
    Ok(())
}

// The engine's part.

#[test]
fn products_with_the_jacobian_fit_its_rows() -> Result<(), Error> {
    let (params, problem) = decay(101)?;
    let engine = Engine::new(&problem)?;
    let theta = params.values();
    let n = theta.len();
    let mut j = DMatrix::zeros(engine.row_count()?, n);
    let mut r = DVector::zeros(engine.row_count()?);
    let mut start = 0;
    engine.all_rows(theta, |rows| {
        for (point, residual) in rows.residuals.iter().enumerate() {
            r[start] = *residual;
            let mut row = vec![0.0; n];
            rows.copy_row(point, &mut row);
            j.row_mut(start).copy_from_slice(&row);
            start += 1;
        }
    })?;
    assert_eq!(start, 102);
    let evaluation = engine.evaluate(theta)?;
    assert!((r.norm_squared() - evaluation.loss).abs() < 1e-14 * evaluation.loss);
    let close = |what: &str, got: Vec<f64>, want: DVector<f64>| {
        let error = (DVector::from_vec(got) - &want).norm() / want.norm();
        assert!(error < 1e-13, "{what}: {error:e}");
    };
    close("gradient", evaluation.gradient, 2.0 * j.transpose() * &r);
    let v = DVector::from_fn(n, |i, _| (i as f64).sin());
    close("J v", engine.along(theta, v.as_slice())?, &j * &v);
    let s = DVector::from_fn(102, |i, _| (i as f64).cos());
    close(
        "Jt s",
        engine.transposed(theta, s.as_slice())?,
        j.transpose() * &s,
    );
    let product = engine.gauss_newton(theta, v.as_slice())?;
    close("Jt J v", product, j.transpose() * &j * &v);
    assert!(engine.along(theta, &[1.0]).is_err());
    assert!(engine.transposed(theta, &[1.0]).is_err());
    assert!(engine.gauss_newton(theta, &[1.0]).is_err());
    Ok(())
}

#[test]
fn an_engine_on_other_points_is_as_a_new_one() -> Result<(), Error> {
    let (params, problem) = decay(50)?;
    let mut engine = Engine::new(&problem)?;
    for count in [20, 700, 3, 64, 1] {
        let (_, fresh) = decay(count.max(2))?;
        let points = fresh.conditions()[0].points().clone();
        engine.set_points("decay", points.clone())?;
        assert_eq!(engine.points("decay")?, &points);
        // The parameters of both problems have the same values.
        let want = Engine::new(&fresh)?.evaluate(params.values())?;
        assert_eq!(engine.evaluate(params.values())?, want, "{count} points");
    }
    let weights = vec![2.0; engine.points("decay")?.len()];
    let plain = engine.losses(params.values())?;
    engine.set_point_weights("decay", Some(&weights))?;
    assert_eq!(engine.point_weights("decay")?, Some(&weights[..]));
    engine.set_weight("observed", 8.0)?;
    assert_eq!(engine.weight("observed")?, 8.0);
    let doubled = engine.losses(params.values())?;
    for (doubled, plain) in doubled.iter().zip(&plain) {
        assert!((doubled - 2.0 * plain).abs() <= 1e-15 * doubled);
    }
    for (error, part) in [
        (
            engine.set_points("none", Points::from_rows(&[[0.0]])?),
            "none",
        ),
        (
            engine.set_points("decay", Points::from_rows(&[[0.0, 1.0]])?),
            "coordinates",
        ),
        (engine.set_weight("decay", -1.0), "weight"),
        (
            engine.set_point_weights("decay", Some(&[1.0; 7])),
            "point weights",
        ),
    ] {
        let text = error.map_or_else(|e| e.to_string(), |()| format!("no error about {part}"));
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(
        engine.losses(params.values())?,
        doubled,
        "errors change nothing"
    );
    Ok(())
}
