//! Mixed mode beside pure reverse mode, for an equation of your own: what each keeps for the
//! reverse sweep, counted without running it, and how long it takes.

use dualtape::{
    Condition, Elemental::Tanh, Engine, Equation, Error, Lowering, Options, Parameters, Points,
    Problem,
};
use std::time::Instant;

fn main() -> Result<(), Error> {
    let mut params = Parameters::new();
    let net = params.mlp("u", &[2, 64, 64, 64, 64, 1], Tanh)?;
    let kdv = Equation::record("kdv", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + 6.0 * u * u.d(x) + u.d(x).d(x).d(x)
    })?;
    let points = Points::grid(&[(0.0, 1.0, 64), (-1.0, 1.0, 64)])?;
    let problem = Problem::new(&params, [Condition::new(&kdv, points)])?;

    for lowering in [Lowering::Jets, Lowering::NestedReverse] {
        let engine = Engine::with(&problem, &Options::default().lowering(lowering))?;
        let counts = &engine.plans()[0].counts;
        println!("{lowering:?}: nodes by graph {:?}", counts.nodes);
        println!(
            "  kept a point  {} bytes",
            counts.kept_bytes::<f64>(64) / 64
        );
        println!("  evaluation    {} bytes", engine.predicted_bytes());
        engine.evaluate(params.values())?;
        let start = Instant::now();
        let loss = engine.evaluate(params.values())?.loss;
        println!("  loss {loss:.15}, {:.1?}", start.elapsed());
    }
    Ok(())
}
