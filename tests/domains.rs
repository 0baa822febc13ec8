//! Domains and samplers.

use dualtape::{Design, Domain, Error, Points, Quadrature, Sampler, SamplerState};
use proptest::prelude::*;
use std::f64::consts::PI;

const DESIGNS: [Design; 6] = [
    Design::Grid,
    Design::Chebyshev,
    Design::Uniform,
    Design::LatinHypercube,
    Design::Sobol,
    Design::Halton,
];
const RANDOM: [Design; 4] = [
    Design::Uniform,
    Design::LatinHypercube,
    Design::Sobol,
    Design::Halton,
];

fn rows(points: &Points) -> impl Iterator<Item = Vec<f64>> {
    (0..points.len()).map(|n| points.point(n))
}

fn normals(points: &Points) -> Vec<Vec<f64>> {
    let columns: Vec<&[f64]> = points
        .column_names()
        .into_iter()
        .filter_map(|name| points.column(name))
        .collect();
    (0..points.len())
        .map(|n| columns.iter().map(|column| column[n]).collect())
        .collect()
}

/// Domains of many kinds, each with its area or volume.
fn zoo() -> Result<Vec<(&'static str, Domain, f64)>, Error> {
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let right = Domain::cuboid(&[(0.5, 2.0), (0.0, 1.0)])?;
    let disc = Domain::ball(&[0.5, 0.5], 0.25)?;
    let shallow = Domain::cuboid(&[(0.0, 0.5), (-1.0, 0.5)])?;
    let l = Domain::polygon(&[
        [0.0, 0.0],
        [2.0, 0.0],
        [2.0, 1.0],
        [1.0, 1.0],
        [1.0, 2.0],
        [0.0, 2.0],
    ])?;
    let hole = PI / 16.0;
    Ok(vec![
        ("interval", Domain::interval(-1.0, 2.0)?, 3.0),
        ("square", square.clone(), 1.0),
        ("box in 5-D", Domain::cuboid(&[(0.0, 2.0); 5])?, 32.0),
        ("disc", disc.clone(), hole),
        (
            "ball",
            Domain::ball(&[1.0, 0.0, 0.0], 2.0)?,
            32.0 * PI / 3.0,
        ),
        (
            "ball in 5-D",
            Domain::ball(&[0.0; 5], 1.0)?,
            8.0 * PI * PI / 15.0,
        ),
        ("L", l.clone(), 3.0),
        (
            "clockwise triangle",
            Domain::polygon(&[[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]])?,
            1.0,
        ),
        ("overlapping union", square.union(&right)?, 2.0),
        (
            "union side by side",
            square.union(&Domain::cuboid(&[(1.0, 3.0), (0.0, 1.0)])?)?,
            3.0,
        ),
        ("intersection", square.intersection(&right)?, 0.5),
        ("square with a hole", square.difference(&disc)?, 1.0 - hole),
        ("flush difference", square.difference(&shallow)?, 0.75),
        (
            "three operations",
            l.union(&right)?.difference(&disc)?,
            3.0 - hole,
        ),
        ("disc in time", disc.in_time(0.0, 2.0)?, 2.0 * hole),
        (
            "hole in time",
            square.difference(&disc)?.in_time(0.0, 2.0)?,
            2.0 * (1.0 - hole),
        ),
        (
            "polygon and height",
            l.times(&Domain::interval(0.0, 0.5)?)?,
            1.5,
        ),
    ])
}

#[test]
fn every_side_has_unit_normals_that_point_outwards() -> Result<(), Error> {
    for (name, domain, _) in zoo()? {
        for side in domain.sides() {
            for design in DESIGNS {
                let points = match Sampler::over(&domain.side(&side)?, 3).draw(design, 40) {
                    Ok(points) => points,
                    Err(error) => {
                        // Nothing is left of the box that the L and it share sides with.
                        let gone = ["left", "right", "bottom", "top"].contains(&side.as_str());
                        assert!(
                            name == "three operations" && gone,
                            "{name}, {side}: {error}"
                        );
                        assert!(error.to_string().contains("belong"), "{error}");
                        continue;
                    }
                };
                for (p, normal) in rows(&points).zip(normals(&points)) {
                    let what = format!("{name}, {side}, {design:?}, {p:?}, {normal:?}");
                    let length: f64 = normal.iter().map(|n| n * n).sum::<f64>().sqrt();
                    assert!((length - 1.0).abs() < 1e-12, "{what}");
                    assert!(domain.contains(&p), "on the domain: {what}");
                    // Grids have corners, where neither need hold: a sharp one is left
                    // inwards, one that points inwards is not left outwards.
                    if RANDOM.contains(&design) {
                        let moved = |step: f64| -> Vec<f64> {
                            p.iter().zip(&normal).map(|(x, n)| x + step * n).collect()
                        };
                        assert!(domain.contains(&moved(-1e-6)), "inwards: {what}");
                        assert!(!domain.contains(&moved(1e-6)), "outwards: {what}");
                    }
                    assert!(domain.side_at(&p).is_some(), "{what}");
                }
            }
        }
    }
    Ok(())
}

