//! Polygons in the plane.

use super::out;
use crate::error::{Error, check_finite};

type Point = [f64; 2];

/// Twice the signed area of a triangle: positive if it turns left.
fn turn(a: Point, b: Point, c: Point) -> f64 {
    (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
}

/// The vertices counter-clockwise, with names of the edges that keep the order given.
pub(super) fn ordered(vertices: &[Point]) -> Result<(Vec<Point>, Vec<String>), Error> {
    let count = vertices.len();
    check_finite("the vertices of a polygon", vertices.as_flattened())?;
    if count < 3 {
        return Err(out("the number of vertices", count, "give at least three"));
    }
    let edge = |i: usize| (vertices[i], vertices[(i + 1) % count]);
    for i in 0..count {
        let (a, b) = edge(i);
        if a == b {
            let given = format!("without length, at ({}, {})", a[0], a[1]);
            return Err(out(
                &format!("edge {i} of a polygon"),
                given,
                "give each vertex once",
            ));
        }
        for j in i + 1..count {
            let (c, d) = edge(j);
            let neighbours = j == i + 1 || (i == 0 && j == count - 1);
            let touching = if neighbours {
                // They share a vertex; they may not run back over each other.
                let (before, shared, after) = if j == i + 1 { (a, b, d) } else { (c, a, b) };
                let back = (before[0] - shared[0]) * (after[0] - shared[0])
                    + (before[1] - shared[1]) * (after[1] - shared[1]);
                turn(before, shared, after) == 0.0 && back > 0.0
            } else {
                segments_meet(a, b, c, d)
            };
            if touching {
                let given = format!("crossed or touched by edge {j}");
                let expected = "give the vertices in order around the polygon";
                return Err(out(&format!("edge {i} of a polygon"), given, expected));
            }
        }
    }
    let area: f64 = (0..count)
        .map(|i| turn([0.0; 2], edge(i).0, edge(i).1))
        .sum();
    let mut vertices = vertices.to_vec();
    let mut names: Vec<String> = (0..count).map(|i| format!("edge {i}")).collect();
    if area < 0.0 {
        // Edge i runs from vertex i to the next: reversed, it starts at the next.
        vertices.reverse();
        names.reverse();
        names.rotate_left(1);
    }
    Ok((vertices, names))
}

fn segments_meet(a: Point, b: Point, c: Point, d: Point) -> bool {
    let within = |p: Point, q: Point, r: Point| {
        (0..2).all(|i| p[i].min(q[i]) <= r[i] && r[i] <= p[i].max(q[i]))
    };
    let (ab_c, ab_d) = (turn(a, b, c), turn(a, b, d));
    let (cd_a, cd_b) = (turn(c, d, a), turn(c, d, b));
    let apart = |x: f64, y: f64| (x > 0.0) != (y > 0.0) && x != 0.0 && y != 0.0;
    (apart(ab_c, ab_d) && apart(cd_a, cd_b))
        || (ab_c == 0.0 && within(a, b, c))
        || (ab_d == 0.0 && within(a, b, d))
        || (cd_a == 0.0 && within(c, d, a))
        || (cd_b == 0.0 && within(c, d, b))
}

/// The distance to a segment.
pub(super) fn to_segment(a: Point, b: Point, p: Point) -> f64 {
    let (along, from) = ([b[0] - a[0], b[1] - a[1]], [p[0] - a[0], p[1] - a[1]]);
    let square = along[0] * along[0] + along[1] * along[1];
    let share = ((from[0] * along[0] + from[1] * along[1]) / square).clamp(0.0, 1.0);
    (from[0] - share * along[0]).hypot(from[1] - share * along[1])
}

/// The distance to the nearest edge, negative inside.
pub(super) fn level(vertices: &[Point], p: Point) -> f64 {
    let count = vertices.len();
    let (mut inside, mut nearest) = (false, f64::INFINITY);
    for i in 0..count {
        let (a, b) = (vertices[i], vertices[(i + 1) % count]);
        nearest = nearest.min(to_segment(a, b, p));
        // A ray to the right crosses the edge.
        if (a[1] > p[1]) != (b[1] > p[1]) && (turn(a, b, p) > 0.0) == (b[1] > a[1]) {
            inside = !inside;
        }
    }
    if inside { -nearest } else { nearest }
}
