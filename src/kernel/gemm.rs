//! Products of a small matrix W and long rows: `Z = W A`, `Abar = Wᵀ Zbar`, `Wbar += Zbar Aᵀ`.
//! Knows numbers in rows; nothing of planes, points or tapes.
//!
//! Vectors run along the rows, which are contiguous: A and Z are never packed.

use crate::kernel::simd::{Isa, Kernel};
use crate::real::{Lanes, Real};
use std::ops::Range;

/// Rows of W in a block, at most: the sums of 6 rows by 4 vectors (by 2) leave room
/// for the operands among 32 (16) registers.
pub(crate) const TALL: usize = 6;
/// Rows of A in one pass, at most, so that a strip of them stays in L1.
const DEEP: usize = 192;
/// Bytes of W that are used for all strips before the next, so that they stay in L2.
const PANEL: usize = 1 << 18;
/// Bytes of a row of Zbar in one reduction, at most, so that a block of rows stays in L1.
const REACH: usize = 4096;
/// Numbers of scratch that [`outer`] needs: a block of A, transposed, that stays in L1.
pub(crate) const SCRATCH: usize = ACROSS * BLOCK;
/// Vectors across a block of A, transposed; as many as sums of a row.
const VECTORS: usize = 4;
/// Numbers across it, at most.
const ACROSS: usize = VECTORS * LANES;
/// Columns of A in a block.
const BLOCK: usize = 128;
/// Rows of Wbar from which on transposing A is cheaper than summing over lanes.
const MANY: usize = 40;
/// Numbers in a vector, at most.
const LANES: usize = 16;

/// Into how many parts `n` falls, none longer than `most`, how long they are, and how many
/// are longer by one. A small network is a single part, and spared the divisions.
#[inline(always)]
fn even(n: usize, most: usize) -> (usize, usize, usize) {
    if n <= most {
        return (1, n, 0);
    }
    let count = n.div_ceil(most);
    (count, n / count, n % count)
}

/// Even parts of `0..n`, none longer than `most`, the longer ones first; one empty
/// part if n is 0.
#[inline(always)]
fn parts(n: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let (count, length, longer) = even(n, most);
    let start = move |part: usize| part * length + part.min(longer);
    (0..count).map(move |part| start(part)..start(part + 1))
}

/// W, or its transpose, in the order in which [`multiply`] reads it: blocks of rows,
/// column by column in a block.
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
        assert_eq!(w.len(), out * inp, "numbers of W");
        let ((rows, row_step), (depth, step)) = if transpose {
            ((inp, 1), (out, inp))
        } else {
            ((out, inp), (inp, 1))
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
    /// A number a row in the first `cols` columns, nothing in the others.
    Bias { bias: &'a [T], cols: usize },
}

/// `Z = W A`, or what `start` says, in the first `cols` columns.
///
/// A number of Z is one chain of `w * a + sum` over k, whichever strip its column
/// falls in: its bits do not depend on the other columns.
#[expect(clippy::too_many_arguments, reason = "two matrices with their strides")]
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
    check(a, w.depth, a_stride, cols);
    check(z, w.rows, z_stride, cols);
    if let Start::Bias { bias, .. } = start {
        assert_eq!(bias.len(), w.rows, "numbers of the bias");
    }
    if w.rows > 0 && cols > 0 {
        let (blocks, height, taller) = even(w.rows, TALL);
        let split = taller * (height + 1);
        let mut product = |panel| {
            let (a, z) = ((a, a_stride), (&mut *z, z_stride));
            outlined(
                simd,
                Multiply {
                    w,
                    panel,
                    a,
                    z,
                    cols,
                    start,
                },
            );
        };
        if w.numbers.len() * size_of::<T>() <= PANEL {
            return product([(height + 1, 0..split), (height, split..w.rows)]);
        }
        let most = PANEL / (TALL * w.depth * size_of::<T>());
        for panel in parts(blocks, most.max(1)) {
            let row = |block: usize| block * height + block.min(taller);
            let (first, last) = (row(panel.start), row(panel.end));
            let split = split.clamp(first, last);
            product([(height + 1, first..split), (height, split..last)]);
        }
    }
}

