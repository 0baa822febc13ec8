//! Row kernels of jets: sums of planes, sums of products of planes. A row is planes ×
//! lanes; what the planes mean is the caller's business.

use crate::kernel::simd::Isa;
use crate::real::{Lanes, Real};

/// Which products of planes make which plane: rows of a product table, forwards (product,
/// composition) or transposed (`contract`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    outputs: Vec<Output>,
    /// Places (in a, in b).
    pairs: Vec<(u16, u16)>,
}

#[derive(Debug, Clone)]
struct Output {
    place: u16,
    /// Pairs before `doubled` count twice, those before `end` once.
    doubled: u32,
    end: u32,
}

impl Table {
    /// Adds the plane `place` of the output: twice the sum of `double` plus that of `single`.
    pub(crate) fn push(
        &mut self,
        place: usize,
        double: &[(usize, usize)],
        single: &[(usize, usize)],
    ) {
        let narrow = |&(i, j): &(usize, usize)| (i as u16, j as u16);
        self.pairs.extend(double.iter().map(narrow));
        let doubled = self.pairs.len() as u32;
        self.pairs.extend(single.iter().map(narrow));
        self.outputs.push(Output {
            place: place as u16,
            doubled,
            end: self.pairs.len() as u32,
        });
    }

    /// Adds a plane of a product of a jet with itself: mixed pairs are computed once.
    pub(crate) fn push_symmetric(&mut self, place: usize, pairs: &[(usize, usize)]) {
        let (off, diagonal): (Vec<_>, Vec<_>) = pairs.iter().partition(|(i, j)| i != j);
        let upper: Vec<_> = off.into_iter().filter(|(i, j)| i < j).collect();
        self.push(place, &upper, &diagonal);
    }

    /// Products a lane, for counting.
    pub(crate) fn products(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }
}

/// Overwrite the output, or add to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Overwrite,
    Accumulate,
}

