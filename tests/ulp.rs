//! The table of errors of elementals, `docs/ulp.md`, held to what is measured: each function,
//! orders 0 to 7, both precisions, arguments over the whole range, on every instruction set,
//! against arbitrary precision.
//!
//! `DUALTAPE_LONG=1 cargo test --release --test ulp -- --nocapture` tries 25 times the
//! arguments and prints the table anew.

mod common;

use common::uniform;
use dashu_float::FBig;
use dashu_float::round::mode::HalfEven;
use dualtape::{Elemental, InstructionSet, Real};
use std::collections::BTreeMap;
use std::fmt::Write as _;

type Big = FBig<HalfEven, 2>;

/// Orders of the table.
const ORDERS: usize = 8;

/// Bits that the references carry: beyond the smallest f64, 2^−1074, relative to 1, since the
/// plain definitions cancel as much in their tails.
const DOUBLE_BITS: usize = 1400;
const SINGLE_BITS: usize = 420;

// Taylor series in many digits, by definitions that are plain rather than clever.

/// Coefficients of a function of t at 0, `ORDERS` + 1 of them.
#[derive(Clone)]
struct Series(Vec<Big>);

#[derive(Clone, Copy)]
struct Digits(usize);

impl Digits {
    fn number(self, x: f64) -> Big {
        let exact = Big::try_from(x).expect("finite");
        exact.with_precision(self.0).value()
    }
    /// x + t.
    fn argument(self, x: f64) -> Series {
        let mut c = vec![self.number(0.0); ORDERS + 1];
        (c[0], c[1]) = (self.number(x), self.number(1.0));
        Series(c)
    }
    fn pi(self) -> Big {
        Big::pi(self.0)
    }
    /// erf by a series of positive terms: 2/√π e^(−x²) Σ 2^n x^(2n+1)/(2n+1)!!.
    fn erf(self, x: &Big) -> Big {
        let square = x * x;
        let (mut term, mut sum) = (x.clone(), x.clone());
        let mut n = 0.0;
        // Beyond 40 every derivative of the rest is below the smallest number.
        if x.to_f64().value().abs() > 40.0 {
            return self.number(x.to_f64().value().signum());
        }
        while term.to_f64().value() != 0.0
            || (&term / &sum).into_repr().exponent() > -(2 * self.0 as isize)
        {
            n += 1.0;
            term = term * &square * self.number(2.0) / self.number(2.0 * n + 1.0);
            sum += &term;
            if x.to_f64().value() == 0.0
                || n > 60.0 + 10.0 * square.to_f64().value() + self.0 as f64
            {
                break;
            }
        }
        sum * (-square).exp() * self.number(2.0) / self.pi().sqrt()
    }
}

impl Series {
    fn map(mut self, f: impl Fn(Big) -> Big) -> Self {
        self.0 = self.0.into_iter().map(f).collect();
        self
    }
    fn plus(mut self, number: f64, digits: Digits) -> Self {
        self.0[0] += digits.number(number);
        self
    }
    fn times(&self, other: &Self) -> Self {
        let sum = |k: usize| {
            (0..=k)
                .map(|i| &self.0[i] * &other.0[k - i])
                .reduce(|a, b| a + b)
        };
        Self((0..=ORDERS).map(|k| sum(k).expect("a term")).collect())
    }
    fn over(&self, other: &Self) -> Self {
        let mut c: Vec<Big> = Vec::new();
        for k in 0..=ORDERS {
            let known = (0..k).fold(self.0[k].clone(), |rest, i| rest - &c[i] * &other.0[k - i]);
            c.push(known / &other.0[0]);
        }
        Self(c)
    }
    /// v with v′ = u′·w(v), from v_0: k v_k = Σ i u_i w_{k−i}.
    fn integral(&self, first: Big, digits: Digits, slope: impl Fn(&[Big], usize) -> Big) -> Self {
        let mut v = vec![first];
        for k in 1..=ORDERS {
            let mut sum = digits.number(0.0);
            for i in 1..=k {
                sum += digits.number(i as f64) * &self.0[i] * slope(&v, k - i);
            }
            v.push(sum / digits.number(k as f64));
        }
        Self(v)
    }
    fn exp(&self, digits: Digits) -> Self {
        self.integral(self.0[0].exp(), digits, |v, k| v[k].clone())
    }
    /// From the value and the derivative as a series.
    fn with_slope(first: Big, slope: &Self, digits: Digits) -> Self {
        let mut c = vec![first];
        c.extend((1..=ORDERS).map(|k| &slope.0[k - 1] / digits.number(k as f64)));
        Self(c)
    }
    fn ln(&self, digits: Digits) -> Self {
        let slope = Self::derivative(self, digits).over(self);
        Self::with_slope(self.0[0].ln(), &slope, digits)
    }
    fn derivative(&self, digits: Digits) -> Self {
        let mut c: Vec<Big> = (1..=ORDERS)
            .map(|k| digits.number(k as f64) * &self.0[k])
            .collect();
        c.push(digits.number(0.0));
        Self(c)
    }
    /// self^a from its value: u p′ = a u′ p.
    fn power(&self, value: Big, a: &Big, digits: Digits) -> Self {
        let mut p = vec![value];
        for k in 1..=ORDERS {
            let mut sum = digits.number(0.0);
            for i in 1..=k {
                let factor = a * digits.number(i as f64) - digits.number((k - i) as f64);
                sum += factor * &self.0[i] * &p[k - i];
            }
            p.push(sum / (digits.number(k as f64) * &self.0[0]));
        }
        Self(p)
    }
    fn sqrt(&self, digits: Digits) -> Self {
        self.power(self.0[0].sqrt(), &digits.number(0.5), digits)
    }
}

