//! The damped least-squares problems of one Jacobian J and residual r, for any damping:
//! min ‖J p + r‖² + λ‖p‖², by orthogonal transformations alone. JᵀJ is never formed: it
//! would lose all singular values below 1e-8 of the largest.
//!
//! 1. Rows are folded, block by block, into a triangle R with Qᵀr (Householder, blocked), so
//!    that memory does not grow with their number. Fewer rows than columns are held and
//!    factored as columns instead.
//! 2. The triangle is reduced to a band: R = U B Vᵀ. A band instead of the singular value
//!    decomposition keeps nearly all work in matrix products; it took a tenth of the time
//!    of faer's decomposition at 1,400 columns, and all that follows is as exact.
//! 3. For each λ the band with √λ I below it is reduced by rotations, 6 n b² operations for a
//!    bandwidth b, a thousandth of what came before.
//!
//! Work is cut into tasks of fixed size: the bits do not depend on the number of threads.

use super::Objective;
use crate::error::Error;
use faer::diag::Diag;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{
    LltRegularization, cholesky_in_place, cholesky_in_place_scratch,
};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as left_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as left_in_place,
    apply_block_householder_sequence_on_the_right_in_place_scratch as right_scratch,
    apply_block_householder_sequence_on_the_right_in_place_with_conj as right_in_place,
    apply_block_householder_sequence_transpose_on_the_left_in_place_scratch as left_transposed_scratch,
    apply_block_householder_sequence_transpose_on_the_left_in_place_with_conj as left_transposed_in_place,
};
use faer::linalg::matmul::matmul;
use faer::linalg::qr::no_pivoting::factor::{qr_in_place, qr_in_place_scratch};
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{Accum, Conj, Mat, MatMut, MatRef, Par, Spec};
use rayon::prelude::*;
use std::ops::Range;

/// Columns that are factored at a time.
const PANEL: usize = 64;
/// Columns (or rows) that a task updates.
const WIDTH: usize = 128;
/// Rows that are folded at a time.
const BLOCK: usize = 1024;
/// Diagonals of the band above the main one.
const BAND: usize = 32;

/// What is kept from step to step, so that no step allocates it anew.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    triangle: Mat<f64>,
    block: Mat<f64>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            triangle: Mat::new(),
            block: Mat::new(),
        }
    }
}

/// J as B = Uᵀ R V, an upper band, with c = Uᵀ Qᵀ r.
#[derive(Debug)]
pub(crate) struct Model {
    rows: Vec<[f64; BAND + 1]>,
    c: Vec<f64>,
    /// V, as reflectors.
    right: Vec<Reflectors>,
    /// Where columns were factored: Q of Jᵀ, and the number of parameters.
    lift: Option<(Vec<Reflectors>, usize)>,
    /// ‖B‖² in Frobenius' norm.
    pub(crate) scale: f64,
}

/// I − V T Vᵀ, acting on the last rows of a vector.
#[derive(Debug)]
struct Reflectors {
    v: Mat<f64>,
    t: Mat<f64>,
}

impl Model {
    /// Takes the rows of an objective, with the derivatives in some of the parameters.
    ///
    /// # Errors
    /// The objective's; a Jacobian that is not finite.
    pub(crate) fn new(
        objective: &dyn Objective,
        theta: &[f64],
        columns: Range<usize>,
        work: &mut Work,
    ) -> Result<Self, Error> {
        let model = if objective.row_count()? < columns.len() {
            Self::by_columns(objective, theta, columns)?
        } else {
            Self::by_rows(objective, theta, columns, work)?
        };
        if !(model.scale + model.c.iter().sum::<f64>()).is_finite() {
            return Err(Error::OutOfRange {
                what: "a derivative of a residual".to_owned(),
                given: "not finite".to_owned(),
                expected: "look for a function with an infinite derivative".to_owned(),
            });
        }
        Ok(model)
    }

