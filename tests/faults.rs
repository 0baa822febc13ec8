//! What happens when the world breaks: killed runs, full disks, folders that vanish, damaged
//! files, panics in closures, and tapes that are deep.
//!
//! `DUALTAPE_LONG=1 cargo test --release --test faults -- --nocapture` kills a hundred runs.

use dualtape::train::State;
use dualtape::{
    Adam, Condition, Elemental, Engine, Equation, Error, Field, Model, Options, Parameters, Points,
    Problem, Report, Sampler, Train, values,
};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn long() -> bool {
    std::env::var("DUALTAPE_LONG").is_ok_and(|word| word == "1")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// y' + C y = 0 with C to be found.
fn problem() -> Result<(Parameters, Problem), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 5, 1], Elemental::Tanh)?;
    let rate = params.coefficient("C", 0.5)?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        let y = 1.0 + t * n;
        [y.d(t) + rate.field() * y, y - (-t).exp()]
    })?;
    let points = Points::grid(&[(0.0, 1.0, 8)])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    Ok((params, problem))
}

fn engine() -> Result<(Parameters, Engine), Error> {
    let (params, problem) = problem()?;
    Ok((params, Engine::new(&problem)?))
}

/// Training with points that are redrawn; `each` sees every step.
fn train<'a>(steps: usize, each: impl FnMut(&State<'_>) + 'a) -> Result<Train<'a>, Error> {
    let sampler = Sampler::new(&[(0.0, 1.0)], 7)?;
    let mut each = each;
    Ok(Train::new(steps)
        .keep_last()
        .log_every(1000)
        .redraw(5, sampler, |sampler, engine, _| {
            engine.set_points("decay", sampler.latin_hypercube(8)?)
        })
        .callback(move |state| {
            each(state);
            ControlFlow::Continue(())
        }))
}

/// To replace what is there makes some systems wait for the disk.
fn write_anew(file: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(file);
    std::fs::write(file, bytes).expect("written");
}