/// c_0..=c_8 of an elemental at x, with so many digits.
fn reference(elemental: &Elemental, x: f64, digits: Digits) -> Vec<Big> {
    use Elemental::*;
    // Where e^x has more digits than a computer has memory, nothing happens any more, but
    // that what grows like x goes on to.
    if domain(elemental).interest < 1e3 && x.abs() > FAR {
        let mut c = reference(elemental, FAR.copysign(x), digits);
        let value = c[0].to_f64().value();
        if value.abs() == FAR {
            c[0] = digits.number(x.abs().copysign(value));
        }
        return c;
    }
    let t = digits.argument(x);
    let number = |x: f64| digits.number(x);
    let neg = |s: Series| s.map(|c| -c);
    // √(1 − t²), with each factor exact.
    let circle = || {
        neg(t.clone())
            .plus(1.0, digits)
            .times(&t.clone().plus(1.0, digits))
    };
    let one = || t.clone().map(|_| number(0.0)).plus(1.0, digits);
    let gauss = |scale: Big, root: Big| {
        let z = t.clone().map(|c| c / &root);
        let slope = neg(z.times(&z)).exp(digits).map(|c| c * &scale);
        Series::with_slope(digits.erf(&z.0[0]), &slope, digits)
    };
    let series = match elemental {
        Tanh => {
            let e = t.clone().map(|c| c * number(-2.0)).exp(digits);
            neg(e.clone()).plus(1.0, digits).over(&e.plus(1.0, digits))
        }
        Sigmoid => one().over(&neg(t.clone()).exp(digits).plus(1.0, digits)),
        LogSigmoid => neg(neg(t.clone()).exp(digits).plus(1.0, digits).ln(digits)),
        Softplus => t.exp(digits).plus(1.0, digits).ln(digits),
        Silu => t.over(&neg(t.clone()).exp(digits).plus(1.0, digits)),
        Erf => gauss(number(2.0) / digits.pi().sqrt(), number(1.0)),
        Gelu => {
            // d/dx erf(x/√2) = √(2/π) e^(−x²/2)
            let erf = gauss((number(2.0) / digits.pi()).sqrt(), number(2.0).sqrt());
            let normal = erf.plus(1.0, digits).map(|c| c / number(2.0));
            t.times(&normal)
        }
        Sin | Cos => {
            let (s, c) = t.0[0].sin_cos();
            let cycle = if *elemental == Sin {
                [s.clone(), c.clone(), -s, -c]
            } else {
                [c.clone(), -s.clone(), -c, s]
            };
            let mut factorial = number(1.0);
            let c = (0..=ORDERS).map(|k| {
                if k > 0 {
                    factorial *= number(k as f64);
                }
                &cycle[k % 4] / &factorial
            });
            Series(c.collect())
        }
        Tan => {
            let tan = t.0[0].sin() / t.0[0].cos();
            t.integral(tan, digits, |v, k| {
                let square = (0..=k).fold(number(0.0), |sum, i| sum + &v[i] * &v[k - i]);
                if k == 0 { square + number(1.0) } else { square }
            })
        }
        Exp => t.exp(digits),
        ExpM1 => t.exp(digits).plus(-1.0, digits),
        Ln => t.ln(digits),
        Ln1p => t.plus(1.0, digits).ln(digits),
        Sqrt => t.sqrt(digits),
        Cbrt => {
            let root = t.0[0].nth_root(3);
            t.power(root, &(number(1.0) / number(3.0)), digits)
        }
        Recip => one().over(&t),
        Powi(n) => {
            let power = (0..n.unsigned_abs()).fold(one(), |p, _| p.times(&t));
            if *n < 0 { one().over(&power) } else { power }
        }
        Powf(a) => {
            let a = number(*a);
            t.power(t.0[0].powf(&a), &a, digits)
        }
        Sinh | Cosh => {
            let (up, down) = (t.exp(digits), neg(t.clone()).exp(digits));
            let sign = number(if *elemental == Sinh { -0.5 } else { 0.5 });
            let pairs = up.0.iter().zip(&down.0);
            Series(pairs.map(|(u, d)| u * number(0.5) + d * &sign).collect())
        }
        Asin | Acos => {
            let slope = one().over(&circle().sqrt(digits));
            if *elemental == Asin {
                Series::with_slope(t.0[0].asin(), &slope, digits)
            } else {
                Series::with_slope(t.0[0].acos(), &neg(slope), digits)
            }
        }
        Atan => {
            let slope = one().over(&t.times(&t).plus(1.0, digits));
            Series::with_slope(t.0[0].atan(), &slope, digits)
        }
        Asinh => {
            let root = t.times(&t).plus(1.0, digits).sqrt(digits);
            // Odd: no difference of equal numbers on the left.
            let magnitude = |c: &Big| if x < 0.0 { -c.clone() } else { c.clone() };
            let value = (magnitude(&t.0[0]) + &root.0[0]).ln();
            Series::with_slope(magnitude(&value), &one().over(&root), digits)
        }
        Acosh => {
            let root = neg(circle()).sqrt(digits);
            let value = (&t.0[0] + &root.0[0]).ln();
            Series::with_slope(value, &one().over(&root), digits)
        }
        Atanh => {
            let value = ((number(1.0) + &t.0[0]) / (number(1.0) - &t.0[0])).ln() / number(2.0);
            Series::with_slope(value, &one().over(&circle()), digits)
        }
        other => panic!("no reference for {other}"),
    };
    series.0
}

