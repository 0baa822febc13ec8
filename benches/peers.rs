//! Loss and gradient of the peers' workloads: the same networks, points, residuals and
//! random numbers, one JSON line each.
//!
//! `cargo bench --bench peers -- --json [--workload NAME] [--dtype f64|f32] [--threads N]`

#[path = "support/counting.rs"]
mod counting;

use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Field, Options, Parameters, Points,
    Precision, Problem,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

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

/// The stream of random numbers that all peers share: splitmix64.
struct Stream(u64);

impl Stream {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy)]
enum Pde {
    Ode,
    Burgers,
    Laplace,
    Ks,
    Ns,
}

struct Workload {
    name: &'static str,
    pde: Pde,
    inputs: usize,
    width: usize,
    hidden: usize,
    points: usize,
}

const fn workload(
    name: &'static str,
    pde: Pde,
    inputs: usize,
    width: usize,
    hidden: usize,
    points: usize,
) -> Workload {
    Workload {
        name,
        pde,
        inputs,
        width,
        hidden,
        points,
    }
}

const WORKLOADS: [Workload; 17] = [
    workload("paper-3x2-n1", Pde::Ode, 1, 3, 2, 1),
    workload("ode-3x2-n1", Pde::Ode, 1, 3, 2, 1),
    workload("ode-3x2-n30", Pde::Ode, 1, 3, 2, 30),
    workload("ode-32x2-n30", Pde::Ode, 1, 32, 2, 30),
    workload("ode-32x2-n1000", Pde::Ode, 1, 32, 2, 1000),
    workload("ode-32x2-n10000", Pde::Ode, 1, 32, 2, 10000),
    workload("burgers-20x8-n1000", Pde::Burgers, 2, 20, 8, 1000),
    workload("burgers-20x8-n10000", Pde::Burgers, 2, 20, 8, 10000),
    workload("burgers-64x4-n10000", Pde::Burgers, 2, 64, 4, 10000),
    workload("burgers-128x4-n10000", Pde::Burgers, 2, 128, 4, 10000),
    workload("burgers-256x4-n4096", Pde::Burgers, 2, 256, 4, 4096),
    workload("poisson2d-64x4-n10000", Pde::Laplace, 2, 64, 4, 10000),
    workload("laplace10-128x4-n1000", Pde::Laplace, 10, 128, 4, 1000),
    workload("laplace100-128x4-n256", Pde::Laplace, 100, 128, 4, 256),
    workload("laplace100-128x4-n1000", Pde::Laplace, 100, 128, 4, 1000),
    workload("ks-64x4-n4096", Pde::Ks, 2, 64, 4, 4096),
    workload("ns-64x4-n4096", Pde::Ns, 3, 64, 4, 4096),
];

impl Workload {
    fn widths(&self) -> Vec<usize> {
        let outputs = if matches!(self.pde, Pde::Ns) { 3 } else { 1 };
        let mut widths = vec![self.inputs];
        widths.extend(vec![self.width; self.hidden]);
        widths.push(outputs);
        widths
    }

    fn planes(&self) -> usize {
        match self.pde {
            Pde::Ode => 2,
            Pde::Burgers => 4,
            Pde::Laplace => self.inputs + 2,
            Pde::Ks => 6,
            Pde::Ns => 5,
        }
    }

    /// Products that no implementation can leave out, as the peers count them.
    fn gflop(&self, points: usize) -> f64 {
        let widths = self.widths();
        let first = 4 * widths[0] * widths[1];
        let rest: usize = widths[1..]
            .windows(2)
            .map(|w| 6 * w[0] * w[1] * self.planes())
            .sum();
        ((first + rest) * points) as f64 / 1e9
    }

