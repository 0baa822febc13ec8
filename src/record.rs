//! Recording: `Field`, its arithmetic, and `Equation::record`.
//! Knows nothing of networks, points or numbers; a field has no value yet.

use crate::elemental::Elemental;
use crate::error::Error;
use crate::plane::{Coordinate, MAX_COORDINATES};
use crate::tape::{Held, Node, NodeId, Nodes, Op, Source, Tape};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod arithmetic;

/// A value on a tape that is being recorded: a function of the coordinates and the
/// parameters, without numbers. A `Copy` handle, alive only inside the closure of
/// [`Equation::record`].
///
/// Arithmetic, elementary functions (inherent, and by [`num_dual::DualNum`]) and
/// derivatives in the coordinates ([`d`](Field::d), [`laplacian`](Field::laplacian)) give
/// new fields. A comparison panics with its place in the source, since there is nothing to
/// compare yet: [`select`] takes its place.
#[derive(Clone, Copy)]
pub struct Field(pub(crate) Handle);

#[derive(Clone, Copy)]
pub(crate) enum Handle {
    /// A number: folds, and is what `zero()`, `one()` and `From<f64>` make.
    Const(f64),
    Node {
        id: u32,
        session: u32,
    },
}

/// A condition on fields for [`select`], made by [`Field::above`] and its kin.
#[derive(Clone, Copy)]
pub struct Mask {
    /// True where this is positive (or zero, if `or_equal`).
    difference: Field,
    or_equal: bool,
}

/// An equation: a residual recorded once, as plain data, to be replayed on points.
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 16, 16, 1], Tanh)?;
/// let nu = params.coefficient("nu", 0.01)?;
/// let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
///     let [u] = net.at(&[t, x]);
///     u.d(t) + u * u.d(x) - nu.field() * u.d(x).d(x)
/// })?;
/// assert_eq!(burgers.outputs(), 1);
/// println!("{}", burgers.tape().listing()?);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Equation {
    name: String,
    tape: Arc<Tape>,
    held: Arc<Vec<Held>>,
    owner: u64,
    groups: Vec<String>,
}

/// What the closure of [`Equation::record`] may return: one residual or several.
pub trait Residuals {
    /// The residuals, in order.
    fn into_fields(self) -> Vec<Field>;
}

impl Residuals for Field {
    fn into_fields(self) -> Vec<Field> {
        vec![self]
    }
}
impl Residuals for Vec<Field> {
    fn into_fields(self) -> Vec<Field> {
        self
    }
}
impl<const N: usize> Residuals for [Field; N] {
    fn into_fields(self) -> Vec<Field> {
        self.to_vec()
    }
}
macro_rules! residual_tuples {
    ($($name:ident)+) => {
        impl Residuals for ($(residual_tuples!(@field $name),)+) {
            fn into_fields(self) -> Vec<Field> {
                #[expect(non_snake_case, reason = "one identifier serves as type and value")]
                let ($($name,)+) = self;
                vec![$($name),+]
            }
        }
    };
    (@field $name:ident) => { Field };
}
residual_tuples!(A);
residual_tuples!(A B);
residual_tuples!(A B C);
residual_tuples!(A B C D);
residual_tuples!(A B C D E);
residual_tuples!(A B C D E F);

/// What [`Equation::record`] asks of the parameters: who they are.
pub trait ParameterSpace {
    /// A number that no other set of parameters has.
    fn owner(&self) -> u64;
}

/// A new number for [`ParameterSpace::owner`].
pub(crate) fn new_owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

struct Recorder {
    session: u32,
    owner: u64,
    nodes: Nodes,
    columns: Vec<String>,
    /// Networks and coefficients that were recorded, with what they made.
    groups: Vec<(String, SmallVec<[NodeId; 1]>)>,
    /// The first mistake.
    error: Option<Error>,
}

/// Ends the recording whatever happens in the closure.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        RECORDER.with_borrow_mut(|recorder| *recorder = None);
    }
}

impl Equation {
    /// Records an equation: the closure gets one field for each coordinate and returns the
    /// residual, or several (array, tuple, `Vec`).
    ///
    /// # Errors
    /// The first mistake of the closure, with its place in the source; see [`Error`].
    #[track_caller]
    pub fn record<const N: usize, R: Residuals>(
        name: &str,
        parameters: &impl ParameterSpace,
        coordinates: [&str; N],
        closure: impl FnOnce([Field; N]) -> R,
    ) -> Result<Self, Error> {
        Self::record_over(name, parameters, &coordinates, |fields| {
            let mut array = [Field::from(0.0); N];
            array.copy_from_slice(fields);
            closure(array)
        })
    }

