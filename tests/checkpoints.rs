//! Checkpoints: training goes on bit for bit, and bad files are named.

use dualtape::optim::{Halt, Iterate, LastLayer};
use dualtape::train::State;
use dualtape::{
    Adam, Condition, Elemental::Tanh, Engine, Equation, Error, GaussNewtonCg, GradientDescent,
    Lbfgs, LevenbergMarquardt, Minimizer, Objective, Optimizer, Parameters, Points, Problem,
    Report, Sampler, Schedule, Spring, SsBroyden, Stage, Stop, Train,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A folder of its own that goes away.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// y' + C y = 0 with C to be found from data, and random points.
fn problem() -> Result<(Parameters, Engine), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 7, 1], Tanh)?;
    let rate = params.coefficient("C", 0.5)?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 1.0 + t * n;
        y.d(t) + rate.field() * y
    })?;
    let observed = Equation::record("observed", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        1.0 + t * n - (-t).exp()
    })?;
    let start = Points::grid(&[(0.0, 1.0, 24)])?;
    let data = Points::grid(&[(0.0, 1.0, 5)])?;
    let conditions = [
        Condition::new(&equation, start),
        Condition::new(&observed, data),
    ];
    let engine = Engine::new(&Problem::new(&params, conditions)?)?;
    Ok((params, engine))
}

/// A training of `steps` steps that draws points every 7 steps and reweights them.
fn train<'a>(steps: usize) -> Result<Train<'a>, Error> {
    let sampler = Sampler::new(&[(0.0, 1.0)], 7)?;
    Ok(Train::new(steps)
        .log_every(3)
        .redraw(7, sampler, |sampler, engine, _| {
            // Another number each time.
            let count = 20 + engine.points("decay")?.len() % 5;
            let points = sampler.latin_hypercube(count)?;
            let weights: Vec<f64> = points.coordinate(0).iter().map(|t| 1.0 + t).collect();
            engine.set_points("decay", points)?;
            engine.set_point_weights("decay", Some(&weights))?;
            engine.set_weight("observed", 1.0 + engine.weight("observed")?)
        }))
}

fn methods() -> Result<Vec<Box<dyn Minimizer>>, Error> {
    let schedule = Schedule::cosine(40, 0.1)?.warm_up(3)?;
    Ok(vec![
        Box::new(Adam::new(0.02)?.schedule(schedule.clone())),
        Box::new(GradientDescent::new(0.05)?.schedule(schedule)),
        Box::new(Lbfgs::new(5)?),
        Box::new(SsBroyden::default()),
        Box::new(SsBroyden::default().keep()),
        Box::new(LevenbergMarquardt::default().window(4)?),
        Box::new({
            let (params, _) = problem()?;
            LastLayer::of(&params, &params.net("y")?)?
        }),
        Box::new(Spring::default()),
        Box::new(GaussNewtonCg::default().sketch(5)?.iterations(8)?),
    ])
}

/// History without the seconds, which never repeat, bit for bit.
fn logged(report: &Report) -> Vec<Vec<u64>> {
    let rows = report.history.rows();
    rows.map(|row| {
        let kept = row.iter().enumerate().filter(|(column, _)| *column != 1);
        kept.map(|(_, x)| x.to_bits()).collect()
    })
    .collect()
}

fn same(what: &str, a: (&Report, &Parameters), b: (&Report, &Parameters)) {
    let bits = |p: &Parameters| p.values().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a.1), bits(b.1), "{what}: parameters");
    assert_eq!(logged(a.0), logged(b.0), "{what}: history");
    assert_eq!(a.0.loss.to_bits(), b.0.loss.to_bits(), "{what}: loss");
    assert_eq!(
        (a.0.steps, a.0.step),
        (b.0.steps, b.0.step),
        "{what}: steps"
    );
    assert_eq!(a.0.stages, b.0.stages, "{what}: stages");
}

#[test]
fn c13_every_method_goes_on_bit_for_bit() -> Result<(), Error> {
    let folder = folder();
    for place in 0..methods()?.len() {
        let (mut params, mut engine) = problem()?;
        let mut method = methods()?.swap_remove(place);
        let name = method.name();
        let whole = train(30)?.run(&mut engine, &mut params, method.as_mut())?;
        // At, before and after a change of points, and at the very end.
        for stop in [6, 7, 8, 20, 30] {
            let file = folder.path().join(format!("{place}-{stop}.ckpt"));
            let (mut first, mut engine) = problem()?;
            let mut method = methods()?.swap_remove(place);
            train(stop)?
                .checkpoint(&file, 5)
                .run(&mut engine, &mut first, method.as_mut())?;
            let (mut second, mut engine) = problem()?;
            let mut method = methods()?.swap_remove(place);
            let report = train(30)?
                .resume(&file)
                .run(&mut engine, &mut second, method.as_mut())?;
            let what = format!("{name} ({place}), stopped at {stop}");
            same(&what, (&whole, &params), (&report, &second));
        }
    }
    Ok(())
}