fn bits(numbers: &[f64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    numbers.iter().for_each(|x| x.to_bits().hash(&mut hasher));
    hasher.finish()
}

// Another process.

/// Not a test by itself: what the tests below run in a process of its own, to be killed or to
/// meet its limits. `DUALTAPE_CHILD` holds the number of steps and the checkpoint.
#[test]
fn in_another_process() -> Result<(), Error> {
    let Ok(job) = std::env::var("DUALTAPE_CHILD") else {
        return Ok(());
    };
    let (steps, file) = job.split_once(' ').expect("steps and a file");
    let steps = steps.parse().expect("a number");
    let (mut params, mut engine) = engine()?;
    let mut train = train(steps, |_| ())?.checkpoint(file, 1);
    if Path::new(file).exists() {
        train = train.resume(file);
    }
    match train.run(&mut engine, &mut params, &mut Adam::new(0.01)?) {
        Ok(report) => println!("child: {report}"),
        Err(error) => println!("child: {error}"),
    }
    Ok(())
}

fn command(steps: usize, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            "in_another_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("DUALTAPE_CHILD", format!("{steps} {}", file.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn spawn(steps: usize, file: &Path) -> Child {
    command(steps, file).spawn().expect("a process")
}

#[test]
fn c13_killed_at_any_moment_it_goes_on_bit_for_bit() -> Result<(), Error> {
    let kills = if long() { 100 } else { 5 };
    let folder = folder();
    let file = folder.path().join("run.ckpt");
    // The unbroken run: the parameters before each step.
    let steps = 100_000;
    let mut whole: Vec<u64> = Vec::new();
    let mut unbroken = |until: usize| -> Result<Vec<u64>, Error> {
        if whole.len() <= until {
            whole.clear();
            let (mut params, mut engine) = engine()?;
            train(2 * until, |state| {
                whole.push(bits(state.parameters.values()))
            })?
            .run(&mut engine, &mut params, &mut Adam::new(0.01)?)?;
        }
        Ok(whole.clone())
    };
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let (mut survived, mut reached) = (0, 0);
    for kill in 0..kills {
        let mut child = spawn(steps, &file);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // From before the first checkpoint to many later, most of them within a write.
        std::thread::sleep(Duration::from_micros(5_000 + random % 60_000));
        child.kill().expect("killed");
        child.wait().expect("gone");
        if !file.exists() {
            continue;
        }
        // What is there is whole, and ten steps on from it are those of the unbroken run.
        let mut seen: Vec<(usize, u64)> = Vec::new();
        let (mut params, mut engine) = engine()?;
        let mut stop_at = None;
        train(steps, |_| ())?
            .callback(|state| {
                seen.push((state.step, bits(state.parameters.values())));
                let last = *stop_at.get_or_insert(state.step + 10);
                if state.step >= last {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .resume(&file)
            .run(&mut engine, &mut params, &mut Adam::new(0.01)?)?;
        let (last, _) = *seen.last().expect("steps");
        let whole = unbroken(last)?;
        for (step, bits) in seen {
            assert_eq!(bits, whole[step], "kill {kill}, step {step}");
        }
        (survived, reached) = (survived + 1, last - 10);
    }
    println!("{survived} of {kills} kills left a checkpoint, each whole; step {reached} reached");
    assert!(
        survived >= kills / 2,
        "{survived} of {kills} wrote anything before they were killed"
    );
    Ok(())
}

/// A file that may not grow: what a full disk is, but for the words.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_checkpoint() -> Result<(), Error> {
    let folder = folder();
    let file = folder.path().join("run.ckpt");
    let status = command(3, &file).output().expect("a process").status;
    assert!(status.success() && file.exists());
    let before = std::fs::read(&file).expect("the checkpoint");
    assert!(before.len() > 1024, "{}", before.len());
    let inner = command(20, &file);
    let arguments: Vec<_> = inner.get_args().collect();
    let output = Command::new("sh")
        // A limit of one block; a write beyond it is an error and no signal.
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(arguments)
        .env("DUALTAPE_CHILD", format!("20 {}", file.display()))
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("child: ") && text.contains("run.ckpt: File too large"),
        "{text}"
    );
    assert_eq!(std::fs::read(&file).expect("the checkpoint"), before);
    // What was half written is gone.
    assert_eq!(
        std::fs::read_dir(folder.path())
            .expect("the folder")
            .count(),
        1
    );
    Ok(())
}

// Folders.

fn run_into(file: &Path) -> Result<Report, Error> {
    let (mut params, mut engine) = engine()?;
    train(4, |_| ())?
        .checkpoint(file, 1)
        .run(&mut engine, &mut params, &mut Adam::new(0.01)?)
}

fn save_into(file: &Path) -> Result<(), Error> {
    Model::new(&problem()?.0).save(file)
}

fn says(result: Result<impl Sized, Error>, file: &Path) {
    let Err(Error::File { path, reason }) = result else {
        panic!("no error about {}", file.display());
    };
    assert_eq!(path, file.display().to_string());
    assert!(!reason.is_empty());
}

#[test]
fn folders_that_cannot_be_written() -> Result<(), Error> {
    let folder = folder();
    // A file where a folder should be, a folder where the file should be, a device.
    let occupied = folder.path().join("occupied");
    std::fs::write(&occupied, "words").expect("written");
    let mut places = vec![occupied.join("run.ckpt"), folder.path().to_owned()];
    if cfg!(target_os = "linux") {
        // Nobody, not even root, may make files here.
        places.push(PathBuf::from("/proc/run.ckpt"));
        places.push(PathBuf::from("/dev/full"));
    }
    for place in places {
        says(run_into(&place), &place);
        says(save_into(&place), &place);
    }
    assert_eq!(
        std::fs::read_to_string(&occupied).expect("still there"),
        "words"
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        if let Ok(device) = std::fs::metadata("/dev/full") {
            assert!(device.file_type().is_char_device(), "it is what it was");
        }
        // Read only; root may write nevertheless.
        let closed = folder.path().join("closed");
        std::fs::create_dir(&closed).expect("a folder");
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).expect("closed");
        let place = closed.join("run.ckpt");
        if std::fs::write(closed.join("probe"), "").is_err() {
            says(run_into(&place), &place);
            says(save_into(&place), &place);
        } else {
            run_into(&place)?;
            save_into(&place)?;
        }
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).expect("open");
    }
    Ok(())
}

