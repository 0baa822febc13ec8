//! Planes: the coordinates of a jet, their down-closed sets and their products.
//! Knows nothing of tapes, numbers of points or memory.
//!
//! A *plane* is one number of a jet. [`Plane::Partial`] holds the Taylor coefficient
//! `u_α = ∂^α u / α!` of a sparse multi-index α; [`Plane::Laplacian`] holds
//! `u_σ = Σ_{i∈S} u_{2e_i} = ½ Δ_S u`. In this basis every structure constant is 0 or
//! 1: `e_α·e_β = e_{α+β}`, `e_i·e_i = σ_S` for i ∈ S, and all other products with σ_S
//! (except by the unit) vanish in the algebra {1, e_i, σ_S}.

use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The highest total order of a derivative.
pub const MAX_ORDER: usize = 12;
/// The most coordinates that an equation may have.
pub const MAX_COORDINATES: usize = 4096;

/// The most planes that one value may hold.
pub const MAX_PLANES: usize = 16384;

/// The number of a coordinate, in the order of the recording.
pub type Coordinate = u16;

/// A sparse multi-index: pairs of coordinate and order, coordinates ascending.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MultiIndex(SmallVec<[(Coordinate, u8); 4]>);

impl MultiIndex {
    /// The index of the value, 0.
    pub fn value() -> Self {
        Self::default()
    }

    /// `order` times the coordinate `c`.
    pub fn pure(c: Coordinate, order: u8) -> Self {
        if order == 0 {
            return Self::value();
        }
        Self(SmallVec::from_slice(&[(c, order)]))
    }

    /// Total order |α|.
    pub fn order(&self) -> usize {
        self.0.iter().map(|&(_, k)| usize::from(k)).sum()
    }

    /// Order in the coordinate `c`.
    pub fn get(&self, c: Coordinate) -> u8 {
        self.0.iter().find(|&&(d, _)| d == c).map_or(0, |&(_, k)| k)
    }

    /// Pairs of coordinate and order, coordinates ascending, orders positive.
    pub fn iter(&self) -> impl Iterator<Item = (Coordinate, u8)> + '_ {
        self.0.iter().copied()
    }

    /// α + β.
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (c, k) in other.iter() {
            match sum.0.binary_search_by_key(&c, |&(d, _)| d) {
                Ok(i) => sum.0[i].1 += k,
                Err(i) => sum.0.insert(i, (c, k)),
            }
        }
        sum
    }

    /// α − β where β ≤ α.
    pub fn minus(&self, other: &Self) -> Option<Self> {
        let mut rest = self.clone();
        for (c, k) in other.iter() {
            let i = rest.0.binary_search_by_key(&c, |&(d, _)| d).ok()?;
            rest.0[i].1 = rest.0[i].1.checked_sub(k)?;
            if rest.0[i].1 == 0 {
                rest.0.remove(i);
            }
        }
        Some(rest)
    }

    /// α! = Π α_i!, the factor between a Taylor coefficient and a derivative.
    pub fn factorial(&self) -> f64 {
        self.iter()
            .flat_map(|(_, k)| (1..=k).map(f64::from))
            .product()
    }

    /// All β ≤ α, α itself last.
    fn below(&self) -> Vec<Self> {
        let mut all = vec![Self::value()];
        for (c, k) in self.iter() {
            all = all
                .iter()
                .flat_map(|a| (0..=k).map(|j| a.plus(&Self::pure(c, j))))
                .collect();
        }
        all
    }
}

impl fmt::Debug for MultiIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// One number of a jet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Plane {
    /// The Taylor coefficient of a multi-index.
    Partial(MultiIndex),
    /// Half of the Laplacian over a set of coordinates (ascending).
    Laplacian(Arc<[Coordinate]>),
}

impl Plane {
    /// The plane of the value.
    pub fn value() -> Self {
        Self::Partial(MultiIndex::value())
    }

    /// The first Taylor coefficient in the coordinate `c`.
    pub fn first(c: Coordinate) -> Self {
        Self::Partial(MultiIndex::pure(c, 1))
    }

