//! The replay: a plan run on a chunk of points, forward and reverse. Knows numbers, one
//! chunk at a time; nothing of conditions, losses or threads.

use crate::elemental::{self, Elemental};
use crate::kernel::gemm::{Packed, SCRATCH, Start, multiply, outer, outlined, row_sums};
use crate::kernel::jet::{
    Mode, QuadraticAdjoint, Riccati, Table, axpy, bilinear, bilinear_guarded, copy, quadratic,
    second_order, sum,
};
use crate::kernel::simd::{InstructionSet, Isa, Kernel, on};
use crate::plan::{
    BufferId, ColumnSum, Composition, Family, Layout, Plan, Root, Run, Step, Term, WeightKey, Zero,
};
use crate::real::Real;
use std::ops::Range;

/// Numbers that start at a cache line.
#[derive(Debug, Default)]
pub(crate) struct Aligned<T> {
    numbers: Vec<T>,
}

impl<T: Real> Aligned<T> {
    /// At least `len` numbers, kept if they are there already.
    pub(crate) fn reserve(&mut self, len: usize) {
        let padded = Self::padded(len);
        if self.numbers.len() < padded {
            self.numbers.reserve_exact(padded - self.numbers.len());
            self.numbers.resize(padded, T::ZERO);
        }
    }

    /// Numbers that are allocated for `len` of them.
    fn padded(len: usize) -> usize {
        len + 64 / size_of::<T>()
    }

    pub(crate) fn as_mut(&mut self) -> &mut [T] {
        let skip = self.numbers.as_ptr().align_offset(64);
        self.numbers.get_mut(skip..).unwrap_or_default()
    }

    pub(crate) fn as_ref(&self) -> &[T] {
        let skip = self.numbers.as_ptr().align_offset(64);
        self.numbers.get(skip..).unwrap_or_default()
    }
}

/// What one thread works in.
#[derive(Debug, Default)]
pub(crate) struct Workspace<T> {
    arena: Aligned<T>,
    scratch: Aligned<T>,
    elemental: elemental::Scratch,
}

impl<T: Real> Workspace<T> {
    /// Makes room for the largest of several plans, at once.
    pub(crate) fn reserve(&mut self, (arena, scratch): (usize, usize)) {
        self.arena.reserve(arena);
        self.scratch.reserve(SCRATCH.max(scratch));
    }

    /// Bytes that it allocates for these plans.
    pub(crate) fn bytes((arena, scratch): (usize, usize)) -> usize {
        let numbers = Aligned::<T>::padded(arena) + Aligned::<T>::padded(SCRATCH.max(scratch));
        numbers * size_of::<T>() + elemental::Scratch::BYTES
    }
}

/// The parameters as the replay reads them.
#[derive(Debug, Default)]
pub(crate) struct Weights<T> {
    /// All parameters.
    pub(crate) theta: Vec<T>,
    /// W and its transpose, packed, for each key of the weight table.
    packed: Vec<(Packed<T>, Packed<T>)>,
}

impl<T: Real> Weights<T> {
    /// Bytes that it allocates.
    pub(crate) fn bytes(parameters: usize, keys: &[WeightKey]) -> usize {
        let packed: usize = keys.iter().map(|key| 2 * key.rows * key.columns).sum();
        (parameters + packed) * size_of::<T>() + keys.len() * size_of::<(Packed<T>, Packed<T>)>()
    }

    /// Takes over the parameters. Allocates the first time only.
    pub(crate) fn load(&mut self, theta: &[f64], keys: &[WeightKey]) {
        self.theta.clear();
        self.theta.extend(theta.iter().map(|&x| T::from_f64(x)));
        self.packed.resize_with(keys.len(), Default::default);
        for (key, (forward, transposed)) in keys.iter().zip(&mut self.packed) {
            let w = &self.theta[key.offset..][..key.rows * key.columns];
            forward.pack(w, key.rows, key.columns, false);
            transposed.pack(w, key.rows, key.columns, true);
        }
    }
}

/// Some points, and their data: one slice for each coordinate and column, of equal lengths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a, T> {
    pub(crate) coordinates: &'a [Vec<T>],
    pub(crate) columns: &'a [Vec<T>],
    pub(crate) start: usize,
    /// Points; lanes beyond them repeat the last.
    pub(crate) count: usize,
}

impl<T: Real> Chunk<'_, T> {
    fn fill(&self, from: &[T], lanes: &mut [T]) {
        let from = &from[self.start..self.start + self.count];
        lanes[..self.count].copy_from_slice(from);
        lanes[self.count..].fill(from[self.count - 1]);
    }
}

/// Where the reverse sweep puts the gradient.
pub(crate) enum Sink<'a, T> {
    /// Added up over the points: one number for each parameter.
    Gradient(&'a mut [T]),
    /// One row of lanes for each parameter. Steps that are the first to write their
    /// parameters overwrite, others add.
    Rows {
        rows: &'a mut [T],
        /// For each step of the reverse sweep, whether it is.
        first: &'a [bool],
    },
}

/// A plan with its layout and parameters, ready for chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replay<'a, T> {
    pub(crate) plan: &'a Plan,
    pub(crate) layout: &'a Layout,
    pub(crate) keys: &'a [WeightKey],
    pub(crate) weights: &'a Weights<T>,
    pub(crate) set: InstructionSet,
}

