//! The end of sweeps through sweeps.

use super::*;
use crate::{Equation, Parameters};

#[test]
fn a_tape_has_an_end() {
    let mut params = Parameters::new();
    let net = params
        .mlp("u", &[2, 3, 3, 1], Elemental::Tanh)
        .expect("a network");
    let equation = Equation::record("steep", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(x).d(t).d(x).d(t)
    })
    .expect("an equation");
    let nodes = |limit| lower(equation.tape(), 4, limit).map(|tape| tape.nodes().len());
    let all = nodes(usize::MAX).expect("a tape");
    assert!(all > 100, "{all} nodes");
    assert_eq!(nodes(100), Err(Error::LoweringTooLarge { limit: 100 }));
    // By order only so far.
    for inner in 0..=4 {
        let tape = lower(equation.tape(), inner, usize::MAX).expect("a tape");
        let left = tape.nodes().iter();
        let left = left.filter(|node| matches!(node.op, Op::Derivative(_)));
        assert_eq!(left.count(), 4 - inner);
        let graphs = tape.nodes().iter().map(|node| node.graph).max();
        assert_eq!(graphs, Some(1 + inner));
    }
}
