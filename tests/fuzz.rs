//! Readers of files and recordings, fed with what nobody would write: mutations of good
//! inputs, and programs made of random bytes. Each must end with a result or an [`Error`].
//!
//! `DUALTAPE_FUZZ=600 cargo test --release --test fuzz -- --nocapture` gives each target so
//! many seconds instead of a fixed number of inputs. An input that panics, or takes longer than a minute, is written to
//! `fuzz/crashes/`, and belongs into `fuzz/corpus/` once it is mended.

mod common;

use common::{SplitMix, data_file, elementals};
use dualtape::{
    Adam, Condition, Elemental, Engine, Equation, Error, Field, Lbfgs, LevenbergMarquardt, Model,
    Options, Parameters, Points, Problem, Sampler, Spring, SsBroyden, Stage, Train, points, select,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Inputs of each target where no time is given.
const INPUTS: usize = 3_000;

/// Choices from a seed.
struct Random(SplitMix);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next().expect("it has no end")
    }
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Pieces that readers look for, and numbers at the edges.
const WORDS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"1e308",
    b"1e999",
    b"-0.0",
    b"nan",
    b"inf",
    b"18446744073709551615",
    b"18446744073709551616",
    b"4294967296",
    b"9223372036854775807",
    b"null",
    b"[]",
    b"{}",
    b"[[",
    b"\"",
    b"\\\"",
    b",",
    b"\n",
    b"\r\n",
    b":",
    b"'",
    b"(",
    b")",
    b"()",
    b"(0,)",
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\0\0\0\0\0\0\xf0\x7f",
    b"\0\0\0\0\0\0\xf8\x7f",
    b"F32",
    b"F64",
    b"BF16",
    b"I64",
    b"weight",
    b"bias",
    b"shape",
    b"dtype",
    b"data_offsets",
    b"__metadata__",
    b"dualtape",
    b"groups",
    b"widths",
    b"activations",
    b"expressions",
    b"nodes",
    b"<f8",
    b">f4",
    b"<c16",
    b"True",
    b"False",
    b"descr",
    b"fortran_order",
    b"powi(",
    b"powf(",
    b"powi(2147483647)",
    b"powf(1e300)",
    b"powi(-2147483648)",
    b"laplacian",
    b"derivative",
    b"select",
    b"stack",
    b"row",
    b"affine",
    b"constant",
    b"DUALTAPE",
];

/// Where names and numbers stand.
fn words(bytes: &[u8]) -> Vec<Range<usize>> {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    let mut words: Vec<Range<usize>> = Vec::new();
    for at in (0..bytes.len()).filter(|&at| part(&bytes[at])) {
        match words.last_mut() {
            Some(word) if word.end == at => word.end += 1,
            _ => words.push(at..at + 1),
        }
    }
    words
}

/// Some changes of an input, perhaps with a piece of another.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(corpus).clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(13) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            3 if at < end => drop(bytes.drain(at..end)),
            4 if at < end => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => bytes.truncate(at),
            6 | 7 => {
                let word = *random.pick(WORDS);
                let to = (at + word.len() * random.below(2)).min(bytes.len());
                bytes.splice(at..to, word.iter().copied());
            }
            8 => {
                let other = random.pick(corpus);
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            9 => {
                // Another digit keeps text readable.
                let digits: Vec<usize> = (0..bytes.len())
                    .filter(|&i| bytes[i].is_ascii_digit())
                    .collect();
                if !digits.is_empty() {
                    bytes[*random.pick(&digits)] = b'0' + random.below(10) as u8;
                }
            }
            10 => bytes.insert(at, random.next() as u8),
            _ => {
                // Another word keeps the form of a text.
                let (own, other) = (words(&bytes), random.pick(corpus));
                let others = words(other);
                if !own.is_empty() && !others.is_empty() {
                    let word = other[random.pick(&others).clone()].to_vec();
                    bytes.splice(random.pick(&own).clone(), word);
                }
            }
        }
    }
    bytes.truncate(1 << 16);
    bytes
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The kept inputs of a target: good ones, and those that once failed.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = home().join("corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).expect("a file of the corpus"))
        .collect()
}

