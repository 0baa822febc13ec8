//! Samplers: points in domains and on their sides, on grids, at random, from sequences of
//! low discrepancy, or where a residual is large. Everything follows from a seed.
//! Knows nothing of equations.

use crate::domain::Region;
use crate::error::{Error, check_finite};
use crate::points::{Points, chebyshev_share, check_room};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

mod sequence;

/// How points are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Design {
    /// Equal distances, ends included. The largest grid of about as many points as asked
    /// for, of which those outside of the domain are left out; the same at each draw.
    Grid,
    /// Chebyshev's points, dense towards the ends; counted as for a grid.
    Chebyshev,
    /// Independent, uniformly distributed points.
    Uniform,
    /// Each axis is cut into as many equal slices as there are points, and each slice of
    /// each axis holds one point (McKay, Beckman, Conover 1979).
    LatinHypercube,
    /// Sobol's sequence with the direction numbers of Joe and Kuo (2008), Owen-scrambled by
    /// hashing (Burley 2020); a new scrambling every 65,536 points. At most 256 coordinates.
    /// Powers of two are good numbers of points.
    Sobol,
    /// Halton's sequence with random permutations of digits (Owen 2017). At most 1,000
    /// coordinates.
    Halton,
}

/// Draws points in a region. Every draw goes on where the last one ended; the same seed gives
/// the same draws on every machine.
///
/// ```
/// use dualtape::{Design, Domain, Sampler};
///
/// let disc = Domain::ball(&[0.0, 0.0], 1.0)?;
/// let mut inside = Sampler::over(&disc.interior(), 7);
/// let first = inside.draw(Design::Sobol, 128)?;
/// assert_eq!((first.len(), first.dimension()), (128, 2));
/// assert_ne!(first, inside.draw(Design::Sobol, 128)?);
///
/// // On a side, outward normals come along.
/// let rim = Sampler::over(&disc.side("surface")?, 7).draw(Design::Grid, 8)?;
/// assert_eq!(rim.column_names(), ["nx", "ny"]);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    region: Region,
    bounds: Vec<(f64, f64)>,
    random: ChaCha8Rng,
    state: SamplerState,
}

/// Where a sampler stands: all that a checkpoint needs to let it go on.
///
/// ```
/// use dualtape::{Design, Sampler};
///
/// let mut one = Sampler::new(&[(0.0, 1.0)], 7)?;
/// one.draw(Design::LatinHypercube, 10)?;
/// let state = one.state();
/// let mut two = Sampler::new(&[(0.0, 1.0)], 0)?;
/// two.restore(&state);
/// assert_eq!(one.draw(Design::Halton, 10)?, two.draw(Design::Halton, 10)?);
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    seed: u64,
    stream: u64,
    /// Words taken from the random stream.
    position: u64,
    /// Points taken from a sequence.
    index: u64,
}

impl Sampler {
    /// A sampler of a box, given by the two ends of each axis. An axis of equal ends is
    /// allowed: a face of a box is a box.
    ///
    /// ```
    /// use dualtape::Sampler;
    ///
    /// let mut inside = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], 7)?;
    /// let first = inside.latin_hypercube(100)?;
    /// assert_eq!((first.len(), first.dimension()), (100, 2));
    /// assert_ne!(first, inside.latin_hypercube(100)?);
    ///
    /// let mut again = Sampler::new(&[(0.0, 1.0), (-1.0, 1.0)], 7)?;
    /// assert_eq!(first, again.latin_hypercube(100)?);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No axis, ends that are not finite or in the wrong order.
    pub fn new(bounds: &[(f64, f64)], seed: u64) -> Result<Self, Error> {
        Ok(Self::over(&Region::cuboid(bounds)?, seed))
    }

    /// A sampler of a region: a domain's inside, or some of its sides.
    pub fn over(region: &Region, seed: u64) -> Self {
        Self {
            region: region.clone(),
            bounds: region.domain().bounds(),
            random: ChaCha8Rng::seed_from_u64(seed),
            state: SamplerState {
                seed,
                stream: 0,
                position: 0,
                index: 0,
            },
        }
    }

    /// Another stream of the same seed, from its beginning: samplers of different streams
    /// draw independently.
    ///
    /// ```
    /// use dualtape::Sampler;
    ///
    /// let mut left = Sampler::new(&[(0.0, 1.0)], 7)?;
    /// let mut right = left.clone().stream(1);
    /// assert_ne!(left.uniform(5)?, right.uniform(5)?);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    #[must_use]
    pub fn stream(mut self, stream: u64) -> Self {
        self.restore(&SamplerState {
            seed: self.state.seed,
            stream,
            position: 0,
            index: 0,
        });
        self
    }

    /// Where it stands.
    pub fn state(&self) -> SamplerState {
        SamplerState {
            position: self.random.get_word_pos() as u64,
            ..self.state
        }
    }