    /// [`record`](Self::record) for a number of coordinates that is known at run time only.
    ///
    /// ```
    /// use dualtape::{Elemental::Tanh, Equation, Parameters};
    ///
    /// let mut params = Parameters::new();
    /// let net = params.mlp("u", &[100, 32, 1], Tanh)?;
    /// let names: Vec<String> = (1..=100).map(|i| format!("x{i}")).collect();
    /// let poisson = Equation::record_over("poisson", &params, &names, |x| {
    ///     let [u] = net.at(x);
    ///     u.laplacian(x) + 1.0
    /// })?;
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`record`](Self::record).
    #[track_caller]
    pub fn record_over<S: AsRef<str>, R: Residuals>(
        name: &str,
        parameters: &impl ParameterSpace,
        coordinates: &[S],
        closure: impl FnOnce(&[Field]) -> R,
    ) -> Result<Self, Error> {
        let names: Vec<String> = coordinates.iter().map(|c| c.as_ref().to_owned()).collect();
        if names.is_empty() || names.len() > MAX_COORDINATES {
            return Err(Error::CoordinateLimit {
                given: names.len(),
                limit: MAX_COORDINATES,
            });
        }
        for (i, coordinate) in names.iter().enumerate() {
            if names[..i].contains(coordinate) {
                return Err(Error::DuplicateName {
                    what: "coordinates".to_owned(),
                    name: coordinate.clone(),
                });
            }
        }
        let (recorder, residuals) = run(name, parameters.owner(), names.len(), closure)?;
        let roots = recorder.roots(name, &residuals)?;
        let Recorder {
            nodes,
            columns,
            groups,
            ..
        } = recorder;
        let tape = Tape::new(nodes.into_list(), roots, names, columns);
        let held = tape.infer()?;
        for (group, made) in &groups {
            if made.iter().all(|&id| held[id].planes.is_empty()) {
                return Err(Error::UntouchedParameter {
                    name: group.clone(),
                    within: format!("equation `{name}`"),
                });
            }
        }
        Ok(Self {
            name: name.to_owned(),
            tape: Arc::new(tape),
            held: Arc::new(held),
            owner: parameters.owner(),
            groups: groups.into_iter().map(|(group, _)| group).collect(),
        })
    }

    /// This equation on another tape, of the same residuals.
    pub(crate) fn with_tape(&self, tape: Tape) -> Result<Self, Error> {
        Self::from_tape(&self.name, tape, self.owner, self.groups.clone())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many residuals it has.
    pub fn outputs(&self) -> usize {
        self.tape.roots().len()
    }

    /// Names of its coordinates.
    pub fn coordinates(&self) -> &[String] {
        self.tape.coordinates()
    }

    /// Names of the columns of per-point data that it reads.
    pub fn columns(&self) -> &[String] {
        self.tape.columns()
    }

    /// The tape, to print and count.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// For each node of the tape, the planes that it holds.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Names of the networks and coefficients that it depends on.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// An equation whose tape was not recorded here.
    pub(crate) fn from_tape(
        name: &str,
        tape: Tape,
        owner: u64,
        groups: Vec<String>,
    ) -> Result<Self, Error> {
        let held = tape.infer()?;
        Ok(Self {
            name: name.to_owned(),
            tape: Arc::new(tape),
            held: Arc::new(held),
            owner,
            groups,
        })
    }
}

/// Runs a closure while the thread records.
#[track_caller]
fn run<R: Residuals>(
    name: &str,
    owner: u64,
    coordinates: usize,
    closure: impl FnOnce(&[Field]) -> R,
) -> Result<(Recorder, Vec<Field>), Error> {
    static SESSION: AtomicU64 = AtomicU64::new(1);
    if RECORDER.with_borrow(Option::is_some) {
        return Err(Error::NestedRecording {
            name: name.to_owned(),
        });
    }
    let session = SESSION.fetch_add(1, Ordering::Relaxed) as u32;
    let mut recorder = Recorder {
        session,
        owner,
        nodes: Nodes::default(),
        columns: Vec::new(),
        groups: Vec::new(),
        error: None,
    };
    let source = Location::caller();
    let fields: Vec<Field> = (0..coordinates)
        .map(|c| {
            let op = Op::Coordinate(c as Coordinate);
            recorder.push(op, SmallVec::new(), 1, source)
        })
        .collect();
    RECORDER.set(Some(recorder));
    let guard = Guard;
    let residuals = closure(&fields).into_fields();
    let recorder = RECORDER.take();
    drop(guard);
    match recorder {
        Some(Recorder {
            error: Some(error), ..
        }) => Err(error),
        Some(recorder) => Ok((recorder, residuals)),
        None => Err(Error::NestedRecording {
            name: name.to_owned(),
        }),
    }
}

