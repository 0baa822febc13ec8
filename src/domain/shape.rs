//! Shapes: the tree that a domain is made of, its level, and the sides of its parts.

use super::patch::Patch;
use super::polygon;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    Cuboid {
        bounds: Vec<(f64, f64)>,
        /// Lower and upper side of each axis.
        names: Vec<[String; 2]>,
    },
    Ball {
        center: Vec<f64>,
        radius: f64,
        name: String,
    },
    /// The surface of a ball, without the ball: it has no sides itself.
    Sphere {
        center: Vec<f64>,
        radius: f64,
    },
    Polygon {
        /// Counter-clockwise.
        vertices: Vec<[f64; 2]>,
        /// Of the edges, each from a vertex to the next.
        names: Vec<String>,
    },
    Union(Arc<Shape>, Arc<Shape>),
    Intersection(Arc<Shape>, Arc<Shape>),
    Difference(Arc<Shape>, Arc<Shape>),
    /// Coordinates of the first, then of the second.
    Product(Arc<Shape>, Arc<Shape>),
}

/// A piece of a boundary.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) patch: Patch,
    pub(crate) normal: Normal,
}

/// How the outward normal is found at a point.
#[derive(Debug, Clone)]
pub(crate) enum Normal {
    Fixed(Vec<f64>),
    /// Away from a centre (`sign` 1) or towards it, in the coordinates from `offset` on.
    Radial {
        offset: usize,
        center: Vec<f64>,
        sign: f64,
    },
}

pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
    squares.sum::<f64>().sqrt()
}

impl Shape {
    pub(crate) fn dimension(&self) -> usize {
        match self {
            Self::Cuboid { bounds, .. } => bounds.len(),
            Self::Ball { center, .. } | Self::Sphere { center, .. } => center.len(),
            Self::Polygon { .. } => 2,
            Self::Union(a, _) | Self::Intersection(a, _) | Self::Difference(a, _) => a.dimension(),
            Self::Product(a, b) => a.dimension() + b.dimension(),
        }
    }

    /// In how many dimensions it extends: of a surface one less than its dimension.
    pub(super) fn thickness(&self) -> usize {
        match self {
            Self::Sphere { center, .. } => center.len() - 1,
            Self::Intersection(a, b) => a.thickness().min(b.thickness()),
            Self::Union(a, _) | Self::Difference(a, _) => a.thickness(),
            Self::Product(a, b) => a.thickness() + b.thickness(),
            _ => self.dimension(),
        }
    }

    /// Negative inside, 0 on the boundary; across it, it changes by the distance.
    pub(crate) fn level(&self, point: &[f64]) -> f64 {
        match self {
            Self::Cuboid { bounds, .. } => {
                let beyond = bounds
                    .iter()
                    .zip(point)
                    .map(|(&(a, b), &x)| (a - x).max(x - b));
                beyond.fold(f64::NEG_INFINITY, f64::max)
            }
            Self::Ball { center, radius, .. } => distance(point, center) - radius,
            Self::Sphere { center, radius } => (distance(point, center) - radius).abs(),
            Self::Polygon { vertices, .. } => polygon::level(vertices, [point[0], point[1]]),
            Self::Union(a, b) => a.level(point).min(b.level(point)),
            Self::Intersection(a, b) => a.level(point).max(b.level(point)),
            Self::Difference(a, b) => a.level(point).max(-b.level(point)),
            Self::Product(a, b) => {
                let (first, second) = point.split_at(a.dimension());
                a.level(first).max(b.level(second))
            }
        }
    }

    pub(crate) fn bounds(&self) -> Vec<(f64, f64)> {
        type Ends = (f64, f64);
        let both = |a: &Self, b: &Self, pick: fn(Ends, Ends) -> Ends| {
            let pairs = a.bounds().into_iter().zip(b.bounds());
            pairs.map(|(a, b)| pick(a, b)).collect()
        };
        match self {
            Self::Cuboid { bounds, .. } => bounds.clone(),
            Self::Ball { center, radius, .. } | Self::Sphere { center, radius } => {
                center.iter().map(|c| (c - radius, c + radius)).collect()
            }
            Self::Polygon { vertices, .. } => [0, 1]
                .map(|axis| {
                    let list = vertices.iter().map(|v| v[axis]);
                    (
                        list.clone().fold(f64::INFINITY, f64::min),
                        list.fold(f64::NEG_INFINITY, f64::max),
                    )
                })
                .to_vec(),
            Self::Union(a, b) => both(a, b, |a, b| (a.0.min(b.0), a.1.max(b.1))),
            Self::Intersection(a, b) => both(a, b, |a, b| (a.0.max(b.0), a.1.min(b.1))),
            Self::Difference(a, _) => a.bounds(),
            Self::Product(a, b) => [a.bounds(), b.bounds()].concat(),
        }
    }

    /// A patch that holds all of it, and whether there is more on the patch.
    pub(crate) fn patch(&self) -> (Patch, bool) {
        match self {
            Self::Cuboid { bounds, .. } => (Patch::Cuboid(bounds.clone()), false),
            Self::Ball { center, radius, .. } => (Patch::Ball(center.clone(), *radius), false),
            Self::Sphere { center, radius } => (Patch::Sphere(center.clone(), *radius), false),
            Self::Product(a, b) => {
                let ((a, more_a), (b, more_b)) = (a.patch(), b.patch());
                (Patch::Product(vec![a, b]), more_a || more_b)
            }
            Self::Intersection(a, b) if a.thickness() != b.thickness() => {
                let thin = if a.thickness() < b.thickness() { a } else { b };
                (thin.patch().0, true)
            }
            Self::Difference(a, _) if a.thickness() < a.dimension() => (a.patch().0, true),
            _ => (Patch::Cuboid(self.bounds()), true),
        }
    }