/// What an input leads to: inputs that lead elsewhere are worth keeping and changing
/// further. The kind of the error; of an error in a file the first words, outside of accents,
/// quotes and brackets, where names and numbers stand that would make of each change another
/// outcome.
fn outcome(result: &Result<(), Error>) -> String {
    let Err(error) = result else {
        return "accepted".to_owned();
    };
    let kind = format!("{error:?}");
    let mut words = vec![
        kind.split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or(""),
    ];
    let outside: String = match error {
        Error::File { reason, .. } => reason
            .split(['`', '"', '\'', '(', ')'])
            .step_by(2)
            .collect(),
        _ => String::new(),
    };
    let reason = outside.split(|c: char| !c.is_ascii_lowercase());
    words.extend(reason.filter(|word| word.len() > 3).take(3));
    words.join(" ")
}

/// Writes an input that failed.
fn keep(target: &str, bytes: &[u8]) -> String {
    let folder = home().join("crashes");
    let file = folder.join(format!("{target}-{:08x}", crc32fast::hash(bytes)));
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(&file, bytes).expect("written");
    file.display().to_string()
}

/// Ends the process, which nothing else could do, where an input takes too long.
struct Watch(Arc<Current>);

/// What is being tried, and since when.
type Current = Mutex<Option<(Instant, Vec<u8>)>>;

impl Watch {
    const LONGEST: Duration = Duration::from_secs(60);