    fn parameters(&self) -> Result<(Parameters, dualtape::Mlp), Error> {
        let widths = self.widths();
        let mut params = Parameters::new();
        let net = params.mlp("net", &widths, Tanh)?;
        let mut random = Stream(1);
        let mut values = Vec::with_capacity(params.len());
        for w in widths.windows(2) {
            let bound = (6.0 / (w[0] + w[1]) as f64).sqrt();
            values.extend((0..w[0] * w[1]).map(|_| (2.0 * random.uniform() - 1.0) * bound));
            values.extend((0..w[1]).map(|_| (2.0 * random.uniform() - 1.0) * 0.1));
        }
        params.set(&values)?;
        Ok((params, net))
    }

    fn equation(&self, params: &Parameters, net: &dualtape::Mlp) -> Result<Equation, Error> {
        let names: Vec<String> = (0..self.inputs).map(|i| format!("x{i}")).collect();
        Equation::record_over(self.name, params, &names, |x| self.residual(net, x))
    }

    fn residual(&self, net: &dualtape::Mlp, x: &[Field]) -> Vec<Field> {
        let nu_burgers = 0.01 / std::f64::consts::PI;
        let nu_ns = 0.01;
        match self.pde {
            Pde::Ode => {
                let [u] = net.at(x);
                vec![u.d(x[0]) + u]
            }
            Pde::Burgers => {
                let [u] = net.at(x);
                let (t, x) = (x[0], x[1]);
                vec![u.d(t) + u * u.d(x) - nu_burgers * u.d(x).d(x)]
            }
            Pde::Laplace => {
                let [u] = net.at(x);
                vec![u.laplacian(x) + 1.0]
            }
            Pde::Ks => {
                let [u] = net.at(x);
                let (t, x) = (x[0], x[1]);
                let second = u.d(x).d(x);
                vec![u.d(t) + u * u.d(x) + second + second.d(x).d(x)]
            }
            Pde::Ns => {
                let [u, v, p] = net.at(x);
                let (t, x, y) = (x[0], x[1], x[2]);
                let momentum = |w: Field, px: Field| {
                    w.d(t) + u * w.d(x) + v * w.d(y) + px - nu_ns * w.laplacian(&[x, y])
                };
                vec![momentum(u, p.d(x)), momentum(v, p.d(y)), u.d(x) + v.d(y)]
            }
        }
    }
}

struct Arguments {
    json: bool,
    check: bool,
    workloads: Vec<String>,
    precision: Precision,
    threads: usize,
    points: Option<usize>,
    seconds: f64,
    options: Options,
}

fn fail(message: &str) -> ! {
    eprintln!("{message}\n\n{USAGE}");
    std::process::exit(2)
}

