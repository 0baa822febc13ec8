//! Tables, and a trace as one.

use super::{Trace, TraceNode};
use std::fmt;

/// A table that prints as text or as Markdown.
///
/// ```
/// use dualtape::trace::Table;
///
/// let mut table = Table::new("Squares", ["x", "x²"]);
/// table.row(["2", "4"]);
/// assert_eq!(table.markdown(), "Squares\n\n| x | x² |\n|---|---|\n| 2 | 4 |\n");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<S: Into<String>>(
        title: impl Into<String>,
        head: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            title: title.into(),
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells that are missing are empty, those beyond the head are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.head.len(), String::new());
        self.rows.push(row);
    }

    /// As Markdown: the title, a head and the rows.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = "---|".repeat(self.head.len());
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n\n{}|{rule}\n{rows}", self.title, line(&self.head))
    }
}

/// As text, in columns: numbers to the right, words to the left.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.head.len();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.head]);
            let widths = cells.map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let is_number = |cell: &String| cell.parse::<f64>().is_ok();
        let right: Vec<bool> = (0..columns)
            .map(|column| {
                let mut cells = self.rows.iter().map(|row| &row[column]);
                cells.clone().any(is_number) && cells.all(|c| c.is_empty() || is_number(c))
            })
            .collect();
        writeln!(f, "{}", self.title)?;
        for row in [&self.head].into_iter().chain(&self.rows) {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let space = " ".repeat(widths[column] - cell.chars().count());
                line.push(' ');
                match right[column] {
                    true => line.extend([space.as_str(), cell.as_str()]),
                    false => line.extend([cell.as_str(), space.as_str()]),
                }
                line.push(' ');
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// As text: one line for each row, plane and point of a node.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [nodes, gradient] = self.tables();
        writeln!(f, "{nodes}\n{gradient}")
    }
}

impl Trace {
    /// As Markdown: a table of the nodes and one of the gradient.
    pub fn to_markdown(&self) -> String {
        let [nodes, gradient] = self.tables();
        format!("{}\n{}", nodes.markdown(), gradient.markdown())
    }

    /// A table of the nodes and one of the gradient.
    pub fn tables(&self) -> [Table; 2] {
        let point: Vec<String> = (0..self.points.first().map_or(0, Vec::len))
            .map(|place| {
                let names = self.coordinates.iter().zip(&self.points);
                let numbers: Vec<String> = names
                    .map(|(name, list)| format!("{name} = {}", list[place]))
                    .collect();
                numbers.join(", ")
            })
            .collect();
        let mut head: Vec<String> = ["node", "operation", "graph", "kept", "row", "plane"]
            .map(str::to_owned)
            .to_vec();
        for point in &point {
            match point_is_alone(self) {
                true => head.extend(["number".to_owned(), "adjoint".to_owned()]),
                false => head.extend([point.clone(), "adjoint".to_owned()]),
            }
        }
        let place = match &point[..] {
            [one] => format!(" at {one}"),
            _ => String::new(),
        };
        let title = format!(
            "Trace of `{}`{place}: {} bytes kept",
            self.equation, self.kept_bytes
        );
        let mut nodes = Table::new(title, head);
        for node in &self.nodes {
            self.lines(node, &mut nodes);
        }
        let mut gradient = Table::new("Gradient", ["parameter", "derivative"]);
        for (name, number) in self.parameters.iter().zip(&self.gradient) {
            gradient.row([name.clone(), short(*number)]);
        }
        [nodes, gradient]
    }

    fn lines(&self, node: &TraceNode, table: &mut Table) {
        let mut first = vec![
            node.label.clone(),
            self.phrase(node),
            node.graph.to_string(),
            node.kept_phrase(),
        ];
        if node.planes.is_empty() {
            first.push("read by nobody".to_owned());
            table.row(first);
            return;
        }
        for (row, (jets, adjoints)) in node.jet.iter().zip(&node.adjoint).enumerate() {
            for (plane, (jet, adjoint)) in jets.iter().zip(adjoints).enumerate() {
                let mut cells = std::mem::replace(&mut first, vec![String::new(); 4]);
                cells.extend([row.to_string(), node.planes[plane].clone()]);
                for (number, bar) in jet.iter().zip(adjoint) {
                    cells.extend([short(*number), short(*bar)]);
                }
                table.row(cells);
            }
        }
    }

    /// The operation and what it reads.
    pub(super) fn phrase(&self, node: &TraceNode) -> String {
        let inputs = node.inputs.iter().map(|&id| self.nodes[id].label.as_str());
        let inputs: Vec<&str> = inputs.collect();
        match inputs.is_empty() {
            true => node.operation.clone(),
            false => format!("{} of {}", node.operation, inputs.join(", ")),
        }
    }
}

fn point_is_alone(trace: &Trace) -> bool {
    trace.points.first().is_none_or(|list| list.len() == 1)
}

impl TraceNode {
    /// What is kept of it, and its bytes.
    pub(super) fn kept_phrase(&self) -> String {
        let phrase = |kept: &super::Kept| {
            let planes = kept.planes.join(" ");
            format!("{} {{{planes}}} {} B", kept.what, kept.bytes)
        };
        let phrases: Vec<String> = self.kept.iter().map(phrase).collect();
        phrases.join(", ")
    }
}

/// A number with ten digits after the point, or as a power of ten where these say little.
pub(super) fn short(x: f64) -> String {
    match x.abs() {
        size if size != 0.0 && !(1e-4..1e6).contains(&size) => format!("{x:.9e}"),
        _ => format!("{:.10}", x + 0.0),
    }
}
