//! The row kernels on every instruction set, against plain loops and against their adjoints.

use super::*;
use crate::kernel::simd::{InstructionSet, Kernel};
use proptest::prelude::*;

/// Places of an output, doubled pairs, single pairs.
type Line = (usize, Vec<(usize, usize)>, Vec<(usize, usize)>);

const PLANES: usize = 5;

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let pairs = || proptest::collection::vec((0..PLANES, 0..PLANES), 0..6);
    let places = proptest::sample::subsequence((0..PLANES).collect::<Vec<_>>(), 1..=PLANES);
    (
        places,
        proptest::collection::vec((pairs(), pairs()), PLANES),
    )
        .prop_map(|(places, all)| {
            let lines = places.into_iter().zip(all);
            lines
                .map(|(place, (double, single))| (place, double, single))
                .collect()
        })
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::default();
    for (place, double, single) in lines {
        table.push(*place, double, single);
    }
    table
}

/// Whole numbers, so that sums are exact in any order.
fn row(planes: usize, lanes: usize, seed: u32) -> Vec<f64> {
    let number =
        |n: u32| f64::from((n.wrapping_mul(2_654_435_761) ^ seed.rotate_left(7)) % 9) - 4.0;
    (0..(planes * lanes) as u32)
        .map(|n| number(n + seed))
        .collect()
}

fn reference(lines: &[Line], a: &[f64], b: &[f64], out: &mut [f64], lanes: usize, mode: Mode) {
    for (place, double, single) in lines {
        for lane in 0..lanes {
            let sum = |pairs: &[(usize, usize)]| -> f64 {
                pairs
                    .iter()
                    .map(|&(i, j)| a[i * lanes + lane] * b[j * lanes + lane])
                    .sum()
            };
            let total = 2.0 * sum(double) + sum(single);
            let out = &mut out[place * lanes + lane];
            *out = if mode == Mode::Accumulate {
                *out + total
            } else {
                total
            };
        }
    }
}

struct Run<'a, T> {
    table: &'a Table,
    a: &'a [T],
    b: &'a [T],
    out: &'a mut [T],
    lanes: usize,
    mode: Mode,
    guarded: bool,
}

impl<T: Real> Kernel for Run<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self {
            table,
            a,
            b,
            out,
            lanes,
            mode,
            guarded,
        } = self;
        if guarded {
            bilinear_guarded(table, a, b, out, lanes, mode);
        } else {
            bilinear(simd, table, a, b, out, lanes, mode);
        }
    }
}

struct Sum<'a, T>(&'a [T]);

impl<T: Real> Kernel for Sum<'_, T> {
    type Output = T;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> T {
        sum(simd, self.0)
    }
}

fn converted<T: Real>(row: &[f64]) -> Vec<T> {
    row.iter().map(|&x| T::from_f64(x)).collect()
}

