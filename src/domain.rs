//! Domains: where an equation holds, and the named sides of it with their outward normals.
//! Knows nothing of equations or random numbers.
//!
//! A domain is a tree of shapes. Each has a *level*, a function that is negative inside and
//! zero on the boundary, and combines by least and greatest: of a union it is the least of
//! two levels, of an intersection the greatest. Each side is a patch with a normal, and a
//! point of a patch belongs to the boundary of a combination where the combination's level
//! changes sign along that normal.

use crate::error::{Error, check_finite};
use shape::{Side, distance};
use std::sync::Arc;

mod patch;
mod polygon;
mod region;
mod shape;

pub use region::Region;
pub(crate) use shape::Shape;

/// A set of points in any dimension, closed: its boundary belongs to it.
///
/// ```
/// use dualtape::Domain;
///
/// // A channel with a cylinder in it, over time.
/// let channel = Domain::cuboid(&[(0.0, 2.2), (0.0, 0.41)])?
///     .rename("left", "inflow")?
///     .rename("right", "outflow")?
///     .rename("bottom", "wall")?
///     .rename("top", "wall")?;
/// let cylinder = Domain::ball(&[0.2, 0.2], 0.05)?.rename("surface", "cylinder")?;
/// let flow = channel.difference(&cylinder)?.in_time(0.0, 1.0)?;
/// assert_eq!(
///     flow.sides(),
///     ["initial", "final", "inflow", "outflow", "wall", "cylinder"]
/// );
/// assert!(flow.contains(&[0.5, 1.0, 0.2]) && !flow.contains(&[0.5, 0.2, 0.2]));
/// let (side, normal) = flow.side_at(&[0.5, 0.25, 0.2]).expect("a point of the cylinder");
/// assert_eq!(side, "cylinder");
/// assert_eq!(normal, [0.0, -1.0, 0.0]); // out of the fluid, into the cylinder
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Domain {
    shape: Arc<Shape>,
    /// Names of the coordinates.
    axes: Vec<String>,
}

/// How a point lies on a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    Side,
    Corner,
}

/// A number out of range.
fn out(what: &str, given: impl std::fmt::Display, expected: &str) -> Error {
    Error::OutOfRange {
        what: what.to_owned(),
        given: given.to_string(),
        expected: expected.to_owned(),
    }
}

impl Domain {
    /// An interval, with the sides `left` and `right`.
    ///
    /// # Errors
    /// Ends that are not finite or not in order.
    pub fn interval(from: f64, to: f64) -> Result<Self, Error> {
        Self::cuboid(&[(from, to)])
    }

    /// A box: for each axis its two ends. Its sides are `left` and `right` (first axis),
    /// `bottom` and `top`, `front` and `back`, then `x4-` and `x4+` and so on.
    ///
    /// ```
    /// use dualtape::Domain;
    ///
    /// let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?.rename("top", "lid")?;
    /// assert_eq!(square.sides(), ["left", "right", "bottom", "lid"]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// No axis, ends that are not finite or not in order.
    pub fn cuboid(bounds: &[(f64, f64)]) -> Result<Self, Error> {
        check_bounds(bounds)?;
        if let Some((axis, (from, to))) = bounds.iter().enumerate().find(|(_, (a, b))| a >= b) {
            let expected = "give the lower end first, and some length";
            return Err(out(
                &format!("axis {axis}"),
                format!("from {from} to {to}"),
                expected,
            ));
        }
        let names = |axis: usize| match axis {
            0 => ["left", "right"].map(str::to_owned),
            1 => ["bottom", "top"].map(str::to_owned),
            2 => ["front", "back"].map(str::to_owned),
            _ => ["-", "+"].map(|sign| format!("x{}{sign}", axis + 1)),
        };
        Ok(Self::of(Shape::Cuboid {
            bounds: bounds.to_vec(),
            names: (0..bounds.len()).map(names).collect(),
        }))
    }

    /// A ball, with the side `surface`; in one dimension it is an interval.
    ///
    /// # Errors
    /// No coordinate, numbers that are not finite, a radius that is not positive.
    pub fn ball(center: &[f64], radius: f64) -> Result<Self, Error> {
        check_sphere(center, radius)?;
        if let [center] = center {
            return Self::interval(center - radius, center + radius);
        }
        Ok(Self::of(Shape::Ball {
            center: center.to_vec(),
            radius,
            name: "surface".to_owned(),
        }))
    }