    /// The second Taylor coefficient in the coordinate `c`.
    pub fn second(c: Coordinate) -> Self {
        Self::Partial(MultiIndex::pure(c, 2))
    }

    /// Whether it is the value.
    pub fn is_value(&self) -> bool {
        self.order() == 0
    }

    /// Order of the derivative that it stands for.
    pub fn order(&self) -> usize {
        match self {
            Self::Partial(index) => index.order(),
            Self::Laplacian(_) => 2,
        }
    }

    /// The factor from what is stored to the derivative: α!, and 2 for a Laplacian.
    pub fn derivative_factor(&self) -> f64 {
        match self {
            Self::Partial(index) => index.factorial(),
            Self::Laplacian(_) => 2.0,
        }
    }

    /// The name with the coordinates' names, such as `1`, `t`, `x.x`, `Δ(x,y)`.
    pub fn name(&self, coordinates: &[String]) -> String {
        let coordinate = |c: Coordinate| {
            coordinates
                .get(usize::from(c))
                .map_or_else(|| format!("#{c}"), Clone::clone)
        };
        match self {
            Self::Partial(index) if index.order() == 0 => "1".to_owned(),
            Self::Partial(index) => index
                .iter()
                .flat_map(|(c, k)| std::iter::repeat_n(coordinate(c), usize::from(k)))
                .collect::<Vec<_>>()
                .join("."),
            Self::Laplacian(set) => {
                let names: Vec<_> = set.iter().map(|&c| coordinate(c)).collect();
                format!("Δ({})", names.join(","))
            }
        }
    }

    /// The planes whose values decide those of a product or a composition here.
    fn below(&self) -> Vec<Self> {
        match self {
            Self::Partial(index) => index.below().into_iter().map(Self::Partial).collect(),
            Self::Laplacian(set) => std::iter::once(Self::value())
                .chain(set.iter().map(|&c| Self::first(c)))
                .chain(std::iter::once(self.clone()))
                .collect(),
        }
    }

    /// The second-order planes that a Laplacian sums, the plane itself otherwise.
    fn summands(&self) -> Vec<MultiIndex> {
        match self {
            Self::Partial(index) => vec![index.clone()],
            Self::Laplacian(set) => set.iter().map(|&c| MultiIndex::pure(c, 2)).collect(),
        }
    }

    /// ∂/∂c as a map of planes: which planes of u, times what, make this plane of ∂u/∂c.
    pub fn derivative_sources(&self, c: Coordinate) -> Vec<(Self, f64)> {
        merged(self.summands().into_iter().map(|index| {
            let factor = f64::from(index.get(c)) + 1.0;
            (Self::Partial(index.plus(&MultiIndex::pure(c, 1))), factor)
        }))
    }

    /// Δ over `set` as a map of planes. `collapsed` says whether u holds the Laplacian as
    /// one plane; it can serve the value of Δu only.
    pub fn laplacian_sources(&self, set: &Arc<[Coordinate]>, collapsed: bool) -> Vec<(Self, f64)> {
        if self.is_value() && collapsed {
            return vec![(Self::Laplacian(set.clone()), 2.0)];
        }
        merged(self.summands().into_iter().flat_map(|index| {
            set.iter()
                .map(|&c| {
                    let k = f64::from(index.get(c));
                    let source = index.plus(&MultiIndex::pure(c, 2));
                    (Self::Partial(source), (k + 1.0) * (k + 2.0))
                })
                .collect::<Vec<_>>()
        }))
    }
}

fn merged(terms: impl Iterator<Item = (Plane, f64)>) -> Vec<(Plane, f64)> {
    let mut sums = BTreeMap::new();
    for (plane, factor) in terms {
        *sums.entry(plane).or_insert(0.0) += factor;
    }
    sums.into_iter().collect()
}

