//! Products of a small matrix W with long rows: `Z = W A`, `Abar = Wᵀ Zbar`, `Wbar += Zbar Aᵀ`.
//! Knows numbers in rows; nothing of planes, points or tapes.
//!
//! A and Z are never packed: their rows are contiguous, and vectors run along them.

use crate::kernel::simd::Isa;
use crate::real::{Lanes, Real};
use std::ops::Range;

/// Rows of W in a block, at most: 6 rows of 4 vectors (of 2) leave room among 32
/// (16) registers for the operands.
const TALL: usize = 6;
/// Rows of A in a pass, at most, so that a strip of them stays in L1.
const DEEP: usize = 192;
/// Bytes of a row of Zbar that go into one reduction: six such rows stay in L1.
const REACH: usize = 4096;
/// Numbers in a vector, at most.
const LANES: usize = 16;

/// Even parts of `0..n`, none longer than `most`; one empty part if `n` is 0.
fn parts(n: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = n.div_ceil(most).max(1);
    let (length, longer) = (n / count, n % count);
    let start = move |part: usize| part * length + part.min(longer);
    (0..count).map(move |part| start(part)..start(part + 1))
}

/// W (or its transpose) in the order in which [`multiply`] reads it: blocks of rows,
/// and column by column in a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packed<T> {
    numbers: Vec<T>,
    rows: usize,
    depth: usize,
}

impl<T: Real> Packed<T> {
    /// Packs the row-major matrix `w[out][inp]`, or its transpose. Allocates only
    /// when it grows.
    pub(crate) fn pack<W: Real>(&mut self, w: &[W], out: usize, inp: usize, transpose: bool) {
        assert_eq!(w.len(), out * inp);
        let (rows, depth, row_step, step) = if transpose {
            (inp, out, 1, inp)
        } else {
            (out, inp, inp, 1)
        };
        (self.rows, self.depth) = (rows, depth);
        self.numbers.clear();
        self.numbers.reserve(rows * depth);
        for block in parts(rows, TALL) {
            for k in 0..depth {
                let column = block.clone().map(|row| w[row * row_step + k * step]);
                self.numbers.extend(column.map(|x| T::from_f64(x.to_f64())));
            }
        }
    }
}

/// What a product is added to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start<'a, T> {
    /// Nothing: `Z = W A`.
    Zero,
    /// What Z holds: `Z += W A`.
    Held,
    /// A number a row, in the first `cols` columns: `Z = W A + b` there.
    Bias { bias: &'a [T], cols: usize },
}

/// `Z = W A`, or what `start` says, on the first `cols` columns.
///
/// Each number of Z is one sequence of fused additions over k, whatever strip its
/// column falls in: its bits do not depend on the other columns.
#[expect(clippy::too_many_arguments, reason = "two matrices and their strides")]
#[inline(always)]
pub(crate) fn multiply<T: Real, S: Isa>(
    simd: S,
    w: &Packed<T>,
    a: &[T],
    a_stride: usize,
    z: &mut [T],
    z_stride: usize,
    cols: usize,
    start: Start<'_, T>,
) {
    check(a.len(), w.depth, a_stride, cols);
    check(z.len(), w.rows, z_stride, cols);
    if w.rows == 0 || cols == 0 {
        return;
    }
    let (first, rest) = match start {
        Start::Zero => (0, Base::Zero),
        Start::Held => (0, Base::Held),
        Start::Bias { bias, cols: first } => {
            assert_eq!(bias.len(), w.rows);
            (first.min(cols), Base::Zero)
        }
    };
    let mut product = Product {
        w,
        a,
        a_stride,
        z,
        z_stride,
    };
    if let Start::Bias { bias, .. } = start {
        product.columns(simd, 0..first, Base::Bias(bias));
    }
    product.columns(simd, first..cols, rest);
}

/// `rows` rows of `cols` numbers lie within a slice of `len`.
#[inline(always)]
fn check(len: usize, rows: usize, stride: usize, cols: usize) {
    assert!(stride >= cols, "rows overlap");
    assert!(
        rows == 0 || len >= (rows - 1) * stride + cols,
        "rows missing"
    );
}