    /// The surface of a ball, for equations on it. It has no sides.
    ///
    /// # Errors
    /// Fewer than two coordinates, numbers that are not finite, a radius that is not
    /// positive.
    pub fn sphere(center: &[f64], radius: f64) -> Result<Self, Error> {
        check_sphere(center, radius)?;
        if center.len() < 2 {
            let expected = "give at least two coordinates";
            return Err(out("the dimension of a sphere", center.len(), expected));
        }
        Ok(Self::of(Shape::Sphere {
            center: center.to_vec(),
            radius,
        }))
    }

    /// A polygon from its vertices, in either sense, without crossings. Its sides are
    /// `edge 0`, from the first vertex to the second, `edge 1`, ….
    ///
    /// ```
    /// use dualtape::Domain;
    ///
    /// // An L; its edges keep the order of the vertices.
    /// let l = Domain::polygon(&[
    ///     [0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [1.0, 1.0], [1.0, 2.0], [0.0, 2.0],
    /// ])?;
    /// assert!(l.contains(&[0.5, 1.5]) && !l.contains(&[1.5, 1.5]));
    /// assert_eq!(l.side_at(&[1.0, 1.5]).map(|side| side.0).as_deref(), Some("edge 3"));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fewer than three vertices, numbers that are not finite, an edge without length,
    /// edges that cross or touch.
    pub fn polygon(vertices: &[[f64; 2]]) -> Result<Self, Error> {
        let (vertices, names) = polygon::ordered(vertices)?;
        Ok(Self::of(Shape::Polygon { vertices, names }))
    }

    /// What lies in either of two domains. A side that both share from within is one side,
    /// of the first; one that separates them is gone.
    ///
    /// # Errors
    /// Domains of different dimension; surfaces.
    pub fn union(&self, other: &Self) -> Result<Self, Error> {
        self.combine(other, Shape::Union)
    }

    /// What lies in both of two domains. Of a surface and a domain: that part of the
    /// surface.
    ///
    /// # Errors
    /// Domains of different dimension, or that lie apart; two surfaces.
    pub fn intersection(&self, other: &Self) -> Result<Self, Error> {
        self.combine(other, Shape::Intersection)
    }

    /// What lies in this domain and not inside the other. The sides of the other keep their
    /// names and point into it.
    ///
    /// # Errors
    /// Domains of different dimension; a surface taken away.
    pub fn difference(&self, other: &Self) -> Result<Self, Error> {
        self.combine(other, Shape::Difference)
    }

    fn combine(
        &self,
        other: &Self,
        make: fn(Arc<Shape>, Arc<Shape>) -> Shape,
    ) -> Result<Self, Error> {
        if other.dimension() != self.dimension() {
            let what = "dimension of the second of two domains";
            return Err(Error::length(what, other.dimension(), self.dimension()));
        }
        let shape = make(self.shape.clone(), other.shape.clone());
        let thin = [&self.shape, &other.shape].map(|shape| shape.thickness() < shape.dimension());
        let refused = match shape {
            Shape::Union(..) => thin[0] || thin[1],
            Shape::Intersection(..) => thin[0] && thin[1],
            _ => thin[1],
        };
        if refused {
            let expected = "a surface can only be cut by a domain that has an inside";
            return Err(out("one of two combined domains", "a surface", expected));
        }
        if shape.bounds().iter().any(|(from, to)| from > to) {
            return Err(Error::Empty {
                what: "the intersection of two domains".to_owned(),
            });
        }
        Ok(Self {
            shape: Arc::new(shape),
            axes: self.axes.clone(),
        })
    }

    /// The product: a point of this domain with a point of the other. Its sides are the
    /// sides of the one with all of the other.
    ///
    /// ```
    /// use dualtape::Domain;
    ///
    /// let cylinder = Domain::ball(&[0.0, 0.0], 1.0)?.times(&Domain::interval(0.0, 3.0)?)?;
    /// assert_eq!(cylinder.sides(), ["surface", "left", "right"]);
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// More than 65,535 coordinates.
    pub fn times(&self, other: &Self) -> Result<Self, Error> {
        let dimension = self.dimension() + other.dimension();
        if dimension > usize::from(u16::MAX) {
            let expected = "take at most 65,535 coordinates";
            return Err(out("the dimension of a product", dimension, expected));
        }
        let mut domain = Self::of(Shape::Product(self.shape.clone(), other.shape.clone()));
        let axes: Vec<String> = self.axes.iter().chain(&other.axes).cloned().collect();
        let twice = (1..axes.len()).any(|place| axes[..place].contains(&axes[place]));
        if !twice {
            domain.axes = axes;
        }
        Ok(domain)
    }