#[test]
fn a_folder_that_vanishes_comes_back() -> Result<(), Error> {
    let folder = folder();
    let own = folder.path().join("own");
    let file = own.join("run.ckpt");
    let (mut params, mut engine) = engine()?;
    let mut vanished = 0;
    train(6, |_| ())?
        .checkpoint(&file, 1)
        .callback(|state| {
            if state.step == 3 {
                std::fs::remove_dir_all(&own).expect("it was there");
                vanished += 1;
            }
            ControlFlow::Continue(())
        })
        .run(&mut engine, &mut params, &mut Adam::new(0.01)?)?;
    assert_eq!(vanished, 1);
    let (mut again, mut engine) = engine_of(&file)?;
    let report =
        train(6, |_| ())?
            .resume(&file)
            .run(&mut engine, &mut again, &mut Adam::new(0.01)?)?;
    assert_eq!(report.steps, 6);
    assert_eq!(bits(again.values()), bits(params.values()));
    // Where something else has taken its place, training ends with an error.
    let (mut params, mut engine) = engine_of(&file)?;
    let result = train(6, |_| ())?
        .checkpoint(&file, 1)
        .callback(|state| {
            if state.step == 3 {
                std::fs::remove_dir_all(&own).expect("it was there");
                std::fs::write(&own, "words").expect("written");
            }
            ControlFlow::Continue(())
        })
        .run(&mut engine, &mut params, &mut Adam::new(0.01)?);
    says(result, &file);
    Ok(())
}

/// A fresh engine; the file is only there to be read by what follows.
fn engine_of(file: &Path) -> Result<(Parameters, Engine), Error> {
    assert!(file.exists());
    engine()
}

#[cfg(unix)]
#[test]
fn links_and_rights_stay() -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let (real, link) = (
        folder.path().join("real.ckpt"),
        folder.path().join("link.ckpt"),
    );
    run_into(&real)?;
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    run_into(&link)?;
    assert!(link.is_symlink() && real.is_file() && !real.is_symlink());
    // As any file that this process writes.
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "").expect("written");
    let mode = |path: &Path| std::fs::metadata(path).expect("it").permissions().mode();
    assert_eq!(mode(&real), mode(&plain));
    Ok(())
}

// Damage.

