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

    /// Planes that are made.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs.len()
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
    start: u32,
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
        let start = self.pairs.len() as u32;
        let doubled = push_symmetric(&mut self.pairs, pairs);
        let place = |place: usize| place as Place;
        self.planes.push(QuadraticPlane {
            linear: linear.map(place),
            start,
            doubled,
            end: self.pairs.len() as u32,
            v: v.map(place),
            d: d.map(place),
        });
    }
}

/// Adds the ordered `pairs` as those that count twice, then those that count once; returns
/// where the latter begin.
fn push_symmetric(all: &mut Vec<(Place, Place)>, pairs: &[(usize, usize)]) -> u32 {
    let narrow = |&(i, j): &(usize, usize)| (i as Place, j as Place);
    all.extend(pairs.iter().filter(|(i, j)| i < j).map(narrow));
    let doubled = all.len() as u32;
    all.extend(pairs.iter().filter(|(i, j)| i == j).map(narrow));
    doubled
}

/// One row of a composition of second order, without the values: with c the Taylor
/// coefficients 0 to 3 (those that v and d need) and q = Σ z_i z_j,
/// `v = c_1 z + c_2 q` and `d = 2c_2 z + 3c_3 q`, plane by plane. Where z is None, v holds it.
#[inline(always)]
pub(crate) fn quadratic<T: Real, S: Isa>(
    simd: S,
    rule: &Quadratic,
    coefficients: &[T],
    z: Option<&[T]>,
    v: &mut [T],
    d: Option<&mut [T]>,
    lanes: usize,
) -> bool {
    let width = lanes / T::lanes::<S>();
    if width * T::lanes::<S>() != lanes {
        return false;
    }
    let (c, _) = T::as_vectors::<S>(coefficients);
    let z = z.map(|z| T::as_vectors::<S>(z).0);
    let (v, _) = T::as_vectors_mut::<S>(v);
    let (d, _) = T::as_vectors_mut::<S>(d.unwrap_or_default());
    let zero = T::splat(simd, T::ZERO);
    let mut at = 0;
    while at + 4 <= width {
        let c = Coefficients::load(zero, c, width, at);
        quadratic_block::<T, S, 4>(simd, rule, c, z, v, d, width, at);
        at += 4;
    }
    while at < width {
        let c = Coefficients::load(zero, c, width, at);
        quadratic_block::<T, S, 1>(simd, rule, c, z, v, d, width, at);
        at += 1;
    }
    true
}

/// c_1 to c_3 of N vectors of arguments; those that are not needed are 0.
struct Coefficients<V, const N: usize>([[V; N]; 3]);

impl<V: Copy, const N: usize> Coefficients<V, N> {
    /// From their planes, those of c_0 first.
    #[inline(always)]
    fn load(zero: V, c: &[V], width: usize, at: usize) -> Self {
        let mut all = [[zero; N]; 3];
        for (k, c) in c.chunks_exact(width).skip(1).take(3).enumerate() {
            all[k] = load(c, at);
        }
        Self(all)
    }
}

/// A function whose first Taylor coefficients are made in registers, in two stages: between
/// them there is room for others of its kind, for which a processor need not wait.
pub(crate) trait SecondOrder<T: Real>: Copy {
    /// The first stage, of N vectors of arguments.
    fn begin<S: Isa, const N: usize>(self, simd: S, z: [T::Vector<S>; N])
    -> [[T::Vector<S>; N]; 3];
    /// c_0 to c_2, from the arguments and what the first stage made of them.
    fn finish<S: Isa, const N: usize>(
        self,
        simd: S,
        z: [T::Vector<S>; N],
        begun: [[T::Vector<S>; N]; 3],
    ) -> [[T::Vector<S>; N]; 3];
}

impl Quadratic {
    /// Whether f' is wanted at its value alone.
    pub(crate) fn slope_alone(&self) -> bool {
        self.planes.iter().all(|plane| plane.d.is_none())
    }
}

