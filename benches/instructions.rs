//! Instructions of a few small evaluations, counted by callgrind and compared with those in
//! `instructions.json`: a guard against regressions that no clock disturbs.
//! `benches/README.md` says when it fails and how to record anew.
//!
//! Evaluations are counted by difference: a run with more of them less a run with fewer. So
//! the start, the recording and the warm-up drop out, and work counts in whichever thread
//! it is done.

#[path = "support/numbers.rs"]
mod numbers;
#[path = "support/workloads.rs"]
mod workloads;

use dualtape::{Engine, InstructionSet, Options, Precision};
use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use workloads::{Job, Workload};

const USAGE: &str = "\
Usage: cargo bench --bench instructions [-- --update]
  --update    record the counts of this compiler in benches/instructions.json";

/// A change by more than this, up or down, fails.
const MARGIN: f64 = 0.03;
/// Evaluations before those that count.
const WARM: usize = 2;
/// Instruction sets that are recorded, of which the widest that the machine has is compared;
/// valgrind knows no wider one.
const SETS: [InstructionSet; 2] = [InstructionSet::Baseline, InstructionSet::Avx2];

struct Case {
    name: &'static str,
    workload: &'static str,
    points: usize,
    precision: Precision,
    /// How many are counted: more of the smaller ones, since the start of a process differs
    /// by some thousand instructions from run to run.
    evaluations: usize,
}

const fn case(
    name: &'static str,
    workload: &'static str,
    points: usize,
    evaluations: usize,
) -> Case {
    Case {
        name,
        workload,
        points,
        precision: Precision::Double,
        evaluations,
    }
}

const CASES: [Case; 9] = [
    case("paper-n1", "paper-3x2-n1", 1, 500),
    case("ode-3x2-n30", "ode-3x2-n30", 30, 500),
    case("burgers-20x8-n256", "burgers-20x8-n1000", 256, 4),
    case("burgers-64x4-n256", "burgers-64x4-n10000", 256, 2),
    Case {
        precision: Precision::Single,
        ..case("burgers-64x4-n256-f32", "burgers-64x4-n10000", 256, 2)
    },
    case("ks-64x4-n64", "ks-64x4-n4096", 64, 4),
    case("ns-64x4-n64", "ns-64x4-n4096", 64, 4),
    case("laplace10-128x4-n16", "laplace10-128x4-n1000", 16, 2),
    case("rows-20x4-n64", "rows-20x4-n4096", 64, 10),
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--run", case, set, evaluations] => {
            let case = CASES.iter().find(|c| c.name == *case);
            let set = SETS.into_iter().find(|s| s.name() == *set);
            let (case, set) = case.zip(set).ok_or("no such case")?;
            evaluate(case, set, evaluations.parse()?)?;
            Ok(ExitCode::SUCCESS)
        }
        ["--sets"] => {
            InstructionSet::available()
                .iter()
                .for_each(|set| println!("{}", set.name()));
            Ok(ExitCode::SUCCESS)
        }
        [] | ["--bench"] => guard(false),
        ["--update" | "--bench", ..] if words.contains(&"--update") => guard(true),
        _ => Err(USAGE.into()),
    }
}

/// What is counted.
fn evaluate(case: &Case, set: InstructionSet, evaluations: usize) -> Result<()> {
    let workload = Workload::named(case.workload).ok_or("no such workload")?;
    let (params, net) = workload.network()?;
    let problem = workload.problem(&params, &net, workload.points(Some(case.points))?)?;
    let options = Options::default()
        .precision(case.precision)
        .instructions(set)
        .threads(1);
    let engine = Engine::with(&problem, &options)?;
    let mut losses = vec![0.0; engine.conditions().len()];
    let mut gradient = vec![0.0; engine.parameters()];
    for _ in 0..evaluations {
        let theta = black_box(params.values());
        match workload.job {
            Job::Gradient => {
                engine.evaluate_into(theta, &mut losses, &mut gradient)?;
            }
            Job::Rows => engine.rows(&engine.conditions()[0], theta, |rows| {
                black_box(rows.parameter(0));
            })?,
            Job::Product => {
                black_box(engine.gauss_newton(theta, theta)?);
            }
        }
    }
    Ok(())
}