/// All instruction sets, plain and guarded, against the reference.
fn check<T: Real>(lines: &[Line], lanes: usize, seed: u32) -> Result<(), TestCaseError> {
    let [a, b, start] = [0, 1, 2].map(|k| row(PLANES, lanes, seed.wrapping_add(k)));
    for mode in [Mode::Overwrite, Mode::Accumulate] {
        let mut want = start.clone();
        reference(lines, &a, &b, &mut want, lanes, mode);
        for set in InstructionSet::available() {
            for guarded in [false, true] {
                let mut out: Vec<T> = converted(&start);
                set.dispatch(Run {
                    table: &table(lines),
                    a: &converted::<T>(&a),
                    b: &converted::<T>(&b),
                    out: &mut out,
                    lanes,
                    mode,
                    guarded,
                });
                let got: Vec<f64> = out.iter().map(|x| x.to_f64()).collect();
                prop_assert_eq!(&got, &want, "{} {:?} {}", set.name(), mode, guarded);
            }
        }
    }
    for set in InstructionSet::available() {
        let total = set.dispatch(Sum(&converted::<T>(&a[..a.len() - 3])));
        prop_assert_eq!(total.to_f64(), a[..a.len() - 3].iter().sum::<f64>());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: Some(Box::new(
            proptest::test_runner::FileFailurePersistence::WithSource("regressions"),
        )),
        ..ProptestConfig::default()
    })]

    #[test]
    fn bilinear_as_a_plain_loop(lines in lines(), blocks in 1..=8_usize, seed in any::<u32>()) {
        check::<f64>(&lines, 16 * blocks, seed)?;
        check::<f32>(&lines, 16 * blocks, seed)?;
    }

    /// Fewer lanes than a vector has.
    #[test]
    fn bilinear_on_few_lanes(lines in lines(), lanes in 1..16_usize, seed in any::<u32>()) {
        check::<f64>(&lines, lanes, seed)?;
        check::<f32>(&lines, lanes, seed)?;
    }

    /// ⟨B(a, b), v̄⟩ = ⟨b, Bᵀ(a, v̄)⟩, the transposed table being the same pairs by the other
    /// place.
    #[test]
    fn bilinear_and_its_adjoint(lines in lines(), blocks in 1..=4_usize, seed in any::<u32>()) {
        let lanes = 16 * blocks;
        let [a, b, v_bar] = [0, 1, 2].map(|k| row(PLANES, lanes, seed.wrapping_add(k)));
        let mut transposed: Vec<Line> = (0..PLANES).map(|j| (j, vec![], vec![])).collect();
        for (place, double, single) in &lines {
            for &(i, j) in double {
                transposed[j].1.push((i, *place));
            }
            for &(i, j) in single {
                transposed[j].2.push((i, *place));
            }
        }
        let set = InstructionSet::detect();
        let apply = |lines: &[Line], x: &[f64], y: &[f64]| {
            let mut out = vec![0.0; PLANES * lanes];
            set.dispatch(Run {
                table: &table(lines), a: x, b: y, out: &mut out, lanes,
                mode: Mode::Overwrite, guarded: false,
            });
            out
        };
        let inner = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let v = apply(&lines, &a, &b);
        let b_bar = apply(&transposed, &a, &v_bar);
        prop_assert_eq!(inner(&v, &v_bar), inner(&b, &b_bar));
    }

    /// A square by its upper pairs is the square by all pairs.
    #[test]
    fn symmetric_pairs(
        pairs in proptest::collection::btree_set((0..PLANES, 0..PLANES), 1..8),
        seed in any::<u32>(),
    ) {
        let mut all = pairs.clone();
        all.extend(pairs.iter().map(|&(i, j)| (j, i)));
        let all: Vec<(usize, usize)> = all.into_iter().collect();
        let mut symmetric = Table::default();
        symmetric.push_symmetric(0, &all);
        prop_assert!(symmetric.products() <= all.len());
        let a = row(PLANES, 16, seed);
        let mut got = vec![0.0; 16];
        InstructionSet::detect().dispatch(Run {
            table: &symmetric, a: &a, b: &a, out: &mut got, lanes: 16,
            mode: Mode::Overwrite, guarded: false,
        });
        let mut want = vec![0.0; 16];
        reference(&[(0, vec![], all)], &a, &a, &mut want, 16, Mode::Overwrite);
        prop_assert_eq!(got, want);
    }
}

#[test]
fn zero_adjoints_meet_nothing() {
    let mut table = Table::default();
    table.push(0, &[(0, 0)], &[(1, 1)]);
    let mut a = vec![2.0; 32];
    a[3] = f64::NAN;
    a[16 + 5] = f64::INFINITY;
    let mut b = vec![3.0; 32];
    b[3] = 0.0;
    b[16 + 5] = 0.0;
    let mut out = vec![7.0; 16];
    bilinear_guarded(&table, &a, &b, &mut out, 16, Mode::Accumulate);
    for (lane, out) in out.iter().enumerate() {
        let want = match lane {
            3 => 7.0 + 6.0,
            5 => 7.0 + 12.0,
            _ => 7.0 + 18.0,
        };
        assert_eq!(*out, want, "lane {lane}");
    }
}

#[test]
fn scaled_sums() {
    let source = row(1, 48, 5);
    for factor in [1.0, -2.5] {
        for mode in [Mode::Overwrite, Mode::Accumulate] {
            let mut out = vec![0.5; 48];
            axpy(factor, &source, &mut out, mode);
            let base = if mode == Mode::Accumulate { 0.5 } else { 0.0 };
            let want: Vec<f64> = source.iter().map(|x| base + factor * x).collect();
            assert_eq!(out, want);
        }
    }
}

/// Planes 1, a, b, aa, ab, bb at places 0 to 5.
const SECOND: [&[(usize, usize)]; 6] = [&[], &[], &[], &[(1, 1)], &[(1, 2), (2, 1)], &[(2, 2)]];

struct Adjoint<'a, T> {
    rule: &'a QuadraticAdjoint,
    v: &'a [T],
    slope: &'a [T],
    adjoint: Option<&'a [T]>,
    dst: &'a mut [T],
    lanes: usize,
    mode: Mode,
}

impl<T: Real> Kernel for Adjoint<'_, T> {
    type Output = bool;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> bool {
        let Self {
            rule,
            v,
            slope,
            adjoint,
            dst,
            lanes,
            mode,
        } = self;
        rule.apply(simd, v, slope, adjoint, dst, lanes, mode)
    }
}

struct Fill<'a, T>(&'a Riccati, &'a [T], &'a mut [T], usize);

impl<T: Real> Kernel for Fill<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.0.fill(simd, self.1, self.2, self.3);
    }
}

