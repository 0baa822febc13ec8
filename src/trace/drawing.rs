//! Pictures of a trace: DOT for Graphviz, and SVG without it.
//!
//! Graphs stand side by side. Graph 1 is laid out by the longest path from its leaves,
//! downwards; an adjoint stands beside what it is the adjoint of, so that a recorded sweep
//! runs upwards, mirrors its graph, and its cross-links are short.

use super::{Trace, TraceNode};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// What a picture says of each node, besides its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Show {
    /// Rows and planes.
    #[default]
    Shape,
    /// The jet at the first point.
    Jets,
    /// What is kept for the reverse sweep.
    Kept,
    /// The adjoint at the first point; arrows go the way of the sweep.
    Adjoints,
}

/// Fill and line of each graph; beyond the last they start anew.
const COLOURS: [(&str, &str); 5] = [
    ("#dbeafe", "#1d4ed8"),
    ("#ffedd5", "#c2410c"),
    ("#dcfce7", "#15803d"),
    ("#f3e8ff", "#7e22ce"),
    ("#fee2e2", "#b91c1c"),
];

const LINE: f64 = 15.0;
const PADDING: f64 = 8.0;
const GAP: f64 = 26.0;
const COLUMN_GAP: f64 = 64.0;
const ROW_GAP: f64 = 34.0;
const MARGIN: f64 = 14.0;
/// Above the boxes, for the names of the graphs.
const HEAD: f64 = 26.0;
/// Width of a letter.
const LETTER: f64 = 6.7;
/// Numbers of a node that are drawn.
const MOST_ROWS: usize = 4;

/// A node in the picture.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Placed {
    pub(super) id: usize,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) lines: Vec<String>,
}

/// An arrow from an input to its reader.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether it leads from one graph to another.
    pub(super) cross: bool,
    /// Its course, as in SVG, and backwards.
    pub(super) path: String,
    pub(super) back: String,
}

/// Where everything is.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Drawing {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Name, left end and width of each graph.
    pub(super) graphs: Vec<(String, f64, f64)>,
    pub(super) nodes: Vec<Placed>,
    pub(super) arrows: Vec<Arrow>,
}

impl Trace {
    /// The picture as input for Graphviz.
    pub fn to_dot(&self, show: Show) -> String {
        let mut text = String::new();
        let back = if show == Show::Adjoints {
            "back"
        } else {
            "forward"
        };
        let _ = write!(
            text,
            "digraph {} {{\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", \
             fontname=\"Helvetica\", fontsize=11];\n  edge [dir={back}];\n",
            quoted(&self.equation)
        );
        for graph in 1..=self.graphs() {
            let (fill, line) = colours(graph);
            let _ = write!(
                text,
                "  subgraph cluster_{graph} {{\n    label=\"Graph {graph}\"; color=\"{line}\"; \
                 fontcolor=\"{line}\";\n    node [fillcolor=\"{fill}\", color=\"{line}\"];\n"
            );
            for node in self.nodes.iter().filter(|node| node.graph == graph) {
                let lines = self.lines_of(node, show).join("\n");
                let _ = writeln!(text, "    n{} [label={}];", node.id, quoted(&lines));
            }
            text.push_str("  }\n");
        }
        for node in &self.nodes {
            for &input in &node.inputs {
                let cross = self.nodes[input].graph != node.graph;
                let style = if cross { " [style=dashed]" } else { "" };
                let _ = writeln!(text, "  n{input} -> n{}{style};", node.id);
            }
        }
        text.push_str("}\n");
        text
    }