/// Instructions of one evaluation, by set and case.
type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn guard(update: bool) -> Result<ExitCode> {
    if let Some(reason) = unfit() {
        println!("instruction counts skipped: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let sets = valgrind(&["--tool=none", "--quiet"], &["--sets"])?;
    let sets = String::from_utf8(sets.stdout)?;
    let known = |set: &&InstructionSet| sets.lines().any(|name| name == set.name());
    let known: Vec<&InstructionSet> = SETS.iter().filter(known).collect();
    let skipped = if update {
        0
    } else {
        known.len().saturating_sub(1)
    };
    let mut counts = Counts::new();
    for set in &known[skipped..] {
        let by_case = counts.entry(set.name().to_owned()).or_default();
        for case in &CASES {
            by_case.insert(case.name.to_owned(), count(case, **set)?);
        }
    }

    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.json");
    let rustc = rustc()?;
    let arch = std::env::consts::ARCH;
    if update {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "rustc": rustc, "arch": arch, "instructions": counts,
        }))?;
        std::fs::write(&path, text + "\n")?;
        println!("recorded in {}", path.display());
    }
    let recorded: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    let comparable = recorded["rustc"] == rustc.as_str() && recorded["arch"] == arch;

    let mut failed = false;
    println!("| set | case | instructions | recorded | change |");
    println!("| --- | --- | ---: | ---: | ---: |");
    for (set, by_case) in &counts {
        for (case, &now) in by_case {
            let before = recorded["instructions"][set][case].as_u64();
            let change = before.map(|before| now as f64 / before as f64 - 1.0);
            let before = before.map_or("none".to_owned(), |n| n.to_string());
            let off = change.is_none_or(|change| change.abs() > MARGIN);
            let change = change.map_or("-".to_owned(), |c| format!("{:+.1} %", 100.0 * c));
            let mark = if off && comparable { " !" } else { "" };
            println!("| {set} | {case} | {now} | {before} | {change}{mark} |");
            failed |= off && comparable;
        }
    }
    let again = "cargo bench --bench instructions -- --update";
    if !comparable {
        println!(
            "not compared: recorded with {} on {}, this is {rustc} on {arch}; to record anew: {again}",
            recorded["rustc"], recorded["arch"]
        );
    } else if failed {
        println!(
            "error: changed by more than {:.0} %. If that is meant, or an improvement, record it: {again}",
            100.0 * MARGIN
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Why counts would say nothing here.
fn unfit() -> Option<String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Some("valgrind is not installed".to_owned());
    }
    let sways = |name: &str, value: &str| match name {
        "CARGO_INCREMENTAL" => value != "0",
        _ => name.starts_with("CARGO_PROFILE_") || name.ends_with("RUSTFLAGS"),
    };
    let (name, _) =
        std::env::vars().find(|(name, value)| !value.is_empty() && sways(name, value))?;
    Some(format!(
        "the variable {name} changes the code that the compiler makes; unset it"
    ))
}

fn rustc() -> Result<String> {
    let output = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// This program with `words`, in valgrind.
fn valgrind(options: &[&str], words: &[&str]) -> Result<Output> {
    let output = Command::new("valgrind")
        .args(options)
        .arg(std::env::current_exe()?)
        .args(words)
        .output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind {options:?} {words:?}: {message}").into());
    }
    Ok(output)
}

fn count(case: &Case, set: InstructionSet) -> Result<u64> {
    let file = std::env::temp_dir().join(format!("callgrind.{}.out", std::process::id()));
    let out = format!("--callgrind-out-file={}", file.display());
    let total = |evaluations: usize| -> Result<u64> {
        let evaluations = evaluations.to_string();
        let words = ["--run", case.name, set.name(), &evaluations];
        valgrind(&["--tool=callgrind", "--quiet", &out], &words)?;
        let text = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        let line = text.lines().find_map(|line| line.strip_prefix("totals:"));
        Ok(line.ok_or("callgrind gave no totals")?.trim().parse()?)
    };
    let fewer = total(WARM)?;
    let more = total(WARM + case.evaluations)?;
    Ok(more.saturating_sub(fewer) / case.evaluations as u64)
}
