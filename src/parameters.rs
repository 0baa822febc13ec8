//! The flat parameter vector, its named blocks, and how they start. Knows nothing of
//! equations or points.

use crate::error::{Error, check_finite};
use crate::network::{Architecture, Mlp};
use crate::record::{Field, ParameterSpace, new_owner, parameter};
use nalgebra::{DMatrix, DMatrixView, DMatrixViewMut};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All that is trained: weights and biases of networks, and coefficients, in one flat
/// vector with named blocks.
///
/// A weight matrix W (outputs × inputs) lies row by row, its bias after it. The blocks of
/// a network `u` are named `u.0.weight`, `u.0.bias`, `u.1.weight`, …; a coefficient has
/// its own name.
///
/// ```
/// use dualtape::{Elemental::Tanh, Parameters};
///
/// let mut params = Parameters::seeded(7);
/// let net = params.mlp("u", &[2, 16, 1], Tanh)?;
/// let nu = params.coefficient("nu", 0.01)?;
/// assert_eq!(params.len(), 2 * 16 + 16 + 16 + 1 + 1);
/// assert_eq!(params.matrix("u.0.weight")?.shape(), (16, 2));
/// assert_eq!(nu.value(&params)?, 0.01);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Parameters {
    lineage: Arc<Lineage>,
    seed: u64,
    values: Vec<f64>,
    blocks: Vec<Block>,
    groups: Vec<String>,
    networks: Vec<Mlp>,
}

/// What a set of parameters shares with its clones, as long as only one of them grows: the
/// first that adds a block stays what it was, any other becomes a set of its own.
#[derive(Debug)]
struct Lineage {
    owner: u64,
    /// Networks and coefficients of the one that has grown furthest.
    groups: AtomicUsize,
}

impl Lineage {
    fn new(groups: usize) -> Arc<Self> {
        Arc::new(Self {
            owner: new_owner(),
            groups: AtomicUsize::new(groups),
        })
    }
}

/// A named part of the parameter vector: a matrix, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its name.
    pub name: String,
    /// The network or coefficient that it belongs to.
    pub group: String,
    /// Its first entry.
    pub offset: usize,
    /// Rows (outputs of a layer).
    pub rows: usize,
    /// Columns (inputs of a layer; 1 for biases and coefficients).
    pub columns: usize,
}

impl Block {
    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A trainable number, made by [`Parameters::coefficient`].
#[derive(Debug, Clone)]
pub struct Coefficient {
    owner: u64,
    name: String,
    index: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self::new()
    }
}

impl ParameterSpace for Parameters {
    fn owner(&self) -> u64 {
        self.lineage.owner
    }
}

impl Parameters {
    /// No parameters yet; random numbers start from seed 0.
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// No parameters yet; the same seed gives the same networks on every machine.
    pub fn seeded(seed: u64) -> Self {
        Self {
            lineage: Lineage::new(0),
            seed,
            values: Vec::new(),
            blocks: Vec::new(),
            groups: Vec::new(),
            networks: Vec::new(),
        }
    }

    /// Adds a multi-layer perceptron: `widths` from inputs to outputs, the activation after
    /// every layer but the last, Glorot-uniform weights, zero biases.
    /// [`network`](Self::network) has all choices.
    ///
    /// # Errors
    /// Fewer than two widths, a zero width, a name that is taken.
    pub fn mlp(
        &mut self,
        name: &str,
        widths: &[usize],
        activation: impl Into<crate::network::Activation>,
    ) -> Result<Mlp, Error> {
        self.network(name, &Architecture::mlp(widths).activation(activation))
    }

    /// Adds a network.
    ///
    /// # Errors
    /// As [`mlp`](Self::mlp).
    pub fn network(&mut self, name: &str, architecture: &Architecture) -> Result<Mlp, Error> {
        architecture.check(name)?;
        let stream = self.groups.len() as u64;
        self.add_group(name)?;
        let offset = self.values.len();
        let mut values = architecture.initial(self.seed, stream);
        let net = Mlp::place(self.owner(), name, architecture, offset);
        for (index, layer) in net.layers().iter().enumerate() {
            self.blocks.push(Block {
                name: format!("{name}.{index}.weight"),
                group: name.to_owned(),
                offset: layer.weight,
                rows: layer.rows,
                columns: layer.columns,
            });
            self.blocks.push(Block {
                name: format!("{name}.{index}.bias"),
                group: name.to_owned(),
                offset: layer.bias,
                rows: layer.rows,
                columns: 1,
            });
        }
        self.values.append(&mut values);
        self.networks.push(net.clone());
        Ok(net)
    }

    /// Adds a group of blocks whose meaning only a recorded equation knows: rows and columns
    /// of each, all values 0.
    pub(crate) fn opaque(
        &mut self,
        group: &str,
        blocks: &[(String, usize, usize)],
    ) -> Result<(), Error> {
        self.add_group(group)?;
        for (name, rows, columns) in blocks {
            let block = Block {
                name: name.clone(),
                group: group.to_owned(),
                offset: self.values.len(),
                rows: *rows,
                columns: *columns,
            };
            self.values.resize(self.values.len() + block.len(), 0.0);
            self.blocks.push(block);
        }
        Ok(())
    }

