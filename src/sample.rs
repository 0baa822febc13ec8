//! Random points in boxes, from a seed.
//! Knows nothing of equations; the points are for whoever asks.

use crate::error::{Error, check_finite};
use crate::problem::Points;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Draws points in a box. Every draw goes on where the last one ended; the same seed gives
/// the same draws on every machine.
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
#[derive(Debug, Clone)]
pub struct Sampler {
    bounds: Vec<(f64, f64)>,
    random: ChaCha8Rng,
}

/// Where a sampler stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    seed: [u8; 32],
    stream: u64,
    position: u128,
}

impl Sampler {
    /// A sampler of a box, given by the two ends of each axis. An axis of equal ends is
    /// allowed: a face of a box is a box.
    ///
    /// # Errors
    /// No axis, ends that are not finite or in the wrong order.
    pub fn new(bounds: &[(f64, f64)], seed: u64) -> Result<Self, Error> {
        if bounds.is_empty() {
            return Err(Error::Empty {
                what: "the list of axes".to_owned(),
            });
        }
        for (axis, &(from, to)) in bounds.iter().enumerate() {
            check_finite(&format!("the ends of axis {axis}"), &[from, to])?;
            if from > to || !(to - from).is_finite() {
                return Err(Error::OutOfRange {
                    what: format!("axis {axis}"),
                    given: format!("from {from} to {to}"),
                    expected: "give the lower end first, and a length that is finite".to_owned(),
                });
            }
        }
        Ok(Self {
            bounds: bounds.to_vec(),
            random: ChaCha8Rng::seed_from_u64(seed),
        })
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
        self.random.set_stream(stream);
        self.random.set_word_pos(0);
        self
    }

    /// Where it stands.
    pub fn state(&self) -> SamplerState {
        SamplerState {
            seed: self.random.get_seed(),
            stream: self.random.get_stream(),
            position: self.random.get_word_pos(),
        }
    }

    /// Goes on from where a sampler stood; the box stays its own.
    pub fn restore(&mut self, state: &SamplerState) {
        self.random = ChaCha8Rng::from_seed(state.seed);
        self.random.set_stream(state.stream);
        self.random.set_word_pos(state.position);
    }

    /// The ends of its axes.
    pub fn bounds(&self) -> &[(f64, f64)] {
        &self.bounds
    }

    /// Independent, uniformly distributed points.
    ///
    /// # Errors
    /// No points asked for.
    pub fn uniform(&mut self, count: usize) -> Result<Points, Error> {
        self.draw(|random, _| (0..count).map(|_| share(random)).collect())
    }

    /// A Latin hypercube: each axis is cut into `count` equal slices, and each slice of each
    /// axis holds one point. More even than [`uniform`](Self::uniform) in every single
    /// coordinate.
    ///
    /// # Errors
    /// No points asked for.
    pub fn latin_hypercube(&mut self, count: usize) -> Result<Points, Error> {
        self.draw(|random, axis| {
            let mut slices: Vec<f64> = (0..count).map(|slice| slice as f64).collect();
            // The first axis may stay in order: only how axes are paired matters.
            if axis > 0 {
                slices.shuffle(random);
            }
            for slice in &mut slices {
                *slice = (*slice + share(random)) / count as f64;
            }
            slices
        })
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
        let mut lists = vec![Vec::with_capacity(count); self.bounds.len()];
        let mut point = vec![0.0; self.bounds.len()];
        let mut tries = 0_usize;
        while lists[0].len() < count {
            tries += 1;
            if tries > count.saturating_mul(1000) {
                let expected = "lower the bound, or draw where the density is larger".to_owned();
                return Err(out("the share of points kept", 0.001, expected));
            }
            for (x, &(from, to)) in point.iter_mut().zip(&self.bounds) {
                *x = from + (to - from) * share(&mut self.random);
            }
            let value = density(&point);
            if !(0.0..=largest).contains(&value) {
                let expected = format!("give a number from 0 to the bound {largest}");
                return Err(out("the density at a point", value, expected));
            }
            if share(&mut self.random) * largest < value {
                for (list, &x) in lists.iter_mut().zip(&point) {
                    list.push(x);
                }
            }
        }
        Points::new(lists)
    }

    fn draw(
        &mut self,
        mut shares: impl FnMut(&mut ChaCha8Rng, usize) -> Vec<f64>,
    ) -> Result<Points, Error> {
        let lists = self.bounds.iter().enumerate().map(|(axis, &(from, to))| {
            let mut list = shares(&mut self.random, axis);
            for x in &mut list {
                *x = (from + (to - from) * *x).clamp(from, to);
            }
            list
        });
        Points::new(lists.collect())
    }
}

/// A number in [0, 1).
fn share(random: &mut ChaCha8Rng) -> f64 {
    random.random()
}