/// `rows` rows of `cols` numbers lie in `x`.
fn check<T>(x: &[T], rows: usize, stride: usize, cols: usize) {
    assert!(rows <= 1 || stride >= cols, "rows overlap");
    assert!(x.len() >= extent(rows, stride, cols), "rows missing");
}

/// Numbers from the start of the first row to the end of the last.
#[inline(always)]
fn extent(rows: usize, stride: usize, cols: usize) -> usize {
    match rows {
        0 => 0,
        _ => (rows - 1).saturating_mul(stride).saturating_add(cols),
    }
}

/// Runs `kernel` as a function of its own: one copy for all callers, and registers
/// for itself. The function that is never inlined lacks the instructions of `S`, so
/// `vectorize` cannot merge with it.
#[inline(never)]
pub(crate) fn outlined<S: Isa, K: Kernel>(simd: S, kernel: K) -> K::Output {
    struct On<S, K>(S, K);
    impl<S: Isa, K: Kernel> pulp::WithSimd for On<S, K> {
        type Output = K::Output;
        #[inline(always)]
        fn with_simd<T: pulp::Simd>(self, _: T) -> K::Output {
            self.1.run(self.0)
        }
    }
    simd.vectorize(On(simd, kernel))
}

struct Multiply<'a, T> {
    w: &'a Packed<T>,
    /// Rows of W, in blocks of two heights.
    panel: [(usize, Range<usize>); 2],
    a: (&'a [T], usize),
    z: (&'a mut [T], usize),
    cols: usize,
    start: Start<'a, T>,
}

impl<T: Real> Kernel for Multiply<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        // Columns with a bias and columns without are strips of their own.
        let split = match self.start {
            Start::Bias { cols, .. } => cols.min(self.cols),
            _ => 0,
        };
        for part in [0..split, split..self.cols] {
            let lanes = T::lanes::<S>();
            let vectors = part.len() / lanes;
            let rest = part.start + vectors * lanes..part.end;
            let mut start = match self.start {
                Start::Bias { .. } if part.start == split => Start::Zero,
                start => start,
            };
            for depth in parts(self.w.depth, DEEP) {
                for strip in strips(vectors, widest::<S>(self.w.rows)) {
                    let col = part.start + strip.start * lanes;
                    let at = Strip {
                        depth: depth.clone(),
                        cols: col..col + strip.len() * lanes,
                        start,
                    };
                    match strip.len() {
                        0 => {}
                        1 => self.strip::<S, 1>(simd, at),
                        2 => self.strip::<S, 2>(simd, at),
                        3 => self.strip::<S, 3>(simd, at),
                        4 => self.strip::<S, 4>(simd, at),
                        _ => self.strip::<S, 8>(simd, at),
                    }
                }
                if !rest.is_empty() {
                    self.strip::<S, 1>(
                        simd,
                        Strip {
                            depth,
                            cols: rest.clone(),
                            start,
                        },
                    );
                }
                start = Start::Held;
            }
        }
    }
}

/// Vectors in a strip, at most: the fewer rows, the more, as sums that are too few
/// wait for each other.
#[inline(always)]
fn widest<S: Isa>(rows: usize) -> usize {
    let (_, height, taller) = even(rows, TALL);
    let tallest = height + usize::from(taller > 0);
    match (S::REGISTER_COUNT >= 32, tallest) {
        (true, ..=3) | (false, 1) => 8,
        (true, _) | (false, 2) => 4,
        (false, 3 | 4) => 3,
        (false, _) => 2,
    }
}

/// Parts of `0..vectors` of 8 vectors or of at most 4.
#[inline(always)]
fn strips(vectors: usize, widest: usize) -> impl Iterator<Item = Range<usize>> {
    let eights = if widest == 8 { vectors / 8 } else { 0 };
    let rest = parts(vectors - 8 * eights, widest.min(4));
    let shifted = move |part: Range<usize>| 8 * eights + part.start..8 * eights + part.end;
    (0..eights)
        .map(|eight| 8 * eight..8 * eight + 8)
        .chain(rest.map(shifted))
}