impl Recorder {
    fn push(
        &mut self,
        op: Op,
        inputs: SmallVec<[NodeId; 2]>,
        rows: usize,
        source: Source,
    ) -> Field {
        if let Op::Elemental(Elemental::Powf(value)) = op
            && !value.is_finite()
        {
            self.fail(Error::NonFiniteConstant {
                value,
                at: source.to_string(),
            });
        }
        let id = self.nodes.push(Node {
            op,
            inputs,
            rows,
            source,
            graph: 1,
        });
        Field(Handle::Node {
            id: id as u32,
            session: self.session,
        })
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// The node of a field: a constant becomes one, a foreign field is a mistake.
    fn node(&mut self, field: Field, source: Source) -> NodeId {
        match field.0 {
            Handle::Node { id, session } if session == self.session => id as NodeId,
            Handle::Node { .. } => {
                self.fail(Error::ForeignField {
                    at: source.to_string(),
                });
                0
            }
            Handle::Const(value) => {
                if !value.is_finite() {
                    self.fail(Error::NonFiniteConstant {
                        value,
                        at: source.to_string(),
                    });
                }
                match self.push(Op::Constant(value), SmallVec::new(), 1, source).0 {
                    Handle::Node { id, .. } => id as NodeId,
                    Handle::Const(_) => 0,
                }
            }
        }
    }

    /// Nodes with the same number of rows: those of one row are repeated.
    fn broadcast(&mut self, nodes: &mut [NodeId], source: Source) -> usize {
        let rows = nodes
            .iter()
            .map(|&id| self.nodes[id].rows)
            .max()
            .unwrap_or(1);
        for id in nodes.iter_mut() {
            let own = self.nodes[*id].rows;
            if own == 1 && rows > 1 {
                let field = self.push(Op::Broadcast, smallvec![*id], rows, source);
                *id = self.node(field, source);
            } else if own != rows {
                self.fail(Error::RowCount {
                    left: rows,
                    right: own,
                    at: source.to_string(),
                });
            }
        }
        rows
    }

    fn roots(&self, name: &str, residuals: &[Field]) -> Result<Vec<NodeId>, Error> {
        let none = |given: &str| Error::NoResidual {
            name: name.to_owned(),
            given: given.to_owned(),
        };
        if residuals.is_empty() {
            return Err(none("no residual"));
        }
        residuals
            .iter()
            .map(|field| match field.0 {
                Handle::Const(value) => Err(none(&format!("the constant {value}"))),
                Handle::Node { session, .. } if session != self.session => {
                    Err(Error::ForeignField {
                        at: format!("result of `{name}`"),
                    })
                }
                Handle::Node { id, .. } => match self.nodes[id as usize].rows {
                    1 => Ok(id as NodeId),
                    rows => Err(none(&format!("a value of {rows} rows"))),
                },
            })
            .collect()
    }
}

/// Adds a node to the tape that this thread records. Outside of a recording it gives a
/// handle that no recording accepts.
fn record(
    source: Source,
    inputs: &[Field],
    build: impl FnOnce(&mut Recorder, SmallVec<[NodeId; 2]>) -> Field,
) -> Field {
    RECORDER.with_borrow_mut(|recorder| match recorder {
        Some(recorder) => {
            let nodes = inputs.iter().map(|&f| recorder.node(f, source)).collect();
            build(recorder, nodes)
        }
        None => Field(Handle::Node { id: 0, session: 0 }),
    })
}

/// Notes a mistake, and gives a harmless field.
fn mistake(error: Error) -> Field {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            recorder.fail(error);
        }
    });
    Field(Handle::Const(0.0))
}

fn push_rowwise(op: Op, inputs: &[Field], source: Source) -> Field {
    record(source, inputs, |recorder, mut nodes| {
        let rows = recorder.broadcast(&mut nodes, source);
        recorder.push(op, nodes, rows, source)
    })
}

