//! What each kind of work costs: evaluations of many equations by all lowerings, fitted by
//! the counts of [`Work`](dualtape::count::Work), not negative, least squares of relative
//! errors. Prints the weights that `src/count.rs` holds, how well they predict the time of
//! each evaluation, and its ratio to that of jets.
//!
//! `cargo bench --bench calibrate -- [--isa NAME] [--dtype f64|f32] [--rounds N] [--cases]`

#[path = "support/equations.rs"]
mod equations;
#[path = "support/numbers.rs"]
mod numbers;

use dualtape::count::Work;
use dualtape::{
    Condition, Counts, Elemental, Engine, Error, InstructionSet, Lowering, Options, Parameters,
    Points, Precision, Problem,
};
use equations::Case;
use std::hint::black_box;
use std::time::Instant;

const USAGE: &str = "\
Usage: cargo bench --bench calibrate -- [options]
  --isa NAME         baseline, avx2, avx512 or neon (default: the widest)
  --dtype f64|f32    precision (default: f64)
  --rounds N         times that each evaluation is measured, interleaved; the fastest counts
                     (default: 15)
  --held             fit nothing: compare with the weights that the library holds
  --functions        elementary functions instead, beside tanh";

/// Of the equations of the study.
const NAMES: [&str; 10] = [
    "chain-1",
    "burgers",
    "kdv",
    "ks",
    "biharmonic",
    "ns",
    "poisson-5",
    "laplace-5",
    "energy-5",
    "energy-20",
];

/// Hidden layers and activations.
const NETWORKS: [(&[usize], Elemental); 4] = [
    (&[16, 16, 16], Elemental::Tanh),
    (&[64, 64, 64, 64], Elemental::Tanh),
    (&[128, 128, 128], Elemental::Tanh),
    (&[48, 48, 48], Elemental::Sin),
];

/// Points of whole batches, which go through main memory in one piece.
const WHOLE: [usize; 2] = [1024, 8192];
/// How many of the networks are measured so.
const IN_ONE_PIECE: usize = 2;
/// Bytes that one of them may take.
const MOST: usize = 1 << 28;

/// One evaluation that is measured.
struct Subject {
    name: String,
    /// The place of the same equation and network by jets.
    jets: usize,
    counts: Counts,
    chunk: usize,
    points: usize,
    /// Where it is measured among others; of a whole batch it would take too much memory.
    engine: Option<Engine>,
    theta: Vec<f64>,
    /// Nanoseconds of a point, the fastest so far.
    time: f64,
}

fn subject(
    case: Case,
    (hidden, activation): (&[usize], &Elemental),
    lowering: Lowering,
    recompute: bool,
    options: &Options,
    jets: usize,
    (whole, rounds): (Option<usize>, usize),
) -> Result<Option<Subject>, Error> {
    let mut params = Parameters::new();
    let equation = case.record(&mut params, hidden, activation.clone())?;
    params.set(&numbers::network(&case.widths(hidden)))?;
    let options = options.clone().lowering(lowering).recompute(recompute);
    let problem = |points: usize| {
        let points = Points::from_flat(case.inputs, &numbers::points(case.inputs, points))?;
        Problem::new(&params, [Condition::new(&equation, points)])
    };
    let plan = Engine::with(&problem(64)?, &options)?.plans()[0].clone();
    // Whole chunks, for a millisecond or two.
    let estimate = plan
        .counts
        .nanoseconds::<f64>(plan.chunk, InstructionSet::detect());
    let chunks = (2e6 / estimate / plan.chunk as f64).clamp(2.0, 64.0) as usize;
    let (points, chunk) = match whole {
        Some(points) => (points, points),
        None => (chunks * plan.chunk, plan.chunk),
    };
    if whole.is_some() && plan.counts.arena_bytes::<f64>(points) > MOST {
        return Ok(None);
    }
    let mut engine = Engine::with(&problem(points)?, &options.chunk(chunk))?;
    let theta = params.values().to_vec();
    let mut time = f64::INFINITY;
    if whole.is_some() {
        for _ in 0..rounds {
            time = time.min(measured(&mut engine, &theta, points)?);
        }
    }
    Ok(Some(Subject {
        name: format!(
            "{} {}x{} {activation}, {lowering:?}{}{}",
            case.name,
            hidden[0],
            hidden.len(),
            if recompute { ", recomputed" } else { "" },
            whole.map_or(String::new(), |points| format!(", {points} in one piece")),
        ),
        jets,
        counts: plan.counts,
        chunk,
        points,
        engine: whole.is_none().then_some(engine),
        theta,
        time,
    }))
}