impl<T: Real> Replay<'_, T> {
    /// All values of a chunk.
    pub(crate) fn forward(&self, chunk: Chunk<'_, T>, workspace: &mut Workspace<T>) {
        workspace.arena.reserve(self.layout.len);
        workspace
            .scratch
            .reserve(SCRATCH.max(self.plan.scratch * self.layout.lanes));
        self.set.dispatch(Forward {
            replay: *self,
            chunk,
            workspace,
        });
    }

    /// A residual of the last forward pass, lane by lane.
    pub(crate) fn residual<'w>(&self, root: &Root, workspace: &'w Workspace<T>) -> Option<&'w [T]> {
        let buffer = root.value?;
        Some(&workspace.arena.as_ref()[self.layout.offset[buffer]..][..self.layout.lanes])
    }

    /// Clears the seeds of all residuals.
    pub(crate) fn clear_seeds(&self, workspace: &mut Workspace<T>) {
        for &buffer in &self.plan.seeded {
            let range = self.range(buffer);
            workspace.arena.as_mut()[range].fill(T::ZERO);
        }
    }

    /// Adds to the seed of a residual: the adjoint of its value, lane by lane.
    pub(crate) fn seed(
        &self,
        root: &Root,
        workspace: &mut Workspace<T>,
        seeds: impl Iterator<Item = T>,
    ) {
        let Some(buffer) = root.adjoint else {
            return;
        };
        let lanes = &mut workspace.arena.as_mut()[self.layout.offset[buffer]..];
        for (lane, seed) in lanes.iter_mut().zip(seeds) {
            *lane += seed;
        }
    }

    /// The reverse sweep from the seeds.
    pub(crate) fn reverse(&self, workspace: &mut Workspace<T>, sink: Sink<'_, T>) {
        self.set.dispatch(Reverse {
            replay: *self,
            workspace,
            sink,
        });
    }

    /// All numbers of a buffer, row by row, as (row, plane, lane), after a forward pass of
    /// a plan that reuses none.
    pub(crate) fn buffer<'w>(&self, id: BufferId, workspace: &'w Workspace<T>) -> Vec<&'w [T]> {
        let arena = workspace.arena.as_ref();
        let buffer = &self.plan.buffers[id];
        (0..buffer.rows)
            .map(|row| {
                let start = self.layout.offset[id] + row * self.layout.stride[id];
                &arena[start..start + buffer.planes * self.layout.lanes]
            })
            .collect()
    }

    fn range(&self, id: BufferId) -> Range<usize> {
        let buffer = &self.plan.buffers[id];
        let start = self.layout.offset[id];
        start..start + buffer.rows * self.layout.stride[id]
    }

    /// A source that may be missing, where nothing is read from it.
    fn source(&self, id: Option<BufferId>) -> (Range<usize>, Rows) {
        match id {
            Some(id) => (self.range(id), self.rows(id)),
            None => (
                0..0,
                Rows {
                    stride: 0,
                    len: 0,
                    count: 0,
                },
            ),
        }
    }

    /// The matrix of a product, or its transpose.
    fn packed(&self, weight: usize, transposed: bool) -> &Packed<T> {
        let (matrix, transpose) = &self.weights.packed[weight];
        if transposed { transpose } else { matrix }
    }

    fn rows(&self, id: BufferId) -> Rows {
        Rows {
            stride: self.layout.stride[id],
            len: self.plan.buffers[id].planes * self.layout.lanes,
            count: self.plan.buffers[id].rows,
        }
    }
}

/// Rows of a buffer.
#[derive(Debug, Clone, Copy)]
struct Rows {
    stride: usize,
    len: usize,
    count: usize,
}

impl Rows {
    #[inline(always)]
    fn of<T>(self, numbers: &[T], row: usize) -> &[T] {
        &numbers[row * self.stride..][..self.len]
    }
    #[inline(always)]
    fn of_mut<T>(self, numbers: &mut [T], row: usize) -> &mut [T] {
        &mut numbers[row * self.stride..][..self.len]
    }
}

/// Disjoint parts of the arena. Lifetimes keep buffers in use at the same time apart.
fn parts<T, const N: usize>(arena: &mut [T], ranges: [Range<usize>; N]) -> [&mut [T]; N] {
    match arena.get_disjoint_mut(ranges) {
        Ok(parts) => parts,
        Err(error) => unreachable!("buffers in use at the same time overlap: {error}"),
    }
}

struct Forward<'a, T> {
    replay: Replay<'a, T>,
    chunk: Chunk<'a, T>,
    workspace: &'a mut Workspace<T>,
}

impl<T: Real> Kernel for Forward<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            replay,
            chunk,
            workspace,
        } = self;
        let arena = workspace.arena.as_mut();
        let scratch = workspace.scratch.as_mut();
        let elemental = &mut workspace.elemental;
        for step in &replay.plan.forward {
            forward_step(simd, &replay, step, chunk, arena, scratch, elemental);
        }
    }
}