    /// The picture as SVG, on white. Graphs have colours, links between them are dashed.
    pub fn to_svg(&self, show: Show) -> String {
        let drawing = self.drawing(show);
        let (width, height) = (drawing.width, drawing.height);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" \
             font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
             markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
             <path d=\"M0 0 L8 4 L0 8 z\" fill=\"#475569\"/></marker></defs>\n",
            escaped(&self.equation)
        );
        for (place, (name, x, span)) in drawing.graphs.iter().enumerate() {
            let (_, line) = colours(place + 1);
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-weight=\"bold\" \
                 font-size=\"13\" fill=\"{line}\">{}</text>",
                x + span / 2.0,
                MARGIN + 8.0,
                escaped(name)
            );
        }
        for arrow in &drawing.arrows {
            let course = match show {
                Show::Adjoints => &arrow.back,
                _ => &arrow.path,
            };
            let dashed = if arrow.cross {
                " stroke-dasharray=\"5 4\""
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "<path d=\"{course}\" fill=\"none\" stroke=\"#475569\" stroke-width=\"1.2\"\
                 {dashed} marker-end=\"url(#head)\"/>"
            );
        }
        for placed in &drawing.nodes {
            let node = &self.nodes[placed.id];
            let (fill, line) = colours(node.graph);
            let dashed = match node.detached || node.planes.is_empty() {
                true => " stroke-dasharray=\"3 3\"",
                false => "",
            };
            let thick = if self.outputs.contains(&node.id) {
                2.6
            } else {
                1.2
            };
            let _ = writeln!(
                text,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"6\" \
                 fill=\"{fill}\" stroke=\"{line}\" stroke-width=\"{thick}\"{dashed}/>",
                placed.x, placed.y, placed.width, placed.height
            );
            for (place, words) in placed.lines.iter().enumerate() {
                let weight = if place == 0 {
                    " font-weight=\"bold\""
                } else {
                    ""
                };
                let _ = writeln!(
                    text,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\"{weight}>{}</text>",
                    placed.x + placed.width / 2.0,
                    placed.y + PADDING + 10.0 + LINE * place as f64,
                    escaped(words)
                );
            }
        }
        text.push_str("</svg>\n");
        text
    }

    /// What is written into the box of a node.
    fn lines_of(&self, node: &TraceNode, show: Show) -> Vec<String> {
        let mut lines = vec![node.label.clone(), node.operation.clone()];
        if node.planes.is_empty() {
            lines.push("read by nobody".to_owned());
            return lines;
        }
        let shape = format!("{} × {{{}}}", node.rows, node.planes.join(" "));
        match show {
            Show::Shape => lines.push(shape),
            Show::Kept => {
                lines.push(shape);
                for kept in &node.kept {
                    let planes = kept.planes.join(" ");
                    lines.push(format!(
                        "keeps {} {{{planes}}}: {} B",
                        kept.what, kept.bytes
                    ));
                }
                if node.kept.is_empty() {
                    lines.push("keeps nothing".to_owned());
                }
            }
            Show::Jets | Show::Adjoints => {
                let jets = if show == Show::Jets {
                    &node.jet
                } else {
                    &node.adjoint
                };
                for (place, plane) in node.planes.iter().enumerate() {
                    let rows = jets.iter().take(MOST_ROWS);
                    let mut numbers: Vec<String> = rows
                        .map(|row| format!("{:.4}", row[place][0] + 0.0))
                        .collect();
                    if node.rows > MOST_ROWS {
                        numbers.push("…".to_owned());
                    }
                    let plane = match node.planes.len() {
                        1 if plane == "1" => String::new(),
                        _ => format!("{plane}: "),
                    };
                    lines.push(format!("{plane}{}", numbers.join(" ")));
                }
            }
        }
        lines
    }

    pub(super) fn drawing(&self, show: Show) -> Drawing {
        let rows = self.rows();
        let lines: Vec<Vec<String>> = self.nodes.iter().map(|n| self.lines_of(n, show)).collect();
        let width = |id: usize| {
            let letters = lines[id].iter().map(|line| line.chars().count());
            letters.max().unwrap_or(0) as f64 * LETTER + 2.0 * PADDING
        };
        let height = |id: usize| lines[id].len() as f64 * LINE + 2.0 * PADDING - 3.0;

        // Cells of graph and row, and who is in them.
        let mut cells: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for node in &self.nodes {
            cells
                .entry((node.graph, rows[node.id]))
                .or_default()
                .push(node.id);
        }
        let count = rows.iter().max().map_or(0, |row| row + 1);
        let mut tops = Vec::with_capacity(count);
        let mut y = MARGIN + HEAD;
        for row in 0..count {
            let ids = (0..rows.len()).filter(|&id| rows[id] == row);
            let tallest = ids.map(height).fold(0.0, f64::max);
            tops.push((y, tallest));
            y += tallest + ROW_GAP;
        }
        let mut x = MARGIN;
        let mut graphs = Vec::new();
        let mut nodes: Vec<Placed> = Vec::with_capacity(self.nodes.len());
        for graph in 1..=self.graphs() {
            let own = || cells.range((graph, 0)..(graph + 1, 0));
            let span = |ids: &Vec<usize>| {
                ids.iter().map(|&id| width(id)).sum::<f64>() + GAP * (ids.len() - 1) as f64
            };
            let widest = own().map(|(_, ids)| span(ids)).fold(60.0, f64::max);
            for ((_, row), ids) in own() {
                let mut left = x + (widest - span(ids)) / 2.0;
                let (top, tallest) = tops[*row];
                for &id in ids {
                    nodes.push(Placed {
                        id,
                        x: left,
                        y: top + (tallest - height(id)) / 2.0,
                        width: width(id),
                        height: height(id),
                        lines: lines[id].clone(),
                    });
                    left += width(id) + GAP;
                }
            }
            graphs.push((format!("Graph {graph}"), x, widest));
            x += widest + COLUMN_GAP;
        }
        nodes.sort_by_key(|placed| placed.id);
        let mut arrows = Vec::new();
        let mut right = x - COLUMN_GAP;
        for node in &self.nodes {
            for &input in &node.inputs {
                let cross = self.nodes[input].graph != node.graph;
                let course = Course::between(&nodes, &rows, input, node.id, cross);
                right = right.max(course.right());
                arrows.push(Arrow {
                    from: input,
                    to: node.id,
                    cross,
                    path: course.to_string(),
                    back: course.back().to_string(),
                });
            }
        }
        Drawing {
            width: right + MARGIN,
            height: y - ROW_GAP + MARGIN,
            graphs,
            nodes,
            arrows,
        }
    }

    /// In which row of the picture each node is.
    fn rows(&self) -> Vec<usize> {
        let mut rows = vec![0_usize; self.nodes.len()];
        let first = |node: &&TraceNode| node.graph == 1;
        for node in self.nodes.iter().filter(first) {
            let below = node.inputs.iter().map(|&input| rows[input] + 1);
            rows[node.id] = below.max().unwrap_or(0);
        }
        // Leaves stand right above their first reader.
        for node in self
            .nodes
            .iter()
            .filter(first)
            .filter(|n| n.inputs.is_empty())
        {
            let readers = self.nodes.iter().filter(|r| r.graph == 1);
            let readers = readers.filter(|r| r.inputs.contains(&node.id));
            if let Some(row) = readers.map(|r| rows[r.id]).min() {
                rows[node.id] = row.saturating_sub(1);
            }
        }
        for node in self.nodes.iter().filter(|node| node.graph > 1) {
            rows[node.id] = match (node.adjoint_of.first(), node.inputs.last()) {
                (Some(adjoint), _) => rows[adjoint.of],
                (None, Some(&input)) => rows[input],
                // A number that a sweep starts from.
                (None, None) => {
                    let reader = self.nodes.iter().find(|r| r.inputs.contains(&node.id));
                    let of = reader.and_then(|r| r.adjoint_of.first());
                    of.map_or(0, |adjoint| rows[adjoint.of])
                }
            };
        }
        rows
    }
}