    fn new(target: &str) -> Self {
        let current: Arc<Current> = Arc::default();
        let (weak, target) = (Arc::downgrade(&current), target.to_owned());
        std::thread::spawn(move || {
            while let Some(current) = weak.upgrade() {
                if let Some((start, bytes)) = &*current.lock().expect("the input")
                    && Instant::elapsed(start) > Self::LONGEST
                {
                    eprintln!(
                        "{target}: too slow; the input is in {}",
                        keep(&target, bytes)
                    );
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self(current)
    }
    fn begin(&self, bytes: &[u8]) {
        *self.0.lock().expect("the input") = Some((Instant::now(), bytes.to_vec()));
    }
    fn end(&self) {
        *self.0.lock().expect("the input") = None;
    }
}

/// Feeds a target; `good` joins the corpus. `prepare` completes each changed input. Where
/// time is given, inputs with new outcomes are kept in the corpus.
fn fuzz(
    target: &str,
    good: &[Vec<u8>],
    prepare: impl Fn(Vec<u8>) -> Vec<u8>,
    mut run: impl FnMut(&[u8]) -> Result<(), Error>,
) {
    const MOST_KEPT: usize = 40;
    let seconds = std::env::var("DUALTAPE_FUZZ").ok();
    let seconds: Option<f64> = seconds.and_then(|text| text.parse().ok());
    let (mut inputs, sound) = (good.to_vec(), good.len());
    inputs.extend(corpus(target));
    let given = inputs.len();
    let kept = given - sound;
    let start = Instant::now();
    let mut random = Random(SplitMix(seconds.map_or(1, |_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |time| time.as_nanos() as u64)
    })));
    let mut outcomes = BTreeSet::new();
    let watch = Watch::new(target);
    let (mut tried, mut accepted) = (0_usize, 0_usize);
    loop {
        let known = tried < given;
        let bytes = match known {
            true => inputs[tried].clone(),
            // Of the good ones as often as of what came of them.
            false => {
                let to = [sound, inputs.len()][random.below(2)];
                prepare(mutate(&mut random, &inputs[..to]))
            }
        };
        watch.begin(&bytes);
        let result = catch_unwind(AssertUnwindSafe(|| run(&bytes)));
        watch.end();
        let Ok(result) = result else {
            panic!(
                "{target}: a panic; the input is in {}",
                keep(target, &bytes)
            );
        };
        tried += 1;
        accepted += usize::from(result.is_ok());
        if outcomes.insert(outcome(&result)) && !known && inputs.len() < MOST_KEPT {
            if seconds.is_some() && bytes.len() < 4 << 10 {
                let folder = home().join("corpus").join(target);
                std::fs::create_dir_all(&folder).expect("a folder");
                let name = format!("{:08x}", crc32fast::hash(&bytes));
                std::fs::write(folder.join(name), &bytes).expect("written");
            }
            inputs.push(bytes);
        }
        let over = match seconds {
            Some(seconds) => start.elapsed() >= Duration::from_secs_f64(seconds),
            None => tried >= INPUTS,
        };
        if over && tried >= given {
            break;
        }
    }
    println!(
        "{target}: {tried} inputs ({kept} kept), {accepted} accepted, {} outcomes, {:.0} s",
        outcomes.len(),
        start.elapsed().as_secs_f64()
    );
    assert!(accepted > 0, "{target}: nothing was ever accepted");
}

fn as_it_is(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

/// A file that holds what is tried next.
struct Slot {
    folder: tempfile::TempDir,
}

impl Slot {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }
    fn hold(&self, bytes: &[u8]) -> PathBuf {
        let file = self.folder.path().join("input");
        // Anew: to replace what is there makes some systems wait for the disk.
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, bytes).expect("written");
        file
    }
}

/// A model with every kind of node that a file may hold.
fn model() -> Result<Vec<u8>, Error> {
    let mut params = Parameters::seeded(2);
    let net = params.mlp("u", &[2, 3, 2], Elemental::Tanh)?;
    let k = params.coefficient("k", 0.3)?;
    let equation = Equation::record("e", &params, ["t", "x"], |[t, x]| {
        let [u, v] = net.at(&[t, x]);
        let chosen = select(x.above(0.1), u * v, u.d(x) / (1.0 + v * v));
        [
            chosen + k.field() * dualtape::data("y"),
            u.laplacian(&[t, x]) - v.sin().powi(3) + t.powf(1.5),
            dualtape::detach(u).gelu() + 0.5,
        ]
    })?;
    let slot = Slot::new();
    let file = slot.hold(b"");
    Model::new(&params).with(&equation)?.save(&file)?;
    Ok(std::fs::read(file).expect("the model"))
}

/// With the length that the header has, so that what is inside is read.
fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut end = None;
    for (place, &byte) in bytes.iter().enumerate().skip(8) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    end = Some(place + 1);
                    break;
                }
            }
            _ => {}
        }
    }
    // Blanks fill it up.
    let blanks = |end: usize| {
        bytes[end..]
            .iter()
            .take_while(|&&byte| byte == b' ')
            .count()
    };
    let end = end.map(|end| end + blanks(end));
    if let (Some(end), Some(head)) = (end, bytes.first_chunk_mut::<8>()) {
        *head = (end as u64 - 8).to_le_bytes();
    }
    bytes
}

/// As files were before they had a checksum: else no mutation would come further.
fn without_checksum(bytes: &[u8]) -> Vec<u8> {
    let key = b"\\\"checksum\\\":";
    let start = bytes
        .windows(key.len())
        .position(|window| window == key)
        .expect("a checksum");
    let length = bytes[start..]
        .iter()
        .position(|&b| b == b',')
        .expect("a comma")
        + 1;
    let mut own = bytes.to_vec();
    own.drain(start..start + length);
    with_length(own)
}

fn use_model(model: &Model) -> Result<(), Error> {
    let points = Points::from_rows(&[[0.3, -0.2], [0.5, 0.7]])?.with_column("y", &[1.0, 2.0])?;
    for name in model.names() {
        let _ = model.evaluate(name, &points);
        let _ = model.derivatives(name, &points, &[&["x"], &["t", "x"]]);
    }
    Ok(())
}

#[test]
fn models() -> Result<(), Error> {
    let slot = Slot::new();
    let good = model()?;
    let good = vec![without_checksum(&good), good];
    fuzz("model", &good, with_length, |bytes| {
        use_model(&Model::load(slot.hold(bytes))?)
    });
    Ok(())
}

#[test]
fn state_dicts() {
    let slot = Slot::new();
    let good = [
        "torch_f32.safetensors",
        "torch_f64.safetensors",
        "torch_prefix.safetensors",
    ];
    fuzz("state_dict", &good.map(data_file), as_it_is, |bytes| {
        use_model(&Model::from_state_dict(
            slot.hold(bytes),
            "u",
            Elemental::Tanh,
        )?)
    });
}