#[test]
fn c13_stages_go_on_where_they_were() -> Result<(), Error> {
    let folder = folder();
    let run = |steps: usize, from: Option<&Path>, to: Option<&Path>| {
        let (mut params, mut engine) = problem()?;
        let mut adam = Adam::new(0.02)?;
        let mut lbfgs = Lbfgs::default();
        let mut lm = LevenbergMarquardt::default();
        let mut stages = [
            Stage::new(9, &mut adam),
            Stage::new(200, &mut lbfgs).until(3e-3),
            Stage::new(8, &mut lm),
        ];
        let mut train = train(steps)?;
        if let Some(from) = from {
            train = train.resume(from);
        }
        if let Some(to) = to {
            train = train.checkpoint(to, 1000);
        }
        let report = train.run_stages(&mut engine, &mut params, &mut stages)?;
        Ok::<_, Error>((report, params))
    };
    let (whole, params) = run(1000, None, None)?;
    assert_eq!(whole.stages.len(), 3, "{whole:?}");
    assert_eq!(whole.stages[0].steps, 9);
    assert!(
        whole.stages[1].steps < 200,
        "the loss ends the second stage"
    );
    assert_eq!(whole.stages[2].steps, 8);
    assert_eq!(whole.stop, Stop::Steps);
    for stop in [3, 9, 10, whole.steps - 3] {
        let file = folder.path().join(format!("{stop}.ckpt"));
        run(stop, None, Some(&file))?;
        let (report, resumed) = run(1000, Some(&file), None)?;
        same(
            &format!("stopped at {stop}"),
            (&whole, &params),
            (&report, &resumed),
        );
    }
    Ok(())
}

#[test]
fn ctrl_c_ends_with_a_checkpoint() -> Result<(), Error> {
    let folder = folder();
    let file = folder.path().join("interrupted.ckpt");
    let (mut params, mut engine) = problem()?;
    let whole = train(20)?.run(&mut engine, &mut params, &mut Adam::new(0.02)?)?;
    let (mut first, mut engine) = problem()?;
    let press = |state: &State<'_>| {
        if state.step == 11 {
            signal_hook::low_level::raise(signal_hook::consts::SIGINT).expect("a signal");
        }
        ControlFlow::Continue(())
    };
    let report = train(20)?.checkpoint(&file, 1000).callback(press).run(
        &mut engine,
        &mut first,
        &mut Adam::new(0.02)?,
    )?;
    assert_eq!((report.stop, report.steps), (Stop::Interrupted, 11));
    let (mut second, mut engine) = problem()?;
    let mut adam = Adam::new(0.02)?;
    let report = train(20)?
        .resume(&file)
        .run(&mut engine, &mut second, &mut adam)?;
    same("interrupted", (&whole, &params), (&report, &second));
    Ok(())
}

#[test]
fn a_time_limit_ends_with_a_checkpoint_too() -> Result<(), Error> {
    let folder = folder();
    let file = folder.path().join("deep/er/time.ckpt");
    let (mut params, mut engine) = problem()?;
    let whole = train(15)?.run(&mut engine, &mut params, &mut Adam::new(0.02)?)?;
    let (mut first, mut engine) = problem()?;
    let report = train(15)?.time_limit(0.0).checkpoint(&file, 1000).run(
        &mut engine,
        &mut first,
        &mut Adam::new(0.02)?,
    )?;
    assert_eq!((report.stop, report.steps), (Stop::Time, 0));
    let (mut second, mut engine) = problem()?;
    let mut adam = Adam::new(0.02)?;
    let report = train(15)?
        .resume(&file)
        .run(&mut engine, &mut second, &mut adam)?;
    same("out of time", (&whole, &params), (&report, &second));
    Ok(())
}

/// A small checkpoint.
fn saved(folder: &Path) -> Result<PathBuf, Error> {
    let file = folder.join("saved.ckpt");
    let (mut params, mut engine) = problem()?;
    train(8)?
        .checkpoint(&file, 4)
        .run(&mut engine, &mut params, &mut Adam::new(0.02)?)?;
    Ok(file)
}