#[inline(always)]
fn forward_step<T: Real, S: Isa>(
    simd: S,
    replay: &Replay<'_, T>,
    step: &Step,
    chunk: Chunk<'_, T>,
    arena: &mut [T],
    scratch: &mut [T],
    planes: &mut elemental::Scratch,
) {
    let lanes = replay.layout.lanes;
    match step {
        Step::Coordinate {
            dst,
            coordinate,
            value,
            first,
        } => {
            let row = &mut arena[replay.range(*dst)];
            if let Some(place) = value {
                chunk.fill(
                    &chunk.coordinates[*coordinate],
                    &mut row[place * lanes..][..lanes],
                );
            }
            if let Some(place) = first {
                row[place * lanes..][..lanes].fill(T::ONE);
            }
        }
        Step::Data { dst, column } => {
            let row = &mut arena[replay.range(*dst)];
            chunk.fill(&chunk.columns[*column], &mut row[..lanes]);
        }
        Step::Constant { dst, value } => {
            arena[replay.range(*dst)][..lanes].fill(T::from_f64(*value));
        }
        Step::Parameter { dst, index } => {
            arena[replay.range(*dst)][..lanes].fill(replay.weights.theta[*index]);
        }
        Step::Compose { .. } | Step::Family { .. } => {
            elemental_step(simd, replay, step, arena, scratch, planes);
        }
        Step::Guard {
            dst,
            factor,
            adjoint,
        } => guard(
            arena,
            lanes,
            (replay.range(*dst), replay.rows(*dst)),
            (replay.range(*factor), replay.rows(*factor)),
            (replay.range(*adjoint), replay.rows(*adjoint)),
        ),
        Step::Affine {
            dst,
            src,
            weight,
            transposed,
            bias,
            value,
            runs,
            columns,
        } => {
            let (dst_rows, (src, src_rows)) = (replay.rows(*dst), replay.source(*src));
            let [z, a] = parts(arena, [replay.range(*dst), src]);
            let key = replay.keys[*weight];
            let theta = &replay.weights.theta;
            on(
                simd,
                Affine {
                    packed: replay.packed(*weight, *transposed),
                    key,
                    transposed: *transposed,
                    weight: &theta[key.offset..][..key.rows * key.columns],
                    bias: bias.map(|at| &theta[at..at + key.rows]),
                    value: *value,
                    runs,
                    columns,
                    lanes,
                    a,
                    a_rows: src_rows,
                    z,
                    z_rows: dst_rows,
                },
            );
        }
        Step::Select {
            dst,
            or_equal,
            condition,
            places,
            then,
            otherwise,
        } => {
            let rows = replay.rows(*dst);
            let condition_rows = replay.rows(*condition);
            for row in 0..rows.count {
                let mask = condition_rows.of(&arena[replay.range(*condition)], row);
                scratch[..lanes].copy_from_slice(&mask[..lanes]);
                for (branch, taken) in [(*then, true), (*otherwise, false)] {
                    let branch_rows = replay.rows(branch);
                    let [out, from] = parts(arena, [replay.range(*dst), replay.range(branch)]);
                    let out = rows.of_mut(out, row);
                    let from = branch_rows.of(from, row);
                    for (plane, &(first, second)) in places.iter().enumerate() {
                        let place = if taken { first } else { second };
                        let out = &mut out[plane * lanes..][..lanes];
                        for lane in 0..lanes {
                            if holds(scratch[lane], *or_equal) == taken {
                                out[lane] = place.map_or(T::ZERO, |p| from[p * lanes + lane]);
                            }
                        }
                    }
                }
            }
        }
        _ => common_step(simd, replay, step, arena),
    }
}

/// Compositions, which the reverse sweep may do again: functions of their own, so that there
/// is one copy of each.
#[inline(always)]
fn elemental_step<T: Real, S: Isa>(
    simd: S,
    replay: &Replay<'_, T>,
    step: &Step,
    arena: &mut [T],
    scratch: &mut [T],
    planes: &mut elemental::Scratch,
) {
    let lanes = replay.layout.lanes;
    match step {
        Step::Compose {
            v,
            d,
            z,
            elemental,
            program,
        } => {
            // An absent buffer stands for no numbers, which are disjoint from any.
            let range = |id: &Option<BufferId>| id.map_or(0..0, |id| replay.range(id));
            let rows = |id: &Option<BufferId>| id.map(|id| replay.rows(id));
            let v_rows = replay.rows(*v);
            let [v, z_numbers, d_numbers] = parts(arena, [replay.range(*v), range(z), range(d)]);
            outlined(
                simd,
                Compose {
                    elemental,
                    program,
                    lanes,
                    z: rows(z).map(|rows| (&*z_numbers, rows)),
                    v,
                    v_rows,
                    d: rows(d).map(|rows| (d_numbers, rows)),
                    scratch,
                    planes,
                },
            );
        }
        Step::Family {
            outputs,
            z,
            elemental,
            program,
        } => outlined(
            simd,
            Members {
                replay,
                elemental,
                program,
                outputs,
                z: *z,
                arena,
                scratch,
                planes,
            },
        ),
        _ => unreachable!("a step of another kind"),
    }
}

