//! Ansätze: what is built around a network so that a condition holds exactly, and how
//! periodic solutions are treated. Everything here is recorded on the tape.
//!
//! With initial and boundary values built in, the equation is the only condition left and
//! there is nothing to balance (Lagaris, Likas, Fotiadis 1998; Sukumar and Srivastava 2022).
//!
//! ```
//! use dualtape::{Domain, Elemental::Tanh, Equation, Parameters, ansatz};
//! use std::f64::consts::PI;
//!
//! let mut params = Parameters::new();
//! let net = params.mlp("u", &[2, 16, 1], Tanh)?;
//! let domain = Domain::interval(-1.0, 1.0)?.in_time(0.0, 1.0)?;
//! let burgers = Equation::record("burgers", &params, ["t", "x"], |[t, x]| {
//!     let [n] = net.at(&[t, x]);
//!     // u(0, x) = -sin(πx) and u(t, ±1) = 0, whatever the network is.
//!     let free = ansatz::distance(&domain, &["initial", "left", "right"], &[t, x]);
//!     let u = -(PI * x).sin() + free * n;
//!     u.d(t) + u * u.d(x) - 0.01 * u.d(x).d(x)
//! })?;
//! # Ok::<(), dualtape::Error>(())
//! ```

use crate::domain::{Domain, Shape};
use crate::error::Error;
use crate::record::{self, Field};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use std::f64::consts::TAU;

/// A function that is 0 on some sides of a domain and positive elsewhere in it: `g + d·n`
/// has the values g there, whatever n is.
///
/// Of one shape it is a product over the sides, smooth, with slope 1 across each in its
/// middle; of a hole or a union it is an R-function (Rvachev 1963), smooth but where sides
/// meet at a corner that points inwards, or where the corner of a taken-away box is.
/// Of a hole or of the parts of a union, all sides or none can be named.
///
/// ```
/// use dualtape::{Domain, Elemental::Tanh, Equation, Parameters, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 16, 1], Tanh)?;
/// let square = Domain::cuboid(&[(-1.0, 1.0), (-1.0, 1.0)])?;
/// let holed = square.difference(&Domain::ball(&[0.0, 0.0], 0.5)?)?;
/// let sides = ["left", "right", "bottom", "top", "surface"];
/// let poisson = Equation::record("poisson", &params, ["x", "y"], |[x, y]| {
///     let [n] = net.at(&[x, y]);
///     let u = ansatz::distance(&holed, &sides, &[x, y]) * n;
///     u.laplacian(&[x, y]) + 1.0
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
///
/// Mistakes (a side that is not there, another number of coordinates, a polygon that is not
/// convex) are errors of the recording.
pub fn distance(domain: &Domain, sides: &[&str], at: &[Field]) -> Field {
    if at.len() != domain.dimension() {
        let what = "coordinates of a distance";
        return record::note(Error::length(what, at.len(), domain.dimension()));
    }
    let known = domain.sides();
    if let Some(missing) = sides.iter().find(|side| !known.iter().any(|k| k == *side)) {
        return record::note(Error::UnknownName {
            what: "side of the domain".to_owned(),
            name: (*missing).to_owned(),
            known: known.join(", "),
        });
    }
    match product_of_sides(domain.shape(), sides, at) {
        Ok(Some(field)) => field,
        Ok(None) => record::note(Error::Empty {
            what: "the list of sides of a distance".to_owned(),
        }),
        Err(error) => record::note(error),
    }
}

/// 0 on the chosen sides, positive inside; nothing if no side of the shape is chosen.
fn product_of_sides(shape: &Shape, sides: &[&str], at: &[Field]) -> Result<Option<Field>, Error> {
    let chosen = |name: &String| sides.contains(&name.as_str());
    let both = |a: Option<Field>, b: Option<Field>| match (a, b) {
        (Some(a), Some(b)) => Some(a * b),
        (one, other) => one.or(other),
    };
    Ok(match shape {
        Shape::Cuboid { bounds, names } => {
            let axes = bounds
                .iter()
                .zip(names)
                .zip(at)
                .map(
                    |((&(a, b), names), &x)| match (chosen(&names[0]), chosen(&names[1])) {
                        (true, true) => Some((x - a) * (b - x) / (b - a)),
                        (true, false) => Some(x - a),
                        (false, true) => Some(b - x),
                        (false, false) => None,
                    },
                );
            axes.fold(None, both)
        }
        Shape::Ball { name, .. } => {
            if chosen(name) {
                Some(signed(shape, at)?)
            } else {
                None
            }
        }
        Shape::Polygon { names, .. } => {
            let edges = half_planes(shape, at)?;
            let own = edges
                .into_iter()
                .zip(names)
                .filter(|(_, name)| chosen(name));
            own.map(|(edge, _)| Some(edge)).fold(None, both)
        }
        Shape::Sphere { .. } => None,
        Shape::Intersection(a, b) => both(
            product_of_sides(a, sides, at)?,
            product_of_sides(b, sides, at)?,
        ),
        Shape::Product(a, b) => {
            let (first, second) = at.split_at(a.dimension());
            both(
                product_of_sides(a, sides, first)?,
                product_of_sides(b, sides, second)?,
            )
        }
        Shape::Difference(a, b) => {
            let hole = if whole(b, sides)? {
                Some(-signed(b, at)?)
            } else {
                None
            };
            both(product_of_sides(a, sides, at)?, hole)
        }
        Shape::Union(..) => {
            if whole(shape, sides)? {
                Some(signed(shape, at)?)
            } else {
                None
            }
        }
    })
}

