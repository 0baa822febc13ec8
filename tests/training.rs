//! Optimisers, samplers and the loop.

mod common;

use common::{assert_close, numbers, paper_network};
use dualtape::optim::{Halt, Iterate, Objective};
use dualtape::train::State;
use dualtape::{
    Adam, Condition, Elemental::Tanh, Engine, Equation, Error, Field, GradientDescent, Mlp,
    Optimizer, Options, Parameters, Points, Precision, Problem, Sampler, Schedule, Stop, Train,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;

// What each thread has allocated: live bytes, their peak, and the number of allocations.

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
    CALLS.set(CALLS.get() + usize::from(bytes > 0));
}

// SAFETY: hands every call on to the system's allocator unchanged; counting touches only
// thread-local cells without destructors, and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The paper's conditions at t = 0.5 and t = 0.
fn paper_problem(params: &Parameters, net: &Mlp) -> Result<Problem, Error> {
    let decay = Equation::record("decay", params, ["t"], |[t]| {
        let [y] = net.at(&[t]);
        y.d(t) + y
    })?;
    let start = Equation::record("start", params, ["t"], |[t]| net.at::<1>(&[t])[0] - 1.0)?;
    Problem::new(
        params,
        [
            Condition::new(&decay, Points::from_rows(&[[0.5]])?),
            Condition::new(&start, Points::from_rows(&[[0.0]])?).weight(10.0),
        ],
    )
}

/// y' + y = 0 with y(0) = 1 built in, at `count` points of [0, 1].
fn decay(params: &Parameters, net: &Mlp, count: usize) -> Result<Problem, Error> {
    let equation = Equation::record("decay", params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 1.0 + t * n;
        y.d(t) + y
    })?;
    let points = Points::grid(&[(0.0, 1.0, count)])?;
    Problem::new(params, [Condition::new(&equation, points)])
}

fn small() -> Result<(Parameters, Mlp), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 8, 8, 1], Tanh)?;
    Ok((params, net))
}

// Optimisers.

#[test]
fn trajectories_of_the_paper() -> Result<(), Error> {
    let (start, net, paper) = paper_network();
    let problem = paper_problem(&start, &net)?;
    type Make = fn() -> Result<Box<dyn Optimizer>, Error>;
    let methods: [(&str, Make); 2] = [
        ("adam", || Ok(Box::new(Adam::default()))),
        ("sgd", || Ok(Box::new(GradientDescent::new(0.01)?))),
    ];
    for (precision, tolerance) in [(Precision::Double, 1e-13), (Precision::Single, 1e-6)] {
        let engine = Engine::with(&problem, &Options::default().precision(precision))?;
        for (name, make) in methods {
            let mut method = make()?;
            let mut params = start.clone();
            let mut compared = 0;
            for step in 1..=1000 {
                let gradient = engine.evaluate(params.values())?.gradient;
                method.step(params.values_mut(), &gradient)?;
                let golden = &paper["trajectories"][name][format!("after {step}")];
                if golden.is_null() {
                    continue;
                }
                compared += 1;
                let what = format!("{name} in {precision:?} after {step}");
                assert_close(
                    &what,
                    params.values(),
                    &numbers(&golden["theta"]),
                    tolerance,
                );
                // Near convergence the loss is a square of a cancelled residual: absolutely.
                let want = golden["loss"].as_f64().expect("a loss");
                let loss = engine.loss(params.values())?;
                let error = (loss - want).abs();
                assert!(
                    error <= tolerance * want.max(1.0),
                    "{what}: loss {loss:e}, want {want:e}"
                );
            }
            assert_eq!(compared, 4, "{name}");
        }
    }
    Ok(())
}

#[test]
fn the_loop_makes_the_same_steps() -> Result<(), Error> {
    let (mut params, net, paper) = paper_network();
    let mut engine = Engine::new(&paper_problem(&params, &net)?)?;
    let report = Train::new(100).run(&mut engine, &mut params, &mut Adam::default())?;
    assert_eq!(
        (report.stop, report.steps, report.step),
        (Stop::Steps, 100, 100)
    );
    let want = numbers(&paper["trajectories"]["adam"]["after 100"]["theta"]);
    assert_close("theta after 100", params.values(), &want, 1e-13);
    Ok(())
}