/// 0 in lanes where all planes of an adjoint are 0 and one of its factor is not finite.
fn guard<T: Real>(
    arena: &mut [T],
    lanes: usize,
    (dst, dst_rows): (Range<usize>, Rows),
    (factor, factor_rows): (Range<usize>, Rows),
    (adjoint, adjoint_rows): (Range<usize>, Rows),
) {
    for row in 0..dst_rows.count {
        for lane in 0..lanes {
            let at = |range: &Range<usize>, rows: Rows| {
                let row = rows.of(&arena[range.clone()], row);
                row.iter().skip(lane).step_by(lanes)
            };
            let idle = at(&adjoint, adjoint_rows).all(|x| *x == T::ZERO);
            let finite = at(&factor, factor_rows).all(|x| x.is_finite());
            let keep = if idle && !finite { T::ZERO } else { T::ONE };
            dst_rows.of_mut(&mut arena[dst.clone()], row)[lane] = keep;
        }
    }
}

/// Whether a condition `x > 0` (or ≥) holds.
pub(crate) fn holds<T: Real>(x: T, or_equal: bool) -> bool {
    x > T::ZERO || (or_equal && x == T::ZERO)
}

/// Steps of both directions.
#[inline(always)]
fn common_step<T: Real, S: Isa>(simd: S, replay: &Replay<'_, T>, step: &Step, arena: &mut [T]) {
    let lanes = replay.layout.lanes;
    match step {
        Step::Linear {
            dst,
            zeros,
            terms,
            shift,
        } => {
            let rows = replay.rows(*dst);
            zero(&mut arena[replay.range(*dst)], rows, lanes, zeros);
            for term in terms {
                let src_rows = replay.rows(term.src);
                let [dst, src] = parts(arena, [replay.range(*dst), replay.range(term.src)]);
                on(
                    simd,
                    Linear {
                        term,
                        lanes,
                        src,
                        src_rows,
                        dst,
                        dst_rows: rows,
                    },
                );
            }
            if let Some((place, shift)) = shift {
                let shift = T::from_f64(*shift);
                let numbers = &mut arena[replay.range(*dst)];
                for row in 0..rows.count {
                    for x in &mut rows.of_mut(numbers, row)[place * lanes..][..lanes] {
                        *x += shift;
                    }
                }
            }
        }
        Step::Bilinear {
            dst,
            a,
            b,
            table,
            mode,
            guarded,
        } => {
            let (dst_rows, a_rows, b_rows) = (replay.rows(*dst), replay.rows(*a), replay.rows(*b));
            let (dst, a, b): (&mut [T], &[T], &[T]) = if a == b {
                let [dst, a] = parts(arena, [replay.range(*dst), replay.range(*a)]);
                (dst, a, a)
            } else {
                let ranges = [replay.range(*dst), replay.range(*a), replay.range(*b)];
                let [dst, a, b] = parts(arena, ranges);
                (dst, a, b)
            };
            on(
                simd,
                Bilinear {
                    table,
                    mode: *mode,
                    guarded: *guarded,
                    lanes,
                    a,
                    a_rows,
                    b,
                    b_rows,
                    dst,
                    dst_rows,
                },
            );
        }
        _ => unreachable!("a step of the other direction"),
    }
}

fn zero<T: Real>(numbers: &mut [T], rows: Rows, lanes: usize, zeros: &[Zero]) {
    for z in zeros {
        for row in z.row..z.row + z.rows {
            rows.of_mut(numbers, row)[z.place * lanes..][..z.len * lanes].fill(T::ZERO);
        }
    }
}

struct Linear<'a, T> {
    term: &'a Term,
    lanes: usize,
    src: &'a [T],
    src_rows: Rows,
    dst: &'a mut [T],
    dst_rows: Rows,
}

impl<T: Real> Kernel for Linear<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, _: S) {
        let Self { term, lanes, .. } = self;
        let len = term.run.len * lanes;
        let factor = T::from_f64(term.factor);
        for row in 0..term.rows {
            let src = self
                .src_rows
                .of(self.src, term.src_row + row * term.src_step);
            let dst = self
                .dst_rows
                .of_mut(self.dst, term.dst_row + row * term.dst_step);
            axpy(
                factor,
                &src[term.run.src * lanes..][..len],
                &mut dst[term.run.dst * lanes..][..len],
                term.mode,
            );
        }
    }
}

struct Bilinear<'a, T> {
    table: &'a Table,
    mode: Mode,
    guarded: bool,
    lanes: usize,
    a: &'a [T],
    a_rows: Rows,
    b: &'a [T],
    b_rows: Rows,
    dst: &'a mut [T],
    dst_rows: Rows,
}

impl<T: Real> Kernel for Bilinear<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            table, mode, lanes, ..
        } = self;
        for row in 0..self.dst_rows.count {
            let a = self.a_rows.of(self.a, row);
            let b = self.b_rows.of(self.b, row);
            let out = self.dst_rows.of_mut(self.dst, row);
            if self.guarded {
                bilinear_guarded(table, a, b, out, lanes, mode);
            } else {
                bilinear(simd, table, a, b, out, lanes, mode);
            }
        }
    }
}