/// [`Start`], for columns that are all alike.
#[derive(Clone, Copy)]
enum Base<'a, T> {
    Zero,
    Held,
    Bias(&'a [T]),
}

struct Product<'a, T> {
    w: &'a Packed<T>,
    a: &'a [T],
    a_stride: usize,
    z: &'a mut [T],
    z_stride: usize,
}

impl<T: Real> Product<'_, T> {
    #[inline(always)]
    fn columns<S: Isa>(&mut self, simd: S, cols: Range<usize>, mut base: Base<'_, T>) {
        let lanes = T::lanes::<S>();
        let (vectors, rest) = (cols.len() / lanes, cols.len() % lanes);
        for depth in parts(self.w.depth, DEEP) {
            if vectors > 0 {
                for strip in parts(vectors, widest::<T, S>()) {
                    let col = cols.start + strip.start * lanes;
                    match strip.len() {
                        1 => self.strip::<S, 1>(simd, depth.clone(), col, lanes, base),
                        2 => self.strip::<S, 2>(simd, depth.clone(), col, 2 * lanes, base),
                        3 => self.strip::<S, 3>(simd, depth.clone(), col, 3 * lanes, base),
                        _ => self.strip::<S, 4>(simd, depth.clone(), col, 4 * lanes, base),
                    }
                }
            }
            if rest > 0 {
                self.strip::<S, 1>(simd, depth, cols.end - rest, rest, base);
            }
            base = Base::Held;
        }
    }

    /// `width` columns from `col`: N vectors, or part of one.
    #[inline(always)]
    fn strip<S: Isa, const N: usize>(
        &mut self,
        simd: S,
        depth: Range<usize>,
        col: usize,
        width: usize,
        base: Base<'_, T>,
    ) {
        let count = self.w.rows.div_ceil(TALL);
        let (length, longer) = (self.w.rows / count, self.w.rows % count);
        for (blocks, length) in [(0..longer, length + 1), (longer..count, length)] {
            let first = if length > self.w.rows / count {
                0
            } else {
                longer
            };
            if blocks.is_empty() {
                continue;
            }
            let at = Strip {
                depth: depth.clone(),
                row: blocks.start * length + first,
                blocks: blocks.len(),
                col,
                width,
            };
            match length {
                1 => self.run::<S, 1, N>(simd, at, base),
                2 => self.run::<S, 2, N>(simd, at, base),
                3 => self.run::<S, 3, N>(simd, at, base),
                4 => self.run::<S, 4, N>(simd, at, base),
                5 => self.run::<S, 5, N>(simd, at, base),
                _ => self.run::<S, 6, N>(simd, at, base),
            }
        }
    }
    #[inline(always)]
    fn run<S: Isa, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        at: Strip,
        base: Base<'_, T>,
    ) {
        let a = &self.a[at.depth.start * self.a_stride + at.col..];
        let mut row = at.row;
        for _ in 0..at.blocks {
            let w = &self.w.numbers[row * self.w.depth..];
            let w = &w[at.depth.start * M..at.depth.end * M];
            let z = &mut self.z[row * self.z_stride + at.col..];
            let base = match base {
                Base::Bias(bias) => Base::Bias(&bias[row..row + M]),
                other => other,
            };
            tile::<T, S, M, N>(
                simd,
                w,
                (a, self.a_stride),
                (z, self.z_stride),
                at.width,
                base,
            );
            row += M;
        }
    }
}
struct Strip {
    depth: Range<usize>,
    row: usize,
    blocks: usize,
    col: usize,
    width: usize,
}

/// Vectors in a strip, at most.
#[inline(always)]
fn widest<T: Real, S: Isa>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