    /// Whether all of the patches of its sides belongs to them.
    pub(crate) fn exact_sides(&self) -> bool {
        match self {
            Self::Union(..) | Self::Intersection(..) | Self::Difference(..) => false,
            Self::Product(a, b) => {
                let exact = |shape: &Self| shape.exact_sides() && !shape.patch().1;
                exact(a) && exact(b)
            }
            _ => true,
        }
    }

    /// All pieces of the boundaries of all parts.
    pub(crate) fn sides(&self) -> Vec<Side> {
        let fixed = |dimension: usize, axis: usize, sign: f64| {
            let mut normal = vec![0.0; dimension];
            normal[axis] = sign;
            Normal::Fixed(normal)
        };
        let own = |name: &String, patch: Patch, normal: Normal| Side {
            name: name.clone(),
            patch,
            normal,
        };
        if self.thickness() < self.dimension() && !matches!(self, Self::Product(..)) {
            return Vec::new();
        }
        match self {
            Self::Cuboid { bounds, names } => (0..2 * bounds.len())
                .map(|place| {
                    let (axis, upper) = (place / 2, place % 2);
                    let mut face = bounds.clone();
                    let at = if upper == 1 {
                        face[axis].1
                    } else {
                        face[axis].0
                    };
                    face[axis] = (at, at);
                    let sign = [-1.0, 1.0][upper];
                    let normal = fixed(bounds.len(), axis, sign);
                    own(&names[axis][upper], Patch::Cuboid(face), normal)
                })
                .collect(),
            Self::Ball {
                center,
                radius,
                name,
            } => {
                let normal = Normal::Radial {
                    offset: 0,
                    center: center.clone(),
                    sign: 1.0,
                };
                vec![own(name, Patch::Sphere(center.clone(), *radius), normal)]
            }
            Self::Polygon { vertices, names } => (0..vertices.len())
                .map(|place| {
                    let (a, b) = (vertices[place], vertices[(place + 1) % vertices.len()]);
                    let length = distance(&a, &b);
                    let normal = vec![(b[1] - a[1]) / length, (a[0] - b[0]) / length];
                    own(&names[place], Patch::Segment(a, b), Normal::Fixed(normal))
                })
                .collect(),
            Self::Sphere { .. } => Vec::new(),
            Self::Union(a, b) | Self::Intersection(a, b) => [a.sides(), b.sides()].concat(),
            Self::Difference(a, b) => {
                let mut sides = a.sides();
                sides.extend(b.sides().into_iter().map(|mut side| {
                    side.normal.flip();
                    side
                }));
                sides
            }
            Self::Product(a, b) => {
                let (first, second) = (a.dimension(), b.dimension());
                let mut sides = Vec::new();
                for mut side in a.sides() {
                    side.patch = Patch::Product(vec![side.patch, b.patch().0]);
                    side.normal.pad(0, second);
                    sides.push(side);
                }
                for mut side in b.sides() {
                    side.patch = Patch::Product(vec![a.patch().0, side.patch]);
                    side.normal.pad(first, 0);
                    sides.push(side);
                }
                sides
            }
        }
    }

    pub(super) fn renamed(&self, side: &str, new: &str) -> Self {
        let mut shape = self.clone();
        let change = |name: &mut String| {
            if name == side {
                new.clone_into(name);
            }
        };
        let inner = |part: &mut Arc<Self>| *part = Arc::new(part.renamed(side, new));
        match &mut shape {
            Self::Cuboid { names, .. } => names.iter_mut().flatten().for_each(change),
            Self::Ball { name, .. } => change(name),
            Self::Polygon { names, .. } => names.iter_mut().for_each(change),
            Self::Sphere { .. } => {}
            Self::Union(a, b)
            | Self::Intersection(a, b)
            | Self::Difference(a, b)
            | Self::Product(a, b) => [a, b].into_iter().for_each(inner),
        }
        shape
    }
}

impl Normal {
    /// The normal at a point.
    pub(crate) fn at(&self, point: &[f64]) -> Vec<f64> {
        match self {
            Self::Fixed(normal) => normal.clone(),
            Self::Radial {
                offset,
                center,
                sign,
            } => {
                let mut normal = vec![0.0; point.len()];
                let own = &point[*offset..][..center.len()];
                let length = distance(own, center);
                for ((n, x), c) in normal[*offset..].iter_mut().zip(own).zip(center) {
                    *n = sign * (x - c) / length;
                }
                normal
            }
        }
    }

    fn flip(&mut self) {
        match self {
            // Not the sign alone: -0 would show.
            Self::Fixed(normal) => normal.iter_mut().for_each(|n| *n = 0.0 - *n),
            Self::Radial { sign, .. } => *sign = -*sign,
        }
    }

    /// Zeros in more coordinates, before and after.
    fn pad(&mut self, before: usize, after: usize) {
        match self {
            Self::Fixed(normal) => {
                *normal = [vec![0.0; before], std::mem::take(normal), vec![0.0; after]].concat();
            }
            Self::Radial { offset, .. } => *offset += before,
        }
    }
}