#[test]
fn every_truncation_and_every_flipped_bit_of_a_checkpoint() -> Result<(), Error> {
    let folder = folder();
    let file = folder.path().join("whole.ckpt");
    run_into(&file)?;
    let whole = std::fs::read(&file).expect("the checkpoint");
    let bad = folder.path().join("bad.ckpt");
    let (mut params, mut engine) = engine()?;
    let before = params.values().to_vec();
    let mut adam = Adam::new(0.01)?;
    let mut tried = 0;
    let mut refused = |bytes: &[u8], what: &dyn Fn() -> String| -> Result<(), Error> {
        write_anew(&bad, bytes);
        let result = train(9, |_| ())?
            .resume(&bad)
            .run(&mut engine, &mut params, &mut adam);
        match result {
            Err(Error::File { path, .. }) => assert_eq!(path, bad.display().to_string()),
            other => panic!("{}: {other:?}", what()),
        }
        assert_eq!(params.values(), before, "{}", what());
        tried += 1;
        Ok(())
    };
    for length in 0..whole.len() {
        refused(&whole[..length], &|| format!("{length} bytes"))?;
    }
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            refused(&bytes, &|| format!("bit {bit} of byte {place}"))?;
        }
    }
    println!(
        "{tried} damaged checkpoints of {} bytes, each refused",
        whole.len()
    );
    assert_eq!(tried, 9 * whole.len());
    Ok(())
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_model() -> Result<(), Error> {
    let folder = folder();
    let file = folder.path().join("whole.safetensors");
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 3, 1], Elemental::Tanh)?;
    let solution = Equation::record("solution", &params, ["t"], |[t]| {
        1.0 + t * net.at::<1>(&[t])[0]
    })?;
    Model::new(&params).with(&solution)?.save(&file)?;
    let whole = std::fs::read(&file).expect("the model");
    let points = Points::grid(&[(0.0, 1.0, 3)])?;
    let want = bits(&values(&solution, &params, &points)?[0]);
    let bad = folder.path().join("bad.safetensors");
    let (mut refused, mut the_same) = (0, 0);
    let mut meet = |bytes: &[u8], what: String| {
        write_anew(&bad, bytes);
        match Model::load(&bad) {
            Err(Error::File { path, .. }) => {
                assert_eq!(path, bad.display().to_string());
                refused += 1;
            }
            Err(other) => panic!("{what}: {other}"),
            // A flip that changes nothing, such as in a name that is not read.
            Ok(model) => {
                let got = model.evaluate("solution", &points).expect("values");
                assert_eq!(bits(&got[0]), want, "{what}");
                assert_eq!(
                    model.expression("solution").expect("it").coordinates(),
                    ["t"],
                    "{what}"
                );
                the_same += 1;
            }
        }
    };
    for length in 0..whole.len() {
        meet(&whole[..length], format!("{length} bytes"));
    }
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            meet(&bytes, format!("bit {bit} of byte {place}"));
        }
    }
    println!(
        "{} bytes: {refused} damaged models refused, {the_same} read as they were",
        whole.len()
    );
    // The letters of the key `checksum`, and little else.
    assert!(refused > 9 * whole.len() - 200, "{refused}, {the_same}");
    Ok(())
}

// Panics.

/// Runs something that panics, and says so to nobody.
fn panics(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_panic_in_a_closure_leaves_the_engine_usable() -> Result<(), Error> {
    let (mut params, mut engine) = engine()?;
    let want = engine.evaluate(params.values())?;
    let theta = params.values().to_vec();
    let folder = folder();
    let file = folder.path().join("run.ckpt");
    let mut adam = Adam::new(0.01)?;
    // The callback, a metric, and the drawing of points; with Ctrl-C watched in between.
    let run = |train: Train<'_>, engine: &mut Engine, params: &mut Parameters, adam: &mut Adam| {
        panics(|| {
            let _ = train.checkpoint(&file, 2).run(engine, params, adam);
        })
    };
    let call = Train::new(9).callback(|state| {
        assert!(state.step < 3, "the user's mistake");
        ControlFlow::Continue(())
    });
    assert!(run(call, &mut engine, &mut params, &mut adam));
    let metric = Train::new(9).metric("m", 1, |_| panic!("the user's mistake"));
    assert!(run(metric, &mut engine, &mut params, &mut adam));
    let draw = Train::new(9).redraw(2, (), |(), _, _| panic!("the user's mistake"));
    assert!(run(draw, &mut engine, &mut params, &mut adam));
    assert!(panics(|| {
        let _ = engine.rows("decay", &theta, |_| panic!("the user's mistake"));
    }));
    // As if nothing had been.
    assert_eq!(engine.evaluate(&theta)?, want);
    let mut rows = 0;
    engine.rows("decay", &theta, |block| rows += block.residuals.len())?;
    assert_eq!(rows, 16);
    params.set(&theta)?;
    let mut fresh = Adam::new(0.01)?;
    let report = Train::new(9).run(&mut engine, &mut params, &mut fresh)?;
    assert_eq!(report.steps, 9);
    Ok(())
}