#[test]
fn adam_by_hand() -> Result<(), Error> {
    // Two steps with the gradients 2 and -1: m = 0.2, 0.08; v = 0.004, 0.004996.
    let mut adam = Adam::new(0.1)?;
    let mut theta = [1.0];
    adam.step(&mut theta, &[2.0])?;
    assert!((theta[0] - (1.0 - 0.1 * 2.0 / (2.0 + 1e-8))).abs() < 1e-15);
    let after = theta[0];
    adam.step(&mut theta, &[-1.0])?;
    let (m, v) = (0.08 / (1.0 - 0.81), 0.004996 / (1.0 - 0.998001));
    assert!((theta[0] - (after - 0.1 * m / (f64::sqrt(v) + 1e-8))).abs() < 1e-14);
    Ok(())
}

#[test]
fn a_reset_forgets_everything() -> Result<(), Error> {
    let schedule = Schedule::exponential(0.5, 2)?;
    let methods: [Box<dyn Optimizer>; 2] = [
        Box::new(Adam::new(0.1)?.schedule(schedule.clone())),
        Box::new(GradientDescent::new(0.1)?.schedule(schedule)),
    ];
    for mut method in methods {
        let mut path = || -> Result<Vec<f64>, Error> {
            let mut theta = [1.0, -2.0];
            for step in 0..5 {
                method.step(&mut theta, &[f64::from(step), 1.0])?;
            }
            method.reset();
            Ok(theta.to_vec())
        };
        assert_eq!(path()?, path()?);
    }
    Ok(())
}

#[test]
fn schedules_at_chosen_steps() -> Result<(), Error> {
    let exponential = Schedule::exponential(0.25, 10)?;
    let cosine = Schedule::cosine(100, 0.1)?;
    let piecewise = Schedule::piecewise(&[(5, 0.5), (10, 0.1)])?;
    let cases = [
        (Schedule::Constant, 77, 1.0),
        (exponential.clone(), 0, 1.0),
        (exponential.clone(), 5, 0.5),
        (exponential.clone(), 20, 0.0625),
        (cosine.clone(), 0, 1.0),
        (cosine.clone(), 50, 0.55),
        (cosine.clone(), 100, 0.1),
        (cosine.clone(), 1000, 0.1),
        (piecewise.clone(), 4, 1.0),
        (piecewise.clone(), 5, 0.5),
        (piecewise, 10, 0.1),
        (cosine.clone().warm_up(4)?, 0, 0.25),
        (cosine.clone().warm_up(4)?, 3, 1.0),
        (cosine.warm_up(4)?, 54, 0.55),
    ];
    for (schedule, step, want) in cases {
        let got = schedule.factor(step);
        assert!(
            (got - want).abs() < 1e-15,
            "{schedule:?} at {step}: {got}, want {want}"
        );
    }
    let mut method = GradientDescent::new(2.0)?.schedule(exponential);
    method.step(&mut [0.0], &[1.0])?;
    assert!((method.rate() - 2.0 * 0.25_f64.powf(0.1)).abs() < 1e-15);
    Ok(())
}

#[test]
fn bad_settings_are_named() -> Result<(), Error> {
    let bad = [
        (Adam::new(-1e-3).err(), "rate of Adam is -0.001"),
        (Adam::new(f64::NAN).err(), "rate of Adam is NaN"),
        (Adam::default().betas(1.0, 0.9).err(), "beta1"),
        (Adam::default().betas(0.9, -0.1).err(), "beta2"),
        (Adam::default().epsilon(0.0).err(), "epsilon"),
        (
            GradientDescent::new(f64::INFINITY).err(),
            "gradient descent",
        ),
        (Schedule::exponential(0.0, 10).err(), "factor"),
        (Schedule::exponential(0.5, 0).err(), "at least 1 step"),
        (Schedule::cosine(0, 0.0).err(), "at least 1 step"),
        (Schedule::cosine(10, 1.5).err(), "floor"),
        (
            Schedule::piecewise(&[(5, 1.0), (5, 0.5)]).err(),
            "5 and then 5",
        ),
        (Schedule::piecewise(&[(5, f64::NAN)]).err(), "factor"),
        (Schedule::Constant.warm_up(0).err(), "warm-up"),
        (Sampler::new(&[], 0).err(), "axes"),
        (Sampler::new(&[(1.0, 0.0)], 0).err(), "axis 0"),
        (
            Sampler::new(&[(0.0, 1.0), (0.0, f64::NAN)], 0).err(),
            "axis 1",
        ),
        (Sampler::new(&[(0.0, 1.0)], 0)?.uniform(0).err(), "empty"),
        (
            Adam::default().step(&mut [0.0], &[1.0, 2.0]).err(),
            "gradient",
        ),
    ];
    for (error, part) in bad {
        let text = error.map_or_else(|| format!("no error about {part}"), |e| e.to_string());
        assert!(text.contains(part), "{text}: {part}");
    }
    let mut adam = Adam::default();
    adam.step(&mut [0.0], &[1.0])?;
    let mut theta = [5.0, 5.0];
    assert!(adam.step(&mut theta, &[1.0, 1.0]).is_err());
    assert_eq!(theta, [5.0, 5.0]);
    Ok(())
}

