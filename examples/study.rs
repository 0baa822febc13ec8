//! Reads what `benches/study.py` or `cargo bench --bench memory -- --json` measured, prints the
//! tables of `docs/memory.md` and draws its pictures.
//!
//! ```sh
//! cargo bench --bench memory -- --json > out/study.jsonl
//! cargo run --release --example study -- out/study.jsonl out/pictures
//! ```

use dualtape::plot::Lines;
use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// One measurement: a line of the file.
struct Line(Value);

impl Line {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or("")
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    fn is(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or(false)
    }

    fn seconds(&self) -> Option<f64> {
        self.number("t_median_s")
    }

    /// Of ours.
    fn bytes(&self) -> Option<f64> {
        self.number("measured_bytes")
    }

    /// Of a peer: how much its memory grows, or what XLA says of its buffers where it held them
    /// before.
    fn memory(&self) -> Option<f64> {
        let keys = ["peak_eval_bytes", "xla_temp_bytes"];
        let all = keys.into_iter().filter_map(|key| self.number(key));
        all.reduce(f64::max)
    }

    /// What is the same for all ways to compute one thing.
    fn setting(&self) -> String {
        let keys = ["set", "equation", "widths", "n", "dtype", "whole", "beside"];
        keys.map(|key| self.0[key].to_string()).concat()
    }

    /// Hidden layers, and their width.
    fn network(&self) -> (usize, u64) {
        let widths = self.0["widths"].as_array();
        let hidden = widths.map_or(0, |w| w.len().saturating_sub(2));
        (hidden, self.0["widths"][1].as_u64().unwrap_or(0))
    }
}

/// All of them.
struct Study(Vec<Line>);

impl Study {
    fn read(path: &Path) -> Fallible<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let lines = text.lines().enumerate().map(|(place, line)| {
            serde_json::from_str(line)
                .map(Line)
                .map_err(|error| format!("{}, line {}: {error}", path.display(), place + 1))
        });
        Ok(Self(lines.collect::<Result<_, _>>()?))
    }

    fn set(&self, name: &str) -> impl Iterator<Item = &Line> {
        self.0.iter().filter(move |line| line.text("set") == name)
    }

    /// The same computed in another way.
    fn other(&self, line: &Line, lowering: &str, recompute: bool) -> Option<&Line> {
        let setting = line.setting();
        self.0.iter().find(|other| {
            other.text("lowering") == lowering
                && other.is("recompute") == recompute
                && other.setting() == setting
        })
    }

    /// By jets, in f64, without recomputation.
    fn jets(&self, set: &str, whole: bool) -> impl Iterator<Item = &Line> {
        self.set(set).filter(move |line| {
            line.text("lowering") == "jets"
                && line.text("dtype") == "f64"
                && line.is("whole") == whole
                && !line.is("recompute")
        })
    }

    fn peers(&self) -> impl Iterator<Item = &Line> {
        self.0.iter().filter(|line| line.text("kind") == "peer")
    }

    /// Ours that was measured beside a peer: by jets, in chunks or whole.
    fn beside(&self, peer: &Line, whole: bool) -> Option<&Line> {
        let name = peer.text("workload").split("-64x4").next().unwrap_or("");
        self.jets("peers", whole)
            .find(|line| line.text("equation") == name && line.text("beside") == peer.text("peer"))
    }
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?)
}

/// Chunks differ from way to way.
fn kept_a_point(line: &Line) -> Option<f64> {
    ratio(line.number("kept_bytes"), line.number("chunk"))
}

/// A number for a table, to two or three digits.
fn shown(number: Option<f64>) -> String {
    match number {
        None => "–".to_owned(),
        Some(x) if x >= 99.5 => format!("{x:.0}"),
        Some(x) if x >= 9.95 => format!("{x:.1}"),
        Some(x) => format!("{x:.2}"),
    }
}

fn mebibytes(bytes: Option<f64>) -> String {
    shown(bytes.map(|bytes| bytes / f64::from(1 << 20)))
}

fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    println!("### {title}\n");
    println!("| {} |", head.join(" | "));
    println!("|{}", " --- |".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
    println!();
}

