//! Laws of the algebra of planes, on whole numbers, so that they hold exactly.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// A jet: a number for each plane of a set.
type Jet = BTreeMap<Plane, f64>;

fn at(jet: &Jet, plane: &Plane) -> f64 {
    jet.get(plane).copied().unwrap_or(0.0)
}

/// Some numbers for the planes of a set; a Laplacian is the sum of its parts where those
/// are there too.
fn jet(planes: &Planes, numbers: &[i8]) -> Jet {
    let mut jet: Jet = planes
        .iter()
        .cloned()
        .zip(numbers.iter().cycle().map(|&n| f64::from(n)))
        .collect();
    for plane in planes {
        if let Plane::Laplacian(set) = plane
            && set.iter().all(|&c| planes.contains(&Plane::second(c)))
        {
            let sum = set.iter().map(|&c| at(&jet, &Plane::second(c))).sum();
            jet.insert(plane.clone(), sum);
        }
    }
    jet
}

fn list(jet: &Jet, planes: &Planes) -> Vec<f64> {
    planes.iter().map(|p| at(jet, p)).collect()
}

fn planes_of(jet: &Jet) -> Planes {
    jet.keys().cloned().collect()
}

/// The product on the planes of `target`.
fn product(a: &Jet, b: &Jet, target: &Planes) -> Jet {
    let (pa, pb) = (planes_of(a), planes_of(b));
    let (va, vb) = (list(a, &pa), list(b, &pb));
    let sum = |plane: &Plane| {
        let pairs = factor_pairs(plane, &pa, &pb);
        pairs.into_iter().map(|(i, j)| va[i] * vb[j]).sum()
    };
    target.iter().map(|p| (p.clone(), sum(p))).collect()
}

fn sum(a: &Jet, b: &Jet) -> Jet {
    let both: Planes = a.keys().chain(b.keys()).cloned().collect();
    both.iter()
        .map(|p| (p.clone(), at(a, p) + at(b, p)))
        .collect()
}

fn mapped(a: &Jet, target: &Planes, sources: impl Fn(&Plane) -> Vec<(Plane, f64)>) -> Jet {
    let value = |p: &Plane| sources(p).iter().map(|(q, factor)| factor * at(a, q)).sum();
    target.iter().map(|p| (p.clone(), value(p))).collect()
}

fn derivative(a: &Jet, c: Coordinate, target: &Planes) -> Jet {
    mapped(a, target, |p| p.derivative_sources(c))
}

fn partials() -> impl Strategy<Value = Plane> {
    proptest::collection::vec(0..3_u16, 0..=4).prop_map(|list| {
        let index = list.iter().fold(MultiIndex::value(), |sum, &c| {
            sum.plus(&MultiIndex::pure(c, 1))
        });
        Plane::Partial(index)
    })
}

fn any_plane() -> impl Strategy<Value = Plane> {
    prop_oneof![
        4 => partials(),
        1 => Just(Plane::Laplacian(Arc::from([0, 1]))),
        1 => Just(Plane::Laplacian(Arc::from([0, 1, 2]))),
    ]
}

fn some_planes() -> impl Strategy<Value = Planes> {
    proptest::collection::vec(any_plane(), 1..6).prop_map(|list| list.into_iter().collect())
}

fn closed() -> impl Strategy<Value = Planes> {
    some_planes().prop_map(|planes| planes.closed())
}