/// Gauss: the flux of F(x) = x through the boundary is the dimension times the volume. A
/// boundary piece that is missing, doubled or turned would show.
#[test]
fn sides_close_the_domain() -> Result<(), Error> {
    let mut closed = 0;
    for (name, domain, volume) in zoo()? {
        let boundary = domain.boundary()?;
        let Some(measure) = boundary.measure() else {
            continue;
        };
        closed += 1;
        let points = Sampler::over(&boundary, 1).draw(Design::Sobol, 1 << 13)?;
        // Where the origin lies makes no difference.
        for shift in [0.0, 1.0] {
            let fluxes = rows(&points).zip(normals(&points)).map(|(p, normal)| {
                p.iter()
                    .zip(normal)
                    .map(|(x, n)| (x + shift) * n)
                    .sum::<f64>()
            });
            let got = fluxes.sum::<f64>() / points.len() as f64 * measure;
            let want = domain.dimension() as f64 * volume;
            assert!(
                (got - want).abs() < 0.02 * want,
                "{name}: {got}, want {want}"
            );
        }
    }
    assert!(closed >= 8, "{closed} domains with exact sides");
    Ok(())
}

/// The perimeter of a combination, by counting points: shares of sides follow lengths.
#[test]
fn shares_of_sides_follow_their_lengths() -> Result<(), Error> {
    // Two squares side by side: 8 edges of length 1 or 2 with the common one gone, and
    // outer edges that are not counted twice where they overlap.
    let one = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let two = Domain::cuboid(&[(0.5, 2.0), (0.0, 1.0)])?;
    let joined = one.union(&two)?;
    let points = Sampler::over(&joined.boundary()?, 1).draw(Design::Sobol, 1 << 12)?;
    let share = |keep: &dyn Fn(&[f64]) -> bool| {
        rows(&points).filter(|p| keep(p)).count() as f64 / points.len() as f64
    };
    for (want, got) in [
        (1.0 / 6.0, share(&|p| p[0] == 0.0)),
        (1.0 / 6.0, share(&|p| p[0] == 2.0)),
        (2.0 / 6.0, share(&|p| p[1] == 0.0)),
        (
            0.5 / 6.0,
            share(&|p| p[1] == 0.0 && p[0] > 0.5 && p[0] < 1.0),
        ),
        (0.0, share(&|p| p[0] == 1.0 || p[0] == 0.5)),
    ] {
        assert!((want - got).abs() < 0.01, "{got}, want {want}");
    }
    Ok(())
}

#[test]
fn corners_belong_to_a_named_side() -> Result<(), Error> {
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?.rename("top", "lid")?;
    // Every side's grid has its two corners, each with this side's normal.
    for (side, normal) in [
        ("left", [-1.0, 0.0]),
        ("right", [1.0, 0.0]),
        ("bottom", [0.0, -1.0]),
        ("lid", [0.0, 1.0]),
    ] {
        let points = Sampler::over(&square.side(side)?, 0).draw(Design::Grid, 11)?;
        assert_eq!(points.len(), 11);
        assert!(normals(&points).iter().all(|n| n == &normal), "{side}");
        let corner = |x: f64| x == 0.0 || x == 1.0;
        let corners = rows(&points).filter(|p| corner(p[0]) && corner(p[1]));
        assert_eq!(corners.count(), 2, "{side}");
    }
    let (side, normal) = square.side_at(&[0.0, 1.0]).expect("a corner");
    assert_eq!((side.as_str(), normal), ("left", vec![-1.0, 0.0]));
    let (side, _) = square.side_at(&[0.5, 1.0]).expect("the lid");
    assert_eq!(side, "lid");
    assert!(square.side_at(&[0.5, 0.5]).is_none());
    assert!(square.side_at(&[0.5]).is_none() && !square.contains(&[0.5]));
    Ok(())
}