/// Columns that are summed in registers, over some k.
#[derive(Clone)]
struct Strip<'a, T> {
    depth: Range<usize>,
    cols: Range<usize>,
    start: Start<'a, T>,
}

impl<T: Real> Multiply<'_, T> {
    /// A panel of rows of a strip of N vectors, or of a part of one.
    #[inline(always)]
    fn strip<S: Isa, const N: usize>(&mut self, simd: S, at: Strip<'_, T>) {
        for (height, rows) in self.panel.clone() {
            let at = at.clone();
            match height {
                1 => self.blocks::<S, 1, N>(simd, rows, at),
                2 => self.blocks::<S, 2, N>(simd, rows, at),
                3 => self.blocks::<S, 3, N>(simd, rows, at),
                4 if N <= 4 => self.blocks::<S, 4, N>(simd, rows, at),
                5 if N <= 4 => self.blocks::<S, 5, N>(simd, rows, at),
                6 if N <= 4 => self.blocks::<S, 6, N>(simd, rows, at),
                _ => {} // no rows
            }
        }
    }

    /// Blocks of M rows.
    #[inline(always)]
    fn blocks<S: Isa, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        Strip {
            depth, cols, start, ..
        }: Strip<'_, T>,
    ) {
        let (a, a_stride) = self.a;
        // Without rows of A there is nothing to point at.
        let a = a
            .get(depth.start * a_stride + cols.start..)
            .unwrap_or_default();
        let (z, z_stride) = (&mut *self.z.0, self.z.1);
        for row in rows.step_by(M) {
            let w = &self.w.numbers[row * self.w.depth..];
            let w = w[depth.start * M..depth.end * M].as_chunks().0;
            let z = &mut z[row * z_stride + cols.start..];
            let start = match start {
                Start::Bias { bias, cols } => Start::Bias {
                    bias: &bias[row..row + M],
                    cols,
                },
                other => other,
            };
            tile::<T, S, M, N>(simd, w, (a, a_stride), (z, z_stride), cols.len(), start);
        }
    }
}

