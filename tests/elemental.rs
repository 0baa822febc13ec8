//! Elementals against high-precision values, on every instruction set of this machine.
//!
//! `data/elemental.json` holds, for each function and precision, rows [x, c_0, …, c_9] of
//! Taylor coefficients, computed from plain definitions with 1300 digits.

mod common;

use common::elementals;
use dualtape::elemental::{Elemental, MAX_ORDER, Smoothness};
use dualtape::{InstructionSet, Real};
use num_dual::{Dual2_64, Dual3_64, Dual64, DualNum, HyperDual64};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

const ORDER: usize = 8;

/// Largest error allowed, by function: (f64, f32), in the units of [`error`].
const BOUNDS: &[(&str, f64, f64)] = &[
    ("tanh", 5.5, 4.5),
    ("sigmoid", 6.5, 4.5),
    ("log_sigmoid", 5.0, 5.0),
    ("softplus", 5.0, 7.0),
    ("silu", 4.0, 5.5),
    ("gelu", 4.5, 5.0),
    ("erf", 4.0, 5.0),
    ("sin", 2.0, 2.0),
    ("cos", 2.0, 2.0),
    ("tan", 2.0, 2.0),
    ("exp", 2.0, 2.0),
    ("exp_m1", 2.0, 2.0),
    ("ln", 2.0, 2.0),
    ("ln_1p", 2.0, 2.0),
    ("sqrt", 2.0, 2.0),
    ("cbrt", 2.0, 2.0),
    ("recip", 2.0, 2.0),
    ("powi", 2.0, 2.0),
    ("powf", 2.0, 2.0),
    ("sinh", 2.0, 2.0),
    ("cosh", 2.0, 2.0),
    ("asin", 2.0, 2.0),
    ("acos", 2.0, 2.0),
    ("atan", 2.0, 2.0),
    ("asinh", 2.0, 2.0),
    ("acosh", 2.0, 2.0),
    ("atanh", 2.0, 2.0),
];

fn named(name: &str) -> Elemental {
    use Elemental::*;
    let argument = |prefix: &str| name.strip_prefix(prefix).and_then(|s| s.strip_suffix(')'));
    if let Some(n) = argument("powi(") {
        return Powi(n.parse().unwrap());
    }
    if let Some(a) = argument("powf(") {
        return Powf(a.parse().unwrap());
    }
    elementals().into_iter().find(|e| e.name() == name).unwrap()
}

/// What the tests need to know of a precision.
trait Precision: Real {
    const NAME: &'static str;
    const MAX: f64;
    /// Distance to the next number.
    fn ulp(x: f64) -> f64;
}

impl Precision for f64 {
    const NAME: &'static str = "f64";
    const MAX: f64 = f64::MAX;
    fn ulp(x: f64) -> f64 {
        let x = x.abs().max(f64::MIN_POSITIVE);
        f64::from_bits(x.to_bits() & (0x7ff << 52)) * f64::EPSILON
    }
}

impl Precision for f32 {
    const NAME: &'static str = "f32";
    const MAX: f64 = f32::MAX as f64;
    fn ulp(x: f64) -> f64 {
        let x = x.abs().max(f64::from(f32::MIN_POSITIVE));
        f64::from_bits(x.to_bits() & (0x7ff << 52)) * f64::from(f32::EPSILON)
    }
}

/// The error of c_k in units of its last place; or, where that is larger, of what one unit
/// in the last place of x does to c_k: ε·|x·(k+1)·c_{k+1}|. Near a zero of f⁽ᵏ⁾ no more
/// can be had. Where the derivative k!·c_k overflows, an infinite coefficient is right.
fn error<T: Precision>(got: T, k: usize, x: f64, want: f64, next: f64) -> f64 {
    let got = got.to_f64();
    let factorial: f64 = (1..=k).map(|i| i as f64).product();
    if got == want
        || got.is_infinite() && got.signum() == want.signum() && want.abs() * factorial > T::MAX
    {
        return 0.0;
    }
    let conditioning = T::EPSILON.to_f64() * (x * (k as f64 + 1.0) * next).abs();
    let unit = if conditioning.is_finite() {
        T::ulp(want).max(conditioning)
    } else {
        T::ulp(want)
    };
    let e = (got - want).abs() / unit;
    if e.is_nan() { f64::INFINITY } else { e }
}