fn error_of(result: Result<Report, Error>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

#[test]
fn damaged_and_foreign_files_are_named() -> Result<(), Error> {
    let folder = folder();
    let good = std::fs::read(saved(folder.path())?).expect("the checkpoint");
    let bad = folder.path().join("bad.ckpt");
    let resume = |bytes: &[u8]| -> Result<String, Error> {
        std::fs::write(&bad, bytes).expect("written");
        let (mut params, mut engine) = problem()?;
        let before = params.values().to_vec();
        let mut adam = Adam::new(0.02)?;
        let text = error_of(
            train(9)?
                .resume(&bad)
                .run(&mut engine, &mut params, &mut adam),
        );
        assert!(text.contains("bad.ckpt"), "{text}");
        assert_eq!(params.values(), before, "{text}");
        Ok(text)
    };
    assert!(resume(b"")?.contains("not a checkpoint"));
    assert!(resume(b"PK\x03\x04 something else, of some length")?.contains("not a checkpoint"));
    assert!(resume(&good[..15])?.contains("truncated"));
    assert!(resume(&good[..good.len() - 1])?.contains("truncated"));
    assert!(resume(&[&good[..], b"more"].concat())?.contains("has grown"));
    let mut other = good.clone();
    other[8] = 77;
    assert!(resume(&other)?.contains("version 77"));
    // Any byte of the body.
    for place in (24..good.len()).step_by(97) {
        let mut other = good.clone();
        other[place] ^= 0x10;
        let text = resume(&other)?;
        assert!(text.contains("damaged"), "byte {place}: {text}");
    }
    let (mut params, mut engine) = problem()?;
    let missing = train(9)?.resume(folder.path().join("missing.ckpt"));
    let text = error_of(missing.run(&mut engine, &mut params, &mut Adam::new(0.02)?));
    assert!(text.contains("missing.ckpt"), "{text}");
    Ok(())
}

#[test]
fn checkpoints_of_other_trainings_are_named() -> Result<(), Error> {
    let folder = folder();
    let file = saved(folder.path())?;
    let (mut params, mut engine) = problem()?;
    let mut adam = Adam::new(0.02)?;
    let metric = train(9)?.resume(&file).metric("more", 1, |_| Ok(1.0));
    let text = error_of(metric.run(&mut engine, &mut params, &mut adam));
    assert!(text.contains("other metrics"), "{text}");
    let method = train(9)?.resume(&file);
    let text = error_of(method.run(&mut engine, &mut params, &mut Lbfgs::default()));
    assert!(text.contains("other methods"), "{text}");
    let still = Train::new(9).resume(&file);
    let text = error_of(still.run(&mut engine, &mut params, &mut adam));
    assert!(text.contains("redrawn"), "{text}");
    let mut larger = Parameters::seeded(3);
    let net = larger.mlp("y", &[1, 9, 1], Tanh)?;
    let equation = Equation::record("decay", &larger, ["t"], |[t]| net.at::<1>(&[t])[0])?;
    let points = Points::grid(&[(0.0, 1.0, 24)])?;
    let other = Problem::new(&larger, [Condition::new(&equation, points)])?;
    let mut engine = Engine::new(&other)?;
    let text = error_of(
        train(9)?
            .resume(&file)
            .run(&mut engine, &mut larger, &mut adam),
    );
    assert!(text.contains("other networks"), "{text}");
    Ok(())
}

#[test]
fn a_failed_write_leaves_the_old_checkpoint() -> Result<(), Error> {
    let folder = folder();
    let file = saved(folder.path())?;
    let before = std::fs::read(&file).expect("the checkpoint");
    // A method whose snapshot fails half way through a training.
    struct Forgetful(Adam);
    impl Optimizer for Forgetful {
        fn name(&self) -> &'static str {
            "forgetful"
        }
        fn rate(&self) -> f64 {
            Optimizer::rate(&self.0)
        }
        fn step(&mut self, theta: &mut [f64], gradient: &[f64]) -> Result<(), Error> {
            Optimizer::step(&mut self.0, theta, gradient)
        }
        fn reset(&mut self) {
            Optimizer::reset(&mut self.0);
        }
    }
    let (mut params, mut engine) = problem()?;
    let mut method = Forgetful(Adam::new(0.02)?);
    let text = error_of(
        train(8)?
            .checkpoint(&file, 4)
            .run(&mut engine, &mut params, &mut method),
    );
    assert!(
        text.contains("`forgetful` cannot be part of a checkpoint"),
        "{text}"
    );
    assert_eq!(std::fs::read(&file).expect("the checkpoint"), before);
    // No temporary files are left either.
    let files = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(files, 1);
    let text = error_of(train(8)?.checkpoint("/dev/null/checkpoint", 4).run(
        &mut engine,
        &mut params,
        &mut Adam::new(0.02)?,
    ));
    assert!(text.contains("/dev/null/checkpoint"), "{text}");
    Ok(())
}