/// The micro-kernel: `width` columns of M rows of Z, N vectors (or part of one) a row,
/// summed in registers.
#[inline(always)]
fn tile<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    w: &[[T; M]],
    (a, a_stride): (&[T], usize),
    (z, z_stride): (&mut [T], usize),
    width: usize,
    start: Start<'_, T>,
) {
    // Loops below run over constants: iterators would keep the sums in memory.
    let width = if N > 1 { N * T::lanes::<S>() } else { width };
    assert!(a.len() >= extent(w.len(), a_stride, width), "rows of A");
    assert!(z.len() >= extent(M, z_stride, width), "rows of Z");
    let mut sums = [[T::splat(simd, T::ZERO); N]; M];
    match start {
        Start::Zero => {}
        Start::Held => {
            for i in 0..M {
                sums[i] = load::<T, S, N>(&z[i * z_stride..][..width]);
            }
        }
        Start::Bias { bias, .. } => {
            let bias: &[T; M] = bias.first_chunk().expect("M rows");
            for (i, &b) in bias.iter().enumerate() {
                sums[i] = [T::splat(simd, b); N];
            }
        }
    }
    for (k, w) in w.iter().enumerate() {
        let at = k * a_stride;
        // SAFETY: k < w.len(), and w.len() rows were asserted to lie in `a`. (A debug
        // build asserts each range. Checked ranges, here and below, cost 4 to 8 %.)
        let a = load::<T, S, N>(unsafe { a.get_unchecked(at..at + width) });
        for i in 0..M {
            let w = T::splat(simd, w[i]);
            for j in 0..N {
                sums[i][j] = T::mul_add(simd, w, a[j], sums[i][j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let at = i * z_stride;
        // SAFETY: i < M, and M rows were asserted to lie in `z`.
        store::<T, S, N>(unsafe { z.get_unchecked_mut(at..at + width) }, sums);
    }
}

/// A row of N vectors, or a part of one vector and zeros.
#[inline(always)]
fn load<T: Real, S: Isa, const N: usize>(row: &[T]) -> [T::Vector<S>; N] {
    if let Some(&vectors) = T::as_vectors::<S>(row).0.first_chunk() {
        vectors
    } else {
        let mut numbers = [T::ZERO; LANES];
        numbers[..row.len()].copy_from_slice(row);
        let vectors = T::as_vectors::<S>(&numbers).0;
        *vectors.first_chunk().expect("part of one vector")
    }
}

/// The inverse of [`load`].
#[inline(always)]
fn store<T: Real, S: Isa, const N: usize>(row: &mut [T], x: &[T::Vector<S>; N]) {
    if let Some(vectors) = T::as_vectors_mut::<S>(row).0.first_chunk_mut() {
        *vectors = *x;
    } else {
        let mut numbers = [T::ZERO; LANES];
        T::as_vectors_mut::<S>(&mut numbers).0[..N].copy_from_slice(x);
        row.copy_from_slice(&numbers[..row.len()]);
    }
}

/// `Wbar += Zbar Aᵀ` over the first `cols` columns; `grad` is Wbar, row-major.
#[expect(clippy::too_many_arguments, reason = "two matrices with their strides")]
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
    scratch: &mut [T],
) {
    check(zbar, out, z_stride, cols);
    check(a, inp, a_stride, cols);
    assert_eq!(grad.len(), out * inp, "numbers of Wbar");
    if out > 0 && inp > 0 && cols > 0 {
        let z = (zbar, z_stride);
        let a = (a, a_stride);
        let lanes = T::lanes::<S>();
        let across = inp - inp % lanes;
        let mut from = 0;
        if can_transpose::<T, S>() && out >= MANY && across > 0 && cols.is_multiple_of(lanes) {
            outlined(
                simd,
                Across {
                    z,
                    a,
                    cols,
                    grad,
                    inp,
                    across,
                    scratch,
                },
            );
            from = across;
        }
        if from < inp {
            outlined(
                simd,
                Outer {
                    z,
                    a,
                    cols,
                    grad,
                    inp,
                    from,
                },
            );
        }
    }
}

/// Whether vectors are of 64 bytes and [`avx512::transpose`] knows them.
#[inline(always)]
fn can_transpose<T: Real, S: Isa>() -> bool {
    cfg!(target_arch = "x86_64") && T::lanes::<S>() * size_of::<T>() == 64
}

/// [`outer`] with vectors along the rows of Wbar: blocks of A are transposed first, so that
/// no sum over lanes is left.
struct Across<'a, T> {
    z: (&'a [T], usize),
    a: (&'a [T], usize),
    cols: usize,
    grad: &'a mut [T],
    inp: usize,
    /// Columns of Wbar, a multiple of a vector.
    across: usize,
    scratch: &'a mut [T],
}

impl<T: Real> Kernel for Across<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let lanes = T::lanes::<S>();
        for cols in parts(self.cols / lanes, BLOCK / lanes) {
            let cols = cols.start * lanes..cols.end * lanes;
            for columns in parts(self.across / lanes, VECTORS) {
                let first = columns.start * lanes;
                match columns.len() {
                    1 => self.block::<S, 1>(simd, first, cols.clone()),
                    2 => self.block::<S, 2>(simd, first, cols.clone()),
                    3 => self.block::<S, 3>(simd, first, cols.clone()),
                    _ => self.block::<S, 4>(simd, first, cols.clone()),
                }
            }
        }
    }
}

impl<T: Real> Across<'_, T> {
    /// N vectors of columns of Wbar, from `first` on; some columns of A.
    #[inline(always)]
    fn block<S: Isa, const N: usize>(&mut self, simd: S, first: usize, cols: Range<usize>) {
        let lanes = T::lanes::<S>();
        for n in 0..N {
            let row = first + n * lanes;
            let from = (&self.a.0[row * self.a.1..], self.a.1);
            let to = &mut self.scratch[n * lanes..];
            if size_of::<T>() == 8 {
                transpose::<T, S, 8>(simd, from, cols.clone(), (to, N * lanes));
            } else {
                transpose::<T, S, 16>(simd, from, cols.clone(), (to, N * lanes));
            }
        }
        for rows in parts(self.grad.len() / self.inp, TALL) {
            let z = (self.z, rows.start, &cols);
            let at = rows.start * self.inp + first;
            let grad = (&mut self.grad[at..], self.inp);
            match rows.len() {
                1 => across::<T, S, 1, N>(simd, z, self.scratch, grad),
                2 => across::<T, S, 2, N>(simd, z, self.scratch, grad),
                3 => across::<T, S, 3, N>(simd, z, self.scratch, grad),
                4 => across::<T, S, 4, N>(simd, z, self.scratch, grad),
                5 => across::<T, S, 5, N>(simd, z, self.scratch, grad),
                _ => across::<T, S, 6, N>(simd, z, self.scratch, grad),
            }
        }
    }
}

/// L rows of A as columns of `to`, L being the numbers in a vector.
#[inline(always)]
fn transpose<T: Real, S: Isa, const L: usize>(
    simd: S,
    (a, stride): (&[T], usize),
    cols: Range<usize>,
    (to, to_stride): (&mut [T], usize),
) {
    let count = cols.len() / L;
    let zero = T::splat(simd, T::ZERO);
    for block in 0..count {
        let col = cols.start + block * L;
        let mut x = [zero; L];
        for (row, x) in x.iter_mut().enumerate() {
            *x = T::as_vectors::<S>(&a[row * stride + col..][..L]).0[0];
        }
        #[cfg(target_arch = "x86_64")]
        avx512::transpose(&simd, &mut x);
        for (row, x) in x.iter().enumerate() {
            T::as_vectors_mut::<S>(&mut to[(block * L + row) * to_stride..][..L]).0[0] = *x;
        }
    }
}

/// M rows and N vectors of Wbar.
#[inline(always)]
fn across<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    (z, first, cols): ((&[T], usize), usize, &Range<usize>),
    a: &[T],
    (grad, stride): (&mut [T], usize),
) {
    let z: [&[T]; M] = rows(z, first, cols);
    let width = N * T::lanes::<S>();
    let mut sums = [[T::splat(simd, T::ZERO); N]; M];
    for i in 0..M {
        sums[i] = load::<T, S, N>(&grad[i * stride..][..width]);
    }
    let (a, _) = T::as_vectors::<S>(a);
    let (a, _) = a.as_chunks::<N>();
    for (k, a) in a[..cols.len()].iter().enumerate() {
        for i in 0..M {
            let z = T::splat(simd, z[i][k]);
            for j in 0..N {
                sums[i][j] = T::mul_add(simd, z, a[j], sums[i][j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        store::<T, S, N>(&mut grad[i * stride..][..width], sums);
    }
}

struct Outer<'a, T> {
    z: (&'a [T], usize),
    a: (&'a [T], usize),
    cols: usize,
    grad: &'a mut [T],
    inp: usize,
    /// First column of Wbar.
    from: usize,
}

impl<T: Real> Kernel for Outer<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let tall = if S::REGISTER_COUNT >= 32 { 6 } else { 4 };
        let most = REACH / (LANES * size_of::<T>());
        for reach in parts(self.cols.div_ceil(LANES), most) {
            let cols = reach.start * LANES..self.cols.min(reach.end * LANES);
            for rows in parts(self.grad.len() / self.inp, tall) {
                let cols = cols.clone();
                match rows.len() {
                    1 => self.rows::<S, 1>(simd, rows.start, cols),
                    2 => self.rows::<S, 2>(simd, rows.start, cols),
                    3 => self.rows::<S, 3>(simd, rows.start, cols),
                    4 => self.rows::<S, 4>(simd, rows.start, cols),
                    5 => self.rows::<S, 5>(simd, rows.start, cols),
                    _ => self.rows::<S, 6>(simd, rows.start, cols),
                }
            }
        }
    }
}

impl<T: Real> Outer<'_, T> {
    /// M rows of Wbar, from the column `from` on.
    #[inline(always)]
    fn rows<S: Isa, const M: usize>(&mut self, simd: S, row: usize, cols: Range<usize>) {
        let wide = if S::REGISTER_COUNT >= 32 { 4 } else { 3 };
        let z: [&[T]; M] = rows(self.z, row, &cols);
        for columns in parts(self.inp - self.from, wide) {
            let first = self.from + columns.start;
            let grad = &mut self.grad[row * self.inp + first..];
            let at = (first, &cols);
            match columns.len() {
                0 => {}
                1 => corner::<T, S, M, 1>(simd, &z, self.a, at, (grad, self.inp)),
                2 => corner::<T, S, M, 2>(simd, &z, self.a, at, (grad, self.inp)),
                3 => corner::<T, S, M, 3>(simd, &z, self.a, at, (grad, self.inp)),
                _ => corner::<T, S, M, 4>(simd, &z, self.a, at, (grad, self.inp)),
            }
        }
    }
}

/// Some columns of N rows.
#[inline(always)]
fn rows<'a, T, const N: usize>(
    (x, stride): (&'a [T], usize),
    first: usize,
    cols: &Range<usize>,
) -> [&'a [T]; N] {
    std::array::from_fn(|i| &x[(first + i) * stride..][cols.clone()])
}

#[inline(always)]
fn corner<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    z: &[&[T]; M],
    a: (&[T], usize),
    (first, cols): (usize, &Range<usize>),
    grad: (&mut [T], usize),
) {
    let a = &rows(a, first, cols);
    // By reference: to copy it would wait for the numbers just written.
    outlined(simd, &mut Corner::<T, M, N> { z, a, grad });
}

/// The other micro-kernel: M by N dot products of rows of equal length.
struct Corner<'a, T, const M: usize, const N: usize> {
    z: &'a [&'a [T]; M],
    a: &'a [&'a [T]; N],
    grad: (&'a mut [T], usize),
}