/// The micro-kernel: M rows of N vectors of Z, summed over k in registers.
#[inline(always)]
fn tile<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    w: &[T],
    (a, a_stride): (&[T], usize),
    (z, z_stride): (&mut [T], usize),
    width: usize,
    base: Base<'_, T>,
) {
    let mut sums = [[T::splat(simd, T::ZERO); N]; M];
    match base {
        Base::Zero => {}
        Base::Held => {
            for i in 0..M {
                sums[i] = load::<T, S, N>(&z[i * z_stride..], width);
            }
        }
        Base::Bias(bias) => {
            for i in 0..M {
                sums[i] = [T::splat(simd, bias[i]); N];
            }
        }
    }
    for (w, a) in w.as_chunks::<M>().0.iter().zip(a.chunks(a_stride)) {
        let a = load::<T, S, N>(a, width);
        for i in 0..M {
            let w = T::splat(simd, w[i]);
            for j in 0..N {
                sums[i][j] = T::mul_add(simd, w, a[j], sums[i][j]);
            }
        }
    }
    for i in 0..M {
        store::<T, S, N>(&mut z[i * z_stride..], width, &sums[i]);
    }
}

/// The first `width` numbers: N vectors, or part of one with zeros behind.
#[inline(always)]
fn load<T: Real, S: Isa, const N: usize>(row: &[T], width: usize) -> [T::Vector<S>; N] {
    let whole = N * T::lanes::<S>();
    if N > 1 || width == whole {
        vectors(&row[..whole])
    } else {
        let mut numbers = [T::ZERO; LANES];
        numbers[..width].copy_from_slice(&row[..width]);
        vectors(&numbers[..whole])
    }
}

#[inline(always)]
fn vectors<T: Real, S: Isa, const N: usize>(x: &[T]) -> [T::Vector<S>; N] {
    *T::as_vectors::<S>(x).0.first_chunk().expect("N vectors")
}

#[inline(always)]
fn store<T: Real, S: Isa, const N: usize>(row: &mut [T], width: usize, x: &[T::Vector<S>; N]) {
    let whole = N * T::lanes::<S>();
    if N > 1 || width == whole {
        T::as_vectors_mut::<S>(&mut row[..whole])
            .0
            .copy_from_slice(x);
    } else {
        let mut numbers = [T::ZERO; LANES];
        T::as_vectors_mut::<S>(&mut numbers[..whole])
            .0
            .copy_from_slice(x);
        row[..width].copy_from_slice(&numbers[..width]);
    }
}

/// `Wbar += Zbar Aᵀ` over the first `cols` columns; `grad` is row-major, `[out][inp]`.
#[expect(clippy::too_many_arguments, reason = "two matrices and their strides")]
#[inline(always)]
pub(crate) fn outer<T: Real, S: Isa>(
    simd: S,
    zbar: &[T],
    z_stride: usize,
    out: usize,
    a: &[T],
    a_stride: usize,
    inp: usize,
    cols: usize,
    grad: &mut [T],
) {
    check(zbar.len(), out, z_stride, cols);
    check(a.len(), inp, a_stride, cols);
    assert_eq!(grad.len(), out * inp);
    if out == 0 || inp == 0 || cols == 0 {
        return;
    }
    let (tall, wide) = if S::REGISTER_COUNT >= 32 {
        (6, 4)
    } else {
        (4, 3)
    };
    for reach in parts(cols.div_ceil(LANES), REACH / (LANES * size_of::<T>())) {
        let reach = reach.start * LANES..(reach.end * LANES).min(cols);
        for rows in parts(out, tall) {
            let z = (&zbar[rows.start * z_stride..], z_stride);
            for columns in parts(inp, wide) {
                let a = (&a[columns.start * a_stride..], a_stride);
                let grad = (&mut grad[rows.start * inp + columns.start..], inp);
                let reach = reach.clone();
                match columns.len() {
                    1 => corner_rows::<T, S, 1>(simd, rows.len(), z, a, reach, grad),
                    2 => corner_rows::<T, S, 2>(simd, rows.len(), z, a, reach, grad),
                    3 => corner_rows::<T, S, 3>(simd, rows.len(), z, a, reach, grad),
                    _ => corner_rows::<T, S, 4>(simd, rows.len(), z, a, reach, grad),
                }
            }
        }
    }
}