/// Beyond it functions of e^x are their limits in every precision.
const FAR: f64 = 1e4;

// Arguments.

/// Where a function is looked at.
struct Domain {
    /// Ends, both excluded.
    from: f64,
    to: f64,
    /// Thresholds of its implementation or of its mathematics, looked at closely.
    near: &'static [f64],
    /// Beyond it nothing happens that is not tried at special arguments (the tail of tails).
    interest: f64,
}

fn domain(elemental: &Elemental) -> Domain {
    use Elemental::*;
    let all = |near, interest| Domain {
        from: f64::NEG_INFINITY,
        to: f64::INFINITY,
        near,
        interest,
    };
    match elemental {
        Tanh => all(
            &[0.5, 1.0, 9.01, 19.06, 22.0, 44.0, 372.0, 400.0, 800.0],
            400.0,
        ),
        Sigmoid | LogSigmoid | Softplus | Silu => all(
            &[
                1.0, 15.9, 18.0, 33.3, 36.7, 40.4, 88.0, 104.0, 709.0, 745.0, 750.0,
            ],
            760.0,
        ),
        Erf => all(
            &[0.5, 0.84375, 1.0, 1.25, 2.85, 5.92, 10.0, 27.0, 38.6],
            28.0,
        ),
        Gelu => all(&[0.75, 1.0, 1.414, 5.5, 8.3, 14.0, 37.5, 38.6, 39.5], 40.0),
        Exp | ExpM1 | Sinh | Cosh => all(
            &[0.3, 0.3466, 1.0, 22.0, 88.7, 104.0, 709.78, 710.475, 745.13],
            740.0,
        ),
        Sin | Cos | Tan => all(
            &[
                0.785,
                std::f64::consts::FRAC_PI_2,
                std::f64::consts::PI,
                1e5,
                1e6,
                6e9,
                1e22,
            ],
            1e7,
        ),
        Ln | Sqrt | Powf(_) => Domain {
            from: 0.0,
            ..all(&[1.0, 2.0], f64::MAX)
        },
        Ln1p => Domain {
            from: -1.0,
            ..all(&[0.99999, 1.0], f64::MAX)
        },
        Asin | Acos | Atanh => Domain {
            from: -1.0,
            to: 1.0,
            ..all(&[0.5, 0.7, 0.9999999], 1.0)
        },
        Acosh => Domain {
            from: 1.0,
            ..all(&[1.0, 1.0000001, 1.5, 2.0, 1e8, 1e100], f64::MAX)
        },
        Atan | Asinh => all(&[0.5, 1.0, 2.0, 1e8, 1e100, 1e154], f64::MAX),
        _ => all(&[1.0], f64::MAX),
    }
}

