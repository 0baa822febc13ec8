//! Pictures of a trace: DOT for Graphviz, and SVG without it.
//!
//! Graphs stand side by side. Graph 1 is laid out by the longest path from its leaves,
//! downwards; an adjoint stands beside what it is the adjoint of, so that a recorded sweep
//! runs upwards, mirrors its graph, and its cross-links are short.

use super::{Trace, TraceNode};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

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
        let arrows = self
            .nodes
            .iter()
            .flat_map(|node| node.inputs.iter().map(move |&input| (input, node)))
            .map(|(input, node)| {
                let between = nodes.iter().any(|other| {
                    let (a, b) = (&nodes[input], &nodes[node.id]);
                    let (low, high) = (a.x.min(b.x), a.x.max(b.x));
                    rows[other.id] == rows[input] && other.x > low && other.x < high
                });
                let same = rows[input] == rows[node.id];
                let [path, back] = course(&nodes[input], &nodes[node.id], same, between);
                Arrow {
                    from: input,
                    to: node.id,
                    cross: self.nodes[input].graph != node.graph,
                    path,
                    back,
                }
            })
            .collect();
        Drawing {
            width: x - COLUMN_GAP + MARGIN,
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

/// The course of an arrow between two boxes, there and back.
fn course(from: &Placed, to: &Placed, same: bool, between: bool) -> [String; 2] {
    let centre = |p: &Placed| (p.x + p.width / 2.0, p.y + p.height / 2.0);
    let ((ax, ay), (bx, by)) = (centre(from), centre(to));
    let points = if same && from.id == to.id {
        [(ax, ay); 4]
    } else if same && between {
        // An arc over what stands between.
        let (start, end) = ((ax, from.y), (bx, to.y));
        let lift = start.1.min(end.1) - 0.75 * ROW_GAP;
        [start, (ax, lift), (bx, lift), end]
    } else if same {
        let (start, end) = match ax < bx {
            true => ((from.x + from.width, ay), (to.x, by)),
            false => ((from.x, ay), (to.x + to.width, by)),
        };
        let middle = (start.0 + end.0) / 2.0;
        [start, (middle, start.1), (middle, end.1), end]
    } else {
        let (start, end) = match ay < by {
            true => ((ax, from.y + from.height), (bx, to.y)),
            false => ((ax, from.y), (bx, to.y + to.height)),
        };
        let middle = (start.1 + end.1) / 2.0;
        [start, (start.0, middle), (end.0, middle), end]
    };
    let curve = |[a, b, c, d]: [(f64, f64); 4]| {
        format!(
            "M{:.1} {:.1} C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}",
            a.0, a.1, b.0, b.1, c.0, c.1, d.0, d.1
        )
    };
    let [a, b, c, d] = points;
    [curve([a, b, c, d]), curve([d, c, b, a])]
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
