//! What loss and gradient cost by jets, by nested reverse mode, by splits between them and
//! by what the counts choose, with and without recomputation, in chunks and in one piece:
//! nodes, planes, bytes and operations as predicted, bytes and seconds as measured.
//! `docs/memory.md` reads it.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/equations.rs"]
mod equations;
#[path = "support/numbers.rs"]
mod numbers;

use dualtape::{
    Condition, Elemental, Engine, Error, InstructionSet, Lowering, Options, Parameters, Points,
    Precision, Problem,
};
use equations::{CASES, Case};
use std::hint::black_box;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const USAGE: &str = "\
Usage: cargo bench --bench memory -- [options]
  --json             one JSON line for each measurement
  --quick            few points, short laps, no large networks
  --set NAME         order, operators, depth, width, points or peers (default: all)
  --equation NAME    one equation
  --threads N        threads (default: 1)
  --rounds N         laps of each measurement, interleaved with those of the other ways to
                     compute the same; their median counts (default: 7)
  --list             names of the equations";

/// What is larger is predicted only.
const MOST_BYTES: usize = 3 << 30;
/// Nested reverse mode is not measured where it has more nodes: planning alone takes long.
const MOST_NODES: usize = 20_000;
/// Seconds of a lap, at least.
const LAP: f64 = 0.02;

struct Arguments {
    json: bool,
    quick: bool,
    set: Option<String>,
    equation: Option<String>,
    threads: usize,
    rounds: usize,
}

/// An equation on a network and points, to be computed in all ways.
struct Setting {
    set: &'static str,
    case: Case,
    hidden: Vec<usize>,
    points: usize,
    precision: Precision,
    lowerings: Vec<Lowering>,
    recompute: &'static [bool],
    /// In chunks, in one piece.
    whole: &'static [bool],
}

const BOTH: &[bool] = &[false, true];
const CHUNKED: &[bool] = &[false];

/// All ways that an order has, the splits by order included.
fn ways(order: usize) -> Vec<Lowering> {
    let mut ways = vec![Lowering::Jets, Lowering::NestedReverse];
    ways.extend((1..order).map(|inner| Lowering::Partial { inner }));
    ways.push(Lowering::Auto);
    ways
}

fn settings(quick: bool) -> Vec<Setting> {
    let n = if quick { 64 } else { 1024 };
    let hidden = if quick { vec![16; 2] } else { vec![64; 4] };
    let mut all = Vec::new();
    let mut add = |set, case: Case, hidden: &[usize], points, precision, recompute, whole| {
        all.push(Setting {
            set,
            case,
            hidden: hidden.to_vec(),
            points,
            precision,
            lowerings: ways(case.order),
            recompute,
            whole,
        });
    };
    use Precision::{Double, Single};
    for case in CASES {
        let set = match case.name.starts_with("chain") {
            true => "order",
            false => "operators",
        };
        add(set, case, &hidden, n, Double, BOTH, BOTH);
        if !quick {
            add(set, case, &hidden, n, Single, CHUNKED, CHUNKED);
        }
    }
    let burgers = Case::named("burgers").expect("it is among the cases");
    let (depths, widths, counts): (&[usize], &[usize], &[usize]) = match quick {
        true => (&[1, 4], &[8, 32], &[100, 1_000]),
        false => (
            &[1, 2, 4, 8, 16, 32, 64],
            &[8, 16, 32, 64, 128, 256],
            &[100, 1_000, 10_000, 100_000, 1_000_000],
        ),
    };
    for &depth in depths {
        add("depth", burgers, &vec![32; depth], n, Double, BOTH, CHUNKED);
    }
    for &width in widths {
        add("width", burgers, &[width; 4], n, Double, BOTH, CHUNKED);
    }
    for &count in counts {
        add("points", burgers, &[32; 4], count, Double, CHUNKED, BOTH);
    }
    // What the peers are given too.
    for name in PEERS.into_iter().filter(|_| !quick) {
        let case = Case::named(name).expect("it is among the cases");
        add("peers", case, &[64; 4], 1024, Double, CHUNKED, BOTH);
    }
    all
}