    /// Time × this domain: time is the first coordinate, and `initial` and `final` are its
    /// sides.
    ///
    /// ```
    /// use dualtape::Domain;
    ///
    /// let bar = Domain::interval(-1.0, 1.0)?.in_time(0.0, 2.0)?;
    /// assert_eq!(bar.sides(), ["initial", "final", "left", "right"]);
    /// let (side, normal) = bar.side_at(&[0.0, 0.3]).expect("a side");
    /// assert_eq!((side.as_str(), normal), ("initial", vec![-1.0, 0.0]));
    /// # Ok::<(), dualtape::Error>(())
    /// ```
    ///
    /// # Errors
    /// Times that are not finite or not in order.
    pub fn in_time(&self, from: f64, to: f64) -> Result<Self, Error> {
        Self::interval(from, to)?
            .rename("left", "initial")?
            .rename("right", "final")?
            .axes(&["t"])?
            .times(self)
    }

    /// Other names of the coordinates. They name the columns of normals: `nx`, `ny` for
    /// `x`, `y`.
    ///
    /// # Errors
    /// Another number of names than coordinates, a name twice.
    pub fn axes(mut self, names: &[&str]) -> Result<Self, Error> {
        if names.len() != self.dimension() {
            return Err(Error::length(
                "names of axes",
                names.len(),
                self.dimension(),
            ));
        }
        for (place, name) in names.iter().enumerate() {
            if names[..place].contains(name) {
                return Err(Error::DuplicateName {
                    what: "axes".to_owned(),
                    name: (*name).to_owned(),
                });
            }
        }
        self.axes = names.iter().map(|&name| name.to_owned()).collect();
        Ok(self)
    }

    /// Another name for a side. Sides of one name are one side.
    ///
    /// # Errors
    /// No such side.
    pub fn rename(mut self, side: &str, name: &str) -> Result<Self, Error> {
        self.check_side(side)?;
        self.shape = Arc::new(self.shape.renamed(side, name));
        Ok(self)
    }

    /// How many coordinates a point has.
    pub fn dimension(&self) -> usize {
        self.axes.len()
    }

    /// The names of the coordinates: `t` for time, `x`, `y`, `z` for up to three others,
    /// else `x1`, `x2`, …, unless given by [`axes`](Self::axes).
    pub fn axis_names(&self) -> &[String] {
        &self.axes
    }

    /// A box around it: for each axis its two ends.
    pub fn bounds(&self) -> Vec<(f64, f64)> {
        self.shape.bounds()
    }

    /// Whether a point lies in it or on its boundary; never for a point of another
    /// dimension. Rounding of 1e-12 of its size counts as on the boundary.
    pub fn contains(&self, point: &[f64]) -> bool {
        point.len() == self.dimension() && self.shape.level(point) <= self.tolerance()
    }

    /// Names of its sides, each once; of combinations also those of which nothing is left.
    pub fn sides(&self) -> Vec<String> {
        let mut names = Vec::new();
        for side in self.shape.sides() {
            if !names.contains(&side.name) {
                names.push(side.name);
            }
        }
        names
    }

    /// The side that a point lies on, and the outward normal there. A corner belongs to the
    /// first of its sides, with that side's normal.
    pub fn side_at(&self, point: &[f64]) -> Option<(String, Vec<f64>)> {
        if point.len() != self.dimension() {
            return None;
        }
        let sides = self.shape.sides();
        // Where it is a corner of none as the others see it, of the first at all.
        let rank = |place: &usize| self.on_side(&sides, *place, point);
        let all = (0..sides.len()).filter(|place| rank(place).is_some());
        let hit = all.min_by_key(rank)?;
        Some((sides[hit].name.clone(), sides[hit].normal.at(point)))
    }