/// A loss that has nothing to do with networks: a coefficient in a condition.
fn constant_problem() -> Result<(Parameters, Problem), Error> {
    let mut params = Parameters::new();
    let net = params.mlp("u", &[1, 4, 1], Tanh)?;
    params.values_mut().fill(0.0);
    let target = params.coefficient("C", 1.0)?;
    let boundary = Equation::record("boundary", &params, ["x"], |[x]| {
        let [u] = net.at(&[x]);
        u - target.field()
    })?;
    let points = Points::from_rows(&[[0.0], [1.0]])?;
    let problem = Problem::new(&params, [Condition::new(&boundary, points)])?;
    Ok((params, problem))
}

#[test]
fn c11_trainable_constant_in_a_condition() -> Result<(), Error> {
    let (start, problem) = constant_problem()?;
    let mut engine = Engine::new(&problem)?;
    let place = start.block("C")?.offset;
    let mut params = start.clone();
    for (c, loss, gradient) in [(1.0, 1.0, 2.0), (0.5, 0.25, 1.0)] {
        params.values_mut()[place] = c;
        let evaluation = engine.evaluate(params.values())?;
        assert_eq!(
            (evaluation.loss, evaluation.gradient[place]),
            (loss, gradient)
        );
    }
    let methods: [Box<dyn Optimizer>; 2] = [
        Box::new(Adam::new(0.05)?),
        Box::new(GradientDescent::new(0.05)?),
    ];
    for mut method in methods {
        let mut params = start.clone();
        let report = Train::new(200).log_every(1).keep_last().run(
            &mut engine,
            &mut params,
            method.as_mut(),
        )?;
        let logged = report.history.column("C")?;
        assert_eq!(logged.len(), 201, "{}", method.name());
        assert_eq!(logged[0], 1.0);
        assert!(logged[1] < 1.0, "{}: C is not trained", method.name());
        assert_eq!(logged[200], params.values()[place]);
    }
    Ok(())
}

// Samplers.

#[test]
fn c12_draws_advance_and_repeat() -> Result<(), Error> {
    let bounds = [(0.0, 1.0), (-1.0, 1.0)];
    type Draw = fn(&mut Sampler) -> Result<Points, Error>;
    let draws: [Draw; 3] = [
        |s| s.uniform(50),
        |s| s.latin_hypercube(50),
        |s| s.by_density(50, 1.0, |p| 1.0 - p[1].abs()),
    ];
    for draw in draws {
        let mut one = Sampler::new(&bounds, 7)?;
        let mut two = Sampler::new(&bounds, 7)?;
        let first = draw(&mut one)?;
        assert_eq!(first, draw(&mut two)?, "the same seed repeats");
        let second = draw(&mut one)?;
        assert_ne!(first, second, "two draws differ");
        assert_eq!(second, draw(&mut two)?, "and repeat");
        assert_ne!(first, draw(&mut Sampler::new(&bounds, 8)?)?, "seeds differ");
        let mut other = Sampler::new(&bounds, 7)?.stream(1);
        assert_ne!(first, draw(&mut other)?, "streams differ");
    }
    Ok(())
}