    /// Adds a trainable number, for inverse problems.
    ///
    /// # Errors
    /// A name that is taken, a start that is not finite.
    pub fn coefficient(&mut self, name: &str, start: f64) -> Result<Coefficient, Error> {
        check_finite(&format!("the start of coefficient `{name}`"), &[start])?;
        self.add_group(name)?;
        let index = self.values.len();
        self.values.push(start);
        self.blocks.push(Block {
            name: name.to_owned(),
            group: name.to_owned(),
            offset: index,
            rows: 1,
            columns: 1,
        });
        Ok(Coefficient {
            owner: self.owner(),
            name: name.to_owned(),
            index,
        })
    }

    fn add_group(&mut self, name: &str) -> Result<(), Error> {
        if self.groups.iter().any(|group| group == name) {
            return Err(Error::DuplicateName {
                what: "networks and coefficients".to_owned(),
                name: name.to_owned(),
            });
        }
        let count = self.groups.len();
        let order = Ordering::Relaxed;
        let first = self
            .lineage
            .groups
            .compare_exchange(count, count + 1, order, order);
        if first.is_err() {
            self.lineage = Lineage::new(count + 1);
        }
        self.groups.push(name.to_owned());
        Ok(())
    }

    /// Whether a network or coefficient of that owner is one of these.
    pub(crate) fn holds(&self, owner: u64, group: &str) -> bool {
        self.owner() == owner && self.groups.iter().any(|own| own == group)
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All parameters.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// All parameters, to be changed.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Sets all parameters.
    ///
    /// # Errors
    /// Another number of values, values that are not finite.
    pub fn set(&mut self, values: &[f64]) -> Result<(), Error> {
        if values.len() != self.values.len() {
            return Err(Error::length("parameters", values.len(), self.values.len()));
        }
        check_finite("parameter", values)?;
        self.values.copy_from_slice(values);
        Ok(())
    }

    /// The blocks, in order of their offsets.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Names of the networks and coefficients, in order.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// A network by its name: the one that was made here, or that came with these parameters
    /// from a file.
    ///
    /// # Errors
    /// No such network.
    pub fn net(&self, name: &str) -> Result<Mlp, Error> {
        let found = self.networks.iter().find(|net| net.name() == name);
        found.map(|net| net.owned_by(self.owner())).ok_or_else(|| {
            let known: Vec<&str> = self.networks.iter().map(Mlp::name).collect();
            Error::UnknownName {
                what: "network".to_owned(),
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    /// The trainable numbers, in order.
    pub fn coefficients(&self) -> Vec<Coefficient> {
        let blocks = self.blocks.iter().filter(|block| block.name == block.group);
        blocks
            .map(|block| Coefficient {
                owner: self.owner(),
                name: block.name.clone(),
                index: block.offset,
            })
            .collect()
    }

    /// A block by its name.
    ///
    /// # Errors
    /// No such block.
    pub fn block(&self, name: &str) -> Result<&Block, Error> {
        self.blocks
            .iter()
            .find(|block| block.name == name)
            .ok_or_else(|| {
                let known: Vec<&str> = self.blocks.iter().map(|b| b.name.as_str()).collect();
                Error::UnknownName {
                    what: "parameter block".to_owned(),
                    name: name.to_owned(),
                    known: known.join(", "),
                }
            })
    }

    /// The block that an entry belongs to, with its row and column.
    pub fn locate(&self, index: usize) -> Option<(&Block, usize, usize)> {
        let block = self
            .blocks
            .iter()
            .find(|block| (block.offset..block.offset + block.len()).contains(&index))?;
        let place = index - block.offset;
        Some((block, place / block.columns, place % block.columns))
    }

    /// A copy of a block as a matrix, outputs × inputs.
    ///
    /// # Errors
    /// No such block.
    pub fn matrix(&self, name: &str) -> Result<DMatrix<f64>, Error> {
        let block = self.block(name)?;
        Ok(DMatrix::from_row_slice(
            block.rows,
            block.columns,
            &self.values[block.offset..][..block.len()],
        ))
    }

    /// A view of a block as its transpose, inputs × outputs: contiguous in nalgebra's
    /// column-major order.
    ///
    /// # Errors
    /// No such block.
    pub fn transposed(&self, name: &str) -> Result<DMatrixView<'_, f64>, Error> {
        let block = self.block(name)?;
        Ok(DMatrixView::from_slice(
            &self.values[block.offset..][..block.len()],
            block.columns,
            block.rows,
        ))
    }

    /// [`transposed`](Self::transposed), to be changed.
    ///
    /// # Errors
    /// No such block.
    pub fn transposed_mut(&mut self, name: &str) -> Result<DMatrixViewMut<'_, f64>, Error> {
        let block = self.block(name)?.clone();
        Ok(DMatrixViewMut::from_slice(
            &mut self.values[block.offset..][..block.len()],
            block.columns,
            block.rows,
        ))
    }
}

impl Coefficient {
    /// The coefficient as a field, inside a recording.
    #[track_caller]
    pub fn field(&self) -> Field {
        parameter(self.owner, &self.name, self.index, Location::caller())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the parameter vector.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its present value.
    ///
    /// # Errors
    /// It belongs to other parameters.
    pub fn value(&self, parameters: &Parameters) -> Result<f64, Error> {
        if !parameters.holds(self.owner, &self.name) {
            return Err(Error::OtherParameters {
                what: format!("`{}`", self.name),
            });
        }
        Ok(parameters.values[self.index])
    }
}