fn number(v: &Value) -> f64 {
    v.as_f64()
        .unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

fn table() -> Value {
    serde_json::from_str(include_str!("data/elemental.json")).unwrap()
}

/// Worst error at each order, with where it was.
fn measure<T: Precision>(
    elemental: &Elemental,
    rows: &Value,
    set: InstructionSet,
) -> [(f64, String); ORDER + 1] {
    let rows: Vec<Vec<f64>> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row.as_array().unwrap().iter().map(number).collect())
        .collect();
    let z: Vec<T> = rows.iter().map(|row| T::from_f64(row[0])).collect();
    let mut worst: [(f64, String); ORDER + 1] = Default::default();
    // Every order by itself: the code differs.
    for order in 0..=ORDER {
        let mut out = vec![T::ZERO; (order + 1) * z.len()];
        elemental.taylor_into(&z, order, &mut out, set).unwrap();
        for (lane, row) in rows.iter().enumerate() {
            for k in 0..=order {
                let got = out[k * z.len() + lane];
                let e = error(got, k, row[0], row[k + 1], row[k + 2]);
                if e > worst[k].0 {
                    let text = format!(
                        "{elemental} {} {set:?}, order {order}, c_{k} at {:e}: {got:?}, not {:e}: {e:.1} ulp",
                        T::NAME,
                        row[0],
                        row[k + 1]
                    );
                    worst[k] = (e, text);
                }
            }
        }
    }
    worst
}

#[test]
fn a_few_ulp_at_every_order_and_on_every_instruction_set() {
    let table = table();
    let mut failures = Vec::new();
    let mut measured: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, rows) in table.as_object().unwrap() {
        let elemental = named(name);
        let family = name.split('(').next().unwrap();
        let &(_, f64_bound, f32_bound) = BOUNDS.iter().find(|b| b.0 == family).unwrap();
        for set in InstructionSet::available() {
            for (precision, bound) in [("f64", f64_bound), ("f32", f32_bound)] {
                let worst = if precision == "f64" {
                    measure::<f64>(&elemental, &rows[precision], set)
                } else {
                    measure::<f32>(&elemental, &rows[precision], set)
                };
                let entry = measured
                    .entry(format!("{family} {precision}"))
                    .or_insert(vec![0.0; ORDER + 1]);
                for (k, (e, text)) in worst.into_iter().enumerate() {
                    entry[k] = entry[k].max(e);
                    if e > bound {
                        failures.push(text);
                    }
                }
            }
        }
    }
    for (name, e) in &measured {
        let e: Vec<String> = e.iter().map(|e| format!("{e:5.1}")).collect();
        println!("{name:16} {}", e.join(" "));
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// k!·c_k.
fn derivatives<T: Real>(elemental: &Elemental, x: T, order: usize) -> Vec<f64> {
    let mut factorial = 1.0;
    let c = elemental.taylor(x, order).unwrap();
    let scaled = c.iter().enumerate().map(|(k, c)| {
        factorial *= if k == 0 { 1.0 } else { k as f64 };
        c.to_f64() * factorial
    });
    scaled.collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        let close = g == w || (g / w - 1.0).abs() <= tolerance;
        assert!(close, "[{k}]: {g:e}, not {w:e}; ratio {:e}", g / w);
    }
}

const FEW_ULP: f64 = 6.0 * f64::EPSILON;

#[test]
fn c06_tanh_tails() {
    let tails = [
        (
            5.0,
            [
                0.000_181_583_230_943_806_67,
                -0.000_363_133_487_920_905_6,
                0.000_726_135_088_956_666_8,
                -0.001_451_742_684_259_615_3,
            ],
        ),
        (
            10.0,
            [
                8.244_614_455_767_397e-9,
                -1.648_922_884_356_112_7e-8,
                3.297_845_741_522_758_4e-8,
                -6.595_691_374_287_65e-8,
            ],
        ),
        (
            15.0,
            [
                3.743_049_187_535_369e-13,
                -7.486_098_375_069_338e-13,
                1.497_219_675_013_307_2e-12,
                -2.994_439_350_024_372_7e-12,
            ],
        ),
        (
            19.0,
            [
                1.255_653_116_819_211_8e-16,
                -2.511_306_233_638_423e-16,
                5.022_612_467_276_846e-16,
                -1.004_522_493_455_369e-15,
            ],
        ),
        (
            20.0,
            [
                1.699_341_702_116_635_5e-17,
                -3.398_683_404_233_271e-17,
                6.797_366_808_466_542e-17,
                -1.359_473_361_693_308_4e-16,
            ],
        ),
        (
            -19.061_547_465_398_498,
            [
                1.110_223_024_625_152_1e-16,
                2.220_446_049_250_304e-16,
                4.440_892_098_500_607_4e-16,
                8.881_784_197_001_213e-16,
            ],
        ),
        (1e-300, [1.0, -2e-300, -2.0, 1.6e-299]),
    ];
    for (x, want) in tails {
        assert_close(&derivatives(&Elemental::Tanh, x, 4)[1..], &want, FEW_ULP);
    }
    let single = derivatives(&Elemental::Tanh, -9.010_914_f32, 1);
    assert_close(&single[1..], &[5.9604583e-8], 3.0 * f64::from(f32::EPSILON));
    for x in [400.0, 800.0, f64::MAX, f64::INFINITY] {
        for sign in [1.0, -1.0] {
            let c = Elemental::Tanh.taylor(sign * x, MAX_ORDER).unwrap();
            assert_eq!(c[0], sign);
            assert!(c[1..].iter().all(|&c| c == 0.0), "{x}: {c:?}");
            let c = Elemental::Tanh
                .taylor((sign * x) as f32, MAX_ORDER)
                .unwrap();
            assert_eq!(c[0], sign as f32);
            assert!(c[1..].iter().all(|&c| c == 0.0), "{x}: {c:?}");
        }
    }
}

