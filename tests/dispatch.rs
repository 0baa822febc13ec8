//! One binary, every instruction set: the widest that the CPU has is the one in use, any
//! other can be asked for.

use dualtape::{
    Condition, Elemental, Engine, Equation, Evaluation, InstructionSet, Options, Parameters,
    Points, Precision, Problem,
};
use std::process::Command;

const VARIABLE: &str = "DUALTAPE_ISA";

/// What this CPU has, by the standard library's word; narrowest first.
fn detected() -> Vec<InstructionSet> {
    let mut sets = vec![InstructionSet::Baseline];
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! all {
            ($($feature:tt),*) => { $(is_x86_feature_detected!($feature))&&* };
        }
        let avx2 = all!(
            "avx", "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "sse4.2"
        );
        if avx2 {
            sets.push(InstructionSet::Avx2);
        }
        if avx2 && all!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl") {
            sets.push(InstructionSet::Avx512);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        sets.push(InstructionSet::Neon);
    }
    sets
}

#[test]
fn available_is_what_the_cpu_has() {
    assert_eq!(InstructionSet::available(), detected());
}

/// Run by itself, and by the next test in processes with the variable set.
#[test]
fn the_set_in_use() {
    let sets = detected();
    let asked = std::env::var(VARIABLE).ok();
    let asked = asked.and_then(|word| sets.iter().find(|set| set.name() == word));
    let expected = asked.or(sets.last()).copied();
    assert_eq!(Some(InstructionSet::detect()), expected);
}

#[test]
fn the_variable_asks_for_a_set() {
    let words = ["baseline", "avx2", "avx512", "neon", "mmx", ""];
    for word in words {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_set_in_use"])
            .env(VARIABLE, word)
            .output()
            .expect("this program runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{word}: {text}");
        assert!(text.contains("1 passed"), "{word}: {text}");
    }
}

fn evaluate(options: &Options) -> Evaluation {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("u", &[2, 20, 20, 1], Elemental::Tanh).unwrap();
    let equation = Equation::record("heat", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) - u.d(x).d(x)
    })
    .unwrap();
    let points = Points::grid(&[(0.0, 1.0, 9), (-1.0, 1.0, 11)]).unwrap();
    let problem = Problem::new(&params, [Condition::new(&equation, points)]).unwrap();
    let engine = Engine::with(&problem, options).unwrap();
    engine.evaluate(params.values()).unwrap()
}

/// Sets differ in the last bits, since they fuse and add up differently: so bits tell which
/// one an engine really used.
#[test]
fn an_engine_uses_the_set_that_it_says() {
    for precision in [Precision::Double, Precision::Single] {
        let options = Options::default().precision(precision);
        let chosen = evaluate(&options);
        let mut different = Vec::new();
        for set in InstructionSet::available() {
            let forced = evaluate(&options.clone().instructions(set));
            assert_eq!(
                forced == chosen,
                set == InstructionSet::detect(),
                "{precision:?}: {} has {} bits of the engine's choice, {}",
                set.name(),
                if forced == chosen { "the" } else { "not the" },
                InstructionSet::detect().name(),
            );
            assert!(!different.contains(&forced), "{} is not itself", set.name());
            different.push(forced);
        }
    }
}

#[test]
fn a_set_that_the_cpu_lacks_falls_back_to_the_baseline() {
    let all = [
        InstructionSet::Avx2,
        InstructionSet::Avx512,
        InstructionSet::Neon,
    ];
    let baseline = evaluate(&Options::default().instructions(InstructionSet::Baseline));
    let lacking = all.iter().filter(|set| !detected().contains(set));
    for &set in lacking {
        assert_eq!(evaluate(&Options::default().instructions(set)), baseline);
    }
}
