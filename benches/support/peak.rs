//! The peak of fused multiply-adds of this machine: registers only, sums that do not wait
//! for each other, the widest vectors that the CPU has.

use pulp::{Arch, Simd, WithSimd};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Passes over the sums in one trial: some milliseconds.
const PASSES: usize = 1 << 20;
/// The best of them counts: others may use the machine.
const TRIALS: usize = 8;

macro_rules! kernel {
    ($name:ident, $number:ty, $lanes:ident, $splat:ident, $mul_add:ident, $add:ident, $sum:ident) => {
        struct $name;

        impl $name {
            #[inline(always)]
            fn sums<S: Simd, const N: usize>(simd: S) -> usize {
                // Towards 2: neither subnormal nor infinite.
                let factor = simd.$splat(black_box(0.5));
                let term = simd.$splat(black_box(1.0));
                let mut sums = [simd.$splat(0.0); N];
                for (place, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.$splat(place as $number);
                }
                for _ in 0..PASSES {
                    for sum in &mut sums {
                        *sum = simd.$mul_add(*sum, factor, term);
                    }
                }
                let total = sums
                    .into_iter()
                    .reduce(|a, b| simd.$add(a, b))
                    .map(|all| simd.$sum(all));
                black_box(total);
                2 * PASSES * N * S::$lanes
            }
        }

        impl WithSimd for $name {
            type Output = usize;

            /// Does one trial and says how many operations it took.
            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) -> usize {
                // Two units of a latency of up to 5 need 10 sums; four need 20.
                if S::REGISTER_COUNT >= 32 {
                    Self::sums::<S, 24>(simd)
                } else {
                    Self::sums::<S, 12>(simd)
                }
            }
        }
    };
}

kernel!(
    Double,
    f64,
    F64_LANES,
    splat_f64s,
    mul_add_e_f64s,
    add_f64s,
    reduce_sum_f64s
);
kernel!(
    Single,
    f32,
    F32_LANES,
    splat_f32s,
    mul_add_e_f32s,
    add_f32s,
    reduce_sum_f32s
);

/// GFLOP/s of `threads` threads together, in `f32` or `f64`.
pub fn gflops(single: bool, threads: usize) -> f64 {
    let arch = Arch::new();
    let trial = || {
        if single {
            arch.dispatch(Single)
        } else {
            arch.dispatch(Double)
        }
    };
    let barrier = Barrier::new(threads);
    let timed = || {
        barrier.wait();
        let start = Instant::now();
        let operations = trial();
        (start, operations, Instant::now())
    };
    let best = (0..TRIALS).map(|_| {
        let runs: Vec<(Instant, usize, Instant)> = if threads == 1 {
            vec![timed()]
        } else {
            std::thread::scope(|scope| {
                let handles: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
                handles.into_iter().flat_map(|h| h.join()).collect()
            })
        };
        let operations: usize = runs.iter().map(|run| run.1).sum();
        let start = runs.iter().map(|run| run.0).min();
        let end = runs.iter().map(|run| run.2).max();
        match (start, end) {
            (Some(start), Some(end)) => operations as f64 / (end - start).as_secs_f64() / 1e9,
            _ => 0.0,
        }
    });
    best.fold(0.0, f64::max)
}