struct Compose<'a, T> {
    elemental: &'a Elemental,
    program: &'a Composition,
    lanes: usize,
    /// None where v holds it.
    z: Option<(&'a [T], Rows)>,
    v: &'a mut [T],
    v_rows: Rows,
    d: Option<(&'a mut [T], Rows)>,
    scratch: &'a mut [T],
    planes: &'a mut elemental::Scratch,
}

impl<T: Real> Kernel for Compose<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Self { program, lanes, .. } = self;
        let scratch = &mut self.scratch[..program.scratch * lanes];
        if let Some(rule) = &program.quadratic
            && let Some(function) = self.elemental.in_registers::<S>()
            && rule.slope_alone()
            && lanes.is_multiple_of(T::lanes::<S>())
        {
            for row in 0..self.v_rows.count {
                let v = self.v_rows.of_mut(self.v, row);
                let z = self.z.map(|(z, rows)| rows.of(z, row));
                let d = self.d.as_mut().map(|(d, rows)| rows.of_mut(d, row));
                let slope = d.map(|d| &mut d[..lanes]);
                let value = program.value_place;
                second_order(simd, function, rule, value, z, v, slope, lanes);
            }
            return;
        }
        for row in 0..self.v_rows.count {
            let v = self.v_rows.of_mut(self.v, row);
            let z = self.z.map(|(z, rows)| rows.of(z, row));
            let (coefficients, rest) = scratch.split_at_mut(program.argument * lanes);
            let argument = z.unwrap_or(v);
            let simple = program.quadratic.is_some() && lanes.is_multiple_of(T::lanes::<S>());
            if !simple {
                copy(simd, argument, &mut rest[..argument.len()]);
            }
            // z's value comes first in its row.
            if S::FMA {
                self.elemental.coefficients::<T, true>(
                    &argument[..lanes],
                    program.order,
                    coefficients,
                    self.planes,
                );
            } else {
                self.elemental.coefficients::<T, false>(
                    &argument[..lanes],
                    program.order,
                    coefficients,
                    self.planes,
                );
            }
            let mut d = self.d.as_mut().map(|(d, rows)| rows.of_mut(d, row));
            if let Some(place) = program.value_place {
                copy(
                    simd,
                    &coefficients[..lanes],
                    &mut v[place * lanes..][..lanes],
                );
            }
            if let Some(d) = &mut d {
                // f' at z itself is always needed, and comes first.
                copy(simd, &coefficients[lanes..2 * lanes], &mut d[..lanes]);
            }
            if let Some(rule) = &program.quadratic
                && quadratic(simd, rule, coefficients, z, v, d.as_deref_mut(), lanes)
            {
                continue;
            }
            for (place, table) in &program.powers {
                let (lower, upper) = scratch.split_at_mut(place * lanes);
                bilinear(simd, table, lower, lower, upper, lanes, Mode::Overwrite);
            }
            bilinear(
                simd,
                &program.value,
                scratch,
                scratch,
                v,
                lanes,
                Mode::Overwrite,
            );
            if let Some(d) = d {
                let (coefficients, rest) = scratch.split_at_mut(program.scaled * lanes);
                let mut factor = T::ONE;
                for k in 1..=program.derivative_order {
                    factor += T::ONE;
                    axpy(
                        factor,
                        &coefficients[(k + 1) * lanes..][..lanes],
                        &mut rest[(k - 1) * lanes..][..lanes],
                        Mode::Overwrite,
                    );
                }
                bilinear(
                    simd,
                    &program.derivative,
                    scratch,
                    scratch,
                    d,
                    lanes,
                    Mode::Overwrite,
                );
            }
        }
    }
}

struct ComposeAdjoint<'a, T> {
    rule: &'a Riccati,
    quadratic: Option<&'a QuadraticAdjoint>,
    table: &'a Table,
    /// Of the jet of f', in scratch.
    planes: usize,
    mode: Mode,
    lanes: usize,
    v: &'a [T],
    v_rows: Rows,
    slope: &'a [T],
    slope_rows: Rows,
    /// None where dst holds it.
    adjoint: Option<(&'a [T], Rows)>,
    dst: &'a mut [T],
    dst_rows: Rows,
    scratch: &'a mut [T],
}

impl<T: Real> Kernel for ComposeAdjoint<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            rule, table, lanes, ..
        } = self;
        let planes = self.planes * lanes;
        let (jet, held) = self.scratch.split_at_mut(planes);
        for row in 0..self.dst_rows.count {
            let v = self.v_rows.of(self.v, row);
            let slope = &self.slope_rows.of(self.slope, row)[..lanes];
            let dst = self.dst_rows.of_mut(self.dst, row);
            let adjoint = self.adjoint.map(|(adjoint, rows)| rows.of(adjoint, row));
            if let Some(rule) = self.quadratic
                && rule.apply(simd, v, slope, adjoint, dst, lanes, self.mode)
            {
                continue;
            }
            copy(simd, slope, &mut jet[..lanes]);
            rule.fill(simd, v, jet, lanes);
            let adjoint = adjoint.unwrap_or_else(|| {
                let held = &mut held[..dst.len()];
                copy(simd, dst, held);
                held
            });
            bilinear(simd, table, jet, adjoint, dst, lanes, self.mode);
        }
    }
}

struct Members<'a, 'r, T> {
    replay: &'a Replay<'r, T>,
    elemental: &'a Elemental,
    program: &'a Family,
    outputs: &'a [BufferId],
    z: BufferId,
    arena: &'a mut [T],
    scratch: &'a mut [T],
    planes: &'a mut elemental::Scratch,
}