/// The course of an arrow: the four points of a Bézier curve.
struct Course([(f64, f64); 4]);

impl Course {
    /// From one box to another, around what stands between if that is one graph.
    fn between(nodes: &[Placed], rows: &[usize], from: usize, to: usize, cross: bool) -> Self {
        let (a, b) = (&nodes[from], &nodes[to]);
        let centre = |p: &Placed| (p.x + p.width / 2.0, p.y + p.height / 2.0);
        let ((ax, ay), (bx, by)) = (centre(a), centre(b));
        let others = || nodes.iter().filter(|p| p.id != from && p.id != to);
        if rows[from] == rows[to] {
            let (low, high) = (ax.min(bx), ax.max(bx));
            if others().any(|p| rows[p.id] == rows[from] && p.x > low && p.x < high) {
                // An arc over what stands between.
                let lift = a.y.min(b.y) - 0.75 * ROW_GAP;
                return Self([(ax, a.y), (ax, lift), (bx, lift), (bx, b.y)]);
            }
            let (start, end) = match ax < bx {
                true => ((a.x + a.width, ay), (b.x, by)),
                false => ((a.x, ay), (b.x + b.width, by)),
            };
            let middle = (start.0 + end.0) / 2.0;
            return Self([start, (middle, start.1), (middle, end.1), end]);
        }
        let (start, end) = match ay < by {
            true => ((ax, a.y + a.height), (bx, b.y)),
            false => ((ax, a.y), (bx, b.y + b.height)),
        };
        let middle = (start.1 + end.1) / 2.0;
        let straight = Self([start, (start.0, middle), (end.0, middle), end]);
        if !others().any(|p| straight.crosses(p)) {
            return straight;
        }
        if cross {
            // From side to side, or from the side into the end, if that is free.
            let (start, side) = match ax < bx {
                true => ((a.x + a.width, ay), (b.x, by)),
                false => ((a.x, ay), (b.x + b.width, by)),
            };
            let middle = (start.0 + side.0) / 2.0;
            let corner = (end.0, start.1);
            let other_ways = [
                Self([start, (middle, start.1), (middle, side.1), side]),
                Self([start, corner, corner, end]),
            ];
            let free = |way: &Self| !others().any(|p| way.crosses(p));
            return other_ways.into_iter().find(free).unwrap_or(straight);
        }
        let crossed = others().filter(|p| straight.crosses(p));
        let far = crossed.map(|p| p.x + p.width).fold(0.0, f64::max);
        let (start, end) = ((a.x + a.width, ay), (b.x + b.width, by));
        // Such a curve goes three quarters of the way to its control points.
        let near = start.0.min(end.0);
        let out = near + (far.max(start.0).max(end.0) + 0.5 * GAP - near) / 0.75;
        Self([start, (out, start.1), (out, end.1), end])
    }