fn problem() -> Result<(Parameters, Engine), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("y", &[1, 2, 1], Elemental::Tanh)?;
    let equation = Equation::record("decay", &params, ["t"], |[t]| {
        let [n] = net.at(&[t]);
        (1.0 + t * n).d(t) + n
    })?;
    let points = Points::grid(&[(0.0, 1.0, 4)])?;
    let engine = Engine::new(&Problem::new(&params, [Condition::new(&equation, points)])?)?;
    Ok((params, engine))
}

/// Trains on by every kind of method, from a checkpoint or into one.
fn train(steps: usize, from: Option<&Path>, to: Option<&Path>) -> Result<(), Error> {
    let (mut params, mut engine) = problem()?;
    let (mut adam, mut lbfgs, mut broyden) =
        (Adam::new(0.01)?, Lbfgs::new(3)?, SsBroyden::default());
    let (mut lm, mut spring) = (LevenbergMarquardt::default(), Spring::default());
    let mut stages = [
        Stage::new(2, &mut adam),
        Stage::new(2, &mut lbfgs),
        Stage::new(2, &mut broyden),
        Stage::new(2, &mut lm),
        Stage::new(9, &mut spring),
    ];
    let sampler = Sampler::new(&[(0.0, 1.0)], 7)?;
    let mut train = Train::new(steps)
        .log_every(2)
        .redraw(3, sampler, |sampler, engine, _| {
            engine.set_points("decay", sampler.uniform(4)?)
        });
    if let Some(from) = from {
        train = train.resume(from);
    }
    if let Some(to) = to {
        train = train.checkpoint(to, 100);
    }
    train
        .run_stages(&mut engine, &mut params, &mut stages)
        .map(|_| ())
}

/// With the length and checksum that its body has: else no mutation would come further.
fn sealed(bytes: Vec<u8>) -> Vec<u8> {
    let mut bytes = bytes;
    if bytes.len() >= 24 {
        let length = (bytes.len() as u64 - 24).to_le_bytes();
        let checksum = crc32fast::hash(&bytes[24..]).to_le_bytes();
        bytes[12..20].copy_from_slice(&length);
        bytes[20..24].copy_from_slice(&checksum);
    }
    bytes
}

#[test]
fn checkpoints() -> Result<(), Error> {
    let slot = Slot::new();
    let good = [1, 3, 5, 7, 10].map(|steps| -> Result<Vec<u8>, Error> {
        let file = slot.hold(b"");
        train(steps, None, Some(&file))?;
        Ok(std::fs::read(file).expect("the checkpoint"))
    });
    let good = good.into_iter().collect::<Result<Vec<_>, _>>()?;
    fuzz("checkpoint", &good, sealed, |bytes| {
        train(12, Some(&slot.hold(bytes)), None)
    });
    Ok(())
}

#[test]
fn csv_points() {
    let slot = Slot::new();
    let good = [
        "t,x,u\n0.0,0.5,1.25\n1.0,-0.5,2\n",
        "\"t\",x\r\n 1 , 2 \r\n3,4e-5\r\n",
        "x,t,\"a \"\"b\"\"\"\n1,2,3\n",
    ];
    let good = good.map(|text| text.as_bytes().to_vec());
    fuzz("csv", &good, as_it_is, |bytes| {
        let points = Points::from_csv(slot.hold(bytes), &["t", "x"])?;
        assert_eq!(points.dimension(), 2);
        points.select(&[points.len() - 1]).map(|_| ())
    });
}

#[test]
fn npy_arrays() {
    let slot = Slot::new();
    let good = [
        "cube_f8.npy",
        "list_f8.npy",
        "points_c_f8.npy",
        "points_fortran_f4.npy",
    ];
    fuzz("npy", &good.map(data_file), as_it_is, |bytes| {
        let file = slot.hold(bytes);
        let array = points::read_npy(&file)?;
        assert_eq!(array.shape.iter().product::<usize>(), array.values.len());
        Points::from_npy(&file).map(|_| ())
    });
}