#[inline(always)]
fn corner_rows<T: Real, S: Isa, const N: usize>(
    simd: S,
    rows: usize,
    z: (&[T], usize),
    a: (&[T], usize),
    reach: Range<usize>,
    grad: (&mut [T], usize),
) {
    match rows {
        1 => corner::<T, S, 1, N>(simd, z, a, reach, grad),
        2 => corner::<T, S, 2, N>(simd, z, a, reach, grad),
        3 => corner::<T, S, 3, N>(simd, z, a, reach, grad),
        4 => corner::<T, S, 4, N>(simd, z, a, reach, grad),
        5 => corner::<T, S, 5, N>(simd, z, a, reach, grad),
        _ => corner::<T, S, 6, N>(simd, z, a, reach, grad),
    }
}

/// The other micro-kernel: M x N dot products of rows.
#[inline(always)]
fn corner<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    (z, z_stride): (&[T], usize),
    (a, a_stride): (&[T], usize),
    reach: Range<usize>,
    (grad, grad_stride): (&mut [T], usize),
) {
    let lanes = T::lanes::<S>();
    let count = reach.len() / lanes;
    let whole = reach.start..reach.start + count * lanes;
    let zs: [&[T::Vector<S>]; M] =
        std::array::from_fn(|i| &T::as_vectors::<S>(&z[i * z_stride..][whole.clone()]).0[..count]);
    let az: [&[T::Vector<S>]; N] =
        std::array::from_fn(|j| &T::as_vectors::<S>(&a[j * a_stride..][whole.clone()]).0[..count]);
    let mut sums = [[T::splat(simd, T::ZERO); N]; M];
    for v in 0..count {
        let mut av = [T::splat(simd, T::ZERO); N];
        for j in 0..N {
            av[j] = az[j][v];
        }
        for i in 0..M {
            let zv = zs[i][v];
            for j in 0..N {
                sums[i][j] = T::mul_add(simd, zv, av[j], sums[i][j]);
            }
        }
    }
    let rest = whole.end..reach.end;
    if !rest.is_empty() {
        for i in 0..M {
            let [zv] = load::<T, S, 1>(&z[i * z_stride + rest.start..], rest.len());
            for j in 0..N {
                let [av] = load::<T, S, 1>(&a[j * a_stride + rest.start..], rest.len());
                sums[i][j] = T::mul_add(simd, zv, av, sums[i][j]);
            }
        }
    }
    for (sums, grad) in sums.iter().zip(grad.chunks_mut(grad_stride)) {
        for (&sum, grad) in sums.iter().zip(grad) {
            *grad += T::reduce_sum(simd, sum);
        }
    }
}

/// `grad += ` the sums of the rows of Zbar over the columns `cols`.
#[inline(always)]
pub(crate) fn row_sums<T: Real, S: Isa>(
    simd: S,
    zbar: &[T],
    stride: usize,
    out: usize,
    cols: Range<usize>,
    grad: &mut [T],
) {
    check(zbar.len(), out, stride, cols.end);
    assert_eq!(grad.len(), out);
    for (row, grad) in grad.iter_mut().enumerate() {
        let (vectors, rest) = T::as_vectors::<S>(&zbar[row * stride..][cols.clone()]);
        // Four sums, so that one addition need not wait for the last.
        let mut sums = [T::splat(simd, T::ZERO); 4];
        let (fours, ones) = vectors.as_chunks::<4>();
        for four in fours {
            for j in 0..4 {
                sums[j] = plus::<T, S>(simd, sums[j], four[j]);
            }
        }
        for (sum, &one) in sums.iter_mut().zip(ones) {
            *sum = plus::<T, S>(simd, *sum, one);
        }
        let [a, b, c, d] = sums;
        let sum = plus::<T, S>(simd, plus::<T, S>(simd, a, b), plus::<T, S>(simd, c, d));
        let rest = rest.iter().fold(T::ZERO, |sum, &x| sum + x);
        *grad += T::reduce_sum(simd, sum) + rest;
    }
}