#[test]
fn c07_other_tails() {
    let tail = 4.248_354_255_291_589e-18;
    assert_close(
        &derivatives(&Elemental::Sigmoid, 40.0, 1)[1..],
        &[tail],
        FEW_ULP,
    );
    for x in [40.0, -40.0] {
        assert_close(
            &derivatives(&Elemental::LogSigmoid, x, 2)[2..],
            &[-tail],
            FEW_ULP,
        );
    }
    let silu = derivatives(&Elemental::Silu, 40.410_841_513_445_845, 2);
    assert_close(&silu[2..], &[-1.082_052_526_813_113_6e-16], FEW_ULP);
    // x·Φ(x) far left, where (1 + erf)/2 has nothing left
    assert_close(
        &Elemental::Gelu.taylor(-20.0, 0).unwrap(),
        &[-5.507_248_237_212_466e-88],
        FEW_ULP,
    );
}

#[test]
fn c08_powers_at_zero() {
    use Elemental::{Powf, Powi};
    let infinite = f64::INFINITY;
    for zero in [0.0, -0.0] {
        assert_eq!(derivatives(&Powi(2), zero, 3), [0.0, 0.0, 2.0, 0.0]);
        assert_eq!(derivatives(&Powi(3), zero, 4), [0.0, 0.0, 0.0, 6.0, 0.0]);
        assert_eq!(derivatives(&Powi(0), zero, 3), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(derivatives(&Powf(2.0), zero, 3), [0.0, 0.0, 2.0, 0.0]);
        assert_eq!(
            derivatives(&Powf(1.5), zero, 3),
            [0.0, 0.0, infinite, -infinite]
        );
        assert_eq!(
            derivatives(&Elemental::Sqrt, zero, 2),
            [0.0, infinite, -infinite]
        );
        assert_eq!(
            derivatives(&Elemental::Ln, zero, 2),
            [-infinite, infinite, -infinite]
        );
        let beyond = infinite.copysign(zero);
        assert_eq!(
            derivatives(&Elemental::Cbrt, zero, 3),
            [0.0, infinite, -beyond, infinite]
        );
    }
    for (a, x) in [(1.5, f64::NEG_INFINITY), (1e-17, -2.0), (-0.5, -1.0)] {
        let c = Powf(a).taylor(x, 3).unwrap();
        assert!(c.iter().all(|c| c.is_nan()), "x^{a} at {x}: {c:?}");
    }
    assert_eq!(derivatives(&Powi(3), -2.0, 3), [-8.0, 12.0, -12.0, 6.0]);
    assert_eq!(
        derivatives(&Powi(-1), 0.0, 2),
        [infinite, -infinite, infinite]
    );
    assert_eq!(
        derivatives(&Elemental::Recip, -0.0, 2),
        [-infinite, -infinite, -infinite]
    );
    assert_eq!(
        derivatives(&Powi(i32::MIN), 1.0, 1),
        [1.0, f64::from(i32::MIN)]
    );
    assert_eq!(derivatives(&Powi(2), -3.0_f32, 2), [9.0, -6.0, 2.0]);
    // exp(−x²) as a composition, by num-dual: 1, 0, −2, 0
    let x = Dual3_64::from(0.0).derivative();
    let y = Elemental::Exp.apply(-Powi(2).apply(x));
    assert_eq!((y.re, y.v1, y.v2, y.v3), (1.0, 0.0, -2.0, 0.0));
}

#[test]
fn c09_the_branch_not_taken() {
    // √ at a negative number is NaN in every coefficient, to be masked and never multiplied
    for x in [-1.0_f64, -4.0] {
        assert!(
            Elemental::Sqrt
                .taylor(x, 3)
                .unwrap()
                .iter()
                .all(|c| c.is_nan())
        );
    }
    // ‖x‖² at the origin
    assert_eq!(derivatives(&Elemental::Powi(2), 0.0, 2), [0.0, 0.0, 2.0]);
}

#[test]
fn c10_composed_rules() {
    let square = |x: Dual3_64| Elemental::Powi(2).apply(x);
    let y = square(square(Dual3_64::from(3.0).derivative()));
    assert_eq!((y.re, y.v1, y.v2, y.v3), (81.0, 108.0, 108.0, 72.0));
    let t = Dual2_64::from(0.7).derivative();
    let root = Elemental::Powf(-0.5).apply(Elemental::Powi(2).apply(t) + 1.0);
    assert_close(
        &[(-t * root).v2],
        &[0.774_914_207_959_094_2],
        8.0 * f64::EPSILON,
    );
    let log = Elemental::Ln.apply(Elemental::Abs.apply(t * 3.0 + 5.0));
    assert_close(&[log.v2], &[-0.178_536_004_760_960_13], 8.0 * f64::EPSILON);
}

#[test]
fn c15_fourth_order() {
    let (s, t) = (
        derivatives(&Elemental::Sin, 0.3, 4),
        derivatives(&Elemental::Sin, 1.4, 4),
    );
    // Δ² of sin x · sin 2y at (0.3, 0.7)
    let bilaplacian = s[4] * t[0] + 2.0 * s[2] * 4.0 * t[2] + s[0] * 16.0 * t[4];
    assert_close(&[bilaplacian], &[7.280_507_696_513_776], FEW_ULP);
}

#[test]
fn c18_smoothness() {
    for elemental in elementals() {
        let kinked = matches!(elemental, Elemental::Abs | Elemental::Relu);
        assert!(elemental.smoothness().allows(1));
        assert_eq!(elemental.smoothness().allows(2), !kinked, "{elemental}");
    }
    for zero in [0.0, -0.0] {
        assert_eq!(Elemental::Relu.taylor(zero, 2).unwrap(), [0.0, 0.0, 0.0]);
        assert_eq!(Elemental::Abs.taylor(zero, 2).unwrap(), [0.0, 0.0, 0.0]);
    }
    assert_eq!(
        Elemental::Relu.taylor(-3.0_f32, 2).unwrap(),
        [0.0, 0.0, 0.0]
    );
    assert_eq!(Elemental::Relu.taylor(3.0, 2).unwrap(), [3.0, 1.0, 0.0]);
    assert_eq!(Elemental::Abs.taylor(-3.0, 2).unwrap(), [3.0, -1.0, 0.0]);
}

/// (limit at −∞, limit at +∞) of value and slope.
fn limits(elemental: &Elemental) -> Option<[(f64, f64); 2]> {
    use Elemental::*;
    let inf = f64::INFINITY;
    let half_turn = std::f64::consts::FRAC_PI_2;
    Some(match elemental {
        Tanh | Erf => [(-1.0, 0.0), (1.0, 0.0)],
        Sigmoid => [(0.0, 0.0), (1.0, 0.0)],
        LogSigmoid => [(-inf, 1.0), (0.0, 0.0)],
        Softplus | Silu | Gelu | Relu => [(0.0, 0.0), (inf, 1.0)],
        Exp => [(0.0, 0.0), (inf, inf)],
        ExpM1 => [(-1.0, 0.0), (inf, inf)],
        Sinh => [(-inf, inf), (inf, inf)],
        Cosh => [(inf, -inf), (inf, inf)],
        Atan => [(-half_turn, 0.0), (half_turn, 0.0)],
        Asinh | Cbrt => [(-inf, 0.0), (inf, 0.0)],
        Recip => [(0.0, 0.0), (0.0, 0.0)],
        Abs => [(inf, -1.0), (inf, 1.0)],
        Powi(3) => [(-inf, inf), (inf, inf)],
        _ => return None,
    })
}

#[test]
fn limits_at_infinity() {
    for elemental in elementals() {
        let Some(limits) = limits(&elemental) else {
            continue;
        };
        for (x, (value, slope)) in [f64::NEG_INFINITY, f64::INFINITY].into_iter().zip(limits) {
            for set in InstructionSet::available() {
                let mut c = [0.0; 2];
                elemental.taylor_into(&[x], 1, &mut c, set).unwrap();
                assert_eq!(c, [value, slope], "{elemental} {set:?} at {x}");
                let mut c = [0.0; 2];
                elemental.taylor_into(&[x as f32], 1, &mut c, set).unwrap();
                assert_eq!(
                    c,
                    [value as f32, slope as f32],
                    "{elemental} {set:?} at {x}"
                );
            }
        }
    }
    for elemental in [
        Elemental::Ln,
        Elemental::Ln1p,
        Elemental::Sqrt,
        Elemental::Acosh,
    ] {
        assert_eq!(
            elemental.taylor(f64::INFINITY, 2).unwrap(),
            [f64::INFINITY, 0.0, 0.0],
            "{elemental}"
        );
    }
    for elemental in [Elemental::Sin, Elemental::Cos, Elemental::Tan] {
        assert!(
            elemental
                .taylor(f64::INFINITY, 2)
                .unwrap()
                .iter()
                .all(|c| c.is_nan()),
            "{elemental}"
        );
    }
}

#[test]
fn nan_passes_and_lies_outside_every_domain() {
    use Elemental::*;
    for elemental in elementals() {
        for set in InstructionSet::available() {
            let mut c = [0.0; 2];
            elemental.taylor_into(&[f64::NAN], 1, &mut c, set).unwrap();
            assert!(c.iter().all(|c| c.is_nan()), "{elemental} {set:?}: {c:?}");
            let mut c = [0.0; 2];
            elemental.taylor_into(&[f32::NAN], 1, &mut c, set).unwrap();
            assert!(c.iter().all(|c| c.is_nan()), "{elemental} {set:?}: {c:?}");
        }
    }
    // Just outside, far outside, and at the end.
    for (elemental, near) in [
        (Ln, -5e-324),
        (Ln1p, -1.0 - f64::EPSILON),
        (Sqrt, -5e-324),
        (Powf(1.5), -5e-324),
        (Asin, -1.0 - f64::EPSILON),
        (Acos, -1.0 - f64::EPSILON),
        (Acosh, 1.0 - f64::EPSILON / 2.0),
        (Atanh, -1.0 - f64::EPSILON),
    ] {
        for x in [near, -1.5, -1e3, -1e8, -1e200, f64::NEG_INFINITY] {
            let c = elemental.taylor(x.min(near), 4).unwrap();
            assert!(c.iter().all(|c| c.is_nan()), "{elemental} at {x}: {c:?}");
        }
    }
}

#[test]
fn minus_zero_stays() {
    use Elemental::*;
    for elemental in [
        Tanh,
        Sin,
        Tan,
        ExpM1,
        Ln1p,
        Sqrt,
        Cbrt,
        Powi(3),
        Sinh,
        Asin,
        Atan,
        Asinh,
        Atanh,
        Erf,
    ] {
        for set in InstructionSet::available() {
            for zero in [0.0_f64, -0.0] {
                let mut c = [1.0];
                elemental.taylor_into(&[zero], 0, &mut c, set).unwrap();
                assert!(
                    c[0] == 0.0 && c[0].is_sign_negative() == zero.is_sign_negative(),
                    "{elemental} {set:?}: {c:?}"
                );
            }
        }
    }
}

#[test]
fn poles_at_the_ends_of_domains() {
    let inf = f64::INFINITY;
    assert_eq!(
        Elemental::Atanh.taylor(-1.0, 3).unwrap(),
        [-inf, inf, -inf, inf]
    );
    assert_eq!(Elemental::Asin.taylor(1.0, 2).unwrap()[1..], [inf, inf]);
    assert_eq!(Elemental::Asin.taylor(-1.0, 2).unwrap()[1..], [inf, -inf]);
    assert_eq!(Elemental::Acos.taylor(1.0, 2).unwrap(), [0.0, -inf, -inf]);
    assert_eq!(Elemental::Acosh.taylor(1.0, 2).unwrap(), [0.0, inf, -inf]);
}

#[test]
fn f32_is_monotone_where_the_function_is() {
    use Elemental::*;
    // every thousandth or so of all f32 numbers, in order
    let mut x: Vec<f32> = (0..0x7f80_0000u32)
        .step_by(1009)
        .map(f32::from_bits)
        .flat_map(|x| [x, -x])
        .collect();
    x.sort_by(f32::total_cmp);
    for elemental in [
        Tanh, Sigmoid, LogSigmoid, Softplus, Exp, Sinh, Erf, Atan, Asinh, Cbrt, Relu,
    ] {
        for set in InstructionSet::available() {
            let mut c = vec![0.0; x.len()];
            elemental.taylor_into(&x, 0, &mut c, set).unwrap();
            for i in 1..x.len() {
                // by no more than the error allowed
                let slack = 4.0 * f32::EPSILON * c[i].abs();
                assert!(
                    c[i] >= c[i - 1] || c[i] >= c[i - 1] - slack,
                    "{elemental} {set:?}: {:?} {:?}",
                    &x[i - 1..=i],
                    &c[i - 1..=i]
                );
            }
        }
    }
}

#[test]
fn f32_agrees_with_f64_over_its_whole_range() {
    let x: Vec<f32> = (0..=0x7f80_0000u32)
        .step_by(104_729)
        .map(f32::from_bits)
        .flat_map(|x| [x, -x])
        .collect();
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let n = x.len();
    for elemental in elementals() {
        let family = elemental.name();
        let family = family.split('(').next().unwrap();
        let bound = BOUNDS.iter().find(|b| b.0 == family).map_or(0.0, |b| b.2);
        let mut want = vec![0.0; 6 * n];
        elemental
            .taylor_into(&wide, 5, &mut want, InstructionSet::detect())
            .unwrap();
        for set in InstructionSet::available() {
            let mut c = vec![0.0_f32; 5 * n];
            elemental.taylor_into(&x, 4, &mut c, set).unwrap();
            for k in 0..5 {
                for l in 0..n {
                    let (got, want, next) = (c[k * n + l], want[k * n + l], want[(k + 1) * n + l]);
                    if got.is_nan() && want.is_nan() {
                        continue;
                    }
                    let e = error(got, k, wide[l], want, next);
                    assert!(
                        e <= bound + 1.0,
                        "{elemental} {set:?} c_{k} at {:e}: {got:e}, not {want:e}: {e} ulp",
                        x[l]
                    );
                }
            }
        }
    }
}

#[test]
fn any_number_of_lanes_and_any_order_give_the_same_bits() {
    let x: Vec<f64> = (0..70).map(|i| f64::from(i) * 0.37 - 9.0).collect();
    for elemental in elementals() {
        for set in InstructionSet::available() {
            let mut all = vec![0.0; x.len() * (MAX_ORDER + 2)];
            elemental
                .taylor_into(&x, MAX_ORDER + 1, &mut all, set)
                .unwrap();
            for n in (1..=x.len()).step_by(if elemental == Elemental::Tanh { 1 } else { 13 }) {
                for order in [0, 1, 2, 3, 5, 8, MAX_ORDER + 1] {
                    let mut c = vec![0.0; n * (order + 1)];
                    elemental.taylor_into(&x[..n], order, &mut c, set).unwrap();
                    for (i, c) in c.iter().enumerate() {
                        let want = all[i / n * x.len() + i % n];
                        let close = c == &want
                            || c.is_nan() && want.is_nan()
                            || error(*c, 0, 0.0, want, 0.0) < 3.0;
                        assert!(
                            close,
                            "{elemental} {set:?}, {n} lanes, order {order}: {c:e}, not {want:e}"
                        );
                    }
                }
            }
        }
    }
}

/// Else a loss without its gradient would differ from the loss with it.
#[test]
fn a_coefficient_does_not_depend_on_how_many_are_asked() {
    let x: Vec<f64> = (0..64).map(|i| f64::from(i) * 0.41 - 13.0).collect();
    for elemental in elementals() {
        for set in InstructionSet::available() {
            let mut all = vec![0.0; x.len() * (MAX_ORDER + 2)];
            elemental
                .taylor_into(&x, MAX_ORDER + 1, &mut all, set)
                .unwrap();
            for order in 0..=MAX_ORDER {
                let mut c = vec![0.0; x.len() * (order + 1)];
                elemental.taylor_into(&x, order, &mut c, set).unwrap();
                for (at, (c, want)) in c.iter().zip(&all).enumerate() {
                    assert!(
                        c.to_bits() == want.to_bits() || c.is_nan() && want.is_nan(),
                        "{elemental} {set:?}: c_{} at {} is {c:e} of {order}, {want:e} of all",
                        at / x.len(),
                        x[at % x.len()]
                    );
                }
            }
        }
    }
}

#[test]
fn one_lane_is_as_many() {
    let set = InstructionSet::detect();
    let x = [-2.5, -0.3, 0.0, 0.7, 12.0];
    for elemental in elementals() {
        let mut c = vec![0.0; 6 * x.len()];
        elemental.taylor_into(&x, 5, &mut c, set).unwrap();
        for (lane, &x) in x.iter().enumerate() {
            for (k, one) in elemental.taylor(x, 5).unwrap().into_iter().enumerate() {
                let many: f64 = c[k * 5 + lane];
                assert_eq!(
                    one.to_bits(),
                    many.to_bits(),
                    "{elemental} c_{k} at {x}: {one} {many}"
                );
            }
        }
    }
}

#[test]
fn orders_end_and_room_is_checked() {
    let error = Elemental::Exp.taylor(0.0, MAX_ORDER + 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the order of the coefficients of `exp` is 14; at most 13"
    );
    let set = InstructionSet::detect();
    let error = Elemental::Exp
        .taylor_into(&[0.0, 1.0], 1, &mut [0.0; 3], set)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "room for the coefficients of `exp`: 3 given, 4 expected"
    );
}

