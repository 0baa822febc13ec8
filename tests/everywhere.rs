//! f32 everywhere: each elemental and its slope at a sample of all 2^32 bit patterns, or with
//! `DUALTAPE_LONG=1` at every one of them, on every instruction set, against `libm` in f64.
//!
//! `cargo test --release --test everywhere -- --nocapture` prints the largest errors.

use dualtape::{Elemental, InstructionSet};
use rayon::prelude::*;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// A prime, so that the sample meets all low bits.
const STRIDE: usize = 4099;
/// Neighbours of each power of two that are always in the sample.
const NEAR: u32 = 24;

fn long() -> bool {
    std::env::var("DUALTAPE_LONG").is_ok_and(|word| word == "1")
}

/// The bit patterns to try, as blocks.
fn patterns() -> Vec<Vec<u32>> {
    // Around every power of two of either sign: zeros, subnormal, infinite, NaN among them.
    let powers = (0..512_u32).map(|power| power << 23);
    let near = powers.flat_map(|power| {
        (0..2 * NEAR).map(move |step| power.wrapping_add(step).wrapping_sub(NEAR))
    });
    let rest = (0..=u32::MAX).step_by(STRIDE);
    let all: Vec<u32> = near.chain(rest).collect();
    all.chunks(1 << 12).map(<[u32]>::to_vec).collect()
}

/// What an elemental should be: its value and its slope in f64, and how far from them it
/// may be, in units of [`ulps`].
struct Reference {
    elemental: Elemental,
    bounds: [f64; 2],
    value: fn(f64) -> f64,
    slope: fn(f64) -> f64,
}

impl Reference {
    fn order(&self, k: usize, x: f64) -> f64 {
        if k == 0 {
            (self.value)(x)
        } else {
            (self.slope)(x)
        }
    }

    /// What one unit in the last place of x does to c_k: no more can be asked where that is
    /// larger than a unit of c_k itself.
    fn conditioning(&self, k: usize, x: f64) -> f64 {
        let change = if k == 0 {
            x * (self.slope)(x)
        } else {
            let h = 1.0 / 4096.0;
            ((self.slope)(x * (1.0 + h)) - (self.slope)(x * (1.0 - h))) / (2.0 * h)
        };
        change.abs() * f64::from(f32::EPSILON)
    }
}

/// Distance between neighbouring numbers of f32 at x.
fn spacing(x: f64) -> f64 {
    let x = x
        .abs()
        .clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    f64::from_bits(x.to_bits() & (0x7ff << 52)) * f64::from(f32::EPSILON)
}

/// The error of `got` in units of the last place of `want`; infinite where one of them is
/// NaN and the other not, or an infinity is no overflow.
fn ulps(got: f32, want: f64) -> f64 {
    // Where f32 rounds to infinity.
    let overflow = f64::from(f32::MAX) + spacing(f64::MAX) / 2.0;
    let got = f64::from(got);
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    let bounded = |x: f64| x.clamp(-2.0_f64.powi(128), 2.0_f64.powi(128));
    if want.abs() >= overflow && got.is_infinite() && got.signum() == want.signum() {
        return 0.0;
    }
    if want.is_infinite() {
        return f64::INFINITY;
    }
    (bounded(got) - bounded(want)).abs() / spacing(want)
}

#[derive(Clone, Default)]
struct Worst {
    error: f64,
    text: String,
}

/// The largest errors of value and slope, for each instruction set.
type Table = Vec<[Worst; 2]>;

fn larger(a: Table, b: Table) -> Table {
    let pick = |a: Worst, b: Worst| if b.error > a.error { b } else { a };
    let pairs = a.into_iter().zip(b);
    pairs
        .map(|([a0, a1], [b0, b1])| [pick(a0, b0), pick(a1, b1)])
        .collect()
}

fn empty() -> Table {
    vec![Default::default(); InstructionSet::available().len()]
}

