//! Loss and gradient of the workloads that the peers have too: the same networks, points,
//! residuals and random numbers, one JSON line each. `benches/README.md` says how to run it.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/numbers.rs"]
mod numbers;
#[path = "support/peak.rs"]
mod peak;
#[path = "support/workloads.rs"]
mod workloads;

use dualtape::{Counts, Engine, Error, InstructionSet, Options, Precision, Problem};
use numbers::Stream;
use std::hint::black_box;
use std::time::{Duration, Instant};
use workloads::{Job, WORKLOADS, Workload};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const USAGE: &str = "\
Usage: cargo bench --bench peers -- [options]
  --json             one JSON line for each measurement
  --workload NAME    one workload, or several with commas (default: all)
  --dtype f64|f32    precision (default: f64)
  --threads N        threads (default: 1)
  --points N         another number of points
  --chunk N          points a chunk (default: the engine's choice)
  --isa NAME         baseline, avx2, avx512 or neon (default: the widest)
  --seconds S        timed repeats for each workload (default: 1)
  --check            loss and gradient only, no timing
  --list             names of the workloads";

/// Evaluations that take less are timed in batches, so that reading the clock costs nothing.
const SHORTEST: f64 = 50e-6;

struct Arguments {
    json: bool,
    check: bool,
    workloads: Vec<&'static Workload>,
    threads: usize,
    points: Option<usize>,
    seconds: f64,
    options: Options,
}

fn fail(message: &str) -> ! {
    eprintln!("{message}\n\n{USAGE}");
    std::process::exit(2)
}

fn number<N: std::str::FromStr>(option: &str, text: &str) -> N {
    text.parse()
        .unwrap_or_else(|_| fail(&format!("{option} {text}: a number expected")))
}

fn named(list: &str) -> Vec<&'static Workload> {
    if list == "all" {
        return WORKLOADS.iter().collect();
    }
    let find = |name| {
        Workload::named(name)
            .unwrap_or_else(|| fail(&format!("unknown workload {name}; --list names them")))
    };
    list.split(',').map(find).collect()
}

fn arguments() -> Arguments {
    let mut parsed = Arguments {
        json: false,
        check: false,
        workloads: named("all"),
        threads: 1,
        points: None,
        seconds: 1.0,
        options: Options::default(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .unwrap_or_else(|| fail(&format!("{word} needs a value")))
        };
        match word.as_str() {
            "--bench" => {}
            "--json" => parsed.json = true,
            "--check" => parsed.check = true,
            "--workload" => parsed.workloads = named(&value()),
            "--dtype" => {
                parsed.options.precision = match value().as_str() {
                    "f64" => Precision::Double,
                    "f32" => Precision::Single,
                    other => fail(&format!("--dtype {other}: f64 or f32 expected")),
                }
            }
            "--threads" => parsed.threads = number(&word, &value()),
            "--points" => parsed.points = Some(number(&word, &value())),
            "--chunk" => parsed.options.chunk = Some(number(&word, &value())),
            "--isa" => {
                let name = value();
                let sets = InstructionSet::available();
                match sets.into_iter().find(|set| set.name() == name) {
                    Some(set) => parsed.options.instructions = Some(set),
                    None => fail(&format!("--isa {name}: this CPU does not have it")),
                }
            }
            "--seconds" => parsed.seconds = number(&word, &value()),
            "--list" => {
                WORKLOADS.iter().for_each(|w| println!("{}", w.name));
                std::process::exit(0)
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0)
            }
            other => fail(&format!("unknown option {other}")),
        }
    }
    parsed.options.threads = Some(parsed.threads);
    parsed
}

fn main() -> Result<(), Error> {
    let arguments = arguments();
    for workload in &arguments.workloads {
        measure(workload, &arguments)?;
    }
    Ok(())
}

/// Loss and gradient, by whichever way a workload asks for.
struct Evaluator {
    job: Job,
    engine: Engine,
    theta: Vec<f64>,
    losses: Vec<f64>,
    gradient: Vec<f64>,
}