    fn at(&self, t: f64) -> (f64, f64) {
        let Self([a, b, c, d]) = self;
        let s = 1.0 - t;
        let weights = [s * s * s, 3.0 * s * s * t, 3.0 * s * t * t, t * t * t];
        let sum = |[a, b, c, d]: [f64; 4]| {
            weights[0] * a + weights[1] * b + weights[2] * c + weights[3] * d
        };
        (sum([a.0, b.0, c.0, d.0]), sum([a.1, b.1, c.1, d.1]))
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        (0..=32).map(|i| self.at(f64::from(i) / 32.0))
    }

    fn crosses(&self, p: &Placed) -> bool {
        let inside =
            |(x, y): (f64, f64)| x > p.x && x < p.x + p.width && y > p.y && y < p.y + p.height;
        self.points().any(inside)
    }

    /// How far to the right it goes.
    fn right(&self) -> f64 {
        self.points().map(|(x, _)| x).fold(0.0, f64::max)
    }

    fn back(&self) -> Self {
        let Self([a, b, c, d]) = *self;
        Self([d, c, b, a])
    }
}

/// As in SVG.
impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([a, b, c, d]) = self;
        write!(f, "M{:.1} {:.1} C{:.1} {:.1} ", a.0, a.1, b.0, b.1)?;
        write!(f, "{:.1} {:.1} {:.1} {:.1}", c.0, c.1, d.0, d.1)
    }
}

fn colours(graph: usize) -> (&'static str, &'static str) {
    COLOURS[(graph - 1) % COLOURS.len()]
}

/// A string of DOT.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\n', "\\n"))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