#[test]
fn a_latin_hypercube_fills_every_slice_once() -> Result<(), Error> {
    let points = Sampler::new(&[(0.0, 1.0), (-3.0, 5.0), (2.0, 2.0)], 1)?.latin_hypercube(64)?;
    for (axis, (from, to)) in [(0.0, 1.0), (-3.0, 5.0)].into_iter().enumerate() {
        let mut slices: Vec<usize> = points
            .coordinate(axis)
            .iter()
            .map(|x| ((x - from) / (to - from) * 64.0) as usize)
            .collect();
        slices.sort_unstable();
        assert!(slices.into_iter().eq(0..64), "axis {axis}");
    }
    assert!(
        points.coordinate(2).iter().all(|&x| x == 2.0),
        "a face of a box"
    );
    Ok(())
}

#[test]
fn uniform_points_have_the_right_moments() -> Result<(), Error> {
    let count = 20_000;
    let points = Sampler::new(&[(-1.0, 3.0), (0.0, 1.0)], 5)?.uniform(count)?;
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count as f64;
    let (x, y) = (points.coordinate(0), points.coordinate(1));
    assert!((mean(&mut x.iter().copied()) - 1.0).abs() < 0.05);
    assert!((mean(&mut x.iter().map(|x| (x - 1.0).powi(2))) - 16.0 / 12.0).abs() < 0.05);
    let product = x.iter().zip(y).map(|(x, y)| (x - 1.0) * (y - 0.5));
    assert!(
        mean(&mut product.into_iter()).abs() < 0.02,
        "axes are independent"
    );
    assert!(x.iter().all(|x| (-1.0..=3.0).contains(x)));
    Ok(())
}

#[test]
fn densities_out_of_range_are_named() -> Result<(), Error> {
    let mut sampler = Sampler::new(&[(0.0, 1.0)], 0)?;
    for bad in [-1.0, 2.0, f64::NAN] {
        assert!(
            sampler.by_density(10, 1.0, |_| bad).is_err(),
            "density {bad}"
        );
    }
    assert!(sampler.by_density(10, f64::NAN, |_| 1.0).is_err());
    assert!(sampler.by_density(10, 1.0, |_| 0.0).is_err(), "it must end");
    Ok(())
}

// The loop.

#[test]
fn it_learns_a_decay() -> Result<(), Error> {
    let (mut params, net) = small()?;
    let mut engine = Engine::new(&decay(&params, &net, 40)?)?;
    let schedule = Schedule::cosine(3000, 1e-3)?;
    let mut adam = Adam::new(3e-2)?.betas(0.9, 0.99)?.schedule(schedule);
    let report = Train::new(3000).run(&mut engine, &mut params, &mut adam)?;
    assert!(report.loss < 1e-5, "{report}");
    let y = 1.0 + net.eval(&params, &[1.0])?[0];
    assert!((y - f64::exp(-1.0)).abs() < 1e-3, "y(1) = {y}");
    Ok(())
}

#[test]
fn c14_the_reported_loss_is_the_loss_at_the_returned_parameters() -> Result<(), Error> {
    for last in [false, true] {
        let (mut params, net) = small()?;
        let mut engine = Engine::new(&decay(&params, &net, 40)?)?;
        // So large a rate that the last loss is not the least.
        let train = Train::new(97).log_every(1);
        let train = if last { train.keep_last() } else { train };
        let report = train.run(&mut engine, &mut params, &mut Adam::new(0.3)?)?;
        assert_eq!(
            report.loss.to_bits(),
            engine.loss(params.values())?.to_bits()
        );
        assert_eq!(report.losses, engine.losses(params.values())?);
        let losses = report.history.column("loss")?;
        let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
        let logged = losses[report.step];
        assert!((report.loss - logged).abs() <= 1e-13 * logged);
        if last {
            assert_eq!(report.step, 97);
        } else {
            assert_eq!(logged, least, "the best are kept");
            assert_ne!(report.step, 97, "the case should tell best from last");
        }
    }
    Ok(())
}