/// [`quadratic`] with the values: that of v at the place `value`, and f' in `slope`, for a
/// function of which [`Quadratic::slope_alone`] holds.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "three rows of different buffers")]
pub(crate) fn second_order<T: Real, S: Isa>(
    simd: S,
    function: impl SecondOrder<T>,
    rule: &Quadratic,
    value: Option<usize>,
    z: Option<&[T]>,
    v: &mut [T],
    slope: Option<&mut [T]>,
    lanes: usize,
) {
    let width = lanes / T::lanes::<S>();
    let z = z.map(|z| T::as_vectors::<S>(z).0);
    let (v, _) = T::as_vectors_mut::<S>(v);
    let (slope, _) = T::as_vectors_mut::<S>(slope.unwrap_or_default());
    let mut row = SecondOrderRow {
        simd,
        function,
        rule,
        value,
        z,
        v,
        slope,
        width,
    };
    let mut at = 0;
    while at + 8 <= width {
        let begun = [row.begin::<4>(at), row.begin::<4>(at + 4)];
        row.finish(at, begun[0]);
        row.finish(at + 4, begun[1]);
        at += 8;
    }
    if at + 4 <= width {
        let begun = row.begin::<4>(at);
        row.finish(at, begun);
        at += 4;
    }
    while at < width {
        let begun = row.begin::<1>(at);
        row.finish(at, begun);
        at += 1;
    }
}

struct SecondOrderRow<'a, T: Real, S: Isa, F> {
    simd: S,
    function: F,
    rule: &'a Quadratic,
    value: Option<usize>,
    /// None where v holds it.
    z: Option<&'a [T::Vector<S>]>,
    v: &'a mut [T::Vector<S>],
    slope: &'a mut [T::Vector<S>],
    width: usize,
}

impl<T: Real, S: Isa, F: SecondOrder<T>> SecondOrderRow<'_, T, S, F> {
    /// z's value comes first in its row.
    #[inline(always)]
    fn argument<const N: usize>(&self, at: usize) -> [T::Vector<S>; N] {
        load(self.z.unwrap_or(self.v), at)
    }

    #[inline(always)]
    fn begin<const N: usize>(&self, at: usize) -> [[T::Vector<S>; N]; 3] {
        self.function.begin(self.simd, self.argument(at))
    }

    #[inline(always)]
    fn finish<const N: usize>(&mut self, at: usize, begun: [[T::Vector<S>; N]; 3]) {
        let Self { simd, width, .. } = *self;
        let [c0, c1, c2] = self.function.finish(simd, self.argument(at), begun);
        if let Some(place) = self.value {
            self.v[place * width + at..][..N].copy_from_slice(&c0);
        }
        if !self.slope.is_empty() {
            self.slope[at..][..N].copy_from_slice(&c1);
        }
        let c = Coefficients([c1, c2, [T::splat(simd, T::ZERO); N]]);
        quadratic_block::<T, S, N>(simd, self.rule, c, self.z, self.v, &mut [], width, at);
    }
}

#[inline(always)]
fn load<V: Copy, const N: usize>(numbers: &[V], at: usize) -> [V; N] {
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
    Coefficients([c1, c2, c3]): Coefficients<T::Vector<S>, N>,
    z: Option<&[T::Vector<S>]>,
    v: &mut [T::Vector<S>],
    d: &mut [T::Vector<S>],
    width: usize,
    at: usize,
) {
    let zero = T::splat(simd, T::ZERO);
    let three = T::splat(simd, T::ONE + T::ONE + T::ONE);
    // From the last plane: v may hold z, and what makes a plane comes before it.
    for plane in rule.planes.iter().rev() {
        let (start, doubled) = (plane.start as usize, plane.doubled as usize);
        let end = plane.end as usize;
        let from = z.unwrap_or(v);
        let linear = match plane.linear {
            Some(place) => load::<_, N>(from, place as usize * width + at),
            None => [zero; N],
        };
        let mut q = [zero; N];
        if end > start {
            let (twice, once) = (&rule.pairs[start..doubled], &rule.pairs[doubled..end]);
            q = products::<T, S, N>(simd, twice, from, from, width, at, q);
            for q in &mut q {
                *q = <T as Lanes>::add(simd, *q, *q);
            }
            q = products::<T, S, N>(simd, once, from, from, width, at, q);
        }
        if let Some(place) = plane.v {
            let mut out = [zero; N];
            for n in 0..N {
                out[n] = <T as Lanes>::mul(simd, c1[n], linear[n]);
            }
            if end > start {
                for n in 0..N {
                    out[n] = T::mul_add(simd, c2[n], q[n], out[n]);
                }
            }
            v[place as usize * width + at..][..N].copy_from_slice(&out);
        }
        if let Some(place) = plane.d {
            let mut out = [zero; N];
            for n in 0..N {
                let e = <T as Lanes>::add(simd, c2[n], c2[n]);
                out[n] = <T as Lanes>::mul(simd, e, linear[n]);
            }
            if end > start {
                for n in 0..N {
                    let e = <T as Lanes>::mul(simd, three, c3[n]);
                    out[n] = T::mul_add(simd, e, q[n], out[n]);
                }
            }
            d[place as usize * width + at..][..N].copy_from_slice(&out);
        }
    }
}