impl<T: Real> Kernel for Members<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            replay,
            program,
            arena,
            ..
        } = self;
        let lanes = replay.layout.lanes;
        let scratch = &mut self.scratch[..program.scratch * lanes];
        let z_rows = replay.rows(self.z);
        for row in 0..z_rows.count {
            // z's value comes first in its row.
            let argument = program.argument * lanes;
            let z = z_rows.of(&arena[replay.range(self.z)], row);
            scratch[argument..argument + z.len()].copy_from_slice(z);
            let (c, z) = scratch.split_at_mut(argument);
            let (c, z) = (&mut c[..(program.order + 1) * lanes], &z[..lanes]);
            if S::FMA {
                self.elemental
                    .coefficients::<T, true>(z, program.order, c, self.planes);
            } else {
                self.elemental
                    .coefficients::<T, false>(z, program.order, c, self.planes);
            }
            for (place, table) in &program.powers {
                let (lower, upper) = scratch.split_at_mut(place * lanes);
                bilinear(simd, table, lower, lower, upper, lanes, Mode::Overwrite);
            }
            for (member, &output) in program.members.iter().zip(self.outputs) {
                let rows = replay.rows(output);
                let out = rows.of_mut(&mut arena[replay.range(output)], row);
                let (c, rest) = scratch.split_at_mut(program.scaled * lanes);
                for (m, &(factor, place)) in member.coefficients.iter().enumerate() {
                    let to = match (m, member.value_place) {
                        (0, Some(place)) => &mut out[place * lanes..][..lanes],
                        (0, None) => continue,
                        _ => &mut rest[(m - 1) * lanes..][..lanes],
                    };
                    let from = &c[place * lanes..][..lanes];
                    axpy(T::from_f64(factor), from, to, Mode::Overwrite);
                }
                let table = &member.planes;
                bilinear(simd, table, scratch, scratch, out, lanes, Mode::Overwrite);
            }
        }
    }
}

struct Affine<'a, T> {
    packed: &'a Packed<T>,
    key: WeightKey,
    transposed: bool,
    weight: &'a [T],
    bias: Option<&'a [T]>,
    value: Option<usize>,
    runs: &'a [Run],
    columns: &'a [ColumnSum],
    lanes: usize,
    a: &'a [T],
    a_rows: Rows,
    z: &'a mut [T],
    z_rows: Rows,
}

impl<T: Real> Kernel for Affine<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { lanes, .. } = self;
        let mut biased = false;
        for run in self.runs {
            let value = self.value == Some(run.dst);
            biased |= value;
            let start = match self.bias.filter(|_| value) {
                Some(bias) => Start::Bias { bias, cols: lanes },
                None => Start::Zero,
            };
            multiply(
                simd,
                self.packed,
                &self.a[run.src * lanes..],
                self.a_rows.stride,
                &mut self.z[run.dst * lanes..],
                self.z_rows.stride,
                run.len * lanes,
                start,
            );
        }
        biased |= self.columns.iter().any(|sum| self.value == Some(sum.place));
        for row in 0..self.z_rows.count {
            let z = self.z_rows.of_mut(self.z, row);
            if let (false, Some(place)) = (biased, self.value) {
                let bias = self.bias.map_or(T::ZERO, |bias| bias[row]);
                z[place * lanes..][..lanes].fill(bias);
            }
            for ColumnSum { place, parts } in self.columns {
                let bias = self.bias.filter(|_| self.value == Some(*place));
                let mut sum = bias.map_or(T::ZERO, |bias| bias[row]);
                for &(input, factor) in parts {
                    let weight = self.weight[self.key.place(self.transposed, row, input)];
                    sum += weight * T::from_f64(factor);
                }
                z[place * lanes..][..lanes].fill(sum);
            }
        }
    }
}

struct Reverse<'a, T> {
    replay: Replay<'a, T>,
    workspace: &'a mut Workspace<T>,
    sink: Sink<'a, T>,
}

impl<T: Real> Kernel for Reverse<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            replay,
            workspace,
            mut sink,
        } = self;
        let arena = workspace.arena.as_mut();
        let scratch = workspace.scratch.as_mut();
        let elemental = &mut workspace.elemental;
        for (index, step) in replay.plan.reverse.iter().enumerate() {
            match step {
                Step::Compose { .. } | Step::Family { .. } => {
                    elemental_step(simd, &replay, step, arena, scratch, elemental);
                }
                _ => reverse_step(simd, &replay, index, step, arena, scratch, &mut sink),
            }
        }
    }
}

