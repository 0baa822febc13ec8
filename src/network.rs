//! Networks: architectures, their initialisation, how they are recorded on a tape and how
//! they run on any num-dual number. Knows nothing of equations or points.

use crate::elemental::Elemental;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::record::{self, Field};
use num_dual::DualNum;
use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use rand_distr::Normal;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The most numbers that a network may have.
const MAX_PARAMETERS: usize = 1 << 31;

/// What follows a layer: an [`Elemental`], or a function of fields.
#[derive(Clone)]
pub enum Activation {
    /// An elementary function.
    Elemental(Elemental),
    /// A function that is recorded on the tape.
    Recorded {
        /// Its name.
        name: String,
        /// The function.
        function: Arc<dyn Fn(Field) -> Field + Send + Sync>,
    },
}

impl Activation {
    /// An own activation, written with the arithmetic of fields, or generic over
    /// [`DualNum`]. It may hold coefficients. [`Mlp::eval`] cannot run it.
    ///
    /// ```
    /// use dualtape::{Activation, Architecture, Elemental::Tanh, Parameters};
    ///
    /// let mut params = Parameters::new();
    /// let slope = params.coefficient("slope", 1.0)?;
    /// let adaptive = Activation::recorded("adaptive tanh", move |z| (slope.field() * z).tanh());
    /// let net = params.network("u", &Architecture::mlp(&[1, 8, 1]).activation(adaptive))?;
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    pub fn recorded(name: &str, function: impl Fn(Field) -> Field + Send + Sync + 'static) -> Self {
        Self::Recorded {
            name: name.to_owned(),
            function: Arc::new(function),
        }
    }
}

impl From<Elemental> for Activation {
    fn from(elemental: Elemental) -> Self {
        Self::Elemental(elemental)
    }
}

impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elemental(elemental) => write!(f, "{elemental:?}"),
            Self::Recorded { name, .. } => write!(f, "{name}"),
        }
    }
}

/// How the weights of a network start; biases start at 0 (SIREN: uniform).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// Uniform in ±√(6/(inputs + outputs)) (Glorot and Bengio 2010).
    Glorot,
    /// Normal of variance 2/(inputs + outputs).
    GlorotNormal,
    /// Normal of variance 2/inputs (He et al. 2015), for ReLU and its kin.
    He,
    /// Normal of variance 1/inputs (LeCun et al. 1998).
    LeCun,
    /// Uniform in ±1/inputs in the first layer, ±√(6/inputs)/ω elsewhere; each layer but
    /// the last is multiplied by ω before its activation (Sitzmann et al. 2020).
    Siren {
        /// The frequency ω, 30 in the paper.
        omega: f64,
    },
}

/// Widths, activations and initialisation of a multi-layer perceptron.
///
/// ```
/// use dualtape::{Architecture, Elemental, Init, Parameters};
///
/// let mut params = Parameters::seeded(1);
/// let siren = Architecture::siren(&[2, 64, 64, 1], 30.0);
/// let mixed = Architecture::mlp(&[2, 32, 32, 1])
///     .activations([Elemental::Softplus, Elemental::Gelu])
///     .init(Init::LeCun);
/// params.network("u", &siren)?;
/// params.network("p", &mixed)?;
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Architecture {
    widths: Vec<usize>,
    activations: Vec<Activation>,
    init: Init,
}

impl Architecture {
    /// A perceptron with tanh after every layer but the last.
    pub fn mlp(widths: &[usize]) -> Self {
        Self {
            widths: widths.to_vec(),
            activations: vec![Elemental::Tanh.into()],
            init: Init::Glorot,
        }
    }

    /// A network of sines (SIREN) of frequency `omega`.
    pub fn siren(widths: &[usize], omega: f64) -> Self {
        Self {
            widths: widths.to_vec(),
            activations: vec![Elemental::Sin.into()],
            init: Init::Siren { omega },
        }
    }