#[test]
fn every_stop_has_its_name() -> Result<(), Error> {
    let run = |train: Train<'_>| -> Result<_, Error> {
        let (mut params, net) = small()?;
        let mut engine = Engine::new(&decay(&params, &net, 40)?)?;
        train.run(&mut engine, &mut params, &mut Adam::new(1e-2)?)
    };
    let report = run(Train::new(0))?;
    assert_eq!(
        (report.stop, report.steps, report.history.len()),
        (Stop::Steps, 0, 1)
    );
    let report = run(Train::new(25).log_every(10))?;
    assert_eq!((report.stop, report.steps), (Stop::Steps, 25));
    assert_eq!(report.history.column("step")?, [0.0, 10.0, 20.0, 25.0]);
    let report = run(Train::new(usize::MAX).tolerance(1e-4))?;
    assert_eq!(report.stop, Stop::Tolerance);
    assert!(report.loss <= 1e-4);
    let report = run(Train::new(usize::MAX).time_limit(0.2))?;
    assert_eq!(report.stop, Stop::Time);
    assert!((0.2..5.0).contains(&report.seconds));
    let mut seen = Vec::new();
    let stop_at_7 = |state: &State<'_>| {
        seen.push((state.step, state.loss, state.parameters.values()[0]));
        assert_eq!(state.conditions, ["decay"]);
        assert_eq!(state.losses.iter().sum::<f64>(), state.loss);
        if state.step == 7 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let report = run(Train::new(50).callback(stop_at_7))?;
    assert_eq!(
        (report.stop, report.steps, seen.len()),
        (Stop::Callback, 7, 8)
    );
    assert!(seen.windows(2).all(|pair| pair[0].2 != pair[1].2));
    Ok(())
}

#[test]
fn bad_training_settings_are_named() -> Result<(), Error> {
    let bad: [(Train<'_>, &str); 6] = [
        (Train::new(1).time_limit(f64::NAN), "time limit"),
        (Train::new(1).tolerance(-1.0), "tolerance"),
        (Train::new(1).log_every(0), "log interval"),
        (
            Train::new(1).redraw(0, (), |(), _, _| Ok(())),
            "redraw interval",
        ),
        (
            Train::new(1).metric("error", 0, |_| Ok(0.0)),
            "interval of a metric",
        ),
        (
            Train::new(1).metric("loss", 1, |_| Ok(0.0)),
            "`loss` is given twice",
        ),
    ];
    for (train, part) in bad {
        let (mut params, net) = small()?;
        let mut engine = Engine::new(&decay(&params, &net, 4)?)?;
        let error = train.run(&mut engine, &mut params, &mut Adam::default());
        let text = error.map_or_else(|e| e.to_string(), |_| format!("no error about {part}"));
        assert!(text.contains(part), "{text}: {part}");
    }
    let (mut params, net) = small()?;
    let mut engine = Engine::new(&decay(&params, &net, 4)?)?;
    params.coefficient("late", 0.0)?;
    assert!(
        Train::new(1)
            .run(&mut engine, &mut params, &mut Adam::default())
            .is_err()
    );
    Ok(())
}

/// ln(c) + 2 at c = 1.
fn logarithm() -> Result<(Parameters, Engine), Error> {
    let mut params = Parameters::new();
    let c = params.coefficient("c", 1.0)?;
    let equation = Equation::record("log", &params, ["x"], |[x]| c.field().ln() + 2.0 + x)?;
    let points = Points::from_rows(&[[0.0]])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    Ok((params, Engine::new(&problem)?))
}

#[test]
fn a_residual_that_is_not_finite_leaves_good_parameters() -> Result<(), Error> {
    // The first step goes from c = 1 to c = 1 - 4·rate < 0.
    for last in [false, true] {
        let (mut params, mut engine) = logarithm()?;
        let train = if last {
            Train::new(50).keep_last()
        } else {
            Train::new(50)
        };
        let report = train.run(&mut engine, &mut params, &mut GradientDescent::new(0.5)?)?;
        let Stop::NotFinite(error) = &report.stop else {
            panic!("stopped by {}", report.stop);
        };
        let text = error.to_string();
        assert!(
            text.contains("condition `log`") && text.contains("point 0"),
            "{text}"
        );
        assert!(report.to_string().contains("not finite"), "{report}");
        assert_eq!((report.steps, report.step), (1, 0));
        assert_eq!(params.values(), [1.0]);
        assert_eq!(report.loss, 4.0);
    }
    let (mut params, mut engine) = logarithm()?;
    params.values_mut()[0] = -1.0;
    let error = Train::new(50).run(&mut engine, &mut params, &mut GradientDescent::new(0.5)?);
    assert!(
        matches!(error, Err(Error::NonFinite { .. })),
        "at the start there are no good ones"
    );
    assert_eq!(params.values(), [-1.0]);
    Ok(())
}

#[test]
fn redrawing_changes_points_and_is_announced() -> Result<(), Error> {
    struct Announced(Adam, usize);
    impl Optimizer for Announced {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn rate(&self) -> f64 {
            self.0.rate()
        }
        fn step(&mut self, theta: &mut [f64], gradient: &[f64]) -> Result<(), Error> {
            self.0.step(theta, gradient)
        }
        fn reset(&mut self) {
            self.0.reset();
        }
        fn loss_changed(&mut self) {
            self.1 += 1;
        }
    }
    let (mut params, net) = small()?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y: Field = 1.0 + t * n;
        y.d(t) + y
    })?;
    let mut sampler = Sampler::new(&[(0.0, 1.0)], 7)?;
    let mut draw = |params: &Parameters| {
        let points = sampler.latin_hypercube(20)?;
        Engine::new(&Problem::new(params, [Condition::new(&equation, points)])?)
    };
    let mut engine = draw(&params)?;
    let mut method = Announced(Adam::new(1e-2)?, 0);
    let mut draws = 0;
    let report = Train::new(120)
        .redraw(30, (), |(), engine, params| {
            draws += 1;
            *engine = draw(params)?;
            Ok(())
        })
        .run(&mut engine, &mut params, &mut method)?;
    assert_eq!((draws, method.1), (3, 3));
    // The best of the present points: losses at other points are not comparable.
    assert!(report.step >= 90, "step {}", report.step);
    assert_eq!(report.loss, engine.loss(params.values())?);
    Ok(())
}

