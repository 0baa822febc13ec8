//! Regions: what points are drawn in, a domain's inside or some of its sides.

use super::patch::Patch;
use super::shape::{Shape, Side};
use super::{Domain, On, check_bounds};
use crate::error::Error;
use crate::points::Points;

/// Where points are drawn: all of a domain, or some of its sides. Made by
/// [`Domain::interior`], [`Domain::side`] and [`Domain::boundary`].
#[derive(Debug, Clone)]
pub struct Region {
    domain: Domain,
    /// All sides of the domain, where points are drawn on sides.
    sides: Vec<Side>,
    pieces: Vec<Piece>,
    /// Whether a patch holds points that do not belong.
    more: bool,
}

#[derive(Debug, Clone)]
struct Piece {
    patch: Patch,
    /// The place of its side, if it is one.
    side: Option<usize>,
}

impl Region {
    pub(super) fn interior(domain: &Domain) -> Self {
        let (patch, more) = domain.shape().patch();
        Self {
            domain: domain.clone(),
            sides: Vec::new(),
            pieces: vec![Piece { patch, side: None }],
            more,
        }
    }

    pub(super) fn sides(domain: &Domain, wanted: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let sides = domain.shape().sides();
        let pieces: Vec<Piece> = sides
            .iter()
            .enumerate()
            .filter(|(_, side)| wanted(&side.name))
            .map(|(place, side)| Piece {
                patch: side.patch.clone(),
                side: Some(place),
            })
            .collect();
        if pieces.is_empty() {
            return Err(Error::Empty {
                what: "the set of sides to draw points on".to_owned(),
            });
        }
        Ok(Self {
            more: !domain.shape().exact_sides(),
            domain: domain.clone(),
            sides,
            pieces,
        })
    }

    /// A box, of which an axis may have equal ends.
    pub(crate) fn cuboid(bounds: &[(f64, f64)]) -> Result<Self, Error> {
        check_bounds(bounds)?;
        let names = vec![[const { String::new() }; 2]; bounds.len()];
        let domain = Domain::of(Shape::Cuboid {
            bounds: bounds.to_vec(),
            names,
        });
        Ok(Self::interior(&domain))
    }

    /// How many coordinates a point has.
    pub fn dimension(&self) -> usize {
        self.domain.dimension()
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Its length, area or volume (1 for each single point), where that is known without
    /// integration: not for combinations, nor for the inside of a polygon.
    pub fn measure(&self) -> Option<f64> {
        let measures = self.pieces.iter().map(|piece| piece.patch.measure());
        (!self.more).then(|| measures.sum())
    }

    /// Whether points are drawn again until they fit.
    pub(crate) fn rejects(&self) -> bool {
        self.more
    }

    /// The length, area or volume of each piece's patch.
    pub(crate) fn weights(&self) -> Vec<f64> {
        self.pieces
            .iter()
            .map(|piece| piece.patch.measure())
            .collect()
    }

    /// The most numbers of the cube that a piece takes.
    pub(crate) fn cube(&self) -> usize {
        let sizes = self.pieces.iter().map(|piece| piece.patch.cube());
        sizes.max().unwrap_or(0)
    }

    /// The point of a piece that some numbers of the cube stand for, if it belongs.
    pub(crate) fn place(&self, piece: usize, u: &[f64]) -> Option<Vec<f64>> {
        let mut point = Vec::with_capacity(self.dimension());
        self.pieces[piece].patch.place(u, &mut point);
        let belongs = match self.pieces[piece].side {
            _ if !self.more => true,
            Some(side) => self.domain.on_side(&self.sides, side, &point) == Some(On::Side),
            None => self.domain.contains(&point),
        };
        belongs.then_some(point)
    }

    /// The same region for grids: balls become boxes, of which only the points in the ball
    /// belong. With it, for each piece, which numbers of the cube may be 0 and 1.
    pub(crate) fn for_grids(&self) -> (Self, Vec<Vec<bool>>) {
        let mut own = self.clone();
        for piece in &mut own.pieces {
            let boxed = piece.patch.boxed();
            own.more |= boxed != piece.patch;
            piece.patch = boxed;
        }
        let closed = own
            .pieces
            .iter()
            .map(|piece| piece.patch.closed())
            .collect();
        (own, closed)
    }

    /// Points as rows, of the pieces given, with their normals if they lie on sides: the
    /// columns are `nx`, `ny` and so on.
    pub(crate) fn points(&self, rows: &[(usize, Vec<f64>)]) -> Result<Points, Error> {
        let list = |axis: usize| rows.iter().map(|(_, row)| row[axis]).collect();
        let mut points = Points::new((0..self.dimension()).map(list).collect())?;
        let normals: Vec<Vec<f64>> = rows
            .iter()
            .filter_map(|(piece, row)| {
                let side = self.pieces[*piece].side?;
                Some(self.sides[side].normal.at(row))
            })
            .collect();
        if normals.is_empty() {
            return Ok(points);
        }
        for (axis, name) in self.domain.axis_names().iter().enumerate() {
            let column: Vec<f64> = normals.iter().map(|normal| normal[axis]).collect();
            points = points.with_column(&format!("n{name}"), &column)?;
        }
        Ok(points)
    }
}
