//! Models: trained networks in a file, with all that is needed to evaluate them.
//! Knows nothing of problems or training.
//!
//! A file is safetensors: each block of the parameters is a tensor under its own name, and
//! the architectures, together with any recorded expressions, are JSON in the metadata under
//! `dualtape`, with a CRC-32 of numbers and text, so that a flipped bit is told.

use crate::elemental::Elemental;
use crate::engine::values;
use crate::error::{Error, check_finite, write_whole};
use crate::network::{Activation, Architecture, Init, Mlp};
use crate::parameters::Parameters;
use crate::points::Points;
use crate::record::{Equation, ParameterSpace};
use expression::Expression;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

mod expression;
mod state_dict;

/// The key of the metadata.
const KEY: &str = "dualtape";
/// What this version writes, and the only one that it reads.
const VERSION: u32 = 1;

/// Networks and coefficients with their values, and recorded expressions of them.
///
/// An expression is an equation's tape: a solution with its hard constraints and embeddings
/// is saved as it was recorded, and can be evaluated without the code that made it.
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Model, Parameters, Points};
///
/// let mut params = Parameters::seeded(1);
/// let net = params.mlp("n", &[2, 16, 1], Tanh)?;
/// let solution = Equation::record("u", &params, ["t", "x"], |[t, x]| {
///     let [n] = net.at(&[t, x]);
///     x.sin() + t * n
/// })?;
/// // … training …
/// let model = Model::new(&params).with(&solution)?;
/// let file = std::env::temp_dir().join("dualtape-doc.safetensors");
/// model.save(&file)?;
///
/// let model = Model::load(&file)?;
/// let points = Points::from_rows(&[[0.0, 0.5], [0.0, 1.0]])?;
/// assert_eq!(model.evaluate("u", &points)?, [[0.5_f64.sin(), 1_f64.sin()]]);
/// let [u_x, u_xx] = &model.derivatives("u", &points, &[&["x"], &["x", "x"]])?[..] else {
///     unreachable!("two were asked for")
/// };
/// assert!((u_x[0][0] - 0.5_f64.cos()).abs() < 1e-15);
/// # let _ = u_xx;
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Model {
    parameters: Parameters,
    expressions: Vec<Equation>,
}

/// What the metadata say.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    /// Of the numbers in the order of the blocks, and of this text without it. Files of
    /// before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<u32>,
    groups: Vec<Group>,
    expressions: Vec<Expression>,
}