/// Nanoseconds of a point.
fn measured(engine: &mut Engine, theta: &[f64], points: usize) -> Result<f64, Error> {
    let start = Instant::now();
    black_box(engine.evaluate(theta)?);
    Ok(start.elapsed().as_secs_f64() * 1e9 / points as f64)
}

/// Weights ≥ 0 with Σ (Σ_k w_k x_k − 1)² least, by descent in one coordinate at a time.
fn fit(rows: &[Vec<f64>]) -> Vec<f64> {
    let kinds = rows[0].len();
    let mut weights = vec![0.0; kinds];
    let mut rest = vec![-1.0; rows.len()];
    for _ in 0..20_000 {
        for k in 0..kinds {
            let (mut slope, mut square) = (0.0, 0.0);
            for (row, rest) in rows.iter().zip(&rest) {
                slope += row[k] * rest;
                square += row[k] * row[k];
            }
            if square > 0.0 {
                let step = (weights[k] - slope / square).max(0.0) - weights[k];
                weights[k] += step;
                for (row, rest) in rows.iter().zip(&mut rest) {
                    *rest += step * row[k];
                }
            }
        }
    }
    weights
}

/// Nanoseconds a number of each function, for a value and for each further coefficient.
fn functions(set: InstructionSet) -> Result<(), Error> {
    use Elemental as E;
    let all = [
        E::Tanh,
        E::Sigmoid,
        E::LogSigmoid,
        E::Softplus,
        E::Silu,
        E::Gelu,
        E::Erf,
        E::Sin,
        E::Cos,
        E::Exp,
        E::Sinh,
        E::Cosh,
        E::Abs,
        E::Relu,
        E::Recip,
        E::Powi(3),
        E::Powi(-2),
        E::Sqrt,
        E::Cbrt,
        E::Ln,
        E::Ln1p,
        E::Powf(1.5),
        E::Tan,
        E::ExpM1,
        E::Asin,
        E::Atan,
        E::Asinh,
        E::Acosh,
        E::Atanh,
    ];
    let z: Vec<f64> = (0..64).map(|i| 0.1 + f64::from(i) / 80.0).collect();
    let mut out = vec![0.0; 64 * 6];
    let mut table = Vec::new();
    for function in all {
        let mut times = [f64::INFINITY; 6];
        for (order, time) in times.iter_mut().enumerate() {
            for _ in 0..200 {
                let start = Instant::now();
                for _ in 0..20 {
                    function.taylor_into(black_box(&z), order, &mut out, set)?;
                    black_box(&out);
                }
                *time = time.min(start.elapsed().as_secs_f64() / (20.0 * 64.0) * 1e9);
            }
        }
        table.push((function, times));
    }
    let tanh = table[0].1[0];
    println!("ns a number, orders 0 to 5; in units of a tanh: value, and each coefficient more");
    for (function, times) in table {
        let more = (times[5] - times[1]) / 4.0;
        let value = times[1] - more;
        print!("{:12}", function.to_string());
        times.iter().for_each(|time| print!(" {time:7.2}"));
        println!("   {:6.2} {:6.2}", value / tanh, more / tanh);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut set = InstructionSet::detect();
    let (mut precision, mut rounds, mut held, mut only_functions) =
        (Precision::Double, 15_usize, false, false);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        use lexopt::prelude::*;
        match argument {
            Long("isa") => {
                let name = arguments.value()?.string()?;
                let named = InstructionSet::available();
                let named = named.into_iter().find(|set| set.name() == name);
                set = named.ok_or_else(|| format!("no instruction set `{name}` here"))?;
            }
            Long("dtype") => match arguments.value()?.string()?.as_str() {
                "f64" => precision = Precision::Double,
                "f32" => precision = Precision::Single,
                other => return Err(format!("no type `{other}`\n{USAGE}").into()),
            },
            Long("rounds") => rounds = arguments.value()?.parse()?,
            Long("held") => held = true,
            Long("functions") => only_functions = true,
            Long("bench") => {}
            _ => return Err(format!("{}\n{USAGE}", argument.unexpected()).into()),
        }
    }
    if only_functions {
        return Ok(functions(set)?);
    }
    let options = Options::default()
        .threads(1)
        .instructions(set)
        .precision(precision);
    let mut subjects: Vec<Subject> = Vec::new();
    for case in NAMES.into_iter().filter_map(Case::named) {
        for (place, (hidden, activation)) in NETWORKS.iter().enumerate() {
            let pieces = [None, Some(WHOLE[0]), Some(WHOLE[1])];
            let pieces = &pieces[..if place < IN_ONE_PIECE { 3 } else { 1 }];
            for &whole in pieces {
                let jets = subjects.len();
                for lowering in [
                    Lowering::Jets,
                    Lowering::NestedReverse,
                    Lowering::Partial { inner: 1 },
                ] {
                    // Nested reverse mode of high order has said what it has to say.
                    if lowering == Lowering::NestedReverse && case.order > 3 && hidden[0] > 64 {
                        continue;
                    }
                    for recompute in [false, true] {
                        let network = (*hidden, activation);
                        let how = (whole, rounds.div_ceil(3));
                        let one = subject(case, network, lowering, recompute, &options, jets, how)?;
                        let first = lowering == Lowering::Jets && !recompute;
                        // Without jets there is nothing to compare with.
                        if first || subjects.len() > jets {
                            subjects.extend(one);
                        }
                    }
                }
            }
        }
    }
    for _ in 0..rounds {
        for subject in &mut subjects {
            if let Some(engine) = &mut subject.engine {
                let time = measured(engine, &subject.theta, subject.points)?;
                subject.time = subject.time.min(time);
            }
        }
    }
    let size = match precision {
        Precision::Double => size_of::<f64>(),
        Precision::Single => size_of::<f32>(),
    };
    let kinds = |subject: &Subject| {
        let work: &Work = subject.counts.work();
        let kinds = work.kinds(subject.chunk as f64, size);
        kinds.map(|kind| kind / subject.chunk as f64).to_vec()
    };
    let predicted: Vec<f64> = if held {
        let time = |s: &Subject| match precision {
            Precision::Double => s.counts.nanoseconds::<f64>(s.chunk, set),
            Precision::Single => s.counts.nanoseconds::<f32>(s.chunk, set),
        };
        subjects.iter().map(time).collect()
    } else {
        let relative = |s: &Subject| kinds(s).iter().map(|kind| kind / s.time).collect();
        let rows: Vec<Vec<f64>> = subjects.iter().map(relative).collect();
        let weights = fit(&rows);
        let shown: Vec<String> = weights.iter().map(|w| format!("{w:.4}")).collect();
        println!("{} {precision:?}: [{}]", set.name(), shown.join(", "));
        let sum = |s: &Subject| kinds(s).iter().zip(&weights).map(|(n, w)| n * w).sum();
        subjects.iter().map(sum).collect()
    };
    println!("ns a point, predicted over measured, time over jets, the same as predicted");
    let mut worst: Vec<(f64, &Subject)> = Vec::new();
    for (place, (subject, predicted_time)) in subjects.iter().zip(&predicted).enumerate() {
        let ratio = subject.time / subjects[subject.jets].time;
        let own = predicted_time / predicted[subject.jets];
        if place != subject.jets {
            worst.push(((own / ratio).ln().abs(), subject));
        }
        println!(
            "{:9.1} {:5.2} {ratio:6.2} {own:6.2} {:+5.0} %  {}",
            subject.time,
            predicted_time / subject.time,
            (own / ratio - 1.0) * 100.0,
            subject.name
        );
    }
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (how, whole) in [("in chunks", false), ("in one piece", true)] {
        let such = worst.iter().filter(|(_, s)| s.engine.is_none() == whole);
        let within = such.clone().filter(|(error, _)| *error <= 0.15_f64.ln_1p());
        println!(
            "{how}: {} of {} ratios within 15 %",
            within.count(),
            such.count()
        );
    }
    println!("the worst:");
    for (error, subject) in worst.iter().take(12) {
        println!("{:5.0} %  {}", error.exp_m1() * 100.0, subject.name);
    }
    Ok(())
}