fn measure(reference: &Reference, patterns: &[u32]) -> Table {
    let x: Vec<f32> = patterns.iter().map(|&bits| f32::from_bits(bits)).collect();
    let n = x.len();
    let want: Vec<f64> = (0..2)
        .flat_map(|k| x.iter().map(move |&x| reference.order(k, f64::from(x))))
        .collect();
    let mut got = vec![0.0; 2 * n];
    let mut table = empty();
    for (set, worst) in InstructionSet::available().into_iter().zip(&mut table) {
        let elemental = &reference.elemental;
        elemental.taylor_into(&x, 1, &mut got, set).unwrap();
        for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
            let (k, x) = (i / n, x[i % n]);
            if (want as f32).to_bits() == got.to_bits() {
                continue;
            }
            let mut error = ulps(got, want);
            if error > worst[k].error {
                let conditioning = reference.conditioning(k, f64::from(x));
                // Infinite errors stay infinite, and conditioning may be NaN.
                if conditioning > spacing(want) && conditioning.is_finite() {
                    error *= spacing(want) / conditioning;
                }
            }
            if error > worst[k].error {
                let text = format!(
                    "{elemental} on {}: c_{k} at {x:e} ({:#010x}) is {got:e}, not {want:e}: {error:.3} ulp",
                    set.name(),
                    x.to_bits(),
                );
                worst[k] = Worst { error, text };
            }
        }
    }
    table
}

fn check(reference: &Reference) {
    let table = if long() {
        (0..1_u32 << 20)
            .into_par_iter()
            .map(|part| {
                let patterns: Vec<u32> = (0..1 << 12).map(|low| part << 12 | low).collect();
                measure(reference, &patterns)
            })
            .reduce(empty, larger)
    } else {
        let blocks = patterns();
        let tables = blocks.iter().map(|block| measure(reference, block));
        tables.fold(empty(), larger)
    };
    let worst = table.iter().flatten();
    worst.clone().for_each(|worst| println!("{}", worst.text));
    for (worst, bound) in worst.zip(reference.bounds.iter().cycle()) {
        assert!(worst.error <= *bound, "{}; at most {bound}", worst.text);
    }
}

/// x·g, 0 where g is.
fn times(x: f64, g: f64) -> f64 {
    if g == 0.0 { 0.0 } else { x * g }
}