fn numbers() -> impl Strategy<Value = Vec<i8>> {
    proptest::collection::vec(-4..=4_i8, 40)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn closed_sets_stay_closed(planes in some_planes()) {
        let closed = planes.closed();
        prop_assert!(planes.iter().all(|p| closed.contains(p)));
        prop_assert_eq!(&closed.closed(), &closed);
        prop_assert!(closed.contains(&Plane::value()));
        // Ascending: what makes a plane comes before it.
        for (place, plane) in closed.iter().enumerate() {
            prop_assert_eq!(closed.position(plane), Some(place));
            prop_assert!(plane.below().iter().all(|p| p <= plane));
        }
    }

    #[test]
    fn product_is_commutative(set in closed(), a in numbers(), b in numbers()) {
        let (a, b) = (jet(&set, &a), jet(&set, &b));
        prop_assert_eq!(product(&a, &b, &set), product(&b, &a, &set));
    }

    #[test]
    fn product_is_associative(set in closed(), a in numbers(), b in numbers(), c in numbers()) {
        let [a, b, c] = [a, b, c].map(|numbers| jet(&set, &numbers));
        let left = product(&product(&a, &b, &set), &c, &set);
        let right = product(&a, &product(&b, &c, &set), &set);
        prop_assert_eq!(left, right);
    }

    #[test]
    fn product_has_a_unit(set in closed(), a in numbers()) {
        let a = jet(&set, &a);
        let one = Jet::from([(Plane::value(), 1.0)]);
        prop_assert_eq!(&product(&a, &one, &set), &a);
        prop_assert_eq!(&product(&one, &a, &set), &a);
    }

    #[test]
    fn product_distributes(set in closed(), a in numbers(), b in numbers(), c in numbers()) {
        let [a, b, c] = [a, b, c].map(|numbers| jet(&set, &numbers));
        let whole = product(&a, &sum(&b, &c), &set);
        prop_assert_eq!(whole, sum(&product(&a, &b, &set), &product(&a, &c, &set)));
    }

    /// A product on fewer planes is the product, on fewer planes.
    #[test]
    fn truncation_commutes(
        set in closed(), other in some_planes(), a in numbers(), b in numbers(),
    ) {
        let small: Planes =
            set.iter().filter(|p| other.closed().contains(p)).cloned().collect();
        let truncated = |jet: &Jet| -> Jet {
            jet.iter().filter(|(p, _)| small.contains(p)).map(|(p, v)| (p.clone(), *v)).collect()
        };
        let (a, b) = (jet(&set, &a), jet(&set, &b));
        prop_assert_eq!(
            truncated(&product(&a, &b, &set)),
            product(&truncated(&a), &truncated(&b), &small)
        );
    }

    #[test]
    fn derivation_is_a_derivation(
        target in closed(), c in 0..3_u16, a in numbers(), b in numbers(),
    ) {
        let sources = target.iter().flat_map(|p| p.derivative_sources(c)).map(|(p, _)| p);
        let set = target.iter().cloned().chain(sources).collect::<Planes>().closed();
        let (a, b) = (jet(&set, &a), jet(&set, &b));
        let whole = derivative(&product(&a, &b, &set), c, &target);
        let left = product(&a, &derivative(&b, c, &target), &target);
        let right = product(&derivative(&a, c, &target), &b, &target);
        prop_assert_eq!(whole, sum(&left, &right));
    }

    #[test]
    fn derivations_commute(target in closed(), c in 0..3_u16, d in 0..3_u16, a in numbers()) {
        let sources = |planes: &Planes, c: Coordinate| -> Planes {
            planes.iter().flat_map(|p| p.derivative_sources(c)).map(|(p, _)| p).collect()
        };
        let (of_c, of_d) = (sources(&target, c), sources(&target, d));
        let all: Planes = sources(&of_c, d).iter().chain(&sources(&of_d, c)).cloned().collect();
        let a = jet(&all, &a);
        prop_assert_eq!(
            derivative(&derivative(&a, d, &of_c), c, &target),
            derivative(&derivative(&a, c, &of_d), d, &target)
        );
    }

    /// Δ(ab) = a Δb + b Δa + 2 ∇a·∇b, with Δ as one plane and by its parts.
    #[test]
    fn laplacian_of_a_product(count in 1..=3_u16, a in numbers(), b in numbers()) {
        let coordinates: Arc<[Coordinate]> = (0..count).collect();
        let value: Planes = std::iter::once(Plane::value()).collect();
        for collapsed in [true, false] {
            let top: Planes = if collapsed {
                std::iter::once(Plane::Laplacian(coordinates.clone())).collect()
            } else {
                coordinates.iter().map(|&c| Plane::second(c)).collect()
            };
            let set = top.closed();
            let (a, b) = (jet(&set, &a), jet(&set, &b));
            let laplacian = |jet: &Jet| {
                let sources = |p: &Plane| p.laplacian_sources(&coordinates, collapsed);
                at(&mapped(jet, &value, sources), &Plane::value())
            };
            let slopes = |jet: &Jet| -> Vec<f64> {
                coordinates.iter().map(|&c| at(jet, &Plane::first(c))).collect()
            };
            let mixed: f64 = slopes(&a).iter().zip(slopes(&b)).map(|(a, b)| a * b).sum();
            let (a0, b0) = (at(&a, &Plane::value()), at(&b, &Plane::value()));
            prop_assert_eq!(
                laplacian(&product(&a, &b, &set)),
                a0 * laplacian(&b) + b0 * laplacian(&a) + 2.0 * mixed
            );
        }
    }

    /// ⟨a·b, φ⟩ = ⟨b, contract(a, φ)⟩, whichever planes each of them holds.
    #[test]
    fn contraction_is_the_transposed_product(
        sets in [some_planes(), some_planes(), some_planes()],
        a in numbers(), b in numbers(), phi in numbers(),
    ) {
        let (a, b, phi) = (jet(&sets[0], &a), jet(&sets[1], &b), jet(&sets[2], &phi));
        let inner = |x: &Jet, y: &Jet| x.iter().map(|(p, v)| v * at(y, p)).sum::<f64>();
        let pa = planes_of(&a);
        let pb = planes_of(&b);
        let mut contracted = Jet::new();
        for (k, phi_k) in &phi {
            for (i, j) in factor_pairs(k, &pa, &pb) {
                let (i, j) = (pa.get(i).expect("a plane"), pb.get(j).expect("a plane"));
                *contracted.entry(j.clone()).or_insert(0.0) += at(&a, i) * phi_k;
            }
        }
        prop_assert_eq!(inner(&product(&a, &b, &sets[2]), &phi), inner(&contracted, &b));
    }

    /// Powers of a jet are zero where `generated` says so, and only there.
    #[test]
    fn generated_planes_are_those_of_the_powers(
        target in closed(), generators in some_planes(),
    ) {
        let steps: Planes = generators
            .iter()
            .filter(|p| !p.is_value() && matches!(p, Plane::Partial(_)))
            .cloned()
            .collect();
        // Positive numbers cannot cancel.
        let delta = jet(&steps, &[1]);
        let closed = target.closed();
        let mut power = Jet::from([(Plane::value(), 1.0)]);
        let mut reached: BTreeSet<Plane> = std::iter::once(Plane::value()).collect();
        for _ in 0..=closed.order() {
            power = product(&power, &delta, &closed);
            reached.extend(power.iter().filter(|(_, v)| **v != 0.0).map(|(p, _)| p.clone()));
        }
        let partial = |p: &&Plane| matches!(p, Plane::Partial(_));
        let got = generated(&target, &steps);
        let want: Planes = target.iter().filter(|p| reached.contains(p)).cloned().collect();
        prop_assert_eq!(
            got.iter().filter(partial).collect::<Vec<_>>(),
            want.iter().filter(partial).collect::<Vec<_>>()
        );
        // A Laplacian may be made of second derivatives that the product does not see.
        prop_assert!(want.iter().all(|p| got.contains(p)));
    }

    #[test]
    fn multi_indices_add_and_subtract(a in partials(), b in partials()) {
        let (Plane::Partial(a), Plane::Partial(b)) = (a, b) else { unreachable!() };
        let sum = a.plus(&b);
        prop_assert_eq!(&sum, &b.plus(&a));
        prop_assert_eq!(sum.minus(&b), Some(a.clone()));
        prop_assert_eq!(sum.order(), a.order() + b.order());
        let smaller = a.iter().all(|(c, k)| b.get(c) >= k);
        prop_assert_eq!(b.minus(&a).is_some(), smaller);
    }
}

#[test]
fn factors_between_coefficients_and_derivatives() {
    let index = MultiIndex::pure(1, 3).plus(&MultiIndex::pure(4, 2));
    assert_eq!(index.factorial(), 12.0);
    assert_eq!(Plane::Partial(index).derivative_factor(), 12.0);
    assert_eq!(Plane::Laplacian(Arc::from([0, 1])).derivative_factor(), 2.0);
    assert_eq!(Plane::value().derivative_factor(), 1.0);
}
