//! The random numbers that all peers share.

/// A stream of them: splitmix64.
pub struct Stream(pub u64);

impl Stream {
    /// The next number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Parameters of a network: layer by layer Glorot's uniform weights, row by row, then small
/// biases.
pub fn network(widths: &[usize]) -> Vec<f64> {
    let mut random = Stream(1);
    let mut values = Vec::new();
    for w in widths.windows(2) {
        let bound = (6.0 / (w[0] + w[1]) as f64).sqrt();
        values.extend((0..w[0] * w[1]).map(|_| (2.0 * random.uniform() - 1.0) * bound));
        values.extend((0..w[1]).map(|_| (2.0 * random.uniform() - 1.0) * 0.1));
    }
    values
}

/// Points in the unit cube, one after the other.
pub fn points(inputs: usize, count: usize) -> Vec<f64> {
    let mut random = Stream(2);
    (0..count * inputs).map(|_| random.uniform()).collect()
}