fn sigmoid(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    if x < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

fn sigmoid_slope(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    e / ((1.0 + e) * (1.0 + e))
}

fn softplus(x: f64) -> f64 {
    (if x > 0.0 { x } else { 0.0 } + libm::log1p(libm::exp(-x.abs())))
        + if x.is_nan() { x } else { 0.0 }
}

/// The normal distribution function, and its density.
fn normal(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

fn density(x: f64) -> f64 {
    0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI * libm::exp(-0.5 * x * x)
}

/// `y` where x lies in the domain.
fn within(domain: bool, y: f64) -> f64 {
    if domain { y } else { f64::NAN }
}

macro_rules! everywhere {
    ($($name:ident: $elemental:expr, $bounds:expr, $value:expr, $slope:expr;)*) => {
        $(
            #[test]
            fn $name() {
                check(&Reference {
                    elemental: $elemental,
                    bounds: $bounds,
                    value: $value,
                    slope: $slope,
                });
            }
        )*
    };
}

// The largest errors seen, rounded up; 0.5 is the nearest number.
everywhere! {
    tanh: Elemental::Tanh, [2.6, 3.8], libm::tanh, |x| {
        let c = libm::cosh(x);
        1.0 / (c * c)
    };
    sigmoid_: Elemental::Sigmoid, [2.2, 3.8], sigmoid, sigmoid_slope;
    log_sigmoid: Elemental::LogSigmoid, [1.6, 2.2], |x| -softplus(-x), |x| sigmoid(-x);
    softplus_: Elemental::Softplus, [1.6, 2.2], softplus, sigmoid;
    silu: Elemental::Silu, [3.1, 5.5], |x| times(x, sigmoid(x)),
        |x| sigmoid(x) + times(x, sigmoid_slope(x));
    gelu: Elemental::Gelu, [4.6, 6.8], |x| times(x, normal(x)),
        |x| normal(x) + times(x, density(x));
    erf: Elemental::Erf, [1.8, 2.4], libm::erf, |x| FRAC_2_SQRT_PI * libm::exp(-x * x);
    sin: Elemental::Sin, [1.3, 1.3], libm::sin, libm::cos;
    cos: Elemental::Cos, [1.3, 1.3], libm::cos, |x| -libm::sin(x);
    tan: Elemental::Tan, [0.5, 0.5], libm::tan, |x| {
        let t = libm::tan(x);
        1.0 + t * t
    };
    exp: Elemental::Exp, [1.0, 1.0], libm::exp, libm::exp;
    exp_m1: Elemental::ExpM1, [0.5, 0.5], libm::expm1, libm::exp;
    ln: Elemental::Ln, [0.5, 0.5], libm::log, |x| within(x >= 0.0, 1.0 / x.abs());
    ln_1p: Elemental::Ln1p, [0.5, 0.5], libm::log1p, |x| within(x >= -1.0, 1.0 / (1.0 + x));
    sqrt: Elemental::Sqrt, [0.5, 0.5], libm::sqrt, |x| 0.5 / libm::sqrt(x).abs();
    cbrt: Elemental::Cbrt, [0.5, 0.5], libm::cbrt, |x| {
        let root = libm::cbrt(x);
        1.0 / (3.0 * root * root)
    };
    recip: Elemental::Recip, [0.5, 0.5], |x| 1.0 / x, |x| -1.0 / (x * x);
    cube: Elemental::Powi(3), [0.5, 0.5], |x| x * x * x, |x| 3.0 * x * x;
    inverse_square: Elemental::Powi(-2), [0.5, 0.5], |x| 1.0 / (x * x), |x| -2.0 / (x * x * x);
    three_halves: Elemental::Powf(1.5), [0.5, 0.5], |x| within(x >= 0.0, x * libm::sqrt(x)),
        |x| within(x >= 0.0, 1.5 * libm::sqrt(x));
    sinh: Elemental::Sinh, [1.6, 1.3], libm::sinh, libm::cosh;
    cosh: Elemental::Cosh, [1.3, 1.6], libm::cosh, libm::sinh;
    asin: Elemental::Asin, [0.5, 0.5], libm::asin, |x| 1.0 / libm::sqrt((1.0 - x) * (1.0 + x));
    acos: Elemental::Acos, [0.5, 0.5], libm::acos, |x| -1.0 / libm::sqrt((1.0 - x) * (1.0 + x));
    atan: Elemental::Atan, [0.5, 0.5], libm::atan, |x| 1.0 / (1.0 + x * x);
    asinh: Elemental::Asinh, [0.5, 0.5], libm::asinh, |x| 1.0 / libm::sqrt(1.0 + x * x);
    acosh: Elemental::Acosh, [0.5, 0.5], |x| within(x >= 1.0, libm::acosh(x)),
        |x| within(x >= 1.0, 1.0 / libm::sqrt((x - 1.0) * (x + 1.0)));
    atanh: Elemental::Atanh, [0.5, 0.5], libm::atanh,
        |x| within(x.abs() <= 1.0, 1.0 / ((1.0 - x) * (1.0 + x)));
    abs: Elemental::Abs, [0.0, 0.0], libm::fabs, |x| if x == 0.0 { 0.0 } else { x.signum() };
    relu: Elemental::Relu, [0.0, 0.0], |x| if x <= 0.0 { 0.0 } else { x },
        |x| if x.is_nan() { x } else { f64::from(x > 0.0) };
}