#[inline(always)]
fn reverse_step<T: Real, S: Isa>(
    simd: S,
    replay: &Replay<'_, T>,
    index: usize,
    step: &Step,
    arena: &mut [T],
    scratch: &mut [T],
    sink: &mut Sink<'_, T>,
) {
    let lanes = replay.layout.lanes;
    match step {
        Step::AffineAdjoint {
            zbar,
            src,
            abar,
            weight,
            transposed,
            bias,
            value,
            runs,
            columns,
            guarded,
            held,
        } => {
            let key = replay.keys[*weight];
            if let Some((dst, mode, zeros)) = abar {
                let (dst_rows, zbar_rows) = (replay.rows(*dst), replay.rows(*zbar));
                zero(&mut arena[replay.range(*dst)], dst_rows, lanes, zeros);
                let [a, z] = parts(arena, [replay.range(*dst), replay.range(*zbar)]);
                on(
                    simd,
                    InputAdjoint {
                        packed: replay.packed(*weight, !transposed),
                        mode: *mode,
                        runs,
                        lanes,
                        zbar: z,
                        zbar_rows,
                        abar: a,
                        abar_rows: dst_rows,
                    },
                );
            }
            if *held {
                return;
            }
            let (zbar_rows, (src, src_rows)) = (replay.rows(*zbar), replay.source(*src));
            let [z, a] = parts(arena, [replay.range(*zbar), src]);
            if *guarded {
                scrub(z, zbar_rows, a, src_rows, lanes);
            }
            on(
                simd,
                WeightAdjoint {
                    index,
                    key,
                    transposed: *transposed,
                    bias: *bias,
                    value: *value,
                    runs,
                    columns,
                    lanes,
                    zbar: z,
                    zbar_rows,
                    a,
                    a_rows: src_rows,
                    sink,
                    scratch,
                },
            );
        }
        Step::ComposeAdjoint {
            dst,
            adjoint,
            v,
            slope,
            rule,
            quadratic,
            planes,
            table,
            mode,
        } => {
            let range = |id: &Option<BufferId>| id.map_or(0..0, |id| replay.range(id));
            let ranges = [
                replay.range(*dst),
                range(adjoint),
                replay.range(*v),
                replay.range(*slope),
            ];
            let [dst_numbers, numbers, v_numbers, slope_numbers] = parts(arena, ranges);
            on(
                simd,
                ComposeAdjoint {
                    rule,
                    quadratic: quadratic.as_ref(),
                    table,
                    planes: *planes,
                    mode: *mode,
                    lanes,
                    v: v_numbers,
                    v_rows: replay.rows(*v),
                    slope: slope_numbers,
                    slope_rows: replay.rows(*slope),
                    adjoint: adjoint.map(|id| (&*numbers, replay.rows(id))),
                    dst: dst_numbers,
                    dst_rows: replay.rows(*dst),
                    scratch,
                },
            );
        }
        Step::ParameterAdjoint {
            adjoint,
            index: parameter,
        } => {
            let row = &arena[replay.range(*adjoint)][..lanes];
            match sink {
                Sink::Gradient(gradient) => gradient[*parameter] += sum(simd, row),
                Sink::Rows { rows, first } => {
                    let mode = match first[index] {
                        true => Mode::Overwrite,
                        false => Mode::Accumulate,
                    };
                    let out = &mut rows[parameter * lanes..][..lanes];
                    axpy(T::ONE, row, out, mode);
                }
            }
        }
        Step::SelectAdjoint {
            adjoint,
            or_equal,
            condition,
            dst,
            then,
            places,
            mode,
        } => {
            let dst_rows = replay.rows(*dst);
            let (adjoint_rows, mask_rows) = (replay.rows(*adjoint), replay.rows(*condition));
            let ranges = [
                replay.range(*dst),
                replay.range(*adjoint),
                replay.range(*condition),
            ];
            let [dst, adjoint, mask] = parts(arena, ranges);
            for row in 0..dst_rows.count {
                let mask = mask_rows.of(mask, row);
                let adjoint = adjoint_rows.of(adjoint, row);
                let dst = dst_rows.of_mut(dst, row);
                for (plane, place) in places.iter().enumerate() {
                    let dst = &mut dst[plane * lanes..][..lanes];
                    for lane in 0..lanes {
                        let taken = holds(mask[lane], *or_equal) == *then;
                        let own = match place {
                            Some(place) if taken => adjoint[place * lanes + lane],
                            _ => T::ZERO,
                        };
                        match mode {
                            Mode::Overwrite => dst[lane] = own,
                            Mode::Accumulate => dst[lane] += own,
                        }
                    }
                }
            }
        }
        _ => common_step(simd, replay, step, arena),
    }
}

/// Clears what is not finite in lanes whose adjoints are all 0, so that NaN of a branch not
/// taken meets no product. Finite numbers stay: other steps may read them.
fn scrub<T: Real>(zbar: &[T], zbar_rows: Rows, a: &mut [T], a_rows: Rows, lanes: usize) {
    for lane in 0..lanes {
        let idle = (0..zbar_rows.count).all(|row| {
            let row = zbar_rows.of(zbar, row);
            row.iter().skip(lane).step_by(lanes).all(|x| *x == T::ZERO)
        });
        if idle {
            for row in 0..a_rows.count {
                let row = a_rows.of_mut(a, row);
                for x in row
                    .iter_mut()
                    .skip(lane)
                    .step_by(lanes)
                    .filter(|x| !x.is_finite())
                {
                    *x = T::ZERO;
                }
            }
        }
    }
}

struct InputAdjoint<'a, T> {
    packed: &'a Packed<T>,
    mode: Mode,
    runs: &'a [Run],
    lanes: usize,
    zbar: &'a [T],
    zbar_rows: Rows,
    abar: &'a mut [T],
    abar_rows: Rows,
}

