#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use dualtape::*;
fn main() {
    let all = golden("pde.json");
    for (name, order) in [
        ("kuramoto_sivashinsky", 4),
        ("burgers", 2),
        ("kdv", 3),
        ("biharmonic_2d", 4),
    ] {
        let problem = &all[name];
        let mut params = Parameters::new();
        let net = network(&mut params, "net", problem);
        let eq = Equation::record(name, &params, ["t", "x"], |[t, x]| {
            let [u] = net.at(&[t, x]);
            match name {
                "burgers" => {
                    u.d(t) + u * u.d(x) - problem["constants"]["nu"].as_f64().unwrap() * u.d(x).d(x)
                }
                "kdv" => u.d(t) + 6.0 * u * u.d(x) + u.d(x).d(x).d(x),
                "biharmonic_2d" => u.laplacian(&[t, x]).laplacian(&[t, x]),
                _ => {
                    let second = u.d(x).d(x);
                    u.d(t) + u * u.d(x) + second + second.d(x).d(x)
                }
            }
        })
        .unwrap();
        let points = Points::from_flat(2, &numbers(&problem["points"])).unwrap();
        let p = Problem::new(&params, [Condition::new(&eq, points)]).unwrap();
        let layers = problem["expected"]["grad"]["layers"].as_array().unwrap();
        let want = layer_numbers(layers);
        let scale = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        for set in InstructionSet::available() {
            for l in lowerings(order) {
                for precision in [Precision::Double, Precision::Single] {
                    let e = Engine::with(
                        &p,
                        &Options::default()
                            .lowering(l)
                            .instructions(set)
                            .precision(precision),
                    )
                    .unwrap();
                    let g = e.evaluate(params.values()).unwrap().gradient;
                    let err = g
                        .iter()
                        .zip(&want)
                        .fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()))
                        / scale;
                    println!("{name:22} {:9} {l:?} {precision:?} {err:.1e}", set.name());
                }
            }
        }
    }
}