/// Goes on until it has made two steps on the same points.
struct Patient {
    steps: usize,
    fresh: bool,
}

impl dualtape::Minimizer for Patient {
    fn name(&self) -> &'static str {
        "patient"
    }
    fn rate(&self) -> f64 {
        0.0
    }
    fn step(&mut self, _: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
        if !self.fresh {
            return Ok(Some(Halt::NoDecrease));
        }
        self.steps += 1;
        self.fresh = !self.steps.is_multiple_of(2);
        at.theta[0] *= 0.5;
        Ok(None)
    }
    fn reset(&mut self) {}
    fn loss_changed(&mut self) {
        self.fresh = self.steps < 6;
    }
    fn snapshot(&self) -> Option<Vec<u8>> {
        None
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_method_that_cannot_go_on_gets_new_points_first() -> Result<(), Error> {
    let (mut params, problem) = constant_problem()?;
    let run = |params: &mut Parameters, every: Option<usize>| {
        let mut engine = Engine::new(&problem)?;
        let mut method = Patient {
            steps: 0,
            fresh: true,
        };
        let mut draws = 0;
        let mut train = Train::new(100).log_every(1);
        if let Some(every) = every {
            train = train.redraw(every, (), |(), _, _| {
                draws += 1;
                Ok(())
            });
        }
        let report = train.run(&mut engine, params, &mut method)?;
        Ok::<_, Error>((report, draws))
    };
    let (report, _) = run(&mut params, None)?;
    assert_eq!(report.steps, 2);
    assert_eq!(report.stop, Stop::Halted(Halt::NoDecrease));
    // New points after 2, 4 and 6 steps; the last ones do not help.
    let (report, draws) = run(&mut params, Some(50))?;
    assert_eq!((report.steps, draws), (6, 3));
    assert_eq!(report.stop, Stop::Halted(Halt::NoDecrease));
    let steps = report.history.column("step")?;
    assert_eq!(
        steps,
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "a row for each step"
    );
    // Points that were drawn for this very step are not drawn again.
    let (report, draws) = run(&mut params, Some(2))?;
    assert_eq!((report.steps, draws), (6, 3));
    Ok(())
}

#[test]
fn a_loss_that_no_longer_decreases_ends_training() -> Result<(), Error> {
    let (params, problem) = constant_problem()?;
    let run = |rate: f64, steps: usize, share: f64| {
        let mut params = params.clone();
        let mut method = GradientDescent::new(rate)?;
        let train = Train::new(60).stall(steps, share).log_every(1);
        train.run(&mut Engine::new(&problem)?, &mut params, &mut method)
    };
    let report = run(1e-9, 10, 0.01)?;
    assert_eq!((report.stop, report.steps), (Stop::Stalled, 10));
    // Where it ends: the first step whose ten steps took away less than half.
    let report = run(0.01, 10, 0.5)?;
    let loss = report.history.column("loss")?;
    let first = (10..loss.len()).find(|&n| loss[n] > 0.5 * loss[n - 10]);
    match first {
        Some(first) => assert_eq!((report.stop, report.steps), (Stop::Stalled, first)),
        None => assert_eq!((report.stop, report.steps), (Stop::Steps, 60)),
    }
    for (steps, share) in [(0, 0.1), (10, 0.0), (10, 1.0), (10, f64::NAN)] {
        assert!(run(0.01, steps, share).is_err(), "{steps}, {share}");
    }
    Ok(())
}

#[test]
fn the_history_has_all_columns() -> Result<(), Error> {
    let (mut params, problem) = constant_problem()?;
    let mut engine = Engine::new(&problem)?;
    let report = Train::new(25)
        .metric("twice", 10, |params| {
            Ok(2.0 * params.values()[params.block("C")?.offset])
        })
        .run(&mut engine, &mut params, &mut GradientDescent::new(0.01)?)?;
    let history = &report.history;
    let want = [
        "step",
        "seconds",
        "rate",
        "loss",
        "loss.boundary",
        "C",
        "twice",
    ];
    assert_eq!(history.columns(), want);
    let twice = history.column("twice")?;
    for (c, twice) in history.column("C")?.iter().zip(&twice) {
        assert_eq!(2.0 * c, *twice);
    }
    assert_eq!(twice.len(), 4, "the last step has its metric");
    let folder = std::env::temp_dir().join(format!("dualtape-{}", std::process::id()));
    history.write_csv(folder.join("deep/history.csv"))?;
    history.write_json(folder.join("deep/history.json"))?;
    let csv = std::fs::read_to_string(folder.join("deep/history.csv")).expect("the csv");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some(want.join(",").as_str()));
    let first: Vec<f64> = lines
        .next()
        .expect("a row")
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!(history.rows().next(), Some(first.as_slice()));
    let json = std::fs::read_to_string(folder.join("deep/history.json")).expect("the json");
    let json: serde_json::Value = serde_json::from_str(&json).expect("valid json");
    assert_eq!(numbers(&json["rows"][0]), first);
    std::fs::remove_dir_all(&folder).expect("clean up");
    let blocked = history.write_csv("/dev/null/history.csv");
    assert!(matches!(blocked, Err(Error::File { .. })));
    Ok(())
}