impl Header {
    /// The checksum that belongs to it and to the parameters.
    fn sum(&mut self, theta: &[f64]) -> Result<u32, Error> {
        let stated = self.checksum.take();
        let text = serde_json::to_string(self).map_err(|error| damaged(&error.to_string()))?;
        self.checksum = stated;
        let mut hasher = crc32fast::Hasher::new();
        for number in theta {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(text.as_bytes());
        Ok(hasher.finalize())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Group {
    Network {
        name: String,
        widths: Vec<usize>,
        activations: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        omega: Option<f64>,
    },
    Coefficient {
        name: String,
    },
    /// A network with an activation of the user: its blocks, for the expressions that use
    /// them.
    Blocks {
        name: String,
        blocks: Vec<(String, usize, usize)>,
    },
}

impl Model {
    /// All networks and coefficients of some parameters, as they are now.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: parameters.clone(),
            expressions: Vec::new(),
        }
    }

    /// Adds a recorded expression, such as the solution.
    ///
    /// # Errors
    /// Other parameters; a name that is taken.
    pub fn with(mut self, expression: &Equation) -> Result<Self, Error> {
        let known = |group: &String| self.parameters.groups().contains(group);
        if expression.owner() != self.parameters.owner() || !expression.groups().iter().all(known) {
            return Err(Error::OtherParameters {
                what: format!("expression `{}`", expression.name()),
            });
        }
        if self.names().contains(&expression.name()) {
            return Err(Error::DuplicateName {
                what: "networks and expressions of a model".to_owned(),
                name: expression.name().to_owned(),
            });
        }
        self.expressions.push(expression.clone());
        Ok(self)
    }

    /// Its parameters, to record new equations with [`Parameters::net`] or to train on.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// What can be evaluated: names of expressions and networks.
    pub fn names(&self) -> Vec<&str> {
        let expressions = self.expressions.iter().map(Equation::name);
        let own = |group: &&str| self.parameters.net(group).is_ok();
        let networks = self.parameters.groups().iter().map(String::as_str);
        expressions.chain(networks.filter(own)).collect()
    }

    /// An expression, or a network as a function of `x1`, `x2`, …, as an equation.
    ///
    /// # Errors
    /// No such name.
    pub fn expression(&self, name: &str) -> Result<Equation, Error> {
        if let Some(found) = self.expressions.iter().find(|e| e.name() == name) {
            return Ok(found.clone());
        }
        let net = self.parameters.net(name).map_err(|_| Error::UnknownName {
            what: "expression or network in the model".to_owned(),
            name: name.to_owned(),
            known: self.names().join(", "),
        })?;
        let inputs: Vec<String> = (1..=net.inputs()).map(|i| format!("x{i}")).collect();
        Equation::record_over(name, &self.parameters, &inputs, |x| net.at_all(x))
    }

    /// The values of an expression or network at points: one list for each output. Points
    /// are taken in batches, by all threads of rayon's current pool.
    ///
    /// # Errors
    /// No such name; points of another dimension, or without the data that is read.
    pub fn evaluate(&self, name: &str, points: &Points) -> Result<Vec<Vec<f64>>, Error> {
        values(&self.expression(name)?, &self.parameters, points)
    }

    /// Derivatives of an expression or network at points. Each is a list of coordinates,
    /// `&["t", "x", "x"]` for u_txx, or an empty one for the value; for each there is one list
    /// for each output.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate); a coordinate that is not there or that the expression
    /// does not depend on; too high an order.
    #[track_caller]
    pub fn derivatives(
        &self,
        name: &str,
        points: &Points,
        orders: &[&[&str]],
    ) -> Result<Vec<Vec<Vec<f64>>>, Error> {
        let expression = self.expression(name)?;
        let derived = expression::differentiated(&expression, orders)?;
        let lists = values(&derived, &self.parameters, points)?;
        Ok(lists
            .chunks(expression.outputs())
            .map(<[_]>::to_vec)
            .collect())
    }

    /// Writes a file, and makes its folder. The file appears under its name only when it is
    /// whole and on the disk.
    ///
    /// # Errors
    /// An expression with a function of the user, which no file can hold; a file that cannot
    /// be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_whole(path.as_ref(), &self.to_bytes()?)
    }