#[test]
fn names_of_sides_and_axes() -> Result<(), Error> {
    let box4 = Domain::cuboid(&[(0.0, 1.0); 4])?;
    assert_eq!(
        box4.sides(),
        [
            "left", "right", "bottom", "top", "front", "back", "x4-", "x4+"
        ]
    );
    assert_eq!(box4.axis_names(), ["x1", "x2", "x3", "x4"]);
    let disc = Domain::ball(&[0.0, 0.0], 1.0)?.axes(&["r", "z"])?;
    let rim = Sampler::over(&disc.in_time(0.0, 1.0)?.side("surface")?, 0).uniform(5)?;
    assert_eq!(rim.column_names(), ["nt", "nr", "nz"]);
    assert!(
        rim.column("nt")
            .is_some_and(|list| list.iter().all(|n| *n == 0.0))
    );
    // Polygons name their edges in the order given, in either sense.
    let vertices = [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 3.0]];
    let reversed = [[0.0, 3.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]];
    for (list, edge) in [(vertices, "edge 1"), (reversed, "edge 1")] {
        let polygon = Domain::polygon(&list)?;
        let (side, normal) = polygon.side_at(&[2.0, 0.5]).expect("an edge");
        assert_eq!((side.as_str(), normal), (edge, vec![1.0, 0.0]));
    }
    // One name for several sides.
    let walls = ["left", "right", "bottom"]
        .into_iter()
        .try_fold(Domain::cuboid(&[(0.0, 1.0), (0.0, 3.0)])?, |d, side| {
            d.rename(side, "wall")
        })?;
    assert_eq!(walls.sides(), ["wall", "top"]);
    assert_eq!(walls.side("wall")?.measure(), Some(7.0));
    assert_eq!(walls.some_sides(&["wall", "top"])?.measure(), Some(8.0));
    Ok(())
}

#[test]
fn surfaces_can_be_cut_and_moved() -> Result<(), Error> {
    let sphere = Domain::sphere(&[0.0, 0.0, 1.0], 2.0)?;
    assert!(sphere.sides().is_empty() && sphere.boundary().is_err());
    let upper = sphere.intersection(&Domain::cuboid(&[(-3.0, 3.0), (-3.0, 3.0), (1.0, 4.0)])?)?;
    let moving = upper.in_time(0.0, 1.0)?;
    assert_eq!(moving.sides(), ["initial", "final"]);
    for design in RANDOM {
        let points = Sampler::over(&moving.interior(), 2).draw(design, 200)?;
        assert!(rows(&points).all(|p| {
            let r = p[1].hypot(p[2]).hypot(p[3] - 1.0);
            (r - 2.0).abs() < 1e-12 && p[3] >= 1.0
        }));
        let start = Sampler::over(&moving.side("initial")?, 2).draw(design, 20)?;
        assert!(rows(&start).all(|p| p[0] == 0.0 && moving.contains(&p)));
    }
    let ball = Domain::ball(&[0.0; 3], 1.0)?;
    assert!(sphere.union(&ball).is_err() && ball.difference(&sphere).is_err());
    assert!(sphere.intersection(&sphere).is_err());
    Ok(())
}