fn arguments() -> Arguments {
    let mut parsed = Arguments {
        json: false,
        check: false,
        workloads: Vec::new(),
        precision: Precision::Double,
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
            "--workload" => parsed.workloads = value().split(',').map(str::to_owned).collect(),
            "--dtype" => {
                parsed.precision = match value().as_str() {
                    "f64" => Precision::Double,
                    "f32" => Precision::Single,
                    other => fail(&format!("--dtype {other}: f64 or f32 expected")),
                }
            }
            "--threads" => parsed.threads = number(&word, &value()),
            "--points" => parsed.points = Some(number(&word, &value())),
            "--chunk" => parsed.options = parsed.options.chunk(number(&word, &value())),
            "--isa" => {
                let name = value();
                let sets = dualtape::InstructionSet::available();
                match sets.into_iter().find(|set| set.name() == name) {
                    Some(set) => parsed.options = parsed.options.instructions(set),
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
    for name in &parsed.workloads {
        if name != "all" && !WORKLOADS.iter().any(|w| w.name == name) {
            fail(&format!("unknown workload {name}; --list names them"));
        }
    }
    parsed
}

fn number<N: std::str::FromStr>(option: &str, text: &str) -> N {
    text.parse()
        .unwrap_or_else(|_| fail(&format!("{option} {text}: a number expected")))
}

fn main() -> Result<(), Error> {
    let arguments = arguments();
    let all = arguments.workloads.is_empty() || arguments.workloads.iter().any(|w| w == "all");
    for workload in &WORKLOADS {
        if all || arguments.workloads.iter().any(|name| name == workload.name) {
            measure(workload, &arguments)?;
        }
    }
    Ok(())
}

fn measure(workload: &Workload, arguments: &Arguments) -> Result<(), Error> {
    let n = arguments.points.unwrap_or(workload.points);
    let (params, net) = workload.parameters()?;
    let started = Instant::now();
    let equation = workload.equation(&params, &net)?;
    let mut random = Stream(2);
    let flat: Vec<f64> = (0..n * workload.inputs).map(|_| random.uniform()).collect();
    let points = Points::from_flat(workload.inputs, &flat)?;
    let mut conditions = vec![Condition::new(&equation, points)];
    if workload.name.starts_with("paper") {
        // The paper's step: one collocation point and the initial condition.
        let start = Equation::record("start", &params, ["t"], |[t]| net.at::<1>(&[t])[0] - 1.0)?;
        conditions[0] = Condition::new(&equation, Points::from_rows(&[[0.5]])?);
        conditions.push(Condition::new(&start, Points::from_rows(&[[0.0]])?).weight(10.0));
    }
    let problem = Problem::new(&params, conditions)?;
    let options = arguments
        .options
        .clone()
        .precision(arguments.precision)
        .threads(arguments.threads);
    let engine = Engine::with(&problem, &options)?;
    let mut gradient = vec![0.0; params.len()];
    let mut losses = vec![0.0; engine.conditions().len()];
    let theta = params.values();
    let mut loss = 0.0;
    let peak_first = {
        let mut result = Ok(0.0);
        let growth = counting::peak_growth(|| {
            result = engine.evaluate_into(theta, &mut losses, &mut gradient);
        });
        result?;
        growth
    };
    let first_call = started.elapsed();
    let mut evaluate = || -> Result<(), Error> {
        loss = engine.evaluate_into(black_box(theta), &mut losses, &mut gradient)?;
        Ok(())
    };
    evaluate()?;
    let before = counting::allocations();
    evaluate()?;
    let allocations = counting::allocations() - before;
    let mut times = Vec::with_capacity(1 << 20);
    if !arguments.check {
        let end = Instant::now() + Duration::from_secs_f64(arguments.seconds);
        while times.len() < 7 || (Instant::now() < end && times.len() < times.capacity()) {
            let start = Instant::now();
            evaluate()?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
    }
    let mut weights = Stream(3);
    let grad_norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let grad_dot: f64 = gradient
        .iter()
        .map(|g| g * (2.0 * weights.uniform() - 1.0))
        .sum();
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    let least = times.first().copied().unwrap_or(f64::NAN);
    let dtype = match arguments.precision {
        Precision::Double => "f64",
        Precision::Single => "f32",
    };
    let gflops = workload.gflop(n) / median;
    if arguments.json {
        let time = |seconds: f64| {
            if seconds.is_finite() {
                serde_json::json!(seconds)
            } else {
                serde_json::Value::Null
            }
        };
        let line = serde_json::json!({
            "kind": "peer", "workload": workload.name, "peer": "dualtape", "dtype": dtype,
            "threads": arguments.threads, "n": n, "loss": loss, "grad_norm": grad_norm,
            "grad_dot": grad_dot, "t_median_s": time(median), "t_min_s": time(least),
            "reps": times.len(), "peak_eval_bytes": peak_first,
            "allocations": allocations, "first_call_s": first_call.as_secs_f64(),
            "gflop_lean": workload.gflop(n), "gflops": time(gflops),
        });
        println!("{line}");
    } else {
        println!(
            "{:24} {dtype} {} thread(s)  median {:10.4} ms  least {:10.4} ms  {gflops:7.2} GFLOP/s  \
             peak {:.2} MiB  loss {loss:.12e}",
            workload.name,
            arguments.threads,
            median * 1e3,
            least * 1e3,
            peak_first as f64 / (1 << 20) as f64,
        );
    }
    Ok(())
}
