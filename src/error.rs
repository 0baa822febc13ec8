//! The one error type: what was given, what was expected, what to do.

use std::path::Path;

/// Everything that can be wrong with what a user gives. `at` is a place in the user's
/// source, `file:line:column`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // Recording an equation.
    /// A derivative in a coordinate that the value does not depend on.
    #[error(
        "{at}: derivative in `{coordinate}` of a value that does not depend on it; \
         differentiate in a coordinate that enters the value, or drop the term"
    )]
    IndependentDerivative {
        /// The coordinate.
        coordinate: String,
        /// Where.
        at: String,
    },
    /// A derivative in something that is not a coordinate.
    #[error(
        "{at}: derivative in a value that is not a coordinate of the recording; \
         give one of the fields that the closure received"
    )]
    NotACoordinate {
        /// Where.
        at: String,
    },
    /// A Laplacian over no coordinate, or over one twice.
    #[error(
        "{at}: Laplacian over {given}; name each coordinate that it sums over once, at least one"
    )]
    LaplacianSet {
        /// What was wrong.
        given: String,
        /// Where.
        at: String,
    },
    /// Per-point data has no derivatives.
    #[error(
        "{at}: a derivative of the per-point data `{column}` is asked for, and would silently be \
         taken as zero; differentiate before combining with data, or give the data as a function \
         of the coordinates"
    )]
    DataDifferentiated {
        /// The column.
        column: String,
        /// Where the data was recorded.
        at: String,
    },
    /// A kink under a derivative that sees it.
    #[error(
        "{at}: `{elemental}` meets a derivative of order {order}, but its derivatives of order \
         above {smoothness} are zero or undefined; use a smooth function such as tanh, or an \
         equation of lower order"
    )]
    NotSmooth {
        /// The function.
        elemental: String,
        /// The order that it meets.
        order: usize,
        /// The order that it can serve.
        smoothness: usize,
        /// Where it was recorded.
        at: String,
    },
    /// A derivative of too high an order.
    #[error("{at}: a derivative of order {order} is asked for; the limit is {limit}")]
    OrderTooHigh {
        /// The order.
        order: usize,
        /// The limit.
        limit: usize,
        /// Where the value was recorded.
        at: String,
    },
    /// Derivatives that need too many planes at once.
    #[error(
        "{at}: the derivatives asked of this value and all that make them are {planes} planes; \
         the limit is {limit}: ask fewer mixed derivatives at once, or a Laplacian as such"
    )]
    PlaneLimit {
        /// The planes.
        planes: usize,
        /// The limit.
        limit: usize,
        /// Where the value was recorded.
        at: String,
    },
    /// Nested reverse mode that has no end.
    #[error(
        "nested reverse mode would record more than {limit} nodes; lower fewer orders with \
         `Lowering::Partial`, or none with `Lowering::Jets`"
    )]
    LoweringTooLarge {
        /// The limit.
        limit: usize,
    },
    /// Too many coordinates.
    #[error("{given} coordinates given; an equation has from 1 to {limit}")]
    CoordinateLimit {
        /// How many.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// Two things of the same name.
    #[error("the name `{name}` is given twice among the {what}; names must differ")]
    DuplicateName {
        /// The kind of thing.
        what: String,
        /// The name.
        name: String,
    },
    /// A coordinate that no residual depends on.
    #[error(
        "no residual depends on the coordinate `{name}`; use it, or leave it out of the equation"
    )]
    UntouchedCoordinate {
        /// The coordinate.
        name: String,
    },
    /// A network or coefficient that was recorded but that no residual depends on.
    #[error("no residual of {within} depends on `{name}`; use it, or leave it out")]
    UntouchedParameter {
        /// The network or coefficient.
        name: String,
        /// The equation or problem.
        within: String,
    },
    /// A network got another number of inputs than it has.
    #[error("{at}: network `{network}` takes {expected} inputs, {given} given")]
    NetworkInputs {
        /// The network.
        network: String,
        /// Its inputs.
        expected: usize,
        /// Those given.
        given: usize,
        /// Where.
        at: String,
    },
    /// Another number of outputs was asked than the network has.
    #[error("{at}: network `{network}` has {expected} outputs, {given} taken")]
    NetworkOutputs {
        /// The network.
        network: String,
        /// Its outputs.
        expected: usize,
        /// Those taken.
        given: usize,
        /// Where.
        at: String,
    },
    /// Values of different numbers of rows combined.
    #[error("{at}: values of {left} and {right} rows cannot be combined row by row")]
    RowCount {
        /// Rows of the first.
        left: usize,
        /// Rows of the second.
        right: usize,
        /// Where.
        at: String,
    },
    /// A field from another recording.
    #[error(
        "{at}: a field of another recording is used; fields live only inside the closure that \
         made them, so move its computation into this one"
    )]
    ForeignField {
        /// Where.
        at: String,
    },
    /// A recording inside a recording.
    #[error(
        "`{name}` is recorded while another equation is; record one after the other, \
         outside of each other's closures"
    )]
    NestedRecording {
        /// The inner equation.
        name: String,
    },
    /// No residual, or one that is a mere number.
    #[error("the closure of `{name}` returned {given}; return at least one recorded value")]
    NoResidual {
        /// The equation.
        name: String,
        /// What it returned.
        given: String,
    },
    /// A function that has no jet.
    #[error("{at}: {what} cannot be recorded; {instead}")]
    NotRecordable {
        /// The function.
        what: String,
        /// What to do.
        instead: String,
        /// Where.
        at: String,
    },
    /// A number that should be finite.
    #[error("{at}: the constant {value} is not finite")]
    NonFiniteConstant {
        /// The number.
        value: f64,
        /// Where.
        at: String,
    },

    // Parameters and networks.
    /// A network that cannot be built.
    #[error("network `{name}`: {given}; {expected}")]
    Architecture {
        /// The network.
        name: String,
        /// What was given.
        given: String,
        /// What was expected.
        expected: String,
    },
    /// A name that is not there.
    #[error("there is no {what} `{name}`; there are: {known}")]
    UnknownName {
        /// The kind of thing.
        what: String,
        /// The name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A list of the wrong length.
    #[error("{what}: {given} given, {expected} expected")]
    Length {
        /// The list.
        what: String,
        /// Its length.
        given: usize,
        /// The length it should have.
        expected: usize,
    },
    /// Something that belongs to other parameters.
    #[error(
        "{what} belongs to other parameters than those given; build networks, equations and \
         problem from one `Parameters`"
    )]
    OtherParameters {
        /// The thing.
        what: String,
    },

    // Points and conditions.
    /// Nothing to evaluate at.
    #[error("{what} is empty; give at least one")]
    Empty {
        /// The thing.
        what: String,
    },
    /// A number that is NaN or infinite.
    #[error("{what} at index {index} is {value}; all numbers must be finite")]
    NonFiniteInput {
        /// The list.
        what: String,
        /// Its index.
        index: usize,
        /// The number.
        value: f64,
    },
    /// Out of the allowed range.
    #[error("{what} is {given}; {expected}")]
    OutOfRange {
        /// The quantity.
        what: String,
        /// What was given.
        given: String,
        /// What was expected.
        expected: String,
    },
    /// A column of per-point data that the equation reads and the points lack.
    #[error(
        "condition `{condition}` reads the data column `{column}`, which its points do not have; \
         add it with `Points::with_column(\"{column}\", …)`"
    )]
    MissingColumn {
        /// The condition.
        condition: String,
        /// The column.
        column: String,
    },
    /// A budget that nothing fits into.
    #[error(
        "an evaluation may take {given} bytes, but takes {needed} with the chunk, the lowering \
         and the recomputation that need least; allow {} bytes more, or take a smaller network",
        needed - given
    )]
    MemoryBudget {
        /// The bytes that were allowed.
        given: usize,
        /// The bytes that are needed.
        needed: usize,
    },
    /// A residual that is not a number, or infinite.
    #[error(
        "condition `{condition}`: the residual is {value} at point {point} ({coordinates}); \
         the first value that is not finite comes from `{node}`, recorded at {at}"
    )]
    NonFinite {
        /// The condition.
        condition: String,
        /// The point's number.
        point: usize,
        /// Its coordinates, by name.
        coordinates: String,
        /// The residual there.
        value: f64,
        /// The operation.
        node: String,
        /// Where it was recorded.
        at: String,
    },
    /// A gradient that is not finite although the loss is.
    #[error(
        "the gradient in parameter {index} (`{name}`) is {value} although the loss is finite; \
         look for a function with an infinite derivative, such as a square root at 0"
    )]
    NonFiniteGradient {
        /// The parameter's index.
        index: usize,
        /// Its block.
        name: String,
        /// The value.
        value: f64,
    },
    /// Gauss-Newton rows of something that is no sum of squares.
    #[error(
        "condition `{condition}` is an energy, which has no Gauss-Newton rows; use a method of \
         gradients alone, such as Adam, L-BFGS or SSBroyden"
    )]
    NoRows {
        /// The condition.
        condition: String,
    },
    /// An optimiser without a state to save.
    #[error(
        "`{what}` cannot be part of a checkpoint: it has no snapshot; implement \
         `Optimizer::snapshot` and `restore`, or train without checkpoints"
    )]
    NoSnapshot {
        /// The optimiser.
        what: String,
    },
    /// Bytes that are not what they should be.
    #[error("these bytes are no state of {what}: {reason}; load what the same program saved")]
    Foreign {
        /// What was expected.
        what: String,
        /// Why they are not.
        reason: String,
    },
    /// A file that could not be written or read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    pub(crate) fn length(what: impl Into<String>, given: usize, expected: usize) -> Self {
        Self::Length {
            what: what.into(),
            given,
            expected,
        }
    }
}

/// All of `values` finite, or an error that says which is not.
pub(crate) fn check_finite(what: &str, values: &[f64]) -> Result<(), Error> {
    match values.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(Error::NonFiniteInput {
            what: what.to_owned(),
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}

/// Writes a text file, and makes its folder.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    write_file(path, text.as_bytes())
}

/// Writes a file, and makes its folder.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fail = |error: std::io::Error| Error::File {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    std::fs::write(path, bytes).map_err(fail)
}