    fn by_rows(
        objective: &dyn Objective,
        theta: &[f64],
        columns: Range<usize>,
        work: &mut Work,
    ) -> Result<Self, Error> {
        let n = columns.len();
        if work.triangle.nrows() != n {
            work.triangle = Mat::zeros(n, n + 1);
            work.block = Mat::zeros(BLOCK, n + 1);
        }
        let Work { triangle, block } = work;
        triangle.fill(0.0);
        let mut filled = 0;
        objective.rows(theta, &mut |rows| {
            let mut done = 0;
            while done < rows.residuals.len() {
                let count = (rows.residuals.len() - done).min(BLOCK - filled);
                for index in 0..=n {
                    let from = match index {
                        index if index == n => rows.residuals,
                        index => rows.parameter(columns.start + index),
                    };
                    block.col_as_slice_mut(index)[filled..filled + count]
                        .copy_from_slice(&from[done..done + count]);
                }
                filled += count;
                done += count;
                if filled == BLOCK {
                    fold(triangle.as_mut(), block.as_mut());
                    filled = 0;
                }
            }
        })?;
        if filled > 0 {
            fold(triangle.as_mut(), block.as_mut().subrows_mut(0, filled));
        }
        Ok(Self::of(triangle.as_mut(), None))
    }

    /// Jᵀ = Q R, so that J p = Rᵀ y with p = Q y: what p holds beside is nothing but length.
    fn by_columns(
        objective: &dyn Objective,
        theta: &[f64],
        range: Range<usize>,
    ) -> Result<Self, Error> {
        let (n, count) = (range.len(), objective.row_count()?);
        let mut columns = Mat::zeros(n, count);
        let mut square = Mat::zeros(count, count + 1);
        let mut start = 0;
        objective.rows(theta, &mut |rows| {
            for (point, r) in rows.residuals.iter().enumerate() {
                square[(start + point, count)] = *r;
                let column = columns.col_as_slice_mut(start + point);
                for (index, to) in range.clone().zip(column) {
                    *to = rows.parameter(index)[point];
                }
            }
            start += rows.residuals.len();
        })?;
        let mut reflectors = Vec::new();
        for k in (0..count).step_by(BAND) {
            let width = BAND.min(count - k);
            let (above, below) = columns.as_mut().split_at_row_mut(k);
            let panel = below.subcols_mut(k, count - k);
            let (mut v, rest) = panel.split_at_col_mut(width);
            for j in 0..width {
                for i in 0..k {
                    square[(k + j, i)] = above[(i, k + j)];
                }
            }
            let t = factor_panel(v.rb_mut());
            reflect_left(rest, v.rb(), t.as_ref());
            for j in 0..width {
                for i in 0..=j {
                    square[(k + j, k + i)] = v[(i, j)];
                }
            }
            reflectors.push(Reflectors { v: v.to_owned(), t });
        }
        Ok(Self::of(square.as_mut(), Some((reflectors, n))))
    }