impl<T: Real, const M: usize, const N: usize> Kernel for &mut Corner<'_, T, M, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let length = self.z[0].len();
        let count = length / T::lanes::<S>();
        let z = self.z.map(|row| &T::as_vectors::<S>(row).0[..count]);
        let a = self.a.map(|row| &T::as_vectors::<S>(row).0[..count]);
        // Indexed only in loops that are unrolled whole: else the sums live in memory, at
        // a third of the speed.
        let mut sums = [[T::splat(simd, T::ZERO); N]; M];
        for v in 0..count {
            let a = a.map(|row| row[v]);
            for i in 0..M {
                for j in 0..N {
                    sums[i][j] = T::mul_add(simd, z[i][v], a[j], sums[i][j]);
                }
            }
        }
        let sums = lane_sums::<T, S, M, N>(simd, &sums);
        let (grad, stride) = (&mut *self.grad.0, self.grad.1);
        for (i, sums) in sums.iter().enumerate() {
            let grad = &mut grad[i * stride..][..N];
            for j in 0..N {
                grad[j] += sums[j];
            }
        }
        let rest = count * T::lanes::<S>();
        if rest < length {
            for (z, grad) in self.z.iter().zip(grad.chunks_mut(stride)) {
                for (a, grad) in self.a.iter().zip(grad) {
                    let products = z[rest..].iter().zip(&a[rest..]).map(|(&z, &a)| z * a);
                    *grad += products.fold(T::ZERO, |sum, product| sum + product);
                }
            }
        }
    }
}