    /// Reads a file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// A file that cannot be read, that is damaged, cut off or of another kind, that holds
    /// other tensors than its header says, or numbers that are not finite.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = read(path)?;
        Self::from_bytes(&bytes).map_err(|error| in_file(path, error))
    }

    /// Reads the weights that PyTorch has as the `state_dict` of an `nn.Sequential` of
    /// `Linear` layers, written by `safetensors.torch.save_file`, as a network of that name
    /// and activation. Names are numbers with any prefix: `0.weight`, `0.bias`, `2.weight`, …;
    /// a layer without bias gets one of zeros.
    ///
    /// ```no_run
    /// use dualtape::{Elemental::Tanh, Model};
    ///
    /// let model = Model::from_state_dict("torch.safetensors", "u", Tanh)?;
    /// println!("{:?}", model.parameters().net("u")?.widths());
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`load`](Self::load); tensors of other names or shapes, layers that do not fit each
    /// other, numbers of half precision.
    pub fn from_state_dict(
        path: impl AsRef<Path>,
        name: &str,
        activation: impl Into<Activation>,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = read(path)?;
        state_dict::read(&bytes, name, &activation.into()).map_err(|error| in_file(path, error))
    }

    fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let parameters = &self.parameters;
        let groups = parameters.groups().iter().map(|group| self.describe(group));
        let mut header = Header {
            version: VERSION,
            checksum: None,
            groups: groups.collect(),
            expressions: self
                .expressions
                .iter()
                .map(Expression::of)
                .collect::<Result<_, _>>()?,
        };
        let fail = |reason: String| Error::File {
            path: "the model".to_owned(),
            reason,
        };
        header.checksum = Some(header.sum(parameters.values())?);
        let text = serde_json::to_string(&header).map_err(|error| fail(error.to_string()))?;
        let numbers: Vec<u8> = parameters
            .values()
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let mut tensors = Vec::with_capacity(parameters.blocks().len());
        for block in parameters.blocks() {
            let shape = if block.name == block.group {
                vec![]
            } else if block.name.ends_with(".bias") {
                vec![block.rows]
            } else {
                vec![block.rows, block.columns]
            };
            let bytes = &numbers[8 * block.offset..][..8 * block.len()];
            let view = TensorView::new(Dtype::F64, shape, bytes);
            tensors.push((&block.name, view.map_err(|error| fail(error.to_string()))?));
        }
        let metadata = HashMap::from([(KEY.to_owned(), text)]);
        safetensors::serialize(tensors, Some(metadata)).map_err(|error| fail(error.to_string()))
    }

    fn describe(&self, group: &str) -> Group {
        let name = group.to_owned();
        let blocks = || {
            self.parameters
                .blocks()
                .iter()
                .filter(|block| block.group == group)
        };
        let named = |net: &Mlp| -> Option<Vec<String>> {
            let activations = net.activations().into_iter();
            activations
                .map(|activation| match activation {
                    Activation::Elemental(Elemental::Custom(_)) | Activation::Recorded { .. } => {
                        None
                    }
                    Activation::Elemental(elemental) => Some(elemental.name().into_owned()),
                })
                .collect()
        };
        match self.parameters.net(group) {
            Ok(net) => match named(&net) {
                Some(activations) => Group::Network {
                    name,
                    widths: net.widths(),
                    activations,
                    omega: net.omega(),
                },
                None => Group::Blocks {
                    name,
                    blocks: blocks()
                        .map(|b| (b.name.clone(), b.rows, b.columns))
                        .collect(),
                },
            },
            Err(_) if blocks().all(|block| block.name == block.group) => {
                Group::Coefficient { name }
            }
            // Loaded as blocks before.
            Err(_) => Group::Blocks {
                name,
                blocks: blocks()
                    .map(|b| (b.name.clone(), b.rows, b.columns))
                    .collect(),
            },
        }
    }

    #[track_caller]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
        let text = metadata.metadata().as_ref().and_then(|all| all.get(KEY));
        let text = text.ok_or_else(|| {
            damaged(
                "it has no `dualtape` in its metadata, so it is of another kind; weights of \
                 PyTorch are read by `Model::from_state_dict`",
            )
        })?;
        let version: HashMap<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|error| damaged(&error.to_string()))?;
        if version.get("version").and_then(serde_json::Value::as_u64) != Some(VERSION.into()) {
            return Err(damaged(&format!(
                "it is of version {}; this library reads version {VERSION}",
                version.get("version").unwrap_or(&serde_json::Value::Null)
            )));
        }
        let mut header: Header =
            serde_json::from_str(text).map_err(|error| damaged(&error.to_string()))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(unreadable)?;

        // Before anything is made: as many numbers as the header promises.
        let count = header.groups.iter().try_fold(0_usize, |sum, group| {
            let own = match group {
                Group::Network { widths, .. } => Architecture::mlp(widths).size(),
                Group::Coefficient { .. } => Some(1),
                Group::Blocks { blocks, .. } => blocks.iter().try_fold(0_usize, |sum, block| {
                    block.1.checked_mul(block.2)?.checked_add(sum)
                }),
            };
            sum.checked_add(own?)
        });
        let given: usize = tensors.iter().map(|(_, view)| numbers_in(&view)).sum();
        if count != Some(given) {
            let count = count.map_or("more than fit".to_owned(), |count| count.to_string());
            return Err(damaged(&format!(
                "it holds {given} numbers, its header speaks of {count}"
            )));
        }

        let mut parameters = Parameters::new();
        for group in &header.groups {
            match group {
                Group::Network {
                    name,
                    widths,
                    activations,
                    omega,
                } => {
                    let activations = activations
                        .iter()
                        .map(|name| {
                            Elemental::named(name).ok_or_else(|| {
                                damaged(&format!("its activation `{name}` is not known"))
                            })
                        })
                        .collect::<Result<Vec<_>, _>>()?;
                    let mut architecture = Architecture::mlp(widths).activations(activations);
                    if let Some(omega) = *omega {
                        architecture = architecture.init(Init::Siren { omega });
                    }
                    parameters.network(name, &architecture)?;
                }
                Group::Coefficient { name } => {
                    parameters.coefficient(name, 0.0)?;
                }
                Group::Blocks { name, blocks } => parameters.opaque(name, blocks)?,
            }
        }
        let mut theta = vec![0.0; parameters.len()];
        for block in parameters.blocks() {
            let view = tensors.tensor(&block.name);
            let view = view.map_err(|_| damaged(&format!("it lacks `{}`", block.name)))?;
            let own = [block.rows, block.columns];
            let shape: Vec<usize> = view.shape().to_vec();
            let column = own[1] == 1 && shape == own[..1];
            let single = own == [1, 1] && shape.is_empty();
            if shape != own && !column && !single {
                return Err(damaged(&format!(
                    "`{}` is of shape {shape:?}, {own:?} was expected",
                    block.name
                )));
            }
            theta[block.offset..][..block.len()].copy_from_slice(&numbers(&block.name, &view)?);
        }
        parameters.set(&theta)?;
        let mut model = Self::new(&parameters);
        for expression in &header.expressions {
            model = model.with(&expression.equation(&parameters)?)?;
        }
        // At last: where more can be said, it was said before.
        let sum = header.sum(&theta)?;
        if header.checksum.is_some_and(|stated| stated != sum) {
            return Err(damaged(
                "its checksum does not fit: it is damaged, or was changed by other means",
            ));
        }
        Ok(model)
    }
}

