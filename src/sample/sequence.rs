//! Sequences of low discrepancy, scrambled: pieces of them, row by row.

use crate::error::Error;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use sobol_burley::NUM_DIMENSIONS;
use sobol_burley::parts::{owen_scramble_rev, sobol_rev};

/// Points of Sobol's sequence with one scrambling.
const RUN: u64 = 1 << 16;
/// Coordinates of Halton's sequence.
const HALTON: usize = 1000;

fn too_many(name: &str, width: usize, limit: usize) -> Error {
    Error::OutOfRange {
        what: format!("the number of coordinates for {name}'s sequence"),
        given: width.to_string(),
        expected: format!("it has {limit}; take another design, such as a Latin hypercube"),
    }
}

/// `count` points from `index` on. Each run of 65,536 points is scrambled anew, each aligned
/// block of a power of two within it is a net.
pub(super) fn sobol(
    random: &mut ChaCha8Rng,
    index: u64,
    count: usize,
    width: usize,
) -> Result<Vec<f64>, Error> {
    if width > NUM_DIMENSIONS as usize {
        return Err(too_many("Sobol", width, NUM_DIMENSIONS as usize));
    }
    let mut points = Vec::with_capacity(count * width);
    let mut scrambles = Vec::new();
    for place in index..index + count as u64 {
        if scrambles.is_empty() || place % RUN == 0 {
            random.set_word_pos(u128::from(place / RUN) * u128::from(NUM_DIMENSIONS));
            scrambles = (0..width).map(|_| random.random::<u32>()).collect();
        }
        let reversed = ((place % RUN) as u32).reverse_bits();
        for (axis, &scramble) in scrambles.iter().enumerate() {
            let bits = owen_scramble_rev(sobol_rev(reversed, axis as u32), scramble);
            // The middle of its cell: never on an end.
            points.push((f64::from(bits.reverse_bits()) + 0.5) / 2_f64.powi(32));
        }
    }
    Ok(points)
}

/// `count` points from `index` on: the digits of the index in the base of each axis, each
/// sent through a permutation of its own, read backwards behind the point.
pub(super) fn halton(
    random: &mut ChaCha8Rng,
    index: u64,
    count: usize,
    width: usize,
) -> Result<Vec<f64>, Error> {
    if width > HALTON {
        return Err(too_many("Halton", width, HALTON));
    }
    let mut points = vec![0.0; count * width];
    for (axis, base) in primes().take(width).enumerate() {
        let digits = (53.0 * 2_f64.ln() / (base as f64).ln()).ceil() as usize;
        let permutations: Vec<Vec<u64>> = (0..digits)
            .map(|_| {
                let mut digits: Vec<u64> = (0..base).collect();
                digits.shuffle(random);
                digits
            })
            .collect();
        for n in 0..count {
            let mut rest = index + n as u64;
            let (mut value, mut unit) = (0.0, 1.0);
            for permutation in &permutations {
                unit /= base as f64;
                value += permutation[(rest % base) as usize] as f64 * unit;
                rest /= base;
            }
            points[n * width + axis] = value.min(1.0 - f64::EPSILON / 2.0);
        }
    }
    Ok(points)
}

fn primes() -> impl Iterator<Item = u64> {
    (2_u64..).filter(|n| (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    /// Unscrambled, both sequences begin as the textbooks say.
    #[test]
    fn the_sequences_themselves() {
        let sobol = |place: u32, axis: u32| {
            f64::from(sobol_rev(place.reverse_bits(), axis).reverse_bits()) / 2_f64.powi(32)
        };
        // Joe and Kuo's first points in three dimensions, in their order by Gray code.
        let want = [
            [0.0, 0.0, 0.0],
            [0.5, 0.5, 0.5],
            [0.75, 0.25, 0.25],
            [0.25, 0.75, 0.75],
            [0.375, 0.375, 0.625],
            [0.875, 0.875, 0.125],
        ];
        for (place, want) in want.into_iter().enumerate() {
            let place = place as u32;
            let got = [0, 1, 2].map(|axis| sobol(place ^ (place >> 1), axis));
            assert_eq!(got, want, "point {place}");
        }
        assert_eq!(primes().take(6).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13]);
        assert_eq!(primes().nth(HALTON - 1), Some(7919));
    }

    /// Any 2^k aligned points of Sobol's sequence have one point in each dyadic interval of
    /// each axis; any b^k aligned points of Halton's one in each b-adic interval.
    #[test]
    fn scrambling_keeps_the_nets() -> Result<(), Error> {
        for seed in 0..5 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            for start in [0, 64, 65_536 - 64, 65_536] {
                let points = sobol(&mut random, start, 64, 7)?;
                for axis in 0..7 {
                    assert_one_each(points.iter().skip(axis).step_by(7), 64);
                }
            }
            for (axis, base, power) in [(0, 2_usize, 6), (1, 3, 4), (2, 5, 3), (3, 7, 2)] {
                let count = base.pow(power);
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let points = halton(&mut random, 3 * count as u64, count, 4)?;
                assert_one_each(points.iter().skip(axis).step_by(4), count);
            }
        }
        Ok(())
    }

    fn assert_one_each<'a>(list: impl Iterator<Item = &'a f64>, cells: usize) {
        let mut cells_hit: Vec<usize> = list.map(|x| (x * cells as f64) as usize).collect();
        cells_hit.sort_unstable();
        assert!(cells_hit.into_iter().eq(0..cells));
    }
}