/// Arguments: subnormal, tiny, near thresholds, all exponents, and where it is interesting.
fn arguments<T: Real>(elemental: &Elemental, count: usize) -> Vec<f64> {
    let single = size_of::<T>() == 4;
    let (tiny, least, most) = if single {
        (
            f64::from(f32::MIN_POSITIVE),
            f64::from(f32::from_bits(1)),
            f64::from(f32::MAX),
        )
    } else {
        (f64::MIN_POSITIVE, f64::from_bits(1), f64::MAX)
    };
    let domain = domain(elemental);
    let epsilon = T::EPSILON.to_f64();
    let mut list = vec![
        least,
        3.0 * least,
        tiny / 2.0,
        tiny - least,
        tiny,
        epsilon,
        1.0,
        most / 2.0,
        most,
        1.0 - epsilon / 2.0,
        1.0 + epsilon,
        domain.from + epsilon,
        domain.to - epsilon,
    ];
    let mut noise = uniform(elemental.name().bytes().fold(count as u64 / 1000, |h, b| {
        h.wrapping_mul(0x100_0000_01B3) ^ u64::from(b)
    }));
    let mut noise = || noise.next().expect("it has no end");
    for &near in domain.near {
        list.push(near);
        for _ in 0..count / 100 {
            list.push(near * (1.0 + 1e-3 * (noise() - 0.5)));
        }
    }
    let interest = domain.interest.min(most);
    let (low, high) = (tiny.log2(), most.log2());
    for _ in 0..count {
        // Every exponent alike.
        list.push((low + (high - low) * noise()).exp2());
        // Where something happens.
        list.push(interest.min(1e3) * noise());
        list.push(((1e-6_f64).ln() + (interest.min(1e12) / 1e-6).ln() * noise()).exp());
        list.push(4.0 * noise());
        if domain.to == 1.0 || domain.from == 1.0 {
            let close = (epsilon.ln() * noise()).exp();
            list.push(if domain.to == 1.0 {
                1.0 - close
            } else {
                1.0 + close
            });
        }
        if domain.from == -1.0 {
            list.push(1.0 - (epsilon.ln() * noise()).exp());
        }
    }
    let signed = list.into_iter().flat_map(|x| [x, -x]);
    let rounded = signed.map(|x| T::from_f64(x).to_f64());
    rounded
        .filter(|&x| x.is_finite() && x != 0.0 && domain.from < x && x < domain.to)
        .collect()
}

// Errors.

fn ulp<T: Real>(x: f64) -> f64 {
    let tiny = if size_of::<T>() == 4 {
        f64::from(f32::MIN_POSITIVE)
    } else {
        f64::MIN_POSITIVE
    };
    f64::from_bits(x.abs().max(tiny).to_bits() & (0x7ff << 52)) * T::EPSILON.to_f64()
}