#[test]
fn impossible_domains_are_named() -> Result<(), Error> {
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let bad = [
        (Domain::interval(1.0, 1.0).err(), "some length"),
        (Domain::cuboid(&[]).err(), "axes"),
        (Domain::interval(f64::NAN, 1.0).err(), "finite"),
        (Domain::ball(&[0.0], -1.0).err(), "radius"),
        (Domain::ball(&[], 1.0).err(), "centre"),
        (Domain::sphere(&[0.0], 1.0).err(), "at least two"),
        (Domain::polygon(&[[0.0; 2], [1.0; 2]]).err(), "three"),
        (
            Domain::polygon(&[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).err(),
            "crossed",
        ),
        (
            Domain::polygon(&[[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).err(),
            "without length",
        ),
        (
            Domain::polygon(&[[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).err(),
            "crossed",
        ),
        (
            square
                .intersection(&Domain::cuboid(&[(2.0, 3.0), (0.0, 1.0)])?)
                .err(),
            "intersection",
        ),
        (
            square.union(&Domain::interval(0.0, 1.0)?).err(),
            "dimension",
        ),
        (square.side("lid").err(), "left, right, bottom, top"),
        (square.clone().rename("lid", "wall").err(), "lid"),
        (square.clone().axes(&["x"]).err(), "names of axes"),
        (square.clone().axes(&["x", "x"]).err(), "twice"),
        // It has points in common with its box's corner only: nothing to be drawn.
        (
            Sampler::over(
                &square
                    .intersection(&Domain::polygon(&[[1.0, 1.0], [2.0, 1.0], [2.0, 2.0]])?)?
                    .interior(),
                0,
            )
            .uniform(5)
            .err(),
            "belong to the domain",
        ),
    ];
    for (error, part) in bad {
        let text = error.map_or_else(|| format!("no error about {part}"), |e| e.to_string());
        assert!(text.contains(part), "{text}: {part}");
    }
    Ok(())
}

// Samplers.

/// For each domain and design: as many points as asked, inside; their mean is that of a fine
/// set of points, and boxes of it are hit by their share.
#[test]
fn every_design_is_uniform_in_every_domain() -> Result<(), Error> {
    for (name, domain, volume) in zoo()? {
        let bounds = domain.bounds();
        let whole: f64 = bounds.iter().map(|(a, b)| b - a).product();
        for design in RANDOM {
            let count = 4096;
            let points = Sampler::over(&domain.interior(), 5).draw(design, count)?;
            let what = format!("{name}, {design:?}");
            assert_eq!(points.len(), count, "{what}");
            assert!(rows(&points).all(|p| domain.contains(&p)), "{what}");
            // The density is the same in the lower and the upper half of each axis: compare
            // with the share of the box that is in the domain, by plain Monte Carlo.
            let mut probe = Sampler::new(&bounds, 99)?;
            let all: Vec<Vec<f64>> = rows(&probe.draw(Design::Halton, 40_000)?)
                .filter(|p| domain.contains(p))
                .collect();
            let estimate = whole * all.len() as f64 / 40_000.0;
            assert!(
                (estimate / volume - 1.0).abs() < 0.03,
                "{what}: {estimate}, {volume}"
            );
            for (axis, (from, to)) in bounds.iter().enumerate() {
                for part in [0.25, 0.5, 0.75] {
                    let cut = from + part * (to - from);
                    let got = points.coordinate(axis).iter().filter(|x| **x < cut).count();
                    let want = all.iter().filter(|p| p[axis] < cut).count();
                    let (got, want) = (got as f64 / count as f64, want as f64 / all.len() as f64);
                    assert!(
                        (got - want).abs() < 0.03,
                        "{what}, axis {axis}: {got}, {want}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Warnock's formula for the L2 star discrepancy of points in the unit cube.
fn discrepancy(points: &Points) -> f64 {
    let (n, d) = (points.len() as f64, points.dimension() as i32);
    let all: Vec<Vec<f64>> = rows(points).collect();
    let single: f64 = all
        .iter()
        .map(|p| p.iter().map(|x| 1.0 - x * x).product::<f64>())
        .sum();
    let mut pairs = 0.0;
    for p in &all {
        for q in &all {
            pairs += p
                .iter()
                .zip(q)
                .map(|(a, b)| 1.0 - a.max(*b))
                .product::<f64>();
        }
    }
    (3_f64.powi(-d) - 2_f64.powi(1 - d) / n * single + pairs / (n * n)).sqrt()
}

#[test]
fn sequences_have_low_discrepancy() -> Result<(), Error> {
    for (dimension, gain) in [(2, 8.0), (4, 3.0)] {
        let cube = vec![(0.0, 1.0); dimension];
        // The expectation for independent points.
        let random =
            ((2_f64.powi(-(dimension as i32)) - 3_f64.powi(-(dimension as i32))) / 1024.0).sqrt();
        for seed in 0..3 {
            let mut sampler = Sampler::new(&cube, seed)?;
            for draw in 0..2 {
                for design in [Design::Sobol, Design::Halton] {
                    let got = discrepancy(&sampler.clone().draw(design, 1024)?);
                    let what = format!("{design:?} in {dimension}-D, seed {seed}, draw {draw}");
                    assert!(got * gain < random, "{what}: {got:e}, random {random:e}");
                }
                sampler.draw(Design::Sobol, 1024)?;
            }
            let got = discrepancy(&sampler.uniform(1024)?);
            assert!(
                (0.5..2.0).contains(&(got / random)),
                "uniform {got:e}, {random:e}"
            );
        }
    }
    Ok(())
}

#[test]
fn draws_advance_repeat_and_resume() -> Result<(), Error> {
    for (name, domain, _) in zoo()? {
        for region in [domain.interior(), domain.boundary()?] {
            if region.dimension() == 1 && region.measure() == Some(2.0) {
                continue; // two points
            }
            for design in RANDOM {
                let what = format!("{name}, {design:?}");
                let mut one = Sampler::over(&region, 7);
                let mut two = Sampler::over(&region, 7);
                let first = one.draw(design, 20)?;
                assert_eq!(
                    first,
                    two.draw(design, 20)?,
                    "the same seed repeats: {what}"
                );
                let text = serde_json::to_string(&one.state()).expect("a state as text");
                let second = one.draw(design, 20)?;
                assert_ne!(first, second, "draws advance: {what}");
                let other = Sampler::over(&region, 8).draw(design, 20)?;
                assert_ne!(first, other, "seeds differ: {what}");
                let other = Sampler::over(&region, 7).stream(1).draw(design, 20)?;
                assert_ne!(first, other, "streams differ: {what}");
                let state: SamplerState = serde_json::from_str(&text).expect("a state");
                let mut resumed = Sampler::over(&region, 0);
                resumed.restore(&state);
                assert_eq!(second, resumed.draw(design, 20)?, "resumed: {what}");
                assert_eq!(one.state(), resumed.state(), "{what}");
            }
            for design in [Design::Grid, Design::Chebyshev] {
                let mut one = Sampler::over(&region, 7);
                assert_eq!(one.draw(design, 50)?, one.draw(design, 50)?, "{name}");
            }
        }
    }
    Ok(())
}

/// A sequence in two draws is the sequence in one.
#[test]
fn two_draws_are_one_longer_draw() -> Result<(), Error> {
    let region = Domain::ball(&[0.0; 3], 1.0)?.interior();
    for design in [Design::Sobol, Design::Halton] {
        let mut one = Sampler::over(&region, 3);
        let both = one.draw(design, 30)?.join(&one.draw(design, 70)?)?;
        assert_eq!(
            both,
            Sampler::over(&region, 3).draw(design, 100)?,
            "{design:?}"
        );
    }
    Ok(())
}

#[test]
fn grids_have_the_ends_and_the_right_number() -> Result<(), Error> {
    let square = Domain::cuboid(&[(0.0, 1.0), (-1.0, 1.0)])?;
    let grid = Sampler::over(&square.interior(), 0).draw(Design::Grid, 30)?;
    assert_eq!(grid.len(), 30);
    assert_eq!(grid, Points::grid(&[(0.0, 1.0, 6), (-1.0, 1.0, 5)])?);
    let nodes = Sampler::over(&square.interior(), 0).draw(Design::Chebyshev, 30)?;
    assert_eq!(nodes, Points::chebyshev(&[(0.0, 1.0, 6), (-1.0, 1.0, 5)])?);
    for (k, x) in Points::chebyshev(&[(-1.0, 1.0, 9)])?
        .coordinate(0)
        .iter()
        .enumerate()
    {
        assert!(
            (x + (PI * k as f64 / 8.0).cos()).abs() < 1e-15,
            "node {k}: {x}"
        );
    }
    // In a disc, about as many as asked, none twice.
    let disc = Domain::ball(&[0.0, 0.0], 1.0)?;
    for (design, least) in [(Design::Grid, 900), (Design::Chebyshev, 900)] {
        let points = Sampler::over(&disc.interior(), 0).draw(design, 1000)?;
        assert!(
            (least..1100).contains(&points.len()),
            "{design:?}: {}",
            points.len()
        );
        let mut all: Vec<String> = rows(&points).map(|p| format!("{p:?}")).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), points.len(), "{design:?}");
    }
    let rim = Sampler::over(&disc.boundary()?, 0).draw(Design::Grid, 12)?;
    assert_eq!(rim.len(), 12);
    // The ends of an interval: two points, whatever was asked.
    let ends =
        Sampler::over(&Domain::interval(-1.0, 3.0)?.boundary()?, 0).draw(Design::Sobol, 10)?;
    assert_eq!(
        (ends.coordinate(0), ends.column("nx")),
        (&[-1.0, 3.0][..], Some(&[-1.0, 1.0][..]))
    );
    Ok(())
}

#[test]
fn dimension_limits_are_named() -> Result<(), Error> {
    for (design, most) in [(Design::Sobol, 256), (Design::Halton, 1000)] {
        let mut fits = Sampler::new(&vec![(0.0, 1.0); most], 0)?;
        assert_eq!(fits.draw(design, 2)?.dimension(), most);
        let mut beyond = Sampler::new(&vec![(0.0, 1.0); most + 1], 0)?;
        let text = beyond.draw(design, 2).expect_err("too many").to_string();
        assert!(text.contains(&most.to_string()), "{text}");
    }
    Ok(())
}

#[test]
fn points_follow_the_residual() -> Result<(), Error> {
    // |r| = 1 on the right third, 0 elsewhere.
    let step = |points: &Points| {
        Ok(vec![
            points
                .coordinate(0)
                .iter()
                .map(|x| f64::from(u8::from(*x > 2.0 / 3.0)))
                .collect(),
        ])
    };
    let mut sampler = Sampler::new(&[(0.0, 1.0)], 3)?;
    // Weights 3 + c and c: with c = 1 the right third has 4/6 of the chance.
    for (floor, want) in [(0.0, 1.0), (1.0, 4.0 / 6.0), (1e6, 1.0 / 3.0)] {
        let points = sampler.by_residual(2_000, 40_000, 2.0, floor, step)?;
        let right = points
            .coordinate(0)
            .iter()
            .filter(|x| **x > 2.0 / 3.0)
            .count();
        assert!(
            (right as f64 / 2000.0 - want).abs() < 0.04,
            "floor {floor}: {right}"
        );
        let mut all = points.coordinate(0).to_vec();
        all.sort_by(f64::total_cmp);
        all.dedup();
        assert_eq!(all.len(), 2000, "without repetition");
    }
    let more = sampler.largest(10, 500, |points| {
        Ok(vec![
            points.coordinate(0).to_vec(),
            points.coordinate(0).iter().map(|x| -x).collect(),
        ])
    })?;
    assert!(more.coordinate(0).iter().all(|x| *x > 0.9));
    // A residual that vanishes says nothing: uniform.
    let points = sampler.by_residual(500, 5000, 1.0, 0.0, |p| Ok(vec![vec![0.0; p.len()]]))?;
    let left = points.coordinate(0).iter().filter(|x| **x < 0.5).count();
    assert!((200..300).contains(&left), "{left}");
    let bad = [
        (sampler.by_residual(10, 5, 1.0, 1.0, step).err(), "10 of 5"),
        (sampler.by_residual(1, 5, -1.0, 1.0, step).err(), "power"),
        (sampler.largest(1, 5, |_| Ok(vec![])).err(), "residuals"),
        (
            sampler.largest(1, 5, |_| Ok(vec![vec![0.0]])).err(),
            "residuals at a pool",
        ),
        (
            sampler
                .largest(1, 2, |_| Ok(vec![vec![f64::NAN, 0.0]]))
                .err(),
            "finite",
        ),
    ];
    for (error, part) in bad {
        let text = error.map_or_else(|| format!("no error about {part}"), |e| e.to_string());
        assert!(text.contains(part), "{text}: {part}");
    }
    Ok(())
}

// Points.

#[test]
fn quadratures_are_exact() -> Result<(), Error> {
    for count in 1..12 {
        let rule = Quadrature::gauss_legendre(&[(-1.0, 2.0, count), (0.0, 1.0, 2)])?;
        let degree = 2 * count as i32 - 1;
        let got: f64 = rows(rule.points())
            .zip(rule.weights())
            .map(|(p, w)| w * p[0].powi(degree) * p[1].powi(3))
            .sum();
        let want = (2_f64.powi(degree + 1) - 1.0) / f64::from(degree + 1) / 4.0;
        assert!(
            (got - want).abs() < 1e-13 * want.abs().max(1.0),
            "degree {degree}: {got}, {want}"
        );
    }
    let points = Points::grid(&[(0.0, 1.0, 4)])?;
    assert_eq!(Quadrature::equal(points.clone(), 2.0)?.weights(), [0.5; 4]);
    assert!(Quadrature::new(points.clone(), &[1.0]).is_err());
    assert!(Quadrature::new(points.clone(), &[1.0, 1.0, 1.0, -1.0]).is_err());
    assert!(Quadrature::gauss_legendre(&[(0.0, 1.0, 0)]).is_err());
    assert!(Quadrature::gauss_legendre(&[(1.0, 0.0, 2)]).is_err());
    assert!(Quadrature::gauss_legendre(&[]).is_err());
    Ok(())
}

/// A folder that goes when the test is over.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dualtape-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn points_from_csv() -> Result<(), Error> {
    let folder = Folder::new("csv");
    let file = folder.file("a.csv", b"u, t,x\n1.5,0,-1\n\"2.5\", 0.5 ,1e-3\n");
    let points = Points::from_csv(&file, &["t", "x"])?;
    assert_eq!(
        (points.coordinate(0), points.coordinate(1)),
        (&[0.0, 0.5][..], &[-1.0, 1e-3][..])
    );
    assert_eq!(points.column("u"), Some(&[1.5, 2.5][..]));
    let cases: [(&[u8], &str); 6] = [
        (b"t,x\n1,2\n3,a\n", "line 3: `x` is `a`"),
        (b"t,x\n1\n", "1 field"),
        (b"t,y\n1,2\n", "t, y"),
        (b"t,x\n1,inf\n", "finite"),
        (b"t,x\n", "empty"),
        (b"t,x,t\n1,2,3\n", "`t` is given twice"),
    ];
    for (text, part) in cases {
        let file = folder.file("bad.csv", text);
        let error = Points::from_csv(&file, &["t", "x"])
            .expect_err(part)
            .to_string();
        assert!(error.contains(part), "{error}: {part}");
    }
    assert!(matches!(
        Points::from_csv(folder.0.join("none.csv"), &["t"]),
        Err(Error::File { .. })
    ));
    Ok(())
}

#[test]
fn points_from_numpy() -> Result<(), Error> {
    // Written by numpy.save: float64 in C order, float32 in Fortran order, a list.
    let data = |name: &str| format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let want = [[0.0, -1.0], [0.25, 0.5], [1.0, 1.0]];
    for name in ["points_c_f8.npy", "points_fortran_f4.npy"] {
        let points = Points::from_npy(data(name))?;
        assert_eq!(rows(&points).collect::<Vec<_>>(), want, "{name}");
    }
    let list = Points::from_npy(data("list_f8.npy"))?;
    assert_eq!(
        (list.dimension(), list.coordinate(0)),
        (1, &[1.0, 2.0, 4.0][..])
    );
    let cube = Points::from_npy(data("cube_f8.npy"))
        .expect_err("three axes")
        .to_string();
    assert!(cube.contains("[2, 1, 2]"), "{cube}");
    assert_eq!(
        dualtape::points::read_npy(data("cube_f8.npy"))?.values,
        [0.0, 1.0, 2.0, 3.0]
    );
    let folder = Folder::new("npy");
    let whole = std::fs::read(data("points_c_f8.npy")).expect("the file");
    let cut = Points::from_npy(folder.file("cut.npy", &whole[..whole.len() - 3]));
    assert!(cut.expect_err("cut off").to_string().contains("cut off"));
    Ok(())
}

#[test]
fn chosen_and_joined_points_keep_their_data() -> Result<(), Error> {
    let points = Points::grid(&[(0.0, 1.0, 5)])?.with_column("u", &[0.0, 1.0, 2.0, 3.0, 4.0])?;
    let chosen = points.select(&[4, 1])?;
    assert_eq!(
        (chosen.coordinate(0), chosen.column("u")),
        (&[1.0, 0.25][..], Some(&[4.0, 1.0][..]))
    );
    assert!(points.select(&[5]).is_err() && points.select(&[]).is_err());
    assert_eq!(points.clone().join(&chosen)?.len(), 7);
    assert!(
        points
            .clone()
            .join(&Points::grid(&[(0.0, 1.0, 5)])?)
            .is_err()
    );
    assert!(
        Points::grid(&[(0.0, 1.0, 2), (0.0, 1.0, 2)])?
            .join(&chosen)
            .is_err()
    );
    Ok(())
}

// Laws.

/// A shape with its membership in plain words.
#[derive(Debug, Clone)]
enum Plain {
    Square((f64, f64), (f64, f64)),
    Disc(f64, f64, f64),
    /// Counter-clockwise.
    Triangle([[f64; 2]; 3], bool),
}

impl Plain {
    fn domain(&self) -> Domain {
        match self {
            Self::Square(x, y) => Domain::cuboid(&[*x, *y]),
            Self::Disc(x, y, r) => Domain::ball(&[*x, *y], *r),
            Self::Triangle(vertices, back) => {
                let mut vertices = vertices.to_vec();
                if *back {
                    vertices.reverse();
                }
                Domain::polygon(&vertices)
            }
        }
        .expect("a domain")
    }

    fn holds(&self, p: &[f64]) -> bool {
        match self {
            Self::Square(x, y) => p[0] >= x.0 && p[0] <= x.1 && p[1] >= y.0 && p[1] <= y.1,
            Self::Disc(x, y, r) => (p[0] - x).powi(2) + (p[1] - y).powi(2) <= r * r,
            Self::Triangle(v, _) => (0..3).all(|i| {
                let (s, e) = (v[i], v[(i + 1) % 3]);
                (e[0] - s[0]) * (p[1] - s[1]) - (e[1] - s[1]) * (p[0] - s[0]) >= 0.0
            }),
        }
    }
}

fn shape() -> impl Strategy<Value = Plain> {
    let side = || (-1.0..0.0_f64, 0.1..1.0_f64);
    prop_oneof![
        (side(), side()).prop_map(|(x, y)| Plain::Square(x, y)),
        (-0.5..0.5, -0.5..0.5, 0.1..1.0).prop_map(|(x, y, r)| Plain::Disc(x, y, r)),
        (0.0..2.0_f64, 2.2..4.0_f64, 4.2..6.0_f64, any::<bool>()).prop_map(|(a, b, c, back)| {
            Plain::Triangle([a, b, c].map(|angle| [angle.cos(), angle.sin()]), back)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Membership of combinations is the logic of memberships; a normal points from a point
    /// that belongs to one that does not.
    #[test]
    fn combinations_follow_logic(plain_a in shape(), plain_b in shape(), seed: u64) {
        let (a, b) = (plain_a.domain(), plain_b.domain());
        let (in_a, in_b) = (|p: &[f64]| plain_a.holds(p), |p: &[f64]| plain_b.holds(p));
        let points = Sampler::new(&[(-1.2, 1.2), (-1.2, 1.2)], seed)?.uniform(50)?;
        let union = a.union(&b)?;
        let difference = a.difference(&b)?;
        let intersection = a.intersection(&b);
        for p in rows(&points) {
            prop_assert_eq!(a.contains(&p), in_a(&p));
            prop_assert_eq!(union.contains(&p), in_a(&p) || in_b(&p));
            prop_assert_eq!(difference.contains(&p), in_a(&p) && !in_b(&p));
            if let Ok(both) = &intersection {
                prop_assert_eq!(both.contains(&p), in_a(&p) && in_b(&p));
            }
        }
        for domain in [Some(a.clone()), Some(union), Some(difference), intersection.ok()] {
            let Some(domain) = domain else { continue };
            let Ok(region) = domain.boundary() else { continue };
            // Combinations may be empty, or nearly so.
            let Ok(points) = Sampler::over(&region, seed).uniform(20) else { continue };
            for (p, normal) in rows(&points).zip(normals(&points)) {
                let at = |step: f64| [p[0] + step * normal[0], p[1] + step * normal[1]];
                let length = normal[0].hypot(normal[1]);
                prop_assert!((length - 1.0).abs() < 1e-12);
                // As close as the sides are told apart: corners may be sharp.
                prop_assert!(domain.contains(&at(-1e-7)) && !domain.contains(&at(1e-7)));
                prop_assert!(domain.side_at(&p).is_some());
            }
        }
    }

    /// Scaled and moved boxes and balls of any dimension: points inside, counts exact, the
    /// same again from the same seed.
    #[test]
    fn points_stay_inside(
        dimension in 1_usize..7,
        center in -1e3..1e3_f64,
        size in 1e-3..1e3_f64,
        seed: u64,
        count in 1_usize..200,
    ) {
        let cube = Domain::cuboid(&vec![(center - size, center + size); dimension])?;
        let ball = Domain::ball(&vec![center; dimension], size)?;
        for domain in [cube, ball] {
            for design in RANDOM {
                let points = Sampler::over(&domain.interior(), seed).draw(design, count)?;
                prop_assert_eq!(points.len(), count);
                prop_assert!(rows(&points).all(|p| domain.contains(&p)));
                let boundary = Sampler::over(&domain.boundary()?, seed).draw(design, count)?;
                prop_assert!(rows(&boundary).all(|p| domain.side_at(&p).is_some()));
            }
        }
    }
}