const PEERS: [&str; 12] = [
    "chain-1",
    "chain-2",
    "chain-3",
    "chain-4",
    "chain-5",
    "chain-6",
    "burgers",
    "ks",
    "ns",
    "laplace-2",
    "energy-5",
    "energy-20",
];

/// One way to compute a setting.
struct Subject {
    lowering: Lowering,
    recompute: bool,
    whole: bool,
    engine: Engine,
    theta: Vec<f64>,
    losses: Vec<f64>,
    gradient: Vec<f64>,
    measured: Option<usize>,
    /// Allocations of a warm evaluation.
    allocations: Option<usize>,
    /// Evaluations of a lap.
    batch: usize,
    laps: Vec<f64>,
}

impl Subject {
    fn run(&mut self) -> Result<(), Error> {
        let theta = black_box(&self.theta);
        let (losses, gradient) = (&mut self.losses, &mut self.gradient);
        self.engine.evaluate_into(theta, losses, gradient).map(drop)
    }

    fn lap(&mut self) -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..self.batch {
            self.run()?;
        }
        Ok(start.elapsed().as_secs_f64() / self.batch as f64)
    }
}

fn measure(setting: &Setting, arguments: &Arguments) -> Result<(), Error> {
    let Setting {
        case, points: n, ..
    } = setting;
    let mut params = Parameters::new();
    let equation = case.record(&mut params, &setting.hidden, Elemental::Tanh)?;
    params.set(&numbers::network(&case.widths(&setting.hidden)))?;
    let points = Points::from_flat(case.inputs, &numbers::points(case.inputs, *n))?;
    let problem = Problem::new(&params, [Condition::new(&equation, points)])?;
    let mut subjects = Vec::new();
    for &whole in setting.whole {
        for &recompute in setting.recompute {
            for &lowering in &setting.lowerings {
                let mut options = Options::default()
                    .threads(arguments.threads)
                    .precision(setting.precision)
                    .lowering(lowering)
                    .recompute(recompute);
                if whole {
                    options = options.chunk(n.next_multiple_of(16));
                }
                let engine = Engine::with(&problem, &options)?;
                subjects.push(Subject {
                    lowering,
                    recompute,
                    whole,
                    theta: params.values().to_vec(),
                    losses: vec![0.0],
                    gradient: vec![0.0; params.len()],
                    engine,
                    measured: None,
                    allocations: None,
                    batch: 1,
                    laps: Vec::new(),
                });
            }
        }
    }
    let least = if arguments.quick { 0.0 } else { LAP };
    for subject in &mut subjects {
        let nodes: usize = subject.engine.plans()[0].counts.nodes.iter().sum();
        if subject.engine.predicted_bytes() > MOST_BYTES || nodes > MOST_NODES {
            continue;
        }
        // The result of `evaluate` is counted, as it is predicted.
        let mut done = Ok(());
        let engine = &subject.engine;
        let bytes = counting::peak_growth(|| done = engine.evaluate(&subject.theta).map(drop));
        done?;
        subject.measured = Some(bytes);
        subject.run()?;
        let before = counting::allocations();
        let once = subject.lap()?;
        subject.allocations = Some(counting::allocations() - before);
        subject.batch = (least / once).ceil().max(1.0) as usize;
    }
    for _ in 0..arguments.rounds {
        for subject in subjects.iter_mut().filter(|s| s.measured.is_some()) {
            let lap = subject.lap()?;
            subject.laps.push(lap);
        }
    }
    for subject in &mut subjects {
        print(setting, subject, arguments);
    }
    Ok(())
}

fn label(lowering: Lowering) -> String {
    match lowering {
        Lowering::Jets => "jets".to_owned(),
        Lowering::NestedReverse => "nested".to_owned(),
        Lowering::Partial { inner } => format!("partial-{inner}"),
        _ => "auto".to_owned(),
    }
}