/// Each way to compute an equation, over that by jets.
fn modes(study: &Study, set: &str) -> Vec<Vec<String>> {
    let row = |jets: &Line| {
        let nested = study.other(jets, "nested", false);
        let partial = study.other(jets, "partial-1", false);
        let auto = study.other(jets, "auto", false);
        let of = |line: Option<&Line>, key: &str| {
            shown(ratio(line.and_then(|l| l.number(key)), jets.number(key)))
        };
        let kept =
            |line: Option<&Line>| shown(ratio(line.and_then(kept_a_point), kept_a_point(jets)));
        let nodes = |line: Option<&Line>| {
            line.and_then(|l| l.number("nodes"))
                .map_or("–".to_owned(), |n| format!("{n}"))
        };
        vec![
            jets.text("equation").to_owned(),
            jets.0["order"].to_string(),
            nodes(Some(jets)),
            nodes(nested),
            shown(jets.seconds().map(|s| s * 1e3)),
            of(nested, "t_median_s"),
            of(nested, "predicted_s"),
            of(nested, "predicted_flops"),
            kept(nested),
            of(partial, "t_median_s"),
            kept(partial),
            auto.map_or("–", |line| line.text("taken")).to_owned(),
            of(auto, "t_median_s"),
        ]
    };
    study.jets(set, false).map(row).collect()
}

/// The same for networks of other sizes, which are named in place of the equation.
fn scaled(study: &Study, set: &str) -> Vec<Vec<String>> {
    let networks = study.jets(set, false).map(Line::network);
    let rows = networks.zip(modes(study, set));
    rows.map(|((hidden, width), mut row)| {
        row[0] = format!("{width}×{hidden}");
        row
    })
    .collect()
}

fn by_points(study: &Study) -> Vec<Vec<String>> {
    let row = |(jets, whole): (&Line, &Line)| {
        let bytes = |line: &Line, lowering: &str| {
            let line = study.other(line, lowering, false);
            mebibytes(line.and_then(Line::bytes))
        };
        let a_point = |line: &Line| shown(ratio(line.seconds().map(|s| s * 1e6), line.number("n")));
        vec![
            jets.0["n"].to_string(),
            bytes(jets, "jets"),
            bytes(jets, "nested"),
            bytes(whole, "jets"),
            bytes(whole, "nested"),
            a_point(jets),
            a_point(whole),
        ]
    };
    let pairs = study.jets("points", false).zip(study.jets("points", true));
    pairs.map(row).collect()
}

fn single(study: &Study) -> Vec<Vec<String>> {
    let sets = ["order", "operators"];
    let jets = sets.into_iter().flat_map(|set| study.jets(set, false));
    let row = |double: &Line| {
        let single = study.0.iter().find(|line| {
            line.text("dtype") == "f32"
                && line.text("lowering") == "jets"
                && line.text("equation") == double.text("equation")
        })?;
        Some(vec![
            double.text("equation").to_owned(),
            shown(ratio(single.seconds(), double.seconds())),
            shown(ratio(single.bytes(), double.bytes())),
        ])
    };
    jets.filter_map(row).collect()
}

const MODES: [&str; 13] = [
    "equation",
    "order",
    "nodes, jets",
    "nodes, nested",
    "jets, ms",
    "nested: time",
    "predicted",
    "flops",
    "kept",
    "partial-1: time",
    "kept",
    "auto takes",
    "its time",
];

fn recomputed(study: &Study) -> Vec<Vec<String>> {
    let sets = ["order", "operators"];
    let jets = sets.into_iter().flat_map(|set| study.jets(set, true));
    let row = |jets: &Line| {
        let again = study.other(jets, "jets", true)?;
        let nested = study.other(jets, "nested", false)?;
        let nested_again = study.other(jets, "nested", true)?;
        let change = |a: &Line, b: &Line, key: &str| shown(ratio(a.number(key), b.number(key)));
        Some(vec![
            jets.text("equation").to_owned(),
            mebibytes(jets.bytes()),
            change(again, jets, "measured_bytes"),
            change(again, jets, "t_median_s"),
            mebibytes(nested.bytes()),
            change(nested_again, nested, "measured_bytes"),
            change(nested_again, nested, "t_median_s"),
        ])
    };
    jets.filter_map(row).collect()
}

fn beside_peers(study: &Study) -> Vec<Vec<String>> {
    let row = |peer: &Line| {
        let chunked = study.beside(peer, false)?;
        let whole = study.beside(peer, true)?;
        let auto = study.other(chunked, "auto", false)?;
        let memory = peer.memory();
        Some(vec![
            chunked.text("equation").to_owned(),
            peer.text("peer").to_owned(),
            shown(peer.seconds().map(|s| s * 1e3)),
            shown(ratio(peer.seconds(), chunked.seconds())),
            shown(ratio(peer.seconds(), auto.seconds())),
            mebibytes(memory),
            shown(ratio(memory, chunked.bytes())),
            shown(ratio(memory, whole.bytes())),
            shown(peer.number("first_call_s")),
        ])
    };
    study.peers().filter_map(row).collect()
}