/// The planes of the jet of f'(z) but for its value, from those of v = f(z), where
/// f' = a + b·f + c·f².
#[derive(Debug, Clone)]
pub(crate) struct Riccati {
    linear: f64,
    square: f64,
    planes: Vec<RiccatiPlane>,
    /// Places in v; those before `doubled` count twice.
    pairs: Vec<(Place, Place)>,
}

#[derive(Debug, Clone)]
struct RiccatiPlane {
    place: Place,
    own: Option<Place>,
    start: u32,
    doubled: u32,
    end: u32,
}

impl Riccati {
    /// With b = `linear` and c = `square`.
    pub(crate) fn new(linear: f64, square: f64) -> Self {
        Self {
            linear,
            square,
            planes: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// Adds a plane: its place, its place in v, all ordered pairs of places in v that make it.
    pub(crate) fn push(&mut self, place: usize, own: Option<usize>, pairs: &[(usize, usize)]) {
        let pairs = if self.square == 0.0 { &[] } else { pairs };
        let start = self.pairs.len() as u32;
        let doubled = push_symmetric(&mut self.pairs, pairs);
        self.planes.push(RiccatiPlane {
            place: place as Place,
            own: own.filter(|_| self.linear != 0.0).map(|own| own as Place),
            start,
            doubled,
            end: self.pairs.len() as u32,
        });
    }

    /// Products a lane, for counting.
    pub(crate) fn products(&self) -> usize {
        self.pairs.len()
    }

    /// One row: writes all planes of `d` but the value.
    #[inline(always)]
    pub(crate) fn fill<T: Real, S: Isa>(&self, simd: S, v: &[T], d: &mut [T], lanes: usize) {
        let width = lanes / T::lanes::<S>();
        if width * T::lanes::<S>() != lanes {
            // Fewer lanes than a vector holds; only tests come here.
            return self.fill_scalar(v, d, lanes);
        }
        let (v, _) = T::as_vectors::<S>(v);
        let (d, _) = T::as_vectors_mut::<S>(d);
        let mut at = 0;
        while at + 4 <= width {
            self.block::<T, S, 4>(simd, v, d, width, at);
            at += 4;
        }
        while at < width {
            self.block::<T, S, 1>(simd, v, d, width, at);
            at += 1;
        }
    }

    #[inline(always)]
    fn block<T: Real, S: Isa, const N: usize>(
        &self,
        simd: S,
        v: &[T::Vector<S>],
        d: &mut [T::Vector<S>],
        width: usize,
        at: usize,
    ) {
        let square = T::splat(simd, T::from_f64(self.square));
        let linear = T::splat(simd, T::from_f64(self.linear));
        for plane in &self.planes {
            let (start, doubled) = (plane.start as usize, plane.doubled as usize);
            let (twice, once) = (
                &self.pairs[start..doubled],
                &self.pairs[doubled..plane.end as usize],
            );
            let mut sum = [T::splat(simd, T::ZERO); N];
            sum = products::<T, S, N>(simd, twice, v, v, width, at, sum);
            for s in &mut sum {
                *s = <T as Lanes>::add(simd, *s, *s);
            }
            sum = products::<T, S, N>(simd, once, v, v, width, at, sum);
            for s in &mut sum {
                *s = <T as Lanes>::mul(simd, square, *s);
            }
            if let Some(place) = plane.own {
                let v = &v[place as usize * width + at..][..N];
                for n in 0..N {
                    sum[n] = T::mul_add(simd, linear, v[n], sum[n]);
                }
            }
            d[plane.place as usize * width + at..][..N].copy_from_slice(&sum);
        }
    }

    #[cold]
    fn fill_scalar<T: Real>(&self, v: &[T], d: &mut [T], lanes: usize) {
        for plane in &self.planes {
            let (start, doubled) = (plane.start as usize, plane.doubled as usize);
            for lane in 0..lanes {
                let of = |place: Place| v[place as usize * lanes + lane];
                let mut sum = T::ZERO;
                for &(i, j) in &self.pairs[start..doubled] {
                    sum += of(i) * of(j);
                }
                sum += sum;
                for &(i, j) in &self.pairs[doubled..plane.end as usize] {
                    sum += of(i) * of(j);
                }
                let own = plane.own.map_or(T::ZERO, of);
                d[plane.place as usize * lanes + lane] =
                    T::from_f64(self.square) * sum + T::from_f64(self.linear) * own;
            }
        }
    }
}

/// The adjoint of a composition of second order whose f' follows from v, as in [`Riccati`]:
/// with m = b + 2c·v_0 the jet of f' is d_i = m v_i, and d_s = m v_s + c Σ v_i v_j.
#[derive(Debug, Clone)]
pub(crate) struct QuadraticAdjoint {
    linear: f64,
    square: f64,
    /// Planes of first order, then of second.
    planes: Vec<AdjointPlane>,
    pairs: Vec<AdjointPair>,
    /// Planes of the destination that nothing reaches.
    zeros: Vec<Place>,
}

/// A plane of v and of its adjoint; the place in the destination, and its pairs up to `end`.
#[derive(Debug, Clone)]
struct AdjointPlane {
    own: Place,
    dst: Option<Place>,
    end: u32,
}

/// Places of two planes of first order in v, the first not after the second, and in the
/// destination.
#[derive(Debug, Clone)]
struct AdjointPair {
    own: [Place; 2],
    dst: [Option<Place>; 2],
}

/// Places of a plane in v and in the destination, and the pairs of places in v that make it.
pub(crate) type SecondOrderPlane = (usize, Option<usize>, Vec<(usize, usize)>);

impl QuadraticAdjoint {
    /// For a v whose first plane is the value. With b = `linear` and c = `square`; `planes` are
    /// the places in v and the destination of all planes but the value, in ascending order,
    /// with the ordered pairs of places in v that make them.
    pub(crate) fn new(
        linear: f64,
        square: f64,
        planes: &[SecondOrderPlane],
        zeros: &[usize],
    ) -> Self {
        let place = |place: usize| place as Place;
        let dst_of = |own: usize| {
            let found = planes.iter().find(|(at, ..)| *at == own);
            found.and_then(|(_, dst, _)| *dst).map(place)
        };
        let mut rule = Self {
            linear,
            square,
            planes: Vec::new(),
            pairs: Vec::new(),
            zeros: zeros.iter().copied().map(place).collect(),
        };
        for (own, dst, pairs) in planes {
            for &(i, j) in pairs.iter().filter(|(i, j)| i <= j) {
                rule.pairs.push(AdjointPair {
                    own: [place(i), place(j)],
                    dst: [dst_of(i), dst_of(j)],
                });
            }
            rule.planes.push(AdjointPlane {
                own: place(*own),
                dst: dst.map(place),
                end: rule.pairs.len() as u32,
            });
        }
        rule
    }

    /// One row: `dst (=|+=)` the adjoint of z, from v, f' at z and the adjoint of v, which
    /// dst holds where `adjoint` is None.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "four rows of different buffers")]
    pub(crate) fn apply<T: Real, S: Isa>(
        &self,
        simd: S,
        v: &[T],
        slope: &[T],
        adjoint: Option<&[T]>,
        dst: &mut [T],
        lanes: usize,
        mode: Mode,
    ) -> bool {
        let width = lanes / T::lanes::<S>();
        if width * T::lanes::<S>() != lanes {
            return false;
        }
        let (v, _) = T::as_vectors::<S>(v);
        let (slope, _) = T::as_vectors::<S>(slope);
        let adjoint = adjoint.map(|adjoint| T::as_vectors::<S>(adjoint).0);
        let (dst, _) = T::as_vectors_mut::<S>(dst);
        // The jets of eight would not fit the registers.
        let mut at = 0;
        while at + 4 <= width {
            self.block::<T, S, 4>(simd, v, slope, adjoint, dst, width, at, mode);
            at += 4;
        }
        while at < width {
            self.block::<T, S, 1>(simd, v, slope, adjoint, dst, width, at, mode);
            at += 1;
        }
        true
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one block of one call site")]
    fn block<T: Real, S: Isa, const N: usize>(
        &self,
        simd: S,
        v: &[T::Vector<S>],
        slope: &[T::Vector<S>],
        adjoint: Option<&[T::Vector<S>]>,
        dst: &mut [T::Vector<S>],
        width: usize,
        at: usize,
        mode: Mode,
    ) {
        let zero = T::splat(simd, T::ZERO);
        let square = T::splat(simd, T::from_f64(self.square));
        let twice = T::splat(simd, T::from_f64(2.0 * self.square));
        let linear = T::splat(simd, T::from_f64(self.linear));
        let slope = load::<_, N>(slope, at);
        let (mut m, mut value) = ([zero; N], [zero; N]);
        {
            let v = &v[at..][..N];
            let adjoint = &adjoint.unwrap_or(dst)[at..][..N];
            for n in 0..N {
                m[n] = T::mul_add(simd, twice, v[n], linear);
                value[n] = <T as Lanes>::mul(simd, slope[n], adjoint[n]);
            }
        }
        let mut pairs = self.pairs.iter();
        let mut next = 0;
        for plane in &self.planes {
            let own = plane.own as usize * width + at;
            let bar = load::<_, N>(adjoint.unwrap_or(dst), own);
            let v_own = &v[own..][..N];
            for n in 0..N {
                let d = <T as Lanes>::mul(simd, m[n], v_own[n]);
                value[n] = T::mul_add(simd, d, bar[n], value[n]);
            }
            if let Some(place) = plane.dst {
                let dst = &mut dst[place as usize * width + at..][..N];
                for n in 0..N {
                    dst[n] = match mode {
                        Mode::Overwrite => <T as Lanes>::mul(simd, slope[n], bar[n]),
                        Mode::Accumulate => T::mul_add(simd, slope[n], bar[n], dst[n]),
                    };
                }
            }
            for pair in pairs.by_ref().take((plane.end - next) as usize) {
                let [i, j] = pair.own;
                let a = &v[i as usize * width + at..][..N];
                let b = &v[j as usize * width + at..][..N];
                let factor = if i == j { square } else { twice };
                for n in 0..N {
                    let product = <T as Lanes>::mul(simd, factor, bar[n]);
                    let ab = <T as Lanes>::mul(simd, a[n], b[n]);
                    value[n] = T::mul_add(simd, product, ab, value[n]);
                }
                let [dst_i, dst_j] = pair.dst;
                add_product::<T, S, N>(simd, &m, b, &bar, dst, dst_i, width, at);
                if i != j {
                    add_product::<T, S, N>(simd, &m, a, &bar, dst, dst_j, width, at);
                }
            }
            next = plane.end;
        }
        let dst_value = &mut dst[at..][..N];
        for n in 0..N {
            dst_value[n] = match mode {
                Mode::Overwrite => value[n],
                Mode::Accumulate => <T as Lanes>::add(simd, dst_value[n], value[n]),
            };
        }
        if mode == Mode::Overwrite {
            for &place in &self.zeros {
                dst[place as usize * width + at..][..N].copy_from_slice(&[zero; N]);
            }
        }
    }
}

/// `dst[place] += m·v·bar`, unless there is no place.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one block of one call site")]
fn add_product<T: Real, S: Isa, const N: usize>(
    simd: S,
    m: &[T::Vector<S>; N],
    v: &[T::Vector<S>],
    bar: &[T::Vector<S>; N],
    dst: &mut [T::Vector<S>],
    place: Option<Place>,
    width: usize,
    at: usize,
) {
    if let Some(place) = place {
        let dst = &mut dst[place as usize * width + at..][..N];
        for n in 0..N {
            let d = <T as Lanes>::mul(simd, m[n], v[n]);
            dst[n] = T::mul_add(simd, d, bar[n], dst[n]);
        }
    }
}

/// `dst = src`, both whole rows: short enough that calling memcpy would cost as much again.
#[inline(always)]
pub(crate) fn copy<T: Real, S: Isa>(_: S, src: &[T], dst: &mut [T]) {
    if !src.len().is_multiple_of(T::lanes::<S>()) || src.len() != dst.len() {
        return dst.copy_from_slice(src);
    }
    let (from, _) = T::as_vectors::<S>(src);
    let (to, _) = T::as_vectors_mut::<S>(dst);
    let (from, from_rest) = from.as_chunks::<4>();
    let (to, to_rest) = to.as_chunks_mut::<4>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
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