fn print(setting: &Setting, subject: &mut Subject, arguments: &Arguments) {
    let plan = subject.engine.plans()[0];
    let counts = &plan.counts;
    let single = setting.precision == Precision::Single;
    let dtype = if single { "f32" } else { "f64" };
    let kept = match single {
        true => counts.kept_bytes::<f32>(plan.chunk),
        false => counts.kept_bytes::<f64>(plan.chunk),
    };
    let set = InstructionSet::detect();
    let a_point = match single {
        true => counts.nanoseconds::<f32>(plan.chunk, set),
        false => counts.nanoseconds::<f64>(plan.chunk, set),
    };
    subject.laps.sort_by(f64::total_cmp);
    let median = subject.laps.get(subject.laps.len() / 2).copied();
    let norm = subject.gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let nodes: usize = counts.nodes.iter().sum();
    let predicted = subject.engine.predicted_bytes();
    let (loss, norm) = match subject.measured {
        Some(_) => (Some(subject.losses[0]), Some(norm)),
        None => (None, None),
    };
    if arguments.json {
        let line = serde_json::json!({
            "set": setting.set, "equation": setting.case.name, "order": setting.case.order,
            "widths": setting.case.widths(&setting.hidden), "n": setting.points,
            "chunk": plan.chunk, "whole": subject.whole, "dtype": dtype,
            "lowering": label(subject.lowering), "taken": label(plan.lowering),
            "recompute": subject.recompute, "threads": arguments.threads, "nodes": nodes,
            "nodes_by_graph": counts.nodes, "planes": counts.planes, "kept_bytes": kept,
            "predicted_bytes": predicted, "measured_bytes": subject.measured,
            "predicted_flops": counts.matrix_flops * setting.points,
            "predicted_s": a_point * 1e-9 * setting.points as f64, "t_median_s": median,
            "allocations": subject.allocations, "loss": loss, "grad_norm": norm,
        });
        println!("{line}");
        return;
    }
    let taken = match subject.lowering {
        Lowering::Auto => format!("auto: {}", label(plan.lowering)),
        lowering => label(lowering),
    };
    let measured = match (median, subject.measured) {
        (Some(seconds), Some(bytes)) => {
            format!("{bytes:>11} B measured  {:9.3} ms", seconds * 1e3)
        }
        _ => "too large to be measured here".to_owned(),
    };
    println!(
        "{:10} {dtype} {:>7} points, chunks of {:>7}  {taken:16}{} {nodes:>5} nodes {:>5} planes  \
         {predicted:>11} B predicted  {measured}",
        setting.case.name,
        setting.points,
        plan.chunk,
        if subject.recompute { " recomputed" } else { "" },
        counts.planes,
    );
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    use lexopt::prelude::*;
    let mut parsed = Arguments {
        json: false,
        quick: false,
        set: None,
        equation: None,
        threads: 1,
        rounds: 7,
    };
    let mut words = lexopt::Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Long("json") => parsed.json = true,
            Long("quick") => (parsed.quick, parsed.rounds) = (true, 1),
            Long("set") => parsed.set = Some(words.value()?.string()?),
            Long("equation") => parsed.equation = Some(words.value()?.string()?),
            Long("threads") => parsed.threads = words.value()?.parse()?,
            Long("rounds") => parsed.rounds = words.value()?.parse()?,
            Long("list") => {
                CASES.iter().for_each(|case| println!("{}", case.name));
                std::process::exit(0)
            }
            Long("help") | Short('h') => {
                println!("{USAGE}");
                std::process::exit(0)
            }
            Long("bench") => {}
            _ => return Err(word.unexpected()),
        }
    }
    Ok(parsed)
}

fn main() -> Result<(), Error> {
    let arguments = arguments().unwrap_or_else(|error| {
        eprintln!("{error}\n\n{USAGE}");
        std::process::exit(2)
    });
    let asked = |name: &str, wanted: &Option<String>| match wanted {
        Some(wanted) => wanted == name,
        None => true,
    };
    for setting in settings(arguments.quick) {
        if asked(setting.set, &arguments.set) && asked(setting.case.name, &arguments.equation) {
            measure(&setting, &arguments)?;
        }
    }
    Ok(())
}
