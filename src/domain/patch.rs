//! Patches: images of the unit cube, with uniform density.

use super::polygon;
use super::shape::distance;
use crate::points::between;
use std::f64::consts::{PI, TAU};

/// What the unit cube is mapped to: a part of a domain or of its boundary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Patch {
    /// A box; an axis of equal ends takes no number of the cube.
    Cuboid(Vec<(f64, f64)>),
    Segment([f64; 2], [f64; 2]),
    Ball(Vec<f64>, f64),
    Sphere(Vec<f64>, f64),
    Product(Vec<Patch>),
}

impl Patch {
    /// How many numbers of the cube make a point.
    pub(crate) fn cube(&self) -> usize {
        match self {
            Self::Cuboid(bounds) => bounds.iter().filter(|(a, b)| a < b).count(),
            Self::Segment(..) => 1,
            Self::Ball(center, _) => 1 + directions(center.len()),
            Self::Sphere(center, _) => directions(center.len()),
            Self::Product(parts) => parts.iter().map(Self::cube).sum(),
        }
    }

    /// Length, area or volume; 1 for a point.
    pub(crate) fn measure(&self) -> f64 {
        match self {
            Self::Cuboid(bounds) => {
                let lengths = bounds.iter().filter(|(a, b)| a < b);
                lengths.map(|(a, b)| b - a).product()
            }
            Self::Segment(a, b) => distance(a, b),
            Self::Ball(center, radius) => {
                let n = center.len();
                unit_sphere(n) * radius.powi(n as i32) / n as f64
            }
            Self::Sphere(center, radius) => {
                unit_sphere(center.len()) * radius.powi(center.len() as i32 - 1)
            }
            Self::Product(parts) => parts.iter().map(Self::measure).product(),
        }
    }

    /// Which numbers of the cube may be 0 and 1 on a grid: not those of an angle or a
    /// radius, where several would give one point.
    pub(crate) fn closed(&self) -> Vec<bool> {
        match self {
            Self::Cuboid(_) | Self::Segment(..) => vec![true; self.cube()],
            Self::Ball(..) | Self::Sphere(..) => vec![false; self.cube()],
            Self::Product(parts) => parts.iter().flat_map(Self::closed).collect(),
        }
    }

    /// With boxes around its balls: for grids.
    pub(crate) fn boxed(&self) -> Self {
        match self {
            Self::Ball(center, radius) => {
                Self::Cuboid(center.iter().map(|c| (c - radius, c + radius)).collect())
            }
            Self::Product(parts) => Self::Product(parts.iter().map(Self::boxed).collect()),
            other => other.clone(),
        }
    }

    /// The point of some numbers of the cube, added to `point`; gives the numbers left.
    pub(crate) fn place<'u>(&self, mut u: &'u [f64], point: &mut Vec<f64>) -> &'u [f64] {
        let mut next = || {
            let (first, rest) = u.split_first().unwrap_or((&0.5, &[]));
            u = rest;
            *first
        };
        match self {
            Self::Cuboid(bounds) => {
                for &(from, to) in bounds {
                    point.push(if from < to {
                        between(from, to, next())
                    } else {
                        from
                    });
                }
            }
            Self::Segment(a, b) => {
                let share = next();
                point.extend([0, 1].map(|axis| {
                    if share == 1.0 {
                        b[axis]
                    } else {
                        a[axis] + share * (b[axis] - a[axis])
                    }
                }));
            }
            Self::Ball(center, radius) => {
                let radius = radius * next().powf(1.0 / center.len() as f64);
                return sphere(center, radius, u, point);
            }
            Self::Sphere(center, radius) => return sphere(center, *radius, u, point),
            Self::Product(parts) => {
                for part in parts {
                    u = part.place(u, point);
                }
            }
        }
        u
    }

    /// Whether a point lies on it, up to rounding.
    pub(crate) fn holds(&self, point: &[f64], tolerance: f64) -> bool {
        match self {
            Self::Cuboid(bounds) => bounds
                .iter()
                .zip(point)
                .all(|(&(a, b), &x)| x >= a - tolerance && x <= b + tolerance),
            Self::Segment(a, b) => polygon::to_segment(*a, *b, [point[0], point[1]]) <= tolerance,
            Self::Ball(center, radius) => distance(point, center) <= radius + tolerance,
            Self::Sphere(center, radius) => (distance(point, center) - radius).abs() <= tolerance,
            Self::Product(parts) => {
                let mut rest = point;
                parts.iter().all(|part| {
                    let (own, after) = rest.split_at(part.dimension());
                    rest = after;
                    part.holds(own, tolerance)
                })
            }
        }
    }

    fn dimension(&self) -> usize {
        match self {
            Self::Cuboid(bounds) => bounds.len(),
            Self::Segment(..) => 2,
            Self::Ball(center, _) | Self::Sphere(center, _) => center.len(),
            Self::Product(parts) => parts.iter().map(Self::dimension).sum(),
        }
    }
}

/// How many numbers of the cube make a direction: an angle in the plane, a height and an
/// angle in space, beyond that normal numbers, which come in pairs.
fn directions(dimension: usize) -> usize {
    match dimension {
        0..=3 => dimension.saturating_sub(1),
        n => n.next_multiple_of(2),
    }
}

/// The measure of the unit sphere in n dimensions, 2π^(n/2)/Γ(n/2).
fn unit_sphere(n: usize) -> f64 {
    match n {
        0 | 1 => 2.0,
        2 => TAU,
        n => unit_sphere(n - 2) * TAU / (n - 2) as f64,
    }
}

/// A point in the direction that some numbers of the cube stand for.
fn sphere<'u>(center: &[f64], radius: f64, u: &'u [f64], point: &mut Vec<f64>) -> &'u [f64] {
    let n = center.len();
    let (own, rest) = u.split_at(directions(n).min(u.len()));
    let start = point.len();
    match (n, own) {
        (2, [angle]) => {
            let (sin, cos) = (TAU * angle).sin_cos();
            point.extend([center[0] + radius * cos, center[1] + radius * sin]);
        }
        (3, [height, angle]) => {
            let z = 1.0 - 2.0 * height;
            let (sin, cos) = (TAU * angle).sin_cos();
            let r = radius * ((1.0 - z) * (1.0 + z)).max(0.0).sqrt();
            point.extend([
                center[0] + r * cos,
                center[1] + r * sin,
                center[2] + radius * z,
            ]);
        }
        // Box and Muller: the direction of independent normal numbers is uniform.
        _ => {
            for pair in own.chunks_exact(2) {
                let length = (-2.0 * (1.0 - pair[0]).max(f64::MIN_POSITIVE).ln()).sqrt();
                let (sin, cos) = (2.0 * PI * pair[1]).sin_cos();
                point.extend([length * cos, length * sin]);
            }
            point.truncate(start + n);
            let length = distance(&point[start..], &vec![0.0; n]);
            for (x, c) in point[start..].iter_mut().zip(center) {
                *x = if length > 0.0 {
                    c + radius * *x / length
                } else {
                    c + radius / (n as f64).sqrt()
                };
            }
        }
    }
    rest
}