#[test]
fn a_halted_last_stage_is_the_reason_of_the_stop() -> Result<(), Error> {
    /// Moves once, then cannot.
    struct Tired(usize);
    impl Minimizer for Tired {
        fn name(&self) -> &'static str {
            "tired"
        }
        fn rate(&self) -> f64 {
            0.0
        }
        fn step(&mut self, _: &dyn Objective, at: Iterate<'_>) -> Result<Option<Halt>, Error> {
            self.0 += 1;
            if self.0 > 1 {
                return Ok(Some(Halt::NoDecrease));
            }
            at.theta[0] *= 0.5;
            Ok(None)
        }
        fn reset(&mut self) {}
        fn snapshot(&self) -> Option<Vec<u8>> {
            None
        }
        fn restore(&mut self, _: &[u8]) -> Result<(), Error> {
            Ok(())
        }
    }
    let (mut params, mut engine) = problem()?;
    let (mut tired, mut adam, mut also) = (Tired(0), Adam::new(1e-3)?, Tired(0));
    let mut stages = [
        Stage::new(50, &mut tired),
        Stage::new(4, &mut adam),
        Stage::new(50, &mut also),
    ];
    let report =
        Train::new(1000)
            .log_every(1000)
            .run_stages(&mut engine, &mut params, &mut stages)?;
    assert_eq!(report.stop, Stop::Halted(Halt::NoDecrease));
    assert_eq!(report.steps, 6);
    let stages: Vec<_> = report.stages.iter().map(|s| (s.steps, s.halt)).collect();
    let halt = Some(Halt::NoDecrease);
    assert_eq!(stages, [(1, halt), (4, None), (1, halt)]);
    assert!(report.to_string().contains("no damping"), "{report}");
    // The last step has its row, once.
    assert_eq!(report.history.column("step")?, [0.0, 6.0]);
    Ok(())
}

#[test]
fn validation_and_comparison_are_logged() -> Result<(), Error> {
    let (mut params, mut engine) = problem()?;
    let (_, mut elsewhere) = problem()?;
    elsewhere.set_points("decay", Points::grid(&[(0.01, 0.99, 17)])?)?;
    let mut other = Parameters::seeded(3);
    let net = other.mlp("y", &[1, 7, 1], Tanh)?;
    let solution = Equation::record("solution", &other, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        1.0 + t * n
    })?;
    let grid = Points::grid(&[(0.0, 1.0, 11)])?;
    let exact: Vec<f64> = grid.coordinate(0).iter().map(|t| (-t).exp()).collect();
    let train = Train::new(10).validate(elsewhere, 5);
    let report = train.run(&mut engine, &mut params, &mut LevenbergMarquardt::default())?;
    assert_eq!(report.history.curve("validation")?.0, [0.0, 5.0, 10.0]);
    let foreign = Train::new(1).compare("y", &solution, &grid, &exact, 1);
    let text = error_of(foreign.run(&mut engine, &mut params, &mut Adam::default()));
    assert!(text.contains("other parameters"), "{text}");
    let equation = Equation::record("residual", &other, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 1.0 + t * n;
        y.d(t) + y
    })?;
    let points = Points::grid(&[(0.0, 1.0, 40)])?;
    let mut engine = Engine::new(&Problem::new(&other, [Condition::new(&equation, points)])?)?;
    let train = Train::new(60).compare("y", &solution, &grid, &exact, 30);
    let report = train.run(&mut engine, &mut other, &mut LevenbergMarquardt::default())?;
    let l2 = report.history.curve("y.rel_l2")?;
    // Where it has converged it stops, and that step is logged too.
    assert_eq!(l2.0, [0.0, 30.0, report.steps as f64]);
    assert!(l2.1[2] < 1e-5, "{l2:?}");
    let max = report.history.curve("y.max_error")?.1;
    assert!(max[2] < 1e-5 && max[0] > 1e-3, "{max:?}");
    let wrong = Train::new(1).compare("y", &solution, &grid, &exact[1..], 1);
    let text = error_of(wrong.run(&mut engine, &mut other, &mut Adam::default()));
    assert!(text.contains("exact values"), "{text}");
    Ok(())
}