/// `Σ factors[i]·inputs[i] + shift`.
fn linear(inputs: &[Field], factors: &[f64], shift: f64, source: Source) -> Field {
    let bad = factors.iter().chain([&shift]).find(|x| !x.is_finite());
    if let Some(&value) = bad {
        return mistake(Error::NonFiniteConstant {
            value,
            at: source.to_string(),
        });
    }
    let op = Op::Linear {
        factors: SmallVec::from_slice(factors),
        shift,
    };
    push_rowwise(op, inputs, source)
}

impl Field {
    /// The derivative in a coordinate of the recording. Any order, by repetition:
    /// `u.d(x).d(x)` is u_xx, `u.d(t).d(x)` is u_tx.
    #[track_caller]
    pub fn d(self, coordinate: Self) -> Self {
        let source = Location::caller();
        let Some(c) = coordinate.coordinate() else {
            return mistake(Error::NotACoordinate {
                at: source.to_string(),
            });
        };
        record(source, &[self], |recorder, nodes| {
            let rows = recorder.nodes[nodes[0]].rows;
            recorder.push(Op::Derivative(c), nodes, rows, source)
        })
    }

    /// The sum of the second derivatives over the given coordinates. Where nothing else of
    /// second order is asked of the same value, it costs one plane, whatever their number.
    #[track_caller]
    pub fn laplacian(self, coordinates: &[Self]) -> Self {
        let source = Location::caller();
        let mut set = Vec::with_capacity(coordinates.len());
        for coordinate in coordinates {
            match coordinate.coordinate() {
                Some(c) => set.push(c),
                None => {
                    return mistake(Error::NotACoordinate {
                        at: source.to_string(),
                    });
                }
            }
        }
        set.sort_unstable();
        let given = set.len();
        set.dedup();
        if set.is_empty() || set.len() < given {
            return mistake(Error::LaplacianSet {
                given: if given == 0 {
                    "no coordinate".to_owned()
                } else {
                    "a coordinate twice".to_owned()
                },
                at: source.to_string(),
            });
        }
        record(source, &[self], |recorder, nodes| {
            let rows = recorder.nodes[nodes[0]].rows;
            recorder.push(Op::Laplacian(set.into()), nodes, rows, source)
        })
    }

    /// True where this is greater than `other`.
    #[track_caller]
    pub fn above(self, other: impl Into<Self>) -> Mask {
        Mask {
            difference: self - other.into(),
            or_equal: false,
        }
    }

    /// True where this is greater than `other`, or equal to it.
    #[track_caller]
    pub fn at_least(self, other: impl Into<Self>) -> Mask {
        Mask {
            difference: self - other.into(),
            or_equal: true,
        }
    }

    /// True where this is less than `other`.
    #[track_caller]
    pub fn below(self, other: impl Into<Self>) -> Mask {
        other.into().above(self)
    }

    /// True where this is less than `other`, or equal to it.
    #[track_caller]
    pub fn at_most(self, other: impl Into<Self>) -> Mask {
        other.into().at_least(self)
    }

    /// An elementary function of this value.
    #[track_caller]
    pub fn apply(self, elemental: Elemental) -> Self {
        let source = Location::caller();
        if let Handle::Const(value) = self.0 {
            return Self::from(elemental.value(value));
        }
        push_rowwise(Op::Elemental(elemental), &[self], source)
    }

    fn coordinate(self) -> Option<Coordinate> {
        let Handle::Node { id, session } = self.0 else {
            return None;
        };
        RECORDER.with_borrow(|recorder| {
            let recorder = recorder.as_ref().filter(|r| r.session == session)?;
            match recorder.nodes[id as usize].op {
                Op::Coordinate(c) => Some(c),
                _ => None,
            }
        })
    }
}

