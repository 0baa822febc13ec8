//! The gallery: equations with known solutions, each trained as far as it goes, with its
//! error on points that training does not see.

mod advection;
mod allen_cahn;
mod burgers;
mod cavity;
mod common;
mod decay;
mod evolution;
mod heat;
mod helmholtz;
mod multiscale;
mod poisson;
mod poisson5d;
mod wave;

use common::{Outcome, Settings};
use dualtape::Error;
use std::process::ExitCode;

/// A problem: its name on the command line, what it is, how it is solved.
struct Entry {
    name: &'static str,
    title: &'static str,
    run: fn(&Settings) -> Result<Outcome, Error>,
}

const ENTRIES: &[Entry] = &[
    Entry {
        name: "decay",
        title: "y' + y = 0",
        run: decay::run,
    },
    Entry {
        name: "heat",
        title: "heat",
        run: heat::run,
    },
    Entry {
        name: "poisson",
        title: "Poisson, 2-D",
        run: poisson::run,
    },
    Entry {
        name: "helmholtz",
        title: "Helmholtz, 2-D",
        run: helmholtz::run,
    },
    Entry {
        name: "wave",
        title: "wave, c = 2",
        run: wave::run,
    },
    Entry {
        name: "advection",
        title: "advection, c = 50",
        run: advection::run,
    },
    Entry {
        name: "poisson5d",
        title: "Poisson, 5-D",
        run: poisson5d::run,
    },
    Entry {
        name: "multiscale",
        title: "Poisson, 2-D, multi-scale",
        run: multiscale::run,
    },
    Entry {
        name: "burgers",
        title: "Burgers, viscosity 0.01/π",
        run: burgers::steep,
    },
    Entry {
        name: "burgers-mild",
        title: "Burgers, viscosity 0.01",
        run: burgers::mild,
    },
    Entry {
        name: "inverse",
        title: "Burgers, viscosity and advection coefficient sought",
        run: burgers::inverse,
    },
    Entry {
        name: "allen-cahn",
        title: "Allen-Cahn",
        run: allen_cahn::run,
    },
    Entry {
        name: "kdv",
        title: "Korteweg-de Vries, 0.022²",
        run: evolution::korteweg_de_vries,
    },
    Entry {
        name: "kuramoto-sivashinsky",
        title: "Kuramoto-Sivashinsky, chaotic",
        run: evolution::kuramoto_sivashinsky,
    },
    Entry {
        name: "cavity",
        title: "lid-driven cavity, Reynolds number 100",
        run: cavity::run,
    },
];

fn print(entry: &Entry, outcome: &Outcome, settings: &Settings, json: bool) {
    if json {
        let mut line = serde_json::json!({
            "name": entry.name, "rel_l2": outcome.rel_l2, "max_error": outcome.max_error,
            "seconds": outcome.seconds, "steps": outcome.steps, "stop": outcome.stop,
            "parameters": outcome.parameters, "points": outcome.points,
            "precision": "f64", "threads": settings.threads, "seed": settings.seed,
        });
        for (name, value) in &outcome.more {
            line[*name] = (*value).into();
        }
        println!("{line}");
        return;
    }
    println!(
        "{:20} relative L2 error {:.1e}, largest error {:.1e}",
        entry.name, outcome.rel_l2, outcome.max_error
    );
    for (name, value) in &outcome.more {
        println!("{:20} {name} {value:.2e}", "");
    }
    println!(
        "{:20} {:.1} s, {} steps ({}); {} parameters, {} points, f64, {} threads, seed {}",
        "",
        outcome.seconds,
        outcome.steps,
        outcome.stop,
        outcome.parameters,
        outcome.points,
        settings.threads,
        settings.seed
    );
}

// The command line.

const HELP: &str = "\
Trains equations with known solutions and measures the error.

Usage: cargo run --release --example gallery [-- [NAMES] [OPTIONS]]

Without names all problems are run.

Options:
  --quick        two steps of each, for a test
  --seed N       seed of weights and points (0)
  --threads N    threads (as many as there are cores)
  --seconds N    time limit of each training (600)
  --out DIR      where pictures and histories go (out/gallery)
  --json         print a line of JSON for each problem
  -h, --help     this text

Problems:";

struct Choice {
    settings: Settings,
    entries: Vec<&'static Entry>,
    json: bool,
}

/// What was chosen, or nothing if help was asked for.
fn choice() -> Result<Option<Choice>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut settings = Settings {
        seed: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        quick: false,
        seconds: 600.0,
        out: "out/gallery".into(),
    };
    let (mut entries, mut json) = (Vec::new(), false);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("quick") => settings.quick = true,
            Long("seed") => settings.seed = arguments.value()?.parse()?,
            Long("threads") => settings.threads = arguments.value()?.parse()?,
            Long("seconds") => settings.seconds = arguments.value()?.parse()?,
            Long("out") => settings.out = arguments.value()?.into(),
            Long("json") => json = true,
            Long("help") | Short('h') => return Ok(None),
            Value(name) => {
                let found = ENTRIES.iter().find(|entry| name == entry.name);
                let unknown = || format!("no problem is named {}", name.display());
                entries.push(found.ok_or_else(unknown)?);
            }
            _ => return Err(argument.unexpected()),
        }
    }
    if entries.is_empty() {
        entries.extend(ENTRIES);
    }
    Ok(Some(Choice {
        settings,
        entries,
        json,
    }))
}

fn main() -> ExitCode {
    let choice = match choice() {
        Ok(Some(choice)) => choice,
        Ok(None) => {
            println!("{HELP}");
            for entry in ENTRIES {
                println!("  {:20} {}", entry.name, entry.title);
            }
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}; `--help` lists problems and options");
            return ExitCode::from(2);
        }
    };
    let settings = &choice.settings;
    if let Err(error) = std::fs::create_dir_all(&settings.out) {
        eprintln!("error: {}: {error}", settings.out.display());
        return ExitCode::FAILURE;
    }
    for entry in choice.entries {
        match (entry.run)(settings) {
            Ok(outcome) => print(entry, &outcome, settings, choice.json),
            Err(error) => {
                eprintln!("error: {}: {error}", entry.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