impl<T: Real> Kernel for InputAdjoint<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        for run in self.runs {
            multiply(
                simd,
                self.packed,
                &self.zbar[run.dst * self.lanes..],
                self.zbar_rows.stride,
                &mut self.abar[run.src * self.lanes..],
                self.abar_rows.stride,
                run.len * self.lanes,
                match self.mode {
                    Mode::Overwrite => Start::Zero,
                    Mode::Accumulate => Start::Held,
                },
            );
        }
    }
}

struct WeightAdjoint<'a, 's, T> {
    /// Of the step.
    index: usize,
    key: WeightKey,
    transposed: bool,
    bias: Option<usize>,
    value: Option<usize>,
    runs: &'a [Run],
    columns: &'a [ColumnSum],
    lanes: usize,
    zbar: &'a [T],
    zbar_rows: Rows,
    a: &'a [T],
    a_rows: Rows,
    sink: &'a mut Sink<'s, T>,
    scratch: &'a mut [T],
}

impl<T: Real> Kernel for WeightAdjoint<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            key,
            transposed,
            lanes,
            zbar,
            zbar_rows,
            ..
        } = self;
        let (outputs, inputs) = key.shape(transposed);
        let at = |output: usize, input: usize| key.place(transposed, output, input);
        let weight = key.offset..key.offset + key.rows * key.columns;
        match self.sink {
            Sink::Gradient(gradient) => {
                for run in self.runs {
                    let z = (&zbar[run.dst * lanes..], zbar_rows.stride);
                    let a = (&self.a[run.src * lanes..], self.a_rows.stride);
                    // Of Wᵀ the rows of z̄ and of a change places.
                    let (left, right) = if transposed { (a, z) } else { (z, a) };
                    outer(
                        simd,
                        left.0,
                        left.1,
                        key.rows,
                        right.0,
                        right.1,
                        key.columns,
                        run.len * lanes,
                        &mut gradient[weight.clone()],
                        self.scratch,
                    );
                }
                if let (Some(bias), Some(place)) = (self.bias, self.value) {
                    row_sums(
                        simd,
                        zbar,
                        zbar_rows.stride,
                        outputs,
                        place * lanes..(place + 1) * lanes,
                        &mut gradient[bias..bias + outputs],
                    );
                }
                let gradient = &mut gradient[weight];
                for ColumnSum { place, parts } in self.columns {
                    for row in 0..outputs {
                        let total = sum(simd, &zbar_rows.of(zbar, row)[place * lanes..][..lanes]);
                        for &(input, factor) in parts {
                            gradient[at(row, input)] += T::from_f64(factor) * total;
                        }
                    }
                }
            }
            Sink::Rows { rows, first } => {
                let first = first[self.index];
                for row in 0..outputs {
                    let zbar = zbar_rows.of(zbar, row);
                    for input in 0..inputs {
                        let a = self.a_rows.of(self.a, input);
                        let out = &mut rows[(key.offset + at(row, input)) * lanes..][..lanes];
                        row_of_products(simd, self.runs, zbar, a, out, first);
                    }
                    for ColumnSum { place, parts } in self.columns {
                        for &(input, factor) in parts {
                            axpy(
                                T::from_f64(factor),
                                &zbar[place * lanes..][..lanes],
                                &mut rows[(key.offset + at(row, input)) * lanes..][..lanes],
                                Mode::Accumulate,
                            );
                        }
                    }
                    if let Some(bias) = self.bias {
                        let out = &mut rows[(bias + row) * lanes..][..lanes];
                        if first {
                            out.fill(T::ZERO);
                        }
                        if let Some(place) = self.value {
                            let zbar = &zbar[place * lanes..][..lanes];
                            axpy(T::ONE, zbar, out, Mode::Accumulate);
                        }
                    }
                }
            }
        }
    }
}

/// Σ z·a over the planes of the runs, lane by lane: the row of one weight.
#[inline(always)]
fn row_of_products<T: Real, S: Isa>(
    simd: S,
    runs: &[Run],
    z: &[T],
    a: &[T],
    out: &mut [T],
    first: bool,
) {
    /// Vectors that are added up in registers.
    const GROUP: usize = 4;
    let lanes = out.len();
    let group = GROUP * T::lanes::<S>();
    let zero = T::splat(simd, T::ZERO);
    let mut start = 0;
    while start < lanes {
        let len = group.min(lanes - start);
        let (out, _) = T::as_vectors_mut::<S>(&mut out[start..start + len]);
        let mut sums = [zero; GROUP];
        if !first {
            sums[..out.len()].copy_from_slice(out);
        }
        for run in runs {
            for plane in 0..run.len {
                let z = &z[(run.dst + plane) * lanes + start..][..len];
                let a = &a[(run.src + plane) * lanes + start..][..len];
                let (z, a) = (T::as_vectors::<S>(z).0, T::as_vectors::<S>(a).0);
                for ((sum, &z), &a) in sums.iter_mut().zip(z).zip(a) {
                    *sum = T::mul_add(simd, z, a, *sum);
                }
            }
        }
        out.copy_from_slice(&sums[..out.len()]);
        start += len;
    }
}