/// One row: `out[k] (=|+=) Σ a[i]·b[j]` over the table's pairs.
#[inline(always)]
pub(crate) fn bilinear<T: Real, S: Isa>(
    simd: S,
    table: &Table,
    a: &[T],
    b: &[T],
    out: &mut [T],
    lanes: usize,
    mode: Mode,
) {
    let width = lanes / T::lanes::<S>();
    if width * T::lanes::<S>() != lanes {
        // Fewer lanes than a vector holds; only tests come here.
        return bilinear_scalar(table, a, b, out, lanes, mode);
    }
    let (a, _) = T::as_vectors::<S>(a);
    let (b, _) = T::as_vectors::<S>(b);
    let (out, _) = T::as_vectors_mut::<S>(out);
    // Eight sums at a time hide the latency of the additions and the cost of the table.
    let mut at = 0;
    while at + 8 <= width {
        block::<T, S, 8>(simd, table, a, b, out, width, at, mode);
        at += 8;
    }
    if at + 4 <= width {
        block::<T, S, 4>(simd, table, a, b, out, width, at, mode);
        at += 4;
    }
    while at < width {
        block::<T, S, 1>(simd, table, a, b, out, width, at, mode);
        at += 1;
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one block of one call site")]
fn block<T: Real, S: Isa, const N: usize>(
    simd: S,
    table: &Table,
    a: &[T::Vector<S>],
    b: &[T::Vector<S>],
    out: &mut [T::Vector<S>],
    width: usize,
    at: usize,
    mode: Mode,
) {
    let mut next = 0;
    for output in &table.outputs {
        let doubled = &table.pairs[next..output.doubled as usize];
        let single = &table.pairs[output.doubled as usize..output.end as usize];
        next = output.end as usize;
        let mut sum = [T::splat(simd, T::ZERO); N];
        sum = products::<T, S, N>(simd, doubled, a, b, width, at, sum);
        if !doubled.is_empty() {
            for s in &mut sum {
                *s = <T as Lanes>::add(simd, *s, *s);
            }
        }
        sum = products::<T, S, N>(simd, single, a, b, width, at, sum);
        let out = &mut out[usize::from(output.place) * width + at..][..N];
        for n in 0..N {
            out[n] = match mode {
                Mode::Overwrite => sum[n],
                Mode::Accumulate => <T as Lanes>::add(simd, out[n], sum[n]),
            };
        }
    }
}

/// `sum + Σ a[i]·b[j]`. Not a closure: one that is called twice is not inlined, and would
/// be compiled without the instructions of `S`.
#[inline(always)]
fn products<T: Real, S: Isa, const N: usize>(
    simd: S,
    pairs: &[(u16, u16)],
    a: &[T::Vector<S>],
    b: &[T::Vector<S>],
    width: usize,
    at: usize,
    mut sum: [T::Vector<S>; N],
) -> [T::Vector<S>; N] {
    for &(i, j) in pairs {
        let x = &a[usize::from(i) * width + at..][..N];
        let y = &b[usize::from(j) * width + at..][..N];
        for n in 0..N {
            sum[n] = T::mul_add(simd, x[n], y[n], sum[n]);
        }
    }
    sum
}

#[cold]
fn bilinear_scalar<T: Real>(
    table: &Table,
    a: &[T],
    b: &[T],
    out: &mut [T],
    lanes: usize,
    mode: Mode,
) {
    for lane in 0..lanes {
        let mut next = 0;
        for output in &table.outputs {
            let mut sum = T::ZERO;
            for (n, &(i, j)) in table.pairs[next..output.end as usize].iter().enumerate() {
                let product = a[usize::from(i) * lanes + lane] * b[usize::from(j) * lanes + lane];
                sum += product;
                if next + n < output.doubled as usize {
                    sum += product;
                }
            }
            next = output.end as usize;
            let out = &mut out[usize::from(output.place) * lanes + lane];
            *out = match mode {
                Mode::Overwrite => sum,
                Mode::Accumulate => *out + sum,
            };
        }
    }
}

/// [`bilinear`] where a zero in `b` gives zero, whatever stands in `a`: below a selection,
/// adjoints of the branch not taken are 0 and what they meet may be infinite or NaN.
#[inline(always)]
pub(crate) fn bilinear_guarded<T: Real>(
    table: &Table,
    a: &[T],
    b: &[T],
    out: &mut [T],
    lanes: usize,
    mode: Mode,
) {
    let mut next = 0;
    for output in &table.outputs {
        let out = &mut out[usize::from(output.place) * lanes..][..lanes];
        if mode == Mode::Overwrite {
            out.fill(T::ZERO);
        }
        for (n, &(i, j)) in table.pairs[next..output.end as usize].iter().enumerate() {
            let twice = next + n < output.doubled as usize;
            let factor = if twice { T::ONE + T::ONE } else { T::ONE };
            let x = &a[usize::from(i) * lanes..][..lanes];
            let y = &b[usize::from(j) * lanes..][..lanes];
            for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                let product = factor * x * y;
                *out += if y == T::ZERO { T::ZERO } else { product };
            }
        }
        next = output.end as usize;
    }
}

/// `dst (=|+=) factor·src`.
#[inline(always)]
pub(crate) fn axpy<T: Real>(factor: T, src: &[T], dst: &mut [T], mode: Mode) {
    match (mode, factor == T::ONE) {
        (Mode::Overwrite, true) => dst.copy_from_slice(src),
        (Mode::Overwrite, false) => {
            for (d, &s) in dst.iter_mut().zip(src) {
                *d = factor * s;
            }
        }
        (Mode::Accumulate, true) => {
            for (d, &s) in dst.iter_mut().zip(src) {
                *d += s;
            }
        }
        (Mode::Accumulate, false) => {
            for (d, &s) in dst.iter_mut().zip(src) {
                *d += factor * s;
            }
        }
    }
}

/// Sum of a slice, in vectors first.
#[inline(always)]
pub(crate) fn sum<T: Real, S: Isa>(simd: S, x: &[T]) -> T {
    let (vectors, rest) = T::as_vectors::<S>(x);
    let mut total = T::splat(simd, T::ZERO);
    for &v in vectors {
        total = <T as Lanes>::add(simd, total, v);
    }
    let mut sum = T::reduce_sum(simd, total);
    for &r in rest {
        sum += r;
    }
    sum
}

#[cfg(test)]
mod tests;