/// `a + b`; under the bound [`Real`], `T::add` would be that of numbers as well.
#[inline(always)]
fn plus<T: Lanes, S: Isa>(simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
    T::add(simd, a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::simd::{InstructionSet, Kernel};

    /// What rows hold beyond their columns: no kernel may read it or write it.
    const SENTINEL: f64 = f64::NAN;

    #[derive(Clone, Copy)]
    enum Job {
        Multiply { transpose: bool },
        Outer,
        RowSums { from: usize },
    }

    /// One product with everything it reads and writes. Both operands are `[row][col]`
    /// with a padded stride: `a` has the rows of A (or of Zbar, for W^T Zbar), `z` of the other.
    #[derive(Clone)]
    struct Case<T> {
        job: Job,
        out: usize,
        inp: usize,
        cols: usize,
        a_stride: usize,
        z_stride: usize,
        w: Vec<T>,
        a: Vec<T>,
        z: Vec<T>,
        bias: Vec<T>,
        start: Kind,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Zero,
        Held,
        Bias(usize),
    }

    /// Numbers in (-1, 1) that look random and depend on `seed` and the index.
    fn number(seed: usize, index: usize) -> f64 {
        let x = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
        let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn numbers<T: Real>(seed: usize, n: usize) -> Vec<T> {
        (0..n).map(|i| T::from_f64(number(seed, i))).collect()
    }

    /// Rows whose padding holds sentinels; the last one has none.
    fn padded<T: Real>(seed: usize, rows: usize, cols: usize, stride: usize) -> Vec<T> {
        let mut x = vec![T::from_f64(SENTINEL); (rows.max(1) - 1) * stride + cols];
        for row in 0..rows {
            for col in 0..cols {
                x[row * stride + col] = T::from_f64(number(seed, row * 4096 + col));
            }
        }
        x
    }

    impl<T: Real> Case<T> {
        fn new(job: Job, out: usize, inp: usize, cols: usize, pad: usize, start: Kind) -> Self {
            let (a_stride, z_stride) = (cols + pad, cols + 2 * pad);
            Case {
                job,
                out,
                inp,
                cols,
                a_stride,
                z_stride,
                w: numbers(1, out * inp),
                a: padded(2, inp, cols, a_stride),
                z: padded(3, out, cols, z_stride),
                bias: numbers(4, out.max(inp)),
                start,
            }
        }

        fn start<'a>(kind: Kind, bias: &'a [T], rows: usize) -> Start<'a, T> {
            match kind {
                Kind::Zero => Start::Zero,
                Kind::Held => Start::Held,
                Kind::Bias(cols) => Start::Bias {
                    bias: &bias[..rows],
                    cols,
                },
            }
        }

        /// Every number that the job writes, by a triple loop in `f64`.
        fn expected(&self) -> Vec<f64> {
            let a = |row: usize, col: usize| self.a[row * self.a_stride + col].to_f64();
            let z = |row: usize, col: usize| self.z[row * self.z_stride + col].to_f64();
            let w = |i: usize, k: usize| self.w[i * self.inp + k].to_f64();
            let begin = |old: f64, row: usize, col: usize| match self.start {
                Kind::Zero => 0.0,
                Kind::Held => old,
                Kind::Bias(cols) if col < cols => self.bias[row].to_f64(),
                Kind::Bias(_) => 0.0,
            };
            let cols = 0..self.cols;
            match self.job {
                Job::Multiply { transpose: false } => (0..self.out)
                    .flat_map(|i| cols.clone().map(move |c| (i, c)))
                    .map(|(i, c)| {
                        let sum: f64 = (0..self.inp).map(|k| w(i, k) * a(k, c)).sum();
                        begin(z(i, c), i, c) + sum
                    })
                    .collect(),
                Job::Multiply { transpose: true } => (0..self.inp)
                    .flat_map(|k| cols.clone().map(move |c| (k, c)))
                    .map(|(k, c)| {
                        let sum: f64 = (0..self.out).map(|i| w(i, k) * z(i, c)).sum();
                        begin(a(k, c), k, c) + sum
                    })
                    .collect(),
                Job::Outer => (0..self.out)
                    .flat_map(|i| (0..self.inp).map(move |k| (i, k)))
                    .map(|(i, k)| w(i, k) + cols.clone().map(|c| z(i, c) * a(k, c)).sum::<f64>())
                    .collect(),
                Job::RowSums { from } => (0..self.out)
                    .map(|i| {
                        self.bias[i].to_f64() + (from..self.cols).map(|c| z(i, c)).sum::<f64>()
                    })
                    .collect(),
            }
        }

        /// The buffer that the job wrote, without its padding (which must be untouched).
        fn found(&self) -> Vec<T> {
            let (x, rows, stride) = match self.job {
                Job::Multiply { transpose: false } => (&self.z, self.out, self.z_stride),
                Job::Multiply { transpose: true } => (&self.a, self.inp, self.a_stride),
                Job::Outer => return self.w.clone(),
                Job::RowSums { .. } => return self.bias[..self.out].to_vec(),
            };
            for (at, number) in x.iter().enumerate() {
                if at % stride >= self.cols {
                    assert!(number.to_f64().is_nan(), "padding overwritten at {at}");
                }
            }
            (0..rows)
                .flat_map(|row| x[row * stride..][..self.cols].to_vec())
                .collect()
        }
    }

    struct Run<'a, T>(&'a mut Case<T>);

    impl<T: Real> Kernel for Run<'_, T> {
        type Output = ();
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            let case = self.0;
            let (out, inp, cols) = (case.out, case.inp, case.cols);
            match case.job {
                Job::Multiply { transpose } => {
                    let mut packed = Packed::default();
                    packed.pack(&case.w, out, inp, transpose);
                    let start =
                        Case::start(case.start, &case.bias, if transpose { inp } else { out });
                    let (a, z) = ((&mut case.a, case.a_stride), (&mut case.z, case.z_stride));
                    let (from, to) = if transpose { (z, a) } else { (a, z) };
                    multiply(simd, &packed, from.0, from.1, to.0, to.1, cols, start);
                }
                Job::Outer => outer(
                    simd,
                    &case.z,
                    case.z_stride,
                    out,
                    &case.a,
                    case.a_stride,
                    inp,
                    cols,
                    &mut case.w,
                ),
                Job::RowSums { from } => row_sums(
                    simd,
                    &case.z,
                    case.z_stride,
                    out,
                    from..cols,
                    &mut case.bias[..out],
                ),
            }
        }
    }

    /// Runs a case on every instruction set and compares it with the triple loop.
    fn compare<T: Real>(case: &Case<T>) {
        let expected = case.expected();
        let terms = case.cols.max(case.inp).max(case.out) as f64 + 2.0;
        let tolerance = T::EPSILON.to_f64() * terms;
        for isa in InstructionSet::available() {
            let mut case = case.clone();
            isa.dispatch(Run(&mut case));
            let found = case.found();
            assert_eq!(found.len(), expected.len());
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let found = found.to_f64();
                assert!(
                    (found - expected).abs() <= tolerance,
                    "{} {}x{} cols {} {:?} [{at}]: {found} for {expected}",
                    isa.name(),
                    case.out,
                    case.inp,
                    case.cols,
                    case.start,
                );
            }
        }
    }

    fn compare_all(out: usize, inp: usize, cols: usize, pad: usize) {
        fn at<T: Real>(out: usize, inp: usize, cols: usize, pad: usize) {
            for start in [
                Kind::Zero,
                Kind::Held,
                Kind::Bias(cols / 2),
                Kind::Bias(5),
                Kind::Bias(cols),
            ] {
                for transpose in [false, true] {
                    compare(&Case::<T>::new(
                        Job::Multiply { transpose },
                        out,
                        inp,
                        cols,
                        pad,
                        start,
                    ));
                }
            }
            for job in [
                Job::Outer,
                Job::RowSums { from: 0 },
                Job::RowSums { from: cols / 3 },
            ] {
                compare(&Case::<T>::new(job, out, inp, cols, pad, Kind::Zero));
            }
        }
        at::<f64>(out, inp, cols, pad);
        at::<f32>(out, inp, cols, pad);
    }

    #[test]
    fn products_of_small_shapes() {
        for out in 1..=13 {
            for inp in 1..=13 {
                let cols = [16, 32, 48, 80, 112, 7, 37][(out + 2 * inp) % 7];
                compare_all(out, inp, cols, out % 3);
            }
        }
    }

    #[test]
    fn products_of_every_width() {
        for cols in 1..=96 {
            compare_all(7, 4, cols, cols % 2);
        }
        for cols in [128, 144, 256, 272, 511, 512] {
            compare_all(13, 6, cols, 8);
        }
    }

    #[test]
    fn products_of_large_shapes() {
        for (out, inp) in [(20, 20), (64, 64), (31, 70), (70, 1), (1, 70), (128, 3)] {
            compare_all(out, inp, 80, 0);
        }
        compare_all(64, 20, 1100, 8);
        compare_all(128, 256, 32, 16);
        compare_all(256, 193, 19, 1);
    }

    #[test]
    fn nothing_in_or_out() {
        compare_all(3, 0, 16, 0);
        compare_all(0, 3, 16, 0);
        compare_all(2, 3, 0, 1);
    }

    /// A column's sum has the same bits alone, in any strip, and next to any others.
    #[test]
    fn bits_do_not_depend_on_other_columns() {
        fn at<T: Real>(out: usize, inp: usize, transpose: bool, start: Kind) {
            let cols = 83;
            let whole = Case::<T>::new(Job::Multiply { transpose }, out, inp, cols, 0, start);
            for isa in InstructionSet::available() {
                let mut together = whole.clone();
                isa.dispatch(Run(&mut together));
                let together = together.found();
                let rows = together.len() / cols;
                for (from, to) in
                    (0..cols)
                        .map(|c| (c, c + 1))
                        .chain([(0, 16), (5, 40), (9, 83), (16, 80)])
                {
                    let mut part = whole.clone();
                    part.cols = to - from;
                    part.a = whole.a[from..].to_vec();
                    part.z = whole.z[from..].to_vec();
                    if let Kind::Bias(cols) = start {
                        part.start = Kind::Bias(cols.saturating_sub(from));
                    }
                    isa.dispatch(Run(&mut part));
                    let (x, stride) = if transpose {
                        (&part.a, part.a_stride)
                    } else {
                        (&part.z, part.z_stride)
                    };
                    for row in 0..rows {
                        assert!(
                            x[row * stride..][..to - from] == together[row * cols..][from..to],
                            "{} {out}x{inp} {start:?} columns {from}..{to}, row {row}",
                            isa.name(),
                        );
                    }
                }
            }
        }
        for (out, inp) in [(1, 9), (2, 5), (3, 3), (5, 1), (13, 11), (8, 200), (197, 4)] {
            for start in [Kind::Zero, Kind::Held, Kind::Bias(30)] {
                for transpose in [false, true] {
                    at::<f64>(out, inp, transpose, start);
                    at::<f32>(out, inp, transpose, start);
                }
            }
        }
    }

    #[test]
    fn packing_again_does_not_allocate() {
        let mut packed = Packed::<f32>::default();
        packed.pack(&numbers::<f64>(1, 77), 7, 11, false);
        let (at, room) = (packed.numbers.as_ptr(), packed.numbers.capacity());
        packed.pack(&numbers::<f64>(2, 77), 7, 11, true);
        assert_eq!(
            (packed.numbers.as_ptr(), packed.numbers.capacity()),
            (at, room)
        );
    }

    #[test]
    fn parts_are_even_and_cover() {
        for n in 0..200 {
            let parts: Vec<_> = parts(n, 6).collect();
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, n));
            let lengths = parts.iter().map(Range::len);
            let (short, long) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
            assert!(long <= 6 && long - short <= 1);
        }
        assert_eq!(parts(64, 6).filter(|part| part.len() == 6).count(), 9);
    }

    #[test]
    #[should_panic(expected = "rows missing")]
    fn short_buffers_are_refused() {
        let mut case = Case::<f64>::new(Job::Outer, 3, 2, 16, 0, Kind::Zero);
        case.z.pop();
        InstructionSet::Baseline.dispatch(Run(&mut case));
    }
}