impl Evaluator {
    fn new(job: Job, problem: &Problem, theta: &[f64], options: &Options) -> Result<Self, Error> {
        let engine = Engine::with(problem, options)?;
        Ok(Self {
            job,
            theta: theta.to_vec(),
            losses: vec![0.0; engine.conditions().len()],
            gradient: vec![0.0; engine.parameters()],
            engine,
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        let theta = black_box(&self.theta);
        match self.job {
            Job::Gradient => {
                let (losses, gradient) = (&mut self.losses, &mut self.gradient);
                self.engine.evaluate_into(theta, losses, gradient)?;
            }
            Job::Rows => {
                for name in self.engine.conditions() {
                    self.engine.rows(name, theta, |rows| {
                        black_box(rows.parameter(0));
                    })?;
                }
            }
            Job::Product => {
                black_box(self.engine.gauss_newton(theta, theta)?);
            }
        }
        Ok(())
    }

    /// Loss and gradient; of rows they are Σ r² and 2 Jᵀr, of a product ‖J·θ‖² and JᵀJ·θ.
    fn result(&mut self) -> Result<(f64, &[f64]), Error> {
        if self.job == Job::Rows {
            self.losses.fill(0.0);
            self.gradient.fill(0.0);
            let (losses, gradient) = (&mut self.losses, &mut self.gradient);
            for (place, name) in self.engine.conditions().iter().enumerate() {
                self.engine.rows(name, &self.theta, |rows| {
                    losses[place] += rows.residuals.iter().map(|r| r * r).sum::<f64>();
                    for (parameter, g) in gradient.iter_mut().enumerate() {
                        let column = rows.parameter(parameter).iter();
                        *g += 2.0 * column.zip(rows.residuals).map(|(j, r)| j * r).sum::<f64>();
                    }
                })?;
            }
        }
        if self.job == Job::Product {
            let along = self.engine.along(&self.theta, &self.theta)?;
            self.losses.fill(0.0);
            self.losses[0] = along.iter().map(|s| s * s).sum();
            self.gradient = self.engine.gauss_newton(&self.theta, &self.theta)?;
        }
        Ok((self.losses.iter().sum(), &self.gradient))
    }
}

/// Sorted seconds of an evaluation.
fn timed(evaluator: &mut Evaluator, seconds: f64) -> Result<Vec<f64>, Error> {
    let mut lap = |batch: usize| -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..batch {
            evaluator.run()?;
        }
        Ok(start.elapsed().as_secs_f64() / batch as f64)
    };
    let batch = (SHORTEST / lap(16)?.max(1e-9)).ceil().max(1.0) as usize;
    let mut times = Vec::with_capacity(1 << 20);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while times.len() < 7 || (Instant::now() < end && times.len() < times.capacity()) {
        times.push(lap(batch)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn measure(workload: &Workload, arguments: &Arguments) -> Result<(), Error> {
    let (params, net) = workload.network()?;
    let points = workload.points(arguments.points)?;
    let n = points.len();

    // From here on as a user would wait: recording, planning, the first evaluation.
    let started = Instant::now();
    let problem = workload.problem(&params, &net, points)?;
    let mut evaluator =
        Evaluator::new(workload.job, &problem, params.values(), &arguments.options)?;
    let mut first = Ok(());
    let memory = counting::peak_growth(|| first = evaluator.run());
    first?;
    let first_call = started.elapsed().as_secs_f64();

    evaluator.run()?;
    let before = counting::allocations();
    evaluator.run()?;
    let allocations = counting::allocations() - before;

    let single = arguments.options.precision == Precision::Single;
    let (mut times, mut peak) = (Vec::new(), f64::NAN);
    if !arguments.check {
        // On both sides of the measurement: the clock of a CPU drifts.
        peak = peak::gflops(single, arguments.threads);
        times = timed(&mut evaluator, arguments.seconds)?;
        peak = peak.max(peak::gflops(single, arguments.threads));
    }
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    let least = times.first().copied().unwrap_or(f64::NAN);

    // The matrix products of the plan; elementwise work is not counted.
    let flops: usize = problem
        .conditions()
        .iter()
        .map(|c| Counts::of(c.equation()).matrix_flops * c.points().len())
        .sum();
    let gflop = flops as f64 / 1e9;
    let gflops = gflop / median;

    let (loss, gradient) = evaluator.result()?;
    let grad_norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let mut weights = Stream(3);
    let projected = gradient.iter().map(|g| g * (2.0 * weights.uniform() - 1.0));
    let grad_dot: f64 = projected.sum();

    let dtype = if single { "f32" } else { "f64" };
    if arguments.json {
        // `null` where nothing was timed.
        let line = serde_json::json!({
            "kind": "peer", "workload": workload.name, "peer": "dualtape", "dtype": dtype,
            "threads": arguments.threads, "n": n, "loss": loss, "grad_norm": grad_norm,
            "grad_dot": grad_dot, "t_median_s": median, "t_min_s": least,
            "reps": times.len(), "first_call_s": first_call, "peak_eval_bytes": memory,
            "allocations": allocations, "gflop": gflop, "gflops": gflops,
            "peak_gflops": peak, "peak_fraction": gflops / peak,
        });
        println!("{line}");
    } else {
        println!(
            "{:24} {dtype} {} thread(s)  median {:10.4} ms  least {:10.4} ms  \
             {gflops:7.2} GFLOP/s, {:5.1} % of {peak:.0}  first result {:.2} ms  \
             memory {:.2} MiB  loss {loss:.12e}",
            workload.name,
            arguments.threads,
            median * 1e3,
            least * 1e3,
            100.0 * gflops / peak,
            first_call * 1e3,
            memory as f64 / (1 << 20) as f64,
        );
    }
    Ok(())
}