    /// The same activation after every layer but the last.
    #[must_use]
    pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
        self.activations = vec![activation.into()];
        self
    }

    /// One activation for each layer but the last.
    #[must_use]
    pub fn activations<A: Into<Activation>>(
        mut self,
        activations: impl IntoIterator<Item = A>,
    ) -> Self {
        self.activations = activations.into_iter().map(Into::into).collect();
        self
    }

    /// How the weights start.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = init;
        self
    }

    /// How many parameters it has; nothing if they are too many.
    pub(crate) fn size(&self) -> Option<usize> {
        let size = self.widths.windows(2).try_fold(0_usize, |sum, w| {
            w[0].checked_mul(w[1])?.checked_add(w[1])?.checked_add(sum)
        });
        size.filter(|size| *size <= MAX_PARAMETERS)
    }

    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        let fail = |given: String, expected: &str| {
            Err(Error::Architecture {
                name: name.to_owned(),
                given,
                expected: expected.to_owned(),
            })
        };
        if self.widths.len() < 2 {
            return fail(
                format!("{} widths given", self.widths.len()),
                "give at least two, inputs and outputs",
            );
        }
        if let Some(place) = self.widths.iter().position(|&w| w == 0) {
            return fail(
                format!("width {place} is 0"),
                "every layer needs at least one unit",
            );
        }
        if self.size().is_none() {
            return fail(
                format!("widths {:?}", self.widths),
                "a network has at most 2^31 parameters",
            );
        }
        let hidden = self.widths.len() - 2;
        if self.activations.len() != 1 && self.activations.len() != hidden {
            return fail(
                format!(
                    "{} activations for {hidden} hidden layers",
                    self.activations.len()
                ),
                "give one for all, or one for each hidden layer",
            );
        }
        if let Init::Siren { omega } = self.init
            && !(omega.is_finite() && omega > 0.0)
        {
            return fail(
                format!("omega is {omega}"),
                "it must be positive and finite",
            );
        }
        Ok(())
    }

    /// The first values: for each layer W row by row, then b.
    pub(crate) fn initial(&self, seed: u64, stream: u64) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        let mut values = Vec::new();
        for (index, w) in self.widths.windows(2).enumerate() {
            let (inputs, outputs) = (w[0] as f64, w[1] as f64);
            let count = w[0] * w[1];
            let mut uniform = |bound: f64, count: usize, values: &mut Vec<f64>| {
                if let Ok(range) = Uniform::new_inclusive(-bound, bound) {
                    values.extend(range.sample_iter(&mut random).take(count));
                }
            };
            let deviation = match self.init {
                Init::Glorot => {
                    uniform((6.0 / (inputs + outputs)).sqrt(), count, &mut values);
                    None
                }
                Init::Siren { omega } => {
                    let bound = if index == 0 {
                        1.0 / inputs
                    } else {
                        (6.0 / inputs).sqrt() / omega
                    };
                    uniform(bound, count, &mut values);
                    uniform(1.0 / inputs.sqrt(), w[1], &mut values);
                    continue;
                }
                Init::GlorotNormal => Some((2.0 / (inputs + outputs)).sqrt()),
                Init::He => Some((2.0 / inputs).sqrt()),
                Init::LeCun => Some((1.0 / inputs).sqrt()),
            };
            if let Some(Ok(normal)) = deviation.map(|d| Normal::new(0.0, d)) {
                values.extend(normal.sample_iter(&mut random).take(count));
            }
            values.extend(std::iter::repeat_n(0.0, w[1]));
        }
        values
    }
}

/// A layer `W·a + b` and what follows it.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) weight: usize,
    pub(crate) bias: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    scale: f64,
    activation: Option<Activation>,
}

/// A network whose parameters lie in a [`Parameters`] vector.
#[derive(Debug, Clone)]
pub struct Mlp {
    owner: u64,
    name: String,
    layers: Vec<Layer>,
}

impl Mlp {
    pub(crate) fn place(
        owner: u64,
        name: &str,
        architecture: &Architecture,
        offset: usize,
    ) -> Self {
        let last = architecture.widths.len() - 2;
        let mut weight = offset;
        let layers = architecture
            .widths
            .windows(2)
            .enumerate()
            .map(|(index, w)| {
                let bias = weight + w[0] * w[1];
                let shared = architecture.activations.len() == 1;
                let activation = (index < last)
                    .then(|| architecture.activations[if shared { 0 } else { index }].clone());
                let scale = match architecture.init {
                    Init::Siren { omega } if index < last => omega,
                    _ => 1.0,
                };
                let layer = Layer {
                    weight,
                    bias,
                    rows: w[1],
                    columns: w[0],
                    scale,
                    activation,
                };
                weight = bias + w[1];
                layer
            })
            .collect();
        Self {
            owner,
            name: name.to_owned(),
            layers,
        }
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The same network in a clone of its parameters.
    pub(crate) fn owned_by(&self, owner: u64) -> Self {
        Self {
            owner,
            ..self.clone()
        }
    }

    /// Its widths, from inputs to outputs.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = self.layers.iter().map(|layer| layer.rows);
        std::iter::once(self.inputs()).chain(outputs).collect()
    }

    /// What follows each layer but the last.
    pub fn activations(&self) -> Vec<&Activation> {
        let layers = self.layers.iter();
        layers
            .filter_map(|layer| layer.activation.as_ref())
            .collect()
    }

