//! The X-ray of arXiv 2607.13042: its tables, from our own tapes, beside what it prints.

mod figures;
mod paper;
mod sections;

use paper::Paper;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
The tables of the paper's worked example, each number beside the printed one.

Usage: cargo run --release --example trace [-- OPTIONS]

Options:
  --table N      table N only, 1 to 8
  --json         all numbers as one JSON object
  --markdown     tables as Markdown
  --dot DIR      the figures, as input for Graphviz
  --svg DIR      the figures, as SVG
  --html FILE    nested and mixed mode side by side, step by step, as one HTML page
  -h, --help     this text";

#[derive(Default)]
struct Arguments {
    table: Option<u8>,
    json: bool,
    markdown: bool,
    dot: Option<PathBuf>,
    svg: Option<PathBuf>,
    html: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}; `--help` lists the options");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Option<Arguments>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut arguments = Arguments::default();
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("table") => {
                let number = parser.value()?.parse()?;
                if !(1..=8).contains(&number) {
                    return Err(format!("there is no table {number}, but 1 to 8").into());
                }
                arguments.table = Some(number);
            }
            Long("json") => arguments.json = true,
            Long("markdown") => arguments.markdown = true,
            Long("dot") => arguments.dot = Some(parser.value()?.into()),
            Long("svg") => arguments.svg = Some(parser.value()?.into()),
            Long("html") => arguments.html = Some(parser.value()?.into()),
            Long("help") | Short('h') => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(arguments))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let paper = Paper::new()?;
    let mut files = Vec::new();
    for figure in figures::all(&paper)? {
        let outputs = [
            (&arguments.dot, "dot", figure.trace.to_dot(figure.show)),
            (&arguments.svg, "svg", figure.trace.to_svg(figure.show)),
        ];
        for (folder, ending, text) in outputs {
            if let Some(folder) = folder {
                files.push((folder.join(format!("{}.{ending}", figure.name)), text));
            }
        }
    }
    if let Some(file) = &arguments.html {
        files.push((file.clone(), figures::page(&paper)?));
    }
    for (path, text) in &files {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    let asked = arguments.json || arguments.markdown || arguments.table.is_some();
    if !files.is_empty() && !asked {
        return Ok(());
    }
    let key = arguments.table.map(|number| format!("table{number}"));
    let mut sections = sections::all(&paper)?;
    sections.retain(|section| key.as_ref().is_none_or(|key| section.key == key));
    if arguments.json {
        let pairs = sections.into_iter().map(|s| (s.key.to_owned(), s.json));
        println!("{}", Value::Object(pairs.collect::<Map<_, _>>()));
        return Ok(());
    }
    for section in &sections {
        for table in &section.tables {
            match arguments.markdown {
                true => println!("{}", table.markdown()),
                false => println!("{table}"),
            }
        }
        for note in &section.notes {
            println!("{note}");
        }
        println!();
    }
    Ok(())
}