    /// Goes on from where a sampler stood; the region stays its own.
    pub fn restore(&mut self, state: &SamplerState) {
        self.state = *state;
        self.random = ChaCha8Rng::seed_from_u64(state.seed);
        self.random.set_stream(state.stream);
        self.random.set_word_pos(state.position.into());
    }

    /// The ends of the axes of the box that it draws in, or of a box around its domain.
    pub fn bounds(&self) -> &[(f64, f64)] {
        &self.bounds
    }

    /// The next points. On single points (the sides of an interval) each of them comes once,
    /// whatever number was asked for.
    ///
    /// # Errors
    /// No points asked for; more coordinates than the sequence has; a domain that fills less
    /// than a thousandth of what is drawn in.
    pub fn draw(&mut self, design: Design, count: usize) -> Result<Points, Error> {
        if count == 0 {
            return Err(Error::Empty {
                what: "the set of points".to_owned(),
            });
        }
        check_room(Some(count), self.bounds.len() + 1)?;
        let rows = match design {
            _ if self.region.cube() == 0 => (0..self.region.weights().len())
                .filter_map(|piece| Some((piece, self.region.place(piece, &[])?)))
                .collect(),
            Design::Grid | Design::Chebyshev => self.tensor(design, count),
            _ => self.scattered(design, count)?,
        };
        if rows.is_empty() {
            return Err(few(0, "all"));
        }
        self.region.points(&rows)
    }

    /// [`Design::Uniform`].
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn uniform(&mut self, count: usize) -> Result<Points, Error> {
        self.draw(Design::Uniform, count)
    }

    /// [`Design::LatinHypercube`].
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn latin_hypercube(&mut self, count: usize) -> Result<Points, Error> {
        self.draw(Design::LatinHypercube, count)
    }

    /// Points whose density is proportional to `density`, by rejection: it is asked at
    /// uniform points and must lie between 0 and `largest`.
    ///
    /// ```
    /// use dualtape::Sampler;
    ///
    /// // Half of the points within 0.1 of the middle.
    /// let mut sampler = Sampler::new(&[(-1.0, 1.0)], 7)?;
    /// let near = |x: &[f64]| if x[0].abs() < 0.1 { 9.0 } else { 1.0 };
    /// let points = sampler.by_density(1000, 9.0, near)?;
    /// let close = points.coordinate(0).iter().filter(|x| x.abs() < 0.1).count();
    /// assert!((400..600).contains(&close));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No points asked for; a density that is negative, greater than `largest` or not a
    /// number; one so small that a thousand tries a point do not suffice.
    pub fn by_density(
        &mut self,
        count: usize,
        largest: f64,
        mut density: impl FnMut(&[f64]) -> f64,
    ) -> Result<Points, Error> {
        let out = |what: &str, given: f64, expected: String| Error::OutOfRange {
            what: what.to_owned(),
            given: given.to_string(),
            expected,
        };
        if !(largest.is_finite() && largest > 0.0) {
            let expected = "give a positive and finite bound".to_owned();
            return Err(out("the largest density", largest, expected));
        }
        check_room(Some(count), self.bounds.len() + 1)?;
        let mut rows: Vec<(usize, Vec<f64>)> = Vec::with_capacity(count);
        let mut tries = 0_usize;
        while rows.len() < count {
            let missing = count - rows.len();
            tries = tries.saturating_add(missing);
            if tries > count.saturating_mul(1000) {
                let expected = "lower the bound, or draw where the density is larger".to_owned();
                return Err(out("the share of points kept", 0.001, expected));
            }
            for row in self.scattered(Design::Uniform, missing)? {
                let value = density(&row.1);
                if !(0.0..=largest).contains(&value) {
                    let expected = format!("give a number from 0 to the bound {largest}");
                    return Err(out("the density at a point", value, expected));
                }
                if share(&mut self.random) * largest < value {
                    rows.push(row);
                }
            }
        }
        self.region.points(&rows)
    }