/// `then` where `mask` holds, `otherwise` elsewhere, point by point. Values are copied,
/// never multiplied by 0 or 1: the branch that is not taken sends nothing, not even NaN.
///
/// ```
/// # use dualtape::{Elemental::Tanh, Equation, Parameters, select};
/// # let mut params = Parameters::new();
/// # let net = params.mlp("u", &[1, 4, 1], Tanh)?;
/// let eq = Equation::record("eq", &params, ["x"], |[x]| {
///     let [u] = net.at(&[x]);
///     u.d(x) - select(x.above(0.0), x.sqrt(), x)
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
#[track_caller]
pub fn select(mask: Mask, then: impl Into<Field>, otherwise: impl Into<Field>) -> Field {
    let source = Location::caller();
    let (then, otherwise) = (then.into(), otherwise.into());
    let Mask {
        difference,
        or_equal,
    } = mask;
    if let Handle::Const(d) = difference.0 {
        let taken = d > 0.0 || (or_equal && d == 0.0);
        return if taken { then } else { otherwise };
    }
    push_rowwise(
        Op::Select { or_equal },
        &[difference, then, otherwise],
        source,
    )
}

/// The per-point data of a named column, to be given with the points. It has no
/// derivatives; asking for one is an error.
#[track_caller]
pub fn data(column: &str) -> Field {
    let source = Location::caller();
    record(source, &[], |recorder, nodes| {
        let place = recorder.columns.iter().position(|c| c == column);
        let place = place.unwrap_or_else(|| {
            recorder.columns.push(column.to_owned());
            recorder.columns.len() - 1
        });
        recorder.push(Op::Data(place), nodes, 1, source)
    })
}

/// The value, cut off from every gradient in the parameters. The gradient of what uses it
/// is then *not* that of the loss: for demonstrations, and for targets that must not move.
/// It shows in every listing.
#[track_caller]
pub fn detach(value: Field) -> Field {
    let source = Location::caller();
    match value.0 {
        Handle::Const(_) => value,
        Handle::Node { .. } => push_rowwise(Op::Detach, &[value], source),
    }
}

// What networks and coefficients record.

/// A leaf of the parameter vector.
pub(crate) fn parameter(owner: u64, group: &str, index: usize, source: Source) -> Field {
    record(source, &[], |recorder, nodes| {
        recorder.check_owner(owner, group);
        let field = recorder.push(Op::Parameter(index), nodes, 1, source);
        recorder.note_group(group, &[field]);
        field
    })
}

/// Marks what a network made.
pub(crate) fn note_network(owner: u64, group: &str, outputs: &[Field]) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            recorder.check_owner(owner, group);
            recorder.note_group(group, outputs);
        }
    });
}

impl Recorder {
    fn check_owner(&mut self, owner: u64, group: &str) {
        if owner != self.owner {
            self.fail(Error::OtherParameters {
                what: format!("`{group}`"),
            });
        }
    }

    fn note_group(&mut self, group: &str, fields: &[Field]) {
        let place = self.groups.iter().position(|(name, _)| name == group);
        let place = place.unwrap_or_else(|| {
            self.groups.push((group.to_owned(), SmallVec::new()));
            self.groups.len() - 1
        });
        for field in fields {
            if let Handle::Node { id, .. } = field.0 {
                self.groups[place].1.push(id as NodeId);
            }
        }
    }
}

/// All rows below each other.
pub(crate) fn stack(fields: &[Field], source: Source) -> Field {
    record(source, fields, |recorder, nodes| {
        let rows = nodes.iter().map(|&id| recorder.nodes[id].rows).sum();
        if nodes.len() == 1 {
            return Field(Handle::Node {
                id: nodes[0] as u32,
                session: recorder.session,
            });
        }
        recorder.push(Op::Stack, nodes, rows, source)
    })
}

/// One row of a value.
pub(crate) fn row(field: Field, row: usize, source: Source) -> Field {
    record(source, &[field], |recorder, nodes| {
        if recorder.nodes[nodes[0]].rows == 1 {
            return field;
        }
        recorder.push(Op::Row(row), nodes, 1, source)
    })
}

/// `W·x + b` with `rows` rows.
pub(crate) fn affine(
    x: Field,
    rows: usize,
    weight: usize,
    bias: Option<usize>,
    source: Source,
) -> Field {
    record(source, &[x], |recorder, nodes| {
        recorder.push(Op::Affine { weight, bias }, nodes, rows, source)
    })
}

/// A value times a number, recorded at a given place.
pub(crate) fn scale(field: Field, factor: f64, source: Source) -> Field {
    linear(&[field], &[factor], 0.0, source)
}

/// Notes a mistake of a network's user.
pub(crate) fn note(error: Error) -> Field {
    mistake(error)
}

/// An elementary function of a value, recorded at a given place.
pub(crate) fn elemental(field: Field, elemental: Elemental, source: Source) -> Field {
    push_rowwise(Op::Elemental(elemental), &[field], source)
}