/// The error of c_k in units of its last place; or, where that is larger, of what one unit in
/// the last place of x does to c_k, ε·|x·(k+1)·c_{k+1}|: near a zero of f⁽ᵏ⁾ no more can be
/// had. An infinite coefficient is right where the derivative k!·c_k overflows.
fn error<T: Real>(got: T, k: usize, x: f64, want: &[Big], digits: Digits) -> f64 {
    let got = got.to_f64();
    let near = want[k].to_f64().value();
    let most = if size_of::<T>() == 4 {
        f64::from(f32::MAX)
    } else {
        f64::MAX
    };
    let factorial: f64 = (1..=k).map(|i| i as f64).product();
    if !got.is_finite() {
        let right =
            got.is_infinite() && got.signum() == near.signum() && near.abs() > most / factorial;
        return if right { 0.0 } else { f64::INFINITY };
    }
    if near.is_infinite() {
        return f64::INFINITY;
    }
    let next = digits.number(x) * digits.number(k as f64 + 1.0) * &want[k + 1];
    let conditioning = (next * digits.number(T::EPSILON.to_f64()))
        .to_f64()
        .value()
        .abs();
    let unit = if conditioning.is_finite() {
        ulp::<T>(near).max(conditioning)
    } else {
        ulp::<T>(near)
    };
    ((digits.number(got) - &want[k]).to_f64().value() / unit).abs()
}

#[derive(Clone, Default)]
struct Worst {
    error: f64,
    text: String,
}

/// The largest error of each order, on any instruction set, whatever order is asked for.
fn measure<T: Real>(elemental: &Elemental, count: usize) -> (Vec<Worst>, usize) {
    let digits = Digits(if size_of::<T>() == 4 {
        SINGLE_BITS
    } else {
        DOUBLE_BITS
    });
    let x = arguments::<T>(elemental, count);
    let z: Vec<T> = x.iter().map(|&x| T::from_f64(x)).collect();
    let want: Vec<Vec<Big>> = x.iter().map(|&x| reference(elemental, x, digits)).collect();
    let mut worst = vec![Worst::default(); ORDERS];
    let mut got = vec![T::ZERO; ORDERS * z.len()];
    for set in InstructionSet::available() {
        // The code of the lowest orders is another.
        for order in [0, 1, 2, 3, ORDERS - 1] {
            elemental
                .taylor_into(&z, order, &mut got, set)
                .expect("room");
            for k in 0..=order {
                for (lane, want) in want.iter().enumerate() {
                    let got = got[k * z.len() + lane];
                    let error = error(got, k, x[lane], want, digits);
                    if error > worst[k].error {
                        let text = format!(
                            "{elemental} on {}, order {order}: c_{k} at {:e} is {got:?}, not {:e}: \
                             {error:.2} ulp",
                            set.name(),
                            x[lane],
                            want[k].to_f64().value()
                        );
                        worst[k] = Worst { error, text };
                    }
                }
            }
        }
    }
    (worst, x.len())
}

fn elementals() -> Vec<Elemental> {
    use Elemental::*;
    let powers = [0, 1, 2, 3, 5, 17, -1, -2, -7].map(Powi);
    let roots = [0.5, 1.5, -0.75, 2.3, 0.1, -3.2].map(Powf);
    let mut all = vec![
        Tanh, Sigmoid, LogSigmoid, Softplus, Silu, Gelu, Erf, Sin, Cos, Tan, Exp, ExpM1, Ln, Ln1p,
        Sqrt, Cbrt, Recip, Sinh, Cosh, Asin, Acos, Atan, Asinh, Acosh, Atanh,
    ];
    all.extend(powers);
    all.extend(roots);
    all
}

fn family(elemental: &Elemental) -> String {
    let name = elemental.name();
    name.split('(').next().expect("a name").to_owned()
}

fn long() -> bool {
    std::env::var("DUALTAPE_LONG").is_ok_and(|word| word == "1")
}

/// The bounds of `docs/ulp.md`: by precision and function, one for each order.
fn table() -> BTreeMap<(String, String), Vec<f64>> {
    let mut table = BTreeMap::new();
    let mut precision = String::new();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ulp.md");
    let page = std::fs::read_to_string(page).expect("the table");
    for line in page.lines() {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        match cells[..] {
            [name @ ("f64" | "f32"), ..] => precision = name.to_owned(),
            [name, ref numbers @ ..] if numbers.len() == ORDERS && !name.starts_with('-') => {
                let bounds = numbers.iter().map(|x| x.parse().expect("a number"));
                for name in name.split(", ") {
                    table.insert(
                        (precision.clone(), name.to_owned()),
                        bounds.clone().collect(),
                    );
                }
            }
            _ => {}
        }
    }
    table
}