    /// Points where a residual is large (RAD: Wu, Zhu, Tan, Kartha and Lu 2023). Of `pool`
    /// uniform points, `count` are taken without repetition, each with a chance that is
    /// proportional to |r|^`power`/mean(|r|^`power`) + `floor`; 1 and 1 are common, a larger
    /// power and a smaller floor draw them closer together. `residuals` gives one list for
    /// each output, one number a point, as [`values`](crate::values) does.
    ///
    /// ```
    /// use dualtape::Sampler;
    ///
    /// let mut sampler = Sampler::new(&[(-1.0, 1.0)], 7)?;
    /// let steep = |points: &dualtape::Points| {
    ///     Ok(vec![points.coordinate(0).iter().map(|x| (-(x / 0.1).powi(2)).exp()).collect()])
    /// };
    /// let points = sampler.by_residual(200, 2000, 1.0, 0.0, steep)?;
    /// let close = points.coordinate(0).iter().filter(|x| x.abs() < 0.2).count();
    /// assert!(close > 180, "{close}");
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No points asked for, a pool that is smaller than `count`, a power or floor that is
    /// negative or not finite; residuals of another number or not finite.
    pub fn by_residual(
        &mut self,
        count: usize,
        pool: usize,
        power: f64,
        floor: f64,
        residuals: impl FnOnce(&Points) -> Result<Vec<Vec<f64>>, Error>,
    ) -> Result<Points, Error> {
        for (what, given) in [("the power", power), ("the floor", floor)] {
            if !(given.is_finite() && given >= 0.0) {
                return Err(Error::OutOfRange {
                    what: format!("{what} of a density by residual"),
                    given: given.to_string(),
                    expected: "it must not be negative".to_owned(),
                });
            }
        }
        let (points, sizes) = self.pool(count, pool, residuals)?;
        let powers: Vec<f64> = sizes.iter().map(|size| size.powf(power)).collect();
        let mean = powers.iter().sum::<f64>() / powers.len() as f64;
        // Efraimidis and Spirakis (2006): the greatest of ln(u)/weight.
        let keys: Vec<f64> = powers
            .iter()
            .map(|p| {
                let weight = if mean > 0.0 { p / mean + floor } else { 1.0 };
                (1.0 - share(&mut self.random)).ln() / weight
            })
            .collect();
        points.select(&greatest(&keys, count))
    }

    /// The points of the largest residuals among `pool` uniform ones, to be added to those in
    /// use by [`Points::join`] (RAR: Lu, Meng, Mao and Karniadakis 2021).
    ///
    /// ```
    /// use dualtape::Sampler;
    ///
    /// let mut sampler = Sampler::new(&[(0.0, 1.0)], 7)?;
    /// let grows = |points: &dualtape::Points| Ok(vec![points.coordinate(0).to_vec()]);
    /// let points = sampler.largest(5, 1000, grows)?;
    /// assert!(points.coordinate(0).iter().all(|x| *x > 0.98));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No points asked for, a pool that is smaller than `count`; residuals of another number
    /// or not finite.
    pub fn largest(
        &mut self,
        count: usize,
        pool: usize,
        residuals: impl FnOnce(&Points) -> Result<Vec<Vec<f64>>, Error>,
    ) -> Result<Points, Error> {
        let (points, sizes) = self.pool(count, pool, residuals)?;
        points.select(&greatest(&sizes, count))
    }

    /// Uniform points with the sizes of their residuals, relative to the largest.
    fn pool(
        &mut self,
        count: usize,
        pool: usize,
        residuals: impl FnOnce(&Points) -> Result<Vec<Vec<f64>>, Error>,
    ) -> Result<(Points, Vec<f64>), Error> {
        if count == 0 || pool < count {
            return Err(Error::OutOfRange {
                what: "the number of points to be taken from a pool".to_owned(),
                given: format!("{count} of {pool}"),
                expected: "take at least one, and no more than the pool has".to_owned(),
            });
        }
        let points = self.draw(Design::Uniform, pool)?;
        let residuals = residuals(&points)?;
        if residuals.is_empty() {
            return Err(Error::Empty {
                what: "the list of residuals".to_owned(),
            });
        }
        let mut sizes = vec![0.0_f64; points.len()];
        for list in &residuals {
            if list.len() != sizes.len() {
                return Err(Error::length(
                    "residuals at a pool",
                    list.len(),
                    sizes.len(),
                ));
            }
            check_finite("the residuals at a pool", list)?;
            for (size, r) in sizes.iter_mut().zip(list) {
                *size = size.hypot(*r);
            }
        }
        let most = sizes.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        sizes.iter_mut().for_each(|size| *size /= most);
        Ok((points, sizes))
    }

    /// Points by piece of the region, from numbers of the unit cube. With several pieces the
    /// first number chooses one, so that their counts follow their sizes as evenly as the
    /// design is.
    fn scattered(&mut self, design: Design, count: usize) -> Result<Vec<(usize, Vec<f64>)>, Error> {
        let ends = running_shares(&self.region.weights());
        let choosing = usize::from(ends.len() > 1);
        let width = self.region.cube() + choosing;
        let mut rows = Vec::with_capacity(count);
        let mut tries = 0_usize;
        while rows.len() < count {
            let missing = count - rows.len();
            tries = tries.saturating_add(missing);
            if self.region.rejects() && tries > 1000 * (rows.len() + 10).max(count) {
                return Err(few(rows.len(), tries));
            }
            let cube = self.cube(design, missing, width)?;
            for n in 0..missing {
                let u = &cube[n * width..][..width];
                let piece = match u.first() {
                    Some(first) if choosing == 1 => {
                        let piece = ends.partition_point(|end| end <= first);
                        piece.min(ends.len() - 1)
                    }
                    _ => 0,
                };
                if let Some(point) = self.region.place(piece, &u[choosing..]) {
                    rows.push((piece, point));
                }
            }
        }
        Ok(rows)
    }