impl Ord for Plane {
    /// By order, so that a plane comes after all those that make it.
    fn cmp(&self, other: &Self) -> Ordering {
        self.order()
            .cmp(&other.order())
            .then_with(|| match (self, other) {
                (Self::Partial(a), Self::Partial(b)) => b.cmp(a).reverse(),
                (Self::Partial(_), Self::Laplacian(_)) => Ordering::Less,
                (Self::Laplacian(_), Self::Partial(_)) => Ordering::Greater,
                (Self::Laplacian(a), Self::Laplacian(b)) => a.cmp(b),
            })
    }
}

impl PartialOrd for Plane {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A set of planes in ascending order; the position of a plane is its place in a row.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Planes(Vec<Plane>);

impl Planes {
    /// The planes in ascending order.
    pub fn iter(&self) -> std::slice::Iter<'_, Plane> {
        self.0.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The plane at a place.
    pub fn get(&self, place: usize) -> Option<&Plane> {
        self.0.get(place)
    }

    /// The place of a plane.
    pub fn position(&self, plane: &Plane) -> Option<usize> {
        self.0.binary_search(plane).ok()
    }

    /// Whether it is in the set.
    pub fn contains(&self, plane: &Plane) -> bool {
        self.position(plane).is_some()
    }

    /// The highest order in the set.
    pub fn order(&self) -> usize {
        self.0.last().map_or(0, Plane::order)
    }

    /// The smallest set that holds this one and, with each plane, all that a product needs
    /// to make it.
    pub fn closed(&self) -> Self {
        self.0.iter().flat_map(Plane::below).collect()
    }
}

impl FromIterator<Plane> for Planes {
    fn from_iter<I: IntoIterator<Item = Plane>>(planes: I) -> Self {
        let set: BTreeSet<Plane> = planes.into_iter().collect();
        Self(set.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Planes {
    type Item = &'a Plane;
    type IntoIter = std::slice::Iter<'a, Plane>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// The pairs (i, j) of places in `a` and `b` with `e_i·e_j = target`: one row of the
/// product table.
pub fn factor_pairs(target: &Plane, a: &Planes, b: &Planes) -> Vec<(usize, usize)> {
    match target {
        Plane::Partial(gamma) => {
            // Over what lies below γ, not over all of a: that may be a thousand planes.
            let factors = |alpha: MultiIndex| {
                let beta = Plane::Partial(gamma.minus(&alpha)?);
                Some((a.position(&Plane::Partial(alpha))?, b.position(&beta)?))
            };
            let mut pairs: Vec<_> = gamma.below().into_iter().filter_map(factors).collect();
            pairs.sort_unstable();
            pairs
        }
        Plane::Laplacian(set) => {
            let value = Plane::value();
            let firsts = set.iter().map(|&c| Plane::first(c));
            [(&value, target), (target, &value)]
                .into_iter()
                .filter_map(|(p, q)| Some((a.position(p)?, b.position(q)?)))
                .chain(firsts.filter_map(|e| Some((a.position(&e)?, b.position(&e)?))))
                .collect()
        }
    }
}

/// Those planes of `target` that are sums of one or more planes of `generators`: where a
/// nonlinear function of a jet with these planes can be non-zero.
pub fn generated(target: &Planes, generators: &Planes) -> Planes {
    let mut reached: BTreeSet<Plane> = BTreeSet::new();
    let closed = target.closed();
    // Ascending order: what a plane is made of has been decided before it.
    for plane in &closed {
        let made = match plane {
            Plane::Partial(gamma) => gamma.below().into_iter().any(|beta| {
                let rest = gamma.minus(&beta);
                beta.order() > 0
                    && generators.contains(&Plane::Partial(beta))
                    && rest.is_some_and(|rest| {
                        rest.order() == 0 || reached.contains(&Plane::Partial(rest))
                    })
            }),
            Plane::Laplacian(set) => {
                let part = |&c: &Coordinate| {
                    generators.contains(&Plane::first(c)) || generators.contains(&Plane::second(c))
                };
                generators.contains(plane) || set.iter().any(part)
            }
        };
        if plane.is_value() || made {
            reached.insert(plane.clone());
        }
    }
    target
        .iter()
        .filter(|plane| reached.contains(plane))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests;