/// Largest errors of a family.
type Measured = BTreeMap<(&'static str, String), Vec<Worst>>;

fn check(part: usize, parts: usize) {
    let table = table();
    let count = if long() { 1_000 } else { 40 };
    let mut measured = Measured::new();
    let mut tried = 0;
    for elemental in elementals().iter().skip(part).step_by(parts) {
        let name = family(elemental);
        for (precision, (worst, arguments)) in [
            ("f64", measure::<f64>(elemental, count)),
            ("f32", measure::<f32>(elemental, count)),
        ] {
            tried += arguments;
            let entry = measured
                .entry((precision, name.clone()))
                .or_insert_with(|| vec![Worst::default(); ORDERS]);
            for (known, new) in entry.iter_mut().zip(worst) {
                if new.error > known.error {
                    *known = new;
                }
            }
        }
    }
    let mut failures = String::new();
    for ((precision, name), worst) in &measured {
        let numbers = worst
            .iter()
            .map(|w| format!("{:.1}", (w.error * 10.0).ceil() / 10.0));
        println!(
            "{precision} | {name} | {} |",
            numbers.collect::<Vec<_>>().join(" | ")
        );
        let bounds = table.get(&((*precision).to_owned(), name.clone()));
        let bounds = bounds.unwrap_or_else(|| panic!("no row for {name} in {precision}"));
        for (worst, bound) in worst.iter().zip(bounds) {
            if worst.error > *bound {
                let _ = writeln!(failures, "{} (at most {bound})", worst.text);
            }
        }
    }
    println!("{tried} arguments");
    assert!(failures.is_empty(), "{failures}");
}

// In parts, so that they run side by side.
#[test]
fn the_table_holds_for_a_third() {
    check(0, 3);
}
#[test]
fn the_table_holds_for_another_third() {
    check(1, 3);
}
#[test]
fn the_table_holds_for_the_last_third() {
    check(2, 3);
}

#[test]
fn every_function_has_a_row_and_every_row_a_function() {
    let names: Vec<String> = elementals().iter().map(family).collect();
    for ((_, name), bounds) in table() {
        assert!(names.contains(&name), "{name}");
        assert_eq!(bounds.len(), ORDERS);
    }
}

/// At ±∞ each coefficient is the limit of those at large arguments.
#[test]
fn limits_of_every_order_at_infinity() {
    let digits = Digits(DOUBLE_BITS);
    for elemental in elementals() {
        let at = domain(&elemental);
        if matches!(elemental, Elemental::Sin | Elemental::Cos | Elemental::Tan) {
            continue; // no limit; NaN by another test
        }
        for (end, reached) in [
            (f64::MAX, at.to.is_infinite()),
            (-f64::MAX, at.from.is_infinite()),
        ] {
            if !reached {
                continue;
            }
            // e^x at the largest number has more digits than a computer has memory.
            let steep = at.interest < 1e3;
            let x = if steep { end.signum() * 3e3 } else { end };
            let want = reference(&elemental, x, Digits(if steep { 9_000 } else { digits.0 }));
            for set in InstructionSet::available() {
                let mut got = [0.0; ORDERS];
                let infinity = f64::INFINITY.copysign(end);
                elemental
                    .taylor_into(&[infinity], ORDERS - 1, &mut got, set)
                    .expect("room");
                for (k, got) in got.into_iter().enumerate() {
                    let near = want[k].to_f64().value();
                    let limit = match near.abs() {
                        size if size > 100.0 => f64::INFINITY.copysign(near),
                        size if size < 1e-30 => 0.0,
                        _ => near,
                    };
                    let close = got == limit || (got - limit).abs() <= f64::EPSILON * limit.abs();
                    assert!(
                        close,
                        "{elemental} on {}: c_{k} at {infinity} is {got}, not {limit}",
                        set.name()
                    );
                }
            }
        }
    }
}