    /// The next points of the unit cube.
    fn cube(&mut self, design: Design, count: usize, width: usize) -> Result<Vec<f64>, Error> {
        let index = self.state.index;
        match design {
            Design::Sobol | Design::Halton => {
                self.state.index += count as u64;
                // Permutations come from a stream that no draw uses.
                let mut random = ChaCha8Rng::seed_from_u64(self.state.seed);
                random.set_stream(!self.state.stream);
                if design == Design::Sobol {
                    sequence::sobol(&mut random, index, count, width)
                } else {
                    sequence::halton(&mut random, index, count, width)
                }
            }
            Design::LatinHypercube => {
                let mut cube = vec![0.0; count * width];
                for axis in 0..width {
                    let mut slices: Vec<f64> = (0..count).map(|slice| slice as f64).collect();
                    // The first axis may stay in order: only how axes are paired matters.
                    if axis > 0 {
                        slices.shuffle(&mut self.random);
                    }
                    for (n, slice) in slices.into_iter().enumerate() {
                        cube[n * width + axis] = (slice + share(&mut self.random)) / count as f64;
                    }
                }
                Ok(cube)
            }
            _ => Ok((0..count * width)
                .map(|_| share(&mut self.random))
                .collect()),
        }
    }

    /// All combinations of the axes' points on each piece.
    fn tensor(&self, design: Design, count: usize) -> Vec<(usize, Vec<f64>)> {
        let (region, closed) = self.region.for_grids();
        let weights = region.weights();
        let total: f64 = weights.iter().sum();
        let mut rows = Vec::new();
        let mut asked = count as f64;
        // Where points fall outside, once more with as many as replace them.
        for _ in 0..2 {
            let mut made = 0_usize;
            rows.clear();
            for (piece, (weight, closed)) in weights.iter().zip(&closed).enumerate() {
                let counts = grid_counts(asked * weight / total, closed.len());
                let product: usize = counts.iter().product();
                made += product;
                for place in 0..product {
                    let mut rest = place;
                    let mut u = vec![0.0; closed.len()];
                    for axis in (0..closed.len()).rev() {
                        u[axis] = node(design, closed[axis], rest % counts[axis], counts[axis]);
                        rest /= counts[axis];
                    }
                    if let Some(point) = region.place(piece, &u) {
                        rows.push((piece, point));
                    }
                }
            }
            if !region.rejects() || rows.len() >= count {
                break;
            }
            asked = count as f64 * (made as f64 / rows.len().max(1) as f64).min(1000.0);
        }
        rows
    }
}

/// Too few of the points that were drawn belong to the domain or side.
fn few(kept: usize, drawn: impl std::fmt::Display) -> Error {
    Error::OutOfRange {
        what: "the share of the drawn points that belong to the domain".to_owned(),
        given: format!("{kept} of {drawn}"),
        expected: "combine shapes that fit each other more closely, or draw on a side of which \
                   something is left"
            .to_owned(),
    }
}

/// A number in [0, 1).
fn share(random: &mut ChaCha8Rng) -> f64 {
    random.random()
}

/// Up to which number of [0, 1) each piece goes.
fn running_shares(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let running = |weight: &f64| {
        sum += weight;
        sum / total
    };
    weights.iter().map(running).collect()
}

/// The places of the greatest keys, in ascending order.
fn greatest(keys: &[f64], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..keys.len()).collect();
    places.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    places.truncate(count);
    places.sort_unstable();
    places
}

/// Points an axis, as equal as can be, whose product is at most `total` but at least 1.
fn grid_counts(total: f64, axes: usize) -> Vec<usize> {
    let least = (total.powf(1.0 / axes.max(1) as f64) + 1e-9)
        .floor()
        .max(1.0) as usize;
    let mut counts = vec![least; axes];
    for axis in 0..axes {
        counts[axis] += 1;
        let product: f64 = counts.iter().map(|&count| count as f64).product();
        if product > total {
            counts[axis] -= 1;
        }
    }
    counts
}

/// A node of a grid, from 0 to 1; where the ends may not be taken, between them.
fn node(design: Design, closed: bool, place: usize, count: usize) -> f64 {
    let middle = (place as f64 + 0.5) / count as f64;
    match (design, closed) {
        (Design::Chebyshev, true) => chebyshev_share(place, count),
        (Design::Chebyshev, false) => 0.5 - 0.5 * (std::f64::consts::PI * middle).cos(),
        (_, true) if count == 1 => 0.5,
        (_, true) => place as f64 / (count - 1) as f64,
        (_, false) => middle,
    }
}