/// d_k = b v_k + c Σ v_i v_j over all ordered pairs, and the contraction with it.
fn by_definition(
    [linear, square]: [f64; 2],
    v: &[f64],
    slope: &[f64],
    bar: &[f64],
    lanes: usize,
) -> (Vec<f64>, Vec<f64>) {
    let at = |row: &[f64], place: usize, lane: usize| row[place * lanes + lane];
    let (mut d, mut out) = (slope.to_vec(), vec![0.0; SECOND.len() * lanes]);
    d.resize(SECOND.len() * lanes, 0.0);
    for lane in 0..lanes {
        for k in 1..SECOND.len() {
            let squares = SECOND[k]
                .iter()
                .map(|&(i, j)| at(v, i, lane) * at(v, j, lane));
            let square_k = 2.0 * at(v, 0, lane) * at(v, k, lane) + squares.sum::<f64>();
            d[k * lanes + lane] = linear * at(v, k, lane) + square * square_k;
        }
        for k in 0..SECOND.len() {
            let bar = at(bar, k, lane);
            out[lane] += at(&d, k, lane) * bar;
            if k > 0 {
                out[k * lanes + lane] += at(&d, 0, lane) * bar;
            }
            for &(i, j) in SECOND[k] {
                out[j * lanes + lane] += at(&d, i, lane) * bar;
            }
        }
    }
    (d, out)
}

fn check_adjoint<T: Real>(seed: u32, lanes: usize, rule: [f64; 2]) -> Result<(), TestCaseError> {
    let planes = SECOND.len();
    let [v, bar, start] = [0, 1, 2].map(|k| row(planes, lanes, seed.wrapping_add(k)));
    let slope = row(1, lanes, seed.wrapping_add(3));
    let (d, want) = by_definition(rule, &v, &slope, &bar, lanes);
    let [linear, square] = rule;
    let mut riccati = Riccati::new(linear, square);
    for (k, pairs) in SECOND.iter().enumerate().skip(1) {
        let all: Vec<_> = [(0, k), (k, 0)]
            .into_iter()
            .chain(pairs.iter().copied())
            .collect();
        riccati.push(k, Some(k), &all);
    }
    // The destination may lack planes and hold others.
    let missing = 1 + seed as usize % (planes - 1);
    let described = |all: bool| -> Vec<_> {
        (1..planes)
            .map(|k| (k, (all || k != missing).then_some(k), SECOND[k].to_vec()))
            .collect()
    };
    for set in InstructionSet::available() {
        let mut filled: Vec<T> = converted(&d);
        filled[lanes..].fill(T::ZERO);
        set.dispatch(Fill(&riccati, &converted::<T>(&v), &mut filled, lanes));
        let filled: Vec<f64> = filled.iter().map(|x| x.to_f64()).collect();
        prop_assert_eq!(&filled, &d, "{} fill", set.name());
        for mode in [Mode::Overwrite, Mode::Accumulate] {
            let rule = QuadraticAdjoint::new(linear, square, &described(false), &[missing]);
            let mut dst: Vec<T> = converted(&start);
            let done = set.dispatch(Adjoint {
                rule: &rule,
                v: &converted::<T>(&v),
                slope: &converted::<T>(&slope),
                adjoint: Some(&converted::<T>(&bar)),
                dst: &mut dst,
                lanes,
                mode,
            });
            prop_assert!(done);
            for (at, got) in dst.iter().enumerate() {
                let held = if mode == Mode::Accumulate {
                    start[at]
                } else {
                    0.0
                };
                let own = if at / lanes == missing { 0.0 } else { want[at] };
                prop_assert_eq!(got.to_f64(), held + own, "{} {:?} {}", set.name(), mode, at);
            }
        }
        let rule = QuadraticAdjoint::new(linear, square, &described(true), &[]);
        let mut dst: Vec<T> = converted(&bar);
        set.dispatch(Adjoint {
            rule: &rule,
            v: &converted::<T>(&v),
            slope: &converted::<T>(&slope),
            adjoint: None,
            dst: &mut dst,
            lanes,
            mode: Mode::Overwrite,
        });
        let got: Vec<f64> = dst.iter().map(|x| x.to_f64()).collect();
        prop_assert_eq!(&got, &want, "{} in place", set.name());
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_adjoint_of_second_order_is_the_contraction(
        seed in any::<u32>(),
        blocks in 1..6usize,
        rule in prop_oneof![Just([0.0, -1.0]), Just([1.0, -1.0]), Just([0.0, 1.0]), Just([1.0, 0.0])],
    ) {
        check_adjoint::<f64>(seed, 16 * blocks, rule)?;
        check_adjoint::<f32>(seed, 16 * blocks, rule)?;
    }
}