    /// Reduces a square matrix with a right-hand side as its last column to a band, panel by
    /// panel: reflections from the left clear a panel of columns, those from the right a
    /// panel of rows.
    fn of(mut a: MatMut<'_, f64>, lift: Option<(Vec<Reflectors>, usize)>) -> Self {
        let n = a.nrows();
        let mut right = Vec::new();
        for k in (0..n).step_by(BAND) {
            let width = BAND.min(n - k);
            let (.., corner) = a.rb_mut().split_at_mut(k, k);
            let (mut v, mut rest) = corner.split_at_col_mut(width);
            let t = factor_panel(v.rb_mut());
            reflect_left(rest.rb_mut(), v.rb(), t.as_ref());
            let left = n - k - width;
            if left == 0 {
                break;
            }
            let rest = rest.subcols_mut(0, left);
            let (mut top, below) = rest.split_at_row_mut(width);
            let mut rows = top.rb().transpose().to_owned();
            let t = factor_panel(rows.as_mut());
            for j in 0..left {
                for i in 0..width {
                    top[(i, j)] = if j <= i { rows[(j, i)] } else { 0.0 };
                }
            }
            let v = rows.subcols(0, left.min(width)).to_owned();
            below
                .par_row_chunks_mut(WIDTH)
                .with_max_len(1)
                .for_each(|below| {
                    let size = right_scratch::<f64>(v.nrows(), t.nrows(), below.nrows());
                    let mut memory = MemBuffer::new(size);
                    let stack = MemStack::new(&mut memory);
                    right_in_place(v.as_ref(), t.as_ref(), Conj::No, below, Par::Seq, stack);
                });
            right.push(Reflectors { v, t });
        }
        let row = |i: usize| std::array::from_fn(|t| if i + t < n { a[(i, i + t)] } else { 0.0 });
        let rows: Vec<[f64; BAND + 1]> = (0..n).map(row).collect();
        Self {
            scale: rows.as_flattened().iter().map(|x| x * x).sum(),
            c: (0..n).map(|i| a[(i, n)]).collect(),
            rows,
            right,
            lift,
        }
    }

    /// The band with √λ I below it, reduced to a triangle.
    pub(crate) fn damp(&self, lambda: f64) -> Damped {
        let n = self.rows.len();
        let root = lambda.sqrt();
        // Rows that came from √λ I, with what they have been rotated into: a triangle of rows
        // over the BAND columns from j on. Column c has its place c mod BAND in a row, and the
        // row that starts with it has the place c mod BAND too.
        let mut extra = [Row::default(); BAND];
        let mut reduced = vec![Row::default(); n];
        let mut pivots = vec![0.0; n];
        for j in 0..n {
            let s = j % BAND;
            // √λ in column j joins the row that starts there; what that leaves over starts
            // one column later.
            let start = extra[s];
            let (cos, sin, length) = rotation(start.numbers[s], root);
            let mut over = start.scaled(-sin);
            extra[s] = start.scaled(cos);
            // The band's row and that row give the row of the result.
            let band = self.rows[j];
            let (cos, sin, pivot) = rotation(band[0], length);
            pivots[j] = pivot;
            let mut row = Row {
                right: self.c[j],
                ..Row::default()
            };
            for (place, x) in (j + 1..).zip(&band[1..]) {
                row.numbers[place % BAND] = *x;
            }
            let mut rest = extra[s];
            rest.numbers[s] = 0.0;
            over.numbers[s] = 0.0;
            row.rotate(&mut rest, cos, sin);
            reduced[j] = row;
            for place in j + 1..j + BAND {
                let p = place % BAND;
                for row in [&mut over, &mut rest] {
                    let (cos, sin, _) = rotation(extra[p].numbers[p], row.numbers[p]);
                    extra[p].rotate(row, cos, sin);
                    row.numbers[p] = 0.0;
                }
            }
            // Only column j + BAND is left, which has the place of column j.
            extra[s] = rest;
        }
        Damped {
            rows: reduced,
            pivots,
        }
    }

    /// ‖r‖² − ‖J p + r‖² for the p of a z, without cancellation.
    pub(crate) fn decrease(&self, z: &[f64]) -> f64 {
        let terms = self
            .rows
            .iter()
            .zip(&self.c)
            .enumerate()
            .map(|(j, (row, c))| {
                let product: f64 = row.iter().zip(&z[j..]).map(|(a, z)| a * z).sum();
                product * (2.0 * c + product)
            });
        -terms.sum::<f64>()
    }

    /// p of a z.
    pub(crate) fn expand(&self, z: &[f64]) -> Vec<f64> {
        let mut p = z.to_vec();
        for reflectors in self.right.iter().rev() {
            reflectors.apply(&mut p, false);
        }
        if let Some((lift, size)) = &self.lift {
            p.resize(*size, 0.0);
            for reflectors in lift.iter().rev() {
                reflectors.apply(&mut p, false);
            }
        }
        p
    }