/// Whether all sides are chosen, or none; some of them cannot be.
fn whole(shape: &Shape, sides: &[&str]) -> Result<bool, Error> {
    let names: Vec<String> = shape.sides().into_iter().map(|side| side.name).collect();
    let chosen = names
        .iter()
        .filter(|name| sides.contains(&name.as_str()))
        .count();
    if chosen != 0 && chosen != names.len() {
        return Err(Error::OutOfRange {
            what: "the choice of sides of a hole or union".to_owned(),
            given: format!("{chosen} of {}", names.join(", ")),
            expected: "name all of them or none".to_owned(),
        });
    }
    Ok(chosen > 0)
}

/// Positive inside, 0 on the boundary, negative outside.
fn signed(shape: &Shape, at: &[Field]) -> Result<Field, Error> {
    Ok(match shape {
        Shape::Cuboid { bounds, .. } => {
            let mut axes = bounds
                .iter()
                .zip(at)
                .map(|(&(a, b), &x)| (x - a) * (b - x) / (b - a));
            let first = axes.next().unwrap_or(Field::from(0.0));
            axes.fold(first, and)
        }
        Shape::Ball { center, radius, .. } => {
            let square: Field = at
                .iter()
                .zip(center)
                .map(|(&x, &c)| (x - c) * (x - c))
                .sum();
            (radius * radius - square) / (2.0 * radius)
        }
        Shape::Polygon { .. } => {
            let mut edges = half_planes(shape, at)?.into_iter();
            let first = edges.next().unwrap_or(Field::from(0.0));
            edges.fold(first, and)
        }
        Shape::Sphere { .. } => {
            return Err(Error::OutOfRange {
                what: "the domain of a distance".to_owned(),
                given: "a surface".to_owned(),
                expected: "it has no sides".to_owned(),
            });
        }
        Shape::Union(a, b) => -and(-signed(a, at)?, -signed(b, at)?),
        Shape::Intersection(a, b) => and(signed(a, at)?, signed(b, at)?),
        Shape::Difference(a, b) => and(signed(a, at)?, -signed(b, at)?),
        Shape::Product(a, b) => {
            let (first, second) = at.split_at(a.dimension());
            and(signed(a, first)?, signed(b, second)?)
        }
    })
}

/// Rvachev's conjunction: positive where both are.
fn and(a: Field, b: Field) -> Field {
    a + b - (a * a + b * b).sqrt()
}

/// The distances to the lines of a convex polygon's edges, positive inside.
fn half_planes(shape: &Shape, at: &[Field]) -> Result<Vec<Field>, Error> {
    let (Shape::Polygon { vertices, .. }, &[x, y]) = (shape, at) else {
        return Ok(Vec::new());
    };
    let count = vertices.len();
    let edge = |i: usize| (vertices[i % count], vertices[(i + 1) % count]);
    let along = |i: usize| {
        let (a, b) = edge(i);
        let length = (b[0] - a[0]).hypot(b[1] - a[1]);
        [(b[0] - a[0]) / length, (b[1] - a[1]) / length]
    };
    for i in 0..count {
        let (a, b) = (along(i), along(i + 1));
        if a[0] * b[1] - a[1] * b[0] < 0.0 {
            return Err(Error::OutOfRange {
                what: "the polygon of a distance".to_owned(),
                given: format!("not convex at vertex {}", (i + 1) % count),
                expected: "combine convex ones by union or difference".to_owned(),
            });
        }
    }
    let line = |i: usize| {
        let (start, along) = (edge(i).0, along(i));
        along[0] * (y - start[1]) - along[1] * (x - start[0])
    };
    Ok((0..count).map(line).collect())
}

/// Initial values built in: Σ_k t^k/k! u_k + t^m n, with the m given `derivatives` u_0, u_1,
/// … in time at t = 0, and any `rest` n.
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 16, 1], Tanh)?;
/// let wave = Equation::record("wave", &params, ["t", "x"], |[t, x]| {
///     let [n] = net.at(&[t, x]);
///     // u(0, x) = sin x, u_t(0, x) = 0
///     let u = ansatz::initial(t, &[x.sin(), 0.0.into()], n);
///     u.d(t).d(t) - 4.0 * u.d(x).d(x)
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn initial(time: Field, derivatives: &[Field], rest: Field) -> Field {
    let mut sum = Field::from(0.0);
    let mut power = Field::from(1.0);
    for (k, &derivative) in derivatives.iter().enumerate() {
        sum += power * derivative;
        power = power * time / (k + 1) as f64;
    }
    let factorial: f64 = (1..=derivatives.len()).map(|k| k as f64).product();
    sum + power * factorial * rest
}

