//! Row kernels of jets: sums of planes, sums of products of planes. A row is planes ×
//! lanes; what the planes mean is the caller's business.

use crate::kernel::simd::Isa;
use crate::real::{Lanes, Real};

/// The place of a plane in a row or in scratch.
type Place = u32;

/// Which products of planes make which plane: rows of a product table, forwards (product,
/// composition) or transposed (`contract`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    outputs: Vec<Output>,
    /// Places (in a, in b).
    pairs: Vec<(Place, Place)>,
}

#[derive(Debug, Clone)]
struct Output {
    place: Place,
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
        let narrow = |&(i, j): &(usize, usize)| (i as Place, j as Place);
        self.pairs.extend(double.iter().map(narrow));
        let doubled = self.pairs.len() as u32;
        self.pairs.extend(single.iter().map(narrow));
        self.outputs.push(Output {
            place: place as Place,
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
        let out = &mut out[output.place as usize * width + at..][..N];
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
    pairs: &[(Place, Place)],
    a: &[T::Vector<S>],
    b: &[T::Vector<S>],
    width: usize,
    at: usize,
    mut sum: [T::Vector<S>; N],
) -> [T::Vector<S>; N] {
    for &(i, j) in pairs {
        let x = &a[i as usize * width + at..][..N];
        let y = &b[j as usize * width + at..][..N];
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
                let product = a[i as usize * lanes + lane] * b[j as usize * lanes + lane];
                sum += product;
                if next + n < output.doubled as usize {
                    sum += product;
                }
            }
            next = output.end as usize;
            let out = &mut out[output.place as usize * lanes + lane];
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
        let out = &mut out[output.place as usize * lanes..][..lanes];
        if mode == Mode::Overwrite {
            out.fill(T::ZERO);
        }
        for (n, &(i, j)) in table.pairs[next..output.end as usize].iter().enumerate() {
            let twice = next + n < output.doubled as usize;
            let factor = if twice { T::ONE + T::ONE } else { T::ONE };
            let x = &a[i as usize * lanes..][..lanes];
            let y = &b[j as usize * lanes..][..lanes];
            for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                let product = factor * x * y;
                *out += if y == T::ZERO { T::ZERO } else { product };
            }
        }
        next = output.end as usize;
    }
}

/// A composition of second order: for each plane of v or d, which plane of z enters it
/// linearly, and which products of planes of z.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quadratic {
    planes: Vec<QuadraticPlane>,
    /// Places in z; those before `doubled` count twice.
    pairs: Vec<(Place, Place)>,
}

#[derive(Debug, Clone)]
struct QuadraticPlane {
    linear: Option<Place>,
    doubled: u32,
    end: u32,
    v: Option<Place>,
    d: Option<Place>,
}

impl Quadratic {
    /// Adds a plane: its place in z, all ordered pairs of places in z that make it, its
    /// places in v and d.
    pub(crate) fn push(
        &mut self,
        linear: Option<usize>,
        pairs: &[(usize, usize)],
        v: Option<usize>,
        d: Option<usize>,
    ) {
        let narrow = |&(i, j): &(usize, usize)| (i as Place, j as Place);
        self.pairs
            .extend(pairs.iter().filter(|(i, j)| i < j).map(narrow));
        let doubled = self.pairs.len() as u32;
        self.pairs
            .extend(pairs.iter().filter(|(i, j)| i == j).map(narrow));
        let place = |place: usize| place as Place;
        self.planes.push(QuadraticPlane {
            linear: linear.map(place),
            doubled,
            end: self.pairs.len() as u32,
            v: v.map(place),
            d: d.map(place),
        });
    }
}