/// How often the prediction holds.
fn prediction(study: &Study) {
    let ours = || {
        study
            .0
            .iter()
            .filter(|line| line.bytes().is_some() && line.text("beside").is_empty())
    };
    let error =
        |line: &Line| ratio(line.number("predicted_bytes"), line.bytes()).map(|r| (r - 1.0).abs());
    let errors: Vec<f64> = ours().filter_map(error).collect();
    let within = errors.iter().filter(|e| **e <= 0.02).count();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!(
        "Bytes: {within} of {} predictions within 2 %, the worst {:.2} % off.\n",
        errors.len(),
        worst * 100.0
    );
    for (whole, what) in [(false, "in chunks"), (true, "in one piece")] {
        let mut ratios: Vec<f64> = ours()
            .filter(|line| line.is("whole") == whole)
            .filter(|line| line.text("lowering") != "jets" && line.text("lowering") != "auto")
            .filter_map(|line| {
                let jets = study.other(line, "jets", false)?;
                let predicted = ratio(line.number("predicted_s"), jets.number("predicted_s"))?;
                let measured = ratio(line.seconds(), jets.seconds())?;
                Some((predicted / measured).ln().abs().exp_m1())
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let within = ratios.iter().filter(|e| **e <= 0.15).count();
        println!(
            "Time over that of jets, {what}: {within} of {} predictions within 15 %, the median \
             {:.1} % off, nine in ten within {:.1} %.\n",
            ratios.len(),
            100.0 * ratios.get(ratios.len() / 2).unwrap_or(&f64::NAN),
            100.0 * ratios.get(ratios.len() * 9 / 10).unwrap_or(&f64::NAN),
        );
    }
    let mut late = Vec::new();
    for auto in ours().filter(|line| line.text("lowering") == "auto") {
        let setting = auto.setting();
        let best = ours()
            .filter(|line| {
                line.setting() == setting && line.is("recompute") == auto.is("recompute")
            })
            .filter_map(Line::seconds)
            .fold(f64::INFINITY, f64::min);
        // The same way was measured by its own name: its time, and not another's noise.
        let own = study.other(auto, auto.text("taken"), auto.is("recompute"));
        if let Some(own) = own.and_then(Line::seconds) {
            late.push(own / best);
        }
    }
    late.sort_by(f64::total_cmp);
    println!(
        "Auto: in {} of {} cases what it takes is within 5 % of the fastest way; at worst it is \
         {:.2} times as slow.\n",
        late.iter().filter(|r| **r <= 1.05).count(),
        late.len(),
        late.last().unwrap_or(&f64::NAN)
    );
}

/// Lines over a quantity, one for each way.
fn picture<'a>(
    study: &'a Study,
    path: PathBuf,
    mut lines: Lines,
    over: impl Fn(&Line) -> f64,
    ways: &[(&str, &str, bool)],
    jets: impl Fn() -> Box<dyn Iterator<Item = &'a Line> + 'a>,
    value: impl Fn(&Line) -> Option<f64>,
) -> Fallible<()> {
    for &(name, lowering, recompute) in ways {
        let found: Vec<(f64, f64)> = jets()
            .filter_map(|line| study.other(line, lowering, recompute))
            .filter_map(|line| Some((over(line), value(line)?)))
            .collect();
        let (x, y): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
        lines = lines.line(name, &x, &y)?;
    }
    lines.save(path)?;
    Ok(())
}

const WAYS: [(&str, &str, bool); 3] = [
    ("jets", "jets", false),
    ("nested reverse", "nested", false),
    ("partial, inner 1", "partial-1", false),
];

fn pictures(study: &Study, folder: &Path) -> Fallible<()> {
    std::fs::create_dir_all(folder)?;
    let order = |line: &Line| line.number("order").unwrap_or(f64::NAN);
    let a_point = |line: &Line| Some(line.seconds()? / line.number("n")? * 1e6);
    // Ours and the peers by order, in one run.
    let mut time = Lines::new("y⁽ᵏ⁾ + y: loss and gradient, 1-64-64-64-64-1")
        .labels("order k", "µs a point, one thread")
        .log_y();
    let mut memory = Lines::new("y⁽ᵏ⁾ + y: memory of 1,024 points in one piece")
        .labels("order k", "MiB")
        .log_y();
    let chains = |line: &&Line| line.text("equation").starts_with("chain");
    for (name, lowering) in [("dualtape, jets", "jets"), ("dualtape, nested", "nested")] {
        let of = |whole: bool| {
            let lines = study.jets("order", whole).filter(chains);
            lines.filter_map(|line| study.other(line, lowering, false))
        };
        let times: Vec<_> = of(false)
            .filter_map(|l| Some((order(l), a_point(l)?)))
            .collect();
        let bytes: Vec<_> = of(true)
            .filter_map(|l| Some((order(l), l.bytes()? / f64::from(1 << 20))))
            .collect();
        let (x, y): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
        time = time.line(name, &x, &y)?;
        let (x, y): (Vec<f64>, Vec<f64>) = bytes.into_iter().unzip();
        memory = memory.line(name, &x, &y)?;
    }
    for name in ["torch-rr", "torch-jvp", "jax-rr", "jax-jvp", "jax-jet"] {
        let (mut x, mut times, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for peer in study.peers().filter(|line| line.text("peer") == name) {
            let chain = peer.text("workload").strip_prefix("chain-");
            let Some(order) = chain.and_then(|rest| rest.split('-').next()?.parse().ok()) else {
                continue;
            };
            x.push(order);
            times.push(a_point(peer).unwrap_or(f64::NAN));
            let peak = peer.memory().unwrap_or(f64::NAN);
            bytes.push(peak / f64::from(1 << 20));
        }
        if !x.is_empty() {
            time = time.line(name, &x, &times)?;
            memory = memory.line(name, &x, &bytes)?;
        }
    }
    time.save(folder.join("order-time.svg"))?;
    memory.save(folder.join("order-memory.svg"))?;

    let depth = |line: &Line| line.network().0 as f64;
    let width = |line: &Line| line.network().1 as f64;
    let points = |line: &Line| line.number("n").unwrap_or(f64::NAN);
    let jets = |set: &'static str, whole: bool| {
        move || -> Box<dyn Iterator<Item = &Line>> { Box::new(study.jets(set, whole)) }
    };
    let with_recomputed = [
        WAYS[0],
        ("jets, recomputed", "jets", true),
        WAYS[1],
        WAYS[2],
    ];
    picture(
        study,
        folder.join("depth.svg"),
        Lines::new("Burgers, layers of 32: what is kept for the sweep")
            .labels("hidden layers", "bytes a point")
            .log_x()
            .log_y(),
        depth,
        &with_recomputed,
        jets("depth", false),
        kept_a_point,
    )?;
    picture(
        study,
        folder.join("width.svg"),
        Lines::new("Burgers, four layers: time")
            .labels("width", "µs a point, one thread")
            .log_x()
            .log_y(),
        width,
        &WAYS,
        jets("width", false),
        a_point,
    )?;
    let mut lines = Lines::new("Burgers, 32×4: memory of an evaluation")
        .labels("points", "MiB")
        .log_x()
        .log_y();
    for (name, lowering, whole) in [
        ("jets, in chunks", "jets", false),
        ("jets, in one piece", "jets", true),
        ("nested, in one piece", "nested", true),
    ] {
        let found = study
            .jets("points", whole)
            .filter_map(|line| study.other(line, lowering, false))
            .filter_map(|line| Some((points(line), line.bytes()? / f64::from(1 << 20))));
        let (x, y): (Vec<f64>, Vec<f64>) = found.unzip();
        lines = lines.line(name, &x, &y)?;
    }
    lines.save(folder.join("points.svg"))?;
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, folder @ ..] = &arguments[..] else {
        return Err("what was measured is missing: study FILE.jsonl [FOLDER FOR PICTURES]".into());
    };
    let study = Study::read(Path::new(file))?;
    table(
        "By order, in one direction",
        &MODES,
        &modes(&study, "order"),
    );
    table("By operator", &MODES, &modes(&study, "operators"));
    table("By depth, layers of 32", &MODES, &scaled(&study, "depth"));
    table("By width, four layers", &MODES, &scaled(&study, "width"));
    let head = [
        "points",
        "jets: MiB, chunks",
        "nested",
        "jets: MiB, one piece",
        "nested",
        "jets: µs a point, chunks",
        "one piece",
    ];
    table("By points, Burgers 32×4", &head, &by_points(&study));
    table(
        "In f32",
        &["equation", "jets: time over f64", "memory over f64"],
        &single(&study),
    );
    table(
        "Recomputation, in one piece",
        &[
            "equation",
            "jets, MiB",
            "recomputed: memory",
            "time",
            "nested, MiB",
            "recomputed: memory",
            "time",
        ],
        &recomputed(&study),
    );
    table(
        "Beside others",
        &[
            "equation",
            "peer",
            "its time, ms",
            "over jets",
            "over Auto",
            "its memory, MiB",
            "over jets",
            "over jets in one piece",
            "first call, s",
        ],
        &beside_peers(&study),
    );
    prediction(&study);
    if let Some(folder) = folder.first() {
        pictures(&study, Path::new(folder))?;
    }
    Ok(())
}