    /// The frequency of a SIREN.
    pub fn omega(&self) -> Option<f64> {
        let scale = self.layers[0].scale;
        (scale != 1.0).then_some(scale)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many inputs it has.
    pub fn inputs(&self) -> usize {
        self.layers[0].columns
    }

    /// How many outputs it has.
    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].rows
    }

    /// Records the network on the inputs and gives its outputs:
    /// `let [u, v] = net.at(&[t, x]);`. Another number of inputs or outputs than it has is
    /// an error of the recording.
    #[track_caller]
    pub fn at<const N: usize>(&self, inputs: &[Field]) -> [Field; N] {
        let source = Location::caller();
        let mut outputs = [Field::from(0.0); N];
        if N != self.outputs() {
            let harmless = record::note(Error::NetworkOutputs {
                network: self.name.clone(),
                expected: self.outputs(),
                given: N,
                at: source.to_string(),
            });
            outputs.fill(harmless);
            return outputs;
        }
        outputs.copy_from_slice(&self.record(inputs, source));
        outputs
    }

    /// [`at`](Self::at) for a number of outputs that is known at run time only.
    #[track_caller]
    pub fn at_all(&self, inputs: &[Field]) -> Vec<Field> {
        self.record(inputs, Location::caller())
    }

    fn record(&self, inputs: &[Field], source: &'static Location<'static>) -> Vec<Field> {
        if inputs.len() != self.inputs() {
            let harmless = record::note(Error::NetworkInputs {
                network: self.name.clone(),
                expected: self.inputs(),
                given: inputs.len(),
                at: source.to_string(),
            });
            return vec![harmless; self.outputs()];
        }
        let mut value = record::stack(inputs, source);
        for layer in &self.layers {
            value = record::affine(value, layer.rows, layer.weight, Some(layer.bias), source);
            if layer.scale != 1.0 {
                value = record::scale(value, layer.scale, source);
            }
            match &layer.activation {
                Some(Activation::Elemental(elemental)) => {
                    value = record::elemental(value, elemental.clone(), source);
                }
                Some(Activation::Recorded { function, .. }) => value = function(value),
                None => {}
            }
        }
        let outputs: Vec<Field> = (0..self.outputs())
            .map(|row| record::row(value, row, source))
            .collect();
        record::note_network(self.owner, &self.name, &outputs);
        outputs
    }

    /// Runs the network on any num-dual number: with `Dual64` the output and its derivative
    /// come out of one forward pass.
    ///
    /// ```
    /// use dualtape::{Elemental::Tanh, Parameters};
    /// use num_dual::Dual64;
    ///
    /// let mut params = Parameters::new();
    /// let net = params.mlp("y", &[1, 3, 3, 1], Tanh)?;
    /// let y = net.eval(&params, &[Dual64::from_re(0.5).derivative()])?;
    /// println!("y = {}, dy/dt = {}", y[0].re, y[0].eps);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of inputs, other parameters, a recorded activation.
    pub fn eval<D: DualNum<Primitive = f64> + Copy>(
        &self,
        parameters: &Parameters,
        inputs: &[D],
    ) -> Result<Vec<D>, Error> {
        if !parameters.holds(self.owner, &self.name) {
            return Err(Error::OtherParameters {
                what: format!("`{}`", self.name),
            });
        }
        if inputs.len() != self.inputs() {
            return Err(Error::length(
                format!("inputs of network `{}`", self.name),
                inputs.len(),
                self.inputs(),
            ));
        }
        let theta = parameters.values();
        let mut value = inputs.to_vec();
        for layer in &self.layers {
            let mut next = Vec::with_capacity(layer.rows);
            for row in 0..layer.rows {
                let weights = &theta[layer.weight + row * layer.columns..][..layer.columns];
                let mut z = D::from(theta[layer.bias + row]);
                for (&w, &a) in weights.iter().zip(&value) {
                    z += a * w;
                }
                if layer.scale != 1.0 {
                    z *= layer.scale;
                }
                next.push(match &layer.activation {
                    Some(Activation::Elemental(elemental)) => elemental.apply(z),
                    Some(Activation::Recorded { name, .. }) => {
                        return Err(Error::OutOfRange {
                            what: "the activation of a network that is evaluated on numbers"
                                .to_owned(),
                            given: format!("`{name}`, a recorded function"),
                            expected: "use an `Elemental`, or evaluate a recorded equation"
                                .to_owned(),
                        });
                    }
                    None => z,
                });
            }
            value = next;
        }
        Ok(value)
    }
}
