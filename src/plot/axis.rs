//! Axes with round ticks, linear or logarithmic.

use super::{Pixels, UNIT, extent};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// An axis with its ticks, linear or logarithmic.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// The ends; their logarithms to base 10 on a logarithmic axis.
    from: f64,
    to: f64,
    log: bool,
    pub(super) ticks: Vec<f64>,
    /// The distance of ticks on a linear axis.
    step: f64,
}

impl Axis {
    /// An axis that holds all values, with a share of its length as room at either end.
    pub(super) fn over(values: impl Iterator<Item = f64>, log: bool, room: f64) -> Self {
        let (low, high) = extent(values);
        if log {
            let (low, high) = (low.log10(), high.log10());
            let room = (room * (high - low)).max(0.02);
            return Self::between(10_f64.powf(low - room), 10_f64.powf(high + room), true);
        }
        let mut room = room * (high - low);
        if low == high {
            room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
        }
        Self::between(low - room, high + room, false)
    }

    pub(super) fn between(low: f64, high: f64, log: bool) -> Self {
        let (from, to) = if log {
            (low.log10(), high.log10())
        } else {
            (low, high)
        };
        let within = |tick: &f64| {
            let slack = 1e-9 * (to - from);
            (from - slack..=to + slack).contains(&if log { tick.log10() } else { *tick })
        };
        let multiples = |step: f64| {
            let first = (from / step).floor() as i64;
            let last = (to / step).ceil() as i64;
            (first..=last).map(move |k| k as f64 * step)
        };
        let mut step = round_up((to - from) / 7.0);
        let ticks: Vec<f64> = if !log {
            multiples(step).filter(within).collect()
        } else if to - from >= 1.5 {
            step = ((to - from) / 8.0).ceil();
            multiples(step)
                .map(|k| 10_f64.powf(k))
                .filter(within)
                .collect()
        } else {
            let decades = from.floor() as i32..=to.ceil() as i32;
            let fine = |decade: i32| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(decade));
            decades.flat_map(fine).filter(within).collect()
        };
        Self {
            from,
            to,
            log,
            ticks,
            step,
        }
    }

    /// Where a value lies, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let place = if self.log { value.log10() } else { value };
        (place - self.from) / (self.to - self.from)
    }

    /// Its length, where it is linear.
    fn length(&self) -> f64 {
        self.to - self.from
    }

    /// Units that the longest tick label takes, about.
    pub(super) fn label_width(&self) -> i32 {
        let longest = self
            .ticks
            .iter()
            .map(|tick| self.format_ext(tick).chars().count())
            .max();
        longest.unwrap_or(0) as i32 * 8 * UNIT
    }
}

/// The least of 1, 2, 5, 10, 20, … that is not less.
fn round_up(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|m| m * decade >= step * (1.0 - 1e-9));
    round.unwrap_or(10.0) * decade
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = self.share(*value).clamp(-1.0, 2.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        if self.log {
            return 10_f64.powf(self.from)..10_f64.powf(self.to);
        }
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, tick: &f64) -> String {
        if self.log {
            let plain = self.from >= -2.1 && self.to <= 4.0;
            return if plain {
                format!("{tick}")
            } else {
                format!("{tick:.0e}")
            };
        }
        let largest = self.from.abs().max(self.to.abs());
        if !(1e-3..1e6).contains(&largest) {
            // Enough digits to tell neighbouring ticks apart.
            if tick.abs() < 1e-9 * largest {
                return "0".to_owned();
            }
            let digits = (tick.abs().log10().floor() - self.step.log10().floor()).max(0.0);
            return format!("{tick:.*e}", digits as usize);
        }
        let decimals = (-self.step.log10().floor()).max(0.0);
        format!(
            "{:.*}",
            decimals as usize,
            if *tick == 0.0 { 0.0 } else { *tick }
        )
    }
}

/// How much narrower and how much lower a picture becomes if both axes have one scale.
pub(super) fn equal_scales(pixels: &Pixels, x: &Axis, y: &Axis) -> (i32, i32) {
    let width = f64::from(pixels.0.end - pixels.0.start);
    let height = f64::from(pixels.1.end - pixels.1.start);
    let scale = (width / x.length()).min(height / y.length());
    let less = |all: f64, length: f64| ((all - scale * length).max(0.0) / 2.0) as i32;
    (less(width, x.length()), less(height, y.length()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks
            .iter()
            .map(|tick| axis.format_ext(tick))
            .collect()
    }

    #[test]
    fn ticks_are_round() {
        let cases: [(f64, f64, bool, &[&str]); 6] = [
            (-1.0, 1.0, false, &["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
            (
                0.0,
                5000.0,
                false,
                &["0", "1000", "2000", "3000", "4000", "5000"],
            ),
            (
                -3e-5,
                3e-5,
                false,
                &["-3e-5", "-2e-5", "-1e-5", "0", "1e-5", "2e-5", "3e-5"],
            ),
            (
                2e7,
                2.6e7,
                false,
                &[
                    "2.0e7", "2.1e7", "2.2e7", "2.3e7", "2.4e7", "2.5e7", "2.6e7",
                ],
            ),
            (
                1e-6,
                1.0,
                true,
                &["1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1", "1e0"],
            ),
            (0.9, 6.0, true, &["1", "2", "5"]),
        ];
        for (low, high, log, want) in cases {
            assert_eq!(
                labels(&Axis::between(low, high, log)),
                want,
                "{low} to {high}"
            );
        }
    }

    #[test]
    fn awkward_ranges_have_few_ticks() {
        for (low, high) in [
            (0.0, 1e-300),
            (-1e300, 1e300),
            (0.1, 0.1000001),
            (3.0, 17.0),
        ] {
            let axis = Axis::over([low, high].into_iter(), false, 0.05);
            assert!(
                (2..=9).contains(&axis.ticks.len()),
                "{low} to {high}: {:?}",
                labels(&axis)
            );
        }
        for (low, high) in [(1e-300, 1.0), (1e-16, 3.0), (2.0, 2.0), (2.0, 2.1)] {
            let axis = Axis::over([low, high].into_iter(), true, 0.05);
            assert!(
                axis.ticks.len() <= 9,
                "{low} to {high}: {:?}",
                labels(&axis)
            );
        }
    }
}