/// One row of a composition of second order, without the values: with c the Taylor
/// coefficients 0 to 3 (0 to 2 if d is not wanted) and q = Σ z_i z_j,
/// `v = c_1 z + c_2 q` and `d = 2c_2 z + 3c_3 q`, plane by plane.
#[inline(always)]
pub(crate) fn quadratic<T: Real, S: Isa>(
    simd: S,
    rule: &Quadratic,
    coefficients: &[T],
    z: &[T],
    v: &mut [T],
    d: Option<&mut [T]>,
    lanes: usize,
) -> bool {
    let width = lanes / T::lanes::<S>();
    if width * T::lanes::<S>() != lanes {
        return false;
    }
    let (c, _) = T::as_vectors::<S>(coefficients);
    let (z, _) = T::as_vectors::<S>(z);
    let (v, _) = T::as_vectors_mut::<S>(v);
    let (d, _) = T::as_vectors_mut::<S>(d.unwrap_or_default());
    let mut at = 0;
    while at + 4 <= width {
        quadratic_block::<T, S, 4>(simd, rule, c, z, v, d, width, at);
        at += 4;
    }
    while at < width {
        quadratic_block::<T, S, 1>(simd, rule, c, z, v, d, width, at);
        at += 1;
    }
    true
}

#[inline(always)]
fn load<T: Real, S: Isa, const N: usize>(numbers: &[T::Vector<S>], at: usize) -> [T::Vector<S>; N] {
    let from = &numbers[at..][..N];
    std::array::from_fn(
        #[inline(always)]
        |n| from[n],
    )
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one block of one call site")]
fn quadratic_block<T: Real, S: Isa, const N: usize>(
    simd: S,
    rule: &Quadratic,
    c: &[T::Vector<S>],
    z: &[T::Vector<S>],
    v: &mut [T::Vector<S>],
    d: &mut [T::Vector<S>],
    width: usize,
    at: usize,
) {
    let zero = [T::splat(simd, T::ZERO); N];
    let planes = c.len() / width.max(1);
    let c1 = if planes > 1 {
        load::<T, S, N>(c, width + at)
    } else {
        zero
    };
    let c2 = if planes > 2 {
        load::<T, S, N>(c, 2 * width + at)
    } else {
        zero
    };
    let c3 = if planes > 3 {
        load::<T, S, N>(c, 3 * width + at)
    } else {
        zero
    };
    let three = T::splat(simd, T::ONE + T::ONE + T::ONE);
    let (mut e1, mut e2) = (zero, zero);
    for n in 0..N {
        e1[n] = <T as Lanes>::add(simd, c2[n], c2[n]);
        e2[n] = <T as Lanes>::mul(simd, three, c3[n]);
    }
    let mut next = 0;
    for plane in &rule.planes {
        let linear = match plane.linear {
            Some(place) => load::<T, S, N>(z, place as usize * width + at),
            None => zero,
        };
        let (mut first, mut second) = (zero, zero);
        for n in 0..N {
            first[n] = <T as Lanes>::mul(simd, c1[n], linear[n]);
            second[n] = <T as Lanes>::mul(simd, e1[n], linear[n]);
        }
        let (doubled, end) = (plane.doubled as usize, plane.end as usize);
        if end > next {
            let mut q =
                products::<T, S, N>(simd, &rule.pairs[next..doubled], z, z, width, at, zero);
            for q in &mut q {
                *q = <T as Lanes>::add(simd, *q, *q);
            }
            let q = products::<T, S, N>(simd, &rule.pairs[doubled..end], z, z, width, at, q);
            for n in 0..N {
                first[n] = T::mul_add(simd, c2[n], q[n], first[n]);
                second[n] = T::mul_add(simd, e2[n], q[n], second[n]);
            }
            next = end;
        }
        if let Some(place) = plane.v {
            v[place as usize * width + at..][..N].copy_from_slice(&first);
        }
        if let Some(place) = plane.d {
            d[place as usize * width + at..][..N].copy_from_slice(&second);
        }
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

/// Σ x·y over all lanes.
#[inline(always)]
pub(crate) fn dot<T: Real, S: Isa>(simd: S, x: &[T], y: &[T]) -> T {
    let (xs, x_rest) = T::as_vectors::<S>(x);
    let (ys, y_rest) = T::as_vectors::<S>(y);
    let mut total = T::splat(simd, T::ZERO);
    for (&x, &y) in xs.iter().zip(ys) {
        total = <T as Lanes>::mul_add(simd, x, y, total);
    }
    let mut sum = T::reduce_sum(simd, total);
    for (&x, &y) in x_rest.iter().zip(y_rest) {
        sum += x * y;
    }
    sum
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