    /// The z of a vector among the parameters: Vᵀ p.
    pub(crate) fn contract(&self, p: &[f64]) -> Vec<f64> {
        let mut z = p.to_vec();
        if let Some((lift, _)) = &self.lift {
            for reflectors in lift {
                reflectors.apply(&mut z, true);
            }
            z.truncate(self.rows.len());
        }
        for reflectors in &self.right {
            reflectors.apply(&mut z, true);
        }
        z
    }
}

/// A triangle R with RᵀR = BᵀB + λI, as wide as the band, and its right-hand side.
#[derive(Debug)]
pub(crate) struct Damped {
    /// Right of the diagonal; column c has the place c mod BAND.
    rows: Vec<Row>,
    pivots: Vec<f64>,
}

impl Damped {
    /// Minimises ‖B z + c‖² + λ‖z‖², so that z = Vᵀp; ‖z‖ = ‖p‖.
    pub(crate) fn solution(&self) -> Vec<f64> {
        let right: Vec<f64> = self.rows.iter().map(|row| -row.right).collect();
        self.backward(&right)
    }

    /// (BᵀB + λI)⁻¹ v.
    pub(crate) fn normal(&self, v: &[f64]) -> Vec<f64> {
        let n = self.rows.len();
        let mut y = v.to_vec();
        y.resize(n + BAND, 0.0);
        for (j, row) in self.rows.iter().enumerate() {
            y[j] /= self.pivots[j];
            let known = y[j];
            for (place, y) in (j + 1..).zip(&mut y[j + 1..=j + BAND]) {
                *y -= row.numbers[place % BAND] * known;
            }
        }
        y.truncate(n);
        self.backward(&y)
    }

    /// R⁻¹ y.
    fn backward(&self, y: &[f64]) -> Vec<f64> {
        let n = self.rows.len();
        let mut z = vec![0.0; n + BAND];
        for (j, row) in self.rows.iter().enumerate().rev() {
            let mut sum = y[j];
            for (place, z) in (j + 1..).zip(&z[j + 1..=j + BAND]) {
                sum -= row.numbers[place % BAND] * z;
            }
            z[j] = sum / self.pivots[j];
        }
        z.truncate(n);
        z
    }
}

impl Reflectors {
    /// Applies the product, or its transpose, to the last entries of a vector.
    fn apply(&self, vector: &mut [f64], transposed: bool) {
        let (rows, block) = (self.v.nrows(), self.t.nrows());
        let start = vector.len() - rows;
        let tail = MatMut::from_column_major_slice_mut(&mut vector[start..], rows, 1);
        let (v, t) = (self.v.as_ref(), self.t.as_ref());
        if transposed {
            let mut memory = MemBuffer::new(left_transposed_scratch::<f64>(rows, block, 1));
            let stack = MemStack::new(&mut memory);
            left_transposed_in_place(v, t, Conj::No, tail, Par::Seq, stack);
        } else {
            let mut memory = MemBuffer::new(left_scratch::<f64>(rows, block, 1));
            let stack = MemStack::new(&mut memory);
            left_in_place(v, t, Conj::No, tail, Par::Seq, stack);
        }
    }
}

/// A row of numbers with its right-hand side.
#[derive(Debug, Clone, Copy)]
struct Row {
    numbers: [f64; BAND],
    right: f64,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            numbers: [0.0; BAND],
            right: 0.0,
        }
    }
}

impl Row {
    fn scaled(mut self, factor: f64) -> Self {
        for x in &mut self.numbers {
            *x *= factor;
        }
        self.right *= factor;
        self
    }

    /// (self, other) ← (cos·self + sin·other, cos·other − sin·self).
    #[inline]
    fn rotate(&mut self, other: &mut Self, cos: f64, sin: f64) {
        for (x, y) in self.numbers.iter_mut().zip(&mut other.numbers) {
            (*x, *y) = (cos * *x + sin * *y, cos * *y - sin * *x);
        }
        let (x, y) = (self.right, other.right);
        (self.right, other.right) = (cos * x + sin * y, cos * y - sin * x);
    }
}