#[test]
fn the_history_does_not_depend_on_threads() -> Result<(), Error> {
    let path = |threads: usize| -> Result<Vec<f64>, Error> {
        let (mut params, net) = small()?;
        let problem = decay(&params, &net, 20_000)?;
        let mut engine = Engine::with(&problem, &Options::default().threads(threads))?;
        Train::new(5).run(&mut engine, &mut params, &mut Adam::default())?;
        Ok(params.values().to_vec())
    };
    let one = path(1)?;
    for threads in 2..=4 {
        assert_eq!(one, path(threads)?, "{threads} threads");
    }
    Ok(())
}

#[test]
fn c19_flat_memory() -> Result<(), Error> {
    let (mut params, net) = small()?;
    let mut engine = Engine::new(&decay(&params, &net, 40)?)?;
    let mut marks = Vec::with_capacity(1001);
    let watch = |_: &State<'_>| {
        marks.push((PEAK.get(), CALLS.get()));
        ControlFlow::Continue(())
    };
    LIVE.set(0);
    PEAK.set(0);
    let train = Train::new(1000).log_every(1_000_000).callback(watch);
    train.run(&mut engine, &mut params, &mut Adam::default())?;
    assert_eq!(marks.len(), 1001);
    assert!(marks[10].0 > 0, "the counter counts");
    assert_eq!(
        marks[1000].0, marks[10].0,
        "peak bytes of steps 1000 and 10"
    );
    assert_eq!(marks[1000].1, marks[10].1, "no allocation in a warm step");
    Ok(())
}