#[test]
fn a_panic_in_an_elemental_of_the_user_on_many_threads() -> Result<(), Error> {
    let mut params = Parameters::seeded(1);
    let moody = Elemental::custom("moody", dualtape::Smoothness::Unlimited, |z, c| {
        assert!(z < 1e3, "the user's mistake");
        c.copy_from_slice(&Elemental::Tanh.taylor(z, c.len() - 1).expect("orders"));
    });
    let net = params.mlp("u", &[1, 24, 24, 1], moody)?;
    let equation = Equation::record("eq", &params, ["x"], |[x]| net.at::<1>(&[x])[0].d(x) + x)?;
    // Enough to be shared among threads.
    let points = Points::grid(&[(0.0, 1.0, 4_000)])?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    for threads in [1, 3] {
        let engine = Engine::with(&problem, &Options::default().threads(threads))?;
        let want = engine.evaluate(params.values())?;
        let far = vec![1e9; params.len()];
        for _ in 0..3 {
            assert!(panics(|| drop(engine.evaluate(&far))));
            assert!(panics(|| drop(engine.residuals("eq", &far))));
            assert_eq!(engine.evaluate(params.values())?, want);
        }
    }
    Ok(())
}

// Depth.

/// Where a recursion over the tape would show: a stack of 256 KiB.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(work);
    thread.expect("a thread").join().expect("no overflow");
}

#[test]
fn a_tape_of_a_hundred_thousand_nodes() {
    on_a_small_stack(|| {
        const NODES: usize = 100_000;
        let mut params = Parameters::new();
        let a = params.coefficient("a", 0.5).expect("a");
        let equation = Equation::record("deep", &params, ["x"], |[x]| {
            let mut y = x * a.field();
            for _ in 0..NODES / 2 {
                y = (y + 0.1).sin();
            }
            y
        })
        .expect("an equation");
        assert!(
            equation.tape().nodes().len() >= NODES,
            "{}",
            equation.tape().nodes().len()
        );
        let points = Points::grid(&[(0.0, 1.0, 3)]).expect("points");
        let problem =
            Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
        let engine = Engine::new(&problem).expect("an engine");
        let evaluation = engine.evaluate(params.values()).expect("an evaluation");
        // The same loop on numbers.
        let run = |x: f64| (0..NODES / 2).fold(0.5 * x, |y, _| (y + 0.1).sin());
        let want: f64 = [0.0, 0.5, 1.0].iter().map(|&x| run(x).powi(2)).sum::<f64>() / 3.0;
        assert!(
            (evaluation.loss - want).abs() < 1e-12 * want,
            "{} {want}",
            evaluation.loss
        );
        assert!(equation.tape().listing().expect("a listing").len() > NODES);
        drop((engine, problem, equation));
    });
}

#[test]
fn a_network_of_a_thousand_layers() {
    on_a_small_stack(|| {
        let widths = [vec![1], vec![3; 1_000], vec![1]].concat();
        let mut params = Parameters::seeded(1);
        let net = params.mlp("u", &widths, Elemental::Sin).expect("a network");
        let equation = Equation::record("deep", &params, ["x"], |[x]| {
            let u: Field = net.at::<1>(&[x])[0];
            u.d(x).d(x) + u
        })
        .expect("an equation");
        let points = Points::grid(&[(0.0, 1.0, 5)]).expect("points");
        let problem =
            Problem::new(&params, [Condition::new(&equation, points)]).expect("a problem");
        let engine = Engine::new(&problem).expect("an engine");
        let evaluation = engine.evaluate(params.values()).expect("an evaluation");
        assert_eq!(evaluation.gradient.len(), params.len());
        assert!(evaluation.gradient.iter().any(|g| *g != 0.0));
        let folder = folder();
        let file = folder.path().join("deep.safetensors");
        Model::new(&params)
            .with(&equation)
            .and_then(|model| model.save(&file))
            .expect("saved");
        let model = Model::load(&file).expect("loaded");
        assert_eq!(model.parameters().values(), params.values());
        drop((engine, problem, equation, model));
    });
}