/// All bytes of a file, if it may be a model at all.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    /// More than the most parameters that a network may have, twice.
    const MOST: u64 = 1 << 36;
    let fail = |reason: String| Error::File {
        path: path.display().to_string(),
        reason,
    };
    let length = std::fs::metadata(path)
        .map_err(|error| fail(error.to_string()))?
        .len();
    if length > MOST {
        return Err(fail(format!("{length} bytes are too many for a model")));
    }
    std::fs::read(path).map_err(|error| fail(error.to_string()))
}

/// An error about what a file holds.
fn damaged(reason: &str) -> Error {
    Error::File {
        path: String::new(),
        reason: reason.to_owned(),
    }
}

fn unreadable(error: safetensors::SafeTensorError) -> Error {
    damaged(&format!(
        "damaged, cut off, or no safetensors file ({error})"
    ))
}

/// Any error, with the file that it is about.
fn in_file(path: &Path, error: Error) -> Error {
    let reason = match error {
        Error::File { reason, .. } => reason,
        other => other.to_string(),
    };
    Error::File {
        path: path.display().to_string(),
        reason,
    }
}

fn numbers_in(view: &TensorView<'_>) -> usize {
    view.shape().iter().product()
}

/// The numbers of a tensor in single or double precision, all finite.
fn numbers(name: &str, view: &TensorView<'_>) -> Result<Vec<f64>, Error> {
    let numbers: Vec<f64> = match view.dtype() {
        Dtype::F64 => view
            .data()
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect(),
        Dtype::F32 => view
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes).into())
            .collect(),
        other => {
            return Err(damaged(&format!(
                "`{name}` holds numbers of type {other:?}; F64 and F32 are read"
            )));
        }
    };
    check_finite(&format!("`{name}`"), &numbers)?;
    Ok(numbers)
}