/// cos, sin and length of the rotation that turns (a, b) into (length, 0).
#[inline]
fn rotation(a: f64, b: f64) -> (f64, f64, f64) {
    let length = (a * a + b * b).sqrt();
    if length > 0.0 {
        (a / length, b / length, length)
    } else {
        (1.0, 0.0, 0.0)
    }
}

/// Folds rows (with their right-hand side as the last column) into the triangle above them.
/// The rows are destroyed. While a panel is applied to most columns, the next is factored.
fn fold(mut triangle: MatMut<'_, f64>, mut rows: MatMut<'_, f64>) {
    let n = triangle.nrows();
    let mut width = PANEL.min(n);
    let mut t = Mat::zeros(PANEL, PANEL);
    let mut next_t = Mat::zeros(PANEL, PANEL);
    factor_below(
        triangle.rb_mut().submatrix_mut(0, 0, width, width),
        rows.rb_mut().subcols_mut(0, width),
        t.as_mut().submatrix_mut(0, 0, width, width),
    );
    let mut k = 0;
    while k < n {
        let next = PANEL.min(n - k - width);
        let (left, right) = rows.rb_mut().split_at_col_mut(k + width);
        let v = left.rb().subcols(k, width);
        let t_now = t.as_ref().submatrix(0, 0, width, width);
        let above = triangle.rb_mut().subrows_mut(k, width + next);
        let above = above.subcols_mut(k + width, n + 1 - k - width);
        let (top, below) = above.split_at_row_mut(width);
        let (top_next, top_rest) = top.split_at_col_mut(next);
        let (mut rows_next, rows_rest) = right.split_at_col_mut(next);
        let t_next = next_t.as_mut().submatrix_mut(0, 0, next, next);
        rayon::join(
            || {
                if next > 0 {
                    reflect_below(v, t_now, top_next, rows_next.rb_mut());
                    factor_below(below.subcols_mut(0, next), rows_next, t_next);
                }
            },
            || {
                let top = top_rest.par_col_chunks_mut(WIDTH);
                let pairs = top.zip(rows_rest.par_col_chunks_mut(WIDTH));
                let each = |(top, rows)| reflect_below(v, t_now, top, rows);
                pairs.with_max_len(1).for_each(each);
            },
        );
        std::mem::swap(&mut t, &mut next_t);
        k += width;
        width = next;
    }
}

/// Householder vectors (1 at a pivot of the triangle `head`, v below it) that clear `v`
/// against `head`, with T of their product I − V T Vᵀ. Recursive, so that most of it is
/// matrix products.
fn factor_below(mut head: MatMut<'_, f64>, mut v: MatMut<'_, f64>, mut t: MatMut<'_, f64>) {
    let width = v.ncols();
    if width == 1 {
        let length = v.rb().col(0).norm_l2();
        let alpha = head[(0, 0)];
        if length == 0.0 {
            t[(0, 0)] = 0.0;
            return;
        }
        let beta = -alpha.hypot(length).copysign(alpha);
        let scale = 1.0 / (alpha - beta);
        for i in 0..v.nrows() {
            v[(i, 0)] *= scale;
        }
        head[(0, 0)] = beta;
        t[(0, 0)] = (beta - alpha) / beta;
        return;
    }
    let half = width / 2;
    let (head1, mut across, _, head2) = head.split_at_mut(half, half);
    let (mut v1, mut v2) = v.split_at_col_mut(half);
    let (mut t1, t12, _, mut t2) = t.split_at_mut(half, half);
    factor_below(head1, v1.rb_mut(), t1.rb_mut());
    reflect_below(v1.rb(), t1.rb(), across.rb_mut(), v2.rb_mut());
    factor_below(head2, v2.rb_mut(), t2.rb_mut());
    // T12 = −T1 (V1ᵀ V2) T2.
    let products = times(v1.rb().transpose(), v2.rb());
    let products = times(t1.rb(), products.as_ref());
    matmul(
        t12,
        Accum::Replace,
        products.as_ref(),
        t2.rb(),
        -1.0,
        Par::Seq,
    );
}