    /// All of it, to draw points in.
    pub fn interior(&self) -> Region {
        Region::interior(self)
    }

    /// One side (all pieces of that name), to draw points on. They come with their outward
    /// normals as columns.
    ///
    /// # Errors
    /// No such side.
    pub fn side(&self, name: &str) -> Result<Region, Error> {
        self.some_sides(&[name])
    }

    /// Several sides together.
    ///
    /// # Errors
    /// No such side.
    pub fn some_sides(&self, names: &[&str]) -> Result<Region, Error> {
        for name in names {
            self.check_side(name)?;
        }
        Region::sides(self, |name| names.contains(&name))
    }

    /// All sides together.
    ///
    /// # Errors
    /// A surface has none.
    pub fn boundary(&self) -> Result<Region, Error> {
        Region::sides(self, |_| true)
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    fn of(shape: Shape) -> Self {
        let dimension = shape.dimension();
        let axes = match dimension {
            1..=3 => ["x", "y", "z"][..dimension]
                .iter()
                .map(|&n| n.to_owned())
                .collect(),
            _ => (1..=dimension).map(|axis| format!("x{axis}")).collect(),
        };
        Self {
            shape: Arc::new(shape),
            axes,
        }
    }

    fn check_side(&self, name: &str) -> Result<(), Error> {
        let sides = self.sides();
        if sides.iter().any(|side| side == name) {
            return Ok(());
        }
        Err(Error::UnknownName {
            what: "side of the domain".to_owned(),
            name: name.to_owned(),
            known: sides.join(", "),
        })
    }

    /// The largest length of its box, and of its numbers.
    fn size(&self) -> f64 {
        let bounds = self.shape.bounds();
        let largest = |(from, to): &(f64, f64)| from.abs().max(to.abs()).max(to - from);
        bounds.iter().map(largest).fold(0.0, f64::max)
    }

    fn tolerance(&self) -> f64 {
        1e-12 * self.size()
    }

    /// Whether a point lies on a side: on its patch, and the level changes sign there along
    /// the normal. Of sides that lie on each other the first has the point.
    ///
    /// At a corner this may hold for no side: with a sharp one a step inwards leaves the
    /// domain, with one that points inwards a step outwards slides along the other side.
    fn on_side(&self, sides: &[Side], place: usize, point: &[f64]) -> Option<On> {
        let side = &sides[place];
        let (tolerance, step) = (self.tolerance(), 1e-7 * self.size());
        if !side.patch.holds(point, tolerance) {
            return None;
        }
        let normal = side.normal.at(point);
        let taken = sides[..place].iter().any(|other| {
            other.patch.holds(point, tolerance) && distance(&other.normal.at(point), &normal) < 1e-9
        });
        let level = |sign: f64| {
            let moved = point.iter().zip(&normal).map(|(x, n)| x + sign * step * n);
            self.shape.level(&moved.collect::<Vec<f64>>())
        };
        let (inside, here, outside) = (level(-1.0), level(0.0), level(1.0));
        if taken {
            None
        } else if inside <= tolerance && outside > tolerance {
            Some(On::Side)
        } else if here.abs() <= tolerance && outside > -tolerance {
            Some(On::Corner)
        } else {
            None
        }
    }
}

fn check_bounds(bounds: &[(f64, f64)]) -> Result<(), Error> {
    if bounds.is_empty() {
        return Err(Error::Empty {
            what: "the list of axes".to_owned(),
        });
    }
    for (axis, &(from, to)) in bounds.iter().enumerate() {
        check_finite(&format!("the ends of axis {axis}"), &[from, to])?;
        if from > to || !(to - from).is_finite() {
            let expected = "give the lower end first, and a length that is finite";
            return Err(out(
                &format!("axis {axis}"),
                format!("from {from} to {to}"),
                expected,
            ));
        }
    }
    Ok(())
}

fn check_sphere(center: &[f64], radius: f64) -> Result<(), Error> {
    if center.is_empty() {
        return Err(Error::Empty {
            what: "the centre of a ball".to_owned(),
        });
    }
    check_finite("the centre of a ball", center)?;
    if !(radius.is_finite() && radius > 0.0) {
        let expected = "it must be positive and finite";
        return Err(out("the radius of a ball", radius, expected));
    }
    Ok(())
}