/// Sums of the lanes of each vector.
#[inline(always)]
fn lane_sums<T: Real, S: Isa, const M: usize, const N: usize>(
    simd: S,
    x: &[[T::Vector<S>; N]; M],
) -> [[T; N]; M] {
    let mut sums = [[T::ZERO; N]; M];
    #[cfg(target_arch = "x86_64")]
    if avx512::lane_sums::<M, N>(&simd, x, &mut sums) {
        return sums;
    }
    for i in 0..M {
        for j in 0..N {
            sums[i][j] = T::reduce_sum(simd, x[i][j]);
        }
    }
    sums
}

/// Sums of the lanes of many vectors at once, with half the shuffles of one at a time:
/// a seventh of [`outer`]'s time in f32, at 256 columns.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use pulp::x86::V4;
    use pulp::{cast, f32x16, f64x8};
    use std::any::Any;
    use std::arch::x86_64::{__m512, __m512d};

    /// Writes the sums, or says no if `simd` is another set. The types are known to
    /// the compiler, which leaves nothing of `Any`.
    #[inline(always)]
    pub(super) fn lane_sums<const M: usize, const N: usize>(
        simd: &dyn Any,
        x: &dyn Any,
        sums: &mut dyn Any,
    ) -> bool {
        let Some(&simd) = simd.downcast_ref::<V4>() else {
            return false;
        };
        if let Some(x) = x.downcast_ref::<[[f64x8; N]; M]>()
            && let Some(sums) = sums.downcast_mut::<[[f64; N]; M]>()
        {
            let zero = cast([0.0; 8]);
            for (x, sums) in x
                .as_flattened()
                .chunks(8)
                .zip(sums.as_flattened_mut().chunks_mut(8))
            {
                let mut eight = [zero; 8];
                eight[..x.len()].copy_from_slice(x);
                sums.copy_from_slice(&sums_f64(simd, eight)[..x.len()]);
            }
            return true;
        }
        if let Some(x) = x.downcast_ref::<[[f32x16; N]; M]>()
            && let Some(sums) = sums.downcast_mut::<[[f32; N]; M]>()
        {
            let zero = cast([0.0f32; 16]);
            for (x, sums) in x
                .as_flattened()
                .chunks(16)
                .zip(sums.as_flattened_mut().chunks_mut(16))
            {
                let mut sixteen = [zero; 16];
                sixteen[..x.len()].copy_from_slice(x);
                sums.copy_from_slice(&sums_f32(simd, sixteen)[..x.len()]);
            }
            return true;
        }
        false
    }

    /// Rows as columns, in place, where the vectors are those of `simd`.
    #[inline(always)]
    pub(super) fn transpose(simd: &dyn Any, x: &mut dyn Any) {
        let Some(&simd) = simd.downcast_ref::<V4>() else {
            return;
        };
        if let Some(x) = x.downcast_mut::<[f64x8; 8]>() {
            *x = transpose_f64(simd, *x);
        } else if let Some(x) = x.downcast_mut::<[f32x16; 16]>() {
            *x = transpose_f32(simd, *x);
        }
    }

    #[inline(always)]
    fn transpose_f64(simd: V4, x: [f64x8; 8]) -> [f64x8; 8] {
        let x: [__m512d; 8] = cast(x);
        let avx = simd.avx512f;
        let mut pairs = x;
        for i in 0..4 {
            pairs[i] = avx._mm512_unpacklo_pd(x[2 * i], x[2 * i + 1]);
            pairs[4 + i] = avx._mm512_unpackhi_pd(x[2 * i], x[2 * i + 1]);
        }
        // pairs[4 p + i] holds columns p, 2 + p, 4 + p, 6 + p of rows 2i and 2i + 1.
        let mut out = x;
        for p in 0..2 {
            let [a, b, c, d] = [0, 1, 2, 3].map(
                #[inline(always)]
                |i| pairs[4 * p + i],
            );
            let low = avx._mm512_shuffle_f64x2::<0x88>(a, b);
            let high = avx._mm512_shuffle_f64x2::<0xdd>(a, b);
            let low2 = avx._mm512_shuffle_f64x2::<0x88>(c, d);
            let high2 = avx._mm512_shuffle_f64x2::<0xdd>(c, d);
            out[p] = avx._mm512_shuffle_f64x2::<0x88>(low, low2);
            out[2 + p] = avx._mm512_shuffle_f64x2::<0x88>(high, high2);
            out[4 + p] = avx._mm512_shuffle_f64x2::<0xdd>(low, low2);
            out[6 + p] = avx._mm512_shuffle_f64x2::<0xdd>(high, high2);
        }
        cast(out)
    }

    #[inline(always)]
    fn transpose_f32(simd: V4, x: [f32x16; 16]) -> [f32x16; 16] {
        let x: [__m512; 16] = cast(x);
        let avx = simd.avx512f;
        // Fours of rows: quads[4 i + p] holds columns p, 4 + p, 8 + p, 12 + p of rows 4i to 4i + 3.
        let mut quads = x;
        for i in 0..4 {
            let [a, b, c, d] = [0, 1, 2, 3].map(
                #[inline(always)]
                |r| x[4 * i + r],
            );
            let (ab, ab2) = (avx._mm512_unpacklo_ps(a, b), avx._mm512_unpackhi_ps(a, b));
            let (cd, cd2) = (avx._mm512_unpacklo_ps(c, d), avx._mm512_unpackhi_ps(c, d));
            quads[4 * i] = cast(avx._mm512_unpacklo_pd(cast(ab), cast(cd)));
            quads[4 * i + 1] = cast(avx._mm512_unpackhi_pd(cast(ab), cast(cd)));
            quads[4 * i + 2] = cast(avx._mm512_unpacklo_pd(cast(ab2), cast(cd2)));
            quads[4 * i + 3] = cast(avx._mm512_unpackhi_pd(cast(ab2), cast(cd2)));
        }
        let mut out = x;
        for p in 0..4 {
            let [a, b, c, d] = [0, 1, 2, 3].map(
                #[inline(always)]
                |i| quads[4 * i + p],
            );
            let low = avx._mm512_shuffle_f32x4::<0x88>(a, b);
            let high = avx._mm512_shuffle_f32x4::<0xdd>(a, b);
            let low2 = avx._mm512_shuffle_f32x4::<0x88>(c, d);
            let high2 = avx._mm512_shuffle_f32x4::<0xdd>(c, d);
            out[p] = avx._mm512_shuffle_f32x4::<0x88>(low, low2);
            out[4 + p] = avx._mm512_shuffle_f32x4::<0x88>(high, high2);
            out[8 + p] = avx._mm512_shuffle_f32x4::<0xdd>(low, low2);
            out[12 + p] = avx._mm512_shuffle_f32x4::<0xdd>(high, high2);
        }
        cast(out)
    }

    #[inline(always)]
    fn sums_f64(simd: V4, x: [f64x8; 8]) -> [f64; 8] {
        let mut x: [__m512d; 8] = cast(x);
        let avx = simd.avx512f;
        for i in 0..4 {
            let even = avx._mm512_unpacklo_pd(x[2 * i], x[2 * i + 1]);
            let odd = avx._mm512_unpackhi_pd(x[2 * i], x[2 * i + 1]);
            x[i] = avx._mm512_add_pd(even, odd);
        }
        for count in [2, 1] {
            for i in 0..count {
                let even = avx._mm512_shuffle_f64x2::<0x88>(x[2 * i], x[2 * i + 1]);
                let odd = avx._mm512_shuffle_f64x2::<0xdd>(x[2 * i], x[2 * i + 1]);
                x[i] = avx._mm512_add_pd(even, odd);
            }
        }
        cast(x[0])
    }

    #[inline(always)]
    fn sums_f32(simd: V4, x: [f32x16; 16]) -> [f32; 16] {
        let mut x: [__m512; 16] = cast(x);
        let avx = simd.avx512f;
        for i in 0..8 {
            let even = avx._mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
            let odd = avx._mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
            x[i] = avx._mm512_add_ps(even, odd);
        }
        for i in 0..4 {
            let (a, b) = (cast(x[2 * i]), cast(x[2 * i + 1]));
            let even = avx._mm512_unpacklo_pd(a, b);
            let odd = avx._mm512_unpackhi_pd(a, b);
            x[i] = avx._mm512_add_ps(cast(even), cast(odd));
        }
        for count in [2, 1] {
            for i in 0..count {
                let even = avx._mm512_shuffle_f32x4::<0x88>(x[2 * i], x[2 * i + 1]);
                let odd = avx._mm512_shuffle_f32x4::<0xdd>(x[2 * i], x[2 * i + 1]);
                x[i] = avx._mm512_add_ps(even, odd);
            }
        }
        cast(x[0])
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
    check(zbar, out, stride, cols.end);
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
    use crate::kernel::simd::InstructionSet;

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
                    &mut [T::ZERO; SCRATCH],
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
        // W falls into panels.
        compare_all(310, 190, 37, 1);
        compare_all(257, 400, 48, 0);
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