/// Applies the transposed product of [`factor_below`]'s reflections to other columns.
fn reflect_below(
    v: MatRef<'_, f64>,
    t: MatRef<'_, f64>,
    mut top: MatMut<'_, f64>,
    rows: MatMut<'_, f64>,
) {
    let mut sums = top.to_owned();
    matmul(
        sums.as_mut(),
        Accum::Add,
        v.transpose(),
        rows.rb(),
        1.0,
        Par::Seq,
    );
    let sums = times(t.transpose(), sums.as_ref());
    top -= &sums;
    matmul(rows, Accum::Add, v, sums.as_ref(), -1.0, Par::Seq);
}

/// A product.
pub(crate) fn times(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(a.nrows(), b.ncols());
    matmul(product.as_mut(), Accum::Replace, a, b, 1.0, Par::Seq);
    product
}

/// QR of a panel in place; gives T of its reflectors.
fn factor_panel(mut panel: MatMut<'_, f64>) -> Mat<f64> {
    let (rows, columns) = (panel.nrows(), panel.ncols());
    let size = rows.min(columns);
    let mut t = Mat::zeros(size, size);
    let size = qr_in_place_scratch::<f64>(rows, columns, size, Par::Seq, Spec::default());
    let mut memory = MemBuffer::new(size);
    let stack = MemStack::new(&mut memory);
    qr_in_place(panel.rb_mut(), t.as_mut(), Par::Seq, stack, Spec::default());
    t
}

/// Applies the transposed reflectors of a panel to the columns beside it.
fn reflect_left(columns: MatMut<'_, f64>, v: MatRef<'_, f64>, t: MatRef<'_, f64>) {
    let v = v.subcols(0, t.ncols());
    columns
        .par_col_chunks_mut(WIDTH)
        .with_max_len(1)
        .for_each(|columns| {
            let size = left_transposed_scratch::<f64>(v.nrows(), t.nrows(), columns.ncols());
            let mut memory = MemBuffer::new(size);
            let stack = MemStack::new(&mut memory);
            left_transposed_in_place(v, t, Conj::No, columns, Par::Seq, stack);
        });
}

/// L of a positive definite matrix L Lᵀ, or `None` if it is not.
pub(crate) fn cholesky(mut a: Mat<f64>) -> Option<Mat<f64>> {
    let size = cholesky_in_place_scratch::<f64>(a.nrows(), Par::Seq, Spec::default());
    let mut memory = MemBuffer::new(size);
    let stack = MemStack::new(&mut memory);
    let shift = LltRegularization::default();
    cholesky_in_place(a.as_mut(), shift, Par::Seq, stack, Spec::default()).ok()?;
    Some(a)
}

/// U and the singular values of a matrix that is taller than wide; `None` if the iteration
/// does not converge.
pub(crate) fn left_svd(a: MatRef<'_, f64>) -> Option<(Mat<f64>, Vec<f64>)> {
    let (rows, columns) = (a.nrows(), a.ncols());
    let mut u = Mat::zeros(rows, columns);
    let mut values = Diag::zeros(columns);
    let (thin, none) = (ComputeSvdVectors::Thin, ComputeSvdVectors::No);
    let size = svd_scratch::<f64>(rows, columns, thin, none, Par::Seq, Spec::default());
    let mut memory = MemBuffer::new(size);
    let stack = MemStack::new(&mut memory);
    let u_mut = Some(u.as_mut());
    svd(
        a,
        values.as_mut(),
        u_mut,
        None,
        Par::Seq,
        stack,
        Spec::default(),
    )
    .ok()?;
    let values = values.column_vector().iter().copied().collect();
    Some((u, values))
}