#[test]
fn names_of_elementals() {
    let good = ["tanh", "powi(3)", "powf(-0.5)", "ln_1p"].map(|name| name.as_bytes().to_vec());
    fuzz("elemental", &good, as_it_is, |bytes| {
        let name = String::from_utf8_lossy(bytes);
        let Some(elemental) = Elemental::named(&name) else {
            return Err(Error::Empty {
                what: "the name".to_owned(),
            });
        };
        for x in [0.0, -0.0, 0.7, -1e300, 5e-324, f64::INFINITY, f64::NAN] {
            elemental.taylor(x, 5)?;
            elemental.taylor(x as f32, 5)?;
        }
        Ok(())
    });
}

/// Bytes as a program on a stack of values.
fn program(bytes: &[u8], x: &[Field], u: &[Field]) -> Vec<Field> {
    let elementals = elementals();
    let mut stack: Vec<Field> = x.iter().chain(u).copied().collect();
    for pair in bytes.chunks(2).take(60) {
        let (what, which) = (pair[0], usize::from(*pair.last().unwrap_or(&0)));
        let len = stack.len();
        let (a, b) = (stack[which % len], stack[len - 1]);
        let number = [0.0, -1.0, 0.5, 1e300, f64::NAN, f64::INFINITY, 5e-324, 3.0][which % 8];
        stack.push(match what % 24 {
            0 => a + b,
            1 => a - b,
            2 => a * b,
            3 => a / b,
            4..=7 => b.apply(elementals[which % elementals.len()].clone()),
            8 => b.d(x[which % x.len()]),
            9 => b.d(a),
            10 => b.laplacian(x),
            11 => b.laplacian(&[a, x[0]]),
            12 => select(a.above(number), a, b),
            13 => select(b.above(0.0), a, b),
            14 => b * number,
            15 => b + number,
            16 => Field::from(number),
            17 => b.powi(which as i32 - 128),
            18 => b.powf(number),
            19 => dualtape::detach(b),
            20 => dualtape::data(["y", "z", ""][which % 3]),
            21 => a.atan2(b),
            22 => [a, b, x[0]].into_iter().sum(),
            _ => -a,
        });
    }
    stack.split_off(x.len() + u.len())
}

#[test]
fn recordings() {
    let good = [
        &[8, 0, 2, 1, 0, 1][..],
        &[6, 6, 2, 0, 8, 1, 8, 1, 4, 0],
        &[12, 3, 9, 0, 20, 0],
        &[10, 0, 4, 2, 0, 3],
    ];
    let good: Vec<Vec<u8>> = good.iter().map(|bytes| bytes.to_vec()).collect();
    fuzz("recording", &good, as_it_is, |bytes| {
        let mut params = Parameters::seeded(u64::from(bytes.first().copied().unwrap_or(0)));
        let net = params.mlp("u", &[2, 3, 2], Elemental::Tanh)?;
        let equation = Equation::record("eq", &params, ["t", "x"], |x| {
            let u = net.at_all(&x);
            let mut all = program(bytes, &x, &u);
            all.push(u[0] * x[0] * x[1] + u[1]);
            all
        })?;
        equation.tape().listing()?;
        let points = Points::from_rows(&[[0.3, -0.2], [0.5, 0.7], [0.0, 0.0]])?
            .with_column("y", &[1.0, 2.0, -1.0])?
            .with_column("z", &[0.0; 3])?;
        let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
        let engine = Engine::with(&problem, &Options::default().threads(1))?;
        let loss = engine.loss(params.values());
        match (engine.evaluate(params.values()), loss) {
            // The same, whatever else was asked for.
            (Ok(evaluation), Ok(loss)) => assert_eq!(evaluation.loss.to_bits(), loss.to_bits()),
            (Err(Error::NonFiniteGradient { .. }), Ok(_)) | (Err(_), Err(_)) => {}
            (evaluation, loss) => panic!("{evaluation:?} {loss:?}"),
        }
        let _ = engine.residuals("eq", params.values())?;
        Ok(())
    });
}