#[test]
fn custom_functions() {
    let cubic = Elemental::custom("cubic", Smoothness::UpTo(4), |z, c| {
        c.fill(0.0);
        for (c, value) in c.iter_mut().zip([z * z * z, 3.0 * z * z, 3.0 * z, 1.0]) {
            *c = value;
        }
    });
    assert_eq!(cubic.name(), "cubic");
    assert_eq!(
        format!("{cubic} {cubic:?}").split(' ').next(),
        Some("cubic")
    );
    assert_eq!(cubic.clone(), cubic);
    assert_ne!(
        Elemental::custom("cubic", Smoothness::UpTo(4), |_, c| c.fill(0.0)),
        cubic
    );
    assert!(cubic.smoothness().allows(4) && !cubic.smoothness().allows(5));
    for order in 0..5 {
        assert_eq!(
            cubic.taylor(1.5, order).unwrap(),
            Elemental::Powi(3).taylor(1.5, order).unwrap()
        );
        assert_eq!(
            cubic.taylor(1.5_f32, order).unwrap(),
            Elemental::Powi(3).taylor(1.5_f32, order).unwrap()
        );
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<String> = elementals().iter().map(ToString::to_string).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(Elemental::Powf(-0.5).to_string(), "powf(-0.5)");
}

/// The same function by num-dual.
fn by_num_dual<D: DualNum<Primitive = f64> + Copy>(elemental: &Elemental, x: D) -> Option<D> {
    use Elemental::*;
    Some(match *elemental {
        Tanh => x.tanh(),
        Sigmoid => ((-x).exp() + 1.0).recip(),
        LogSigmoid => -(-x).exp().ln_1p(),
        Softplus => x.exp().ln_1p(),
        Silu => x * ((-x).exp() + 1.0).recip(),
        Sin => x.sin(),
        Cos => x.cos(),
        Tan => x.tan(),
        Exp => x.exp(),
        ExpM1 => x.exp_m1(),
        Ln => x.ln(),
        Ln1p => x.ln_1p(),
        Sqrt => x.sqrt(),
        Cbrt => x.cbrt(),
        Recip => x.recip(),
        Powi(n) => x.powi(n),
        Powf(a) => x.powf(a),
        Sinh => x.sinh(),
        Cosh => x.cosh(),
        Asin => x.asin(),
        Acos => x.acos(),
        Atan => x.atan(),
        Asinh => x.asinh(),
        Acosh => x.acosh(),
        Atanh => x.atanh(),
        Abs => x.abs(),
        _ => return None,
    })
}

#[test]
fn apply_is_num_dual_in_moderate_range() {
    for elemental in elementals() {
        let points = match elemental {
            Elemental::Acosh => [1.2, 1.9, 3.0],
            Elemental::Asin | Elemental::Acos | Elemental::Atanh => [0.2, -0.5, 0.8],
            Elemental::Ln | Elemental::Sqrt | Elemental::Powf(_) => [0.3, 1.7, 2.9],
            _ => [0.3, -0.6, 1.4],
        };
        for x in points {
            let first = Dual64::new(x, -0.7);
            let Some(want) = by_num_dual(&elemental, first) else {
                continue;
            };
            let got = elemental.apply(first);
            assert_close(&[got.re, got.eps], &[want.re, want.eps], 1e-14);

            let second = Dual2_64::new(x, 0.4, 1.3);
            let (got, want) = (
                elemental.apply(second),
                by_num_dual(&elemental, second).unwrap(),
            );
            assert_close(
                &[got.re, got.v1, got.v2],
                &[want.re, want.v1, want.v2],
                1e-13,
            );

            let third = Dual3_64::new(x, 0.4, 1.3, -0.2);
            let (got, want) = (
                elemental.apply(third),
                by_num_dual(&elemental, third).unwrap(),
            );
            assert_close(
                &[got.re, got.v1, got.v2, got.v3],
                &[want.re, want.v1, want.v2, want.v3],
                1e-12,
            );

            let hyper = HyperDual64::new(x, 0.4, -1.1, 0.9);
            let (got, want) = (
                elemental.apply(hyper),
                by_num_dual(&elemental, hyper).unwrap(),
            );
            assert_close(
                &[got.re, got.eps1, got.eps2, got.eps1eps2],
                &[want.re, want.eps1, want.eps2, want.eps1eps2],
                1e-13,
            );
        }
    }
}

#[test]
fn apply_is_right_in_the_tails() {
    use Elemental::*;
    let at = |x: f64| Dual3_64::from(x).derivative();
    let y = Tanh.apply(at(236.0));
    let e = 4.0 * (-472.0_f64).exp();
    assert_close(
        &[y.re, y.v1, y.v2, y.v3],
        &[1.0, e, -2.0 * e, 4.0 * e],
        1e-13,
    );
    for (elemental, x, want) in [
        (Tanh, 1e4, [1.0, 0.0, 0.0, 0.0]),
        (Tanh, f64::NEG_INFINITY, [-1.0, 0.0, 0.0, 0.0]),
        (Sigmoid, f64::INFINITY, [1.0, 0.0, 0.0, 0.0]),
        (Softplus, f64::INFINITY, [f64::INFINITY, 1.0, 0.0, 0.0]),
        (Relu, f64::INFINITY, [f64::INFINITY, 1.0, 0.0, 0.0]),
        (Silu, f64::NEG_INFINITY, [0.0; 4]),
        (Ln, f64::INFINITY, [f64::INFINITY, 0.0, 0.0, 0.0]),
    ] {
        let y = elemental.apply(at(x));
        assert_eq!([y.re, y.v1, y.v2, y.v3], want, "{elemental} at {x}");
    }
    // infinite slopes reach the parts that they belong to, and no others
    let y = Sqrt.apply(Dual64::new(0.0, 1.0));
    assert_eq!((y.re, y.eps), (0.0, f64::INFINITY));
    let y = Sqrt.apply(Dual64::new(0.0, 0.0));
    assert_eq!((y.re, y.eps), (0.0, 0.0));
    let y = Powf(1.5).apply(Dual2_64::new(0.0, 1.0, 0.0));
    assert_eq!((y.re, y.v1, y.v2), (0.0, 0.0, f64::INFINITY));
    assert_eq!(Tanh.apply(0.5_f64), Tanh.taylor(0.5, 0).unwrap()[0]);
}

/// f and its derivative, as a factor times an elemental of x or of −x.
fn pair() -> impl Strategy<Value = (Elemental, Elemental, f64)> {
    use Elemental::*;
    prop::sample::select(vec![
        (Sin, Cos, 1.0),
        (Cos, Sin, -1.0),
        (Exp, Exp, 1.0),
        (ExpM1, Exp, 1.0),
        (Sinh, Cosh, 1.0),
        (Cosh, Sinh, 1.0),
        (Ln, Recip, 1.0),
        (Softplus, Sigmoid, 1.0),
        (Recip, Powi(-2), -1.0),
        (Powi(5), Powi(4), 5.0),
        (Powi(-3), Powi(-4), -3.0),
        (Powf(2.5), Powf(1.5), 2.5),
        (Powf(0.3), Powf(-0.7), 0.3),
        (Sqrt, Powf(-0.5), 0.5),
        (Cbrt, Powf(-2.0 / 3.0), 1.0 / 3.0),
    ])
}

proptest! {
    /// (k + 1) c_{k+1}(f) = c_k(f′).
    #[test]
    fn coefficients_of_the_derivative((f, slope, factor) in pair(), x in -12.0..12.0_f64, order in 0..=MAX_ORDER) {
        let x = if matches!(f, Elemental::Ln | Elemental::Sqrt | Elemental::Cbrt | Elemental::Powf(_)) { x.abs() + 1e-3 } else { x };
        let c = f.taylor(x, order + 1).unwrap();
        let d = slope.taylor(x, order + 1).unwrap();
        for k in 0..=order {
            let (got, want) = ((k as f64 + 1.0) * c[k + 1], factor * d[k]);
            let scale = want.abs().max((x * (k as f64 + 1.0) * factor * d[k + 1]).abs()).max(f64::MIN_POSITIVE);
            prop_assert!((got - want).abs() <= 40.0 * f64::EPSILON * scale, "{f} c_{k} at {x}: {got:e} {want:e}");
        }
    }

    /// f(x + h) = Σ c_k h^k.
    #[test]
    fn series_sum_to_the_function(i in 0..30_usize, x in 0.2..0.8_f64, h in -0.02..0.02_f64) {
        let elemental = &elementals()[i];
        let x = if *elemental == Elemental::Acosh { x + 1.0 } else { x };
        let c = elemental.taylor(x, MAX_ORDER + 1).unwrap();
        let sum = c.iter().rev().fold(0.0, |sum, c| sum * h + c);
        let want = elemental.taylor(x + h, 0).unwrap()[0];
        prop_assert!((sum - want).abs() <= 1e-13 * want.abs().max(1.0), "{elemental} at {x} + {h}: {sum:e} {want:e}");
    }

    /// A difference quotient of c_k is (k + 1) c_{k+1}, and its error falls by four with the step.
    #[test]
    fn differences_of_coefficients(i in 0..30_usize, x in 0.3..0.7_f64, k in 0..4_usize) {
        let elemental = &elementals()[i];
        let x = if *elemental == Elemental::Acosh { x + 1.0 } else { x };
        let c = elemental.taylor(x, k + 3).unwrap();
        let wanted = (k as f64 + 1.0) * c[k + 1];
        let at = |h: f64| elemental.taylor(x + h, k).unwrap()[k];
        let difference = |h: f64| (at(h) - at(-h)) / (2.0 * h);
        let (coarse, fine) = ((difference(2e-3) - wanted).abs(), (difference(1e-3) - wanted).abs());
        let floor = 1e-11 * wanted.abs().max(c[k].abs()).max(1.0);
        prop_assert!(fine <= coarse / 3.5 + floor, "{elemental} c_{k} at {x}: {coarse:e} {fine:e}");
    }
}