/// The line from a value at one place to a value at another: what Dirichlet data at the two
/// ends of an interval are lifted by.
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[1, 16, 1], Tanh)?;
/// let rod = Equation::record("rod", &params, ["x"], |[x]| {
///     let [n] = net.at(&[x]);
///     // u(0) = 1, u(2) = 5
///     let u = ansatz::between(x, (0.0, 1.0.into()), (2.0, 5.0.into())) + x * (2.0 - x) * n;
///     u.d(x).d(x) - u
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn between(x: Field, (a, at_a): (f64, Field), (b, at_b): (f64, Field)) -> Field {
    at_a + (at_b - at_a) * ((x - a) / (b - a))
}

/// A periodic embedding: cos(2πkx/P) and sin(2πkx/P) for k = 1, …, `harmonics`. A network of
/// these is periodic in x with all its derivatives (Dong and Ni 2021).
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[5, 16, 1], Tanh)?; // t, and two harmonics
/// let kdv = Equation::record("kdv", &params, ["t", "x"], |[t, x]| {
///     let [u] = net.at(&[&[t][..], &ansatz::periodic(x, 2.0, 2)].concat());
///     u.d(t) + u * u.d(x) + 0.022_f64.powi(2) * u.d(x).d(x).d(x)
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn periodic(x: Field, period: f64, harmonics: usize) -> Vec<Field> {
    let waves = (1..=harmonics).flat_map(|k| {
        let angle = TAU * k as f64 / period * x;
        [angle.cos(), angle.sin()]
    });
    waves.collect()
}

/// Fourier features: cos(2π b·x) and sin(2π b·x) for each frequency vector b (Tancik et al.
/// 2020); [`random_frequencies`] makes some.
pub fn fourier(inputs: &[Field], frequencies: &[Vec<f64>]) -> Vec<Field> {
    let mut waves = Vec::with_capacity(2 * frequencies.len());
    for frequency in frequencies {
        if frequency.len() != inputs.len() {
            let what = "numbers of a frequency";
            waves.push(record::note(Error::length(
                what,
                frequency.len(),
                inputs.len(),
            )));
            continue;
        }
        let angle: Field = inputs
            .iter()
            .zip(frequency)
            .map(|(&x, &b)| TAU * b * x)
            .sum();
        waves.extend([angle.cos(), angle.sin()]);
    }
    waves
}

/// Frequency vectors of independent normal numbers, for [`fourier`].
///
/// ```
/// use dualtape::{Elemental::Tanh, Equation, Parameters, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[64, 32, 1], Tanh)?;
/// let frequencies = ansatz::random_frequencies(32, 2, 1.0, 7);
/// let poisson = Equation::record("poisson", &params, ["x", "y"], |[x, y]| {
///     let [u] = net.at(&ansatz::fourier(&[x, y], &frequencies));
///     u.laplacian(&[x, y]) + 1.0
/// })?;
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn random_frequencies(count: usize, inputs: usize, deviation: f64, seed: u64) -> Vec<Vec<f64>> {
    let random = ChaCha8Rng::seed_from_u64(seed);
    let normal: Vec<f64> = StandardNormal
        .sample_iter(random)
        .take(count * inputs)
        .map(|x: f64| deviation * x)
        .collect();
    normal.chunks(inputs.max(1)).map(<[f64]>::to_vec).collect()
}

/// The jumps of a function and of its derivatives up to `order` over one period: residuals
/// of periodic boundary conditions, at points on one of the two sides.
///
/// ```
/// use dualtape::{Condition, Elemental::Tanh, Equation, Parameters, Points, ansatz};
///
/// let mut params = Parameters::new();
/// let net = params.mlp("u", &[2, 16, 1], Tanh)?;
/// let walls = Equation::record("walls", &params, ["t", "x"], |[t, x]| {
///     ansatz::jumps(x, 2.0, 1, |x| net.at::<1>(&[t, x])[0])
/// })?;
/// assert_eq!(walls.outputs(), 2); // u and u_x
/// let left = Points::grid(&[(0.0, 1.0, 50), (-1.0, -1.0, 1)])?;
/// let condition = Condition::new(&walls, left);
/// # Ok::<(), dualtape::Error>(())
/// ```
pub fn jumps(x: Field, period: f64, order: usize, u: impl Fn(Field) -> Field) -> Vec<Field> {
    let (mut here, mut there) = (u(x), u(x + period));
    let mut jumps = vec![there - here];
    for _ in 0..order {
        (here, there) = (here.d(x), there.d(x));
        jumps.push(there - here);
    }
    jumps
}
